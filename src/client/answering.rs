//! Which servers and Clusters answer for the nodes of a client: each has one vote, however many
//! URLs lead to it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::destination::Destination;
use super::inbox::{NoReply, ServerId};
#[cfg(feature = "cli")]
use super::vote::Vote;

/// How the texts about a server and a Cluster that are given twice begin.
const SAME_SERVER: &str = "the same server as ";
const SAME_CLUSTER: &str = "the same Cluster as ";

/// What a node with this vote is, if it is another node under a second name, and what to do.
#[cfg(feature = "cli")]
pub(crate) fn same_as(vote: &Vote) -> Option<(&str, &str)> {
    // At the connection, and of a second answer in one round.
    let (Vote::Refused(text) | Vote::Unreachable(text)) = vote else { return None };
    let is_same = [SAME_SERVER, SAME_CLUSTER].iter().any(|start| text.starts_with(start));
    text.rsplit_once(": ").filter(|_| is_same)
}

/// Which server answers on each connection, and of which Clusters the nodes are.
#[derive(Debug)]
pub(super) struct Answering {
    nodes: Vec<Destination>,
    known: Mutex<Answerers>,
}

#[derive(Debug)]
struct Answerers {
    places: Vec<LinkPlace>,
    clusters: Vec<KnownCluster>,
}

/// A connection.
#[derive(Debug)]
struct LinkPlace {
    node: usize,
    /// The server that answers there.
    server: Option<ServerId>,
    /// Whether the connection has ended, for good.
    is_free: bool,
}

impl LinkPlace {
    const fn new(node: usize) -> LinkPlace {
        LinkPlace { node, server: None, is_free: false }
    }
}

/// A Cluster that is a node.
#[derive(Debug)]
struct KnownCluster {
    node: usize,
    masters: Vec<String>,
}

impl Answering {
    /// With a place for the connection to each node.
    pub(super) fn new(nodes: Vec<Destination>) -> Answering {
        let places = (0..nodes.len()).map(LinkPlace::new).collect();
        Answering { nodes, known: Mutex::new(Answerers { places, clusters: Vec::new() }) }
    }

    /// The nodes, as they were given.
    pub(super) fn nodes(&self) -> &[Destination] {
        &self.nodes
    }

    /// A place for one more connection to this node.
    pub(super) fn next_place(&self, node: usize) -> usize {
        let places = &mut self.known().places;
        let index = places.iter().position(|place| place.is_free).unwrap_or_else(|| {
            places.push(LinkPlace::new(node));
            places.len() - 1
        });
        places[index] = LinkPlace::new(node);
        index
    }

    /// Notes that the connection with this place has ended, for good.
    pub(super) fn vacate(&self, place: usize) {
        let place = &mut self.known().places[place];
        (place.server, place.is_free) = (None, true);
    }

    /// Notes which server answers at `place`, if that is known.
    ///
    /// # Errors
    /// If it already answers at another place: no retry helps while the list is as it is.
    pub(super) fn note(&self, place: usize, server: Option<ServerId>) -> Result<(), NoReply> {
        let places = &mut self.known().places;
        places[place].server = None;
        let is_same = |other: &&LinkPlace| server.is_some() && other.server == server;
        if let Some(other) = places.iter().find(is_same) {
            return Err(self.refusal(SAME_SERVER, places[place].node, other.node));
        }
        places[place].server = server;
        Ok(())
    }

    /// Notes that nobody answers at `place` any more.
    pub(super) fn leave(&self, place: usize) {
        self.known().places[place].server = None;
    }

    /// Notes the ids of the masters of the Cluster that is the node `node`.
    ///
    /// # Errors
    /// If one of these masters belongs to another node, which is then the same Cluster.
    pub(super) fn note_cluster(&self, node: usize, masters: Vec<String>) -> Result<(), NoReply> {
        let clusters = &mut self.known().clusters;
        let is_common = |other: &KnownCluster| masters.iter().any(|id| other.masters.contains(id));
        if let Some(other) = clusters.iter().find(|other| other.node != node && is_common(other)) {
            return Err(self.refusal(SAME_CLUSTER, node, other.node));
        }
        clusters.retain(|known| known.node != node);
        clusters.push(KnownCluster { node, masters });
        Ok(())
    }

    /// The ids of the masters of the Cluster that is the node `node`, if they are known.
    pub(super) fn masters_of(&self, node: usize) -> Option<Vec<String>> {
        let known = self.known();
        let cluster = known.clusters.iter().find(|cluster| cluster.node == node);
        cluster.map(|cluster| cluster.masters.clone())
    }

    /// The refusal of a node because of another one. Which of them connects first is chance, so
    /// both texts name the same one to remove: a server by itself, which does not follow a
    /// failover, or else the later one in the list.
    fn refusal(&self, same: &str, node: usize, other: usize) -> NoReply {
        if node == other {
            // A master of a Cluster whose address has changed: the connection to the former one
            // ends soon.
            return NoReply::Unreachable("it answers at another address too".into());
        }
        use Destination::{Cluster, Group, Server};
        let [one, two] = [node, other].map(|node| &self.nodes[node]);
        let extra = match (one, two) {
            (Server(_), Group(_) | Cluster(_)) => node,
            (Group(_) | Cluster(_), Server(_)) => other,
            _ => node.max(other),
        };
        let hint = match (one, two) {
            (Group(_), Group(_)) => ", and write its Sentinels into the other URL",
            (Cluster(_), Cluster(_)) => ", and write its servers into the other URL",
            _ => "",
        };
        let (other, extra) = (two.name(), self.nodes[extra].name());
        NoReply::Refused(format!("{same}{other}: remove {extra}{hint}").into())
    }

    fn known(&self) -> MutexGuard<'_, Answerers> {
        // Nothing panics while the lock is held, so what is known is intact even if it is poisoned.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(urls: &[&str]) -> Answering {
        let nodes = urls.iter().map(|url| Destination::parse(url).unwrap());
        Answering::new(nodes.collect())
    }

    fn refused(text: &str) -> Result<(), NoReply> {
        Err(NoReply::Refused(text.into()))
    }

    /// Each of its masters had one vote for one of the two nodes, at random.
    #[test]
    fn a_cluster_is_one_node_however_its_masters_change() {
        let answering = given(&["redis+cluster://a", "redis+cluster://b", "redis+cluster://c"]);
        let note = |node: usize, masters: &[&str]| {
            answering.note_cluster(node, masters.iter().map(|&id| id.to_owned()).collect())
        };
        assert_eq!(note(0, &["a", "b"]), Ok(()));
        assert_eq!(note(1, &["x", "y"]), Ok(()));
        let text = "the same Cluster as cluster:a:6379: remove cluster:c:6379, and write its \
                    servers into the other URL";
        assert_eq!(note(2, &["c", "b"]), refused(text));
        assert_eq!(note(0, &["c", "d"]), Ok(()), "after two failovers");
        assert_eq!(note(2, &["a", "b"]), Ok(()));
    }

    /// A master that came and went again and again left a place behind each time.
    #[test]
    fn the_place_of_a_connection_that_has_ended_is_taken_by_the_next() {
        let answering = given(&["redis+cluster://a", "redis://b"]);
        let [first, second] = [0, 0].map(|node| answering.next_place(node));
        assert_eq!((first, second), (2, 3));
        assert_eq!(answering.note(first, ServerId::of("id")), Ok(()));
        answering.vacate(first);
        assert_eq!(answering.note(second, ServerId::of("id")), Ok(()), "nobody else answers");
        assert_eq!([0, 0].map(|node| answering.next_place(node)), [first, 4]);
    }

    /// The second text is made where the names of the nodes are not known.
    #[cfg(feature = "cli")]
    #[test]
    fn both_texts_about_a_server_that_is_given_twice_are_recognized() {
        let vote = |text: &str| Vote::Refused(text.into());
        let told = vote(crate::client::inbox::SECOND_VOTE);
        assert_eq!(same_as(&told), Some(("the same server as another node", "remove one")));
        let told = vote("the same server as h:6379: remove i:6379");
        assert_eq!(same_as(&told), Some(("the same server as h:6379", "remove i:6379")));
        assert_eq!(same_as(&vote("another text: remove it")), None);
    }

    /// Whichever connected last was blamed: the group, while its master was given as well.
    #[test]
    fn of_two_ways_to_a_server_the_same_one_is_to_be_removed_whichever_connects_first() {
        let (group, late) = ("redis+sentinel://s/m", "redis+sentinel://t/m");
        let (cluster, server) = ("redis+cluster://c", "redis://h");
        let (into, id) = (", and write its Sentinels into the other URL", ServerId::of("id"));
        for (urls, extra, hint) in [
            ([group, server], "h:6379", ""),
            ([server, group], "h:6379", ""),
            ([server, cluster], "h:6379", ""),
            ([cluster, server], "h:6379", ""),
            ([server, "redis://i"], "i:6379", ""),
            ([cluster, group], "s:26379/m", ""),
            ([group, late], "t:26379/m", into),
        ] {
            for (first, last) in [(0, 1), (1, 0)] {
                let answering = given(&urls);
                assert_eq!(answering.note(first, id), Ok(()));
                let name = answering.nodes[first].name();
                let text = format!("the same server as {name}: remove {extra}{hint}");
                assert_eq!(answering.note(last, id), refused(&text));
                answering.leave(first);
                assert_eq!(answering.note(last, id), Ok(()));
                let same = answering.note(answering.next_place(last), id);
                assert!(matches!(same, Err(NoReply::Unreachable(_))), "{same:?}");
            }
        }
    }
}
