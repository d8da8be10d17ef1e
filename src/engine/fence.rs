//! Fencing tokens: numbers that rise with every grant.

use std::fmt;

use super::UnixTime;

/// A node refuses to raise a fence beyond the time by more than this, in microseconds: 8 weeks.
///
/// After a loss, fences jump three weeks beyond the time, and from then on rise more slowly than
/// the time. So if clocks are right, no honest fence is further ahead.
pub const RAISE_MARGIN: u64 = 8 * WEEK;
/// A client leaves out the vote of a node whose fence is beyond the time by more than this, in
/// microseconds: 4 weeks. That is less than nodes accept, and more than a jump, so that clocks may
/// differ.
pub const VOTE_MARGIN: u64 = 4 * WEEK;
/// How far fences jump beyond the time, in microseconds, if the node does not know what was issued:
/// 3 weeks. A client may have raised a fence ahead of the time, and clients must still count a node
/// that has jumped.
pub(super) const LOSS_MARGIN: u64 = 3 * WEEK;
const WEEK: u64 = 7 * 24 * 3_600 * 1_000_000;

/// The year 2200: a wall clock beyond it is not trusted.
const WALL_MAX: UnixTime = UnixTime::from_millis(7_258_118_400_000);

/// A fencing token. Zero means "none yet"; the first grant on a new node has 1.
///
/// Public, and compared by order: a resource remembers the largest fence it has seen and refuses
/// requests with a smaller one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    /// No grant yet.
    pub const ZERO: Fence = Fence(0);

    /// The largest fence, 2^53 - 1: exact in every language, JavaScript and Lua included.
    pub const MAX: Fence = Fence((1 << 53) - 1);

    /// The fence with this number, if it is at most [`Fence::MAX`].
    pub const fn new(number: u64) -> Option<Fence> {
        if number <= Fence::MAX.0 { Some(Fence(number)) } else { None }
    }

    /// The wall-clock time in microseconds; zero from the year 2200 on. No node issues a million
    /// fences a second for long, so this is where fences start after a loss of all knowledge.
    pub fn of_time(wall: UnixTime) -> Fence {
        let micros = if wall <= WALL_MAX { wall.as_millis() * 1_000 } else { 0 };
        Fence::ZERO.saturating_add(micros)
    }

    /// The highest fence that a client counts at this time: see [`VOTE_MARGIN`].
    pub fn highest_counted(wall: UnixTime) -> Fence {
        Fence::of_time(wall).saturating_add(VOTE_MARGIN)
    }

    /// The highest fence to which a node that has seen none as high lets itself be raised at this
    /// time: see [`RAISE_MARGIN`].
    pub fn highest_raised(wall: UnixTime) -> Fence {
        Fence::of_time(wall).saturating_add(RAISE_MARGIN)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The fence of the next grant; `None` when the numbers are used up.
    #[must_use]
    pub const fn next(self) -> Option<Fence> {
        Fence::new(self.0 + 1)
    }

    /// The fence just below this one; zero stays zero.
    #[must_use]
    pub const fn previous(self) -> Fence {
        Fence(self.0.saturating_sub(1))
    }

    /// The fence `count` above this one, at most [`Fence::MAX`].
    #[must_use]
    pub const fn saturating_add(self, count: u64) -> Fence {
        let number = self.0.saturating_add(count);
        if number <= Fence::MAX.0 { Fence(number) } else { Fence::MAX }
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> u64 {
        fence.0
    }
}

/// Reads a stored number. Fails above [`Fence::MAX`], and then returns the number.
impl TryFrom<u64> for Fence {
    type Error = u64;

    fn try_from(number: u64) -> Result<Fence, u64> {
        Fence::new(number).ok_or(number)
    }
}

/// For databases and protocols with signed integers: every fence fits, because none is above
/// [`Fence::MAX`].
impl From<Fence> for i64 {
    fn from(fence: Fence) -> i64 {
        fence.0.cast_signed()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_a_fence_until_the_year_2200() {
        assert_eq!(Fence::of_time(UnixTime::from_millis(5)).get(), 5_000);
        assert_eq!(Fence::of_time(WALL_MAX).get(), WALL_MAX.as_millis() * 1_000);
        let beyond = UnixTime::from_millis(WALL_MAX.as_millis() + 1);
        assert_eq!(Fence::of_time(beyond), Fence::ZERO);
        assert_eq!(Fence::of_time(UnixTime::from_millis(u64::MAX)), Fence::ZERO);
    }

    #[test]
    fn fences_end_where_a_double_stops_being_exact() {
        assert_eq!(Fence::new(1 << 53), None);
        assert_eq!(Fence::MAX.next(), None);
        assert_eq!(Fence::try_from(1 << 53), Err(1 << 53));
        assert_eq!(Fence::try_from(Fence::MAX.get()), Ok(Fence::MAX));
        assert_eq!(Fence::MAX.get() as f64 as u64, Fence::MAX.get());
        assert_eq!(Fence::MAX.previous().next(), Some(Fence::MAX));
        assert_eq!(Fence::ZERO.previous(), Fence::ZERO);
        assert_eq!(Fence::MAX.saturating_add(1), Fence::MAX);
        assert_eq!(Fence::MAX.to_string(), "9007199254740991");
        assert_eq!((u64::from(Fence::MAX), i64::from(Fence::MAX)), ((1 << 53) - 1, (1 << 53) - 1));
    }
}
