//! Everything that can be decided without I/O: no clock, no network, no randomness, no `unsafe`.
//!
//! A transition takes the time as an argument and returns an outcome. The Redis module, the client,
//! the model checker and the simulation all call these same lines; nothing else may decide about
//! leases, fences, validity or quorums.

mod fence;
mod time;

pub use fence::Fence;
pub use time::{Clocks, Instant, Millis, UnixTime};
