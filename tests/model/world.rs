//! The world around nodes and clients: the network, crashes, time, and what must be true of it all.
//!
//! Time is abstract. The only assumption is what drift and "measured from before the first send"
//! provide: a node's lease originates from a request of some round, and may end only after that
//! round's window has closed at the client. Everything else may happen in any order.
//!
//! Two symmetries are broken to reduce the search: untouched nodes are equivalent, and so are
//! clients that have not begun; the search always takes the first of them.

#[path = "tie.rs"]
mod tie;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use lockmod::engine::{Fence, Millis, Mode, NodeSet, Quorum, Token};
use stateright::{Model, Property};

use self::tie::{Served, Tied};
use super::client::{Client, Phase, Ttls, Wish};
use super::node::{Node, Origin, TTL};
use super::witness::Witnessed;
use crate::proof::system::Action as Proved;

/// One acquisition, and its token: the client, and the index among its acquisitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(u8);

const ACQUISITIONS_MAX: u8 = 2;

impl Id {
    fn of(client: usize, acquisition: u8) -> Id {
        Id(client as u8 * ACQUISITIONS_MAX + acquisition)
    }

    pub(crate) fn of_token(token: Token<'_>) -> Id {
        Id(token.as_bytes()[0] - b'A')
    }

    pub(crate) fn token(self) -> [u8; 1] {
        [b'A' + self.0]
    }

    fn client(self) -> usize {
        usize::from(self.0 / ACQUISITIONS_MAX)
    }

    fn bit(self) -> u8 {
        1 << self.0
    }
}

/// A set of acquisitions: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids(u8);

impl Ids {
    pub(crate) const NONE: Ids = Ids(0);

    pub(crate) fn insert(&mut self, id: Id) {
        self.0 |= id.bit();
    }

    pub(crate) fn has(self, id: Id) -> bool {
        self.0 & id.bit() != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn without(self, others: Ids) -> Ids {
        Ids(self.0 & !others.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Id> {
        (0..u8::BITS as u8).map(Id).filter(move |id| self.has(*id))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Acquire(Mode),
    Raise(Fence),
    /// An EXTEND as the client sends it, with its fence.
    Extend(u8, Fence, Mode),
    Repair(u8, Fence, Mode),
    Release,
}

impl Request {
    /// The round that it belongs to.
    pub(crate) const fn round(self) -> u8 {
        match self {
            Request::Acquire(_) | Request::Raise(_) | Request::Release => 0,
            Request::Extend(round, ..) | Request::Repair(round, ..) => round,
        }
    }

    /// The mode in which it asks for the lock.
    pub(crate) const fn mode(self) -> Mode {
        match self {
            Request::Acquire(mode) | Request::Extend(.., mode) | Request::Repair(.., mode) => mode,
            Request::Raise(_) | Request::Release => Mode::Exclusive,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted(Fence),
    Refused,
    Raised(Fence),
    NotRaised,
    Extended(u8),
    HeldByAnother(u8),
    NotHeld(u8),
    Quarantined(u8),
    /// The lease is extended but does not count.
    Provisional(u8),
}

/// A rule that is dropped on purpose. The search must detect each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// Differing grants from a quorum count as a win immediately.
    NoRaiseRound,
    /// A grant above the raise target counts as if it were equal to it.
    LargerStragglerCounts,
    /// A raise does not look at the token.
    UnconditionalRaise,
    /// A restarted node grants at once.
    NoQuarantine,
    /// A restarted node starts at fence zero.
    NoFenceCeiling,
    /// A raise goes past the ceiling on disk.
    RaiseWithoutPersisting,
    /// More than half of the nodes that answered count as a quorum.
    QuorumOfReachable,
    /// Half of the nodes count as a quorum.
    TieIsWon,
    /// The client's clock is stepped back before each window closes.
    ClientWallClock,
    /// A node's clock is stepped forward, so that a lease ends early.
    NodeWallClock,
    /// A promoted replica continues its fences from the last one that it knows.
    PromotionWithoutJump,
    /// Requests overtake each other on a connection.
    Overtaking,
    /// A node reports that a provisional lease counts.
    ProvisionalCounts,
    /// An expired lease comes back with the data.
    LooselyDated,
    /// A lease that arrives from elsewhere at a node in quarantine counts there.
    ArrivalCounts,
    /// A writer that has become a reader and rejoins is taken to have stored the fence that it is
    /// given.
    RejoiningStores,
    /// A raise that finds a larger counter counts for a writer too.
    WritersAcceptMore,
    /// A writer asks the nodes to admit readers before it becomes a reader itself.
    DowngradesNodesFirst,
}

/// The ttls that the clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    Same,
    /// The first client asks for a quarter of the others' ttl.
    Mixed,
    /// Renewals ask for twice as much.
    LongerRenewals,
    /// Renewals ask for half as much.
    ShorterRenewals,
}

impl Lengths {
    fn of(self, client: usize) -> Ttls {
        let part = |of: u64| Millis::new(TTL.get() * of / 4);
        match self {
            Lengths::Mixed if client == 0 => Ttls { acquire: part(1), renew: part(1) },
            Lengths::Same | Lengths::Mixed => Ttls::SAME,
            Lengths::LongerRenewals => Ttls { renew: part(8), ..Ttls::SAME },
            Lengths::ShorterRenewals => Ttls { renew: part(2), ..Ttls::SAME },
        }
    }
}

/// How requests travel. Any of them may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// Those of one client to one node arrive in order.
    InOrder,
    /// They arrive in any order, and this many of them more than once.
    AnyOrder { duplicates: u8 },
}

/// How replies travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    /// They take any time, perhaps forever: anything may happen meanwhile.
    InFlight,
    /// They arrive immediately or never: a smaller space, in which a client sees the nodes' answers
    /// in the order of their decisions.
    AtOnce,
    /// They arrive immediately; only requests are lost.
    Always,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// Its reply is lost.
    Unanswered,
    /// It will arrive again.
    Repeated,
}

/// What happened before the search starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Fresh,
    /// An acquisition that reached all nodes but the first ended long ago.
    Uneven,
    /// The first node lost everything in a crash, long ago: its floor is far above the others'.
    OneFloor,
}

/// How often each event may happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) start: Start,
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    /// Which of them ask as readers: bits.
    pub(crate) readers: u8,
    /// How many holders become readers.
    pub(crate) downgrades: u8,
    /// How many acquisitions each client makes.
    pub(crate) acquisitions: u8,
    /// How many renewals each acquisition has.
    pub(crate) renewals: u8,
    /// How many clients renew: the first ones.
    pub(crate) renewers: usize,
    /// Renewals ask for a repair everywhere, as a client without records might.
    pub(crate) repairs_everywhere: bool,
    pub(crate) network: Network,
    /// An ACQUIRE that has not arrived by the time its attempt wins never arrives.
    pub(crate) no_stragglers: bool,
    pub(crate) replies: Replies,
    /// How many ACQUIREs may arrive after their acquisition is over; `None`: all that were sent.
    pub(crate) zombies: Option<u8>,
    pub(crate) crashes: u8,
    pub(crate) saves: u8,
    /// How many leases are copied from other nodes to nodes in quarantine.
    pub(crate) arrivals: u8,
    /// Only nodes that have saved crash.
    pub(crate) keeps_data: bool,
    /// Instead of a crash, a replica is promoted, with an earlier data set.
    pub(crate) promotes: bool,
    /// Clients never look at their clocks: they are promised fences, but not mutual exclusion.
    pub(crate) ignores_clocks: bool,
    pub(crate) has_store: bool,
    pub(crate) lengths: Lengths,
    /// States that differ only in the proof's history are distinct.
    pub(crate) has_history: bool,
    pub(crate) defect: Defect,
    /// Check this property only.
    pub(crate) only: Option<&'static str>,
}

impl Bounds {
    pub(crate) const fn of(nodes: usize, clients: usize) -> Bounds {
        Bounds {
            start: Start::Fresh,
            nodes,
            clients,
            readers: 0,
            downgrades: 0,
            acquisitions: 1,
            renewals: 0,
            renewers: clients,
            repairs_everywhere: false,
            network: Network::InOrder,
            no_stragglers: false,
            replies: Replies::InFlight,
            zombies: None,
            crashes: 0,
            saves: 0,
            arrivals: 0,
            keeps_data: false,
            promotes: false,
            ignores_clocks: false,
            has_store: false,
            lengths: Lengths::Same,
            has_history: false,
            defect: Defect::None,
            only: None,
        }
    }
}

/// Interesting events that a search must reach; otherwise it has proved little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Witness {
    WonInOneRound,
    WonByRaise,
    SplitVote,
    TooLate,
    ZombieGrant,
    WonOverALapsedLease,
    HolderRaisedLaggards,
    Renewed,
    RenewedPastTheFirstWindow,
    Repaired,
    CrashUnderAHolder,
    RefusedInQuarantine,
    GrantAboveTheOldCeiling,
    ReleasedLeaseLoaded,
    ExtendedInQuarantine,
    StoreRefusedAnOldWrite,
    Arrived,
    ReadTogether,
    ReadBesideAFormerWriter,
    RepairedBesideAReader,
    StoreRefusedALateRead,
}

impl Witness {
    const ALL: [Witness; 21] = [
        Witness::WonInOneRound,
        Witness::WonByRaise,
        Witness::SplitVote,
        Witness::TooLate,
        Witness::ZombieGrant,
        Witness::WonOverALapsedLease,
        Witness::HolderRaisedLaggards,
        Witness::Renewed,
        Witness::RenewedPastTheFirstWindow,
        Witness::Repaired,
        Witness::CrashUnderAHolder,
        Witness::RefusedInQuarantine,
        Witness::GrantAboveTheOldCeiling,
        Witness::ReleasedLeaseLoaded,
        Witness::ExtendedInQuarantine,
        Witness::StoreRefusedAnOldWrite,
        Witness::Arrived,
        Witness::ReadTogether,
        Witness::ReadBesideAFormerWriter,
        Witness::RepairedBesideAReader,
        Witness::StoreRefusedALateRead,
    ];
}

pub(crate) struct World {
    pub(crate) bounds: Bounds,
    quorum: Quorum,
    witnessed: Witnessed,
    /// Which of the proof's actions were taken, by number.
    taken: Witnessed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: Vec<Shared<Node>>,
    clients: Vec<Shared<Client>>,
    /// One channel for each client and node, in order of the clients.
    channels: Vec<Shared<Channel>>,
    /// How many nodes have been touched by any event.
    touched: u8,
    crashes: u8,
    saves: u8,
    arrivals: u8,
    downgrades: u8,
    duplicates: u8,
    zombies: u8,
    /// Indexed by acquisition id.
    ledger: Shared<Vec<Entry>>,
    store: Store,
    tie: Tied,
    /// The violations so far: bits of `Broken`.
    broken: u8,
}

/// A part that states share until one of them changes it: millions of states must fit in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    fn new(part: T) -> Shared<T> {
        Shared(Arc::new(part))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Channel {
    requests: Vec<(Id, Request)>,
    /// The reply to the current acquisition; a later reply replaces it.
    reply: Option<Reply>,
}

/// The history of an acquisition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    /// Which acquisitions were complete when it began.
    before: u8,
    /// Zero until it is complete.
    fence: Fence,
    /// It was won by a writer that is a reader now.
    is_downgraded: bool,
}

/// A resource that remembers the largest fences that it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Store {
    /// The largest fence of a writer.
    highest: Fence,
    /// The largest fence of a reader.
    highest_read: Fence,
    /// The acquisitions whose writes it has accepted: bits.
    accepted: u8,
    /// The acquisitions whose reads it has accepted: bits.
    read: u8,
}

#[derive(Clone, Copy)]
enum Broken {
    Rising = 1,
    Unique = 2,
    Store = 4,
    Superseded = 8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A client begins an acquisition.
    Begin(usize),
    /// A request arrives: client, node, place in line.
    Deliver(usize, usize, usize, Fate),
    /// A reply arrives: client, node.
    Answer(usize, usize),
    GiveUp(usize),
    /// The validity of the oldest open round of a client ends.
    CloseWindow(usize),
    Renew(usize),
    Release(usize),
    /// A writer becomes a reader.
    Downgrade(usize),
    /// A write or a read arrives at the fenced store.
    Write(usize),
    /// A lease ends at a node.
    Expire(usize, Id),
    Save(usize),
    Crash(usize, bool),
    EndQuarantine(usize),
    /// A holder's lease is copied to the first node from the second.
    Arrive(usize, usize),
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> World {
        let quorum = Quorum::of(bounds.nodes).expect("1 to 32 nodes");
        World { bounds, quorum, witnessed: Witnessed::default(), taken: Witnessed::default() }
    }

    /// The witnesses reached so far.
    pub(crate) fn witnesses(&self) -> Vec<Witness> {
        let was_seen = |witness: &Witness| self.witnessed.has(*witness as u8);
        Witness::ALL.into_iter().filter(was_seen).collect()
    }

    fn saw(&self, witness: Witness) {
        self.witnessed.saw(witness as u8);
    }

    /// Describes one step of a path for a human reader.
    pub(crate) fn tell(&self, state: &State, action: Action) -> String {
        let name = |client: usize| (b'A' + client as u8) as char;
        match action {
            Action::Begin(client) => format!("{} begins to acquire", name(client)),
            Action::Deliver(client, node, place, fate) => {
                let (id, request) = state.channels[self.channel(client, node)].requests[place];
                let ttls = self.bounds.lengths.of(client);
                let reply = state.nodes[node].clone().serve(id, request, ttls, self.bounds.defect);
                let is_late = state.clients[client].is_idle() || World::id(state, client) != id;
                let late = if is_late { " (late)" } else { "" };
                let reply = reply.map(|reply| format!(": {reply:?}")).unwrap_or_default();
                let fate = if fate == Fate::Answered { "" } else { &format!(", {fate:?}") };
                format!("node {node} gets {request:?} of {}{late}{reply}{fate}", name(client))
            }
            Action::Answer(client, node) => {
                let reply = state.channels[self.channel(client, node)].reply;
                format!("{} reads {reply:?} of node {node}", name(client))
            }
            Action::GiveUp(client) => format!("{} waits no longer", name(client)),
            Action::CloseWindow(client) => {
                format!(
                    "{}'s window {} closes",
                    name(client),
                    state.clients[client].next_to_close()
                )
            }
            Action::Renew(client) => format!("{} begins to renew", name(client)),
            Action::Release(client) => format!("{} releases", name(client)),
            Action::Downgrade(client) => format!("{} reads from here on", name(client)),
            Action::Write(client) => {
                let (fence, mode) = (state.clients[client].fence, state.clients[client].mode());
                let what = if mode.is_shared() { "read" } else { "write" };
                format!("the store gets a {what} of {} with fence {fence}", name(client))
            }
            Action::Expire(node, id) => {
                format!("the lease of {} at node {node} ends", name(id.client()))
            }
            Action::Save(node) => format!("node {node} saves its data set"),
            Action::Crash(node, _) if self.bounds.promotes => {
                format!("node {node} is lost, and its replica promoted")
            }
            Action::Crash(node, false) => format!("node {node} crashes and forgets everything"),
            Action::Crash(node, true) => format!("node {node} crashes and loads what it saved"),
            Action::EndQuarantine(node) => format!("node {node} ends its quarantine"),
            Action::Arrive(node, from) => {
                format!("what stands at node {from} is brought to node {node}")
            }
        }
    }

    fn asks(&self, client: usize) -> Mode {
        if self.bounds.readers >> client & 1 != 0 { Mode::Shared } else { Mode::Exclusive }
    }

    /// Whether two acquisitions, which are or were held, exclude each other.
    fn conflict(&self, state: &State, one: Id, other: Id) -> bool {
        let mode = |id: Id| {
            let is_downgraded = state.ledger[usize::from(id.0)].is_downgraded;
            if is_downgraded { Mode::Shared } else { self.asks(id.client()) }
        };
        mode(one).conflicts_with(mode(other))
    }

    /// Whether this fence fits a later acquisition: not smaller, and larger for a writer.
    fn is_later(&self, id: Id, fence: Fence, earlier: Fence) -> bool {
        fence > earlier || self.asks(id.client()).is_shared() && fence == earlier
    }

    fn ignores_clocks(&self) -> bool {
        self.bounds.ignores_clocks || self.bounds.defect == Defect::ClientWallClock
    }

    fn channel(&self, client: usize, node: usize) -> usize {
        client * self.bounds.nodes + node
    }

    fn id(state: &State, client: usize) -> Id {
        Id::of(client, state.clients[client].begun - 1)
    }

    fn is_open(state: &State, origin: Origin) -> bool {
        let client = origin.id.client();
        state.clients[client].begun > 0
            && World::id(state, client) == origin.id
            && state.clients[client].is_open(origin.round)
    }

    /// Whether an acquisition is complete that began after this client's was complete, and that
    /// conflicts with it.
    fn has_successor(&self, state: &State, client: usize) -> bool {
        let id = World::id(state, client);
        state.ledger.iter().enumerate().any(|(other, entry)| {
            let is_later = entry.fence > Fence::ZERO && entry.before & id.bit() != 0;
            is_later && self.conflict(state, id, Id(other as u8))
        })
    }

    fn may_expire(&self, state: &State, origin: Origin) -> bool {
        self.bounds.defect == Defect::NodeWallClock || !World::is_open(state, origin)
    }

    /// Whether the node has live leases, all of complete acquisitions.
    fn stands_for_winners(state: &State, node: usize) -> bool {
        let is_won = |id: Id| state.ledger[usize::from(id.0)].fence > Fence::ZERO;
        let holders = state.nodes[node].holders();
        !holders.is_empty() && holders.iter().all(is_won)
    }

    fn send(&self, state: &mut State, client: usize, request: Request, nodes: NodeSet) {
        let id = World::id(state, client);
        for node in nodes.iter() {
            state.channels[self.channel(client, node)].requests.push((id, request));
        }
    }

    fn deliver(&self, state: &mut State, client: usize, node: usize, place: usize, fate: Fate) {
        let channel = self.channel(client, node);
        let requests = &mut state.channels[channel].requests;
        let (id, request) = requests[place];
        match self.bounds.network {
            Network::AnyOrder { .. } if fate == Fate::Repeated => state.duplicates += 1,
            Network::InOrder if self.bounds.defect != Defect::Overtaking => {
                requests.drain(..=place);
            }
            Network::AnyOrder { .. } | Network::InOrder => {
                requests.remove(place);
            }
        }
        let is_present = World::id(state, client) == id && !state.clients[client].is_idle();
        if matches!(request, Request::Acquire(_)) && !is_present && self.bounds.zombies.is_some() {
            state.zombies += 1;
        }
        let served = &mut state.nodes[node];
        let (held_before, was_quarantined) = (served.holders(), served.is_quarantined());
        let mode_before = served.lease_of(id).map(|lease| lease.mode);
        let ttls = self.bounds.lengths.of(client);
        let reply = served.serve(id, request, ttls, self.bounds.defect);
        self.tie_served(state, Served { node, id, request, reply, held_before, mode_before });
        let is_counted = !matches!(request, Request::Repair(..)) || self.bounds.repairs_everywhere;
        if reply.is_some() && is_present && is_counted && fate != Fate::Unanswered {
            state.channels[channel].reply = reply;
        }
        match reply {
            Some(Reply::Granted(fence)) if !held_before.has(id) => {
                if !is_present {
                    self.saw(Witness::ZombieGrant);
                }
                if fence.get() > lockmod::engine::FENCE_BLOCK {
                    self.saw(Witness::GrantAboveTheOldCeiling);
                }
                let writer = |node: &Shared<Node>| {
                    node.holders().iter().next().filter(|_| !node.lock.mode().is_shared())
                };
                let mut writers: Vec<_> = state.nodes.iter().filter_map(writer).collect();
                writers.sort_unstable();
                writers.dedup();
                if writers.len() == self.bounds.nodes {
                    self.saw(Witness::SplitVote);
                }
            }
            Some(Reply::Refused) if was_quarantined => self.saw(Witness::RefusedInQuarantine),
            Some(Reply::Extended(_) | Reply::Provisional(_)) if !held_before.has(id) => {
                self.saw(Witness::Repaired);
                if !held_before.is_empty() {
                    self.saw(Witness::RepairedBesideAReader);
                }
            }
            Some(Reply::Extended(_) | Reply::Provisional(_)) if was_quarantined => {
                self.saw(Witness::ExtendedInQuarantine);
            }
            Some(_) | None => {}
        }
        if self.bounds.replies != Replies::InFlight {
            self.answer(state, client, node);
        }
    }

    fn answer(&self, state: &mut State, client: usize, node: usize) {
        let channel = self.channel(client, node);
        let Some(reply) = state.channels[channel].reply else { return };
        state.channels[channel].reply = None;
        let was_attempting = matches!(state.clients[client].phase, Phase::Attempting(_));
        let wish = state.clients[client].take(
            node,
            reply,
            self.quorum,
            self.ignores_clocks(),
            self.bounds.defect,
        );
        match wish {
            Wish::Won { .. } if was_attempting => self.saw(match reply {
                Reply::Raised(_) => Witness::WonByRaise,
                _ => Witness::WonInOneRound,
            }),
            Wish::Abandon if state.clients[client].closed > 0 => self.saw(Witness::TooLate),
            _ => {}
        }
        self.grant_wish(state, client, wish);
    }

    fn grant_wish(&self, state: &mut State, client: usize, wish: Wish) {
        match wish {
            Wish::Nothing => {}
            Wish::Send(request, nodes) => self.send(state, client, request, nodes),
            Wish::Won { fence, laggards } => {
                self.complete(state, client, fence);
                self.tie_won(state, World::id(state, client), fence);
                if self.bounds.no_stragglers {
                    for node in 0..self.bounds.nodes {
                        let requests = &mut state.channels[self.channel(client, node)].requests;
                        requests.retain(|(_, request)| !matches!(request, Request::Acquire(_)));
                    }
                }
                if !laggards.is_empty() {
                    self.saw(Witness::HolderRaisedLaggards);
                    self.send(state, client, Request::Raise(fence), laggards);
                }
            }
            Wish::Abandon => self.finish(state, client),
            Wish::Confirmed { repair } => {
                if state.clients[client].is_superseded {
                    state.broken |= Broken::Superseded as u8;
                }
                self.saw(Witness::Renewed);
                self.tie_renewed(state, World::id(state, client), state.clients[client].round);
                if state.clients[client].closed > 0 {
                    self.saw(Witness::RenewedPastTheFirstWindow);
                }
                if !self.bounds.repairs_everywhere {
                    let Client { round, fence, .. } = *state.clients[client];
                    let mode = state.clients[client].mode();
                    self.send(state, client, Request::Repair(round, fence, mode), repair);
                }
            }
        }
    }

    /// Completes an acquisition: records and checks its history.
    fn complete(&self, state: &mut State, client: usize, fence: Fence) {
        let id = World::id(state, client);
        let before = state.ledger[usize::from(id.0)].before;
        for (index, other) in state.ledger.iter().enumerate() {
            let other_id = Id(index as u8);
            if other_id == id || other.fence == Fence::ZERO {
                continue;
            }
            if before & other_id.bit() != 0 && !self.is_later(id, fence, other.fence) {
                state.broken |= Broken::Rising as u8;
            }
            let is_writer = |id: Id| !self.asks(id.client()).is_shared();
            if fence == other.fence && is_writer(id) && is_writer(other_id) {
                state.broken |= Broken::Unique as u8;
            }
        }
        for (other, rival) in state.clients.iter().enumerate().filter(|(n, _)| *n != client) {
            match (rival.is_holding(), rival.is_valid(self.ignores_clocks())) {
                (true, false) => self.saw(Witness::WonOverALapsedLease),
                (true, true) if rival.mode().conflicts_with(self.asks(client)) => {}
                (true, true) if self.asks(other).is_shared() => self.saw(Witness::ReadTogether),
                (true, true) => self.saw(Witness::ReadBesideAFormerWriter),
                (false, _) => {}
            }
        }
        state.ledger[usize::from(id.0)].fence = fence;
    }

    /// Abandons or releases an acquisition at all nodes, whatever the client believes about them.
    fn finish(&self, state: &mut State, client: usize) {
        self.send(state, client, Request::Release, self.quorum.all());
        self.tie_finished(state, World::id(state, client));
        state.clients[client].finish();
        for node in 0..self.bounds.nodes {
            let channel = &mut state.channels[self.channel(client, node)];
            if channel.reply.is_some() {
                channel.reply = None;
            }
        }
    }

    /// Sends a write or a read to the store.
    fn write(&self, state: &mut State, client: usize) {
        let (id, fence) = (World::id(state, client), state.clients[client].fence);
        let (store, is_read) = (state.store, state.clients[client].mode().is_shared());
        if is_read && fence < store.highest {
            return self.saw(Witness::StoreRefusedALateRead);
        }
        if !is_read && (fence < store.highest || fence <= store.highest_read) {
            return self.saw(Witness::StoreRefusedAnOldWrite);
        }
        // Operations that it must not follow. Reads may follow reads in any order.
        let taken = if is_read { store.accepted } else { store.accepted | store.read };
        let is_old = state.ledger.iter().enumerate().any(|(index, later)| {
            taken & Id(index as u8).bit() != 0 && later.before & id.bit() != 0
        });
        if is_old {
            state.broken |= Broken::Store as u8;
        }
        let store = &mut state.store;
        if is_read {
            store.highest_read = store.highest_read.max(fence);
            store.read |= id.bit();
        } else {
            (store.highest, store.accepted) = (fence, store.accepted | id.bit());
        }
        self.tie_wrote(state, id, is_read);
    }

    /// Makes states equal that differ only in irrelevant details.
    fn tidy(&self, state: &mut State) {
        for index in 0..state.nodes.len() {
            if state.crashes == self.bounds.crashes && state.nodes[index].saved.is_some() {
                state.nodes[index].saved = None;
            }
            let is_open = |origin: &Origin| World::is_open(state, *origin);
            let node = &state.nodes[index];
            let origins = node.origins.iter().map(|origin| {
                let round = if is_open(origin) { origin.round } else { 0 };
                Origin { round, ..*origin }
            });
            let origins: Vec<_> = origins.collect();
            let forgotten: Vec<_> = node.forgotten.iter().copied().filter(is_open).collect();
            if origins != node.origins || forgotten.len() != node.forgotten.len() {
                let node = &mut state.nodes[index];
                (node.origins, node.forgotten) = (origins, forgotten);
            }
        }
        self.drop_dead_requests(state);
    }
}

impl World {
    /// Drops requests that can no longer change anything: those of a finished acquisition, to a
    /// node where its token does not and can never hold the lock.
    fn drop_dead_requests(&self, state: &mut State) {
        let keeps_all = self.bounds.defect == Defect::UnconditionalRaise;
        let no_zombies = self.bounds.zombies.is_some_and(|most| state.zombies >= most);
        for client in 0..self.bounds.clients {
            if !state.clients[client].is_idle() {
                continue;
            }
            for node in 0..self.bounds.nodes {
                let holders = state.nodes[node].holders();
                let channel = self.channel(client, node);
                let saved = state.nodes[node].saved_holders();
                let requests = &state.channels[channel].requests;
                let acquires =
                    |(_, request): &(Id, Request)| matches!(request, Request::Acquire(_));
                let makes = |(_, request): &(Id, Request)| {
                    matches!(request, Request::Acquire(_) if !no_zombies)
                        || matches!(request, Request::Repair(..))
                };
                let may_come = |id: Id| {
                    let is_holder = |node: &Shared<Node>| node.holders().has(id);
                    state.arrivals < self.bounds.arrivals && state.nodes.iter().any(is_holder)
                };
                let is_alive = |request: &(Id, Request)| {
                    !(no_zombies && acquires(request))
                        && (keeps_all
                            || holders.has(request.0)
                            || saved.has(request.0)
                            || may_come(request.0)
                            || requests.iter().any(|other| other.0 == request.0 && makes(other)))
                };
                if !requests.iter().all(is_alive) {
                    let alive = requests.iter().copied().filter(is_alive).collect();
                    state.channels[channel].requests = alive;
                }
            }
        }
    }

    /// Whether no lease is left behind by an acquisition that was properly released.
    fn is_clean(&self, state: &State) -> bool {
        let bounds = &self.bounds;
        let promised =
            bounds.network == Network::InOrder && bounds.acquisitions == 1 && bounds.crashes == 0;
        !promised
            || state.nodes.iter().enumerate().all(|(node, lock)| {
                lock.holders().iter().all(|id| {
                    let requests = &state.channels[self.channel(id.client(), node)].requests;
                    !state.clients[id.client()].is_idle()
                        || requests.contains(&(id, Request::Release))
                })
            })
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Bounds { nodes, clients, start, .. } = self.bounds;
        let node = |index| match start {
            Start::Uneven if index > 0 => Node::used_before(),
            Start::OneFloor if index == 0 => Node::crashed_before(),
            Start::Fresh | Start::Uneven | Start::OneFloor => Node::new(),
        };
        let mut state = State {
            nodes: (0..nodes).map(|index| Shared::new(node(index))).collect(),
            clients: (0..clients)
                .map(|client| Client::new(self.bounds.lengths.of(client), self.asks(client)))
                .map(Shared::new)
                .collect(),
            channels: vec![Shared::default(); nodes * clients],
            // In that case the first node differs from the others.
            touched: u8::from(start != Start::Fresh),
            crashes: 0,
            saves: 0,
            arrivals: 0,
            downgrades: 0,
            duplicates: 0,
            zombies: 0,
            ledger: Shared::new(vec![Entry::default(); clients * usize::from(ACQUISITIONS_MAX)]),
            store: Store::default(),
            tie: Tied::new(self.bounds.has_history),
            broken: 0,
        };
        (0..nodes).for_each(|node| self.tie_follows(&mut state, node));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.bounds;
        let nodes = 0..bounds.nodes.min(usize::from(state.touched) + 1);
        for (index, client) in state.clients.iter().enumerate() {
            let is_next = index == 0
                || state.clients[index - 1].begun > 0
                || state.clients[index - 1].asks != client.asks;
            match &client.phase {
                Phase::Idle if client.begun < bounds.acquisitions && is_next => {
                    actions.push(Action::Begin(index));
                }
                Phase::Idle => {}
                Phase::Attempting(_) => actions.push(Action::GiveUp(index)),
                Phase::Holding(..) => {
                    actions.push(Action::Release(index));
                    if client.round < bounds.renewals && index < bounds.renewers {
                        actions.push(Action::Renew(index));
                    }
                    if state.downgrades < bounds.downgrades && !client.mode().is_shared() {
                        actions.push(Action::Downgrade(index));
                    }
                    if bounds.has_store {
                        actions.push(Action::Write(index));
                    }
                }
            }
            if client.has_open_window() {
                actions.push(Action::CloseWindow(index));
            }
            for node in nodes.clone() {
                let channel = &state.channels[self.channel(index, node)];
                for place in 0..channel.requests.len() {
                    let mut deliver = |fate| {
                        actions.push(Action::Deliver(index, node, place, fate));
                    };
                    deliver(Fate::Answered);
                    if bounds.replies == Replies::AtOnce && !client.is_idle() {
                        deliver(Fate::Unanswered);
                    }
                    if let Network::AnyOrder { duplicates } = bounds.network
                        && state.duplicates < duplicates
                    {
                        deliver(Fate::Repeated);
                    }
                }
                if channel.reply.is_some() {
                    actions.push(Action::Answer(index, node));
                }
            }
        }
        for node in nodes {
            for origin in &state.nodes[node].origins {
                if self.may_expire(state, *origin) {
                    actions.push(Action::Expire(node, origin.id));
                }
            }
            if state.saves < bounds.saves && state.crashes < bounds.crashes {
                actions.push(Action::Save(node));
            }
            if state.crashes < bounds.crashes {
                if !bounds.keeps_data {
                    actions.push(Action::Crash(node, false));
                }
                if state.nodes[node].saved.is_some() && !bounds.promotes {
                    actions.push(Action::Crash(node, true));
                }
            }
            if state.nodes[node].is_quarantined() && state.nodes[node].forgotten.is_empty() {
                actions.push(Action::EndQuarantine(node));
            }
            if state.arrivals < bounds.arrivals && state.nodes[node].may_be_brought_a_lease() {
                let brings = |from: &usize| World::stands_for_winners(state, *from);
                let froms = (0..bounds.nodes).filter(brings);
                actions.extend(froms.map(|from| Action::Arrive(node, from)));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let defect = self.bounds.defect;
        match action {
            Action::Begin(client) => {
                state.clients[client].start(self.quorum, defect);
                let id = World::id(&state, client);
                let complete =
                    state.ledger.iter().enumerate().filter(|(_, e)| e.fence > Fence::ZERO);
                let before = complete.fold(0, |bits, (index, _)| bits | Id(index as u8).bit());
                state.ledger[usize::from(id.0)].before = before;
                self.tie_begun(&mut state, id);
                let request = Request::Acquire(self.asks(client));
                self.send(&mut state, client, request, self.quorum.all());
            }
            Action::Deliver(client, node, place, fate) => {
                state.touched = state.touched.max(node as u8 + 1);
                self.deliver(&mut state, client, node, place, fate);
            }
            Action::Answer(client, node) => self.answer(&mut state, client, node),
            Action::GiveUp(client) => {
                let ignores = self.ignores_clocks();
                let wish = state.clients[client].give_up(self.quorum, ignores, defect);
                self.grant_wish(&mut state, client, wish);
            }
            Action::CloseWindow(client) => {
                let round = state.clients[client].next_to_close();
                state.clients[client].close(self.ignores_clocks());
                self.tie_closed(&mut state, World::id(last, client), round);
            }
            Action::Renew(client) => {
                if !state.clients[client].renew(self.ignores_clocks()) {
                    return None;
                }
                state.clients[client].is_superseded = self.has_successor(&state, client);
                let Client { round, fence, .. } = *state.clients[client];
                let mode = if defect == Defect::DowngradesNodesFirst {
                    Mode::Shared
                } else {
                    state.clients[client].mode()
                };
                let request = if self.bounds.repairs_everywhere {
                    Request::Repair(round, fence, mode)
                } else {
                    Request::Extend(round, fence, mode)
                };
                self.send(&mut state, client, request, self.quorum.all());
            }
            Action::Release(client) => self.finish(&mut state, client),
            Action::Downgrade(client) => {
                let id = World::id(&state, client);
                state.downgrades += 1;
                state.clients[client].downgrade();
                state.ledger[usize::from(id.0)].is_downgraded = true;
                self.tie_downgraded(&mut state, id);
            }
            Action::Write(client) => self.write(&mut state, client),
            Action::Expire(node, id) => {
                // A replica's copy of a lease is dated by the wall clock.
                let exactly = !self.bounds.promotes && defect != Defect::LooselyDated;
                state.nodes[node].expire(id, exactly);
                let at_acquisition = usize::from(id.0);
                self.tied(&mut state, Proved::LeaseEnds { at_node: node, at_acquisition });
            }
            Action::Save(node) => {
                state.touched = state.touched.max(node as u8 + 1);
                state.saves += 1;
                state.nodes[node].save();
            }
            Action::Crash(node, with_data) => {
                state.touched = state.touched.max(node as u8 + 1);
                state.crashes += 1;
                let was_held = !state.nodes[node].holders().is_empty();
                let is_valid = |origin: &Origin| {
                    state.clients[origin.id.client()].is_holding()
                        && World::is_open(&state, *origin)
                };
                if state.nodes[node].origins.iter().any(is_valid) {
                    self.saw(Witness::CrashUnderAHolder);
                }
                if self.bounds.promotes {
                    state.nodes[node].promote(defect);
                } else {
                    state.nodes[node].crash(with_data, defect);
                }
                if with_data && !state.nodes[node].holders().is_empty() && !was_held {
                    self.saw(Witness::ReleasedLeaseLoaded);
                }
                self.tie_began_anew(&mut state, node);
            }
            Action::Arrive(node, from) => {
                state.arrivals += 1;
                let Node { lock, origins, .. } = (*state.nodes[from]).clone();
                state.nodes[node].arrive(&lock, &origins, defect);
                self.saw(Witness::Arrived);
                origins.iter().for_each(|o| self.tie_arrived(&mut state, node, o.id, false));
                self.tie_follows(&mut state, node);
            }
            Action::EndQuarantine(node) => {
                state.nodes[node].end_quarantine();
                self.tied(&mut state, Proved::QuarantineEnds { at_node: node });
            }
        }
        self.tidy(&mut state);
        if state == *last { None } else { Some(state) }
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut properties = vec![
            Property::always(
                "fences rise over disjoint acquisitions",
                |_: &World, state: &State| state.broken & Broken::Rising as u8 == 0,
            ),
            Property::always("fences are unique", |_, state: &State| {
                state.broken & Broken::Unique as u8 == 0
            }),
            Property::always(
                "the store accepts no old write after a newer",
                |_: &World, state: &State| state.broken & Broken::Store as u8 == 0,
            ),
            Property::always(
                "no renewal begun after a successor counts",
                |_: &World, state: &State| state.broken & Broken::Superseded as u8 == 0,
            ),
            Property::always("what a node promised is on its disk", |_: &World, state: &State| {
                state.nodes.iter().all(|node| node.keeps_its_promises())
            }),
            Property::always("what is released stays released", |world: &World, state: &State| {
                world.is_clean(state)
            }),
            Property::always("the code does what is proved", |world: &World, state: &State| {
                world.complaint(state).is_none()
            }),
        ];
        if !self.bounds.ignores_clocks {
            properties.push(Property::always(
                "mutual exclusion",
                |world: &World, state: &State| {
                    let ignores = world.ignores_clocks();
                    let valid = || state.clients.iter().filter(|client| client.is_valid(ignores));
                    valid().count() <= 1 || valid().all(|client| client.mode().is_shared())
                },
            ));
        }
        properties.retain(|property| self.bounds.only.is_none_or(|only| only == property.name));
        properties
    }
}
