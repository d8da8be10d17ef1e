//! Unused locks are forgotten: memory stays bounded, and fences keep rising.

use std::time::{Duration, Instant};

use redis::Connection;

use crate::ask::{ask, ask_all, digest, wait_for_cron, wait_for_lapse};
use crate::common::{Server, wait_until};

/// Acquires and releases this many locks, each with a name of its own.
fn use_names_once(conn: &mut Connection, count: u64) {
    let names: Vec<u64> = (0..count).collect();
    for names in names.chunks(1000) {
        let mut pipe = redis::pipe();
        for name in names {
            let key = format!("one-shot-name-{name}");
            pipe.cmd("LOCK.ACQUIRE").arg(&key).arg("token-of-20-bytes-xx").arg(30_000).ignore();
            pipe.cmd("LOCK.RELEASE").arg(&key).arg("token-of-20-bytes-xx").ignore();
        }
        pipe.query::<()>(conn).unwrap();
    }
}

#[test]
fn names_that_are_used_once_leave_bounded_memory() {
    const COUNT: u64 = 50_000;
    let server = Server::builder().module_arg("idle-ms", 0).start();
    let conn = &mut server.connect();
    let before = server.info_u64("used_memory");
    use_names_once(conn, COUNT);
    let full = server.info_u64("used_memory");
    assert_eq!(server.info_u64("lockmod_locks"), COUNT, "0 switches forgetting off");
    assert!(full - before > 50 * COUNT, "{before} {full}");

    ask(conn, "CONFIG SET lockmod.idle-ms 1");
    wait_until("all are forgotten", || server.info_u64("lockmod_locks") == 0);
    assert_eq!(server.info_u64("lockmod_idle_deleted"), COUNT);
    assert_eq!(ask(conn, "DBSIZE"), "0");
    wait_until("the memory is given back", || server.info_u64("used_memory") < before + 1_000_000);
    // Each name started again at the floor, which no fence of any name had passed by then.
    let floor = server.info_u64("lockmod_floor");
    assert_eq!(ask(conn, "LOCK.ACQUIRE one-shot-name-0 A 30000"), (floor + 1).to_string());

    use_names_once(conn, COUNT);
    let peak = server.info_u64("used_memory_peak");
    wait_until("all but the held one are forgotten", || server.info_u64("lockmod_locks") == 1);
    assert!(peak < full + 8_000_000, "the second round needs no more than the first: {peak}");
}

#[test]
fn held_locks_and_other_keys_are_never_forgotten() {
    let server = Server::builder().module_arg("idle-ms", 1).config("hz", 100).start();
    let conn = &mut server.connect();
    for line in [
        "SET string x",
        "RPUSH list x",
        "SELECT 5",
        "LOCK.ACQUIRE held A 600000",
        "LOCK.ACQUIRE lapsing A 1",
        "LOCK.ACQUIRE released A 30000",
        "LOCK.RELEASE released A",
    ] {
        ask(conn, line);
    }
    wait_until("the free ones are forgotten", || ask(conn, "DBSIZE") == "1");
    wait_for_cron(&server);
    ask_all(
        conn,
        &[
            ("LOCK.EXTEND held A 30000", "1"),
            ("LOCK.RELEASE held B", "0"),
            ("SELECT 0", "OK"),
            ("EXISTS string list", "2"),
        ],
    );
    assert_eq!(server.info_u64("lockmod_idle_deleted"), 2);
}

#[test]
fn locks_are_kept_for_as_long_as_the_option_says() {
    let server = Server::builder().module_arg("idle-ms", 600_000).config("hz", 100).start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    ask(conn, "LOCK.RELEASE res A");
    ask(conn, "LOCK.ACQUIRE lapsed A 1");
    wait_for_lapse(conn, "lapsed");
    wait_for_cron(&server);
    assert_eq!(ask(conn, "EXISTS res lapsed"), "2");
    assert_eq!(server.info_u64("lockmod_idle_deleted"), 0);
}

#[test]
fn forgetting_raises_the_floor_and_so_fences_go_on() {
    let server = Server::builder().module_arg("idle-ms", 0).start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE a A 30000", "1"),
            ("LOCK.RELEASE a A", "1"),
            ("LOCK.ACQUIRE a A 30000", "2"),
            ("LOCK.RELEASE a A", "1"),
            ("LOCK.ACQUIRE b A 30000", "1"),
            ("CONFIG SET lockmod.idle-ms 1", "OK"),
        ],
    );
    wait_until("it is forgotten", || ask(conn, "EXISTS a") == "0");
    assert_eq!(server.info_u64("lockmod_floor"), 2);
    assert_eq!(ask(conn, "LOCK.FENCE a"), "0");
    assert_eq!(ask(conn, "LOCK.ACQUIRE a A 30000"), "3");
    assert_eq!(ask(conn, "LOCK.FENCE b"), "1");
}

#[test]
fn a_raise_of_a_lock_born_at_the_floor_lifts_the_floor_for_new_names() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE a A 30000", "1"),
            ("LOCK.FENCE a A 41", "41"),
            // A new name agrees with the nodes whose floor was 40.
            ("LOCK.ACQUIRE b B 30000", "41"),
            // A lock above the floor did not start there: its raise tells nothing about new names.
            ("LOCK.RELEASE a A", "1"),
            ("LOCK.ACQUIRE a A 30000", "42"),
            ("LOCK.FENCE a A 90", "90"),
            ("LOCK.ACQUIRE c C 30000", "41"),
            ("LOCK.EXTEND c C 30000 FENCE 60", "1"),
            ("LOCK.ACQUIRE d D 30000", "60"),
        ],
    );
    assert_eq!(server.info_u64("lockmod_floor"), 59);
}

#[test]
fn a_replica_forgets_nothing_until_it_is_told() {
    let primary = Server::builder().module_arg("idle-ms", 0).config("hz", 100).start();
    let replica =
        Server::builder().module_arg("idle-ms", 1).config("hz", 100).replica_of(&primary).start();
    let (conn, copy) = (&mut primary.connect(), &mut replica.connect());
    use_names_once(conn, 100);
    primary.wait_for_replica(&replica);
    assert_eq!(ask(copy, "DBSIZE"), "100");
    wait_for_cron(&replica);
    assert_eq!(digest(copy), digest(conn));
    assert_eq!(ask(copy, "DBSIZE"), "100");
    ask(conn, "CONFIG SET lockmod.idle-ms 1");
    wait_until("the replica has received it", || ask(copy, "DBSIZE") == "0");
    assert_eq!(replica.info_u64("lockmod_idle_deleted"), 0);
    assert_eq!(primary.info_u64("lockmod_idle_deleted"), 100);
    assert_eq!(replica.info_u64("lockmod_floor"), primary.info_u64("lockmod_floor"));
}

/// Acquires this many locks with leases of this length.
fn take(conn: &mut Connection, count: u64, ttl: &str) {
    for names in (0..count).collect::<Vec<_>>().chunks(1000) {
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("LOCK.ACQUIRE").arg(format!("name-{name}")).arg("A").arg(ttl).ignore();
        }
        pipe.query::<()>(conn).unwrap();
    }
}

#[test]
fn many_leases_that_have_lapsed_are_soon_not_counted_as_held() {
    // At the pace of a background scan, this took half a minute.
    let server = Server::start();
    let conn = &mut server.connect();
    take(conn, 60_000, "1");
    let start = Instant::now();
    wait_until("none is held", || server.info_u64("lockmod_held") == 0);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_crash_soon_after_many_long_leases_were_given_back_is_not_waited_for_as_long() {
    const COUNT: u64 = 50_000;
    let mut server = Server::start();
    let conn = &mut server.connect();
    take(conn, COUNT, "3600000");
    let before = server.info_u64("lockmod_state_writes");
    for names in (0..COUNT).collect::<Vec<_>>().chunks(1000) {
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("LOCK.RELEASE").arg(format!("name-{name}")).arg("A").ignore();
        }
        pipe.query::<()>(conn).unwrap();
    }
    let start = Instant::now();
    let is_lower = || server.info_u64("lockmod_state_writes") > before;
    wait_until("the file promises less", is_lower);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    server.kill();
    server.start_again();
    ask(&mut server.connect(), "LOCK.ACQUIRE other A 1000");
    let left = server.info_u64("lockmod_quarantine_left_ms");
    assert!(left < 60_000, "{left}");
}
