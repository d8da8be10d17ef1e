//! Leases are counted on the monotonic clock: a stepped wall clock neither ends nor prolongs one.
//!
//! Next to each lock is a plain key with an expiry, as in the Redlock recipe: it is lost.

use std::time::{Duration, Instant};

use crate::ask::{ask, left_ms};
use crate::common::{Server, wait_until};
use crate::told::unix_ms;

/// A step of the wall clock: from and to, as distances from the true time in milliseconds.
struct Step {
    name: &'static str,
    from: i64,
    to: i64,
}

fn steps() -> [Step; 3] {
    [
        Step { name: "a minute ahead", from: 0, to: 60_000 },
        Step { name: "an hour back", from: 0, to: -3_600_000 },
        Step { name: "from 1970 to today", from: -unix_ms(), to: 0 },
    ]
}

fn step_when_started(step: &Step) -> Server {
    let server = Server::builder().fake_wall_clock().start();
    set_wall_clock(&server, step.from);
    server
}

/// Steps a server's wall clock, and waits until the server knows: Valkey reads it only once a
/// millisecond.
fn set_wall_clock(server: &Server, offset_ms: i64) {
    server.set_wall_clock_offset_ms(offset_ms);
    wait_until("the server has seen its wall clock", || {
        let time = ask(&mut server.connect(), "TIME");
        let seconds = time.trim_start_matches('[').split(' ').next().unwrap_or_default().to_owned();
        let seconds: i64 = seconds.parse().expect("seconds");
        (seconds - (unix_ms() + offset_ms) / 1000).abs() < 5
    });
}

#[test]
fn a_stepped_wall_clock_leaves_leases_standing_and_plain_keys_wrong() {
    for step in steps() {
        let server = step_when_started(&step);
        let conn = &mut server.connect();
        let start = Instant::now();
        assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
        assert_eq!(ask(conn, "SET plain A NX PX 30000"), "OK");

        set_wall_clock(&server, step.to);

        let left = left_ms(conn, "res");
        let used = u64::try_from(start.elapsed().as_millis()).unwrap();
        assert!(left <= 30_000 && left + used + 1 >= 30_000, "{}: {left} ms left", step.name);
        assert_eq!(ask(conn, "LOCK.ACQUIRE res B 30000"), "nil", "{}", step.name);
        let plain = ask(conn, "SET plain B NX PX 30000");
        if step.to > step.from {
            assert_eq!(plain, "OK", "{}: two hold the plain key", step.name);
        } else {
            assert_eq!(plain, "nil", "{}", step.name);
            let left: u64 = ask(conn, "PTTL plain").parse().unwrap();
            assert!(left > 3_000_000, "{}: the plain key lasts an hour longer", step.name);
        }
        // Neither does the state that travels through a snapshot in the same boot.
        ask(conn, "DEBUG RELOAD");
        assert!(left_ms(conn, "res") + 10_000 > left, "{}", step.name);
        assert_eq!(ask(conn, "LOCK.EXTEND res A 30000"), "1", "{}", step.name);
        assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1", "{}", step.name);
    }
}

#[test]
fn a_stepped_wall_clock_leaves_the_ends_of_leases_where_they_were() {
    let ttl = Duration::from_millis(1200);
    for step in steps() {
        let server = step_when_started(&step);
        let conn = &mut server.connect();
        let start = Instant::now();
        assert_eq!(ask(conn, "LOCK.ACQUIRE res A 1200"), "1");
        let granted = Instant::now();
        server.set_wall_clock_offset_ms(step.to);
        wait_until("the lease has ended", || ask(conn, "LOCK.ACQUIRE res B 30000") == "2");
        assert!(start.elapsed() >= ttl, "{}: after {:?}", step.name, start.elapsed());
        let late = granted.elapsed().saturating_sub(ttl);
        assert!(late < Duration::from_millis(1500), "{}: {late:?} late", step.name);
    }
}

#[test]
fn what_is_replicated_ends_when_the_lease_does_after_a_step_too() {
    let server = Server::builder().fake_wall_clock().start();
    let replica = Server::builder().replica_of(&server).fake_wall_clock().start();
    let conn = &mut server.connect();
    server.wait_for_replica(&replica);
    for server in [&server, &replica] {
        server.set_wall_clock_offset_ms(3_600_000);
    }
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
    server.wait_for_replica(&replica);
    let left = left_ms(&mut replica.connect(), "res");
    assert!((15_000..=30_000).contains(&left), "{left}");
}

#[test]
fn a_lease_survives_a_restart_and_a_step_in_any_order_or_is_waited_for() {
    // Regression: the append-only file is dated by the wall clock. A step while the server ran went
    // unnoticed at its next start, and a lease of 30 s was granted to another at once.
    let persistence = [("no", "everysec"), ("yes", "everysec"), ("yes", "always")];
    for (append_only, flush) in persistence {
        for is_clean in [true, false] {
            for (step, is_early) in [(60_000, true), (60_000, false), (-3_600_000, true)] {
                let how = format!("{append_only} {flush}, clean {is_clean}, {step} {is_early}");
                let mut server = Server::builder()
                    .fake_wall_clock()
                    .config("appendonly", append_only)
                    .config("appendfsync", flush)
                    .start();
                let conn = &mut server.connect();
                assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
                if is_early {
                    server.set_wall_clock_offset_ms(step);
                    // A lease this long causes a new write of the state file, after the step.
                    assert_eq!(ask(conn, "LOCK.ACQUIRE other A 3600000"), "1");
                }
                if is_clean {
                    server.terminate_with("SAVE");
                } else {
                    server.kill();
                }
                server.set_wall_clock_offset_ms(step);
                server.start_again();
                let answer = ask(&mut server.connect(), "LOCK.ACQUIRE res B 30000");
                let is_kept = answer == "nil" || answer.starts_with("QUARANTINE ");
                assert!(is_kept, "{how}: {answer}");
            }
        }
    }
}

#[test]
fn a_wall_clock_that_was_stepped_there_and_back_is_remembered() {
    // Regression: the clocks of the start and of the stop agreed, but the append-only file had been
    // written by a third clock: a lease granted in between was taken for ended, and granted again.
    let mut server = Server::builder()
        .fake_wall_clock()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let steps = || server.log().matches("the wall clock was stepped").count();
    server.set_wall_clock_offset_ms(-60_000);
    wait_until("the first step is noticed", || steps() == 1);
    assert_eq!(ask(&mut server.connect(), "LOCK.ACQUIRE res A 30000"), "1");
    server.set_wall_clock_offset_ms(0);
    wait_until("the second step is noticed", || steps() == 2);
    server.restart();
    let answer = ask(&mut server.connect(), "LOCK.ACQUIRE res B 30000");
    assert!(answer == "nil" || answer.starts_with("QUARANTINE "), "{answer}");
}
