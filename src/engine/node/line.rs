//! The line before one lock: who waits, in which order, and for whom the free lock is reserved.
//!
//! Two kinds of waiters stand in it: calls, which block until they are granted the lock, and
//! tickets, which are woken and then ask for it. The one idea to keep: a place in line is a hint.
//! It keeps newcomers out and says who is woken; only [`Promises::acquire`] grants.
//!
//! Calls are served in the order in which they came. Tickets are served in the order of tickets,
//! which every node agrees on, whenever they came. Between the two kinds: a newcomer stands behind
//! everybody, except that a ticket stands before all that are younger.
//!
//! I4: nothing comes before a ticket that is in line, but older tickets. I5: a reservation is for
//! a ticket that is in line. Every operation takes O(log n).
//!
//! [`Promises::acquire`]: super::Promises::acquire

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};

use crate::engine::{Instant, Millis, Refusal, Ticket, Token};

/// Names a blocked call; chosen by the node, not twice at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names the connection that a ticket came on, and leaves with; chosen by the node.
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

/// How many wait at a node, over all locks, and how many may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many there are.
    pub waiters: usize,
    /// How many there may be.
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

/// What a ticket brings with it into the line.
#[derive(Clone, Debug)]
pub struct Queued<'a> {
    /// Its place.
    pub ticket: Ticket,
    /// Where it is to be woken.
    pub channel: &'a [u8],
    /// The last instant at which it waits.
    pub deadline: Instant,
    /// What it leaves with.
    pub connection: ConnectionId,
    /// Whether one more may wait at this node.
    pub room: Room,
}

/// Somebody who has left the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// A call, which is to be answered.
    Call(CallId),
    /// A ticket, and the connection that it came on.
    Ticket(Ticket, ConnectionId),
}

/// Whose turn it is, now that the lock is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn<'a> {
    /// Nobody waits.
    Nobody,
    /// A call is to be granted the lock: the first of these. The others brought the same token, and
    /// are answered by the same grant. All of them have left the line.
    Grant(Vec<Left>),
    /// The lock is reserved for this ticket, which is to be told so on its channel.
    Wake {
        /// Whose turn it is.
        ticket: &'a Ticket,
        /// Where it is to be told.
        channel: &'a [u8],
    },
    /// The lock is reserved, and its ticket has been told.
    Reserved,
}

/// The line before one lock.
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

/// A place in line. A call has a slot of its own; tickets between two calls share one, so that
/// their own order counts within it.
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
    /// Of a ticket.
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
    /// The last instant of it.
    until: Instant,
    is_told: bool,
}

/// A waiter's token: the bytes, which are never printed.
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

/// What tokens are found by: sorted by their bytes, how long it takes to find one would tell how
/// much of a guess was right.
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

    /// Whether this waiter stands in line.
    pub fn has(&self, waiter: &Waiter) -> bool {
        self.place(waiter).is_some()
    }

    /// Since when somebody has been standing in line.
    pub fn since_of(&self, waiter: &Waiter) -> Option<Instant> {
        self.order.get(&self.place(waiter)?).map(|entry| entry.since)
    }

    /// Whether a ticket of this connection stands in line.
    pub fn has_connection(&self, connection: ConnectionId) -> bool {
        self.places(&self.connections, connection).next().is_some()
    }

    /// The connection that a ticket in line came on last.
    pub fn connection_of(&self, ticket: &Ticket) -> Option<ConnectionId> {
        let place = self.place(&Waiter::Ticket(ticket.clone()))?;
        self.order.get(&place)?.wake.as_ref().map(|wake| wake.connection)
    }

    /// Who is first.
    pub fn first(&self) -> Option<&Waiter> {
        self.order.first_key_value().map(|(place, _)| &place.waiter)
    }

    /// Since when the first has been waiting here.
    pub fn first_since(&self) -> Option<Instant> {
        self.order.first_key_value().map(|(_, entry)| entry.since)
    }

    /// For whom the lock is reserved.
    pub fn reserved_for(&self) -> Option<&Ticket> {
        self.reservation.as_ref().map(|reservation| &reservation.ticket)
    }

    /// The last instant until which [`Line::expire`] has nothing to do.
    pub fn due_at(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let until = self.reservation.as_ref().map(|reservation| reservation.until);
        deadline.into_iter().chain(until).min()
    }

    /// Whether a request may have the lock if it is free: nobody waits who comes before it.
    pub fn lets_in(&self, ticket: Option<&Ticket>) -> bool {
        match (self.first(), ticket) {
            (None, _) => true,
            (Some(Waiter::Ticket(first)), Some(ticket)) => ticket <= first,
            (Some(_), _) => false,
        }
    }

    /// Lets a call stand at the end of the line.
    pub fn block(&mut self, call: CallId, token: Token<'_>, deadline: Instant, now: Instant) {
        let slot = self.order.last_key_value().map_or(0, |(place, _)| place.slot + 1);
        let place = Place { slot, waiter: Waiter::Call(call) };
        self.calls.insert(call, slot);
        self.insert(place, token, deadline, now, None);
    }

    /// Lets a ticket stand in line at its place. One that stands there keeps its place: its token,
    /// channel, deadline and connection are those that it brings now.
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
            // It may not have heard, or hear elsewhere now. The reservation is not longer for it.
            reservation.is_told = false;
        }
    }

    /// Takes a waiter out of the line.
    pub fn leave(&mut self, waiter: &Waiter) -> Option<Left> {
        let place = self.place(waiter)?;
        self.take(&place)
    }

    /// Takes out who brought this token last.
    pub fn leave_by_token(&mut self, token: Token<'_>) -> Vec<Left> {
        let places: Vec<Place> = self
            .places(&self.tokens, digest(token.as_bytes()))
            .filter(|place| self.order.get(place).is_some_and(|entry| entry.token.is(token)))
            .cloned()
            .collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Takes out tickets that came on this connection, `most` of them.
    pub fn leave_by_connection(&mut self, connection: ConnectionId, most: usize) -> Vec<Left> {
        let places: Vec<Place> =
            self.places(&self.connections, connection).take(most).cloned().collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Takes out those who stand first, `most` of them.
    pub fn leave_first(&mut self, most: usize) -> Vec<Left> {
        let places: Vec<Place> = self.order.keys().take(most).cloned().collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Takes out waiters whose deadline has passed, and the one that did not use its reservation in
    /// time: `most` of them.
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

    /// Ends the reservation: who did not use it leaves the line, and may come back.
    pub fn lapse(&mut self) -> Option<Left> {
        let ticket = self.reservation.take()?.ticket;
        self.leave(&Waiter::Ticket(ticket))
    }

    /// Notes that the lock has been granted: no reservation goes on.
    pub fn taken(&mut self) {
        self.reservation = None;
    }

    /// Whose turn it is: to be asked when the lock is free, and whenever the line has changed while
    /// it is. A reservation that is made is for `grace`; one for a younger ticket is over at once.
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

    /// Takes out the first, and then everybody else who brought the same token.
    fn leave_with_first(&mut self) -> Vec<Left> {
        let Some((place, entry)) = self.order.first_key_value() else { return Vec::new() };
        let (place, token) = (place.clone(), entry.token.clone());
        let mut left: Vec<Left> = self.take(&place).into_iter().collect();
        if let Ok(token) = Token::new(&token.0, token.0.len()) {
            left.extend(self.leave_by_token(token));
        }
        left
    }

    /// The first, who is to be told of its turn.
    fn wake(&self) -> Turn<'_> {
        match self.order.first_key_value() {
            Some((
                Place { waiter: Waiter::Ticket(ticket), .. },
                Entry { wake: Some(wake), .. },
            )) => Turn::Wake { ticket, channel: &wake.channel },
            Some(_) | None => Turn::Nobody,
        }
    }

    /// Where a new ticket stands: before the next younger one, or at the end.
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

    /// Takes an entry out of all that lists it; a reservation for it is not touched.
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

/// What is told of an entry that is no more.
fn left(waiter: Waiter, entry: Entry) -> Option<Left> {
    match waiter {
        Waiter::Call(call) => Some(Left::Call(call)),
        Waiter::Ticket(ticket) => entry.wake.map(|wake| Left::Ticket(ticket, wake.connection)),
    }
}
