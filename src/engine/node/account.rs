//! What a node reports about a lock, and about itself.

use super::{Counts, Lock, Node};
use crate::engine::{Fence, Histogram, Instant, Millis, QuarantineReason};

/// Whether somebody holds a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockState {
    /// Nobody holds it or waits for it.
    #[default]
    Free,
    /// A lease stands.
    Held,
    /// No lease stands, and somebody is in line.
    Reserved,
}

impl LockState {
    /// All states.
    pub const ALL: [LockState; 3] = [LockState::Free, LockState::Held, LockState::Reserved];
}

/// What a node reports about a lock: `LOCK.INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockAccount {
    /// Whether somebody holds it.
    pub state: LockState,
    /// The highest fence issued.
    pub fence: Fence,
    /// How much longer the lease lasts; zero without one.
    pub left: Millis,
    /// The holder's label.
    pub label: Option<Vec<u8>>,
    /// How long it has been held; zero if it is not.
    pub held_for: Millis,
    /// How many wait for it in line.
    pub waiters: u64,
    /// How long the first of them has been waiting.
    pub first_waiting: Option<Millis>,
    /// How much longer the quarantine lasts, and why.
    pub quarantine: Option<(Millis, QuarantineReason)>,
    /// Why the node grants nothing at all. The caller fills it, because the role and the state of
    /// the files matter.
    pub obstacle: Option<String>,
}

/// What a node reports about itself: `INFO`.
#[derive(Clone, Debug)]
pub struct NodeAccount {
    /// The leases that stand, and some that ended just now.
    pub held: u64,
    /// How often things happened.
    pub counts: Counts,
    /// How many wait, over all locks.
    pub waiters: u64,
    /// The longest wait of those first in their line.
    pub oldest_waiter: Millis,
    /// How long the waiters who were granted a lock had waited.
    pub waits: Histogram,
    /// How long the leases that were given back had been held.
    pub holds: Histogram,
    /// Every next fence is larger than this.
    pub floor: Fence,
    /// The highest fence that the node knows.
    pub highest_fence: Fence,
    /// How much longer the quarantine lasts; zero outside of one.
    pub quarantine_left: Millis,
}

impl Node {
    /// What the node reports about `lock`, which has this database and name.
    pub fn account_of(&self, place: (u32, &[u8]), lock: &Lock, now: Instant) -> LockAccount {
        let first = self.line(place).and_then(|line| Some((line.len(), line.first_since()?)));
        let lease = lock.lease(now);
        let state = match (lease, first) {
            (Some(_), _) => LockState::Held,
            (None, Some(_)) => LockState::Reserved,
            (None, None) => LockState::Free,
        };
        let label = lease.map(|lease| lease.label).filter(|label| !label.is_empty());
        LockAccount {
            state,
            fence: lock.counter(),
            left: lease.map_or(Millis::ZERO, |lease| now.until(lease.ends_at)),
            label: label.map(<[u8]>::to_vec),
            held_for: lease.map_or(Millis::ZERO, |_| lock.held_for(now)),
            waiters: first.map_or(0, |(waiters, _)| waiters as u64),
            first_waiting: first.map(|(_, since)| since.until(now)),
            quarantine: self.promises().quarantine(now),
            obstacle: None,
        }
    }

    /// What the node reports about itself. `moved` is as in [`Tally::held`](super::Tally::held).
    pub fn account(&mut self, moved: i64, now: Instant) -> NodeAccount {
        let quarantine = self.promises().quarantine(now);
        NodeAccount {
            held: self.tally().held(moved),
            counts: self.tally().counts,
            waiters: self.room(0).waiters as u64,
            oldest_waiter: self.longest_wait(now),
            waits: self.waits().clone(),
            holds: self.tally().holds.clone(),
            floor: self.promises().floor(),
            highest_fence: self.promises().highest(),
            quarantine_left: quarantine.map_or(Millis::ZERO, |(left, _)| left),
        }
    }
}
