//! Masters with `lockmod.replicas`: which server grants when a master is lost, stopped, cut off or
//! replaced.

use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::common::{Flow, Proxy, Server, cmd, wait_for, wait_until};
use crate::{acquire, first_grant, quarantine_left};

const MAX_TTL_MS: u64 = 1_000;

fn member(max_ttl_ms: u64) -> crate::common::Builder {
    Server::builder()
        .config("repl-diskless-sync", "yes")
        .module_arg("max-ttl", max_ttl_ms)
        .module_arg("replicas", 2)
}

/// Leases that last longer than it takes to get authority.
const LONG_MS: u64 = 10_000;

fn replica_at(port: u16, max_ttl_ms: u64) -> crate::common::Builder {
    member(max_ttl_ms).config("replicaof", format!("127.0.0.1 {port}"))
}

/// A master and two replicas, which follow it through links that a test may cut.
struct Group {
    master: Server,
    replicas: [Server; 2],
    links: [Proxy; 2],
}

impl Group {
    fn start() -> Group {
        Group::with(MAX_TTL_MS)
    }

    fn with(max_ttl_ms: u64) -> Group {
        let master = member(max_ttl_ms).start();
        let links = [Proxy::to(&master), Proxy::to(&master)];
        let replicas = links.each_ref().map(|link| replica_at(link.port(), max_ttl_ms).start());
        for replica in &replicas {
            master.wait_for_replica(replica);
        }
        Group { master, replicas, links }
    }

    /// The second replica follows the first, which is a master from now on.
    fn fail_over(&self) {
        let [promoted, other] = &self.replicas;
        promoted.run("REPLICAOF NO ONE").expect("promoted");
        other.run(&format!("REPLICAOF 127.0.0.1 {}", promoted.port())).expect("it follows");
    }
}

/// The fence of the first grant, however long the node refuses before.
#[track_caller]
fn granted_in_the_end(server: &Server, name: &str, token: &str) -> u64 {
    wait_for("the node grants", || match acquire(server, name, token, MAX_TTL_MS) {
        Ok(fence) => fence,
        Err(refusal) => {
            let is_known = ["NOAUTHORITY", "QUARANTINE", "READONLY", "LOADING"];
            assert!(is_known.iter().any(|word| refusal.starts_with(word)), "{refusal}");
            None
        }
    })
}

#[track_caller]
fn wait_until_it_lacks_authority(server: &Server) {
    wait_until("the node lacks authority", || {
        let refusal = acquire(server, "probe", "probe", 1).err();
        refusal.is_some_and(|refusal| refusal.starts_with("NOAUTHORITY"))
    });
}

#[test]
fn a_master_decides_while_enough_of_its_replicas_support_it() {
    let mut group = Group::start();
    let refusal = acquire(&group.master, "lock", "early", 500).expect_err("nobody supports it yet");
    assert_eq!(
        refusal,
        "NOAUTHORITY 0 of the 1 replicas needed support this master; another may have replaced it"
    );
    let left = group.master.info_u64("lockmod_quarantine_left_ms");
    assert!(left > MAX_TTL_MS, "its wait has not begun: {left}");
    let repair = group.master.run("LOCK.EXTEND lock early 500 FENCE 1 REPAIR");
    assert!(crate::common::error_line(repair).starts_with("NOAUTHORITY"));
    let fence = granted_in_the_end(&group.master, "lock", "first");
    assert!(group.master.info_u64("lockmod_supporters") > 0);
    assert_eq!(group.master.info_u64("lockmod_supporters_needed"), 1);
    assert_eq!(group.master.info_u64("lockmod_replicas"), 2);

    // One of two replicas is lost: for longer than a heartbeat supports, nothing happens.
    group.replicas[0].kill();
    let until = Instant::now() + Duration::from_millis(6_500);
    while Instant::now() < until {
        let extended = group.master.run(&format!("LOCK.EXTEND lock first {MAX_TTL_MS}"));
        assert_eq!(extended, Ok(Value::Int(1)));
        thread::sleep(Duration::from_millis(50));
    }
    // Both are lost: the master decides nothing, but still releases leases.
    group.replicas[1].kill();
    let held = acquire(&group.master, "held", "first", MAX_TTL_MS);
    assert!(held.is_ok_and(|held| held.is_some()), "it does not know yet");
    assert!(group.master.info_u64("lockmod_supporters") > 0, "what they acknowledged still holds");
    wait_until_it_lacks_authority(&group.master);
    let extended = group.master.run("LOCK.EXTEND held first 500");
    assert!(crate::common::error_line(extended).starts_with("NOAUTHORITY"));
    assert!(group.master.run("LOCK.RELEASE held first").is_ok());
    assert!(group.master.log().contains("NOAUTHORITY: 0 of the 1 replicas"));
    // They come back: another may have been the master, so this one waits.
    group.replicas[0].start_again();
    assert!(granted_in_the_end(&group.master, "lock", "second") > fence);
    let waited = "because leases of another master may stand";
    assert!(group.master.log().matches(waited).count() > 1, "{}", group.master.log());
}

/// For an extension during its wait the new master returns another number: it counts for a holder
/// that asks no other node. Before the master has authority, it extends nothing.
#[test]
fn a_lease_that_came_with_the_data_can_live_through_the_wait() {
    let group = Group::with(LONG_MS);
    granted_in_the_end(&group.master, "lock", "first");
    for name in ["kept", "renamed"] {
        let held = acquire(&group.master, name, "holder", LONG_MS);
        assert!(held.is_ok_and(|held| held.is_some()), "{name}");
    }
    group.master.run("RENAME renamed other").expect("renamed");
    group.replicas.iter().for_each(|replica| group.master.wait_for_replica(replica));
    let master = &group.replicas[0];
    group.fail_over();
    let extend = |name: &str| master.run(&format!("LOCK.EXTEND {name} holder {LONG_MS}"));
    let (mut refused, mut carried) = (0, 0);
    wait_until("the wait is over", || {
        // The old master keeps running, and its lease ends.
        for server in [master, &group.master] {
            let rival = acquire(server, "kept", "rival", 100);
            assert!(!rival.is_ok_and(|rival| rival.is_some()), "it was held all the time");
        }
        match extend("kept") {
            Ok(Value::Int(1)) => return true,
            Ok(Value::Int(3)) => carried += 1,
            Ok(odd) => panic!("{odd:?}"),
            Err(error) => {
                assert_eq!(error.code(), Some("NOAUTHORITY"), "{error}");
                refused += 1;
            }
        }
        if carried == 1 {
            let info = master.run("LOCK.INFO kept").map(|info| format!("{info:?}"));
            let carries = |info: &String| info.contains("\"extension\"") && info.contains("int(3)");
            assert!(info.as_ref().is_ok_and(carries), "{info:?}");
            assert_eq!(extend("other"), Ok(Value::Int(2)), "it came from another name");
            let repaired = master.run("LOCK.EXTEND new holder 1000 FENCE 1 REPAIR");
            assert_eq!(repaired, Ok(Value::Int(2)), "the data do not have it");
        }
        thread::sleep(Duration::from_millis(100));
        false
    });
    assert!(refused > 0 && carried > 50, "{refused} and {carried}");
    assert_eq!(acquire(master, "kept", "rival", 100), Ok(None));
    let refusal = acquire(&group.master, "kept", "rival", 100).expect_err("it lacks authority");
    assert!(refusal.starts_with("NOAUTHORITY"), "{refusal}");
}

/// Regression: the state file said that nothing counts, and the former holder and the next one both
/// worked.
#[test]
fn a_lease_that_was_removed_is_not_carried_when_it_comes_back_with_the_data() {
    for removal in ["DEL lock", "RENAME lock other"] {
        let mut group = Group::with(LONG_MS);
        granted_in_the_end(&group.master, "probe", "first");
        for name in ["lock", "kept"] {
            let held = acquire(&group.master, name, "holder", LONG_MS);
            assert!(held.is_ok_and(|held| held.is_some()), "{name}");
        }
        group.master.run("SAVE").expect("saved");
        group.master.run(removal).expect("removed");
        let held = acquire(&group.master, "lock", "another", LONG_MS);
        assert!(held.is_ok_and(|held| held.is_some()), "{removal}");
        group.master.kill();
        group.master.start_again();
        for name in ["lock", "kept"] {
            let extend = format!("LOCK.EXTEND {name} holder {LONG_MS}");
            let extended = wait_for("the node has authority", || group.master.run(&extend).ok());
            assert_eq!(extended, Value::Int(2), "{removal}: {name}");
        }
    }
}

#[test]
fn nothing_is_carried_once_a_lease_was_restored_or_databases_were_swapped_in_the_wait() {
    let group = Group::with(LONG_MS);
    granted_in_the_end(&group.master, "lock", "first");
    let held = acquire(&group.master, "kept", "holder", LONG_MS);
    assert!(held.is_ok_and(|held| held.is_some()));
    group.replicas.iter().for_each(|replica| group.master.wait_for_replica(replica));
    let dump = group.master.run("DUMP kept").expect("dumped");
    let Value::BulkString(dump) = dump else { panic!("{dump:?}") };
    let master = &group.replicas[0];
    group.fail_over();
    let extend = |name: &str| master.run(&format!("LOCK.EXTEND {name} holder {LONG_MS}")).ok();
    assert_eq!(wait_for("it has authority", || extend("kept")), Value::Int(3));
    let mut connection = master.connect();
    let restored = cmd!(connection, "RESTORE", "restored", 0, dump);
    assert_eq!(restored, Ok(Value::Okay));
    for name in ["kept", "restored"] {
        assert_eq!(extend(name), Some(Value::Int(2)), "{name}");
    }
}

/// `min-replicas-to-write` lets such a master answer the queued requests.
#[test]
fn a_master_that_was_stopped_and_replaced_decides_nothing_that_is_in_its_sockets() {
    let group = Group::start();
    let first = granted_in_the_end(&group.master, "lock", "first");
    group.master.pause();
    let mut queued = group.master.connect_raw();
    queued.send(&["LOCK.ACQUIRE", "lock", "late", "1000"]);
    queued.send(&["LOCK.EXTEND", "lock", "first", "1000"]);
    queued.send(&["LOCK.ACQUIRE", "lock", "waits", "1000", "WAIT", "60000"]);
    group.fail_over();
    let second = granted_in_the_end(&group.replicas[0], "lock", "second");
    assert!(second > first);
    group.master.resume();
    for _ in 0..3 {
        let answer = queued.read();
        assert!(answer.starts_with(b"-NOAUTHORITY"), "{}", answer.escape_ascii());
    }
    // It finally learns of its successor, follows the new master, and that one continues.
    group.links[0].set_target(group.replicas[0].port());
    let follow = format!("REPLICAOF 127.0.0.1 {}", group.replicas[0].port());
    group.master.run(&follow).expect("it follows");
    group.replicas[0].wait_for_replica(&group.master);
    assert!(granted_in_the_end(&group.replicas[0], "another", "third") >= second);
}

#[test]
fn a_master_that_is_cut_off_stops_before_its_successor_grants() {
    let group = Group::start();
    let old = granted_in_the_end(&group.master, "lock", "old");
    for link in &group.links {
        link.set(Flow::Discard);
    }
    group.fail_over();
    // Clients that reach the old master continue there: its grants reach no replica.
    let (master, successor) = (&group.master, &group.replicas[0]);
    let (last_granted_at, first_granted_at, highest) = thread::scope(|scope| {
        let first = scope.spawn(|| {
            let fence = granted_in_the_end(successor, "lock", "new");
            (Instant::now(), fence)
        });
        let (mut last, mut highest) = (Instant::now(), old);
        let mut turn = 0;
        while !first.is_finished() {
            turn += 1;
            let token = format!("old-{turn}");
            // The time is taken when the answer arrives: the lease began before.
            if let Ok(Some(fence)) = acquire(master, "lock", &token, 200) {
                (last, highest) = (Instant::now(), fence.max(highest));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let (at, fence) = first.join().expect("granted");
        assert!(fence > highest, "{fence} after {highest}");
        (last, at, highest)
    });
    assert!(highest > old, "it went on for a moment");
    assert!(last_granted_at + Duration::from_millis(200) < first_granted_at);
    let refusal = acquire(master, "lock", "late", 200).expect_err("it lacks authority");
    assert!(refusal.starts_with("NOAUTHORITY"), "{refusal}");
}

#[test]
fn the_replica_that_lacks_the_last_grants_waits_and_goes_on_with_larger_fences() {
    let mut group = Group::start();
    granted_in_the_end(&group.master, "lock", "seen");
    group.links[0].set(Flow::Discard);
    let (unseen, asked_at) = wait_for("the lock is free", || {
        let asked_at = Instant::now();
        let fence = acquire(&group.master, "lock", "unseen", MAX_TTL_MS);
        fence.expect("the other replica is there").map(|fence| (fence, asked_at))
    });
    group.master.kill();
    group.fail_over();
    let second = granted_in_the_end(&group.replicas[0], "lock", "second");
    assert!(asked_at.elapsed() > Duration::from_millis(MAX_TTL_MS), "the lease is over");
    assert!(second > unseen);
    // A lease that came with the data did not count while the node waited. Then another failover.
    let [former, next] = &group.replicas;
    former.run(&format!("REPLICAOF 127.0.0.1 {}", next.port())).expect("it follows");
    next.run("REPLICAOF NO ONE").expect("promoted");
    assert!(granted_in_the_end(next, "lock", "third") > second);
}

#[test]
fn an_old_master_that_starts_again_decides_nothing_while_another_does_and_then_goes_on_above_it() {
    let mut group = Group::start();
    let first = granted_in_the_end(&group.master, "lock", "first");
    group.master.kill();
    group.fail_over();
    let second = granted_in_the_end(&group.replicas[0], "lock", "second");
    group.master.start_again();
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        let refusal = acquire(&group.master, "another", "late", 100).expect_err("refused");
        assert!(refusal.starts_with("NOAUTHORITY") || refusal.starts_with("LOADING"), "{refusal}");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(second > first);
    // It has not received its successor's fences.
    let port = group.master.port();
    group.replicas[1].run(&format!("REPLICAOF 127.0.0.1 {port}")).expect("it follows");
    assert!(granted_in_the_end(&group.master, "lock", "third") > second);
}

#[test]
fn a_manual_failover_waits_as_well() {
    let group = Group::start();
    let first = granted_in_the_end(&group.master, "lock", "first");
    let port = group.replicas[0].port();
    group.master.run(&format!("FAILOVER TO 127.0.0.1 {port} TIMEOUT 5000")).expect("begins");
    wait_until("the replica is promoted", || {
        group.replicas[0].info("role").is_some_and(|role| role == "master")
    });
    let refusal = acquire(&group.replicas[0], "another", "second", 100).expect_err("it waits");
    assert!(refusal.starts_with("NOAUTHORITY"), "{refusal}");
    let promoted = &group.replicas[0];
    // 5052 ms until a replica counts, and the wait.
    assert!(
        promoted.log().contains("no lock is granted for at least 6064 ms"),
        "{}",
        promoted.log()
    );
    assert!(granted_in_the_end(promoted, "lock", "second") > first);
}

const SHORT_MS: u64 = 500;

/// A group whose master was stopped after it granted a lease of the former length, and after the
/// longest lease was lowered everywhere, on the master first. Returns when the lease was asked for.
fn lowered() -> (Group, u64, Instant) {
    let group = Group::with(LONG_MS);
    let fence = wait_for("the first grant", || {
        acquire(&group.master, "lock", "long", LONG_MS).ok().flatten()
    });
    let [one, other] = &group.replicas;
    // The latest possible time: the first grant may have come out of a wait.
    let granted_at = Instant::now();
    let extended = group.master.run(&format!("LOCK.EXTEND lock long {LONG_MS}"));
    assert_eq!(extended, Ok(Value::Int(1)));
    for server in [&group.master, one, other] {
        server.run(&format!("CONFIG SET lockmod.max-ttl {SHORT_MS}")).expect("lowered");
    }
    group.master.pause();
    (group, fence, granted_at)
}

/// The promoted node grants, but not before the lease of the old master is over.
#[track_caller]
fn grants_after_the_lease(promoted: &Server, (fence, granted_at): (u64, Instant)) {
    let next = wait_for("the promoted node grants", || {
        acquire(promoted, "lock", "next", SHORT_MS).ok().flatten()
    });
    let passed = granted_at.elapsed();
    assert!(passed > Duration::from_millis(LONG_MS), "{passed:?}: the lease stands");
    assert!(next > fence, "{next} after {fence}");
    // Then a wait uses the present setting, and the next start no longer has the former one.
    wait_until("the file says so", || saved_longest(promoted) == SHORT_MS);
}

/// The longest lease, from the node's state file.
fn saved_longest(server: &Server) -> u64 {
    let path = server.dir().join(format!("lockmod-{}.state", server.port()));
    let bytes = std::fs::read(path).expect("the state file");
    let (saved, _) = lockmod::codec::state::decode_state(&bytes).expect("a sound state file");
    saved.longest.get()
}

/// Regression: the nodes knew of longer leases only while they ran: the promoted one waited 508 ms.
#[test]
fn a_restart_of_all_replicas_does_not_forget_the_longest_lease() {
    let (mut group, fence, granted_at) = lowered();
    for replica in &mut group.replicas {
        replica.kill();
    }
    let [promoted, other] = &mut group.replicas;
    promoted.reconfigure(|_| member(SHORT_MS));
    promoted.start_again();
    other.reconfigure(|_| replica_at(promoted.port(), SHORT_MS));
    other.start_again();
    promoted.wait_for_replica(other);
    grants_after_the_lease(promoted, (fence, granted_at));
    // Its replica learns that it is over.
    wait_until("the replica's file says so", || saved_longest(other) == SHORT_MS);
}

#[test]
fn a_promotion_after_a_restart_waits_for_the_longest_lease_and_so_after_crashes_in_the_wait() {
    let (mut group, fence, granted_at) = lowered();
    for replica in &mut group.replicas {
        replica.kill();
        replica.reconfigure(|_| replica_at(group.master.port(), SHORT_MS));
        replica.start_again();
    }
    group.fail_over();
    let promoted = &mut group.replicas[0];
    // Before it has authority, and again in its wait.
    for _ in 0..2 {
        promoted.kill();
        let begun = |server: &Server| {
            server.log().matches("enough replicas support this master; no lock").count()
        };
        let before = begun(promoted);
        promoted.reconfigure(|_| member(SHORT_MS));
        promoted.start_again();
        wait_until("the wait has begun", || begun(promoted) > before);
        // It was killed at once: if it had heard of the lease, it waits longer for that.
        acquire(promoted, "probe", "probe", 1).expect_err("it does not grant");
        let left = quarantine_left(promoted, "probe");
        assert!(left > LONG_MS - 1_000, "{left} ms, however often it crashes");
    }
    grants_after_the_lease(promoted, (fence, granted_at));
}

#[test]
fn the_state_file_says_the_longest_lease_before_it_is_granted() {
    let group = Group::start();
    let [one, other] = &group.replicas;
    assert_eq!(saved_longest(&group.master), MAX_TTL_MS);
    group.master.run("CONFIG SET lockmod.max-ttl 9000").expect("raised");
    assert_eq!(saved_longest(&group.master), 9_000, "before the answer");
    // The wrong way round: the replicas learn of it.
    for replica in [one, other] {
        wait_until("it has heard", || saved_longest(replica) == 9_000);
        replica.run("CONFIG SET lockmod.max-ttl 12000").expect("raised");
        assert_eq!(saved_longest(replica), 12_000);
    }
}

#[test]
fn a_pause_of_writes_costs_authority_and_no_wait() {
    let group = Group::start();
    granted_in_the_end(&group.master, "lock", "first");
    let mut connection = group.master.connect();
    cmd!(connection, "CLIENT", "PAUSE", 7_000, "WRITE").expect("paused");
    // No heartbeat may be sent meanwhile, and the server keeps running.
    wait_until("the support is over", || group.master.info_u64("lockmod_supporters") == 0);
    let settled = "this master grants locks: enough replicas support it";
    let waits = "because leases of another master may stand";
    let before = group.master.log().matches(waits).count();
    wait_until("it decides again", || group.master.log().matches(settled).count() > 1);
    assert_eq!(
        group.master.log().matches(waits).count(),
        before,
        "nobody else can have been master"
    );
    assert!(first_grant(&group.master, "another", "second") > 0);
}

/// Regression: a former master that was started without the option granted at once, beside its
/// successor.
#[test]
fn a_node_that_has_left_its_group_waits_as_after_a_promotion() {
    let builder = || Server::builder().module_arg("max-ttl", 1_500);
    let mut master = builder().module_arg("replicas", 1).start();
    let _replica = builder().module_arg("replicas", 1).replica_of(&master).start();
    let decides = "this master grants locks: enough replicas support it";
    wait_until("it has authority", || master.log().contains(decides));
    let before = first_grant(&master, "lock", "token");
    master.restart_with(|builder| builder.module_arg("replicas", 0));
    let warning = "WARNING: lockmod.replicas is 0, but it was more when this node ran last";
    assert!(master.log().contains(warning));
    let refused = master.run("LOCK.ACQUIRE lock another 1000").expect_err("it waits").to_string();
    assert!(refused.contains("QUARANTINE"), "{refused}");
    assert!(first_grant(&master, "lock", "another") > before);
    master.restart();
    assert_eq!(master.log().matches(warning).count(), 1, "it is no longer in a group");
}

/// Regression: a master without the option went on granting beside its successor, and no log
/// said so.
#[test]
fn a_master_without_heartbeats_is_warned_of() {
    let master = Server::start();
    let replica = Server::builder().module_arg("replicas", 2).replica_of(&master).start();
    wait_until("the replica is warned", || {
        replica.log().contains("WARNING: the master has sent no heartbeat for 5 seconds")
    });
    let hasty = Server::builder().module_arg("replicas", 1).module_arg("quarantine", "no").start();
    let _follower = Server::builder().module_arg("replicas", 1).replica_of(&hasty).start();
    let warning = "WARNING: enough replicas support this master, but quarantine is switched off";
    wait_until("the master is warned", || hasty.log().contains(warning));
}

#[test]
fn settings_that_do_not_fit_are_warned_of() {
    let master = Server::builder().module_arg("replicas", 1).start();
    assert!(master.log().contains("lockmod.max-ttl is one minute in a Cluster and with"));
    let replicas = [0, 1].map(|_| Server::builder().replica_of(&master).start());
    wait_until("both are attached", || {
        master.log().contains("WARNING: 2 replicas are attached, but lockmod.replicas is 1")
    });
    wait_until("the replicas are warned", || {
        let warns = |replica: &Server| {
            replica
                .log()
                .contains("WARNING: lockmod.replicas is 0 here and 1 at this node's master")
        };
        replicas.iter().all(warns)
    });
    assert!(!master.log().contains("<module>"), "whose lines they are is in each of them");
    let other = Server::builder().module_arg("replicas", 1).module_arg("max-ttl", 30_000);
    let other = other.replica_of(&master).start();
    wait_until("its max-ttl is compared", || {
        let warning = "WARNING: lockmod.max-ttl is 30000 ms here, and leases of this node's master";
        other.log().contains(warning)
    });
    let fixed = master.run("CONFIG SET lockmod.replicas 2");
    assert!(fixed.is_err(), "it is fixed when the module is loaded");
}
