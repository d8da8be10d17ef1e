//! A Redis Cluster as one node: each lock is at the master of its slot, wherever that moves.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockmod::client::{AcquireError, BuildError, Locker, LockerBuilder, Vote};
use redis::Value;
use rustix::process::Signal;

use crate::cli::{RunningNodes, lockmod, nodes_command, signal, text};
use crate::common::{Builder, Cluster, PATIENCE, Server, wait_until};
use crate::faults::{certificates, refused_calls};
use crate::watch::Exporter;
use crate::{connected, info, is_held, leases, millis, nodes, refused, until};

fn server() -> Builder {
    Server::builder().module_arg("max-ttl", 60_000)
}

fn builder(urls: &[String]) -> LockerBuilder {
    Locker::builder().nodes(urls).ttl(Duration::from_secs(10))
}

fn locker(cluster: &Cluster) -> Locker {
    builder(&[cluster.url()]).build().expect("the settings are good")
}

fn all_leases(cluster: &Cluster, name: &str) -> usize {
    leases(&cluster.masters, name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lock_is_at_the_master_of_its_slot_and_a_survey_finds_all() {
    let cluster = Cluster::start(3, server);
    let locker = locker(&cluster);
    let mut guards = Vec::new();
    let mut owners = [0; 3];
    for number in 0..30 {
        let name = format!("lock-{number}");
        let guard = locker.acquire(&name).await.unwrap();
        assert_eq!(guard.fence().get(), 1);
        let owner = cluster.owner(&name);
        assert!(is_held(&cluster.masters[owner], &name));
        owners[owner] += 1;
        guards.push(guard);
    }
    assert!(owners.iter().all(|count| *count > 0), "{owners:?}");
    assert_eq!(cluster.owner("{tag}a"), cluster.owner("{tag}b"));
    let survey = locker.survey(100).await;
    assert_eq!((survey.locks.len(), survey.nodes.len(), survey.quorum), (30, 1, 1));
    assert_eq!((survey.granting(), survey.nodes[0].masters.len()), (1, 3));
    let listed = locker.list().await;
    assert_eq!(listed[0].locks.as_ref().unwrap().len(), 30);
    assert!(locker.try_acquire("lock-7").await.is_err());
    let deleted = locker.force_release("lock-7").await;
    assert_eq!(deleted[0].vote, Vote::Confirmed);
    for (number, guard) in guards.into_iter().enumerate() {
        assert_eq!(guard.release().await.is_ok(), number != 7);
    }
    connected(&locker).await;
    assert!(locker.owing().is_empty());
    // Whether the Cluster is down is asked besides, and a user need not have the right to that.
    for master in &cluster.masters {
        master.run("ACL SETUSER few on >secret ~* &* +@all -cluster|info").unwrap();
    }
    let few = builder(&[cluster.url().replace("//", "//few:secret@")]).build().unwrap();
    let status = few.survey(0).await.nodes[0].status.clone().unwrap();
    assert_eq!(status.slots.unwrap().unseen.len(), 3, "it says so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_followed_when_its_slot_moves() {
    follow_a_slot(Cluster::start(2, server)).await;
}

/// Regression: the client went to a host without a name, or with the name `?`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_followed_among_masters_that_do_not_name_their_hosts() {
    for kind in ["unknown-endpoint", "hostname"] {
        let server = || server().config("cluster-preferred-endpoint-type", kind);
        follow_a_slot(Cluster::start(2, server)).await;
    }
}

async fn follow_a_slot(cluster: Cluster) {
    let (locker, other) = (locker(&cluster), locker(&cluster));
    let guard = locker.acquire("res").await.unwrap();
    assert!(other.try_acquire("res").await.is_err());
    let from = cluster.owner("res");
    let to = 1 - from;
    let slot = cluster.begin_to_move("res", to);
    // Existing locks stay until they have moved, and new ones begin at the target.
    guard.extend().await.unwrap();
    assert!(is_held(&cluster.masters[from], "res"));
    let new = other.acquire("{res}new").await.unwrap();
    assert!(other.try_acquire("{res}new").await.is_err());
    new.release().await.unwrap();
    for is_there in [false, true] {
        if is_there {
            cluster.move_keys(slot, from, to);
        }
        let survey = other.survey(100).await;
        let lock = survey.locks.get(&b"res"[..]);
        assert_eq!(lock.map(|lock| lock.held_count()), Some(1), "{is_there}: {survey:?}");
    }
    cluster.end_move(slot, from, to);
    assert!(matches!(other.try_acquire("res").await, Err(AcquireError::Held(_))));
    guard.extend().await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert_eq!(all_leases(&cluster, "res"), 0);
    let guard = other.acquire("res").await.unwrap();
    assert!(guard.fence() > fence && is_held(&cluster.masters[to], "res"));
    guard.release().await.unwrap();
}

/// Regression: each failed attempt left a release behind that was sent twice a second, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_owed_for_a_slot_that_the_masters_dispute_ends_with_the_lease() {
    let cluster = Cluster::start(2, server);
    let locker = builder(&[cluster.url()]).ttl(Duration::from_secs(2)).build().unwrap();
    connected(&locker).await;
    let to = 1 - cluster.owner("res");
    let slot = cluster.begin_to_move("res", to);
    cluster.masters[to].run(&format!("CLUSTER SETSLOT {slot} STABLE")).unwrap();
    let refused = locker.try_acquire("res").await.unwrap_err();
    assert!(matches!(refused, AcquireError::NoQuorum(_)), "{refused}");
    assert_eq!(locker.owing().len(), 1, "it may lie in a master's socket");
    until("nothing is owed any more", || locker.owing().is_empty()).await;
}

/// Regression: each attempt of a waiter left a release of nothing behind that was sent ten times a
/// second, for a ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_no_storm_while_the_cluster_is_down() {
    let cluster = Cluster::start(2, server);
    let locker = locker(&cluster);
    connected(&locker).await;
    let slot = cluster.masters[0].run("CLUSTER KEYSLOT other").unwrap();
    let slot: u16 = redis::from_redis_value(slot).unwrap();
    for master in &cluster.masters {
        master.run("CONFIG SET cluster-require-full-coverage yes").unwrap();
        master.run(&format!("CLUSTER DELSLOTS {slot}")).unwrap();
    }
    until_refused(&locker, "res", "CLUSTERDOWN").await;
    let counts = || {
        let all = |command| cluster.masters.iter().map(|node| refused_calls(node, command)).sum();
        let [acquires, releases]: [u64; 2] = ["LOCK.ACQUIRE", "LOCK.RELEASE"].map(all);
        (acquires, releases)
    };
    let before = counts();
    let refused = locker.acquire("res").wait(Duration::from_secs(3)).await.unwrap_err();
    assert!(refused.to_string().contains("CLUSTERDOWN"), "{refused}");
    let after = counts();
    let (acquires, releases) = (after.0 - before.0, after.1 - before.1);
    assert!(acquires > 2 && releases <= 2 * acquires, "{acquires} acquires, {releases} releases");
}

/// Regression: it was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_of_a_lock_whose_slot_has_no_master_waits_for_one() {
    let cluster = Cluster::start(2, server);
    let locker = locker(&cluster);
    let guard = locker.acquire("res").await.unwrap();
    let owner = &cluster.masters[cluster.owner("res")];
    let slot = owner.run("CLUSTER KEYSLOT res").unwrap();
    let slot: u16 = redis::from_redis_value(slot).unwrap();
    for master in &cluster.masters {
        master.run(&format!("CLUSTER DELSLOTS {slot}")).unwrap();
    }
    until_refused(&locker, "{res}other", "no master of the Cluster has slot").await;
    drop(guard);
    until("the release is owed", || locker.owing().len() == 1).await;
    owner.run(&format!("CLUSTER ADDSLOTS {slot}")).unwrap();
    until("the lock is released", || all_leases(&cluster, "res") == 0).await;
}

async fn until_refused(locker: &Locker, name: &str, text: &str) {
    let start = std::time::Instant::now();
    loop {
        let error = locker.try_acquire(name).await.unwrap_err().to_string();
        if error.contains(text) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{error}");
    }
}

/// The masters' TLS ports are those that the Cluster names, for its slots and when one moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_reached_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let (_, files) = certificates(dir.path());
    let cluster = Cluster::start(2, || server().encrypted(&files));
    let url = format!("rediss+cluster://127.0.0.1:{}", cluster.masters[0].tls_port());
    let [ca, cert, key] = &files;
    // A master that has just got a slot confirms it first, and handshakes take their time.
    let patient = builder(std::slice::from_ref(&url)).timeout(Duration::from_secs(3));
    let encrypted = patient.cacert(ca).cert(cert).key(key).build().unwrap();
    for index in 0..2 {
        let name = cluster.tag_at(index);
        let guard = encrypted.acquire(&name).await.unwrap();
        assert!(is_held(&cluster.masters[index], &name));
        cluster.move_slot(&name, 1 - index);
        guard.extend().await.unwrap();
        assert!(is_held(&cluster.masters[1 - index], &name));
        guard.release().await.unwrap();
    }
    let survey = encrypted.survey(10).await;
    let named: Vec<String> = survey.nodes[0].masters.iter().map(ToString::to_string).collect();
    let ports = cluster.masters.iter().map(|master| format!("127.0.0.1:{}", master.tls_port()));
    assert!(ports.into_iter().all(|place| named.contains(&place)), "{named:?}");
    let mut command = lockmod(&[], &["status", "--cacert"]);
    command.arg(ca).arg("--cert").arg(cert).arg("--key").arg(key).env("LOCKMOD_NODES", &url);
    let status = command.output().unwrap();
    assert!(status.status.success(), "{}", text(&status.stderr));
}

/// Regression: it got in line there when it asked again by itself, after a sixth to a third of its
/// ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_in_line_waits_on_where_the_slot_has_moved() {
    let cluster = Cluster::start(2, || Server::builder().module_arg("max-ttl", 3_600_000));
    let lockers = [locker(&cluster), locker(&cluster), locker(&cluster)];
    let [holder, early, late] = &lockers;
    let (from, to) = (cluster.owner("res"), 1 - cluster.owner("res"));
    let waiters = |index: usize| cluster.masters[index].info_u64("lockmod_waiters");
    // By itself it would ask again after 10 minutes or more.
    let wait = |locker: &Locker| {
        let waiting = locker.acquire("res").ttl(Duration::from_secs(3_600)).wait(PATIENCE);
        tokio::spawn(waiting.into_future())
    };
    connected(early).await;
    connected(late).await;
    let mut guard = holder.acquire("res").await.unwrap();
    let early_guard = wait(early);
    until("it stands in line", || waiters(from) == 1).await;
    let slot = cluster.begin_to_move("res", to);
    cluster.move_keys(slot, from, to);
    until("it stands in line there", || waiters(to) == 1).await;
    let late_guard = wait(late);
    until("both stand in line there", || waiters(to) == 2).await;
    cluster.end_move(slot, from, to);
    for waiting in [early_guard, late_guard] {
        let fence = guard.fence();
        guard.release().await.unwrap();
        guard = waiting.await.unwrap().unwrap();
        assert!(guard.fence() > fence);
    }
    guard.release().await.unwrap();
    assert_eq!(all_leases(&cluster, "res"), 0);
    for locker in [early, late] {
        assert!(locker.stats().attempts < 10, "{:?}", locker.stats());
    }
}

/// Regression: an acquire that was redirected could arrive after its own release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_left_behind_while_slots_move_to_and_fro() {
    let cluster = Arc::new(Cluster::start(3, server));
    let (is_over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let held = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..6)
        .map(|number| {
            let locker = locker(&cluster);
            let (is_over, turns) = (Arc::clone(&is_over), Arc::clone(&turns));
            let held = Arc::clone(&held);
            tokio::spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    // Some give up: their requests are withdrawn.
                    let wait = if number % 2 == 0 { Duration::from_secs(30) } else { millis(2) };
                    let Ok(guard) = locker.acquire("res").wait(wait).await else { continue };
                    let before = held.swap(guard.fence().get(), Ordering::SeqCst);
                    assert!(before < guard.fence().get(), "{before} and then {guard:?}");
                    turns.fetch_add(1, Ordering::SeqCst);
                    guard.release().await.expect("it was held");
                }
                locker.settle().await;
                assert!(locker.owing().is_empty());
            })
        })
        .collect();
    let another = locker(&cluster);
    for _ in 0..100 {
        // A slot that moves on before its master has decided in it would bring a wait, the first
        // time too. It has if it grants a lock that nobody had.
        let guard = another.acquire("{res}").wait(PATIENCE).await.unwrap();
        guard.release().await.unwrap();
        let moving = Arc::clone(&cluster);
        let moved = move || moving.move_slot("res", 1 - moving.owner("res"));
        tokio::task::spawn_blocking(moved).await.unwrap();
    }
    let before = turns.load(Ordering::SeqCst);
    until("it goes on", || turns.load(Ordering::SeqCst) > before + 10).await;
    is_over.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    until("nothing is left", || all_leases(&cluster, "res") == 0).await;
}

/// Locks that are forgotten between two moves leave nothing that could move with their slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fence_falls_and_no_lock_is_lost_while_slots_move_of_which_all_is_forgotten() {
    let cluster = Arc::new(Cluster::start(3, || server().module_arg("idle-ms", 50)));
    let keeper = locker(&cluster);
    for name in ["{a}", "{b}"] {
        // The first master decides there before the slot moves.
        keeper.acquire(name).wait(PATIENCE).await.unwrap().release().await.unwrap();
    }
    let kept = keeper.acquire("{kept}").ttl(millis(1_500)).wait(PATIENCE).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let workers = ["{a}1", "{a}2", "{b}1", "{kept}1"].map(|name| {
        let (locker, is_over) = (locker(&cluster), Arc::clone(&is_over));
        tokio::spawn(async move {
            let (mut last, mut turns) = (0, 0_u64);
            while !is_over.load(Ordering::SeqCst) {
                let guard = locker.acquire(name).wait(PATIENCE).await.unwrap();
                assert!(guard.fence().get() > last, "{name}: {last} and then {guard:?}");
                last = guard.fence().get();
                guard.release().await.unwrap();
                turns += 1;
                tokio::time::sleep(millis(turns % 5 * 60)).await;
            }
            turns
        })
    });
    let moving = Arc::clone(&cluster);
    let moved = tokio::task::spawn_blocking(move || {
        for turn in 0..4 {
            for name in ["{a}", "{b}", "{kept}"] {
                moving.move_slot(name, (moving.owner(name) + 1 + turn % 2) % 3);
            }
            std::thread::sleep(Duration::from_millis(1_300));
        }
    });
    moved.await.unwrap();
    is_over.store(true, Ordering::SeqCst);
    for worker in workers {
        let turns = worker.await.unwrap();
        assert!(turns > 15, "{turns}");
    }
    assert!(cluster.masters.iter().all(|master| master.info_u64("lockmod_idle_deleted") > 0));
    kept.release().await.expect("it was held all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_is_found() {
    let settings = || Server::builder().module_arg("max-ttl", 1_500);
    let settings = || settings().config("cluster-node-timeout", 500);
    let settings = || settings().config("cluster-replica-validity-factor", 0);
    let mut cluster = Cluster::start(3, settings);
    let replicas = cluster.start_replicas(1, settings);
    let owner = cluster.owner("res");
    let replica = &replicas[owner][0];
    let locker = builder(&[cluster.url()]).ttl(millis(1_500)).build().unwrap();
    let guard = locker.acquire("res").await.unwrap();
    let fence = guard.fence();
    guard.release().await.unwrap();
    // Replicas without `lockmod.replicas`, each with its own master.
    let start = Instant::now();
    loop {
        let survey = locker.survey(0).await;
        let excess = &survey.nodes[0].status.as_ref().unwrap().excess;
        assert!(excess.iter().all(|one| (one.attached, one.replicas) == (1, 0)), "{excess:?}");
        let masters: Vec<_> = excess.iter().filter_map(|excess| excess.master.clone()).collect();
        if masters == survey.nodes[0].masters {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "not all replicas are attached: {excess:?}");
    }
    cluster.masters[owner].kill();
    let guard = locker.acquire("res").wait(Duration::from_secs(60)).await.unwrap();
    assert!(guard.fence() > fence && is_held(replica, "res"));
    guard.release().await.unwrap();
    // Its own former master is to be started, which is a replica nowhere.
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let missing = locker.missing_replicas().await;
    let told = missing.iter().map(|one| [&*one.master, &*one.replica]).collect::<Vec<_>>();
    assert_eq!(told, [[place(replica), place(&cluster.masters[owner])]], "{missing:?}");
}

/// Regression: the first server that answered was followed, whatever it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_a_part_of_the_slots_is_followed_only_if_no_other_has_all() {
    let cluster = Cluster::start(2, server);
    let other = server().in_cluster().config("cluster-require-full-coverage", "no").start();
    other.run("CLUSTER ADDSLOTSRANGE 0 9000").unwrap();
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let url = cluster.url().replacen("://", &format!("://{},", place(&other)), 1);
    let locker = builder(&[url]).build().expect("the settings are good");
    // "b" and "c" are in slots that the other one has, too.
    for name in ["a", "b", "c", "d"] {
        let guard = locker.acquire(name).await.expect("the Cluster has all slots");
        assert_eq!((all_leases(&cluster, name), is_held(&other, name)), (1, false));
        guard.release().await.expect("it was held");
    }
    let hangs = server().in_cluster().start();
    hangs.pause();
    let places = [&hangs, &other].map(place).join(",");
    let locker = builder(&[format!("redis+cluster://{places}")]).build().expect("they are good");
    locker.acquire("b").await.expect("what it has").release().await.expect("it was held");
    hangs.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_cluster_is_refused_with_what_to_do() {
    let mut cluster = Cluster::start(2, server);
    let others = nodes(1);
    let no_cluster = others[0].url().replace("redis:", "redis+cluster:");
    let error = refused(builder(&[no_cluster])).await;
    assert!(error.to_string().contains("not a node of a Cluster: write redis://"), "{error}");
    assert!(matches!(error, AcquireError::Refused(_)), "{error}");
    let seed = |index: usize| cluster.masters[index].url().replace("redis:", "redis+cluster:");
    let twice = builder(&[cluster.url(), seed(1)]).allow_even_nodes().build();
    assert!(matches!(twice, Err(BuildError::SameNode { .. })), "{twice:?}");
    let both = builder(&[seed(0), cluster.masters[1].url()]).allow_even_nodes().build().unwrap();
    let same = |vote: &Vote| matches!(vote, Vote::Refused(text) if text.contains("same server"));
    let start = Instant::now();
    while !both.settle().await.iter().any(|report| same(&report.vote)) {
        assert!(start.elapsed() < PATIENCE, "both count");
    }
    // Regression: each master had its vote for one of the two at random, so both were to be
    // removed, and what was refused for another reason was tried again until the end.
    let urls = [seed(0), seed(1), others[0].url()];
    let both = builder(&urls[..2]).allow_even_nodes().wait(PATIENCE).build().unwrap();
    let error = both.acquire("res").await.unwrap_err();
    let same = |vote: &Vote| matches!(vote, Vote::Refused(text) if text.contains("same Cluster"));
    assert!(matches!(error, AcquireError::Refused(_)), "{error}");
    assert_eq!(error.nodes().iter().filter(|report| same(&report.vote)).count(), 1, "{error}");
    let most = builder(&urls).build().unwrap();
    for number in 0..8 {
        most.acquire(format!("lock-{number}")).await.unwrap().release().await.unwrap();
    }
    let later = urls[1].replace("redis+cluster://", "cluster:");
    let told = format!("remove {later}, and write its servers into the other URL\n");
    for args in [&["run", "a", "--", "true"][..], &["status"]] {
        let mut command = lockmod(&[], args);
        let output = command.env("LOCKMOD_NODES", urls.join(",")).output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains("is the same Cluster as cluster:") && said.contains(&told), "{said}");
        assert!(output.status.success() && said.matches(&told).count() == 1, "{args:?}: {said}");
    }
    cluster.masters.iter_mut().for_each(Server::kill);
    let silent = refused(builder(&[cluster.url()])).await.to_string();
    assert!(silent.contains("no known server of the Cluster answers: 127.0.0.1:"), "{silent}");
}

/// Regression: a master that was listed by itself granted the lock, another one of its Cluster
/// passed the message on, and the client counted two votes of three. (If both ways to the master
/// worked, one of the two nodes would be refused.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_grant_that_a_cluster_passes_on_has_no_vote_of_its_own() {
    let (cluster, alone) = (Cluster::start(2, server), nodes(1));
    let [hidden, other] = &cluster.masters[..] else { panic!("two masters") };
    let (name, elsewhere) = (cluster.tag_at(0), cluster.tag_at(1));
    hidden.run("CONFIG SET cluster-announce-port 1").expect("nobody listens there");
    let is_known = || {
        let told = other.run("CLUSTER SLOTS").map(|slots| format!("{slots:?}"));
        told.is_ok_and(|slots| slots.contains("int(1),"))
    };
    wait_until("the other one knows", is_known);
    for server in [hidden, &alone[0]] {
        server.run(&format!("LOCK.ACQUIRE {name} holder 60000")).expect("it is free");
    }
    let seed = format!("redis+cluster://127.0.0.1:{}", other.port());
    let urls = [hidden.url(), seed, alone[0].url()];
    let locker = builder(&urls).timeout(millis(200)).build().unwrap();
    // A connection to the other master, on which the message is heard.
    let guard = locker.acquire(&elsewhere).wait(millis(500)).await;
    drop(guard);
    let waiting = tokio::spawn(locker.acquire(&name).wait(Duration::from_secs(4)).into_future());
    let is_in_line = || info(hidden, &name, "waiters") == Some(Value::Int(1));
    until("it is in line", is_in_line).await;
    hidden.run(&format!("LOCK.RELEASE {name} holder HANDOVER")).expect("it holds the lock");
    let acquired = waiting.await.unwrap();
    assert!(acquired.is_err(), "by one vote of three: {acquired:?}");
}

/// Together with two servers, a Cluster is one vote of three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_one_node_of_a_quorum() {
    let cluster = Cluster::start(2, server);
    let others = nodes(2);
    let locker = builder(&[others[0].url(), cluster.url(), others[1].url()]).build().unwrap();
    connected(&locker).await;
    for number in 0..8 {
        let name = format!("lock-{number}");
        let guard = locker.acquire(&name).await.unwrap();
        let held = || leases(&others, &name) + all_leases(&cluster, &name);
        until("all have it", || held() == 3).await;
        let survey = locker.survey(10).await;
        assert_eq!(survey.locks[name.as_bytes()].held_count(), 3, "{name}");
        guard.release().await.unwrap();
    }
}

#[test]
fn the_commands_take_a_cluster() {
    let cluster = Cluster::start(3, server);
    let url = cluster.url();
    let succeeds = |args: &[&str]| {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    for name in ["a", "b", "c", "d", "e", "f"] {
        let run = ["run", name, "--", "sh", "-c", "echo $LOCKMOD_FENCE"];
        assert_eq!(succeeds(&run), "1\n");
        succeeds(&["acquire", name, "--ttl", "10s", "--label", "ada"]);
        assert_eq!(succeeds(&["fence", name]), "2\n");
    }
    let list = succeeds(&["list"]);
    assert_eq!(list.matches("held, fence 2 by ada").count(), 6, "{list}");
    let shown = succeeds(&["status"]);
    let port = cluster.masters[0].port();
    let node = format!("cluster:127.0.0.1:{port} at 3 masters  master  grants  6 ");
    assert!(shown.contains(&node), "{shown}");
    assert!(succeeds(&["status", "--json"]).contains("\"masters\":[\"127.0.0.1:"));
}

/// Regression: a Cluster was reported as wholly unreachable, and one of its masters as an ordinary
/// node.
#[test]
fn status_says_in_which_part_of_its_slots_a_cluster_grants() {
    let settings = || server().config("cluster-require-full-coverage", "no");
    let mut cluster = Cluster::start(3, settings);
    let status = |url: &str, args: &[&str]| {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", url).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let one = cluster.masters[1].url();
    let (code, shown, told) = status(&one, &["status"]);
    assert!(code == Some(121) && shown.contains("  grants in 5461 of 16384 slots  "), "{shown}");
    let place = one.replace("redis:", "redis+cluster:");
    assert!(told.contains("is one server of a Cluster, and has only"), "{told}");
    assert!(told.contains(&format!("for all of them write {place}, or rediss")), "{told}");
    // Regression: three masters of one Cluster seemed to be a quorum of three nodes.
    let urls: Vec<String> = cluster.masters.iter().map(Server::url).collect();
    let (code, _, told) = status(&urls.join(","), &["status"]);
    assert!(code == Some(121) && told.contains("3 in part of the slots"), "{told}");
    let name = cluster.tag_at(0);
    let failing = format!("127.0.0.1:{}", cluster.masters[2].port());
    cluster.masters[2].kill();
    let (code, shown, told) = status(&cluster.url(), &["status"]);
    let state = format!("grants in 10922 of 16384 slots; {failing}: unreachable");
    assert!(code == Some(121) && shown.contains(&state), "{shown}{told}");
    // Others may reach what this command does not.
    let end = "grants locks in some slots, and does not show whether it does in others";
    assert!(told.contains(end), "{told}");
    let (_, json, _) = status(&cluster.url(), &["status", "--json"]);
    let of_slots =
        format!("\"slots_granting\":10922,\"failing_masters\":[{{\"master\":\"{failing}");
    assert!(json.contains(&of_slots) && json.contains("\"slots_unknown\":5462"), "{json}");
    assert!(json.contains("\"granting\":false,\"state\":\"grants in 10922 of 16384"), "{json}");
    let metrics = Exporter::start_with(&[], &["--nodes", &cluster.url()]).metrics();
    assert!(metrics.contains("lockmod_slots_granting{node=\"") && metrics.contains("} 10922\n"));
    let unknown = format!("the locks in 5462 of 16384 slots are not known: {failing}: unreachable");
    assert!(told.contains(&unknown), "{told}");
    // Regression: it listed nothing, without an error, as if nothing were held.
    let (code, shown, told) = status(&cluster.url(), &["list"]);
    assert_eq!((code, &*shown), (Some(121), ""), "{told}");
    assert!(
        told.contains(&unknown) && told.contains("0 of 1 node reported all its locks"),
        "{told}"
    );
    assert_eq!(status(&cluster.url(), &["run", &name, "--", "true"]).0, Some(0));
}

/// Regression: a Cluster's row had the error that clients get, without the time and the number of
/// replicas.
#[test]
fn a_master_without_its_replicas_is_described_in_a_cluster_as_by_itself() {
    let settings = || Server::builder().module_arg("max-ttl", 1_000).module_arg("replicas", 1);
    let cluster = Cluster::start(2, settings);
    let mut replicas = cluster.start_replicas(1, settings);
    let status = |url: &str| {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", url).output().unwrap();
        text(&output.stdout)
    };
    wait_until("all masters grant", || {
        status(&cluster.url()).contains("  grants; 1 of 1 replicas")
    });
    let port = cluster.masters[1].port();
    let alone = "0 of 1 replicas support it, and it needs 1 of them  ";
    let part = "grants in 8192 of 16384 slots; ";
    replicas[1][0].kill();
    wait_until("it lacks authority", || status(&cluster.url()).contains(part));
    let shown = status(&cluster.url());
    // The wait, and what it takes to get authority.
    let expected = format!("  {part}127.0.0.1:{port}: grants nothing for at least ");
    assert!(shown.contains(&expected) && shown.contains(alone), "{shown}");
    let one = status(&cluster.masters[1].url());
    let own = "  master  grants nothing for at least ";
    assert!(one.contains(own) && one.contains(alone), "{one}");
    // When none grants, the row has the numbers of one master.
    replicas[0][0].kill();
    wait_until("both lack it", || !status(&cluster.url()).contains(part));
    let shown = status(&cluster.url());
    assert!(shown.contains(own) && shown.contains(alone), "{shown}");
    // Regression: it named none of them.
    let names = |master: &Server| shown.contains(&format!("; 127.0.0.1:{}: ", master.port()));
    assert!(cluster.masters.iter().all(names), "{shown}");
}

#[test]
fn replicas_that_a_cluster_expects_and_masters_lack_are_named() {
    let cluster = Cluster::start(2, || Server::builder().module_arg("max-ttl", 1_000));
    let mut replicas = cluster.start_replicas(1, || Server::builder().module_arg("max-ttl", 1_000));
    let status = || {
        let mut status = lockmod(&[], &["status", "--json"]);
        let output = status.env("LOCKMOD_NODES", cluster.url()).output().unwrap();
        (text(&output.stdout), text(&output.stderr))
    };
    assert!(!status().0.contains("missing_replicas"));
    let place = |server: &Server| format!("127.0.0.1:{}", server.port());
    let places = [place(&replicas[0][0]), place(&replicas[1][0])];
    replicas[1][0].kill();
    replicas[0][0].run("CONFIG SET masterauth wrong").unwrap();
    cluster.masters[0].run("CLIENT KILL TYPE replica").unwrap();
    let reasons = ["its link to the master is down", "it cannot be reached"];
    for (index, (place_of, reason)) in places.iter().zip(reasons).enumerate() {
        let master = place(&cluster.masters[index]);
        let key = format!(r#"{{"address":"{place_of}","master":"{master}","reason":"{reason}"}}"#);
        wait_until("it is in the JSON", || status().0.contains(&key));
        let warning = format!("{master}: {place_of} should follow it, and does not");
        let said = status().1;
        assert!(said.contains(&format!("{warning}: {reason}")), "{said}");
    }
}

/// Regression: a Cluster of which one master waited in some of its slots counted as granting,
/// without a time, and no alert fired.
#[test]
fn status_and_the_exporter_tell_in_how_many_slots_a_master_does_not_grant_yet() {
    let settings = || {
        let server = server().config("cluster-require-full-coverage", "no");
        server.config("appendonly", "yes").config("appendfsync", "always")
    };
    let mut cluster = Cluster::start(3, settings);
    let (name, url) = (cluster.tag_at(0), cluster.url());
    let status = |url: &str, args: &[&str]| {
        let args = [&["status"], args].concat();
        let output = lockmod(&[], &args).env("LOCKMOD_NODES", url).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    // Of slots that a master still asks about, status says that they are granted.
    wait_until("all masters grant in all slots", || {
        let (code, json) = status(&url, &["--json"]);
        code == Some(0) && json.contains("\"unsettled_slots\":0,")
    });
    let port = cluster.masters[1].port();
    let (one, exporter) = (cluster.masters[1].url(), Exporter::start(&cluster.masters[1..2]));
    let metric = |name: &str| format!("lockmod_{name}{{node=\"127.0.0.1:{port}\"}}");
    let metrics = exporter.metrics();
    assert!(metrics.contains(&format!("{} 0\n", metric("unsettled_slots"))), "{metrics}");
    assert!(metrics.contains(&format!("{} 0\n", metric("unsettled_left_seconds"))), "{metrics}");
    let json = status(&url, &["--json"]).1;
    assert!(json.contains("\"unsettled_slots\":0,\"unsettled_left_ms\":0,"), "{json}");
    cluster.masters[0].kill();
    let slot = cluster.masters[1].run(&format!("CLUSTER KEYSLOT {name}")).unwrap();
    let slot: u16 = redis::from_redis_value(slot).unwrap();
    let id = cluster.masters[1].run("CLUSTER MYID").unwrap();
    let id: String = redis::from_redis_value(id).unwrap();
    cluster.masters[1].run(&format!("CLUSTER SETSLOT {slot} NODE {id}")).unwrap();
    // It asks the dead master, and in the end waits.
    wait_until("it has seen its new slot", || {
        status(&one, &[]).1.contains("  grants in 5462 of 16384 slots; nothing yet in 1 of them  ")
    });
    let waits = "grants nothing in 1 slot for at least ";
    wait_until("it waits", || status(&one, &[]).1.contains(waits));
    cluster.masters[0].start_again();
    let part = format!("  grants in 16383 of 16384 slots; 127.0.0.1:{port}: {waits}");
    wait_until("the other is back", || status(&url, &[]).1.contains(&part));
    let (code, table) = status(&url, &[]);
    assert!(code == Some(121) && table.contains("grants locks in some slots; in the"), "{table}");
    // Regression: it said that the lock was free and never held, and no more.
    let output = lockmod(&[], &["info", &name]).env("LOCKMOD_NODES", &url).output().unwrap();
    let told = text(&output.stdout) + &text(&output.stderr);
    assert!(told.contains("in quarantine for "), "{told}");
    // Regression: these said so of the lock without a word.
    for args in [&["fence", &*name][..], &["list"]] {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
        let said = text(&output.stderr);
        assert!(said.contains(&format!(" at 127.0.0.1:{port} {waits}")), "{args:?}: {said}");
        assert!(said.contains("it may not know who holds a lock there"), "{args:?}: {said}");
    }
    let (_, table) = status(&one, &[]);
    assert!(table.contains(&format!("  grants in 5461 of 16384 slots; {waits}")), "{table}");
    let json = status(&url, &["--json"]).1;
    for told in [
        "\"granting\":false,\"state\":\"grants in 16383 of 16384 slots; ",
        "\"slots_granting\":16383,",
        &format!("{{\"master\":\"127.0.0.1:{port}\",\"error\":\"not serving: {waits}"),
        "\"unsettled_slots\":1,\"unsettled_left_ms\":",
    ] {
        assert!(json.contains(told), "{told}: {json}");
    }
    let granting = format!("{} 5461\n", metric("slots_granting"));
    wait_until("an old answer is over", || exporter.metrics().contains(&granting));
    let metrics = exporter.metrics();
    assert!(metrics.contains(&format!("{} 1\n", metric("unsettled_slots"))), "{metrics}");
    let left = metric("unsettled_left_seconds") + " ";
    let left = metrics.lines().find_map(|line| line.strip_prefix(&left)).expect("it is exported");
    assert!((1.0..66.0).contains(&left.parse::<f64>().unwrap()), "{left}");
}

/// Regression: the locks that had moved ahead were in no list. When the new master died, all was
/// said to be well, and the error named the other one.
#[test]
fn a_slot_that_moves_to_a_master_without_slots_is_followed_everywhere() {
    let settings = || server().config("cluster-require-full-coverage", "no");
    let mut cluster = Cluster::start(2, settings);
    cluster.add_idle(settings());
    let (name, url) = (cluster.tag_at(0), cluster.url());
    let place = |index: usize| format!("127.0.0.1:{}", cluster.masters[index].port());
    let (from, to) = (place(0), place(2));
    let at = format!(" at {to}");
    let told = |args: &[&str]| {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let slot = cluster.begin_to_move(&name, 2);
    let held = format!("{name}: held");
    wait_until("it grants there", || {
        told(&["acquire", &name, "--ttl", "60s", "--wait", "5s"]).0 == Some(0)
    });
    let (code, listed, said) = told(&["list"]);
    assert!(code == Some(0) && listed.contains(&held), "{listed}{said}");
    let (code, table, said) = told(&["status"]);
    let line = format!(": 1 slot is moving from {from} to {to}\n");
    assert!(code == Some(0) && table.contains(&line) && table.contains(&name), "{table}{said}");
    let (_, json, _) = told(&["status", "--json"]);
    let masters = format!("\"from\":\"{from}\",\"to\":\"{to}\"");
    let moving = format!("\"moving_slots\":[{{\"slots\":1,\"untaken\":0,{masters}}}]");
    assert!(json.contains(&moving) && json.contains("\"slots_granting\":16384"), "{json}");
    // Regression: it was said that the node grants nothing there.
    let (_, told_of, said) = told(&["info", &name]);
    assert!(told_of.contains(&at) && !told_of.contains("grants nothing"), "{told_of}{said}");
    let exporter = Exporter::start_with(&[], &["--nodes", &url]);
    wait_until("it is exported", || {
        let metrics = exporter.metrics();
        metrics.lines().any(|it| it.starts_with("lockmod_slots_moving{") && it.ends_with("} 1"))
    });

    cluster.masters[2].kill();
    for args in [&["acquire", &*name, "--wait", "0s"][..], &["info", &name]] {
        let (_, listed, said) = told(args);
        assert!(format!("{listed}{said}").contains(&at), "{args:?}: {listed}{said}");
    }
    let state = format!("  grants in 16383 of 16384 slots; {to}: unreachable");
    let (code, table, said) = told(&["status"]);
    assert!(code == Some(121) && table.contains(&state), "{table}{said}");
    let (code, listed, said) = told(&["list"]);
    let unknown = format!("the locks in 1 of 16384 slots are not known: {to}: unreachable");
    assert!(code == Some(121) && said.contains(&unknown), "{listed}{said}");
    cluster.masters[0].run(&format!("CLUSTER SETSLOT {slot} STABLE")).unwrap();
    let (_, json, said) = told(&["status", "--json"]);
    assert!(json.contains("\"moving_slots\":[]"), "{json}{said}");
}

/// Regression: it was not said which master has to allow it.
#[test]
fn the_master_that_does_not_allow_a_search_is_named() {
    let cluster = Cluster::start(2, server);
    for (master, rights) in cluster.masters.iter().zip(["", "-scan"]) {
        master.run(&format!("ACL SETUSER few on >s3cret ~* &* +@all {rights}")).unwrap();
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://few:s3cret@");
    let place = format!("127.0.0.1:{}", cluster.masters[1].port());
    for args in [&["status"][..], &["status", "--json"], &["list"]] {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains(&format!("denied access: {place}: NOPERM")), "{args:?}: {said}");
    }
}

/// Regression: all was said to be well while masters disagreed about a slot, and while a move was
/// open at one side only: no lock that was free could be acquired there.
#[test]
fn slots_in_which_no_master_grants_are_not_counted() {
    let cluster = Cluster::start(2, || server().config("cluster-require-full-coverage", "no"));
    let url = cluster.url();
    let status = || {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", &url).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let name = cluster.tag_at(0);
    let slot: u16 = redis::from_redis_value(
        cluster.masters[0].run(&format!("CLUSTER KEYSLOT {name}")).unwrap(),
    )
    .unwrap();
    let id: String =
        redis::from_redis_value(cluster.masters[1].run("CLUSTER MYID").unwrap()).unwrap();
    cluster.masters[0].run(&format!("CLUSTER SETSLOT {slot} MIGRATING {id}")).unwrap();
    let (code, told) = status();
    let to = format!("127.0.0.1:{}", cluster.masters[1].port());
    assert!(told.contains(&format!(" to {to}, which does not import 1 of them: ")), "{told}");
    assert!(code == Some(121) && told.contains("  grants in 16383 of 16384 slots"), "{told}");
    cluster.masters[0].run(&format!("CLUSTER SETSLOT {slot} STABLE")).unwrap();
    assert_eq!(status().0, Some(0));
    // The other still believes in it.
    cluster.masters[0].run(&format!("CLUSTER DELSLOTS {slot}")).unwrap();
    let part = "  grants in 16383 of 16384 slots; no master has the others";
    let (code, told) = status();
    assert!(code == Some(121) && told.contains(part), "{told}");
}

/// Regression: the masters were searched at different times, and `list` was empty once in a hundred
/// calls.
#[test]
fn a_lock_that_moves_is_always_listed() {
    let cluster = Cluster::start(2, server);
    let (name, url) = (cluster.tag_at(0), cluster.url());
    let args = ["acquire", &name, "--ttl", "60s", "--wait", "5s"];
    assert!(lockmod(&[], &args).env("LOCKMOD_NODES", &url).status().unwrap().success());
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let listing = threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let output = lockmod(&[], &["list"]).env("LOCKMOD_NODES", &url).output().unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let listed = text(&output.stdout);
                assert!(listed.contains(&name), "{listed}{}", text(&output.stderr));
            }
        });
        for number in 0..30 {
            let before = count.load(Ordering::Relaxed);
            cluster.move_slot(&name, 1 - number % 2);
            wait_until("it is listed", || count.load(Ordering::Relaxed) > before);
        }
        is_over.store(true, Ordering::Relaxed);
        listing.join().expect("it is always listed");
    });
}

/// Regression: a Cluster was as good as lost while the first server of its URL was silent.
#[test]
fn a_server_that_hangs_does_not_hide_the_others_of_a_cluster() {
    let settings = || server().config("cluster-require-full-coverage", "no");
    let cluster = Cluster::start(3, settings);
    let run = |args: &[&str]| {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", cluster.url()).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    assert!(cluster.url().contains(&format!("//127.0.0.1:{},", cluster.masters[0].port())));
    let (silent, name) = (cluster.tag_at(0), cluster.tag_at(2));
    cluster.masters[0].pause();
    let (_, told) = run(&["status"]);
    assert!(told.contains("grants in 10923 of 16384 slots"), "{told}");
    let (code, told) = run(&["acquire", &name]);
    assert_eq!(code, Some(0), "{told}");
    // Regression: errors named the first server of the URL, whichever master failed.
    let place = format!("at 127.0.0.1:{}", cluster.masters[0].port());
    for args in [&["acquire", &silent, "--wait", "0s"][..], &["fence", &silent], &["info", &silent]]
    {
        let (code, told) = run(args);
        assert!(code == Some(121) && told.contains(&place), "{args:?}: {told}");
    }
    let (_, told) = run(&["acquire", &silent, "--wait", "0s", "--json"]);
    assert!(told.contains(&place.replace("at ", "\"master\":\"")), "{told}");
    let (_, told) = run(&["status", "--json"]);
    assert!(told.contains("\"cut\":true"), "locks may be missing: {told}");
    let (code, told) = run(&["list"]);
    assert!(code == Some(121) && told.contains("in 5461 of 16384 slots are not known"), "{told}");
    cluster.masters[0].resume();
}

/// A server that says that it has all slots, wants each acquire later so many times, and then
/// sends it on to another port.
fn hesitant(delays: u64, to: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || hesitate(stream, &asked, (delays, port, to)));
        }
    });
    port
}

/// The words of the next command, an array of bulk strings.
fn read_command(from: &mut impl BufRead) -> Option<Vec<String>> {
    let number = |from: &mut dyn BufRead| -> Option<usize> {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.get(1..)?.trim().parse().ok()
    };
    let count = number(from)?;
    let words = (0..count).map(|_| {
        let mut bytes = vec![0; number(from)? + 2];
        from.read_exact(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned())
    });
    words.collect()
}

fn hesitate(stream: TcpStream, asked: &AtomicU64, (delays, own, to): (u64, u16, u16)) {
    let (mut replies, mut commands) = (stream.try_clone().unwrap(), BufReader::new(stream));
    while let Some(command) = read_command(&mut commands) {
        let reply = match &*command[0] {
            "PING" => "+PONG\r\n".to_owned(),
            "CLUSTER" => format!(
                "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{own}\r\n$2\r\nid\r\n"
            ),
            "LOCK.ACQUIRE" if asked.fetch_add(1, Ordering::Relaxed) < delays => {
                "-TRYAGAIN later\r\n".to_owned()
            }
            "LOCK.ACQUIRE" => format!("-MOVED 7 127.0.0.1:{to}\r\n"),
            _ => "-ERR unknown command\r\n".to_owned(),
        };
        if replies.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// Regression: a master that wants a command later, and one that sends it on, were counted
/// together. After eight delays, in a third of a second, a command was not sent on any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_was_wanted_later_is_sent_on_as_any_other() {
    let target = nodes(1);
    for delays in [0, 1, 9] {
        let url = format!("redis+cluster://127.0.0.1:{}", hesitant(delays, target[0].port()));
        // Enough for nine pauses, and for a machine that has more to do.
        let locker = builder(&[url]).timeout(Duration::from_secs(3)).build().unwrap();
        let acquired = locker.try_acquire(format!("{delays}")).await;
        acquired.expect("the other one grants").release().await.ok();
    }
}

/// Regression: the client asked again until its time was over, and a master that had answered each
/// time was said to have timed out.
#[test]
fn a_master_that_lacks_the_others_is_reported_with_what_it_answers() {
    let cluster = Cluster::start(3, || server().config("cluster-require-full-coverage", "no"));
    let name = cluster.tag_at(0);
    cluster.masters[1..].iter().for_each(Server::pause);
    let (mut said, mut count) = (String::new(), 0);
    wait_until("it lacks them", || {
        count += 1;
        let mut acquire = lockmod(&[], &["acquire", &format!("{name}-{count}")]);
        let output = acquire.env("LOCKMOD_NODES", cluster.url()).output().unwrap();
        said = text(&output.stderr);
        output.status.code() == Some(121)
    });
    assert!(said.contains("TRYAGAIN either slot"), "{said}");
    let (answered, others) = said.split_once("; 127.0.0.1:").expect("those that it lacks");
    assert!(!answered.contains("timed out") && !said.contains("slow network"), "{said}");
    assert!(others.contains(&cluster.masters[2].port().to_string()), "{said}");
    // Regression: it had timed out, as if it had been asked for the lock.
    cluster.masters[0].pause();
    let mut acquire = lockmod(&[], &["acquire", &name]);
    let output = acquire.env("LOCKMOD_NODES", cluster.url()).output().unwrap();
    let told = text(&output.stderr);
    let place = cluster.url().replace("redis+cluster://", "").replace(',', ", ");
    let silence = format!("unreachable (no known server of the Cluster answers: none of {place}");
    assert!(told.contains(&silence), "{told}");
    cluster.masters.iter().for_each(Server::resume);
}

/// By default, the rest of a Cluster refuses everything then.
#[test]
fn status_says_of_a_cluster_that_is_down_that_it_grants_nothing() {
    let mut cluster = Cluster::start(3, || server().config("cluster-node-timeout", 500));
    let (url, name) = (cluster.url(), cluster.tag_at(0));
    cluster.masters[2].kill();
    // Which master is down was told only until the others noticed.
    let place = format!("127.0.0.1:{}", cluster.masters[2].port());
    let cause = format!("CLUSTERDOWN its Cluster is down: {place}: unreachable");
    wait_until("status sees it", || {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", &url).output().unwrap();
        output.status.code() == Some(121) && text(&output.stdout).contains(&cause)
    });
    let output = lockmod(&[], &["run", &name, "--wait", "2s", "--", "true"])
        .env("LOCKMOD_NODES", &url)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    let waiting = format!("lockmod: waiting for '{name}': 1 of 1 node ");
    assert!(said.starts_with(&waiting), "{said}");
    // Regression: only the error that followed named it.
    let first = said.lines().next().unwrap();
    assert!(first.contains(&format!("{place}: unreachable")), "{said}");
    // Regression: they named only the server that told them.
    for args in [&["acquire", &name][..], &["info", &name]] {
        let output = lockmod(&[], args).env("LOCKMOD_NODES", &url).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        let cause = format!("{place}: unreachable");
        assert!(said.contains("CLUSTERDOWN") && said.contains(&cause), "{args:?}: {said}");
    }
}

/// While another server answers, nobody noticed one that never would help.
#[test]
fn status_names_the_servers_in_a_url_that_do_not_lead_to_the_node() {
    let (mut cluster, others) = (Cluster::start(2, server), nodes(1));
    let other = Cluster::start(1, server);
    let [stranger, alone] = [&other.masters[0], &others[0]].map(|server| server.port());
    let url = format!("{},127.0.0.1:{stranger},127.0.0.1:{alone}", cluster.url());
    let told = |url: &str| {
        let output = lockmod(&[], &["status"]).env("LOCKMOD_NODES", url).output().unwrap();
        text(&output.stderr)
    };
    assert_eq!(told(&cluster.url()), "");
    let said = told(&url);
    let told_of = "a server in its URL does not belong to it: 127.0.0.1";
    assert!(said.contains(&format!("{told_of}:{stranger}: a server of another Cluster")), "{said}");
    assert!(said.contains(&format!("{told_of}:{alone}: it is not a node of a Cluster")), "{said}");
    assert_eq!(said.matches(told_of).count(), 2, "{said}");
    // Two clients that found different Clusters had the lock.
    let mut run = lockmod(&[], &["run", "a", "--", "true"]);
    let output = run.env("LOCKMOD_NODES", &url).output().unwrap();
    assert_eq!(text(&output.stderr).matches(told_of).count(), 2);
    let dead = cluster.masters[1].port();
    cluster.masters[1].kill();
    let said = told(&cluster.url());
    assert!(said.contains(&format!("unreachable: 127.0.0.1:{dead}: connection refused")), "{said}");
}

#[test]
fn a_local_cluster_is_one_node() {
    let folder = tempfile::tempdir().unwrap();
    let command = nodes_command(&["--cluster", "3"], folder.path());
    let RunningNodes { mut child, said, urls: url, .. } = RunningNodes::start(command);
    assert!(said.starts_with("a Cluster of 3 masters in "), "{said}");
    for name in ["a", "b", "c", "d"] {
        let mut run = lockmod(&[], &["run", name, "--", "true"]);
        assert!(run.env("LOCKMOD_NODES", &url).status().unwrap().success());
    }
    signal(&child, Signal::TERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_local_cluster_says_how_to_start_a_server_again_without_which_a_replica_never_grants() {
    let folder = tempfile::tempdir().unwrap();
    let replicas = nodes_command(&["--cluster", "3", "--replicas", "1"], folder.path());
    let mut replicas = RunningNodes::start(replicas);
    assert!(replicas.said.starts_with("a Cluster of 3 masters with 1 replica each in "));
    wait_until("each master has its replica", || {
        let mut status = lockmod(&[], &["status"]);
        let output = status.env("LOCKMOD_NODES", &replicas.urls).output().unwrap();
        text(&output.stdout).contains("; 1 of 1 replicas")
    });
    // Regression: nothing said how to start the ended server again, without which its replica
    // never grants.
    let mut lines = replicas.lines.map(Result::unwrap);
    let hint = lines.find(|line| line.contains("which grants once that server is back")).unwrap();
    let port = hint.strip_prefix("redis-cli -p ").unwrap().split(' ').next().unwrap();
    let url = format!("redis://127.0.0.1:{port}");
    let ended = redis::cmd("SHUTDOWN").query::<()>(&mut redis::Client::open(url).unwrap());
    assert!(ended.is_err(), "it closes the connection");
    let mut said = BufReader::new(replicas.child.stderr.take().unwrap()).lines();
    let said = said.find_map(|line| line.unwrap().split('`').nth(1).map(str::to_owned)).unwrap();
    wait_until("another takes its place", || {
        let mut status = lockmod(&[], &["status", "--json"]);
        let output = status.env("LOCKMOD_NODES", &replicas.urls).output().unwrap();
        let json = text(&output.stdout);
        let masters = json.split("\"masters\":").nth(1).expect("there are several");
        !masters.contains(&format!(":{port}\""))
    });
    let mut words = said.split(' ');
    let mut again = Command::new(words.next().unwrap());
    let mut again = again.args(words).stdout(Stdio::null()).spawn().unwrap();
    wait_until("it is the replica of its successor", || {
        let info = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        let info = info.get_connection().and_then(|mut conn| redis::cmd("ROLE").query(&mut conn));
        info.is_ok_and(|role: Value| format!("{role:?}").contains("connected"))
    });
    signal(&replicas.child, Signal::TERM);
    assert!(replicas.child.wait().unwrap().success());
    again.kill().unwrap();
    again.wait().unwrap();
}
