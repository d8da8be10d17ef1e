//! What a master of a Cluster reports to the others of itself, and the longest leases that it and
//! they may have granted.

use super::company::Readiness;
use super::shares::Footing;
use super::slots::Slots;
use super::{BEAT, Node, SUPPORT};
use crate::engine::{Instant, Millis};

impl Slots {
    /// The report to send to the others now, if it is due.
    fn tell(&mut self, footing: Footing, now: Instant) -> Option<Footing> {
        let is_due = |&(at, told): &(Instant, Footing)| {
            told.floor != footing.floor
                || told.left.is_zero() != footing.left.is_zero()
                || told.longest < footing.longest
                || at.after(BEAT) <= now
        };
        if !self.told.as_ref().is_none_or(is_due) {
            return None;
        }
        self.told = Some((now, footing));
        Some(footing)
    }
}

impl Node {
    /// The report to send to the other masters now, if it is due.
    pub fn tell(&mut self, now: Instant, max_ttl: Millis) -> Option<Footing> {
        let footing = self.footing(now, max_ttl);
        self.slots.as_mut()?.tell(footing, now)
    }

    pub(super) fn footing(&self, now: Instant, max_ttl: Millis) -> Footing {
        let quarantine = self.promises.quarantine(now).map_or(Millis::ZERO, |(left, _)| left);
        // Not its waits in single slots: it does not speak for these.
        let mut left = quarantine;
        let own = self.own_longest(max_ttl, now);
        if self.promises.check_authority(now).is_err() {
            left = left.max(SUPPORT.saturating_add(own));
        }
        let known = self.longest(max_ttl, now);
        let readiness = self.slots.as_ref().map(|slots| slots.readiness(now, known));
        let waits_for_others = matches!(readiness, Some(Readiness::Alone | Readiness::Rests(_)));
        if waits_for_others {
            left = left.max(SUPPORT.saturating_add(known));
        }
        // The setting may have been lowered since; and what it waits for, its successor must too.
        let of_own = now.until(self.promises.longest());
        // Whoever waits for it adds that. A wait in a slot has it, and would grow each time.
        let forgotten = Millis::new(quarantine.get().saturating_sub(SUPPORT.get()));
        let waits_in_slots = self.slots.as_ref().is_some_and(|slots| slots.table.waits());
        let waits = waits_for_others || waits_in_slots;
        let of_others = if waits { known } else { Millis::ZERO };
        let longest = own.max(of_own).max(forgotten).max(of_others);
        Footing { floor: self.promises.floor(), left, longest }
    }

    /// The longest lease that may stand at another node, as far as this one knows.
    pub(super) fn longest(&self, max_ttl: Millis, now: Instant) -> Millis {
        let told = self.slots.as_ref().map(|slots| slots.table.longest_told());
        self.own_longest(max_ttl, now).max(told.unwrap_or_default())
    }

    /// The longest lease that may stand in the node's group, as far as its settings say.
    fn own_longest(&self, max_ttl: Millis, now: Instant) -> Millis {
        self.promises.authority().map_or(max_ttl, |authority| authority.longest(now))
    }
}
