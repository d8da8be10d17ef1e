//! Dates the beginnings of waits by the wall clock, in the order in which they began.
//!
//! Two readings of the wall clock, each rounded to a millisecond, can turn that order around. So
//! the offset between the two clocks is read once, and kept until the wall clock has been stepped.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::world::AnyWorld;

/// Kept offsets that are off by less than this are not corrected. Twice the rounding, because the
/// thread may pause between the readings.
const STEP: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(super) struct Calendar {
    /// What the wall clock showed when the other one began; `None` before the first reading.
    offset: Mutex<Option<Duration>>,
}

impl Calendar {
    /// The time since 1970 at `at`, which is not long ago.
    pub(super) fn date(&self, world: &AnyWorld, at: Duration) -> Duration {
        let now = world.now();
        let read = Duration::from_millis(world.wall().as_millis()).saturating_sub(now);
        at.saturating_add(self.keep(read))
    }

    /// The offset to use, after this reading of it.
    fn keep(&self, read: Duration) -> Duration {
        // A number is intact even if it is poisoned.
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = offset.filter(|kept| kept.abs_diff(read) < STEP);
        *offset.insert(kept.unwrap_or(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_kept_until_the_wall_clock_is_stepped() {
        let (calendar, micros) = (Calendar::default(), Duration::from_micros);
        let read = [9_000, 9_900, 8_100, 7_000, 7_999, 5_000_000, 4_999_500];
        let used = [9_000, 9_000, 9_000, 7_000, 7_000, 5_000_000, 5_000_000];
        assert_eq!(read.map(|read| calendar.keep(micros(read))), used.map(micros));
    }
}
