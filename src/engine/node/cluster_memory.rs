//! What a server of a Cluster keeps in its state file, because those with a vote rely on it.

use super::electorate::Electorates;
use super::shares::SlotRuns;
use crate::engine::{Instant, Millis};

/// What a server of a Cluster keeps of itself and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMemory {
    /// The electorates that it knows.
    pub electorates: Electorates,
    /// How long leases of masters may be, this one included; and after a clean stop, up to when
    /// such a lease may stand. While the server runs, that is not written each time a master says
    /// the same again, and there is only the longest.
    pub lengths: Vec<(Millis, Option<Instant>)>,
    /// After a clean stop: no lease that the master granted, or had, ends later. `None` while the
    /// server runs.
    pub gone_until: Option<Instant>,
    /// Slots whose move to another master at once has failed, or is under way: that one may take
    /// them late.
    pub failed_departures: SlotRuns,
}

impl ClusterMemory {
    /// Forgets what holds after a clean stop only.
    pub(super) fn runs(&mut self) {
        self.gone_until = None;
        self.lengths.iter_mut().for_each(|(_, until)| *until = None);
    }
}
