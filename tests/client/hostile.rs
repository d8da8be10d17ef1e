//! Text from others never reaches a terminal unescaped: labels, lock names and the texts of
//! servers.
//!
//! Regression: `list`, `info` and a contended `run` printed a label's `ESC[2J` unescaped. Here
//! every existing command meets hostile nodes: the test fails for a new command until a trial for
//! it is added below.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};

use crate::cli::{NO_TOKEN, lockmod, succeeds, text};
use crate::common::Server;
use crate::nodes;
use crate::output::commands;
use crate::screen::Screen;

/// Clears a screen, sets its title, forges a line, begins a sequence with a single character, turns
/// the direction of the text around, and hides a character.
const HOSTILE: &str = "a\x1b[2J\x1b]0;t\x07\r\nlockmod: b\u{9b}2J\u{202e}c\u{200b}\u{feff}";
const SHOWN: &str = r"a\x1b[2J\x1b]0;t\x07\r\nlockmod: b\u{9b}2J\u{202e}c\u{200b}\u{feff}";

/// How a command is tried: its arguments, or the reason why it need not be.
enum Trial {
    Args(&'static [&'static str]),
    PrintsOnlyItsOwn,
    AtTheTerminal,
}

fn trial(command: &str) -> Trial {
    match command {
        "run" => Trial::Args(&["run", HOSTILE, "--wait", "50ms", "--", "true"]),
        "lock" => Trial::Args(&["lock", HOSTILE, "--wait", "50ms"]),
        "acquire" => Trial::Args(&["acquire", HOSTILE]),
        "release" => Trial::Args(&["release", HOSTILE, NO_TOKEN]),
        "extend" => Trial::Args(&["extend", HOSTILE, NO_TOKEN]),
        "fence" => Trial::Args(&["fence", HOSTILE]),
        "info" => Trial::Args(&["info", HOSTILE]),
        "list" => Trial::Args(&["list"]),
        "status" => Trial::Args(&["status"]),
        "top" => Trial::AtTheTerminal,
        "exporter" | "nodes" | "demo" | "completions" | "man" => Trial::PrintsOnlyItsOwn,
        other => panic!("say here how `lockmod {other}` is tried with hostile nodes"),
    }
}

/// The trials of all commands, with and without `--json` if the command has that option.
fn trials() -> Vec<Vec<&'static str>> {
    let mut trials = Vec::new();
    for command in commands(&succeeds(&[], &["--help"])) {
        let Trial::Args(args) = trial(&command) else { continue };
        trials.push(args.to_vec());
        if succeeds(&[], &[&command, "--help"]).contains("--json") {
            trials.push([args, &["--json"]].concat());
        }
    }
    // This one comes last, because it takes the lock away.
    trials.push(vec!["release", "--force", HOSTILE]);
    trials
}

fn is_plain(c: char) -> bool {
    // The characters of the hostile text, and all other control characters.
    c == '\n' || !(c.is_control() || ['\u{202e}', '\u{200b}', '\u{feff}'].contains(&c))
}

#[track_caller]
fn assert_harmless(nodes: &[Server], args: &[&str]) -> String {
    let mut command = lockmod(nodes, args);
    let Output { stdout, stderr, .. } = command.stderr(Stdio::piped()).output().unwrap();
    let said = text(&stdout) + &text(&stderr);
    assert!(said.chars().all(is_plain), "{args:?}: {said:?}");
    assert!(!said.contains("\nlockmod: b"), "a line is forged by {args:?}: {said}");
    said
}

#[test]
fn labels_and_names_are_escaped_by_every_command() {
    let nodes = nodes(3);
    for node in &nodes {
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(HOSTILE).arg("token").arg(600_000).arg("LABEL").arg(HOSTILE);
        acquire.exec(&mut node.connect()).unwrap();
    }
    let mut shown = 0;
    for args in trials() {
        let said = assert_harmless(&nodes, &args);
        shown += usize::from(said.contains(SHOWN));
    }
    assert!(shown >= 6, "the label or the name is still to be read: {shown}");
}

#[test]
fn a_terminal_shows_labels_and_names_escaped() {
    let nodes = nodes(1);
    succeeds(&nodes, &["acquire", HOSTILE, "--label", HOSTILE]);
    for args in [&["top", "--every", "100ms"][..], &["run", HOSTILE, "--wait", "1m", "--", "true"]]
    {
        let mut screen = Screen::start(&lockmod(&nodes, args), (230, 20));
        screen.wait_for("the label is shown", |text| text.contains(SHOWN));
        assert!(screen.text().chars().all(is_plain), "{:?}", screen.text());
        screen.press("\x03");
        screen.end();
    }
}

/// A server that answers every command with this error.
fn liar() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || lie(stream));
        }
    });
    port
}

fn lie(mut stream: TcpStream) {
    // A line end would end the error.
    let error = HOSTILE.replace("\r\n", "");
    let reply = format!("-NOPERM {error}\r\n");
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        // Every command is an array; its words here have no asterisks.
        let commands = bytes[..count].iter().filter(|&&byte| byte == b'*').count();
        if stream.write_all(reply.repeat(commands).as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn texts_of_servers_are_escaped_by_every_command() {
    let urls: Vec<String> = (0..3).map(|_| format!("redis://127.0.0.1:{}", liar())).collect();
    let urls = urls.join(",");
    let mut shown = 0;
    for mut args in trials() {
        let at = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        args.splice(at..at, ["--nodes", &urls]);
        let said = assert_harmless(&[], &args);
        shown += usize::from(said.contains(r"2J\u{202e}c"));
    }
    assert!(shown >= 8, "what the servers say is still to be read: {shown}");
}
