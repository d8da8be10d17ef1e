//! A master is lost and its replica promoted: the race that the Redlock document warns about.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::common::{Flow, Proxy, Server, cmd, wait_until};
use crate::{acquire, first_grant, granted, quarantine_left};

const MAX_TTL_MS: u64 = 2_000;

fn master() -> Server {
    Server::builder().config("save", "\"\"").module_arg("max-ttl", MAX_TTL_MS).start()
}

fn replica_of(master: &Server) -> Server {
    let replica = Server::builder()
        .config("save", "\"\"")
        .module_arg("max-ttl", MAX_TTL_MS)
        .replica_of(master)
        .start();
    master.wait_for_replica(&replica);
    replica
}

#[test]
fn a_promoted_replica_waits_out_what_it_may_not_have_seen() {
    let mut master = master();
    let link = Proxy::to(&master);
    let replica = Server::builder()
        .config("save", "\"\"")
        .module_arg("max-ttl", MAX_TTL_MS)
        .config("replicaof", format!("127.0.0.1 {}", link.port()))
        .start();
    master.wait_for_replica(&replica);
    let seen = granted(&master, "seen", "holder", MAX_TTL_MS);
    master.wait_for_replica(&replica);
    // From here on no replica receives the master's grants.
    link.set(Flow::Discard);
    let unseen = granted(&master, "lock", "first", MAX_TTL_MS);
    let mut connection = master.connect();
    cmd!(connection, "SET", "plain", "first", "NX", "PX", 60_000).expect("the plain lock is taken");
    master.kill();
    replica.run("REPLICAOF NO ONE").expect("promoted");

    // Without the module, the second client gets the lock that the first still holds.
    let plain = replica.run("SET plain second NX PX 60000");
    assert_eq!(plain, Ok(Value::Okay), "the race of the Redlock document");

    // With the module it waits, and its fence is larger than any that it may have missed.
    let left = quarantine_left(&replica, "lock");
    assert!(left <= MAX_TTL_MS + 1, "{left} ms");
    assert!(replica.log().contains("QUARANTINE: the node was promoted from a replica"));
    let second = first_grant(&replica, "lock", "second");
    assert!(second > unseen.max(seen) + (1 << 31), "{second}");
}

#[test]
fn an_operator_who_trusts_the_replica_can_promote_it_without_a_wait() {
    let master = master();
    let replica = replica_of(&master);
    let before = granted(&master, "lock", "first", MAX_TTL_MS);
    master.wait_for_replica(&replica);
    replica.run("CONFIG SET lockmod.quarantine-on-promotion no").expect("set");
    replica.run("REPLICAOF NO ONE").expect("promoted");
    assert_eq!(acquire(&replica, "lock", "second", 1_000), Ok(None), "the lease was replicated");
    assert!(granted(&replica, "another", "second", 1_000) > before);
}

#[test]
fn a_replica_that_crashes_and_starts_as_a_master_was_promoted() {
    let master = master();
    let mut replica = replica_of(&master);
    let before = granted(&master, "lock", "first", MAX_TTL_MS);
    master.wait_for_replica(&replica);
    wait_until("the replica has begun to keep its state file", || {
        replica.dir().join(format!("lockmod-{}.state", replica.port())).exists()
    });
    replica.kill();
    let alone = |_| Server::builder().config("save", "\"\"").module_arg("max-ttl", MAX_TTL_MS);
    replica.reconfigure(alone);
    replica.start_again();
    assert!(quarantine_left(&replica, "lock") <= MAX_TTL_MS + 1);
    assert!(first_grant(&replica, "lock", "second") > before + (1 << 31));
}

#[test]
fn a_promoted_node_that_crashes_waits_again_and_counts_nothing() {
    let master = master();
    let mut replica = replica_of(&master);
    granted(&master, "lock", "first", MAX_TTL_MS);
    master.wait_for_replica(&replica);
    replica.reconfigure(|_| Server::builder().config("save", "\"\""));
    replica.run("CONFIG SET lockmod.max-ttl 60000").expect("set");
    replica.run("REPLICAOF NO ONE").expect("promoted");
    assert!(quarantine_left(&replica, "lock") > 30_000);
    replica.kill();
    replica.start_again();
    assert!(quarantine_left(&replica, "lock") > 30_000);
    let repair = format!("LOCK.EXTEND lock first {MAX_TTL_MS} FENCE 1 REPAIR");
    assert_eq!(replica.run(&repair), Ok(redis::Value::Int(2)), "its old master may live");
}

/// Regression: a raise that came from the master was not promised: a replica that crashed and was
/// started as a master continued from the current time, below a confirmed fence.
#[test]
fn a_replica_promises_a_raise_of_which_its_master_told_it() {
    let master = master();
    let mut replica = replica_of(&master);
    granted(&master, "lock", "first", MAX_TTL_MS);
    master.wait_for_replica(&replica);
    let writes = || replica.info_u64("lockmod_state_writes");
    wait_until("the replica has written its first promise", || writes() > 0);
    let before = writes();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    // Further than a jump by the time alone.
    let raised = (now + Duration::from_secs(35 * 86_400)).as_micros();
    let told = master.run(&format!("LOCK.FENCE lock first {raised}"));
    assert_eq!(told, Ok(Value::Int(raised.try_into().expect("in range"))));
    wait_until("the raise is promised", || writes() > before);
    replica.kill();
    replica.reconfigure(|_| {
        Server::builder().config("save", "\"\"").module_arg("max-ttl", MAX_TTL_MS)
    });
    replica.start_again();
    assert!(u128::from(first_grant(&replica, "lock", "second")) > raised);
}

/// Regression: the fences of a node that was promoted twice were ahead of the time, and those that
/// were carried to another node were above the ones of its replica.
#[test]
fn a_fence_of_another_node_is_below_those_of_a_replica_that_has_not_heard_of_it() {
    let (promoted, raised, stale) = (master(), master(), master());
    stale.run(&format!("REPLICAOF 127.0.0.1 {}", raised.port())).expect("a replica");
    raised.wait_for_replica(&stale);
    stale.run("REPLICAOF 127.0.0.1 1").expect("the link is broken");
    for _ in 0..2 {
        promoted.run("REPLICAOF 127.0.0.1 1").expect("demoted");
        promoted.run("REPLICAOF NO ONE").expect("promoted");
    }
    let won = first_grant(&promoted, "lock", "first");
    granted(&raised, "lock", "first", MAX_TTL_MS);
    let told = raised.run(&format!("LOCK.FENCE lock first {won}"));
    assert_eq!(told, Ok(Value::Int(won.cast_signed())), "the first acquisition is won");
    stale.run("REPLICAOF NO ONE").expect("promoted");
    assert!(first_grant(&stale, "lock", "second") > won);
}

#[test]
fn a_demoted_master_stops_granting_at_once() {
    let (old, new) = (master(), master());
    granted(&old, "lock", "first", MAX_TTL_MS);
    old.run(&format!("REPLICAOF 127.0.0.1 {}", new.port())).expect("demoted");
    let refusal = acquire(&old, "another", "second", 1_000).expect_err("a replica grants nothing");
    assert!(refusal.starts_with("READONLY"), "{refusal}");
}
