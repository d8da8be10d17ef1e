//! The arguments of the command, as clap reads them. `--help`, the man pages and the completions
//! of shells are all made from this file, with what `definition.rs` adds.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, Parser, Subcommand};

use super::values::{
    Name, Token, Typed, address, count, every, length, limit, name, port, replicas, token, ttl,
    typed,
};

/// Distributed locks over a quorum of Redis nodes with the lockmod module
#[derive(Debug, Parser)]
#[command(name = "lockmod", version, max_term_width = 100)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a command while holding a lock
    ///
    /// The command finds the fence (fencing token) in LOCKMOD_FENCE and the lock's name in
    /// LOCKMOD_NAME. The lease is renewed while the command runs. The lock is released when the
    /// command ends, even if it left other processes running in the background.
    ///
    /// If the lock is lost, the command's whole process group gets TERM, and KILL before the lease
    /// ends. TERM, INT, HUP and the other signals that end a process are passed on to the command.
    /// A signal that comes after the command has ended, while --at-least holds the lock, ends
    /// lockmod: the lock is released, and the exit code is 128+N.
    ///
    /// Ctrl-Z stops lockmod and the command, like any job of a shell. A stopped job does not renew
    /// its lease, so the lock is lost when the lease ends. If it is lost, `fg` and `bg` do not
    /// continue the command but end it, with exit code 122. For a stopped job, the shell's `$?` is
    /// 147: lockmod stops itself by signal 19 (STOP). A job that still waits for the lock is
    /// stopped by signal 20 (TSTP), and `$?` is 148. Without a terminal, TSTP to lockmod stops
    /// both, and CONT continues both. If no shell could continue them, as in a session of their
    /// own, TSTP does nothing.
    ///
    /// PIPE is ignored. A real-time signal ends lockmod at once, and the lock stands until its
    /// lease ends.
    ///
    /// If lockmod itself is killed by KILL, the kernel sends TERM to the command, but not to
    /// processes that the command has started, nor to a command that runs as another user. If
    /// lockmod is stopped by STOP, the command goes on while the lease ends. Only the fence then
    /// protects you.
    ///
    /// As process 1 of a container, lockmod also reaps the orphans that the command leaves behind.
    Run(Run),
    /// Hold a lock until Ctrl-C
    ///
    /// Prints the fence, renews the lease, and releases the lock on INT, TERM, HUP or QUIT.
    /// A signal that was ignored at its start stays ignored: end a script's `lockmod lock job &` by
    /// TERM, not by INT.
    Lock(Lock),
    /// Acquire a lock and print its token
    ///
    /// The lock stays held until it is released with the token, or until its lease ends. If the
    /// token cannot be printed, the lock is released at once.
    Acquire(Acquire),
    /// Release a lock that `acquire` acquired, or take it by force from whoever holds it
    Release(Release),
    /// Extend a lease
    Extend(Extend),
    /// Print the highest fence issued for a lock
    ///
    /// 0 if no node knows the lock: it was never acquired, was free for long enough to be
    /// forgotten, was deleted, as by `release --force`, or a crash has lost it. Even so, the next
    /// fence is larger than all before; a message says above which number it will be.
    Fence(ByName),
    /// Show what each node knows about a lock
    Info(ByName),
    /// List the locks on all nodes
    ///
    /// At a terminal long names are cut. Elsewhere every name is printed whole, so that a program
    /// can tell names apart.
    List(List),
    /// Show the state of the nodes and who holds which lock
    ///
    /// STATE says of a node that grants nothing why, and for how long. In `2 of 2 replicas` the
    /// first number is how many support the master (lockmod.replicas).
    /// LOCKS is how many locks the node knows, free ones that it has not forgotten included.
    /// GRANTS is how many it has granted since it was started.
    /// LAG is how far a node's highest fence is behind the one that a quorum of nodes has reached
    /// by grants: jumps after a crash do not count.
    /// NODES is how many nodes hold the lock with this label and fence. A node that was ahead may
    /// have given the same holder a larger fence; it does not count. In `2/3 +1` one more node has
    /// the lease, but waits after a crash or a failover, and until then the lease does not count
    /// there. That is also what `0/1 +1` says of the new master of a group.
    ///
    /// At a terminal the tables are cut to its width. Elsewhere every name is printed whole, so
    /// that a program can tell names apart.
    Status(Status),
    /// Watch the nodes and locks live; press ? for the keys
    Top(Top),
    /// Serve the metrics of all nodes to Prometheus
    ///
    /// The metrics are at /metrics in Prometheus's text format. The nodes are asked whenever the
    /// metrics are, but at most once a second.
    Exporter(Exporter),
    /// Start local nodes with the module, until Ctrl-C
    ///
    /// The first lines of the output say how to use them, and how to end one. Each server has its
    /// settings in a file in the folder that is named there: `redis-server FILE` starts one again
    /// that has ended. End that one yourself (`redis-cli -p PORT SHUTDOWN NOSAVE`): it does not end
    /// with this command. INT, TERM and HUP end all others; a shell may start a background job so
    /// that it ignores INT.
    Nodes(Nodes),
    /// Show what lockmod does, on five local nodes, in a few seconds
    Demo(Demo),
    /// Print the completions for a shell
    ///
    /// For bash, for example: lockmod completions bash > /etc/bash_completion.d/lockmod
    Completions(Completions),
    /// Write the man pages into a folder
    Man(Man),
}

impl Command {
    /// Whether errors are to be printed as JSON.
    pub(super) const fn is_json(&self) -> bool {
        match self {
            Command::Lock(args) => args.json,
            Command::Acquire(args) => args.json,
            Command::Release(args) => args.lock.json,
            Command::Extend(args) => args.lock.json,
            Command::Fence(args) | Command::Info(args) => args.json,
            Command::List(args) => args.json,
            Command::Status(args) => args.json,
            Command::Run(_)
            | Command::Top(_)
            | Command::Exporter(_)
            | Command::Nodes(_)
            | Command::Demo(_)
            | Command::Completions(_)
            | Command::Man(_) => false,
        }
    }

    /// Whether a node is reached over TLS.
    pub(super) fn is_tls(&self) -> bool {
        let is_tls = |url: &String| {
            let scheme = url.trim().split([':', '+']).next();
            matches!(scheme, Some("rediss" | "valkeys"))
        };
        self.connection().is_some_and(|connection| connection.nodes.iter().any(is_tls))
    }

    const fn connection(&self) -> Option<&Connection> {
        Some(match self {
            Command::Run(args) => &args.claim.connection,
            Command::Lock(args) => &args.claim.connection,
            Command::Acquire(args) => &args.claim.connection,
            Command::Release(args) => &args.lock.connection,
            Command::Extend(args) => &args.lock.connection,
            Command::Fence(args) | Command::Info(args) => &args.connection,
            Command::List(args) => &args.connection,
            Command::Status(args) => &args.connection,
            Command::Top(args) => &args.connection,
            Command::Exporter(args) => &args.connection,
            Command::Nodes(_) | Command::Demo(_) => return None,
            Command::Completions(_) | Command::Man(_) => return None,
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct Connection {
    /// Redis URLs of the nodes, separated by commas: redis://host:port, rediss:// (TLS), unix://,
    /// redis+sentinel://host:port,host:port/group for the master of a group under Sentinel, or
    /// redis+cluster://host:port,host:port for a Redis Cluster
    #[arg(
        long,
        value_name = "URL,...",
        env = "LOCKMOD_NODES",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(super) nodes: Vec<String>,
    /// How long to wait for the answer of each node [default: 500ms]
    #[arg(long, value_parser = typed, allow_hyphen_values = true)]
    pub(super) timeout: Option<Typed>,
    /// Allow an even number of nodes
    #[arg(long)]
    pub(super) even: bool,
    /// Certificates (PEM) to trust for rediss:// [default: those of the system]
    #[arg(long, value_name = "FILE", env = "LOCKMOD_CACERT", hide_env_values = true)]
    pub(super) cacert: Option<PathBuf>,
    /// Client certificate (PEM) to show to the nodes
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKMOD_CERT",
        hide_env_values = true,
        requires = "key"
    )]
    pub(super) cert: Option<PathBuf>,
    /// Private key (PEM) of the client certificate
    #[arg(
        long,
        value_name = "FILE",
        env = "LOCKMOD_KEY",
        hide_env_values = true,
        requires = "cert"
    )]
    pub(super) key: Option<PathBuf>,
}

/// The lock to acquire, and how.
#[derive(Debug, Args)]
pub(super) struct Claim {
    /// Name of the lock
    #[arg(value_parser = OsStringValueParser::new().try_map(name))]
    pub(super) name: Name,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Length of the lease; `run` and `lock` renew it at a third of it
    #[arg(long, value_parser = ttl, allow_hyphen_values = true, default_value = "30s")]
    pub(super) ttl: Typed,
    /// Take the lock as a reader: any number of readers hold it together, while no writer does
    #[arg(long)]
    pub(super) shared: bool,
    /// Who holds the lock, shown to those who wait for it [default: host:pid]
    #[arg(long)]
    pub(super) label: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) claim: Claim,
    /// How long to wait while the lock is not free, or there is no quorum
    #[arg(long, value_parser = length, allow_hyphen_values = true, default_value = "1m")]
    pub(super) wait: Duration,
    /// Hold the lock for at least this long, even if the command ends sooner
    #[arg(long, value_parser = length, allow_hyphen_values = true, default_value = "0s")]
    pub(super) at_least: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct Lock {
    #[command(flatten)]
    pub(super) claim: Claim,
    /// How long to wait while the lock is not free, or there is no quorum
    #[arg(long, value_parser = length, allow_hyphen_values = true, default_value = "1m")]
    pub(super) wait: Duration,
    /// Print results and errors as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Acquire {
    #[command(flatten)]
    pub(super) claim: Claim,
    /// How long to wait while the lock is not free, or there is no quorum
    #[arg(long, value_parser = length, allow_hyphen_values = true, default_value = "0s")]
    pub(super) wait: Duration,
    /// Print results and errors as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ByName {
    /// Name of the lock
    #[arg(value_parser = OsStringValueParser::new().try_map(name))]
    pub(super) name: Name,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Print results and errors as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Release {
    #[command(flatten)]
    pub(super) lock: ByName,
    /// The token that `acquire` printed
    #[arg(value_parser = token)]
    pub(super) token: Option<Token>,
    /// Delete the lock on all nodes, whoever holds it, all readers included. A holder learns of it
    /// at its next renewal and works on until then: only the fence protects you, for the next one
    /// is larger
    #[arg(long, conflicts_with = "token")]
    pub(super) force: bool,
}

#[derive(Debug, Args)]
pub(super) struct Extend {
    #[command(flatten)]
    pub(super) lock: ByName,
    /// The token that `acquire` printed
    #[arg(value_parser = token)]
    pub(super) token: Token,
    /// Length of the lease from now on
    #[arg(long, value_parser = ttl, allow_hyphen_values = true, default_value = "30s")]
    pub(super) ttl: Typed,
    /// Turn the writer that holds the lock into a reader, which lets other readers in. A reader
    /// cannot become a writer
    #[arg(long)]
    pub(super) shared: bool,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Show free locks too
    #[arg(long)]
    pub(super) all: bool,
    /// Print results and errors as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// The most locks to show, of those that are held or waited for
    #[arg(long, value_parser = limit, allow_hyphen_values = true, default_value_t = 10_000)]
    pub(super) limit: usize,
    /// Print results and errors as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// How often to ask the nodes
    #[arg(long, value_parser = every, allow_hyphen_values = true, default_value = "1s")]
    pub(super) every: Duration,
    /// The most locks to show, of those that are held or waited for
    #[arg(long, value_parser = limit, allow_hyphen_values = true, default_value_t = 10_000)]
    pub(super) limit: usize,
}

#[derive(Debug, Args)]
pub(super) struct Exporter {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:9477")]
    pub(super) listen: SocketAddr,
    /// A name for these nodes, which all their metrics get as the label `cluster`
    #[arg(long, value_name = "NAME", env = "LOCKMOD_CLUSTER")]
    pub(super) cluster: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Cluster {
    /// Path of the module [default: liblockmod.so beside this program, or where `make install`
    /// puts it]
    #[arg(long, value_name = "PATH", env = "LOCKMOD_MODULE", hide_env_values = true)]
    pub(super) module: Option<PathBuf>,
    /// Path of the Redis server
    #[arg(
        long,
        value_name = "PATH",
        env = "LOCKMOD_REDIS_SERVER",
        hide_env_values = true,
        default_value = "redis-server"
    )]
    pub(super) server: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Nodes {
    #[command(flatten)]
    pub(super) cluster: Cluster,
    /// Number of nodes
    #[arg(long, default_value_t = 5, value_parser = count, allow_hyphen_values = true)]
    pub(super) count: u8,
    /// Start one node instead: a master with two replicas, and three Sentinels that watch them.
    /// They grant ttls of up to 30s (lockmod.max-ttl), which a new master waits out
    #[arg(long, conflicts_with = "count")]
    pub(super) sentinel: bool,

    /// Start one node instead: a Redis Cluster of this many masters, which goes on without some
    /// (cluster-require-full-coverage no)
    #[arg(
        long = "cluster",
        value_name = "MASTERS",
        conflicts_with_all = ["count", "sentinel"],
        value_parser = count,
        allow_hyphen_values = true
    )]
    pub(super) cluster_of: Option<u8>,

    /// How many replicas each master of the Cluster has, of which there are at least 3 then. The
    /// ttl is limited as with --sentinel
    #[arg(
        long,
        requires = "cluster_of",
        conflicts_with_all = ["count", "sentinel"],
        default_value_t = 0,
        value_parser = replicas,
        allow_hyphen_values = true
    )]
    pub(super) replicas: u8,

    /// Port of the first server; the others use the next ones [default: ports that are free]
    #[arg(long, value_parser = port, allow_hyphen_values = true)]
    pub(super) port: Option<u16>,
}

#[derive(Debug, Args)]
pub(super) struct Demo {
    #[command(flatten)]
    pub(super) cluster: Cluster,
    /// Show a failover instead: Sentinel replaces a master while the lock is held
    #[arg(long)]
    pub(super) failover: bool,
}

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    pub(super) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(super) struct Man {
    /// The folder, which must exist
    pub(super) folder: PathBuf,
}
