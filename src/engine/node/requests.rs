//! How a node decides each request. Everything else rests on this state machine.
//!
//! A request is decided completely before anything changes: a refusal leaves lock and node as they
//! were. The node keeps no locks. The caller passes the one that the request is about (a free one
//! with counter zero if there is none), and stores it if the outcome says so.

use super::lock::{Holding, Lease, Lock};
use super::promises::{Ceilings, Promises};
use crate::engine::{Clocks, Fence, Instant, Millis, RAISE_MARGIN, Refusal, Token, UnixTime};

/// The outcome of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// A new lease.
    Granted {
        /// Larger than every fence of this lock before.
        fence: Fence,
        /// When the lease ends.
        ends_at: Instant,
        /// Whether an earlier lease had ended without being given back.
        lapsed: bool,
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
    /// Another token holds the lock. Nothing changed.
    Held,
}

/// The outcome of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease is given back.
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
        /// Whether the lease, its mark or the counter has changed.
        is_news: bool,
        /// Whether it is a repair, and an earlier lease had ended without being given back.
        lapsed: bool,
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
    /// For good.
    Refused(Refusal),
    /// Not before these ceilings are durable: persist them, tell the node, and ask again.
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
    /// Proves it.
    pub token: Token<'a>,
    /// The length of lease that is asked for.
    pub ttl: Millis,
}

/// What an extend does to fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing<'a> {
    /// Nothing.
    Keep,
    /// It raises counter and lease to at least this fence.
    Raise(Fence),
    /// The same, and gives back a lease that the node has forgotten.
    Repair {
        /// The fence.
        fence: Fence,
        /// The label, if the node does not know the holder's; may be empty.
        label: &'a [u8],
    },
}

impl Promises {
    /// Grants `lock` to the claim if it is free. If the claim's token holds it, the later end
    /// stays.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine, and when the fences are used up.
    pub fn acquire(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        label: &[u8],
        now: Instant,
    ) -> Result<Acquired, Stop> {
        self.check_quarantine(now)?;
        let ends_at = now.after(claim.ttl);
        match lock.holding(claim.token, now) {
            Holding::HeldByAnother => Ok(Acquired::Held),
            Holding::Holds => {
                let fence = lock.lease_fence();
                let later = ends_at > lock.until();
                if later {
                    self.admit(fence, ends_at).map_err(Stop::Persist)?;
                    lock.set_end(ends_at);
                    lock.set_provisional(false);
                }
                Ok(Acquired::Again { fence, ends_at: lock.until(), later })
            }
            Holding::NotHeld => {
                let fence = lock.next_fence(self.floor()).ok_or(Refusal::Exhausted)?;
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                let lease = Lease { token: claim.token, fence, ends_at, label };
                let lapsed = lock.grant(lease, now);
                Ok(Acquired::Granted { fence, ends_at, lapsed })
            }
        }
    }

    /// Releases the lease of `token`. Allowed in quarantine.
    pub fn release(&self, lock: &mut Lock, token: Token<'_>, now: Instant) -> Released {
        match lock.holding(token, now) {
            Holding::Holds => {
                let held_for = lock.held_for(now);
                lock.erase_lease(now);
                Released::Released { held_for }
            }
            Holding::HeldByAnother => Released::HeldByAnother,
            Holding::NotHeld => Released::NotHeld,
        }
    }

    /// Extends the lease of the claim's token to end its ttl from now, if that is later than
    /// before.
    ///
    /// A repair also gives a lease back to a holder that this node has forgotten. Outside of a
    /// quarantine that is a grant to the holder's own token. In quarantine nothing is granted, and
    /// the repaired lease is provisional: it stands but does not count, because the node may have
    /// forgotten a grant to another, and that vote may still win.
    ///
    /// A lease that came back with the data is extended in quarantine too, and counts: this node
    /// has granted the lock to nobody else. One that came from another name or node is provisional.
    /// After a promotion nothing counts while the node waits: its old master may be alive, and
    /// grant.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine, except for a repair, and for the holder of a lease that
    /// stands; for a fence that no node can have issued; and for a repair when the fences are used
    /// up.
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
        let holding = lock.holding(claim.token, now);
        if repair.is_none() && holding != Holding::Holds {
            self.check_quarantine(now)?;
        }
        match (holding, repair) {
            (Holding::HeldByAnother, _) => Ok(Extended::HeldByAnother),
            (Holding::NotHeld, None) => Ok(Extended::NotHeld),
            (Holding::NotHeld, Some(label)) => {
                self.check_fence(fence, clocks.wall)?;
                self.rejoin(lock, claim, (fence, label), now)
            }
            (Holding::Holds, _) => {
                self.check_fence(fence, clocks.wall)?;
                // A shorter ttl takes nothing away: the holder may still rely on the former end.
                let until = lock.until();
                let ends_at = now.after(claim.ttl).max(until);
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                let is_raised = self.lift(lock, fence);
                lock.set_end(ends_at);
                let is_news = is_raised || lock.until() > until;
                Ok(self.extended(lock, is_news, now))
            }
        }
    }

    /// Gives a free lock back to a holder that this node has forgotten.
    ///
    /// The lease has the holder's fence if this node has issued none above it, so that the counters
    /// of the nodes agree. Otherwise (because of a crash, or of other locks that it forgot) the
    /// lease has the next fence, as any grant; the holder keeps its own. In quarantine, where
    /// nothing is granted, the lease has the holder's fence.
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
            lock.next_fence(self.floor()).ok_or(Refusal::Exhausted)?
        };
        let ends_at = now.after(claim.ttl);
        self.admit(fence, ends_at).map_err(Stop::Persist)?;
        // The holder's lapsed lease may still be written here: its label stays.
        let label = match lock.written_lease() {
            Some(lease) if lease.token == claim.token => lease.label.to_vec(),
            Some(_) | None => label.to_vec(),
        };
        let lease = Lease { token: claim.token, fence, ends_at, label: &label };
        let lapsed = lock.grant(lease, now);
        lock.set_provisional(is_quarantined);
        let (counter, is_counted) = (lock.counter(), self.is_counted(lock, now));
        Ok(Extended::Extended { ends_at: lock.until(), counter, is_counted, is_news: true, lapsed })
    }

    /// Raises the counter and the present lease to at least `fence`. Returns whether that changes
    /// anything: the lease's fence is never above the counter (I2), so it shows both.
    fn lift(&mut self, lock: &mut Lock, fence: Fence) -> bool {
        let (before, is_raised) = (lock.counter(), fence > lock.lease_fence());
        if is_raised {
            lock.raise(fence);
            self.raised(before, lock.counter());
        }
        is_raised
    }

    /// The outcome of an extension or a raise for the lock's holder. `is_news`: it has changed the
    /// end or the fence.
    fn extended(&self, lock: &mut Lock, is_news: bool, now: Instant) -> Extended {
        let was_provisional = lock.is_provisional();
        if was_provisional && self.quarantine(now).is_none() {
            // Whatever was forgotten is over: the lease counts from now on.
            lock.set_provisional(false);
        }
        let is_news = is_news || was_provisional && !lock.is_provisional();
        let (ends_at, counter, is_counted) =
            (lock.until(), lock.counter(), self.is_counted(lock, now));
        Extended::Extended { ends_at, counter, is_counted, is_news, lapsed: false }
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
        self.check_quarantine(now)?;
        match lock.holding(token, now) {
            Holding::Holds => {
                self.check_fence(fence, clocks.wall)?;
                self.admit(fence, lock.until()).map_err(Stop::Persist)?;
                let is_raised = self.lift(lock, fence);
                Ok(self.extended(lock, is_raised, now))
            }
            Holding::HeldByAnother => Ok(Extended::HeldByAnother),
            Holding::NotHeld => Ok(Extended::NotHeld),
        }
    }

    /// Refuses a fence that no node can have issued. A raise to it could bring this node, and then
    /// all others, close to the largest fence for good.
    ///
    /// The bound is the time, which no client can move, or the highest fence that this node knows.
    /// A bound relative to its own fences alone could be climbed step by step.
    fn check_fence(&self, fence: Fence, wall: UnixTime) -> Result<(), Stop> {
        let max = Fence::of_time(wall).saturating_add(RAISE_MARGIN).max(self.highest());
        if fence <= max { Ok(()) } else { Err(Refusal::BadFence { fence, max }.into()) }
    }

    pub(super) fn check_quarantine(&self, now: Instant) -> Result<(), Stop> {
        match self.quarantine(now) {
            Some((left, reason)) => Err(Stop::Refused(Refusal::Quarantine { reason, left })),
            None => Ok(()),
        }
    }
}
