//! A disk that is watched or full: promises are on it first, and a node that cannot write reports
//! it.

use std::process::Command;

use redis::Value;

use crate::common::{Builder, Cluster, Server, cmd, wait_until};
use crate::restarts::promised_ms;
use crate::{acquire, first_grant, granted, quarantine_left};

const MAX_TTL_MS: u64 = 60_000;

fn watched() -> Builder {
    Server::builder().config("save", "\"\"").module_arg("max-ttl", MAX_TTL_MS).watched_disk()
}

/// A field of `INFO lockmod`.
fn field(server: &Server, name: &str) -> String {
    let Ok(Value::BulkString(text)) = server.run("INFO lockmod") else { return String::new() };
    let text = String::from_utf8_lossy(&text).into_owned();
    let prefix = format!("lockmod_{name}:");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_default().trim().to_owned()
}

fn dump(server: &Server, name: &str) -> Vec<u8> {
    match cmd!(server.connect(), "DUMP", name) {
        Ok(Value::BulkString(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

fn restore(server: &Server, name: &str, dump: &[u8]) -> redis::RedisResult<Value> {
    cmd!(server.connect(), "RESTORE", name, 0, dump)
}

#[test]
fn each_state_file_is_synced_before_it_is_in_place_and_its_folder_after() {
    let server = watched().start();
    for ttl in [1_000, MAX_TTL_MS] {
        granted(&server, &format!("lock:{ttl}"), "token", ttl);
        let calls = server.take_disk_calls();
        let name = format!("lockmod-{}.state", server.port());
        let folder = server.dir().file_name().expect("a name").to_string_lossy().into_owned();
        let is = |index: usize, kind: &str, name: &str| {
            calls.get(index).is_some_and(|call| call == &(kind.to_owned(), name.to_owned()))
        };
        let renames = (0..calls.len()).filter(|&index| calls[index].0 == "rename");
        let renames: Vec<usize> = renames.collect();
        assert!(!renames.is_empty(), "a larger promise was written: {calls:?}");
        for at in renames {
            assert!(is(at, "rename", &name), "{calls:?}");
            assert!(at > 0 && is(at - 1, "sync", &format!("{name}.new")), "{calls:?}");
            assert!(is(at + 1, "sync-folder", &folder), "{calls:?}");
        }
    }
}

#[test]
fn a_node_that_cannot_write_its_first_promise_says_so_and_knows_its_fences() {
    // Regression: the node reported itself healthy, with a floor of 0, which "replace a node" would
    // have read.
    let mut server = watched().start();
    granted(&server, "lock", "holder", 1_000);
    server.run("LOCK.FENCE lock holder 5000").expect("raised");
    server.kill();
    // An empty file can be made, as the start tries; one with bytes in it cannot be synced.
    server.set_disk_full(true);
    server.reconfigure(|builder| builder.module_arg("quarantine", "no"));
    server.start_again();
    wait_until("the node has found its disk full", || {
        field(&server, "state").starts_with("STATEFILE ")
    });
    assert_eq!(field(&server, "granting"), "0");
    let refusal = acquire(&server, "lock", "other", 1_000).expect_err("nothing is granted");
    assert!(refusal.starts_with("STATEFILE "), "{refusal}");
    assert!(server.info_u64("lockmod_state_write_failures") > 0);
    assert!(server.info_u64("lockmod_floor") >= 5_000);
    assert!(server.info_u64("lockmod_highest_fence") >= 5_000);
    let info = format!("{:?}", server.run("LOCK.INFO lock").expect("LOCK.INFO answers"));
    assert!(info.contains("node_state") && info.contains("STATEFILE"), "{info}");

    server.set_disk_full(false);
    wait_until("it grants again without a request", || field(&server, "granting") == "1");
    assert_eq!(field(&server, "state"), "grants");
    assert!(granted(&server, "lock", "other", 1_000) > 5_000);
}

#[test]
fn a_disk_that_fills_up_shows_in_the_state_of_the_node() {
    let server = watched().start();
    granted(&server, "lock", "holder", 1_000);
    wait_until("the node grants", || field(&server, "state") == "grants");
    let info = format!("{:?}", server.run("LOCK.INFO lock").expect("LOCK.INFO answers"));
    assert!(!info.contains("node_state"), "{info}");
    server.set_disk_full(true);
    let status = || {
        let mut status = Command::new(env!("CARGO_BIN_EXE_lockmod"));
        status.args(["status", "--nodes", &server.url()]).output().expect("the command runs")
    };
    // Regression: from here on the node was said to grant nothing, seconds before it refused.
    wait_until("a write ahead of need has failed", || {
        assert!(acquire(&server, "short", "token", 1_000).is_ok());
        !field(&server, "state_failure").is_empty()
    });
    assert_eq!((&*field(&server, "granting"), &*field(&server, "state")), ("1", "grants"));
    let shown = status();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let expected = "grants; its state file cannot be written: No space left on device";
    assert!(text.contains(expected) && shown.status.success(), "{text}");
    acquire(&server, "long", "token", MAX_TTL_MS).expect_err("beyond the ceiling");
    assert!(field(&server, "state").starts_with("STATEFILE "), "{}", field(&server, "state"));
    assert_eq!(field(&server, "granting"), "0");
    let status = status();
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(text.contains("grants nothing: STATEFILE"), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    let why = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(why.contains("the only node grants nothing"), "{why}");
    assert!(!status.status.success(), "no lock can be acquired");
    server.set_disk_full(false);
    wait_until("the node grants again", || field(&server, "granting") == "1");
    let failures = server.log().matches("the state file cannot be written").count();
    assert_eq!(failures, 1, "a cause is logged once");
    assert_eq!(field(&server, "state_failure"), "");
    let recovered = || server.log().matches("the state file can be written again").count() == 1;
    wait_until("the log says that it is over", recovered);
}

/// Regression: it tried to write for each of its slots, of which there are 16384.
#[test]
fn a_master_whose_disk_fills_while_it_waits_in_its_slots_writes_once() {
    let settings = || watched().config("hz", 100).module_arg("max-ttl", 1_000);
    let mut cluster = Cluster::start(1, settings);
    let promoted = cluster.start_replicas(1, settings).remove(0).remove(0);
    let lost = cluster.masters[0].run("CLUSTER MYID").expect("an id");
    let lost: String = redis::from_redis_value(lost).expect("a text");
    cluster.masters[0].kill();
    promoted.run("CLUSTER FAILOVER TAKEOVER").expect("it obeys");
    promoted.run(&format!("CLUSTER FORGET {lost}")).expect("it obeys");
    let waits = "QUARANTINE: leases of another master may stand in slots of this node";
    wait_until("it waits in its slots", || promoted.log().contains(waits));
    promoted.set_disk_full(true);
    // A jump is above the ceiling.
    let has_failed = || field(&promoted, "state_write_failures") != "0";
    wait_until("its wait has ended, and a write has failed", has_failed);
    let failures: u32 = field(&promoted, "state_write_failures").parse().expect("a number");
    assert!(failures < 20, "{failures}");
    promoted.set_disk_full(false);
    wait_until("it grants", || acquire(&promoted, "res", "token", 1_000).is_ok());
}

/// Regression: the state that a refused request had needed was in the next write of the state file.
/// After a crash within the next minute, the node waited as if the lease had been granted.
#[test]
fn a_refused_acquire_is_not_waited_for_after_a_crash() {
    let mut server = watched().start();
    granted(&server, "lock", "holder", 1_000);
    server.set_disk_full(true);
    let refusal = acquire(&server, "long", "token", MAX_TTL_MS).expect_err("beyond the ceiling");
    assert!(refusal.starts_with("STATEFILE "), "{refusal}");
    let fence = server.run(&format!("LOCK.FLOOR {}", 1_u64 << 40));
    assert!(crate::common::error_line(fence).starts_with("STATEFILE "));
    let writes = server.info_u64("lockmod_state_writes");
    server.set_disk_full(false);
    wait_until("the file is written again", || server.info_u64("lockmod_state_writes") > writes);
    wait_until("the node grants again", || field(&server, "granting") == "1");
    server.kill();
    server.start_again();
    let left = quarantine_left(&server, "lock");
    assert!(left < MAX_TTL_MS / 2, "{left} ms");
    assert!(server.info_u64("lockmod_floor") < 1 << 40);
}

#[test]
fn a_promotion_that_could_not_be_written_is_in_the_next_file() {
    // Regression: the next write started from the previous ceilings: a crash dropped the jump of
    // the fences, and the quarantine.
    let master = Server::builder().config("save", "\"\"").start();
    let mut replica = watched().replica_of(&master).start();
    master.wait_for_replica(&replica);
    let fence = granted(&master, "lock", "holder", MAX_TTL_MS);
    master.wait_for_replica(&replica);
    wait_until("the replica has its state file", || field(&replica, "state_writes") != "0");
    replica.set_disk_full(true);
    replica.run("REPLICAOF NO ONE").expect("promoted");
    let floor = replica.info_u64("lockmod_floor");
    assert!(floor > fence + (1 << 31), "{floor}");
    let repair = format!("LOCK.EXTEND lock holder 1000 FENCE {fence} REPAIR");
    let refusal = crate::common::error_line(replica.run(&repair));
    assert!(refusal.starts_with("STATEFILE "), "{refusal}");
    replica.set_disk_full(false);
    wait_until("the file is written", || replica.run(&repair) == Ok(Value::Int(2)));
    replica.kill();
    replica.reconfigure(|builder| builder.config("replicaof", "no one"));
    replica.start_again();
    let left = quarantine_left(&replica, "other");
    assert!(left > MAX_TTL_MS / 2, "{left} ms");
    assert!(replica.info_u64("lockmod_floor") >= floor);
}

#[test]
fn a_lease_that_was_restored_is_promised_before_anybody_is_told() {
    let (from, mut to) = (Server::start(), Server::builder().config("save", "\"\"").start());
    granted(&to, "short", "holder", 100);
    granted(&from, "lock", "holder", 600_000);
    let dump = dump(&from, "lock");
    assert!(promised_ms(&to) < 60_000);
    restore(&to, "lock", &dump).expect("restored");
    let promised = promised_ms(&to);
    assert!(promised > 590_000, "{promised} ms");
    to.kill();
    to.start_again();
    assert!(quarantine_left(&to, "lock") > 580_000);
}

/// Regression: a node that could not write its state file accepted locks that it would forget in a
/// crash, and whoever sent them let go of them: two holders, and a fence that fell.
#[test]
fn a_lock_that_the_state_file_cannot_cover_stays_where_it_was() {
    let (from, mut to) = (Server::start(), watched().start());
    from.run("LOCK.FLOOR 90000000000").unwrap();
    let fence = granted(&from, "held", "holder", MAX_TTL_MS / 2);
    granted(&from, "free", "holder", MAX_TTL_MS);
    from.run("LOCK.RELEASE free holder").unwrap();
    // A write that has just ended in the background is not one that covers the lock.
    let writes = to.info_u64("lockmod_state_writes");
    granted(&to, "other", "holder", 5_000);
    wait_until("it writes ahead", || to.info_u64("lockmod_state_writes") > writes);
    to.set_disk_full(true);
    let migrate = |name: &str| from.run(&format!("MIGRATE 127.0.0.1 {} {name} 0 5000", to.port()));
    for name in ["held", "free"] {
        migrate(name).expect_err("refused");
        assert!(to.log().contains("RESTORE of a lock was refused: STATEFILE "), "{}", to.log());
        assert_eq!(from.run(&format!("EXISTS {name}")), Ok(Value::Int(1)), "{name}");
        assert_eq!(to.run(&format!("EXISTS {name}")), Ok(Value::Int(0)), "{name}");
    }
    to.set_disk_full(false);
    wait_until("the file is written again", || migrate("held").is_ok());
    migrate("free").unwrap();
    to.kill();
    to.start_again();
    assert!(quarantine_left(&to, "held") > MAX_TTL_MS / 4, "the lease is waited for");
    assert!(to.info_u64("lockmod_floor") >= fence);
}

#[test]
fn a_lease_above_the_longest_is_not_restored_and_loads_with_its_data_set() {
    let mut from = Server::builder().config("save", "\"3600 1000000\"").start();
    granted(&from, "lock", "holder", 60_000);
    let dump = dump(&from, "lock");
    let to = |max_ttl| Server::builder().module_arg("max-ttl", max_ttl).start();
    let small = to(10_000);
    restore(&small, "lock", &dump).expect_err("refused");
    assert!(small.log().contains("RESTORE of a lock was refused: BADTTL "), "{}", small.log());
    assert_eq!(small.run("EXISTS lock"), Ok(Value::Int(0)));
    assert!(promised_ms(&small) < 30_000, "nor promised");
    restore(&to(60_000), "lock", &dump).expect("a lease that this node might have granted");
    // Granted leases stand, whatever the option is now.
    from.terminate_with("SAVE");
    from.reconfigure(|builder| builder.module_arg("max-ttl", 1_000));
    from.start_again();
    assert_eq!(acquire(&from, "lock", "other", 1_000), Ok(None), "the lease came back");
    from.run("LOCK.RELEASE lock holder").expect("released");
    assert!(first_grant(&from, "lock", "other") > 1);
}
