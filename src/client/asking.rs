//! Asks servers one by one, for surveys and listings. The replies are not votes.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::inbox::{Inbox, RequestKind};
use super::locker::Locker;
use super::node_status::SlotMove;
use super::packet::Packet;
use super::slot_shares::{Gaps, OwnShare, OwnShares};
use super::vote::Vote;
use crate::engine::SLOTS;
use crate::wire::resp::Reply;

/// A server to ask: the node's only one, which may be named if it is the master of a group, or one
/// master of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AskedServer {
    pub(super) node: usize,
    pub(super) master: Option<Arc<str>>,
}

impl From<usize> for AskedServer {
    fn from(node: usize) -> AskedServer {
        AskedServer { node, master: None }
    }
}

impl Locker {
    /// The servers of a node: its only one, or all masters of a Cluster.
    pub(super) async fn servers_of(&self, node: usize) -> Result<Vec<AskedServer>, Vote> {
        let world = &self.core().world;
        if !world.is_cluster(node) {
            return Ok(vec![AskedServer::from(node)]);
        }
        let mut unknown = None;
        if world.masters(node).is_empty() {
            // The answer comes when the masters are known, or says why they are not.
            let ping = Packet::new(&[b"PING"]);
            unknown = self.ask(&AskedServer::from(node), &[ping]).await.err();
        }
        let masters = world.masters(node);
        if masters.is_empty() {
            return Err(unknown.unwrap_or(Vote::TimedOut));
        }
        Ok(masters.into_iter().map(|master| AskedServer { node, master: Some(master) }).collect())
    }

    /// What these masters of one Cluster say of their own slots.
    pub(super) async fn own_shares(&self, servers: &[AskedServer]) -> OwnShares {
        let asked = servers.iter().filter_map(|server| Some((server, server.master.as_ref()?)));
        let asked = asked.map(|(server, name)| async move {
            let replies = self.ask(server, &[Packet::new(&[b"CLUSTER", b"NODES"])]).await;
            let share = OwnShare::read(replies.unwrap_or_default().first(), name)?;
            Some((Arc::clone(name), share))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// The masters without slots to which slots are moving: they may have locks already.
    pub(super) fn idle_targets(&self, node: usize, shares: &OwnShares) -> Vec<AskedServer> {
        let targets = shares.values().flat_map(|share| &share.targets);
        let named = targets.filter_map(|target| self.core().world.meet(node, target));
        let has_slots = |name: &Arc<str>| self.core().world.slots_of(node, name) > 0;
        let new: BTreeSet<_> = named.filter(|name| !has_slots(name)).collect();
        new.into_iter().map(|name| AskedServer { node, master: Some(name) }).collect()
    }

    /// The gaps of which masters have told twice: while slots move, one may have answered before a
    /// change and another one after it.
    pub(super) fn gaps(&self, node: usize, before: &OwnShares, after: &OwnShares) -> Gaps {
        let world = &self.core().world;
        let of = |shares: &OwnShares| {
            let owner = |slot| world.owner_of(node, slot);
            Gaps::of(shares, owner, |target| world.meet(node, target))
        };
        of(before).and(&of(after))
    }

    /// The moves of slots that the masters tell of.
    pub(super) fn moves(&self, node: usize, shares: &OwnShares, gaps: &Gaps) -> Vec<SlotMove> {
        let moves = shares
            .iter()
            .flat_map(|(from, share)| share.targets.iter().map(move |target| (from, target)));
        let told = moves.map(|(from, target)| {
            let name = self.core().world.meet(node, target);
            let is_untaken = |slot: &&u16| gaps.untaken.contains(&(Arc::clone(from), **slot));
            let untaken = target.slots.iter().filter(is_untaken).count();
            let count = |count: usize| u16::try_from(count).unwrap_or(SLOTS);
            SlotMove {
                slots: count(target.slots.len()),
                untaken: count(untaken),
                from: Arc::clone(from),
                to: name.unwrap_or_else(|| target.id.as_str().into()),
            }
        });
        told.collect()
    }

    /// Sends commands to one server and reads all replies, in order.
    pub(super) async fn ask(
        &self,
        server: &AskedServer,
        packets: &[Packet],
    ) -> Result<Vec<Reply>, Vote> {
        let core = self.core();
        let inbox = Inbox::new(packets.len());
        for packet in packets {
            let node = server.node;
            match &server.master {
                Some(to) => core.world.send_to((node, to), packet, inbox.direct_reply_to(node)),
                None => {
                    core.world.send(node, packet, Some(inbox.reply_to(node, RequestKind::Only)))
                }
            }
        }
        let mut replies = Vec::with_capacity(packets.len());
        while replies.len() < packets.len() {
            let timer = std::pin::pin!(core.world.sleep(core.settings.plan.timeout));
            match inbox.next(timer).await {
                Some(delivery) => replies.push(delivery.outcome.map_err(Vote::from)?),
                None => return Err(core.world.silence(server.node)),
            }
        }
        Ok(replies)
    }
}
