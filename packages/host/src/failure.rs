//! Errors as plain fields, one kind for each cause, whichever operation failed.

use std::fmt;
use std::time::Duration;

use lockmod::client::{
    AcquireError, AcquireReport, BuildError, ExtendError, InShort, Length, Lost, NodeReport,
    ReleaseError, Summary, Vote, WhyLost,
};

use crate::length::Unit;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Another holds the lock.
    Held,
    /// Too few nodes could be asked.
    NoQuorum,
    /// Too many nodes refuse for a retry to help, or this process does.
    Refused,
    /// The nodes answered so slowly that the validity was used up.
    TooLate,
    /// The lease has ended.
    Lost,
    /// An option is wrong; nothing was sent.
    Option,
    /// It belongs to the process that this one was forked from.
    Forked,
}

impl Kind {
    /// The kind in one word, for looking up the class of the error.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Held => "held",
            Kind::NoQuorum => "no_quorum",
            Kind::Refused => "refused",
            Kind::TooLate => "too_late",
            Kind::Lost => "lost",
            Kind::Option => "option",
            Kind::Forked => "forked",
        }
    }
}

/// An error: its kind, one line for an operator, and each node's vote.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What happened.
    pub kind: Kind,
    /// One line for an operator.
    pub text: String,
    /// Each node's vote; empty if none was asked.
    pub nodes: Vec<NodeVote>,
    /// For an acquisition, how long it was tried, and how often.
    pub tried: Option<(Duration, u32)>,
    /// Why the lease has ended, if it has: see [`lost_word`].
    pub reason: Option<&'static str>,
    /// Whether the same call may succeed later without a manual repair.
    pub is_retryable: bool,
}

/// One node's vote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVote {
    /// The node's address, without password.
    pub node: String,
    /// The master that was asked last, if the node is a Cluster or a group under Sentinel, and it
    /// is known.
    pub master: Option<String>,
    /// The vote in one word.
    pub vote: &'static str,
    /// The vote in words for people.
    pub text: String,
    /// The fence that it granted.
    pub fence: Option<u64>,
    /// The label of the holder there.
    pub label: Option<String>,
    /// How long that lease lasts unless it is extended.
    pub left: Option<Duration>,
    /// How long that holder has had the lock.
    pub held_for: Option<Duration>,
}

impl From<&NodeReport> for NodeVote {
    fn from(report: &NodeReport) -> NodeVote {
        let vote = &report.vote;
        let mut said = NodeVote {
            node: report.node.to_string(),
            master: report.master.as_deref().map(str::to_owned),
            vote: vote.word(),
            text: vote.to_string(),
            fence: None,
            label: None,
            left: None,
            held_for: None,
        };
        match vote {
            Vote::Granted(fence) => said.fence = Some(fence.get()),
            Vote::Held { label, left, held_for, .. } => {
                (said.label, said.left, said.held_for) = (label.clone(), *left, *held_for);
            }
            // The others have only their text, and so will future ones.
            _ => {}
        }
        said
    }
}

/// Why a lease has ended, in one word.
pub(crate) const fn lost_word(lost: Lost) -> &'static str {
    match lost {
        Lost::Expired => "expired",
        Lost::Removed => "removed",
        Lost::MaxHold => "max_hold",
        Lost::Released => "released",
        // A future reason.
        _ => "lost",
    }
}

fn votes(nodes: &[NodeReport]) -> Vec<NodeVote> {
    nodes.iter().map(NodeVote::from).collect()
}

impl Failure {
    fn new(kind: Kind, text: impl fmt::Display, nodes: &[NodeReport]) -> Failure {
        let is_retryable = matches!(kind, Kind::Held | Kind::NoQuorum | Kind::TooLate);
        let (text, nodes) = (text.to_string(), votes(nodes));
        Failure { kind, text, nodes, tried: None, reason: None, is_retryable }
    }

    /// An option is wrong.
    pub fn option(text: impl fmt::Display) -> Failure {
        Failure::new(Kind::Option, text, &[])
    }

    /// It cannot be done, and a retry does not help.
    pub(crate) fn refused(text: impl fmt::Display) -> Failure {
        Failure::new(Kind::Refused, text, &[])
    }

    /// Names options as the language does, if the text is about them.
    pub(crate) fn spelled(mut self, unit: Unit) -> Failure {
        if self.kind == Kind::Option || self.reason.is_some() {
            self.text = spelled(self.text, unit);
        }
        self
    }

    /// Adds a hint if nodes did not answer that are perhaps reached over TLS by mistake.
    pub(crate) fn over_tls(mut self, has_tls: bool) -> Failure {
        if has_tls && self.nodes.iter().any(|said| said.vote == Vote::TimedOut.word()) {
            self.text += "; a port without TLS never answers rediss://";
        }
        self
    }

    /// The same about this lock, unless an option is wrong.
    pub(crate) fn of_lock(mut self, name: &[u8]) -> Failure {
        if self.kind != Kind::Option {
            self.text = format!("lock '{}': {}", InShort(name), self.text);
        }
        self
    }

    pub(crate) fn closed() -> Failure {
        Failure::refused("the locker is closed: make another one, or close it later")
    }

    pub(crate) fn forked() -> Failure {
        let text = "this process was forked from the one that holds the lock: only that one renews \
                    and releases it";
        Failure::new(Kind::Forked, text, &[])
    }

    /// A signal handler has forked the process in the middle of a call.
    pub(crate) fn forked_in_call() -> Failure {
        let text = "this process was forked during the call: only the one that began it gets the \
                    result";
        Failure::new(Kind::Forked, text, &[])
    }

    /// The lease has ended; the nodes' votes are those on the extension that failed last. If it
    /// expired, its ttl is named, with its unit: it may not be what the caller meant.
    pub(crate) fn lost(
        lost: Lost,
        nodes: &[NodeReport],
        (name, fence, ttl): (&[u8], u64, Duration),
        unit: Unit,
    ) -> Failure {
        let (name, why) = (InShort(name), spelled(WhyLost(lost, nodes).to_string(), unit));
        let ttl = match lost {
            Lost::Expired => format!(" and a ttl of {}", unit.with_unit(ttl)),
            _ => String::new(),
        };
        let text = format!("the lease of lock '{name}' with fence {fence}{ttl} is lost: {why}");
        Failure { reason: Some(lost_word(lost)), ..Failure::new(Kind::Lost, text, nodes) }
    }

    /// The holder released it this long ago, by a call or, without one, as it was dropped.
    pub(crate) fn released(ago: Duration, by_call: bool, name: &[u8], fence: u64) -> Failure {
        let (name, ago) = (InShort(name), Length(ago));
        let by = if by_call { ", by release() or at the end of its block" } else { "" };
        let text =
            format!("the lease of lock '{name}' with fence {fence} was released {ago} ago{by}");
        Failure { reason: Some(lost_word(Lost::Released)), ..Failure::new(Kind::Lost, text, &[]) }
    }

    /// The same with what the nodes said to a release, unless it has votes that say why.
    pub(crate) fn with_release(mut self, released: Failure) -> Failure {
        if self.nodes.is_empty() {
            self.text = format!("{}; {}", self.text, released.text);
            self.nodes = released.nodes;
        }
        self
    }
}

/// The text with options named as the language does, where they stand alone: the name of a lock, or
/// of a file, may contain one.
fn spelled(mut text: String, unit: Unit) -> String {
    // The client's own setters are written as calls. (With `_`, `lockmod.max-ttl` is not meant.)
    for name in ["max_ttl()", "allow_even_nodes()", "max_ttl", "max_hold", "lost_margin"] {
        text = with_word(&text, name, &unit.spelled(name.trim_end_matches("()")));
    }
    text
}

/// The text with `word` replaced where it stands between spaces, brackets or marks that end a part
/// of a sentence.
fn with_word(text: &str, word: &str, other: &str) -> String {
    let mut parts = text.split(word);
    let mut said = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let begins = said.chars().last().is_none_or(|before| " (".contains(before));
        let ends = part.chars().next().is_none_or(|after| " ,;:)(".contains(after));
        said += if begins && ends { other } else { word };
        said += part;
    }
    said
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        Failure::option(error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Failure {
        let tried = |report: &AcquireReport| Some((report.waited, report.attempts));
        let (kind, tried) = match &error {
            AcquireError::Held(report) => (Kind::Held, tried(report)),
            AcquireError::NoQuorum(report) => (Kind::NoQuorum, tried(report)),
            AcquireError::TooLate(report) => (Kind::TooLate, tried(report)),
            AcquireError::Refused(report) => (Kind::Refused, tried(report)),
            AcquireError::BadOption(_) => (Kind::Option, None),
            // A future cause: a retry is not known to help.
            _ => (Kind::Refused, None),
        };
        Failure { tried, ..Failure::new(kind, &error, error.nodes()) }
    }
}

impl From<ExtendError> for Failure {
    fn from(error: ExtendError) -> Failure {
        match &error {
            ExtendError::NoQuorum(nodes) => Failure::new(Kind::NoQuorum, &error, nodes),
            ExtendError::Refused(nodes) => Failure::new(Kind::Refused, &error, nodes),
            ExtendError::Lost(lost) => {
                Failure { reason: Some(lost_word(*lost)), ..Failure::new(Kind::Lost, &error, &[]) }
            }
            ExtendError::BadOption(_) => Failure::option(&error),
            _ => Failure::new(Kind::Refused, &error, &[]),
        }
    }
}

impl Failure {
    /// Why a writer did not become a reader at a quorum.
    pub(crate) fn of_downgrade(error: ExtendError) -> Failure {
        let text = match &error {
            ExtendError::NoQuorum(nodes) => {
                format!("no quorum knows yet that it is a reader's: {}", Summary(nodes))
            }
            ExtendError::Refused(nodes) => format!("the downgrade is refused: {}", Summary(nodes)),
            _ => return Failure::from(error),
        };
        Failure { text, ..Failure::from(error) }
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Failure {
        match &error {
            ReleaseError::NotHeld(nodes) => Failure {
                reason: Some(lost_word(Lost::Removed)),
                ..Failure::new(Kind::Lost, &error, nodes)
            },
            // Another release would send nothing.
            ReleaseError::NoQuorum(nodes) => {
                Failure { is_retryable: false, ..Failure::new(Kind::NoQuorum, &error, nodes) }
            }
            ReleaseError::Refused(nodes) => Failure::new(Kind::Refused, &error, nodes),
            _ => Failure::new(Kind::Refused, &error, &[]),
        }
    }
}
