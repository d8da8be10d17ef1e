//! How long a holder may rely on its lease: validity = ttl - elapsed - drift.
//!
//! Every rounding goes against the holder: a start is rounded down, "now" is rounded up, and the
//! subtraction saturates, so that a lease that has ended never looks held for ages.

use super::{Instant, Millis};

/// The constant part of the default drift allowance: one millisecond for the granularity of each
/// of the two clocks.
pub const DRIFT_MIN: Millis = Millis::new(2);
/// The default drift allowance is the ttl divided by this: clocks may differ by 1 % in rate.
pub const DRIFT_DIVISOR: u64 = 100;

/// The ttl that the nodes are asked for, and the allowance for clocks that run at different rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Terms {
    /// The requested length of the lease.
    pub ttl: Millis,
    /// The allowance for clock rates.
    pub drift: Millis,
}

impl Terms {
    /// Terms with the default drift allowance: 1 % of `ttl`, rounded up, and 2 ms.
    pub const fn new(ttl: Millis) -> Terms {
        let share = Millis::new(ttl.get().div_ceil(DRIFT_DIVISOR));
        Terms { ttl, drift: share.saturating_add(DRIFT_MIN) }
    }

    /// The instant from which a lease requested at `started_at` may no longer be relied on.
    ///
    /// `started_at` is read before the first byte is sent. A node starts the lease later than that,
    /// so the lease at the node ends later than this instant.
    pub const fn ends_at(self, started_at: Instant) -> Instant {
        started_at.after(self.ttl.saturating_sub(self.drift))
    }

    /// The validity left at `now` of a lease requested at `started_at`.
    pub const fn validity(self, started_at: Instant, now: Instant) -> Millis {
        now.until(self.ends_at(started_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_is_the_ttl_less_time_used_and_drift() {
        let terms = Terms::new(Millis::new(1_000));
        assert_eq!(terms.drift, Millis::new(12));
        let started_at = Instant::from_millis(5_000);
        assert_eq!(terms.validity(started_at, Instant::from_millis(5_100)), Millis::new(888));
        assert_eq!(terms.validity(started_at, Instant::from_millis(5_988)), Millis::ZERO);
    }

    #[test]
    fn a_lease_that_has_ended_stays_ended() {
        let terms = Terms::new(Millis::new(10));
        assert_eq!(terms.drift, Millis::new(3));
        let started_at = Instant::from_millis(5_000);
        for late in [7, 8, 1_000, u64::MAX - 5_000] {
            let now = Instant::from_millis(5_000 + late);
            assert_eq!(terms.validity(started_at, now), Millis::ZERO, "after {late} ms");
        }
        let tiny = Terms::new(Millis::new(2));
        assert_eq!(tiny.validity(started_at, started_at), Millis::ZERO, "drift exceeds the ttl");
    }
}
