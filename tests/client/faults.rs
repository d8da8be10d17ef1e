//! Nodes that are killed, hung, cut off, misbehaving, or not what they should be.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockmod::client::{AcquireError, Locker, LockerBuilder, NodeReport, Vote};

use crate::cli::{lockmod, start, text};
use crate::common::{Flow, PATIENCE, Proxy, Server, start_nodes};
use crate::{
    builder, command_count, connected, info, is_held, is_renewed, leases, locker, millis, nodes,
    refused, until,
};

async fn works(locker: &Locker) {
    let guard = locker.acquire("a").await.unwrap();
    guard.release().await.unwrap();
}

fn proxied(proxies: &[Proxy]) -> LockerBuilder {
    Locker::builder().nodes(proxies.iter().map(Proxy::url)).ttl(Duration::from_secs(10))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_survives_two_killed_nodes_of_five_and_refuses_with_three() {
    let mut nodes = nodes(5);
    let locker = locker(&nodes);
    connected(&locker).await;
    for node in &mut nodes[..2] {
        works(&locker).await;
        node.kill();
    }
    works(&locker).await;
    nodes[2].kill();
    let error = locker.try_acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)) && error.is_retryable(), "{error}");
    // The last one may have another reason: its connection was reset.
    let is_down = |report: &&NodeReport| matches!(report.vote, Vote::Unreachable(_));
    assert_eq!(error.nodes().iter().filter(is_down).count(), 3, "{error}");
    for node in &mut nodes[..3] {
        node.start_again();
    }
    works(&locker).await;
}

/// Regression: with a minority that refused connections, a lock held by a quorum was "no quorum".
/// The refusals came first, and the verdict was based on the votes so far.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_quorum_holds_is_not_free_although_others_are_down() {
    for (count, down) in [(3, 1), (5, 2)] {
        let mut nodes = nodes(count);
        let holder = builder(&nodes).label("worker-7").build().unwrap();
        let guard = holder.acquire("a").await.unwrap();
        until("all hold it", || leases(&nodes, "a") == count).await;
        nodes[..down].iter_mut().for_each(Server::kill);
        let locker = locker(&nodes);
        until_down(&locker, down).await;
        for _ in 0..20 {
            let error = locker.try_acquire("a").await.unwrap_err();
            assert!(matches!(error, AcquireError::Held(_)), "{error}");
            assert!(error.to_string().contains("for worker-7"), "{error}");
        }
        let error = locker.acquire("a").wait(millis(300)).await.unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
        drop(guard);
        for node in &nodes[down..] {
            node.run("DEL a").unwrap();
            node.run("SET a x").unwrap();
        }
        let start = Instant::now();
        let error = locker.acquire("a").wait(Duration::from_secs(60)).await.unwrap_err();
        assert!(matches!(error, AcquireError::Refused(_)), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20), "a wait that cannot help");
    }
}

/// The first nodes refuse connections, and the locker has noticed.
async fn until_down(locker: &Locker, count: usize) {
    let start = Instant::now();
    loop {
        let reports = locker.settle().await;
        let is_down = |vote: &Vote| matches!(vote, Vote::Unreachable(_));
        let answers = reports[count..].iter().all(|report| report.vote == Vote::Confirmed);
        if answers && reports[..count].iter().all(|report| is_down(&report.vote)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{reports:?}");
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

async fn time_acquires(locker: &Locker) -> Duration {
    let mut times = Vec::new();
    for _ in 0..300 {
        let start = Instant::now();
        let guard = locker.acquire("a").await.unwrap();
        times.push(start.elapsed());
        guard.release().await.unwrap();
    }
    median(times)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hung_nodes_of_five_do_not_slow_an_acquire() {
    let nodes = nodes(5);
    let locker = locker(&nodes);
    connected(&locker).await;
    let healthy = time_acquires(&locker).await;
    nodes[0].pause();
    nodes[3].pause();
    works(&locker).await;
    let hung = time_acquires(&locker).await;
    println!("median acquire: {healthy:?} with five nodes, {hung:?} with two of them hung");
    assert!(hung < healthy.mul_f64(1.3) + millis(1), "{healthy:?} became {hung:?}");
    nodes[0].resume();
    nodes[3].resume();
    until("what the hung nodes were told is done", || leases(&nodes, "a") == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_on_a_node_that_was_hung_during_a_lost_attempt() {
    let nodes = nodes(3);
    let locker = builder(&nodes).ttl(Duration::from_secs(60)).timeout(millis(50)).build().unwrap();
    connected(&locker).await;
    nodes[0].pause();
    nodes[1].pause();
    let error = locker.try_acquire("a").await.unwrap_err();
    assert!(error.nodes().iter().filter(|r| r.vote == Vote::TimedOut).count() >= 2, "{error}");
    // After 2 s one that is connected again was called unreachable, and the other was not.
    let late = builder(&nodes).timeout(millis(50)).wait(millis(2_500)).build().unwrap();
    let error = late.acquire("a").await.unwrap_err();
    let hung = |report: &NodeReport| report.vote == Vote::TimedOut;
    assert!(error.nodes()[..2].iter().all(hung), "{error}");
    nodes[0].resume();
    nodes[1].resume();
    connected(&locker).await;
    assert_eq!(leases(&nodes, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_resets_leave_nothing_behind() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let locker =
        proxied(&proxies).ttl(Duration::from_secs(60)).timeout(millis(100)).build().unwrap();
    connected(&locker).await;
    for round in 0..30 {
        // Replies are lost with the connection: the client does not learn that it was granted.
        proxies[round % 3].set_replies(Flow::Hold);
        let guard = locker.acquire("a").await.unwrap();
        proxies[round % 3].cut();
        proxies[(round + 1) % 3].cut();
        proxies[round % 3].set_replies(Flow::Pass);
        drop(guard.release().await);
        connected(&locker).await;
        assert_eq!(leases(&nodes, "a"), 0, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_grant_of_a_lost_attempt_is_taken_back() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let locker =
        proxied(&proxies).ttl(Duration::from_secs(60)).timeout(millis(50)).build().unwrap();
    connected(&locker).await;
    for proxy in &proxies[..2] {
        proxy.set_requests(Flow::Hold);
    }
    let error = locker.try_acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    for proxy in &proxies[..2] {
        proxy.set_requests(Flow::Pass);
    }
    connected(&locker).await;
    assert_eq!(leases(&nodes, "a"), 0);
    assert_eq!(locker.fence("a").await.unwrap().get(), 1, "they did grant, late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_busy_node_puts_off_is_carried_out_when_it_is_free_again() {
    puts_off(false).await;
}

/// Regression: the connection ended with the locker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_put_off_is_carried_out_although_its_locker_is_gone() {
    puts_off(true).await;
}

async fn puts_off(is_dropped: bool) {
    let node = Server::builder().config("busy-reply-threshold", 10).start();
    let locker = Locker::builder().nodes([node.url()]).ttl(Duration::from_secs(600)).build();
    let locker = locker.unwrap();
    let guard = locker.acquire("a").await.unwrap();
    let mut script = node.connect_raw();
    script.send(&["EVAL", "while true do end", "0"]);
    let mut conn = node.connect_raw();
    until("the node is busy", || conn.run("PING").starts_with(b"-BUSY ")).await;
    let error = guard.release().await.unwrap_err().to_string();
    assert!(error.contains("BUSY"), "{error}");
    let locker = Some(locker).filter(|_| !is_dropped);
    assert_eq!(conn.run("SCRIPT KILL"), b"+OK\r\n");
    until("nobody holds the lock", || leases(std::slice::from_ref(&node), "a") == 0).await;
    drop(locker);
}

/// Regression: releases beyond 4096 in the queue were dropped for a node that hung: hundreds of
/// leases stood for a whole ttl after it resumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_release_is_dropped_for_a_node_that_hangs() {
    let nodes = start_nodes(3, |_| Server::builder());
    let locker = builder(&nodes).ttl(Duration::from_secs(600)).timeout(millis(2_000));
    let locker = locker.build().unwrap();
    connected(&locker).await;
    nodes[2].pause();
    // Long names fill the node's socket: it has read acquires whose releases are not written yet.
    let names: Vec<String> = (0..400).map(|task| format!("{task}{}", "-".repeat(2_000))).collect();
    for _ in 0..12 {
        let acquire = |name| tokio::spawn(locker.acquire(name).into_future());
        let acquires: Vec<_> = names.iter().map(acquire).collect();
        let mut guards = Vec::new();
        for acquire in acquires {
            guards.push(acquire.await.unwrap().unwrap());
        }
        drop(guards);
    }
    // Its connection is given up after four timeouts. No vote tells.
    let start = Instant::now();
    while start.elapsed() < millis(8_500) {
        assert_eq!(locker.settle().await[2].vote, Vote::TimedOut);
    }
    nodes[2].resume();
    connected(&locker).await;
    until("nothing is left", || nodes[2].info("lockmod_held").unwrap() == "0").await;
}

/// Regression: a release that was refused for lack of replicas was given up: the lease stood for a
/// whole ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_node_may_not_write_is_carried_out_when_it_may() {
    let nodes = nodes(1);
    let locker = builder(&nodes).ttl(Duration::from_secs(600)).build().unwrap();
    let guard = locker.acquire("a").await.unwrap();
    nodes[0].run("CONFIG SET min-replicas-to-write 1").unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("1 of 1 node not serving (NOREPLICAS"), "{error}");
    assert_eq!(leases(&nodes, "a"), 1);
    nodes[0].run("CONFIG SET min-replicas-to-write 0").unwrap();
    until("nobody holds the lock", || leases(&nodes, "a") == 0).await;
}

/// Regression: a quorum of READONLY counted as a final refusal, in the middle of a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_outlasts_a_failover() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    connected(&locker).await;
    for node in &nodes {
        // To a master that does not exist.
        node.run("REPLICAOF 127.0.0.1 1").unwrap();
    }
    let error = locker.try_acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)) && error.is_retryable(), "{error}");
    assert!(error.to_string().contains("not serving (READONLY"), "{error}");
    let attempts = locker.stats().attempts;
    let waiting = tokio::spawn(locker.acquire("a").wait(Duration::from_secs(60)).into_future());
    until("it has tried", || locker.stats().attempts > attempts).await;
    for node in &nodes {
        node.run("REPLICAOF NO ONE").unwrap();
        node.run("CONFIG SET lockmod.quarantine no").unwrap();
    }
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_garbage_has_no_vote() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let locker = proxied(&proxies).build().unwrap();
    connected(&locker).await;
    proxies[0].set_replies(Flow::Garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()));
    for _ in 0..20 {
        works(&locker).await;
    }
    proxies[1].set_replies(Flow::Garbage(b":-5\r\n".to_vec()));
    let error = locker.try_acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    proxies[0].set_replies(Flow::Pass);
    proxies[1].set_replies(Flow::Pass);
    proxies.iter().for_each(Proxy::cut);
    connected(&locker).await;
    works(&locker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_without_the_module_or_with_a_password_are_named() {
    let bare = start_nodes(2, |_| Server::builder().without_module());
    let good = nodes(1);
    let urls = [bare[0].url(), good[0].url(), bare[1].url()];
    let locker = Locker::builder().nodes(urls).build().unwrap();
    connected(&locker).await;
    let error = locker.acquire("a").await.unwrap_err();
    assert!(matches!(error, AcquireError::Refused(_)), "{error}");
    assert!(error.to_string().contains("2 of 3 nodes without the module"), "{error}");

    let secret = start_nodes(3, |_| Server::builder().password("secret"));
    let urls = secret.iter().map(|node| format!("redis://127.0.0.1:{}", node.port()));
    let locker = Locker::builder().nodes(urls).build().unwrap();
    let error = locker.acquire("a").await.unwrap_err();
    assert!(error.to_string().contains("denied access (NOAUTH"), "{error}");
    // A password that is not needed.
    let unneeded = good[0].url().replace("//", "//:secret@");
    let error = refused(Locker::builder().node(unneeded)).await.to_string();
    assert!(error.contains("the server has none: remove it from the URL"), "{error}");
    works(&builder(&secret).build().unwrap()).await;
    works(&Locker::builder().nodes(secret.iter().map(Server::unix_url)).build().unwrap()).await;
}

/// Regression: connecting had twice the time of one answer, but takes several round trips: a locker
/// with a short timeout never reached a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_network_works_with_a_short_ttl_or_the_error_says_what_to_set() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    proxies.iter().for_each(|proxy| proxy.set_replies(Flow::Delay(millis(300))));
    let ttl = |ttl| proxied(&proxies).ttl(millis(ttl)).wait(Duration::from_secs(30));
    let locker = ttl(4_000).timeout(millis(400)).build().unwrap();
    works(&locker).await;
    let locker = ttl(2_000).wait(millis(1_500)).build().unwrap();
    let error = locker.acquire("a").await.unwrap_err().to_string();
    assert!(error.contains("each node had 100ms to answer: a slow network needs"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_replies_do_not_spoil_the_next_attempts() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let locker = proxied(&proxies).timeout(millis(400)).build().unwrap();
    connected(&locker).await;
    for proxy in &proxies {
        proxy.set_replies(Flow::Delay(millis(600)));
    }
    let error = locker.try_acquire("a").await.unwrap_err();
    assert!(error.to_string().contains("3 of 3 nodes timed out"), "{error}");
    for proxy in &proxies {
        proxy.set_replies(Flow::Pass);
    }
    for fence in 2..20 {
        let guard = locker.acquire("a").await.unwrap();
        assert!(guard.fence().get() >= fence);
        guard.release().await.unwrap();
    }
    locker.settle().await;
    assert_eq!(leases(&nodes, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_under_two_names_has_one_vote() {
    let nodes = nodes(2);
    let urls = [nodes[0].url(), nodes[0].unix_url(), nodes[1].url()];
    let locker = Locker::builder().nodes(urls).build().unwrap();
    works(&locker).await;
    nodes[1].pause();
    let error = locker.acquire("a").wait(millis(600)).await.unwrap_err();
    assert!(error.to_string().contains("the same server as "), "{error}");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "one of the three is only slow: {error}");
    nodes[1].resume();
    // No retry can give a quorum here, so none is made. This was an error that asked for one.
    let twice = [nodes[0].url(), nodes[0].unix_url()];
    let twice = Locker::builder().nodes(twice).allow_even_nodes().wait(PATIENCE).build().unwrap();
    let start = Instant::now();
    let error = twice.acquire("b").await.unwrap_err();
    assert!(matches!(error, AcquireError::Refused(_)) && !error.is_retryable(), "{error}");
    // Either may have connected first.
    let later = error.nodes()[1].node.clone();
    assert!(error.to_string().contains(&format!(": remove {later}")), "{error}");
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// Regression: an address led to the server of another, whose connection had broken: the server
/// answered the same request twice, and two clients had the lock with the same fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_has_one_vote_though_its_first_connection_is_broken() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = [0, 0, 2].map(|node: usize| Proxy::to(&nodes[node])).into();
    let settings =
        || proxied(&proxies).ttl(Duration::from_secs(30)).timeout(Duration::from_secs(5));
    let swap = || {
        proxies[0].set_refuses(true);
        proxies[0].cut();
        proxies[1].set_requests(Flow::Pass);
    };
    let told = "the same server as ";
    proxies[2].set_refuses(true);
    // The first answer may be cut off too; then the second is the server's only one.
    let mut has_told = false;
    for round in 0..50 {
        // At first, only the first address leads to a server.
        proxies[0].set_refuses(false);
        proxies[1].set_requests(Flow::Hold);
        proxies[1].cut();
        let (locker, name) = (settings().build().unwrap(), format!("a-{round}"));
        let asking = tokio::spawn(locker.try_acquire(&name).into_future());
        until("it is granted once", || is_held(&nodes[0], &name)).await;
        swap();
        let error = asking.await.unwrap().unwrap_err().to_string();
        has_told |= error.contains(told);
        if has_told {
            break;
        }
    }
    assert!(has_told);

    // The same with an extension: the lease is good, and then an address leads elsewhere.
    proxies[0].set_refuses(false);
    proxies[1].set_target(nodes[1].port());
    let locker = settings().renew(false).build().unwrap();
    let guard = locker.acquire("b").await.unwrap();
    proxies[1].set_requests(Flow::Hold);
    proxies[1].set_target(nodes[0].port());
    let before = guard.validity();
    let extending = async {
        until("it is extended once", || is_renewed(&nodes[0])).await;
        swap();
    };
    let (extended, ()) = tokio::join!(guard.extend(), extending);
    assert!(extended.is_err());
    assert!(guard.validity() <= before);
}

/// Regression: `run` ended at the first refusal, and the lock stayed held for its ttl because a
/// server was restarted just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_its_release_to_a_node_that_is_back_soon() {
    for count in [1, 3] {
        let nodes = nodes(count);
        let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let mut command = lockmod(&[], &["run", "a", "--ttl", "10m", "--", "cat"]);
        command.env("LOCKMOD_NODES", urls.join(",")).stdin(Stdio::piped());
        let mut run = start(command);
        until("it is held", || leases(&nodes, "a") == count).await;
        proxies[0].set_refuses(true);
        proxies[0].cut();
        drop(run.stdin.take());
        let ended_at = Instant::now();
        until("the others are told", || leases(&nodes[1..], "a") == 0).await;
        until("it has been refused", || ended_at.elapsed() > Duration::from_millis(700)).await;
        assert_eq!(leases(&nodes, "a"), 1, "one of {count}");
        proxies[0].set_refuses(false);
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(leases(&nodes, "a"), 0, "of {count}");
    }
}

/// Regression: `run` ended at once, and the lock stayed held for its ttl because a script ran just
/// then, or a server of a Cluster had just been restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_its_release_to_a_node_that_refuses_for_a_moment() {
    for count in [1, 3] {
        let nodes = nodes(count);
        nodes[0].run("CONFIG SET busy-reply-threshold 10").unwrap();
        let mut command = lockmod(&nodes, &["run", "a", "--ttl", "10m", "--", "cat"]);
        command.stdin(Stdio::piped());
        let mut run = start(command);
        until("it is held", || leases(&nodes, "a") == count).await;
        let url = nodes[0].url();
        let script = std::thread::spawn(move || {
            let mut conn = redis::Client::open(url).unwrap().get_connection().unwrap();
            redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut conn)
        });
        let is_busy =
            || nodes[0].run("GET x").is_err_and(|error| error.to_string().contains("BUSY"));
        until("the node is busy", is_busy).await;
        drop(run.stdin.take());
        let ended_at = Instant::now();
        until("the others are told", || leases(&nodes[1..], "a") == 0).await;
        until("it has been refused", || ended_at.elapsed() > Duration::from_millis(700)).await;
        nodes[0].run("SCRIPT KILL").unwrap();
        assert!(script.join().unwrap().is_err(), "it was killed");
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(leases(&nodes, "a"), 0, "of {count}");
    }
}

/// Regression: `run` did not wait for an answer, and the server dropped the release with the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_its_release_to_a_node_whose_writes_are_paused() {
    let nodes = nodes(1);
    let mut command = lockmod(&nodes, &["run", "a", "--ttl", "10m", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut run = start(command);
    until("it is held", || leases(&nodes, "a") == 1).await;
    nodes[0].run("CLIENT PAUSE 60000 WRITE").unwrap();
    drop(run.stdin.take());
    let ended_at = Instant::now();
    until("it has timed out", || ended_at.elapsed() > Duration::from_millis(1800)).await;
    nodes[0].run("CLIENT UNPAUSE").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(leases(&nodes, "a"), 0);
}

/// Regression: a release that was refused at first counted as done when it was no longer owed,
/// whatever the node had answered in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_refused_at_first_is_reported_as_it_ends() {
    let nodes = nodes(1);
    let refuse = |is_on: u8| {
        nodes[0].run(&format!("CONFIG SET min-replicas-to-write {is_on}")).unwrap();
    };
    let refused = || refused_calls(&nodes[0], "LOCK.RELEASE");
    nodes[0].run("LOCK.ACQUIRE a other 600000").unwrap();
    refuse(1);
    let release = start(lockmod(&nodes, &["release", "a", &"00".repeat(20)]));
    until("it is refused", || refused() > 0).await;
    refuse(0);
    let output = release.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(122), "{output:?}");
    assert!(output.stdout.is_empty() && leases(&nodes, "a") == 1, "{output:?}");

    let mut command = lockmod(&nodes, &["run", "b", "--ttl", "10m", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut run = start(command);
    until("it is held", || leases(&nodes, "b") == 1).await;
    nodes[0].run("DEL b").unwrap();
    nodes[0].run("LOCK.ACQUIRE b other 600000").unwrap();
    refuse(1);
    let before = refused();
    drop(run.stdin.take());
    until("it is refused", || refused() > before).await;
    refuse(0);
    let output = run.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("had ended before it was released"), "{said}");
    assert_eq!(leases(&nodes, "b"), 1);
}

/// Regression: a lease of another at one node ended the wait for the others, so that one missed
/// release led to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_waited_for_although_another_has_the_lock_at_one_node() {
    let nodes = nodes(3);
    nodes[0].run("LOCK.ACQUIRE a stale 600000").unwrap();
    let mut command = lockmod(&nodes, &["run", "a", "--ttl", "10m", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut run = start(command);
    until("it is held", || leases(&nodes[1..], "a") == 2).await;
    let refuse = |is_on: u8| {
        let command = format!("CONFIG SET min-replicas-to-write {is_on}");
        nodes[1..].iter().for_each(|node| drop(node.run(&command).unwrap()));
    };
    refuse(1);
    drop(run.stdin.take());
    let is_refused = |node| refused_calls(node, "LOCK.RELEASE") > 0;
    until("both have refused it", || nodes[1..].iter().all(is_refused)).await;
    let refused_at = Instant::now();
    until("a moment has passed", || refused_at.elapsed() > Duration::from_millis(300)).await;
    refuse(0);
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!([leases(&nodes[..1], "a"), leases(&nodes[1..], "a")], [1, 0]);
}

/// Regression: the release was sent again, and its own effect was taken for the loss of the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_is_no_loss() {
    for has_waiter in [false, true] {
        let nodes = nodes(1);
        let proxy = Proxy::to(&nodes[0]);
        let job = |urls: String| {
            let mut command = lockmod(&[], &["run", "a", "--ttl", "10m", "--", "cat"]);
            command.env("LOCKMOD_NODES", urls).stdin(Stdio::piped());
            start(command)
        };
        let mut run = job(proxy.url());
        until("it is held", || leases(&nodes, "a") == 1).await;
        let waiting = || info(&nodes[0], "a", "waiters") == Some(redis::Value::Int(1));
        let waiter = has_waiter.then(|| job(nodes[0].url()));
        until("the other waits", || waiting() == has_waiter).await;
        proxy.set_replies(Flow::Discard);
        drop(run.stdin.take());
        let is_released = || leases(&nodes, "a") == 0 || has_waiter && !waiting();
        until("it is released", is_released).await;
        proxy.set_replies(Flow::Pass);
        proxy.cut();
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{has_waiter}: {output:?}");
        if let Some(mut waiter) = waiter {
            assert_eq!(leases(&nodes, "a"), 1, "it is the other's by now");
            drop(waiter.stdin.take());
            assert!(waiter.wait().unwrap().success());
        }
    }
}

/// Regression: a node that was restarted just after it had granted kept the lease for its ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_takes_back_what_a_node_granted_that_is_back_soon() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    proxies[1..].iter().for_each(|proxy| proxy.set_replies(Flow::Hold));
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let mut command = lockmod(&[], &["acquire", "a", "--ttl", "10m", "--timeout", "1s"]);
    command.env("LOCKMOD_NODES", urls.join(","));
    let acquire = start(command);
    until("it is granted", || leases(&nodes[..1], "a") == 1).await;
    proxies[0].set_refuses(true);
    proxies[0].cut();
    let cut_at = Instant::now();
    let longer = Duration::from_millis(2300);
    until("the others have timed out, and then it", || cut_at.elapsed() > longer).await;
    assert_eq!(leases(&nodes[..1], "a"), 1);
    proxies[0].set_refuses(false);
    let output = acquire.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(121), "{output:?}");
    assert_eq!(leases(&nodes[..1], "a"), 0);
}

/// Regression: a process ended with its release at the quorum, and left the lease on a node that
/// became reachable again at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_cut_off_is_carried_out_before_the_end() {
    let nodes = nodes(3);
    let proxies: Vec<Proxy> = nodes.iter().map(Proxy::to).collect();
    let locker = proxied(&proxies).timeout(Duration::from_secs(1)).build().unwrap();
    connected(&locker).await;
    for is_up in [true, false] {
        let guard = locker.acquire("a").await.unwrap();
        until("all have granted", || leases(&nodes, "a") == 3).await;
        proxies[0].set_requests(Flow::Hold);
        guard.release().await.unwrap();
        assert!(is_held(&nodes[0], "a") && locker.owing().len() == 1);
        proxies[0].set_refuses(!is_up);
        proxies[0].cut();
        proxies[0].set_requests(Flow::Pass);
        locker.settle().await;
        assert_eq!((is_held(&nodes[0], "a"), locker.owing().is_empty()), (!is_up, is_up));
    }
    proxies[0].set_refuses(false);
    until("it is told at last", || !is_held(&nodes[0], "a")).await;
    // The same by its token.
    let leaked = locker.acquire("a").await.unwrap().leak();
    until("all have granted", || leases(&nodes, "a") == 3).await;
    proxies[0].set_requests(Flow::Hold);
    let releasing = locker.release_by_token("a", &leaked.token);
    let cutting = async {
        until("the others are told", || leases(&nodes, "a") == 1).await;
        proxies[0].cut();
        proxies[0].set_requests(Flow::Pass);
    };
    let (released, ()) = tokio::join!(releasing, cutting);
    released.unwrap();
    assert_eq!(leases(&nodes, "a"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_forgot_are_in_quarantine_and_a_holder_joins_them_again() {
    let mut nodes = start_nodes(3, |_| Server::builder().config("save", "\"\""));
    let locker = builder(&nodes).ttl(Duration::from_secs(3)).build().unwrap();
    connected(&locker).await;
    let guard = locker.acquire("a").await.unwrap();
    locker.settle().await;
    nodes[1].kill();
    nodes[1].start_again();
    until("the holder is there again", || crate::is_held(&nodes[1], "a")).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    nodes[0].kill();
    nodes[0].start_again();
    connected(&locker).await;
    let error = locker.try_acquire("b").await.unwrap_err();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("2 of 3 nodes in quarantine (for "), "{error}");
}

/// A certificate authority, and a certificate that it issued for the node.
pub(crate) fn certificates(dir: &std::path::Path) -> (String, [std::path::PathBuf; 3]) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, "node");
    let node = params.signed_by(&key, &issuer).unwrap();
    let texts =
        [("ca.pem", ca.clone()), ("node.pem", node.pem()), ("key.pem", key.serialize_pem())];
    let paths = texts.map(|(name, text)| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    (ca, paths)
}

/// A node that is reached over TLS, and requires certificates of the authority.
pub(crate) fn encrypted_node(files: &[std::path::PathBuf; 3]) -> (Server, String) {
    let server = Server::builder().encrypted(files).start();
    let url = format!("rediss://127.0.0.1:{}", server.tls_port());
    (server, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_given_as_files_or_as_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, paths) = certificates(dir.path());
    let (_node, url) = encrypted_node(&paths);
    let [ca_path, node_path, key_path] = &paths;
    let files = Locker::builder().node(url.clone()).cacert(ca_path).cert(node_path).key(key_path);
    works(&files.build().unwrap()).await;
    let (chain, key) = (std::fs::read(node_path).unwrap(), std::fs::read(key_path).unwrap());
    let bytes = Locker::builder().node(url).root_certificates(ca).client_certificate(chain, key);
    works(&bytes.build().unwrap()).await;
}

/// Regression: a node that refused a certificate, or whose own certificate was refused, was waited
/// for like an unreachable one: ten seconds, and then "no quorum".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_handshake_is_an_answer_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_, paths) = certificates(dir.path());
    let (_node, url) = encrypted_node(&paths);
    let [ca, cert, key] = &paths;
    let elsewhere = tempfile::tempdir().unwrap();
    let (_, [other_ca, other_cert, other_key]) = certificates(elsewhere.path());
    let builder = || Locker::builder().node(url.clone()).wait(Duration::from_secs(60));
    let cases = [
        ("asks for a client certificate", builder().cacert(ca)),
        ("certificate is of no authority", builder().cacert(other_ca).cert(cert).key(key)),
        ("does not trust the client", builder().cacert(ca).cert(other_cert).key(other_key)),
    ];
    for (words, builder) in cases {
        // Many times: the node closes the connection directly behind its refusal.
        for _ in 0..30 {
            let start = Instant::now();
            let error = builder.clone().build().unwrap().acquire("a").await.unwrap_err();
            assert!(matches!(error, AcquireError::Refused(_)), "{words}: {error}");
            assert!(error.to_string().contains(words), "{error}");
            assert!(start.elapsed() < Duration::from_secs(10), "{words}: {:?}", start.elapsed());
        }
    }
}

/// How often the server has refused this command before the module saw it.
pub(crate) fn refused_calls(node: &Server, command: &str) -> u64 {
    command_count(node, command, "rejected_calls").unwrap_or(0)
}

/// Regression: each attempt of a waiter left a release of nothing behind that was sent ten times a
/// second, for a ttl: after a minute thousands of requests a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_no_storm_while_the_server_refuses_all_writes() {
    let node = &nodes(1)[0];
    node.run("CONFIG SET min-replicas-to-write 1").unwrap();
    let locker = builder(std::slice::from_ref(node)).build().unwrap();
    let refused = locker.acquire("a").wait(Duration::from_secs(3)).await.unwrap_err();
    assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
    let [acquires, releases] =
        ["LOCK.ACQUIRE", "LOCK.RELEASE"].map(|command| refused_calls(node, command));
    assert!(acquires > 2 && releases <= 2 * acquires, "{acquires} acquires, {releases} releases");
    locker.settle().await;
    assert!(locker.owing().is_empty());
    // What was granted is released as soon as that is possible.
    node.run("CONFIG SET min-replicas-to-write 0").unwrap();
    let guard = locker.acquire("a").await.unwrap();
    node.run("CONFIG SET min-replicas-to-write 1").unwrap();
    drop(guard);
    until("its release is refused", || refused_calls(node, "LOCK.RELEASE") > releases + 1).await;
    assert!(is_held(node, "a") && locker.owing().len() == 1);
    node.run("CONFIG SET min-replicas-to-write 0").unwrap();
    until("it is released", || !is_held(node, "a")).await;
}
