//! examples/shell/with-lock, which needs redis-cli and nothing else.

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use redis::Value;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, spawn, wait_for, wait_until};
use crate::{holder, root, waiters};

fn with_lock(node: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(root().join("examples/shell/with-lock"));
    command
        .args(args)
        .env("REDIS_CLI", format!("redis-cli -s {}", node.socket().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[track_caller]
fn outcome(node: &Server, args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = with_lock(node, args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// The script, when its command has begun.
fn start(node: &Server, args: &[&str]) -> Child {
    let child = spawn(with_lock(node, args)).unwrap();
    wait_until("the script holds the lock", || holder(node, args[2]).is_some());
    child
}

#[test]
fn a_command_runs_under_the_lock_with_its_fence() {
    let node = Server::start();
    let say = ["a \"b\\", "sh", "-c", "echo $LOCKMOD_FENCE of $LOCKMOD_NAME; exit 7"];
    assert_eq!(outcome(&node, &say), (7, "1 of a \"b\\\n".into(), String::new()));
    assert_eq!(outcome(&node, &say), (7, "2 of a \"b\\\n".into(), String::new()));
    assert_eq!(outcome(&node, &["job"]).0, 125);
    for empty in [["", "true"], ["job", ""]] {
        let (code, _, said) = outcome(&node, &empty);
        assert!(code == 125 && said.contains("is a variable not set?"), "{code}: {said}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = file.path().to_str().unwrap();
    for (command, expected) in [("no-such-command", 127), (text, 126)] {
        assert_eq!(outcome(&node, &["job", command]).0, expected, "{command}");
    }
    let mut without = with_lock(&node, &["job", "true"]);
    let output = without.env("REDIS_CLI", "no-such-cli -p 1").output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{:?}", output.stderr);
    assert_eq!(outcome(&node, &["-t", "4", "job", "true"]).0, 125);
    let (code, _, said) = outcome(&node, &["-t", "99999999", "job", "true"]);
    assert!(code == 123 && said.contains("BADTTL"), "{code}: {said}");
}

#[test]
fn another_holder_keeps_the_command_from_running() {
    let mut node = Server::start();
    node.run("LOCK.ACQUIRE job other 60000 LABEL other").unwrap();
    let (code, out, said) = outcome(&node, &["job", "echo", "hello"]);
    assert_eq!((code, out.as_str()), (120, ""));
    assert_eq!(said, "with-lock: another holds the lock 'job'\n");
    assert_eq!(holder(&node, "job").as_deref(), Some("other"), "left alone");

    let wait = || {
        let waiting = spawn(with_lock(&node, &["-w", "60", "job", "true"])).unwrap();
        wait_until("it stands in line", || waiters(&node, "job") == Value::Int(1));
        waiting
    };
    let mut interrupted = wait();
    kill_process(Pid::from_child(&interrupted), Signal::TERM).unwrap();
    assert_eq!(interrupted.wait().unwrap().code(), Some(128 + 15));
    wait_until("it has left the line", || waiters(&node, "job") == Value::Int(0));
    let mut waiting = wait();
    node.run("LOCK.RELEASE job other").unwrap();
    assert!(waiting.wait().unwrap().success());
    node.kill();
    assert_eq!(outcome(&node, &["job", "true"]).0, 121);
}

#[test]
fn the_lease_is_extended_while_the_command_runs() {
    let node = Server::start();
    let mut child = start(&node, &["-t", "5", "job", "sleep", "100"]);
    node.run("SET over 1 PX 7000").unwrap();
    let next = wait_for("the ttl is over", || {
        (node.run("EXISTS over").unwrap() == redis::Value::Int(0)).then(|| holder(&node, "job"))
    });
    assert!(next.is_some(), "it is still held");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(holder(&node, "job"), None, "given back");
}

#[test]
fn the_command_is_stopped_when_the_lock_is_lost() {
    let node = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stopped");
    let script =
        format!("trap 'echo > {}; exit' TERM; while :; do sleep 0.1; done", file.display());
    let mut child = start(&node, &["-t", "5", "job", "sh", "-c", &script]);
    node.run("DEL job").unwrap();
    node.run("LOCK.ACQUIRE job next 60000 LABEL next").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(122));
    assert!(fs::exists(&file).unwrap(), "it was asked to stop");
    assert_eq!(holder(&node, "job").as_deref(), Some("next"), "the next holder is unharmed");

    // A node that hangs: the command ends before the lease does, and the reply comes too late.
    let mut child = start(&node, &["-t", "5", "hung", "sleep", "100"]);
    node.pause();
    assert_eq!(child.wait().unwrap().code(), Some(122));
    node.resume();
}
