//! One node: the module on a real server, seen as its users see it.
//!
//! Each module is about one promise. Each test starts the servers that it needs.

#[path = "../common/mod.rs"]
mod common;

mod ask;
mod commands;
mod key_type;
mod persistence;
mod refusals;
mod server_rules;
mod told;
