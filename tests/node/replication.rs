//! What replicas and the append-only file receive: decisions, as facts. Replicas obey.

use redis::Connection;

use crate::ask::{ask, ask_all, ask_args, digest, field, left_ms, wait_for_lapse};
use crate::common::{Server, run_args, wait_until};
use crate::told::{AppendOnly, Stream, unix_ms};

/// A command, its answer, and what is replicated for it.
type Row = (&'static str, &'static str, &'static [&'static str]);

const TABLE: &[Row] = &[
    // Grants: the absolute end and the fence replace the ttl.
    ("LOCK.ACQUIRE res A 30000", "1", &["LOCK.ACQUIRE res A 30000@+30000.1"]),
    ("LOCK.ACQUIRE res B 30000", "nil", &[]),
    ("LOCK.ACQUIRE res A 0", "BADTTL", &[]),
    // The holder again: replicated only if something has changed.
    ("LOCK.ACQUIRE res A 20000", "1", &[]),
    ("LOCK.ACQUIRE res A 60000", "1", &["LOCK.ACQUIRE res A 60000@+60000.1"]),
    ("LOCK.EXTEND res A 70000", "1", &["LOCK.EXTEND res A 70000@+70000.1"]),
    ("LOCK.EXTEND res A 5", "1", &[]),
    ("LOCK.EXTEND res B 40000", "0", &[]),
    ("LOCK.EXTEND none A 40000", "nil", &[]),
    ("LOCK.EXTEND res A 40000 FENCE 0", "BADARG", &[]),
    ("LOCK.EXTEND res A 80000 FENCE 5", "1", &["LOCK.EXTEND res A 80000@+80000.5 FENCE 5"]),
    ("LOCK.FENCE res", "5", &[]),
    ("LOCK.FENCE res A 7", "7", &["LOCK.FENCE res A 7"]),
    ("LOCK.FENCE res A 7", "7", &[]),
    ("LOCK.FENCE res A 3", "7", &[]),
    ("LOCK.EXTEND res A 5 FENCE 7", "1", &[]),
    ("LOCK.FENCE res B 9", "0", &[]),
    ("LOCK.FENCE none B 9", "nil", &[]),
    ("LOCK.FENCE res A x", "BADARG", &[]),
    ("LOCK.INFO none", "[state", &[]),
    ("LOCK.HELP", "[LOCK.<command>", &[]),
    ("LOCK.RELEASE res B", "0", &[]),
    ("LOCK.RELEASE res A", "1", &["LOCK.RELEASE res A"]),
    ("LOCK.RELEASE res A", "nil", &[]),
    ("LOCK.RELEASE none A", "nil", &[]),
    ("LOCK.RELEASE res", "ERR", &[]),
    // After an end, the next fence; a label is included.
    ("LOCK.ACQUIRE res C 30000 LABEL me", "8", &["LOCK.ACQUIRE res C 30000@+30000.8 LABEL me"]),
    ("LOCK.ACQUIRE res C 60000", "8", &["LOCK.ACQUIRE res C 60000@+60000.8"]),
    (
        "LOCK.ACQUIRE res C 90000 LABEL other",
        "8",
        &["LOCK.ACQUIRE res C 90000@+90000.8 LABEL other"],
    ),
    ("LOCK.EXTEND res C 91000", "1", &["LOCK.EXTEND res C 91000@+91000.8"]),
    ("LOCK.EXTEND res C 92000 FENCE 9", "1", &["LOCK.EXTEND res C 92000@+92000.9 FENCE 9"]),
    ("LOCK.ACQUIRE res C 93000", "9", &["LOCK.ACQUIRE res C 93000@+93000.9"]),
    // Repairs.
    (
        "LOCK.EXTEND lost A 30000 FENCE 30 REPAIR",
        "1",
        &["LOCK.EXTEND lost A 30000@+30000.30 FENCE 30 REPAIR"],
    ),
    ("LOCK.EXTEND lost B 30000 FENCE 31 REPAIR", "0", &[]),
    (
        "LOCK.EXTEND forgotten A 30000 FENCE 30 REPAIR LABEL me",
        "1",
        &["LOCK.EXTEND forgotten A 30000@+30000.30 FENCE 30 REPAIR LABEL me"],
    ),
    // The lease stands: its own label remains.
    (
        "LOCK.EXTEND forgotten A 40000 FENCE 30 REPAIR LABEL other",
        "1",
        &["LOCK.EXTEND forgotten A 40000@+40000.30 FENCE 30 REPAIR LABEL other"],
    ),
    ("LOCK.EXTEND low A 30000", "nil", &[]),
    // Effects of Redis's own commands.
    ("RENAME res moved", "OK", &["RENAME res moved"]),
    ("DEL moved", "1", &["DEL moved"]),
    ("LOCK.ACQUIRE res A 30000", "10", &["LOCK.ACQUIRE res A 30000@+30000.10"]),
    // Several in one step stay together.
    (
        "EVAL redis.call('LOCK.RELEASE','res','A')redis.call('LOCK.ACQUIRE','res','B','50') 0",
        "nil",
        &["MULTI", "LOCK.RELEASE res A", "LOCK.ACQUIRE res B 50@+50.11", "EXEC"],
    ),
    ("EVAL return(redis.call('LOCK.ACQUIRE','res','C','50')) 0", "nil", &[]),
    // An operator's floor.
    ("LOCK.FLOOR 5000", "5000", &["LOCK.FLOOR 5000"]),
    ("LOCK.FLOOR", "5000", &[]),
    ("LOCK.FLOOR none", "BADARG", &[]),
    ("LOCK.ACQUIRE above A 30000", "5001", &["LOCK.ACQUIRE above A 30000@+30000.5001"]),
    // Readers: the fact marks the lease as a reader's.
    (
        "LOCK.ACQUIRE read A 30000 SHARED LABEL me",
        "5000",
        &["LOCK.ACQUIRE read A 30000@+30000.5000s SHARED LABEL me"],
    ),
    (
        "LOCK.ACQUIRE read B 40000 SHARED",
        "5000",
        &["LOCK.ACQUIRE read B 40000@+40000.5000s SHARED"],
    ),
    ("LOCK.ACQUIRE read C 30000", "nil", &[]),
    ("LOCK.ACQUIRE read A 30000", "NOUPGRADE", &[]),
    ("LOCK.ACQUIRE read A 20000 SHARED", "5000", &[]),
    ("LOCK.EXTEND read A 60000", "1", &["LOCK.EXTEND read A 60000@+60000.5000s"]),
    ("LOCK.FENCE read B 5003", "5003", &["LOCK.FENCE read B 5003"]),
    ("LOCK.EXTEND read A 61000 SHARED", "1", &["LOCK.EXTEND read A 61000@+61000.5000s SHARED"]),
    ("LOCK.RELEASE read A", "1", &["LOCK.RELEASE read A"]),
    ("LOCK.RELEASE read B", "1", &["LOCK.RELEASE read B"]),
    ("LOCK.ACQUIRE read W 30000", "5004", &["LOCK.ACQUIRE read W 30000@+30000.5004"]),
    // A writer becomes a reader.
    ("LOCK.EXTEND read W 40000 SHARED", "1", &["LOCK.EXTEND read W 40000@+40000.5004s SHARED"]),
    ("LOCK.EXTEND read W 10 SHARED", "1", &[]),
    (
        "LOCK.EXTEND read V 30000 SHARED FENCE 5004 REPAIR",
        "1",
        &["LOCK.EXTEND read V 30000@+30000.5004s SHARED FENCE 5004 REPAIR"],
    ),
    ("LOCK.EXTEND read U 30000 FENCE 5004 REPAIR", "0", &[]),
];

#[test]
fn replicas_and_the_append_only_file_are_told_decisions_and_nothing_else() {
    // Otherwise a write to the file may wait for an earlier flush.
    let server = Server::builder().config("appendonly", "yes").config("appendfsync", "no").start();
    let conn = &mut server.connect();
    let mut replica = Stream::open(&server);
    let mut file = AppendOnly::open(&server);
    let mut floors = [0; 2];
    for (line, answer, told) in TABLE {
        let given = ask(conn, line);
        assert!(given.starts_with(answer), "{line}: {given}");
        // A new replica receives the floor on a tick, which may come at any line.
        let is_due = |heard: &String| told.contains(&&**heard) || !heard.starts_with("LOCK.FLOOR ");
        let heard = [replica.told(conn), file.told()];
        for (place, mut heard) in heard.into_iter().enumerate() {
            let count = heard.len();
            heard.dedup_by(|one, before| one == before && one.starts_with("LOCK.FLOOR "));
            heard.retain(is_due);
            floors[place] += count - heard.len();
            assert_eq!(heard, *told, "{line}");
        }
    }
    assert!(floors.iter().all(|count| *count <= 1), "{floors:?}");
}

fn pair() -> (Server, Server) {
    let primary = Server::builder().module_arg("idle-ms", 0).start();
    let replica = Server::builder().config("appendonly", "yes").replica_of(&primary).start();
    primary.wait_for_replica(&replica);
    (primary, replica)
}

/// Makes the replica load its append-only file anew.
fn load_file(replica: &Server) {
    // The first synchronisation has the file rewritten; until that is done the file is incomplete.
    let is_whole = || {
        replica.info_u64("aof_rewrite_in_progress") == 0
            && replica.info_u64("aof_rewrite_scheduled") == 0
    };
    wait_until("the file is whole", is_whole);
    assert_eq!(ask(&mut replica.connect(), "DEBUG LOADAOF"), "OK");
}

#[test]
fn a_replica_and_its_append_only_file_end_up_with_the_digest_of_the_primary() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    for (line, ..) in TABLE {
        ask(conn, line);
        primary.wait_for_replica(&replica);
        assert_eq!(digest(copy), digest(conn), "{line}");
    }
    let long = "t".repeat(64);
    let binary: [&[u8]; 6] = [b"LOCK.ACQUIRE", b"\xff\0", b"\0\xff\r\n", b"1", b"LABEL", b"\0\r\n"];
    for args in [
        &binary[..],
        &[b"LOCK.ACQUIRE", b"long", long.as_bytes(), b"86400000"],
        &[b"LOCK.FENCE", b"long", long.as_bytes(), b"1800000000"],
    ] {
        run_args(conn, args).unwrap();
        primary.wait_for_replica(&replica);
        assert_eq!(digest(copy), digest(conn));
    }
    load_file(&replica);
    assert_eq!(digest(copy), digest(conn));
    assert!(!replica.log().contains("error"), "{}", replica.log());
}

#[test]
fn a_full_resynchronisation_brings_leases_counters_and_the_floor() {
    let primary = Server::start();
    let conn = &mut primary.connect();
    for line in [
        "LOCK.ACQUIRE gone A 30000",
        "LOCK.FENCE gone A 50",
        "DEL gone",
        "LOCK.ACQUIRE held A 600000 LABEL me",
        "LOCK.ACQUIRE free A 30000",
        "LOCK.RELEASE free A",
        "SELECT 4",
        "LOCK.ACQUIRE held A 600000",
    ] {
        ask(conn, line);
    }
    for diskless in ["yes", "no"] {
        ask(conn, &format!("CONFIG SET repl-diskless-sync {diskless}"));
        let replica = Server::builder().config("lockmod.quarantine-on-promotion", "no").start();
        let copy = &mut replica.connect();
        ask(copy, "LOCK.ACQUIRE own A 30000");
        ask(copy, "LOCK.FENCE own A 3000");
        ask(copy, &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
        primary.wait_for_replica(&replica);
        assert_eq!(digest(copy), digest(conn));
        assert_eq!(field(copy, "held", "label"), "me");
        assert!((500_000..=600_000).contains(&left_ms(copy, "held")));
        ask(copy, "REPLICAOF NO ONE");
        let fence: u64 = ask(copy, "LOCK.ACQUIRE own B 30000").parse().unwrap();
        assert!(fence > 3000, "the replica's own floor does not fall: {fence}");
        assert_eq!(ask(copy, "LOCK.ACQUIRE held B 30000"), "nil");
        assert_eq!(ask(copy, "LOCK.RELEASE held A"), "1");
    }
}

#[test]
fn a_replica_answers_what_reads_and_refuses_what_writes() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    ask(conn, "LOCK.ACQUIRE res A 600000 LABEL me");
    primary.wait_for_replica(&replica);
    assert_eq!(field(copy, "res", "state"), "held");
    assert_eq!(field(copy, "res", "label"), "me");
    assert!((500_000..=600_000).contains(&left_ms(copy, "res")));
    for line in [
        "LOCK.ACQUIRE res A 30000",
        "LOCK.ACQUIRE new A 30000",
        "LOCK.RELEASE res A",
        "LOCK.EXTEND res A 30000",
        "LOCK.FENCE res A 9",
    ] {
        let error = ask(copy, line);
        assert!(error.starts_with("READONLY "), "{line}: {error}");
    }
    assert_eq!(digest(copy), digest(conn));
}

#[test]
fn a_replica_whose_wall_clock_is_wrong_decides_nothing() {
    let primary = Server::start();
    let replica = Server::builder().fake_wall_clock().replica_of(&primary).start();
    primary.wait_for_replica(&replica);
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    replica.set_wall_clock_offset_ms(3_600_000);
    ask(conn, "LOCK.ACQUIRE res A 30000 LABEL me");
    primary.wait_for_replica(&replica);
    assert_eq!(field(copy, "res", "state"), "free", "by its own clock it is over");
    assert_eq!(digest(copy), digest(conn), "and it stays as it was written");
    for line in [
        "LOCK.EXTEND res A 60000",
        "LOCK.FENCE res A 7",
        "LOCK.RELEASE res A",
        "LOCK.ACQUIRE res B 30000",
        "LOCK.EXTEND res B 30000 FENCE 12",
    ] {
        ask(conn, line);
        primary.wait_for_replica(&replica);
        assert_eq!(digest(copy), digest(conn), "{line}");
    }
    // A clock that is behind makes no lease longer than its ttl.
    replica.set_wall_clock_offset_ms(-3_600_000);
    ask(conn, "LOCK.EXTEND res B 30000");
    primary.wait_for_replica(&replica);
    assert!(left_ms(copy, "res") <= 30_000);
    ask(conn, "LOCK.RELEASE res B");
    primary.wait_for_replica(&replica);
    assert_eq!(field(copy, "res", "state"), "free");
    assert_eq!(digest(copy), digest(conn));
}

#[test]
fn a_label_is_the_same_on_a_replica_whoever_asks_again() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    // Regression: a retry without the label, or with another, changed it on the replica only; a
    // repair of a lapsed lease lost it on the primary only; and a reader that came back with
    // another one kept the old one on the replica, because its fence was the same.
    for (line, label) in [
        ("LOCK.ACQUIRE read A 1 SHARED LABEL old", "nil"),
        ("LOCK.ACQUIRE res A 20000 LABEL me", "me"),
        ("LOCK.ACQUIRE res A 30000", "me"),
        ("LOCK.ACQUIRE res A 40000 LABEL other", "me"),
        ("LOCK.EXTEND res A 50000", "me"),
        ("LOCK.FENCE res A 9", "me"),
        ("LOCK.ACQUIRE res A 60000", "me"),
        ("LOCK.ACQUIRE short A 1 LABEL me", "nil"),
        ("LOCK.EXTEND short A 30000 FENCE 19 REPAIR", "me"),
        ("LOCK.RELEASE short A", "nil"),
        ("LOCK.ACQUIRE short A 1", "nil"),
        ("LOCK.ACQUIRE short A 30000 LABEL new", "new"),
        ("LOCK.ACQUIRE read A 30000 SHARED LABEL new", "new"),
        ("LOCK.ACQUIRE read A 40000 SHARED LABEL other", "new"),
    ] {
        ask(conn, line);
        let name = line.split(' ').nth(1).unwrap();
        if line.contains(" A 1") && !line.ends_with('0') {
            wait_for_lapse(conn, name);
        }
        primary.wait_for_replica(&replica);
        assert_eq!(digest(copy), digest(conn), "{line}");
        if label != "nil" {
            assert_eq!(field(conn, name, "label"), label, "{line}");
            assert_eq!(field(copy, name, "label"), label, "{line}");
        }
    }
}

/// Regression: the reader's fence was the writer's, so the replica kept the writer's label.
#[test]
fn a_writer_whose_lease_ended_has_its_new_label_as_a_reader_on_a_replica_too() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    ask(conn, "LOCK.ACQUIRE res A 1 LABEL old");
    let granted_at = std::time::Instant::now();
    wait_until("it is over", || granted_at.elapsed().as_millis() > 5);
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000 SHARED LABEL new"), "1");
    primary.wait_for_replica(&replica);
    assert_eq!(field(copy, "res", "label"), "new");
}

/// Regression: a replica counted from the first grant to the token.
#[test]
fn a_replica_knows_since_when_a_token_has_its_present_lease() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    let held_for = |conn: &mut _, name| field(conn, name, "held_for_ms").parse::<u64>().unwrap();
    let leases = ["writer A", "reader A", "repaired A"];
    let [write, read, repair] = leases.map(|lease| format!("LOCK.ACQUIRE {lease} 1"));
    for line in ["LOCK.ACQUIRE first A 600000", &write, &format!("{read} SHARED"), &repair] {
        ask(conn, line);
    }
    primary.wait_for_replica(&replica);
    wait_until("the first lease is old", || held_for(copy, "first") >= 300);
    for line in [
        "LOCK.ACQUIRE writer A 60000",
        "LOCK.ACQUIRE reader A 60000 SHARED",
        "LOCK.EXTEND repaired A 60000 FENCE 1 REPAIR",
    ] {
        ask(conn, line);
    }
    primary.wait_for_replica(&replica);
    for name in ["writer", "reader", "repaired"] {
        let held = held_for(copy, name);
        assert!(held + 300 <= held_for(copy, "first"), "{name}: {held} ms");
    }
    // An extension and a retry are no grants.
    wait_until("the leases are old", || held_for(copy, "repaired") >= 20);
    for line in ["LOCK.ACQUIRE reader A 70000 SHARED", "LOCK.EXTEND repaired A 70000"] {
        ask(conn, line);
    }
    primary.wait_for_replica(&replica);
    assert!(held_for(copy, "reader") >= 20 && held_for(copy, "repaired") >= 20);
}

/// Regression: a fact caps the lease at its ttl. An extension by less than what was left was stated
/// with that smaller ttl, so that replicas and the file forgot the rest of the lease.
#[test]
fn an_extension_by_less_than_is_left_takes_nothing_from_a_replica_or_the_file() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    for extension in ["LOCK.EXTEND res A 1", "LOCK.EXTEND res A 1 FENCE 9"] {
        ask(conn, "LOCK.ACQUIRE res A 600000");
        assert_eq!(ask(conn, extension), "1");
        primary.wait_for_replica(&replica);
        assert_eq!(digest(copy), digest(conn), "{extension}");
        load_file(&replica);
        assert!(left_ms(copy, "res") > 500_000, "{extension}");
    }
}

#[test]
fn a_lease_that_lapsed_stays_written_on_a_replica_until_it_is_told() {
    let (primary, replica) = pair();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    ask(conn, "LOCK.ACQUIRE res A 1");
    wait_for_lapse(conn, "res");
    primary.wait_for_replica(&replica);
    wait_for_lapse(copy, "res");
    assert_eq!(digest(copy), digest(conn));
    assert_eq!(ask(conn, "LOCK.ACQUIRE res B 30000"), "2");
    primary.wait_for_replica(&replica);
    assert_eq!(field(copy, "res", "state"), "held");
    assert_eq!(field(copy, "res", "fence"), "2");
}

#[test]
fn facts_from_ordinary_clients_are_refused_everywhere() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE held A 600000");
    let before = digest(conn);
    for key in ["new", "held"] {
        for command in ["LOCK.ACQUIRE", "LOCK.EXTEND"] {
            let fact = format!("30000@{}.17", unix_ms() + 30_000);
            let refusal = format!("BADTTL ttl '{fact}' is not a whole number");
            let line = format!("{command} {key} A {fact}");
            assert!(ask(conn, &line).starts_with(&refusal));
            let script = format!("return redis.call('{command}', '{key}', 'A', '{fact}')");
            assert!(ask_args(conn, &["EVAL", &script, "0"]).starts_with(&refusal));
            ask(conn, "MULTI");
            ask(conn, &line);
            let error = format!("{:?}", run_args(conn, &["EXEC"]));
            assert!(error.contains("BADTTL"), "{error}");
        }
    }
    assert_eq!(digest(conn), before);
    assert!(ask(conn, "LOCK.ACQUIRE new  30000@1.1").starts_with("ERR wrong number"));
    let counter_only = ask_args(conn, &["LOCK.ACQUIRE", "new", "", "0@0.5.5"]);
    assert!(counter_only.starts_with("BADTOKEN "), "{counter_only}");
}

/// Acquires and releases twice, and acquires again, in one script or function.
const BUSY: &str = "
    for i = 1, 2 do
        redis.call('LOCK.ACQUIRE', keys[1], 'A', '40000', 'LABEL', 'me')
        redis.call('LOCK.ACQUIRE', keys[1], 'B', '40000')
        redis.call('LOCK.RELEASE', keys[1], 'A')
    end
    redis.call('LOCK.ACQUIRE', keys[1], 'A', '40000')
    redis.call('LOCK.EXTEND', keys[1], 'A', '50000')
    return redis.call('LOCK.FENCE', keys[1], 'A', '9')";

#[test]
fn transactions_scripts_and_functions_are_told_decision_by_decision() {
    let busy = |conn: &mut Connection, how: &str| match how {
        "script" => {
            let script = BUSY.replace("keys[", "KEYS[");
            assert_eq!(ask_args(conn, &["EVAL", &script, "1", "res"]), "9");
        }
        "function" => {
            let library = format!(
                "#!lua name=busy\nredis.register_function('busy', function(keys) {BUSY} end)"
            );
            assert_eq!(ask_args(conn, &["FUNCTION", "LOAD", &library]), "busy");
            assert_eq!(ask(conn, "FCALL busy 1 res"), "9");
        }
        _ => {
            ask_all(
                conn,
                &[
                    ("MULTI", "OK"),
                    ("LOCK.ACQUIRE res A 40000 LABEL me", "QUEUED"),
                    ("LOCK.ACQUIRE res B 40000", "QUEUED"),
                    ("LOCK.RELEASE res A", "QUEUED"),
                    ("LOCK.ACQUIRE res A 40000 LABEL me", "QUEUED"),
                    ("LOCK.RELEASE res A", "QUEUED"),
                    ("LOCK.ACQUIRE res A 40000", "QUEUED"),
                    ("LOCK.EXTEND res A 50000", "QUEUED"),
                    ("LOCK.FENCE res A 9", "QUEUED"),
                    ("EXEC", "[1 nil 1 2 1 3 1 9]"),
                ],
            );
        }
    };
    for how in ["script", "function", "transaction"] {
        let (primary, replica) = pair();
        let conn = &mut primary.connect();
        let mut told = Stream::open(&primary);
        busy(conn, how);
        let mut commands = told.told(conn);
        commands.retain(|command| !command.starts_with("FUNCTION "));
        assert_eq!(
            commands,
            [
                "MULTI",
                "LOCK.ACQUIRE res A 40000@+40000.1 LABEL me",
                "LOCK.RELEASE res A",
                "LOCK.ACQUIRE res A 40000@+40000.2 LABEL me",
                "LOCK.RELEASE res A",
                "LOCK.ACQUIRE res A 40000@+40000.3",
                "LOCK.EXTEND res A 50000@+50000.3",
                "LOCK.FENCE res A 9",
                "EXEC",
            ],
            "{how}"
        );
        primary.wait_for_replica(&replica);
        assert_eq!(digest(&mut replica.connect()), digest(conn), "{how}");
    }
}

#[test]
fn a_chain_of_replicas_agrees() {
    let (primary, replica) = pair();
    let last = Server::builder().replica_of(&replica).start();
    let conn = &mut primary.connect();
    replica.wait_for_replica(&last);
    for (line, ..) in TABLE {
        ask(conn, line);
    }
    primary.wait_for_replica(&replica);
    wait_until("the last one of the chain is level", || {
        digest(&mut last.connect()) == digest(conn)
    });
}

#[test]
fn a_replica_hears_of_the_floor_of_a_master_without_locks() {
    let master = Server::start();
    let conn = &mut master.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    ask(conn, "LOCK.FENCE res A 5000");
    ask(conn, "FLUSHALL");
    assert_eq!(master.info_u64("lockmod_floor"), 5_000);
    let replica = Server::builder().replica_of(&master).start();
    wait_until("the replica knows", || replica.info_u64("lockmod_floor") == 5_000);
    assert_eq!(replica.info_u64("lockmod_highest_fence"), 5_000);
}

#[test]
fn a_replica_that_clients_may_write_to_decides_nothing() {
    // Regression: it granted the lock that its master had granted, to every client that asked.
    let master = Server::start();
    let replica = Server::builder().config("replica-read-only", "no").replica_of(&master).start();
    master.wait_for_replica(&replica);
    let conn = &mut replica.connect();
    assert_eq!(ask(conn, "SET other value"), "OK", "clients may write to it");
    let decide = [
        "LOCK.ACQUIRE res B 60000",
        "LOCK.ACQUIRE res B 60000 WAIT 60000",
        "LOCK.RELEASE res A",
        "LOCK.EXTEND res A 60000",
        "LOCK.EXTEND res A 60000 FENCE 1 REPAIR",
        "LOCK.FENCE res A 7",
        "LOCK.FLOOR 9",
        "EVAL return(redis.call('LOCK.ACQUIRE',KEYS[1],'B','60000')) 1 res",
    ];
    for held in [false, true] {
        if held {
            assert_eq!(ask(&mut master.connect(), "LOCK.ACQUIRE res A 60000"), "1");
            master.wait_for_replica(&replica);
        }
        for command in decide {
            let error = ask(conn, command);
            assert!(error.contains("READONLY "), "{command}: {error}");
        }
        let state = if held { "held" } else { "free" };
        assert_eq!(field(conn, "res", "state"), state, "what its master says is applied");
    }
    ask(conn, "REPLICAOF NO ONE");
    assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1", "a master decides");
    ask(conn, &format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let error = ask(conn, "LOCK.RELEASE res A");
    assert!(error.contains("READONLY "), "{error}");
}
