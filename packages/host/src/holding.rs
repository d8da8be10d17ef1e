//! A lock that is held, for a language whose objects have no single owner.
//!
//! The release of a client's guard consumes the guard. A [`Holding`] can be used at any time, from
//! any thread: after the release it answers like a lease that has ended.

use std::mem;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lockmod::client::{ExtendError, Guard, Lost, NodeReport, ReleaseError};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use crate::failure::{Failure, lost_word};
use crate::length::{Given, Span, Unit};
use crate::process::Ours;
use crate::settings;

/// A lock that is held. Dropping it releases in the background, unless it is [kept](Holding::keep).
#[derive(Debug)]
pub struct Holding {
    fence: u64,
    name: Arc<[u8]>,
    shared: Ours<Arc<Shared>>,
    unit: Unit,
    /// The ttls that an extension may have.
    ttl: Span,
}

#[derive(Debug)]
pub(crate) struct Shared {
    fence: u64,
    name: Arc<[u8]>,
    /// The ttl that a renewal asks for, in microseconds.
    ttl: AtomicU64,
    state: Mutex<State>,
    /// Read-locked by extensions in progress, and write-locked by the release, which waits for
    /// them.
    in_use: RwLock<()>,
}

#[derive(Debug)]
enum State {
    Guard(Held),
    /// It was given up: by a release, or after the lease had ended.
    Ended(Ended),
}

/// A lock that was not given up.
#[derive(Clone, Debug)]
struct Held {
    guard: Arc<Owned>,
    /// The connections live as long as the lease. (Dropped after the guard.)
    host: Arc<settings::Inside>,
}

/// The client's guard. Whoever drops it last, an extension in progress for example, releases the
/// lock, unless it is kept.
#[derive(Debug)]
struct Owned {
    /// There until it is released or dropped.
    guard: Option<Guard>,
    is_kept: AtomicBool,
}

impl Deref for Owned {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        // PROOF: only an owner takes it, and has no further use for this.
        self.guard.as_ref().unwrap_or_else(|| unreachable!("the guard is there until the end"))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let guard = self.guard.take();
        if self.is_kept.load(Ordering::Relaxed) {
            drop(guard.map(Guard::leak));
        }
    }
}

/// How a lease has ended.
#[derive(Clone, Debug)]
struct Ended {
    lost: Lost,
    /// The nodes' votes that say why: on the extension that failed last, or on the release.
    nodes: Vec<NodeReport>,
    /// When it was given up, and whether by a call of `release`.
    given_up: Option<(Instant, bool)>,
}

impl Ended {
    /// How the lease of a guard has ended, if it has.
    fn of(guard: &Guard) -> Option<Ended> {
        let lost = ending(guard)?;
        let is_told = matches!(lost, Lost::Expired | Lost::Removed);
        let nodes = if is_told { guard.unconfirmed() } else { Vec::new() };
        Some(Ended { lost, nodes, given_up: None })
    }

    fn by_release(by_call: bool) -> Ended {
        let given_up = Some((Instant::now(), by_call));
        Ended { lost: Lost::Released, nodes: Vec::new(), given_up }
    }
}

/// Why the lease of a guard has ended, if it has.
fn ending(guard: &Guard) -> Option<Lost> {
    if !guard.is_lost() {
        return None;
    }
    // It has ended, so this does not wait.
    match pin!(guard.lost()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(lost) => Some(lost),
        Poll::Pending => Some(Lost::Expired),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the guard; if it was given up, returns why the lease has ended.
    fn look<T>(&self, see: impl FnOnce(&Guard) -> T) -> Result<T, Lost> {
        match &*self.state() {
            State::Guard(held) => Ok(see(&held.guard)),
            State::Ended(ended) => Err(ended.lost),
        }
    }

    /// The lock, for a caller with `in_use`; if it was given up, why the lease has ended.
    fn held(&self) -> Result<Held, Lost> {
        match &*self.state() {
            State::Guard(held) => Ok(held.clone()),
            State::Ended(ended) => Err(ended.lost),
        }
    }

    /// How the lease has ended, if it has.
    fn ended(&self) -> Option<Ended> {
        match &*self.state() {
            State::Guard(held) => Ended::of(&held.guard),
            State::Ended(ended) => Some(ended.clone()),
        }
    }

    /// The failure of a lease that has ended.
    fn loss(&self, ended: &Ended, unit: Unit) -> Failure {
        match ended {
            Ended { lost: Lost::Released, given_up: Some((at, by_call)), .. } => {
                Failure::released(at.elapsed(), *by_call, &self.name, self.fence)
            }
            _ => {
                let ttl = Duration::from_micros(self.ttl.load(Ordering::Relaxed));
                let lease = (&*self.name, self.fence, ttl);
                Failure::lost(ended.lost, &ended.nodes, lease, unit)
            }
        }
    }

    /// The same if this is why: what has ended stays so.
    fn lost(&self, lost: Lost, unit: Unit) -> Failure {
        let ended = self.ended().unwrap_or(Ended { lost, nodes: Vec::new(), given_up: None });
        self.loss(&ended, unit)
    }

    /// The failure of an extension, or of a downgrade, which `told` describes.
    fn not_extended(
        &self,
        error: ExtendError,
        unit: Unit,
        told: fn(ExtendError) -> Failure,
    ) -> Failure {
        match error {
            ExtendError::Lost(lost) => self.lost(lost, unit),
            error => told(error).spelled(unit).of_lock(&self.name),
        }
    }

    /// Notes the ttl that a renewal asks for.
    fn set_ttl(&self, ttl: Duration) {
        // Half a million years fit.
        self.ttl.store(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Takes the guard, with the reason if the lease has ended already: that stays the reason.
    fn take_guard(&self, by_call: bool) -> Option<(Held, Option<Ended>)> {
        let mut state = self.state();
        let ended = match &*state {
            State::Guard(held) => Ended::of(&held.guard),
            State::Ended(_) => return None,
        };
        let now = State::Ended(ended.clone().unwrap_or_else(|| Ended::by_release(by_call)));
        match mem::replace(&mut *state, now) {
            State::Guard(held) => Some((held, ended)),
            State::Ended(_) => None,
        }
    }

    /// Notes that the nodes had lost the lease before its holder released it.
    fn found_removed(&self, nodes: Vec<NodeReport>) {
        *self.state() = State::Ended(Ended { lost: Lost::Removed, nodes, given_up: None });
    }

    /// Releases it without waiting for any node, unless it is kept.
    pub(crate) fn abandon(&self) {
        // Released here, or with the last extension in progress.
        drop(self.take_guard(false));
    }

    /// Takes the guard for a release, also of a lock that is kept.
    fn take_to_release(&self, by_call: bool) -> Option<(Held, Option<Ended>)> {
        let given_up = self.take_guard(by_call);
        if let Some((held, _)) = &given_up {
            held.guard.is_kept.store(false, Ordering::Relaxed);
        }
        given_up
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        // A forked child must touch nothing of it: the lock is the parent's.
        if let Some(shared) = self.shared.take() {
            shared.abandon();
        }
    }
}

impl Holding {
    pub(crate) fn new(host: Arc<settings::Inside>, guard: Guard, ttl: Duration) -> Holding {
        let (fence, name) = (guard.fence().get(), Arc::from(guard.name()));
        let (background, unit, ttls) = (host.background(), host.unit(), host.ttl());
        let guard = Arc::new(Owned { guard: Some(guard), is_kept: AtomicBool::new(false) });
        let shared = Arc::new(Shared {
            fence,
            name: Arc::clone(&name),
            ttl: AtomicU64::new(0),
            state: Mutex::new(State::Guard(Held { guard, host })),
            in_use: RwLock::new(()),
        });
        shared.set_ttl(ttl);
        background.holdings.note(&shared);
        Holding { fence, name, shared: Ours::new(background, shared), unit, ttl: ttls }
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
        let Ok(shared) = self.shared.get() else { return Duration::ZERO };
        shared.look(|guard| guard.validity()).unwrap_or_default()
    }

    /// Whether the lease has ended, or cannot be relied on in this process.
    pub fn is_lost(&self) -> bool {
        let Ok(shared) = self.shared.get() else { return true };
        shared.look(|guard| guard.is_lost()).unwrap_or(true)
    }

    /// Why the lease has ended, if it has; see [`lost`](Holding::lost).
    pub fn reason(&self) -> Option<&'static str> {
        let Ok(shared) = self.shared.get() else { return Some(lost_word(Lost::Expired)) };
        shared.look(ending).unwrap_or_else(Some).map(lost_word)
    }

    /// The failure of a lease that has ended, if it has: why, with the nodes' votes.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn loss(&self) -> Result<Option<Failure>, Failure> {
        let shared = self.shared.get()?;
        Ok(shared.ended().map(|ended| shared.loss(&ended, self.unit)))
    }

    /// A future that resolves when the lease has ended, with that failure. Its reason is
    /// `expired`, `removed`, `max_hold` or `released`; a release after the loss does not change it.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn lost(&self) -> Result<impl Future<Output = Failure> + Send + 'static + use<>, Failure> {
        let (shared, unit) = (Arc::clone(self.shared.get()?), self.unit);
        let lost = shared.look(|guard| guard.lost());
        Ok(async move {
            let lost = match lost {
                Ok(lost) => lost.await,
                Err(lost) => lost,
            };
            if lost == Lost::Released {
                // The release may find that the lock was removed: it knows when it is over.
                drop(shared.in_use.read().await);
            }
            shared.lost(lost, unit)
        })
    }

    /// The same, but with only the reason, and `None` after `limit`, in the locker's unit.
    ///
    /// # Errors
    /// [`Failure`] if the time is wrong, or this process is a forked child.
    pub fn lost_within(
        &self,
        limit: Option<Given>,
    ) -> Result<impl Future<Output = Option<&'static str>> + Send + 'static + use<>, Failure> {
        let limit = limit.map(|limit| self.unit.length(Span::UNTIL_LOST, &limit)).transpose()?;
        let lost = self.lost()?;
        Ok(async move {
            match limit {
                Some(limit) => tokio::time::timeout(limit, lost).await.ok()?.reason,
                None => lost.await.reason,
            }
        })
    }

    /// A future that extends the lease, with another ttl if one is given, in the locker's unit.
    ///
    /// # Errors
    /// [`Failure`] if the ttl is wrong, or this process is a forked child.
    pub fn extend(
        &self,
        ttl: Option<Given>,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static + use<>, Failure> {
        let shared = Arc::clone(self.shared.get()?);
        let unit = self.unit;
        // A lease that has ended refuses every ttl.
        let least = shared.look(Guard::extension_min).unwrap_or_default();
        let ttl = ttl.map(|ttl| unit.length(self.ttl.from(least), &ttl)).transpose()?;
        Ok(async move {
            let _in_use = shared.in_use.read().await;
            let extended = match (shared.held(), ttl) {
                (Err(lost), _) => return Err(shared.lost(lost, unit)),
                (Ok(held), Some(ttl)) => held.guard.extend_by(ttl).await,
                (Ok(held), None) => held.guard.extend().await,
            };
            match (extended, ttl) {
                (Ok(()), Some(ttl)) => shared.set_ttl(ttl),
                (Ok(()), None) => {}
                (Err(error), _) => return Err(shared.not_extended(error, unit, Failure::from)),
            }
            Ok(())
        })
    }

    /// Whether it is a writer's, so that nobody else holds the lock; false after its release or its
    /// loss, and in a forked child.
    pub fn is_exclusive(&self) -> bool {
        let Ok(shared) = self.shared.get() else { return false };
        shared.look(|guard| guard.is_exclusive() && !guard.is_lost()).unwrap_or(false)
    }

    /// A future that makes a writer a reader, as soon as it is first polled.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn downgrade(
        &self,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static + use<>, Failure> {
        let shared = Arc::clone(self.shared.get()?);
        let unit = self.unit;
        Ok(async move {
            let _in_use = shared.in_use.read().await;
            match shared.held() {
                Err(lost) => Err(shared.lost(lost, unit)),
                Ok(held) => held
                    .guard
                    .downgrade()
                    .await
                    .map_err(|error| shared.not_extended(error, unit, Failure::of_downgrade)),
            }
        })
    }

    /// A future that releases the lock. It waits for extensions in progress; a second release does
    /// nothing. If it is cancelled, the release is sent anyway. If the lease had ended, it fails
    /// with that reason, whatever the nodes answer. If only the nodes know that it had, it was
    /// removed, and the lease stays lost for that reason.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn release(
        &self,
    ) -> Result<impl Future<Output = Result<(), Failure>> + Send + 'static + use<>, Failure> {
        let shared = Arc::clone(self.shared.get()?);
        let unit = self.unit;
        // Taken now: from here on no extension starts, and whatever happens next drops the guard.
        let given_up = shared.take_to_release(true);
        Ok(async move {
            let Some((Held { guard, host: _connected }, ended)) = given_up else { return Ok(()) };
            let _alone = shared.in_use.write().await;
            let released = match Arc::into_inner(guard).and_then(|mut owned| owned.guard.take()) {
                Some(guard) => guard.release().await,
                // PROOF: extensions drop theirs before they let go of `in_use`.
                None => unreachable!("an extension that is over has dropped its guard"),
            };
            if let (Err(ReleaseError::NotHeld(nodes)), None) = (&released, &ended) {
                shared.found_removed(nodes.clone());
            }
            let released = released.map_err(|error| Failure::from(error).of_lock(&shared.name));
            let Some(ended) = ended else { return released };
            let lost = shared.loss(&ended, unit);
            Err(match released {
                Ok(()) => lost,
                Err(failure) => lost.with_release(failure),
            })
        })
    }

    /// A future that releases all of these at once, and has each one's result; see
    /// [`release`](Holding::release).
    pub fn release_all(
        holdings: &[&Holding],
    ) -> impl Future<Output = Vec<Result<(), Failure>>> + Send + 'static + use<> {
        // Begun now, as `release` is.
        let releases: Vec<_> = holdings.iter().map(|holding| holding.release()).collect();
        async move {
            let mut results = Vec::with_capacity(releases.len());
            // Dropped, it drops those that are not over, which are sent anyway.
            let mut pending = JoinSet::new();
            for (place, release) in releases.into_iter().enumerate() {
                results.push(release.map(|release| {
                    pending.spawn(async move { (place, release.await) });
                }));
            }
            while let Some(over) = pending.join_next().await {
                match over {
                    Ok((place, result)) => results[place] = result,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            results
        }
    }

    /// From now on dropping it does not release: the lease lasts until its end.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn keep(&self) -> Result<(), Failure> {
        // After a release there is nothing to keep.
        if let State::Guard(held) = &*self.shared.get()?.state() {
            held.guard.is_kept.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Releases without waiting for any node.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn abandon(&self) -> Result<(), Failure> {
        drop(self.shared.get()?.take_to_release(false));
        Ok(())
    }
}
