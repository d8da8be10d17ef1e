//! The test harness itself: what the tests of everything else rely on.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use std::{env, thread};

use common::{
    Builder, Flow, Proxy, Server, ServerVersion, cmd, error_line, run, run_args, server_version,
    set_offset, start_nodes, wait_until, wall_clock_env,
};
use redis::Value;

fn plain() -> Builder {
    Server::builder().without_module()
}

fn text(bytes: &str) -> Value {
    Value::BulkString(bytes.as_bytes().to_vec())
}

#[test]
fn server_answers_over_socket_and_tcp() {
    let server = plain().start();
    for mut conn in [server.connect(), server.connect_tcp()] {
        assert_eq!(run(&mut conn, "ECHO hello"), Ok(text("hello")));
        assert_eq!(
            run_args(&mut conn, &[b"ECHO".as_slice(), b"\x00\xff"]),
            Ok(Value::BulkString(b"\x00\xff".to_vec()))
        );
        assert_eq!(cmd!(conn, "SET", "key", b"\x00", "PX", 30_000), Ok(Value::Okay));
    }
    assert_eq!(server.info_u64("process_id"), u64::from(server.pid()));
    assert!(server.log().contains("Ready to accept connections"));
    assert_eq!(error_line(server.run("LPUSH key x")).split(' ').next(), Some("WRONGTYPE"));
}

#[test]
fn data_survives_a_restart_only_where_it_was_saved() {
    let mut server = plain().start();
    let port = server.port();
    server.run("SET key kept").unwrap();
    server.terminate_with("SAVE");
    assert!(!server.is_running());
    server.start_again();
    assert_eq!((server.port(), server.run("GET key")), (port, Ok(text("kept"))));
    server.run("SET key lost").unwrap();
    server.kill();
    server.start_again();
    assert_eq!(server.run("GET key"), Ok(text("kept")));
    server.restart_with(|builder| builder.config("appendonly", "yes"));
    assert_eq!(server.info_u64("aof_enabled"), 1);
}

#[test]
fn refused_configuration_is_told_with_its_log() {
    let error = plain().config("maxmemory", "much").try_start().unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
    let mut server = plain().start();
    server.terminate();
    server.reconfigure(|builder| builder.config_line("no-such-option 1"));
    let error = server.try_start_again().unwrap_err();
    assert!(error.log.contains("no-such-option"), "{error}");
}

#[test]
fn configuration_text_cannot_open_the_server_to_others() {
    let server = plain().config_text("bind * -::*\nport 1\nprotected-mode no\nhz 17\n").start();
    let mut conn = server.connect();
    let mut get = |name: &str| -> (String, String) {
        redis::cmd("CONFIG").arg("GET").arg(name).query(&mut conn).unwrap()
    };
    assert_eq!(get("bind").1, "127.0.0.1");
    assert_eq!(get("port").1, server.port().to_string());
    assert_eq!(get("protected-mode").1, "yes");
    assert_eq!(get("hz").1, "17");
}

#[test]
fn paused_server_is_silent_and_then_goes_on() {
    let server = plain().start();
    let mut raw = server.connect_raw();
    assert_eq!(raw.run("PING"), b"+PONG\r\n");
    server.pause();
    raw.send(&["ECHO", "later"]);
    assert!(raw.is_silent_for(Duration::from_millis(50)));
    server.resume();
    assert_eq!(raw.read(), b"$5\r\nlater\r\n");
    assert!(!{
        raw.send(&["PING"]);
        raw.is_silent_for(Duration::from_secs(5))
    });
    assert_eq!(raw.read(), b"+PONG\r\n");
}

#[test]
fn raw_connection_tells_replies_and_pushes_apart() {
    let server = plain().start();
    let mut raw = server.connect_raw();
    assert!(matches!(raw.run("HELLO 3").first(), Some(b'%')));
    assert_eq!(raw.run("GET absent"), b"_\r\n");
    let subscribed: &[u8] = b">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n";
    assert_eq!(raw.run("SUBSCRIBE news"), subscribed);
    server.run("PUBLISH news hello").unwrap();
    assert_eq!(raw.read(), b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n");
    // `COMMAND DOCS` nests deeply: the next reply shows that its end was found.
    raw.run("COMMAND DOCS SET GET");
    raw.send(&["ECHO", "still in step"]);
    assert_eq!(raw.read_value(), text("still in step"));
}

#[test]
fn replica_follows_a_primary_with_a_password() {
    let primary = plain().password("secret").start();
    let replica = plain().password("secret").replica_of(&primary).start();
    primary.run("SET key value").unwrap();
    primary.wait_for_replica(&replica);
    assert_eq!(replica.run("GET key"), Ok(text("value")));
    assert_eq!(error_line(replica.run("SET key x")).split(' ').next(), Some("READONLY"));
}

#[test]
fn nodes_that_start_together_outlive_the_threads_that_started_them() {
    let mut nodes = start_nodes(5, |_| plain());
    let mut ports: Vec<u16> = nodes.iter().map(Server::port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 5);
    for node in &mut nodes {
        assert!(node.run("PING").is_ok() && node.is_running());
    }
}

#[test]
fn wall_clock_is_stepped_and_runs_on() {
    let server = plain().fake_wall_clock().start();
    let now_ms = || {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query(&mut server.connect()).unwrap();
        i64::try_from(seconds * 1000 + micros / 1000).unwrap()
    };
    let true_ms = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap()
    };
    for offset_ms in [3_600_000, -86_400_250, 0] {
        server.set_wall_clock_offset_ms(offset_ms);
        wait_until("the server's clock is stepped", || {
            (now_ms() - true_ms() - offset_ms).abs() < 1_000
        });
    }
}

/// Not a test: prints the clocks of a process for the test below, which runs it as a child.
#[test]
#[ignore = "the helper of fake_wall_clock_leaves_the_monotonic_clock_true"]
fn print_clocks() {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    println!("clocks {} {:?}", wall.as_secs(), Instant::now());
}

/// What `print_clocks` prints when run with this environment.
fn clocks(env: &[(&str, PathBuf)]) -> (i64, String) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "print_clocks", "--ignored", "--nocapture"])
        .envs(env.iter().cloned())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("clocks ")).expect("printed").1;
    let (wall, monotonic) = line.split_once(' ').unwrap();
    // `Instant { tv_sec: 12, tv_nsec: 34 }`: the seconds are told by no public method.
    let seconds = monotonic.split(&[':', ','][..]).nth(1).unwrap().trim().to_owned();
    (wall.parse().unwrap(), seconds)
}

#[test]
fn fake_wall_clock_leaves_the_monotonic_clock_true() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("offset");
    set_offset(&file, 7_200_000);
    let (true_wall, true_monotonic) = clocks(&[]);
    let (fake_wall, fake_monotonic) = clocks(&wall_clock_env(&file));
    assert!((fake_wall - true_wall - 7200).abs() < 60);
    let seconds = |text: String| text.parse::<i64>().unwrap();
    assert!((seconds(fake_monotonic) - seconds(true_monotonic)).abs() < 60);
}

#[test]
fn proxy_passes_delays_and_holds() {
    let server = plain().start();
    let proxy = Proxy::to(&server);
    let mut conn = redis::Client::open(proxy.url()).unwrap().get_connection().unwrap();
    assert_eq!(run(&mut conn, "ECHO a"), Ok(text("a")));

    proxy.set(Flow::Delay(Duration::from_millis(60)));
    let start = Instant::now();
    assert_eq!(run(&mut conn, "ECHO b"), Ok(text("b")));
    assert!(start.elapsed() >= Duration::from_millis(120), "{:?}", start.elapsed());

    // The reply is held, so the server has done what the client does not know of.
    proxy.set(Flow::Pass);
    proxy.set_replies(Flow::Hold);
    let client = thread::spawn(move || run(&mut conn, "INCR counter"));
    wait_until("the request has arrived", || server.run("GET counter") == Ok(text("1")));
    assert!(!client.is_finished());
    proxy.set_replies(Flow::Pass);
    assert_eq!(client.join().unwrap(), Ok(Value::Int(1)));
}

#[test]
fn proxy_cuts_refuses_and_answers_garbage() {
    let server = plain().start();
    let proxy = Proxy::to(&server);
    let client = redis::Client::open(proxy.url()).unwrap();
    let mut conn = client.get_connection().unwrap();
    proxy.cut();
    assert!(run(&mut conn, "PING").unwrap_err().is_io_error());

    proxy.set_refuses(true);
    assert!(client.get_connection().is_err());
    proxy.set_refuses(false);
    let mut conn = client.get_connection().unwrap();
    assert_eq!(proxy.accepted_count(), 3);

    proxy.set_replies(Flow::Garbage(b"?!\r\n".to_vec()));
    assert_eq!(run(&mut conn, "PING").unwrap_err().kind(), redis::ErrorKind::Parse);

    proxy.set(Flow::Pass);
    let mut conn = client.get_connection().unwrap();
    proxy.set_requests(Flow::Discard);
    conn.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(run(&mut conn, "SET lost 1").unwrap_err().is_timeout());
    assert_eq!(server.run("EXISTS lost"), Ok(Value::Int(0)));
}

#[test]
fn cut_is_seen_as_a_reset_by_a_client_that_waits() {
    let server = plain().start();
    let proxy = Proxy::to(&server);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    wait_until("the proxy has accepted", || proxy.accepted_count() == 1);
    wait_until("the server has accepted", || {
        server.info("connected_clients").as_deref() == Some("2")
    });
    proxy.cut();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// Not a test: starts a server and waits to be killed, for the test below.
#[test]
#[ignore = "the helper of servers_die_with_a_test_process_that_is_killed"]
fn start_a_server_and_hang() {
    // From a thread that ends: the server must not end with it.
    let server = thread::spawn(|| plain().start()).join().unwrap();
    println!("server {}", server.pid());
    // Bounded, so that it ends by itself should the test that kills it be gone.
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn servers_die_with_a_test_process_that_is_killed() {
    // What a killed process leaves behind goes with this folder.
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .env("TMPDIR", folder.path())
        .args(["--exact", "start_a_server_and_hang", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let pid = lines.find_map(|line| Some(line.split_once("server ")?.1.to_owned())).unwrap();
    let comm = format!("/proc/{pid}/comm");
    let is_server =
        || std::fs::read_to_string(&comm).is_ok_and(|name| name.starts_with("redis-server"));
    assert!(is_server());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the server of the killed test is gone", || !is_server());
}

#[test]
fn servers_die_with_a_panicking_test() {
    let (sender, pid) = std::sync::mpsc::channel();
    let result = thread::spawn(move || {
        let server = plain().start();
        sender.send(server.pid()).unwrap();
        panic!("as a failed assertion would");
    })
    .join();
    assert!(result.is_err());
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.recv().unwrap())).exists());
}

#[test]
fn versions_of_both_servers_are_read() {
    let redis = ServerVersion::parse("Redis server v=7.0.15 sha=0:0 malloc=x bits=64").unwrap();
    assert!(redis.is_redis_from(7, 0) && !redis.is_redis_from(7, 2) && !redis.is_valkey());
    let valkey = ServerVersion::parse("Valkey server v=8.1.3 sha=0:0").unwrap();
    assert!(valkey.is_valkey() && (valkey.major, valkey.minor, valkey.patch) == (8, 1, 3));
    assert_eq!(ServerVersion::parse("what?"), None);
    server_version();
}

#[test]
#[should_panic(expected = "waiting until pigs fly")]
fn vain_wait_says_what_was_awaited() {
    common::wait_at_most(Duration::from_millis(20), "pigs fly", || None::<()>);
}

#[test]
fn module_under_test_is_found() {
    assert!(common::module_path().is_absolute());
}
