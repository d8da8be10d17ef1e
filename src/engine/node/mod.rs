//! A node: what becomes of its locks, its promises and those who wait.

mod in_line;
mod inventory;
mod line;
mod lock;
mod promises;
mod recovery;
mod requests;
mod statement;

pub use inventory::Inventory;
pub use line::{CallId, ConnectionId, Left, Line, Queued, Room, Turn, Waiter};
pub use lock::{Lease, Lock};
pub use promises::{Ceilings, FENCE_BLOCK, LEASE_BLOCK, Promises};
pub use recovery::{
    FENCE_JUMP, Found, Loaded, Recovery, Saved, Stopped, promote, recover, start, stop,
};
pub use requests::{Acquired, Claim, Extended, Fencing, Released, Stop};
pub use statement::{Draft, Statement};
