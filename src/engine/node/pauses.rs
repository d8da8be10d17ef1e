//! Pauses, after which a master may not know yet that it has lost slots.
//!
//! A server that has hung may read a request before it reads what the other masters said meanwhile:
//! one of them may have waited for its leases, and decide in its slots. And a server that hands a
//! slot over at once holds back writes while the other server takes it: the first write after that
//! may come before the next look, and, if the other server is late, before this one has read that
//! the slot is gone.

use super::hang::Hang;
use super::shares::Shares;
use crate::engine::{Instant, Millis};

/// A server that gives a slot away at once holds back writes for so long at least, unless the other
/// one takes the slot before.
const HOLDS_FOR: Millis = Millis::new(2_000);

/// What is known of pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pauses {
    /// The node may have lost slots in it: shorter than any wait for its leases, longer than a
    /// server's cron takes at the least frequency.
    pub(super) hang: Hang<2_000>,
    /// The server held back writes at the last look.
    holds_back: bool,
    /// The last look at which it did not.
    free_at: Option<Instant>,
    /// It has reported that slots have left at once, and no look since has shown that writes go on.
    has_left: bool,
}

impl Pauses {
    /// Notes that the server has reported that slots have left at once. Valkey lets writes go on
    /// before that, and Redis after it.
    pub(super) const fn note_left(&mut self) {
        self.has_left = true;
    }

    /// Notes a look at the slots. Returns whether moves from here at once may have failed: writes
    /// went on because the time was over, or the server hung for so long that they may have.
    pub(super) fn look(&mut self, shares: &Shares, now: Instant) -> bool {
        let has_hung = self.hang.lasts(now);
        self.hang.look(now);
        let held_back = std::mem::replace(&mut self.holds_back, shares.holds_back);
        if self.holds_back {
            return has_hung;
        }
        // If its time was over, it may have been so for another move too.
        let was_in_time = self.free_at.replace(now).is_some_and(|at| now < at.after(HOLDS_FOR));
        let is_explained = std::mem::take(&mut self.has_left) && was_in_time;
        if held_back && !is_explained {
            self.hang.goes_on(now);
        }
        has_hung || held_back && !is_explained
    }

    /// Whether the node may rely on its last look.
    pub(super) fn knows(&self, now: Instant) -> bool {
        self.hang.has_read(now) && !self.hang.lasts(now) && !self.holds_back
    }
}
