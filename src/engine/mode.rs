//! The two ways to hold a lock.

/// How a lock is requested and held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// By one holder: a writer.
    #[default]
    Exclusive,
    /// By any number of holders: readers.
    Shared,
}

impl Mode {
    /// Whether it is [`Mode::Shared`].
    pub const fn is_shared(self) -> bool {
        matches!(self, Mode::Shared)
    }

    /// Whether two holders exclude each other.
    pub const fn conflicts_with(self, other: Mode) -> bool {
        !(self.is_shared() && other.is_shared())
    }
}
