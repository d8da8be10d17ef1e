//! The lines of a node: which locks have one, which waiters are in it, and when to look at it.
//!
//! This is only bookkeeping: [`super::serving`] decides whom to serve. One event may concern every
//! line, so they are looked at in [`BATCH`]es. Only [`Lines::oldest`], for INFO, goes through all
//! of them at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::{CallId, ConnectionId, Effect, Left, Line, Node, Parting, Queued, Waiter, WaiterLimit};
use crate::engine::{Fence, Histogram, Instant, Millis, Mode, Refusal};

/// How many lines are looked at in one go, and how many waiters leave a line in one go.
pub(super) const BATCH: usize = 32;

/// The lock of a line: its database and its name.
pub type LockName = (u32, Arc<[u8]>);

/// All waiters at a node.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    lines: BTreeMap<u32, BTreeMap<Arc<[u8]>, Watched>>,
    pub(super) calls: BTreeMap<CallId, Call>,
    /// The lines with tickets of each connection.
    connections: BTreeMap<ConnectionId, BTreeSet<LockName>>,
    /// Each line must be looked at after this instant.
    due: BTreeSet<(Instant, LockName)>,
    /// Lines that must be looked at.
    changed: BTreeSet<LockName>,
    /// A look at all lines, if one is under way.
    sweep: Sweep,
    /// Closed connections, and the lines where they may still have tickets.
    leaving: VecDeque<(ConnectionId, BTreeSet<LockName>)>,
    /// How many wait.
    count: usize,
    /// How many of them wait as readers.
    reader_count: usize,
    /// How many lines there are.
    line_count: usize,
    /// How long waiters had waited when they were granted a lock.
    pub(super) waits: Histogram,
    /// When the alarm is set to go off.
    alarm_at: Option<Instant>,
}

/// A look at all lines, in their order, a part at a time.
#[derive(Clone, Debug)]
struct Sweep {
    /// Where to go on: at this line, or the next one that exists.
    next: Option<LockName>,
    /// All lines must be looked at once more, because of an event since the sweep began.
    again: bool,
}

impl Sweep {
    const NONE: Sweep = Sweep { next: None, again: false };

    fn start() -> LockName {
        (0, Arc::from([]))
    }
}

/// A line, and what is known about its lock.
#[derive(Clone, Debug, Default)]
struct Watched {
    line: Line,
    /// The lock need not be looked at up to this instant, such as the end of its lease.
    lock_until: Option<Instant>,
    /// A holder has handed the lock over, and the next look at the line may grant it.
    hands_over: bool,
    due: Option<Instant>,
}

/// A request that blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub id: CallId,
    /// The lock that it waits for.
    pub name: LockName,
    /// Its token.
    pub token: Box<[u8]>,
    /// The ttl that it asked for.
    pub ttl: Millis,
    /// The mode in which it asked for the lock.
    pub mode: Mode,
    /// Its label.
    pub label: Box<[u8]>,
    /// The user who asked: its access rules may change while it waits.
    pub user: Box<[u8]>,
    /// When its wait began.
    pub since: Instant,
}

/// A grant that may have to be withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Granted {
    /// The token of the grant.
    pub token: Box<[u8]>,
    /// The fence of the grant.
    pub fence: Fence,
    /// The lock.
    pub name: LockName,
}

impl Lines {
    /// Nobody waits.
    pub(super) const NONE: Lines = Lines {
        lines: BTreeMap::new(),
        calls: BTreeMap::new(),
        connections: BTreeMap::new(),
        due: BTreeSet::new(),
        changed: BTreeSet::new(),
        sweep: Sweep::NONE,
        leaving: VecDeque::new(),
        count: 0,
        reader_count: 0,
        line_count: 0,
        waits: Histogram::EMPTY,
        alarm_at: None,
    };

    /// Whether anybody waits.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.line_count > 0
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// How many of them wait as readers.
    pub(super) fn reader_count(&self) -> usize {
        self.reader_count
    }

    /// The earliest start of a wait among the waiters that are first in their line.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let lines = self.lines.values().flat_map(BTreeMap::values);
        lines.filter_map(|watched| watched.line.first_since()).min()
    }

    /// The line of a lock, if anybody waits.
    pub(super) fn line(&self, database: u32, name: &[u8]) -> Option<&Line> {
        self.lines.get(&database)?.get(name).map(|watched| &watched.line)
    }

    /// Uses the line of a lock, which may be empty before and after. An empty line is not kept.
    pub(super) fn with_line<R>(
        &mut self,
        database: u32,
        name: &[u8],
        work: impl FnOnce(&mut Line) -> R,
    ) -> R {
        let known = self.lines.get_mut(&database).and_then(|names| names.get_mut(name));
        if let Some(watched) = known {
            let (before, readers) = (watched.line.len(), watched.line.readers());
            let result = work(&mut watched.line);
            self.count = self.count + watched.line.len() - before;
            self.reader_count = self.reader_count + watched.line.readers() - readers;
            self.reindex(database, name);
            return result;
        }
        let mut watched = Watched::default();
        let result = work(&mut watched.line);
        if !watched.line.is_empty() {
            self.count += watched.line.len();
            self.reader_count += watched.line.readers();
            self.lines.entry(database).or_default().insert(name.into(), watched);
            self.line_count += 1;
            self.reindex(database, name);
        }
        result
    }

    /// The same for a request that may bring a ticket. Also returns whether the ticket is in line
    /// afterwards.
    pub(super) fn with_ticket<R>(
        &mut self,
        (database, name): (u32, &[u8]),
        queued: Option<&Queued<'_>>,
        now: Instant,
        work: impl FnOnce(&mut Line) -> R,
    ) -> (R, bool) {
        let Some(queued) = queued else { return (self.with_line(database, name, work), false) };
        let (ticket, mut before) = (&queued.ticket, (None, None));
        let (result, connection) = self.with_line(database, name, |line| {
            let waiter = Waiter::Ticket(ticket.clone());
            before = (line.connection_of(ticket), line.since_of(&waiter));
            (work(line), line.connection_of(ticket))
        });
        let (was_there, since) = before;
        if let Some(old) = was_there {
            self.part_connection(&(database, name.into()), old);
        }
        match connection {
            // A request that was refused has not brought its ticket to this connection, and the one
            // that the ticket still has may be closed.
            Some(_) if connection == was_there => {}
            Some(connection) => {
                // Shares the name that the line has, so that it is kept only once.
                let names = self.lines.get(&database).and_then(|names| names.get_key_value(name));
                let name = names.map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
                self.connections.entry(connection).or_default().insert((database, name));
            }
            None => {
                if let Some(since) = since {
                    self.waits.record(since.until(now));
                }
            }
        }
        (result, connection.is_some())
    }

    /// Notes until when a lock need not be looked at. The next [`Lines::with_line`] takes it into
    /// account.
    pub(super) fn set_lock_until(&mut self, database: u32, name: &[u8], until: Option<Instant>) {
        if let Some(watched) = self.watched((database, name)) {
            watched.lock_until = until;
        }
    }

    /// Notes that the next look that answers a ring hands the lock over.
    pub(super) fn hand_over_later(&mut self, place: (u32, &[u8])) {
        if let Some(watched) = self.watched(place) {
            watched.hands_over = true;
        }
    }

    /// Whether this look hands the lock over. The next one does not.
    pub(super) fn is_to_hand_over(&mut self, place: (u32, &[u8])) -> bool {
        self.watched(place).is_some_and(|watched| std::mem::take(&mut watched.hands_over))
    }

    fn watched(&mut self, (database, name): (u32, &[u8])) -> Option<&mut Watched> {
        self.lines.get_mut(&database)?.get_mut(name)
    }

    /// Updates when a line must be looked at, and drops it if it is empty.
    fn reindex(&mut self, database: u32, name: &[u8]) {
        let Some(names) = self.lines.get_mut(&database) else { return };
        let Some((key, watched)) = names.get_key_value(name) else { return };
        let (key, was_due) = (Arc::clone(key), watched.due);
        let due = if watched.line.is_empty() {
            names.remove(name);
            self.line_count -= 1;
            None
        } else {
            watched.line.due_at().into_iter().chain(watched.lock_until).min()
        };
        if due == was_due {
            return;
        }
        if let Some(watched) = names.get_mut(name) {
            watched.due = due;
        }
        if let Some(was_due) = was_due {
            self.due.remove(&(was_due, (database, Arc::clone(&key))));
        }
        if let Some(due) = due {
            self.due.insert((due, (database, key)));
        }
    }

    /// Notes that all lines must be looked at.
    pub(super) fn all_changed(&mut self) {
        self.sweep.again = self.sweep.next.is_some();
        self.sweep.next.get_or_insert_with(Sweep::start);
    }

    /// Takes up to [`BATCH`] names of lines that must be looked at; `None` if nothing is left to
    /// do.
    pub(super) fn next_batch(&mut self, now: Instant) -> Option<Vec<LockName>> {
        self.let_leave(BATCH);
        let mut names: BTreeSet<LockName> = BTreeSet::new();
        while names.len() < BATCH
            && let Some(name) = self.changed.pop_first()
        {
            names.insert(name);
        }
        let due = self.due.iter().take_while(|(due, _)| *due < now);
        names.extend(due.take(BATCH - names.len()).map(|(_, name)| name.clone()));
        if names.len() < BATCH {
            names.extend(self.sweep_on(BATCH - names.len()));
        }
        let is_over = names.is_empty() && self.leaving.is_empty() && self.sweep.next.is_none();
        (!is_over).then(|| names.into_iter().collect())
    }

    /// Takes the next lines of a sweep, at most `most`.
    fn sweep_on(&mut self, most: usize) -> Vec<LockName> {
        let Some((database, name)) = self.sweep.next.take() else { return Vec::new() };
        let lines = self.lines.range(database..).flat_map(|(&other, names)| {
            let is_first = other == database;
            let from = if is_first { Bound::Included(&name[..]) } else { Bound::Unbounded };
            let names = names.range::<[u8], _>((from, Bound::Unbounded));
            names.map(move |(name, _)| (other, Arc::clone(name)))
        });
        let mut names: Vec<LockName> = lines.take(most + 1).collect();
        self.sweep.next = match names.len() > most {
            true => names.pop(),
            false => std::mem::take(&mut self.sweep.again).then(Sweep::start),
        };
        names
    }

    /// Notes that a connection is closed.
    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        if let Some(names) = self.connections.remove(&connection) {
            self.leaving.push_back((connection, names));
        }
    }

    /// Removes about `most` tickets of closed connections, and notes that their lines have changed.
    fn let_leave(&mut self, most: usize) {
        let mut left = 0;
        while left < most
            && let Some((connection, mut names)) = self.leaving.pop_front()
        {
            if let Some(name) = names.pop_first() {
                let take = |line: &mut Line| line.leave_by_connection(connection, most);
                let count = self.with_line(name.0, &name.1, take).len();
                self.note_change(name.0, &name.1);
                if count == most {
                    names.insert(name);
                }
                left += count.max(1);
                self.leaving.push_front((connection, names));
            }
        }
    }

    /// Notes that a line must be looked at, if there is one. Returns whether there is.
    pub(super) fn note_change(&mut self, database: u32, name: &[u8]) -> bool {
        let names = self.lines.get(&database).and_then(|names| names.get_key_value(name));
        let name = names.map(|(name, _)| Arc::clone(name));
        name.is_some_and(|name| {
            self.changed.insert((database, name));
            true
        })
    }

    /// When the alarm must go off, if it must be set anew.
    pub(super) fn next_alarm(&mut self) -> Option<Instant> {
        let (due, _) = self.due.first()?;
        let at = due.after(Millis::new(1));
        // An alarm that is set earlier goes off with nothing to do, and is then set again.
        if self.alarm_at.is_some_and(|set| set <= at) {
            return None;
        }
        self.alarm_at = Some(at);
        Some(at)
    }

    /// Notes that the alarm has gone off.
    pub(super) fn rang(&mut self) {
        self.alarm_at = None;
    }

    /// Forgets waiters that have left a line. Returns the calls among them, which need a reply.
    pub(super) fn part(&mut self, (database, name): (u32, &[u8]), left: Vec<Left>) -> Vec<Call> {
        let mut calls = Vec::new();
        for left in left {
            match left {
                Left::Call(id) => calls.extend(self.calls.remove(&id)),
                Left::Ticket(_, connection, _) => {
                    self.part_connection(&(database, name.into()), connection);
                }
            }
        }
        calls
    }

    /// Notes that a connection may have no ticket left in a line.
    fn part_connection(&mut self, name: &LockName, connection: ConnectionId) {
        if self.line(name.0, &name.1).is_some_and(|line| line.has_connection(connection)) {
            return;
        }
        if let Some(names) = self.connections.get_mut(&connection) {
            names.remove(name);
            if names.is_empty() {
                self.connections.remove(&connection);
            }
        }
    }
}

impl Node {
    /// Whether anybody waits at this node.
    #[inline]
    pub fn has_lines(&self) -> bool {
        self.lines.any()
    }

    /// How many wait at this node, and how many may: `max`.
    pub fn waiter_limit(&self, max: usize) -> WaiterLimit {
        WaiterLimit { waiters: self.waiters(), max }
    }

    /// How many wait at this node.
    pub fn waiters(&self) -> usize {
        self.lines.count()
    }

    /// How many wait at this node as readers.
    pub fn waiting_readers(&self) -> usize {
        self.lines.reader_count()
    }

    /// The line of a lock, if anybody waits.
    pub fn line(&self, place: (u32, &[u8])) -> Option<&Line> {
        self.lines.line(place.0, place.1)
    }

    /// The longest wait among the waiters that are first in their line.
    pub fn longest_wait(&self, now: Instant) -> Millis {
        self.lines.oldest().map_or(Millis::ZERO, |since| since.until(now))
    }

    /// How long waiters had waited when they were granted a lock.
    pub fn waits(&self) -> &Histogram {
        &self.lines.waits
    }

    /// Refuses and removes writers' calls if the grant that would answer `calls` is a reader's.
    pub(super) fn refuse_upgrades(&mut self, calls: &mut Vec<Call>, mode: Mode) {
        calls.retain(|call| {
            let is_answered = !mode.is_shared() || call.mode.is_shared();
            if !is_answered {
                self.tally.refused(&Refusal::NoUpgrade);
                let refused = Parting::Refused(Refusal::NoUpgrade);
                self.effects.push_back(Effect::Part(call.id, refused));
            }
            is_answered
        });
    }

    /// Answers the calls among the waiters that have left a line. Returns how many.
    pub(super) fn part(
        &mut self,
        place: (u32, &[u8]),
        left: Vec<Left>,
        parting: &Parting,
    ) -> usize {
        if left.is_empty() {
            return 0;
        }
        let calls = self.lines.part(place, left);
        for call in &calls {
            self.effects.push_back(Effect::Part(call.id, parting.clone()));
        }
        calls.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Ticket, Token, WaiterLimit};

    /// The connection was kept with the line until it closed, and another look was taken then.
    #[test]
    fn a_refused_request_brings_its_ticket_to_no_other_connection() {
        let (mut lines, now) = (Lines::NONE, Instant::default());
        let queued = |connection| Queued {
            ticket: Ticket::parse(b"1-a").unwrap(),
            channel: b"c",
            deadline: now,
            connection: ConnectionId(connection),
            mode: Mode::Exclusive,
            limit: WaiterLimit { waiters: 0, max: 9 },
            direct: None,
        };
        let token = Token::new(b"waits", 64).unwrap();
        let ask = |lines: &mut Lines, connection, is_refused: bool| {
            let queued = queued(connection);
            let (_, is_there) = lines.with_ticket((0, b"lock"), Some(&queued), now, |line| {
                if !is_refused {
                    line.register(token, &queued, now);
                }
            });
            assert!(is_there);
            lines.connections.keys().map(|connection| connection.0).collect::<Vec<_>>()
        };
        for (connection, is_refused, known) in [(1, false, 1), (2, true, 1), (3, false, 3)] {
            assert_eq!(ask(&mut lines, connection, is_refused), [known]);
        }
        lines.disconnect(ConnectionId(3));
        assert_eq!(ask(&mut lines, 4, true), [0_u64; 0], "3 is closed");
    }
}
