//! Everything that can be decided without I/O: no clock, no network, no randomness, no `unsafe`.
//!
//! A transition takes the time as an argument and returns an outcome. The Redis module, the client,
//! the model checker and the simulation all call these same lines; nothing else may decide about
//! leases, fences, validity or quorums.

mod attempt;
mod durability;
mod fence;
mod histogram;
mod inventory;
mod lock;
mod node;
mod queue;
mod quorum;
mod recovery;
mod refusal;
mod renewal;
mod statement;
mod ticket;
mod time;
mod token;
mod turn;
mod validity;
mod waiting;

pub use attempt::{Answer, Attempt, Grant, Loss, RaiseAnswer, Step};
pub use durability::{Ceilings, Durability, FENCE_BLOCK, LEASE_BLOCK};
pub use fence::{Fence, RAISE_MARGIN, VOTE_MARGIN};
pub use histogram::Histogram;
pub use inventory::Inventory;
pub use lock::{Lease, Lock};
pub use node::{Acquired, Claim, Extended, Fencing, Released, Stop};
pub use queue::{CallId, ConnectionId, Left, Line, Queued, Room, Turn, Waiter};
pub use quorum::{NODES_MAX, NodeSet, Quorum};
pub use recovery::{
    FENCE_JUMP, Found, Loaded, Recovery, Saved, Stopped, promote, recover, start, stop,
};
pub use refusal::{QuarantineReason, Refusal};
pub use renewal::{Due, Ending, Extension, Renewal, RenewalStep, RoundNumber, Schedule};
pub use statement::{Draft, Statement};
pub use ticket::{TICKET_ID_MAX, Ticket};
pub use time::{Clocks, Instant, Millis, TTL_MAX, UNNOTICED, UnixTime};
pub use token::{LABEL_MAX, TOKEN_MAX, TOKEN_MAX_DEFAULT, Token};
pub use validity::{DRIFT_DIVISOR, DRIFT_MIN, Terms};
pub use waiting::{Next, Waiting};
