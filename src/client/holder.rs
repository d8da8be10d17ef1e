//! A holder: a part of a program that may acquire a lock that it already has.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::acquire::Acquire;
use super::core::Core;
use super::guard::Known;
use super::printable::InShort;

/// Above this number of known locks, those that are no longer held are removed.
const KNOWN_MAX: usize = 64;

/// Acquires locks re-entrantly: a lock that this holder already has is acquired again without a
/// round trip, and released with the last of its guards. Clones are the same holder.
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
#[derive(Clone)]
pub struct Holder {
    core: Arc<Core>,
    known: Arc<Mutex<Names>>,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.names();
        let names: BTreeSet<&[u8]> = known.keys().map(Vec::as_slice).collect();
        let names: Vec<InShort<'_>> = names.into_iter().map(InShort).collect();
        f.debug_struct("Holder").field("known", &names).finish_non_exhaustive()
    }
}

type Names = HashMap<Vec<u8>, Arc<Known>>;

impl Holder {
    pub(super) fn new(core: Arc<Core>) -> Holder {
        Holder { core, known: Arc::default() }
    }

    /// Acquires the lock, or takes another share of the lease if this holder already has it and it
    /// is not lost. Waits and takes options as [`Locker::acquire`](super::Locker::acquire) does; a
    /// share leaves the lease as it is. A reader inside the holder's own writer is a share.
    ///
    /// # Errors
    /// [`AcquireError`](super::AcquireError); for a writer inside the holder's own reader
    /// [`AcquireError::BadOption`](super::AcquireError::BadOption), because it would wait for
    /// itself.
    ///
    /// # Cancellation
    /// As [`Locker::acquire`](super::Locker::acquire).
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Acquire {
        let name = name.as_ref();
        Acquire::new(Arc::clone(&self.core), name).by_holder(self.known(name))
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Nothing panics while the lock is held, so the map is intact even if it is poisoned.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, name: &[u8]) -> Arc<Known> {
        let mut known = self.names();
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
