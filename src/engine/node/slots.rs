//! The slots of a Cluster: what a master must know before it decides in a slot that has moved to
//! it.
//!
//! A lock that comes with its slot brings its lease, its counter and the floor of its node. A name
//! that was forgotten there brings nothing, so the fences of a slot without locks could fall. And a
//! slot does not show whether the node that had it may have forgotten leases, nor whether that node
//! has handed it over: it may be dead, with leases that nobody else knows. So each master reports
//! its floor, and for how long it grants nothing, to the others, once a second and whenever that
//! changes; and a master that gets a slot asks the one that had it. With an answer it raises its
//! own floor, and waits as long as that node. Without one it waits for the longest lease.
//!
//! This value reads no clock and knows no server. docs/design.md, "Slots that move", has the rules.

use std::collections::BTreeSet;

use super::cluster_memory::ClusterMemory;
use super::company::{Company, Readiness};
use super::confirmations::Confirmations;
use super::electorate::Electorates;
use super::epoch::{Epoch, Rise};
use super::lengths::Lengths;
use super::pauses::Pauses;
use super::recovery::{Found, has_jumped, jump};
use super::shares::{
    Footing, MoveAtOnce, Question, Shares, SlotAnswer, SlotRuns, Sure, question_number,
};
use super::slot_move::Coming;
use super::slot_set::{all, runs};
use super::slot_table::SlotTable;
use super::witness::Witness;
use super::{BEAT, Caution, Change, Node, Stop};
use crate::engine::{Clocks, Fence, Instant, Millis, QuarantineReason, Refusal};

/// The outcome for a slot that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// The other master must answer first: see [`Node::questions`].
    Asks,
    /// The node decides there; whether it had to raise its floor.
    Decides(bool),
    /// It decides nowhere, since its start, for so long: see [`Node::news_of_silent`].
    Rests(Millis),
    /// It waits.
    Waits {
        /// For how long.
        left: Millis,
        /// For the state file.
        change: Option<Change>,
    },
}

/// How long a wait up to this instant lasts: at least a millisecond.
fn left(now: Instant, until: Instant) -> Millis {
    now.until(until.after(Millis::new(1)))
}

/// The slots of one master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    pub(super) boot: u64,
    pub(super) table: SlotTable,
    company: Company,
    pub(super) confirmations: Confirmations,
    pub(super) witness: Witness,
    pub(super) lengths: Lengths,
    /// Of the leases that it has granted and that are gone here, none ends later than this.
    pub(super) gone_until: Instant,
    epoch: Epoch,
    rise: Rise,
    pub(super) pauses: Pauses,
    /// When its floor last jumped after a wait.
    jumped_at: Option<Instant>,
    /// Its last report to the others, and when it was sent.
    pub(super) told: Option<(Instant, Footing)>,
    /// What the state file has as [`Saved::doubts`](super::Saved::doubts).
    has_noted_doubts: bool,
    /// What it has as [`ClusterMemory::failed_departures`].
    noted_failed_departures: SlotRuns,
    /// A node that rests on replicas has not begun its wait anew since most masters first confirmed
    /// the slots that it had at its start or promotion: of others, it asks their masters.
    owes_wait: bool,
    /// It knew others with a vote at its start.
    had_company: bool,
    /// Slots have come at once since the last survey began, so it may not see locks there.
    pub(super) hides_locks: bool,
}

impl Slots {
    fn new(boot: u64, was_promoted: bool, electorates: Electorates) -> Slots {
        let had_company = electorates.known.iter().any(|one| one.origin != 0);
        Slots {
            boot,
            table: SlotTable::new(),
            company: Company::new(was_promoted),
            confirmations: Confirmations::new(boot, electorates),
            witness: Witness::default(),
            lengths: Lengths::default(),
            gone_until: Instant::default(),
            epoch: Epoch::default(),
            rise: Rise::default(),
            pauses: Pauses::default(),
            jumped_at: None,
            told: None,
            has_noted_doubts: false,
            noted_failed_departures: SlotRuns::new(),
            owes_wait: was_promoted,
            had_company,
            hides_locks: false,
        }
    }

    pub(super) fn begin_survey(&mut self) {
        self.hides_locks = self.table.at_once.some_come();
    }

    /// Notes which master has which slots. `has_jumped`: whether this one ever has. Returns whether
    /// it has lost any.
    fn see(&mut self, shares: &Shares, has_jumped: bool, now: Instant) -> bool {
        if self.pauses.look(shares, now) {
            self.table.at_once.fail_departures();
        }
        self.owes_wait |= self.table.looked_at().is_none() && !shares.own.is_empty();
        self.table.look(shares, now);
        self.company.look(shares, (self.table.others(), has_jumped), now);
        self.epoch.look(shares, now);
        // With its epoch it wins back what others took while it was down. In a new Cluster, servers
        // raise their epochs too.
        let has_risen = self.rise.look(shares, now);
        if has_risen && self.had_company && self.confirmations.first_at().is_none() {
            self.table.doubt_since_first_look(now);
        }
        let has_lost = self.confirmations.look(shares, now);
        self.witness.look(shares);
        self.compare(now);
        has_lost
    }

    /// Notes that another master may decide until most masters confirm this one: it was promoted,
    /// or does not know what it did before its start. The state file has that.
    pub(super) fn doubt(&mut self) {
        self.table.doubt_first();
        self.has_noted_doubts = true;
    }

    /// Notes that the master found no state file, and no lock. The file has that as a doubt.
    pub(super) fn may_have_lived_before(&mut self) {
        self.confirmations.may_have_lived_before();
        self.has_noted_doubts = true;
    }

    /// What the state file must have: doubts before what follows from them, and their end last.
    fn news(&mut self, now: Instant) -> Vec<Change> {
        let doubts = self.table.has_doubts()
            || self.confirmations.is_to_learn_of_its_past()
            || self.rise.is_unconfirmed(&self.confirmations, now);
        let had_doubts = std::mem::replace(&mut self.has_noted_doubts, doubts);
        let electorates = self.confirmations.succession().news().map(Change::Electorates);
        let begin = (doubts && !had_doubts).then_some(Change::Doubts(true));
        let end = (!doubts && had_doubts).then_some(Change::Doubts(false));
        let longest = self.lengths.news(now);
        let failed = self.table.at_once.failed_departures();
        let before = std::mem::replace(&mut self.noted_failed_departures, failed.clone());
        let failed = (before != failed).then_some(Change::FailedDepartures(failed));
        // Whoever knows an electorate knows the lengths that came with it.
        begin.into_iter().chain(failed).chain(longest).chain(electorates).chain(end).collect()
    }

    /// Whether the node may decide at all. A rest does not end while too few masters answer: how
    /// long it must be is not known then.
    pub(super) fn readiness(&self, now: Instant, longest: Millis) -> Readiness {
        let confirmed_at = self.confirmations.first_at();
        let confirmed_at = confirmed_at.filter(|_| self.confirmations.reach_most(now));
        self.company.readiness((now, confirmed_at), longest)
    }

    /// Notes how much of what the file had holds: until when leases may stand that were granted
    /// before the start and are not in the data set, and whether instants are of the present clock.
    pub(super) fn starts(
        &mut self,
        found: Found,
        (gone_until, is_same_clock): (Instant, bool),
        now: Instant,
    ) {
        self.gone_until = gone_until;
        if !is_same_clock {
            self.lengths.count_anew(now);
        }
        if matches!(found, Found::Present(saved) if saved.was_replica) {
            self.confirmations.succession().note_replica();
        }
    }

    /// Compares what most masters confirm with what they did before.
    pub(super) fn compare(&mut self, now: Instant) {
        let broken = self.confirmations.advance(&self.table.decided(), now);
        self.table.doubt(broken, now);
    }

    /// Takes a master's answer to the question with this number.
    fn answered(&mut self, name: &[u8], number: u64, answer: &SlotAnswer, now: Instant) {
        if let Some(at) = self.asked_at(number, now) {
            self.table.answered(name, at, answer, now);
        }
    }

    /// When this node asked the question with this number, if it did.
    pub(super) fn asked_at(&self, number: u64, now: Instant) -> Option<Instant> {
        let at = number.checked_sub(question_number(self.boot, Instant::default()));
        at.map(Instant::from_millis).filter(|at| *at <= now)
    }

    /// The questions to ask now.
    fn questions(&mut self, now: Instant) -> Vec<Question> {
        self.table.ask(question_number(self.boot, now), now)
    }

    /// Whether the node may decide in this slot without a look.
    fn is_settled(&self, slot: u16, (now, own_longest): (Instant, Millis)) -> bool {
        self.company.decides()
            && self.table.is_settled(slot)
            && self.pauses.knows(now)
            && self.confirmations.holds(slot, now)
            && self.confirmations.know_of(own_longest, now)
    }

    /// Whether a look may find that the node decides in a slot that is on its way.
    fn may_pass(&self, slot: u16, now: Instant) -> bool {
        let is_confirmed = !self.table.own().has(slot) || self.confirmations.holds(slot, now);
        self.company.decides() && self.table.is_on_its_way(slot) && is_confirmed
    }

    /// What must be done before the node decides in a slot, just after a look. `longest`: the
    /// longest lease that the node knows of, and that it may grant itself.
    fn coming(&mut self, slot: u16, now: Instant, (longest, own): (Millis, Millis)) -> Coming {
        // Who has a slot that is on its way here asks for both.
        let is_own = self.table.own().has(slot);
        let steady_since = match is_own {
            true => self.confirmations.steady_since(slot, now),
            false => Some(now),
        };
        let may_decide = self.pauses.knows(now) && self.confirmations.know_of(own, now);
        match steady_since.filter(|_| may_decide) {
            Some(since) => self.table.coming(slot, &self.company, (now, since, longest)),
            None => Coming::Asks,
        }
    }

    /// Whether one of its slots is not confirmed, and may be soon.
    pub(super) fn is_hurried(&self, now: Instant) -> bool {
        let is_confirmed = |slot: u16| self.confirmations.holds(slot, now);
        self.confirmations.is_changing()
            || !self.confirmations.reach_most(now)
            || !self.table.unsettled().into_iter().all(is_confirmed)
    }

    /// These slots by whether this node may still decide there, or might: those where it may not,
    /// and since when at the longest; the others, and for how long at the least.
    pub(super) fn by_confirmation(&self, slots: &SlotRuns, now: Instant) -> [(Sure, SlotRuns); 2] {
        let ends_at = |slot: &u16| self.confirmations.ends_at(*slot, now);
        let (over, sure): (BTreeSet<u16>, BTreeSet<u16>) =
            all(slots).partition(|slot| ends_at(slot) <= now);
        [over, sure].map(|slots| {
            let first = slots.iter().map(ends_at).min().unwrap_or_default();
            (Sure::of(first, now), runs(slots))
        })
    }

    /// Ends a wait, also one that is skipped: then, too, the former master must not win the slot
    /// back. Returns whether the floor must jump. It need not if it has since the wait was over, or
    /// for another that was skipped within a second.
    fn end_wait(&mut self, until: Instant, now: Instant) -> bool {
        let is_skipped = now <= until;
        if is_skipped {
            self.epoch.owe();
        }
        let is_for_it = |at: Instant| until < at || is_skipped && now <= at.after(BEAT);
        !self.jumped_at.is_some_and(is_for_it)
    }

    /// Notes that the node waits in this slot. `change`: what the state file must say of that; it
    /// must say at least that the node doubts.
    fn wait(&mut self, slot: u16, until: Instant, change: Option<Change>) -> Option<Change> {
        let had_doubts = std::mem::replace(&mut self.has_noted_doubts, true);
        if self.table.wait(slot, until) {
            self.epoch.owe();
        }
        change.or((!had_doubts).then_some(Change::Doubts(true)))
    }

    /// Whether the epoch is to be raised now, just after a look.
    fn owes_epoch(&self, now: Instant) -> bool {
        self.epoch.is_due(|| self.table.has_waited(now), now)
    }
}

impl Node {
    /// Notes that the node is in a Cluster, and has not looked at its slots since its start. The
    /// number of a question contains the boot, so that no answer to a question of an earlier one
    /// counts: its clock may have been ahead. `memory`: that of the state file.
    pub fn join_cluster(&mut self, boot: u64, memory: ClusterMemory, now: Instant) {
        let ClusterMemory { electorates, lengths, gone_until, failed_departures } = memory;
        let mut slots = Slots::new(boot, false, electorates);
        slots.lengths = Lengths::restored(lengths, now);
        slots.gone_until = gone_until.unwrap_or_default();
        slots.table.at_once.remember_failed(&failed_departures);
        slots.noted_failed_departures = failed_departures;
        self.slots = Some(Box::new(slots));
    }

    /// The same for a replica that was promoted: it has not looked since then, and remembers the
    /// electorates and the nodes that it knew, and how long their leases may stand.
    pub fn rejoin_cluster(&mut self, boot: u64) {
        let electorates = self.electorates().cloned().unwrap_or_default();
        let mut slots = Slots::new(boot, true, electorates);
        if let Some(before) = &self.slots {
            slots.confirmations.remember(&before.confirmations);
            slots.lengths.clone_from(&before.lengths);
            slots.table.at_once.remember_failed(&before.table.at_once.failed_departures());
            slots.noted_failed_departures.clone_from(&before.noted_failed_departures);
        }
        self.slots = Some(Box::new(slots));
    }

    /// The electorates that the node knows, in a Cluster.
    pub fn electorates(&self) -> Option<&Electorates> {
        self.slots.as_ref().map(|slots| slots.confirmations.electorates())
    }

    /// How many electorates the node knows, and one more while others have slots than those of the
    /// last one; 0 outside of a Cluster.
    pub(super) fn electorate_count(&self) -> usize {
        self.slots.as_ref().map_or(0, |slots| slots.confirmations.electorate_count())
    }

    /// What the state file must have of slots and electorates before another message is sent.
    pub fn news_of_slots(&mut self, now: Instant) -> Vec<Change> {
        self.slots.as_mut().map(|slots| slots.news(now)).unwrap_or_default()
    }

    /// Lets a node that rests on replicas begin its wait anew when most masters first confirm its
    /// slots: until then, another master may have decided there. It waits longer if it hears of a
    /// longer lease meanwhile.
    pub(super) fn wait_for_others(&mut self, now: Instant) {
        let authority = self.promises.authority_mut();
        let Some((authority, slots)) = authority.zip(self.slots.as_mut()) else { return };
        if !slots.owes_wait {
            authority.waits_longer(slots.longest(now));
        } else if slots.confirmations.first_at().is_some() {
            slots.owes_wait = false;
            authority.waits_for(slots.longest(now), now);
        }
    }

    /// Notes that the node cannot look at its slots, and so decides in all of them.
    pub fn leave_cluster(&mut self) {
        self.slots = None;
    }

    /// Notes that the next look is the last one: the server is about to stop.
    pub fn looks_last(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.rise.stops();
        }
    }

    /// Whether the node needs to look at slots at all.
    #[inline]
    pub fn is_in_cluster(&self) -> bool {
        self.slots.is_some()
    }

    /// Whether the node decides in a slot without further steps: see [`Node::come`].
    pub fn decides_in(&self, slot: u16, (now, max_ttl): (Instant, Millis)) -> bool {
        let longest = self.own_longest(max_ttl, now);
        self.slots.as_ref().is_none_or(|slots| slots.is_settled(slot, (now, longest)))
    }

    /// Why the node does not decide in this slot, while it does in others.
    pub fn obstacle_in(&self, slot: u16, (now, max_ttl): (Instant, Millis)) -> Option<Refusal> {
        let slots = self.slots.as_ref().filter(|_| !self.decides_in(slot, (now, max_ttl)))?;
        if slots.may_pass(slot, now) {
            return None;
        }
        Some(match slots.table.end_of(slot) {
            Some(until) => {
                let (reason, left) = (QuarantineReason::OtherMaster, left(now, until));
                Refusal::Quarantine { reason, left }
            }
            None => Refusal::SlotMoving { slot },
        })
    }

    /// Whether the node may have lost slots without knowing: it has hung, or its server holds back
    /// writes.
    pub fn may_have_lost_slots(&self, now: Instant) -> bool {
        self.slots.as_ref().is_some_and(|slots| !slots.pauses.knows(now))
    }

    /// Notes which master has which slots.
    pub fn see(&mut self, shares: &Shares, now: Instant) {
        let has_jumped = has_jumped(self.promises.highest());
        let has_lost = self.slots.as_mut().is_some_and(|slots| slots.see(shares, has_jumped, now));
        if has_lost {
            // A server may remove what is there later, and not say so.
            self.are_gone(self.promises.longest());
        }
        self.wait_for_others(now);
    }

    /// Takes what the server tells of slots that it moves at once. Those that have left must be
    /// looked at before anything else. `to`: where the move led. Redis names that; Valkey
    /// does not, but checks it. A move that fails is counted where the slots stay.
    pub fn move_at_once(&mut self, step: MoveAtOnce, moved: &SlotRuns, to: Option<&[u8]>) {
        self.tally.counts.failed_moves += u64::from(step == MoveAtOnce::LeavesNot);
        if let Some(slots) = &mut self.slots {
            slots.table.move_at_once(step, moved, to);
            if step == MoveAtOnce::HasLeft {
                slots.pauses.note_left();
            }
            slots.hides_locks |= matches!(step, MoveAtOnce::Comes | MoveAtOnce::HasCome);
        }
    }

    /// Whether this slot is on its way here at once, or has just come so.
    pub fn comes_at_once(&self, slot: u16) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.table.at_once.comes(slot))
    }

    /// Takes another master's report.
    pub fn hear(&mut self, name: &[u8], footing: Footing, now: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.table.hear(name, footing, now);
        }
    }

    /// Takes another master's answer to the question with this number.
    pub fn answered(&mut self, name: &[u8], number: u64, answer: &SlotAnswer, now: Instant) {
        if let Some(own) = &mut self.slots {
            own.table.hear(name, answer.footing, now);
            own.answered(name, number, answer, now);
        }
    }

    /// Whether slots are on their way, or have just come.
    pub fn has_moving_slots(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.table.has_moves())
    }

    /// Whether the node has looked at its slots since its start or promotion. If it has become a
    /// replica since, it can still speak for the slots that it had.
    pub fn has_looked(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.table.looked_at().is_some())
    }

    /// The questions to send to other masters now. Each counts as asked at `now`.
    pub fn questions(&mut self, now: Instant) -> Vec<Question> {
        self.slots.as_mut().map(|slots| slots.questions(now)).unwrap_or_default()
    }

    /// Its own slots in which the node does not decide yet because they have come, or were found.
    /// After a start it may decide in none of the others either, see [`Node::decides_in`]: then one
    /// of them is among these.
    pub fn unsettled_slots(&self) -> Vec<u16> {
        let Some(slots) = self.slots.as_deref() else { return Vec::new() };
        let mut unsettled = slots.table.unsettled();
        if unsettled.is_empty() && !slots.company.decides() {
            unsettled.extend(slots.table.own().first());
        }
        unsettled
    }

    /// Why the node decides in none of its slots: since its start it has not heard enough masters,
    /// or waits for the leases of those that it has not heard; or most do not confirm its slots; or
    /// it waits in each of them.
    pub(super) fn common_obstacle(
        &self,
        now: Instant,
        (max_ttl, caution): (Millis, Caution),
    ) -> Option<Refusal> {
        let slots = self.slots.as_ref()?;
        let slot = slots.table.own().first()?;
        match slots.readiness(now, self.longest(max_ttl, now)) {
            Readiness::Alone => Some(Refusal::SlotMoving { slot }),
            Readiness::Rests(until) if caution.quarantine => {
                let (reason, left) = (QuarantineReason::OtherMaster, left(now, until));
                Some(Refusal::Quarantine { reason, left })
            }
            _ if !slots.confirmations.reach_most(now) => Some(Refusal::SlotMoving { slot }),
            _ if slots.table.decides_nowhere() => Some(match slots.table.first_end() {
                Some(until) if caution.quarantine => {
                    let (reason, left) = (QuarantineReason::OtherMaster, left(now, until));
                    Refusal::Quarantine { reason, left }
                }
                Some(_) | None => Refusal::SlotMoving { slot },
            }),
            _ => None,
        }
    }

    /// In how many of its own slots the node grants nothing: in all, if there is a common obstacle;
    /// otherwise in those that have come, or were found. And how much longer, at least, it waits
    /// there; zero if it only asks other masters.
    pub(super) fn unsettled(&self, obstacle: Option<&Refusal>, now: Instant) -> (usize, Millis) {
        let Some(Slots { table, .. }) = self.slots.as_deref() else { return Default::default() };
        match obstacle {
            Some(Refusal::Quarantine { left, .. }) => (table.own().len(), *left),
            Some(_) => (table.own().len(), Millis::ZERO),
            None => {
                let first = table.first_end().map(|until| left(now, until));
                (table.unsettled().len(), first.unwrap_or_default())
            }
        }
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
        let lengths @ (longest, _) = (self.longest(max_ttl, now), self.own_longest(max_ttl, now));
        let before = self.promises.floor();
        let Some(slots) = &mut self.slots else { return Ok(Came::Decides(false)) };
        match slots.readiness(now, longest) {
            Readiness::Alone => return Ok(Came::Asks),
            Readiness::Rests(until) if caution.quarantine => {
                return Ok(Came::Rests(left(now, until)));
            }
            Readiness::Rests(_) | Readiness::Jumps => {
                self.promises.lift_floor(jump(self.promises.highest(), clocks.wall))?;
                slots.company.has_jumped();
            }
            Readiness::Decides => {}
        }
        let floor = match slots.coming(slot, now, lengths) {
            Coming::Asks => return Ok(Came::Asks),
            Coming::Knows(floor) => floor,
            Coming::Waits(until, known) if caution.quarantine => {
                let change = self.promises.wait_in_slot((until, known), clocks)?;
                let change = slots.wait(slot, until, change);
                return Ok(Came::Waits { left: left(now, until), change });
            }
            Coming::HasWaited(..) if slots.epoch.is_owed() => {
                return Ok(Came::Waits { left: left(now, now), change: None });
            }
            Coming::Waits(until, known) | Coming::HasWaited(until, known) => {
                let jumps = slots.end_wait(until, now);
                let least =
                    if jumps { jump(self.promises.highest(), clocks.wall) } else { Fence::ZERO };
                self.promises.lift_floor(least.max(known))?;
                slots.jumped_at = if jumps { Some(now) } else { slots.jumped_at };
                least.max(known)
            }
        };
        self.promises.lift_floor(floor)?;
        slots.table.settle(slot, &slots.company, (now, longest));
        Ok(Came::Decides(before < self.promises.floor()))
    }

    /// Whether the server's configuration epoch is to be raised now, just after the node has looked
    /// at its slots.
    pub fn owes_epoch(&self, now: Instant) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.owes_epoch(now))
    }

    /// Notes that the server was told to raise its epoch. `is_highest`: it is higher than that of
    /// each other master; otherwise it is still to be raised.
    ///
    /// The next report is due at once: it carries the epoch, and another master that waits must not
    /// take the same.
    pub fn raised_epoch(&mut self, is_highest: bool) {
        if let Some(slots) = &mut self.slots {
            slots.epoch.raised(is_highest);
            slots.told = None;
        }
    }

    /// The masters whose leases the node waits for since its start, because it has not heard them,
    /// and for how long; once.
    pub fn news_of_silent(
        &mut self,
        now: Instant,
        max_ttl: Millis,
    ) -> Option<(Vec<Vec<u8>>, Millis)> {
        let longest = self.longest(max_ttl, now);
        let slots = self.slots.as_mut()?;
        let Readiness::Rests(until) = slots.readiness(now, longest) else { return None };
        let silent = slots.company.news_of_silent(slots.table.others(), now);
        (!silent.is_empty()).then(|| (silent, left(now, until)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::SUPPORT;
    use super::super::authority::with_drift;
    use super::super::electorate::Elector;
    use super::super::shares::{ConfirmQuestion, Confirmation, Passage};
    use super::*;
    use crate::engine::{Claim, Electorate, HeldCount, Lock, Mode, Token, UnixTime};

    const LONGEST: Millis = Millis::new(1_000);
    const WALL: u64 = 1_700_000_000_000;
    const CAUTION: Caution = Caution { quarantine: true, on_promotion: true };

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
        Shares { own, others: vec![(b"bb".to_vec(), theirs.collect())], ..Shares::default() }
    }

    fn coming(slot: u16) -> Shares {
        Shares { importing: vec![(slot, b"bb".to_vec())], ..shares(&[]) }
    }

    fn leaving(slot: u16, to: &[u8]) -> Shares {
        Shares { migrating: vec![(slot, to.to_vec())], ..shares(&[]) }
    }

    /// Slot 9 has gone to `bb`.
    fn given() -> Shares {
        let others = vec![(b"bb".to_vec(), vec![(9, 19)])];
        Shares { own: vec![(0, 8)], others, ..Shares::default() }
    }

    const BOOT: u64 = 7;

    fn number(asked_at: u64) -> u64 {
        question_number(BOOT, at(asked_at))
    }

    /// It has heard the other master for long enough.
    fn joined() -> Node {
        let mut node = Node::new();
        node.join_cluster(BOOT, ClusterMemory::default(), at(0));
        node.hear(b"bb", footing(0, 0), at(0));
        node.hear(b"bb", footing(0, 0), at(1_000));
        node
    }

    impl Node {
        /// Looks, as it has all the time.
        fn sees(&mut self, shares: &Shares, now: Instant) {
            self.slots.as_mut().unwrap().pauses.hang.had_none(now);
            self.see(shares, now);
            self.is_confirmed(now);
        }

        /// All other masters confirm which slots are its own, as they have all the time.
        fn is_confirmed(&mut self, now: Instant) {
            let slots = self.slots.as_mut().unwrap();
            slots.confirmations.all_confirm(slots.rise.epoch.unwrap_or_default(), now);
        }
    }

    /// Whether it decides there just after a look.
    fn decides(node: &Node, slot: u16) -> bool {
        let looked_at = node.slots.as_ref().unwrap().pauses.hang.looked_at();
        node.decides_in(slot, (looked_at, LONGEST))
    }

    /// The state file has the end of the second.
    fn recorded(until: Instant) -> Option<Change> {
        Some(Change::Waits { until: at(until.as_millis().div_ceil(1_000) * 1_000) })
    }

    fn waits(left: u64, change: Option<Change>) -> Came {
        Came::Waits { left: Millis::new(left), change }
    }

    fn node() -> Node {
        let mut node = joined();
        assert!(!decides(&node, 5), "it has not looked");
        node.sees(&shares(&[]), at(0));
        assert!(decides(&node, 5) && !decides(&node, 10));
        node
    }

    /// Also raises the epoch when it is due.
    fn come(node: &mut Node, slot: u16, now: u64) -> Came {
        node.slots.as_mut().unwrap().pauses.hang.had_none(at(now));
        node.is_confirmed(at(now));
        if node.owes_epoch(at(now)) {
            node.raised_epoch(true);
        }
        let clocks = Clocks { now: at(now), wall: UnixTime::from_millis(WALL + now) };
        node.come(slot, clocks, (LONGEST, CAUTION)).expect("it keeps no file")
    }

    fn footing(floor: u64, left: u64) -> Footing {
        Footing { floor: fence(floor), left: Millis::new(left) }
    }

    fn tell(node: &mut Node, floor: u64, left: u64, now: u64) {
        node.hear(b"bb", footing(floor, left), at(now));
    }

    fn claim() -> Claim<'static> {
        let token = Token::new(b"token", 64).expect("short");
        Claim { token, ttl: Millis::new(7_000), mode: Mode::Exclusive }
    }

    /// The answer of a master that has been up for long.
    fn answer(floor: u64, left: u64, slots: SlotRuns) -> SlotAnswer {
        let (footing, up) = (footing(floor, left), Millis::new(1_000_000));
        SlotAnswer { footing, up, held: Millis::ZERO, sure: Sure::For(SUPPORT), slots }
    }

    /// Asks at one instant; `bb` answers at another.
    fn ask(node: &mut Node, (floor, left): (u64, u64), (asked, answered): (u64, u64)) {
        for Question { master, number, slots, .. } in node.questions(at(asked)) {
            node.answered(&master, number, &answer(floor, left, slots), at(answered));
        }
    }

    #[test]
    fn a_slot_brings_the_floor_of_the_node_that_had_it() {
        let mut node = node();
        tell(&mut node, 5, 0, 100);
        node.sees(&shares(&[12, 13]), at(5_000));
        assert_eq!(node.unsettled_slots(), [12, 13]);
        assert_eq!(come(&mut node, 12, 5_000), Came::Asks, "a report may be from before");
        ask(&mut node, (7_000_000, 0), (5_000, 5_100));
        assert_eq!(come(&mut node, 12, 5_100), Came::Decides(true));
        assert_eq!(node.promises().floor(), fence(7_000_000));
        assert_eq!(come(&mut node, 13, 5_100), Came::Decides(false));
        assert!(node.unsettled_slots().is_empty() && decides(&node, 12));
        // It leaves, and comes back after names were forgotten meanwhile.
        node.sees(&shares(&[13]), at(5_200));
        node.sees(&shares(&[12, 13]), at(6_000));
        assert_eq!(node.unsettled_slots(), [12]);
        ask(&mut node, (70_000_000, 0), (6_000, 6_001));
        assert_eq!(come(&mut node, 12, 6_100), Came::Decides(true));
    }

    #[test]
    fn who_gets_a_slot_waits_as_long_as_the_node_that_had_it() {
        let mut node = node();
        node.sees(&shares(&[12, 13]), at(100));
        ask(&mut node, (5, 2_000), (100, 100));
        let until = at(100 + 2_000 + 22);
        let news = recorded(until);
        assert_eq!(come(&mut node, 12, 200), waits(1_923, news));
        // Regression: after a wait that ended early, the file had no doubts in the next one.
        node.slots.as_mut().unwrap().has_noted_doubts = false;
        assert_eq!(come(&mut node, 13, 299), waits(1_824, Some(Change::Doubts(true))));
        assert_eq!(come(&mut node, 13, 300), waits(1_823, None), "the wait is already recorded");
        assert_eq!(node.promises().waited_for(at(2_122)), Some(at(3_000)));
        let floor = node.promises().floor();
        assert!(floor > Fence::of_time(UnixTime::from_millis(WALL)), "if it starts again");
        let told = Footing { floor, left: Millis::ZERO };
        assert_eq!(node.tell(at(1_000), LONGEST), Some(told), "it decides in other slots");
        assert_eq!(come(&mut node, 12, 2_122), waits(1, None));
        assert_eq!(come(&mut node, 12, 2_123), Came::Decides(true));
        assert!(node.promises().floor() > floor);
        // It decides again, so the node that has its slots may decide too.
        tell(&mut node, 5, 0, 1_500);
        assert_eq!(come(&mut node, 13, 1_600), Came::Decides(false));
    }

    /// Regression: the report of a master that has died since was believed for 5 seconds; and when
    /// it was back, its report ended the wait for the leases that it had granted in the slot.
    #[test]
    fn who_gets_a_slot_from_a_node_that_does_not_answer_waits_for_the_longest_lease() {
        for (told, longest) in [(None, 1_000), (Some(1_000), 1_000), (Some(9_000), 9_000)] {
            let mut node = node();
            if let Some(longest) = told {
                node.hear(b"bb", footing(5, 0), at(5_000));
                asks_with(&mut node, b"bb", longest, 5_000);
            }
            node.sees(&shares(&[12]), at(5_100));
            let asked = node.questions(at(5_100));
            let [Question { master, slots, .. }] = &asked[..] else { panic!("one: {asked:?}") };
            assert_eq!((&master[..], &slots[..]), (&b"bb"[..], &[(12, 12)][..]));
            assert!(node.questions(at(5_199)).is_empty(), "not at once again");
            let mut asking = (5_200..10_100).step_by(100);
            assert!(asking.all(|now| node.questions(at(now)).len() == 1), "every 100 ms");
            assert_eq!(come(&mut node, 12, 10_100), Came::Asks);
            let obstacle = |node: &Node, now| node.obstacle_in(12, (at(now), LONGEST));
            assert_eq!(obstacle(&node, 10_100), Some(Refusal::SlotMoving { slot: 12 }));
            let wait = with_drift(SUPPORT.saturating_add(Millis::new(longest)));
            let left = |now| at(now).until(at(5_100).after(wait).after(Millis::new(1)));
            let Came::Waits { left: first, change: Some(_) } = come(&mut node, 12, 10_101) else {
                panic!("it waits")
            };
            assert_eq!(first, left(10_101));
            let reason = QuarantineReason::OtherMaster;
            let refusal = Refusal::Quarantine { reason, left: left(10_101) };
            assert_eq!(obstacle(&node, 10_101), Some(refusal), "LOCK.INFO tells");
            // It is back, reports, and answers the question.
            node.hear(b"bb", footing(5, 0), at(10_200));
            node.answered(b"bb", number(5_100), &answer(5, 0, slots.clone()), at(10_200));
            assert!(node.questions(at(10_300)).is_empty(), "its answer would mean nothing");
            assert_eq!(come(&mut node, 12, 10_300), waits(left(10_300).get(), None));
            let over = 5_101 + wait.get();
            assert_eq!(come(&mut node, 12, over), Came::Decides(true));
        }
    }

    /// Another master asks for confirmation, with the longest lease that it grants.
    fn asks_with(node: &mut Node, name: &[u8], longest: u64, now: u64) -> Option<Confirmation> {
        let asked = ConfirmQuestion {
            number: question_number(3, at(now)),
            since: 0,
            life: 9,
            longest: Millis::new(longest),
            digest: 0,
            electorates: None,
            remembered: Vec::new(),
        };
        node.confirm(name, &asked, at(now))
    }

    /// One with a vote confirms the first ten slots: its answer to the question of a time about
    /// what was lost since another, and the longest lease that it remembers.
    fn answers(
        node: &mut Node,
        name: &[u8],
        times: (Instant, Instant),
        longest: u64,
        now: Instant,
    ) {
        let confirmations = &mut node.slots.as_mut().unwrap().confirmations;
        let voters = confirmations.electorates().known.iter().flat_map(|one| &one.members);
        let voter = voters.clone().find(|one| one.name == name).cloned().expect("it has a vote");
        let (slots, longest) = (vec![(0, 9)], Millis::new(longest));
        let told = Confirmation { slots, longest, epoch: 1, ..Confirmation::default() };
        confirmations.confirmed(&voter, times, &told, now);
    }

    /// It knows one electorate of these.
    fn knowing(itself: &[u8], members: &[&[u8]]) -> ClusterMemory {
        let member = |name: &[u8]| Elector { name: name.to_vec(), life: 1 };
        let members = members.iter().map(|name| member(name)).collect();
        let known = [Electorate { number: 1, origin: 5, members }].into();
        let electorates = Electorates { itself: member(itself), known, ..Electorates::default() };
        ClusterMemory { electorates, ..ClusterMemory::default() }
    }

    fn four() -> Shares {
        let mut shares = shares(&[]);
        shares.others.push((b"cc".to_vec(), vec![(20, 29)]));
        shares.others.push((b"dd".to_vec(), vec![(30, 39)]));
        shares
    }

    /// Regression: a master that was promoted where it was cut off from the others decided in slots
    /// that another master had got meanwhile.
    #[test]
    fn a_promoted_master_decides_nothing_before_it_has_heard_most_of_the_others() {
        let shares = four();
        let mut node = Node::new();
        node.rejoin_cluster(BOOT);
        let looks = |node: &mut Node, now| {
            node.sees(&shares, at(now));
            assert_eq!(decides(node, 5), come(node, 5, now) != Came::Asks);
            decides(node, 5)
        };
        for other in [b"bb", b"bb", b"ee"] {
            node.hear(other, footing(5, 0), at(100));
        }
        node.hear(b"bb", footing(5, 0), at(700));
        assert!(!looks(&mut node, 700), "it and one other are two of four");
        assert!(!node.tell(at(700), LONGEST).unwrap().left.is_zero(), "it grants nothing");
        node.hear(b"cc", footing(5, 0), at(700));
        node.hear(b"cc", footing(5, 0), at(1_199));
        assert!(!looks(&mut node, 1_199), "what the other says of slots may be on its way");
        node.hear(b"cc", footing(5, 0), at(1_200));
        assert!(looks(&mut node, 1_200));
        node.join_cluster(BOOT, ClusterMemory::default(), at(0));
        assert!(!looks(&mut node, 1_300), "it has started again");
        let alone = Shares { others: Vec::new(), ..shares.clone() };
        node.join_cluster(BOOT, ClusterMemory::default(), at(0));
        node.sees(&alone, at(1_400));
        assert!(decides(&node, 5));
    }

    /// Regression: masters that had all been down decided, because they were the most by what they
    /// had known before; another master had taken their slots, and did not run.
    #[test]
    fn a_master_that_jumped_in_an_earlier_run_jumps_again() {
        let mut node = joined();
        let by_time = |wall| jump(Fence::ZERO, UnixTime::from_millis(wall));
        node.promises.lift_floor(by_time(WALL - 9_000)).expect("it keeps no file");
        node.sees(&shares(&[]), at(1_000));
        assert!(!decides(&node, 5), "others may have jumped since");
        // Regression: without a request it never jumped, and reported the floor of before to the
        // master that got a slot.
        assert_eq!(node.unsettled_slots(), [0], "it need not be asked for a lock");
        assert_eq!(node.footing(at(1_000), LONGEST).left, Millis::new(1));
        assert_eq!(come(&mut node, 0, 1_000), Came::Decides(true));
        assert!(decides(&node, 5) && node.unsettled_slots().is_empty());
        let told = node.footing(at(1_000), LONGEST);
        assert_eq!((told.floor, told.left), (by_time(WALL + 1_000), Millis::ZERO));
    }

    #[test]
    fn a_master_that_starts_waits_for_the_leases_of_those_that_it_has_not_heard() {
        let idle = Shares { idle: vec![b"ee".to_vec()], ..four() };
        for silent in [b"dd", b"ee"] {
            let started = || {
                let mut node = Node::new();
                node.join_cluster(BOOT, ClusterMemory::default(), at(0));
                node.sees(&idle, at(100));
                for other in [b"bb", b"cc", b"dd", b"ee"].iter().filter(|other| **other != silent) {
                    node.hear(*other, footing(5, 0), at(200));
                    node.hear(*other, footing(5, 0), at(700));
                }
                node
            };
            let mut node = started();
            let over = at(100).after(with_drift(SUPPORT.saturating_add(LONGEST))).as_millis();
            // That the others forget it says nothing about its leases.
            for shares in [&idle, &shares(&[])] {
                node.sees(shares, at(700));
                assert_eq!(come(&mut node, 5, 700), Came::Rests(Millis::new(over + 1 - 700)));
                assert_eq!(node.news_of_silent(at(800), LONGEST), None, "it may just be late");
            }
            node.is_confirmed(at(5_100));
            let news = Some((vec![silent.to_vec()], Millis::new(over + 1 - 5_100)));
            assert_eq!(node.news_of_silent(at(5_100), LONGEST), news);
            assert_eq!(node.news_of_silent(at(5_200), LONGEST), None, "once");
            assert!(!node.tell(at(700), LONGEST).unwrap().left.is_zero(), "it grants nothing");
            assert_eq!(come(&mut node, 5, over), Came::Rests(Millis::new(1)));
            // Regressions: cut off, it forgot that others may have longer leases, and rested
            // enough; and it said for ever how long it would rest.
            let cut_off = Clocks { now: at(60_000), wall: UnixTime::from_millis(WALL) };
            assert_eq!(node.come(5, cut_off, (LONGEST, CAUTION)), Ok(Came::Asks));
            let obstacle = node.common_obstacle(at(60_000), (LONGEST, CAUTION));
            assert!(matches!(obstacle, Some(Refusal::SlotMoving { .. })));
            assert_eq!(come(&mut node, 5, over + 1), Came::Decides(true));
            assert!(node.promises().floor() > Fence::of_time(UnixTime::from_millis(WALL)));
            assert!(decides(&node, 6));
            let mut node = started();
            node.join_cluster(BOOT, ClusterMemory::default(), at(0));
            node.sees(&Shares { own: Vec::new(), had_none: true, ..idle.clone() }, at(100));
            node.hear(b"bb", footing(5, 0), at(200));
            node.hear(b"cc", footing(5, 0), at(200));
            node.hear(b"bb", footing(5, 0), at(700));
            node.hear(b"cc", footing(5, 0), at(700));
            node.sees(&idle, at(700));
            assert_eq!(come(&mut node, 5, 700), Came::Asks, "nothing was taken from it");
            // In time, it knows what the other has taken.
            let mut node = started();
            node.hear(silent, footing(5, 0), at(over - 600));
            node.hear(silent, footing(5, 0), at(over));
            node.sees(&idle, at(over));
            assert!(decides(&node, 5) && node.promises().floor() == Fence::ZERO);
        }
    }

    #[test]
    fn slots_are_counted_as_long_as_nothing_is_granted_there() {
        let unsettled = |node: &Node, now, caution| {
            let obstacle = node.common_obstacle(at(now), (LONGEST, caution));
            node.unsettled(obstacle.as_ref(), at(now)).0
        };
        let count = |node: &Node, now| unsettled(node, now, CAUTION);
        let obstacle = |node: &Node, now| node.obstacle(at(now), (LONGEST, CAUTION));
        assert_eq!(count(&Node::new(), 0), 0, "outside of a Cluster");
        let mut node = node();
        node.see(&shares(&[12, 13]), at(100));
        assert_eq!(count(&node, 100), 2, "it asks");
        ask(&mut node, (5, 2_000), (100, 100));
        assert!(matches!(come(&mut node, 12, 200), Came::Waits { .. }));
        assert_eq!(count(&node, 200), 2, "it waits");
        assert!(matches!(come(&mut node, 12, 2_123), Came::Decides(_)));
        assert_eq!(count(&node, 2_123), 1);
        node.see(&leaving(3, b"bb"), at(2_200));
        assert_eq!(count(&node, 2_200), 0, "it grants until the slot has left");

        let mut started = Node::new();
        started.join_cluster(BOOT, ClusterMemory::default(), at(0));
        assert_eq!(count(&started, 0), 0, "it does not know its slots");
        let three = vec![(b"bb".to_vec(), vec![(10, 19)]), (b"cc".to_vec(), vec![(20, 29)])];
        started.see(&Shares { others: three.clone(), ..shares(&[]) }, at(0));
        assert_eq!(count(&started, 0), 10, "it has heard nobody");
        assert_eq!(obstacle(&started, 0), Some(Refusal::SlotMoving { slot: 0 }));
        started.hear(b"bb", footing(0, 0), at(100));
        started.hear(b"bb", footing(0, 0), at(700));
        started.see(&Shares { others: three, ..shares(&[]) }, at(700));
        assert_eq!(count(&started, 700), 10, "it waits for the leases of one");
        let reckless = Caution { quarantine: false, ..CAUTION };
        started.is_confirmed(at(700));
        assert_eq!(unsettled(&started, 700, reckless), 0, "it need not");
        let over = with_drift(SUPPORT.saturating_add(LONGEST)).get();
        let (reason, left) = (QuarantineReason::OtherMaster, Millis::new(over + 1 - 700));
        assert_eq!(obstacle(&started, 700), Some(Refusal::Quarantine { reason, left }));
        let told = started.account(HeldCount::NONE, at(700), (LONGEST, CAUTION));
        assert_eq!((told.unsettled, told.quarantine_left), (10, left));
        assert_eq!(count(&started, over), 10);
        started.is_confirmed(at(over + 1));
        assert_eq!(count(&started, over + 1), 0);
        assert_eq!(obstacle(&started, over + 1), None);
    }

    /// Regressions: it did not doubt a slot that was on its way to another master when it was
    /// promoted, as a server may tell its replicas; and it spoke for a slot that it had lost.
    #[test]
    fn who_doubts_decides_in_no_slot_and_speaks_for_none() {
        let mut node = joined();
        node.slots.as_mut().unwrap().doubt();
        node.sees(&leaving(3, b"bb"), at(0));
        assert_eq!(node.unsettled_slots(), (0..10).collect::<Vec<_>>());
        assert!(matches!(come(&mut node, 3, 100), Came::Waits { .. }));
        node.sees(&given(), at(200));
        let asked = (&vec![(9, 9)], Passage::BySteps);
        assert_eq!(node.asked(b"bb", asked, (at(300), LONGEST), |_| false), []);
    }

    /// Regression: a master raised its epoch where it was cut off, was restarted, and won slots
    /// back that another had got.
    #[test]
    fn who_raises_its_epoch_where_most_do_not_hear_of_it_doubts_after_a_start() {
        let mut node = node();
        let doubts = |node: &mut Node, now| {
            let news = node.news_of_slots(at(now)).into_iter();
            news.filter(|change| matches!(change, Change::Doubts(_))).collect::<Vec<_>>()
        };
        let raised = Shares { epoch: 5, ..shares(&[]) };
        node.see(&raised, at(1_000));
        assert_eq!(doubts(&mut node, 1_999), [], "most may hear of it soon");
        assert_eq!(doubts(&mut node, 2_000), [Change::Doubts(true)]);
        assert_eq!(doubts(&mut node, 3_000), []);
        node.is_confirmed(at(3_100));
        assert_eq!(doubts(&mut node, 3_100), [Change::Doubts(false)]);
        assert!(decides(&node, 5), "it has seen all that happened");
        node.see(&Shares { epoch: 6, ..raised }, at(9_000));
        assert_eq!(doubts(&mut node, 9_000), [Change::Doubts(true)], "most are silent already");
        node.is_confirmed(at(9_100));
        assert_eq!(doubts(&mut node, 9_100), [Change::Doubts(false)]);
        // Regression: an answer that was sent before its sender's server knew of it ended that.
        node.see(&Shares { epoch: 7, ..shares(&[]) }, at(9_200));
        node.slots.as_mut().unwrap().confirmations.all_confirm(6, at(10_200));
        assert_eq!(doubts(&mut node, 10_200), [Change::Doubts(true)]);
        node.is_confirmed(at(10_300));
        assert_eq!(doubts(&mut node, 10_300), [Change::Doubts(false)]);
        // Regression: it gave others a second to hear of it, and stopped before that.
        node.looks_last();
        node.see(&Shares { epoch: 8, ..shares(&[]) }, at(10_400));
        assert_eq!(doubts(&mut node, 10_400), [Change::Doubts(true)]);
    }

    /// Regressions: it waited only as long as its own setting, which had been lowered, while leases
    /// of its former master stood; and what it had heard itself, it had not heard in time.
    #[test]
    fn who_is_promoted_waits_for_the_leases_that_it_and_others_remember() {
        let mut node = joined();
        node.sees(&shares(&[]), at(1_000));
        assert!(asks_with(&mut node, b"bb", 9_000, 2_000).is_some(), "it has looked");
        let others = asks_with(&mut node, b"cc", 500, 2_100).map(|told| told.longest.get());
        assert_eq!(others, Some(9_000));
        node.rejoin_cluster(BOOT);
        let (change, _) = node.promoted(at(3_000), LONGEST, CAUTION);
        let Change::Promoted { until, .. } = change else { panic!("{change:?}") };
        assert_eq!(until, Some(at(12_000)));
        let known = |node: &Node, now| node.longest(LONGEST, at(now)).get();
        let over = 2_000 + with_drift(SUPPORT.saturating_add(Millis::new(9_000))).get();
        assert_eq!([known(&node, over), known(&node, over + 1)], [9_000, 1_000]);
        // The others remember more.
        node.sees(&four(), at(4_000));
        answers(&mut node, b"cc", (at(4_100), at(4_000)), 12_000, at(4_200));
        assert_eq!([known(&node, 6_550), known(&node, 6_551)], [12_000, 9_000], "while it counts");
    }

    /// A lease of a raised setting stands only where most masters know of that.
    #[test]
    fn who_allows_longer_leases_decides_when_most_masters_know_that() {
        let mut node = node();
        let slots = node.slots.as_mut().unwrap();
        slots.confirmations.allow(LONGEST, at(0));
        slots.confirmations.allow(LONGEST, at(100));
        let decides =
            |node: &Node, max_ttl: u64, now| node.decides_in(5, (at(now), length(max_ttl)));
        assert!(decides(&node, 1_000, 100) && !decides(&node, 1_001, 100));
        let asked = node.confirm_question(at(200), length(9_000)).expect("it is in a hurry");
        assert_eq!(asked.longest, length(9_000));
        assert!(!decides(&node, 9_000, 200) && !decides(&node, 1_000, 200));
        answers(&mut node, b"bb", (at(200), at(0)), 0, at(210));
        assert!(decides(&node, 9_000, 210) && !decides(&node, 9_001, 210));
        // It is lowered. The longest lease that it may have granted still counts, for itself too.
        let asked = node.confirm_question(at(800), LONGEST).expect("it is due");
        assert_eq!(asked.longest, LONGEST);
        assert!(decides(&node, 1_000, 800));
        let over = 200 + with_drift(SUPPORT.saturating_add(length(9_000))).get();
        let known = [over, over + 1].map(|now| node.longest(LONGEST, at(now)).get());
        assert_eq!(known, [9_000, LONGEST.get()]);
        // Raised again, it is not known from before.
        assert!(!decides(&node, 9_000, 800));
    }

    /// A lock that came from elsewhere may have a lease that nobody has said.
    #[test]
    fn who_gets_a_longer_lease_decides_when_most_masters_know_that() {
        let mut node = node();
        let slots = node.slots.as_mut().unwrap();
        slots.confirmations.allow(LONGEST, at(0));
        slots.confirmations.allow(LONGEST, at(100));
        assert!(node.decides_in(5, (at(300), LONGEST)));
        assert!(node.acquire(&mut Lock::default(), claim(), b"", at(300)).is_ok());
        assert!(!node.decides_in(5, (at(300), LONGEST)));
        let asked = node.confirm_question(at(800), LONGEST).expect("it is due");
        assert_eq!(asked.longest, length(6_500), "what is left of it");
        node.is_confirmed(at(900));
        assert!(node.decides_in(5, (at(900), LONGEST)));
    }

    /// Regressions: a master without slots remembered its own setting, a day by default, for which
    /// it then waited as a successor; and the replica of the only master heard nothing.
    #[test]
    fn who_says_how_long_its_leases_stand_and_who_remembers() {
        let mut node = joined();
        node.sees(&Shares { own: Vec::new(), ..shares(&[]) }, at(0));
        assert_eq!(node.confirm_question(at(100), length(86_400_000)), None);
        assert_eq!(node.longest(LONGEST, at(100)), LONGEST);
        node.sees(&Shares { own: Vec::new(), ..coming(12) }, at(200));
        assert!(node.confirm_question(at(200), length(9_000)).is_some(), "it decides there soon");
        node.rejoin_cluster(BOOT);
        assert_eq!(node.longest(LONGEST, at(300)), length(9_000), "those may be lost now");
        let mut only = Node::new();
        only.join_cluster(BOOT, ClusterMemory::default(), at(0));
        let replicas = vec![b"bb".to_vec()];
        let name = b"aa".to_vec();
        let alone = Shares { name, own: vec![(0, 9)], replicas, ..Shares::default() };
        only.sees(&alone, at(0));
        assert!(only.confirm_question(at(99), LONGEST).is_some());
        // Regression: it granted by a setting that was raised before its next question was due.
        // Regression: the state file could not be written, and its replica heard nothing.
        assert!(only.confirm_question(at(100), length(9_000)).is_some());
        only.question_unsent();
        let knows = |only: &Node| {
            only.slots.as_ref().unwrap().confirmations.know_of(length(9_000), at(1_000))
        };
        assert!(!knows(&only));
        let asked = only.confirm_question(at(100), length(9_000)).expect("its replica hears it");
        assert!(knows(&only));
        let mut replica = Node::new();
        replica.join_cluster(BOOT, ClusterMemory::default(), at(0));
        replica.overhear(b"aa", &asked, at(100));
        let kept = replica.news_of_slots(at(100));
        assert_eq!(kept, [Change::Lengths(length(9_000))], "it may start again first");
        replica.rejoin_cluster(BOOT);
        assert_eq!(replica.longest(LONGEST, at(200)), length(9_000));
        // Regression: one that joined after it had started again did not hear of its former leases.
        only.rejoin_cluster(BOOT);
        only.see(&alone, at(300));
        let asked = only.confirm_question(at(300), LONGEST).expect("its replica hears it");
        let mut late = Node::new();
        late.join_cluster(BOOT, ClusterMemory::default(), at(300));
        late.overhear(b"aa", &asked, at(300));
        late.rejoin_cluster(BOOT);
        assert_eq!(late.longest(LONGEST, at(400)), length(9_000));
    }

    /// Regression: answers from long ago were enough where a slot was on its way here.
    #[test]
    fn who_decides_in_a_slot_on_its_way_here_has_told_most_masters_a_moment_ago() {
        let mut node = node();
        node.sees(&coming(12), at(100));
        ask(&mut node, (5, 0), (100, 101));
        assert_eq!(come(&mut node, 12, 101), Came::Decides(true));
        node.slots.as_mut().unwrap().pauses.hang.had_none(at(3_000));
        node.see(&coming(12), at(3_000));
        node.answered(b"bb", number(3_000), &answer(5, 0, vec![(12, 12)]), at(3_001));
        let clocks = Clocks { now: at(3_001), wall: UnixTime::from_millis(WALL) };
        assert_eq!(node.come(12, clocks, (LONGEST, CAUTION)), Ok(Came::Asks));
    }

    /// Otherwise a survey would forget leases that nobody else may know.
    #[test]
    fn a_master_says_how_long_the_leases_stand_that_are_gone_here() {
        let mut node = node();
        let token = Token::new(b"token", 64).unwrap();
        let claim = Claim { token, ttl: length(9_000), mode: Mode::Exclusive };
        let mut lock = Lock::default();
        assert!(node.promises.acquire(&mut lock, claim, b"", at(100)).is_ok());
        node.begin_survey();
        node.unlinked(&lock);
        let _ = node.end_survey(at(200));
        node.begin_survey();
        let _ = node.end_survey(at(300));
        assert_eq!(node.promises.longest(), at(0));
        assert_eq!(node.own_longest(LONGEST, at(1_100)), length(8_000));
        // Regression: a server removed the keys of a slot that was lost, and said nothing of them.
        assert!(node.promises.acquire(&mut Lock::default(), claim, b"", at(1_200)).is_ok());
        node.see(&given(), at(1_300));
        node.begin_survey();
        let _ = node.end_survey(at(1_400));
        node.begin_survey();
        let _ = node.end_survey(at(1_500));
        assert_eq!(node.own_longest(LONGEST, at(2_200)), length(8_000));
        // Regression: it answered that all of its leases in the slot were over.
        let asked = (&vec![(9, 9)], Passage::BySteps);
        let answers = node.asked(b"bb", asked, (at(2_200), LONGEST), |_| true);
        assert_eq!(answers.iter().map(|told| told.held).collect::<Vec<_>>(), [length(8_000)]);
        node.rejoin_cluster(BOOT);
        assert_eq!(node.own_longest(LONGEST, at(1_100)), LONGEST, "others remember these");
    }

    /// Regression: its replica took its place, and did not know what it had heard before a start.
    #[test]
    fn the_only_master_that_is_left_tells_its_replicas_what_it_remembers() {
        let lengths = vec![(length(9_000), None)];
        let memory = ClusterMemory { lengths, ..knowing(b"aa", &[b"aa"]) };
        let mut node = Node::new();
        node.join_cluster(BOOT, memory, at(0));
        let (name, replicas) = (b"aa".to_vec(), vec![b"bb".to_vec()]);
        node.see(&Shares { name, own: vec![(0, 9)], replicas, ..Shares::default() }, at(0));
        let asked = node.confirm_question(at(100), LONGEST).expect("its replica hears it");
        assert_eq!(asked.remembered.iter().map(|told| told.longest).max(), Some(length(9_000)));
        let told = node.confirm(b"bb", &ConfirmQuestion { life: 9, ..asked }, at(200));
        let told = told.expect("it has looked").remembered;
        assert_eq!(told, [], "it would come back longer");
    }

    /// Regression: a move was called off where the master was cut off, and only the other one was
    /// asked, which had never had the slot.
    #[test]
    fn a_slot_that_stays_is_in_doubt_if_it_was_not_confirmed_meanwhile() {
        let mut node = node();
        node.sees(&leaving(5, b"bb"), at(1_000));
        assert!(node.slots.as_ref().unwrap().table.decided().has(5));
        node.see(&shares(&[]), at(2_000));
        let table = &mut node.slots.as_mut().unwrap().table;
        assert!(table.decided().has(5), "it decided there");
        table.doubt(vec![5], at(2_000));
        assert!(!table.decided().has(5));
    }

    /// Regression: a lease that had come was waited for no more after a crash, because the survey
    /// had not seen its lock.
    #[test]
    fn a_survey_while_a_slot_comes_at_once_lowers_nothing() {
        let token = Token::new(b"token", 64).unwrap();
        let claim = Claim { token, ttl: length(60_000), mode: Mode::Exclusive };
        let ends = |comes_at: u64| {
            let mut node = node();
            assert!(node.promises.acquire(&mut Lock::default(), claim, b"", at(100)).is_ok());
            for step in 0..4 {
                if step == comes_at {
                    node.move_at_once(MoveAtOnce::Comes, &vec![(12, 12)], None);
                }
                match step {
                    0 | 2 => node.begin_survey(),
                    _ => drop(node.end_survey(at(200))),
                }
            }
            node.promises.longest()
        };
        assert_eq!(ends(9), at(0), "it was released, say");
        for comes_at in 0..2 {
            assert_eq!(ends(comes_at), at(60_100), "{comes_at}");
        }
    }

    fn length(millis: u64) -> Millis {
        Millis::new(millis)
    }

    /// Regressions: a master that became a replica before it heard of the first electorate, which
    /// it was in, never answered, and half of the others waited for it. A replica that knew another
    /// electorate, or none, took the place of a master, and waited for votes of long ago.
    #[test]
    fn a_replica_answers_if_it_may_have_a_vote_or_knows_other_electorates() {
        let elector = |life| Elector { name: b"aa".to_vec(), life };
        let naming = |life| Electorates {
            known: [Electorate { number: 1, origin: 2, members: [elector(life)].into() }].into(),
            ..Electorates::default()
        };
        let asks = |known: &Electorates, tells: bool| ConfirmQuestion {
            number: 1,
            since: 1,
            life: 9,
            longest: LONGEST,
            digest: known.digest(),
            electorates: tells.then(|| known.clone()),
            remembered: Vec::new(),
        };
        let answers = |known, asked| {
            let mut node = Node::new();
            let electorates = Electorates { itself: elector(7), ..known };
            let memory = ClusterMemory { electorates, ..ClusterMemory::default() };
            node.join_cluster(BOOT, memory, at(0));
            node.answers(&asked)
        };
        let none = Electorates::default();
        for tells in [false, true] {
            assert!(answers(naming(7), asks(&naming(7), tells)), "it has a vote");
            assert!(!answers(naming(8), asks(&naming(8), tells)), "it had one in another life");
            for (known, other) in [(naming(8), none.clone()), (none.clone(), naming(8))] {
                assert!(answers(known, asks(&other, tells)), "they know different ones");
            }
            assert!(!answers(none.clone(), asks(&none, tells)));
        }
        let is_alone = Electorate { number: 0, origin: 0, members: [elector(8)].into() };
        let is_alone = Electorates { known: [is_alone].into(), ..none.clone() };
        assert!(!answers(none, asks(&is_alone, true)), "it concerns nobody else");
        assert!(!Node::new().answers(&asks(&naming(7), true)), "it is in no Cluster");
    }

    /// A group that has no slots yet does not wait for the first that moves to it.
    #[test]
    fn a_master_that_rests_on_replicas_waits_for_the_first_majority_about_its_slots() {
        let waits = |is_promoted: bool, first: &Shares| {
            let mut node = Node::new();
            node.rest_on(2);
            node.join_cluster(BOOT, ClusterMemory::default(), at(0));
            if is_promoted {
                node.rejoin_cluster(BOOT);
            }
            let authority = node.promises.authority_mut().expect("it rests on replicas");
            authority.appointed();
            authority.settled();
            node.sees(first, at(0));
            node.sees(&shares(&[]), at(100));
            node.sees(&shares(&[]), at(200));
            !node.promises.authority().is_some_and(|authority| authority.is_settled())
        };
        let none = Shares { own: Vec::new(), had_none: true, ..shares(&[]) };
        assert!(waits(false, &shares(&[])) && !waits(false, &none));
        assert!(waits(true, &none), "its slots may come a moment later");
    }

    /// Regression: what another had taken while this one was down came back with its higher epoch.
    #[test]
    fn who_raises_its_epoch_before_its_first_majority_waits_for_what_others_may_have_taken() {
        let waits = |is_new: bool, has_risen: bool| {
            let mut memory = knowing(b"", &[b"", b"bb"]);
            memory.electorates.known.retain(|_| !is_new);
            let mut node = Node::new();
            node.join_cluster(BOOT, memory, at(0));
            for (epoch, now) in [(if has_risen { 6 } else { 5 }, 0), (6, 1_000)] {
                let has_risen = has_risen && now == 0;
                node.see(&Shares { epoch, has_risen, ..shares(&[]) }, at(now));
                let _ = node.news_of_slots(at(now));
            }
            for now in [2_000, 3_000] {
                node.hear(b"bb", footing(0, 0), at(now));
            }
            node.sees(&Shares { epoch: 6, ..shares(&[]) }, at(3_000));
            come(&mut node, 5, 3_000)
        };
        for has_risen in [false, true] {
            assert!(
                matches!(waits(false, has_risen), Came::Waits { .. }),
                "before or after a look"
            );
            assert_eq!(waits(true, has_risen), Came::Decides(false), "so do new ones");
        }
    }

    /// Regression: a master without slots that had started again waited for its first slot, because
    /// a move raises the epoch.
    #[test]
    fn a_slot_that_comes_with_a_higher_epoch_does_not_wait() {
        let mut node = Node::new();
        node.join_cluster(BOOT, knowing(b"", &[b"bb"]), at(0));
        let others = vec![(b"bb".to_vec(), vec![(0, 99)])];
        node.see(&Shares { epoch: 5, others, ..Shares::default() }, at(0));
        for now in [100, 1_000] {
            node.hear(b"bb", footing(0, 0), at(now));
        }
        let others = vec![(b"bb".to_vec(), vec![(0, 11), (13, 99)])];
        let came = Shares { epoch: 6, own: vec![(12, 12)], others, ..Shares::default() };
        node.see(&came, at(3_000));
        node.sees(&came, at(3_100));
        ask(&mut node, (0, 0), (3_100, 3_101));
        assert_eq!(come(&mut node, 12, 3_102), Came::Decides(false));
    }

    /// Regressions: who raised its epoch just before it read that a slot had gone to another
    /// master won it back; and the jump for each of thousands of slots was a write of its own.
    #[test]
    fn who_waits_raises_its_epoch_when_it_has_read_whose_its_slots_are() {
        let mut node = node();
        node.sees(&shares(&[12, 13]), at(100));
        let wait = |node: &mut Node, now| {
            for slot in [12, 13] {
                let clocks = Clocks { now: at(now), wall: UnixTime::from_millis(WALL + now) };
                let came = node.come(slot, clocks, (LONGEST, CAUTION));
                assert!(matches!(came, Ok(Came::Waits { .. })), "{came:?}");
            }
        };
        for now in (100..5_200).step_by(100) {
            node.sees(&shares(&[12, 13]), at(now));
            drop(node.questions(at(now)));
        }
        assert!(!node.owes_epoch(at(5_100)));
        wait(&mut node, 5_101);
        assert!(node.owes_epoch(at(5_101)));
        let gives = Shares { migrating: vec![(5, b"bb".to_vec())], ..shares(&[12, 13]) };
        node.sees(&gives, at(5_200));
        assert!(!node.owes_epoch(at(5_200)), "the other may have finished the move");
        node.sees(&shares(&[12, 13]), at(5_501));
        assert!(!node.owes_epoch(at(5_600)), "it has hung");
        assert!(node.owes_epoch(at(5_601)));
        let over = 101 + with_drift(SUPPORT.saturating_add(LONGEST)).get();
        for now in (5_600..=over).step_by(100) {
            node.sees(&gives, at(now));
        }
        wait(&mut node, over);
        assert!(node.owes_epoch(at(over)), "a move may stay open for ever");
        node.raised_epoch(true);
        assert!(!node.owes_epoch(at(over)));
        assert_eq!(come(&mut node, 12, over), Came::Decides(true));
        assert_eq!(come(&mut node, 13, over + 5), Came::Decides(false), "one jump is for both");
    }

    /// Regression: a node that the server had given such a slot decided there at once, while
    /// another master's lease stood.
    #[test]
    fn a_slot_that_the_server_takes_at_its_start_waits_for_the_longest_lease() {
        let shares = Shares { found: vec![(9, 9), (12, 12)], ..shares(&[]) };
        assert_eq!(shares.own_since(&vec![(0, 3), (5, 8)]), [4, 9]);
        let mut node = joined();
        node.sees(&shares, at(100));
        assert!(decides(&node, 8) && !decides(&node, 9));
        assert_eq!(node.unsettled_slots(), [9], "12 is not its own");
        node.hear(b"bb", footing(5, 0), at(200));
        asks_with(&mut node, b"bb", 9_000, 200);
        node.hear(b"cc", footing(7_000_000, 300), at(200));
        assert!(node.questions(at(300)).is_empty(), "there is nobody to ask");
        let over = at(100).after(with_drift(SUPPORT.saturating_add(Millis::new(9_000))));
        let left = at(300).until(over.after(Millis::new(1)));
        let news = recorded(over);
        assert_eq!(come(&mut node, 9, 300), waits(left.get(), news));
        node.sees(&Shares { found: Vec::new(), ..shares }, at(400));
        assert!(matches!(come(&mut node, 9, over.as_millis()), Came::Waits { change: None, .. }));
        assert_eq!(come(&mut node, 9, over.as_millis() + 1), Came::Decides(true));
        let floor = Fence::of_time(UnixTime::from_millis(WALL));
        assert!(node.promises().floor() > floor && decides(&node, 9));
    }

    /// Regression: its wait was over when it went on, so it decided before it had read that its
    /// slot was lost (seed 200003634).
    #[test]
    fn who_hangs_before_its_wait_has_begun_asks_again() {
        let mut node = node();
        node.sees(&shares(&[12]), at(100));
        for now in (100..3_000).step_by(100) {
            assert_eq!(node.questions(at(now)).len(), 1);
        }
        node.sees(&shares(&[12]), at(60_000));
        assert_eq!(come(&mut node, 12, 60_000), Came::Asks);
        for now in (60_000..65_100).step_by(100) {
            node.sees(&shares(&[12]), at(now));
            assert_eq!(node.questions(at(now)).len(), 1);
        }
        assert!(matches!(come(&mut node, 12, 65_001), Came::Waits { .. }));
        node.sees(&shares(&[12]), at(200_000));
        assert!(matches!(come(&mut node, 12, 200_000), Came::Waits { .. }), "its epoch is owed");
        assert_eq!(come(&mut node, 12, 200_100), Came::Decides(true), "it has waited");
    }

    #[test]
    fn only_an_answer_to_a_question_from_after_the_move_counts() {
        let mut node = node();
        node.sees(&coming(12), at(100));
        assert_eq!(come(&mut node, 12, 100), Came::Asks);
        ask(&mut node, (5, 0), (100, 101));
        assert_eq!(come(&mut node, 12, 101), Came::Decides(true));
        assert!(!decides(&node, 12), "the other node goes on");
        tell(&mut node, 9_000_000, 0, 150);
        assert_eq!(come(&mut node, 12, 151), Came::Decides(true), "above what it reports");
        // A node that hangs reads old reports and answers when it goes on.
        tell(&mut node, 9_000_000, 0, 5_101);
        assert_eq!(come(&mut node, 12, 5_101), Came::Asks, "a report is not an answer");
        let late = answer(5, 0, vec![(12, 12)]);
        node.answered(b"bb", number(101), &late, at(5_102));
        assert_eq!(come(&mut node, 12, 5_102), Came::Asks, "asked too long ago");
        for of_another_boot in [number(9_000_000), question_number(BOOT - 1, at(5_102))] {
            node.answered(b"bb", of_another_boot, &late, at(5_102));
            assert_eq!(come(&mut node, 12, 5_102), Came::Asks, "of another boot");
        }
        ask(&mut node, (5, 0), (5_102, 5_103));
        assert_eq!(come(&mut node, 12, 5_103), Came::Decides(false));
        assert!(node.questions(at(5_601)).is_empty(), "for half a second");
        ask(&mut node, (5, 0), (6_102, 6_103));
        assert_eq!(come(&mut node, 12, 11_102), Came::Decides(false));
        assert_eq!(come(&mut node, 12, 11_103), Came::Asks, "it is silent");
        node.sees(&shares(&[12]), at(11_200));
        let answer = answer(5, 0, vec![(12, 12)]);
        node.answered(b"bb", number(11_151), &answer, at(11_200));
        assert_eq!(come(&mut node, 12, 11_200), Came::Asks, "asked before it came");
        node.answered(b"cc", number(11_200), &answer, at(11_200));
        assert_eq!(come(&mut node, 12, 11_200), Came::Asks, "another master");
        ask(&mut node, (5, 0), (11_200, 11_201));
        assert_eq!(come(&mut node, 12, 11_201), Came::Decides(false));
        assert!(decides(&node, 12));
    }

    /// Regression: a master that was back within 5 seconds was believed.
    #[test]
    fn a_master_that_has_started_since_the_slot_came_cannot_answer_for_it() {
        for (up, came) in [(500, Came::Asks), (503, Came::Asks), (513, Came::Decides(true))] {
            let mut node = node();
            node.sees(&shares(&[12]), at(100));
            let answer = SlotAnswer { up: Millis::new(up), ..answer(5, 0, vec![(12, 12)]) };
            assert!(!node.questions(at(100)).is_empty());
            node.answered(b"bb", number(100), &answer, at(600));
            assert_eq!(come(&mut node, 12, 600), came, "{up}");
        }
        let mut node = node();
        node.sees(&given(), at(600));
        let answer =
            node.asked(b"bb", (&vec![(9, 9)], Passage::BySteps), (at(700), LONGEST), |_| false);
        assert_eq!(answer[0].up, Millis::new(700), "since its first look");
    }

    #[test]
    fn a_node_that_hangs_itself_does_not_give_the_other_up() {
        let mut node = node();
        node.sees(&shares(&[12]), at(100));
        ask(&mut node, (5, 0), (100, 9_000));
        assert_eq!(come(&mut node, 12, 9_000), Came::Decides(true));
    }

    #[test]
    fn a_node_answers_about_slots_that_go_to_who_asks_or_went_there_from_it() {
        let mut node = node();
        let asked = |node: &mut Node, who: &[u8], now| {
            let slots = vec![(9, 9), (12, 12)];
            let answers =
                node.asked(who, (&slots, Passage::BySteps), (at(now), LONGEST), |_| false);
            answers.into_iter().next().map(|answer| answer.slots)
        };
        assert_eq!(asked(&mut node, b"bb", 100), None, "it never had them");
        node.sees(&given(), at(200));
        assert_eq!(asked(&mut node, b"bb", 200), Some(vec![(9, 9)]));
        node.sees(&Shares { migrating: vec![(3, b"bb".to_vec())], ..given() }, at(300));
        assert_eq!(asked(&mut node, b"bb", 300), Some(vec![(9, 9)]));
        assert_eq!(asked(&mut node, b"cc", 300), None, "it has none of them");
        // Another master has had the slot since.
        let others = vec![(b"cc".to_vec(), vec![(9, 9)])];
        node.sees(&Shares { others, ..given() }, at(400));
        node.sees(&given(), at(500));
        assert_eq!(asked(&mut node, b"bb", 500), None);
        // It has come, and the node does not know yet whether it may decide there.
        node.sees(&shares(&[]), at(600));
        assert_eq!(asked(&mut node, b"bb", 600), None);
        node.sees(&given(), at(700));
        assert_eq!(asked(&mut node, b"bb", 700), None, "it never decided there");
    }

    /// Regression: after a move that was called off, leases stayed at the other master.
    #[test]
    fn leases_that_a_move_leaves_behind_are_waited_for() {
        for is_over in [false, true] {
            let mut other = node();
            other.sees(&coming(12), at(100));
            ask(&mut other, (5, 0), (100, 100));
            assert_eq!(come(&mut other, 12, 100), Came::Decides(true));
            let mut lock = Lock::default();
            assert!(other.acquire(&mut lock, claim(), b"", at(100)).is_ok());
            if is_over {
                other.sees(&shares(&[]), at(150));
            }
            let seen = if is_over { given() } else { Shares { own: vec![(0, 8)], ..coming(12) } };
            other.sees(&Shares { others: given().others, ..seen }, at(180));
            let slots = vec![(9, 9), (12, 12)];
            let answers =
                other.asked(b"bb", (&slots, Passage::BySteps), (at(200), LONGEST), |_| false);
            let [left, moved] = &answers[..] else { panic!("two: {answers:?}") };
            assert_eq!((&moved.slots, moved.held), (&vec![(9, 9)], Millis::ZERO));
            assert_eq!((&left.slots, left.held), (&vec![(12, 12)], Millis::new(6_900)));
            assert_eq!(left.footing.floor, lock.counter(), "it may have free locks there");
            assert!(moved.footing.floor < lock.counter());
            let mut node = node();
            node.sees(&leaving(3, b"bb"), at(100));
            node.sees(&shares(&[]), at(200));
            assert!(!node.questions(at(200)).is_empty());
            let (up, slots) = (Millis::new(1_000), vec![(3, 3)]);
            node.answered(b"bb", number(200), &SlotAnswer { up, slots, ..left.clone() }, at(201));
            let left = with_drift(Millis::new(6_900)).saturating_add(Millis::new(1));
            assert!(
                matches!(come(&mut node, 3, 201), Came::Waits { left: waits, .. } if waits == left)
            );
            tell(&mut node, 0, 0, 300);
            assert!(matches!(come(&mut node, 3, 301), Came::Waits { .. }), "whatever it reports");
            tell(&mut node, 0, 0, 7_000);
            assert!(matches!(come(&mut node, 3, 201 + left.get()), Came::Decides(_)));
            assert!(node.promises().floor() >= lock.counter());
        }
    }

    /// Regression: the floor rose to the time alone, which was below the reported floor. A node
    /// that was restarted in its wait did not know that floor any more (seed 2660021357).
    #[test]
    fn a_wait_begins_with_a_floor_as_high_as_the_reported_one() {
        let mut node = node();
        let reported = |slot: u16| 1 << 52 | u64::from(slot);
        for slot in [3, 4] {
            node.sees(&leaving(slot, b"bb"), at(100));
            node.sees(&shares(&[]), at(200));
            assert!(!node.questions(at(200)).is_empty());
            let told = answer(reported(slot), 0, vec![(slot, slot)]);
            node.answered(b"bb", number(200), &SlotAnswer { held: LONGEST, ..told }, at(201));
            assert!(matches!(come(&mut node, slot, 201), Came::Waits { .. }));
            assert!(node.promises().floor() >= fence(reported(slot)), "slot {slot}");
        }
    }

    /// Regression: fences fell, and leases were granted again, after `CLUSTER DELSLOTS` everywhere.
    #[test]
    fn locks_that_stay_at_a_master_without_the_slot_are_told_of() {
        let mut other = node();
        let mut lock = Lock::default();
        assert!(other.acquire(&mut lock, claim(), b"", at(100)).is_ok());
        other.sees(&Shares { own: vec![(0, 2), (4, 9)], ..shares(&[]) }, at(200));
        let theirs = Shares { others: vec![(b"bb".to_vec(), vec![(3, 3)])], ..Shares::default() };
        other.sees(&Shares { own: vec![(0, 2), (4, 9)], ..theirs }, at(300));
        assert_eq!(other.not_settled(&vec![(2, 3)]), [3]);
        for (has_locks, held) in [(false, 0), (true, 6_700)] {
            let answers =
                other.asked(b"bb", (&vec![(3, 3)], Passage::BySteps), (at(400), LONGEST), |_| {
                    has_locks
                });
            let held = Millis::new(held);
            assert_eq!(answers.iter().map(|answer| answer.held).collect::<Vec<_>>(), [held]);
        }
    }

    /// Regression: a wait in one slot was passed on with every slot that left the master.
    #[test]
    fn a_wait_in_one_slot_is_of_no_concern_to_who_gets_another() {
        let mut node = node();
        node.sees(&shares(&[12]), at(100));
        ask(&mut node, (5, 2_000), (100, 100));
        assert!(matches!(come(&mut node, 12, 200), Came::Waits { .. }));
        node.sees(&Shares { migrating: vec![(3, b"cc".to_vec())], ..shares(&[12]) }, at(300));
        let answers =
            node.asked(b"cc", (&vec![(3, 3)], Passage::BySteps), (at(300), LONGEST), |_| false);
        assert_eq!(answers[0].footing.left, Millis::ZERO);
        // It lost the slot in the wait, and cannot speak for it.
        let theirs = vec![(b"bb".to_vec(), vec![(10, 19)])];
        node.sees(&Shares { others: theirs, ..shares(&[]) }, at(400));
        assert_eq!(
            node.asked(b"bb", (&vec![(12, 12)], Passage::BySteps), (at(400), LONGEST), |_| false),
            []
        );
    }

    /// Regression: the source of a move that crashed decided about older copies of locks that had
    /// moved.
    #[test]
    fn a_master_that_starts_in_the_middle_of_a_move_asks_the_other() {
        let mut node = joined();
        node.sees(&leaving(3, b"bb"), at(100));
        assert!(decides(&node, 4) && !decides(&node, 3));
        assert_eq!(come(&mut node, 3, 100), Came::Asks);
        ask(&mut node, (7_000_000, 0), (100, 101));
        assert_eq!(come(&mut node, 3, 101), Came::Decides(true));
        assert!(node.promises().floor() >= fence(7_000_000));
        node.sees(&leaving(3, b"bb"), at(200));
        assert!(!decides(&node, 3) && node.unsettled_slots().is_empty(), "it leaves");
    }

    /// Regression: a master answered the one to which a slot had been on its way when it started,
    /// although it was on its way to a third one when it was lost (seed 775383518).
    #[test]
    fn a_slot_that_was_on_its_way_to_a_third_master_is_not_answered_for() {
        let mut node = joined();
        node.sees(&leaving(3, b"cc"), at(100));
        ask(&mut node, (5, 0), (100, 101));
        assert!(matches!(come(&mut node, 3, 101), Came::Decides(_)));
        node.sees(&leaving(3, b"bb"), at(200));
        let nobody = Shares { own: vec![(0, 2), (4, 9)], ..shares(&[]) };
        node.sees(&nobody, at(300));
        let others = vec![(b"cc".to_vec(), vec![(3, 3)])];
        node.sees(&Shares { others, ..nobody }, at(400));
        assert!(
            node.asked(b"cc", (&vec![(3, 3)], Passage::BySteps), (at(400), LONGEST), |_| false)
                .is_empty()
        );
    }

    /// Regression: after a move that was called off, the old master did not know the fences and
    /// leases that the other had given meanwhile.
    #[test]
    fn a_slot_that_stays_after_all_comes_from_the_node_to_which_it_was_to_go() {
        let mut node = node();
        assert!(!node.has_moving_slots());
        node.sees(&leaving(3, b"bb"), at(100));
        assert!(node.has_moving_slots());
        assert!(!decides(&node, 3) && node.unsettled_slots().is_empty());
        assert_eq!(come(&mut node, 3, 100), Came::Decides(false), "while it leaves");
        node.sees(&shares(&[]), at(200));
        assert_eq!(come(&mut node, 3, 200), Came::Asks);
        ask(&mut node, (7_000_000, 0), (200, 201));
        assert_eq!(come(&mut node, 3, 201), Came::Decides(true));
        assert!(decides(&node, 3) && node.promises().floor() >= fence(7_000_000));
        // To another node instead.
        node.sees(&leaving(3, b"bb"), at(300));
        node.sees(&leaving(3, b"cc"), at(400));
        assert_eq!(come(&mut node, 3, 400), Came::Asks);
        let asked = node.questions(at(400)).remove(0);
        assert_eq!((asked.master, asked.slots), (b"bb".to_vec(), vec![(3, 3)]));
    }

    #[test]
    fn who_is_asked_about_a_slot_on_its_way_here_asks_again_before_it_decides() {
        let mut node = node();
        node.sees(&coming(12), at(100));
        ask(&mut node, (5, 0), (100, 101));
        assert_eq!(come(&mut node, 12, 101), Came::Decides(true));
        let answers =
            node.asked(b"bb", (&vec![(12, 12)], Passage::BySteps), (at(200), LONGEST), |_| false);
        assert_eq!(answers[0].slots, [(12, 12)]);
        assert_eq!(come(&mut node, 12, 200), Came::Asks);
        node.answered(b"bb", number(199), &answer(5, 0, vec![(12, 12)]), at(201));
        assert_eq!(come(&mut node, 12, 201), Came::Asks, "a late answer");
    }

    #[test]
    fn a_slot_that_was_on_its_way_to_one_master_is_not_spoken_for_to_another() {
        let lost_to = |name: &[u8], node: &mut Node| {
            let others = vec![(name.to_vec(), vec![(3, 3), (10, 19)])];
            let own = vec![(0, 2), (4, 9)];
            node.sees(&Shares { own, others, ..Shares::default() }, at(300));
            node.asked(name, (&vec![(3, 3)], Passage::BySteps), (at(300), LONGEST), |_| false)
        };
        for (target, answers) in [(b"bb", 1), (b"cc", 0)] {
            let mut node = node();
            node.sees(&leaving(3, b"bb"), at(100));
            // Nobody has it for a while (`CLUSTER DELSLOTS`).
            let own = vec![(0, 2), (4, 9)];
            node.sees(&Shares { own, ..Shares::default() }, at(200));
            assert_eq!(lost_to(target, &mut node).len(), answers);
            // It comes back, and `bb` may have granted locks there.
            node.sees(&shares(&[]), at(400));
            let asked: Vec<Vec<u8>> =
                node.questions(at(400)).into_iter().map(|question| question.master).collect();
            assert_eq!(asked, [target.to_vec()]);
        }
        let mut node = node();
        node.sees(&leaving(3, b"bb"), at(100));
        node.sees(&Shares { own: vec![(0, 2), (4, 9)], ..Shares::default() }, at(200));
        node.sees(&shares(&[]), at(400));
        assert_eq!(node.questions(at(400))[0].master, b"bb");
    }

    #[test]
    fn a_slot_that_another_took_while_it_was_on_its_way_is_asked_about_there() {
        let masters = |theirs, third| {
            vec![(b"bb".to_vec(), vec![(theirs, 19)]), (b"cc".to_vec(), vec![(third, 12)])]
        };
        let asked = |node: &mut Node, now| -> Vec<Vec<u8>> {
            node.questions(at(now)).into_iter().map(|question| question.master).collect()
        };
        for (is_taken, other) in [(true, b"cc"), (false, b"bb")] {
            let mut node = node();
            // With slow gossip, this node sees the slot at `cc` although `bb` has it.
            let others = if is_taken { masters(12, 19) } else { masters(13, 12) };
            let stale = Shares { others, ..coming(12) };
            node.sees(&stale, at(100));
            assert_eq!(asked(&mut node, 100), [b"bb"], "it comes from there");
            if is_taken {
                node.sees(&Shares { others: masters(13, 12), ..coming(12) }, at(110));
            }
            node.sees(&Shares { others: masters(13, 13), ..shares(&[12]) }, at(200));
            assert_eq!(asked(&mut node, 200), [other], "taken: {is_taken}");
        }
    }

    fn with(slot: u16) -> Shares {
        Shares { own: vec![(0, 9), (slot, slot)], ..shares(&[]) }
    }

    #[test]
    fn a_slot_that_nobody_has_had_needs_no_wait() {
        let mut node = joined();
        node.sees(&Shares { own: Vec::new(), had_none: true, ..shares(&[]) }, at(0));
        node.sees(&with(30), at(200));
        assert_eq!(come(&mut node, 30, 2_200), Came::Asks, "it may not know all masters yet");
        assert_eq!(come(&mut node, 30, 2_201), Came::Decides(false));
        tell(&mut node, 9, 5_000, 2_300);
        node.sees(&with(31), at(2_400));
        assert_eq!(come(&mut node, 31, 4_401), Came::Decides(true));
        assert_eq!(node.promises().floor(), fence(9));
    }

    /// Regression: a master got a slot of a dead one before it knew any other, and decided there at
    /// once.
    #[test]
    fn a_master_that_has_met_nobody_yet_waits_to_hear_of_all() {
        let mut node = Node::new();
        node.join_cluster(BOOT, ClusterMemory::default(), at(0));
        node.sees(&Shares { had_none: true, ..Shares::default() }, at(0));
        let alone = Shares { own: vec![(5, 5)], ..Shares::default() };
        node.sees(&alone, at(200));
        assert_eq!(come(&mut node, 5, 1_000), Came::Asks);
        node.sees(&Shares { idle: vec![b"cc".to_vec()], ..alone.clone() }, at(2_000));
        let over = at(2_000).after(with_drift(SUPPORT.saturating_add(LONGEST))).as_millis();
        assert_eq!(come(&mut node, 5, over), Came::Asks, "it has just heard of another");
        assert!(matches!(come(&mut node, 5, over + 1), Came::Waits { .. }));
        let mut node = Node::new();
        node.join_cluster(BOOT, ClusterMemory::default(), at(0));
        node.sees(&Shares { had_none: true, ..Shares::default() }, at(0));
        node.sees(&alone, at(200));
        assert_eq!(come(&mut node, 5, 2_201), Came::Decides(false), "there is no other");
    }

    /// Regression: a master that had let go of a slot, and hung, served a request before it read
    /// that another one had waited for it and decided.
    #[test]
    fn who_has_hung_decides_nothing_before_it_has_read_what_was_said() {
        let mut node = joined();
        let clocks = |now| Clocks { now: at(now), wall: UnixTime::from_millis(WALL + now) };
        let settings = (LONGEST, CAUTION);
        node.see(&shares(&[]), at(1_000));
        node.is_confirmed(at(1_000));
        assert!(node.decides_in(5, (at(3_000), LONGEST)) && !node.may_have_lost_slots(at(3_000)));
        assert!(!node.decides_in(5, (at(3_001), LONGEST)) && node.may_have_lost_slots(at(3_001)));
        for now in [9_000, 9_099] {
            node.see(&shares(&[]), at(now));
            node.is_confirmed(at(now));
            assert_eq!(node.come(5, clocks(now), settings), Ok(Came::Asks));
        }
        node.see(&shares(&[]), at(9_100));
        assert!(node.decides_in(5, (at(9_100), LONGEST)));
    }

    #[test]
    fn who_held_back_writes_reads_before_it_decides() {
        let mut node = joined();
        node.sees(&shares(&[]), at(100));
        node.sees(&Shares { holds_back: true, ..shares(&[]) }, at(300));
        assert!(!node.decides_in(5, (at(300), LONGEST)), "the slot may be gone when writes go on");
        node.sees(&shares(&[]), at(500));
        assert!(
            !node.decides_in(5, (at(599), LONGEST)),
            "it may not have read that the slot is gone"
        );
        assert!(node.decides_in(5, (at(600), LONGEST)));
    }

    /// Regression: its server reported a move at once as complete that it had given up already, by
    /// the clock: the node had granted a lock in between.
    #[test]
    fn a_slot_that_leaves_after_the_server_has_gone_on_may_have_left_locks() {
        let question = (&vec![(9, 9)], Passage::AtOnce);
        // Whether the server holds back writes, and when it reports that the slot has left.
        for (holds_back, reported_at, is_whole) in
            [(true, 400, true), (true, 700, false), (false, 400, true), (false, 3_000, false)]
        {
            let (mut node, mut lock) = (node(), Lock::default());
            let long = Claim { ttl: Millis::new(9_000), ..claim() };
            assert!(node.acquire(&mut lock, long, b"", at(50)).is_ok());
            node.move_at_once(MoveAtOnce::Leaves, &vec![(9, 9)], None);
            node.sees(&Shares { holds_back, ..shares(&[]) }, at(300));
            if reported_at == 700 {
                node.sees(&shares(&[]), at(600));
            }
            if reported_at == 3_000 {
                // It has hung, and looks before it decides.
                node.see(&shares(&[]), at(2_900));
            }
            node.move_at_once(MoveAtOnce::HasLeft, &vec![(9, 9)], None);
            node.sees(&given(), at(reported_at));
            let answers = node.asked(b"bb", question, (at(reported_at), LONGEST), |_| false);
            assert_eq!(answers[0].held.is_zero(), is_whole, "{holds_back} {reported_at}");
        }
    }

    /// Regressions: the end of one move explained that writes went on, and another was given up by
    /// the clock at the same time; the next move counted as failed because Redis let writes go on
    /// after its report; and a node that gave away many slots in a row decided nowhere meanwhile.
    #[test]
    fn the_end_of_a_move_explains_that_writes_go_on_unless_their_time_was_over() {
        let question = (&vec![(9, 9)], Passage::AtOnce);
        // When writes go on, and whether the server reports the end of a move before that.
        for (until, is_early, is_whole) in
            [(300, false, true), (300, true, true), (2_050, false, false), (2_050, true, false)]
        {
            let (mut node, mut lock) = (node(), Lock::default());
            let long = Claim { ttl: Millis::new(9_000), ..claim() };
            assert!(node.acquire(&mut lock, long, b"", at(50)).is_ok());
            node.move_at_once(MoveAtOnce::Leaves, &vec![(8, 9)], None);
            let held_back = Shares { holds_back: true, ..shares(&[]) };
            (200..until).step_by(100).for_each(|now| node.sees(&held_back, at(now)));
            let without = Shares { own: vec![(0, 7), (9, 9)], ..shares(&[]) };
            node.move_at_once(MoveAtOnce::HasLeft, &vec![(8, 8)], None);
            if is_early {
                node.sees(&Shares { holds_back: true, ..without.clone() }, at(until));
            }
            node.sees(&without, at(until));
            assert_eq!(decides(&node, 5), is_whole, "a rest is for what may have been missed");
            node.move_at_once(MoveAtOnce::HasLeft, &vec![(9, 9)], None);
            node.sees(&given(), at(until + 10));
            let answers = node.asked(b"bb", question, (at(until + 10), LONGEST), |_| false);
            assert_eq!(answers[0].held.is_zero(), is_whole, "{until} {is_early}");
        }
    }

    /// Regressions: a master that had hung, or was told late, took a slot by an old command, after
    /// a move that its former master had called off: before a crash, or before the slot had gone
    /// to another and come back; or that this one had never seen, because it was a replica then.
    #[test]
    fn who_loses_a_slot_with_locks_in_it_says_so() {
        let asked = |node: &mut Node, now, has_locks| {
            let question = (&vec![(9, 9)], Passage::BySteps);
            let answers = node.asked(b"bb", question, (at(now), LONGEST), |_| has_locks);
            answers.first().map(|answer| !answer.held.is_zero())
        };
        let granting = || {
            let (mut node, mut lock) = (node(), Lock::default());
            assert!(node.acquire(&mut lock, claim(), b"", at(50)).is_ok());
            node
        };
        for sees_it_leave in [false, true] {
            let [mut moved, mut lost] = [(); 2].map(|()| granting());
            for node in [&mut moved, &mut lost] {
                if sees_it_leave {
                    node.sees(&leaving(9, b"bb"), at(100));
                    let said = [true, false].map(|has_locks| asked(node, 150, has_locks));
                    assert_eq!(said, [None, Some(false)], "it has not heard that it lost them");
                }
            }
            lost.deleted_in(9);
            let after = [moved, lost].map(|mut node| {
                node.sees(&given(), at(200));
                asked(&mut node, 300, false)
            });
            assert_eq!(after, [Some(false), Some(true)]);
        }
        // Valkey may delete locks just after the look that shows the loss.
        let mut looked = granting();
        looked.sees(&given(), at(200));
        looked.deleted_in(9);
        assert_eq!(asked(&mut looked, 300, false), Some(true));
    }

    /// Regression: it granted at once a lock that another master may have granted.
    #[test]
    fn a_slot_that_is_lost_and_comes_back_between_two_looks_is_in_doubt() {
        let mut node = node();
        assert!(decides(&node, 9) && node.deletion_may_be_news(9));
        node.deleted_in(9);
        assert!(!node.deletion_may_be_news(9), "once is enough");
        assert!(!decides(&node, 9), "another may decide until the next look");
        node.sees(&shares(&[]), at(100));
        assert!(!decides(&node, 9) && decides(&node, 8));
        assert!(matches!(come(&mut node, 9, 150), Came::Waits { .. }));
    }

    #[test]
    fn a_replica_says_that_the_locks_of_its_last_slots_have_not_moved() {
        let (mut node, mut lock) = (node(), Lock::default());
        assert!(node.acquire(&mut lock, claim(), b"", at(50)).is_ok());
        node.deleted_in_all_slots();
        let theirs = vec![(b"bb".to_vec(), vec![(0, 19)])];
        node.sees(&Shares { others: theirs, ..Shares::default() }, at(200));
        let question = (&vec![(9, 9)], Passage::BySteps);
        let answers = node.asked(b"bb", question, (at(300), LONGEST), |_| false);
        assert!(!answers[0].held.is_zero());
    }

    /// Regressions: a move at once failed at the old master, which went on granting, and succeeded
    /// at the new one all the same, which had hung: at once, after a restart of the old one, or
    /// after the slot had gone to a third master, and perhaps come back.
    #[test]
    fn only_a_move_at_once_that_is_complete_has_taken_all_locks_along() {
        let at_master = |name: &[u8]| {
            let theirs = vec![(name.to_vec(), vec![(5, 5), (10, 19)])];
            Shares { own: vec![(0, 4), (6, 9)], others: theirs, ..Shares::default() }
        };
        let left = |node: &mut Node, now| {
            let passages = [Passage::BySteps, Passage::AtOnce].map(|passage| {
                let settings = (at(now), LONGEST);
                let answers = node.asked(b"bb", (&vec![(5, 5)], passage), settings, |_| false);
                answers.first().map(|answer| answer.held.get())
            });
            passages
                .map(|held| held.map_or("silent", |held| if held == 0 { "all" } else { "some" }))
        };
        let granting = || {
            let mut node = joined();
            node.sees(&shares(&[]), at(100));
            let (mut lock, long) = (Lock::default(), Claim { ttl: Millis::new(9_000), ..claim() });
            assert!(node.acquire(&mut lock, long, b"", at(600)).is_ok());
            node
        };
        let gone = |node: &mut Node, name: &[u8], now| {
            node.move_at_once(MoveAtOnce::HasLeft, &vec![(5, 5)], None);
            node.sees(&at_master(name), at(now));
        };
        let comes_back = |node: &mut Node, name: &[u8], now| {
            node.sees(&shares(&[]), at(now));
            node.answered(name, number(now), &answer(0, 0, vec![(5, 5)]), at(now));
            assert!(matches!(come(node, 5, now), Came::Decides(_)));
        };
        let mut node = granting();
        gone(&mut node, b"bb", 700);
        assert_eq!(left(&mut node, 700), ["some", "all"]);
        comes_back(&mut node, b"bb", 800);
        node.sees(&at_master(b"bb"), at(900));
        assert_eq!(left(&mut node, 900), ["all", "some"], "by another move, which is not complete");

        let mut node = granting();
        node.sees(&at_master(b"bb"), at(700));
        assert_eq!(left(&mut node, 700), ["all", "some"]);

        let mut node = granting();
        node.move_at_once(MoveAtOnce::LeavesNot, &vec![(5, 5)], None);
        gone(&mut node, b"bb", 700);
        assert_eq!(left(&mut node, 700), ["some", "some"], "the first move may be complete");
        assert_eq!(node.tally().counts.failed_moves, 1);
        comes_back(&mut node, b"bb", 800);
        gone(&mut node, b"bb", 900);
        assert_eq!(left(&mut node, 900), ["some", "all"], "it has told once");

        // Regression: the slot went to a third master and came back, before the next move to the
        // one that had hung.
        let mut node = granting();
        node.move_at_once(MoveAtOnce::LeavesNot, &vec![(5, 5)], None);
        gone(&mut node, b"cc", 700);
        comes_back(&mut node, b"cc", 800);
        gone(&mut node, b"bb", 900);
        assert_eq!(left(&mut node, 900), ["some", "some"]);

        // Regressions: it was called off before a start; and who calls a move by steps off doubts,
        // so that it asks after a crash too.
        let memory = ClusterMemory { failed_departures: vec![(5, 5)], ..ClusterMemory::default() };
        let mut node = Node::new();
        node.join_cluster(BOOT, memory, at(0));
        node.sees(&shares(&[]), at(100));
        gone(&mut node, b"bb", 700);
        node.are_gone(at(9_000));
        assert_eq!(left(&mut node, 700), ["some", "some"]);
        let mut node = granting();
        node.sees(&leaving(5, b"bb"), at(700));
        node.sees(&shares(&[]), at(800));
        assert!(node.news_of_slots(at(800)).contains(&Change::Doubts(true)));

        let mut node = granting();
        node.move_at_once(MoveAtOnce::HasLeft, &vec![(5, 5)], Some(b"cc"));
        node.sees(&at_master(b"bb"), at(700));
        assert_eq!(left(&mut node, 700), ["some", "some"], "the move led to another");

        let mut node = granting();
        node.move_at_once(MoveAtOnce::Leaves, &vec![(5, 5)], None);
        node.sees(&at_master(b"bb"), at(700));
        node.move_at_once(MoveAtOnce::HasLeftUnproved, &vec![(5, 5)], None);
        assert_eq!(left(&mut node, 700), ["some", "some"], "it may not have sent all");

        let mut node = granting();
        node.move_at_once(MoveAtOnce::Leaves, &vec![(5, 5)], None);
        node.sees(&at_master(b"bb"), at(700));
        gone(&mut node, b"bb", 700);
        assert_eq!(left(&mut node, 700), ["some", "all"], "the end of another move came first");

        let mut node = granting();
        gone(&mut node, b"cc", 700);
        node.sees(&at_master(b"bb"), at(800));
        assert_eq!(left(&mut node, 800), ["silent", "silent"], "a third had it in between");

        let mut node = granting();
        gone(&mut node, b"cc", 700);
        comes_back(&mut node, b"cc", 800);
        node.sees(&at_master(b"bb"), at(900));
        assert_eq!(left(&mut node, 900), ["all", "some"]);
    }

    #[test]
    fn who_gets_a_slot_at_once_says_so_when_it_asks() {
        let passages = |node: &mut Node, now| {
            let asked = node.questions(at(now)).into_iter();
            asked.map(|question| (question.passage, question.slots)).collect::<Vec<_>>()
        };
        let mut node = node();
        node.move_at_once(MoveAtOnce::Comes, &vec![(12, 13)], None);
        // `CLUSTER ADDSLOTS` may give it a slot of which the server has said no more than that.
        node.sees(&shares(&[12, 13]), at(100));
        node.move_at_once(MoveAtOnce::HasCome, &vec![(12, 12)], None);
        assert_eq!(node.tally().counts.failed_moves, 0, "it is counted where the slot stays");
        let both = [(Passage::BySteps, vec![(13, 13)]), (Passage::AtOnce, vec![(12, 12)])];
        assert_eq!(passages(&mut node, 100), both);
        node.answered(b"bb", number(100), &answer(0, 0, vec![(12, 12)]), at(100));
        assert!(matches!(come(&mut node, 12, 100), Came::Decides(_)));
        node.sees(&shares(&[13]), at(150));
        node.sees(&shares(&[12, 13]), at(200));
        assert_eq!(
            passages(&mut node, 200),
            [(Passage::BySteps, vec![(12, 13)])],
            "by another move"
        );
    }

    /// Regressions: two masters had the same epoch, and the one that had hung won the slot back,
    /// while a lease of the other stood; and while it asked, a slot on its way was refused.
    #[test]
    fn who_is_asked_about_a_slot_that_it_has_asks_back() {
        let [mut node, mut told_late] = [node(), node()];
        let questioned = |node: &mut Node, passage, now| {
            assert_eq!(
                node.asked(b"bb", (&vec![(5, 5)], passage), (at(now), LONGEST), |_| false),
                []
            );
            decides(node, 5)
        };
        node.sees(&shares(&[]), at(100));
        assert!(questioned(&mut node, Passage::NotYet, 100), "it has not come there");
        assert!(!questioned(&mut node, Passage::BySteps, 100));
        assert_eq!(come(&mut node, 5, 200), Came::Asks);
        node.sees(&shares(&[]), at(299));
        assert_eq!(node.questions(at(299)), [], "it may read that the slot is gone");
        node.sees(&shares(&[]), at(300));
        let asked = node.questions(at(300));
        assert_eq!(asked.len(), 1);
        assert_eq!((asked[0].passage, &asked[0].slots), (Passage::AtOnce, &vec![(5, 5)]));
        let answer = SlotAnswer { held: Millis::new(500), ..answer(7, 0, vec![(5, 5)]) };
        node.answered(b"bb", number(300), &answer, at(400));
        assert!(matches!(come(&mut node, 5, 400), Came::Waits { .. }));

        told_late.sees(&shares(&[]), at(100));
        assert!(!questioned(&mut told_late, Passage::BySteps, 100));
        let gone = vec![(b"bb".to_vec(), vec![(5, 5), (10, 19)])];
        let gone = Shares { own: vec![(0, 4), (6, 9)], others: gone, ..Shares::default() };
        told_late.sees(&gone, at(200));
        let asked = (&vec![(5, 5)], Passage::BySteps);
        let answers = told_late.asked(b"bb", asked, (at(200), LONGEST), |_| false);
        assert_eq!(answers.len(), 1, "it was only told late that the slot is gone");
    }

    #[test]
    fn a_wait_lasts_until_no_other_master_has_as_high_an_epoch() {
        let mut node = node();
        node.sees(&shares(&[12]), at(100));
        ask(&mut node, (5, 1_000), (100, 100));
        assert!(matches!(come(&mut node, 12, 100), Came::Waits { .. }));
        assert!(node.owes_epoch(at(200)));
        node.raised_epoch(false);
        assert!(node.owes_epoch(at(300)));
        let mut tied = node.clone();
        tied.sees(&shares(&[12]), at(9_000));
        let clocks = tied.date(at(9_000));
        let came = tied.come(12, clocks, (LONGEST, CAUTION));
        assert_eq!(came, Ok(waits(1, None)));
        node.raised_epoch(true);
        assert!(!node.owes_epoch(at(400)));
        assert!(matches!(come(&mut node, 12, 9_000), Came::Decides(_)));
    }

    /// Regressions: a master that had joined after another died got slots of that one, of which it
    /// had heard from nobody, and decided there at once; and so did one that started after the
    /// other was forgotten.
    #[test]
    fn a_slot_of_an_unknown_master_waits_for_the_longest_lease() {
        let over = at(200).after(with_drift(SUPPORT.saturating_add(LONGEST)));
        let news = recorded(over);
        let mut node = joined();
        node.sees(&Shares { own: Vec::new(), had_none: true, ..shares(&[]) }, at(0));
        let dead = Shares { idle: vec![b"cc".to_vec()], ..with(30) };
        node.sees(&dead, at(200));
        assert_eq!(come(&mut node, 30, 300), Came::Asks, "it may just have met the other");
        let late = over.as_millis() + 1;
        assert_eq!(come(&mut node, 30, late - 1), Came::Asks);
        let told = recorded(at(late + 1_000));
        assert_eq!(come(&mut node, 30, late), waits(1_001, told), "the others must hear of it");
        tell(&mut node, 0, 0, late + 100);
        assert!(matches!(come(&mut node, 30, late + 1_000), Came::Waits { .. }));
        assert_eq!(come(&mut node, 30, late + 1_001), Came::Decides(true));
        let mut node = joined();
        node.sees(&Shares { own: Vec::new(), had_none: true, ..shares(&[]) }, at(0));
        node.sees(&dead, at(200));
        for now in [300, 900] {
            node.hear(b"cc", footing(7, 0), at(now));
        }
        node.sees(&dead, at(900));
        assert_eq!(come(&mut node, 30, 2_200), Came::Asks);
        assert_eq!(come(&mut node, 30, 2_201), Came::Decides(true), "it has heard all");
        let mut node = joined();
        node.sees(&shares(&[]), at(0));
        node.sees(&with(30), at(200));
        let left = at(200).until(over.after(Millis::new(1)));
        assert_eq!(come(&mut node, 30, 200), waits(left.get(), news), "nobody had it at the start");
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
        let told = Footing { floor: Fence::ZERO, left };
        assert_eq!(node.tell(at(0), LONGEST), Some(told));
        assert!(matches!(
            node.obstacle(at(0), (LONGEST, CAUTION)),
            Some(Refusal::NoAuthority { .. })
        ));
    }
}
