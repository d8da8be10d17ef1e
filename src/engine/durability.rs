//! What one node promises about itself across crashes: floor, ceilings, quarantine.
//!
//! The one idea: a promise is made durable *before* it is used. No fence above the fence ceiling
//! and no lease past the lease ceiling is ever issued; both are written to disk in blocks, ahead of
//! need. After a restart that may have lost data, the floor starts at the fence ceiling, and the
//! node grants nothing until the lease ceiling has passed.

use super::{Fence, Instant, Millis, QuarantineReason};

/// How many fences one write of the fence ceiling pays for. 2^53 allows 10^11 crashes.
pub const FENCE_BLOCK: u64 = 65_536;
/// How much time one write of the lease ceiling pays for: an unclean restart may have to wait
/// this much longer than the longest lease.
pub const LEASE_BLOCK: Millis = Millis::new(10_000);

/// What the state file promises was never passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ceilings {
    /// No fence above it was ever issued.
    pub fence: Fence,
    /// No lease ever granted ends after it.
    pub lease: Instant,
}

impl Ceilings {
    /// Whether both of `other`'s promises are within these.
    pub fn covers(self, other: Ceilings) -> bool {
        other.fence <= self.fence && other.lease <= self.lease
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Ceilings) -> Ceilings {
        Ceilings { fence: self.fence.max(other.fence), lease: self.lease.max(other.lease) }
    }
}

/// The node-wide part of a node's state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Durability {
    floor: Fence,
    highest: Fence,
    longest: Instant,
    /// `None`: the node keeps no state file, and promises nothing across crashes.
    ceilings: Option<Ceilings>,
    quarantine: Option<Quarantine>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Quarantine {
    until: Instant,
    reason: QuarantineReason,
}

impl Durability {
    /// A node with this floor, whose state file promises `ceilings`; `None` without a state file.
    pub fn new(floor: Fence, ceilings: Option<Ceilings>) -> Durability {
        Durability { floor, highest: floor, ceilings, ..Durability::default() }
    }

    /// The fence below which a forgotten lock never restarts.
    pub fn floor(&self) -> Fence {
        self.floor
    }

    /// The highest fence known of any lock of this node.
    pub fn highest(&self) -> Fence {
        self.highest
    }

    /// The latest end of any lease that this node granted or loaded.
    pub fn longest(&self) -> Instant {
        self.longest
    }

    /// What has been made durable.
    pub fn ceilings(&self) -> Option<Ceilings> {
        self.ceilings
    }

    /// Asks to issue `fence` in a lease until `ends_at`, and notes it if the ceilings allow it.
    ///
    /// # Errors
    /// The ceilings that must be durable first; then ask again.
    pub fn admit(&mut self, fence: Fence, ends_at: Instant) -> Result<(), Ceilings> {
        let use_of = Ceilings { fence, lease: ends_at };
        if let Some(ceilings) = self.ceilings
            && !ceilings.covers(use_of)
        {
            return Err(ceilings.max(next_block(use_of)));
        }
        self.highest = self.highest.max(fence);
        self.longest = self.longest.max(ends_at);
        Ok(())
    }

    /// Ceilings worth writing now, in the background, before they are needed: half a block is used.
    ///
    /// `lasting` is the length of the leases that are being asked for. What came from elsewhere
    /// ([`Durability::seen`]) is promised by nobody until this has been written.
    pub fn ahead(&self, now: Instant, lasting: Millis) -> Option<Ceilings> {
        let ceilings = self.ceilings?;
        let soon = Ceilings {
            fence: self.highest.saturating_add(FENCE_BLOCK / 2),
            lease: now.after(lasting).after(Millis::new(LEASE_BLOCK.get() / 2)).max(self.longest),
        };
        if ceilings.covers(soon) { None } else { Some(ceilings.max(next_block(soon))) }
    }

    /// Notes that `ceilings` are durable.
    pub fn persisted(&mut self, ceilings: Ceilings) {
        if let Some(known) = &mut self.ceilings {
            *known = known.max(ceilings);
        }
    }

    /// Notes that a lock with this counter is gone: no name may start below it again.
    pub fn forget(&mut self, counter: Fence) {
        self.raise_floor(counter);
    }

    /// Notes that any number of locks are gone, whose names and counters nobody listed.
    pub fn forget_all(&mut self) {
        self.floor = self.highest;
    }

    /// Raises the floor to at least `floor`.
    pub fn raise_floor(&mut self, floor: Fence) {
        self.floor = self.floor.max(floor);
        self.highest = self.highest.max(floor);
    }

    /// Notes a lock that came from a data set, a dump or a master. Its fence and its lease may be
    /// beyond the ceilings, so [`Durability::ahead`] has to be written before the lock is served.
    pub fn seen(&mut self, counter: Fence, ends_at: Option<Instant>) {
        self.highest = self.highest.max(counter);
        self.longest = self.longest.max(ends_at.unwrap_or_default());
    }

    /// Notes a raise from `before` to `counter`. If the lock was born at the floor, then other
    /// nodes' floors are higher than this one's: catch up, so that new names agree across nodes.
    pub fn raised(&mut self, before: Fence, counter: Fence) {
        self.highest = self.highest.max(counter);
        if counter > before && before.previous() <= self.floor {
            self.raise_floor(counter.previous());
        }
    }

    /// Grants nothing until `until`. A longer quarantine already in force stays.
    pub fn begin_quarantine(&mut self, until: Instant, reason: QuarantineReason) {
        if self.quarantine.is_none_or(|present| present.until < until) {
            self.quarantine = Some(Quarantine { until, reason });
        }
    }

    /// Ends the quarantine, if any.
    pub fn end_quarantine(&mut self) {
        self.quarantine = None;
    }

    /// For how much longer, and why, the node grants nothing; `None` when it grants.
    pub fn quarantine(&self, now: Instant) -> Option<(Millis, QuarantineReason)> {
        let quarantine = self.quarantine?;
        let left = now.until(quarantine.until);
        if left.is_zero() { None } else { Some((left, quarantine.reason)) }
    }
}

/// The ceilings that pay for `use_of` and a block more of both.
fn next_block(use_of: Ceilings) -> Ceilings {
    Ceilings {
        fence: use_of.fence.saturating_add(FENCE_BLOCK),
        lease: use_of.lease.after(LEASE_BLOCK),
    }
}
