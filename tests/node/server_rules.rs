//! Redis's own rules hold for locks too: transactions, scripts, ACLs, pauses, memory limits.

use crate::ask::{ask, ask_all, ask_args, bytes, field, wait_for_cron};
use crate::common::{Server, cmd, skip, wait_until};

#[test]
fn transactions_run_lock_commands_and_watch_locks() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask_all(
        conn,
        &[
            ("MULTI", "OK"),
            ("LOCK.ACQUIRE res A 30000", "QUEUED"),
            ("LOCK.ACQUIRE res B 30000", "QUEUED"),
            ("LOCK.ACQUIRE res A 0", "QUEUED"),
            ("LOCK.RELEASE res A", "QUEUED"),
            ("LOCK.RELEASE res A", "QUEUED"),
        ],
    );
    let replies = cmd!(*conn, "EXEC");
    let replies = format!("{replies:?}");
    assert!(replies.contains("BADTTL"), "{replies}");
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE res A 30000", "2"),
            ("WATCH res", "OK"),
            ("MULTI", "OK"),
            ("LOCK.EXTEND res A 30000", "QUEUED"),
            ("EXEC", "[1]"),
            ("MULTI", "OK"),
            ("LOCK.ACQUIRE res", "ERR wrong number of arguments for 'LOCK.ACQUIRE' command"),
            ("EXEC", "EXECABORT Transaction discarded because of previous errors."),
        ],
    );
    ask(conn, "WATCH res");
    server.run("LOCK.RELEASE res A").unwrap();
    ask(conn, "MULTI");
    ask(conn, "LOCK.ACQUIRE res C 30000");
    assert_eq!(ask(conn, "EXEC"), "nil");
    assert_eq!(ask(conn, "LOCK.FENCE res"), "2");
}

#[test]
fn scripts_see_the_replies_that_clients_see() {
    let server = Server::start();
    let conn = &mut server.connect();
    let script = "
        local call = redis.call
        local fence = call('LOCK.ACQUIRE', KEYS[1], 'A', 30000)
        local again = call('LOCK.ACQUIRE', KEYS[1], 'A', 30000)
        local held = call('LOCK.ACQUIRE', KEYS[1], 'B', 30000)
        local error = redis.pcall('LOCK.ACQUIRE', KEYS[1], 'B', 0)
        local state = call('LOCK.INFO', KEYS[1])[2]
        local released = call('LOCK.RELEASE', KEYS[1], 'A')
        local gone = call('LOCK.RELEASE', KEYS[1], 'A')
        return {fence, again, tostring(held), error['err'], state, released, tostring(gone)}";
    let answer = ask_args(conn, &["EVAL", script, "1", "res"]);
    let error = "BADTTL ttl '0' is not a whole number of milliseconds from 1 to 86400000";
    assert_eq!(answer, format!("[1 1 false {error} held 1 false]"));
    let many = "
        local fences = {}
        for i = 1, 100 do
            fences[i] = redis.call('LOCK.ACQUIRE', KEYS[1], 't' .. i, 30000)
            redis.call('LOCK.RELEASE', KEYS[1], 't' .. i)
        end
        return fences[100] - fences[1]";
    assert_eq!(ask_args(conn, &["EVAL", many, "1", "res"]), "99");
    let read_only = ["EVAL_RO", "return redis.call('LOCK.INFO', KEYS[1])[4]", "1", "res"];
    assert_eq!(ask_args(conn, &read_only), "101");
    let write = ["EVAL_RO", "return redis.call('LOCK.RELEASE', KEYS[1], 'A')", "1", "res"];
    assert!(ask_args(conn, &write).contains("Write commands are not allowed"));
}

#[test]
fn scripts_may_speak_the_newer_protocol() {
    let server = Server::start();
    let conn = &mut server.connect();
    let script = "
        redis.setresp(3)
        local held = redis.call('LOCK.ACQUIRE', KEYS[1], 'A', 30000)
        local other = redis.call('LOCK.ACQUIRE', KEYS[1], 'B', 30000)
        local info = redis.call('LOCK.INFO', KEYS[1])['map']
        return {held, tostring(other), info['state'], tostring(info['label'])}";
    assert_eq!(ask_args(conn, &["EVAL", script, "1", "res"]), "[1 nil held nil]");
}

#[test]
fn functions_run_lock_commands() {
    let server = Server::start();
    let conn = &mut server.connect();
    let library = "#!lua name=locks
        redis.register_function('take', function(keys, args)
            return redis.call('LOCK.ACQUIRE', keys[1], args[1], 30000)
        end)
        redis.register_function{function_name = 'look', flags = {'no-writes'},
            callback = function(keys) return redis.call('LOCK.INFO', keys[1])[2] end}";
    assert_eq!(ask_args(conn, &["FUNCTION", "LOAD", library]), "locks");
    ask_all(
        conn,
        &[
            ("FCALL take 1 res A", "1"),
            ("FCALL take 1 res B", "nil"),
            ("FCALL_RO look 1 res", "held"),
            ("LOCK.RELEASE res A", "1"),
        ],
    );
}

#[test]
fn access_rules_hold_for_commands_and_for_keys() {
    let server = Server::start();
    let conn = &mut server.connect();
    for rule in [
        "ACL SETUSER worker on >pw ~job:* %R~seen:* +lock.acquire +lock.release +lock.info",
        "ACL SETUSER nobody on >pw ~* +@all -lock.acquire",
    ] {
        assert_eq!(ask(conn, rule), "OK");
    }
    ask(conn, "AUTH worker pw");
    ask_all(
        conn,
        &[
            ("LOCK.ACQUIRE job:1 A 30000", "1"),
            ("LOCK.RELEASE job:1 A", "1"),
            (
                "LOCK.INFO seen:1",
                "[state free fence 0 ttl_left_ms 0 label nil held_for_ms 0 waiters 0 \
                 first_waiting_ms nil]",
            ),
        ],
    );
    for (line, why) in [
        ("LOCK.ACQUIRE other A 30000", "to access"),
        ("LOCK.ACQUIRE seen:1 A 30000", "to access"),
        ("LOCK.INFO other", "to access"),
        ("LOCK.EXTEND job:1 A 30000", "run the 'lock.extend' command"),
        ("LOCK.HELP", "run the 'lock.help' command"),
    ] {
        let error = ask(conn, line).to_lowercase();
        assert!(error.starts_with("noperm ") && error.contains(why), "{line}: {error}");
    }
    ask(conn, "AUTH nobody pw");
    assert!(ask(conn, "LOCK.ACQUIRE job:1 A 30000").starts_with("NOPERM "));
    assert_eq!(ask(conn, "LOCK.RELEASE job:1 A"), "nil");
    let script = ["EVAL", "return redis.call('LOCK.ACQUIRE', KEYS[1], 'A', 9)", "1", "job:1"];
    let error = ask_args(conn, &script).to_lowercase();
    assert!(error.contains("run this command") || error.contains("no permissions"), "{error}");
}

#[test]
fn paused_writes_wait_and_idle_locks_are_not_forgotten_meanwhile() {
    let mut server = Server::builder().config("hz", 100).start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE old A 30000");
    ask(conn, "LOCK.RELEASE old A");
    ask(conn, "LOCK.ACQUIRE held A 30000");
    assert_eq!(ask(conn, "CLIENT PAUSE 60000 WRITE"), "OK");
    assert_eq!(ask(conn, "CONFIG SET lockmod.idle-ms 1"), "OK");
    let mut waiting = server.connect_raw();
    waiting.send(&["LOCK.ACQUIRE", "res", "A", "30000"]);
    wait_for_cron(&server);
    assert!(server.is_running(), "{}", server.log());
    assert!(waiting.is_silent_for(std::time::Duration::from_millis(1)));
    assert_eq!(field(conn, "held", "state"), "held");
    assert_eq!(ask(conn, "EXISTS old res"), "1");
    assert_eq!(ask(conn, "CLIENT UNPAUSE"), "OK");
    // 2 if the idle lock, whose fence was 1, was forgotten before.
    let fence = waiting.read();
    assert!(matches!(fence.as_slice(), b":1\r\n" | b":2\r\n"), "{fence:?}");
    wait_until("the idle lock is forgotten", || ask(conn, "EXISTS old") == "0");
    assert!(server.is_running());
}

#[test]
fn a_full_server_grants_nothing_and_still_lets_go() {
    let server = Server::builder().config("maxmemory-policy", "noeviction").start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE a A 30000");
    ask(conn, "LOCK.ACQUIRE b B 30000");
    ask(conn, "CONFIG SET maxmemory 1");
    for line in ["LOCK.ACQUIRE c A 30000", "LOCK.ACQUIRE a A 30000"] {
        let error = ask(conn, line);
        assert!(error.starts_with("OOM "), "{error}");
    }
    ask_all(
        conn,
        &[
            ("EXISTS c", "0"),
            ("LOCK.EXTEND a A 60000", "1"),
            ("LOCK.FENCE a A 5", "5"),
            ("LOCK.RELEASE a A", "1"),
            ("LOCK.RELEASE b B", "1"),
            ("LOCK.FENCE a", "5"),
            ("CONFIG SET maxmemory 0", "OK"),
            ("LOCK.ACQUIRE a A 30000", "6"),
        ],
    );
}

#[test]
fn locks_are_granted_only_with_as_many_replicas_as_writes_need() {
    let server = Server::start();
    let conn = &mut server.connect();
    ask(conn, "LOCK.ACQUIRE res A 30000");
    ask(conn, "CONFIG SET min-replicas-to-write 1");
    for line in ["LOCK.ACQUIRE res B 30000", "LOCK.EXTEND res A 30000", "LOCK.RELEASE res A"] {
        assert!(ask(conn, line).starts_with("NOREPLICAS "), "{line}");
    }
    assert_eq!(field(conn, "res", "state"), "held");
}

#[test]
fn cached_information_about_a_lock_is_invalidated_when_it_changes() {
    let server = Server::start();
    let conn = &mut server.connect();
    let mut cache = server.connect_raw();
    cache.run("HELLO 3");
    cache.run("CLIENT TRACKING ON");
    for line in ["LOCK.ACQUIRE res A 30000", "LOCK.EXTEND res A 60000", "LOCK.RELEASE res A"] {
        cache.run("LOCK.INFO res");
        assert_eq!(ask(conn, line), "1", "{line}");
        let told = cache.read();
        assert!(told.starts_with(b">2\r\n") && told.ends_with(b"res\r\n"), "{line}");
    }
}

#[test]
fn requests_of_every_kind_leave_no_memory_behind() {
    let server = Server::builder().config("appendonly", "yes").start();
    let replica = Server::builder().replica_of(&server).start();
    let conn = &mut server.connect();
    server.wait_for_replica(&replica);
    let (token, label) = ("t".repeat(64), "l".repeat(128));
    let labelled = format!("LOCK.ACQUIRE long {token} 30000 LABEL {label}");
    let release = format!("LOCK.RELEASE long {token}");
    let script = "redis.call('LOCK.ACQUIRE',KEYS[1],'A',30000)\
        return(redis.call('LOCK.RELEASE',KEYS[1],'A'))";
    let requests = [
        "LOCK.ACQUIRE res A 30000",
        "LOCK.ACQUIRE res A 60000",
        "LOCK.ACQUIRE res B 30000",
        "LOCK.EXTEND res A 30000 FENCE 3",
        "LOCK.EXTEND res B 30000",
        "LOCK.FENCE res A 3",
        "LOCK.INFO res",
        "LOCK.HELP",
        "LOCK.ACQUIRE res A 0",
        "LOCK.ACQUIRE res A 9 NOW",
        "LOCK.RELEASE res A",
        &labelled,
        &labelled,
        "COPY long copy REPLACE",
        "RENAME copy copied",
        "DEL copied",
        &release,
        &release,
    ];
    let round = |conn: &mut redis::Connection| {
        for _ in 0..500 {
            for line in requests {
                ask(conn, line);
            }
            ask_args(conn, &["EVAL", script, "1", "res"]);
            ask(conn, &labelled);
            let dump = bytes(conn, &["DUMP", "long"]);
            ask_args(conn, &[b"RESTORE".as_slice(), b"other", b"0", &dump, b"REPLACE"]);
        }
        server.wait_for_replica(&replica);
        [&server, &replica].map(|server| server.info_u64("used_memory_dataset"))
    };
    // Buffers that grow once are not a leak: a leak grows in every round.
    let mut before = round(conn);
    for _ in 0..3 {
        let after = round(conn);
        // One string for every second round of requests would be more than this.
        if before.iter().zip(after).all(|(before, after)| after < before + 16_000) {
            return;
        }
        before = after;
    }
    panic!("more in each round; {before:?} bytes in the last");
}

#[test]
fn locks_survive_being_moved_by_the_defragmentation() {
    let server = Server::start();
    let conn = &mut server.connect();
    let answer = ask(conn, "CONFIG SET activedefrag yes");
    if answer != "OK" {
        return skip("locks_survive_being_moved_by_the_defragmentation", &answer);
    }
    for line in ["active-defrag-ignore-bytes 1", "active-defrag-threshold-lower 1", "hz 100"] {
        assert_eq!(ask(conn, &format!("CONFIG SET {line}")), "OK");
    }
    let mut pipe = redis::pipe();
    let label = "l".repeat(100);
    for number in 0..40_000 {
        pipe.cmd("LOCK.ACQUIRE").arg(number).arg("A").arg(600_000).arg("LABEL").arg(&label);
    }
    pipe.query::<()>(conn).unwrap();
    let mut pipe = redis::pipe();
    for number in (0..40_000).filter(|number| number % 8 != 0) {
        pipe.cmd("UNLINK").arg(number);
    }
    pipe.query::<()>(conn).unwrap();
    wait_until("something was moved", || server.info_u64("active_defrag_hits") > 1000);
    for number in (0..40_000).step_by(8) {
        assert_eq!(ask(conn, &format!("LOCK.RELEASE {number} A")), "1");
    }
}

#[test]
fn modules_can_be_loaded_into_a_running_server_and_not_taken_out() {
    let server = Server::builder().without_module().start();
    let conn = &mut server.connect();
    let path = crate::common::module_path();
    let load = ["MODULE", "LOAD", path.to_str().unwrap(), "max-ttl", "1000"];
    assert_eq!(ask_args(conn, &load), "OK");
    assert!(ask(conn, "LOCK.ACQUIRE res A 1001").starts_with("BADTTL "));
    let other = Server::builder().without_module().start();
    let options = ["CONFIG", "lockmod.max-ttl", "900", "ARGS", "idle-ms", "5"];
    let load = [&["MODULE", "LOADEX", path.to_str().unwrap()], &options[..]].concat();
    assert_eq!(ask_args(&mut other.connect(), &load), "OK");
    let shown = ask(&mut other.connect(), "CONFIG GET lockmod.max-ttl");
    assert_eq!(shown, "[lockmod.max-ttl 900]");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 1000"), "1");
    let error = ask(conn, "MODULE UNLOAD lockmod");
    assert!(error.starts_with("ERR "), "{error}");
    assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
}
