//! Another master of the Cluster, as this node hears it.

use super::BEAT;
use super::shares::Footing;
use crate::engine::{Instant, Millis};

/// How long after a master's first report a later one shows that its news has been read.
const HEARS_IN: Millis = Millis::new(BEAT.get() / 2);

/// Another node of the Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherMaster {
    pub(super) name: Vec<u8>,
    /// Its last report, and when it came.
    pub(super) told: Option<(Instant, Footing)>,
    /// When its first report came.
    first_told_at: Option<Instant>,
}

impl OtherMaster {
    pub(super) fn new(name: &[u8]) -> OtherMaster {
        OtherMaster { name: name.to_vec(), told: None, first_told_at: None }
    }

    /// Takes a report.
    pub(super) fn hear(&mut self, footing: Footing, now: Instant) {
        self.told = Some((now, footing));
        self.first_told_at.get_or_insert(now);
    }

    /// Whether this node has had the time to hear from it.
    pub(super) fn is_heard(&self) -> bool {
        let first = self.first_told_at.unwrap_or_default();
        self.told.is_some_and(|(at, _)| first.after(HEARS_IN) <= at)
    }
}
