//! The background thread: one for each process, and another one after a fork.
//!
//! A fork copies the memory of a runtime and none of its threads. So whatever rests on one
//! remembers the process that it was made in, and is neither used nor dropped in another: its locks
//! may have been taken by a thread that is not there.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::failure::Failure;

/// How long [`finish`] waits in all.
const FINISH_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Background {
    process: u32,
    pub(crate) runtime: Runtime,
    /// What writes the last commands of hosts that are gone.
    settling: Mutex<Vec<JoinHandle<()>>>,
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
    let process = std::process::id();
    let mut chain = &FIRST;
    loop {
        match chain.get() {
            Some(background) if background.process == process => return Ok(background),
            Some(background) => chain = &background.next,
            // Whoever comes second finds that of the first, and its own is not used.
            None => drop(chain.set(Box::leak(Box::new(Background::start(process)?)))),
        }
    }
}

impl Background {
    fn start(process: u32) -> Result<Background, Failure> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockmod")
            .enable_all()
            .build()
            .map_err(|error| Failure::option(format!("no thread could be started: {error}")))?;
        Ok(Background { process, runtime, settling: Mutex::default(), next: OnceLock::new() })
    }

    /// Runs `last` to its end, which [`finish`] waits for.
    pub(crate) fn settle(&self, last: impl Future<Output = ()> + Send + 'static) {
        let task = self.runtime.spawn(last);
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
    const CHECK_EVERY: Duration = Duration::from_millis(100);
    background()?.runtime.block_on(async move {
        let mut future = std::pin::pin!(future);
        loop {
            match timeout(CHECK_EVERY, future.as_mut()).await {
                Ok(value) => return Ok(value),
                Err(_) => check()?,
            }
        }
    })
}

/// For the end of the program: waits until the last commands of hosts that are gone are written,
/// at most 2 s.
pub fn finish() {
    let Ok(background) = background() else { return };
    let settling =
        std::mem::take(&mut *background.settling.lock().unwrap_or_else(PoisonError::into_inner));
    let all = async {
        for task in settling {
            // A task that was cancelled has nothing more to write.
            drop(task.await);
        }
    };
    background.runtime.block_on(async { drop(timeout(FINISH_MAX, all).await) });
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
