//! Asks a server in one line, and reads the answer as one line: for tables of tests.

use redis::{Connection, RedisResult, Value};

use crate::common::{Server, error_line, run, run_args, wait_until};

/// The answer to a command given as one line, cut at white space.
#[track_caller]
pub(crate) fn ask(conn: &mut Connection, line: &str) -> String {
    show(run(conn, line))
}

/// The answer to a command given as separate arguments.
#[track_caller]
pub(crate) fn ask_args<A: AsRef<[u8]>>(conn: &mut Connection, args: &[A]) -> String {
    show(run_args(conn, args))
}

/// Asks each line and compares the answer.
#[track_caller]
pub(crate) fn ask_all(conn: &mut Connection, table: &[(&str, &str)]) {
    for (line, answer) in table {
        assert_eq!(ask(conn, line), *answer, "{line}");
    }
}

/// An answer as one line: `7`, `nil`, `OK`, `text`, `[1 nil]`; an error as the server's own line.
#[track_caller]
pub(crate) fn show(result: RedisResult<Value>) -> String {
    match result {
        Ok(value) => show_value(&value),
        Err(error) => error_line(Err(error)),
    }
}

fn show_value(value: &Value) -> String {
    let list = |values: &[Value]| values.iter().map(show_value).collect::<Vec<_>>().join(" ");
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Okay => "OK".to_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::BulkString(bytes) => bytes.escape_ascii().to_string().replace(r"\'", "'"),
        Value::Array(values) => format!("[{}]", list(values)),
        other => format!("{other:?}"),
    }
}

/// The bytes of an answer that is text.
#[track_caller]
pub(crate) fn bytes<A: AsRef<[u8]>>(conn: &mut Connection, args: &[A]) -> Vec<u8> {
    match run_args(conn, args) {
        Ok(Value::BulkString(bytes)) => bytes,
        other => panic!("expected bytes, got {other:?}"),
    }
}

/// A field of `LOCK.INFO`.
#[track_caller]
pub(crate) fn field(conn: &mut Connection, key: &str, name: &str) -> String {
    let Ok(Value::Array(map)) = run_args(conn, &["LOCK.INFO", key]) else {
        panic!("LOCK.INFO {key} is not a map");
    };
    let mut pairs = map.chunks(2).map(|pair| (show_value(&pair[0]), show_value(&pair[1])));
    pairs.find(|(found, _)| found == name).unwrap_or_else(|| panic!("no field {name}")).1
}

/// How long a lease still lasts, in milliseconds.
#[track_caller]
pub(crate) fn left_ms(conn: &mut Connection, key: &str) -> u64 {
    field(conn, key, "ttl_left_ms").parse().expect("a number")
}

/// The server's digest of all its data.
#[track_caller]
pub(crate) fn digest(conn: &mut Connection) -> String {
    ask(conn, "DEBUG DIGEST")
}

/// Lets the lease on `key` end by itself.
#[track_caller]
pub(crate) fn wait_for_lapse(conn: &mut Connection, key: &str) {
    wait_until("the lease has ended", || field(conn, key, "state") == "free");
}

/// Lets the server's cron run for more than a second.
#[track_caller]
pub(crate) fn wait_for_cron(server: &Server) {
    let since = server.info_u64("uptime_in_seconds");
    wait_until("the server's cron has run for a second", || {
        server.info_u64("uptime_in_seconds") >= since + 2
    });
}
