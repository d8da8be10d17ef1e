//! docs/security.md with the real client: the user that it recommends can do what is needed.
//! What that user cannot do is shown by the document itself, whose blocks are executed.

use std::fs;
use std::process::Command;
use std::time::Duration;

use lockmod::client::{AcquireError, Locker};

use crate::common::{Server, wait_until};
use crate::{nodes, root};

/// The rule as the document has it.
fn documented_rule(user: &str) -> String {
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let start = format!("$ redis-cli ACL SETUSER {user} ");
    let line = text.lines().find(|line| line.starts_with(&start)).expect("the rule");
    // Quotes are the shell's.
    line.trim_start_matches("$ redis-cli ").replace(['\'', '"'], "")
}

fn url(node: &Server) -> String {
    node.url().replace("redis://", "redis://worker:s3cret@")
}

#[test]
fn the_recommended_user_is_told_to_wake_up_and_hears_nothing_else() {
    let node = Server::start();
    node.run(&documented_rule("worker")).unwrap();
    let client = redis::Client::open(url(&node)).unwrap();
    let subscribe = |channel: &str| {
        let mut connection = client.get_connection().unwrap();
        redis::cmd("SUBSCRIBE").arg(channel).query::<redis::Value>(&mut connection)
    };
    subscribe("lockmod:wake:7f3a").unwrap();
    let refused = subscribe("news").unwrap_err();
    assert_eq!(refused.code(), Some("NOPERM"), "{refused}");
}

/// `LOCK.HELP`, which the dashboard has no right to, was refused with each list, and the log of
/// such refusals was full of them.
#[test]
fn nobody_who_does_what_a_rule_is_for_is_refused_anything() {
    let node = Server::start();
    let runs = |user: &str, args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_lockmod"))
            .args(args)
            .env(
                "LOCKMOD_NODES",
                node.url().replace("redis://", &format!("redis://{user}:s3cret@")),
            )
            .output()
            .unwrap();
        let log = node.run("ACL LOG").unwrap();
        assert_eq!(log, redis::Value::Array(Vec::new()), "{user}: {args:?}");
        assert!(output.status.success(), "{user}: {args:?}: {output:?}");
    };
    for user in ["worker", "dashboard", "operator"] {
        node.run(&documented_rule(user)).unwrap();
    }
    let run = ["run", "jobs:nightly", "--", "sleep", "0"];
    runs("dashboard", &["list"]);
    runs("worker", &run);
    for args in [&["list"][..], &["info", "jobs:nightly"], &["status"]] {
        runs("dashboard", args);
        runs("operator", args);
    }
    runs("worker", &["acquire", "jobs:forced", "--ttl", "1m"]);
    runs("operator", &["release", "jobs:forced", "--force"]);
}

#[test]
fn the_client_works_as_the_recommended_user_and_only_within_its_prefix() {
    let nodes = nodes(3);
    for node in &nodes {
        node.run(&documented_rule("worker")).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locker = Locker::builder()
            .nodes(nodes.iter().map(url))
            .ttl(Duration::from_secs(1))
            .wait(Duration::from_secs(20))
            .build()
            .unwrap();
        let guard = locker.acquire("jobs:nightly").await.unwrap();
        let first = guard.fence();
        // Renewed in the background, for longer than the ttl.
        let (validity, start) = (guard.validity(), std::time::Instant::now());
        wait_until("it was renewed past its first validity", || start.elapsed() > validity * 2);
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        let guard = locker.acquire("jobs:nightly").await.unwrap();
        assert!(guard.fence() > first);
        guard.release().await.unwrap();
        let refused = locker.acquire("other:nightly").await.unwrap_err();
        assert!(matches!(refused, AcquireError::Refused(_)), "{refused}");
        assert!(refused.to_string().contains("NOPERM"), "{refused}");
    });
}
