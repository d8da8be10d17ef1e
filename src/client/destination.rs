//! Where a node is: at one server, at the current master of a group, or at all masters of a
//! Cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_rustls::rustls;

use super::connect::{Address, Login};
use super::inbox::NoReply;
use super::node_url::{self, Location};
use super::seeds::Seeds;
use super::sentinel::{SwitchWatch, WatchedGroup};

/// Where a node is, and the user to log in as.
#[derive(Debug, Clone)]
pub(super) enum Destination {
    Server(Address),
    Group(WatchedGroup),
    Cluster(Seeds),
}

/// A connection that is logged in, and the group's master if there is a group.
pub(super) struct Arrived {
    pub(super) login: Login,
    /// The address of the group's master, and the watch that tells when the master changes.
    pub(super) master: Option<(Arc<str>, SwitchWatch)>,
}

impl Destination {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, without its password.
    pub(super) fn parse(url: &str) -> Result<Destination, String> {
        let url = node_url::read(url)?;
        Ok(match (WatchedGroup::of(&url), Seeds::of(&url)) {
            (Some(group), _) => Destination::Group(group),
            (None, Some(seeds)) => Destination::Cluster(seeds),
            (None, None) => Destination::Server(Address::of(url)),
        })
    }

    /// The name for people and reports, never with a password.
    pub(super) const fn name(&self) -> &Arc<str> {
        match self {
            Destination::Server(address) => address.name(),
            Destination::Group(group) => group.name(),
            Destination::Cluster(seeds) => seeds.name(),
        }
    }

    /// Whether connections are encrypted.
    pub(super) const fn is_tls(&self) -> bool {
        match self {
            Destination::Server(address) => address.is_tls(),
            Destination::Group(group) => group.is_tls(),
            Destination::Cluster(seeds) => seeds.is_tls(),
        }
    }

    /// Sets how to encrypt the connections.
    pub(super) fn set_tls(&mut self, tls: &Arc<rustls::ClientConfig>) {
        match self {
            Destination::Server(address) => address.set_tls(Arc::clone(tls)),
            Destination::Group(group) => group.set_tls(tls),
            Destination::Cluster(seeds) => seeds.set_tls(tls),
        }
    }

    /// Skips the subscription.
    pub(super) fn set_deaf(&mut self) {
        match self {
            Destination::Server(address) => address.set_deaf(),
            Destination::Group(group) => group.set_deaf(),
            Destination::Cluster(seeds) => seeds.set_deaf(),
        }
    }

    /// Whether both lead to the same node, as far as can be seen.
    pub(super) fn is_same_node(&self, other: &Destination) -> bool {
        match (self, other) {
            (Destination::Server(one), Destination::Server(two)) => one.is_same_node(two),
            (Destination::Group(one), Destination::Group(two)) => one.is_same_node(two),
            (Destination::Cluster(one), Destination::Cluster(two)) => one.is_same_node(two),
            // One server may be in both; this shows when both answer.
            (Destination::Server(_) | Destination::Group(_) | Destination::Cluster(_), _) => false,
        }
    }

    /// The server at this host and port, with the login and everything else of the node's servers.
    pub(super) fn server_at(&self, (host, port): (String, u16)) -> Address {
        let is_tls = self.is_tls();
        let place = Location::Tcp { host, port, is_tls };
        match self {
            Destination::Server(address) => address.master_at(place),
            Destination::Group(group) => group.master_at(place),
            Destination::Cluster(seeds) => seeds.master_at(place),
        }
    }

    /// A random number from 0 to 1.
    pub(super) fn jitter(&self) -> f64 {
        match self {
            Destination::Server(address) => address.jitter(),
            Destination::Group(_) | Destination::Cluster(_) => rand::random(),
        }
    }

    /// Connects and logs in within `limit`, or within twice that for a group, whose master must be
    /// found first; `note_asked` is then told which master is asked.
    ///
    /// # Errors
    /// Why that was not possible.
    pub(super) async fn connect(
        &self,
        channel: &[u8],
        limit: Duration,
        note_asked: &(dyn Fn(&Arc<str>) + Send + Sync),
    ) -> Result<Arrived, NoReply> {
        // The same word as for a node that hangs later: an operator cannot tell the two apart.
        let silent = |_| NoReply::TimedOut;
        match self {
            Destination::Server(address) => {
                let login = timeout(limit, address.connect(channel)).await.map_err(silent)??;
                Ok(Arrived { login, master: None })
            }
            Destination::Group(group) => {
                let connecting = timeout(limit * 2, group.connect(channel, limit, note_asked));
                let (login, name, watch) = connecting.await.map_err(silent)??;
                Ok(Arrived { login, master: Some((name, watch)) })
            }
            // A Cluster has a link to each of its masters instead.
            Destination::Cluster(_) => Err(NoReply::Refused("it is a Cluster".into())),
        }
    }
}
