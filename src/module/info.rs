//! What INFO reports, and why a node grants nothing.

use super::ffi::{self, InServer, values};
use super::{clock, process};
use crate::engine::Instant;
use crate::wire::code::{LOADING, READONLY};
use crate::wire::node_info::{ServerAccount, Told};

/// What the section `lockmod` reports.
pub(super) fn told(server: InServer<'_>) -> Told {
    let now = clock::now();
    let moved = values::held_count();
    let obstacle = obstacle(server, now);
    process::with(server, |process| {
        let state = process.state.as_ref();
        let (state_writes, state_write_failures) =
            state.map_or((0, 0), |state| (state.write_count(), state.failure_count()));
        let server = ServerAccount {
            version: env!("CARGO_PKG_VERSION"),
            locks: values::lock_count() as u64,
            obstacle,
            state_writes,
            state_write_failures,
        };
        Told { node: process.node.account(moved, now), server }
    })
}

/// Why the node grants nothing at all: a code word, and a text.
pub(super) fn obstacle(server: InServer<'_>, now: Instant) -> Option<String> {
    if !ffi::server_flags(server).is_master() {
        Some(READONLY.says("the server is a replica"))
    } else {
        process::with(server, |process| match process.node.has_begun() {
            true => process.refusal(now).map(|refusal| refusal.to_string()),
            false => Some(LOADING.says("the server is starting")),
        })
    }
}
