//! The cost of waiting: how fast a lock is handed over, compared with `BLPOP`, and what a waiter
//! costs in memory and time, in one run.
//!
//! A hand-over is timed from sending the release until the waiter's answer is read, with 2 to 10000
//! blocked connections in line; `BLPOP`'s from sending the `LPUSH`. The two have a server each, and
//! take turns in batches. `cargo bench --bench line`; with `-- quick`, fewer of everything.

#[path = "../tests/common/mod.rs"]
mod common;
mod report;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::time::Instant;

use common::{Server, wait_until};
use report::{machine, median, spread};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// This many hand-overs are timed before the other rival has its turn.
const BATCH: usize = 100;
/// Descriptors other than those of waiters.
const SPARE: u64 = 500;

fn main() {
    let quick = std::env::args().any(|arg| arg == "quick" || arg == "--test");
    let (counts, batches) = if quick { (vec![2, 100], 4) } else { (vec![2, 100, 10_000], 20) };
    let version = common::server_version();
    let (name, major, minor) = (version.name, version.major, version.minor);
    println!("{name} {major}.{minor}.{} on {}\n", version.patch, machine());
    pin(None, 0);
    for count in counts {
        // If the system does not allow a process two files for each, there are fewer.
        let allowed = allow_descriptors(2 * count as u64 + SPARE).saturating_sub(SPARE) / 2;
        hand_over(count.min(allowed as usize), batches);
    }
    tickets(if quick { &[100, 1_000] } else { &[100, 10_000, 100_000] });
}

/// Raises this process's limit of open files to this many, or as many as the system allows; returns
/// it.
fn allow_descriptors(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let more = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|max| max.max(wanted)) };
    let within = Rlimit { current: limit.maximum.map(|max| max.min(wanted)), ..limit };
    if limit.current.is_some_and(|current| current < wanted)
        && setrlimit(Resource::Nofile, more).is_err()
    {
        setrlimit(Resource::Nofile, within).expect("the limit is within what is allowed");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(wanted)
}

fn server() -> Server {
    let builder = Server::builder().config("save", "\"\"").config("maxclients", 10_100);
    let server = builder.module_arg("max-waiters", 1_000_000).start();
    pin(Pid::from_raw(server.pid() as i32), 1);
    server
}

/// The processors that this process could use when it was started.
static PROCESSORS: LazyLock<Vec<usize>> = LazyLock::new(|| {
    let set = sched_getaffinity(None).expect("the system says what it allows");
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
});

/// Pins a process, or this one, to one processor, so that server and client do not share one.
/// Otherwise chance decides that for a whole run, and makes a hand-over three times as fast or as
/// slow.
fn pin(process: Option<Pid>, place: usize) {
    if PROCESSORS.len() > 1 {
        let mut set = CpuSet::new();
        set.set(PROCESSORS[place]);
        sched_setaffinity(process, &set).expect("it was allowed at the start");
    }
}

/// Connects with `TCP_NODELAY`, as other clients do.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("connects");
    stream.set_nodelay(true).expect("is connected");
    stream
}

/// A lock or a list that clients wait for, in the order in which they came.
struct Line {
    server: Server,
    kind: Kind,
    /// The client that releases the lock, or pushes.
    giver: Client,
    /// The first in line comes first.
    waiters: VecDeque<Client>,
    /// A client that only asks whether the server has carried out all requests.
    other: TcpStream,
    /// Of a connection that waits.
    bytes_each: f64,
}

struct Client {
    stream: TcpStream,
    token: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Lock,
    List,
}

impl Line {
    fn new(kind: Kind, count: usize) -> Line {
        let server = server();
        let client =
            |number: usize| Client { stream: connect(&server), token: format!("{number:020}") };
        let mut giver = client(count);
        if kind == Kind::Lock {
            send(&mut giver.stream, &["LOCK.ACQUIRE", "line", &giver.token, "600000"]);
            read_line(&mut giver.stream);
        }
        let before = server.info_u64("used_memory");
        let mut waiters: VecDeque<Client> = (0..count).map(client).collect();
        for waiter in &mut waiters {
            wait(kind, waiter);
        }
        let blocked = || server.info_u64("blocked_clients") == count as u64;
        wait_until("all are in line", blocked);
        let bytes = server.info_u64("used_memory").saturating_sub(before);
        let bytes_each = bytes as f64 / count as f64;
        let other = connect(&server);
        Line { server, kind, giver, waiters, other, bytes_each }
    }

    /// Hands over once, from the giver to the first, which becomes the giver, and the giver the
    /// last; returns how long it took, in microseconds.
    fn hand_over(&mut self) -> f64 {
        let mut next = self.waiters.pop_front().expect("a client waits");
        let started = Instant::now();
        let Client { stream, token } = &mut self.giver;
        match self.kind {
            Kind::Lock => send(stream, &["LOCK.RELEASE", "line", token]),
            Kind::List => send(stream, &["LPUSH", "line", "x"]),
        }
        read_line(&mut next.stream);
        let took = started.elapsed().as_secs_f64() * 1e6;
        if self.kind == Kind::List {
            // An array of two strings.
            (0..4).for_each(|_| read_line(&mut next.stream));
        }
        read_line(&mut self.giver.stream);
        let mut last = std::mem::replace(&mut self.giver, next);
        wait(self.kind, &mut last);
        self.waiters.push_back(last);
        // A client that begins to wait must not count for the next hand-over.
        send(&mut self.other, &["PING"]);
        read_line(&mut self.other);
        took
    }
}

fn wait(kind: Kind, client: &mut Client) {
    let Client { stream, token } = client;
    match kind {
        Kind::Lock => send(stream, &["LOCK.ACQUIRE", "line", token, "600000", "WAIT", "600000"]),
        Kind::List => send(stream, &["BLPOP", "line", "0"]),
    }
}

fn hand_over(count: usize, batches: usize) {
    println!("hand-over with {count} blocked connections in line");
    let mut lines = [Line::new(Kind::Lock, count), Line::new(Kind::List, count)];
    let mut medians = [Vec::new(), Vec::new()];
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..batches {
        for ((line, medians), all) in lines.iter_mut().zip(&mut medians).zip(&mut all) {
            let times: Vec<f64> = (0..BATCH).map(|_| line.hand_over()).collect();
            medians.push(median(times.clone()));
            all.extend(times);
        }
    }
    for ((name, line), mut times) in ["WAIT ", "BLPOP"].iter().zip(&lines).zip(all) {
        times.sort_by(f64::total_cmp);
        let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        let bytes = line.bytes_each;
        println!("  {name}  p50 {p50:.1} us, p99 {p99:.1} us, {bytes:.0} bytes a connection");
    }
    let [own, rival] = medians;
    let ratios: Vec<f64> = own.iter().zip(&rival).map(|(own, rival)| own / rival).collect();
    println!("  ratio {} of the batches' p50\n", spread(&ratios));
    let handed_over = lines[0].server.info_u64("lockmod_handed_over");
    assert_eq!(handed_over, (batches * BATCH) as u64, "each was a hand-over");
}

/// The cost of a ticket in a line of this length: to add and remove it, and its memory.
fn tickets(counts: &[usize]) {
    println!("tickets in one line, over one connection");
    let mut first = None;
    for &count in counts {
        let server = server();
        let mut conn = connect(&server);
        send(&mut conn, &["LOCK.ACQUIRE", "line", "holder", "600000"]);
        read_line(&mut conn);
        let before = server.info_u64("used_memory");
        let mut queue = |number: usize| {
            let (token, ticket) = (format!("{number:020}"), format!("1763690000000-{number:016x}"));
            let [name, ms, channel] = ["line", "600000", "lockmod:wake:0123456789abcdef"];
            send(
                &mut conn,
                &["LOCK.RELEASE", name, &token, "QUEUE", ms, "TICKET", &ticket, "NOTIFY", channel],
            );
            read_line(&mut conn);
        };
        (0..count).for_each(&mut queue);
        let bytes = server.info_u64("used_memory").saturating_sub(before) as f64 / count as f64;
        // Refreshed in a shuffled order: each is found, taken out and put back.
        let rounds = 10_000;
        let cpu = server.cpu_seconds();
        (0..rounds).for_each(|round| queue(round * 7_919 % count));
        let each = (server.cpu_seconds() - cpu) * 1e6 / rounds as f64;
        assert_eq!(server.info_u64("lockmod_waiters"), count as u64);
        let first = *first.get_or_insert(each);
        println!(
            "  {count:6} in line: {bytes:.0} bytes each, {each:.2} us of server CPU a refresh, \
             ratio {:.3}",
            each / first
        );
    }
}

fn send(stream: &mut TcpStream, words: &[&str]) {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(bytes.as_bytes()).expect("writes");
}

/// Reads one line, and asserts that it is no error.
fn read_line(stream: &mut TcpStream) {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte).expect("the server answers");
        line.push(byte[0]);
    }
    assert!(!line.starts_with(b"-"), "refused: {}", line.escape_ascii());
}
