//! Brings results into an event loop of another language.
//!
//! The background thread puts what is done into a list and makes a descriptor readable. The loop
//! watches the descriptor, and takes the list on its own thread: so the background thread needs
//! nothing of the interpreter. Many results that come at once cost one wake-up.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::AbortHandle;

use crate::failure::Failure;
use crate::process::background;

/// A place where the results of calls arrive, by their numbers.
#[derive(Debug)]
pub struct Port<T> {
    shared: Arc<Shared<T>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Shared<T> {
    done: Mutex<Vec<(u64, T)>>,
    /// The descriptor is readable, or about to be.
    is_ringing: AtomicBool,
    ring: UnixStream,
    heard: UnixStream,
}

/// A call that is under way.
#[derive(Debug)]
pub struct Call {
    /// Its number at its port.
    pub number: u64,
    abort: AbortHandle,
}

impl Call {
    /// Drops what is under way, if it is not done. A result that has arrived stays.
    pub fn cancel(&self) {
        self.abort.abort();
    }
}

impl<T: Send + 'static> Port<T> {
    /// A port with a descriptor of its own.
    ///
    /// # Errors
    /// [`Failure`] if the system has none left.
    pub fn new() -> Result<Port<T>, Failure> {
        let pair = || {
            let (ring, heard) = UnixStream::pair()?;
            ring.set_nonblocking(true)?;
            heard.set_nonblocking(true)?;
            Ok((ring, heard))
        };
        let pair: std::io::Result<_> = pair();
        let (ring, heard) =
            pair.map_err(|error| Failure::option(format!("no descriptor is left: {error}")))?;
        let done = Mutex::new(Vec::new());
        let shared = Shared { done, is_ringing: AtomicBool::new(false), ring, heard };
        Ok(Port { shared: Arc::new(shared), next: AtomicU64::new(0) })
    }

    /// What a loop has to watch: readable when there is something to take.
    pub fn descriptor(&self) -> RawFd {
        self.shared.heard.as_raw_fd()
    }

    /// Runs `future` on the background thread; its result arrives here.
    ///
    /// # Errors
    /// [`Failure`] if there is no background thread and none can be started.
    pub fn start(&self, future: impl Future<Output = T> + Send + 'static) -> Result<Call, Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let task = background()?.spawn(async move {
            let result = future.await;
            shared.put(number, result);
        });
        Ok(Call { number, abort: task.abort_handle() })
    }

    /// Takes all that has arrived, with the number of its call.
    pub fn take(&self) -> Vec<(u64, T)> {
        let mut bytes = [0; 64];
        // One byte is written for each time that it began to ring. No byte is no error: somebody
        // else has taken what it was for.
        drop((&self.shared.heard).read(&mut bytes));
        // Before the list is taken: what is put behind it rings again.
        self.shared.is_ringing.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.shared.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Shared<T> {
    fn put(&self, number: u64, result: T) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        if !self.is_ringing.swap(true, Ordering::SeqCst) {
            // It holds one byte at most, so there is room; a port that is gone needs none.
            drop((&self.ring).write(&[1]));
        }
    }
}
