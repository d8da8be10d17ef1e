//! One simulated server: a key space, a disk, clocks and connections around the engine's `Node`.
//!
//! The node decides; what it asks for is carried out here, as the module does it: a promise is on
//! the disk before it is used.

use std::collections::BTreeMap;
use std::time::Duration;

use lockmod::codec::state::{decode_state, encode_state};
use lockmod::codec::{decode_lock, encode_lock, hash_lock};
use lockmod::engine::{
    Acquired, Availability, Caution, Ceilings, Census, Change, Claim, Clocks, ConnectionId, Direct,
    Effect, Extended, Fence, Fencing, Found, Gate, Grantee, Instant, Inventory, Lease, Line,
    Loaded, Lock, Look, Millis, Mode, Node as Engine, QuarantineReason, Queued, Refusal, Released,
    Saved, Stated, Statement, Stop, Ticket, Token, Turn, Turning, UnixTime, Waiter,
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
/// The time of day, about.
pub(crate) const WALL_MS: u64 = 1_700_000_000_000;
const TOKEN_LENGTH_MAX: usize = 64;

/// What is wrong with a node on purpose: each must be caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Defect {
    #[default]
    None,
    /// It comes back from a crash and grants at once.
    NoQuarantine,
    /// It comes back from a crash and counts from where its data set is.
    NoFenceCeiling,
    /// It gives a lock back to whoever asks.
    ReleasesForAnybody,
    /// Whoever asks for a lock that is held is answered as its holder.
    GrantsToAnybody,
    /// Its leases are on the wall clock.
    LeasesOnTheWallClock,
    /// It calls those in line while it would refuse what they then ask for.
    CallsInQuarantine,
    /// It dates leases by the wall clock as it reads, and believes it when it starts again.
    DatesByTheWallClock,
    /// It vouches for a lease that was repaired in its quarantine.
    CountsProvisional,
    /// It vouches in its quarantine for a lease that was restored there.
    CountsRestored,
    /// It gives no lease back to a holder whose fence is below its own.
    KeepsOutBelowItsFloor,
    /// A reader is answered as a holder beside a writer.
    ReadsBesideAWriter,
    /// The release of one reader is that of all.
    ReleasesAllReaders,
    /// Readers pass those who stand in line.
    LetsReadersPass,
    /// It does not say which server it is.
    HidesItsName,
    /// A master of a group does not ask whether its replicas support it.
    DecidesWithoutAuthority,
    /// A node that was promoted does not wait for the leases of other masters.
    PromotedDoesNotWait,
    /// What it extends while it waits for leases of other masters counts at once.
    CountsInWait,
    /// Its replicas support it from when it hears of them, and not from when it has sent to them.
    SupportFromReceipt,
    /// A replica knows of the longest lease what it was told last, whenever that was sent.
    BelievesTheLastHeartbeat,
}

/// What a node keeps through a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    Nothing,
    /// The data set as it was saved last.
    Snapshots,
    /// Every write before its reply, in an append-only file.
    Always,
}

/// A server that is there and does not serve as it should.
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
    /// Where in the stream of its group that was.
    place: Option<Place>,
    /// The append-only file: the last that was stated of each name.
    stated: BTreeMap<Vec<u8>, Vec<Restated>>,
    is_full: bool,
}

/// How a node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process is killed; the machine goes on.
    Killed,
    /// The machine goes down: its monotonic clock starts anew.
    PowerLoss,
    /// In order, with or without saving.
    Shutdown { saves: bool },
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) clock: Clock,
    wall_minus_boot_ms: u64,
    pub(crate) boot: u64,
    pub(crate) number: usize,
    /// Counts starts: who answers is another server each time.
    pub(crate) run: u64,
    pub(crate) is_up: bool,
    pub(crate) misfit: Option<Misfit>,
    persistence: Persistence,
    pub(crate) defect: Defect,
    pub(crate) engine: Engine,
    /// Its `lockmod.max-ttl`.
    pub(crate) max_ttl: Millis,
    pub(crate) member: Member,
    pub(crate) locks: BTreeMap<Vec<u8>, Lock>,
    pub(crate) callers: Callers,
    /// When the node looks again by itself, if nobody knows of it yet.
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
    pub(crate) fn start(
        number: usize,
        clock: Clock,
        persistence: Persistence,
        (offer, member, max_ttl): (Offer, Member, Millis),
        defect: Defect,
    ) -> Node {
        let none = Clocks { now: Instant::default(), wall: UnixTime::default() };
        // The servers of a group agree on the time of day.
        let ahead = if member.replicas > 0 { Millis::round_down(clock.now()).get() } else { 0 };
        let mut node = Node {
            clock,
            wall_minus_boot_ms: WALL_MS - ahead,
            boot: 1,
            number,
            run: 0,
            is_up: false,
            misfit: None,
            persistence,
            defect,
            engine: Engine::new(),
            max_ttl,
            member,
            locks: BTreeMap::new(),
            callers: Callers::new(offer),
            alarm_at: None,
            statement: Statement::new(Saved {
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
                stop: None,
            }),
            disk: Disk::default(),
            repaired: 0,
            provisional: 0,
            quarantines: 0,
            restored: 0,
        };
        node.start_again();
        node
    }

    /// Both clocks, as what leaves the process is dated.
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

    /// Leases that stand.
    pub(crate) fn held_tokens(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let now = self.now();
        let leases = |(name, lock): (&Vec<u8>, &Lock)| {
            let name = name.clone();
            tokens_in(lock, now).into_iter().map(move |token| (name.clone(), token))
        };
        self.locks.iter().flat_map(leases).collect()
    }

    /// Whether a lease of this token stands.
    pub(crate) fn is_held_by(&self, name: &[u8], token: &[u8]) -> bool {
        let lock = self.locks.get(name);
        lock.is_some_and(|lock| standing(lock, self.now()).any(|l| l.token.as_bytes() == token))
    }

    /// What it knows of a lock, and has on its disk; nothing while it is down.
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
        // A floor that has jumped after a wait is written when it is used.
        if self.is_in_group() && issued.get() <= ceiling {
            ceiling = ceiling.max(counter);
        }
        Some(View { leases, counter, ceiling, is_quarantined })
    }

    /// What there is, with leases counted from `since`.
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

    /// Not while the state file cannot tell of it: see "Assumed" in docs/verification.md.
    pub(crate) fn step_wall_clock(&mut self, by_ms: i64) {
        if !self.is_up || self.disk.is_full {
            return;
        }
        self.wall_minus_boot_ms = self.wall_minus_boot_ms.saturating_add_signed(by_ms);
    }

    pub(crate) fn set_disk_full(&mut self, is_full: bool) {
        if self.is_up {
            // The server's cron looks at the clock all the time: a step from before is on the disk.
            self.notice_step();
        }
        self.disk.is_full = is_full;
    }

    /// An operator's DEL.
    pub(crate) fn delete(&mut self, name: &[u8]) {
        if let Some(lock) = self.locks.remove(name) {
            self.engine.forget(&lock);
            self.disk.stated.remove(name);
            if self.is_master() {
                self.member.tell_deleted(name);
            }
            self.engine.line_changed((0, name));
            self.carry_out();
        }
    }

    /// An operator's DUMP of a lock that is held.
    pub(crate) fn dump(&self, name: &[u8]) -> Option<Vec<u8>> {
        let lock = self.locks.get(name).filter(|lock| self.is_up && lock.is_held(self.now()))?;
        // It is read on another machine, whose boot is another.
        Some(self.encode(lock, 0))
    }

    /// An operator's RESTORE under a name that is free, as `load` in `src/module/datatype.rs`.
    /// Answers whose leases they are.
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
        self.engine.loaded(&loaded.lock, loaded.floor);
        self.write_ahead().ok()?;
        self.locks.insert(name.to_vec(), loaded.lock);
        self.state(name, &Lock::default());
        self.restored += 1;
        Some(tokens)
    }

    /// Writes what locks need that came in.
    pub(crate) fn write_ahead(&mut self) -> Result<(), Refusal> {
        if let Some(ceilings) = self.engine.take_request() {
            self.statement.raise(ceilings);
            self.write_state()?;
            self.engine.persisted(self.statement.allowed());
        }
        Ok(())
    }

    /// Saves the data set, where the node does that.
    pub(crate) fn save(&mut self) {
        if self.persistence == Persistence::Snapshots {
            self.write_data();
        }
    }

    pub(crate) fn end(&mut self, end: End, loses_data: bool) {
        // The server's cron has looked at the clock: a step and a loss of power within a tenth of a
        // second are beyond what is promised.
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
            // The wall clock goes on; the other one starts anew.
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
        // Somebody has made room on the disk.
        self.disk.is_full = false;
        let found = self.found();
        self.member.restart(self.disk.place);
        self.engine = Engine::new();
        if self.defect != Defect::DecidesWithoutAuthority {
            self.engine.rest_on(self.member.replicas);
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

    /// Writes a lock as these facts have it.
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
            Some(bytes) => decode_state(bytes).map_or(Found::Damaged, |mut saved| {
                if self.defect == Defect::NoFenceCeiling {
                    saved.ceilings.fence = Fence::ZERO;
                }
                Found::Present(saved)
            }),
        }
    }

    /// The data set has been read.
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
        self.statement = Statement::new(begun.saved);
        self.change_state(Change::Begun).expect("the disk works at a start");
        self.quarantines += u64::from(begun.recovery.quarantine.is_some());
    }

    // ---- the disk ----

    /// Writes what the state file has to say; only then may it be used.
    fn write_state(&mut self) -> Result<(), Refusal> {
        let Some(draft) = self.statement.draft(self.clocks()) else { return Ok(()) };
        if self.disk.is_full {
            return Err(Refusal::StateFile { cause: "no space left on device".into() });
        }
        self.disk.state = Some(encode_state(&draft.saved));
        self.statement.written(draft);
        Ok(())
    }

    /// Changes what the state file says.
    pub(crate) fn change_state(&mut self, change: Change) -> Result<(), Refusal> {
        self.statement.change(change);
        let written = self.write_state();
        self.engine.changed(change, self.statement.allowed(), written.is_ok());
        written
    }

    /// Writes again what could not be written.
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

    /// As `save` in `src/module/datatype.rs`.
    pub(crate) fn encode(&self, lock: &Lock, boot: u64) -> Vec<u8> {
        let lock = self.engine.as_saved(lock, self.now());
        encode_lock(&lock, self.engine.promises().floor(), self.dated(), boot)
    }

    /// States in the append-only file what a request has made of this lock. What it has left alone
    /// is not dated again.
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

    /// Writes facts to the append-only file, where the node has one.
    pub(crate) fn keep_facts(&mut self, name: &[u8], facts: Vec<Restated>) {
        if self.persistence == Persistence::Always {
            self.disk.stated.insert(name.to_vec(), facts);
        }
    }

    /// A data set has replaced the node's own: its bytes, as its master has sent them.
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

    /// Carries out a command that came on this connection: the reply's bytes. Whom the node calls
    /// thereupon says [`Callers::calls`].
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
            // Which argument it names depends on how many there are.
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

    /// Asks the engine until nothing more has to be on the disk first.
    fn decide<T>(
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
                    let wanted = self.statement.raise(ceilings);
                    if let Err(refusal) = self.write_state() {
                        self.statement.withdraw(wanted);
                        self.engine.request_failed();
                        break Err(refusal);
                    }
                    self.engine.persisted(self.statement.allowed());
                }
            }
        };
        // Writing ahead comes too late to be of use: the worst case.
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
        // That the disk is full is found out by asking for what needs it.
        // So is that its replicas support it no more.
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

    /// What a ticket brings with it.
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

    /// How many wait for a lock.
    pub(crate) fn waiters(&self, name: &str) -> usize {
        self.engine.line((0, name.as_bytes())).map_or(0, Line::len)
    }

    fn reserved_for(&self, name: &[u8]) -> Vec<Ticket> {
        let line = self.engine.line((0, name));
        line.into_iter().flat_map(Line::reserved_for).cloned().collect()
    }

    /// Looks at the line before a lock.
    fn serve_waiters(&mut self, name: &[u8]) {
        self.settle_one(name);
        self.carry_out();
    }

    fn settle_one(&mut self, name: &[u8]) {
        self.look_at(name, Look::default());
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

    /// Grants a lock that was handed over to the first ticket in line, and tells it.
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

    /// Calls whoever is first in line for a lock that is free, and not granted.
    fn call_in_vain(&mut self, name: &[u8], now: Instant) {
        let is_held = self.locks.get(name).is_some_and(|lock| lock.is_held(now));
        let line = self.engine.line((0, name)).filter(|_| self.is_in_quarantine() && !is_held);
        if let Some(line) = line
            && let Turn::Wake { ticket, channel } = line.clone().serve(now, RESERVE, usize::MAX)
        {
            self.callers.publish_in_vain(name, channel, ticket);
        }
    }

    /// Does what the node has said is to be done.
    pub(crate) fn carry_out(&mut self) {
        while let Some(effect) = self.engine.take_effect() {
            match effect {
                Effect::SetAlarm(at) => self.alarm_at = Some(at),
                Effect::Ring => self.look_at_lines(),
                Effect::Part(..) => panic!("the client never blocks"),
            }
        }
    }

    /// What is to be looked at is.
    fn look_at_lines(&mut self) {
        self.engine.answer_ring();
        loop {
            let before = self.engine.waiter_limit(0).waiters;
            let batch = self.engine.next_batch(self.now());
            self.callers.tally.hung_up += (before - self.engine.waiter_limit(0).waiters) as u64;
            let Some(names) = batch else { break };
            names.iter().for_each(|(_, name)| self.settle_one(name));
        }
    }

    /// A connection is gone.
    pub(crate) fn hang_up(&mut self, connection: u64) {
        self.callers.hang_up(connection);
        self.engine.disconnected(ConnectionId(connection));
        self.carry_out();
    }

    /// The alarm goes off.
    pub(crate) fn ring(&mut self) {
        self.callers.rang();
        self.engine.rang();
        self.carry_out();
    }

    /// In what true time something will be due, if nobody knows of it yet.
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
            reply => reply,
        };
        Ok(reply.into())
    }

    /// Whether a repair finds a free lock at a node that grants, and has issued larger fences.
    fn is_above(&self, name: &[u8], fencing: Fencing<'_>) -> bool {
        let Fencing::Repair { fence, .. } = fencing else { return false };
        let now = self.now();
        let counter = self.locks.get(name).map_or(Fence::ZERO, Lock::counter);
        !self.locks.get(name).is_some_and(|lock| lock.is_held(now))
            && self.engine.promises().quarantine(now).is_none()
            && counter.max(self.engine.promises().floor()) > fence
    }

    /// Whether it grants nothing yet.
    pub(crate) fn is_in_quarantine(&self) -> bool {
        self.engine.promises().quarantine(self.now()).is_some()
    }

    /// The fence below which no lock starts.
    pub(crate) fn floor(&self) -> u64 {
        self.engine.promises().floor().get()
    }

    /// What it issued under names that are gone.
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

/// The leases of a lock that stand.
fn standing(lock: &Lock, now: Instant) -> impl Iterator<Item = Lease<'_>> {
    lock.written_leases().filter(move |lease| now <= lease.ends_at)
}

/// Whose they are.
fn tokens_in(lock: &Lock, now: Instant) -> Vec<Vec<u8>> {
    standing(lock, now).map(|lease| lease.token.as_bytes().to_vec()).collect()
}

/// The lock with leases that all count.
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

/// What a server says to what it does not know.
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
