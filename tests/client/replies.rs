//! How the command reports the nodes' answers: which nodes it names, and how it interprets them.

use crate::cli::{NO_TOKEN, fails, lockmod, succeeds, text};
use crate::common::{Server, start_nodes, wait_until};
use crate::nodes;
use crate::screen::Screen;

/// Regression: it reported that the lease had ended, though it never belonged to this token.
#[test]
fn a_token_that_does_not_hold_the_lock_is_told_who_does() {
    let nodes = nodes(3);
    succeeds(&nodes, &["acquire", "job", "--label", "cron-3"]);
    for command in ["release", "extend"] {
        let said = fails(&nodes, &[command, "job", NO_TOKEN], 122);
        let expected = "the token does not hold lock 'job': 3 of 3 nodes hold it for cron-3 for up";
        assert!(said.contains(expected) && !said.contains("ended"), "{said}");
        let said = fails(&nodes, &[command, "job", NO_TOKEN, "--json"], 122);
        assert!(said.contains("\"text\":\"held by cron-3 for"), "{said}");
        let said = fails(&nodes, &[command, "free", NO_TOKEN], 122);
        assert!(
            said.contains("does not hold lock 'free' any more, and nobody else does"),
            "{said}"
        );
    }
}

#[test]
fn the_json_of_a_release_says_what_came_of_it() {
    let nodes = nodes(1);
    let out = succeeds(&nodes, &["acquire", "job"]);
    let token = out.lines().find_map(|line| line.strip_prefix("token ")).unwrap();
    let out = succeeds(&nodes, &["release", "job", token, "--json"]);
    assert_eq!(out, "{\"name\":\"job\",\"released\":true}\n");
}

/// Regression: an acquire reported "2 not held", and a request for a fence "granted with fence".
#[test]
fn nodes_are_spoken_of_in_words_that_fit_the_question() {
    let mut nodes = nodes(3);
    nodes[0].run("LOCK.ACQUIRE job t 60000").unwrap();
    nodes[1].run("LOCK.ACQUIRE job u 60000").unwrap();
    let said = fails(&nodes, &["acquire", "job"], 120);
    let is_fit = said.ends_with("; 1 free\n") || said.ends_with("; 1 granted\n");
    assert!(said.contains("2 of 3 nodes hold it") && is_fit, "{said}");
    nodes[1].kill();
    nodes[2].kill();
    let said = fails(&nodes, &["fence", "job"], 121);
    assert!(said.contains("1 of 3 nodes answered: no quorum; 127.0.0.1:"), "{said}");
    assert!(said.contains("refused") && !said.contains("granted"), "{said}");
}

/// Regression: the error was "No quorum answered", although all nodes did.
#[test]
fn a_key_of_another_type_is_said_to_be_no_lock() {
    let nodes = nodes(3);
    for node in &nodes {
        node.run("SET job text").unwrap();
    }
    let token = "5a".repeat(20);
    for command in [&["info", "job"][..], &["fence", "job"], &["release", "job", &token]] {
        let said = fails(&nodes, command, 123);
        let expected = "'job' is not a lock: on 3 of 3 nodes the key has another type";
        assert!(said.contains(expected) && !said.contains("quorum"), "{command:?}: {said}");
    }
}

/// Regression: it passed for a node, so there was one vote less than expected.
#[test]
fn a_replica_among_the_nodes_is_warned_of() {
    let mut nodes = nodes(3);
    succeeds(&nodes, &["acquire", "job"]);
    let replica = Server::builder().replica_of(&nodes[0]).start();
    nodes[0].wait_for_replica(&replica);
    // Regression: it was said to give the master, which is given.
    let port = replica.port();
    let expected = format!("127.0.0.1:{port} is a replica, which has no vote: leave it out");
    nodes[2] = replica;
    for args in [&["list"][..], &["info", "job"], &["status"], &["list", "--json"]] {
        let output = lockmod(&nodes, args).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        assert!(said.contains(&expected) && said.lines().count() == 1, "{args:?}: {said}");
    }
    let said = succeeds(&nodes, &["status"]);
    assert!(said.contains("grants nothing: a replica"), "{said}");
    // Regression: its copy of the lock counted as a third node that holds it.
    assert!(said.contains("  2/3\n"), "{said}");
    assert!(succeeds(&nodes, &["list"]).contains("(held on 2 of 3 nodes)"));
    // Regression: a release was owed to it, which only its master can take.
    let output = lockmod(&nodes, &["run", "other", "--", "true"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    // A node that waits is not a replica.
    let json = succeeds(&nodes, &["info", "job", "--json"]);
    assert!(json.contains("\"node_state\":null") && json.contains("READONLY"), "{json}");
}

/// The message about a replica.
fn hint_of(replica: &Server, master: &Server) -> String {
    let (replica, master) = (replica.port(), master.port());
    format!(
        "127.0.0.1:{replica} is a replica, which has no vote: give its master 127.0.0.1:{master} \
         instead"
    )
}

/// Regression: some subcommands succeeded, and others repeated the server's READONLY for as long as
/// they could.
#[test]
fn all_subcommands_say_of_a_replica_that_it_has_no_vote() {
    let master = nodes(1);
    let token = succeeds(&master, &["acquire", "job"]);
    let token = token.lines().next().unwrap().trim_start_matches("token ").to_owned();
    let replica = Server::builder().replica_of(&master[0]).start();
    master[0].wait_for_replica(&replica);
    let expected = hint_of(&replica, &master[0]);
    let nodes = [replica];
    for args in [
        &["status"][..],
        &["list"],
        &["info", "job"],
        &["fence", "job"],
        &["acquire", "other"],
        &["lock", "other", "--wait", "0s"],
        &["run", "other", "--wait", "0s", "--", "true"],
        &["extend", "job", &token],
        &["release", "job", &token],
        &["release", "--force", "job"],
    ] {
        let said = fails(&nodes, args, 121);
        assert!(said.contains(&expected), "{args:?}: {said}");
    }
}

/// Regression: they said what is wrong, and not what helps.
#[test]
fn a_master_without_its_replicas_is_reported_with_what_to_do() {
    let alone = [Server::builder().module_arg("replicas", 1).start()];
    let place = format!("127.0.0.1:{}", alone[0].port());
    let advice = format!("replicas must be attached to {place}, which takes some 10 seconds");
    for args in [&["acquire", "job"][..], &["run", "job", "--wait", "0s", "--", "true"]] {
        let said = fails(&alone, args, 121);
        assert!(said.contains("NOAUTHORITY") && said.contains(&advice), "{args:?}: {said}");
    }
    let said = fails(&alone, &["status"], 121);
    assert!(said.contains(&advice), "{said}");
    let output = lockmod(&alone, &["info", "job"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains(&advice), "{said}");
}

/// Two different reasons are shown, each with its node.
#[test]
fn reasons_that_differ_and_their_nodes_are_named() {
    let mut nodes = nodes(3);
    nodes[0].kill();
    nodes[1].run("CONFIG SET maxmemory 1").unwrap();
    let name = |node: &Server| format!("127.0.0.1:{}", node.port());
    let said = fails(&nodes, &["acquire", "job"], 121);
    let expected = format!("1 of 3 nodes unreachable (connection refused): {}; ", name(&nodes[0]));
    assert!(said.contains(&expected), "{said}");
    assert!(said.contains(&format!("): {}", name(&nodes[1]))) && said.contains("(OOM "), "{said}");
}

/// Regression: uncertain results looked like facts.
#[test]
fn it_is_said_what_is_uncertain_in_quarantine_and_after_force() {
    let mut nodes = start_nodes(1, |_| Server::builder());
    succeeds(&nodes, &["acquire", "job"]);
    nodes[0].kill();
    nodes[0].start_again();
    for args in [&["list"][..], &["info", "job"], &["fence", "job"]] {
        let output = lockmod(&nodes, args).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && said.contains("may have forgotten"), "{args:?}: {said}");
    }
    // Regression: it reported the lock as free.
    for (args, code) in [
        (&["release", "--force", "job"][..], 121),
        (&["release", "job", NO_TOKEN], 122),
        (&["extend", "job", NO_TOKEN], 121),
    ] {
        let said = fails(&nodes, args, code);
        assert!(!said.contains("nobody"), "{args:?}: {said}");
        assert!(said.contains("in quarantine") && !said.contains("free"), "{args:?}: {said}");
        let is_extend = args.contains(&"extend");
        assert!(said.contains("may have forgotten") || is_extend, "{args:?}: {said}");
    }
    nodes[0].run("LOCK.EXTEND job t 60000 FENCE 7 REPAIR").unwrap();
    let output = lockmod(&nodes, &["release", "--force", "job"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.contains("a holder learns of it at its next renewal"),
        "{said}"
    );
    assert!(said.contains("may have forgotten"), "{said}");
}

/// Regression: the first time the exit code was 0, with a warning, and then 121.
#[test]
fn a_master_without_authority_cannot_tell_that_no_lock_is_held_even_if_it_deleted_one() {
    let settings = || Server::builder().module_arg("max-ttl", 4_000).module_arg("replicas", 1);
    let master = settings().start();
    let mut replica = settings().replica_of(&master).start();
    let nodes = [master];
    wait_until("it grants", || lockmod(&nodes, &["status"]).output().unwrap().status.success());
    replica.kill();
    // Until then the lease is extended, so that it still stands.
    wait_until("it lacks authority", || nodes[0].run("LOCK.ACQUIRE job t 4000").is_err());
    let doubt = "another master may know who holds a lock";
    let said = fails(&nodes, &["release", "--force", "job"], 121);
    let told = "lock 'job' was deleted on 1 of 1 node, but no quorum knows whether it is held; ";
    assert!(said.contains(told) && said.contains(doubt), "{said}");
    let said = fails(&nodes, &["release", "--force", "job"], 121);
    assert!(said.contains("no quorum knows whether somebody holds lock 'job'; "), "{said}");
    assert!(said.contains(doubt), "{said}");
}

/// Regression: a replica without such a lock counted as a node on which the lock was free.
#[test]
fn a_replica_does_not_know_that_nobody_holds_a_lock() {
    let mut nodes = nodes(3);
    let replica = Server::builder().replica_of(&nodes[0]).start();
    nodes[0].wait_for_replica(&replica);
    // Regression: it was said to give the master, which is given.
    let port = replica.port();
    let expected = format!("127.0.0.1:{port} is a replica, which has no vote: leave it out");
    nodes[2] = replica;
    let said = fails(&nodes, &["release", "--force", "job"], 122);
    assert!(said.contains("nobody holds lock 'job'; "), "two masters know: {said}");
    nodes[1].kill();
    for args in [&["release", "--force", "job"][..], &["release", "job", NO_TOKEN]] {
        let said = fails(&nodes, args, 121);
        assert!(said.contains(&expected) && !said.contains("nobody"), "{args:?}: {said}");
    }
    let said = fails(&nodes, &["release", "--force", "job"], 121);
    assert!(said.contains("lock 'job' was not deleted: 127.0.0.1:"), "{said}");
    assert_eq!(said.matches("127.0.0.1:").count(), 4, "each node by its name: {said}");
}

#[test]
fn a_label_that_is_not_text_is_there_in_full() {
    let nodes = nodes(1);
    let mut conn = nodes[0].connect();
    let mut acquire = redis::cmd("LOCK.ACQUIRE");
    acquire.arg("job").arg("t").arg(60_000).arg("LABEL").arg(&b"a\xff"[..]);
    acquire.exec(&mut conn).unwrap();
    for args in [&["info", "job", "--json"][..], &["list", "--json"], &["status", "--json"]] {
        let json = succeeds(&nodes, args);
        assert!(json.contains("\"label\":\"a\u{fffd}\",\"label_hex\":\"61ff\""), "{json}");
    }
    for args in [&["info", "job"][..], &["list"], &["status"]] {
        assert!(succeeds(&nodes, args).contains(r"a\xff"), "{args:?}");
    }
}

/// Regression: the error was "no permission".
#[test]
fn a_database_that_the_server_does_not_have_is_refused_in_words() {
    let nodes = nodes(1);
    let url = format!("{}/99", nodes[0].url());
    let said = fails(&[], &["acquire", "job", "--nodes", &url], 123);
    assert!(said.contains("database 99 cannot be selected: ERR DB index is out"), "{said}");
    assert!(!said.contains("permission"), "{said}");
}

/// A line on a terminal that explains why nothing happens, and that a list is empty.
#[test]
fn a_person_is_told_why_the_nodes_are_silent_and_that_there_is_nothing() {
    let mut nodes = nodes(3);
    let list = Screen::start(&lockmod(&nodes, &["list"]), (80, 4));
    list.wait_for("it says so", |text| text.contains("no lock is held; see --all"));
    assert_eq!(succeeds(&nodes, &["list"]), "", "a program counts lines");
    nodes[0].kill();
    nodes[1].kill();
    let run = lockmod(&nodes, &["run", "job", "--wait", "10s", "--", "true"]);
    let mut waiting = Screen::start(&run, (80, 4));
    // Whatever the third node answers: its lease is that of this very attempt.
    let expected = "waiting for 'job': 2 of 3 nodes unreachable: connection refused\n";
    waiting.wait_for("the reason is shown", |text| format!("{text}\n").contains(expected));
    waiting.press("\x03");
    assert_eq!(waiting.end(), Some(128 + 2));
}

/// Regression: one name of 500 letters made the whole table as wide.
#[test]
fn a_long_name_leaves_the_table_within_the_terminal() {
    let nodes = nodes(1);
    let name = "n".repeat(500);
    succeeds(&nodes, &["acquire", &name, "--label", &"l".repeat(128)]);
    succeeds(&nodes, &["acquire", "short", "--label", "me"]);
    for columns in [40, 80] {
        let status = Screen::start(&lockmod(&nodes, &["status"]), (columns, 24));
        status.wait_for("all is there", |text| text.contains("short") && text.contains("nnn…"));
        let text = status.text();
        let (notes, lines): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with("no room for "));
        assert!(lines.len() <= 7, "no line is wrapped:\n{text}");
        assert!(notes.iter().any(|note| note.contains("FENCE")), "{text}");
    }
    assert!(succeeds(&nodes, &["status"]).contains(&name));
    assert!(succeeds(&nodes, &["list"]).contains(&name));
}
