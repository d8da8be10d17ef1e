//! A guard: the right to hold a lock, from its acquisition to its release.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::error::{ExtendError, Lost, ReleaseError, WithError};
use super::lease::Lease;
use super::packet::TOKEN_LENGTH;
use super::printable::InShort;
use super::vote::NodeReport;
use crate::engine::{Fence, Mode};

/// A lock that is held.
///
/// Three things to know. Pass [`fence`](Guard::fence) to whatever the lock protects, so that it can
/// refuse a late holder. Watch [`lost`](Guard::lost), or check [`validity`](Guard::validity) before
/// every step that matters: a lease can end while you work. And call [`release`](Guard::release):
/// dropping a guard releases the lock too, but without waiting for the nodes.
///
/// A guard of a lock that its [`Holder`](super::Holder) already has is a share of the same lease.
/// The lock is released with the last of these guards.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    hold: Arc<Hold>,
    /// Set for a writer.
    writes: Mutex<Option<WriterShare>>,
}

/// One guard's share of a writer's lease: the lease is a writer's while any such share exists.
type WriterShare = Arc<()>;

/// The lease of all guards that share it, released when the last of them is dropped.
pub(super) struct Hold {
    pub(super) lease: Arc<Lease>,
    /// The shares of the guards that are writers. Locked while the lease becomes a reader's.
    writers: Mutex<Weak<()>>,
}

/// What a holder knows about one lock. The `Mutex` admits one acquisition at a time: a second one
/// would wait for the first as if that were another client's.
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

    /// The fencing token of this grant: larger than that of every acquisition of this lock that was
    /// complete before this one began. A reader's fence may equal theirs, and is smaller than that
    /// of every writer after it.
    pub fn fence(&self) -> Fence {
        self.hold.lease.fence
    }

    /// The lock's name.
    pub fn name(&self) -> &[u8] {
        &self.hold.lease.name
    }

    /// How long the lease may still be relied on: counted from before the first byte was sent, on a
    /// clock that keeps running while the machine sleeps, less the drift allowance. Once
    /// [`lost`](Guard::lost) has resolved, this is the time left for stopping; it is zero at once
    /// if the lock was removed by force.
    pub fn validity(&self) -> Duration {
        self.hold.lease.validity()
    }

    /// Whether the lease is lost. Once true, it stays true.
    pub fn is_lost(&self) -> bool {
        self.ending().is_some()
    }

    /// How long it takes until [`lost`](Guard::lost) resolves, unless the lease is extended.
    #[cfg(feature = "cli")]
    pub(crate) fn lost_in(&self) -> Duration {
        self.hold.lease.lost_in().into()
    }

    /// Why the lease is lost, if it is.
    pub(super) fn ending(&self) -> Option<Lost> {
        self.hold.lease.ending()
    }

    /// Waits until the lease is lost, and returns why. Resolves by the local clock, `lost_margin`
    /// before the validity ends, even if no node answers. The future does not borrow the guard, so
    /// another task can await it. It also resolves after a release.
    ///
    /// # Cancellation
    /// The future may be dropped, and a new one created, at any time.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static + use<> {
        let lease = Arc::clone(&self.hold.lease);
        async move { lease.lost().await }
    }

    /// The error of work that goes on under this lease, which is lost.
    pub(super) fn lost_with(&self, lost: Lost) -> WithError {
        WithError::Lost { lost, fence: self.fence(), nodes: self.why(lost) }
    }

    /// The votes that say why the lease is lost, if nodes do.
    fn why(&self, lost: Lost) -> Vec<NodeReport> {
        let is_told = matches!(lost, Lost::Expired | Lost::Removed);
        if is_told { self.unconfirmed() } else { Vec::new() }
    }

    /// Each node's vote on the last extension, if too few confirmed it, or if it showed that the
    /// lock was removed: why a lease is lost. Empty if the last extension was confirmed, or if
    /// there was none.
    pub fn unconfirmed(&self) -> Vec<NodeReport> {
        self.hold.lease.unconfirmed()
    }

    /// Extends the lease now: once confirmed, it is valid for a ttl from the moment of the call,
    /// less the drift.
    ///
    /// Needed only if background renewal is turned off. If another extension of the lease is in
    /// progress, it waits for that one first. While nobody drives the runtime in which the locker
    /// was built, it waits until the lease ends.
    ///
    /// # Errors
    /// [`ExtendError::NoQuorum`]: the lease is valid until its previous end; try again before that.
    /// [`ExtendError::Refused`]: the same, but a retry does not help. [`ExtendError::Lost`]: stop.
    ///
    /// # Cancellation
    /// The extension goes on in the background once it has begun, and counts.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        self.hold.lease.extend().await
    }

    /// Extends the lease now as [`extend`](Guard::extend) does, with another ttl, which background
    /// renewals also use once it is confirmed: after an error they keep the former one. It has the
    /// bounds of the locker's ttl, except that the ttl of a lease that is not renewed need not be
    /// long enough for the timeout. A shorter ttl does not shorten the lease as it stands.
    ///
    /// # Errors
    /// As [`extend`](Guard::extend), and [`ExtendError::BadOption`] if the ttl is out of bounds.
    ///
    /// # Cancellation
    /// As [`extend`](Guard::extend).
    pub async fn extend_by(&self, ttl: Duration) -> Result<(), ExtendError> {
        self.hold.lease.extend_by(ttl).await
    }

    /// The shortest ttl for [`extend_by`](Guard::extend_by). For the packages for other languages,
    /// whose callers may give what is no length of time at all.
    #[doc(hidden)]
    pub fn extension_min(&self) -> Duration {
        self.hold.lease.extension_min()
    }

    /// Whether the guard is a writer's: nobody else holds the lock while its lease stands.
    pub fn is_exclusive(&self) -> bool {
        locked(&self.writes).is_some()
    }

    /// Makes a writer a reader in one step, and lets other readers in. The fence stays. A guard
    /// that is already a reader's stays one. There is no upgrade: two readers would wait for each
    /// other.
    ///
    /// If guards of one [`Holder`](super::Holder) share the lease, other readers are let in when
    /// the last writer among them becomes a reader. A writer that is released instead leaves the
    /// lease to the others as it is: no other reader is let in before they have released it too.
    ///
    /// # Errors
    /// As [`extend`](Guard::extend). The guard is a reader's in any case; nodes that did not
    /// receive the downgrade let no reader in before the next renewal.
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
        // A repeated call tells the nodes again: the first one may have failed.
        if is_last { self.hold.lease.extend().await } else { Ok(()) }
    }

    /// Releases the lock, and waits until a quorum of nodes has confirmed, for at most the locker's
    /// timeout. If guards of one holder share the lease, only the last release sends anything.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`] if the lease had ended before: another may have held the lock
    /// since. [`ReleaseError::NoQuorum`] if too few nodes answered, [`ReleaseError::Refused`] if
    /// too many refuse. In each case there is nothing left to do: the lease is over for this
    /// holder.
    ///
    /// # Cancellation
    /// The release is sent as soon as the future is first polled, and stays sent.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.release_within(Duration::ZERO).await
    }

    /// The same, but if no quorum has decided within the timeout, nodes that cannot be reached,
    /// refuse at present, or do not answer, have until `patience` is over.
    ///
    /// # Errors
    /// The same.
    #[doc(hidden)]
    pub async fn release_within(self, patience: Duration) -> Result<(), ReleaseError> {
        match Arc::into_inner(self.hold) {
            Some(hold) => hold.lease.release(patience).await,
            None => Ok(()),
        }
    }

    /// Gives up the guard without releasing the lock, to hand it to another process. The lock stays
    /// held until the lease ends, unless it is released or extended by its token. Other guards that
    /// share the lease count as released.
    #[must_use = "nothing else has the token, so the lock could not be released"]
    pub fn leak(self) -> Leaked {
        let lease = &self.hold.lease;
        let valid_for = lease.leak();
        Leaked { name: lease.name.to_vec(), token: lease.token, fence: lease.fence, valid_for }
    }
}

/// Nothing panics while one of these is locked, so its value is intact even if it is poisoned.
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
