//! A lock is a Redis key like any other: everything that Redis does with keys it does with locks.

use crate::ask::{ask, ask_all, ask_args, bytes, digest, field, left_ms};
use crate::common::{Server, run_args, wait_until};

#[test]
fn locks_are_keys_of_the_type_fencelock() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("SET string x", "OK"),
            ("LOCK.ACQUIRE a A 30000", "1"),
            ("LOCK.ACQUIRE b B 30000", "1"),
            ("TYPE a", "fencelock"),
            ("EXISTS a b string", "3"),
            ("OBJECT REFCOUNT a", "1"),
            ("OBJECT ENCODING a", "raw"),
            ("TTL a", "-1"),
            ("TOUCH a", "1"),
            ("DEL a", "1"),
            ("EXISTS a", "0"),
            ("UNLINK b", "1"),
            ("EXISTS b", "0"),
            ("GET a", "nil"),
            ("LOCK.ACQUIRE a A 30000", "2"),
            ("LOCK.ACQUIRE b A 30000", "2"),
            ("DBSIZE", "3"),
        ],
    );
    assert!(ask(conn, "OBJECT IDLETIME a").parse::<u64>().is_ok_and(|seconds| seconds < 60));
    let scan = ask(conn, "SCAN 0 COUNT 100 TYPE fencelock");
    assert!(scan == "[0 [a b]]" || scan == "[0 [b a]]", "{scan}");
    assert!(ask(conn, "DEBUG OBJECT a").contains(" encoding:raw "));
    assert!(["a", "b", "string"].contains(&ask(conn, "RANDOMKEY").as_str()));
    ask(conn, "CONFIG SET maxmemory-policy volatile-lfu");
    assert!(ask(conn, "OBJECT FREQ a").parse::<u64>().is_ok());
    let error = ask(conn, "GET a");
    assert!(error.starts_with("WRONGTYPE "), "{error}");
    let error = ask(conn, "APPEND a x");
    assert!(error.starts_with("WRONGTYPE "), "{error}");
    assert_eq!(ask(conn, "LOCK.RELEASE a A"), "1");
}

#[test]
fn a_lease_goes_where_its_key_goes() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE a A 30000 LABEL me", "1"),
            ("LOCK.ACQUIRE b B 30000", "1"),
            ("RENAMENX a b", "0"),
            ("RENAMENX a c", "1"),
            ("LOCK.RELEASE a A", "nil"),
            ("LOCK.EXTEND c A 30000", "1"),
            ("RENAME c b", "OK"),
            ("LOCK.RELEASE b B", "0"),
            ("LOCK.EXTEND b A 30000", "1"),
            ("MOVE b 3", "1"),
            ("LOCK.FENCE b", "0"),
            ("SELECT 3", "OK"),
            ("LOCK.EXTEND b A 30000", "1"),
        ],
    );
    assert_eq!(field(conn, "b", "label"), "me");
    ask_all(
        conn,
        &[
            ("SWAPDB 3 5", "OK"),
            ("EXISTS b", "0"),
            ("SELECT 5", "OK"),
            ("LOCK.RELEASE b A", "1"),
            ("LOCK.FENCE b", "1"),
        ],
    );
}

#[test]
fn databases_are_worlds_of_their_own() {
    let server = Server::start();
    let conn = &mut server.connect();
    for database in 0..4 {
        ask(conn, &format!("SELECT {database}"));
        assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res T{database} 30000")), "1");
    }
    assert_eq!(ask(conn, "LOCK.RELEASE res T0"), "0");
    assert_eq!(ask(conn, "LOCK.RELEASE res T3"), "1");
    assert_eq!(ask(conn, "FLUSHDB"), "OK");
    ask(conn, "SELECT 2");
    assert_eq!(ask(conn, "LOCK.RELEASE res T2"), "1");
}

#[test]
fn copies_hold_the_same_lease_and_then_go_their_own_ways() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE a A 30000 LABEL me", "1"),
            ("LOCK.ACQUIRE b B 30000", "1"),
            ("COPY a b", "0"),
            ("LOCK.RELEASE b B", "1"),
            ("COPY a b REPLACE", "1"),
            ("COPY a a DB 7", "1"),
            ("LOCK.RELEASE a A", "1"),
            ("LOCK.ACQUIRE a C 30000", "2"),
            ("LOCK.EXTEND b A 30000", "1"),
            ("LOCK.RELEASE b C", "0"),
            ("SELECT 7", "OK"),
            ("LOCK.EXTEND a A 30000", "1"),
        ],
    );
    assert_eq!(field(conn, "a", "label"), "me");
    assert_eq!(field(conn, "a", "fence"), "1");
}

#[test]
fn dumps_restore_the_lease_the_label_and_the_counter() {
    let server = Server::start();
    let other = Server::start();
    let (conn, away) = (&mut server.connect(), &mut other.connect());
    let token = "t".repeat(64);
    ask_args(conn, &["LOCK.ACQUIRE", "res", &token, "30000", "LABEL", "me"]);
    ask_args(conn, &["LOCK.FENCE", "res", &token, "77"]);
    let dump = bytes(conn, &["DUMP", "res"]);
    let restore = |conn: &mut _, name: &str, option: &[&str]| {
        let args = [&[b"RESTORE", name.as_bytes(), b"0", &dump][..]].concat();
        let options: Vec<&[u8]> = option.iter().map(|option| option.as_bytes()).collect();
        ask_args(conn, &[args, options].concat())
    };
    for conn in [&mut *conn, &mut *away] {
        assert_eq!(restore(conn, "again", &[]), "OK");
        assert!(restore(conn, "again", &[]).starts_with("BUSYKEY"));
        assert_eq!(restore(conn, "again", &["REPLACE"]), "OK");
        assert_eq!(field(conn, "again", "label"), "me");
        assert!((15_000..=30_000).contains(&left_ms(conn, "again")));
        assert_eq!(ask(conn, "LOCK.ACQUIRE again other 30000"), "nil");
        assert_eq!(ask(conn, "LOCK.FENCE again"), "77");
        assert_eq!(ask_args(conn, &["LOCK.RELEASE", "again", &token]), "1");
        assert_eq!(ask(conn, "LOCK.ACQUIRE again other 30000"), "78");
    }
    let port = other.port().to_string();
    let migrate = ["MIGRATE", "127.0.0.1", &port, "res", "0", "10000"];
    assert_eq!(ask_args(conn, &migrate), "OK");
    assert_eq!(ask(conn, "EXISTS res"), "0");
    assert_eq!(ask_args(away, &["LOCK.EXTEND", "res", &token, "30000"]), "1");
}

#[test]
fn memory_usage_counts_every_byte() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut usage = |key: &str, token: &str, label: &[&str]| -> u64 {
        run_args(conn, &[&["LOCK.ACQUIRE", key, token, "30000"], label].concat()).unwrap();
        ask_args(conn, &["MEMORY", "USAGE", key]).parse().unwrap()
    };
    let short = usage("a", &"t".repeat(20), &[]);
    let long = usage("b", &"t".repeat(60), &[]);
    let label = "l".repeat(120);
    let labelled = usage("c", &"t".repeat(20), &["LABEL", &label]);
    let both = usage("d", &"t".repeat(60), &["LABEL", &label]);
    assert!(short <= 160, "{short}");
    assert!((short + 60..short + 160).contains(&long), "{short} {long}");
    assert!((short + 120..short + 220).contains(&labelled), "{short} {labelled}");
    assert_eq!(both, labelled + 60);
    ask(conn, &format!("LOCK.RELEASE d {}", "t".repeat(60)));
    assert_eq!(ask(conn, "MEMORY USAGE d"), short.to_string());
}

#[test]
fn digests_are_equal_where_locks_are_and_differ_where_they_differ() {
    let servers = [Server::start(), Server::start()];
    let mut conns = servers.each_ref().map(Server::connect);
    let mut seen = vec![digest(&mut conns[0])];
    for line in [
        "LOCK.ACQUIRE res A 30000",
        "LOCK.FENCE res A 5",
        "LOCK.RELEASE res A",
        "LOCK.ACQUIRE res A 30000 LABEL me",
        "LOCK.EXTEND res A 60000 FENCE 9",
    ] {
        let both = conns.each_mut().map(|conn| {
            ask(conn, line);
            assert_eq!(ask(conn, "DEBUG DIGEST-VALUE res").len(), 42);
            digest(conn)
        });
        assert_eq!(both[0], both[1], "{line}");
        assert!(!seen.contains(&both[0]), "{line}");
        seen.push(both[0].clone());
    }
}

#[test]
fn a_native_expiry_on_a_lock_is_an_operators_delete() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    ask(conn, "LOCK.FENCE res A 9");
    assert_eq!(ask(conn, "PEXPIRE res 1"), "1");
    wait_until("the key has expired", || ask(conn, "EXISTS res") == "0");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res B 30000"), "10");
}

/// Regression: an expiry set before a grant deleted the lock while it was held. After a holder's
/// retry that prolonged nothing, an expiry did so even when the first bug was fixed.
#[test]
fn what_confirms_a_holder_takes_a_native_expiry_back_on_replicas_too() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(&primary).start();
    primary.wait_for_replica(&replica);
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    ask(conn, "LOCK.ACQUIRE res A 30000");
    for (changes, line) in [
        (true, "LOCK.EXTEND res A 40000"),
        (true, "LOCK.ACQUIRE res A 50000"),
        (true, "LOCK.ACQUIRE res A 10"),
        (true, "LOCK.FENCE res A 3"),
        (false, "LOCK.ACQUIRE res B 60000"),
        (false, "LOCK.EXTEND res B 60000"),
        (false, "LOCK.FENCE res"),
        (false, "LOCK.RELEASE res A"),
        (true, "LOCK.ACQUIRE res B 60000"),
    ] {
        ask(conn, "PEXPIRE res 600000");
        ask(conn, line);
        assert_eq!(ask(conn, "TTL res") == "-1", changes, "{line}");
        primary.wait_for_replica(&replica);
        assert_eq!(ask(copy, "TTL res") == "-1", changes, "{line}, at the replica");
        assert_eq!(digest(copy), digest(conn), "{line}");
        let lefts = [left_ms(conn, "res"), left_ms(copy, "res")];
        assert!(lefts[0].abs_diff(lefts[1]) < 5_000, "{line}: {lefts:?}");
    }
    let mut waiter = primary.connect_raw();
    waiter.send(&["LOCK.ACQUIRE", "res", "C", "30000", "WAIT", "30000"]);
    wait_until("it waits", || field(conn, "res", "waiters") == "1");
    ask(conn, "PEXPIRE res 600000");
    ask(conn, "LOCK.RELEASE res B");
    wait_until("it is granted", || field(conn, "res", "state") == "held");
    assert_eq!(ask(conn, "TTL res"), "-1", "by waiting, too");
}
