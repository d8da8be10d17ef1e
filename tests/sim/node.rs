//! One simulated server: a key space, a disk, clocks and connections around the engine's `Node`.
//!
//! The node decides; this code carries out its requests as the module does: a promise is on the
//! disk before it is used.

use std::collections::BTreeMap;
use std::time::Duration;

use lockmod::codec::state::{decode_state, encode_state};
use lockmod::codec::{LoadedLock, decode_lock, encode_lock, hash_lock};
use lockmod::engine::{
    Acquired, Availability, Caution, Ceilings, Census, Change, Claim, Clocks, ClusterMemory,
    ConnectionId, Direct, Effect, Extended, Fence, Fencing, Found, Gate, Grantee, Instant,
    Inventory, Lease, Line, Loaded, Lock, Look, Millis, Mode, Node as Engine, QuarantineReason,
    Queued, Refusal, Released, Saved, Stated, Statement, Stop, Ticket, Token, Turn, Turning,
    UnixTime, Waiter,
};
use lockmod::wire::fact::{self, Restated, restate};
use lockmod::wire::outcome::{AcquireReply, ExtendReply, RaiseReply, ReleaseReply, of_fence};
use lockmod::wire::published::Published;
use lockmod::wire::request::{self, Limits, Onward, Queue, Request, WaitMode};
use lockmod::wire::resp::{self, Reply, Version};
use lockmod::wire::{lock_info, spec};

use crate::clock::Clock;
use crate::group::Member;
use crate::line::{Callers, Offer, RESERVE};
use crate::shadow::{Seen, View, id};
use crate::stream::Place;

/// The longest lease that a node grants.
pub(crate) const MAX_TTL: Millis = Millis::new(30_000);
const PORT: u16 = 7_000;
/// The approximate time of day.
pub(crate) const WALL_MS: u64 = 1_700_000_000_000;
const TOKEN_LENGTH_MAX: usize = 64;

/// A deliberate defect of a node. Each must be caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Defect {
    #[default]
    None,
    /// It grants immediately after it restarts from a crash.
    NoQuarantine,
    /// After a crash, it continues its fences from its data set.
    NoFenceCeiling,
    /// It lets any client release a lock.
    ReleasesForAnybody,
    /// It answers any client that asks for a held lock as if that client were the holder.
    GrantsToAnybody,
    /// It counts leases on the wall clock.
    LeasesOnTheWallClock,
    /// It calls waiters while it would refuse their requests.
    CallsInQuarantine,
    /// It dates leases by the raw wall clock, and trusts those dates after a restart.
    DatesByTheWallClock,
    /// It vouches for a lease that was repaired during its quarantine.
    CountsProvisional,
    /// During its quarantine, it vouches for a lease that was restored there.
    CountsRestored,
    /// It does not repair the lease of a holder whose fence is below its own.
    KeepsOutBelowItsFloor,
    /// It answers a reader as a holder while a writer holds the lock.
    ReadsBesideAWriter,
    /// When one reader releases, all readers lose the lock.
    ReleasesAllReaders,
    /// Readers overtake the waiters in line.
    LetsReadersPass,
    /// It does not report which server it is.
    HidesItsName,
    /// A master of a group does not ask whether its replicas support it.
    DecidesWithoutAuthority,
    /// After a promotion, it does not wait for the leases of other masters.
    PromotedDoesNotWait,
    /// Extensions count immediately while it waits for leases of other masters.
    CountsInWait,
    /// It does not record that a lease was removed that stands.
    ForgetsRemovals,
    /// While it waits for leases of other masters, it carries a lease that may have been removed.
    CarriesRemoved,
    /// Support by its replicas counts from when it hears from them, not from when it sent to them.
    SupportFromReceipt,
    /// A replica takes the last received value for the longest lease, regardless of when it was
    /// sent.
    BelievesTheLastHeartbeat,
}

/// What survives a crash of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    Nothing,
    /// The data set as last saved.
    Snapshots,
    /// Every write before its reply, in an append-only file.
    Always,
}

/// A server that is reachable but does not serve as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    NoModule,
    NoPermission,
    OtherType,
    ShortTtl,
    Garbage,
    Loading,
    Replica,
    NoReplicas,
}

#[derive(Debug, Default)]
struct Disk {
    state: Option<Vec<u8>>,
    locks: Vec<(Vec<u8>, Vec<u8>)>,
    /// The place in the stream of its group when the data set was saved.
    place: Option<Place>,
    /// The append-only file: the last facts written for each name.
    stated: BTreeMap<Vec<u8>, Vec<Restated>>,
    is_full: bool,
}

/// How a node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process is killed; the machine keeps running.
    Killed,
    /// The machine goes down: its monotonic clock starts anew.
    PowerLoss,
    /// An orderly shutdown, with or without saving.
    Shutdown { saves: bool },
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) clock: Clock,
    wall_minus_boot_ms: u64,
    pub(crate) boot: u64,
    pub(crate) number: usize,
    /// The number of starts: each start makes it another server.
    pub(crate) run: u64,
    pub(crate) is_up: bool,
    pub(crate) is_in_cluster: bool,
    pub(crate) misfit: Option<Misfit>,
    persistence: Persistence,
    pub(crate) defect: Defect,
    pub(crate) engine: Engine,
    /// Its `lockmod.max-ttl`.
    pub(crate) max_ttl: Millis,
    pub(crate) member: Member,
    pub(crate) locks: BTreeMap<Vec<u8>, Lock>,
    pub(crate) callers: Callers,
    /// The alarm that the engine asked for, until a timer is set for it.
    alarm_at: Option<Instant>,
    statement: Statement,
    disk: Disk,
    pub(crate) repaired: u64,
    /// How often it answered that a lease does not count yet.
    pub(crate) provisional: u64,
    pub(crate) quarantines: u64,
    /// How often a lock was restored in a quarantine.
    pub(crate) restored: u64,
}

impl Node {
    pub(crate) fn decides_in(&self, slot: u16) -> bool {
        self.engine.decides_in(slot, (self.clocks().now, self.max_ttl))
    }

    pub(crate) fn start(
        number: usize,
        clock: Clock,
        persistence: Persistence,
        (offer, member, max_ttl): (Offer, Member, Millis),
        defect: Defect,
    ) -> Node {
        let none = Clocks { now: Instant::default(), wall: UnixTime::default() };
        let nothing = Saved {
            port: PORT,
            ceilings: Ceilings::NONE,
            at: none,
            boot: 0,
            dating: none,
            foreign_until: none.now,
            is_always_durable: false,
            was_stepped: false,
            was_replica: false,
            nothing_counts_until: Instant::default(),
            longest: Millis::ZERO,
            doubts: false,
            stop: None,
        };
        // The servers of a group agree on the time of day.
        let ahead = if member.replicas > 0 { Millis::round_down(clock.now()).get() } else { 0 };
        let mut node = Node {
            clock,
            wall_minus_boot_ms: WALL_MS - ahead,
            boot: 1,
            number,
            run: 0,
            is_up: false,
            is_in_cluster: false,
            misfit: None,
            persistence,
            defect,
            engine: Engine::new(),
            max_ttl,
            member,
            locks: BTreeMap::new(),
            callers: Callers::new(offer),
            alarm_at: None,
            statement: Statement::new(nothing, ClusterMemory::default()),
            disk: Disk::default(),
            repaired: 0,
            provisional: 0,
            quarantines: 0,
            restored: 0,
        };
        node.start_again();
        node
    }

    /// Both clocks, as used to date what leaves the process.
    pub(crate) fn dated(&self) -> Clocks {
        let clocks = self.clocks();
        match self.defect {
            Defect::DatesByTheWallClock => clocks,
            _ => self.engine.date(clocks.now),
        }
    }

    pub(crate) fn clocks(&self) -> Clocks {
        let millis = Millis::round_down(self.clock.now()).get();
        Clocks {
            now: Instant::from_millis(millis),
            wall: UnixTime::from_millis(self.wall_minus_boot_ms + millis),
        }
    }

    /// The clock that leases are counted on.
    fn now(&self) -> Instant {
        let clocks = self.clocks();
        match self.defect {
            Defect::LeasesOnTheWallClock => Instant::from_millis(clocks.wall.as_millis()),
            _ => clocks.now,
        }
    }

    /// The live leases.
    pub(crate) fn held_tokens(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let now = self.now();
        let leases = |(name, lock): (&Vec<u8>, &Lock)| {
            let name = name.clone();
            tokens_in(lock, now).into_iter().map(move |token| (name.clone(), token))
        };
        self.locks.iter().flat_map(leases).collect()
    }

    /// Whether this token has a live lease.
    pub(crate) fn is_held_by(&self, name: &[u8], token: &[u8]) -> bool {
        let lock = self.locks.get(name);
        lock.is_some_and(|lock| standing(lock, self.now()).any(|l| l.token.as_bytes() == token))
    }

    /// What the node knows about a lock and has on its disk; `None` while it is down.
    pub(crate) fn view(&self, name: &[u8]) -> Option<View> {
        if !self.is_up {
            return None;
        }
        let is_quarantined = self.is_in_quarantine();
        let lock = self.locks.get(name);
        let leases = lock.into_iter().flat_map(|lock| standing(lock, self.now()));
        let leases = leases.map(|lease| Seen {
            id: id(lease.token.as_bytes()),
            is_exclusive: !lease.mode.is_shared(),
            is_provisional: !self.engine.promises().is_counted(&lease, self.now()),
        });
        let leases = leases.collect();
        let issued = lock.map_or(Fence::ZERO, Lock::counter);
        let counter = issued.max(self.engine.promises().floor()).get();
        let mut ceiling = match self.found() {
            Found::Present(saved) => saved.ceilings.fence.get(),
            Found::Missing | Found::Damaged => 0,
        };
        // After a wait, a floor that has jumped is not written until it is used.
        if self.is_in_group() && issued.get() <= ceiling {
            ceiling = ceiling.max(counter);
        }
        Some(View { leases, counter, ceiling, is_quarantined })
    }

    /// A census of all locks, with leases counted from `since`.
    fn count(&self, since: UnixTime) -> Census {
        let clocks = self.dated();
        let mut census = Census::new(since);
        for (name, lock) in &self.locks {
            let inventory = census.inventory;
            let hash = hash_lock((0, name), lock, |lease| inventory.counts(lease, clocks));
            census.count(hash, lock, clocks);
        }
        census
    }

    // ---- faults ----

    /// Does nothing while the state file cannot record the step: see "Assumed" in
    /// docs/verification.md.
    pub(crate) fn step_wall_clock(&mut self, by_ms: i64) {
        if !self.is_up || self.disk.is_full {
            return;
        }
        self.wall_minus_boot_ms = self.wall_minus_boot_ms.saturating_add_signed(by_ms);
    }

    pub(crate) fn set_disk_full(&mut self, is_full: bool) {
        if self.is_up {
            // The server's cron checks the clock all the time, so an earlier step is on the disk.
            self.notice_step();
        }
        self.disk.is_full = is_full;
    }

    /// An operator's DEL.
    pub(crate) fn delete(&mut self, name: &[u8]) {
        if let Some(lock) = self.locks.remove(name) {
            self.engine.unlinked(&lock);
            if let Some(change) = self.engine.removed(lock.until(), self.now())
                && self.defect != Defect::ForgetsRemovals
            {
                let _ = self.change_state(change);
            }
            self.disk.stated.remove(name);
            if self.is_master() {
                self.member.tell_deleted(name);
            }
            self.engine.line_changed((0, name));
            self.carry_out();
        }
    }

    /// Whether it can record on its disk what it removes.
    pub(crate) fn can_record(&self) -> bool {
        self.is_up && !self.disk.is_full
    }

    /// An operator's DUMP of a held lock.
    pub(crate) fn dump(&self, name: &[u8]) -> Option<Vec<u8>> {
        let lock = self.locks.get(name).filter(|lock| self.is_up && lock.is_held(self.now()))?;
        // It is read on another machine, which has another boot.
        Some(self.encode(lock, 0))
    }

    /// An operator's RESTORE under an unused name, like `load` in `src/module/datatype.rs`. Returns
    /// the tokens of the restored leases.
    pub(crate) fn restore(&mut self, name: &[u8], bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        if !self.is_up || self.locks.contains_key(name) {
            return None;
        }
        let mut loaded = decode_lock(bytes, self.dated(), self.boot).expect("a node wrote it");
        let now = self.now();
        let tokens = tokens_in(&loaded.lock, now);
        if tokens.is_empty() {
            return None;
        }
        if self.defect == Defect::CountsRestored {
            loaded.lock = counted(&loaded.lock, now);
        } else if let Some(change) = self.engine.names_changed(now) {
            self.change_state(change).ok()?;
        }
        self.write_state().ok()?;
        self.keep_restored(name, loaded).ok()?;
        Some(tokens)
    }

    fn keep_restored(&mut self, name: &[u8], loaded: LoadedLock) -> Result<(), Refusal> {
        if let Err(ceilings) = self.engine.admit(&loaded.lock, loaded.floor) {
            self.persist(ceilings)?;
        }
        self.engine.loaded(&loaded.lock, loaded.floor);
        self.write_ahead()?;
        self.locks.insert(name.to_vec(), loaded.lock);
        self.state(name, &Lock::default());
        self.restored += 1;
        Ok(())
    }

    /// The `RESTORE` of a key that comes with its slot. Returns whether it was accepted.
    pub(crate) fn receive_key(&mut self, name: &[u8], bytes: &[u8], replaces: bool) -> bool {
        if self.locks.contains_key(name) {
            if !replaces {
                return false;
            }
            self.delete(name);
        }
        let loaded = decode_lock(bytes, self.dated(), self.boot).expect("a node wrote it");
        let now = self.now();
        if loaded.lock.is_held(now)
            && let Some(change) = self.engine.names_changed(now)
            && self.change_state(change).is_err()
        {
            return false;
        }
        self.keep_restored(name, loaded).is_ok()
    }

    /// Persists the ceilings that newly arrived locks need.
    pub(crate) fn write_ahead(&mut self) -> Result<(), Refusal> {
        if let Some(ceilings) = self.engine.take_request() {
            self.statement.raise(ceilings);
            self.write_state()?;
            self.engine.persisted(self.statement.allowed());
        }
        Ok(())
    }

    /// Saves the data set, if the node takes snapshots.
    pub(crate) fn save(&mut self) {
        if self.persistence == Persistence::Snapshots {
            self.write_data();
        }
    }

    pub(crate) fn end(&mut self, end: End, loses_data: bool) {
        // The server's cron has checked the clock: nothing is promised for a step and a power loss
        // within a tenth of a second.
        self.notice_step();
        if let End::Shutdown { saves } = end {
            let saves = saves && self.persistence == Persistence::Snapshots && !self.disk.is_full;
            if saves {
                self.write_data();
            }
            let is_saved = saves || self.persistence == Persistence::Always;
            let (now, census) = (self.now(), self.count(self.dated().wall));
            let change = self.engine.stop(now, census, is_saved);
            let _ = self.change_state(change);
        }
        self.is_up = false;
        self.locks.clear();
        self.callers.clear();
        let keeps = match self.persistence {
            Persistence::Nothing => false,
            Persistence::Snapshots => !loses_data,
            Persistence::Always => true,
        };
        if !keeps {
            self.disk.locks.clear();
            self.disk.place = None;
            self.disk.stated.clear();
        }
        if end == End::PowerLoss {
            // The wall clock continues; the monotonic clock starts anew.
            let wall = self.clocks().wall.as_millis();
            self.clock.restart();
            self.wall_minus_boot_ms = wall - Millis::round_down(self.clock.now()).get();
            self.boot += 1;
        }
    }

    pub(crate) fn start_again(&mut self) {
        assert!(!self.is_up, "one start after one stop");
        self.run += 1;
        self.is_up = true;
        // An operator has made room on the disk.
        self.disk.is_full = false;
        let found = self.found();
        self.member.restart(self.disk.place);
        self.engine = Engine::new();
        if self.defect != Defect::DecidesWithoutAuthority {
            self.engine.rest_on(self.member.replicas);
        }
        if self.is_in_cluster {
            self.engine.join_cluster(self.boot, self.memory(), self.clocks().now);
        }
        self.engine.found(Some(found), self.clocks(), self.boot);
        for (name, bytes) in &self.disk.locks {
            let loaded = decode_lock(bytes, self.dated(), self.boot).expect("we wrote it");
            self.engine.loaded(&loaded.lock, loaded.floor);
            self.locks.insert(name.clone(), loaded.lock);
        }
        self.replay();
        self.begin();
    }

    /// Reads the append-only file.
    fn replay(&mut self) {
        let is_own = self.defect != Defect::DatesByTheWallClock;
        for (name, stated) in self.disk.stated.clone() {
            self.apply_facts(&name, &stated, is_own);
        }
    }

    /// Applies these facts to a lock.
    pub(crate) fn apply_facts(&mut self, name: &[u8], facts: &[Restated], is_own: bool) {
        let clocks = self.clocks();
        let mut lock = Lock::free(Fence::ZERO, clocks.now);
        for Restated { token, fact, label } in facts {
            let decided = fact::read(fact).expect("a fact");
            let stated = (token.as_slice(), Stated::Grant(label));
            self.engine.apply(&mut lock, stated, &decided, clocks, is_own);
        }
        self.locks.insert(name.to_vec(), lock);
    }

    fn found(&self) -> Found {
        match &self.disk.state {
            None => Found::Missing,
            Some(bytes) => decode_state(bytes).map_or(Found::Damaged, |(mut saved, _)| {
                if self.defect == Defect::NoFenceCeiling {
                    saved.ceilings.fence = Fence::ZERO;
                }
                Found::Present(saved)
            }),
        }
    }

    /// What the state file has of a Cluster.
    pub(crate) fn memory(&self) -> ClusterMemory {
        let saved = self.disk.state.as_ref().and_then(|bytes| decode_state(bytes).ok());
        saved.map(|(_, memory)| memory).unwrap_or_default()
    }

    /// Starts the engine once the data set has been read.
    fn begin(&mut self) {
        let clocks = self.clocks();
        let since = self.engine.asks_for_inventory();
        let loaded = Loaded {
            port: PORT,
            clocks,
            boot: self.boot,
            lock_count: self.locks.len() as u64,
            inventory: since.map_or(Inventory::default(), |since| self.count(since).inventory),
            was_read: self.persistence != Persistence::Nothing,
            highest: Fence::ZERO,
            is_always_durable: self.persistence == Persistence::Always,
            is_replica: !self.is_master(),
            max_ttl: self.max_ttl,
        };
        let quarantine = self.defect != Defect::NoQuarantine;
        let caution = Caution { quarantine, on_promotion: quarantine };
        let begun = self.engine.begin(loaded, caution).expect("there is a state file");
        if self.defect != Defect::DatesByTheWallClock {
            self.locks.values_mut().for_each(|lock| begun.recovery.redate(lock, clocks.now));
        }
        self.statement = Statement::new(begun.saved, self.memory());
        self.change_state(Change::Begun).expect("the disk works at a start");
        self.quarantines += u64::from(begun.recovery.quarantine.is_some());
    }

    // ---- the disk ----

    /// Writes the state file; its content may be used only after that.
    fn write_state(&mut self) -> Result<(), Refusal> {
        let Some(draft) = self.statement.draft(self.clocks()) else { return Ok(()) };
        if self.disk.is_full {
            return Err(Refusal::StateFile { cause: "no space left on device".into() });
        }
        self.disk.state = Some(encode_state(&draft.saved, &draft.memory));
        self.statement.written(draft);
        Ok(())
    }

    /// Applies a change to the state file.
    pub(crate) fn change_state(&mut self, change: Change) -> Result<(), Refusal> {
        self.statement.change(change.clone());
        let written = self.write_state();
        self.engine.changed(change, self.statement.allowed(), written.is_ok());
        written
    }

    /// Retries a write that failed.
    pub(crate) fn retry_state(&mut self) {
        if self.statement.is_behind() && self.write_state().is_ok() {
            self.engine.persisted(self.statement.allowed());
        }
    }

    fn write_data(&mut self) {
        let bytes = |lock: &Lock| self.encode(lock, self.boot);
        self.disk.locks =
            self.locks.iter().map(|(name, lock)| (name.clone(), bytes(lock))).collect();
        self.disk.place = self.member.place();
    }

    /// Like `save` in `src/module/datatype.rs`.
    pub(crate) fn encode(&self, lock: &Lock, boot: u64) -> Vec<u8> {
        let lock = self.engine.as_saved(lock, self.now());
        encode_lock(&lock, self.engine.promises().floor(), self.dated(), boot)
    }

    /// Writes a request's changes to this lock to the append-only file. Unchanged leases are not
    /// dated again.
    fn state(&mut self, name: &[u8], before: &Lock) {
        let Some(lock) = self.locks.get(name) else { return };
        let is_stated = self.persistence == Persistence::Always || self.is_in_group();
        if !is_stated || lock == before {
            return;
        }
        let facts = restate(lock, self.engine.promises().floor(), self.dated());
        self.member.tell_lock(name, &facts);
        self.keep_facts(name, facts);
    }

    /// Writes facts to the append-only file, if the node has one.
    pub(crate) fn keep_facts(&mut self, name: &[u8], facts: Vec<Restated>) {
        if self.persistence == Persistence::Always {
            self.disk.stated.insert(name.to_vec(), facts);
        }
    }

    /// Replaces the node's data set with the one that its master sent, as bytes.
    pub(crate) fn replace_data(&mut self, locks: Vec<(Vec<u8>, Vec<u8>)>) {
        match self.persistence {
            Persistence::Nothing => {}
            Persistence::Snapshots => {
                (self.disk.locks, self.disk.place) = (locks, self.member.place());
            }
            Persistence::Always => {
                let (floor, clocks) = (self.engine.promises().floor(), self.dated());
                let facts =
                    |(name, lock): (&Vec<u8>, &Lock)| (name.clone(), restate(lock, floor, clocks));
                self.disk.stated = self.locks.iter().map(facts).collect();
            }
        }
    }

    fn notice_step(&mut self) {
        let clocks = self.clocks();
        if let Some(change) = self.engine.look_at_clocks(clocks, self.statement.is_behind()) {
            let _ = self.change_state(change);
        }
    }

    // ---- requests ----

    /// Executes a command from this connection and returns the reply's bytes. [`Callers::calls`]
    /// returns the calls to clients that result from it.
    pub(crate) fn serve(&mut self, connection: u64, args: &[&[u8]]) -> Vec<u8> {
        self.notice_step();
        let has_lines = self.callers.offer.has_lines;
        let version = if has_lines { Version::Resp3 } else { Version::Resp2 };
        let said = match (args[0], self.misfit) {
            (b"PING", _) => Ok(text("PONG")),
            (b"INFO", _) if self.defect == Defect::HidesItsName => Ok(text("# Server\r\n")),
            (b"INFO", _) => {
                let (number, run) = (self.number, self.run);
                Ok(text(format!("# Server\r\nrun_id:{number:08x}{run:032x}\r\n")))
            }
            (b"HELLO", _) if !has_lines => Ok(Reply::Error(UNKNOWN.into())),
            (b"HELLO", _) => Ok(Reply::Map(vec![(text("proto"), Reply::Integer(3))])),
            (b"SUBSCRIBE", _) => {
                self.callers.listen(args[1], connection);
                Ok(Reply::Push(vec![text("subscribe"), text(args[1]), Reply::Integer(1)]))
            }
            (_, Some(misfit)) => return misfit.reply().to_vec(),
            (name, None) if self.is_read_only_for(name) => return Misfit::Replica.reply().to_vec(),
            (b"SCAN", None) => {
                let names = self.locks.keys().map(|name| text(name.as_slice())).collect();
                Ok(Reply::List(vec![text("0"), Reply::List(names)]))
            }
            (name, None) if name == spec::INFO.as_bytes() && args.len() < 2 => {
                Ok(Reply::Error("ERR wrong number of arguments for 'lock.info' command".into()))
            }
            (other, None) => match Request::parse(args, self.limits()) {
                Some(Ok((name, request))) => self.carry_out_request(connection, name, request),
                Some(Err(refusal)) => Err(refusal),
                None => panic!("{} is not simulated", other.escape_ascii()),
            },
        };
        let lacks = matches!(said, Err(Refusal::NoAuthority { .. }));
        self.member.tally.without_authority += u64::from(lacks);
        let reply = said.unwrap_or_else(|refusal| Reply::Error(refusal.to_string()));
        let mut bytes = Vec::new();
        resp::write(&reply, version, &mut bytes);
        bytes
    }

    fn limits(&self) -> Limits {
        Limits { ttl: self.max_ttl, token: TOKEN_LENGTH_MAX }
    }

    fn carry_out_request(
        &mut self,
        connection: u64,
        name: &[u8],
        request: Request<'_>,
    ) -> Result<Reply, Refusal> {
        let limits = self.limits();
        let token = |bytes| request::token(bytes, limits);
        let is_new = match &request {
            Request::Acquire { waiting: WaitMode::Queue(queue), .. } => queue.grant.is_some(),
            Request::Release { onward, .. } => *onward == Onward::HandedOver,
            _ => false,
        };
        if is_new && !(self.callers.offer.grants && self.callers.is_asked_anew) {
            // The argument that the error names depends on the number of arguments.
            let (given, what) = (b"1".to_vec(), "argument at the end");
            return Err(Refusal::BadArg { given, what, allowed: "LABEL text" });
        }
        match request {
            Request::Acquire { token: bytes, ttl, mode, label, waiting } => {
                let claim = Claim { token: token(bytes)?, ttl, mode };
                self.acquire(name, (claim, label), waiting, connection)
            }
            Request::Release { token: bytes, onward } => {
                self.release(name, token(bytes)?, onward, connection)
            }
            Request::Extend { token: bytes, ttl, mode, fencing } => {
                self.extend(name, Claim { token: token(bytes)?, ttl, mode }, fencing)
            }
            Request::Raise { token: bytes, fence } => self.raise(name, token(bytes)?, fence),
            Request::Fence => Ok(of_fence(self.locks.get(name).map_or(Fence::ZERO, Lock::counter))),
            Request::Info => Ok(self.info(name)),
        }
    }

    /// Asks the engine until nothing more must be written to the disk first.
    /// Makes larger ceilings durable.
    fn persist(&mut self, ceilings: Ceilings) -> Result<(), Refusal> {
        let wanted = self.statement.raise(ceilings);
        if let Err(refusal) = self.write_state() {
            self.statement.withdraw(wanted);
            self.engine.request_failed();
            return Err(refusal);
        }
        self.engine.persisted(self.statement.allowed());
        Ok(())
    }

    pub(crate) fn decide<T>(
        &mut self,
        name: &[u8],
        mut decision: impl FnMut(&mut Engine, &mut Lock, Instant) -> Result<T, Stop>,
    ) -> Result<T, Refusal> {
        let now = self.now();
        let mut lock = self.locks.remove(name);
        let is_new = lock.is_none();
        let mut decided = lock.take().unwrap_or_default();
        let before = decided.clone();
        let outcome = loop {
            match decision(&mut self.engine, &mut decided, now) {
                Ok(outcome) => break Ok(outcome),
                Err(Stop::Refused(refusal)) => break Err(refusal),
                Err(Stop::Persist(ceilings)) => {
                    if let Err(refusal) = self.persist(ceilings) {
                        break Err(refusal);
                    }
                }
            }
        };
        // The worst case: writing ahead always comes too late to help.
        let _ = self.engine.take_request();
        if !is_new || decided.counter() > Fence::ZERO {
            self.locks.insert(name.to_vec(), decided);
        }
        self.state(name, &before);
        outcome
    }

    fn acquire(
        &mut self,
        name: &[u8],
        request: (Claim<'_>, &[u8]),
        waiting: WaitMode<'_>,
        connection: u64,
    ) -> Result<Reply, Refusal> {
        let queued = match waiting {
            WaitMode::Queue(_) if !self.callers.offer.has_lines => {
                return Err(Refusal::BadArg {
                    given: b"QUEUE".to_vec(),
                    what: "option",
                    allowed: "LABEL text",
                });
            }
            WaitMode::Queue(queue) => {
                let direct = queue.grant.map(|number| {
                    let (ttl, label) = (request.0.ttl, request.1);
                    Direct { ttl, label, number }
                });
                let queued = self.queued(queue, request.0.mode, connection);
                Some(Queued { direct, ..queued })
            }
            WaitMode::Not => None,
            WaitMode::Block(_) => panic!("the client never blocks"),
        };
        let was_called = queued.as_ref().is_some_and(|queued| {
            self.callers.note_attempt(&queued.ticket, self.clocks().now);
            self.has_called(name, &queued.ticket)
        });
        let place = (0, name);
        let passes = self.defect == Defect::LetsReadersPass && request.0.mode.is_shared();
        let decided = self.decide(name, |engine, lock, now| match passes {
            true => engine.acquire(lock, request.0, request.1, now),
            false => engine.acquire_in_line(place, lock, request, queued.as_ref(), now),
        });
        self.serve_waiters(name);
        // Only a request that needs the disk reveals that it is full. The same holds for a master
        // that its replicas no longer support.
        let is_misled = was_called
            && !matches!(
                decided,
                Ok(_)
                    | Err(Refusal::StateFile { .. }
                        | Refusal::NoAuthority { .. }
                        | Refusal::Quarantine { reason: QuarantineReason::OtherMaster, .. })
            );
        self.callers.tally.misled += u64::from(is_misled);
        let decided = decided?;
        let lies = match self.defect {
            Defect::GrantsToAnybody => true,
            Defect::ReadsBesideAWriter => request.0.mode.is_shared(),
            _ => false,
        };
        if decided == Acquired::Held && lies {
            return Ok(of_fence(self.locks.get(name).map_or(Fence::ZERO, Lock::counter)));
        }
        Ok(AcquireReply::from(decided).into())
    }

    fn release(
        &mut self,
        name: &[u8],
        token: Token<'_>,
        onward: Onward<'_>,
        connection: u64,
    ) -> Result<Reply, Refusal> {
        let (is_handed_over, queued) = match onward {
            Onward::Unsaid => (false, None),
            Onward::HandedOver => (true, None),
            Onward::Queue(mode, queue) => (false, Some(self.queued(queue, mode, connection))),
        };
        let all_go = self.defect == Defect::ReleasesAllReaders;
        let for_anybody = self.defect == Defect::ReleasesForAnybody;
        let place = (0, name);
        let (outcome, is_there) = self.decide(name, |engine, lock, now| {
            let holder = tokens_in(lock, now).into_iter().next();
            let token = match &holder {
                Some(holder) if for_anybody => request::token(holder, Limits::FACTS)?,
                _ => token,
            };
            let released = engine.release_in_line(place, lock, token, queued.as_ref(), now);
            if all_go && matches!(released.0, Released::Released { .. }) {
                for token in tokens_in(lock, now) {
                    engine.release(lock, request::token(&token, Limits::FACTS)?, now);
                }
            }
            Ok(released)
        })?;
        let hands_over = is_handed_over && matches!(outcome, Released::Released { .. });
        self.look_at(name, Look::default().handing_over(hands_over));
        self.carry_out();
        let is_out_of_line = queued.is_some() && !is_there;
        Ok(if is_out_of_line { ReleaseReply::NotInLine } else { outcome.into() }.into())
    }

    /// The line entry that a request's ticket asks for.
    fn queued<'a>(&self, queue: Queue<'a>, mode: Mode, connection: u64) -> Queued<'a> {
        Queued {
            ticket: queue.ticket,
            channel: queue.channel,
            deadline: self.now().after(queue.wait),
            connection: ConnectionId(connection),
            mode,
            limit: self.engine.waiter_limit(self.callers.offer.max_waiters),
            direct: None,
        }
    }

    /// Whether the ticket has been called.
    fn has_called(&self, name: &[u8], ticket: &Ticket) -> bool {
        self.reserved_for(name).contains(ticket) || self.callers.has_called_in_vain(name, ticket)
    }

    /// The number of waiters for a lock.
    pub(crate) fn waiters(&self, name: &str) -> usize {
        self.engine.line((0, name.as_bytes())).map_or(0, Line::len)
    }

    fn reserved_for(&self, name: &[u8]) -> Vec<Ticket> {
        let line = self.engine.line((0, name));
        line.into_iter().flat_map(Line::reserved_for).cloned().collect()
    }

    /// Serves the line of a lock.
    fn serve_waiters(&mut self, name: &[u8]) {
        self.look_at(name, Look::default());
        self.carry_out();
    }

    fn look_at(&mut self, name: &[u8], mut look: Look) {
        let (now, before) = (self.now(), self.reserved_for(name));
        loop {
            match self.engine.serve_next((0, name), &mut look, now, RESERVE) {
                Turning::Over => break,
                Turning::On => {}
                Turning::Availability => {
                    let lock = self.locks.get(name);
                    let of = |lock| self.engine.availability(lock, now);
                    look.availability = Some(lock.map_or(Availability::Free, of));
                }
                Turning::Gate => look.gate = Some(Gate::Open),
                Turning::Wake(ticket, channel) => {
                    self.callers.publish(&channel, &Published::Turn(ticket));
                }
                Turning::GrantTo(grantee) => {
                    look.availability = self.grant_to(name, &grantee);
                }
                Turning::GrantCalls(_) => panic!("the client never blocks"),
            }
        }
        let line = self.engine.line((0, name));
        let is_in_line =
            |ticket: &Ticket| line.is_some_and(|line| line.has(&Waiter::Ticket(ticket.clone())));
        let lapsed = before.iter().filter(|ticket| !is_in_line(ticket)).count();
        self.callers.tally.lapsed += lapsed as u64;
        if self.defect == Defect::CallsInQuarantine {
            self.call_in_vain(name, now);
        }
    }

    /// Grants a handed-over lock to the first ticket in line, and notifies it.
    fn grant_to(&mut self, name: &[u8], grantee: &Grantee) -> Option<Availability> {
        let (now, max_ttl) = (self.now(), self.max_ttl);
        let decided =
            self.decide(name, |engine, lock, now| engine.grant_to(lock, grantee, max_ttl, now));
        let (Acquired::Granted { fence, .. }, availability) = decided.ok()? else { return None };
        let (ticket, number) = (grantee.ticket.clone(), grantee.number);
        let message = Published::Granted { ticket, fence, number };
        let is_told = self.callers.publish(&grantee.channel, &message);
        self.engine.granted_to((0, name), grantee, is_told, now);
        if is_told {
            self.callers.granted.push((name.to_vec(), grantee.clone(), fence));
            return Some(availability);
        }
        let token = request::token(&grantee.token, Limits::FACTS).expect("it was read before");
        let _ = self.decide(name, |engine, lock, now| Ok(engine.release(lock, token, now)));
        None
    }

    /// Calls the first waiter in line for a lock that is free but not granted.
    fn call_in_vain(&mut self, name: &[u8], now: Instant) {
        let is_held = self.locks.get(name).is_some_and(|lock| lock.is_held(now));
        let line = self.engine.line((0, name)).filter(|_| self.is_in_quarantine() && !is_held);
        if let Some(line) = line
            && let Turn::Wake { ticket, channel } = line.clone().serve(now, RESERVE, usize::MAX)
        {
            self.callers.publish_in_vain(name, channel, ticket);
        }
    }

    /// Carries out the effects that the engine has requested.
    pub(crate) fn carry_out(&mut self) {
        while let Some(effect) = self.engine.take_effect() {
            match effect {
                Effect::SetAlarm(at) => self.alarm_at = Some(at),
                Effect::Ring => self.look_at_lines(),
                Effect::Part(..) => panic!("the client never blocks"),
            }
        }
    }

    /// Serves all lines that are due.
    fn look_at_lines(&mut self) {
        self.engine.answer_ring();
        loop {
            let before = self.engine.waiters();
            let batch = self.engine.next_batch(self.now());
            self.callers.tally.hung_up += (before - self.engine.waiters()) as u64;
            let Some(names) = batch else { break };
            for (database, name) in names {
                let look = self.engine.look_of_ring((database, &name));
                self.look_at(&name, look);
            }
        }
    }

    /// Handles the end of a connection.
    pub(crate) fn hang_up(&mut self, connection: u64) {
        self.callers.hang_up(connection);
        self.engine.disconnected(ConnectionId(connection));
        self.carry_out();
    }

    /// Handles an alarm that went off.
    pub(crate) fn ring(&mut self) {
        self.callers.rang();
        self.engine.rang();
        self.carry_out();
    }

    /// The true time until the alarm that the engine asked for, if it needs a new timer.
    pub(crate) fn alarm(&mut self) -> Option<Duration> {
        let at = self.alarm_at.take()?;
        let is_news = self.callers.set_alarm(at);
        is_news.then(|| self.clock.true_length(self.now().until(at).into()))
    }

    fn extend(
        &mut self,
        name: &[u8],
        claim: Claim<'_>,
        fencing: Fencing<'_>,
    ) -> Result<Reply, Refusal> {
        if self.defect == Defect::KeepsOutBelowItsFloor && self.is_above(name, fencing) {
            return Ok(ExtendReply::NotHeld.into());
        }
        let wall = self.clocks().wall;
        let outcome = self.decide(name, |engine, lock, now| {
            engine.extend(lock, claim, fencing, Clocks { now, wall })
        })?;
        let repairs = matches!(fencing, Fencing::Repair { .. });
        self.repaired += u64::from(repairs && matches!(outcome, Extended::Extended { .. }));
        let is_provisional = matches!(outcome, Extended::Extended { is_counted: false, .. });
        self.provisional += u64::from(is_provisional);
        self.serve_waiters(name);
        let waits = self.waits_with_authority();
        let counts_at_once = waits && self.defect == Defect::CountsInWait;
        let reply = ExtendReply::from(outcome);
        if waits {
            self.member.note_extension(reply);
        }
        let reply = match reply {
            ExtendReply::Provisional if self.defect == Defect::CountsProvisional => {
                ExtendReply::Extended
            }
            ExtendReply::Provisional | ExtendReply::Carried if counts_at_once => {
                ExtendReply::Extended
            }
            ExtendReply::Provisional if waits && self.defect == Defect::CarriesRemoved => {
                ExtendReply::Carried
            }
            reply => reply,
        };
        Ok(reply.into())
    }

    /// Whether a repair meets a free lock at a node that grants and has issued larger fences.
    fn is_above(&self, name: &[u8], fencing: Fencing<'_>) -> bool {
        let Fencing::Repair { fence, .. } = fencing else { return false };
        let now = self.now();
        let counter = self.locks.get(name).map_or(Fence::ZERO, Lock::counter);
        !self.locks.get(name).is_some_and(|lock| lock.is_held(now))
            && self.engine.promises().quarantine(now).is_none()
            && counter.max(self.engine.promises().floor()) > fence
    }

    /// Whether the node does not grant anything yet.
    pub(crate) fn is_in_quarantine(&self) -> bool {
        self.engine.promises().quarantine(self.now()).is_some()
    }

    /// The fence below which no lock starts.
    pub(crate) fn floor(&self) -> u64 {
        self.engine.promises().floor().get()
    }

    /// Raises the floor to cover fences issued under names that are gone.
    pub(crate) fn raise_floor(&mut self, floor: u64) {
        let floor = Fence::new(floor).expect("a small fence");
        self.decide(b"", |engine, _, _| engine.lift_floor(floor)).expect("the disk works");
    }

    fn raise(&mut self, name: &[u8], token: Token<'_>, fence: Fence) -> Result<Reply, Refusal> {
        let wall = self.clocks().wall;
        let outcome = self.decide(name, |engine, lock, now| {
            engine.raise(lock, token, fence, Clocks { now, wall })
        })?;
        Ok(RaiseReply::from(outcome).into())
    }

    fn info(&self, name: &[u8]) -> Reply {
        let lock = self.locks.get(name).cloned().unwrap_or_default();
        lock_info::write(&self.engine.account_of((0, name), &lock, self.now()))
    }
}

/// The live leases of a lock.
fn standing(lock: &Lock, now: Instant) -> impl Iterator<Item = Lease<'_>> {
    lock.written_leases().filter(move |lease| now <= lease.ends_at)
}

/// The tokens of the live leases.
fn tokens_in(lock: &Lock, now: Instant) -> Vec<Vec<u8>> {
    standing(lock, now).map(|lease| lease.token.as_bytes().to_vec()).collect()
}

/// The lock, with all its leases counted.
fn counted(lock: &Lock, now: Instant) -> Lock {
    let mut counted = Lock::free(lock.counter(), now);
    for lease in lock.written_leases() {
        counted.apply(Lease { is_provisional: false, ..lease }, now);
    }
    counted
}

fn text(text: impl Into<Vec<u8>>) -> Reply {
    Reply::Text(text.into().into())
}

/// A server's reply to an unknown command.
const UNKNOWN: &str = "ERR unknown command 'HELLO'";

impl Misfit {
    pub(crate) const ALL: [Misfit; 8] = [
        Misfit::NoModule,
        Misfit::NoPermission,
        Misfit::OtherType,
        Misfit::ShortTtl,
        Misfit::Garbage,
        Misfit::Loading,
        Misfit::Replica,
        Misfit::NoReplicas,
    ];

    const fn reply(self) -> &'static [u8] {
        match self {
            Misfit::NoModule => b"-ERR unknown command 'LOCK.ACQUIRE'\r\n",
            Misfit::NoPermission => b"-NOPERM this user has no permissions\r\n",
            Misfit::OtherType => b"-WRONGTYPE Operation against a key of another type\r\n",
            Misfit::ShortTtl => b"-BADTTL ttl is not a number from 1 to 100\r\n",
            Misfit::Garbage => b"HTTP/1.1 400 Bad Request\r\n",
            Misfit::Loading => b"-LOADING the data set is being loaded\r\n",
            Misfit::Replica => b"-READONLY a replica writes nothing\r\n",
            Misfit::NoReplicas => b"-NOREPLICAS not enough good replicas to write\r\n",
        }
    }
}
