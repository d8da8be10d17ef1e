//! Whom a simulated node calls, and what becomes of tickets.
//!
//! Who stands where, whose turn it is and when to look again, the node itself says. Here is only
//! who listens, what is on its way to them, and what is counted of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockmod::engine::{Fence, Grantee, Instant, Millis, Ticket};
use lockmod::wire::published::Published;
use lockmod::wire::resp::{self, Reply, Version};

/// For how long a free lock is reserved, as `lockmod.reserve-ms`.
pub(crate) const RESERVE: Millis = Millis::new(100);

/// What a node offers to those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// It knows of lines; otherwise it is an older one.
    pub(crate) has_lines: bool,
    /// It grants locks to tickets by itself; otherwise it is an older one.
    pub(crate) grants: bool,
    pub(crate) max_waiters: usize,
}

/// What became of tickets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) called: u64,
    /// Locks that were granted to tickets.
    pub(crate) handed_over: u64,
    /// Reservations that were not used.
    pub(crate) lapsed: u64,
    /// Tickets that left with their connection.
    pub(crate) hung_up: u64,
    /// Tickets that were called, asked, and were refused.
    pub(crate) misled: u64,
    /// The most attempts by one ticket within [`PACE`].
    pub(crate) hurry: usize,
}

/// Over what attempts of one ticket are counted.
const PACE: Millis = Millis::new(1_000);

#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) offer: Offer,
    pub(crate) tally: Tally,
    /// Whether the client of the present request knows of grants to tickets.
    pub(crate) is_asked_anew: bool,
    /// What was granted to tickets, and nobody has looked at yet.
    pub(crate) granted: Vec<(Vec<u8>, Grantee, Fence)>,
    /// Connections, by the channels that they listen to.
    listeners: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// What is to be sent, by connection.
    calls: Vec<(u64, Vec<u8>)>,
    /// The alarms that will go off.
    alarms: BTreeSet<Instant>,
    /// When each ticket has asked lately.
    asked_at: BTreeMap<Ticket, VecDeque<Instant>>,
    /// Tickets that were called out of turn, by their locks.
    called_in_vain: BTreeSet<(Vec<u8>, Ticket)>,
}

impl Callers {
    pub(crate) fn new(offer: Offer) -> Callers {
        Callers {
            offer,
            tally: Tally::default(),
            is_asked_anew: true,
            granted: Vec::new(),
            listeners: BTreeMap::new(),
            calls: Vec::new(),
            alarms: BTreeSet::new(),
            asked_at: BTreeMap::new(),
            called_in_vain: BTreeSet::new(),
        }
    }

    /// A ticket asks for its lock.
    pub(crate) fn note_attempt(&mut self, ticket: &Ticket, now: Instant) {
        let asked_at = self.asked_at.entry(ticket.clone()).or_default();
        asked_at.push_back(now);
        while asked_at.front().is_some_and(|first| first.after(PACE) <= now) {
            asked_at.pop_front();
        }
        self.tally.hurry = self.tally.hurry.max(asked_at.len());
    }

    /// The node has stopped: no connection is left.
    pub(crate) fn clear(&mut self) {
        let tally = self.tally;
        *self = Callers { tally, ..Callers::new(self.offer) };
    }

    pub(crate) fn listen(&mut self, channel: &[u8], connection: u64) {
        self.listeners.entry(channel.to_vec()).or_default().insert(connection);
    }

    /// A connection is gone.
    pub(crate) fn hang_up(&mut self, connection: u64) {
        for listeners in self.listeners.values_mut() {
            listeners.remove(&connection);
        }
    }

    /// Publishes something on a client's channel. Returns whether anybody listens.
    pub(crate) fn publish(&mut self, channel: &[u8], what: &Published) -> bool {
        match what {
            Published::Turn(_) => self.tally.called += 1,
            Published::Granted { .. } => self.tally.handed_over += 1,
        }
        let listeners = || self.listeners.get(channel).into_iter().flatten();
        for connection in listeners() {
            self.calls.push((*connection, message(channel, &what.to_bytes())));
        }
        listeners().next().is_some()
    }

    /// The same where nobody could be granted the lock.
    pub(crate) fn publish_in_vain(&mut self, name: &[u8], channel: &[u8], ticket: &Ticket) {
        self.called_in_vain.insert((name.to_vec(), ticket.clone()));
        self.publish(channel, &Published::Turn(ticket.clone()));
    }

    /// Whether the ticket was called where nobody could be granted the lock.
    pub(crate) fn has_called_in_vain(&self, name: &[u8], ticket: &Ticket) -> bool {
        self.called_in_vain.contains(&(name.to_vec(), ticket.clone()))
    }

    /// What is to be sent, by connection.
    pub(crate) fn calls(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.calls)
    }

    /// The alarm is to go off then; answers whether it would not before.
    pub(crate) fn set_alarm(&mut self, at: Instant) -> bool {
        let is_news = self.alarms.first().is_none_or(|first| at < *first);
        is_news && self.alarms.insert(at)
    }

    /// An alarm has gone off.
    pub(crate) fn rang(&mut self) {
        self.alarms.pop_first();
    }
}

/// What a subscriber is sent in RESP3.
fn message(channel: &[u8], what: &[u8]) -> Vec<u8> {
    let text = |text: &[u8]| Reply::Text(text.to_vec().into());
    let message = [text(b"message"), text(channel), text(what)];
    let mut bytes = Vec::new();
    resp::write(&Reply::Push(message.to_vec()), Version::Resp3, &mut bytes);
    bytes
}
