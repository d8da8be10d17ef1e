//! To the millisecond: what a guard promises, and what is sent for it. The nodes answer by a
//! script, on a clock that jumps.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockmod::client::packet::Packet;
use lockmod::client::{
    ExtendError, Locker, LockerBuilder, Lost, NoReply, NodeReport, ReplyTo, World,
};
use lockmod::wire::resp::{self, Reply};
use metrics_util::debugging::DebugValue;
use tokio::time::Instant;

use crate::millis;

/// A node's answer, and when it comes.
type Script = dyn Fn(usize, &str) -> (Duration, Result<Reply, NoReply>) + Send + Sync;

#[derive(Clone)]
struct Scripted {
    names: Vec<Arc<str>>,
    began_at: Instant,
    /// How many milliseconds passed while the machine slept, and the timers with it.
    slept: Arc<AtomicU64>,
    script: Arc<Script>,
    /// What was sent, when, and to whom.
    sent: Arc<Mutex<Vec<(Duration, usize, String)>>>,
    random: Arc<AtomicU8>,
}

impl World for Scripted {
    fn now(&self) -> Duration {
        self.began_at.elapsed() + millis(self.slept.load(Ordering::Relaxed))
    }

    fn sleep(&self, length: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(length))
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(self.random.fetch_add(1, Ordering::Relaxed));
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn nodes(&self) -> &[Arc<str>] {
        &self.names
    }

    fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
        let (args, _) = resp::unpack(packet.bytes()).unwrap().expect("a packet is a command");
        // Without key and token.
        let words = args.iter().enumerate().filter(|(at, _)| ![1, 2].contains(at));
        let words = words.map(|(_, arg)| String::from_utf8_lossy(arg).into_owned());
        let command = words.collect::<Vec<_>>().join(" ");
        let (delay, outcome) = (self.script)(node, &command);
        self.sent.lock().unwrap().push((self.now(), node, command));
        let Some(reply_to) = reply_to else { return };
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            reply_to.deliver(outcome);
        });
    }
}

impl Scripted {
    fn new(
        nodes: usize,
        script: impl Fn(usize, &str) -> (Duration, Result<Reply, NoReply>) + Send + Sync + 'static,
    ) -> Scripted {
        Scripted {
            names: (0..nodes).map(|node| format!("node-{node}").into()).collect(),
            began_at: Instant::now(),
            slept: Arc::default(),
            script: Arc::new(script),
            sent: Arc::default(),
            random: Arc::default(),
        }
    }

    fn sent(&self, command: &str) -> usize {
        self.sent.lock().unwrap().iter().filter(|(_, _, sent)| sent.starts_with(command)).count()
    }
}

/// Grants fence 1, extends and releases, each after this time.
fn willing(delay: Duration) -> impl Fn(usize, &str) -> (Duration, Result<Reply, NoReply>) {
    move |_, _| (delay, Ok(Reply::Integer(1)))
}

/// A ttl of 10 s: 102 ms of drift, reported as lost 1 s before its end.
fn ten_seconds() -> LockerBuilder {
    Locker::builder().ttl(Duration::from_secs(10)).timeout(millis(500))
}

const VALID: Duration = Duration::from_millis(10_000 - 102);

#[tokio::test(start_paused = true)]
async fn the_validity_counts_from_before_the_acquire_was_sent() {
    let locker = ten_seconds().build_in(Scripted::new(3, willing(millis(400)))).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    assert_eq!(guard.validity(), VALID - millis(400));
    let raising = |node: usize, command: &str| {
        let raised = command.strip_prefix("LOCK.FENCE ").map(|fence| fence.parse().unwrap());
        (millis(400), Ok(Reply::Integer(raised.unwrap_or(node as i64 + 1))))
    };
    let locker = ten_seconds().build_in(Scripted::new(3, raising)).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    assert!((2..=3).contains(&guard.fence().get()), "{}", guard.fence());
    assert_eq!(guard.validity(), VALID - millis(800), "after two round trips");
}

#[tokio::test(start_paused = true)]
async fn the_validity_counts_from_before_the_extension_was_sent() {
    let world = Scripted::new(3, willing(millis(400)));
    let locker = ten_seconds().renew(false).build_in(world).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    tokio::time::sleep(millis(5_000)).await;
    guard.extend().await.unwrap();
    assert_eq!(guard.validity(), VALID - millis(400));
}

/// It was tried again a ttl's third after the extension began.
#[tokio::test(start_paused = true)]
async fn an_extension_that_fails_as_the_renewal_was_due_is_tried_again_soon() {
    let began_at = Instant::now();
    let script = move |_, command: &str| {
        let is_away = command.starts_with("LOCK.EXTEND") && began_at.elapsed() < millis(3_600);
        (if is_away { millis(20_000) } else { Duration::ZERO }, Ok(Reply::Integer(1)))
    };
    let world = Scripted::new(3, script);
    let locker = ten_seconds().build_in(world.clone()).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    // A third of the ttl falls into the timeout.
    tokio::time::sleep(millis(3_100)).await;
    guard.extend().await.unwrap_err();
    assert_eq!(world.sent("LOCK.EXTEND"), 3);
    tokio::time::sleep(millis(1_000)).await;
    assert_eq!(world.sent("LOCK.EXTEND"), 6, "a twelfth of the ttl later");
    assert!(guard.validity() > millis(9_000), "{:?}", guard.validity());
}

/// The lease was lost although most of it was left.
#[tokio::test(start_paused = true)]
async fn a_machine_that_wakes_from_sleep_renews_what_is_due() {
    let world = Scripted::new(3, willing(Duration::ZERO));
    let locker = ten_seconds().build_in(world.clone()).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    tokio::time::sleep(millis(100)).await;
    world.slept.store(7_500, Ordering::Relaxed);
    tokio::time::sleep(millis(600)).await;
    assert_eq!(world.sent("LOCK.EXTEND"), 3);
    assert!(!guard.is_lost() && guard.validity() > millis(9_000), "{:?}", guard.validity());
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_the_margin_before_the_end_and_no_millisecond_later() {
    let world = Scripted::new(3, willing(Duration::ZERO));
    let locker = ten_seconds().renew(false).build_in(world.clone()).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let end = guard.validity();
    let lost = tokio::spawn(guard.lost());
    tokio::time::sleep(end - millis(1_001)).await;
    assert!(!guard.is_lost() && !lost.is_finished());
    let told_after = world.now();
    assert_eq!(lost.await.unwrap(), Lost::Expired);
    let late = world.now() - told_after;
    assert!(late <= millis(2), "told {late:?} later");
    assert!(guard.is_lost() && guard.validity() >= millis(999), "{:?}", guard.validity());
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lock_does_not_run_when_the_loss_is_due() {
    let world = Scripted::new(3, willing(Duration::ZERO));
    let locker = ten_seconds().renew(false).build_in(world.clone()).unwrap();
    let (began_at, mut ran_until) = (world.now(), Duration::ZERO);
    let work = async |_| {
        loop {
            ran_until = world.now();
            tokio::time::sleep(millis(1)).await;
        }
    };
    let error = locker.with("a", work).await.unwrap_err();
    assert!(error.to_string().contains("it was not extended in time"), "{error}");
    assert!(ran_until - began_at <= VALID - millis(1_000), "{ran_until:?}");
    assert!(ran_until - began_at >= VALID - millis(1_005), "{ran_until:?}");
}

#[tokio::test(start_paused = true)]
async fn the_time_to_hold_never_prolongs_a_validity() {
    let world = Scripted::new(3, willing(Duration::ZERO));
    let locker = ten_seconds().build_in(world).unwrap();
    let guard = locker.acquire("a").max_hold(Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(guard.validity(), VALID);
    let short = locker.acquire("b").max_hold(millis(4_000)).await.unwrap();
    assert_eq!(short.validity(), millis(4_000));
    let start = Instant::now();
    assert_eq!(short.lost().await, Lost::MaxHold);
    assert!(start.elapsed() <= millis(3_001), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_holder_takes_no_share_in_a_lease_that_is_lost() {
    let world = Scripted::new(3, willing(Duration::ZERO));
    let locker = ten_seconds().renew(false).build_in(world).unwrap();
    let holder = locker.holder();
    let lost = holder.acquire("a").await.unwrap();
    let share = holder.acquire("a").await.unwrap();
    assert_eq!(locker.stats().attempts, 1);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(lost.is_lost() && share.is_lost() && !lost.validity().is_zero(), "some time to stop");
    let fresh = holder.acquire("a").await.unwrap();
    assert_eq!(locker.stats().attempts, 2, "acquired anew");
    assert!(!fresh.is_lost());
}

/// A manual extension waits for a background renewal: answers to the first must not be taken for
/// answers to the second, which began later.
#[tokio::test(start_paused = true)]
async fn answers_to_one_round_of_extensions_do_not_count_for_the_next() {
    let rounds = AtomicU8::new(0);
    let script = move |_: usize, command: &str| {
        if !command.starts_with("LOCK.EXTEND") {
            return (Duration::ZERO, Ok(Reply::Integer(1)));
        }
        match rounds.fetch_add(1, Ordering::Relaxed) / 3 {
            0 => (millis(450), Ok(Reply::Integer(1))),
            _ => (millis(480), Err(NoReply::Unreachable("the connection broke".into()))),
        }
    };
    let locker = ten_seconds().build_in(Scripted::new(3, script)).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    // Renewed from 3.333 s to 3.783 s, and then extended.
    tokio::time::sleep(millis(3_500)).await;
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::NoQuorum(_)), "{error}");
    let left = VALID - millis(450 + 480);
    let validity = guard.validity();
    assert!(validity <= left && left - validity < millis(5), "of the first only: {validity:?}");
}

/// Regression: the error said only that all nodes had granted.
#[tokio::test(start_paused = true)]
async fn a_raise_that_fails_is_told_with_its_reason() {
    let script = |answer: fn() -> Result<Reply, NoReply>, delay: Duration| {
        move |node: usize, command: &str| match command.split(' ').next() {
            Some("LOCK.ACQUIRE") => (Duration::ZERO, Ok(Reply::Integer(node as i64 + 1))),
            Some("LOCK.FENCE" | "LOCK.INFO") if node < 2 => (delay, answer()),
            _ => (Duration::ZERO, Ok(Reply::Integer(1))),
        }
    };
    let full = || Ok(Reply::Error("STATEFILE the disk is full".into()));
    let world = Scripted::new(3, script(full, Duration::ZERO));
    let error = ten_seconds().build_in(world).unwrap().try_acquire("a").await.unwrap_err();
    assert!(error.to_string().contains("not serving (STATEFILE the disk is full)"), "{error}");
    let world = Scripted::new(3, script(full, Duration::from_secs(5)));
    let error = ten_seconds().build_in(world).unwrap().try_acquire("a").await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("timed out") && said.contains("each node had 500ms"), "{said}");
}

/// Regression: a listing never ended.
#[tokio::test(start_paused = true)]
async fn a_node_whose_scan_has_no_end_is_named() {
    for (next, delay) in [("-1", 0), ("x", 0), ("7", 0), ("", 100)] {
        let pages = AtomicU64::new(0);
        let script = move |_: usize, command: &str| {
            if !command.starts_with("SCAN") {
                let text = "lockmod_locks:5\r\nlockmod_held:5\r\nrole:master\r\n";
                return (Duration::ZERO, Ok(Reply::Text(text.as_bytes().into())));
            }
            let page = pages.fetch_add(1, Ordering::Relaxed) + 1;
            let cursor = if next.is_empty() { page.to_string() } else { next.to_owned() };
            let cursor = Reply::Text(cursor.into_bytes().into());
            (millis(delay), Ok(Reply::List(vec![cursor, Reply::List(vec![])])))
        };
        let locker = ten_seconds().build_in(Scripted::new(1, script)).unwrap();
        let survey = locker.survey(10).await;
        if next.is_empty() {
            assert_eq!(survey.given_up.len(), 1, "a page of nothing after the other");
        } else {
            let vote = survey.nodes[0].status.as_ref().unwrap_err().to_string();
            assert!(vote.contains(&format!("its SCAN goes on at '{next}'")), "{vote}");
        }
        let listed = locker.list().await;
        assert_eq!(listed[0].locks.is_ok(), next.is_empty(), "{listed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_raise_that_finds_more_than_was_asked_for_does_not_count() {
    // The second node grants 5; meanwhile the first has granted 7 to another client.
    let script = |node: usize, command: &str| {
        let reply = match (node, command.split(' ').next()) {
            (0, Some("LOCK.ACQUIRE")) => 1,
            (1, Some("LOCK.ACQUIRE")) => 5,
            (0, Some("LOCK.FENCE")) => 7,
            _ => return (Duration::ZERO, Err(NoReply::Unreachable("away".into()))),
        };
        (Duration::ZERO, Ok(Reply::Integer(reply)))
    };
    let world = Scripted::new(3, script);
    let locker = ten_seconds().build_in(world.clone()).unwrap();
    assert!(locker.try_acquire("a").await.is_err());
    assert_eq!((world.sent("LOCK.FENCE"), world.sent("LOCK.RELEASE")), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn all_nodes_that_answer_a_lost_attempt_are_counted() {
    let script = |node: usize, _: &str| match node {
        0 => (Duration::ZERO, Err(NoReply::Unreachable("away".into()))),
        _ => (millis(1), Ok(Reply::Nil)),
    };
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let build = || ten_seconds().build_in(Scripted::new(3, script)).unwrap();
    let locker = metrics::with_local_recorder(&recorder, build);
    assert!(locker.try_acquire("a").await.is_err());
    let labels: Vec<String> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(_, _, _, value)| *value == DebugValue::Counter(1))
        .flat_map(|(key, ..)| key.key().labels().map(|l| l.value().to_owned()).collect::<Vec<_>>())
        .collect();
    let votes = ["node-0", "unreachable", "node-1", "held", "node-2", "held"];
    assert_eq!((labels[0].as_str(), &labels[1..]), ("held", &votes.map(str::to_owned)[..]));
}

fn words(reports: &[NodeReport]) -> Vec<&'static str> {
    reports.iter().map(|report| report.vote.word()).collect()
}

/// It was `granted` or `free`, by chance: the attempt did not wait for the answer, and the question
/// about the lock came after its release.
#[tokio::test(start_paused = true)]
async fn the_vote_of_a_node_that_grants_late_is_the_grant() {
    let script = |node: usize, command: &str| match (node, command.split(' ').next()) {
        (2, Some("LOCK.ACQUIRE")) => (millis(50), Ok(Reply::Integer(1))),
        (_, Some("LOCK.INFO")) => (millis(60), Err(NoReply::Unreachable("away".into()))),
        _ => (Duration::ZERO, Ok(Reply::Nil)),
    };
    let locker = ten_seconds().build_in(Scripted::new(3, script)).unwrap();
    let error = locker.try_acquire("a").await.unwrap_err();
    assert_eq!(words(error.nodes()), ["held", "held", "granted"]);
}

/// The error of a lock that was removed named no node.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_removed_has_the_votes_of_the_extension_that_showed_it() {
    let script = |node: usize, command: &str| match (node, command.split(' ').next()) {
        (2, Some("LOCK.EXTEND")) => (millis(100), Ok(Reply::Nil)),
        (_, Some("LOCK.EXTEND")) => (millis(u64::from(node == 1)), Ok(Reply::Nil)),
        _ => (Duration::ZERO, Ok(Reply::Integer(1))),
    };
    let world = Scripted::new(3, script);
    let locker = ten_seconds().renew(false).build_in(world.clone()).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let before = world.now();
    assert!(matches!(guard.extend().await, Err(ExtendError::Lost(Lost::Removed))));
    assert!(world.now() - before < millis(10), "two nodes have decided");
    assert_eq!(words(&guard.unconfirmed()), ["not_held", "not_held", "timed_out"]);
    tokio::time::sleep(millis(200)).await;
    assert_eq!(words(&guard.unconfirmed()), ["not_held"; 3]);
}

/// Regression: a manual extension dropped the answers after the quorum: six of them left a node
/// free.
#[tokio::test(start_paused = true)]
async fn an_extension_by_hand_repairs_a_node_that_answers_late_and_does_not_wait_for_it() {
    let script = |node: usize, command: &str| match (node, command.split(' ').next()) {
        (2, Some("LOCK.EXTEND")) if !command.contains("FENCE") || !command.contains("REPAIR") => {
            (millis(100), Ok(Reply::Nil))
        }
        _ => (Duration::ZERO, Ok(Reply::Integer(1))),
    };
    let world = Scripted::new(3, script);
    let locker = ten_seconds().renew(false).build_in(world.clone()).unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let before = world.now();
    guard.extend().await.unwrap();
    assert!(world.now() - before < millis(5), "the quorum has confirmed");
    tokio::time::sleep(millis(200)).await;
    let repaired = |node: usize| {
        let sent = world.sent.lock().unwrap();
        sent.iter().filter(|(_, to, sent)| *to == node && sent.ends_with("REPAIR")).count()
    };
    assert_eq!([repaired(0), repaired(1), repaired(2)], [0, 0, 1]);
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    tokio::time::sleep(millis(200)).await;
    assert_eq!(repaired(2), 1, "nothing behind the release");
}
