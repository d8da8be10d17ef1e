//! The wire: everything that a node and its clients say to each other, as values and as bytes.
//!
//! Knows the engine only. Server, client, command, tests and documents take from here the names of
//! commands and their limits ([`spec`]), requests ([`request`]), what became of them ([`outcome`]),
//! refusals and codes with what a client should do about each ([`code`], [`refusal`]), the fields
//! of `LOCK.INFO` and `INFO` ([`lock_info`], [`node_info`]), stated facts ([`fact`]), and the bytes
//! of all of it ([`resp`]). What is written and what is read stand in one file, and are each
//! other's test. Tickets are [`Ticket`](crate::engine::Ticket), which has one text.

pub mod code;
pub mod fact;
pub mod lock_info;
pub mod node_info;
pub mod outcome;
pub mod refusal;
pub mod request;
pub mod resp;
pub mod spec;
