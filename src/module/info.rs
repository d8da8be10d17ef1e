//! What INFO reports, and why a node grants nothing.

use super::ffi::{self, Context, InServer, values};
use super::{clock, config, process};
use crate::wire::code::{self, IS_REPLICA, LOADING, Meaning, OOM, READONLY};
use crate::wire::node_info::{InfoAccount, ServerAccount};

/// What the section `lockmod` reports.
pub(super) fn told(server: InServer<'_>, obstacle: Option<String>) -> InfoAccount {
    let (now, moved) = (clock::now(), values::moved());
    let settings = (config::max_ttl(), config::caution());
    process::with(server, |process| {
        let state = process.state.as_ref();
        let (state_writes, state_write_failures) =
            state.map_or((0, 0), |state| (state.write_count(), state.failure_count()));
        let server = ServerAccount {
            version: env!("CARGO_PKG_VERSION"),
            locks: values::lock_count() as u64,
            max_ttl: config::max_ttl(),
            obstacle,
            state_writes,
            state_write_failures,
            state_failure: process.state_failure(),
        };
        InfoAccount { node: process.node.account(moved, now, settings), server }
    })
}

/// Why the node grants nothing at all: a code word, and a text.
pub(super) fn obstacle(context: &mut Context<'_>) -> Option<String> {
    own(context.in_server()).or_else(|| of_the_server(context))
}

/// What keeps the node itself from granting.
pub(super) fn own(server: InServer<'_>) -> Option<String> {
    if !ffi::server_flags(server).is_master() {
        return Some(READONLY.says(IS_REPLICA));
    }
    let now = clock::now();
    process::with(server, |process| match process.node.has_begun() {
        true => process.refusal(now).map(|refusal| refusal.to_string()),
        false => Some(LOADING.says("the server is starting")),
    })
}

/// Why the server would refuse an acquire before the node sees it. Not covered: access rules, which
/// depend on the user; slots of a cluster, which depend on the lock; and a pause, in which nothing
/// is refused.
fn of_the_server(context: &mut Context<'_>) -> Option<String> {
    let server = context.in_server();
    if ffi::server_flags(server).is_out_of_memory() {
        return Some(OOM.says("maxmemory is reached"));
    }
    if !process::with(server, |process| process.may_refuse) {
        return None;
    }
    context.refusal_of_writes().filter(|text| code::meaning_of(text) == Meaning::Later)
}
