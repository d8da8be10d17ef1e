//! What a lock costs over a Redis Cluster, by how many masters that has.
//!
//! Clusters of 1, 2, 4 and 8 masters stand side by side, and each round loads all of them in turn
//! with the same number of acquisitions. As many tasks as masters times [`TASKS`] take locks of
//! their own: whoever has more masters has more clients. CPU time is measured, not the rate, for
//! all processes share the machine.

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
const TASKS: usize = 16;

struct Rival {
    cluster: Cluster,
    locker: Locker,
}

/// CPU time per lock, in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    /// Of the master that took most.
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

    /// Acquires and releases so many locks.
    async fn load(&self, locks: u64) -> Cost {
        let (servers, client) = (self.server_seconds(), cpu_of(std::process::id()));
        let next = Arc::new(AtomicU64::new(0));
        let tasks = (0..TASKS * self.cluster.masters.len()).map(|task| {
            let (locker, next) = (self.locker.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut turn = 0;
                while next.fetch_add(1, Ordering::Relaxed) < locks {
                    let name = format!("{task}:{}", turn % NAMES_PER_TASK);
                    let guard = locker.acquire(&name).await.expect("nobody else wants it");
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

/// Loads each Cluster with so many locks, in so many rounds.
pub(crate) async fn compare(rounds: usize, locks: u64) {
    let rivals = MASTERS.map(Rival::start);
    for rival in &rivals {
        rival.load(locks / 10).await;
    }
    let mut costs = MASTERS.map(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..rivals.len() {
            let index = (round + turn) % rivals.len();
            costs[index].push(rivals[index].load(locks).await);
            // What a Cluster still does is not the next one's.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    println!("a Cluster, {TASKS} tasks for each master, {locks} locks a round, CPU per lock:");
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
