//! Where the replies to one round of requests arrive: one allocation for all nodes.
//!
//! The requests of a round go out at once and their replies come in any order, from other tasks.
//! Whoever asked reads them from an [`Inbox`]; whoever answers holds a [`ReplyTo`]. A closed inbox
//! tells the sending side that nobody waits any more.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::reading::has_no_place;
use super::vote::Vote;
use super::wakes::Bell;
use crate::wire::resp::Reply;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
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

impl From<Failure> for Vote {
    fn from(failure: Failure) -> Vote {
        match failure {
            Failure::Unreachable(text) => Vote::Unreachable(text),
            Failure::Garbled(text) => Vote::Garbled(text),
            Failure::NoPermission(text) => Vote::NoPermission(text),
            Failure::Unavailable(text) => Vote::Unavailable(text),
            Failure::Refused(text) => Vote::Refused(text),
        }
    }
}

/// One reply, or why there is none.
#[derive(Debug)]
pub(super) struct Delivery {
    /// Which node.
    pub(super) node: usize,
    /// Which of the requests of this round: the number given to [`Inbox::reply_to`].
    pub(super) request: u8,
    /// What it said.
    pub(super) outcome: Result<Reply, Failure>,
}

#[derive(Debug, Default)]
struct State {
    deliveries: VecDeque<Delivery>,
    waker: Option<Waker>,
    is_closed: bool,
    is_settled: bool,
}

/// The reading side. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Inbox(Arc<Mutex<State>>);

/// The writing side: where one node's reply to one request goes.
#[derive(Debug)]
pub struct ReplyTo {
    state: Arc<Mutex<State>>,
    node: usize,
    request: u8,
    bad_only: bool,
    bell: Option<Arc<Bell>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing panics while the lock is held, so the state is whole even if it is poisoned.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    /// An inbox with room for `capacity` replies before it has to grow.
    pub(super) fn new(capacity: usize) -> Inbox {
        let deliveries = VecDeque::with_capacity(capacity);
        Inbox(Arc::new(Mutex::new(State { deliveries, ..State::default() })))
    }

    /// Says that what was sent is still wanted, though nobody will read the rest of the replies.
    pub(super) fn settle(&self) {
        lock(&self.0).is_settled = true;
    }

    /// Where `node`'s reply to `request` shall go.
    pub(super) fn reply_to(&self, node: usize, request: u8) -> ReplyTo {
        ReplyTo { state: Arc::clone(&self.0), node, request, bad_only: false, bell: None }
    }

    /// The same for what puts a ticket in line: the reply matters only if it says that the ticket
    /// does not stand there, or does not come.
    pub(super) fn bad_news_to(&self, node: usize, request: u8) -> ReplyTo {
        ReplyTo { bad_only: true, ..self.reply_to(node, request) }
    }

    /// The next reply; `None` if `timer` is over first.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn next(
        &self,
        mut timer: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<Delivery> {
        poll_fn(|ctx| match self.poll_next(ctx) {
            Poll::Ready(delivery) => Poll::Ready(Some(delivery)),
            Poll::Pending => timer.as_mut().poll(ctx).map(|()| None),
        })
        .await
    }

    /// The next reply.
    pub(super) fn poll_next(&self, ctx: &mut Context<'_>) -> Poll<Delivery> {
        let mut state = lock(&self.0);
        match state.deliveries.pop_front() {
            Some(delivery) => Poll::Ready(delivery),
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
        state.is_closed && !state.is_settled
    }

    /// Whatever the node has said to the bell before this reply is out of date with it.
    pub(super) fn before(self, bell: Option<&Arc<Bell>>) -> ReplyTo {
        ReplyTo { bell: bell.map(Arc::clone), ..self }
    }

    /// Hands over the reply.
    pub fn deliver(self, outcome: Result<Reply, Failure>) {
        if let Some(bell) = &self.bell {
            bell.silence(self.node);
        }
        if self.bad_only && matches!(outcome, Ok(ref reply) if !has_no_place(reply)) {
            return;
        }
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        state.deliveries.push_back(Delivery { node: self.node, request: self.request, outcome });
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
