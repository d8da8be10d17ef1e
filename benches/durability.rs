//! The cost of the state file: the default compared with `state-file ""`, in turn, in one run. And
//! the cost of an append-only file that is synced before each answer, for lockmod and for `SET NX
//! PX` with a script.
//!
//! Three loads for the state file. Clients that wait for each answer: latency and throughput of a
//! pair of acquire and release. One lock over a pipeline: fences are used up as fast as one server
//! can, a block of 2^20 of them every few seconds. Fences raised by a 64th of a block each time,
//! far faster than in practice: the writer cannot keep ahead, and requests do wait for the disk. In
//! all of them time passes block after block of leases (10 s). The server counts how often the file
//! was written. A ratio is the median of the rounds' ratios, with file to without. `cargo bench
//! --bench durability`; with `-- quick`, fewer and shorter rounds.

#[path = "../tests/common/mod.rs"]
mod common;
mod report;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Builder, Server};
use report::{machine, median, spread};

const CLIENTS: usize = 8;
const PIPELINE: usize = 64;
const TOKEN: &str = "0123456789abcdefghij";
const FENCE_BLOCK: u64 = 1 << 20;

/// The result of one server in one round.
struct Round {
    /// Pairs of acquire and release per second.
    pairs_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
}

/// How a round is driven; returns the time of each answer, and the number of pairs.
type Load = fn(&Server, Duration) -> (Vec<Duration>, usize);

/// The loads, by name.
type Figure = (&'static str, fn(&Round) -> f64);

/// What a server has used up, and how often it wrote its file for that.
#[derive(Clone, Copy)]
struct Use {
    writes: u64,
    highest: u64,
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick" || arg == "--test");
    let (rounds, length) =
        if quick { (3, Duration::from_millis(500)) } else { (15, Duration::from_secs(1)) };
    let version = common::server_version();
    let (name, major, minor) = (version.name, version.major, version.minor);
    println!("{name} {major}.{minor}.{} on {}", version.patch, machine());
    println!("{rounds} rounds of {length:?}: with the state file, without, and without once more");
    println!("the last two are alike: their ratio is what the machine adds by chance\n");
    let start = |server: Builder| server.config("save", "\"\"").start();
    let without = || Server::builder().module_arg("state-file", "\"\"");
    let servers = [start(Server::builder()), start(without()), start(without())];
    let loads: [(&str, Load); 3] = [
        ("acquire and release, 8 clients that wait for each answer", waiting_clients),
        ("acquire and release of one lock, 64 commands at a time", one_lock),
        ("one client, each fence raised by 2^14: far beyond any use", jumping_fences),
    ];
    for (title, load) in loads {
        println!("{title}");
        compare(&servers, load, rounds, length);
    }
    drop(servers);
    append_only(rounds, length);
}

/// What each kind of append-only file costs a client that waits for an answer.
fn append_only(rounds: usize, length: Duration) {
    let start = |config: [(&str, &str); 2]| {
        let builder = Server::builder().config("save", "\"\"");
        config.into_iter().fold(builder, |server, (name, value)| server.config(name, value)).start()
    };
    let ways: [(&str, [(&str, &str); 2]); 3] = [
        ("no append-only file", [("appendonly", "no"), ("appendfsync", "no")]),
        ("appendfsync everysec", [("appendonly", "yes"), ("appendfsync", "everysec")]),
        ("appendfsync always", [("appendonly", "yes"), ("appendfsync", "always")]),
    ];
    println!("acquire and release, 8 clients that wait for each answer");
    for (title, config) in ways {
        let server = start(config);
        let mut results: [Vec<Round>; 2] = Default::default();
        for _ in 0..rounds {
            results[0].push(measure(&server, waiting_clients, length));
            results[1].push(measure(&server, waiting_clients_of_set, length));
        }
        let [lockmod, rival] = &results;
        let all = |rounds: &[Round], figure: fn(&Round) -> f64| {
            spread(&rounds.iter().map(figure).collect::<Vec<f64>>())
        };
        let ratios: Vec<f64> =
            lockmod.iter().zip(rival).map(|(own, other)| own.p50_us / other.p50_us).collect();
        println!(
            "  {title}: p50 {} us, p99 {} us; SET NX and script: p50 {} us; ratio of p50 {}",
            all(lockmod, |round| round.p50_us),
            all(lockmod, |round| round.p99_us),
            all(rival, |round| round.p50_us),
            spread(&ratios),
        );
    }
}

fn compare(servers: &[Server; 3], load: Load, rounds: usize, length: Duration) {
    let before = used(&servers[0]);
    let started = Instant::now();
    let mut results: [Vec<Round>; 3] = Default::default();
    for round in 0..rounds {
        // The order changes, so that no server always finds the machine as the same other one left
        // it.
        for turn in 0..servers.len() {
            let place = (round + turn) % servers.len();
            results[place].push(measure(&servers[place], load, length));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let after = used(&servers[0]);
    let figures: [Figure; 4] = [
        ("pairs/s", |round| round.pairs_per_second),
        ("p50 us", |round| round.p50_us),
        ("p99 us", |round| round.p99_us),
        ("p99.9 us", |round| round.p999_us),
    ];
    let [with, without, again] = &results;
    for (name, figure) in figures {
        let middle = |rounds: &[Round]| median(rounds.iter().map(figure).collect());
        let ratio = |rounds: &[Round]| {
            let pairs = rounds.iter().zip(without);
            let ratios: Vec<f64> =
                pairs.map(|(round, without)| figure(round) / figure(without)).collect();
            spread(&ratios)
        };
        println!(
            "  {name:9} {:10.1} with, {:10.1} without: ratio {} (chance: {})",
            middle(with),
            middle(without),
            ratio(with),
            ratio(again)
        );
    }
    println!(
        "  the file was written {} times in {seconds:.0} s, over {:.1} blocks of fences and {:.1} \
         of time\n",
        after.writes - before.writes,
        (after.highest - before.highest) as f64 / FENCE_BLOCK as f64,
        seconds / 10.0,
    );
}

fn used(server: &Server) -> Use {
    Use {
        writes: server.info_u64("lockmod_state_writes"),
        highest: server.info_u64("lockmod_highest_fence"),
    }
}

fn measure(server: &Server, load: Load, length: Duration) -> Round {
    let started = Instant::now();
    let (mut latencies, pairs) = load(server, length);
    let seconds = started.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let quantile = |part: f64| {
        let place = (latencies.len() as f64 * part) as usize;
        latencies[place.min(latencies.len() - 1)].as_secs_f64() * 1e6
    };
    Round {
        pairs_per_second: pairs as f64 / seconds,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
    }
}

fn waiting_clients(server: &Server, length: Duration) -> (Vec<Duration>, usize) {
    waiting(server, length, pair)
}

fn waiting_clients_of_set(server: &Server, length: Duration) -> (Vec<Duration>, usize) {
    waiting(server, length, pair_of_set)
}

/// Each client has 64 locks of its own, and waits for each answer.
fn waiting(
    server: &Server,
    length: Duration,
    pair: fn(&str) -> [Vec<u8>; 2],
) -> (Vec<Duration>, usize) {
    on_all_clients(|client| {
        let names: Vec<String> = (0..64).map(|lock| format!("lock:{client}:{lock}")).collect();
        let commands: Vec<[Vec<u8>; 2]> = names.iter().map(|name| pair(name)).collect();
        let mut connection = Connection::open(server);
        let mut latencies = Vec::new();
        let started = Instant::now();
        while started.elapsed() < length {
            let [acquire, release] = &commands[latencies.len() / 2 % commands.len()];
            latencies.extend([connection.ask(acquire, 1), connection.ask(release, 1)]);
        }
        let pairs = latencies.len() / 2;
        (latencies, pairs)
    })
}

/// One client, one lock: every pair uses up one fence.
fn one_lock(server: &Server, length: Duration) -> (Vec<Duration>, usize) {
    let pipeline = pair("one").concat().repeat(PIPELINE / 2);
    let mut connection = Connection::open(server);
    let mut latencies = Vec::new();
    let started = Instant::now();
    while started.elapsed() < length {
        latencies.push(connection.ask(&pipeline, PIPELINE));
    }
    let pairs = latencies.len() * PIPELINE / 2;
    (latencies, pairs)
}

/// One client, one lock: every pair uses up a 64th of a block of fences.
fn jumping_fences(server: &Server, length: Duration) -> (Vec<Duration>, usize) {
    let [acquire, release] = pair("jump");
    let mut connection = Connection::open(server);
    let mut latencies = Vec::new();
    let started = Instant::now();
    while started.elapsed() < length {
        let fence = connection.ask_number(&acquire);
        let raise = encode(&["LOCK.FENCE", "jump", TOKEN, &(fence + (1 << 14)).to_string()]);
        latencies.extend([connection.ask(&raise, 1), connection.ask(&release, 1)]);
    }
    let pairs = latencies.len() / 2;
    (latencies, pairs)
}

fn on_all_clients(
    client: impl Fn(usize) -> (Vec<Duration>, usize) + Sync,
) -> (Vec<Duration>, usize) {
    let client = &client;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        let mut all = (Vec::new(), 0);
        for thread in threads {
            let (latencies, pairs) = thread.join().expect("a client ends");
            all.0.extend(latencies);
            all.1 += pairs;
        }
        all
    })
}

/// The commands that acquire and release a lock.
fn pair(name: &str) -> [Vec<u8>; 2] {
    [encode(&["LOCK.ACQUIRE", name, TOKEN, "30000"]), encode(&["LOCK.RELEASE", name, TOKEN])]
}

/// The same with the server's own commands.
fn pair_of_set(name: &str) -> [Vec<u8>; 2] {
    let name = &format!("set:{name}");
    let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) \
                  else return 0 end";
    [
        encode(&["SET", name, TOKEN, "NX", "PX", "30000"]),
        encode(&["EVAL", script, "1", name, TOKEN]),
    ]
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// A connection that asserts that every command did its work.
struct Connection {
    stream: UnixStream,
    room: Vec<u8>,
}

impl Connection {
    fn open(server: &Server) -> Connection {
        let stream = UnixStream::connect(server.socket()).expect("connects");
        Connection { stream, room: vec![0; 16 * 1024] }
    }

    /// Sends commands and reads as many answers, one line each; returns how long that took.
    fn ask(&mut self, commands: &[u8], count: usize) -> Duration {
        let started = Instant::now();
        self.stream.write_all(commands).expect("writes");
        let (mut seen, mut starts_line) = (0, true);
        while seen < count {
            let length = self.stream.read(&mut self.room).expect("the server answers");
            assert!(length > 0, "the server hung up");
            for &byte in &self.room[..length] {
                assert!(!starts_line || matches!(byte, b':' | b'+'), "a command was refused");
                starts_line = byte == b'\n';
                seen += usize::from(starts_line);
            }
        }
        started.elapsed()
    }

    /// Sends one command whose answer is a number.
    fn ask_number(&mut self, command: &[u8]) -> u64 {
        self.ask(command, 1);
        let text = String::from_utf8_lossy(&self.room);
        let digits = text.trim_start_matches(':').split('\r').next().unwrap_or_default();
        digits.parse().expect("a number")
    }
}
