//! Everything that can be decided without I/O: no clock, no network, no randomness, no `unsafe`.
//!
//! A transition takes the time as an argument and returns an outcome. The Redis module, the client,
//! the model checker and the simulation all call these same lines; nothing else may decide about
//! leases, fences, validity or quorums.

mod attempt;
mod fence;
mod quorum;
mod renewal;
mod time;
mod validity;

pub use attempt::{Answer, Attempt, Grant, Loss, RaiseAnswer, Step};
pub use fence::Fence;
pub use quorum::{NODES_MAX, NodeSet, Quorum};
pub use renewal::{Due, Ending, Extension, Renewal, RenewalStep, RoundNumber, Schedule};
pub use time::{Clocks, Instant, Millis, UnixTime};
pub use validity::{DRIFT_DIVISOR, DRIFT_MIN, Terms};
