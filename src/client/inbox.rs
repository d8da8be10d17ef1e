//! Where the replies to one round of requests arrive: one allocation for all nodes.
//!
//! The requests of a round go out at once and their replies come in any order, from other tasks.
//! Whoever asked reads them from an [`Inbox`]; whoever answers holds a [`ReplyTo`]. A closed inbox
//! tells the sending side that nobody waits any more.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::reading::has_no_place;
use super::vote::Vote;
use super::wakes::Bell;
use crate::engine::NODES_MAX;
use crate::wire::resp::Reply;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// The node could not be reached, or the connection broke before the reply.
    Unreachable(Arc<str>),
    /// The node sent something that is not a reply.
    Garbled(Arc<str>),
    /// The node did not let the user of the URL in.
    NoPermission(Arc<str>),
    /// The node is there and does not serve at present.
    Unavailable(Arc<str>),
    /// One side refused the other's certificate.
    Refused(Arc<str>),
}

impl NoReply {
    /// The same, with where that was.
    pub(super) fn at(self, place: impl fmt::Display) -> NoReply {
        let with = |text: Arc<str>| Arc::from(format!("{place}: {text}"));
        match self {
            NoReply::Unreachable(text) => NoReply::Unreachable(with(text)),
            NoReply::Garbled(text) => NoReply::Garbled(with(text)),
            NoReply::NoPermission(text) => NoReply::NoPermission(with(text)),
            NoReply::Unavailable(text) => NoReply::Unavailable(with(text)),
            NoReply::Refused(text) => NoReply::Refused(with(text)),
        }
    }
}

/// Of several reasons the one that somebody has to do something about; of silence all.
pub(super) fn most_telling(failures: Vec<NoReply>, silence: &str) -> NoReply {
    let (mut silent, mut rest) = (Vec::new(), Vec::new());
    for failure in failures {
        match failure {
            NoReply::Unreachable(text) => silent.push(text),
            failure => rest.push(failure),
        }
    }
    let is_refused = |failure: &NoReply| matches!(failure, NoReply::Refused(_));
    let at = rest.iter().position(is_refused).unwrap_or(0);
    if rest.is_empty() {
        return NoReply::Unreachable(format!("{silence}: {}", silent.join("; ")).into());
    }
    rest.swap_remove(at)
}

impl From<NoReply> for Vote {
    fn from(failure: NoReply) -> Vote {
        match failure {
            NoReply::Unreachable(text) => Vote::Unreachable(text),
            NoReply::Garbled(text) => Vote::Garbled(text),
            NoReply::NoPermission(text) => Vote::NoPermission(text),
            NoReply::Unavailable(text) => Vote::Unavailable(text),
            NoReply::Refused(text) => Vote::Refused(text),
        }
    }
}

/// One reply, or why there is none.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Which node.
    pub(super) node: usize,
    /// Which of the requests of this round: the number given to [`Inbox::reply_to`].
    pub(super) request: u8,
    /// What it said.
    pub(super) outcome: Result<Reply, NoReply>,
}

/// What a server calls itself, from its start to its end; of its random name only so much that two
/// servers are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerId(NonZeroU64);

impl ServerId {
    /// By the name that the server gave.
    pub(super) fn of(run_id: &str) -> Option<ServerId> {
        let mut hasher = DefaultHasher::new();
        run_id.hash(&mut hasher);
        NonZeroU64::new(hasher.finish()).map(ServerId)
    }

    /// A number that no other server has.
    pub(super) const fn number(self) -> NonZeroU64 {
        self.0
    }
}

/// Why a vote does not count that is a server's second one.
pub(crate) const SAME_SERVER: &str = "the same server as another node: remove one";
const OTHER_SERVER: &str = "another server answers there than a moment ago";

#[derive(Debug, Default)]
struct Arrivals {
    arrived: VecDeque<Arrival>,
    /// Which server has answered for each node, in this round.
    servers: [Option<ServerId>; NODES_MAX],
    waker: Option<Waker>,
    is_closed: bool,
    keeps_sending: bool,
}

/// The reading side. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Mutex<Arrivals>>);

/// The writing side: where one node's reply to one request goes.
#[derive(Debug)]
pub struct ReplyTo {
    state: Arc<Mutex<Arrivals>>,
    node: usize,
    request: u8,
    bad_only: bool,
    /// Whether the reply is a vote, of which a server has one in a round.
    is_vote: bool,
    bell: Option<Arc<Bell>>,
    /// Of a command to one server of several, which is no vote.
    is_direct: bool,
    /// Of a command to all servers of a node: the last answer is theirs.
    fan: Option<Arc<Mutex<Fan>>>,
}

/// The answers of several servers that are one node's.
#[derive(Debug)]
struct Fan {
    missing: usize,
    failure: Option<NoReply>,
}

impl Arrivals {
    /// Notes who answers for `node`.
    ///
    /// # Errors
    /// If the answer does not count.
    fn note(&mut self, node: usize, server: ServerId) -> Result<(), &'static str> {
        match self.servers.get(node).copied().flatten() {
            Some(known) if known == server => return Ok(()),
            Some(_) => return Err(OTHER_SERVER),
            None if self.servers.contains(&Some(server)) => return Err(SAME_SERVER),
            None => {}
        }
        if let Some(known) = self.servers.get_mut(node) {
            *known = Some(server);
        }
        Ok(())
    }
}

fn lock(state: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    // Nothing panics while the lock is held, so the state is whole even if it is poisoned.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// An inbox with room for `capacity` replies before it has to grow.
    pub(super) fn new(capacity: usize) -> Inbox {
        let arrived = VecDeque::with_capacity(capacity);
        Inbox(Arc::new(Mutex::new(Arrivals { arrived, ..Arrivals::default() })))
    }

    /// Says that what was sent is still wanted, though nobody will read the rest of the replies.
    pub(super) fn keep_sending(&self) {
        lock(&self.0).keeps_sending = true;
    }

    /// Where `node`'s reply to `request` shall go.
    pub(super) fn reply_to(&self, node: usize, request: u8) -> ReplyTo {
        let state = Arc::clone(&self.0);
        let (bad_only, is_vote, is_direct) = (false, true, false);
        ReplyTo { state, node, request, bad_only, is_vote, bell: None, is_direct, fan: None }
    }

    /// The same for a command to one server of several, which is no vote.
    pub(super) fn direct_reply_to(&self, node: usize) -> ReplyTo {
        ReplyTo { is_direct: true, ..self.reply_to(node, 0) }
    }

    /// The same for what puts a ticket in line, which is no vote: the inbox outlives connections.
    pub(super) fn place_at(&self, node: usize, request: u8) -> ReplyTo {
        ReplyTo { is_vote: false, ..self.reply_to(node, request) }
    }

    /// The same where the reply matters only if it says that the ticket does not stand there, or
    /// does not come.
    pub(super) fn bad_news_to(&self, node: usize, request: u8) -> ReplyTo {
        ReplyTo { bad_only: true, ..self.place_at(node, request) }
    }

    /// Notes which server has answered for `node`, where its answer came in another way.
    pub(super) fn answered_by(&self, node: usize, server: Option<NonZeroU64>) {
        if let Some(known) = lock(&self.0).servers.get_mut(node) {
            *known = server.map(ServerId);
        }
    }

    /// The next reply; `None` if `timer` is over first.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn next(
        &self,
        mut timer: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<Arrival> {
        poll_fn(|ctx| match self.poll_next(ctx) {
            Poll::Ready(arrival) => Poll::Ready(Some(arrival)),
            Poll::Pending => timer.as_mut().poll(ctx).map(|()| None),
        })
        .await
    }

    /// The next reply.
    pub(super) fn poll_next(&self, ctx: &mut Context<'_>) -> Poll<Arrival> {
        let mut state = lock(&self.0);
        match state.arrived.pop_front() {
            Some(arrival) => Poll::Ready(arrival),
            None => {
                let is_known = state.waker.as_ref().is_some_and(|w| w.will_wake(ctx.waker()));
                if !is_known {
                    state.waker = Some(ctx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        lock(&self.0).is_closed = true;
    }
}

impl ReplyTo {
    /// Whether nobody waits for this reply any more, nor wants the command to be carried out.
    pub fn is_withdrawn(&self) -> bool {
        let state = lock(&self.state);
        state.is_closed && !state.keeps_sending
    }

    /// Whatever the node has said to the bell before this reply is out of date with it.
    pub(super) fn before(self, bell: Option<&Arc<Bell>>) -> ReplyTo {
        ReplyTo { bell: bell.map(Arc::clone), ..self }
    }

    pub(super) const fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The same for so many servers: when all have answered, one answer is handed over.
    pub(super) fn split(self, count: usize) -> Vec<ReplyTo> {
        let fan = Arc::new(Mutex::new(Fan { missing: count, failure: None }));
        let one = || ReplyTo {
            state: Arc::clone(&self.state),
            node: self.node,
            request: self.request,
            bad_only: self.bad_only,
            is_vote: self.is_vote,
            bell: None,
            is_direct: true,
            fan: Some(Arc::clone(&fan)),
        };
        (0..count).map(|_| one()).collect()
    }

    /// The answer of all servers, if this is the last one's.
    fn gathered(&self, outcome: Result<Reply, NoReply>) -> Option<Result<Reply, NoReply>> {
        let Some(fan) = &self.fan else { return Some(outcome) };
        // Nothing panics while the lock is held, so it is whole even if it is poisoned.
        let mut fan = fan.lock().unwrap_or_else(PoisonError::into_inner);
        fan.missing = fan.missing.saturating_sub(1);
        if let (Err(failure), None) = (&outcome, &fan.failure) {
            fan.failure = Some(failure.clone());
        }
        let failure = fan.failure.clone();
        (fan.missing == 0).then(|| failure.map_or(outcome, Err))
    }

    /// Hands over the reply.
    pub fn deliver(self, outcome: Result<Reply, NoReply>) {
        self.deliver_from(None, outcome);
    }

    /// Hands over the reply of this server, as far as it is known which it is.
    ///
    /// Here it is decided that a server has one vote in a round, whatever leads to it: an address
    /// may lead to another server than it should, and the connection that the same server has
    /// answered before may be broken by now.
    pub(super) fn deliver_from(self, server: Option<ServerId>, outcome: Result<Reply, NoReply>) {
        if let Some(bell) = &self.bell {
            bell.silence(self.node);
        }
        let Some(outcome) = self.gathered(outcome) else { return };
        if self.bad_only && matches!(outcome, Ok(ref reply) if !has_no_place(reply)) {
            return;
        }
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        let server = server.filter(|_| self.is_vote && !self.is_direct);
        let outcome = match server.map_or(Ok(()), |server| state.note(self.node, server)) {
            Ok(()) => outcome,
            Err(text) => Err(NoReply::Unreachable(text.into())),
        };
        state.arrived.push_back(Arrival { node: self.node, request: self.request, outcome });
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// It had two, if the connection of the first was broken when the second came.
    #[test]
    fn a_server_has_one_vote_in_a_round_whatever_leads_to_it() {
        let server = |name: &str| ServerId::of(name);
        let mut inbox = Inbox::new(3);
        let vote = |inbox: &Inbox, node, request, name: &str| {
            let reply_to = inbox.reply_to(node, request);
            reply_to.deliver_from(server(name), Ok(Reply::Integer(7)));
            let mut never = std::pin::pin!(std::future::pending());
            let arrival = inbox.next(never.as_mut()).now_or_never().flatten();
            arrival.is_some_and(|arrival| arrival.outcome.is_ok())
        };
        assert!(vote(&inbox, 0, 0, "one"));
        assert!(!vote(&inbox, 1, 0, "one"), "again by another address");
        assert!(vote(&inbox, 0, 1, "one"), "the raise");
        assert!(vote(&inbox, 2, 0, "three"));
        assert!(!vote(&inbox, 0, 1, "two"), "it leads elsewhere now");
        assert!(vote(&inbox, 1, 0, "two"));
        inbox = Inbox::new(3);
        assert!(vote(&inbox, 1, 0, "one"), "in another round");
        assert!(vote(&inbox, 0, 0, "") && vote(&inbox, 0, 0, ""), "its own name");
    }
}
