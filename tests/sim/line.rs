//! The lines before a simulated node's locks, and whom it calls.
//!
//! Who stands where, and whose turn it is, says the engine's `Line`. What stands here in place of
//! the module (`src/module/waiters.rs`) finds the line, publishes, and knows when to look again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lockmod::engine::{ConnectionId, Instant, Line, Millis, Queued, Room, Ticket, Turn};
use lockmod::wire::request::Queue;

use crate::node::bulk;

/// For how long a free lock is reserved, as `lockmod.reserve-ms`.
const RESERVE: Millis = Millis::new(100);

/// What a node offers to those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// It knows of lines; otherwise it is an older one.
    pub(crate) has_lines: bool,
    pub(crate) max_waiters: usize,
}

/// What became of tickets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) called: u64,
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
pub(crate) struct Lines {
    pub(crate) offer: Offer,
    pub(crate) tally: Tally,
    lines: BTreeMap<Vec<u8>, Line>,
    /// Connections, by the channels that they listen to.
    listeners: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// What is to be sent, by connection.
    calls: Vec<(u64, Vec<u8>)>,
    /// When the node looks again by itself.
    alarm_at: Option<Instant>,
    /// When each ticket has asked lately.
    asked_at: BTreeMap<Ticket, VecDeque<Instant>>,
}

impl Lines {
    pub(crate) fn new(offer: Offer) -> Lines {
        Lines {
            offer,
            tally: Tally::default(),
            lines: BTreeMap::new(),
            listeners: BTreeMap::new(),
            calls: Vec::new(),
            alarm_at: None,
            asked_at: BTreeMap::new(),
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

    /// Whether the lock is reserved for the ticket.
    pub(crate) fn has_called(&self, name: &[u8], ticket: &Ticket) -> bool {
        self.lines.get(name).is_some_and(|line| line.reserved_for() == Some(ticket))
    }

    /// The node has stopped: nobody waits any more, and no connection is left.
    pub(crate) fn clear(&mut self) {
        let tally = self.tally;
        *self = Lines { tally, ..Lines::new(self.offer) };
    }

    pub(crate) fn listen(&mut self, channel: &[u8], connection: u64) {
        self.listeners.entry(channel.to_vec()).or_default().insert(connection);
    }

    /// What a ticket brings with it.
    pub(crate) fn queued<'a>(&self, queue: Queue<'a>, connection: u64, now: Instant) -> Queued<'a> {
        let waiters = self.lines.values().map(Line::len).sum();
        Queued {
            ticket: queue.ticket,
            channel: queue.channel,
            deadline: now.after(queue.wait),
            connection: ConnectionId(connection),
            room: Room { waiters, max: self.offer.max_waiters },
        }
    }

    /// The line before a lock, to be put back.
    pub(crate) fn take(&mut self, name: &[u8]) -> Line {
        self.lines.remove(name).unwrap_or_default()
    }

    pub(crate) fn put(&mut self, name: &[u8], line: Line) {
        if !line.is_empty() {
            self.lines.insert(name.to_vec(), line);
        }
    }

    pub(crate) fn len(&self, name: &[u8]) -> usize {
        self.lines.get(name).map_or(0, Line::len)
    }

    pub(crate) fn names(&self) -> Vec<Vec<u8>> {
        self.lines.keys().cloned().collect()
    }

    /// Looks at a line: its lock cannot be granted before then, or can be now.
    pub(crate) fn settle(&mut self, name: &[u8], held_until: Option<Instant>, now: Instant) {
        let mut line = self.take(name);
        let was_reserved = line.reserved_for().is_some();
        drop(line.expire(now, usize::MAX));
        self.tally.lapsed += u64::from(was_reserved && line.reserved_for().is_none());
        if held_until.is_some() {
            line.taken();
        } else if let Turn::Wake { ticket, channel } = line.serve(now, RESERVE) {
            self.tally.called += 1;
            for connection in self.listeners.get(channel).into_iter().flatten() {
                self.calls.push((*connection, message(channel, ticket)));
            }
        }
        self.put(name, line);
    }

    /// A connection is gone: its tickets leave.
    pub(crate) fn hang_up(&mut self, connection: u64) {
        for listeners in self.listeners.values_mut() {
            listeners.remove(&connection);
        }
        for line in self.lines.values_mut() {
            let left = line.leave_by_connection(ConnectionId(connection), usize::MAX);
            self.tally.hung_up += left.len() as u64;
        }
    }

    /// What is to be sent, by connection.
    pub(crate) fn calls(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.calls)
    }

    /// When something is due, if nobody knows of it: a wait, a reservation, or a lease, of which
    /// `held_until` tells.
    pub(crate) fn alarm(
        &mut self,
        held_until: impl Fn(&[u8]) -> Option<Instant>,
    ) -> Option<Instant> {
        let due = |(name, line): (&Vec<u8>, &Line)| {
            line.due_at().into_iter().chain(held_until(name)).min()
        };
        let due = self.lines.iter().filter_map(due).min()?;
        if self.alarm_at.is_some_and(|at| at <= due) {
            return None;
        }
        self.alarm_at = Some(due);
        Some(due)
    }

    /// The alarm has gone off.
    pub(crate) fn rang(&mut self) {
        self.alarm_at = None;
    }
}

/// What a subscriber is sent in RESP3.
fn message(channel: &[u8], ticket: &Ticket) -> Vec<u8> {
    [&b">3\r\n"[..], &bulk(b"message"), &bulk(channel), &bulk(&ticket.to_bytes())].concat()
}
