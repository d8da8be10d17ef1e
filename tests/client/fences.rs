//! Fences rise over any sequence of acquisitions, whichever minority is away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lockmod::client::Locker;
use lockmod::engine::Fence;

use crate::common::Server;
use crate::{builder, connected, millis, nodes};

/// Takes a minority away, a different one and in a different way each time, and acquires some
/// times meanwhile.
async fn rotate(mut nodes: Vec<Server>, rounds: usize) -> (u64, u64) {
    let count = nodes.len();
    let minority = count / 2;
    let locker: Locker = builder(&nodes).timeout(millis(2_000)).build().unwrap();
    connected(&locker).await;
    let mut last = Fence::ZERO;
    for round in 0..rounds {
        let away: Vec<usize> = (0..minority).map(|n| (round + n) % count).collect();
        let is_killed = round % 4 == 3;
        for &node in &away {
            if is_killed { nodes[node].kill() } else { nodes[node].pause() }
        }
        for _ in 0..4 {
            let guard = locker.acquire("a").await.unwrap();
            assert!(guard.fence() > last, "round {round}: {} after {last}", guard.fence());
            last = guard.fence();
            guard.release().await.unwrap();
        }
        for &node in &away {
            if is_killed { nodes[node].start_again() } else { nodes[node].resume() }
        }
        if is_killed {
            connected(&locker).await;
        }
    }
    (locker.stats().acquired, locker.stats().raised)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_over_three_nodes_while_minorities_rotate() {
    let (acquired, raised) = rotate(nodes(3), 60).await;
    println!("3 nodes: {acquired} acquisitions, {raised} needed two round trips");
    assert_eq!(acquired, 240);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_over_five_nodes_while_minorities_rotate() {
    let (acquired, raised) = rotate(nodes(5), 60).await;
    println!("5 nodes: {acquired} acquisitions, {raised} needed two round trips");
    assert_eq!(acquired, 240);
}

#[tokio::test]
async fn a_node_that_knows_nothing_is_raised_to_the_others() {
    let mut nodes = nodes(3);
    let locker = builder(&nodes).build().unwrap();
    connected(&locker).await;
    for _ in 0..10 {
        locker.acquire("a").await.unwrap().release().await.unwrap();
    }
    locker.settle().await;
    // A new node in the place of an old one, and another one away: both must agree.
    nodes[0].run("FLUSHALL").unwrap();
    nodes[1].kill();
    let guard = locker.acquire("a").await.unwrap();
    assert!(guard.fence().get() > 10);
    guard.release().await.unwrap();
    nodes[1].start_again();
    nodes[2].kill();
    connected_but(&locker, 1).await;
    assert!(locker.acquire("a").await.unwrap().fence().get() > 11);
}

/// All nodes but so many have answered this locker.
async fn connected_but(locker: &Locker, missing: usize) {
    use lockmod::client::Vote;
    loop {
        let reports = locker.settle().await;
        let answered = reports.iter().filter(|report| report.vote == Vote::Confirmed).count();
        if answered + missing >= reports.len() {
            return;
        }
        tokio::time::sleep(millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_holds_a_lock_that_many_are_after() {
    let nodes = nodes(5);
    let inside = Arc::new(AtomicBool::new(false));
    let fences = Arc::new(Mutex::new(Vec::new()));
    let wait = std::time::Duration::from_secs(60);
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let locker = builder(&nodes).wait(wait).build().unwrap();
            let (inside, fences) = (Arc::clone(&inside), Arc::clone(&fences));
            tokio::spawn(async move {
                for _ in 0..8 {
                    let work = locker.with("a", async |fence| {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                        fences.lock().unwrap().push(fence);
                        tokio::time::sleep(millis(1)).await;
                        inside.store(false, Ordering::SeqCst);
                    });
                    work.await.unwrap();
                }
                locker.stats().attempts
            })
        })
        .collect();
    let mut attempts = 0;
    for task in tasks {
        attempts += task.await.unwrap();
    }
    let fences = fences.lock().unwrap();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    println!("6 clients after one lock: {attempts} attempts for {} acquisitions", fences.len());
}
