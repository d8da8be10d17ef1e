//! The background thread: one per process, and a new one after a fork.
//!
//! A fork copies the memory of a runtime but none of its threads. So everything that depends on a
//! runtime remembers the process that it was made in, and is neither used nor dropped in another:
//! its mutexes may be held by a thread that does not exist there.
//!
//! Connections and timers are driven by one thread at a time: by one that is blocked in a call, if
//! there is one, and otherwise by the background thread. A caller that drives reads its own
//! answers, so no second thread is woken to send or to receive.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::failure::Failure;
use crate::{holding, settings};

/// How long [`finish`] waits at most.
const FINISH_MAX: Duration = Duration::from_secs(2);
/// How long after a call the background thread leaves driving to the next one.
const ASIDE: Duration = Duration::from_millis(2);
/// How often a blocked thread checks for signals.
const CHECK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) process: u32,
    pub(crate) runtime: Runtime,
    /// Cancelled when the program ends.
    pub(crate) ending: CancellationToken,
    /// The calls that have not returned.
    pub(crate) pending: TaskTracker,
    thread: OnceLock<Thread>,
    /// Locked while it is started.
    starting: Mutex<()>,
    /// The background thread drives.
    is_driving: AtomicBool,
    step_aside: Notify,
    /// The background thread sleeps until a caller leaves, or it is needed.
    is_asleep: AtomicBool,
    /// There is work for which no caller is blocked.
    is_wanted: AtomicBool,
    /// Threads that are blocked in a call, and calls so far.
    callers: AtomicUsize,
    calls: AtomicU64,
    /// Tasks that write the last commands of dropped hosts.
    settling: Mutex<Vec<JoinHandle<()>>>,
    /// What must still be released, and settled, when the program ends.
    pub(crate) holdings: Alive<holding::Shared>,
    pub(crate) hosts: Alive<settings::Inside>,
    /// The background of a forked child.
    next: Chain,
}

type Chain = OnceLock<&'static Background>;

static FIRST: Chain = OnceLock::new();

/// The background of this process. It is never freed: a process has one.
///
/// # Errors
/// [`Failure`] if no thread could be started.
pub(crate) fn background() -> Result<&'static Background, Failure> {
    loop {
        match existing() {
            Ok(background) => {
                background.start()?;
                return Ok(background);
            }
            Err(end) => {
                let background = Background::new(std::process::id())?;
                let background: &'static Background = Box::leak(Box::new(background));
                // If two threads get here at once, the second background is not used.
                let _ = end.set(background);
            }
        }
    }
}

/// The background of this process, or the place to put it.
fn existing() -> Result<&'static Background, &'static Chain> {
    let process = std::process::id();
    let mut chain = &FIRST;
    while let Some(background) = chain.get() {
        if background.process == process {
            return Ok(background);
        }
        chain = &background.next;
    }
    Err(chain)
}

impl Background {
    fn new(process: u32) -> Result<Background, Failure> {
        // It starts threads that look up names.
        let mut builder = Builder::new_current_thread();
        let builder = builder.enable_all().on_thread_start(block_signals);
        let runtime = builder.build().map_err(no_thread)?;
        Ok(Background {
            process,
            runtime,
            ending: CancellationToken::new(),
            pending: TaskTracker::new(),
            thread: OnceLock::new(),
            starting: Mutex::default(),
            is_driving: AtomicBool::new(false),
            step_aside: Notify::new(),
            is_asleep: AtomicBool::new(false),
            is_wanted: AtomicBool::new(true),
            callers: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            settling: Mutex::default(),
            holdings: Alive::new(),
            hosts: Alive::new(),
            next: OnceLock::new(),
        })
    }

    /// Starts the thread, if it does not run yet: nothing would be renewed without it.
    fn start(&'static self) -> Result<(), Failure> {
        if self.thread.get().is_some() {
            return Ok(());
        }
        let _one = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.thread.get().is_some() {
            return Ok(());
        }
        let start = || thread::Builder::new().name("lockmod".into()).spawn(|| self.run());
        // The thread takes over what this one blocks.
        let before = program_signals().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let thread = start();
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        drop(self.thread.set(thread.map_err(no_thread)?.thread().clone()));
        Ok(())
    }

    /// The background thread: drives unless callers do.
    fn run(&self) {
        loop {
            self.is_driving.store(true, SeqCst);
            self.runtime.block_on(self.step_aside.notified());
            self.is_driving.store(false, SeqCst);
            self.stand_aside();
        }
    }

    /// Waits until no call has come for a while.
    fn stand_aside(&self) {
        loop {
            let calls = self.calls.load(SeqCst);
            thread::park_timeout(ASIDE);
            let is_same = self.calls.load(SeqCst) == calls;
            if self.is_wanted.swap(false, SeqCst) || (is_same && !self.has_callers()) {
                return;
            }
            if is_same {
                // A long call is driving. A caller that leaves and sees the flag wakes this thread;
                // one that left before the flag was set no longer counts as a caller.
                self.is_asleep.store(true, SeqCst);
                if self.has_callers() && !self.is_wanted.load(SeqCst) {
                    thread::park();
                }
                self.is_asleep.store(false, SeqCst);
            }
        }
    }

    fn has_callers(&self) -> bool {
        self.callers.load(SeqCst) > 0
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Runs `future` on this thread, which drives everything else meanwhile.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.callers.fetch_add(1, SeqCst);
        self.calls.fetch_add(1, SeqCst);
        if self.is_driving.load(SeqCst) {
            self.step_aside.notify_one();
        }
        let value = self.runtime.block_on(future);
        self.callers.fetch_sub(1, SeqCst);
        if self.is_asleep.load(SeqCst) {
            self.wake();
        }
        value
    }

    /// Runs `future` in the background.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let task = self.runtime.spawn(future);
        if !self.is_driving.load(SeqCst) {
            self.is_wanted.store(true, SeqCst);
            self.wake();
        }
        task
    }

    /// Runs `last` to its end, which [`finish`] waits for.
    pub(crate) fn settle(&self, last: impl Future<Output = ()> + Send + 'static) {
        let task = self.spawn(last);
        // A list of handles is intact even if it is poisoned.
        let mut settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        settling.retain(|task| !task.is_finished());
        settling.push(task);
    }
}

/// Blocks until `future` is done. Every 100 ms `check` may end it, so that pending signals are
/// handled.
///
/// # Errors
/// What `check` returned; [`Kind::Forked`](crate::Kind::Forked) in a child that `check` has forked.
pub fn block_on<T, E>(
    future: impl Future<Output = T> + Send + 'static,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Failure>,
{
    let background = background()?;
    let future = background.pending.track_future(unless(&background.ending, future));
    let mut future = Box::pin(future);
    let in_time = background.block_on(async { timeout(CHECK_EVERY, future.as_mut()).await });
    if let Ok(ended) = in_time {
        return ended.ok_or_else(|| Failure::refused("the program ends").into());
    }
    // `check` may wait for the interpreter, or run a handler that waits for what this call has
    // begun. So it must go on meanwhile, whoever drives.
    let mut task = background.spawn(future);
    loop {
        let checked = check();
        if background.process != std::process::id() {
            // The task is the parent's, and so are the runtime and its connections.
            std::mem::forget(task);
            return Err(checked.err().unwrap_or_else(|| Failure::forked_in_call().into()));
        }
        if let Err(stop) = checked {
            task.abort();
            // What it had begun is given up before anything else is sent.
            background.block_on(async { drop(task.await) });
            return Err(stop);
        }
        match background.block_on(async { timeout(CHECK_EVERY, &mut task).await }) {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => return Err(Failure::refused("the program ends").into()),
            Ok(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {}
        }
    }
}

/// Whether [`finish`] has begun in this process.
pub fn is_ending() -> bool {
    existing().is_ok_and(|background| background.ending.is_cancelled())
}

/// Runs `future` until it is done, or `end` is cancelled. What is done at once is done in any case.
pub(crate) async fn unless<T>(
    end: &CancellationToken,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = end.cancelled() => None,
    }
}

/// The signals that are for the threads of the program, which may have blocked some: the system
/// gives a signal to any thread that has not. What a thread has caused itself (a fault of memory,
/// say) comes to it in any case, and ends the process if it is blocked, whatever the program has
/// arranged.
fn program_signals() -> SigSet {
    use Signal::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    let mut signals = SigSet::all();
    for fault in [SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP] {
        signals.remove(fault);
    }
    signals
}

/// Leaves those signals to other threads. It fails only for a set that is no set.
fn block_signals() {
    let _ = program_signals().thread_block();
}

fn no_thread(error: std::io::Error) -> Failure {
    Failure::refused(format!("no thread could be started: {error}"))
}

/// For the end of the program: ends pending calls, releases what is held, unless it is kept, and
/// waits at most 2 s until the last commands are written.
pub fn finish() {
    let Ok(background) = existing() else { return };
    // First of all: a waiter of this process must not be granted the lock that it releases.
    background.ending.cancel();
    background.pending.close();
    let started_at = Instant::now();
    let pending = background.pending.wait();
    background.block_on(async { drop(timeout(FINISH_MAX / 2, pending).await) });
    for holding in background.holdings.take() {
        holding.abandon();
    }
    for host in background.hosts.take() {
        host.settle(background);
    }
    let settling =
        std::mem::take(&mut *background.settling.lock().unwrap_or_else(PoisonError::into_inner));
    let all = async {
        for task in settling {
            // A task that was cancelled has nothing more to write.
            drop(task.await);
        }
    };
    let left = FINISH_MAX.saturating_sub(started_at.elapsed());
    background.block_on(async { drop(timeout(left, all).await) });
}

/// Weak references to values that others own.
#[derive(Debug)]
pub(crate) struct Alive<T>(Mutex<(Vec<Weak<T>>, usize)>);

impl<T> Alive<T> {
    /// Dead references are removed when there are twice as many as after the last removal, and at
    /// least this many.
    const MIN: usize = 64;

    const fn new() -> Alive<T> {
        Alive(Mutex::new((Vec::new(), 0)))
    }

    pub(crate) fn note(&self, value: &Arc<T>) {
        // A list of references is intact even if it is poisoned.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.0.len() >= Self::MIN.max(all.1 * 2) {
            all.0.retain(|value| value.strong_count() > 0);
            all.1 = all.0.len();
        }
        all.0.push(Arc::downgrade(value));
    }

    fn take(&self) -> Vec<Arc<T>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.0.drain(..).filter_map(|value| value.upgrade()).collect()
    }
}

/// A value that belongs to the process in which it was made.
#[derive(Debug)]
pub(crate) struct Ours<T> {
    process: u32,
    pub(crate) background: &'static Background,
    /// Taken only by its owner's destructor.
    value: ManuallyDrop<Option<T>>,
}

impl<T> Ours<T> {
    pub(crate) fn new(background: &'static Background, value: T) -> Ours<T> {
        Ours { process: background.process, background, value: ManuallyDrop::new(Some(value)) }
    }

    /// Takes the value out, to be dropped; `None` in another process, and the second time.
    pub(crate) fn take(&mut self) -> Option<T> {
        let value = self.value.take();
        if self.process == std::process::id() {
            return value;
        }
        std::mem::forget(value);
        None
    }

    /// # Errors
    /// [`Kind::Forked`](crate::Kind::Forked) in another process.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        let value = self.value.as_ref().filter(|_| self.process == std::process::id());
        value.ok_or_else(Failure::forked)
    }
}
