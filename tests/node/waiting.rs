//! `WAIT`: which waiter is granted the lock and when, and what happens to the others.

use std::time::{Duration, Instant};

use crate::ask::{ask, ask_all, field};
use crate::common::{RawConnection, Server, server_version, wait_until};
use crate::line::{acquire, listener, woken};
use crate::told::{AppendOnly, Stream, facts, unix_ms};

/// Longer than any test.
pub(crate) const LONG: u64 = 600_000;

/// A client that waits for `res`, as the last in line so far.
#[track_caller]
pub(crate) fn waiter(server: &Server, token: &str, wait_ms: u64) -> RawConnection {
    let mut client = server.connect_raw();
    wait(server, &mut client, token, wait_ms);
    client
}

/// A client that waits to read `res`, as the last in line so far.
#[track_caller]
pub(crate) fn waiting_reader(server: &Server, token: &str) -> RawConnection {
    let mut client = server.connect_raw();
    wait_to_read(server, &mut client, token);
    client
}

#[track_caller]
pub(crate) fn wait_to_read(server: &Server, client: &mut RawConnection, token: &str) {
    let wait_ms = LONG.to_string();
    let request = ["LOCK.ACQUIRE", "res", token, "60000", "SHARED", "WAIT", &wait_ms];
    wait_by(server, client, &request);
}

#[track_caller]
fn wait(server: &Server, client: &mut RawConnection, token: &str, wait_ms: u64) {
    let request = ["LOCK.ACQUIRE", "res", token, "60000", "WAIT", &wait_ms.to_string()];
    wait_by(server, client, &request);
}

#[track_caller]
fn wait_by(server: &Server, client: &mut RawConnection, request: &[&str]) {
    let before = server.info_u64("lockmod_waiters");
    client.send(request);
    let stands = || server.info_u64("lockmod_waiters") == before + 1;
    wait_until("the client stands in line", stands);
}

pub(crate) fn nobody_waits(server: &Server) {
    wait_until("no client waits", || server.info_u64("lockmod_waiters") == 0);
}

/// The server's number for a connection.
pub(crate) fn id_of(client: &mut RawConnection) -> String {
    let reply = client.run("CLIENT ID");
    String::from_utf8_lossy(&reply).trim_matches([':', '\r', '\n']).to_owned()
}

#[test]
fn who_comes_first_is_served_first_each_with_a_fence_of_its_own() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res t0 60000");
    let mut waiters: Vec<_> =
        (1..=5).map(|place| waiter(&server, &format!("t{place}"), LONG)).collect();
    assert_eq!(field(conn, "res", "waiters"), "5");
    for (place, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(ask(conn, &format!("LOCK.RELEASE res t{place}")), "1");
        assert_eq!(waiter.read(), format!(":{}\r\n", place + 2).as_bytes());
        assert_eq!(field(conn, "res", "state"), "held");
    }
    ask_all(conn, &[("LOCK.RELEASE res t5", "1"), ("LOCK.ACQUIRE res late 9", "7")]);
    assert_eq!(server.info_u64("lockmod_handed_over"), 5);
    assert_eq!(server.info_u64("lockmod_grants"), 7);
}

/// Regression: a quarantine is bounded by `max-ttl`, but a wait can outlast the memory of a former,
/// higher limit. The lease that ended such a wait outlasted the quarantine.
#[test]
fn nobody_is_granted_more_by_waiting_than_the_limit_is_by_then() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res t0 60000");
    let mut waiters = ["A", "B"].map(|token| waiter(&server, token, LONG));
    ask(conn, "CONFIG SET lockmod.max-ttl 500");
    assert_eq!(ask(conn, "LOCK.RELEASE res t0"), "1");
    for waiter in &mut waiters {
        let answer = String::from_utf8(waiter.read()).unwrap();
        assert!(answer.starts_with("-BADTTL ttl '60000' is not"), "{answer}");
    }
    assert_eq!(ask(conn, "LOCK.ACQUIRE res C 500"), "2");
    nobody_waits(&server);
}

#[test]
fn a_free_lock_is_granted_at_once_and_a_retry_by_the_holder_too() {
    let server = Server::start();
    ask_all(
        &mut server.connect(),
        &[
            ("LOCK.ACQUIRE res A 60000 WAIT 60000", "1"),
            ("LOCK.ACQUIRE res A 60000 WAIT 60000 LABEL me", "1"),
            ("LOCK.ACQUIRE res B 60000 WAIT 0", "nil"),
        ],
    );
}

#[test]
fn whatever_frees_the_lock_grants_it_to_the_first() {
    for (held, freed_by) in [
        ("LOCK.ACQUIRE res A 60000", "LOCK.RELEASE res A"),
        ("LOCK.ACQUIRE res A 50", "PING"),
        ("LOCK.ACQUIRE res A 60000", "DEL res"),
        ("LOCK.ACQUIRE res A 60000", "UNLINK res"),
        ("LOCK.ACQUIRE res A 60000", "PEXPIRE res 1"),
        ("LOCK.ACQUIRE res A 60000", "RENAME res elsewhere"),
        ("LOCK.ACQUIRE res A 60000", "MOVE res 1"),
        ("LOCK.ACQUIRE res A 60000", "FLUSHDB"),
        ("LOCK.ACQUIRE res A 60000", "FLUSHALL ASYNC"),
        ("LOCK.ACQUIRE res A 60000", "SWAPDB 0 1"),
        ("LOCK.ACQUIRE res A 60000", "EVAL return(redis.call('LOCK.RELEASE',KEYS[1],'A')) 1 res"),
    ] {
        let server = Server::start();
        let conn = &mut server.connect();
        assert_eq!(ask(conn, held), "1");
        let mut client = waiter(&server, "B", LONG);
        ask(conn, freed_by);
        assert_eq!(client.read(), b":2\r\n", "{freed_by}");
        assert_eq!(ask(conn, "LOCK.ACQUIRE res C 60000"), "nil", "{freed_by}");
    }
}

#[test]
fn a_wait_ends_with_a_null_and_not_early_on_an_idle_server() {
    let server = Server::start();
    ask(&mut server.connect(), "LOCK.ACQUIRE res A 60000");
    for (hello, null) in [("HELLO 2", &b"$-1\r\n"[..]), ("HELLO 3", b"_\r\n")] {
        let mut client = server.connect_raw();
        client.run(hello);
        let start = Instant::now();
        client.send(&["LOCK.ACQUIRE", "res", "B", "60000", "WAIT", "70"]);
        assert_eq!(client.read(), null);
        assert!(start.elapsed() >= Duration::from_millis(70), "{:?}", start.elapsed());
    }
    nobody_waits(&server);
    assert_eq!(server.info_u64("lockmod_held_by_another"), 2);
}

#[test]
fn transactions_scripts_and_functions_are_answered_at_once() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let request = format!("LOCK.ACQUIRE res B 60000 WAIT {LONG}");
    ask_all(conn, &[("MULTI", "OK"), (&request, "QUEUED"), ("EXEC", "[nil]")]);
    let call = format!("redis.call('LOCK.ACQUIRE',KEYS[1],'B','9','WAIT','{LONG}')");
    assert_eq!(ask(conn, &format!("EVAL return({call}) 1 res")), "nil");
    let library = format!(
        "#!lua name=locks\nredis.register_function('try', function(KEYS) return {call} end)"
    );
    assert_eq!(crate::ask::ask_args(conn, &["FUNCTION", "LOAD", &library]), "locks");
    assert_eq!(ask(conn, "FCALL try 1 res"), "nil");
    assert_eq!(server.info_u64("lockmod_waiters"), 0);
}

#[test]
fn client_unblock_does_not_end_a_wait() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut client = server.connect_raw();
    let id = id_of(&mut client);
    wait(&server, &mut client, "B", LONG);
    for how in ["TIMEOUT", "ERROR"] {
        assert_eq!(ask(conn, &format!("CLIENT UNBLOCK {id} {how}")), "0", "{how}");
    }
    assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
    assert_eq!(client.read(), b":2\r\n");
    assert_eq!(client.run("PING"), b"+PONG\r\n", "and nothing in between");
}

#[test]
fn a_release_of_its_token_ends_a_wait() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut client = waiter(&server, "B", LONG);
    assert_eq!(ask(conn, "LOCK.RELEASE res B"), "0");
    assert_eq!(client.read(), b"$-1\r\n");
    assert_eq!(server.info_u64("lockmod_waiters"), 0);
}

#[test]
fn a_client_that_goes_leaves_the_line() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    drop(waiter(&server, "B", LONG));
    nobody_waits(&server);
    let mut killed = server.connect_raw();
    let id = id_of(&mut killed);
    wait(&server, &mut killed, "B", LONG);
    let mut next = waiter(&server, "C", LONG);
    assert_eq!(ask(conn, &format!("CLIENT KILL ID {id}")), "1");
    wait_until("the killed has left", || server.info_u64("lockmod_waiters") == 1);
    assert!(killed.try_read().is_err());
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!(next.read(), b":2\r\n");
}

#[test]
fn a_wait_that_is_repeated_is_answered_by_the_same_grant() {
    // Regression: a client whose connection broke asks again before the server has noticed. Its
    // second call waited behind its own lease, and got a second grant when that was over.
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut first = waiter(&server, "B", LONG);
    let mut other = waiter(&server, "C", LONG);
    let mut again = waiter(&server, "B", LONG);
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!((first.read(), again.read()), (b":2\r\n".to_vec(), b":2\r\n".to_vec()));
    assert_eq!(server.info_u64("lockmod_waiters"), 1);
    ask(conn, "LOCK.RELEASE res B");
    assert_eq!(other.read(), b":3\r\n");
    nobody_waits(&server);
    assert_eq!(server.info_u64("lockmod_grants"), 3);
}

#[test]
fn a_grant_to_two_calls_is_handed_on_only_if_both_clients_have_gone() {
    let server = Server::start();
    let conn = &mut server.connect();
    for is_second_gone in [false, true] {
        ask(conn, "LOCK.ACQUIRE res A 60000");
        let (mut first, mut second) = (server.connect_raw(), server.connect_raw());
        let ids = [id_of(&mut first), id_of(&mut second)];
        wait(&server, &mut first, "B", LONG);
        wait(&server, &mut second, "B", LONG);
        let mut next = waiter(&server, "C", LONG);
        let gone = if is_second_gone { &ids[..] } else { &ids[..1] };
        ask_all(conn, &[("MULTI", "OK"), ("LOCK.RELEASE res A", "QUEUED")]);
        gone.iter().for_each(|id| drop(ask(conn, &format!("CLIENT KILL ID {id}"))));
        ask(conn, "EXEC");
        if !is_second_gone {
            assert_eq!(second.read(), b":2\r\n");
            assert_eq!(ask(conn, "LOCK.RELEASE res B"), "1");
        }
        let fence: u64 = if is_second_gone { 6 } else { 3 };
        assert_eq!(next.read(), format!(":{fence}\r\n").as_bytes());
        ask(conn, "LOCK.RELEASE res C");
    }
}

#[test]
fn a_grant_whose_client_has_gone_is_handed_on() {
    let server = Server::builder().config("appendonly", "yes").start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut gone = server.connect_raw();
    let id = id_of(&mut gone);
    wait(&server, &mut gone, "B", LONG);
    let mut next = waiter(&server, "C", LONG);
    let mut stream = Stream::open(&server);
    // Granted by the release, but gone before it receives the reply.
    let kill = format!("CLIENT KILL ID {id}");
    ask_all(conn, &[("MULTI", "OK"), ("LOCK.RELEASE res A", "QUEUED"), (&kill, "QUEUED")]);
    assert_eq!(ask(conn, "EXEC"), "[1 1]");
    assert_eq!(next.read(), b":3\r\n");
    let told = [
        "MULTI",
        "LOCK.RELEASE res A",
        "LOCK.ACQUIRE res B 60000@+60000.2",
        "EXEC",
        "MULTI",
        "LOCK.RELEASE res B",
        "LOCK.ACQUIRE res C 60000@+60000.3",
        "EXEC",
    ];
    assert_eq!(stream.told(conn), told);
    let digest = ask(conn, "DEBUG DIGEST");
    ask(conn, "DEBUG LOADAOF");
    assert_eq!(ask(conn, "DEBUG DIGEST"), digest);
    assert_eq!(ask(conn, "LOCK.RELEASE res C"), "1");
}

/// Regression: a client repeats its call over a new connection before the server has noticed that
/// the old one is gone. It received its lease, which was then withdrawn because the first call had
/// no recipient.
#[test]
fn a_grant_that_a_retry_was_told_of_is_not_taken_back() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut fence = 0;
    for (retry, told) in [
        ("LOCK.ACQUIRE res B 60000", None),
        ("LOCK.ACQUIRE res B 1 WAIT 9 LABEL me", None),
        ("LOCK.EXTEND res B 60000", Some("1")),
        ("LOCK.FENCE res B 1", None),
    ] {
        ask(conn, "LOCK.ACQUIRE res A 60000");
        let mut gone = server.connect_raw();
        let id = id_of(&mut gone);
        wait(&server, &mut gone, "B", LONG);
        let mut next = waiter(&server, "C", LONG);
        let kill = format!("CLIENT KILL ID {id}");
        for line in ["MULTI", "LOCK.RELEASE res A", &kill, retry] {
            ask(conn, line);
        }
        fence += 2;
        let told = told.map_or_else(|| fence.to_string(), str::to_owned);
        assert_eq!(ask(conn, "EXEC"), format!("[1 1 {told}]"), "{retry}");
        assert_eq!(ask(conn, "LOCK.ACQUIRE res D 60000"), "nil", "{retry}: it was told");
        assert!(next.is_silent_for(Duration::from_millis(50)), "{retry}");
        assert_eq!(ask(conn, "LOCK.RELEASE res B"), "1", "{retry}");
        fence += 1;
        assert_eq!(next.read(), format!(":{fence}\r\n").as_bytes(), "{retry}");
        assert_eq!(ask(conn, "LOCK.RELEASE res C"), "1");
    }
}

/// While writes are paused no lease can be withdrawn. A retry that waited for the end of the pause
/// comes before the node's next check.
#[test]
fn a_grant_that_a_retry_was_told_of_after_a_pause_is_not_taken_back() {
    let server = Server::builder().config("hz", 1).config("dynamic-hz", "no").start();
    let conn = &mut server.connect();
    for has_retry in [true, false] {
        ask(conn, "LOCK.ACQUIRE res A 60000");
        let mut gone = server.connect_raw();
        let id = id_of(&mut gone);
        wait(&server, &mut gone, "B", LONG);
        let mut next = waiter(&server, "C", LONG);
        let kill = format!("CLIENT KILL ID {id}");
        for line in ["MULTI", "LOCK.RELEASE res A", &kill, "CLIENT PAUSE 60000 WRITE"] {
            ask(conn, line);
        }
        assert_eq!(ask(conn, "EXEC"), "[1 1 OK]");
        assert_eq!(field(conn, "res", "state"), "held", "nothing is taken back in a pause");
        let mut retry = server.connect_raw();
        let retry_id = id_of(&mut retry);
        if has_retry {
            retry.send(&["LOCK.ACQUIRE", "res", "B", "60000"]);
            let list = format!("CLIENT LIST ID {retry_id}");
            wait_until("the retry is put off", || ask(conn, &list).contains(" flags=b"));
        }
        ask(conn, "CLIENT UNPAUSE");
        if has_retry {
            assert_eq!(retry.read(), b":2\r\n");
            // Here the node checks once a second for leases that it could not withdraw.
            assert!(next.is_silent_for(Duration::from_millis(1_200)));
            assert_eq!(ask(conn, "LOCK.RELEASE res B"), "1");
        }
        assert!(next.read().starts_with(b":"));
        assert_eq!(ask(conn, "LOCK.RELEASE res C"), "1");
    }
}

#[test]
fn a_grant_is_on_the_disk_before_it_is_answered_and_replicas_are_told() {
    let server = Server::builder().config("appendonly", "yes").config("appendfsync", "always");
    let server = server.start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut client = server.connect_raw();
    let request = ["LOCK.ACQUIRE", "res", "B", "60000", "WAIT", "600000", "LABEL", "b"];
    client.send(&request);
    wait_until("it waits", || server.info_u64("lockmod_waiters") == 1);
    let mut file = AppendOnly::open(&server);
    let mut stream = Stream::open(&server);
    ask(conn, "DEL res");
    assert_eq!(client.read(), b":2\r\n");
    let expected = ["DEL res", "LOCK.ACQUIRE res B 60000@+60000.2 LABEL b"];
    assert_eq!(facts(file.told()), expected);
    assert_eq!(facts(stream.told(conn)), expected);
    assert_eq!(field(conn, "res", "label"), "b");
}

/// Here the server checks its lines once a second; the alarm handles what falls due in between.
#[test]
fn a_lease_that_ends_is_handed_on_without_waiting_for_the_server_to_look() {
    let server = Server::builder().config("hz", 1).config("dynamic-hz", "no").start();
    let client = &mut server.connect();
    let mut take = |round: u32| {
        let start = Instant::now();
        ask(client, &format!("LOCK.ACQUIRE res token:{round} 100 WAIT 60000"));
        start.elapsed()
    };
    take(0);
    // The first check may come at any time. A busy machine may be late, but not each time.
    let quickest = (1..8).map(take).skip(1).min().expect("some rounds");
    assert!(quickest < Duration::from_millis(600), "{quickest:?}");
}

#[test]
fn nobody_is_granted_anything_while_writes_are_paused() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 300");
    let mut client = waiter(&server, "B", LONG);
    let mut short = waiter(&server, "C", 100);
    ask(conn, "CLIENT PAUSE 60000 WRITE");
    assert_eq!(short.read(), b"$-1\r\n", "a wait ends all the same");
    wait_until("the lease has ended", || field(conn, "res", "state") == "reserved");
    assert!(client.is_silent_for(Duration::from_millis(50)));
    ask(conn, "CLIENT UNPAUSE");
    assert_eq!(client.read(), b":2\r\n");
}

#[test]
fn a_grant_waits_for_as_many_replicas_as_writes_need() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 100");
    let mut client = waiter(&server, "B", LONG);
    ask(conn, "CONFIG SET min-replicas-to-write 1");
    wait_until("the lease has ended", || field(conn, "res", "state") == "reserved");
    assert!(ask(conn, "LOCK.ACQUIRE other C 9").starts_with("NOREPLICAS "));
    says_that_it_refuses(&server, "NOREPLICAS ");
    assert!(client.is_silent_for(Duration::from_millis(50)));
    ask(conn, "CONFIG SET min-replicas-to-write 0");
    assert_eq!(client.read(), b":2\r\n");
    assert_eq!(server.info("lockmod_state").as_deref(), Some("grants"));
}

/// Regression: the node reported to `lockmod status` and to the alerts that it grants.
#[track_caller]
fn says_that_it_refuses(server: &Server, code: &str) {
    let state = server.info("lockmod_state").expect("a state");
    assert!(state.starts_with(code), "{state}");
    assert_eq!(server.info_u64("lockmod_granting"), 0, "{code}");
    let conn = &mut server.connect();
    assert_eq!(field(conn, "any", "node_state"), state);
}

/// Regression: an acquire would have been refused, but waiters in line were granted the lock.
#[test]
fn nobody_is_granted_anything_while_the_server_refuses_writes_for_its_disk_or_its_memory() {
    let server = Server::builder().config("save", "\"3600 1000000\"").start();
    let conn = &mut server.connect();
    ask(conn, "CONFIG SET stop-writes-on-bgsave-error no");
    std::fs::create_dir(server.dir().join("dump.rdb")).expect("the folder is ours");
    ask(conn, "BGSAVE");
    wait_until("the data set cannot be saved", || {
        server.info("rdb_last_bgsave_status").is_some_and(|status| status == "err")
    });
    let disk = "CONFIG SET stop-writes-on-bgsave-error";
    for (code, set, refuse, accept) in
        [("MISCONF ", disk, "yes", "no"), ("OOM ", "CONFIG SET maxmemory", "1", "0")]
    {
        assert_ne!(ask(conn, "LOCK.ACQUIRE res A 60000"), "nil", "{code}");
        let mut client = waiter(&server, "B", LONG);
        ask(conn, "MULTI");
        ask(conn, "PEXPIRE res 1");
        ask(conn, &format!("{set} {refuse}"));
        ask(conn, "EXEC");
        wait_until("the lock is free", || field(conn, "res", "state") == "reserved");
        let error = ask(conn, "LOCK.ACQUIRE other C 9");
        assert!(error.starts_with(code), "{error}");
        says_that_it_refuses(&server, code);
        assert!(client.is_silent_for(Duration::from_millis(50)), "{code}");
        ask(conn, &format!("{set} {accept}"));
        assert!(client.read().starts_with(b":"), "{code}");
        assert_eq!(server.info("lockmod_state").as_deref(), Some("grants"), "{code}");
        assert_eq!(ask(conn, "LOCK.RELEASE res B"), "1");
    }
}

#[test]
fn access_rules_that_change_reach_those_in_line() {
    let server = Server::start();
    let conn = &mut server.connect();
    for denied in ["-LOCK.ACQUIRE", "resetkeys"] {
        ask(conn, "ACL SETUSER worker reset on nopass ~* +@all");
        ask(conn, "LOCK.ACQUIRE res A 60000");
        let mut worker = server.connect_raw();
        worker.run("AUTH worker x");
        wait(&server, &mut worker, "B", LONG);
        let mut next = waiter(&server, "C", LONG);
        ask(conn, &format!("ACL SETUSER worker {denied}"));
        assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
        assert!(next.read().starts_with(b":"), "{denied}: the next is served");
        let error = worker.read();
        assert!(error.starts_with(b"-NOPERM "), "{denied}: {}", error.escape_ascii());
        assert_eq!(ask(conn, "LOCK.RELEASE res C"), "1");
    }
}

#[test]
fn who_waits_on_a_node_that_becomes_a_replica_is_told() {
    let (server, other) = (Server::start(), Server::start());
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut client = waiter(&server, "B", LONG);
    let mut wakes = listener(&server, &["5-c"]);
    assert_eq!(acquire(conn, "C", "5-c"), "nil");
    ask(conn, &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    let error = client.read();
    assert!(error.starts_with(b"-UNBLOCKED "), "{}", error.escape_ascii());
    assert_eq!(woken(&mut wakes), "5-c", "to ask again");
    nobody_waits(&server);
    assert_eq!(server.info_u64("lockmod_grants"), 1);
}

#[test]
fn a_failover_sends_everybody_away_and_grants_nothing_in_between() {
    let server = Server::start();
    let replica = Server::builder().replica_of(&server).start();
    server.wait_for_replica(&replica);
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 2000");
    let mut client = waiter(&server, "B", LONG);
    // The lease ends while the server waits for the replica.
    replica.pause();
    ask(conn, "SET written-while-the-replica-sleeps 1");
    assert_eq!(ask(conn, "FAILOVER TIMEOUT 60000"), "OK");
    wait_until("the lease has ended", || field(conn, "res", "state") == "reserved");
    assert!(client.is_silent_for(Duration::from_millis(50)));
    replica.resume();
    let error = client.read();
    assert!(error.starts_with(b"-UNBLOCKED "), "{}", error.escape_ascii());
    wait_until("the roles have changed", || server.info("role").as_deref() == Some("slave"));
    assert_eq!(server.info_u64("lockmod_grants"), 1);
    nobody_waits(&server);
}

#[test]
fn a_server_stops_with_clients_that_wait() {
    let mut server = Server::builder().config("appendonly", "yes").start();
    ask(&mut server.connect(), "LOCK.ACQUIRE res A 60000");
    let mut clients: Vec<_> =
        (0..3).map(|place| waiter(&server, &format!("t{place}"), LONG)).collect();
    server.terminate_with("SAVE");
    for client in &mut clients {
        assert!(client.try_read().is_err());
    }
    server.start_again();
    assert_eq!(field(&mut server.connect(), "res", "waiters"), "0");
    assert_eq!(ask(&mut server.connect(), "LOCK.RELEASE res A"), "1");
}

#[test]
fn a_stepped_wall_clock_delays_nobody() {
    for step in [3_600_000, -3_600_000, -unix_ms() + 5_000] {
        let server = Server::builder().fake_wall_clock().start();
        let conn = &mut server.connect();
        let start = Instant::now();
        ask(conn, "LOCK.ACQUIRE res A 400");
        let mut short = waiter(&server, "B", 200);
        let mut next = waiter(&server, "C", LONG);
        server.set_wall_clock_offset_ms(step);
        assert_eq!(short.read(), b"$-1\r\n", "{step}");
        assert!(start.elapsed() >= Duration::from_millis(200), "{step}: early");
        assert_eq!(next.read(), b":2\r\n", "{step}");
        assert!(start.elapsed() >= Duration::from_millis(400), "{step}: early");
        // Not by the tick, which a wall clock stepped by an hour would delay.
        assert!(start.elapsed() < Duration::from_secs(20), "{step}: {:?}", start.elapsed());
    }
}

#[test]
fn what_cannot_be_granted_is_said_to_those_who_waited() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 60000");
    let mut client = waiter(&server, "B", LONG);
    ask(conn, "SET res text");
    assert_eq!(
        client.read(),
        b"-WRONGTYPE the key holds another kind of value; allowed: a lock, or no key\r\n"
    );
    ask_all(conn, &[("DEL res", "1"), ("LOCK.ACQUIRE res A 60000", "2")]);
    let mut client = waiter(&server, "B", LONG);
    ask(conn, "LOCK.FLOOR 9007199254740991");
    ask(conn, "LOCK.RELEASE res A");
    assert!(client.read().starts_with(b"-EXHAUSTED "));
    nobody_waits(&server);
}

#[test]
fn calls_and_tickets_stand_in_one_line() {
    let server = Server::builder().module_arg("reserve-ms", 60_000).start();
    let conn = &mut server.connect();
    let queue = |ticket: &str| format!("QUEUE 60000 TICKET {ticket} NOTIFY wake:{ticket}");
    let mut wakes = server.connect_raw();
    for ticket in ["5-a", "6-b", "7-c"] {
        wakes.run(&format!("SUBSCRIBE wake:{ticket}"));
    }
    let message = |ticket: &str| {
        format!("*3\r\n$7\r\nmessage\r\n$8\r\nwake:{ticket}\r\n$3\r\n{ticket}\r\n").into_bytes()
    };
    ask(conn, "LOCK.ACQUIRE res A 60000");
    assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res B 60000 {}", queue("6-b"))), "nil");
    let mut call = waiter(&server, "C", LONG);
    assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res D 60000 {}", queue("7-c"))), "nil");
    assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res E 60000 {}", queue("5-a"))), "nil");
    // The older ticket goes before the younger one, and so before the call that came after that.
    ask(conn, "LOCK.RELEASE res A");
    assert_eq!(wakes.read(), message("5-a"));
    assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res E 60000 {}", queue("5-a"))), "2");
    ask(conn, "LOCK.RELEASE res E");
    assert_eq!(wakes.read(), message("6-b"));
    assert_eq!(ask(conn, "LOCK.RELEASE res B"), "nil", "it leaves, and its reservation is over");
    assert_eq!(call.read(), b":3\r\n");
    ask(conn, "LOCK.RELEASE res C");
    assert_eq!(wakes.read(), message("7-c"));
}

#[test]
fn thousands_wait_and_all_are_served_or_leave() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res t 60000");
    let mut clients: Vec<RawConnection> = (0..500).map(|_| server.connect_raw()).collect();
    for (place, client) in clients.iter_mut().enumerate() {
        let (token, wait) = (format!("t{place}"), if place % 2 == 0 { "600000" } else { "50" });
        let label = place.to_string();
        client.send(&["LOCK.ACQUIRE", "res", &token, "60000", "LABEL", &label, "WAIT", wait]);
    }
    for client in clients.iter_mut().skip(1).step_by(2) {
        assert_eq!(client.read(), b"$-1\r\n");
    }
    wait_until("half are left", || server.info_u64("lockmod_waiters") == 250);
    ask(conn, "LOCK.RELEASE res t");
    // The order of arrival is unknown: the server reads connections in an order of its own.
    for fence in 2..252 {
        let place: usize = field(conn, "res", "label").parse().expect("a place");
        assert_eq!(clients[place].read(), format!(":{fence}\r\n").as_bytes(), "{place}");
        assert_eq!(ask(conn, &format!("LOCK.RELEASE res t{place}")), "1", "{place}");
    }
    nobody_waits(&server);
}

/// Regression: the first had the reply after its lease was over, and the next was granted.
#[test]
fn a_grant_that_is_over_before_the_reply_can_be_sent_is_a_null() {
    let server = Server::builder().config("enable-debug-command", "yes").start();
    let conn = &mut server.connect();
    assert!(ask(conn, "LOCK.ACQUIRE res A 60000").parse::<u64>().is_ok());
    let mut first = server.connect_raw();
    wait_by(&server, &mut first, &["LOCK.ACQUIRE", "res", "B", "200", "WAIT", "60000"]);
    let mut second = waiter(&server, "C", LONG);
    let lines = [("MULTI", "OK"), ("LOCK.RELEASE res A", "QUEUED"), ("DEBUG SLEEP 0.5", "QUEUED")];
    ask_all(conn, &lines);
    ask(conn, "EXEC");
    assert_eq!(first.read(), b"$-1\r\n");
    assert!(second.read().starts_with(b":"));
}

/// Regression: the same, of a grant to another request with the token of one that waits.
#[test]
fn a_grant_to_another_request_that_is_over_before_the_reply_can_be_sent_is_a_null() {
    let server = Server::builder().config("enable-debug-command", "yes").start();
    let conn = &mut server.connect();
    assert!(ask(conn, "LOCK.ACQUIRE res A 60000").parse::<u64>().is_ok());
    let mut client = server.connect_raw();
    wait_by(&server, &mut client, &["LOCK.ACQUIRE", "res", "B", "200", "WAIT", "60000"]);
    ask_all(conn, &[("MULTI", "OK"), ("LOCK.RELEASE res A", "QUEUED")]);
    ask_all(conn, &[("LOCK.ACQUIRE res B 200", "QUEUED"), ("DEBUG SLEEP 0.5", "QUEUED")]);
    ask(conn, "EXEC");
    assert_eq!(client.read(), b"$-1\r\n");
}

/// Regression: a user with rules for databases was refused when its turn came.
#[test]
fn a_user_of_one_database_waits() {
    let server = Server::start();
    let conn = &mut server.connect();
    let rule = if server_version().is_valkey_from(9, 1) { " resetdbs db=3" } else { "" };
    assert_eq!(ask(conn, &format!("ACL SETUSER one on >pw ~* &* +@all{rule}")), "OK");
    assert_eq!(ask(conn, "SELECT 3"), "OK");
    assert!(ask(conn, "LOCK.ACQUIRE res A 60000").parse::<u64>().is_ok());
    let mut client = server.connect_raw();
    assert_eq!(client.run("AUTH one pw"), b"+OK\r\n");
    assert_eq!(client.run("SELECT 3"), b"+OK\r\n");
    wait(&server, &mut client, "B", LONG);
    assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
    assert!(client.read().starts_with(b":"));
}

/// Regression: the server hides a key whose expiry has passed while writes are paused, and only a
/// transaction can pause them before its own commands. The grant was lost, with a fence of 1.
#[test]
fn a_transaction_that_pauses_writes_acquires_nothing() {
    let server = Server::builder().config("enable-debug-command", "yes").start();
    let conn = &mut server.connect();
    let refused = "BADARG earlier command in the transaction 'CLIENT PAUSE or FAILOVER'; allowed: \
                   none that pauses writes";
    assert_eq!(ask(conn, "DEBUG SET-ACTIVE-EXPIRE 0"), "OK");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 60000"), "1");
    assert_eq!(ask(conn, "PEXPIRE res 1"), "1");
    wait_until("it has expired", || ask(conn, "EXISTS res") == "0");
    for command in ["LOCK.ACQUIRE res B 60000", "LOCK.EXTEND res B 60000 FENCE 1 REPAIR"] {
        ask_all(conn, &[("MULTI", "OK"), ("CLIENT PAUSE 50 WRITE", "QUEUED"), (command, "QUEUED")]);
        // The reply is an array, of which the client returns the error.
        assert_eq!(ask(conn, "EXEC"), refused);
    }
    assert_eq!(ask(conn, "LOCK.ACQUIRE res C 60000"), "2");
}

/// Regression: Valkey from 8.1 on blocks no such client, and crashed.
#[test]
fn a_client_that_has_subscribed_waits_or_is_told_that_it_cannot() {
    let server = Server::start();
    let conn = &mut server.connect();
    let version = server_version();
    let is_refused = version.is_valkey_from(8, 1);
    for subscribe in ["SUBSCRIBE c", "PSUBSCRIBE c*", "SSUBSCRIBE c"] {
        assert!(ask(conn, "LOCK.ACQUIRE res A 60000").parse::<u64>().is_ok());
        let mut client = server.connect_raw();
        client.run("HELLO 3");
        client.run(subscribe);
        client.send(&["LOCK.ACQUIRE", "res", "B", "60000", "WAIT", &LONG.to_string()]);
        if is_refused {
            let refused = "-BADARG option on a connection with a subscription 'WAIT'; allowed: \
                           QUEUE, or WAIT on another connection\r\n";
            assert_eq!(String::from_utf8_lossy(&client.read()), refused);
            assert_eq!(server.info_u64("lockmod_waiters"), 0);
        } else {
            wait_until("it waits", || server.info_u64("lockmod_waiters") == 1);
        }
        assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
        if !is_refused {
            assert!(client.read().starts_with(b":"));
            assert_eq!(ask(conn, "LOCK.RELEASE res B"), "1");
        }
    }
}
