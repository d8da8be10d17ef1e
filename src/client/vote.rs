//! Votes of nodes, and the reports that errors carry.
//!
//! An operator who reads an error at three in the morning needs to know who holds the lock, for how
//! long, and which nodes are in trouble. Hence one vote per node, and one line that sums them up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::length::Length;
use super::printable::{Printable, listed};
use crate::engine::{Answer, Extension, Fence, Quorum, RaiseAnswer, Stand};
use crate::wire::code::{self, Meaning};
use crate::wire::lock_info::LockInfo;

/// How the text of a failure at the master of a group begins; where the master is follows.
pub(super) const ITS_MASTER: &str = "its master ";

/// One node's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vote {
    /// It granted a lease with this fence.
    Granted(Fence),
    /// It did what was asked: extended, released, raised.
    Confirmed,
    /// It keeps the lease, but does not count towards a quorum before its quarantine is over: it
    /// was promoted, or had forgotten the lease.
    Provisional,
    /// Another token holds the lock there.
    Held {
        /// The label of the holder; `None` if it has none, or none was requested.
        label: Option<String>,
        /// How long its lease lasts unless it is extended; `None` if not requested.
        left: Option<Duration>,
        /// How long it has held the lock; `None` if not requested.
        held_for: Option<Duration>,
        /// How many readers hold it; 0 if a writer does, or if not requested. The label and
        /// `held_for` are those of the reader that has held it longest, `left` is that of the last
        /// lease to end.
        readers: u64,
        /// How many writers wait for it. A reader does not pass them.
        waiting_writers: u64,
    },
    /// Nobody holds it there, but the node keeps it for the first in line for a moment.
    Reserved,
    /// The lock is not held there: the lease has ended, or the node has forgotten it.
    NotHeld,
    /// The node restarted, may have forgotten leases, and grants nothing for now.
    Quarantined {
        /// How much longer, if the node reported it.
        left: Option<Duration>,
        /// The node's text.
        text: Arc<str>,
    },
    /// No answer in time. It may still have granted.
    TimedOut,
    /// It could not be reached, or the connection broke.
    Unreachable(Arc<str>),
    /// It is there, but does not carry out commands at present: it is loading, busy, or a replica.
    Unavailable(Arc<str>),
    /// It does not know the commands: the module is not loaded there.
    ModuleMissing,
    /// The URL's user has no permission for this there.
    NoPermission(Arc<str>),
    /// The key holds something that is not a lock.
    WrongType,
    /// It refused the request, or one side the other's certificate, with this text; or it is
    /// another node under a second name.
    Refused(Arc<str>),
    /// It has no room: the lock has as many readers as it may have, too many are waiting, or it
    /// cannot put a ticket in line.
    NoPlace(Arc<str>),
    /// It answered something that makes no sense.
    Garbled(Arc<str>),
}

macro_rules! words {
    ($($vote:ident = $word:literal,)+) => {
        /// Where the word of each vote is in [`Vote::WORDS`].
        enum VotePlace {
            $($vote,)+
        }

        impl Vote {
            /// The words of all votes, as they appear in the labels of metrics.
            #[doc(hidden)]
            pub const WORDS: [&'static str; [$($word,)+].len()] = [$($word,)+];

            /// Where its word is in [`Vote::WORDS`].
            pub(super) const fn place(&self) -> usize {
                match self {
                    $(Vote::$vote { .. } => VotePlace::$vote as usize,)+
                }
            }
        }
    };
}

// The compiler refuses a list in which a vote is missing.
words! {
    Granted = "granted",
    Confirmed = "confirmed",
    Held = "held",
    Reserved = "reserved",
    NotHeld = "not_held",
    Quarantined = "quarantined",
    TimedOut = "timed_out",
    Unreachable = "unreachable",
    ModuleMissing = "module_missing",
    NoPermission = "no_permission",
    WrongType = "wrong_type",
    Refused = "refused",
    NoPlace = "no_place",
    Garbled = "garbled",
    Unavailable = "unavailable",
    Provisional = "provisional",
}

impl Vote {
    /// Another token holds the lock; nothing more is known.
    pub(super) const HELD: Vote =
        Vote::Held { label: None, left: None, held_for: None, readers: 0, waiting_writers: 0 };

    /// The vote for a held lock, with its holder.
    pub(crate) fn held(info: LockInfo) -> Vote {
        Vote::Held {
            waiting_writers: info.waiting_writers(),
            label: info.label,
            left: info.left,
            held_for: info.held_for,
            readers: info.readers,
        }
    }

    /// The same for a reader that was kept out. Readers keep one out if there are as many as
    /// allowed, or if a writer waits.
    pub(super) fn held_from_reader(info: LockInfo) -> Vote {
        match (info.readers, info.waiting_writers()) {
            (readers @ 1.., 0) => {
                let text = format!("as many readers as may hold this lock already do: {readers}");
                Vote::NoPlace(code::READERSFULL.says(&text).into())
            }
            _ => Vote::held(info),
        }
    }

    /// The vote of a node that grants nothing: it is in quarantine for the time left, or reports
    /// this state; `None` if neither. Time left while it lacks replicas is not a quarantine.
    pub(crate) fn of_obstacle(left: Option<Duration>, state: Option<&str>) -> Option<Vote> {
        let is_quarantine = |state: &str| code::meaning_of(state) == Meaning::Quarantine;
        match left.filter(|_| state.is_none_or(is_quarantine)) {
            left @ Some(_) => {
                Some(Vote::Quarantined { left, text: state.unwrap_or_default().into() })
            }
            None => state.map(|state| Vote::Unavailable(state.into())),
        }
    }

    /// The vote of a node that grants nothing, as its report about a lock says; `None` if it does.
    pub(crate) fn of_obstacle_in(info: &LockInfo) -> Option<Vote> {
        Vote::of_obstacle(info.quarantine_left, info.node_state.as_deref())
    }

    /// The outcome of an ACQUIRE with this vote.
    pub(super) const fn answer(&self) -> Answer {
        match self {
            Vote::Granted(fence) => Answer::Granted(*fence),
            Vote::TimedOut | Vote::Unreachable(_) | Vote::Garbled(_) => Answer::Unknown,
            // Not carried out, but what happened to earlier commands there is unknown.
            Vote::Unavailable(_) => Answer::Unknown,
            Vote::Confirmed
            | Vote::Provisional
            | Vote::Held { .. }
            | Vote::Reserved
            | Vote::NotHeld
            | Vote::Quarantined { .. }
            | Vote::ModuleMissing
            | Vote::NoPermission(_)
            | Vote::WrongType
            | Vote::NoPlace(_)
            | Vote::Refused(_) => Answer::Refused,
        }
    }

    /// What it means for another attempt.
    pub(super) fn stand(&self) -> Stand {
        match self {
            Vote::Held { .. } | Vote::Reserved => Stand::Held,
            Vote::NoPlace(text) if code::meaning_of(text) == Meaning::Full => Stand::Held,
            Vote::Granted(_) | Vote::NotHeld => Stand::Free,
            _ if self.is_permanent() => Stand::Permanent,
            _ => Stand::Silent,
        }
    }

    /// The outcome of a raise with this vote.
    pub(super) const fn raise_answer(&self) -> RaiseAnswer {
        match self.answer() {
            Answer::Granted(fence) => RaiseAnswer::Raised(fence),
            Answer::Refused => RaiseAnswer::Refused,
            Answer::Unknown => RaiseAnswer::Unknown,
        }
    }

    /// The outcome of an EXTEND with this vote.
    pub(super) const fn extension(&self) -> Extension {
        match self {
            Vote::Confirmed => Extension::Extended,
            Vote::Provisional => Extension::Provisional,
            // The lock was overwritten, which removes it.
            Vote::Held { .. } | Vote::WrongType => Extension::HeldByAnother,
            Vote::NotHeld => Extension::NotHeld,
            Vote::Quarantined { .. } => Extension::Quarantined,
            Vote::Granted(_)
            | Vote::Reserved
            | Vote::TimedOut
            | Vote::Unreachable(_)
            | Vote::Unavailable(_)
            | Vote::ModuleMissing
            | Vote::NoPermission(_)
            | Vote::NoPlace(_)
            | Vote::Refused(_)
            | Vote::Garbled(_) => Extension::Unknown,
        }
    }

    /// Whether repeating the same request can only end in the same way.
    pub(crate) const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Vote::ModuleMissing | Vote::NoPermission(_) | Vote::WrongType | Vote::Refused(_)
        )
    }

    /// The vote in one word for programs, as it appears in the labels of metrics.
    pub const fn word(&self) -> &'static str {
        Vote::WORDS[self.place()]
    }

    /// The vote in a few words, by which equal votes are counted together.
    fn summary(&self) -> &'static str {
        match self {
            Vote::Granted(_) => "granted",
            Vote::Confirmed => "confirmed",
            Vote::Provisional => "holding a lease that counts only after a quarantine",
            Vote::Held { .. } => "held by another",
            Vote::Reserved => "kept for the first in line",
            Vote::NotHeld => "free",
            Vote::Quarantined { .. } => "in quarantine",
            Vote::TimedOut => "timed out",
            Vote::Unreachable(_) => "unreachable",
            Vote::Unavailable(_) => "not serving",
            Vote::ModuleMissing => "without the module",
            Vote::NoPermission(_) => "denied access",
            Vote::WrongType => "with another type at the key",
            Vote::Refused(_) => "refused",
            Vote::NoPlace(text) if code::meaning_of(text) == Meaning::Full => "full",
            Vote::NoPlace(_) => "without a place in line",
            Vote::Garbled(_) => "answered garbage",
        }
    }

    /// The text that distinguishes votes of one kind. A remaining time does not: each node has a
    /// slightly different one.
    fn reason(&self) -> Option<&str> {
        match self {
            Vote::Unreachable(text)
            | Vote::Unavailable(text)
            | Vote::NoPermission(text)
            | Vote::Refused(text)
            | Vote::NoPlace(text)
            | Vote::Garbled(text)
            | Vote::Quarantined { left: None, text } => Some(text),
            Vote::Granted(_)
            | Vote::Confirmed
            | Vote::Provisional
            | Vote::Held { .. }
            | Vote::Reserved
            | Vote::NotHeld
            | Vote::Quarantined { left: Some(_), .. }
            | Vote::TimedOut
            | Vote::ModuleMissing
            | Vote::WrongType => None,
        }
    }

    /// The master that this is about, if it is told of one on the way there: by now, another one
    /// may be asked.
    pub(super) fn its_master(&self) -> Option<Arc<str>> {
        let (master, _) = self.reason()?.strip_prefix(ITS_MASTER)?.split_once(": ")?;
        Some(master.into())
    }

    /// Whether something is wrong with the node or with the request, so that people want to know
    /// which node it is.
    const fn is_trouble(&self) -> bool {
        match self {
            Vote::Granted(_)
            | Vote::Confirmed
            | Vote::Held { .. }
            | Vote::Reserved
            | Vote::NotHeld => false,
            Vote::Provisional
            | Vote::Quarantined { .. }
            | Vote::TimedOut
            | Vote::Unreachable(_)
            | Vote::Unavailable(_)
            | Vote::ModuleMissing
            | Vote::NoPermission(_)
            | Vote::WrongType
            | Vote::Refused(_)
            | Vote::NoPlace(_)
            | Vote::Garbled(_) => true,
        }
    }

    /// How much longer the node is in quarantine.
    const fn quarantine_left(&self) -> Option<Duration> {
        if let Vote::Quarantined { left, .. } = self { *left } else { None }
    }

    /// A detail worth adding once after the summary.
    fn detail(&self) -> Option<String> {
        match self.quarantine_left() {
            Some(left) => Some(format!("for {} more", Length(left))),
            None => self.reason().map(|text| Printable::text(text).to_string()),
        }
    }
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Vote::Granted(fence) => write!(f, "granted with fence {fence}"),
            Vote::Held { label, left, held_for, readers, waiting_writers } => {
                write!(f, "held by {}", Holders { label: label.as_deref(), readers: *readers })?;
                if let Some(held_for) = held_for {
                    write!(f, " for {}", Length(*held_for))?;
                }
                left.map_or(Ok(()), |left| write!(f, ", up to {} more", Length(left)))?;
                write_ahead(f, *readers, *waiting_writers)
            }
            other => match other.detail() {
                Some(detail) => write!(f, "{}: {detail}", other.summary()),
                None => f.write_str(other.summary()),
            },
        }
    }
}

impl std::error::Error for Vote {}

/// Who holds a lock, in few words.
pub(crate) struct Holders<'a> {
    pub(crate) label: Option<&'a str>,
    pub(crate) readers: u64,
}

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.label, self.readers) {
            (None, 0) => f.write_str("another"),
            (None, 1) => f.write_str("a reader"),
            (None, readers) => write!(f, "{readers} readers"),
            (Some(label), 0) => Printable::text(label).fmt(f),
            (Some(label), 1) => write!(f, "the reader {}", Printable::text(label)),
            (Some(label), 2) => write!(f, "{} and another reader", Printable::text(label)),
            (Some(label), readers) => {
                write!(f, "{} and {} other readers", Printable::text(label), readers - 1)
            }
        }
    }
}

/// Writes which waiters come before a reader, although readers hold the lock.
fn write_ahead(f: &mut fmt::Formatter<'_>, readers: u64, waiting_writers: u64) -> fmt::Result {
    match (readers, waiting_writers) {
        (0, _) | (_, 0) => Ok(()),
        (_, 1) => f.write_str(", and a writer waits"),
        (_, writers) => write!(f, ", and {writers} writers wait"),
    }
}

/// The vote of one node, with the node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's address, without password.
    pub node: Arc<str>,
    /// For a Cluster, the master that has the lock's slot; for a group under Sentinel, the master
    /// that was asked last, also if it cannot be reached. `None` for a server by itself, or while
    /// no master is known.
    pub master: Option<Arc<str>>,
    /// Its vote.
    pub vote: Vote,
}

impl NodeReport {
    /// The vote of a server by itself, or of no particular master.
    pub const fn new(node: Arc<str>, vote: Vote) -> NodeReport {
        NodeReport { node, master: None, vote }
    }

    /// The node's name for people, with the master that voted.
    fn place(&self) -> String {
        place(&self.node, self.master.as_deref())
    }
}

/// The node's name for people, with one of its masters.
pub(crate) fn place(node: &str, master: Option<&str>) -> String {
    let node = Printable::text(node);
    match master {
        Some(master) => format!("{node} at {}", Printable::text(master)),
        None => node.to_string(),
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place(), self.vote)
    }
}

/// Equal votes, and the nodes that gave them.
pub(crate) struct Group<'a> {
    /// Of those in quarantine, the one that takes longest.
    pub(crate) vote: &'a Vote,
    nodes: Vec<&'a NodeReport>,
}

impl<'a> Group<'a> {
    /// The votes in groups, in the order of their first nodes.
    pub(crate) fn all(reports: &'a [NodeReport]) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for report in reports {
            let vote = &report.vote;
            let same = |group: &&mut Group<'_>| {
                group.vote.place() == vote.place() && group.vote.reason() == vote.reason()
            };
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.nodes.push(report);
                    if group.vote.quarantine_left() < vote.quarantine_left() {
                        group.vote = vote;
                    }
                }
                None => groups.push(Group { vote, nodes: vec![report] }),
            }
        }
        groups
    }

    /// A detail worth adding once after the summary. One node may be back long before another.
    fn detail(&self) -> Option<String> {
        let lefts = self.nodes.iter().filter_map(|report| report.vote.quarantine_left());
        match (lefts.min(), self.vote.quarantine_left()) {
            (Some(least), Some(most)) if least * 2 < most => {
                Some(format!("for {} to {} more", Length(least), Length(most)))
            }
            _ => self.vote.detail(),
        }
    }

    /// How many nodes gave this vote.
    pub(crate) const fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The names of these nodes, shortened.
    pub(crate) fn names(&self) -> String {
        let named = &self.nodes[..self.count().min(NAMED_MAX)];
        listed(named.iter().map(|report| report.place()).collect(), self.count(), ", ")
    }
}

/// How many nodes with the same vote are named.
const NAMED_MAX: usize = 3;

/// All votes in one line: holders first, then every other kind of vote with its count. If something
/// is wrong with some of the nodes, or with the only one, their names follow.
#[derive(Debug)]
pub struct Summary<'a>(pub &'a [NodeReport]);

impl Summary<'_> {
    fn write_holders(&self, f: &mut fmt::Formatter<'_>) -> Result<bool, fmt::Error> {
        let held = |report: &&NodeReport| matches!(report.vote, Vote::Held { .. });
        let count = self.0.iter().filter(held).count();
        if count == 0 {
            return Ok(false);
        }
        let mut labels: Vec<(&str, usize)> = Vec::new();
        let (mut longest, mut most, mut ahead) = (None, 0, 0);
        for report in self.0 {
            if let Vote::Held { label, left, readers, waiting_writers, .. } = &report.vote {
                let known = |(other, _): &&mut (&str, usize)| label.as_deref() == Some(*other);
                match labels.iter_mut().find(known) {
                    Some((_, count)) => *count += 1,
                    None => labels.extend(label.as_deref().map(|label| (label, 1))),
                }
                longest = longest.max(*left);
                (most, ahead) = (most.max(*readers), ahead.max(*waiting_writers));
            }
        }
        if most == 0 && self.is_split(count, &labels) {
            self.write_shares(f, count, &labels)?;
        } else {
            let names: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
            let label = (!names.is_empty()).then(|| names.join(" and "));
            let holders = Holders { label: label.as_deref(), readers: most };
            write!(f, "{} {} it for {holders}", Share(count, self.0.len()), hold(count))?;
        }
        if let Some(longest) = longest {
            write!(f, " for up to {} more", Length(longest))?;
        }
        write_ahead(f, most, ahead)?;
        Ok(true)
    }

    /// Whether several clients have it on some of the nodes each, and none of them on a quorum. A
    /// client may have it on nodes that did not answer, too, and on those that name nobody.
    fn is_split(&self, held: usize, labels: &[(&str, usize)]) -> bool {
        let named: usize = labels.iter().map(|(_, count)| count).sum();
        let is_silent = |report: &&NodeReport| report.vote.answer() == Answer::Unknown;
        let silent = self.0.iter().filter(is_silent).count();
        let most = labels.iter().map(|(_, count)| count).max().copied().unwrap_or_default();
        let most = most + (held - named) + silent;
        labels.len() > 1 && !Quorum::is_majority(most, self.0.len())
    }

    /// Writes who has it on how many nodes.
    fn write_shares(
        &self,
        f: &mut fmt::Formatter<'_>,
        held: usize,
        labels: &[(&str, usize)],
    ) -> fmt::Result {
        f.write_str("no client has a quorum: ")?;
        for (place, (label, count)) in labels.iter().enumerate() {
            let label = Printable::text(label);
            match place {
                0 => write!(f, "{} {} it for {label}", Share(*count, self.0.len()), hold(*count))?,
                _ => write!(f, ", {count} for {label}")?,
            }
        }
        match held - labels.iter().map(|(_, count)| count).sum::<usize>() {
            0 => Ok(()),
            unnamed => write!(f, ", {unnamed} for another"),
        }
    }
}

const fn hold(nodes: usize) -> &'static str {
    if nodes == 1 { "holds" } else { "hold" }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut has_text = self.write_holders(f)?;
        for group in Group::all(self.0) {
            if matches!(group.vote, Vote::Held { .. }) {
                continue;
            }
            let count = group.count();
            let summary = match (group.vote, count) {
                (Vote::Reserved, 1) => "keeps it for the first in line",
                (Vote::Reserved, _) => "keep it for the first in line",
                (vote, _) => vote.summary(),
            };
            if has_text {
                write!(f, "; {count} {summary}")?;
            } else {
                write!(f, "{} {summary}", Share(count, self.0.len()))?;
            }
            has_text = true;
            if let Some(detail) = group.detail() {
                write!(f, " ({detail})")?;
            }
            if group.vote.is_trouble() && (count < self.0.len() || count == 1) {
                write!(f, ": {}", group.names())?;
            }
        }
        Ok(())
    }
}

/// Some of all nodes, as in "2 of 3 nodes".
pub(crate) struct Share(pub(crate) usize, pub(crate) usize);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share(count, all) = self;
        write!(f, "{count} of {all} {}", if *all == 1 { "node" } else { "nodes" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_told_of_with_the_writers_whom_they_keep_waiting() {
        let held = |label: Option<&str>, readers, waiting_writers| {
            let (label, left) = (label.map(str::to_owned), Some(Duration::from_secs(9)));
            Vote::Held { label, left, held_for: None, readers, waiting_writers }
        };
        let told = |vote: Vote| vote.to_string();
        assert_eq!(told(held(None, 0, 2)), "held by another, up to 9s more");
        assert_eq!(told(held(None, 1, 0)), "held by a reader, up to 9s more");
        assert_eq!(told(held(Some("ada"), 1, 0)), "held by the reader ada, up to 9s more");
        let one = "held by ada and another reader, up to 9s more, and a writer waits";
        assert_eq!(told(held(Some("ada"), 2, 1)), one);
        let said = Summary(&reports(vec![held(None, 3, 0), held(Some("ada"), 4, 2)])).to_string();
        let all = "2 of 2 nodes hold it for ada and 3 other readers for up to 9s more, and 2 \
                   writers wait";
        assert_eq!(said, all);
    }

    /// Regression: an error was told of one master, and another one was said to have it.
    #[test]
    fn a_vote_on_the_way_is_of_the_master_that_it_names() {
        let of = |text: &str| Vote::Unreachable(text.into()).its_master();
        let told = of(&format!("{ITS_MASTER}[::1]:7000: connection refused"));
        assert_eq!(told.as_deref(), Some("[::1]:7000"));
        assert_eq!(of("connection refused"), None);
        assert_eq!(of("its master"), None);
        assert_eq!(Vote::TimedOut.its_master(), None);
    }

    #[test]
    fn a_vote_of_a_cluster_names_the_master_that_gave_it() {
        let down = Vote::Unreachable("connection refused".into());
        let cluster = NodeReport::new("cluster:a:1".into(), down);
        let report = NodeReport { master: Some("b:2".into()), ..cluster };
        assert_eq!(report.to_string(), "cluster:a:1 at b:2: unreachable: connection refused");
        assert_eq!(
            Summary(&[report]).to_string(),
            "1 of 1 node unreachable (connection refused): cluster:a:1 at b:2"
        );
    }

    fn reports(votes: Vec<Vote>) -> Vec<NodeReport> {
        let report = |(index, vote)| NodeReport::new(format!("n{index}").into(), vote);
        votes.into_iter().enumerate().map(report).collect()
    }

    /// The first reason was reported for all unreachable nodes, and no node was named.
    #[test]
    fn reasons_that_differ_are_told_apart_and_nodes_in_trouble_are_named() {
        let down = |text: &str| Vote::Unreachable(text.into());
        let votes = vec![down("refused"), down("no route"), down("refused"), Vote::NotHeld];
        assert_eq!(
            Summary(&reports(votes)).to_string(),
            "2 of 4 nodes unreachable (refused): n0, n2; 1 unreachable (no route): n1; 1 free"
        );
        // Times that are nearly the same are one reason.
        let quarantined = |millis| Vote::Quarantined {
            left: Some(Duration::from_millis(millis)),
            text: millis.to_string().into(),
        };
        let votes = vec![quarantined(1_900), quarantined(2_100), Vote::NotHeld];
        let said = "2 of 3 nodes in quarantine (for 2.1s more): n0, n1; 1 free";
        assert_eq!(Summary(&reports(votes)).to_string(), said);
        let votes = vec![quarantined(15_800), quarantined(86_400_000), Vote::NotHeld];
        let said = "2 of 3 nodes in quarantine (for 15.8s to 24h more): n0, n1; 1 free";
        assert_eq!(Summary(&reports(votes)).to_string(), said);
        // If it is all nodes, none is named; of many, only some are.
        let said = Summary(&reports(vec![down("refused"); 3])).to_string();
        assert_eq!(said, "3 of 3 nodes unreachable (refused)");
        // A single node is named: its URL may lack the port, and lead elsewhere than intended.
        let said = Summary(&reports(vec![down("refused")])).to_string();
        assert_eq!(said, "1 of 1 node unreachable (refused): n0");
        let mut votes = vec![Vote::TimedOut; 5];
        votes.push(Vote::NotHeld);
        let said = "5 of 6 nodes timed out: n0, n1, n2, 2 more; 1 free";
        assert_eq!(Summary(&reports(votes)).to_string(), said);
    }

    #[test]
    fn one_line_says_who_holds_it_for_how_long_and_who_is_in_trouble() {
        let held = |left| Vote::Held {
            label: Some("worker-7".into()),
            left: Some(Duration::from_millis(left)),
            held_for: None,
            readers: 0,
            waiting_writers: 0,
        };
        let votes = vec![
            held(2_140),
            held(2_050),
            Vote::TimedOut,
            held(1_999),
            Vote::Unreachable(Arc::from("connection refused")),
        ];
        assert_eq!(
            Summary(&reports(votes)).to_string(),
            "3 of 5 nodes hold it for worker-7 for up to 2.1s more; 1 timed out: n2; \
             1 unreachable (connection refused): n4"
        );
    }

    /// Three clients with a part each read as if all of them held the lock.
    #[test]
    fn a_split_vote_is_told_from_a_lock_that_is_held() {
        let held = |label: &str| match label {
            "" => Vote::TimedOut,
            "free" => Vote::NotHeld,
            "?" => Vote::HELD,
            label => Vote::Held {
                label: Some(label.to_owned()),
                left: Some(Duration::from_secs(9)),
                held_for: None,
                readers: 0,
                waiting_writers: 0,
            },
        };
        for (labels, said) in [
            (
                &["a", "b", "a", "c", "b"][..],
                "no client has a quorum: 2 of 5 nodes hold it for a, 2 for b, 1 for c for up to 9s \
                 more",
            ),
            (
                &["a", "b", "free"],
                "no client has a quorum: 1 of 3 nodes holds it for a, 1 for b for up to 9s more; 1 \
                 free",
            ),
            (
                &["a", "b", "a", "b", "?", "free", "free"],
                "no client has a quorum: 2 of 7 nodes hold it for a, 2 for b, 1 for another for up \
                 to 9s more; 2 free",
            ),
            // A silent node may be the one that makes a quorum.
            (
                &["a", "b", ""],
                "2 of 3 nodes hold it for a and b for up to 9s more; 1 timed out: n2",
            ),
            (&["a", "b", "?"], "3 of 3 nodes hold it for a and b for up to 9s more"),
            (&["a", "a", "b"], "3 of 3 nodes hold it for a and b for up to 9s more"),
        ] {
            let votes = labels.iter().map(|label| held(label)).collect();
            assert_eq!(Summary(&reports(votes)).to_string(), said, "{labels:?}");
        }
    }

    #[test]
    fn a_lock_that_is_kept_for_a_waiter_is_held_by_nobody() {
        let said = |votes| Summary(&reports(votes)).to_string();
        let kept = "2 of 3 nodes keep it for the first in line; 1 free";
        assert_eq!(said(vec![Vote::Reserved, Vote::NotHeld, Vote::Reserved]), kept);
        let kept = "1 of 2 nodes holds it for another; 1 keeps it for the first in line";
        assert_eq!(said(vec![Vote::HELD, Vote::Reserved]), kept);
        assert_eq!(Vote::Reserved.to_string(), "kept for the first in line");
        assert_eq!(Vote::Reserved.stand(), Stand::Held);
    }

    #[test]
    fn labels_and_texts_of_servers_cannot_play_with_a_terminal() {
        let hostile = "\x1b[2J\r\n\u{9b}2J\u{202e}";
        let label = Some(hostile.to_owned());
        let texts = |text: fn(Arc<str>) -> Vote| text(Arc::from(hostile));
        let votes = vec![
            Vote::Held { label, left: None, held_for: None, readers: 0, waiting_writers: 0 },
            texts(Vote::Unreachable),
            texts(Vote::NoPermission),
            texts(Vote::Refused),
            texts(Vote::NoPlace),
            texts(Vote::Garbled),
            texts(|text| Vote::Quarantined { left: None, text }),
        ];
        let count = votes.len();
        let reports = reports(votes);
        let one_by_one: String = reports.iter().map(ToString::to_string).collect();
        for text in [Summary(&reports).to_string(), one_by_one] {
            assert_eq!(text.matches("\\x1b[2J\\r\\n\\u{9b}2J\\u{202e}").count(), count, "{text}");
            assert!(text.chars().all(super::super::printable::is_plain), "{text:?}");
        }
    }

    #[test]
    fn equal_votes_are_counted_together() {
        let votes = vec![Vote::TimedOut, Vote::TimedOut, Vote::Granted(Fence::ZERO)];
        assert_eq!(
            Summary(&reports(votes)).to_string(),
            "2 of 3 nodes timed out: n0, n1; 1 granted"
        );
        // Also for callers that want the lock, to whom "2 not held" meant nothing.
        let votes = vec![Vote::HELD, Vote::NotHeld, Vote::NotHeld];
        let said = "1 of 3 nodes holds it for another; 2 free";
        assert_eq!(Summary(&reports(votes)).to_string(), said);
        let alone = |vote| Summary(&reports(vec![vote])).to_string();
        assert_eq!(alone(Vote::HELD), "1 of 1 node holds it for another");
        assert_eq!(alone(Vote::Refused("x".into())), "1 of 1 node refused (x): n0");
    }

    #[test]
    fn an_answer_that_did_not_come_is_neither_yes_nor_no() {
        for vote in [Vote::TimedOut, Vote::Unreachable("x".into()), Vote::Garbled("x".into())] {
            assert_eq!(vote.answer(), Answer::Unknown);
            assert_eq!(vote.extension(), Extension::Unknown);
        }
    }
}
