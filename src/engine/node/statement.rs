//! What a node's state file contains, and what it must contain.
//!
//! The two are kept apart. A change that could not be written stays wanted, and every later write
//! includes it; until one of them succeeds, no ceilings may be used. Ceilings that could not be
//! written stay wanted too. This file decides what to write and what a write allows; the owner of
//! the state file writes it, one write at a time.

use super::{Ceilings, Change, ClusterMemory, Saved};
use crate::engine::{Clocks, Instant};

/// The contents of one state file: wanted, and written.
#[derive(Clone, Debug)]
pub struct Statement {
    /// What the file must contain.
    wanted: Saved,
    memory: ClusterMemory,
    /// How many changes there were, not counting those of the ceilings.
    changes: u64,
    /// How many of them are in the file.
    said: u64,
    /// The ceilings in the file; `None` if unknown.
    written: Option<Ceilings>,
    /// The ceilings that may be used: no more than the file has.
    allowed: Ceilings,
}

/// The next contents to write.
#[derive(Clone, Debug)]
#[must_use]
pub struct Draft {
    /// The contents.
    pub saved: Saved,
    /// The same of a server of a Cluster.
    pub memory: ClusterMemory,
    changes: u64,
}

impl Statement {
    /// A file that must contain these, and does not yet.
    pub const fn new(wanted: Saved, memory: ClusterMemory) -> Statement {
        let (written, allowed) = (None, Ceilings::NONE);
        Statement { wanted, memory, changes: 1, said: 0, written, allowed }
    }

    /// The ceilings that may be used: none while the file lacks a change.
    pub fn allowed(&self) -> Ceilings {
        if self.is_behind() { Ceilings::NONE } else { self.allowed }
    }

    /// Whether the file lacks a change.
    pub const fn is_behind(&self) -> bool {
        self.said != self.changes
    }

    /// Whether the next write says that after a crash the append-only file has every write.
    pub const fn says_always_durable(&self) -> bool {
        self.wanted.is_always_durable
    }

    /// Changes what the file must contain. No ceilings may be used until that is written.
    pub fn change(&mut self, change: Change) {
        change.apply(&mut self.wanted, &mut self.memory);
        self.changes += 1;
    }

    /// Raises the wanted ceilings to at least these. Returns those before, for
    /// [`Statement::withdraw`].
    pub fn raise(&mut self, ceilings: Ceilings) -> Ceilings {
        let wanted = self.wanted.ceilings.max(ceilings);
        std::mem::replace(&mut self.wanted.ceilings, wanted)
    }

    /// Undoes a raise that could not be written, after the request that needed it was refused. The
    /// file may contain the raise nevertheless, so the file must be written again.
    pub fn withdraw(&mut self, before: Ceilings) {
        self.wanted.ceilings = before;
        self.written = None;
    }

    /// Allows no lease to end after `lease` from now on, so that the file may promise less. While
    /// the file lacks a change, nothing is lowered: the change may need the present ceiling.
    pub fn lower(&mut self, lease: Instant) {
        if !self.is_behind() {
            self.allowed.lease = self.allowed.lease.min(lease);
            self.wanted.ceilings.lease = self.wanted.ceilings.lease.min(lease);
        }
    }

    /// What to write at this time; `None` if the file already contains it. (Ceilings that were
    /// lowered and raised again, without a write in between, are written again: only a write allows
    /// more.)
    pub fn draft(&self, at: Clocks) -> Option<Draft> {
        let wanted = self.wanted.ceilings;
        if !self.is_behind() && self.written == Some(wanted) && self.allowed == wanted {
            return None;
        }
        // A step may not have been noticed yet: then earlier leases are dated by another clock.
        let was_stepped = self.wanted.was_stepped || at.are_stepped_since(self.wanted.dating);
        let saved = Saved { at, was_stepped, ..self.wanted };
        Some(Draft { saved, memory: self.memory.clone(), changes: self.changes })
    }

    /// Notes that `draft` is on the disk.
    ///
    /// Ceilings that were lowered meanwhile are allowed and wanted again, because the file has
    /// them.
    pub fn written(&mut self, draft: Draft) {
        self.said = draft.changes;
        self.wanted.was_stepped |= draft.saved.was_stepped;
        self.written = Some(draft.saved.ceilings);
        self.allowed = draft.saved.ceilings;
        if !self.is_behind() {
            self.raise(draft.saved.ceilings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        Claim, Fence, Found, Inventory, Loaded, Lock, Millis, Mode, Promises, Stop, Token,
        UnixTime, promote, recover, start,
    };
    use proptest::prelude::*;

    const MAX_TTL: Millis = Millis::new(60_000);
    const BOOT: u64 = 9;

    fn clocks(now: u64) -> Clocks {
        Clocks { now: Instant::from_millis(now), wall: UnixTime::from_millis(1 << 40 | now) }
    }

    /// What happens to a write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Disk {
        Works,
        /// Nothing is written.
        Refuses,
        /// The new file is in place, but the write is reported as failed.
        Lies,
    }

    /// A node without persistence: only the state file survives a crash.
    struct Node {
        now: u64,
        promises: Promises,
        statement: Statement,
        file: Option<Saved>,
        is_replica: bool,
        /// The counter of the one lock; a crash forgets it.
        counter: Fence,
        issued: Fence,
        longest: Instant,
        /// The end of the last quarantine.
        waits_until: Instant,
        /// The same, as of the last write that reached the disk.
        said_until: Instant,
    }

    impl Node {
        fn start(file: Option<Saved>, now: u64, is_replica: bool, disk: Disk) -> Node {
            let found = file.map_or(Found::Missing, Found::Present);
            let loaded = Loaded {
                port: 7,
                clocks: clocks(now),
                boot: BOOT,
                lock_count: 0,
                inventory: Inventory::default(),
                was_read: false,
                highest: Fence::ZERO,
                is_always_durable: false,
                is_replica,
                max_ttl: MAX_TTL,
            };
            let mut promises = Promises::new(Fence::ZERO, None);
            let recovery = recover(found, loaded);
            let saved = start(found, loaded, recovery, &promises);
            let statement = Statement::new(saved, ClusterMemory::default());
            promises.recover(recovery);
            promises.keep(statement.allowed());
            let (issued, longest, counter) = (Fence::ZERO, Instant::default(), Fence::ZERO);
            let waits_until = recovery.quarantine.map_or(longest, |(until, _)| until);
            let mut node = Node {
                now,
                promises,
                statement,
                file,
                is_replica,
                counter,
                issued,
                longest,
                waits_until,
                said_until: Instant::default(),
            };
            node.write(disk);
            node
        }

        /// Writes what is wanted. Returns whether the node knows that it is written.
        fn write(&mut self, disk: Disk) -> bool {
            let Some(draft) = self.statement.draft(clocks(self.now)) else { return true };
            if disk != Disk::Refuses {
                self.file = Some(draft.saved);
                self.said_until = self.waits_until;
            }
            if disk == Disk::Works {
                self.statement.written(draft);
            }
            self.promises.keep(self.statement.allowed());
            disk == Disk::Works
        }

        fn acquire(&mut self, ttl: u64, disk: Disk) {
            let token = Token::new(b"token", 64).unwrap();
            let (claim, now) = (
                Claim { token, ttl: Millis::new(ttl), mode: Mode::Exclusive },
                clocks(self.now).now,
            );
            let mut lock = Lock::free(self.counter, now);
            loop {
                match self.promises.acquire(&mut lock, claim, b"", now) {
                    Ok(_) => break,
                    Err(Stop::Refused(_)) => return,
                    Err(Stop::Persist(ceilings)) => {
                        let before = self.statement.raise(ceilings);
                        if !self.write(disk) {
                            self.statement.withdraw(before);
                            let draft = self.statement.draft(clocks(self.now));
                            let wanted = draft.expect("the disk is tried again").saved.ceilings;
                            assert_eq!(wanted, before, "what is refused changes nothing");
                            return;
                        }
                    }
                }
            }
            let (fence, ends_at) = (lock.counter(), now.after(claim.ttl));
            let file = self.file.expect("nothing is granted without a file");
            assert!(
                file.ceilings.covers(Ceilings { fence, lease: ends_at }),
                "used before it was promised"
            );
            assert!(!file.was_replica, "granted by a node whose file says that it is a replica");
            assert!(fence > self.issued, "fences rise");
            (self.counter, self.issued) = (fence, fence);
            self.longest = self.longest.max(ends_at);
        }

        fn promote(&mut self, disk: Disk) {
            self.is_replica = false;
            let recovery = promote(clocks(self.now), self.promises.highest(), MAX_TTL);
            self.promises.recover(recovery);
            let (until, _) = recovery.quarantine.expect("a promotion waits");
            self.waits_until = until;
            let used = Ceilings { fence: recovery.floor, lease: until };
            self.statement.change(Change::Promoted { used, until: Some(until), doubts: false });
            self.write(disk);
        }

        /// All leases are released, and a survey finds none.
        fn survey(&mut self, disk: Disk) {
            self.promises.begin_survey();
            self.longest = Instant::default();
            if let Some(lease) = self.promises.end_survey(clocks(self.now).now) {
                self.statement.lower(lease);
                self.write(disk);
            }
        }

        fn crash(&mut self, disk: Disk) {
            let (issued, longest) = (self.issued, self.longest);
            // A role that no write has recorded is not known; the promotion itself is.
            let was_replica = self.file.is_some_and(|file| file.was_replica);
            let waits_until = if was_replica { self.waits_until } else { self.said_until };
            *self = Node::start(self.file, self.now + 1, self.is_replica, disk);
            let now = clocks(self.now).now;
            let until = self.waits_until;
            assert!(until >= longest || longest < now, "{until:?}: a lease until {longest:?}");
            // A replica grants nothing, and waits when it is promoted.
            let is_covered = self.is_replica || until >= waits_until || waits_until < now;
            assert!(is_covered, "{until:?} < {waits_until:?}");
            assert!(self.promises.floor() >= issued);
            (self.issued, self.longest) = (issued, longest);
        }
    }

    proptest! {
        /// After the write of a promotion failed, a later write for an extension used to start from
        /// the ceilings before it, which lost the fence jump and the quarantine.
        #[test]
        fn nothing_that_was_wanted_is_lost_whichever_write_fails(
            starts_as_replica: bool,
            steps in proptest::collection::vec((0..7_u8, 0..3_u8, 1..40_000_u64), 1..24),
        ) {
            let mut node = Node::start(None, 1_000, starts_as_replica, Disk::Works);
            for (step, disk, length) in steps {
                let disk = [Disk::Works, Disk::Refuses, Disk::Lies][usize::from(disk)];
                match step {
                    0 | 1 if !node.is_replica => node.acquire(length, disk),
                    0..=2 => node.now += length,
                    3 if node.is_replica => node.promote(disk),
                    3 => {
                        node.is_replica = true;
                        node.statement.change(Change::Demoted);
                        node.write(disk);
                    }
                    4 => node.survey(disk),
                    5 => {
                        let ceilings = Ceilings { fence: node.issued, lease: node.longest };
                        node.statement.raise(ceilings.plus_block());
                        node.write(disk);
                    }
                    _ => node.crash(disk),
                }
            }
            node.crash(Disk::Works);
        }
    }

    /// Regression: nothing was written, and nothing allowed, so the server asked without end.
    #[test]
    fn ceilings_that_are_raised_again_after_a_lowering_that_was_not_written_are_written() {
        let mut node = Node::start(None, 1_000, false, Disk::Works);
        let lease = Instant::from_millis(100_000);
        node.statement.raise(Ceilings { fence: Fence::ZERO, lease });
        assert!(node.write(Disk::Works));
        let before = node.statement.allowed();
        node.statement.lower(Instant::from_millis(50_000));
        assert!(!node.write(Disk::Refuses));
        node.statement.raise(before);
        assert!(node.write(Disk::Works));
        assert_eq!(node.statement.allowed(), before);
    }

    #[test]
    fn a_change_that_was_not_written_is_in_the_next_write_and_allows_nothing_before() {
        let mut node = Node::start(None, 1_000, true, Disk::Works);
        node.promote(Disk::Refuses);
        assert_eq!(node.statement.allowed(), Ceilings::NONE);
        assert!(node.file.unwrap().was_replica, "the disk refused");
        // The disk works again, and a lease that stands is extended.
        node.statement.raise(Ceilings { fence: Fence::ZERO, lease: Instant::from_millis(2_000) });
        assert!(node.write(Disk::Works));
        let file = node.file.unwrap();
        assert!(!file.was_replica && file.ceilings.lease >= node.waits_until);
        assert!(file.ceilings.fence > node.promises.floor());
        assert_eq!(node.statement.allowed(), file.ceilings);
    }

    /// Otherwise the change would be made again and again while the disk refuses it.
    #[test]
    fn that_a_file_lacks_a_write_is_noted_once_whether_or_not_it_can_be_written() {
        let node = Node::start(None, 0, false, Disk::Works);
        let saved = Saved { is_always_durable: true, ..node.file.unwrap() };
        let mut statement = Statement::new(saved, ClusterMemory::default());
        assert!(statement.says_always_durable());
        statement.change(Change::NotAlwaysDurable);
        assert!(!statement.says_always_durable() && statement.is_behind());
        assert!(!statement.draft(clocks(1)).unwrap().saved.is_always_durable);
    }

    #[test]
    fn what_is_lowered_while_it_is_written_is_allowed_again() {
        let mut node = Node::start(None, 1_000, false, Disk::Works);
        let high = Ceilings { fence: Fence::ZERO, lease: Instant::from_millis(90_000) };
        node.statement.raise(high);
        let draft = node.statement.draft(clocks(1_000)).unwrap();
        node.statement.lower(Instant::from_millis(20_000));
        assert_eq!(node.statement.allowed().lease, Instant::from_millis(11_000));
        node.statement.written(draft);
        assert_eq!(node.statement.allowed().lease, high.lease);
        assert!(node.statement.draft(clocks(1_000)).is_none(), "the file says so");
        // Only now can it be lowered: first what is allowed, then the file.
        node.statement.lower(Instant::from_millis(20_000));
        assert_eq!(node.statement.allowed().lease, Instant::from_millis(20_000));
        let lower = node.statement.draft(clocks(1_000)).unwrap();
        assert_eq!(lower.saved.ceilings.lease, Instant::from_millis(20_000));
    }
}
