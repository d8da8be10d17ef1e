//! What a server of a Cluster keeps in its state file, because those with a vote rely on it.

use super::electorate::Electorates;
use super::shares::Said;
use crate::engine::Instant;

/// What a server of a Cluster keeps of itself and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterMemory {
    /// The electorates that it knows.
    pub electorates: Electorates,
    /// What masters have said of their leases, this one included; and after a clean stop, up to
    /// when such a lease may stand. While the server runs, that is not written each time a master
    /// says the same again.
    pub lengths: Vec<(Said, Option<Instant>)>,
    /// The reign that ended with a clean stop; `None` while the server runs.
    pub reign: Option<Reign>,
}

impl ClusterMemory {
    /// Forgets what holds after a clean stop only.
    pub(super) fn runs(&mut self) {
        self.reign = None;
        self.lengths.iter_mut().for_each(|(_, until)| *until = None);
    }
}

/// The run of a master from its start or promotion to the next. It goes on after a clean stop, if
/// the next start finds all locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reign {
    /// As in [`ConfirmQuestion::reign`](super::ConfirmQuestion::reign).
    pub number: u64,
    /// No lease that it granted, or had, ends later.
    pub until: Instant,
}
