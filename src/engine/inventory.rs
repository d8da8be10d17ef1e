//! The locks of a data set, summed up in a few numbers: is what was loaded what was saved?
//!
//! The one idea: the same locks give the same sum, in whatever order they are looked at. Counters
//! never fall, so an older data set differs in a counter, or else only in leases that were given
//! back, extended or lapsed since; those are summed up by what they promise.

use super::{Clocks, Lock, Millis, UnixTime};

/// How far two readings of both clocks may date the same lease apart, by their rounding.
const ROUNDING: Millis = Millis::new(5);
/// A wall clock that is slewed gains or loses at most a millisecond in this many.
const SLEW: u64 = 2_000;

/// What a data set holds, as far as a state file can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// How many locks there are, held or not.
    pub lock_count: u64,
    /// The sum of the locks' hashes, modulo 2^64.
    pub hash: u64,
    /// Leases count from here.
    pub since: UnixTime,
    /// How long the leases last that stand then, in milliseconds, all together.
    pub lease_ms: u64,
}

impl Inventory {
    /// An inventory of no locks, with leases counted from `since`.
    pub fn new(since: UnixTime) -> Inventory {
        Inventory { since, ..Inventory::default() }
    }

    /// Adds a lock whose name, counter and holder have this `hash`. The end of its lease is no part
    /// of that: it is dated by `clocks`, which may be a little off.
    pub fn add(&mut self, hash: u64, lock: &Lock, clocks: Clocks) {
        self.lock_count += 1;
        self.hash = self.hash.wrapping_add(hash);
        let ends_at =
            lock.written_lease().map_or(UnixTime::default(), |lease| clocks.to_wall(lease.ends_at));
        let left = ends_at.as_millis().saturating_sub(self.since.as_millis());
        self.lease_ms = self.lease_ms.saturating_add(left);
    }

    /// Whether `other`, counted from the same time but `later`, is of the same data set.
    pub fn is_of_same(self, other: Inventory, later: Millis) -> bool {
        let counted =
            |inventory: Inventory| (inventory.lock_count, inventory.hash, inventory.since);
        let apart = ROUNDING.get() + later.get() / SLEW;
        counted(self) == counted(other)
            && self.lease_ms.abs_diff(other.lease_ms) <= apart.saturating_mul(self.lock_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Fence, Instant, Lease, Token};

    const CLOCKS: Clocks =
        Clocks { now: Instant::from_millis(1_000), wall: UnixTime::from_millis(50_000) };

    fn held(until: u64) -> Lock {
        let mut lock = Lock::default();
        let token = Token::new(b"token", 64).unwrap();
        let ends_at = Instant::from_millis(until);
        lock.apply(Lease { token, fence: Fence::new(1).unwrap(), ends_at, label: b"" }, CLOCKS.now);
        lock
    }

    const SOON: Millis = Millis::new(100);

    fn inventory(locks: &[(u64, u64)]) -> Inventory {
        let mut inventory = Inventory::new(CLOCKS.wall);
        for &(hash, until) in locks {
            inventory.add(hash, &held(until), CLOCKS);
        }
        inventory
    }

    #[test]
    fn the_order_does_not_matter() {
        let (one, other) =
            (inventory(&[(7, 1_100), (9, 5_000)]), inventory(&[(9, 5_000), (7, 1_100)]));
        assert!(one.is_of_same(other, SOON));
        assert_eq!(one.lease_ms, 100 + 4_000);
    }

    #[test]
    fn another_lock_another_counter_and_another_end_are_noticed() {
        let saved = inventory(&[(7, 31_000)]);
        assert!(saved.is_of_same(inventory(&[(7, 30_997)]), SOON), "dated by another reading");
        assert!(!saved.is_of_same(inventory(&[]), SOON));
        assert!(!saved.is_of_same(inventory(&[(8, 31_000)]), SOON));
        assert!(!saved.is_of_same(inventory(&[(7, 31_000), (0, 0)]), SOON));
        assert!(!saved.is_of_same(inventory(&[(7, 21_000)]), SOON), "extended since");
        let slewed = inventory(&[(7, 29_300)]);
        assert!(
            !saved.is_of_same(slewed, SOON) && saved.is_of_same(slewed, Millis::new(3_600_000))
        );
    }

    #[test]
    fn a_lease_that_was_over_does_not_count() {
        assert!(inventory(&[(7, 1_000)]).is_of_same(inventory(&[(7, 5)]), SOON));
    }
}
