//! The line before a lock against a model so naive that it is obviously right.
//!
//! The model is a list of waiters in the order in which they stand, searched from its head: no
//! slots, no indexes, written from the design. Random sequences of requests and passing time must
//! leave both with the same waiters in the same order, the same lease, and the same word to
//! whoever's turn it is.

use lockmod::engine::{
    Acquired, CallId, Claim, Clocks, ConnectionId, Fence, Fencing, Instant, Left, Line, Lock,
    Millis, Promises, Queued, Refusal, Released, Room, Stop, Ticket, Token, Turn, UnixTime, Waiter,
};
use proptest::prelude::*;

const TOKENS: usize = 6;
const TICKETS: usize = 6;
const CONNECTIONS: u64 = 3;
const GRACE: u64 = 10;
const TTL: u64 = 30;
/// More waiters than that find no room.
const ROOM: usize = 5;

#[derive(Clone, Debug)]
enum Op {
    /// With a ticket: which, for how long it waits, on which connection.
    Acquire {
        token: usize,
        queue: Option<(usize, u64, u64)>,
    },
    Release {
        token: usize,
        queue: Option<(usize, u64, u64)>,
    },
    /// A call waits for this long.
    Block {
        token: usize,
        wait: u64,
    },
    /// The client of the n-th waiter in line is gone, if it is a call.
    Hangup(usize),
    Disconnect(u64),
    Time(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let queue = || (0..TICKETS, 0..60_u64, 0..CONNECTIONS);
    prop_oneof![
        4 => (0..TOKENS, proptest::option::weighted(0.8, queue()))
            .prop_map(|(token, queue)| Op::Acquire { token, queue }),
        4 => (0..TOKENS, proptest::option::weighted(0.4, queue()))
            .prop_map(|(token, queue)| Op::Release { token, queue }),
        2 => (0..TOKENS, 0..60_u64).prop_map(|(token, wait)| Op::Block { token, wait }),
        1 => (0..ROOM).prop_map(Op::Hangup),
        1 => (0..CONNECTIONS).prop_map(Op::Disconnect),
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
    since: u64,
    deadline: u64,
    connection: u64,
    channel: Vec<u8>,
}

/// What is said to whoever's turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Granted(u64),
    Woken(usize, Vec<u8>),
    Left(Option<usize>, u64),
}

#[derive(Clone, Debug, Default)]
struct Plain {
    now: u64,
    fence: u64,
    /// Token and last millisecond.
    lease: Option<(usize, u64)>,
    line: Vec<PlainWaiter>,
    /// Ticket, last millisecond, whether it was told.
    reserved: Option<(usize, u64, bool)>,
    calls: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Fence(u64),
    Null,
    Zero,
    One,
    Full,
    Blocked,
}

impl Plain {
    fn holder(&self) -> Option<usize> {
        self.lease.filter(|&(_, end)| self.now <= end).map(|(token, _)| token)
    }

    fn take(&mut self, is_gone: impl Fn(&PlainWaiter) -> bool, said: &mut Vec<Said>) {
        let (gone, stay) = self.line.drain(..).partition::<Vec<_>, _>(is_gone);
        self.line = stay;
        for waiter in gone {
            if self.reserved.is_some_and(|(ticket, ..)| Some(ticket) == waiter.ticket) {
                self.reserved = None;
            }
            said.push(Said::Left(waiter.ticket, waiter.call));
        }
    }

    fn queue(&mut self, token: usize, (ticket, wait, connection): (usize, u64, u64)) {
        let mut waiter = PlainWaiter {
            ticket: Some(ticket),
            call: 0,
            token,
            since: self.now,
            deadline: self.now + wait,
            connection,
            channel: channel(ticket, token),
        };
        if let Some(known) = self.line.iter_mut().find(|known| known.ticket == Some(ticket)) {
            waiter.since = known.since;
            *known = waiter;
        } else {
            let younger = self.line.iter().position(|other| other.ticket > Some(ticket));
            self.line.insert(younger.unwrap_or(self.line.len()), waiter);
        }
        if let Some((reserved, _, is_told)) = &mut self.reserved
            && *reserved == ticket
        {
            *is_told = false;
        }
    }

    fn has_room_for(&self, ticket: Option<usize>) -> bool {
        let is_known = |waiter: &PlainWaiter| ticket.is_some() && waiter.ticket == ticket;
        self.line.len() < ROOM || self.line.iter().any(is_known)
    }

    fn acquire(&mut self, token: usize, queue: Option<(usize, u64, u64)>) -> (Reply, Vec<Said>) {
        let ticket = queue.map(|(ticket, ..)| ticket);
        let is_in_turn = match self.line.first() {
            None => true,
            Some(first) => first.ticket.is_some() && ticket.is_some() && ticket <= first.ticket,
        };
        let is_granted = match self.holder() {
            Some(holder) => holder == token,
            None => is_in_turn,
        };
        if !is_granted {
            let Some(queue) = queue else { return (Reply::Null, Vec::new()) };
            if !self.has_room_for(ticket) {
                return (Reply::Full, Vec::new());
            }
            self.queue(token, queue);
            return (Reply::Null, Vec::new());
        }
        if self.holder().is_none() {
            self.fence += 1;
        }
        self.lease = Some((token, self.now + TTL));
        self.take(|waiter| ticket.is_some() && waiter.ticket == ticket, &mut Vec::new());
        let mut said = Vec::new();
        self.take(|waiter| waiter.token == token, &mut said);
        self.reserved = None;
        (Reply::Fence(self.fence), said)
    }

    fn release(&mut self, token: usize, queue: Option<(usize, u64, u64)>) -> (Reply, Vec<Said>) {
        let mut said = Vec::new();
        let reply = match self.holder() {
            None => Reply::Null,
            Some(holder) if holder != token => Reply::Zero,
            Some(_) => {
                self.lease = None;
                Reply::One
            }
        };
        match queue {
            Some(queue) if self.has_room_for(Some(queue.0)) => self.queue(token, queue),
            Some(_) => {}
            None => self.take(|waiter| waiter.token == token, &mut said),
        }
        (reply, said)
    }

    fn block(&mut self, token: usize, wait: u64) -> (Reply, Vec<Said>) {
        let (reply, said) = self.acquire(token, None);
        match reply {
            Reply::Null if !self.has_room_for(None) => (Reply::Full, Vec::new()),
            Reply::Null => {
                self.calls += 1;
                self.line.push(PlainWaiter {
                    ticket: None,
                    call: self.calls,
                    token,
                    since: self.now,
                    deadline: self.now + wait,
                    connection: 0,
                    channel: Vec::new(),
                });
                (Reply::Blocked, Vec::new())
            }
            reply => (reply, said),
        }
    }

    /// What happens by itself: who has left by the clock, and whose turn it is.
    fn settle(&mut self) -> Vec<Said> {
        let (now, mut said) = (self.now, Vec::new());
        if let Some((ticket, until, _)) = self.reserved
            && until < now
        {
            self.take(|waiter| waiter.ticket == Some(ticket), &mut said);
        }
        self.take(|waiter| waiter.deadline < now, &mut said);
        while self.holder().is_none() && !self.line.is_empty() {
            let first = self.line[0].clone();
            match first.ticket {
                None => {
                    self.line.remove(0);
                    self.fence += 1;
                    self.lease = Some((first.token, now + TTL));
                    said.push(Said::Granted(first.call));
                    self.take(|waiter| waiter.token == first.token, &mut said);
                }
                Some(ticket) => {
                    match self.reserved {
                        Some((reserved, _, true)) if reserved == ticket => {}
                        Some((reserved, until, false)) if reserved == ticket => {
                            self.reserved = Some((ticket, until, true));
                            said.push(Said::Woken(ticket, first.channel));
                        }
                        Some(_) | None => {
                            self.reserved = Some((ticket, now + GRACE, true));
                            said.push(Said::Woken(ticket, first.channel));
                        }
                    }
                    break;
                }
            }
        }
        said
    }
}

// ----------------------------------------------------------------------------------- the engine

struct Engine {
    now: Instant,
    node: Promises,
    lock: Lock,
    line: Line,
    /// Token of each call.
    calls: Vec<usize>,
}

impl Engine {
    fn new() -> Engine {
        let node = Promises::new(Fence::ZERO, None);
        let (now, line) = (Instant::default(), Line::default());
        Engine { now, node, lock: Lock::default(), line, calls: Vec::new() }
    }

    fn queued<'a>(
        &self,
        channel: &'a [u8],
        (index, wait, connection): (usize, u64, u64),
    ) -> Queued<'a> {
        Queued {
            ticket: ticket(index),
            channel,
            deadline: self.now.after(Millis::new(wait)),
            connection: ConnectionId(connection),
            room: Room { waiters: self.line.len(), max: ROOM },
        }
    }

    fn acquire(&mut self, token: usize, queue: Option<(usize, u64, u64)>) -> (Reply, Vec<Said>) {
        let bytes = token_bytes(token);
        let claim = Claim { token: Token::new(&bytes, 64).unwrap(), ttl: Millis::new(TTL) };
        let channel = queue.map_or(Vec::new(), |(ticket, ..)| channel(ticket, token));
        let queued = queue.map(|queue| self.queued(&channel, queue));
        let Engine { now, node, lock, line, .. } = self;
        let decided = node.acquire_in_line(lock, line, claim, b"", queued.as_ref(), *now);
        let (reply, left) = match decided {
            Ok((Acquired::Granted { fence, .. } | Acquired::Again { fence, .. }, left)) => {
                (Reply::Fence(fence.get()), left)
            }
            Ok((Acquired::Held, left)) => (Reply::Null, left),
            Err(Stop::Refused(Refusal::QueueFull { waiters: ROOM, max: ROOM })) => {
                (Reply::Full, Vec::new())
            }
            Err(stop) => panic!("{stop:?}"),
        };
        (reply, left.into_iter().map(said).collect())
    }

    fn release(&mut self, token: usize, queue: Option<(usize, u64, u64)>) -> (Reply, Vec<Said>) {
        let bytes = token_bytes(token);
        let channel = queue.map_or(Vec::new(), |(ticket, ..)| channel(ticket, token));
        let queued = queue.map(|queue| self.queued(&channel, queue));
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

    fn block(&mut self, token: usize, wait: u64) -> (Reply, Vec<Said>) {
        let (reply, left) = self.acquire(token, None);
        if reply != Reply::Null {
            return (reply, left);
        }
        if (Room { waiters: self.line.len(), max: ROOM }).check().is_err() {
            return (Reply::Full, Vec::new());
        }
        self.calls.push(token);
        let call = CallId(self.calls.len() as u64);
        let bytes = token_bytes(token);
        let deadline = self.now.after(Millis::new(wait));
        self.line.block(call, Token::new(&bytes, 64).unwrap(), deadline, self.now);
        (Reply::Blocked, Vec::new())
    }

    fn settle(&mut self) -> Vec<Said> {
        let left = self.line.expire(self.now, usize::MAX);
        let mut all: Vec<Said> = left.into_iter().map(said).collect();
        while !self.lock.is_held(self.now) {
            match self.line.serve(self.now, Millis::new(GRACE)) {
                Turn::Nobody | Turn::Reserved => break,
                Turn::Grant(left) => {
                    let [Left::Call(CallId(call)), others @ ..] = &left[..] else {
                        panic!("a call comes first: {left:?}")
                    };
                    let call = *call;
                    let bytes = token_bytes(self.calls[call as usize - 1]);
                    let token = Token::new(&bytes, 64).unwrap();
                    let claim = Claim { token, ttl: Millis::new(TTL) };
                    let granted = self.node.acquire(&mut self.lock, claim, b"", self.now);
                    assert!(matches!(granted, Ok(Acquired::Granted { .. })), "{granted:?}");
                    all.push(Said::Granted(call));
                    all.extend(others.iter().cloned().map(said));
                }
                Turn::Wake { ticket, channel } => {
                    all.push(Said::Woken(index(ticket), channel.to_vec()));
                    break;
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
        Left::Ticket(ticket, _) => Said::Left(Some(index(&ticket)), 0),
    }
}

fn sorted(mut said: Vec<Said>) -> Vec<Said> {
    said.sort_by_key(|said| format!("{said:?}"));
    said
}

// ------------------------------------------------------------------------------------ the tests

fn compare(ops: &[Op]) -> Result<(), TestCaseError> {
    let (mut plain, mut engine) = (Plain::default(), Engine::new());
    for op in ops {
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        match *op {
            Op::Acquire { token, queue } => {
                let (reply, left) = engine.acquire(token, queue);
                let (expected_reply, expected_left) = plain.acquire(token, queue);
                prop_assert_eq!(reply, expected_reply);
                (expected, got) = (expected_left, left);
            }
            Op::Release { token, queue } => {
                let (reply, left) = engine.release(token, queue);
                let (expected_reply, expected_left) = plain.release(token, queue);
                prop_assert_eq!(reply, expected_reply);
                (expected, got) = (expected_left, left);
            }
            Op::Block { token, wait } => {
                let (reply, left) = engine.block(token, wait);
                let (expected_reply, expected_left) = plain.block(token, wait);
                prop_assert_eq!(reply, expected_reply);
                (expected, got) = (expected_left, left);
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
            Op::Time(millis) => {
                let due = engine.line.due_at();
                plain.now += millis;
                engine.now = Instant::from_millis(plain.now);
                if due.is_none_or(|due| engine.now <= due) {
                    prop_assert_eq!(engine.line.expire(engine.now, 1), vec![], "nothing was due");
                }
            }
        }
        prop_assert_eq!(sorted(got), sorted(expected), "{:?}", op);
        prop_assert_eq!(sorted(engine.settle()), sorted(plain.settle()), "{:?}", op);

        // The same lease, the same line, the same reservation.
        let lease = engine.lock.lease(engine.now);
        let holder = lease.map(|lease| lease.token.as_bytes().to_vec());
        prop_assert_eq!(holder, plain.holder().map(token_bytes));
        prop_assert_eq!(engine.line.len(), plain.line.len());
        let first = plain.line.first().map(|first| match first.ticket {
            Some(index) => Waiter::Ticket(ticket(index)),
            None => Waiter::Call(CallId(first.call)),
        });
        prop_assert_eq!(engine.line.first(), first.as_ref());
        let since = plain.line.first().map(|first| Instant::from_millis(first.since));
        prop_assert_eq!(engine.line.first_since(), since);
        let reserved = plain.reserved.map(|(index, ..)| ticket(index));
        prop_assert_eq!(engine.line.reserved_for(), reserved.as_ref());
        if plain.holder().is_none() {
            prop_assert_eq!(plain.line.is_empty(), reserved.is_none(), "a free lock is reserved");
        }
    }
    // Whoever is left leaves in the order of the line, and leaves nothing behind.
    let order: Vec<Said> =
        plain.line.iter().map(|waiter| Said::Left(waiter.ticket, waiter.call)).collect();
    let first: Vec<Said> = engine.line.leave_first(2).into_iter().map(said).collect();
    let rest = engine.line.leave_first(usize::MAX).into_iter().map(said);
    prop_assert_eq!(first.len(), order.len().min(2));
    prop_assert_eq!(first.into_iter().chain(rest).collect::<Vec<_>>(), order);
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

fn queue(index: usize) -> Option<(usize, u64, u64)> {
    Some((index, 1_000, 1))
}

#[test]
fn an_older_ticket_takes_the_reservation_over_at_once() {
    let mut node = Engine::new();
    assert_eq!(node.acquire(0, None).0, Reply::Fence(1));
    assert_eq!(node.acquire(1, queue(4)).0, Reply::Null);
    assert_eq!(node.release(0, None), (Reply::One, vec![]));
    assert_eq!(node.settle(), [Said::Woken(4, channel(4, 1))]);
    // By registering: it is told. By asking: it is granted.
    assert_eq!(node.release(2, queue(2)).0, Reply::Null);
    assert_eq!(node.settle(), [Said::Woken(2, channel(2, 2))]);
    assert_eq!(node.acquire(3, None).0, Reply::Null, "nobody barges in");
    assert_eq!(node.acquire(1, queue(4)).0, Reply::Null);
    assert_eq!(node.acquire(3, queue(0)).0, Reply::Fence(2));
}

#[test]
fn a_reservation_that_is_not_used_goes_to_the_next_and_the_place_is_not_lost() {
    let mut node = Engine::new();
    node.acquire(0, None);
    node.acquire(1, queue(1));
    node.acquire(2, queue(2));
    node.release(0, None);
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    node.now = node.now.after(Millis::new(GRACE));
    assert_eq!(node.settle(), [], "the last millisecond belongs to it");
    node.now = node.now.after(Millis::new(1));
    assert_eq!(node.settle(), [Said::Left(Some(1), 0), Said::Woken(2, channel(2, 2))]);
    node.release(1, queue(1));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))], "in its old place");
}

#[test]
fn a_ticket_that_comes_back_to_its_reservation_is_told_again_but_not_for_longer() {
    let mut node = Engine::new();
    node.release(1, queue(1));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    node.now = node.now.after(Millis::new(GRACE));
    node.release(2, queue(1));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 2))], "where it listens now");
    node.now = node.now.after(Millis::new(1));
    assert_eq!(node.settle(), [Said::Left(Some(1), 0)]);
}

#[test]
fn an_abandoned_grant_goes_back_to_who_abandons_it_if_it_is_the_oldest() {
    let mut node = Engine::new();
    assert_eq!(node.acquire(1, queue(1)).0, Reply::Fence(1));
    node.acquire(2, queue(2));
    assert_eq!(node.release(1, queue(1)), (Reply::One, vec![]));
    assert_eq!(node.settle(), [Said::Woken(1, channel(1, 1))]);
    assert_eq!(node.acquire(3, queue(1)).0, Reply::Fence(2));
}

#[test]
fn a_full_node_refuses_a_waiter_but_takes_a_lease_back() {
    let mut node = Engine::new();
    node.acquire(0, None);
    for index in 1..=ROOM {
        assert_eq!(node.acquire(1, queue(index)).0, Reply::Null);
    }
    assert_eq!(node.acquire(1, queue(0)).0, Reply::Full);
    assert_eq!(node.block(1, 5).0, Reply::Full);
    assert_eq!(node.acquire(1, queue(1)).0, Reply::Null, "who stands in line already may stay");
    assert_eq!(node.release(0, queue(0)).0, Reply::One);
    assert_eq!(node.line.first(), Some(&Waiter::Ticket(ticket(1))), "without a place in line");
}

#[test]
fn calls_with_one_token_are_answered_by_one_grant() {
    // A client whose connection broke asks again over a new one, before the node has noticed.
    let mut node = Engine::new();
    assert_eq!(node.acquire(0, None).0, Reply::Fence(1));
    assert_eq!(node.block(1, 1_000).0, Reply::Blocked);
    assert_eq!(node.block(2, 1_000).0, Reply::Blocked);
    assert_eq!(node.block(1, 1_000).0, Reply::Blocked);
    node.release(0, None);
    assert_eq!(node.settle(), [Said::Granted(1), Said::Left(None, 3)]);
    node.release(1, None);
    assert_eq!(node.settle(), [Said::Granted(2)], "it did not wait behind its own lease");
    // Also where the token has got the lease another way.
    assert_eq!(node.block(1, 1_000).0, Reply::Blocked);
    assert_eq!(node.release(2, None).0, Reply::One);
    let bytes = token_bytes(1);
    let claim = Claim { token: Token::new(&bytes, 64).unwrap(), ttl: Millis::new(TTL) };
    let repair = Fencing::Repair { fence: Fence::new(9).unwrap(), label: b"" };
    let clocks = Clocks { now: node.now, wall: UnixTime::default() };
    node.node.extend(&mut node.lock, claim, repair, clocks).unwrap();
    assert_eq!(node.acquire(1, None), (Reply::Fence(9), vec![Said::Left(None, 4)]));
}
