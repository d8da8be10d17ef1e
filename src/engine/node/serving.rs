//! Serving those who wait: what a request does to the line before its lock, whose turn it is, and
//! when to look again.
//!
//! A line is looked at ([`Node::settle`]) after each request that changed it or its lock, and else
//! when the node is called ([`Node::next_batch`]): something is due (a lease, a wait or a
//! reservation has ended), or the lock went by another way than a request.
//!
//! What is to be done for it goes out in two ways. Where the answer matters for what comes next,
//! [`Node::settle`] asks for it; the rest are [`Effect`]s, which wait to be taken
//! ([`Node::take_effect`]) after each call of these functions.

use super::lines::{BATCH, Call, Granted, LockName};
use super::{
    Acquired, CallId, Claim, ConnectionId, Left, Line, Lock, Node, Queued, Released, Room, Stop,
    Turn, Waiter,
};
use crate::engine::{Fence, Histogram, Instant, Millis, Refusal, TOKEN_MAX, Ticket, Token};

/// While writes are paused nothing may be granted: when to look again. A pause is short, and known
/// to be over only by looking.
const PAUSE: Millis = Millis::new(10);
/// While the server refuses writes nothing may be granted: when to look again. That may last, and
/// each look at each line costs as much as a command.
const REFUSAL: Millis = Millis::new(100);

/// What is to be done, beside the answer to the request that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A blocked call is over, and told so.
    Part(CallId, Parting),
    /// [`Node::rang`] is to be called at this instant, in place of any that was named before.
    SetAlarm(Instant),
    /// [`Node::next_batch`] is to be asked soon: in this turn of the event loop or the next.
    Ring,
}

/// What a blocked call is told that is not granted the lock by its own wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parting {
    /// Another request with the same token was granted the lock.
    Fence(Fence),
    /// The wait is over.
    TooLate,
    /// The node has become a replica; its master may be asked.
    Demoted,
    /// The lock has moved to another node of the cluster.
    Moved,
    /// The access rules of its user have changed, and do not allow it.
    Denied,
    /// It is refused.
    Refused(Refusal),
}

/// How a lock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A lease stands, until and including this instant.
    Held(Instant),
    /// Nobody holds it, or there is none.
    Free,
    /// The key holds something else.
    WrongType,
}

impl Standing {
    /// How a lock stands at `now`.
    pub fn of(lock: &Lock, now: Instant) -> Standing {
        if lock.is_held(now) { Standing::Held(lock.until()) } else { Standing::Free }
    }
}

impl Acquired {
    /// How the lock stands after it, if that is known.
    pub fn standing(self) -> Option<Standing> {
        match self {
            Acquired::Granted { ends_at, .. } | Acquired::Again { ends_at, .. } => {
                Some(Standing::Held(ends_at))
            }
            Acquired::Held => None,
        }
    }
}

impl Released {
    /// How the lock stands after it, if that is known.
    pub fn standing(self) -> Option<Standing> {
        match self {
            Released::Released { .. } | Released::NotHeld => Some(Standing::Free),
            Released::HeldByAnother => None,
        }
    }
}

/// Whether the server would take a write of a key from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It would.
    Open,
    /// Writes are paused for a moment.
    Paused,
    /// It would refuse it.
    Refuses,
    /// The key is another node's of the cluster.
    Elsewhere,
}

/// A look at a line, while it lasts: what is known of its lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// How the lock stands, if that is known.
    pub standing: Option<Standing>,
    /// Whether a write would be taken, if that was asked.
    pub gate: Option<Gate>,
    steps: usize,
}

impl Look {
    /// The first look after a request that tells how the lock stands, if it does.
    pub fn after(standing: Option<Standing>) -> Look {
        Look { standing, gate: None, steps: 0 }
    }
}

/// What a look at a line asks for before it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Turning {
    /// Nothing: the look is over.
    Over,
    /// How the lock stands.
    Standing,
    /// Whether the server would take a write of the lock's key.
    Gate,
    /// Nothing: some have left, and who comes next is to be seen.
    On,
    /// To publish this ticket on this channel; then the look is over.
    Wake(Ticket, Box<[u8]>),
    /// To let [`Node::hand_over`] have the lock.
    HandOver(HandOver),
}

/// A lock that is free is granted to the first in line: calls that all brought the same token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    calls: Vec<Call>,
}

impl HandOver {
    /// The calls that one grant answers.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// As if each had asked for itself: no retry makes the lease shorter.
    pub fn ttl(&self) -> Millis {
        self.calls.iter().map(|call| call.ttl).max().unwrap_or_default()
    }
}

impl Node {
    // --------------------------------------------------------------------------- what is asked

    /// Whether anybody waits at this node.
    #[inline]
    pub fn has_lines(&self) -> bool {
        self.lines.any()
    }

    /// How many wait at this node, where `max` may.
    pub fn room(&self, max: usize) -> Room {
        Room { waiters: self.lines.count(), max }
    }

    /// The line before a lock, if anybody waits.
    pub fn line(&self, (database, name): (u32, &[u8])) -> Option<&Line> {
        self.lines.line(database, name)
    }

    /// The longest that the first of any line has waited.
    pub fn longest_wait(&self, now: Instant) -> Millis {
        self.lines.oldest().map_or(Millis::ZERO, |since| since.until(now))
    }

    /// For how long those stood in line who were granted the lock.
    pub fn waits(&self) -> &Histogram {
        &self.lines.waits
    }

    /// What is to be done next, of all that is.
    #[inline]
    pub fn take_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    // ----------------------------------------------------------------------- what requests do

    /// As [`Node::acquire`], where somebody waits, or wants to: see
    /// [`Promises::acquire_in_line`](super::Promises::acquire_in_line).
    ///
    /// # Errors
    /// As that.
    pub fn acquire_in_line(
        &mut self,
        place: (u32, &[u8]),
        lock: &mut Lock,
        (claim, label): (Claim<'_>, &[u8]),
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> Result<Acquired, Stop> {
        let Node { promises, lines, .. } = self;
        let decide =
            |line: &mut Line| promises.acquire_in_line(lock, line, claim, label, queued, now);
        let (outcome, left) = lines.with_ticket(place, queued, now, decide).0?;
        self.tally.acquired(outcome);
        self.told_again(claim.token, outcome);
        if let Acquired::Granted { fence, .. } | Acquired::Again { fence, .. } = outcome {
            self.part(place, left, &Parting::Fence(fence));
        }
        Ok(outcome)
    }

    /// As [`Node::release`], where somebody waits, or wants to; answers also whether the ticket
    /// that it brings stands in line.
    pub fn release_in_line(
        &mut self,
        place: (u32, &[u8]),
        lock: &mut Lock,
        token: Token<'_>,
        queued: Option<&Queued<'_>>,
        now: Instant,
    ) -> (Released, bool) {
        let until = lock.until();
        let Node { promises, lines, .. } = self;
        let ((outcome, left), is_there) = lines.with_ticket(place, queued, now, |line| {
            promises.release_in_line(lock, line, token, queued, now)
        });
        self.tally.released(outcome, until);
        self.part(place, left, &Parting::TooLate);
        (outcome, is_there)
    }

    /// Lets a call wait for a lock until it is granted it, or `wait` is over.
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
            label: label.into(),
            user,
            since: now,
        };
        self.lines.calls.insert(id, call);
        let deadline = now.after(wait);
        self.lines.with_line(database, name, |line| line.block(id, claim.token, deadline, now));
    }

    // ----------------------------------------------------------------------- looking at a line

    /// Goes on with a look at a line: serves whose turn it is.
    ///
    /// A free lock is reserved for `reserve` where a ticket is first.
    pub fn settle(
        &mut self,
        place: (u32, &[u8]),
        look: &mut Look,
        now: Instant,
        reserve: Millis,
    ) -> Turning {
        look.steps += 1;
        if look.steps > 3 * BATCH {
            // Some have been sent away. The rest has time.
            self.line_changed(place);
            return self.over();
        }
        if !self.part_in_time(place, now) {
            return self.over();
        }
        if self.is_replica {
            // Its master decides.
            return self.dismiss(place, look, &Parting::Demoted);
        }
        let Some(standing) = look.standing else { return Turning::Standing };
        let quarantine = self.promises.grants_nothing_until(now);
        let (is_free, until) = match (standing, look.gate) {
            (Standing::WrongType, _) => {
                return self.dismiss(place, look, &Parting::Refused(Refusal::WrongType));
            }
            (Standing::Held(until), _) => (false, Some(until)),
            (Standing::Free, _) if quarantine.is_some() => (false, quarantine),
            (Standing::Free, None) => return Turning::Gate,
            (Standing::Free, Some(Gate::Open)) => (true, None),
            (Standing::Free, Some(Gate::Paused)) => (false, Some(now.after(PAUSE))),
            (Standing::Free, Some(Gate::Refuses)) => (false, Some(now.after(REFUSAL))),
            (Standing::Free, Some(Gate::Elsewhere)) => {
                return self.dismiss(place, look, &Parting::Moved);
            }
        };
        *look = Look { steps: look.steps, ..Look::default() };
        let (database, name) = place;
        self.lines.set_lock_until(database, name, until);
        let turn = self.lines.with_line(database, name, |line| {
            if !is_free {
                if let Standing::Held(_) = standing {
                    line.taken();
                }
                return Err(None);
            }
            match line.serve(now, reserve) {
                Turn::Nobody | Turn::Reserved => Err(None),
                Turn::Grant(left) => Ok(left),
                Turn::Wake { ticket, channel } => Err(Some((ticket.clone(), channel.into()))),
            }
        });
        match turn {
            Ok(left) => Turning::HandOver(HandOver { calls: self.lines.part(place, left) }),
            Err(None) => self.over(),
            Err(Some((ticket, channel))) => {
                let _ = self.over();
                Turning::Wake(ticket, channel)
            }
        }
    }

    /// Grants the free lock to calls with one token, the first of whom gives the lease its label.
    ///
    /// # Errors
    /// As [`Node::acquire`]; and where the ttl is above `max_ttl`, which may have been lowered in
    /// the meantime: what bounds a quarantine binds every grant.
    pub fn hand_over(
        &mut self,
        lock: &mut Lock,
        hand_over: &HandOver,
        max_ttl: Millis,
        now: Instant,
    ) -> Result<Acquired, Stop> {
        let (token, label) = match hand_over.calls.first() {
            Some(call) => (Token::new(&call.token, TOKEN_MAX)?, &call.label[..]),
            None => return Ok(Acquired::Held),
        };
        let ttl = hand_over.ttl();
        if ttl > max_ttl {
            let given = ttl.get().to_string().into_bytes();
            return Err(Refusal::BadTtl { given, max: max_ttl }.into());
        }
        self.acquire(lock, Claim { token, ttl }, label, now)
    }

    /// Takes those out of a hand-over who may not have the lock any more, and tells them.
    pub fn deny(&mut self, hand_over: &mut HandOver, mut may: impl FnMut(&Call) -> bool) {
        let effects = &mut self.effects;
        hand_over.calls.retain(|call| {
            let stays = may(call);
            if !stays {
                effects.push_back(Effect::Part(call.id, Parting::Denied));
            }
            stays
        });
    }

    /// Notes what became of a hand-over: how the lock stands, if that is known, and the grant that
    /// its calls are to be told of by whoever carries it out, and says then whether one of them
    /// was ([`Node::heard`]) or none ([`Node::take_back`]). Of anything else they are told here.
    pub fn handed_over(
        &mut self,
        hand_over: &HandOver,
        outcome: &Result<Acquired, Refusal>,
        now: Instant,
    ) -> (Option<Standing>, Option<Granted>) {
        let parting = match outcome {
            Ok(
                Acquired::Granted { fence, ends_at, .. } | Acquired::Again { fence, ends_at, .. },
            ) => {
                let granted = hand_over.calls.first().map(|call| {
                    self.lines.waits.record(call.since.until(now));
                    Granted { token: call.token.clone(), fence: *fence, name: call.name.clone() }
                });
                self.unheard.extend(granted.clone());
                return (Some(Standing::Held(*ends_at)), granted);
            }
            Ok(Acquired::Held) => Parting::TooLate,
            Err(refusal) => {
                self.tally.refused(refusal);
                Parting::Refused(refusal.clone())
            }
        };
        for call in &hand_over.calls {
            self.effects.push_back(Effect::Part(call.id, parting.clone()));
        }
        (None, None)
    }

    /// One of its calls was told of a grant.
    pub fn heard(&mut self, granted: &Granted) {
        self.unheard.remove(granted);
    }

    /// Takes back a grant of which none of its calls could be told: unless another request with its
    /// token was told of the lease since. Whoever sent that one may rely on it.
    pub fn take_back(&mut self, lock: &mut Lock, granted: &Granted, now: Instant) -> Released {
        let is_unheard = self.unheard.remove(granted);
        let is_it = lock.written_lease().is_some_and(|lease| lease.fence == granted.fence);
        match Token::new(&granted.token, TOKEN_MAX) {
            Ok(token) if is_unheard && is_it => self.release(lock, token, now),
            Ok(_) | Err(_) => Released::NotHeld,
        }
    }

    /// As [`Node::told`], for a token that has asked for its lock again.
    #[inline]
    pub(super) fn told_again(&mut self, token: Token<'_>, outcome: Acquired) {
        if let Acquired::Again { fence, .. } = outcome {
            self.told(token, fence);
        }
    }

    /// A request was told that its token has a lease with this fence.
    #[inline]
    pub(super) fn told(&mut self, token: Token<'_>, fence: Fence) {
        if !self.unheard.is_empty() {
            self.keep_unheard(token, fence);
        }
    }

    /// The lease stands, whether the call that waited for it is told or not. With the same token
    /// and fence at two locks, both do: a lease too many ends by itself.
    #[cold]
    fn keep_unheard(&mut self, token: Token<'_>, fence: Fence) {
        let token = token.as_bytes();
        self.unheard.retain(|granted| granted.fence != fence || *granted.token != *token);
    }

    /// Removes waiters whose deadline has passed; answers whether somebody is left who may be
    /// served.
    fn part_in_time(&mut self, place: (u32, &[u8]), now: Instant) -> bool {
        let (database, name) = place;
        let Some(line) = self.lines.line(database, name) else { return false };
        if line.due_at().is_none_or(|due| now <= due) {
            return true;
        }
        let left = self.lines.with_line(database, name, |line| line.expire(now, BATCH));
        self.tally.counts.held += self.part(place, left, &Parting::TooLate) as u64;
        // Where more are due than that, the index of what is due still says so.
        let line = self.lines.line(database, name);
        line.is_some_and(|line| line.due_at().is_none_or(|due| now <= due))
    }

    /// Takes those who stand first out of a line that nobody can be granted the lock of here. Each
    /// of them counts as a step: any number may stand there.
    fn dismiss(&mut self, place: (u32, &[u8]), look: &mut Look, parting: &Parting) -> Turning {
        *look = Look { steps: look.steps + BATCH, ..Look::default() };
        let left = self.lines.with_line(place.0, place.1, |line| line.leave_first(BATCH));
        self.part(place, left, parting);
        Turning::On
    }

    /// Tells the calls among those who have left a line; answers how many they are.
    fn part(&mut self, place: (u32, &[u8]), left: Vec<Left>, parting: &Parting) -> usize {
        if left.is_empty() {
            return 0;
        }
        let calls = self.lines.part(place, left);
        for call in &calls {
            self.effects.push_back(Effect::Part(call.id, parting.clone()));
        }
        calls.len()
    }

    fn over(&mut self) -> Turning {
        if let Some(at) = self.lines.next_alarm() {
            self.effects.push_back(Effect::SetAlarm(at));
        }
        Turning::Over
    }

    // --------------------------------------------------------------------- what happens by itself

    /// A lock or its line has changed, which is looked at soon.
    pub fn line_changed(&mut self, (database, name): (u32, &[u8])) {
        if self.lines.note_change(database, name) {
            self.ring();
        }
    }

    /// All lines are to be looked at: any number of locks are gone, or have changed places, or a
    /// quarantine is over.
    pub fn all_lines_changed(&mut self) {
        self.lines.all_changed();
        self.ring();
    }

    /// A connection is closed: its tickets will leave.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        if self.lines.any() {
            self.lines.disconnect(connection);
            self.ring();
        }
    }

    /// A blocked call is given up by its client: it leaves the line. If it is not there any more it
    /// has been told something else.
    pub fn hung_up(&mut self, id: CallId) {
        let Some(Call { name: (database, name), .. }) = self.lines.calls.remove(&id) else {
            return;
        };
        self.lines.with_line(database, &name, |line| line.leave(&Waiter::Call(id)));
        self.effects.push_back(Effect::Part(id, Parting::TooLate));
        self.line_changed((database, &name));
    }

    /// The alarm has gone off.
    pub fn rang(&mut self) {
        self.lines.rang();
        self.ring();
    }

    fn ring(&mut self) {
        if self.lines.any() && !std::mem::replace(&mut self.is_ringing, true) {
            self.effects.push_back(Effect::Ring);
        }
    }

    /// The node was called: see [`Effect::Ring`].
    pub fn answer_ring(&mut self) {
        self.is_ringing = false;
    }

    /// The time of this turn is up, and lines may be left to look at.
    pub fn put_off(&mut self) {
        self.ring();
    }

    /// Some lines that are to be looked at; `None` if none is left.
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
    use crate::engine::{Clocks, Fencing, UnixTime};

    const NOW: Instant = Instant::from_millis(1_000);
    const PLACE: (u32, &[u8]) = (0, b"lock");

    fn claim() -> Claim<'static> {
        Claim { token: Token::new(b"waits", 64).unwrap(), ttl: Millis::new(500) }
    }

    /// A node that has granted the lock to a call, of which it is not known whether it was told.
    fn handed_over() -> (Node, Lock, Granted) {
        let (mut node, mut lock) = (Node::new(), Lock::default());
        node.block(PLACE, CallId(1), (claim(), b"", Box::default()), Millis::new(900), NOW);
        let mut look =
            Look { standing: Some(Standing::Free), gate: Some(Gate::Open), ..Look::default() };
        let turning = node.settle(PLACE, &mut look, NOW, Millis::new(10));
        let Turning::HandOver(hand_over) = turning else { panic!("{turning:?}") };
        let outcome = node.hand_over(&mut lock, &hand_over, Millis::new(500), NOW);
        let outcome = outcome.map_err(|stop| panic!("{stop:?}"));
        let (_, granted) = node.handed_over(&hand_over, &outcome, NOW);
        (node, lock, granted.expect("a grant"))
    }

    #[test]
    fn a_grant_of_which_nobody_was_told_is_taken_back_once() {
        let (mut node, mut lock, granted) = handed_over();
        let taken = node.take_back(&mut lock, &granted, NOW);
        assert!(matches!(taken, Released::Released { .. }) && !lock.is_held(NOW), "{taken:?}");
        assert_eq!(node.take_back(&mut lock, &granted, NOW), Released::NotHeld);
        assert!(node.unheard.is_empty());
    }

    /// A retry of the call over another connection was answered by the lease, which was taken back
    /// when the first connection turned out to be gone.
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
            let (mut node, mut lock, granted) = handed_over();
            tell(&mut node, &mut lock);
            assert_eq!(node.take_back(&mut lock, &granted, NOW), Released::NotHeld, "{number}");
            assert!(lock.is_held(NOW) && node.unheard.is_empty(), "{number}");
        }
    }

    /// All who waited were sent away in the turn of the event loop in which the node became a
    /// replica: with 200 000 tickets the server stood still for seconds.
    #[test]
    fn who_waits_at_a_node_that_becomes_a_replica_is_sent_away_a_part_at_a_time() {
        for lines in [1, 1_000] {
            let mut node = Node::new();
            for number in 0..10_000_u64 {
                let name = (number % lines).to_be_bytes();
                let (id, label) = (CallId(number), (claim(), &b""[..], Box::default()));
                node.block((0, &name), id, label, Millis::new(900), NOW);
            }
            let _ = node.demoted();
            let (mut left, mut told) = (node.room(0).waiters, 0);
            assert_eq!(left, 10_000, "that takes its time");
            while let Some(names) = node.next_batch(NOW) {
                for (database, name) in names {
                    let mut look = Look::default();
                    while node.settle((database, &name), &mut look, NOW, Millis::ZERO)
                        == Turning::On
                    {}
                    let before = std::mem::replace(&mut left, node.room(0).waiters);
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
        let (mut node, mut lock, granted) = handed_over();
        let other = Claim { token: Token::new(b"other", 64).unwrap(), ttl: Millis::new(500) };
        let mut second = Lock::default();
        for _ in 0..2 {
            let _ = node.acquire(&mut second, other, b"", NOW);
            assert_eq!(node.acquire(&mut lock, other, b"", NOW), Ok(Acquired::Held));
        }
        let taken = node.take_back(&mut lock, &granted, NOW);
        assert!(matches!(taken, Released::Released { .. }), "{taken:?}");
        let (mut node, _, granted) = handed_over();
        node.heard(&granted);
        assert!(node.unheard.is_empty(), "nothing is kept of what was heard");
    }
}
