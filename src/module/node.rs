//! The node: its one piece of global state, and the loop around the engine's decisions.

use super::ffi::Guarded;
use crate::engine::{Durability, Fence, Instant, Lock, Refusal, Stop};

static NODE: Guarded<Node> =
    Guarded::new(Node { durability: Durability::new(Fence::ZERO, None), counts: Counts::ZERO });

/// What the node knows beside its locks.
struct Node {
    durability: Durability,
    counts: Counts,
}

/// How often things happened since the server started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Leases granted.
    pub(super) grants: u64,
    /// Requests for a lock that another token held.
    pub(super) held: u64,
    /// Leases given back.
    pub(super) releases: u64,
    /// Leases prolonged.
    pub(super) extensions: u64,
    /// Counters raised.
    pub(super) raises: u64,
    /// Leases that had ended unreleased when the lock was granted again.
    pub(super) lapses: u64,
    /// Idle locks forgotten.
    pub(super) forgotten: u64,
    /// Requests refused with an error.
    pub(super) refusals: u64,
}

impl Counts {
    const ZERO: Counts = Counts {
        grants: 0,
        held: 0,
        releases: 0,
        extensions: 0,
        raises: 0,
        lapses: 0,
        forgotten: 0,
        refusals: 0,
    };
}

/// Decides a request.
///
/// # Errors
/// The refusal, which is counted.
pub(super) fn decide<R>(
    mut decision: impl FnMut(&mut Durability) -> Result<R, Stop>,
) -> Result<R, Refusal> {
    match NODE.with(|node| decision(&mut node.durability)) {
        Ok(outcome) => Ok(outcome),
        Err(Stop::Refused(refusal)) => Err(refusal),
        // Without a state file there are no ceilings.
        Err(Stop::Persist(_)) => unreachable!("ceilings without a state file"),
    }
}

/// Counts what happened.
#[inline]
pub(super) fn count(work: impl FnOnce(&mut Counts)) {
    NODE.with(|node| work(&mut node.counts));
}

/// How often things happened.
pub(super) fn counts() -> Counts {
    NODE.with(|node| node.counts)
}

/// A copy of what the node promises about itself.
pub(super) fn durability() -> Durability {
    NODE.with(|node| node.durability.clone())
}

/// The fence below which a forgotten lock never restarts.
pub(super) fn floor() -> Fence {
    NODE.with(|node| node.durability.floor())
}

/// A lock with this counter is gone.
pub(super) fn forget(counter: Fence) {
    NODE.with(|node| node.durability.forget(counter));
}

/// Any number of locks are gone, or have changed places.
pub(super) fn forget_all() {
    NODE.with(|node| node.durability.forget_all());
}

/// Raises the floor to at least `floor`.
pub(super) fn raise_floor(floor: Fence) {
    NODE.with(|node| node.durability.raise_floor(floor));
}

/// A lock came from elsewhere.
pub(super) fn seen(lock: &Lock) {
    let ends_at: Option<Instant> = lock.written_lease().map(|lease| lease.ends_at);
    NODE.with(|node| node.durability.seen(lock.counter(), ends_at));
}

/// A counter was raised elsewhere.
pub(super) fn raised(before: Fence, counter: Fence) {
    NODE.with(|node| node.durability.raised(before, counter));
}
