//! What the nodes are asked at the begin of an attempt, and by which number they are known.

use super::packet::Packet;
use crate::engine::{Harvest, NodeSet};

/// Numbers of the requests of an attempt.
pub(super) const ACQUIRE: u8 = 0;
pub(super) const RAISE: u8 = 1;
/// The same as `ACQUIRE`, for a node that does not know of grants to tickets.
pub(super) const ACQUIRE_PLAIN: u8 = 2;

/// How an attempt of a waiter begins.
pub(super) enum Outset {
    /// All nodes are asked.
    Ask(Asking),
    /// A quorum has granted the lock to the ticket.
    Granted(Harvest),
}

/// What the nodes are asked.
pub(super) struct Asking {
    pub(super) packet: Packet,
    /// What those are asked that do not know of grants to tickets.
    pub(super) plain: Option<(NodeSet, Packet)>,
}

impl Asking {
    /// The same for all nodes.
    pub(super) const fn all(packet: Packet) -> Asking {
        Asking { packet, plain: None }
    }

    /// What `node` is asked, and the number of that request.
    pub(super) fn of(&self, node: usize) -> (&Packet, u8) {
        match &self.plain {
            Some((nodes, packet)) if nodes.has(node) => (packet, ACQUIRE_PLAIN),
            Some(_) | None => (&self.packet, ACQUIRE),
        }
    }
}
