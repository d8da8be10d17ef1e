//! Readers on the disk, on replicas, under other names, and after a crash.

use redis::Connection;

use crate::ask::{ask, ask_all, ask_args, bytes, digest, field};
use crate::common::{Server, wait_until};
use crate::observed::{listener, next};
use crate::persistence::rewrite;
use crate::readers::readers;
use crate::told::Stream;

/// Locks that are read, in every way.
fn fill(conn: &mut Connection) {
    let (long, label) = ("t".repeat(64), "l".repeat(128));
    for line in [
        "LOCK.ACQUIRE read A 600000 SHARED LABEL worker-7",
        "LOCK.ACQUIRE read B 600000 SHARED",
        "LOCK.FENCE read B 70",
        &format!("LOCK.ACQUIRE read {long} 600000 SHARED LABEL {label}"),
        "LOCK.ACQUIRE read late 1 SHARED",
        "LOCK.ACQUIRE alone A 600000 SHARED",
        "LOCK.ACQUIRE downgraded A 600000",
        "LOCK.EXTEND downgraded A 5 SHARED",
        "LOCK.ACQUIRE lapsed A 1 SHARED",
        "LOCK.ACQUIRE lapsed B 1 SHARED",
    ] {
        ask(conn, line);
    }
    wait_until("the short leases have ended", || {
        readers(conn, "read") == 3 && readers(conn, "lapsed") == 0
    });
}

/// Asserts that everything of [`fill`] is there, and that the node grants.
#[track_caller]
fn is_kept(how: &str, conn: &mut Connection) {
    let counts = ["read", "alone", "downgraded", "lapsed"].map(|key| readers(conn, key));
    assert_eq!(counts, [3, 1, 1, 0], "{how}");
    let mut labels = field(conn, "read", "reader_labels");
    labels.retain(|letter| letter != 'l');
    assert!(labels.contains("worker-7"), "{how}: {labels}");
    let long = "t".repeat(64);
    for (line, answer) in [
        ("LOCK.ACQUIRE read A 600000 SHARED", "1"),
        ("LOCK.ACQUIRE read B 600000 SHARED", "70"),
        (&*format!("LOCK.ACQUIRE read {long} 600000 SHARED"), "70"),
        ("LOCK.EXTEND read A 600000", "1"),
        ("LOCK.EXTEND read late 600000 SHARED", "nil"),
        ("LOCK.EXTEND alone A 600000", "1"),
        ("LOCK.EXTEND downgraded A 600000", "1"),
        ("LOCK.ACQUIRE read W 600000", "nil"),
        ("LOCK.ACQUIRE alone W 600000", "nil"),
        ("LOCK.ACQUIRE downgraded W 600000", "nil"),
        ("LOCK.RELEASE read A", "1"),
        ("LOCK.RELEASE read B", "1"),
        ("LOCK.ACQUIRE read W 600000", "nil"),
        (&format!("LOCK.RELEASE read {long}"), "1"),
    ] {
        assert_eq!(ask(conn, line), answer, "{how}: {line}");
    }
    for line in [
        "LOCK.ACQUIRE alone other 600000 SHARED",
        "LOCK.ACQUIRE lapsed W 600000",
        "LOCK.ACQUIRE read W 600000",
    ] {
        let fence: u64 = ask(conn, line).parse().unwrap_or_else(|_| panic!("{how}: {line}"));
        assert!(fence > 70, "{how}: {line}: {fence}");
    }
}

/// A way to lose and load the data set.
type Reload = (&'static str, fn(&mut Server));

#[test]
fn readers_come_back_from_a_snapshot() {
    const WAYS: [Reload; 2] = [
        ("DEBUG RELOAD", |server| drop(server.run("DEBUG RELOAD").unwrap())),
        ("SAVE and restart", |server| {
            server.terminate_with("SAVE");
            server.start_again();
        }),
    ];
    for (how, reload) in WAYS {
        let mut server = Server::start();
        let conn = &mut server.connect();
        fill(conn);
        let before = digest(conn);
        reload(&mut server);
        let conn = &mut server.connect();
        assert_eq!(digest(conn), before, "{how}");
        is_kept(how, conn);
    }
}

#[test]
fn readers_come_back_from_the_append_only_file() {
    const WAYS: [Reload; 4] = [
        ("DEBUG LOADAOF", |server| drop(server.run("DEBUG LOADAOF").unwrap())),
        ("restart", Server::restart),
        ("a rewrite and DEBUG LOADAOF", |server| {
            rewrite(server);
            server.run("DEBUG LOADAOF").unwrap();
        }),
        ("a rewrite and a restart", |server| {
            rewrite(server);
            server.restart();
        }),
    ];
    for preamble in ["no", "yes"] {
        for (how, reload) in WAYS {
            let builder = Server::builder().config("appendonly", "yes");
            let mut server = builder.config("aof-use-rdb-preamble", preamble).start();
            let conn = &mut server.connect();
            fill(conn);
            let before = digest(conn);
            reload(&mut server);
            let conn = &mut server.connect();
            assert_eq!(digest(conn), before, "{how}");
            is_kept(how, conn);
        }
    }
}

/// Regression: a scan removes readers whose leases have ended from a lock, and does not tell the
/// file. The locks were counted with them, so after a clean stop the node waited as after a crash.
#[test]
fn readers_that_were_forgotten_when_their_leases_ended_cost_no_quarantine() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("notify-keyspace-events", "Kd")
        .start();
    let mut events = listener(&server);
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 600000 SHARED");
    for line in [
        "LOCK.ACQUIRE res B 10 SHARED",
        "LOCK.ACQUIRE gone A 10 SHARED",
        "LOCK.ACQUIRE gone B 10 SHARED",
    ] {
        ask(conn, line);
    }
    let lapses = || server.info_u64("lockmod_lapses");
    wait_until("the scan has come upon them", || {
        next(&mut events);
        lapses() == 3
    });
    server.restart();
    let conn = &mut server.connect();
    assert_eq!(readers(conn, "res"), 1);
    assert_eq!(ask(conn, "LOCK.ACQUIRE gone W 60000"), "2");
}

/// Regression: a lock with many readers forgets the late ones when the next arrives, even while a
/// file is loaded. At a clean stop, such readers had still been counted.
#[test]
fn readers_whose_leases_end_while_their_node_is_down_cost_no_quarantine() {
    for (appendonly, stop) in [("yes", "NOSAVE"), ("no", "SAVE")] {
        let mut server = Server::builder().config("appendonly", appendonly).start();
        let conn = &mut server.connect();
        let mut pipe = redis::pipe();
        for number in 0..500 {
            let ttl = if number % 2 == 0 { 600_000 } else { 700 };
            let (token, mode) = (format!("t{number}"), "SHARED");
            pipe.cmd("LOCK.ACQUIRE").arg("res").arg(token).arg(ttl).arg(mode).ignore();
        }
        pipe.query::<()>(conn).unwrap();
        assert_eq!(readers(conn, "res"), 500, "or this machine is too slow");
        let start = std::time::Instant::now();
        server.terminate_with(stop);
        wait_until("their leases have ended", || start.elapsed().as_millis() > 750);
        server.start_again();
        let conn = &mut server.connect();
        assert_eq!(readers(conn, "res"), 250);
        assert_eq!(ask(conn, "LOCK.ACQUIRE other A 60000"), "2", "{stop}");
    }
}

#[test]
fn a_replica_has_the_readers_and_keeps_writers_out_when_it_is_promoted() {
    let primary = Server::builder().module_arg("idle-ms", 0).start();
    let promotes_at_once =
        |builder: crate::common::Builder| builder.config("lockmod.quarantine-on-promotion", "no");
    let replica = promotes_at_once(Server::builder().replica_of(&primary)).start();
    primary.wait_for_replica(&replica);
    let conn = &mut primary.connect();
    fill(conn);
    let late = promotes_at_once(Server::builder().replica_of(&primary)).start();
    for replica in [&replica, &late] {
        primary.wait_for_replica(replica);
        let copy = &mut replica.connect();
        assert_eq!(digest(copy), digest(conn));
        assert!(ask(copy, "LOCK.ACQUIRE read X 60000 SHARED").starts_with("READONLY"));
        ask(copy, "REPLICAOF NO ONE");
        let counts = ["read", "alone", "downgraded", "lapsed"].map(|key| readers(copy, key));
        assert_eq!(counts, [3, 1, 1, 0]);
        ask_all(
            copy,
            &[
                ("LOCK.EXTEND read A 60000", "1"),
                ("LOCK.ACQUIRE read W 60000", "nil"),
                ("LOCK.ACQUIRE alone W 60000", "nil"),
                ("LOCK.ACQUIRE downgraded W 60000", "nil"),
                ("LOCK.RELEASE alone A", "1"),
            ],
        );
        let fence: u64 = ask(copy, "LOCK.ACQUIRE alone W 60000").parse().unwrap();
        assert!(fence > 70, "{fence}");
        assert!(!replica.log().contains("was not applied"), "{}", replica.log());
    }
}

#[test]
fn a_promoted_node_that_waits_counts_no_reader() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(&primary).start();
    primary.wait_for_replica(&replica);
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    ask_all(
        conn,
        &[("LOCK.ACQUIRE res A 60000 SHARED", "1"), ("LOCK.ACQUIRE res B 60000 SHARED", "1")],
    );
    primary.wait_for_replica(&replica);
    ask(copy, "REPLICAOF NO ONE");
    for line in [
        "LOCK.EXTEND res A 60000",
        "LOCK.EXTEND res B 60000 SHARED",
        "LOCK.EXTEND res C 60000 SHARED FENCE 1 REPAIR",
    ] {
        assert_eq!(ask(copy, line), "2", "{line}");
    }
    assert!(ask(copy, "LOCK.ACQUIRE res D 60000 SHARED").starts_with("QUARANTINE "));
    assert_eq!(ask(copy, "LOCK.EXTEND res W 60000 FENCE 1 REPAIR"), "0");
}

#[test]
fn what_the_line_grants_to_readers_is_told_as_facts() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut stream = Stream::open(&server);
    ask(conn, "LOCK.ACQUIRE res W 60000");
    let mut clients = ["A", "B"].map(|token| crate::waiting::waiting_reader(&server, token));
    stream.told(conn);
    ask(conn, "LOCK.RELEASE res W");
    for client in &mut clients {
        assert_eq!(client.read(), b":1\r\n");
    }
    let told = stream.told(conn);
    let grant = |token: &str| format!("LOCK.ACQUIRE res {token} 60000@+60000.1s");
    let first = told.iter().position(|fact| fact == "LOCK.RELEASE res W").expect("the release");
    for token in ["A", "B"] {
        assert!(told[first..].contains(&grant(token)), "{told:?}");
    }
}

#[test]
fn a_downgrade_that_prolongs_nothing_reaches_a_replica() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(&primary).start();
    primary.wait_for_replica(&replica);
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    ask(conn, "LOCK.ACQUIRE res W 600000 LABEL me");
    assert_eq!(ask(conn, "LOCK.EXTEND res W 5 SHARED"), "1");
    primary.wait_for_replica(&replica);
    assert_eq!((readers(copy, "res"), &*field(copy, "res", "label")), (1, "me"));
    assert!(crate::ask::left_ms(copy, "res") > 500_000);
}

#[test]
fn readers_go_where_their_lock_goes() {
    let server = Server::start();
    let other = Server::start();
    let (conn, away) = (&mut server.connect(), &mut other.connect());
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE a A 60000 SHARED LABEL me", "1"),
            ("LOCK.ACQUIRE a B 60000 SHARED", "1"),
            ("COPY a copy", "1"),
            ("RENAME a b", "OK"),
            ("MOVE b 3", "1"),
            ("LOCK.RELEASE copy A", "1"),
            ("LOCK.ACQUIRE copy W 60000", "nil"),
            ("LOCK.RELEASE copy B", "1"),
            ("LOCK.ACQUIRE copy W 60000", "2"),
            ("SELECT 3", "OK"),
            ("LOCK.EXTEND b A 60000", "1"),
            ("LOCK.EXTEND b B 60000", "1"),
            ("LOCK.ACQUIRE b W 60000", "nil"),
        ],
    );
    let dump = bytes(conn, &["DUMP", "b"]);
    for conn in [&mut *conn, &mut *away] {
        let restore = [b"RESTORE".as_slice(), b"again", b"0", &dump];
        assert_eq!(ask_args(conn, &restore), "OK");
        assert_eq!((readers(conn, "again"), &*field(conn, "again", "label")), (2, "me"));
        for token in ["A", "B"] {
            assert_eq!(ask(conn, "LOCK.ACQUIRE again W 60000"), "nil");
            assert_eq!(ask(conn, &format!("LOCK.RELEASE again {token}")), "1");
        }
        assert_eq!(ask(conn, "LOCK.ACQUIRE again W 60000"), "2");
    }
    let port = other.port().to_string();
    assert_eq!(ask_args(conn, &["MIGRATE", "127.0.0.1", &port, "b", "0", "10000"]), "OK");
    assert_eq!(readers(away, "b"), 2);
    ask(away, "CONFIG SET lockmod.max-ttl 1000");
    let restore = [b"RESTORE".as_slice(), b"long", b"0", &dump];
    assert_eq!(ask_args(away, &restore), "ERR Bad data format", "a longer lease than is allowed");
    assert_eq!(ask(conn, "DEL again copy"), "1", "in this database");
    // Every removal of a lock that is read keeps its fences.
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE gone A 60000 SHARED", "2"),
            ("LOCK.ACQUIRE gone B 60000 SHARED", "2"),
            ("LOCK.FENCE gone B 40", "40"),
            ("DEL gone", "1"),
            ("LOCK.EXTEND gone A 60000", "nil"),
            ("LOCK.ACQUIRE gone W 60000", "41"),
        ],
    );
}

#[test]
fn damaged_dumps_of_readers_are_refused_or_mean_a_sound_lock() {
    let mut server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "CONFIG SET rdbcompression no");
    assert_eq!(ask(conn, "DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    ask(conn, "LOCK.ACQUIRE res token-a 600000 SHARED LABEL me");
    ask(conn, "LOCK.ACQUIRE res token-i 600000 SHARED");
    ask(conn, "LOCK.ACQUIRE res token-e 600000 SHARED");
    let dump = bytes(conn, &["DUMP", "res"]);
    // After type, module id, and the opcode and the length of a string of over 63 bytes.
    let payload = 1 + 9 + 1 + 2;
    assert_eq!(dump[payload], 2, "the version");
    let mut refused = 0;
    for place in payload..dump.len() - 11 {
        for bit in [1, 4, 8, 128] {
            let mut damaged = dump.clone();
            damaged[place] ^= bit;
            let answer = ask_args(conn, &[b"RESTORE".as_slice(), b"copy", b"0", &damaged]);
            if answer == "OK" {
                assert!(readers(conn, "copy") <= 3);
                ask(conn, "LOCK.RELEASE copy token-a");
                ask(conn, "LOCK.ACQUIRE copy token-x 1000 SHARED");
                ask(conn, "DEL copy");
            } else {
                assert_eq!(answer, "ERR Bad data format");
                refused += 1;
            }
        }
    }
    assert!(server.is_running());
    assert!(refused > 20, "{refused}");
    assert!(!server.log().contains("panicked"));
    assert_eq!(readers(conn, "res"), 3);
}

#[test]
fn readers_that_a_node_forgot_are_repaired_beside_each_other_and_count_after_the_quarantine() {
    let mut server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 600000 SHARED");
    ask(conn, "LOCK.ACQUIRE res B 600000 SHARED");
    server.kill();
    server.start_again();
    let conn = &mut server.connect();
    for line in [
        "LOCK.ACQUIRE res A 600000 SHARED",
        "LOCK.ACQUIRE other A 600000 SHARED",
        "LOCK.EXTEND res A 600000 SHARED",
        "LOCK.EXTEND res A 600000",
    ] {
        assert!(ask(conn, line).starts_with("QUARANTINE "), "{line}");
    }
    ask_all(
        conn,
        &[
            ("LOCK.EXTEND res A 600000 SHARED FENCE 1 REPAIR LABEL me", "2"),
            ("LOCK.EXTEND res B 600000 SHARED FENCE 3 REPAIR", "2"),
            ("LOCK.EXTEND res W 600000 FENCE 9 REPAIR", "0"),
            ("LOCK.EXTEND res A 600000", "2"),
            ("LOCK.EXTEND written W 600000 FENCE 9 REPAIR", "2"),
            ("LOCK.EXTEND written A 600000 SHARED FENCE 9 REPAIR", "0"),
            // A writer that became a reader meanwhile.
            ("LOCK.EXTEND written W 600000 SHARED FENCE 9 REPAIR", "2"),
            ("LOCK.EXTEND written A 600000 SHARED FENCE 9 REPAIR", "2"),
        ],
    );
    assert_eq!((readers(conn, "res"), readers(conn, "written")), (2, 2));
    assert!(ask(conn, "LOCK.ACQUIRE res C 600000 SHARED").starts_with("QUARANTINE "));
    assert_eq!(field(conn, "res", "label"), "me");
    assert_eq!(ask(conn, "LOCK.RELEASE written W"), "1");

    ask(conn, "CONFIG SET lockmod.quarantine no");
    ask_all(
        conn,
        &[
            ("LOCK.EXTEND res A 600000", "1"),
            ("LOCK.EXTEND res B 600000 SHARED", "1"),
            ("LOCK.EXTEND written A 600000", "1"),
            ("LOCK.ACQUIRE res W 600000", "nil"),
        ],
    );
    let fence: u64 = ask(conn, "LOCK.ACQUIRE res C 600000 SHARED").parse().unwrap();
    assert!(fence > 1 << 19, "the floor after a loss: {fence}");
}

#[test]
fn in_a_quarantine_readers_that_came_back_count_beside_those_that_were_repaired() {
    // The data are written to the file, but not its end: the rest is unknown.
    let mut server = Server::builder().config("save", "3600 1").start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 600000 SHARED");
    ask(conn, "LOCK.ACQUIRE res B 600000 SHARED");
    ask(conn, "SAVE");
    ask(conn, "LOCK.ACQUIRE res C 600000 SHARED");
    server.kill();
    server.start_again();
    let conn = &mut server.connect();
    assert_eq!(readers(conn, "res"), 2);
    ask_all(
        conn,
        &[
            ("LOCK.EXTEND res A 600000", "1"),
            ("LOCK.EXTEND res C 600000 SHARED FENCE 1 REPAIR", "2"),
            ("LOCK.EXTEND res B 600000 SHARED FENCE 1", "1"),
            ("LOCK.EXTEND res C 600000 SHARED", "2"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.EXTEND res A 600000 SHARED FENCE 1 REPAIR", "2"),
        ],
    );
    ask(conn, "CONFIG SET lockmod.quarantine no");
    for token in ["A", "B", "C"] {
        assert_eq!(ask(conn, &format!("LOCK.EXTEND res {token} 600000")), "1");
    }
}

#[test]
fn a_reader_that_a_node_forgot_rejoins_outside_a_quarantine_where_no_writer_is() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE res A 600000 SHARED", "1"),
            ("LOCK.EXTEND res B 600000 SHARED FENCE 5 REPAIR", "1"),
            ("LOCK.FENCE res", "5"),
            // Its own fence is behind: it gets the counter there, and no new one.
            ("LOCK.EXTEND res C 600000 SHARED FENCE 3 REPAIR", "1"),
            ("LOCK.FENCE res", "5"),
            ("LOCK.ACQUIRE res C 600000 SHARED", "5"),
            ("LOCK.EXTEND res W 600000 FENCE 9 REPAIR", "0"),
            ("LOCK.FLOOR 100", "100"),
            ("LOCK.EXTEND res D 600000 SHARED FENCE 9 REPAIR", "1"),
            ("LOCK.FENCE res", "100"),
        ],
    );
    assert_eq!(readers(conn, "res"), 4);
}
