//! The servers in URLs that do not lead to their node. While another one does, nobody would notice.

use std::time::Duration;

use futures_util::future::join_all;

use super::destination::Destination;
use super::inbox::NoReply;
use super::links::Links;
use super::locker::Locker;
use super::vote::{NodeReport, Vote};

impl Locker {
    /// Asks every server that the URLs of Clusters and of groups under Sentinel name, each on a
    /// connection of its own. Returns those that do not lead to the node, and why, in the order of
    /// the settings: they do not answer, belong to another Cluster, or do not know the group. The
    /// text of each vote begins with the server.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn dead_ends(&self) -> Vec<NodeReport> {
        let Some(links) = self.core().world.links() else { return Vec::new() };
        links.dead_ends(self.core().settings.plan.timeout).await
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
