//! The errors: one type per operation, each with the vote of every node.
//!
//! A held lock is an expected outcome, not a fault. Every `Display` is one line for an operator;
//! the reports list the nodes one by one.

use std::fmt;
use std::time::Duration;

use super::length::Length;
use super::printable::InShort;
use super::silence;
use super::vote::{NodeReport, Summary, Vote};
use crate::engine::{Ending, Fence, Quorum};

/// Why a lock was not acquired.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another held the lock, or several competed for it, or the nodes kept it for the first in
    /// line, until the wait was over.
    Held(AcquireReport),
    /// Too few nodes could be asked: unreachable, not serving, timed out, or in quarantine.
    NoQuorum(AcquireReport),
    /// Too many nodes refuse for a retry to help: no module, no permission, a key of another type,
    /// a ttl above the limit.
    Refused(AcquireReport),
    /// The nodes answered so slowly that the validity was used up; or, of several locks, the lease
    /// of one ended before the last one was granted. A longer ttl helps.
    TooLate(AcquireReport),
    /// The call's own options are wrong; nothing was sent.
    BadOption(String),
}

/// The outcome of a failed acquisition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireReport {
    /// The lock.
    pub name: String,
    /// How long the acquisition was tried. The nodes are asked afterwards who holds the lock, for
    /// at most `timeout`.
    pub waited: Duration,
    /// How often all nodes were asked.
    pub attempts: u32,
    /// The last vote of each node.
    pub nodes: Vec<NodeReport>,
    /// How long each node had to answer.
    pub timeout: Duration,
    /// Whether that time ran out before all nodes that were needed had answered.
    pub is_timed_out: bool,
}

/// What helps if nodes did not answer in time.
pub(crate) const SLOW: &str = "a slow network needs a longer ttl or timeout";
/// What it does not help against: a silent node may be either.
const NOT_HUNG: &str = "which does not help if a server hangs";

impl AcquireError {
    /// Whether the same call may succeed later without a manual repair.
    pub const fn is_retryable(&self) -> bool {
        match self {
            AcquireError::Held(_) | AcquireError::NoQuorum(_) | AcquireError::TooLate(_) => true,
            AcquireError::Refused(_) | AcquireError::BadOption(_) => false,
        }
    }

    /// Each node's vote; empty if nothing was sent.
    pub fn nodes(&self) -> &[NodeReport] {
        match self {
            AcquireError::Held(report)
            | AcquireError::NoQuorum(report)
            | AcquireError::Refused(report)
            | AcquireError::TooLate(report) => &report.nodes,
            AcquireError::BadOption(_) => &[],
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_late = |report: &AcquireReport| {
            let granted = |node: &&NodeReport| matches!(node.vote, Vote::Granted(_));
            let count = report.nodes.iter().filter(granted).count();
            Quorum::is_majority(count, report.nodes.len())
        };
        let (what, report) = match self {
            AcquireError::NoQuorum(report) if is_late(report) => ("was granted too late", report),
            AcquireError::Held(report) => ("is not free", report),
            AcquireError::NoQuorum(report) => ("cannot be acquired without a quorum", report),
            AcquireError::Refused(report) => ("is refused", report),
            AcquireError::TooLate(report) => ("was granted too slowly for its ttl", report),
            AcquireError::BadOption(text) => return f.write_str(text),
        };
        let name = InShort(report.name.as_bytes());
        write!(f, "lock '{name}' {what}: {}", Summary(&report.nodes))?;
        if report.attempts > 1 {
            write!(f, " (waited {}, {} attempts)", Length(report.waited), report.attempts)?;
        }
        let is_silent = |node: &NodeReport| match &node.vote {
            Vote::TimedOut => true,
            Vote::Unreachable(text) => silence::is_of_sentinels_in_time(text),
            _ => false,
        };
        // A node that was late may have said since why it does not grant.
        let is_slow = report.nodes.iter().any(is_silent) || report.is_timed_out && is_late(report);
        if is_slow && matches!(self, AcquireError::NoQuorum(_)) {
            if report.waited < report.timeout {
                f.write_str("; a node that has just been silent is not waited for again")?;
            } else {
                let timeout = Length(report.timeout);
                write!(f, "; each node had {timeout} to answer: {SLOW}, {NOT_HUNG}")?;
            }
        }
        if report.nodes.iter().any(|node| node.vote == Vote::WrongType) {
            f.write_str("; something else, such as another lock library, uses this name")?;
        }
        Ok(())
    }
}

impl std::error::Error for AcquireError {}

/// Why a lease is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// Its validity has (nearly) ended without a renewal.
    Expired,
    /// A quorum of nodes answered that this token does not hold the lock: it was removed by force.
    Removed,
    /// `max_hold` is reached.
    MaxHold,
    /// It was released, or leaked.
    Released,
}

impl From<Ending> for Lost {
    fn from(ending: Ending) -> Lost {
        match ending {
            Ending::Expired => Lost::Expired,
            Ending::Removed => Lost::Removed,
            Ending::MaxHold => Lost::MaxHold,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Expired => "it was not extended in time",
            Lost::Removed => "a quorum of nodes says that it was removed by force",
            Lost::MaxHold => "it was held for as long as max_hold allows",
            Lost::Released => "it was released",
        })
    }
}

impl std::error::Error for Lost {}

/// Why a lease is no longer held, with each node's vote on the extension that failed last.
#[derive(Debug)]
pub struct WhyLost<'a>(pub Lost, pub &'a [NodeReport]);

impl fmt::Display for WhyLost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyLost(lost, []) => lost.fmt(f),
            WhyLost(lost, nodes) => write!(f, "{lost}: {}", Summary(nodes)),
        }
    }
}

/// Why a lease was not extended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ExtendError {
    /// No quorum confirmed. The lease is valid until its previous end, and may be extended again.
    NoQuorum(Vec<NodeReport>),
    /// Too many nodes refuse for a retry to help: no permission, a ttl above the limit. The lease
    /// is valid until its previous end.
    Refused(Vec<NodeReport>),
    /// The lease is lost: stop working under it.
    Lost(Lost),
    /// The requested ttl is out of bounds; nothing was sent, and the lease is unchanged.
    BadOption(String),
}

/// Whether so many nodes refuse that no quorum of them can ever carry it out.
fn is_refused(nodes: &[NodeReport], needed: usize) -> bool {
    nodes.iter().filter(|report| !report.vote.is_permanent()).count() < needed
}

impl ExtendError {
    /// The error of an extension that too few nodes confirmed.
    pub(super) fn of(nodes: Vec<NodeReport>, needed: usize) -> ExtendError {
        let is_refused = is_refused(&nodes, needed);
        if is_refused { ExtendError::Refused(nodes) } else { ExtendError::NoQuorum(nodes) }
    }

    /// Whether extending again may succeed.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, ExtendError::NoQuorum(_))
    }
}

impl fmt::Display for ExtendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtendError::NoQuorum(nodes) => {
                write!(f, "no quorum extended the lease: {}", Summary(nodes))
            }
            ExtendError::Refused(nodes) => {
                write!(f, "the extension is refused: {}", Summary(nodes))
            }
            ExtendError::Lost(lost) => write!(f, "the lease is lost: {lost}"),
            ExtendError::BadOption(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ExtendError {}

/// Why a release was not confirmed. The lease is over for its holder in any case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReleaseError {
    /// A quorum of nodes no longer had the lease: it had ended before, and another may have held
    /// the lock since. (Or connections broke before the answers came, and the same release, sent
    /// again, found nothing left: by its token alone, nobody can tell the two apart.)
    NotHeld(Vec<NodeReport>),
    /// Too few nodes answered. Those that come back within the ttl receive the release then; on the
    /// others the lease runs out.
    NoQuorum(Vec<NodeReport>),
    /// Too many nodes refuse for a retry to help. There the lease runs out.
    Refused(Vec<NodeReport>),
    /// The given bytes cannot be a token; nothing was sent.
    BadOption(String),
}

impl ReleaseError {
    pub(super) fn check(nodes: Vec<NodeReport>, needed: usize) -> Result<(), ReleaseError> {
        let count = |is: fn(&Vote) -> bool| nodes.iter().filter(|report| is(&report.vote)).count();
        if count(|vote| matches!(vote, Vote::Confirmed)) >= needed {
            return Ok(());
        }
        if count(|vote| matches!(vote, Vote::Held { .. } | Vote::NotHeld | Vote::WrongType))
            >= needed
        {
            return Err(ReleaseError::NotHeld(nodes));
        }
        // No quorum had lost the lease, and a quorum has none left: a node that was away when the
        // lock was acquired, or has forgotten it, is as free as one that confirms.
        if count(|vote| matches!(vote, Vote::Confirmed | Vote::NotHeld)) >= needed {
            return Ok(());
        }
        let is_refused = is_refused(&nodes, needed);
        Err(if is_refused { ReleaseError::Refused(nodes) } else { ReleaseError::NoQuorum(nodes) })
    }
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseError::NotHeld(nodes) => {
                write!(f, "the lease had ended before it was released: {}", Summary(nodes))
            }
            ReleaseError::NoQuorum(nodes) => {
                write!(f, "no quorum confirmed the release: {}", Summary(nodes))
            }
            ReleaseError::Refused(nodes) => write!(f, "the release is refused: {}", Summary(nodes)),
            ReleaseError::BadOption(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ReleaseError {}

/// Why the fence of a lock is not known.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FenceError {
    /// Too few nodes answered.
    NoQuorum(Vec<NodeReport>),
}

impl FenceError {
    /// Each node's vote.
    pub fn nodes(&self) -> &[NodeReport] {
        let FenceError::NoQuorum(nodes) = self;
        nodes
    }
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no quorum says which fence is the highest: {}", Summary(self.nodes()))
    }
}

impl std::error::Error for FenceError {}

/// Why [`Locker::with`](super::Locker::with) has no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WithError {
    /// The lock was not acquired; the work did not begin.
    Acquire(AcquireError),
    /// The lease was lost before the work was done: the work was dropped at its current await
    /// point, or its result was.
    Lost {
        /// Why.
        lost: Lost,
        /// The fence under which the work ran.
        fence: Fence,
        /// Each node's vote on the last extension, if the lease expired because too few confirmed
        /// it, or if that extension showed that the lock was removed; empty if nothing tried to
        /// extend it.
        nodes: Vec<NodeReport>,
    },
}

impl fmt::Display for WithError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WithError::Acquire(error) => error.fmt(f),
            WithError::Lost { lost, fence, nodes } => {
                let why = WhyLost(*lost, nodes);
                write!(f, "the lease with fence {fence} was lost before the work was done: {why}")
            }
        }
    }
}

impl std::error::Error for WithError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // This error already shows its text.
            WithError::Acquire(error) => error.source(),
            WithError::Lost { .. } => None,
        }
    }
}

impl From<AcquireError> for WithError {
    fn from(error: AcquireError) -> WithError {
        WithError::Acquire(error)
    }
}

/// What is wrong with the settings of a locker, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// No node was given.
    NoNodes,
    /// More nodes than a lock can be spread over.
    TooManyNodes {
        /// How many were given.
        count: usize,
        /// How many are allowed.
        max: usize,
    },
    /// An even number of nodes: it survives no more failures than with one node fewer.
    EvenNodes {
        /// How many were given.
        count: usize,
    },
    /// Two URLs lead to the same node, which would have two votes.
    SameNode {
        /// Which of them, counted from 1.
        positions: [usize; 2],
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
    /// A URL cannot be used.
    BadUrl {
        /// Which of them, counted from 1.
        position: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A length of time or a label is out of bounds.
    BadOption(String),
    /// There is no tokio runtime to run connections on.
    NoRuntime,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NoNodes => f.write_str("no nodes: give the URL of at least one"),
            BuildError::TooManyNodes { count, max } => {
                write!(f, "{count} nodes, but a lock can be spread over {max} at most")
            }
            BuildError::EvenNodes { count } => write!(
                f,
                "{count} nodes survive no more failures than {}: remove or add one, or allow an \
                 even number with allow_even_nodes()",
                count - 1
            ),
            BuildError::SameNode { positions: [one, two], first, second } => write!(
                f,
                "nodes {one} and {two}, {first} and {second}, are the same node, which must not \
                 have two votes: remove one"
            ),
            BuildError::BadUrl { position, problem } => write!(
                f,
                "node {position} has no usable URL, {problem}. Write redis://host:port, \
                 rediss://user:password@host:port/db, unix:///path, \
                 redis+sentinel://host:port,host:port/group or redis+cluster://host:port,host:port"
            ),
            BuildError::BadOption(text) => f.write_str(text),
            BuildError::NoRuntime => {
                f.write_str("no tokio runtime: call build() inside of one, or use client::blocking")
            }
        }
    }
}

impl std::error::Error for BuildError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(votes: &[Vote]) -> Vec<NodeReport> {
        votes.iter().map(|vote| NodeReport::new("n".into(), vote.clone())).collect()
    }

    /// The error of an attempt without a quorum that took `waited`, where nodes had 500 ms.
    fn without_quorum(votes: &[Vote], waited: u64, is_timed_out: bool) -> String {
        let (waited, timeout) = (Duration::from_millis(waited), Duration::from_millis(500));
        let (name, nodes, attempts) = ("n".into(), reports(votes), 1);
        let report = AcquireReport { name, waited, attempts, nodes, timeout, is_timed_out };
        AcquireError::NoQuorum(report).to_string()
    }

    /// Regression: "cannot be acquired without a quorum: 1 of 1 node granted".
    #[test]
    fn a_quorum_that_granted_too_late_is_said_to_have_been_late() {
        for (votes, is_late) in [
            (&[Vote::Granted(Fence::ZERO)][..], true),
            (&[Vote::Granted(Fence::ZERO), Vote::TimedOut, Vote::TimedOut], false),
        ] {
            let told = without_quorum(votes, 500, true);
            assert_eq!(told.contains("was granted too late"), is_late, "{told}");
            assert!(told.contains(SLOW), "{told}");
        }
    }

    /// The advice for slow networks followed the reason that a node had named.
    #[test]
    fn a_late_node_that_says_why_it_does_not_grant_is_not_said_to_be_slow() {
        let told = without_quorum(&[Vote::Unavailable("TRYAGAIN later".into())], 500, true);
        assert!(told.contains("TRYAGAIN later") && !told.contains(SLOW), "{told}");
    }

    /// Regression: of a node that is known to be silent, the error said that it had half a second.
    #[test]
    fn an_error_says_how_long_nodes_had_to_answer_only_if_they_had_so_long() {
        let votes = [Vote::Granted(Fence::ZERO), Vote::TimedOut, Vote::TimedOut];
        let error = |waited| without_quorum(&votes, waited, false);
        let had_time = error(500);
        assert!(had_time.contains("; each node had 500ms to answer: a slow network"));
        // Regression: of a node that hung, it said the same without the rest.
        assert!(had_time.ends_with("longer ttl or timeout, which does not help if a server hangs"));
        let known = error(1);
        assert!(known.ends_with("; a node that has just been silent is not waited for again"));
    }

    /// Four of five nodes were free, and the error was "no quorum confirmed the release".
    #[test]
    fn a_release_is_confirmed_by_a_quorum_where_nothing_of_the_lease_is_left() {
        use Vote::{Confirmed, NotHeld, TimedOut};
        let check = |votes: &[Vote]| ReleaseError::check(reports(votes), votes.len() / 2 + 1);
        assert!(check(&[Confirmed, Confirmed, NotHeld, NotHeld, TimedOut]).is_ok());
        assert!(check(&[Confirmed, NotHeld, TimedOut]).is_ok());
        let lost = check(&[Confirmed, NotHeld, NotHeld]);
        assert!(matches!(lost, Err(ReleaseError::NotHeld(_))), "{lost:?}");
        let lost = check(&[Confirmed, Vote::HELD, Vote::WrongType]);
        assert!(matches!(lost, Err(ReleaseError::NotHeld(_))), "{lost:?}");
        for rest in [TimedOut, Vote::HELD] {
            let unclear = check(&[Confirmed, rest, TimedOut]);
            assert!(matches!(unclear, Err(ReleaseError::NoQuorum(_))), "{unclear:?}");
        }
    }

    /// The same refusal had one class when a lock was acquired, and another when it was extended.
    #[test]
    fn what_a_quorum_refuses_is_not_worth_a_retry() {
        use Vote::{Confirmed, NotHeld, TimedOut};
        let refused = || Vote::Refused("BADTTL x".into());
        let denied = || Vote::NoPermission("NOPERM x".into());
        for votes in [[refused(), denied(), TimedOut], [Confirmed, refused(), refused()]] {
            let extended = ExtendError::of(reports(&votes), 2);
            assert!(matches!(extended, ExtendError::Refused(_)), "{extended}");
            assert!(!extended.is_retryable() && extended.to_string().contains("is refused"));
            let released = ReleaseError::check(reports(&votes), 2);
            assert!(matches!(released, Err(ReleaseError::Refused(_))), "{released:?}");
        }
        for votes in [[refused(), TimedOut, TimedOut], [Confirmed, refused(), TimedOut]] {
            assert!(ExtendError::of(reports(&votes), 2).is_retryable());
            let released = ReleaseError::check(reports(&votes), 2);
            assert!(matches!(released, Err(ReleaseError::NoQuorum(_))), "{released:?}");
        }
        let ended = ReleaseError::check(reports(&[refused(), NotHeld, NotHeld]), 2);
        assert!(matches!(ended, Err(ReleaseError::NotHeld(_))), "{ended:?}");
    }
}
