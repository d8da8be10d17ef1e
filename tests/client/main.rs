//! The client and the command over real nodes.

#[path = "../common/mod.rs"]
mod common;

mod acquire;
mod arguments;
mod cli;
mod cluster;
mod faults;
mod fences;
mod handover;
mod hostile;
mod job;
mod line;
mod metrics;
mod names;
mod output;
mod promises;
mod readers;
mod renewal;
mod replies;
mod restarts;
mod screen;
mod secrets;
mod sentinel;
mod status_keys;
mod survey;
mod watch;

use std::collections::HashMap;
use std::time::Duration;

use common::{Server, start_nodes};
use lockmod::client::{AcquireError, Locker, LockerBuilder, Vote};
use redis::{FromRedisValue, Value};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Nodes that forget nothing when they are killed, so that they come back without a quarantine.
fn nodes(count: usize) -> Vec<Server> {
    start_nodes(count, |_| {
        Server::builder().config("appendonly", "yes").config("appendfsync", "always")
    })
}

fn builder(nodes: &[Server]) -> LockerBuilder {
    Locker::builder().nodes(nodes.iter().map(Server::url)).ttl(Duration::from_secs(10))
}

fn locker(nodes: &[Server]) -> Locker {
    builder(nodes).build().expect("the settings are good")
}

/// What a node reports about a lock at one moment; `None` if the node does not answer.
fn told(node: &Server, name: &str) -> Option<HashMap<String, Value>> {
    let mut conn = node.try_connect().ok()?;
    let reply: Value = redis::cmd("LOCK.INFO").arg(name).query(&mut conn).ok()?;
    Some(HashMap::from_redis_value(reply).expect("a map"))
}

/// A field of it.
fn info(node: &Server, name: &str, field: &str) -> Option<Value> {
    told(node, name)?.remove(field)
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    match value {
        Some(Value::BulkString(bytes)) => bytes == text.as_bytes(),
        Some(Value::SimpleString(string)) => string == text,
        _ => false,
    }
}

fn is_held(node: &Server, name: &str) -> bool {
    is_text(info(node, name, "state").as_ref(), "held")
}

/// How many of the nodes have a lease on the lock.
fn leases(nodes: &[Server], name: &str) -> usize {
    nodes.iter().filter(|node| is_held(node, name)).count()
}

/// A number that the node counts of this command; `None` if it has never had one.
fn command_count(node: &Server, command: &str, field: &str) -> Option<u64> {
    let of = |name: &str| node.info(&format!("cmdstat_{name}"));
    let counts = of(command).or_else(|| of(&command.to_lowercase()))?;
    let count = counts.split(',').find_map(|count| count.strip_prefix(field)?.strip_prefix('='));
    count?.parse().ok()
}

/// Whether a lease was extended on the node.
fn is_renewed(node: &Server) -> bool {
    let info = node.run("INFO lockmod").map(redis::from_redis_value::<String>);
    info.is_ok_and(|info| info.is_ok_and(|info| !info.contains("lockmod_extensions:0\r")))
}

/// Polls without blocking the runtime.
#[track_caller]
fn until(what: &'static str, mut done: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = std::time::Instant::now();
        while !done() {
            assert!(
                start.elapsed() < common::PATIENCE,
                "timed out waiting until {what} ({caller})"
            );
            tokio::time::sleep(millis(2)).await;
        }
    }
}

/// What the only node answers to an acquisition that it cannot carry out.
async fn refused(builder: LockerBuilder) -> AcquireError {
    let locker = builder.build().expect("the settings are good");
    let start = std::time::Instant::now();
    loop {
        let error = locker.try_acquire("a").await.expect_err("nobody grants");
        // Until the connection has failed, the answer is only late.
        if error.nodes().iter().all(|report| report.vote != Vote::TimedOut) {
            return error;
        }
        assert!(start.elapsed() < common::PATIENCE, "{error}");
    }
}

/// Every node has answered this locker: the first connections exist.
async fn connected(locker: &Locker) {
    let start = std::time::Instant::now();
    while locker.settle().await.iter().any(|report| report.vote != Vote::Confirmed) {
        assert!(start.elapsed() < common::PATIENCE, "nodes do not answer");
        tokio::time::sleep(millis(2)).await;
    }
}
