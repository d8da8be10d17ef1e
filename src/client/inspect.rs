//! Inspects locks, and acts on them by token or by force: for the command and for operators.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::asking::AskedServer;
use super::error::{ExtendError, FenceError, ReleaseError};
use super::inbox::{Inbox, RequestKind};
use super::locker::Locker;
use super::packet::Packet;
use super::printable::Named;
use super::reading::{error_vote, extend_vote, fence_vote, lock_info};
use super::releasing::Wait;
use super::search::{Locks, Wanted};
use super::settings::{check_name, check_token};
use super::slot_shares::receivers;
use super::vote::{NodeReport, Vote, place};
use super::world::{earliest, latest};
use crate::engine::{Fence, LockState, Millis, Mode};
use crate::wire::lock_info::LockInfo;
use crate::wire::resp::Reply;
use crate::wire::spec;

/// The most locks that are listed per node.
pub(crate) const LISTED_MAX: usize = 100_000;

/// What one node reports about a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeInfo {
    /// The node.
    pub node: Arc<str>,
    /// The master that was asked, as in [`NodeReport::master`].
    pub master: Option<Arc<str>>,
    /// What it reports, or its vote if it does not.
    pub info: Result<LockInfo, Vote>,
}

impl NodeInfo {
    #[cfg(test)]
    pub(crate) const fn new(node: Arc<str>, info: Result<LockInfo, Vote>) -> NodeInfo {
        NodeInfo { node, master: None, info }
    }

    /// The node's name for people, with the master that was asked.
    #[doc(hidden)]
    pub fn place(&self) -> String {
        place(&self.node, self.master.as_deref())
    }

    /// The node's report with this vote.
    #[doc(hidden)]
    pub fn report(&self, vote: Vote) -> NodeReport {
        NodeReport { master: self.master.clone(), ..NodeReport::new(Arc::clone(&self.node), vote) }
    }
}

/// What one node lists.
#[derive(Clone)]
#[non_exhaustive]
pub struct NodeLocks {
    /// The node.
    pub node: Arc<str>,
    /// Its locks by name, free ones included, or its vote if it does not list them.
    pub locks: Result<BTreeMap<Vec<u8>, LockInfo>, Vote>,
    /// How many locks are left out because their names are longer than
    /// [`NAME_MAX`](super::NAME_MAX).
    pub unnamed: u64,
}

impl fmt::Debug for NodeLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLocks")
            .field("node", &self.node)
            .field("locks", &self.locks.as_ref().map(Named))
            .finish_non_exhaustive()
    }
}

impl Locker {
    /// Asks all nodes about the lock `name`.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn info(&self, name: impl AsRef<[u8]>) -> Vec<NodeInfo> {
        let core = self.core();
        let inbox = Inbox::new(core.quorum.nodes());
        core.send_all(&Packet::info(name.as_ref()), &inbox, RequestKind::Only);
        let outcomes = core.collect(&inbox, core.settings.plan.timeout, lock_info, |_| false).await;
        let info = |(node, outcome): (usize, Option<Result<LockInfo, Vote>>)| {
            let info = outcome.unwrap_or_else(|| Err(core.world.silence(node)));
            let master = core.voter(node, name.as_ref(), info.as_ref().err());
            NodeInfo { node: Arc::clone(&core.world.nodes()[node]), master, info }
        };
        outcomes.into_iter().enumerate().map(info).collect()
    }

    /// The highest fence issued for the lock `name`, held or not, as a quorum of nodes knows it.
    ///
    /// # Errors
    /// [`FenceError::NoQuorum`], with each node's vote.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn fence(&self, name: impl AsRef<[u8]>) -> Result<Fence, FenceError> {
        let core = self.core();
        let votes = core.poll_votes(&Packet::fence(name.as_ref()), fence_vote, |_, _| false).await;
        let fences = votes.iter().filter_map(|vote| match vote {
            Vote::Granted(fence) => Some(*fence),
            _ => None,
        });
        let fences: Vec<Fence> = fences.collect();
        match fences.iter().max() {
            Some(fence) if fences.len() >= core.quorum.needed() => Ok(*fence),
            Some(_) | None => Err(FenceError::NoQuorum(core.reports(name.as_ref(), votes))),
        }
    }

    /// Releases a lease by its token, for leases that were [leaked](super::Guard::leak).
    ///
    /// # Errors
    /// [`ReleaseError`].
    ///
    /// # Cancellation
    /// What was sent stays sent.
    pub async fn release_by_token(
        &self,
        name: impl AsRef<[u8]>,
        token: &[u8],
    ) -> Result<(), ReleaseError> {
        self.release_by_token_within(name.as_ref(), token, Duration::ZERO).await
    }

    /// The same, but if no quorum has decided within the timeout, nodes that cannot be reached,
    /// refuse at present, or do not answer, have until `patience` is over.
    ///
    /// # Errors
    /// The same.
    #[doc(hidden)]
    pub async fn release_by_token_within(
        &self,
        name: &[u8],
        token: &[u8],
        patience: Duration,
    ) -> Result<(), ReleaseError> {
        check_name(name).map_err(ReleaseError::BadOption)?;
        check_token(token).map_err(ReleaseError::BadOption)?;
        let core = self.core();
        let inbox = Inbox::new(core.quorum.nodes());
        let packet = Packet::release(name, token, core.settings.plan.terms.ttl).of_a_stranger();
        for node in 0..core.quorum.nodes() {
            core.world.send(node, &packet, Some(inbox.release_to(node)));
        }
        // The caller wants to see every node, and may come too late.
        core.released(&inbox, name, Wait { is_for_all: true, patience, is_sure: false }).await
    }

    /// Takes the lock `name` from its holders, by deleting it on all nodes: for an operator who
    /// knows that the holder is gone. A holder learns of it at its next renewal. A free lock is
    /// left alone, and so are keys that are not locks. Reports [`Vote::Confirmed`] for nodes that
    /// deleted it, and [`Vote::NotHeld`] for nodes on which it was not held.
    ///
    /// # Cancellation
    /// What was sent stays sent.
    pub async fn force_release(&self, name: impl AsRef<[u8]>) -> Vec<NodeReport> {
        let name = name.as_ref();
        let nodes = self.core().world.nodes().len();
        let votes = join_all((0..nodes).map(|node| self.force_release_on(node, name))).await;
        self.core().reports(name, votes)
    }

    async fn force_release_on(&self, node: usize, name: &[u8]) -> Vote {
        let reply = |replies: Vec<Reply>| replies.into_iter().next().unwrap_or(Reply::Nil);
        let found = match self.ask(&AskedServer::from(node), &[Packet::info(name)]).await {
            Ok(replies) => lock_info(&reply(replies)),
            Err(vote) => return vote,
        };
        match found {
            Ok(info) if info.state == LockState::Held => {}
            Ok(_) => return Vote::NotHeld,
            Err(vote) => return vote,
        }
        match self.ask(&AskedServer::from(node), &[Packet::new(&[b"DEL", name])]).await.map(reply) {
            Ok(Reply::Integer(1)) => Vote::Confirmed,
            Ok(Reply::Integer(0)) => Vote::NotHeld,
            Ok(Reply::Error(text)) => error_vote(&text),
            Ok(_) => Vote::Garbled("a reply of another kind".into()),
            Err(vote) => vote,
        }
    }

    /// Extends a lease by its token, for leases that were [leaked](super::Guard::leak). Returns the
    /// validity from now on.
    ///
    /// Call it only before the last known validity has ended. The locker cannot check that: a late
    /// call may succeed after another has held the lock and released it, and then only fences tell
    /// the two apart.
    ///
    /// # Errors
    /// [`ExtendError::NoQuorum`] or [`ExtendError::Refused`], with each node's vote;
    /// [`ExtendError::BadOption`] if this cannot be a token.
    ///
    /// # Cancellation
    /// What was sent stays sent.
    pub async fn extend_by_token(
        &self,
        name: impl AsRef<[u8]>,
        token: &[u8],
    ) -> Result<Duration, ExtendError> {
        self.extend_stranger(name.as_ref(), token, Mode::Exclusive).await
    }

    /// Extends a lease in the same way, and makes a writer a reader in one step: see
    /// [`Guard::downgrade`](super::Guard::downgrade). A reader stays one.
    ///
    /// # Errors
    /// As [`extend_by_token`](Locker::extend_by_token). Nodes that have carried it out let other
    /// readers in anyway.
    ///
    /// # Cancellation
    /// What was sent stays sent.
    pub async fn downgrade_by_token(
        &self,
        name: impl AsRef<[u8]>,
        token: &[u8],
    ) -> Result<Duration, ExtendError> {
        self.extend_stranger(name.as_ref(), token, Mode::Shared).await
    }

    /// Extends a lease that this client does not renew.
    async fn extend_stranger(
        &self,
        name: &[u8],
        token: &[u8],
        mode: Mode,
    ) -> Result<Duration, ExtendError> {
        check_name(name).map_err(ExtendError::BadOption)?;
        check_token(token).map_err(ExtendError::BadOption)?;
        let core = self.core();
        let terms = core.settings.plan.terms;
        let extend = Packet::extend(name, token, (terms.ttl, mode), Fence::ZERO);
        let packet = extend.of_a_stranger();
        let started_at = earliest(&core.world);
        let votes = core.poll_votes(&packet, extend_vote, |_, _| false).await;
        let confirmed = votes.iter().filter(|vote| matches!(vote, Vote::Confirmed)).count();
        let validity = terms.validity(started_at, latest(&core.world));
        if confirmed >= core.quorum.needed() && validity > Millis::ZERO {
            return Ok(validity.into());
        }
        Err(ExtendError::of(core.reports(name, votes), core.quorum.needed()))
    }

    /// Lists all locks of all nodes, up to 100 000 per node, without blocking the nodes for long.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn list(&self) -> Vec<NodeLocks> {
        let names = self.core().world.nodes();
        let asked = (0..names.len()).map(|node| self.list_node(node));
        let listed = names.iter().zip(join_all(asked).await);
        let listed = listed.map(|(node, locks)| NodeLocks {
            node: Arc::clone(node),
            unnamed: locks.as_ref().map_or(0, |locks| locks.unnamed),
            locks: locks.map(|locks| locks.found),
        });
        listed.collect()
    }

    async fn list_node(&self, node: usize) -> Result<Locks, Vote> {
        let mut locks = Locks::default();
        let mut servers = self.servers_of(node).await?;
        let before = self.own_shares(&servers).await;
        servers.extend(self.idle_targets(node, &before));
        let all = Wanted::All(u64::MAX);
        for server in &servers {
            self.check_module(server).await?;
            locks.add(self.search(server, LISTED_MAX, all).await?);
        }
        for master in receivers(&before, &self.own_shares(&servers).await, true) {
            let server = AskedServer { node, master: Some(master) };
            locks.found.extend(self.search(&server, LISTED_MAX, all).await?.found);
        }
        Ok(locks)
    }

    /// Fails if the module is missing: such a server has no locks, and its SCAN looks like that of
    /// a server that is not in use.
    ///
    /// It sends a command without its key. The server reports that before it checks access rules,
    /// so this needs no permission and leaves no entry in the ACL log.
    async fn check_module(&self, server: &AskedServer) -> Result<(), Vote> {
        match self.ask(server, &[Packet::new(&[spec::INFO.as_bytes()])]).await?.pop() {
            Some(Reply::Error(text)) => match error_vote(&text) {
                Vote::ModuleMissing => Err(Vote::ModuleMissing),
                // A node with the module answers so.
                _ => Ok(()),
            },
            Some(_) | None => Ok(()),
        }
    }
}
