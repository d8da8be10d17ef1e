//! What a master of a Cluster reports to the others of itself, and the longest lease that it or
//! another may have granted.

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
                || at.after(BEAT) <= now
        };
        if !self.told.as_ref().is_none_or(is_due) {
            return None;
        }
        self.told = Some((now, footing));
        Some(footing)
    }

    /// The longest lease that may stand, as this node and those with a vote remember.
    pub(super) fn longest(&self, now: Instant) -> Millis {
        self.lengths.longest(now).max(self.confirmations.longest(now))
    }
}

impl Node {
    /// The report to send to the other masters now, if it is due.
    pub fn tell(&mut self, now: Instant, max_ttl: Millis) -> Option<Footing> {
        let footing = self.footing(now, max_ttl);
        self.slots.as_mut()?.tell(footing, now)
    }

    pub(super) fn footing(&self, now: Instant, max_ttl: Millis) -> Footing {
        // Not its waits in single slots: it does not speak for these.
        let mut left = self.promises.quarantine(now).map_or(Millis::ZERO, |(left, _)| left);
        if self.promises.check_authority(now).is_err() {
            left = left.max(SUPPORT.saturating_add(self.group_longest(max_ttl, now)));
        }
        let known = self.longest(max_ttl, now);
        let readiness = self.slots.as_ref().map(|slots| slots.readiness(now, known));
        left = left.max(match readiness {
            Some(Readiness::Alone | Readiness::Rests(_)) => SUPPORT.saturating_add(known),
            // Its floor is not yet what it must be.
            Some(Readiness::Jumps) => Millis::new(1),
            Some(Readiness::Decides) | None => Millis::ZERO,
        });
        Footing { floor: self.promises.floor(), left }
    }

    /// The longest lease that this node goes by: of others, as far as it knows, and within its own
    /// settings.
    pub(super) fn longest(&self, max_ttl: Millis, now: Instant) -> Millis {
        let told = self.slots.as_ref().map(|slots| slots.longest(now));
        self.group_longest(max_ttl, now).max(told.unwrap_or_default())
    }

    /// The longest lease that may stand in the node's group, as far as its settings say.
    fn group_longest(&self, max_ttl: Millis, now: Instant) -> Millis {
        self.promises.authority().map_or(max_ttl, |authority| authority.longest(now))
    }

    /// How long a lease of the node may be: within its settings, or what is left of one that is
    /// over later. Its lock came from elsewhere, or the setting was lowered.
    pub(super) fn own_longest(&self, max_ttl: Millis, now: Instant) -> Millis {
        max_ttl.max(now.until(self.longest_until()))
    }

    /// No lease that the node has granted since its start or promotion ends later than this, and
    /// none that was gone before a clean stop. Of those that are gone, because they moved, or their
    /// slot was lost, another master may know nothing.
    pub(super) fn longest_until(&self) -> Instant {
        let gone_until = self.slots.as_ref().map(|slots| slots.gone_until);
        self.promises.longest().max(gone_until.unwrap_or_default())
    }
}
