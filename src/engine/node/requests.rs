//! How a node decides each request. Everything else rests on this state machine.
//!
//! A request is decided completely before anything changes: a refusal leaves lock and node as they
//! were. The node keeps no locks. The caller passes the lock that the request is for (a free one
//! with counter zero if there is none), and stores it if the outcome requires it.

use super::lock::{Holding, Lease, Lock, Spot, Tenure};
use super::promises::{Ceilings, Promises};
use crate::engine::{Clocks, Fence, Instant, Millis, Mode, Refusal, Token, UnixTime};

/// The outcome of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// A new lease.
    Granted {
        /// A writer's is larger than every earlier fence of this lock. A reader's is at least as
        /// large as the earlier ones, and smaller than every later writer's.
        fence: Fence,
        /// When the lease ends.
        ends_at: Instant,
        /// How many earlier leases had ended unreleased.
        lapsed: usize,
    },
    /// The token holds the lock already, with the same fence. The lease did not become shorter.
    Again {
        /// The fence of the grant.
        fence: Fence,
        /// When the lease ends now.
        ends_at: Instant,
        /// Whether it ends later than before.
        later: bool,
    },
    /// Another token holds the lock, in a way that keeps the claim out. Nothing changed.
    Held,
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease is released.
    Released {
        /// How long it was held, modulo 49.7 days.
        held_for: Millis,
    },
    /// Another token holds the lock. Nothing changed.
    HeldByAnother,
    /// Nobody holds the lock. Nothing changed.
    NotHeld,
}

/// The outcome of an extend or a raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// Done.
    Extended {
        /// When the lease ends now.
        ends_at: Instant,
        /// The lock's counter now.
        counter: Fence,
        /// Whether it counts towards a quorum; otherwise the lease is provisional.
        is_counted: bool,
        /// Whether it counts nevertheless for a holder that has no other node: its lease came with
        /// the data, and the node has authority and waits for leases of other masters.
        is_carried: bool,
        /// Whether the lease, its mark or the counter has changed.
        is_news: bool,
        /// How many earlier leases had ended unreleased, if it is a repair.
        lapsed: usize,
    },
    /// Another token holds the lock. Nothing changed.
    HeldByAnother,
    /// Nobody holds the lock. Nothing changed.
    NotHeld,
}

impl Extended {
    /// Whether it was carried out.
    pub fn is_done(self) -> bool {
        match self {
            Extended::Extended { .. } => true,
            Extended::HeldByAnother | Extended::NotHeld => false,
        }
    }

    /// Whether it has changed anything.
    pub fn is_news(self) -> bool {
        match self {
            Extended::Extended { is_news, .. } => is_news,
            Extended::HeldByAnother | Extended::NotHeld => false,
        }
    }
}

/// Why a request was not carried out. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is refused.
    Refused(Refusal),
    /// These ceilings must be durable first: persist them, tell the node, and ask again.
    Persist(Ceilings),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

/// A request's claim to a lock.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Proves the claim.
    pub token: Token<'a>,
    /// The requested length of the lease.
    pub ttl: Millis,
    /// The requested mode. An extension in [`Mode::Shared`] makes the lease a reader's.
    pub mode: Mode,
}

/// What an extend does to fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing<'a> {
    /// Nothing.
    Keep,
    /// It raises counter and lease to at least this fence.
    Raise(Fence),
    /// The same, and restores a lease that the node has forgotten.
    Repair {
        /// The fence.
        fence: Fence,
        /// The label, if the node does not know the holder's; may be empty.
        label: &'a [u8],
    },
}

impl Promises {
    /// Grants `lock` to the claim if it is free; to a reader also if only readers hold it. If the
    /// claim's token already holds it, the lease keeps the later end.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine, when the fences are used up, and for a reader who asks to
    /// be a writer: two of them would wait for each other.
    #[inline(always)]
    pub fn acquire(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        label: &[u8],
        now: Instant,
    ) -> Result<Acquired, Stop> {
        self.check_grants(now)?;
        match lock.holding(claim.token, now) {
            Holding::HeldByAnother(mode) if mode.conflicts_with(claim.mode) => Ok(Acquired::Held),
            Holding::Holds(spot) => self.acquire_again((lock, spot), claim, now),
            Holding::HeldByAnother(_) | Holding::NotHeld => {
                if claim.mode.is_shared() {
                    self.check_readers(lock, now)?;
                }
                let fence = lock.next_fence(claim.mode, self.floor()).ok_or(Refusal::Exhausted)?;
                let ends_at = now.after(claim.ttl);
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                let (token, mode, is_provisional) = (claim.token, claim.mode, false);
                let lease = Lease { token, fence, ends_at, label, mode, is_provisional };
                let lapsed = lock.grant(lease, now);
                Ok(Acquired::Granted { fence, ends_at, lapsed })
            }
        }
    }

    /// Refuses one more reader if the lock has as many as it may have.
    #[cold]
    fn check_readers(&self, lock: &Lock, now: Instant) -> Result<(), Stop> {
        if self.room_for_readers(lock, 0, now) > 0 {
            return Ok(());
        }
        let (readers, max) = (lock.holders(now), self.max_readers());
        Err(Refusal::ReadersFull { readers, max }.into())
    }

    /// How many more readers the lock may have: exact up to `enough`, a lower bound above it.
    pub(super) fn room_for_readers(&self, lock: &Lock, enough: usize, now: Instant) -> usize {
        let max = self.max_readers();
        // Ended leases may still be among those written, and counting the others takes long.
        match max.saturating_sub(lock.unnoted_leases()) {
            room if room > enough => room,
            _ => max.saturating_sub(lock.holders(now)),
        }
    }

    /// Handles a token that asks again for the lock that it holds.
    #[cold]
    fn acquire_again(
        &mut self,
        (lock, spot): (&mut Lock, Spot),
        claim: Claim<'_>,
        now: Instant,
    ) -> Result<Acquired, Stop> {
        let before = lock.tenure(spot);
        if before.mode.is_shared() && !claim.mode.is_shared() {
            return Err(Refusal::NoUpgrade.into());
        }
        let (fence, ends_at) = (before.fence, now.after(claim.ttl).max(before.ends_at));
        let later = ends_at > before.ends_at;
        // Also if nothing changes: to a holder whose lease was brought here from another name, this
        // is a grant, and the state file may lack the removal of the lease that stood here.
        self.admit(fence, ends_at).map_err(Stop::Persist)?;
        if later {
            lock.change(spot, Tenure { ends_at, is_provisional: false, ..before });
        }
        Ok(Acquired::Again { fence, ends_at, later })
    }

    /// Releases the lease of `token`. Allowed in quarantine.
    #[inline(always)]
    pub fn release(&self, lock: &mut Lock, token: Token<'_>, now: Instant) -> Released {
        match lock.holding(token, now) {
            Holding::Holds(spot) => {
                let held_for = lock.held_for(token, now);
                lock.erase(spot, now);
                Released::Released { held_for }
            }
            Holding::HeldByAnother(_) => Released::HeldByAnother,
            Holding::NotHeld => Released::NotHeld,
        }
    }

    /// Extends the lease of the claim's token to end its ttl from now, if that is later than
    /// before. A claim in [`Mode::Shared`] makes the lease a reader's.
    ///
    /// A repair also restores the lease of a holder that this node has forgotten. Outside of a
    /// quarantine that is a grant to the holder's own token. In quarantine nothing is granted, and
    /// the repaired lease is provisional: it stands but does not count, because the node may have
    /// forgotten a grant to another, and that vote may still win.
    ///
    /// A lease that came back with the data is extended in quarantine too, and counts: this node
    /// has granted the lock to nobody else. One that came from another name or node is provisional.
    /// After a promotion nothing counts while the node waits: its old master may be alive and
    /// granting.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine, except for a repair and for the holder of a lease that
    /// stands; for a fence that no node can have issued; and for a repair when the fences are used
    /// up.
    #[inline(always)]
    pub fn extend(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        fencing: Fencing<'_>,
        clocks: Clocks,
    ) -> Result<Extended, Stop> {
        let now = clocks.now;
        let (fence, repair) = match fencing {
            Fencing::Keep => (Fence::ZERO, None),
            Fencing::Raise(fence) => (fence, None),
            Fencing::Repair { fence, label } => (fence, Some(label)),
        };
        self.check_authority(now)?;
        let holding = lock.holding(claim.token, now);
        let holds = matches!(holding, Holding::Holds(_));
        if repair.is_none() && !holds {
            self.check_quarantine(now)?;
        }
        match (holding, repair) {
            (Holding::HeldByAnother(mode), _) if mode.conflicts_with(claim.mode) => {
                Ok(Extended::HeldByAnother)
            }
            (Holding::HeldByAnother(_) | Holding::NotHeld, None) => Ok(Extended::NotHeld),
            (Holding::HeldByAnother(_) | Holding::NotHeld, Some(label)) => {
                self.check_fence(fence, clocks.wall)?;
                self.rejoin(lock, claim, (fence, label), now)
            }
            (Holding::Holds(spot), _) => {
                self.check_fence(fence, clocks.wall)?;
                // A shorter ttl takes nothing away: the holder may still rely on the former end.
                let before = lock.tenure(spot);
                let ends_at = now.after(claim.ttl).max(before.ends_at);
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                let mode = if claim.mode.is_shared() { Mode::Shared } else { before.mode };
                let wanted = Tenure { ends_at, mode, ..before };
                Ok(self.change((lock, spot), fence, (before, wanted), now))
            }
        }
    }

    /// Restores the lease of a holder that this node has forgotten.
    ///
    /// The lease has the holder's fence if this node has issued none above it, so that the counters
    /// of the nodes agree. Otherwise (because of a crash, or of other locks that it forgot) the
    /// lease has the next fence, as in any grant, and the holder keeps its own. In quarantine,
    /// where nothing is granted, the lease has the holder's fence.
    fn rejoin(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        (fence, label): (Fence, &[u8]),
        now: Instant,
    ) -> Result<Extended, Stop> {
        let is_quarantined = self.quarantine(now).is_some();
        let fence = if is_quarantined || lock.counter().max(self.floor()) <= fence {
            fence
        } else {
            lock.next_fence(claim.mode, self.floor()).ok_or(Refusal::Exhausted)?
        };
        let (token, mode, ends_at) = (claim.token, claim.mode, now.after(claim.ttl));
        self.admit(fence, ends_at).map_err(Stop::Persist)?;
        // The holder's lapsed lease may still be written here: its label stays.
        let label = lock.lease_of(token).map_or(label, |lease| lease.label).to_vec();
        let is_provisional = is_quarantined;
        let lease = Lease { token, fence, ends_at, label: &label, mode, is_provisional };
        let lapsed = lock.grant(lease, now);
        let (counter, is_counted) = (lock.counter(), self.is_counted(&lease, now));
        let is_carried = false;
        Ok(Extended::Extended { ends_at, counter, is_counted, is_carried, is_news: true, lapsed })
    }

    /// Raises the counter and the lease at this spot to at least `fence`, and changes the lease.
    /// Returns the outcome for its holder.
    #[inline(always)]
    fn change(
        &mut self,
        (lock, spot): (&mut Lock, Spot),
        fence: Fence,
        (before, wanted): (Tenure, Tenure),
        now: Instant,
    ) -> Extended {
        let counter = lock.counter();
        let is_counted = self.counts(before.is_provisional, now);
        let is_carried = !is_counted && self.carries(before.is_provisional, now);
        // The lease's fence is never above the counter (I2), so it shows both.
        let is_raised = fence > before.fence;
        if is_raised {
            lock.raise(spot, fence);
            self.raised(counter, lock.counter(), before.mode);
        }
        // Outside of a quarantine all forgotten leases are over, so the lease counts from now on.
        let is_provisional = before.is_provisional && self.quarantine(now).is_some();
        let after = Tenure { is_provisional, ..wanted };
        lock.change(spot, after);
        let (ends_at, counter, is_news) =
            (after.ends_at, lock.counter(), is_raised || after != before);
        Extended::Extended { ends_at, counter, is_counted, is_carried, is_news, lapsed: 0 }
    }

    /// Raises the counter and the lease to at least `fence` if `token` holds the lock.
    ///
    /// An unconditional raise could arrive after the next grant, whose fence would then not be
    /// larger.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine, and for a fence that no node can have issued.
    pub fn raise(
        &mut self,
        lock: &mut Lock,
        token: Token<'_>,
        fence: Fence,
        clocks: Clocks,
    ) -> Result<Extended, Stop> {
        let now = clocks.now;
        self.check_grants(now)?;
        match lock.holding(token, now) {
            Holding::Holds(spot) => {
                self.check_fence(fence, clocks.wall)?;
                let tenure = lock.tenure(spot);
                self.admit(fence, tenure.ends_at).map_err(Stop::Persist)?;
                Ok(self.change((lock, spot), fence, (tenure, tenure), now))
            }
            Holding::HeldByAnother(_) => Ok(Extended::HeldByAnother),
            Holding::NotHeld => Ok(Extended::NotHeld),
        }
    }

    /// Refuses a fence that no node can have issued. A raise to it could bring this node, and then
    /// all others, permanently close to the largest fence.
    ///
    /// The bound is the time, which no client can move, or the highest fence that this node knows.
    /// A bound relative to its own fences alone could be climbed step by step.
    fn check_fence(&self, fence: Fence, wall: UnixTime) -> Result<(), Stop> {
        let max = Fence::highest_raised(wall).max(self.highest());
        if fence <= max { Ok(()) } else { Err(Refusal::BadFence { fence, max }.into()) }
    }

    /// Refuses grants and raises if the node lacks authority or is in quarantine.
    #[inline]
    pub(super) fn check_grants(&self, now: Instant) -> Result<(), Stop> {
        self.check_authority(now)?;
        self.check_quarantine(now)
    }

    fn check_quarantine(&self, now: Instant) -> Result<(), Stop> {
        match self.quarantine(now) {
            Some((left, reason)) => Err(Stop::Refused(Refusal::Quarantine { reason, left })),
            None => Ok(()),
        }
    }
}
