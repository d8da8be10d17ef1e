//! Which servers and Clusters answer for the nodes of a client: each has one vote, however many
//! URLs lead to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "cli")]
use super::inbox::SAME_SERVER;
use super::inbox::{NoReply, ServerId};
#[cfg(feature = "cli")]
use super::vote::Vote;

/// How the text about a Cluster that is given twice begins.
const SAME_CLUSTER: &str = "the same Cluster as ";

/// What a node with this vote is, if it is another node under a second name.
#[cfg(feature = "cli")]
pub(crate) fn same_as(vote: &Vote) -> Option<&str> {
    let text = match vote {
        // At the connection, and of a second answer in one round.
        Vote::Refused(text) | Vote::Unreachable(text) if &**text == SAME_SERVER => text,
        Vote::Refused(text) if text.starts_with(SAME_CLUSTER) => text,
        _ => return None,
    };
    text.strip_suffix(": remove one")
}

/// Which server answers on each connection, and of which Clusters the nodes are.
#[derive(Debug)]
pub(super) struct Answering(Mutex<Answerers>);

#[derive(Debug)]
struct Answerers {
    servers: Vec<Option<ServerId>>,
    clusters: Vec<KnownCluster>,
}

/// A Cluster that is a node.
#[derive(Debug)]
struct KnownCluster {
    node: usize,
    name: Arc<str>,
    masters: Vec<String>,
}

impl Answering {
    /// For `places` connections.
    pub(super) fn new(places: usize) -> Answering {
        Answering(Mutex::new(Answerers { servers: vec![None; places], clusters: Vec::new() }))
    }

    /// A place for one more connection.
    pub(super) fn next_place(&self) -> usize {
        let mut known = self.known();
        known.servers.push(None);
        known.servers.len() - 1
    }

    /// Notes which server answers at `place`; false if it already answers at another place.
    pub(super) fn note(&self, place: usize, server: Option<ServerId>) -> bool {
        let servers = &mut self.known().servers;
        servers[place] = None;
        if server.is_some() && servers.contains(&server) {
            return false;
        }
        servers[place] = server;
        true
    }

    /// Notes the ids of the masters of the Cluster that is the node `node`.
    ///
    /// # Errors
    /// If one of these masters belongs to another node, which is then the same Cluster.
    pub(super) fn note_cluster(
        &self,
        node: usize,
        name: &Arc<str>,
        masters: Vec<String>,
    ) -> Result<(), NoReply> {
        let clusters = &mut self.known().clusters;
        let is_common = |other: &KnownCluster| masters.iter().any(|id| other.masters.contains(id));
        if let Some(other) = clusters.iter().find(|other| other.node != node && is_common(other)) {
            let text = format!("{SAME_CLUSTER}{}: remove one", other.name);
            return Err(NoReply::Refused(text.into()));
        }
        clusters.retain(|known| known.node != node);
        clusters.push(KnownCluster { node, name: Arc::clone(name), masters });
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Answerers> {
        // Nothing panics while the lock is held, so what is known is intact even if it is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of its masters had one vote for one of the two nodes, at random.
    #[test]
    fn a_cluster_is_one_node_however_its_masters_change() {
        let answering = Answering::new(3);
        let note = |node: usize, masters: &[&str]| {
            let masters = masters.iter().map(|&id| id.to_owned()).collect();
            answering.note_cluster(node, &format!("cluster-{node}").into(), masters)
        };
        assert_eq!(note(0, &["a", "b"]), Ok(()));
        assert_eq!(note(1, &["x", "y"]), Ok(()));
        let refused = note(2, &["c", "b"]).unwrap_err();
        assert_eq!(refused, NoReply::Refused("the same Cluster as cluster-0: remove one".into()));
        assert_eq!(note(0, &["c", "d"]), Ok(()), "after two failovers");
        assert_eq!(note(2, &["a", "b"]), Ok(()));
    }
}
