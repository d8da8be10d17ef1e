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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CallId, Claim, Refusal, Token};

    const NOW: Instant = Instant::from_millis(1_000);
    const PLACE: (u32, &[u8]) = (0, b"lock");

    fn claim(token: &[u8]) -> Claim<'_> {
        Claim { token: Token::new(token, 64).unwrap(), ttl: Millis::new(500) }
    }

    fn held(node: &mut Node, label: &[u8]) -> Lock {
        let mut lock = Lock::default();
        node.acquire(&mut lock, claim(b"A"), label, NOW).unwrap();
        lock
    }

    #[test]
    fn a_lock_is_told_of_as_it_stands() {
        let mut node = Node::new();
        let lock = held(&mut node, b"job");
        let at = |millis| Instant::from_millis(millis);
        let fence = Fence::new(1).unwrap();
        let during = LockAccount {
            state: LockState::Held,
            fence,
            left: Millis::new(200),
            label: Some(b"job".to_vec()),
            held_for: Millis::new(300),
            ..LockAccount::default()
        };
        assert_eq!(node.account_of(PLACE, &lock, at(1_300)), during);
        let last = LockAccount { left: Millis::ZERO, held_for: Millis::new(500), ..during };
        assert_eq!(node.account_of(PLACE, &lock, at(1_500)), last, "its last millisecond");
        let over = LockAccount { fence, ..LockAccount::default() };
        assert_eq!(node.account_of(PLACE, &lock, at(1_501)), over);
        assert_eq!(node.account_of(PLACE, &Lock::default(), NOW), LockAccount::default());
        let unlabelled = held(&mut node, b"");
        assert_eq!(node.account_of(PLACE, &unlabelled, NOW).label, None);
    }

    #[test]
    fn a_lock_is_told_of_with_those_who_wait_for_it_and_what_holds_back_its_grants() {
        let mut node = Node::new();
        let lock = held(&mut node, b"");
        for (number, since) in [(1, 1_100), (2, 1_200)] {
            let asked = (claim(b"B"), &b""[..], Box::default());
            node.block(
                PLACE,
                CallId(number),
                asked,
                Millis::new(9_000),
                Instant::from_millis(since),
            );
        }
        let now = Instant::from_millis(1_350);
        let account = node.account_of(PLACE, &lock, now);
        assert_eq!((account.state, account.waiters), (LockState::Held, 2));
        assert_eq!(account.first_waiting, Some(Millis::new(250)));
        let other = node.account_of((1, b"lock"), &lock, now);
        assert_eq!((other.waiters, other.first_waiting), (0, None), "of another database");
        let free = node.account_of(PLACE, &Lock::default(), now);
        assert_eq!((free.state, free.left), (LockState::Reserved, Millis::ZERO));

        assert_eq!(account.quarantine, None);
        let reason = QuarantineReason::Promotion;
        node.promises.begin_quarantine(Instant::from_millis(1_400), reason);
        let waits = node.account_of(PLACE, &lock, now).quarantine;
        assert_eq!(waits, Some((Millis::new(51), reason)));
    }

    #[test]
    fn a_node_tells_of_itself_what_has_happened_on_it() {
        let mut node = Node::new();
        node.tally.decides = true;
        let mut lock = held(&mut node, b"");
        node.block(PLACE, CallId(1), (claim(b"B"), b"", Box::default()), Millis::new(900), NOW);
        node.refused(&Refusal::Exhausted);
        node.promises.raise_floor(Fence::new(40).unwrap());
        let now = Instant::from_millis(1_300);
        let account = node.account(2, now);
        assert_eq!((account.held, account.waiters), (3, 1), "two came with their locks");
        assert_eq!(account.oldest_waiter, Millis::new(300));
        let counts = account.counts;
        assert_eq!((counts.grants, counts.releases, counts.refusals.iter().sum()), (1, 0, 1_u64));
        assert_eq!([account.floor, account.highest_fence].map(Fence::get), [40, 40]);
        assert_eq!(account.quarantine_left, Millis::ZERO);

        node.release(&mut lock, claim(b"A").token, now);
        held(&mut node, b"");
        node.promises.begin_quarantine(Instant::from_millis(1_400), QuarantineReason::StateLost);
        let account = node.account(0, now);
        assert_eq!((account.held, account.counts.releases), (1, 1));
        assert_eq!((account.holds.count(), account.holds.max()), (1, Millis::new(300)));
        assert_eq!([account.floor, account.highest_fence].map(Fence::get), [40, 41]);
        assert_eq!(account.quarantine_left, Millis::new(101));
        assert_eq!(account.waits.count(), 0);
    }
}
