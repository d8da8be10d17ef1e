//! The state file: damaged, from another node, from a newer build, in use, on a disk that refuses.

use std::path::PathBuf;
use std::process::Command;
use std::{fs, thread};

use crate::common::{Server, wait_until};
use crate::{acquire, granted, quarantine_left};

fn state_path(server: &Server) -> PathBuf {
    server.dir().join(format!("lockmod-{}.state", server.port()))
}

/// A node that has granted a fence and a long lease, and was stopped cleanly, with everything
/// saved.
fn stopped_node() -> (Server, u64) {
    let mut server =
        Server::builder().config("save", "\"3600 1000000\"").module_arg("max-ttl", 30_000).start();
    let fence = granted(&server, "lock", "holder", 30_000);
    server.terminate_with("SAVE");
    (server, fence)
}

#[test]
fn the_state_file_is_there_from_the_first_request_on() {
    let server = Server::start();
    granted(&server, "lock", "token", 1_000);
    let bytes = fs::read(state_path(&server)).expect("the state file");
    assert!(bytes.starts_with(b"lockmod state\n"));
    let beside = state_path(&server).with_extension("state.new");
    assert!(!beside.exists(), "nothing is left next to it");
}

#[test]
fn a_damaged_file_is_distrusted_and_fences_jump() {
    type Damage = fn(Vec<u8>) -> Vec<u8>;
    let damages: [(&str, Damage); 4] = [
        ("emptied", |_| Vec::new()),
        ("cut off", |bytes| bytes[..bytes.len() / 2].to_vec()),
        ("a bit flipped", |mut bytes| {
            bytes[20] ^= 4;
            bytes
        }),
        ("other bytes", |_| b"something else entirely".to_vec()),
    ];
    for (what, damage) in damages {
        let (mut server, before) = stopped_node();
        let path = state_path(&server);
        fs::write(&path, damage(fs::read(&path).expect("the state file"))).expect("damaged");
        server.start_again();
        let left = quarantine_left(&server, "lock");
        assert!(left > 20_000 && left <= 30_001, "{what}: max-ttl is waited out, not {left} ms");
        let log = server.log();
        assert!(log.contains("cannot be used: corrupt"), "{what}: {log}");
        assert!(log.contains("CONFIG SET lockmod.quarantine no"), "{what}: how to override");
        server.run("CONFIG SET lockmod.quarantine no").expect("set");
        assert!(granted(&server, "another", "next", 1_000) > before + (1 << 32), "{what}");
    }
}

#[test]
fn a_file_that_is_missing_beside_locks_is_distrusted_and_fences_jump() {
    let (mut server, before) = stopped_node();
    fs::remove_file(state_path(&server)).expect("removed");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 20_000);
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "another", "next", 1_000) > before + (1 << 32));
}

#[test]
fn the_file_of_another_node_is_distrusted() {
    let (mut server, _) = stopped_node();
    let (other, _) = stopped_node();
    fs::copy(state_path(&other), state_path(&server)).expect("copied");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 20_000);
    let line = format!("it is the file of port {}, not {}", other.port(), server.port());
    assert!(server.log().contains(&line), "{}", server.log());
}

#[test]
fn the_file_of_a_newer_build_is_refused_and_kept() {
    let (mut server, _) = stopped_node();
    let path = state_path(&server);
    let mut bytes = fs::read(&path).expect("the state file");
    let known = lockmod::codec::state::STATE_VERSION;
    bytes.truncate(bytes.len() - 4);
    bytes[b"lockmod state\n".len()] = known + 1;
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    fs::write(&path, &bytes).expect("written");
    let error = server.try_start_again().expect_err("the server does not start");
    let log = error.log;
    let line = format!("written in version {}, and this build reads up to {known}", known + 1);
    assert!(log.contains(&line), "{log}");
    assert_eq!(fs::read(&path).expect("still there"), bytes, "it is kept as it was");
}

#[test]
fn a_second_server_on_the_same_file_does_not_start() {
    let server = Server::start();
    granted(&server, "lock", "token", 1_000);
    let path = state_path(&server);
    let second = Server::builder().module_arg("state-file", path.display()).try_start();
    let error = second.map(drop).expect_err("the second server does not start");
    assert!(error.log.contains("is in use by another server"), "{}", error.log);
    granted(&server, "another", "token", 1_000);
}

#[test]
fn of_two_first_starts_on_one_file_the_second_is_refused() {
    // Regression: each found no file, locked none, and ran: two containers on a fresh volume. Here
    // slowly loaded data keep the first from writing its file for some seconds.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.state");
    let mut first = Server::builder().without_module().config("save", "\"3600 1000000\"").start();
    first.run("DEBUG POPULATE 300").expect("populated");
    first.terminate_with("SAVE");
    let node = || Server::builder().module_arg("state-file", path.display());
    first.reconfigure(|_| node().config("key-load-delay", 10_000));
    let log = first.dir().join("redis.log");
    thread::scope(|scope| {
        let first = &mut first;
        let loading = scope.spawn(move || first.start_again());
        wait_until("the first has claimed the file", || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains(" is ready"))
        });
        let error = node().try_start().map(drop).expect_err("the second does not start");
        assert!(error.log.contains("is in use by another server"), "{}", error.log);
        assert!(!path.exists(), "the first was still loading");
        loading.join().expect("the first starts");
    });
    granted(&first, "lock", "token", 1_000);
    let error = node().try_start().map(drop).expect_err("nor does it start later");
    assert!(error.log.contains("is in use by another server"), "{}", error.log);
}

#[test]
fn a_file_that_is_no_regular_file_is_refused_at_once() {
    for name in ["node.state", "node.state.new"] {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join(name);
        let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
        assert!(made.success());
        let path = folder.path().join("node.state");
        let server = Server::builder().module_arg("state-file", path.display()).try_start();
        let error = server.map(drop).expect_err("the server does not start");
        assert!(error.log.contains("is not a regular file"), "{name}: {}", error.log);
    }
    let server = Server::builder().module_arg("state-file", "/dev/zero").try_start();
    let error = server.map(drop).expect_err("the server does not start");
    assert!(error.log.contains("is not a regular file"), "{}", error.log);
}

#[test]
fn a_server_whose_config_was_renamed_has_a_file_of_its_own_port() {
    let mut server = Server::builder().config_line("rename-command CONFIG \"\"").start();
    let fence = granted(&server, "lock", "token", 1_000);
    assert!(state_path(&server).exists());
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0, "it does not know how it is persisted");
    assert!(crate::first_grant(&server, "lock", "next") > fence);
}

#[test]
fn a_folder_that_cannot_be_written_stops_the_server_from_starting() {
    let missing = "no-such-folder/lockmod.state";
    let server = Server::builder().module_arg("state-file", missing).try_start();
    let error = server.map(drop).expect_err("the server does not start");
    assert!(error.log.contains("cannot use the state file"), "{}", error.log);
}

#[test]
fn a_disk_that_refuses_stops_grants_and_nothing_else() {
    // The file's folder disappears under the running server, which has the effect of a full disk,
    // even for root.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.state");
    let server = Server::builder().module_arg("state-file", path.display()).start();
    granted(&server, "lock", "holder", 5_000);
    let moved = folder.path().with_extension("away");
    fs::rename(folder.path(), &moved).expect("moved away");

    let refusal = acquire(&server, "long", "token", 3_600_000).expect_err("beyond the ceiling");
    assert!(refusal.starts_with("STATEFILE "), "{refusal}");
    assert_eq!(server.run("LOCK.FENCE long"), Ok(redis::Value::Int(0)), "nothing changed");
    assert_eq!(server.run("EXISTS long"), Ok(redis::Value::Int(0)), "nothing was made");
    assert!(server.info_u64("lockmod_state_write_failures") > 0, "INFO counts it");
    assert_eq!(acquire(&server, "lock", "other", 1_000), Ok(None), "the lease stands");
    assert_eq!(server.run("LOCK.RELEASE lock holder"), Ok(redis::Value::Int(1)));

    fs::rename(&moved, folder.path()).expect("moved back");
    granted(&server, "long", "token", 3_600_000);
}

#[test]
fn a_setting_that_the_file_must_know_of_stops_grants_until_it_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("node.state");
    let mut server = Server::builder()
        .module_arg("state-file", path.display())
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    granted(&server, "lock", "holder", 60_000);
    let moved = folder.path().with_extension("away");
    fs::rename(folder.path(), &moved).expect("moved away");
    server.run("CONFIG SET appendfsync everysec").expect("Redis sets it all the same");
    let refusal = acquire(&server, "another", "token", 1_000).expect_err("the file knows nothing");
    assert!(refusal.starts_with("STATEFILE "), "{refusal}");
    assert!(server.log().contains("nothing is granted until it can be"), "{}", server.log());
    assert_eq!(server.run("LOCK.RELEASE lock holder"), Ok(redis::Value::Int(1)));

    fs::rename(&moved, folder.path()).expect("moved back");
    let fence = granted(&server, "another", "token", 60_000);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0, "writes are not always durable any more");
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "third", "token", 1_000) > fence);
}

#[test]
fn without_a_state_file_the_node_says_what_that_means() {
    let mut server = Server::builder().module_arg("state-file", "\"\"").start();
    assert_eq!(granted(&server, "lock", "holder", 60_000), 1);
    wait_until("the log warns", || server.log().contains("WARNING: lockmod.state-file is empty"));
    server.kill();
    server.start_again();
    assert_eq!(granted(&server, "lock", "other", 1_000), 1, "as the warning said");
}
