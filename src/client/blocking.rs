//! The same client for programs without async: every call blocks until it is done.
//!
//! A locker here owns a small runtime with one thread, which renews the leases. Dropping the last
//! clone waits until the releases of dropped guards are carried out, at most as long as a node is
//! waited for: a program that ends leaves nothing behind. Not to be used inside of a runtime.

use std::sync::Arc;
use std::time::Duration;

use super::error::{AcquireError, BuildError, ExtendError, Lost, ReleaseError};
use super::guard::Leaked;
use super::settings::LockerBuilder;
use crate::engine::Fence;

/// Acquires locks over a quorum of nodes, blocking.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lockmod::client::{Locker, blocking};
///
/// let locker = blocking::Locker::new(Locker::builder().node("redis://127.0.0.1"))?;
/// let guard = locker.acquire("nightly-report")?;
/// println!("working with fence {}", guard.fence());
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    inside: Arc<Inside>,
}

#[derive(Debug)]
struct Inside {
    // Taken by the destructor only.
    runtime: Option<tokio::runtime::Runtime>,
    locker: super::Locker,
}

/// A lock that is held; see [`client::Guard`](super::Guard).
#[must_use = "a guard that is dropped releases its lock"]
#[derive(Debug)]
pub struct Guard {
    // Dropped before the runtime that carries its release.
    guard: super::Guard,
    inside: Arc<Inside>,
}

impl Inside {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            // PROOF: only the destructor takes the runtime, and it has the last reference.
            None => unreachable!("the runtime lives as long as its locker"),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Inside of another runtime blocking would panic: then cleanup is the ttl's.
            if tokio::runtime::Handle::try_current().is_err() {
                drop(runtime.block_on(self.locker.settle()));
            }
            runtime.shutdown_background();
        }
    }
}

impl Locker {
    /// A locker with these settings, and a runtime of its own.
    ///
    /// # Errors
    /// [`BuildError`]; [`BuildError::NoRuntime`] if no thread could be started.
    pub fn new(builder: LockerBuilder) -> Result<Locker, BuildError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockmod")
            .enable_all()
            .build()
            .map_err(|_| BuildError::NoRuntime)?;
        let locker = {
            let _inside = runtime.enter();
            builder.build()?
        };
        Ok(Locker { inside: Arc::new(Inside { runtime: Some(runtime), locker }) })
    }

    /// Acquires the lock `name`, waiting while another holds it for as long as the settings say.
    ///
    /// # Errors
    /// [`AcquireError`], with what each node said.
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        self.guard(self.inside.locker.acquire(name))
    }

    /// Acquires the lock `name`, waiting for at most `wait`.
    ///
    /// # Errors
    /// [`AcquireError`], with what each node said.
    pub fn acquire_within(
        &self,
        name: impl AsRef<[u8]>,
        wait: Duration,
    ) -> Result<Guard, AcquireError> {
        self.guard(self.inside.locker.acquire(name).wait(wait))
    }

    /// Acquires the lock `name` if nobody holds it, trying once.
    ///
    /// # Errors
    /// [`AcquireError::Held`] if another holds it, and the others.
    pub fn try_acquire(&self, name: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        self.guard(self.inside.locker.try_acquire(name))
    }

    /// Runs `work` under the lock `name`, and gives the lock back. The work cannot be stopped: it
    /// shall look at [`Guard::is_lost`] before every step that matters.
    ///
    /// # Errors
    /// [`AcquireError`]; the work did not begin.
    pub fn with<T>(
        &self,
        name: impl AsRef<[u8]>,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<T, AcquireError> {
        let guard = self.acquire(name)?;
        let result = work(&guard);
        drop(guard.release());
        Ok(result)
    }

    fn guard(&self, acquire: super::Acquire) -> Result<Guard, AcquireError> {
        let guard = self.inside.block_on(acquire.into_future())?;
        Ok(Guard { guard, inside: Arc::clone(&self.inside) })
    }
}

impl Guard {
    /// The fencing token of this grant.
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// For how long the lease may still be relied on.
    pub fn validity(&self) -> Duration {
        self.guard.validity()
    }

    /// Whether the lease is lost. Once true, it stays true.
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Blocks until the lease is lost or released, and says why.
    pub fn wait_until_lost(&self) -> Lost {
        self.inside.block_on(self.guard.lost())
    }

    /// Extends the lease now.
    ///
    /// # Errors
    /// [`ExtendError`].
    pub fn extend(&self) -> Result<(), ExtendError> {
        self.inside.block_on(self.guard.extend())
    }

    /// Gives the lock back, and waits until a quorum of nodes has confirmed.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn release(self) -> Result<(), ReleaseError> {
        let Guard { guard, inside } = self;
        inside.block_on(guard.release())
    }

    /// Lets go of the guard without giving the lock back.
    pub fn leak(self) -> Leaked {
        self.guard.leak()
    }
}
