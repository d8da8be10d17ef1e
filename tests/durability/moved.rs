//! Leases that arrive under another name while a node is in quarantine.
//!
//! The node may have granted that name to another before it crashed. Regression: a lease that
//! arrived there counted at once, and together with the forgotten vote made two holders.

use redis::Value;

use crate::common::{Builder, Server, cmd, error_line, run, wait_until};
use crate::{granted, quarantine_left};

/// Longer than any test takes.
const LONG_MS: u64 = 600_000;

/// The node's answer to an extension by the holder of `name`.
#[track_caller]
fn extend(server: &Server, database: u32, name: &str) -> Value {
    let mut connection = server.connect();
    run(&mut connection, &format!("SELECT {database}")).expect("selected");
    cmd!(connection, "LOCK.EXTEND", name, "holder", LONG_MS).expect("carried out")
}

fn end_quarantine(server: &Server) {
    server.run("CONFIG SET lockmod.quarantine no").expect("set");
    server.run("CONFIG SET lockmod.quarantine yes").expect("set");
}

fn restore(server: &Server, name: &str) -> Result<Value, String> {
    let mut connection = server.connect();
    let Ok(Value::BulkString(dump)) = run(&mut connection, "DUMP kept") else { panic!("a dump") };
    cmd!(connection, "RESTORE", name, 0, dump).map_err(|error| error_line(Err(error)))
}

/// A way to bring the lease of the lock `kept` to another name.
struct Way {
    what: &'static str,
    go: fn(&Server),
    database: u32,
    name: &'static str,
    /// The answer to an extension of a lease that stayed where it was: before and after a crash.
    others: [i64; 2],
}

const WAYS: [Way; 5] = [
    Way {
        what: "COPY",
        go: |server| drop(server.run("COPY kept lock").expect("copied")),
        database: 0,
        name: "lock",
        others: [1, 1],
    },
    Way {
        what: "RENAME",
        go: |server| drop(server.run("RENAME kept lock").expect("renamed")),
        database: 0,
        name: "lock",
        others: [1, 2],
    },
    Way {
        what: "MOVE",
        go: |server| drop(server.run("MOVE kept 3").expect("moved")),
        database: 3,
        name: "kept",
        others: [1, 2],
    },
    Way {
        what: "SWAPDB",
        go: |server| drop(server.run("SWAPDB 0 5").expect("swapped")),
        database: 5,
        name: "kept",
        others: [2, 2],
    },
    Way {
        what: "RESTORE",
        go: |server| drop(restore(server, "lock").expect("restored")),
        database: 0,
        name: "lock",
        others: [2, 2],
    },
];

/// Brings a lease to another name in a quarantine, and crashes within it.
#[track_caller]
fn comes_in_quarantine(way: &Way, builder: Builder, keep: impl Fn(&Server)) {
    let Way { what, go, database, name, others } = *way;
    let mut server = builder.start();
    granted(&server, "kept", "holder", LONG_MS);
    let mut third = server.connect();
    run(&mut third, "SELECT 9").expect("selected");
    cmd!(third, "LOCK.ACQUIRE", "stays", "holder", LONG_MS).expect("granted");
    keep(&server);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "free") > 0);
    assert_eq!(extend(&server, 0, "kept"), Value::Int(1), "{what}: it came back with the data");
    go(&server);
    for crash in 0..2 {
        assert_eq!(extend(&server, database, name), Value::Int(2), "{what}, crash {crash}");
        let others = Value::Int(others[crash]);
        assert_eq!(extend(&server, 9, "stays"), others, "{what}, crash {crash}");
        keep(&server);
        server.kill();
        server.start_again();
        assert!(quarantine_left(&server, "free") > 0);
    }
    end_quarantine(&server);
    assert_eq!(extend(&server, database, name), Value::Int(1), "{what}: all is over");
    assert_eq!(extend(&server, 9, "stays"), Value::Int(1), "{what}: all is over");
}

#[test]
fn a_lease_under_another_name_does_not_count_in_quarantine_nor_after_a_snapshot() {
    for way in &WAYS {
        comes_in_quarantine(way, Server::builder(), |server| {
            server.run("SAVE").expect("saved");
        });
    }
}

#[test]
fn a_lease_under_another_name_does_not_count_in_quarantine_nor_after_an_append_only_file() {
    for way in &WAYS {
        let builder = Server::builder().config("appendonly", "yes").config("appendfsync", "no");
        comes_in_quarantine(way, builder, |_| ());
    }
}

#[test]
fn a_lease_that_changed_its_name_before_the_crash_counts_again_when_it_was_extended() {
    let builder = Server::builder().config("appendonly", "yes").config("appendfsync", "no");
    let mut server = builder.start();
    for name in ["one", "two"] {
        granted(&server, name, "holder", LONG_MS);
        server.run(&format!("COPY {name} {name}:new")).expect("copied");
    }
    assert_eq!(extend(&server, 0, "one:new"), Value::Int(1));
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "free") > 0);
    assert_eq!(extend(&server, 0, "one:new"), Value::Int(1), "the node vouched for it");
    assert_eq!(extend(&server, 0, "two:new"), Value::Int(2), "it is unknown when it came");
}

#[test]
fn what_the_state_file_cannot_say_of_names_is_not_done_or_found_in_the_data() {
    let mut server = Server::builder()
        .config("appendonly", "yes")
        .config("appendfsync", "no")
        .watched_disk()
        .start();
    granted(&server, "kept", "holder", LONG_MS);
    server.kill();
    server.start_again();
    assert!(quarantine_left(&server, "free") > 0);
    server.set_disk_full(true);
    restore(&server, "lock").expect_err("refused");
    assert!(server.log().contains("RESTORE of a lock was refused: STATEFILE "), "{}", server.log());
    assert_eq!(server.run("EXISTS lock"), Ok(Value::Int(0)));
    server.run("SWAPDB 0 5").expect("swapped");
    server.kill();
    server.set_disk_full(false);
    server.start_again();
    assert!(quarantine_left(&server, "free") > 0);
    assert_eq!(extend(&server, 5, "kept"), Value::Int(2), "the append-only file has the swap");
}

/// A way to get the present data set onto the disk, whatever happens to the server then.
struct Saving {
    what: &'static str,
    settings: fn(Builder) -> Builder,
    go: fn(&mut Server),
}

fn with_append_only_file(builder: Builder) -> Builder {
    builder.config("appendonly", "yes").config("appendfsync", "no")
}

fn rewrite(server: &mut Server) {
    server.run("BGREWRITEAOF").expect("begun");
    wait_until("the file is rewritten", || {
        server.info_u64("aof_rewrite_in_progress") == 0
            && server.info_u64("aof_rewrite_scheduled") == 0
    });
    server.kill();
}

const SAVINGS: [Saving; 4] = [
    Saving {
        what: "SAVE",
        settings: |builder| builder,
        go: |server| {
            server.run("SAVE").expect("saved");
            server.kill();
        },
    },
    Saving {
        what: "SHUTDOWN SAVE",
        settings: |builder| builder,
        go: |server| server.terminate_with("SAVE"),
    },
    Saving { what: "BGREWRITEAOF", settings: with_append_only_file, go: rewrite },
    Saving {
        what: "BGREWRITEAOF as commands",
        settings: |builder| with_append_only_file(builder).config("aof-use-rdb-preamble", "no"),
        go: rewrite,
    },
];

/// Regression: a swap that the state file could not record was forgotten when the swapped data set
/// was saved: the next start assumed that each lease had been under its name before the first
/// crash.
#[test]
fn what_is_saved_while_the_state_file_cannot_be_written_says_what_does_not_count() {
    for (way, saving) in WAYS.iter().flat_map(|way| SAVINGS.iter().map(move |to| (way, to))) {
        let what = format!("{}, {}", way.what, saving.what);
        let mut server = (saving.settings)(Server::builder()).watched_disk().start();
        granted(&server, "kept", "holder", LONG_MS);
        server.run("SAVE").expect("saved");
        server.kill();
        server.start_again();
        assert!(quarantine_left(&server, "free") > 0, "{what}");
        server.set_disk_full(true);
        if way.what == "RESTORE" {
            restore(&server, "lock").expect_err("refused");
        } else {
            (way.go)(&server);
        }
        (saving.go)(&mut server);
        server.set_disk_full(false);
        server.start_again();
        assert!(quarantine_left(&server, "free") > 0, "{what}");
        let name = if way.what == "RESTORE" { "kept" } else { way.name };
        assert_eq!(extend(&server, way.database, name), Value::Int(2), "{what}");
        end_quarantine(&server);
        assert_eq!(extend(&server, way.database, name), Value::Int(1), "{what}: all is over");
    }
}
