//! Everything that can be decided without I/O: no clock, no network, no randomness, no `unsafe`.
//!
//! A transition takes the time as an argument and returns an outcome. The Redis module, the client,
//! the model checker and the simulation all call this code; nothing else may decide about leases,
//! fences, validity or quorums.
//!
//! The module does this for `LOCK.ACQUIRE` calls before and after a lease has ended:
//!
//! ```
//! use lockmod::engine::{Acquired, Claim, Promises, Fence, Instant, Lock, Millis, Mode, Token};
//!
//! let mut node = Promises::new(Fence::ZERO, None);
//! let mut lock = Lock::default();
//! let claim = |token| Claim { token, ttl: Millis::new(30_000), mode: Mode::Exclusive };
//! let alice = claim(Token::new(b"alice-7f3a", 64)?);
//! let bob = claim(Token::new(b"bob-91c2", 64)?);
//!
//! let now = Instant::from_millis(1_000);
//! let Ok(Acquired::Granted { fence, ends_at, .. }) = node.acquire(&mut lock, alice, b"", now)
//! else { panic!("the lock was free") };
//! assert_eq!((fence.get(), ends_at), (1, Instant::from_millis(31_000)));
//!
//! // The last millisecond belongs to the holder.
//! assert_eq!(node.acquire(&mut lock, bob, b"", ends_at), Ok(Acquired::Held));
//! let later = ends_at.after(Millis::new(1));
//! let granted = node.acquire(&mut lock, bob, b"", later);
//! assert!(matches!(granted, Ok(Acquired::Granted { fence, .. }) if fence.get() == 2));
//! # Ok::<(), lockmod::engine::Refusal>(())
//! ```

mod attempt;
mod fence;
mod histogram;
mod mode;
mod node;
mod pursuit;
mod quorum;
mod refusal;
mod renewal;
mod ticket;
mod time;
mod token;
mod validity;
mod verdict;
mod waiting;

pub use attempt::{Answer, Attempt, Grant, Loss, RaiseAnswer, Step};
pub use fence::{Fence, RAISE_MARGIN, VOTE_MARGIN};
pub use histogram::Histogram;
pub use mode::Mode;
pub use node::{
    Acquired, Attached, Authority, Availability, BEAT, Begun, Call, CallId, Came, Caution,
    Ceilings, Census, Change, Claim, ClusterMemory, ConfirmQuestion, Confirmation, ConnectionId,
    Counts, Decided, Direct, Draft, Effect, Elector, Electorate, Electorates, Extended,
    FENCE_BLOCK, Fencing, Footing, Forgotten, Found, Gate, Granted, Grantee, Heartbeat, HeldCount,
    Inventory, LEASE_BLOCK, Lease, LeaseLength, Left, Lengths, Line, Loaded, Lock, LockAccount,
    LockName, LockState, Look, Mandate, MasterName, MoveAtOnce, NextCalls, Node, NodeAccount,
    Notice, Parting, Passage, Pledge, Promises, Question, Queued, ReadersAccount, Recovery,
    Released, Replicas, SLOTS, SUPPORT, Saved, Shares, SlotAnswer, SlotRuns, Slots, Stated,
    Statement, Stop, Stopped, Succession, Sure, Tally, Tended, Tenure, Turn, Turning, Unconfirmed,
    Uncounted, Unlike, Waiter, WaiterLimit, Warning, promote, question_number, recover, start,
};
pub use pursuit::{Harvest, PublishedGrant, Pursuit};
pub use quorum::{NODES_MAX, NodeSet, Quorum};
pub use refusal::{QuarantineReason, Refusal, RefusalKind};
pub use renewal::{Due, Ending, Extension, Renewal, RenewalStep, RoundNumber, Schedule};
pub use ticket::{TICKET_ID_MAX, Ticket};
pub use time::{Clocks, Instant, Millis, TTL_MAX, UNNOTICED, UnixTime};
pub use token::{LABEL_MAX, TOKEN_MAX, TOKEN_MAX_DEFAULT, Token};
pub use validity::{DRIFT_DIVISOR, DRIFT_MIN, Terms};
pub use verdict::{Stand, Verdict};
pub use waiting::{Next, Waiting};
