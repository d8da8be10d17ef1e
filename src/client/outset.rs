//! The requests that open an attempt, and their numbers.

use super::packet::Packet;
use crate::engine::{Harvest, NodeSet};

/// Numbers of the requests of an attempt.
pub(super) const ACQUIRE: u8 = 0;
pub(super) const RAISE: u8 = 1;
/// Like `ACQUIRE`, for a node that does not support grants to tickets.
pub(super) const ACQUIRE_PLAIN: u8 = 2;

/// How an attempt of a waiter begins.
pub(super) enum Outset {
    /// Ask all nodes.
    Ask(Asking),
    /// A quorum has granted the lock to the ticket.
    Granted(Harvest),
}

/// The requests to the nodes.
pub(super) struct Asking {
    pub(super) packet: Packet,
    /// The nodes that do not support grants to tickets, and the request to them.
    pub(super) plain: Option<(NodeSet, Packet)>,
}

impl Asking {
    /// The same request to all nodes.
    pub(super) const fn all(packet: Packet) -> Asking {
        Asking { packet, plain: None }
    }

    /// The request to `node`, and its number.
    pub(super) fn of(&self, node: usize) -> (&Packet, u8) {
        match &self.plain {
            Some((nodes, packet)) if nodes.has(node) => (packet, ACQUIRE_PLAIN),
            Some(_) | None => (&self.packet, ACQUIRE),
        }
    }
}
