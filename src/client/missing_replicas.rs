//! The replicas that should follow a master, and do not.
//!
//! A master names only those that are attached to it. Which ones should be is known to the
//! Sentinels of its group, or to its Cluster; why one is not, to the replica itself.

use std::sync::Arc;

use futures_util::future::join_all;

use super::absence::{Absence, Expected};
use super::asking::AskedServer;
use super::destination::Destination;
use super::locker::Locker;
use super::node_status::{NodeStatus, server_status};
use super::packet::Packet;
use super::replicas::{ask_replica, question};

/// A replica that should follow a master, and is not attached to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingReplica {
    /// The node.
    pub node: Arc<str>,
    /// The master.
    pub master: Arc<str>,
    /// Where the replica is, as the Sentinels or the Cluster name it: `host:port`; the id of a
    /// server of a Cluster whose address is not known there.
    pub replica: String,
    /// Why it is not attached; `None` if that is not known.
    pub reason: Option<Absence>,
}

#[cfg(all(test, feature = "cli"))]
impl MissingReplica {
    pub(crate) fn of([node, master, replica]: [&str; 3], reason: Option<Absence>) -> Self {
        let (node, master) = (node.into(), master.into());
        MissingReplica { node, master, replica: replica.to_owned(), reason }
    }
}

impl Locker {
    /// Asks the Sentinels and the masters of Clusters which replicas should follow each master, and
    /// those that are not attached, each on a connection of its own, why they are not. Masters that
    /// do not answer are left out, and servers that are given by themselves: nobody expects
    /// replicas there. So are those of Sentinels that do not let the user ask (`SENTINEL
    /// REPLICAS`), and of masters that do not (`CLUSTER NODES`).
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn missing_replicas(&self) -> Vec<MissingReplica> {
        let nodes = 0..self.core().world.nodes().len();
        join_all(nodes.map(|node| self.missing_replicas_of(node))).await.concat()
    }

    async fn missing_replicas_of(&self, node: usize) -> Vec<MissingReplica> {
        let Some(links) = self.core().world.links() else { return Vec::new() };
        let destination = &links.answering().nodes()[node];
        if matches!(destination, Destination::Server(_)) {
            return Vec::new();
        }
        let servers = self.servers_of(node).await.unwrap_or_default();
        let asked = servers.iter().map(|server| self.missing_replicas_at(server, destination));
        join_all(asked).await.concat()
    }

    async fn missing_replicas_at(
        &self,
        server: &AskedServer,
        destination: &Destination,
    ) -> Vec<MissingReplica> {
        let replies = self.ask(server, &[question()]).await.unwrap_or_default();
        let status = server_status(replies.first(), None).ok().filter(|status| status.is_master);
        let Some(status) = status else { return Vec::new() };
        let world = &self.core().world;
        let masters = world.masters(server.node);
        let Some(master) = server.master.as_ref().or(masters.first()) else { return Vec::new() };
        let timeout = self.core().settings.plan.timeout;
        let (expected, own_name) = match destination {
            Destination::Group(group) => (group.expected(timeout, master).await, None),
            Destination::Server(_) | Destination::Cluster(_) => {
                let nodes = Packet::new(&[b"CLUSTER", b"NODES"]);
                let replies = self.ask(server, &[nodes]).await.unwrap_or_default();
                Expected::in_cluster(replies.first())
            }
        };
        let names: Vec<&str> = std::iter::once(&**master).chain(own_name.as_deref()).collect();
        let (absent, is_sure) = unattached(expected, &names, &status);
        let asked = absent.iter().map(|one| ask_replica(destination, &one.address, timeout));
        let told = join_all(asked).await;
        let missing = absent.into_iter().zip(told).filter_map(|(expected, told)| {
            let replica = expected.address.clone();
            let reason = expected.judged(&told, &names, is_sure)?;
            let (node, master) = (Arc::clone(&world.nodes()[server.node]), Arc::clone(master));
            Some(MissingReplica { node, master, replica, reason })
        });
        missing.collect()
    }
}

/// Those that are not attached by the name under which they are expected, and whether no other name
/// of theirs is: every one that is attached is expected. The master with these names is none of
/// them: just after a failover, Sentinels still count it among the replicas.
fn unattached(
    expected: Vec<Expected>,
    names: &[&str],
    status: &NodeStatus,
) -> (Vec<Expected>, bool) {
    let is = |expected: &Expected, address: &str| expected.address == address;
    let is_expected = |address: &str| expected.iter().any(|one| is(one, address));
    let is_sure = status.replicas.iter().all(|replica| is_expected(&replica.address));
    let is_attached =
        |one: &Expected| status.replicas.iter().any(|replica| is(one, &replica.address));
    let is_named = |one: &Expected| names.iter().any(|name| is(one, name));
    // One that hangs remains attached for a minute.
    let is_absent =
        |one: &&Expected| (!is_attached(one) || one.absence.is_some()) && !is_named(one);
    (expected.iter().filter(is_absent).cloned().collect(), is_sure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ReplicaStatus;

    #[test]
    fn replicas_that_are_attached_by_another_name_leave_it_open_who_is_missing() {
        let told = |expected: &[&str], attached: &[&str]| {
            let one = |address: &&str| Expected { address: (*address).to_owned(), absence: None };
            let replica =
                |address: &&str| ReplicaStatus { address: (*address).to_owned(), lag_bytes: 0 };
            let replicas = attached.iter().map(replica).collect();
            let status = NodeStatus { replicas, ..NodeStatus::default() };
            let expected = expected.iter().map(one).collect();
            let (absent, is_sure) = unattached(expected, &["m", "n"], &status);
            (absent.into_iter().map(|one| one.address).collect::<Vec<_>>().concat(), is_sure)
        };
        assert_eq!(told(&["a", "b"], &["b", "a"]), (String::new(), true));
        assert_eq!(told(&["a", "b"], &["b"]), ("a".to_owned(), true));
        // Regression: a new master was said to lack itself.
        assert_eq!(told(&["a", "m", "n"], &[]), ("a".to_owned(), true));
        assert_eq!(told(&["a", "b"], &["b", "x"]), ("a".to_owned(), false));
        assert_eq!(told(&[], &["b"]), (String::new(), false));
        // Regression: nobody was named while a replica hung, which the others see.
        let hung = Expected { address: "b".to_owned(), absence: Some(Absence::Unreachable) };
        let replicas = vec![ReplicaStatus { address: "b".to_owned(), lag_bytes: 9 }];
        let status = NodeStatus { replicas, ..NodeStatus::default() };
        assert_eq!(unattached(vec![hung.clone()], &[], &status), (vec![hung], true));
    }
}
