//! A holder: a part of a program that may acquire a lock which it has already.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::acquire::Acquire;
use super::core::Core;
use super::error::AcquireError;
use super::guard::{Guard, Hold};
use super::world::{Network, World};

/// Known locks above this number are looked through for those that nobody holds any more.
const KNOWN_MAX: usize = 64;

/// Acquires locks re-entrantly: a lock that this holder has already is acquired again without a
/// round trip, and given back with the last of its guards. Clones are the same holder.
///
/// ```no_run
/// # async fn example(locker: lockmod::client::Locker) -> Result<(), Box<dyn std::error::Error>> {
/// let holder = locker.holder();
/// let outer = holder.acquire("account-17").await?;
/// let inner = holder.acquire("account-17").await?;
/// assert_eq!(outer.fence(), inner.fence());
/// inner.release().await?; // sends nothing
/// outer.release().await?; // gives the lock back
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Holder<W: World = Network> {
    core: Arc<Core<W>>,
    known: Arc<Mutex<Names<W>>>,
}

type Names<W> = HashMap<Vec<u8>, Arc<Known<W>>>;

/// What the holder knows of one lock. The gate lets one acquisition of it happen at a time: a
/// second one at once would wait for the first as if it were a stranger.
type Known<W> = tokio::sync::Mutex<Weak<Hold<W>>>;

impl<W: World> Clone for Holder<W> {
    fn clone(&self) -> Self {
        Holder { core: Arc::clone(&self.core), known: Arc::clone(&self.known) }
    }
}

impl<W: World> Holder<W> {
    pub(super) fn new(core: Arc<Core<W>>) -> Holder<W> {
        Holder { core, known: Arc::default() }
    }

    /// Acquires the lock, or takes another share of the lease if this holder has it already and it
    /// is not lost. Waits as [`Locker::acquire`](super::Locker::acquire) does.
    ///
    /// # Errors
    /// [`AcquireError`].
    ///
    /// # Cancellation
    /// As [`Locker::acquire`](super::Locker::acquire).
    pub async fn acquire(&self, name: impl AsRef<[u8]>) -> Result<Guard<W>, AcquireError> {
        let name = name.as_ref();
        let known = self.known(name);
        let mut gate = known.lock().await;
        if let Some(hold) = gate.upgrade().filter(|hold| hold.lease.ending().is_none()) {
            return Ok(Guard::from_hold(hold));
        }
        let guard = Acquire::new(Arc::clone(&self.core), name).await?;
        *gate = Arc::downgrade(guard.hold());
        Ok(guard)
    }

    fn known(&self, name: &[u8]) -> Arc<Known<W>> {
        // Nothing panics while the lock is held, so the map is whole even if it is poisoned.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > KNOWN_MAX {
            known.retain(|_, known| {
                let is_idle = Arc::strong_count(known) == 1
                    && known.try_lock().is_ok_and(|hold| hold.strong_count() == 0);
                !is_idle
            });
        }
        Arc::clone(known.entry(name.to_vec()).or_default())
    }
}
