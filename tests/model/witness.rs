//! What a search has reached: a search that never reaches its target events proves nothing.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which of up to 32 interesting events have been seen, by number, on any thread.
#[derive(Debug, Default)]
pub(crate) struct Witnessed(AtomicU32);

impl Witnessed {
    pub(crate) fn saw(&self, number: u8) {
        if !self.has(number) {
            self.0.fetch_or(1 << number, Ordering::Relaxed);
        }
    }

    pub(crate) fn has(&self, number: u8) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << number != 0
    }
}

/// What a sound run must reach: the number of states, and the witnesses.
pub(crate) struct Expected<'a, W> {
    pub(crate) states: usize,
    pub(crate) witnesses: &'a [W],
}

impl<W: Debug + PartialEq> Expected<'_, W> {
    /// Asserts that a run that reached `states` states and found `found` matches this.
    pub(crate) fn compare(&self, name: &str, states: usize, found: &[W]) {
        for witness in self.witnesses {
            assert!(found.contains(witness), "{name}: never came upon {witness:?}");
        }
        assert_eq!(states, self.states, "{name}: the states have changed");
    }
}
