//! The node: its one piece of global state, and the loop around the engine's decisions.

use std::sync::OnceLock;

use super::ffi::{Context, Guarded, InServer, Level};
use super::state_file::StateFile;
use super::tally::{Counts, Tally};
use super::{clock, start};
use crate::engine::{
    Ceilings, Fence, Instant, LEASE_BLOCK, Lock, Promises, Recovery, Refusal, Stop,
};

static NODE: Guarded<Node> =
    Guarded::new(Node { promises: Promises::new(Fence::ZERO, None), tally: Tally::NONE });

/// What the node knows beside its locks.
struct Node {
    promises: Promises,
    tally: Tally,
}

/// The state file, when the node keeps one and has begun to grant.
static STATE: OnceLock<StateFile> = OnceLock::new();

/// The node has found out about itself, and may decide.
///
/// It is asked for before a key is opened: a node that has just started looks at every lock, and
/// nobody else may have hold of one then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready<'a>(InServer<'a>);

impl<'a> Ready<'a> {
    /// The proof that it was asked for in a callback, which still runs.
    #[inline]
    pub(super) fn in_server(self) -> InServer<'a> {
        self.0
    }
}

/// Sees to it that the node may decide.
#[inline]
pub(super) fn ready<'a>(context: &mut Context<'a>) -> Ready<'a> {
    start::ensure(context);
    Ready(context.in_server())
}

/// Decides a request.
///
/// # Errors
/// The refusal.
#[inline]
pub(super) fn decide<R>(
    Ready(server): Ready<'_>,
    mut decision: impl FnMut(&mut Promises) -> Result<R, Stop>,
) -> Result<R, Refusal> {
    loop {
        let (outcome, request) = NODE.with(server, |node| {
            let outcome = decision(&mut node.promises);
            (outcome, node.promises.take_request())
        });
        if let Some(ceilings) = request
            && let Some(state) = STATE.get()
        {
            state.raise_ahead(ceilings);
        }
        match outcome {
            Ok(outcome) => return Ok(outcome),
            Err(Stop::Refused(refusal)) => return Err(refusal),
            Err(Stop::Persist(ceilings)) => persist(server, ceilings)?,
        }
    }
}

/// Sees to it that larger ceilings are durable, and known to be.
fn persist(server: InServer<'_>, ceilings: Ceilings) -> Result<(), Refusal> {
    // PROOF: only a node with a state file has ceilings.
    let state = STATE.get().expect("ceilings come with a state file");
    // The thread that writes ahead may have been there already.
    let durable = state.ceilings();
    let is_news = NODE.with(server, |node| {
        let is_news = node.promises.ceilings() != Some(durable);
        node.promises.persisted(durable);
        is_news
    });
    if !is_news {
        state.raise(ceilings).map_err(|error| {
            NODE.with(server, |node| node.promises.request_failed());
            Refusal::StateFile { cause: error.to_string() }
        })?;
        NODE.with(server, |node| node.promises.persisted(state.ceilings()));
    }
    Ok(())
}

/// Takes up what the thread that writes ahead has done.
pub(super) fn tick(context: &mut Context<'_>) {
    let server = context.in_server();
    let Some(state) = STATE.get() else { return };
    state.retry(clock::now());
    let request = NODE.with(server, |node| {
        node.promises.persisted(state.ceilings());
        node.promises.take_request()
    });
    if let Some(ceilings) = request {
        state.raise_ahead(ceilings);
    }
    if let Some(failure) = state.news_of_failure() {
        NODE.with(server, |node| node.promises.request_failed());
        let line = format!("the state file cannot be written: {failure}; grants will be refused");
        context.log(Level::Warning, &line);
    }
}

/// Does what the start asks for, and grants nothing that `state` does not promise yet.
pub(super) fn begin(server: InServer<'_>, recovery: Recovery, state: StateFile) {
    NODE.with(server, |node| {
        node.promises.keep(state.ceilings());
        node.promises.recover(recovery);
    });
    // Set once: `start` begins once.
    let _ = STATE.set(state);
}

/// Why the node grants nothing, whoever asks for whichever lock; `None` if it grants.
pub(super) fn refusal(server: InServer<'_>, now: Instant) -> Option<Refusal> {
    let quarantine = NODE.with(server, |node| node.promises.quarantine(now));
    let of_quarantine = quarantine.map(|(left, reason)| Refusal::Quarantine { reason, left });
    // A few grants may still be covered by what was promised before; soon none is.
    let cause = || STATE.get().and_then(StateFile::failure);
    of_quarantine.or_else(|| cause().map(|cause| Refusal::StateFile { cause }))
}

/// Ends the quarantine; answers whether there was one.
pub(super) fn end_quarantine(server: InServer<'_>, now: Instant) -> bool {
    NODE.with(server, |node| {
        let was_quarantined = node.promises.quarantine(now).is_some();
        node.promises.end_quarantine();
        was_quarantined
    })
}

/// Takes up what may be used after a change of the state file: nothing if that failed.
pub(super) fn keep(server: InServer<'_>, state: &StateFile) {
    NODE.with(server, |node| node.promises.keep(state.ceilings()));
}

/// Does what a promotion asks for.
pub(super) fn recover(server: InServer<'_>, recovery: Recovery) {
    NODE.with(server, |node| node.promises.recover(recovery));
}

/// The state file, if the node keeps one and has begun to grant.
pub(super) fn state() -> Option<&'static StateFile> {
    STATE.get()
}

/// Counts what happened.
#[inline]
pub(super) fn count(server: InServer<'_>, work: impl FnOnce(&mut Counts)) {
    NODE.with(server, |node| work(&mut node.tally.counts));
}

/// Uses the node's account of what happened.
#[inline]
pub(super) fn tally<R>(server: InServer<'_>, work: impl FnOnce(&mut Tally) -> R) -> R {
    NODE.with(server, |node| work(&mut node.tally))
}

/// A copy of what the node promises about itself.
pub(super) fn promises(server: InServer<'_>) -> Promises {
    NODE.with(server, |node| node.promises.clone())
}

/// The last instant of the quarantine, if there is one.
pub(super) fn grants_nothing_until(server: InServer<'_>, now: Instant) -> Option<Instant> {
    NODE.with(server, |node| node.promises.grants_nothing_until(now))
}

/// Leases may have found other names; returns until when nothing counts for that.
pub(super) fn names_changed(server: InServer<'_>, now: Instant) -> Option<Instant> {
    NODE.with(server, |node| node.promises.names_changed(now))
}

/// The fence below which a forgotten lock never restarts.
pub(super) fn floor(server: InServer<'_>) -> Fence {
    NODE.with(server, |node| node.promises.floor())
}

/// A name has lost this lock.
pub(super) fn forget(server: InServer<'_>, lock: &Lock) {
    NODE.with(server, |node| {
        node.promises.forget(lock);
        node.tally.may_lapse(lock);
        if lock.written_lease().is_some() {
            node.tally.gave_back(lock.until());
        }
    });
}

/// Begins to look for the longest lease that stands.
pub(super) fn begin_survey(server: InServer<'_>) {
    NODE.with(server, |node| {
        node.promises.begin_survey();
        node.tally.begin_survey();
    });
}

/// A scan has come upon this lock, or it has got a second name.
pub(super) fn come_upon(server: InServer<'_>, lock: &Lock) {
    NODE.with(server, |node| {
        node.promises.come_upon(lock);
        node.tally.may_lapse(lock);
    });
}

/// Every lock has been looked at: a crash shall not cost the wait for those that were given back.
pub(super) fn end_survey(server: InServer<'_>, now: Instant) {
    if let Some(lease) = NODE.with(server, |node| node.promises.end_survey(now))
        && let Some(state) = STATE.get()
    {
        state.lower(lease);
    }
}

/// Whether a survey could shorten the wait after a crash: not while the lease that ends last is
/// known to stand.
pub(super) fn would_gain(server: InServer<'_>, now: Instant) -> bool {
    NODE.with(server, |node| {
        let Node { promises, tally } = node;
        let longest = promises.longest();
        let is_gone = tally.given_back().after(LEASE_BLOCK) >= longest;
        // After a start, the ceiling may be about leases that nobody has seen since.
        let is_above =
            |ceilings: Ceilings| ceilings.lease > longest.after(LEASE_BLOCK).after(LEASE_BLOCK);
        promises.would_gain(now) && (is_gone || promises.ceilings().is_some_and(is_above))
    })
}

/// Any number of locks are gone, or have changed places.
pub(super) fn forget_all(server: InServer<'_>) {
    NODE.with(server, |node| {
        node.promises.forget_all();
        node.tally.gave_back(node.promises.longest());
    });
}

/// Raises the floor to at least `floor`.
pub(super) fn raise_floor(server: InServer<'_>, floor: Fence) {
    NODE.with(server, |node| node.promises.raise_floor(floor));
}

/// The floor was raised elsewhere, by an operator at the master, or is read from the append-only
/// file; answers the floor.
pub(super) fn floor_seen(server: InServer<'_>, fence: Fence) -> Fence {
    NODE.with(server, |node| {
        node.promises.seen(fence, None);
        node.promises.raise_floor(fence);
        node.promises.floor()
    })
}

/// A lock was decided elsewhere: by the master, or in the append-only file.
pub(super) fn seen(server: InServer<'_>, lock: &Lock) {
    let ends_at: Option<Instant> = lock.written_lease().map(|lease| lease.ends_at);
    NODE.with(server, |node| {
        node.promises.seen(lock.counter(), ends_at);
        node.tally.may_lapse(lock);
    });
}

/// A lock came out of a dump or a data set. Where the node grants already, what the lock promises
/// is made durable before anybody can ask for it.
pub(super) fn loaded(server: InServer<'_>, lock: &Lock) {
    seen(server, lock);
    let request = NODE.with(server, |node| node.promises.take_request());
    if let Some(ceilings) = request
        && let Some(state) = STATE.get()
        && let Err(error) = state.raise(ceilings)
    {
        NODE.with(server, |node| node.promises.request_failed());
        let line = format!("the state file cannot be written: {error}; a crash may forget a lock");
        super::ffi::log(Level::Warning, &line);
    }
}

/// A counter was raised elsewhere.
pub(super) fn raised(server: InServer<'_>, before: Fence, counter: Fence) {
    NODE.with(server, |node| node.promises.raised(before, counter));
}
