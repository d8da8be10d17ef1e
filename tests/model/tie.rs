//! The model in the words of the proof: which actions a step consists of, and what both can see.
//!
//! The proof's state is carried along (`tests/proof/tie.rs`). What it keeps of history no node and
//! no client knows; what they know must be the same in both, in every state.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use lockmod::engine::{Fence, QuarantineReason};

use super::{Id, Reply, Request, Shared, State, World};
use crate::proof::system::{ACTIONS, Action, ROUNDS, Sizes};
use crate::proof::tie::{Tie, number};

/// The proof's state in a state of the model. States that differ in history alone are one, unless
/// the bounds ask for every history.
#[derive(Clone, Debug)]
pub(super) struct Tied {
    tie: Shared<Tie>,
    is_part: bool,
}

impl Tied {
    pub(super) fn new(is_part: bool) -> Tied {
        Tied { tie: Shared::new(Tie::new()), is_part }
    }
}

impl PartialEq for Tied {
    fn eq(&self, other: &Tied) -> bool {
        !self.is_part || self.tie == other.tie
    }
}

impl Eq for Tied {}

impl Hash for Tied {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        if self.is_part {
            self.tie.hash(hasher);
        }
    }
}

impl Deref for Tied {
    type Target = Tie;

    fn deref(&self) -> &Tie {
        &self.tie
    }
}

impl DerefMut for Tied {
    fn deref_mut(&mut self) -> &mut Tie {
        &mut self.tie
    }
}

/// A request that a node has served.
pub(super) struct Served {
    pub(super) node: usize,
    pub(super) id: Id,
    pub(super) request: Request,
    pub(super) reply: Option<Reply>,
    pub(super) held_before: Option<Id>,
}

fn round_of(id: Id, round: u8) -> usize {
    usize::from(id.0) * ROUNDS + usize::from(round)
}

impl World {
    /// How the proof counts this world.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            nodes: self.bounds.nodes,
            acquisitions: self.bounds.clients * usize::from(super::ACQUISITIONS_MAX),
            blind: if self.bounds.ignores_clocks { u32::MAX } else { 0 },
        }
    }

    /// Which of the proof's actions have been taken so far.
    pub(crate) fn actions_taken(&self) -> Vec<&'static str> {
        let was_taken = |number: &usize| self.taken.has(*number as u8);
        (0..ACTIONS.len()).filter(was_taken).map(|number| ACTIONS[number]).collect()
    }

    pub(super) fn tied(&self, state: &mut State, action: Action) {
        self.taken.saw(number(action));
        state.tie.take(&self.sizes(), action);
    }

    /// What comes beside: a ceiling that was written, a floor that rose.
    pub(super) fn tie_follows(&self, state: &mut State, node: usize) {
        let (counter, ceiling) =
            (state.nodes[node].counter().get(), state.nodes[node].disk.fence.get());
        state.tie.follow(&self.sizes(), node, counter, ceiling);
    }

    /// What a node has done with a request.
    pub(super) fn tie_served(&self, state: &mut State, served: Served) {
        let Served { node, id, request, reply, held_before } = served;
        let ceiling = state.nodes[node].disk.fence.get();
        state.tie.persist(&self.sizes(), node, ceiling);
        let held = held_before == Some(id);
        let extend = |round| Action::Extend { at_node: node, at_round: round_of(id, round) };
        match (request, reply) {
            (Request::Acquire, Some(Reply::Granted(_))) if held => self.tied(state, extend(0)),
            (Request::Acquire, Some(Reply::Granted(fence))) => {
                let (at_round, at_fence) = (round_of(id, 0), fence.get());
                self.tied(state, Action::Grant { at_node: node, at_round, at_fence });
            }
            (Request::Raise(fence), Some(Reply::Raised(counter))) if counter == fence => {
                self.tie_raised(state, node, id, fence);
            }
            (Request::Extend(round, fence) | Request::Repair(round, fence), Some(reply))
                if held =>
            {
                if fence.get() > state.tie.state.fence_of(state.tie.state.counter(node)) {
                    self.tie_raised(state, node, id, fence);
                }
                if reply == Reply::Extended(round) {
                    self.tied(state, extend(round));
                }
            }
            (Request::Repair(round, fence), Some(Reply::Extended(_))) => {
                self.tie_rejoined(state, node, round_of(id, round), fence);
            }
            (Request::Repair(round, _), Some(Reply::Provisional(_))) => {
                self.tied(state, Action::Repair { at_node: node, at_round: round_of(id, round) });
            }
            (Request::Release, _) => self.tie_released(state, node, held_before),
            (
                Request::Acquire | Request::Raise(_) | Request::Extend(..) | Request::Repair(..),
                _,
            ) => {}
        }
        self.tie_follows(state, node);
    }

    /// A node answers that it stores just this fence.
    fn tie_raised(&self, state: &mut State, node: usize, id: Id, fence: Fence) {
        let (at_acquisition, at_fence) = (usize::from(id.0), fence.get());
        let proof = &state.tie.state;
        let stores =
            |rank| proof.fence_of(rank) == at_fence && proof.stored(at_acquisition, node, rank);
        if !(0..proof.ranks()).any(stores) {
            self.tied(state, Action::Raise { at_node: node, at_acquisition, at_fence });
        }
    }

    fn tie_rejoined(&self, state: &mut State, node: usize, at_round: usize, fence: Fence) {
        let counter = state.nodes[node].counter();
        self.tied(
            state,
            if counter == fence {
                Action::RepairByTheCounter { at_node: node, at_round }
            } else {
                Action::Rejoin { at_node: node, at_round, at_fence: counter.get() }
            },
        );
    }

    fn tie_released(&self, state: &mut State, node: usize, held_before: Option<Id>) {
        if let (Some(holder), None) = (held_before, state.nodes[node].holder()) {
            let at_acquisition = usize::from(holder.0);
            self.tied(state, Action::Release { at_node: node, at_acquisition });
        }
    }

    /// A node has begun anew, or its replica has.
    pub(super) fn tie_began_anew(&self, state: &mut State, node: usize) {
        let (holder, counter) = (state.nodes[node].holder(), state.nodes[node].counter().get());
        let holds = holder.map(|id| usize::from(id.0));
        let action = match holds {
            _ if self.bounds.promotes => Action::Promote {
                at_node: node,
                at_acquisition: holds.unwrap_or_default(),
                at_fence: counter,
                comes: holds.is_some(),
            },
            Some(at_acquisition) => {
                let counts = !state.nodes[node].lock.is_provisional();
                Action::CrashWithData { at_node: node, at_acquisition, at_fence: counter, counts }
            }
            None => Action::Crash { at_node: node, at_fence: counter },
        };
        self.tied(state, action);
        // Where no lease can be outstanding, the wait is over before it begins.
        if !state.nodes[node].is_quarantined() {
            self.tied(state, Action::QuarantineEnds { at_node: node });
        }
        self.tie_follows(state, node);
    }

    pub(super) fn tie_begun(&self, state: &mut State, id: Id) {
        self.tied(state, Action::Begin { at_acquisition: usize::from(id.0) });
    }

    pub(super) fn tie_won(&self, state: &mut State, id: Id, fence: Fence) {
        let at_round = round_of(id, 0);
        self.taken.saw(number(Action::Win { at_round, at_quorum: 0, at_fence: 0 }));
        state.tie.win(&self.sizes(), at_round, fence.get());
    }

    pub(super) fn tie_renewed(&self, state: &mut State, id: Id, round: u8) {
        let at_round = round_of(id, round);
        self.taken.saw(number(Action::Renew { at_round, standing: 0, at_quorum: 0 }));
        state.tie.renew(&self.sizes(), at_round);
    }

    pub(super) fn tie_finished(&self, state: &mut State, id: Id) {
        self.tied(state, Action::Finish { at_acquisition: usize::from(id.0) });
    }

    pub(super) fn tie_closed(&self, state: &mut State, id: Id, round: u8) {
        self.tied(state, Action::TimePasses { at_round: round_of(id, round) });
    }

    pub(super) fn tie_wrote(&self, state: &mut State, id: Id) {
        self.tied(state, Action::Write { at_acquisition: usize::from(id.0) });
    }

    /// Where model and proof part, if they do.
    pub(crate) fn complaint(&self, state: &State) -> Option<String> {
        let seen = || {
            (0..self.bounds.nodes).find_map(|node| self.differs_at_node(state, node)).or_else(
                || {
                    (0..self.bounds.clients)
                        .find_map(|client| self.differs_at_client(state, client))
                },
            )
        };
        state.tie.complaint(&self.sizes()).or_else(seen)
    }

    fn differs_at_node(&self, state: &State, node: usize) -> Option<String> {
        let (seen, proof) = (&state.nodes[node], &state.tie.state);
        let holder = seen.holder().map(|id| usize::from(id.0));
        let is_held_so =
            (0..self.sizes().acquisitions).all(|id| proof.holds(node, id) == (holder == Some(id)));
        let reason = seen.quarantine_reason();
        let same = [
            ("holder", is_held_so),
            ("counter", proof.fence_of(proof.counter(node)) == seen.counter().get()),
            ("ceiling", proof.fence_of(proof.ceiling(node)) == seen.disk.fence.get()),
            ("quarantine", proof.quarantined(node) == reason.is_some()),
            ("promotion", proof.promoted(node) == (reason == Some(QuarantineReason::Promotion))),
            // The mark may outlast its quarantine, and means nothing then.
            (
                "provisional",
                holder.is_none_or(|id| !proof.provisional(node, id) || seen.lock.is_provisional()),
            ),
        ];
        let (what, _) = same.into_iter().find(|(_, is_same)| !is_same)?;
        Some(format!("node {node}: the proof has another {what}"))
    }

    fn differs_at_client(&self, state: &State, client: usize) -> Option<String> {
        let (seen, proof) = (&state.clients[client], &state.tie.state);
        if seen.begun == 0 {
            return None;
        }
        let id = World::id(state, client);
        let (number, entry) = (usize::from(id.0), state.ledger[usize::from(id.0)]);
        let is_over = |round| proof.over(round_of(id, round)) != seen.is_open(round);
        let has_fence = || proof.fence_of(proof.fence(number)) == entry.fence.get();
        let has_written = state.store.accepted & id.bit() != 0;
        let same = [
            ("beginning", proof.begun(number)),
            ("win", proof.won(number) == (entry.fence > Fence::ZERO)),
            ("fence", entry.fence == Fence::ZERO || has_fence()),
            ("end", proof.done(number) == seen.is_idle()),
            ("validity", seen.is_idle() || (0..=seen.round).all(is_over)),
            ("write", proof.wrote(number) == has_written),
        ];
        let (what, _) = same.into_iter().find(|(_, is_same)| !is_same)?;
        Some(format!("client {client}: the proof has another {what}"))
    }
}
