//! The commands: read the request, let the engine decide, report the outcome.
//!
//! A refusal leaves nothing behind: no key is created, nothing is replicated, no watching client is
//! notified. A decision is stated to replicas and to the append-only file as a fact (see
//! [`super::replication`]).

use super::arguments::{ARGS_MAX, KEY, TOKEN, TTL, slices};
use super::ffi::{Answered, Args, AtKey, Context};
use super::process::Process;
use super::{clock, config, info, process, replication, slots, start, waiters};
use crate::engine::{
    Acquired, Availability, Extended, Fence, Instant, Lock, Look, Millis, Mode, Queued, Refusal,
    Released, Tenure, Token,
};
use crate::wire::code;
use crate::wire::outcome::{AcquireReply, ExtendReply, RaiseReply, ReleaseReply, of_fence};
use crate::wire::request::{self, Limits, Onward, WaitMode};
use crate::wire::spec;

/// A command of the table, and its implementation.
pub(super) trait Handler {
    /// The name in [`spec::COMMANDS`].
    const NAME: &'static str;

    /// Carries it out.
    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal>;
}

/// `LOCK.ACQUIRE key token ttl [SHARED] [LABEL label] [WAIT ms | QUEUE ...]`
pub(super) struct Acquire;

impl Handler for Acquire {
    const NAME: &'static str = spec::ACQUIRE;

    #[inline]
    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
        let server = context.in_server();
        if replication::states_fact(context, args) {
            return replication::apply_acquire(context, args);
        }
        let now = slots::admit(context, args)?;
        let Asked { outcome, mode, wait, has_line, again } = ask(context, args, now)?;
        let answered = match outcome {
            Acquired::Granted { fence, ends_at, lapsed } => {
                let lease = Tenure { ends_at, fence, mode, is_provisional: false };
                replication::state_lease(context, args, now, lease);
                if lapsed > 0 {
                    context.notify(c"lock.expire", args, KEY);
                }
                context.notify(c"lock.acquire", args, KEY);
                AcquireReply::from(outcome).into()
            }
            Acquired::Again { .. } => {
                if let Some(Again { ttl, lease }) = again {
                    replication::state_extension(context, args, now, ttl, lease);
                    context.notify(c"lock.extend", args, KEY);
                }
                AcquireReply::from(outcome).into()
            }
            Acquired::Held if !wait.is_zero() && context.may_block() => {
                wait_for(context, args, wait, now)?
            }
            Acquired::Held => {
                process::with(server, |process| process.node.tally().counts.held += 1);
                AcquireReply::from(outcome).into()
            }
        };
        // A call that has just been blocked has made a line.
        if has_line || !wait.is_zero() {
            waiters::serve(context, args.get(KEY), availability_after(outcome, mode));
        }
        Ok(answered)
    }
}

/// An acquire that the node has decided.
struct Asked {
    outcome: Acquired,
    mode: Mode,
    /// How long its sender would wait.
    wait: Millis,
    /// Whether there may be waiters in line.
    has_line: bool,
    /// What to replicate if its sender had the lock already.
    again: Option<Again>,
}

/// What to replicate about a lock that its holder has acquired again.
struct Again {
    ttl: Millis,
    lease: Tenure,
}

impl Again {
    /// `None` if the lease did not become longer, and there was no expiry to remove. A removed
    /// expiry is replicated, because otherwise the lock would expire at the replicas while it is
    /// held.
    fn of(
        outcome: Acquired,
        tenure: Option<Tenure>,
        had_expiry: bool,
        ttl: Millis,
    ) -> Option<Again> {
        let Acquired::Again { later, .. } = outcome else { return None };
        (later || had_expiry).then_some(Again { ttl, lease: tenure? })
    }
}

/// The state of the lock after a request, if that is known: other readers may hold it for longer.
fn availability_after(outcome: Acquired, mode: Mode) -> Option<Availability> {
    match outcome {
        Acquired::Granted { ends_at, .. } | Acquired::Again { ends_at, .. }
            if !mode.is_shared() =>
        {
            Some(Availability::Held(ends_at))
        }
        Acquired::Granted { .. } | Acquired::Again { .. } | Acquired::Held => None,
    }
}

/// Reads an acquire, and has the node decide it.
#[inline]
fn ask(context: &mut Context<'_>, args: &Args<'_>, now: Instant) -> Result<Asked, Refusal> {
    let mut slots = [&[][..]; ARGS_MAX];
    let request = &request::acquire(slices(args, &mut slots)?, config::limits())?;
    let (claim, wait) = (request.claim, request.waiting.blocks_for());
    let queued = match &request.waiting {
        WaitMode::Not | WaitMode::Block(_) => None,
        WaitMode::Queue(queue) => {
            waiters::queued_to_ask(context, (claim, request.label), queue, now)?
        }
    };
    let (ready, has_lines) = start::ready_with_lines(context);
    let has_line = queued.is_some() || has_lines;
    // Read only if it matters, and before the key is open.
    let database = if has_line { context.database() } else { 0 };
    let place = || (database, args.get(KEY));
    let mut tenure = None;
    let decide = |lock: &mut Lock| {
        let outcome = process::decide(ready, |node| {
            if has_line {
                let asked = (request.claim, request.label);
                node.acquire_in_line(place(), lock, asked, queued.as_ref(), now)
            } else {
                node.acquire(lock, request.claim, request.label, now)
            }
        })?;
        if let Acquired::Again { .. } = outcome {
            tenure = lock.tenure_of(request.claim.token);
        }
        Ok(outcome)
    };
    // There may be a line for a lock that does not exist.
    let keeps = |outcome: &Acquired| match outcome {
        Acquired::Granted { .. } | Acquired::Again { .. } => true,
        Acquired::Held => false,
    };
    let decided = context.open(args, KEY).with_lock(decide, keeps);
    let (outcome, had_expiry) = or_waits(decided, wait)?;
    let again = Again::of(outcome, tenure, had_expiry, claim.ttl);
    Ok(Asked { outcome, mode: claim.mode, wait, has_line, again })
}

/// A reader that is willing to wait also waits until the lock has room for it.
fn or_waits(
    decided: Result<(Acquired, bool), Refusal>,
    wait: Millis,
) -> Result<(Acquired, bool), Refusal> {
    match decided {
        Err(Refusal::ReadersFull { .. }) if !wait.is_zero() => Ok((Acquired::Held, false)),
        decided => decided,
    }
}

/// Blocks the sender of an acquire until it is granted the lock, or its wait is over.
fn wait_for(
    context: &mut Context<'_>,
    args: &Args<'_>,
    wait: Millis,
    now: Instant,
) -> Result<Answered, Refusal> {
    let mut slots = [&[][..]; ARGS_MAX];
    let request = request::acquire(slices(args, &mut slots)?, config::limits())?;
    waiters::block(context, args.get(KEY), (request.claim, request.label), wait, now)?;
    Ok(Answered::Later)
}

/// `LOCK.RELEASE key token [HANDOVER | [SHARED] QUEUE ms TICKET ticket NOTIFY channel]`
pub(super) struct Release;

impl Handler for Release {
    const NAME: &'static str = spec::RELEASE;

    #[inline]
    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
        let now = clock::now();
        let GivenBack { outcome, has_line, availability, is_out_of_line, hands_over } =
            give_back(context, args, now)?;
        if let Released::Released { .. } = outcome {
            replication::state_verbatim(context, args);
            context.notify(c"lock.release", args, KEY);
        }
        if has_line {
            let look = Look::after(availability).handing_over(hands_over);
            waiters::look_at(context, args.get(KEY), look);
        }
        let reply = if is_out_of_line { ReleaseReply::NotInLine } else { outcome.into() };
        Ok(reply.into())
    }
}

/// A release that the node has decided.
struct GivenBack {
    outcome: Released,
    /// Whether there may be waiters in line.
    has_line: bool,
    /// The state of the lock, if that is known.
    availability: Option<Availability>,
    /// Whether the ticket that came with it is not in line.
    is_out_of_line: bool,
    /// Whether its holder had won the lock, so that the next in line may be granted it.
    hands_over: bool,
}

/// Reads a release, and has the node decide it.
#[inline]
fn give_back(
    context: &mut Context<'_>,
    args: &Args<'_>,
    now: Instant,
) -> Result<GivenBack, Refusal> {
    let server = context.in_server();
    // Read only if they matter: that costs as much as the release itself.
    let flags = context.flags_later();
    let states_facts = || flags().states_facts();
    let token = token_of(args, states_facts)?;
    let has_options = args.len() > TTL && !states_facts();
    let (queued, says_won) = if has_options { onward(context, args, now)? } else { (None, false) };
    let (ready, has_lines) = start::ready_with_lines(context);
    let has_line = queued.is_some() || has_lines;
    let database = if has_line { context.database() } else { 0 };
    let place = || (database, args.get(KEY));
    let decide = |lock: &mut Lock| {
        process::decide(ready, |node| {
            if !has_line {
                return Ok((node.release(lock, token, now), None, false));
            }
            let queued = queued.as_ref();
            let (outcome, is_there) = node.release_in_line(place(), lock, token, queued, now);
            let availability = Some(node.availability(lock, now));
            Ok((outcome, availability, queued.is_some() && !is_there))
        })
    };
    let (outcome, availability, is_out_of_line) = match context.open(args, KEY).find() {
        AtKey::Lock(lock) => match decide(lock)? {
            // A fact brings no ticket.
            (Released::HeldByAnother | Released::NotHeld, ..) if states_facts() => {
                let apply = |process: &mut Process| process.node.apply_release(lock, token, now);
                (process::with(server, apply), None, false)
            }
            decided => decided,
        },
        AtKey::Nothing if has_line => decide(&mut Lock::default())?,
        AtKey::Nothing => (Released::NotHeld, None, false),
        AtKey::Other => return Err(Refusal::WrongType),
    };
    let hands_over = says_won && matches!(outcome, Released::Released { .. });
    Ok(GivenBack { outcome, has_line, availability, is_out_of_line, hands_over })
}

/// The token of a release. In a fact, it is within the limits of the node that decided the release.
fn token_of<'a>(
    args: &'a Args<'_>,
    states_facts: impl FnOnce() -> bool,
) -> Result<Token<'a>, Refusal> {
    match request::token(args.get(TOKEN), config::limits()) {
        Err(_) if states_facts() => request::token(args.get(TOKEN), Limits::FACTS),
        read => read,
    }
}

/// The ticket that a release brings, if any, and whether the release states that the lock was won.
fn onward<'a>(
    context: &mut Context<'_>,
    args: &'a Args<'_>,
    now: Instant,
) -> Result<(Option<Queued<'a>>, bool), Refusal> {
    let mut slots = [&[][..]; ARGS_MAX];
    let options = slices(args, &mut slots)?.get(1..).unwrap_or_default();
    match request::release_options(options)? {
        Onward::Unsaid => Ok((None, false)),
        Onward::HandedOver => Ok((None, true)),
        Onward::Queue(mode, queue) => Ok((waiters::queued(context, (mode, &queue), now)?, false)),
    }
}

/// `LOCK.EXTEND key token ttl [SHARED] [FENCE fence [REPAIR [LABEL label]]]`
pub(super) struct Extend;

impl Handler for Extend {
    const NAME: &'static str = spec::EXTEND;

    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
        if replication::states_fact(context, args) {
            return replication::apply_extend(context, args);
        }
        let now = slots::admit(context, args)?;
        let mut lease = None;
        let (outcome, had_expiry, ttl, has_lines) = {
            let mut slots = [&[][..]; ARGS_MAX];
            let request = request::extend(slices(args, &mut slots)?, config::limits())?;
            let (ready, has_lines) = start::ready_with_lines(context);
            let decide = |lock: &mut Lock| {
                let decided = process::decide(ready, |node| {
                    node.extend(lock, request.claim, request.fencing, node.date(now))
                })?;
                if decided.is_done() {
                    lease = lock.tenure_of(request.claim.token);
                }
                Ok(decided)
            };
            let keeps = |outcome: &Extended| matches!(outcome, Extended::Extended { .. });
            let (outcome, had_expiry) = context.open(args, KEY).with_lock(decide, keeps)?;
            (outcome, had_expiry, request.claim.ttl, has_lines)
        };
        if let (Extended::Extended { is_news, lapsed, .. }, Some(lease)) = (outcome, lease) {
            if is_news || had_expiry {
                replication::state_extension(context, args, now, ttl, lease);
                if lapsed > 0 {
                    context.notify(c"lock.expire", args, KEY);
                }
                context.notify(c"lock.extend", args, KEY);
            }
            if has_lines {
                let held = Availability::Held(lease.ends_at);
                let availability = Some(held).filter(|_| !lease.mode.is_shared());
                waiters::serve(context, args.get(KEY), availability);
            }
        }
        Ok(ExtendReply::from(outcome).into())
    }
}

/// `LOCK.FENCE key [token fence]`
pub(super) struct ReadOrRaise;

impl Handler for ReadOrRaise {
    const NAME: &'static str = spec::FENCE;

    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
        match args.len() {
            2 => match context.open_to_read(args, KEY).find() {
                AtKey::Lock(lock) => Ok(of_fence(lock.counter()).into()),
                AtKey::Nothing => Ok(of_fence(Fence::ZERO).into()),
                AtKey::Other => Err(Refusal::WrongType),
            },
            4 => raise(context, args),
            _ => Ok(Answered::WrongArity),
        }
    }
}

fn raise(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
    let server = context.in_server();
    let facts = context.flags().states_facts();
    let limits = if facts { Limits::FACTS } else { config::limits() };
    let now = if facts { None } else { Some(slots::admit(context, args)?) };
    let (outcome, is_news) = {
        let token = request::token(args.get(TOKEN), limits)?;
        let fence = request::fence(args.get(TOKEN + 1))?;
        let ready = now.map(|now| (start::ready(context), now));
        // Decided even if there is no lock: a node in quarantine refuses, because it may have
        // forgotten the lock.
        let mut nothing = Lock::default();
        let mut key = context.open(args, KEY);
        let lock = match key.find() {
            AtKey::Lock(lock) => lock,
            AtKey::Nothing => &mut nothing,
            AtKey::Other => return Err(Refusal::WrongType),
        };
        let outcome = match ready {
            None => process::with(server, |process| process.node.apply_raise(lock, token, fence)),
            Some((ready, now)) => {
                process::decide(ready, |node| node.raise(lock, token, fence, node.date(now)))?
            }
        };
        let takes_back = outcome.is_done() && key.persist();
        (outcome, takes_back || outcome.is_news())
    };
    if is_news {
        replication::state_verbatim(context, args);
        context.notify(c"lock.fence", args, KEY);
    }
    Ok(RaiseReply::from(outcome).into())
}

/// `LOCK.FLOOR [fence]`
pub(super) struct Floor;

impl Handler for Floor {
    const NAME: &'static str = spec::FLOOR;

    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
        let server = context.in_server();
        match args.len() {
            1 => process::decide(start::ready(context), |node| {
                Ok(of_fence(node.promises().floor()).into())
            }),
            2 => {
                if let Some(heard) = replication::heartbeat(context, args) {
                    return Ok(of_fence(replication::apply_heartbeat(context, heard)).into());
                }
                let fence = request::fence(args.get(KEY))?;
                let floor = if context.flags().states_facts() {
                    process::with(server, |process| process.node.apply_floor(fence))
                } else {
                    process::decide(start::ready(context), |node| node.lift_floor(fence))?
                };
                context.replicate_verbatim();
                Ok(of_fence(floor).into())
            }
            _ => Ok(Answered::WrongArity),
        }
    }
}

/// `LOCK.INFO key`
pub(super) struct Info;

impl Handler for Info {
    const NAME: &'static str = spec::INFO;

    fn run(context: &mut Context<'_>, args: &mut Args<'_>) -> Result<Answered, Refusal> {
        let server = context.in_server();
        let now = clock::now();
        let obstacle = info::obstacle(context);
        let place = (context.database(), args.get(KEY));
        let account = |lock: &Lock| {
            process::with(server, |process| process.node.account_of(place, lock, now))
        };
        let mut account = match context.open_to_read(args, KEY).find() {
            AtKey::Lock(lock) => account(lock),
            AtKey::Nothing => account(&Lock::default()),
            AtKey::Other => return Err(Refusal::WrongType),
        };
        account.obstacle = obstacle;
        // The one for all slots may name any of them.
        let is_of_slot = |text: &String| code::word_of(text) == code::TRYAGAIN.word;
        if account.obstacle.as_ref().is_none_or(is_of_slot)
            && let Some(refusal) = slots::obstacle(server, args.get(KEY), now)
        {
            account.obstacle = Some(refusal.to_string());
            if let Refusal::Quarantine { left, reason } = refusal {
                account.quarantine = Some((left, reason));
            }
        }
        Ok(context.describe(&account))
    }
}

/// `LOCK.HELP`
pub(super) struct Help;

impl Handler for Help {
    const NAME: &'static str = spec::HELP;

    fn run(_: &mut Context<'_>, _: &mut Args<'_>) -> Result<Answered, Refusal> {
        Ok(Answered::Lines(spec::help()))
    }
}
