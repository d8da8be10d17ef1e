//! What documents and examples recommend, against real servers and databases.

#[path = "../common/mod.rs"]
mod common;

mod containers;
mod cron;
mod fenced;
mod leader;
mod packaging;
mod postgres_server;
mod security;
mod servers;

use std::path::Path;

use common::{Server, start_nodes};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Nodes that forget nothing when they are killed, so that they come back without quarantine.
fn nodes(count: usize) -> Vec<Server> {
    start_nodes(count, |_| {
        Server::builder().config("appendonly", "yes").config("appendfsync", "always")
    })
}

fn urls(nodes: &[Server]) -> String {
    nodes.iter().map(Server::url).collect::<Vec<_>>().join(",")
}
