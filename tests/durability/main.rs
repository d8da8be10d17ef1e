//! Crashes, restarts, failovers, lost and damaged files: one real node, really killed.

#[path = "../common/mod.rs"]
mod common;

mod authority;
mod clock;
mod cluster;
mod crashes;
mod disk;
mod failover;
mod failovers;
mod files;
mod moved;
mod operations;
mod provisional;
mod restarts;
mod sentinel;
mod versions;

use common::{Server, cmd};
use lockmod::wire::refusal;
use redis::Value;

/// A block of the lease ceiling: an unclean restart may wait this much longer than the leases.
const LEASE_BLOCK_MS: u64 = 10_000;

/// Asks for a lock; returns the fence, `None` if it is held, or the refusal's text.
fn acquire(server: &Server, name: &str, token: &str, ttl_ms: u64) -> Result<Option<u64>, String> {
    let mut connection = server.connect();
    match cmd!(connection, "LOCK.ACQUIRE", name, token, ttl_ms) {
        Ok(Value::Int(fence)) => Ok(Some(fence as u64)),
        Ok(Value::Nil) => Ok(None),
        Ok(other) => panic!("an odd answer: {other:?}"),
        Err(error) => Err(common::error_line(Err(error))),
    }
}

/// The fence of a grant that must succeed.
#[track_caller]
fn granted(server: &Server, name: &str, token: &str, ttl_ms: u64) -> u64 {
    match acquire(server, name, token, ttl_ms) {
        Ok(Some(fence)) => fence,
        other => panic!("not granted: {other:?}"),
    }
}

/// How much longer the node grants nothing.
#[track_caller]
fn quarantine_left(server: &Server, name: &str) -> u64 {
    let refusal = acquire(server, name, "probe", 100).expect_err("the node is quarantined");
    let left = refusal::read(&refusal).left;
    left.unwrap_or_else(|| panic!("{refusal}")).as_millis() as u64
}

/// Waits until the node grants again, and returns the fence of the first grant.
#[track_caller]
fn first_grant(server: &Server, name: &str, token: &str) -> u64 {
    common::wait_for("the quarantine is over", || match acquire(server, name, token, 1_000) {
        Ok(fence) => fence,
        Err(refusal) if refusal.starts_with("QUARANTINE") => None,
        Err(refusal) => panic!("{refusal}"),
    })
}

/// Releases a lock.
#[track_caller]
fn release(server: &Server, name: &str, token: &str) {
    let mut connection = server.connect();
    assert_eq!(cmd!(connection, "LOCK.RELEASE", name, token), Ok(Value::Int(1)));
}
