//! What the packages for other languages share.
//!
//! A package passes calls in, and gets plain values out: a [`Host`] runs the client of the crate
//! `lockmod` on one background thread of the process, a [`Holding`] is a held lock, and a
//! [`Failure`] is an error as fields, which every language turns into a class of its own. A
//! [`Port`] brings results into an event loop. Nothing here calls into the other language, so the
//! background thread never waits for an interpreter, and renews leases while the interpreter is
//! blocked.

mod failure;
mod holding;
mod length;
mod port;
mod process;
mod settings;

pub use failure::{Failure, Kind, NodeVote};
pub use holding::Holding;
pub use length::{Given, Unit};
pub use lockmod::client::sockets;
pub use port::{Bell, Call, Port};
pub use process::{block_on, finish, is_ending};
pub use settings::{Host, NodeState, Request, Settings, split_nodes};
