//! The votes on a release, which each node is sent again until it has carried it out.

use std::pin::pin;
use std::time::Duration;

use super::core::Core;
use super::error::ReleaseError;
use super::inbox::Inbox;
use super::reading::release_vote;
use super::vote::Vote;
use crate::wire::code;

/// Which votes are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Those of a quorum that confirms.
    Quorum,
    /// Those of all nodes, within the timeout.
    All,
}

/// How often it is seen whether a node still owes its vote.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl Core {
    /// Reads the votes on a release of the lock `name`, which was sent with replies to `inbox`
    /// ([`Inbox::release_to`]), for at most the locker's timeout. If no quorum has decided by then,
    /// nodes that cannot be reached, put it off or do not answer have until `patience` is over:
    /// they may be restarting, or their writes may be paused.
    ///
    /// # Errors
    /// As [`ReleaseError`] says.
    pub(super) async fn released(
        &self,
        inbox: &Inbox,
        name: &[u8],
        (awaited, patience): (Awaited, Duration),
    ) -> Result<(), ReleaseError> {
        let (needed, timeout) = (self.quorum.needed(), self.settings.plan.timeout);
        let started_at = self.world.now();
        let mut votes = self.votes(inbox, release_vote, |confirmed, _| confirmed >= needed).await;
        loop {
            let is_late = |(node, vote): (usize, &Vote)| self.is_late(node, name, vote);
            let late = votes.iter().enumerate().filter(|vote| is_late(*vote)).count();
            let for_all =
                if awaited == Awaited::All && late > 0 { timeout } else { Duration::ZERO };
            let is_undecided = is_undecided(&votes, late, needed);
            let wait = if is_undecided { patience.max(for_all) } else { for_all };
            let left = wait.saturating_sub(self.world.now().saturating_sub(started_at));
            let is_owed = (0..votes.len()).any(|node| self.world.owes(node));
            let mut timer = pin!(self.world.sleep(left.min(LOOK_EVERY)));
            match inbox.next(timer.as_mut()).await {
                Some(arrival) => {
                    let vote =
                        arrival.outcome.map_or_else(Vote::from, |reply| release_vote(&reply));
                    votes[arrival.node] = vote;
                }
                None if left.is_zero() || !is_owed => break,
                None => {}
            }
        }
        ReleaseError::check(self.reports(name, votes), needed)
    }

    /// Whether a node with this vote may yet carry out the release of the lock `name`.
    fn is_late(&self, node: usize, name: &[u8], vote: &Vote) -> bool {
        match vote {
            Vote::Unreachable(_) | Vote::TimedOut => true,
            // `CLUSTERDOWN` after a restart, `BUSY`: it passes. A group has another master soon; a
            // server by itself remains a replica.
            Vote::Unavailable(text) => {
                let is_replica = code::word_of(text) == code::READONLY.word;
                !is_replica || self.world.master_of(node, name).is_some()
            }
            _ => false,
        }
    }
}

/// Whether these votes are no outcome yet, and those of the `late` nodes may make one.
fn is_undecided(votes: &[Vote], late: usize, needed: usize) -> bool {
    let count = |is: fn(&Vote) -> bool| votes.iter().filter(|vote| is(vote)).count();
    let gone = count(|vote| matches!(vote, Vote::Confirmed | Vote::NotHeld));
    let lost = count(|vote| matches!(vote, Vote::Held { .. } | Vote::NotHeld | Vote::WrongType));
    gone < needed && lost < needed && gone + late >= needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_waited_for_while_it_may_still_be_confirmed() {
        use Vote::{Confirmed, NotHeld, TimedOut, WrongType};
        let down = || Vote::Unreachable("connection refused".into());
        let refused = || Vote::Refused("no".into());
        for (votes, late, is_open) in [
            (vec![TimedOut], 1, true),
            (vec![Confirmed, down(), TimedOut], 2, true),
            (vec![Confirmed, NotHeld, down()], 1, false),
            (vec![NotHeld, NotHeld, down()], 1, false),
            (vec![Vote::HELD, WrongType, down()], 1, false),
            (vec![Vote::HELD, down(), down()], 2, true),
            (vec![refused(), down(), down()], 2, true),
            (vec![refused(), refused(), down()], 1, false),
        ] {
            assert_eq!(is_undecided(&votes, late, votes.len() / 2 + 1), is_open, "{votes:?}");
        }
    }
}
