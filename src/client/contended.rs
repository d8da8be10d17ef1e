//! Remembers which locks were contended recently.
//!
//! The first attempt at a contended lock should carry a ticket, so that the nodes that refuse it
//! put it in line at once. An attempt at an uncontended lock should not. A wrong guess costs a few
//! bytes or a few commands, and nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a lock counts as contended after a client had to wait for it.
const MEMORY: Duration = Duration::from_secs(1);
/// How many locks are remembered; one more, and all are forgotten.
const KNOWN_MAX: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Contended {
    /// Whether there is anything to look up; usually there is not.
    has_any: AtomicBool,
    hasher: RandomState,
    /// By the hashes of names: two names that collide share a guess.
    seen_at: Mutex<HashMap<u64, Duration>>,
}

impl Contended {
    /// Notes that another client had the lock, or was about to get it.
    pub(super) fn note(&self, name: &[u8], now: Duration) {
        let mut seen_at = self.seen_at();
        if seen_at.len() >= KNOWN_MAX {
            seen_at.clear();
        }
        seen_at.insert(self.hasher.hash_one(name), now);
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Notes that the lock was not contended.
    pub(super) fn forget(&self, name: &[u8]) {
        let mut seen_at = self.seen_at();
        seen_at.remove(&self.hasher.hash_one(name));
        self.has_any.store(!seen_at.is_empty(), Ordering::Relaxed);
    }

    /// Whether the lock is likely to be held, or waited for.
    pub(super) fn has(&self, name: &[u8], now: Duration) -> bool {
        if !self.has_any.load(Ordering::Relaxed) {
            return false;
        }
        let seen_at = self.seen_at().get(&self.hasher.hash_one(name)).copied();
        seen_at.is_some_and(|at| now.saturating_sub(at) < MEMORY)
    }

    fn seen_at(&self) -> MutexGuard<'_, HashMap<u64, Duration>> {
        // Nothing panics while the lock is held, so the map is intact even if it is poisoned.
        self.seen_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_contended_for_a_second_or_until_it_is_found_free() {
        let contended = Contended::default();
        let at = Duration::from_millis;
        assert!(!contended.has(b"a", at(5_000)));
        contended.note(b"a", at(5_000));
        assert!(contended.has(b"a", at(5_999)) && !contended.has(b"b", at(5_000)));
        assert!(!contended.has(b"a", at(6_000)));
        contended.forget(b"a");
        assert!(!contended.has(b"a", at(5_000)));
    }

    #[test]
    fn names_without_end_are_not_remembered() {
        let contended = Contended::default();
        for name in 0..5_000_u32 {
            contended.note(&name.to_le_bytes(), Duration::ZERO);
        }
        assert!(contended.seen_at().len() <= KNOWN_MAX);
    }
}
