//! One contended lock: who gets it, how soon after the previous holder, and at what cost.

mod wake;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockmod::client::Locker;

use super::common::{Flow, Proxy, Server};
use super::report::{median, spread};
use super::{FanOut, TTL};

/// The round trip time of a slow link.
const SLOW: Duration = Duration::from_millis(20);
const HOLD: Duration = Duration::from_millis(1);
/// The longest pause of `rslock` between its tries, in milliseconds: the best is found by trial.
const RSLOCK_PAUSES: [u64; 5] = [1, 2, 4, 8, 16];

/// The rivals for the lock: each task with its own client, or several with one.
#[derive(Clone)]
pub(crate) enum Crowd {
    Lockmod(Vec<Locker>),
    Rslock(Vec<rslock::LockManager>),
}

impl Crowd {
    pub(crate) fn lockmod(nodes: &[Server], clients: usize) -> Crowd {
        Crowd::lockmod_at(&nodes.iter().map(Server::url).collect::<Vec<_>>(), clients)
    }

    fn lockmod_at(urls: &[String], clients: usize) -> Crowd {
        let builder = || Locker::builder().nodes(urls.iter().cloned()).ttl(TTL);
        let lockers = (0..clients).map(|_| builder().build().expect("the settings are good"));
        Crowd::Lockmod(lockers.collect())
    }

    pub(crate) fn rslock(nodes: &[Server], clients: usize, pause: Duration) -> Crowd {
        let manager = || {
            let mut manager = rslock::LockManager::new(nodes.iter().map(Server::url).collect());
            manager.set_retry(u32::MAX, pause);
            manager
        };
        Crowd::Rslock((0..clients).map(|_| manager()).collect())
    }
}

enum Held {
    Lockmod(lockmod::client::Guard),
    Rslock(rslock::LockManager, rslock::Lock),
}

impl Crowd {
    async fn acquire(&self, task: usize, name: &str) -> Option<Held> {
        match self {
            Crowd::Lockmod(lockers) => {
                let acquire = lockers[task % lockers.len()].acquire(name);
                acquire.wait(Duration::from_secs(60)).await.ok().map(Held::Lockmod)
            }
            Crowd::Rslock(managers) => {
                let manager = &managers[task % managers.len()];
                let lock = manager.lock(name, TTL).await.ok()?;
                Some(Held::Rslock(manager.clone(), lock))
            }
        }
    }
}

async fn release(held: Held) -> bool {
    match held {
        Held::Lockmod(guard) => guard.release().await.is_ok(),
        Held::Rslock(manager, lock) => {
            manager.unlock(&lock).await;
            true
        }
    }
}

/// The result of one run. Times in microseconds.
pub(crate) struct Outcome {
    pub(crate) rate: f64,
    pub(crate) hold: f64,
    pub(crate) hand_over_p50: f64,
    pub(crate) hand_over_p99: f64,
    pub(crate) wait_p99: f64,
    pub(crate) jain: f64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: f64,
    /// Commands that all nodes carried out, per acquisition.
    pub(crate) commands: f64,
    pub(crate) failed: usize,
}

#[derive(Default)]
struct Tally {
    released_at: Option<Instant>,
    hand_overs: Vec<f64>,
    holds: Vec<f64>,
    waits: Vec<f64>,
    counts: Vec<f64>,
    failed: usize,
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// This many tasks acquire one lock, hold it for a millisecond and release it, again and again.
pub(crate) async fn run(
    crowd: &Crowd,
    nodes: &[Server],
    name: &'static str,
    tasks: usize,
    length: Duration,
) -> Outcome {
    let tally = Arc::new(Mutex::new(Tally { counts: vec![0.0; tasks], ..Tally::default() }));
    let (client_before, server_before) = (cpu_of(std::process::id()), cpu_of_nodes(nodes));
    let commands_before = commands_of(nodes);
    let start = Instant::now();
    let handles: Vec<_> = (0..tasks)
        .map(|task| {
            let (crowd, tally) = (crowd.clone(), Arc::clone(&tally));
            tokio::spawn(async move {
                while start.elapsed() < length {
                    let began = Instant::now();
                    let held = crowd.acquire(task, name).await;
                    let acquired = Instant::now();
                    let Some(held) = held else {
                        tally.lock().expect("no panic").failed += 1;
                        continue;
                    };
                    {
                        let mut tally = tally.lock().expect("no panic");
                        let released = tally.released_at.take();
                        tally.hand_overs.extend(released.map(|at| micros(acquired - at)));
                        tally.waits.push(micros(acquired - began));
                        tally.counts[task] += 1.0;
                    }
                    tokio::time::sleep(HOLD).await;
                    let released = Instant::now();
                    {
                        let mut tally = tally.lock().expect("no panic");
                        tally.holds.push(micros(released - acquired));
                        tally.released_at = Some(released);
                    }
                    release(held).await;
                }
            })
        })
        .collect();
    for handle in handles {
        handle.await.expect("no task panics");
    }
    let elapsed = start.elapsed().as_secs_f64();
    let client_cpu = cpu_of(std::process::id()) - client_before;
    let server_cpu = cpu_of_nodes(nodes) - server_before;
    let tally = std::mem::take(&mut *tally.lock().expect("no panic"));
    let count = tally.holds.len() as f64;
    let sum: f64 = tally.counts.iter().sum();
    let squares: f64 = tally.counts.iter().map(|count| count * count).sum();
    Outcome {
        rate: count / elapsed,
        hold: tally.holds.iter().sum::<f64>() / count,
        hand_over_p50: median(tally.hand_overs.clone()),
        hand_over_p99: percentile(tally.hand_overs, 0.99),
        wait_p99: percentile(tally.waits, 0.99),
        jain: sum * sum / (tasks as f64 * squares),
        client_cpu: client_cpu * 1e6 / count,
        server_cpu: server_cpu * 1e6 / count,
        commands: (commands_of(nodes) - commands_before) / count,
        failed: tally.failed,
    }
}

fn percentile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * part) as usize).copied().unwrap_or_default()
}

/// The seconds of CPU time that a process has used.
pub(crate) fn cpu_of(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn cpu_of_nodes(nodes: &[Server]) -> f64 {
    nodes.iter().map(|node| cpu_of(node.pid())).sum()
}

fn commands_of(nodes: &[Server]) -> f64 {
    nodes.iter().map(|node| node.info_u64("total_commands_processed") as f64).sum()
}

/// The time of a bare quorum round trip: one command to all, until the third answer.
pub(crate) async fn round_trip(fan_out: &FanOut) -> f64 {
    let mut set = redis::cmd("SET");
    set.arg("round-trip").arg(1);
    let mut times = Vec::new();
    for _ in 0..2_000 {
        let start = Instant::now();
        assert!(fan_out.all(&set).await, "five nodes answer");
        times.push(micros(start.elapsed()));
    }
    median(times)
}

impl Outcome {
    pub(crate) fn print(&self, name: &str, tasks: usize, round_trip: f64) {
        let ideal = 1e6 / (self.hold + 1.5 * round_trip);
        let fair = tasks as f64 * 1e6 / self.rate;
        println!(
            "  {name:14} {:6.0}/s ({:.2} of ideal), hold {:5.0} us, \
             hand-over p50 {:5.0} p99 {:6.0} us",
            self.rate,
            self.rate / ideal,
            self.hold,
            self.hand_over_p50,
            self.hand_over_p99,
        );
        println!(
            "  {:14} Jain {:.4}, wait p99 {:.2} of the fair share, \
             CPU us client {:.0} + server {:.0}, \
             {:.1} commands, {:.0} us beside the hold{}",
            "",
            self.jain,
            self.wait_p99 / fair,
            self.client_cpu,
            self.server_cpu,
            self.commands,
            1e6 / self.rate - self.hold,
            if self.failed > 0 { format!(", {} FAILED", self.failed) } else { String::new() },
        );
    }
}

/// Sixteen `rslock` clients at the pace that gives them the most acquisitions per second.
async fn best_rslock(nodes: &[Server], length: Duration) -> Crowd {
    let mut best = (0.0, Crowd::Rslock(Vec::new()));
    for pause in RSLOCK_PAUSES {
        let crowd = Crowd::rslock(nodes, 16, Duration::from_millis(pause));
        let rate = run(&crowd, nodes, "crowd:pace", 16, length).await.rate;
        println!("  rslock that pauses up to {pause} ms: {rate:.0}/s");
        if rate > best.0 {
            best = (rate, crowd);
        }
    }
    best.1
}

/// The same lock over links on which a round trip takes 20 ms.
pub(crate) async fn compare_slow(nodes: &[Server], rounds: usize, length: Duration) {
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    proxies.iter().for_each(|proxy| proxy.set(Flow::Delay(SLOW / 2)));
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    println!("one lock, held for 1 ms, on links whose round trip takes {} ms", SLOW.as_millis());
    for round in 0..rounds {
        println!("round {}", round + 1);
        // On its own, the benchmark is its own proxy: few clients, so that its threads do not
        // count.
        let crowd = Crowd::lockmod_at(&urls, 4);
        let outcome = run(&crowd, nodes, "crowd:slow", 4, length).await;
        outcome.print("slow links", 4, micros(SLOW));
        println!(
            "  hand-over in round trips: p50 {:.2}, p99 {:.2}",
            outcome.hand_over_p50 / micros(SLOW),
            outcome.hand_over_p99 / micros(SLOW)
        );
    }
}

/// The whole comparison.
pub(crate) async fn compare(nodes: &[Server], fan_out: &FanOut, rounds: usize, length: Duration) {
    let round_trip_time = round_trip(fan_out).await;
    println!("one lock, held for 1 ms; a bare quorum round trip takes {round_trip_time:.0} us");
    let rivals = [
        ("lockmod", Crowd::lockmod(nodes, 16), 16),
        ("rslock", best_rslock(nodes, length / 2).await, 16),
        ("one client", Crowd::lockmod(nodes, 1), 16),
        ("1000 tasks", Crowd::lockmod(nodes, 16), 1_000),
    ];
    let mut ratios: [Vec<f64>; 5] = Default::default();
    for round in 0..rounds {
        println!("round {}", round + 1);
        let mut outcomes = Vec::new();
        for (index, (name, crowd, tasks)) in rivals.iter().enumerate() {
            let lock = ["crowd:a", "crowd:b", "crowd:c", "crowd:d"][index];
            let outcome = run(crowd, nodes, lock, *tasks, length).await;
            outcome.print(name, *tasks, round_trip_time);
            outcomes.push(outcome);
        }
        let wakes = wake::run(nodes, 16, length).await;
        let wake_p50 = median(wakes.clone());
        let wake_p99 = percentile(wakes, 0.99);
        println!("  bare wake: p50 {wake_p50:.0} p99 {wake_p99:.0} us");
        let [ours, theirs, _, many] = &outcomes[..] else { return };
        let cpu = |outcome: &Outcome| outcome.client_cpu + outcome.server_cpu;
        let new = [
            ours.hand_over_p50 / theirs.hand_over_p50,
            ours.hand_over_p99 / theirs.hand_over_p99,
            cpu(ours) / cpu(theirs),
            many.rate / ours.rate,
            ours.hand_over_p50 / wake_p50,
        ];
        for (all, new) in ratios.iter_mut().zip(new) {
            all.push(new);
        }
    }
    let names = [
        "hand-over p50, lockmod / rslock",
        "hand-over p99, lockmod / rslock",
        "CPU per acquisition, lockmod / rslock",
        "acquisitions per second, 1000 tasks / 16",
        "hand-over p50, lockmod / bare wake",
    ];
    for (name, values) in names.iter().zip(ratios) {
        println!("  {name}: {}", spread(&values));
    }
}
