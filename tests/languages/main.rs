//! Locks from other languages, over real nodes and beside the Rust client and the command.
//!
//! Python and Node.js have packages on the Rust client; beside them stands the reference of the
//! quorum protocol, a file for writers of other clients. Each has a worker (`worker.py`,
//! `worker.js`, `reference.js`) that reads commands from its input, does them, and says what came
//! of it. So one test, written once, holds for all of them. `make deps` installs their libraries
//! into `target/languages`; the packages are built here.

#[path = "../common/mod.rs"]
mod common;

mod alone;
mod conformance;
mod counting;
mod fields;
mod package;
mod quorum;
mod readers;
mod shell;
mod together;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::{fmt, fs, thread};

use common::{PATIENCE, Server, spawn, start_nodes};
use redis::Value;
use tempfile::TempDir;

/// Everything that has locks over a quorum.
const LANGUAGES: [Language; 3] = [Language::Python, Language::Node, Language::Reference];

#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    Node,
    Reference,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where `make deps` puts what the languages need.
fn installed(path: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("within target");
    let path = target.join("languages").join(path);
    assert!(path.exists(), "there is no {}: run `make deps`", path.display());
    path
}

/// Node.js with a program of these files, in a folder where it finds what it imports.
fn with_modules(folder: &Path, files: &[&str], program: &str) -> Command {
    let place = |name: &str| folder.join(name);
    for file in files {
        let name = file.rsplit('/').next().expect("a path");
        fs::copy(root().join(file), place(name)).expect("the folder is ours");
    }
    fs::write(place("package.json"), r#"{ "type": "module" }"#).expect("the folder is ours");
    symlink(installed("node/node_modules"), place("node_modules")).expect("the folder is ours");
    let mut command = Command::new("node");
    command.arg(place(program));
    command
}

/// A process in another language that does what it is told.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
    _folder: TempDir,
}

/// The command of a worker, and the folder with its files.
fn worker(language: Language) -> (Command, TempDir) {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let command = match language {
        Language::Python => {
            let mut command = Command::new(package::python());
            command.arg(root().join("tests/languages/worker.py"));
            command
        }
        Language::Node => {
            package::node();
            with_modules(folder.path(), &["tests/languages/worker.js"], "worker.js")
        }
        Language::Reference => {
            let files = ["tests/languages/reference.js", "packages/reference/lockmod.js"];
            with_modules(folder.path(), &files, "reference.js")
        }
    };
    (command, folder)
}

impl Worker {
    fn start(language: Language, nodes: &[Server], label: &str) -> Worker {
        let (mut command, folder) = worker(language);
        let urls: Vec<String> = nodes.iter().map(Server::url).collect();
        command
            .env("LOCKMOD_NODES", urls.join(","))
            .env("LOCKMOD_LABEL", label)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn(command).unwrap_or_else(|e| panic!("{language:?}: {e}"));
        let input = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (lines, output) = channel();
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        Worker { child, input, output, _folder: folder }
    }

    /// Tells it what to do, without waiting for the answer.
    fn tell(&mut self, command: impl fmt::Display) {
        writeln!(self.input, "{command}").expect("the worker reads");
    }

    /// What it says next.
    #[track_caller]
    fn hear(&self) -> String {
        self.output.recv_timeout(PATIENCE * 2).expect("the worker answers")
    }

    #[track_caller]
    fn ask(&mut self, command: impl fmt::Display) -> String {
        self.tell(command);
        self.hear()
    }

    /// The fence that the command was answered with.
    #[track_caller]
    fn fence(&mut self, command: impl fmt::Display) -> i64 {
        let reply = self.ask(command);
        reply.parse().unwrap_or_else(|_| panic!("not a fence: {reply}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nodes that forget nothing when they are killed, so that they come back without quarantine.
fn nodes(count: usize) -> Vec<Server> {
    start_nodes(count, |_| {
        Server::builder().config("appendonly", "yes").config("appendfsync", "always")
    })
}

/// A field of what a node tells about a lock; `Nil` if it leaves the field out.
fn info(node: &Server, name: &str, field: &str) -> Value {
    let mut conn = node.connect();
    let Ok(Value::Array(fields)) = redis::cmd("LOCK.INFO").arg(name).query(&mut conn) else {
        panic!("{name} is not described");
    };
    let mut pairs = fields.chunks_exact(2);
    let found = pairs.find(|pair| pair[0] == Value::BulkString(field.into()));
    found.map_or(Value::Nil, |pair| pair[1].clone())
}

/// The label of a lock's holder on one node; `None` if nobody holds it there.
fn holder(node: &Server, name: &str) -> Option<String> {
    let text = |field| match info(node, name, field) {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    };
    (text("state") == "held").then(|| text("label"))
}

/// How many stand in line for a lock on one node.
fn waiters(node: &Server, name: &str) -> Value {
    info(node, name, "waiters")
}

/// On how many nodes it is held by whoever has this label.
fn leases(nodes: &[Server], name: &str, label: &str) -> usize {
    nodes.iter().filter(|node| holder(node, name).as_deref() == Some(label)).count()
}

fn fence(node: &Server, name: &str) -> i64 {
    let Ok(Value::Int(fence)) = node.run(&format!("LOCK.FENCE {name}")) else {
        panic!("{name} has no fence");
    };
    fence
}
