//! Serving waiters: what a request does to the line of its lock, whose turn it is, and when to look
//! again.
//!
//! The caller looks at a line ([`Node::serve_next`]) after each request that changed it or its
//! lock, and when [`Node::next_batch`] returns it: a lease, a wait or a reservation has ended, or
//! the lock disappeared without a request.
//!
//! A look leads to two kinds of actions. [`Node::serve_next`] returns those that come before its
//! next step: the caller carries one out, and calls it again. The rest are [`Effect`]s, which the
//! caller takes ([`Node::take_effect`]) after each call of these functions.

use super::lines::{BATCH, Call, Granted, LockName};
use super::{
    Acquired, Availability, CallId, Claim, ConnectionId, Grantee, Left, Line, Lock, Node, Queued,
    Released, Stop, Turn, Waiter,
};
use crate::engine::{Fence, Instant, Millis, Mode, Refusal, TOKEN_MAX, Ticket, Token};

/// How soon to look again while writes are paused, and nothing may be granted. A pause is short,
/// and only a look tells that it is over.
const PAUSE: Millis = Millis::new(10);
/// How soon to look again while the server refuses writes or the node has no authority, and nothing
/// may be granted. That may last long, and each look at a line costs as much as a command.
const REFUSAL: Millis = Millis::new(100);

/// What the caller must do, besides answering the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer a blocked call.
    Part(CallId, Parting),
    /// Call [`Node::rang`] at this instant; it replaces the one set before.
    SetAlarm(Instant),
    /// Call [`Node::next_batch`] soon: in this turn of the event loop or the next, after all
    /// commands of the turn. What is published then must not reach a client before the append-only
    /// file has been written.
    Ring,
}

/// The answer to a blocked call whose wait ended without a grant of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parting {
    /// Its token has the lock, by another request, until then.
    Fence(Fence, Instant),
    /// The wait is over.
    TooLate,
    /// The node has become a replica; the client may ask its master.
    Demoted,
    /// The lock has moved to another node of the cluster.
    Moved,
    /// The access rules of its user have changed, and no longer allow it.
    Denied,
    /// The request is refused.
    Refused(Refusal),
}

/// Whether the server would accept a client's write to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Yes.
    Open,
    /// Writes are paused for a moment.
    Paused,
    /// The server would refuse it.
    Refuses,
    /// The key belongs to another node of the cluster.
    Elsewhere,
}

/// A look at a line that is under way: what is known about its lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// The state of the lock, if that is known.
    pub availability: Option<Availability>,
    /// Whether a write would be accepted, if that is known.
    pub gate: Option<Gate>,
    /// Whether a holder hands the lock over: the first in line may be granted it even if it is a
    /// ticket.
    hands_over: bool,
    /// Whether it answers an [`Effect::Ring`].
    is_of_ring: bool,
    steps: usize,
}

impl Look {
    /// A look after a request, which may have shown the state of the lock.
    pub fn after(availability: Option<Availability>) -> Look {
        Look { availability, ..Look::default() }
    }

    /// A look that answers an [`Effect::Ring`].
    pub(super) fn of_ring(hands_over: bool) -> Look {
        Look { hands_over, is_of_ring: true, ..Look::default() }
    }

    /// The same after a release; `hands_over`: a holder hands the lock over with it.
    #[must_use]
    pub fn handing_over(self, hands_over: bool) -> Look {
        Look { hands_over, ..self }
    }
}

/// What a look at a line needs before it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Turning {
    /// Nothing: the look is over.
    Over,
    /// The state of the lock.
    Availability,
    /// Whether the server would accept a write to the lock's key.
    Gate,
    /// Nothing: some waiters have left, and the look goes on with the next.
    On,
    /// Publish this ticket on this channel.
    Wake(Ticket, Box<[u8]>),
    /// Call [`Node::grant_calls`] with the lock, then [`Node::granted_calls`].
    GrantCalls(NextCalls),
    /// Call [`Node::grant_to`] with the lock, publish the grant, and call [`Node::granted_to`].
    GrantTo(Grantee),
}

/// Whether a node may grant a lock to the first in its line.
enum Prospect {
    /// Yes.
    Now,
    /// Not up to this instant.
    Later(Instant),
    /// Its waiters can only leave.
    Never(Parting),
    /// More must be known.
    Unknown(Turning),
}

/// Calls with the same token, whose turn it is: one grant gives them the lock, which is free, or
/// held by readers beside whom they may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextCalls {
    calls: Vec<Call>,
}

impl NextCalls {
    /// The calls that one grant answers.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The longest ttl of the calls: no retry makes the lease shorter.
    pub fn ttl(&self) -> Millis {
        self.calls.iter().map(|call| call.ttl).max().unwrap_or_default()
    }
}

impl Node {
    /// The next effect, if there is one.
    #[inline]
    pub fn take_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    // ------------------------------------------------------------------------------- requests

    /// As [`Node::acquire`], for a lock that has waiters, or a request that brings a ticket: see
    /// [`Promises::acquire_in_line`](super::Promises::acquire_in_line).
    ///
    /// # Errors
    /// As [`Promises::acquire_in_line`](super::Promises::acquire_in_line).
    pub fn acquire_in_line(
        &mut self,
        place: (u32, &[u8]),
        lock: &mut Lock,
        (claim, label): (Claim<'_>, &[u8]),
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> Result<Acquired, Stop> {
        let before = lock.unnoted();
        let Node { promises, lines, .. } = self;
        let decide =
            |line: &mut Line| promises.acquire_in_line(lock, line, claim, label, queued, now);
        let (outcome, left) = lines.with_ticket(place, queued, now, decide).0?;
        self.tally.acquired(outcome, claim.mode, (before, lock));
        self.told_again(claim.token, outcome);
        if let Acquired::Granted { fence, ends_at, .. } | Acquired::Again { fence, ends_at, .. } =
            outcome
        {
            let mut calls = self.lines.part(place, left);
            self.refuse_upgrades(&mut calls, lock.mode());
            let answered = |call: Call| {
                // A call that asked for longer would rely on the lease after its end.
                let is_covered = now.after(call.ttl) <= ends_at;
                let parting =
                    if is_covered { Parting::Fence(fence, ends_at) } else { Parting::TooLate };
                Effect::Part(call.id, parting)
            };
            self.effects.extend(calls.into_iter().map(answered));
        }
        Ok(outcome)
    }

    /// As [`Node::release`], for a lock that has waiters, or a request that brings a ticket. Also
    /// returns whether that ticket is in line.
    pub fn release_in_line(
        &mut self,
        place: (u32, &[u8]),
        lock: &mut Lock,
        token: Token<'_>,
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> (Released, bool) {
        let before = (lock.until(), lock.unnoted());
        let Node { promises, lines, .. } = self;
        let ((outcome, left), is_there) = lines.with_ticket(place, queued, now, |line| {
            promises.release_in_line(lock, line, token, queued, now)
        });
        self.tally.released(outcome, before, lock);
        self.part(place, left, &Parting::TooLate);
        (outcome, is_there)
    }

    /// Puts a call in line until it is granted the lock, or `wait` is over.
    pub fn block(
        &mut self,
        (database, name): (u32, &[u8]),
        id: CallId,
        (claim, label, user): (Claim<'_>, &[u8], Box<[u8]>),
        wait: Millis,
        now: Instant,
    ) {
        let call = Call {
            id,
            name: (database, name.into()),
            token: claim.token.as_bytes().into(),
            ttl: claim.ttl,
            mode: claim.mode,
            label: label.into(),
            user,
            since: now,
        };
        self.lines.calls.insert(id, call);
        let deadline = now.after(wait);
        self.lines.with_line(database, name, |line| {
            line.block(id, (claim.token, claim.mode), deadline, now);
        });
    }

    // ----------------------------------------------------------------------- looking at a line

    /// Continues a look at a line: serves the next waiter. If a ticket is first and may have the
    /// lock, it is granted the lock where a holder hands that over; otherwise the lock is reserved
    /// for it, for the time `reserve`.
    pub fn serve_next(
        &mut self,
        place: (u32, &[u8]),
        look: &mut Look,
        now: Instant,
        reserve: Millis,
    ) -> Turning {
        look.steps += 1;
        if look.steps > 3 * BATCH {
            // Some waiters have been dismissed. The rest can wait for the next look.
            self.line_changed(place);
            return self.over();
        }
        if !self.part_in_time(place, now) {
            return self.over();
        }
        match self.prospect(place, look, now) {
            Prospect::Unknown(question) => question,
            Prospect::Never(parting) => self.dismiss_first(place, &parting),
            Prospect::Later(until) => {
                let held_as = look.availability.and_then(Availability::held_as);
                self.wait_until(place, until, held_as);
                self.over()
            }
            Prospect::Now => self.serve_first(place, look, now, reserve),
        }
    }

    /// Whether the node may grant the lock to the first in line, as far as the look knows.
    fn prospect(&self, place: (u32, &[u8]), look: &Look, now: Instant) -> Prospect {
        if self.is_replica {
            // Its master decides.
            return Prospect::Never(Parting::Demoted);
        }
        let Some(availability) = look.availability else {
            return Prospect::Unknown(Turning::Availability);
        };
        match availability {
            Availability::WrongType => {
                return Prospect::Never(Parting::Refused(Refusal::WrongType));
            }
            Availability::Held(until) => return Prospect::Later(until),
            Availability::Shared { until, room, next } => {
                let first = self.line(place).and_then(Line::first_mode);
                if first.is_some_and(|mode| mode.conflicts_with(Mode::Shared)) {
                    return Prospect::Later(until);
                }
                if room == 0 {
                    return Prospect::Later(next);
                }
            }
            Availability::Free => {}
        }
        if let Some(until) = self.promises.grants_nothing_until(now) {
            return Prospect::Later(until);
        }
        match look.gate {
            None => Prospect::Unknown(Turning::Gate),
            Some(Gate::Open) if self.promises.check_authority(now).is_ok() => Prospect::Now,
            Some(Gate::Paused) => Prospect::Later(now.after(PAUSE)),
            Some(Gate::Open | Gate::Refuses) => Prospect::Later(now.after(REFUSAL)),
            Some(Gate::Elsewhere) => Prospect::Never(Parting::Moved),
        }
    }

    /// Notes that the first in line cannot have the lock up to this instant. If the lock is held,
    /// the reservations of waiters that are kept out end.
    fn wait_until(
        &mut self,
        (database, name): (u32, &[u8]),
        until: Instant,
        held_as: Option<Mode>,
    ) {
        self.lines.set_lock_until(database, name, Some(until));
        self.lines.with_line(database, name, |line| {
            if let Some(mode) = held_as {
                line.taken(mode);
            }
        });
    }

    /// Serves the first in line, which may have the lock, and readers that have their turn with it.
    fn serve_first(
        &mut self,
        place: (u32, &[u8]),
        look: &mut Look,
        now: Instant,
        reserve: Millis,
    ) -> Turning {
        let (database, name) = place;
        self.lines.set_lock_until(database, name, None);
        if std::mem::take(&mut look.hands_over)
            && let Some(grantee) = self.line(place).and_then(|line| line.first_to_grant(now))
        {
            if self.is_always_durable && !look.is_of_ring {
                self.lines.hand_over_later(place);
                self.line_changed(place);
                return self.over();
            }
            return Turning::GrantTo(grantee);
        }
        let room = match look.availability {
            Some(Availability::Shared { room, .. }) => room,
            Some(_) | None => self.promises.max_readers(),
        };
        let serve = |line: &mut Line| match line.serve(now, reserve, room) {
            Turn::Nobody | Turn::Reserved => Err(Turning::Over),
            Turn::Grant(left) => Ok(left),
            Turn::Wake { ticket, channel } => Err(Turning::Wake(ticket.clone(), channel.into())),
        };
        match self.lines.with_line(database, name, serve) {
            Ok(left) => {
                *look = Look { steps: look.steps, ..Look::default() };
                let mut calls = self.lines.part(place, left);
                let mode = calls.first().map(|call| call.mode).unwrap_or_default();
                self.refuse_upgrades(&mut calls, mode);
                Turning::GrantCalls(NextCalls { calls })
            }
            Err(Turning::Over) => self.over(),
            Err(turning) => turning,
        }
    }

    /// Grants the lock to calls with one token. The lease gets the label of the first. Also returns
    /// the state of the lock afterwards.
    ///
    /// # Errors
    /// As [`Node::acquire`]; and if the ttl is above `max_ttl`, which may have been lowered in the
    /// meantime: it bounds quarantines, so no grant may exceed it.
    pub fn grant_calls(
        &mut self,
        lock: &mut Lock,
        next: &NextCalls,
        max_ttl: Millis,
        now: Instant,
    ) -> Result<(Acquired, Availability), Stop> {
        let Some(call) = next.calls.first() else {
            return Ok((Acquired::Held, self.availability(lock, now)));
        };
        let asked = (next.ttl(), call.mode);
        self.grant_waiter(lock, (&call.token, &call.label), asked, max_ttl, now)
    }

    /// Removes calls that may no longer have the lock from the next ones, and answers them.
    pub fn deny(&mut self, next: &mut NextCalls, mut may: impl FnMut(&Call) -> bool) {
        let effects = &mut self.effects;
        next.calls.retain(|call| {
            let stays = may(call);
            if !stays {
                effects.push_back(Effect::Part(call.id, Parting::Denied));
            }
            stays
        });
    }

    /// Notes the outcome of a hand-over. Returns the state of the lock, if that is known, and the
    /// grant, if there was one. The caller answers the calls with the grant, and then reports that
    /// at least one answer was delivered ([`Node::heard`]) or none ([`Node::take_back`]). With any
    /// other outcome the calls are answered here.
    pub fn granted_calls(
        &mut self,
        next: &NextCalls,
        outcome: &Result<(Acquired, Availability), Refusal>,
        now: Instant,
    ) -> (Option<Availability>, Option<Granted>) {
        let (parting, availability) = match outcome {
            Ok((Acquired::Granted { fence, .. }, availability)) => {
                let granted = next.calls.first().map(|call| {
                    self.lines.waits.record(call.since.until(now));
                    Granted { token: call.token.clone(), fence: *fence, name: call.name.clone() }
                });
                self.unheard.extend(granted.clone());
                return (Some(*availability), granted);
            }
            // Another request got this lease, and its sender relies on it: it is not withdrawn.
            Ok((Acquired::Again { fence, ends_at, .. }, availability)) => {
                (Parting::Fence(*fence, *ends_at), Some(*availability))
            }
            Ok((Acquired::Held, _)) => (Parting::TooLate, None),
            Err(refusal) => {
                self.tally.refused(refusal);
                (Parting::Refused(refusal.clone()), None)
            }
        };
        for call in &next.calls {
            self.effects.push_back(Effect::Part(call.id, parting.clone()));
        }
        (availability, None)
    }

    /// Notes that a call has received the grant.
    pub fn heard(&mut self, granted: &Granted) {
        self.unheard.remove(granted);
    }

    /// Withdraws a grant that none of its calls could receive, unless another request with its
    /// token was since answered with the lease: the client that sent it may rely on the lease.
    pub fn take_back(&mut self, lock: &mut Lock, granted: &Granted, now: Instant) -> Released {
        let is_unheard = self.unheard.remove(granted);
        let is_it = |token| lock.lease_of(token).is_some_and(|lease| lease.fence == granted.fence);
        match Token::new(&granted.token, TOKEN_MAX) {
            Ok(token) if is_unheard && is_it(token) => self.release(lock, token, now),
            Ok(_) | Err(_) => Released::NotHeld,
        }
    }

    /// As [`Node::told`], if the outcome is that the token holds the lock already.
    #[inline]
    pub(super) fn told_again(&mut self, token: Token<'_>, outcome: Acquired) {
        if let (Acquired::Again { fence, .. }, false) = (outcome, self.unheard.is_empty()) {
            self.keep_unheard(token, fence);
        }
    }

    /// Notes that the answer to a request showed that its token has the lease of `lock`.
    #[inline]
    pub(super) fn told(&mut self, token: Token<'_>, lock: &Lock) {
        if !self.unheard.is_empty() {
            let fence = lock.lease_of(token).map_or(Fence::ZERO, |lease| lease.fence);
            self.keep_unheard(token, fence);
        }
    }

    /// Keeps the lease, even if the call that waited for it cannot receive it. If two locks have
    /// the same token and fence, both leases stay: a superfluous one ends with its ttl.
    #[cold]
    fn keep_unheard(&mut self, token: Token<'_>, fence: Fence) {
        let token = token.as_bytes();
        self.unheard.retain(|granted| granted.fence != fence || *granted.token != *token);
    }

    /// Removes waiters whose deadline has passed. Returns whether a waiter may be served now.
    fn part_in_time(&mut self, place: (u32, &[u8]), now: Instant) -> bool {
        let (database, name) = place;
        let Some(line) = self.lines.line(database, name) else { return false };
        if line.due_at().is_none_or(|due| now <= due) {
            return true;
        }
        let left = self.lines.with_line(database, name, |line| line.expire(now, BATCH));
        self.tally.counts.held += self.part(place, left, &Parting::TooLate) as u64;
        // If more deadlines have passed, the line is still due, and a later batch has it again.
        let line = self.lines.line(database, name);
        line.is_some_and(|line| line.due_at().is_none_or(|due| now <= due))
    }

    /// Removes the first waiter of a line whose lock this node cannot grant. A ticket is woken: its
    /// client asks again, and learns where to wait.
    fn dismiss_first(&mut self, place: (u32, &[u8]), parting: &Parting) -> Turning {
        let left = self.lines.with_line(place.0, place.1, Line::leave_first);
        let turning = match &left {
            Some(Left::Ticket(ticket, _, channel)) => {
                Turning::Wake(ticket.clone(), channel.clone())
            }
            Some(Left::Call(_)) | None => Turning::On,
        };
        self.part(place, left.into_iter().collect(), parting);
        turning
    }

    fn over(&mut self) -> Turning {
        if let Some(at) = self.lines.next_alarm() {
            self.effects.push_back(Effect::SetAlarm(at));
        }
        Turning::Over
    }

    // ------------------------------------------------------------------- events without a request

    /// Notes that a lock or its line has changed: it is looked at soon.
    pub fn line_changed(&mut self, (database, name): (u32, &[u8])) {
        if self.lines.note_change(database, name) {
            self.ring();
        }
    }

    /// Notes that all lines must be looked at: any number of locks are gone or have moved, or a
    /// quarantine is over.
    pub fn all_lines_changed(&mut self) {
        self.lines.all_changed();
        self.ring();
    }

    /// Notes that a connection is closed: its tickets will leave.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        if self.lines.any() {
            self.lines.disconnect(connection);
            self.ring();
        }
    }

    /// Notes that the client of a blocked call has given up: the call leaves the line. If it is no
    /// longer there, it has already been answered.
    pub fn hung_up(&mut self, id: CallId) {
        let Some(Call { name: (database, name), .. }) = self.lines.calls.remove(&id) else {
            return;
        };
        self.lines.with_line(database, &name, |line| line.leave(&Waiter::Call(id)));
        self.effects.push_back(Effect::Part(id, Parting::TooLate));
        self.line_changed((database, &name));
    }

    /// Notes that the alarm has gone off: see [`Effect::SetAlarm`].
    pub fn rang(&mut self) {
        self.lines.rang();
        self.ring();
    }

    fn ring(&mut self) {
        if self.lines.any() && !std::mem::replace(&mut self.is_ringing, true) {
            self.effects.push_back(Effect::Ring);
        }
    }

    /// Notes that the caller answers an [`Effect::Ring`].
    pub fn answer_ring(&mut self) {
        self.is_ringing = false;
    }

    /// Notes that the time of this turn is up, and some lines may still need a look.
    pub fn put_off(&mut self) {
        self.ring();
    }

    /// Some lines to look at; `None` if none are left.
    pub fn next_batch(&mut self, now: Instant) -> Option<Vec<LockName>> {
        let batch = self.lines.next_batch(now);
        if batch.is_none() {
            let _ = self.over();
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::node::Direct;
    use crate::engine::{Clocks, Fencing, UnixTime, WaiterLimit};

    const NOW: Instant = Instant::from_millis(1_000);
    const PLACE: (u32, &[u8]) = (0, b"lock");

    fn claim() -> Claim<'static> {
        Claim {
            token: Token::new(b"waits", 64).unwrap(),
            ttl: Millis::new(500),
            mode: Mode::Exclusive,
        }
    }

    /// A node that has granted the lock to a call that is not known to have received the grant.
    fn granted_to_a_call() -> (Node, Lock, Granted) {
        let (mut node, mut lock) = (Node::new(), Lock::default());
        node.block(PLACE, CallId(1), (claim(), b"", Box::default()), Millis::new(900), NOW);
        let mut look = Look {
            availability: Some(Availability::Free),
            gate: Some(Gate::Open),
            ..Look::default()
        };
        let turning = node.serve_next(PLACE, &mut look, NOW, Millis::new(10));
        let Turning::GrantCalls(next) = turning else { panic!("{turning:?}") };
        let outcome = node.grant_calls(&mut lock, &next, Millis::new(500), NOW);
        let outcome = outcome.map_err(|stop| panic!("{stop:?}"));
        let (_, granted) = node.granted_calls(&next, &outcome, NOW);
        (node, lock, granted.expect("a grant"))
    }

    fn queued(wait: Millis, direct: Option<Direct<'static>>) -> Queued<'static> {
        Queued {
            ticket: Ticket::parse(b"1-a").unwrap(),
            channel: b"c",
            deadline: NOW.after(wait),
            connection: ConnectionId(1),
            mode: Mode::Exclusive,
            limit: WaiterLimit { waiters: 0, max: 9 },
            direct,
        }
    }

    /// What a node does when a ticket is first in line, and the lock was released.
    fn turn_of_a_ticket(node: &mut Node, mut look: Look) -> Turning {
        let direct = Some(Direct { ttl: Millis::new(500), label: b"me", number: 3 });
        let queued = queued(Millis::new(900), direct);
        let holder = Claim { token: Token::new(b"holds", 64).unwrap(), ..claim() };
        let mut lock = Lock::default();
        node.acquire(&mut lock, holder, b"", NOW).unwrap();
        let asked = (claim(), &b"me"[..]);
        let outcome = node.acquire_in_line(PLACE, &mut lock, asked, Some(&queued), NOW);
        assert_eq!(outcome.unwrap(), Acquired::Held);
        look.availability = Some(Availability::Free);
        node.serve_next(PLACE, &mut look, NOW, Millis::new(10))
    }

    fn after_a_hand_over(gate: Gate) -> Look {
        Look { gate: Some(gate), ..Look::default() }.handing_over(true)
    }

    #[test]
    fn a_ticket_is_granted_the_lock_that_is_handed_over_and_leaves_the_line() {
        let (mut node, mut lock) = (Node::new(), Lock::default());
        let turning = turn_of_a_ticket(&mut node, after_a_hand_over(Gate::Open));
        let Turning::GrantTo(grantee) = turning else { panic!("{turning:?}") };
        assert_eq!((&*grantee.label, grantee.number), (&b"me"[..], 3));
        let low = node.grant_to(&mut lock, &grantee, Millis::new(499), NOW);
        assert!(
            matches!(low, Err(Stop::Refused(Refusal::BadTtl { .. }))),
            "the limit was lowered since"
        );
        assert!(!lock.is_held(NOW));
        let granted = node.grant_to(&mut lock, &grantee, Millis::new(500), NOW);
        let (Acquired::Granted { fence, .. }, Availability::Held(_)) = granted.unwrap() else {
            panic!("it is free")
        };
        assert_eq!(lock.lease_of(claim().token).map(|lease| lease.fence), Some(fence));
        node.granted_to(PLACE, &grantee, true, NOW);
        assert!(node.line(PLACE).is_none_or(Line::is_empty));
        assert_eq!(node.lines.waits.count(), 1);
    }

    #[test]
    fn nothing_is_granted_to_a_ticket_where_nobody_hands_over_or_writes_are_paused() {
        let mut node = Node::new();
        let look = Look { gate: Some(Gate::Open), ..Look::default() };
        let turning = turn_of_a_ticket(&mut node, look);
        assert!(matches!(turning, Turning::Wake(..)), "reserved: {turning:?}");
        for gate in [Gate::Paused, Gate::Refuses] {
            let turning = turn_of_a_ticket(&mut Node::new(), after_a_hand_over(gate));
            assert_eq!(turning, Turning::Over, "later, by a reservation");
        }
    }

    /// A call waits with the token of a ticket that asks for a shorter lease.
    #[test]
    fn a_call_is_answered_by_anothers_grant_only_if_that_lasts_as_long_as_it_asked() {
        let ends_at = NOW.after(Millis::new(500));
        for (ttl, parting) in
            [(500, Parting::Fence(Fence::new(2).unwrap(), ends_at)), (499, Parting::TooLate)]
        {
            let (mut node, mut lock) = (Node::new(), Lock::default());
            let holder = Claim { token: Token::new(b"holds", 64).unwrap(), ..claim() };
            node.acquire(&mut lock, holder, b"", NOW).unwrap();
            let asked = (Claim { ttl: Millis::new(ttl), ..claim() }, &b""[..]);
            let queued = queued(Millis::new(900), None);
            let outcome = node.acquire_in_line(PLACE, &mut lock, asked, Some(&queued), NOW);
            assert_eq!(outcome, Ok(Acquired::Held));
            node.block(PLACE, CallId(1), (claim(), b"", Box::default()), Millis::new(900), NOW);
            node.release(&mut lock, holder.token, NOW);
            let outcome = node.acquire_in_line(PLACE, &mut lock, asked, Some(&queued), NOW);
            assert!(matches!(outcome, Ok(Acquired::Granted { .. })), "{outcome:?}");
            assert_eq!(node.take_effect(), Some(Effect::Part(CallId(1), parting)));
        }
    }

    #[test]
    fn a_grant_of_which_nobody_was_told_is_taken_back_once() {
        let (mut node, mut lock, granted) = granted_to_a_call();
        let taken = node.take_back(&mut lock, &granted, NOW);
        assert!(matches!(taken, Released::Released { .. }) && !lock.is_held(NOW), "{taken:?}");
        assert_eq!(node.take_back(&mut lock, &granted, NOW), Released::NotHeld);
        assert!(node.unheard.is_empty());
    }

    /// A retry of the call over another connection was answered with the lease, which was then
    /// withdrawn because the first connection was gone.
    #[test]
    fn a_lease_that_its_token_was_told_of_is_not_taken_back() {
        type Tell = fn(&mut Node, &mut Lock);
        const CLOCKS: Clocks = Clocks { now: NOW, wall: UnixTime::from_millis(1 << 40) };
        let tellings: [Tell; 5] = [
            |node, lock| drop(node.acquire(lock, claim(), b"", NOW)),
            |node, lock| drop(node.acquire_in_line(PLACE, lock, (claim(), b""), None, NOW)),
            |node, lock| drop(node.extend(lock, claim(), Fencing::Keep, CLOCKS)),
            |node, lock| drop(node.raise(lock, claim().token, lock.counter(), CLOCKS)),
            |node, lock| {
                let fence = Fence::new(9).unwrap();
                drop(node.raise(lock, claim().token, fence, CLOCKS));
            },
        ];
        for (number, tell) in tellings.iter().enumerate() {
            let (mut node, mut lock, granted) = granted_to_a_call();
            tell(&mut node, &mut lock);
            assert_eq!(node.take_back(&mut lock, &granted, NOW), Released::NotHeld, "{number}");
            assert!(lock.is_held(NOW) && node.unheard.is_empty(), "{number}");
        }
    }

    /// A call waits behind a writer, and a repair gives its token a lease. When its turn came, that
    /// was taken for a grant, which was withdrawn if the client of the call was gone.
    #[test]
    fn a_call_whose_token_has_the_lock_at_its_turn_is_no_grant() {
        const CLOCKS: Clocks = Clocks { now: NOW, wall: UnixTime::from_millis(1 << 40) };
        let (mut node, mut lock, wait) = (Node::new(), Lock::default(), Millis::new(900));
        node.let_in_readers(9);
        let reader = Claim { mode: Mode::Shared, ..claim() };
        let holder = Claim { token: Token::new(b"holds", 64).unwrap(), ..reader };
        node.acquire(&mut lock, holder, b"", NOW).unwrap();
        let writer = Claim { token: Token::new(b"writes", 64).unwrap(), ..claim() };
        for (id, claim) in [(1, writer), (2, reader)] {
            node.block(PLACE, CallId(id), (claim, b"", Box::default()), wait, NOW);
        }
        let fencing = Fencing::Repair { fence: lock.counter(), label: b"" };
        let short = Claim { ttl: Millis::new(5), ..reader };
        assert!(node.extend(&mut lock, short, fencing, CLOCKS).unwrap().is_done());
        node.hung_up(CallId(1));
        let availability = Some(node.availability(&lock, NOW));
        let mut look = Look { availability, gate: Some(Gate::Open), ..Look::default() };
        let turning = node.serve_next(PLACE, &mut look, NOW, Millis::new(10));
        let Turning::GrantCalls(next) = turning else { panic!("{turning:?}") };
        let outcome = node.grant_calls(&mut lock, &next, Millis::new(500), NOW);
        let outcome = outcome.map_err(|stop| panic!("{stop:?}"));
        assert!(matches!(outcome, Ok((Acquired::Again { later: true, .. }, _))), "{outcome:?}");
        let (availability, granted) = node.granted_calls(&next, &outcome, NOW);
        assert_eq!((availability, granted), (Some(node.availability(&lock, NOW)), None));
        let effects: Vec<_> = std::iter::from_fn(|| node.take_effect()).collect();
        let parting = Parting::Fence(lock.counter(), lock.until());
        assert!(effects.contains(&Effect::Part(CallId(2), parting)));
        assert!(node.unheard.is_empty() && node.lines.waits.count() == 0);
    }

    /// All waiters used to be dismissed in the turn of the event loop in which the node became a
    /// replica: with 200 000 tickets the server stood still for seconds. Tickets were not told.
    #[test]
    fn who_waits_at_a_node_that_becomes_a_replica_is_sent_away_a_part_at_a_time() {
        for lines in [1, 1_000] {
            let mut node = Node::new();
            for number in 0..5_000_u64 {
                let name = (number % lines).to_be_bytes();
                let (id, label) = (CallId(number), (claim(), &b""[..], Box::default()));
                node.block((0, &name), id, label, Millis::new(900), NOW);
                let ticket = Ticket::new(number + 1, b"a").unwrap();
                let limit = WaiterLimit { waiters: 0, max: 10_000 };
                let queued = Queued { ticket, limit, ..queued(Millis::new(900), None) };
                let (token, mut lock) = (number.to_be_bytes(), Lock::default());
                let token = Token::new(&token, 64).unwrap();
                node.release_in_line((0, &name), &mut lock, token, Some(&queued), NOW);
            }
            let _ = node.demoted();
            let (mut left, mut told) = (node.waiters(), 0);
            assert_eq!(left, 10_000, "they leave a part at a time");
            while let Some(names) = node.next_batch(NOW) {
                for (database, name) in names {
                    let mut look = Look::default();
                    loop {
                        match node.serve_next((database, &name), &mut look, NOW, Millis::ZERO) {
                            Turning::On => {}
                            Turning::Wake(_, channel) => told += usize::from(*channel == *b"c"),
                            turning => break assert_eq!(turning, Turning::Over),
                        }
                    }
                    let before = std::mem::replace(&mut left, node.waiters());
                    assert!(before - left <= 3 * BATCH, "{lines}: {} in one go", before - left);
                }
            }
            while let Some(effect) = node.take_effect() {
                told += usize::from(matches!(effect, Effect::Part(_, Parting::Demoted)));
            }
            assert_eq!((left, told), (0, 10_000), "{lines}");
        }
    }

    #[test]
    fn what_another_token_is_told_keeps_no_grant() {
        let (mut node, mut lock, granted) = granted_to_a_call();
        let other = Claim { token: Token::new(b"other", 64).unwrap(), ..claim() };
        let mut second = Lock::default();
        for _ in 0..2 {
            let _ = node.acquire(&mut second, other, b"", NOW);
            assert_eq!(node.acquire(&mut lock, other, b"", NOW), Ok(Acquired::Held));
        }
        let taken = node.take_back(&mut lock, &granted, NOW);
        assert!(matches!(taken, Released::Released { .. }), "{taken:?}");
        let (mut node, _, granted) = granted_to_a_call();
        node.heard(&granted);
        assert!(node.unheard.is_empty(), "a grant that was heard is not kept");
    }
}
