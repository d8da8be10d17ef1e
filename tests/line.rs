//! The line before a lock against a model so naive that it is obviously right.
//!
//! The model is a list of waiters in the order in which they stand, searched from its head: no
//! slots, no indexes, written from the design. Random sequences of requests and passing time must
//! leave both with the same waiters in the same order, the same leases, and the same word to all
//! whose turn it is.

use lockmod::engine::{
    Acquired, CallId, Claim, Clocks, ConnectionId, Direct, Extended, Fence, Fencing, Instant, Left,
    Line, Lock, Millis, Mode, Promises, Queued, Refusal, Released, Stop, Ticket, Token, Turn,
    UnixTime, Waiter, WaiterLimit,
};
use proptest::prelude::*;

const TOKENS: usize = 6;
const TICKETS: usize = 6;
const CONNECTIONS: u64 = 3;
const GRACE: u64 = 10;
const TTL: u64 = 30;
/// More waiters than that find no room.
const ROOM: usize = 5;

/// More readers than there are.
const MANY: usize = 100;

/// A ticket: which, for how long it waits, on which connection.
type Queue = (usize, u64, u64);

/// By whom and how the lock is asked for.
type Asked = (usize, Mode);

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        asked: Asked,
        queue: Option<Queue>,
    },
    /// A ticket that it brings waits as it says. Without one, it may hand the lock over.
    Release {
        asked: Asked,
        queue: Option<Queue>,
        hands_over: bool,
    },
    /// A call waits for this long.
    Block {
        asked: Asked,
        wait: u64,
    },
    /// The repair of a lease that the node has forgotten, with this fence, or an extension.
    Extend {
        asked: Asked,
        repair: Option<u64>,
    },
    /// The client of the n-th waiter in line is gone, if it is a call.
    Hangup(usize),
    Disconnect(u64),
    /// The lock may have so many readers from now on.
    MaxReaders(usize),
    Time(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let queue = || (0..TICKETS, 0..60_u64, 0..CONNECTIONS);
    let asked = || (0..TOKENS, prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)]);
    prop_oneof![
        6 => (asked(), proptest::option::weighted(0.8, queue()))
            .prop_map(|(asked, queue)| Op::Acquire { asked, queue }),
        5 => (asked(), proptest::option::weighted(0.4, queue()), any::<bool>())
            .prop_map(|(asked, queue, hands_over)| Op::Release { asked, queue, hands_over }),
        2 => (asked(), 0..60_u64).prop_map(|(asked, wait)| Op::Block { asked, wait }),
        2 => (asked(), proptest::option::weighted(0.7, 1..9_u64))
            .prop_map(|(asked, repair)| Op::Extend { asked, repair }),
        1 => (0..ROOM).prop_map(Op::Hangup),
        1 => (0..CONNECTIONS).prop_map(Op::Disconnect),
        1 => prop_oneof![1..4_usize, Just(MANY)].prop_map(Op::MaxReaders),
        3 => (1..25_u64).prop_map(Op::Time),
    ]
}

fn token_bytes(token: usize) -> Vec<u8> {
    vec![b'a' + token as u8; 1 + token * 9]
}

/// Two tickets to each start.
fn ticket(index: usize) -> Ticket {
    Ticket::new(100 + index as u64 / 2, &[b'0' + index as u8 % 2]).unwrap()
}

fn channel(index: usize, token: usize) -> Vec<u8> {
    format!("wake:{index}:{token}").into_bytes()
}

// ---------------------------------------------------------------------------------- the model

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlainWaiter {
    /// A ticket's index; none for a call.
    ticket: Option<usize>,
    call: u64,
    token: usize,
    mode: Mode,
    since: u64,
    deadline: u64,
    connection: u64,
    channel: Vec<u8>,
    /// The last millisecond of its reservation, and whether it was told.
    reserved: Option<(u64, bool)>,
    /// When it asked last, if its last request would have taken the lock.
    asked: Option<u64>,
}

/// What is said to those whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Granted(u64),
    /// The token of this call had the lock already.
    Again(u64),
    Woken(usize, Vec<u8>),
    /// The lock was handed over to this ticket, which had asked with this number.
    HandedOver(usize, u64),
    Left(Option<usize>, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlainLease {
    token: usize,
    mode: Mode,
    fence: u64,
    /// The last millisecond.
    end: u64,
}

#[derive(Clone, Debug)]
struct Plain {
    now: u64,
    max_readers: usize,
    counter: u64,
    leases: Vec<PlainLease>,
    line: Vec<PlainWaiter>,
    calls: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Fence(u64),
    Null,
    Zero,
    One,
    Full,
    ReadersFull,
    Blocked,
    NoUpgrade,
}

/// Two exclude each other unless both read.
fn conflict(one: Mode, other: Mode) -> bool {
    (one, other) != (Mode::Shared, Mode::Shared)
}

impl Plain {
    fn new() -> Plain {
        let (leases, line) = (Vec::new(), Vec::new());
        Plain { now: 0, max_readers: MANY, counter: 0, leases, line, calls: 0 }
    }

    /// How many more readers there may be.
    fn places(&self) -> usize {
        let readers = self.leases.iter().filter(|lease| lease.mode == Mode::Shared).count();
        self.max_readers.saturating_sub(readers)
    }

    /// Whether all of them are taken, and this one would need one.
    fn is_full(&self, mode: Mode) -> bool {
        mode == Mode::Shared && !self.is_kept_out(mode) && self.places() == 0
    }

    /// Whether a request with this ticket passes nobody who waits for what it takes. A reader takes
    /// a place of those before it, if there are too few for all in line and for itself; but not
    /// where it has its turn.
    fn passes_nobody(&self, ticket: Option<usize>, mode: Mode) -> bool {
        let place = self.place(ticket);
        let has_turn = self.line.get(place).is_some_and(|waiter| {
            ticket.is_some() && waiter.ticket == ticket && waiter.reserved.is_some()
        });
        let readers = self.line.iter().filter(|waiter| waiter.mode == Mode::Shared).count();
        let has_place = place == 0 || has_turn || readers < self.places();
        self.is_in_turn(place, mode) && (mode == Mode::Exclusive || has_place)
    }

    fn lease_of(&self, token: usize) -> Option<PlainLease> {
        self.leases.iter().copied().find(|lease| lease.token == token)
    }

    fn is_kept_out(&self, mode: Mode) -> bool {
        self.leases.iter().any(|lease| conflict(lease.mode, mode))
    }

    /// Whether nobody stands in line before this place who waits for what it takes.
    fn is_in_turn(&self, place: usize, mode: Mode) -> bool {
        self.line[..place].iter().all(|waiter| !conflict(waiter.mode, mode))
    }

    /// Where a ticket stands, or would: after all older ones, and after all if there is none.
    fn place(&self, ticket: Option<usize>) -> usize {
        let known = |waiter: &PlainWaiter| ticket.is_some() && waiter.ticket == ticket;
        let younger = |waiter: &PlainWaiter| ticket.is_some() && waiter.ticket > ticket;
        let place = self.line.iter().position(known);
        place.or(self.line.iter().position(younger)).unwrap_or(self.line.len())
    }

    fn take(&mut self, is_gone: impl Fn(&PlainWaiter) -> bool, said: &mut Vec<Said>) {
        let (gone, stay) = self.line.drain(..).partition::<Vec<_>, _>(is_gone);
        self.line = stay;
        said.extend(gone.iter().map(|waiter| Said::Left(waiter.ticket, waiter.call)));
    }

    fn queue(&mut self, (token, mode): Asked, (ticket, wait, connection): Queue, asks: bool) {
        let place = self.place(Some(ticket));
        let mut waiter = PlainWaiter {
            ticket: Some(ticket),
            call: 0,
            token,
            mode,
            since: self.now,
            deadline: self.now + wait,
            connection,
            channel: channel(ticket, token),
            reserved: None,
            asked: asks.then_some(self.now),
        };
        match self.line.get_mut(place) {
            Some(known) if known.ticket == Some(ticket) => {
                waiter.since = known.since;
                // Who asks for something else now was promised something else.
                let reserved = known.reserved.filter(|_| known.mode == mode);
                waiter.reserved = reserved.map(|(until, _)| (until, false));
                *known = waiter;
            }
            _ => self.line.insert(place, waiter),
        }
    }

    fn has_room_for(&self, ticket: Option<usize>) -> bool {
        let is_known = |waiter: &PlainWaiter| ticket.is_some() && waiter.ticket == ticket;
        self.line.len() < ROOM || self.line.iter().any(is_known)
    }

    /// The reservations of those who are kept out from now on are over.
    fn taken(&mut self, mode: Mode) {
        for waiter in self.line.iter_mut().filter(|waiter| conflict(waiter.mode, mode)) {
            waiter.reserved = None;
        }
    }

    fn grant(&mut self, (token, mode): Asked) -> u64 {
        let fence = match mode {
            Mode::Exclusive => self.counter + 1,
            Mode::Shared => self.counter.max(1),
        };
        self.counter = fence;
        self.leases.push(PlainLease { token, mode, fence, end: self.now + TTL });
        fence
    }

    /// Extends the lease of a token that has one. Returns its fence.
    fn prolong(&mut self, token: usize) -> Option<u64> {
        let end = self.now + TTL;
        let lease = self.leases.iter_mut().find(|lease| lease.token == token)?;
        lease.end = end;
        Some(lease.fence)
    }

    fn extend(&mut self, (token, mode): Asked, repair: Option<u64>) -> Reply {
        match (self.prolong(token), repair) {
            (None, _) if self.is_kept_out(mode) => return Reply::Zero,
            (None, None) => return Reply::Null,
            // A fence that is new here is its own; otherwise it gets the next, as in any grant.
            (None, Some(fence)) if fence < self.counter => drop(self.grant((token, mode))),
            (None, Some(fence)) => {
                self.leases.push(PlainLease { token, mode, fence, end: self.now + TTL });
            }
            (Some(_), _) => {}
        }
        for lease in self.leases.iter_mut().filter(|lease| lease.token == token) {
            let is_reader = (lease.mode, mode) != (Mode::Exclusive, Mode::Exclusive);
            lease.mode = if is_reader { Mode::Shared } else { Mode::Exclusive };
            lease.fence = lease.fence.max(repair.unwrap_or(0));
            self.counter = self.counter.max(lease.fence);
        }
        Reply::One
    }

    fn acquire(&mut self, (token, mode): Asked, queue: Option<Queue>) -> (Reply, Vec<Said>) {
        let ticket = queue.map(|(ticket, ..)| ticket);
        let (before, is_new) = (self.line.clone(), self.lease_of(token).is_none());
        if mode == Mode::Shared && is_new {
            self.end_turns_without_a_place();
        }
        let fence = match self.lease_of(token) {
            Some(lease) if lease.mode == Mode::Shared && mode == Mode::Exclusive => {
                return (Reply::NoUpgrade, Vec::new());
            }
            Some(lease) => {
                self.prolong(token);
                lease.fence
            }
            None if queue.is_none() && self.is_full(mode) && self.passes_nobody(None, mode) => {
                self.line = before;
                return (Reply::ReadersFull, Vec::new());
            }
            None if self.is_kept_out(mode)
                || self.is_full(mode)
                || !self.passes_nobody(ticket, mode) =>
            {
                let Some(queue) = queue else { return (Reply::Null, Vec::new()) };
                if self.is_full(mode) {
                    // Others have come first: its turn is over.
                    let is_it = |waiter: &&mut PlainWaiter| waiter.ticket == ticket;
                    self.line.iter_mut().filter(is_it).for_each(|waiter| waiter.reserved = None);
                }
                if !self.has_room_for(ticket) {
                    self.line = before;
                    return (Reply::Full, Vec::new());
                }
                self.queue((token, mode), queue, true);
                return (Reply::Null, Vec::new());
            }
            None => self.grant((token, mode)),
        };
        self.take(|waiter| ticket.is_some() && waiter.ticket == ticket, &mut Vec::new());
        let mut said = Vec::new();
        self.take(|waiter| waiter.token == token, &mut said);
        self.taken(self.lease_of(token).map_or(mode, |lease| lease.mode));
        (Reply::Fence(fence), said)
    }

    fn release(&mut self, (token, mode): Asked, queue: Option<Queue>) -> (Reply, Vec<Said>) {
        let mut said = Vec::new();
        let reply = match self.lease_of(token) {
            None if self.leases.is_empty() => Reply::Null,
            None => Reply::Zero,
            Some(_) => {
                self.leases.retain(|lease| lease.token != token);
                Reply::One
            }
        };
        let ticket = queue.map(|(ticket, ..)| ticket);
        let has_room = self.has_room_for(ticket);
        let is_other = |waiter: &PlainWaiter| ticket.is_none() || waiter.ticket != ticket;
        self.take(|waiter| waiter.token == token && is_other(waiter), &mut said);
        if let Some(queue) = queue.filter(|_| has_room) {
            self.queue((token, mode), queue, false);
        }
        (reply, said)
    }

    fn block(&mut self, asked: Asked, wait: u64) -> (Reply, Vec<Said>) {
        let (reply, said) = self.acquire(asked, None);
        match reply {
            Reply::Null | Reply::ReadersFull if !self.has_room_for(None) => {
                (Reply::Full, Vec::new())
            }
            Reply::Null | Reply::ReadersFull => {
                self.calls += 1;
                let (token, mode) = asked;
                self.line.push(PlainWaiter {
                    ticket: None,
                    call: self.calls,
                    token,
                    mode,
                    since: self.now,
                    deadline: self.now + wait,
                    connection: 0,
                    channel: Vec::new(),
                    reserved: None,
                    asked: None,
                });
                (Reply::Blocked, Vec::new())
            }
            reply => (reply, said),
        }
    }

    /// Whom a holder's release hands the lock over to: the first in line, if it is a writer's
    /// ticket that has asked no more than half of its ttl ago.
    fn hand_over(&mut self) -> Option<Said> {
        let first = self.line.first().filter(|_| self.leases.is_empty())?.clone();
        let (ticket, at) = first.ticket.zip(first.asked)?;
        let has_its_token = |other: &PlainWaiter| other.token == first.token;
        let is_alone = !self.line[1..].iter().any(has_its_token);
        let is_recent = self.now <= at + TTL / 2 && at < first.deadline;
        if first.mode == Mode::Shared || !is_recent || !is_alone {
            return None;
        }
        self.line.remove(0);
        self.grant((first.token, first.mode));
        Some(Said::HandedOver(ticket, at + 1))
    }

    /// What happens by itself: who has left by the clock, and whose turn it is.
    fn settle(&mut self, hands_over: bool) -> Vec<Said> {
        let (now, mut said) = (self.now, Vec::new());
        self.leases.retain(|lease| now <= lease.end);
        let is_late = |until: u64| until < now;
        self.take(|waiter| waiter.reserved.is_some_and(|(until, _)| is_late(until)), &mut said);
        self.take(|waiter| is_late(waiter.deadline), &mut said);
        said.extend(hands_over.then(|| self.hand_over()).flatten());
        // All who stand with nobody in their way, one after the other.
        while let Some(place) = self.next_in_turn() {
            let waiter = self.line[place].clone();
            match waiter.ticket {
                None => {
                    self.line.remove(place);
                    said.push(match self.prolong(waiter.token) {
                        Some(_) => Said::Again(waiter.call),
                        None => {
                            self.grant((waiter.token, waiter.mode));
                            Said::Granted(waiter.call)
                        }
                    });
                    self.take(|other| other.token == waiter.token, &mut said);
                }
                Some(ticket) => {
                    self.taken(waiter.mode);
                    let until = waiter.reserved.map_or(now + GRACE, |(until, _)| until);
                    self.line[place].reserved = Some((until, true));
                    said.push(Said::Woken(ticket, waiter.channel));
                }
            }
        }
        if let (Some(first), Some(lease)) = (self.line.first(), self.leases.first())
            && conflict(first.mode, lease.mode)
        {
            self.taken(lease.mode);
        }
        said
    }

    /// Of more readers who have their turn than there are places, the last ones lose it.
    fn end_turns_without_a_place(&mut self) {
        let places = self.places();
        if places > 0 && !self.is_kept_out(Mode::Shared) {
            let has_turn = |waiter: &&mut PlainWaiter| {
                waiter.mode == Mode::Shared && waiter.reserved.is_some()
            };
            let turns = self.line.iter_mut().filter(has_turn);
            turns.skip(places).for_each(|waiter| waiter.reserved = None);
        }
    }

    /// The first in line whose turn it is, and who has not been told. As many readers have their
    /// turn as there are places, from the first on.
    fn next_in_turn(&mut self) -> Option<usize> {
        let places = self.places();
        if self.line.first().is_some_and(|first| first.mode == Mode::Shared) {
            self.end_turns_without_a_place();
        }
        (0..self.line.len()).find(|&place| {
            let waiter = &self.line[place];
            let is_told = waiter.reserved.is_some_and(|(_, is_told)| is_told);
            let has_place = waiter.mode == Mode::Exclusive || place < places;
            let is_in_turn = has_place && self.is_in_turn(place, waiter.mode);
            !is_told && !self.is_kept_out(waiter.mode) && is_in_turn
        })
    }
}

// ----------------------------------------------------------------------------------- the engine

struct Engine {
    now: Instant,
    node: Promises,
    lock: Lock,
    line: Line,
    /// Token and mode of each call.
    calls: Vec<Asked>,
}

impl Engine {
    fn new() -> Engine {
        let mut node = Promises::new(Fence::ZERO, None);
        node.set_max_readers(MANY);
        let (now, line) = (Instant::default(), Line::default());
        Engine { now, node, lock: Lock::default(), line, calls: Vec::new() }
    }

    fn queued<'a>(
        &self,
        channel: &'a [u8],
        mode: Mode,
        (index, wait, connection): Queue,
    ) -> Queued<'a> {
        Queued {
            ticket: ticket(index),
            channel,
            deadline: self.now.after(Millis::new(wait)),
            connection: ConnectionId(connection),
            mode,
            limit: WaiterLimit { waiters: self.line.len(), max: ROOM },
            direct: None,
        }
    }

    /// What an acquire asks for that brings a ticket.
    fn direct(&self) -> Direct<'static> {
        let number = Instant::default().until(self.now).get() + 1;
        Direct { ttl: Millis::new(TTL), label: b"", number }
    }

    fn acquire(&mut self, (token, mode): Asked, queue: Option<Queue>) -> (Reply, Vec<Said>) {
        let bytes = token_bytes(token);
        let claim = Claim { token: Token::new(&bytes, 64).unwrap(), ttl: Millis::new(TTL), mode };
        let channel = queue.map_or(Vec::new(), |(ticket, ..)| channel(ticket, token));
        let direct = Some(self.direct());
        let queued = queue.map(|queue| Queued { direct, ..self.queued(&channel, mode, queue) });
        let Engine { now, node, lock, line, .. } = self;
        let before = (lock.clone(), line.clone());
        let decided = node.acquire_in_line(lock, line, claim, b"", queued.as_ref(), *now);
        if let Err(refusal) = &decided {
            assert_eq!((&*lock, &*line), (&before.0, &before.1), "{refusal:?}");
        }
        let (reply, left) = match decided {
            Ok((Acquired::Granted { fence, .. } | Acquired::Again { fence, .. }, left)) => {
                (Reply::Fence(fence.get()), left)
            }
            Ok((Acquired::Held, left)) => (Reply::Null, left),
            Err(Stop::Refused(Refusal::QueueFull { waiters: ROOM, max: ROOM })) => {
                (Reply::Full, Vec::new())
            }
            Err(Stop::Refused(Refusal::NoUpgrade)) => (Reply::NoUpgrade, Vec::new()),
            Err(Stop::Refused(Refusal::ReadersFull { .. })) => (Reply::ReadersFull, Vec::new()),
            Err(stop) => panic!("{stop:?}"),
        };
        (reply, left.into_iter().map(said).collect())
    }

    fn release(&mut self, (token, mode): Asked, queue: Option<Queue>) -> (Reply, Vec<Said>) {
        let bytes = token_bytes(token);
        let channel = queue.map_or(Vec::new(), |(ticket, ..)| channel(ticket, token));
        let queued = queue.map(|queue| self.queued(&channel, mode, queue));
        let Engine { now, node, lock, line, .. } = self;
        let token = Token::new(&bytes, 64).unwrap();
        let (released, left) = node.release_in_line(lock, line, token, queued.as_ref(), *now);
        let reply = match released {
            Released::Released { .. } => Reply::One,
            Released::HeldByAnother => Reply::Zero,
            Released::NotHeld => Reply::Null,
        };
        (reply, left.into_iter().map(said).collect())
    }

    fn block(&mut self, asked: Asked, wait: u64) -> (Reply, Vec<Said>) {
        let (reply, left) = self.acquire(asked, None);
        if !matches!(reply, Reply::Null | Reply::ReadersFull) {
            return (reply, left);
        }
        if (WaiterLimit { waiters: self.line.len(), max: ROOM }).check().is_err() {
            return (Reply::Full, Vec::new());
        }
        self.calls.push(asked);
        let call = CallId(self.calls.len() as u64);
        let (token, mode) = asked;
        let bytes = token_bytes(token);
        let deadline = self.now.after(Millis::new(wait));
        let token = Token::new(&bytes, 64).unwrap();
        self.line.block(call, (token, mode), deadline, self.now);
        (Reply::Blocked, Vec::new())
    }

    fn extend(&mut self, (token, mode): Asked, repair: Option<u64>) -> Reply {
        let bytes = token_bytes(token);
        let claim = Claim { token: Token::new(&bytes, 64).unwrap(), ttl: Millis::new(TTL), mode };
        let repair = repair.and_then(Fence::new);
        let fencing = repair.map_or(Fencing::Keep, |fence| Fencing::Repair { fence, label: b"" });
        let clocks = Clocks { now: self.now, wall: UnixTime::default() };
        match self.node.extend(&mut self.lock, claim, fencing, clocks).expect("not refused") {
            Extended::Extended { .. } => Reply::One,
            Extended::HeldByAnother => Reply::Zero,
            Extended::NotHeld => Reply::Null,
        }
    }

    fn hand_over(&mut self) -> Option<Said> {
        let grantee =
            self.line.first_to_grant(self.now).filter(|_| !self.lock.is_held(self.now))?;
        let token = Token::new(&grantee.token, 64).unwrap();
        let claim = Claim { token, ttl: grantee.ttl, mode: Mode::Exclusive };
        let granted = self.node.acquire(&mut self.lock, claim, b"", self.now);
        assert!(matches!(granted, Ok(Acquired::Granted { .. })), "{granted:?}");
        assert_eq!(*grantee.channel, *channel(index(&grantee.ticket), grantee.token.len() / 9));
        self.line.leave(&Waiter::Ticket(grantee.ticket.clone()));
        Some(Said::HandedOver(index(&grantee.ticket), grantee.number))
    }

    fn settle(&mut self) -> Vec<Said> {
        self.settle_after(false)
    }

    fn settle_after(&mut self, hands_over: bool) -> Vec<Said> {
        let left = self.line.expire(self.now, usize::MAX);
        let mut all: Vec<Said> = left.into_iter().map(said).collect();
        all.extend(hands_over.then(|| self.hand_over()).flatten());
        loop {
            let first = self.line.first_mode();
            if self.lock.is_held(self.now)
                && first.is_none_or(|mode| mode.conflicts_with(self.lock.mode()))
            {
                self.line.taken(self.lock.mode());
                break;
            }
            let readers = match self.lock.mode() {
                Mode::Shared => self.lock.holders(self.now),
                Mode::Exclusive => 0,
            };
            let places = self.node.max_readers().saturating_sub(readers);
            if places == 0 && first == Some(Mode::Shared) {
                self.line.taken(Mode::Shared);
                break;
            }
            match self.line.serve(self.now, Millis::new(GRACE), places) {
                Turn::Nobody | Turn::Reserved => break,
                Turn::Grant(left) => {
                    let [Left::Call(CallId(call)), others @ ..] = &left[..] else {
                        panic!("a call comes first: {left:?}")
                    };
                    let call = *call;
                    let (token, mode) = self.calls[call as usize - 1];
                    let bytes = token_bytes(token);
                    let token = Token::new(&bytes, 64).unwrap();
                    let claim = Claim { token, ttl: Millis::new(TTL), mode };
                    all.push(match self.node.acquire(&mut self.lock, claim, b"", self.now) {
                        Ok(Acquired::Granted { .. }) => Said::Granted(call),
                        Ok(Acquired::Again { .. }) => Said::Again(call),
                        outcome => panic!("{outcome:?}"),
                    });
                    all.extend(others.iter().cloned().map(said));
                }
                Turn::Wake { ticket, channel } => {
                    all.push(Said::Woken(index(ticket), channel.to_vec()));
                }
            }
        }
        all
    }
}

fn index(wanted: &Ticket) -> usize {
    (0..TICKETS).find(|&index| ticket(index) == *wanted).unwrap()
}

fn said(left: Left) -> Said {
    match left {
        Left::Call(CallId(call)) => Said::Left(None, call),
        Left::Ticket(ticket, ..) => Said::Left(Some(index(&ticket)), 0),
    }
}

fn sorted(mut said: Vec<Said>) -> Vec<Said> {
    said.sort_by_key(|said| format!("{said:?}"));
    said
}

// ------------------------------------------------------------------------------------ the tests

fn compare(ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut plain, mut engine) = (Plain::new(), Engine::new());
    for op in ops {
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        let mut is_handed_over = false;
        match *op {
            Op::Acquire { asked, queue } => {
                let (reply, left) = engine.acquire(asked, queue);
                let (expected_reply, expected_left) = plain.acquire(asked, queue);
                prop_assert_eq!(reply, expected_reply, "{:?}", op);
                (expected, got) = (expected_left, left);
            }
            Op::Release { asked, queue, hands_over } => {
                let (reply, left) = engine.release(asked, queue);
                let (expected_reply, expected_left) = plain.release(asked, queue);
                is_handed_over = hands_over && queue.is_none() && reply == Reply::One;
                prop_assert_eq!(reply, expected_reply, "{:?}", op);
                (expected, got) = (expected_left, left);
            }
            Op::Block { asked, wait } => {
                let (reply, left) = engine.block(asked, wait);
                let (expected_reply, expected_left) = plain.block(asked, wait);
                prop_assert_eq!(reply, expected_reply, "{:?}", op);
                (expected, got) = (expected_left, left);
            }
            Op::Extend { asked, repair } => {
                prop_assert_eq!(
                    engine.extend(asked, repair),
                    plain.extend(asked, repair),
                    "{:?}",
                    op
                );
            }
            Op::Hangup(position) => {
                if let Some(call) = plain.line.get(position).map(|waiter| waiter.call)
                    && call > 0
                {
                    plain.take(|waiter| waiter.call == call, &mut expected);
                    got.extend(engine.line.leave(&Waiter::Call(CallId(call))).map(said));
                }
            }
            Op::Disconnect(connection) => {
                let is_theirs = |waiter: &PlainWaiter| {
                    waiter.ticket.is_some() && waiter.connection == connection
                };
                plain.take(is_theirs, &mut expected);
                // One at a time, as a node does it that has no time for all of them.
                while engine.line.has_connection(ConnectionId(connection)) {
                    let left = engine.line.leave_by_connection(ConnectionId(connection), 1);
                    prop_assert_eq!(left.len(), 1);
                    got.extend(left.into_iter().map(said));
                }
            }
            Op::MaxReaders(max) => {
                let is_lower = max < plain.max_readers;
                plain.max_readers = max;
                engine.node.set_max_readers(max);
                if is_lower {
                    // A node does not look at its lines for that.
                    continue;
                }
            }
            Op::Time(millis) => {
                let due = engine.line.due_at();
                plain.now += millis;
                plain.leases.retain(|lease| plain.now <= lease.end);
                engine.now = Instant::from_millis(plain.now);
                if due.is_none_or(|due| engine.now <= due) {
                    prop_assert_eq!(engine.line.expire(engine.now, 1), vec![], "nothing was due");
                }
            }
        }
        prop_assert_eq!(sorted(got), sorted(expected), "{:?}", op);
        let told = engine.settle_after(is_handed_over);
        prop_assert_eq!(sorted(told), sorted(plain.settle(is_handed_over)), "{:?}", op);

        // The same leases, the same line, the same reservations.
        let leases = engine.lock.written_leases().filter(|lease| engine.now <= lease.ends_at);
        let mut leases: Vec<_> = leases
            .map(|lease| {
                let end = lease.ends_at.as_millis();
                (lease.token.as_bytes().to_vec(), lease.mode, lease.fence.get(), end)
            })
            .collect();
        leases.sort();
        let mut expected: Vec<_> = (plain.leases.iter())
            .map(|lease| (token_bytes(lease.token), lease.mode, lease.fence, lease.end))
            .collect();
        expected.sort();
        prop_assert_eq!(leases, expected, "{:?}", op);
        let writers = plain.leases.iter().filter(|lease| lease.mode == Mode::Exclusive).count();
        prop_assert!(writers == 0 || plain.leases.len() == 1, "a writer is beside nobody");
        prop_assert_eq!(engine.line.len(), plain.line.len());
        let readers = plain.line.iter().filter(|waiter| waiter.mode == Mode::Shared).count();
        prop_assert_eq!(engine.line.readers(), readers);
        let first = plain.line.first().map(|first| match first.ticket {
            Some(index) => Waiter::Ticket(ticket(index)),
            None => Waiter::Call(CallId(first.call)),
        });
        prop_assert_eq!(engine.line.first(), first.as_ref());
        prop_assert_eq!(engine.line.first_mode(), plain.line.first().map(|first| first.mode));
        let since = plain.line.first().map(|first| Instant::from_millis(first.since));
        prop_assert_eq!(engine.line.first_since(), since);
        let reserved: Vec<_> =
            plain.line.iter().filter(|waiter| waiter.reserved.is_some()).collect();
        let mut tickets: Vec<_> = engine.line.reserved_for().map(index).collect();
        tickets.sort_unstable();
        let expected: Vec<_> = reserved.iter().filter_map(|waiter| waiter.ticket).collect();
        prop_assert_eq!(tickets, expected, "{:?}", op);
        prop_assert!(
            reserved.len() <= 1 || reserved.iter().all(|waiter| waiter.mode == Mode::Shared),
            "a writer has it alone"
        );
        if plain.leases.is_empty() {
            prop_assert_eq!(plain.line.is_empty(), reserved.is_empty(), "a free lock is reserved");
        }
    }
    // Whoever is left leaves in the order of the line, and leaves nothing behind.
    let order: Vec<Said> =
        plain.line.iter().map(|waiter| Said::Left(waiter.ticket, waiter.call)).collect();
    let left = std::iter::from_fn(|| engine.line.leave_first()).map(said);
    prop_assert_eq!(left.collect::<Vec<_>>(), order);
    prop_assert_eq!(engine.line, Line::default());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_line_is_as_a_naive_list_says(ops in proptest::collection::vec(op(), 1..80)) {
        compare(&ops)?;
    }
}

fn writer(token: usize) -> Asked {
    (token, Mode::Exclusive)
}

fn reader(token: usize) -> Asked {
    (token, Mode::Shared)
}

fn queue(index: usize) -> Option<Queue> {
    Some((index, 1_000, 1))
}

#[test]
fn an_older_ticket_takes_the_reservation_over_at_once() {
    let mut node = Engine::new();
    assert_eq!(node.acquire(writer(0), None).0, Reply::Fence(1));
    assert_eq!(node.acquire(writer(1), queue(4)).0, Reply::Null);
    assert_eq!(node.release(writer(0), None), (Reply::One, vec![]));
    assert_eq!(node.settle(), [Said::Woken(4, channel(4, 1))]);
    // By registering: it is told. By asking: it is granted.
    assert_eq!(node.release(writer(2), queue(2)).0, Reply::Null);
    assert_eq!(node.settle(), [Said::Woken(2, channel(2, 2))]);
    assert_eq!(node.acquire(writer(3), None).0, Reply::Null, "nobody barges in");
    assert_eq!(node.acquire(writer(1), queue(4)).0, Reply::Null);
    assert_eq!(node.acquire(writer(3), queue(0)).0, Reply::Fence(2));
}

#[test]
fn a_lock_is_handed_over_to_a_writer_that_has_asked_of_late() {
    let first = |asks: bool, mode, after| {
        let mut node = Engine::new();
        node.acquire(writer(0), None);
        if asks {
            node.acquire((1, mode), queue(1));
        } else {
            node.release((1, mode), queue(1));
        }
        node.now = node.now.after(Millis::new(after));
        node.release(writer(0), None);
        node.settle_after(true)
    };
    assert_eq!(first(true, Mode::Exclusive, TTL / 2), [Said::HandedOver(1, 1)]);
    let woken = [Said::Woken(1, channel(1, 1))];
    assert_eq!(first(true, Mode::Exclusive, TTL / 2 + 1), woken, "it asked too long ago");
    assert_eq!(first(true, Mode::Shared, 0), woken, "readers have their turn together");
    assert_eq!(first(false, Mode::Exclusive, 0), woken, "it has given back what it asked for");
    let second = |wait, blocks| {
        let mut node = Engine::new();
        node.acquire(writer(0), None);
        node.acquire(writer(1), Some((1, wait, 1)));
        if blocks {
            node.block(writer(1), 1_000);
        }
        node.release(writer(0), None);
        node.settle_after(true)
    };
    assert_eq!(second(1, false), [Said::HandedOver(1, 1)]);
    assert_eq!(second(0, false), woken, "it has gone with its answer");
    assert_eq!(second(1_000, true), woken, "a call waits with its token");
}

#[test]
fn a_reservation_that_is_not_used_goes_to_the_next_and_the_place_is_not_lost() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    node.acquire(writer(1), queue(1));
    node.acquire(writer(2), queue(2));
    node.release(writer(0), None);
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    node.now = node.now.after(Millis::new(GRACE));
    assert_eq!(node.settle(), [], "the last millisecond belongs to it");
    node.now = node.now.after(Millis::new(1));
    assert_eq!(node.settle(), [Said::Left(Some(1), 0), Said::Woken(2, channel(2, 2))]);
    node.release(writer(1), queue(1));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))], "in its old place");
}

#[test]
fn a_ticket_that_comes_back_to_its_reservation_is_told_again_but_not_for_longer() {
    let mut node = Engine::new();
    node.release(writer(1), queue(1));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    node.now = node.now.after(Millis::new(GRACE));
    node.release(writer(2), queue(1));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 2))], "where it listens now");
    node.now = node.now.after(Millis::new(1));
    assert_eq!(node.settle(), [Said::Left(Some(1), 0)]);
}

#[test]
fn an_abandoned_grant_goes_back_to_who_abandons_it_if_it_is_the_oldest() {
    let mut node = Engine::new();
    assert_eq!(node.acquire(writer(1), queue(1)).0, Reply::Fence(1));
    node.acquire(writer(2), queue(2));
    assert_eq!(node.release(writer(1), queue(1)), (Reply::One, vec![]));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    assert_eq!(node.acquire(writer(3), queue(1)).0, Reply::Fence(2));
}

#[test]
fn a_full_node_refuses_a_waiter_but_takes_a_lease_back() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    for index in 1..=ROOM {
        assert_eq!(node.acquire(writer(1), queue(index)).0, Reply::Null);
    }
    assert_eq!(node.acquire(writer(1), queue(0)).0, Reply::Full);
    assert_eq!(node.block(writer(1), 5).0, Reply::Full);
    assert_eq!(
        node.acquire(writer(1), queue(1)).0,
        Reply::Null,
        "who stands in line already may stay"
    );
    assert_eq!(node.release(writer(0), queue(0)).0, Reply::One);
    assert_eq!(node.line.first(), Some(&Waiter::Ticket(ticket(1))), "without a place in line");
}

/// Regression: after the limit was lowered, a request that was refused ended the turns of others.
#[test]
fn a_refused_request_ends_nobody_s_turn() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    for index in 0..ROOM {
        node.acquire(reader(1), queue(index));
    }
    node.release(writer(0), None);
    assert_eq!(node.settle().len(), ROOM, "all are woken");
    node.node.set_max_readers(2);
    assert_eq!(node.acquire(reader(2), queue(ROOM)).0, Reply::Full);
    assert_eq!(node.acquire(reader(1), queue(2)).0, Reply::Null, "it has no turn");
    assert_eq!(node.acquire(reader(1), queue(1)).0, Reply::Fence(1), "it has");
}

#[test]
fn calls_with_one_token_are_answered_by_one_grant() {
    // A client whose connection broke asks again over a new one, before the node has noticed.
    let mut node = Engine::new();
    assert_eq!(node.acquire(writer(0), None).0, Reply::Fence(1));
    assert_eq!(node.block(writer(1), 1_000).0, Reply::Blocked);
    assert_eq!(node.block(writer(2), 1_000).0, Reply::Blocked);
    assert_eq!(node.block(writer(1), 1_000).0, Reply::Blocked);
    node.release(writer(0), None);
    assert_eq!(node.settle(), [Said::Granted(1), Said::Left(None, 3)]);
    node.release(writer(1), None);
    assert_eq!(node.settle(), [Said::Granted(2)], "it did not wait behind its own lease");
    // Also where the token has got the lease another way.
    assert_eq!(node.block(writer(1), 1_000).0, Reply::Blocked);
    assert_eq!(node.release(writer(2), None).0, Reply::One);
    let bytes = token_bytes(1);
    let (token, mode) = (Token::new(&bytes, 64).unwrap(), Mode::Exclusive);
    let claim = Claim { token, ttl: Millis::new(TTL), mode };
    let repair = Fencing::Repair { fence: Fence::new(9).unwrap(), label: b"" };
    let clocks = Clocks { now: node.now, wall: UnixTime::default() };
    node.node.extend(&mut node.lock, claim, repair, clocks).unwrap();
    assert_eq!(node.acquire(writer(1), None), (Reply::Fence(9), vec![Said::Left(None, 4)]));
}

#[test]
fn a_stream_of_readers_never_passes_a_waiting_writer() {
    for waits_as_a_call in [false, true] {
        let mut node = Engine::new();
        assert_eq!(node.acquire(reader(0), None).0, Reply::Fence(1));
        assert_eq!(node.acquire(reader(1), None).0, Reply::Fence(1), "beside the first");
        let woken = if waits_as_a_call {
            assert_eq!(node.block(writer(2), 1_000).0, Reply::Blocked);
            Said::Granted(1)
        } else {
            assert_eq!(node.acquire(writer(2), queue(0)).0, Reply::Null);
            Said::Woken(0, channel(0, 2))
        };
        assert_eq!(node.settle(), []);
        // Newcomers wait, with or without a place in line, however often they come.
        for _ in 0..3 {
            assert_eq!(node.acquire(reader(3), None).0, Reply::Null);
            assert_eq!(node.acquire(reader(4), queue(1)).0, Reply::Null);
            assert_eq!(node.acquire(reader(5), queue(2)).0, Reply::Null);
            assert_eq!(node.settle(), []);
        }
        assert_eq!(node.acquire(reader(0), None).0, Reply::Fence(1), "who has it keeps it");
        assert_eq!(node.release(reader(0), None).0, Reply::One);
        assert_eq!(node.settle(), [], "one reads still");
        assert_eq!(node.release(reader(1), None).0, Reply::One);
        assert_eq!(node.settle(), [woken]);
        assert_eq!(node.acquire(reader(3), None).0, Reply::Null);
        assert_eq!(node.acquire(writer(2), queue(0)).0, Reply::Fence(2));
        assert_eq!(node.settle(), []);
        node.release(writer(2), None);
        // Those who stand together are served together.
        let both = [Said::Woken(1, channel(1, 4)), Said::Woken(2, channel(2, 5))];
        assert_eq!(node.settle(), both);
        assert_eq!(node.acquire(reader(5), queue(2)).0, Reply::Fence(2));
        assert_eq!(node.acquire(reader(4), queue(1)).0, Reply::Fence(2));
    }
}

#[test]
fn readers_are_served_up_to_the_first_writer() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    for (token, mode) in [reader(1), reader(2), writer(3), reader(4)] {
        assert_eq!(node.block((token, mode), 1_000).0, Reply::Blocked);
    }
    node.release(writer(0), None);
    assert_eq!(node.settle(), [Said::Granted(1), Said::Granted(2)]);
    node.release(reader(1), None);
    assert_eq!(node.settle(), []);
    node.release(reader(2), None);
    assert_eq!(node.settle(), [Said::Granted(3)]);
    // Who was behind a writer that gives up is beside the readers again.
    assert_eq!(node.release(writer(3), None).0, Reply::One);
    assert_eq!(node.settle(), [Said::Granted(4)]);
    assert_eq!(node.block(writer(5), 10).0, Reply::Blocked);
    assert_eq!(node.block(reader(1), 1_000).0, Reply::Blocked);
    assert_eq!(node.settle(), []);
    node.now = node.now.after(Millis::new(11));
    assert_eq!(node.settle(), [Said::Left(None, 5), Said::Granted(6)]);
}

#[test]
fn an_older_writer_takes_over_from_all_readers_and_an_older_reader_from_the_writer() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    for index in [2, 4] {
        node.acquire(reader(index), queue(index));
    }
    node.release(writer(0), None);
    assert_eq!(node.settle(), [2, 4].map(|index| Said::Woken(index, channel(index, index))));
    assert_eq!(node.release(writer(1), queue(1)).0, Reply::Null);
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    assert_eq!(node.line.reserved_for().map(index).collect::<Vec<_>>(), [1]);
    assert_eq!(node.acquire(reader(2), queue(2)).0, Reply::Null);
    assert_eq!(node.release(reader(3), queue(0)).0, Reply::Null);
    assert_eq!(node.settle(), [Said::Woken(0, channel(0, 3))], "and nobody behind the writer");
    assert_eq!(node.acquire(writer(1), queue(1)).0, Reply::Null);
    assert_eq!(node.acquire(reader(3), queue(0)).0, Reply::Fence(1));
}

#[test]
fn a_reader_whose_reservation_lapses_holds_up_nobody() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    node.acquire(reader(1), queue(1));
    node.acquire(reader(2), queue(2));
    node.acquire(writer(3), queue(3));
    node.release(writer(0), None);
    node.settle();
    assert_eq!(node.acquire(reader(2), queue(2)).0, Reply::Fence(1));
    assert_eq!(node.settle(), []);
    node.now = node.now.after(Millis::new(GRACE + 1));
    assert_eq!(node.settle(), [Said::Left(Some(1), 0)]);
    node.release(reader(2), None);
    assert_eq!(node.settle(), [Said::Woken(3, channel(3, 3))]);
}

/// It left the line with its reservation as a reader, before its turn as a writer came.
#[test]
fn a_ticket_that_asks_in_another_way_has_no_reservation_for_it() {
    let mut node = Engine::new();
    node.acquire(writer(0), None);
    node.acquire(reader(1), queue(1));
    node.acquire(reader(2), queue(2));
    node.release(writer(0), None);
    assert_eq!(node.settle().len(), 2);
    assert_eq!(node.release(writer(2), queue(2)).0, Reply::Null);
    assert_eq!(node.settle(), []);
    node.now = node.now.after(Millis::new(GRACE + 1));
    assert_eq!(node.settle(), [Said::Left(Some(1), 0), Said::Woken(2, channel(2, 2))]);
}
