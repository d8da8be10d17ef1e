//! A node in quarantine abstains, is reported as such, and gets the holders' leases back.

use std::time::{Duration, Instant};

use lockmod::client::{AcquireError, Locker, LockerBuilder, Vote};
use redis::{FromRedisValue, Value};

use crate::common::{PATIENCE, Server, start_nodes};

fn builder(nodes: &[Server]) -> LockerBuilder {
    Locker::builder().nodes(nodes.iter().map(Server::url)).ttl(Duration::from_secs(3))
}

/// LOCK.INFO of a node: state, fence, and how long its quarantine still lasts.
fn told(node: &Server, lock: &str) -> (String, u64, Option<u64>) {
    let reply = node.run(&format!("LOCK.INFO {lock}")).expect("a node in quarantine tells");
    let fields = std::collections::HashMap::<String, Value>::from_redis_value(reply);
    let fields = fields.expect("a map");
    let number = |name: &str| {
        let value = fields.get(name)?;
        u64::from_redis_value(value.clone()).ok()
    };
    let state = String::from_redis_value(fields["state"].clone()).expect("a word");
    (state, number("fence").expect("a fence"), number("quarantine_left_ms"))
}

async fn all_answer(locker: &Locker) {
    let start = Instant::now();
    while locker.settle().await.iter().any(|report| report.vote != Vote::Confirmed) {
        assert!(start.elapsed() < PATIENCE, "nodes do not answer");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_joins_a_node_again_while_it_is_in_quarantine() {
    let mut nodes = start_nodes(5, |_| Server::builder());
    let locker = builder(&nodes).build().expect("good settings");
    all_answer(&locker).await;
    let guard = locker.acquire("held").await.expect("all nodes are well");
    locker.settle().await;

    nodes[2].kill();
    nodes[2].start_again();
    let (state, fence, left) = told(&nodes[2], "held");
    assert!(left.is_some_and(|left| left > 5_000), "{state} {fence} {left:?}");
    let start = Instant::now();
    let left = loop {
        let (state, fence, left) = told(&nodes[2], "held");
        if state == "held" {
            assert_eq!(fence, guard.fence().get(), "the same lease, not another");
            break left;
        }
        assert!(start.elapsed() < PATIENCE, "it is not repaired");
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert!(left.is_some(), "it was joined in its quarantine, not after it");
    assert!(!guard.is_lost());

    // It has no vote about other locks, and does not delay their acquisition.
    let other = locker.acquire("other").await.expect("four nodes grant");
    locker.settle().await;
    assert_eq!(told(&nodes[2], "other").0, "free");
    other.release().await.expect("four nodes confirm");

    // It grants nothing, and errors report it.
    nodes[0].pause();
    nodes[1].pause();
    let error = locker.try_acquire("other").await.expect_err("two nodes of five grant");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let count = |is: fn(&Vote) -> bool| error.nodes().iter().filter(|one| is(&one.vote)).count();
    assert_eq!(count(|vote| matches!(vote, Vote::Quarantined { .. })), 1, "{error}");
    assert!(error.to_string().contains("1 in quarantine (for "), "{error}");
    for node in &nodes[..2] {
        node.resume();
    }
    all_answer(&locker).await;
    assert!(!guard.is_lost());
    guard.release().await.expect("a quorum confirms");
    assert_eq!(told(&nodes[2], "held").0, "free");
}
