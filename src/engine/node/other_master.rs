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
    /// How long a lease there may stand.
    pub(super) longest: Millis,
}

impl OtherMaster {
    pub(super) fn new(name: &[u8]) -> OtherMaster {
        OtherMaster { name: name.to_vec(), told: None, first_told_at: None, longest: Millis::ZERO }
    }

    /// The same master for a node that was promoted: it has heard nothing since then.
    pub(super) fn unheard(&self) -> OtherMaster {
        OtherMaster { longest: self.longest, ..OtherMaster::new(&self.name) }
    }

    /// Takes a report. `waits`: this node waits, so longer leases that were reported before count.
    pub(super) fn hear(&mut self, footing: Footing, waits: bool, now: Instant) {
        self.told = Some((now, footing));
        self.first_told_at.get_or_insert(now);
        let before = if waits { self.longest } else { Millis::ZERO };
        self.longest = before.max(footing.longest);
    }

    /// Forgets what was said of longer leases: only its last report counts, and none of a server
    /// that is no master. Its successor reports what it waits for.
    pub(super) fn forget(&mut self, is_master: bool) {
        let told = self.told.filter(|_| is_master);
        self.longest = told.map_or(Millis::ZERO, |(_, told)| told.longest);
    }

    /// Whether this node has had the time to hear from it.
    pub(super) fn is_heard(&self) -> bool {
        let first = self.first_told_at.unwrap_or_default();
        self.told.is_some_and(|(at, _)| first.after(HEARS_IN) <= at)
    }
}
