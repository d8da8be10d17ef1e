//! Whether most masters of the Cluster confirm which slots are this node's.
//!
//! A server's own belief proves nothing: while it is cut off from the others, its slots may go to
//! another master. So a master decides in a slot only while most of the masters that have slots,
//! itself included, have confirmed not long ago that it is its own. Two masters can have such
//! majorities for one slot within a short time only, because the two share a master, which confirms
//! what it believes at that moment. And one that could not reach the others decides again without a
//! wait only if a majority has believed all the time that the slot is its own.
//!
//! docs/design.md, "Slots that move", has the rule and the reasons.

use std::collections::{BTreeMap, BTreeSet};

use super::shares::{SLOTS, Shares, SlotRuns};
use super::slot_set::{SlotSet, all};
use super::{BEAT, SUPPORT};
use crate::engine::{Instant, Millis};

/// How long ago another master may have looked at the slots when it confirms them.
pub(super) const CONFIRM_DELAY: Millis = Millis::new(BEAT.get() / 20);
/// For how long after its question a confirmation counts. Two periods of this fit into each wait
/// for another master's leases, and two delays.
const COUNTS: Millis = Millis::new(SUPPORT.get() / 2 - CONFIRM_DELAY.get());
/// How often the others are asked, and how often while a slot lacks their majority.
const ASK_EVERY: Millis = Millis::new(BEAT.get() / 2);
const HURRY: Millis = Millis::new(BEAT.get() / 10);

/// What another master with slots has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Voter {
    name: Vec<u8>,
    /// When the last question was asked that it has answered.
    asked: Option<Instant>,
    /// Since when it has confirmed this node's slots without a break, but for the unsteady ones.
    steady_since: Instant,
    unsteady: BTreeMap<u16, Instant>,
    /// The node's slots that it did not confirm.
    lacks: SlotSet,
    /// Of those, slots that it confirmed before: when that question was asked. What it has
    /// confirmed it cannot take back.
    last: BTreeMap<u16, Instant>,
    /// It has slots.
    has_vote: bool,
}

/// What the others have confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Confirmations {
    voters: Vec<Voter>,
    own: SlotSet,
    asked_at: Option<Instant>,
    /// Up to when no other master can have decided in the settled slots; `None` before the first
    /// majority.
    covered_until: Option<Instant>,
    /// The same of single slots that lack a majority.
    uncovered: BTreeMap<u16, Instant>,
    /// Of slots that the node has lost: up to when most masters had confirmed them.
    ended: BTreeMap<u16, Instant>,
}

impl Voter {
    fn new(name: &[u8], own: &SlotSet) -> Voter {
        Voter {
            name: name.to_vec(),
            asked: None,
            steady_since: Instant::default(),
            unsteady: BTreeMap::new(),
            lacks: own.clone(),
            last: BTreeMap::new(),
            has_vote: false,
        }
    }

    /// Up to when another master may rely on its last confirmation of this slot.
    fn counts_until(&self, slot: u16) -> Option<Instant> {
        let last = || self.last.get(&slot).map(|at| at.after(COUNTS));
        self.until(slot).or_else(last)
    }

    /// Whether its last answer counts still.
    fn counts(&self, now: Instant) -> bool {
        self.asked.is_some_and(|at| now <= at.after(COUNTS))
    }

    /// Up to when its confirmation of this slot counts.
    fn until(&self, slot: u16) -> Option<Instant> {
        self.asked.filter(|_| !self.lacks.has(slot)).map(|at| at.after(COUNTS))
    }

    fn steady_since(&self, slot: u16) -> Instant {
        self.unsteady.get(&slot).copied().unwrap_or(self.steady_since)
    }
}

impl Confirmations {
    /// Notes which masters there are, and which slots are the node's own. A master without slots
    /// has no vote, but what it has confirmed counts once it gets one.
    pub(super) fn look(&mut self, shares: &Shares, now: Instant) {
        let own = SlotSet::of(&shares.own);
        let lost = self.own.without(&own).into_iter();
        let ends: Vec<_> = lost.map(|slot| (slot, now.after(self.left(slot, now)))).collect();
        self.ended.extend(ends);
        let gained = own.without(&self.own);
        let with_slots = || shares.others.iter().map(|(name, _)| name);
        let all = || with_slots().chain(&shares.idle);
        self.voters.retain(|voter| all().any(|name| *name == voter.name));
        for name in all() {
            if !self.voters.iter().any(|voter| voter.name == *name) {
                self.voters.push(Voter::new(name, &self.own));
            }
        }
        for voter in &mut self.voters {
            voter.has_vote = with_slots().any(|name| *name == voter.name);
            gained.iter().for_each(|slot| voter.lacks.insert(*slot));
        }
        self.ended.retain(|slot, _| !own.has(*slot));
        self.own = own;
    }

    /// How many others must confirm a slot.
    fn needed(&self) -> usize {
        self.votes().count().div_ceil(2)
    }

    fn votes(&self) -> impl Iterator<Item = &Voter> {
        self.voters.iter().filter(|voter| voter.has_vote)
    }

    /// The question that is due: since when it asks for breaks. That is when most others were last
    /// asked, of those that have answered.
    pub(super) fn ask(&mut self, is_hurried: bool, now: Instant) -> Option<Instant> {
        let pause = if is_hurried { HURRY } else { ASK_EVERY };
        let is_due = self.asked_at.is_none_or(|at| at.after(pause) <= now);
        let needed = self.needed();
        if needed == 0 || self.own.len() == 0 || !is_due {
            return None;
        }
        self.asked_at = Some(now);
        let asked = largest(self.votes().filter_map(|voter| voter.asked), needed);
        Some(asked.unwrap_or(now))
    }

    /// Takes another master's answer to the question from `at`: what it confirms, and what it has
    /// seen lost since the question from `since`. What it believed when it stopped, its server has
    /// on disk; so an answer from after a start is as good.
    pub(super) fn confirmed(
        &mut self,
        name: &[u8],
        (at, since): (Instant, Instant),
        (slots, lost): (&SlotRuns, &SlotRuns),
        now: Instant,
    ) {
        let voter = self.voters.iter_mut().find(|voter| voter.name == name);
        let Some(voter) = voter.filter(|voter| voter.asked < Some(at)) else { return };
        let confirmed = SlotSet::of(slots);
        if voter.asked.is_some_and(|asked| since <= asked) {
            let regained = all(slots).filter(|slot| voter.lacks.has(*slot));
            voter.unsteady.extend(all(lost).chain(regained).map(|slot| (slot, now)));
        } else {
            voter.unsteady.clear();
            voter.steady_since = now;
        }
        let lacks = self.own.without(&confirmed);
        voter.last.retain(|slot, _| !confirmed.has(*slot) && self.own.has(*slot));
        for slot in lacks.iter().filter(|slot| !voter.lacks.has(**slot)) {
            voter.last.extend(voter.asked.map(|asked| (*slot, asked)));
        }
        voter.asked = Some(at);
        voter.lacks = SlotSet::default();
        lacks.into_iter().for_each(|slot| voter.lacks.insert(slot));
    }

    /// The others with slots whose confirmation of this slot counts.
    fn confirming(&self, slot: u16, now: Instant) -> impl Iterator<Item = &Voter> {
        self.votes().filter(move |voter| voter.until(slot).is_some_and(|until| now <= until))
    }

    /// Whether most masters have answered not long ago, whatever they confirm.
    pub(super) fn reach_most(&self, now: Instant) -> bool {
        self.votes().filter(|voter| voter.counts(now)).count() >= self.needed()
    }

    /// Whether most masters confirm that this slot is the node's own.
    pub(super) fn holds(&self, slot: u16, now: Instant) -> bool {
        self.confirming(slot, now).count() >= self.needed()
    }

    /// Up to when the last confirmations of this slot by most masters count.
    fn counts_until(&self, slot: u16) -> Option<Instant> {
        largest(self.votes().filter_map(|voter| voter.counts_until(slot)), self.needed())
    }

    /// Since when most masters have confirmed this slot without a break, if they do.
    pub(super) fn steady_since(&self, slot: u16, now: Instant) -> Option<Instant> {
        let needed = self.needed();
        if needed == 0 {
            return Some(Instant::default());
        }
        smallest(self.confirming(slot, now).map(|voter| voter.steady_since(slot)), needed)
    }

    /// For how long the node may still decide in this slot, or might have if it had not lost it.
    pub(super) fn left(&self, slot: u16, now: Instant) -> Millis {
        if self.needed() == 0 {
            return COUNTS;
        }
        let until = self.ended.get(&slot).copied().or_else(|| self.counts_until(slot));
        now.until(until.unwrap_or_default())
    }

    /// Compares what has been confirmed with what was before, just after that has changed. Returns
    /// those of these slots, in which the node decides, that another master may have had meanwhile.
    pub(super) fn advance(&mut self, decided: &SlotSet, now: Instant) -> Vec<u16> {
        let needed = self.needed();
        if needed == 0 {
            self.covered_until = None;
            self.uncovered.clear();
            return Vec::new();
        }
        let before = self.covered_until;
        let counts = |voter: &&Voter| voter.counts(now);
        let until = largest(
            self.votes().filter(counts).filter_map(|voter| voter.asked).map(|at| at.after(COUNTS)),
            needed,
        );
        let since = smallest(self.votes().filter(counts).map(|voter| voter.steady_since), needed);
        let mut broken = BTreeSet::new();
        if let (Some(until), Some(since)) = (until, since) {
            if before.is_some_and(|before| before < since) {
                broken.extend((0..SLOTS).filter(|slot| decided.has(*slot)));
            }
            self.covered_until = before.max(Some(until));
        }
        if let Some(before) = before {
            let odd = self.odd(decided);
            broken.extend(odd.into_iter().filter(|slot| self.is_broken(*slot, before, now)));
        }
        self.uncovered.retain(|slot, _| decided.has(*slot) && !broken.contains(slot));
        let mut decided = decided.clone();
        broken.iter().for_each(|slot| decided.remove(*slot));
        self.forget(&decided);
        broken.into_iter().collect()
    }

    /// Whether most masters confirm this slot, but not since before the last majority for all
    /// slots, or for this one.
    fn is_broken(&mut self, slot: u16, before: Instant, now: Instant) -> bool {
        let before = *self.uncovered.entry(slot).or_insert(before);
        let since = self.steady_since(slot, now);
        if since.is_some() {
            self.uncovered.remove(&slot);
        }
        since.is_some_and(|since| before < since)
    }

    /// As if all others had confirmed all slots all the time.
    #[cfg(test)]
    pub(super) fn all_confirm(&mut self, now: Instant) {
        for voter in &mut self.voters {
            (voter.asked, voter.lacks) = (Some(now), SlotSet::default());
        }
    }

    /// Those of these slots that not all others confirm, or not steadily.
    fn odd(&self, slots: &SlotSet) -> BTreeSet<u16> {
        let mut odd = BTreeSet::new();
        for voter in self.votes() {
            odd.extend(voter.lacks.both(slots));
            odd.extend(voter.unsteady.keys().filter(|slot| slots.has(**slot)));
        }
        odd
    }

    /// Forgets breaks that no longer matter.
    fn forget(&mut self, decided: &SlotSet) {
        let (own, covered, uncovered) = (&self.own, self.covered_until, &self.uncovered);
        let matters = |slot: &u16, at: &mut Instant| {
            let is_old = decided.has(*slot) && Some(*at) <= covered;
            own.has(*slot) && (!is_old || uncovered.contains_key(slot))
        };
        self.voters.iter_mut().for_each(|voter| voter.unsteady.retain(matters));
    }
}

/// The last of the `count` largest.
fn largest(instants: impl Iterator<Item = Instant>, count: usize) -> Option<Instant> {
    let mut sorted: Vec<Instant> = instants.collect();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    count.checked_sub(1).and_then(|place| sorted.get(place).copied())
}

/// The last of the `count` smallest.
fn smallest(instants: impl Iterator<Item = Instant>, count: usize) -> Option<Instant> {
    let mut sorted: Vec<Instant> = instants.collect();
    sorted.sort_unstable();
    count.checked_sub(1).and_then(|place| sorted.get(place).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Slots 0 to 4, and those that the others have.
    fn shares(others: &[&[u8]]) -> Shares {
        let others =
            others.iter().zip(10..).map(|(name, slot)| (name.to_vec(), vec![(slot, slot)]));
        Shares { own: vec![(0, 4)], others: others.collect(), ..Shares::default() }
    }

    const ALL: [&[u8]; 4] = [b"bb", b"cc", b"dd", b"ee"];

    /// With so many others, none of which has confirmed anything.
    fn with_others(count: usize) -> Confirmations {
        let mut told = Confirmations::default();
        told.look(&shares(&ALL[..count]), at(0));
        told
    }

    fn decided() -> SlotSet {
        SlotSet::of(&vec![(0, 4)])
    }

    impl Confirmations {
        /// A master answers a question from `asked`. It tells all that was lost since the start.
        fn told(&mut self, name: &[u8], asked: u64, slots: SlotRuns, lost: SlotRuns) -> Vec<u16> {
            self.told_since(name, (asked, 0), slots, lost)
        }

        fn told_since(
            &mut self,
            name: &[u8],
            (asked, since): (u64, u64),
            slots: SlotRuns,
            lost: SlotRuns,
        ) -> Vec<u16> {
            let (asked, since) = (at(asked), at(since));
            let now = asked.after(Millis::new(10));
            self.confirmed(name, (asked, since), (&slots, &lost), now);
            self.advance(&decided(), now)
        }
    }

    #[test]
    fn a_slot_is_held_while_most_masters_confirm_it() {
        let alone = with_others(0);
        assert!(alone.holds(3, at(0)) && alone.steady_since(3, at(0)) == Some(at(0)));
        for (others, needed) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            let mut told = with_others(others);
            for name in &ALL[..needed] {
                assert!(!told.holds(3, at(100)), "{others} others");
                told.told(name, 100, vec![(0, 3)], Vec::new());
            }
            assert!(told.holds(3, at(2_550)) && !told.holds(4, at(110)), "{others} others");
            assert!(!told.holds(3, at(2_551)), "too long ago");
            assert_eq!(told.steady_since(3, at(200)), Some(at(110)));
        }
    }

    #[test]
    fn a_master_without_slots_has_no_vote_but_a_memory() {
        let mut told = with_others(1);
        let idle = |name: &[u8]| Shares { idle: vec![name.to_vec()], ..shares(&[b"bb"]) };
        told.look(&idle(b"cc"), at(0));
        told.told(b"cc", 100, vec![(0, 4)], Vec::new());
        assert!(!told.holds(0, at(110)));
        told.look(&shares(&[b"bb", b"cc"]), at(0));
        assert!(told.holds(0, at(110)));
    }

    #[test]
    fn who_was_cut_off_goes_on_if_most_saw_nobody_else_with_its_slots() {
        let mut told = with_others(2);
        assert!(told.told(b"bb", 100, vec![(0, 4)], Vec::new()).is_empty());
        assert!(told.advance(&decided(), at(60_000)).is_empty());
        assert!(told.told(b"bb", 60_000, vec![(0, 4)], Vec::new()).is_empty());
        assert!(told.holds(2, at(60_010)));
        // Another one had two of them meanwhile.
        let broken = told.told(b"bb", 120_000, vec![(0, 4)], vec![(1, 2)]);
        assert_eq!(broken, [1, 2]);
        assert_eq!(told.steady_since(2, at(120_010)), Some(at(120_010)));
        assert_eq!(told.steady_since(3, at(120_010)), Some(at(110)));
        // And one has one of them now.
        assert!(told.told(b"bb", 120_500, vec![(0, 2), (4, 4)], vec![(3, 3)]).is_empty());
        assert!(!told.holds(3, at(120_510)));
        assert_eq!(told.told(b"bb", 130_000, vec![(0, 4)], vec![(3, 3)]), [3]);
    }

    #[test]
    fn what_was_lost_before_the_time_that_an_answer_is_about_may_have_been_lost() {
        let mut told = with_others(1);
        told.told(b"bb", 100, vec![(0, 4)], Vec::new());
        let broken = told.told_since(b"bb", (500, 500), vec![(0, 4)], Vec::new());
        assert!(broken.is_empty(), "nobody can have decided so soon");
        let broken = told.told_since(b"bb", (9_000, 9_000), vec![(0, 4)], Vec::new());
        assert_eq!(broken, [0, 1, 2, 3, 4]);
        // Another one was there all the time.
        let mut told = with_others(2);
        for name in [b"bb", b"cc"] {
            told.told(name, 100, vec![(0, 4)], Vec::new());
        }
        assert!(told.told_since(b"cc", (9_000, 100), vec![(0, 4)], Vec::new()).is_empty());
        assert!(told.told_since(b"bb", (9_000, 9_000), vec![(0, 4)], Vec::new()).is_empty());
    }

    #[test]
    fn a_slot_that_comes_must_be_confirmed_and_one_that_goes_was() {
        let mut told = with_others(1);
        told.told(b"bb", 100, vec![(0, 4)], Vec::new());
        let more = Shares { own: vec![(0, 5)], ..shares(&[b"bb"]) };
        told.look(&more, at(110));
        assert!(!told.holds(5, at(200)) && told.holds(4, at(200)));
        told.told(b"bb", 200, vec![(0, 5)], Vec::new());
        assert!(told.holds(5, at(210)));
        // The other one has heard first that the slot is gone.
        told.told(b"bb", 700, vec![(0, 4)], vec![(5, 5)]);
        assert!(!told.holds(5, at(710)));
        told.look(&shares(&[b"bb"]), at(710));
        assert_eq!(told.left(5, at(710)), Millis::new(1_940), "confirmed at 200");
        assert_eq!(told.left(5, at(2_700)), Millis::ZERO);
        assert_eq!(told.left(4, at(710)), Millis::new(2_440));
        told.look(&more, at(110));
        assert!(!told.holds(5, at(720)));
    }

    #[test]
    fn it_asks_twice_a_second_and_in_a_hurry_ten_times() {
        let mut told = with_others(1);
        assert_eq!(with_others(0).ask(true, at(0)), None, "there is nobody to ask");
        assert_eq!(told.ask(false, at(1_000)), Some(at(1_000)));
        assert_eq!(told.ask(false, at(1_499)), None);
        assert_eq!(told.ask(true, at(1_100)), Some(at(1_100)));
        told.told(b"bb", 1_100, vec![(0, 4)], Vec::new());
        assert_eq!(told.ask(false, at(1_600)), Some(at(1_100)), "breaks since then matter");
        told.told(b"bb", 1_000, Vec::new(), Vec::new());
        assert!(told.holds(0, at(1_700)), "an old answer");
    }
}
