//! Steps of the wall clock, especially small ones that go undetected, with restarts.

use redis::Value;

use crate::common::{Server, cmd, wait_until};
use crate::{acquire, granted, quarantine_left};

const TTL_MS: u64 = 30_000;

/// Milliseconds on the clock of the leases.
fn boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// The time left of the lease.
fn left_ms(server: &Server, name: &str) -> u64 {
    let mut connection = server.connect();
    let info: std::collections::HashMap<String, Value> =
        redis::from_redis_value(cmd!(connection, "LOCK.INFO", name).expect("LOCK.INFO"))
            .expect("a map");
    match info.get("ttl_left_ms") {
        Some(Value::Int(left)) => *left as u64,
        other => panic!("{other:?}"),
    }
}

fn durable() -> Server {
    Server::builder()
        .fake_wall_clock()
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start()
}

#[test]
fn a_lease_ends_when_it_did_whatever_small_steps_and_restarts_there_were() {
    // Regression: a lease in an append-only file was dated by the wall clock, and only steps above
    // 1 s count. After a step of 950 ms and a restart, another was granted the lock that much too
    // early.
    for is_clean in [false, true] {
        for step in [-990, -130, -1, 1, 130, 400, 700, 950, 990] {
            let mut server = durable();
            let before = boot_ms();
            granted(&server, "lock", "holder", TTL_MS);
            let after = boot_ms();
            if is_clean {
                server.terminate_with("")
            } else {
                server.kill()
            }
            server.set_wall_clock_offset_ms(step);
            server.start_again();
            let how = format!("step {step}, clean {is_clean}");
            assert_eq!(acquire(&server, "lock", "other", 1_000), Ok(None), "{how}");
            let (asked, left, answered) = (boot_ms(), left_ms(&server, "lock"), boot_ms());
            assert!(answered + left >= before + TTL_MS, "{how}: {left} ms left");
            assert!(asked + left <= after + TTL_MS, "{how}: {left} ms left");
        }
    }
}

#[test]
fn small_steps_do_not_add_up_over_restarts() {
    let mut server = durable();
    let before = boot_ms();
    granted(&server, "lock", "holder", TTL_MS);
    // Each step is too small to be detected, relative to the one before.
    for offset in [600, 1_200, 1_800, 2_400] {
        server.kill();
        server.set_wall_clock_offset_ms(offset);
        server.start_again();
        match acquire(&server, "lock", "other", 1_000) {
            Ok(None) => {
                let (left, answered) = (left_ms(&server, "lock"), boot_ms());
                assert!(answered + left >= before + TTL_MS, "{offset}: {left} ms left");
            }
            Ok(Some(fence)) => panic!("{offset}: granted {fence}"),
            // Together they are a step that is detected.
            Err(refusal) => assert!(refusal.starts_with("QUARANTINE "), "{offset}: {refusal}"),
        }
    }
}

#[test]
fn a_lease_that_a_step_back_makes_stand_again_does_not_count() {
    // Regression: after the step, its end in the append-only file looked as if it was still ahead.
    // In the quarantine an extension counted, together with leases that were granted and forgotten
    // since.
    let mut server = Server::builder().fake_wall_clock().config("appendonly", "yes").start();
    granted(&server, "lock", "holder", 2_000);
    server.set_wall_clock_offset_ms(-3_600_000);
    granted(&server, "noticed", "holder", 60_000);
    wait_until("the lease is over", || {
        format!("{:?}", server.run("LOCK.INFO lock").expect("LOCK.INFO")).contains("free")
    });
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    let mut connection = server.connect();
    let extended = cmd!(connection, "LOCK.EXTEND", "lock", "holder", 60_000).expect("in time");
    assert_eq!(extended, Value::Int(2));
}
