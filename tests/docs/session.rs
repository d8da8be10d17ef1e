//! A bash session for one document, with the servers that the document names.
//!
//! Commands run unchanged, except for two things that are renamed before and renamed back after:
//! the ports, so that many sessions can run at the same time, and the folders outside of the
//! session's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::common::{Port, module_path, server_binary, spawn};

/// The default port of a server.
const DEFAULT_PORT: u16 = 6379;

/// The ports that are replaced here: those of servers, and that of the exporter.
const PORTS: [u16; 15] = [
    DEFAULT_PORT,
    7000,
    7001,
    7002,
    7003,
    7004,
    7005,
    7006,
    7007,
    7008,
    7009,
    7011,
    7012,
    7013,
    EXPORTER_PORT,
];
const EXPORTER_PORT: u16 = 9477;

/// How long one command of a document may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the documents' servers have their folders.
const FOLDERS: &str = "/var/lib/redis";

/// Where the documents' servers find the module.
const MODULE: &str = "/usr/lib/redis/modules/liblockmod.so";

/// Ends the output of a command; no command prints it by chance.
const MARK: &str = "\u{1e}end of output";

/// Commands that are shown to the reader and not run.
const SHOWN_ONLY: [&str; 7] = ["cargo", "make", "git", "sudo", "apt-get", "docker", "cd"];

/// Prints as on a terminal if a reader would see it on one: if the output is the shell's.
const REDIS_CLI: &str = r#"#!/usr/bin/env bash
PATH=${PATH#*:}
options=()
if [ "$(readlink /proc/$$/fd/1)" = "$LOCKMOD_DOCS_TERMINAL" ]; then options+=(--no-raw); fi
case " $* " in
    *" -p "* | *" -s "* | *" -u "* | *" -h "*) ;;
    *) options+=(-p "$LOCKMOD_DOCS_PORT") ;;
esac
exec redis-cli "${options[@]}" "$@"
"#;

/// Starts a server on loopback, with the settings of its line and no others that matter. Returns
/// when the server answers. A background process that it leaves ends the server with the session.
const REDIS_SERVER: &str = r#"#!/usr/bin/env bash
PATH=${PATH#*:}
port=$LOCKMOD_DOCS_PORT
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
        --daemonize) shift ;;
        --port) port=$2; shift ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
place=$LOCKMOD_DOCS_SERVERS/$port
# One that was told to end there may still be about to.
for ((i = 0; i < 3000; i++)); do
    if ! kill -0 "$(cat "$place.pid" 2> /dev/null)" 2> /dev/null; then break; fi
    sleep 0.01
done
if [ $i -eq 3000 ]; then
    echo "the server that had this port has not ended; its log:"
    cat "$place.log"
    exit 1
fi
(
    "$LOCKMOD_DOCS_SERVER" --repl-diskless-sync-delay 0 "${arguments[@]}" \
        --bind 127.0.0.1 --port "$port" > "$place.log" 2>&1 &
    server=$!
    echo "$server" > "$place.pid"
    while kill -0 "$server" && kill -0 "$LOCKMOD_DOCS_SHELL"; do sleep 0.1; done
    kill -KILL "$server"
) > /dev/null 2>&1 &
keeper=$!
until reply=$(timeout 5 redis-cli -p "$port" PING 2> /dev/null) && [[ $reply != LOADING* ]]; do
    if ! kill -0 $keeper 2> /dev/null || [ $SECONDS -gt 50 ]; then
        echo "the server has ended, or does not answer; its log:"
        cat "$place.log"
        exit 1
    fi
    sleep 0.01
done
"#;

/// The shell, its folder, and the ports that replace the document's.
#[derive(Debug)]
pub(crate) struct Session {
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
    dir: TempDir,
    ports: BTreeMap<u16, Port>,
    /// Whether servers are started when they are first named, and those that were started.
    gives_servers: bool,
    started: BTreeSet<u16>,
}

impl Session {
    /// A session that starts the servers that a document names but does not start itself.
    pub(crate) fn with_servers() -> Self {
        Self::new(true)
    }

    /// A session that contains only what the document starts.
    pub(crate) fn bare() -> Self {
        Self::new(false)
    }

    fn new(gives_servers: bool) -> Self {
        let dir = tempfile::tempdir().expect("the folder for temporary files can be written");
        let ports: BTreeMap<u16, Port> = PORTS.map(|shown| (shown, Port::reserve())).into();
        let mut command = Command::new("bash");
        command
            .args(["--noprofile", "--norc"])
            .current_dir(dir.path())
            .env("PATH", furnish(dir.path()))
            .env("HOME", dir.path())
            .env("LC_ALL", "C.UTF-8")
            .env("LOCKMOD_DOCS_PORT", ports[&DEFAULT_PORT].number().to_string())
            .env("LOCKMOD_DOCS_SERVER", server_binary())
            .env("LOCKMOD_DOCS_SERVERS", dir.path().join("servers"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut shell = spawn(command).expect("bash runs");
        let mut input = shell.stdin.take().expect("piped");
        let stdout = BufReader::new(shell.stdout.take().expect("piped"));
        let (lines, output) = channel();
        std::thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        input
            .write_all(
                b"exec 2>&1; export LOCKMOD_DOCS_SHELL=$$\n\
                  export LOCKMOD_DOCS_TERMINAL=$(readlink /proc/$$/fd/1)\n\
                  redis-server() { \"$LOCKMOD_DOCS_SERVERS/start\" \"$@\"; }\n",
            )
            .expect("bash reads");
        Self { shell, input, output, dir, ports, gives_servers, started: BTreeSet::new() }
    }

    /// The output of a command; empty if the command is only shown.
    ///
    /// # Errors
    /// If a server cannot be started, the shell ends, or the command does not end.
    pub(crate) fn run(&mut self, command: &str) -> Result<Option<String>, String> {
        let program = command.split_whitespace().next().unwrap_or_default();
        if SHOWN_ONLY.contains(&program) {
            return Ok(None);
        }
        if program == "redis-server" {
            self.started.insert(port_of(command));
        } else if self.gives_servers {
            self.give_servers(command)?;
        }
        // The wrapper returns, even if the reader needs the terminal back.
        let is_server = program == "redis-server";
        let command = if is_server { command.trim_end().trim_end_matches('&') } else { command };
        let output = self.run_in_shell(&self.with_real_places(command))?;
        Ok(Some(self.with_shown_places(&output)))
    }

    fn run_in_shell(&mut self, command: &str) -> Result<String, String> {
        // In the shell itself, so that variables last; the exit code is kept for `$?`.
        let script = format!(
            "{{\n{command}\n}} < /dev/null\n\
             __status=$?; printf '\\n%s\\n' '{MARK}'; (exit $__status)\n"
        );
        let ended = || "the shell has ended".to_owned();
        self.input.write_all(script.as_bytes()).map_err(|_| ended())?;
        let mut lines = Vec::new();
        loop {
            match self.output.recv_timeout(PATIENCE) {
                Ok(line) if line == MARK => break,
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no end after {PATIENCE:?}; so far: {lines:?}"));
                }
            }
        }
        Ok(lines.join("\n").trim_end_matches('\n').to_owned())
    }

    // ---- servers ----

    /// Starts the servers that a command names; `redis-cli` alone names the default one.
    fn give_servers(&mut self, command: &str) -> Result<(), String> {
        // A folder is made before the document starts the server that it is for.
        let words = command.split_whitespace().filter(|word| !word.contains(FOLDERS));
        let named: BTreeSet<u16> = words
            .flat_map(numbers)
            .filter_map(|number| number.parse().ok())
            .filter(|port| PORTS.contains(port) && ![DEFAULT_PORT, EXPORTER_PORT].contains(port))
            .collect();
        for port in named {
            self.give(port)?;
        }
        let mut calls = command.split("redis-cli").skip(1);
        if calls.any(|rest| !rest.starts_with(" -p ") && !rest.starts_with(" -u ")) {
            self.give(DEFAULT_PORT)?;
        }
        Ok(())
    }

    fn give(&mut self, port: u16) -> Result<(), String> {
        if !self.started.insert(port) {
            return Ok(());
        }
        let folder = format!("{FOLDERS}/{port}");
        let start = format!(
            "mkdir -p {folder} && redis-server --port {port} --dir {folder} --save '' \
             --loadmodule {MODULE}"
        );
        let output = self.run_in_shell(&self.with_real_places(&start))?;
        if output.is_empty() { Ok(()) } else { Err(output) }
    }

    // ---- places ----

    fn with_real_places(&self, command: &str) -> String {
        let folders = format!("{}{FOLDERS}", self.dir.path().display());
        let command = command.replace(MODULE, &module_path().display().to_string());
        with_numbers(&command.replace(FOLDERS, &folders), |number| {
            Some(self.ports.get(&number)?.number())
        })
    }

    fn with_shown_places(&self, output: &str) -> String {
        let folders = format!("{}{FOLDERS}", self.dir.path().display());
        let output = output.replace(&folders, FOLDERS);
        with_numbers(&output.replace(&module_path().display().to_string(), MODULE), |number| {
            let shown = |(shown, port): (&u16, &Port)| (port.number() == number).then_some(*shown);
            self.ports.iter().find_map(shown)
        })
    }
}

/// Puts into the session's folder what a reader has: the programs, in a folder that comes first in
/// the returned `PATH`, and the contents of the repository and its build.
fn furnish(dir: &Path) -> String {
    let bin = dir.join("bin");
    let release = dir.join("target/release");
    for folder in [&bin, &release, &dir.join("servers")] {
        fs::create_dir_all(folder).expect("the folder is ours");
    }
    // The server's wrapper is for the shell alone: programs that start servers need the real one.
    for (file, script) in [("bin/redis-cli", REDIS_CLI), ("servers/start", REDIS_SERVER)] {
        let file = dir.join(file);
        fs::write(&file, script).expect("the folder is ours");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a file of ours");
    }
    // Missing if its feature is off; then documents that use it fail, and report it.
    if let Some(lockmod) = option_env!("CARGO_BIN_EXE_lockmod") {
        symlink(lockmod, bin.join("lockmod")).expect("the folder is ours");
        symlink(lockmod, release.join("lockmod")).expect("the folder is ours");
    }
    symlink(module_path(), release.join("liblockmod.so")).expect("the folder is ours");
    for name in ["docs", "examples", "packaging"] {
        symlink(super::root().join(name), dir.join(name)).expect("the folder is ours");
    }
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default())
}

/// The port in a line that starts a server.
fn port_of(command: &str) -> u16 {
    let port = command.split("--port ").nth(1).and_then(|rest| numbers(rest).next());
    port.and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT)
}

fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty())
}

/// The text with some of its whole numbers replaced.
fn with_numbers(text: &str, replacement: impl Fn(u16) -> Option<u16>) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = &rest[start..];
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let number = &digits[..end];
        replaced.push_str(&rest[..start]);
        match number.parse().ok().and_then(&replacement) {
            Some(other) => replaced.push_str(&other.to_string()),
            None => replaced.push_str(number),
        }
        rest = &digits[end..];
    }
    replaced + rest
}

#[test]
fn whole_numbers_are_replaced_and_no_parts_of_others() {
    let replaced = |text| with_numbers(text, |number| (number == 7001).then_some(17001));
    assert_eq!(replaced("-p 7001 a-7001.b 7001"), "-p 17001 a-17001.b 17001");
    assert_eq!(replaced("70010 17001 4000000000007001"), "70010 17001 4000000000007001");
}

impl Drop for Session {
    fn drop(&mut self) {
        // The whole group: background processes of the document end as well.
        let pid = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw);
        let _ = kill_process_group(pid.expect("a process id"), Signal::KILL);
        let _ = self.shell.wait();
    }
}
