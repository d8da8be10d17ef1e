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
    /// The longest lease of its last report before this node was promoted, while that matters.
    longest_before: Millis,
    /// It is a master, as the last look showed it.
    pub(super) is_shown: bool,
}

impl OtherMaster {
    pub(super) fn new(name: &[u8]) -> OtherMaster {
        OtherMaster {
            name: name.to_vec(),
            told: None,
            first_told_at: None,
            longest_before: Millis::ZERO,
            is_shown: true,
        }
    }

    /// The same master for a node that was promoted: it has heard nothing since then.
    pub(super) fn unheard(&self) -> OtherMaster {
        OtherMaster { longest_before: self.longest(), ..OtherMaster::new(&self.name) }
    }

    /// How long a lease there may stand, as it reported last. One that is a replica by now reports
    /// no more: its successor does.
    pub(super) fn longest(&self) -> Millis {
        let told = self.told.filter(|_| self.is_shown);
        told.map_or(self.longest_before, |(_, told)| told.longest)
    }

    /// Notes that no lease from before the promotion stands.
    pub(super) const fn has_outlasted(&mut self) {
        self.longest_before = Millis::ZERO;
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
