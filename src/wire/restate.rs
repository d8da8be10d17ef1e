//! A lock, stated anew from nothing by commands: what a rewritten append-only file has.

use super::request::{PROVISIONAL, SUFFIX_MAX, decided_suffix};
use crate::engine::{Clocks, Fence, Lock, UnixTime};

/// One `LOCK.ACQUIRE key token fact [LABEL label]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restated {
    /// Empty where the command is about the counter only.
    pub token: Vec<u8>,
    /// In place of a ttl: the decided lease.
    pub fact: Vec<u8>,
    /// May be empty.
    pub label: Vec<u8>,
}

/// The commands that make this lock of a node with this floor again from nothing.
pub fn restate(lock: &Lock, floor: Fence, clocks: Clocks) -> Vec<Restated> {
    let fact = |ttl: u64, ends_at, fence, mark: &[u8]| {
        let mut room = [0; SUFFIX_MAX];
        let suffix = decided_suffix(&mut room, ends_at, fence);
        [ttl.to_string().as_bytes(), suffix, b".", floor.to_string().as_bytes(), mark].concat()
    };
    let lease = lock.written_lease();
    let mut commands = Vec::new();
    if lease.is_none_or(|lease| lease.fence < lock.counter()) {
        let fact = fact(0, UnixTime::default(), lock.counter(), b"");
        commands.push(Restated { token: Vec::new(), fact, label: Vec::new() });
    }
    if let Some(lease) = lease {
        let left = clocks.now.until(lease.ends_at).get();
        let mark: &[u8] = if lock.is_provisional() { &[PROVISIONAL] } else { b"" };
        commands.push(Restated {
            token: lease.token.as_bytes().to_vec(),
            fact: fact(left, clocks.to_wall(lease.ends_at), lease.fence, mark),
            label: lease.label.to_vec(),
        });
    }
    commands
}
