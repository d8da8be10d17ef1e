//! The slots of a Cluster: what the server reports about them, and what masters report to each
//! other.
//!
//! The engine decides what follows. Nothing here queries a server that is not in a Cluster.

use super::arguments::KEY;
use super::ffi::{Args, Context, InServer, Level};
use super::{clock, config, process, start};
use crate::engine::{Came, Millis, QuarantineReason, Refusal};
use crate::wire::slots::{footing, read_footing, read_shares, slot_of};

/// How often slots are looked at, besides when a client asks for a lock in a new one.
const PAUSE: Millis = Millis::new(200);

/// Refuses a decision about a lock in a slot that has just come, while leases that this node does
/// not know may stand.
///
/// # Errors
/// `QUARANTINE`, or `STATEFILE` if the node's promises cannot be written.
#[inline]
pub(super) fn admit(context: &mut Context<'_>, args: &Args<'_>) -> Result<(), Refusal> {
    match process::with(context.in_server(), |process| process.node.is_in_cluster()) {
        false => Ok(()),
        true => admit_to(context, slot_of(args.get(KEY))),
    }
}

#[inline(never)]
fn admit_to(context: &mut Context<'_>, slot: u16) -> Result<(), Refusal> {
    let server = context.in_server();
    let decides = || process::with(server, |process| process.node.decides_in(slot));
    if decides() {
        return Ok(());
    }
    look(context);
    if decides() { Ok(()) } else { come(context, slot) }
}

/// Several times a second: looks at the slots, and reports to the other masters.
pub(super) fn tick(context: &mut Context<'_>) {
    let (server, now) = (context.in_server(), clock::now());
    let is_due = process::with(server, |process| {
        let is_due = process.node.is_in_cluster()
            && process.node.has_begun()
            && process.slots_seen_at.after(PAUSE) <= now;
        if is_due {
            process.slots_seen_at = now;
        }
        is_due
    });
    if !is_due || !context.flags().is_master() {
        return;
    }
    look(context);
    for slot in process::with(server, |process| process.node.unsettled_slots()) {
        // A refusal is for requests for a lock there, and each of them gets its own.
        let _ = come(context, slot);
    }
    let told = process::with(server, |process| process.node.tell(now, config::max_ttl()));
    if let Some(told) = told {
        context.tell_cluster(&footing(told));
    }
}

/// Takes another master's report.
pub(super) fn heard(server: InServer<'_>, sender: &[u8], message: &[u8]) {
    if let Some(told) = read_footing(message) {
        process::with(server, |process| process.node.hear(sender, told, clock::now()));
    }
}

/// Shows the node which master has which slots.
pub(super) fn look(context: &mut Context<'_>) {
    let server = context.in_server();
    let Some(text) = context.cluster_nodes() else {
        let line = "WARNING: CLUSTER NODES cannot be read: locks in slots that are moved to this \
                    node may be granted while they are held";
        context.log(Level::Warning, line);
        process::with(server, |process| process.node.leave_cluster());
        return;
    };
    let shares = read_shares(&text);
    process::with(server, |process| process.node.see(&shares));
}

/// Handles a slot that has come to this node.
fn come(context: &mut Context<'_>, slot: u16) -> Result<(), Refusal> {
    let ready = start::ready(context);
    let now = clock::now();
    let settings = (config::max_ttl(), config::caution());
    let server = context.in_server();
    let came = process::decide(ready, |node| node.come(slot, node.date(now), settings))?;
    let (left, change) = match came {
        Came::Decides(is_raised) => {
            process::with(server, |process| process.owes_floor |= is_raised);
            return Ok(());
        }
        Came::Waits(left, change) => (left, change),
    };
    if let Some(change) = change {
        let line = format!(
            "QUARANTINE: slot {slot} came from a node that grants nothing, or does not say how it \
             stands; no lock there is granted or extended for {left}"
        );
        context.log(Level::Warning, &line);
        start::change_state(server, change);
    }
    Err(Refusal::Quarantine { reason: QuarantineReason::OtherMaster, left })
}
