//! One attempt at a lock: what the nodes were asked, and what they have answered.
//!
//! The decisions are [`Attempt`]'s; here its steps are carried out. Whatever happens between the
//! first ACQUIRE and the guard, a cancelled future included, [`Pending`] takes everything back: its
//! destructor sends the releases, which travel behind the acquires.

use std::collections::VecDeque;
use std::pin::Pin;

use super::core::{Core, count};
use super::inbox::{Arrival, Inbox};
use super::outset::{ACQUIRE, ACQUIRE_PLAIN, Asking, Outset, RAISE};
use super::packet::{Packet, TOKEN_LENGTH};
use super::reading::{acquire_vote, raise_vote};
use super::vote::Vote;
use super::waiter::Waiter;
use super::world::{earliest, latest};
use crate::engine::{
    Answer, Attempt, Fence, Harvest, Instant, Loss, Millis, Mode, NodeSet, PublishedGrant, Step,
    Terms,
};

/// An attempt under way. Its fields are dropped in this order: the releases are sent before the
/// answers are given up.
pub(super) struct Ballot<'a, 'w> {
    pending: Pending<'a>,
    inbox: Inbox,
    attempt: Attempt,
    started_at: Instant,
    /// When it began: earlier leases may count, that were asked for before.
    began_at: Instant,
    waiter: Option<&'w mut Waiter<'a>>,
    /// One for each node, once the first has voted.
    votes: Vec<Option<Vote>>,
    /// Who was asked to raise the fence, and has not answered that.
    raising: NodeSet,
    is_timed_out: bool,
    /// What is to be done before any answer.
    steps: VecDeque<Step>,
}

impl<'a, 'w> Ballot<'a, 'w> {
    /// Asks all nodes, with a fresh token.
    pub(super) fn open(
        core: &'a Core,
        name: &'a [u8],
        (terms, mode): (Terms, Mode),
        label: &[u8],
        mut waiter: Option<&'w mut Waiter<'a>>,
    ) -> Ballot<'a, 'w> {
        let (ttl, now) = (terms.ttl, earliest(&core.world));
        let (token, opening) = match &mut waiter {
            Some(waiter) => waiter.begin(now),
            None => {
                let token = core.token();
                let packet = Packet::acquire(name, &token, (ttl, mode), label);
                (token, Outset::Ask(Asking::all(packet)))
            }
        };
        let inbox = Inbox::new(core.quorum.nodes());
        let started_at = match &opening {
            Outset::Ask(_) => now,
            Outset::Granted(harvest) => harvest.started_at,
        };
        let attempt =
            Attempt::new(core.quorum, terms, started_at).at(core.world.wall()).asking(mode);
        let mut ballot = Ballot {
            pending: Pending { core, name, token, ttl, is_armed: true },
            inbox,
            attempt,
            started_at,
            began_at: now,
            waiter,
            votes: Vec::new(),
            raising: NodeSet::EMPTY,
            is_timed_out: false,
            steps: VecDeque::new(),
        };
        match opening {
            Outset::Ask(asking) => ballot.ask(&asking),
            Outset::Granted(harvest) => ballot.reap(&harvest),
        }
        ballot
    }

    /// Counts what nodes have granted by themselves.
    fn reap(&mut self, harvest: &Harvest) {
        let core = self.pending.core;
        self.votes.resize(core.quorum.nodes(), None);
        for &PublishedGrant { node, server, fence, .. } in &harvest.grants {
            let vote = Vote::Granted(fence);
            self.inbox.answered_by(node, server);
            core.metrics.voted(node, &vote);
            self.votes[node] = Some(vote);
            let now = latest(&core.world);
            match self.attempt.answer(node, Answer::Granted(fence), now) {
                Step::Wait => {}
                step => self.steps.push_back(step),
            }
        }
    }

    /// Sends the acquire. Those that have called come first: they are the ones that will grant.
    fn ask(&self, asking: &Asking) {
        let core = self.pending.core;
        count(&core.counters.attempts);
        let bell = self.waiter.as_ref().and_then(|waiter| waiter.bell());
        let called = self.waiter.as_ref().map_or(NodeSet::EMPTY, |waiter| waiter.called());
        let others = core.quorum.all().without(called);
        for node in called.iter().chain(others.iter()) {
            let (packet, request) = asking.of(node);
            let reply_to = self.inbox.reply_to(node, request).before(bell);
            core.world.send(node, packet, Some(reply_to));
        }
    }

    /// Waits for the next answer, or for the timer. What is to be done then.
    pub(super) async fn next(&mut self, timer: Pin<&mut impl Future<Output = ()>>) -> Step {
        if let Some(step) = self.steps.pop_front() {
            return step;
        }
        match self.inbox.next(timer).await {
            None => self.time_out(),
            Some(arrival) if arrival.request == RAISE => self.raised(arrival),
            Some(arrival) if self.asks_plainly(&arrival) => Step::Wait,
            Some(arrival) => {
                let (node, now) = (arrival.node, latest(&self.pending.core.world));
                let answer = self.note_vote(arrival);
                self.attempt.answer(node, answer, now)
            }
        }
    }

    /// Asks an older node again, which has refused what it does not know, without that.
    fn asks_plainly(&self, arrival: &Arrival) -> bool {
        let Some(waiter) = &self.waiter else { return false };
        let Some(packet) = waiter.plainly(arrival, &self.pending.token) else { return false };
        let reply_to = self.inbox.reply_to(arrival.node, ACQUIRE_PLAIN).before(waiter.bell());
        self.pending.core.world.send(arrival.node, &packet, Some(reply_to));
        true
    }

    fn time_out(&mut self) -> Step {
        let core = self.pending.core;
        if !std::mem::replace(&mut self.is_timed_out, true) {
            core.metrics.timed_out(core.quorum.nodes(), &self.votes);
        }
        self.attempt.time_out(latest(&core.world))
    }

    /// A node has answered the raise.
    fn raised(&mut self, arrival: Arrival) -> Step {
        let now = latest(&self.pending.core.world);
        let vote = arrival.outcome.map_or_else(Vote::from, |reply| raise_vote(&reply));
        self.raising = self.raising.without(NodeSet::of(arrival.node));
        let answer = vote.raise_answer();
        // Where that failed, the grant is not what matters.
        if !matches!(vote, Vote::Granted(_)) {
            self.votes[arrival.node] = Some(vote);
        }
        self.attempt.raise_answer(arrival.node, answer, now)
    }

    /// A node has answered the acquire.
    fn note_vote(&mut self, arrival: Arrival) -> Answer {
        let core = self.pending.core;
        let Arrival { node, request, outcome } = arrival;
        let mut vote = outcome.map_or_else(Vote::from, |reply| acquire_vote(&reply));
        if let Some(waiter) = &mut self.waiter {
            vote = waiter.answered(node, vote, request == ACQUIRE);
        }
        let answer = vote.answer();
        core.metrics.voted(node, &vote);
        self.votes.resize(core.quorum.nodes(), None);
        self.votes[node] = Some(vote);
        answer
    }

    /// Raises the fence at these nodes.
    pub(super) fn raise(&mut self, fence: Fence, nodes: NodeSet) {
        self.raising = self.raising.or(nodes);
        let Pending { core, name, token, .. } = &self.pending;
        count(&core.counters.raised);
        let raise = Packet::raise(name, token, fence);
        for node in nodes.iter() {
            core.world.send(node, &raise, Some(self.inbox.reply_to(node, RAISE)));
        }
    }

    pub(super) const fn has_no_grant(&self) -> bool {
        self.attempt.granted().is_empty()
    }

    /// The attempt is won: its token, and when it began.
    pub(super) fn won(mut self) -> Won {
        self.pending.is_armed = false;
        // Acquires that are not sent yet still are: the more nodes hold the lease, the better it
        // outlives crashes.
        self.inbox.keep_sending();
        let Ballot { started_at, began_at, .. } = self;
        Won { token: self.pending.token, started_at, began_at }
    }

    /// Reads the answers of nodes that had not answered when the attempt was lost: the verdict
    /// counts them, and where they have put the ticket in line, nothing more has to be sent.
    /// Nobody is kept waiting by it, as long as no node has granted.
    pub(super) async fn hear_stragglers(&mut self, mut timer: Pin<&mut impl Future<Output = ()>>) {
        self.votes.resize(self.pending.core.quorum.nodes(), None);
        while self.votes.iter().any(Option::is_none) {
            let Some(arrival) = self.inbox.next(timer.as_mut()).await else { return };
            let node = arrival.node;
            let _ = self.note_vote(arrival);
            if matches!(self.votes[node], Some(Vote::Granted(_))) {
                return;
            }
        }
    }

    /// The attempt is lost.
    pub(super) fn lost(mut self, loss: Loss) -> LostAttempt<'a> {
        self.votes.resize(self.pending.core.quorum.nodes(), None);
        for node in self.raising.iter().filter(|_| self.is_timed_out) {
            self.votes[node] = None;
        }
        let silent = silent(&self.votes, self.is_timed_out);
        let (votes, is_timed_out) = (self.votes, self.is_timed_out);
        let late = Some(self.inbox);
        LostAttempt { loss, votes, is_timed_out, silent, late, pending: self.pending }
    }
}

/// What an attempt that is won leaves.
pub(super) struct Won {
    pub(super) token: [u8; TOKEN_LENGTH],
    /// From when on the leases may be counted.
    pub(super) started_at: Instant,
    /// When the attempt began.
    pub(super) began_at: Instant,
}

/// What is left of a lost attempt: it is abandoned when this is dropped.
pub(super) struct LostAttempt<'a> {
    pub(super) loss: Loss,
    pub(super) votes: Vec<Option<Vote>>,
    /// Whether the time to answer was over.
    pub(super) is_timed_out: bool,
    /// Who did not answer, although it was waited for.
    pub(super) silent: NodeSet,
    /// Where answers come that are late.
    pub(super) late: Option<Inbox>,
    pub(super) pending: Pending<'a>,
}

impl LostAttempt<'_> {
    /// Whether the token is to be given back: a node has granted, or has refused it in another way
    /// than because the lock is held, and then has not put a ticket in line. Otherwise nothing has
    /// to be taken back: one whose answer is still to come puts the ticket in line, or grants.
    pub(super) fn is_to_be_released(&self) -> bool {
        let leaves_it =
            |vote: &Vote| matches!(vote, Vote::Held { .. } | Vote::TimedOut | Vote::Unreachable(_));
        !self.votes.iter().flatten().all(leaves_it)
    }
}

/// An attempt that is not won: its destructor abandons it on all nodes.
pub(super) struct Pending<'a> {
    core: &'a Core,
    name: &'a [u8],
    pub(super) token: [u8; TOKEN_LENGTH],
    ttl: Millis,
    pub(super) is_armed: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            self.core.tell_all(&Packet::release(self.name, &self.token, self.ttl));
        }
    }
}

/// The nodes of which nothing can be known: no answer in time, or none that made sense. An answer
/// that was not waited for any more says nothing against its node.
fn silent(votes: &[Option<Vote>], is_timed_out: bool) -> NodeSet {
    let is_silent = |vote: &Option<Vote>| match vote {
        Some(vote) => vote.answer() == Answer::Unknown,
        None => is_timed_out,
    };
    let nodes = votes.iter().enumerate().filter(|(_, vote)| is_silent(vote));
    nodes.fold(NodeSet::EMPTY, |nodes, (node, _)| nodes.or(NodeSet::of(node)))
}
