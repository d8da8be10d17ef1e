//! Requests at a lock that has a line before it: nobody barges in.
//!
//! What is granted, and that it is safe, is decided as everywhere else; the line only says no more
//! often. After each of these the caller asks [`Line::serve`] if the lock is free, and
//! [`Promises::grants_nothing_until`] does not put that off.

use super::line::{Left, Line, Queued, Waiter};
use super::lock::{Holding, Lock};
use super::{Acquired, Claim, Promises, Released, Stop};
use crate::engine::{Instant, Millis, Token};

impl Promises {
    /// As [`Promises::acquire`], where nobody waits who comes before the request; otherwise the
    /// lock counts as held. A request that brings a ticket comes before whoever is younger, and
    /// then it stands in `line` if the answer is [`Acquired::Held`], and does not if it is not.
    ///
    /// Everybody who brought the token leaves the line with its grant. The calls among them are to
    /// be answered by it: a request that is repeated over a new connection must not wait behind its
    /// own lease.
    ///
    /// # Errors
    /// As [`Promises::acquire`], and [`QueueFull`](crate::engine::Refusal::QueueFull) for a ticket
    /// that would have to stand in line, and does not yet.
    pub fn acquire_in_line(
        &mut self,
        lock: &mut Lock,
        line: &mut Line,
        claim: Claim<'_>,
        label: &[u8],
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> Result<(Acquired, Vec<Left>), Stop> {
        self.check_quarantine(now)?;
        let ticket = queued.map(|queued| &queued.ticket);
        let is_kept_out =
            lock.standing(claim.token, now) == Holding::NotHeld && !line.lets_in(ticket);
        let outcome =
            if is_kept_out { Acquired::Held } else { self.acquire(lock, claim, label, now)? };
        match (outcome, queued) {
            (Acquired::Held, Some(queued)) => {
                if !line.has(&Waiter::Ticket(queued.ticket.clone())) {
                    queued.room.check()?;
                }
                line.register(claim.token, queued, now);
                Ok((outcome, Vec::new()))
            }
            (Acquired::Held, None) => Ok((outcome, Vec::new())),
            (Acquired::Granted { .. } | Acquired::Again { .. }, _) => {
                if let Some(ticket) = ticket {
                    line.leave(&Waiter::Ticket(ticket.clone()));
                }
                line.taken();
                Ok((outcome, line.leave_by_token(claim.token)))
            }
        }
    }

    /// As [`Promises::release`]. Whoever brought the token last leaves the line; a request that
    /// brings a ticket stands in line instead, if the node has room for it.
    ///
    /// The lock is given back whether there is room or not: a waiter is a hint, a lease is not.
    /// Whether the ticket stands in line, [`Line::has`] says. It may do so in quarantine, too: it
    /// is then served when the quarantine ends.
    pub fn release_in_line(
        &self,
        lock: &mut Lock,
        line: &mut Line,
        token: Token<'_>,
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> (Released, Vec<Left>) {
        let released = self.release(lock, token, now);
        let Some(queued) = queued else { return (released, line.leave_by_token(token)) };
        let is_known = line.has(&Waiter::Ticket(queued.ticket.clone()));
        if is_known || queued.room.check().is_ok() {
            line.register(token, queued, now);
        }
        (released, Vec::new())
    }

    /// The last instant of the quarantine, if there is one. A lock that is free is not offered to
    /// those in line before: what they would ask for then would be refused.
    pub fn grants_nothing_until(&self, now: Instant) -> Option<Instant> {
        let (left, _) = self.quarantine(now)?;
        Some(now.after(Millis::new(left.get().saturating_sub(1))))
    }
}
