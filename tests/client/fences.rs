//! Fences rise over any sequence of acquisitions, whichever minority is down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lockmod::client::Locker;
use lockmod::engine::Fence;

use crate::common::Server;
use crate::{builder, connected, millis, nodes};

/// Takes a minority down, a different one and in a different way each time, and acquires some times
/// meanwhile.
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
    // A new node replaces an old one, and another is down: both must agree.
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

/// All nodes except this many have answered this locker.
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

/// What a worker with its own prefix can do to the fences of a node: the largest fence that it can
/// raise to, asked again and again under new names, so that the floor follows.
fn climb(node: &Server) -> u64 {
    const RULES: &str = "ACL SETUSER worker on >secret resetkeys ~jobs:* resetchannels -@all \
                         +lock.acquire +lock.release +lock.extend +lock.fence";
    node.run(RULES).unwrap();
    let mut worker = node.connect_raw();
    assert_eq!(worker.run("AUTH worker secret"), b"+OK\r\n");
    let mut ask = |line: &str| String::from_utf8(worker.run(line)).unwrap();
    let largest = Fence::MAX.get();
    let mut reached = 0;
    for step in 0..50 {
        let granted = ask(&format!("LOCK.ACQUIRE jobs:{step} mallory 60000"));
        assert!(granted.starts_with(':'), "{granted}");
        let mut bounds = Vec::new();
        for line in [
            format!("LOCK.FENCE jobs:{step} mallory {largest}"),
            format!("LOCK.EXTEND jobs:{step} mallory 60000 FENCE {largest}"),
            format!("LOCK.EXTEND jobs:free{step} mallory 60000 FENCE {largest} REPAIR"),
        ] {
            let refused = ask(&line);
            let words: Vec<&str> = refused.split([' ', ',', ';']).collect();
            assert_eq!((words[0], words[4]), ("-BADFENCE", "above"), "{line}: {refused}");
            bounds.push(words[5].parse::<u64>().unwrap());
        }
        reached = *bounds.iter().max().unwrap();
        let raised = ask(&format!("LOCK.FENCE jobs:{step} mallory {reached}"));
        assert_eq!(raised, format!(":{reached}\r\n"), "the bound itself is allowed");
    }
    assert!(ask("LOCK.FLOOR 5").starts_with("-NOPERM "));
    reached
}

/// Regression: one worker with one prefix on one of five nodes permanently exhausted all names on
/// all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_uses_up_the_fences_of_all_nodes() {
    let mut nodes = nodes(5);
    let locker = builder(&nodes).build().unwrap();
    connected(&locker).await;
    locker.acquire("old").await.unwrap().release().await.unwrap();
    let reached = climb(&nodes[2]);
    assert!(reached < Fence::MAX.get() / 2, "{reached}: years are left");
    assert!(nodes[2].info_u64("lockmod_floor") >= reached - 1, "new names start there");
    let highest = |nodes: &[Server]| {
        let each = nodes.iter().enumerate().filter(|(node, _)| *node != 2);
        each.map(|(_, node)| node.info_u64("lockmod_highest_fence")).max().unwrap()
    };
    for name in ["old", "new", "billing"] {
        let guard = locker.acquire(name).await.unwrap();
        assert!(guard.fence().get() < 10, "{name} does without that vote: {}", guard.fence());
        guard.release().await.unwrap();
    }
    assert!(highest(&nodes) < 10, "the floor is carried nowhere");
    // If its vote is needed, it counts, and the others follow as time passes.
    nodes[0].kill();
    nodes[1].kill();
    connected_but(&locker, 2).await;
    let mut last = 0;
    for name in ["old", "new", "newer"] {
        let guard = locker.acquire(name).await.unwrap();
        assert!(guard.fence().get() >= reached, "{name}: {}", guard.fence());
        last = guard.fence().get();
        guard.release().await.unwrap();
    }
    assert!(last < reached + 100);
    nodes[0].start_again();
    nodes[1].start_again();
    connected(&locker).await;
    for round in 0..3 {
        for (number, node) in nodes.iter().enumerate() {
            for name in ["old", "new", "jobs:new", "fresh"] {
                let granted = node.run(&format!("LOCK.ACQUIRE {name} t{round} 1"));
                let Ok(redis::Value::Int(fence)) = granted else { panic!("{granted:?}") };
                assert!((fence as u64) < reached + 1_000 + (2 << 20), "node {number}: {fence}");
                node.run(&format!("LOCK.RELEASE {name} t{round}")).unwrap();
            }
            node.run("FLUSHALL").unwrap();
        }
        for node in &mut nodes {
            if round == 0 {
                node.terminate()
            } else {
                node.kill()
            }
            node.start_again();
        }
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
