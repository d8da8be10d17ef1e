//! What has not moved with the slots that a master has lost, and what it answers about them.

use super::Node;
use super::shares::{Footing, Passage, SLOTS, SlotAnswer, SlotRuns};
use super::slot_set::all;
use crate::engine::{Instant, Millis};

impl Node {
    /// Notes that leases are gone here that end no later than this.
    pub(super) fn are_gone(&mut self, until: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.gone_until = slots.gone_until.max(until);
        }
    }

    /// Whether the deletion of a held lock in this slot is news, if the slot is no longer the
    /// server's own.
    pub fn deletion_may_be_news(&self, slot: u16) -> bool {
        self.slots.as_ref().is_some_and(|slots| slots.table.may_be_news(slot))
    }

    /// Notes that a held lock was deleted in this slot, which is not the server's own by now: it
    /// has lost the slot, and the lock has not moved.
    pub fn deleted_in(&mut self, slot: u16) {
        if let Some(slots) = &mut self.slots {
            slots.table.deleted_in(slot);
        }
    }

    /// The same for each of its slots.
    pub fn deleted_in_all_slots(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.table.deleted_in_all();
        }
    }

    /// Takes another master's question about slots, just after the node has looked at its own.
    /// Returns the answers, up to four, if it can speak for any of the slots. `has_locks`: whether
    /// this node has keys in a slot, of those in which it [does not decide](Node::not_settled).
    pub fn asked(
        &mut self,
        name: &[u8],
        (slots, passage): (&SlotRuns, Passage),
        (now, max_ttl): (Instant, Millis),
        has_locks: impl FnMut(u16) -> bool,
    ) -> Vec<SlotAnswer> {
        let footing = self.footing(now, max_ttl);
        let left_behind = Footing { floor: self.promises.highest(), ..footing };
        let held = now.until(self.longest_until());
        let Some(own) = &mut self.slots else { return Vec::new() };
        let Some(up) = own.table.looked_at().map(|at| at.until(now)) else { return Vec::new() };
        let [moved, left] = own.table.asked(name, (slots, passage), now, has_locks);
        let answers = |slots: SlotRuns, footing, held| {
            let by_end = own.by_confirmation(&slots, now);
            by_end.map(|(sure, slots)| SlotAnswer { footing, up, held, sure, slots })
        };
        // The last one is also the node's report.
        let all = [answers(left, left_behind, held), answers(moved, footing, Millis::ZERO)];
        all.into_iter().flatten().filter(|answer| !answer.slots.is_empty()).collect()
    }

    /// Those of these slots in which this node does not decide.
    pub fn not_settled(&self, slots: &SlotRuns) -> Vec<u16> {
        let settled =
            |slot: &u16| self.slots.as_ref().is_some_and(|own| own.table.is_settled(*slot));
        all(slots).map(|slot| slot % SLOTS).filter(|slot| !settled(slot)).collect()
    }
}
