//! Tracks the proof's state along a run of the code, and reports where the two diverge.
//!
//! The driver names the code's steps as actions of the proof. This code requires that each action's
//! preconditions hold, and that every state satisfies all invariants. The driver also compares what
//! both can see.

use super::system::{ACTIONS, Action, INVARIANTS, ROUNDS, Sizes, State, is_quorum, those};

/// The proof's state for a state of the code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tie {
    pub(crate) state: State,
    /// The first action that the proof does not allow, and what it lacked.
    broken: Option<(&'static str, &'static str)>,
}

impl Tie {
    pub(crate) fn new() -> Tie {
        Tie { state: State::new(), broken: None }
    }

    /// Takes an action that the code has performed.
    pub(crate) fn take(&mut self, sizes: &Sizes, action: Action) {
        if self.broken.is_some() {
            return;
        }
        match self.state.take(sizes, action) {
            Ok(after) => self.state = after,
            Err(requirement) => self.broken = Some((action.name(), requirement)),
        }
    }

    /// Records that the code has done something that is not an action of the proof.
    pub(crate) fn part(&mut self, what: &'static str, why: &'static str) {
        self.broken = self.broken.or(Some((what, why)));
    }

    /// Follows the node's counter and ceiling to their current values: side effects of other
    /// actions.
    pub(crate) fn follow(&mut self, sizes: &Sizes, node: usize, counter: u64, ceiling: u64) {
        self.persist(sizes, node, ceiling);
        if counter > self.state.fence_of(self.state.counter(node)) {
            self.take(sizes, Action::Skip { at_node: node, at_fence: counter });
        }
    }

    /// Follows the node's ceiling to its current value, before anything else happens.
    pub(crate) fn persist(&mut self, sizes: &Sizes, node: usize, ceiling: u64) {
        if ceiling > self.state.fence_of(self.state.ceiling(node)) {
            self.take(sizes, Action::Persist { at_node: node, at_fence: ceiling });
        }
    }

    /// The nodes that may be counted for a win of `round` with `fence`.
    fn storing(&self, sizes: &Sizes, round: usize, fence: u64) -> usize {
        let rank = (0..self.state.ranks()).find(|rank| self.state.fence_of(*rank) == fence);
        let stores = |node| rank.is_some_and(|f| self.state.stored(round / ROUNDS, node, f));
        self.voting(sizes, round) & those(sizes.nodes, stores)
    }

    /// The nodes that vouch for `round`: all, once its validity is over, because nothing rests on
    /// it then.
    fn voting(&self, sizes: &Sizes, round: usize) -> usize {
        let state = &self.state;
        let vouches =
            |node| state.over(round) || state.rests(node, round) || state.forgot(node, round);
        those(sizes.nodes, vouches)
    }

    /// A client considers itself the holder, by its first round.
    pub(crate) fn win(&mut self, sizes: &Sizes, round: usize, fence: u64) {
        let quorum = self.storing(sizes, round, fence);
        if !is_quorum(sizes.nodes, quorum) {
            return self.part("win", "a quorum stored just this fence, and vouches");
        }
        self.take(sizes, Action::Win { at_round: round, at_quorum: quorum, at_fence: fence });
    }

    /// A client considers a renewal confirmed; it may do so more than once.
    pub(crate) fn renew(&mut self, sizes: &Sizes, round: usize) {
        if self.state.confirmed(round) {
            return;
        }
        let quorum = self.voting(sizes, round);
        if !is_quorum(sizes.nodes, quorum) {
            return self.part("renew", "a quorum vouches");
        }
        let first = round / ROUNDS * ROUNDS;
        let is_valid = |round: &usize| self.state.confirmed(*round) && !self.state.over(*round);
        let standing = (first..first + ROUNDS).find(is_valid).unwrap_or(first);
        self.take(sizes, Action::Renew { at_round: round, standing, at_quorum: quorum });
    }

    /// The violation, if there is one.
    pub(crate) fn complaint(&self, sizes: &Sizes) -> Option<String> {
        if let Some((action, requirement)) = self.broken {
            return Some(format!(
                "{action:?} is not one of the proof's: {requirement:?} is missing"
            ));
        }
        let fails = |(_, holds): &&(&str, super::system::Invariant)| !holds(&self.state, sizes);
        INVARIANTS.iter().find(fails).map(|(name, _)| format!("the proof's {name:?} fails"))
    }
}

/// The index of an action among all actions.
pub(crate) fn number(action: Action) -> u8 {
    let place = ACTIONS.iter().position(|name| *name == action.name());
    place.expect("it is one of them") as u8
}
