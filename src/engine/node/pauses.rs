//! Pauses, after which a master may not know yet that it has lost slots.
//!
//! A server that has hung may read a request before it reads what the other masters said meanwhile:
//! one of them may have waited for its leases, and decide in its slots. And a server that hands a
//! slot over at once holds back writes while the other server takes it: the first write after that
//! may come before the next look, and, if the other server is late, before this one has read that
//! the slot is gone.

use super::hang::Hang;
use super::shares::Shares;
use crate::engine::Instant;

/// What is known of pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pauses {
    /// The node may have lost slots in it: shorter than any wait for its leases, longer than a
    /// server's cron takes at the least frequency.
    pub(super) hang: Hang<2_000>,
    /// The server held back writes at the last look.
    holds_back: bool,
}

impl Pauses {
    /// Notes a look at the slots. Returns whether moves from here at once may have failed: writes
    /// went on, or the server hung for so long that they may have. It holds them back for two
    /// seconds at least while the other server may take a slot. `is_explained`: it has just
    /// reported that the other one has.
    pub(super) fn look(&mut self, shares: &Shares, is_explained: bool, now: Instant) -> bool {
        let has_hung = self.hang.lasts(now);
        self.hang.look(now);
        let goes_on =
            std::mem::replace(&mut self.holds_back, shares.holds_back) && !self.holds_back;
        if goes_on {
            self.hang.goes_on(now);
        }
        has_hung || goes_on && !is_explained
    }

    /// Whether the node may rely on its last look.
    pub(super) fn knows(&self, now: Instant) -> bool {
        self.hang.has_read(now) && !self.hang.lasts(now) && !self.holds_back
    }
}
