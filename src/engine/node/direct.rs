//! Locks that are handed over: what a ticket asks for that the node may grant it by itself, and the
//! grant.

use super::{Acquired, Availability, Claim, ConnectionId, Lock, Node, Parting, Stop, Waiter};
use crate::engine::{Instant, Millis, Mode, Refusal, TOKEN_MAX, Ticket, Token};

/// What a node needs to grant the lock to a ticket by itself, beside its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct<'a> {
    /// The length of lease that it asks for.
    pub ttl: Millis,
    /// The label; may be empty.
    pub label: &'a [u8],
    /// The number of the registration, which the waiter is told with the grant.
    pub number: u64,
}

/// A ticket to which the node may grant the lock by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grantee {
    /// The ticket.
    pub ticket: Ticket,
    /// The channel on which it is told.
    pub channel: Box<[u8]>,
    /// The connection that it came on.
    pub connection: ConnectionId,
    /// Its token.
    pub token: Box<[u8]>,
    /// The length of lease that it asks for.
    pub ttl: Millis,
    /// The label; may be empty.
    pub label: Box<[u8]>,
    /// The number of its registration.
    pub number: u64,
    /// Since when it has been in line.
    pub since: Instant,
}

/// What a ticket asks for that may be granted the lock by the node itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Wish {
    pub(super) ttl: Millis,
    pub(super) label: Box<[u8]>,
    pub(super) number: u64,
    /// The last instant at which the node may do that.
    pub(super) until: Instant,
}

impl Wish {
    /// Whoever has not asked for half a ttl may have gone, and would have to ask again before it
    /// could use the lease.
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
    /// As [`Node::hand_over`].
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

    /// Grants the lock to who waits for it. Also returns the state of the lock afterwards.
    ///
    /// # Errors
    /// As [`Node::hand_over`].
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

    /// Notes that a ticket was granted the lock: it leaves the line. `is_told`: the grant was
    /// published to somebody; otherwise the caller releases the lease again. Once somebody may have
    /// read of it, only the token or time ends it.
    pub fn granted_to(
        &mut self,
        place: (u32, &[u8]),
        grantee: &Grantee,
        is_told: bool,
        now: Instant,
    ) {
        let waiter = Waiter::Ticket(grantee.ticket.clone());
        let left = self.lines.with_line(place.0, place.1, |line| line.leave(&waiter));
        self.part(place, left.into_iter().collect(), &Parting::TooLate);
        if is_told {
            self.lines.waits.record(grantee.since.until(now));
        }
    }
}
