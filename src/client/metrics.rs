//! Metrics of this process's locks, through the `metrics` facade, and spans through `tracing`.
//!
//! A program that installs a recorder gets metrics of its locks; one that does not pays next to
//! nothing. All series of a locker exist from its start, at zero, because a counter that appears
//! with its first increment looks as if nothing had happened. So install the recorder before the
//! first locker is built. Names and labels are documented in docs/operations.md, and tests compare
//! the two.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use super::error::{AcquireError, ExtendError, Lost};
use super::vote::Vote;

/// The values of the label `reason` for failed acquisitions.
const REASONS: [&str; 5] = ["held", "no_quorum", "too_late", "refused", "bad_option"];
/// The values of the label `reason` for lost leases.
const LOSSES: [&str; 3] = ["expired", "removed", "max_hold"];
/// The values of the label `outcome` for renewals.
const RENEWALS: [&str; 2] = ["confirmed", "failed"];

/// The handles of one locker.
pub(super) struct Metrics {
    wait: Histogram,
    hold: Histogram,
    acquired: Counter,
    failures: [Counter; REASONS.len()],
    renewals: [Counter; RENEWALS.len()],
    lost: [Counter; LOSSES.len()],
    /// By node, and then by vote.
    votes: Vec<[Counter; Vote::WORDS.len()]>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Registers all series with the installed recorder, if there is one.
    pub(super) fn new(nodes: &[Arc<str>]) -> Metrics {
        let started = |counter: Counter| {
            counter.increment(0);
            counter
        };
        let votes = |node: &Arc<str>| {
            Vote::WORDS.map(|vote| {
                let node = node.to_string();
                started(counter!("distributed_lock_votes_total", "node" => node, "vote" => vote))
            })
        };
        Metrics {
            wait: histogram!("distributed_lock_wait_seconds"),
            hold: histogram!("distributed_lock_hold_seconds"),
            acquired: started(counter!("distributed_lock_acquired_total")),
            failures: REASONS.map(|reason| {
                started(counter!("distributed_lock_failures_total", "reason" => reason))
            }),
            renewals: RENEWALS.map(|outcome| {
                started(counter!("distributed_lock_renewals_total", "outcome" => outcome))
            }),
            lost: LOSSES
                .map(|reason| started(counter!("distributed_lock_lost_total", "reason" => reason))),
            votes: nodes.iter().map(votes).collect(),
        }
    }

    /// An acquisition has ended, after `waited`.
    pub(super) fn ended<T>(&self, result: &Result<T, AcquireError>, waited: Duration) {
        let error = match result {
            Ok(_) => {
                self.acquired.increment(1);
                self.wait.record(waited);
                return;
            }
            Err(error) => error,
        };
        let reason = match error {
            AcquireError::Held(_) => 0,
            AcquireError::NoQuorum(_) => 1,
            AcquireError::TooLate(_) => 2,
            AcquireError::Refused(_) => 3,
            AcquireError::BadOption(_) => 4,
        };
        self.failures[reason].increment(1);
    }

    /// A node has answered an acquire, or has not.
    pub(super) fn voted(&self, node: usize, vote: &Vote) {
        self.votes[node][vote.place()].increment(1);
    }

    /// The nodes that have not answered an acquire have timed out.
    pub(super) fn timed_out(&self, nodes: usize, votes: &[Option<Vote>]) {
        for node in (0..nodes).filter(|&node| votes.get(node).is_none_or(Option::is_none)) {
            self.voted(node, &Vote::TimedOut);
        }
    }

    /// A round of renewing has ended.
    pub(super) fn renewed(&self, result: &Result<(), ExtendError>) {
        self.renewals[usize::from(result.is_err())].increment(1);
    }

    /// A lease was lost before it was released.
    pub(super) fn lost(&self, lost: Lost) {
        let reason = match lost {
            Lost::Expired => 0,
            Lost::Removed => 1,
            Lost::MaxHold => 2,
            Lost::Released => return,
        };
        tracing::warn!(reason = LOSSES[reason], "lease lost");
        self.lost[reason].increment(1);
    }

    /// A lease was released or leaked, after `held_for`.
    pub(super) fn released(&self, held_for: Duration) {
        self.hold.record(held_for);
    }
}
