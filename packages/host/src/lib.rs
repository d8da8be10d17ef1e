//! What the packages for other languages share, and what is not any one language's.
//!
//! A package hands calls in, and gets plain values out: a [`Host`] runs the client of the crate
//! `lockmod` on one background thread of the process, a [`Holding`] is a lock that is held, and a
//! [`Failure`] is an error as fields that every language can make a class of. A [`Port`] brings
//! what is done into an event loop. Nothing here calls into
//! the other language, so the background thread never waits for an interpreter: leases are renewed
//! while it is blocked.

mod failure;
mod holding;
mod port;
mod process;
mod settings;

pub use failure::{Failure, Kind, NodeVote};
pub use holding::Holding;
pub use port::{Bell, Call, Port};
pub use process::{block_on, finish};
pub use settings::{Host, NodeState, Request, Settings, Unit};
