//! One node: the module on a real server, as its users see it.
//!
//! Each module is about one promise. Each test starts the servers that it needs.

#[path = "../common/mod.rs"]
mod common;

mod ask;
mod clock;
mod cluster;
mod commands;
mod fences;
mod handover;
mod idle;
mod key_type;
mod line;
mod observed;
mod options;
mod persistence;
mod readers;
mod readers_kept;
mod readers_line;
mod refusals;
mod replication;
mod server_rules;
mod told;
mod waiting;
