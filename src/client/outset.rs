//! The requests that open an attempt.

use super::inbox::RequestKind;
use super::packet::Packet;
use crate::engine::{Harvest, NodeSet};

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
    /// The nodes that do not support direct grants, and the request to them.
    pub(super) plain: Option<(NodeSet, Packet)>,
}

impl Asking {
    /// The same request to all nodes.
    pub(super) const fn all(packet: Packet) -> Asking {
        Asking { packet, plain: None }
    }

    /// The request to `node`.
    pub(super) fn of(&self, node: usize) -> (&Packet, RequestKind) {
        match &self.plain {
            Some((nodes, packet)) if nodes.has(node) => (packet, RequestKind::AcquirePlain),
            Some(_) | None => (&self.packet, RequestKind::Acquire),
        }
    }
}
