//! The cost of a lock over a Redis Cluster, by its number of masters.
//!
//! Clusters of 1, 2, 4 and 8 masters run at the same time, and each round loads all of them in turn
//! with the same number of acquisitions, of locks of the tasks' own. CPU time is measured, not the
//! rate, because all processes share the machine. A single task shows the cost of a lock that
//! shares no system call with others; [`TASKS`] for each master show how much they share. A client
//! that keeps the cores of the machine busy sends less at once to each of many masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockmod::client::Locker;

use super::common::{Cluster, Server};
use super::contended::cpu_of;
use super::report::{median, spread};
use super::{NAMES_PER_TASK, TTL};

const MASTERS: [usize; 4] = [1, 2, 4, 8];
/// How many tasks load each master.
const TASKS: usize = 64;

/// The number of tasks.
#[derive(Clone, Copy)]
enum Load {
    One,
    ForEachMaster,
}

struct Rival {
    cluster: Cluster,
    locker: Locker,
}

/// CPU time per lock, in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    /// Of the busiest master.
    busiest: f64,
    client: f64,
}

impl Rival {
    fn start(masters: usize) -> Rival {
        let cluster = Cluster::start(masters, || Server::builder().config("save", "\"\""));
        let locker = Locker::builder().nodes([cluster.url()]).ttl(TTL).timeout(TTL / 6);
        Rival { locker: locker.build().expect("the settings are good"), cluster }
    }

    fn server_seconds(&self) -> Vec<f64> {
        self.cluster.masters.iter().map(Server::cpu_seconds).collect()
    }

    /// CPU time of the busiest master while it gets no requests, in milliseconds per second.
    async fn idle(&self) -> f64 {
        let before = self.server_seconds();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let spent = self.server_seconds().into_iter().zip(before).map(|(now, then)| now - then);
        spent.fold(0.0, f64::max) * 500.0
    }

    /// Acquires and releases this many locks.
    async fn load(&self, load: Load, locks: u64) -> Cost {
        // Enough names for a single task that all masters have about the same number.
        let (tasks, names) = match load {
            Load::One => (1, NAMES_PER_TASK * 20),
            Load::ForEachMaster => (TASKS * self.cluster.masters.len(), NAMES_PER_TASK),
        };
        let (servers, client) = (self.server_seconds(), cpu_of(std::process::id()));
        let next = Arc::new(AtomicU64::new(0));
        let tasks = (0..tasks).map(|task| {
            let (locker, next) = (self.locker.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut turn = 0;
                while next.fetch_add(1, Ordering::Relaxed) < locks {
                    let name = format!("{task}:{}", turn % names);
                    let guard = locker.acquire(&name).await.expect("no other task wants it");
                    guard.release().await.expect("it is held");
                    turn += 1;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no task panics");
        }
        let client = cpu_of(std::process::id()) - client;
        let spent = self.server_seconds().into_iter().zip(servers).map(|(now, then)| now - then);
        let per_lock = 1e6 / locks as f64;
        Cost { busiest: spent.fold(0.0, f64::max) * per_lock, client: client * per_lock }
    }
}

/// Loads each Cluster with this many locks, in this many rounds.
pub(crate) async fn compare(rounds: usize, locks: u64) {
    let rivals = MASTERS.map(Rival::start);
    println!(
        "a Cluster, CPU per lock, beside what the busiest master takes when nothing is asked:"
    );
    for (masters, rival) in MASTERS.iter().zip(&rivals) {
        println!("  {masters} master(s): {:.1} ms a second", rival.idle().await);
    }
    for (load, locks) in [(Load::One, locks / 8), (Load::ForEachMaster, locks)] {
        compare_by(&rivals, load, rounds, locks).await;
    }
}

async fn compare_by(rivals: &[Rival; 4], load: Load, rounds: usize, locks: u64) {
    for rival in rivals {
        rival.load(load, locks / 10).await;
    }
    let mut costs = MASTERS.map(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..rivals.len() {
            let index = (round + turn) % rivals.len();
            costs[index].push(rivals[index].load(load, locks).await);
            // Work that a Cluster still does must not count for the next one.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    match load {
        Load::One => println!(" one task, {locks} locks a round"),
        Load::ForEachMaster => println!(" {TASKS} tasks for each master, {locks} locks a round"),
    }
    for (masters, of_one) in MASTERS.iter().zip(&costs) {
        let all = |part: fn(&Cost) -> f64| of_one.iter().map(part).collect::<Vec<f64>>();
        let ratios = |part: fn(&Cost) -> f64| {
            let pairs = of_one.iter().zip(&costs[0]);
            spread(&pairs.map(|(this, one)| part(this) / part(one)).collect::<Vec<f64>>())
        };
        println!(
            "  {masters} master(s): the busiest {:.2} us, {} of one's; client {:.2} us, {}",
            median(all(|cost| cost.busiest)),
            ratios(|cost| cost.busiest),
            median(all(|cost| cost.client)),
            ratios(|cost| cost.client),
        );
    }
}
