//! The lines of this node: where they are, who is in them, and when each has to be looked at.
//!
//! Only bookkeeping: no server is called here. What becomes of it is in [`super::waiters`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ffi::waiting::Blocked;
use crate::engine::{CallId, ConnectionId, Fence, Histogram, Instant, Left, Line, Millis};

/// How many lines there are.
static LINES: AtomicUsize = AtomicUsize::new(0);

/// Whether anybody waits at this node.
#[inline]
pub(super) fn any() -> bool {
    LINES.load(Ordering::Relaxed) > 0
}

/// The lock that a line is before: its database and its name.
pub(super) type LockName = (u32, Arc<[u8]>);

/// All who wait at this node.
pub(super) struct Waiters {
    pub(super) lines: BTreeMap<u32, BTreeMap<Arc<[u8]>, Place>>,
    pub(super) calls: BTreeMap<CallId, Call>,
    /// Where the tickets stand that came on a connection.
    pub(super) connections: BTreeMap<ConnectionId, BTreeSet<LockName>>,
    /// The last instant at which each line needs nothing.
    pub(super) due: BTreeSet<(Instant, LockName)>,
    /// Lines that are to be looked at.
    changed: BTreeSet<LockName>,
    /// Whether all lines are, and how far that is.
    pub(super) sweep: Sweep,
    /// Connections that are gone, and where they may still have tickets.
    leaving: VecDeque<(ConnectionId, BTreeSet<LockName>)>,
    /// Grants whose clients have gone, to be taken back when writes are not paused any more.
    pub(super) undelivered: Vec<Granted>,
    pub(super) count: usize,
    /// For how long those stood in line who were granted the lock.
    pub(super) waits: Histogram,
    /// What the alarm is set to.
    pub(super) alarm_at: Option<Instant>,
    pub(super) is_ringing: bool,
}

/// A look at all lines, in their order, a part at a time.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The next line to look at is this, or behind it.
    next: Option<LockName>,
    /// Something has happened to all of them since it began.
    again: bool,
}

impl Sweep {
    const NONE: Sweep = Sweep { next: None, again: false };

    /// All lines are to be looked at from now on.
    pub(super) fn begin(&mut self) {
        self.again = self.next.is_some();
        self.next.get_or_insert_with(Sweep::start);
    }

    fn start() -> LockName {
        (0, Arc::from([]))
    }
}

/// A line, and what is known of its lock.
#[derive(Default)]
pub(super) struct Place {
    pub(super) line: Line,
    /// The last instant at which the lock need not be looked at: the end of its lease.
    pub(super) lock_until: Option<Instant>,
    pub(super) due: Option<Instant>,
}

/// A request that blocks.
pub(super) struct Call {
    pub(super) blocked: Blocked,
    pub(super) name: LockName,
    pub(super) token: Box<[u8]>,
    pub(super) ttl: Millis,
    pub(super) label: Box<[u8]>,
    /// Who asked: its access rules may change while it waits.
    pub(super) user: Box<[u8]>,
    pub(super) since: Instant,
}

/// A grant that may have to be taken back.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) name: LockName,
    pub(super) token: Box<[u8]>,
    pub(super) fence: Fence,
}

impl Waiters {
    /// Nobody waits.
    pub(super) const NONE: Waiters = Waiters {
        lines: BTreeMap::new(),
        calls: BTreeMap::new(),
        connections: BTreeMap::new(),
        due: BTreeSet::new(),
        changed: BTreeSet::new(),
        sweep: Sweep::NONE,
        leaving: VecDeque::new(),
        undelivered: Vec::new(),
        count: 0,
        waits: Histogram::EMPTY,
        alarm_at: None,
        is_ringing: false,
    };

    pub(super) fn place(&self, database: u32, name: &[u8]) -> Option<&Place> {
        self.lines.get(&database)?.get(name)
    }

    /// Uses the line before a lock, which may be empty before and after. One that is empty is not
    /// kept, and costs nothing.
    pub(super) fn with_line<R>(
        &mut self,
        database: u32,
        name: &[u8],
        work: impl FnOnce(&mut Line) -> R,
    ) -> R {
        if let Some(place) = self.lines.get_mut(&database).and_then(|names| names.get_mut(name)) {
            let before = place.line.len();
            let result = work(&mut place.line);
            self.count = self.count + place.line.len() - before;
            self.reindex(database, name);
            return result;
        }
        let mut place = Place::default();
        let result = work(&mut place.line);
        if !place.line.is_empty() {
            self.count += place.line.len();
            self.lines.entry(database).or_default().insert(name.into(), place);
            LINES.fetch_add(1, Ordering::Relaxed);
            self.reindex(database, name);
        }
        result
    }

    /// Notes until when a lock need not be looked at; [`Waiters::with_line`] heeds it.
    pub(super) fn set_lock_until(&mut self, database: u32, name: &[u8], until: Option<Instant>) {
        let place = self.lines.get_mut(&database).and_then(|names| names.get_mut(name));
        if let Some(place) = place {
            place.lock_until = until;
        }
    }

    /// Sees to it that a line is looked at when it has to be, and is not kept when it is empty.
    fn reindex(&mut self, database: u32, name: &[u8]) {
        let Some(names) = self.lines.get_mut(&database) else { return };
        let Some((key, place)) = names.get_key_value(name) else { return };
        let (key, was_due) = (Arc::clone(key), place.due);
        let due = if place.line.is_empty() {
            names.remove(name);
            LINES.fetch_sub(1, Ordering::Relaxed);
            None
        } else {
            place.line.due_at().into_iter().chain(place.lock_until).min()
        };
        if due == was_due {
            return;
        }
        if let Some(place) = names.get_mut(name) {
            place.due = due;
        }
        if let Some(was_due) = was_due {
            self.due.remove(&(was_due, (database, Arc::clone(&key))));
        }
        if let Some(due) = due {
            self.due.insert((due, (database, key)));
        }
    }

    /// The name of a lock that somebody waits for.
    pub(super) fn any_name(&self) -> Option<LockName> {
        let of_database = |(&database, names): (&u32, &BTreeMap<Arc<[u8]>, Place>)| {
            names.first_key_value().map(|(name, _)| (database, Arc::clone(name)))
        };
        self.lines.iter().find_map(of_database)
    }

    /// Takes up to `most` names of lines that are to be looked at; `None` if nothing is left to do.
    pub(super) fn next_batch(&mut self, now: Instant, most: usize) -> Option<Vec<LockName>> {
        self.let_leave(most);
        let mut names: BTreeSet<LockName> = BTreeSet::new();
        while names.len() < most
            && let Some(name) = self.changed.pop_first()
        {
            names.insert(name);
        }
        let due = self.due.iter().take_while(|(due, _)| *due < now);
        names.extend(due.take(most - names.len()).map(|(_, name)| name.clone()));
        if names.len() < most {
            names.extend(self.sweep_on(most - names.len()));
        }
        let is_over = names.is_empty() && self.leaving.is_empty() && self.sweep.next.is_none();
        (!is_over).then(|| names.into_iter().collect())
    }

    /// Takes `most` lines of a sweep.
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

    /// A connection is gone.
    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        if let Some(names) = self.connections.remove(&connection) {
            self.leaving.push_back((connection, names));
        }
    }

    /// Lets `most` tickets leave whose connections are gone; their lines are to be looked at.
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

    /// Notes that a line is to be looked at, if there is one; answers whether there is.
    pub(super) fn note_change(&mut self, database: u32, name: &[u8]) -> bool {
        let names = self.lines.get(&database).and_then(|names| names.get_key_value(name));
        let name = names.map(|(name, _)| Arc::clone(name));
        name.is_some_and(|name| {
            self.changed.insert((database, name));
            true
        })
    }

    /// When the alarm has to be set, if it must be set anew.
    pub(super) fn next_alarm(&mut self) -> Option<Instant> {
        let (due, _) = self.due.first()?;
        let at = due.after(Millis::new(1));
        // One that is set earlier goes off in vain, and is then set to what is next.
        if self.alarm_at.is_some_and(|set| set <= at) {
            return None;
        }
        self.alarm_at = Some(at);
        Some(at)
    }

    /// Forgets who has left a line; answers the calls that are to be answered.
    pub(super) fn part(&mut self, name: &LockName, left: Vec<Left>) -> Vec<Call> {
        let mut calls = Vec::new();
        for left in left {
            match left {
                Left::Call(id) => calls.extend(self.calls.remove(&id)),
                Left::Ticket(_, connection) => self.part_connection(name, connection),
            }
        }
        calls
    }

    /// Notes that a connection may have no ticket left in a line.
    pub(super) fn part_connection(&mut self, name: &LockName, connection: ConnectionId) {
        let place = self.place(name.0, &name.1);
        if place.is_some_and(|place| place.line.has_connection(connection)) {
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
