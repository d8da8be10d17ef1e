//! How long the leases of a master are, as it says to those who confirm its slots.
//! docs/design.md, "Slots that move", rule 11.

use crate::engine::{Instant, Millis};

/// How long the leases are that a master has granted in its reign, and that may stand. It looks at
/// times, at when its leases are over: no lease that it got since the last time is longer than
/// from then to there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnLengths {
    /// When it last looked.
    at: Option<Instant>,
    /// The longest lease from the time before the last turn, and when all of these are over; and
    /// the same since.
    earlier: (Millis, Instant),
    recent: (Millis, Instant),
}

impl OwnLengths {
    /// After a clean stop: all leases are over at `until`, and none is longer than that.
    pub(super) fn resumed(longest: Millis, until: Instant) -> OwnLengths {
        OwnLengths { earlier: (longest, until), ..OwnLengths::default() }
    }

    /// Notes that no lease of the reign ends later than this.
    pub(super) fn note(&mut self, until: Instant, now: Instant) {
        if self.earlier.1 < now {
            self.earlier = std::mem::take(&mut self.recent);
        }
        let longest = self.at.unwrap_or(now).until(until);
        self.earlier.1 = self.earlier.1.min(until);
        self.recent = (self.recent.0.max(longest), until);
        self.at = Some(now);
    }

    /// The longest lease that may stand.
    pub(super) fn longest(&self, now: Instant) -> Millis {
        let stands = [self.earlier, self.recent].into_iter().filter(|(_, until)| now <= *until);
        stands.map(|(longest, _)| longest).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn longest(own: &OwnLengths, now: u64) -> u64 {
        own.longest(at(now)).get()
    }

    /// Regression: what was left of a lease was said, long after a wait for it had begun.
    #[test]
    fn a_lease_counts_with_its_whole_length_until_it_is_over() {
        let mut own = OwnLengths::default();
        own.note(at(0), at(1_000));
        own.note(at(9_400), at(1_500));
        assert_eq!(longest(&own, 1_500), 8_400, "granted within the last half second");
        // Others follow that are shorter, and over later.
        for now in (2_000..9_400).step_by(500) {
            own.note(at(9_400.max(now + 900)), at(now));
            assert!(longest(&own, now) >= 8_400, "{now}");
        }
        for now in (9_500..30_000).step_by(500) {
            own.note(at(now + 900), at(now));
        }
        assert_eq!(longest(&own, 29_500), 1_400);
        assert_eq!(longest(&own, 31_000), 0);
    }

    #[test]
    fn what_was_given_back_or_is_over_counts_no_longer() {
        let mut own = OwnLengths::resumed(Millis::new(9_000), at(5_000));
        assert_eq!([longest(&own, 5_000), longest(&own, 5_001)], [9_000, 0]);
        own.note(at(60_000), at(1_000));
        assert_eq!(longest(&own, 1_000), 59_000, "it came with the data");
        own.note(at(1_200), at(1_500));
        assert_eq!(longest(&own, 1_500), 0, "a survey has found no lease");
    }
}
