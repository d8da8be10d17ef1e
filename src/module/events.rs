//! The server's events, and what the node does about them.

use super::ffi::{Context, InServer, Level};
use super::{clock, datatype, process, replicas, replication, scan, slots, start, waiters};
use crate::engine::ConnectionId;

/// One database, or all of them, will be emptied, without a list of the names.
pub(super) fn flushed(server: InServer<'_>) {
    all_removed(server);
    waiters::carry_out(server);
}

fn all_removed(server: InServer<'_>) {
    let longest = process::with(server, |process| {
        process.node.all_unlinked();
        process.node.promises().longest()
    });
    datatype::removed(server, longest);
}

/// Two databases were swapped: every name may have another lock's counter now.
pub(super) fn swapped(server: InServer<'_>) {
    let now = clock::now();
    all_removed(server);
    process::with(server, |process| {
        // If the file cannot be written, nothing is granted or extended before it can.
        let _ = process.names_changed(now);
    });
    scan::disturbed(server);
    waiters::carry_out(server);
}

/// Slots of a cluster are moving. Some servers empty those that have moved without an event for
/// their keys.
pub(super) fn slots_moved(server: InServer<'_>) {
    process::with(server, |process| process.node.all_lines_changed());
    waiters::carry_out(server);
}

/// A data set has been read; it may be empty.
pub(super) fn loaded(server: InServer<'_>) {
    start::data_set_read(server);
}

/// A client has disconnected.
pub(super) fn disconnected(server: InServer<'_>, client: u64) {
    process::with(server, |process| process.node.disconnected(ConnectionId(client)));
    waiters::carry_out(server);
}

/// A replica has come online. Its data set may have no lock, and so no floor.
pub(super) fn replica_came(server: InServer<'_>) {
    process::with(server, |process| process.owes_floor = true);
    replicas::changed(server);
}

/// A replica that was online is gone.
pub(super) fn replica_left(server: InServer<'_>) {
    replicas::changed(server);
}

/// Several times a second.
pub(super) fn ticked(context: &mut Context<'_>) {
    // A node without requests decides its start here, so that the first request need not wait for
    // it.
    start::ready(context);
    start::tick(context);
    replicas::tick(context);
    slots::tick(context);
    waiters::tick(context);
    scan::tick(context);
    replication::tell_floor(context);
}

/// Settings of the server have changed.
pub(super) fn configured(context: &mut Context<'_>) {
    let server = context.in_server();
    warn_of_eviction(context);
    waiters::configured(context);
    replicas::look_at_settings(server);
    start::configured(context);
    slots::configured(context);
    waiters::carry_out(server);
}

/// The node's role has changed.
pub(super) fn role_changed(context: &mut Context<'_>, is_master: bool) {
    let server = context.in_server();
    if is_master {
        start::promoted(context);
    } else {
        slots::demoted(context);
        start::demoted(context);
        // Most servers have unblocked their clients themselves before this event; Valkey 9.1 does
        // so later in a `FAILOVER`.
        waiters::carry_out(server);
    }
}

/// The server stops. Its data set has been saved, if it is saved at all.
pub(super) fn stopping(context: &mut Context<'_>) {
    slots::look_last(context);
    start::stopped(context);
}

/// Warns of a policy that may evict held locks: an evicted lock can be granted to another client.
pub(super) fn warn_of_eviction(context: &mut Context<'_>) {
    let server = context.in_server();
    // Locks have no Redis TTL, so the `volatile-*` policies leave them alone.
    let policy = context.setting("maxmemory-policy").unwrap_or_default();
    let is_news = process::with(server, |process| {
        let is_news = process.policy != policy;
        process.policy.clone_from(&policy);
        is_news
    });
    if is_news && policy.starts_with("allkeys") {
        let line = format!(
            "WARNING: maxmemory-policy is {policy}: under memory pressure the server may evict \
             locks that are held. Use noeviction."
        );
        context.log(Level::Warning, &line);
    }
}
