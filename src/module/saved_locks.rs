//! Which locks were saved lately.
//!
//! `MIGRATE` saves a lock, and deletes it once the other server has it. A lock that is deleted
//! without that has not moved.

use std::collections::BTreeSet;

use crate::engine::Lock;

/// How many are remembered: more than one `MIGRATE` moves. A `SAVE` saves all.
const MOST: usize = 65_536;

/// The locks that were saved since the node last looked at its slots.
#[derive(Debug)]
pub(super) struct SavedLocks(BTreeSet<usize>);

impl SavedLocks {
    pub(super) const fn new() -> SavedLocks {
        SavedLocks(BTreeSet::new())
    }

    pub(super) fn note(&mut self, lock: &Lock) {
        if self.0.len() < MOST {
            self.0.insert(place(lock));
        }
    }

    /// Whether this lock, which is being deleted, was saved.
    pub(super) fn take(&mut self, lock: &Lock) -> bool {
        self.0.remove(&place(lock))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A lock stays where it is in memory for as long as the server has it.
fn place(lock: &Lock) -> usize {
    std::ptr::from_ref(lock).addr()
}
