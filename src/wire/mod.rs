//! The wire: everything that a node and its clients exchange, as values and as bytes.
//!
//! This module depends on the engine only. Server, client, command, tests and documents use its
//! names of commands and their limits ([`spec`]), requests ([`request`]), replies ([`outcome`]),
//! refusals and codes with what a client should do about each ([`code`], [`refusal`]), fields of
//! `LOCK.INFO` and `INFO` ([`lock_info`], [`node_info`]), stated facts ([`fact`]), the slots of a
//! Cluster ([`slots`]), and their bytes ([`resp`]). The writer and the reader of a message are in
//! the same file and test each other. The text of tickets is in
//! [`Ticket`](crate::engine::Ticket).

pub mod code;
pub mod fact;
pub mod lock_info;
pub mod node_info;
pub mod outcome;
mod packer;
pub mod published;
pub mod refusal;
pub mod request;
pub mod resp;
pub mod slots;
pub mod spec;
