//! A separate model of waiting in line: nodes with the engine's `Line` in front of their lock, and
//! clients with its `Attempt`, `Waiting` and `Pursuit`. (Nodes that grant to tickets are in
//! `handover.rs`.)
//!
//! Clients are numbered by the age of their tickets (client 0 is the oldest) and begin in any
//! order, as clients with different clocks do. Some ask as readers. Replies arrive immediately, or
//! never if a client gives up; requests and wakes take any time. Wakes get lost, reservations
//! lapse, connections break, waiters go away and holders die, each as often as the bounds allow.
//!
//! Each state is checked for whether the oldest waiter gets the lock if nothing goes wrong from
//! there on: everything in flight arrives, each holder releases the lock, and each woken client
//! makes an attempt; see [`World::settle`]. If nothing has gone wrong before, wakes alone must
//! suffice, or the short wait of a client to which some of the nodes have granted the lock.
//! Otherwise each waiter may try once by its own timer, the oldest first: then the oldest must win.
//! No reservation lapses meanwhile, so the result does not depend on that.

use std::sync::Arc;

use lockmod::engine::{
    Acquired, Answer, Attempt, Claim, Clocks, ConnectionId, Extended, Fence, Grant, Instant, Line,
    Lock, Millis, Mode, NodeSet, Promises, Pursuit, Queued, Quorum, RaiseAnswer, Step, Terms,
    Ticket, Token, Turn, UnixTime, Waiter, WaiterLimit, Waiting,
};
use stateright::{Model, Property};

use super::witness::Witnessed;

const NOW: Instant = Instant::from_millis(1_000_000);
const CLOCKS: Clocks = Clocks { now: NOW, wall: UnixTime::from_millis(1_000_000) };
const TTL: Millis = Millis::new(1_000);
const GRACE: Millis = Millis::new(100);

/// A rule that is dropped on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// A free lock is granted to any client that asks.
    NoReservation,
    /// Each node serves tickets in their order of arrival.
    OrderOfArrival,
    /// A reader is admitted alongside readers, regardless of waiters.
    ReadersPass,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) nodes: usize,
    /// How many clients come to acquire. One more has the lock from the start, on all nodes.
    pub(crate) clients: usize,
    /// Which of them ask as readers: bits.
    pub(crate) readers: u8,
    /// How many attempts each client makes in the search (not in [`World::settle`]).
    pub(crate) attempts: u8,
    pub(crate) lost_wakes: u8,
    pub(crate) lapses: u8,
    pub(crate) breaks: u8,
    pub(crate) cancels: u8,
    pub(crate) deaths: u8,
    /// Clients may stop waiting for an answer.
    pub(crate) gives_up: bool,
    /// Clients also make attempts by their timers, without having been woken.
    pub(crate) timers: bool,
    pub(crate) defect: Defect,
    /// Check this property only.
    pub(crate) only: Option<&'static str>,
}

impl Bounds {
    pub(crate) const fn of(nodes: usize, clients: usize) -> Bounds {
        Bounds {
            nodes,
            clients,
            readers: 0,
            attempts: 2,
            lost_wakes: 0,
            lapses: 0,
            breaks: 0,
            cancels: 0,
            deaths: 0,
            gives_up: false,
            timers: false,
            defect: Defect::None,
            only: None,
        }
    }
}

/// Interesting events that a search must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Witness {
    /// A quorum woke a waiter, and its attempt won.
    WonWhenWoken,
    /// An older ticket took over a reservation.
    TakenOver,
    /// A waiter woken by a quorum lost nevertheless.
    WokenInVain,
    /// A client won without waiting, while others waited for another quorum.
    WonAtOnce,
    /// Only a timer helped.
    HelpedByTimer,
    /// Several readers had the lock together.
    ReadTogether,
    /// A node woke several readers at once.
    WokenTogether,
}

impl Witness {
    const ALL: [Witness; 7] = [
        Witness::WonWhenWoken,
        Witness::TakenOver,
        Witness::WokenInVain,
        Witness::WonAtOnce,
        Witness::HelpedByTimer,
        Witness::ReadTogether,
        Witness::WokenTogether,
    ];
}

pub(crate) struct World {
    pub(crate) bounds: Bounds,
    quorum: Quorum,
    /// The number of clients, including the initial holder, which is the last.
    clients: usize,
    witnessed: Witnessed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    /// An ACQUIRE of an attempt.
    Acquire {
        in_line: bool,
    },
    /// An ACQUIRE that puts the ticket in line.
    Register,
    Raise(Fence),
    ReleaseIntoLine,
    Release,
}

/// A request in flight, with its token and the number of its client's last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    token: u8,
    attempt: u8,
    request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Granted(Fence),
    Held,
    Raised(Option<Fence>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    lock: Lock,
    promises: Promises,
    line: Line,
    /// How many tickets have arrived, for the order of arrival.
    arrivals: u8,
    /// The position of each client's ticket in that order.
    arrived: [u8; CLIENTS_MAX],
}

const CLIENTS_MAX: usize = 4;

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
    /// Attempts so far.
    attempts: u8,
    token: u8,
    /// Whether its ticket has been put in line.
    has_place: bool,
    /// The nodes to which the connection broke and came back during the current attempt.
    returned: NodeSet,
    was_woken: bool,
    is_dead: bool,
    /// The clients that were ahead when the current attempt began ([`World::is_ahead`]), and still
    /// are.
    ahead: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: Vec<Arc<Node>>,
    clients: Vec<Arc<Client>>,
    /// By client, then by node: each queue in order.
    requests: Vec<Vec<Sent>>,
    /// Wakes in flight, indexed likewise.
    wakes: u32,
    /// How many nodes have been touched by any event.
    touched: u8,
    lost_wakes: u8,
    lapses: u8,
    breaks: u8,
    cancels: u8,
    deaths: u8,
    /// Whether a client that should have waited has won.
    is_overtaken: bool,
    winners: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(usize),
    /// The next request of a client arrives at a node.
    Deliver(usize, usize),
    /// The wake of a client arrives from a node.
    Wake(usize, usize),
    LoseWake(usize, usize),
    GiveUp(usize),
    /// A waiter makes an attempt because a quorum has woken it, or some nodes have granted.
    Attempt(usize),
    /// A waiter makes an attempt because of its timer.
    Time(usize),
    Release(usize),
    /// A waiter goes away.
    Cancel(usize),
    /// A holder or a waiter dies silently.
    Die(usize),
    /// The lease of a dead client ends at a node.
    Expire(usize),
    /// The reservation of a client lapses at a node.
    Lapse(usize, usize),
    /// The connection of a client to a node breaks, and comes back.
    Break(usize, usize),
}

fn token_bytes(client: usize, token: u8) -> [u8; 1] {
    [client as u8 * 64 + token]
}

fn owner(token: Token<'_>) -> usize {
    usize::from(token.as_bytes()[0] / 64)
}

impl Node {
    fn new() -> Node {
        Node {
            lock: Lock::default(),
            promises: Promises::new(Fence::ZERO, None),
            line: Line::default(),
            arrivals: 0,
            arrived: [0; CLIENTS_MAX],
        }
    }

    fn holders(&self) -> impl Iterator<Item = usize> {
        self.lock.written_leases().map(|lease| owner(lease.token))
    }

    fn holds(&self, token: &[u8]) -> bool {
        Token::new(token, 1).is_ok_and(|token| self.lock.lease_of(token).is_some())
    }

    /// Puts readers' leases in the order of their tokens: equivalent locks become equal.
    fn settle(&mut self) {
        if self.lock.has_leases() && self.lock.mode().is_shared() {
            let mut leases: Vec<_> = self.lock.written_leases().collect();
            leases.sort_by_key(|lease| lease.token.as_bytes());
            let mut settled = Lock::free(self.lock.counter(), NOW);
            leases.into_iter().for_each(|lease| settled.apply(lease, NOW));
            self.lock = settled;
        }
    }

    /// The client's ticket, as this node orders it.
    fn ticket(&mut self, client: usize, defect: Defect) -> Ticket {
        if defect == Defect::OrderOfArrival && self.arrived[client] == 0 {
            self.arrivals += 1;
            self.arrived[client] = self.arrivals;
        }
        self.known_ticket(client, defect)
    }

    fn known_ticket(&self, client: usize, defect: Defect) -> Ticket {
        let start = match defect {
            Defect::OrderOfArrival => u64::from(self.arrived[client]).max(1),
            Defect::None | Defect::NoReservation | Defect::ReadersPass => 1 + client as u64,
        };
        Ticket::new(start, &[b'a' + client as u8]).expect("a ticket")
    }

    /// Whether the client's ticket stands in line here.
    fn has(&self, client: usize, defect: Defect) -> bool {
        !self.line.is_empty() && self.line.has(&Waiter::Ticket(self.known_ticket(client, defect)))
    }

    /// The clients for which the lock is reserved: bits.
    fn reserved_for(&self) -> u8 {
        self.line.reserved_for().map(client_of).fold(0, |bits, client| bits | 1 << client)
    }

    fn serve(
        &mut self,
        asked: (usize, Mode),
        token: u8,
        request: Request,
        defect: Defect,
    ) -> Reply {
        let reply = self.decide(asked, token, request, defect);
        self.settle();
        reply
    }

    fn decide(
        &mut self,
        (client, mode): (usize, Mode),
        token: u8,
        request: Request,
        defect: Defect,
    ) -> Reply {
        let bytes = token_bytes(client, token);
        let token = Token::new(&bytes, 1).expect("a token");
        let claim = Claim { token, ttl: TTL, mode };
        let ticket = match request {
            Request::Acquire { in_line: true } | Request::Register | Request::ReleaseIntoLine => {
                self.ticket(client, defect)
            }
            Request::Acquire { in_line: false } | Request::Raise(_) | Request::Release => {
                Ticket::new(1, b"none").expect("a ticket")
            }
        };
        let queued = Queued {
            ticket,
            channel: b"c",
            deadline: NOW.after(TTL),
            connection: ConnectionId(client as u64),
            mode,
            limit: WaiterLimit { waiters: 0, max: 1 },
            direct: None,
        };
        let Node { lock, promises, line, .. } = self;
        match request {
            Request::Acquire { .. } | Request::Register => {
                let is_plain = request == Request::Acquire { in_line: false };
                let queued = (!is_plain).then_some(&queued);
                let barges = match defect {
                    Defect::NoReservation => !lock.is_held(NOW),
                    Defect::ReadersPass => {
                        mode.is_shared() && lock.is_held(NOW) && lock.mode().is_shared()
                    }
                    Defect::None | Defect::OrderOfArrival => false,
                };
                let outcome = if barges {
                    let mut nobody = Line::default();
                    let outcome =
                        promises.acquire_in_line(lock, &mut nobody, claim, b"", None, NOW);
                    if let Some(queued) = queued {
                        line.leave(&Waiter::Ticket(queued.ticket.clone()));
                    }
                    line.taken(mode);
                    outcome
                } else {
                    promises.acquire_in_line(lock, line, claim, b"", queued, NOW)
                };
                match outcome.expect("neither quarantine nor disk").0 {
                    Acquired::Granted { fence, .. } | Acquired::Again { fence, .. } => {
                        Reply::Granted(fence)
                    }
                    Acquired::Held => Reply::Held,
                }
            }
            Request::Raise(fence) => {
                match promises.raise(lock, token, fence, CLOCKS).expect("no disk") {
                    Extended::Extended { counter, .. } => Reply::Raised(Some(counter)),
                    Extended::HeldByAnother | Extended::NotHeld => Reply::Raised(None),
                }
            }
            Request::ReleaseIntoLine => {
                let _ = promises.release_in_line(lock, line, token, Some(&queued), NOW);
                Reply::Held
            }
            Request::Release => {
                let _ = promises.release_in_line(lock, line, token, None, NOW);
                Reply::Held
            }
        }
    }

    /// Serves the line as long as the first waiter may have the lock. Returns the clients to wake.
    fn serve_line(&mut self) -> Vec<usize> {
        let mut woken = Vec::new();
        loop {
            let mode = self.lock.mode();
            let is_kept_out = |first: Mode| self.lock.is_held(NOW) && first.conflicts_with(mode);
            if self.line.first_mode().is_none_or(is_kept_out) {
                self.line.taken(mode);
                return woken;
            }
            match self.line.serve(NOW, GRACE, usize::MAX) {
                Turn::Wake { ticket, .. } => woken.push(client_of(ticket)),
                Turn::Nobody | Turn::Reserved => return woken,
                Turn::Grant(_) => unreachable!("nobody blocks here"),
            }
        }
    }
}

fn client_of(ticket: &Ticket) -> usize {
    usize::from(ticket.to_bytes().last().expect("an id") - b'a')
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

    /// How a client asks for the lock.
    fn mode(&self, client: usize) -> Mode {
        if self.bounds.readers >> client & 1 != 0 { Mode::Shared } else { Mode::Exclusive }
    }

    fn conflict(&self, one: usize, other: usize) -> bool {
        self.mode(one).conflicts_with(self.mode(other))
    }

    fn pair(&self, client: usize, node: usize) -> usize {
        client * self.bounds.nodes + node
    }

    /// Whether the client's ticket stands in line at a quorum.
    fn is_in_line(&self, state: &State, client: usize) -> bool {
        let has = |node: &&Arc<Node>| node.has(client, self.bounds.defect);
        state.nodes.iter().filter(has).count() >= self.quorum.needed()
    }

    /// Whether the ticket of `other` stands in line at a quorum of nodes that have not granted the
    /// claim of `client`. (A node may have granted its registration before the other arrived.)
    fn is_ahead(&self, state: &State, other: usize, client: usize) -> bool {
        let me = &state.clients[client];
        let claim = token_bytes(client, me.token);
        let has_granted = |node: &Node| !me.pursuit.is_released() && node.holds(&claim);
        let has = |node: &&Arc<Node>| node.has(other, self.bounds.defect) && !has_granted(node);
        state.nodes.iter().filter(has).count() >= self.quorum.needed()
    }

    fn client<'s>(&self, state: &'s mut State, client: usize) -> &'s mut Client {
        Arc::make_mut(&mut state.clients[client])
    }

    fn send(&self, state: &mut State, client: usize, request: Request, nodes: NodeSet) {
        let Client { token, attempts: attempt, .. } = *state.clients[client];
        for node in nodes.iter() {
            state.requests[self.pair(client, node)].push(Sent { token, attempt, request });
        }
    }

    fn attempt(&self, state: &mut State, client: usize) {
        let ahead = (0..self.clients)
            .filter(|other| *other != client && self.is_ahead(state, *other, client))
            .filter(|other| matches!(state.clients[*other].phase, Phase::Waiting))
            .filter(|other| !state.clients[client].has_place || *other < client)
            .filter(|other| self.conflict(client, *other))
            .fold(0, |bits, other| bits | 1 << other);
        let (quorum, mode) = (self.quorum, self.mode(client));
        let me = self.client(state, client);
        me.ahead = ahead;
        me.was_woken = me.waiting.is_first();
        me.waiting.begin();
        me.attempts += 1;
        if me.pursuit.is_released() || me.token == 0 {
            me.token += 1;
            me.pursuit.change_token();
        }
        me.returned = NodeSet::EMPTY;
        let attempt = Attempt::new(quorum, Terms::new(TTL), NOW);
        me.phase = Phase::Attempting(attempt.asking(mode));
        let in_line = me.has_place;
        self.send(state, client, Request::Acquire { in_line }, quorum.all());
    }

    fn deliver(&self, state: &mut State, client: usize, node: usize) {
        state.touched = state.touched.max(node as u8 + 1);
        let pair = self.pair(client, node);
        let sent = state.requests[pair].remove(0);
        let request = sent.request;
        let served = Arc::make_mut(&mut state.nodes[node]);
        let reserved_before = served.reserved_for();
        let asked = (client, self.mode(client));
        let reply = served.serve(asked, sent.token, request, self.bounds.defect);
        self.serve_line(state, node, reserved_before);
        if matches!(request, Request::Acquire { in_line: true } | Request::Register) {
            // The reply outdates what was published before it.
            if state.nodes[node].reserved_for() >> client & 1 == 0 {
                state.wakes &= !(1 << pair);
            }
        }
        self.answer(state, client, node, (sent, reply));
    }

    /// Lets a node serve its line, and sends the resulting wakes.
    fn serve_line(&self, state: &mut State, node: usize, reserved_before: u8) {
        let woken = Arc::make_mut(&mut state.nodes[node]).serve_line();
        if woken.len() > 1 {
            self.saw(Witness::WokenTogether);
        }
        for woken in woken {
            if reserved_before >> woken > 1 {
                self.saw(Witness::TakenOver);
            }
            if !state.clients[woken].is_dead {
                state.wakes |= 1 << self.pair(woken, node);
            }
        }
    }

    fn answer(&self, state: &mut State, client: usize, node: usize, (sent, reply): (Sent, Reply)) {
        let me = self.client(state, client);
        if (sent.token, sent.attempt) != (me.token, me.attempts) {
            return;
        }
        match (&mut me.phase, sent.request) {
            (Phase::Attempting(attempt), Request::Acquire { .. } | Request::Raise(_)) => {
                let step = match reply {
                    Reply::Granted(fence) => attempt.answer(node, Answer::Granted(fence), NOW),
                    Reply::Held => attempt.answer(node, Answer::Refused, NOW),
                    Reply::Raised(Some(at)) => {
                        attempt.raise_answer(node, RaiseAnswer::Raised(at), NOW)
                    }
                    Reply::Raised(None) => attempt.raise_answer(node, RaiseAnswer::Refused, NOW),
                };
                if !matches!(reply, Reply::Raised(_)) {
                    me.waiting.answered(node);
                }
                self.follow(state, client, step, NodeSet::EMPTY);
            }
            (Phase::Waiting, Request::ReleaseIntoLine) => me.waiting.joined(node, NOW, 0),
            (Phase::Waiting, Request::Acquire { in_line: true } | Request::Register)
                if !me.pursuit.is_released() =>
            {
                me.waiting.answered(node);
                me.waiting.joined(node, NOW, 0);
                match (reply, sent.request) {
                    (Reply::Granted(_), Request::Register) => me.waiting.woken(node, NOW),
                    // Other clients won: the attempt is lost.
                    (Reply::Granted(_), _) => self.give_back(state, client),
                    (Reply::Held | Reply::Raised(_), _) => {}
                }
            }
            (Phase::Attempting(_) | Phase::Waiting, _) => {}
            (Phase::Idle | Phase::Holding | Phase::Done, _) => {}
        }
    }

    fn follow(&self, state: &mut State, client: usize, step: Step, silent: NodeSet) {
        match step {
            Step::Wait => {}
            Step::Raise { fence, nodes } => self.send(state, client, Request::Raise(fence), nodes),
            Step::Won(grant) => self.win(state, client, grant),
            Step::Lost(_) => self.lose(state, client, silent),
        }
    }

    /// Handles a lost attempt: what `Waiter::lost` of the client does, and what it learns next.
    fn lose(&self, state: &mut State, client: usize, silent: NodeSet) {
        let me = self.client(state, client);
        let Phase::Attempting(attempt) = &me.phase else { return };
        let has_part = !attempt.granted().is_empty();
        if me.was_woken {
            self.saw(Witness::WokenInVain);
        }
        let had_place = std::mem::replace(&mut me.has_place, true);
        (me.phase, me.ahead) = (Phase::Waiting, 0);
        me.waiting.lost(silent, NOW, 0);
        let returned = std::mem::take(&mut me.returned);
        if has_part {
            self.give_back(state, client);
        } else if !had_place {
            self.send(state, client, Request::Register, self.quorum.all());
        }
        for node in returned.iter() {
            self.put_back(state, client, node);
        }
    }

    /// Releases the token at all nodes, and stays in line.
    fn give_back(&self, state: &mut State, client: usize) {
        self.client(state, client).pursuit.release();
        self.send(state, client, Request::ReleaseIntoLine, self.quorum.all());
    }

    /// Gets in line again at a node whose connection is back.
    fn put_back(&self, state: &mut State, client: usize, node: usize) {
        let me = self.client(state, client);
        me.waiting.out_of_line(node, NOW, 0);
        let request = match me.pursuit.is_released() {
            true => Request::ReleaseIntoLine,
            false => Request::Register,
        };
        self.send(state, client, request, NodeSet::of(node));
    }

    fn win(&self, state: &mut State, client: usize, grant: Grant) {
        self.send(state, client, Request::Raise(grant.fence), grant.laggards);
        let ahead = state.clients[client].ahead;
        let is_waiting = |other: usize| matches!(state.clients[other].phase, Phase::Waiting);
        if (0..self.clients).any(|other| ahead & 1 << other != 0 && is_waiting(other)) {
            state.is_overtaken = true;
        }
        let others = (0..self.clients).any(|other| other != client && is_waiting(other));
        let is_read_by_others = state.clients.iter().any(|other| other.phase == Phase::Holding);
        let me = self.client(state, client);
        if me.was_woken {
            self.saw(Witness::WonWhenWoken);
        }
        if !me.has_place && others {
            self.saw(Witness::WonAtOnce);
        }
        if is_read_by_others {
            self.saw(Witness::ReadTogether);
        }
        me.phase = Phase::Holding;
        me.ahead = 0;
        state.winners |= 1 << client;
    }

    /// Stops counting this client as overtaken: it has lost a place.
    fn loses_place(&self, state: &mut State, client: usize) {
        for other in 0..self.clients {
            if state.clients[other].ahead & 1 << client != 0 {
                self.client(state, other).ahead &= !(1 << client);
            }
        }
    }

    fn release(&self, state: &mut State, client: usize) {
        self.send(state, client, Request::Release, self.quorum.all());
        self.finish(state, client);
    }

    fn finish(&self, state: &mut State, client: usize) {
        let quorum = self.quorum;
        let me = self.client(state, client);
        me.phase = Phase::Done;
        me.waiting = Waiting::new(quorum, TTL);
        me.pursuit = Pursuit::new(quorum, Terms::new(TTL));
        (me.was_woken, me.ahead, me.returned) = (false, 0, NodeSet::EMPTY);
        for node in 0..self.bounds.nodes {
            state.wakes &= !(1 << self.pair(client, node));
        }
    }

    /// Drops a client's connection to a node, with everything in flight and its place in line.
    fn disconnect(&self, state: &mut State, client: usize, node: usize) {
        state.touched = state.touched.max(node as u8 + 1);
        let pair = self.pair(client, node);
        state.requests[pair].clear();
        state.wakes &= !(1 << pair);
        let served = Arc::make_mut(&mut state.nodes[node]);
        let reserved_before = served.reserved_for();
        served.line.leave_by_connection(ConnectionId(client as u64), usize::MAX);
        self.serve_line(state, node, reserved_before);
        self.loses_place(state, client);
    }

    fn reconnect(&self, state: &mut State, client: usize, node: usize) {
        let pair = self.pair(client, node);
        let lost = state.requests[pair].clone();
        self.disconnect(state, client, node);
        // Releases are repeated, without the part that belonged to the connection.
        let repeated = lost.iter().filter_map(|sent| match sent.request {
            Request::Release | Request::ReleaseIntoLine => {
                Some(Sent { request: Request::Release, ..*sent })
            }
            Request::Acquire { .. } | Request::Register | Request::Raise(_) => None,
        });
        state.requests[pair] = repeated.collect();
        let me = self.client(state, client);
        match &mut me.phase {
            Phase::Waiting => self.put_back(state, client, node),
            Phase::Attempting(attempt) => {
                let present = me.attempts;
                let is_acquire = |sent: &Sent| {
                    sent.attempt == present && matches!(sent.request, Request::Acquire { .. })
                };
                let step = if lost.iter().any(is_acquire) {
                    attempt.answer(node, Answer::Unknown, NOW)
                } else {
                    attempt.raise_answer(node, RaiseAnswer::Unknown, NOW)
                };
                // It learns of the new connection as soon as it waits.
                me.returned.insert(node);
                self.follow(state, client, step, NodeSet::of(node));
            }
            Phase::Idle | Phase::Holding | Phase::Done => {}
        }
    }

    fn lapse(&self, state: &mut State, node: usize, client: usize) {
        let served = Arc::make_mut(&mut state.nodes[node]);
        let ticket = served.known_ticket(client, self.bounds.defect);
        served.line.leave(&Waiter::Ticket(ticket));
        self.loses_place(state, client);
        self.serve_line(state, node, 0);
    }

    fn die(&self, state: &mut State, client: usize) {
        self.client(state, client).is_dead = true;
        for node in 0..self.bounds.nodes {
            self.disconnect(state, client, node);
        }
        self.finish(state, client);
    }

    fn expire(&self, state: &mut State, node: usize) {
        let is_dead = |client: usize| state.clients[client].is_dead;
        let leases = state.nodes[node].lock.written_leases();
        let dead = leases.filter(|lease| is_dead(owner(lease.token)));
        let dead: Vec<_> = dead.map(|lease| lease.token.as_bytes().to_vec()).collect();
        let served = Arc::make_mut(&mut state.nodes[node]);
        for token in dead {
            let token = Token::new(&token, 1).expect("a token");
            served.lock.apply_release(token, NOW);
        }
        served.settle();
        self.serve_line(state, node, 0);
    }

    /// Immediately executes requests that can no longer change anything, because their token has
    /// nothing there.
    fn tidy(&self, state: &mut State) {
        for client in 0..self.clients {
            for node in 0..self.bounds.nodes {
                let pair = self.pair(client, node);
                while let Some(sent) = state.requests[pair].first() {
                    let at = &state.nodes[node];
                    let holds = at.holds(&token_bytes(client, sent.token));
                    let me = &state.clients[client];
                    let is_idle = match sent.request {
                        Request::Release => !holds && !at.has(client, self.bounds.defect),
                        Request::Raise(_) => {
                            !holds && (me.attempts != sent.attempt || me.phase == Phase::Done)
                        }
                        Request::Acquire { .. } | Request::Register | Request::ReleaseIntoLine => {
                            false
                        }
                    };
                    if !is_idle {
                        break;
                    }
                    state.requests[pair].remove(0);
                }
            }
        }
    }

    /// The nodes to which a request of the current attempt is still in flight.
    fn unanswered(&self, state: &State, client: usize) -> NodeSet {
        let present = state.clients[client].attempts;
        let is_asked = |sent: &Sent| {
            sent.attempt == present && matches!(sent.request, Request::Acquire { .. })
        };
        let is_silent =
            |node: &usize| state.requests[self.pair(client, *node)].iter().any(is_asked);
        let nodes = (0..self.bounds.nodes).filter(is_silent).map(NodeSet::of);
        nodes.fold(NodeSet::EMPTY, NodeSet::or)
    }

    fn is_orphaned(&self, state: &State, node: usize) -> bool {
        state.nodes[node].holders().any(|holder| state.clients[holder].is_dead)
    }
}

// ------------------------------------------------------------------- what must come of each state

impl World {
    /// Why the oldest waiter may fail to get the lock from this state.
    pub(crate) fn complaint(&self, state: &State) -> Option<&'static str> {
        self.settle(state, false).and(self.settle(state, true)).err()
    }

    /// Checks that the oldest waiter gets the lock, and then the next, if nothing goes wrong from
    /// here on. `backwards` reverses the order of events.
    fn settle(&self, state: &State, backwards: bool) -> Result<(), &'static str> {
        let went_well = state.lost_wakes + state.lapses + state.breaks + state.deaths == 0;
        let mut state = state.clone();
        self.deliver_all(&mut state, backwards);
        for _ in 0..self.clients * 2 {
            let holder =
                (0..self.clients).find(|client| state.clients[*client].phase == Phase::Holding);
            if let Some(holder) = holder {
                let first = self.first_in_line(&state);
                let winners = state.winners;
                self.release(&mut state, holder);
                self.deliver_all(&mut state, backwards);
                if first.is_some_and(|first| self.is_passed_over(&state, first, winners)) {
                    return Err("a younger one was woken");
                }
                continue;
            }
            let is_waiting = |client: &usize| state.clients[*client].phase == Phase::Waiting;
            let Some(oldest) = (0..self.clients).find(is_waiting) else { return Ok(()) };
            if went_well && !self.bounds.timers && !self.bounds.gives_up {
                return Err("nothing went wrong, and a timer was needed");
            }
            self.attempt(&mut state, oldest);
            self.deliver_all(&mut state, backwards);
            if state.clients[oldest].phase != Phase::Holding {
                return Err("the oldest lost");
            }
            self.saw(Witness::HelpedByTimer);
        }
        Ok(())
    }

    /// The oldest waiter, if it stands in line at a quorum.
    fn first_in_line(&self, state: &State) -> Option<usize> {
        let is_waiting = |client: &usize| state.clients[*client].phase == Phase::Waiting;
        (0..self.clients).find(is_waiting).filter(|first| self.is_in_line(state, *first))
    }

    /// Whether another client has won since. If `first` is a reader, other readers may win
    /// alongside it.
    fn is_passed_over(&self, state: &State, first: usize, winners: u8) -> bool {
        let new = state.winners & !winners;
        let conflicts = |client: usize| client != first && self.conflict(client, first);
        let is_beside =
            (0..self.clients).all(|client| new >> client & 1 == 0 || !conflicts(client));
        new != 0 && !(new >> first & 1 != 0 && is_beside)
    }

    /// Delivers everything in flight, with all its consequences.
    fn deliver_all(&self, state: &mut State, backwards: bool) {
        let turn = |index: usize, count: usize| if backwards { count - 1 - index } else { index };
        loop {
            let mut has_moved = false;
            for client in 0..self.clients {
                let client = turn(client, self.clients);
                for node in 0..self.bounds.nodes {
                    let node = turn(node, self.bounds.nodes);
                    let pair = self.pair(client, node);
                    if !state.requests[pair].is_empty() {
                        has_moved = true;
                        self.deliver(state, client, node);
                    }
                    if state.wakes & 1 << pair != 0 {
                        has_moved = true;
                        self.wake(state, client, node);
                    }
                    if self.is_orphaned(state, node) {
                        has_moved = true;
                        self.expire(state, node);
                    }
                }
                let me = &state.clients[client];
                if me.phase == Phase::Waiting && me.waiting.is_first() {
                    has_moved = true;
                    self.attempt(state, client);
                }
            }
            if has_moved {
                continue;
            }
            match (0..self.clients).find(|client| self.hurries(state, *client)) {
                Some(client) => self.attempt(state, client),
                None => return,
            }
        }
    }

    /// Whether a node has granted its registration and the client knows it, so that it does not
    /// wait long for the rest of a quorum.
    fn hurries(&self, state: &State, client: usize) -> bool {
        let me = &state.clients[client];
        let (told, token) = (me.waiting.clone().begin(), token_bytes(client, me.token));
        let has_granted = |node: usize| told.has(node) && state.nodes[node].holds(&token);
        me.phase == Phase::Waiting && (0..self.bounds.nodes).any(has_granted)
    }

    fn wake(&self, state: &mut State, client: usize, node: usize) {
        state.wakes &= !(1 << self.pair(client, node));
        self.client(state, client).waiting.woken(node, NOW);
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
            attempts: 0,
            token: 0,
            has_place: false,
            returned: NodeSet::EMPTY,
            was_woken: false,
            is_dead: false,
            ahead: 0,
        };
        let mut node = Node::new();
        let asked = (clients, self.mode(clients));
        node.serve(asked, 1, Request::Acquire { in_line: false }, Defect::None);
        let node = Arc::new(node);
        let (attempts, token) = (1, 1);
        let holder = Client { phase: Phase::Holding, attempts, token, ..client.clone() };
        let client = Arc::new(client);
        let mut all: Vec<_> = (0..clients).map(|_| Arc::clone(&client)).collect();
        all.push(Arc::new(holder));
        vec![State {
            nodes: (0..nodes).map(|_| Arc::clone(&node)).collect(),
            clients: all,
            requests: vec![Vec::new(); nodes * (clients + 1)],
            wakes: 0,
            touched: 0,
            lost_wakes: 0,
            lapses: 0,
            breaks: 0,
            cancels: 0,
            deaths: 0,
            is_overtaken: false,
            winners: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let nodes = 0..bounds.nodes.min(usize::from(state.touched) + 1);
        for (client, me) in state.clients.iter().enumerate() {
            let has_attempts = me.attempts < bounds.attempts;
            match &me.phase {
                Phase::Idle => actions.push(Action::Begin(client)),
                Phase::Attempting(_) => {
                    if bounds.gives_up {
                        actions.push(Action::GiveUp(client));
                    }
                }
                Phase::Waiting
                    if has_attempts && (me.waiting.is_first() || self.hurries(state, client)) =>
                {
                    actions.push(Action::Attempt(client));
                }
                Phase::Waiting if has_attempts && bounds.timers => {
                    actions.push(Action::Time(client));
                }
                Phase::Holding => actions.push(Action::Release(client)),
                Phase::Waiting | Phase::Done => {}
            }
            let is_there = matches!(me.phase, Phase::Attempting(_) | Phase::Waiting);
            if is_there && state.cancels < bounds.cancels {
                actions.push(Action::Cancel(client));
            }
            if (is_there || me.phase == Phase::Holding) && state.deaths < bounds.deaths {
                actions.push(Action::Die(client));
            }
            for node in nodes.clone() {
                let pair = self.pair(client, node);
                if !state.requests[pair].is_empty() {
                    actions.push(Action::Deliver(client, node));
                }
                if state.wakes & 1 << pair != 0 {
                    actions.push(Action::Wake(client, node));
                    if state.lost_wakes < bounds.lost_wakes {
                        actions.push(Action::LoseWake(client, node));
                    }
                }
                if state.breaks < bounds.breaks && is_there {
                    actions.push(Action::Break(client, node));
                }
            }
        }
        for node in nodes {
            if self.is_orphaned(state, node) {
                actions.push(Action::Expire(node));
            }
            if state.lapses < bounds.lapses {
                let reserved = state.nodes[node].reserved_for();
                let those = (0..self.clients).filter(|client| reserved >> client & 1 != 0);
                actions.extend(those.map(|client| Action::Lapse(node, client)));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(client) | Action::Attempt(client) | Action::Time(client) => {
                self.attempt(&mut state, client);
            }
            Action::Deliver(client, node) => self.deliver(&mut state, client, node),
            Action::Wake(client, node) => self.wake(&mut state, client, node),
            Action::LoseWake(client, node) => {
                state.lost_wakes += 1;
                state.wakes &= !(1 << self.pair(client, node));
            }
            Action::GiveUp(client) => {
                let Phase::Attempting(attempt) =
                    &mut Arc::make_mut(&mut state.clients[client]).phase
                else {
                    return None;
                };
                let step = attempt.time_out(NOW);
                let silent = self.unanswered(&state, client);
                self.follow(&mut state, client, step, silent);
            }
            Action::Release(client) => self.release(&mut state, client),
            Action::Cancel(client) => {
                state.cancels += 1;
                self.release(&mut state, client);
            }
            Action::Die(client) => {
                state.deaths += 1;
                self.die(&mut state, client);
            }
            Action::Expire(node) => self.expire(&mut state, node),
            Action::Lapse(node, client) => {
                state.lapses += 1;
                self.lapse(&mut state, node, client);
            }
            Action::Break(client, node) => {
                state.breaks += 1;
                self.reconnect(&mut state, client, node);
            }
        }
        self.tidy(&mut state);
        if state == *last { None } else { Some(state) }
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut properties = vec![
            Property::always("mutual exclusion", |world: &World, state: &State| {
                let is_holding = |client: &usize| state.clients[*client].phase == Phase::Holding;
                let holders = || (0..world.clients).filter(is_holding);
                holders().count() <= 1 || holders().all(|client| world.mode(client).is_shared())
            }),
            Property::always("nobody overtakes who stands in line", |_, state: &State| {
                !state.is_overtaken
            }),
            Property::always("the oldest gets the lock", |world: &World, state: &State| {
                world.settle(state, false).is_ok() && world.settle(state, true).is_ok()
            }),
        ];
        properties.retain(|property| self.bounds.only.is_none_or(|only| only == property.name));
        properties
    }
}
