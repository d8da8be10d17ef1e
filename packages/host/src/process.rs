//! The background thread: one for each process, and another one after a fork.
//!
//! A fork copies the memory of a runtime and none of its threads. So whatever rests on one
//! remembers the process that it was made in, and is neither used nor dropped in another: its locks
//! may have been taken by a thread that is not there.
//!
//! Connections and timers are driven by one thread at a time: by one that is blocked in a call, if
//! there is one, and otherwise by the background thread. A caller that drives reads its own
//! answers, without a second thread having to be woken on the way there and on the way back.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::{holding, settings};

/// How long [`finish`] waits in all.
const FINISH_MAX: Duration = Duration::from_secs(2);
/// For how long after a call the background thread leaves driving to the next one.
const ASIDE: Duration = Duration::from_millis(2);
/// How often a thread that is blocked looks for signals.
const CHECK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Background {
    process: u32,
    pub(crate) runtime: Runtime,
    thread: OnceLock<Thread>,
    /// The background thread drives.
    is_driving: AtomicBool,
    step_aside: Notify,
    /// The background thread sleeps until a caller goes, or it is wanted.
    is_asleep: AtomicBool,
    /// Work came that nobody is blocked for.
    is_wanted: AtomicBool,
    /// Threads that are blocked in a call, and calls so far.
    callers: AtomicUsize,
    calls: AtomicU64,
    /// What writes the last commands of hosts that are gone.
    settling: Mutex<Vec<JoinHandle<()>>>,
    /// What a program that ends has still to give back, and to settle.
    pub(crate) holdings: Alive<holding::Inside>,
    pub(crate) hosts: Alive<settings::Inside>,
    /// That of a forked child.
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
            Ok(background) => return Ok(background),
            Err(end) => {
                let background = Background::new(std::process::id())?;
                let background: &'static Background = Box::leak(Box::new(background));
                // Of two that come at once, the second is not used: its thread sleeps.
                let _ = end.set(background);
                background.start()?;
            }
        }
    }
}

/// The background of this process, or where it is to be put.
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
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        Ok(Background {
            process,
            runtime,
            thread: OnceLock::new(),
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

    fn start(&'static self) -> Result<(), Failure> {
        let thread = thread::Builder::new().name("lockmod".into()).spawn(|| self.run());
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
                // A long call, which drives. Who goes and sees the flag wakes this thread; who went
                // before the flag was up is not among the callers any more.
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
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
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
        // A list of handles is whole even if it is poisoned.
        let mut settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        settling.retain(|task| !task.is_finished());
        settling.push(task);
    }
}

/// Blocks until `future` is done. Every 100 ms `check` may end it, for signals that wait to be
/// handled.
///
/// # Errors
/// What `check` said.
pub fn block_on<T, E>(
    future: impl Future<Output = T>,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<T, E>
where
    E: From<Failure>,
{
    let background = background()?;
    let mut future = std::pin::pin!(future);
    loop {
        match background.block_on(async { timeout(CHECK_EVERY, future.as_mut()).await }) {
            Ok(value) => return Ok(value),
            // Not while this thread drives: it may have to wait for the interpreter.
            Err(_) => check()?,
        }
    }
}

fn no_thread(error: std::io::Error) -> Failure {
    Failure::option(format!("no thread could be started: {error}"))
}

/// For the end of the program: gives back what is held, unless it is kept, and waits until the last
/// commands are written, at most 2 s.
pub fn finish() {
    let Ok(background) = existing() else { return };
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
    background.block_on(async { drop(timeout(FINISH_MAX, all).await) });
}

/// Values that others own, as long as they do.
#[derive(Debug)]
pub(crate) struct Alive<T>(Mutex<(Vec<Weak<T>>, usize)>);

impl<T> Alive<T> {
    /// Those that are gone are looked for when there are twice as many as after the last look, and
    /// at least this many.
    const MIN: usize = 64;

    const fn new() -> Alive<T> {
        Alive(Mutex::new((Vec::new(), 0)))
    }

    pub(crate) fn note(&self, value: &Arc<T>) {
        // A list of references is whole even if it is poisoned.
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
    /// Taken by its owner's destructor only.
    value: ManuallyDrop<Option<T>>,
}

impl<T> Ours<T> {
    pub(crate) fn new(background: &'static Background, value: T) -> Ours<T> {
        Ours { process: background.process, background, value: ManuallyDrop::new(Some(value)) }
    }

    /// Takes the value out for good, to be dropped; `None` in another process, and the second time.
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
