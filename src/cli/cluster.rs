//! Local nodes: `redis-server` processes with the module, in a temporary folder, on loopback.
//!
//! For trying things out. They forget nothing when they are killed (every write is synced), and
//! they go with the process that started them, unless that is ended by KILL.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::args::{Cluster, Nodes};
use super::failure::Failure;
use super::out;
use super::signals::Signals;
use crate::client::{Locker, Vote};

/// How long a node may take to answer after its start.
const START_MAX: Duration = Duration::from_secs(10);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(10);

pub(super) async fn nodes(args: Nodes) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let mut cluster = LocalNodes::prepare(&args.cluster, args.count.into())?;
    cluster.start_all()?;
    let locker = Locker::builder().nodes(cluster.urls()).allow_even_nodes().build()?;
    answering(&locker, cluster.nodes.len(), &cluster).await?;
    let (count, folder) = (cluster.nodes.len(), cluster.folder.display());
    out::lines([
        format!("{count} nodes in {folder}; Ctrl-C ends them"),
        format!("export LOCKMOD_NODES={}", cluster.urls().join(",")),
    ])?;
    signals.next().await;
    Ok(())
}

/// Waits until so many of the nodes answer.
pub(super) async fn answering(
    locker: &Locker,
    count: usize,
    cluster: &LocalNodes,
) -> Result<(), Failure> {
    let deadline = Instant::now() + START_MAX;
    loop {
        let reports = locker.settle().await;
        let answering = reports.iter().filter(|report| report.vote == Vote::Confirmed).count();
        if answering >= count {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let text =
                format!("only {answering} of {count} nodes answer: {}", cluster.last_words());
            return Err(Failure::new(Failure::USAGE, text));
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
    pub(super) fn prepare(args: &Cluster, count: usize) -> Result<LocalNodes, Failure> {
        let module = args.module.canonicalize().map_err(|error| {
            let text = format!("no module at {}: {error}", args.module.display());
            Failure::new(Failure::USAGE, text)
        })?;
        let folder = std::env::temp_dir().join(format!("lockmod-nodes-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        // All at once, so that no two get the same one.
        let listeners: Vec<TcpListener> = (0..count)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .collect::<Result<_, _>>()?;
        let node = |listener: TcpListener| {
            Ok::<_, std::io::Error>(Node { port: listener.local_addr()?.port(), process: None })
        };
        let nodes = listeners.into_iter().map(node).collect::<Result<_, _>>()?;
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
        let folder = self.folder.join(format!("node-{}", index + 1));
        std::fs::create_dir_all(&folder)?;
        let port = node.port.to_string();
        let log = log_of(&folder);
        let process = Command::new(&self.server)
            .args(["--bind", "127.0.0.1", "--port", &port, "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            .arg("--dir")
            .arg(&folder)
            .arg("--logfile")
            .arg(&log)
            .arg("--loadmodule")
            .arg(&self.module)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                Failure::new(Failure::USAGE, format!("{}: {error}", self.server.display()))
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

    /// The last line of a log, to say why nodes do not answer.
    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(log_of(&self.folder.join("node-1"))).unwrap_or_default();
        log.lines().last().unwrap_or("no log").to_owned()
    }
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
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
