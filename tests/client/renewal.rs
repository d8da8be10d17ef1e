//! Leases in time: renewed, repaired, lost, and ended.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use lockmod::client::{AcquireError, ExtendError, Lost, ReleaseError};

use crate::common::{Server, start_nodes};
use crate::{builder, connected, info, is_held, leases, millis, nodes, until};

#[tokio::test]
async fn a_lease_is_renewed_far_beyond_its_ttl() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(1_200)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let start = Instant::now();
    while start.elapsed() < millis(3_600) {
        assert!(!guard.is_lost() && leases(&nodes, "a") >= 2);
        tokio::time::sleep(millis(20)).await;
    }
    let fence = Some(redis::Value::Int(i64::from(guard.fence())));
    let has_same = |node: &&Server| info(node, "a", "fence") == fence;
    assert!(nodes.iter().filter(has_same).count() >= 2, "it was granted once");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_extended_by_a_ttl_of_its_own_on_the_nodes_and_for_its_holder() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(3_000)).renew(false).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let error = guard.extend_by(millis(19)).await.unwrap_err();
    assert!(matches!(error, ExtendError::BadOption(_)) && !error.is_retryable(), "{error}");
    assert!(guard.validity() <= millis(3_000), "nothing was changed");
    guard.extend_by(millis(60_000)).await.unwrap();
    assert!(guard.validity() > millis(50_000) && guard.validity() <= millis(60_000));
    let left = |node: &Server| match info(node, "a", "ttl_left_ms") {
        Some(redis::Value::Int(left)) => left,
        other => panic!("{other:?} is no time"),
    };
    until("all nodes are told", || nodes.iter().all(|node| left(node) > 50_000)).await;
    guard.extend_by(millis(1_000)).await.unwrap();
    assert!(guard.validity() > millis(50_000), "a shorter ttl takes nothing away");
    assert!(nodes.iter().all(|node| left(node) > 50_000), "nor does it at the nodes");
    guard.release().await.unwrap();
}

/// Regression: the refused ttl stayed the lease's, so all renewals after it were refused, and the
/// lease ended.
#[tokio::test]
async fn a_ttl_that_the_nodes_refuse_does_not_end_the_renewing() {
    let nodes = start_nodes(3, |node| {
        let max_ttl = if node == 0 { 60_000 } else { 10_000 };
        Server::builder().module_arg("max-ttl", max_ttl)
    });
    let locker = builder(&nodes).ttl(millis(1_500)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let error = guard.extend_by(millis(20_000)).await.unwrap_err();
    assert!(error.to_string().contains("2 refused (BADTTL"), "{error}");
    assert!(matches!(error, ExtendError::Refused(_)) && !error.is_retryable(), "{error}");
    assert!(guard.validity() <= millis(1_500), "one node grants nothing: {:?}", guard.validity());
    let start = Instant::now();
    while start.elapsed() < millis(4_500) {
        assert!(!guard.is_lost() && guard.validity() <= millis(1_500));
        tokio::time::sleep(millis(20)).await;
    }
    // One that is given up without an answer goes on, and counts.
    nodes.iter().for_each(Server::pause);
    let long = tokio::time::timeout(millis(10), guard.extend_by(millis(9_000)));
    assert!(long.await.is_err(), "nobody answers");
    nodes.iter().for_each(Server::resume);
    until("it counts", || guard.validity() > millis(1_500)).await;
    guard.extend().await.unwrap();
    assert!(!guard.is_lost() && guard.validity() <= millis(9_000), "{:?}", guard.validity());
    guard.release().await.unwrap();
    until("none keeps it", || leases(&nodes, "a") == 0).await;
}

/// Regression: it kept the lease's turn, and the renewals waited for it.
#[tokio::test]
async fn an_extension_that_nobody_polls_does_not_keep_the_lease_from_being_renewed() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(900)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let mut begun = Box::pin(guard.extend());
    assert!((&mut begun).now_or_never().is_none(), "the nodes have not answered");
    let start = Instant::now();
    while start.elapsed() < millis(2_700) {
        assert!(!guard.is_lost());
        tokio::time::sleep(millis(20)).await;
    }
    begun.as_mut().await.unwrap();
    drop(begun);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_is_called_lost_before_its_validity_ends_with_all_nodes_stopped() {
    let nodes = nodes(5);
    let locker = builder(&nodes).ttl(millis(3_200)).lost_margin(millis(1_000)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    nodes.iter().for_each(Server::pause);
    let start = Instant::now();
    let validity = guard.validity();
    assert_eq!(guard.lost().await, Lost::Expired);
    assert!(start.elapsed() < validity, "told after {:?} of {validity:?}", start.elapsed());
    assert!(
        guard.is_lost() && guard.validity() <= millis(1_000),
        "{:?} to stop in",
        guard.validity()
    );
    assert!(matches!(guard.extend().await, Err(ExtendError::Lost(Lost::Expired))));
    nodes.iter().for_each(Server::resume);
}

#[tokio::test]
async fn failed_renewal_keeps_the_lease_and_tries_again() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(3_000)).timeout(millis(250)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    nodes[..2].iter().for_each(Server::pause);
    let error = guard.extend().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let before = guard.validity();
    assert!(!before.is_zero());
    nodes[..2].iter().for_each(Server::resume);
    // Once it renews in the background again, it outlasts its former end.
    let start = Instant::now();
    while start.elapsed() < before + millis(200) {
        assert!(!guard.is_lost());
        tokio::time::sleep(millis(10)).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn max_hold_ends_the_renewing() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(900)).max_hold(millis(1_800)).build().unwrap();
    let start = Instant::now();
    let guard = locker.acquire("a").await.unwrap();
    assert_eq!(guard.lost().await, Lost::MaxHold);
    assert!(start.elapsed() >= millis(1_700), "{:?}", start.elapsed());
    drop(guard.release().await);
}

#[tokio::test]
async fn a_lock_that_an_operator_deletes_is_lost_soon_and_stays_deleted() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(2_400)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    locker.settle().await;
    for node in &nodes {
        node.run("DEL a").unwrap();
    }
    assert_eq!(guard.lost().await, Lost::Removed);
    // A renewal between two of the deletions restores the lease on the first node, once.
    until("nothing is left", || leases(&nodes, "a") == 0).await;
}

/// Regression: `SET` over a lock on a quorum was taken for unreachable nodes: the error was "no
/// quorum", and the loss was reported only at the end of the validity.
#[tokio::test]
async fn a_lock_that_is_overwritten_is_lost_as_one_that_is_deleted() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(Duration::from_secs(60)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    locker.settle().await;
    for node in &nodes[..2] {
        node.run("SET a x").unwrap();
    }
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::Lost(Lost::Removed)), "{error}");
    assert_eq!((guard.lost().await, guard.validity()), (Lost::Removed, Duration::ZERO));
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::NotHeld(_)), "{error}");
}

#[tokio::test]
async fn a_node_that_forgot_the_lease_is_joined_again_while_a_quorum_confirms() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(2_400)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    locker.settle().await;
    nodes[1].run("DEL a").unwrap();
    assert!(!is_held(&nodes[1], "a"));
    until("it is repaired", || is_held(&nodes[1], "a")).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    locker.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
}

#[tokio::test]
async fn nothing_is_sent_after_the_release() {
    let nodes = nodes(3);
    let locker = builder(&nodes).build().unwrap();
    connected(&locker).await;
    for _ in 0..100 {
        // Released at any point of a renewal.
        let guard = locker.acquire("a").await.unwrap();
        {
            let mut extending = std::pin::pin!(guard.extend());
            let _ = poll_fn(|ctx| Poll::Ready(extending.as_mut().poll(ctx))).await;
        }
        guard.release().await.unwrap();
        locker.settle().await;
        assert_eq!(leases(&nodes, "a"), 0);
    }
}

/// Regression: one of two simultaneous calls failed with "no quorum: 3 of 3 nodes confirmed".
#[tokio::test]
async fn extensions_at_the_same_time_all_count() {
    let nodes = nodes(3);
    // Gives a busy machine time to answer.
    let locker = builder(&nodes).ttl(millis(4_500)).timeout(millis(1_000)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let start = Instant::now();
    // Long enough for background renewals to come in between.
    while start.elapsed() < millis(2_000) {
        let one = guard.extend();
        let all = tokio::join!(one, guard.extend(), guard.extend_by(millis(3_000)), guard.extend());
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok(), "{all:?}");
        guard.extend_by(millis(4_500)).await.unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_second_client_gets_the_lock_when_the_holder_is_gone() {
    let nodes = nodes(3);
    let one = builder(&nodes).ttl(millis(400)).renew(false).build().unwrap();
    let two = builder(&nodes).build().unwrap();
    let leaked = one.acquire("a").await.unwrap().leak();
    assert!(matches!(two.try_acquire("a").await, Err(AcquireError::Held(_))));
    let guard = two.acquire("a").wait(Duration::from_secs(5)).await.unwrap();
    assert!(guard.fence() > leaked.fence);
    guard.release().await.unwrap();
}
