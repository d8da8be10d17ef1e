//! What a node knows of each slot of its Cluster, from its looks at who has which, and from the
//! other masters' answers.
//!
//! When a slot enters and leaves each set:
//!
//! | Set        | Enters                                         | Leaves                         |
//! |------------|------------------------------------------------|--------------------------------|
//! | `own`      | a look shows it                                | a look no longer shows it      |
//! | `first`    | the first look shows it                        | a look no longer shows it      |
//! | `settled`  | the first look shows it; its move is over      | it is lost; it begins to       |
//! |            |                                                | leave; it is in doubt          |
//! | `moves`    | it comes, has come, was found, begins to leave | it settles; it is lost         |
//! | `orphans`  | the first look shows it at nobody              | another master gets it         |
//! | `given`    | it is lost, and was not only in a move to here | another loses it to a third    |
//! | `handed`   | it is lost while it leaves, or has gone        | it is lost again               |
//! | `left`     | it no longer comes, and has not come; the      | it is its own, and does not    |
//! |            | first look shows it leaving                    | leave; another loses it        |
//! | `deleted`  | a held lock is deleted there once it is lost   | a look                         |
//! | `behind`   | it is lost and `deleted`, or leaves at once    | it is its own again            |
//! | `disputed` | another master asks about it as its own        | it is lost, or its move begins |
//!
//! An own slot is either settled, or has a [`Move`] that says what is still to be done. One that
//! most masters have not confirmed all the time is in [doubt](SlotTable::doubt).

use std::collections::{BTreeMap, BTreeSet};

use super::BEAT;
use super::company::Company;
use super::moves_at_once::MovesAtOnce;
use super::other_master::OtherMaster;
use super::shares::{Footing, MoveAtOnce, Passage, Question, SLOTS, Shares, SlotAnswer, SlotRuns};
use super::slot_move::{Coming, Move, MoveStage};
use super::slot_set::{SlotSet, all, runs};
use crate::engine::{Instant, Millis};

/// How long after another master's question a node has read whose the slot is.
const YIELDS_IN: Millis = Millis::new(BEAT.get() / 5);

/// What is known of the slots, and the other masters that have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotTable {
    /// The masters that the node knows, without itself unless its server names it as a target.
    others: Vec<OtherMaster>,
    /// By slot: which of them had it last, counted from 1; zero if none did.
    former: Vec<u16>,
    own: SlotSet,
    /// Its own since the first look.
    first: SlotSet,
    /// Those in which the node decides without a further look.
    settled: SlotSet,
    /// Those that no master had when this one started with slots: their master may have been
    /// forgotten.
    orphans: SlotSet,
    /// Those that are on their way, and its own in which it does not decide yet.
    moves: BTreeMap<u16, Move>,
    /// Those in which this node may have locks that do not move with them, and the master that must
    /// know: they were on their way from it, and did not come; or they were on their way to it when
    /// this node started.
    left: BTreeMap<u16, usize>,
    /// Those that this node has lost, and in which it decided.
    given: SlotSet,
    /// Those of them that left for another master by a move that this node has seen: that master,
    /// which decided there too or has got all locks, and how.
    handed: BTreeMap<u16, (usize, Passage)>,
    /// Those that its server had lost when it deleted held locks in them, since the last look.
    deleted: SlotSet,
    /// Those that this node has lost with locks in them, which its server has deleted, or that have
    /// left at once: to who has them by steps, these locks have not moved.
    behind: SlotSet,
    /// What the server tells of moves at once.
    pub(super) at_once: MovesAtOnce,
    /// Its own that another master has asked about as its own, and when: one of them has not heard
    /// of the other's epoch yet, or both have the same.
    disputed: BTreeMap<u16, (usize, Instant)>,
    /// When the node first looked.
    looked_at: Option<Instant>,
    /// Any other master may have decided in the slots that the first look will show.
    doubts_first: bool,
}

impl SlotTable {
    pub(super) fn new() -> SlotTable {
        SlotTable { former: vec![0; usize::from(SLOTS)], ..SlotTable::default() }
    }

    /// Notes which master has which slots. Those that the node has at its first look need nothing
    /// more: it had them when it stopped, or waits because it was promoted. Not so those that it
    /// found, or that [leave](SlotTable::see_leaving).
    pub(super) fn look(&mut self, shares: &Shares, now: Instant) {
        let own = SlotSet::of(&shares.own);
        let lost = self.own.without(&own);
        let deleted = std::mem::take(&mut self.deleted);
        let lost_meanwhile = deleted.both(&self.own).into_iter().filter(|slot| own.has(*slot));
        let lost_meanwhile = lost_meanwhile.collect();
        self.see_back(&own);
        self.see_lost(&lost, &deleted);
        self.see_others(shares);
        self.see_gone(&own);
        self.see_own(shares, own, now);
        self.doubt(lost_meanwhile, now);
        self.see_disputed(now);
        self.see_coming(shares, now);
        self.see_leaving(shares, now);
        self.looked_at.get_or_insert(now);
    }

    /// Slots that are its own again.
    fn see_back(&mut self, own: &SlotSet) {
        if self.looked_at.is_none() {
            return;
        }
        for slot in own.without(&self.own) {
            self.behind.remove(slot);
            self.at_once.is_back(slot, self.former(slot));
        }
    }

    fn see_others(&mut self, shares: &Shares) {
        for (name, ranges) in &shares.others {
            let place = u16::try_from(self.place_of(name) + 1).unwrap_or(u16::MAX);
            for slot in all(ranges).map(|slot| slot % SLOTS) {
                self.orphans.remove(slot);
                let former = std::mem::replace(&mut self.former[usize::from(slot)], place);
                if former != 0 && former != place {
                    self.given.remove(slot);
                    self.left.remove(&slot);
                    if let Some(seen) = self.moves.get_mut(&slot) {
                        seen.taken_by = Some(usize::from(place) - 1);
                    }
                }
            }
        }
    }

    fn see_own(&mut self, shares: &Shares, own: SlotSet, now: Instant) {
        if self.looked_at.is_some() {
            self.settled.keep(&own);
            self.first.keep(&own);
        } else {
            self.first = own.clone();
            let is_orphan = |slot: &u16| self.former[usize::from(*slot)] == 0 && !own.has(*slot);
            let orphans = (0..SLOTS).filter(|slot| !shares.had_none && is_orphan(slot));
            orphans.for_each(|slot| self.orphans.insert(slot));
            self.settled = own.clone();
            let found = if self.doubts_first { &shares.own } else { &shares.found };
            let found = all(found).map(|slot| slot % SLOTS).filter(|slot| own.has(*slot));
            self.doubt(found.collect(), now);
        }
        self.own = own;
    }

    /// Slots that the node has lost. It can speak for those in which it decided. As its server
    /// loses one, it deletes the locks that are left there.
    fn see_lost(&mut self, lost: &[u16], deleted: &SlotSet) {
        for &slot in lost {
            // Before its end is reported, a move at once proves nothing.
            if deleted.has(slot) || self.at_once.departs(slot) {
                self.behind.insert(slot);
            }
            let seen = self.moves.get(&slot).map(|seen| (seen.stage, seen.other));
            self.former[usize::from(slot)] = 0;
            self.given.insert(slot);
            self.handed.remove(&slot);
            self.at_once.is_over(slot);
            match seen {
                Some((MoveStage::Came | MoveStage::Found, _)) => self.given.remove(slot),
                Some((MoveStage::Leaves, Some(target))) => {
                    self.handed.insert(slot, (target, Passage::BySteps));
                }
                _ => {}
            }
        }
    }

    /// A held lock was deleted in this slot, which was lost. Valkey reports the end of a move at
    /// once, which leads to a look, before it deletes what is left in others that it has lost.
    pub(super) fn deleted_in(&mut self, slot: u16) {
        self.deleted.insert(slot);
        if self.given.has(slot) && !self.own.has(slot) {
            self.behind.insert(slot);
        }
    }

    /// The same for each of its slots.
    pub(super) fn deleted_in_all(&mut self) {
        self.deleted = self.own.clone();
    }

    /// Whether the deletion of a held lock in this slot may be news.
    pub(super) fn may_be_news(&self, slot: u16) -> bool {
        !self.deleted.has(slot) && !self.behind.has(slot)
    }

    /// Slots that have left at once, just after [`SlotTable::see_others`]. Several may be lost
    /// before the server has reported the end of the move for each.
    fn see_gone(&mut self, own: &SlotSet) {
        for (slot, to) in self.at_once.take_gone(own) {
            // Its server does not say which locks it deletes.
            self.behind.insert(slot);
            if let Some(place) = self.former(slot).filter(|place| to.is_none_or(|to| to == *place))
            {
                self.handed.insert(slot, (place, Passage::AtOnce));
            }
        }
    }

    /// A slot that stays although another master has asked about it counts as received from that
    /// master, which may have waited, and decided there.
    fn see_disputed(&mut self, now: Instant) {
        self.disputed.retain(|slot, (place, since)| {
            let is_due = self.own.has(*slot) && since.after(YIELDS_IN) <= now;
            let asks = |seen: &Move| seen.stage == MoveStage::Found || seen.other == Some(*place);
            if is_due && !self.moves.get(slot).is_some_and(asks) {
                self.settled.remove(*slot);
                // Of what that master granted, nothing has moved.
                self.at_once.is_disputed(*slot);
                self.moves.insert(*slot, Move::new(MoveStage::Came, Some(*place), now));
            }
            self.own.has(*slot) && !is_due
        });
    }

    /// Takes what the server tells of slots that it moves at once.
    pub(super) fn move_at_once(&mut self, step: MoveAtOnce, slots: &SlotRuns, to: Option<&[u8]>) {
        let to = to.map(|name| self.place_of(name));
        all(slots).for_each(|slot| self.at_once.note(step, slot, to));
    }

    fn see_coming(&mut self, shares: &Shares, now: Instant) {
        let importing = self.places_of(&shares.importing);
        self.moves.retain(|slot, seen| {
            let stays = self.own.has(*slot) || importing.contains_key(slot);
            if let (false, MoveStage::Comes, Some(source)) = (stays, seen.stage, seen.other) {
                self.left.insert(*slot, source);
            }
            stays
        });
        for (slot, source) in importing {
            let comes = Move::new(MoveStage::Comes, Some(source), now);
            let seen = self.moves.entry(slot).or_insert(comes);
            if (seen.stage, seen.other) != (MoveStage::Comes, Some(source)) {
                *seen = comes;
            }
        }
        self.moves.values_mut().for_each(|seen| seen.notice_pause(now));
        for slot in self.own.without(&self.settled) {
            let former = self.former(slot).or(self.handed.get(&slot).map(|(to, _)| *to));
            let is_orphan = former.is_none() && self.orphans.has(slot);
            let stage = if is_orphan { MoveStage::Found } else { MoveStage::Came };
            let found = || Move::new(stage, former, now);
            let seen = self.moves.entry(slot).or_insert_with(found);
            if seen.stage == MoveStage::Comes {
                *seen = seen.came(now);
            }
        }
    }

    /// While a slot leaves, the other master decides too. So if it stays after all, it has come
    /// from that master. The same if this node has started meanwhile: of the locks that have moved,
    /// it may have older copies, or none.
    fn see_leaving(&mut self, shares: &Shares, now: Instant) {
        let migrating = self.places_of(&shares.migrating);
        for (slot, seen) in &mut self.moves {
            if seen.stage == MoveStage::Leaves && migrating.get(slot).copied() != seen.other {
                *seen = Move::new(MoveStage::Came, seen.other, now);
                seen.has_decided = true;
            }
        }
        self.left.retain(|slot, _| !self.own.has(*slot) || migrating.contains_key(slot));
        for (slot, target) in migrating {
            let is_first = self.looked_at.is_none();
            if is_first && self.own.has(slot) {
                self.left.insert(slot, target);
            }
            if self.settled.has(slot) {
                let stage = if is_first { MoveStage::Came } else { MoveStage::Leaves };
                self.settled.remove(slot);
                let mut seen = Move::new(stage, Some(target), now);
                seen.has_decided = true;
                self.moves.insert(slot, seen);
            }
        }
    }

    /// Takes a master's report.
    pub(super) fn hear(&mut self, name: &[u8], footing: Footing, now: Instant) {
        let place = self.place_of(name);
        self.others[place].hear(footing, now);
    }

    /// Takes a master's question, just after a look. Returns the slots that this node can speak
    /// for: they are on their way to that master, or are its own, and this node had them last.
    /// First those that have moved with all their locks, then those in which this node may have
    /// locks left.
    pub(super) fn asked(
        &mut self,
        name: &[u8],
        (slots, passage): (&SlotRuns, Passage),
        now: Instant,
        mut has_locks: impl FnMut(u16) -> bool,
    ) -> [SlotRuns; 2] {
        let place = self.place_of(name);
        let mut known = [BTreeSet::new(), BTreeSet::new()];
        for slot in all(slots).map(|slot| slot % SLOTS) {
            let is_left = self.left.get(&slot) == Some(&place);
            let seen = self.moves.get_mut(&slot).filter(|seen| seen.other == Some(place));
            match seen.map(|seen| (seen.stage, seen)) {
                Some((MoveStage::Comes, seen)) => {
                    // The master asks for itself: it decides again, or is about to.
                    seen.begin_again(now);
                    known[1].insert(slot);
                }
                // If it has come there, and locks are here, this node has yet to hear of that, and
                // to lose them.
                Some((MoveStage::Leaves, _))
                    if passage == Passage::NotYet
                        || passage == Passage::BySteps && !has_locks(slot) =>
                {
                    known[usize::from(is_left)].insert(slot);
                }
                _ if self.own.has(slot) => {
                    if passage != Passage::NotYet {
                        self.disputed.entry(slot).or_insert((place, now));
                    }
                }
                _ => {
                    let is_known = is_left || self.given.has(slot);
                    if is_known && self.is_theirs(slot, place) {
                        let is_whole = !is_left && self.has_all_moved(slot, (place, passage));
                        known[usize::from(!is_whole || has_locks(slot))].insert(slot);
                    }
                }
            }
        }
        known.map(runs)
    }

    /// Whether this master had a slot next that this node has lost, as far as the node knows.
    fn is_theirs(&self, slot: u16, place: usize) -> bool {
        let is_for_them = self.handed.get(&slot).is_none_or(|(to, _)| *to == place);
        is_for_them && self.former(slot) == Some(place)
    }

    /// Which other master had this slot last, if any did.
    fn former(&self, slot: u16) -> Option<usize> {
        usize::from(self.former[usize::from(slot)]).checked_sub(1)
    }

    /// Whether all locks have left with a slot that this node has lost. Its server deletes those
    /// that have not, and tells the module, unless a move at once of the slot has failed. Of a move
    /// at once it tells the end, unless it has given the move up: then locks were granted here
    /// before the other master took the slot all the same.
    fn has_all_moved(&self, slot: u16, (to, passage): (usize, Passage)) -> bool {
        let is_complete = match passage {
            Passage::AtOnce => matches!(self.handed.get(&slot), Some((_, Passage::AtOnce))),
            Passage::NotYet | Passage::BySteps => !self.behind.has(slot),
        };
        is_complete && !self.at_once.may_take_late(slot, to)
    }

    /// Takes a master's answer to a question from `at`.
    pub(super) fn answered(&mut self, name: &[u8], at: Instant, answer: &SlotAnswer, now: Instant) {
        let place = self.place_of(name);
        for slot in all(&answer.slots) {
            let seen = self.moves.get_mut(&slot).filter(|seen| seen.other == Some(place));
            if let Some(seen) = seen {
                seen.answered(at, answer, now);
            }
        }
    }

    /// The questions to ask now, with this number. They count as asked.
    pub(super) fn ask(&mut self, number: u64, now: Instant) -> Vec<Question> {
        let mut asked: BTreeMap<(usize, Passage), BTreeSet<u16>> = BTreeMap::new();
        for (slot, seen) in &mut self.moves {
            if let Some(other) = seen.other
                && seen.is_to_ask(now)
            {
                let passage = match seen.stage {
                    MoveStage::Comes => Passage::NotYet,
                    _ if self.at_once.is_complete(*slot) => Passage::AtOnce,
                    _ => Passage::BySteps,
                };
                asked.entry((other, passage)).or_default().insert(*slot);
            }
        }
        let question = |((other, passage), slots): ((usize, _), _)| {
            let master = self.others[other].name.clone();
            Question { master, number, passage, slots: runs(slots) }
        };
        asked.into_iter().map(question).collect()
    }

    /// What must be done before the node decides in a slot, just after a look. `steady_since`: see
    /// [`Move::coming`]. `longest`: the longest lease that the node knows of.
    pub(super) fn coming(
        &mut self,
        slot: u16,
        company: &Company,
        (now, steady_since, longest): (Instant, Instant, Millis),
    ) -> Coming {
        if self.disputed.contains_key(&slot) {
            return Coming::Asks;
        }
        let of_nobody = self.moves.get_mut(&slot).filter(|seen| seen.has_no_origin());
        if of_nobody.is_some_and(|seen| seen.is_in_doubt(company, (now, longest))) {
            return Coming::Asks;
        }
        let told = || self.others.iter().filter_map(|other| other.told);
        match self.moves.get(&slot) {
            Some(seen @ Move { other: Some(other), .. }) => {
                seen.coming(self.others[*other].told, (now, steady_since), longest)
            }
            Some(seen @ Move { stage: MoveStage::Found, .. }) => {
                let higher = |(at, one): (Instant, Footing), (_, other): (_, Footing)| {
                    (at, Footing { floor: one.floor.max(other.floor), ..one })
                };
                seen.coming(told().reduce(higher), (now, steady_since), longest)
            }
            // No other master has had it, as far as this node knows.
            _ => Coming::Knows(told().map(|(_, told)| told.floor).max().unwrap_or_default()),
        }
    }

    /// Its own slots in which the node decides, or did when they were on their way to another.
    pub(super) fn decided(&self) -> SlotSet {
        let mut decided = self.settled.clone();
        let has_decided = |seen: &Move| seen.stage == MoveStage::Leaves || seen.has_decided;
        let leaving = self.moves.iter().filter(|(_, seen)| has_decided(seen));
        leaving.for_each(|(slot, _)| decided.insert(*slot));
        decided
    }

    /// Whether another master may have decided in one of its slots, so that the node would not know
    /// after a start which one to ask; or the node waits in one.
    pub(super) fn has_doubts(&self) -> bool {
        let is_doubted = |seen: &Move| {
            seen.stage == MoveStage::Found || seen.has_decided || seen.until.is_some()
        };
        let is_to_doubt = self.doubts_first && self.looked_at.is_none();
        is_to_doubt || self.moves.values().any(|seen| seen.is_here() && is_doubted(seen))
    }

    /// Notes that any other master may have decided in all slots that the first look will show.
    pub(super) const fn doubt_first(&mut self) {
        self.doubts_first = true;
    }

    /// Notes the same of the slots that the node has had since its first look. Of those that have
    /// come since, it asks their former masters.
    pub(super) fn doubt_since_first_look(&mut self, now: Instant) {
        self.doubt(self.first.iter().collect(), now);
    }

    /// Notes that any other master may have decided in these slots.
    pub(super) fn doubt(&mut self, slots: Vec<u16>, now: Instant) {
        for slot in slots {
            self.settled.remove(slot);
            self.moves.insert(slot, Move::new(MoveStage::Found, None, now));
        }
    }

    /// Notes that the node waits in this slot. Returns whether that is news.
    pub(super) fn wait(&mut self, slot: u16, until: Instant) -> bool {
        let seen = self.moves.get_mut(&slot);
        seen.is_some_and(|seen| seen.until.replace(until).is_none())
    }

    /// Whether a wait is over in a slot in which the node does not decide yet.
    pub(super) fn has_waited(&self, now: Instant) -> bool {
        self.moves.values().any(|seen| seen.until.is_some_and(|at| at < now))
    }

    /// Notes that the node may decide in this slot. A slot that is still on its way is looked at
    /// each time, because the other master goes on deciding. Where nobody had one slot, the same is
    /// true of others that came as early.
    pub(super) fn settle(
        &mut self,
        slot: u16,
        company: &Company,
        (now, longest): (Instant, Millis),
    ) {
        let mut alike = vec![slot];
        if self.moves.get(&slot).is_some_and(Move::has_no_origin) {
            let of_nobody = self.moves.iter_mut().filter(|(_, seen)| seen.has_no_origin());
            let known = of_nobody.filter_map(|(slot, seen)| {
                let is_known = !seen.is_in_doubt(company, (now, longest)) && seen.has_no_origin();
                is_known.then_some(*slot)
            });
            alike.extend(known);
        }
        for slot in alike {
            if self.moves.get(&slot).is_none_or(Move::is_here) && self.own.has(slot) {
                self.moves.remove(&slot);
                self.at_once.is_over(slot);
                self.settled.insert(slot);
            }
        }
    }

    /// Its own slots in which the node cannot decide yet.
    pub(super) fn unsettled(&self) -> Vec<u16> {
        self.moves.iter().filter(|(_, seen)| seen.is_here()).map(|(slot, _)| *slot).collect()
    }

    /// Whether it decides in none of its own slots.
    pub(super) fn decides_nowhere(&self) -> bool {
        self.unsettled().len() == self.own.len()
    }

    /// When its wait in this slot is over, if it waits there.
    pub(super) fn end_of(&self, slot: u16) -> Option<Instant> {
        self.moves.get(&slot).filter(|seen| seen.is_here())?.until
    }

    /// When the first of its waits in its own slots is over.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.moves.values().filter(|seen| seen.is_here()).filter_map(|seen| seen.until).min()
    }

    /// Whether slots are on their way, or have just come.
    pub(super) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Whether the node decides in this slot without a further look.
    pub(super) fn is_settled(&self, slot: u16) -> bool {
        self.settled.has(slot) && !self.disputed.contains_key(&slot) && !self.deleted.has(slot)
    }

    /// Whether this slot is on its way, to this node or from it. The node looks at it with each
    /// command, and then decides if the other master has answered.
    pub(super) fn is_on_its_way(&self, slot: u16) -> bool {
        self.moves.get(&slot).is_some_and(|seen| !seen.is_here())
    }

    pub(super) const fn own(&self) -> &SlotSet {
        &self.own
    }

    pub(super) fn others(&self) -> &[OtherMaster] {
        &self.others
    }

    /// When the node first looked.
    pub(super) const fn looked_at(&self) -> Option<Instant> {
        self.looked_at
    }

    fn places_of(&mut self, masters: &[(u16, Vec<u8>)]) -> BTreeMap<u16, usize> {
        masters.iter().map(|(slot, name)| (*slot, self.place_of(name))).collect()
    }

    fn place_of(&mut self, name: &[u8]) -> usize {
        if let Some(place) = self.others.iter().position(|other| other.name == name) {
            return place;
        }
        self.others.push(OtherMaster::new(name));
        self.others.len() - 1
    }
}
