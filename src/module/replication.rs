//! What replicas and the append-only file are told, and how they obey.
//!
//! Facts travel, not requests: a granted lease is stated with its absolute end and its fence, and
//! whoever receives it applies it without judging again. The fact takes the place of the ttl
//! argument (`30000@1763690000000.17`) and the command is sent as it then stands, because building
//! a command anew costs as much as half of the whole acquire. Refusals state nothing.

use super::ffi::{self, Args, Context, Found, InServer, Level, Reply};
use super::handlers::{self, ARGS_MAX, KEY, TOKEN, TTL};
use super::{clock, node, start};
use crate::engine::{Extended, Fence, Instant, Lease, Lock, Millis, Refusal, TOKEN_MAX, Token};
use crate::wire::request::{self, Decided, SUFFIX_MAX};

/// A lease as it stands once a request has been carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stands {
    pub(super) ends_at: Instant,
    pub(super) fence: Fence,
    pub(super) is_provisional: bool,
}

/// States the lease on the command's key.
pub(super) fn state_lease(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
    now: Instant,
    lease: Stands,
) {
    let server = context.in_server();
    start::notice_step(context, now);
    let clocks = clock::at(server, now);
    let ttl = args.get(TTL);
    let mut room = [0; SUFFIX_MAX];
    let suffix = request::decided_suffix(&mut room, clocks.to_wall(lease.ends_at), lease.fence);
    // A ttl that was accepted has at most 20 digits.
    let mut fact = [request::PROVISIONAL; 20 + SUFFIX_MAX + 1];
    let length = ttl.len() + suffix.len();
    fact[..ttl.len()].copy_from_slice(ttl);
    fact[ttl.len()..length].copy_from_slice(suffix);
    args.replace(TTL, &fact[..length + usize::from(lease.is_provisional)]);
    context.replicate_verbatim();
    context.signal_modified(args, KEY);
}

/// States the lease after an extension by `ttl`. Whoever applies a fact lets no lease last longer
/// than the stated ttl, so where the end before was later, the ttl is what is left until then.
pub(super) fn state_extension(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
    now: Instant,
    ttl: Millis,
    lease: Stands,
) {
    if now.after(ttl) < lease.ends_at {
        args.replace(TTL, now.until(lease.ends_at).get().to_string().as_bytes());
    }
    state_lease(context, args, now, lease);
}

/// What stands in place of the ttl for a lease that no command of its own carries.
pub(super) fn fact(
    context: &mut Context<'_>,
    ttl: Millis,
    now: Instant,
    ends_at: Instant,
    fence: Fence,
) -> Vec<u8> {
    let server = context.in_server();
    start::notice_step(context, now);
    let clocks = clock::at(server, now);
    let mut room = [0; SUFFIX_MAX];
    let suffix = request::decided_suffix(&mut room, clocks.to_wall(ends_at), fence);
    [ttl.get().to_string().as_bytes(), suffix].concat()
}

/// States the command as it stands: it says all there is to say.
pub(super) fn state_verbatim(context: &mut Context<'_>, args: &Args<'_>) {
    context.replicate_verbatim();
    context.signal_modified(args, KEY);
}

/// Whether the command states a fact, and its sender may.
pub(super) fn states_fact(context: &mut Context<'_>, args: &Args<'_>) -> bool {
    args.get(TTL).contains(&b'@') && context.flags().states_facts()
}

/// Applies a granted lease; with an empty token, only a counter.
pub(super) fn apply_acquire(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
) -> Result<Reply, Refusal> {
    let server = context.in_server();
    let decided = read_fact(context, args)?;
    let mut slots = [&[][..]; ARGS_MAX];
    // That it waited has been decided: the label is all that counts here.
    let (label, _) = match handlers::slices(args, &mut slots)? {
        [_, _, options @ ..] => request::acquire_options(options)?,
        _ => (&[][..], request::Waiting::Not),
    };
    let token = args.get(TOKEN);
    apply_to_lock(context, args, |lock| {
        // The holder's own token again: the label of the grant stayed, and stays.
        let is_known = |lease: &Lease<'_>| lease.fence == decided.fence;
        let kept = label_of(lock, token, is_known);
        apply_lease(server, lock, token, &decided, kept.as_deref().unwrap_or(label));
    })?;
    state_verbatim(context, args);
    Ok(Reply::Integer(decided.fence.get()))
}

/// Applies an extended or repaired lease.
pub(super) fn apply_extend(
    context: &mut Context<'_>,
    args: &mut Args<'_>,
) -> Result<Reply, Refusal> {
    let server = context.in_server();
    let decided = read_fact(context, args)?;
    let token = args.get(TOKEN);
    apply_to_lock(context, args, |lock| {
        // An extend repeats no label: the lease keeps its own.
        let label = label_of(lock, token, |_| true).unwrap_or_default();
        apply_lease(server, lock, token, &decided, &label);
    })?;
    state_verbatim(context, args);
    Ok(Reply::Integer(1))
}

/// Applies a fact to the lock at the command's key, which is made if there is none.
fn apply_to_lock(
    context: &mut Context<'_>,
    args: &Args<'_>,
    apply: impl FnOnce(&mut Lock),
) -> Result<(), Refusal> {
    let server = context.in_server();
    let mut key = context.open(args, KEY);
    match key.find() {
        Found::Lock(lock) => {
            let had_lease = lock.has_unnoted_lease();
            apply(lock);
            node::tally(server, |tally| tally.changed(had_lease, lock));
            key.persist();
        }
        Found::Nothing => {
            let mut lock = Lock::free(Fence::ZERO, clock::now());
            apply(&mut lock);
            node::tally(server, |tally| tally.changed(false, &lock));
            key.put(lock);
        }
        Found::Other => return Err(Refusal::WrongType),
    }
    Ok(())
}

/// Applies a raise.
pub(super) fn apply_raise(
    server: InServer<'_>,
    lock: &mut Lock,
    token: Token<'_>,
    fence: Fence,
) -> Extended {
    let before = lock.counter();
    if !lock.apply_raise(token, fence) {
        return Extended::NotHeld;
    }
    node::raised(server, before, lock.counter());
    // The fence may be beyond what this node has promised: a promoted replica goes on above it.
    node::seen(server, lock);
    let ends_at = lock.written_lease().map_or(Instant::default(), |lease| lease.ends_at);
    Extended::Extended { ends_at, counter: lock.counter(), counts: true }
}

/// The label of the lease that is written for `token`, if there is such a lease.
fn label_of(lock: &Lock, token: &[u8], is_meant: impl Fn(&Lease<'_>) -> bool) -> Option<Vec<u8>> {
    let lease = lock.written_lease()?;
    (lease.token.as_bytes() == token && is_meant(&lease)).then(|| lease.label.to_vec())
}

fn apply_lease(
    server: InServer<'_>,
    lock: &mut Lock,
    token: &[u8],
    decided: &Decided,
    label: &[u8],
) {
    // An append-only file is this node's own; what a master says is dated by another machine.
    let is_own = ffi::server_flags(server).is_loading();
    let clocks = if is_own { clock::clocks(server) } else { clock::read() };
    match Token::new(token, TOKEN_MAX) {
        Ok(token) => {
            let ends_at = clocks.to_instant(decided.ends_at, decided.ttl);
            lock.apply(Lease { token, fence: decided.fence, ends_at, label }, clocks.now);
            lock.set_provisional(decided.is_provisional);
        }
        // No token: the fact is about the counter only.
        Err(_) => lock.apply_counter(decided.fence),
    }
    node::seen(server, lock);
    node::raise_floor(server, decided.floor);
}

fn read_fact(context: &mut Context<'_>, args: &Args<'_>) -> Result<Decided, Refusal> {
    request::decided(args.get(TTL)).ok_or_else(|| {
        let refusal = Refusal::BadArg {
            given: args.get(TTL).to_vec(),
            what: "replicated lease",
            allowed: "ttl@end.fence",
        };
        // Nobody reads the reply to what a master or a file says.
        context.log(Level::Warning, &format!("a lease was not applied: {refusal}"));
        refusal
    })
}
