//! The client itself, links and all, over simulated nodes, network and clocks.
//!
//! Real: all of `src/client` except the sockets, all of `src/engine`, the codec, and request
//! parsing. Simulated: the byte streams between them ([`net`]), the module's work around the engine
//! ([`node`]), time ([`clock`]; it jumps when every task waits), and faults ([`nemesis`]). In a
//! third of the seeds the nodes are masters with replicas, and are replaced ([`group`]). One thread
//! runs everything, and every choice comes from the seed, so a seed identifies a run:
//! `LOCKMOD_SEED=n cargo test --test sim` replays one and prints the outcomes that it reached.
//!
//! The storm's checkers ([`history`], [`linear`]) judge each run. In addition, the simulation
//! checks what only it can know: that no call takes longer than allowed, and that no lease is left
//! behind on any node.

mod clients;
mod clock;
mod coverage;
mod failovers;
mod group;
#[path = "../storm/history.rs"]
mod history;
mod line;
#[path = "../storm/linear.rs"]
mod linear;
mod nemesis;
mod net;
mod node;
mod scenes;
mod shadow;
mod slots;
mod stage;
mod stream;
#[path = "../proof/system.rs"]
mod system;
mod world;

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fmt, iter, thread};

use lockmod::client::{Locker, Vote};
use lockmod::engine::Millis;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};

use clients::{FAST_PPM_MAX, Log, micros};
use coverage::Reached;
use history::{Acquisition, History, Violation, check};
use line::Tally;
use nemesis::Nemesis;
use node::Defect;
use stage::Stage;

/// The maximum number of programs.
const PROGRAMS_MAX: usize = 3;
/// The number of seeds in an ordinary run, and in the long one.
const SEEDS: u64 = 150;
const SEEDS_LONG: u64 = 10_000;
/// At most this many rounds of seeds are run to reach every outcome.
const ROUNDS_MAX: u64 = 10;
/// How many times every lock must be acquired after the faults.
const CALM_ACQUISITIONS: u64 = 3;
/// How long a lock may stay free although wanted, once all faults are over: the longest lease that
/// a crash forgot, one block of the lease ceiling, and some attempts.
const PATIENCE: Duration = Duration::from_secs(50);
/// How many attempts one waiter may make within a second: with the shortest ttl, those that its
/// timers cause, and some more for calls.
const ATTEMPTS_MAX: usize = 60;
/// A run that takes longer than this hangs.
const END: Duration = Duration::from_secs(1_000);

/// The parameters of one run, chosen by its seed.
#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    nodes: usize,
    programs: usize,
    tasks: usize,
    locks: usize,
    storm_ms: u64,
    delay_ms: u64,
    /// Out of sixteen opportunities to crash, how many a node takes.
    crashes: u32,
    /// Nothing is lost, and no node crashes.
    is_gentle: bool,
    /// An operator deletes locks. Two clients may then hold the same lock, and only fences count.
    is_forced: bool,
    /// No clock changes its rate.
    is_steady: bool,
    ppm_max: i64,
    /// A node that does not support grants to tickets, and perhaps not even lines.
    old_node: Option<usize>,
    has_old_lines: bool,
    /// A program that does not support grants to tickets.
    old_program: Option<usize>,
    max_waiters: usize,
    /// How many out of a hundred calls from nodes are lost.
    lost_calls: u32,
    /// Wall clocks are stepped by too little to be noticed, instead of by hours.
    small_steps: bool,
    /// How far the fences of each node are ahead of the previous node's.
    uneven: u64,
    /// How long each program waits for answers.
    timeouts_ms: [u64; PROGRAMS_MAX],
    /// The number of replicas of each node. Zero: none, and `lockmod.replicas` is not set.
    replicas: u32,
    /// The longest lease that a node grants.
    max_ttl: Millis,
    defect: Defect,
    overtakes: bool,
}

impl Setup {
    /// The setup for this seed. In a third of the seeds, nodes are masters with replicas.
    fn of(seed: u64) -> Setup {
        let setup = Setup::alone(seed);
        if seed.is_multiple_of(3) { setup.in_groups() } else { setup }
    }

    /// The setup for this seed, without replicas.
    fn alone(seed: u64) -> Setup {
        let mut random = StdRng::seed_from_u64(seed ^ 0x0073_6574);
        let nodes = [3, 3, 3, 5, 5, 1][random.random_range(0..6)];
        Setup {
            seed,
            nodes,
            programs: random.random_range(2..=PROGRAMS_MAX),
            tasks: random.random_range(1..=3),
            locks: random.random_range(1..=2),
            storm_ms: random.random_range(5_000..=30_000),
            delay_ms: [1, 3, 10, 40][random.random_range(0..4)],
            crashes: [0, 1, 3, 10][random.random_range(0..4)],
            is_gentle: seed.is_multiple_of(4),
            is_forced: seed % 8 == 7,
            is_steady: random.random_bool(0.5),
            ppm_max: FAST_PPM_MAX,
            old_node: random.random_bool(0.2).then(|| random.random_range(0..nodes)),
            max_waiters: if random.random_bool(0.1) { 1 } else { 1_000 },
            lost_calls: [0, 0, 10, 100][random.random_range(0..4)],
            small_steps: random.random_bool(0.5),
            uneven: [0, 1, 1, 50][random.random_range(0..4)],
            timeouts_ms: std::array::from_fn(|_| [45, 90, 90, 250][random.random_range(0..4)]),
            has_old_lines: random.random_bool(0.5),
            old_program: random.random_bool(0.2).then(|| random.random_range(0..PROGRAMS_MAX)),
            replicas: 0,
            max_ttl: node::MAX_TTL,
            defect: Defect::None,
            overtakes: false,
        }
    }

    /// The same world, with each node the master of a group.
    fn in_groups(self) -> Setup {
        let mut random = StdRng::seed_from_u64(self.seed ^ 0x6772_6f75);
        let nodes = if self.nodes == 1 || random.random_bool(0.4) { 1 } else { 3 };
        Setup {
            nodes,
            replicas: [2, 2, 3][random.random_range(0..3)],
            // A short lease ends before a new master has authority; a long one may not.
            max_ttl: group::MAX_TTLS[random.random_range(0..2)],
            storm_ms: random.random_range(30_000..=80_000),
            crashes: [0, 0, 1, 2][random.random_range(0..4)],
            old_node: None,
            ..self
        }
    }
}

/// The result of a run.
#[derive(Debug)]
struct Outcome {
    violations: Vec<String>,
    reached: Reached,
    trace: u64,
    acquisitions: usize,
    requests: u64,
}

/// Runs a seed to its end.
fn run(setup: Setup) -> Outcome {
    to_the_end(story(setup))
}

fn to_the_end(play: impl Future<Output = Outcome>) -> Outcome {
    simulate(play).unwrap_or_else(|| Outcome {
        violations: vec!["somebody hangs".into()],
        reached: Reached::default(),
        trace: 0,
        acquisitions: 0,
        requests: 0,
    })
}

/// Runs this on simulated time; `None` if it hangs.
fn simulate<T>(play: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async { timeout(END, play).await }).ok()
}

async fn story(setup: Setup) -> Outcome {
    let stage = Stage::new(setup);
    let Stage { net, log, processes, lockers, .. } = &stage;
    let mut tasks = Vec::new();
    for (program, process) in processes.iter().enumerate() {
        for task in 0..setup.tasks {
            tasks.push(process.spawn(stage.client(program, task).run()));
        }
    }
    Nemesis::new(setup, net, processes).storm().await;
    let calm_at = log.now();
    wait_for_calm(log).await;
    let ended_at = log.now();
    log.notes().is_over = true;
    for task in tasks {
        task.await.expect("no task panics");
    }
    settle(lockers).await;
    judge(&stage, (calm_at, ended_at))
}

/// Waits until every lock has been acquired some more times, or is stuck (the checker reports
/// that).
async fn wait_for_calm(log: &Log) {
    let before = log.notes().per_lock.clone();
    let limit = log.now() + micros(PATIENCE) + 1_000_000;
    let is_well = || {
        let now = &log.notes().per_lock;
        now.iter().zip(&before).all(|(now, before)| now - before >= CALM_ACQUISITIONS)
    };
    while !is_well() && log.now() < limit {
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until every node has executed everything that was sent.
async fn settle(lockers: &[Locker]) {
    sleep(Duration::from_secs(3)).await;
    for locker in lockers {
        let is_done = |vote: &Vote| matches!(vote, Vote::Confirmed);
        while !locker.settle().await.iter().all(|report| is_done(&report.vote)) {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn judge(stage: &Stage, (calm_at, ended_at): (u64, u64)) -> Outcome {
    let Stage { setup, net, log, lockers, .. } = stage;
    let mut universe = net.universe();
    let mut notes = log.notes();
    let acquisitions = std::mem::take(&mut notes.acquisitions);
    let history = History { lock_count: setup.locks, acquisitions, calm_at, ended_at };
    let is_promised = |violation: &Violation| {
        !(setup.is_forced && matches!(violation, Violation::Overlap { .. }))
    };
    let mut violations: Vec<String> = check(&history, micros(PATIENCE))
        .iter()
        .filter(|violation| is_promised(violation))
        .map(ToString::to_string)
        .collect();
    if !setup.is_forced {
        violations.append(&mut linear::check_acquisitions(&history));
    }
    violations.append(&mut notes.complaints);
    violations.append(&mut universe.shadow.complaints);
    // A replica may lag behind.
    let masters = universe.home.iter().map(|number| (*number, &universe.nodes[*number]));
    for (number, node) in masters {
        for (name, token) in node.held_tokens() {
            if !notes.leaked.contains(&token) && !universe.stranded.contains(&token) {
                let name = name.escape_ascii();
                violations.push(format!("node {number} holds {name} for nobody"));
            }
        }
    }
    let reached = &mut notes.reached;
    reached.note_often("reader: beside another", beside_each_other(&history));
    let raised: u64 = lockers.iter().map(|locker| locker.stats().raised).sum();
    reached.note_often("acquire: raised fences", raised);
    for node in &universe.nodes {
        reached.note_often("node: repaired", node.repaired);
        reached.note_often("extend: provisional", node.provisional);
        reached.note_often("node: quarantined at a start", node.quarantines);
        reached.note_often("node: a lease was brought to it", node.restored);
        let group = node.member.tally;
        reached.note_often("group: promoted", group.promotions);
        reached.note_often("group: attached", group.attachments);
        reached.note_often("group: attached to a replica", group.second_hand);
        reached.note_often("group: fell behind what is kept", group.fell_behind);
        reached.note_often("group: told its master's heartbeat late", group.heard_again);
        reached.note_often("group: told a former master's heartbeat", group.heard_former);
        reached.note_often("group: told its own heartbeat", group.heard_itself);
        reached.note_often("group: no authority", group.without_authority);
        reached.note_often("group: extended in a wait", group.extended_in_wait);
        reached.note_often("group: a replaced master vouched", group.served_replaced);
        let Tally { called, handed_over, lapsed, hung_up, misled, hurry } = node.callers.tally;
        if misled > 0 {
            violations.push(format!("a node has refused {misled} that it had called"));
        }
        if hurry > ATTEMPTS_MAX {
            violations.push(format!("a waiter has made {hurry} attempts within a second"));
        }
        reached.note_often("line: called", called);
        reached.note_often("line: granted to a ticket", handed_over);
        reached.note_often("line: a reservation lapsed", lapsed);
        reached.note_often("line: left with its connection", hung_up);
    }
    reached.note_often("proof: states looked at", universe.shadow.states);
    reached.note_often("acquire: arrived after its connection", universe.late);
    reached.note_often("node: took requests for another", universe.misled);
    Outcome {
        violations,
        reached: reached.clone(),
        trace: universe.trace,
        acquisitions: history.acquisitions.len(),
        requests: universe.requests,
    }
}

/// How often a reader acquired a lock that another client held.
fn beside_each_other(history: &History) -> u64 {
    let all = &history.acquisitions;
    let is_beside = |one: &&Acquisition| {
        let holds = |other: &Acquisition| {
            other.lock == one.lock
                && other.returned_at < one.returned_at
                && one.returned_at < other.held_until()
        };
        one.is_reader && all.iter().any(holds)
    };
    all.iter().filter(is_beside).count() as u64
}

fn must_hold(setup: Setup) -> Outcome {
    let seed = setup.seed;
    let outcome = run(setup);
    let texts = outcome.violations.join("\n");
    assert!(outcome.violations.is_empty(), "LOCKMOD_SEED={seed} {setup:?} found:\n{texts}");
    outcome
}

/// Runs this many seeds, or only the one that `LOCKMOD_SEED` names.
fn run_seeds(count: u64) {
    if let Ok(text) = env::var("LOCKMOD_SEED") {
        let setup = Setup::of(text.parse().expect("LOCKMOD_SEED is a number"));
        println!("{setup:?}");
        let outcome = must_hold(setup);
        println!(
            "{} acquisitions, {} requests\n{}",
            outcome.acquisitions, outcome.requests, outcome.reached
        );
        return;
    }
    let first = first_seed();
    println!("from LOCKMOD_FIRST_SEED={first}");
    let mut total = run_from(first, count);
    // A few seeds may miss a rare outcome; more of them must not.
    while !total.reached.missing().is_empty() && total.seeds < count * ROUNDS_MAX {
        total.add(run_from(first + total.seeds, count));
    }
    println!("{total}");
    assert_eq!(total.reached.missing(), [""; 0], "never come upon from seed {first} on");
}

/// The results of many seeds.
#[derive(Debug, Default)]
struct Total {
    seeds: u64,
    reached: Reached,
    acquisitions: usize,
    requests: u64,
}

impl Total {
    fn add(&mut self, other: Total) {
        self.seeds += other.seeds;
        self.reached.add(&other.reached);
        self.acquisitions += other.acquisitions;
        self.requests += other.requests;
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Total { seeds, reached, acquisitions, requests } = self;
        write!(f, "{seeds} seeds: {acquisitions} acquisitions, {requests} requests\n{reached}")
    }
}

/// Different seeds each time, so that every run covers new ground, unless one is given.
fn first_seed() -> u64 {
    env::var("LOCKMOD_FIRST_SEED")
        .map_or_else(|_| rand::random::<u32>().into(), |text| text.parse().expect("a number"))
}

fn run_from(first: u64, count: u64) -> Total {
    let mut total = Total { seeds: count, ..Total::default() };
    let outcomes = on_all_processors(first..first + count, |seed| must_hold(Setup::of(seed)));
    for outcome in outcomes {
        total.reached.add(&outcome.reached);
        total.acquisitions += outcome.acquisitions;
        total.requests += outcome.requests;
    }
    total
}

/// Plays these seeds on all processors.
fn on_all_processors<T: Send>(seeds: Range<u64>, play: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let next = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end);
        iter::from_fn(next).map(&play).collect::<Vec<_>>()
    };
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(8));
    let played = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let played = workers.into_iter().map(|worker| worker.join());
        played.collect::<Result<Vec<_>, _>>().unwrap_or_else(|panic| resume_unwind(panic))
    });
    played.into_iter().flatten().collect()
}

#[test]
fn seeds_keep_every_promise_and_come_upon_every_outcome() {
    run_seeds(SEEDS);
}

#[test]
#[ignore = "takes minutes; `make sim` runs it"]
fn many_seeds_keep_every_promise() {
    run_seeds(SEEDS_LONG);
}

#[test]
fn a_seed_is_a_run() {
    for seed in [1, 2, 3, 4, 7, 9, 130, 131] {
        let (one, other) = (run(Setup::of(seed)), run(Setup::of(seed)));
        assert_eq!((one.trace, one.requests), (other.trace, other.requests), "seed {seed}");
        assert!(one.requests > 100, "seed {seed}: nothing happened");
    }
    assert_ne!(run(Setup::of(1)).trace, run(Setup::of(2)).trace);
}

// ---- what must be caught ----

/// Applies the same change to every seed, until one fails with the expected complaint.
fn must_be_caught(what: &str, change: impl Fn(Setup) -> Setup, complaint: &str) {
    must_be_caught_in(what, |seed| run(change(Setup::alone(seed))), complaint);
}

fn must_be_caught_in(what: &str, run: impl Fn(u64) -> Outcome, complaint: &str) {
    for seed in 0..200 {
        let outcome = run(seed);
        if let Some(found) = outcome.violations.iter().find(|found| found.contains(complaint)) {
            println!("{what}: seed {seed} found:\n{found}");
            return;
        }
    }
    panic!("{what}: the simulation or its judge is blind");
}

fn stormy(defect: Defect) -> impl Fn(Setup) -> Setup {
    move |setup| Setup { defect, is_gentle: false, is_forced: false, crashes: 10, ..setup }
}

const OVERLAP: &str = "two held the lock at once";
const DELETED: &str = "a deleted lease is extended";
const VOUCHES: &str = "the proof's \"one voice\" fails";

#[test]
fn a_node_that_forgets_its_leases_without_a_quarantine_is_caught() {
    must_be_caught("no quarantine", stormy(Defect::NoQuarantine), OVERLAP);
}

#[test]
fn a_node_that_forgets_its_fences_is_caught() {
    let complaint = "no larger fence";
    must_be_caught("no fence ceiling", stormy(Defect::NoFenceCeiling), complaint);
}

#[test]
fn a_node_that_releases_without_looking_at_the_token_is_caught() {
    must_be_caught("releases for anybody", stormy(Defect::ReleasesForAnybody), OVERLAP);
}

#[test]
fn a_node_that_grants_without_looking_at_the_token_is_caught() {
    must_be_caught("grants to anybody", stormy(Defect::GrantsToAnybody), OVERLAP);
}

#[test]
fn a_node_that_lets_readers_in_beside_a_writer_is_caught() {
    must_be_caught("reads beside a writer", stormy(Defect::ReadsBesideAWriter), OVERLAP);
    must_be_caught("reads beside a writer", stormy(Defect::ReadsBesideAWriter), VOUCHES);
}

#[test]
fn a_node_that_releases_all_readers_for_one_is_caught() {
    must_be_caught("releases all readers", stormy(Defect::ReleasesAllReaders), OVERLAP);
    let complaint = "the proof's \"nothing forgotten\" fails";
    must_be_caught("releases all readers", stormy(Defect::ReleasesAllReaders), complaint);
}

#[test]
fn leases_on_a_clock_that_is_stepped_are_caught() {
    must_be_caught("wall clock", stormy(Defect::LeasesOnTheWallClock), OVERLAP);
}

#[test]
fn a_node_that_calls_those_whom_it_refuses_is_caught() {
    let complaint = "that it had called";
    must_be_caught("calls in quarantine", stormy(Defect::CallsInQuarantine), complaint);
}

#[test]
fn leases_that_are_dated_by_a_clock_with_small_steps_are_caught() {
    // A single node that has every write on its disk is never in quarantine: it must know on its
    // own when the leases that it finds there end.
    let change = |setup: Setup| Setup {
        nodes: 1,
        old_node: None,
        small_steps: true,
        crashes: 16,
        ..stormy(Defect::DatesByTheWallClock)(setup)
    };
    // Every third seed has such a node.
    let run = |seed| run(change(Setup::alone(3 * seed + 2)));
    must_be_caught_in("dates by the wall clock", run, VOUCHES);
}

#[test]
fn a_node_that_vouches_twice_is_caught() {
    must_be_caught("no quarantine", stormy(Defect::NoQuarantine), VOUCHES);
}

#[test]
fn clocks_that_differ_by_more_than_the_allowance_are_caught() {
    let change = |setup| Setup { ppm_max: 200_000, is_steady: true, ..stormy(Defect::None)(setup) };
    must_be_caught("fast clocks", change, OVERLAP);
}

#[test]
fn a_release_that_overtakes_its_acquire_is_caught() {
    let change = |setup| {
        let setup = stormy(Defect::None)(setup);
        Setup { overtakes: true, is_gentle: true, delay_ms: 40, ..setup }
    };
    must_be_caught("overtaking", change, "for nobody");
}

// ---- masters that are replaced ----

/// Runs a seed in which masters are replaced.
fn failing_over(defect: Defect) -> impl Fn(u64) -> Outcome {
    let setup = move |seed| stormy(defect)(Setup::alone(seed)).in_groups();
    move |seed| run(Setup { crashes: 0, ..setup(seed) })
}

const TWO_MASTERS: &str = "two servers of a group have authority";

#[test]
fn a_master_that_does_not_ask_for_its_authority_is_caught_in_a_storm() {
    let run = failing_over(Defect::DecidesWithoutAuthority);
    must_be_caught_in("decides without authority", &run, OVERLAP);
    must_be_caught_in("decides without authority", &run, TWO_MASTERS);
}
