//! Leases that a node keeps, but that do not count before its quarantine is over.
//!
//! The node may have granted the lock to another before it forgot, and that vote may still win: if
//! the repaired lease counted at once, it and the forgotten vote would make two holders.

use std::collections::HashMap;

use redis::{FromRedisValue, Value};

use crate::common::{Builder, Server, cmd, wait_until};
use crate::{granted, quarantine_left};

/// Longer than any test takes.
const LONG_MS: u64 = 600_000;

/// The node's answer to an extension of `name` by its holder.
#[track_caller]
fn extend(server: &Server, name: &str) -> Value {
    let mut connection = server.connect();
    cmd!(connection, "LOCK.EXTEND", name, "holder", LONG_MS).expect("carried out")
}

#[track_caller]
fn repair(server: &Server, name: &str) -> Value {
    let mut connection = server.connect();
    cmd!(connection, "LOCK.EXTEND", name, "holder", LONG_MS, "FENCE", 7, "REPAIR")
        .expect("carried out")
}

/// The field about an extension in LOCK.INFO.
#[track_caller]
fn told(server: &Server, name: &str) -> Option<i64> {
    let mut connection = server.connect();
    let told = cmd!(connection, "LOCK.INFO", name).expect("told");
    let info = HashMap::<String, Value>::from_redis_value(told).expect("a map");
    match info.get("extension") {
        Some(Value::Int(number)) => Some(*number),
        Some(odd) => panic!("{odd:?}"),
        None => None,
    }
}

fn end_quarantine(server: &Server) {
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    server.run("CONFIG SET lockmod.quarantine yes").expect("set");
}

/// Regression: the snapshot had the lease of a holder whose lock was deleted afterwards, and
/// granted to another. After a crash both could extend.
#[test]
fn a_lease_that_was_removed_does_not_count_when_it_comes_back_with_the_data() {
    for removal in ["DEL lock", "FLUSHALL", "UNLINK lock", "SWAPDB 0 1"] {
        let mut server = Server::builder().config("save", "\"\"").start();
        granted(&server, "lock", "holder", LONG_MS);
        server.run("SAVE").expect("saved");
        server.run(removal).expect("removed");
        granted(&server, "lock", "another", LONG_MS);
        server.kill();
        server.start_again();
        assert!(quarantine_left(&server, "lock") > 0, "{removal}");
        assert_eq!(extend(&server, "lock"), Value::Int(2), "{removal}");
        end_quarantine(&server);
        assert_eq!(extend(&server, "lock"), Value::Int(1), "{removal}");
    }
}

#[test]
fn a_repaired_lease_counts_when_the_quarantine_is_over() {
    let mut server = Server::builder().config("save", "\"\"").start();
    granted(&server, "lock", "another", LONG_MS);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    assert_eq!(repair(&server, "lock"), Value::Int(2));
    assert_eq!(extend(&server, "lock"), Value::Int(2));
    assert_eq!(repair(&server, "lock"), Value::Int(2), "it stands, and is no better for that");
    assert_eq!(told(&server, "lock"), Some(2));
    end_quarantine(&server);
    assert_eq!(told(&server, "lock"), None);
    assert_eq!(extend(&server, "lock"), Value::Int(1));
    assert_eq!(repair(&server, "new"), Value::Int(1), "nothing is forgotten any more");
}

/// Crashes twice, the second time in the quarantine of the first: leases that came back with the
/// data count, and repaired ones do not, although they have come back with the data by then.
#[track_caller]
fn a_mark_survives(builder: Builder, keep: impl Fn(&Server)) {
    let mut server = builder.start();
    granted(&server, "kept", "holder", LONG_MS);
    keep(&server);
    server.kill();
    server.start_again();
    for crash in 0..2 {
        assert!(quarantine_left(&server, "lock") > 0);
        assert_eq!(told(&server, "kept"), None, "crash {crash}: it came with the data");
        assert_eq!(extend(&server, "kept"), Value::Int(1), "crash {crash}: it came with the data");
        if crash == 0 {
            assert_eq!(repair(&server, "lock"), Value::Int(2));
        }
        assert_eq!(extend(&server, "lock"), Value::Int(2), "crash {crash}");
        keep(&server);
        server.kill();
        server.start_again();
    }
    end_quarantine(&server);
    assert_eq!(extend(&server, "lock"), Value::Int(1));
    // From here on it is an ordinary lease, even in the next quarantine.
    keep(&server);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    assert_eq!(extend(&server, "lock"), Value::Int(1));
}

/// Regression: a repeated acquire, which changes nothing, confirmed a lease that was brought to a
/// name whose former lease came back after a crash.
#[test]
fn a_lease_that_is_brought_while_the_disk_refuses_is_confirmed_to_nobody() {
    let server = Server::builder().config("save", "\"\"").watched_disk().start();
    granted(&server, "lock", "holder", LONG_MS);
    granted(&server, "other", "another", LONG_MS);
    let ask = || server.run("LOCK.ACQUIRE lock another 1000");
    server.set_disk_full(true);
    server.run("RENAME other lock").expect("renamed");
    wait_until("the node knows that it cannot record the removal", || {
        crate::common::error_line(server.run("LOCK.ACQUIRE new token 1000"))
            .starts_with("STATEFILE")
    });
    assert!(crate::common::error_line(ask()).starts_with("STATEFILE"));
    server.set_disk_full(false);
    wait_until("the removal is recorded", || ask().is_ok());
}

#[test]
fn a_repaired_lease_does_not_count_after_another_crash_and_a_snapshot() {
    a_mark_survives(Server::builder().config("save", "\"\""), |server| {
        server.run("SAVE").expect("saved");
    });
}

#[test]
fn a_repaired_lease_does_not_count_after_another_crash_and_an_append_only_file() {
    let builder = Server::builder().config("appendonly", "yes").config("appendfsync", "no");
    a_mark_survives(builder, |_| ());
}

#[test]
fn a_repaired_lease_does_not_count_after_another_crash_and_a_rewritten_file() {
    let builder = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "no")
        .config("aof-use-rdb-preamble", "no");
    a_mark_survives(builder, |server| {
        server.run("BGREWRITEAOF").expect("begun");
        wait_until("the file is rewritten", || {
            server.info_u64("aof_rewrite_in_progress") == 0
                && server.info_u64("aof_rewrite_scheduled") == 0
        });
    });
}

#[test]
fn nothing_counts_on_a_promoted_node_while_it_waits_also_after_a_crash_or_a_stop() {
    let settings = || {
        Server::builder()
            .config("appendonly", "yes")
            .config("appendfsync", "no")
            .module_arg("max-ttl", LONG_MS)
    };
    let master = settings().start();
    let mut replica = settings().replica_of(&master).start();
    master.wait_for_replica(&replica);
    granted(&master, "lock", "holder", LONG_MS);
    master.wait_for_replica(&replica);
    replica.run("REPLICAOF NO ONE").expect("promoted");
    wait_until("the node has noticed", || replica.log().contains("promoted from a replica"));
    assert_eq!(extend(&replica, "lock"), Value::Int(2), "the old master may live");
    assert_eq!(repair(&replica, "new"), Value::Int(2));
    assert_eq!(extend(&master, "lock"), Value::Int(1), "it does");
    // The first synchronisation has the file rewritten; until that is done the file is incomplete.
    wait_until("the file is whole", || replica.info_u64("aof_rewrite_in_progress") == 0);
    replica.reconfigure(|_| settings());
    for is_killed in [true, false] {
        if is_killed {
            replica.kill()
        } else {
            replica.terminate()
        }
        replica.start_again();
        assert!(quarantine_left(&replica, "lock") > 0);
        assert_eq!(extend(&replica, "lock"), Value::Int(2), "killed: {is_killed}");
    }
    end_quarantine(&replica);
    for name in ["lock", "new"] {
        assert_eq!(extend(&replica, name), Value::Int(1));
    }
}

#[test]
fn a_floor_that_an_operator_raised_is_promised_before_the_reply_and_replicated() {
    let mut server = Server::builder().config("save", "\"\"").start();
    let replica = Server::builder().replica_of(&server).start();
    server.wait_for_replica(&replica);
    let far = 4_000_000_000_000_040_u64;
    let floor = |server: &Server| server.info_u64("lockmod_floor");
    let raise = |server: &Server, fence: u64| server.run(&format!("LOCK.FLOOR {fence}"));
    assert_eq!(raise(&server, far), Ok(Value::Int(far as i64)));
    assert_eq!(raise(&server, 5), Ok(Value::Int(far as i64)), "never down");
    server.wait_for_replica(&replica);
    assert_eq!(floor(&replica), far);
    raise(&replica, far + 9).expect_err("a replica is told by its master alone");
    server.run("FLUSHALL").expect("flushed");
    assert_eq!(floor(&server), far);
    server.kill();
    server.start_again();
    // The first request determines what the node must wait for.
    server.run("LOCK.FLOOR").expect("told");
    assert!(floor(&server) >= far, "{} after a crash", floor(&server));
    end_quarantine(&server);
    granted(&server, "lock", "holder", LONG_MS);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    let before = floor(&server);
    assert_eq!(raise(&server, before + 7), Ok(Value::Int(before as i64 + 7)), "in quarantine");
    end_quarantine(&server);
    assert_eq!(granted(&server, "lock", "other", 1_000), before + 8);
}
