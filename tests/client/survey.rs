//! What `lockmod status` and the exporter show when most is well: held locks among many free ones,
//! nodes whose fences are too high, and why a client has to wait.

use std::io::{BufRead, BufReader};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::cli::{fails, lockmod, signal, start, succeeds, text};
use crate::common::{Server, start_nodes};
use crate::nodes;
use crate::watch::Exporter;

/// Leaves many free locks behind, like names that are used only once.
fn use_names(nodes: &[Server], count: usize) {
    for node in nodes {
        let mut pipe = redis::pipe();
        for i in 0..count {
            let name = format!("used-{i}");
            pipe.cmd("LOCK.ACQUIRE").arg(&name).arg("t").arg(60_000).ignore();
            pipe.cmd("LOCK.RELEASE").arg(&name).arg("t").ignore();
        }
        pipe.query::<()>(&mut node.connect()).unwrap();
    }
}

/// Regression: the limit counted free locks, so that all locks within the limit could be free.
#[test]
fn held_locks_are_found_among_many_free_ones() {
    let nodes = nodes(3);
    use_names(&nodes, 5_000);
    for name in ["orders", "report", "index"] {
        succeeds(&nodes, &["acquire", name, "--label", "worker-7"]);
    }
    for limit in ["3", "4", "10000"] {
        let json = succeeds(&nodes, &["status", "--json", "--limit", limit]);
        assert_eq!(json.matches("\"held_on\":3").count(), 3, "{limit}: {json}");
        assert!(json.ends_with("\"cut\":false}\n"), "{limit}: {json}");
    }
    let said = succeeds(&nodes, &["status", "--limit", "2"]);
    assert_eq!(said.matches("worker-7").count(), 2, "{said}");
    assert!(said.ends_with("\n... there are more locks than are shown: see --limit\n"), "{said}");
    let listed = succeeds(&nodes, &["list"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert_eq!(succeeds(&nodes, &["list", "--all"]).lines().count(), 5_003);
    // One lock that is held on one node only, and has been released on the others.
    nodes[2].run("LOCK.ACQUIRE used-7 other 60000").unwrap();
    let listed = succeeds(&nodes, &["list"]);
    assert!(listed.contains("used-7: held, fence 2") && listed.contains("(held on 1 of 3 nodes)"));
}

/// Regression: `status` was in order for a user who may not search, until there was a lock; later
/// it said that no lock could be acquired.
#[test]
fn status_says_that_its_user_may_not_search_before_there_is_a_lock() {
    let nodes = nodes(1);
    let url = nodes[0].url().replace("redis://", "redis://dashboard:secret@");
    let status = |permissions: &str| {
        nodes[0].run(&format!("ACL SETUSER dashboard on >secret ~* {permissions}")).unwrap();
        let output = lockmod(&[], &["status", "--nodes", &url]).output().unwrap();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, said) = status("-@all +ping +info +lock.info");
    assert_eq!(code, Some(0), "the node grants: {said}");
    assert!(said.contains("grants; its locks cannot be listed: denied access: NOPERM"), "{said}");
    assert!(said.contains("'scan'") && said.contains("the only node grants locks"), "{said}");
    let output = lockmod(&[], &["list", "--nodes", &url]).output().unwrap();
    let listed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(123), "{listed}");
    assert!(listed.contains("its locks cannot be listed: denied access: NOPERM"), "{listed}");
    assert!(listed.contains("0 of 1 node reported all its locks"), "{listed}");
    let (code, said) = status("+scan");
    assert_eq!(code, Some(0), "{said}");
    // Regression: locks whose keys the user may not read were not held, by all overviews.
    nodes[0].run("LOCK.ACQUIRE mine token 60000").unwrap();
    let (code, said) = status("resetkeys ~other*");
    let hidden = "locks that the user may not look at, for want of rights, are not shown: 1";
    assert!(code == Some(0) && said.contains(hidden), "{said}");
    let output = lockmod(&[], &["list", "--nodes", &url]).output().unwrap();
    assert!(text(&output.stderr).contains(hidden), "{output:?}");
    // Regression: nobody was said to get a lock, when only the user may not ask.
    let (code, said) = status("-info");
    assert!(code == Some(123) && said.contains("the only node does not show whether it"), "{said}");
}

/// Regression: `list` counted all leases, and `status` those with the highest fence.
#[test]
fn list_and_status_count_holders_by_one_rule() {
    let nodes = nodes(3);
    for (node, label) in nodes.iter().zip(["one", "two", "three"]) {
        node.run(&format!("LOCK.ACQUIRE split {label} 60000 LABEL {label}")).unwrap();
        node.run("LOCK.ACQUIRE whole t 60000 LABEL me").unwrap();
    }
    nodes[2].run("LOCK.FENCE whole t 1000001").unwrap();
    let listed = succeeds(&nodes, &["list"]);
    let said = "(held on 1 of 3 nodes, with another fence or label on 2)";
    assert!(listed.lines().any(|line| line.starts_with("split") && line.ends_with(said)));
    let said = "(held on 2 of 3 nodes, with another fence or label on 1)";
    let whole = listed.lines().find(|line| line.starts_with("whole")).unwrap();
    assert!(whole.contains("held, fence 1 by me") && whole.ends_with(said), "{listed}");
    let json = succeeds(&nodes, &["status", "--json"]);
    assert!(json.contains("\"held_on\":1") && json.contains("\"held_on\":2"), "{json}");
}

/// Regression: they were reported to be as healthy as the others.
#[test]
fn nodes_whose_fences_are_used_up_or_too_high_are_not_said_to_be_well() {
    let nodes = nodes(5);
    let exporter = Exporter::start(&nodes);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    let weeks = |weeks: u64| time + weeks * 7 * 86_400 * 1_000_000;
    nodes[0].run("LOCK.FLOOR 9007199254740991").unwrap();
    nodes[1].run(&format!("LOCK.FLOOR {}", weeks(5))).unwrap();
    nodes[2].run(&format!("LOCK.FLOOR {}", weeks(3))).unwrap();
    let said = succeeds(&nodes, &["status"]);
    let state = |index: usize| said.lines().nth(index + 1).unwrap();
    assert!(state(0).contains("grants nothing: EXHAUSTED"), "{said}");
    assert!(state(1).contains("fences too high to count"), "{said}");
    assert!(state(2).contains(" grants ") && state(3).contains(" grants "), "{said}");
    assert!(said.contains("4 of 5 nodes grant locks"), "{said}");
    let json = succeeds(&nodes, &["status", "--json"]);
    assert_eq!(json.matches("\"fence_too_high\":true").count(), 2, "{json}");
    assert_eq!(json.matches("\"granting\":false").count(), 1, "{json}");
    let info = succeeds(&nodes[..1], &["info", "job"]);
    assert!(info.contains("the node grants nothing: EXHAUSTED the fence is 9007199254740991"));
    let metrics = exporter.metrics();
    for (index, granting, too_high) in [(0, 0, 1), (1, 1, 1), (2, 1, 0), (3, 1, 0)] {
        let name = format!("{{node=\"127.0.0.1:{}\"}}", nodes[index].port());
        for (metric, value) in [("granting", granting), ("fence_too_high", too_high)] {
            let line = format!("lockmod_{metric}{name} {value}\n");
            assert!(metrics.contains(&line), "{line}{metrics}");
        }
    }
}

/// The exit code, and all that is said.
fn told(nodes: &[Server], args: &[&str]) -> (Option<i32>, String) {
    let output = lockmod(nodes, args).output().unwrap();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// Raises the floor of a node to this many weeks ahead of the time.
fn raise(node: &Server, weeks: u64) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    node.run(&format!("LOCK.FLOOR {}", time + weeks * 7 * 86_400 * 1_000_000)).unwrap();
}

/// Regression: such a node counted as granting, and `status` said that another one may fail.
#[test]
fn a_node_whose_fences_the_others_refuse_makes_no_quorum() {
    let mut nodes = nodes(3);
    raise(&nodes[0], 9);
    let (code, said) = told(&nodes, &["status"]);
    assert!(code == Some(0) && said.contains("so no other may fail"), "{said}");
    assert_eq!(said.matches("  fences too high for the other nodes  ").count(), 1, "{said}");
    let metrics = Exporter::start(&nodes).metrics();
    let granting = format!("lockmod_granting{{node=\"127.0.0.1:{}\"}} 0\n", nodes[0].port());
    assert!(metrics.contains(&granting) && metrics.contains("lockmod_quorum_margin 0\n"));
    assert_eq!(told(&nodes, &["acquire", "one"]).0, Some(0));
    nodes[2].kill();
    let (code, said) = told(&nodes, &["status", "--json"]);
    let state = "\"granting\":false,\"state\":\"fences too high for the other nodes\"";
    assert!(code == Some(121) && said.contains(state), "{said}");
    let quorum = "1 of 3 nodes grant locks, and of 1 it is not known; a quorum is 2";
    assert!(said.contains(quorum), "{said}");
    let (code, said) = told(&nodes, &["acquire", "two"]);
    assert!(code == Some(121) && said.contains("BADFENCE"), "{said}");
    // By itself such a node grants, and so it does with another one that has its floor.
    let alone = &nodes[..1];
    assert_eq!(told(alone, &["status"]).0, Some(0));
    assert_eq!(told(alone, &["acquire", "three"]).0, Some(0));
    let floor = nodes[0].info_u64("lockmod_floor");
    nodes[1].run(&format!("LOCK.FLOOR {floor}")).unwrap();
    assert_eq!(told(&nodes, &["status"]).0, Some(0));
    let (code, said) = told(&nodes, &["acquire", "four"]);
    assert_eq!(code, Some(0), "{said}");
}

/// Clients take the highest fence of all if they cannot leave out those that are too high.
#[test]
fn a_node_whose_fences_the_others_accept_counts_unless_another_one_is_too_high_for_them() {
    let mut nodes = nodes(3);
    raise(&nodes[0], 7);
    let (code, said) = told(&nodes, &["status"]);
    assert!(code == Some(0) && said.contains("so 1 may fail"), "{said}");
    nodes[2].kill();
    assert_eq!(told(&nodes, &["acquire", "one"]).0, Some(0));
    nodes[2].start_again();
    nodes[2].run("CONFIG SET lockmod.quarantine no").unwrap();
    // The floor of the second node has followed.
    raise(&nodes[0], 9);
    let (code, said) = told(&nodes, &["status"]);
    assert!(code == Some(121) && said.contains("1 of 3 nodes grant locks"), "{said}");
    let (code, said) = told(&nodes, &["acquire", "two"]);
    assert!(code == Some(123) && said.contains("BADFENCE"), "two refuse: {said}");
}

/// Regression: the error was "2 of 3 free; 1 granted", which is no reason.
#[test]
fn nodes_that_answered_too_late_are_said_to_have_timed_out() {
    let nodes = nodes(3);
    for node in &nodes[1..] {
        node.run("CLIENT PAUSE 60000 WRITE").unwrap();
    }
    let said = fails(&nodes, &["acquire", "job", "--timeout", "300ms"], 121);
    assert!(said.contains("1 of 3 nodes granted; 2 timed out: 127.0.0.1:"), "{said}");
    let cause = "each node had 300ms to answer: a slow network needs a longer --timeout";
    assert!(said.contains(cause), "{said}");
}

/// Regression: the command was silent for a minute.
#[test]
fn a_log_says_that_a_replica_is_waited_for() {
    let nodes = nodes(1);
    let replica = Server::builder().replica_of(&nodes[0]).start();
    nodes[0].wait_for_replica(&replica);
    let run = ["run", "job", "--wait", "2s", "--", "true"];
    let output = lockmod(std::slice::from_ref(&replica), &run).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(121), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    let expected = "lockmod: waiting for 'job': 127.0.0.1:";
    assert!(lines[0].starts_with(expected) && lines[0].contains("is a replica, which"), "{said}");
    assert!(lines[1].contains("cannot be acquired without a quorum: 1 of 1 node not"), "{said}");
}

/// Regression: only `status` reported it, which is not called before every run.
#[test]
fn a_server_that_is_given_twice_is_told_of_by_all_that_take_a_lock() {
    let nodes = nodes(2);
    let urls = [nodes[0].url(), nodes[0].unix_url(), nodes[1].url()].join(",");
    let second = nodes[0].unix_url().replace("redis+unix://", "");
    let told = format!("and they have one vote together: remove {second}");
    let command = |args: &[&str]| {
        let mut command = lockmod(&[], args);
        command.env("LOCKMOD_NODES", &urls);
        command
    };
    for args in [&["run", "a", "--", "true"][..], &["acquire", "b"], &["status"]] {
        let output = command(args).output().unwrap();
        let stderr = text(&output.stderr);
        assert!(
            output.status.success() && stderr.matches(&told).count() == 1,
            "{args:?}: {stderr}"
        );
    }
    let mut lock = start(command(&["lock", "c"]));
    let mut lines = BufReader::new(lock.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(&told)), "while it holds the lock");
    signal(&lock, Signal::INT);
    assert!(lock.wait().unwrap().success());
}

/// Regression: such a lease was counted like others, although its holder could not count it.
#[test]
fn a_lease_that_does_not_count_is_not_counted() {
    let mut nodes = start_nodes(3, |_| Server::builder());
    for node in &nodes {
        assert_eq!(node.run("LOCK.ACQUIRE a token 600000 LABEL ann"), Ok(redis::Value::Int(1)));
    }
    nodes[0].kill();
    nodes[0].start_again();
    let repaired = nodes[0].run("LOCK.EXTEND a token 600000 FENCE 1 REPAIR LABEL ann");
    assert_eq!(repaired, Ok(redis::Value::Int(2)));
    let shown = succeeds(&nodes, &["status"]);
    assert!(shown.contains("  2/3 +1"), "{shown}");
    let json = succeeds(&nodes, &["status", "--json"]);
    assert!(json.contains("\"held_on\":2,\"held_provisionally_on\":1"), "{json}");
    let list = succeeds(&nodes, &["list"]);
    assert!(list.contains("(held on 2 of 3 nodes, not counting yet on 1"), "{list}");
    let info = succeeds(&nodes, &["info", "a", "--json"]);
    assert_eq!(info.matches("\"extension\":2").count(), 1, "{info}");
}
