//! The locks of a data set in a few numbers, to tell whether the data set that was loaded is the
//! one that was saved.
//!
//! The same locks give the same sum in any order. Counters never fall, so an older data set differs
//! in a counter, or else only in leases that were released, extended or lapsed since. The sum
//! covers the exact wall-clock end of each lease, which a load keeps to the millisecond. So one
//! different lock is noticed among any number of them. A node forgets readers after the end of
//! their leases without writing that anywhere, so such readers do not count.

use super::{Lease, Lock};
use crate::engine::{Clocks, Instant, UnixTime};

/// What a state file records of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// How many locks there are, held or not.
    pub lock_count: u64,
    /// The sum of the locks' hashes, modulo 2^64.
    pub hash: u64,
    /// Only leases that end after this count: the dates of ended leases may differ.
    pub since: UnixTime,
}

impl Inventory {
    /// An inventory of no locks, with leases counted from `since`.
    pub fn new(since: UnixTime) -> Inventory {
        Inventory { since, ..Inventory::default() }
    }

    /// Whether this lease counts: `clocks` date it.
    pub fn counts(&self, lease: &Lease<'_>, clocks: Clocks) -> bool {
        clocks.to_wall(lease.ends_at) > self.since
    }

    /// Adds a lock; `hash` is that of its name, counter and holders, and `clocks` date its leases.
    pub fn add(&mut self, hash: u64, lock: &Lock, clocks: Clocks) {
        let leases = lock.written_leases().filter(|lease| self.counts(lease, clocks));
        let ends = leases.map(|lease| mix(clocks.to_wall(lease.ends_at).as_millis()));
        // The sum does not depend on the order of the readers.
        let ends = ends.fold(0, u64::wrapping_add);
        self.lock_count += 1;
        self.hash = self.hash.wrapping_add(mix(hash ^ ends));
    }
}

/// The result of a look at every lock of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// What the data set holds.
    pub inventory: Inventory,
    /// The latest end of the leases that stand.
    pub longest: Instant,
}

impl Census {
    /// A census of no locks, with leases counted from `since`.
    pub fn new(since: UnixTime) -> Census {
        Census { inventory: Inventory::new(since), longest: Instant::default() }
    }

    /// Counts a lock, as [`Inventory::add`] does.
    pub fn count(&mut self, hash: u64, lock: &Lock, clocks: Clocks) {
        self.inventory.add(hash, lock, clocks);
        if lock.is_held(clocks.now) {
            self.longest = self.longest.max(lock.until());
        }
    }
}

/// Spreads a number over 64 bits, so that sums of different numbers differ (SplitMix64's finalizer,
/// by Steele, Lea and Flood).
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Fence, Instant, Mode, Token};

    const CLOCKS: Clocks =
        Clocks { now: Instant::from_millis(1_000), wall: UnixTime::from_millis(50_000) };

    fn held(until: u64) -> Lock {
        let mut lock = Lock::default();
        let token = Token::new(b"token", 64).unwrap();
        let ends_at = Instant::from_millis(until);
        let (fence, label) = (Fence::new(1).unwrap(), &b""[..]);
        let (mode, is_provisional) = (Mode::Exclusive, false);
        lock.apply(Lease { token, fence, ends_at, label, mode, is_provisional }, CLOCKS.now);
        lock
    }

    fn inventory(locks: &[(u64, u64)]) -> Inventory {
        let mut inventory = Inventory::new(CLOCKS.wall);
        for &(hash, until) in locks {
            inventory.add(hash, &held(until), CLOCKS);
        }
        inventory
    }

    #[test]
    fn the_order_does_not_matter() {
        assert_eq!(inventory(&[(7, 1_100), (9, 5_000)]), inventory(&[(9, 5_000), (7, 1_100)]));
    }

    #[test]
    fn another_lock_another_counter_and_another_end_are_noticed() {
        let saved = inventory(&[(7, 31_000)]);
        for other in [&[][..], &[(8, 31_000)], &[(7, 31_000), (0, 0)], &[(7, 30_999)]] {
            assert_ne!(saved, inventory(other), "{other:?}");
        }
        let later = Clocks { wall: UnixTime::from_millis(50_001), ..CLOCKS };
        let mut dated_later = Inventory::new(CLOCKS.wall);
        dated_later.add(7, &held(30_999), later);
        assert_eq!(saved, dated_later, "what counts is the end outside of the process");
    }

    #[test]
    fn one_lease_that_was_extended_is_noticed_among_a_hundred_thousand() {
        // The tolerance used to grow with the number of locks: with 100 000 of them, an older data
        // set in which a lease was 8 minutes shorter passed for the saved one.
        let locks = |last: u64| -> Vec<(u64, u64)> {
            (0..100_000).map(|n| (n, if n == 99_999 { last } else { 600_000 })).collect()
        };
        assert_ne!(inventory(&locks(600_000)), inventory(&locks(599_999)));
        assert_ne!(inventory(&locks(600_000)), inventory(&locks(100_000)));
    }

    #[test]
    fn one_lease_longer_does_not_make_up_for_another_that_is_shorter() {
        assert_ne!(inventory(&[(7, 5_000), (8, 5_000)]), inventory(&[(7, 4_000), (8, 6_000)]));
    }

    #[test]
    fn a_lease_that_was_over_does_not_count() {
        assert_eq!(inventory(&[(7, 1_000)]), inventory(&[(7, 5)]));
        assert_ne!(inventory(&[(7, 1_001)]), inventory(&[(7, 5)]));
    }
}
