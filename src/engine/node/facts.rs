//! Facts: decisions of a master, or of this node before a restart, read from its append-only file.
//!
//! They are applied, not judged: a lease that the master has granted is written even if it is over
//! by this node's clock.

use super::{Extended, Lease, Lock, Node, Released};
use crate::engine::{Clocks, Fence, Instant, Millis, Mode, TOKEN_MAX, Token, UnixTime};

/// A decided lease: what is replicated and kept in append-only files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The requested ttl: an upper bound for the time left.
    pub ttl: Millis,
    /// The absolute end.
    pub ends_at: UnixTime,
    /// The lease's fence.
    pub fence: Fence,
    /// The sender's floor, if it is stated; otherwise zero.
    pub floor: Fence,
    /// How the lock is held.
    pub mode: Mode,
    /// The lease was repaired in the sender's quarantine, or came from another name, and does not
    /// count towards a quorum yet.
    pub is_provisional: bool,
}

/// The kind of request that decided a lease, with the label it brought, which may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated<'a> {
    /// A grant: the lease gets this label.
    Grant(&'a [u8]),
    /// An extension: the lease keeps its label. A repair of a lease that is not written here brings
    /// this one.
    Extension(&'a [u8]),
}

impl Stated<'_> {
    /// Whether it states a new lease. Otherwise `known`, the lease of the same token, goes on.
    fn is_new(self, known: Lease<'_>, decided: &Decided, ends_at: Instant) -> bool {
        let was_over = known.ends_at < ends_at.before(decided.ttl);
        match self {
            // A reader's lease may have the fence of the one before.
            Stated::Grant(_) => {
                known.fence != decided.fence || decided.mode.is_shared() && was_over
            }
            Stated::Extension(_) => was_over,
        }
    }
}

/// When a lease was decided. Between a stop and a start, readers' leases may end, and the start
/// must find those that the stop has counted.
fn decided_at(clocks: Clocks, decided: &Decided, is_own: bool) -> Instant {
    let ends_at = clocks.to_instant(decided.ends_at, decided.ttl);
    if is_own { ends_at.before(decided.ttl).min(clocks.now) } else { clocks.now }
}

impl Node {
    /// Writes a lease that was decided elsewhere; with an empty token, only a counter.
    ///
    /// Facts from this node's own file (`is_own`) are dated by this node's clocks; facts from a
    /// master are dated by another machine. `read`: the current reading of both clocks.
    pub fn apply(
        &mut self,
        lock: &mut Lock,
        (token, stated): (&[u8], Stated<'_>),
        decided: &Decided,
        read: Clocks,
        is_own: bool,
    ) {
        let clocks = if is_own { self.date(read.now) } else { read };
        let before = lock.unnoted();
        match Token::new(token, TOKEN_MAX) {
            Ok(token) => {
                let ends_at = clocks.to_instant(decided.ends_at, decided.ttl);
                let known = lock.lease_of(token);
                let is_new = known.is_none_or(|lease| stated.is_new(lease, decided, ends_at));
                // For the same holder, the label of the grant stays, also after a repair.
                let (label, keeps_label) = match stated {
                    Stated::Grant(label) => (label, !is_new),
                    Stated::Extension(label) => (label, true),
                };
                let kept = known.filter(|_| keeps_label).map(|lease| lease.label.to_vec());
                let label = kept.as_deref().unwrap_or(label);
                let is_misdated = is_own && clocks.shortens(decided.ends_at, decided.ttl);
                let is_provisional = decided.is_provisional || is_misdated;
                let Decided { fence, mode, .. } = *decided;
                let lease = Lease { token, fence, ends_at, label, mode, is_provisional };
                if is_new {
                    lock.apply_release(token, clocks.now);
                }
                lock.apply(lease, clocks.now);
                lock.forget_some_ended(decided_at(clocks, decided, is_own));
            }
            // Without a token the fact is about the counter only.
            Err(_) => lock.apply_counter(decided.fence),
        }
        self.tally.changed(before, lock);
        self.loaded(lock, decided.floor);
    }

    /// Applies a release where [`Node::release`] found no lease, because it is over by this node's
    /// clock: the decision counts, not this clock.
    pub fn apply_release(&mut self, lock: &mut Lock, token: Token<'_>, now: Instant) -> Released {
        let (was_noted, held_for) = (!lock.has_unnoted_lease(), lock.held_for(token, now));
        let before = (lock.until(), lock.unnoted());
        if !lock.apply_release(token, now) {
            return Released::NotHeld;
        }
        if was_noted {
            self.tally.take_back_lapse();
        }
        let outcome = Released::Released { held_for };
        self.tally.released(outcome, before, lock);
        outcome
    }

    /// Raises the counter and the lease that is written for `token`.
    pub fn apply_raise(&mut self, lock: &mut Lock, token: Token<'_>, fence: Fence) -> Extended {
        let before = lock.counter();
        if !lock.apply_raise(token, fence) {
            return Extended::NotHeld;
        }
        let mode = lock.lease_of(token).map(|lease| lease.mode).unwrap_or_default();
        self.promises.raised(before, lock.counter(), mode);
        // The fence may be above this node's ceiling; once promoted, the node goes on above it.
        self.seen(lock);
        let (ends_at, counter) = (lock.until(), lock.counter());
        let (is_counted, is_carried) = (true, false);
        Extended::Extended { ends_at, counter, is_counted, is_carried, is_news: true, lapsed: 0 }
    }

    /// Raises the floor, as an operator did at the master. Returns the floor.
    pub fn apply_floor(&mut self, floor: Fence) -> Fence {
        self.promises.seen(floor, None);
        self.promises.raise_floor(floor);
        self.promises.floor()
    }
}
