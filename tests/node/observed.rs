//! What operators see of a node: INFO, keyspace notifications, SLOWLOG and LATENCY.

use redis::Connection;

use crate::ask::{ask, ask_all, field, wait_for_cron, wait_for_lapse};
use crate::common::{RawConnection, Server, wait_until};

/// Numbers with names in one field of INFO.
pub(crate) fn number_in(server: &Server, field: &str, name: &str) -> u64 {
    let text = server.info(&format!("lockmod_{field}")).unwrap();
    let pair = text.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    pair.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

fn count(server: &Server, field: &str) -> u64 {
    server.info_u64(&format!("lockmod_{field}"))
}

/// Held and idle locks, after a scan of all of them.
#[track_caller]
fn wait_for_counts(server: &Server, held: u64, idle: u64) {
    let mut last = (0, 0);
    let caller = std::panic::Location::caller();
    wait_until(&format!("{held} locks are held and {idle} idle ({caller})"), || {
        last = (count(server, "held"), count(server, "idle"));
        last == (held, idle)
    });
}

#[test]
fn held_and_idle_locks_are_counted_through_all_that_may_befall_a_key() {
    // Valkey 8 empties databases in the background, unless it is told not to.
    let server = Server::builder().config("lazyfree-lazy-user-flush", "no").start();
    let conn = &mut server.connect();
    for name in ["a", "b", "c", "d", "e"] {
        ask(conn, &format!("LOCK.ACQUIRE {name} A 600000"));
    }
    ask(conn, "LOCK.ACQUIRE short A 1");
    // Requests are counted at once, leases that lapse are not.
    assert_eq!(count(&server, "locks"), 6);
    wait_for_lapse(conn, "short");
    wait_for_counts(&server, 5, 1);
    for (line, held, idle) in [
        ("LOCK.RELEASE a A", 4, 2),
        ("LOCK.RELEASE a A", 4, 2),
        ("LOCK.ACQUIRE a A 600000", 5, 1),
        ("LOCK.ACQUIRE a A 600000", 5, 1),
        ("LOCK.EXTEND short A 600000 FENCE 9 REPAIR", 6, 0),
        ("LOCK.EXTEND new A 600000 FENCE 9 REPAIR", 7, 0),
        ("DEL new", 6, 0),
        ("COPY b copy", 7, 0),
        ("RENAME copy copied", 7, 0),
        ("RENAME copied b", 6, 0),
        ("MOVE c 3", 6, 0),
        ("SET d text", 5, 0),
        ("UNLINK e", 4, 0),
        ("DEBUG RELOAD", 4, 0),
        ("SWAPDB 0 3", 4, 0),
        ("FLUSHDB", 3, 0),
        ("SWAPDB 0 3", 3, 0),
        ("PEXPIRE a 0", 2, 0),
        ("FLUSHALL", 0, 0),
        ("LOCK.ACQUIRE a A 1", 1, 0),
    ] {
        let answer = ask(conn, line);
        assert!(!answer.contains("ERR"), "{line}: {answer}");
        let seen = (count(&server, "held"), count(&server, "idle"));
        let is_late = line.ends_with(" 1");
        assert!(seen == (held, idle) || is_late, "{line}: {seen:?}");
    }
    wait_for_counts(&server, 0, 1);
    assert_eq!(count(&server, "lapses"), 2, "each is counted once");
    ask(conn, "LOCK.ACQUIRE a B 600000");
    assert_eq!((count(&server, "lapses"), count(&server, "held")), (2, 1));
    // Regression: an end that a removal was the first to notice was not counted.
    ask(conn, "DEL a");
    for removal in ["DEL b", "RENAME b c", "SET b text", "UNLINK b"] {
        let before = count(&server, "lapses");
        ask(conn, "DEL b");
        ask(conn, "LOCK.ACQUIRE b B 1");
        wait_for_lapse(conn, "b");
        ask(conn, removal);
        assert_eq!(count(&server, "lapses"), before + 1, "{removal}");
    }
    wait_for_counts(&server, 0, 1);
}

#[test]
fn a_replica_counts_what_it_is_told() {
    let primary = Server::start();
    let replica = Server::builder().replica_of(&primary).start();
    let conn = &mut primary.connect();
    for line in [
        "LOCK.ACQUIRE a A 600000",
        "LOCK.ACQUIRE a A 900000",
        "LOCK.ACQUIRE b A 600000",
        "LOCK.ACQUIRE c A 600000",
        "LOCK.EXTEND c A 900000",
        "LOCK.RELEASE b A",
        "LOCK.FENCE c A 90",
        "LOCK.EXTEND d A 900000 FENCE 100 REPAIR",
    ] {
        ask(conn, line);
    }
    primary.wait_for_replica(&replica);
    assert_eq!((count(&replica, "held"), count(&replica, "idle")), (3, 1));
    ask(conn, "DEL d");
    ask(conn, "LOCK.RELEASE a A");
    primary.wait_for_replica(&replica);
    assert_eq!((count(&replica, "held"), count(&replica, "idle")), (1, 2));
    assert_eq!(decisions(&replica), [0; 4], "they were the master's");
}

/// The counts of grants, releases, extensions and raises.
fn decisions(server: &Server) -> [u64; 4] {
    ["grants", "releases", "extensions", "raises"].map(|name| count(server, name))
}

#[test]
fn what_an_append_only_file_tells_was_counted_before() {
    let mut server = Server::builder().config("appendonly", "yes").start();
    let lines = ["LOCK.ACQUIRE a A 600000", "LOCK.FENCE a A 90", "LOCK.RELEASE a A"];
    for line in lines {
        ask(&mut server.connect(), line);
    }
    assert_eq!(decisions(&server), [1, 1, 0, 1]);
    server.restart();
    assert_eq!(decisions(&server), [0; 4]);
    let held = server.run("INFO lockmod").expect("it answers");
    assert!(format!("{held:?}").contains("lockmod_hold_ms:count=0"), "{held:?}");
    for line in lines {
        ask(&mut server.connect(), line);
    }
    // The fence was raised to 90 before.
    assert_eq!(decisions(&server), [1, 1, 0, 0]);
}

#[test]
fn refusals_are_counted_by_their_code_words() {
    let server = Server::start();
    let conn = &mut server.connect();
    for line in [
        "SET text x",
        "LOCK.ACQUIRE a A 0",
        "LOCK.ACQUIRE a A x",
        "LOCK.FENCE a A 0",
        "LOCK.RELEASE text A",
        "LOCK.INFO text",
    ] {
        ask(conn, line);
    }
    let counted = |code| number_in(&server, "refusals_by_code", code);
    let codes = ["BADTTL", "BADARG", "WRONGTYPE", "BADTOKEN", "QUARANTINE"];
    assert_eq!(codes.map(counted), [2, 1, 2, 0, 0]);
    assert_eq!(count(&server, "refusals"), 5);
}

#[test]
fn hold_times_are_told_as_quantiles_and_by_limits() {
    let server = Server::start();
    let conn = &mut server.connect();
    for _ in 0..9 {
        ask(conn, "LOCK.ACQUIRE a A 600000");
        ask(conn, "LOCK.RELEASE a A");
    }
    ask(conn, "LOCK.ACQUIRE a A 600000");
    wait_until("it was held for a while", || {
        field(conn, "a", "held_for_ms").parse::<u64>().unwrap() > 64
    });
    ask(conn, "LOCK.RELEASE a A");
    let told = |name| number_in(&server, "hold_ms", name);
    assert_eq!(told("count"), 10);
    assert!(told("max") > 64 && told("sum") >= told("max") && told("p999") == told("max"));
    assert!(told("p50") <= told("p90") && told("p90") <= told("p99"), "they rise");
    let up_to = |limit| number_in(&server, "hold_ms_up_to", limit);
    assert!(up_to("64") <= 9 && up_to("1") <= up_to("64"), "the long one is above");
    assert_eq!(up_to("8388608"), 10);
    // A refused or repeated release does not count.
    ask(conn, "LOCK.RELEASE a A");
    assert_eq!(number_in(&server, "hold_ms", "count"), 10);
}

#[test]
fn waits_are_counted_of_those_who_stood_in_line_and_were_granted_the_lock() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE a A 600000");
    let mut waiter = server.connect_raw();
    waiter.send(&["LOCK.ACQUIRE", "a", "B", "600000", "WAIT", "60000"]);
    wait_until("it has waited", || count(&server, "oldest_waiter_ms") > 32);
    assert_eq!((count(&server, "waiters"), number_in(&server, "wait_ms", "count")), (1, 0));
    ask(conn, "LOCK.RELEASE a A");
    assert_eq!(waiter.read(), b":2\r\n");
    assert_eq!((count(&server, "waiters"), count(&server, "handed_over")), (0, 1));
    let told = |name| number_in(&server, "wait_ms", name);
    assert!(told("count") == 1 && told("p50") > 32 && told("max") == told("sum"));
    assert_eq!(number_in(&server, "wait_ms_up_to", "32"), 0);
    assert_eq!((count(&server, "held"), count(&server, "grants")), (1, 2));
}

/// Listens to all notifications about keys.
pub(crate) fn listener(server: &Server) -> RawConnection {
    let mut listener = server.connect_raw();
    listener.run("PSUBSCRIBE __keyspace@*__:*");
    listener
}

/// The next notification: key and event.
pub(crate) fn next(listener: &mut RawConnection) -> (String, String) {
    let push = String::from_utf8(listener.read()).unwrap();
    let words: Vec<&str> = push.split("\r\n").collect();
    let (_, key) = words[6].split_once("__:").unwrap_or_else(|| panic!("{push}"));
    (key.to_owned(), words[8].to_owned())
}

#[test]
fn an_idle_server_announces_each_lease_that_ends_once() {
    let server = Server::builder().config("notify-keyspace-events", "Kd").start();
    let conn = &mut server.connect();
    let mut listener = listener(&server);
    let is = |event: &str| ("a".to_owned(), format!("lock.{event}"));
    ask(conn, "LOCK.ACQUIRE a A 20");
    assert_eq!(next(&mut listener), is("acquire"));
    // No client asks for anything.
    assert_eq!(next(&mut listener), is("expire"));
    assert_eq!(count(&server, "lapses"), 1);
    wait_for_cron(&server);
    ask(conn, "LOCK.ACQUIRE a B 1000");
    assert_eq!(next(&mut listener), is("acquire"), "it is not announced again");
    ask(conn, "LOCK.EXTEND a B 1001");
    assert_eq!((next(&mut listener), next(&mut listener)), (is("extend"), is("expire")));
    ask(conn, "LOCK.ACQUIRE a C 1");
    ask(conn, "LOCK.RELEASE a C");
    ask(conn, "LOCK.ACQUIRE a D 600000");
    assert_eq!(next(&mut listener), is("acquire"));
    let after = next(&mut listener);
    assert!(after == is("release") || after == is("expire"), "{after:?}: given back, or too late");
    assert_eq!(next(&mut listener), is("acquire"));
}

#[test]
fn a_lease_whose_end_is_first_noticed_by_the_next_holder_is_announced_before() {
    // A cron that runs once a second leaves time to be first.
    let server = Server::builder().config("notify-keyspace-events", "Kd").config("hz", 1).start();
    let conn = &mut server.connect();
    let mut listener = listener(&server);
    ask(conn, "LOCK.ACQUIRE a A 1");
    wait_until("the next holder is granted it", || ask(conn, "LOCK.ACQUIRE a B 600000") == "2");
    let events: Vec<String> = (0..3).map(|_| next(&mut listener).1).collect();
    assert_eq!(events, ["lock.acquire", "lock.expire", "lock.acquire"]);
    assert_eq!(count(&server, "lapses"), 1);
}

/// Regression: a repair replaced another's lease that had ended, and that end was not published.
#[test]
fn a_lease_whose_end_is_first_noticed_by_a_repair_is_announced_before() {
    let server = Server::builder().config("notify-keyspace-events", "Kd").config("hz", 1).start();
    let conn = &mut server.connect();
    let mut listener = listener(&server);
    for holder in ["B", "A"] {
        ask(conn, "DEL a");
        ask(conn, "LOCK.ACQUIRE a A 1");
        wait_for_lapse(conn, "a");
        assert_eq!(ask(conn, &format!("LOCK.EXTEND a {holder} 600000 FENCE 9 REPAIR")), "1");
        let events: Vec<String> = (0..3).map(|_| next(&mut listener).1).collect();
        assert_eq!(events, ["lock.acquire", "lock.expire", "lock.extend"]);
    }
    assert_eq!((count(&server, "lapses"), count(&server, "held")), (2, 1));
}

#[test]
fn leases_of_any_database_and_any_number_are_announced() {
    const COUNT: usize = 20_000;
    let server = Server::builder().config("notify-keyspace-events", "Kd").start();
    let conn = &mut server.connect();
    ask(conn, "SELECT 5");
    let mut pipe = redis::pipe();
    for i in 0..COUNT {
        pipe.cmd("LOCK.ACQUIRE").arg(format!("lock-{i}")).arg("A").arg(400).ignore();
    }
    let mut listener = listener(&server);
    pipe.query::<()>(conn).unwrap();
    let mut expired = std::collections::BTreeSet::new();
    while expired.len() < COUNT {
        let (key, event) = next(&mut listener);
        if event == "lock.expire" {
            assert!(expired.insert(key), "once each");
        }
    }
    wait_for_counts(&server, 0, COUNT as u64);
}

#[test]
fn without_notifications_nothing_is_announced_nor_looked_for() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut listener = listener(&server);
    ask(conn, "LOCK.ACQUIRE a A 1");
    wait_for_lapse(conn, "a");
    // The numbers were not read since the end, so no scan has run. The first answer shows that, and
    // starts a scan.
    wait_for_cron_by_time(conn);
    assert!(ask(conn, "INFO lockmod").contains("lockmod_held:1"));
    wait_for_counts(&server, 0, 1);
    ask(conn, "CONFIG SET notify-keyspace-events Kd");
    ask(conn, "LOCK.ACQUIRE b A 600000");
    assert_eq!(next(&mut listener), ("b".to_owned(), "lock.acquire".to_owned()));
}

/// Lets the cron run for more than a second without reading the module's numbers.
fn wait_for_cron_by_time(conn: &mut Connection) {
    let second = |conn: &mut Connection| ask(conn, "TIME").split(' ').next().map(str::to_owned);
    for _ in 0..2 {
        let start = second(conn);
        wait_until("a second has passed", || second(conn) != start);
    }
}

#[test]
fn a_replica_announces_what_its_master_did_but_no_end_of_its_own() {
    let primary = Server::start();
    let replica =
        Server::builder().config("notify-keyspace-events", "Kd").replica_of(&primary).start();
    primary.wait_for_replica(&replica);
    let conn = &mut primary.connect();
    ask(conn, "LOCK.ACQUIRE a A 1");
    wait_for_lapse(conn, "a");
    primary.wait_for_replica(&replica);
    wait_for_cron(&replica);
    assert_eq!(count(&replica, "lapses"), 0);
}

#[test]
fn slow_commands_and_latencies_are_told_as_of_any_command() {
    let server = Server::builder().config("slowlog-log-slower-than", "0").start();
    let conn = &mut server.connect();
    ask_all(conn, &[("LOCK.ACQUIRE a A 30000", "1"), ("LOCK.RELEASE a A", "1")]);
    let slow = ask(conn, "SLOWLOG GET 10").to_uppercase();
    assert!(slow.contains("[LOCK.ACQUIRE A A 30000@"), "{slow}");
    assert!(slow.contains("[LOCK.RELEASE A A]"), "{slow}");
    let latency = ask(conn, "LATENCY HISTOGRAM lock.acquire").to_uppercase();
    assert!(latency.starts_with("[LOCK.ACQUIRE [CALLS 1 HISTOGRAM_USEC"), "{latency}");
    let stats = server.info("cmdstat_lock.acquire").or(server.info("cmdstat_LOCK.ACQUIRE"));
    assert!(stats.unwrap().starts_with("calls=1,"));
}
