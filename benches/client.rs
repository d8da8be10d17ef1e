//! The cost of the quorum client: lockmod, `rslock` and a bare fan-out, on five local nodes.
//!
//! The fan-out is a lock over five nodes with the `redis` crate and nothing else: SET NX PX to all
//! at once, compare-and-delete to all at once, each returning at the third answer. Each round runs
//! every rival in turn for the same time; the ratio of two rivals is the median of the rounds'
//! ratios, so that a machine whose speed drifts does not favour one of them. `cargo bench --bench
//! client`; with `-- quick`, fewer and shorter rounds; with `-- contended`, only the part about one
//! contended lock; with `-- masters`, only the part about Clusters of several masters.

#[path = "../tests/common/mod.rs"]
mod common;
mod contended;
mod masters;
mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Server, start_nodes};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Value};
use report::{machine, median, spread};

const NODES: usize = 5;
const QUORUM: usize = 3;
const TTL: Duration = Duration::from_secs(30);
/// Each task locks these in turn: a lock that is used again and again, but not at once.
const NAMES_PER_TASK: u64 = 1_000;
const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

#[derive(Clone)]
enum Rival {
    Lockmod(lockmod::client::Locker),
    /// All tasks hold one lock together, as readers.
    Readers(lockmod::client::Locker),
    Rslock(rslock::LockManager),
    FanOut(FanOut),
}

#[derive(Clone)]
struct FanOut {
    nodes: Vec<MultiplexedConnection>,
    script: Arc<str>,
}

impl FanOut {
    async fn connect(nodes: &[Server]) -> FanOut {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connections = Vec::new();
        let mut script = String::new();
        for node in nodes {
            let client = Client::open(node.url()).expect("the URL is good");
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connection.expect("the node is up");
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(COMPARE_AND_DELETE);
            script = load.query_async(&mut connection).await.expect("the script is good");
            connections.push(connection);
        }
        FanOut { nodes: connections, script: script.into() }
    }

    /// Sends to all and returns at a quorum of answers that are not null.
    async fn all(&self, cmd: &redis::Cmd) -> bool {
        let mut answers: FuturesUnordered<_> = self
            .nodes
            .iter()
            .map(|node| {
                let mut node = node.clone();
                async move { node.send_packed_command(cmd).await }
            })
            .collect();
        let mut count = 0;
        while let Some(answer) = answers.next().await {
            count += usize::from(matches!(answer, Ok(Value::Okay | Value::Int(1))));
            if count == QUORUM {
                return true;
            }
        }
        false
    }

    async fn cycle(&self, name: &str) -> bool {
        let token: [u8; 20] = rand::random();
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&token).arg("NX").arg("PX").arg(30_000);
        if !self.all(&set).await {
            return false;
        }
        let mut delete = redis::cmd("EVALSHA");
        delete.arg(&*self.script).arg(1).arg(name).arg(&token);
        self.all(&delete).await
    }
}

impl Rival {
    const fn name(&self) -> &'static str {
        match self {
            Rival::Lockmod(_) => "lockmod",
            Rival::Readers(_) => "readers",
            Rival::Rslock(_) => "rslock",
            Rival::FanOut(_) => "fan-out",
        }
    }

    /// Acquires and releases once.
    async fn cycle(&self, name: &str) -> bool {
        match self {
            Rival::Lockmod(locker) => match locker.acquire(name).await {
                Ok(guard) => guard.release().await.is_ok(),
                Err(_) => false,
            },
            Rival::Readers(locker) => match locker.acquire("read by all").shared().await {
                Ok(guard) => guard.release().await.is_ok(),
                Err(_) => false,
            },
            Rival::Rslock(manager) => match manager.lock(name, TTL).await {
                Ok(lock) => {
                    lock.release().await;
                    true
                }
                Err(_) => false,
            },
            Rival::FanOut(fan_out) => fan_out.cycle(name).await,
        }
    }

    /// Cycles per second of this many tasks.
    async fn rate(&self, tasks: usize, length: Duration) -> f64 {
        let (done, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let start = Instant::now();
        let handles: Vec<_> = (0..tasks)
            .map(|task| {
                let (rival, done, failed) = (self.clone(), Arc::clone(&done), Arc::clone(&failed));
                tokio::spawn(async move {
                    let mut count = 0_u64;
                    while start.elapsed() < length {
                        let name = format!("{}:{task}:{}", rival.name(), count % NAMES_PER_TASK);
                        let counter = if rival.cycle(&name).await { &done } else { &failed };
                        counter.fetch_add(1, Ordering::Relaxed);
                        count += 1;
                    }
                })
            })
            .collect();
        for handle in handles {
            handle.await.expect("no cycle panics");
        }
        let rate = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        let failed = failed.load(Ordering::Relaxed);
        if failed > 0 {
            println!("  {}: {failed} cycles failed", self.name());
        }
        rate
    }
}

/// Compares the first rival with each of the others.
async fn compare(rivals: &[Rival], tasks: usize, rounds: usize, length: Duration) {
    let mut rates = vec![Vec::new(); rivals.len()];
    for round in 0..rounds {
        for turn in 0..rivals.len() {
            let rival = (round + turn) % rivals.len();
            let rate = rivals[rival].rate(tasks, length).await;
            rates[rival].push(rate);
        }
    }
    println!("{tasks} task(s), each its own locks: acquisitions and releases per second");
    for (rival, rates) in rivals.iter().zip(&rates) {
        println!("  {:8} {:8.0}", rival.name(), median(rates.clone()));
    }
    for other in 1..rivals.len() {
        let ratios = rates[0].iter().zip(&rates[other]).map(|(one, other)| one / other);
        let ratios: Vec<f64> = ratios.collect();
        println!("  {} / {:8} {}", rivals[0].name(), rivals[other].name(), spread(&ratios));
    }
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick" || arg == "--test");
    let (rounds, length) = if quick { (3, 400) } else { (9, 1_500) };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(async {
        let locks = if quick { 10_000 } else { 100_000 };
        if std::env::args().any(|arg| arg == "masters") {
            println!("{:?} on {}", common::server_version(), machine());
            return masters::compare(rounds.min(7), locks).await;
        }
        let nodes = start_nodes(NODES, |_| Server::builder().config("save", "\"\""));
        println!("{:?}, {NODES} nodes on {}", common::server_version(), machine());
        let urls: Vec<String> = nodes.iter().map(Server::url).collect();
        let locker = lockmod::client::Locker::builder().nodes(urls.clone()).ttl(TTL).build();
        let fan_out = FanOut::connect(&nodes).await;
        let is_asked = |word: &str| std::env::args().any(|arg| arg == word);
        contended::compare_slow(&nodes, rounds.min(3), Duration::from_millis(length * 4)).await;
        if is_asked("slow") {
            return;
        }
        contended::compare(&nodes, &fan_out, rounds.min(5), Duration::from_millis(length * 2))
            .await;
        if std::env::args().any(|arg| arg == "contended") {
            return;
        }
        let locker = locker.expect("the settings are good");
        let readers = [Rival::Readers(locker.clone()), Rival::Lockmod(locker.clone())];
        println!("64 readers of one lock, beside 64 tasks with locks of their own");
        compare(&readers, 64, rounds, Duration::from_millis(length)).await;
        let rivals = [
            Rival::Lockmod(locker),
            Rival::Rslock(rslock::LockManager::new(urls)),
            Rival::FanOut(fan_out),
        ];
        for rival in &rivals {
            rival.rate(4, Duration::from_millis(200)).await;
        }
        for tasks in [1, 64] {
            compare(&rivals, tasks, rounds, Duration::from_millis(length)).await;
        }
        masters::compare(rounds.min(7), locks).await;
    });
}
