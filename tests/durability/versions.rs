//! A master and a replica with different builds of the module, one folder with both in turn, and
//! nodes with one build for the client and the command of the other.
//!
//! `make versions OLD=commit` builds the other one, and passes its place.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use redis::{Value, from_redis_value};

use crate::common::{Builder, Server, module_path, skip, spawn, start_nodes, wait_for, wait_until};
use crate::granted;

/// The other build and this one; `None` if there is no other.
fn modules(test: &str) -> Option<[PathBuf; 2]> {
    let old = env::var_os("LOCKMOD_OLD_MODULE");
    if old.is_none() {
        skip(test, "LOCKMOD_OLD_MODULE is not set: make versions OLD=commit");
    }
    Some([PathBuf::from(old?), module_path()])
}

fn with(module: &PathBuf) -> Builder {
    Server::builder()
        .without_module()
        .config_line(&format!("loadmodule {module:?} max-ttl 3000"))
        .config("save", "3600 1")
}

/// A server's description of a lock: its holders, their modes, and the fence.
fn told(server: &Server, name: &str) -> Vec<String> {
    let info = server.run(&format!("LOCK.INFO {name}")).expect("LOCK.INFO answers");
    let Value::Array(fields) = info else { panic!("{info:?}") };
    let pairs = fields.chunks(2).map(|pair| (from_redis_value(pair[0].clone()), &pair[1]));
    let pairs: HashMap<String, &Value> =
        pairs.map(|(name, value)| (name.expect("a text"), value)).collect();
    let mut told = vec![format!("{:?} {:?}", pairs["state"], pairs["fence"])];
    // Among readers that came in the same millisecond, any may be reported first.
    match pairs.get("reader_labels") {
        Some(Value::Array(labels)) => told.extend(labels.iter().map(|label| format!("{label:?}"))),
        _ => told.push(format!("{:?}", pairs["label"])),
    }
    told.sort_unstable();
    told
}

fn follows(master: &Server, replica: &Server) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port())).expect("it follows");
    master.wait_for_replica(replica);
}

#[test]
#[ignore = "needs another build: make versions"]
fn a_master_and_a_replica_of_different_builds_go_together() {
    let Some([old, new]) = modules("a_master_and_a_replica_of_different_builds") else { return };
    for (of_master, of_replica) in [(&old, &new), (&new, &old)] {
        let (master, replica) = (with(of_master).start(), with(of_replica).start());
        for name in ["in-snapshot", "in-stream"] {
            if name == "in-stream" {
                follows(&master, &replica);
            }
            granted(&master, name, "token", 3_000);
            master.run(&format!("LOCK.EXTEND {name} token 3000")).expect("extended");
            granted(&master, &format!("{name}:free"), "token", 3_000);
            master.run(&format!("LOCK.RELEASE {name}:free token")).expect("released");
            for reader in ["one", "two"] {
                let line = format!("LOCK.ACQUIRE {name}:read {reader} 3000 SHARED LABEL {reader}");
                master.run(&line).expect("granted");
            }
        }
        master.run("LOCK.FLOOR 1000").expect("raised");
        master.wait_for_replica(&replica);
        for name in ["in-snapshot", "in-stream"] {
            for name in [name.to_owned(), format!("{name}:free"), format!("{name}:read")] {
                assert_eq!(told(&master, &name), told(&replica, &name), "{name}");
            }
        }
        // The replica takes over, and the other follows it.
        let before = told(&master, "in-stream");
        replica.run("REPLICAOF NO ONE").expect("promoted");
        let refused = replica.run("LOCK.ACQUIRE fresh token 100").expect_err("it waits");
        assert_eq!(refused.code(), Some("QUARANTINE"), "{refused}");
        follows(&replica, &master);
        let fence = wait_for("it grants", || {
            let reply = replica.run("LOCK.ACQUIRE fresh token 3000").ok()?;
            from_redis_value::<u64>(reply).ok()
        });
        assert!(fence > 1_000, "{fence} after {before:?}");
        replica.wait_for_replica(&master);
        assert_eq!(told(&master, "fresh"), told(&replica, "fresh"));
        assert!(!format!("{}{}", master.log(), replica.log()).contains("CRITICAL"));
    }
}

#[test]
#[ignore = "needs another build: make versions"]
fn a_folder_can_be_used_by_another_build_and_by_the_first_again() {
    let Some([old, new]) = modules("a_folder_can_be_used_by_another_build") else { return };
    let mut server = with(&old).start();
    let mut fence = granted(&server, "lock", "0", 1);
    for (turn, module) in [&new, &old, &new, &old].into_iter().enumerate() {
        let free = || server.run("LOCK.ACQUIRE kept token 3000").ok();
        wait_until("the lock is granted", || free().is_some_and(|reply| reply != Value::Nil));
        let kept = told(&server, "kept");
        let state = server.dir().join(format!("lockmod-{}.state", server.port()));
        assert!(fs::metadata(state).is_ok_and(|file| file.len() > 0));
        server.terminate();
        server.reconfigure(|_| with(module));
        server.start_again();
        assert_eq!(told(&server, "kept"), kept, "{module:?}");
        let next = wait_for("the lock is free", || {
            let line = format!("LOCK.ACQUIRE lock {} {}", turn + 1, 1);
            from_redis_value::<u64>(server.run(&line).ok()?).ok()
        });
        assert!(next > fence, "{next} after {fence}");
        fence = next;
    }
}

/// The output of a command, which must succeed.
#[track_caller]
fn succeeds(command: &Path, nodes: &[Server], args: &[&str]) -> String {
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let output = Command::new(command).args(args).env("LOCKMOD_NODES", urls.join(",")).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?} {args:?}: {said}");
    String::from_utf8(output.stdout).expect("a text")
}

/// Each of `lockmod`'s promises to a program, over nodes of another build.
fn a_command_works_with(command: &Path, nodes: &[Server]) {
    let succeeds = |args: &[&str]| succeeds(command, nodes, args);
    assert_eq!(succeeds(&["run", "job", "--", "sh", "-c", "echo $LOCKMOD_FENCE"]), "1\n");
    let taken = succeeds(&["acquire", "job", "--ttl", "60s", "--label", "ann"]);
    let token = taken.strip_prefix("token ").and_then(|rest| rest.lines().next());
    let token = token.expect("a token");
    assert!(succeeds(&["list"]).starts_with("job: held, fence 2 by ann"));
    assert!(succeeds(&["status"]).contains("3 of 3 nodes grant locks"));
    assert!(succeeds(&["info", "job"]).contains("held, fence 2"));
    succeeds(&["extend", "job", token, "--ttl", "60s"]);
    assert_eq!(succeeds(&["fence", "job"]), "2\n");
    // Another client waits in line until the lock is released.
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let mut waiting = Command::new(command);
    waiting
        .args(["run", "job", "--wait", "60s", "--", "true"])
        .env("LOCKMOD_NODES", urls.join(","));
    let mut waiting = spawn({
        waiting.stdout(Stdio::null());
        waiting
    })
    .expect("it runs");
    let in_line = |node: &Server| node.info("lockmod_waiters").is_some_and(|count| count == "1");
    wait_until("it stands in line", || nodes.iter().all(in_line));
    succeeds(&["release", "job", token]);
    assert!(waiting.wait().expect("our child").success());
    succeeds(&["run", "job", "--shared", "--", "true"]);
}

#[test]
#[ignore = "needs another build: make versions"]
fn commands_of_one_build_work_with_nodes_of_another() {
    let Some(modules) = modules("commands_of_one_build_work_with_nodes_of_another") else { return };
    let Some(old) = env::var_os("LOCKMOD_OLD_COMMAND").map(PathBuf::from) else {
        return skip("commands_of_one_build", "LOCKMOD_OLD_COMMAND is not set");
    };
    let new = PathBuf::from(env!("CARGO_BIN_EXE_lockmod"));
    for (command, module) in [&new, &old].into_iter().zip(&modules) {
        let line = format!("loadmodule {module:?}");
        let nodes = start_nodes(3, |_| Server::builder().without_module().config_line(&line));
        a_command_works_with(command, &nodes);
    }
}
