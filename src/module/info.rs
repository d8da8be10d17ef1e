//! The INFO section `lockmod`.

use super::ffi::types;
use super::state_file::StateFile;
use super::{clock, node, waiters};

/// The fields, in the order in which they are shown.
pub(super) fn fields() -> Vec<(&'static str, u64)> {
    let durability = node::durability();
    let counts = node::counts();
    let now = clock::now();
    let (waiting, oldest, handed_over) = waiters::tally(now);
    let quarantine = durability.quarantine(now).map_or(0, |(left, _)| left.get());
    vec![
        ("locks", types::lock_count() as u64),
        ("grants", counts.grants),
        ("held_by_another", counts.held),
        ("refusals", counts.refusals),
        ("releases", counts.releases),
        ("extensions", counts.extensions),
        ("raises", counts.raises),
        ("lapses", counts.lapses),
        ("forgotten", counts.forgotten),
        ("waiters", waiting as u64),
        ("oldest_waiter_ms", oldest.get()),
        ("handed_over", handed_over),
        ("floor", durability.floor().get()),
        ("highest_fence", durability.highest().get()),
        ("quarantine_left_ms", quarantine),
        ("state_writes", node::state().map_or(0, StateFile::write_count)),
        ("state_write_failures", node::state().map_or(0, StateFile::failure_count)),
    ]
}
