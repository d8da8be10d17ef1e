//! The quorum client: acquires locks over several independent Redis nodes with the module.
//!
//! A [`Locker`] sends an acquire to all nodes at once and has the lock as soon as more than half of
//! the configured nodes hold the lease with the same fencing token. It makes no decisions itself:
//! every rule is in `src/engine`, and every clock, random number and connection comes from its
//! world, so that a simulation can run the same code.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use lockmod::client::Locker;
//!
//! let locker = Locker::builder()
//!     .nodes(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
//!     .build()?;
//! let guard = locker.acquire("nightly-report").await?;
//! let fence = guard.fence(); // pass it to what the lock protects
//! tokio::select! {
//!     lost = guard.lost() => eprintln!("stop: {lost}"),
//!     () = async { /* work */ } => guard.release().await?,
//! }
//! # Ok(()) }
//! ```

pub mod blocking;

mod absence;
mod acquire;
mod answering;
mod asking;
mod ballot;
mod calendar;
mod connect;
mod contended;
mod core;
mod dead_ends;
mod destination;
mod error;
mod guard;
mod holder;
mod inbox;
mod inspect;
mod keeper;
mod lease;
mod lease_rules;
mod length;
mod link;
mod links;
mod locker;
mod many;
mod metrics;
mod missing_replicas;
mod node_status;
mod node_url;
mod outbox;
mod outset;
#[doc(hidden)]
pub mod packet;
mod printable;
mod put_off;
#[doc(hidden)]
pub mod reading;
mod releasing;
mod replicas;
mod routes;
mod search;
mod seeds;
mod sentinel;
mod settings;
mod silence;
mod slot_links;
mod slot_shares;
mod slots;
mod sockets;
mod survey;
mod tls;
mod vote;
mod waiter;
mod wakes;
mod world;

pub use crate::engine::{Fence, LockState, Uncounted};
pub use crate::wire::lock_info::LockInfo;
pub use crate::wire::node_info::{NodeField, NodeFields};

pub use self::core::Stats;
pub use absence::Absence;
pub use acquire::Acquire;
#[cfg(feature = "cli")]
pub(crate) use answering::same_as;
#[cfg(feature = "cli")]
pub(crate) use error::SLOW;
#[doc(hidden)]
pub use error::WhyLost;
pub use error::{
    AcquireError, AcquireReport, BuildError, ExtendError, FenceError, Lost, ReleaseError, WithError,
};
pub use guard::{Guard, Leaked};
pub use holder::Holder;
#[cfg(feature = "cli")]
pub(crate) use inbox::is_from_the_way;
#[cfg(feature = "cli")]
pub(crate) use inspect::LISTED_MAX;
pub use inspect::{NodeInfo, NodeLocks};
#[cfg(feature = "cli")]
pub(crate) use lease_rules::TIMEOUTS_PER_TTL;
#[doc(hidden)]
pub use lease_rules::{LengthUnit, TTL_MIN};
#[doc(hidden)]
pub use length::Length;
pub use locker::Locker;
pub use many::{AcquireMany, Guards};
pub use missing_replicas::MissingReplica;
pub use node_status::{
    Excess, FailingMaster, NodeStatus, ReplicaStatus, SlotMove, SlotShare, Support, WaitsIn,
};
#[cfg(feature = "cli")]
pub(crate) use printable::{Printable, PrintableName, is_plain, listed};
pub use replicas::{Misfit, UnfitReplica};
pub use settings::{LockerBuilder, NAME_MAX};
#[doc(hidden)]
pub use settings::{OptionRanges, TTL_MAX_DEFAULT, check_name};
#[cfg(feature = "cli")]
pub(crate) use silence::is_of_silence;
pub use survey::{LockSurvey, NodeSurvey, Survey};
#[doc(hidden)]
pub use vote::Summary;
#[cfg(feature = "cli")]
pub(crate) use vote::{Group, Holders, Share, place};
pub use vote::{NodeReport, Vote};

// Needed to simulate the client, and by the packages for other languages. Not part of the public
// interface, and subject to change.
#[doc(hidden)]
pub use connect::{Dial, Opening, Stream};
#[doc(hidden)]
pub use inbox::{NoReply, ReplyTo};
#[doc(hidden)]
pub use links::Links;
#[doc(hidden)]
pub use node_url::joined;
#[doc(hidden)]
pub use printable::InShort;
#[doc(hidden)]
pub use sockets::sockets;
#[doc(hidden)]
pub use wakes::Wakes;
#[doc(hidden)]
pub use world::World;
