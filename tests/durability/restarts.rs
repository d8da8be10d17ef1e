//! What a restart costs: a quarantine only if something may have been forgotten.

use crate::common::{Server, module_path, server_version, wait_until};
use crate::{LEASE_BLOCK_MS, acquire, first_grant, granted, quarantine_left, release};

fn without_persistence() -> crate::common::Server {
    Server::builder().config("save", "\"\"").start()
}

#[test]
fn a_first_start_grants_at_once() {
    assert_eq!(granted(&without_persistence(), "lock", "token", 1_000), 1);
}

#[test]
fn a_crash_is_waited_out_for_as_long_as_the_leases_and_one_block() {
    for settings in [
        &[("save", "\"\"")][..],
        &[("save", "\"1 1\"")],
        &[("save", "\"\""), ("appendonly", "yes"), ("appendfsync", "everysec")],
    ] {
        let mut builder = Server::builder();
        for (name, value) in settings {
            builder = builder.config(name, value);
        }
        let mut server = builder.start();
        let before = granted(&server, "lock", "holder", 2_000);
        server.kill();
        server.start_again();
        let left = quarantine_left(&server, "other");
        assert!(left > 0 && left <= 2_000 + LEASE_BLOCK_MS, "{settings:?}: {left} ms");
        let info = server.run("LOCK.INFO other").expect("LOCK.INFO answers in quarantine");
        assert!(format!("{info:?}").contains("quarantine_left_ms"), "{info:?}");
        assert!(server.log().contains("QUARANTINE: the node restarted uncleanly"));
        assert!(server.info_u64("lockmod_quarantine_left_ms") > 0);
        // The holder's lease ends first; then the node grants, above all its earlier fences.
        let after = first_grant(&server, "lock", "next");
        assert!(after > before, "{settings:?}: {after} after {before}");
    }
}

fn saved(server: &Server) -> lockmod::engine::Saved {
    let path = server.dir().join(format!("lockmod-{}.state", server.port()));
    let bytes = std::fs::read(path).expect("the state file");
    lockmod::codec::state::decode_state(&bytes).expect("a sound state file").0
}

/// How long the node would still wait for the longest lease in its state file, from now.
pub(crate) fn promised_ms(server: &Server) -> u64 {
    let saved = saved(server);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    saved.ceilings.lease.as_millis().saturating_sub(now.tv_sec as u64 * 1_000)
}

#[test]
fn a_lease_that_was_given_back_is_not_waited_for() {
    let mut server = without_persistence();
    for number in 0..2_000 {
        granted(&server, &format!("name:{number}"), "token", 100);
    }
    granted(&server, "long", "holder", 3_600_000);
    granted(&server, "shorter", "holder", 60_000);
    release(&server, "long", "holder");
    assert!(promised_ms(&server) > 3_000_000);
    // Wherever the held lock moves meanwhile, its lease is not overlooked.
    let mut step = 0;
    wait_until("the promise is lowered", || {
        step += 1;
        let moves = ["RENAME shorter name:7", "COPY name:7 shorter", "DEL name:7"];
        server.run(if step < 3 { "SWAPDB 0 1" } else { moves[step % 3] }).expect("moved");
        promised_ms(&server) < 3_000_000
    });
    let promised = promised_ms(&server);
    assert!(promised > 30_000 && promised <= 61_000 + LEASE_BLOCK_MS, "{promised} ms");
    server.kill();
    server.start_again();
    let left = quarantine_left(&server, "long");
    assert!(left > 30_000 && left <= 61_000 + LEASE_BLOCK_MS, "{left} ms");
}

/// Regression: a rewrite after `CONFIG SET dir` puts the append-only file into the new folder. The
/// next start read the old one, assumed that every write was on the disk, and granted a lock that
/// was held.
#[test]
fn leases_in_an_append_only_file_of_another_folder_are_waited_out() {
    for comes_back in [false, true] {
        let mut server = Server::builder()
            .config("enable-protected-configs", "yes")
            .config("appendonly", "yes")
            .config("appendfsync", "always")
            .start();
        granted(&server, "known", "holder", 1);
        let other = server.dir().join("other");
        std::fs::create_dir_all(other.join("appendonlydir")).expect("a folder");
        server.run(&format!("CONFIG SET dir {}", other.display())).expect("set");
        server.run("BGREWRITEAOF").expect("rewritten");
        let manifest = other.join("appendonlydir/appendonly.aof.manifest");
        wait_until("the file is in the other folder", || manifest.exists());
        if comes_back {
            server.run(&format!("CONFIG SET dir {}", server.dir().display())).expect("set");
        }
        let fence = granted(&server, "lock", "holder", 60_000);
        assert!(server.log().contains("WARNING: dir was changed"), "{}", server.log());
        server.kill();
        server.start_again();
        assert!(quarantine_left(&server, "lock") > 50_000);
        server.run("CONFIG SET lockmod.quarantine no").expect("set");
        assert!(granted(&server, "lock", "next", 1_000) > fence);
    }
}

#[test]
fn a_folder_that_is_set_again_is_no_other_folder() {
    let mut server = Server::builder()
        .config("enable-protected-configs", "yes")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    server.run(&format!("CONFIG SET dir {}", server.dir().display())).expect("set");
    granted(&server, "lock", "holder", 60_000);
    server.kill();
    server.start_again();
    assert_eq!(acquire(&server, "lock", "next", 1_000), Ok(None), "the lease came back");
}

/// Regression: after `CONFIG SET port` and a crash, the next start found no locks and no file under
/// its name, assumed that it was a first start, and granted a lock that was held, with the same
/// fence.
#[test]
fn a_node_whose_port_was_changed_waits_after_a_crash() {
    let mut server = without_persistence();
    let first_port = server.port();
    granted(&server, "another", "before", 1);
    server.change_port();
    server.change_port();
    let fence = granted(&server, "lock", "holder", 60_000);
    assert!(server.log().contains("WARNING: port was changed"), "{}", server.log());
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 60_000);
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "lock", "next", 60_000) > fence);
    // The file of a port that was set and then changed again is not touched.
    let file = server.dir().join(format!("lockmod-{first_port}.state"));
    assert!(std::fs::metadata(file).expect("it stays").len() > 0);
}

#[test]
fn a_port_that_is_set_again_is_no_other_port() {
    let mut server = without_persistence();
    let port = server.port();
    granted(&server, "lock", "holder", 2_000);
    server.run(&format!("CONFIG SET port {port}")).expect("set");
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") <= 2_000 + LEASE_BLOCK_MS);
    assert!(!server.log().contains("port was changed"), "{}", server.log());
}

#[test]
fn a_quarantined_node_still_releases_reads_and_repairs() {
    let mut server = without_persistence();
    let fence = granted(&server, "lock", "holder", 60_000);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    let run = |line: &str| server.run(line);
    assert_eq!(run("LOCK.FENCE lock"), Ok(redis::Value::Int(0)));
    assert_eq!(run("LOCK.RELEASE lock holder"), Ok(redis::Value::Nil));
    for refused in ["LOCK.EXTEND lock holder 60000", "LOCK.FENCE lock holder 5"] {
        let error = crate::common::error_line(run(refused));
        assert!(error.starts_with("QUARANTINE "), "{refused}: {error}");
    }
    let repair = format!("LOCK.EXTEND lock holder 60000 FENCE {fence} REPAIR");
    assert_eq!(run(&repair), Ok(redis::Value::Int(2)), "it does not count yet");
    assert_eq!(run("LOCK.FENCE lock"), Ok(redis::Value::Int(fence as i64)));
    // The lease stands again, and is extended as usual; no other client gains anything by that.
    assert_eq!(run("LOCK.EXTEND lock holder 60000"), Ok(redis::Value::Int(2)));
    let error = crate::common::error_line(run("LOCK.EXTEND lock other 60000"));
    assert!(error.starts_with("QUARANTINE "), "{error}");
    assert_eq!(run("LOCK.RELEASE lock holder"), Ok(redis::Value::Int(1)));
}

#[test]
fn an_operator_can_end_the_quarantine() {
    let mut server = without_persistence();
    let before = granted(&server, "lock", "holder", 60_000);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    server.run("CONFIG SET lockmod.quarantine no").expect("the option can be set");
    assert!(granted(&server, "lock", "next", 1_000) > before);
    assert!(server.log().contains("the quarantine was ended by lockmod.quarantine no"));
}

#[test]
fn writes_that_are_always_on_disk_need_no_quarantine() {
    let mut server = Server::builder()
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    let fence = granted(&server, "lock", "holder", 60_000);
    server.kill();
    server.start_again();
    assert_eq!(acquire(&server, "lock", "other", 1_000), Ok(None), "the lease came back");
    assert_eq!(acquire(&server, "lock", "holder", 1_000), Ok(Some(fence)));
    assert!(granted(&server, "another", "other", 1_000) > fence);
}

/// Found on Redis 8.6.3, and on Valkey 9.1.2: a client had the reply to a write that was not in the
/// file after a crash.
#[test]
fn a_server_whose_threads_may_answer_before_it_syncs_is_not_trusted_with_every_write() {
    let mut server = Server::builder()
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .config("io-threads", "2")
        .start();
    granted(&server, "lock", "holder", 60_000);
    server.kill();
    server.start_again();
    let waits = acquire(&server, "another", "other", 1_000).is_err();
    assert_eq!(server.log().contains("Use io-threads 1."), waits);
    let version = server_version();
    let trusted = if version.is_valkey() { 8 } else { 7 };
    assert_eq!(waits, version.major != trusted);
}

/// Every write is on disk before its reply. A rewrite of the file takes longer than a test.
fn slow_to_rewrite() -> crate::common::Builder {
    Server::builder()
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .config("rdb-key-save-delay", "50000")
}

fn fill(server: &Server) {
    for number in 0..200 {
        server.run(&format!("SET key:{number} x")).expect("set");
    }
}

fn rewrites(server: &Server) -> bool {
    server.info_u64("aof_rewrite_in_progress") == 1
}

/// Sends a request that is refused: the node has begun when it is, and has granted nothing.
fn begins(server: &Server) {
    let refused = acquire(server, "lock", "", 1_000).expect_err("an empty token");
    assert!(refused.starts_with("BADTOKEN"), "{refused}");
}

fn waits_after_a_crash(server: &mut Server) -> bool {
    granted(server, "lock", "holder", 2_000);
    server.kill();
    server.start_again();
    acquire(server, "lock", "other", 1_000).is_err()
}

#[test]
fn a_rewrite_of_the_file_takes_nothing_away() {
    let mut server = slow_to_rewrite().start();
    fill(&server);
    server.run("BGREWRITEAOF").expect("begins");
    assert!(rewrites(&server));
    assert!(!waits_after_a_crash(&mut server));
    assert_eq!(acquire(&server, "lock", "other", 1_000), Ok(None));
    // From a transaction it begins later.
    let mut transaction = redis::pipe();
    let asked = transaction.atomic().cmd("BGREWRITEAOF").exec(&mut server.connect());
    asked.expect("begins later");
    wait_until("it has begun", || rewrites(&server));
    assert!(!waits_after_a_crash(&mut server));
}

/// Regression: after a full synchronisation a server writes to a file that a start does not read,
/// until the first rewrite is complete.
#[test]
fn a_promoted_server_is_not_trusted_with_every_write() {
    let master = Server::start();
    fill(&master);
    let mut server = slow_to_rewrite().module_arg("quarantine-on-promotion", "no").start();
    begins(&server);
    server.run(&format!("REPLICAOF 127.0.0.1 {}", master.port())).expect("follows");
    master.wait_for_replica(&server);
    // Valkey from 9.1 on takes over the file that it was sent, and needs no rewrite.
    let is_begun = || rewrites(&server) || server.log().contains("Reused RDB file");
    wait_until("the file is begun", is_begun);
    server.run("REPLICAOF NO ONE").expect("promoted");
    assert!(waits_after_a_crash(&mut server));
}

/// A setting that is refused takes back those beside it, and tells no module. To take back
/// `appendonly no` is to begin the file anew.
fn begin_file_anew(server: &Server) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    server.run(&format!("CONFIG SET appendonly no port {port}")).expect_err("the port is taken");
}

/// Regression: until then no write goes to any file.
#[test]
fn a_server_that_waits_to_begin_its_file_anew_is_not_trusted_with_every_write() {
    let mut server = slow_to_rewrite().start();
    fill(&server);
    server.run("BGSAVE").expect("begins");
    wait_until("it is trusted", || saved(&server).is_always_durable);
    begin_file_anew(&server);
    assert_eq!(server.info_u64("aof_rewrite_scheduled"), 1);
    wait_until("it is not trusted", || !saved(&server).is_always_durable);
    assert!(waits_after_a_crash(&mut server));
}

/// Regression: the temporary file in use was taken for one that a crash had left.
#[test]
fn a_server_that_loads_the_module_while_it_begins_its_file_is_not_trusted_with_every_write() {
    let module = format!("loadmodule {}", module_path().display());
    let builder = slow_to_rewrite().without_module().config("enable-module-command", "yes");
    let mut server = builder.start();
    fill(&server);
    for value in ["no", "yes"] {
        server.run(&format!("CONFIG SET appendonly {value}")).expect("set");
    }
    server.run(&format!("MODULE LOAD {}", module_path().display())).expect("loaded");
    assert!(rewrites(&server));
    server.reconfigure(|builder| builder.config_line(&module));
    assert!(waits_after_a_crash(&mut server));
}

/// Regression: it was.
#[test]
fn a_server_that_began_its_file_anew_is_not_trusted_with_every_write() {
    let mut server = slow_to_rewrite().start();
    fill(&server);
    begin_file_anew(&server);
    assert!(rewrites(&server));
    assert!(server.log().contains("the append-only file may lack a write from now on"));
    assert!(waits_after_a_crash(&mut server));
    // What that crash has left takes nothing away from later starts.
    first_grant(&server, "another", "next");
    server.restart();
    fill(&server);
    server.run("BGREWRITEAOF").expect("begins");
    assert!(rewrites(&server));
    assert!(!waits_after_a_crash(&mut server));
}

#[test]
fn a_file_of_always_durable_writes_that_vanished_is_noticed() {
    let mut server = Server::builder()
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    // Nothing was written yet, and nothing is missing.
    begins(&server);
    server.kill();
    server.start_again();
    granted(&server, "lock", "holder", 60_000);
    server.kill();
    std::fs::remove_dir_all(server.dir().join("appendonlydir")).expect("there was a file");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
}

#[test]
fn weaker_syncing_for_a_moment_costs_the_trust_in_every_write() {
    let mut server = Server::builder()
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "always")
        .start();
    granted(&server, "lock", "holder", 60_000);
    server.run("CONFIG SET appendfsync everysec").expect("set");
    server.run("CONFIG SET appendfsync always").expect("set back");
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "another") > 0);
}

#[test]
fn a_clean_stop_with_everything_saved_needs_no_quarantine() {
    let mut server = Server::builder().config("save", "\"3600 1000000\"").start();
    let fence = granted(&server, "lock", "holder", 60_000);
    server.terminate_with("SAVE");
    server.start_again();
    assert_eq!(acquire(&server, "lock", "other", 1_000), Ok(None), "the lease came back");
    assert!(granted(&server, "another", "other", 1_000) > 0);
    release(&server, "lock", "holder");
    assert!(granted(&server, "lock", "next", 1_000) > fence);
}

#[test]
fn a_clean_stop_without_saving_waits_for_the_leases_that_stood() {
    let mut server = without_persistence();
    granted(&server, "lock", "holder", 3_000);
    server.terminate_with("NOSAVE");
    server.start_again();
    let left = quarantine_left(&server, "lock");
    assert!(left <= 3_001, "a clean stop knows the leases to the millisecond: {left} ms");
}

#[test]
fn a_clean_stop_with_no_lease_outstanding_needs_no_quarantine() {
    let mut server = without_persistence();
    let before = granted(&server, "lock", "holder", 60_000);
    release(&server, "lock", "holder");
    server.terminate_with("NOSAVE");
    server.start_again();
    assert!(granted(&server, "lock", "next", 1_000) > before, "fences go on");
}

#[test]
fn a_dump_that_vanished_after_a_clean_stop_is_noticed() {
    let mut server = Server::builder().config("save", "\"3600 1000000\"").start();
    let before = granted(&server, "lock", "holder", 60_000);
    server.terminate_with("SAVE");
    std::fs::remove_file(server.dir().join("dump.rdb")).expect("there was a dump");
    server.start_again();
    assert!(quarantine_left(&server, "lock") > 0);
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    assert!(granted(&server, "lock", "next", 1_000) > before);
}

#[test]
fn a_wall_clock_that_was_stepped_while_the_node_was_down_is_noticed() {
    let mut server = Server::builder().config("save", "\"3600 1000000\"").fake_wall_clock().start();
    granted(&server, "lock", "holder", 60_000);
    server.terminate_with("SAVE");
    server.set_wall_clock_offset_ms(3_600_000);
    server.start_again();
    assert!(quarantine_left(&server, "another") > 0);
    // In the same boot the lease itself is dated by a clock that cannot be stepped.
    let info = format!("{:?}", server.run("LOCK.INFO lock").expect("INFO"));
    assert!(info.contains("held"), "{info}");
    wait_until("the log says why", || server.log().contains("the clock was stepped"));
}
