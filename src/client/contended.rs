//! Which locks somebody else was after lately.
//!
//! An acquisition of a lock that nobody is after should not carry a ticket, and one of a lock that
//! others wait for should: then the nodes that refuse it have put it in line already. This is a
//! guess that costs a few bytes or a few commands if it is wrong, and nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For how long a lock counts as contended after somebody had to wait for it.
const MEMORY: Duration = Duration::from_secs(1);
/// How many are remembered; above it, everything is forgotten.
const KNOWN_MAX: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Contended {
    /// Whether there is anything to look up: as a rule there is not.
    has_any: AtomicBool,
    hasher: RandomState,
    /// By the hashes of names: two that collide share a guess.
    seen_at: Mutex<HashMap<u64, Duration>>,
}

impl Contended {
    /// Somebody else had the lock, or was about to.
    pub(super) fn note(&self, name: &[u8], now: Duration) {
        let mut seen_at = self.seen_at();
        if seen_at.len() >= KNOWN_MAX {
            seen_at.clear();
        }
        seen_at.insert(self.hasher.hash_one(name), now);
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Nobody else was there.
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
        // Nothing panics while the lock is held, so the map is whole even if it is poisoned.
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
