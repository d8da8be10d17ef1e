//! Tickets: which requests are kept out, which tickets are woken, in which order, and when a ticket
//! leaves.

use std::time::Duration;

use redis::{Connection, Value};

use crate::ask::{ask, ask_all, field};
use crate::common::{RawConnection, Server, wait_until};

/// The options that a ticket adds to a command, with a channel named after it.
pub(crate) fn queue(ticket: &str) -> String {
    queue_for(ticket, 60_000)
}

fn queue_for(ticket: &str, ms: u64) -> String {
    format!("QUEUE {ms} TICKET {ticket} NOTIFY wake:{ticket}")
}

pub(crate) fn acquire(conn: &mut Connection, token: &str, ticket: &str) -> String {
    ask(conn, &format!("LOCK.ACQUIRE res {token} 30000 {}", queue(ticket)))
}

/// A connection that listens to the channels of these tickets.
pub(crate) fn listener(server: &Server, tickets: &[&str]) -> RawConnection {
    let mut listener = server.connect_raw();
    listener.run("HELLO 3");
    for ticket in tickets {
        listener.run(&format!("SUBSCRIBE wake:{ticket}"));
    }
    listener
}

/// The next message: its text, which must have come on the channel of that ticket.
#[track_caller]
pub(crate) fn woken(listener: &mut RawConnection) -> String {
    let Value::Push { data, .. } = listener.read_value() else { panic!("not a push") };
    let [channel, message] = &data[..] else { panic!("not a message: {data:?}") };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("not text: {other:?}"),
    };
    assert_eq!(text(channel), format!("wake:{}", text(message)));
    text(message)
}

#[test]
fn the_oldest_ticket_is_woken_and_nobody_barges_in() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["100-a", "100-b", "99-c"]);
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
    assert_eq!(acquire(conn, "B", "100-b"), "nil");
    assert_eq!(acquire(conn, "C", "100-a"), "nil");
    assert_eq!(acquire(conn, "D", "99-c"), "nil");
    assert_eq!(field(conn, "res", "waiters"), "3");
    assert_eq!(field(conn, "res", "state"), "held");
    assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
    assert_eq!(woken(&mut wakes), "99-c");
    ask_all(conn, &[("LOCK.ACQUIRE res E 30000", "nil"), ("LOCK.ACQUIRE res C 30000", "nil")]);
    assert_eq!(field(conn, "res", "state"), "reserved");
    assert_eq!(acquire(conn, "B", "100-b"), "nil");
    assert_eq!(acquire(conn, "D", "99-c"), "2");
    assert_eq!(field(conn, "res", "waiters"), "2");
    assert_eq!(ask(conn, "LOCK.RELEASE res D"), "1");
    assert_eq!(woken(&mut wakes), "100-a");
    assert_eq!(acquire(conn, "C", "100-a"), "3");
    assert_eq!(ask(conn, "LOCK.RELEASE res C"), "1");
    assert_eq!(woken(&mut wakes), "100-b");
    assert_eq!(acquire(conn, "B", "100-b"), "4");
    assert_eq!(field(conn, "res", "waiters"), "0");
    assert_eq!(field(conn, "res", "first_waiting_ms"), "nil");
    assert_eq!(server.info_u64("lockmod_handed_over"), 3);
}

#[test]
fn an_older_ticket_takes_a_reservation_over_by_registering_or_by_asking() {
    let server = Server::builder().module_arg("reserve-ms", 60_000).start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["5-a", "6-b", "7-c"]);
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "C", "7-c");
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!(woken(&mut wakes), "7-c");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res B {}", queue("6-b"))), "nil");
    assert_eq!(woken(&mut wakes), "6-b");
    assert_eq!(acquire(conn, "C", "7-c"), "nil", "its reservation is over");
    assert_eq!(acquire(conn, "D", "5-a"), "2");
}

#[test]
fn an_attempt_is_abandoned_without_losing_its_place() {
    let server = Server::builder().module_arg("reserve-ms", 60_000).start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["5-a", "6-b"]);
    assert_eq!(acquire(conn, "A", "5-a"), "1");
    assert_eq!(acquire(conn, "B", "6-b"), "nil");
    // In the same step: the lock is released, and its ticket is first in line again.
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res A {}", queue("5-a"))), "1");
    assert_eq!(woken(&mut wakes), "5-a");
    assert_eq!(acquire(conn, "A2", "5-a"), "2");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res B {}", queue("6-b"))), "0");
    assert_eq!(ask(conn, "LOCK.RELEASE res A2"), "1");
    assert_eq!(woken(&mut wakes), "6-b");
}

#[test]
fn a_waiter_leaves_by_release_of_its_latest_token() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "B", "5-a");
    acquire(conn, "B2", "5-a");
    assert_eq!(field(conn, "res", "waiters"), "1");
    assert_eq!(ask(conn, "LOCK.RELEASE res B"), "0");
    assert_eq!(field(conn, "res", "waiters"), "1");
    assert_eq!(ask(conn, "LOCK.RELEASE res B2"), "0");
    assert_eq!(field(conn, "res", "waiters"), "0");
    assert_eq!(server.info_u64("lockmod_waiters"), 0);
}

#[test]
fn a_waiter_leaves_with_its_connection_and_with_it_its_reservation() {
    let server = Server::builder().module_arg("reserve-ms", 60_000).start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["5-a", "6-b"]);
    ask(conn, "LOCK.ACQUIRE res A 30000");
    let mut other = server.connect();
    acquire(&mut other, "B", "5-a");
    ask(&mut other, &format!("LOCK.ACQUIRE another B 30000 {}", queue("5-a")));
    acquire(conn, "C", "6-b");
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!(woken(&mut wakes), "5-a");
    drop(other);
    assert_eq!(woken(&mut wakes), "6-b");
    assert_eq!(field(conn, "res", "waiters"), "1");
}

#[test]
fn a_refresh_from_another_connection_moves_the_ticket_there() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    let mut first = server.connect();
    acquire(&mut first, "B", "5-a");
    acquire(conn, "B2", "5-a");
    drop(first);
    let gone = || server.info_u64("connected_clients") <= 2;
    wait_until("the first connection is gone", gone);
    assert_eq!(field(conn, "res", "waiters"), "1");
}

#[test]
fn a_wait_ends_at_its_deadline_on_an_idle_server() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    ask(conn, &format!("LOCK.ACQUIRE res B 30000 {}", queue_for("5-a", 20)));
    ask(conn, &format!("LOCK.ACQUIRE res C 30000 {}", queue_for("6-a", 0)));
    wait_until("both have left", || server.info_u64("lockmod_waiters") == 0);
}

#[test]
fn a_reservation_that_is_not_used_goes_to_the_next_and_the_first_may_come_back() {
    let server = Server::builder().module_arg("reserve-ms", 20).start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["5-a", "6-b"]);
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "B", "5-a");
    acquire(conn, "C", "6-b");
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!(woken(&mut wakes), "5-a");
    assert_eq!(woken(&mut wakes), "6-b");
    ask(conn, "CONFIG SET lockmod.reserve-ms 60000");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res B {}", queue("5-a"))), "nil");
    assert_eq!(woken(&mut wakes), "5-a", "before younger ones, as ever");
    assert_eq!(acquire(conn, "B", "5-a"), "2");
}

#[test]
fn whatever_frees_the_lock_wakes_the_first() {
    for (held, freed_by) in [
        ("LOCK.ACQUIRE res A 30000", "LOCK.RELEASE res A"),
        ("LOCK.ACQUIRE res A 50", "PING"),
        ("LOCK.ACQUIRE res A 30000", "DEL res"),
        ("LOCK.ACQUIRE res A 30000", "UNLINK res"),
        ("LOCK.ACQUIRE res A 30000", "PEXPIRE res 1"),
        ("LOCK.ACQUIRE res A 30000", "RENAME res elsewhere"),
        ("LOCK.ACQUIRE res A 30000", "MOVE res 1"),
        ("LOCK.ACQUIRE res A 30000", "FLUSHDB"),
        ("LOCK.ACQUIRE res A 30000", "FLUSHALL ASYNC"),
        ("LOCK.ACQUIRE res A 30000", "SWAPDB 0 1"),
        ("LOCK.ACQUIRE res A 30000", "EVAL return(redis.call('DEL',KEYS[1])) 1 res"),
    ] {
        let server = Server::start();
        let conn = &mut server.connect();
        let mut wakes = listener(&server, &["5-a"]);
        assert_eq!(ask(conn, held), "1");
        assert_eq!(acquire(conn, "B", "5-a"), "nil");
        ask(conn, freed_by);
        assert_eq!(woken(&mut wakes), "5-a", "{freed_by}");
        assert!(acquire(conn, "B", "5-a").parse::<u64>().is_ok_and(|fence| fence > 1));
    }
}

#[test]
fn a_key_of_another_kind_sends_everybody_away() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "B", "5-a");
    ask(conn, "SET res text");
    wait_until("no client waits", || server.info_u64("lockmod_waiters") == 0);
}

#[test]
fn databases_have_lines_of_their_own() {
    let server = Server::start();
    let (conn, other) = (&mut server.connect(), &mut server.connect());
    ask(other, "SELECT 1");
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "B", "5-a");
    assert_eq!(acquire(other, "B", "5-b"), "1");
    assert_eq!(field(other, "res", "waiters"), "0");
    assert_eq!(field(conn, "res", "waiters"), "1");
}

#[test]
fn a_publish_may_reach_the_connection_whose_command_caused_it() {
    let server = Server::start();
    let mut conn = listener(&server, &["5-a"]);
    conn.run("LOCK.ACQUIRE res A 30000");
    conn.run(&format!("LOCK.ACQUIRE res B 30000 {}", queue("5-a")));
    conn.send(&["LOCK.RELEASE", "res", "A"]);
    // In either order.
    let answers = [conn.read_value(), conn.read_value()];
    assert!(answers.contains(&Value::Int(1)), "{answers:?}");
    assert!(answers.iter().any(|answer| matches!(answer, Value::Push { .. })), "{answers:?}");
}

#[test]
fn transactions_queue_and_scripts_do_not() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    let queued = queue("5-a");
    ask_all(conn, &[("MULTI", "OK"), (&format!("LOCK.ACQUIRE res B 9 {queued}"), "QUEUED")]);
    assert_eq!(ask(conn, "EXEC"), "[nil]");
    assert_eq!(field(conn, "res", "waiters"), "1");
    let script = "return(redis.call('LOCK.ACQUIRE',KEYS[1],'C','9',unpack(ARGV)))";
    let queued = queue("6-b");
    assert_eq!(ask(conn, &format!("EVAL {script} 1 res {queued}")), "nil");
    assert_eq!(field(conn, "res", "waiters"), "1");
}

#[test]
fn a_full_node_refuses_a_waiter_and_nothing_else() {
    let server = Server::builder().module_arg("max-waiters", 2).start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    ask(conn, "LOCK.ACQUIRE other A 30000");
    acquire(conn, "B", "5-a");
    ask(conn, &format!("LOCK.ACQUIRE other B 30000 {}", queue("5-a")));
    let full = "QUEUEFULL 2 requests already wait at this node; allowed: 2 (lockmod.max-waiters)";
    assert_eq!(acquire(conn, "C", "6-b"), full);
    assert_eq!(ask(conn, "LOCK.ACQUIRE res C 30000 WAIT 1000"), full);
    assert_eq!(acquire(conn, "B", "5-a"), "nil", "a ticket in line may stay");
    assert_eq!(ask(conn, &format!("LOCK.ACQUIRE new C 30000 {}", queue("6-b"))), "1");
    let release = format!("LOCK.RELEASE other A {}", queue("6-b"));
    assert_eq!(ask(conn, &release), "-1", "the ticket does not stand in line");
    assert_eq!(field(conn, "other", "fence"), "1");
    assert_eq!(field(conn, "other", "state"), "reserved", "a lease is given back, full or not");
    assert_eq!(field(conn, "other", "waiters"), "1");
    assert_eq!(ask(conn, "CONFIG SET lockmod.max-waiters 3"), "OK");
    assert_eq!(acquire(conn, "C", "6-b"), "nil");
}

#[test]
fn a_node_without_memory_puts_nobody_in_line_but_takes_a_lease_back() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "CONFIG SET lockmod.reserve-ms 60000");
    ask(conn, "LOCK.ACQUIRE res A 30000");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res B {}", queue("5-a"))), "0");
    ask(conn, "CONFIG SET maxmemory 1");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res C {}", queue("6-b"))), "-1");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res B {}", queue("5-a"))), "0", "it may stay");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res A {}", queue("7-c"))), "-1");
    assert_eq!(field(conn, "res", "state"), "reserved");
    assert_eq!(field(conn, "res", "waiters"), "1");
    ask(conn, "CONFIG SET maxmemory 0");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res C {}", queue("6-b"))), "nil");
    assert_eq!(field(conn, "res", "waiters"), "2");
}

#[test]
fn a_node_in_quarantine_calls_nobody_before_its_end() {
    let mut server = Server::start();
    ask(&mut server.connect(), "LOCK.ACQUIRE res A 60000");
    server.kill();
    server.start_again();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["5-a", "6-b"]);
    assert!(acquire(conn, "C", "6-b").starts_with("QUARANTINE "));
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res C {}", queue("6-b"))), "nil");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res B {}", queue("5-a"))), "nil");
    assert_eq!(field(conn, "res", "waiters"), "2");
    assert!(wakes.is_silent_for(Duration::from_millis(50)));
    ask(conn, "CONFIG SET lockmod.quarantine no");
    assert_eq!(woken(&mut wakes), "5-a");
    assert!(acquire(conn, "B", "5-a").parse::<u64>().is_ok());
}

/// Puts this many tickets in line, on one connection, each for a lock of its own that A holds.
fn fill(conn: &mut Connection, count: usize) {
    for names in (0..count).collect::<Vec<_>>().chunks(1_000) {
        let mut pipe = redis::pipe();
        for name in names {
            let (key, ticket) = (format!("res-{name}"), format!("5-{name}"));
            pipe.cmd("LOCK.ACQUIRE").arg(&key).arg("A").arg(600_000).ignore();
            pipe.cmd("LOCK.RELEASE").arg(&key).arg("B").arg("QUEUE").arg(600_000);
            pipe.arg("TICKET").arg(ticket).arg("NOTIFY").arg("wake").ignore();
        }
        pipe.query::<()>(conn).unwrap();
    }
}

/// Whether `event` makes all waiters leave, while others are served.
fn leaves_in_slices(server: &Server, count: u64, event: impl FnOnce()) -> bool {
    event();
    let mut was_between = false;
    wait_until("all have left", || {
        let waiters = server.info_u64("lockmod_waiters");
        was_between |= waiters > 0 && waiters < count;
        waiters == 0
    });
    was_between
}

#[test]
fn an_event_that_concerns_many_lines_does_not_stop_the_server() {
    const COUNT: usize = 20_000;
    let server = Server::builder().module_arg("max-waiters", 2 * COUNT).start();
    let conn = &mut server.connect();
    let mut other = server.connect();
    fill(&mut other, COUNT);
    assert_eq!(server.info_u64("lockmod_waiters"), COUNT as u64);
    assert!(leaves_in_slices(&server, COUNT as u64, || drop(other)), "a connection that closes");

    // Keys of another type replace the locks: all waiters are sent away.
    let mut other = server.connect();
    fill(&mut other, COUNT);
    ask(conn, "SELECT 1");
    let texts = (0..COUNT).flat_map(|name| [format!("res-{name}"), "text".to_owned()]);
    redis::cmd("MSET").arg(texts.collect::<Vec<_>>()).exec(conn).unwrap();
    let swap = || drop(ask(conn, "SWAPDB 0 1"));
    assert!(leaves_in_slices(&server, COUNT as u64, swap), "SWAPDB");
}

#[test]
fn a_channel_is_bound_by_access_rules() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "ACL SETUSER bob on nopass ~* +@all resetchannels &wake:*");
    ask(conn, "ACL SETUSER eve on nopass ~* +@all resetchannels");
    ask(conn, "LOCK.ACQUIRE res A 30000");
    let mut bob = server.connect();
    ask(&mut bob, "AUTH bob any");
    assert_eq!(acquire(&mut bob, "B", "5-a"), "nil");
    ask(&mut bob, "AUTH eve any");
    let refusal = "NOPERM this user may not publish to the channel 'wake:5-a'; allowed: one its \
                   rules permit";
    assert_eq!(acquire(&mut bob, "B", "5-a"), refusal);
    assert_eq!(ask(&mut bob, &format!("LOCK.RELEASE res A {}", queue("5-a"))), refusal);
    assert_eq!(field(conn, "res", "state"), "held");
}

#[test]
fn a_line_is_not_replicated_and_a_demoted_node_has_none() {
    let server = Server::start();
    let other = Server::start();
    let replica = Server::builder().replica_of(&server).start();
    server.wait_for_replica(&replica);
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "B", "5-a");
    assert_eq!(ask(conn, &format!("LOCK.RELEASE res A {}", queue("6-b"))), "1");
    assert_eq!(acquire(conn, "B", "5-a"), "2");
    server.wait_for_replica(&replica);
    let of_replica = &mut replica.connect();
    assert_eq!(field(of_replica, "res", "fence"), "2");
    assert_eq!(field(of_replica, "res", "waiters"), "0");
    assert_eq!(field(conn, "res", "waiters"), "1");
    ask(conn, &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    wait_until("no client waits", || server.info_u64("lockmod_waiters") == 0);
    assert!(acquire(conn, "B", "5-a").starts_with("READONLY "));
}

#[test]
fn info_tells_how_long_the_first_has_waited() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    acquire(conn, "B", "5-a");
    let waited = |conn: &mut Connection| -> u64 {
        field(conn, "res", "first_waiting_ms").parse().expect("a number")
    };
    wait_until("the first has waited for 10 ms", || waited(conn) >= 10);
    let known = waited(conn);
    acquire(conn, "B2", "5-a");
    assert!(waited(conn) >= known, "a refresh keeps the place");
    assert!(server.info_u64("lockmod_oldest_waiter_ms") >= known);
}
