//! How long leases of the masters of a Cluster may stand, as each master says with its questions,
//! and as those who confirm its slots remember.
//!
//! A master that follows another one waits for the leases of that one, which may be dead. What it
//! has heard of them itself proves nothing: it may have been away. But both need a majority, and
//! the majorities share a master, which remembers what it has answered. docs/design.md, "Slots that
//! move", rule 11, has the reasons.

use std::collections::BTreeSet;

use super::Change;
use super::authority::with_drift;
use super::company::whole_wait;
use super::electorate::hash_of;
use super::shares::{Remembered, Said};
use crate::engine::{Instant, Millis, TTL_MAX};

/// What a master has said, and up to when such a lease may stand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Word {
    said: Said,
    until: Instant,
    /// It came from the state file. All questions since the start are later.
    is_read: bool,
}

/// No question of a master has this bit in its number. With it, the number is not that of the last
/// question that said so: that is not known after a crash. It is that of the start instead.
const UNKNOWN: u64 = 1 << 63;

impl Word {
    /// What a master says now.
    fn new(said: Said, now: Instant) -> Word {
        let longest = said.longest.min(TTL_MAX);
        let until = now.after(whole_wait(longest));
        Word { said: Said { longest, ..said }, until, is_read: false }
    }

    fn is_exact(&self) -> bool {
        self.said.number & UNKNOWN == 0
    }

    /// Whether by the other one, leases are as long, and stand as long.
    fn is_within(&self, other: &Word) -> bool {
        self.said.longest <= other.said.longest && self.until <= other.until
    }

    /// Whether the other is of the same master, and no lease is longer or stands longer by it. Of
    /// two that say the same, one does not count for this.
    fn covers(&self, other: &Word) -> bool {
        let is_other = !self.is_within(other) || self.said.reign > other.said.reign;
        self.said.master == other.said.master && other.is_within(self) && is_other
    }
}

/// What all masters said, this one included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lengths {
    known: Vec<Word>,
    /// What the state file has as [`ClusterMemory::lengths`](super::ClusterMemory::lengths).
    saved: Vec<Said>,
    /// The number of what it has read, and may have told others since.
    read: Option<u64>,
}

impl Lengths {
    /// What a node remembers after its start, if its state file has this. `itself` is its name, and
    /// `start` a number that no other start of it has, and the time. If it is not known up to when
    /// a lease may stand, its length counts anew for the whole of it.
    pub fn restored(
        saved: Vec<(Said, Option<Instant>)>,
        itself: &[u8],
        (start, now): (u64, Instant),
    ) -> Lengths {
        // Two servers of one machine may start in the same millisecond.
        let start = UNKNOWN | hash_of(&(itself, start));
        let read = |(said, until): (Said, Option<Instant>)| {
            let number = if until.is_some() { said.number } else { start };
            let mut word = Word { is_read: true, ..Word::new(Said { number, ..said }, now) };
            word.until = until.map_or(word.until, |until| word.until.min(until));
            word
        };
        let known: Vec<Word> = saved.into_iter().map(read).collect();
        let saved = known.iter().map(|known| known.said.clone()).collect();
        Lengths { known, saved, read: Some(start) }
    }

    /// Forgets up to when leases may stand: it was said in another boot, by another clock.
    pub(super) fn count_anew(&mut self, now: Instant) {
        let anew = |known: &Word| Word { is_read: true, ..Word::new(known.said.clone(), now) };
        self.known.iter_mut().for_each(|known| *known = anew(known));
    }

    /// What the state file must have after a clean stop.
    pub(super) fn at_stop(&self) -> Vec<(Said, Option<Instant>)> {
        self.known.iter().map(|known| (known.said.clone(), Some(known.until))).collect()
    }

    /// Notes what a master says with a question. It knows all leases of its reign, so what it said
    /// before counts no longer. No length is more than [`TTL_MAX`].
    pub fn hear(&mut self, said: Said, now: Instant) {
        let is_of_it = |known: &Word| known.said.is_of_reign_of(&said);
        let is_later =
            |known: &Word| !known.is_read && known.is_exact() && said.number < known.said.number;
        if self.known.iter().any(|known| is_of_it(known) && is_later(known)) {
            return;
        }
        self.known.retain(|known| !is_of_it(known) || !known.is_read && !known.is_exact());
        self.take(Word::new(said, now), now);
    }

    /// Adds a word, unless others of this reign say as much. Words with and without the number of a
    /// question, and those that were read, end in different ways, so none is in another's place.
    fn take(&mut self, new: Word, now: Instant) {
        let is_like = |known: &Word| {
            let is_of_it = known.said.is_of_reign_of(&new.said);
            is_of_it && !known.is_read && known.is_exact() == new.is_exact()
        };
        if self.known.iter().any(|known| is_like(known) && new.is_within(known)) {
            return;
        }
        let gives_way = |known: &Word| is_like(known) && known.is_within(&new);
        self.known.retain(|known| now <= known.until && !gives_way(known));
        let is_of_master = |known: &Word| known.said.master == new.said.master;
        if self.known.iter().any(is_of_master) {
            // Not those of another master: the word of its present reign would go, and come back
            // with its next question.
            let before = self.clone();
            self.known.retain(|known| !is_of_master(known) || !before.covers(known));
        }
        self.known.push(new);
    }

    /// Whether it makes no difference: two other reigns of this master say as much, and one of them
    /// is not its present one. So a master that starts often needs no more memory.
    fn covers(&self, one: &Word) -> bool {
        let covering = self.known.iter().filter(|known| known.covers(one));
        let reigns: BTreeSet<u64> = covering.map(|known| known.said.reign).collect();
        reigns.into_iter().filter(|reign| *reign != one.said.reign).count() > 1
    }

    /// What to tell others.
    pub(super) fn tell(&self, now: Instant) -> Vec<Remembered> {
        let stands = self.known.iter().filter(|known| now <= known.until);
        let tell =
            |known: &Word| Remembered { said: known.said.clone(), left: now.until(known.until) };
        stands.map(tell).collect()
    }

    /// Takes what another one remembers. What this one knows of the same question counts, or of a
    /// later one; of what was read at one start, where all words of a reign have one number, what
    /// is as long. What it knows of an earlier one stays if it says more, because only the master
    /// itself says less: who tells it may have dropped a word for one that others lower.
    pub(super) fn learn(&mut self, told: &[Remembered], now: Instant) {
        for Remembered { said, left } in told {
            let mut new = Word::new(said.clone(), now);
            new.until = new.until.min(now.after(with_drift(*left)));
            let is_known = |known: &Word| {
                let is_later = known.is_exact() && said.number < known.said.number;
                let is_same =
                    said.number == known.said.number && said.longest <= known.said.longest;
                known.said.is_of_reign_of(said) && (is_later || is_same)
            };
            let is_own = self.read == Some(said.number);
            if !is_own && !self.known.iter().any(is_known) && !self.covers(&new) {
                self.take(new, now);
            }
        }
    }

    /// The longest lease that may stand.
    pub fn longest(&self, now: Instant) -> Millis {
        self.longest_of(now, |_| true)
    }

    /// The longest lease that may stand of others than this reign of a master.
    pub fn longest_besides(&self, name: &[u8], reign: u64, now: Instant) -> Millis {
        self.longest_of(now, |said| said.master != name || said.reign != reign)
    }

    /// The longest lease that may stand of any reign of a master.
    pub(super) fn longest_of_master(&self, name: &[u8], now: Instant) -> Millis {
        self.longest_of(now, |said| said.master == name)
    }

    fn longest_of(&self, now: Instant, counts: impl Fn(&Said) -> bool) -> Millis {
        let stands = self.known.iter().filter(|known| now <= known.until && counts(&known.said));
        stands.map(|known| known.said.longest).max().unwrap_or_default()
    }

    /// The same at a time that is this much earlier. For a model whose clock stands still.
    pub fn rebased(&self, by: Millis, now: Instant) -> Lengths {
        let mut rebased = self.clone();
        rebased.known.iter_mut().for_each(|known| known.until = known.until.before(by));
        rebased.known.retain(|known| now <= known.until);
        rebased
    }

    /// What the state file must have. It has less of a reign only when it would have half, so that
    /// it is not written each time a lease of a former setting is nearer to its end.
    pub fn news(&mut self, now: Instant) -> Option<Change> {
        let stands: Vec<&Said> = self
            .known
            .iter()
            .filter(|known| now <= known.until && !known.said.longest.is_zero())
            .map(|known| &known.said)
            .collect();
        let of_reign = |all: &[&Said], one: &Said| {
            let of_it = all.iter().filter(|said| said.is_of_reign_of(one));
            of_it.map(|said| said.longest).max().unwrap_or_default()
        };
        let saved: Vec<&Said> = self.saved.iter().collect();
        let is_more = |said: &&Said| of_reign(&saved, said) < said.longest;
        let is_less = |said: &&Said| of_reign(&stands, said).get() <= said.longest.get() / 2;
        let is_news = stands.iter().any(is_more) || saved.iter().any(is_less);
        is_news.then(|| {
            self.saved = stands.into_iter().cloned().collect();
            Change::Lengths(self.saved.clone())
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

    fn restored(saved: Vec<(Said, Option<Instant>)>, start: (u64, Instant)) -> Lengths {
        Lengths::restored(saved, b"zz", start)
    }

    fn says(reign: u64, number: u64, longest: u64) -> Said {
        Said { master: b"aa".to_vec(), reign, number, longest: length(longest) }
    }

    #[test]
    fn the_last_word_of_a_reign_counts_and_that_of_an_earlier_one_until_it_is_over() {
        let mut lengths = Lengths::default();
        lengths.hear(says(1, 5, 60_000), at(100));
        assert_eq!(lengths.longest(at(100)), length(60_000));
        lengths.hear(says(1, 7, 1_000), at(200));
        assert_eq!(lengths.longest(at(200)), length(1_000), "it has granted none that is longer");
        lengths.hear(says(1, 6, 60_000), at(300));
        assert_eq!(lengths.longest(at(300)), length(1_000), "an older question");
        lengths.hear(says(8, 8, 500), at(900));
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
        one.hear(says(1, 5, 9_000), at(100));
        let told = one.tell(at(1_100));
        let over = 100 + whole_wait(length(9_000)).get();
        assert_eq!(told[0].left, length(over - 1_100));
        other.learn(&told, at(1_100));
        let until = 1_100 + with_drift(told[0].left).get();
        assert_eq!(other.longest(at(until)), length(9_000));
        assert_eq!(other.longest(at(until + 1)), Millis::ZERO);
        one.learn(&other.tell(at(5_000)), at(5_000));
        assert_eq!(one.longest(at(over + 1)), Millis::ZERO, "it knows better");
        let lower = Remembered { said: says(1, 6, 700), left: length(5_700) };
        one.learn(&[lower], at(5_000));
        assert_eq!(one.longest(at(5_000)), length(9_000), "the master itself has not said so");
        let late = Remembered { said: says(1, 7, 700), left: length(5_700) };
        one.learn(&[late], at(over - 100));
        let both = [one.longest(at(over)), one.longest(at(over + 1))];
        assert_eq!(both, [length(9_000), length(700)], "it says less, and stands longer");
        other.hear(says(1, 6, 700), at(6_000));
        other.learn(&told, at(6_000));
        assert_eq!(other.longest(at(6_000)), length(700), "the master has said less since");
    }

    /// Otherwise what is told, and the file, would grow with each start within a lease's length.
    #[test]
    fn a_master_that_starts_often_needs_no_more_memory() {
        let mut lengths = Lengths::default();
        for reign in 1..100 {
            lengths.hear(says(reign, reign, 60_000), at(reign * 100));
            assert_eq!(
                lengths.longest_besides(b"aa", reign, at(reign * 100)).is_zero(),
                reign == 1
            );
        }
        assert_eq!(lengths.known.len(), 3);
        let told = lengths.tell(at(10_000));
        let oldest = Remembered { said: says(1, 1, 60_000), left: length(50_000) };
        lengths.learn(&[vec![oldest], told].concat(), at(10_000));
        assert_eq!(lengths.known.len(), 3);
        // Regression: after a start all its reigns count for as long.
        for start in 100..110 {
            let Some(Change::Lengths(saved)) = lengths.news(at(10_000)) else { panic!("news") };
            let saved = saved.into_iter().map(|said| (said, None)).collect();
            lengths = restored(saved, (start, at(10_000)));
            lengths.hear(says(start, start, 60_000), at(10_000));
            assert!(lengths.known.len() <= 4, "{start}: {:?}", lengths.known);
        }
        // Regression: what another master said drove out the word of the present reign, which its
        // next question brought back, and the file was written each time.
        let mut lowered = lengths.clone();
        lowered.hear(says(200, 200, 500), at(10_000));
        assert!(lowered.news(at(10_000)).is_some());
        for number in 201..300 {
            lowered.hear(says(200, number, 500), at(10_000));
            let other = Said { master: b"bb".to_vec(), ..says(1, number, 500) };
            lowered.hear(other, at(10_000));
            assert_eq!(lowered.news(at(10_000)).is_some(), number == 201, "{number}");
        }
        lengths = Lengths::default();
        (1..100).for_each(|reign| lengths.hear(says(reign, reign, 60_000), at(reign * 100)));
        lengths.hear(says(100, 100, 500), at(10_000));
        let last = 9_900 + whole_wait(length(60_000)).get();
        assert_eq!(lengths.longest(at(last)), length(60_000), "the last that was as long counts");
        assert_eq!(lengths.longest(at(last + 1)), Millis::ZERO);
    }

    /// Regression: each start made the word of a reign that had ended count anew.
    #[test]
    fn who_stops_cleanly_remembers_up_to_when_leases_stand() {
        let mut lengths = Lengths::default();
        lengths.hear(says(1, 1, 9_000), at(100));
        let until = 100 + whole_wait(length(9_000)).get();
        let stopped = lengths.at_stop();
        assert_eq!(stopped, [(says(1, 1, 9_000), Some(at(until)))]);
        let mut started = restored(stopped.clone(), (9, at(5_000)));
        assert_eq!(started.longest(at(until)), length(9_000));
        assert_eq!(started.longest(at(until + 1)), Millis::ZERO);
        started.count_anew(at(5_000));
        assert_eq!(started.longest(at(until + 4_900)), length(9_000), "it was another boot");
        let later = vec![(says(1, 1, 9_000), Some(at(1 << 40)))];
        let late = restored(later, (9, at(5_000)));
        assert_eq!(late.longest(at(until + 4_901)), Millis::ZERO, "no lease is longer");
    }

    #[test]
    fn a_start_remembers_each_master_and_the_file_is_not_written_for_little() {
        let mut lengths = Lengths::default();
        assert_eq!(lengths.news(at(0)), None);
        let hear = |lengths: &mut Lengths, number, longest| {
            lengths.hear(says(1, number, longest), at(number));
            lengths.news(at(number))
        };
        let kept = |number, longest| Some(Change::Lengths(vec![says(1, number, longest)]));
        assert_eq!(hear(&mut lengths, 1, 9_000), kept(1, 9_000));
        assert_eq!(hear(&mut lengths, 2, 9_000), None);
        assert_eq!(hear(&mut lengths, 3, 4_501), None, "little less");
        assert_eq!(hear(&mut lengths, 4, 4_500), kept(4, 4_500));
        assert_eq!(hear(&mut lengths, 5, 4_501), kept(5, 4_501));
        assert_eq!(hear(&mut lengths, 6, 3_000), None, "little less");
        assert_eq!(hear(&mut lengths, 7, 4_501), None);
        let mut started = restored(vec![(says(1, 5, 4_501), None)], (9, at(100)));
        assert_eq!((started.longest(at(9_000)), started.news(at(9_000))), (length(4_501), None));
        let mut later = started.clone();
        assert_eq!(later.news(at(10_000)), Some(Change::Lengths(Vec::new())));
        let others = Remembered { said: says(1, 6, 3_000), left: length(8_000) };
        started.learn(&[others], at(100));
        assert_eq!(started.longest(at(100)), length(4_501), "only the master itself says less");
        assert_eq!(hear(&mut started, 8, 700), kept(8, 700));
        assert_eq!(started.longest(at(200)), length(700), "who has said it has said less since");
    }

    /// Regression: a voter heard a long length, missed a shorter one, heard the long one again,
    /// which its file had, and crashed. Who had learned the shorter one from another ignored what
    /// it told.
    #[test]
    fn after_a_crash_it_is_not_known_which_question_was_the_last() {
        let saved = |longest| vec![(says(1, 1, longest), None)];
        let crashed = restored(saved(9_000), (77, at(100)));
        let mut other = Lengths::default();
        other.hear(says(1, 2, 800), at(100));
        let mut third = Lengths::default();
        third.learn(&other.tell(at(100)), at(100));
        third.learn(&crashed.tell(at(100)), at(100));
        assert_eq!(third.longest(at(100)), length(9_000));
        third.hear(says(1, 3, 700), at(200));
        assert_eq!(third.longest(at(200)), length(9_000), "the long one may have been said later");
        // What goes round does not grow with the drift of the clocks.
        let over = at(100).after(with_drift(whole_wait(length(9_000))));
        for now in (300..9_000).step_by(100) {
            other.learn(&third.tell(at(now)), at(now));
            third.learn(&other.tell(at(now)), at(now));
        }
        assert_eq!(third.longest(over.after(Millis::new(1))), Millis::ZERO);
        // Two that have crashed; of each the last start counts.
        for start in 78..99 {
            let now = at(start * 10);
            third.learn(&restored(saved(9_000), (start, now)).tell(now), now);
            third.learn(&restored(saved(5_000), (start << 9, now)).tell(now), now);
        }
        assert_eq!(third.known.len(), 2, "{:?}", third.known);
        let last = 980 + whole_wait(length(9_000)).get();
        assert_eq!(third.longest(at(last)), length(9_000));
        // What it has told itself does not come back.
        let mut started = crashed.clone();
        started.hear(says(1, 4, 700), at(200));
        started.learn(&crashed.tell(at(200)), at(200));
        assert_eq!(started.longest(at(200)), length(700));
        // But what others have read counts although it has read as much.
        let mut started = crashed.clone();
        let (now, others) = (at(150), restored(saved(8_000), (78, at(150))));
        started.learn(&others.tell(now), now);
        started.hear(says(1, 4, 700), at(200));
        assert_eq!(started.longest(at(200)), length(8_000));
    }

    /// Regression: of two words of one reign that were read at one start, only the first was told,
    /// which may be less. And two servers of one machine that started in the same millisecond each
    /// took what the other had read for its own.
    #[test]
    fn all_that_was_read_at_one_start_is_learned() {
        let saved = vec![(says(1, 1, 800), None), (says(1, 2, 9_000), None)];
        let [one, other] =
            [b"bb", b"cc"].map(|name| Lengths::restored(saved.clone(), name, (77, at(100))));
        for mut learns in [Lengths::default(), Lengths::restored(Vec::new(), b"cc", (77, at(100)))]
        {
            learns.learn(&one.tell(at(100)), at(100));
            assert_eq!(learns.longest(at(100)), length(9_000));
        }
        let mut hears = other.clone();
        hears.learn(&one.tell(at(100)), at(100));
        hears.hear(says(1, 3, 700), at(200));
        assert_eq!(hears.longest(at(200)), length(9_000), "the other one has not heard that");
    }

    /// Regression: a clean stop on another machine, whose clock was behind, was forgotten.
    #[test]
    fn what_was_said_by_another_clock_is_not_over() {
        let saved = vec![(says(1, 1, 9_000), Some(at(20_000)))];
        let mut started = restored(saved, (77, at(1_000_000)));
        started.count_anew(at(1_000_000));
        assert_eq!(started.longest(at(1_000_000)), length(9_000));
    }
}
