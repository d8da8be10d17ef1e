//! A lock that is held, for a language whose objects have no single owner.
//!
//! The release of a client's guard consumes the guard. A [`Holding`] can be used at any time, from
//! any thread: after the release it answers like a lease that has ended.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockmod::client::{Guard, Lost};
use tokio::sync::RwLock;

use crate::failure::{Failure, lost_word};
use crate::process::Ours;
use crate::settings::{Host, Span};

/// A lock that is held. Dropping it releases in the background, unless it is [kept](Holding::keep).
#[derive(Debug)]
pub struct Holding {
    fence: u64,
    name: Vec<u8>,
    inside: Ours<Arc<Inside>>,
    // The connections live as long as the lease.
    host: Host,
}

#[derive(Debug)]
pub(crate) struct Inside {
    guard: Mutex<Option<Arc<Guard>>>,
    /// Whether it is released only on request.
    is_kept: AtomicBool,
    /// Read-locked by extensions in progress, and write-locked by the release, which waits for
    /// them.
    in_use: RwLock<()>,
}

impl Inside {
    fn guard(&self) -> MutexGuard<'_, Option<Arc<Guard>>> {
        // Nothing panics while the lock is held.
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases it without waiting for any node, unless it is kept.
    pub(crate) fn abandon(&self) {
        let Some(guard) = self.guard().take() else { return };
        match Arc::into_inner(guard) {
            Some(guard) if self.is_kept.load(Ordering::Relaxed) => drop(guard.leak()),
            // Released here, or with the last extension in progress.
            guard => drop(guard),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        // A forked child must touch nothing of it: the lock is the parent's.
        if let Some(inside) = self.inside.take() {
            inside.abandon();
        }
    }
}

impl Holding {
    pub(crate) fn new(host: Host, guard: Guard) -> Holding {
        let (fence, name) = (guard.fence().get(), guard.name().to_vec());
        let inside = Arc::new(Inside {
            guard: Mutex::new(Some(Arc::new(guard))),
            is_kept: AtomicBool::new(false),
            in_use: RwLock::new(()),
        });
        host.background().holdings.note(&inside);
        Holding { fence, name, inside: Ours::new(host.background(), inside), host }
    }

    /// The fencing token of this grant.
    pub const fn fence(&self) -> u64 {
        self.fence
    }

    /// The lock's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// How long the lease may still be relied on: zero in a forked child.
    pub fn validity(&self) -> Duration {
        let validity = |guard: &Arc<Guard>| guard.validity();
        let inside = self.inside.get().ok();
        inside.and_then(|inside| inside.guard().as_ref().map(validity)).unwrap_or_default()
    }

    /// Whether the lease has ended, or cannot be relied on in this process.
    pub fn is_lost(&self) -> bool {
        let is_lost = |guard: &Arc<Guard>| guard.is_lost();
        let inside = self.inside.get().ok();
        inside.and_then(|inside| inside.guard().as_ref().map(is_lost)).unwrap_or(true)
    }

    /// Why the lease has ended, if it has; see [`lost`](Holding::lost).
    pub fn reason(&self) -> Option<&'static str> {
        if !self.is_lost() {
            return None;
        }
        let Ok(inside) = self.inside.get() else { return Some(lost_word(Lost::Expired)) };
        let Some(guard) = inside.guard().clone() else { return Some(lost_word(Lost::Released)) };
        // It has ended, so this does not wait.
        match pin!(guard.lost()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(lost) => Some(lost_word(lost)),
            Poll::Pending => Some(lost_word(Lost::Expired)),
        }
    }

    /// A future that resolves when the lease has ended, with the reason in one word: `expired`,
    /// `removed`, `max_hold` or `released`.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn lost(
        &self,
    ) -> Result<impl Future<Output = &'static str> + Send + 'static + use<>, Failure> {
        let lost = self.inside.get()?.guard().as_ref().map(|guard| guard.lost());
        Ok(async move {
            match lost {
                Some(lost) => lost_word(lost.await),
                None => lost_word(Lost::Released),
            }
        })
    }

    /// The same, but with `None` after `limit`, in the locker's unit.
    ///
    /// # Errors
    /// [`Failure`] if the time is wrong, or this process is a forked child.
    pub fn lost_within(
        &self,
        limit: Option<f64>,
    ) -> Result<impl Future<Output = Option<&'static str>> + Send + 'static + use<>, Failure> {
        let limit =
            limit.map(|limit| self.host.unit().length(Span::UNTIL_LOST, limit)).transpose()?;
        let lost = self.lost()?;
        Ok(async move {
            match limit {
                Some(limit) => tokio::time::timeout(limit, lost).await.ok(),
                None => Some(lost.await),
            }
        })
    }

    /// A future that extends the lease, with another ttl if one is given, in the locker's unit.
    ///
    /// # Errors
    /// [`Failure`] if the ttl is wrong, or this process is a forked child.
    pub fn extend(
        &self,
        ttl: Option<f64>,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static + use<>, Failure> {
        let inside = Arc::clone(self.inside.get()?);
        let unit = self.host.unit();
        let ttl = ttl.map(|ttl| unit.length(Span::TTL, ttl)).transpose()?;
        Ok(async move {
            let _in_use = inside.in_use.read().await;
            let guard = inside.guard().clone();
            let extended = match (guard, ttl) {
                (None, _) => return Err(Failure::lost(Lost::Released)),
                (Some(guard), Some(ttl)) => guard.extend_by(ttl).await,
                (Some(guard), None) => guard.extend().await,
            };
            extended.map_err(|error| Failure::from(error).spelled(unit))
        })
    }

    /// Whether it is a writer's, so that nobody else holds the lock; false after its release, and
    /// in a forked child.
    pub fn is_exclusive(&self) -> bool {
        let is_exclusive = |guard: &Arc<Guard>| guard.is_exclusive();
        let inside = self.inside.get().ok();
        inside.and_then(|inside| inside.guard().as_ref().map(is_exclusive)).unwrap_or(false)
    }

    /// A future that makes a writer a reader, as soon as it is first polled.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn downgrade(
        &self,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static + use<>, Failure> {
        let inside = Arc::clone(self.inside.get()?);
        Ok(async move {
            let _in_use = inside.in_use.read().await;
            let guard = inside.guard().clone();
            match guard {
                None => Err(Failure::lost(Lost::Released)),
                Some(guard) => Ok(guard.downgrade().await?),
            }
        })
    }

    /// A future that releases the lock. It waits for extensions in progress; a second release does
    /// nothing. If it is cancelled, the release is sent anyway.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn release(
        &self,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static + use<>, Failure> {
        let inside = Arc::clone(self.inside.get()?);
        // Taken now: from here on no extension starts, and whatever happens next drops the guard.
        let guard = inside.guard().take();
        Ok(async move {
            let Some(guard) = guard else { return Ok(()) };
            let _alone = inside.in_use.write().await;
            match Arc::into_inner(guard) {
                Some(guard) => Ok(guard.release().await?),
                // PROOF: extensions drop theirs before they let go of `in_use`.
                None => unreachable!("an extension that is over has dropped its guard"),
            }
        })
    }

    /// From now on dropping it does not release: the lease lasts until its end.
    pub fn keep(&self) {
        if let Ok(inside) = self.inside.get() {
            inside.is_kept.store(true, Ordering::Relaxed);
        }
    }

    /// Releases without waiting for any node.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn abandon(&self) -> Result<(), Failure> {
        drop(self.inside.get()?.guard().take());
        Ok(())
    }
}
