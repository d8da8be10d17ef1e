//! Waiting at this node: one line for each lock that somebody waits for, and who is called when.
//!
//! The engine says whose turn it is; here is what becomes of it: a blocked client is granted the
//! lock and answered, a ticket is published on its channel. A line is looked at ([`settle`]) by the
//! command that changed it or its lock, and else by [`woken`]: when something is due (a lease, a
//! wait, a reservation has ended), and when the lock went by another way than a command of ours
//! (`DEL`, `FLUSHALL`, `RENAME`, ...), whose callbacks must not open keys.
//!
//! One event may concern every line, so nothing here works through all of them in one turn of the
//! event loop: [`woken`] does a slice, and asks to be called again.
//!
//! A node on which nobody waits pays one load of a number for it: [`any`].
//!
//! State is never in use while the server is called: it may call back.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use super::ffi::waiting::{Name, Writes, ring};
use super::ffi::{Context, Found, Guarded, InServer, Reply};
pub(super) use super::lines::any;
use super::lines::{Call, Granted, Waiters};
use super::{alarm, clock, config, process, replication, start};
use crate::engine::{
    Acquired, CallId, Claim, ConnectionId, Fence, Histogram, Instant, Left, Line, Lock, Millis,
    Queued, Refusal, Released, Room, TOKEN_MAX, Ticket, Token, Turn, Waiter,
};
use crate::wire::request::Queue;

/// While writes are paused nothing may be granted: when to look again. A pause is short, and known
/// to be over only by looking.
const PAUSE: Millis = Millis::new(10);
/// While the server refuses writes nothing may be granted: when to look again. That may last, and
/// each look at each line costs as much as a command.
const REFUSAL: Millis = Millis::new(100);

/// For how long one turn of the event loop looks at lines that no command is about.
const SLICE: Duration = Duration::from_millis(1);
/// How many lines are looked at between two looks at the clock, and how many leave one line in a
/// turn.
const BATCH: usize = 32;

/// The code word is the one by which the server unblocks clients of its own.
const DEMOTED: &str = "UNBLOCKED the node has become a replica; its primary may be asked";
/// As the server answers whoever may not.
const DENIED: &str = "NOPERM the access rules of this user have changed, and do not allow this";
/// The code word makes clients of a cluster ask again, and be sent on by the server.
const MOVED: &str = "TRYAGAIN the lock has moved to another node of the cluster";

/// Whether the server may refuse a write that it took before: for want of replicas, because it
/// could not save its data set, or because the key has moved to another node.
static MAY_REFUSE: AtomicBool = AtomicBool::new(false);

static WAITERS: Guarded<Waiters> = Guarded::new(Waiters::NONE);

/// What is known of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A lease stands, until and including this instant.
    Held(Instant),
    Free,
    /// The key holds something else.
    WrongType,
}

impl Standing {
    /// How a lock stands at `now`.
    pub(super) fn of(lock: &Lock, now: Instant) -> Standing {
        if lock.is_held(now) { Standing::Held(lock.until()) } else { Standing::Free }
    }
}

/// What a blocked client is told.
#[derive(Debug)]
pub(super) enum Answer {
    /// Granted, and not yet delivered to this client.
    Granted(Rc<Shared>),
    /// Granted, and delivered.
    Delivered,
    /// Another request with the same token was granted the lock.
    Fence(Fence),
    /// The wait is over.
    Null,
    /// The wait goes on elsewhere, if the client asks there.
    Away(&'static str),
    Refused(Refusal),
}

/// A grant to all calls of one token, which counts if it is delivered to any of them.
#[derive(Debug)]
pub(super) struct Shared {
    granted: Granted,
    is_delivered: Cell<bool>,
}

impl Answer {
    /// The answer as a reply, to a client that is there.
    pub(super) fn deliver(&mut self) -> Result<Reply, String> {
        match std::mem::replace(self, Answer::Delivered) {
            Answer::Granted(shared) => {
                shared.is_delivered.set(true);
                Ok(Reply::Integer(shared.granted.fence.get()))
            }
            Answer::Fence(fence) => Ok(Reply::Integer(fence.get())),
            Answer::Null | Answer::Delivered => Ok(Reply::Null),
            Answer::Away(text) => Err(text.to_owned()),
            Answer::Refused(refusal) => Err(refusal.to_string()),
        }
    }

    /// The grant, if it has turned out by now that nobody was there to take it.
    pub(super) fn undelivered(self) -> Option<Granted> {
        let Answer::Granted(shared) = self else { return None };
        let Shared { granted, is_delivered } = Rc::into_inner(shared)?;
        (!is_delivered.get()).then_some(granted)
    }
}

// ------------------------------------------------------------------------------- what is asked

/// How many wait at this node, and how many may.
pub(super) fn room(server: InServer<'_>) -> Room {
    Room { waiters: WAITERS.with(server, |waiters| waiters.count), max: config::max_waiters() }
}

/// How many wait, the longest that the first of any line has waited, and for how long those stood
/// in line who were granted the lock.
pub(super) fn tally(server: InServer<'_>, now: Instant) -> (usize, Millis, Histogram) {
    WAITERS.with(server, |waiters| {
        let places = waiters.lines.values().flat_map(BTreeMap::values);
        let oldest = places.filter_map(|place| place.line.first_since()).min();
        let waited = oldest.map_or(Millis::ZERO, |since| since.until(now));
        (waiters.count, waited, waiters.waits.clone())
    })
}

/// How many wait for a lock, and for how long the first of them has.
pub(super) fn describe(
    server: InServer<'_>,
    database: u32,
    name: &[u8],
    now: Instant,
) -> Option<(usize, Millis)> {
    WAITERS.with(server, |waiters| {
        let line = &waiters.place(database, name)?.line;
        Some((line.len(), line.first_since()?.until(now)))
    })
}

// ------------------------------------------------------------------------- what a request does

/// What a ticket brings with it; `None` where it cannot stand in line, because the request came on
/// no connection.
///
/// # Errors
/// `NOPERM` if its user may not publish to its channel.
pub(super) fn queued<'a>(
    context: &mut Context<'_>,
    queue: Queue<'a>,
    now: Instant,
) -> Result<Option<Queued<'a>>, Refusal> {
    let server = context.in_server();
    let Queue { wait, ticket, channel } = queue;
    let Some((connection, may_publish)) = context.sender(channel) else { return Ok(None) };
    if !may_publish {
        return Err(Refusal::NoPermission { channel: channel.to_vec() });
    }
    let (deadline, connection) = (now.after(wait), ConnectionId(connection));
    let mut room = room(server);
    if context.flags().is_out_of_memory() {
        room.max = 0;
    }
    Ok(Some(Queued { ticket, channel, deadline, connection, room }))
}

/// Uses the line before a lock for a request that may bring a ticket, and tells whether that stands
/// in line now.
pub(super) fn request<R>(
    server: InServer<'_>,
    database: u32,
    name: &[u8],
    queued: Option<&Queued<'_>>,
    work: impl FnOnce(&mut Line) -> R,
) -> (R, bool) {
    WAITERS.with(server, |waiters| {
        let Some(queued) = queued else { return (waiters.with_line(database, name, work), false) };
        let waiter = Waiter::Ticket(queued.ticket.clone());
        let (mut was_there, mut since) = (None, None);
        let (result, is_there) = waiters.with_line(database, name, |line| {
            (was_there, since) = (line.connection_of(&queued.ticket), line.since_of(&waiter));
            (work(line), line.has(&waiter))
        });
        if let Some(old) = was_there {
            waiters.part_connection(&(database, name.into()), old);
        }
        if is_there {
            // The name as the line has it, so that it is kept once.
            let names = waiters.lines.get(&database).and_then(|names| names.get_key_value(name));
            let name = names.map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
            waiters.connections.entry(queued.connection).or_default().insert((database, name));
        } else if let Some(since) = since {
            waiters.waits.record(since.until(clock::now()));
        }
        (result, is_there)
    })
}

/// Answers the blocked clients among those who left a line by a request.
pub(super) fn part(
    server: InServer<'_>,
    database: u32,
    name: &[u8],
    left: Vec<Left>,
    answer: impl Fn() -> Answer,
) {
    if !left.is_empty() {
        let calls = WAITERS.with(server, |waiters| waiters.part(&(database, name.into()), left));
        answer_all(calls, answer);
    }
}

/// Blocks the sender of a request until it is granted the lock.
///
/// # Errors
/// `QUEUEFULL`.
pub(super) fn block(
    context: &mut Context<'_>,
    name: &[u8],
    claim: Claim<'_>,
    label: &[u8],
    wait: Millis,
    now: Instant,
) -> Result<(), Refusal> {
    let server = context.in_server();
    room(server).check()?;
    let (database, user) = (context.database(), context.user());
    let blocked = context.block();
    let id = CallId(blocked.id());
    WAITERS.with(server, |waiters| {
        let call = Call {
            blocked,
            name: (database, name.into()),
            token: claim.token.as_bytes().into(),
            ttl: claim.ttl,
            label: label.into(),
            user,
            since: now,
        };
        waiters.calls.insert(id, call);
        let deadline = now.after(wait);
        waiters.with_line(database, name, |line| line.block(id, claim.token, deadline, now));
    });
    Ok(())
}

/// Looks at a line, after its lock or it has changed: serves whose turn it is.
///
/// `standing` is how the lock stands if the caller knows it; the context's database must be that
/// of the lock.
pub(super) fn settle(context: &mut Context<'_>, name: &[u8], standing: Option<Standing>) {
    let server = context.in_server();
    let database = context.database();
    let mut known = standing;
    let mut text = None;
    for _ in 0..BATCH {
        let Some(now) = part_in_time(server, database, name) else { return set_alarm(server) };
        let text = text.get_or_insert_with(|| context.name(name));
        let standing = known.take().unwrap_or_else(|| look(context, text, now));
        match turn(context, text, (database, name), standing, now) {
            Next::Nothing => return set_alarm(server),
            Next::Dismiss(answer) => dismiss(server, database, name, answer),
            Next::Wake(ticket, channel) => {
                context.publish(&channel, &ticket.to_bytes());
                return set_alarm(server);
            }
            Next::Grant(calls) => known = grant(context, text, calls, now),
        }
    }
    // Some have been sent away. The rest has time.
    changed(server, database, name);
}

/// Removes waiters whose deadline has passed; returns the present instant if somebody is left who
/// may be served.
fn part_in_time(server: InServer<'_>, database: u32, name: &[u8]) -> Option<Instant> {
    let (now, calls, is_left) = WAITERS.with(server, |waiters| {
        let due = waiters.place(database, name)?.line.due_at();
        let now = clock::now();
        if due.is_none_or(|due| now <= due) {
            return Some((now, Vec::new(), true));
        }
        let left = waiters.with_line(database, name, |line| line.expire(now, BATCH));
        let calls = waiters.part(&(database, name.into()), left);
        // Where more are due than that, the index of what is due still says so.
        let due = waiters.place(database, name).map(|place| place.line.due_at());
        Some((now, calls, due.is_some_and(|due| due.is_none_or(|due| now <= due))))
    })?;
    if !calls.is_empty() {
        let count = calls.len() as u64;
        process::with(server, |process| process.node.tally().counts.held += count);
        answer_all(calls, || Answer::Null);
    }
    is_left.then_some(now)
}

/// How the lock stands at its key.
fn look(context: &mut Context<'_>, name: &Name, now: Instant) -> Standing {
    match name.open_to_read(context).find() {
        Found::Lock(lock) => Standing::of(lock, now),
        Found::Nothing => Standing::Free,
        Found::Other => Standing::WrongType,
    }
}

/// What a look at a line asks for.
enum Next {
    Nothing,
    /// Nobody can be granted this here, and is told so.
    Dismiss(fn() -> Answer),
    /// To these, which all brought the same token.
    Grant(Vec<Call>),
    Wake(Ticket, Box<[u8]>),
}

/// Whose turn it is, and notes when to look again.
fn turn(
    context: &mut Context<'_>,
    text: &Name,
    (database, name): (u32, &[u8]),
    standing: Standing,
    now: Instant,
) -> Next {
    let server = context.in_server();
    let quarantine = process::grants_nothing_until(server, now);
    let (is_free, until) = match standing {
        Standing::WrongType => return Next::Dismiss(|| Answer::Refused(Refusal::WrongType)),
        Standing::Held(until) => (false, Some(until)),
        Standing::Free if quarantine.is_some() => (false, quarantine),
        Standing::Free if context.must_not_replicate() => (false, Some(now.after(PAUSE))),
        Standing::Free if context.flags().is_out_of_memory() => (false, Some(now.after(REFUSAL))),
        Standing::Free if !MAY_REFUSE.load(Ordering::Relaxed) => (true, None),
        Standing::Free => match text.writes(context) {
            Writes::Taken => (true, None),
            Writes::Refused => (false, Some(now.after(REFUSAL))),
            Writes::Elsewhere => return Next::Dismiss(|| Answer::Away(MOVED)),
        },
    };
    WAITERS.with(server, |waiters| {
        waiters.set_lock_until(database, name, until);
        let turn = waiters.with_line(database, name, |line| {
            if !is_free {
                if let Standing::Held(_) = standing {
                    line.taken();
                }
                return Err(Next::Nothing);
            }
            match line.serve(now, config::reserve()) {
                Turn::Nobody | Turn::Reserved => Err(Next::Nothing),
                Turn::Grant(left) => Ok(left),
                Turn::Wake { ticket, channel } => Err(Next::Wake(ticket.clone(), channel.into())),
            }
        });
        match turn {
            Ok(left) => Next::Grant(waiters.part(&(database, name.into()), left)),
            Err(next) => next,
        }
    })
}

/// Grants the free lock to blocked clients with one token, the first of whom gives the lease its
/// label, and answers them; returns how the lock stands then, if that is known.
fn grant(
    context: &mut Context<'_>,
    name: &Name,
    calls: Vec<Call>,
    now: Instant,
) -> Option<Standing> {
    let server = context.in_server();
    let (calls, denied): (Vec<Call>, Vec<Call>) =
        calls.into_iter().partition(|call| name.may_be_acquired(context, &call.user));
    answer_all(denied, || Answer::Away(DENIED));
    let call = calls.first()?;
    // As if each had asked for itself: no retry makes the lease shorter.
    let ttl = calls.iter().map(|call| call.ttl).max().unwrap_or(call.ttl);
    match try_grant(context, name, call, ttl, now) {
        Ok(Acquired::Granted { fence, ends_at, .. } | Acquired::Again { fence, ends_at, .. }) => {
            WAITERS.with(server, |waiters| waiters.waits.record(call.since.until(now)));
            let granted = Granted { name: call.name.clone(), token: call.token.clone(), fence };
            let shared = Rc::new(Shared { granted, is_delivered: Cell::new(false) });
            answer_all(calls, || Answer::Granted(Rc::clone(&shared)));
            Some(Standing::Held(ends_at))
        }
        Ok(Acquired::Held) => {
            answer_all(calls, || Answer::Null);
            None
        }
        Err(refusal) => {
            process::with(server, |process| process.node.refused(&refusal));
            answer_all(calls, || Answer::Refused(refusal.clone()));
            None
        }
    }
}

fn try_grant(
    context: &mut Context<'_>,
    name: &Name,
    call: &Call,
    ttl: Millis,
    now: Instant,
) -> Result<Acquired, Refusal> {
    let token = Token::new(&call.token, TOKEN_MAX)?;
    let claim = Claim { token, ttl };
    // The limit may have been lowered meanwhile, and what bounds a quarantine binds every grant.
    let max = config::max_ttl();
    if ttl > max {
        return Err(Refusal::BadTtl { given: ttl.get().to_string().into_bytes(), max });
    }
    let ready = start::ready(context);
    let decide = |lock: &mut Lock| {
        process::decide(ready, |node| node.acquire(lock, claim, &call.label, now))
    };
    let keeps = |outcome: &Acquired| matches!(outcome, Acquired::Granted { .. });
    let outcome = name.open(context).with_lock(decide, keeps)?;
    if let Acquired::Granted { fence, ends_at, lapsed } = outcome {
        let fact = replication::fact(context, ttl, now, ends_at, fence);
        name.replicate_acquire(context, &call.token, &fact, &call.label);
        if lapsed {
            name.notify(context, c"lock.expire");
        }
        name.changed(context, c"lock.acquire");
    }
    Ok(outcome)
}

/// Takes those who stand first out of a line, and answers the blocked clients among them.
fn dismiss(server: InServer<'_>, database: u32, name: &[u8], answer: impl Fn() -> Answer) {
    let calls = WAITERS.with(server, |waiters| {
        let left = waiters.with_line(database, name, |line| line.leave_first(BATCH));
        waiters.part(&(database, name.into()), left)
    });
    answer_all(calls, answer);
}

fn answer_all(calls: Vec<Call>, answer: impl Fn() -> Answer) {
    for call in calls {
        call.blocked.answer(answer());
    }
}

fn set_alarm(server: InServer<'_>) {
    if let Some(at) = WAITERS.with(server, Waiters::next_alarm) {
        alarm::set(at);
    }
}

// --------------------------------------------------------------------- what happens by itself

/// The end of a lease has moved by another way than a grant; it may be earlier now.
pub(super) fn moved(context: &mut Context<'_>, name: &[u8], until: Instant) {
    settle(context, name, Some(Standing::Held(until)));
}

/// A lock or its line has changed, which is looked at soon: a key that is being unlinked, say, must
/// not be opened now.
pub(super) fn changed(server: InServer<'_>, database: u32, name: &[u8]) {
    if WAITERS.with(server, |waiters| waiters.note_change(database, name)) {
        ring_once(server);
    }
}

/// Any number of locks are gone, or have changed places.
pub(super) fn all_changed(server: InServer<'_>) {
    WAITERS.with(server, |waiters| waiters.sweep.begin());
    ring_once(server);
}

/// A connection is closed: its tickets will leave.
pub(super) fn disconnected(server: InServer<'_>, connection: u64) {
    WAITERS.with(server, |waiters| waiters.disconnect(ConnectionId(connection)));
    ring_once(server);
}

/// A blocked client has gone, or was unblocked by force: it leaves the line.
pub(super) fn hung_up(server: InServer<'_>, blocked: u64) {
    let id = CallId(blocked);
    let call = WAITERS.with(server, |waiters| {
        let call = waiters.calls.remove(&id)?;
        waiters.with_line(call.name.0, &call.name.1, |line| line.leave(&Waiter::Call(id)));
        waiters.note_change(call.name.0, &call.name.1);
        Some(call)
    });
    // If there is none it has been answered; what becomes of the answer is told when it is freed.
    if let Some(call) = call {
        call.blocked.answer(Answer::Null);
        ring_once(server);
    }
}

/// A blocked client was granted the lock and is not there any more: the next is served.
pub(super) fn undelivered(context: &mut Context<'_>, granted: Granted) {
    let server = context.in_server();
    if context.must_not_replicate() {
        WAITERS.with(server, |waiters| waiters.undelivered.push(granted));
        return;
    }
    let Granted { name: (database, name), token, fence } = granted;
    if !context.select(database) {
        return;
    }
    let (text, now) = (context.name(&name), clock::now());
    let Ok(token) = Token::new(&token, TOKEN_MAX) else { return };
    let ready = start::ready(context);
    let released = match text.open(context).find() {
        Found::Lock(lock) if lock.written_lease().is_some_and(|lease| lease.fence == fence) => {
            process::decide(ready, |node| Ok(node.release(lock, token, now)))
        }
        Found::Lock(_) | Found::Nothing | Found::Other => Ok(Released::NotHeld),
    };
    if let Ok(Released::Released { .. }) = released {
        text.replicate_release(context, token.as_bytes());
        text.changed(context, c"lock.release");
        if any() {
            settle(context, &name, Some(Standing::Free));
        }
    }
}

/// The node decides nothing any more: nobody waits here. Most servers have told their blocked
/// clients by themselves when they say so; Valkey 9.1 tells them afterwards in a `FAILOVER`.
pub(super) fn demoted(server: InServer<'_>) {
    while let Some((database, name)) = WAITERS.with(server, |waiters| waiters.any_name()) {
        dismiss(server, database, &name, || Answer::Away(DEMOTED));
    }
}

/// Settings of the server may have changed.
pub(super) fn configured(context: &mut Context<'_>) {
    // Where CONFIG was renamed, nobody can tell.
    let mut is_other = |name: &str, harmless: &str| {
        context.setting(name).is_none_or(|setting| setting != harmless)
    };
    let may_refuse = is_other("min-replicas-to-write", "0")
        || is_other("appendonly", "no")
        || is_other("save", "") && is_other("stop-writes-on-bgsave-error", "no");
    MAY_REFUSE.store(may_refuse || context.flags().is_in_cluster(), Ordering::Relaxed);
}

/// The alarm has gone off.
pub(super) fn rang(server: InServer<'_>) {
    alarm::clear();
    WAITERS.with(server, |waiters| waiters.alarm_at = None);
    ring_once(server);
}

fn ring_once(server: InServer<'_>) {
    if any() && !WAITERS.with(server, |waiters| std::mem::replace(&mut waiters.is_ringing, true)) {
        ring(server);
    }
}

/// Looks at lines that something has happened to, for the length of a slice; what is left is looked
/// at in a later turn of the event loop.
pub(super) fn woken(context: &mut Context<'_>) {
    let server = context.in_server();
    WAITERS.with(server, |waiters| waiters.is_ringing = false);
    let started = StdInstant::now();
    loop {
        let batch = WAITERS.with(server, |waiters| waiters.next_batch(clock::now(), BATCH));
        let Some(names) = batch else { return set_alarm(server) };
        for (database, name) in names {
            if context.select(database) {
                settle(context, &name, None);
            }
        }
        if started.elapsed() >= SLICE {
            return ring_once(server);
        }
    }
}

/// Several times a second: what no alarm has announced.
pub(super) fn tick(context: &mut Context<'_>) {
    let server = context.in_server();
    for granted in WAITERS.with(server, |waiters| std::mem::take(&mut waiters.undelivered)) {
        undelivered(context, granted);
    }
    if any() {
        woken(context);
    }
}
