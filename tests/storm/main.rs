//! Five real nodes under a storm of faults, and a checker that judges what clients lived through.
//!
//! A driver with many clients on few locks works through the quorum client, while a nemesis kills
//! nodes, hangs them, wipes their data, cuts their links and steps their wall clocks. The same
//! storm against plain Redlock must find violations: a checker that cannot fail proves nothing.
//!
//! - `cargo test --test storm`: the short form. `make storm`: the long one.
//! - `LOCKMOD_SEED` replays a plan; it is printed by every run.
//! - `LOCKMOD_STORM_SECONDS`: how long the long form storms, 180 by default.

#[path = "../common/mod.rs"]
mod common;

mod driver;
mod history;
mod linear;
mod nemesis;
mod plan;
mod repair;
mod services;
mod single;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockmod::client::Locker;

use driver::{LOCKS, Service, Shared, TTL_MAX_MS};
use history::{History, Micros, Violation, check};
use nemesis::{Cluster, Tally};
use plan::{Event, GROUPS, QUARANTINE_MS};
use services::{Redlock, TIMEOUT};

/// Lockers per group of clients: programs of their own, with connections of their own.
const PROGRAMS: usize = 2;
const CLIENTS_PER_PROGRAM: usize = 3;
/// Every lock must be acquired this often after the storm.
const CALM_ACQUISITIONS: u64 = 5;
/// For how long a lock may be free and wanted on nodes that are well: what is left of a forgotten
/// lease and of the quarantines, and a loaded machine.
const STUCK_AFTER_MS: u64 = TTL_MAX_MS + QUARANTINE_MS + 6_000;

fn micros(millis: u64) -> Micros {
    millis * 1_000
}

/// What a storm came to.
struct Outcome {
    history: History,
    violations: Vec<Violation>,
    /// Why what was seen is not linearizable, lock by lock.
    contradictions: Vec<String>,
}

impl Outcome {
    fn count(&self, is: fn(&Violation) -> bool) -> usize {
        self.violations.iter().filter(|violation| is(violation)).count()
    }

    /// How often two held a lock at once.
    fn overlaps(&self) -> usize {
        self.count(|violation| matches!(violation, Violation::Overlap { .. }))
    }

    fn texts(&self) -> String {
        self.violations.iter().map(|violation| format!("{violation}\n")).collect()
    }
}

/// Strikes as planned, then waits until every lock is acquired again, and judges.
async fn storm<S: Service>(
    name: &str,
    mut cluster: Cluster,
    service: impl Fn(Vec<String>) -> S,
    seed: u64,
    plan: Vec<Event>,
) -> Outcome {
    println!("{name}: LOCKMOD_SEED={seed}");
    let shared = Shared::new();
    let mut clients = Vec::new();
    for program in 0..GROUPS * PROGRAMS {
        let service = Arc::new(service(cluster.urls(program % GROUPS)));
        for client in 0..CLIENTS_PER_PROGRAM {
            let number = program * CLIENTS_PER_PROGRAM + client;
            clients.push(driver::start(&service, &shared, seed, number));
        }
    }
    let nemesis = tokio::task::spawn_blocking(move || {
        let tally = cluster.strike(&plan);
        cluster.calm();
        (cluster, tally)
    });
    let (cluster, tally) = nemesis.await.expect("the nemesis does its work");
    let calm_at = shared.now();
    wait_for_calm(&shared).await;
    let ended_at = shared.now();
    shared.stop();
    for client in clients {
        client.await.expect("no client panics");
    }
    assert_eq!(cluster.panics(), [""; 0]);
    let acquisitions = shared.take();
    let history = History { lock_count: LOCKS, acquisitions, calm_at, ended_at };
    let violations = check(&history, micros(STUCK_AFTER_MS));
    report(name, &shared, &tally, &history, &violations);
    let contradictions = linear::check_acquisitions(&history);
    Outcome { history, violations, contradictions }
}

/// Until every lock was acquired some times more, or is stuck, which the checker will say.
async fn wait_for_calm(shared: &Shared) {
    let before = shared.per_lock();
    let start = Instant::now();
    let limit = Duration::from_millis(STUCK_AFTER_MS + 2_000);
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
         {name}: {} faults: {tally:?}\n\
         {name}: all locks acquired {CALM_ACQUISITIONS} times {calm:.1?} after the last fault\n\
         {name}: {} violations",
        history.acquisitions.len(),
        count(&shared.renewed),
        count(&shared.crashed),
        count(&shared.lost),
        count(&shared.refused),
        tally.values().sum::<usize>(),
        violations.len()
    );
}

fn locker(urls: Vec<String>) -> Locker {
    let builder = Locker::builder().nodes(urls).ttl(Duration::from_secs(1));
    builder.timeout(TIMEOUT).build().expect("good settings")
}

/// The storm of the quorum client over nodes with the module: nothing may be wrong.
async fn storm_the_module(seed: u64, length: Duration) {
    let plan = plan::plan(seed, length);
    let outcome = storm("lockmod", Cluster::with_module(), locker, seed, plan).await;
    assert!(outcome.violations.is_empty(), "LOCKMOD_SEED={seed} found:\n{}", outcome.texts());
    assert_eq!(outcome.contradictions, [""; 0], "LOCKMOD_SEED={seed}");
    let acquired = outcome.history.acquisitions.len() as u64;
    assert!(acquired > length.as_secs() * 2, "only {acquired} acquisitions: nothing was tested");
}

async fn storm_redlock(seed: u64, plan: Vec<Event>) -> Outcome {
    storm("plain Redlock", Cluster::plain(), Redlock::new, seed, plan).await
}

fn seed() -> u64 {
    match env::var("LOCKMOD_SEED") {
        Ok(text) => text.parse().expect("LOCKMOD_SEED is a number"),
        Err(_) => rand::random::<u32>().into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_module_stands_a_short_storm() {
    storm_the_module(seed(), Duration::from_secs(12)).await;
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
    let plan = plan::massacres(Duration::from_secs(6), Duration::from_millis(700));
    let (name, seed) = ("no state file", seed());
    let forgetful = Cluster::without_state_file();
    let (plain, forgetful) = tokio::join!(
        storm_redlock(seed, plan.clone()),
        storm(name, forgetful, locker, seed, plan.clone())
    );
    assert!(plain.overlaps() > 0, "the storm or the checker is blind");
    assert!(!forgetful.contradictions.is_empty(), "the search for an order is blind");
    assert!(forgetful.overlaps() > 0, "the storm or the checker is blind");
    let unordered = forgetful.count(|violation| matches!(violation, Violation::Fell { .. }));
    assert!(unordered > 0, "the storm or the checker is blind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_finds_nothing_without_faults() {
    let outcome = storm_redlock(0, Vec::new()).await;
    assert!(outcome.violations.is_empty(), "{}", outcome.texts());
    assert_eq!(outcome.contradictions, [""; 0]);
    let outcome = storm("lockmod", Cluster::with_module(), locker, 0, Vec::new()).await;
    assert!(outcome.violations.is_empty(), "{}", outcome.texts());
    assert_eq!(outcome.contradictions, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; `make storm` runs it"]
async fn the_module_stands_a_long_storm() {
    let seconds = env::var("LOCKMOD_STORM_SECONDS").ok();
    let seconds = seconds.map_or(180, |text| text.parse().expect("a number of seconds"));
    let (seed, length) = (seed(), Duration::from_secs(seconds));
    storm_the_module(seed, length).await;
    let plan = plan::plan(seed, length.min(Duration::from_secs(30)));
    assert!(storm_redlock(seed, plan).await.overlaps() > 0, "the storm or the checker is blind");
}
