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
mod nemesis;
mod plan;
mod repair;
mod services;

use std::env;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lockmod::client::Locker;

use driver::{LOCKS, Service, Shared, TTL_MAX_MS};
use history::{History, Micros, Violation, check};
use nemesis::{Cluster, Tally};
use plan::{GROUPS, QUARANTINE_MS};
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
}

/// Storms for `length`, then waits until every lock is acquired again, and judges.
async fn storm<S: Service>(
    mut cluster: Cluster,
    service: impl Fn(Vec<String>) -> S,
    seed: u64,
    length: Duration,
) -> Outcome {
    let shared = Shared::new();
    let mut clients = Vec::new();
    for program in 0..GROUPS * PROGRAMS {
        let service = Arc::new(service(cluster.urls(program % GROUPS)));
        for client in 0..CLIENTS_PER_PROGRAM {
            let number = program * CLIENTS_PER_PROGRAM + client;
            clients.push(driver::start(&service, &shared, seed, number));
        }
    }
    let plan = plan::plan(seed, length);
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
    report(&shared, &tally, &history, &violations);
    Outcome { history, violations }
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

fn report(shared: &Shared, tally: &Tally, history: &History, violations: &[Violation]) {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "  {} acquisitions ({} renewed beyond their ttl, {} crashed, {} lost), {} refused",
        history.acquisitions.len(),
        count(&shared.renewed),
        count(&shared.crashed),
        count(&shared.lost),
        count(&shared.refused)
    );
    println!("  {} faults: {tally:?}", tally.values().sum::<usize>());
    let calm = Duration::from_micros(history.ended_at - history.calm_at);
    println!("  all locks acquired {CALM_ACQUISITIONS} times {calm:.1?} after the last fault");
    println!("  {} violations", violations.len());
}

/// The storm of the quorum client over nodes with the module: nothing may be wrong.
async fn storm_the_module(seed: u64, length: Duration) {
    println!("lockmod, {length:?}: LOCKMOD_SEED={seed}");
    let locker = |urls: Vec<String>| {
        let builder = Locker::builder().nodes(urls).ttl(Duration::from_secs(1));
        builder.timeout(TIMEOUT).build().expect("good settings")
    };
    let outcome = storm(Cluster::with_module(), locker, seed, length).await;
    let lines: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "LOCKMOD_SEED={seed} found:\n{}", lines.join("\n"));
    let acquired = outcome.history.acquisitions.len() as u64;
    assert!(acquired > length.as_secs() * 2, "only {acquired} acquisitions: nothing was tested");
}

/// The storm of plain Redlock: how often two held a lock at once.
async fn storm_redlock(seed: u64, length: Duration) -> usize {
    println!("plain Redlock, {length:?}: LOCKMOD_SEED={seed}");
    let outcome = storm(Cluster::plain(), Redlock::new, seed, length).await;
    let is_overlap = |violation: &&Violation| matches!(violation, Violation::Overlap { .. });
    outcome.violations.iter().filter(is_overlap).count()
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
    let found = storm_redlock(seed(), Duration::from_secs(10)).await;
    assert!(found > 0, "the storm or the checker is blind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_finds_nothing_in_plain_redlock_without_faults() {
    let outcome = storm(Cluster::plain(), Redlock::new, 0, Duration::ZERO).await;
    let lines: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; `make storm` runs it"]
async fn the_module_stands_a_long_storm() {
    let seconds = env::var("LOCKMOD_STORM_SECONDS").ok();
    let seconds = seconds.map_or(180, |text| text.parse().expect("a number of seconds"));
    let (seed, length) = (seed(), Duration::from_secs(seconds));
    storm_the_module(seed, length).await;
    let found = storm_redlock(seed, length.min(Duration::from_secs(30))).await;
    assert!(found > 0, "the storm or the checker is blind");
}
