//! Whether a lock could be granted, as those who serve its line have to know.

use super::{Lock, Node};
use crate::engine::{Instant, Mode};

/// Whether somebody holds a lock, as far as those in line are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// A writer holds it, until and including this instant.
    Held(Instant),
    /// Readers hold it.
    Shared {
        /// The last instant of the last of them.
        until: Instant,
        /// How many more there may be, at least.
        room: usize,
        /// The last instant of the next one to end, if there is no room.
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
