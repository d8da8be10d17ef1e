//! What the quorum algorithm promises, of each language by itself.

use redis::Value;

use crate::common::{Server, start_nodes, wait_until};
use crate::{LANGUAGES, Worker, fence, holder, leases, nodes, waiters};

/// A worker with a locker of this ttl, on five nodes.
fn each(ttl_ms: u64, test: impl Fn(Vec<Server>, Worker)) {
    for language in LANGUAGES {
        println!("{language:?}");
        let nodes = nodes(5);
        let mut worker = Worker::start(language, &nodes, "worker");
        assert_eq!(worker.ask(format_args!("locker {ttl_ms}")), "ready");
        test(nodes, worker);
    }
}

fn on_all(nodes: &[Server], command: &str) {
    for node in nodes {
        node.run(command).unwrap();
    }
}

/// The lock `job` is deleted and given to the next, in one step on each node: nobody can repair it
/// in between.
fn take_away(nodes: &[Server]) {
    let script = "redis.call('DEL', KEYS[1])
        return redis.call('LOCK.ACQUIRE', KEYS[1], 'next', 60000, 'LABEL', 'next')";
    for node in nodes {
        let mut connection = node.connect();
        let mut eval = redis::cmd("EVAL");
        let fence: i64 = eval.arg(script).arg(1).arg("job").query(&mut connection).unwrap();
        assert!(fence > 0);
    }
}

#[test]
fn a_fence_above_all_others_is_stored_at_a_quorum() {
    each(30_000, |nodes, mut worker| {
        // Counters that disagree: 1, 2, 3, 4, 5.
        for (i, node) in nodes.iter().enumerate() {
            for _ in 0..=i {
                node.run("LOCK.ACQUIRE job other 60000").unwrap();
                node.run("LOCK.RELEASE job other").unwrap();
            }
        }
        let first = worker.fence("acquire job 20000");
        // A quorum of 3 has one of the last three nodes, whose grant is 4 or more.
        assert!(first >= 4, "{first}");
        let stored = nodes.iter().filter(|node| fence(node, "job") == first).count();
        assert!(stored >= 3, "{stored} nodes store {first}");
        assert_eq!(worker.ask("release"), "true");
        let second = worker.fence("acquire job 20000");
        assert!(second > first, "{second} after {first}");
    });
}

#[test]
fn a_lost_attempt_leaves_nothing_behind_on_a_node_that_hangs_either() {
    // So long a lease ends by a release only.
    each(600_000, |nodes, mut worker| {
        on_all(&nodes[..3], "LOCK.ACQUIRE job other 600000 LABEL other");
        // An acquire that has not left when the attempt is lost is withdrawn, so it may need a few.
        wait_until("the free node and the one that hung were asked", || {
            nodes[4].pause();
            let refused = worker.ask("acquire job 0");
            nodes[4].resume();
            assert!(refused.starts_with("lock 'job'"), "{refused}");
            fence(&nodes[3], "job") > 0 && fence(&nodes[4], "job") > 0
        });
        wait_until("both were left", || {
            holder(&nodes[3], "job").is_none() && holder(&nodes[4], "job").is_none()
        });
        assert_eq!(leases(&nodes, "job", "other"), 3, "the holder is unharmed");
        on_all(&nodes[..3], "LOCK.RELEASE job other");
        assert!(worker.fence("acquire job 20000") > 0);
    });
}

#[test]
fn a_minority_of_nodes_that_are_down_is_no_obstacle() {
    each(30_000, |mut nodes, mut worker| {
        let first = worker.fence("acquire job 20000");
        assert_eq!(worker.ask("release"), "true");
        nodes[0].kill();
        nodes[3].kill();
        let second = worker.fence("acquire job 20000");
        assert!(second > first);
        assert_eq!(worker.ask("renew"), "true");
        assert_eq!(worker.ask("release"), "true");
        nodes[4].kill();
        let refused = worker.ask("acquire job 0");
        assert!(refused.starts_with("lock 'job'"), "{refused}");
        for node in [0, 3, 4] {
            nodes[node].start_again();
        }
        assert!(worker.fence("acquire job 20000") > second);
    });
}

#[test]
fn a_node_that_was_down_at_the_start_counts_when_it_is_up() {
    for language in LANGUAGES {
        let mut nodes = nodes(3);
        nodes[0].kill();
        let mut worker = Worker::start(language, &nodes, "worker");
        worker.ask("locker 30000");
        let first = worker.fence("acquire job 20000");
        assert_eq!(worker.ask("release"), "true", "{language:?}");
        nodes[0].start_again();
        nodes[2].kill();
        assert!(worker.fence("acquire job 20000") > first);
        assert_eq!(worker.ask("release"), "true");
    }
}

#[test]
fn a_node_that_hangs_keeps_nobody_from_ending() {
    each(30_000, |nodes, mut worker| {
        worker.fence("acquire job 20000");
        nodes[1].pause();
        assert_eq!(worker.ask("release"), "true");
        assert_eq!(worker.ask("close"), "closed");
        nodes[1].resume();
        wait_until("no lease is left, for the releases were written", || {
            leases(&nodes, "job", "worker") == 0
        });
    });
}

#[test]
fn who_waits_stands_in_line_and_nobody_comes_before() {
    each(60_000, |nodes, mut worker| {
        on_all(&nodes, "LOCK.ACQUIRE job other 60000");
        worker.tell("acquire job 50000");
        wait_until("it stands in line everywhere", || {
            nodes.iter().all(|node| waiters(node, "job") == Value::Int(1))
        });
        let script = "redis.call('LOCK.RELEASE', KEYS[1], 'other')
            return redis.call('LOCK.ACQUIRE', KEYS[1], 'newcomer', 60000)";
        for node in &nodes {
            let mut eval = redis::cmd("EVAL");
            let newcomer = eval.arg(script).arg(1).arg("job").query(&mut node.connect());
            assert!(matches!(newcomer, Ok(Value::Nil)), "{newcomer:?}");
        }
        assert!(worker.hear().parse::<i64>().unwrap() > 1);
        assert_eq!(worker.ask("release"), "true");
        wait_until("nobody is left in line", || {
            nodes.iter().all(|node| waiters(node, "job") == Value::Int(0))
        });
        // Who gives up leaves the line.
        on_all(&nodes, "LOCK.ACQUIRE job other 60000");
        assert!(worker.ask("acquire job 100").starts_with("lock 'job'"));
        wait_until("it has left", || {
            nodes.iter().all(|node| waiters(node, "job") == Value::Int(0))
        });
    });
}

#[test]
fn a_stale_release_is_refused_and_harms_nobody() {
    each(60_000, |nodes, mut worker| {
        let stale = worker.fence("acquire job 20000");
        take_away(&nodes);
        // A node that was asked last may have granted the next lock before it heard of this one.
        let above = nodes.iter().filter(|node| fence(node, "job") > stale).count();
        assert!(above >= 3, "{above} nodes are above {stale}");
        assert_eq!(worker.ask("release"), "false");
        assert_eq!(leases(&nodes, "job", "next"), 5);
    });
}

#[test]
fn a_lock_that_was_taken_away_is_noticed() {
    each(3_000, |nodes, mut worker| {
        worker.fence("hold job");
        take_away(&nodes);
        assert_eq!(worker.hear(), "lost");
        assert_eq!(leases(&nodes, "job", "next"), 5);
    });
}

#[test]
fn a_lease_is_renewed_past_its_ttl_and_lost_with_the_quorum() {
    each(3_000, |mut nodes, mut worker| {
        worker.fence("hold job");
        // The ttl is over for good when another key with twice of it has gone.
        nodes[0].run("SET over 1 PX 6000").unwrap();
        wait_until("twice the ttl is over", || {
            nodes[0].run("EXISTS over").unwrap() == redis::Value::Int(0)
        });
        assert!(leases(&nodes, "job", "worker") >= 3, "it is still held");
        for node in &mut nodes[..3] {
            node.kill();
        }
        assert_eq!(worker.hear(), "lost");
    });
}

#[test]
fn whose_validity_has_ended_never_extends_again() {
    each(1_000, |nodes, mut worker| {
        worker.fence("acquire job 20000");
        wait_until("it is over", || worker.ask("valid") == "false");
        // Nobody else has come, so every node would still say yes to nobody but a fool.
        assert_eq!(worker.ask("renew"), "false");
        assert_eq!(worker.ask("valid"), "false");
        wait_until("the leases are over", || leases(&nodes, "job", "worker") == 0);
    });
}

#[test]
fn a_node_that_forgot_the_lease_is_given_it_back() {
    each(60_000, |nodes, mut worker| {
        let held = worker.fence("acquire job 20000");
        // A node that answered late may lack it, until a renewal repairs that.
        wait_until("every node holds it", || {
            worker.ask("renew") == "true" && leases(&nodes, "job", "worker") == 5
        });
        on_all(&nodes[..2], "FLUSHALL");
        assert_eq!(leases(&nodes, "job", "worker"), 3);
        // A renewal is decided by the first three answers, so which nodes are seen is chance.
        wait_until("it is repaired", || {
            assert_eq!(worker.ask("renew"), "true");
            nodes.iter().all(|node| holder(node, "job").is_some())
        });
        assert!(nodes.iter().all(|node| fence(node, "job") == held));
    });
}

#[test]
fn nodes_without_the_module_have_no_vote() {
    for language in LANGUAGES {
        let nodes = start_nodes(3, |i| match i {
            0 => Server::builder().without_module(),
            _ => Server::builder(),
        });
        let mut worker = Worker::start(language, &nodes, "worker");
        worker.ask("locker 30000");
        assert!(worker.fence("acquire job 20000") > 0, "{language:?}");
        assert_eq!(worker.ask("release"), "true");
        nodes[1].run("LOCK.ACQUIRE job other 60000").unwrap();
        let refused = worker.ask("acquire job 0");
        let is_told = refused.contains("unknown command") || refused.contains("the module");
        assert!(is_told, "{language:?}: {refused}");
    }
}
