//! Waiting in line over real nodes: who comes first, what is left behind, and what faults cost.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lockmod::client::{AcquireError, Guard, Locker};
use redis::Value;
use tokio::task::JoinHandle;

use crate::common::{Flow, Proxy, Server, start_nodes};
use crate::{builder, connected, info, is_text, leases, locker, millis, nodes, until};

/// How many wait in line at each node that answers.
fn waiting(nodes: &[Server], name: &str) -> Vec<i64> {
    let count = |node| match info(node, name, "waiters") {
        Some(Value::Int(count)) => Some(count),
        _ => None,
    };
    nodes.iter().filter_map(count).collect()
}

fn all_have(nodes: &[Server], name: &str, count: i64) -> bool {
    waiting(nodes, name) == vec![count; nodes.len()]
}

fn are_reserved(nodes: &[Server], name: &str) -> bool {
    nodes.iter().all(|node| is_text(info(node, name, "state").as_ref(), "reserved"))
}

/// Waits until the wall clock shows another millisecond: tickets of two clients of the same one are
/// in no order.
pub(crate) async fn another_millisecond() {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let start = now();
    until("the clock goes on", || now() > start).await;
}

type Waiter = JoinHandle<Result<Guard, AcquireError>>;

/// Starts to acquire, and returns when every node has it in line.
async fn in_line(locker: &Locker, nodes: &[Server], name: &'static str, count: i64) -> Waiter {
    another_millisecond().await;
    let waiter = tokio::spawn(locker.acquire(name).wait(Duration::from_secs(60)).into_future());
    until("it stands in line", || all_have(nodes, name, count)).await;
    waiter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_are_served_in_the_order_in_which_they_came() {
    let nodes = nodes(5);
    let holder = locker(&nodes);
    let guard = holder.acquire("a").await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for place in 0..8 {
        // Every other one is a task of the same client.
        let locker = if place % 2 == 0 { locker(&nodes) } else { holder.clone() };
        connected(&locker).await;
        let waiter = in_line(&locker, &nodes, "a", place + 1).await;
        let order = Arc::clone(&order);
        waiters.push(tokio::spawn(async move {
            let guard = waiter.await.unwrap().unwrap();
            order.lock().unwrap().push(place);
            guard.release().await.unwrap();
        }));
    }
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    holder.settle().await;
    assert!(all_have(&nodes, "a", 0) && leases(&nodes, "a") == 0);
}

/// Tickets of one millisecond were in no order, so ten calls of one turn of an event loop were not
/// either.
#[tokio::test]
async fn calls_of_one_client_in_one_instant_are_served_in_their_order() {
    let nodes = nodes(3);
    let (holder, locker) = (locker(&nodes), locker(&nodes));
    connected(&locker).await;
    for _ in 0..5 {
        let guard = holder.acquire("a").await.unwrap();
        let order = Mutex::new(Vec::new());
        let calls = (0..10).map(async |place| {
            let guard = locker.acquire("a").wait(Duration::from_secs(60)).await.unwrap();
            order.lock().unwrap().push(place);
            guard.release().await.unwrap();
        });
        let release = async {
            until("all stand in line", || all_have(&nodes, "a", 10)).await;
            guard.release().await.unwrap();
        };
        futures_util::join!(futures_util::future::join_all(calls), release);
        assert_eq!(order.into_inner().unwrap(), (0..10).collect::<Vec<_>>());
        holder.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_attempts_when_it_is_called_and_not_before() {
    let nodes = nodes(5);
    let (one, two) = (locker(&nodes), locker(&nodes));
    connected(&one).await;
    connected(&two).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = in_line(&two, &nodes, "a", 1).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert_eq!(two.stats().attempts, 2, "one that found it held, one that was called for");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_barges_in_while_somebody_waits() {
    let nodes = start_nodes(3, |_| Server::builder().module_arg("reserve-ms", 20_000));
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let slow = Locker::builder().nodes(proxies.iter().map(Proxy::url)).build().unwrap();
    let (one, other) = (locker(&nodes), locker(&nodes));
    connected(&slow).await;
    connected(&other).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = in_line(&slow, &nodes, "a", 1).await;
    for proxy in &proxies {
        proxy.set_replies(Flow::Hold);
    }
    guard.release().await.unwrap();
    until("all nodes keep it", || are_reserved(&nodes, "a")).await;
    for _ in 0..20 {
        let error = other.try_acquire("a").await.unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
    }
    for proxy in &proxies {
        proxy.set_replies(Flow::Pass);
    }
    waiter.await.unwrap().unwrap().release().await.unwrap();
    other.try_acquire("a").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_is_cancelled_at_any_point_leaves_no_ticket_behind() {
    let nodes = nodes(3);
    let (one, two) = (locker(&nodes), locker(&nodes));
    connected(&one).await;
    connected(&two).await;
    let guard = one.acquire("a").await.unwrap();
    for polls in 0..40 {
        let mut left = polls;
        let mut acquire = pin!(two.acquire("a").into_future());
        std::future::poll_fn(|ctx| {
            if left == 0 {
                return std::task::Poll::Ready(());
            }
            left -= 1;
            assert!(acquire.as_mut().poll(ctx).is_pending(), "it is held");
            // Whether it received a wake or not.
            ctx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
        if polls % 4 == 3 {
            tokio::select! {
                _ = &mut acquire => panic!("it is held"),
                () = until("it stands in line", || waiting(&nodes, "a").contains(&1)) => {}
            }
        }
        acquire.set(two.acquire("never polled").into_future());
        two.settle().await;
        assert!(all_have(&nodes, "a", 0), "{polls} polls: {:?}", waiting(&nodes, "a"));
    }
    guard.release().await.unwrap();
    two.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
}

#[tokio::test]
async fn a_wait_that_comes_to_its_end_leaves_no_ticket_behind() {
    let nodes = nodes(3);
    let (one, two) = (locker(&nodes), locker(&nodes));
    connected(&one).await;
    connected(&two).await;
    let guard = one.acquire("a").await.unwrap();
    let error = two.acquire("a").wait(millis(150)).await.unwrap_err();
    let AcquireError::Held(report) = error else { panic!("{error}") };
    assert!(report.waited >= millis(150) && report.attempts == 2, "{report:?}");
    two.settle().await;
    assert!(all_have(&nodes, "a", 0), "{:?}", waiting(&nodes, "a"));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_lost_delay_a_waiter_and_nothing_more() {
    let nodes = nodes(5);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let urls = proxies.iter().map(Proxy::url);
    let deaf = Locker::builder().nodes(urls).ttl(Duration::from_secs(2)).build().unwrap();
    let one = locker(&nodes);
    connected(&deaf).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = in_line(&deaf, &nodes, "a", 1).await;
    for proxy in &proxies {
        proxy.set_replies(Flow::Discard);
    }
    guard.release().await.unwrap();
    until("the calls are made, and nobody has come", || all_have(&nodes, "a", 0)).await;
    for proxy in &proxies {
        proxy.set_replies(Flow::Pass);
    }
    waiter.await.unwrap().unwrap().release().await.unwrap();
    deaf.settle().await;
    assert!(all_have(&nodes, "a", 0) && leases(&nodes, "a") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_stands_in_line_again_after_its_connections_broke() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let urls = proxies.iter().map(Proxy::url);
    let cut_off = Locker::builder().nodes(urls).build().unwrap();
    let one = locker(&nodes);
    connected(&cut_off).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = in_line(&cut_off, &nodes, "a", 1).await;
    let attempts = cut_off.stats().attempts;
    for proxy in &proxies {
        proxy.set_refuses(true);
        proxy.cut();
    }
    until("the nodes have dropped it", || all_have(&nodes, "a", 0)).await;
    for proxy in &proxies {
        proxy.set_refuses(false);
    }
    until("it stands in line again", || all_have(&nodes, "a", 1)).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    // While it was in line at no node, it polled.
    assert!(cut_off.stats().attempts > attempts);
    cut_off.settle().await;
    assert!(all_have(&nodes, "a", 0) && leases(&nodes, "a") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_nodes_that_restart_one_after_the_other() {
    let mut nodes = nodes(3);
    let (one, two) = (locker(&nodes), locker(&nodes));
    connected(&one).await;
    connected(&two).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = in_line(&two, &nodes, "a", 1).await;
    for node in 0..3 {
        nodes[node].kill();
        nodes[node].start_again();
        until("it stands in line again", || all_have(&nodes, "a", 1)).await;
    }
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(two.stats().attempts, 2, "a quorum had it in line all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_holder_is_gone_goes_to_the_first_in_line() {
    let nodes = nodes(3);
    let gone = builder(&nodes).ttl(millis(600)).renew(false).build().unwrap();
    let (first, second) = (locker(&nodes), locker(&nodes));
    connected(&first).await;
    connected(&second).await;
    let guard = gone.acquire("a").await.unwrap();
    let one = in_line(&first, &nodes, "a", 1).await;
    let two = in_line(&second, &nodes, "a", 2).await;
    drop(guard.leak());
    let guard = one.await.unwrap().unwrap();
    assert_eq!(first.stats().attempts, 2, "it was called when the lease ended");
    assert!(!two.is_finished());
    guard.release().await.unwrap();
    two.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_channels_waits_by_polling() {
    let nodes = nodes(3);
    for node in &nodes {
        node.run("ACL SETUSER me on >secret ~* +@all resetchannels").unwrap();
    }
    let url = |node: &Server| format!("redis://me:secret@127.0.0.1:{}", node.port());
    let mute = Locker::builder().nodes(nodes.iter().map(url)).build().unwrap();
    let one = locker(&nodes);
    connected(&mute).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = tokio::spawn(mute.acquire("a").wait(Duration::from_secs(60)).into_future());
    until("it polls", || mute.stats().attempts > 4).await;
    assert!(all_have(&nodes, "a", 0), "{:?}", waiting(&nodes, "a"));
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_for_whom_there_is_no_room_in_line_get_the_lock_all_the_same() {
    let nodes = start_nodes(3, |_| Server::builder().module_arg("max-waiters", 1));
    let locker = builder(&nodes).ttl(millis(600)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let acquire = locker.acquire("a").wait(Duration::from_secs(60));
            tokio::spawn(async { acquire.await.unwrap().release().await.unwrap() })
        })
        .collect();
    until("the line is full", || all_have(&nodes, "a", 1)).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_wait_over_one_connection_per_node() {
    let nodes = nodes(5);
    let locker = locker(&nodes);
    connected(&locker).await;
    let guard = locker.acquire("a").await.unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let acquire = locker.acquire("a").wait(Duration::from_secs(120));
            let (inside, done) = (Arc::clone(&inside), Arc::clone(&done));
            tokio::spawn(async move {
                let guard = acquire.await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
                done.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    until("all of them wait", || all_have(&nodes, "a", 1_000)).await;
    for node in &nodes {
        // The others belong to this test.
        let clients = String::from_utf8_lossy(&match node.run("CLIENT LIST").unwrap() {
            Value::BulkString(text) => text,
            other => panic!("{other:?}"),
        })
        .lines()
        .filter(|line| line.contains("sub=1"))
        .count();
        assert_eq!(clients, 1);
    }
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(done.load(Ordering::SeqCst), 1_000);
    locker.settle().await;
    assert!(all_have(&nodes, "a", 0) && leases(&nodes, "a") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_stand_in_line_through_a_quarantine_and_do_not_spin() {
    let mut nodes = start_nodes(3, |_| Server::builder());
    let one = locker(&nodes);
    drop(one.acquire("a").ttl(millis(2_000)).renew(false).await.unwrap().leak());
    for node in &mut nodes {
        node.kill();
        node.start_again();
    }
    // A node detects its own state when it is asked, or within a tenth of a second.
    let is_quarantined = |node: &Server| node.info_u64("lockmod_quarantine_left_ms") > 3_000;
    until("all are in quarantine", || nodes.iter().all(is_quarantined)).await;
    let lockers: Vec<Locker> = (0..8).map(|_| locker(&nodes)).collect();
    for locker in &lockers {
        connected(locker).await;
    }
    let waits: Vec<_> = lockers
        .iter()
        .map(|locker| tokio::spawn(locker.acquire("a").wait(Duration::from_secs(60)).into_future()))
        .collect();
    until("all stand in line", || all_have(&nodes, "a", 8)).await;
    for wait in waits {
        // One after the other, in any order: each releases the lock for the next.
        tokio::spawn(async move { wait.await.unwrap().unwrap().release().await.unwrap() });
    }
    until("everybody has had it", || {
        lockers.iter().map(|locker| locker.stats().acquired).sum::<u64>() == 8
    })
    .await;
    let attempts: u64 = lockers.iter().map(|locker| locker.stats().attempts).sum();
    assert!(attempts <= 8 * 8, "{attempts} attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_no_room_in_line_polls() {
    let nodes = start_nodes(3, |_| Server::builder().module_arg("max-waiters", 0));
    let (one, two) = (locker(&nodes), locker(&nodes));
    connected(&one).await;
    connected(&two).await;
    let guard = one.acquire("a").await.unwrap();
    let waiter = tokio::spawn(two.acquire("a").wait(Duration::from_secs(60)).into_future());
    // With timers alone and a ttl of half a minute, the third attempt would come after 10 s.
    let start = std::time::Instant::now();
    until("it polls", || two.stats().attempts > 4).await;
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
