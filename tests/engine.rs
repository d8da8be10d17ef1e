//! The engine against a model so naive that it is obviously right.
//!
//! The model keeps plain numbers in plain maps and is written from the design, not from the engine:
//! one rule a line, no packing, no borrowed tokens. Random sequences of requests, forgetting,
//! restored dumps and crashes must have the same replies and leave the same locks in both. Beside
//! that, what no model needs to say is checked at every step: a writer holds a lock alone, fences
//! of a name rise through everything, the ceilings on disk cover everything that was promised, what
//! was refused has changed nothing, and a replica has what its master has.

use std::collections::BTreeMap;

use lockmod::codec::{LoadedLock, decode_lock, encode_lock};
use lockmod::engine::{
    Acquired, Answer, Attempt, Ceilings, Claim, Clocks, Decided, Extended, Extension, Fence,
    Fencing, HeldCount, Instant, LABEL_MAX, Lease, Lock, Millis, Mode, Promises, QuarantineReason,
    Quorum, RAISE_MARGIN, Recovery, Refusal, Released, Renewal, Schedule, Stated, Step, Stop,
    TOKEN_MAX, Terms, Token, UnixTime,
};
use proptest::prelude::*;

#[path = "../fuzz/bodies/input.rs"]
mod input;

#[path = "../fuzz/bodies/operations.rs"]
pub(crate) mod operations;

#[cfg(test)]
#[path = "../fuzz/bodies/feed.rs"]
mod feed;

const NAMES: usize = 3;
const TOKENS: usize = 4;
const INSTANT_MAX: u64 = (1 << 47) - 1;
const FENCE_MAX: u64 = (1 << 53) - 1;
/// The wall clock, which stands still.
const WALL_MS: u64 = 7;
/// No fence above it is raised to, unless the node knows of a larger one.
const BOUND: u64 = WALL_MS * 1_000 + RAISE_MARGIN;
/// So many readers may hold a lock.
const READERS_MAX: usize = 3;
const BOOT: u64 = 77;

/// What a node says, engine or model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Granted { fence: u64, ends_at: u64, lapsed: usize },
    Again { fence: u64, ends_at: u64, later: bool },
    Released { held_for: u64 },
    Extended { ends_at: u64, counter: u64, counts: bool, lapsed: usize },
    HeldByAnother,
    NotHeld,
    Quarantined { left: u64 },
    Floor(u64),
    BadFence { max: u64 },
    Exhausted,
    NoUpgrade,
    ReadersFull { readers: usize },
    DiskFailed,
}

#[derive(Clone, Copy, Debug)]
enum Fences {
    Keep,
    Raise(u64),
    /// With a label.
    Repair(u64, usize),
}

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        name: usize,
        token: usize,
        ttl: u64,
        label: usize,
        mode: Mode,
    },
    Release {
        name: usize,
        token: usize,
    },
    Extend {
        name: usize,
        token: usize,
        ttl: u64,
        fences: Fences,
        mode: Mode,
    },
    Raise {
        name: usize,
        token: usize,
        fence: u64,
    },
    /// An operator raises the floor.
    LiftFloor(u64),
    /// The node becomes a master, and waits for so long.
    Promote {
        wait: u64,
    },
    /// The clock goes on.
    Time(u64),
    /// Whatever removes one lock: idle, DEL, eviction.
    Forget {
        name: usize,
    },
    Flush,
    /// DUMP, kept for a later RESTORE.
    Dump {
        name: usize,
    },
    Restore {
        name: usize,
    },
    /// A held lock moves in from another node, whose promises are not this node's.
    Migrate {
        name: usize,
        token: usize,
        fence: u64,
        left: u64,
        mode: Mode,
    },
    /// A lock is written to bytes and read again.
    Recode {
        name: usize,
    },
    /// A scan notes the ends of leases.
    Note {
        name: usize,
    },
    /// The leases of a lock may have been dated wrongly.
    Redate {
        name: usize,
        length: u64,
    },
    /// A lock gets another name, whose own lock is gone.
    Rename {
        from: usize,
        to: usize,
    },
    /// A step of the search for the longest lease that stands.
    Survey,
    /// A snapshot of the data set, for a later restart.
    Save,
    /// All memory is lost; the data set comes back as it was saved last, or not at all.
    Crash {
        with_data: bool,
    },
    /// The disk fails from here on, or works again.
    Disk {
        works: bool,
    },
}

// ---------------------------------------------------------------------------------- the model

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PlainLock {
    counter: u64,
    /// Over or not.
    leases: Vec<PlainLease>,
    /// Several readers held it together since the last time that it was free.
    is_shared: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainLease {
    token: Vec<u8>,
    fence: u64,
    ends_at: u64,
    label: Vec<u8>,
    granted_at: u64,
    mode: Mode,
    /// It was repaired in a quarantine.
    is_provisional: bool,
    /// Its end was noted.
    is_noted: bool,
}

impl PlainLock {
    fn lease_of(&self, token: &[u8]) -> Option<&PlainLease> {
        self.leases.iter().find(|lease| lease.token == token)
    }

    fn remove(&mut self, token: &[u8]) -> Option<PlainLease> {
        let place = self.leases.iter().position(|lease| lease.token == token)?;
        Some(self.leases.remove(place))
    }

    fn unnoted(&self) -> usize {
        self.leases.iter().filter(|lease| !lease.is_noted).count()
    }
}

/// A node, naively: what is promised on disk, and what is in memory.
#[derive(Clone, Debug, Default)]
struct Plain {
    now: u64,
    locks: BTreeMap<usize, PlainLock>,
    floor: u64,
    /// The highest number that any lock or the floor has had.
    highest: u64,
    quarantined_until: u64,
    /// There was a quarantine.
    has_crashed: bool,
    is_promoted: bool,
}

impl Plain {
    fn lock(&self, name: usize) -> PlainLock {
        self.locks.get(&name).cloned().unwrap_or_default()
    }

    /// The leases that stand.
    fn holders(&self, name: usize) -> Vec<PlainLease> {
        let stands = |lease: &PlainLease| self.now <= lease.ends_at;
        self.lock(name).leases.into_iter().filter(stands).collect()
    }

    fn held_by(&self, name: usize, token: &[u8]) -> Option<PlainLease> {
        self.holders(name).into_iter().find(|lease| lease.token == token)
    }

    /// A writer is kept out by anybody, a reader by a writer.
    fn is_kept_out(&self, name: usize, mode: Mode) -> bool {
        self.holders(name)
            .iter()
            .any(|lease| mode == Mode::Exclusive || lease.mode == Mode::Exclusive)
    }

    /// A writer gets a new fence, a reader that of the last grant, if there was one.
    fn next_fence(&self, name: usize, mode: Mode) -> u64 {
        let last = self.lock(name).counter.max(self.floor);
        match mode {
            Mode::Exclusive => last + 1,
            // No writer could follow the largest.
            Mode::Shared if last == FENCE_MAX => last + 1,
            Mode::Shared => last.max(1),
        }
    }

    /// A new lease, beside those of other readers if they stand, or else in place of all that were
    /// there. Answers how many had ended without having been noted.
    fn grant(&mut self, name: usize, lease: PlainLease) -> usize {
        let mut lock = self.lock(name);
        let is_beside = !self.holders(name).is_empty();
        let own = lock.remove(&lease.token);
        let lapsed = if is_beside {
            usize::from(own.is_some())
        } else {
            let ended = lock.unnoted() + own.iter().filter(|own| !own.is_noted).count();
            lock.leases.clear();
            ended
        };
        lock.is_shared = is_beside;
        lock.counter = lock.counter.max(lease.fence);
        lock.leases.push(lease);
        self.store(name, lock);
        lapsed
    }

    /// The last instant of a lease belongs to it, and so does that of the quarantine.
    fn quarantine_left(&self) -> u64 {
        (self.quarantined_until + 1).saturating_sub(self.now)
    }

    fn is_quarantined(&self) -> bool {
        self.has_crashed && self.quarantine_left() > 0
    }

    fn end_of(&self, ttl: u64) -> u64 {
        (self.now + ttl).min(INSTANT_MAX)
    }

    fn quarantined(&self) -> Said {
        Said::Quarantined { left: self.quarantine_left() }
    }

    fn acquire(
        &mut self,
        name: usize,
        token: &[u8],
        (ttl, mode): (u64, Mode),
        label: &[u8],
    ) -> Said {
        if self.is_quarantined() {
            return self.quarantined();
        }
        let ends_at = self.end_of(ttl);
        match self.held_by(name, token) {
            Some(PlainLease { mode: Mode::Shared, .. }) if mode == Mode::Exclusive => {
                return Said::NoUpgrade;
            }
            Some(lease) => {
                let later = ends_at > lease.ends_at;
                let ends_at = ends_at.max(lease.ends_at);
                let fence = lease.fence;
                let is_provisional = lease.is_provisional && !later;
                self.write(name, PlainLease { ends_at, is_provisional, ..lease });
                return Said::Again { fence, ends_at, later };
            }
            None if self.is_kept_out(name, mode) => return Said::HeldByAnother,
            None => {}
        }
        let readers = self.holders(name).len();
        if readers >= READERS_MAX {
            return Said::ReadersFull { readers };
        }
        let fence = self.next_fence(name, mode);
        if fence > FENCE_MAX {
            return Said::Exhausted;
        }
        let lease = PlainLease {
            token: token.to_vec(),
            fence,
            ends_at,
            label: label.to_vec(),
            granted_at: self.now,
            mode,
            is_provisional: false,
            is_noted: false,
        };
        let lapsed = self.grant(name, lease);
        Said::Granted { fence, ends_at, lapsed }
    }

    fn release(&mut self, name: usize, token: &[u8]) -> Said {
        match self.held_by(name, token) {
            Some(lease) => {
                let mut lock = self.lock(name);
                lock.remove(token);
                lock.is_shared &= !lock.leases.is_empty();
                self.store(name, lock);
                Said::Released { held_for: (self.now - lease.granted_at) % (1 << 32) }
            }
            None if self.holders(name).is_empty() => Said::NotHeld,
            None => Said::HeldByAnother,
        }
    }

    fn extend(
        &mut self,
        name: usize,
        token: &[u8],
        (ttl, mode): (u64, Mode),
        fences: Fences,
        labels: &[Vec<u8>],
    ) -> Said {
        let own = self.held_by(name, token);
        if self.is_quarantined() && own.is_none() && !matches!(fences, Fences::Repair(..)) {
            return self.quarantined();
        }
        let ends_at = self.end_of(ttl);
        match (own, fences) {
            (Some(_), Fences::Raise(fence) | Fences::Repair(fence, _)) if self.is_beyond(fence) => {
                self.bad_fence()
            }
            (Some(lease), _) => {
                if let Fences::Raise(fence) | Fences::Repair(fence, _) = fences {
                    self.raise_to(name, token, fence);
                }
                let lease = self.held_by(name, token).unwrap_or(lease);
                let ends_at = ends_at.max(lease.ends_at);
                // A reader remains one, a writer may become one.
                let mode = if mode == Mode::Shared { mode } else { lease.mode };
                self.write(name, PlainLease { ends_at, mode, ..lease });
                self.extended(name, token, 0)
            }
            (None, _) if self.is_kept_out(name, mode) => Said::HeldByAnother,
            (None, Fences::Repair(fence, _)) if self.is_beyond(fence) => self.bad_fence(),
            (None, Fences::Repair(fence, label)) => {
                // A lapsed lease of the same token is the same grant's: its label goes on.
                let own = self.lock(name).lease_of(token).cloned();
                let label = own.map_or_else(|| labels[label].clone(), |lease| lease.label);
                let is_provisional = self.is_quarantined();
                let is_behind = self.lock(name).counter.max(self.floor) > fence;
                // As any grant, where there are grants, and this node has gone on since.
                let fence =
                    if is_behind && !is_provisional { self.next_fence(name, mode) } else { fence };
                if fence > FENCE_MAX {
                    return Said::Exhausted;
                }
                let lease = PlainLease {
                    token: token.to_vec(),
                    fence,
                    ends_at,
                    label,
                    granted_at: self.now,
                    mode,
                    is_provisional,
                    is_noted: false,
                };
                let lapsed = self.grant(name, lease);
                self.extended(name, token, lapsed)
            }
            (None, _) => Said::NotHeld,
        }
    }

    fn raise(&mut self, name: usize, token: &[u8], fence: u64) -> Said {
        if self.is_quarantined() {
            return self.quarantined();
        }
        match self.held_by(name, token) {
            Some(_) if self.is_beyond(fence) => self.bad_fence(),
            Some(_) => {
                self.raise_to(name, token, fence);
                self.extended(name, token, 0)
            }
            None if self.holders(name).is_empty() => Said::NotHeld,
            None => Said::HeldByAnother,
        }
    }

    /// Above all that can be an honest fence.
    fn is_beyond(&self, fence: u64) -> bool {
        fence > BOUND && fence > self.highest
    }

    fn bad_fence(&self) -> Said {
        Said::BadFence { max: BOUND.max(self.highest) }
    }

    /// The lease stands: whether it counts, and from when on it always does.
    fn extended(&mut self, name: usize, token: &[u8], lapsed: usize) -> Said {
        let mut lease = self.lock(name).lease_of(token).cloned().expect("just extended");
        lease.is_provisional &= self.is_quarantined();
        let is_waiting = self.is_quarantined() && self.is_promoted;
        let counts = !lease.is_provisional && !is_waiting;
        let ends_at = lease.ends_at;
        self.write(name, lease);
        Said::Extended { ends_at, counter: self.lock(name).counter, counts, lapsed }
    }

    fn lift_floor(&mut self, floor: u64) -> Said {
        self.floor = self.floor.max(floor);
        self.highest = self.highest.max(floor);
        Said::Floor(self.floor)
    }

    /// Counter and lease become at least `fence`. A name that was born at this node's floor, and is
    /// raised, shows that other nodes' floors are higher: writers begin above it, readers at it.
    fn raise_to(&mut self, name: usize, token: &[u8], fence: u64) {
        let before = self.lock(name).counter;
        let lease = self.held_by(name, token).expect("only for a holder");
        let (raised, mode) = (lease.fence.max(fence), lease.mode);
        self.write(name, PlainLease { fence: raised, ..lease });
        if fence > before && before.saturating_sub(1) <= self.floor {
            let floor = match mode {
                Mode::Exclusive => fence - 1,
                Mode::Shared => fence,
            };
            self.floor = self.floor.max(floor);
        }
    }

    /// Over the lease of the same token, if there is one.
    fn write(&mut self, name: usize, lease: PlainLease) {
        let mut lock = self.lock(name);
        lock.counter = lock.counter.max(lease.fence);
        lock.remove(&lease.token);
        lock.leases.push(lease);
        self.store(name, lock);
    }

    /// A scan comes by. Of several readers, those whose leases have ended are forgotten.
    fn note(&mut self, name: usize) -> usize {
        let (mut lock, now) = (self.lock(name), self.now);
        let before = lock.unnoted();
        if lock.is_shared {
            lock.leases.retain(|lease| now <= lease.ends_at);
            lock.is_shared = !lock.leases.is_empty();
        }
        for lease in lock.leases.iter_mut().filter(|lease| lease.ends_at < now) {
            lease.is_noted = true;
        }
        let after = lock.unnoted();
        if self.locks.contains_key(&name) {
            self.store(name, lock);
        }
        before - after
    }

    /// If any lease may still stand, with so much more, all get it, and are in doubt in a
    /// quarantine.
    fn redate(&mut self, name: usize, length: u64) {
        let mut lock = self.lock(name);
        let last = lock.leases.iter().map(|lease| lease.ends_at).max();
        if last.is_some_and(|last| self.now <= last.saturating_add(length)) {
            for lease in &mut lock.leases {
                lease.ends_at = (lease.ends_at + length).min(INSTANT_MAX);
                (lease.is_provisional, lease.is_noted) = (true, false);
            }
            self.store(name, lock);
        }
    }

    fn store(&mut self, name: usize, lock: PlainLock) {
        self.highest = self.highest.max(lock.counter);
        self.locks.insert(name, lock);
    }

    fn forget(&mut self, name: usize) {
        if let Some(lock) = self.locks.remove(&name) {
            self.floor = self.floor.max(lock.counter);
        }
    }
}

// --------------------------------------------------------------- the engine, as a module uses it

/// A node that runs the engine: locks in a map, a state file that is a field.
#[derive(Clone, Debug, PartialEq)]
struct Node {
    now: Instant,
    locks: BTreeMap<usize, Lock>,
    promises: Promises,
    disk: Ceilings,
    disk_works: bool,
    /// The next name that the survey under way, if any, looks at.
    surveys: Option<usize>,
}

impl Node {
    fn new(now: u64) -> Node {
        let mut promises = Promises::new(Fence::ZERO, Some(Ceilings::default()));
        promises.set_max_readers(READERS_MAX);
        Node {
            now: Instant::from_millis(now),
            locks: BTreeMap::new(),
            promises,
            disk: Ceilings::default(),
            disk_works: true,
            surveys: None,
        }
    }

    /// Asks once, or once more after persisting; stores the lock unless the request was stopped.
    fn ask<T>(
        &mut self,
        name: usize,
        request: impl Fn(&mut Promises, &mut Lock, Instant) -> Result<T, Stop>,
    ) -> Result<T, Said> {
        for _ in 0..2 {
            let mut lock = self.locks.get(&name).cloned().unwrap_or_default();
            let before = (lock.clone(), self.promises.clone());
            let stop = match request(&mut self.promises, &mut lock, self.now) {
                Ok(outcome) => {
                    // No key is made by a request that did nothing.
                    if lock != before.0 {
                        self.locks.insert(name, lock);
                    }
                    return Ok(outcome);
                }
                Err(stop) => stop,
            };
            assert_eq!(before, (lock, self.promises.clone()), "{stop:?} has changed something");
            match stop {
                Stop::Refused(Refusal::Quarantine { left, .. }) => {
                    return Err(Said::Quarantined { left: left.get() });
                }
                Stop::Refused(Refusal::BadFence { max, .. }) => {
                    return Err(Said::BadFence { max: max.get() });
                }
                Stop::Refused(Refusal::Exhausted) => return Err(Said::Exhausted),
                Stop::Refused(Refusal::NoUpgrade) => return Err(Said::NoUpgrade),
                Stop::Refused(Refusal::ReadersFull { readers, max: READERS_MAX }) => {
                    return Err(Said::ReadersFull { readers });
                }
                Stop::Refused(refusal) => panic!("{refusal} is not the engine's to say"),
                Stop::Persist(_) if !self.disk_works => return Err(Said::DiskFailed),
                Stop::Persist(ceilings) => {
                    assert!(ceilings.covers(self.disk) && ceilings != self.disk, "no progress");
                    self.disk = ceilings;
                    self.promises.persisted(ceilings);
                }
            }
        }
        panic!("ceilings that were asked for were not enough");
    }

    fn forget(&mut self, name: usize) {
        if let Some(lock) = self.locks.remove(&name) {
            self.promises.unlinked(&lock);
        }
    }

    /// One step of a survey: it begins, looks at one name, or ends.
    fn survey(&mut self) {
        match self.surveys {
            None => {
                self.promises.begin_survey();
                self.surveys = Some(0);
            }
            Some(name) if name < NAMES => {
                if let Some(lock) = self.locks.get(&name) {
                    self.promises.come_upon(lock);
                }
                self.surveys = Some(name + 1);
            }
            Some(_) => {
                self.surveys = None;
                if let Some(lease) = self.promises.end_survey(self.now)
                    && self.disk_works
                {
                    self.disk.lease = lease;
                }
            }
        }
    }

    /// A lock that comes in from outside is known before it is used, its promises on disk.
    fn load(&mut self, name: usize, lock: Lock) {
        let ends_at = lock.has_leases().then(|| lock.until());
        self.promises.seen(lock.counter(), ends_at);
        self.locks.insert(name, lock);
        if let Some(ceilings) = self.promises.take_request() {
            self.disk = self.disk.max(ceilings);
            self.promises.persisted(ceilings);
        }
    }

    fn restart(&mut self, data: BTreeMap<usize, Lock>) {
        self.surveys = None;
        self.promises = Promises::new(self.disk.fence, Some(self.disk));
        self.promises.set_max_readers(READERS_MAX);
        self.promises.begin_quarantine(self.disk.lease, QuarantineReason::UncleanRestart);
        self.locks.clear();
        for (name, lock) in data {
            self.load(name, lock);
        }
    }
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("in range")
}

fn fencing(fences: Fences, labels: &[Vec<u8>]) -> Fencing<'_> {
    match fences {
        Fences::Keep => Fencing::Keep,
        Fences::Raise(number) => Fencing::Raise(fence(number)),
        Fences::Repair(number, label) => {
            Fencing::Repair { fence: fence(number), label: &labels[label] }
        }
    }
}

fn extended(outcome: Result<Extended, Said>) -> Said {
    match outcome {
        Ok(Extended::Extended { ends_at, counter, is_counted: counts, lapsed, .. }) => {
            let (ends_at, counter) = (ends_at.as_millis().min(INSTANT_MAX), counter.get());
            Said::Extended { ends_at, counter, counts, lapsed }
        }
        Ok(Extended::HeldByAnother) => Said::HeldByAnother,
        Ok(Extended::NotHeld) => Said::NotHeld,
        Err(said) => said,
    }
}

// ---------------------------------------------------------------------------------- both at once

struct Pair {
    engine: Node,
    model: Plain,
    tokens: Vec<Vec<u8>>,
    labels: Vec<Vec<u8>>,
    dump: Option<(Lock, PlainLock)>,
    saved: (BTreeMap<usize, Lock>, BTreeMap<usize, PlainLock>),
    /// The engine's locks at a replica.
    replica: BTreeMap<usize, Lock>,
    /// The highest fence that anybody was told for each name.
    told: [u64; NAMES],
}

impl Pair {
    fn new(now: u64, tokens: Vec<Vec<u8>>, labels: Vec<Vec<u8>>) -> Pair {
        Pair {
            engine: Node::new(now),
            model: Plain { now, ..Plain::default() },
            tokens,
            labels,
            dump: None,
            saved: Default::default(),
            replica: BTreeMap::new(),
            told: [0; NAMES],
        }
    }

    fn step(&mut self, op: &Op) {
        let disk_failed = match self.request(op) {
            Some((Said::DiskFailed, _)) => true,
            Some((engine, model)) => {
                assert_eq!(engine, model, "{op:?}");
                false
            }
            None => {
                self.event(op);
                false
            }
        };
        if !disk_failed {
            self.compare(op);
        }
    }

    /// A request to both: what the engine said, and what the model did.
    fn request(&mut self, op: &Op) -> Option<(Said, Said)> {
        let model_before = self.model.clone();
        let (engine, name) = self.ask_engine(op)?;
        if engine == Said::DiskFailed {
            return Some((engine.clone(), engine));
        }
        let model = self.ask_model(op)?;
        match engine {
            Said::Granted { fence, .. } => {
                let told = self.told[name];
                let is_shared = matches!(op, Op::Acquire { mode: Mode::Shared, .. });
                assert!(
                    fence > told || is_shared && fence == told,
                    "{op:?}: fence {fence} after {told}"
                );
                self.told[name] = fence;
                self.state(op);
            }
            Said::Extended { .. } | Said::Again { .. } => {
                let fences = self.model.holders(name).into_iter().map(|lease| lease.fence);
                self.told[name] = fences.max().unwrap_or(0).max(self.told[name]);
                self.state(op);
            }
            Said::Released { .. } => self.state(op),
            Said::Floor(floor) => {
                assert!(self.engine.disk.fence.get() >= floor, "{op:?}: promised first");
            }
            Said::HeldByAnother
            | Said::NotHeld
            | Said::Quarantined { .. }
            | Said::BadFence { .. }
            | Said::Exhausted
            | Said::NoUpgrade
            | Said::ReadersFull { .. } => {
                assert_eq!(self.model.locks, model_before.locks, "{op:?} was refused");
            }
            Said::DiskFailed => {}
        }
        Some((engine, model))
    }

    /// The engine's decision goes to the replica as a fact.
    fn state(&mut self, op: &Op) {
        let now = self.engine.now;
        match *op {
            Op::Acquire { name, token, .. }
            | Op::Extend { name, token, .. }
            | Op::Raise { name, token, .. } => {
                let token = Token::new(&self.tokens[token], TOKEN_MAX).expect("1 to 255 bytes");
                let lease = self.engine.locks[&name].lease_of(token).expect("it stands");
                self.replica.entry(name).or_default().apply(lease, now);
            }
            Op::Release { name, token } => {
                let token = Token::new(&self.tokens[token], TOKEN_MAX).expect("1 to 255 bytes");
                assert!(self.replica.entry(name).or_default().apply_release(token, now));
            }
            _ => {}
        }
    }

    fn ask_engine(&mut self, op: &Op) -> Option<(Said, usize)> {
        let tokens = self.tokens.clone();
        let token = |index: usize| Token::new(&tokens[index], TOKEN_MAX).expect("1 to 255 bytes");
        let claim = |index, ttl, mode| Claim { token: token(index), ttl: Millis::new(ttl), mode };
        let wall = UnixTime::from_millis(WALL_MS);
        match *op {
            Op::Acquire { name, token, ttl, label, mode } => {
                let label = self.labels[label].clone();
                let outcome = self.engine.ask(name, |promises, lock, now| {
                    promises.acquire(lock, claim(token, ttl, mode), &label, now)
                });
                let said = match outcome {
                    Ok(Acquired::Granted { fence, ends_at, lapsed }) => {
                        let ends_at = ends_at.as_millis().min(INSTANT_MAX);
                        Said::Granted { fence: fence.get(), ends_at, lapsed }
                    }
                    Ok(Acquired::Again { fence, ends_at, later }) => {
                        let ends_at = ends_at.as_millis().min(INSTANT_MAX);
                        Said::Again { fence: fence.get(), ends_at, later }
                    }
                    Ok(Acquired::Held) => Said::HeldByAnother,
                    Err(said) => said,
                };
                Some((said, name))
            }
            Op::Release { name, token: index } => {
                let outcome = self
                    .engine
                    .ask(name, |promises, lock, now| Ok(promises.release(lock, token(index), now)));
                let said = match outcome {
                    Ok(Released::Released { held_for }) => {
                        Said::Released { held_for: held_for.get() }
                    }
                    Ok(Released::HeldByAnother) => Said::HeldByAnother,
                    Ok(Released::NotHeld) => Said::NotHeld,
                    Err(said) => said,
                };
                Some((said, name))
            }
            Op::Extend { name, token, ttl, fences, mode } => {
                let labels = self.labels.clone();
                let outcome = self.engine.ask(name, |promises, lock, now| {
                    let clocks = Clocks { now, wall };
                    promises.extend(lock, claim(token, ttl, mode), fencing(fences, &labels), clocks)
                });
                Some((extended(outcome), name))
            }
            Op::Raise { name, token: index, fence: number } => {
                let outcome = self.engine.ask(name, |promises, lock, now| {
                    promises.raise(lock, token(index), fence(number), Clocks { now, wall })
                });
                Some((extended(outcome), name))
            }
            Op::LiftFloor(number) => {
                let outcome =
                    self.engine.ask(0, |promises, _, _| promises.lift_floor(fence(number)));
                let said = match outcome {
                    Ok(floor) => Said::Floor(floor.get()),
                    Err(said) => said,
                };
                Some((said, 0))
            }
            _ => None,
        }
    }

    fn ask_model(&mut self, op: &Op) -> Option<Said> {
        let model = &mut self.model;
        match *op {
            Op::Acquire { name, token, ttl, label, mode } => {
                let (token, label) = (&self.tokens[token], &self.labels[label]);
                Some(model.acquire(name, token, (ttl, mode), label))
            }
            Op::Release { name, token } => Some(model.release(name, &self.tokens[token])),
            Op::Extend { name, token, ttl, fences, mode } => {
                let (token, labels) = (&self.tokens[token], &self.labels);
                Some(model.extend(name, token, (ttl, mode), fences, labels))
            }
            Op::Raise { name, token, fence } => Some(model.raise(name, &self.tokens[token], fence)),
            Op::LiftFloor(floor) => Some(model.lift_floor(floor)),
            _ => None,
        }
    }

    /// Whatever happens to a node without being asked. The replica is told of all of it, or gets
    /// the whole data set anew.
    fn event(&mut self, op: &Op) {
        self.happens(op);
        if !matches!(op, Op::Time(_) | Op::Note { .. } | Op::Survey | Op::Save | Op::Disk { .. }) {
            self.replica.clone_from(&self.engine.locks);
        }
    }

    fn happens(&mut self, op: &Op) {
        let (engine, model) = (&mut self.engine, &mut self.model);
        match *op {
            Op::Time(millis) => {
                engine.now = engine.now.after(Millis::new(millis));
                model.now += millis;
            }
            Op::Forget { name } => {
                engine.forget(name);
                model.forget(name);
            }
            Op::Flush => {
                engine.locks.clear();
                engine.promises.all_unlinked();
                model.locks.clear();
                model.floor = model.highest;
            }
            Op::Dump { name } => {
                let lock = engine.locks.get(&name).cloned();
                self.dump = lock.map(|lock| (lock, model.lock(name)));
            }
            Op::Restore { name } => {
                if let Some((lock, plain)) = self.dump.clone() {
                    engine.forget(name);
                    engine.load(name, lock);
                    model.forget(name);
                    model.store(name, plain);
                }
            }
            Op::Migrate { name, token, fence: number, left, mode } => {
                let (ends_at, token) = (model.end_of(left), self.tokens[token].clone());
                let mut lock = Lock::default();
                let lease = Lease {
                    token: Token::new(&token, TOKEN_MAX).expect("1 to 255 bytes"),
                    fence: fence(number),
                    ends_at: Instant::from_millis(ends_at),
                    label: b"",
                    mode,
                    is_provisional: false,
                };
                lock.apply(lease, engine.now);
                engine.forget(name);
                engine.load(name, lock);
                model.forget(name);
                let (label, granted_at, fence) = (vec![], model.now, number);
                let (is_provisional, is_noted) = (false, false);
                let lease = PlainLease {
                    token,
                    fence,
                    ends_at,
                    label,
                    granted_at,
                    mode,
                    is_provisional,
                    is_noted,
                };
                model.write(name, lease);
                self.told[name] = self.told[name].max(number);
            }
            Op::Rename { from, to } => {
                if let (Some(lock), true) = (engine.locks.get(&from).cloned(), from != to) {
                    engine.forget(to);
                    engine.forget(from);
                    engine.locks.insert(to, lock);
                    let plain = model.lock(from);
                    model.forget(to);
                    model.forget(from);
                    model.store(to, plain);
                    self.told[to] = self.told[to].max(self.told[from]);
                }
            }
            Op::Recode { name } => {
                // Long after 1970, so that the end of every lease is a time.
                let clocks = Clocks { now: engine.now, wall: UnixTime::from_millis(1 << 48) };
                if let Some(lock) = engine.locks.get_mut(&name) {
                    let bytes = encode_lock(lock, Fence::ZERO, clocks, BOOT);
                    let LoadedLock { lock: read, .. } =
                        decode_lock(&bytes, clocks, BOOT).expect("a node reads what it writes");
                    *lock = read;
                    let mut plain = model.lock(name);
                    plain.is_shared &= plain.leases.len() > 1;
                    plain.leases.iter_mut().for_each(|lease| lease.is_noted = false);
                    model.store(name, plain);
                }
            }
            Op::Note { name } => {
                let noted =
                    engine.locks.get_mut(&name).map_or(0, |lock| lock.note_lapses(engine.now));
                assert_eq!(noted, model.note(name));
            }
            Op::Redate { name, length } => {
                if let Some(mut lock) = engine.locks.get(&name).cloned() {
                    let recovery = Recovery {
                        floor: Fence::ZERO,
                        quarantine: Some((engine.now, QuarantineReason::ClockStep)),
                        nothing_counts: false,
                        nothing_is_carried: false,
                        prolong: Millis::new(length),
                    };
                    recovery.redate(&mut lock, engine.now);
                    engine.load(name, lock);
                    model.redate(name, length);
                }
            }
            Op::Promote { wait } => {
                let until = engine.now.after(Millis::new(wait));
                engine.promises.begin_quarantine(until, QuarantineReason::Promotion);
                model.quarantined_until = model.quarantined_until.max(until.as_millis());
                (model.has_crashed, model.is_promoted) = (true, true);
            }
            Op::Survey => engine.survey(),
            Op::Save => self.saved = (engine.locks.clone(), model.locks.clone()),
            Op::Crash { with_data } => {
                let (data, plain) = if with_data { self.saved.clone() } else { Default::default() };
                // The promise on disk is all that is left of what was known.
                model.floor = engine.disk.fence.get();
                model.quarantined_until = engine.disk.lease.as_millis();
                (model.has_crashed, model.is_promoted) = (true, false);
                model.locks = plain;
                engine.restart(data);
                model.highest = model.floor;
                for lock in model.locks.values() {
                    model.highest = model.highest.max(lock.counter);
                }
            }
            Op::Disk { works } => engine.disk_works = works,
            Op::Acquire { .. }
            | Op::Release { .. }
            | Op::Extend { .. }
            | Op::Raise { .. }
            | Op::LiftFloor(_) => {}
        }
    }

    fn compare(&self, op: &Op) {
        let (engine, model) = (&self.engine, &self.model);
        assert_eq!(engine.promises.floor().get(), model.floor, "floor after {op:?}");
        assert!(engine.promises.highest() >= engine.promises.floor());
        let left = engine.promises.quarantine(engine.now).map_or(0, |(left, _)| left.get());
        let model_left = if model.is_quarantined() { model.quarantine_left() } else { 0 };
        assert_eq!(left, model_left, "after {op:?}");
        for name in 0..NAMES {
            let lock = engine.locks.get(&name).cloned().unwrap_or_default();
            let plain = model.lock(name);
            assert_eq!(lock.counter().get(), plain.counter, "counter after {op:?}");
            assert!(lock.counter() <= engine.promises.highest());
            let holders = model.holders(name);
            assert_eq!(standing(&lock, engine.now), seen(&holders, model.now), "{op:?}");
            let replicated = self.replica.get(&name).cloned().unwrap_or_default();
            assert_eq!(replicated.counter(), lock.counter(), "at a replica, after {op:?}");
            // Since when a token has it again, a replica does not know.
            let leases = |lock: &Lock| {
                let leases = standing(lock, engine.now).into_iter();
                leases.map(|lease| Visible { 6: 0, ..lease }).collect::<Vec<_>>()
            };
            assert_eq!(leases(&replicated), leases(&lock), "at a replica, after {op:?}");
            // The promise of all promises.
            let writers = holders.iter().filter(|lease| lease.mode == Mode::Exclusive).count();
            assert!(writers == 0 || holders.len() == 1, "a writer is beside nobody, {op:?}");
            assert!(holders.iter().all(|lease| lease.fence <= plain.counter), "{op:?}");
            assert_eq!(lock.is_held(engine.now), !holders.is_empty());
            assert_eq!(lock.holders(engine.now), holders.len());
            if let Some(lease) = holders.first() {
                assert_eq!(lock.mode(), lease.mode);
            }
            assert_eq!(lock.has_leases(), !plain.leases.is_empty(), "{op:?}");
            assert_eq!(lock.unnoted_leases(), plain.unnoted(), "{op:?}");
            let ends = |lease: &PlainLease| Instant::from_millis(lease.ends_at);
            let last = plain.leases.iter().map(ends).max();
            assert!(last.is_none_or(|last| lock.until() == last), "{op:?}");
            let soonest = plain.leases.iter().filter(|lease| !lease.is_noted).map(ends).min();
            assert_eq!(lock.soonest_end().is_some(), soonest.is_some(), "{op:?}");
            assert!(lock.soonest_end() <= soonest, "{op:?}");
            let lease = last.unwrap_or_default();
            let promised = Ceilings { fence: lock.counter(), lease };
            assert!(engine.disk.covers(promised), "{promised:?} is not on disk after {op:?}");
            assert!(engine.disk.fence.get() >= self.told[name], "{op:?}");
        }
    }
}

/// A lease that stands, with how long it has been held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Visible(Vec<u8>, Mode, u64, u64, Vec<u8>, bool, u64);

fn standing(lock: &Lock, now: Instant) -> Vec<Visible> {
    let visible = |lease: Lease<'_>| {
        let (token, label) = (lease.token.as_bytes().to_vec(), lease.label.to_vec());
        let (fence, ends_at) = (lease.fence.get(), lease.ends_at.as_millis());
        let held_for = lock.held_for(lease.token, now).get();
        assert_eq!(lock.lease_of(lease.token), Some(lease));
        Visible(token, lease.mode, fence, ends_at, label, lease.is_provisional, held_for)
    };
    let leases = lock.written_leases().filter(|lease| now <= lease.ends_at);
    let mut leases: Vec<_> = leases.map(visible).collect();
    leases.sort();
    leases
}

fn seen(holders: &[PlainLease], now: u64) -> Vec<Visible> {
    let visible = |lease: &PlainLease| {
        let held_for = (now - lease.granted_at) % (1 << 32);
        let (token, label) = (lease.token.clone(), lease.label.clone());
        Visible(
            token,
            lease.mode,
            lease.fence,
            lease.ends_at,
            label,
            lease.is_provisional,
            held_for,
        )
    };
    let mut leases: Vec<_> = holders.iter().map(visible).collect();
    leases.sort();
    leases
}

fn any_op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES;
    let token = 0..TOKENS;
    // Short ttls beside one that outlasts everything else in a run.
    let ttl = prop_oneof![8 => 1_u64..200, 1 => Just(5_000_u64), 1 => Just(100_000_u64)];
    let number = prop_oneof![
        30 => 1_u64..12,
        10 => 65_530_u64..65_550,
        3 => 131_000_u64..500_000,
        1 => BOUND - 2..=BOUND + 2,
        1 => FENCE_MAX - 3..=FENCE_MAX
    ];
    let number = number.boxed();
    let fences = prop_oneof![
        Just(Fences::Keep),
        number.clone().prop_map(Fences::Raise),
        (number.clone(), 0..2_usize).prop_map(|(number, label)| Fences::Repair(number, label))
    ];
    let (name, token, ttl) = (name.boxed(), token.boxed(), ttl.boxed());
    let mode = prop_oneof![2 => Just(Mode::Shared), 1 => Just(Mode::Exclusive)].boxed();
    prop_oneof![
        14 => (name.clone(), token.clone(), ttl.clone(), 0..2_usize, mode.clone()).prop_map(
            |(name, token, ttl, label, mode)| Op::Acquire { name, token, ttl, label, mode }
        ),
        5 => (name.clone(), token.clone()).prop_map(|(name, token)| Op::Release { name, token }),
        8 => (name.clone(), token.clone(), ttl.clone(), fences, mode.clone()).prop_map(
            |(name, token, ttl, fences, mode)| Op::Extend { name, token, ttl, fences, mode }
        ),
        5 => (name.clone(), token.clone(), number.clone())
            .prop_map(|(name, token, fence)| Op::Raise { name, token, fence }),
        1 => number.clone().prop_map(Op::LiftFloor),
        1 => (1_u64..300).prop_map(|wait| Op::Promote { wait }),
        6 => prop_oneof![1_u64..150, Just(5_000_u64), Just(120_000_u64)].prop_map(Op::Time),
        2 => name.clone().prop_map(|name| Op::Forget { name }),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => Just(Op::Flush),
        2 => name.clone().prop_map(|name| Op::Dump { name }),
        2 => name.clone().prop_map(|name| Op::Restore { name }),
        2 => name.clone().prop_map(|name| Op::Recode { name }),
        3 => name.clone().prop_map(|name| Op::Note { name }),
        1 => (name.clone(), 1..150_u64).prop_map(|(name, length)| Op::Redate { name, length }),
        1 => (name, token, number, ttl, mode).prop_map(
            |(name, token, fence, left, mode)| Op::Migrate { name, token, fence, left, mode }
        ),
        1 => Just(Op::Save),
        2 => any::<bool>().prop_map(|with_data| Op::Crash { with_data }),
        8 => Just(Op::Survey),
        1 => prop_oneof![1 => Just(false), 3 => Just(true)].prop_map(|works| Op::Disk { works }),
    ]
}

/// Tokens of all lengths around what is kept in place, all different.
fn any_tokens() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let length = prop_oneof![Just(1_usize), Just(20), Just(21), Just(255), 1..=TOKEN_MAX];
    let token = length.prop_flat_map(|length| proptest::collection::vec(any::<u8>(), length));
    proptest::collection::vec(token, TOKENS).prop_filter("all different", |tokens| {
        let mut sorted = tokens.clone();
        sorted.sort();
        sorted.dedup();
        sorted.len() == TOKENS
    })
}

fn any_labels() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let label = prop_oneof![
        Just(vec![]),
        proptest::collection::vec(any::<u8>(), 0..=LABEL_MAX),
        Just(vec![b'x'; LABEL_MAX])
    ];
    proptest::collection::vec(label, 2)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_engine_does_what_the_naive_model_does(
        now in prop_oneof![Just(0_u64), (1_u64 << 32) - 300..(1 << 32) + 300, Just(1_u64 << 47)],
        tokens in any_tokens(),
        labels in any_labels(),
        ops in proptest::collection::vec(any_op(), 1..120),
    ) {
        let mut pair = Pair::new(now, tokens, labels);
        for op in &ops {
            pair.step(op);
        }
    }
}

/// What happens to a lock at a node that counts leases: by a request, by a fact, or by itself.
#[derive(Clone, Copy, Debug)]
enum Event {
    Acquire(usize, Mode, u64),
    Release(usize),
    Extend(usize, Mode, bool),
    Raise(usize, u64),
    Fact(usize, Mode, u64),
    ReleaseFact(usize),
    Scan,
    Time(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let (token, ttl) = (0..6_usize, 1..60_u64);
    let mode = || prop_oneof![2 => Just(Mode::Shared), 1 => Just(Mode::Exclusive)];
    prop_oneof![
        6 => (token.clone(), mode(), ttl.clone()).prop_map(|(t, m, ttl)| Event::Acquire(t, m, ttl)),
        2 => token.clone().prop_map(Event::Release),
        3 => (token.clone(), mode(), any::<bool>()).prop_map(|(t, m, r)| Event::Extend(t, m, r)),
        1 => (token.clone(), 1..9_u64).prop_map(|(t, fence)| Event::Raise(t, fence)),
        3 => (token.clone(), mode(), ttl).prop_map(|(t, m, ttl)| Event::Fact(t, m, ttl)),
        1 => token.prop_map(Event::ReleaseFact),
        2 => Just(Event::Scan),
        4 => (1..40_u64).prop_map(Event::Time),
    ]
}

/// Lets it happen.
fn happen(node: &mut lockmod::engine::Node, lock: &mut Lock, event: Event, now: Instant) {
    let bytes: Vec<Vec<u8>> = (0..6_u8).map(|token| vec![token; 1 + usize::from(token)]).collect();
    let token = |index: usize| Token::new(&bytes[index], TOKEN_MAX).expect("1 to 6 bytes");
    let ttl = Millis::new(30);
    let clocks = Clocks { now, wall: UnixTime::from_millis(1 << 40 | now.as_millis()) };
    match event {
        Event::Acquire(index, mode, ttl) => {
            let claim = Claim { token: token(index), ttl: Millis::new(ttl), mode };
            let _ = node.acquire(lock, claim, b"", now);
        }
        Event::Release(index) => drop(node.release(lock, token(index), now)),
        Event::Extend(index, mode, repairs) => {
            let repair = Fencing::Repair { fence: fence(3), label: b"" };
            let fencing = if repairs { repair } else { Fencing::Keep };
            let _ = node.extend(lock, Claim { token: token(index), ttl, mode }, fencing, clocks);
        }
        Event::Raise(index, to) => drop(node.raise(lock, token(index), fence(to), clocks)),
        Event::Fact(index, mode, ttl) => {
            let ends_at = clocks.to_wall(now.after(Millis::new(ttl)));
            let (ttl, fence, floor) = (Millis::new(ttl), lock.counter().max(fence(1)), Fence::ZERO);
            let decided = Decided { ttl, ends_at, fence, floor, mode, is_provisional: false };
            node.apply(lock, (&bytes[index], Stated::Grant(b"")), &decided, clocks, false);
        }
        Event::ReleaseFact(index) => drop(node.apply_release(lock, token(index), now)),
        Event::Scan => drop(node.note_lapses(lock, now)),
        Event::Time(_) => {}
    }
}

proptest! {
    /// By requests, facts and scans, by one holder and by several.
    #[test]
    fn a_lock_that_is_held_is_counted_once(
        events in proptest::collection::vec(any_event(), 1..120),
    ) {
        let (mut node, mut lock) = (lockmod::engine::Node::new(), Lock::default());
        let mut now = Instant::from_millis(1_000);
        for event in events {
            if let Event::Time(millis) = event {
                now = now.after(Millis::new(millis));
            }
            happen(&mut node, &mut lock, event, now);
            let leases = lock.unnoted_leases() as u64;
            let readers = if lock.mode().is_shared() { leases } else { 0 };
            let held = node.tally().held(HeldCount::NONE);
            prop_assert_eq!(held, (u64::from(leases > 0), readers), "after {:?}", event);
            prop_assert_eq!(leases > 0, lock.has_unnoted_lease());
            let soonest = lock.soonest_end();
            prop_assert!(soonest.is_none_or(|end| end >= now || node.tally().is_due(now, true)));
        }
    }
}

#[test]
fn the_engine_does_what_the_naive_model_does_with_what_fuzzing_found() {
    feed::feed("operations", operations::run);
}

#[test]
fn an_end_beyond_47_bits_is_the_last_instant_there_is() {
    let mut node = Node::new(INSTANT_MAX - 10);
    let (token, mode) = (Token::new(b"t", TOKEN_MAX).unwrap(), Mode::Exclusive);
    let claim = Claim { token, ttl: Millis::new(u64::MAX), mode };
    let granted = node.ask(0, |promises, lock, now| promises.acquire(lock, claim, b"", now));
    assert!(matches!(granted, Ok(Acquired::Granted { .. })), "{granted:?}");
    assert_eq!(node.locks[&0].until().as_millis(), INSTANT_MAX);
    assert!(node.locks[&0].is_held(node.now));
    assert!(!node.locks[&0].is_held(Instant::from_millis(u64::MAX)), "the clock ran past it");
}

#[test]
fn the_last_fence_is_granted_and_none_after_it() {
    let mut node = Node::new(0);
    node.promises.raise_floor(Fence::MAX.previous());
    let ttl = Millis::new(10);
    for (token, expected) in [(b"a", Some(Fence::MAX)), (b"b", None)] {
        let (token, mode) = (Token::new(token, TOKEN_MAX).unwrap(), Mode::Exclusive);
        let claim = Claim { token, ttl, mode };
        let said = node.ask(0, |promises, lock, now| promises.acquire(lock, claim, b"", now));
        match expected {
            Some(fence) => {
                assert!(matches!(said, Ok(Acquired::Granted { fence: f, .. }) if f == fence));
            }
            None => assert_eq!(said, Err(Said::Exhausted)),
        }
        node.now = node.now.after(ttl).after(Millis::new(1));
    }
}

/// What the proof found: a vote from before a crash, and a repair after it.
///
/// A holds the lock on nodes 0 and 1, for 150 ms at a time. B asks for 10 s: 2 grants, 0 refuses,
/// and the request to 1 is slow. 2 crashes, forgets, and A repairs it. A's next renewal reaches 0
/// and 2, and not 1. A's lease on 1 ends, B's request arrives there, and B has won by 1 and by the
/// vote of 2 from before the crash: A must not have been confirmed by 2 meanwhile.
#[test]
fn a_vote_from_before_a_crash_and_a_repair_after_it_do_not_make_two_holders() {
    let quorum = Quorum::of(3).expect("three nodes");
    let (a, b) = (Token::new(b"A", TOKEN_MAX).unwrap(), Token::new(b"B", TOKEN_MAX).unwrap());
    let [short, long] = [150, 10_000].map(Millis::new);
    let at = |millis: u64| Instant::from_millis(1_000 + millis);
    let mut nodes: Vec<Node> = (0..3).map(|_| Node::new(1_000)).collect();
    let acquire = |node: &mut Node, token, ttl, now| {
        node.now = now;
        let claim = Claim { token, ttl, mode: Mode::Exclusive };
        match node.ask(0, |promises, lock, now| promises.acquire(lock, claim, b"", now)) {
            Ok(Acquired::Granted { fence, .. }) => Answer::Granted(fence),
            other => panic!("{other:?}"),
        }
    };
    let extend = |node: &mut Node, fencing, now| {
        node.now = now;
        let claim = Claim { token: a, ttl: short, mode: Mode::Exclusive };
        let wall = UnixTime::from_millis(WALL_MS);
        let asked = node.ask(0, |promises, lock, now| {
            promises.extend(lock, claim, fencing, Clocks { now, wall })
        });
        match asked {
            Ok(Extended::Extended { is_counted: true, .. }) => Extension::Extended,
            Ok(Extended::Extended { is_counted: false, .. }) => Extension::Provisional,
            Err(Said::Quarantined { .. }) => Extension::Quarantined,
            other => panic!("{other:?}"),
        }
    };
    // Node 2 is one fence ahead of the others.
    assert_eq!(acquire(&mut nodes[2], b, short, at(0)), Answer::Granted(fence(1)));
    nodes[2].ask(0, |promises, lock, now| Ok(promises.release(lock, b, now))).expect("done");

    for node in &mut nodes[..2] {
        assert_eq!(acquire(node, a, short, at(0)), Answer::Granted(fence(1)));
    }
    let terms = Terms::new(short);
    let schedule = Schedule { every: None, margin: Millis::ZERO, max_hold: None };
    let mut holder = Renewal::new(quorum, terms, schedule, at(0), terms.ends_at(at(0)));
    let mut attempt = Attempt::new(quorum, Terms::new(long), at(5));
    let vote = acquire(&mut nodes[2], b, long, at(10));
    assert_eq!(attempt.answer(2, vote, at(11)), Step::Wait);
    assert_eq!(attempt.answer(0, Answer::Refused, at(11)), Step::Wait);

    nodes[2].now = at(20);
    nodes[2].restart(BTreeMap::new());
    assert_eq!(extend(&mut nodes[2], Fencing::Keep, at(30)), Extension::Quarantined);
    extend(&mut nodes[2], Fencing::Repair { fence: fence(1), label: b"" }, at(30));

    let round = holder.begin(at(100), at(100)).expect("it is valid");
    for node in [0, 2] {
        let answer = extend(&mut nodes[node], Fencing::Raise(fence(1)), at(101));
        let _ = holder.answer(round, node, answer, at(102));
    }
    let _ = holder.time_out(round, at(120));

    let vote = acquire(&mut nodes[1], b, long, at(160));
    let won = attempt.answer(1, vote, at(161));
    assert!(matches!(won, Step::Won(_)), "{won:?}");
    assert_eq!(holder.validity(at(161)), Millis::ZERO, "two hold the lock");
}
