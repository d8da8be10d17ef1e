//! The votes on a release, which each node is sent again until it has carried it out.

use std::pin::pin;
use std::time::Duration;

use super::core::Core;
use super::error::ReleaseError;
use super::inbox::{Arrival, Inbox};
use super::reading::release_vote;
use super::vote::Vote;
use crate::engine::NodeSet;
use crate::wire::code;

/// What is waited for.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    /// Whether all nodes have the locker's timeout to answer, also when a quorum has confirmed.
    pub(super) is_for_all: bool,
    /// If no quorum has decided within the timeout, nodes that cannot be reached, put the release
    /// off or do not answer have until this is over: they may be restarting, or their writes may be
    /// paused.
    pub(super) patience: Duration,
    /// Whether the lease is known to have stood when it was released. Then a node that has lost it
    /// since an answer was lost has released it, and perhaps granted the lock to the next in line.
    pub(super) is_sure: bool,
}

/// How often it is seen whether a node may still answer: while it owes any release.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// After so many looks without a debt, nothing more is expected.
const LOOKS: u8 = 3;

impl Core {
    /// Reads the votes on a release of the lock `name`, which was sent with replies to `inbox`
    /// ([`Inbox::release_to`]).
    ///
    /// # Errors
    /// As [`ReleaseError`] says.
    pub(super) async fn released(
        &self,
        inbox: &Inbox,
        name: &[u8],
        wait: Wait,
    ) -> Result<(), ReleaseError> {
        let (needed, timeout) = (self.quorum.needed(), self.settings.plan.timeout);
        let (started_at, mut unowed) = (self.world.now(), 0);
        let (mut votes, mut answered) = (vec![Vote::TimedOut; self.quorum.nodes()], NodeSet::EMPTY);
        loop {
            // What was a master may be one again, and a group has another one soon.
            let may_change = |node| wait.is_sure || self.world.master_of(node, name).is_some();
            let is_late = |(node, vote): &(usize, &Vote)| is_late(vote, || may_change(*node));
            let late = votes.iter().enumerate().filter(is_late).count();
            let have_all = answered == self.quorum.all();
            let is_over = match wait.is_for_all {
                true => late == 0,
                false => have_all || count(&votes, |vote| *vote == Vote::Confirmed) >= needed,
            };
            let limit = if is_over { Duration::ZERO } else { timeout };
            let is_undecided = is_undecided(&votes, late, needed);
            let limit = if is_undecided { limit.max(wait.patience) } else { limit };
            let spent = self.world.now().saturating_sub(started_at);
            let left = limit.saturating_sub(spent);
            let mut timer = pin!(self.world.sleep(left.min(LOOK_EVERY)));
            match inbox.next(timer.as_mut()).await {
                Some(arrival) => {
                    let node = arrival.node;
                    answered.insert(node);
                    votes[node] = vote_of(arrival, wait.is_sure);
                }
                None if left.is_zero() => break,
                // One that was never asked has nothing to release. What is on its way from one
                // master to another is not counted for a moment.
                None if (0..votes.len()).any(|node| self.world.owes(node)) => unowed = 0,
                None if unowed == LOOKS && (have_all || spent >= timeout) => break,
                None => unowed = LOOKS.min(unowed + 1),
            }
        }
        ReleaseError::check(self.reports(name, votes), needed)
    }
}

/// Whether a node with this vote may yet carry out a release. `may_change`: whether a replica may
/// be a master soon, or its place taken by one.
fn is_late(vote: &Vote, may_change: impl Fn() -> bool) -> bool {
    match vote {
        Vote::Unreachable(_) | Vote::TimedOut => true,
        // `CLUSTERDOWN` after a restart, `BUSY`: it passes.
        Vote::Unavailable(text) => code::word_of(text) != code::READONLY.word || may_change(),
        _ => false,
    }
}

/// The vote in a reply to a release.
fn vote_of(arrival: Arrival, is_sure: bool) -> Vote {
    let vote = arrival.outcome.map_or_else(Vote::from, |reply| release_vote(&reply));
    match vote {
        Vote::NotHeld | Vote::Held { .. } if arrival.is_in_doubt && is_sure => Vote::Confirmed,
        vote => vote,
    }
}

fn count(votes: &[Vote], is: fn(&Vote) -> bool) -> usize {
    votes.iter().filter(|vote| is(vote)).count()
}

/// Whether these votes are no outcome yet, and those of the `late` nodes may make one.
fn is_undecided(votes: &[Vote], late: usize, needed: usize) -> bool {
    let gone = count(votes, |vote| matches!(vote, Vote::Confirmed | Vote::NotHeld));
    let is_lost = |vote: &Vote| matches!(vote, Vote::Held { .. } | Vote::NotHeld | Vote::WrongType);
    gone < needed && count(votes, is_lost) < needed && gone + late >= needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::inbox::RequestKind;
    use crate::wire::resp::Reply;

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
            // Another's lease at one node leaves room for the own one at the others.
            (vec![Vote::HELD, down(), down()], 2, true),
            (vec![refused(), down(), down()], 2, true),
            (vec![refused(), refused(), down()], 1, false),
        ] {
            assert_eq!(is_undecided(&votes, late, votes.len() / 2 + 1), is_open, "{votes:?}");
        }
    }

    #[test]
    fn who_may_serve_soon_is_late() {
        let unavailable = |text: &str| Vote::Unavailable(text.into());
        for (vote, if_it_may_change, else_it_is) in [
            (Vote::TimedOut, true, true),
            (Vote::Unreachable("x".into()), true, true),
            (unavailable("CLUSTERDOWN x"), true, true),
            (unavailable("READONLY x"), true, false),
            (Vote::NoPermission("NOPERM".into()), false, false),
            (Vote::NotHeld, false, false),
            (Vote::Confirmed, false, false),
        ] {
            assert_eq!(is_late(&vote, || true), if_it_may_change, "{vote:?}");
            assert_eq!(is_late(&vote, || false), else_it_is, "{vote:?}");
        }
    }

    /// Regression: a release that had been carried out, and whose answer was lost with the
    /// connection, was taken for the loss of the lease.
    #[test]
    fn who_has_lost_a_lease_that_stood_since_an_answer_was_lost_has_released_it() {
        let vote = |reply, is_in_doubt, is_sure| {
            let (node, request) = (0, RequestKind::Only);
            vote_of(Arrival { node, request, is_in_doubt, outcome: Ok(reply) }, is_sure)
        };
        for (reply, said) in [(Reply::Nil, Vote::NotHeld), (Reply::Integer(0), Vote::HELD)] {
            assert_eq!(vote(reply.clone(), true, true), Vote::Confirmed);
            for (is_in_doubt, is_sure) in [(false, true), (true, false), (false, false)] {
                assert_eq!(vote(reply.clone(), is_in_doubt, is_sure), said);
            }
        }
    }
}
