//! The keys of `lockmod status --json`, compared with their table in docs/command-line.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cli::{lockmod, text};
use crate::common::{Cluster, Group, Server, wait_until};
use crate::nodes;

/// The head of the table.
const HEAD: &str = "| key of `status --json` | there if | means |";

/// The rows of the table: a key with those that it is in, and when it is there.
fn documented() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/command-line.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().skip_while(|line| *line != HEAD).skip(2);
    let cells = rows.map_while(|row| row.strip_prefix("| ")?.split_once(" | "));
    let rows = cells.flat_map(|(keys, rest)| {
        let when = rest.split(" | ").next().unwrap().to_owned();
        keys.split(", ").map(move |key| (key.trim_matches('`').to_owned(), when.clone()))
    });
    rows.collect()
}

/// The keys of a JSON text with those that they are in, sorted.
fn keys_of(json: &str) -> Vec<String> {
    let (mut found, mut open) = (BTreeSet::new(), Vec::<String>::new());
    let mut chars = json.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '{' => open.push(String::new()),
            '}' => drop(open.pop()),
            '"' => {
                let mut string = String::new();
                while let Some(char) = chars.next().filter(|char| *char != '"') {
                    string.push(if char == '\\' { chars.next().unwrap() } else { char });
                }
                if chars.peek() == Some(&':') {
                    *open.last_mut().unwrap() = string;
                    found.insert(open.join("."));
                }
            }
            _ => {}
        }
    }
    found.into_iter().collect()
}

/// What `status --json` prints about these nodes.
fn printed(urls: &str) -> String {
    let output = lockmod(&[], &["status", "--json"]).env("LOCKMOD_NODES", urls).output().unwrap();
    text(&output.stdout)
}

/// Compares the keys with those that the table has for such nodes.
#[track_caller]
fn check(urls: &str, conditions: &[&str], covered: &mut Vec<String>) {
    let json = printed(urls);
    let is_due = |when: &str| when == "always" || conditions.contains(&when);
    let due = documented().into_iter().filter(|(_, when)| is_due(when));
    let mut due: Vec<String> = due.map(|(key, _)| key).collect();
    due.sort_unstable();
    assert_eq!(keys_of(&json), due, "{json}");
    covered.extend(due);
}

const ANSWERS: &str = "it answers";
const ATTACHED: &str = "replicas are attached";
const FAILING: &str = "a master of it does not grant in all its slots";
const IN_SLOTS: &str = "a Cluster, or a server of one that grants";
const OF_CLUSTER: &str = "a Cluster, or a server of one";
const LOCKED: &str = "there is such a lock";
const ONE_MASTER: &str = "a replica, or a group under Sentinel whose master is known";
const SILENT: &str = "it does not answer";

#[test]
fn the_keys_of_a_status_are_those_that_are_documented() {
    let mut covered = Vec::new();
    let acquire = |server: &Server, name: &str| {
        let line = format!("LOCK.ACQUIRE {name} t 60000 LABEL me");
        wait_until("it grants", || matches!(server.run(&line), Ok(redis::Value::Int(_))));
    };

    check("redis+sentinel://127.0.0.1:1/mymaster", &[SILENT], &mut covered);
    let mut single = nodes(3);
    check(&single[0].url(), &[ANSWERS], &mut covered);
    acquire(&single[0], "job");
    check(&single[0].url(), &[ANSWERS, LOCKED], &mut covered);
    single[2].kill();
    single[1].run("ACL SETUSER few on >secret ~* -@all +ping +info +lock.info").unwrap();
    let few = single[1].url().replace("//", "//few:secret@");
    let replica = Server::builder().replica_of(&single[0]).start();
    wait_until("it is attached", || printed(&single[0].url()).contains("lag_bytes"));
    let mut command = redis::cmd("LOCK.ACQUIRE");
    command.arg(b"\xff").arg("t").arg(60_000).arg("LABEL").arg(b"\xff");
    command.exec(&mut single[0].connect()).unwrap();
    let urls = [&single[0].url(), &few, &single[2].url(), &replica.url(), "redis://127.0.0.1:1"];
    let conditions = [
        ANSWERS,
        LOCKED,
        SILENT,
        "its locks cannot be listed",
        ATTACHED,
        ONE_MASTER,
        "the name is not UTF-8",
        "the label is not UTF-8",
    ];
    check(&urls.join(","), &conditions, &mut covered);

    let member = || Server::builder().module_arg("max-ttl", 60_000).module_arg("replicas", 2);
    let mut group = Group::start(2, || member().module_arg("quarantine", "no"));
    acquire(&group.servers[0], "job");
    let conditions = [ANSWERS, LOCKED, "`lockmod.replicas` is set", ATTACHED, ONE_MASTER];
    check(&group.url(), &conditions, &mut covered);
    group.servers[2].kill();
    wait_until("it is missed", || printed(&group.url()).contains("missing_replicas"));
    let missing = [&conditions[..], &["a replica is missing"]].concat();
    check(&group.url(), &missing, &mut covered);

    let part = || Server::builder().config("cluster-require-full-coverage", "no");
    let mut cluster = Cluster::start(3, part);
    acquire(&cluster.masters[0], &cluster.tag_at(0));
    let conditions = [ANSWERS, LOCKED, IN_SLOTS, OF_CLUSTER, "a Cluster"];
    check(&cluster.url(), &conditions, &mut covered);
    check(&cluster.masters[0].url(), &conditions[..4], &mut covered);
    cluster.begin_to_move(&cluster.tag_at(0), 1);
    let moving = [&conditions[..], &["slots are moving"]].concat();
    check(&cluster.url(), &moving, &mut covered);
    cluster.masters[2].kill();
    check(&cluster.url(), &[&moving[..], &[FAILING]].concat(), &mut covered);

    let never = documented().into_iter().filter(|(key, _)| !covered.contains(key));
    assert_eq!(never.collect::<Vec<_>>(), [], "no such nodes are tried");
}

#[test]
fn keys_are_found_in_json() {
    let json = r#"{"a":[{"b":"c\":","d":{"e":1}},{"b":2,"f":"g"}],"h":null}"#;
    assert_eq!(keys_of(json), ["a", "a.b", "a.d", "a.d.e", "a.f", "h"]);
    assert!(documented().len() > 30, "the table is found");
}
