//! The simulation in terms of the proof: after every reply of a node that counts, the lock's state
//! is mapped to a state of `proof/protocol.py`, which must satisfy all its invariants.
//!
//! The nodes' knowledge is read from them. This code keeps what no node and no client knows, as
//! seen from the network: for which tokens a node has vouched and whether that may still be valid,
//! through all its crashes; what it has stored; which acquisitions were won before others began.
//! Two holders occur only under particular network conditions; this check finds a node that makes
//! them possible even without those conditions.
//!
//! An acquisition has two rounds in such a state: what its client relies on, by its own report,
//! and, for each node, the vote that would last longest if it counted. The proof's claims about all
//! rounds are checked for these two. Only the model checks that each step is an action of the
//! proof.
//!
//! Each lock has a fenced store, which accepts reads and writes by their fences.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockmod::engine::{Millis, Mode, Terms};
use tokio::time::Instant;

use crate::clients::FAST_PPM_MAX;
use crate::system::{ACQUISITIONS_MAX, INVARIANTS, ROUNDS, Sizes, State, is_quorum, those};

/// Identifies a token; tokens are random.
type Id = u64;

/// What a node knows about a lock.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The live leases.
    pub(crate) leases: Vec<Seen>,
    pub(crate) counter: u64,
    /// The ceiling in the state file.
    pub(crate) ceiling: u64,
    pub(crate) is_quarantined: bool,
}

/// A lease at a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The id of its token.
    pub(crate) id: Id,
    pub(crate) is_exclusive: bool,
    /// Whether it does not count yet.
    pub(crate) is_provisional: bool,
}

/// An operation on the fenced store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Write,
    Read,
}

/// What the fenced store of a lock has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Store {
    /// The largest fence of a writer.
    highest: u64,
    /// The largest fence of a reader.
    highest_read: u64,
}

impl Store {
    /// Accepts or refuses an operation, as examples/fenced_store does.
    fn accepts(&mut self, what: Use, fence: u64) -> bool {
        let is_late = fence < self.highest;
        match what {
            Use::Write if is_late || fence <= self.highest_read => return false,
            Use::Read if is_late => return false,
            Use::Write => self.highest = fence,
            Use::Read => self.highest_read = self.highest_read.max(fence),
        }
        true
    }
}

/// One acquisition of a lock.
#[derive(Debug)]
struct Claim {
    id: Id,
    /// The label from its client, if there is no other identification.
    label: Vec<u8>,
    is_reader: bool,
    /// It was won as a writer, and its client has become a reader.
    is_downgraded: bool,
    /// Whether the store has accepted a write from it, and a read.
    has_written: bool,
    has_read: bool,
    /// The acquisitions whose operations the store accepted earlier, and which this one must not
    /// follow.
    follows: BTreeSet<Id>,
    /// A release was seen: its client no longer relies on it.
    is_done: bool,
    /// Its leases were deleted by force: votes for it no longer count, but its fences do.
    deleted: Option<Deletion>,
    /// Its fence, once its client reports the win.
    won: Option<u64>,
    /// The nodes that had stored that fence: bits.
    storing: usize,
    /// The acquisitions that were won before it began.
    before: BTreeSet<Id>,
    /// Until when its client relies on it.
    valid_until: Option<Instant>,
    /// By node: until when a vote may be counted, however slow its client's clock is.
    votes: BTreeMap<usize, Instant>,
    stored: BTreeSet<(usize, u64)>,
}

/// What may still be relied on of a claim that was deleted.
#[derive(Debug)]
struct Deletion {
    /// The end of the last vote that no deletion can take back: it was given before, or by a node
    /// that has granted the lock to this claim again.
    spent_at: Instant,
    /// The nodes that have granted the lock to it again.
    granted_again: BTreeSet<usize>,
    /// A node may have it although it was deleted: it could not record that, a replica that did not
    /// know of it took over, or an operator has restored it.
    is_undone: bool,
}

/// What the proof knows about all locks.
#[derive(Debug)]
pub(crate) struct Shadow {
    nodes: usize,
    /// By lock name, in the order in which they began.
    claims: BTreeMap<Vec<u8>, Vec<Claim>>,
    /// All acquisitions that ever began, whether they were released, and whether they are readers:
    /// a request may arrive so late that its claim was already forgotten here.
    begun: BTreeMap<Id, (bool, bool)>,
    stores: BTreeMap<Vec<u8>, Store>,
    /// Nodes that received a restored lock with fences above the ceiling in their state files: they
    /// have not issued those fences, and write the file before they issue more.
    brought: BTreeSet<usize>,
    pub(crate) states: u64,
    /// Only the first violation: later ones repeat it.
    pub(crate) complaints: Vec<String>,
}

impl Shadow {
    pub(crate) fn new(nodes: usize) -> Shadow {
        Shadow {
            nodes,
            claims: BTreeMap::new(),
            begun: BTreeMap::new(),
            stores: BTreeMap::new(),
            brought: BTreeSet::new(),
            states: 0,
            complaints: Vec::new(),
        }
    }

    /// Records an attempt that has arrived at a node: its mode, and its client's label.
    pub(crate) fn asked(&mut self, (name, token): (&[u8], &[u8]), mode: Mode, label: &[u8]) {
        let claim = self.claim(name, token);
        let id = claim.id;
        if claim.label.is_empty() {
            (claim.label, claim.is_reader) = (label.to_vec(), mode.is_shared());
        }
        self.begun.entry(id).or_default().1 = mode.is_shared();
    }

    /// Whether this token asked as a reader.
    pub(crate) fn is_reader(&mut self, name: &[u8], token: &[u8]) -> bool {
        self.claim(name, token).is_reader
    }

    /// Records a reply of a node that counts for the token. The request's ttl, if it has one,
    /// determines how long.
    pub(crate) fn vouched(
        &mut self,
        node: usize,
        (name, token): (&[u8], &[u8]),
        ttl: Option<Millis>,
        stored: Option<u64>,
    ) {
        let now = Instant::now();
        let claim = self.claim(name, token);
        let over_at = ttl.map(|ttl| now + longest_validity(ttl));
        if let (Some(deletion), Some(over_at)) = (&mut claim.deleted, over_at) {
            if deletion.granted_again.contains(&node) {
                deletion.spent_at = deletion.spent_at.max(over_at);
            }
        } else if let Some(over_at) = over_at.filter(|_| !claim.is_done) {
            let vote = claim.votes.entry(node).or_insert(over_at);
            *vote = over_at.max(*vote);
        }
        claim.stored.extend(stored.map(|fence| (node, fence)));
    }

    /// Records the arrival of a release: the client no longer relies on the lock.
    pub(crate) fn released(&mut self, name: &[u8], token: &[u8]) {
        let claim = self.claim(name, token);
        claim.is_done = true;
        claim.valid_until = None;
        claim.votes.clear();
        let id = claim.id;
        self.begun.entry(id).or_default().0 = true;
    }

    /// Records that a node has granted the lock to a token that did not hold it there.
    pub(crate) fn granted(&mut self, node: usize, (name, token): (&[u8], &[u8])) {
        if let Some(deletion) = &mut self.claim(name, token).deleted {
            deletion.granted_again.insert(node);
        }
    }

    /// Records that an operator has deleted the lock at every node, and whether all of them have
    /// recorded it.
    pub(crate) fn deleted(&mut self, name: &[u8], is_recorded: bool) {
        let now = Instant::now();
        for claim in self.claims.get_mut(name).into_iter().flatten() {
            let earlier = claim.deleted.take();
            let was_undone = earlier.as_ref().is_some_and(|earlier| earlier.is_undone);
            let spent_at = earlier.map_or(now, |earlier| earlier.spent_at);
            claim.deleted = Some(Deletion {
                spent_at: claim.votes.values().copied().fold(spent_at, Instant::max),
                granted_again: BTreeSet::new(),
                is_undone: was_undone || !is_recorded,
            });
            claim.valid_until = None;
            claim.votes.clear();
        }
    }

    /// Records that a replica which still has this lease has become a master.
    pub(crate) fn outlived(&mut self, name: &[u8], token: &[u8]) {
        let claims = self.claims.get_mut(name).into_iter().flatten();
        let outlived = claims.filter(|claim| claim.id == id(token));
        outlived.flat_map(|claim| &mut claim.deleted).for_each(|it| it.is_undone = true);
    }

    /// Records that an operator has restored this lock at this node.
    pub(crate) fn brought(&mut self, node: usize, name: &[u8]) {
        self.brought.insert(node);
        let claims = self.claims.get_mut(name).into_iter().flatten();
        claims.flat_map(|claim| &mut claim.deleted).for_each(|deletion| deletion.is_undone = true);
    }

    /// Records that the client with this label considers itself the holder until then.
    pub(crate) fn relied_on(&mut self, (name, label): (&[u8], &str), fence: u64, until: Instant) {
        let nodes = self.nodes;
        let Some(claim) = self.winner((name, label), fence) else {
            return self.complain(name, "win: no quorum stored just this fence");
        };
        if claim.is_done {
            return;
        }
        if claim.won.is_none() {
            claim.won = Some(fence);
            claim.storing = claim.storing(nodes, fence);
            // A larger fence suffices for a reader; the node then counts as storing the winning
            // fence as well.
            let storing = (0..nodes).filter(|node| claim.storing >> node & 1 != 0);
            claim.stored.extend(storing.map(|node| (node, fence)));
        }
        if let Some(deletion) = &claim.deleted {
            if !deletion.is_undone && until > deletion.spent_at {
                self.complain(name, "a deleted lease is extended");
            }
            return;
        }
        claim.valid_until = Some(until);
        if !is_quorum(nodes, claim.voters(nodes)) {
            self.complain(name, "renew: no quorum vouches");
        }
    }

    /// Records that the client with this label, which has won as a writer, is a reader from here
    /// on.
    pub(crate) fn downgraded(&mut self, (name, label): (&[u8], &str), fence: u64) {
        let Some(claim) = self.winner((name, label), fence) else { return };
        if claim.won.is_some() && !claim.is_reader {
            claim.is_downgraded = true;
        }
    }

    /// Lets the client with this label, which has won, use the store, in time or late. Returns
    /// whether the store accepts the operation.
    pub(crate) fn uses(&mut self, (name, label): (&[u8], &str), fence: u64, what: Use) -> bool {
        if !self.stores.entry(name.to_vec()).or_default().accepts(what, fence) {
            return false;
        }
        let comes_after = |other: &Claim| other.has_written || what == Use::Write && other.has_read;
        let claims = self.claims.entry(name.to_vec()).or_default();
        let before: Vec<Id> =
            claims.iter().filter(|other| comes_after(other)).map(|other| other.id).collect();
        // A claim that is over, and whose fence is not among the latest, is not part of the proof's
        // state.
        let won = claims.iter_mut().rev().find(|claim| claim.is_called(label, fence));
        if let Some(claim) = won {
            claim.follows.extend(before);
            claim.has_written |= what == Use::Write;
            claim.has_read |= what == Use::Read;
        }
        true
    }

    /// The claim with this label that was won with this fence, or that may just have been won with
    /// it.
    fn winner(&mut self, (name, label): (&[u8], &str), fence: u64) -> Option<&mut Claim> {
        let nodes = self.nodes;
        let claims = self.claims.entry(name.to_vec()).or_default();
        // An earlier attempt with the same label may have arrived late.
        let known = claims.iter().rposition(|claim| claim.is_called(label, fence));
        let may_have_won = |claim: &Claim| {
            claim.label == label.as_bytes()
                && claim.won.is_none()
                && is_quorum(nodes, claim.storing(nodes, fence))
        };
        let place = known.or_else(|| claims.iter().rposition(may_have_won))?;
        claims.get_mut(place)
    }

    /// Maps the state of a lock to a state of the proof, and checks its invariants.
    pub(crate) fn judge(&mut self, name: &[u8], mut views: Vec<Option<View>>) {
        let now = Instant::now();
        for (node, view) in views.iter_mut().enumerate() {
            let Some(view) = view else { continue };
            if view.counter <= view.ceiling {
                self.brought.remove(&node);
            } else if self.brought.contains(&node) {
                view.ceiling = view.counter;
            }
        }
        let Some(claims) = self.claims.get_mut(name) else { return };
        for claim in &mut *claims {
            claim.votes.retain(|_, over_at| *over_at > now);
            claim.valid_until = claim.valid_until.filter(|until| *until > now);
        }
        let holds = |claim: &Claim| {
            views.iter().flatten().flat_map(|view| &view.leases).any(|seen| seen.id == claim.id)
        };
        // Claims that are over cannot break a promise, except by the fences of the latest.
        let matters =
            |claim: &Claim| !claim.votes.is_empty() || claim.valid_until.is_some() || holds(claim);
        let earlier = claims.len().saturating_sub(ACQUISITIONS_MAX);
        let latest = claims.split_off(earlier);
        // A deleted claim may still report its win. A late request of a writer that became a reader
        // may ask for either mode.
        let may_matter =
            |claim: &Claim| claim.is_downgraded || claim.deleted.is_some() && !claim.is_done;
        claims.retain(|claim| matters(claim) || may_matter(claim));
        claims.extend(latest);
        let mut chosen: Vec<&Claim> = claims.iter().filter(|claim| matters(claim)).collect();
        chosen.drain(..chosen.len().saturating_sub(ACQUISITIONS_MAX));
        let others = claims.iter().rev().filter(|claim| !matters(claim) && claim.won.is_some());
        chosen.extend(others.take(1.min(ACQUISITIONS_MAX - chosen.len())));
        let store = self.stores.get(name).copied().unwrap_or_default();
        let state = draw(&chosen, &views, store, self.nodes);
        let readers = those(chosen.len(), |number| chosen[number].is_reader) as u32;
        let sizes = Sizes { nodes: self.nodes, acquisitions: chosen.len(), blind: 0, readers };
        self.states += 1;
        let broken = INVARIANTS.iter().find(|(_, holds)| !holds(&state, &sizes));
        if let Some((invariant, _)) = broken {
            let text = format!("the proof's {invariant:?} fails: {chosen:x?} {views:x?}");
            self.complain(name, &text);
        }
    }

    pub(crate) fn complain(&mut self, name: &[u8], what: &str) {
        if self.complaints.is_empty() {
            self.complaints.push(format!("{}: {what}", name.escape_ascii()));
        }
    }

    fn claim(&mut self, name: &[u8], token: &[u8]) -> &mut Claim {
        let id = id(token);
        let claims = self.claims.entry(name.to_vec()).or_default();
        if let Some(place) = claims.iter().position(|claim| claim.id == id) {
            return &mut claims[place];
        }
        let is_new = !self.begun.contains_key(&id);
        let (is_done, is_reader) = *self.begun.entry(id).or_default();
        let won = claims.iter().filter(|claim| claim.won.is_some() && is_new);
        let before = won.map(|claim| claim.id).collect();
        claims.push(Claim {
            id,
            label: Vec::new(),
            is_reader,
            is_downgraded: false,
            has_written: false,
            has_read: false,
            follows: BTreeSet::new(),
            is_done,
            deleted: None,
            won: None,
            storing: 0,
            before,
            valid_until: None,
            votes: BTreeMap::new(),
            stored: BTreeSet::new(),
        });
        claims.last_mut().expect("it was just put there")
    }
}

impl Claim {
    fn is_called(&self, label: &str, fence: u64) -> bool {
        self.label == label.as_bytes() && self.won == Some(fence)
    }

    /// The nodes that store this fence, or, for a reader, a larger one.
    fn storing(&self, nodes: usize, fence: u64) -> usize {
        those(nodes, |node| match self.is_reader {
            false => self.stored.contains(&(node, fence)),
            true => self.stored.range((node, fence)..=(node, u64::MAX)).next().is_some(),
        })
    }

    /// The nodes whose votes last as long as its client relies on it.
    fn voters(&self, nodes: usize) -> usize {
        let lasts = |over_at: &Instant| self.valid_until.is_some_and(|until| *over_at >= until);
        those(nodes, |node| self.votes.get(&node).is_some_and(lasts))
    }
}

/// The proof's state of one lock, with these acquisitions. A node without a view is down.
fn draw(claims: &[&Claim], views: &[Option<View>], store: Store, nodes: usize) -> State {
    let mut state = State::new();
    state.set_highest(store.highest);
    state.set_highest_read(store.highest_read);
    for (number, view) in views.iter().enumerate() {
        let stored = claims.iter().flat_map(|claim| &claim.stored);
        let stored = stored.filter(|(node, _)| *node == number).map(|(_, fence)| *fence);
        // A node that is down will continue above everything that it has stored.
        let (counter, ceiling) = view.as_ref().map_or_else(
            || (stored.clone().max().unwrap_or(0), stored.max().unwrap_or(0)),
            |view| (view.counter, view.ceiling),
        );
        state.set_counter(number, counter);
        state.set_ceiling(number, ceiling);
        if view.as_ref().is_none_or(|view| view.is_quarantined) {
            state.set_quarantined(number);
        }
    }
    for (number, claim) in claims.iter().enumerate() {
        state.set_begun(number);
        for (node, fence) in &claim.stored {
            state.set_stored(number, *node, *fence);
        }
        for (other, earlier) in claims.iter().enumerate() {
            if earlier.won.is_some() && claim.before.contains(&earlier.id) {
                state.set_before(other, number);
            }
        }
        if let Some(fence) = claim.won {
            state.set_won(number);
            state.set_fence(number, fence);
            state.set_storing(number, claim.storing);
        }
        if claim.is_done {
            state.set_done(number);
        }
        if claim.is_downgraded {
            state.set_downgraded(number);
        }
        draw_uses(&mut state, number, claims);
        draw_rounds(&mut state, number, claim, views, nodes);
    }
    state
}

/// Maps the operations that the store has accepted from this claim, and those that they followed.
fn draw_uses(state: &mut State, number: usize, claims: &[&Claim]) {
    let claim = claims[number];
    if claim.has_written {
        state.set_wrote(number);
    }
    if claim.has_read {
        state.set_read(number);
    }
    for (other, earlier) in claims.iter().enumerate() {
        // A claim that was forgotten here and reappears counts as a new one.
        let has_used = earlier.has_written || earlier.has_read;
        if has_used && claim.follows.contains(&earlier.id) {
            state.set_followed(number, other);
        }
    }
}

/// Maps the rounds of a claim: what its client relies on, the votes, and the unused rounds.
fn draw_rounds(
    state: &mut State,
    number: usize,
    claim: &Claim,
    views: &[Option<View>],
    nodes: usize,
) {
    let voters = claim.voters(nodes);
    let [relied_on, voted, rest @ ..] =
        std::array::from_fn::<_, ROUNDS, _>(|r| number * ROUNDS + r);
    if claim.valid_until.is_some() {
        state.set_confirmed(relied_on);
        state.set_voters(relied_on, voters);
    } else {
        state.set_over(relied_on);
    }
    if claim.votes.is_empty() {
        state.set_over(voted);
    }
    rest.into_iter().for_each(|round| state.set_over(round));
    for (node, view) in views.iter().enumerate() {
        let mut leases = view.iter().flat_map(|view| &view.leases);
        let lease = leases.find(|seen| seen.id == claim.id);
        let counts = lease.is_some_and(|seen| !seen.is_provisional);
        if let Some(seen) = lease {
            state.set_holds(node, number);
            if seen.is_exclusive {
                state.set_exclusive(node, number);
            }
            if seen.is_provisional {
                state.set_provisional(node, number);
            }
        }
        let is_voter = voters >> node & 1 != 0;
        let rounds = [(relied_on, is_voter), (voted, claim.votes.contains_key(&node))];
        for (round, _) in rounds.into_iter().filter(|(_, vouches)| *vouches) {
            if counts {
                state.set_rests(node, round);
            } else {
                state.set_forgot(node, round);
            }
        }
    }
}

pub(crate) fn id(token: &[u8]) -> Id {
    token.iter().take(8).fold(0, |id, byte| id << 8 | Id::from(*byte))
}

/// The validity of a round, counted from its arrival, by the slowest possible clock.
fn longest_validity(ttl: Millis) -> Duration {
    let counted: Duration = ttl.saturating_sub(Terms::new(ttl).drift).into();
    counted.mul_f64(1e6 / (1e6 - FAST_PPM_MAX as f64))
}
