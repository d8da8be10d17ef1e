//! Commands as packed bytes, and how much is done to have each carried out.
//!
//! A command is packed once and sent to all nodes from the same bytes. A release is marked: it is
//! the one command that must reach a node even after the connection broke, so it is sent again on
//! the next connection. This is harmless, because its token is used for one acquisition only. A
//! release that also puts a ticket in line is repeated without the ticket, which belongs to the
//! connection over which it was put there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Fence, Fencing, Millis, Mode};
use crate::wire::request::{Onward, Queue, Request, WaitMode};
use crate::wire::resp;

/// The length of a token, in bytes.
pub const TOKEN_LENGTH: usize = 20;

/// One command, ready to be sent.
#[derive(Clone)]
pub struct Packet {
    bytes: Arc<[u8]>,
    /// What is sent in place of `bytes` after the node has refused them, or the connection broke.
    plain: Option<Arc<[u8]>>,
    care: Care,
    part: Option<Part>,
    /// Whether it is for a master to which the slot of its lock is moving.
    is_asking: bool,
}

/// Without the bytes: they contain a token or a password.
impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet").field("care", &self.care).finish_non_exhaustive()
    }
}

/// Identifies an acquisition in a node's line: a part of its token, which is random.
pub(super) type AcquisitionId = u64;

/// The part of a command in an acquisition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) claim: AcquisitionId,
    /// How long the node may hold something because of it; `None` if it gives that up.
    pub(super) asks_for: Option<Duration>,
}

impl Part {
    fn of(token: &[u8], asks_for: Option<Millis>) -> Option<Part> {
        let claim = u64::from_be_bytes(*token.first_chunk()?);
        Some(Part { claim, asks_for: asks_for.map(Duration::from) })
    }
}

/// How much is done to have a command carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It is withdrawn if the caller has gone before it was written.
    Awaited,
    /// It is written, whether or not a caller waits.
    Once,
    /// It is written, and again on the next connection if the old one broke before the answer. If
    /// the node puts it off, it is sent again for this long.
    UntilAnswered(Duration),
}

impl Packet {
    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much is done to have it carried out.
    pub const fn care(&self) -> Care {
        self.care
    }

    /// The same command without the part that a node may refuse or a broken connection may undo, if
    /// it has one.
    pub(super) fn plain(&self) -> Option<Packet> {
        let bytes = Arc::clone(self.plain.as_ref()?);
        let part = self.part.map(|part| Part { asks_for: None, ..part });
        Some(Packet { bytes, plain: None, care: self.care, part, is_asking: self.is_asking })
    }

    /// The packed bytes, to recognize equal packets.
    pub(super) fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.bytes)
    }

    /// Its part in an acquisition. A release without a part is owed in any case.
    pub(super) const fn part(&self) -> Option<Part> {
        self.part
    }

    fn asking(self, token: &[u8], length: Millis) -> Packet {
        Packet { part: Part::of(token, Some(length)), ..self }
    }

    /// The same command, owed even if nothing was requested from the node with the token: for
    /// tokens that came from elsewhere.
    pub(super) fn of_a_stranger(self) -> Packet {
        Packet { part: None, ..self }
    }

    /// The same command, written even if no caller waits for the answer.
    #[must_use]
    pub fn unattended(self) -> Packet {
        Packet { care: Care::Once, ..self }
    }

    /// The same command, for a master to which the slot of its lock is moving: others refuse it.
    pub(super) fn for_importer(self) -> Packet {
        Packet { is_asking: true, ..self }
    }

    /// Whether it is for a master to which the slot of its lock is moving.
    pub(super) const fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Any command.
    pub fn new(args: &[&[u8]]) -> Packet {
        Packet::of(resp::pack(args))
    }

    fn of(bytes: Vec<u8>) -> Packet {
        let bytes = Arc::from(bytes);
        Packet { bytes, plain: None, care: Care::Awaited, part: None, is_asking: false }
    }

    /// A command about the lock `key`.
    fn about(key: &[u8], request: &Request<'_>) -> Packet {
        Packet::of(request.pack(key))
    }

    /// Asks for the lock.
    pub fn acquire(key: &[u8], token: &[u8], (ttl, mode): (Millis, Mode), label: &[u8]) -> Packet {
        let request = Request::Acquire { token, ttl, mode, label, waiting: WaitMode::Not };
        Packet::about(key, &request).asking(token, ttl)
    }

    /// Asks for the lock, or for a place in line.
    ///
    /// Written even if no caller waits for the answer: the token of a ticket in line must be one
    /// that was sent, or a release could miss it.
    pub fn acquire_in_line(
        key: &[u8],
        token: &[u8],
        (ttl, mode): (Millis, Mode),
        label: &[u8],
        queue: Queue<'_>,
    ) -> Packet {
        let length = ttl.max(queue.wait);
        let request = Request::Acquire { token, ttl, mode, label, waiting: WaitMode::Queue(queue) };
        Packet::about(key, &request).unattended().asking(token, length)
    }

    /// Releases the lock: owed to the node if something was requested from it with the token.
    pub fn release(key: &[u8], token: &[u8], ttl: Millis) -> Packet {
        let packet = Packet::about(key, &Request::Release { token, onward: Onward::Unsaid });
        let part = Part::of(token, None);
        Packet { care: Care::UntilAnswered(ttl.into()), part, ..packet }
    }

    /// Releases a lock that was won, and says so. When it is repeated, or sent again to a node that
    /// refuses it, it no longer says so.
    pub fn hand_over(key: &[u8], token: &[u8], ttl: Millis) -> Packet {
        let plain = Packet::release(key, token, ttl);
        let packet = Packet::about(key, &Request::Release { token, onward: Onward::HandedOver });
        Packet { plain: Some(plain.bytes), care: plain.care, part: plain.part, ..packet }
    }

    /// Releases the lock, and asks for a place in line. When it is repeated, or sent again to a
    /// node that refuses it, it no longer asks for the place.
    pub fn release_into_line(
        key: &[u8],
        token: &[u8],
        (ttl, mode): (Millis, Mode),
        queue: Queue<'_>,
    ) -> Packet {
        let (plain, length) = (Packet::release(key, token, ttl), queue.wait);
        let onward = Onward::Queue(mode, queue);
        let packet = Packet::about(key, &Request::Release { token, onward });
        Packet { plain: Some(plain.bytes), care: plain.care, ..packet }.asking(token, length)
    }

    /// Extends the lease, and raises its fence unless that is zero.
    pub fn extend(key: &[u8], token: &[u8], (ttl, mode): (Millis, Mode), fence: Fence) -> Packet {
        let fencing = if fence == Fence::ZERO { Fencing::Keep } else { Fencing::Raise(fence) };
        Packet::about(key, &Request::Extend { token, ttl, mode, fencing }).asking(token, ttl)
    }

    /// Extends the lease, and restores it on a node that has forgotten it.
    pub fn repair(
        key: &[u8],
        token: &[u8],
        (ttl, mode): (Millis, Mode),
        fence: Fence,
        label: &[u8],
    ) -> Packet {
        let fencing = Fencing::Repair { fence, label };
        Packet::about(key, &Request::Extend { token, ttl, mode, fencing }).asking(token, ttl)
    }

    /// Raises the fence of the lease.
    pub fn raise(key: &[u8], token: &[u8], fence: Fence) -> Packet {
        Packet::about(key, &Request::Raise { token, fence })
    }

    /// Asks for the highest fence issued.
    pub fn fence(key: &[u8]) -> Packet {
        Packet::about(key, &Request::Fence)
    }

    /// Asks for a description of the lock.
    pub fn info(key: &[u8]) -> Packet {
        Packet::about(key, &Request::Info)
    }
}
