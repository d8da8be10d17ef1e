//! A separate model of locks that are handed over in one round trip: nodes with the engine's `Line`
//! in front of their lock, which grant to the first in line when a holder hands the lock over, and
//! clients with its `Attempt`, `Waiting` and `Pursuit`.
//!
//! Clients are numbered by the age of their tickets (client 0 is the oldest) and begin in any
//! order. Each keeps its token across requests until it has released it at all nodes. Published
//! messages take any time, and may be lost. Connections break, waiters go away, or hang with their
//! connections open, each as often as the bounds allow.
//!
//! Time is abstract: the requests of a client are numbered, and their validities end in order. A
//! node ends a lease only when the validity of the request that dates it has ended. In terms of the
//! engine, request number k is sent at instant k, so a validity is known by its start.
//!
//! As in the model of the line, each state is checked for whether the oldest waiter gets the lock
//! if nothing goes wrong from there on.

use std::sync::Arc;

use lockmod::engine::{
    Acquired, Answer, Attempt, Claim, Clocks, ConnectionId, Direct, Extended, Fence, Grant,
    Instant, Line, Lock, Millis, Mode, NodeSet, Promises, PublishedGrant, Pursuit, Queued, Quorum,
    RaiseAnswer, Released, Step, Terms, Ticket, Token, Turn, UnixTime, Waiter, WaiterLimit,
    Waiting,
};
use stateright::{Model, Property};

use super::witness::Witnessed;

const NOW: Instant = Instant::from_millis(1_000_000);
const CLOCKS: Clocks = Clocks { now: NOW, wall: UnixTime::from_millis(1_000_000) };
const TTL: Millis = Millis::new(1_000);
const GRACE: Millis = Millis::new(100);
/// Without faults, everything has arrived after fewer rounds than this.
const ROUNDS_MAX: usize = 200;

/// A rule that is dropped on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// The validity is counted from the newest request sent.
    CountsFromTheNewest,
    /// A published grant does not name its request: it counts for the last one.
    SaysNoNumber,
    /// A token still counts at nodes to which its release was sent.
    CountsAfterRelease,
    /// A node withdraws a grant when the ticket's connection is gone.
    HandsOn,
    /// A waiter that has lost keeps the grants of some of the nodes.
    KeepsItsPart,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) nodes: usize,
    /// How many clients come to acquire. One more has the lock from the start, on all nodes.
    pub(crate) clients: usize,
    /// How many requests each client sends to all nodes in the search (not in [`World::settle`]).
    pub(crate) asks: u8,
    pub(crate) start: Start,
    pub(crate) lost_messages: u8,
    pub(crate) lapses: u8,
    pub(crate) breaks: u8,
    pub(crate) cancels: u8,
    pub(crate) hangs: u8,
    /// How many validities end.
    pub(crate) ends: u8,
    /// Clients also ask by their timers, without having received anything.
    pub(crate) timers: bool,
    /// Which clients and which nodes support grants to tickets: bits.
    pub(crate) new_clients: u8,
    pub(crate) new_nodes: u8,
    pub(crate) defect: Defect,
    /// Check this property only.
    pub(crate) only: Option<&'static str>,
}

/// Which clients are in line when the search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// No client.
    Nobody,
    /// One or several of the clients that come, at all nodes: each choice is an initial state.
    InLine,
}

impl Bounds {
    pub(crate) const fn of(nodes: usize, clients: usize) -> Bounds {
        Bounds {
            nodes,
            clients,
            asks: 1,
            start: Start::InLine,
            lost_messages: 0,
            lapses: 0,
            breaks: 0,
            cancels: 0,
            hangs: 0,
            ends: 0,
            timers: false,
            new_clients: u8::MAX,
            new_nodes: u8::MAX,
            defect: Defect::None,
            only: None,
        }
    }
}

/// Interesting events that a search must reach. Events that occur only in the continuation of a
/// state, where mutual exclusion is not checked, do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Witness {
    /// A quorum granted directly, without another request.
    HandedOver,
    /// Nodes granted to different tickets.
    Split,
    /// Wakes and grants together formed a quorum.
    WokenAndGranted,
    /// In the continuation of a state, only a timer helped.
    HelpedByTimer,
    /// A token that a node had granted directly asked again, and was granted the same again.
    AskedAgain,
    /// A grant arrived after the release of its token was sent.
    ToldTooLate,
    /// A client won with a request that was not its last.
    WonByAnOlderRequest,
}

impl Witness {
    const ALL: [Witness; 7] = [
        Witness::HandedOver,
        Witness::Split,
        Witness::WokenAndGranted,
        Witness::HelpedByTimer,
        Witness::AskedAgain,
        Witness::ToldTooLate,
        Witness::WonByAnOlderRequest,
    ];
}

pub(crate) struct World {
    bounds: Bounds,
    quorum: Quorum,
    /// The number of clients, including the initial holder, which is the last.
    clients: usize,
    witnessed: Witnessed,
}

/// A request with its token, and its number among those of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Request {
    token: u8,
    number: u8,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// An ACQUIRE of an attempt, or a registration.
    Acquire {
        in_line: bool,
    },
    Raise(Fence),
    ReleaseIntoLine,
    Release {
        hands_over: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Granted(Fence),
    Held,
    Raised(Option<Fence>),
}

/// What a node publishes for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Turn,
    Granted { fence: Fence, number: u8, token: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    lock: Lock,
    promises: Promises,
    line: Line,
    /// The number of the request that dates the lease.
    dated_by: u8,
    /// The ticket that has the lease by a direct grant, and has not asked since.
    handed_to: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Attempting(Attempt),
    Waiting,
    Holding,
    /// It has released or gone away.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    waiting: Waiting,
    pursuit: Pursuit,
    token: u8,
    /// The number of requests to all nodes so far.
    asks: u8,
    /// The number of the last request.
    last: u8,
    /// The number of the current attempt, and the number from which its validity is counted.
    attempt: u8,
    counted_from: u8,
    /// The validities of requests up to this one have ended.
    ended: u8,
    has_place: bool,
    /// The nodes to which the connection broke and came back during the current attempt.
    returned: NodeSet,
    is_hung: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: Vec<Arc<Node>>,
    clients: Vec<Arc<Client>>,
    /// By client, then by node: each queue in order.
    requests: Vec<Vec<Request>>,
    /// Published messages in flight, indexed likewise.
    messages: Vec<Vec<Message>>,
    /// The nodes that have been touched by any event. Of equivalent untouched nodes, only the first
    /// may be next: the choice does not matter.
    touched: NodeSet,
    lost_messages: u8,
    lapses: u8,
    breaks: u8,
    cancels: u8,
    hangs: u8,
    ends: u8,
    winners: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(usize),
    /// The next request of a client arrives at a node.
    Deliver(usize, usize),
    /// The next message of a node arrives at a client.
    Hear(usize, usize),
    LoseMessage(usize, usize),
    /// A waiter makes an attempt because a quorum has granted or woken, or because it has waited
    /// for the rest of a quorum.
    Attempt(usize),
    /// A waiter asks because of its timer.
    Time(usize),
    Release(usize),
    Cancel(usize),
    /// A waiter stops, and its connections stay open.
    Hang(usize),
    /// The validity of the oldest request of a client that has one ends.
    End(usize),
    /// The lease at a node ends.
    Expire(usize),
    /// The reservation of a client lapses at a node.
    Lapse(usize, usize),
    /// The connection of a client to a node breaks, and comes back. What the node has published is
    /// lost.
    Break(usize, usize),
    /// The same, but grants had been read before, and are processed later.
    BreakAfterReading(usize, usize),
}

fn token_bytes(client: usize, token: u8) -> [u8; 1] {
    [client as u8 * 32 + token]
}

fn owner(token: &[u8]) -> usize {
    usize::from(token[0] / 32)
}

fn ticket(client: usize) -> Ticket {
    Ticket::new(1 + client as u64, &[b'a' + client as u8]).expect("a ticket")
}

fn client_of(ticket: &Ticket) -> usize {
    usize::from(ticket.id()[0] - b'a')
}

/// When a request is sent.
fn sent_at(number: u8) -> Instant {
    NOW.after(Millis::new(u64::from(number)))
}

impl Node {
    fn new() -> Node {
        let (lock, line) = (Lock::default(), Line::default());
        let promises = Promises::new(Fence::ZERO, None);
        Node { lock, promises, line, dated_by: 0, handed_to: None }
    }

    fn holder(&self) -> Option<usize> {
        self.lock.written_leases().next().map(|lease| owner(lease.token.as_bytes()))
    }

    fn holds(&self, token: &[u8]) -> bool {
        Token::new(token, 1).is_ok_and(|token| self.lock.lease_of(token).is_some())
    }

    fn has(&self, client: usize) -> bool {
        self.line.has(&Waiter::Ticket(ticket(client)))
    }

    fn is_reserved_for(&self, client: usize) -> bool {
        self.line.reserved_for().any(|other| client_of(other) == client)
    }

    /// Executes a request. Also returns whether it hands the lock over.
    fn serve(&mut self, client: usize, request: Request, is_direct: bool) -> (Reply, bool) {
        let bytes = token_bytes(client, request.token);
        let token = Token::new(&bytes, 1).expect("a token");
        let claim = Claim { token, ttl: TTL, mode: Mode::Exclusive };
        let number = u64::from(request.number);
        let direct = is_direct.then_some(Direct { ttl: TTL, label: b"", number });
        let queued = |direct| Queued {
            ticket: ticket(client),
            channel: b"c",
            deadline: NOW.after(TTL),
            connection: ConnectionId(client as u64),
            mode: Mode::Exclusive,
            limit: WaiterLimit { waiters: 0, max: 1 },
            direct,
        };
        let Node { lock, promises, line, dated_by, handed_to } = self;
        match request.what {
            What::Acquire { in_line } => {
                let queued = in_line.then(|| queued(direct));
                let asked = queued.as_ref();
                let outcome = promises.acquire_in_line(lock, line, claim, b"", asked, NOW);
                match outcome.expect("neither quarantine nor disk").0 {
                    Acquired::Granted { fence, .. } => {
                        (*dated_by, *handed_to) = (request.number, None);
                        (Reply::Granted(fence), false)
                    }
                    Acquired::Again { fence, .. } => {
                        (*dated_by, *handed_to) = (request.number.max(*dated_by), None);
                        (Reply::Granted(fence), false)
                    }
                    Acquired::Held => (Reply::Held, false),
                }
            }
            What::Raise(fence) => match promises.raise(lock, token, fence, CLOCKS) {
                Ok(Extended::Extended { counter, .. }) => (Reply::Raised(Some(counter)), false),
                Ok(_) | Err(_) => (Reply::Raised(None), false),
            },
            What::ReleaseIntoLine | What::Release { .. } => {
                let queued = matches!(request.what, What::ReleaseIntoLine).then(|| queued(None));
                let (released, _) =
                    promises.release_in_line(lock, line, token, queued.as_ref(), NOW);
                let is_released = matches!(released, Released::Released { .. });
                let hands_over = request.what == What::Release { hands_over: true };
                (Reply::Held, is_released && hands_over)
            }
        }
    }

    /// Serves the line while the lock is free. Returns the messages, each with its client.
    fn serve_line(&mut self, mut hands_over: bool) -> Vec<(usize, Message)> {
        let mut told = Vec::new();
        while !self.lock.is_held(NOW) {
            if std::mem::take(&mut hands_over)
                && let Some(grantee) = self.line.first_to_grant(NOW)
            {
                let token = Token::new(&grantee.token, 1).expect("a token");
                let claim = Claim { token, ttl: grantee.ttl, mode: Mode::Exclusive };
                let granted = self.promises.acquire(&mut self.lock, claim, b"", NOW);
                let Ok(Acquired::Granted { fence, .. }) = granted else { panic!("it is free") };
                let client = client_of(&grantee.ticket);
                self.line.leave(&Waiter::Ticket(grantee.ticket));
                (self.dated_by, self.handed_to) = (grantee.number as u8, Some(client));
                let (number, token) = (self.dated_by, grantee.token[0] % 32);
                told.push((client, Message::Granted { fence, number, token }));
                continue;
            }
            match self.line.serve(NOW, GRACE, usize::MAX) {
                Turn::Wake { ticket, .. } => told.push((client_of(ticket), Message::Turn)),
                Turn::Nobody | Turn::Reserved => return told,
                Turn::Grant(_) => unreachable!("nobody blocks here"),
            }
        }
        self.line.taken(Mode::Exclusive);
        told
    }

    fn end(&mut self) {
        let held = self.lock.written_leases().next().map(|lease| lease.token.as_bytes().to_vec());
        if let Some(token) = held {
            self.lock.apply_release(Token::new(&token, 1).expect("a token"), NOW);
        }
        self.handed_to = None;
    }
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> World {
        let quorum = Quorum::of(bounds.nodes).expect("1 to 32 nodes");
        World { bounds, quorum, clients: bounds.clients + 1, witnessed: Witnessed::default() }
    }

    pub(crate) fn witnesses(&self) -> Vec<Witness> {
        let was_seen = |witness: &Witness| self.witnessed.has(*witness as u8);
        Witness::ALL.into_iter().filter(was_seen).collect()
    }

    fn saw(&self, witness: Witness) {
        self.witnessed.saw(witness as u8);
    }

    fn pair(&self, client: usize, node: usize) -> usize {
        client * self.bounds.nodes + node
    }

    fn client<'s>(&self, state: &'s mut State, client: usize) -> &'s mut Client {
        Arc::make_mut(&mut state.clients[client])
    }

    fn is_new(&self, client: usize, node: usize) -> bool {
        self.bounds.new_clients >> client & 1 != 0 && self.bounds.new_nodes >> node & 1 != 0
    }

    fn send(&self, state: &mut State, client: usize, what: What, nodes: NodeSet) {
        let Client { token, last, .. } = *state.clients[client];
        for node in nodes.iter() {
            let request = Request { token, number: last, what };
            state.requests[self.pair(client, node)].push(request);
        }
    }

    /// Puts the ticket in line at these nodes, with the current token.
    fn register(&self, state: &mut State, client: usize, nodes: NodeSet) {
        let me = self.client(state, client);
        me.last += 1;
        let _ = me.pursuit.register(sent_at(me.last));
        self.send(state, client, What::Acquire { in_line: true }, nodes);
    }

    fn attempt(&self, state: &mut State, client: usize) {
        let quorum = self.quorum;
        let me = self.client(state, client);
        let woken = me.waiting.begin();
        me.returned = NodeSet::EMPTY;
        if let Some(harvest) = me.pursuit.harvest(sent_at(me.last)) {
            let from = NOW.until(harvest.started_at).get() as u8;
            let is_newest = self.bounds.defect == Defect::CountsFromTheNewest;
            me.counted_from = if is_newest { me.last } else { from };
            me.attempt = 0;
            if from < me.last {
                self.saw(Witness::WonByAnOlderRequest);
            }
            let mut attempt = Attempt::new(quorum, Terms::new(TTL), NOW);
            let mut answer = |PublishedGrant { node, fence, .. }| {
                attempt.answer(node, Answer::Granted(fence), NOW)
            };
            let steps: Vec<Step> = harvest.grants.into_iter().map(&mut answer).collect();
            me.phase = Phase::Attempting(attempt);
            self.saw(Witness::HandedOver);
            return steps.into_iter().for_each(|step| self.follow(state, client, step));
        }
        let granted = (0..self.bounds.nodes).filter(|node| me.pursuit.has_granted(*node)).count();
        if granted > 0 && granted < woken.len() && quorum.is_reached(woken) {
            self.saw(Witness::WokenAndGranted);
        }
        if me.pursuit.is_released() || me.token == 0 {
            me.token += 1;
            me.pursuit.change_token();
        }
        (me.asks, me.last) = (me.asks + 1, me.last + 1);
        let _ = me.pursuit.register(sent_at(me.last));
        (me.attempt, me.counted_from) = (me.last, me.last);
        me.phase = Phase::Attempting(Attempt::new(quorum, Terms::new(TTL), NOW));
        let in_line = me.has_place;
        self.send(state, client, What::Acquire { in_line }, quorum.all());
    }

    fn deliver(&self, state: &mut State, client: usize, node: usize) {
        state.touched.insert(node);
        let pair = self.pair(client, node);
        let request = state.requests[pair].remove(0);
        let served = Arc::make_mut(&mut state.nodes[node]);
        let had_it = served.handed_to == Some(client);
        let (reply, hands_over) = served.serve(client, request, self.is_new(client, node));
        if had_it && matches!(reply, Reply::Granted(_)) {
            self.saw(Witness::AskedAgain);
        }
        self.serve_line(state, node, hands_over);
        let is_in_line = request.what == What::Acquire { in_line: true };
        if is_in_line && !state.nodes[node].is_reserved_for(client) {
            // The reply outdates what was published before it.
            state.messages[pair].retain(|message| *message != Message::Turn);
        }
        self.answer(state, client, node, (request, reply));
    }

    fn serve_line(&self, state: &mut State, node: usize, hands_over: bool) {
        for (client, message) in Arc::make_mut(&mut state.nodes[node]).serve_line(hands_over) {
            let me = &state.clients[client];
            if !me.is_hung && me.phase != Phase::Done {
                state.messages[client * self.bounds.nodes + node].push(message);
            }
        }
        let handed: Vec<usize> = state.nodes.iter().filter_map(|node| node.handed_to).collect();
        if handed.iter().any(|other| *other != handed[0]) {
            self.saw(Witness::Split);
        }
    }

    fn answer(
        &self,
        state: &mut State,
        client: usize,
        node: usize,
        (request, reply): (Request, Reply),
    ) {
        let me = self.client(state, client);
        if request.token != me.token || me.is_hung {
            return;
        }
        match (&mut me.phase, request.what) {
            (Phase::Attempting(attempt), What::Acquire { .. } | What::Raise(_)) => {
                let is_raise = matches!(reply, Reply::Raised(_));
                if request.number != me.attempt && !is_raise {
                    return;
                }
                let step = match reply {
                    Reply::Granted(fence) => attempt.answer(node, Answer::Granted(fence), NOW),
                    Reply::Held => attempt.answer(node, Answer::Refused, NOW),
                    Reply::Raised(Some(at)) => {
                        attempt.raise_answer(node, RaiseAnswer::Raised(at), NOW)
                    }
                    Reply::Raised(None) => attempt.raise_answer(node, RaiseAnswer::Refused, NOW),
                };
                if !is_raise {
                    me.waiting.answered(node);
                }
                self.follow(state, client, step);
            }
            (Phase::Waiting, What::ReleaseIntoLine) => me.waiting.joined(node, NOW, 0),
            (Phase::Waiting, What::Acquire { in_line: true }) if !me.pursuit.is_released() => {
                me.waiting.answered(node);
                me.waiting.joined(node, NOW, 0);
                match reply {
                    // Other clients won: the attempt is lost.
                    Reply::Granted(_) if request.number == me.attempt => {
                        self.give_back(state, client);
                    }
                    Reply::Granted(_) => me.waiting.woken(node, NOW),
                    Reply::Held | Reply::Raised(_) => {}
                }
            }
            (Phase::Attempting(_) | Phase::Waiting, _) => {}
            (Phase::Idle | Phase::Holding | Phase::Done, _) => {}
        }
    }

    fn follow(&self, state: &mut State, client: usize, step: Step) {
        match step {
            Step::Wait => {}
            Step::Raise { fence, nodes } => self.send(state, client, What::Raise(fence), nodes),
            Step::Won(grant) => {
                if state.clients[client].counted_from <= state.clients[client].ended {
                    return self.lose(state, client);
                }
                self.win(state, client, grant);
            }
            Step::Lost(_) => self.lose(state, client),
        }
    }

    fn lose(&self, state: &mut State, client: usize) {
        let all = self.quorum.all();
        let me = self.client(state, client);
        let Phase::Attempting(attempt) = &me.phase else { return };
        let known = |node: usize| me.pursuit.has_granted(node);
        let has_part = !attempt.granted().is_empty() || (0..self.bounds.nodes).any(known);
        let had_place = std::mem::replace(&mut me.has_place, true);
        me.phase = Phase::Waiting;
        me.waiting.lost(NodeSet::EMPTY, NOW, 0);
        let returned = std::mem::take(&mut me.returned);
        if has_part {
            self.give_back(state, client);
        } else if !had_place {
            self.register(state, client, all);
        }
        for node in returned.iter() {
            self.put_back(state, client, node);
        }
    }

    /// Gets in line again at a node whose connection is back.
    fn put_back(&self, state: &mut State, client: usize, node: usize) {
        let me = self.client(state, client);
        me.waiting.out_of_line(node, NOW, 0);
        if me.pursuit.is_released() {
            self.send(state, client, What::ReleaseIntoLine, NodeSet::of(node));
        } else {
            self.register(state, client, NodeSet::of(node));
        }
    }

    /// Releases the token at all nodes, and stays in line.
    fn give_back(&self, state: &mut State, client: usize) {
        if self.bounds.defect == Defect::KeepsItsPart {
            return;
        }
        let me = self.client(state, client);
        if self.bounds.defect != Defect::CountsAfterRelease {
            me.pursuit.release();
        }
        self.send(state, client, What::ReleaseIntoLine, self.quorum.all());
    }

    fn win(&self, state: &mut State, client: usize, grant: Grant) {
        self.send(state, client, What::Raise(grant.fence), grant.laggards);
        let me = self.client(state, client);
        me.phase = Phase::Holding;
        state.winners |= 1 << client;
        for node in 0..self.bounds.nodes {
            state.messages[self.pair(client, node)].clear();
        }
    }

    fn release(&self, state: &mut State, client: usize, hands_over: bool) {
        for node in 0..self.bounds.nodes {
            let hands_over = hands_over && self.is_new(client, node);
            self.send(state, client, What::Release { hands_over }, NodeSet::of(node));
        }
        self.finish(state, client);
    }

    fn finish(&self, state: &mut State, client: usize) {
        let (quorum, nodes) = (self.quorum, self.bounds.nodes);
        let me = self.client(state, client);
        me.phase = Phase::Done;
        me.waiting = Waiting::new(quorum, TTL);
        me.pursuit = Pursuit::new(quorum, Terms::new(TTL));
        me.returned = NodeSet::EMPTY;
        for node in 0..nodes {
            state.messages[self.pair(client, node)].clear();
        }
    }

    fn hear(&self, state: &mut State, client: usize, node: usize) {
        let message = state.messages[self.pair(client, node)].remove(0);
        let defect = self.bounds.defect;
        let me = self.client(state, client);
        match message {
            Message::Turn => me.waiting.woken(node, NOW),
            Message::Granted { fence, number, token } => {
                if me.pursuit.is_released() {
                    self.saw(Witness::ToldTooLate);
                }
                let is_unsaid = defect == Defect::SaysNoNumber && token == me.token;
                let number = u64::from(if is_unsaid { me.last } else { number });
                if me.pursuit.granted(PublishedGrant { node, server: None, fence, number }) {
                    me.waiting.woken(node, NOW);
                }
            }
        }
    }

    /// Drops a client's connection to a node, with everything in flight and its place in line. A
    /// grant that has been read stays.
    fn disconnect(&self, state: &mut State, client: usize, node: usize, has_read: bool) {
        state.touched.insert(node);
        let pair = self.pair(client, node);
        state.requests[pair].clear();
        state.messages[pair].retain(|message| has_read && *message != Message::Turn);
        let served = Arc::make_mut(&mut state.nodes[node]);
        served.line.leave_by_connection(ConnectionId(client as u64), usize::MAX);
        if self.bounds.defect == Defect::HandsOn && served.handed_to == Some(client) {
            served.end();
        }
        self.serve_line(state, node, false);
    }

    fn reconnect(&self, state: &mut State, client: usize, node: usize, has_read: bool) {
        let pair = self.pair(client, node);
        let lost = state.requests[pair].clone();
        self.disconnect(state, client, node, has_read);
        // Releases are repeated, without the part that belonged to the connection.
        let repeated = lost.iter().filter_map(|request| match request.what {
            What::Release { .. } | What::ReleaseIntoLine => {
                Some(Request { what: What::Release { hands_over: false }, ..*request })
            }
            What::Acquire { .. } | What::Raise(_) => None,
        });
        state.requests[pair] = repeated.collect();
        let me = self.client(state, client);
        match &mut me.phase {
            Phase::Attempting(attempt) => {
                let present = me.attempt;
                let is_acquire = |request: &Request| {
                    request.number == present && matches!(request.what, What::Acquire { .. })
                };
                let step = if lost.iter().any(is_acquire) {
                    attempt.answer(node, Answer::Unknown, NOW)
                } else {
                    attempt.raise_answer(node, RaiseAnswer::Unknown, NOW)
                };
                // It learns of the new connection as soon as it waits.
                me.returned.insert(node);
                self.follow(state, client, step);
            }
            Phase::Waiting => self.put_back(state, client, node),
            Phase::Idle | Phase::Holding | Phase::Done => {}
        }
    }

    fn hang(&self, state: &mut State, client: usize) {
        self.client(state, client).is_hung = true;
        self.finish(state, client);
    }

    /// Puts some of the clients (bits) in line at all nodes, before anything else happens.
    fn in_line(&self, mut state: State, those: usize) -> State {
        for client in (0..self.clients).filter(|client| those >> client & 1 != 0) {
            self.attempt(&mut state, client);
            for node in (0..self.bounds.nodes).cycle().take(2 * self.bounds.nodes) {
                self.deliver(&mut state, client, node);
            }
            self.client(&mut state, client).asks = 0;
        }
        state.touched = NodeSet::EMPTY;
        state
    }

    /// Ends the validity of one more request of a client.
    fn end(&self, state: &mut State, client: usize) {
        let me = self.client(state, client);
        me.ended += 1;
        let is_over = me.counted_from <= me.ended;
        if me.phase == Phase::Holding && is_over {
            self.release(state, client, false);
        }
    }

    /// Whether an event may touch a node now: equivalent nodes are touched in order.
    fn may_touch(&self, state: &State, node: usize) -> bool {
        let is_new = |node: usize| self.bounds.new_nodes >> node & 1 != 0;
        state.touched.has(node)
            || (0..node).all(|other| state.touched.has(other) || is_new(other) != is_new(node))
    }

    fn may_expire(&self, state: &State, node: usize) -> bool {
        let node = &state.nodes[node];
        node.holder().is_some_and(|client| {
            let me = &state.clients[client];
            me.is_hung || node.dated_by <= me.ended
        })
    }

    fn expire(&self, state: &mut State, node: usize) {
        state.touched.insert(node);
        Arc::make_mut(&mut state.nodes[node]).end();
        self.serve_line(state, node, false);
    }

    fn leave(&self, state: &mut State, node: usize, client: usize) {
        Arc::make_mut(&mut state.nodes[node]).line.leave(&Waiter::Ticket(ticket(client)));
        self.serve_line(state, node, false);
    }

    /// Immediately executes requests that can no longer change anything.
    fn tidy(&self, state: &mut State) {
        for client in 0..self.clients {
            for node in 0..self.bounds.nodes {
                let pair = self.pair(client, node);
                while let Some(request) = state.requests[pair].first() {
                    let at = &state.nodes[node];
                    let holds = at.holds(&token_bytes(client, request.token));
                    let me = &state.clients[client];
                    let is_idle = match request.what {
                        What::Release { .. } => !holds && !at.has(client),
                        What::Raise(_) => {
                            !holds && (me.token != request.token || me.phase == Phase::Done)
                        }
                        What::Acquire { .. } | What::ReleaseIntoLine => false,
                    };
                    if !is_idle {
                        break;
                    }
                    state.requests[pair].remove(0);
                }
            }
        }
    }

    // ------------------------------------------------------------- what must come of each state

    /// Why the oldest waiter may fail to get the lock from this state, if it may.
    pub(crate) fn complaint(&self, state: &State) -> Option<&'static str> {
        let unseen = World::new(self.bounds);
        let settle = |backwards| unseen.settle(state, backwards);
        let helped = settle(false).and_then(|helped| Ok(helped | settle(true)?));
        if helped == Ok(true) {
            self.saw(Witness::HelpedByTimer);
        }
        helped.err()
    }

    /// Checks that the oldest waiter gets the lock, and then the next, if nothing goes wrong from
    /// here on. `backwards` reverses the order of events. Returns whether the timer of the oldest
    /// was needed, and helped.
    fn settle(&self, state: &State, backwards: bool) -> Result<bool, &'static str> {
        let mut state = state.clone();
        let mut is_helped = false;
        self.deliver_all(&mut state, backwards)?;
        for _ in 0..self.clients * 3 {
            let Some(oldest) = self.first_in(&state, &Phase::Waiting) else {
                return Ok(is_helped);
            };
            if let Some(holder) = self.first_in(&state, &Phase::Holding) {
                let is_in_line =
                    (0..self.bounds.nodes).filter(|node| state.nodes[*node].has(oldest)).count()
                        >= self.quorum.needed();
                let before = state.winners;
                self.release(&mut state, holder, true);
                self.deliver_all(&mut state, backwards)?;
                if is_in_line && state.winners & !before != 1 << oldest {
                    return Err("a younger one was granted the lock");
                }
                continue;
            }
            self.attempt(&mut state, oldest);
            self.deliver_all(&mut state, backwards)?;
            if state.clients[oldest].phase == Phase::Holding {
                is_helped = true;
                continue;
            }
            // A client holds leases without having received a message, and asks by its timer.
            let Some(unaware) = (0..self.clients).find(|client| self.is_unaware(&state, *client))
            else {
                return Err("the oldest lost");
            };
            self.attempt(&mut state, unaware);
            self.deliver_all(&mut state, backwards)?;
        }
        Err("somebody waits for ever")
    }

    /// The oldest client in this phase.
    fn first_in(&self, state: &State, phase: &Phase) -> Option<usize> {
        (0..self.clients).find(|client| state.clients[*client].phase == *phase)
    }

    /// Whether a node has granted the client the lock while it is still waiting.
    fn is_unaware(&self, state: &State, client: usize) -> bool {
        let token = token_bytes(client, state.clients[client].token);
        let is_waiting = state.clients[client].phase == Phase::Waiting;
        is_waiting && state.nodes.iter().any(|node| node.holds(&token))
    }

    fn is_woken(&self, me: &Client) -> bool {
        let has_granted = || me.pursuit.harvest(sent_at(me.last)).is_some();
        me.phase == Phase::Waiting && (me.waiting.is_first() || has_granted())
    }

    /// Whether the client has a part of a quorum and knows it, so that it does not wait long for
    /// the rest.
    fn hurries(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        let (told, token) = (me.waiting.clone().begin(), token_bytes(client, me.token));
        let is_told = |node: usize| told.has(node) && state.nodes[node].holds(&token);
        let has_part = |node| me.pursuit.has_granted(node) || is_told(node);
        me.phase == Phase::Waiting && (0..self.bounds.nodes).any(has_part)
    }

    /// Delivers everything in flight, with all its consequences.
    fn deliver_all(&self, state: &mut State, backwards: bool) -> Result<(), &'static str> {
        let turn = |index: usize, count: usize| if backwards { count - 1 - index } else { index };
        for _ in 0..ROUNDS_MAX {
            let mut has_moved = false;
            for client in 0..self.clients {
                let client = turn(client, self.clients);
                for node in 0..self.bounds.nodes {
                    let node = turn(node, self.bounds.nodes);
                    has_moved |= self.move_on(state, client, node);
                }
                if self.is_woken(&state.clients[client]) {
                    has_moved = true;
                    self.attempt(state, client);
                }
            }
            let hurried = (0..self.clients).find(|client| self.hurries(state, *client));
            match hurried {
                Some(client) if !has_moved => self.attempt(state, client),
                Some(_) | None if has_moved => {}
                Some(_) | None => return Ok(()),
            }
        }
        Err("it never comes to rest")
    }

    fn move_on(&self, state: &mut State, client: usize, node: usize) -> bool {
        let pair = self.pair(client, node);
        let mut has_moved = false;
        if !state.requests[pair].is_empty() {
            has_moved = true;
            self.deliver(state, client, node);
        }
        if !state.messages[pair].is_empty() && state.clients[client].phase == Phase::Waiting {
            has_moved = true;
            self.hear(state, client, node);
        }
        let hung = state.clients[client].is_hung;
        if hung && state.nodes[node].holder() == Some(client) {
            has_moved = true;
            self.expire(state, node);
        }
        if hung && state.nodes[node].has(client) {
            has_moved = true;
            self.leave(state, node, client);
        }
        has_moved
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Bounds { nodes, clients, .. } = self.bounds;
        let client = Client {
            phase: Phase::Idle,
            waiting: Waiting::new(self.quorum, TTL),
            pursuit: Pursuit::new(self.quorum, Terms::new(TTL)),
            token: 0,
            asks: 0,
            last: 0,
            attempt: 0,
            counted_from: 0,
            ended: 0,
            has_place: false,
            returned: NodeSet::EMPTY,
            is_hung: false,
        };
        let mut node = Node::new();
        let what = What::Acquire { in_line: false };
        let _ = node.serve(clients, Request { token: 1, number: 1, what }, false);
        let node = Arc::new(node);
        let (token, last) = (1, 1);
        let holder =
            Client { phase: Phase::Holding, token, last, counted_from: 1, ..client.clone() };
        let client = Arc::new(client);
        let mut all: Vec<_> = (0..clients).map(|_| Arc::clone(&client)).collect();
        all.push(Arc::new(holder));
        let start = State {
            nodes: (0..nodes).map(|_| Arc::clone(&node)).collect(),
            clients: all,
            requests: vec![Vec::new(); nodes * (clients + 1)],
            messages: vec![Vec::new(); nodes * (clients + 1)],
            touched: NodeSet::EMPTY,
            lost_messages: 0,
            lapses: 0,
            breaks: 0,
            cancels: 0,
            hangs: 0,
            ends: 0,
            winners: 0,
        };
        match self.bounds.start {
            Start::Nobody => vec![start],
            Start::InLine => {
                (1..1 << clients).map(|those| self.in_line(start.clone(), those)).collect()
            }
        }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let nodes: Vec<usize> =
            (0..bounds.nodes).filter(|node| self.may_touch(state, *node)).collect();
        for (client, me) in state.clients.iter().enumerate() {
            let has_asks = me.asks < bounds.asks;
            let harvest = me.pursuit.harvest(sent_at(me.last));
            match &me.phase {
                Phase::Idle => actions.push(Action::Begin(client)),
                Phase::Waiting if harvest.is_some() => actions.push(Action::Attempt(client)),
                Phase::Waiting
                    if has_asks && (self.is_woken(me) || self.hurries(state, client)) =>
                {
                    actions.push(Action::Attempt(client));
                }
                Phase::Waiting if has_asks && bounds.timers => actions.push(Action::Time(client)),
                Phase::Holding => actions.push(Action::Release(client)),
                Phase::Attempting(_) | Phase::Waiting | Phase::Done => {}
            }
            let is_there = matches!(me.phase, Phase::Attempting(_) | Phase::Waiting);
            if is_there && state.cancels < bounds.cancels {
                actions.push(Action::Cancel(client));
            }
            if me.phase == Phase::Waiting && state.hangs < bounds.hangs {
                actions.push(Action::Hang(client));
            }
            if me.ended < me.last && state.ends < bounds.ends {
                actions.push(Action::End(client));
            }
            for &node in &nodes {
                let pair = self.pair(client, node);
                if !state.requests[pair].is_empty() {
                    actions.push(Action::Deliver(client, node));
                }
                if !state.messages[pair].is_empty() {
                    if me.phase == Phase::Waiting {
                        actions.push(Action::Hear(client, node));
                    }
                    if state.lost_messages < bounds.lost_messages {
                        actions.push(Action::LoseMessage(client, node));
                    }
                }
                if state.breaks < bounds.breaks && is_there {
                    actions.push(Action::Break(client, node));
                    if state.messages[pair].iter().any(|message| *message != Message::Turn) {
                        actions.push(Action::BreakAfterReading(client, node));
                    }
                }
                if state.lapses < bounds.lapses && state.nodes[node].is_reserved_for(client) {
                    actions.push(Action::Lapse(client, node));
                }
            }
        }
        let may_expire = nodes.into_iter().filter(|node| self.may_expire(state, *node));
        actions.extend(may_expire.map(Action::Expire));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(client) | Action::Attempt(client) | Action::Time(client) => {
                self.attempt(&mut state, client);
            }
            Action::Deliver(client, node) => self.deliver(&mut state, client, node),
            Action::Hear(client, node) => self.hear(&mut state, client, node),
            Action::LoseMessage(client, node) => {
                state.lost_messages += 1;
                state.messages[self.pair(client, node)].remove(0);
            }
            Action::Release(client) => self.release(&mut state, client, true),
            Action::Cancel(client) => {
                state.cancels += 1;
                self.release(&mut state, client, false);
            }
            Action::Hang(client) => {
                state.hangs += 1;
                self.hang(&mut state, client);
            }
            Action::End(client) => {
                state.ends += 1;
                self.end(&mut state, client);
            }
            Action::Expire(node) => self.expire(&mut state, node),
            Action::Lapse(client, node) => {
                state.lapses += 1;
                self.leave(&mut state, node, client);
            }
            Action::Break(client, node) => {
                state.breaks += 1;
                self.reconnect(&mut state, client, node, false);
            }
            Action::BreakAfterReading(client, node) => {
                state.breaks += 1;
                self.reconnect(&mut state, client, node, true);
            }
        }
        self.tidy(&mut state);
        if state == *last { None } else { Some(state) }
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut properties = vec![
            Property::always("mutual exclusion", |world: &World, state: &State| {
                let is_holding = |client: &usize| state.clients[*client].phase == Phase::Holding;
                (0..world.clients).filter(is_holding).count() <= 1
            }),
            Property::always("the oldest gets the lock", |world: &World, state: &State| {
                world.complaint(state).is_none()
            }),
        ];
        properties.retain(|property| self.bounds.only.is_none_or(|only| only == property.name));
        properties
    }
}
