//! Local nodes: `redis-server` processes with the module, in a temporary folder, on loopback.
//!
//! For trying things out. They forget nothing when they are killed (every write is synced), and
//! they go with the process that started them, also when that is ended by KILL.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::args::{Cluster, Nodes};
use super::failure::{Failure, warn};
use super::signals::Signals;
use super::{out, tie};
use crate::client::{Locker, NodeReport, Vote};

/// How long a node may take to answer after its start.
const START_MAX: Duration = Duration::from_secs(10);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How often it is looked whether a server has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many lines of a log are shown.
const LAST_LINES: usize = 2;

pub(super) async fn nodes(args: Nodes) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let mut cluster = LocalNodes::prepare(&args.cluster, args.count.into(), args.port)?;
    cluster.start_all()?;
    let locker = Locker::builder().nodes(cluster.urls()).allow_even_nodes().build()?;
    tokio::select! {
        answering = answering(&locker, &mut cluster) => answering?,
        // They may take long, and are wanted no more.
        signal = signals.next() => return Err(Failure::interrupted(signal)),
    }
    let (count, folder) = (cluster.nodes.len(), cluster.folder.display());
    let what = if count == 1 { "1 node" } else { &*format!("{count} nodes") };
    let mut lines = vec![
        format!("{what} in {folder}; Ctrl-C ends {}", if count == 1 { "it" } else { "them" }),
        format!("export LOCKMOD_NODES={}", cluster.urls().join(",")),
    ];
    if count.is_multiple_of(2) {
        lines.push("an even number of nodes: every command needs --even".to_owned());
    }
    out::lines(lines)?;
    tokio::select! {
        ended = cluster.attend() => ended,
        _ = signals.next() => {
            out::remove_echo();
            Ok(())
        }
    }
}

/// Waits until all nodes answer.
///
/// # Errors
/// As soon as one has ended, and if they do not answer in time; with what the server says.
pub(super) async fn answering(locker: &Locker, cluster: &mut LocalNodes) -> Result<(), Failure> {
    let (count, deadline) = (cluster.nodes.len(), Instant::now() + START_MAX);
    loop {
        let reports = locker.settle().await;
        let answering = reports.iter().filter(|report| report.vote == Vote::Confirmed).count();
        if answering >= count {
            return Ok(());
        }
        if let Some((index, ended)) = cluster.first_ended()? {
            let (server, said) = (cluster.server.display(), cluster.last_words(index));
            let text = format!("{server} ended instead of serving ({ended}): {said}");
            return Err(Failure::new(Failure::FAILED, text));
        }
        if Instant::now() >= deadline {
            let is_silent = |report: &&NodeReport| report.vote != Vote::Confirmed;
            let silent = reports.iter().position(|report| is_silent(&report)).unwrap_or(0);
            let said = cluster.last_words(silent);
            let text = format!("only {answering} of {count} nodes answer; of another: {said}");
            return Err(Failure::new(Failure::FAILED, text));
        }
        sleep(ASK_EVERY).await;
    }
}

/// Some nodes and their folder, both gone when this is dropped.
pub(super) struct LocalNodes {
    pub(super) folder: PathBuf,
    server: PathBuf,
    module: PathBuf,
    pub(super) nodes: Vec<Node>,
}

pub(super) struct Node {
    pub(super) port: u16,
    process: Option<Child>,
}

impl LocalNodes {
    /// Chooses the ports: from `first` on, or those that are free.
    pub(super) fn prepare(
        args: &Cluster,
        count: u16,
        first: Option<u16>,
    ) -> Result<LocalNodes, Failure> {
        let module = match &args.module {
            Some(module) => module.canonicalize().map_err(|error| {
                let text = format!("no module at {}: {error}", module.display());
                Failure::usage(text)
            })?,
            None => installed_module().ok_or_else(|| {
                let text = "there is no liblockmod.so beside this program, nor where `make \
                            install` puts it: give its path with --module";
                Failure::usage(text)
            })?,
        };
        // All at once, so that no two get the same one.
        let listeners: Vec<TcpListener> = (0..count)
            .map(|index| listen(first.map_or(Some(0), |first| first.checked_add(index))))
            .collect::<Result<_, _>>()?;
        let node = |listener: &TcpListener| {
            Ok::<_, std::io::Error>(Node { port: listener.local_addr()?.port(), process: None })
        };
        let nodes = listeners.iter().map(node).collect::<Result<_, _>>()?;
        let folder = std::env::temp_dir().join(format!("lockmod-nodes-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| {
            Failure::new(Failure::FAILED, format!("cannot make {}: {error}", folder.display()))
        })?;
        Ok(LocalNodes { folder, server: args.server.clone(), module, nodes })
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect()
    }

    pub(super) fn start_all(&mut self) -> Result<(), Failure> {
        (0..self.nodes.len()).try_for_each(|index| self.start(index))
    }

    pub(super) fn start(&mut self, index: usize) -> Result<(), Failure> {
        let node = &mut self.nodes[index];
        let folder = folder_of(&self.folder, index);
        fs::create_dir_all(&folder)?;
        let port = node.port.to_string();
        // What comes before there is a log: complaints about settings, or another program's words.
        let words = File::create(words_of(&folder))?;
        let mut arguments: Vec<OsString> = ["--bind", "127.0.0.1", "--port", &port, "--save", ""]
            .into_iter()
            .chain(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
            .map(OsString::from)
            .collect();
        arguments.extend([folder.clone().into(), "--logfile".into(), log_of(&folder).into()]);
        arguments.extend(["--loadmodule".into(), self.module.clone().into()]);
        let process = spawn(&self.server, &arguments, &words).map_err(|error| {
            let server = self.server.display();
            let text = format!("cannot start {server}: {error}; --server names the server");
            Failure::new(Failure::FAILED, text)
        })?;
        node.process = Some(process);
        Ok(())
    }

    /// Kills a node, as a power failure would.
    pub(super) async fn kill(&mut self, index: usize) -> Result<(), Failure> {
        if let Some(mut process) = self.nodes[index].process.take() {
            process.kill().await?;
        }
        Ok(())
    }

    /// The first server that has ended by itself, and how.
    fn first_ended(&mut self) -> std::io::Result<Option<(usize, ExitStatus)>> {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if let Some(process) = &mut node.process
                && let Some(status) = process.try_wait()?
            {
                return Ok(Some((index, status)));
            }
        }
        Ok(None)
    }

    /// Tells of each server that ends.
    ///
    /// # Errors
    /// When none is left.
    async fn attend(&mut self) -> Result<(), Failure> {
        while self.nodes.iter().any(|node| node.process.is_some()) {
            sleep(LOOK_EVERY).await;
            while let Some((index, status)) = self.first_ended()? {
                let log = log_of(&folder_of(&self.folder, index));
                let node = &mut self.nodes[index];
                node.process = None;
                let (port, log) = (node.port, log.display());
                warn(format_args!("node 127.0.0.1:{port} has ended ({status}): see {log}"), false);
            }
        }
        Err(Failure::new(Failure::FAILED, "no node is left"))
    }

    /// What a server said last.
    fn last_words(&self, index: usize) -> String {
        let folder = folder_of(&self.folder, index);
        let read = |file| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
        let (log, words) = (read(log_of(&folder)), read(words_of(&folder)));
        let lines = |text: &str| text.lines().filter_map(message).map(str::to_owned).collect();
        let lines: Vec<String> = if log.is_empty() { lines(&words) } else { lines(&log) };
        match &lines[lines.len().saturating_sub(LAST_LINES)..] {
            [] => "it said nothing".to_owned(),
            last => last.join("; "),
        }
    }
}

/// Starts a server that goes with this process, also where that is killed; where the system cannot
/// see to that, one that does not.
fn spawn(server: &Path, arguments: &[OsString], words: &File) -> std::io::Result<Child> {
    tie::find(server.as_os_str())?;
    let mut plain = std::process::Command::new(server);
    plain.args(arguments);
    let start = |command: std::process::Command| {
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words.try_clone()?);
        command.process_group(0).kill_on_drop(true).spawn()
    };
    start(tie::tied(server, arguments)).or_else(|_| start(plain))
}

/// The module that was built or installed with this program.
fn installed_module() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let places = ["liblockmod.so", "../lib/redis/modules/liblockmod.so"];
    places.iter().find_map(|place| folder.join(place).canonicalize().ok())
}

/// What a line of a log says, without who and when; `None` if nothing.
fn message(line: &str) -> Option<&str> {
    let is_warning = line.split_once(" # ").map(|(_, message)| message);
    Some(is_warning.unwrap_or(line).trim()).filter(|message| !message.is_empty())
}

/// Reserves a port; `None` is the one above the last.
fn listen(port: Option<u16>) -> Result<TcpListener, Failure> {
    let port = port.ok_or_else(|| Failure::usage("there is no port above 65535"))?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
        Failure::new(Failure::FAILED, format!("cannot listen on 127.0.0.1:{port}: {error}"))
    })
}

fn folder_of(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("node-{}", index + 1))
}

fn words_of(folder: &Path) -> PathBuf {
    folder.join("words")
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("redis.log")
}

impl Drop for LocalNodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                // One that has gone already needs no signal.
                let _ = process.start_kill();
            }
        }
        // What cannot be removed is left to whoever cleans the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
