//! A master under Sentinel as one node: the client finds it, follows the group to a new one, and
//! reports it.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockmod::client::{
    Absence, AcquireError, BuildError, Locker, LockerBuilder, MissingReplica, Vote,
};
use rustix::process::Signal;

use crate::cli::{RunningNodes, lockmod, nodes_command, signal, start, text};
use crate::common::{
    Builder, FAILOVER_PATIENCE, GROUP, Group, PATIENCE, Port, Sentinel, Server, wait_at_most,
    wait_until,
};
use crate::faults::{certificates, refused_calls};
use crate::watch::Exporter;
use crate::{connected, info, is_held, leases, millis, nodes, refused, until};

/// The wait of a promoted node is its `max-ttl`.
fn server() -> Builder {
    Server::builder().module_arg("max-ttl", 1_500)
}

fn builder(urls: &[String]) -> LockerBuilder {
    Locker::builder().nodes(urls).ttl(millis(1_500))
}

fn locker(group: &Group) -> Locker {
    builder(&[group.url()]).build().expect("the settings are good")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_found_and_followed_when_it_is_killed() {
    let mut group = Group::start(2, server);
    let locker = locker(&group);
    connected(&locker).await;
    let guard = locker.acquire("a").await.unwrap();
    let fence = guard.fence();
    assert!(is_held(&group.servers[0], "a"), "the master has it");
    guard.release().await.unwrap();
    let survey = locker.survey(10).await;
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    assert_eq!(survey.nodes[0].masters, [Arc::<str>::from(place(&group.servers[0]))]);
    let name = format!("127.0.0.1:{}/{GROUP}", group.sentinels[0].port());
    assert_eq!(&*survey.nodes[0].node, name);
    group.servers[0].kill();
    let guard = locker.acquire("a").wait(FAILOVER_PATIENCE).await.unwrap();
    assert!(guard.fence() > fence);
    let master = group.wait_for_another_than(0);
    assert!(is_held(&group.servers[master], "a"));
    let survey = locker.survey(10).await;
    assert_eq!(survey.nodes[0].masters, [Arc::<str>::from(place(&group.servers[master]))]);
    guard.release().await.unwrap();
}

/// Regression: the report named the master only in words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_cannot_be_reached_is_reported_with_the_master_that_was_asked() {
    let mut group = Group::start(0, server);
    let place = format!("127.0.0.1:{}", group.servers[0].port());
    let locker = locker(&group);
    connected(&locker).await;
    group.servers[0].kill();
    let unreachable = || async {
        let error = locker.try_acquire("a").await.unwrap_err();
        let report = error.nodes()[0].clone();
        matches!(report.vote, Vote::Unreachable(_)).then_some(report)
    };
    let report = loop {
        if let Some(report) = unreachable().await {
            break report;
        }
    };
    assert_eq!(report.master.as_deref(), Some(&*place), "{report}");
    // One that was never reached, too.
    let late = builder(&[group.url()]).build().unwrap();
    let error = late.acquire("a").wait(millis(500)).await.unwrap_err();
    assert_eq!(error.nodes()[0].master.as_deref(), Some(&*place), "{error}");
    let survey = locker.survey(10).await;
    assert!(survey.nodes[0].masters.is_empty(), "whether it still is the master is not known");
}

/// Its successor waits for leases that it does not know; this lease came with the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_lives_through_a_failover_of_the_only_group() {
    let server = || Server::builder().module_arg("max-ttl", 15_000).module_arg("replicas", 2);
    let mut group = Group::start(2, server);
    let locker = builder(&[group.url()]).ttl(Duration::from_secs(15)).build().unwrap();
    let guard = locker.acquire("a").wait(Duration::from_secs(60)).await.unwrap();
    let fence = guard.fence();
    guard.extend().await.unwrap();
    group.servers[1..].iter().for_each(|replica| group.servers[0].wait_for_replica(replica));
    group.servers[0].kill();
    let master = group.wait_for_another_than(0);
    let grants = || group.servers[master].info("lockmod_state").filter(|state| state == "grants");
    let patience = Duration::from_secs(60);
    tokio::task::block_in_place(|| wait_at_most(patience, "the successor grants", grants));
    guard.extend().await.unwrap();
    assert_eq!(guard.fence(), fence);
    assert!(is_held(&group.servers[master], "a"));
    guard.release().await.expect("it was held all the time");
}

/// Regression: the old master keeps its connections, and would have granted forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lives_is_left_when_the_sentinels_name_another() {
    let group = Group::start(1, server);
    let locker = locker(&group);
    connected(&locker).await;
    let guard = locker.acquire("a").await.unwrap();
    group.servers[0].wait_for_replica(&group.servers[1]);
    group.sentinels[0].run(&format!("SENTINEL FAILOVER {GROUP}")).unwrap();
    let master = group.wait_for_another_than(0);
    // The lease was replicated, and its release reaches the server that has it now.
    drop(guard);
    let now = &group.servers[master];
    until("the new master has the release", || {
        !is_held(now, "a") && info(now, "a", "state").is_some()
    })
    .await;
    until("it grants", || now.info("lockmod_state").is_some_and(|state| state == "grants")).await;
    let guard = locker.acquire("a").wait(Duration::from_secs(30)).await.unwrap();
    assert!(is_held(now, "a"));
    guard.release().await.unwrap();
}

/// Regression: once the connections to all Sentinels had broken, no change was heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_restart_are_heard_again() {
    let mut group = Group::start(1, server);
    let locker = locker(&group);
    let guard = locker.acquire("a").wait(FAILOVER_PATIENCE).await.unwrap();
    let listened = |group: &Group| group.sentinels.iter().all(|one| one.listeners() == Some(1));
    until("all are listened to", || listened(&group)).await;
    for is_rolling in [true, false] {
        if is_rolling {
            for sentinel in &mut group.sentinels {
                sentinel.kill();
                sentinel.launch();
            }
        } else {
            group.sentinels.iter_mut().for_each(Sentinel::kill);
            guard.extend().await.expect("the master does not need them");
            group.sentinels.iter_mut().for_each(Sentinel::launch);
        }
        until("all are listened to again", || listened(&group)).await;
        assert!(is_held(&group.servers[0], "a"), "the master is kept");
    }
    // Meanwhile the group gets another master, and nobody tells the old one, which lives.
    group.sentinels.iter_mut().for_each(Sentinel::kill);
    guard.extend().await.unwrap();
    group.servers[1].run("REPLICAOF NO ONE").unwrap();
    let new = group.servers[1].port();
    for sentinel in &mut group.sentinels {
        sentinel.configure(new, &format!("sentinel config-epoch {GROUP} 7"));
        sentinel.launch();
    }
    drop(guard);
    let start = Instant::now();
    loop {
        let guard = locker.acquire("b").wait(FAILOVER_PATIENCE).await.unwrap();
        if is_held(&group.servers[1], "b") {
            break guard.release().await.unwrap();
        }
        // The switch may fall into the release.
        drop(guard);
        assert!(start.elapsed() < FAILOVER_PATIENCE, "it still acquires at the old master");
    }
}

/// A server that is made a replica by hand keeps its connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sentinels_are_asked_again_when_the_server_says_that_it_is_a_replica() {
    let group = Group::start(0, server);
    let locker = locker(&group);
    connected(&locker).await;
    let elsewhere = nodes(1);
    let server = &group.servers[0];
    server.run(&format!("REPLICAOF 127.0.0.1 {}", elsewhere[0].port())).unwrap();
    let start = Instant::now();
    loop {
        let error = locker.try_acquire("a").await.unwrap_err();
        let place = |port| format!("127.0.0.1:{port}");
        let told =
            format!("{}: it is a replica of {}", place(server.port()), place(elsewhere[0].port()));
        if error.to_string().contains(&told) {
            break;
        }
        assert!(start.elapsed() < crate::common::PATIENCE, "{error}");
    }
    server.run("REPLICAOF NO ONE").unwrap();
    let guard = locker.acquire("a").wait(Duration::from_secs(30)).await.unwrap();
    guard.release().await.unwrap();
}

/// Regression: a release that met a planned failover (`READONLY`) was given up at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_takes_its_release_to_the_next_master_of_its_group() {
    let group = Group::start(0, Server::builder);
    let server = &group.servers[0];
    let mut command = lockmod(&[], &["run", "a", "--ttl", "10m", "--wait", "1m", "--", "cat"]);
    command.env("LOCKMOD_NODES", group.url()).stdin(Stdio::piped());
    let mut run = start(command);
    until("it is held", || is_held(server, "a")).await;
    server.run("REPLICAOF 127.0.0.1 1").unwrap();
    drop(run.stdin.take());
    until("its release is refused", || refused_calls(server, "LOCK.RELEASE") > 0).await;
    let refused_at = Instant::now();
    until("more than a moment has passed", || refused_at.elapsed() > Duration::from_secs(1)).await;
    server.run("REPLICAOF NO ONE").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!is_held(server, "a"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_in_line_waits_on_at_the_next_master() {
    let mut group = Group::start(1, server);
    let (holder, other) = (locker(&group), locker(&group));
    connected(&holder).await;
    connected(&other).await;
    let guard = holder.acquire("a").await.unwrap();
    let waiting = other.acquire("a").wait(Duration::from_secs(60)).into_future();
    let waiting = tokio::spawn(waiting);
    let in_line = |server: &Server| info(server, "a", "waiters") == Some(redis::Value::Int(1));
    until("it stands in line", || in_line(&group.servers[0])).await;
    let fence = guard.fence();
    group.servers[0].kill();
    let master = group.wait_for_another_than(0);
    // Whether it is in line again or is granted at once depends on when the lease ends.
    drop(guard);
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fence() > fence && is_held(&group.servers[master], "a"));
    guard.release().await.unwrap();
}

/// Of the three, one hangs and one is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_is_enough() {
    let mut group = Group::start(0, server);
    group.sentinels[0].pause();
    group.sentinels[1].kill();
    let locker = locker(&group);
    let guard = locker.acquire("a").wait(Duration::from_secs(30)).await.unwrap();
    group.sentinels[0].resume();
    assert!(is_held(&group.servers[0], "a"));
    group.sentinels[2].kill();
    guard.release().await.expect("the connection stays although the Sentinels are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_and_the_sentinels_have_logins_of_their_own() {
    let group = Group::with_password(0, server, Some("s3cret"));
    let places = group.places();
    let url = format!("redis+sentinel://:s3cret@{places}/{GROUP}?sentinel_password=s3cret");
    let works = builder(&[url]).build().unwrap();
    works.acquire("a").await.unwrap().release().await.unwrap();
    let error = refused(builder(&[format!("redis+sentinel://:s3cret@{places}/{GROUP}")])).await;
    assert!(error.to_string().contains("?sentinel_username=...&sentinel_password=..."), "{error}");
    let url = format!("redis+sentinel://{places}/{GROUP}?sentinel_password=s3cret");
    let error = refused(builder(&[url])).await.to_string();
    assert!(error.contains("its master 127.0.0.1:") && error.contains("NOAUTH"), "{error}");
}

/// Regression: without these rights all went well, until there was a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_a_failover_needs_are_asked_for_at_once() {
    let group = Group::start(0, server);
    let places = group.places();
    let works = "+sentinel|get-master-addr-by-name +sentinel|master +subscribe &+switch-master";
    let eye = |rights: &str| {
        for sentinel in &group.sentinels {
            let user = "ACL SETUSER eye on >s3cret resetchannels -@all";
            sentinel.run(&format!("{user} {rights}")).unwrap();
        }
    };
    let url = format!("redis+sentinel://{places}/{GROUP}?sentinel_username=eye");
    let url = format!("{url}&sentinel_password=s3cret");
    for (missing, told) in [
        ("+sentinel|master ", "sentinel|master"),
        ("+subscribe ", "'subscribe'"),
        (" &+switch-master", "channel"),
    ] {
        eye(&works.replace(missing, ""));
        let error = refused(builder(std::slice::from_ref(&url))).await;
        assert!(matches!(error, AcquireError::Refused(_)), "{missing}: {error}");
        assert!(error.to_string().contains(told), "{missing}: {error}");
    }
    eye(works);
    builder(&[url]).build().unwrap().acquire("a").await.unwrap().release().await.unwrap();
    group.servers[0].run("ACL SETUSER few on >s3cret ~* &* +@all -role").unwrap();
    let few = format!("redis+sentinel://few:s3cret@{places}/{GROUP}");
    let error = refused(builder(&[few])).await;
    assert!(matches!(error, AcquireError::Refused(_)), "{error}");
    assert!(error.to_string().contains("'role'"), "{error}");
}

/// The servers are reached only over TLS: the Sentinel names their TLS ports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_found_and_followed_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (_, files) = certificates(dir.path());
    let master = server().encrypted(&files).start();
    let replica = server().encrypted(&files).replica_of(&master).start();
    master.wait_for_replica(&replica);
    let [ca, cert, key] = &files;
    let port = Port::reserve();
    let more = format!(
        "tls-port {}\ntls-replication yes\ntls-ca-cert-file {ca:?}\ntls-cert-file {cert:?}\n\
         tls-key-file {key:?}",
        port.number()
    );
    let sentinel = Sentinel::start(master.tls_port(), None, &more);
    let url = format!("rediss+sentinel://127.0.0.1:{}/{GROUP}", port.number());
    let encrypted = builder(&[url]).cacert(ca).cert(cert).key(key).build().unwrap();
    let guard = encrypted.acquire("a").await.unwrap();
    assert!(is_held(&master, "a"));
    let fence = guard.fence();
    guard.release().await.unwrap();
    until("the Sentinel knows the replica", || sentinel.followers() == Some(1)).await;
    sentinel.run(&format!("SENTINEL FAILOVER {GROUP}")).unwrap();
    until("the Sentinel names it", || sentinel.named() == Some(replica.tls_port())).await;
    // Until it learns of its successor, the old master grants. Then the Sentinel ends its
    // connections.
    let is_replica = |role: redis::Value| format!("{role:?}").contains("slave");
    until("the old master follows", || master.run("ROLE").is_ok_and(is_replica)).await;
    let guard = encrypted.acquire("a").wait(Duration::from_secs(30)).await.unwrap();
    assert!(guard.fence() > fence && is_held(&replica, "a"));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_group_is_refused_with_what_to_do() {
    let mut group = Group::start(0, server);
    let places = group.places();
    let unknown = refused(builder(&[format!("redis+sentinel://{places}/other")])).await;
    assert!(
        unknown.to_string().contains("does not know a group 'other', only those that SENTINEL")
    );
    assert!(matches!(unknown, AcquireError::Refused(_)), "{unknown}");
    let port = group.servers[0].port();
    let none = refused(builder(&[format!("redis+sentinel://127.0.0.1:{port}/{GROUP}")])).await;
    assert!(none.to_string().contains("is not a Sentinel, which listens on port 26379"), "{none}");
    assert!(matches!(none, AcquireError::Refused(_)), "{none}");
    // As two nodes of three: detected by the Sentinels in common, or because both lead to one
    // server.
    let first = format!("redis+sentinel://127.0.0.1:{}/{GROUP}", group.sentinels[0].port());
    let twice = builder(&[group.url(), first]).allow_even_nodes().build();
    assert!(matches!(twice, Err(BuildError::SameNode { .. })), "{twice:?}");
    let direct = group.servers[0].url();
    let both = builder(&[group.url(), direct.clone()]).allow_even_nodes().build().unwrap();
    // The group follows its master: it is never the one to remove.
    let extra = direct.replace("redis://", ": remove ");
    let same = |vote: &Vote| matches!(vote, Vote::Refused(text) if text.ends_with(&extra));
    let start = Instant::now();
    while !both.settle().await.iter().any(|report| same(&report.vote)) {
        assert!(start.elapsed() < crate::common::PATIENCE, "both count");
    }
    group.sentinels.iter_mut().for_each(|sentinel| sentinel.kill());
    let silent = refused(builder(&[group.url()])).await.to_string();
    assert!(silent.contains("no Sentinel answers: Sentinel 127.0.0.1:"), "{silent}");
}

/// Together with two servers, a group is one vote of three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_one_node_of_a_quorum() {
    let mut group = Group::start(1, server);
    let others = nodes(2);
    let urls = [others[0].url(), group.url(), others[1].url()];
    let locker = builder(&urls).build().unwrap();
    connected(&locker).await;
    let guard = locker.acquire("a").await.unwrap();
    until("all have it", || leases(&others, "a") == 2 && is_held(&group.servers[0], "a")).await;
    group.servers[0].kill();
    let master = group.wait_for_another_than(0);
    until("its renewals reach the new master", || is_held(&group.servers[master], "a")).await;
    guard.release().await.unwrap();
}

/// Regression: only the master's log said so, and "2 of 1 replicas" looked like plenty.
#[test]
fn a_master_with_more_replicas_than_it_is_told_of_is_warned_about() {
    let one = || server().module_arg("replicas", 1);
    let (group, bare) = (Group::start(2, one), Group::start(1, server));
    let status = |url: &str, args: &[&str]| {
        let args = [&["status"], args].concat();
        let output = lockmod(&[], &args).env("LOCKMOD_NODES", url).output().unwrap();
        text(&output.stderr)
    };
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let end = "a master that is cut off may grant locks beside the one that replaces it";
    for (group, count) in [
        (&group, "2 replicas are attached, but lockmod.replicas is 1"),
        (&bare, "1 replica is attached, but lockmod.replicas is 0"),
    ] {
        let said = status(&group.url(), &[]);
        let expected = format!("{GROUP} at {}: {count}: {end}", place(&group.servers[0]));
        assert!(said.contains(&expected), "{said}");
        let said = status(&group.url(), &["--json"]);
        let line = said.lines().find(|line| line.starts_with("{\"warning\":\""));
        assert!(line.is_some_and(|line| line.contains(&expected)), "{said}");
        let metrics = Exporter::start_with(&[], &["--nodes", &group.url()]).metrics();
        let metric =
            format!("lockmod_excess_replicas{{node=\"127.0.0.1:{}", group.sentinels[0].port());
        let line = metrics.lines().find(|line| line.starts_with(&metric));
        assert!(line.is_some_and(|line| line.ends_with("} 1")), "{metrics}");
    }
    // By itself: without the option, replicas may serve for reading, or as a copy.
    let said = status(&group.servers[0].url(), &[]);
    assert!(
        said.contains(&format!("{}: 2 replicas are attached", place(&group.servers[0]))),
        "{said}"
    );
    assert!(!status(&bare.servers[0].url(), &[]).contains("attached"));
    // As many as it is told of.
    let url = group.url();
    group.servers[2].run("REPLICAOF NO ONE").unwrap();
    wait_until("one is left", || !status(&url, &[]).contains("attached"));
}

/// Regression: a replica without the module counted as a supporter, and nobody said that no lock
/// could be acquired where it became the master; of other settings only its own log told.
#[test]
fn replicas_that_could_not_take_their_masters_place_are_named() {
    let one = || server().module_arg("replicas", 3);
    let mut group = Group::start(1, one);
    let master = &group.servers[0];
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let bare = Server::builder().without_module().replica_of(master).start();
    let other = server().module_arg("replicas", 2).module_arg("max-ttl", 7_000);
    let other = other.replica_of(master).start();
    let status = |url: &str| {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", url).output().unwrap();
        text(&output.stderr)
    };
    let at = format!("{}: its replica", place(master));
    let (bare_at, other_at) = (place(&bare), place(&other));
    let url = group.url();
    wait_until("both are attached", || {
        [&bare_at, &other_at].iter().all(|at| status(&url).contains(*at))
    });
    for url in [url, master.url()] {
        let said = status(&url);
        for expected in [
            format!("{at} {bare_at} is without the module: it counts"),
            format!("{at} {other_at} has lockmod.replicas 2, and its master 3: set it"),
            format!("{at} {other_at} has lockmod.max-ttl 7s, and its master 1.5s: after"),
        ] {
            assert!(said.contains(&expected), "{expected:?} in {said}");
        }
        assert!(!said.contains(&format!("replica {} ", place(&group.servers[1]))), "{said}");
    }
    // What is no replica any more, or cannot be asked, is not told of.
    drop((bare, other));
    let url = group.url();
    wait_until("it is gone", || !status(&url).contains("its replica"));
    group.servers[0].kill();
    assert!(!status(&url).contains("its replica"));
}

/// The text, the JSON and the library name them, each with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_should_follow_the_master_and_do_not_are_named() {
    let mut group = Group::start(3, || server().module_arg("replicas", 3));
    let (locker, url) = (locker(&group), group.url());
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let places: Vec<String> = group.servers.iter().map(place).collect();
    assert_eq!(locker.missing_replicas().await, []);
    group.servers[1].kill();
    let [second, third] = [2, 3].map(|index| &group.servers[index]);
    second.run("CONFIG SET masterauth wrong").unwrap();
    group.servers[0].run("CLIENT KILL TYPE replica").unwrap();
    third.run("REPLICAOF 127.0.0.1 1").unwrap();
    let reasons = [
        Absence::Unreachable,
        Absence::LinkDown,
        Absence::FollowsAnother("127.0.0.1:1".to_owned()),
    ];
    let expected: BTreeMap<&str, Option<&Absence>> =
        places[1..].iter().map(String::as_str).zip(reasons.iter().map(Some)).collect();
    let is_told = |missing: &[MissingReplica]| {
        let told = missing.iter().filter(|one| *one.master == *places[0]);
        let told = told.map(|one| (&*one.replica, one.reason.as_ref()));
        told.collect::<BTreeMap<_, _>>() == expected
    };
    let start = Instant::now();
    while !is_told(&locker.missing_replicas().await) {
        assert!(start.elapsed() < PATIENCE, "{:?}", locker.missing_replicas().await);
    }
    let output = lockmod(&[], &["status", "--json"]).env("LOCKMOD_NODES", &url).output().unwrap();
    for (place, reason) in places[1..].iter().zip(&reasons) {
        let [json, said] = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
        let key =
            format!(r#"{{"address":"{place}","master":"{}","reason":"{reason}"}}"#, places[0]);
        assert!(json.contains(&key), "{key} in {json}");
        let warning = format!("at {}: {place} should follow it, and does not", places[0]);
        assert!(said.contains(&format!("{warning}: {reason}")), "{said}");
    }
}

#[test]
fn the_commands_take_a_group_and_status_says_where_its_master_is() {
    let group = Group::start(1, server);
    let others = nodes(2);
    let succeeds = |urls: &str, args: &[&str]| {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", urls).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let url = group.url();
    let out =
        succeeds(&url, &["run", "job", "--ttl", "1s", "--", "sh", "-c", "echo $LOCKMOD_FENCE"]);
    assert_eq!(out, "1\n");
    // Regression: the Sentinels were waited for until nothing was left for the master.
    group.sentinels[..2].iter().for_each(|sentinel| sentinel.pause());
    assert!(succeeds(&url, &["status"]).contains("grants"));
    succeeds(&url, &["acquire", "only", "--ttl", "1500ms", "--timeout", "400ms"]);
    group.sentinels[..2].iter().for_each(|sentinel| sentinel.resume());
    let name = format!("127.0.0.1:{}/{GROUP}", group.sentinels[0].port());
    let at = |index: usize| format!("127.0.0.1:{}", group.servers[index].port());
    let shown = succeeds(&url, &["status"]);
    assert!(shown.contains(&format!("{name} at {}  master  grants", at(0))), "{shown}");
    let list = format!("{},{url},{}", others[0].url(), others[1].url());
    let shown = succeeds(&list, &["status", "--json"]);
    assert!(shown.contains(&format!("\"node\":\"{name}\"")), "{shown}");
    assert!(shown.contains(&format!("\"master\":\"{}\"", at(0))), "{shown}");
    succeeds(&list, &["acquire", "job", "--ttl", "1s"]);
    assert!(succeeds(&list, &["list"]).starts_with("job: held, fence "));
    group.sentinels[1].run(&format!("SENTINEL FAILOVER {GROUP}")).unwrap();
    group.wait_for_another_than(0);
    wait_until("status shows the present master", || {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", &url).output().unwrap();
        // On a busy machine the Sentinels may find the new master too slow, and go back.
        let is_shown =
            |master| text(&output.stdout).contains(&format!("{name} at {}  master", at(master)));
        group.master().is_some_and(is_shown)
    });
}

/// Regression: one that answers was said not to, and nobody said that no other master will come.
#[test]
fn what_too_few_sentinels_mean_is_told_by_the_commands() {
    let mut group = Group::start(0, server);
    let url = group.url();
    let told = |args: &[&str]| {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    group.sentinels[..2].iter().for_each(|sentinel| sentinel.pause());
    let (code, said) = told(&["acquire", "a", "--ttl", "1s", "--timeout", "40ms"]);
    let silent = [0, 1].map(|at| format!("127.0.0.1:{}", group.sentinels[at].port())).join(", ");
    let few = format!("unreachable (1 of 3 Sentinels answered in time (not {silent}), and the");
    // On a busy machine not even that one.
    if !said.contains(&format!("no Sentinel answers: none of {silent}, 127.0.0.1:")) {
        assert!(code == Some(121) && said.contains(&few), "{said}");
    }
    assert!(said.contains("had 40ms to answer: a slow network needs a longer --timeout"), "{said}");
    let place = format!("127.0.0.1:{}", group.servers[0].port());
    group.servers[0].pause();
    let (code, said) = told(&["list"]);
    assert!(code == Some(121) && said.contains(&format!("{GROUP} at {place}: ")), "{said}");
    group.servers[0].kill();
    let (code, said) = told(&["status"]);
    let few = "2 of its 3 Sentinels do not answer, and only a majority can";
    assert!(code == Some(121) && said.contains(few), "{said}");
    let unknown = "the only node does not show whether it grants locks";
    assert!(said.contains(unknown) && said.contains(&format!("{GROUP} at {place} ")), "{said}");
}

/// Regression: the state had only what the server said.
#[test]
fn status_names_the_master_that_does_not_allow_role() {
    let group = Group::start(0, server);
    group.servers[0].run("ACL SETUSER few on >s3cret ~* &* +@all -role").unwrap();
    let url = format!("redis+sentinel://few:s3cret@{}/{GROUP}", group.places());
    let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", &url).output().unwrap();
    let said = text(&output.stdout);
    let place = format!("127.0.0.1:{}", group.servers[0].port());
    assert!(said.contains(&format!("{GROUP} at {place} ")) && said.contains("'role'"), "{said}");
    let output = lockmod(&[], &["status", "--json"]).env("LOCKMOD_NODES", &url).output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains(&format!("\"master\":\"{place}\"")), "{said}");
}

#[test]
fn local_servers_under_sentinel_are_one_node_that_moves() {
    let folder = tempfile::tempdir().unwrap();
    let command = nodes_command(&["--sentinel"], folder.path());
    let RunningNodes { mut child, said, urls: url, lines } = RunningNodes::start(command);
    assert!(said.starts_with("a master, 2 replicas and 3 Sentinels in "), "{said}");
    let mut lines = lines.map(Result::unwrap);
    let one = url.replace("redis+sentinel", "redis").split(',').next().unwrap().to_owned();
    let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", one).output().unwrap();
    let told = "it is a Sentinel: write redis+sentinel://";
    assert!(text(&output.stdout).contains(told), "{}", text(&output.stdout));
    assert_eq!(lines.next().unwrap(), "lockmod.max-ttl is 30s: no --ttl may be longer");
    assert!(lines.next().unwrap().contains("waits for about 45s"));
    let hint = lines.next().unwrap();
    let port = hint.strip_prefix("redis-cli -p ").unwrap().split(' ').next().unwrap().to_owned();
    let shown = || {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", &url).output().unwrap();
        text(&output.stdout)
    };
    assert!(shown().contains(&format!("/mymaster at 127.0.0.1:{port}  master")), "{}", shown());
    let sentinel = url.split(['/', ',']).nth(2).unwrap().to_owned();
    let sentinel = redis::Client::open(format!("redis://{sentinel}")).unwrap();
    let mut sentinel = sentinel.get_connection().unwrap();
    // It refuses until it knows the replicas.
    wait_at_most(Duration::from_secs(60), "the failover begins", || {
        redis::cmd("SENTINEL").arg("FAILOVER").arg(GROUP).query::<()>(&mut sentinel).ok()
    });
    wait_at_most(Duration::from_secs(60), "another is the master", || {
        let shown = shown();
        let is_other = shown.contains(" at 127.0.0.1:") && !shown.contains(&format!(":{port} "));
        is_other.then_some(())
    });
    assert!(shown().contains(" of 2 replicas"), "{}", shown());
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Regression: nobody was told of two groups that had one name. Which of them had the lock depended
/// on which Sentinel answered.
#[test]
fn status_warns_of_sentinels_that_name_different_masters() {
    let groups = [Group::start(0, server), Group::start(0, server)];
    let told = |places: &str| {
        let url = format!("redis+sentinel://{places}/{GROUP}");
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", url).output().unwrap();
        text(&output.stderr)
    };
    assert!(!told(&groups[0].places()).contains("names the master"));
    let said = told(&[groups[0].places(), groups[1].places()].join(","));
    assert!(said.contains("or they watch two groups with one name"), "{said}");
}
