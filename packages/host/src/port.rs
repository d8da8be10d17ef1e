//! Brings results into an event loop of another language.
//!
//! The background thread puts results into a list and rings: it makes a descriptor readable that
//! the loop watches, or calls the loop's function for this. The loop takes the list on its own
//! thread, so the background thread needs nothing from the interpreter. Many results at once cost
//! one wake-up.

use std::fmt;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::process::{Background, background, unless};

/// How long a loop's own thread drives a call, at most. The runtime counts in whole milliseconds:
/// it may be 2 ms.
const HERE_MAX: Duration = Duration::from_millis(1);
/// A call that takes longer has better been left to the background thread.
const NEAR: Duration = Duration::from_micros(250);
/// How many calls the background thread gets at most before a loop tries one itself again.
const LEFT_MAX: u32 = 1024;

/// A place where the results of calls arrive, by their numbers.
///
/// Calls are begun in two steps: [`start`](Port::start) for each, and [`flush`](Port::flush) for
/// all that a turn of the loop has started. So the commands of many tasks leave together: one
/// wake-up of the background thread, and one write to each node. For a call that is alone, there
/// is [`drive`](Port::drive), which needs no wake-up.
pub struct Port<T> {
    shared: Arc<Shared<T>>,
    next: AtomicU64,
    started: Mutex<Started>,
}

impl<T> fmt::Debug for Port<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("shared", &self.shared).finish_non_exhaustive()
    }
}

struct Shared<T> {
    done: Mutex<Vec<(u64, T)>>,
    /// It has rung, or is about to, and nothing was taken since.
    is_ringing: AtomicBool,
    ring: Box<dyn Fn() + Send + Sync>,
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("is_ringing", &self.is_ringing).finish_non_exhaustive()
    }
}

/// A call in progress.
#[derive(Debug)]
pub struct Call {
    /// Its number at its port.
    pub number: u64,
    end: CancellationToken,
    port: Arc<dyn Withdraw>,
    process: u32,
}

impl Call {
    /// Drops the call, or its result if that has arrived and nobody has taken it: with a lock that
    /// it has won, which is released. If it was not flushed, it never begins. After this, no result
    /// arrives. In a forked child it does nothing: the call is the parent's.
    pub fn cancel(&self) {
        if self.process == std::process::id() {
            self.end.cancel();
            self.port.withdraw(self.number);
        }
    }
}

/// Where the result of a call may have arrived.
trait Withdraw: fmt::Debug + Send + Sync {
    fn withdraw(&self, number: u64);
}

impl<T: Send> Withdraw for Shared<T> {
    fn withdraw(&self, number: u64) {
        let is_its = |arrived: &mut (u64, T)| arrived.0 == number;
        let arrived: Vec<(u64, T)> = self.arrived().extract_if(.., is_its).collect();
        // Not under the mutex: it may release locks.
        drop(arrived);
    }
}

/// What runs a call.
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What one process has started at a port.
#[derive(Default)]
struct Started {
    /// 0 before anything was started, which no process has.
    process: u32,
    /// Not on the background thread yet.
    calls: Vec<Running>,
    /// How many there were when the loop had to flush them last; 0 if it had not.
    asked_at: usize,
    near: Near,
    /// Ends all calls of the port.
    end: CancellationToken,
}

/// Whether the answers come so fast that a loop had better drive its calls itself.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    /// How many calls are left to the background thread before the next trial.
    left: u32,
    /// How many were after the last trial that failed.
    penalty: u32,
}

impl Near {
    /// Whether the next call is to be tried.
    fn tries(&mut self) -> bool {
        let tries = self.left == 0;
        self.left = self.left.saturating_sub(1);
        tries
    }

    /// Each failure doubles what comes before the next trial: calls that wait cost a loop little,
    /// even if quick ones are between them.
    fn tried(&mut self, took: Duration) {
        if took < NEAR {
            self.penalty = self.penalty.saturating_sub(1);
        } else {
            self.penalty = (self.penalty * 2).clamp(1, LEFT_MAX);
            self.left = self.penalty;
        }
    }
}

impl Started {
    fn take_calls(&mut self) -> Vec<Running> {
        self.asked_at = 0;
        std::mem::take(&mut self.calls)
    }

    /// Drops what nobody needs any more. What another process has started belongs to that, and
    /// its mutexes may be held by a thread that does not exist here.
    fn discard(self) {
        if self.process == 0 || self.process == std::process::id() {
            self.end.cancel();
        } else {
            std::mem::forget(self);
        }
    }
}

impl<T> Drop for Port<T> {
    /// The loop has ended, perhaps with its thread: nobody takes the results of its calls.
    fn drop(&mut self) {
        let started = self.started.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(started).discard();
    }
}

impl<T: Send + 'static> Port<T> {
    /// A port that calls `ring` on the background thread when there is something to take. `ring`
    /// must not block; it is not called again before [`take`](Port::take) is.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Port<T> {
        let (done, is_ringing) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let shared = Shared { done, is_ringing, ring: Box::new(ring) };
        Port { shared: Arc::new(shared), next: AtomicU64::new(0), started: Mutex::default() }
    }

    /// Runs `future` after the next [`flush`](Port::flush), [`drive`](Port::drive) or
    /// [`leave`](Port::leave); its result arrives here.
    ///
    /// # Errors
    /// [`Failure`] if there is no background thread and none can be started.
    pub fn start(&self, future: impl Future<Output = T> + Send + 'static) -> Result<Call, Failure> {
        let background = background()?;
        let number = self.number();
        let shared = Arc::clone(&self.shared);
        let mut started = self.started(background);
        let end = started.end.child_token();
        let port = Arc::clone(&self.shared);
        let call = Call { number, end: end.clone(), port, process: background.process };
        started.calls.push(Box::pin(background.pending.track_future(async move {
            if end.is_cancelled() {
                return;
            }
            if let Some(result) = unless(&end, future).await {
                shared.put(number, result, || !end.is_cancelled());
            }
        })));
        Ok(call)
    }

    /// Whether the loop has to [`flush`](Port::flush) at the end of this turn because of the call
    /// that was started last. It has for the first, the second, the fourth, and so on: one flush is
    /// enough for all, but that of another may be lost, if an exception ends the loop just then. It
    /// has also if nobody asked after an earlier call, because of an exception.
    pub fn needs_flush(&self) -> bool {
        let Ok(background) = background() else { return false };
        let mut started = self.started(background);
        let calls = started.calls.len();
        let is_needed = calls >= (2 * started.asked_at).max(1);
        if is_needed {
            started.asked_at = calls;
        }
        is_needed
    }

    /// Hands the started calls to the background thread.
    pub fn flush(&self) {
        // It exists since the first call was started.
        let Ok(background) = background() else { return };
        let mut started = self.started(background).take_calls();
        match started.len() {
            0 => {}
            1 => drop(started.pop().map(|call| background.spawn(call))),
            // All are queued before the first of their commands is written.
            _ => drop(background.spawn(async move {
                for call in started {
                    drop(tokio::spawn(call));
                }
            })),
        }
    }

    /// As [`flush`](Port::flush), for calls that wait for something: wakes no thread, and the next
    /// one that drives begins them, which is soon.
    pub fn leave(&self) {
        let Ok(background) = background() else { return };
        for call in self.started(background).take_calls() {
            drop(background.runtime.spawn(call));
        }
    }

    /// As [`flush`](Port::flush), for a turn that has started one call while no other was in
    /// progress: this thread drives it for a moment (`HERE_MAX`). If its nodes answer as fast as
    /// that, no thread has to be woken, and the result is there for the next turn. After a call
    /// that took longer, the background thread gets the next ones.
    pub fn drive(&self) {
        let Ok(background) = background() else { return };
        let mut started = self.started(background);
        if started.calls.len() != 1 || !started.near.tries() {
            drop(started);
            return self.flush();
        }
        let Some(mut call) = started.take_calls().pop() else { return };
        // Driving runs other calls, too, and those end where they may.
        drop(started);
        let begun_at = Instant::now();
        let is_done = background.block_on(async { timeout(HERE_MAX, call.as_mut()).await.is_ok() });
        self.started(background).near.tried(begun_at.elapsed());
        if !is_done {
            drop(background.spawn(call));
        }
    }

    /// What this process has started.
    fn started(&self, background: &Background) -> MutexGuard<'_, Started> {
        // It is intact even if it is poisoned.
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if started.process != background.process {
            let end = background.ending.child_token();
            let own = Started { process: background.process, end, ..Started::default() };
            std::mem::replace(&mut *started, own).discard();
        }
        started
    }

    /// Puts in a result that is already known, and returns the number under which it arrives.
    pub fn put(&self, result: T) -> u64 {
        let number = self.number();
        self.shared.put(number, result, || true);
        number
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes all results that have arrived, each with the number of its call.
    pub fn take(&self) -> Vec<(u64, T)> {
        // Before the list is taken: a result that comes later rings again.
        self.shared.is_ringing.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.shared.arrived())
    }
}

impl<T> Shared<T> {
    fn arrived(&self) -> MutexGuard<'_, Vec<(u64, T)>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts in a result, if it is wanted when its place is there.
    fn put(&self, number: u64, result: T, is_wanted: impl Fn() -> bool) {
        let mut arrived = self.arrived();
        if !is_wanted() {
            drop(arrived);
            return;
        }
        arrived.push((number, result));
        drop(arrived);
        if !self.is_ringing.swap(true, Ordering::SeqCst) {
            (self.ring)();
        }
    }
}

/// A descriptor for a loop to watch: readable when the port has rung.
#[derive(Debug)]
pub struct Bell(Arc<PipeReader>);

impl Bell {
    /// The bell, and the function that rings it, for [`Port::new`].
    ///
    /// # Errors
    /// [`Failure`] if the system has no descriptor left.
    pub fn new() -> Result<(Bell, impl Fn() + Send + Sync + 'static), Failure> {
        let pair = || {
            let (heard, ring) = std::io::pipe()?;
            ioctl_fionbio(&ring, true)?;
            ioctl_fionbio(&heard, true)?;
            Ok((ring, heard))
        };
        let pair: std::io::Result<_> = pair();
        let (ring, heard) =
            pair.map_err(|error| Failure::refused(format!("no descriptor is left: {error}")))?;
        let heard = Arc::new(heard);
        // A late ring would end a program that does not ignore SIGPIPE, if nobody could hear it.
        let kept = Arc::clone(&heard);
        let ring = move || {
            // A byte at a time is enough, so there is room.
            drop((&ring).write(&[1]));
            let _ = &kept;
        };
        Ok((Bell(heard), ring))
    }

    /// The descriptor for the loop to watch.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes the descriptor silent. Call it before [`Port::take`].
    pub fn hush(&self) {
        let mut bytes = [0; 64];
        // No byte is no error: the results may have been taken already.
        drop((&*self.0).read(&mut bytes));
    }
}
