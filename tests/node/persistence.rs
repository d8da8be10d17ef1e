//! Locks on the disk: they come back as they were, and damaged bytes are refused with a message.

use redis::Connection;

use crate::ask::{ask, ask_args, bytes, digest, field, left_ms};
use crate::common::{Server, wait_until};

/// Locks of every kind, in several databases.
fn fill(conn: &mut Connection) {
    let (long, label) = ("t".repeat(64), "l".repeat(128));
    for line in [
        "LOCK.ACQUIRE held A 600000",
        "LOCK.ACQUIRE labelled A 600000 LABEL worker-7",
        "LOCK.ACQUIRE raised A 600000",
        "LOCK.FENCE raised A 70",
        "LOCK.ACQUIRE extended A 5",
        "LOCK.EXTEND extended A 600000 FENCE 80",
        "LOCK.ACQUIRE free A 30000",
        "LOCK.RELEASE free A",
        "LOCK.ACQUIRE expiring A 600000",
        "PEXPIRE expiring 900000",
        "LOCK.ACQUIRE gone A 600000",
        "LOCK.FENCE gone A 90",
        "DEL gone",
        "SET string x",
        "SELECT 3",
        "LOCK.ACQUIRE held B 600000",
    ] {
        ask(conn, line);
    }
    let binary: [&[u8]; 4] = [b"LOCK.ACQUIRE", b"\xff\0key\r\n", b"\0\xff\r\ntoken", b"600000"];
    ask_args(conn, &binary);
    ask_args(conn, &["LOCK.ACQUIRE", "long", &long, "600000", "LABEL", &label]);
    ask(conn, "LOCK.ACQUIRE short A 1");
    crate::ask::wait_for_lapse(conn, "short");
    ask(conn, "SELECT 0");
}

/// Asserts that everything of [`fill`] is there after `reload`.
#[track_caller]
fn survives(how: &str, server: &mut Server, reload: impl FnOnce(&mut Server)) {
    let conn = &mut server.connect();
    let (before, left) = (digest(conn), left_ms(conn, "labelled"));
    reload(server);
    let conn = &mut server.connect();
    assert_eq!(digest(conn), before, "{how}");
    let now = left_ms(conn, "labelled");
    // Between two clocks that are both read in whole milliseconds, one may be lost or gained.
    assert!(now <= left + 1 && now + 10_000 > left, "{how}: {left} ms became {now}");
    assert_eq!(field(conn, "labelled", "label"), "worker-7", "{how}");
    assert_eq!(field(conn, "free", "state"), "free", "{how}");
    assert!(ask(conn, "PTTL expiring").parse::<i64>().unwrap() > 800_000, "{how}");
    assert_eq!(ask(conn, "LOCK.ACQUIRE held B 30000"), "nil", "{how}");
    assert_eq!(ask(conn, "LOCK.EXTEND held A 600000"), "1", "{how}");
    ask(conn, "SELECT 3");
    assert_eq!(ask(conn, "LOCK.ACQUIRE held A 30000"), "nil", "{how}");
    assert_eq!(field(conn, "short", "state"), "free", "{how}");
    assert_eq!(field(conn, "long", "label"), "l".repeat(128), "{how}");
    // The floor came with the locks.
    let fence = ask(conn, "LOCK.ACQUIRE gone A 30000").parse::<u64>().unwrap();
    assert!(fence > 90, "{how}: {fence}");
    ask(conn, "DEL gone");
}

#[test]
fn locks_come_back_from_a_snapshot() {
    let mut server = Server::start();
    fill(&mut server.connect());
    survives("DEBUG RELOAD", &mut server, |server| {
        server.run("DEBUG RELOAD").unwrap();
    });
    survives("SAVE and restart", &mut server, |server| {
        server.terminate_with("SAVE");
        server.start_again();
    });
    survives("without compression", &mut server, |server| {
        server.terminate_with("SAVE");
        server.reconfigure(|builder| builder.config("rdbcompression", "no"));
        server.start_again();
        server.run("DEBUG RELOAD").unwrap();
    });
}

/// Makes the server rewrite its append-only file.
pub(crate) fn rewrite(server: &Server) {
    let rewrites = || server.info("aof_last_bgrewrite_status").expect("a status");
    let in_progress = || {
        server.info_u64("aof_rewrite_in_progress") + server.info_u64("aof_rewrite_scheduled") > 0
    };
    wait_until("no rewrite is going on", || !in_progress());
    server.run("BGREWRITEAOF").unwrap();
    wait_until("the append-only file is rewritten", || !in_progress());
    assert_eq!(rewrites(), "ok");
}

#[test]
fn locks_come_back_from_the_append_only_file_with_and_without_preamble() {
    for preamble in ["no", "yes"] {
        let mut server = Server::builder()
            .config("appendonly", "yes")
            .config("aof-use-rdb-preamble", preamble)
            .start();
        fill(&mut server.connect());
        survives("DEBUG LOADAOF", &mut server, |server| {
            server.run("DEBUG LOADAOF").unwrap();
        });
        survives("restart", &mut server, Server::restart);
        survives("a rewrite and DEBUG LOADAOF", &mut server, |server| {
            rewrite(server);
            server.run("DEBUG LOADAOF").unwrap();
        });
        survives("a rewrite and a restart", &mut server, |server| {
            rewrite(server);
            server.restart();
        });
        let base = server.dir().join("appendonlydir");
        let has_text = std::fs::read_dir(base).unwrap().flatten().any(|file| {
            let is_base = file.file_name().to_string_lossy().contains(".base.");
            is_base && std::fs::read(file.path()).unwrap().starts_with(b"*")
        });
        assert_eq!(has_text, preamble == "no", "the rewritten file is of the wanted kind");
    }
}

#[test]
fn a_rewritten_file_states_counters_leases_and_the_floor_as_facts() {
    let mut server =
        Server::builder().config("appendonly", "yes").config("aof-use-rdb-preamble", "no").start();
    let conn = &mut server.connect();
    for line in [
        "LOCK.ACQUIRE gone A 30000",
        "DEL gone",
        "LOCK.ACQUIRE held A 600000 LABEL me",
        "LOCK.ACQUIRE free A 30000",
        "LOCK.RELEASE free A",
    ] {
        ask(conn, line);
    }
    rewrite(&server);
    server.terminate();
    let folder = server.dir().join("appendonlydir");
    let mut files = std::fs::read_dir(folder).unwrap().flatten();
    let base = files.find(|file| file.file_name().to_string_lossy().contains(".base.")).unwrap();
    let text = std::fs::read(base.path()).unwrap().escape_ascii().to_string();
    let free = r"LOCK.ACQUIRE\r\n$4\r\nfree\r\n$0\r\n\r\n$7\r\n0@0.2.1\r\n";
    assert!(text.contains(free), "{text}");
    assert!(text.contains(r"LOCK.ACQUIRE\r\n$4\r\nheld\r\n$1\r\nA\r\n$"), "{text}");
    assert!(text.contains(r".2.1\r\n$5\r\nLABEL\r\n$2\r\nme\r\n"), "{text}");
}

/// The place of `version payload` in a dump: after type, module id and the opcode of a string.
const PAYLOAD: usize = 1 + 9 + 1 + 1;

fn dump_of_a_lock(server: &Server) -> Vec<u8> {
    let conn = &mut server.connect();
    ask(conn, "CONFIG SET rdbcompression no");
    // The damage must reach the module, and not be found by the checksum of the whole file.
    assert_eq!(ask(conn, "DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    ask(conn, "LOCK.ACQUIRE res secret-token-1234567 600000 LABEL me");
    bytes(conn, &["DUMP", "res"])
}

#[test]
fn damaged_dumps_are_refused_with_a_message_or_mean_a_sound_lock() {
    let mut server = Server::start();
    let dump = dump_of_a_lock(&server);
    let conn = &mut server.connect();
    let mut refused = 0;
    for place in PAYLOAD..dump.len() - 11 {
        for bit in [1, 8, 128] {
            let mut damaged = dump.clone();
            damaged[place] ^= bit;
            let answer = ask_args(conn, &[b"RESTORE".as_slice(), b"copy", b"0", &damaged]);
            if answer == "OK" {
                let fence: u64 = field(conn, "copy", "fence").parse().unwrap();
                assert!(fence < 1 << 53);
                ask(conn, "DEL copy");
            } else {
                assert_eq!(answer, "ERR Bad data format");
                assert_eq!(ask(conn, "EXISTS copy"), "0");
                refused += 1;
            }
        }
    }
    // The last bytes of the lock are missing, and the dump's frame is adjusted to that.
    let end = dump.len() - 11;
    for missing in 1..=usize::from(dump[PAYLOAD - 1]) {
        let mut cut = [&dump[..end - missing], &dump[end..]].concat();
        cut[PAYLOAD - 1] -= missing as u8;
        let answer = ask_args(conn, &[b"RESTORE".as_slice(), b"copy", b"0", &cut]);
        assert_eq!(answer, "ERR Bad data format", "{missing} bytes are missing");
    }
    assert!(server.is_running());
    assert!(refused > 20, "{refused}");
    assert!(server.log().contains("a lock could not be read: corrupt: "), "{}", server.log());
    assert!(!server.log().contains("panicked"));
    assert_eq!(ask(conn, "LOCK.RELEASE res secret-token-1234567"), "1");
}

#[test]
fn dumps_of_a_newer_version_are_refused_with_both_numbers() {
    let server = Server::start();
    let dump = dump_of_a_lock(&server);
    let conn = &mut server.connect();
    let mut newer = dump.clone();
    assert_eq!(newer[PAYLOAD], 1, "the version stands where it is looked for");
    newer[PAYLOAD] = 3;
    let restore = [b"RESTORE".as_slice(), b"copy", b"0", &newer];
    assert_eq!(ask_args(conn, &restore), "ERR Bad data format");
    let why = "a lock could not be read: written in version 3, and this build reads up to 2";
    assert!(server.log().contains(why), "{}", server.log());

    let mut newer = dump;
    newer[9] += 1;
    let restore = [b"RESTORE".as_slice(), b"copy", b"0", &newer];
    assert_eq!(ask_args(conn, &restore), "ERR Bad data format");
    let why = "a lock was saved in version 2; this build reads up to 1";
    assert!(server.log().contains(why), "{}", server.log());
}

#[test]
fn a_snapshot_that_cannot_be_read_keeps_the_server_from_starting() {
    for (version, why) in [(3, "written in version 3"), (0, "corrupt: version 0")] {
        let mut server = Server::builder().config("rdbchecksum", "no").start();
        let dump = dump_of_a_lock(&server);
        // The lock's bytes begin the same in dump and snapshot, up to the times.
        let id = &dump[..PAYLOAD + 1];
        server.terminate_with("SAVE");
        let file = server.dir().join("dump.rdb");
        let mut data = std::fs::read(&file).unwrap();
        let module = data.windows(9).position(|part| part == &id[1..10]).expect("the lock");
        let place = module + PAYLOAD - 1;
        assert_eq!(data[place], 1);
        data[place] = version;
        std::fs::write(&file, data).unwrap();
        let error = server.try_start_again().expect_err("a damaged snapshot");
        assert!(error.log.contains(why), "{error}");
        assert!(error.log.contains("a lock could not be read"), "{error}");
        assert!(!error.log.contains("panicked"), "{error}");
    }
}
