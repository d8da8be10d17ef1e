//! Waiting at this node: carries out what the node decides about its lines.
//!
//! The node decides whose turn it is, and asks for what it needs to know. A blocked client is
//! granted the lock and answered; a ticket is published on its channel. Callbacks that must not
//! open keys only notify the node, which then asks for a call of [`woken`].
//!
//! One event may concern every line, so nothing here goes through all of them in one turn of the
//! event loop: [`woken`] does a slice, and asks for another call.

use std::rc::Rc;
use std::time::{Duration, Instant as StdInstant};

use super::alarm::Alarm;
use super::delivery::{Delivery, SharedGrant};
use super::ffi::waiting::{KeyName, Task, Told, Writes, do_after};
use super::ffi::{AtKey, Context, InServer};
use super::{clock, config, process, replication, start};
use crate::engine::{
    Acquired, Availability, Call, CallId, Claim, ConnectionId, Direct, Effect, Gate, Granted,
    Grantee, Instant, Lock, Look, Millis, Mode, NextCalls, Node, Queued, Refusal, Released, Stop,
    TOKEN_MAX, Token, Turning,
};
use crate::wire::published::Published;
use crate::wire::request::Queue;
use crate::wire::resp::Reply;
use crate::wire::spec::keyword;

/// How long one turn of the event loop looks at lines apart from the running command's.
const SLICE: Duration = Duration::from_millis(1);

/// Whether anybody waits at this node.
#[inline]
pub(super) fn any(server: InServer<'_>) -> bool {
    process::with(server, |process| process.node.has_lines())
}

// ------------------------------------------------------------------------------------ requests

/// The ticket of an acquire with the data that the line needs, and the terms of a grant.
///
/// # Errors
/// As [`queued`].
pub(super) fn queued_to_ask<'a>(
    context: &mut Context<'_>,
    (claim, label): (Claim<'_>, &'a [u8]),
    queue: &Queue<'a>,
    now: Instant,
) -> Result<Option<Queued<'a>>, Refusal> {
    let direct = queue.grant.map(|number| Direct { ttl: claim.ttl, label, number });
    let queued = queued(context, (claim.mode, queue), now)?;
    Ok(queued.map(|queued| Queued { direct, ..queued }))
}

/// The ticket with the data that the line needs; `None` if it cannot wait in line, because the
/// request did not come over a connection.
///
/// # Errors
/// `NOPERM` if its user may not publish to its channel.
pub(super) fn queued<'a>(
    context: &mut Context<'_>,
    (mode, queue): (Mode, &Queue<'a>),
    now: Instant,
) -> Result<Option<Queued<'a>>, Refusal> {
    let server = context.in_server();
    let Queue { wait, ticket, channel, .. } = queue.clone();
    let Some((connection, may_publish)) = context.sender(channel) else { return Ok(None) };
    if !may_publish {
        return Err(Refusal::NoPermission { channel: channel.to_vec() });
    }
    let (deadline, connection) = (now.after(wait), ConnectionId(connection));
    let max = if context.flags().is_out_of_memory() { 0 } else { config::max_waiters() };
    let limit = process::with(server, |process| process.node.waiter_limit(max));
    Ok(Some(Queued { ticket, channel, deadline, connection, mode, limit, direct: None }))
}

/// Blocks the sender of a request until it is granted the lock.
///
/// # Errors
/// `QUEUEFULL`, or `BADARG` if the server does not block the sender.
pub(super) fn block(
    context: &mut Context<'_>,
    name: &[u8],
    (claim, label): (Claim<'_>, &[u8]),
    wait: Millis,
    now: Instant,
) -> Result<(), Refusal> {
    let server = context.in_server();
    process::with(server, |process| process.node.waiter_limit(config::max_waiters())).check()?;
    let (database, user) = (context.database(), context.user());
    let blocked = context.block().ok_or_else(|| Refusal::BadArg {
        given: keyword::WAIT.as_bytes().to_vec(),
        what: "option on a connection with a subscription",
        allowed: "QUEUE, or WAIT on another connection",
    })?;
    let id = CallId(blocked.id());
    process::with(server, |process| {
        process.blocked.insert(id, blocked);
        process.node.block((database, name), id, (claim, label, user), wait, now);
    });
    Ok(())
}

/// Looks at a line, after it or its lock has changed, and serves the next waiter.
///
/// `availability` is the state of the lock, if the caller knows it. The context's database must be
/// the lock's.
pub(super) fn serve(context: &mut Context<'_>, name: &[u8], availability: Option<Availability>) {
    look_at(context, name, Look::after(availability));
}

/// The same, with more knowledge about the lock.
pub(super) fn look_at(context: &mut Context<'_>, name: &[u8], mut look: Look) {
    let server = context.in_server();
    let place = (context.database(), name);
    let mut text = None;
    // A grant is dated before its slot is checked: the process may hang between the two.
    let (now, reserve) = (clock::now(), config::reserve());
    loop {
        let turning = process::with(server, |process| {
            process.node.serve_next(place, &mut look, now, reserve)
        });
        if turning == Turning::Over {
            break;
        }
        let text = text.get_or_insert_with(|| context.name(name));
        match turning {
            Turning::Over | Turning::On => {}
            Turning::Availability => look.availability = Some(availability_of(context, text, now)),
            Turning::Gate => look.gate = Some(gate(context, text)),
            Turning::Wake(ticket, channel) => {
                context.publish(&channel, &Published::Turn(ticket).to_bytes());
            }
            Turning::GrantTo(grantee) => {
                look.availability = grant_to(context, (place.1, text), &grantee, now);
            }
            Turning::GrantCalls(next) => {
                look.availability = grant(context, text, next, now);
            }
        }
    }
    carry_out(server);
}

/// The state of the lock at its key.
fn availability_of(context: &mut Context<'_>, name: &KeyName, now: Instant) -> Availability {
    let server = context.in_server();
    match name.open_to_read(context).find() {
        AtKey::Lock(lock) => process::with(server, |process| process.node.availability(lock, now)),
        AtKey::Nothing => Availability::Free,
        AtKey::Other => Availability::WrongType,
    }
}

/// Whether the server would accept a write to the lock's key. In a Cluster it is asked with a
/// command that decides, so a slot in which the node may not decide refuses it too.
fn gate(context: &mut Context<'_>, name: &KeyName) -> Gate {
    let server = context.in_server();
    let may_have_lost = process::with(server, |process| {
        process.node.is_in_cluster() && process.node.may_have_lost_slots(clock::now())
    });
    if may_have_lost || context.must_not_replicate() {
        return Gate::Paused;
    }
    if context.flags().is_out_of_memory() {
        return Gate::Refuses;
    }
    if !process::with(server, |process| process.may_refuse) {
        return Gate::Open;
    }
    match name.writes(context) {
        Writes::Taken => Gate::Open,
        Writes::Refused => Gate::Refuses,
        Writes::Elsewhere => Gate::Elsewhere,
    }
}

/// Grants the lock to blocked clients, and answers them. Returns the state of the lock, if
/// that is known.
fn grant(
    context: &mut Context<'_>,
    name: &KeyName,
    mut next: NextCalls,
    now: Instant,
) -> Option<Availability> {
    let server = context.in_server();
    let may_have_it = |call: &Call| name.may_be_acquired(context, &call.user);
    let allowed: Vec<bool> = next.calls().iter().map(may_have_it).collect();
    let mut allowed = allowed.into_iter();
    process::with(server, |process| {
        process.node.deny(&mut next, |_| allowed.next() == Some(true));
    });
    let first = next.calls().first()?;
    let lease = (&first.token[..], &first.label[..], next.ttl());
    let outcome = grant_and_state(context, name, lease, now, |node, lock| {
        node.grant_calls(lock, &next, config::max_ttl(), now)
    });
    let (availability, granted) =
        process::with(server, |process| process.node.granted_calls(&next, &outcome, now));
    if let (Some(granted), Ok((Acquired::Granted { ends_at, .. }, _))) = (granted, outcome) {
        let shared = SharedGrant::new(granted, ends_at);
        for call in next.calls() {
            answer(server, call.id, Delivery::Granted(Rc::clone(&shared)));
        }
    }
    availability
}

/// Grants a lock that was handed over to the first ticket in line, and publishes the grant. Returns
/// the state of the lock, if that is known.
fn grant_to(
    context: &mut Context<'_>,
    (bytes, name): (&[u8], &KeyName),
    grantee: &Grantee,
    now: Instant,
) -> Option<Availability> {
    let server = context.in_server();
    let place = (context.database(), bytes);
    // Its connection may be closed, and the rules for its user may have changed.
    let user = context.user_of(grantee.connection.0)?;
    // In a Cluster, the other masters pass on what this one publishes. So a grant that was
    // withdrawn because nobody listens here could be heard there.
    let is_in_cluster = process::with(server, |process| process.node.is_in_cluster());
    let is_heard = !is_in_cluster || context.has_subscriber(&grantee.channel);
    if !is_heard || !name.may_be_acquired(context, &user) {
        return None;
    }
    let lease = (&grantee.token[..], &grantee.label[..], grantee.ttl);
    let granted = grant_and_state(context, name, lease, now, |node, lock| {
        node.grant_to(lock, grantee, config::max_ttl(), now)
    });
    let (outcome, availability) = granted.ok()?;
    let Acquired::Granted { fence, .. } = outcome else { return Some(availability) };
    let message =
        Published::Granted { ticket: grantee.ticket.clone(), fence, number: grantee.number };
    let is_told = context.publish(&grantee.channel, &message.to_bytes()) > 0;
    process::with(server, |process| process.node.granted_to(place, grantee, is_told, now));
    if is_told {
        return Some(availability);
    }
    // No subscriber received it.
    take_back(context, name, &grantee.token, |node, lock| {
        Ok(node.release(lock, Token::new(&grantee.token, TOKEN_MAX)?, now))
    });
    None
}

/// Has the node decide a grant to a waiter, and states the lease, if it has changed.
fn grant_and_state(
    context: &mut Context<'_>,
    name: &KeyName,
    (token, label, ttl): (&[u8], &[u8], Millis),
    now: Instant,
    mut decide: impl FnMut(&mut Node, &mut Lock) -> Result<(Acquired, Availability), Stop>,
) -> Result<(Acquired, Availability), Refusal> {
    let (ready, mut lease) = (start::ready(context), None);
    let decide = |lock: &mut Lock| {
        let decided = process::decide(ready, |node| decide(node, lock))?;
        lease = lock.tenure_of(Token::new(token, TOKEN_MAX)?);
        Ok(decided)
    };
    let keeps = |(outcome, _): &(Acquired, _)| match outcome {
        Acquired::Granted { .. } | Acquired::Again { .. } => true,
        Acquired::Held => false,
    };
    let (decided, had_expiry) = name.open(context).with_lock(decide, keeps)?;
    let (lapsed, event) = match decided.0 {
        Acquired::Granted { lapsed, .. } => (lapsed, c"lock.acquire"),
        // By another request, since it began to wait.
        Acquired::Again { later, .. } if later || had_expiry => (0, c"lock.extend"),
        Acquired::Again { .. } | Acquired::Held => return Ok(decided),
    };
    if let Some(lease) = lease {
        let fact = replication::fact(context, ttl, now, lease);
        name.replicate_acquire(context, token, &fact, label);
    }
    if lapsed > 0 {
        name.notify(context, c"lock.expire");
    }
    name.changed(context, event);
    Ok(decided)
}

/// Has the node decide whether a grant is withdrawn, and states that. Returns whether it was.
fn take_back(
    context: &mut Context<'_>,
    name: &KeyName,
    token: &[u8],
    mut decide: impl FnMut(&mut Node, &mut Lock) -> Result<Released, Stop>,
) -> bool {
    let (ready, mut nothing) = (start::ready(context), Lock::default());
    let mut key = name.open(context);
    let lock = match key.find() {
        AtKey::Lock(lock) => lock,
        AtKey::Nothing | AtKey::Other => &mut nothing,
    };
    let released = process::decide(ready, |node| decide(node, lock));
    drop(key);
    let is_released = matches!(released, Ok(Released::Released { .. }));
    if is_released {
        name.replicate_release(context, token);
        name.changed(context, c"lock.release");
    }
    is_released
}

/// Answers a blocked client, if it has not been answered.
fn answer(server: InServer<'_>, id: CallId, delivery: Delivery) {
    if let Some(blocked) = process::with(server, |process| process.blocked.remove(&id)) {
        blocked.answer(delivery);
    }
}

/// Carries out the node's effects.
pub(super) fn carry_out(server: InServer<'_>) {
    while let Some(effect) = process::with(server, |process| process.node.take_effect()) {
        match effect {
            Effect::Part(id, parting) => answer(server, id, Delivery::Parting(parting)),
            Effect::SetAlarm(at) => {
                if let Some(alarm) = process::with(server, |process| process.alarm) {
                    alarm.set(at);
                }
            }
            Effect::Ring => do_after::<Woken>(server, Millis::ZERO),
        }
    }
}

// ------------------------------------------------------------------- events without a request

/// Notes that a lock or its line has changed. It is looked at soon, not now: a key that is being
/// unlinked, for example, must not be opened.
pub(super) fn changed(server: InServer<'_>, database: u32, name: &[u8]) {
    process::with(server, |process| process.node.line_changed((database, name)));
    carry_out(server);
}

impl Told for Delivery {
    type Lost = Granted;

    fn deliver(&self) -> Result<Reply, String> {
        Delivery::deliver(self)
    }

    fn lost(self, server: InServer<'_>) -> Option<Granted> {
        let (granted, is_delivered) = self.over()?;
        if is_delivered {
            process::with(server, |process| process.node.heard(&granted));
            return None;
        }
        Some(granted)
    }

    fn make_good(context: &mut Context<'_>, granted: Granted) {
        undelivered(context, granted);
    }

    /// Its call leaves the line. If it has been answered, [`Told::lost`] deals with that answer
    /// when the server frees it.
    fn hung_up(server: InServer<'_>, blocked: u64) {
        process::with(server, |process| process.node.hung_up(CallId(blocked)));
        carry_out(server);
    }

    fn rang(server: InServer<'_>) {
        process::with(server, |process| {
            if let Some(alarm) = process.alarm {
                alarm.clear();
            }
            process.node.rang();
        });
        carry_out(server);
    }
}

/// Handles a grant whose blocked client is gone: withdraws it, and serves the next waiter. On a
/// node that has become a replica, its master decides.
fn undelivered(context: &mut Context<'_>, granted: Granted) {
    let server = context.in_server();
    if !context.flags().is_master() {
        return process::with(server, |process| process.node.heard(&granted));
    }
    if context.must_not_replicate() {
        process::with(server, |process| process.undelivered.push(granted));
        return;
    }
    let (database, name) = &granted.name;
    if !context.select(*database) {
        return;
    }
    let (text, now) = (context.name(name), clock::now());
    let is_released = take_back(context, &text, &granted.token, |node, lock| {
        Ok(node.take_back(lock, &granted, now))
    });
    if is_released && any(server) {
        // Other readers may hold it.
        serve(context, name, None);
    }
}

/// Creates the alarm by which waiters are served.
///
/// # Errors
/// Why that failed.
pub(super) fn start(context: &mut Context<'_>) -> Result<(), String> {
    let alarm = Alarm::new::<Delivery>()?;
    process::with(context.in_server(), |process| process.alarm = Some(alarm));
    configured(context);
    Ok(())
}

/// Takes settings of the server and options, which may have changed.
pub(super) fn configured(context: &mut Context<'_>) {
    // If CONFIG was renamed, the settings are unknown.
    let mut is_other = |name: &str, harmless: &str| {
        context.setting(name).is_none_or(|setting| setting != harmless)
    };
    let may_refuse = is_other("min-replicas-to-write", "0")
        || is_other("appendonly", "no")
        || is_other("save", "") && is_other("stop-writes-on-bgsave-error", "no");
    let may_refuse = may_refuse || context.flags().is_in_cluster();
    process::with(context.in_server(), |process| {
        process.may_refuse = may_refuse;
        process.node.let_in_readers(config::max_readers());
    });
}

/// Carries out an [`Effect::Ring`].
struct Woken;

impl Task for Woken {
    const WHAT: &'static str = "serving a line";

    fn run(context: &mut Context<'_>) {
        woken(context);
    }
}

/// Looks at the lines that need it, for one slice; the rest follow in a later turn of the event
/// loop.
fn woken(context: &mut Context<'_>) {
    let server = context.in_server();
    process::with(server, |process| process.node.answer_ring());
    let started = StdInstant::now();
    while started.elapsed() < SLICE {
        let now = clock::now();
        let batch = process::with(server, |process| process.node.next_batch(now));
        let Some(names) = batch else { return carry_out(server) };
        for (place, (database, name)) in names.into_iter().enumerate() {
            // At least one, so that even a slow machine makes progress.
            if place > 0 && started.elapsed() >= SLICE {
                process::with(server, |process| process.node.line_changed((database, &name)));
            } else if context.select(database) {
                let place = (database, &*name);
                let look = process::with(server, |process| process.node.look_of_ring(place));
                look_at(context, &name, look);
            }
        }
    }
    process::with(server, |process| process.node.put_off());
    carry_out(server);
}

/// Several times a second: serves waiters without an alarm.
pub(super) fn tick(context: &mut Context<'_>) {
    let server = context.in_server();
    let undelivered_before =
        process::with(server, |process| std::mem::take(&mut process.undelivered));
    for granted in undelivered_before {
        undelivered(context, granted);
    }
    if any(server) {
        woken(context);
    }
}
