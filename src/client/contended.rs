//! Remembers which locks were contended recently.
//!
//! The first attempt at a contended lock should carry a ticket, so that the nodes that refuse it
//! put it in line at once. An attempt at an uncontended lock should not. A wrong guess costs a few
//! bytes or a few commands, and nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a lock counts as contended after a client had to wait for it.
const MEMORY: Duration = Duration::from_secs(1);
/// How many locks are remembered. When one more is noted, all others are forgotten.
const KNOWN_MAX: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct Contended {
    /// No lock counts as contended from this time on, in microseconds: usually there is nothing to
    /// look up.
    until: AtomicU64,
    hasher: RandomState,
    /// By the hashes of names: two names that collide share a guess.
    seen_at: Mutex<HashMap<u64, Duration>>,
}

impl Contended {
    /// Notes that another client had the lock, or was about to get it.
    pub(super) fn note(&self, name: &[u8], now: Duration) {
        let mut seen_at = self.seen_at();
        let name = self.hasher.hash_one(name);
        if seen_at.len() >= KNOWN_MAX && !seen_at.contains_key(&name) {
            seen_at.clear();
        }
        seen_at.insert(name, now);
        self.until.fetch_max(micros(now.saturating_add(MEMORY)), Ordering::Relaxed);
    }

    /// Notes that the lock was not contended.
    pub(super) fn forget(&self, name: &[u8]) {
        self.seen_at().remove(&self.hasher.hash_one(name));
    }

    /// Whether the lock is likely to be held, or waited for.
    pub(super) fn has(&self, name: &[u8], now: Duration) -> bool {
        if micros(now) >= self.until.load(Ordering::Relaxed) {
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

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
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
    fn no_more_names_are_remembered_than_the_limit() {
        let contended = Contended::default();
        let names = KNOWN_MAX as u32;
        for _ in 0..2 {
            (0..names).for_each(|name| contended.note(&name.to_le_bytes(), Duration::ZERO));
            assert_eq!(contended.seen_at().len(), KNOWN_MAX, "known names are noted again");
        }
        contended.note(&names.to_le_bytes(), Duration::ZERO);
        assert_eq!(contended.seen_at().len(), 1);
    }
}
