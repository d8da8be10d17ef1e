//! The slots of a Cluster: what a master must know before it decides in a slot that has moved to
//! it.
//!
//! A lock that comes with its slot brings its lease, its counter and the floor of its node. A name
//! that was forgotten there brings nothing, so the fences of a slot without locks could fall. And a
//! slot does not show whether the node that had it may have forgotten leases. So each master
//! reports its floor, and for how long it grants nothing, to the others, once a second and whenever
//! that changes. A master that gets a slot raises its own floor, and waits as long as the node that
//! had the slot.
//!
//! This value reads no clock and knows no server. docs/design.md, "Slots that move", has the rules.

use std::collections::BTreeMap;

use super::authority::with_drift;
use super::recovery::jump;
use super::{BEAT, Caution, Change, FENCE_BLOCK, Node, SUPPORT, Stop};
use crate::engine::{Clocks, Fence, Instant, Millis};

/// How many slots there are.
pub const SLOTS: u16 = 16_384;
/// How long a master's report can be relied on.
const FRESH: Millis = Millis::new(5 * BEAT.get());

/// Slots, as the first and last of each range.
pub type SlotRuns = Vec<(u16, u16)>;

/// Which master has which slots, as a node of a Cluster sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Its own.
    pub own: SlotRuns,
    /// Those of other masters, by name.
    pub others: Vec<(Vec<u8>, SlotRuns)>,
    /// Those on their way to it, and the masters that they come from.
    pub importing: Vec<(u16, Vec<u8>)>,
}

/// What a master reports to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footing {
    /// The fence below which none of its locks starts.
    pub floor: Fence,
    /// For how long it grants nothing, because leases that it does not know may stand.
    pub left: Millis,
}

/// What a node must do before it decides in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coming {
    /// Raise its floor to this one.
    Knows(Fence),
    /// Wait up to this instant.
    Waits(Instant),
    /// Raise its floor to the time.
    HasWaited,
}

/// The outcome for a slot that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The node decides there; whether it had to raise its floor.
    Decides(bool),
    /// It waits this much longer. The state file must record the change, if any.
    Waits(Millis, Option<Change>),
}

/// A set of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotSet(Box<[u64; SLOTS as usize / 64]>);

impl SlotSet {
    fn new() -> SlotSet {
        SlotSet(Box::new([0; SLOTS as usize / 64]))
    }

    fn has(&self, slot: u16) -> bool {
        let slot = usize::from(slot % SLOTS);
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn insert(&mut self, slot: u16) {
        let slot = usize::from(slot % SLOTS);
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    /// Keeps only the slots that the other set has too.
    fn keep(&mut self, other: &SlotSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(word, other)| *word &= other);
    }
}

/// Another node of the Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OtherMaster {
    name: Vec<u8>,
    /// Its last report, and when it came.
    told: Option<(Instant, Footing)>,
}

/// The slots of one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The other masters that it knows.
    others: Vec<OtherMaster>,
    /// By slot: which of them had it last, counted from 1; zero if none did.
    former: Vec<u16>,
    /// The slots on their way here at the last look, and which of them they come from.
    importing: BTreeMap<u16, usize>,
    own: SlotSet,
    /// Those in which the node may decide.
    settled: SlotSet,
    /// Those in which it waits.
    waits: BTreeMap<u16, Instant>,
    has_looked: bool,
    /// Its last report to the others, and when it was sent.
    told: Option<(Instant, Footing)>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            others: Vec::new(),
            former: vec![0; usize::from(SLOTS)],
            importing: BTreeMap::new(),
            own: SlotSet::new(),
            settled: SlotSet::new(),
            waits: BTreeMap::new(),
            has_looked: false,
            told: None,
        }
    }
}

impl Slots {
    /// Notes which master has which slots. Slots that the node has at its first look need nothing
    /// more: it had them when it stopped, or waits because it was promoted.
    fn see(&mut self, shares: &Shares) {
        let mut own = SlotSet::new();
        let all = |runs: &SlotRuns| runs.clone().into_iter().flat_map(|(first, last)| first..=last);
        all(&shares.own).for_each(|slot| own.insert(slot));
        for (name, ranges) in &shares.others {
            let place = u16::try_from(self.place_of(name) + 1).unwrap_or(u16::MAX);
            for slot in all(ranges) {
                self.former[usize::from(slot % SLOTS)] = place;
            }
        }
        let importing = shares.importing.iter();
        self.importing = importing.map(|(slot, from)| (*slot, self.place_of(from))).collect();
        if std::mem::replace(&mut self.has_looked, true) {
            self.settled.keep(&own);
        } else {
            self.settled = own.clone();
        }
        self.own = own;
        let (own, importing) = (&self.own, &self.importing);
        self.waits.retain(|slot, _| own.has(*slot) || importing.contains_key(slot));
    }

    /// Takes a master's report.
    fn hear(&mut self, name: &[u8], footing: Footing, now: Instant) {
        let place = self.place_of(name);
        self.others[place].told = Some((now, footing));
    }

    /// Whether the node may decide in this slot.
    fn is_settled(&self, slot: u16) -> bool {
        self.settled.has(slot)
    }

    /// The node's slots in which it may not decide yet.
    fn unsettled(&self) -> Vec<u16> {
        (0..SLOTS).filter(|&slot| self.own.has(slot) && !self.settled.has(slot)).collect()
    }

    /// What must be done before the node decides in a slot, just after a look. `longest`: the
    /// longest lease that may stand at a master that does not report.
    fn come(&self, slot: u16, now: Instant, longest: Millis) -> Coming {
        let former = usize::from(self.former[usize::from(slot % SLOTS)]).checked_sub(1);
        let Some(source) = self.importing.get(&slot).copied().or(former) else {
            // No other master has had it, as far as this node knows.
            let told = self.others.iter().filter_map(|other| other.told);
            return Coming::Knows(told.map(|(_, told)| told.floor).max().unwrap_or_default());
        };
        let known = self.waits.get(&slot).copied();
        let until = match self.others[source].told.filter(|(at, _)| now <= at.after(FRESH)) {
            // It may have forgotten names since.
            Some((_, told)) if told.left.is_zero() => {
                return Coming::Knows(told.floor.saturating_add(FENCE_BLOCK));
            }
            Some((at, told)) => known.unwrap_or_default().max(at.after(with_drift(told.left))),
            None => known.unwrap_or(now.after(with_drift(SUPPORT.saturating_add(longest)))),
        };
        if until < now { Coming::HasWaited } else { Coming::Waits(until) }
    }

    /// Notes that the node may decide in this slot. A slot that is still on its way is asked about
    /// each time, because the node that has it goes on deciding.
    fn settle(&mut self, slot: u16) {
        self.waits.remove(&slot);
        if self.own.has(slot) {
            self.settled.insert(slot);
        }
    }

    /// The report to send to the others now, if it is due.
    fn tell(&mut self, footing: Footing, now: Instant) -> Option<Footing> {
        let is_due = |&(at, told): &(Instant, Footing)| {
            let is_news =
                told.floor != footing.floor || told.left.is_zero() != footing.left.is_zero();
            is_news || at.after(BEAT) <= now
        };
        if !self.told.as_ref().is_none_or(is_due) {
            return None;
        }
        self.told = Some((now, footing));
        Some(footing)
    }

    fn place_of(&mut self, name: &[u8]) -> usize {
        if let Some(place) = self.others.iter().position(|other| other.name == name) {
            return place;
        }
        self.others.push(OtherMaster { name: name.to_vec(), told: None });
        self.others.len() - 1
    }
}

impl Node {
    /// Notes that the node is in a Cluster, and has not looked at its slots since its start or
    /// promotion.
    pub fn join_cluster(&mut self) {
        self.slots = Some(Box::default());
    }

    /// Notes that the node cannot look at its slots, and so decides in all of them.
    pub fn leave_cluster(&mut self) {
        self.slots = None;
    }

    /// Whether the node needs to look at slots at all.
    #[inline]
    pub fn is_in_cluster(&self) -> bool {
        self.slots.is_some()
    }

    /// Whether the node decides in a slot without further steps: see [`Node::come`].
    pub fn decides_in(&self, slot: u16) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.is_settled(slot))
    }

    /// Notes which master has which slots.
    pub fn see(&mut self, shares: &Shares) {
        if let Some(slots) = &mut self.slots {
            slots.see(shares);
        }
    }

    /// Takes another master's report.
    pub fn hear(&mut self, name: &[u8], footing: Footing, now: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.hear(name, footing, now);
        }
    }

    /// The node's slots in which it does not decide yet.
    pub fn unsettled_slots(&self) -> Vec<u16> {
        self.slots.as_ref().map(|slots| slots.unsettled()).unwrap_or_default()
    }

    /// Handles a slot that has come, just after the node has looked at its slots.
    ///
    /// # Errors
    /// [`Stop::Persist`]: the floor that it needs is above the fence ceiling.
    pub fn come(
        &mut self,
        slot: u16,
        clocks: Clocks,
        (max_ttl, caution): (Millis, Caution),
    ) -> Result<Came, Stop> {
        let now = clocks.now;
        let longest = self.longest(max_ttl, now);
        let Some(slots) = &mut self.slots else { return Ok(Came::Decides(false)) };
        let floor = match slots.come(slot, now, longest) {
            Coming::Knows(floor) => floor,
            Coming::Waits(until) if caution.quarantine => {
                let is_news = slots.waits.values().all(|&other| other < until);
                if is_news {
                    // The floor rises at once too: a node that starts again before the wait is over
                    // does not jump.
                    let floor = jump(self.promises.highest(), clocks.wall);
                    self.promises.lift_floor(floor)?;
                }
                slots.waits.insert(slot, until);
                self.promises.wait_in_slots(until);
                let left = now.until(until.after(Millis::new(1)));
                return Ok(Came::Waits(left, is_news.then_some(Change::Waits { until })));
            }
            Coming::Waits(_) | Coming::HasWaited => jump(self.promises.highest(), clocks.wall),
        };
        let is_raised = floor > self.promises.floor();
        self.promises.lift_floor(floor)?;
        if let Some(slots) = &mut self.slots {
            slots.settle(slot);
        }
        Ok(Came::Decides(is_raised))
    }

    /// The report to send to the other masters now, if it is due.
    pub fn tell(&mut self, now: Instant, max_ttl: Millis) -> Option<Footing> {
        let waited_for = self.promises.waited_for(now);
        let mut left =
            waited_for.map_or(Millis::ZERO, |until| now.until(until.after(Millis::new(1))));
        if self.promises.check_authority(now).is_err() {
            left = left.max(SUPPORT.saturating_add(self.longest(max_ttl, now)));
        }
        let footing = Footing { floor: self.promises.floor(), left };
        self.slots.as_mut()?.tell(footing, now)
    }

    /// The longest lease that may stand at another node.
    fn longest(&self, max_ttl: Millis, now: Instant) -> Millis {
        self.promises.authority().map_or(max_ttl, |authority| authority.longest(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Refusal, UnixTime};

    const LONGEST: Millis = Millis::new(1_000);
    const WALL: u64 = 1_700_000_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn fence(number: u64) -> Fence {
        Fence::new(number).expect("small")
    }

    /// Slots 0 to 9 are the node's, 10 to 19 those of `bb`, unless some of them have moved.
    fn shares(moved: &[u16]) -> Shares {
        let mut own = vec![(0, 9)];
        own.extend(moved.iter().map(|&slot| (slot, slot)));
        let theirs = (10..20).filter(|slot| !moved.contains(slot)).map(|slot| (slot, slot));
        Shares { own, others: vec![(b"bb".to_vec(), theirs.collect())], importing: Vec::new() }
    }

    fn node() -> Node {
        let mut node = Node::new();
        node.join_cluster();
        assert!(!node.decides_in(5), "it has not looked");
        node.see(&shares(&[]));
        assert!(node.decides_in(5) && !node.decides_in(10));
        node
    }

    fn come(node: &mut Node, slot: u16, now: u64) -> Came {
        let clocks = Clocks { now: at(now), wall: UnixTime::from_millis(WALL + now) };
        let caution = Caution { quarantine: true, on_promotion: true };
        node.come(slot, clocks, (LONGEST, caution)).expect("it keeps no file")
    }

    fn tell(node: &mut Node, floor: u64, left: u64, now: u64) {
        node.hear(b"bb", Footing { floor: fence(floor), left: Millis::new(left) }, at(now));
    }

    #[test]
    fn a_slot_brings_the_floor_of_the_node_that_had_it() {
        let mut node = node();
        tell(&mut node, 7_000_000, 0, 100);
        node.see(&shares(&[12, 13]));
        assert_eq!(node.unsettled_slots(), [12, 13]);
        assert_eq!(come(&mut node, 12, 5_100), Came::Decides(true));
        assert_eq!(node.promises().floor(), fence(7_000_000 + FENCE_BLOCK));
        assert_eq!(come(&mut node, 13, 5_100), Came::Decides(false));
        assert!(node.unsettled_slots().is_empty() && node.decides_in(12));
        // It leaves, and comes back after names were forgotten meanwhile.
        node.see(&shares(&[13]));
        tell(&mut node, 70_000_000, 0, 6_000);
        node.see(&shares(&[12, 13]));
        assert_eq!(node.unsettled_slots(), [12]);
        assert_eq!(come(&mut node, 12, 6_100), Came::Decides(true));
    }

    #[test]
    fn who_gets_a_slot_waits_as_long_as_the_node_that_had_it() {
        let mut node = node();
        tell(&mut node, 5, 2_000, 100);
        node.see(&shares(&[12, 13]));
        let until = at(100 + 2_000 + 22);
        let news = Some(Change::Waits { until });
        assert_eq!(come(&mut node, 12, 200), Came::Waits(Millis::new(1_923), news));
        assert_eq!(
            come(&mut node, 13, 300),
            Came::Waits(Millis::new(1_823), None),
            "the wait is already recorded"
        );
        assert_eq!(node.promises().waited_for(at(2_122)), Some(until));
        let floor = node.promises().floor();
        assert!(floor > Fence::of_time(UnixTime::from_millis(WALL)), "if it starts again");
        let told = Footing { floor, left: Millis::new(1_123) };
        assert_eq!(node.tell(at(1_000), LONGEST), Some(told), "it reports its own wait");
        assert_eq!(come(&mut node, 12, 2_122), Came::Waits(Millis::new(1), None));
        assert_eq!(come(&mut node, 12, 2_123), Came::Decides(true));
        assert!(node.promises().floor() > floor);
        // It decides again, so the node that has its slots may decide too.
        tell(&mut node, 5, 0, 1_500);
        assert_eq!(come(&mut node, 13, 1_600), Came::Decides(false));
    }

    #[test]
    fn who_gets_a_slot_from_a_node_that_says_nothing_waits_for_the_longest_lease() {
        for told_at in [None, Some(100)] {
            let mut node = node();
            if let Some(told_at) = told_at {
                tell(&mut node, 5, 0, told_at);
            }
            node.see(&shares(&[12]));
            let wait = 6_000 + 60 + 2 + 1;
            let waits = |left| Came::Waits(Millis::new(left), None);
            let Came::Waits(left, Some(_)) = come(&mut node, 12, 5_101) else { panic!("it waits") };
            assert_eq!(left, Millis::new(wait));
            assert_eq!(come(&mut node, 12, 6_101), waits(wait - 1_000), "from the first time on");
            assert_eq!(come(&mut node, 12, 5_101 + wait), Came::Decides(true));
        }
    }

    #[test]
    fn a_slot_on_its_way_is_asked_about_each_time() {
        let mut node = node();
        let on_its_way = Shares { importing: vec![(12, b"bb".to_vec())], ..shares(&[]) };
        for floor in [7_000_000, 9_000_000] {
            node.see(&on_its_way);
            tell(&mut node, floor, 0, 100);
            assert_eq!(come(&mut node, 12, 200), Came::Decides(true));
            assert!(!node.decides_in(12), "the other node goes on");
        }
    }

    #[test]
    fn a_slot_that_nobody_has_had_needs_no_wait() {
        let mut node = node();
        node.see(&Shares { own: vec![(0, 9), (30, 30)], ..shares(&[]) });
        assert_eq!(come(&mut node, 30, 200), Came::Decides(false));
        tell(&mut node, 9, 5_000, 100);
        node.see(&Shares { own: vec![(0, 9), (31, 31)], ..shares(&[]) });
        assert_eq!(come(&mut node, 31, 200), Came::Decides(true));
        assert_eq!(node.promises().floor(), fence(9));
    }

    #[test]
    fn a_node_tells_the_others_once_a_second_and_when_it_changes() {
        let mut node = node();
        let told = |node: &mut Node, now| node.tell(at(now), LONGEST).is_some();
        assert_eq!(
            [0, 999, 1_000, 1_100].map(|now| told(&mut node, now)),
            [true, false, true, false]
        );
        node.lift_floor(fence(3)).expect("it keeps no file");
        assert_eq!([1_200, 1_300].map(|now| told(&mut node, now)), [true, false]);
    }

    #[test]
    fn a_master_without_authority_grants_nothing_before_it_has_waited() {
        let mut node = node();
        node.rest_on(2);
        let left = SUPPORT.saturating_add(Millis::ZERO);
        assert_eq!(node.tell(at(0), LONGEST), Some(Footing { floor: Fence::ZERO, left }));
        assert!(matches!(node.obstacle(at(0)), Some(Refusal::NoAuthority { .. })));
    }
}
