//! The same client for programs without async: every call blocks until it is done.
//!
//! A locker owns a small runtime with one thread, which renews the leases. Dropping the last clone
//! waits until the releases of dropped guards are carried out, for at most the locker's timeout, so
//! that a program leaves nothing behind when it ends. Inside an async task, every call blocks the
//! task's thread.
//!
//! To set options for one call, make a request: `locker.request(name)`, options, `.acquire()`.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::runtime::Runtime;

use super::acquire::options;
use super::core::Stats;
use super::error::{
    AcquireError, BuildError, ExtendError, FenceError, Lost, ReleaseError, WithError,
};
use super::guard::Leaked;
use super::inspect::{NodeInfo, NodeLocks};
use super::settings::LockerBuilder;
use super::survey::Survey;
use super::vote::NodeReport;
use crate::engine::Fence;

/// Acquires locks over a quorum of nodes, with blocking calls.
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
#[derive(Clone)]
pub struct Locker {
    inside: Arc<Inside>,
}

struct Inside {
    // Taken by the destructor only.
    runtime: Option<Runtime>,
    locker: super::Locker,
}

/// A lock that is held; see [`client::Guard`](super::Guard).
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    // Dropped before the runtime that carries its release.
    guard: super::Guard,
    inside: Arc<Inside>,
}

/// Forwards `Debug` to the async type inside.
macro_rules! shown_as_inside {
    ($($outside:ident . $($field:ident).+),+) => {
        $(impl fmt::Debug for $outside {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.$($field).+.fmt(f)
            }
        })+
    };
}

shown_as_inside!(
    Locker.inside.locker,
    Guard.guard,
    Acquire.acquire,
    AcquireMany.acquire,
    Holder.holder
);

/// Wakes a thread that waits for a future.
struct Parked(std::thread::Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future that uses the timers and connections of `runtime`.
///
/// `Runtime::block_on` panics inside another runtime, also in the destructor of a locker there. The
/// future gets no cooperative budget from a task around it: that task cannot yield before the
/// future is done.
fn block_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let _inside = runtime.enter();
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Inside {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.runtime {
            Some(runtime) => block_on(runtime, future),
            // PROOF: only the destructor takes the runtime, and it has the last reference.
            None => unreachable!("the runtime lives as long as its locker"),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            drop(block_on(&runtime, self.locker.settle()));
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

    /// Begins a request for the lock `name`, with options.
    ///
    /// ```no_run
    /// # use lockmod::client::blocking::Locker;
    /// # fn example(locker: Locker) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let guard = locker.request("account-17").ttl(Duration::from_secs(5)).label("me").acquire()?;
    /// # guard.release()?;
    /// # Ok(()) }
    /// ```
    pub fn request(&self, name: impl AsRef<[u8]>) -> Acquire {
        Acquire::new(&self.inside, self.inside.locker.acquire(name))
    }

    /// Begins a request for all of these locks or none, with options; see
    /// [`client::Locker::acquire_many`](super::Locker::acquire_many).
    pub fn request_many<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> AcquireMany {
        let acquire = self.inside.locker.acquire_many(names);
        AcquireMany { acquire, inside: Arc::clone(&self.inside) }
    }

    /// A holder, which may acquire a lock that it already has.
    pub fn holder(&self) -> Holder {
        Holder { holder: self.inside.locker.holder(), inside: Arc::clone(&self.inside) }
    }

    /// Acquires the lock `name`, waiting while another holds it for as long as the settings say.
    ///
    /// # Errors
    /// [`AcquireError`], with each node's vote.
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        self.request(name).acquire()
    }

    /// Acquires the lock `name`, waiting for at most `wait`, and for the locker's timeout after
    /// that if nodes are silent.
    ///
    /// # Errors
    /// [`AcquireError`], with each node's vote.
    pub fn acquire_within(
        &self,
        name: impl AsRef<[u8]>,
        wait: Duration,
    ) -> Result<Guard, AcquireError> {
        self.request(name).wait(wait).acquire()
    }

    /// Acquires the lock `name` if nobody holds it, trying once.
    ///
    /// # Errors
    /// [`AcquireError::Held`] if another holds it, or another variant.
    pub fn try_acquire(&self, name: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        self.request(name).wait(Duration::ZERO).acquire()
    }

    /// Runs `work` under the lock `name`, then releases the lock. The work cannot be stopped: let
    /// it check [`Guard::is_lost`] before every step that matters.
    ///
    /// # Errors
    /// [`WithError::Acquire`]: the work did not begin. [`WithError::Lost`]: the lease was lost
    /// before the work was done; its result is dropped.
    pub fn with<T>(
        &self,
        name: impl AsRef<[u8]>,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<T, WithError> {
        self.request(name).with(work)
    }

    /// Asks all nodes about the lock `name`.
    pub fn info(&self, name: impl AsRef<[u8]>) -> Vec<NodeInfo> {
        self.inside.block_on(self.inside.locker.info(name))
    }

    /// The highest fence issued for the lock `name`, held or not, as a quorum of nodes knows it.
    ///
    /// # Errors
    /// [`FenceError::NoQuorum`], with each node's vote.
    pub fn fence(&self, name: impl AsRef<[u8]>) -> Result<Fence, FenceError> {
        self.inside.block_on(self.inside.locker.fence(name))
    }

    /// Releases a lease by its token, for leases that were [leaked](Guard::leak).
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn release_by_token(
        &self,
        name: impl AsRef<[u8]>,
        token: &[u8],
    ) -> Result<(), ReleaseError> {
        self.inside.block_on(self.inside.locker.release_by_token(name, token))
    }

    /// Extends a lease by its token, with the ttl of the settings, for leases that were
    /// [leaked](Guard::leak). Returns the validity from now on.
    ///
    /// # Errors
    /// [`ExtendError::NoQuorum`] or [`ExtendError::Refused`], with each node's vote.
    pub fn extend_by_token(
        &self,
        name: impl AsRef<[u8]>,
        token: &[u8],
    ) -> Result<Duration, ExtendError> {
        self.inside.block_on(self.inside.locker.extend_by_token(name, token))
    }

    /// Asks all nodes about themselves, and for up to `locks_max` locks that are held or waited
    /// for; see [`client::Locker::survey`](super::Locker::survey).
    pub fn survey(&self, locks_max: usize) -> Survey {
        self.inside.block_on(self.inside.locker.survey(locks_max))
    }

    /// Lists all locks of all nodes; see [`client::Locker::list`](super::Locker::list).
    pub fn list(&self) -> Vec<NodeLocks> {
        self.inside.block_on(self.inside.locker.list())
    }

    /// Takes the lock `name` from its holders; see
    /// [`client::Locker::force_release`](super::Locker::force_release).
    pub fn force_release(&self, name: impl AsRef<[u8]>) -> Vec<NodeReport> {
        self.inside.block_on(self.inside.locker.force_release(name))
    }

    /// Waits until the nodes have carried out everything that was sent; see
    /// [`client::Locker::settle`](super::Locker::settle).
    pub fn settle(&self) -> Vec<NodeReport> {
        self.inside.block_on(self.inside.locker.settle())
    }

    /// What this locker has done so far.
    pub fn stats(&self) -> Stats {
        self.inside.locker.stats()
    }
}

/// A request for a lock: [`Locker::request`] or [`Holder::request`], options, and
/// [`acquire`](Acquire::acquire) or [`with`](Acquire::with). Options that are not set default to
/// the locker's.
#[must_use = "a request does nothing unless it is made"]
pub struct Acquire {
    acquire: super::Acquire,
    inside: Arc<Inside>,
}

impl Acquire {
    fn new(inside: &Arc<Inside>, acquire: super::Acquire) -> Acquire {
        Acquire { acquire, inside: Arc::clone(inside) }
    }

    options!();

    /// Acquires the lock.
    ///
    /// # Errors
    /// [`AcquireError`], with each node's vote.
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        let guard = self.inside.block_on(self.acquire.into_future())?;
        Ok(Guard { guard, inside: self.inside })
    }

    /// Runs `work` under the lock, then releases the lock, as [`Locker::with`] does.
    ///
    /// # Errors
    /// As [`Locker::with`].
    pub fn with<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T, WithError> {
        let guard = self.acquire()?;
        let result = work(&guard);
        let lost = guard.guard.ending().map(|lost| guard.guard.lost_with(lost));
        drop(guard.release());
        lost.map_or(Ok(result), Err)
    }
}

/// A request for several locks: [`Locker::request_many`], options, and
/// [`acquire`](AcquireMany::acquire).
#[must_use = "a request does nothing unless it is made"]
pub struct AcquireMany {
    acquire: super::AcquireMany,
    inside: Arc<Inside>,
}

impl AcquireMany {
    options!();

    /// Adds these locks, as a reader. A lock that is also requested as a writer stays a writer's.
    pub fn and_shared<N: AsRef<[u8]>>(self, names: impl IntoIterator<Item = N>) -> AcquireMany {
        AcquireMany { acquire: self.acquire.and_shared(names), ..self }
    }

    /// Acquires all of the locks, in the order of their names. The guards are in that order.
    ///
    /// # Errors
    /// [`AcquireError`] of the first lock that was not acquired; those before it are released.
    pub fn acquire(self) -> Result<Vec<Guard>, AcquireError> {
        let guards = self.inside.block_on(self.acquire.into_future())?.into_vec().into_iter();
        Ok(guards.map(|guard| Guard { guard, inside: Arc::clone(&self.inside) }).collect())
    }
}

/// A part of a program that may acquire a lock that it already has; see
/// [`client::Holder`](super::Holder). Clones are the same holder.
#[derive(Clone)]
pub struct Holder {
    holder: super::Holder,
    inside: Arc<Inside>,
}

impl Holder {
    /// Begins a request for the lock, or for another share of its lease, with options.
    pub fn request(&self, name: impl AsRef<[u8]>) -> Acquire {
        Acquire::new(&self.inside, self.holder.acquire(name))
    }

    /// Acquires the lock, or takes another share of its lease.
    ///
    /// # Errors
    /// [`AcquireError`], with each node's vote.
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        self.request(name).acquire()
    }
}

impl Guard {
    /// The fencing token of this grant.
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// Whether the guard is a writer's: nobody else holds the lock.
    pub fn is_exclusive(&self) -> bool {
        self.guard.is_exclusive()
    }

    /// Makes a writer a reader; see [`client::Guard::downgrade`](super::Guard::downgrade).
    ///
    /// # Errors
    /// As [`extend`](Guard::extend); the guard is a reader's in any case.
    pub fn downgrade(&self) -> Result<(), ExtendError> {
        self.inside.block_on(self.guard.downgrade())
    }

    /// How long the lease may still be relied on.
    pub fn validity(&self) -> Duration {
        self.guard.validity()
    }

    /// Whether the lease is lost. Once true, it stays true.
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Blocks until the lease is lost or released, and returns why.
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

    /// Extends the lease now, with another ttl; see
    /// [`client::Guard::extend_by`](super::Guard::extend_by).
    ///
    /// # Errors
    /// [`ExtendError`].
    pub fn extend_by(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.inside.block_on(self.guard.extend_by(ttl))
    }

    /// The lock's name.
    pub fn name(&self) -> &[u8] {
        self.guard.name()
    }

    /// Releases the lock, and waits until a quorum of nodes has confirmed.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub fn release(self) -> Result<(), ReleaseError> {
        let Guard { guard, inside } = self;
        inside.block_on(guard.release())
    }

    /// Gives up the guard without releasing the lock.
    #[must_use = "nothing else has the token, so the lock could not be released"]
    pub fn leak(self) -> Leaked {
        self.guard.leak()
    }
}
