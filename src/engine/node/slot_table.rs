//! What a node knows of each slot of its Cluster, from its looks at who has which, and from the
//! other masters' answers.
//!
//! When a slot enters and leaves each set:
//!
//! | Set        | Enters                                         | Leaves                         |
//! |------------|------------------------------------------------|--------------------------------|
//! | `own`      | a look shows it                                | a look no longer shows it      |
//! | `settled`  | the first look shows it; its move is over      | it is lost; it begins to leave |
//! | `moves`    | it comes, has come, was found, begins to leave | it settles; it is lost         |
//! | `orphans`  | the first look shows it at nobody              | another master gets it         |
//! | `given`    | it is lost, and was not only in a move to here | another loses it to a third    |
//! | `promised` | it is lost while it leaves                     | it is lost again               |
//! | `left`     | it no longer comes, and has not come; the      | it is its own, and does not    |
//! |            | first look shows it leaving                    | leave; another loses it        |
//! | `kept`     | it is its own when writes go on                | it settles; it begins to leave |
//!
//! An own slot is either settled, or has a [`Move`] that says what is still to be done.

use std::collections::{BTreeMap, BTreeSet};

use super::company::Company;
use super::other_master::OtherMaster;
use super::shares::{Footing, SLOTS, Shares, SlotAnswer, SlotRuns};
use super::slot_move::{Coming, Move, MoveStage};
use super::slot_set::{SlotSet, all, runs};
use crate::engine::{Instant, Millis};

/// What is known of the slots, and the other masters that have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotTable {
    /// The other masters that the node knows.
    others: Vec<OtherMaster>,
    /// By slot: which of them had it last, counted from 1; zero if none did.
    former: Vec<u16>,
    own: SlotSet,
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
    /// Those of them that were on their way to another master then, which decided there too.
    promised: BTreeMap<u16, usize>,
    /// Those that the node still had when its server no longer held back writes. They may be lost
    /// by now, and their new master may ask late.
    kept: SlotSet,
    /// When the node first looked.
    looked_at: Option<Instant>,
}

impl SlotTable {
    pub(super) fn new() -> SlotTable {
        SlotTable { former: vec![0; usize::from(SLOTS)], ..SlotTable::default() }
    }

    /// Notes which master has which slots. Slots that the node has at its first look need nothing
    /// more: it had them when it stopped, or waits because it was promoted. Except those that it
    /// found, and those that are on their way to another master: see [`SlotTable::see_leaving`].
    /// `writes_again`: the server held back writes at the look before, and no longer does.
    pub(super) fn look(&mut self, shares: &Shares, writes_again: bool, now: Instant) {
        let own = SlotSet::of(&shares.own);
        // If a slot was handed over, the server held back writes up to that moment.
        if writes_again && self.own.without(&own).is_empty() {
            self.kept.add(&own);
        }
        self.see_lost(&own);
        self.see_others(shares);
        self.see_own(shares, own, now);
        self.see_coming(shares, now);
        self.see_leaving(shares, now);
        self.looked_at.get_or_insert(now);
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
        } else {
            let is_orphan = |slot: &u16| self.former[usize::from(*slot)] == 0 && !own.has(*slot);
            let orphans = (0..SLOTS).filter(|slot| !shares.had_none && is_orphan(slot));
            orphans.for_each(|slot| self.orphans.insert(slot));
            self.settled = own.clone();
            for slot in all(&shares.found).filter(|slot| own.has(*slot)) {
                self.settled.remove(slot);
                self.moves.insert(slot, Move::new(MoveStage::Found, None, now));
            }
        }
        self.own = own;
    }

    /// Slots that the node has lost. It can speak for those in which it decided.
    fn see_lost(&mut self, own: &SlotSet) {
        for slot in self.own.without(own) {
            let seen = self.moves.get(&slot).map(|seen| (seen.stage, seen.other));
            self.former[usize::from(slot)] = 0;
            self.given.insert(slot);
            self.promised.remove(&slot);
            match seen {
                Some((MoveStage::Came | MoveStage::Found, _)) => self.given.remove(slot),
                Some((MoveStage::Leaves, Some(target))) => {
                    self.promised.insert(slot, target);
                }
                _ => {}
            }
        }
    }

    fn see_coming(&mut self, shares: &Shares, now: Instant) {
        let importing = self.places_of(&shares.importing);
        let own = &self.own;
        self.moves.retain(|slot, seen| {
            let stays = own.has(*slot) || importing.contains_key(slot);
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
            let former = usize::from(self.former[usize::from(slot)]).checked_sub(1);
            let former = former.or(self.promised.get(&slot).copied());
            let is_orphan = former.is_none() && self.orphans.has(slot);
            let stage = if is_orphan { MoveStage::Found } else { MoveStage::Came };
            let seen = self.moves.entry(slot).or_insert(Move::new(stage, former, now));
            if seen.stage == MoveStage::Comes {
                *seen = Move::new(MoveStage::Came, seen.taken_by.or(seen.other), now);
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
            }
        }
        self.left.retain(|slot, _| !self.own.has(*slot) || migrating.contains_key(slot));
        for (slot, target) in migrating {
            if self.settled.has(slot) {
                let mut stage = MoveStage::Leaves;
                if self.looked_at.is_none() {
                    stage = MoveStage::Came;
                    self.left.insert(slot, target);
                }
                self.settled.remove(slot);
                self.kept.remove(slot);
                self.moves.insert(slot, Move::new(stage, Some(target), now));
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
        slots: &SlotRuns,
        now: Instant,
        mut has_locks: impl FnMut(u16) -> bool,
    ) -> [SlotRuns; 2] {
        let place = self.place_of(name);
        let mut known = [BTreeSet::new(), BTreeSet::new()];
        for slot in all(slots).map(|slot| slot % SLOTS) {
            let is_theirs = usize::from(self.former[usize::from(slot)]) == place + 1;
            let is_left = self.left.get(&slot) == Some(&place) || self.kept.has(slot);
            let seen = self.moves.get_mut(&slot).filter(|seen| seen.other == Some(place));
            match seen.map(|seen| (seen.stage, seen)) {
                Some((MoveStage::Comes, seen)) => {
                    // The master asks for itself: it decides again, or is about to.
                    seen.begin_again(now);
                    known[1].insert(slot);
                }
                Some((MoveStage::Leaves, _)) => drop(known[usize::from(is_left)].insert(slot)),
                Some((MoveStage::Came | MoveStage::Found, _)) | None => {
                    let is_for_them = self.promised.get(&slot).is_none_or(|to| *to == place);
                    let is_known = is_for_them && (is_left || self.given.has(slot));
                    if is_known && is_theirs && !self.own.has(slot) {
                        known[usize::from(is_left || has_locks(slot))].insert(slot);
                    }
                }
            }
        }
        known.map(runs)
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

    /// Which masters to ask now about which slots. They count as asked.
    pub(super) fn ask(&mut self, now: Instant) -> Vec<(&[u8], SlotRuns)> {
        let mut asked: BTreeMap<usize, BTreeSet<u16>> = BTreeMap::new();
        for (slot, seen) in &mut self.moves {
            if let Some(other) = seen.other
                && seen.is_to_ask(now)
            {
                asked.entry(other).or_default().insert(*slot);
            }
        }
        let named = |(other, slots): (usize, _)| (&self.others[other].name[..], runs(slots));
        asked.into_iter().map(named).collect()
    }

    /// What must be done before the node decides in a slot, just after a look. `longest`: the
    /// longest lease that the node knows of.
    pub(super) fn coming(
        &mut self,
        slot: u16,
        company: &Company,
        (now, longest): (Instant, Millis),
    ) -> Coming {
        let of_nobody = self.moves.get_mut(&slot).filter(|seen| seen.has_no_origin());
        if of_nobody.is_some_and(|seen| seen.is_in_doubt(company, (now, longest))) {
            return Coming::Asks;
        }
        let told = || self.others.iter().filter_map(|other| other.told);
        match self.moves.get(&slot) {
            Some(seen @ Move { other: Some(other), .. }) => {
                seen.coming(self.others[*other].told, now, longest)
            }
            Some(seen @ Move { stage: MoveStage::Found, .. }) => {
                let higher = |(at, one): (Instant, Footing), (_, other): (_, Footing)| {
                    let (floor, longest) =
                        (one.floor.max(other.floor), one.longest.max(other.longest));
                    (at, Footing { floor, longest, ..one })
                };
                seen.coming(told().reduce(higher), now, longest)
            }
            // No other master has had it, as far as this node knows.
            _ => Coming::Knows(told().map(|(_, told)| told.floor).max().unwrap_or_default()),
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
                self.kept.remove(slot);
                self.settled.insert(slot);
            }
        }
    }

    /// Its own slots in which the node cannot decide yet.
    pub(super) fn unsettled(&self) -> Vec<u16> {
        self.moves.iter().filter(|(_, seen)| seen.is_here()).map(|(slot, _)| *slot).collect()
    }

    /// Whether slots are on their way, or have just come.
    pub(super) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Whether the node decides in this slot without a further look.
    pub(super) fn is_settled(&self, slot: u16) -> bool {
        self.settled.has(slot)
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
