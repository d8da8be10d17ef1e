//! Nodes of a Redis Cluster: each decides on the locks in its slots, and on no others.

use crate::ask::{ask, ask_all, ask_args, field};
use crate::common::{Server, server_version, wait_until};
use crate::line::{acquire, listener};
use crate::waiting::{LONG, nobody_waits, waiter};

fn node() -> Server {
    Server::builder().in_cluster().config("hz", 100).start()
}

/// Two masters of one cluster: the first has all slots.
struct Pair {
    from: Server,
    to: Server,
}

impl Pair {
    fn start() -> Pair {
        let pair = Pair { from: node(), to: node() };
        let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
        assert_eq!(ask(from, "CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
        // Two that start with the same epoch settle it between them, and hand slots over meanwhile.
        assert_eq!(ask(to, "CLUSTER SET-CONFIG-EPOCH 2"), "OK");
        let (port, bus) = (pair.to.port(), pair.to.bus_port());
        assert_eq!(ask(from, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}")), "OK");
        for conn in [from, to] {
            wait_until("the node knows the cluster", || {
                let info = ask(conn, "CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
            });
        }
        pair
    }

    /// As every Redis can: by hand, key by key.
    fn move_by_hand(&self, key: &str) {
        let (from, to) = (&mut self.from.connect(), &mut self.to.connect());
        let slot = ask(from, &format!("CLUSTER KEYSLOT {key}"));
        let (from_id, to_id) = (ask(from, "CLUSTER MYID"), ask(to, "CLUSTER MYID"));
        assert_eq!(ask(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")), "OK");
        assert_eq!(ask(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")), "OK");
        let port = self.to.port().to_string();
        assert_eq!(ask_args(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "10000"]), "OK");
        for conn in [to, from] {
            assert_eq!(ask(conn, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")), "OK");
        }
    }

    /// In one go, by the server; false if this server cannot.
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

/// Moves the slot of a lock that is held, and that a client and a ticket wait for.
fn moves(pair: &Pair, move_slot: impl FnOnce() -> bool) {
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    ask_all(
        from,
        &[
            // A name of the same slot, which is forgotten before the slot moves.
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
    assert!(wakes.is_silent_for(std::time::Duration::from_millis(20)), "no wake for a lock moved");
    assert_eq!(pair.from.info_u64("lockmod_grants"), 2, "nobody was granted what has moved");
    assert!(ask(from, "LOCK.INFO res").starts_with("MOVED "));
    wait_until("the old node has let go", || ask(from, "DBSIZE") == "0");

    assert_eq!(field(to, "res", "label"), "payments");
    ask_all(
        to,
        &[
            ("LOCK.FENCE res", "501"),
            ("LOCK.ACQUIRE res B 60000", "nil"),
            ("LOCK.EXTEND res A 60000", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res B 60000", "502"),
            // The lock that has moved has told what was forgotten at the old node.
            ("LOCK.ACQUIRE {res}:old Z 60000", "501"),
        ],
    );
}

#[test]
fn a_slot_that_is_moved_by_hand_takes_its_locks_along_and_nobody_waits_behind() {
    let pair = Pair::start();
    moves(&pair, || {
        pair.move_by_hand("res");
        true
    });
}

#[test]
fn a_slot_that_moves_at_once_takes_its_locks_along_and_nobody_waits_behind() {
    let pair = Pair::start();
    moves(&pair, || pair.move_at_once("res"));
}

#[test]
fn who_waits_at_a_node_whose_replica_takes_over_is_told() {
    let pair = Pair::start();
    let (from, to) = (&mut pair.from.connect(), &mut pair.to.connect());
    let from_id = ask(from, "CLUSTER MYID");
    assert_eq!(ask(to, &format!("CLUSTER REPLICATE {from_id}")), "OK");
    pair.from.wait_for_replica(&pair.to);
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
