//! The status of a node: what its server reports about itself, or the masters of a Cluster do.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::length::Length;
use super::printable::listed;
use super::reading::error_vote;
use super::vote::{NodeReport, Vote};
use crate::engine::{Fence, SLOTS};
use crate::wire::code;
use crate::wire::node_info::{self, NodeField, NodeFields};
use crate::wire::resp::Reply;

/// A node's own account: its role, and its INFO section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Whether it is a master; a replica grants nothing.
    pub is_master: bool,
    /// The master of a replica, as the replica reports it: `host:port`.
    pub master: Option<String>,
    /// How much longer it grants nothing, if it is in quarantine.
    pub quarantine_left: Option<Duration>,
    /// The highest fence of any lock that it knows.
    pub highest_fence: Fence,
    /// The replicas that are attached to it; those of all masters of a Cluster.
    pub replicas: Vec<ReplicaStatus>,
    /// The masters with more replicas than they are told of. Without any `lockmod.replicas`, only
    /// where others may promote a replica: Sentinels, or a Cluster.
    pub excess: Vec<Excess>,
    /// All fields of `INFO lockmod`.
    pub fields: NodeFields,
    /// In how many slots locks are granted, if the node is a Cluster, or one server of a Cluster
    /// that grants.
    pub slots: Option<SlotShare>,
    /// Whether the node is one server of a Cluster, which has only the locks in its slots.
    pub is_in_cluster: bool,
    /// Why a master of a Cluster does not show whether it refuses everything because the Cluster is
    /// down: the user may not ask (`CLUSTER INFO`).
    pub unseen: Option<Vote>,
}

/// In how many of a Cluster's slots locks are granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotShare {
    /// The number of those slots, of 16384 in all.
    pub granting: u16,
    /// In how many of these a master grants nothing yet, because it asks another one first: clients
    /// try again, and after some seconds without an answer it waits.
    pub asking: u16,
    /// The masters that grant nothing, or wait in some of their slots, and why.
    pub failing: Vec<FailingMaster>,
    /// In how many slots it is unknown which locks are held: their masters do not answer, or they
    /// have none.
    pub unknown: u16,
    /// The masters that do not report their locks, and why.
    pub silent: Vec<NodeReport>,
    /// The masters that may refuse everything because the Cluster is down, though they seem to
    /// grant: the user may not ask them (`CLUSTER INFO`).
    pub unseen: Vec<NodeReport>,
    /// The moves of slots that have begun and not ended. A master that does not let the user ask
    /// (`CLUSTER NODES`) tells of none.
    pub moving: Vec<SlotMove>,
}

/// Slots of a Cluster that move by steps (`CLUSTER SETSLOT`): commands about locks that are free,
/// or have moved already, go on to the other master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotMove {
    /// How many slots.
    pub slots: u16,
    /// How many of them the other master does not import: the move is open at one side only, and no
    /// lock that is free can be acquired there.
    pub untaken: u16,
    /// The master that has them.
    pub from: Arc<str>,
    /// The master that will have them.
    pub to: Arc<str>,
}

impl SlotShare {
    /// Whether locks are granted in some slots but not in others.
    pub fn is_partial(&self) -> bool {
        (1..SLOTS).contains(&self.granting)
    }

    /// Adds a master of a Cluster with this many slots, and what it reports.
    fn add(&mut self, node: &Arc<str>, slots: u16, status: &Result<NodeStatus, Vote>) {
        let report = |vote: &Vote| NodeReport::new(Arc::clone(node), vote.clone());
        let vote = match status {
            Ok(status) => {
                self.unseen.extend(status.unseen.as_ref().map(report));
                self.unknown = self.unknown.saturating_sub(slots);
                match status.abstention() {
                    None => self.add_granting(slots, status),
                    vote => vote,
                }
            }
            Err(vote) => {
                self.silent.push(report(vote));
                Some(vote.clone())
            }
        };
        self.failing.extend(vote.map(|vote| FailingMaster {
            report: report(&vote),
            slots,
            status: status.as_ref().ok().cloned(),
        }));
    }

    /// Adds the moves between the masters that were added.
    fn add_moves(&mut self, moving: Vec<SlotMove>) {
        for SlotMove { slots, untaken, from, to } in &moving {
            if !self.refuses(from) {
                let refused = if self.refuses(to) { slots } else { untaken };
                self.granting = self.granting.saturating_sub(*refused);
            }
            let is_silent = |name: &Arc<str>| self.silent.iter().any(|report| report.node == *name);
            if is_silent(to) && !is_silent(from) {
                self.unknown = self.unknown.saturating_add(*slots);
            }
        }
        self.moving = moving;
    }

    /// Whether this master grants nothing.
    fn refuses(&self, name: &Arc<str>) -> bool {
        let grants = |told: &NodeStatus| told.abstention().is_none();
        let mut failing = self.failing.iter().filter(|master| master.report.node == *name);
        failing.any(|master| !master.status.as_ref().is_some_and(grants))
    }

    /// Adds a master that grants, with this many slots. Returns its vote if it waits in some.
    pub(super) fn add_granting(&mut self, slots: u16, status: &NodeStatus) -> Option<Vote> {
        let waits_in = status.waits_in();
        let unsettled = status.fields.number(NodeField::UnsettledSlots).unwrap_or(0);
        let unsettled = u16::try_from(unsettled).unwrap_or(slots).min(slots);
        let waiting = if waits_in.is_some() { unsettled } else { 0 };
        self.granting = self.granting.saturating_add(slots - waiting);
        self.asking = self.asking.saturating_add(unsettled - waiting);
        waits_in.map(|waits| Vote::Unavailable(waits.to_string().into()))
    }
}

/// Some of the slots of a master of a Cluster: it grants nothing there, and does in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitsIn {
    /// How many.
    pub slots: u64,
    /// For how long, at least.
    pub left: Duration,
}

impl fmt::Display for WaitsIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.slots == 1 { "" } else { "s" };
        let (slots, left) = (self.slots, Length(self.left));
        write!(f, "grants nothing in {slots} slot{plural} for at least {left}")
    }
}

/// A master of a Cluster that grants nothing, or waits in some of its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailingMaster {
    /// Which one, and why.
    pub report: NodeReport,
    /// How many slots it has, as far as is known.
    pub slots: u16,
    /// Its own status, if it reports one.
    pub status: Option<NodeStatus>,
}

/// A master with more replicas attached than its `lockmod.replicas`: the majority that has to
/// support it is counted over fewer servers than there are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Excess {
    /// The master, if it is one of a Cluster.
    pub master: Option<Arc<str>>,
    /// How many replicas are attached to it.
    pub attached: u64,
    /// How many it should have.
    pub replicas: u64,
}

/// How many replicas of a master support it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// How many do.
    pub supporters: u64,
    /// How many must, or it grants nothing.
    pub needed: u64,
    /// How many replicas it should have: `lockmod.replicas`.
    pub replicas: u64,
}

/// What a master reports about a replica that is attached to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaStatus {
    /// Where it is: `host:port`.
    pub address: String,
    /// How many bytes that the master has sent it has not acknowledged.
    pub lag_bytes: u64,
}

impl NodeStatus {
    /// Whether it grants locks now.
    pub fn is_granting(&self) -> bool {
        // An older module does not report this.
        let says_no = self.fields.number(NodeField::Granting) == Some(0);
        let has_all = self.slots.as_ref().is_none_or(|share| share.granting >= SLOTS);
        self.is_master && self.quarantine_left.is_none() && !says_no && has_all
    }

    /// Why it grants nothing; `None` if it grants.
    pub(crate) fn abstention(&self) -> Option<Vote> {
        if self.is_granting() {
            return None;
        }
        let left = self.quarantine_left.filter(|_| self.is_master);
        let vote = Vote::of_obstacle(left, self.fields.text(NodeField::State));
        Some(vote.unwrap_or_else(|| Vote::Unavailable("a replica".into())))
    }

    /// In how many of its slots a master of a Cluster waits, while it grants in the others: leases
    /// that it does not know may stand there.
    pub fn waits_in(&self) -> Option<WaitsIn> {
        let number = |field| self.fields.number(field).filter(|&number| number > 0);
        let left = Duration::from_millis(number(NodeField::UnsettledLeft)?);
        let is_some = self.fields.number(NodeField::Granting) != Some(0);
        let slots = number(NodeField::UnsettledSlots).filter(|_| self.is_master && is_some)?;
        Some(WaitsIn { slots, left })
    }

    /// How many replicas support it, how many must, and how many it should have, if it grants only
    /// with their support. For a Cluster, these are the least of the first number over its masters,
    /// and the most of the others.
    pub fn support(&self) -> Option<Support> {
        let number = |field| self.fields.number(field);
        let replicas = number(NodeField::Replicas).filter(|&replicas| replicas > 0)?;
        let supporters = number(NodeField::Supporters)?;
        Some(Support { supporters, needed: number(NodeField::SupportersNeeded)?, replicas })
    }

    /// Combines the statuses of a Cluster's masters, each with its number of slots, and the moves
    /// between them: the Cluster grants if all do.
    ///
    /// # Errors
    /// The first vote, if no master reports a status, with the master that is down if the others
    /// say that the Cluster is.
    pub(crate) fn together(
        masters: Vec<(Arc<str>, u16, Result<NodeStatus, Vote>)>,
        moving: Vec<SlotMove>,
    ) -> Result<NodeStatus, Vote> {
        let mut share = SlotShare { unknown: SLOTS, ..SlotShare::default() };
        let mut told = Vec::new();
        for (node, slots, status) in masters {
            share.add(&node, slots, &status);
            if let Ok(mut status) = status {
                let name = |excess: &mut Excess| excess.master = Some(Arc::clone(&node));
                status.excess.iter_mut().for_each(name);
                told.push(status);
            }
        }
        share.add_moves(moving);
        // The others may only wait to hear one that does not answer.
        share.failing.sort_by_key(|master| (master.status.is_some(), Reverse(master.slots)));
        let mut told = told.into_iter();
        let mut all = told.next().ok_or_else(|| first_failure(&share.silent))?;
        for status in told {
            all.is_master &= status.is_master;
            all.master = all.master.or(status.master);
            all.quarantine_left = all.quarantine_left.max(status.quarantine_left);
            all.highest_fence = all.highest_fence.max(status.highest_fence);
            all.replicas.extend(status.replicas);
            all.excess.extend(status.excess);
            all.fields = all.fields.with(&status.fields);
        }
        (all.slots, all.is_in_cluster, all.unseen) = (Some(share), false, None);
        Ok(all)
    }
}

/// How many masters the vote of a Cluster that is down names: those that are to be started.
const NAMED: usize = 4;

/// The first of these votes; but if the Cluster is down, first why, as far as it is known: the
/// masters that answer tell only that.
fn first_failure(silent: &[NodeReport]) -> Vote {
    let says_down = |text: &str| code::word_of(text) == code::CLUSTERDOWN.word;
    let down = silent.iter().find_map(|report| match &report.vote {
        Vote::Unavailable(text) if says_down(text) => Some(text),
        _ => None,
    });
    let is_cause = |report: &&NodeReport| match &report.vote {
        Vote::Unavailable(text) => !says_down(text),
        _ => true,
    };
    let causes: Vec<&NodeReport> = silent.iter().filter(is_cause).collect();
    match (down, &causes[..]) {
        (Some(down), [_, ..]) => {
            let named = causes.iter().take(NAMED).map(ToString::to_string).collect();
            Vote::Unavailable(format!("{down}: {}", listed(named, causes.len(), "; ")).into())
        }
        _ => silent.first().map_or(Vote::TimedOut, |report| report.vote.clone()),
    }
}

/// Whether this reply to CLUSTER INFO is that of a master that refuses every command about a slot.
fn is_down(reply: &Reply) -> bool {
    let Reply::Text(text) = reply else { return false };
    String::from_utf8_lossy(text).lines().any(|line| line == "cluster_state:fail")
}

/// Reads a server's reply to INFO, and a master's of a Cluster to CLUSTER INFO.
pub(super) fn server_status(
    of_info: Option<&Reply>,
    of_cluster: Option<&Reply>,
) -> Result<NodeStatus, Vote> {
    let status = status(of_info)?;
    // Then it refuses every command about a lock, which its INFO does not show.
    if of_cluster.is_some_and(is_down) {
        return Err(Vote::Unavailable(code::CLUSTERDOWN.says("its Cluster is down").into()));
    }
    let unseen = match of_cluster {
        Some(Reply::Error(text)) => Some(error_vote(text)),
        _ => None,
    };
    let is_denied = |vote: &Vote| matches!(vote, Vote::NoPermission(_));
    Ok(NodeStatus { unseen: unseen.filter(is_denied), ..status })
}

/// Reads a line of `INFO replication` about a replica that is attached and online; `sent` is how
/// many bytes its master has sent.
fn replica(line: &str, sent: u64) -> Option<ReplicaStatus> {
    let (number, told) = line.strip_prefix("slave")?.split_once(':')?;
    number.parse::<u32>().ok()?;
    let attached = node_info::read_replica(told.as_bytes())?;
    let address = String::from_utf8_lossy(&attached.name).into_owned();
    Some(ReplicaStatus { address, lag_bytes: sent.saturating_sub(attached.acknowledged) })
}

/// Reads the reply to `INFO lockmod replication cluster`.
fn status(reply: Option<&Reply>) -> Result<NodeStatus, Vote> {
    let text = match reply {
        Some(Reply::Text(text)) => String::from_utf8_lossy(text),
        Some(Reply::Error(text)) => return Err(error_vote(text)),
        _ => return Err(Vote::Garbled("not what INFO answers".into())),
    };
    let fields = NodeFields::read(&text);
    if fields.is_empty() {
        return Err(Vote::ModuleMissing);
    }
    let left = fields.number(NodeField::QuarantineLeft).filter(|&left| left > 0);
    let highest_fence = fields.number(NodeField::HighestFence).and_then(Fence::new);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let master = field("master_host:").zip(field("master_port:"));
    let sent: u64 = field("master_repl_offset:").and_then(|sent| sent.parse().ok()).unwrap_or(0);
    let is_master = field("role:") == Some("master");
    let attached: Vec<ReplicaStatus> =
        text.lines().filter_map(|line| replica(line, sent)).collect();
    let excess = fields.number(NodeField::Replicas).and_then(|replicas| {
        let attached = attached.len() as u64;
        let is_excess = is_master && attached > replicas;
        is_excess.then_some(Excess { master: None, attached, replicas })
    });
    Ok(NodeStatus {
        is_master,
        master: master.map(|(host, port)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }),
        quarantine_left: left.map(Duration::from_millis),
        highest_fence: highest_fence.unwrap_or_default(),
        replicas: attached,
        excess: excess.into_iter().collect(),
        fields,
        slots: None,
        is_in_cluster: field("cluster_enabled:") == Some("1"),
        unseen: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All was said to be well while no lock could be acquired in a slot that was moving to a
    /// master that had died.
    #[test]
    fn a_slot_that_moves_to_a_master_that_is_down_is_not_granted() {
        let master = || {
            let text = "role:master\r\nlockmod_granting:1\r\n".to_owned();
            super::status(Some(&Reply::Text(text.into_bytes().into())))
        };
        let waiting = || {
            let text = "role:master\r\nlockmod_granting:0\r\nlockmod_quarantine_left_ms:9\r\n";
            super::status(Some(&Reply::Text(text.as_bytes().into())))
        };
        let name = |name: &str| Arc::<str>::from(name);
        let told = |from: Result<NodeStatus, Vote>, to: Result<NodeStatus, Vote>| {
            let masters =
                vec![(name("a"), SLOTS, from), (name("b"), 0, to), (name("c"), 0, master())];
            let (from, to) = (name("a"), name("b"));
            let moving = vec![SlotMove { slots: 3, untaken: 1, from, to }];
            let share = NodeStatus::together(masters, moving).unwrap().slots.unwrap();
            assert_eq!(share.moving.len(), 1);
            (share.granting, share.unknown, share.failing.len())
        };
        assert_eq!(told(master(), master()), (SLOTS - 1, 0, 0));
        assert_eq!(told(master(), Err(Vote::TimedOut)), (SLOTS - 3, 3, 1));
        assert_eq!(told(master(), waiting()), (SLOTS - 3, 0, 1));
        assert_eq!(told(Err(Vote::TimedOut), Err(Vote::TimedOut)), (0, SLOTS, 2));
        assert_eq!(told(waiting(), waiting()), (0, 0, 2));
    }

    /// Regression: they were taken for masters whose Cluster is not down.
    #[test]
    fn masters_that_do_not_show_whether_their_cluster_is_down_are_told_of() {
        let reply = |text: &'static str| Reply::Text(text.as_bytes().into());
        let info = reply("role:master\r\nlockmod_granting:1\r\n");
        let status = |of_cluster: Reply| server_status(Some(&info), Some(&of_cluster));
        let denied = || Reply::Error("NOPERM no 'cluster|info'".into());
        let masters = vec![
            (Arc::from("a"), SLOTS, status(reply("cluster_state:ok\r\n"))),
            (Arc::from("b"), 0, status(denied())),
            (Arc::from("c"), 0, status(Reply::Error("ERR busy".into()))),
        ];
        let all = NodeStatus::together(masters, Vec::new()).unwrap();
        let told: Vec<String> = all.slots.unwrap().unseen.iter().map(ToString::to_string).collect();
        assert_eq!(told, ["b: denied access: NOPERM no 'cluster|info'"]);
        assert_eq!(all.unseen, None);
    }

    /// Regression: of several masters that were down, only the first was named, and later the
    /// others were only counted.
    #[test]
    fn a_cluster_that_is_down_names_the_masters_that_do_not_answer() {
        let told = |dead: usize| {
            let down = Vote::Unavailable(code::CLUSTERDOWN.says("x").into());
            let votes = std::iter::once(down).chain(std::iter::repeat_n(Vote::TimedOut, dead));
            let report = |(at, vote)| NodeReport::new(format!("m:{at}").into(), vote);
            let votes: Vec<NodeReport> = votes.enumerate().map(report).collect();
            first_failure(&votes).to_string()
        };
        assert_eq!(told(0), "not serving: CLUSTERDOWN x");
        assert_eq!(told(1), "not serving: CLUSTERDOWN x: m:1: timed out");
        let four: Vec<String> = (1..=4).map(|at| format!("m:{at}: timed out")).collect();
        let four = four.join("; ");
        assert_eq!(told(4), format!("not serving: CLUSTERDOWN x: {four}"));
        assert_eq!(told(6), format!("not serving: CLUSTERDOWN x: {four}; 2 more"));
    }

    #[test]
    fn a_node_says_what_it_is_in_its_info() {
        let text = b"# lockmod\r\nlockmod_locks:3\r\nlockmod_highest_fence:7\r\n\
            lockmod_quarantine_left_ms:1500\r\n# Replication\r\nrole:master\r\n";
        let status = super::status(Some(&Reply::Text(text.into()))).unwrap();
        assert_eq!(status.fields.number(NodeField::Locks), Some(3));
        assert_eq!(status.highest_fence.get(), 7);
        assert_eq!(status.quarantine_left, Some(Duration::from_millis(1_500)));
        assert!(status.is_master && !status.is_granting());
        let text = b"lockmod_replicas:2\r\nlockmod_supporters:1\r\n\
            lockmod_supporters_needed:1\r\nrole:master\r\nconnected_slaves:2\r\n\
            slave0:ip=::1,port=7,state=online,offset=15,lag=0\r\n\
            slave1:ip=::1,port=8,state=wait_bgsave,offset=0,lag=0\r\n\
            master_repl_offset:20\r\n";
        let status = super::status(Some(&Reply::Text(text.into()))).unwrap();
        let support = Support { supporters: 1, needed: 1, replicas: 2 };
        assert_eq!(status.support(), Some(support));
        let replica = ReplicaStatus { address: "::1:7".to_owned(), lag_bytes: 5 };
        assert_eq!((status.replicas, status.excess), (vec![replica], Vec::new()));
        let fewer = |role: &str| {
            let text = String::from_utf8_lossy(text).replace("replicas:2", "replicas:0");
            let text = text.replace("role:master", role);
            super::status(Some(&Reply::Text(text.into_bytes().into()))).unwrap().excess
        };
        assert_eq!(fewer("role:master"), [Excess { master: None, attached: 1, replicas: 0 }]);
        assert_eq!(fewer("role:slave"), [], "those of its master count");
        let text = b"lockmod_granting:0\r\nlockmod_state:STATEFILE no\r\nrole:master\r\n";
        let status = super::status(Some(&Reply::Text(text.into()))).unwrap();
        assert!(status.is_master && status.quarantine_left.is_none() && !status.is_granting());
        let text = b"lockmod_granting:0\r\nrole:slave\r\nmaster_host:::1\r\nmaster_port:7\r\n";
        let status = super::status(Some(&Reply::Text(text.into()))).unwrap();
        assert_eq!((status.is_master, status.master.as_deref()), (false, Some("[::1]:7")));
        let bare = Reply::Text(b"# Replication\r\nrole:master\r\n".into());
        assert_eq!(super::status(Some(&bare)), Err(Vote::ModuleMissing));
        assert!(matches!(super::status(None), Err(Vote::Garbled(_))));
    }
}
