//! Reasons why most masters do not confirm the slots of a node, and when the log says so.

use super::SUPPORT;
use super::electorate::MasterName;
use crate::engine::Instant;

/// Why most masters do not confirm the slots of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// These masters do not answer.
    Silent(Vec<MasterName>),
    /// These have a vote in a former life only, and those that do not answer are not the reason.
    /// The node itself may be one of them.
    HaveNoVote(Vec<MasterName>),
    /// Its server has left a Cluster, and has taken slots by their keys since. The masters there
    /// may decide in these.
    HasLeft,
}

/// What the log says of that, as long as it lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Silence {
    /// Since when it lasts, or when that was last looked at.
    since: Option<Instant>,
    told: Option<Unconfirmed>,
}

impl Silence {
    /// What the log is to say: once it has lasted for long, and then when the reason has changed.
    pub(super) fn news(
        &mut self,
        why: impl FnOnce() -> Unconfirmed,
        now: Instant,
    ) -> Option<Unconfirmed> {
        if now < self.since.get_or_insert(now).after(SUPPORT) {
            return None;
        }
        self.since = Some(now);
        let why = why();
        let before = self.told.replace(why.clone());
        (before.as_ref() != Some(&why)).then_some(why)
    }
}
