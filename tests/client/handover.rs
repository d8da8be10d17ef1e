//! Locks that are handed over in one round trip, over real nodes, and what faults cost then.

use std::time::{Duration, Instant};

use lockmod::client::{AcquireError, Guard, Locker};
use redis::Value;
use tokio::task::JoinHandle;

use crate::common::{Flow, Proxy, Server};
use crate::line::another_millisecond;
use crate::{command_count, connected, info, leases, locker, nodes, until};

/// A wait that outlasts every test.
const LONG: Duration = Duration::from_secs(60);

type Waiting = JoinHandle<Result<Guard, AcquireError>>;

fn wait_with(locker: &Locker) -> Waiting {
    tokio::spawn(locker.acquire("a").wait(LONG).into_future())
}

/// A client with its own links, and leases of this length.
fn behind(nodes: &[Server], ttl: Duration) -> (Vec<Proxy>, Locker) {
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let locker = Locker::builder().nodes(proxies.iter().map(Proxy::url)).ttl(ttl);
    (proxies, locker.build().expect("good settings"))
}

/// How many wait in line at each node.
fn in_line(nodes: &[Server]) -> Vec<i64> {
    let count = |node| match info(node, "a", "waiters") {
        Some(Value::Int(count)) => count,
        _ => -1,
    };
    nodes.iter().map(count).collect()
}

/// All waiters get the lock, each within this time, and nothing is left behind.
async fn each_gets_it(nodes: &[Server], waiting: Vec<Waiting>, most: Duration) {
    let started = Instant::now();
    let count = u32::try_from(waiting.len()).expect("few");
    let mut tasks: Vec<_> = waiting
        .into_iter()
        .map(|waiting| {
            tokio::spawn(async move {
                let guard = waiting.await.unwrap().unwrap();
                let fence = guard.fence();
                guard.release().await.unwrap();
                fence
            })
        })
        .collect();
    let mut fences = Vec::new();
    for task in &mut tasks {
        fences.push(task.await.unwrap());
    }
    let took = started.elapsed();
    assert!(took < most * count, "{took:?}");
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), tasks.len(), "each has a fence of its own");
    until("nothing is left", || leases(nodes, "a") == 0 && have_in_line(nodes, "a", 0)).await;
}

/// How often all nodes were asked for a lock.
fn requests(nodes: &[Server]) -> u64 {
    let of_node = |node| command_count(node, "LOCK.ACQUIRE", "calls").expect("it was asked");
    nodes.iter().map(of_node).sum()
}

fn have_in_line(nodes: &[Server], name: &str, count: i64) -> bool {
    nodes.iter().all(|node| info(node, name, "waiters") == Some(Value::Int(count)))
}

/// A task that waits with this client, and is in line everywhere.
async fn alone_in_line(nodes: &[Server], client: &Locker) -> Waiting {
    connected(client).await;
    let waiter = wait_with(client);
    until("it stands in line", || have_in_line(nodes, "a", 1)).await;
    waiter
}

/// A holder that had to wait for the lock: it knows that others may be waiting.
async fn holder_after_a_wait(nodes: &[Server], holder: &Locker) -> Guard {
    let before = locker(nodes);
    let guard = before.acquire("a").await.unwrap();
    let waiter = wait_with(holder);
    until("it stands in line", || have_in_line(nodes, "a", 1)).await;
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    // It says that it hands over only to nodes whose answers it has had.
    holder.settle().await;
    guard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_handed_over_without_another_request() {
    let nodes = nodes(5);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let next = locker(&nodes);
    let waiter = alone_in_line(&nodes, &next).await;
    next.settle().await;
    let before = requests(&nodes);
    let fence = guard.fence();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert_eq!(requests(&nodes), before, "no client asked");
    assert!(guard.fence() > fence);
    until("all nodes have granted", || leases(&nodes, "a") == 5).await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    next.settle().await;
    assert!(have_in_line(&nodes, "a", 0) && leases(&nodes, "a") == 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_waiters_that_hang_cost_one_ttl() {
    const TTL: Duration = Duration::from_secs(2);
    let nodes = nodes(3);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let (proxies, hanging) = behind(&nodes, TTL);
    connected(&hanging).await;
    let hung: Vec<_> = (0..5).map(|_| wait_with(&hanging)).collect();
    until("they stand in line", || have_in_line(&nodes, "a", 5)).await;
    let last = locker(&nodes);
    connected(&last).await;
    let waiter = wait_with(&last);
    until("it stands behind them", || have_in_line(&nodes, "a", 6)).await;
    proxies.iter().for_each(|proxy| proxy.set(Flow::Hold));
    let released = Instant::now();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let took = released.elapsed();
    // The ttl, by which the others have left, and some time for the machine.
    assert!(took < TTL * 2, "{took:?}");
    guard.release().await.unwrap();
    hung.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A client that has waited once knows that the nodes accept `GRANT`, and sends `HANDOVER` from
/// then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_found_the_lock_free_hands_it_over_too() {
    let nodes = nodes(3);
    let holder = locker(&nodes);
    holder_after_a_wait(&nodes, &holder).await.release().await.unwrap();
    let guard = holder.acquire("a").await.unwrap();
    let next = locker(&nodes);
    let waiter = alone_in_line(&nodes, &next).await;
    next.settle().await;
    let before = requests(&nodes);
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(requests(&nodes), before, "no client asked");
}

/// Each node has another ticket first, and grants to that one: no waiter has a quorum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_are_split_among_three_are_sorted_out() {
    const TTL: Duration = Duration::from_secs(30);
    let nodes = nodes(3);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let clients: Vec<_> = (0..3).map(|_| behind(&nodes, TTL)).collect();
    let mut waiting = Vec::new();
    for (oldest, (proxies, locker)) in clients.iter().enumerate() {
        connected(locker).await;
        another_millisecond().await;
        // The oldest ticket reaches only the first node, the next one the first two.
        proxies.iter().skip(oldest + 1).for_each(|proxy| proxy.set_requests(Flow::Hold));
        waiting.push(wait_with(locker));
        let expected: Vec<i64> =
            (0..3).map(|node| (oldest + 1).saturating_sub(node) as i64).collect();
        until("it stands in line", || in_line(&nodes) == expected).await;
    }
    guard.release().await.unwrap();
    for (proxies, _) in &clients {
        proxies.iter().for_each(|proxy| proxy.set_requests(Flow::Pass));
    }
    // Two of them poll: they are in line at less than a quorum, or at no more than one.
    each_gets_it(&nodes, waiting, Duration::from_secs(5)).await;
}

/// Its requests arrive when the lock has been handed over to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_ticket_that_arrives_in_the_middle_is_next() {
    let nodes = nodes(5);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let (proxies, older) = behind(&nodes, Duration::from_secs(30));
    let younger = locker(&nodes);
    for locker in [&older, &younger] {
        connected(locker).await;
    }
    proxies.iter().skip(2).for_each(|proxy| proxy.set_requests(Flow::Hold));
    let mut waiting = vec![wait_with(&older)];
    until("it is in line at two", || in_line(&nodes) == [1, 1, 0, 0, 0]).await;
    another_millisecond().await;
    waiting.push(wait_with(&younger));
    until("both are", || in_line(&nodes) == [2, 2, 1, 1, 1]).await;
    guard.release().await.unwrap();
    proxies.iter().for_each(|proxy| proxy.set_requests(Flow::Pass));
    each_gets_it(&nodes, waiting, Duration::from_secs(5)).await;
}

/// Two of five nodes receive nothing from every second waiter, and grant it the lock without
/// success, until a few waiters have had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_waiters_get_the_lock_through_a_partition() {
    let nodes = nodes(5);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let (proxies, cut_off) = behind(&nodes, Duration::from_secs(30));
    let others = locker(&nodes);
    for locker in [&cut_off, &others] {
        connected(locker).await;
    }
    let waiting: Vec<_> = (0..25).flat_map(|_| [&cut_off, &others].map(wait_with)).collect();
    until("they stand in line", || have_in_line(&nodes, "a", 50)).await;
    proxies[..2].iter().for_each(|proxy| proxy.set(Flow::Discard));
    let healed_at = guard.fence().get() + 10;
    guard.release().await.unwrap();
    let heal = async {
        let fence = || info(&nodes[4], "a", "fence");
        let is_far = || matches!(fence(), Some(Value::Int(now)) if now.unsigned_abs() > healed_at);
        until("ten have had it", is_far).await;
        proxies[..2].iter().for_each(|proxy| proxy.set(Flow::Pass));
        // No stream continues after it has lost bytes.
        proxies[..2].iter().for_each(Proxy::cut);
    };
    tokio::join!(heal, each_gets_it(&nodes, waiting, Duration::from_secs(1)));
}

/// Then its next request, a sixth to a third of its ttl after the previous one, gets the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_which_nothing_arrives_is_found_out_by_the_next_request() {
    const TTL: Duration = Duration::from_secs(18);
    let nodes = nodes(3);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let (proxies, next) = behind(&nodes, TTL);
    let waiter = alone_in_line(&nodes, &next).await;
    next.settle().await;
    proxies.iter().for_each(|proxy| proxy.set_replies(Flow::Discard));
    let fence = guard.fence().get();
    guard.release().await.unwrap();
    let granted = |node: &Server| match info(node, "a", "fence") {
        Some(Value::Int(now)) => now.unsigned_abs() > fence && leases(&nodes, "a") == 3,
        _ => false,
    };
    until("all have granted", || nodes.iter().all(granted)).await;
    proxies.iter().for_each(|proxy| proxy.set_replies(Flow::Pass));
    let started = Instant::now();
    let guard = waiter.await.unwrap().unwrap();
    assert!(started.elapsed() < TTL, "{:?}", started.elapsed());
    assert!(guard.validity() >= TTL / 2 - Duration::from_millis(100), "{:?}", guard.validity());
    guard.release().await.unwrap();
    until("nothing is left", || leases(&nodes, "a") == 0 && have_in_line(&nodes, "a", 0)).await;
}

/// Its connections close, and its places end with them: as before, this delays nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_killed_leaves_no_grant_behind() {
    let nodes = nodes(3);
    let holder = locker(&nodes);
    let guard = holder_after_a_wait(&nodes, &holder).await;
    let (proxies, killed) = behind(&nodes, Duration::from_secs(30));
    let gone = alone_in_line(&nodes, &killed).await;
    let last = locker(&nodes);
    connected(&last).await;
    another_millisecond().await;
    let waiting = vec![wait_with(&last)];
    until("it stands behind it", || have_in_line(&nodes, "a", 2)).await;
    proxies.iter().for_each(|proxy| {
        proxy.set_refuses(true);
        proxy.cut();
    });
    until("its places are gone", || have_in_line(&nodes, "a", 1)).await;
    guard.release().await.unwrap();
    each_gets_it(&nodes, waiting, Duration::from_secs(5)).await;
    gone.abort();
}
