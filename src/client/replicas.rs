//! The replicas that could not take their master's place as it is.
//!
//! A master knows how much each replica has received, and nothing else about it: one without the
//! module, or with other settings, supports it like any other.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::asking::AskedServer;
use super::connect::exchange_by;
use super::destination::Destination;
use super::inbox::NoReply;
use super::locker::Locker;
use super::node_status::{NodeStatus, server_status};
use super::packet::Packet;
use super::vote::Vote;
use crate::wire::node_info::{self, NodeField};
use crate::wire::resp::{Reader, Reply};

/// A replica that cannot take the place of its master as that is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnfitReplica {
    /// The node.
    pub node: Arc<str>,
    /// Its master, if the node is a group or a Cluster.
    pub master: Option<Arc<str>>,
    /// Where the replica is, as its master names it: `host:port`.
    pub replica: String,
    /// What is wrong with it.
    pub misfit: Misfit,
}

/// What is wrong with a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfit {
    /// It does not let the user of the URL in, who would be refused if it became the master. Its
    /// reason follows.
    Refuses(Arc<str>),
    /// It is without the module: it has no locks.
    WithoutModule,
    /// Its `lockmod.replicas` is not that of its master.
    Replicas {
        /// The replica's.
        own: u64,
        /// The master's.
        masters: u64,
    },
    /// Its `lockmod.max-ttl` is not that of its master.
    MaxTtl {
        /// The replica's.
        own: Duration,
        /// The master's.
        masters: Duration,
    },
}

impl Locker {
    /// Asks the replicas of all masters, each on a connection of its own, whether they let the user
    /// in, and have the module and the settings of their master. Of a server that is given by
    /// itself, and does not depend on its replicas (`lockmod.replicas`), only whether they expect
    /// that. Replicas that cannot be reached are left out.
    ///
    /// # Cancellation
    /// Nothing changes anywhere.
    pub async fn unfit_replicas(&self) -> Vec<UnfitReplica> {
        let nodes = 0..self.core().world.nodes().len();
        join_all(nodes.map(|node| self.unfit_replicas_of(node))).await.concat()
    }

    async fn unfit_replicas_of(&self, node: usize) -> Vec<UnfitReplica> {
        let servers = self.servers_of(node).await.unwrap_or_default();
        let asked = servers.iter().map(|server| self.unfit_replicas_at(server));
        join_all(asked).await.concat()
    }

    async fn unfit_replicas_at(&self, server: &AskedServer) -> Vec<UnfitReplica> {
        let world = &self.core().world;
        let replies = self.ask(server, &[question()]).await.unwrap_or_default();
        let Ok(status) = server_status(replies.first(), None) else { return Vec::new() };
        let masters = world.masters(server.node);
        let master = server.master.as_ref().or(masters.first());
        if !status.is_master {
            return Vec::new();
        }
        let Some(links) = world.links() else { return Vec::new() };
        let destination = &links.answering().nodes()[server.node];
        let timeout = self.core().settings.plan.timeout;
        let asked =
            status.replicas.iter().map(|replica| ask(destination, &replica.address, timeout));
        let told = status.replicas.iter().zip(join_all(asked).await);
        let unfit = told.flat_map(|(replica, told)| {
            let mut misfits = told.map(|told| misfits(&told, &status)).unwrap_or_default();
            // By itself, a server may have replicas for reading only, which nobody promotes.
            let is_alone = master.is_none() && status.support().is_none();
            misfits.retain(|misfit| !is_alone || matches!(misfit, Misfit::Replicas { .. }));
            misfits.into_iter().map(|misfit| UnfitReplica {
                node: Arc::clone(&world.nodes()[server.node]),
                master: master.cloned(),
                replica: replica.address.clone(),
                misfit,
            })
        });
        unfit.collect()
    }
}

/// What servers are asked.
pub(super) fn question() -> Packet {
    Packet::new(&[b"INFO", node_info::SECTION.as_bytes(), b"replication"])
}

/// What the replica at this address says of itself; `None` if it does not answer in time.
async fn ask(
    destination: &Destination,
    address: &str,
    patience: Duration,
) -> Option<Result<NodeStatus, Vote>> {
    match ask_replica(destination, address, patience).await {
        // Whom it lets in, it may let do what matters.
        Ok(reply) => match server_status(reply.as_ref(), None) {
            Err(Vote::NoPermission(_)) => None,
            told => Some(told),
        },
        Err(failure @ NoReply::NoPermission(_)) => Some(Err(failure.into())),
        Err(_) => None,
    }
}

/// The reply of the replica at this address to the question.
///
/// # Errors
/// Why there is none.
pub(super) async fn ask_replica(
    destination: &Destination,
    address: &str,
    patience: Duration,
) -> Result<Option<Reply>, NoReply> {
    let unknown = || NoReply::Unreachable("its address is not known".into());
    let replica = destination.server_at(host_and_port(address).ok_or_else(unknown)?);
    let asked = async {
        let mut stream = replica.enter().await?;
        exchange_by(&mut Reader::default(), &mut stream, &[question()]).await
    };
    let replies = timeout(patience, asked).await.unwrap_or(Err(NoReply::TimedOut));
    Ok(replies?.into_iter().next())
}

/// The host and the port of `host:port`, of which an IPv6 host has no brackets.
fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// What keeps a replica from taking the place of a master as it is.
fn misfits(replica: &Result<NodeStatus, Vote>, master: &NodeStatus) -> Vec<Misfit> {
    let replica = match replica {
        Ok(replica) if replica.is_master => return Vec::new(),
        Ok(replica) => replica,
        Err(Vote::ModuleMissing) => return vec![Misfit::WithoutModule],
        Err(Vote::NoPermission(text)) => return vec![Misfit::Refuses(Arc::clone(text))],
        Err(_) => return Vec::new(),
    };
    // An older module does not report all of them.
    let differing = |field| {
        let [own, masters] = [replica, master].map(|status| status.fields.number(field));
        own.zip(masters).filter(|(own, masters)| own != masters)
    };
    let replicas = differing(NodeField::Replicas);
    let replicas = replicas.map(|(own, masters)| Misfit::Replicas { own, masters });
    let max_ttl = differing(NodeField::MaxTtl);
    let max_ttl = max_ttl.map(|(own, masters)| {
        let [own, masters] = [own, masters].map(Duration::from_millis);
        Misfit::MaxTtl { own, masters }
    });
    replicas.into_iter().chain(max_ttl).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::node_info::NodeFields;

    #[test]
    fn places_are_read_as_masters_write_them() {
        assert_eq!(host_and_port("127.0.0.1:7001"), Some(("127.0.0.1".to_owned(), 7001)));
        assert_eq!(host_and_port("::1:7001"), Some(("::1".to_owned(), 7001)));
        assert_eq!(["a", "a:", "a:70000"].map(host_and_port), [None, None, None]);
    }

    #[test]
    fn a_replica_differs_in_what_both_report() {
        let status = |fields: &str, is_master| NodeStatus {
            is_master,
            fields: NodeFields::read(fields),
            ..NodeStatus::default()
        };
        let master = status("lockmod_max_ttl_ms:9000\r\nlockmod_replicas:2\r\n", true);
        let of = |replica: Result<&str, Vote>| {
            misfits(&replica.map(|fields| status(fields, false)), &master)
        };
        let seconds = Duration::from_secs;
        let replicas = Misfit::Replicas { own: 1, masters: 2 };
        let max_ttl = Misfit::MaxTtl { own: seconds(7), masters: seconds(9) };
        let differs = "lockmod_max_ttl_ms:7000\r\nlockmod_replicas:1\r\n";
        assert_eq!(of(Ok("lockmod_max_ttl_ms:9000\r\nlockmod_replicas:2\r\n")), []);
        assert_eq!(of(Ok(differs)), [replicas.clone(), max_ttl]);
        assert_eq!(of(Ok("lockmod_replicas:1\r\n")), [replicas], "an older one");
        let refuses = Vote::NoPermission("WRONGPASS".into());
        assert_eq!(of(Err(refuses)), [Misfit::Refuses("WRONGPASS".into())]);
        assert_eq!(of(Err(Vote::ModuleMissing)), [Misfit::WithoutModule]);
        assert_eq!(of(Err(Vote::TimedOut)), []);
        assert_eq!(misfits(&Ok(status(differs, true)), &master), [], "it is a master by now");
    }
}
