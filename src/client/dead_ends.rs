//! The servers in URLs that do not lead to their node. While another one does, nobody would notice.

use std::time::Duration;

use futures_util::future::join_all;

use super::destination::Destination;
use super::inbox::NoReply;
use super::links::Links;
use super::locker::Locker;
use super::packet::Packet;
use super::vote::{NodeReport, Vote};

impl Locker {
    /// Asks every server that the URLs of Clusters and of groups under Sentinel name, each on a
    /// connection of its own. Returns those that do not lead to the node, and why, in the order of
    /// the settings: they do not answer, belong to another Cluster, or do not know the group. The
    /// text of each vote begins with the server; the last one about a group may say instead that
    /// too few of its Sentinels answer for a failover.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn dead_ends(&self) -> Vec<NodeReport> {
        let Some(links) = self.core().world.links() else { return Vec::new() };
        links.dead_ends(self.core().settings.plan.timeout).await
    }

    /// The masters of Clusters that do not answer now, and why: each report is of a master.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    #[doc(hidden)]
    pub async fn silent_masters(&self) -> Vec<NodeReport> {
        let nodes = 0..self.core().world.nodes().len();
        join_all(nodes.map(|node| self.silent_masters_of(node))).await.concat()
    }

    async fn silent_masters_of(&self, node: usize) -> Vec<NodeReport> {
        // While none is known, the vote of the node says why.
        let servers = self.servers_of(node).await.unwrap_or_default();
        let asked = servers.iter().map(|server| async move {
            let master = server.master.clone()?;
            let vote = self.ask(server, &[Packet::new(&[b"PING"])]).await.err()?;
            Some(NodeReport::new(master, vote))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

impl Links {
    /// The same; each server has `patience` to answer.
    async fn dead_ends(&self, patience: Duration) -> Vec<NodeReport> {
        let asked = self.answering().nodes().iter().enumerate().map(|(node, place)| async move {
            let failures: Vec<NoReply> = match place {
                Destination::Server(_) => Vec::new(),
                Destination::Group(group) => group.dead_ends(patience).await,
                Destination::Cluster(seeds) => {
                    seeds.dead_ends(patience, || self.answering().masters_of(node)).await
                }
            };
            let report = |failure| NodeReport::new(place.name().clone(), Vote::from(failure));
            failures.into_iter().map(report).collect::<Vec<_>>()
        });
        join_all(asked).await.concat()
    }
}
