//! Hangs of the node's server, as its looks at the slots show them.

use crate::engine::{Instant, Millis};

/// How long after it has gone on the server has read what was sent to it meanwhile.
const READS_IN: Millis = Millis::new(100);

/// Tells hangs of more than so many milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hang<const LONGER_THAN: u64> {
    looked_at: Option<Instant>,
    went_on_at: Option<Instant>,
}

impl<const LONGER_THAN: u64> Hang<LONGER_THAN> {
    /// Notes a look at the slots.
    pub(super) fn look(&mut self, now: Instant) {
        if self.lasts(now) {
            self.goes_on(now);
        }
        self.looked_at = Some(now);
    }

    /// Notes that the server has not read what was sent to it.
    pub(super) const fn goes_on(&mut self, now: Instant) {
        self.went_on_at = Some(now);
    }

    /// Whether the last look was less than so long ago.
    pub(super) fn has_looked_within(&self, length: Millis, now: Instant) -> bool {
        self.looked_at.is_some_and(|at| now < at.after(length))
    }

    /// Whether the last look was too long ago.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        self.looked_at.is_some_and(|at| at.after(Millis::new(LONGER_THAN)) < now)
    }

    /// Whether the server has read what was sent to it in the last hang.
    pub(super) fn has_read(&self, now: Instant) -> bool {
        self.went_on_at.is_none_or(|at| at.after(READS_IN) <= now)
    }

    /// As if it had looked all the time up to now.
    #[cfg(test)]
    pub(super) const fn had_none(&mut self, now: Instant) {
        self.looked_at = Some(now);
    }

    #[cfg(test)]
    pub(super) fn looked_at(&self) -> Instant {
        self.looked_at.unwrap_or_default()
    }
}
