//! The rules of docs/operations.md about moves and backups that a transcript cannot show.

use std::fs;
use std::path::PathBuf;

use crate::common::{Builder, Server};
use crate::{acquire, granted, quarantine_left, release};

const MAX_TTL_MS: u64 = 30_000;

fn node() -> Builder {
    Server::builder().config("save", "\"3600 1000000\"").module_arg("max-ttl", MAX_TTL_MS)
}

fn state_path(server: &Server, port: u16) -> PathBuf {
    server.dir().join(format!("lockmod-{port}.state"))
}

fn dump_path(server: &Server) -> PathBuf {
    server.dir().join("dump.rdb")
}

#[test]
fn a_moved_folder_keeps_leases_and_fences() {
    let mut server = node().start();
    let held = granted(&server, "held", "holder", MAX_TTL_MS);
    let free = granted(&server, "free", "holder", MAX_TTL_MS);
    release(&server, "free", "holder");
    server.terminate_with("SAVE");
    server.move_folder();
    server.start_again();
    assert_eq!(acquire(&server, "held", "other", 1_000), Ok(None), "the lease came along");
    assert_eq!(acquire(&server, "held", "holder", 1_000), Ok(Some(held)));
    assert!(granted(&server, "free", "other", 1_000) > free);
}

#[test]
fn a_node_on_another_port_distrusts_what_it_brought() {
    let mut old = node().start();
    let before = granted(&old, "lock", "holder", MAX_TTL_MS);
    old.terminate_with("SAVE");
    let mut new = node().prepare();
    fs::copy(dump_path(&old), dump_path(&new)).expect("the data");
    // Under its old name the file is not found; under the new name it belongs to another port.
    for name in [old.port(), new.port()] {
        fs::copy(state_path(&old, old.port()), state_path(&new, name)).expect("the state file");
        new.start_again();
        let left = quarantine_left(&new, "another");
        assert!(left > 20_000 && left <= MAX_TTL_MS + 1, "{left} ms");
        new.run("CONFIG SET lockmod.quarantine no").expect("set");
        assert!(granted(&new, "another", "next", 1_000) > before + (1 << 32));
        new.kill();
        let _ = fs::remove_file(state_path(&new, new.port()));
    }
}

/// A dump with one free lock, and the fence of the lease that the lock was granted since.
fn backup_and_later_lease(server: &Server) -> (Vec<u8>, u64) {
    granted(server, "lock", "first", 1_000);
    release(server, "lock", "first");
    server.run("SAVE").expect("a backup");
    let backup = fs::read(dump_path(server)).expect("the backup");
    (backup, granted(server, "lock", "second", MAX_TTL_MS))
}

#[test]
fn a_backup_is_waited_for_when_the_node_was_stopped_without_saving() {
    // With as many locks as at the stop: only the stop itself shows that they are old.
    let mut server = node().start();
    let (backup, before) = backup_and_later_lease(&server);
    server.terminate_with("NOSAVE");
    fs::write(dump_path(&server), backup).expect("put in place");
    server.start_again();
    let left = quarantine_left(&server, "lock");
    assert!(left > 0 && left <= MAX_TTL_MS + 1, "{left} ms");
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "lock", "third", 1_000) > before);
}

#[test]
fn a_backup_under_a_node_that_was_stopped_cleanly_is_noticed() {
    let mut server = node().start();
    let (backup, before) = backup_and_later_lease(&server);
    server.terminate_with("SAVE");
    fs::write(dump_path(&server), backup).expect("put in place");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 20_000);
    assert!(server.log().contains("QUARANTINE: the data set is not the one that the node saved"));
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "lock", "third", 1_000) > before);
}

#[test]
fn a_backup_that_lacks_only_an_extension_is_noticed() {
    let mut server = node().start();
    granted(&server, "lock", "leader", 1_000);
    server.run("SAVE").expect("a backup");
    let backup = fs::read(dump_path(&server)).expect("the backup");
    let extend = format!("LOCK.EXTEND lock leader {MAX_TTL_MS}");
    assert_eq!(server.run(&extend), Ok(redis::Value::Int(1)));
    server.terminate_with("SAVE");
    fs::write(dump_path(&server), backup).expect("put in place");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 20_000);
}

#[test]
fn an_empty_state_file_makes_a_backup_distrusted_however_the_node_stopped() {
    let mut server = node().start();
    let (backup, before) = backup_and_later_lease(&server);
    server.terminate_with("SAVE");
    fs::write(dump_path(&server), backup).expect("put in place");
    fs::write(state_path(&server, server.port()), "").expect("emptied");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 20_000);
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "lock", "third", 1_000) > before + (1 << 31));
}

#[test]
fn a_floor_can_be_raised_in_quarantine_and_outlasts_the_next_crash() {
    let mut server = Server::builder().module_arg("max-ttl", 2_000).prepare();
    fs::write(state_path(&server, server.port()), "").expect("an empty state file");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    // Above three weeks from now in microseconds, where a node without its state file begins.
    let fence = 1_u64 << 52;
    let raised = server.run(&format!("LOCK.FLOOR {fence}"));
    assert_eq!(raised, Ok(redis::Value::Int(fence.cast_signed())));
    assert_eq!(server.info_u64("lockmod_floor"), fence);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0, "a crash in a quarantine waits again");
    assert!(crate::first_grant(&server, "lock", "token") > fence);
}
