//! The model in the words of the proof: which actions a step consists of, and what both can see.
//!
//! The proof's state is carried along (`tests/proof/tie.rs`). Its history is known to no node and
//! no client; what they do know must be the same in both, in every state.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

use lockmod::engine::{Fence, Mode, QuarantineReason};

use super::{Defect, Id, Ids, Reply, Request, Shared, State, World};
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
    pub(super) held_before: Ids,
    /// How the acquisition held the lock.
    pub(super) mode_before: Option<Mode>,
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
            readers: (0..self.bounds.clients)
                .filter(|client| self.asks(*client).is_shared())
                .fold(0, |readers, client| readers | 3 << (2 * client)),
        }
    }

    /// The proof's actions that have been taken so far.
    pub(crate) fn actions_taken(&self) -> Vec<&'static str> {
        let was_taken = |number: &usize| self.taken.has(*number as u8);
        (0..ACTIONS.len()).filter(was_taken).map(|number| ACTIONS[number]).collect()
    }

    pub(super) fn tied(&self, state: &mut State, action: Action) {
        self.taken.saw(number(action));
        state.tie.take(&self.sizes(), action);
    }

    /// Side effects: a ceiling that was written, a floor that rose.
    pub(super) fn tie_follows(&self, state: &mut State, node: usize) {
        let (counter, ceiling) =
            (state.nodes[node].counter().get(), state.nodes[node].disk.fence.get());
        state.tie.follow(&self.sizes(), node, counter, ceiling);
    }

    /// Records what a node has done with a request.
    pub(super) fn tie_served(&self, state: &mut State, served: Served) {
        let Served { node, id, request, reply, held_before, mode_before } = served;
        let ceiling = state.nodes[node].disk.fence.get();
        state.tie.persist(&self.sizes(), node, ceiling);
        let held = held_before.has(id);
        let extend = |round| Action::Extend { at_node: node, at_round: round_of(id, round) };
        match (request, reply) {
            (Request::Acquire(_), Some(Reply::Granted(_))) if held => self.tied(state, extend(0)),
            (Request::Acquire(mode), Some(Reply::Granted(fence))) => {
                let (at_round, at_fence) = (round_of(id, 0), fence.get());
                let exclusively = !mode.is_shared();
                self.tied(state, Action::Grant { at_node: node, at_round, at_fence, exclusively });
            }
            (Request::Raise(fence), Some(Reply::Raised(counter)))
                if counter == fence || self.is_raised(state, node, id, fence) =>
            {
                self.tie_raised(state, node, id, fence);
            }
            (Request::Extend(round, fence, _) | Request::Repair(round, fence, _), Some(reply))
                if held =>
            {
                if fence.get() > state.tie.state.fence_of(state.tie.state.counter(node)) {
                    self.tie_raised(state, node, id, fence);
                }
                if reply == Reply::Extended(round) {
                    self.tied(state, extend(round));
                }
            }
            (Request::Repair(round, fence, mode), Some(Reply::Extended(_))) => {
                self.tie_rejoined(state, node, (id, round), (fence, !mode.is_shared()));
            }
            (Request::Repair(round, _, mode), Some(Reply::Provisional(_))) => {
                let (at_round, exclusively) = (round_of(id, round), !mode.is_shared());
                self.tied(state, Action::Repair { at_node: node, at_round, exclusively });
            }
            (Request::Release, _) => self.tie_released(state, node, held_before),
            (
                Request::Acquire(_) | Request::Raise(_) | Request::Extend(..) | Request::Repair(..),
                _,
            ) => {}
        }
        let mode = state.nodes[node].lease_of(id).map(|lease| lease.mode);
        if (mode_before, mode) == (Some(Mode::Exclusive), Some(Mode::Shared)) {
            let at_acquisition = usize::from(id.0);
            self.tied(state, Action::DowngradeAtANode { at_node: node, at_acquisition });
        }
        self.tie_follows(state, node);
    }

    /// Whether a node whose counter is above this fence has raised a reader to it: a reader that
    /// was not granted a larger one.
    fn is_raised(&self, state: &State, node: usize, id: Id, fence: Fence) -> bool {
        let (proof, number) = (&state.tie.state, usize::from(id.0));
        let was_granted =
            |rank| proof.fence_of(rank) <= fence.get() && proof.stored(number, node, rank);
        self.asks(id.client()).is_shared() && (0..proof.ranks()).any(was_granted)
    }

    /// Records that a node replies that it stores this fence.
    fn tie_raised(&self, state: &mut State, node: usize, id: Id, fence: Fence) {
        let (at_acquisition, at_fence) = (usize::from(id.0), fence.get());
        let proof = &state.tie.state;
        let stores =
            |rank| proof.fence_of(rank) == at_fence && proof.stored(at_acquisition, node, rank);
        if !(0..proof.ranks()).any(stores) {
            self.tied(state, Action::Raise { at_node: node, at_acquisition, at_fence });
        }
    }

    fn tie_rejoined(
        &self,
        state: &mut State,
        node: usize,
        (id, round): (Id, u8),
        (fence, exclusively): (Fence, bool),
    ) {
        let (counter, at_round) = (state.nodes[node].counter(), round_of(id, round));
        let action = if counter == fence {
            Action::RepairByTheCounter { at_node: node, at_round, exclusively }
        } else {
            Action::Rejoin { at_node: node, at_round, at_fence: counter.get(), exclusively }
        };
        self.tied(state, action);
        if self.bounds.defect == Defect::RejoiningStores {
            state.tie.state.set_stored(usize::from(id.0), node, counter.get());
        }
    }

    fn tie_released(&self, state: &mut State, node: usize, held_before: Ids) {
        for holder in held_before.without(state.nodes[node].holders()).iter() {
            let at_acquisition = usize::from(holder.0);
            self.tied(state, Action::Release { at_node: node, at_acquisition });
        }
    }

    /// Records that a node, or its replica in its place, has started anew.
    pub(super) fn tie_began_anew(&self, state: &mut State, node: usize) {
        let (holders, counter) = (state.nodes[node].holders(), state.nodes[node].counter().get());
        let action = if self.bounds.promotes {
            Action::Promote { at_node: node, at_fence: counter }
        } else {
            Action::Crash { at_node: node, at_fence: counter }
        };
        self.tied(state, action);
        for id in holders.iter() {
            let is_provisional =
                |id| state.nodes[node].lease_of(id).is_some_and(|l| l.is_provisional);
            let counts = self.bounds.promotes || !is_provisional(id);
            self.tie_arrived(state, node, id, counts);
        }
        // If no lease can be outstanding, the wait is over before it begins.
        if !state.nodes[node].is_quarantined() {
            self.tied(state, Action::QuarantineEnds { at_node: node });
        }
        self.tie_follows(state, node);
    }

    /// Records that a lease has arrived at a node in quarantine.
    pub(super) fn tie_arrived(&self, state: &mut State, node: usize, id: Id, counts: bool) {
        let at_acquisition = usize::from(id.0);
        let lease = state.nodes[node].lease_of(id);
        let exclusively = lease.is_some_and(|lease| !lease.mode.is_shared());
        let action = Action::Arrive { at_node: node, at_acquisition, exclusively, counts };
        self.tied(state, action);
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

    pub(super) fn tie_downgraded(&self, state: &mut State, id: Id) {
        self.tied(state, Action::Downgrade { at_acquisition: usize::from(id.0) });
    }

    pub(super) fn tie_wrote(&self, state: &mut State, id: Id, is_read: bool) {
        let at_acquisition = usize::from(id.0);
        let read = Action::Read { at_acquisition };
        self.tied(state, if is_read { read } else { Action::Write { at_acquisition } });
    }

    /// Where model and proof diverge, if they do.
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
        let lease = |number: usize| seen.lease_of(Id(number as u8));
        let all = || 0..self.sizes().acquisitions;
        let is_held_so = all().all(|id| proof.holds(node, id) == lease(id).is_some());
        let is_writers = |id| lease(id).is_some_and(|lease| !lease.mode.is_shared());
        let is_provisional = |id| lease(id).is_some_and(|lease| lease.is_provisional);
        let reason = seen.quarantine_reason();
        let same = [
            ("holder", is_held_so),
            ("mode", all().all(|id| proof.exclusive(node, id) == is_writers(id))),
            ("counter", proof.fence_of(proof.counter(node)) == seen.counter().get()),
            ("ceiling", proof.fence_of(proof.ceiling(node)) == seen.disk.fence.get()),
            ("quarantine", proof.quarantined(node) == reason.is_some()),
            ("promotion", proof.promoted(node) == (reason == Some(QuarantineReason::Promotion))),
            // The mark may outlast its quarantine, but is then meaningless.
            ("provisional", all().all(|id| !proof.provisional(node, id) || is_provisional(id))),
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
        let has_read = state.store.read & id.bit() != 0;
        let same = [
            ("beginning", proof.begun(number)),
            ("win", proof.won(number) == (entry.fence > Fence::ZERO)),
            ("fence", entry.fence == Fence::ZERO || has_fence()),
            ("end", proof.done(number) == seen.is_idle()),
            ("validity", seen.is_idle() || (0..=seen.round).all(is_over)),
            ("write", proof.wrote(number) == has_written),
            ("read", proof.read(number) == has_read),
            ("downgrade", proof.downgraded(number) == entry.is_downgraded),
        ];
        let (what, _) = same.into_iter().find(|(_, is_same)| !is_same)?;
        Some(format!("client {client}: the proof has another {what}"))
    }
}
