//! Asks servers one by one, for surveys and listings. The replies are not votes.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::inbox::{Inbox, RequestKind};
use super::locker::Locker;
use super::packet::Packet;
use super::slots::move_targets;
use super::vote::Vote;
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

    /// The masters without slots to which slots of these masters are moving: they may have locks
    /// already.
    pub(super) async fn idle_targets(&self, servers: &[AskedServer]) -> Vec<AskedServer> {
        let asked = servers.iter().filter_map(|server| Some((server, server.master.as_ref()?)));
        let asked = asked.map(|(server, name)| async move {
            let replies = self.ask(server, &[Packet::new(&[b"CLUSTER", b"NODES"])]).await;
            let targets = move_targets(replies.unwrap_or_default().first(), name);
            let known = |target| self.core().world.meet(server.node, target);
            let named = targets.iter().filter_map(known);
            named.map(|to| AskedServer { node: server.node, master: Some(to) }).collect::<Vec<_>>()
        });
        let targets: BTreeSet<_> = join_all(asked).await.into_iter().flatten().collect();
        targets.into_iter().filter(|target| !servers.contains(target)).collect()
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
