//! Refusals: a code word, the value, what is allowed; and nothing has changed.

use std::cell::RefCell;

use proptest::prelude::*;
use redis::Connection;

use crate::ask::{ask, ask_all, ask_args, digest, show};
use crate::common::{RawConnection, Server, run_args};
use crate::told::Stream;

const LONG: &[u8] = &[b'x'; 65];
const LONG_LABEL: &[u8] = &[b'x'; 129];

/// Command and arguments, and the whole error.
fn refusals() -> Vec<(Vec<&'static [u8]>, String)> {
    let ttl = |given: &str| {
        format!("BADTTL ttl '{given}' is not a whole number of milliseconds from 1 to 86400000")
    };
    let token = |length| format!("BADTOKEN token has {length} bytes; allowed: 1 to 64");
    let fence = |given| {
        format!("BADARG fence '{given}'; allowed: a whole number from 1 to 9007199254740991")
    };
    let options = "SHARED, LABEL label, and WAIT ms or QUEUE ms TICKET ticket NOTIFY channel \
                   [GRANT number], each once";
    let option = |given| format!("BADARG option '{given}'; allowed: {options}");
    let without = |given| format!("BADARG option without a value '{given}'; allowed: {options}");
    let second = |given| format!("BADARG second way to wait '{given}'; allowed: {options}");
    let wait = |given| {
        let allowed = "a whole number of milliseconds from 0 to 86400000";
        format!("BADARG wait '{given}'; allowed: {allowed}")
    };
    let ticket = |given| {
        let allowed =
            "start-id, with a start from 1 to 9007199254740991 and an id of 1 to 64 bytes";
        format!("BADARG ticket '{given}'; allowed: {allowed}")
    };
    let fencing = |given| {
        let allowed = "[SHARED] [FENCE f [REPAIR [LABEL label]]], in this order";
        format!("BADARG option '{given}'; allowed: {allowed}")
    };
    let wrong_type = "WRONGTYPE the key holds another kind of value; allowed: a lock, or no key";
    let mut table: Vec<(Vec<&'static [u8]>, String)> = Vec::new();
    for key in [&b"missing"[..], b"held", b"free", b"\xff\0"] {
        let mut row = |args: &[&'static [u8]], error: String| {
            let (name, rest) = args.split_first().expect("a name");
            table.push(([&[*name, key], rest].concat(), error));
        };
        for name in [&b"LOCK.ACQUIRE"[..], b"LOCK.EXTEND"] {
            for given in
                ["0", "-1", "86400001", "", "1.5", "1e3", " 1", "0x10", "999999999999999999999"]
            {
                row(&[name, b"A", given.as_bytes()], ttl(given));
            }
            row(&[name, b"A", b"\xff\r\n"], ttl(r"\xff\r\n"));
            row(&[name, b"A", b"30000@1763690000000.17"], ttl("30000@1763690000000.17"));
            row(&[name, b"A", b"30000@1763690000000.17.3"], ttl("30000@1763690000000.17.3"));
            row(&[name, b"", b"30000"], token(0));
            row(&[name, LONG, b"30000"], token(65));
        }
        row(&[b"LOCK.ACQUIRE", b"A", b"9", b"LABEL"], without("LABEL"));
        row(
            &[b"LOCK.ACQUIRE", b"A", b"9", b"LABEL", b""],
            "BADARG label ''; allowed: 1 to 128 bytes".into(),
        );
        row(
            &[b"LOCK.ACQUIRE", b"A", b"9", b"LABEL", LONG_LABEL],
            format!("BADARG label '{}...'; allowed: 1 to 128 bytes", "x".repeat(64)),
        );
        row(&[b"LOCK.ACQUIRE", b"A", b"9", b"NX"], option("NX"));
        row(&[b"LOCK.ACQUIRE", b"A", b"9", b"\xfe"], option(r"\xfe"));
        row(&[b"LOCK.ACQUIRE", b"A", b"9", b"WAIT"], without("WAIT"));
        row(&[b"LOCK.ACQUIRE", b"A", b"9", b"WAIT", b"1", b"WAIT", b"1"], second("WAIT"));
        for given in ["-1", "86400001", "", "soon"] {
            row(&[b"LOCK.ACQUIRE", b"A", b"9", b"WAIT", given.as_bytes()], wait(given));
        }
        for command in [&[&b"LOCK.ACQUIRE"[..], b"A", b"9"][..], &[b"LOCK.RELEASE", b"A"]] {
            let mut queue =
                |ms: &'static str, ticket: &'static str, channel: &'static [u8], error: String| {
                    let (ms, ticket) = (ms.as_bytes(), ticket.as_bytes());
                    let options = [&b"QUEUE"[..], ms, b"TICKET", ticket, b"NOTIFY", channel];
                    row(&[command, &options[..]].concat(), error);
                };
            queue("86400001", "5-a", b"c", wait("86400001"));
            for given in ["5", "0-a", "-a", "5-", "05-a", "9007199254740992-a"] {
                queue("1", given, b"c", ticket(given));
            }
            queue("1", "5-a", b"", "BADARG channel ''; allowed: 1 to 256 bytes".into());
            let words = [command, &[b"QUEUE", b"5", b"TICKET", b"5-a"]].concat();
            row(
                &words,
                "BADARG incomplete option 'QUEUE'; allowed: QUEUE ms TICKET ticket NOTIFY \
                 channel, in this order"
                    .into(),
            );
        }
        row(
            &[b"LOCK.RELEASE", b"A", b"WAIT", b"5"],
            "BADARG option 'WAIT'; allowed: nothing, HANDOVER, or [SHARED] QUEUE ms TICKET \
             ticket NOTIFY channel"
                .into(),
        );
        row(
            &[b"LOCK.RELEASE", b"A", b"SHARED"],
            "BADARG lone option 'SHARED'; allowed: nothing, HANDOVER, or [SHARED] \
             QUEUE ms TICKET ticket NOTIFY channel"
                .into(),
        );
        row(&[b"LOCK.EXTEND", b"A", b"9", b"FENCE"], fencing("FENCE"));
        row(&[b"LOCK.EXTEND", b"A", b"9", b"REPAIR"], fencing("REPAIR"));
        row(&[b"LOCK.EXTEND", b"A", b"9", b"FENCE", b"4", b"NOW"], fencing("NOW"));
        let repair: [&[u8]; 6] = [b"LOCK.EXTEND", b"A", b"9", b"FENCE", b"4", b"REPAIR"];
        row(&[&repair[..], &[b"x"]].concat(), fencing("x"));
        row(&[&repair[..], &[b"LABEL"]].concat(), fencing("LABEL"));
        row(&[&repair[..], &[b"LABEL", b"me", b"x"]].concat(), fencing("x"));
        row(
            &[&repair[..], &[b"LABEL", b""]].concat(),
            "BADARG label ''; allowed: 1 to 128 bytes".to_owned(),
        );
        for given in ["0", "-1", "9007199254740992", "", "seven"] {
            row(&[b"LOCK.EXTEND", b"A", b"9", b"FENCE", given.as_bytes()], fence(given));
            row(&[b"LOCK.EXTEND", b"A", b"9", b"FENCE", given.as_bytes(), b"REPAIR"], fence(given));
            row(&[b"LOCK.FENCE", b"A", given.as_bytes()], fence(given));
        }
        row(&[b"LOCK.FENCE", b"", b"4"], token(0));
        row(&[b"LOCK.FENCE", LONG, b"4"], token(65));
        row(&[b"LOCK.RELEASE", b""], token(0));
        row(&[b"LOCK.RELEASE", LONG], token(65));
    }
    for args in [
        &[&b"LOCK.ACQUIRE"[..], b"string", b"A", b"9"][..],
        &[b"LOCK.EXTEND", b"string", b"A", b"9"],
        &[b"LOCK.EXTEND", b"string", b"A", b"9", b"FENCE", b"4", b"REPAIR"],
        &[b"LOCK.RELEASE", b"string", b"A"],
        &[b"LOCK.FENCE", b"string"],
        &[b"LOCK.FENCE", b"string", b"A", b"4"],
        &[b"LOCK.INFO", b"string"],
    ] {
        table.push((args.to_vec(), wrong_type.to_owned()));
    }
    table
}

/// What must be unchanged.
fn state(conn: &mut Connection, server: &Server) -> (String, String, u64, u64) {
    let changes = server.info_u64("rdb_changes_since_last_save");
    (digest(conn), ask(conn, "DBSIZE"), changes, server.info_u64("lockmod_floor"))
}

fn prepare(conn: &mut Connection) {
    for line in [
        "SET string value",
        "LOCK.ACQUIRE held B 30000",
        "LOCK.ACQUIRE free B 30000",
        "LOCK.RELEASE free B",
    ] {
        ask(conn, line);
    }
}

/// A client-side cache that is notified of every change.
fn listen_for_invalidations(server: &Server) -> RawConnection {
    let mut cache = server.connect_raw();
    cache.run("HELLO 3");
    assert_eq!(cache.run("CLIENT TRACKING ON BCAST"), b"+OK\r\n");
    cache
}

/// Runs commands that must change nothing, and looks everywhere where a change would show.
fn changes_nothing(server: &Server, work: impl FnOnce(&mut Connection)) {
    let conn = &mut server.connect();
    prepare(conn);
    let mut watcher = server.connect();
    ask(&mut watcher, "WATCH missing held free string other");
    let mut cache = listen_for_invalidations(server);
    let mut replica = Stream::open(server);
    let before = state(conn, server);

    work(conn);

    assert_eq!(state(conn, server), before);
    assert_eq!(replica.told(conn), Vec::<String>::new());
    ask(&mut watcher, "MULTI");
    ask(&mut watcher, "PING");
    assert_eq!(ask(&mut watcher, "EXEC"), "[PONG]", "a watched key was touched");
    ask(conn, "SET marker 1");
    let told = cache.read();
    assert!(told.ends_with(b"marker\r\n"), "{}", told.escape_ascii());
}

#[test]
fn refused_commands_name_what_is_wrong_and_change_nothing() {
    let server = Server::start();
    changes_nothing(&server, |conn| {
        let before = digest(conn);
        for (args, error) in refusals() {
            let shown: Vec<String> = args.iter().map(|a| a.escape_ascii().to_string()).collect();
            assert_eq!(ask_args(conn, &args), error, "{}", shown.join(" "));
            assert_eq!(digest(conn), before, "{}", shown.join(" "));
        }
    });
    assert_eq!(server.info_u64("lockmod_refusals"), refusals().len() as u64);
    assert!(!server.log().contains("lockmod: "), "refusals are not worth a line in the log");
}

#[test]
fn requests_that_are_answered_with_no_change_nothing_either() {
    let server = Server::start();
    changes_nothing(&server, |conn| {
        for (line, answer) in [
            ("LOCK.ACQUIRE held A 30000", "nil"),
            ("LOCK.ACQUIRE held A 30000 LABEL me", "nil"),
            ("LOCK.ACQUIRE held B 5", "1"),
            ("LOCK.RELEASE held A", "0"),
            ("LOCK.RELEASE free A", "nil"),
            ("LOCK.RELEASE missing A", "nil"),
            ("LOCK.EXTEND held A 30000", "0"),
            ("LOCK.EXTEND held A 30000 FENCE 50 REPAIR", "0"),
            ("LOCK.EXTEND free A 30000 FENCE 50", "nil"),
            ("LOCK.EXTEND missing A 30000", "nil"),
            ("LOCK.FENCE held", "1"),
            ("LOCK.FENCE missing", "0"),
            ("LOCK.FENCE held A 50", "0"),
            ("LOCK.FENCE free A 50", "nil"),
            ("LOCK.FENCE missing A 50", "nil"),
        ] {
            assert_eq!(ask(conn, line), answer, "{line}");
        }
        ask(conn, "LOCK.INFO held");
        ask(conn, "LOCK.INFO missing");
    });
}

#[test]
fn a_wrong_number_of_arguments_is_refused_as_redis_does() {
    let server = Server::start();
    let conn = &mut server.connect();
    for line in [
        "LOCK.ACQUIRE",
        "LOCK.ACQUIRE key",
        "LOCK.ACQUIRE key token",
        "LOCK.RELEASE key",
        "LOCK.EXTEND key token",
        "LOCK.FENCE",
        "LOCK.FENCE key token",
        "LOCK.FENCE key token 3 4",
        "LOCK.INFO",
        "LOCK.INFO key token",
        "LOCK.HELP me",
    ] {
        let name = line.split(' ').next().unwrap().to_lowercase();
        let error = ask(conn, line).to_lowercase();
        assert_eq!(error, format!("err wrong number of arguments for '{name}' command"), "{line}");
    }
    assert_eq!(ask(conn, "DBSIZE"), "0");
    let long = [&["LOCK.ACQUIRE", "key", "token", "9"][..], &["LABEL"; 500]].concat();
    assert_eq!(
        ask_args(conn, &long),
        "BADARG argument at the end 'LABEL'; allowed: the options that LOCK.HELP lists, once each"
    );
}

#[test]
fn a_granted_lease_touches_watched_keys_and_client_side_caches() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut cache = listen_for_invalidations(&server);
    for line in [
        "LOCK.ACQUIRE res A 30000",
        "LOCK.ACQUIRE res A 60000",
        "LOCK.EXTEND res A 90000",
        "LOCK.FENCE res A 7",
        "LOCK.RELEASE res A",
        "LOCK.EXTEND res A 30000 FENCE 9 REPAIR",
    ] {
        let mut watcher = server.connect();
        ask(&mut watcher, "WATCH res");
        ask(conn, line);
        ask(&mut watcher, "MULTI");
        ask(&mut watcher, "PING");
        assert_eq!(ask(&mut watcher, "EXEC"), "nil", "{line}");
        let told = cache.read();
        assert!(told.ends_with(b"res\r\n"), "{line}: {}", told.escape_ascii());
    }
}

/// Regression: an extension that is no longer, and a raise to a fence that is already stored, broke
/// every `WATCH`. Removing an `EXPIRE` is a change.
#[test]
fn what_changes_nothing_touches_no_watched_key() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    ask(conn, "LOCK.FENCE res A 7");
    let lines = ["LOCK.EXTEND res A 5", "LOCK.EXTEND res A 5 FENCE 7", "LOCK.FENCE res A 7"];
    for (is_to_expire, executed) in [(false, "[PONG]"), (true, "nil")] {
        for line in lines.into_iter().chain(["LOCK.ACQUIRE res A 5", "LOCK.FENCE res A 1"]) {
            if is_to_expire {
                ask(conn, "PEXPIRE res 600000");
            }
            let mut watcher = server.connect();
            ask(&mut watcher, "WATCH res");
            ask(conn, line);
            ask(&mut watcher, "MULTI");
            ask(&mut watcher, "PING");
            assert_eq!(ask(&mut watcher, "EXEC"), executed, "{line}");
            assert_eq!(ask(conn, "PTTL res"), "-1", "{line}");
        }
    }
}

#[test]
fn fences_that_are_used_up_are_refused() {
    let server = Server::start();
    let conn = &mut server.connect();
    let exhausted =
        "EXHAUSTED the fence is 9007199254740991, the largest there is; no other follows";
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE other B 30000", "1"),
            ("LOCK.FLOOR 9007199254740990", "9007199254740990"),
            ("LOCK.ACQUIRE res A 30000", "9007199254740991"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res A 30000", exhausted),
            ("LOCK.FENCE res", "9007199254740991"),
            ("LOCK.EXTEND other B 30000", "1"),
            ("LOCK.RELEASE other B", "1"),
            ("LOCK.ACQUIRE other B 30000", "9007199254740991"),
        ],
    );
}

/// One argument, often almost right.
fn argument() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "LABEL",
        "FENCE",
        "REPAIR",
        "WAIT",
        "QUEUE",
        "GRANT",
        "HANDOVER",
        "1",
        "30000",
        "0",
        "9007199254740991",
        "18446744073709551615",
        "30000@1.2",
        "30000@1.2?",
        "5@99999999999999.3.4",
        "A",
        "B",
        "",
    ];
    prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => (0_usize..3000).prop_map(|length| vec![b'7'; length]),
    ]
}

fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let names = ["ACQUIRE", "RELEASE", "EXTEND", "FENCE", "FLOOR", "INFO", "HELP"];
    let keys = ["held", "free", "string", "missing", "other"];
    let name = proptest::sample::select(names.to_vec());
    let key = proptest::sample::select(keys.to_vec());
    (name, key, proptest::collection::vec(argument(), 0..10)).prop_map(|(name, key, rest)| {
        let mut args = vec![format!("LOCK.{name}").into_bytes(), key.into()];
        args.extend(rest);
        args
    })
}

#[test]
fn no_arguments_bring_the_server_down_and_no_error_changes_anything() {
    const CODES: [&str; 7] =
        ["BADTTL", "BADTOKEN", "BADARG", "BADFENCE", "WRONGTYPE", "EXHAUSTED", "ERR"];
    let mut server = Server::start();
    let conn = RefCell::new(server.connect());
    prepare(&mut conn.borrow_mut());
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() };
    proptest!(config, |(args in request())| {
        let conn = &mut conn.borrow_mut();
        let before = digest(conn);
        let answer = run_args(conn, &args);
        if answer.is_err() {
            let error = show(answer);
            let code = error.split(' ').next().unwrap_or_default();
            prop_assert!(CODES.contains(&code), "{}", error);
            prop_assert!(!error.contains("bug"), "{}", error);
            prop_assert_eq!(digest(conn), before);
        }
    });
    assert!(server.is_running());
    assert!(!server.log().contains("panicked"), "{}", server.log());
}
