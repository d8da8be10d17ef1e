//! What a server sends to its replicas and its append-only file, command by command.
//!
//! The absolute end in a fact is shown as its distance from now, if that is as expected:
//! `30000@+30000.7`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::Connection;

use crate::common::{PATIENCE, Server, run};

/// A connection that has asked to be a replica, and reads what it receives.
pub(crate) struct Stream {
    stream: BufReader<UnixStream>,
    marks: u64,
}

impl Stream {
    /// Becomes a replica; earlier commands are not reported.
    pub(crate) fn open(server: &Server) -> Stream {
        let mut stream = UnixStream::connect(server.socket()).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
        stream.write_all(b"SYNC\r\n").expect("the server reads");
        let mut stream = BufReader::new(stream);
        let length = loop {
            // Empty lines keep the connection alive while the data set is being saved.
            let line = read_line(&mut stream).expect("the data set");
            if let Some(length) = line.strip_prefix('$') {
                break length.parse().expect("a length");
            }
        };
        let mut data_set = vec![0; length];
        stream.read_exact(&mut data_set).expect("the data set");
        Stream { stream, marks: 0 }
    }

    /// What was sent since the last call.
    #[track_caller]
    pub(crate) fn told(&mut self, conn: &mut Connection) -> Vec<String> {
        self.marks += 1;
        let mark = format!("PUBLISH told {}", self.marks);
        run(conn, &mark).expect("an answer");
        let mut commands = Vec::new();
        loop {
            let command = read_command(&mut self.stream).expect("a command");
            if command == mark {
                return commands;
            }
            if is_of_interest(&command) {
                commands.push(command);
            }
        }
    }
}

/// The end of a server's append-only file.
pub(crate) struct AppendOnly {
    path: PathBuf,
    read: usize,
}

impl AppendOnly {
    /// From now on.
    pub(crate) fn open(server: &Server) -> AppendOnly {
        let path = server.dir().join("appendonlydir/appendonly.aof.1.incr.aof");
        let read = std::fs::read(&path).expect("an append-only file").len();
        AppendOnly { path, read }
    }

    /// What was written since the last call: the server writes before it answers.
    pub(crate) fn told(&mut self) -> Vec<String> {
        let bytes = std::fs::read(&self.path).expect("an append-only file");
        let mut rest = &bytes[self.read..];
        self.read = bytes.len();
        let commands = std::iter::from_fn(|| read_command(&mut rest));
        commands.filter(|command| is_of_interest(command)).collect()
    }
}

/// The same without the floor: it is told on a tick, which may come at any time.
pub(crate) fn facts(told: Vec<String>) -> Vec<String> {
    told.into_iter().filter(|command| !command.starts_with("LOCK.FLOOR ")).collect()
}

fn is_of_interest(command: &str) -> bool {
    // The server sends its pings in lower case, once a second.
    let name = command.split(' ').next().unwrap_or_default().to_ascii_uppercase();
    !["SELECT", "PING", "REPLCONF"].contains(&name.as_str())
}

fn read_line(input: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    let length = input.read_line(&mut line).expect("a line");
    (length > 0).then(|| line.trim_end().to_owned())
}

fn read_command(input: &mut impl BufRead) -> Option<String> {
    let line = read_line(input)?;
    let count: usize = line.strip_prefix('*').expect("a command").parse().expect("a count");
    let words = (0..count).map(|_| {
        let line = read_line(input).expect("a length");
        let length: usize = line.strip_prefix('$').expect("an argument").parse().expect("a length");
        let mut word = vec![0; length + 2];
        input.read_exact(&mut word).expect("an argument");
        show_fact(&word[..length])
    });
    Some(words.collect::<Vec<_>>().join(" "))
}

/// A fact with its end counted from now, if it ends when a lease of this ttl, granted now, would.
fn show_fact(word: &[u8]) -> String {
    let text = word.escape_ascii().to_string();
    let relative = || {
        let (ttl, fact) = text.split_once('@')?;
        let (end, fence) = fact.split_once('.')?;
        let (ttl, end): (i64, i64) = (ttl.parse().ok()?, end.parse().ok()?);
        let late = unix_ms() + ttl - end;
        (-2..10_000).contains(&late).then(|| format!("{ttl}@+{ttl}.{fence}"))
    };
    relative().unwrap_or(text)
}

/// The present wall-clock time in milliseconds.
pub(crate) fn unix_ms() -> i64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(time.as_millis()).expect("a date of today")
}
