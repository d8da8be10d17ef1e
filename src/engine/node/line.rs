//! The line of one lock: who waits, in which order, and for whom the free lock is reserved.
//!
//! There are two kinds of waiters: calls, which block until they are granted the lock, and tickets,
//! which are woken and then ask for it. Each waits as a writer or as a reader. A place in line is a
//! hint: it keeps newcomers out and determines who is woken next. Only [`Promises::acquire`]
//! grants.
//!
//! Calls are served in the order in which they came. Tickets are served in ticket order, whenever
//! they arrived; all nodes agree on that order. A newcomer of either kind goes to the end, except
//! that a ticket goes before all younger tickets. Readers with no writer before them are served
//! together, so only writers wait for readers.
//!
//! I4: only older tickets are ever put before a ticket that is in line. I5: a reservation is for a
//! ticket that is in line, and a writer's excludes all others. Every operation takes O(log n), and
//! as much again for each waiter or reservation that it ends.
//!
//! [`Promises::acquire`]: super::Promises::acquire

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::direct::{Direct, Grantee, Wish};
use crate::engine::token::digest;
use crate::engine::{Instant, Millis, Mode, Refusal, Ticket, Token};

/// Identifies a blocked call. The caller chooses it, unique among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Identifies the connection of a ticket, which leaves the line when the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A waiter in line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiter {
    /// A command that blocks until it is granted the lock.
    Call(CallId),
    /// A ticket, which is woken when its turn comes.
    Ticket(Ticket),
}

/// The number of waiters at a node, over all locks, and the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterLimit {
    /// How many wait.
    pub waiters: usize,
    /// How many may wait.
    pub max: usize,
}

impl WaiterLimit {
    /// Whether there is room for one more.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`] if there is not.
    pub fn check(self) -> Result<(), Refusal> {
        let WaiterLimit { waiters, max } = self;
        if waiters < max { Ok(()) } else { Err(Refusal::QueueFull { waiters, max }) }
    }
}

/// A ticket, and what the line keeps with it.
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
    /// The mode in which it asks for the lock.
    pub mode: Mode,
    /// How many may wait at this node.
    pub limit: WaiterLimit,
    /// What a grant needs, if the node may grant it the lock without another request.
    pub direct: Option<Direct<'a>>,
}

/// A waiter that has left the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// A call, which needs a reply.
    Call(CallId),
    /// A ticket, the connection that it came on, and the channel on which it is woken.
    Ticket(Ticket, ConnectionId, Box<[u8]>),
}

/// Whose turn it is, now that the first in line may have the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn<'a> {
    /// Nobody waits.
    Nobody,
    /// The first of these calls is to be granted the lock. The others have the same token, and the
    /// same grant answers them. All of them have left the line.
    Grant(Vec<Left>),
    /// The lock is reserved for this ticket, which must be woken on its channel. Other readers may
    /// have their turn with it.
    Wake {
        /// Whose turn it is.
        ticket: &'a Ticket,
        /// The channel to publish it on.
        channel: &'a [u8],
    },
    /// The lock is reserved, and all tickets whose turn it is have been woken.
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
    /// The places of writers.
    writers: BTreeSet<Place>,
    /// The places of readers that have not been woken for their turn.
    readers: BTreeSet<Place>,
    /// Tickets for which the lock is reserved.
    reserved: BTreeSet<Place>,
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
    mode: Mode,
    since: Instant,
    deadline: Instant,
    /// Set for a ticket.
    wake: Option<Wake>,
    /// Set for a ticket whose turn it is.
    reservation: Option<Reservation>,
}

impl Entry {
    /// The last instant in line.
    fn due_at(&self) -> Instant {
        let until = self.reservation.as_ref().map(|reservation| reservation.until);
        until.map_or(self.deadline, |until| until.min(self.deadline))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Wake {
    channel: Box<[u8]>,
    connection: ConnectionId,
    asked: Option<Wish>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Reservation {
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

    /// When this waiter got in line.
    pub fn since_of(&self, waiter: &Waiter) -> Option<Instant> {
        self.order.get(&self.place(waiter)?).map(|entry| entry.since)
    }

    /// Whether a ticket of this connection is in line.
    pub fn has_connection(&self, connection: ConnectionId) -> bool {
        self.places(&self.connections, connection).next().is_some()
    }

    /// The last connection on which a ticket in line came.
    pub fn connection_of(&self, ticket: &Ticket) -> Option<ConnectionId> {
        let place = self.place(&Waiter::Ticket(ticket.clone()))?;
        self.order.get(&place)?.wake.as_ref().map(|wake| wake.connection)
    }

    /// The first waiter.
    pub fn first(&self) -> Option<&Waiter> {
        self.order.first_key_value().map(|(place, _)| &place.waiter)
    }

    /// When the first waiter got in line.
    pub fn first_since(&self) -> Option<Instant> {
        self.order.first_key_value().map(|(_, entry)| entry.since)
    }

    /// The mode in which the first waiter asks for the lock.
    pub fn first_mode(&self) -> Option<Mode> {
        self.order.first_key_value().map(|(_, entry)| entry.mode)
    }

    /// How many wait as readers.
    pub fn readers(&self) -> usize {
        self.order.len() - self.writers.len()
    }

    /// The tickets that the lock is reserved for.
    pub fn reserved_for(&self) -> impl Iterator<Item = &Ticket> {
        self.reserved.iter().filter_map(|place| match &place.waiter {
            Waiter::Ticket(ticket) => Some(ticket),
            Waiter::Call(_) => None,
        })
    }

    /// Up to this instant, [`Line::expire`] has nothing to do.
    pub fn due_at(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Whether nobody in line keeps this request out. Any waiter before it keeps out a writer; only
    /// a writer keeps out a reader. If there is not room for all readers in line, those before it
    /// keep a reader out too, unless it is its turn. `room`: how many more readers may hold the
    /// lock.
    pub fn lets_in(&self, mode: Mode, ticket: Option<&Ticket>, room: usize) -> bool {
        let in_turn = || room > self.readers() || self.has_turn(ticket, room);
        let first = match mode {
            Mode::Shared if in_turn() => self.writers.first(),
            Mode::Shared | Mode::Exclusive => self.order.first_key_value().map(|(place, _)| place),
        };
        let (Some(first), Some(ticket)) = (first, ticket) else { return first.is_none() };
        let waiter = Waiter::Ticket(ticket.clone());
        let place = self.place(&waiter);
        place.unwrap_or_else(|| Place { slot: self.slot_of(ticket), waiter }) <= *first
    }

    /// Whether the lock is reserved for this ticket, and stays so if the turns of readers for whom
    /// there is no room end.
    fn has_turn(&self, ticket: Option<&Ticket>, room: usize) -> bool {
        let place = ticket.and_then(|ticket| self.place(&Waiter::Ticket(ticket.clone())));
        let excess = self.reserved_readers().saturating_sub(room);
        // Those of the last in line end.
        let stays = |place: &Place| self.reserved.range(place..).nth(excess).is_some();
        place.is_some_and(|place| self.reserved.contains(&place) && stays(&place))
    }

    /// Ends the reservation of a ticket.
    pub fn end_turn(&mut self, ticket: &Ticket) {
        if let Some(place) = self.place(&Waiter::Ticket(ticket.clone())) {
            self.reserve(&place, None);
        }
    }

    /// Whether a ticket is in line, or may be put there.
    ///
    /// # Errors
    /// As [`WaiterLimit::check`].
    pub fn check_room(&self, queued: &Queued<'_>) -> Result<(), Refusal> {
        let is_known = self.tickets.contains_key(&queued.ticket);
        if is_known { Ok(()) } else { queued.limit.check() }
    }

    /// Puts a call at the end of the line.
    pub fn block(
        &mut self,
        call: CallId,
        (token, mode): (Token<'_>, Mode),
        deadline: Instant,
        now: Instant,
    ) {
        let slot = self.order.last_key_value().map_or(0, |(place, _)| place.slot + 1);
        let place = Place { slot, waiter: Waiter::Call(call) };
        self.calls.insert(call, slot);
        let token = Secret(token.as_bytes().into());
        let (since, wake, reservation) = (now, None, None);
        self.insert(place, Entry { token, mode, since, deadline, wake, reservation });
    }

    /// Puts a ticket in line. One that is in line already keeps its place, with its new token,
    /// channel, deadline and connection.
    pub fn register(&mut self, token: Token<'_>, queued: &Queued<'_>, now: Instant) {
        let waiter = Waiter::Ticket(queued.ticket.clone());
        let (place, before) = match self.place(&waiter) {
            Some(place) => {
                let before = self.remove(&place);
                (place, before)
            }
            None => (Place { slot: self.slot_of(&queued.ticket), waiter }, None),
        };
        self.tickets.insert(queued.ticket.clone(), place.slot);
        // A ticket whose wait is over is not granted the lock after its answer.
        let direct = queued.direct.filter(|_| now < queued.deadline);
        let asked = direct.map(|direct| Wish::of(direct, now));
        let wake =
            Some(Wake { channel: queued.channel.into(), connection: queued.connection, asked });
        let (token, mode, deadline) =
            (Secret(token.as_bytes().into()), queued.mode, queued.deadline);
        let since = before.as_ref().map_or(now, |entry| entry.since);
        // It may have missed the wake, or may listen on another channel now. The reservation does
        // not last longer. A ticket that asks in another mode loses it, because it was for the
        // former mode.
        let before = before.filter(|entry| entry.mode == mode);
        let reservation = before.and_then(|entry| entry.reservation);
        let reservation =
            reservation.map(|reservation| Reservation { is_told: false, ..reservation });
        self.insert(place, Entry { token, mode, since, deadline, wake, reservation });
    }

    /// Removes a waiter.
    pub fn leave(&mut self, waiter: &Waiter) -> Option<Left> {
        let place = self.place(waiter)?;
        self.take(&place)
    }

    /// Removes the waiters whose last token is this one, except `remaining`.
    pub fn leave_by_token(&mut self, token: Token<'_>, remaining: Option<&Ticket>) -> Vec<Left> {
        let remains =
            |place: &&Place| matches!(&place.waiter, Waiter::Ticket(it) if Some(it) == remaining);
        let places = self.places_of(token).filter(|place| !remains(place));
        let places: Vec<Place> = places.cloned().collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// The places of the waiters whose last token is this one.
    fn places_of<'a>(&'a self, token: Token<'a>) -> impl Iterator<Item = &'a Place> {
        self.places(&self.tokens, digest(token.as_bytes()))
            .filter(move |place| self.order.get(place).is_some_and(|entry| entry.token.is(token)))
    }

    /// Removes tickets of this connection, at most `most`.
    pub fn leave_by_connection(&mut self, connection: ConnectionId, most: usize) -> Vec<Left> {
        let places: Vec<Place> =
            self.places(&self.connections, connection).take(most).cloned().collect();
        places.iter().filter_map(|place| self.take(place)).collect()
    }

    /// Removes the first waiter.
    pub fn leave_first(&mut self) -> Option<Left> {
        let place = self.order.keys().next().cloned()?;
        self.take(&place)
    }

    /// Removes tickets that did not use their reservations in time, and waiters whose deadline has
    /// passed: at most `most` in all.
    pub fn expire(&mut self, now: Instant, most: usize) -> Vec<Left> {
        let mut left = Vec::new();
        while left.len() < most
            && let Some((deadline, place)) = self.deadlines.first()
            && *deadline < now
        {
            let place = place.clone();
            left.extend(self.take(&place));
        }
        left
    }

    /// Notes that the lock has been granted, which ends the reservations of all waiters that it
    /// keeps out.
    pub fn taken(&mut self, mode: Mode) {
        // If there is one for a writer, it is the only one (I5).
        while let Some(place) = self.reserved.first().cloned()
            && (!mode.is_shared() || self.writers.contains(&place))
        {
            self.reserve(&place, None);
        }
    }

    /// The first in line, if the node may now grant it the lock without another request: a writer's
    /// ticket whose last request asked for that, not long ago, and whose token no other waiter has.
    pub fn first_to_grant(&self, now: Instant) -> Option<Grantee> {
        let (place, entry) = self.order.first_key_value()?;
        let Waiter::Ticket(ticket) = &place.waiter else { return None };
        let wake = entry.wake.as_ref()?;
        let asked = wake.asked.as_ref().filter(|asked| now <= asked.until)?;
        // Another waiter with the same token is answered when the ticket asks.
        let token = Token::new(&entry.token.0, entry.token.0.len()).ok()?;
        if self.places_of(token).count() > 1 {
            return None;
        }
        (entry.mode == Mode::Exclusive).then(|| Grantee {
            ticket: ticket.clone(),
            channel: wake.channel.clone(),
            connection: wake.connection,
            token: entry.token.0.clone(),
            ttl: asked.ttl,
            label: asked.label.clone(),
            number: asked.number,
            since: entry.since,
        })
    }

    /// Returns whose turn it is. Call it when the first in line may have the lock, after each
    /// change of lock or line, until nobody is left to serve. If the first is a reader, it is the
    /// turn of all readers before the first writer, but of no more than there is `room` for. A new
    /// reservation lasts for `grace`. Reservations of younger tickets for which it leaves no room
    /// end at the next call.
    pub fn serve(&mut self, now: Instant, grace: Millis, room: usize) -> Turn<'_> {
        self.end_turns_above(room);
        let Some((first, entry)) = self.order.first_key_value() else { return Turn::Nobody };
        let place = match entry.mode {
            Mode::Exclusive => first.clone(),
            Mode::Shared => match (self.readers.first(), self.writers.first()) {
                (None, _) => return Turn::Reserved,
                (Some(reader), Some(writer)) if reader > writer => return Turn::Reserved,
                (Some(reader), _) => reader.clone(),
            },
        };
        match &place.waiter {
            _ if self.is_behind(&place, room) => Turn::Reserved,
            Waiter::Call(_) => Turn::Grant(self.leave_with(&place)),
            Waiter::Ticket(_) => self.wake(place, now, grace),
        }
    }

    /// Removes a waiter, and all others with the same token.
    fn leave_with(&mut self, place: &Place) -> Vec<Left> {
        let Some(entry) = self.order.get(place) else { return Vec::new() };
        let token = entry.token.clone();
        let mut left: Vec<Left> = self.take(place).into_iter().collect();
        if let Ok(token) = Token::new(&token.0, token.0.len()) {
            left.extend(self.leave_by_token(token, None));
        }
        left
    }

    /// Reserves the lock for a ticket, which must be woken.
    fn wake(&mut self, place: Place, now: Instant, grace: Millis) -> Turn<'_> {
        let Some(entry) = self.order.get(&place) else { return Turn::Nobody };
        let (mode, until) = match entry.reservation {
            Some(Reservation { is_told: true, .. }) => return Turn::Reserved,
            Some(Reservation { until, .. }) => (entry.mode, until),
            None => (entry.mode, now.after(grace)),
        };
        // A writer has it alone.
        self.taken(mode);
        self.reserve(&place, Some(Reservation { until, is_told: true }));
        match self.order.get_key_value(&place) {
            Some((
                Place { waiter: Waiter::Ticket(ticket), .. },
                Entry { wake: Some(wake), .. },
            )) => Turn::Wake { ticket, channel: &wake.channel },
            Some(_) | None => Turn::Nobody,
        }
    }

    /// Whether a reader, the first without a turn, is behind as many readers with a turn as there
    /// is room for.
    fn is_behind(&self, place: &Place, room: usize) -> bool {
        self.reserved_readers() >= room && self.reserved.last().is_some_and(|last| last < place)
    }

    /// Ends the turns of the last readers in line, if more have one than there is room for.
    pub(super) fn end_turns_above(&mut self, room: usize) {
        while self.reserved_readers() > room
            && let Some(last) = self.reserved.last().cloned()
        {
            self.reserve(&last, None);
        }
    }

    /// The number of readers that the lock is reserved for.
    fn reserved_readers(&self) -> usize {
        let is_writer = self.reserved.first().is_some_and(|place| self.writers.contains(place));
        if is_writer { 0 } else { self.reserved.len() }
    }

    /// Sets or ends the reservation of a ticket.
    fn reserve(&mut self, place: &Place, reservation: Option<Reservation>) {
        if let Some(mut entry) = self.unindex(place) {
            entry.reservation = reservation;
            self.insert(place.clone(), entry);
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

    fn insert(&mut self, place: Place, entry: Entry) {
        self.deadlines.insert((entry.due_at(), place.clone()));
        self.tokens.insert((digest(&entry.token.0), place.clone()));
        if let Some(wake) = &entry.wake {
            self.connections.insert((wake.connection, place.clone()));
        }
        let is_told = entry.reservation.is_some_and(|reservation| reservation.is_told);
        match entry.mode {
            Mode::Exclusive => drop(self.writers.insert(place.clone())),
            Mode::Shared if is_told => {}
            Mode::Shared => drop(self.readers.insert(place.clone())),
        }
        if entry.reservation.is_some() {
            self.reserved.insert(place.clone());
        }
        self.order.insert(place, entry);
    }

    /// Removes an entry, so that it can be changed.
    fn unindex(&mut self, place: &Place) -> Option<Entry> {
        let entry = self.order.remove(place)?;
        self.deadlines.remove(&(entry.due_at(), place.clone()));
        self.tokens.remove(&(digest(&entry.token.0), place.clone()));
        if let Some(wake) = &entry.wake {
            self.connections.remove(&(wake.connection, place.clone()));
        }
        self.writers.remove(place);
        self.readers.remove(place);
        self.reserved.remove(place);
        Some(entry)
    }

    /// Removes an entry permanently.
    fn remove(&mut self, place: &Place) -> Option<Entry> {
        let entry = self.unindex(place)?;
        match &place.waiter {
            Waiter::Call(call) => self.calls.remove(call),
            Waiter::Ticket(ticket) => self.tickets.remove(ticket),
        };
        Some(entry)
    }

    fn take(&mut self, place: &Place) -> Option<Left> {
        let entry = self.remove(place)?;
        left(place.waiter.clone(), entry)
    }
}

/// The waiter that a removed entry was for.
fn left(waiter: Waiter, entry: Entry) -> Option<Left> {
    match waiter {
        Waiter::Call(call) => Some(Left::Call(call)),
        Waiter::Ticket(ticket) => {
            entry.wake.map(|wake| Left::Ticket(ticket, wake.connection, wake.channel))
        }
    }
}
