//! What all parts of the client share: the world, the settings, and asking all nodes at once.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::calendar::Calendar;
use super::contended::Contended;
use super::inbox::{Inbox, RequestKind};
use super::keeper::Keeper;
use super::metrics::Metrics;
use super::packet::{Packet, TOKEN_LENGTH};
use super::settings::Settings;
use super::vote::{NodeReport, Vote};
use super::world::AnyWorld;
use crate::engine::{NodeSet, Quorum};
use crate::wire::resp::Reply;

/// What a locker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Attempts that asked all nodes.
    pub attempts: u64,
    /// Attempts that had to raise fences because the nodes' counters differed, and so needed two
    /// round trips.
    pub raised: u64,
    /// Locks acquired.
    pub acquired: u64,
}

/// How long a lost attempt waits for the last answers, which may save commands, and a lease that is
/// lost, for the votes in its error.
pub(super) const STRAGGLERS: Duration = Duration::from_millis(2);
/// The pause before a command is sent again after its connection broke.
const AGAIN: Duration = Duration::from_millis(10);
/// Enough for commands to be written, to nodes from which no answer is expected.
const MOMENT: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) attempts: AtomicU64,
    pub(super) raised: AtomicU64,
    pub(super) acquired: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            attempts: read(&self.attempts),
            raised: read(&self.raised),
            acquired: read(&self.acquired),
        }
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(super) struct Core {
    pub(super) world: Arc<AnyWorld>,
    pub(super) quorum: Quorum,
    pub(super) settings: Settings,
    pub(super) keeper: Arc<Keeper>,
    pub(super) counters: Counters,
    pub(super) metrics: Metrics,
    pub(super) contended: Contended,
    pub(super) calendar: Calendar,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker").field("nodes", &self.world).finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(world: AnyWorld, quorum: Quorum, settings: Settings) -> Core {
        let world = Arc::new(world);
        let keeper = Keeper::new(Arc::clone(&world));
        let metrics = Metrics::new(world.nodes());
        let (counters, contended) = (Counters::default(), Contended::default());
        let calendar = Calendar::default();
        Core { world, quorum, settings, keeper, counters, metrics, contended, calendar }
    }

    /// An unguessable token, for one acquisition.
    pub(super) fn token(&self) -> [u8; TOKEN_LENGTH] {
        let mut token = [0; TOKEN_LENGTH];
        self.world.fill(&mut token);
        token
    }

    /// Sends `packet` to all nodes; the replies come to `inbox` as those to this kind of request.
    pub(super) fn send_all(&self, packet: &Packet, inbox: &Inbox, request: RequestKind) {
        for node in 0..self.quorum.nodes() {
            self.world.send(node, packet, Some(inbox.reply_to(node, request)));
        }
    }

    /// Sends `packet` to all nodes without waiting for replies.
    pub(super) fn tell_all(&self, packet: &Packet) {
        for node in 0..self.quorum.nodes() {
            self.world.send(node, packet, None);
        }
    }

    /// Reads the answers to a command that was sent to all nodes, until `is_enough`, for at most
    /// `timeout`. The outcomes are in the order of the nodes; `None` means no answer.
    ///
    /// # Cancellation
    /// What was sent stays sent.
    pub(super) async fn collect<T>(
        &self,
        inbox: &Inbox,
        timeout: Duration,
        read: impl Fn(&Reply) -> Result<T, Vote>,
        is_enough: impl Fn(&[Option<Result<T, Vote>>]) -> bool,
    ) -> Vec<Option<Result<T, Vote>>> {
        let mut outcomes: Vec<Option<Result<T, Vote>>> = Vec::new();
        outcomes.resize_with(self.quorum.nodes(), || None);
        let mut timer = pin!(self.world.sleep(timeout));
        let mut missing = self.quorum.nodes();
        while missing > 0 && !is_enough(&outcomes) {
            let Some(delivery) = inbox.next(timer.as_mut()).await else { break };
            let outcome = match delivery.outcome {
                Ok(reply) => read(&reply),
                Err(failure) => Err(failure.into()),
            };
            if outcomes[delivery.node].replace(outcome).is_none() {
                missing -= 1;
            }
        }
        outcomes
    }

    /// Sends `packet` to all nodes and reads a vote from each until `is_enough`.
    pub(super) async fn poll_votes(
        &self,
        packet: &Packet,
        read: impl Fn(&Reply) -> Vote,
        is_enough: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vote> {
        let inbox = Inbox::new(self.quorum.nodes());
        self.send_all(packet, &inbox, RequestKind::Only);
        self.votes(&inbox, read, is_enough).await
    }

    /// Sends `packet` to all nodes and waits until each has answered, whatever it says, for at most
    /// the timeout. If a connection breaks and the node `is_worth` it, sends the packet to it
    /// again. Nodes that are not `awaited` have only [`MOMENT`] to answer.
    pub(super) async fn insist(
        &self,
        packet: &Packet,
        awaited: NodeSet,
        is_worth: impl Fn(usize) -> bool,
    ) -> Vec<Vote> {
        let nodes = self.quorum.nodes();
        let inbox = Inbox::new(nodes);
        self.send_all(packet, &inbox, RequestKind::Only);
        let (mut votes, mut missing) = (vec![Vote::TimedOut; nodes], self.quorum.all());
        let (started_at, timeout) = (self.world.now(), self.settings.plan.timeout);
        let mut again = NodeSet::EMPTY;
        while !missing.or(again).is_empty() {
            let is_awaited = !missing.or(again).and(awaited).is_empty();
            let ends_at = started_at + if is_awaited { timeout } else { MOMENT.min(timeout) };
            let left = ends_at.saturating_sub(self.world.now());
            if left.is_zero() {
                break;
            }
            let pause = if again.is_empty() { left } else { AGAIN.min(left) };
            let mut timer = pin!(self.world.sleep(pause));
            let Some(arrival) = inbox.next(timer.as_mut()).await else {
                for node in again.iter() {
                    self.world.send(node, packet, Some(inbox.reply_to(node, RequestKind::Only)));
                }
                (missing, again) = (missing.or(again), NodeSet::EMPTY);
                continue;
            };
            let node = arrival.node;
            let vote = arrival.outcome.map_or_else(Vote::from, |_| Vote::Confirmed);
            missing = missing.without(NodeSet::of(node));
            if matches!(vote, Vote::Unreachable(_) | Vote::TimedOut) && is_worth(node) {
                again.insert(node);
            }
            votes[node] = vote;
        }
        votes
    }

    /// Reads a vote from each node until `is_enough`, given how many have confirmed and how many
    /// have answered.
    pub(super) async fn votes(
        &self,
        inbox: &Inbox,
        read: impl Fn(&Reply) -> Vote,
        is_enough: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vote> {
        let outcomes = self
            .collect(
                inbox,
                self.settings.plan.timeout,
                |reply| Ok(read(reply)),
                |outcomes| {
                    let confirmed = |outcome: &&Option<Result<Vote, Vote>>| {
                        matches!(outcome, Some(Ok(Vote::Confirmed | Vote::Granted(_))))
                    };
                    let answered = outcomes.iter().flatten().count();
                    is_enough(outcomes.iter().filter(confirmed).count(), answered)
                },
            )
            .await;
        let vote = |outcome: Option<Result<Vote, Vote>>| match outcome {
            Some(Ok(vote) | Err(vote)) => vote,
            None => Vote::TimedOut,
        };
        outcomes.into_iter().map(vote).collect()
    }

    /// The votes about the lock `name`, with the names of their nodes.
    pub(super) fn reports(&self, name: &[u8], votes: Vec<Vote>) -> Vec<NodeReport> {
        let report = |(node, vote): (usize, Vote)| {
            let vote = if vote == Vote::TimedOut { self.world.silence(node) } else { vote };
            NodeReport {
                master: self.voter(node, name, Some(&vote)),
                ..NodeReport::new(Arc::clone(&self.world.nodes()[node]), vote)
            }
        };
        votes.into_iter().enumerate().map(report).collect()
    }

    /// Which master has given a vote about the lock `name`, or an answer that is none, if that is
    /// known: the one that the vote names, or that was asked last.
    pub(super) fn voter(&self, node: usize, name: &[u8], vote: Option<&Vote>) -> Option<Arc<str>> {
        vote.and_then(Vote::its_master).or_else(|| self.world.last_asked(node, name))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.keeper.close();
    }
}
