//! Whether a lock could be granted, for the code that serves its line.

use super::{Lock, Node};
use crate::engine::{Instant, Mode};

/// Whether a lock is held, as far as its waiters are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// A writer holds it, until and including this instant.
    Held(Instant),
    /// Readers hold it.
    Shared {
        /// The last instant of the lease that ends last.
        until: Instant,
        /// How many more readers there is room for, at least.
        room: usize,
        /// If there is no room, no lease ends before this instant.
        next: Instant,
    },
    /// Nobody holds it, or it does not exist.
    Free,
    /// The key holds something else.
    WrongType,
}

impl Availability {
    /// How the lock is held, if it is.
    pub(super) fn held_as(self) -> Option<Mode> {
        match self {
            Availability::Held(_) => Some(Mode::Exclusive),
            Availability::Shared { .. } => Some(Mode::Shared),
            Availability::Free | Availability::WrongType => None,
        }
    }
}

impl Node {
    /// The state of a lock at `now`.
    pub fn availability(&self, lock: &Lock, now: Instant) -> Availability {
        let until = lock.until();
        match lock.mode() {
            _ if !lock.is_held(now) => Availability::Free,
            Mode::Exclusive => Availability::Held(until),
            Mode::Shared => {
                let room = self.promises.room_for_readers(lock, 0, now);
                let next = if room > 0 { until } else { lock.next_end(now) };
                Availability::Shared { until, room, next }
            }
        }
    }
}
