//! Readers over real nodes: who holds a lock together, in one round trip, and what faults cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockmod::client::{AcquireError, Guard, Lost, ReleaseError, blocking};
use redis::Value;
use tokio::task::JoinHandle;

use crate::common::{Server, start_nodes};
use crate::{
    builder, command_count, connected, info, is_held, leases, locker, millis, nodes, until,
};

/// How many readers hold the lock at a node; zero also if a writer does.
fn readers(node: &Server, name: &str) -> i64 {
    match info(node, name, "readers") {
        Some(Value::Int(count)) => count,
        _ => 0,
    }
}

fn all_have(nodes: &[Server], name: &str, count: i64) -> bool {
    nodes.iter().all(|node| readers(node, name) == count)
}

/// Waits in line at all nodes, as the last of this many.
async fn in_line(
    acquire: lockmod::client::Acquire,
    nodes: &[Server],
    name: &str,
    count: i64,
) -> JoinHandle<Result<Guard, AcquireError>> {
    let waiter = tokio::spawn(acquire.wait(Duration::from_secs(60)).into_future());
    let stands = |node| info(node, name, "waiters") == Some(Value::Int(count));
    until("it stands in line", || nodes.iter().all(stands)).await;
    // Tickets of the same millisecond are in no order.
    tokio::time::sleep(millis(2)).await;
    waiter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_hold_a_lock_together_and_a_writer_holds_it_alone() {
    let nodes = nodes(5);
    let (one, two) = (locker(&nodes), builder(&nodes).label("writer").build().unwrap());
    connected(&one).await;
    connected(&two).await;
    let first = one.acquire("a").shared().await.unwrap();
    let second = two.acquire("a").shared().await.unwrap();
    assert_eq!([first.fence().get(), second.fence().get()], [1, 1]);
    assert!(!first.is_exclusive() && !second.is_exclusive());
    until("both hold it everywhere", || all_have(&nodes, "a", 2)).await;
    let error = two.try_acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");
    let waiting = in_line(two.acquire("a"), &nodes, "a", 1).await;
    let error = one.acquire("a").shared().wait(Duration::ZERO).await.unwrap_err();
    let (said, ahead) = (error.to_string(), ", and a writer waits");
    assert!(said.contains("for 2 readers for up to") && said.contains(ahead), "{error}");
    waiting.abort();
    first.release().await.unwrap();
    assert!(two.try_acquire("a").await.is_err());
    second.release().await.unwrap();

    let writer = two.acquire("a").await.unwrap();
    assert!(writer.is_exclusive() && writer.fence().get() == 2);
    let error = one.acquire("a").shared().wait(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("hold it for writer"), "{error}");
    writer.release().await.unwrap();
    let after = one.acquire("a").shared().await.unwrap();
    assert_eq!(after.fence().get(), 2, "that of the writer before it");
    drop(after);
    one.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
}

/// How often all nodes were asked to do this.
fn calls(nodes: &[Server], command: &str) -> u64 {
    nodes.iter().filter_map(|node| command_count(node, command, "calls")).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_needs_one_round_trip_also_where_a_name_was_first_read() {
    const COUNT: u64 = 100;
    let nodes = nodes(5);
    // The fences of older nodes differ.
    for (number, node) in nodes.iter().enumerate() {
        node.run(&format!("LOCK.FLOOR {}", 1 + number * 100)).unwrap();
    }
    let (one, two) = (locker(&nodes), locker(&nodes));
    connected(&one).await;
    connected(&two).await;
    let raised = || one.stats().raised + two.stats().raised;
    // Read by one client, by another at the same time, written, and read again. Each waits for the
    // nodes that answer after the quorum: on a busy machine its next request would overtake them.
    for number in 0..COUNT {
        let name = format!("name-{number}");
        let first = one.acquire(&name).shared().await.unwrap();
        one.settle().await;
        let beside = two.acquire(&name).shared().await.unwrap();
        two.settle().await;
        beside.release().await.unwrap();
        two.settle().await;
        first.release().await.unwrap();
        one.settle().await;
        let writer = two.acquire(&name).await.unwrap();
        two.settle().await;
        let fence = writer.fence();
        writer.release().await.unwrap();
        two.settle().await;
        let again = one.acquire(&name).shared().await.unwrap();
        assert!(again.fence() >= fence);
        one.settle().await;
        again.release().await.unwrap();
        one.settle().await;
    }
    println!("{} of {} needed two round trips", raised(), 4 * COUNT);
    assert!(raised() * 20 <= 4 * COUNT, "{} of {}", raised(), 4 * COUNT);
    assert_eq!(calls(&nodes, "LOCK.ACQUIRE"), 4 * COUNT * 5, "one attempt each");
    let fences = calls(&nodes, "LOCK.FENCE");
    assert!(fences * 20 <= 4 * COUNT * 5, "{fences} raises, those in the background among them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_tell_readers_from_writers_whichever_nodes_are_away() {
    let nodes = nodes(5);
    let locker = builder(&nodes).timeout(millis(2_000)).build().unwrap();
    connected(&locker).await;
    let mut written = 0;
    for round in 0..20 {
        let away = [round % 5, (round + 1) % 5];
        away.iter().for_each(|&node| nodes[node].pause());
        let readers = [
            locker.acquire("a").shared().await.unwrap(),
            locker.acquire("a").shared().await.unwrap(),
        ];
        let read = readers.each_ref().map(|guard| guard.fence().get());
        for guard in readers {
            guard.release().await.unwrap();
        }
        let writer = locker.acquire("a").await.unwrap();
        let fence = writer.fence().get();
        assert!(read.iter().all(|read| written <= *read && *read < fence), "{read:?} < {fence}");
        written = fence;
        writer.release().await.unwrap();
        away.iter().for_each(|&node| nodes[node].resume());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_first_is_served_first_and_readers_beside_each_other_together() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    let holder = locker.acquire("a").await.unwrap();
    let read = || locker.acquire("a").shared();
    let first = [in_line(read(), &nodes, "a", 1).await, in_line(read(), &nodes, "a", 2).await];
    let writer = in_line(locker.acquire("a"), &nodes, "a", 3).await;
    let second = [in_line(read(), &nodes, "a", 4).await, in_line(read(), &nodes, "a", 5).await];
    let waiting = |node| info(node, "a", "waiting_readers") == Some(Value::Int(4));
    assert!(nodes.iter().all(waiting));
    holder.release().await.unwrap();
    let mut guards = Vec::new();
    for waiter in first {
        guards.push(waiter.await.unwrap().unwrap());
    }
    assert_eq!(guards[0].fence(), guards[1].fence());
    assert!(!writer.is_finished() && !second.iter().any(JoinHandle::is_finished));
    guards.pop().unwrap().release().await.unwrap();
    assert!(!writer.is_finished());
    guards.pop().unwrap().release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    assert!(!second.iter().any(JoinHandle::is_finished));
    let fence = writer.fence();
    writer.release().await.unwrap();
    for waiter in second {
        let guard = waiter.await.unwrap().unwrap();
        assert_eq!(guard.fence(), fence);
        guards.push(guard);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_readers_does_not_keep_a_writer_out() {
    const READERS: u64 = 16;
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    let (is_over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (locker, is_over, reads) = (locker.clone(), is_over.clone(), reads.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let guard = locker.acquire("a").shared().wait(Duration::from_secs(30)).await;
                    tokio::time::sleep(millis(5)).await;
                    reads.fetch_add(1, Ordering::Relaxed);
                    guard.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    until("they read", || reads.load(Ordering::Relaxed) > 2 * READERS).await;
    let writer = builder(&nodes).build().unwrap();
    connected(&writer).await;
    let mut most = 0;
    for _ in 0..10 {
        let before = reads.load(Ordering::Relaxed);
        let guard = writer.acquire("a").wait(Duration::from_secs(30)).await.unwrap();
        most = most.max(reads.load(Ordering::Relaxed) - before);
        guard.release().await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    println!("at most {most} reads passed a writer, beside {READERS} readers");
    assert!(most <= 6 * READERS, "{most} reads passed a writer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_are_acquired_some_as_a_reader() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    let one = locker.acquire_many(["b", "both"]).and_shared(["a", "both"]).await.unwrap();
    let is_exclusive = |guards: &lockmod::client::Guards, name: &str| {
        guards.get(name).expect("a guard for each").is_exclusive()
    };
    assert_eq!(["a", "b", "both"].map(|name| is_exclusive(&one, name)), [false, true, true]);
    let two = locker.acquire_many(["c"]).and_shared(["a"]).wait(Duration::ZERO).await.unwrap();
    until("both read it", || all_have(&nodes, "a", 2)).await;
    let none = locker.acquire_many(["d"]).and_shared(["a", "b"]).wait(Duration::ZERO).await;
    assert!(matches!(none, Err(AcquireError::Held(_))));
    locker.settle().await;
    assert!(all_have(&nodes, "a", 2), "what was acquired is given back, and nothing else");
    one.release().await.unwrap();
    two.release().await.unwrap();
    let all = locker.acquire_many(["a", "b"]).shared().await.unwrap();
    assert_eq!(["a", "b"].map(|name| is_exclusive(&all, name)), [false, false]);
    let reads = locker.acquire("a").shared().with(async |fence| fence.get()).await.unwrap();
    assert_eq!(reads, all.get("a").unwrap().fence().get());
}

/// Regression: all nodes had confirmed the extension, which failed for lack of a quorum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_during_which_the_writer_becomes_a_reader_counts() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    for _ in 0..100 {
        let guard = locker.acquire("a").await.unwrap();
        let (extended, shared) = tokio::join!(guard.extend(), guard.downgrade());
        assert!(extended.is_ok() && shared.is_ok(), "{extended:?} {shared:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_reads_inside_its_own_writer_and_does_not_write_inside_its_own_reader() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let holder = locker.holder();
    let writer = holder.acquire("a").await.unwrap();
    let reader = holder.acquire("a").shared().await.unwrap();
    assert_eq!((locker.stats().attempts, reader.fence()), (1, writer.fence()));
    assert!(writer.is_exclusive() && !reader.is_exclusive());
    writer.release().await.unwrap();
    reader.release().await.unwrap();

    let reader = holder.acquire("a").shared().await.unwrap();
    let share = holder.acquire("a").shared().await.unwrap();
    let start = Instant::now();
    let error = holder.acquire("a").wait(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, AcquireError::BadOption(_)), "{error}");
    assert!(error.to_string().contains("release it first"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "it waits for itself");
    share.release().await.unwrap();
    reader.release().await.unwrap();
    holder.acquire("a").await.unwrap().release().await.unwrap();

    // Others read when none of its guards is a writer any more.
    let (one, two) = (holder.acquire("a").await.unwrap(), holder.acquire("a").await.unwrap());
    one.downgrade().await.unwrap();
    assert!(!one.is_exclusive() && two.is_exclusive());
    assert!(locker.acquire("a").shared().wait(Duration::ZERO).await.is_err());
    two.downgrade().await.unwrap();
    locker.acquire("a").shared().wait(Duration::ZERO).await.unwrap().release().await.unwrap();
    assert!(holder.acquire("a").await.is_err(), "it is a reader now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_becomes_a_reader_and_lets_those_in_who_wait_to_read() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    let guard = locker.acquire("a").label("me").await.unwrap();
    let first = in_line(locker.acquire("a").shared(), &nodes, "a", 1).await;
    let second = in_line(locker.acquire("a").shared(), &nodes, "a", 2).await;
    let writer = in_line(locker.acquire("a"), &nodes, "a", 3).await;
    guard.downgrade().await.unwrap();
    assert!(!guard.is_exclusive());
    let readers = [first.await.unwrap().unwrap(), second.await.unwrap().unwrap()];
    assert!(readers.iter().all(|reader| reader.fence() == guard.fence()));
    until("three read it", || all_have(&nodes, "a", 3)).await;
    guard.downgrade().await.unwrap();
    guard.extend().await.unwrap();
    assert!(!writer.is_finished() && !guard.is_lost());
    let fence = guard.fence();
    guard.release().await.unwrap();
    for reader in readers {
        reader.release().await.unwrap();
    }
    let writer = writer.await.unwrap().unwrap();
    assert_eq!(writer.fence().get(), fence.get() + 1);
}

/// Much shorter than the time for which a node is away.
const TTL: Duration = Duration::from_millis(1_500);

/// A node that does not receive the downgrade holds the lock for a writer, until the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_away_while_a_writer_becomes_a_reader_hears_of_it() {
    for is_killed in [false, true] {
        let mut nodes = nodes(3);
        let locker = builder(&nodes).ttl(TTL).build().unwrap();
        connected(&locker).await;
        let guard = locker.acquire("a").label("me").await.unwrap();
        until("all hold it", || leases(&nodes, "a") == 3).await;
        if is_killed {
            nodes[2].kill()
        } else {
            nodes[2].pause()
        }
        guard.downgrade().await.unwrap();
        let reader = locker.acquire("a").shared().await.unwrap();
        if is_killed {
            nodes[2].start_again()
        } else {
            nodes[2].resume()
        }
        until("it lets readers in", || readers(&nodes[2], "a") >= 1).await;
        until("all have the readers", || all_have(&nodes, "a", 2)).await;
        assert!(!guard.is_lost() && !reader.is_lost());
        // With another node down, its lease counts for the quorum.
        nodes[0].kill();
        let third = locker.acquire("a").shared().wait(Duration::from_secs(20)).await.unwrap();
        let error = locker.acquire("a").wait(Duration::ZERO).await.unwrap_err();
        assert!(!error.to_string().is_empty());
        assert!(!guard.is_lost() && !reader.is_lost() && !third.is_lost());
    }
}

/// A node that has forgotten the former writer does not know it; the holder comes back as a reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_forgotten_a_writer_takes_it_back_as_the_reader_that_it_became() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(TTL).build().unwrap();
    connected(&locker).await;
    let guard = locker.acquire("a").label("me").await.unwrap();
    until("all hold it", || leases(&nodes, "a") == 3).await;
    nodes[1].run("DEL a").unwrap();
    // Another client reads there meanwhile, and keeps no reader out.
    assert_eq!(nodes[1].run("LOCK.ACQUIRE a other 60000 SHARED").unwrap(), Value::Int(1));
    guard.downgrade().await.unwrap();
    until("it is back", || readers(&nodes[1], "a") == 2).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    until("it is given back", || readers(&nodes[1], "a") == 1).await;
}

fn is_granting(node: &Server) -> bool {
    node.info("lockmod_quarantine_left_ms").is_some_and(|left| left == "0")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_renewed_and_taken_back_by_nodes_that_restart_one_after_another() {
    for forgets in [false, true] {
        let mut nodes = nodes(3);
        let lockers = [(); 2].map(|()| builder(&nodes).ttl(TTL).build().unwrap());
        let mut guards = Vec::new();
        for (number, locker) in lockers.iter().enumerate() {
            connected(locker).await;
            let label = format!("reader-{number}");
            guards.push(locker.acquire("held").shared().label(label).await.unwrap());
        }
        // Its fences continue above those of the readers.
        for _ in 0..5 {
            lockers[0].acquire("other").await.unwrap().release().await.unwrap();
        }
        for (number, node) in nodes.iter_mut().enumerate() {
            node.kill();
            if forgets && number == 0 {
                let _ = std::fs::remove_dir_all(node.dir().join("appendonlydir"));
            }
            let stopped_at = Instant::now();
            until("the leases on that node are over", || stopped_at.elapsed() > TTL * 2).await;
            node.start_again();
            until("the node grants", || is_granting(node)).await;
            until("both readers are back", || readers(node, "held") == 2).await;
            assert!(guards.iter().all(|guard| !guard.is_lost()));
        }
        let error = lockers[0].try_acquire("held").await.unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
        for guard in guards {
            guard.release().await.unwrap();
        }
        until("nobody holds it", || nodes.iter().all(|node| !is_held(node, "held"))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_reader_loses_its_lease_alone_and_all_lose_a_lock_that_is_deleted() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(2_400)).build().unwrap();
    connected(&locker).await;
    let [one, two] = [(); 2].map(|()| locker.acquire("a").shared().into_future());
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    let capped = locker.acquire("a").shared().max_hold(millis(1_000)).await.unwrap();
    let leaked = locker.acquire("a").shared().await.unwrap().leak();
    assert_eq!(capped.lost().await, Lost::MaxHold);
    let _ = capped.release().await;
    locker.extend_by_token("a", &leaked.token).await.unwrap();
    locker.release_by_token("a", &leaked.token).await.unwrap();
    let error = locker.release_by_token("a", &leaked.token).await.unwrap_err();
    assert!(matches!(error, ReleaseError::NotHeld(_)), "{error}");
    assert!(!one.is_lost() && !two.is_lost());
    until("they are alone", || all_have(&nodes, "a", 2)).await;
    let lost = tokio::spawn(two.lost());
    two.release().await.unwrap();
    assert_eq!(lost.await.unwrap(), Lost::Released);
    assert!(!one.is_lost());
    for node in &nodes {
        node.run("DEL a").unwrap();
    }
    assert_eq!(one.lost().await, Lost::Removed);
    // A renewal between two of the deletions restores the lease on the first node, once.
    until("nothing is left", || leases(&nodes, "a") == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_with_too_many_readers_says_so_and_can_be_waited_for() {
    let nodes = start_nodes(3, |_| Server::builder().module_arg("max-readers", 2));
    let locker = locker(&nodes);
    connected(&locker).await;
    let one = locker.acquire("a").shared().await.unwrap();
    let _two = locker.acquire("a").shared().await.unwrap();
    until("both read it", || all_have(&nodes, "a", 2)).await;
    let full = "3 of 3 nodes full (READERSFULL 2 readers already hold this lock; allowed: 2 \
                (lockmod.max-readers))";
    for (wait, said) in [
        (0, full),
        (
            100,
            "3 of 3 nodes full (READERSFULL as many readers as may hold this lock already do: 2)",
        ),
    ] {
        let error = locker.acquire("a").shared().wait(millis(wait)).await.unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    let waiting = locker.acquire("a").shared().wait(Duration::from_secs(30)).into_future();
    let waiting = tokio::spawn(waiting);
    one.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_waiting_leaves_nothing_behind() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    let guard = locker.acquire("a").await.unwrap();
    let waiter = in_line(locker.acquire("a").shared(), &nodes, "a", 1).await;
    waiter.abort();
    let is_empty = |node| info(node, "a", "waiters") == Some(Value::Int(0));
    until("it has left", || nodes.iter().all(is_empty)).await;
    guard.release().await.unwrap();
    drop(locker.acquire("a").shared().await.unwrap());
    locker.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
}

#[test]
fn a_blocking_program_reads_too() {
    let nodes = nodes(3);
    let locker = blocking::Locker::new(builder(&nodes)).unwrap();
    let one = locker.request("a").shared().acquire().unwrap();
    let two = locker.request("a").shared().wait(Duration::ZERO).acquire().unwrap();
    assert_eq!((one.fence(), one.is_exclusive()), (two.fence(), false));
    assert!(locker.request("a").wait(Duration::ZERO).acquire().is_err());
    assert_eq!(locker.request("a").shared().with(|guard| guard.fence()).unwrap(), one.fence());
    one.release().unwrap();
    two.release().unwrap();
    let writer = locker.acquire("a").unwrap();
    writer.downgrade().unwrap();
    assert!(!writer.is_exclusive());
    let reader = locker.request("a").shared().wait(Duration::ZERO).acquire().unwrap();
    drop((writer, reader));
    let guards = locker.request_many(["b"]).and_shared(["a"]).acquire().unwrap();
    assert_eq!(guards.iter().map(blocking::Guard::is_exclusive).collect::<Vec<_>>(), [false, true]);
    drop((guards, locker));
    assert_eq!(leases(&nodes, "a") + leases(&nodes, "b"), 0);
}
