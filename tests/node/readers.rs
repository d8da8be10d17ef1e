//! Readers: who holds a lock together, with which fence, and until when.

use std::time::{Duration, Instant};

use redis::Connection;

use crate::ask::{ask, ask_all, ask_args, field, wait_for_lapse};
use crate::common::{Server, wait_until};
use crate::observed::{listener, next, number_in};

/// How many readers hold the lock: zero also if a writer does.
pub(crate) fn readers(conn: &mut Connection, key: &str) -> usize {
    let info = ask(conn, &format!("LOCK.INFO {key}"));
    let mut words = info.split(' ').skip_while(|word| *word != "readers");
    words.nth(1).map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn readers_hold_a_lock_beside_each_other_and_a_writer_alone() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE res A 30000 SHARED LABEL first", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res W 30000", "nil"),
            ("LOCK.ACQUIRE res A 40000 SHARED", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.RELEASE res A", "0"),
            ("LOCK.ACQUIRE res W 30000", "nil"),
        ],
    );
    assert_eq!(readers(conn, "res"), 1);
    ask_all(
        conn,
        &[
            ("LOCK.RELEASE res B", "1"),
            ("LOCK.RELEASE res B", "nil"),
            ("LOCK.ACQUIRE res W 30000", "2"),
            ("LOCK.ACQUIRE res A 30000 SHARED", "nil"),
            ("LOCK.EXTEND res A 30000 SHARED", "0"),
            ("LOCK.RELEASE res A", "0"),
        ],
    );
    assert_eq!(readers(conn, "res"), 0);
    assert_eq!(field(conn, "res", "state"), "held");
    assert_eq!(server.info_u64("lockmod_grants"), 3);
    assert_eq!(server.info_u64("lockmod_releases"), 2);
}

#[test]
fn info_tells_how_many_read_and_the_labels_of_those_who_have_read_longest() {
    let server = Server::start();
    let conn = &mut server.connect();
    for number in 0..12 {
        ask(conn, &format!("LOCK.ACQUIRE res t{number} 30000 SHARED LABEL reader-{number}"));
        // Readers that begin in the same millisecond have no order.
        let since: u64 = field(conn, "res", "held_for_ms").parse().unwrap();
        wait_until("the clock has gone on", || {
            field(conn, "res", "held_for_ms").parse::<u64>().unwrap() > since
        });
    }
    assert_eq!(readers(conn, "res"), 12);
    assert_eq!(field(conn, "res", "label"), "reader-0");
    let labels: Vec<String> = (0..8).map(|number| format!("reader-{number}")).collect();
    assert_eq!(field(conn, "res", "reader_labels"), format!("[{}]", labels.join(" ")));
    ask(conn, "LOCK.RELEASE res t0");
    assert_eq!(field(conn, "res", "label"), "reader-1");
}

#[test]
fn fences_tell_readers_from_writers_before_and_after_them() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            // A reader has the fence of the last writer, and so have readers at the same time and
            // after it.
            ("LOCK.ACQUIRE res A 30000", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res C 30000 SHARED", "1"),
            // A reader that is raised raises the counter too, and the others keep their fences.
            ("LOCK.FENCE res B 7", "7"),
            ("LOCK.ACQUIRE res C 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res D 30000 SHARED", "7"),
            ("LOCK.EXTEND res C 30000 FENCE 9", "1"),
            ("LOCK.FENCE res C 8", "9"),
            ("LOCK.FENCE res E 20", "0"),
            ("LOCK.FENCE res", "9"),
            ("LOCK.RELEASE res B", "1"),
            ("LOCK.RELEASE res C", "1"),
            ("LOCK.RELEASE res D", "1"),
            ("LOCK.ACQUIRE res W 30000", "10"),
        ],
    );
}

#[test]
fn a_name_that_is_first_read_starts_where_all_nodes_start() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE fresh A 30000 SHARED", "1"),
            ("LOCK.ACQUIRE fresh B 30000 SHARED", "1"),
            ("LOCK.FLOOR 5000", "5000"),
            ("LOCK.ACQUIRE read A 30000 SHARED", "5000"),
            ("LOCK.ACQUIRE written A 30000", "5001"),
            // Other nodes have 6000 as their floor. Now this one has it too, for the next reader...
            ("LOCK.FENCE read A 6000", "6000"),
            ("LOCK.ACQUIRE another A 30000 SHARED", "6000"),
            ("LOCK.FLOOR", "6000"),
            // ... and if a writer is raised, for the next writer.
            ("LOCK.ACQUIRE new A 30000", "6001"),
            ("LOCK.FENCE new A 7001", "7001"),
            ("LOCK.ACQUIRE next A 30000", "7001"),
            ("LOCK.FLOOR", "7000"),
        ],
    );
}

#[test]
fn a_writer_waits_for_the_last_of_the_readers_whatever_their_ttls() {
    for (first, second) in [(40, 200), (200, 40)] {
        let server = Server::start();
        let conn = &mut server.connect();
        let start = Instant::now();
        ask(conn, &format!("LOCK.ACQUIRE res A {first} SHARED"));
        ask(conn, &format!("LOCK.ACQUIRE res B {second} SHARED"));
        wait_until("the writer is granted it", || ask(conn, "LOCK.ACQUIRE res W 30000") == "2");
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
        assert_eq!(server.info_u64("lockmod_lapses"), 2);
    }
}

#[test]
fn a_reader_whose_lease_has_ended_is_nobody_beside_those_who_read_on() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000 SHARED");
    ask(conn, "LOCK.ACQUIRE res B 20 SHARED LABEL me");
    wait_until("B's lease has ended", || readers(conn, "res") == 1);
    ask_all(
        conn,
        &[
            ("LOCK.EXTEND res B 30000 SHARED", "nil"),
            // As a writer, which the others keep out.
            ("LOCK.EXTEND res B 30000", "0"),
            ("LOCK.FENCE res B 9", "0"),
            ("LOCK.RELEASE res B", "0"),
            ("LOCK.ACQUIRE res B 30000", "nil"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "1"),
            ("LOCK.RELEASE res B", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res W 30000", "2"),
        ],
    );
}

#[test]
fn one_of_many_readers_is_extended_alone() {
    let server = Server::start();
    let conn = &mut server.connect();
    let start = Instant::now();
    for number in 0..100 {
        ask(conn, &format!("LOCK.ACQUIRE res t{number} 300 SHARED"));
    }
    assert_eq!(ask(conn, "LOCK.EXTEND res t57 600"), "1");
    assert_eq!(ask(conn, "LOCK.EXTEND res t58 5"), "1", "which takes nothing away");
    wait_until("the others' leases have ended", || readers(conn, "res") == 1);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    ask_all(
        conn,
        &[
            ("LOCK.EXTEND res t57 60000", "1"),
            ("LOCK.EXTEND res t58 60000 SHARED", "nil"),
            ("LOCK.ACQUIRE res W 30000", "nil"),
            ("LOCK.RELEASE res t57", "1"),
            ("LOCK.ACQUIRE res W 30000", "2"),
        ],
    );
}

#[test]
fn a_reader_does_not_become_a_writer() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000 SHARED");
    let refusal = "NOUPGRADE this token holds the lock as a reader, and a reader cannot become a \
                   writer; release it first";
    let ticket = crate::line::queue("5-a");
    for options in ["", " LABEL me", " WAIT 60000", &format!(" {ticket}")] {
        assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res A 30000{options}")), refusal);
    }
    assert_eq!(field(conn, "res", "waiters"), "0");
    ask_all(
        conn,
        &[
            // An extension does not change the mode of the lease.
            ("LOCK.EXTEND res A 40000", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res A 30000", "nil"),
            ("LOCK.RELEASE res B", "1"),
            ("LOCK.ACQUIRE res A 30000", "2"),
        ],
    );
    assert_eq!(number_in(&server, "refusals_by_code", "NOUPGRADE"), 4);
}

#[test]
fn a_writer_becomes_a_reader_by_an_extension_alone() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE res A 30000 LABEL me", "1"),
            // It asks again, and remains a writer.
            ("LOCK.ACQUIRE res A 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "nil"),
            ("LOCK.EXTEND res A 5 SHARED", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res W 30000", "nil"),
            ("LOCK.RELEASE res B", "1"),
            ("LOCK.ACQUIRE res W 30000", "nil"),
            ("LOCK.EXTEND res A 40000", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res W 30000", "2"),
            ("LOCK.EXTEND res W 40000 SHARED FENCE 8", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "8"),
        ],
    );
}

/// Regression: readers were let in although the node reported that it grants nothing, and a writer
/// behind them waited for a fence that does not exist.
#[test]
fn a_reader_is_not_let_in_where_no_writer_could_follow() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.FLOOR 9007199254740991");
    for mode in ["", " SHARED"] {
        let answer = ask(conn, &format!("LOCK.ACQUIRE res A 30000{mode}"));
        assert!(answer.starts_with("EXHAUSTED "), "{answer}");
    }
}

#[test]
fn a_lock_has_as_many_readers_as_the_option_says() {
    let server = Server::builder().module_arg("max-readers", 2).start();
    let conn = &mut server.connect();
    let full = "READERSFULL 2 readers already hold this lock; allowed: 2 (lockmod.max-readers)";
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE res A 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res B 30000 SHARED", "1"),
            ("LOCK.ACQUIRE res C 30000 SHARED", full),
            ("LOCK.ACQUIRE res W 30000", "nil"),
            ("LOCK.ACQUIRE res A 30000 SHARED", "1"),
            ("LOCK.ACQUIRE other C 30000 SHARED", "1"),
            ("LOCK.RELEASE res A", "1"),
            ("LOCK.ACQUIRE res C 30000 SHARED", "1"),
            ("CONFIG SET lockmod.max-readers 1", "OK"),
            // Current readers stay.
            ("LOCK.EXTEND res B 30000", "1"),
            ("LOCK.EXTEND res C 30000", "1"),
            ("LOCK.RELEASE res B", "1"),
            ("LOCK.RELEASE res C", "1"),
            ("LOCK.ACQUIRE res D 20 SHARED", "1"),
            ("LOCK.ACQUIRE res W 30000", "nil"),
        ],
    );
    wait_for_lapse(conn, "res");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res E 30000 SHARED"), "1", "who is late does not count");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res F 30000 SHARED").split(' ').next(), Some("READERSFULL"));
    for out_of_bounds in ["0", "100001"] {
        let line = format!("CONFIG SET lockmod.max-readers {out_of_bounds}");
        assert!(ask(conn, &line).starts_with("ERR "), "{out_of_bounds}");
    }
}

#[test]
fn many_readers_need_little_memory_each() {
    const COUNT: usize = 10_000;
    let server = Server::start();
    let conn = &mut server.connect();
    let take = |conn: &mut Connection, key: &str, numbers: std::ops::Range<usize>| {
        let mut pipe = redis::pipe();
        for number in numbers {
            let token = format!("token-of-20-by-{number:05}");
            pipe.cmd("LOCK.ACQUIRE").arg(key).arg(token).arg(600_000).arg("SHARED").ignore();
        }
        pipe.query::<()>(conn).unwrap();
    };
    let usage = |conn: &mut Connection, key: &str| -> usize {
        ask_args(conn, &["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse().unwrap()
    };
    take(conn, "one", 0..1);
    let before = usage(conn, "one");
    assert_eq!(ask(conn, "LOCK.ACQUIRE two token-of-20-by-00000 600000"), "1");
    assert_eq!(usage(conn, "two"), before, "one reader costs what a writer costs");
    for count in [100, 1_000, COUNT] {
        let key = format!("of-{count}");
        take(conn, &key, 0..count);
        let each = (usage(conn, &key) - before) as f64 / (count - 1) as f64;
        assert!(each <= 64.0, "{each} bytes for each of {count}");
    }
    let used = server.info_u64("used_memory");
    take(conn, "again", 0..COUNT);
    let grown = server.info_u64("used_memory") - used;
    assert!(grown <= 64 * COUNT as u64 + 100_000, "{grown} by the server's account");

    // And when all but one have left, the memory is freed.
    let mut pipe = redis::pipe();
    for number in 1..COUNT {
        let token = format!("token-of-20-by-{number:05}");
        pipe.cmd("LOCK.RELEASE").arg(format!("of-{COUNT}")).arg(token).ignore();
    }
    pipe.query::<()>(conn).unwrap();
    let left = usage(conn, &format!("of-{COUNT}"));
    assert!(left < before + 2_000, "{left}");
}

/// If several leases have ended when the node looks, it publishes one event.
#[test]
fn the_ends_of_readers_leases_are_announced_and_each_is_counted_once() {
    let server = Server::builder().config("notify-keyspace-events", "Kd").start();
    let conn = &mut server.connect();
    let mut listener = listener(&server);
    let mut does = |conn: &mut Connection, line: &str, event: &str| {
        ask(conn, line);
        assert_eq!(next(&mut listener), ("res".to_owned(), format!("lock.{event}")), "{line}");
    };
    does(conn, "LOCK.ACQUIRE res A 600000 SHARED", "acquire");
    does(conn, "LOCK.ACQUIRE res D 600000 SHARED", "acquire");
    for lapses in 1..=3 {
        does(conn, "LOCK.ACQUIRE res B 20 SHARED", "acquire");
        // No client asks for anything.
        does(conn, "PING", "expire");
        assert_eq!(server.info_u64("lockmod_lapses"), lapses);
        assert_eq!(server.info_u64("lockmod_held"), 1, "locks that are held");
        assert_eq!(server.info_u64("lockmod_readers"), 2, "readers that hold it");
    }
    does(conn, "LOCK.RELEASE res A", "release");
    does(conn, "LOCK.EXTEND res D 600001 SHARED", "extend");
    does(conn, "LOCK.ACQUIRE res B 20 SHARED", "acquire");
    does(conn, "PING", "expire");
    does(conn, "LOCK.RELEASE res D", "release");
    let [lapses, held, readers] =
        ["lapses", "held", "readers"].map(|name| server.info_u64(&format!("lockmod_{name}")));
    assert_eq!((lapses, held, readers), (4, 0, 0));
}

#[test]
fn locks_are_forgotten_when_the_last_reader_has_gone() {
    let server = Server::builder().module_arg("idle-ms", 1).config("hz", 100).start();
    let conn = &mut server.connect();
    for line in [
        "LOCK.ACQUIRE kept A 600000 SHARED",
        "LOCK.ACQUIRE kept B 1 SHARED",
        "LOCK.ACQUIRE lapsing A 1 SHARED",
        "LOCK.ACQUIRE lapsing B 20 SHARED",
        "LOCK.ACQUIRE released A 30000 SHARED",
        "LOCK.ACQUIRE released B 30000 SHARED",
        "LOCK.FENCE released B 70",
        "LOCK.RELEASE released A",
        "LOCK.RELEASE released B",
    ] {
        ask(conn, line);
    }
    wait_until("two are forgotten", || server.info_u64("lockmod_idle_deleted") == 2);
    assert_eq!(readers(conn, "kept"), 1);
    assert_eq!(ask(conn, "LOCK.EXTEND kept A 600000"), "1");
    assert_eq!(ask(conn, "LOCK.ACQUIRE released W 30000"), "71");
    assert_eq!(ask(conn, "LOCK.RELEASE kept A"), "1");
    wait_until("so is the third", || server.info_u64("lockmod_idle_deleted") == 3);
}
