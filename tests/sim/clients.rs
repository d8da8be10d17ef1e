//! The programs' work: many tasks that compete for few locks, in every way that the client offers.
//!
//! Events are recorded in true time, in favour of the client: a call before it is made, a return
//! after it, and the end of a validity as the guard reports it, never later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockmod::client::{Acquire, Guard, Locker, Lost, ReleaseError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::coverage::Reached;
use crate::history::{Acquisition, Micros};
use crate::net::Net;
use crate::shadow::Use;
use crate::world::Process;

/// How often a holder checks whether it still holds the lock.
const LOOK: Duration = Duration::from_millis(15);
/// Clocks differ from true time by less than this, and thus from each other by less than the drift
/// allowance.
pub(crate) const FAST_PPM_MAX: i64 = 4_500;

/// The records of all tasks of a run.
#[derive(Debug)]
pub(crate) struct Log(Mutex<Notes>);

#[derive(Debug)]
pub(crate) struct Notes {
    began_at: Instant,
    pub(crate) acquisitions: Vec<Acquisition>,
    pub(crate) per_lock: Vec<u64>,
    pub(crate) reached: Reached,
    /// Leases that no task is required to release.
    pub(crate) leaked: BTreeSet<Vec<u8>>,
    /// Other violations.
    pub(crate) complaints: Vec<String>,
    pub(crate) is_over: bool,
}

impl Log {
    pub(crate) fn new(locks: usize) -> Arc<Log> {
        Arc::new(Log(Mutex::new(Notes {
            began_at: Instant::now(),
            acquisitions: Vec::new(),
            per_lock: vec![0; locks],
            reached: Reached::default(),
            leaked: BTreeSet::new(),
            complaints: Vec::new(),
            is_over: false,
        })))
    }

    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().expect("one thread, which does not go on after a panic")
    }

    pub(crate) fn now(&self) -> Micros {
        micros(self.notes().began_at.elapsed())
    }

    fn reach(&self, outcome: &'static str) {
        self.notes().reached.note(outcome);
    }
}

/// The environment of a program: the nodes, the locks, and the possible faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    pub(crate) nodes: usize,
    pub(crate) locks: usize,
    /// The longest lease that nodes grant.
    pub(crate) max_ttl: Duration,
    /// The share of wishes that ask for short leases.
    pub(crate) short_share: f64,
    /// The longest that a holder of a long lease works.
    pub(crate) length_max: Duration,
    /// Whether no clock changes its rate.
    pub(crate) is_steady: bool,
    /// Whether nothing is ever lost, and no node crashes.
    pub(crate) is_gentle: bool,
    /// Whether an operator deletes locks that are held.
    pub(crate) is_forced: bool,
    /// How long this program waits for a node's answer.
    pub(crate) timeout: Duration,
}

pub(crate) struct Client {
    pub(crate) locker: Locker,
    pub(crate) process: Arc<Process>,
    pub(crate) log: Arc<Log>,
    net: Arc<Net>,
    pub(crate) number: usize,
    pub(crate) around: Surroundings,
    random: StdRng,
    /// The number of acquisitions named so far.
    named: u64,
}

/// How a lock is held and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Release,
    Drop,
    /// The program forgets the lock.
    Leak,
    /// The holder works until it is told to stop.
    UntilLost,
}

/// The lock that a task asks for, and how.
struct Wish {
    lock: usize,
    /// The name of the acquisition, which is unique.
    label: String,
    /// It asks as a reader.
    reads: bool,
    /// A writer becomes a reader after some time.
    downgrades: bool,
    ttl: Duration,
    wait: Duration,
    length: Duration,
    manner: Manner,
    renews: bool,
    max_hold: Option<Duration>,
}

impl Client {
    pub(crate) fn new(
        locker: Locker,
        process: &Arc<Process>,
        (log, net): (&Arc<Log>, &Arc<Net>),
        (number, seed): (usize, u64),
        around: Surroundings,
    ) -> Client {
        let random = StdRng::seed_from_u64(seed ^ ((number as u64 + 1) << 40));
        let (process, log, net) = (Arc::clone(process), Arc::clone(log), Arc::clone(net));
        Client { locker, process, log, net, number, around, random, named: 0 }
    }

    pub(crate) async fn run(mut self) {
        while !self.log.notes().is_over {
            self.turn().await;
            self.pause(0, 40).await;
        }
    }

    async fn turn(&mut self) {
        match self.random.random_range(0..100) {
            0..55 => self.acquire().await,
            55..66 => self.cancel().await,
            66..73 => self.nest().await,
            73..80 => self.acquire_many().await,
            80..87 => self.with().await,
            87..92 => self.look_around().await,
            92..94 => self.ask_for_nonsense().await,
            _ => self.act_by_token().await,
        }
    }

    // ---- ways to acquire ----

    async fn acquire(&mut self) {
        let wish = self.wish();
        self.fulfil(wish).await;
    }

    /// Acquires lock 0 without waiting, renews it, and releases it after `length`.
    pub(crate) async fn keep(mut self, ttl: Duration, length: Duration) {
        let wish = Wish {
            lock: 0,
            label: self.label(),
            reads: false,
            downgrades: false,
            ttl,
            wait: Duration::ZERO,
            length,
            manner: Manner::Release,
            renews: true,
            max_hold: None,
        };
        self.fulfil(wish).await;
    }

    async fn fulfil(&mut self, wish: Wish) {
        let acquire = self.ask(&wish);
        let called_at = self.log.now();
        let limit = self.limit(wish.wait);
        match self.bounded("acquire", limit, acquire).await {
            Ok(guard) => self.hold(guard, called_at, &wish).await,
            Err(error) => self.log.notes().reached.acquire_error(&error),
        }
    }

    /// Cancels the acquisition at a random point.
    async fn cancel(&mut self) {
        let wish = self.wish();
        let acquire = self.ask(&wish).into_future();
        let patience = Arc::clone(&self.process).sleep(self.millis(0, 120));
        let called_at = self.log.now();
        let acquired = tokio::select! {
            biased;
            () = patience => None,
            outcome = acquire => Some(outcome),
        };
        match acquired {
            None => self.log.reach("acquire: cancelled"),
            Some(Ok(guard)) => self.hold(guard, called_at, &wish).await,
            Some(Err(error)) => self.log.notes().reached.acquire_error(&error),
        }
    }

    async fn nest(&mut self) {
        let mut wish = self.wish();
        wish.manner = Manner::Release;
        let holder = self.locker.holder();
        let name = name(wish.lock);
        let called_at = self.log.now();
        let limit = self.limit(WAIT);
        let inner_reads = wish.reads || self.random.random_bool(0.3);
        let acquire = |reads: bool| {
            let acquire = holder.acquire(&name).label(&wish.label);
            if reads { acquire.shared() } else { acquire }
        };
        let outer = match self.bounded("holder", limit, acquire(wish.reads)).await {
            Ok(outer) => outer,
            Err(error) => return self.log.notes().reached.acquire_error(&error),
        };
        let inner = match self.bounded("nested", limit, acquire(inner_reads)).await {
            Ok(inner) => inner,
            Err(error) => {
                self.log.notes().reached.acquire_error(&error);
                return self.hold(outer, called_at, &wish).await;
            }
        };
        // Two leases of readers may have the same fence.
        let is_lost = outer.is_lost();
        if inner.fence() == outer.fence() && !is_lost {
            self.log.reach("holder: nested");
            let outcome = inner.release().await;
            self.complain_if(outcome.is_err(), "a share of a lease was not given back");
            self.hold(outer, called_at, &wish).await;
        } else {
            // The first lease was lost before the second call.
            self.complain_if(!is_lost, "a lease that stands was acquired again");
            drop(outer);
            wish.reads = inner_reads;
            self.hold(inner, called_at, &wish).await;
        }
    }

    async fn acquire_many(&mut self) {
        let label = self.label();
        let reads: Vec<bool> =
            (0..self.around.locks).map(|_| self.random.random_bool(0.4)).collect();
        let names = |as_reader: bool| {
            let those = (0..self.around.locks).rev().filter(|lock| reads[*lock] == as_reader);
            those.map(name).collect::<Vec<_>>()
        };
        let acquire = self.locker.acquire_many(names(false)).and_shared(names(true)).label(&label);
        let called_at = self.log.now();
        let limit = self.limit(WAIT) + (self.around.timeout * 9) * self.around.locks as u32;
        let guards = match self.bounded("many", limit, acquire).await {
            Ok(guards) => guards,
            Err(error) => {
                let reached = &mut self.log.notes().reached;
                reached.note("acquire many: failed");
                return reached.acquire_error(&error);
            }
        };
        self.log.reach("acquire many: won");
        let mut all: Vec<Acquisition> = (0..self.around.locks)
            .map(|lock| {
                let guard = guards.get(name(lock)).expect("one guard for each");
                self.begin((lock, reads[lock]), called_at, guard.fence().get())
            })
            .collect();
        let length = self.millis(0, 400);
        let start = Instant::now();
        let mut is_valid = true;
        while is_valid && start.elapsed() < length {
            for noted in &mut all {
                let guard = guards.get(name(noted.lock)).expect("one guard for each");
                is_valid &= self.look(guard, noted, &label);
            }
            Arc::clone(&self.process).sleep(LOOK).await;
        }
        let released_at = self.log.now();
        for mut noted in all {
            noted.released_at = Some(released_at);
            self.log.notes().acquisitions.push(noted);
        }
        let limit = self.around.timeout * self.around.locks as u32;
        let outcome = self.bounded("release many", limit, guards.release()).await;
        self.log.notes().reached.release(&outcome);
    }

    async fn with(&mut self) {
        let lock = self.random.random_range(0..self.around.locks);
        let length = self.millis(0, 6_000);
        let is_reader = self.random.random_bool(0.4);
        let called_at = self.log.now();
        let (log, process, number) = (&self.log, &self.process, self.number);
        let mut noted = None;
        let work = async |fence: lockmod::engine::Fence| {
            let returned_at = log.now();
            log.notes().per_lock[lock] += 1;
            let noted = noted.insert(Acquisition {
                lock,
                client: number,
                called_at,
                returned_at,
                fence: Some(fence.get()),
                valid_until: returned_at,
                released_at: None,
                is_reader,
                downgraded_at: None,
            });
            let start = Instant::now();
            while start.elapsed() < length {
                Arc::clone(process).sleep(LOOK).await;
                // The holder's work runs only while it holds the lock; otherwise safe work would be
                // impossible.
                noted.valid_until = log.now();
            }
        };
        let acquire = self.locker.acquire(name(lock));
        let acquire = if is_reader { acquire.shared() } else { acquire };
        let outcome = acquire.with(work).await;
        let mut notes = self.log.notes();
        match &outcome {
            Ok(()) => notes.reached.note("with: done"),
            Err(error) => notes.reached.with_error(error),
        }
        notes.acquisitions.extend(noted);
    }

    /// Leaks a lease, and uses it by its token.
    async fn act_by_token(&mut self) {
        let mut wish = self.wish();
        wish.ttl = Duration::from_secs(2);
        let called_at = self.log.now();
        let guard = match self.ask(&wish).await {
            Ok(guard) => guard,
            Err(error) => return self.log.notes().reached.acquire_error(&error),
        };
        let mut noted = self.begin((wish.lock, wish.reads), called_at, guard.fence().get());
        let mut leaked = {
            self.look(&guard, &mut noted, &wish.label);
            guard.leak()
        };
        self.log.notes().leaked.insert(leaked.token.to_vec());
        let name = std::mem::take(&mut leaked.name);
        noted.released_at = Some(self.log.now());
        self.log.notes().acquisitions.push(noted);
        if self.random.random_bool(0.5) {
            let outcome = self.locker.extend_by_token(&name, &leaked.token).await;
            self.log.notes().reached.extend(&outcome.map(drop));
        }
        let release = self.locker.release_by_token(&name, &leaked.token);
        let outcome = self.bounded("release by token", self.around.timeout, release).await;
        self.log.reach("release: by token");
        self.log.notes().reached.release(&outcome);
    }

    async fn ask_for_nonsense(&mut self) {
        let short = self.locker.acquire("lock-0").ttl(Duration::from_millis(5)).await;
        let label = self.locker.acquire("lock-0").label([b'x'; 129]).await;
        for outcome in [short, label] {
            match outcome {
                Err(error) => self.log.notes().reached.acquire_error(&error),
                Ok(_) => self.complain_if(true, "nonsense was accepted"),
            }
        }
    }

    async fn look_around(&mut self) {
        let name = name(self.random.random_range(0..self.around.locks));
        let nodes = self.around.nodes;
        let infos = self.bounded("info", self.around.timeout, self.locker.info(&name)).await;
        self.complain_if(infos.len() != nodes, "a node is missing");
        if let Err(error) =
            self.bounded("fence", self.around.timeout, self.locker.fence(&name)).await
        {
            self.log.notes().reached.votes(error.nodes());
        }
        let listed =
            self.bounded("list", self.around.timeout * 8 * nodes as u32, self.locker.list()).await;
        self.complain_if(listed.len() != nodes, "a node is missing");
        let settled = self.bounded("settle", self.around.timeout, self.locker.settle()).await;
        self.log.notes().reached.votes(&settled);
    }

    // ---- holding ----

    async fn hold(&mut self, guard: Guard, called_at: Micros, wish: &Wish) {
        let mut noted = self.begin((wish.lock, wish.reads), called_at, guard.fence().get());
        let start = Instant::now();
        let mut is_valid = self.look(&guard, &mut noted, &wish.label);
        let until_lost = wish.manner == Manner::UntilLost;
        let mut lost = Some(Box::pin(guard.lost()));
        while is_valid && (until_lost || start.elapsed() < wish.length) {
            let left = wish.length.saturating_sub(start.elapsed());
            let nap = if until_lost { LOOK } else { LOOK.min(left.max(Duration::from_millis(1))) };
            tokio::select! {
                biased;
                why = async { lost.as_mut().expect("not lost yet").await } => {
                    lost = None;
                    self.log.notes().reached.lost(why);
                    self.look(&guard, &mut noted, &wish.label);
                    break;
                }
                () = Arc::clone(&self.process).sleep(nap) => {}
            }
            if !wish.renews && !until_lost && self.random.random_bool(0.1) {
                self.extend(&guard).await;
            }
            is_valid = self.look(&guard, &mut noted, &wish.label);
            if is_valid && wish.downgrades && guard.is_exclusive() && self.random.random_bool(0.3) {
                self.downgrade(&guard, &mut noted, wish).await;
                is_valid = self.look(&guard, &mut noted, &wish.label);
            }
            self.use_store(&guard, wish);
        }
        let outlived = noted.valid_until > noted.returned_at + micros(wish.ttl) * 102 / 100;
        self.log.notes().reached.note_often("renewed beyond the ttl", u64::from(outlived));
        if wish.manner == Manner::Leak {
            self.log.notes().acquisitions.push(noted);
            let leaked = guard.leak();
            self.log.notes().leaked.insert(leaked.token.to_vec());
            return self.end_of(lost).await;
        }
        self.look(&guard, &mut noted, &wish.label);
        let (left, start) = (guard.validity(), Instant::now());
        let late = (guard.fence().get(), guard.is_exclusive());
        noted.released_at = Some(self.log.now());
        let fence = noted.fence;
        self.log.notes().acquisitions.push(noted);
        if wish.manner == Manner::Drop {
            drop(guard);
        } else {
            let outcome = self.bounded("release", self.around.timeout, guard.release()).await;
            self.log.notes().reached.release(&outcome);
            // The remaining validity was longer than the call took.
            let is_wrong = left > start.elapsed().mul_f64(1.02) && self.around.is_gentle;
            let is_gone = matches!(outcome, Err(ReleaseError::NotHeld(_)));
            let text = format!("a valid lease with fence {fence:?} was not held any more");
            self.complain_if(is_wrong && is_gone, &text);
        }
        self.end_of(lost).await;
        if self.random.random_bool(0.2) {
            self.pause(0, 500).await;
            self.ask_store(wish, late, false);
        }
    }

    /// Admits readers. Sometimes the call is cancelled before all nodes are told.
    async fn downgrade(&mut self, guard: &Guard, noted: &mut Acquisition, wish: &Wish) {
        let patience =
            if self.random.random_bool(0.2) { self.millis(0, 20) } else { self.around.timeout * 2 };
        let name = name(wish.lock);
        let fence = guard.fence().get();
        self.net.universe().shadow.downgraded((name.as_bytes(), &wish.label), fence);
        noted.downgraded_at = Some(self.log.now());
        self.log.reach("downgraded");
        let outcome = tokio::select! {
            biased;
            outcome = guard.downgrade() => Some(outcome),
            () = Arc::clone(&self.process).sleep(patience) => None,
        };
        self.complain_if(guard.is_exclusive(), "a writer did not become a reader");
        if let Some(outcome) = outcome {
            self.log.notes().reached.extend(&outcome);
        }
    }

    /// Now and then, uses the resource that the lock protects.
    fn use_store(&mut self, guard: &Guard, wish: &Wish) {
        if self.random.random_bool(0.3) {
            let is_valid = !guard.validity().is_zero();
            self.ask_store(wish, (guard.fence().get(), guard.is_exclusive()), is_valid);
        }
    }

    /// Writes to or reads from the protected resource. It must not refuse a holder.
    fn ask_store(&mut self, wish: &Wish, (fence, is_exclusive): (u64, bool), is_valid: bool) {
        // A writer always writes: if it read as a reader, its own later writes would be refused.
        let (what, done, refused) = match is_exclusive {
            true => (Use::Write, "store: written", "store: a late write was refused"),
            false => (Use::Read, "store: read", "store: a late read was refused"),
        };
        let name = name(wish.lock);
        let key = (name.as_bytes(), &*wish.label);
        let is_done = self.net.universe().shadow.uses(key, fence, what);
        self.log.reach(if is_done { done } else { refused });
        let is_wrong = is_valid && !is_done && !self.around.is_forced;
        let text = format!("the store has refused a holder: {what:?} {fence} of {}", wish.label);
        self.complain_if(is_wrong, &text);
    }

    /// Waits until the watcher of a lease learns that it is over.
    async fn end_of(&self, lost: Option<impl Future<Output = Lost>>) {
        if let Some(lost) = lost {
            let why = self.bounded("lost", Duration::ZERO, lost).await;
            self.log.notes().reached.lost(why);
        }
    }

    async fn extend(&mut self, guard: &Guard) {
        let patience =
            if self.random.random_bool(0.1) { self.millis(0, 20) } else { self.around.timeout * 2 };
        let outcome = tokio::select! {
            biased;
            outcome = guard.extend() => Some(outcome),
            () = Arc::clone(&self.process).sleep(patience) => None,
        };
        if let Some(outcome) = outcome {
            self.log.notes().reached.extend(&outcome);
        }
    }

    /// Records until when the client may rely on the lock. Returns false if that has passed.
    fn look(&self, guard: &Guard, noted: &mut Acquisition, label: &str) -> bool {
        let now = self.log.now();
        let left = guard.validity();
        if left.is_zero() {
            // Earlier promises remain, although the lease is lost.
            return false;
        }
        let clock = self.process.clock();
        let mut left = clock.true_length(left);
        if !self.around.is_steady {
            // From now on, the clock may run at the maximum rate.
            left = left * 1_000 / (1_000 + 2 * FAST_PPM_MAX as u32 / 1_000 + 1);
        }
        noted.valid_until = noted.valid_until.max(now + micros(left));
        let (fence, until) = (guard.fence().get(), Instant::now() + left);
        let name = name(noted.lock);
        self.net.universe().shadow.relied_on((name.as_bytes(), label), fence, until);
        true
    }

    fn begin(
        &self,
        (lock, is_reader): (usize, bool),
        called_at: Micros,
        fence: u64,
    ) -> Acquisition {
        let returned_at = self.log.now();
        let mut notes = self.log.notes();
        notes.per_lock[lock] += 1;
        notes.reached.note("acquire: won");
        Acquisition {
            lock,
            client: self.number,
            called_at,
            returned_at,
            fence: Some(fence),
            valid_until: 0,
            released_at: None,
            is_reader,
            downgraded_at: None,
        }
    }

    // ---- choices ----

    fn ask(&self, wish: &Wish) -> Acquire {
        let acquire = self.locker.acquire(name(wish.lock)).ttl(wish.ttl).wait(wish.wait);
        let acquire = acquire.renew(wish.renews).label(&wish.label);
        let acquire = if wish.reads { acquire.shared() } else { acquire };
        match wish.max_hold {
            Some(max_hold) => acquire.max_hold(max_hold),
            None => acquire,
        }
    }

    /// A name for one acquisition.
    fn label(&mut self) -> String {
        self.named += 1;
        format!("client-{}-{}", self.number, self.named)
    }

    fn wish(&mut self) -> Wish {
        let label = self.label();
        let reads = self.random.random_bool(0.4);
        let downgrades = !reads && self.random.random_bool(0.3);
        let lock = self.random.random_range(0..self.around.locks);
        let shortest = self.shortest_ttl();
        let ttl = if self.random.random_bool(self.around.short_share) {
            self.millis(shortest, 1_500)
        } else {
            self.millis(3_000, 30_000).min(self.around.max_ttl)
        };
        let (manner, length) = match self.random.random_range(0..100) {
            0..45 => (Manner::Release, self.millis(0, 15)),
            45..60 => (Manner::Drop, self.millis(0, 15)),
            60..75 => (Manner::Release, ttl.mul_f64(self.random.random_range(0.1..0.8))),
            75..87 => (Manner::Release, ttl.mul_f64(self.random.random_range(1.2..2.5))),
            87..93 => (Manner::Leak, ttl.mul_f64(self.random.random_range(0.0..1.5))),
            _ => (Manner::UntilLost, Duration::ZERO),
        };
        let renews = manner != Manner::UntilLost && self.random.random_bool(0.8);
        let capped = manner == Manner::UntilLost && self.random.random_bool(0.5);
        let max_hold = capped.then(|| self.millis(50, 2_000));
        let renews = renews || capped;
        let length = length.min(self.around.length_max);
        let wait =
            if self.random.random_bool(0.3) { Duration::ZERO } else { self.millis(0, 2_000) };
        Wish { lock, label, reads, downgrades, ttl, wait, length, manner, renews, max_hold }
    }

    /// In milliseconds: a timeout is less than a third of the ttl.
    fn shortest_ttl(&self) -> u64 {
        150.max(self.around.timeout.as_millis() as u64 * 3 + 3)
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.random_range(from..=to))
    }

    async fn pause(&mut self, from: u64, to: u64) {
        let length = self.millis(from, to);
        Arc::clone(&self.process).sleep(length).await;
    }

    /// How long an acquisition with this wait may take: the wait, the last attempt, as many raises
    /// as there are nodes, and the query for the holder.
    fn limit(&self, wait: Duration) -> Duration {
        wait + self.around.timeout * (self.around.nodes as u32 + 3)
    }

    /// Records a call that takes longer than allowed.
    async fn bounded<T>(
        &self,
        what: &str,
        limit: Duration,
        call: impl IntoFuture<Output = T>,
    ) -> T {
        let (start, paused) = (Instant::now(), self.process.paused_for());
        let outcome = call.into_future().await;
        let (took, paused) = (start.elapsed(), self.process.paused_for() - paused);
        // Clocks may be slow, and timers of tokio count whole milliseconds.
        let allowed = limit.mul_f64(1.02) + paused + Duration::from_millis(20);
        let text = format!("{what} took {took:?}, paused for {paused:?}, and may take {limit:?}");
        self.complain_if(took > allowed, &text);
        outcome
    }

    fn complain_if(&self, is_wrong: bool, what: &str) {
        if is_wrong {
            let (now, number) = (self.log.now(), self.number);
            self.log.notes().complaints.push(format!("client {number} at {now}: {what}"));
        }
    }
}

/// How long the locker waits unless a call says otherwise.
pub(crate) const WAIT: Duration = Duration::from_millis(1_500);

pub(crate) fn name(lock: usize) -> String {
    format!("lock-{lock}")
}

pub(crate) fn micros(length: Duration) -> Micros {
    u64::try_from(length.as_micros()).expect("no simulation is that long")
}
