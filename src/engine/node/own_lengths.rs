//! How long the leases of a master are, as it says to those who confirm its slots.
//! docs/design.md, "Slots that move", rule 11.

use crate::engine::{Instant, Millis};

/// How long the leases are that a master has granted in its reign, and that may stand. It looks at
/// times: no lease that it has granted since the last time is longer than its settings, or than
/// from then to when all leases are over. A lease that came from elsewhere counts from the look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnLengths {
    /// When it last looked, and what its settings allowed.
    at: Option<(Instant, Millis)>,
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
    pub(super) fn note(&mut self, until: Instant, (now, max_ttl): (Instant, Millis)) {
        if self.earlier.1 < now {
            self.earlier = std::mem::take(&mut self.recent);
        }
        let (at, allowed) = self.at.unwrap_or((now, max_ttl));
        let granted = at.until(until).min(allowed.max(max_ttl));
        self.earlier.1 = self.earlier.1.min(until);
        self.recent = (self.recent.0.max(granted).max(now.until(until)), until);
        self.at = Some((now, max_ttl));
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
        let [long, short] = [Millis::new(8_000), Millis::new(900)];
        own.note(at(0), (at(1_000), long));
        own.note(at(9_400), (at(1_500), short));
        assert_eq!(longest(&own, 1_500), 8_000, "granted a moment ago, before it was lowered");
        // Others follow that are shorter, and over later.
        for now in (2_000..9_400).step_by(500) {
            own.note(at(9_400.max(now + 800)), (at(now), short));
            assert_eq!(longest(&own, now), 8_000, "{now}");
        }
        for now in (9_500..30_000).step_by(500) {
            own.note(at(now + 800), (at(now), short));
        }
        assert_eq!([longest(&own, 29_500), longest(&own, 31_000)], [900, 0]);
    }

    /// Otherwise most would have to be told at each question.
    #[test]
    fn renewals_make_it_no_longer_than_the_settings() {
        let (mut own, allowed) = (OwnLengths::default(), Millis::new(900));
        for now in (1_000..9_000).step_by(130) {
            own.note(at(now + 700 + now % 200), (at(now), allowed));
            assert!(longest(&own, now) <= 900, "{now}");
        }
    }

    /// Regression: a setting that was raised and lowered again between two looks.
    #[test]
    fn a_lease_counts_that_was_allowed_between_two_looks() {
        let mut own = OwnLengths::default();
        let [long, short] = [Millis::new(8_000), Millis::new(900)];
        own.note(at(1_500), (at(1_000), short));
        own.note(at(1_500), (at(1_100), long));
        // Granted at 1 200.
        own.note(at(9_200), (at(1_300), short));
        assert_eq!(longest(&own, 9_200), 8_000);
    }

    #[test]
    fn what_was_given_back_or_is_over_counts_no_longer() {
        let (mut own, short) = (OwnLengths::resumed(Millis::new(9_000), at(5_000)), Millis::ZERO);
        assert_eq!([longest(&own, 5_000), longest(&own, 5_001)], [9_000, 0]);
        own.note(at(60_000), (at(1_000), short));
        assert_eq!(longest(&own, 1_000), 59_000, "it came with the data");
        own.note(at(1_200), (at(1_500), short));
        assert_eq!(longest(&own, 1_500), 0, "a survey has found no lease");
    }
}
