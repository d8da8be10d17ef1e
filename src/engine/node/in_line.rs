//! Requests for a lock that has a line: none of them jumps it.
//!
//! The same rules decide what is granted; the line can only refuse more. After each of these calls,
//! if the lock is free, the caller calls [`Line::serve`], unless [`Promises::grants_nothing_until`]
//! returns an instant.

use super::line::{Left, Line, Queued, Waiter};
use super::lock::{Holding, Lock};
use super::{Acquired, Claim, Promises, Released, Stop};
use crate::engine::{Instant, Millis, Token};

impl Promises {
    /// As [`Promises::acquire`], if no waiter comes before the request; otherwise the lock counts
    /// as held. A request with a ticket comes before younger tickets. Afterwards its ticket is in
    /// `line` if and only if the result is [`Acquired::Held`].
    ///
    /// A reader with a ticket also waits if the lock has as many readers as it may have.
    ///
    /// A grant removes all waiters with its token from the line, and answers the calls among them:
    /// a request that is repeated over a new connection must not wait behind its own lease.
    ///
    /// # Errors
    /// As [`Promises::acquire`], and [`QueueFull`](crate::engine::Refusal::QueueFull) for a ticket
    /// that would have to wait and is not in line yet.
    pub fn acquire_in_line(
        &mut self,
        lock: &mut Lock,
        line: &mut Line,
        claim: Claim<'_>,
        label: &[u8],
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> Result<(Acquired, Vec<Left>), Stop> {
        self.check_grants(now)?;
        let ticket = queued.map(|queued| &queued.ticket);
        let would_be_granted = match lock.holding(claim.token, now) {
            Holding::NotHeld => true,
            Holding::HeldByAnother(mode) => !mode.conflicts_with(claim.mode),
            Holding::Holds(_) => false,
        };
        let room = match would_be_granted {
            true => self.room_for_readers(lock, line.readers(), now),
            false => 0,
        };
        let is_kept_out = would_be_granted && !line.lets_in(claim.mode, ticket, room);
        let is_full = would_be_granted && claim.mode.is_shared() && room == 0;
        let waits = is_kept_out || is_full && queued.is_some();
        let outcome = if waits { Acquired::Held } else { self.acquire(lock, claim, label, now)? };
        if let (Acquired::Held, Some(queued)) = (outcome, queued) {
            line.check_room(queued)?;
        }
        // From here on it is not refused, so the line may change.
        match ticket {
            // There may be less room than when the turns were given.
            _ if claim.mode.is_shared() && room > 0 => line.end_turns_above(room),
            // Others have come first: its turn is over.
            Some(ticket) if is_full => line.end_turn(ticket),
            Some(_) | None => {}
        }
        match (outcome, queued) {
            (Acquired::Held, Some(queued)) => {
                line.register(claim.token, queued, now);
                Ok((outcome, Vec::new()))
            }
            (Acquired::Held, None) => Ok((outcome, Vec::new())),
            (Acquired::Granted { .. } | Acquired::Again { .. }, _) => {
                if let Some(ticket) = ticket {
                    line.leave(&Waiter::Ticket(ticket.clone()));
                }
                // A writer that asks as a reader remains a writer.
                line.taken(lock.mode());
                Ok((outcome, line.leave_by_token(claim.token, None)))
            }
        }
    }

    /// As [`Promises::release`]. Waiters with this token leave the line. If the request brings a
    /// ticket, the ticket is put in line instead, if the node has room for it.
    ///
    /// The lock is released whether or not there is room: a waiter is a hint, a lease is not.
    /// [`Line::has`] returns whether the ticket is in line. A ticket may also wait in quarantine,
    /// and is served when the quarantine ends.
    pub fn release_in_line(
        &self,
        lock: &mut Lock,
        line: &mut Line,
        token: Token<'_>,
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> (Released, Vec<Left>) {
        let released = self.release(lock, token, now);
        let left = line.leave_by_token(token, queued.map(|queued| &queued.ticket));
        let Some(queued) = queued else { return (released, left) };
        if line.check_room(queued).is_ok() {
            line.register(token, queued, now);
        }
        (released, left)
    }

    /// The last instant of the quarantine, if there is one. Until then a free lock is not offered
    /// to waiters, because the acquire would be refused.
    pub fn grants_nothing_until(&self, now: Instant) -> Option<Instant> {
        let (left, _) = self.quarantine(now)?;
        Some(now.after(Millis::new(left.get().saturating_sub(1))))
    }
}
