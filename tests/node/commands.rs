//! The commands and their replies, as the table in `docs/commands.md` promises them.

use lockmod::wire::lock_info;
use redis::Value;

use crate::ask::{ask, ask_all, ask_args, bytes, field, left_ms, wait_for_lapse};
use crate::common::{Server, run_args, wait_until};

#[test]
fn every_outcome_of_every_command_has_its_own_reply() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE res A 30000", "1"),
            ("LOCK.ACQUIRE res A 30000", "1"),
            ("LOCK.ACQUIRE res B 30000", "nil"),
            ("LOCK.ACQUIRE res B 30000 LABEL b", "nil"),
            ("LOCK.RELEASE res B", "0"),
            ("LOCK.EXTEND res B 30000", "0"),
            ("LOCK.EXTEND res B 30000 FENCE 9 REPAIR", "0"),
            ("LOCK.EXTEND res A 30000", "1"),
            ("LOCK.FENCE res", "1"),
            ("LOCK.FENCE res B 9", "0"),
            ("LOCK.FENCE res A 9", "9"),
            ("LOCK.FENCE res A 5", "9"),
            ("LOCK.ACQUIRE res A 30000", "9"),
            ("LOCK.EXTEND res A 30000 FENCE 12", "1"),
            ("LOCK.FENCE res", "12"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.RELEASE res A", "nil"),
            ("LOCK.EXTEND res A 30000", "nil"),
            ("LOCK.FENCE res A 20", "nil"),
            ("LOCK.FENCE res", "12"),
            ("LOCK.ACQUIRE res B 30000", "13"),
        ],
    );
}

#[test]
fn a_lock_that_never_was_is_not_held_and_has_no_fence() {
    let server = Server::start();
    ask_all(
        &mut server.connect(),
        &[
            ("LOCK.RELEASE res A", "nil"),
            ("LOCK.EXTEND res A 30000", "nil"),
            ("LOCK.EXTEND res A 30000 FENCE 4", "nil"),
            ("LOCK.FENCE res", "0"),
            ("LOCK.FENCE res A 5", "nil"),
            (
                "LOCK.INFO res",
                "[state free fence 0 ttl_left_ms 0 label nil held_for_ms 0 waiters 0 \
                 first_waiting_ms nil]",
            ),
            ("EXISTS res", "0"),
        ],
    );
}

const EXHAUSTED: &str =
    "EXHAUSTED the fence is 9007199254740991, the largest there is; no other follows";

#[test]
fn a_repair_gives_a_forgotten_lease_back_with_its_fence_or_the_next_of_the_node() {
    let server = Server::start();
    ask_all(
        &mut server.connect(),
        &[
            ("LOCK.EXTEND res A 30000 FENCE 7 REPAIR", "1"),
            ("LOCK.FENCE res", "7"),
            ("LOCK.ACQUIRE res B 30000", "nil"),
            ("LOCK.ACQUIRE res A 30000", "7"),
            ("DEL res", "1"),
            ("LOCK.EXTEND res A 30000", "nil"),
            ("EXISTS res", "0"),
            ("LOCK.EXTEND res A 30000 FENCE 7 REPAIR", "1"),
            ("LOCK.FENCE res", "7"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res B 30000", "8"),
            ("LOCK.EXTEND res A 30000 FENCE 7 REPAIR", "0"),
            ("LOCK.RELEASE res B", "1"),
            // The node has moved on: it gives its own next fence, as in any grant.
            ("LOCK.EXTEND res A 30000 FENCE 7 REPAIR", "1"),
            ("LOCK.FENCE res", "9"),
            ("LOCK.EXTEND res A 30000 FENCE 7 REPAIR", "1"),
            ("LOCK.FENCE res", "9"),
            ("LOCK.FLOOR 20", "20"),
            ("LOCK.EXTEND other A 30000 FENCE 7 REPAIR", "1"),
            ("LOCK.FENCE other", "21"),
            ("LOCK.FLOOR 9007199254740991", "9007199254740991"),
            ("LOCK.EXTEND none A 30000 FENCE 7 REPAIR", EXHAUSTED),
            ("EXISTS none", "0"),
        ],
    );
}

#[test]
fn a_lease_that_has_ended_is_not_held_and_the_next_grant_has_a_larger_fence() {
    let server = Server::start();
    let conn = &mut server.connect();
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 1"), "1");
    wait_for_lapse(conn, "res");
    ask_all(
        conn,
        &[
            ("LOCK.RELEASE res A", "nil"),
            ("LOCK.EXTEND res A 30000", "nil"),
            ("LOCK.FENCE res A 9", "nil"),
            ("LOCK.FENCE res", "1"),
            ("LOCK.ACQUIRE res A 30000", "2"),
        ],
    );
}

#[test]
fn neither_a_retry_nor_an_extend_makes_the_lease_shorter() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 10"), "1");
    assert!((31_000..=60_000).contains(&left_ms(conn, "res")));
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 120000"), "1");
    assert!((61_000..=120_000).contains(&left_ms(conn, "res")));
    assert_eq!(ask(conn, "LOCK.EXTEND res A 40000"), "1");
    assert!((61_000..=120_000).contains(&left_ms(conn, "res")), "its holder may rely on it");
    assert_eq!(ask(conn, "LOCK.EXTEND res A 200000"), "1");
    assert!((121_000..=200_000).contains(&left_ms(conn, "res")));
}

#[test]
fn info_shows_the_label_and_never_the_token() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res very-secret-token 30000 LABEL worker-7:311");
    let shown = ask(conn, "LOCK.INFO res");
    assert!(shown.starts_with("[state held fence 1 ttl_left_ms "), "{shown}");
    assert!(shown.contains(" label worker-7:311 held_for_ms "), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res very-secret-token 30000 LABEL other"), "1");
    assert_eq!(field(conn, "res", "label"), "worker-7:311", "the grant's label stays");
    ask(conn, "LOCK.RELEASE res very-secret-token");
    assert_eq!(field(conn, "res", "label"), "nil");
    let dump = bytes(conn, &["DUMP", "res"]);
    assert!(!dump.windows(6).any(|part| part == b"secret"), "a released token lingers");
}

#[test]
fn info_tells_for_how_long_the_present_holder_has_had_it() {
    let server = Server::start();
    let conn = &mut server.connect();
    let held_for = |conn: &mut _| field(conn, "res", "held_for_ms").parse::<u64>().unwrap();
    let start = std::time::Instant::now();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    wait_until("it has been held for a while", || held_for(conn) >= 20);
    assert!(start.elapsed().as_millis() >= 19);
    for line in ["LOCK.EXTEND res A 30000", "LOCK.ACQUIRE res A 60000", "LOCK.FENCE res A 9"] {
        ask(conn, line);
        assert!(held_for(conn) >= 20, "{line}");
    }
    ask(conn, "DEBUG RELOAD");
    assert!((20..10_000).contains(&held_for(conn)));
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!(held_for(conn), 0);
    let start = std::time::Instant::now();
    ask(conn, "LOCK.ACQUIRE res B 30000");
    let held = held_for(conn);
    assert!(u128::from(held) <= start.elapsed().as_millis() + 1, "{held}");
}

#[test]
fn refusals_are_counted_by_the_server_under_their_code_words() {
    let server = Server::start();
    let conn = &mut server.connect();
    for line in [
        "SET string x",
        "LOCK.ACQUIRE res A 0",
        "LOCK.ACQUIRE res A 0",
        "LOCK.EXTEND res A 9 NOW",
        "LOCK.INFO string",
    ] {
        ask(conn, line);
    }
    for (code, count) in [("BADTTL", 2), ("BADARG", 1), ("WRONGTYPE", 1)] {
        let field = server.info(&format!("errorstat_{code}"));
        assert_eq!(field, Some(format!("count={count}")), "{code}");
    }
    let calls = server.info("cmdstat_LOCK.ACQUIRE").unwrap_or_default();
    assert!(calls.starts_with("calls=2,") && calls.ends_with("failed_calls=2"), "{calls}");
}

#[test]
fn keys_tokens_and_labels_are_any_bytes() {
    let server = Server::start();
    let conn = &mut server.connect();
    let all: Vec<u8> = (0..=255).collect();
    let rows: [(&[u8], &[u8], &[u8]); 3] = [
        (&all, &all[..64], &all[128..]),
        (b"", b"\0", b"\0"),
        (b"\xff\xfe\r\n", b"\r\n\xff", b"\xc3\x28"),
    ];
    for (key, token, label) in rows {
        let acquire = [b"LOCK.ACQUIRE", key, token, b"30000", b"LABEL", label];
        assert_eq!(ask_args(conn, &acquire), "1");
        let info = run_args(conn, &[b"LOCK.INFO", key]).unwrap();
        let Value::Array(info) = info else { panic!("{info:?}") };
        assert_eq!(info[7], Value::BulkString(label.to_vec()));
        let other = [token, b"x"].concat();
        assert_eq!(ask_args(conn, &[b"LOCK.RELEASE", key, &other[1..]]), "0");
        assert_eq!(ask_args(conn, &[b"LOCK.EXTEND", key, token, b"1000"]), "1");
        assert_eq!(ask_args(conn, &[b"LOCK.FENCE", key, token, b"1"]), "1");
        assert_eq!(ask_args(conn, &[b"LOCK.RELEASE", key, token]), "1");
    }
}

#[test]
fn tokens_and_labels_have_the_lengths_that_the_limits_allow() {
    let server = Server::start();
    let conn = &mut server.connect();
    let acquire = |conn: &mut _, key: &str, token: &str, label: &str| {
        ask_args(conn, &["LOCK.ACQUIRE", key, token, "86400000", "LABEL", label])
    };
    let (token, label) = ("t".repeat(64), "l".repeat(128));
    assert_eq!(acquire(conn, "a", &token, &label), "1");
    assert_eq!(field(conn, "a", "label"), label);
    for length in [1, 19, 20, 21, 63] {
        let (key, token) = (format!("key-{length}"), "x".repeat(length));
        assert_eq!(acquire(conn, &key, &token, "l"), "1");
        assert_eq!(ask_args(conn, &["LOCK.RELEASE", &key, &"y".repeat(length)]), "0");
        assert_eq!(ask_args(conn, &["LOCK.RELEASE", &key, &format!("{token}x")]), "0");
        assert_eq!(ask_args(conn, &["LOCK.RELEASE", &key, &token]), "1");
    }
}

#[test]
fn replies_have_the_shapes_of_the_protocol_that_the_client_speaks() {
    let server = Server::start();
    let mut conn = server.connect_raw();
    assert_eq!(conn.run("LOCK.ACQUIRE res A 30000"), b":1\r\n");
    assert_eq!(conn.run("LOCK.ACQUIRE res B 30000"), b"$-1\r\n");
    assert_eq!(conn.run("LOCK.RELEASE res B"), b":0\r\n");
    assert_eq!(conn.run("LOCK.RELEASE none B"), b"$-1\r\n");
    // The fields about readers, and those that explain why a node grants nothing, are left out
    // here.
    let is_there = |name: &&str| {
        !name.starts_with("quarantine")
            && !name.contains("reader")
            && !["node_state", "extension"].contains(name)
    };
    let count = lock_info::field_names().filter(is_there).count();
    let held = "\r\n$5\r\nstate\r\n$4\r\nheld\r\n";
    let begins = format!("*{}{held}", 2 * count);
    assert!(conn.run("LOCK.INFO res").starts_with(begins.as_bytes()));
    let missing: &[u8] = b"$11\r\nttl_left_ms\r\n:0\r\n$5\r\nlabel\r\n$-1\r\n";
    let info = conn.run("LOCK.INFO none");
    assert!(info.windows(missing.len()).any(|part| part == missing));
    assert!(conn.run("LOCK.HELP").starts_with(b"*15\r\n+LOCK.<command>"));
    conn.run("HELLO 3");
    assert_eq!(conn.run("LOCK.ACQUIRE res B 30000"), b"_\r\n");
    assert_eq!(conn.run("LOCK.RELEASE none B"), b"_\r\n");
    assert!(conn.run("LOCK.INFO res").starts_with(format!("%{count}{held}").as_bytes()));
    assert!(conn.run("LOCK.INFO none").windows(10).any(|part| part == b"label\r\n_\r\n"));
}

#[test]
fn names_and_options_are_read_in_any_case() {
    let server = Server::start();
    ask_all(
        &mut server.connect(),
        &[
            ("lock.acquire res A 30000 label me", "1"),
            ("Lock.Extend res A 30000 fence 3", "1"),
            ("lock.extend other A 30000 Fence 3 Repair", "1"),
            ("lock.release res A", "1"),
        ],
    );
}

#[test]
fn help_lists_every_command_with_its_arguments() {
    let server = Server::start();
    let help = ask(&mut server.connect(), "LOCK.HELP");
    for syntax in [
        "LOCK.ACQUIRE key token ttl [SHARED] [LABEL label] \
         [WAIT ms | QUEUE ms TICKET ticket NOTIFY channel [GRANT number]]",
        "LOCK.RELEASE key token [HANDOVER | [SHARED] QUEUE ms TICKET ticket NOTIFY channel]",
        "LOCK.EXTEND key token ttl [SHARED] [FENCE fence [REPAIR [LABEL label]]]",
        "LOCK.FENCE key [token fence]",
        "LOCK.FLOOR [fence]",
        "LOCK.INFO key",
        "LOCK.HELP",
    ] {
        assert!(help.contains(syntax), "{syntax}\n{help}");
    }
}

#[test]
fn info_of_the_server_counts_what_happened() {
    let server = Server::start();
    let conn = &mut server.connect();
    for line in [
        "LOCK.ACQUIRE a A 30000",
        "LOCK.ACQUIRE a B 30000",
        "LOCK.ACQUIRE a A 0",
        "LOCK.EXTEND a A 40000",
        "LOCK.EXTEND a A 5",
        "LOCK.FENCE a A 8",
        "LOCK.FENCE a A 8",
        "LOCK.FENCE a A 1",
        "LOCK.ACQUIRE b A 1",
    ] {
        ask(conn, line);
    }
    wait_for_lapse(conn, "b");
    ask(conn, "LOCK.ACQUIRE b B 30000");
    ask(conn, "LOCK.RELEASE b B");
    for (name, value) in [
        ("locks", 2),
        ("grants", 3),
        ("held_by_another", 1),
        ("refusals", 1),
        ("releases", 1),
        ("extensions", 1),
        ("raises", 1),
        ("lapses", 1),
        ("idle_deleted", 0),
        ("floor", 7),
        ("highest_fence", 9),
        ("quarantine_left_ms", 0),
        ("state_write_failures", 0),
    ] {
        assert_eq!(server.info_u64(&format!("lockmod_{name}")), value, "{name}");
    }
    assert!(server.info_u64("lockmod_state_writes") >= 1);
    assert!(ask(conn, "INFO lockmod").contains("lockmod_grants:3"));
}

#[test]
fn keyspace_notifications_tell_what_was_done_and_nothing_of_refusals() {
    let server = Server::builder().config("notify-keyspace-events", "KEA").start();
    let conn = &mut server.connect();
    ask(conn, "CONFIG SET notify-keyspace-events Kd");
    let mut listener = server.connect_raw();
    listener.run("PSUBSCRIBE __keyspace@0__:*");
    for line in [
        "LOCK.ACQUIRE res A 30000",
        "LOCK.ACQUIRE res B 30000",
        "LOCK.RELEASE res B",
        "LOCK.EXTEND res B 5",
        "LOCK.ACQUIRE res A 0",
        "LOCK.EXTEND res A 40000",
        "LOCK.EXTEND res A 5",
        "LOCK.ACQUIRE res A 5",
        "LOCK.ACQUIRE res A 50000",
        "LOCK.FENCE res A 4",
        "LOCK.FENCE res A 4",
        "LOCK.FENCE res A 1",
        "LOCK.RELEASE res A",
        "LOCK.RELEASE res A",
        "LOCK.ACQUIRE last A 30000",
    ] {
        ask(conn, line);
    }
    for expected in ["acquire", "extend", "extend", "fence", "release", "acquire"] {
        let push = String::from_utf8(listener.read()).unwrap();
        assert!(push.contains(&format!("lock.{expected}\r\n")), "{expected}: {push}");
    }
}
