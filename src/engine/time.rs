//! Lengths of time and instants, each a type of its own.
//!
//! Nothing here reads a clock: the caller passes the time in. An [`Instant`] belongs to one
//! machine's monotonic clock and never travels; a [`UnixTime`] may travel, and may be wrong,
//! because wall clocks are stepped. All arithmetic saturates: an overflow must never turn a lease
//! that has ended into one that lasts for ages.

use std::fmt;
use std::time::Duration;

/// The longest lease that any setting allows: 366 days.
pub const TTL_MAX: Millis = Millis::new(31_622_400_000);

/// A length of time in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(u64);

impl Millis {
    /// No time at all.
    pub const ZERO: Millis = Millis(0);

    /// A length of `millis` milliseconds.
    pub const fn new(millis: u64) -> Millis {
        Millis(millis)
    }

    /// The number of milliseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or the longest possible length if that is less.
    #[must_use]
    pub const fn saturating_add(self, other: Millis) -> Millis {
        Millis(self.0.saturating_add(other.0))
    }

    /// This length minus `other`; zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Millis) -> Millis {
        Millis(self.0.saturating_sub(other.0))
    }

    /// `duration` rounded down to a millisecond: for time that a caller may rely on.
    pub fn round_down(duration: Duration) -> Millis {
        Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// `duration` rounded up to a millisecond: for time that has been used up.
    pub fn round_up(duration: Duration) -> Millis {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        Millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }
}

impl From<Millis> for Duration {
    fn from(millis: Millis) -> Duration {
        Duration::from_millis(millis.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

/// An instant on one machine's monotonic clock, in milliseconds since the clock's own start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The instant `millis` milliseconds after the clock's start.
    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis)
    }

    /// Milliseconds since the clock's start.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The instant `length` later.
    #[must_use]
    pub const fn after(self, length: Millis) -> Instant {
        Instant(self.0.saturating_add(length.0))
    }

    /// The instant `length` earlier, but not before the clock's start.
    #[must_use]
    pub const fn before(self, length: Millis) -> Instant {
        Instant(self.0.saturating_sub(length.0))
    }

    /// The time from this instant until `later`; zero if `later` has passed.
    pub const fn until(self, later: Instant) -> Millis {
        Millis(later.0.saturating_sub(self.0))
    }
}

/// An instant on the wall clock, in milliseconds since 1970 (UTC).
///
/// Only for data that leaves the process: data sets, replication, output for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(u64);

impl UnixTime {
    /// The instant `millis` milliseconds after the start of 1970.
    pub const fn from_millis(millis: u64) -> UnixTime {
        UnixTime(millis)
    }

    /// The instant `length` later.
    #[must_use]
    pub const fn after(self, length: Millis) -> UnixTime {
        UnixTime(self.0.saturating_add(length.0))
    }

    /// Milliseconds since the start of 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

/// Both clocks of one machine, read together. They convert between instants and wall-clock times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The monotonic clock.
    pub now: Instant,
    /// The wall clock at the same moment.
    pub wall: UnixTime,
}

/// A wall clock that has moved by more than this against the monotonic one, in milliseconds, was
/// stepped.
const STEP: u64 = 1_000;

/// How far the end of a lease from an earlier boot may be off: one unnoticed step in each of up to
/// three boots.
pub const UNNOTICED: Millis = Millis::new(3 * STEP);

impl Clocks {
    /// Both clocks at `now`, if the wall clock has not been stepped since this reading.
    #[must_use]
    pub const fn at(self, now: Instant) -> Clocks {
        Clocks { now, wall: self.to_wall(now) }
    }

    /// Whether the wall clock was stepped since `then`, a reading on the same machine in the same
    /// boot.
    pub const fn are_stepped_since(self, then: Clocks) -> bool {
        then.to_wall(self.now).0.abs_diff(self.wall.0) > STEP
    }

    /// The wall-clock time of `instant`, as far as the present wall clock can tell.
    pub const fn to_wall(self, instant: Instant) -> UnixTime {
        if instant.0 >= self.now.0 {
            UnixTime(self.wall.0.saturating_add(instant.0 - self.now.0))
        } else {
            UnixTime(self.wall.0.saturating_sub(self.now.0 - instant.0))
        }
    }

    /// The instant of a wall-clock time from elsewhere, never later than `latest` from now: a wall
    /// clock that was stepped back in between must not prolong a lease beyond its ttl.
    pub const fn to_instant(self, wall: UnixTime, latest: Millis) -> Instant {
        if wall.0 >= self.wall.0 {
            let ahead = wall.0 - self.wall.0;
            self.now.after(Millis(if ahead < latest.0 { ahead } else { latest.0 }))
        } else {
            self.now.before(Millis(self.wall.0 - wall.0))
        }
    }

    /// Whether [`Clocks::to_instant`] shortens this time: the wall clock has been stepped back
    /// since, or the time is from another machine. The lease may already be over.
    pub const fn shortens(self, wall: UnixTime, latest: Millis) -> bool {
        wall.0.saturating_sub(self.wall.0) > latest.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_used_rounds_up_and_time_left_rounds_down() {
        let fraction = Duration::from_micros(1_001);
        assert_eq!(Millis::round_up(fraction), Millis::new(2));
        assert_eq!(Millis::round_down(fraction), Millis::new(1));
        assert_eq!(Duration::from(Millis::new(2)), Duration::from_millis(2));
    }

    #[test]
    fn lengths_and_instants_saturate_at_both_ends() {
        assert_eq!(Millis::new(1).saturating_sub(Millis::new(2)), Millis::ZERO);
        assert_eq!(Instant::from_millis(5).until(Instant::from_millis(3)), Millis::ZERO);
        let last = Instant::from_millis(u64::MAX);
        assert_eq!(last.after(Millis::new(1)), last);
        assert_eq!(Instant::from_millis(3).before(Millis::new(5)), Instant::default());
    }

    #[test]
    fn one_unnoticed_step_in_each_of_three_boots_is_allowed_for() {
        let then = Clocks { now: Instant::from_millis(5_000), wall: UnixTime::from_millis(90_000) };
        let off =
            |millis: i64| then.at(Instant::from_millis(7_000)).wall.0.saturating_add_signed(millis);
        let stepped = |millis| {
            let wall = UnixTime::from_millis(off(millis));
            Clocks { now: Instant::from_millis(7_000), wall }.are_stepped_since(then)
        };
        assert_eq!(
            [-1_001, -1_000, 0, 1_000, 1_001].map(stepped),
            [true, false, false, false, true]
        );
        assert_eq!(UNNOTICED, Millis::new(3_000));
    }

    #[test]
    fn wall_times_from_elsewhere_are_clamped_to_the_ttl() {
        let clocks =
            Clocks { now: Instant::from_millis(1_000), wall: UnixTime::from_millis(50_000) };
        let ttl = Millis::new(300);
        let far = UnixTime::from_millis(90_000);
        assert_eq!(clocks.to_instant(far, ttl), Instant::from_millis(1_300));
        for (ahead, is_shortened) in [(0, false), (300, false), (301, true), (90_000, true)] {
            let wall = clocks.to_wall(Instant::from_millis(1_000 + ahead));
            assert_eq!(clocks.shortens(wall, ttl), is_shortened, "{ahead}");
        }
        let near = clocks.to_wall(Instant::from_millis(1_200));
        assert_eq!(clocks.to_instant(near, ttl), Instant::from_millis(1_200));
        let past = clocks.to_wall(Instant::from_millis(400));
        assert_eq!(clocks.to_instant(past, ttl), Instant::from_millis(400));
    }
}
