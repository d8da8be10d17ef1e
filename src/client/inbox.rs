//! Where the replies to one round of requests arrive: one allocation for all nodes.
//!
//! The requests of a round go out at once and their replies come in any order, from other tasks.
//! The caller reads them from an [`Inbox`]; the sending side holds a [`ReplyTo`] for each. A closed
//! inbox tells the sending side that the replies are no longer wanted.

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
#[cfg(feature = "cli")]
use crate::wire::code;
use crate::wire::resp::Reply;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// The node could not be reached, or the connection broke before the reply.
    Unreachable(Arc<str>),
    /// The node is silent: it has not answered for long, or not when connecting.
    TimedOut,
    /// The node sent something that is not a reply.
    Garbled(Arc<str>),
    /// The node did not let in the URL's user.
    NoPermission(Arc<str>),
    /// The node is there, but does not serve at present.
    Unavailable(Arc<str>),
    /// No retry helps until somebody changes something: a certificate, a URL, the list of nodes,
    /// the name of a group. The text says what.
    Refused(Arc<str>),
}

impl NoReply {
    /// The same, with the place where it happened.
    pub(super) fn at(self, place: impl fmt::Display) -> NoReply {
        let with = |text: Arc<str>| Arc::from(format!("{place}: {text}"));
        match self {
            NoReply::Unreachable(text) => NoReply::Unreachable(with(text)),
            NoReply::TimedOut => NoReply::TimedOut,
            NoReply::Garbled(text) => NoReply::Garbled(with(text)),
            NoReply::NoPermission(text) => NoReply::NoPermission(with(text)),
            NoReply::Unavailable(text) => NoReply::Unavailable(with(text)),
            NoReply::Refused(text) => NoReply::Refused(with(text)),
        }
    }
}

/// Whether this text is that of a server on the way to the node, not of the node itself: it begins
/// with a place, as [`NoReply::at`] makes it, and not with the code word of an error.
#[cfg(feature = "cli")]
pub(crate) fn is_from_the_way(text: &str) -> bool {
    !code::word_of(text).bytes().all(|byte| byte.is_ascii_uppercase())
}

impl From<NoReply> for Vote {
    fn from(failure: NoReply) -> Vote {
        match failure {
            NoReply::Unreachable(text) => Vote::Unreachable(text),
            NoReply::TimedOut => Vote::TimedOut,
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
    /// Which of the requests of this round.
    pub(super) request: RequestKind,
    /// Whether the reply to the same request is lost that was sent before, and may have been
    /// carried out.
    pub(super) is_in_doubt: bool,
    /// Its reply, or why there is none.
    pub(super) outcome: Result<Reply, NoReply>,
}

/// Which of the requests whose replies come to one inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// All of them are alike.
    Only,
    /// The ACQUIRE of an attempt.
    Acquire,
    /// The same for a node that does not support direct grants.
    AcquirePlain,
    /// Raises the fence that an attempt was granted.
    Raise,
    /// An ACQUIRE that puts a ticket in line, between attempts.
    Register,
    /// The same for a node that does not support direct grants.
    RegisterPlain,
    /// A RELEASE that puts a ticket in line.
    ReleaseIntoLine,
    /// `Acquire`, if the reply comes after the attempt was lost.
    Late,
    /// `AcquirePlain`, likewise.
    LatePlain,
    /// Extends a lease.
    Extend,
    /// Stores a lease again at a node that has forgotten it.
    Repair,
}

impl RequestKind {
    /// What an ACQUIRE of an attempt is once the attempt is lost.
    pub(super) const fn late(self) -> Option<RequestKind> {
        match self {
            RequestKind::Acquire => Some(RequestKind::Late),
            RequestKind::AcquirePlain => Some(RequestKind::LatePlain),
            RequestKind::Only
            | RequestKind::Raise
            | RequestKind::Register
            | RequestKind::RegisterPlain
            | RequestKind::ReleaseIntoLine
            | RequestKind::Late
            | RequestKind::LatePlain
            | RequestKind::Extend
            | RequestKind::Repair => None,
        }
    }
}

/// What identifies a server from its start to its end: a hash of its random run id, enough to tell
/// two servers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerId(NonZeroU64);

impl ServerId {
    /// From the run id that the server gave.
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

/// Why a server's second vote does not count.
pub(super) const SECOND_VOTE: &str = "the same server as another node: remove one";
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
    request: RequestKind,
    bad_only: bool,
    /// Whether the reply is a vote: a server has one in a round.
    is_vote: bool,
    /// Whether the command may be sent again after a reply, and the next one counts instead.
    is_repeated: bool,
    /// As in [`Arrival`].
    is_in_doubt: bool,
    bell: Option<Arc<Bell>>,
    /// Whether the command goes to one server of several, so that the reply is not a vote.
    is_direct: bool,
    /// For a command to all servers of a node: the last answer completes the node's.
    fan: Option<Arc<Mutex<Fan>>>,
}

/// The answers of several servers, which together are one node's.
#[derive(Debug)]
struct Fan {
    missing: usize,
    failure: Option<NoReply>,
}

impl Arrivals {
    /// Notes which server answers for `node`.
    ///
    /// # Errors
    /// If the answer does not count.
    fn note(&mut self, node: usize, server: ServerId) -> Result<(), &'static str> {
        match self.servers.get(node).copied().flatten() {
            Some(known) if known == server => return Ok(()),
            Some(_) => return Err(OTHER_SERVER),
            None if self.servers.contains(&Some(server)) => return Err(SECOND_VOTE),
            None => {}
        }
        if let Some(known) = self.servers.get_mut(node) {
            *known = Some(server);
        }
        Ok(())
    }
}

fn lock(state: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    // Nothing panics while the lock is held, so the state is intact even if it is poisoned.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// An inbox with room for `capacity` replies before it has to grow.
    pub(super) fn new(capacity: usize) -> Inbox {
        let arrived = VecDeque::with_capacity(capacity);
        Inbox(Arc::new(Mutex::new(Arrivals { arrived, ..Arrivals::default() })))
    }

    /// Keeps the commands wanted although the rest of the replies will not be read.
    pub(super) fn keep_sending(&self) {
        lock(&self.0).keeps_sending = true;
    }

    /// Where `node`'s reply to `request` goes.
    pub(super) fn reply_to(&self, node: usize, request: RequestKind) -> ReplyTo {
        ReplyTo {
            state: Arc::clone(&self.0),
            node,
            request,
            bad_only: false,
            is_vote: true,
            is_repeated: false,
            is_in_doubt: false,
            bell: None,
            is_direct: false,
            fan: None,
        }
    }

    /// The same for a command to one server of several; the reply is not a vote.
    pub(super) fn direct_reply_to(&self, node: usize) -> ReplyTo {
        ReplyTo { is_direct: true, ..self.reply_to(node, RequestKind::Only) }
    }

    /// The same for a command that puts a ticket in line. The reply is not a vote, because this
    /// inbox outlives connections.
    pub(super) fn place_at(&self, node: usize, request: RequestKind) -> ReplyTo {
        ReplyTo { is_vote: false, ..self.reply_to(node, request) }
    }

    /// The same for a release, which is sent again until the node has carried it out: the last of
    /// the replies counts.
    pub(super) fn release_to(&self, node: usize) -> ReplyTo {
        ReplyTo { is_repeated: true, ..self.reply_to(node, RequestKind::Only) }
    }

    /// The same if the reply matters only when it is missing or reports that the ticket is not in
    /// line.
    pub(super) fn bad_news_to(&self, node: usize, request: RequestKind) -> ReplyTo {
        ReplyTo { bad_only: true, ..self.place_at(node, request) }
    }

    /// Notes which server has answered for `node`, if its answer came in another way.
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

    /// The next reply, if it has arrived.
    pub(super) fn take(&self) -> Option<Arrival> {
        lock(&self.0).arrived.pop_front()
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
    /// Whether neither this reply nor its command is wanted any more.
    pub fn is_withdrawn(&self) -> bool {
        let state = lock(&self.state);
        state.is_closed && !state.keeps_sending
    }

    /// Where the next reply goes, if the command is sent again and somebody still waits for it.
    pub(super) fn next(&self) -> Option<ReplyTo> {
        let is_awaited = self.is_repeated && !lock(&self.state).is_closed;
        is_awaited.then(|| ReplyTo {
            state: Arc::clone(&self.state),
            bell: None,
            fan: None,
            ..*self
        })
    }

    /// Notes that the reply is lost, and the command is sent again.
    pub(super) const fn lose(&mut self) {
        self.is_in_doubt = true;
    }

    /// The same, but the reply also outdates whatever the node has told the bell before.
    pub(super) fn before(self, bell: Option<&Arc<Bell>>) -> ReplyTo {
        ReplyTo { bell: bell.map(Arc::clone), ..self }
    }

    pub(super) const fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the command is for one particular server, and the reply not a part of a node's.
    pub(super) const fn is_for_one_server(&self) -> bool {
        self.is_direct && self.fan.is_none()
    }

    /// Splits this among `count` servers: when all have answered, one answer is delivered.
    pub(super) fn split(self, count: usize) -> Vec<ReplyTo> {
        let fan = Arc::new(Mutex::new(Fan { missing: count, failure: None }));
        let one = || ReplyTo {
            state: Arc::clone(&self.state),
            node: self.node,
            request: self.request,
            bad_only: self.bad_only,
            is_vote: self.is_vote,
            is_repeated: false,
            is_in_doubt: false,
            bell: None,
            is_direct: true,
            fan: Some(Arc::clone(&fan)),
        };
        (0..count).map(|_| one()).collect()
    }

    /// The answer of all servers, if this is the last.
    fn gathered(&self, outcome: Result<Reply, NoReply>) -> Option<Result<Reply, NoReply>> {
        let Some(fan) = &self.fan else { return Some(outcome) };
        // Nothing panics while the lock is held, so it is intact even if it is poisoned.
        let mut fan = fan.lock().unwrap_or_else(PoisonError::into_inner);
        fan.missing = fan.missing.saturating_sub(1);
        if let (Err(failure), None) = (&outcome, &fan.failure) {
            fan.failure = Some(failure.clone());
        }
        let failure = fan.failure.clone();
        (fan.missing == 0).then(|| failure.map_or(outcome, Err))
    }

    /// Delivers the reply.
    pub fn deliver(self, outcome: Result<Reply, NoReply>) {
        self.deliver_from(None, outcome);
    }

    /// Delivers the reply of this server, if it is known which server it is.
    ///
    /// This is where each server is limited to one vote in a round, whatever leads to it: an
    /// address may lead to the wrong server, and the connection on which the same server answered
    /// before may be broken by now.
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
        if self.is_repeated {
            // It may have been restarted, or replaced, since the last reply.
            state.servers[self.node] = None;
        }
        let outcome = match server.map_or(Ok(()), |server| state.note(self.node, server)) {
            Ok(()) => outcome,
            Err(text) => Err(NoReply::Unreachable(text.into())),
        };
        let ReplyTo { node, request, is_in_doubt, .. } = self;
        state.arrived.push_back(Arrival { node, request, is_in_doubt, outcome });
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

    #[cfg(feature = "cli")]
    #[test]
    fn what_servers_on_the_way_say_is_not_taken_for_the_words_of_the_node() {
        let text = |failure: NoReply| match failure {
            NoReply::Unavailable(text) => text,
            other => panic!("{other:?}"),
        };
        let own = NoReply::Unavailable("LOADING x".into());
        assert!(!is_from_the_way(&text(own.clone())));
        for place in ["h:7000", "H:7000", "[::1]:7000", "Sentinel h:26379", "its master h:7000"] {
            assert!(is_from_the_way(&text(own.clone().at(place))), "{place}");
        }
    }

    /// It had two votes if the connection of the first was broken when the second came.
    #[test]
    fn a_server_has_one_vote_in_a_round_whatever_leads_to_it() {
        use RequestKind::{Acquire, Raise};
        let server = |name: &str| ServerId::of(name);
        let mut inbox = Inbox::new(3);
        let vote = |inbox: &Inbox, node, request, name: &str| {
            let reply_to = inbox.reply_to(node, request);
            reply_to.deliver_from(server(name), Ok(Reply::Integer(7)));
            let mut never = std::pin::pin!(std::future::pending());
            let arrival = inbox.next(never.as_mut()).now_or_never().flatten();
            arrival.is_some_and(|arrival| arrival.outcome.is_ok())
        };
        assert!(vote(&inbox, 0, Acquire, "one"));
        assert!(!vote(&inbox, 1, Acquire, "one"), "again by another address");
        assert!(vote(&inbox, 0, Raise, "one"), "the raise");
        assert!(vote(&inbox, 2, Acquire, "three"));
        assert!(!vote(&inbox, 0, Raise, "two"), "it leads elsewhere now");
        assert!(vote(&inbox, 1, Acquire, "two"));
        inbox = Inbox::new(3);
        assert!(vote(&inbox, 1, Acquire, "one"), "in another round");
        assert!(vote(&inbox, 0, Acquire, "") && vote(&inbox, 0, Acquire, ""), "its own name");
    }
}
