//! The connections to all nodes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::answering::Answering;
use super::connect::{Address, Dial};
use super::destination::Destination;
use super::inbox::ReplyTo;
use super::link::{Link, LinkSeat};
use super::packet::Packet;
use super::slot_links::{SlotLinks, Spawn};
use super::slot_shares::MoveTarget;
use super::vote::Vote;
use super::wakes::Wakes;
use crate::wire::slots::slot_of;

/// The connections to all nodes, in their order. A custom world may implement [`World::nodes`],
/// [`World::send`] and [`World::wakes`] with them. They measure time with tokio's clock.
///
/// [`World::nodes`]: super::World::nodes
/// [`World::send`]: super::World::send
/// [`World::wakes`]: super::World::wakes
#[derive(Debug)]
pub struct Links {
    names: Vec<Arc<str>>,
    links: Vec<NodeLinks>,
    answering: Arc<Answering>,
    wakes: Arc<Wakes>,
}

impl Links {
    /// Connections to nodes that are reached through a [`Dial`] each. Nodes publish for this client
    /// on `channel`; `patience` is how long to wait for an answer; `spawn` receives one task per
    /// node, which ends when this is dropped and everything in line is done.
    pub fn dialled(
        nodes: impl IntoIterator<Item = (Arc<str>, Arc<dyn Dial>)>,
        channel: &[u8],
        patience: Duration,
        spawn: impl FnMut(BoxFuture<'static, ()>),
    ) -> Links {
        let destination = |(name, dial)| Destination::Server(Address::dialled(name, dial));
        let nodes = nodes.into_iter().map(destination).collect();
        Links::start(nodes, channel, patience, spawn, None)
    }

    /// Starts to connect to `destinations`. A Cluster needs `spawn_later`, for the links to masters
    /// that become known later.
    pub(super) fn start(
        destinations: Vec<Destination>,
        channel: &[u8],
        patience: Duration,
        mut spawn: impl FnMut(BoxFuture<'static, ()>),
        spawn_later: Option<Spawn>,
    ) -> Links {
        let count = destinations.len();
        let names = destinations.iter().map(|place| Arc::clone(place.name())).collect();
        let answering = Arc::new(Answering::new(destinations));
        let wakes = Arc::new(Wakes::new(channel, count));
        let start = |(node, destination)| {
            let (answering, wakes) = (Arc::clone(&answering), Arc::clone(&wakes));
            if let (Destination::Cluster(seeds), Some(spawn)) = (&destination, &spawn_later) {
                let (seeds, spawn) = (seeds.clone(), Arc::clone(spawn));
                let me = (node, answering);
                return NodeLinks::Slots(SlotLinks::start(seeds, me, wakes, patience, spawn));
            }
            let seat = LinkSeat { node, place: node, answering, wakes, router: None };
            let (link, driving) = Link::new(destination, patience, seat);
            spawn(Box::pin(driving));
            NodeLinks::One(link)
        };
        let links = answering.nodes().iter().cloned().enumerate().map(start).collect();
        Links { names, links, answering, wakes }
    }

    /// Which servers and Clusters answer for the nodes.
    pub(super) fn answering(&self) -> &Answering {
        &self.answering
    }

    /// Where the nodes' messages on the channel arrive.
    pub const fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }

    /// The names of the nodes, for people.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The master of the node's group, if it is in a group and there is a connection; all masters
    /// of a Cluster.
    pub(super) fn masters(&self, node: usize) -> Vec<Arc<str>> {
        match &self.links[node] {
            NodeLinks::One(link) => {
                let line = link.state().line();
                // The master that cannot be reached may be none any more.
                line.master.iter().filter(|_| line.down.is_none()).map(Arc::clone).collect()
            }
            NodeLinks::Slots(links) => links.masters(),
        }
    }

    /// Whether the node is a Cluster.
    pub(super) fn is_cluster(&self, node: usize) -> bool {
        matches!(self.links[node], NodeLinks::Slots(_))
    }

    /// The master that has this lock, if it is known: of a Cluster, or of the node's group, where
    /// it is the one that was asked last. `None` for a server by itself.
    pub(super) fn master_of(&self, node: usize, name: &[u8]) -> Option<Arc<str>> {
        match &self.links[node] {
            NodeLinks::One(link) => link.state().line().master.clone(),
            NodeLinks::Slots(links) => links.owner_of(slot_of(name)),
        }
    }

    /// The master of this slot of a Cluster, if it is known.
    pub(super) fn owner_of(&self, node: usize, slot: u16) -> Option<Arc<str>> {
        match &self.links[node] {
            NodeLinks::One(_) => None,
            NodeLinks::Slots(links) => links.owner_of(slot),
        }
    }

    /// The master that was sent the last command about this lock, as far as is known: of a Cluster
    /// the one that has the lock's slot, or to which the slot is moving.
    pub(super) fn last_asked(&self, node: usize, name: &[u8]) -> Option<Arc<str>> {
        match &self.links[node] {
            NodeLinks::One(_) => self.master_of(node, name),
            NodeLinks::Slots(links) => links.last_asked(name),
        }
    }

    /// The name of this master of a Cluster, to which commands can be sent from now on, though it
    /// may have no slots; `None` if it is not known how to reach it.
    pub(super) fn meet(&self, node: usize, master: &MoveTarget) -> Option<Arc<str>> {
        match &self.links[node] {
            NodeLinks::One(_) => None,
            NodeLinks::Slots(links) => links.meet(master),
        }
    }

    /// What is said of a node that has not answered in time. While the masters of a group or a
    /// Cluster are not known, nobody was asked but those who know them.
    pub(super) fn silence(&self, node: usize) -> Vote {
        match (&self.links[node], &self.answering.nodes()[node]) {
            (NodeLinks::One(link), Destination::Group(group)) => {
                let is_known = link.state().line().master.is_some();
                group.silence(is_known).map_or(Vote::TimedOut, Vote::Unreachable)
            }
            (NodeLinks::Slots(links), Destination::Cluster(seeds))
                if links.masters().is_empty() =>
            {
                Vote::Unreachable(seeds.silence())
            }
            (NodeLinks::One(_) | NodeLinks::Slots(_), _) => Vote::TimedOut,
        }
    }

    /// How many slots a master of a Cluster has, as far as is known.
    pub(super) fn slots_of(&self, node: usize, master: &str) -> u16 {
        match &self.links[node] {
            NodeLinks::One(_) => 0,
            NodeLinks::Slots(links) => links.slots_of(master),
        }
    }

    /// Whether, as far as is known, the node has yet to carry out a release.
    pub fn owes(&self, node: usize) -> bool {
        match &self.links[node] {
            NodeLinks::One(link) => link.state().line().owes(),
            NodeLinks::Slots(links) => links.owes(),
        }
    }

    /// Whether the node has yet to carry out a release, and cannot be reached at present, or puts
    /// it off.
    pub(super) fn is_hindered(&self, node: usize) -> bool {
        match &self.links[node] {
            NodeLinks::One(link) => link.state().line().is_hindered(),
            NodeLinks::Slots(links) => links.is_hindered(),
        }
    }

    /// Puts a command into the node's line; never waits.
    pub fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
        match &self.links[node] {
            NodeLinks::One(link) => link.send(packet, reply_to),
            NodeLinks::Slots(links) => links.send(packet, reply_to),
        }
    }

    /// Puts a command into the line of one master of a Cluster.
    pub(super) fn send_to(
        &self,
        (node, master): (usize, &str),
        packet: &Packet,
        reply_to: ReplyTo,
    ) {
        match &self.links[node] {
            NodeLinks::One(link) => link.send(packet, Some(reply_to)),
            NodeLinks::Slots(links) => links.send_to(master, packet, reply_to),
        }
    }
}

/// The connections to one node.
#[derive(Debug)]
enum NodeLinks {
    One(Link),
    Slots(SlotLinks),
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::client::connect::{Opening, Stream};
    use crate::client::inbox::{Inbox, RequestKind};
    use crate::engine::{Millis, Mode};
    use crate::wire::resp::{self, Reply};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::{mpsc, watch};
    use tokio::time::{Instant, sleep};

    const TTL: Millis = Millis::new(10_000);

    /// Opens connections once `is_open` is true; their other ends come out of the channel.
    #[derive(Debug)]
    struct Door {
        is_open: watch::Receiver<bool>,
        servers: mpsc::UnboundedSender<DuplexStream>,
    }

    impl Dial for Door {
        fn open(&self) -> Opening {
            let (mut is_open, servers) = (self.is_open.clone(), self.servers.clone());
            Box::pin(async move {
                is_open.wait_for(|is_open| *is_open).await.map_err(io::Error::other)?;
                let (client, server) = duplex(1 << 16);
                servers.send(server).map_err(io::Error::other)?;
                Ok(Box::new(client) as Box<dyn Stream>)
            })
        }

        fn jitter(&self) -> f64 {
            0.5
        }
    }

    /// A node that accepts every login, and records the commands that follow until the client has
    /// gone.
    async fn heard(mut server: DuplexStream) -> Vec<String> {
        let (mut unread, mut heard) = (Vec::new(), Vec::new());
        while server.read_buf(&mut unread).await.is_ok_and(|length| length > 0) {
            while let Ok(Some((Reply::List(args), length))) = resp::read(&unread) {
                unread.drain(..length);
                let words = args.iter().filter_map(|arg| match arg {
                    Reply::Text(text) => Some(String::from_utf8_lossy(text)),
                    _ => None,
                });
                let command = words.collect::<Vec<_>>().join(" ");
                let answer: &[u8] = match command.split(' ').next() {
                    Some("HELLO") => b"*0\r\n",
                    Some("SUBSCRIBE") => b">3\r\n+subscribe\r\n+c\r\n:1\r\n",
                    Some("PING") => b"+PONG\r\n",
                    Some("INFO") => b"$-1\r\n",
                    _ => {
                        heard.push(command);
                        b":1\r\n"
                    }
                };
                server.write_all(answer).await.expect("the client reads");
            }
        }
        heard
    }

    /// Which of the commands that were sent before there was a connection are written to it.
    async fn written(send: impl FnOnce(&Links)) -> Vec<String> {
        let (open, is_open) = watch::channel(false);
        let (servers, mut accepted) = mpsc::unbounded_channel();
        let dial: Arc<dyn Dial> = Arc::new(Door { is_open, servers });
        let spawn = |driving| drop(tokio::spawn(driving));
        let nodes = [(Arc::from("node"), dial)];
        let links = Links::dialled(nodes, b"c", Duration::from_secs(1), spawn);
        send(&links);
        drop(links);
        open.send(true).expect("the client connects");
        heard(accepted.recv().await.expect("a connection")).await
    }

    /// The client reconnected to it as fast as the machine could.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_lets_in_and_closes_is_not_stormed() {
        let (_open, is_open) = watch::channel(true);
        let (servers, mut accepted) = mpsc::unbounded_channel();
        let dial: Arc<dyn Dial> = Arc::new(Door { is_open, servers });
        let nodes = [(Arc::from("node"), dial)];
        let spawn = |driving| drop(tokio::spawn(driving));
        let _links = Links::dialled(nodes, b"c", Duration::from_secs(1), spawn);
        let (end, mut count) = (Instant::now() + Duration::from_secs(10), 0);
        while let Ok(Some(server)) = tokio::time::timeout_at(end, accepted.recv()).await {
            let greeting = tokio::spawn(heard(server));
            sleep(Duration::from_millis(1)).await;
            greeting.abort();
            count += 1;
        }
        assert!((15..45).contains(&count), "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_withdrawn_is_not_sent_and_its_release_is() {
        let acquire = Packet::acquire(b"a", &[b't'; 20], (TTL, Mode::Exclusive), b"");
        let release = Packet::release(b"a", &[b't'; 20], TTL);
        let heard = written(|links| {
            let inbox = Inbox::new(1);
            links.send(0, &acquire, Some(inbox.reply_to(0, RequestKind::Only)));
            drop(inbox);
            links.send(0, &release, None);
        });
        assert_eq!(heard.await, ["LOCK.RELEASE a tttttttttttttttttttt"]);
    }

    /// The connection stayed as long as the node let it.
    #[tokio::test(start_paused = true)]
    async fn a_link_that_is_dropped_ends_though_nobody_wants_what_is_in_line() {
        let heard = written(|links| {
            let inbox = Inbox::new(1);
            links.send(
                0,
                &Packet::new(&[b"LOCK.INFO"]),
                Some(inbox.reply_to(0, RequestKind::Only)),
            );
        });
        let heard = tokio::time::timeout(Duration::from_secs(1), heard).await;
        assert_eq!(heard.expect("it ends"), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_wanted_is_sent_though_nobody_reads_its_reply() {
        let acquire = Packet::acquire(b"a", &[b't'; 20], (TTL, Mode::Exclusive), b"");
        let heard = written(|links| {
            let inbox = Inbox::new(1);
            links.send(0, &acquire, Some(inbox.reply_to(0, RequestKind::Only)));
            inbox.keep_sending();
        });
        assert_eq!(heard.await, ["LOCK.ACQUIRE a tttttttttttttttttttt 10000"]);
    }
}
