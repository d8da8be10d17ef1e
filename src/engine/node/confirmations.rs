//! Whether most masters of the Cluster confirm which slots are this node's.
//!
//! A server's own belief proves nothing: while it is cut off from the others, its slots may go to
//! another master. So a master decides in a slot only while most of the masters that have a vote
//! (`electorate.rs`) have confirmed not long ago that it is its own. Two masters can have such
//! majorities for one slot within a short time only, because the two share a master, which confirms
//! what it believes at that moment. And one that could not reach the others decides again without a
//! wait only if a majority has believed all the time that the slot is its own.
//!
//! docs/design.md, "Slots that move", has the rule and the reasons.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::authority::with_drift;
use super::electorate::{Elector, Electorates, MasterName};
use super::shares::{Confirmation, SLOTS, Shares};
use super::slot_set::{SlotSet, all};
use super::succession::Succession;
use super::unconfirmed::{Silence, Unconfirmed};
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

/// Another master, and what it has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    elector: Elector,
    /// It has a vote in one of the electorates.
    has_vote: bool,
    /// When the last question was asked that it has answered.
    asked: Option<Instant>,
    /// The longest lease that it remembered then.
    longest: Millis,
    /// This node's configuration epoch, as its server believed then.
    epoch: u64,
    /// Since when it has confirmed this node's slots without a break, but for the unsteady ones.
    steady_since: Instant,
    unsteady: BTreeMap<u16, Instant>,
    /// The node's slots that it did not confirm.
    lacks: SlotSet,
    /// Of those, slots that it confirmed before: when that question was asked. What it has
    /// confirmed it cannot take back.
    last: BTreeMap<u16, Instant>,
}

/// Of one electorate: the others that have a vote, by their places, and how many of them make a
/// majority, with this node if it has a vote too.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Panel {
    others: Vec<usize>,
    needed: usize,
}

/// What the others have confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Confirmations {
    succession: Succession,
    peers: Vec<Peer>,
    /// All other masters, as the server believes.
    masters: BTreeSet<MasterName>,
    /// One for each electorate that the node knows.
    panels: Vec<Panel>,
    own: SlotSet,
    /// Slots are on their way here: the node decides there too.
    some_come: bool,
    /// The server knows nodes that are no masters.
    has_replicas: bool,
    asked_at: Option<Instant>,
    /// What tells the electorates that the questions have told, if nobody has shown since that it
    /// knows other ones.
    told: Option<u64>,
    /// How long a lease of this node may stand, as its questions say, and when that last grew.
    allows: (Millis, Instant),
    /// What the log says while too few answer.
    silence: Silence,
    /// Up to when no other master can have decided in the settled slots; `None` before the first
    /// majority.
    covered_until: Option<Instant>,
    /// The same of single slots that lack a majority.
    uncovered: BTreeMap<u16, Instant>,
    /// Of slots that the node has lost: up to when most masters had confirmed them.
    ended: BTreeMap<u16, Instant>,
    /// When there was the first majority.
    first_at: Option<Instant>,
    /// It has started without a state file, and has heard of no electorate since.
    may_have_lived_before: bool,
}

impl Peer {
    fn new(elector: Elector, own: &SlotSet) -> Peer {
        Peer {
            elector,
            has_vote: false,
            asked: None,
            longest: Millis::ZERO,
            epoch: 0,
            steady_since: Instant::default(),
            unsteady: BTreeMap::new(),
            lacks: own.clone(),
            last: BTreeMap::new(),
        }
    }

    /// Up to when another master may rely on its last confirmation of this slot.
    fn counts_until(&self, slot: u16) -> Option<Instant> {
        let last = || self.last.get(&slot).map(|at| at.after(COUNTS));
        self.until(slot).or_else(last)
    }

    /// Whether its last answer still counts.
    fn counts(&self, now: Instant) -> bool {
        self.asked.is_some_and(|at| now <= at.after(COUNTS))
    }

    /// Up to when its confirmation of this slot counts.
    fn until(&self, slot: u16) -> Option<Instant> {
        self.asked.filter(|_| !self.lacks.has(slot)).map(|at| at.after(COUNTS))
    }

    fn confirms(&self, slot: u16, now: Instant) -> bool {
        self.until(slot).is_some_and(|until| now <= until)
    }

    fn steady_since(&self, slot: u16) -> Instant {
        self.unsteady.get(&slot).copied().unwrap_or_default().max(self.steady_since)
    }
}

impl Confirmations {
    /// Of a master that knows these electorates.
    pub(super) fn new(boot: u64, electorates: Electorates) -> Confirmations {
        // Longer than any answer counts.
        let delay = with_drift(COUNTS.saturating_add(CONFIRM_DELAY));
        Confirmations {
            succession: Succession::new(boot, electorates, delay),
            peers: Vec::new(),
            masters: BTreeSet::new(),
            panels: Vec::new(),
            own: SlotSet::default(),
            some_come: false,
            has_replicas: false,
            asked_at: None,
            told: None,
            allows: (Millis::ZERO, Instant::default()),
            silence: Silence::default(),
            covered_until: None,
            uncovered: BTreeMap::new(),
            ended: BTreeMap::new(),
            first_at: None,
            may_have_lived_before: false,
        }
    }

    pub(super) const fn succession(&mut self) -> &mut Succession {
        &mut self.succession
    }

    pub(super) fn electorates(&self) -> &Electorates {
        self.succession.electorates()
    }

    /// As in [`Succession::remember`].
    pub(super) fn remember(&mut self, before: &Confirmations) {
        self.succession.remember(&before.succession);
    }

    /// As in [`Succession::count`].
    pub(super) fn electorate_count(&self) -> usize {
        self.succession.count()
    }

    /// Notes that the master found no state file. If others know it, it has lost that file.
    pub(super) const fn may_have_lived_before(&mut self) {
        self.may_have_lived_before = true;
    }

    /// Whether the servers of most masters know that this node has this configuration epoch. One
    /// may answer before: messages of Valkey 8.1 and newer do not carry the epoch.
    pub(super) fn know_epoch(&self, epoch: u64) -> bool {
        self.are_most(|peer| epoch <= peer.epoch)
    }

    /// Whether others may yet show that it has lost its state file.
    pub(super) const fn is_to_learn_of_its_past(&self) -> bool {
        self.may_have_lived_before && self.first_at.is_none()
    }

    /// Whether these electorates show that the master, if it has slots, has lost its state file:
    /// others had a vote when it had none, or had one in another life. Once, of those that it hears
    /// of before most masters have answered. One that is cut off may hear of others first.
    pub(super) fn shows_another_life(&mut self, told: &Electorates) -> bool {
        let is_open = self.is_to_learn_of_its_past();
        let is_left_out = is_open && self.succession.is_left_out(told);
        self.may_have_lived_before = is_open && !is_left_out;
        is_left_out
    }

    /// When most masters first answered, if they have.
    pub(super) const fn first_at(&self) -> Option<Instant> {
        self.first_at
    }

    /// Whether another electorate may take the place of the present one.
    pub(super) fn is_changing(&self) -> bool {
        self.panels.len() > 1
    }

    /// Notes which masters there are, and which slots are the node's own. What a master without a
    /// vote has confirmed counts once it gets one. Returns whether the node has lost slots.
    pub(super) fn look(&mut self, shares: &Shares, now: Instant) -> bool {
        let own = SlotSet::of(&shares.own);
        let lost = self.own.without(&own).into_iter();
        let ends: Vec<_> = lost.map(|slot| (slot, self.ends_at(slot, now))).collect();
        let has_lost = !ends.is_empty();
        self.ended.extend(ends);
        let gained = own.without(&self.own);
        for peer in &mut self.peers {
            gained.iter().for_each(|slot| peer.lacks.insert(*slot));
        }
        self.ended.retain(|slot, _| !own.has(*slot));
        // Nothing can have been taken from it.
        self.may_have_lived_before &= own.len() > 0;
        self.own = own;
        self.some_come = !shares.importing.is_empty();
        self.has_replicas = !shares.replicas.is_empty();
        self.succession.look(shares, now);
        self.masters = shares.other_masters();
        self.meet(now);
        has_lost
    }

    /// Notes those that have a vote, and the other masters that have told of themselves. One that
    /// is gone keeps its place.
    fn meet(&mut self, now: Instant) {
        for elector in self.succession.electors(&self.masters) {
            if self.place(&elector).is_none() {
                self.peers.push(Peer::new(elector, &self.own));
            }
        }
        let panels = self.succession.majorities().into_iter();
        let panels = panels.map(|(others, needed)| Panel {
            others: others.iter().filter_map(|elector| self.place(elector)).collect(),
            needed,
        });
        self.turn_over(panels.collect(), now);
    }

    fn place(&self, elector: &Elector) -> Option<usize> {
        self.peers.iter().position(|peer| peer.elector == *elector)
    }

    /// These majorities count from now on. What the new ones have confirmed without a break counts
    /// only from when the former ones had, too.
    fn turn_over(&mut self, panels: Vec<Panel>, now: Instant) {
        if self.panels.is_empty() || !self.panels.iter().all(|panel| panels.contains(panel)) {
            self.keep_breaks(now);
        }
        self.panels = panels;
        self.peers.iter_mut().for_each(|peer| peer.has_vote = false);
        for place in self.panels.iter().flat_map(|panel| &panel.others) {
            self.peers[*place].has_vote = true;
        }
    }

    /// Nothing is confirmed for longer than the present majorities have confirmed it.
    fn keep_breaks(&mut self, now: Instant) {
        let counting = |peer: &&Peer| peer.counts(now);
        let since = self.most_since(counting, |peer| peer.steady_since).unwrap_or(now);
        let odd = self.odd(&self.own).into_iter();
        let odd = odd.map(|slot| (slot, self.steady_since(slot, now).unwrap_or(now)));
        let odd: Vec<_> = odd.collect();
        for peer in &mut self.peers {
            peer.steady_since = peer.steady_since.max(since);
            for (slot, since) in &odd {
                let known = peer.unsteady.entry(*slot).or_default();
                *known = (*known).max(*since);
            }
        }
    }

    /// The others that have a vote in any electorate.
    fn votes(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.has_vote)
    }

    /// Whether the node is the only one with a vote.
    pub(super) fn is_alone(&self) -> bool {
        !self.panels.is_empty() && self.panels.iter().all(|panel| panel.needed == 0)
    }

    /// Whether these are most, in each electorate.
    fn are_most(&self, are: impl Fn(&Peer) -> bool) -> bool {
        let is_most = |panel: &Panel| {
            let others = panel.others.iter().filter(|place| are(&self.peers[**place]));
            others.count() >= panel.needed
        };
        !self.panels.is_empty() && self.panels.iter().all(is_most)
    }

    /// Up to when this is so for most, in each electorate, if it is for each up to such an instant.
    fn most_until(&self, until: impl Fn(&Peer) -> Option<Instant>) -> Option<Instant> {
        let of_panel = |panel: &Panel| {
            let others = panel.others.iter().filter_map(|place| until(&self.peers[*place]));
            largest(others, panel.needed)
        };
        let ends = self.panels.iter().filter(|panel| panel.needed > 0).map(of_panel);
        ends.min().flatten()
    }

    /// Since when this is so for most of those that count, in each electorate.
    fn most_since(
        &self,
        counts: impl Fn(&&Peer) -> bool,
        since: impl Fn(&Peer) -> Instant,
    ) -> Option<Instant> {
        let of_panel = |panel: &Panel| {
            let others = panel.others.iter().map(|place| &self.peers[*place]);
            smallest(others.filter(&counts).map(&since), panel.needed)
        };
        let mut starts = self.panels.iter().filter(|panel| panel.needed > 0).map(of_panel);
        // One that lacks a majority is the least.
        starts.try_fold(None, |latest, start| Some(latest.max(Some(start?)))).flatten()
    }

    /// Whether the node may decide in any slot.
    pub(super) fn has_slots(&self) -> bool {
        self.own.len() > 0 || self.some_come
    }

    /// Notes how long a lease of this node may stand, as the next question says.
    pub(super) fn allow(&mut self, longest: Millis, now: Instant) {
        let (before, since) = self.allows;
        self.allows = (longest, if before < longest { now } else { since });
    }

    /// Whether most masters know that a lease of this node may stand for so long: their answers
    /// count, and the questions said so.
    pub(super) fn know_of(&self, longest: Millis, now: Instant) -> bool {
        let (told, since) = self.allows;
        // Nobody else has a vote, but a replica is to hear of it.
        let is_sent = !self.is_alone() || !self.has_replicas || since.after(CONFIRM_DELAY) <= now;
        longest <= told
            && is_sent
            && self.are_most(|peer| peer.counts(now) && Some(since) <= peer.asked)
    }

    /// The longest lease that may stand, as those remember whose answers count.
    pub(super) fn longest(&self, now: Instant) -> Millis {
        let counting = self.votes().filter(|peer| peer.counts(now));
        counting.map(|peer| peer.longest).max().unwrap_or_default()
    }

    /// The question that is due: since when it asks for breaks, and what it tells of electorates,
    /// if somebody may not know that. Whoever does not will answer. The breaks are those since most
    /// others were last asked, of those that have answered.
    pub(super) fn ask(
        &mut self,
        is_hurried: bool,
        now: Instant,
    ) -> Option<(Instant, u64, Option<Electorates>)> {
        let pause = if is_hurried { HURRY } else { ASK_EVERY };
        // At once if leases may be longer: a replica may take over from the only master any time.
        let has_grown = self.asked_at < Some(self.allows.1);
        let is_due = has_grown || self.asked_at.is_none_or(|at| at.after(pause) <= now);
        // A replica that takes over from the only master must have heard how long its leases stand.
        let has_others =
            !self.masters.is_empty() || self.votes().next().is_some() || self.has_replicas;
        if !has_others || !self.has_slots() || !is_due {
            return None;
        }
        self.asked_at = Some(now);
        let digest = self.electorates().digest();
        let is_unknown = self.told.replace(digest) != Some(digest);
        let told = is_unknown.then(|| self.electorates().clone());
        let asked = self.most_until(|peer| peer.asked);
        Some((asked.unwrap_or(now), digest, told))
    }

    /// Notes that the last question was not sent. Leases are as long as it said from the next one.
    pub(super) const fn unsent(&mut self) {
        (self.asked_at, self.told) = (None, None);
        self.allows = (Millis::ZERO, Instant::from_millis(0));
    }

    /// Takes the electorates that another master knows, as in [`Succession::hear`].
    pub(super) fn hear(
        &mut self,
        elector: &Elector,
        (told, digest): (Option<&Electorates>, u64),
        now: Instant,
    ) -> bool {
        let counts = self.succession.hear(elector, (told, digest), now);
        self.meet(now);
        if self.electorates().digest() != digest {
            self.told = None;
        }
        counts
    }

    /// Takes another master's answer to the question from `at`. It tells what it has seen lost
    /// since the question from `since`.
    pub(super) fn confirmed(
        &mut self,
        elector: &Elector,
        (at, since): (Instant, Instant),
        told: &Confirmation,
        now: Instant,
    ) {
        let (slots, lost) = (&told.slots, &told.lost);
        let peer = self.peers.iter_mut().find(|peer| peer.elector == *elector);
        let Some(peer) = peer.filter(|peer| peer.asked < Some(at)) else { return };
        let confirmed = SlotSet::of(slots);
        if peer.asked.is_some_and(|asked| since <= asked) {
            let regained = all(slots).filter(|slot| peer.lacks.has(*slot));
            peer.unsteady.extend(all(lost).chain(regained).map(|slot| (slot, now)));
        } else {
            peer.unsteady.clear();
            peer.steady_since = now;
        }
        let lacks = self.own.without(&confirmed);
        peer.last.retain(|slot, _| !confirmed.has(*slot) && self.own.has(*slot));
        for slot in lacks.iter().filter(|slot| !peer.lacks.has(**slot)) {
            peer.last.extend(peer.asked.map(|asked| (*slot, asked)));
        }
        (peer.asked, peer.longest, peer.epoch) = (Some(at), told.longest, told.epoch);
        peer.lacks = SlotSet::default();
        lacks.into_iter().for_each(|slot| peer.lacks.insert(slot));
    }

    /// Whether most masters have answered not long ago, whatever they confirm.
    pub(super) fn reach_most(&self, now: Instant) -> bool {
        self.are_most(|peer| peer.counts(now))
    }

    /// Why too few masters confirm the slots, if that lasts: once, and when it has changed.
    pub(super) fn news_of_unconfirmed(&mut self, now: Instant) -> Option<Unconfirmed> {
        if self.own.len() == 0 || self.reach_most(now) {
            self.silence = Silence::default();
            return None;
        }
        let mut silence = std::mem::take(&mut self.silence);
        let news = silence.news(|| self.why_unconfirmed(now), now);
        self.silence = silence;
        news
    }

    fn why_unconfirmed(&self, now: Instant) -> Unconfirmed {
        if self.succession.has_left() {
            return Unconfirmed::HasLeft;
        }
        if self.panels.is_empty() {
            return Unconfirmed::Silent(self.succession.silent());
        }
        let itself = &self.electorates().itself.name;
        let answers = |peer: &Peer| peer.counts(now);
        let lives_on = |peer: &Peer| {
            let mut same = self.peers.iter().filter(|it| it.elector.name == peer.elector.name);
            !answers(peer) && (peer.elector.name == *itself || same.any(answers))
        };
        let names = |are: &dyn Fn(&Peer) -> bool| -> Vec<MasterName> {
            let chosen = self.votes().filter(|peer| are(peer));
            chosen.map(|peer| peer.elector.name.clone()).collect()
        };
        match self.are_most(|peer| !lives_on(peer)) {
            true => Unconfirmed::Silent(names(&|peer| !answers(peer) && !lives_on(peer))),
            false => Unconfirmed::HaveNoVote(names(&lives_on)),
        }
    }

    /// Whether most masters confirm that this slot is the node's own.
    pub(super) fn holds(&self, slot: u16, now: Instant) -> bool {
        self.are_most(|peer| peer.confirms(slot, now))
    }

    /// Up to when the last confirmations of this slot by most masters count.
    fn counts_until(&self, slot: u16) -> Option<Instant> {
        self.most_until(|peer| peer.counts_until(slot))
    }

    /// Since when most masters have confirmed this slot without a break, if they do.
    pub(super) fn steady_since(&self, slot: u16, now: Instant) -> Option<Instant> {
        if self.is_alone() {
            return Some(self.first_at.unwrap_or_default());
        }
        self.most_since(|peer| peer.confirms(slot, now), |peer| peer.steady_since(slot))
    }

    /// Up to when the node may decide in this slot, or might have if it had not lost it. That may
    /// be over.
    pub(super) fn ends_at(&self, slot: u16, now: Instant) -> Instant {
        if self.is_alone() {
            return now.after(COUNTS);
        }
        let ended = self.ended.get(&slot).copied();
        ended.or_else(|| self.counts_until(slot)).unwrap_or_default()
    }

    /// Compares what has been confirmed with what was before, just after that has changed. Returns
    /// those of these slots, in which the node decides, that another master may have had meanwhile.
    pub(super) fn advance(&mut self, decided: &SlotSet, now: Instant) -> Vec<u16> {
        if self.panels.is_empty() {
            return Vec::new();
        }
        if self.is_alone() {
            self.covered_until = None;
            self.uncovered.clear();
            self.first_at.get_or_insert(now);
            return Vec::new();
        }
        let before = self.covered_until;
        let counts = |peer: &&Peer| peer.counts(now);
        let until = |peer: &Peer| peer.asked.filter(|_| peer.counts(now));
        let until = self.most_until(until).map(|at| at.after(COUNTS));
        let since = self.most_since(counts, |peer| peer.steady_since);
        let mut broken = BTreeSet::new();
        if let (Some(until), Some(since)) = (until, since) {
            self.first_at.get_or_insert(now);
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
    pub(super) fn all_confirm(&mut self, epoch: u64, now: Instant) {
        self.succession.agree();
        self.meet(now);
        self.first_at = Some(Instant::default());
        self.allows = (crate::engine::TTL_MAX, Instant::default());
        for peer in &mut self.peers {
            (peer.asked, peer.lacks) = (Some(now), SlotSet::default());
            peer.epoch = epoch;
        }
    }

    /// Those of these slots that not all others confirm, or not steadily.
    fn odd(&self, slots: &SlotSet) -> BTreeSet<u16> {
        let mut odd = BTreeSet::new();
        for peer in self.votes() {
            odd.extend(peer.lacks.both(slots));
            odd.extend(peer.unsteady.keys().filter(|slot| slots.has(**slot)));
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
        self.peers.iter_mut().for_each(|peer| peer.unsteady.retain(matters));
    }
}

/// The last of the `count` largest.
fn largest(instants: impl Iterator<Item = Instant>, count: usize) -> Option<Instant> {
    smallest(instants.map(Reverse), count).map(|Reverse(instant)| instant)
}

/// The last of the `count` smallest.
fn smallest<T: Ord + Copy>(all: impl Iterator<Item = T>, count: usize) -> Option<T> {
    let mut sorted: Vec<T> = all.collect();
    sorted.sort_unstable();
    count.checked_sub(1).and_then(|place| sorted.get(place).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Electorate, SlotRuns};

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Slots 0 to 4, and those that the others have.
    fn shares(others: &[&[u8]]) -> Shares {
        let others =
            others.iter().zip(10..).map(|(name, slot)| (name.to_vec(), vec![(slot, slot)]));
        let (name, own) = (b"aa".to_vec(), vec![(0, 4)]);
        Shares { name, own, others: others.collect(), ..Shares::default() }
    }

    const ALL: [&[u8]; 4] = [b"bb", b"cc", b"dd", b"ee"];

    /// With so many others, none of which has confirmed anything.
    fn with_others(count: usize) -> Confirmations {
        let mut told =
            Confirmations::new(1, next(0, &[&[b"aa".as_slice()], &ALL[..count]].concat()));
        told.look(&shares(&ALL[..count]), at(0));
        told
    }

    fn elector(name: &[u8]) -> Elector {
        Elector { name: name.to_vec(), life: 1 }
    }

    /// What `aa` or another one knows.
    fn next(number: u64, members: &[&[u8]]) -> Electorates {
        let members = members.iter().map(|name| elector(name)).collect();
        let known = [Electorate { number, origin: 5, members }].into();
        Electorates { itself: elector(b"aa"), known, ..Electorates::default() }
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
            let told = Confirmation { slots, lost, ..Confirmation::default() };
            self.confirmed(&elector(name), (asked, since), &told, now);
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
    fn a_master_without_a_vote_has_a_memory() {
        let mut told = with_others(1);
        told.look(&shares(&[b"bb", b"cc"]), at(0));
        told.hear(&elector(b"cc"), (None, told.electorates().digest()), at(0));
        told.told(b"cc", 100, vec![(0, 4)], Vec::new());
        assert!(!told.holds(0, at(110)), "it has no vote yet");
        let next = next(1, &[b"aa", b"bb", b"cc"]);
        told.hear(&elector(b"cc"), (Some(&next), next.digest()), at(110));
        assert!(told.holds(0, at(110)));
    }

    /// What the new ones have confirmed alone does not prove that nobody decided meanwhile.
    #[test]
    fn a_wait_counts_from_when_the_former_masters_had_confirmed_the_slot_too() {
        let mut told = with_others(2);
        for name in [b"dd", b"ee"] {
            told.look(&shares(&[b"bb", b"cc", b"dd", b"ee"]), at(0));
            told.hear(&elector(name), (None, told.electorates().digest()), at(0));
            told.told(name, 100, vec![(0, 4)], Vec::new());
        }
        told.told(b"bb", 4_000, vec![(0, 2)], Vec::new());
        let next = next(1, &[b"aa", b"dd", b"ee"]);
        let mut asks = |at_ms: u64| {
            for name in [b"dd", b"ee"] {
                told.told(name, at_ms, vec![(0, 4)], Vec::new());
            }
            told.hear(&elector(b"dd"), (Some(&next), next.digest()), at(at_ms + 20));
            [2, 3].map(|slot| told.steady_since(slot, at(at_ms + 30)))
        };
        assert_eq!(asks(5_000), [Some(at(4_010)), Some(at(5_020))]);
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

    /// A second start may have its name, and not know what the first one did.
    #[test]
    fn others_show_who_has_lost_the_state_file() {
        let own = |life| Elector { life, ..elector(b"aa") };
        let of = |life| {
            let has_vote = life != 0;
            let members = has_vote.then(|| own(life)).into_iter().chain([elector(b"bb")]).collect();
            let known = [Electorate { number: 3, origin: 5, members }].into();
            Electorates { itself: elector(b"bb"), known, ..Electorates::default() }
        };
        let doubts = |is_first: bool, lives: &[u64]| {
            let mut told = Confirmations::new(1, Electorates { itself: own(7), ..of(7) });
            if is_first {
                told.may_have_lived_before();
            }
            told.first_at = lives.is_empty().then(Instant::default);
            let lives = if lives.is_empty() { &[6] } else { lives };
            assert!(!told.shows_another_life(&Electorates::default()), "it tells of nobody");
            lives.iter().any(|life| told.shows_another_life(&of(*life)))
        };
        assert!(doubts(true, &[6]), "it had a vote");
        assert!(!doubts(true, &[7]), "it has one");
        // Regression: the others had gone over to an electorate without it while it was down.
        assert!(doubts(true, &[0]), "others had a vote when it had slots");
        // Regression: one that was cut off heard first of an electorate of before it had a vote.
        assert!(doubts(true, &[7, 6]), "most have not answered yet");
        assert!(!doubts(true, &[]), "most have answered");
        assert!(!doubts(false, &[6]), "its server was reset, and has none of its slots");
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
        assert_eq!(told.ends_at(5, at(710)), at(2_650), "confirmed at 200");
        assert_eq!(told.ends_at(5, at(9_000)), at(2_650), "it is over");
        assert_eq!(told.ends_at(4, at(710)), at(3_150));
        told.look(&Shares { own: Vec::new(), ..shares(&[b"bb"]) }, at(9_000));
        assert_eq!(told.ends_at(4, at(9_000)), at(3_150), "before the loss was seen");
        told.look(&more, at(9_010));
        assert!(!told.holds(5, at(9_020)));
    }

    /// Regressions: a master that had lost its state file was to start itself, or forget itself;
    /// and the log went on to name those that were forgotten.
    #[test]
    fn the_log_says_who_does_not_answer_and_who_has_lost_its_vote() {
        let mut told = with_others(4);
        let itself = Electorates { itself: Elector { life: 8, ..elector(b"aa") }, ..next(0, &[]) };
        let known = Electorates { itself: itself.itself, ..told.electorates().clone() };
        told.succession = Succession::new(1, known, Millis::new(2_500));
        told.look(&shares(&ALL), at(0));
        let names = |names: &[&[u8]]| names.iter().map(|name| name.to_vec()).collect::<Vec<_>>();
        let says = |told: &mut Confirmations, now| told.news_of_unconfirmed(at(now));
        assert_eq!(says(&mut told, 4_000), None);
        let all = Some(Unconfirmed::Silent(names(&ALL)));
        assert_eq!((says(&mut told, 9_000), says(&mut told, 14_000)), (all, None));
        // Two of them have lost their files too, and answer.
        for name in [b"bb", b"cc"] {
            let elector = Elector { life: 2, ..elector(name) };
            told.hear(&elector, (None, told.electorates().digest()), at(18_900));
            let answer = Confirmation { slots: vec![(0, 4)], ..Confirmation::default() };
            told.confirmed(&elector, (at(18_900), at(0)), &answer, at(19_000));
        }
        let lost = Some(Unconfirmed::HaveNoVote(names(&[b"bb", b"cc", b"aa"])));
        assert_eq!((says(&mut told, 19_000), says(&mut told, 20_000)), (lost, None));
        let left = Some(Unconfirmed::Silent(names(&ALL)));
        assert_eq!(says(&mut told, 60_000), left, "they do not answer any more");
        let forgets = Shares { others: shares(&ALL[..2]).others, ..shares(&ALL) };
        told.look(&forgets, at(60_100));
        let fewer = Some(Unconfirmed::Silent(names(&ALL[..2])));
        assert_eq!((says(&mut told, 64_000), says(&mut told, 65_000)), (None, fewer));
    }

    #[test]
    fn a_question_tells_electorates_until_nobody_shows_that_it_knows_others() {
        let mut told = with_others(1);
        let tells = |told: &mut Confirmations, now| {
            let asked = told.ask(false, at(now)).expect("it is due");
            asked.2.is_some()
        };
        assert!(tells(&mut told, 1_000) && !tells(&mut told, 2_000));
        let digest = told.electorates().digest();
        told.hear(&elector(b"bb"), (None, digest), at(2_100));
        assert!(!tells(&mut told, 3_000));
        // A replica has answered that has missed it.
        let none = Electorates::default();
        told.hear(&elector(b"rr"), (Some(&none), none.digest()), at(3_100));
        assert!(tells(&mut told, 4_000) && !tells(&mut told, 5_000));
        told.unsent();
        assert!(tells(&mut told, 5_000) && !tells(&mut told, 6_000));
        let next = next(1, &[b"bb", b"cc"]);
        told.hear(&elector(b"bb"), (Some(&next), next.digest()), at(6_100));
        assert!(tells(&mut told, 7_000), "others may not know this one");
    }

    #[test]
    fn it_asks_twice_a_second_and_in_a_hurry_ten_times() {
        let mut told = with_others(1);
        assert_eq!(with_others(0).ask(true, at(0)), None, "there is nobody to ask");
        let ask = |told: &mut Confirmations, is_hurried, now| {
            told.ask(is_hurried, at(now)).map(|(since, ..)| since)
        };
        assert_eq!(ask(&mut told, false, 1_000), Some(at(1_000)));
        assert_eq!(ask(&mut told, false, 1_499), None);
        assert_eq!(ask(&mut told, true, 1_100), Some(at(1_100)));
        told.told(b"bb", 1_100, vec![(0, 4)], Vec::new());
        assert_eq!(ask(&mut told, false, 1_600), Some(at(1_100)), "breaks since then matter");
        told.told(b"bb", 1_000, Vec::new(), Vec::new());
        assert!(told.holds(0, at(1_700)), "an old answer");
    }
}
