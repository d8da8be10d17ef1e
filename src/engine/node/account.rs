//! What a node reports about a lock, and about itself.

use std::cmp::Reverse;

use super::{Caution, Counts, Electorates, HeldCount, Lease, Line, Lock, Node};
use crate::engine::{Fence, Histogram, Instant, Millis, QuarantineReason};

/// Whether a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockState {
    /// Nobody holds it or waits for it.
    #[default]
    Free,
    /// A lease stands.
    Held,
    /// No lease stands, and the line has a waiter.
    Reserved,
}

impl LockState {
    /// All states.
    pub const ALL: [LockState; 3] = [LockState::Free, LockState::Held, LockState::Reserved];
}

/// What a node reports about a lock: `LOCK.INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockAccount {
    /// Whether it is held.
    pub state: LockState,
    /// The highest fence issued.
    pub fence: Fence,
    /// How much longer the lease lasts; zero without one.
    pub left: Millis,
    /// The holder's label; with several readers, that of the one who has held it longest.
    pub label: Option<Vec<u8>>,
    /// How long it has been held; with several readers, the longest time; zero if it is not held.
    pub held_for: Millis,
    /// The readers who hold it; `None` if none does.
    pub readers: Option<ReadersAccount>,
    /// How many wait for it in line.
    pub waiters: u64,
    /// How many of them wait as readers.
    pub waiting_readers: u64,
    /// How long the first of them has been waiting.
    pub first_waiting: Option<Millis>,
    /// How much longer the quarantine lasts, and why.
    pub quarantine: Option<(Millis, QuarantineReason)>,
    /// Set if an extension of the lease would not count towards a quorum; with several readers, for
    /// the one who has held the lock longest.
    pub uncounted: Option<Uncounted>,
    /// Why the node grants nothing at all. The caller sets it, because it depends on the role and
    /// the state of the files.
    pub obstacle: Option<String>,
}

/// An extension that does not count towards a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncounted {
    /// The lease stays, but does not count.
    Provisional,
    /// It counts only for a holder who has no other node.
    Carried,
}

impl Uncounted {
    /// All of them.
    pub const ALL: [Uncounted; 2] = [Uncounted::Provisional, Uncounted::Carried];
}

/// What a node reports about the readers who hold a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadersAccount {
    /// How many hold it.
    pub count: u64,
    /// The labels of those who have held it longest.
    pub labels: Vec<Vec<u8>>,
}

/// The leases of a lock that stand.
struct Standing<'a> {
    /// The one that has stood longest, and how long.
    oldest: Option<(Lease<'a>, Millis)>,
    readers: Option<ReadersAccount>,
}

impl Standing<'_> {
    fn of(lock: &Lock, now: Instant) -> Standing<'_> {
        if !lock.mode().is_shared() {
            let lease = lock.only_lease().filter(|lease| now <= lease.ends_at);
            let oldest = lease.map(|lease| (lease, lock.held_for(lease.token, now)));
            return Standing { oldest, readers: None };
        }
        Standing::of_readers(lock, now)
    }

    #[cold]
    fn of_readers(lock: &Lock, now: Instant) -> Standing<'_> {
        let leases = lock.written_leases().filter(|lease| now <= lease.ends_at);
        let with_age = leases.map(|lease| (lease, lock.held_for(lease.token, now)));
        let mut leases: Vec<_> = with_age.collect();
        let count = leases.len();
        // Among readers that came in the same millisecond, those with a label come first.
        let age =
            |&(lease, held_for): &(Lease<'_>, Millis)| (Reverse(held_for), lease.label.is_empty());
        if count > LABELS {
            leases.select_nth_unstable_by_key(LABELS, age);
            leases.truncate(LABELS);
        }
        leases.sort_by_key(age);
        let labels = leases.iter().map(|(lease, _)| lease.label.to_vec());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let readers = (count > 0).then_some(ReadersAccount { count: count as u64, labels });
        Standing { oldest: leases.first().copied(), readers }
    }
}

/// How many readers' labels a node reports.
const LABELS: usize = 8;

/// What a node reports about itself: `INFO`.
#[derive(Clone, Debug)]
pub struct NodeAccount {
    /// The locks that are held, and some whose leases have just ended.
    pub held: u64,
    /// The readers that hold them.
    pub readers: u64,
    /// How often things happened.
    pub counts: Counts,
    /// How many wait, over all locks.
    pub waiters: u64,
    /// How many of them wait as readers.
    pub waiting_readers: u64,
    /// The longest wait among the waiters that are first in their line.
    pub oldest_waiter: Millis,
    /// How long waiters had waited when they were granted a lock.
    pub waits: Histogram,
    /// How long the released leases had been held.
    pub holds: Histogram,
    /// Every next fence of a writer is larger than this, and a reader's is at least as large.
    pub floor: Fence,
    /// The highest fence that the node knows.
    pub highest_fence: Fence,
    /// How far that has risen without a grant or a raise.
    pub fence_jumps: u64,
    /// How much longer, at least, the node grants nothing because leases that it does not know may
    /// stand; zero if it does not wait for any.
    pub quarantine_left: Millis,
    /// How many replicas its group's masters have; zero if it decides regardless of them.
    pub replicas: u32,
    /// How many of them support it, and how many it needs.
    pub supporters: (usize, usize),
    /// In how many of its own slots of a Cluster it grants nothing, because it asks another master
    /// or waits; zero outside of a Cluster.
    pub unsettled: usize,
    /// How much longer, at least, it waits in these; zero if it waits in none, and only asks.
    pub unsettled_left: Millis,
    /// How many electorates it knows: more than one while the masters that have a vote change.
    pub electorates: usize,
    /// How many masters have a vote in the last of these.
    pub voters: usize,
}

impl Node {
    /// What the node reports about `lock`, which has this database and name.
    pub fn account_of(&self, place: (u32, &[u8]), lock: &Lock, now: Instant) -> LockAccount {
        let line = self.line(place);
        let first_since = line.and_then(Line::first_since);
        let state = match (lock.is_held(now), first_since) {
            (true, _) => LockState::Held,
            (false, Some(_)) => LockState::Reserved,
            (false, None) => LockState::Free,
        };
        let Standing { oldest, readers } = Standing::of(lock, now);
        let label = oldest.map(|(lease, _)| lease.label).filter(|label| !label.is_empty());
        LockAccount {
            state,
            fence: lock.counter(),
            left: oldest.map_or(Millis::ZERO, |_| now.until(lock.until())),
            label: label.map(<[u8]>::to_vec),
            held_for: oldest.map_or(Millis::ZERO, |(_, held_for)| held_for),
            readers,
            waiters: line.map_or(0, |line| line.len() as u64),
            waiting_readers: line.map_or(0, |line| line.readers() as u64),
            first_waiting: first_since.map(|since| since.until(now)),
            quarantine: self.promises().quarantine(now),
            uncounted: oldest.and_then(|(lease, _)| self.promises().uncounted(&lease, now)),
            obstacle: None,
        }
    }

    /// What the node reports about itself. `moved` is as in [`Tally::held`](super::Tally::held).
    pub fn account(
        &mut self,
        moved: HeldCount,
        now: Instant,
        settings: (Millis, Caution),
    ) -> NodeAccount {
        let (held, readers) = self.tally.held(moved);
        let authority = self.promises().authority();
        let (replicas, supporters) = authority.map_or((0, (0, 0)), |authority| {
            (authority.replicas(), (authority.counted_supporters(now), authority.needed()))
        });
        let obstacle = self.common_obstacle(now, settings);
        let (unsettled, unsettled_left) = self.unsettled(obstacle.as_ref(), now);
        let of_all_slots = obstacle.map_or(Millis::ZERO, |_| unsettled_left);
        NodeAccount {
            replicas,
            supporters,
            held,
            readers,
            counts: self.tally().counts,
            waiters: self.waiters() as u64,
            waiting_readers: self.waiting_readers() as u64,
            oldest_waiter: self.longest_wait(now),
            waits: self.waits().clone(),
            holds: self.tally().holds.clone(),
            floor: self.promises().floor(),
            highest_fence: self.promises().highest(),
            fence_jumps: self.promises().jumped(),
            quarantine_left: self.promises().least_left(now).max(of_all_slots),
            unsettled,
            unsettled_left,
            electorates: self.electorate_count(),
            voters: self.electorates().map_or(0, Electorates::voter_count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CallId, Claim, Mode, Refusal, Token};

    const NOW: Instant = Instant::from_millis(1_000);
    const PLACE: (u32, &[u8]) = (0, b"lock");
    const SETTINGS: (Millis, Caution) =
        (Millis::new(1_000), Caution { quarantine: true, on_promotion: true });

    fn claim(token: &[u8]) -> Claim<'_> {
        let token = Token::new(token, 64).unwrap();
        Claim { token, ttl: Millis::new(500), mode: Mode::Exclusive }
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
        assert_eq!((other.waiters, other.first_waiting), (0, None), "in another database");
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
        let account = node.account(HeldCount { locks: 2, readers: 1 }, now, SETTINGS);
        assert_eq!((account.held, account.readers), (3, 1), "two came with their locks");
        assert_eq!(account.waiters, 1);
        assert_eq!(account.oldest_waiter, Millis::new(300));
        let counts = account.counts;
        assert_eq!((counts.grants, counts.releases, counts.refusals.iter().sum()), (1, 0, 1_u64));
        assert_eq!([account.floor, account.highest_fence].map(Fence::get), [40, 40]);
        assert_eq!(account.fence_jumps, 39, "one was granted");
        assert_eq!(account.quarantine_left, Millis::ZERO);

        node.release(&mut lock, claim(b"A").token, now);
        held(&mut node, b"");
        node.promises.begin_quarantine(Instant::from_millis(1_400), QuarantineReason::StateLost);
        let account = node.account(HeldCount::NONE, now, SETTINGS);
        assert_eq!((account.held, account.readers, account.counts.releases), (1, 0, 1));
        assert_eq!((account.holds.count(), account.holds.max()), (1, Millis::new(300)));
        assert_eq!([account.floor, account.highest_fence].map(Fence::get), [40, 41]);
        assert_eq!(account.quarantine_left, Millis::new(101));
        assert_eq!(account.waits.count(), 0);
    }
}
