//! Hand-overs: to which waiter, what is published about them, and when a lock is reserved instead.

use redis::{Connection, Value};

use crate::ask::{ask, ask_all, digest, field};
use crate::common::{Builder, RawConnection, Server, wait_until};
use crate::line::{listener, queue};
use crate::told::{AppendOnly, Stream, facts};

/// Asks for the lock with a ticket to which the node may grant it later.
#[track_caller]
pub(crate) fn wait(conn: &mut Connection, token: &str, ticket: &str, number: u64) {
    let line = format!("LOCK.ACQUIRE res {token} 30000 {} GRANT {number}", queue(ticket));
    assert_eq!(ask(conn, &line), "nil");
}

/// The next message on the channel of this ticket.
#[track_caller]
pub(crate) fn heard(listener: &mut RawConnection, ticket: &str) -> String {
    let Value::Push { data, .. } = listener.read_value() else { panic!("not a push") };
    let [Value::BulkString(channel), Value::BulkString(message)] = &data[..] else {
        panic!("not a message: {data:?}")
    };
    assert_eq!(String::from_utf8_lossy(channel), format!("wake:{ticket}"));
    String::from_utf8_lossy(message).into_owned()
}

/// A server that writes everything to its append-only file before it replies, and after a crash
/// grants at once.
fn always_durable() -> Builder {
    Server::builder().config("appendonly", "yes").config("appendfsync", "always")
}

#[test]
fn the_first_in_line_is_granted_the_lock_and_told_its_fence_and_number() {
    is_told(&Server::start());
    is_told(&always_durable().start());
}

#[track_caller]
fn is_told(server: &Server) {
    let conn = &mut server.connect();
    let mut wakes = listener(server, &["100-a", "200-b"]);
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
    wait(conn, "C", "200-b", 9);
    wait(conn, "B", "100-a", 7);
    wait(conn, "B", "100-a", 8);
    ask_all(conn, &[("LOCK.RELEASE res X HANDOVER", "0"), ("LOCK.RELEASE res A HANDOVER", "1")]);
    assert_eq!(heard(&mut wakes, "100-a"), "2 8 100-a", "of its last request");
    assert_eq!(field(conn, "res", "state"), "held");
    assert_eq!(field(conn, "res", "waiters"), "1");
    ask_all(conn, &[("LOCK.ACQUIRE res B 30000", "2"), ("LOCK.RELEASE res B", "1")]);
    assert_eq!(heard(&mut wakes, "200-b"), "200-b", "B has not said that it hands over");
    assert_eq!(field(conn, "res", "state"), "reserved");
    assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res C 30000 {}", queue("200-b"))), "3");
    assert_eq!(ask(conn, "LOCK.RELEASE res C HANDOVER"), "1");
    assert_eq!(field(conn, "res", "state"), "free");
    assert_eq!(server.info_u64("lockmod_handed_over"), 2);
}

/// Regression: the grant was published while a script went on, before it was in the append-only
/// file. After a crash the node granted at once, although the waiter counted that grant.
#[test]
fn a_grant_that_a_crash_would_undo_is_heard_of_by_nobody() {
    let mut server = always_durable().config("busy-reply-threshold", 20).start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["100-a"]);
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 60000"), "1");
    wait(conn, "B", "100-a", 1);
    let script = "redis.call('LOCK.RELEASE', KEYS[1], 'A', 'HANDOVER') while true do end";
    let mut busy = server.connect_raw();
    busy.send(&["EVAL", script, "1", "res"]);
    let mut other = server.connect_raw();
    wait_until("the script is said to be busy", || other.run("PING").starts_with(b"-BUSY"));
    assert!(wakes.run("PING").starts_with(b"-BUSY"), "nothing was published");
    server.kill();
    server.start_again();
    assert_eq!(ask(&mut server.connect(), "LOCK.ACQUIRE res E 1000"), "nil", "A has it still");
}

#[test]
fn a_lock_is_reserved_where_nobody_hands_over_or_the_first_has_not_asked_for_it() {
    type Free = (&'static str, &'static str);
    let rows: [(&str, &str, Free); 6] = [
        ("LOCK.ACQUIRE res B 30000", "GRANT 1", ("LOCK.RELEASE res A", "1")),
        ("LOCK.ACQUIRE res B 30000", "GRANT 1", ("DEL res", "1")),
        ("LOCK.ACQUIRE res B 30000", "GRANT 1", ("PEXPIRE res 0", "1")),
        ("LOCK.ACQUIRE res B 30000", "", ("LOCK.RELEASE res A HANDOVER", "1")),
        ("LOCK.ACQUIRE res B 30000 SHARED", "GRANT 1", ("LOCK.RELEASE res A HANDOVER", "1")),
        ("LOCK.RELEASE res B", "", ("LOCK.RELEASE res A HANDOVER", "1")),
    ];
    for (wait, grant, (free, answer)) in rows {
        let server = Server::builder().module_arg("reserve-ms", 10_000).start();
        let conn = &mut server.connect();
        let mut wakes = listener(&server, &["100-a"]);
        assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
        ask(conn, &format!("{wait} {} {grant}", queue("100-a")));
        assert_eq!(ask(conn, free), answer);
        assert_eq!(heard(&mut wakes, "100-a"), "100-a", "{wait} {grant}; {free}");
        assert_eq!(field(conn, "res", "state"), "reserved", "{wait} {grant}; {free}");
    }
}

#[test]
fn who_may_not_acquire_the_lock_any_more_is_not_granted_it() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut wakes = listener(&server, &["100-a"]);
    ask(conn, "ACL SETUSER bob on nopass ~* +@all &*");
    ask(conn, "LOCK.ACQUIRE res A 30000");
    let bob = &mut server.connect();
    ask(bob, "AUTH bob any");
    wait(bob, "B", "100-a", 1);
    ask(conn, "ACL SETUSER bob -lock.acquire");
    assert_eq!(ask(conn, "LOCK.RELEASE res A HANDOVER"), "1");
    assert_eq!(heard(&mut wakes, "100-a"), "100-a");
    assert_eq!(field(conn, "res", "state"), "reserved");
}

/// Replicas and the file receive the release and the grant, in this order; if a grant was not
/// delivered to anyone, also that it was withdrawn.
#[test]
fn a_hand_over_is_told_as_a_release_and_a_grant() {
    let server = Server::builder().config("appendonly", "yes").config("appendfsync", "no").start();
    let copy = Server::builder().replica_of(&server).start();
    server.wait_for_replica(&copy);
    let conn = &mut server.connect();
    let (mut replica, mut file) = (Stream::open(&server), AppendOnly::open(&server));
    let wakes = listener(&server, &["100-a"]);
    let mut told = |conn: &mut Connection, line: &str, expected: &[&str]| {
        assert_eq!(ask(conn, line), "1", "{line}");
        assert_eq!(facts(replica.told(conn)), expected, "{line}");
        assert_eq!(facts(file.told()), expected, "{line}");
    };
    told(conn, "LOCK.ACQUIRE res A 30000", &["LOCK.ACQUIRE res A 30000@+30000.1"]);
    wait(conn, "B", "100-a", 7);
    wait(conn, "C", "200-b", 8);
    let grant = "LOCK.ACQUIRE res B 30000@+30000.2";
    let steps = ["MULTI", "LOCK.RELEASE res A HANDOVER", grant, "EXEC"];
    told(conn, "LOCK.RELEASE res A HANDOVER", &steps);
    // The next ticket's channel has no subscriber.
    let grant = "LOCK.ACQUIRE res C 30000@+30000.3";
    let release = "LOCK.RELEASE res B HANDOVER";
    told(conn, release, &["MULTI", release, grant, "LOCK.RELEASE res C", "EXEC"]);
    assert_eq!(field(conn, "res", "state"), "free");
    server.wait_for_replica(&copy);
    assert_eq!(digest(&mut copy.connect()), digest(conn));
    let before = digest(conn);
    assert_eq!(ask(conn, "DEBUG LOADAOF"), "OK");
    assert_eq!(digest(conn), before);
    drop(wakes);
}
