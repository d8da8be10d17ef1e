//! Five real nodes under a storm of faults, and a checker that judges what clients experienced.
//!
//! A driver with many clients on few locks works through the quorum client, while a nemesis kills
//! nodes, hangs them, wipes their data, cuts their links and steps their wall clocks. The same
//! storm against plain Redlock must find violations: a checker that cannot fail proves nothing.
//!
//! - `cargo test --test storm`: the short form. `make storm`: the long one.
//! - `LOCKMOD_SEED` replays a plan; every run prints its seed.
//! - `LOCKMOD_STORM_SECONDS`: how long each storm of the long form takes, 180 by default, and the
//!   storms of upkeep in the short form.

#[path = "../common/mod.rs"]
mod common;

mod driver;
mod history;
mod keepers;
mod linear;
mod nemesis;
mod plan;
mod repair;
mod services;
mod single;
mod upkeep;

use std::collections::BTreeSet;
use std::env;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lockmod::client::Locker;

use driver::{Habits, KEPT, LOCKS, Service, Shared};
use history::{History, Micros, Violation, check};
use keepers::Losses;
use nemesis::{Cluster, KEEPERS, Tally};
use plan::{Event, GROUPS, LONG_TTL_MAX_MS, MAX_TTL_MS, QUARANTINE_MS};
use services::{Redlock, TIMEOUT};
use upkeep::{PATIENT, Upkeep};

/// Lockers per group of clients: separate programs, with separate connections.
const PROGRAMS: usize = 2;
const CLIENTS_PER_PROGRAM: usize = 3;
/// Every lock must be acquired this often after the storm.
const CALM_ACQUISITIONS: u64 = 5;
/// The time that a loaded machine may take in addition to each wait.
const LOADED_MS: u64 = 6_000;
/// Clients of the storm of faults.
const HABITS: Habits = Habits {
    ttl_min_ms: 150,
    ttl_max_ms: 1_500,
    wait_max_ms: 800,
    lasting: 0.06,
    lasting_ttls: (1.2, 4.0),
    crashing: 0.03,
    poaching: 0.0,
    reading: 0.4,
    downgrading: 0.1,
};

fn micros(millis: u64) -> Micros {
    millis * 1_000
}

/// The participants of a storm, in addition to the nodes.
struct Cast<F> {
    /// The service of a program, and how its clients use it: for a group of clients, and the
    /// addresses of the nodes.
    program: F,
    /// Clients that hold a lock all the time, with these ttls.
    keepers: Option<[Duration; KEPT]>,
    /// For how long a wanted lock may be free on healthy nodes: the rest of a forgotten lease and
    /// of the quarantines, and the delay of a loaded machine.
    stuck_after_ms: u64,
}

impl<F> Cast<F> {
    fn of(program: F) -> Cast<F> {
        let stuck_after_ms = MAX_TTL_MS + QUARANTINE_MS + LOADED_MS;
        Cast { program, keepers: None, stuck_after_ms }
    }
}

/// The outcome of a storm.
struct Outcome {
    /// The locks that keepers lost.
    losses: Vec<String>,
    history: History,
    violations: Vec<Violation>,
    /// Why the observations are not linearizable, lock by lock.
    contradictions: Vec<String>,
}

impl Outcome {
    fn count(&self, is: fn(&Violation) -> bool) -> usize {
        self.violations.iter().filter(|violation| is(violation)).count()
    }

    /// How often two clients held a lock at the same time.
    fn overlaps(&self) -> usize {
        self.count(|violation| matches!(violation, Violation::Overlap { .. }))
    }

    fn texts(&self) -> String {
        self.violations.iter().map(|violation| format!("{violation}\n")).collect()
    }
}

/// Carries out the plan, then waits until every lock is acquired again, and judges.
async fn storm<S: Service>(
    name: &str,
    mut cluster: Cluster,
    cast: Cast<impl Fn(usize, Vec<String>) -> (S, Habits)>,
    seed: u64,
    plan: Vec<Event>,
) -> Outcome {
    println!("{name}: LOCKMOD_SEED={seed}");
    let shared = Shared::new();
    let mut clients = Vec::new();
    for program in 0..GROUPS * PROGRAMS {
        let (service, habits) = (cast.program)(program % GROUPS, cluster.urls(program % GROUPS));
        let service = Arc::new(service);
        for client in 0..CLIENTS_PER_PROGRAM {
            let number = program * CLIENTS_PER_PROGRAM + client;
            clients.push(driver::start(&service, &shared, seed, number, habits));
        }
    }
    let losses = Losses::default();
    if let Some(ttls) = cast.keepers {
        clients.extend(keepers::start(&mixed(cluster.urls(KEEPERS)), ttls, &shared, &losses));
    }
    let nemesis = tokio::task::spawn_blocking(move || {
        let tally = cluster.strike(&plan);
        cluster.calm();
        (cluster, tally)
    });
    let (cluster, tally) = nemesis.await.expect("the nemesis does its work");
    let calm_at = shared.now();
    wait_for_calm(&shared, cast.stuck_after_ms).await;
    let ended_at = shared.now();
    shared.stop();
    for client in clients {
        client.await.expect("no client panics");
    }
    assert_eq!(cluster.panics(), [""; 0]);
    let acquisitions = shared.take();
    let history = History { lock_count: LOCKS, acquisitions, calm_at, ended_at };
    let violations = check(&history, micros(cast.stuck_after_ms));
    report(name, &shared, &tally, &history, &violations);
    let contradictions = linear::check_acquisitions(&history);
    let losses = std::mem::take(&mut *losses.lock().unwrap_or_else(PoisonError::into_inner));
    Outcome { losses, history, violations, contradictions }
}

/// Waits until every lock was acquired some more times, or is stuck, which the checker reports.
async fn wait_for_calm(shared: &Shared, stuck_after_ms: u64) {
    let before = shared.per_lock();
    let start = Instant::now();
    let limit = Duration::from_millis(stuck_after_ms + 2_000);
    let is_well = |now: [u64; LOCKS]| {
        now.iter().zip(before).all(|(now, before)| now - before >= CALM_ACQUISITIONS)
    };
    while !is_well(shared.per_lock()) && start.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn report(name: &str, shared: &Shared, tally: &Tally, history: &History, violations: &[Violation]) {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let calm = Duration::from_micros(history.ended_at - history.calm_at);
    println!(
        "{name}: {} acquisitions ({} renewed beyond their ttl, {} crashed, {} lost), {} refused\n\
         {name}: {} of them by readers, and {} writers became readers\n\
         {name}: {} faults: {tally:?}\n\
         {name}: all locks acquired {CALM_ACQUISITIONS} times {calm:.1?} after the last fault\n\
         {name}: {} violations",
        history.acquisitions.len(),
        count(&shared.renewed),
        count(&shared.crashed),
        count(&shared.lost),
        count(&shared.refused),
        count(&shared.read),
        count(&shared.downgraded),
        tally.values().sum::<usize>(),
        violations.len()
    );
}

/// A locker for ttls of 150 ms and more.
fn mixed(urls: Vec<String>) -> Locker {
    let builder = Locker::builder().nodes(urls).ttl(Duration::from_secs(1));
    builder.timeout(TIMEOUT / 2).build().expect("good settings")
}

fn locker() -> Cast<impl Fn(usize, Vec<String>) -> (Locker, Habits)> {
    Cast::of(|_, urls| (mixed(urls), HABITS))
}

fn redlock() -> Cast<impl Fn(usize, Vec<String>) -> (Redlock, Habits)> {
    Cast::of(|_, urls| (Redlock::new(urls), Habits { reading: 0.0, downgrading: 0.0, ..HABITS }))
}

impl Outcome {
    /// There may be no violation.
    fn expect_good(&self, seed: u64, acquisitions_min: u64) {
        assert!(self.violations.is_empty(), "LOCKMOD_SEED={seed} found:\n{}", self.texts());
        assert_eq!(self.contradictions, [""; 0], "LOCKMOD_SEED={seed}");
        assert_eq!(self.losses, [""; 0], "LOCKMOD_SEED={seed}: lost with a majority up");
        let acquired = self.history.acquisitions.len() as u64;
        assert!(acquired > acquisitions_min, "only {acquired} acquisitions: nothing was tested");
    }
}

/// The storm of the quorum client over nodes with the module: there may be no violation.
async fn storm_the_module(seed: u64, length: Duration) {
    let plan = plan::plan(seed, length);
    let outcome = storm("lockmod", Cluster::with_module(), locker(), seed, plan).await;
    outcome.expect_good(seed, length.as_secs() * 2);
}

/// Small steps of wall clocks, restarts in quick succession and promotions of nodes that sync each
/// write, under leases of all lengths. The power fails, so a majority is not up all the time.
async fn storm_durable_nodes(seed: u64, length: Duration) {
    // A short storm has time for leases of some seconds.
    let ttl_max_ms = (length.as_millis() as u64 / 3).min(LONG_TTL_MAX_MS);
    let mixed_ttls = Habits { ttl_max_ms, poaching: 0.3, ..HABITS };
    // A lease without renewals shows best whether it ends when it should.
    let crashing = Habits { ttl_min_ms: 1_500, ttl_max_ms: 6_000, crashing: 0.7, ..mixed_ttls };
    let cast = Cast {
        program: |group, urls| (mixed(urls), if group == 0 { mixed_ttls } else { crashing }),
        keepers: Some([4_000, 6_000, ttl_max_ms.max(6_000)].map(Duration::from_millis)),
        stuck_after_ms: 2 * LONG_TTL_MAX_MS + 10_000 + LOADED_MS,
    };
    let plan = upkeep::upkeep(seed, length, Upkeep::Durable);
    let mut outcome = storm("durable nodes", Cluster::durable(), cast, seed, plan).await;
    // If a majority is down, a keeper may lose its lock; but no other may hold it at the same time.
    outcome.losses.clear();
    outcome.expect_good(seed, 5);
}

/// One node restarted or promoted after another, while a majority is up and locks are kept.
async fn storm_by_upkeep(seed: u64, length: Duration) {
    let keepers = Some([1_500, 2_200, MAX_TTL_MS].map(Duration::from_millis));
    let cast = Cast { keepers, ..locker() };
    let plan = upkeep::upkeep(seed, length, Upkeep::Careful);
    let outcome = storm("upkeep", Cluster::with_care(), cast, seed, plan).await;
    outcome.expect_good(seed, length.as_secs() * 2);
}

/// Votes are in flight while nodes forget and holders repair.
async fn storm_by_squalls(seed: u64, length: Duration) {
    let quick = Habits {
        ttl_max_ms: 260,
        lasting: 0.9,
        lasting_ttls: (6.0, 16.0),
        crashing: 0.0,
        wait_max_ms: 300,
        ..HABITS
    };
    // A vote of a patient client matters only if it keeps others out.
    let patient = Habits {
        reading: 0.1,
        ttl_min_ms: MAX_TTL_MS - 200,
        ttl_max_ms: MAX_TTL_MS,
        wait_max_ms: 0,
        crashing: 0.0,
        ..HABITS
    };
    let program = |group, urls: Vec<String>| match group {
        PATIENT => {
            let builder = Locker::builder().nodes(urls).ttl(Duration::from_millis(MAX_TTL_MS));
            (builder.timeout(TIMEOUT * 9).build().expect("good settings"), patient)
        }
        _ => (mixed(urls), quick),
    };
    let plan = upkeep::squalls(seed, length);
    let outcome = storm("squalls", Cluster::forgetful(), Cast::of(program), seed, plan).await;
    outcome.expect_good(seed, length.as_secs());
}

async fn storm_redlock(seed: u64, plan: Vec<Event>) -> Outcome {
    storm("plain Redlock", Cluster::plain(), redlock(), seed, plan).await
}

fn seed() -> u64 {
    match env::var("LOCKMOD_SEED") {
        Ok(text) => text.parse().expect("LOCKMOD_SEED is a number"),
        Err(_) => rand::random::<u32>().into(),
    }
}

fn seconds(default: u64) -> Duration {
    let seconds = env::var("LOCKMOD_STORM_SECONDS").ok();
    Duration::from_secs(seconds.map_or(default, |text| text.parse().expect("a number of seconds")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_module_stands_a_short_storm() {
    storm_the_module(seed(), seconds(12)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_nodes_stand_small_steps_restarts_and_promotions() {
    storm_durable_nodes(seed(), seconds(12)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_is_lost_to_one_restart_after_another() {
    storm_by_upkeep(seed(), seconds(12)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_was_forgotten_does_not_make_two_holders() {
    storm_by_squalls(seed(), seconds(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_finds_what_the_same_storm_does_to_plain_redlock() {
    let seed = seed();
    let outcome = storm_redlock(seed, plan::plan(seed, Duration::from_secs(8))).await;
    assert!(outcome.overlaps() > 0, "the storm or the checker is blind");
    assert!(!outcome.contradictions.is_empty(), "the search for an order is blind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_finds_what_crashes_do_to_whoever_forgets() {
    // On a busy machine a storm of some seconds may be too calm for one kind of violation.
    const STORMS_MAX: u64 = 5;
    let mut missing = BTreeSet::from(["two of Redlock", "two", "a fence that fell", "no order"]);
    for number in 0..STORMS_MAX {
        let plan = plan::massacres(Duration::from_secs(6), Duration::from_millis(700));
        let (name, seed) = ("no state file", seed() + number);
        let forgetful = Cluster::without_state_file();
        let (plain, forgetful) = tokio::join!(
            storm_redlock(seed, plan.clone()),
            storm(name, forgetful, locker(), seed, plan.clone())
        );
        let fell = forgetful.count(|violation| matches!(violation, Violation::Fell { .. }));
        let found = [
            ("two of Redlock", plain.overlaps() > 0),
            ("two", forgetful.overlaps() > 0),
            ("a fence that fell", fell > 0),
            ("no order", !forgetful.contradictions.is_empty()),
        ];
        missing.retain(|kind| !found.contains(&(*kind, true)));
        if missing.is_empty() {
            return;
        }
    }
    panic!("the storm or the checker is blind: never {missing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_finds_nothing_without_faults() {
    let outcome = storm_redlock(0, Vec::new()).await;
    assert!(outcome.violations.is_empty(), "{}", outcome.texts());
    assert_eq!(outcome.contradictions, [""; 0]);
    let outcome = storm("lockmod", Cluster::with_module(), locker(), 0, Vec::new()).await;
    assert!(outcome.violations.is_empty(), "{}", outcome.texts());
    assert_eq!(outcome.contradictions, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; `make storm` runs it"]
async fn the_module_stands_a_long_storm() {
    let (seed, length) = (seed(), seconds(180));
    storm_the_module(seed, length).await;
    storm_durable_nodes(seed, length).await;
    storm_by_upkeep(seed, length).await;
    storm_by_squalls(seed, length).await;
    let plan = plan::plan(seed, length.min(Duration::from_secs(30)));
    assert!(storm_redlock(seed, plan).await.overlaps() > 0, "the storm or the checker is blind");
}
