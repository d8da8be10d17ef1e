//! A node's part of a scan over all locks: lapsed leases, and the longest lease.

use super::{Ceilings, LEASE_BLOCK, Lock, Node};
use crate::engine::Instant;

impl Node {
    /// Notes a lock that a scan has found, or that was copied to a second name.
    pub fn come_upon(&mut self, lock: &Lock) {
        self.promises.come_upon(lock);
        self.tally.may_lapse(lock);
    }

    /// Notes the ends of leases that have ended. Returns whether one had not been noted before.
    pub fn note_lapses(&mut self, lock: &mut Lock, now: Instant) -> bool {
        let before = lock.unnoted();
        let lapsed = lock.note_lapses(now);
        self.tally.lapsed(lapsed);
        self.tally.changed(before, lock);
        lapsed > 0
    }

    /// Begins a survey, which looks for the lease that ends last.
    pub fn begin_survey(&mut self) {
        if let Some(slots) = &mut self.slots {
            slots.begin_survey();
        }
        self.promises.begin_survey();
        self.tally.begin_survey();
    }

    /// Ends a survey, after every lock has been looked at. Returns a lower lease ceiling for the
    /// state file, if that shortens the wait after a crash. It cannot if locks were hidden: the
    /// server shows keys of a slot that comes at once only when all have come.
    pub fn end_survey(&mut self, now: Instant) -> Option<Instant> {
        if self.slots.as_ref().is_some_and(|slots| slots.hides_locks) {
            // Another survey may find what this one has not.
            self.tally.cut_short(self.promises.longest());
            return None;
        }
        self.promises.end_survey(now)
    }

    /// Whether a survey could shorten the wait after a crash. It cannot while the lease that ends
    /// last is known to stand, or locks are hidden.
    pub fn would_gain(&self, now: Instant) -> bool {
        if self.slots.as_ref().is_some_and(|slots| slots.table.at_once.some_come()) {
            return false;
        }
        let longest = self.promises.longest();
        let is_gone = self.tally.cut_short_until().after(LEASE_BLOCK) >= longest;
        // After a start, the ceiling may cover leases that did not come back.
        let is_above =
            |ceilings: Ceilings| ceilings.lease > longest.after(LEASE_BLOCK).after(LEASE_BLOCK);
        let may_be_gone = is_gone || self.promises.ceilings().is_some_and(is_above);
        self.promises.would_gain(now) && may_be_gone
    }
}
