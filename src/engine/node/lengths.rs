//! How long leases of the masters of a Cluster may stand, as each master says with its questions,
//! and as those who confirm its slots remember.
//!
//! A master that follows another one waits for the leases of that one, which may be dead. What it
//! has heard of them itself proves nothing: it may have been away. But both need a majority, and
//! the majorities share a master, which remembers what it has answered. docs/design.md, "Slots that
//! move", rule 11, has the reasons.

use super::Change;
use super::authority::with_drift;
use super::company::whole_wait;
use super::electorate::MasterName;
use super::shares::Remembered;
use crate::engine::{Instant, Millis, TTL_MAX};

/// What one master said of its leases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Said {
    name: MasterName,
    /// Tells its runs as a master apart: each knows its own leases only.
    reign: u64,
    /// The number of its question.
    number: u64,
    longest: Millis,
    /// Up to when such a lease may stand.
    until: Instant,
}

/// What all masters said, this one included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lengths {
    said: Vec<Said>,
    /// What the state file has as [`Saved::confirmed_longest`](super::Saved::confirmed_longest).
    saved: Millis,
}

impl Lengths {
    /// What a node remembers after a start, if its state file has this.
    pub fn restored(itself: &[u8], saved: Millis, now: Instant) -> Lengths {
        let mut lengths = Lengths { saved, ..Lengths::default() };
        if !saved.is_zero() {
            lengths.hear(itself, (0, now.as_millis()), saved, now);
        }
        lengths
    }

    /// Notes what a master says with the question of this number. It knows all leases of its reign,
    /// so what it said before counts no longer. No length is more than [`TTL_MAX`].
    pub fn hear(
        &mut self,
        name: &[u8],
        (reign, number): (u64, u64),
        longest: Millis,
        now: Instant,
    ) {
        let longest = longest.min(TTL_MAX);
        let (name, until) = (name.to_vec(), now.after(whole_wait(longest)));
        self.take(Said { name, reign, number, longest, until }, now);
    }

    fn take(&mut self, new: Said, now: Instant) {
        let is_of_it = |said: &Said| said.name == new.name && said.reign == new.reign;
        if self.said.iter().any(|said| is_of_it(said) && new.number < said.number) {
            return;
        }
        self.said.retain(|said| !is_of_it(said) && now <= said.until);
        self.said.push(new);
    }

    /// What to tell others, if they may count by another electorate from now on.
    pub(super) fn tell(&self, is_to_tell: bool, now: Instant) -> Vec<Remembered> {
        let stands = self.said.iter().filter(|said| is_to_tell && now <= said.until);
        let tell = |Said { name, reign, number, longest, until }: &Said| {
            let (master, left) = (name.clone(), now.until(*until));
            Remembered { master, reign: *reign, number: *number, longest: *longest, left }
        };
        stands.map(tell).collect()
    }

    /// Takes what another one remembers. What this one knows of the same question counts.
    pub(super) fn learn(&mut self, told: &[Remembered], now: Instant) {
        for one in told {
            let is_known = |said: &Said| {
                said.name == one.master && said.reign == one.reign && one.number <= said.number
            };
            if !self.said.iter().any(is_known) {
                let longest = one.longest.min(TTL_MAX);
                let until = now.after(with_drift(one.left.min(whole_wait(longest))));
                let (name, reign, number) = (one.master.clone(), one.reign, one.number);
                self.take(Said { name, reign, number, longest, until }, now);
            }
        }
    }

    /// The longest lease that may stand.
    pub fn longest(&self, now: Instant) -> Millis {
        self.longest_of(now, |_| true)
    }

    /// The longest lease that may stand of others than this reign of a master.
    pub fn longest_besides(&self, name: &[u8], reign: u64, now: Instant) -> Millis {
        self.longest_of(now, |said| said.name != name || said.reign != reign)
    }

    fn longest_of(&self, now: Instant, counts: impl Fn(&Said) -> bool) -> Millis {
        let stands = self.said.iter().filter(|said| now <= said.until && counts(said));
        stands.map(|said| said.longest).max().unwrap_or_default()
    }

    /// The same at a time that is this much earlier. For a model whose clock stands still.
    pub fn rebased(&self, by: Millis, now: Instant) -> Lengths {
        let mut rebased = self.clone();
        rebased.said.iter_mut().for_each(|said| said.until = said.until.before(by));
        rebased.said.retain(|said| now <= said.until);
        rebased
    }

    /// What the state file must have. It has less only when it would have half, so that it is not
    /// written each time a lease of a former setting is nearer to its end.
    pub fn news(&mut self, now: Instant) -> Option<Change> {
        let longest = self.longest(now);
        let is_news = self.saved < longest || longest.get() <= self.saved.get() / 2;
        (is_news && self.saved != longest).then(|| {
            self.saved = longest;
            Change::ConfirmedLongest(longest)
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

    #[test]
    fn the_last_word_of_a_reign_counts_and_that_of_an_earlier_one_until_it_is_over() {
        let mut lengths = Lengths::default();
        lengths.hear(b"aa", (1, 5), length(60_000), at(100));
        assert_eq!(lengths.longest(at(100)), length(60_000));
        lengths.hear(b"aa", (1, 7), length(1_000), at(200));
        assert_eq!(lengths.longest(at(200)), length(1_000), "it has granted none that is longer");
        lengths.hear(b"aa", (1, 6), length(60_000), at(300));
        assert_eq!(lengths.longest(at(300)), length(1_000), "an older question");
        lengths.hear(b"aa", (8, 8), length(500), at(900));
        assert_eq!(lengths.longest(at(900)), length(1_000), "its next reign does not know them");
        assert_eq!(lengths.longest_besides(b"aa", 1, at(900)), length(500));
        let over = 200 + whole_wait(length(1_000)).get();
        assert_eq!(lengths.longest(at(over)), length(1_000));
        assert_eq!(lengths.longest(at(over + 1)), length(500));
        assert_eq!(lengths.longest(at(1_000_000)), Millis::ZERO, "it is gone");
    }

    /// Those who count by another electorate may share no master with who heard a lease's length.
    #[test]
    fn what_is_remembered_is_passed_on_and_ends_no_later_there() {
        let (mut one, mut other) = (Lengths::default(), Lengths::default());
        one.hear(b"aa", (1, 5), length(9_000), at(100));
        let told = one.tell(true, at(1_100));
        let over = 100 + whole_wait(length(9_000)).get();
        assert_eq!(told[0].left, length(over - 1_100));
        other.learn(&told, at(1_100));
        let until = 1_100 + with_drift(told[0].left).get();
        assert_eq!(other.longest(at(until)), length(9_000));
        assert_eq!(other.longest(at(until + 1)), Millis::ZERO);
        one.learn(&other.tell(true, at(5_000)), at(5_000));
        assert_eq!(one.longest(at(over + 1)), Millis::ZERO, "it knows better");
        other.hear(b"aa", (1, 6), length(700), at(6_000));
        other.learn(&told, at(6_000));
        assert_eq!(other.longest(at(6_000)), length(700), "the master has said less since");
    }

    #[test]
    fn a_start_remembers_the_longest_from_its_file_and_the_file_is_not_written_for_little() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.news(at(0)), None);
        let hear = |lengths: &mut Lengths, number, longest| {
            lengths.hear(b"aa", (1, number), length(longest), at(number));
            lengths.news(at(number))
        };
        assert_eq!(hear(&mut lengths, 1, 9_000), Some(Change::ConfirmedLongest(length(9_000))));
        assert_eq!(hear(&mut lengths, 2, 9_000), None);
        assert_eq!(hear(&mut lengths, 3, 4_501), None, "little less");
        assert_eq!(hear(&mut lengths, 4, 4_500), Some(Change::ConfirmedLongest(length(4_500))));
        assert_eq!(hear(&mut lengths, 5, 4_501), Some(Change::ConfirmedLongest(length(4_501))));
        let mut started = Lengths::restored(b"bb", length(4_501), at(100));
        assert_eq!((started.longest(at(9_000)), started.news(at(9_000))), (length(4_501), None));
        assert_eq!(started.news(at(10_000)), Some(Change::ConfirmedLongest(Millis::ZERO)));
    }
}
