//! The line of one lock: who waits, in which order, and for whom the free lock is reserved.
//!
//! There are two kinds of waiters: calls, which block until they are granted the lock, and tickets,
//! which are woken and then ask for it. A place in line is a hint: it keeps newcomers out and says
//! who is woken next. Only [`Promises::acquire`] grants.
//!
//! Calls are served in the order in which they came. Tickets are served in ticket order, whenever
//! they came; all nodes agree on that order. A newcomer of either kind goes to the end, except that
//! a ticket goes before all younger tickets.
//!
//! I4: nothing comes before a ticket that is in line, but older tickets. I5: a reservation is for
//! a ticket that is in line. Every operation takes O(log n).
//!
//! [`Promises::acquire`]: super::Promises::acquire

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use crate::engine::{Instant, Millis, Refusal, Ticket, Token};

/// Identifies a blocked call. The caller chooses it, unique among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Identifies the connection of a ticket, which leaves the line when the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Somebody in line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiter {
    /// A command that blocks until it is granted the lock.
    Call(CallId),
    /// A ticket, which is woken when its turn comes.
    Ticket(Ticket),
}

/// The number of waiters at a node, over all locks, and the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many wait.
    pub waiters: usize,
    /// How many may wait.
    pub max: usize,
}

impl Room {
    /// Whether there is room for one more.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`] if there is not.
    pub fn check(self) -> Result<(), Refusal> {
        let Room { waiters, max } = self;
        if waiters < max { Ok(()) } else { Err(Refusal::QueueFull { waiters, max }) }
    }
}

/// A ticket, and what the line keeps of it.
#[derive(Clone, Debug)]
pub struct Queued<'a> {
    /// The ticket.
    pub ticket: Ticket,
    /// The channel on which it is woken.
    pub channel: &'a [u8],
    /// The last instant of its wait.
    pub deadline: Instant,
    /// The connection that it came on: it leaves when that closes.
    pub connection: ConnectionId,
    /// Whether one more may wait at this node.
    pub room: Room,
}

/// Somebody who has left the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// A call, which needs a reply.
    Call(CallId),
    /// A ticket, and the connection that it came on.
    Ticket(Ticket, ConnectionId),
}

/// Whose turn it is, now that the lock is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn<'a> {
    /// Nobody waits.
    Nobody,
    /// The first of these calls is to be granted the lock. The others have the same token, and the
    /// same grant answers them. All of them have left the line.
    Grant(Vec<Left>),
    /// The lock is reserved for this ticket, which must be told on its channel.
    Wake {
        /// Whose turn it is.
        ticket: &'a Ticket,
        /// The channel to publish it on.
        channel: &'a [u8],
    },
    /// The lock is reserved, and the ticket has been told.
    Reserved,
}

/// The line of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line {
    order: BTreeMap<Place, Entry>,
    calls: BTreeMap<CallId, u64>,
    tickets: BTreeMap<Ticket, u64>,
    deadlines: BTreeSet<(Instant, Place)>,
    connections: BTreeSet<(ConnectionId, Place)>,
    tokens: BTreeSet<(u64, Place)>,
    reservation: Option<Reservation>,
}

/// A place in line. Each call has its own slot. The tickets between two calls share one, and are in
/// ticket order within it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    slot: u64,
    waiter: Waiter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    token: Secret,
    since: Instant,
    deadline: Instant,
    /// Set for a ticket.
    wake: Option<Wake>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wake {
    channel: Box<[u8]>,
    connection: ConnectionId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reservation {
    ticket: Ticket,
    /// The last instant of the reservation.
    until: Instant,
    is_told: bool,
}

/// A waiter's token, which is never printed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Secret(Box<[u8]>);

impl Secret {
    fn is(&self, token: Token<'_>) -> bool {
        Token::new(&self.0, self.0.len()) == Ok(token)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// The hash by which tokens are indexed. In an index sorted by their bytes, the time of a lookup
/// would reveal how much of a guess was right.
fn digest(token: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(token);
    hasher.finish()
}

impl Line {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether this waiter is in line.
    pub fn has(&self, waiter: &Waiter) -> bool {
        self.place(waiter).is_some()
    }

    /// Since when this waiter has been in line.
    pub fn since_of(&self, waiter: &Waiter) -> Option<Instant> {
        self.order.get(&self.place(waiter)?).map(|entry| entry.since)
    }

    /// Whether a ticket of this connection is in line.
    pub fn has_connection(&self, connection: ConnectionId) -> bool {
        self.places(&self.connections, connection).next().is_some()
    }

    /// The connection that a ticket in line last came on.
    pub fn connection_of(&self, ticket: &Ticket) -> Option<ConnectionId> {
        let place = self.place(&Waiter::Ticket(ticket.clone()))?;
        self.order.get(&place)?.wake.as_ref().map(|wake| wake.connection)
    }

    /// The first waiter.
    pub fn first(&self) -> Option<&Waiter> {
        self.order.first_key_value().map(|(place, _)| &place.waiter)
    }

    /// Since when the first waiter has been in line.
    pub fn first_since(&self) -> Option<Instant> {
        self.order.first_key_value().map(|(_, entry)| entry.since)
    }

    /// The ticket that the lock is reserved for.
    pub fn reserved_for(&self) -> Option<&Ticket> {
        self.reservation.as_ref().map(|reservation| &reservation.ticket)
    }

    /// The last instant until which [`Line::expire`] has nothing to do.
    pub fn due_at(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let until = self.reservation.as_ref().map(|reservation| reservation.until);
        deadline.into_iter().chain(until).min()
    }

    /// Whether a request may have the lock if it is free: no waiter comes before it.
    pub fn lets_in(&self, ticket: Option<&Ticket>) -> bool {
        match (self.first(), ticket) {
            (None, _) => true,
            (Some(Waiter::Ticket(first)), Some(ticket)) => ticket <= first,
            (Some(_), _) => false,
        }
    }

    /// Puts a call at the end of the line.
    pub fn block(&mut self, call: CallId, token: Token<'_>, deadline: Instant, now: Instant) {
        let slot = self.order.last_key_value().map_or(0, |(place, _)| place.slot + 1);
        let place = Place { slot, waiter: Waiter::Call(call) };
        self.calls.insert(call, slot);
        self.insert(place, token, deadline, now, None);
    }

    /// Puts a ticket in line. One that is in line already keeps its place, with its new token,
    /// channel, deadline and connection.
    pub fn register(&mut self, token: Token<'_>, queued: &Queued<'_>, now: Instant) {
        let waiter = Waiter::Ticket(queued.ticket.clone());
        let (place, since) = match self.place(&waiter) {
            Some(place) => {
                let since = self.order.get(&place).map_or(now, |entry| entry.since);
                self.remove(&place);
                (place, since)
            }
            None => (Place { slot: self.slot_of(&queued.ticket), waiter }, now),
        };
        self.tickets.insert(queued.ticket.clone(), place.slot);
        let wake = Wake { channel: queued.channel.into(), connection: queued.connection };
        self.insert(place, token, queued.deadline, since, Some(wake));
        if let Some(reservation) = &mut self.reservation
            && reservation.ticket == queued.ticket
        {
            // It may have missed the wake, or listens on another channel now. The reservation gets
            // no longer.
            reservation.is_told = false;
        }
    }

    /// Removes a waiter.
    pub fn leave(&mut self, waiter: &Waiter) -> Option<Left> {
        let place = self.place(waiter)?;
        self.take(&place)
    }

    /// Removes the waiters whose last token is this one.
    pub fn leave_by_token(&mut self, token: Token<'_>) -> Vec<Left> {
        let places: Vec<Place> = self
            .places(&self.tokens, digest(token.as_bytes()))
            .filter(|place| self.order.get(place).is_some_and(|entry| entry.token.is(token)))
            .cloned()
            .collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Removes tickets of this connection, at most `most`.
    pub fn leave_by_connection(&mut self, connection: ConnectionId, most: usize) -> Vec<Left> {
        let places: Vec<Place> =
            self.places(&self.connections, connection).take(most).cloned().collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Removes the first waiters, at most `most`.
    pub fn leave_first(&mut self, most: usize) -> Vec<Left> {
        let places: Vec<Place> = self.order.keys().take(most).cloned().collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Removes the ticket that did not use its reservation in time, and waiters whose deadline has
    /// passed: at most `most` in all.
    pub fn expire(&mut self, now: Instant, most: usize) -> Vec<Left> {
        let mut left = Vec::new();
        if self.reservation.as_ref().is_some_and(|reservation| reservation.until < now) {
            left.extend(self.lapse());
        }
        while left.len() < most
            && let Some((deadline, place)) = self.deadlines.first()
            && *deadline < now
        {
            let place = place.clone();
            left.extend(self.take(&place));
        }
        left
    }

    /// Ends the reservation: the ticket that did not use it leaves the line, and may come back.
    pub fn lapse(&mut self) -> Option<Left> {
        let ticket = self.reservation.take()?.ticket;
        self.leave(&Waiter::Ticket(ticket))
    }

    /// Notes that the lock has been granted, which ends a reservation.
    pub fn taken(&mut self) {
        self.reservation = None;
    }

    /// Returns whose turn it is. Call it when the lock becomes free, and after each change of the
    /// line while it is. A new reservation lasts for `grace`, and replaces one for a younger
    /// ticket.
    pub fn serve(&mut self, now: Instant, grace: Millis) -> Turn<'_> {
        match self.first() {
            None => Turn::Nobody,
            Some(Waiter::Call(_)) => {
                debug_assert_eq!(self.reservation, None, "I4, I5");
                Turn::Grant(self.leave_with_first())
            }
            Some(Waiter::Ticket(first)) => {
                let until = match &self.reservation {
                    Some(reservation) if reservation.ticket == *first => {
                        if reservation.is_told {
                            return Turn::Reserved;
                        }
                        reservation.until
                    }
                    Some(_) | None => now.after(grace),
                };
                let ticket = first.clone();
                self.reservation = Some(Reservation { ticket, until, is_told: true });
                self.wake()
            }
        }
    }

    /// Removes the first waiter, and all others with the same token.
    fn leave_with_first(&mut self) -> Vec<Left> {
        let Some((place, entry)) = self.order.first_key_value() else { return Vec::new() };
        let (place, token) = (place.clone(), entry.token.clone());
        let mut left: Vec<Left> = self.take(&place).into_iter().collect();
        if let Ok(token) = Token::new(&token.0, token.0.len()) {
            left.extend(self.leave_by_token(token));
        }
        left
    }

    /// The turn of the first ticket, which must be told.
    fn wake(&self) -> Turn<'_> {
        match self.order.first_key_value() {
            Some((
                Place { waiter: Waiter::Ticket(ticket), .. },
                Entry { wake: Some(wake), .. },
            )) => Turn::Wake { ticket, channel: &wake.channel },
            Some(_) | None => Turn::Nobody,
        }
    }

    /// The slot of a new ticket: before the next younger one, or at the end.
    fn slot_of(&self, ticket: &Ticket) -> u64 {
        if let Some((_, &slot)) = self.tickets.range(ticket..).next() {
            return slot;
        }
        match self.order.last_key_value() {
            Some((Place { slot, waiter: Waiter::Ticket(_) }, _)) => *slot,
            Some((Place { slot, waiter: Waiter::Call(_) }, _)) => slot + 1,
            None => 0,
        }
    }

    fn place(&self, waiter: &Waiter) -> Option<Place> {
        let slot = *match waiter {
            Waiter::Call(call) => self.calls.get(call),
            Waiter::Ticket(ticket) => self.tickets.get(ticket),
        }?;
        Some(Place { slot, waiter: waiter.clone() })
    }

    /// The places that an index has under `key`.
    fn places<'a, K: Copy + Ord>(
        &'a self,
        index: &'a BTreeSet<(K, Place)>,
        key: K,
    ) -> impl Iterator<Item = &'a Place> {
        let lowest = Place { slot: 0, waiter: Waiter::Call(CallId(0)) };
        let found = index.range((key, lowest)..);
        found.take_while(move |(other, _)| *other == key).map(|(_, place)| place)
    }

    fn insert(
        &mut self,
        place: Place,
        token: Token<'_>,
        deadline: Instant,
        since: Instant,
        wake: Option<Wake>,
    ) {
        let token = Secret(token.as_bytes().into());
        self.deadlines.insert((deadline, place.clone()));
        self.tokens.insert((digest(&token.0), place.clone()));
        if let Some(wake) = &wake {
            self.connections.insert((wake.connection, place.clone()));
        }
        self.order.insert(place, Entry { token, since, deadline, wake });
    }

    /// Removes an entry from all indexes, but leaves a reservation for it.
    fn remove(&mut self, place: &Place) -> Option<Entry> {
        let entry = self.order.remove(place)?;
        self.deadlines.remove(&(entry.deadline, place.clone()));
        self.tokens.remove(&(digest(&entry.token.0), place.clone()));
        if let Some(wake) = &entry.wake {
            self.connections.remove(&(wake.connection, place.clone()));
        }
        match &place.waiter {
            Waiter::Call(call) => self.calls.remove(call),
            Waiter::Ticket(ticket) => self.tickets.remove(ticket),
        };
        Some(entry)
    }

    fn take(&mut self, place: &Place) -> Option<Left> {
        let entry = self.remove(place)?;
        if let Waiter::Ticket(ticket) = &place.waiter
            && self.reserved_for() == Some(ticket)
        {
            self.reservation = None;
        }
        left(place.waiter.clone(), entry)
    }
}

/// What a removed entry was.
fn left(waiter: Waiter, entry: Entry) -> Option<Left> {
    match waiter {
        Waiter::Call(call) => Some(Left::Call(call)),
        Waiter::Ticket(ticket) => entry.wake.map(|wake| Left::Ticket(ticket, wake.connection)),
    }
}
