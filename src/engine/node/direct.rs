//! Direct grants: what a node keeps to grant the lock to a ticket without another request when a
//! holder hands the lock over, and the grant.

use super::{Acquired, Availability, Claim, ConnectionId, Lock, Look, Node, Stop, Waiter};
use crate::engine::{Instant, Millis, Mode, Refusal, TOKEN_MAX, Ticket, Token};

/// What a node needs, besides the token, to grant the lock to a ticket without another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct<'a> {
    /// The requested length of the lease.
    pub ttl: Millis,
    /// The label; may be empty.
    pub label: &'a [u8],
    /// The number of the registration, which is published with the grant.
    pub number: u64,
}

/// A ticket to which the node may grant the lock without another request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grantee {
    /// The ticket.
    pub ticket: Ticket,
    /// The channel on which the grant is published.
    pub channel: Box<[u8]>,
    /// The connection that it came on.
    pub connection: ConnectionId,
    /// Its token.
    pub token: Box<[u8]>,
    /// The requested length of the lease.
    pub ttl: Millis,
    /// The label; may be empty.
    pub label: Box<[u8]>,
    /// The number of its registration.
    pub number: u64,
    /// When it got in line.
    pub since: Instant,
}

/// The terms on which the node may grant the lock to a ticket without another request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wish {
    pub(super) ttl: Millis,
    pub(super) label: Box<[u8]>,
    pub(super) number: u64,
    /// The last instant at which the node may do that.
    pub(super) until: Instant,
}

impl Wish {
    /// A waiter that has not asked for half a ttl may be gone, and would have to ask again before
    /// it could use the lease.
    pub(super) fn of(direct: Direct<'_>, now: Instant) -> Wish {
        let Direct { ttl, label, number } = direct;
        let until = now.after(Millis::new(ttl.get() / 2));
        Wish { ttl, label: label.into(), number, until }
    }
}

impl Node {
    /// Grants the lock to a ticket. Also returns the state of the lock afterwards.
    ///
    /// # Errors
    /// As [`Node::grant_calls`].
    pub fn grant_to(
        &mut self,
        lock: &mut Lock,
        grantee: &Grantee,
        max_ttl: Millis,
        now: Instant,
    ) -> Result<(Acquired, Availability), Stop> {
        let Grantee { token, ttl, label, .. } = grantee;
        self.grant_waiter(lock, (token, label), (*ttl, Mode::Exclusive), max_ttl, now)
    }

    /// Grants the lock to a waiter. Also returns the state of the lock afterwards.
    ///
    /// # Errors
    /// As [`Node::grant_calls`].
    pub(super) fn grant_waiter(
        &mut self,
        lock: &mut Lock,
        (token, label): (&[u8], &[u8]),
        (ttl, mode): (Millis, Mode),
        max_ttl: Millis,
        now: Instant,
    ) -> Result<(Acquired, Availability), Stop> {
        let token = Token::new(token, TOKEN_MAX)?;
        if ttl > max_ttl {
            let given = ttl.get().to_string().into_bytes();
            return Err(Refusal::BadTtl { given, max: max_ttl }.into());
        }
        let outcome = self.acquire(lock, Claim { token, ttl, mode }, label, now)?;
        Ok((outcome, self.availability(lock, now)))
    }

    /// The look at a line of [`Node::next_batch`].
    ///
    /// A server may send what a command publishes before it has written what the command did to the
    /// append-only file: to a client that has not read its earlier replies, or while a script goes
    /// on. If a start after a crash relies on that file, a grant could be counted that a crash has
    /// undone. So such a node makes the direct grants of a hand-over only here.
    pub fn look_of_ring(&mut self, place: (u32, &[u8])) -> Look {
        Look::of_ring(self.lines.is_to_hand_over(place))
    }

    /// Notes that a ticket was granted the lock, and removes it from the line. `is_told`: the grant
    /// was published to a subscriber; otherwise the caller releases the lease again. Once a
    /// subscriber may have read of the lease, only its token or time ends it.
    pub fn granted_to(
        &mut self,
        place: (u32, &[u8]),
        grantee: &Grantee,
        is_told: bool,
        now: Instant,
    ) {
        let waiter = Waiter::Ticket(grantee.ticket.clone());
        let left = self.lines.with_line(place.0, place.1, |line| line.leave(&waiter));
        // A ticket needs no reply.
        self.lines.part(place, left.into_iter().collect());
        if is_told {
            self.lines.waits.record(grantee.since.until(now));
        }
    }
}
