//! Nodes of a Redis Cluster: each decides on the locks in its slots, and on no others.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use redis::Connection;

use crate::ask::{ask, ask_all, ask_args, field};
use crate::common::{
    Builder, PATIENCE, Server, module_path, server_version, skip, wait_for, wait_until,
};
use crate::handover::{heard, wait};
use crate::line::{acquire, listener, queue, woken};
use crate::waiting::{LONG, nobody_waits, waiter};

fn builder() -> Builder {
    // A master that loses its last slot remains one.
    let stays = "cluster-allow-replica-migration";
    Server::builder().in_cluster().config("hz", 100).config(stays, "no")
}

fn node() -> Server {
    builder().start()
}

/// Masters of one cluster. The first has all slots but two, of which each of the others has one: so
/// most of those that have a vote are there when one of them is not.
struct Pair {
    from: Server,
    to: Server,
    third: Server,
}

impl Pair {
    fn start() -> Pair {
        Pair::of(node(), node())
    }

    fn of(from: Server, to: Server) -> Pair {
        let third = builder().module_arg("max-ttl", 1_000).start();
        let pair = Pair { from, to, third };
        let from = &mut pair.from.connect();
        assert_eq!(ask(from, "CLUSTER ADDSLOTSRANGE 0 16381"), "OK");
        assert_eq!(ask(&mut pair.to.connect(), "CLUSTER ADDSLOTS 16382"), "OK");
        assert_eq!(ask(&mut pair.third.connect(), "CLUSTER ADDSLOTS 16383"), "OK");
        for (other, epoch) in [(&pair.third, 1), (&pair.to, 2)] {
            // Two that start with the same epoch resolve the conflict themselves, and move slots
            // meanwhile.
            let line = format!("CLUSTER SET-CONFIG-EPOCH {epoch}");
            assert_eq!(ask(&mut other.connect(), &line), "OK");
            let (port, bus) = (other.port(), other.bus_port());
            assert_eq!(ask(from, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}")), "OK");
        }
        pair.wait_until_ok();
        pair
    }

    fn wait_until_ok(&self) {
        let servers = [&self.from, &self.to, &self.third];
        // Those without the module have no say.
        let may_agree = servers.iter().all(|server| server.info("lockmod_voters").is_some());
        for server in servers {
            let conn = &mut server.connect();
            wait_until("the node knows the cluster", || {
                let info = ask(conn, "CLUSTER INFO");
                let is_ok = info.contains("cluster_state:ok");
                let have_agreed = !may_agree || server.knows_voters(3);
                is_ok && info.contains("cluster_known_nodes:3") && decides(conn) && have_agreed
            });
        }
    }

    /// In one step, by the server; false if this server cannot.
    fn move_at_once(&self, key: &str) -> bool {
        let (from, to) = (&mut self.from.connect(), &mut self.to.connect());
        let slot = ask(from, &format!("CLUSTER KEYSLOT {key}"));
        let version = server_version();
        if version.is_redis_from(8, 4) {
            let task = ask(to, &format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
            assert!(!task.contains(' '), "{task}");
        } else if version.is_valkey() && version.major >= 9 {
            let to_id = ask(to, "CLUSTER MYID");
            let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to_id}");
            assert_eq!(ask(from, &line), "OK");
        } else {
            return false;
        }
        wait_until("the slot has moved", || {
            ask(from, &format!("LOCK.FENCE {key}")).starts_with("MOVED ")
                && !ask(to, &format!("LOCK.FENCE {key}")).starts_with("MOVED ")
        });
        true
    }
}

/// Makes a new server a replica of this master, and waits until it knows who has a vote.
fn attach(replica: &Server, master: &Server) {
    follow(replica, master);
    wait_until("it is told who has a vote", || replica.knows_voters(3));
}

fn follow(replica: &Server, master: &Server) {
    let (conn, of) = (&mut replica.connect(), &mut master.connect());
    let (port, bus) = (replica.port(), replica.bus_port());
    assert_eq!(ask(of, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}")), "OK");
    let follow = format!("CLUSTER REPLICATE {}", ask(of, "CLUSTER MYID"));
    wait_until("it knows the master", || ask(conn, &follow) == "OK");
    master.wait_for_replica(replica);
}

/// Waits until this replica knows all slots, and the masters know it: a master throws away what a
/// server says that it has never heard of.
fn wait_until_known(replica: &Server, masters: &[&Server]) {
    let conn = &mut replica.connect();
    wait_until("it knows all slots", || ask(conn, "CLUSTER INFO").contains("cluster_size:3"));
    let id = ask(conn, "CLUSTER MYID");
    for master in masters {
        let known = || ask(&mut master.connect(), "CLUSTER NODES").contains(&id);
        wait_until("the others know it", known);
    }
}

/// As every Redis can: by hand, key by key.
fn hand_over(from: &Server, to: &Server, key: &str) {
    let port = to.port().to_string();
    let (from, to) = (&mut from.connect(), &mut to.connect());
    let slot = ask(from, &format!("CLUSTER KEYSLOT {key}"));
    let (from_id, to_id) = (ask(from, "CLUSTER MYID"), ask(to, "CLUSTER MYID"));
    assert_eq!(ask(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")), "OK");
    assert_eq!(ask(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")), "OK");
    let moved = ask_args(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]);
    assert!(["OK", "NOKEY"].contains(&moved.as_str()), "{moved}");
    for conn in [to, from] {
        let text = ask(conn, &format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        // A master that hears that it has lost its last slot is a replica.
        assert!(text == "OK" || text.contains("only with masters"), "{text}");
    }
}

/// Moves the slot of a lock that is held, and that a client and a ticket wait for.
fn moves(pair: &Pair, move_slot: impl FnOnce() -> bool) {
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    ask_all(
        from,
        &[
            // A name in the same slot, which is forgotten before the slot moves.
            ("LOCK.ACQUIRE {res}:old Z 60000", "1"),
            ("LOCK.FENCE {res}:old Z 500", "500"),
            ("DEL {res}:old", "1"),
            ("LOCK.ACQUIRE res A 60000 LABEL payments", "501"),
        ],
    );
    let mut client = waiter(&pair.from, "B", LONG);
    let mut wakes = listener(&pair.from, &["5-c"]);
    assert_eq!(acquire(from, "C", "5-c"), "nil");
    assert_eq!(pair.from.info_u64("lockmod_waiters"), 2);

    if !move_slot() {
        return;
    }
    let told = client.read();
    assert!(told.starts_with(b"-TRYAGAIN "), "{}", told.escape_ascii());
    nobody_waits(&pair.from);
    assert_eq!(woken(&mut wakes), "5-c", "to ask again, and be redirected");
    assert_eq!(pair.from.info_u64("lockmod_grants"), 2, "no lock that has moved was granted");
    assert!(ask(from, "LOCK.INFO res").starts_with("MOVED "));
    wait_until("the old node has let go", || ask(from, "DBSIZE") == "0");

    assert_eq!(field(to, "res", "label"), "payments");
    assert_eq!(ask(to, "LOCK.FENCE res"), "501");
    assert_eq!(ask_at_last(to, "LOCK.ACQUIRE res B 60000"), "nil");
    ask_all(to, &[("LOCK.EXTEND res A 60000", "1"), ("LOCK.RELEASE res A", "1")]);
    for (name, last) in [("res", 501), ("{res}:old", 500)] {
        let fence = fence(to, &format!("LOCK.ACQUIRE {name} B 60000"));
        assert!(fence > last, "{name}: {fence}");
    }
}

/// The answer, once the node knows the state of the node that had the slot before.
fn ask_at_last(conn: &mut Connection, line: &str) -> String {
    let is_late = |text: &str| is_quarantine(text) || is_asking(text);
    wait_for("the node answers", || Some(ask(conn, line)).filter(|text| !is_late(text)))
}

/// The answer, once the node has heard from the other master, or has given it up.
fn ask_when_heard(conn: &mut Connection, line: &str) -> String {
    wait_for("the node has asked", || Some(ask(conn, line)).filter(|text| !is_asking(text)))
}

/// Whether this master decides in the slots that it was given, if it has any.
fn decides(conn: &mut Connection) -> bool {
    !is_asking(&ask(conn, "LOCK.EXTEND nobody-has-it x 100"))
}

fn is_asking(text: &str) -> bool {
    text.starts_with("TRYAGAIN ")
}

fn is_quarantine(text: &str) -> bool {
    text.starts_with("QUARANTINE ") && text.contains("another node may have been the master")
}

/// Why the node grants nothing.
fn state(server: &Server) -> String {
    server.info("lockmod_state").expect("INFO has it")
}

fn unsettled(server: &Server) -> u64 {
    server.info_u64("lockmod_unsettled_slots")
}

fn fence(conn: &mut Connection, line: &str) -> u64 {
    let text = ask_at_last(conn, line);
    text.parse().unwrap_or_else(|_| panic!("{line}: {text}"))
}

#[test]
fn a_slot_without_locks_brings_the_floor_of_its_node() {
    let pair = Pair::start();
    for turn in 1..=3 {
        let (from, to) = (&pair.from, &pair.to);
        let (from, to) = if turn % 2 == 1 { (from, to) } else { (to, from) };
        let (source, target) = (&mut from.connect(), &mut to.connect());
        let before = fence(source, "LOCK.ACQUIRE res Z 60000");
        let raised = before + turn * 100_000_000;
        assert_eq!(ask(source, &format!("LOCK.FENCE res Z {raised}")), raised.to_string());
        assert_eq!(ask(source, "DEL res"), "1");
        hand_over(from, to, "res");
        assert!(fence(target, "LOCK.ACQUIRE res B 60000") > raised);
        assert_eq!(ask(target, "LOCK.RELEASE res B"), "1");
        assert_eq!(ask(target, "DEL res"), "1");
    }
}

/// Regression: the server of the old master deleted the lock as it heard that the slot was gone,
/// and the new one granted it at once. So it was after each old command that was carried out late.
#[test]
fn a_slot_that_is_taken_by_force_waits_for_the_leases_that_were_deleted_there() {
    let pair = Pair::start();
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let (from_id, to_id) = (ask(from, "CLUSTER MYID"), ask(to, "CLUSTER MYID"));
    for (name, is_held) in [("free", false), ("res", true)] {
        assert!(fence(from, &format!("LOCK.ACQUIRE {name} A 60000")) > 0);
        if !is_held {
            assert_eq!(ask(from, &format!("LOCK.RELEASE {name} A")), "1");
        }
        let slot = ask(from, &format!("CLUSTER KEYSLOT {name}"));
        // With a move the server tells the others at once.
        for step in [format!("IMPORTING {from_id}"), format!("NODE {to_id}")] {
            assert_eq!(ask(to, &format!("CLUSTER SETSLOT {slot} {step}")), "OK");
        }
        let is_lost = || ask(from, &format!("LOCK.INFO {name}")).starts_with("MOVED ");
        wait_until("the old master has heard of it", is_lost);
        let text = ask_when_heard(to, &format!("LOCK.ACQUIRE {name} B 100"));
        assert_eq!(is_quarantine(&text), is_held, "{name}: {text}");
    }
}

/// The node asks its server whose the slot is in the middle of each of these.
#[test]
fn a_held_lock_can_be_deleted_in_every_way() {
    let pair = Pair::start();
    let conn = &mut pair.from.connect();
    assert_eq!(ask(conn, "SET {res}:other x"), "OK");
    let is_granted = |conn: &mut Connection, token| {
        ask(conn, &format!("LOCK.ACQUIRE res {token} 60000")).parse::<u64>().is_ok()
    };
    let deletes: [(&str, &[&[&str]]); 9] = [
        ("DEL", &[&["DEL", "res"]]),
        ("UNLINK", &[&["UNLINK", "res"]]),
        ("a transaction", &[&["MULTI"], &["DEL", "res"], &["EXEC"]]),
        ("a script", &[&["EVAL", "return redis.call('DEL', KEYS[1])", "1", "res"]]),
        ("SET", &[&["SET", "res", "x"], &["DEL", "res"]]),
        ("RENAME", &[&["RENAME", "{res}:other", "res"], &["RENAME", "res", "{res}:other"]]),
        ("COPY", &[&["COPY", "{res}:other", "res", "REPLACE"], &["DEL", "res"]]),
        ("a time to live", &[&["PEXPIRE", "res", "1"]]),
        (
            "eviction",
            &[&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "1"], &["PING"]],
        ),
    ];
    for (way, lines) in deletes {
        assert!(is_granted(conn, "A"), "{way}");
        for line in lines {
            let text = ask_args(conn, line);
            assert!(!text.starts_with("ERR"), "{way}: {text}");
        }
        wait_until("it is gone", || ask(conn, "EXISTS res") == "0");
        assert_eq!(ask(conn, "CONFIG SET maxmemory 0"), "OK");
        assert!(is_granted(conn, "B"), "{way}");
        assert_eq!(ask(conn, "LOCK.RELEASE res B"), "1");
    }
}

/// Leases that it may have forgotten still stand, whichever node has the slot.
#[test]
fn who_gets_a_slot_from_a_node_that_waits_does_so_too() {
    let short = || builder().module_arg("max-ttl", 8_000).start();
    let mut pair = Pair::of(short(), short());
    let asked_at = std::time::Instant::now();
    assert_eq!(ask(&mut pair.from.connect(), "LOCK.ACQUIRE res A 8000"), "1");
    pair.from.kill();
    let state = pair.from.dir().join(format!("lockmod-{}.state", pair.from.port()));
    std::fs::write(state, "").expect("the folder is ours");
    pair.from.start_again();
    pair.wait_until_ok();
    assert!(ask(&mut pair.from.connect(), "LOCK.ACQUIRE res B 100").starts_with("QUARANTINE "));
    hand_over(&pair.from, &pair.to, "res");
    for command in ["ACQUIRE res B 100", "EXTEND res B 100", "FENCE res B 7"] {
        let text = ask_when_heard(&mut pair.to.connect(), &format!("LOCK.{command}"));
        assert!(is_quarantine(&text), "{command}: {text}");
    }
    assert_eq!(unsettled(&pair.to), 1);
    assert_eq!(ask(&mut pair.to.connect(), "LOCK.RELEASE res B"), "nil");
    pair.to.restart();
    pair.wait_until_ok();
    let text = ask_when_heard(&mut pair.to.connect(), "LOCK.ACQUIRE res B 100");
    assert!(text.starts_with("QUARANTINE "), "it had not waited: {text}");
    let granted = || ask(&mut pair.to.connect(), "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("the wait is over", granted) > 1);
    assert!(asked_at.elapsed() > std::time::Duration::from_secs(8));
}

/// Regressions: for 5 seconds the report of the dead node was believed; and when it was back, its
/// report or its answer ended the wait for a lease that it had granted.
#[test]
fn a_slot_that_is_taken_from_a_dead_node_waits_for_its_leases_even_if_it_comes_back() {
    std::thread::scope(|scope| {
        scope.spawn(|| comes_back(true));
        scope.spawn(|| comes_back(false));
    });
}

/// `is_soon`: the dead node is back before the other has given it up.
fn comes_back(is_soon: bool) {
    let short = || {
        builder()
            .module_arg("max-ttl", 8_000)
            .config("appendonly", "yes")
            .config("appendfsync", "always")
            .start()
    };
    let mut pair = Pair::of(short(), short());
    let to = &mut pair.to.connect();
    let asked_at = std::time::Instant::now();
    assert_eq!(ask(&mut pair.from.connect(), "LOCK.ACQUIRE res A 8000"), "1");
    pair.from.kill();
    let (slot, to_id) = (ask(to, "CLUSTER KEYSLOT res"), ask(to, "CLUSTER MYID"));
    assert_eq!(ask(to, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")), "OK");
    let first = ask(to, "LOCK.ACQUIRE res B 100");
    assert!(is_asking(&first), "{first}");
    if is_soon {
        pair.from.start_again();
    }
    let text = ask_when_heard(to, "LOCK.ACQUIRE res B 100");
    assert!(is_quarantine(&text), "{text}");
    let count = |conn: &mut Connection| number(conn, "cluster_stats_messages_module_received:");
    let before = count(to);
    if !is_soon {
        pair.from.start_again();
    }
    pair.wait_until_ok();
    wait_until("the node is back and reports", || count(to) > before + 1);
    let text = ask(to, "LOCK.ACQUIRE res B 100");
    assert!(is_quarantine(&text), "it is back: {text}");
    let granted = || ask(to, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("the wait is over", granted) > 1);
    assert!(asked_at.elapsed() > std::time::Duration::from_secs(8));
}

/// Regression: two held the lock, because the other master had got the slot meanwhile.
#[test]
fn a_master_that_starts_where_it_hears_no_other_decides_nothing() {
    let mut pair = Pair::start();
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    hand_over(&pair.from, &pair.to, "other");
    assert!(fence(to, "LOCK.ACQUIRE other A 100") > 0);
    ask(from, "LOCK.ACQUIRE res A 1");
    assert_eq!(ask(from, "SAVE"), "OK");
    pair.from.kill();
    pair.to.pause();
    pair.third.pause();
    pair.from.start_again();
    let from = &mut pair.from.connect();
    wait_until("it serves clients", || ask(from, "SET {res}:1 x") == "OK");
    for _ in 0..20 {
        let text = ask(from, "LOCK.ACQUIRE res B 100");
        assert!(is_asking(&text) || is_down(&text), "{text}");
    }
    assert_eq!(unsettled(&pair.from), 16_381, "all of its own");
    assert_eq!(pair.from.info_u64("lockmod_granting"), 0);
    pair.to.resume();
    pair.third.resume();
    let granted = || ask(from, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("it hears the other", granted) > 1);
    assert_eq!(unsettled(&pair.from), 0);
}

/// Regression: only the dead master itself says which slots it has, so the new one believed that
/// nobody had this one, and granted its lock at once, with a lower fence.
#[test]
fn a_master_that_joins_after_another_died_waits_in_a_slot_of_that_one() {
    let short = || builder().module_arg("max-ttl", 4_000).start();
    let pair = Pair::of(short(), short());
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    hand_over(&pair.from, &pair.to, "res");
    let asked_at = std::time::Instant::now();
    let first = fence(to, "LOCK.ACQUIRE res A 4000");
    let dead_id = ask(to, "CLUSTER MYID");
    let mut pair = pair;
    pair.to.kill();
    let new = short();
    let (port, bus) = (new.port(), new.bus_port());
    let new = &mut new.connect();
    // The dead one does not win the slot back.
    assert_eq!(ask(new, "CLUSTER SET-CONFIG-EPOCH 100"), "OK");
    assert_eq!(ask(from, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}")), "OK");
    let slot = ask(from, "CLUSTER KEYSLOT res");
    wait_until("it knows the dead one", || ask(new, "CLUSTER NODES").contains(&dead_id));
    assert_eq!(ask(new, &format!("CLUSTER ADDSLOTS {slot} 16382")), "OK");
    let granted = || ask(new, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    let second = wait_for("its wait is over", granted);
    let passed = asked_at.elapsed();
    assert!(passed > std::time::Duration::from_secs(4), "{passed:?}: A may hold it");
    assert!(second > first, "{second} after {first}");
}

/// Regression: it read the request before what the other had said meanwhile, and granted the lock
/// beside it, with a lower fence.
#[test]
fn a_master_that_has_hung_while_another_waited_for_it_grants_nothing() {
    let short = || builder().module_arg("max-ttl", 1_000).start();
    let pair = Pair::of(short(), short());
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    assert!(fence(from, "LOCK.ACQUIRE res A 100") > 0);
    let mut socket = TcpStream::connect(("127.0.0.1", pair.from.port())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    pair.from.pause();
    // Its socket is ready to be read before those of the bus.
    socket.write_all(b"PING\r\n").unwrap();
    let slot = ask(to, "CLUSTER KEYSLOT res");
    for line in ["DELSLOTS", "ADDSLOTS"] {
        assert_eq!(ask(to, &format!("CLUSTER {line} {slot}")), "OK");
    }
    let granted = || ask(to, "LOCK.ACQUIRE res B 1000").parse::<u64>().ok();
    assert!(wait_for("the other has waited", granted) > 1);
    socket.write_all(b"LOCK.ACQUIRE res late 1000\r\n").unwrap();
    pair.from.resume();
    let mut lines = BufReader::new(socket).lines();
    let mut line = || lines.next().expect("an answer").expect("in time");
    assert_eq!(line(), "+PONG");
    let told = line();
    assert!(told.starts_with("-TRYAGAIN ") || told.starts_with("-MOVED "), "{told}");
}

/// Regression: the first request came before the first look at the slots, and was granted.
#[test]
fn a_module_that_is_loaded_at_run_time_decides_nothing_before_it_hears_the_others() {
    let bare = || builder().without_module().config("enable-module-command", "yes").start();
    let pair = Pair::of(bare(), bare());
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let slot = ask(from, "CLUSTER KEYSLOT other");
    let to_id = ask(to, "CLUSTER MYID");
    for conn in [&mut *to, &mut *from] {
        assert_eq!(ask(conn, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")), "OK");
    }
    let load = format!("MODULE LOAD {}", module_path().display());
    assert_eq!(ask(from, &load), "OK");
    for _ in 0..20 {
        let text = ask(from, "LOCK.ACQUIRE res A 100");
        assert!(is_asking(&text), "{text}");
    }
    // Regression: it named the first of all slots.
    let slot = format!("slot {} is moving", ask(from, "CLUSTER KEYSLOT res"));
    let told = ask(from, "LOCK.INFO res");
    assert!(told.contains(&slot), "{told}");
    assert_eq!(ask(to, &load), "OK");
    wait_for("both have it", || ask(from, "LOCK.ACQUIRE res A 100").parse::<u64>().ok());
}

/// One that has lost most others grants nothing before they are forgotten. Regression: a master
/// that had forgotten none alone was the most of the masters that have slots, by what it knew.
#[test]
fn a_master_that_starts_waits_for_another_that_may_have_taken_its_slots() {
    let short = || builder().module_arg("max-ttl", 3_000).config("appendonly", "yes");
    let short = || short().config("appendfsync", "always").start();
    let mut pair = Pair::of(short(), short());
    let to = &mut pair.to.connect();
    let to_id = ask(to, "CLUSTER MYID");
    let others = [&pair.from, &pair.third].map(|one| ask(&mut one.connect(), "CLUSTER MYID"));
    assert_eq!(ask(&mut pair.from.connect(), "LOCK.ACQUIRE res A 100"), "1");
    // When they are back, they agree with each other that the slots are still theirs.
    pair.from.kill();
    pair.third.kill();
    for line in ["DELSLOTSRANGE", "ADDSLOTSRANGE"] {
        assert_eq!(ask(to, &format!("CLUSTER {line} 0 16383")), "OK");
    }
    wait_until("the log says whom it needs", || {
        let log = pair.to.log();
        let is_named = |id: &String| log.contains("no answer from") && log.contains(id);
        others.iter().all(is_named)
    });
    let text = ask(to, "LOCK.ACQUIRE res B 3000");
    assert!(is_asking(&text), "{text}");
    for id in &others {
        assert_eq!(ask(to, &format!("CLUSTER FORGET {id}")), "OK");
    }
    let granted = || ask(to, "LOCK.ACQUIRE res B 3000").parse::<u64>().ok();
    wait_for("its wait is over", granted);
    pair.to.pause();
    // They must not start before a `CLUSTER RESET`, and wait if they do.
    pair.from.start_again();
    pair.third.start_again();
    let from = &mut pair.from.connect();
    wait_until("it serves clients", || ask(from, "SET {res}:1 x") == "OK");
    for line in ["LOCK.ACQUIRE res C 100", "LOCK.EXTEND res A 100"] {
        let text = ask_when_heard(from, line);
        assert!(is_quarantine(&text), "{text}");
    }
    assert_eq!(pair.from.info_u64("lockmod_granting"), 0);
    assert!(is_quarantine(&state(&pair.from)), "{}", state(&pair.from));
    assert!(pair.from.info_u64("lockmod_quarantine_left_ms") > 0);
    let silent = format!("not heard since the start: {to_id}; nothing is granted");
    wait_until("the log says why", || pair.from.log().contains(&silent));
    pair.to.resume();
}

/// As after a start: the other master may have got slots that the promoted one believes its own.
#[test]
fn a_replica_that_is_promoted_where_it_hears_no_other_decides_nothing() {
    let pair = Pair::start();
    let at_once = builder().module_arg("quarantine-on-promotion", "no").start();
    let to = &mut pair.to.connect();
    hand_over(&pair.from, &pair.to, "other");
    assert!(fence(to, "LOCK.ACQUIRE other A 100") > 0);
    attach(&at_once, &pair.from);
    let promoted = &mut at_once.connect();
    wait_until("it knows all slots", || {
        let info = ask(promoted, "CLUSTER INFO");
        info.contains("cluster_state:ok") && info.contains("cluster_size:3")
    });
    // A master throws away what a server says that it has never heard of.
    let id = ask(promoted, "CLUSTER MYID");
    wait_until("the other knows it", || ask(to, "CLUSTER NODES").contains(&id));
    pair.to.pause();
    pair.third.pause();
    pair.from.pause();
    assert_eq!(ask(promoted, "CLUSTER FAILOVER TAKEOVER"), "OK");
    wait_until("it serves clients", || ask(promoted, "SET {res}:1 x") == "OK");
    // All at once: after some seconds it would wait for the longest lease.
    let mut clients: Vec<_> = (0..20).map(|_| at_once.connect_raw()).collect();
    clients.iter_mut().for_each(|client| client.send(&["LOCK.ACQUIRE", "res", "B", "100"]));
    for client in &mut clients {
        let text = String::from_utf8_lossy(&client.read())[1..].trim_end().to_owned();
        assert!(is_asking(&text) || is_down(&text), "{text}");
    }
    pair.to.resume();
    pair.third.resume();
    let granted = || ask(promoted, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("it hears the other", granted) > 0);
    pair.from.resume();
}

/// Regression: it forgot with the restart that its former master may have gone on, and granted as
/// soon as it heard the others.
#[test]
fn a_replica_that_is_promoted_and_restarted_where_it_hears_no_other_waits_when_it_hears_them() {
    let short = || builder().module_arg("max-ttl", 1_000).start();
    let pair = Pair::of(short(), short());
    let mut promoted = short();
    attach(&promoted, &pair.from);
    let masters = [&pair.to, &pair.third, &pair.from];
    wait_until_known(&promoted, &masters);
    masters.iter().for_each(|master| master.pause());
    assert_eq!(ask(&mut promoted.connect(), "CLUSTER FAILOVER TAKEOVER"), "OK");
    promoted.kill();
    promoted.restart();
    let is_over = || promoted.info("lockmod_quarantine_left_ms").as_deref() == Some("0");
    wait_until("its quarantine after the restart is over", is_over);
    masters.iter().for_each(|master| master.resume());
    let conn = &mut promoted.connect();
    let granted = || ask(conn, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("the lock is granted", granted) > 0);
    assert!(promoted.log().contains("QUARANTINE: leases of another "), "{}", promoted.log());
}

/// A new master waits for the longest lease: with a day, nothing would be granted for a day.
#[test]
fn in_a_cluster_the_longest_lease_is_a_minute_unless_it_is_set() {
    for (arg, max_ttl) in [(None, 60_000), (Some(60_001), 60_001)] {
        let set = |given: Builder, value: u64| given.module_arg("max-ttl", value);
        let server = arg.into_iter().fold(builder(), set).start();
        let shown = ask(&mut server.connect(), "CONFIG GET lockmod.max-ttl");
        assert_eq!(shown, format!("[lockmod.max-ttl {max_ttl}]"));
        let is_told = server.log().contains("lockmod.max-ttl is one minute in a Cluster");
        assert_eq!(is_told, arg.is_none(), "{}", server.log());
    }
}

/// Regression: it waited only as long as its own setting.
#[test]
fn a_replica_that_joined_after_its_master_lowered_the_limit_waits_for_longer_leases() {
    let long = || builder().module_arg("max-ttl", 60_000).start();
    let pair = Pair::of(long(), long());
    assert!(fence(&mut pair.from.connect(), "LOCK.ACQUIRE res A 60000") > 0);
    for server in [&pair.from, &pair.to, &pair.third] {
        ask(&mut server.connect(), "CONFIG SET lockmod.max-ttl 1000");
    }
    // It has the lock, but need not: the last writes before a failover may be lost.
    let promoted = builder().module_arg("max-ttl", 1_000).start();
    attach(&promoted, &pair.from);
    wait_until_known(&promoted, &[&pair.to, &pair.third, &pair.from]);
    pair.from.pause();
    assert_eq!(ask(&mut promoted.connect(), "CLUSTER FAILOVER TAKEOVER"), "OK");
    let conn = &mut promoted.connect();
    let left = wait_for("it waits", || {
        let text = ask(conn, "LOCK.ACQUIRE {res}:1 B 100");
        let left = text.split_once("QUARANTINE ")?.1.split_once(" ms left")?.0;
        left.parse().ok().filter(|left: &u64| *left > 30_000)
    });
    assert!(left <= 70_000, "it waits for the leases, and not for ever: {left} ms");
    // An operator who knows better ends the wait; the setting goes back at once. It has nearly all
    // slots, and does not write the state file for each.
    let writes = promoted.info_u64("lockmod_state_writes");
    assert_eq!(ask(conn, "CONFIG SET lockmod.quarantine no"), "OK");
    assert_eq!(ask(conn, "CONFIG SET lockmod.quarantine yes"), "OK");
    let granted = || ask(conn, "LOCK.ACQUIRE {res}:1 B 100").parse::<u64>().ok();
    assert!(wait_for("the wait was ended", granted) > 0);
    assert!(promoted.info_u64("lockmod_state_writes") < writes + 100);
    pair.from.resume();
}

/// Regression: it took that for its first start, and granted beside leases that stood, with fences
/// from 1.
#[test]
fn a_master_that_lost_its_state_file_and_its_data_waits_when_others_know_it() {
    let short = || builder().module_arg("max-ttl", 1_000).start();
    let mut pair = Pair::of(short(), short());
    let issued = fence(&mut pair.from.connect(), "LOCK.ACQUIRE res A 1000");
    let state = pair.from.dir().join(format!("lockmod-{}.state", pair.from.port()));
    pair.from.kill();
    std::fs::remove_file(state).expect("there was one");
    pair.from.restart();
    let conn = &mut pair.from.connect();
    let granted = || ask(conn, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("the lock is granted", granted) > issued);
    assert!(pair.from.log().contains("QUARANTINE: leases of another "), "{}", pair.from.log());
}

/// Regression: they went on to ask the dead ones, which no server knew any more, for ever.
#[test]
fn replicas_that_take_over_from_all_masters_and_forget_them_at_once_grant_again() {
    let short = || builder().module_arg("max-ttl", 1_000).start();
    let mut pair = Pair::of(short(), short());
    let masters = [&pair.from, &pair.to, &pair.third];
    let ids = masters.map(|master| ask(&mut master.connect(), "CLUSTER MYID"));
    let replicas = masters.map(|master| {
        let replica = short();
        attach(&replica, master);
        replica
    });
    for replica in &replicas {
        let known = || ask(&mut replica.connect(), "CLUSTER INFO");
        wait_until("it knows all", || known().contains("cluster_known_nodes:6"));
    }
    pair.from.kill();
    pair.to.kill();
    pair.third.kill();
    for replica in &replicas {
        assert_eq!(ask(&mut replica.connect(), "CLUSTER FAILOVER TAKEOVER"), "OK");
    }
    for replica in &replicas {
        for id in &ids {
            // Newer servers hear from each other who is forgotten.
            ask(&mut replica.connect(), &format!("CLUSTER FORGET {id}"));
        }
    }
    for replica in &replicas {
        let grants = || replica.info("lockmod_state").as_deref() == Some("grants");
        wait_until("it grants", || grants() && replica.knows_voters(3));
    }
    let granted = || ask(&mut replicas[0].connect(), "LOCK.ACQUIRE res A 100").parse::<u64>().ok();
    assert!(wait_for("the lock is granted", granted) > 0);
}

/// Regression: one that never was a master with the module knew nobody. When it took the place of
/// one, it began anew, and whoever knew more stopped it.
#[test]
fn a_replica_into_which_the_module_is_loaded_knows_who_has_a_vote_and_who_gets_one() {
    let pair = Pair::start();
    let replica = builder().without_module().config("enable-module-command", "yes").start();
    follow(&replica, &pair.from);
    let load = format!("MODULE LOAD {}", module_path().display());
    assert_eq!(ask(&mut replica.connect(), &load), "OK");
    wait_until("it knows who has a vote", || replica.knows_voters(3));
    assert!(pair.from.knows_voters(3), "it added nobody");
    let third = ask(&mut pair.third.connect(), "CLUSTER MYID");
    for server in [&pair.to, &pair.from, &pair.third] {
        let line = format!("CLUSTER SETSLOT 16382 NODE {third}");
        assert_eq!(ask(&mut server.connect(), &line), "OK");
    }
    wait_until("it knows who is left", || replica.knows_voters(2));
}

/// Regression: a replica that was down when all masters were forgotten named them again, and
/// nothing was ever granted again.
#[test]
fn a_server_that_was_away_while_all_masters_were_replaced_stops_nobody() {
    let short = || builder().module_arg("max-ttl", 1_000).start();
    let mut pair = Pair::of(short(), short());
    let ids = [&pair.from, &pair.to, &pair.third]
        .map(|master| ask(&mut master.connect(), "CLUSTER MYID"));
    let (one, two, mut away) = (short(), short(), short());
    for (replica, master) in [(&one, &pair.from), (&two, &pair.to), (&away, &pair.third)] {
        attach(replica, master);
    }
    for replica in [&one, &two, &away] {
        let known = || ask(&mut replica.connect(), "CLUSTER INFO");
        wait_until("it knows all", || known().contains("cluster_known_nodes:6"));
        wait_until("it has heard who is a replica", || count_replicas(replica) == 3);
    }
    // Valkey 8.1 does not start with a file in which a replica has not its master's shard yet.
    wait_until("it has heard who belongs together", || has_whole_shards(&away));
    away.terminate();
    [&mut pair.from, &mut pair.to, &mut pair.third].into_iter().for_each(Server::kill);
    for replica in [&one, &two] {
        assert_eq!(ask(&mut replica.connect(), "CLUSTER FAILOVER TAKEOVER"), "OK");
    }
    for replica in [&one, &two] {
        for id in &ids {
            ask(&mut replica.connect(), &format!("CLUSTER FORGET {id}"));
        }
    }
    wait_until("they begin", || one.knows_voters(2) && two.knows_voters(2));
    assert_eq!(ask(&mut one.connect(), "CLUSTER ADDSLOTS 16383"), "OK");
    away.start_again();
    wait_until("it goes by those who have begun", || away.knows_voters(2));
    let granted = || ask(&mut one.connect(), "LOCK.ACQUIRE res A 100").parse::<u64>().ok();
    assert!(wait_for("the lock is granted", granted) > 0);
    assert!(one.knows_voters(2) && two.knows_voters(2));
}

/// How many replicas its Cluster has, as a server believes.
fn count_replicas(server: &Server) -> usize {
    ask(&mut server.connect(), "CLUSTER NODES").matches("slave").count()
}

/// Whether, in its file, each replica has the shard of its master, on servers that have shards.
fn has_whole_shards(server: &Server) -> bool {
    assert_eq!(ask(&mut server.connect(), "CLUSTER SAVECONFIG"), "OK");
    let file = std::fs::read_to_string(server.dir().join("nodes.conf")).expect("it was written");
    let shard = |line: &str| {
        let text = line.split_once("shard-id=").map_or("", |(_, text)| text);
        text.split([' ', ',']).next().unwrap_or_default().to_owned()
    };
    let shard_of = |id: &str| file.lines().find(|line| line.starts_with(id)).map(shard);
    let is_whole = |line: &str| {
        let master = line.split(' ').skip_while(|word| !word.ends_with("slave")).nth(1);
        master.is_none_or(|master| shard_of(master) == Some(shard(line)))
    };
    file.lines().all(is_whole)
}

fn is_down(text: &str) -> bool {
    text.starts_with("CLUSTERDOWN ")
}

/// Regression: the former master won the slot back when it returned, while another master's lease
/// stood there.
#[test]
fn who_waits_in_a_slot_of_a_dead_master_has_the_later_epoch() {
    let short = || builder().module_arg("max-ttl", 3_000).start();
    let mut pair = Pair::of(short(), short());
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let slot = ask(from, "CLUSTER KEYSLOT res");
    let epoch = |conn: &mut Connection| number(conn, "cluster_my_epoch:");
    while epoch(from) <= epoch(to) {
        assert!(ask(from, "CLUSTER BUMPEPOCH").starts_with("BUMPED "));
    }
    wait_until("the other knows it", || ask(to, "CLUSTER INFO").contains("current_epoch:3"));
    let before = epoch(from);
    pair.from.kill();
    // Otherwise it would say whose the slot is, by the higher epoch.
    assert_eq!(ask(&mut pair.third.connect(), &format!("CLUSTER DELSLOTS {slot}")), "OK");
    for line in ["DELSLOTS", "ADDSLOTS"] {
        assert_eq!(ask(to, &format!("CLUSTER {line} {slot}")), "OK");
    }
    let text = ask_when_heard(to, "LOCK.ACQUIRE res B 100");
    assert!(is_quarantine(&text), "{text}");
    wait_until("no master has a later one", || epoch(to) > before);
    pair.from.start_again();
    let from = &mut pair.from.connect();
    wait_until("it has lost the slot", || ask(from, "LOCK.INFO res").starts_with("MOVED "));
    assert!(fence(to, "LOCK.ACQUIRE res B 100") > 1);
}

/// A number in `CLUSTER INFO`; zero if it is not there.
fn number(conn: &mut Connection, name: &str) -> u64 {
    let info = ask(conn, "CLUSTER INFO");
    let told = info.split(name).nth(1).unwrap_or("0");
    let end = told.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(told.len());
    told[..end].parse().expect("a number")
}

/// Two masters between which a slot is on its way.
struct OnItsWay {
    pair: Pair,
    slot: String,
}

impl OnItsWay {
    fn start(pair: Pair, key: &str) -> OnItsWay {
        let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
        let (from_id, to_id) = (ask(from, "CLUSTER MYID"), ask(to, "CLUSTER MYID"));
        let slot = ask(from, &format!("CLUSTER KEYSLOT {key}"));
        assert_eq!(ask(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")), "OK");
        assert_eq!(ask(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")), "OK");
        OnItsWay { pair, slot }
    }

    /// The answer of the node to which the slot goes.
    fn ask_target(&self, line: &str) -> String {
        let to = &mut self.pair.to.connect();
        wait_for("the node has asked", || {
            assert_eq!(ask(to, "ASKING"), "OK");
            Some(ask(to, line)).filter(|text| !is_asking(text))
        })
    }

    fn call_off(&self) {
        for conn in [&mut self.pair.from.connect(), &mut self.pair.to.connect()] {
            assert_eq!(ask(conn, &format!("CLUSTER SETSLOT {} STABLE", self.slot)), "OK");
        }
    }
}

/// Regressions: the node knew nothing of the fences that the other had issued; nor of those of
/// locks that stayed there.
#[test]
fn after_a_move_that_is_called_off_fences_rise() {
    for is_deleted in [true, false] {
        let pair = Pair::start();
        let from = &mut pair.from.connect();
        let before = fence(from, "LOCK.ACQUIRE res A 60000");
        assert_eq!(ask(from, "DEL res"), "1");
        let moving = OnItsWay::start(pair, "res");
        assert!(ask(from, "LOCK.ACQUIRE res B 60000").starts_with("ASK "));
        let granted: u64 = moving.ask_target("LOCK.ACQUIRE res B 1000").parse().expect("a fence");
        assert!(granted > before);
        let (granted_at, raised) = (std::time::Instant::now(), granted + 100_000_000);
        assert_eq!(moving.ask_target(&format!("LOCK.FENCE res B {raised}")), raised.to_string());
        moving.ask_target("LOCK.RELEASE res B");
        if is_deleted {
            moving.ask_target("DEL res");
        }
        // Else the node would wait for the lease, and go on above the time.
        wait_until("the lease would be over", || granted_at.elapsed().as_millis() > 1_020);
        moving.call_off();
        assert!(fence(from, "LOCK.ACQUIRE res C 60000") > raised);
    }
}

/// Two masters between which a move was called off. The second one hangs, and has yet to read that
/// the slot is its own; it gets it then, because its name is the smaller one.
fn called_off() -> (Pair, TcpStream) {
    let short = || builder().module_arg("max-ttl", 3_000).start();
    let id = |server: &Server| ask(&mut server.connect(), "CLUSTER MYID");
    let (one, other) = (short(), short());
    let is_smaller = id(&one) < id(&other);
    let (to, from) = if is_smaller { (one, other) } else { (other, one) };
    let pair = Pair::of(from, to);
    // It raises its epoch when it gets a slot, unless it has the highest that it knows.
    assert!(ask(&mut pair.third.connect(), "CLUSTER BUMPEPOCH").starts_with("BUMPED "));
    let to = &mut pair.to.connect();
    wait_until("it knows", || ask(to, "CLUSTER INFO").contains("cluster_current_epoch:3"));
    let from = &mut pair.from.connect();
    fence(from, "LOCK.ACQUIRE res A 100");
    let moving = OnItsWay::start(pair, "res");
    assert_eq!(moving.ask_target("LOCK.EXTEND {res} x 100"), "nil", "the first one has seen it");
    let OnItsWay { pair, slot } = moving;
    let mut socket = TcpStream::connect(("127.0.0.1", pair.to.port())).unwrap();
    let take = format!("CLUSTER SETSLOT {slot} NODE {}\r\n", id(&pair.to));
    pair.to.pause();
    socket.write_all(take.as_bytes()).unwrap();
    assert_eq!(ask(from, &format!("CLUSTER SETSLOT {slot} STABLE")), "OK");
    (pair, socket)
}

/// Regression: a master forgot at a restart that the move was called off, and answered that all
/// locks had moved when the other one carried out late what it had been told before.
#[test]
fn a_move_that_was_called_off_before_a_restart_may_be_carried_out_late() {
    let (mut pair, _socket) = called_off();
    fence(&mut pair.from.connect(), "LOCK.ACQUIRE res C 100");
    pair.from.restart();
    let granted = |server: &Server, line| {
        let conn = &mut server.connect();
        wait_for("it has waited for the other", || {
            let asked_at = std::time::Instant::now();
            ask(conn, line).parse::<u64>().ok().map(|fence| (fence, asked_at))
        })
    };
    let (before, asked_at) = granted(&pair.from, "LOCK.ACQUIRE res D 3000");
    pair.to.resume();
    assert!(granted(&pair.to, "LOCK.ACQUIRE res E 100").0 > before);
    let passed = asked_at.elapsed();
    assert!(passed >= std::time::Duration::from_secs(3), "{passed:?}: D may hold it");
}

/// Regression: a wait in one slot came along with every slot that left the node.
#[test]
fn who_gets_a_slot_does_not_wait_for_another_slot() {
    let short = || builder().module_arg("max-ttl", 20_000).start();
    let moving = OnItsWay::start(Pair::of(short(), short()), "res");
    assert!(moving.ask_target("LOCK.ACQUIRE res A 20000").parse::<u64>().is_ok());
    moving.call_off();
    let OnItsWay { pair, .. } = moving;
    let from = &mut pair.from.connect();
    let text = ask_when_heard(from, "LOCK.ACQUIRE res B 100");
    assert!(is_quarantine(&text), "{text}");
    let before = ask(from, "LOCK.ACQUIRE free A 10000");
    // Who waits raises its epoch. Until the other one knows that, it may take the same.
    let epoch = |server: &Server, of: &str| number(&mut server.connect(), of);
    wait_until("the other knows the raised epoch", || {
        let raised = epoch(&pair.from, "cluster_my_epoch:");
        raised == 3 && epoch(&pair.to, "cluster_current_epoch:") == raised
    });
    hand_over(&pair.from, &pair.to, "free");
    let to = &mut pair.to.connect();
    assert_eq!(ask_when_heard(to, "LOCK.EXTEND free A 10000"), "1", "{before}");
    assert_eq!(ask(to, "LOCK.RELEASE free A"), "1");
    assert!(ask(to, "LOCK.ACQUIRE free B 100").parse::<u64>().is_ok());
}

/// Regression: such a master becomes a replica of the other, and answered nothing. So its last slot
/// was waited for, as if it was dead.
#[test]
fn a_master_that_loses_its_last_slot_still_answers_about_it() {
    let migrates = || builder().config("cluster-allow-replica-migration", "yes").start();
    let pair = Pair::of(migrates(), migrates());
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let last: u16 = ask(from, "CLUSTER KEYSLOT res").parse().expect("a slot");
    let others = format!("0 {} {} 16382", last - 1, last + 1);
    for conn in [&mut *from, &mut *to] {
        assert_eq!(ask(conn, &format!("CLUSTER DELSLOTSRANGE {others}")), "OK");
    }
    assert_eq!(ask(to, &format!("CLUSTER ADDSLOTSRANGE {others}")), "OK");
    pair.wait_until_ok();
    let before = fence(from, "LOCK.ACQUIRE res A 60000");
    hand_over(&pair.from, &pair.to, "res");
    assert_eq!(ask_when_heard(to, "LOCK.EXTEND res A 60000"), "1");
    assert!(fence(to, "LOCK.ACQUIRE {res}:2 A 60000") > before);
    assert!(ask(from, "ROLE").contains("slave"));
}

/// Regression: fences fell, and the lock was granted while it was held.
#[test]
fn locks_that_stay_where_their_slot_was_are_waited_for() {
    locks_that_stay_are_waited_for(&Pair::start(), 0);
}

/// Regression: the node looked into the first database only.
#[test]
fn locks_that_stay_in_another_database_are_waited_for() {
    if !(server_version().is_valkey() && server_version().major >= 9) {
        let test = "locks_that_stay_in_another_database_are_waited_for";
        return skip(test, "no other server has several databases in a Cluster");
    }
    let with_two = || builder().config("cluster-databases", 2).start();
    locks_that_stay_are_waited_for(&Pair::of(with_two(), with_two()), 1);
}

/// Regression: Valkey had put what was granted during the move into another database, and the new
/// master granted it again. Nothing waits after a move at once without such a reason.
#[test]
fn who_gets_a_slot_at_once_waits_where_servers_have_several_databases() {
    for databases in [1, 2] {
        let start = || match databases {
            1 => node(),
            _ => builder().config("cluster-databases", databases).start(),
        };
        if databases > 1 && !(server_version().is_valkey() && server_version().major >= 9) {
            let test = "who_gets_a_slot_at_once_waits_where_servers_have_several_databases";
            return skip(test, "no other server has several databases in a Cluster");
        }
        let pair = Pair::of(start(), start());
        let from = &mut pair.from.connect();
        assert!(fence(from, "LOCK.ACQUIRE {res}:held A 3000") > 0);
        if !pair.move_at_once("res") {
            return;
        }
        let text = ask_when_heard(&mut pair.to.connect(), "LOCK.ACQUIRE res B 100");
        assert_eq!(is_quarantine(&text), databases > 1, "{text}");
    }
}

fn locks_that_stay_are_waited_for(pair: &Pair, database: u32) {
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    for conn in [&mut *from, &mut *to] {
        assert_eq!(ask(conn, &format!("SELECT {database}")), "OK");
    }
    let slot = ask(from, "CLUSTER KEYSLOT res");
    let asked_at = std::time::Instant::now();
    let held = fence(from, "LOCK.ACQUIRE res A 3000");
    for conn in [&mut *from, &mut *to] {
        assert_eq!(ask(conn, &format!("CLUSTER DELSLOTS {slot}")), "OK");
    }
    let is_shown = ask(from, &format!("CLUSTER COUNTKEYSINSLOT {slot}")) == "1";
    // docs/design.md has what to do there.
    assert_eq!(is_shown, !server_version().is_redis_from(8, 4));
    if !is_shown {
        return;
    }
    assert_eq!(ask(to, &format!("CLUSTER ADDSLOTS {slot}")), "OK");
    pair.wait_until_ok();
    let text = ask_when_heard(to, "LOCK.ACQUIRE res B 100");
    assert!(is_quarantine(&text), "{text}");
    assert!(fence(to, "LOCK.ACQUIRE res B 100") > held);
    assert!(asked_at.elapsed() > std::time::Duration::from_secs(3));
}

/// Regression: it decided at once, by an older copy of a lock that another master had granted.
#[test]
fn a_slot_that_the_server_takes_at_its_start_waits_for_the_longest_lease() {
    let durable = || {
        let durable = builder().config("appendonly", "yes").config("appendfsync", "always");
        durable.module_arg("max-ttl", 3_000).start()
    };
    let mut pair = Pair::of(durable(), durable());
    let from = &mut pair.from.connect();
    let before = fence(from, "LOCK.ACQUIRE res A 100");
    let slot = ask(from, "CLUSTER KEYSLOT res");
    for conn in [from, &mut pair.to.connect()] {
        assert_eq!(ask(conn, &format!("CLUSTER DELSLOTS {slot}")), "OK");
    }
    // Another master may have the slot now, and grant the lock.
    pair.from.kill();
    let killed_at = std::time::Instant::now();
    pair.from.start_again();
    pair.wait_until_ok();
    let from = &mut pair.from.connect();
    let text = ask_when_heard(from, "LOCK.ACQUIRE res C 3000");
    assert!(is_quarantine(&text), "{text}");
    assert!(fence(from, "LOCK.ACQUIRE free C 3000") > 0, "in a slot that it had");
    assert!(fence(from, "LOCK.ACQUIRE res C 3000") > before);
    assert!(killed_at.elapsed() > std::time::Duration::from_secs(3));
}

/// Regression: it knew no other master, began alone, and granted locks of the Cluster once more.
#[test]
fn a_master_that_was_removed_and_finds_locks_in_its_data_grants_none() {
    for is_seen in [true, false] {
        comes_back_to_its_data(is_seen);
    }
}

/// `is_seen`: it runs for long enough to see that it was removed.
fn comes_back_to_its_data(is_seen: bool) {
    let partial = || builder().config("cluster-require-full-coverage", "no");
    let short = || partial().module_arg("max-ttl", 1_000).start();
    let Pair { mut from, to, third } = Pair::of(short(), short());
    let conn = &mut from.connect();
    ask_all(conn, &[("LOCK.ACQUIRE res A 1000", "1"), ("SAVE", "OK"), ("FLUSHALL", "OK")]);
    let (slot, id) = (ask(conn, "CLUSTER KEYSLOT res"), ask(conn, "CLUSTER MYID"));
    for other in [&to, &third] {
        ask(&mut other.connect(), &format!("CLUSTER FORGET {id}"));
    }
    assert_eq!(ask(conn, "CLUSTER RESET"), "OK");
    if is_seen {
        wait_until("it sees that", || from.info_u64("lockmod_electorates") == 0);
    }
    // It keeps its data file, as `redis-cli --cluster del-node` does.
    from.kill();
    let grants_nothing = |from: &Server, start: usize| {
        let line = "this server has left a Cluster, or lost its nodes.conf";
        wait_until("it says why it grants nothing", || from.log().matches(line).count() == start);
        let conn = &mut from.connect();
        assert!(ask(conn, "CLUSTER NODES").contains(&format!("connected {slot}")));
        // That ends waits, and this is none.
        assert_eq!(ask(conn, "CONFIG SET lockmod.quarantine no"), "OK");
        let text = ask(conn, "LOCK.ACQUIRE res B 1000");
        assert!(is_asking(&text), "{text}");
    };
    for start in 1..=2 {
        from.start_again();
        grants_nothing(&from, start);
        from.kill();
    }
    from.start_again();
    // Whoever gives it slots knows what they do.
    let conn = &mut from.connect();
    assert_eq!(ask(conn, &format!("CLUSTER DELSLOTS {slot}")), "OK");
    wait_until("it has seen that", || unsettled(&from) == 0);
    assert_eq!(ask(conn, &format!("CLUSTER ADDSLOTS {slot}")), "OK");
    let granted = || ask(conn, "LOCK.ACQUIRE res B 100").parse::<u64>().ok();
    assert!(wait_for("the lock is granted", granted) > 1);
}

/// Regression: it decided about an older copy of a lock that had moved.
#[test]
fn a_node_that_crashes_while_a_slot_leaves_asks_before_it_decides_there() {
    let short = || builder().module_arg("max-ttl", 3_000).start();
    let pair = Pair::of(short(), short());
    let from = &mut pair.from.connect();
    fence(from, "LOCK.ACQUIRE res A 3000");
    ask_all(from, &[("LOCK.RELEASE res A", "1"), ("SAVE", "OK")]);
    let mut moving = OnItsWay::start(pair, "res");
    let port = moving.pair.to.port().to_string();
    assert_eq!(ask_args(from, &["MIGRATE", "127.0.0.1", &port, "res", "0", "10000"]), "OK");
    let granted: u64 = moving.ask_target("LOCK.ACQUIRE res B 3000").parse().expect("a fence");
    let raised = granted + 100_000_000;
    moving.ask_target(&format!("LOCK.FENCE res B {raised}"));
    moving.pair.from.kill();
    moving.pair.from.start_again();
    moving.pair.wait_until_ok();
    let from = &mut moving.pair.from.connect();
    assert_eq!(ask(from, "EXISTS res"), "1", "its data are older");
    let text = wait_for("its quarantine is over", || {
        let text = ask(from, "LOCK.ACQUIRE res C 100");
        Some(text).filter(|text| !text.starts_with("QUARANTINE ") && !is_asking(text))
    });
    assert!(text.parse::<u64>().is_ok_and(|fence| fence > raised), "{text} after {raised}");
}

#[test]
fn a_slot_that_is_moved_by_hand_takes_its_locks_along_and_nobody_waits_behind() {
    let pair = Pair::start();
    moves(&pair, || {
        hand_over(&pair.from, &pair.to, "res");
        true
    });
}

#[test]
fn a_slot_that_moves_at_once_takes_its_locks_along_and_nobody_waits_behind() {
    let pair = Pair::start();
    moves(&pair, || pair.move_at_once("res"));
}

/// Regression: Redis finishes the move if the new master refuses a lock, which was lost.
#[test]
fn a_slot_that_moves_at_once_takes_a_longer_lease_along_than_is_allowed() {
    let pair = Pair::start();
    assert!(fence(&mut pair.from.connect(), "LOCK.ACQUIRE res A 60000") > 0);
    let to = &mut pair.to.connect();
    assert_eq!(ask(to, "CONFIG SET lockmod.max-ttl 1000"), "OK");
    if !pair.move_at_once("res") {
        let test = "a_slot_that_moves_at_once_takes_a_longer_lease_along_than_is_allowed";
        return skip(test, "this server moves no slots at once");
    }
    assert_eq!(field(to, "res", "state"), "held");
}

#[test]
fn a_move_at_once_that_fails_is_counted_where_the_slot_stays() {
    let pair = Pair::start();
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let failed = |server: &Server| server.info_u64("lockmod_failed_moves");
    ask(from, "LOCK.ACQUIRE res A 60000");
    let slot = ask(from, "CLUSTER KEYSLOT res");
    let version = server_version();
    if version.is_redis_from(8, 4) {
        // Its child takes that long for the key, and meanwhile the move is called off.
        ask(from, "CONFIG SET rdb-key-save-delay 2000000");
        ask(to, &format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
        wait_until("the move has begun", || {
            ask(from, "CLUSTER MIGRATION STATUS ALL").contains("migrate")
        });
        assert_eq!(ask(to, "CLUSTER MIGRATION CANCEL ALL"), "1");
        ask(from, "CONFIG SET rdb-key-save-delay 0");
    } else if version.is_valkey() && version.major >= 9 {
        let to_id = ask(to, "CLUSTER MYID");
        pair.to.pause();
        let line = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to_id}");
        assert_eq!(ask(from, &line), "OK");
        assert_eq!(ask(from, "CLUSTER CANCELSLOTMIGRATIONS"), "OK");
        pair.to.resume();
    } else {
        return;
    }
    wait_until("the failure is counted", || failed(&pair.from) > 0);
    assert_eq!((failed(&pair.from), failed(&pair.to)), (1, 0));
    assert_eq!(field(from, "res", "state"), "held");
    assert!(pair.move_at_once("res"));
    assert_eq!(failed(&pair.from), 1, "this one did not fail");
}

#[test]
fn who_waits_at_a_node_whose_replica_takes_over_is_told() {
    let pair = Pair::start();
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let from_id = ask(from, "CLUSTER MYID");
    // A master with slots cannot become a replica.
    for conn in [&mut *from, &mut *to, &mut pair.third.connect()] {
        assert_eq!(ask(conn, "CLUSTER DELSLOTS 16382"), "OK");
    }
    assert_eq!(ask(from, "CLUSTER ADDSLOTS 16382"), "OK");
    assert_eq!(ask(to, &format!("CLUSTER REPLICATE {from_id}")), "OK");
    pair.from.wait_for_replica(&pair.to);
    wait_until("it knows all slots", || number(to, "cluster_slots_assigned:") == 16_384);
    ask(from, "LOCK.ACQUIRE res A 60000");
    let mut client = waiter(&pair.from, "B", LONG);
    pair.from.wait_for_replica(&pair.to);
    assert_eq!(ask(to, "CLUSTER FAILOVER TAKEOVER"), "OK");
    let told = client.read();
    let is_sent_away = told.starts_with(b"-UNBLOCKED ") || told.starts_with(b"-TRYAGAIN ");
    assert!(is_sent_away, "{}", told.escape_ascii());
    wait_until("the roles have changed", || pair.from.info("role").as_deref() == Some("slave"));
    assert_eq!(pair.from.info_u64("lockmod_grants"), 1);
    assert_eq!(pair.from.info_u64("lockmod_waiters"), 0);
    assert_eq!(field(to, "res", "state"), "held");
    assert_eq!(ask(to, "LOCK.RELEASE res A"), "1");
}

#[test]
fn a_node_of_a_cluster_keeps_to_its_slots_and_forgets_what_is_idle() {
    let server = node();
    let conn = &mut server.connect();
    assert!(ask(conn, "LOCK.ACQUIRE res A 30000").starts_with("CLUSTERDOWN "));
    assert_eq!(ask(conn, "CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    wait_until("the cluster is up", || ask(conn, "LOCK.ACQUIRE res A 30000") == "1");
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE other A 30000", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("CONFIG SET lockmod.idle-ms 1", "OK"),
        ],
    );
    wait_until("the idle lock is forgotten", || ask(conn, "EXISTS res") == "0");
    assert_eq!(ask(conn, "LOCK.RELEASE other A"), "1");
    ask(conn, "CLUSTER DELSLOTSRANGE 0 16383");
    let error = ask(conn, "LOCK.ACQUIRE res A 30000");
    assert!(error.starts_with("CLUSTERDOWN "), "{error}");
}

/// Regression: the grant was withdrawn, because nobody listened at this master. But it had been
/// heard at another one, which passed it on, while the lock was granted to the next.
#[test]
fn a_grant_that_is_heard_only_at_another_master_is_not_made() {
    let pair = Pair::start();
    let conn = &mut pair.from.connect();
    let mut elsewhere = listener(&pair.to, &["100-a", "200-b"]);
    ask_at_last(conn, "LOCK.ACQUIRE res A 30000");
    wait(conn, "B", "100-a", 1);
    assert_eq!(ask(conn, "LOCK.RELEASE res A HANDOVER"), "1");
    assert_eq!(heard(&mut elsewhere, "100-a"), "100-a", "a wake, and no grant");
    assert_eq!(field(conn, "res", "state"), "reserved");
    let fence = ask(conn, &format!("LOCK.ACQUIRE res B 30000 {}", queue("100-a")));
    let mut here = listener(&pair.from, &["200-b"]);
    wait(conn, "C", "200-b", 2);
    assert_eq!(ask(conn, "LOCK.RELEASE res B HANDOVER"), "1");
    let next = fence.parse::<u64>().unwrap() + 1;
    assert_eq!(heard(&mut here, "200-b"), format!("{next} 2 200-b"));
    assert_eq!(field(conn, "res", "state"), "held");
}
