//! One node: what becomes of each request. The state machine that everything rests on.
//!
//! A request is decided completely before anything changes: a refusal leaves lock and node as they
//! were. The node keeps no locks; the caller brings the one that the request is about (a free one
//! of counter zero where there is none), and stores it if the outcome says so.

use super::durability::{Ceilings, Durability};
use super::lock::{Lease, Lock, Standing};
use super::token::Token;
use super::{Fence, Instant, Millis, Refusal};

/// What became of an acquire.
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
    /// The token holds the lock already: the same fence, and the lease did not become shorter.
    Again {
        /// The fence of the grant.
        fence: Fence,
        /// When the lease ends now.
        ends_at: Instant,
        /// Whether that is later than before.
        later: bool,
    },
    /// Another token holds the lock. Nothing changed.
    Held,
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease is given back.
    Released {
        /// For how long it was held, modulo 49.7 days.
        held_for: Millis,
    },
    /// Another token holds the lock. Nothing changed.
    HeldByAnother,
    /// Nobody holds the lock. Nothing changed.
    NotHeld,
}

/// What became of an extend or a raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// Done.
    Extended {
        /// When the lease ends now.
        ends_at: Instant,
        /// The lock's counter now.
        counter: Fence,
    },
    /// Another token holds the lock. Nothing changed.
    HeldByAnother,
    /// Nobody holds the lock. Nothing changed.
    NotHeld,
}

/// Why a request was not carried out. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// For good.
    Refused(Refusal),
    /// Until these ceilings are durable: persist them, tell the node, and ask again.
    Persist(Ceilings),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

/// A claim to a lock, as a request brings it.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Proves it.
    pub token: Token<'a>,
    /// For how long.
    pub ttl: Millis,
}

/// How an extend treats fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// It leaves them alone.
    Keep,
    /// It raises counter and lease to at least this fence.
    Raise(Fence),
    /// It does, and gives a forgotten lease back with this fence.
    Repair(Fence),
}

impl Durability {
    /// Grants `lock` to the claim if nobody has it; for its holder, keeps the later end.
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
        match lock.standing(claim.token, now) {
            Standing::HeldByAnother => Ok(Acquired::Held),
            Standing::Holds => {
                let fence = lock.lease_fence();
                let later = ends_at > lock.until();
                if later {
                    self.admit(fence, ends_at).map_err(Stop::Persist)?;
                    lock.set_end(ends_at);
                }
                Ok(Acquired::Again { fence, ends_at: lock.until(), later })
            }
            Standing::NotHeld => {
                let fence = lock.next_fence(self.floor()).ok_or(Refusal::Exhausted)?;
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                let lease = Lease { token: claim.token, fence, ends_at, label };
                let lapsed = lock.grant(lease, now);
                Ok(Acquired::Granted { fence, ends_at, lapsed })
            }
        }
    }

    /// Gives the lease back if `token` has it. Allowed in quarantine.
    pub fn release(&self, lock: &mut Lock, token: Token<'_>, now: Instant) -> Released {
        match lock.standing(token, now) {
            Standing::Holds => {
                let held_for = lock.held_for(now);
                lock.erase_lease(now);
                Released::Released { held_for }
            }
            Standing::HeldByAnother => Released::HeldByAnother,
            Standing::NotHeld => Released::NotHeld,
        }
    }

    /// Lets the lease of the claim's token end its ttl from now.
    ///
    /// A repair gives a lease back to a holder whom this node has forgotten. That is allowed only
    /// where nobody can have been granted a later fence in between: in quarantine, when this node
    /// grants nothing, or while the lock's counter, and the floor where it may have been, are not
    /// above the holder's fence. (NOTES on the protocol: "repair by the counter rule".)
    ///
    /// In quarantine a lease that stands here is extended as ever: it has come back with the data,
    /// or by a repair, and until the quarantine ends nobody else can be granted the lock here.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine, except for a repair, and for the holder of a lease that
    /// stands.
    pub fn extend(
        &mut self,
        lock: &mut Lock,
        claim: Claim<'_>,
        fencing: Fencing,
        now: Instant,
    ) -> Result<Extended, Stop> {
        let (fence, repairs) = match fencing {
            Fencing::Keep => (Fence::ZERO, false),
            Fencing::Raise(fence) => (fence, false),
            Fencing::Repair(fence) => (fence, true),
        };
        let quarantined = self.quarantine(now).is_some();
        let standing = lock.standing(claim.token, now);
        if !repairs && standing != Standing::Holds {
            self.check_quarantine(now)?;
        }
        let ends_at = now.after(claim.ttl);
        let before = lock.counter();
        match standing {
            Standing::HeldByAnother => Ok(Extended::HeldByAnother),
            Standing::Holds => {
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                lock.raise(fence);
                lock.set_end(ends_at);
                self.raised(before, lock.counter());
                Ok(Extended::Extended { ends_at, counter: lock.counter() })
            }
            Standing::NotHeld if repairs && (quarantined || before.max(self.floor()) <= fence) => {
                self.admit(fence, ends_at).map_err(Stop::Persist)?;
                // The holder's lapsed lease may still be written here: its label goes on.
                let label = match lock.written_lease() {
                    Some(lease) if lease.token == claim.token => lease.label.to_vec(),
                    Some(_) | None => Vec::new(),
                };
                lock.grant(Lease { token: claim.token, fence, ends_at, label: &label }, now);
                Ok(Extended::Extended { ends_at, counter: lock.counter() })
            }
            Standing::NotHeld => Ok(Extended::NotHeld),
        }
    }

    /// Raises the counter and the lease to at least `fence` if `token` holds the lock.
    ///
    /// Only then: an unconditional raise could arrive after the next grant, and that grant would
    /// not be larger.
    ///
    /// # Errors
    /// [`Stop::Refused`] in quarantine.
    pub fn raise(
        &mut self,
        lock: &mut Lock,
        token: Token<'_>,
        fence: Fence,
        now: Instant,
    ) -> Result<Extended, Stop> {
        self.check_quarantine(now)?;
        match lock.standing(token, now) {
            Standing::Holds => {
                self.admit(fence, lock.until()).map_err(Stop::Persist)?;
                let before = lock.counter();
                lock.raise(fence);
                self.raised(before, lock.counter());
                Ok(Extended::Extended { ends_at: lock.until(), counter: lock.counter() })
            }
            Standing::HeldByAnother => Ok(Extended::HeldByAnother),
            Standing::NotHeld => Ok(Extended::NotHeld),
        }
    }

    pub(super) fn check_quarantine(&self, now: Instant) -> Result<(), Stop> {
        match self.quarantine(now) {
            Some((left, reason)) => Err(Stop::Refused(Refusal::Quarantine { reason, left })),
            None => Ok(()),
        }
    }
}
