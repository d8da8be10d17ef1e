//! Local nodes: `redis-server` processes with the module, in a temporary folder, on loopback.
//!
//! For trying things out. They forget nothing when they are killed (every write is synced), and
//! they end with the process that started them, even if KILL ends it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::args::{Cluster, Nodes};
use super::failure::{Failure, warn};
use super::signals::Signals;
use super::{out, slots, tie};
use crate::client::{Length, Locker, NodeReport, Vote};
use crate::engine::SUPPORT;

/// How long a node may take to answer after its start.
const START_MAX: Duration = Duration::from_secs(10);
/// How often it is asked for an answer.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How often to check whether a server has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How many lines of a log are shown.
const LAST_LINES: usize = 2;
/// What the local Sentinels call their group.
const GROUP: &str = "mymaster";
/// How many Sentinels watch it, and how many of them call it down.
const SENTINELS: u16 = 3;
const SENTINELS_NEEDED: u16 = 2;
/// How many replicas its master has.
const REPLICAS: u16 = 2;
/// So many masters of a Cluster agree that another one is down.
const MASTERS_MIN: u8 = 3;
/// The longest ttl where a replica may become the master, which then waits it out: the default of
/// `--ttl`.
const MAX_TTL: Duration = Duration::from_secs(30);
/// A server that has not answered Sentinel, or most of its Cluster, for this long counts as down.
const DOWN_AFTER: Duration = Duration::from_secs(2);

/// How the servers belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// This many independent nodes.
    Apart(u16),
    /// One node: a master, its replicas and their Sentinels, in this order, with the longest ttl
    /// that is granted.
    Sentinel(Duration),
    /// One node: a Redis Cluster of this many masters, each with this many replicas: all masters,
    /// then all replicas.
    Cluster { masters: u16, replicas: u16 },
}

impl Layout {
    /// # Errors
    /// If a master could never be replaced.
    fn of(args: &Nodes) -> Result<Layout, Failure> {
        if args.replicas > 0 && args.cluster_of.is_some_and(|masters| masters < MASTERS_MIN) {
            let text = format!(
                "--replicas needs --cluster {MASTERS_MIN} or more: fewer masters have no majority \
                 without one of them, so a replica never takes its place"
            );
            return Err(Failure::usage(text));
        }
        Ok(match (args.sentinel, args.cluster_of) {
            (true, _) => Layout::Sentinel(MAX_TTL),
            (false, Some(masters)) => {
                Layout::Cluster { masters: masters.into(), replicas: args.replicas.into() }
            }
            (false, None) => Layout::Apart(args.count.into()),
        })
    }

    /// How many servers there are.
    const fn count(self) -> u16 {
        match self {
            Layout::Apart(count) => count,
            Layout::Sentinel(_) => 1 + REPLICAS + SENTINELS,
            Layout::Cluster { masters, replicas } => masters * (1 + replicas),
        }
    }

    /// How many of the servers are masters at first, and come before the others.
    const fn masters(self) -> u16 {
        match self {
            Layout::Apart(count) => count,
            Layout::Sentinel(_) => 1,
            Layout::Cluster { masters, .. } => masters,
        }
    }

    /// How many replicas each master has, and the longest ttl that is granted, if a replica may
    /// become a master.
    const fn failover(self) -> Option<(u16, Duration)> {
        match self {
            Layout::Apart(_) | Layout::Cluster { replicas: 0, .. } => None,
            Layout::Sentinel(max_ttl) => Some((REPLICAS, max_ttl)),
            Layout::Cluster { replicas, .. } => Some((replicas, MAX_TTL)),
        }
    }

    const fn is_sentinel(self, index: usize) -> bool {
        match self {
            Layout::Apart(_) | Layout::Cluster { .. } => false,
            Layout::Sentinel(_) => index > REPLICAS as usize,
        }
    }

    /// What the servers are called together.
    fn words(self) -> String {
        match self {
            Layout::Apart(1) => "1 node".to_owned(),
            Layout::Apart(count) => format!("{count} nodes"),
            Layout::Sentinel(_) => {
                format!("a master, {REPLICAS} replicas and {SENTINELS} Sentinels")
            }
            Layout::Cluster { masters, replicas } => {
                let plural = |count| if count == 1 { "" } else { "s" };
                let of = format!("a Cluster of {masters} master{}", plural(masters));
                let (each, plural) = (if masters == 1 { "" } else { " each" }, plural(replicas));
                match replicas {
                    0 => of,
                    _ => format!("{of} with {replicas} replica{plural}{each}"),
                }
            }
        }
    }
}

pub(super) async fn nodes(args: Nodes) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let layout = Layout::of(&args)?;
    let mut cluster = LocalNodes::prepare(&args.cluster, layout, args.port)?;
    let mut progress = out::Progress::new();
    progress.show(&format!("starting {}", layout.words()));
    cluster.start_all()?;
    let locker = cluster.to_servers()?;
    tokio::select! {
        ready = ready(&locker, &mut cluster) => ready?,
        // The servers may take long, and the user no longer wants them.
        signal = signals.next() => return Err(Failure::interrupted(signal)),
    }
    drop(progress);
    out::lines(cluster.welcome())?;
    tokio::select! {
        ended = cluster.attend() => ended,
        _ = signals.next() => {
            out::remove_echo();
            Ok(())
        }
    }
}

/// Waits until all servers answer, and form their Cluster if they are one.
async fn ready(locker: &Locker, cluster: &mut LocalNodes) -> Result<(), Failure> {
    answering(locker, cluster).await?;
    if let Layout::Cluster { masters, replicas } = cluster.layout {
        slots::share_out(&cluster.places(), masters.into()).await?;
        if replicas > 0 {
            // Its masters wait first, as after a failover.
            return Ok(());
        }
        let whole = Locker::builder().nodes(cluster.urls()).without_line().build()?;
        let deadline = Instant::now() + START_MAX;
        while whole.survey(0).await.granting() == 0 && Instant::now() < deadline {
            sleep(ASK_EVERY).await;
        }
    }
    Ok(())
}

/// Waits until all nodes answer.
///
/// # Errors
/// If one has ended, or they do not answer in time; with the server's last words.
pub(super) async fn answering(locker: &Locker, cluster: &mut LocalNodes) -> Result<(), Failure> {
    let deadline = Instant::now() + START_MAX;
    loop {
        let reports = locker.settle().await;
        let count = reports.len();
        // A Sentinel refuses to be a node.
        let answers =
            |report: &&NodeReport| matches!(report.vote, Vote::Confirmed | Vote::Refused(_));
        let answering = reports.iter().filter(answers).count();
        if answering >= count {
            return Ok(());
        }
        if let Some((index, ended)) = cluster.first_ended()? {
            let (server, said) = (cluster.server.display(), cluster.last_words(index));
            let text = format!("{server} ended instead of serving ({ended}): {said}");
            return Err(Failure::new(Failure::FAILED, text));
        }
        if Instant::now() >= deadline {
            let silent = reports.iter().position(|report| !answers(&report)).unwrap_or(0);
            let said = cluster.last_words(silent);
            let text = format!("only {answering} of {count} nodes answer; of another: {said}");
            return Err(Failure::new(Failure::FAILED, text));
        }
        sleep(ASK_EVERY).await;
    }
}

/// Some nodes and their folder, both removed when this is dropped; but not the folder of nodes that
/// have all ended on their own.
pub(super) struct LocalNodes {
    pub(super) folder: PathBuf,
    server: PathBuf,
    module: PathBuf,
    layout: Layout,
    keeps_folder: bool,
    pub(super) nodes: Vec<Node>,
}

pub(super) struct Node {
    pub(super) port: u16,
    /// The port at which the masters of a Cluster talk to each other.
    bus: u16,
    process: Option<Child>,
}

impl LocalNodes {
    /// Chooses the ports: from `first` on, or free ones.
    pub(super) fn prepare(
        args: &Cluster,
        layout: Layout,
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
        // All at once, so that no two get the same port.
        let buses: Vec<TcpListener> =
            (0..layout.count()).map(|_| listen(Some(0))).collect::<Result<_, _>>()?;
        let listeners: Vec<TcpListener> = (0..layout.count())
            .map(|index| listen(first.map_or(Some(0), |first| first.checked_add(index))))
            .collect::<Result<_, _>>()?;
        let node = |(listener, bus): (&TcpListener, &TcpListener)| {
            let (port, bus) = (listener.local_addr()?.port(), bus.local_addr()?.port());
            Ok::<_, std::io::Error>(Node { port, bus, process: None })
        };
        let nodes = listeners.iter().zip(&buses).map(node).collect::<Result<_, _>>()?;
        let folder = std::env::temp_dir().join(format!("lockmod-nodes-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| {
            Failure::new(Failure::FAILED, format!("cannot make {}: {error}", folder.display()))
        })?;
        let (server, keeps_folder) = (args.server.clone(), false);
        Ok(LocalNodes { folder, server, module, layout, keeps_folder, nodes })
    }

    /// The URLs of the nodes.
    pub(super) fn urls(&self) -> Vec<String> {
        let place = |node: &Node| format!("127.0.0.1:{}", node.port);
        match self.layout {
            Layout::Apart(_) => self.servers(),
            Layout::Sentinel(_) => {
                let sentinels = self.nodes[1 + usize::from(REPLICAS)..].iter().map(place);
                let sentinels = sentinels.collect::<Vec<_>>().join(",");
                vec![format!("redis+sentinel://{sentinels}/{GROUP}")]
            }
            Layout::Cluster { .. } => {
                let servers: Vec<String> = self.nodes.iter().map(place).collect();
                vec![format!("redis+cluster://{}", servers.join(","))]
            }
        }
    }

    /// Port and bus port of all servers.
    fn places(&self) -> Vec<(u16, u16)> {
        self.nodes.iter().map(|node| (node.port, node.bus)).collect()
    }

    /// A locker for all servers, including Sentinels.
    pub(super) fn to_servers(&self) -> Result<Locker, Failure> {
        let servers = Locker::builder().nodes(self.servers()).without_line();
        Ok(servers.allow_even_nodes().build()?)
    }

    /// The URLs of all servers, including Sentinels.
    fn servers(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect()
    }

    /// The lines to print when all servers are up.
    fn welcome(&self) -> Vec<String> {
        let (count, folder) = (self.nodes.len(), self.folder.display());
        let them = if count == 1 { "it" } else { "them" };
        let mut lines = vec![
            format!("{} in {folder}; Ctrl-C ends {them}", self.layout.words()),
            format!("export LOCKMOD_NODES={}", self.urls().join(",")),
        ];
        let (first, is_cluster) = (self.nodes[0].port, !matches!(self.layout, Layout::Apart(_)));
        let (one, ones) = match self.layout.masters() {
            1 => ("the master", "even this one, waits"),
            _ => ("a master", "even these, waits"),
        };
        match self.layout.failover() {
            Some((replicas, max_ttl)) => {
                // Of two servers, a majority are both.
                let back = ", which grants once that server is back";
                let when = if replicas == 1 { back } else { "" };
                let (wait, max_ttl) = (max_ttl + Duration::from(SUPPORT) * 3, Length(max_ttl));
                lines.extend([
                    format!("lockmod.max-ttl is {max_ttl}: no --ttl may be longer"),
                    format!(
                        "any new master, {ones} for about {}: see lockmod status",
                        Length(wait)
                    ),
                    format!(
                        "redis-cli -p {first} SHUTDOWN ends {one}, and a replica takes its \
                         place{when}"
                    ),
                ]);
            }
            None if is_cluster => lines.push(format!(
                "redis-cli -p {first} SHUTDOWN ends {one}: then no lock in its slots can be had"
            )),
            None if count.is_multiple_of(2) => {
                lines.push("an even number of nodes: every command needs --even".to_owned());
            }
            None => {}
        }
        lines
    }

    pub(super) fn start_all(&mut self) -> Result<(), Failure> {
        (0..self.nodes.len()).try_for_each(|index| self.start(index))
    }

    pub(super) fn start(&mut self, index: usize) -> Result<(), Failure> {
        let folder = folder_of(&self.folder, index);
        fs::create_dir_all(&folder)?;
        // The output before there is a log: complaints about settings, or another program's output.
        let words = File::create(words_of(&folder))?;
        let settings = match self.layout.is_sentinel(index) {
            true => self.of_sentinel(index, &folder),
            false => self.of_server(index, &folder),
        };
        let arguments = self.arguments(index);
        // One that is started again may have written into its file.
        if !Path::new(&arguments[0]).exists() {
            fs::write(&arguments[0], settings)?;
        }
        let process = spawn(&self.server, &arguments, &words).map_err(|error| {
            let server = self.server.display();
            let text = format!("cannot start {server}: {error}; --server names the server");
            Failure::new(Failure::FAILED, text)
        })?;
        self.nodes[index].process = Some(process);
        Ok(())
    }

    /// The arguments of a server: its file, and what kind of server it is.
    fn arguments(&self, index: usize) -> Vec<OsString> {
        let folder = folder_of(&self.folder, index);
        match self.layout.is_sentinel(index) {
            true => vec![folder.join("sentinel.conf").into(), "--sentinel".into()],
            false => vec![folder.join("redis.conf").into()],
        }
    }

    /// The settings of a server with the module.
    fn of_server(&self, index: usize, folder: &Path) -> String {
        let node = &self.nodes[index];
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", node.port),
            "save \"\"".to_owned(),
            "appendonly yes".to_owned(),
            "appendfsync always".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
            format!("dir {folder:?}"),
            format!("logfile {:?}", log_of(folder)),
        ];
        if index > 0 && matches!(self.layout, Layout::Sentinel(_)) {
            lines.push(format!("replicaof 127.0.0.1 {}", self.nodes[0].port));
        }
        if let Layout::Cluster { .. } = self.layout {
            lines.extend([
                "cluster-enabled yes".to_owned(),
                format!("cluster-port {}", node.bus),
                format!("cluster-node-timeout {}", DOWN_AFTER.as_millis()),
                "cluster-require-full-coverage no".to_owned(),
            ]);
        }
        let options = self.layout.failover().map_or_else(String::new, |(replicas, max_ttl)| {
            format!(" replicas {replicas} max-ttl {}", max_ttl.as_millis())
        });
        lines.push(format!("loadmodule {:?}{options}\n", self.module));
        lines.join("\n")
    }

    /// The settings of a Sentinel, which writes into its file.
    fn of_sentinel(&self, index: usize, folder: &Path) -> String {
        let down_after = DOWN_AFTER.as_millis();
        format!(
            "bind 127.0.0.1\nport {}\ndir {folder:?}\nlogfile {:?}\n\
             sentinel monitor {GROUP} 127.0.0.1 {} {SENTINELS_NEEDED}\n\
             sentinel down-after-milliseconds {GROUP} {down_after}\n\
             sentinel failover-timeout {GROUP} {}\n",
            self.nodes[index].port,
            log_of(folder),
            self.nodes[0].port,
            down_after * 5
        )
    }

    /// Kills a node, as a power failure would.
    pub(super) async fn kill(&mut self, index: usize) -> Result<(), Failure> {
        if let Some(mut process) = self.nodes[index].process.take() {
            process.kill().await?;
        }
        Ok(())
    }

    /// The first server that has ended on its own, and how.
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

    /// Warns about each server that ends.
    ///
    /// # Errors
    /// When none is left.
    async fn attend(&mut self) -> Result<(), Failure> {
        while self.nodes.iter().any(|node| node.process.is_some()) {
            sleep(LOOK_EVERY).await;
            while let Some((index, status)) = self.first_ended()? {
                let log = log_of(&folder_of(&self.folder, index));
                let what = if self.layout.is_sentinel(index) { "Sentinel" } else { "node" };
                let node = &mut self.nodes[index];
                node.process = None;
                let (port, log, server) = (node.port, log.display(), self.server.display());
                let arguments = self.arguments(index);
                let arguments: Vec<_> =
                    arguments.iter().map(|word| word.to_string_lossy()).collect();
                let again = format!("{server} {}", arguments.join(" "));
                let text = format!(
                    "{what} 127.0.0.1:{port} has ended ({status}): see {log}; `{again}` starts it \
                     again"
                );
                warn(text, false);
            }
        }
        self.keeps_folder = true;
        let text = format!("no node is left; their files stay in {}", self.folder.display());
        Err(Failure::new(Failure::FAILED, text))
    }

    /// The last lines of a server's log.
    fn last_words(&self, index: usize) -> String {
        let folder = folder_of(&self.folder, index);
        let read = |file| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
        let (log, words) = (read(log_of(&folder)), read(words_of(&folder)));
        let sentence = |line: &str| line.trim_end_matches('.').to_owned();
        let lines = |text: &str| text.lines().filter_map(message).map(sentence).collect();
        let lines: Vec<String> = if log.is_empty() { lines(&words) } else { lines(&log) };
        match &lines[lines.len().saturating_sub(LAST_LINES)..] {
            [] => "it said nothing".to_owned(),
            last => last.join("; "),
        }
    }
}

/// Starts a server that ends with this process, even if this process is killed. If the system does
/// not support that, starts one that does not.
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

/// The message of a log line, without process and time; `None` if it is empty.
fn message(line: &str) -> Option<&str> {
    let is_warning = line.split_once(" # ").map(|(_, message)| message);
    Some(is_warning.unwrap_or(line).trim()).filter(|message| !message.is_empty())
}

/// Reserves a port; `None` is the one above the last.
fn listen(port: Option<u16>) -> Result<TcpListener, Failure> {
    let port = port.ok_or_else(|| {
        Failure::usage("there is no port above 65535: give a lower --port, or fewer nodes")
    })?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => "; give another --port, or none: then it finds free ones",
            _ => "",
        };
        let text = format!("cannot listen on 127.0.0.1:{port}: {error}{hint}");
        Failure::new(Failure::FAILED, text)
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
                // A process that has already ended needs no signal.
                let _ = process.start_kill();
            }
        }
        if !self.keeps_folder {
            // What cannot be removed is left to the cleaning of the folder for temporary files.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
