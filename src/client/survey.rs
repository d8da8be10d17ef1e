//! A survey of all nodes: what each reports about itself, and which locks it has.
//!
//! The source of `lockmod status`, `top`, `list` and `exporter`; only `status` asks more, whether
//! the servers in the URLs lead to their nodes, and whether replicas could take over. It changes
//! nothing anywhere, asks all nodes at the same time, and bounds what it asks for: the status of a
//! server is one command, or four in a Cluster, and locks are listed only up to a number that the
//! caller gives.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use super::asking::AskedServer;
use super::locker::Locker;
use super::node_status::{NodeStatus, SlotShare, server_status};
use super::packet::Packet;
use super::printable::Named;
use super::reading::{error_vote, lock_info};
use super::search::{Counted, Locks, Wanted};
use super::slot_shares::{Gaps, OwnShares, receivers};
use super::slots::own_slots;
use super::vote::{NodeReport, Vote};
use crate::engine::{Fence, LockState, Uncounted};
use crate::wire::code::{self, Meaning};
use crate::wire::lock_info::LockInfo;
use crate::wire::node_info::{self, NodeField};
use crate::wire::resp::Reply;

/// How often masters to which slots move are searched again for locks that came meanwhile.
const SEARCHES_MAX: usize = 8;
/// How many locks a node is asked about in one batch.
const ASKED_AT_ONCE: usize = 1_000;

/// What all nodes report at about the same time.
#[derive(Clone)]
#[non_exhaustive]
pub struct Survey {
    /// The nodes, in the order of the settings.
    pub nodes: Vec<NodeSurvey>,
    /// How many nodes are a quorum.
    pub quorum: usize,
    /// The requested locks that at least one node has, by name.
    pub locks: BTreeMap<Vec<u8>, LockSurvey>,
    /// Whether there are more than requested.
    pub is_cut: bool,
    /// The nodes on which the search was given up, because they have very many free locks or other
    /// keys: held ones may be missing.
    pub given_up: Vec<Arc<str>>,
    /// How many locks are left out because their names are longer than
    /// [`NAME_MAX`](super::NAME_MAX), on the node with most of them.
    pub unnamed: u64,
    /// How many locks are left out because the user may not look at them (`LOCK.INFO` on their
    /// keys), on the node with most of them.
    pub hidden: u64,
    /// The highest fence that clients count for sure: 4 weeks ahead of the local clock.
    pub counted_max: Fence,
    /// The highest fence that a node accepts from others if it knows none as high: 8 weeks ahead of
    /// the local clock.
    pub raised_max: Fence,
}

impl fmt::Debug for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survey")
            .field("nodes", &self.nodes)
            .field("locks", &Named(&self.locks))
            .finish_non_exhaustive()
    }
}

/// What one node reports about itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeSurvey {
    /// The node.
    pub node: Arc<str>,
    /// The current master, if the node is the master of a group under Sentinel; all masters of a
    /// Cluster. Empty for a single server.
    pub masters: Vec<Arc<str>>,
    /// While the node does not answer and `masters` is empty, the master of the group that was
    /// asked last, if one was: it may not be the master any more.
    pub asked: Option<Arc<str>>,
    /// Its status, or its vote if it does not report one.
    pub status: Result<NodeStatus, Vote>,
    /// Why its locks are not listed although it reports its status: the user may not list them. Of
    /// a Cluster, those of one master at least.
    pub unlisted: Option<Vote>,
}

/// What the nodes report about one lock.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LockSurvey {
    /// What each node reports, in the order of the settings; `None` if it does not have the lock,
    /// or does not answer.
    pub nodes: Vec<Option<LockInfo>>,
}

/// What one server tells.
#[derive(Debug)]
struct ServerSurvey {
    status: Result<NodeStatus, Vote>,
    locks: Locks,
}

impl ServerSurvey {
    fn of(status: Result<NodeStatus, Vote>) -> ServerSurvey {
        ServerSurvey { status, locks: Locks::default() }
    }
}

impl Survey {
    /// How many nodes grant locks now, of those that can be in a quorum together.
    pub fn granting(&self) -> usize {
        let has_vote =
            |node: &&NodeSurvey| node.status.as_ref().is_ok_and(|status| self.has_vote(status));
        self.nodes.iter().filter(has_vote).count()
    }

    /// Whether a node grants locks now, and its grants may help to make a quorum.
    ///
    /// A floor of more than 8 weeks ahead, which only an operator can set, is above all that the
    /// other nodes accept, unless they have seen fences as high. A client that has to count such a
    /// grant takes the highest fence of all, so it gets no quorum with the others.
    pub fn has_vote(&self, status: &NodeStatus) -> bool {
        let floor = |status: &NodeStatus| {
            let floor = status.fields.number(NodeField::Floor).and_then(Fence::new);
            floor.unwrap_or_default()
        };
        let answered = self.nodes.iter().filter_map(|node| node.status.as_ref().ok());
        let granting: Vec<_> = answered.filter(|status| status.is_granting()).collect();
        let top = granting.iter().map(|status| floor(status)).max().unwrap_or_default();
        let is_counted = |status: &NodeStatus| floor(status) <= self.counted_max;
        let knows_top = |status: &NodeStatus| status.highest_fence >= top;
        let count =
            |is: &dyn Fn(&NodeStatus) -> bool| granting.iter().filter(|status| is(status)).count();
        let is_in_reach = match count(&is_counted) >= count(&knows_top) {
            _ if top <= self.raised_max => true,
            true => is_counted(status),
            false => knows_top(status),
        };
        is_in_reach && status.is_granting()
    }

    /// How many nodes are Clusters that grant locks in some of their slots now, but not in others.
    pub fn granting_partly(&self) -> usize {
        let share = |node: &NodeSurvey| node.status.as_ref().ok()?.slots.clone();
        self.nodes.iter().filter_map(share).filter(SlotShare::is_partial).count()
    }

    /// How many nodes may fail while locks can still be acquired; negative if none can be.
    pub fn margin(&self) -> i64 {
        self.granting() as i64 - self.quorum as i64
    }

    /// The fence that a quorum of nodes has reached by grants and raises; `None` while no quorum
    /// answers. Each node's is its highest, less its [jumps](NodeField::FenceJumps): when nodes go
    /// on above all that they may have issued before a crash, the others are not behind.
    pub fn quorum_fence(&self) -> Option<Fence> {
        let answered = self.nodes.iter().filter_map(|node| node.status.as_ref().ok());
        let reached = |status: &NodeStatus| {
            // An older module does not report this.
            let jumps = status.fields.number(NodeField::FenceJumps).unwrap_or(0);
            Fence::new(status.highest_fence.get().saturating_sub(jumps)).unwrap_or_default()
        };
        let mut fences: Vec<Fence> = answered.map(reached).collect();
        fences.sort_unstable_by(|a, b| b.cmp(a));
        fences.get(self.quorum.checked_sub(1)?).copied()
    }

    /// Whether a node's fences are so high that clients leave out its grants, as long as the other
    /// nodes may be a quorum.
    pub fn is_too_high(&self, status: &NodeStatus) -> bool {
        status.highest_fence > self.counted_max
    }

    /// How far `status` is behind the [quorum's fence](Survey::quorum_fence).
    pub fn fence_lag(&self, status: &NodeStatus) -> u64 {
        let fence = self.quorum_fence().map_or(0, Fence::get);
        fence.saturating_sub(status.highest_fence.get())
    }
}

/// Nodes know holders by their tokens, but do not reveal them. So holders are told apart by label
/// and fence. If a node restored a holder's lease with a larger fence, that node is missing from
/// the holder's count; but no holder is credited with nodes that have another's lease.
impl LockSurvey {
    /// On how many nodes the holder that [`LockSurvey::best`] names has a lease that counts towards
    /// a quorum.
    pub fn held_count(&self) -> usize {
        self.best().map_or(0, |best| self.like(best).filter(|info| self.counts(info)).count())
    }

    /// On how many more nodes that holder has a lease that does not count until the node's wait is
    /// over.
    pub fn held_provisionally(&self) -> usize {
        self.best().map_or(0, |best| self.like(best).filter(|info| !self.counts(info)).count())
    }

    /// Whether a reported lease counts towards a quorum.
    fn counts(&self, info: &LockInfo) -> bool {
        match info.uncounted {
            None => true,
            Some(Uncounted::Carried) => self.nodes.len() == 1,
            Some(Uncounted::Provisional) => false,
        }
    }

    /// On how many nodes it is held with another fence or label: by another, or by the same holder
    /// on a node that had forgotten the lease and has issued larger fences since.
    pub fn held_otherwise(&self) -> usize {
        self.held().count() - self.best().map_or(0, |best| self.like(best).count())
    }

    /// The most telling report: that of a node with the holder that most nodes name. If several
    /// holders tie, the one with the highest fence counts. Among nodes with readers, the one that
    /// names most of them. A replica's report only if there is no other.
    pub fn best(&self) -> Option<&LockInfo> {
        let told = |info: &&LockInfo| {
            let (is_voter, is_held) = (!is_copy(info), info.state == LockState::Held);
            let (alike, counts) = (self.like(info).count(), self.counts(info));
            (is_voter, is_held, alike, counts, info.readers, info.fence, info.left)
        };
        self.nodes.iter().flatten().max_by_key(told)
    }

    /// The reports of the nodes that have a vote and on which it is held.
    fn held(&self) -> impl Iterator<Item = &LockInfo> {
        let is_held = |info: &&LockInfo| info.state == LockState::Held && !is_copy(info);
        self.nodes.iter().flatten().filter(is_held)
    }

    /// The reports of the nodes on which the same holder as in this one holds it.
    fn like<'a>(&'a self, one: &'a LockInfo) -> impl Iterator<Item = &'a LockInfo> {
        fn holder(info: &LockInfo) -> (Fence, Option<&[u8]>) {
            let label = info.raw_label.as_deref().or(info.label.as_deref().map(str::as_bytes));
            (info.fence, label)
        }
        // Readers have fences and labels of their own, and nodes may name different ones.
        let is_alike = move |info: &&LockInfo| match (info.readers > 0, one.readers > 0) {
            (true, true) => true,
            (false, false) => holder(info) == holder(one),
            (true, false) | (false, true) => false,
        };
        self.held().filter(|_| one.state == LockState::Held).filter(is_alike)
    }

    /// How many wait for it: the longest line of a node.
    pub fn waiters(&self) -> u64 {
        self.longest_line().map_or(0, |info| info.waiters)
    }

    /// How many of [`LockSurvey::waiters`] wait as readers.
    pub fn waiting_readers(&self) -> u64 {
        self.longest_line().map_or(0, |info| info.waiting_readers)
    }

    fn longest_line(&self) -> Option<&LockInfo> {
        self.nodes.iter().flatten().max_by_key(|info| (info.waiters, info.waiting_readers))
    }
}

/// Whether this is the report of a replica, which has no vote.
fn is_copy(info: &LockInfo) -> bool {
    info.node_state.as_deref().is_some_and(|state| code::word_of(state) == code::READONLY.word)
}

impl Locker {
    /// Asks all nodes about themselves, and for up to `locks_max` locks that are held or waited
    /// for. Each node is searched in small pages, until all that it counts as held are found, or
    /// too many free ones.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn survey(&self, locks_max: usize) -> Survey {
        self.survey_of(locks_max, false).await
    }

    /// As [`Locker::survey`], including free locks.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn survey_all(&self, locks_max: usize) -> Survey {
        self.survey_of(locks_max, true).await
    }

    async fn survey_of(&self, locks_max: usize, with_free: bool) -> Survey {
        let names = self.core().world.nodes();
        let asked = (0..names.len()).map(|node| self.survey_node(node, locks_max, with_free));
        let answers = join_all(asked).await;
        let mut survey = Survey {
            nodes: Vec::with_capacity(names.len()),
            quorum: self.core().quorum.needed(),
            locks: BTreeMap::new(),
            is_cut: false,
            given_up: Vec::new(),
            unnamed: 0,
            hidden: 0,
            counted_max: Fence::highest_counted(self.core().world.wall()),
            raised_max: Fence::highest_raised(self.core().world.wall()),
        };
        for (index, (node, (status, locks))) in names.iter().zip(answers).enumerate() {
            let unlisted = locks.forbidden;
            survey.is_cut |= locks.is_cut;
            survey.given_up.extend(locks.is_given_up.then(|| Arc::clone(node)));
            survey.unnamed = survey.unnamed.max(locks.unnamed);
            survey.hidden = survey.hidden.max(locks.hidden);
            for (name, info) in locks.found {
                let lock = survey.locks.entry(name).or_default();
                lock.nodes.resize(names.len(), None);
                lock.nodes[index] = Some(info);
            }
            let masters = self.core().world.masters(index);
            let asked = self.group_master(index).filter(|_| status.is_err() && masters.is_empty());
            let node = Arc::clone(node);
            survey.nodes.push(NodeSurvey { node, masters, asked, status, unlisted });
        }
        if let Some(name) = survey.locks.keys().nth(locks_max).cloned() {
            drop(survey.locks.split_off(&name));
            survey.is_cut = true;
        }
        self.complete(&mut survey).await;
        survey
    }

    /// The master of a group that was asked last.
    fn group_master(&self, node: usize) -> Option<Arc<str>> {
        let world = &self.core().world;
        // Of a Cluster, any lock would have one.
        world.master_of(node, b"").filter(|_| !world.is_cluster(node))
    }

    /// Asks every node for the locks that only others have listed: each lists in its own order and
    /// at its own time, and a lock that it left out would seem to be held on fewer nodes than it
    /// is.
    async fn complete(&self, survey: &mut Survey) {
        let asked = (0..survey.nodes.len()).map(|node| self.unlisted(survey, node));
        for (node, locks) in join_all(asked).await.into_iter().enumerate() {
            for (name, info) in locks {
                if let Some(lock) = survey.locks.get_mut(&name) {
                    lock.nodes[node] = Some(info);
                }
            }
        }
    }

    /// A node's reports about locks of the survey that it has not listed.
    async fn unlisted(&self, survey: &Survey, node: usize) -> Vec<(Vec<u8>, LockInfo)> {
        let mut found = Vec::new();
        if survey.nodes[node].status.is_err() || survey.nodes[node].unlisted.is_some() {
            return found;
        }
        let slots = survey.nodes[node].status.as_ref().ok().and_then(|told| told.slots.as_ref());
        let silent: &[NodeReport] = slots.map_or(&[], |share| &share.silent);
        let is_missing = |lock: &LockSurvey| lock.nodes[node].is_none();
        let names = survey.locks.iter().filter(|(_, lock)| is_missing(lock));
        let mut by_server: BTreeMap<AskedServer, Vec<&Vec<u8>>> = BTreeMap::new();
        for (name, _) in names {
            let server = AskedServer { node, master: self.core().world.master_of(node, name) };
            by_server.entry(server).or_default().push(name);
        }
        let is_silent = |server: &AskedServer| {
            silent.iter().any(|report| server.master.as_deref() == Some(&*report.node))
        };
        for (server, names) in by_server.into_iter().filter(|(server, _)| !is_silent(server)) {
            for names in names.chunks(ASKED_AT_ONCE) {
                let asks: Vec<Packet> = names.iter().map(|name| Packet::info(name)).collect();
                // A server that does not answer now has nothing to add.
                let Ok(replies) = self.ask(&server, &asks).await else { break };
                for (name, reply) in names.iter().zip(replies) {
                    if let Ok(info) = lock_info(&reply)
                        && info.state != LockState::Free
                    {
                        found.push(((*name).clone(), info));
                    }
                }
            }
        }
        found
    }

    /// A node's status and locks; for a Cluster, those of all masters combined.
    async fn survey_node(
        &self,
        node: usize,
        locks_max: usize,
        with_free: bool,
    ) -> (Result<NodeStatus, Vote>, Locks) {
        let servers = match self.servers_of(node).await {
            Ok(servers) => servers,
            Err(vote) => return (Err(vote), Locks::default()),
        };
        if let [AskedServer { master: None, .. }] = &servers[..] {
            let told = self.survey_server(&servers[0], locks_max, with_free).await;
            return (self.with_slots(node, told.status).await, told.locks);
        }
        self.survey_cluster(node, servers, (locks_max, with_free)).await
    }

    /// The same for a Cluster with these masters.
    ///
    /// A lock that moves may leave a master that has not been searched yet for one that has been:
    /// those that may have got locks meanwhile are searched again. Each master tells of its slots
    /// before it is searched, on the same connection.
    async fn survey_cluster(
        &self,
        node: usize,
        mut servers: Vec<AskedServer>,
        wanted: (usize, bool),
    ) -> (Result<NodeStatus, Vote>, Locks) {
        let (mut before, mut told) =
            tokio::join!(self.own_shares(&servers), self.survey_masters(&servers, wanted));
        let idle = self.idle_targets(node, &before);
        let (of_idle, told_by_idle) =
            tokio::join!(self.own_shares(&idle), self.survey_masters(&idle, wanted));
        before.extend(of_idle);
        told.extend(told_by_idle);
        servers.extend(idle);
        servers.retain(|server| server.master.as_ref().is_some_and(|it| before.contains_key(it)));
        let after = self.own_shares(&servers).await;
        let gaps = self.gaps(node, &before, &after);
        let moving = self.moves(node, &after, &gaps);
        let (mut statuses, mut locks) = (Vec::new(), Locks::default());
        for (master, slots, server) in told {
            locks.add(server.locks.at(&master));
            let slots = slots.saturating_sub(Gaps::count(&gaps.unclaimed, &master));
            statuses.push((master, slots, server.status));
        }
        let (locks_max, _) = wanted;
        if locks_max > 0 {
            self.search_again((node, &servers), (before, after), wanted, &mut locks).await;
        }
        (NodeStatus::together(statuses, moving), locks)
    }

    /// Adds the locks of masters that may have got some between two accounts, and since.
    async fn search_again(
        &self,
        (node, servers): (usize, &[AskedServer]),
        (mut before, mut after): (OwnShares, OwnShares),
        wanted: (usize, bool),
        locks: &mut Locks,
    ) {
        for round in 0..SEARCHES_MAX {
            let again = receivers(&before, &after, round == 0).into_iter();
            let again = again.map(|to| AskedServer { node, master: Some(to) }).collect::<Vec<_>>();
            if again.is_empty() {
                break;
            }
            for (_, _, server) in self.survey_masters(&again, wanted).await {
                // What is only counted was counted before.
                locks.is_cut |= server.locks.is_cut;
                locks.is_given_up |= server.locks.is_given_up;
                locks.found.extend(server.locks.found);
            }
            before = std::mem::replace(&mut after, self.own_shares(servers).await);
        }
    }

    /// What masters of a Cluster tell, each with its name and its number of slots.
    async fn survey_masters(
        &self,
        servers: &[AskedServer],
        (locks_max, with_free): (usize, bool),
    ) -> Vec<(Arc<str>, u16, ServerSurvey)> {
        let asked =
            servers.iter().filter_map(|server| {
                let master = server.master.clone()?;
                // They may move while the masters answer.
                let slots = self.core().world.slots_of(server.node, &master);
                Some(async move {
                    (master, slots, self.survey_server(server, locks_max, with_free).await)
                })
            });
        join_all(asked).await
    }

    /// Completes the status of a server that was asked alone: in how many slots it grants, if it
    /// belongs to a Cluster.
    async fn with_slots(
        &self,
        node: usize,
        status: Result<NodeStatus, Vote>,
    ) -> Result<NodeStatus, Vote> {
        let mut status = status?;
        if status.is_in_cluster {
            let asks = [Packet::new(&[b"CLUSTER", b"SLOTS"]), Packet::new(&[b"CLUSTER", b"MYID"])];
            // A user without the right to ask is not told.
            let replies = self.ask(&AskedServer::from(node), &asks).await.unwrap_or_default();
            let own = own_slots(&replies).filter(|_| status.is_granting());
            status.slots = own.map(|own| {
                let mut share = SlotShare::default();
                share.add_granting(own, &status);
                share
            });
        } else if self.core().world.masters(node).is_empty() {
            // Its replicas become masters only if people make them.
            status.excess.retain(|excess| excess.replicas > 0);
        }
        Ok(status)
    }

    async fn survey_server(
        &self,
        server: &AskedServer,
        locks_max: usize,
        with_free: bool,
    ) -> ServerSurvey {
        let asked_at = self.core().world.now();
        let told = self.server_itself(server, locks_max > 0).await;
        let Ok(found) = &told.status else { return told };
        let count = found.fields.number(NodeField::Locks).unwrap_or(0);
        if locks_max == 0 || count == 0 || told.locks.forbidden.is_some() {
            return told;
        }
        // An older module does not count them; then all its locks are searched.
        let number = |field| found.fields.number(field).unwrap_or(u64::MAX);
        let (held, waiters) = (number(NodeField::Held), number(NodeField::Waiters));
        let wanted = match with_free {
            true => Wanted::All(count),
            false => Wanted::Busy(Counted { held, waiters, asked_at }),
        };
        match self.search(server, locks_max, wanted).await {
            Ok(locks) => ServerSurvey { locks, ..told },
            Err(vote) => ServerSurvey::of(Err(vote)),
        }
    }

    /// What a server tells of itself, and if its locks are wanted, whether the user may list them.
    async fn server_itself(&self, server: &AskedServer, with_locks: bool) -> ServerSurvey {
        let info = [b"INFO", node_info::SECTION.as_bytes(), b"replication", b"cluster"];
        let mut asks = vec![Packet::new(&info)];
        asks.extend(server.master.as_ref().map(|_| Packet::new(&[b"CLUSTER", b"INFO"])));
        // Shows at once, and not only when there is a lock, that the user may not search for them.
        let search: &[&[u8]] = &[b"SCAN", b"0", b"COUNT", b"1"];
        asks.extend(with_locks.then(|| Packet::new(search)));
        let replies = match self.ask(server, &asks).await {
            Ok(replies) => replies,
            Err(vote) => return ServerSurvey::of(Err(vote)),
        };
        let mut replies = replies.iter();
        let of_info = replies.next();
        let of_cluster = server.master.as_ref().and_then(|_| replies.next());
        let status = server_status(of_info, of_cluster);
        // A node whose user may not search grants locks all the same.
        let forbidden = match replies.next() {
            Some(Reply::Error(error)) if code::meaning_of(error) == Meaning::Forbidden => {
                Some(error_vote(error))
            }
            _ => None,
        };
        let locks = Locks { forbidden, ..Locks::default() };
        ServerSurvey { status, locks }
    }
}

impl NodeSurvey {
    /// The report of the node with this vote, and with the master that was asked, if it is one.
    #[cfg(feature = "cli")]
    pub(crate) fn report(&self, vote: Vote) -> NodeReport {
        let only = self.masters.first().filter(|_| self.masters.len() == 1);
        let master = self.asked.as_ref().or(only).map(Arc::clone);
        NodeReport { master, ..NodeReport::new(Arc::clone(&self.node), vote) }
    }
}

#[cfg(test)]
impl NodeSurvey {
    /// Of a single server.
    pub(crate) fn of(node: &str, status: Result<NodeStatus, Vote>) -> NodeSurvey {
        let (node, masters) = (node.into(), Vec::new());
        NodeSurvey { node, masters, asked: None, status, unlisted: None }
    }
}

#[cfg(test)]
impl Survey {
    /// Of these nodes and no lock.
    pub(crate) fn of(nodes: Vec<NodeSurvey>, quorum: usize) -> Survey {
        Survey {
            nodes,
            quorum,
            locks: BTreeMap::new(),
            is_cut: false,
            given_up: Vec::new(),
            unnamed: 0,
            hidden: 0,
            counted_max: Fence::MAX,
            raised_max: Fence::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(fences: &[Option<u64>]) -> Survey {
        let node = |fence: &Option<u64>| {
            let status = |fence| NodeStatus {
                is_master: true,
                highest_fence: Fence::new(fence).unwrap(),
                ..NodeStatus::default()
            };
            NodeSurvey::of("n", fence.ok_or(Vote::TimedOut).map(status))
        };
        let quorum = fences.len() / 2 + 1;
        Survey::of(fences.iter().map(node).collect(), quorum)
    }

    #[test]
    fn the_quorums_fence_is_one_that_a_quorum_has_reached() {
        let lag = |survey: &Survey| -> Vec<u64> {
            let answered = survey.nodes.iter().filter_map(|node| node.status.as_ref().ok());
            answered.map(|status| survey.fence_lag(status)).collect()
        };
        let one_is_new = survey(&[Some(90), Some(91), Some(0)]);
        assert_eq!(one_is_new.quorum_fence(), Fence::new(90));
        assert_eq!(lag(&one_is_new), [0, 0, 90]);
        // A node that was raised to an absurd number does not put the others behind.
        assert_eq!(lag(&survey(&[Some(90), Some(u64::from(u32::MAX)), Some(89)])), [0, 0, 1]);
        // Two have crashed, one with its data, and go on above all that they may have issued: the
        // third one is not behind, also when they have restored its lease above that. When two have
        // granted since, the one that has not is behind.
        let mut restarted = survey(&[Some(1_048_578), Some(1_048_577), Some(90)]);
        for (node, jumps) in restarted.nodes.iter_mut().zip(["1048576", "1048487"]) {
            node.status.as_mut().unwrap().fields = [(NodeField::FenceJumps, jumps)].into();
        }
        assert_eq!(lag(&restarted), [0, 0, 0]);
        for granted in &mut restarted.nodes[1..] {
            granted.status.as_mut().unwrap().highest_fence = Fence::new(1_048_679).unwrap();
        }
        assert_eq!(restarted.quorum_fence(), Fence::new(192));
        restarted.nodes[0].status.as_mut().unwrap().highest_fence = Fence::new(100).unwrap();
        assert_eq!(lag(&restarted), [92, 0, 0]);
        let down = survey(&[Some(90), None, None]);
        assert_eq!((down.quorum_fence(), down.granting(), down.margin()), (None, 1, -1));
        assert_eq!(lag(&down), [0]);
    }

    fn told(nodes: &[(u64, &str)]) -> LockSurvey {
        let info = |(fence, label): &(u64, &str)| LockInfo {
            state: LockState::Held,
            fence: Fence::new(*fence).unwrap(),
            label: Some((*label).to_owned()).filter(|label| !label.is_empty()),
            ..LockInfo::default()
        };
        LockSurvey { nodes: nodes.iter().map(|node| Some(info(node))).collect() }
    }

    /// One command counted all leases, and another only those with the highest fence.
    #[test]
    fn holders_are_told_apart_by_label_and_fence_and_the_one_of_most_nodes_counts() {
        let counts = |lock: &LockSurvey| {
            let best = lock.best().unwrap();
            (best.fence.get(), lock.held_count(), lock.held_otherwise())
        };
        let three_holders = told(&[(7, "a"), (8, "b"), (9, "c")]);
        assert_eq!(counts(&three_holders), (9, 1, 2));
        // At the third node the lease was repaired, with that node's next fence.
        let one_holder = told(&[(7, "a"), (7, "a"), (1_000_001, "a")]);
        assert_eq!(counts(&one_holder), (7, 2, 1));
        let split = told(&[(7, "a"), (7, "b"), (7, "")]);
        assert_eq!(counts(&split).1, 1);
        assert_eq!(counts(&told(&[(7, "a"); 3])), (7, 3, 0));
        let mut readers = told(&[(7, "a"), (8, "b"), (9, "w")]);
        for info in readers.nodes.iter_mut().flatten().take(2) {
            info.readers = 3;
        }
        assert_eq!(counts(&readers), (8, 2, 1));
        assert_eq!(
            (LockSurvey::default().held_count(), LockSurvey::default().held_otherwise()),
            (0, 0)
        );
    }

    #[test]
    fn a_lock_is_held_where_the_latest_holder_holds_it() {
        let info = |state, fence, waiters| {
            let mut info = LockInfo::default();
            (info.state, info.fence, info.waiters) = (state, Fence::new(fence).unwrap(), waiters);
            Some(info)
        };
        const HELD: LockState = LockState::Held;
        let lock = LockSurvey {
            nodes: vec![info(HELD, 4, 1), info(LockState::Free, 9, 3), info(HELD, 5, 0), None],
        };
        assert_eq!(lock.best().unwrap().fence.get(), 5);
        assert_eq!((lock.held_count(), lock.waiters()), (1, 3));
        assert_eq!(LockSurvey::default().held_count(), 0);
    }

    /// They were counted on the node with the present holder, and all waiters on another.
    #[test]
    fn those_who_wait_to_read_are_counted_on_the_node_with_the_longest_line() {
        let info = |state, waiters, waiting_readers| {
            Some(LockInfo { state, waiters, waiting_readers, ..LockInfo::default() })
        };
        let (held, free) = (LockState::Held, LockState::Free);
        let nodes = vec![info(held, 2, 2), info(free, 3, 0), None, info(free, 3, 1)];
        let lock = LockSurvey { nodes };
        assert_eq!(lock.best().unwrap().waiting_readers, 2);
        assert_eq!((lock.waiters(), lock.waiting_readers()), (3, 1));
    }
}
