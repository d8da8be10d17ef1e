//! The engine against a model so naive that it is obviously right.
//!
//! The model keeps plain numbers in plain maps and is written from the design, not from the engine:
//! one rule a line, no packing, no borrowed tokens. Random sequences of requests, forgetting,
//! restored dumps and crashes must have the same replies and leave the same locks in both. Beside
//! that, what no model needs to say is checked at every step: fences of a name rise through
//! everything, the ceilings on disk cover everything that was promised, and what was refused has
//! changed nothing.

use std::collections::BTreeMap;

use lockmod::engine::{
    Acquired, Answer, Attempt, Ceilings, Claim, Clocks, Extended, Extension, Fence, Fencing,
    Instant, LABEL_MAX, Lease, Lock, Millis, Promises, QuarantineReason, Quorum, RAISE_MARGIN,
    Refusal, Released, Renewal, Schedule, Step, Stop, TOKEN_MAX, Terms, Token, UnixTime,
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

/// What a node says, engine or model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Granted { fence: u64, ends_at: u64, lapsed: bool },
    Again { fence: u64, ends_at: u64, later: bool },
    Released { held_for: u64 },
    Extended { ends_at: u64, counter: u64, counts: bool, lapsed: bool },
    HeldByAnother,
    NotHeld,
    Quarantined { left: u64 },
    Floor(u64),
    BadFence { max: u64 },
    Exhausted,
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
    },
    /// A snapshot of the data set, for a later restart.
    /// A lock gets another name, whose own lock is gone.
    Rename {
        from: usize,
        to: usize,
    },
    /// A step of the search for the longest lease that stands.
    Survey,
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
    lease: Option<PlainLease>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainLease {
    token: Vec<u8>,
    fence: u64,
    ends_at: u64,
    label: Vec<u8>,
    granted_at: u64,
    /// It was repaired in a quarantine.
    is_provisional: bool,
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

    fn holder(&self, name: usize) -> Option<PlainLease> {
        self.lock(name).lease.filter(|lease| self.now <= lease.ends_at)
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

    fn acquire(&mut self, name: usize, token: &[u8], ttl: u64, label: &[u8]) -> Said {
        if self.is_quarantined() {
            return self.quarantined();
        }
        let ends_at = self.end_of(ttl);
        let mut lock = self.lock(name);
        match self.holder(name) {
            Some(lease) if lease.token == token => {
                let later = ends_at > lease.ends_at;
                let ends_at = ends_at.max(lease.ends_at);
                let fence = lease.fence;
                let is_provisional = lease.is_provisional && !later;
                lock.lease = Some(PlainLease { ends_at, is_provisional, ..lease });
                self.store(name, lock);
                Said::Again { fence, ends_at, later }
            }
            Some(_) => Said::HeldByAnother,
            None => {
                let fence = lock.counter.max(self.floor) + 1;
                if fence > FENCE_MAX {
                    return Said::Exhausted;
                }
                let lapsed = lock.lease.is_some();
                let (token, label) = (token.to_vec(), label.to_vec());
                let (granted_at, is_provisional) = (self.now, false);
                let lease = PlainLease { token, fence, ends_at, label, granted_at, is_provisional };
                self.store(name, PlainLock { counter: fence, lease: Some(lease) });
                Said::Granted { fence, ends_at, lapsed }
            }
        }
    }

    fn release(&mut self, name: usize, token: &[u8]) -> Said {
        match self.holder(name) {
            Some(lease) if lease.token == token => {
                let counter = self.lock(name).counter;
                self.store(name, PlainLock { counter, lease: None });
                Said::Released { held_for: (self.now - lease.granted_at) % (1 << 32) }
            }
            Some(_) => Said::HeldByAnother,
            None => Said::NotHeld,
        }
    }

    fn extend(
        &mut self,
        name: usize,
        token: &[u8],
        ttl: u64,
        fences: Fences,
        labels: &[Vec<u8>],
    ) -> Said {
        let holds = self.holder(name).is_some_and(|lease| lease.token == token);
        if self.is_quarantined() && !holds && !matches!(fences, Fences::Repair(..)) {
            return self.quarantined();
        }
        let ends_at = self.end_of(ttl);
        let lock = self.lock(name);
        match (self.holder(name), fences) {
            (Some(lease), _) if lease.token == token => {
                let ends_at = ends_at.max(lease.ends_at);
                if let Fences::Raise(fence) | Fences::Repair(fence, _) = fences {
                    if self.is_beyond(fence) {
                        return self.bad_fence();
                    }
                    self.write(name, PlainLease { ends_at, ..lease });
                    self.raise_to(name, fence);
                } else {
                    self.write(name, PlainLease { ends_at, ..lease });
                }
                self.extended(name, false)
            }
            (Some(_), _) => Said::HeldByAnother,
            (None, Fences::Repair(fence, _)) if self.is_beyond(fence) => self.bad_fence(),
            (None, Fences::Repair(fence, label)) => {
                let lapsed = lock.lease.is_some();
                // A lapsed lease of the same token is the same grant's: its label goes on.
                let own = lock.lease.filter(|lease| lease.token == token);
                let label = own.map_or_else(|| labels[label].clone(), |lease| lease.label);
                let (token, granted_at) = (token.to_vec(), self.now);
                let is_provisional = self.is_quarantined();
                let is_behind = lock.counter.max(self.floor) > fence;
                // As any grant, where there are grants, and this node has gone on since.
                let fence = if is_behind && !is_provisional {
                    lock.counter.max(self.floor) + 1
                } else {
                    fence
                };
                if fence > FENCE_MAX {
                    return Said::Exhausted;
                }
                let lease = PlainLease { token, fence, ends_at, label, granted_at, is_provisional };
                self.write(name, lease);
                self.extended(name, lapsed)
            }
            (None, _) => Said::NotHeld,
        }
    }

    fn raise(&mut self, name: usize, token: &[u8], fence: u64) -> Said {
        if self.is_quarantined() {
            return self.quarantined();
        }
        match self.holder(name) {
            Some(lease) if lease.token == token && self.is_beyond(fence) => self.bad_fence(),
            Some(lease) if lease.token == token => {
                self.raise_to(name, fence);
                self.extended(name, false)
            }
            Some(_) => Said::HeldByAnother,
            None => Said::NotHeld,
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
    fn extended(&mut self, name: usize, lapsed: bool) -> Said {
        let mut lease = self.lock(name).lease.expect("just extended");
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
    /// raised, shows that other nodes' floors are higher.
    fn raise_to(&mut self, name: usize, fence: u64) {
        let before = self.lock(name).counter;
        let lease = self.holder(name).expect("only for a holder");
        let raised = lease.fence.max(fence);
        self.write(name, PlainLease { fence: raised, ..lease });
        if fence > before && before.saturating_sub(1) <= self.floor {
            self.floor = self.floor.max(fence - 1);
        }
    }

    fn write(&mut self, name: usize, lease: PlainLease) {
        let counter = self.lock(name).counter.max(lease.fence);
        self.store(name, PlainLock { counter, lease: Some(lease) });
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
        Node {
            now: Instant::from_millis(now),
            locks: BTreeMap::new(),
            promises: Promises::new(Fence::ZERO, Some(Ceilings::default())),
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
            self.promises.forget(&lock);
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
        let ends_at = lock.written_lease().map(|lease| lease.ends_at);
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
        Ok(Extended::Extended { ends_at, counter, is_counted: counts, lapsed, is_news: _ }) => {
            let (ends_at, counter) = (ends_at.as_millis(), counter.get());
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
                assert!(fence > self.told[name], "{op:?}: fence {fence} after {}", self.told[name]);
                self.told[name] = fence;
            }
            Said::Extended { .. } | Said::Again { .. } => {
                let lease = self.model.holder(name).map_or(0, |lease| lease.fence);
                self.told[name] = self.told[name].max(lease);
            }
            Said::Released { .. } => {}
            Said::Floor(floor) => {
                assert!(self.engine.disk.fence.get() >= floor, "{op:?}: promised first");
            }
            Said::HeldByAnother
            | Said::NotHeld
            | Said::Quarantined { .. }
            | Said::BadFence { .. }
            | Said::Exhausted => {
                assert_eq!(self.model.locks, model_before.locks, "{op:?} was refused");
            }
            Said::DiskFailed => {}
        }
        Some((engine, model))
    }

    fn ask_engine(&mut self, op: &Op) -> Option<(Said, usize)> {
        let tokens = self.tokens.clone();
        let token = |index: usize| Token::new(&tokens[index], TOKEN_MAX).expect("1 to 255 bytes");
        let claim = |index, ttl| Claim { token: token(index), ttl: Millis::new(ttl) };
        let wall = UnixTime::from_millis(WALL_MS);
        match *op {
            Op::Acquire { name, token, ttl, label } => {
                let label = self.labels[label].clone();
                let outcome = self.engine.ask(name, |promises, lock, now| {
                    promises.acquire(lock, claim(token, ttl), &label, now)
                });
                let said = match outcome {
                    Ok(Acquired::Granted { fence, ends_at, lapsed }) => {
                        let ends_at = ends_at.as_millis().min(INSTANT_MAX);
                        Said::Granted { fence: fence.get(), ends_at, lapsed }
                    }
                    Ok(Acquired::Again { fence, ends_at, later }) => {
                        Said::Again { fence: fence.get(), ends_at: ends_at.as_millis(), later }
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
            Op::Extend { name, token, ttl, fences } => {
                let labels = self.labels.clone();
                let outcome = self.engine.ask(name, |promises, lock, now| {
                    let clocks = Clocks { now, wall };
                    promises.extend(lock, claim(token, ttl), fencing(fences, &labels), clocks)
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
            Op::Acquire { name, token, ttl, label } => {
                Some(model.acquire(name, &self.tokens[token], ttl, &self.labels[label]))
            }
            Op::Release { name, token } => Some(model.release(name, &self.tokens[token])),
            Op::Extend { name, token, ttl, fences } => {
                Some(model.extend(name, &self.tokens[token], ttl, fences, &self.labels))
            }
            Op::Raise { name, token, fence } => Some(model.raise(name, &self.tokens[token], fence)),
            Op::LiftFloor(floor) => Some(model.lift_floor(floor)),
            _ => None,
        }
    }

    /// Whatever happens to a node without being asked.
    fn event(&mut self, op: &Op) {
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
                engine.promises.forget_all();
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
            Op::Migrate { name, token, fence: number, left } => {
                let (ends_at, token) = (model.end_of(left), self.tokens[token].clone());
                let mut lock = Lock::default();
                let lease = Lease {
                    token: Token::new(&token, TOKEN_MAX).expect("1 to 255 bytes"),
                    fence: fence(number),
                    ends_at: Instant::from_millis(ends_at),
                    label: b"",
                };
                lock.apply(lease, engine.now);
                engine.forget(name);
                engine.load(name, lock);
                model.forget(name);
                let (label, granted_at, is_provisional) = (vec![], model.now, false);
                let fence = number;
                let lease = PlainLease { token, fence, ends_at, label, granted_at, is_provisional };
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
            assert_eq!(plain_lease(lock.lease(engine.now)), seen(model.holder(name)), "{op:?}");
            assert_eq!(lock.is_held(engine.now), model.holder(name).is_some());
            if let Some(lease) = model.holder(name) {
                assert_eq!(lock.is_provisional(), lease.is_provisional, "after {op:?}");
                let held_for = (model.now - lease.granted_at) % (1 << 32);
                assert_eq!(lock.held_for(engine.now).get(), held_for);
            }
            let promised = Ceilings {
                fence: lock.counter(),
                lease: lock.written_lease().map(|lease| lease.ends_at).unwrap_or_default(),
            };
            assert!(engine.disk.covers(promised), "{promised:?} is not on disk after {op:?}");
            assert!(engine.disk.fence.get() >= self.told[name], "{op:?}");
        }
    }
}

type Visible = (Vec<u8>, u64, u64, Vec<u8>);

fn plain_lease(lease: Option<Lease<'_>>) -> Option<Visible> {
    lease.map(|lease| {
        let (token, label) = (lease.token.as_bytes().to_vec(), lease.label.to_vec());
        (token, lease.fence.get(), lease.ends_at.as_millis(), label)
    })
}

fn seen(lease: Option<PlainLease>) -> Option<Visible> {
    lease.map(|lease| (lease.token, lease.fence, lease.ends_at, lease.label))
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
    prop_oneof![
        12 => (name.clone(), token.clone(), ttl.clone(), 0..2_usize)
            .prop_map(|(name, token, ttl, label)| Op::Acquire { name, token, ttl, label }),
        5 => (name.clone(), token.clone()).prop_map(|(name, token)| Op::Release { name, token }),
        6 => (name.clone(), token.clone(), ttl.clone(), fences)
            .prop_map(|(name, token, ttl, fences)| Op::Extend { name, token, ttl, fences }),
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
        1 => (name, token, number, ttl)
            .prop_map(|(name, token, fence, left)| Op::Migrate { name, token, fence, left }),
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

#[test]
fn the_engine_does_what_the_naive_model_does_with_what_fuzzing_found() {
    feed::feed("operations", operations::run);
}

#[test]
fn an_end_beyond_47_bits_is_the_last_instant_there_is() {
    let mut node = Node::new(INSTANT_MAX - 10);
    let claim = Claim { token: Token::new(b"t", TOKEN_MAX).unwrap(), ttl: Millis::new(u64::MAX) };
    let granted = node.ask(0, |promises, lock, now| promises.acquire(lock, claim, b"", now));
    assert!(matches!(granted, Ok(Acquired::Granted { .. })), "{granted:?}");
    let ends_at = node.locks[&0].written_lease().unwrap().ends_at;
    assert_eq!(ends_at.as_millis(), INSTANT_MAX);
    assert!(node.locks[&0].is_held(node.now));
    assert!(!node.locks[&0].is_held(Instant::from_millis(u64::MAX)), "the clock ran past it");
}

#[test]
fn the_last_fence_is_granted_and_none_after_it() {
    let mut node = Node::new(0);
    node.promises.raise_floor(Fence::MAX.previous());
    let ttl = Millis::new(10);
    for (token, expected) in [(b"a", Some(Fence::MAX)), (b"b", None)] {
        let claim = Claim { token: Token::new(token, TOKEN_MAX).unwrap(), ttl };
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
        let claim = Claim { token, ttl };
        match node.ask(0, |promises, lock, now| promises.acquire(lock, claim, b"", now)) {
            Ok(Acquired::Granted { fence, .. }) => Answer::Granted(fence),
            other => panic!("{other:?}"),
        }
    };
    let extend = |node: &mut Node, fencing, now| {
        node.now = now;
        let (claim, wall) = (Claim { token: a, ttl: short }, UnixTime::from_millis(WALL_MS));
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
