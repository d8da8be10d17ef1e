//! The Redis side: the module that a server loads.
//!
//! The server's callbacks enter through [`ffi`], which (with `alloc`) has all unsafe code. The
//! engine decides, and its decision leaves as a reply, a replicated fact and a notification.

mod alarm;
mod alloc;
mod append_only;
mod arguments;
mod clock;
mod config;
mod datatype;
mod delivery;
mod events;
mod ffi;
mod handlers;
mod info;
mod process;
mod replicas;
mod replication;
mod scan;
mod slots;
pub mod soundness;
mod start;
mod state_file;
mod waiters;
