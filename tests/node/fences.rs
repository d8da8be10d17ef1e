//! Fences of a name rise strictly, whatever happens to its key in between.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;
use redis::Connection;

use crate::ask::{ask, ask_args, bytes, digest, field, wait_for_lapse};
use crate::common::{Server, run_args, wait_until};

/// Every fence that was granted, by database and name, and the dumps that were made on the way.
struct World {
    server: Server,
    replica: Server,
    conn: Connection,
    last: HashMap<(u8, u8), u64>,
    dumps: Vec<Vec<u8>>,
    tokens: u64,
    grants: u64,
}

#[derive(Clone, Debug)]
enum Step {
    /// A grant that stays.
    Acquire(u8, u8),
    /// A grant that is released.
    AcquireAndRelease(u8, u8),
    /// A grant whose lease ends.
    AcquireAndLapse(u8, u8),
    /// A grant whose fence is raised by this much.
    AcquireAndRaise(u8, u8, u64),
    /// Grants that are released, and leave the counter this far above the floor.
    Climb(u8, u8, u64),
    /// A command of one key, in which `KEY` is the name.
    OnKey(u8, u8, &'static str),
    /// A command of two keys, `FROM` and `TO`.
    OnTwo(u8, u8, u8, &'static str),
    /// Redis's own expiry.
    Expire(u8, u8),
    Dump(u8, u8),
    Restore(u8, u8, usize),
    /// Forgets every lock that is free.
    ForgetIdle,
    /// A command on the whole server.
    OnAll(&'static str),
    Rewrite,
}

impl World {
    fn new() -> World {
        let server = Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", "no")
            .config("aof-use-rdb-preamble", "no")
            .config("auto-aof-rewrite-percentage", 0)
            .config("hz", 500)
            .config("databases", DATABASES)
            .module_arg("idle-ms", 0)
            .start();
        let replica = Server::builder().config("databases", DATABASES).replica_of(&server).start();
        let conn = server.connect();
        World {
            server,
            replica,
            conn,
            last: HashMap::new(),
            dumps: Vec::new(),
            tokens: 0,
            grants: 0,
        }
    }

    fn select(&mut self, database: u8) {
        assert_eq!(ask(&mut self.conn, &format!("SELECT {database}")), "OK");
    }

    /// Asks for a grant under a token never used before; returns the token if it was granted.
    fn acquire(&mut self, database: u8, name: u8, ttl: u64) -> Option<(String, u64)> {
        self.select(database);
        self.tokens += 1;
        let token = format!("token-{}", self.tokens);
        let answer = ask(&mut self.conn, &format!("LOCK.ACQUIRE {} {token} {ttl}", key(name)));
        if answer == "nil" || answer.starts_with("WRONGTYPE") {
            return None;
        }
        let fence: u64 = answer.parse().unwrap_or_else(|_| panic!("no fence: {answer}"));
        self.granted(database, name, fence);
        self.grants += 1;
        Some((token, fence))
    }

    fn granted(&mut self, database: u8, name: u8, fence: u64) {
        let last = self.last.entry((database, name)).or_default();
        assert!(fence > *last, "database {database}, {}: {fence} after {last}", key(name));
        *last = fence;
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Acquire(database, name) => drop(self.acquire(database, name, 600_000)),
            Step::AcquireAndRelease(database, name) => {
                if let Some((token, _)) = self.acquire(database, name, 600_000) {
                    let line = format!("LOCK.RELEASE {} {token}", key(name));
                    assert_eq!(ask(&mut self.conn, &line), "1");
                }
            }
            Step::AcquireAndLapse(database, name) => {
                if self.acquire(database, name, 1).is_some() {
                    wait_for_lapse(&mut self.conn, &key(name));
                }
            }
            Step::AcquireAndRaise(database, name, by) => {
                if let Some((token, fence)) = self.acquire(database, name, 600_000) {
                    let raised = fence + by;
                    let line = format!("LOCK.FENCE {} {token} {raised}", key(name));
                    assert_eq!(ask(&mut self.conn, &line), raised.to_string());
                    self.last.insert((database, name), raised);
                }
            }
            Step::Climb(database, name, by) => {
                self.take(&Step::AcquireAndRelease(database, name));
                self.take(&Step::AcquireAndRaise(database, name, by));
                ask(&mut self.conn, &format!("LOCK.RELEASE {} token-{}", key(name), self.tokens));
            }
            Step::OnKey(database, name, command) => {
                self.select(database);
                ask(&mut self.conn, &command.replace("KEY", &key(name)));
            }
            Step::OnTwo(database, from, to, command) => {
                self.select(database);
                let line = command.replace("FROM", &key(from)).replace("TO", &key(to));
                ask(&mut self.conn, &line);
            }
            Step::Expire(database, name) => {
                self.take(&Step::OnKey(database, name, "PEXPIRE KEY 1"));
                let line = format!("EXISTS {}", key(name));
                wait_until("the key has expired", || ask(&mut self.conn, &line) == "0");
            }
            Step::Dump(database, name) => {
                self.select(database);
                let dump = run_args(&mut self.conn, &["DUMP", &key(name)]);
                if let Ok(redis::Value::BulkString(dump)) = dump {
                    self.dumps.push(dump);
                }
            }
            Step::Restore(database, name, which) => self.restore(database, name, which),
            Step::ForgetIdle => self.forget_idle(),
            Step::OnAll(command) => assert_eq!(ask(&mut self.conn, command), "OK", "{command}"),
            Step::Rewrite => self.rewrite(),
        }
    }

    fn restore(&mut self, database: u8, name: u8, which: usize) {
        if self.dumps.is_empty() {
            return;
        }
        self.select(database);
        let dump = self.dumps[which % self.dumps.len()].clone();
        let key = key(name);
        let args = [b"RESTORE".as_slice(), key.as_bytes(), b"0", &dump, b"REPLACE"];
        assert_eq!(ask_args(&mut self.conn, &args), "OK");
    }

    fn forget_idle(&mut self) {
        let forgotten = |server: &Server| server.info_u64("lockmod_idle_deleted");
        let before = forgotten(&self.server);
        self.select(0);
        if self.acquire(0, SENTINEL, 1).is_none() {
            return;
        }
        wait_for_lapse(&mut self.conn, &key(SENTINEL));
        assert_eq!(ask(&mut self.conn, "CONFIG SET lockmod.idle-ms 1"), "OK");
        wait_until("an idle lock is forgotten", || {
            forgotten(&self.server) > before && ask(&mut self.conn, "EXISTS sentinel") == "0"
        });
        assert_eq!(ask(&mut self.conn, "CONFIG SET lockmod.idle-ms 0"), "OK");
    }

    fn rewrite(&mut self) {
        let is_busy = |server: &Server| server.info_u64("aof_rewrite_in_progress") > 0;
        wait_until("no rewrite is going on", || !is_busy(&self.server));
        let answer = ask(&mut self.conn, "BGREWRITEAOF");
        assert!(answer.starts_with("Background"), "{answer}");
        wait_until("the rewrite has ended", || !is_busy(&self.server));
        assert_eq!(ask(&mut self.conn, "DEBUG LOADAOF"), "OK");
    }
}

impl World {
    /// None of this looks different to a replica.
    fn compare_with_replica(&mut self) {
        self.server.wait_for_replica(&self.replica);
        let copy = &mut self.replica.connect();
        assert_eq!(digest(copy), digest(&mut self.conn));
        for server in [&self.server, &self.replica] {
            let count = |conn: &mut Connection, database| {
                ask(conn, &format!("SELECT {database}"));
                ask(conn, "DBSIZE").parse::<u64>().expect("a number")
            };
            let conn = &mut server.connect();
            let keys: u64 = (0..DATABASES).map(|database| count(conn, database)).sum();
            wait_until("values that were replaced are freed", || {
                server.info_u64("lockmod_locks") == keys
            });
        }
    }
}

const NAMES: u8 = 3;
const DATABASES: u8 = 2;
/// The name whose disappearance shows that idle locks were forgotten.
const SENTINEL: u8 = 99;

fn key(name: u8) -> String {
    if name == SENTINEL { "sentinel".to_owned() } else { format!("name-{name}") }
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..DATABASES, 0..NAMES);
    let on_key = [
        "DEL KEY",
        "UNLINK KEY",
        "SET KEY x",
        "PEXPIRE KEY 0",
        "MOVE KEY 0",
        "MOVE KEY 1",
        "EVAL return{redis.call('DEL','KEY')} 0",
    ];
    let on_two = [
        "RENAME FROM TO",
        "RENAMENX FROM TO",
        "COPY FROM TO",
        "COPY FROM TO REPLACE",
        "COPY FROM TO DB 0 REPLACE",
        "COPY FROM TO DB 1 REPLACE",
    ];
    let on_all =
        ["FLUSHDB", "FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB ASYNC", "SWAPDB 0 1", "SWAPDB 0 1"];
    let reload = ["DEBUG RELOAD", "DEBUG LOADAOF"];
    prop_oneof![
        2 => place().prop_map(|(d, n)| Step::Acquire(d, n)),
        6 => place().prop_map(|(d, n)| Step::AcquireAndRelease(d, n)),
        1 => place().prop_map(|(d, n)| Step::AcquireAndLapse(d, n)),
        1 => (place(), 1_u64..50).prop_map(|((d, n), by)| Step::AcquireAndRaise(d, n, by)),
        8 => (place(), 1_u64..50).prop_map(|((d, n), by)| Step::Climb(d, n, by)),
        8 => (place(), proptest::sample::select(on_key.to_vec()))
            .prop_map(|((d, n), command)| Step::OnKey(d, n, command)),
        5 => (place(), 0..NAMES, proptest::sample::select(on_two.to_vec()))
            .prop_map(|((d, n), to, command)| Step::OnTwo(d, n, to, command)),
        1 => place().prop_map(|(d, n)| Step::Expire(d, n)),
        2 => place().prop_map(|(d, n)| Step::Dump(d, n)),
        4 => (place(), any::<usize>()).prop_map(|((d, n), which)| Step::Restore(d, n, which)),
        2 => proptest::sample::select(on_all.to_vec()).prop_map(Step::OnAll),
        2 => proptest::sample::select(reload.to_vec()).prop_map(Step::OnAll),
        1 => Just(Step::ForgetIdle),
        1 => Just(Step::Rewrite),
    ]
}

#[test]
fn every_fence_of_a_name_is_larger_than_all_before_it() {
    // One server for all cases: the next case must cope with what the last one left behind. So a
    // failing case cannot be shrunk by trying parts of it; all of its steps are printed.
    let world = RefCell::new(World::new());
    let config = ProptestConfig {
        cases: 100,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Default::default()
    };
    proptest!(config, |(steps in proptest::collection::vec(step(), 60))| {
        let world = &mut world.borrow_mut();
        for step in &steps {
            world.take(step);
        }
        for (database, name) in (0..DATABASES).flat_map(|d| (0..NAMES).map(move |n| (d, n))) {
            world.take(&Step::OnKey(database, name, "DEL KEY"));
            world.take(&Step::Acquire(database, name));
        }
        world.compare_with_replica();
    });
    let world = world.into_inner();
    assert!(world.grants > 1500, "only {} grants", world.grants);
    assert!(world.server.info_u64("lockmod_idle_deleted") > 0);
    for server in [&world.server, &world.replica] {
        assert!(!server.log().contains("panicked"));
    }
}

/// Acquires the lock often enough for its counter to be far above the node's floor.
fn climb(server: &Server, conn: &mut Connection, key: &str) -> u64 {
    let floor = server.info_u64("lockmod_floor");
    for _ in 0..2 {
        assert_ne!(ask(conn, &format!("LOCK.ACQUIRE {key} climber 600000")), "nil");
        assert_eq!(ask(conn, &format!("LOCK.RELEASE {key} climber")), "1");
    }
    ask(conn, &format!("LOCK.ACQUIRE {key} climber 600000"));
    let fence = floor + 100;
    assert_eq!(ask(conn, &format!("LOCK.FENCE {key} climber {fence}")), fence.to_string());
    assert!(server.info_u64("lockmod_floor") <= floor + 1, "the floor must not help");
    fence
}

#[test]
fn each_way_to_lose_a_lock_alone_leaves_its_name_above_all_its_fences() {
    let server = Server::builder().config("appendonly", "yes").start();
    let conn = &mut server.connect();
    ask(conn, "SADD set 3 1 2");
    ask(conn, "ZADD zset 1 one");
    for commands in [
        "DEL res",
        "UNLINK res",
        "SET res x; DEL res",
        "SET res x PX 100000; DEL res",
        "MSET res x other y; DEL res",
        "BITOP NOT res none",
        "SORT set STORE res; DEL res",
        "SINTERSTORE res set none",
        "SUNIONSTORE res set; DEL res",
        "ZUNIONSTORE res 1 zset; DEL res",
        "ZRANGESTORE res zset 0 -1; DEL res",
        "COPY set res REPLACE; DEL res",
        "RENAME res other",
        "RENAMENX res elsewhere; RENAME elsewhere other",
        "LOCK.ACQUIRE other A 1; RENAME other res",
        "LOCK.ACQUIRE other A 30000; COPY other res REPLACE; LOCK.RELEASE res A",
        "MOVE res 3; SELECT 3; DEL res; SELECT 0",
        "SWAPDB 0 3",
        "SWAPDB 0 3; SWAPDB 0 3; LOCK.RELEASE res climber",
        "PEXPIRE res 0",
        "EVAL redis.call('DEL','res') 0",
        "MULTI; DEL res; EXEC",
        "LOCK.RELEASE res climber; DEBUG RELOAD; DEL res",
        "LOCK.RELEASE res climber; DEBUG LOADAOF; DEL res",
        "DEBUG RELOAD; LOCK.RELEASE res climber",
        "DEBUG LOADAOF; LOCK.RELEASE res climber",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL",
        "FLUSHALL ASYNC",
    ] {
        ask(conn, "DEL res other");
        ask(conn, "SADD set 3 1 2");
        ask(conn, "ZADD zset 1 one");
        let last = climb(&server, conn, "res");
        for command in commands.split("; ") {
            let answer = ask(conn, command);
            assert!(!answer.starts_with("ERR"), "{command}: {answer}");
        }
        wait_until("the lock is free", || field(conn, "res", "state") == "free");
        let fence = ask(conn, "LOCK.ACQUIRE res A 30000");
        assert!(fence.parse::<u64>().unwrap() > last, "{commands}: {fence} after {last}");
    }
}

#[test]
fn an_older_dump_does_not_turn_a_counter_back() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    ask(conn, "LOCK.RELEASE res A");
    let old = bytes(conn, &["DUMP", "res"]);
    for delete_first in [false, true] {
        let last = climb(&server, conn, "res");
        if delete_first {
            ask(conn, "DEL res");
        }
        let restore = [b"RESTORE".as_slice(), b"res", b"0", &old, b"REPLACE"];
        assert_eq!(ask_args(conn, &restore), "OK");
        let fence: u64 = ask(conn, "LOCK.ACQUIRE res B 30000").parse().unwrap();
        assert!(fence > last, "{fence} after {last}");
        ask(conn, "LOCK.RELEASE res B");
    }
}

#[test]
fn a_counter_that_came_from_elsewhere_is_not_lost_by_a_flush() {
    let (mut server, other) = (Server::start(), Server::start());
    let (conn, away) = (&mut server.connect(), &mut other.connect());
    let last = climb(&server, conn, "res");
    let dump = bytes(conn, &["DUMP", "res"]);
    let restore = [b"RESTORE".as_slice(), b"res", b"0", &dump];
    assert_eq!(ask_args(away, &restore), "OK");
    ask(away, "FLUSHALL");
    assert_eq!(ask(away, "LOCK.ACQUIRE res A 30000"), (last + 1).to_string());
    server.terminate_with("SAVE");
    server.start_again();
    let conn = &mut server.connect();
    ask(conn, "FLUSHALL");
    let fence: u64 = ask(conn, "LOCK.ACQUIRE res A 30000").parse().unwrap();
    assert!(fence > last, "{fence} after {last}");
}

#[test]
fn fences_rise_past_an_eviction() {
    let server = Server::builder().config("maxmemory-policy", "allkeys-random").start();
    let conn = &mut server.connect();
    let limit = server.info_u64("used_memory") + 1_500_000;
    ask(conn, &format!("CONFIG SET maxmemory {limit}"));
    let filler = "x".repeat(20_000);
    let (mut last, mut lost) = ([0; 8], 0);
    for round in 0..400 {
        ask_args(conn, &["SET", &format!("filler-{round}"), &filler]);
        let name = round % last.len();
        if last[name] > 0 && ask(conn, &format!("EXISTS lock-{name}")) == "0" {
            lost += 1;
        }
        let answer = ask(conn, &format!("LOCK.ACQUIRE lock-{name} token-{round} 600000"));
        if answer == "nil" {
            continue;
        }
        let fence: u64 = answer.parse().unwrap_or_else(|_| panic!("no fence: {answer}"));
        assert!(fence > last[name], "{fence} after {} in round {round}", last[name]);
        last[name] = fence;
    }
    assert!(server.info_u64("evicted_keys") > 0);
    assert!(lost > 0, "no lock was ever evicted");
}

#[test]
fn the_floor_survives_a_restart_with_any_lock_that_is_left() {
    // Without the state file, which would have the floor too.
    let mut server = Server::builder().config("lockmod.state-file", r#""""#).start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE gone A 30000");
    ask(conn, "LOCK.FENCE gone A 50");
    ask(conn, "DEL gone");
    ask(conn, "LOCK.ACQUIRE left A 600000");
    server.terminate_with("SAVE");
    server.start_again();
    let conn = &mut server.connect();
    let fence: u64 = ask(conn, "LOCK.ACQUIRE gone B 30000").parse().unwrap();
    assert!(fence > 50, "{fence}");
    assert_eq!(ask(conn, "LOCK.EXTEND left A 30000"), "1");
}
