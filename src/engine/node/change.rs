//! A change of what the state file says, beside the ceilings.

use super::{Ceilings, Node, Saved, Stopped};
use crate::engine::{Clocks, Instant};

/// What the state file has to say from now on. Until it does, nothing may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Change {
    /// The node has begun, and the file has said nothing of this start yet.
    Begun,
    /// The node is a master now.
    Promoted {
        /// What it uses from now on.
        used: Ceilings,
        /// The last instant of its quarantine, if it waits.
        until: Option<Instant>,
    },
    /// Leases may have found other names in a quarantine: nothing counts until then.
    NamesChanged {
        /// The last instant of the quarantine.
        until: Instant,
    },
    /// The node is a replica now.
    Demoted,
    /// Not every write is on disk any more before its reply.
    NotAlwaysDurable,
    /// The wall clock was stepped, and leases are dated by these clocks from now on.
    DatedBy(Clocks),
    /// The node has stopped.
    Stopped {
        /// What it used.
        used: Ceilings,
        /// What it leaves.
        stopped: Stopped,
    },
}

impl Change {
    /// Makes it in what the file has to say.
    pub fn apply(self, saved: &mut Saved) {
        match self {
            Change::Begun => {}
            Change::Promoted { used, until } => {
                saved.ceilings = saved.ceilings.max(used.plus_block());
                saved.is_always_durable &= until.is_none();
                saved.was_replica = false;
                let until = until.unwrap_or_default();
                saved.nothing_counts_until = saved.nothing_counts_until.max(until);
            }
            Change::NamesChanged { until } => {
                saved.nothing_counts_until = saved.nothing_counts_until.max(until);
            }
            Change::Demoted => saved.was_replica = true,
            Change::NotAlwaysDurable => saved.is_always_durable = false,
            Change::DatedBy(clocks) => {
                saved.was_stepped = true;
                saved.dating = clocks;
            }
            Change::Stopped { used, stopped } => {
                saved.ceilings = used;
                saved.stop = Some(stopped);
            }
        }
    }
}

impl Node {
    /// The state file was changed, and says so if `is_said`. `allowed` may be used from now on:
    /// nothing, as long as the file does not say it.
    pub fn changed(&mut self, change: Change, allowed: Ceilings, is_said: bool) {
        self.promises.keep(allowed);
        if let (Change::DatedBy(clocks), true) = (change, is_said) {
            self.dating = clocks;
        }
    }
}
