//! A bash session for one document, with the servers that the document speaks of.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::common::{Builder, Server, module_path, spawn};

/// The port on which a document's own server is taken to listen.
const DEFAULT_PORT: u16 = 6379;

/// How long one command of a document may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a server that the document has stopped may take to end.
const END: Duration = Duration::from_secs(1);

/// What stands before a port where it is one of a server.
const BEFORE_PORT: [&str; 3] = [":", "-p ", "127.0.0.1 "];

/// Where the documents' servers have their folders, each by its port.
const FOLDERS: &str = "/var/lib/redis/";

/// Ends the output of a command; nothing prints it by chance.
const MARK: &str = "\u{1e}end of output";

/// Commands that are shown to the reader and not run.
const SHOWN_ONLY: [&str; 8] = ["cargo", "make", "git", "sudo", "apt-get", "docker", "curl", "cd"];

/// Prints as on a terminal where a reader would see it on one: where the output is the shell's own.
const REDIS_CLI: &str = r#"#!/usr/bin/env bash
PATH=${PATH#*:}
options=()
if [ "$(readlink /proc/$$/fd/1)" = "$LOCKMOD_DOCS_TERMINAL" ]; then options+=(--no-raw); fi
case " $* " in
    *" -p "* | *" -s "* | *" -u "* | *" -h "*) ;;
    *) options+=(-s "$(cat "$LOCKMOD_DOCS_SOCKET")") ;;
esac
exec redis-cli "${options[@]}" "$@"
"#;

/// The shell, its folder, and the servers by the ports that the document gives them.
#[derive(Debug)]
pub(crate) struct Session {
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
    dir: TempDir,
    servers: BTreeMap<u16, Server>,
}

impl Session {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("the folder for temporary files can be written");
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).expect("the folder is ours");
        let redis_cli = bin.join("redis-cli");
        fs::write(&redis_cli, REDIS_CLI).expect("the folder is ours");
        fs::set_permissions(&redis_cli, fs::Permissions::from_mode(0o755)).expect("a file of ours");
        // Not built where its feature is off; then documents that use it fail, and say so.
        if let Some(lockmod) = option_env!("CARGO_BIN_EXE_lockmod") {
            symlink(lockmod, bin.join("lockmod")).expect("the folder is ours");
        }
        let examples = super::root().join("examples");
        symlink(examples, dir.path().join("examples")).expect("the folder is ours");

        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command
            .args(["--noprofile", "--norc"])
            .current_dir(dir.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", dir.path())
            .env("LC_ALL", "C.UTF-8")
            .env("LOCKMOD_DOCS_SOCKET", dir.path().join("socket"))
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
            .write_all(b"exec 2>&1; export LOCKMOD_DOCS_TERMINAL=$(readlink /proc/$$/fd/1)\n")
            .expect("bash reads");
        Self { shell, input, output, dir, servers: BTreeMap::new() }
    }

    /// What a command prints; nothing if it is one that is only shown.
    ///
    /// # Errors
    /// If a server does not start, the shell ends, or the command does not.
    pub(crate) fn run(&mut self, command: &str) -> Result<Option<String>, String> {
        let program = command.split_whitespace().next().unwrap_or_default();
        if SHOWN_ONLY.contains(&program) {
            return Ok(None);
        }
        if program == "redis-server" {
            return self.start_server(command).map(|()| Some(String::new()));
        }
        let command = self.with_real_places(command)?;
        self.run_in_shell(&command).map(|output| Some(self.with_shown_ports(&output)))
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

    /// `redis-server [file] [--name values...]... [&]`, in earnest.
    fn start_server(&mut self, command: &str) -> Result<(), String> {
        let mut text = String::new();
        let mut words = command.split_whitespace().skip(1).peekable();
        if let Some(file) = words.next_if(|word| !word.starts_with("--") && *word != "&") {
            let path = super::root().join(file);
            text = fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
        }
        for word in words.take_while(|word| !word.starts_with('#') && *word != "&") {
            match word.strip_prefix("--") {
                Some(name) => text.push_str(&format!("\n{name}")),
                None => text.push_str(&format!(" {word}")),
            }
        }
        let setting = |name: &str| {
            let mut lines = text.lines().map(str::trim_start);
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::trim))
        };
        let port = setting("port").and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
        let has_module = setting("loadmodule").is_some();
        let builder = Server::builder().config_text(&text);
        self.add(port, if has_module { builder } else { builder.without_module() })
    }

    fn add(&mut self, port: u16, builder: Builder) -> Result<(), String> {
        let server = match self.servers.remove(&port).and_then(stopped) {
            Some(mut server) => {
                server.reconfigure(|_| builder);
                server.try_start_again().map(|()| server)
            }
            // What listened there before ends first, as it would have to.
            None => builder.try_start(),
        };
        let server = server.map_err(|error| error.to_string())?;
        if port == DEFAULT_PORT || self.servers.is_empty() {
            let socket = server.socket().display().to_string();
            fs::write(self.dir.path().join("socket"), socket).expect("the folder is ours");
        }
        self.servers.insert(port, server);
        Ok(())
    }

    /// The command with ports and paths of this machine, after starting what it speaks of.
    fn with_real_places(&mut self, command: &str) -> Result<String, String> {
        let mut command = command.to_owned();
        for port in (7000..=7009).chain([DEFAULT_PORT]) {
            let folder = format!("{FOLDERS}{port}");
            if command.contains(&folder) {
                let server =
                    self.servers.entry(port).or_insert_with(|| Server::builder().prepare());
                let file = |port| format!("lockmod-{port}.state");
                command = command
                    .replace(&folder, &server.dir().display().to_string())
                    .replace(&file(port), &file(server.port()));
            }
            let is_named =
                BEFORE_PORT.iter().any(|before| command.contains(&format!("{before}{port}")));
            let is_default = self.servers.is_empty() && command.contains("redis-cli");
            if is_named || (is_default && port == DEFAULT_PORT) {
                if !self.servers.contains_key(&port) {
                    self.add(port, Server::builder())?;
                }
                let real = self.servers[&port].port();
                for before in BEFORE_PORT {
                    command =
                        command.replace(&format!("{before}{port}"), &format!("{before}{real}"));
                }
            }
        }
        if command.contains("liblockmod.so") {
            let module = module_path().display().to_string();
            command = command.replace("target/release/liblockmod.so", &module);
        }
        Ok(command
            .replace("./target/release/lockmod", "lockmod")
            .replace("target/release/lockmod", "lockmod"))
    }

    fn with_shown_ports(&self, output: &str) -> String {
        self.servers.iter().fold(output.to_owned(), |output, (shown, server)| {
            output
                .replace(&server.dir().display().to_string(), &format!("{FOLDERS}{shown}"))
                .replace(&server.port().to_string(), &shown.to_string())
        })
    }
}

/// The server, if it has been stopped by the document: it starts again where it was.
fn stopped(mut server: Server) -> Option<Server> {
    let since = Instant::now();
    while server.is_running() {
        if since.elapsed() > END {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    Some(server)
}

impl Drop for Session {
    fn drop(&mut self) {
        // The group: what the document left in the background ends as well.
        let pid = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw);
        let _ = kill_process_group(pid.expect("a process id"), Signal::KILL);
        let _ = self.shell.wait();
    }
}
