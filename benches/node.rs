//! The cost of a node: lockmod and the recipes that it replaces, on one server, in one run.
//!
//! The benchmark compares server CPU, because it is steadier than wall-clock time: the server's own
//! account of its main thread, over pipelined commands. Each round runs every rival in turn; the
//! ratio of two rivals is the median of the rounds' ratios, so that a machine whose speed drifts
//! does not favour one of them. `cargo bench --bench node`; with `-- quick`, fewer rounds of fewer
//! commands.

#[path = "../tests/common/mod.rs"]
mod common;
mod report;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Server, wait_at_most};
use report::{machine, median, spread};

/// The recipe's release: deletes the key if it holds the token.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const CLIENTS: usize = 8;
const PIPELINE: usize = 64;
const TOKEN: &str = "0123456789abcdefghij";

/// How a rival acquires and releases a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rival {
    Lockmod,
    /// The same, as a reader.
    Reader,
    Script,
    /// If the server has such a command: it deletes the key if it holds the token.
    Delex,
    Delifeq,
    Bare,
}

impl Rival {
    fn name(self) -> &'static str {
        match self {
            Rival::Lockmod => "LOCK.ACQUIRE + LOCK.RELEASE",
            Rival::Reader => "the same, SHARED",
            Rival::Script => "SET NX PX + EVALSHA",
            Rival::Delex => "SET NX PX + DELEX IFEQ",
            Rival::Delifeq => "SET NX PX + DELIFEQ",
            Rival::Bare => "SET NX PX + DEL",
        }
    }

    fn acquire(self, name: &str) -> Vec<String> {
        match self {
            Rival::Lockmod => words(&["LOCK.ACQUIRE", name, TOKEN, "30000"]),
            Rival::Reader => words(&["LOCK.ACQUIRE", name, TOKEN, "30000", "SHARED"]),
            Rival::Script | Rival::Delex | Rival::Delifeq | Rival::Bare => {
                words(&["SET", name, TOKEN, "NX", "PX", "30000"])
            }
        }
    }

    fn release(self, name: &str, script: &str) -> Vec<String> {
        match self {
            Rival::Lockmod | Rival::Reader => words(&["LOCK.RELEASE", name, TOKEN]),
            Rival::Script => words(&["EVALSHA", script, "1", name, TOKEN]),
            Rival::Delex => words(&["DELEX", name, "IFEQ", TOKEN]),
            Rival::Delifeq => words(&["DELIFEQ", name, TOKEN]),
            Rival::Bare => words(&["DEL", name]),
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick" || arg == "--test");
    let (rounds, commands) = if quick { (3, 40_000) } else { (9, 400_000) };
    let plain = || Server::builder().config("save", "\"\"");
    let server = plain().start();
    let version = common::server_version();
    let (name, major, minor) = (version.name, version.major, version.minor);
    println!("{name} {major}.{minor}.{} on {}", version.patch, machine());
    println!("{CLIENTS} clients, {PIPELINE} commands each at a time; server CPU per command\n");
    let bench = Bench { server, rounds, commands };
    for names in [1_000, 20_000] {
        bench.pairs(&format!("acquire and release, {names} names in turn"), Some(names));
    }
    bench.pairs("acquire and release, each name once", None);
    bench.distinct();
    for count in [64, 10_000] {
        bench.readers(count);
    }
    bench.memory(if quick { 50_000 } else { 1_000_000 });
    bench.idle(if quick { 50_000 } else { 1_000_000 });
    drop(bench);
    let server = plain().config("appendonly", "yes").start();
    Bench { server, rounds, commands }
        .pairs("the same with an append-only file, 1000 names in turn", Some(1_000));
    let server = plain().start();
    let replica = plain().replica_of(&server).start();
    server.wait_for_replica(&replica);
    Bench { server, rounds, commands }
        .pairs("the same with a replica, 1000 names in turn", Some(1_000));
}

struct Bench {
    server: Server,
    rounds: usize,
    commands: usize,
}

impl Bench {
    /// `names`: how many there are, used in turn; `None`: each is used once.
    fn pairs(&self, title: &str, names: Option<usize>) {
        println!("{title}");
        let script = self.script();
        let rivals = self.rivals();
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); rivals.len()];
        for _ in 0..self.rounds {
            for (rival, costs) in rivals.iter().zip(&mut costs) {
                self.run("FLUSHALL SYNC");
                let pair = |client: usize, number: usize| {
                    // Each client has its own names, and holds a lock for half a pipeline.
                    let (batch, place) = (number / PIPELINE, number % PIPELINE);
                    let pair = batch * (PIPELINE / 2) + place % (PIPELINE / 2);
                    let pair = names.map_or(pair, |names| pair % (names / CLIENTS));
                    let name = format!("lock:{client}:{pair:08}");
                    if place < PIPELINE / 2 {
                        rival.acquire(&name)
                    } else {
                        rival.release(&name, &script)
                    }
                };
                if let Some(names) = names {
                    self.load(names * 2, pair);
                }
                costs.push(self.cost(pair));
            }
        }
        let names: Vec<&str> = rivals.iter().map(|rival| rival.name()).collect();
        report(&names, &costs);
    }

    /// lockmod, and the alternatives that this server has.
    fn rivals(&self) -> Vec<Rival> {
        let has = |name: &str| {
            !matches!(&self.run(&format!("COMMAND INFO {name}")), redis::Value::Array(found)
                if found.iter().all(|command| *command == redis::Value::Nil))
        };
        let native = [("DELEX", Rival::Delex), ("DELIFEQ", Rival::Delifeq)];
        let native = native.into_iter().filter(|(name, _)| has(name)).map(|(_, rival)| rival);
        [Rival::Lockmod, Rival::Script]
            .into_iter()
            .chain(native)
            .chain([Rival::Bare, Rival::Reader])
            .collect()
    }

    /// One more reader of a lock that already has this many, compared with a writer of a free lock;
    /// and the memory of those readers.
    fn readers(&self, count: usize) {
        self.run("FLUSHALL SYNC");
        self.run("CONFIG SET lockmod.max-readers 100000");
        let before = self.server.info_u64("used_memory");
        let reads = |token: String| words(&["LOCK.ACQUIRE", "lock", &token, "3000000", "SHARED"]);
        let count =
            self.load(count, |client, number| reads(format!("reader:{client:04}:{number:08}")));
        let grown = self.server.info_u64("used_memory").saturating_sub(before);
        println!("acquire and release by one more than {count} readers of one lock");
        let pair = |is_reader: bool| {
            move |client: usize, number: usize| {
                let token = format!("one more:{client:04}:{number:06}", number = number / 2);
                let (name, is_first) = (format!("own:{client}"), number.is_multiple_of(2));
                match (is_reader, is_first) {
                    (true, true) => reads(token),
                    (true, false) => words(&["LOCK.RELEASE", "lock", &token]),
                    (false, true) => Rival::Lockmod.acquire(&name),
                    (false, false) => Rival::Lockmod.release(&name, ""),
                }
            }
        };
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); 2];
        for _ in 0..self.rounds {
            for (is_reader, costs) in [false, true].into_iter().zip(&mut costs) {
                costs.push(self.cost(pair(is_reader)));
            }
        }
        report(&["a writer, alone", "one more reader"], &costs);
        println!("  {:.1} bytes for each reader\n", grown as f64 / count as f64);
    }

    fn distinct(&self) {
        println!("acquire only, each name new");
        let rivals = [Rival::Lockmod, Rival::Bare];
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); rivals.len()];
        for _ in 0..self.rounds {
            for (rival, costs) in rivals.iter().zip(&mut costs) {
                self.run("FLUSHALL SYNC");
                costs.push(
                    self.cost(|client, number| {
                        rival.acquire(&format!("lock:{client}:{number:08}"))
                    }),
                );
            }
        }
        report(&["LOCK.ACQUIRE", "SET NX PX"], &costs);
    }

    fn memory(&self, locks: usize) {
        println!("memory of {locks} held locks, 16-byte names, 20-byte tokens");
        let mut bytes = Vec::new();
        for rival in [Rival::Lockmod, Rival::Bare] {
            self.run("FLUSHALL SYNC");
            let before = self.server.info_u64("used_memory");
            let locks = self.fill(rival, locks);
            let grown = self.server.info_u64("used_memory").saturating_sub(before);
            bytes.push(grown as f64 / locks as f64);
        }
        println!("  LOCK.ACQUIRE {:.1} bytes each, SET NX PX {:.1}", bytes[0], bytes[1]);
        println!("  ratio {:.3}\n", bytes[0] / bytes[1]);
    }

    fn idle(&self, locks: usize) {
        println!("{locks} names used once and forgotten after lockmod.idle-ms");
        self.run("FLUSHALL SYNC");
        let used = || self.server.info_u64("used_memory") / 1024;
        let before = used();
        self.load(locks * 2, |client, number| {
            let name = format!("once:{client}:{:08}", number / 2);
            if number % 2 == 0 {
                Rival::Lockmod.acquire(&name)
            } else {
                Rival::Lockmod.release(&name, "")
            }
        });
        let during = used();
        self.run("CONFIG SET lockmod.idle-ms 1");
        let started = Instant::now();
        wait_at_most(Duration::from_secs(300), "all are forgotten", || {
            (self.server.info_u64("lockmod_locks") == 0).then_some(())
        });
        println!(
            "  used_memory before {before} KiB, with all {during} KiB, after {} KiB ({:.1} s)\n",
            used(),
            started.elapsed().as_secs_f64()
        );
        self.run("CONFIG SET lockmod.idle-ms 86400000");
    }

    /// Server CPU per command in microseconds.
    fn cost(&self, command: impl Fn(usize, usize) -> Vec<String> + Sync) -> f64 {
        let before = self.server.cpu_seconds();
        let count = self.load(self.commands, command);
        (self.server.cpu_seconds() - before) * 1e6 / count as f64
    }

    fn fill(&self, rival: Rival, locks: usize) -> usize {
        self.load(locks, |client, number| rival.acquire(&format!("lock:{client:03}:{number:07}")))
    }

    /// Sends `count` commands, in whole pipelines, over all clients; returns their number.
    /// `command` makes each, by client and number.
    fn load(&self, count: usize, command: impl Fn(usize, usize) -> Vec<String> + Sync) -> usize {
        let share = (count / CLIENTS).next_multiple_of(PIPELINE);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let command = &command;
                scope.spawn(move || {
                    let mut stream = UnixStream::connect(self.server.socket()).expect("connects");
                    for first in (0..share).step_by(PIPELINE) {
                        let mut bytes = Vec::new();
                        for number in first..first + PIPELINE {
                            encode(&mut bytes, &command(client, number));
                        }
                        stream.write_all(&bytes).expect("writes");
                        read_replies(&mut stream, PIPELINE);
                    }
                });
            }
        });
        share * CLIENTS
    }

    fn run(&self, line: &str) -> redis::Value {
        self.server.run(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn script(&self) -> String {
        let mut connection = self.server.connect();
        redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(COMPARE_AND_DELETE)
            .query(&mut connection)
            .expect("the script loads")
    }
}

fn encode(bytes: &mut Vec<u8>, words: &[String]) {
    bytes.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
}

/// Reads replies, one line each, and asserts that every command did its work.
fn read_replies(stream: &mut UnixStream, expected: usize) {
    let mut room = [0; 16 * 1024];
    let mut seen = 0;
    let mut line_start = true;
    while seen < expected {
        let length = stream.read(&mut room).expect("the server answers");
        assert!(length > 0, "the server hung up");
        for &byte in &room[..length] {
            assert!(!line_start || byte == b':' || byte == b'+', "a command was refused");
            line_start = byte == b'\n';
            seen += usize::from(line_start);
        }
    }
}

fn report(names: &[&str], costs: &[Vec<f64>]) {
    for (name, costs) in names.iter().zip(costs) {
        println!("  {:.3} us  {name}", median(costs.clone()));
    }
    for (name, rival) in names.iter().zip(costs).skip(1) {
        let ratios: Vec<f64> = costs[0].iter().zip(rival).map(|(own, rival)| own / rival).collect();
        println!("  ratio {} to {name}", spread(&ratios));
    }
    println!();
}
