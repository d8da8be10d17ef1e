//! The arguments of the command, as clap reads them.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::client::{Locker, LockerBuilder};

/// What `--help` says at its end.
const EXIT_CODES: &str = "\
Exit codes:
  0    done (run: the command's own exit code)
  120  contended: another holds the lock, or did until --wait was over
  121  no quorum: too few nodes could be asked
  122  lost: the lease ended, or was not held any more
  123  refused: no module, no permission, a key of another type, a ttl above the limit
  125  wrong usage, or lockmod itself failed
  126  run: the command cannot be executed
  127  run: the command was not found
  128+N  run: the command was ended by signal N

Lengths of time are written as 500ms, 5s, 2m or 1h.";

/// Distributed locks over a quorum of Redis nodes with the lockmod module.
#[derive(Debug, Parser)]
#[command(name = "lockmod", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Hold a lock around a command
    ///
    /// The command gets the fencing token in LOCKMOD_FENCE and the lock's name in LOCKMOD_NAME. If
    /// the lock is lost, its whole process group gets TERM, and KILL before the lease ends.
    /// Signals TERM, INT, HUP and QUIT are passed on to it. If lockmod itself is killed by KILL,
    /// the command goes on while the lease ends: only the fencing token protects you then.
    #[command(after_help = EXIT_CODES)]
    Run(Run),
    /// Acquire a lock and print its token: it stays held until it is released or its lease ends
    Acquire(Acquire),
    /// Give a lock back that `acquire` took
    Release(ByToken),
    /// Let a lease that `acquire` took end its ttl from now
    Extend(Extend),
    /// Print the highest fencing token issued for a lock, held or not
    Fence(ByName),
    /// Show what each node knows about a lock
    Info(ByName),
    /// List all locks of all nodes
    List(List),
    /// Show how all nodes are, and who holds which lock
    Status(Status),
    /// Watch all nodes and locks, live; keys to take a lock from its holder
    Top(Top),
    /// Serve metrics of all nodes to Prometheus, over HTTP
    ///
    /// At /metrics, in Prometheus's text format. The nodes are asked when somebody asks for the
    /// metrics, and at most once a second.
    Exporter(Exporter),
    /// Start local nodes with the module, until Ctrl-C
    Nodes(Nodes),
    /// Show what it does on five local nodes, in a few seconds
    Demo(Demo),
}

#[derive(Debug, Args)]
pub(super) struct Connection {
    /// The nodes' Redis URLs, separated by commas
    #[arg(
        long,
        value_name = "URL,...",
        env = "LOCKMOD_NODES",
        value_delimiter = ',',
        required = true
    )]
    pub(super) nodes: Vec<String>,
    /// How long each node's answer is waited for [default: a twentieth of the ttl]
    #[arg(long, value_parser = length)]
    pub(super) timeout: Option<Duration>,
    /// Allow an even number of nodes
    #[arg(long)]
    pub(super) even: bool,
}

impl Connection {
    pub(super) fn builder(&self) -> LockerBuilder {
        let builder = Locker::builder().nodes(self.nodes.iter().map(String::as_str));
        let builder = if self.even { builder.allow_even_nodes() } else { builder };
        match self.timeout {
            Some(timeout) => builder.timeout(timeout),
            None => builder,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Run {
    /// The lock's name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Length of the lease; it is renewed at a third of it
    #[arg(long, value_parser = length, default_value = "30s")]
    pub(super) ttl: Duration,
    /// How long to wait while another holds the lock
    #[arg(long, value_parser = length, default_value = "1m")]
    pub(super) wait: Duration,
    /// Who asks, shown to those who wait [default: host:pid]
    #[arg(long)]
    pub(super) label: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct Acquire {
    /// The lock's name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Length of the lease
    #[arg(long, value_parser = length, default_value = "30s")]
    pub(super) ttl: Duration,
    /// How long to wait while another holds the lock
    #[arg(long, value_parser = length, default_value = "0s")]
    pub(super) wait: Duration,
    /// Who asks, shown to those who wait [default: host:pid]
    #[arg(long)]
    pub(super) label: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ByToken {
    /// The lock's name
    pub(super) name: String,
    /// The token that `acquire` printed
    #[arg(value_parser = token)]
    pub(super) token: Token,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Extend {
    #[command(flatten)]
    pub(super) lease: ByToken,
    /// Length of the lease from now on
    #[arg(long, value_parser = length, default_value = "30s")]
    pub(super) ttl: Duration,
}

#[derive(Debug, Args)]
pub(super) struct ByName {
    /// The lock's name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Show free locks too
    #[arg(long)]
    pub(super) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// How many locks each node is asked for at most
    #[arg(long, default_value_t = 10_000)]
    pub(super) limit: usize,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// How often the nodes are asked
    #[arg(long, value_parser = length, default_value = "1s")]
    pub(super) every: Duration,
    /// How many locks each node is asked for at most
    #[arg(long, default_value_t = 10_000)]
    pub(super) limit: usize,
}

#[derive(Debug, Args)]
pub(super) struct Exporter {
    #[command(flatten)]
    pub(super) connection: Connection,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9477")]
    pub(super) listen: SocketAddr,
    /// A name for these nodes, which all their metrics get as the label `cluster`
    #[arg(long, value_name = "NAME", env = "LOCKMOD_CLUSTER")]
    pub(super) cluster: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Cluster {
    /// The module, liblockmod.so
    #[arg(long, value_name = "PATH", env = "LOCKMOD_MODULE")]
    pub(super) module: PathBuf,
    /// The server
    #[arg(long, value_name = "PATH", env = "LOCKMOD_REDIS_SERVER", default_value = "redis-server")]
    pub(super) server: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Nodes {
    #[command(flatten)]
    pub(super) cluster: Cluster,
    /// How many
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(super) count: u8,
}

#[derive(Debug, Args)]
pub(super) struct Demo {
    #[command(flatten)]
    pub(super) cluster: Cluster,
}

/// A token given on the command line. Secret: it has no `Display`.
#[derive(Clone)]
pub(super) struct Token(pub(super) Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// Reads a token in hexadecimal digits.
fn token(text: &str) -> Result<Token, String> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_even = digits.len().is_multiple_of(2) && !digits.is_empty();
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
    bytes
        .filter(|_| is_even && is_hex)
        .map(Token)
        .ok_or_else(|| "give the hexadecimal digits that `acquire` printed".to_owned())
}

/// Reads a length of time as people write it.
fn length(text: &str) -> Result<Duration, String> {
    let problem = || "write a length as 500ms, 5s, 2m or 1h".to_owned();
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(problem)?;
    let number: u64 = text[..unit_at].parse().map_err(|_| problem())?;
    let unit: u64 = match &text[unit_at..] {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(problem()),
    };
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        let millis = |text| length(text).map(|length| length.as_millis());
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("5s"), Ok(5_000));
        assert_eq!(millis("2m"), Ok(120_000));
        assert_eq!(millis("1h"), Ok(3_600_000));
        let huge = ["99999999999999999999s", "9999999999999999999h"];
        for bad in ["", "5", "s", "-5s", "5 s", "1.5s", "5d", huge[0], huge[1]] {
            assert!(length(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_are_hexadecimal_and_not_shown() {
        let token = |text| super::token(text).map(|token| token.0);
        assert_eq!(token("00fF"), Ok(vec![0, 255]));
        for bad in ["", "0", "0g", "+1", "é"] {
            assert!(token(bad).is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", Token(vec![1, 2])), "Token(2 bytes)");
    }

    #[test]
    fn the_definition_holds_together() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
