//! Acquiring and releasing without faults, and cancelling at every point.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lockmod::client::{
    AcquireError, ExtendError, Fence, LockState, Locker, Lost, ReleaseError, Vote, WithError,
    blocking,
};
use redis::Value;

use crate::common::{Server, start_nodes};
use crate::{builder, connected, info, is_text, leases, locker, millis, nodes, until};

#[tokio::test]
async fn a_lock_is_held_on_the_nodes_until_it_is_released() {
    let nodes = nodes(5);
    let locker = locker(&nodes);
    connected(&locker).await;
    for fence in 1..=3 {
        let guard = locker.acquire("a").await.unwrap();
        assert_eq!(guard.fence().get(), fence);
        assert!(guard.validity() > Duration::from_secs(9) && !guard.is_lost());
        until("all nodes hold it", || leases(&nodes, "a") == 5).await;
        guard.release().await.unwrap();
        locker.settle().await;
        assert_eq!(leases(&nodes, "a"), 0);
    }
    assert_eq!(locker.stats().raised, 0, "one round trip each");
    assert_eq!(locker.fence("a").await.unwrap().get(), 3);
}

#[tokio::test]
async fn whoever_is_refused_is_told_who_holds_it_and_for_how_long() {
    let nodes = nodes(3);
    let (one, two) = (builder(&nodes).label("worker-7").build().unwrap(), locker(&nodes));
    let guard = one.acquire("a").await.unwrap();
    connected(&two).await;
    let error = two.try_acquire("a").await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, AcquireError::Held(_)) && error.is_retryable(), "{error:?}");
    assert!(text.contains("3 of 3 nodes hold it for worker-7 for up to 9."), "{text}");
    guard.release().await.unwrap();
    two.try_acquire("a").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_it_is_released_and_an_error_at_its_deadline() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let guard = locker.acquire("a").await.unwrap();
    let error = locker.acquire("a").wait(millis(100)).await.unwrap_err();
    let AcquireError::Held(report) = error else { panic!("{error}") };
    assert!(report.waited >= millis(100) && report.attempts > 1, "{report:?}");
    let waiting = tokio::spawn(locker.acquire("a").into_future());
    until("the waiter has tried", || locker.stats().attempts > u64::from(report.attempts) + 1)
        .await;
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_dropped_guard_is_released_in_the_background() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    drop(locker.acquire("a").await.unwrap());
    locker.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
}

/// The future is dropped after its first poll, its second, and so on until it is done.
async fn cancelled_at_every_poll(locker: &Locker, name: &'static str) -> usize {
    for polls in 0.. {
        let mut left = polls;
        let mut acquire = pin!(locker.acquire(name).into_future());
        let done = std::future::poll_fn(|ctx| {
            if left == 0 {
                return std::task::Poll::Ready(None);
            }
            left -= 1;
            acquire.as_mut().poll(ctx).map(Some)
        })
        .await;
        acquire.set(locker.acquire("never polled").into_future());
        if let Some(result) = done {
            result.unwrap().release().await.unwrap();
            return polls;
        }
        locker.settle().await;
    }
    unreachable!()
}

#[tokio::test]
async fn a_cancelled_acquire_leaves_nothing_behind_wherever_it_was() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    // Every counter differs, so that the attempt includes the raise.
    for (times, node) in nodes.iter().enumerate() {
        for _ in 0..times * 5 {
            node.run("LOCK.ACQUIRE a t 1000").unwrap();
            node.run("LOCK.RELEASE a t").unwrap();
        }
    }
    let mut points = 0;
    for round in 0..30 {
        points += cancelled_at_every_poll(&locker, "a").await;
        locker.settle().await;
        assert_eq!(leases(&nodes, "a"), 0, "round {round}");
    }
    assert!(points > 60, "only {points} points were cancelled at");
}

#[tokio::test]
async fn many_locks_are_acquired_in_one_order_or_not_at_all() {
    let nodes = nodes(3);
    let (one, two) = (locker(&nodes), builder(&nodes).wait(millis(50)).build().unwrap());
    let guard = one.acquire("b").await.unwrap();
    connected(&two).await;
    assert!(two.acquire_many(["c", "a", "b"]).await.is_err());
    two.settle().await;
    assert_eq!((leases(&nodes, "a"), leases(&nodes, "c")), (0, 0));
    guard.release().await.unwrap();
    let guards = two.acquire_many(["c", "a", "b", "a"]).await.unwrap();
    assert_eq!(guards.iter().map(|guard| guard.name()).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    assert_eq!(guards.get("b").unwrap().fence().get(), 2);
    guards.release().await.unwrap();
    two.settle().await;
    assert_eq!(leases(&nodes, "a") + leases(&nodes, "b") + leases(&nodes, "c"), 0);
}

/// Regression: a lease that had ended while another lock was waited for was returned as held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_while_others_are_waited_for_is_acquired_anew() {
    let nodes = nodes(3);
    let held = locker(&nodes).acquire("b").await.unwrap();
    let two = builder(&nodes).ttl(millis(2_700)).timeout(millis(900)).renew(false);
    let two = two.wait(Duration::from_secs(60)).build().unwrap();
    let waiting = tokio::spawn(two.acquire_many(["a", "b"]).into_future());
    until("it waits for the second", || leases(&nodes, "a") == 3).await;
    until("the first is over", || leases(&nodes, "a") == 0).await;
    held.release().await.unwrap();
    let guards = waiting.await.unwrap().unwrap();
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert_eq!(guards.get("a").unwrap().fence().get(), 2, "the second lease");
}

#[tokio::test]
async fn a_holder_acquires_again_without_a_round_trip() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let holder = locker.holder();
    let outer = holder.acquire("a").await.unwrap();
    let inner = holder.clone().acquire("a").await.unwrap();
    assert_eq!((locker.stats().attempts, inner.fence()), (1, outer.fence()));
    outer.release().await.unwrap();
    assert!(!inner.is_lost() && leases(&nodes, "a") >= 2);
    inner.release().await.unwrap();
    locker.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
    // Two at once share one lease too, instead of waiting for each other.
    let (one, two) = tokio::join!(holder.acquire("a"), holder.acquire("a"));
    assert_eq!(one.unwrap().fence(), two.unwrap().fence());
}

/// Regression: it waited for as long as that task did.
#[tokio::test]
async fn a_holder_waits_no_longer_than_asked_behind_its_own_task() {
    let nodes = nodes(3);
    let (locker, holder) = (locker(&nodes), locker(&nodes).holder());
    let guard = locker.acquire("a").label("other").await.unwrap();
    let mut long = pin!(holder.acquire("a").wait(Duration::MAX).into_future());
    for wait in [Duration::ZERO, millis(300)] {
        let brief = holder.acquire("a").wait(wait);
        let refused = tokio::select! {
            biased;
            _ = &mut long => unreachable!("the lock is held"),
            refused = brief => refused.unwrap_err(),
        };
        assert!(
            matches!(&refused, AcquireError::Held(report) if report.waited >= wait),
            "{refused}"
        );
        assert!(refused.to_string().contains("for other "), "{refused}");
    }
    guard.release().await.unwrap();
    assert_eq!(long.await.unwrap().fence(), holder.acquire("a").await.unwrap().fence());
}

#[tokio::test]
async fn work_runs_under_the_lock_and_is_dropped_when_the_lease_is_lost() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(millis(600)).renew(false).build().unwrap();
    let answer = locker.with("a", async |fence| fence.get() + 41).await.unwrap();
    assert!(answer >= 42, "{answer}");
    let alive = Arc::new(());
    let work = locker.with("a", async |_| {
        let _alive = Arc::clone(&alive);
        std::future::pending::<()>().await
    });
    let error = work.await.unwrap_err();
    assert!(error.to_string().contains("it was not extended in time"), "{error}");
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[tokio::test]
async fn a_leaked_lease_stays_until_its_token_gives_it_back() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let leaked = locker.acquire("a").await.unwrap().leak();
    assert!(leaked.valid_for > Duration::from_secs(9));
    assert!(locker.extend_by_token("a", &leaked.token).await.unwrap() > Duration::from_secs(9));
    locker.settle().await;
    assert_eq!(leases(&nodes, "a"), 3);
    locker.release_by_token("a", &leaked.token).await.unwrap();
    assert_eq!(leases(&nodes, "a"), 0);
    let error = locker.release_by_token("a", &leaked.token).await.unwrap_err();
    assert!(matches!(error, ReleaseError::NotHeld(_)), "{error}");
}

#[tokio::test]
async fn a_release_ends_what_waits_for_the_loss() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let guard = locker.acquire("a").await.unwrap();
    let lost = tokio::spawn(guard.lost());
    guard.release().await.unwrap();
    assert_eq!(lost.await.unwrap(), Lost::Released);
}

#[test]
fn a_blocking_program_leaves_nothing_behind_when_it_ends() {
    let nodes = nodes(3);
    let locker = blocking::Locker::new(builder(&nodes)).unwrap();
    let guard = locker.acquire("a").unwrap();
    assert!(locker.try_acquire("a").is_err());
    assert_eq!(guard.fence().get(), 1);
    guard.release().unwrap();
    assert_eq!(locker.with("a", |guard| guard.fence().get()).unwrap(), 2);
    let guard = locker.acquire("a").unwrap();
    drop(locker);
    drop(guard);
    assert_eq!(leases(&nodes, "a"), 0);
}

/// Regression: work that had lost its lease in the meantime was reported as done under the lock.
#[tokio::test]
async fn work_that_blocks_beyond_its_lease_is_not_done_under_the_lock() {
    let nodes = nodes(1);
    let (locker, ttl) = (builder(&nodes), Duration::from_millis(200));
    let locker = locker.ttl(ttl).build().unwrap();
    let overslept = |fence: Fence| {
        // Blocks the thread that would renew and watch the lease.
        std::thread::sleep(ttl);
        fence
    };
    let lost = locker.with("a", async |fence| overslept(fence)).await.unwrap_err();
    assert!(matches!(lost, WithError::Lost { lost: Lost::Expired, .. }), "{lost}");
    assert!(lost.to_string().contains("was lost before the work was done"), "{lost}");
    assert!(locker.with("a", async |fence| fence.get()).await.is_ok());
    let blocking = blocking::Locker::new(builder(&nodes).ttl(ttl).renew(false)).unwrap();
    let lost = blocking.with("b", |guard| overslept(guard.fence())).unwrap_err();
    assert!(matches!(lost, WithError::Lost { lost: Lost::Expired, .. }), "{lost}");
    assert!(blocking.with("b", |guard| !guard.is_lost()).unwrap());
}

/// Regression: the error of work named no node.
#[tokio::test]
async fn work_whose_lease_expires_is_told_what_the_nodes_said() {
    let nodes = nodes(3);
    let millis = Duration::from_millis;
    let locker = builder(&nodes).ttl(millis(1_500)).timeout(millis(200)).build().unwrap();
    let work = async |_: Fence| {
        nodes[..2].iter().for_each(Server::pause);
        std::future::pending::<()>().await;
    };
    let lost = locker.with("a", work).await.unwrap_err();
    nodes[..2].iter().for_each(Server::resume);
    let WithError::Lost { lost: Lost::Expired, nodes: said, .. } = &lost else { panic!("{lost}") };
    assert_eq!((said.len(), &said[2].vote), (3, &Vote::Confirmed), "{lost}");
    assert!(lost.to_string().contains("it was not extended in time: 2 of 3 nodes "), "{lost}");
    let locker = builder(&nodes).ttl(millis(200)).renew(false).build().unwrap();
    let lost = locker.with("b", async |_| std::future::pending::<()>().await).await.unwrap_err();
    assert!(lost.to_string().ends_with(": it was not extended in time"), "{lost}");
}

/// Regression: a guard that was dropped there stayed held, and an acquire panicked.
#[tokio::test]
async fn a_blocking_locker_works_inside_of_a_runtime_too() {
    let nodes = nodes(3);
    let locker = blocking::Locker::new(builder(&nodes)).unwrap();
    // More often than a task may continue before it must yield.
    for _ in 0..200 {
        locker.acquire("a").unwrap().release().unwrap();
    }
    let guard = locker.acquire("a").unwrap();
    assert_eq!(leases(&nodes, "a"), 3);
    drop(locker);
    drop(guard);
    assert_eq!(leases(&nodes, "a"), 0);
    let locker = blocking::Locker::new(builder(&nodes)).unwrap();
    let (guard, held) = (locker.acquire("b").unwrap(), locker.survey(9));
    assert_eq!((held.locks.len(), locker.list().len()), (1, 3));
    assert!(locker.settle().iter().all(|report| report.vote == Vote::Confirmed));
    assert_eq!(locker.force_release("b").len(), 3);
    let gone = tokio::task::spawn_blocking(move || drop((locker, guard)));
    gone.await.unwrap();
}

/// Regression: the error blamed a slow network.
#[tokio::test]
async fn a_locker_whose_runtime_has_ended_says_so() {
    let nodes = nodes(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let entered = runtime.enter();
    let locker = builder(&nodes).build().unwrap();
    drop(entered);
    runtime.shutdown_background();
    until("it has ended", || {
        locker
            .clone()
            .try_acquire("a")
            .into_future()
            .now_or_never()
            .is_some_and(|result| result.is_err())
    })
    .await;
    let error = locker.acquire("a").await.unwrap_err();
    assert!(!error.is_retryable() && error.to_string().contains("runtime"), "{error}");
    assert!(!error.to_string().contains("slow"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_a_token_is_refused_here_and_not_by_the_nodes() {
    let nodes = nodes(1);
    let locker = locker(&nodes);
    for token in [&b""[..], &[7; 256]] {
        let refused = locker.release_by_token("a", token).await.unwrap_err();
        assert!(matches!(refused, ReleaseError::BadOption(_)), "{refused}");
        let refused = locker.extend_by_token("a", token).await.unwrap_err();
        assert!(matches!(refused, ExtendError::BadOption(_)), "{refused}");
    }
    // A node may be configured to allow as much.
    let long = locker.release_by_token("a", &[7; 65]).await.unwrap_err().to_string();
    assert!(long.contains("allowed: 1 to 64, see lockmod.max-token-bytes"), "{long}");
    let unknown = locker.release_by_token("a", &[7; 64]).await.unwrap_err();
    assert!(matches!(unknown, ReleaseError::NotHeld(_)), "{unknown}");
}

/// Regression: the locker's own default did not fit into the ttl of the call.
#[tokio::test]
async fn a_default_timeout_follows_the_ttl_of_a_call() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(Duration::from_secs(30)).build().unwrap();
    connected(&locker).await;
    let guard = locker.acquire("a").ttl(Duration::from_millis(150)).label("").await.unwrap();
    guard.extend_by(Duration::from_millis(600)).await.unwrap();
    guard.release().await.unwrap();
    for ttl in [Duration::ZERO, Duration::from_millis(19), Duration::MAX] {
        let refused = locker.acquire("a").ttl(ttl).await.unwrap_err();
        assert!(matches!(refused, AcquireError::BadOption(_)), "{refused}");
    }
    for max_hold in [Duration::ZERO, Duration::from_millis(1)] {
        let refused = locker.acquire("a").max_hold(max_hold).await.unwrap_err();
        assert!(matches!(refused, AcquireError::BadOption(_)), "{refused}");
    }
    let guard = locker.acquire("a").wait(Duration::MAX).max_hold(Duration::MAX).await.unwrap();
    guard.release().await.unwrap();
    // Regression: the sum with the timeout was too long for a Duration.
    for node in &nodes {
        let _: () = redis::cmd("SET").arg("text").arg(1).query(&mut node.connect()).unwrap();
    }
    let refused = locker.acquire("text").wait(Duration::MAX).await.unwrap_err();
    assert!(matches!(refused, AcquireError::Refused(_)), "{refused}");
}

/// Every call that asks for a lock takes the same options.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_acquire_takes_options_of_its_own() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let long = Duration::from_secs(20);
    let told = |label: &str| {
        let is = |node: &Server, name: &str| {
            is_text(info(node, name, "label").as_ref(), label)
                && matches!(info(node, name, "ttl_left_ms"), Some(Value::Int(11_000..)))
        };
        nodes.iter().filter(|node| is(node, "a")).count() >= 2
    };
    let guards = locker.acquire_many(["b", "a"]).ttl(long).label("many").await.unwrap();
    assert!(told("many"));
    let none = locker.acquire_many(["a"]).wait(Duration::ZERO).await;
    assert!(matches!(none, Err(AcquireError::Held(_))));
    guards.release().await.unwrap();
    let holder = locker.holder();
    let guard = holder.acquire("a").ttl(long).label("holder").await.unwrap();
    assert!(told("holder"));
    let share = holder.acquire("a").wait(Duration::ZERO).await.unwrap();
    assert_eq!(share.fence(), guard.fence());
    let work = locker.acquire("a").wait(Duration::ZERO).with(async |_| ()).await;
    assert!(matches!(work, Err(WithError::Acquire(AcquireError::Held(_)))));
    share.release().await.unwrap();
    guard.release().await.unwrap();
    let work = locker.acquire("a").ttl(long).label("with").with(async |_| told("with"));
    assert!(work.await.unwrap());
    let bad = locker.acquire_many(["a"]).ttl(Duration::from_millis(1)).await.unwrap_err();
    assert!(matches!(bad, AcquireError::BadOption(_)), "{bad}");
}

#[test]
fn a_blocking_program_has_the_same_options() {
    let nodes = nodes(3);
    let locker = blocking::Locker::new(builder(&nodes)).unwrap();
    let long = Duration::from_secs(20);
    let is_long = |guard: &blocking::Guard| guard.validity() > Duration::from_secs(11);
    let holder = locker.holder();
    let guard = holder.request("a").ttl(long).label("me").acquire().unwrap();
    assert!(is_long(&guard) && guard.name() == b"a");
    let share = holder.acquire("a").unwrap();
    assert_eq!(share.fence(), guard.fence());
    assert!(locker.request("a").wait(Duration::ZERO).with(|_| ()).is_err());
    let labels = locker.info("a").into_iter().filter_map(|node| node.info.ok()?.label);
    assert!(labels.filter(|label| label == "me").count() >= 2);
    assert_eq!(locker.fence("a").unwrap(), guard.fence());
    share.release().unwrap();
    let leaked = guard.leak();
    locker.extend_by_token("a", &leaked.token).unwrap();
    locker.release_by_token("a", &leaked.token).unwrap();
    let guards = locker.request_many(["b", "a"]).ttl(long).acquire().unwrap();
    let names: Vec<&[u8]> = guards.iter().map(blocking::Guard::name).collect();
    assert_eq!(names, [b"a", b"b"]);
    assert!(guards.iter().all(is_long));
    guards[0].extend_by(Duration::from_secs(30)).unwrap();
    assert!(guards[0].validity() > Duration::from_secs(21));
    assert!(locker.stats().acquired >= 3);
    drop((guards, holder, locker));
    assert_eq!(leases(&nodes, "a") + leases(&nodes, "b"), 0);
}

#[tokio::test]
async fn locks_are_listed_with_what_the_nodes_tell() {
    let nodes = nodes(3);
    let locker = builder(&nodes).label("me").build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    locker.acquire("b").await.unwrap().release().await.unwrap();
    locker.settle().await;
    for node in locker.list().await {
        let locks = node.locks.unwrap();
        assert_eq!(locks[&b"a"[..]].state, LockState::Held);
        assert_eq!(locks[&b"a"[..]].label.as_deref(), Some("me"));
        assert_eq!(locks[&b"b"[..]].state, LockState::Free);
    }
    guard.release().await.unwrap();
}

/// A server without the module does not know the type `fencelock`. Some servers then answer as they
/// do for a module without any keys: that there are none.
#[tokio::test]
async fn a_server_without_the_module_does_not_list_nothing() {
    let nodes = start_nodes(3, |i| match i {
        0 => Server::builder().without_module(),
        _ => Server::builder(),
    });
    let locker = builder(&nodes).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    locker.settle().await;
    let lists: Vec<_> = locker.list().await.into_iter().map(|node| node.locks).collect();
    assert!(matches!(lists[0], Err(Vote::ModuleMissing)), "{lists:?}");
    assert!(lists[1..].iter().all(|list| list.as_ref().is_ok_and(|locks| locks.len() == 1)));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_key_of_another_type_and_a_ttl_above_the_limit_are_refused_at_once() {
    let nodes = nodes(3);
    // The nodes' limit is a day, whatever the locker's limit is.
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let locker = builder(&nodes).max_ttl(days(3)).build().unwrap();
    for node in &nodes {
        node.run("SET a x").unwrap();
    }
    connected(&locker).await;
    let error = locker.acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::Refused(_)) && !error.is_retryable(), "{error}");
    assert!(error.nodes().iter().filter(|report| report.vote == Vote::WrongType).count() >= 2);
    let long = locker.acquire("b").ttl(days(2)).await.unwrap_err();
    assert!(long.to_string().contains("BADTTL"), "{long}");
    let longer = locker.acquire("b").ttl(days(4)).await.unwrap_err();
    assert!(matches!(longer, AcquireError::BadOption(_)), "{longer}");
}
