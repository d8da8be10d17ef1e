//! The harness of every test that needs a real server: `mod common;` and `Server::start()`.
//!
//! It starts `redis-server` processes with the module that `cargo test` has just built, each in a
//! temporary folder, with its own loopback port and Unix socket. They end with the `Server` value,
//! with a panicking test, and with the test process itself, however that ends. It never sleeps in
//! order to synchronise: `wait_until` polls with a deadline and reports what it awaited.
//!
//! Environment of the suite:
//! - `LOCKMOD_REDIS_SERVER`: the server binary (another Redis, Valkey). Default: `redis-server`.
//! - `LOCKMOD_MODULE`: the module. Default: the one beside the running test executable.
//! - `LOCKMOD_VALGRIND`: when set, servers run under valgrind, and its complaints fail the tests.
//! - `LOCKMOD_KEEP`: when set, the servers' folders (log, data, state file) are kept.
//!
//! # Where a test goes
//! Each file or folder directly under `tests/` is a separately linked binary: few of them, with
//! modules inside.
//!
//! | binary | modules | tests |
//! |---|---|---|
//! | `tests/node/main.rs` | `commands`, `persistence`, `replication`, `waiting`, ... | one node, the module on a real server |
//! | `tests/client/main.rs` | `acquire`, `renewal`, `faults`, `cli`, ... | the client and the command over real nodes |
//! | `tests/model`, `tests/sim` | | no server: the engine's model check, the client's simulation |
//! | `tests/storm/main.rs` | `driver`, `nemesis`, `history`, ... | five nodes under faults, and plain Redlock beside them |
//! | `tests/languages/main.rs` | `together`, `counting`, `quorum`, `alone`, `shell` | the packages, the reference client and the script in other languages |
//! | `tests/recipes/main.rs` | `fenced`, `leader`, `cron`, `security`, `packaging`, `containers` | what examples and documents recommend, and what is installed |
//! | `tests/docs/main.rs` | | every block of the documents, executed |
//! | `tests/harness.rs` | | this harness itself |
//! | `tests/tidy/main.rs` | | what a machine can check of the style |
//!
//! A `main.rs` in a folder names the harness as `#[path = "../common/mod.rs"] mod common;`.
#![allow(dead_code, reason = "each test binary uses a part of the harness")]
#![allow(unused_imports, reason = "each test binary uses a part of the harness")]
#![allow(unreachable_pub, reason = "each test binary has the harness as a private module")]

mod clock;
mod cluster;
mod disk;
mod places;
mod ports;
pub mod preload;
mod process;
mod proxy;
mod raw;
mod sentinel;
mod server;
mod valgrind;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

pub use clock::{set_offset, wall_clock_env};
pub use cluster::Cluster;
pub use places::{ServerVersion, module_path, server_binary, server_version};
pub use ports::Port;
pub use process::spawn;
pub use proxy::{Flow, Proxy};
pub use raw::RawConnection;
pub use sentinel::{FAILOVER_PATIENCE, GROUP, Group, Sentinel};
pub use server::{Builder, Server, StartError, start_nodes};

/// How long anything may take on a loaded machine before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Reports that a test cannot be run here, and why. `make test` lists such tests at its end: none
/// passes silently.
pub fn skip(test: &str, why: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped");
    let list = OpenOptions::new().create(true).append(true).open(path);
    let written = list.and_then(|mut list| writeln!(list, "{test}: {why}"));
    written.expect("the list of skipped tests can be written");
}

/// Polls until `done` answers true.
///
/// # Panics
/// After [`PATIENCE`], with `what` in the message, at the caller's line.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || done().then_some(()));
}

/// Polls until `probe` returns a value, and returns it.
///
/// # Panics
/// After [`PATIENCE`], with `what` in the message, at the caller's line.
#[track_caller]
pub fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_at_most(PATIENCE, what, probe)
}

/// Like [`wait_for`], with another deadline.
///
/// # Panics
/// After `patience`, with `what` in the message, at the caller's line.
#[track_caller]
pub fn wait_at_most<T>(patience: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < patience, "timed out after {patience:?}, waiting until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a command given as separate arguments of any kind that the redis crate can send.
///
/// `cmd!(conn, "LOCK.ACQUIRE", key, b"\x00\xff", 30_000)` is a `RedisResult<redis::Value>`.
#[allow(unused_macros, reason = "each test binary uses a part of the harness")]
macro_rules! cmd {
    ($conn:expr, $($arg:expr),+ $(,)?) => {{
        let mut cmd = ::redis::Cmd::new();
        $(cmd.arg($arg);)+
        cmd.query::<::redis::Value>(&mut $conn)
    }};
}
pub(crate) use cmd;

/// Runs a command given as one line, split at white space.
///
/// # Errors
/// The server's error reply, or the connection's failure.
pub fn run(conn: &mut redis::Connection, line: &str) -> redis::RedisResult<redis::Value> {
    let args: Vec<&str> = line.split_whitespace().collect();
    run_args(conn, &args)
}

/// Runs a command given as separate arguments of bytes.
///
/// # Errors
/// The server's error reply, or the connection's failure.
pub fn run_args<A: AsRef<[u8]>>(
    conn: &mut redis::Connection,
    args: &[A],
) -> redis::RedisResult<redis::Value> {
    let mut cmd = redis::Cmd::new();
    for arg in args {
        cmd.arg(arg.as_ref());
    }
    cmd.query(conn)
}

/// The error reply's line as the server sent it, without the dash: `"BADTTL ttl must be ..."`.
///
/// # Panics
/// If the command succeeded, or failed without an answer from the server.
#[track_caller]
pub fn error_line(result: redis::RedisResult<redis::Value>) -> String {
    match result {
        Ok(value) => panic!("expected an error reply, got {value:?}"),
        Err(error) => match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            (Some(code), None) => code.to_owned(),
            (None, _) => panic!("expected an error reply, got {error}"),
        },
    }
}
