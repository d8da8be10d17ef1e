//! A guard: the right to hold a lock, from its acquisition to its release.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::error::{ExtendError, Lost, ReleaseError};
use super::lease::Lease;
use super::packet::TOKEN_LENGTH;
use super::printable::InShort;
use super::vote::NodeReport;
use crate::engine::{Fence, Mode};

/// A lock that is held.
///
/// Three things to know. Give [`fence`](Guard::fence) to whatever the lock protects, so that it
/// can refuse a holder that comes late. Watch [`lost`](Guard::lost), or look at
/// [`validity`](Guard::validity) before every step that matters: a lease can end while you work.
/// And [`release`](Guard::release) it: dropping a guard releases too, but nobody waits for it.
///
/// A guard of a lock that its [`Holder`](super::Holder) has already is a share in the same lease,
/// which is given back with the last of them.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    hold: Arc<Hold>,
    /// Set for a writer.
    writes: Mutex<Option<WriterShare>>,
}

/// One guard's part in a lease that is a writer's for as long as there is one of them.
type WriterShare = Arc<()>;

/// The lease of all guards that share it: given back when the last of them goes.
pub(super) struct Hold {
    pub(super) lease: Arc<Lease>,
    /// Of the guards that are writers. Held while the lease becomes a reader's.
    writers: Mutex<Weak<()>>,
}

/// What a holder knows of one lock. The gate lets one acquisition of it happen at a time: a second
/// one at once would wait for the first as if it were a stranger.
pub(super) type Known = tokio::sync::Mutex<Weak<Hold>>;

impl Drop for Hold {
    fn drop(&mut self) {
        self.lease.send_release(None);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.lease.fmt(f)
    }
}

impl Guard {
    pub(super) fn new(lease: Arc<Lease>) -> Guard {
        let writes = (!lease.mode().is_shared()).then(WriterShare::default);
        let writers = Mutex::new(writes.as_ref().map(Arc::downgrade).unwrap_or_default());
        Guard { hold: Arc::new(Hold { lease, writers }), writes: Mutex::new(writes) }
    }

    /// Another guard of a lease. `None` for a writer, if the lease is a reader's.
    pub(super) fn of_share(hold: Arc<Hold>, mode: Mode) -> Option<Guard> {
        let writes = match mode {
            Mode::Shared => None,
            Mode::Exclusive => {
                let mut writers = locked(&hold.writers);
                if hold.lease.mode().is_shared() {
                    return None;
                }
                let writes = writers.upgrade().unwrap_or_default();
                *writers = Arc::downgrade(&writes);
                Some(writes)
            }
        };
        Some(Guard { hold, writes: Mutex::new(writes) })
    }

    pub(super) const fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// The fencing token of this grant: larger than that of every acquisition of this lock that
    /// was complete before this one began. A reader's may be equal to theirs, and is smaller than
    /// that of every writer after it.
    pub fn fence(&self) -> Fence {
        self.hold.lease.fence
    }

    /// The lock's name.
    pub fn name(&self) -> &[u8] {
        &self.hold.lease.name
    }

    /// For how long the lease may still be relied on. Counted from before the first byte was sent,
    /// on a clock that goes on while the machine sleeps, less the drift allowance. Once
    /// [`lost`](Guard::lost) has resolved, this is the time that is left for stopping; it is zero
    /// at once if the lock was removed by force.
    pub fn validity(&self) -> Duration {
        self.hold.lease.validity()
    }

    /// Whether the lease is lost. Once true, it stays true.
    pub fn is_lost(&self) -> bool {
        self.ending().is_some()
    }

    /// Why the lease is lost, if it is.
    pub(super) fn ending(&self) -> Option<Lost> {
        self.hold.lease.ending()
    }

    /// Waits until the lease is lost, and says why. Resolves by the local clock, `lost_margin`
    /// before the validity ends, without any node having to answer. The future does not borrow
    /// the guard, so it can be watched from another task; after a release it resolves too.
    ///
    /// # Cancellation
    /// May be dropped and asked for again at any time.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let lease = Arc::clone(&self.hold.lease);
        async move { lease.lost().await }
    }

    /// What each node said to the last extension, if too few confirmed it: why a lease ends. Empty
    /// if the last one was confirmed, or there was none.
    pub fn unconfirmed(&self) -> Vec<NodeReport> {
        self.hold.lease.unconfirmed()
    }

    /// Extends the lease now: it is valid for a whole ttl from the moment of the call.
    ///
    /// Needed only where renewing in the background is turned off. While another extension of the
    /// lease is under way, it waits for that one first.
    ///
    /// # Errors
    /// [`ExtendError::NoQuorum`]: the lease is valid until its former end; try again before that.
    /// [`ExtendError::Lost`]: stop.
    ///
    /// # Cancellation
    /// The nodes may extend it all the same; the validity does not count it.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        self.hold.lease.extend().await
    }

    /// Extends the lease now as [`extend`](Guard::extend) does, with a ttl of its own, which
    /// renewals in the background keep to from now on. Within the bounds of the locker's ttl. A
    /// shorter ttl takes nothing away from the lease as it stands.
    ///
    /// # Errors
    /// As [`extend`](Guard::extend), and [`ExtendError::BadOption`] if the ttl is out of bounds.
    ///
    /// # Cancellation
    /// As [`extend`](Guard::extend).
    pub async fn extend_by(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.hold.lease.extend_by(ttl).await
    }

    /// Whether the guard is a writer's: nobody else holds the lock.
    pub fn is_exclusive(&self) -> bool {
        locked(&self.writes).is_some()
    }

    /// A writer becomes a reader in one step, and lets other readers in. The fence stays. A guard
    /// that is a reader's already stays one. The reverse does not exist: two readers would wait for
    /// each other.
    ///
    /// Where guards of one [`Holder`](super::Holder) share the lease, other readers are let in when
    /// the last of them that is a writer becomes a reader. A writer that is released instead leaves
    /// the lease to the others as it is: nobody is let in before they have released it too.
    ///
    /// # Errors
    /// As [`extend`](Guard::extend). The guard is a reader's in any case; nodes that have not heard
    /// of it let nobody in before the next renewal tells them.
    ///
    /// # Cancellation
    /// As [`extend`](Guard::extend).
    pub async fn downgrade(&self) -> Result<(), ExtendError> {
        let is_last = {
            let writers = locked(&self.hold.writers);
            drop(locked(&self.writes).take());
            let is_last = writers.strong_count() == 0;
            if is_last {
                self.hold.lease.downgrade();
            }
            is_last
        };
        // Asked again, it tells the nodes again: the first time may have been in vain.
        if is_last { self.hold.lease.extend().await } else { Ok(()) }
    }

    /// Gives the lock back, and waits until a quorum of nodes has confirmed, at most as long as a
    /// node is waited for. Where the lease is shared by guards of one holder, only the last
    /// release sends anything.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`] if the lease had ended before: somebody else may have held the
    /// lock meanwhile. [`ReleaseError::NoQuorum`] if too few nodes answered. In both cases there
    /// is nothing left to do: the lease is over for this holder.
    ///
    /// # Cancellation
    /// The release is sent as soon as the future is first polled, and stays sent.
    pub async fn release(self) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.hold) {
            Some(hold) => hold.lease.release().await,
            None => Ok(()),
        }
    }

    /// Lets go of the guard without giving the lock back: it stays held until the lease ends,
    /// unless somebody releases or extends it with the token. For handing it to another process.
    /// Other guards that share the lease count as released.
    #[must_use = "nothing else has the token, so nobody could release the lock"]
    pub fn leak(self) -> Leaked {
        let lease = &self.hold.lease;
        let valid_for = lease.forget();
        Leaked { name: lease.name.to_vec(), token: lease.token, fence: lease.fence, valid_for }
    }
}

/// Nothing panics while one of these is locked, so what it guards is whole even if it is poisoned.
fn locked<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lease without a guard.
#[derive(Clone)]
#[non_exhaustive]
pub struct Leaked {
    /// The lock's name.
    pub name: Vec<u8>,
    /// The secret that proves the claim.
    pub token: [u8; TOKEN_LENGTH],
    /// The fencing token.
    pub fence: Fence,
    /// For how long the lease could be relied on when it was leaked.
    pub valid_for: Duration,
}

impl fmt::Debug for Leaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaked")
            .field("name", &InShort(&self.name))
            .field("fence", &self.fence.get())
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}
