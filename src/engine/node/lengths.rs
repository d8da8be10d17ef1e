//! How long leases of the masters of a Cluster may be, as each master says with its questions, and
//! as those who confirm its slots remember.
//!
//! A master that follows another one waits for the leases of that one, which may be dead. What it
//! has heard of them itself proves nothing: it may have been away. But both need a majority, and
//! the majorities share a master, which remembers what it has answered. docs/design.md, "Slots that
//! move", rule 11, has the reasons.

use std::cmp::Reverse;

use super::Change;
use super::company::whole_wait;
use super::shares::LeaseLength;
use crate::engine::{Instant, Millis, TTL_MAX};

/// How many lengths are kept apart.
const KNOWN_MAX: usize = 8;

/// What is left of a length may be this much longer, because all times are whole milliseconds.
const ROUNDED: Millis = Millis::new(1);

/// A length, and when all such leases are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KnownLength {
    longest: Millis,
    until: Instant,
}

impl KnownLength {
    /// What is said now.
    fn new(longest: Millis, now: Instant) -> KnownLength {
        let longest = longest.min(TTL_MAX);
        KnownLength { longest, until: now.after(whole_wait(longest)) }
    }

    /// Whether by the other one, leases are as long, and stand as long.
    fn is_within(&self, other: &KnownLength) -> bool {
        self.longest <= other.longest && self.until <= other.until
    }
}

/// What all masters said, this one included. Nothing takes a length back before it is over, and it
/// does not matter who said it. None is within another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lengths {
    known: Vec<KnownLength>,
    /// What the state file has as [`ClusterMemory::lengths`](super::ClusterMemory::lengths): the
    /// longest.
    saved: Millis,
}

impl Lengths {
    /// What a node remembers after its start, if its state file has this. If it is not known up to
    /// when a lease may stand, its length counts anew for the whole of it.
    pub fn restored(saved: Vec<(Millis, Option<Instant>)>, now: Instant) -> Lengths {
        let mut lengths = Lengths::default();
        for (longest, until) in saved {
            let anew = KnownLength::new(longest, now);
            let until = until.map_or(anew.until, |until| anew.until.min(until));
            // It may be an instant of another clock: nothing is over yet.
            lengths.add(KnownLength { until, ..anew });
            lengths.saved = lengths.saved.max(anew.longest);
        }
        lengths
    }

    /// Forgets up to when leases may stand: it was said in another boot, by another clock.
    pub(super) fn count_anew(&mut self, now: Instant) {
        for known in std::mem::take(&mut self.known) {
            self.add(KnownLength::new(known.longest, now));
        }
    }

    /// What the state file must have after a clean stop.
    pub(super) fn at_stop(&self, now: Instant) -> Vec<(Millis, Option<Instant>)> {
        self.standing(now).map(|known| (known.longest, Some(known.until))).collect()
    }

    fn standing(&self, now: Instant) -> impl Iterator<Item = &KnownLength> {
        self.known.iter().filter(move |known| now <= known.until)
    }

    /// Notes what a master says with a question. No length is more than [`TTL_MAX`].
    pub fn hear(&mut self, longest: Millis, now: Instant) {
        self.take(KnownLength::new(longest, now), now);
    }

    /// Takes one, and forgets those that are over.
    fn take(&mut self, new: KnownLength, now: Instant) {
        self.known.retain(|known| now <= known.until);
        self.add(new);
    }

    /// Adds one, unless it makes no difference.
    fn add(&mut self, new: KnownLength) {
        if self.known.iter().any(|known| new.is_within(known)) {
            return;
        }
        self.known.retain(|known| !known.is_within(&new));
        self.known.push(new);
        // Whatever is longer is over earlier.
        self.known.sort_unstable_by_key(|known| known.until);
        if self.known.len() > KNOWN_MAX {
            // Otherwise the longest would be prolonged again and again. Of several, the shortest.
            let prolongs = |place: &usize| {
                let [one, next] = [place, &(place + 1)].map(|place| self.known[*place].until);
                (one.until(next), Reverse(*place))
            };
            let place = (0..KNOWN_MAX).min_by_key(prolongs).unwrap_or_default();
            let longer = self.known.remove(place);
            self.known[place].longest = longer.longest;
        }
    }

    /// What to tell others.
    pub(super) fn tell(&self, now: Instant) -> Vec<LeaseLength> {
        let tell = |known: &KnownLength| {
            let KnownLength { longest, until } = *known;
            LeaseLength { longest, left: now.until(until) }
        };
        self.standing(now).map(tell).collect()
    }

    /// Takes what another one remembers. The time in which it was on its way prolongs it. Nothing
    /// is added for the clocks: who heard it first has done so, and all have the same rate but for
    /// that.
    pub(super) fn learn(&mut self, told: &[LeaseLength], now: Instant) {
        for LeaseLength { longest, left } in told {
            let mut new = KnownLength::new(*longest, now);
            new.until = new.until.min(now.after(left.saturating_add(ROUNDED)));
            self.take(new, now);
        }
    }

    /// The longest lease that may stand.
    pub fn longest(&self, now: Instant) -> Millis {
        self.standing(now).map(|known| known.longest).max().unwrap_or_default()
    }

    /// The same at a time that is this much earlier. For a model whose clock stands still.
    pub fn rebased(&self, by: Millis, now: Instant) -> Lengths {
        let mut rebased = self.clone();
        rebased.known.iter_mut().for_each(|known| known.until = known.until.before(by));
        rebased.known.retain(|known| now <= known.until);
        rebased
    }

    /// What the state file must have. It has less only when that is half or less, so that it is not
    /// written for each lease.
    pub fn news(&mut self, now: Instant) -> Option<Change> {
        let longest = self.longest(now);
        let is_less = longest < self.saved && longest.get() <= self.saved.get() / 2;
        (self.saved < longest || is_less).then(|| {
            self.saved = longest;
            Change::Lengths(longest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn length(millis: u64) -> Millis {
        Millis::new(millis)
    }

    /// Where a length that is said at 0 is known for the last time.
    fn end(longest: u64) -> u64 {
        whole_wait(length(longest)).get()
    }

    fn says(lengths: &mut Lengths, longest: u64, now: u64) {
        lengths.hear(length(longest), at(now));
    }

    fn longest(lengths: &Lengths, now: u64) -> u64 {
        lengths.longest(at(now)).get()
    }

    #[test]
    fn a_length_counts_until_it_is_over_whatever_is_said_later() {
        let mut lengths = Lengths::default();
        says(&mut lengths, 60_000, 100);
        says(&mut lengths, 1_000, 200);
        assert_eq!(longest(&lengths, 200), 60_000);
        says(&mut lengths, 1_000, 60_000);
        assert_eq!(longest(&lengths, 100 + end(60_000)), 60_000);
        assert_eq!(longest(&lengths, 101 + end(60_000)), 1_000);
        assert_eq!(longest(&lengths, 1_000_000), 0);
    }

    #[test]
    fn a_length_within_another_one_is_dropped() {
        let mut lengths = Lengths::default();
        for (longest, now) in [(60_000, 0), (60_000, 500), (1_000, 700)] {
            says(&mut lengths, longest, now);
        }
        assert_eq!(lengths.tell(at(700)).len(), 1, "{lengths:?}");
        says(&mut lengths, 30_000, 40_000);
        assert_eq!(lengths.tell(at(40_000)).len(), 2, "it is over later: {lengths:?}");
    }

    #[test]
    fn what_is_passed_on_ends_no_earlier() {
        let [mut one, mut other] = [Lengths::default(), Lengths::default()];
        says(&mut one, 60_000, 0);
        other.learn(&one.tell(at(0)), at(900));
        let over = 900 + end(60_000);
        assert_eq!([over, over + 1].map(|now| longest(&other, now)), [60_000, 0]);
        let [mut one, mut other] = [Lengths::default(), Lengths::default()];
        says(&mut one, 60_000, 0);
        other.learn(&one.tell(at(50_000)), at(50_100));
        let over = 100 + end(60_000) + ROUNDED.get();
        assert_eq!([over, over + 1].map(|now| longest(&other, now)), [60_000, 0]);
    }

    /// Regression: each node took it for known by its number, although it had dropped another one
    /// that was within it only here, because it was read late.
    #[test]
    fn what_was_dropped_for_another_is_told_with_it() {
        let [mut one, mut late, mut voter] = [(); 3].map(|()| Lengths::default());
        says(&mut one, 60_000, 0);
        let told = one.tell(at(0));
        voter.learn(&told, at(0));
        late.learn(&told, at(14_000));
        says(&mut late, 25_000, 49_000);
        voter.learn(&late.tell(at(49_000)), at(49_000));
        assert!(longest(&voter, 49_000 + end(25_000)) >= 25_000);
    }

    #[test]
    fn nothing_that_others_tell_stands_longer_than_if_it_were_said_now() {
        let mut lengths = Lengths::default();
        let told = LeaseLength { longest: Millis::new(u64::MAX), left: Millis::new(u64::MAX) };
        lengths.learn(&[told], at(0));
        assert_eq!(lengths.longest(at(0)), TTL_MAX);
        let over = whole_wait(TTL_MAX).get();
        assert_eq!([over, over + 1].map(|now| longest(&lengths, now)), [TTL_MAX.get(), 0]);
    }

    #[test]
    fn of_too_many_none_ends_earlier_or_is_shorter() {
        let mut lengths = Lengths::default();
        let said: Vec<(u64, u64)> =
            (0..40).map(|step| (200_000 - 4_000 * step, 1 + step)).collect();
        for &(longest, now) in &said {
            says(&mut lengths, longest, now);
        }
        // A longer one that is over earlier.
        lengths.learn(&[LeaseLength { longest: length(300_000), left: length(20) }], at(40));
        assert!(lengths.tell(at(40)).len() <= KNOWN_MAX, "{lengths:?}");
        assert_eq!(longest(&lengths, 60), 300_000);
        for (length, now) in said {
            assert!(longest(&lengths, now + end(length)) >= length, "{length}: {lengths:?}");
        }
    }

    /// Regression: of settings that fell again and again, each prolonged the longest one.
    #[test]
    fn many_lengths_do_not_prolong_the_longest() {
        let mut lengths = Lengths::default();
        says(&mut lengths, 40_000, 0);
        for now in 1..80 {
            says(&mut lengths, 12_000 - now % 12 * 10, now * 1_000);
        }
        assert!(longest(&lengths, 80_000) <= 12_000, "{lengths:?}");
    }

    #[test]
    fn a_start_counts_each_length_anew_unless_it_knows_the_end() {
        let saved = vec![(length(60_000), None), (length(2_000), Some(at(900)))];
        let restored = Lengths::restored(saved, at(100));
        assert_eq!(longest(&restored, 100 + end(60_000)), 60_000);
        assert_eq!(longest(&restored, 101 + end(60_000)), 0);
        let mut stopped = Lengths::default();
        says(&mut stopped, 60_000, 0);
        says(&mut stopped, 1_000, 70_000);
        let mut again = Lengths::restored(stopped.at_stop(at(70_500)), at(70_500));
        assert_eq!(again.longest(at(70_500)), stopped.longest(at(70_500)));
        again.count_anew(at(70_500));
        assert_eq!(longest(&again, 70_500 + end(1_000)), 1_000, "by another clock");
        // Regression: by that, all were over long ago.
        let saved = vec![(length(60_000), Some(at(100))), (length(2_000), Some(at(900)))];
        let mut moved = Lengths::restored(saved, at(1_000_000));
        moved.count_anew(at(1_000_000));
        assert_eq!(longest(&moved, 1_000_000 + end(60_000)), 60_000);
    }

    #[test]
    fn the_file_has_the_longest_and_half_of_it_before_it_is_written_again() {
        let mut lengths = Lengths::default();
        let news = |lengths: &mut Lengths, now| lengths.news(at(now));
        assert_eq!(news(&mut lengths, 0), None);
        says(&mut lengths, 8_000, 0);
        assert_eq!(news(&mut lengths, 0), Some(Change::Lengths(length(8_000))));
        says(&mut lengths, 5_000, 1);
        let over = end(8_000) + 1;
        says(&mut lengths, 5_000, over);
        assert_eq!(news(&mut lengths, over), None, "more than half");
        says(&mut lengths, 9_000, over);
        assert_eq!(news(&mut lengths, over), Some(Change::Lengths(length(9_000))));
        assert_eq!(news(&mut lengths, 1_000_000), Some(Change::Lengths(Millis::ZERO)));
        assert_eq!(news(&mut lengths, 1_000_001), None);
        let mut restored = Lengths::restored(vec![(length(9_000), None)], at(0));
        assert_eq!(news(&mut restored, 0), None, "it is there");
    }
}
