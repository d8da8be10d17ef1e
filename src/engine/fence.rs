//! Fencing tokens: numbers that rise with every grant.

use std::fmt;

/// A fencing token. Zero means "none yet"; the first grant of a lock has 1.
///
/// Public, and compared by order: a resource remembers the largest fence it has seen and refuses
/// whoever comes with a smaller one.
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

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The fence of the next grant; `None` when the numbers are used up.
    #[must_use]
    pub const fn next(self) -> Option<Fence> {
        Fence::new(self.0 + 1)
    }

    /// The fence just below this one; zero has none below and stays.
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

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_end_where_a_double_stops_being_exact() {
        assert_eq!(Fence::new(1 << 53), None);
        assert_eq!(Fence::MAX.next(), None);
        assert_eq!(Fence::MAX.get() as f64 as u64, Fence::MAX.get());
        assert_eq!(Fence::MAX.previous().next(), Some(Fence::MAX));
        assert_eq!(Fence::ZERO.previous(), Fence::ZERO);
        assert_eq!(Fence::MAX.saturating_add(1), Fence::MAX);
    }
}
