//! The options `lockmod.*`: every way to set them, their ranges, and what they do.

use std::path::PathBuf;
use std::process::Command;

use crate::ask::{ask, ask_all, ask_args};
use crate::common::{Builder, Server};

#[test]
fn options_are_set_by_default_module_argument_configuration_file_and_command() {
    for (builder, max_ttl) in [
        (Server::builder(), "86400000"),
        (Server::builder().module_arg("max-ttl", 5000), "5000"),
        (Server::builder().module_arg("lockmod.max-ttl", 6000), "6000"),
        (Server::builder().config("lockmod.max-ttl", 7000), "7000"),
        (Server::builder().module_arg("max-ttl", 5000).config("lockmod.max-ttl", 7000), "7000"),
    ] {
        let server = builder.start();
        let conn = &mut server.connect();
        assert_eq!(ask(conn, "CONFIG GET lockmod.max-ttl"), format!("[lockmod.max-ttl {max_ttl}]"));
        let beyond = format!("LOCK.ACQUIRE res A {}", max_ttl.parse::<u64>().unwrap() + 1);
        assert!(ask(conn, &beyond).ends_with(&format!(" from 1 to {max_ttl}")));
        assert_eq!(ask(conn, &format!("LOCK.ACQUIRE res A {max_ttl}")), "1");
        ask_all(
            conn,
            &[
                ("CONFIG SET lockmod.max-ttl 9000", "OK"),
                ("CONFIG GET lockmod.max-ttl", "[lockmod.max-ttl 9000]"),
                ("LOCK.EXTEND res A 9000", "1"),
            ],
        );
        assert!(ask(conn, "LOCK.EXTEND res A 9001").ends_with(" from 1 to 9000"));
    }
}

/// Name, smallest and largest value, and what they count.
const RANGES: [(&str, u64, u64, &str); 3] = [
    ("max-ttl", 1, 31_622_400_000, "milliseconds"),
    ("idle-ms", 0, 31_622_400_000, "milliseconds"),
    ("max-token-bytes", 16, 255, "bytes"),
];

#[test]
fn values_out_of_range_are_refused_by_every_way() {
    let server = Server::start();
    let conn = &mut server.connect();
    let refused = |builder: Builder, why: &str| {
        let error = builder.try_start().expect_err("a value out of range");
        assert!(error.log.contains(why), "{why}: {error}");
    };
    for (name, min, max, unit) in RANGES {
        let set = |value: &str| format!("CONFIG SET lockmod.{name} {value}");
        assert_eq!(ask(conn, &set(&min.to_string())), "OK");
        assert_eq!(ask(conn, &set(&max.to_string())), "OK");
        let below = i64::try_from(min).unwrap() - 1;
        for value in [below.to_string(), (max + 1).to_string(), "much".to_owned()] {
            let error = ask(conn, &set(&value));
            assert!(error.starts_with("ERR CONFIG SET failed"), "{name} {value}: {error}");
        }
        let shown = ask(conn, &format!("CONFIG GET lockmod.{name}"));
        assert_eq!(shown, format!("[lockmod.{name} {max}]"));
        let beyond = max + 1;
        for value in [beyond.to_string(), "abc".to_owned()] {
            let why = format!(
                "module argument {name} '{value}'; allowed: a whole number of {unit} from {min} to \
                 {max}"
            );
            refused(Server::builder().module_arg(name, &value), &why);
        }
        refused(Server::builder().config(&format!("lockmod.{name}"), beyond), name);
    }
    refused(Server::builder().module_arg("max-tll", 5), "unknown module argument 'max-tll'");
    refused(Server::builder().config("lockmod.max-tll", 5), "Module Config");
}

#[test]
fn options_survive_a_rewrite_of_the_configuration_file() {
    let server = Server::builder().module_arg("idle-ms", 5000).start();
    let conn = &mut server.connect();
    ask(conn, "CONFIG SET lockmod.max-ttl 7000");
    ask(conn, "CONFIG SET lockmod.max-token-bytes 32");
    assert_eq!(ask(conn, "CONFIG REWRITE"), "OK");
    let file = std::fs::read_to_string(server.dir().join("redis.conf")).unwrap();
    assert!(file.contains("lockmod.max-ttl 7000"), "{file}");
    // Without our own lines, the file alone must restore everything.
    let again = Server::builder().config_text(&file).start();
    ask_all(
        &mut again.connect(),
        &[
            ("CONFIG GET lockmod.max-ttl", "[lockmod.max-ttl 7000]"),
            ("CONFIG GET lockmod.max-token-bytes", "[lockmod.max-token-bytes 32]"),
            ("CONFIG GET lockmod.idle-ms", "[lockmod.idle-ms 5000]"),
        ],
    );
}

#[test]
fn the_token_limit_binds_requests_and_not_what_was_decided_before() {
    let server = Server::builder().config("appendonly", "yes").start();
    let replica = Server::builder().module_arg("max-token-bytes", 16).module_arg("max-ttl", 1);
    let replica = replica.replica_of(&server).start();
    let conn = &mut server.connect();
    server.wait_for_replica(&replica);
    let token = |length| "t".repeat(length);
    let acquire = |length: usize| format!("LOCK.ACQUIRE key-{length} {} 600000", token(length));
    ask(conn, "CONFIG SET lockmod.max-token-bytes 255");
    assert_eq!(ask(conn, &acquire(255)), "1");
    assert_eq!(ask(conn, &acquire(256)), "BADTOKEN token has 256 bytes; allowed: 1 to 255");
    ask(conn, "CONFIG SET lockmod.max-token-bytes 16");
    assert_eq!(ask(conn, &acquire(16)), "1");
    assert_eq!(ask(conn, &acquire(17)), "BADTOKEN token has 17 bytes; allowed: 1 to 16");
    ask(conn, "CONFIG SET lockmod.max-token-bytes 255");
    ask(conn, &format!("LOCK.EXTEND key-255 {} 700000", token(255)));
    ask(conn, &format!("LOCK.FENCE key-255 {} 7", token(255)));
    server.wait_for_replica(&replica);
    let digest = ask(conn, "DEBUG DIGEST");
    assert_eq!(ask(&mut replica.connect(), "DEBUG DIGEST"), digest);
    ask(conn, "CONFIG SET lockmod.max-token-bytes 16");
    ask(conn, "CONFIG SET lockmod.max-ttl 1");
    for reload in ["DEBUG LOADAOF", "DEBUG RELOAD"] {
        assert_eq!(ask(conn, reload), "OK");
        assert_eq!(ask(conn, "DEBUG DIGEST"), digest, "{reload}");
    }
}

#[test]
fn policies_that_may_evict_locks_are_warned_of_in_the_log() {
    let warnings = |server: &Server, policy: &str| {
        let line = format!("WARNING: maxmemory-policy is {policy}: ");
        server.log().matches(&line).count()
    };
    let server = Server::builder().config("maxmemory-policy", "allkeys-lru").start();
    assert_eq!(warnings(&server, "allkeys-lru"), 1);
    let conn = &mut server.connect();
    for policy in ["noeviction", "volatile-lru", "volatile-ttl"] {
        ask(conn, &format!("CONFIG SET maxmemory-policy {policy}"));
        assert_eq!(warnings(&server, policy), 0);
    }
    ask(conn, "CONFIG SET maxmemory-policy allkeys-random");
    assert_eq!(warnings(&server, "allkeys-random"), 1);
    ask(conn, "CONFIG SET hz 11");
    assert_eq!(warnings(&server, "allkeys-random"), 1, "once for each change");
    let quiet = Server::start();
    assert!(!quiet.log().contains("WARNING: maxmemory-policy"));
}

/// Another module, which has a command named `LOCK.RELEASE`.
const OTHER_MODULE: &str = r#"
static int run(void *context, void **argv, int argc) {
    (void)context, (void)argv, (void)argc;
    return 0;
}
int RedisModule_OnLoad(void *context, void **argv, int argc) {
    (void)argv, (void)argc;
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))context;
    void (*set_attributes)(void *, const char *, int, int);
    int (*create)(void *, const char *, void *, const char *, int, int, int);
    get("RedisModule_SetModuleAttribs", &set_attributes);
    get("RedisModule_CreateCommand", &create);
    set_attributes(context, "toy", 1, 1);
    return create(context, "lock.release", (void *)run, "readonly", 0, 0, 0);
}
"#;

fn other_module(folder: &std::path::Path) -> PathBuf {
    let (source, built) = (folder.join("toy.c"), folder.join("toy.so"));
    std::fs::write(&source, OTHER_MODULE).unwrap();
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&built, &source])
        .status()
        .expect("`cc` runs: Rust links with it");
    assert!(compiler.success());
    built
}

#[test]
fn beside_a_module_with_the_same_command_names_loading_fails_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let toy = other_module(folder.path());
    let toy = toy.to_str().unwrap();
    let why = "not loaded: LOCK.RELEASE exists already: another module on this server uses the \
               same command names";

    let builder = Server::builder().config_text(&format!("loadmodule {toy}"));
    let error = builder.try_start().expect_err("two modules with one name");
    assert!(error.log.contains(why), "{error}");

    // Loaded into a running server: the server keeps running.
    let mut server = Server::builder().without_module().start();
    let conn = &mut server.connect();
    assert_eq!(ask_args(conn, &["MODULE", "LOAD", toy]), "OK");
    let path = crate::common::module_path();
    let answer = ask_args(conn, &["MODULE", "LOAD", path.to_str().unwrap()]);
    assert!(answer.starts_with("ERR Error loading the extension"), "{answer}");
    assert!(server.log().contains(why), "{}", server.log());
    for line in ["SET key x", "FLUSHALL", "SWAPDB 0 1", "CONFIG SET hz 11", "PING"] {
        let answer = ask(conn, line);
        assert!(answer == "OK" || answer == "PONG", "{answer}");
    }
    assert!(ask(conn, "LOCK.ACQUIRE res A 30000").starts_with("ERR unknown command"));
    crate::ask::wait_for_cron(&server);
    assert!(server.is_running());
}

#[test]
fn a_second_copy_of_the_module_is_refused_and_the_first_goes_on() {
    let mut server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.so");
    std::fs::copy(crate::common::module_path(), &copy).unwrap();
    let conn = &mut server.connect();
    let answer = ask_args(conn, &["MODULE", "LOAD", copy.to_str().unwrap()]);
    assert!(answer.starts_with("ERR Error loading the extension"), "{answer}");
    assert_eq!(ask(conn, "LOCK.ACQUIRE res A 30000"), "1");
    assert_eq!(ask(conn, "LOCK.RELEASE res A"), "1");
    assert!(server.is_running());
}
