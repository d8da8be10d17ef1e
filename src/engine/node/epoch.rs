//! When a master that waits in a slot raises its configuration epoch.
//!
//! It must be the highest, or the former master of the slot wins it back when it returns. But a
//! master that raises its epoch also claims what it believes to be its own again. If one of its
//! slots has just gone to another master, and it has not read that yet, both have the same epoch
//! then, and either may win. So it raises its epoch while none of its slots is on its way to
//! another master, and not just after it has hung.

use super::BEAT;
use super::confirmations::Confirmations;
use super::hang::Hang;
use super::shares::Shares;
use crate::engine::Instant;

/// Whether the epoch must be raised, and may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    is_owed: bool,
    hang: Hang<300>,
    /// A slot is on its way to another master.
    gives: bool,
}

/// Whether the epoch has risen where most masters did not hear of it. They may give its slots to
/// others, and with its epoch this one wins them back: after a restart, without having seen that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rise {
    pub(super) epoch: Option<u64>,
    /// When it was seen to rise.
    at: Option<Instant>,
    /// The node stops: it will not hear that others know.
    is_last: bool,
}

impl Rise {
    /// Notes the epoch that a look shows. Returns whether it has risen since the last one.
    pub(super) fn look(&mut self, shares: &Shares, now: Instant) -> bool {
        let before = self.epoch.replace(shares.epoch);
        let has_risen = shares.has_risen || before.is_some_and(|before| before < shares.epoch);
        if has_risen {
            self.at = Some(now);
        }
        has_risen
    }

    /// Notes that the node is about to stop.
    pub(super) const fn stops(&mut self) {
        self.is_last = true;
    }

    /// Whether most masters do not know of it: for longer than that takes, unless they do not
    /// answer anyway, or the node stops.
    pub(super) fn is_unconfirmed(&mut self, confirmations: &Confirmations, now: Instant) -> bool {
        let epoch = self.epoch.unwrap_or_default();
        self.at = self.at.filter(|_| !confirmations.know_epoch(epoch));
        let has_time = |at: Instant| now < at.after(BEAT) && confirmations.reach_most(now);
        self.at.is_some_and(|at| self.is_last || !has_time(at))
    }
}

impl Epoch {
    /// Notes a look at the slots.
    pub(super) fn look(&mut self, shares: &Shares, now: Instant) {
        self.hang.look(now);
        self.gives = !shares.migrating.is_empty();
    }

    /// A wait begins.
    pub(super) const fn owe(&mut self) {
        self.is_owed = true;
    }

    pub(super) const fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// Whether it is to be raised now, just after a look. `is_late`: a wait is over, and a slot
    /// that is on its way, perhaps for ever, must not prolong it.
    pub(super) fn is_due(&self, is_late: impl FnOnce() -> bool, now: Instant) -> bool {
        self.is_owed && self.hang.has_read(now) && (!self.gives || is_late())
    }

    /// Notes that the server was told to raise it. It does not, if another master has the same, and
    /// none a higher one. Then that one must be back, and take a higher one, or be forgotten.
    pub(super) const fn raised(&mut self, is_highest: bool) {
        self.is_owed = !is_highest;
    }
}
