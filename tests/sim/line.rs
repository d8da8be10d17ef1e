//! The calls of a simulated node, and the fate of tickets.
//!
//! The node itself decides the order in line, whose turn it is and when to check again. This code
//! only keeps the listeners, the messages on their way to them, and the counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockmod::engine::{Fence, Grantee, Instant, Millis, Ticket};
use lockmod::wire::published::Published;
use lockmod::wire::resp::{self, Reply, Version};

/// How long a free lock is reserved, like `lockmod.reserve-ms`.
pub(crate) const RESERVE: Millis = Millis::new(100);

/// What a node offers to waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// It supports lines; otherwise it is an older node.
    pub(crate) has_lines: bool,
    /// It grants locks directly to tickets; otherwise it is an older node.
    pub(crate) grants: bool,
    pub(crate) max_waiters: usize,
}

/// Counts of what happened to tickets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) called: u64,
    /// Locks that were granted to tickets.
    pub(crate) handed_over: u64,
    /// Reservations that were not used.
    pub(crate) lapsed: u64,
    /// Tickets that left with their connection.
    pub(crate) hung_up: u64,
    /// Tickets that were called, then asked and were refused.
    pub(crate) misled: u64,
    /// The most attempts by one ticket within [`PACE`].
    pub(crate) hurry: usize,
}

/// The period over which the attempts of one ticket are counted.
const PACE: Millis = Millis::new(1_000);

#[derive(Debug)]
pub(crate) struct Callers {
    pub(crate) offer: Offer,
    pub(crate) tally: Tally,
    /// Whether the client of the current request supports grants to tickets.
    pub(crate) is_asked_anew: bool,
    /// Grants to tickets that have not been checked yet.
    pub(crate) granted: Vec<(Vec<u8>, Grantee, Fence)>,
    /// Connections, by the channels that they listen to.
    listeners: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// The calls to send, by connection.
    calls: Vec<(u64, Vec<u8>)>,
    /// The pending alarms.
    alarms: BTreeSet<Instant>,
    /// The times of each ticket's recent requests.
    asked_at: BTreeMap<Ticket, VecDeque<Instant>>,
    /// Tickets that were called while the lock could not be granted, with their locks.
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

    /// Records that a ticket asks for its lock.
    pub(crate) fn note_attempt(&mut self, ticket: &Ticket, now: Instant) {
        let asked_at = self.asked_at.entry(ticket.clone()).or_default();
        asked_at.push_back(now);
        while asked_at.front().is_some_and(|first| first.after(PACE) <= now) {
            asked_at.pop_front();
        }
        self.tally.hurry = self.tally.hurry.max(asked_at.len());
    }

    /// Drops all connections, since the node has stopped.
    pub(crate) fn clear(&mut self) {
        let tally = self.tally;
        *self = Callers { tally, ..Callers::new(self.offer) };
    }

    pub(crate) fn listen(&mut self, channel: &[u8], connection: u64) {
        self.listeners.entry(channel.to_vec()).or_default().insert(connection);
    }

    /// Removes a closed connection.
    pub(crate) fn hang_up(&mut self, connection: u64) {
        for listeners in self.listeners.values_mut() {
            listeners.remove(&connection);
        }
    }

    /// Publishes a message on a client's channel. Returns whether it has a listener.
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

    /// Calls a ticket while the lock cannot be granted.
    pub(crate) fn publish_in_vain(&mut self, name: &[u8], channel: &[u8], ticket: &Ticket) {
        self.called_in_vain.insert((name.to_vec(), ticket.clone()));
        self.publish(channel, &Published::Turn(ticket.clone()));
    }

    /// Whether the ticket was called while the lock could not be granted.
    pub(crate) fn has_called_in_vain(&self, name: &[u8], ticket: &Ticket) -> bool {
        self.called_in_vain.contains(&(name.to_vec(), ticket.clone()))
    }

    /// The calls to send, by connection.
    pub(crate) fn calls(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.calls)
    }

    /// Sets an alarm. Returns whether it is earlier than all pending ones.
    pub(crate) fn set_alarm(&mut self, at: Instant) -> bool {
        let is_news = self.alarms.first().is_none_or(|first| at < *first);
        is_news && self.alarms.insert(at)
    }

    /// Removes the alarm that went off.
    pub(crate) fn rang(&mut self) {
        self.alarms.pop_first();
    }
}

/// A message to a subscriber, in RESP3.
fn message(channel: &[u8], what: &[u8]) -> Vec<u8> {
    let text = |text: &[u8]| Reply::Text(text.to_vec().into());
    let message = [text(b"message"), text(channel), text(what)];
    let mut bytes = Vec::new();
    resp::write(&Reply::Push(message.to_vec()), Version::Resp3, &mut bytes);
    bytes
}
