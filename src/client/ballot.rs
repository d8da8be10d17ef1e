//! One attempt at a lock: the requests to the nodes, and their answers.
//!
//! [`Attempt`] decides; this file carries out its steps. Whatever happens between the first ACQUIRE
//! and the guard, a cancelled future included, [`Pending`] undoes everything: its destructor sends
//! the releases, which travel behind the acquires.

use std::collections::VecDeque;
use std::pin::Pin;

use super::core::{Core, count};
use super::inbox::{Arrival, Inbox, RequestKind};
use super::outset::{Asking, Outset};
use super::packet::{Packet, TOKEN_LENGTH};
use super::reading::{acquire_vote, raise_vote};
use super::vote::Vote;
use super::waiter::Waiter;
use super::world::{earliest, latest};
use crate::engine::{
    Answer, Attempt, Fence, Harvest, Instant, Loss, Millis, Mode, NodeSet, PublishedGrant, Step,
    Terms,
};

/// An attempt in progress. Its fields are dropped in this order, so the releases are sent before
/// the inbox is closed.
pub(super) struct Ballot<'a, 'w> {
    pending: Pending<'a>,
    inbox: Inbox,
    attempt: Attempt,
    started_at: Instant,
    /// When the attempt began: after `started_at` if it counts leases that were requested before.
    began_at: Instant,
    waiter: Option<&'w mut Waiter<'a>>,
    /// One for each node, once the first has voted.
    votes: Vec<Option<Vote>>,
    /// The nodes that were asked to raise the fence and have not answered yet.
    raising: NodeSet,
    is_timed_out: bool,
    /// Steps to carry out before reading any answer.
    steps: VecDeque<Step>,
}

impl<'a, 'w> Ballot<'a, 'w> {
    /// Asks all nodes, with a fresh token or the waiter's present one; or counts the grants that a
    /// quorum has already published to the waiter.
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

    /// Counts the grants that nodes have published to the ticket.
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

    /// Sends the acquire, first to the nodes that have woken the waiter, because those will grant
    /// it.
    fn ask(&self, asking: &Asking) {
        let core = self.pending.core;
        count(&core.counters.attempts);
        let bell = self.waiter.as_ref().and_then(|waiter| waiter.bell());
        let woken = self.waiter.as_ref().map_or(NodeSet::EMPTY, |waiter| waiter.woken());
        let others = core.quorum.all().without(woken);
        for node in woken.iter().chain(others.iter()) {
            let (packet, request) = asking.of(node);
            let reply_to = self.inbox.reply_to(node, request).before(bell);
            core.world.send(node, packet, Some(reply_to));
        }
    }

    /// Waits for the next answer or for the timer, and returns the next step.
    pub(super) async fn next(&mut self, timer: Pin<&mut impl Future<Output = ()>>) -> Step {
        if let Some(step) = self.steps.pop_front() {
            return step;
        }
        match self.inbox.next(timer).await {
            None => self.time_out(),
            Some(arrival) if arrival.request == RequestKind::Raise => self.raised(arrival),
            Some(arrival) if self.asks_plainly(&arrival) => Step::Wait,
            Some(arrival) => {
                let (node, now) = (arrival.node, latest(&self.pending.core.world));
                let answer = self.note_vote(arrival);
                self.attempt.answer(node, answer, now)
            }
        }
    }

    /// If an older node has refused an option that it does not know, asks it again without the
    /// option.
    fn asks_plainly(&self, arrival: &Arrival) -> bool {
        let Some(waiter) = &self.waiter else { return false };
        let Some(packet) = waiter.plainly(arrival, &self.pending.token) else { return false };
        let reply_to =
            self.inbox.reply_to(arrival.node, RequestKind::AcquirePlain).before(waiter.bell());
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
        // If the raise failed, that matters more than the grant.
        if !matches!(vote, Vote::Granted(_)) {
            self.votes[arrival.node] = Some(vote);
        }
        self.attempt.raise_answer(arrival.node, answer, now)
    }

    /// A node has answered the acquire.
    fn note_vote(&mut self, arrival: Arrival) -> Answer {
        let core = self.pending.core;
        let Arrival { node, request, outcome, .. } = arrival;
        let mut vote = outcome.map_or_else(Vote::from, |reply| acquire_vote(&reply));
        if let Some(waiter) = &mut self.waiter {
            vote = waiter.answered(node, vote, request == RequestKind::Acquire);
        }
        let answer = vote.answer();
        // After the time-out, a node that answers was counted as one that had not.
        if !self.is_timed_out {
            core.metrics.voted(node, &vote);
        }
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
            core.world.send(node, &raise, Some(self.inbox.reply_to(node, RequestKind::Raise)));
        }
    }

    pub(super) const fn has_no_grant(&self) -> bool {
        self.attempt.granted().is_empty()
    }

    /// Ends a won attempt.
    pub(super) fn won(mut self) -> Won {
        self.pending.is_armed = false;
        // Acquires still in the queue are sent too: the more nodes hold the lease, the better it
        // survives crashes.
        self.inbox.keep_sending();
        let Ballot { started_at, began_at, .. } = self;
        Won { token: self.pending.token, started_at, began_at }
    }

    /// Reads the answers of nodes that had not answered when the attempt was lost: the verdict
    /// counts them, and a node that has put the ticket in line needs no further command. As long as
    /// no node has granted, this delays no other client.
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

    /// Ends a lost attempt.
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

/// What is left of a won attempt.
pub(super) struct Won {
    pub(super) token: [u8; TOKEN_LENGTH],
    /// The instant from which the leases count.
    pub(super) started_at: Instant,
    /// When the attempt began.
    pub(super) began_at: Instant,
}

/// What is left of a lost attempt: it is abandoned when this is dropped.
pub(super) struct LostAttempt<'a> {
    pub(super) loss: Loss,
    pub(super) votes: Vec<Option<Vote>>,
    /// Whether the time to answer had run out.
    pub(super) is_timed_out: bool,
    /// The nodes that were waited for and gave no usable answer.
    pub(super) silent: NodeSet,
    /// Where late answers arrive.
    pub(super) late: Option<Inbox>,
    pub(super) pending: Pending<'a>,
}

impl LostAttempt<'_> {
    /// Whether the token must be released: a node has granted it, or has refused it for a reason
    /// other than a held lock and so has not put the ticket in line. Otherwise there is nothing to
    /// undo: a node that has yet to answer will put the ticket in line, or grant.
    pub(super) fn is_to_be_released(&self) -> bool {
        let leaves_it =
            |vote: &Vote| matches!(vote, Vote::Held { .. } | Vote::TimedOut | Vote::Unreachable(_));
        !self.votes.iter().flatten().all(leaves_it)
    }
}

/// An attempt that is not won yet: its destructor abandons it on all nodes.
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

/// The nodes with no answer in time, or none that made sense. If an attempt stopped waiting before
/// the time was over, a missing answer does not count against its node.
fn silent(votes: &[Option<Vote>], is_timed_out: bool) -> NodeSet {
    let is_silent = |vote: &Option<Vote>| match vote {
        Some(vote) => vote.answer() == Answer::Unknown,
        None => is_timed_out,
    };
    let nodes = votes.iter().enumerate().filter(|(_, vote)| is_silent(vote));
    nodes.fold(NodeSet::EMPTY, |nodes, (node, _)| nodes.or(NodeSet::of(node)))
}
