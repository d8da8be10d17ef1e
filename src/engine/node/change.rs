//! A change to the contents of the state file, other than to the ceilings.

use super::{Ceilings, ClusterMemory, Electorates, Node, Saved, SlotRuns, Stopped};
use crate::engine::{Clocks, Instant, Millis};

/// What the state file must record. Until it is written, the node may not use any ceilings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Change {
    /// The node has begun; the file does not mention this start yet.
    Begun,
    /// The node is a master now.
    Promoted {
        /// The ceilings that it uses from now on.
        used: Ceilings,
        /// The last instant of its quarantine, if it waits.
        until: Option<Instant>,
        /// As in [`Saved::doubts`].
        doubts: bool,
    },
    /// In a Cluster slot that has come, the node waits out leases that it does not know.
    Waits {
        /// The last instant.
        until: Instant,
    },
    /// Leases may have moved to other names in a quarantine: nothing counts until it is over.
    NamesChanged {
        /// The last instant of the quarantine.
        until: Instant,
    },
    /// Leases were removed that stand: nothing counts in a quarantine before they are over.
    LeasesRemoved {
        /// The last instant at which one of them may stand.
        until: Instant,
    },
    /// The node is a replica now.
    Demoted,
    /// The longest lease that may stand in the node's group.
    Longest(Millis),
    /// The longest of [`ClusterMemory::lengths`].
    Lengths(Millis),
    /// As in [`ClusterMemory::failed_departures`].
    FailedDepartures(SlotRuns),
    /// As in [`Saved::doubts`].
    Doubts(bool),
    /// The electorates that the node knows.
    Electorates(Electorates),
    /// Writes are no longer always on disk before their reply.
    NotAlwaysDurable,
    /// The wall clock was stepped; leases are dated by these clocks from now on.
    DatedBy(Clocks),
    /// The node has stopped.
    Stopped {
        /// The ceilings that it used.
        used: Ceilings,
        /// How it stopped.
        stopped: Stopped,
        /// As in [`ClusterMemory::gone_until`].
        gone_until: Option<Instant>,
        /// As in [`ClusterMemory::lengths`].
        lengths: Vec<(Millis, Option<Instant>)>,
    },
}

impl Change {
    /// Whether a start after a crash no longer relies on the append-only file alone.
    const fn relies_less(&self) -> bool {
        match self {
            // A promoted server may have begun its append-only file anew.
            Change::NotAlwaysDurable | Change::Waits { .. } | Change::Promoted { .. } => true,
            Change::Begun
            | Change::NamesChanged { .. }
            | Change::LeasesRemoved { .. }
            | Change::Demoted
            | Change::Longest(_)
            | Change::Lengths(_)
            | Change::FailedDepartures(_)
            | Change::Doubts(_)
            | Change::Electorates(_)
            | Change::DatedBy(_)
            | Change::Stopped { .. } => false,
        }
    }

    /// Applies the change to the contents of the file.
    pub fn apply(self, saved: &mut Saved, memory: &mut ClusterMemory) {
        saved.is_always_durable &= !self.relies_less();
        match self {
            Change::Begun => memory.runs(),
            Change::Promoted { used, until, doubts } => {
                saved.ceilings = saved.ceilings.max(used.plus_block());
                saved.was_replica = false;
                saved.doubts = doubts;
                let until = until.unwrap_or_default();
                saved.nothing_counts_until = saved.nothing_counts_until.max(until);
            }
            Change::Waits { until } => {
                saved.ceilings.lease = saved.ceilings.lease.max(until);
                saved.doubts = true;
                saved.nothing_counts_until = saved.nothing_counts_until.max(until);
            }
            Change::NamesChanged { until } | Change::LeasesRemoved { until } => {
                saved.nothing_counts_until = saved.nothing_counts_until.max(until);
            }
            Change::Demoted => saved.was_replica = true,
            Change::Longest(longest) => saved.longest = longest,
            Change::Lengths(longest) => memory.lengths = vec![(longest, None)],
            Change::FailedDepartures(slots) => memory.failed_departures = slots,
            Change::Doubts(doubts) => saved.doubts = doubts,
            Change::Electorates(known) => memory.electorates = known,
            Change::NotAlwaysDurable => {}
            Change::DatedBy(clocks) => {
                saved.was_stepped = true;
                saved.dating = clocks;
            }
            Change::Stopped { used, stopped, gone_until, lengths } => {
                (memory.gone_until, memory.lengths) = (gone_until, lengths);
                saved.ceilings = used;
                saved.stop = Some(stopped);
            }
        }
    }
}

impl Node {
    /// Notes a change that the state file must record; `is_said`: the file records it. Ceilings up
    /// to `allowed` may be used from now on: none while the file lacks the change.
    pub fn changed(&mut self, change: Change, allowed: Ceilings, is_said: bool) {
        self.promises.keep(allowed);
        self.is_always_durable &= !(is_said && change.relies_less());
        if let (Change::DatedBy(clocks), true) = (change, is_said) {
            self.dating = clocks;
        }
    }
}
