//! The cost of the packages, compared with the Rust client, redis-py's lock and node-redlock, in
//! one run.
//!
//! The Rust client, the packages and node-redlock lock over the same five nodes; redis-py's lock
//! uses the first of them alone, since it supports one node only. Each round runs all rivals in
//! turn for the same time; a ratio is the median of the rounds' ratios, followed by the lowest and
//! the highest. `cargo bench --bench packages`; with `-- quick`, fewer and shorter rounds. The
//! packages must be installed, as `cargo test --test languages` does.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../report/mod.rs"]
mod report;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Server, start_nodes};
use lockmod::client::Locker;
use report::{machine, median, spread};
use tokio::runtime::Runtime;

const NODES: usize = 5;
const NAMES_PER_TASK: u64 = 1_000;
/// How long each waiter has the lock, and how many waiters there are.
const HOLD: Duration = Duration::from_millis(10);
const HOLDERS: usize = 6;

/// Where a rival runs: in this process, or in another, under this word.
#[derive(Clone, Copy)]
enum Rival {
    Rust,
    Python(&'static str),
    Node(&'static str),
}

impl Rival {
    const fn name(self) -> &'static str {
        match self {
            Rival::Rust => "Rust",
            Rival::Python(word) | Rival::Node(word) => word,
        }
    }
}

/// Another language with its worker.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn python(urls: &[String]) -> Worker {
        let python = std::env::var_os("LOCKMOD_PYTHON")
            .unwrap_or_else(|| root().join("target/languages/python/bin/python").into());
        let mut command = Command::new(python);
        Worker::start(command.arg(root().join("benches/packages/worker.py")).args(urls))
    }

    fn node(urls: &[String]) -> Worker {
        let mut command = Command::new("node");
        let modules = root().join("target/languages/node/node_modules");
        command.env("NODE_PATH", modules).arg(root().join("benches/packages/worker.js"));
        Worker::start(command.args(urls))
    }

    fn start(command: &mut Command) -> Worker {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the languages are installed: `make deps`");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Worker { child, input, output }
    }

    /// The returned figure.
    fn ask(&mut self, command: &str) -> f64 {
        writeln!(self.input, "{command}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim().parse().unwrap_or_else(|_| panic!("{command}: {line:?} is no figure"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Cycles per second of this many tasks, each with its own locks.
async fn rate(locker: &Locker, tasks: usize, length: Duration) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let one = |task| {
        let (locker, done) = (locker.clone(), Arc::clone(&done));
        async move {
            let mut count = 0_u64;
            while start.elapsed() < length {
                let name = format!("Rust:{task}:{}", count % NAMES_PER_TASK);
                let guard = locker.acquire(name).await.expect("no other task has it");
                guard.release().await.expect("all nodes are up");
                count += 1;
            }
            done.fetch_add(count, Ordering::Relaxed);
        }
    };
    for handle in (0..tasks).map(one).map(tokio::spawn).collect::<Vec<_>>() {
        handle.await.expect("no cycle panics");
    }
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// Seconds until all tasks that want one lock have had it in turn.
async fn line(locker: &Locker) -> f64 {
    let start = Instant::now();
    let one = |_| {
        let locker = locker.clone();
        async move {
            let guard = locker.acquire("line").await.expect("its turn comes");
            tokio::time::sleep(HOLD).await;
            guard.release().await.expect("all nodes are up");
        }
    };
    for handle in (0..HOLDERS).map(one).map(tokio::spawn).collect::<Vec<_>>() {
        handle.await.expect("no task panics");
    }
    start.elapsed().as_secs_f64()
}

/// Prints the median figure of each rival, and its ratio to the first and to these others.
fn print(rivals: &[Rival], figures: &[Vec<f64>], others: &[&str]) {
    let compared = |name: &&str| rivals.iter().position(|rival| rival.name() == *name);
    let compared: Vec<usize> =
        std::iter::once(0).chain(others.iter().filter_map(compared)).collect();
    for (rival, values) in rivals.iter().zip(figures) {
        let ratio = |other: &usize| {
            let ratios = values.iter().zip(&figures[*other]).map(|(one, other)| one / other);
            let ratios: Vec<f64> = ratios.collect();
            format!("{} of {}", spread(&ratios), rivals[*other].name())
        };
        let ratios: Vec<String> = compared.iter().map(ratio).collect();
        println!("  {:14} {:9.3}  {}", rival.name(), median(values.clone()), ratios.join(", "));
    }
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick" || arg == "--test");
    let (rounds, length) = if quick { (3, 400) } else { (9, 1_500) };
    let length = Duration::from_millis(length);
    let runtime = Runtime::new().expect("threads can be started");
    let nodes = start_nodes(NODES, |_| Server::builder().config("save", "\"\""));
    println!("{:?}, {NODES} nodes on {}", common::server_version(), machine());
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let build = || Locker::builder().nodes(urls.clone()).build().expect("the settings are good");
    let locker = runtime.block_on(async { build() });
    let (mut python, mut node) = (Worker::python(&urls), Worker::node(&urls));
    let seconds = length.as_secs_f64();
    let mut rivals = vec![Rival::Rust];
    rivals.extend(["threads", "asyncio", "uvloop", "redis-py aio", "redis-py"].map(Rival::Python));
    rivals.extend(["node", "node-redlock"].map(Rival::Node));
    for tasks in [1, 64] {
        let mut figures = vec![Vec::new(); rivals.len()];
        // The first round is a warm-up.
        for round in 0..=rounds {
            for (rival, values) in rivals.iter().zip(&mut figures) {
                let figure = match rival {
                    Rival::Rust => runtime.block_on(rate(&locker, tasks, length)),
                    Rival::Python(word) => python.ask(&format!("{word},{tasks},{seconds}")),
                    Rival::Node(word) => node.ask(&format!("{word},{tasks},{seconds}")),
                };
                if round > 0 {
                    values.push(figure);
                }
            }
        }
        println!("{tasks} task(s), each its own locks: acquisitions and releases per second");
        print(&rivals, &figures, &["redis-py", "redis-py aio", "node-redlock"]);
    }
    let python_lines = ["line threads", "line asyncio"].map(Rival::Python);
    let rivals = [&[Rival::Rust], &python_lines[..], &[Rival::Node("line node")]].concat();
    let line_of = |word: &str| format!("{word},{HOLDERS},{}", HOLD.as_secs_f64());
    let mut figures = vec![Vec::new(); rivals.len()];
    for _ in 0..rounds * 3 {
        for (rival, values) in rivals.iter().zip(&mut figures) {
            values.push(match rival {
                Rival::Rust => runtime.block_on(line(&locker)),
                Rival::Python(word) => python.ask(&line_of(word)),
                Rival::Node(word) => node.ask(&line_of(word)),
            });
        }
    }
    println!("{HOLDERS} after one lock, {} ms each: seconds until all had it", HOLD.as_millis());
    print(&rivals, &figures, &[]);
}
