//! One attempt to acquire a lock over a quorum: answers in, steps out.
//!
//! The caller sends ACQUIRE to all nodes at once, reports each answer, and does what the returned
//! [`Step`] says. The attempt is won when a quorum of nodes holds our token *with exactly f
//! stored*, where f is the largest fence among the grants of a quorum. If a quorum granted exactly
//! f, this takes one round trip; otherwise the nodes that granted less are raised to f first. The
//! next quorum shares a node with this one, and that node's next grant is above f: this is why
//! fences rise.
//!
//! A node may issue fences far beyond the time, because its clock is wrong or because a client
//! raised it. Other nodes would refuse to be raised that far, so its vote could cost the
//! acquisition. It is left out as long as the others may still be a quorum.
//!
//! A missing answer is unknown, neither a grant nor a refusal. It never counts towards a win, and
//! the node is still sent the release when the attempt is abandoned.

use super::quorum::{NodeSet, Quorum};
use super::validity::Terms;
use super::{Fence, Instant, Mode, UnixTime};

/// What a node answered to the ACQUIRE of this attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// It granted a lease with this fence.
    Granted(Fence),
    /// It certainly did not grant: another holds the lock, or the node refused.
    Refused,
    /// Unknown: no answer in time, the connection broke, or the answer made no sense.
    Unknown,
}

/// What a node answered to the raise of this attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RaiseAnswer {
    /// Our token holds the lock there, and this is its counter now.
    Raised(Fence),
    /// Our token does not hold the lock there any more, or the node refused.
    Refused,
    /// Unknown: as in [`Answer::Unknown`].
    Unknown,
}

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use]
pub enum Step {
    /// Keep waiting for answers.
    Wait,
    /// Send the raise, `LOCK.FENCE key token fence`, to these nodes, and report their answers.
    /// After [`Step::Won`] there is no need to wait for them.
    Raise {
        /// The fence to raise to.
        fence: Fence,
        /// The nodes that granted less.
        nodes: NodeSet,
    },
    /// The lock is ours.
    Won(Grant),
    /// The lock is not ours. Abandon it on **all** nodes, behind the ACQUIRE on the same
    /// connection: this also undoes late grants.
    Lost(Loss),
}

/// What a won attempt yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// Larger than the fence of every acquisition that was complete before this one began.
    pub fence: Fence,
    /// The instant from which the lease must not be relied on.
    pub ends_at: Instant,
    /// The nodes that granted, but are not known to store exactly this fence. They may be raised in
    /// the background, so that the next acquisition finds equal counters and needs one round trip.
    pub laggards: NodeSet,
}

/// Why an attempt was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// So many nodes refused that no quorum was left.
    Refused,
    /// Too many nodes did not answer; their grants might have won the lock.
    Unreached,
    /// The validity was used up before the last answer needed came in.
    TooLate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Acquiring,
    Raising,
    Won,
    Lost(Loss),
}

/// The state of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    quorum: Quorum,
    terms: Terms,
    mode: Mode,
    started_at: Instant,
    phase: Phase,
    /// The largest fence granted; fixed when raising begins.
    fence: Fence,
    /// Nodes that granted exactly `fence`, or were raised to it: they store it while our token
    /// holds.
    storing: NodeSet,
    granted: NodeSet,
    refused: NodeSet,
    unknown: NodeSet,
    /// Nodes whose raise failed, or was not confirmed.
    not_raised: NodeSet,
    /// Grants with a fence above this are left out, as long as the others may be a quorum.
    bound: Fence,
    /// The nodes that are left out.
    far: NodeSet,
    /// The largest fence that they granted, and the nodes that granted it.
    farthest: Fence,
    at_farthest: NodeSet,
}

impl Attempt {
    /// An attempt whose ACQUIRE goes to all nodes now. `started_at` is read before the first byte
    /// is sent, and rounded down.
    pub const fn new(quorum: Quorum, terms: Terms, started_at: Instant) -> Attempt {
        Attempt {
            quorum,
            terms,
            mode: Mode::Exclusive,
            started_at,
            phase: Phase::Acquiring,
            fence: Fence::ZERO,
            storing: NodeSet::EMPTY,
            granted: NodeSet::EMPTY,
            refused: NodeSet::EMPTY,
            unknown: NodeSet::EMPTY,
            not_raised: NodeSet::EMPTY,
            bound: Fence::MAX,
            far: NodeSet::EMPTY,
            farthest: Fence::ZERO,
            at_farthest: NodeSet::EMPTY,
        }
    }

    /// The same attempt with the wall-clock time: grants with a fence far beyond it are left out as
    /// long as the others may be a quorum.
    #[must_use]
    pub fn at(self, wall: UnixTime) -> Attempt {
        Attempt { bound: Fence::highest_counted(wall), ..self }
    }

    /// The same attempt, for the lock in this mode.
    #[must_use]
    pub const fn asking(self, mode: Mode) -> Attempt {
        Attempt { mode, ..self }
    }

    /// The instant from which a lease won by this attempt must not be relied on.
    pub const fn ends_at(&self) -> Instant {
        self.terms.ends_at(self.started_at)
    }

    /// The nodes known to have granted.
    pub const fn granted(&self) -> NodeSet {
        self.granted.or(self.far)
    }

    /// Whether the attempt is won or lost.
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Won | Phase::Lost(_))
    }

    /// Takes `node`'s answer to the ACQUIRE, read at `now` (rounded up). A second answer from the
    /// same node is ignored, except that it replaces [`Answer::Unknown`].
    pub fn answer(&mut self, node: usize, answer: Answer, now: Instant) -> Step {
        let known = self.granted().or(self.refused);
        if known.has(node) || !self.quorum.all().has(node) {
            return Step::Wait;
        }
        match answer {
            Answer::Granted(fence) => {
                self.unknown = self.unknown.without(NodeSet::of(node));
                if fence > self.bound && self.phase == Phase::Acquiring {
                    self.leave_out(node, fence);
                    return self.decide(now);
                }
                self.granted.insert(node);
                return self.granted_by(node, fence, now);
            }
            Answer::Refused => {
                self.unknown = self.unknown.without(NodeSet::of(node));
                self.refused.insert(node);
            }
            Answer::Unknown => self.unknown.insert(node),
        }
        self.decide(now)
    }

    /// Takes `node`'s answer to the raise, read at `now` (rounded up).
    pub fn raise_answer(&mut self, node: usize, answer: RaiseAnswer, now: Instant) -> Step {
        if self.phase != Phase::Raising || !self.granted.has(node) {
            return Step::Wait;
        }
        match answer {
            RaiseAnswer::Raised(counter) if self.is_stored_at(counter) => {
                self.storing.insert(node);
            }
            RaiseAnswer::Raised(_) | RaiseAnswer::Refused | RaiseAnswer::Unknown => {
                self.not_raised.insert(node);
            }
        }
        self.decide(now)
    }

    /// Stops waiting for the nodes that have not answered this round.
    pub fn time_out(&mut self, now: Instant) -> Step {
        match self.phase {
            Phase::Acquiring | Phase::Raising => {
                let all = self.quorum.all();
                self.unknown = self.unknown.or(all.without(self.granted()).without(self.refused));
                if self.phase == Phase::Raising {
                    self.not_raised = self.not_raised.or(self.granted.without(self.storing));
                }
                self.decide(now)
            }
            Phase::Won | Phase::Lost(_) => Step::Wait,
        }
    }

    /// Whether a node that was raised, and has this counter now, stores our fence.
    ///
    /// For a writer, a larger counter means that the node has granted the lock again since, so
    /// another holder may have had the lock, and our fence, in between. For a reader, another
    /// reader may have raised the counter meanwhile. That does no harm, because no writer was
    /// granted the lock.
    fn is_stored_at(&self, counter: Fence) -> bool {
        counter == self.fence || self.mode.is_shared() && counter > self.fence
    }

    fn granted_by(&mut self, node: usize, fence: Fence, now: Instant) -> Step {
        match self.phase {
            Phase::Acquiring => {
                if fence > self.fence {
                    self.fence = fence;
                    self.storing = NodeSet::of(node);
                } else if fence == self.fence {
                    self.storing.insert(node);
                }
                self.decide(now)
            }
            Phase::Raising if fence == self.fence => {
                self.storing.insert(node);
                self.decide(now)
            }
            // The node may have granted our fence to another holder before. The raise is under way,
            // so the fence stays, and this node does not count.
            Phase::Raising if fence > self.fence => {
                self.not_raised.insert(node);
                self.decide(now)
            }
            Phase::Raising | Phase::Won if fence < self.fence => {
                Step::Raise { fence: self.fence, nodes: NodeSet::of(node) }
            }
            Phase::Raising | Phase::Won | Phase::Lost(_) => Step::Wait,
        }
    }

    fn leave_out(&mut self, node: usize, fence: Fence) {
        self.far.insert(node);
        if fence > self.farthest {
            (self.farthest, self.at_farthest) = (fence, NodeSet::of(node));
        } else if fence == self.farthest {
            self.at_farthest.insert(node);
        }
    }

    /// Counts the votes that were left out, because there is no quorum without them: perhaps this
    /// client's clock is wrong, or all nodes are that far ahead.
    fn let_in(&mut self) {
        self.granted = self.granted();
        (self.fence, self.storing) = (self.farthest, self.at_farthest);
        self.bound = Fence::MAX;
        self.far = NodeSet::EMPTY;
    }

    fn decide(&mut self, now: Instant) -> Step {
        let undecided = matches!(self.phase, Phase::Acquiring | Phase::Raising);
        if !undecided {
            return Step::Wait;
        }
        let has_validity = !self.terms.validity(self.started_at, now).is_zero();
        if !has_validity {
            return self.lose(Loss::TooLate);
        }
        if self.quorum.is_reached(self.granted) && self.quorum.is_reached(self.storing) {
            self.phase = Phase::Won;
            let laggards = self.granted.without(self.storing);
            return Step::Won(Grant { fence: self.fence, ends_at: self.ends_at(), laggards });
        }
        let no = self.refused.or(self.not_raised);
        let possible = self.quorum.all().without(no).without(self.unknown).without(self.far);
        if !self.quorum.is_reached(possible) {
            if self.phase == Phase::Acquiring && !self.far.is_empty() {
                self.let_in();
                return self.decide(now);
            }
            let refused = !self.quorum.is_reached(self.quorum.all().without(self.refused));
            return self.lose(if refused { Loss::Refused } else { Loss::Unreached });
        }
        if self.phase == Phase::Acquiring && self.quorum.is_reached(self.granted) {
            self.phase = Phase::Raising;
            let nodes = self.granted.without(self.storing);
            return Step::Raise { fence: self.fence, nodes };
        }
        Step::Wait
    }

    fn lose(&mut self, loss: Loss) -> Step {
        self.phase = Phase::Lost(loss);
        Step::Lost(loss)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::Millis;
    use crate::engine::VOTE_MARGIN;

    const START: Instant = Instant::from_millis(10_000);

    fn attempt(nodes: usize) -> Attempt {
        Attempt::new(Quorum::of(nodes).unwrap(), Terms::new(Millis::new(1_000)), START)
    }

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    fn granted(number: u64) -> Answer {
        Answer::Granted(fence(number))
    }

    fn at(millis: u64) -> Instant {
        START.after(Millis::new(millis))
    }

    fn won(number: u64, laggards: NodeSet) -> Step {
        Step::Won(Grant { fence: fence(number), ends_at: at(988), laggards })
    }

    #[test]
    fn equal_counters_win_in_one_round_trip() {
        let mut attempt = attempt(5);
        assert_eq!(attempt.answer(4, granted(7), at(1)), Step::Wait);
        assert_eq!(attempt.answer(0, Answer::Refused, at(1)), Step::Wait);
        assert_eq!(attempt.answer(1, granted(7), at(2)), Step::Wait);
        assert!(!attempt.is_over());
        assert_eq!(attempt.answer(2, granted(7), at(3)), won(7, NodeSet::EMPTY));
        assert!(attempt.is_over());
    }

    #[test]
    fn a_raise_counts_only_at_a_node_that_granted_and_stores_just_the_fence() {
        let mut raising = attempt(3);
        let _ = raising.answer(0, granted(1), at(1));
        let _ = raising.answer(1, granted(2), at(1));
        let mut other = raising;
        let stored = RaiseAnswer::Raised(fence(2));
        assert_eq!(other.raise_answer(2, stored, at(2)), Step::Wait, "it has not granted");
        assert_eq!(raising.raise_answer(0, RaiseAnswer::Raised(fence(3)), at(2)), Step::Wait);
        assert_eq!(raising.raise_answer(2, stored, at(2)), Step::Wait);
        assert_eq!(raising.answer(2, granted(2), at(3)), won(2, NodeSet::of(0)));
        assert_eq!(raising.raise_answer(0, stored, at(4)), Step::Wait, "the attempt is over");
    }

    #[test]
    fn a_straggler_above_the_fence_is_no_hope_for_the_raise() {
        let mut attempt = attempt(3);
        let _ = attempt.answer(0, granted(1), at(1));
        let _ = attempt.answer(1, granted(2), at(1));
        assert_eq!(attempt.answer(2, granted(5), at(2)), Step::Wait);
        let lost = attempt.raise_answer(0, RaiseAnswer::Refused, at(3));
        assert_eq!(lost, Step::Lost(Loss::Unreached), "no node is left to wait for");
    }

    #[test]
    fn unequal_counters_need_a_quorum_at_the_largest_fence() {
        let mut attempt = attempt(3);
        assert_eq!(attempt.answer(0, granted(4), at(1)), Step::Wait);
        let raise = Step::Raise { fence: fence(9), nodes: NodeSet::of(0) };
        assert_eq!(attempt.answer(1, granted(9), at(2)), raise);
        assert_eq!(
            attempt.raise_answer(0, RaiseAnswer::Raised(fence(9)), at(3)),
            won(9, NodeSet::EMPTY)
        );
    }

    #[test]
    fn a_straggler_during_the_raise_counts_if_it_granted_the_fence_and_is_raised_if_less() {
        let mut low = attempt(5);
        let _ = low.answer(0, granted(1), at(1));
        let _ = low.answer(1, granted(2), at(1));
        let nodes = NodeSet::of(0).or(NodeSet::of(1));
        assert_eq!(low.answer(2, granted(3), at(1)), Step::Raise { fence: fence(3), nodes });
        let mut high = low;
        let nodes = NodeSet::of(3);
        assert_eq!(low.answer(3, granted(2), at(2)), Step::Raise { fence: fence(3), nodes });
        assert_eq!(low.raise_answer(3, RaiseAnswer::Raised(fence(3)), at(3)), Step::Wait);
        let laggards = NodeSet::of(1);
        assert_eq!(low.raise_answer(0, RaiseAnswer::Raised(fence(3)), at(3)), won(3, laggards));
        assert_eq!(high.answer(3, granted(8), at(2)), Step::Wait);
        assert_eq!(high.answer(4, granted(3), at(2)), Step::Wait);
        let laggards = NodeSet::of(1).or(NodeSet::of(3));
        assert_eq!(high.raise_answer(0, RaiseAnswer::Raised(fence(3)), at(3)), won(3, laggards));
    }

    #[test]
    fn a_grant_after_the_win_is_raised_in_the_background() {
        let mut attempt = attempt(3);
        let _ = attempt.answer(0, granted(5), at(1));
        let _ = attempt.answer(1, granted(5), at(1));
        let raise = Step::Raise { fence: fence(5), nodes: NodeSet::of(2) };
        for above_or_equal in [5, 8] {
            assert_eq!({ attempt }.answer(2, granted(above_or_equal), at(9)), Step::Wait);
        }
        assert_eq!(attempt.answer(2, granted(2), at(9)), raise);
    }

    #[test]
    fn refusals_decide_as_soon_as_no_quorum_is_left() {
        let mut attempt = attempt(5);
        assert_eq!(attempt.answer(0, granted(1), at(1)), Step::Wait);
        assert_eq!(attempt.answer(1, Answer::Refused, at(1)), Step::Wait);
        assert_eq!(attempt.answer(2, Answer::Refused, at(1)), Step::Wait);
        assert_eq!(attempt.answer(3, Answer::Refused, at(1)), Step::Lost(Loss::Refused));
        assert_eq!(attempt.answer(4, granted(1), at(2)), Step::Wait, "the release follows it");
    }

    #[test]
    fn unknown_answers_do_not_win_and_are_told_from_refusals() {
        let mut attempt = attempt(3);
        assert_eq!(attempt.answer(0, granted(1), at(1)), Step::Wait);
        assert_eq!(attempt.answer(1, Answer::Refused, at(1)), Step::Wait);
        assert_eq!(attempt.time_out(at(50)), Step::Lost(Loss::Unreached));
    }

    #[test]
    fn a_late_grant_replaces_unknown() {
        let mut attempt = attempt(3);
        assert_eq!(attempt.answer(0, Answer::Unknown, at(1)), Step::Wait);
        assert_eq!(attempt.answer(1, granted(3), at(1)), Step::Wait);
        assert_eq!(attempt.answer(0, granted(3), at(2)), won(3, NodeSet::EMPTY));
    }

    /// The bound of a client whose clock reads 1 ms after the start of 1970.
    fn far() -> u64 {
        VOTE_MARGIN + 1_000
    }

    fn attempt_at_once() -> Attempt {
        attempt(3).at(UnixTime::from_millis(1))
    }

    #[test]
    fn a_vote_far_beyond_the_time_is_left_out_and_the_others_win() {
        for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0]] {
            let mut attempt = attempt_at_once();
            let fences = [far() + 1, 7, 7];
            let steps = order.map(|node| attempt.answer(node, granted(fences[node]), at(1)));
            assert!(steps.contains(&won(7, NodeSet::EMPTY)), "{order:?}: {steps:?}");
            assert!(!steps.iter().any(|step| matches!(step, Step::Raise { .. })), "{steps:?}");
            assert_eq!(attempt.granted(), NodeSet::first(3), "it is abandoned like the others");
        }
        let mut near = attempt_at_once();
        let _ = near.answer(0, granted(far()), at(1));
        let raise = Step::Raise { fence: fence(far()), nodes: NodeSet::of(1) };
        assert_eq!(near.answer(1, granted(7), at(1)), raise, "at the bound it counts");
    }

    #[test]
    fn far_votes_count_where_there_is_no_quorum_without_them() {
        // The client's clock reads 1970, and all nodes have jumped to the present time.
        let mut all = attempt_at_once();
        assert_eq!(all.answer(0, granted(far() + 9), at(1)), Step::Wait);
        assert_eq!(all.answer(1, granted(far() + 9), at(1)), won(far() + 9, NodeSet::EMPTY));
        // One node has jumped, and another is down.
        let mut one = attempt_at_once();
        assert_eq!(one.answer(0, granted(far() + 9), at(1)), Step::Wait);
        assert_eq!(one.answer(1, granted(3), at(1)), Step::Wait);
        let raise = Step::Raise { fence: fence(far() + 9), nodes: NodeSet::of(1) };
        assert_eq!(one.time_out(at(2)), raise);
        let step = one.raise_answer(1, RaiseAnswer::Raised(fence(far() + 9)), at(3));
        assert_eq!(step, won(far() + 9, NodeSet::EMPTY));
    }

    #[test]
    fn a_far_vote_does_not_make_up_for_a_raise_that_was_refused() {
        let mut attempt = attempt_at_once();
        let _ = attempt.answer(0, granted(far() + 1), at(1));
        let _ = attempt.answer(1, granted(3), at(1));
        let raise = Step::Raise { fence: fence(4), nodes: NodeSet::of(1) };
        assert_eq!(attempt.answer(2, granted(4), at(1)), raise);
        let lost = attempt.raise_answer(1, RaiseAnswer::Refused, at(2));
        assert_eq!(lost, Step::Lost(Loss::Unreached));
    }

    #[test]
    fn validity_is_checked_again_after_the_raise() {
        let mut attempt = attempt(3);
        let _ = attempt.answer(0, granted(1), at(1));
        let raise = Step::Raise { fence: fence(2), nodes: NodeSet::of(0) };
        assert_eq!(attempt.answer(1, granted(2), at(987)), raise);
        let late = attempt.raise_answer(0, RaiseAnswer::Raised(fence(2)), at(988));
        assert_eq!(late, Step::Lost(Loss::TooLate));
    }

    #[test]
    fn a_quorum_of_grants_after_the_validity_is_lost() {
        let mut attempt = attempt(1);
        assert_eq!(attempt.answer(0, granted(1), at(988)), Step::Lost(Loss::TooLate));
    }

    #[test]
    fn a_raise_that_finds_more_than_was_asked_for_does_not_count() {
        let mut attempt = attempt(3);
        let _ = attempt.answer(2, Answer::Refused, at(1));
        let _ = attempt.answer(0, granted(1), at(1));
        let _ = attempt.answer(1, granted(2), at(1));
        let more = RaiseAnswer::Raised(fence(3));
        assert_eq!(attempt.raise_answer(0, more, at(2)), Step::Lost(Loss::Unreached));
    }

    #[test]
    fn a_refused_raise_loses_when_no_quorum_is_left() {
        let mut attempt = attempt(3);
        let _ = attempt.answer(0, granted(1), at(1));
        let _ = attempt.answer(1, granted(2), at(1));
        assert_eq!(
            attempt.raise_answer(0, RaiseAnswer::Refused, at(2)),
            Step::Wait,
            "2 may answer"
        );
        assert_eq!(attempt.time_out(at(50)), Step::Lost(Loss::Unreached));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Answer(usize, Answer),
        Raise(usize, RaiseAnswer),
        TimeOut,
    }

    fn events(nodes: usize) -> impl Strategy<Value = Vec<(Event, u64)>> {
        let number = 1u64..7;
        let event = prop_oneof![
            6 => (0..nodes, number.clone()).prop_map(|(n, f)| Event::Answer(n, granted(f))),
            2 => (0..nodes).prop_map(|n| Event::Answer(n, Answer::Refused)),
            1 => (0..nodes).prop_map(|n| Event::Answer(n, Answer::Unknown)),
            5 => (0..nodes, number)
                .prop_map(|(n, f)| Event::Raise(n, RaiseAnswer::Raised(fence(f)))),
            1 => (0..nodes).prop_map(|n| Event::Raise(n, RaiseAnswer::Refused)),
            1 => Just(Event::TimeOut),
        ];
        prop::collection::vec((event, 0u64..200), 0..24)
    }

    proptest! {
        /// The naive reference model: remember every node's answer, and count at the end.
        #[test]
        fn a_win_means_that_a_quorum_stores_the_largest_fence_in_time(
            nodes in 1usize..6,
            events in events(5),
        ) {
            let quorum = Quorum::of(nodes).unwrap();
            // Fences above the bound are left out where possible.
            let bound = fence(4);
            let mut attempt = Attempt { bound, ..attempt(nodes) };
            let mut stored = vec![None; nodes];
            let mut asked = NodeSet::EMPTY;
            let mut now = 0;
            let mut over = None;
            for (event, later) in events {
                now += later;
                let before = attempt;
                let step = match event {
                    Event::Answer(node, answer) => {
                        if let (Some(None), Answer::Granted(fence)) = (stored.get(node), answer)
                            && !before.refused.has(node)
                        {
                            stored[node] = Some(fence);
                        }
                        attempt.answer(node, answer, at(now))
                    }
                    // A node answers a raise only if it received one, and then stores at least its
                    // fence.
                    Event::Raise(node, answer) if asked.has(node) => {
                        let answer = match answer {
                            RaiseAnswer::Raised(f) => {
                                let f = f.max(attempt.fence);
                                stored[node] = Some(f);
                                RaiseAnswer::Raised(f)
                            }
                            RaiseAnswer::Refused | RaiseAnswer::Unknown => answer,
                        };
                        attempt.raise_answer(node, answer, at(now))
                    }
                    Event::Raise(..) => continue,
                    Event::TimeOut => attempt.time_out(at(now)),
                };
                if over.is_some() {
                    prop_assert!(matches!(step, Step::Wait | Step::Raise { .. }), "after the end");
                    continue;
                }
                match step {
                    Step::Wait => {}
                    Step::Raise { fence, nodes } => {
                        prop_assert!(nodes.iter().all(|node| stored[node] < Some(fence)));
                        asked = asked.or(nodes);
                    }
                    Step::Won(grant) => {
                        over = Some(true);
                        let storing = stored.iter().filter(|f| **f >= Some(grant.fence)).count();
                        prop_assert!(storing >= quorum.needed());
                        prop_assert!(at(now) < grant.ends_at);
                        for node in grant.laggards.iter() {
                            prop_assert!(stored[node] != Some(grant.fence));
                        }
                    }
                    Step::Lost(_) => over = Some(false),
                }
            }
            if over.is_none() {
                // The first timeout counts the votes that were left out: they may win, or need a
                // raise.
                let _ = attempt.time_out(at(now));
                let _ = attempt.time_out(at(now));
                prop_assert!(attempt.is_over());
            }
        }
    }
}
