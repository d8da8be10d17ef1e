//! Why the command failed: its exit code and its message, in words or as JSON.

use std::fmt::Display;
use std::io::ErrorKind;

use nix::sys::signal::Signal;

use super::json::Json;
use super::out::Unprinted;
use super::values::{Name, Typed};
use super::{out, signals};
use crate::client::{
    AcquireError, BuildError, ExtendError, Guard, Lost, NodeReport, ReleaseError, SLOW, Summary,
    Vote, is_of_silence,
};
use crate::engine::Quorum;
use crate::wire::code;

/// An exit code, and what is printed with it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) code: u8,
    /// One line; if it is empty, nothing is printed for people.
    text: String,
    /// Each node's vote, if nodes were asked.
    nodes: Vec<NodeReport>,
    /// Whether the arguments are to blame.
    is_usage: bool,
}

impl Failure {
    pub(super) const CONTENDED: u8 = 120;
    pub(super) const NO_QUORUM: u8 = 121;
    pub(super) const LOST: u8 = 122;
    pub(super) const REFUSED: u8 = 123;
    /// Wrong usage, or the command itself failed.
    pub(super) const FAILED: u8 = 125;
    pub(super) const NOT_EXECUTABLE: u8 = 126;
    pub(super) const NOT_FOUND: u8 = 127;
    /// 128 + PIPE, as if the signal had ended the command.
    const CLOSED_PIPE: u8 = 141;

    pub(super) fn new(code: u8, text: impl ToString) -> Failure {
        Failure { code, text: text.to_string(), nodes: Vec::new(), is_usage: false }
    }

    /// The arguments are wrong, or environment variables in their place.
    pub(super) fn usage(text: impl ToString) -> Failure {
        Failure { is_usage: true, ..Failure::new(Failure::FAILED, text) }
    }

    /// A signal came, and there is nothing to print about it.
    pub(super) fn interrupted(signal: i32) -> Failure {
        Failure::new(signals::code(signal), "")
    }

    /// Too few nodes carried out the request; `nodes` are all nodes with their votes.
    pub(super) fn of_nodes(text: impl ToString, nodes: Vec<NodeReport>) -> Failure {
        let all = nodes.len();
        Failure::without_quorum(text, nodes, all)
    }

    /// There is no quorum: too many of `all` nodes refuse permanently, or cannot be asked at
    /// present.
    pub(super) fn without_quorum(
        text: impl ToString,
        nodes: Vec<NodeReport>,
        all: usize,
    ) -> Failure {
        let refusing = nodes.iter().filter(|report| report.vote.is_permanent()).count();
        let is_possible = Quorum::is_majority(all - refusing, all);
        let code = if is_possible { Failure::NO_QUORUM } else { Failure::REFUSED };
        Failure { nodes, ..Failure::new(code, text) }
    }

    /// The token does not hold the lock.
    pub(super) fn lost(text: impl ToString, nodes: Vec<NodeReport>) -> Failure {
        Failure { nodes, ..Failure::new(Failure::LOST, text) }
    }

    /// A held lock is lost: when, why, and the nodes' last votes.
    pub(super) fn lost_while_held(
        (name, when): (&Name, &str),
        lost: Lost,
        guard: &Guard,
    ) -> Failure {
        let text = format!("lock '{name}' was lost{when}: {lost}");
        let nodes = guard.unconfirmed();
        let said = if nodes.is_empty() { String::new() } else { format!(": {}", Summary(&nodes)) };
        Failure::lost(format!("{text}{said}"), nodes)
    }

    /// The message, in words.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Each node's vote, if nodes were asked.
    pub(super) fn nodes(&self) -> &[NodeReport] {
        &self.nodes
    }

    /// The same, with another clause.
    pub(super) fn but(self, text: &str) -> Failure {
        let text = if self.text.is_empty() { text.to_owned() } else { self.text + "; " + text };
        Failure { text, ..self }
    }

    /// The same, with each of these clauses.
    pub(super) fn but_each(self, texts: impl IntoIterator<Item = String>) -> Failure {
        texts.into_iter().fold(self, |failure, text| failure.but(&text))
    }

    /// The same, with a hint if nodes reached over TLS did not answer.
    pub(super) fn over_tls(self) -> Failure {
        let is_silent = |report: &NodeReport| match &report.vote {
            Vote::TimedOut => true,
            Vote::Unreachable(text) => is_of_silence(text),
            _ => false,
        };
        if self.nodes.iter().any(is_silent) {
            self.but("a port without TLS never answers rediss://")
        } else {
            self
        }
    }

    /// The same, with the ttl as it was typed if it is too long for a node.
    pub(super) fn over_ttl(self, ttl: &Typed) -> Failure {
        let is_code = |text: &str| code::word_of(text) == code::BADTTL.word;
        let is_over = |vote: &Vote| matches!(vote, Vote::Refused(text) if is_code(text));
        match self.nodes.iter().any(|report| is_over(&report.vote)) {
            true => self.but(&format!("give a shorter --ttl than {ttl}")),
            false => self,
        }
    }

    /// The exit code as a word, for programs.
    const fn word(&self) -> &'static str {
        match self.code {
            Failure::CONTENDED => "contended",
            Failure::NO_QUORUM => "no_quorum",
            Failure::LOST => "lost",
            Failure::REFUSED => "refused",
            Failure::FAILED if self.is_usage => "usage",
            Failure::FAILED => "failed",
            Failure::NOT_EXECUTABLE => "not_executable",
            Failure::NOT_FOUND => "not_found",
            _ => "interrupted",
        }
    }

    /// The message for a program: never empty.
    fn message(&self) -> String {
        match self.text.is_empty() {
            true => match Signal::try_from(i32::from(self.code.saturating_sub(128))) {
                Ok(signal) => format!("interrupted by {signal}"),
                Err(_) => "interrupted".to_owned(),
            },
            false => self.text.clone(),
        }
    }

    /// Prints it on standard error.
    pub(super) fn tell(&self, as_json: bool) {
        if self.text.is_empty() {
            if self.code == signals::code(Signal::SIGINT as i32) {
                out::remove_echo();
            }
            // People know which key they pressed, and nothing reads a closed pipe.
            if !as_json || self.code == Failure::CLOSED_PIPE {
                return;
            }
        }
        if !as_json {
            out::complain(format_args!("lockmod: {}", self.text));
            return;
        }
        let node = |report: &NodeReport| {
            let mut fields = vec![("node", Json::text(&*report.node))];
            fields.extend(Json::of_master(report.master.as_deref()));
            fields.push(("vote", Json::text(report.vote.word())));
            fields.push(("text", Json::text(report.vote.to_string())));
            Json::Object(fields)
        };
        out::complain(Json::Object(vec![
            ("error", Json::text(self.word())),
            ("exit_code", Json::Number(self.code.into())),
            ("message", Json::text(self.message())),
            ("nodes", Json::List(self.nodes.iter().map(node).collect())),
        ]));
    }
}

/// Prints a warning, which does not make the command fail, on standard error.
pub(super) fn warn(text: impl Display, as_json: bool) {
    if as_json {
        out::complain(Json::Object(vec![("warning", Json::text(text.to_string()))]));
    } else {
        out::complain(format_args!("lockmod: {text}"));
    }
}

impl From<Unprinted> for Failure {
    fn from(Unprinted(error): Unprinted) -> Failure {
        match error.kind() {
            // The reader of the output has seen enough.
            ErrorKind::BrokenPipe => Failure::new(Failure::CLOSED_PIPE, ""),
            _ => Failure::new(Failure::FAILED, format!("cannot write to standard output: {error}")),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        let text = match error {
            BuildError::NoNodes => "no nodes: give --nodes redis://host:port,... or set \
                                     LOCKMOD_NODES; `lockmod nodes` starts some to try"
                .to_owned(),
            BuildError::EvenNodes { count } => format!(
                "{count} nodes survive no more failures than {}: remove or add one, or allow an \
                 even number with --even",
                count - 1
            ),
            BuildError::BadUrl { position, problem } => format!(
                "node {position} of {} has no usable URL, {problem}. Write \
                 redis://host:port, rediss://user:password@host:port/db, unix:///path, \
                 redis+sentinel://host:port,host:port/group or redis+cluster://host:port,host:port",
                source_of_nodes()
            ),
            other => other.to_string(),
        };
        Failure::usage(text)
    }
}

/// Where the nodes were given.
pub(super) fn source_of_nodes() -> &'static str {
    let mut flags = std::env::args_os().take_while(|argument| argument != "--");
    let is_flag = |argument: std::ffi::OsString| {
        let argument = argument.to_string_lossy();
        argument == "--nodes" || argument.starts_with("--nodes=")
    };
    if flags.any(is_flag) { "--nodes" } else { "LOCKMOD_NODES" }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Failure {
        let code = match &error {
            AcquireError::Held(_) => Failure::CONTENDED,
            AcquireError::NoQuorum(_) | AcquireError::TooLate(_) => Failure::NO_QUORUM,
            AcquireError::Refused(_) => Failure::REFUSED,
            AcquireError::BadOption(text) => return Failure::usage(text),
        };
        let text = error.to_string().replace(
            SLOW,
            "a slow network needs a longer --timeout, and a --ttl at least three times that",
        );
        Failure { nodes: error.nodes().to_vec(), ..Failure::new(code, text) }
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Failure {
        let text = error.to_string();
        match error {
            ReleaseError::NotHeld(nodes) => Failure::lost(text, nodes),
            ReleaseError::NoQuorum(nodes) | ReleaseError::Refused(nodes) => {
                Failure::of_nodes(text, nodes)
            }
            ReleaseError::BadOption(_) => Failure::usage(text),
        }
    }
}

impl From<ExtendError> for Failure {
    fn from(error: ExtendError) -> Failure {
        let text = error.to_string();
        match error {
            ExtendError::NoQuorum(nodes) | ExtendError::Refused(nodes) => {
                let is_no =
                    |report: &&NodeReport| matches!(report.vote, Vote::NotHeld | Vote::Held { .. });
                if Quorum::is_majority(nodes.iter().filter(is_no).count(), nodes.len()) {
                    return Failure::lost(text, nodes);
                }
                Failure::of_nodes(text, nodes)
            }
            ExtendError::Lost(_) => Failure::new(Failure::LOST, text),
            ExtendError::BadOption(_) => Failure::usage(text),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Failure::FAILED, error)
    }
}
