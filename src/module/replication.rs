//! What the node states to replicas and to the append-only file, and how facts are applied.
//!
//! Facts travel, not requests: a granted lease is stated with its absolute end and its fence, and
//! every receiver applies it without judging. The fact replaces the ttl argument
//! (`30000@1763690000000.17`) of the same command, because building a new command costs half as
//! much as a whole acquire. Refusals are not stated.

use super::arguments::{ARGS_MAX, KEY, TOKEN, TTL, slices};
use super::ffi::{Answered, Args, AtKey, Context, Level};
use super::{clock, process, replicas, start};
use crate::engine::{
    Decided, Fence, Fencing, Heartbeat, Instant, Lock, Millis, Refusal, Stated, Tenure, Unlike,
};
use crate::wire::fact::{self, MARKS_MAX, SUFFIX_MAX};
use crate::wire::outcome::{AcquireReply, ExtendReply};
use crate::wire::request::{self, AcquireOptions};

/// States the lease on the command's key.
pub(super) fn state_lease(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
    now: Instant,
    lease: Tenure,
) {
    let server = context.in_server();
    start::notice_step(context, now);
    let clocks = process::date(server, now);
    let ttl = args.get(TTL);
    // A ttl that was accepted has at most 20 digits.
    let mut fact = [0; 20 + SUFFIX_MAX + MARKS_MAX];
    let (start, buffer) = fact.split_at_mut(ttl.len());
    start.copy_from_slice(ttl);
    let suffix = fact::suffix(buffer, clocks.to_wall(lease.ends_at), lease.fence);
    let (length, marks) = (ttl.len() + suffix.len(), fact::marks(lease.mode, lease.is_provisional));
    let end = length + marks.len();
    fact[length..end].copy_from_slice(marks);
    args.replace(TTL, &fact[..end]);
    context.replicate_verbatim();
    context.signal_modified(args, KEY);
}

/// States the lease after an extension by `ttl`. A fact is applied with its ttl as a bound, so if
/// the lease keeps a later end, the stated ttl is the time until then.
#[inline]
pub(super) fn state_extension(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
    now: Instant,
    ttl: Millis,
    lease: Tenure,
) {
    if now.after(ttl) < lease.ends_at {
        args.replace(TTL, now.until(lease.ends_at).get().to_string().as_bytes());
    }
    state_lease(context, args, now, lease);
}

/// The fact for a lease that the sender of the present command does not have. As for an extension,
/// the ttl is at least the time left.
pub(super) fn fact(context: &mut Context<'_>, ttl: Millis, now: Instant, lease: Tenure) -> Vec<u8> {
    let server = context.in_server();
    start::notice_step(context, now);
    let ttl = ttl.max(now.until(lease.ends_at));
    let clocks = process::date(server, now);
    let mut buffer = [0; SUFFIX_MAX];
    let suffix = fact::suffix(&mut buffer, clocks.to_wall(lease.ends_at), lease.fence);
    let marks = fact::marks(lease.mode, lease.is_provisional);
    [ttl.get().to_string().as_bytes(), suffix, marks].concat()
}

/// States the command as it is: it needs no fact.
pub(super) fn state_verbatim(context: &mut Context<'_>, args: &Args<'_>) {
    context.replicate_verbatim();
    context.signal_modified(args, KEY);
}

/// Whether the command states a fact, and its sender may state facts.
pub(super) fn states_fact(context: &mut Context<'_>, args: &Args<'_>) -> bool {
    args.get(TTL).contains(&b'@') && context.flags().states_facts()
}

/// Applies a granted lease; with an empty token, only a counter.
pub(super) fn apply_acquire(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
) -> Result<Answered, Refusal> {
    let decided = read_fact(context, args)?;
    let mut slots = [&[][..]; ARGS_MAX];
    // Only the label is used: the fact has the mode, and whether it waited does not matter.
    let options = match slices(args, &mut slots)? {
        [_, _, options @ ..] => request::acquire_options(options)?,
        _ => AcquireOptions::NONE,
    };
    apply_to_lock(context, args, Stated::Grant(options.label), &decided)?;
    state_verbatim(context, args);
    Ok(AcquireReply::Granted(decided.fence).into())
}

/// Sends replicas the floor, if one that may not know it has come online: locks carry the floor,
/// but there may be none.
pub(super) fn tell_floor(context: &mut Context<'_>) {
    let server = context.in_server();
    if !process::with(server, |process| process.owes_floor) || context.must_not_replicate() {
        return;
    }
    let floor = process::with(server, |process| {
        process.owes_floor = false;
        process.node.promises().floor()
    });
    if context.flags().is_master() && floor > Fence::ZERO {
        context.replicate_floor(floor.get());
    }
}

/// The floor and the heartbeat, if this `LOCK.FLOOR` is a heartbeat of the node's master.
pub(super) fn heartbeat(context: &mut Context<'_>, args: &Args<'_>) -> Option<(Fence, Heartbeat)> {
    if context.flags().states_facts() { fact::read_heartbeat(args.get(KEY)) } else { None }
}

/// Applies a heartbeat. It is not passed on to the append-only file; this node's own replicas
/// receive it as its master sent it. Returns the floor.
pub(super) fn apply_heartbeat(
    context: &mut Context<'_>,
    (floor, heartbeat): (Fence, Heartbeat),
) -> Fence {
    let (server, now) = (context.in_server(), clock::now());
    let (floor, (change, unlike)) = process::with(server, |process| {
        (process.node.apply_floor(floor), process.node.heard_of(heartbeat, now))
    });
    replicas::record(server, change);
    if let Some(unlike) = unlike {
        warn_of(unlike, context);
    }
    floor
}

fn warn_of(unlike: Unlike, context: &Context<'_>) {
    let line = match unlike {
        Unlike::Replicas(master, own) => format!(
            "WARNING: lockmod.replicas is {own} here and {master} at this node's master: set it \
             to the same on all, or a master that is cut off may grant locks beside its successor"
        ),
        Unlike::Longest(master, own) => format!(
            "WARNING: lockmod.max-ttl is {own} here, and leases of this node's master last up to \
             {master}: after a failover the longer of the two is waited for, and this node grants \
             none longer than its own"
        ),
    };
    context.log(Level::Warning, &line);
}

/// Applies an extended or repaired lease.
pub(super) fn apply_extend(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
) -> Result<Answered, Refusal> {
    let decided = read_fact(context, args)?;
    let mut slots = [&[][..]; ARGS_MAX];
    let fencing = match slices(args, &mut slots)? {
        [_, _, options @ ..] => request::extend_options(options)?.1,
        _ => Fencing::Keep,
    };
    let label = match fencing {
        Fencing::Repair { label, .. } => label,
        Fencing::Keep | Fencing::Raise(_) => &[],
    };
    apply_to_lock(context, args, Stated::Extension(label), &decided)?;
    state_verbatim(context, args);
    Ok(ExtendReply::Extended.into())
}

/// Applies a fact to the lock at the command's key, and creates it if there is none.
fn apply_to_lock(
    context: &mut Context<'_>,
    args: &Args<'_>,
    stated: Stated<'_>,
    decided: &Decided,
) -> Result<(), Refusal> {
    let server = context.in_server();
    let (read, is_own) = (clock::read(), context.flags().is_loading());
    let apply = |lock: &mut Lock| {
        let stated = (args.get(TOKEN), stated);
        process::with(server, |process| process.node.apply(lock, stated, decided, read, is_own));
    };
    let mut key = context.open(args, KEY);
    match key.find() {
        AtKey::Lock(lock) => {
            apply(lock);
            key.persist();
        }
        AtKey::Nothing => {
            let mut lock = Lock::free(Fence::ZERO, read.now);
            apply(&mut lock);
            key.put(lock);
        }
        AtKey::Other => return Err(Refusal::WrongType),
    }
    Ok(())
}

fn read_fact(context: &mut Context<'_>, args: &Args<'_>) -> Result<Decided, Refusal> {
    fact::read(args.get(TTL)).ok_or_else(|| {
        let refusal = Refusal::BadArg {
            given: args.get(TTL).to_vec(),
            what: "replicated lease",
            allowed: "ttl@end.fence",
        };
        // The reply to a master or a file is not read.
        context.log(Level::Warning, &format!("a lease was not applied: {refusal}"));
        refusal
    })
}
