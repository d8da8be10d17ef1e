//! Which tasks of this client stand in line, and which are woken.
//!
//! All waiting tasks share one connection per node, and one channel of the client's own. A node
//! publishes there the ticket that it has reserved a lock for, or granted the lock to; this file
//! finds the task that waits with this ticket. A wake is not trusted: it makes a task attempt, at
//! most. A grant counts only as [`crate::engine`] allows.
//!
//! A task learns of four things: a wake, a grant, a connection that broke (the node has dropped its
//! ticket), and a connection that is back (it may be put in line again).

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::engine::{NODES_MAX, NodeSet, PublishedGrant, Quorum};
use crate::wire::published::Published;

/// The length of the random part of a ticket, in bytes.
const ID_LENGTH: usize = 16;

/// The random part of a ticket.
pub(super) type TicketId = [u8; ID_LENGTH];

/// Whether a task can wait at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Offer {
    /// There is no connection.
    #[default]
    Away,
    /// Its wakes reach us, and it has not refused to put a ticket in line.
    Given,
    /// It has no line, or its wakes cannot reach us.
    Lacking,
}

/// Where the wakes of all nodes arrive, for one client.
///
/// A [`World`](super::World) whose nodes can wake its clients makes one, and reports to it.
#[derive(Debug)]
pub struct Wakes {
    channel: Arc<[u8]>,
    state: Mutex<Listening>,
    /// A bit for each node that is known to grant locks to tickets by itself.
    direct: AtomicU32,
    /// A bit for each node that is known not to.
    never_direct: AtomicU32,
}

#[derive(Debug)]
struct Listening {
    offers: Vec<Offer>,
    tasks: BTreeMap<TicketId, Arc<Bell>>,
}

/// Who has published a grant that was heard at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publisher {
    /// The server itself.
    Itself,
    /// Perhaps another one of its Cluster: whoever waits has to ask.
    Unclear,
}

/// What one waiting task learns.
#[derive(Debug)]
pub(super) struct Bell {
    quorum: Quorum,
    /// In which slot of a Cluster the lock is.
    slot: u16,
    ringing: Mutex<Ringing>,
}

#[derive(Debug, Default)]
struct Ringing {
    news: News,
    /// The nodes that have woken the task since its last attempt, whether or not the task has
    /// looked.
    woken: NodeSet,
    /// The nodes that have granted the lock to its ticket since then.
    granted: NodeSet,
    waker: Option<Waker>,
}

/// What has happened since the task last looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// The grants of the lock to the ticket.
    pub(super) granted: Vec<PublishedGrant>,
    /// The nodes that have reserved the lock for the ticket.
    pub(super) woken: NodeSet,
    /// The nodes whose connection has broken.
    pub(super) broken: NodeSet,
    /// The nodes whose connection is back.
    pub(super) returned: NodeSet,
}

impl Wakes {
    /// For `nodes` nodes that publish on `channel`, which no other client may use.
    pub fn new(channel: &[u8], nodes: usize) -> Wakes {
        let state = Listening { offers: vec![Offer::default(); nodes], tasks: BTreeMap::new() };
        let (direct, never_direct) = (AtomicU32::new(0), AtomicU32::new(0));
        Wakes { channel: Arc::from(channel), state: Mutex::new(state), direct, never_direct }
    }

    /// Where nodes publish for this client.
    pub const fn channel(&self) -> &Arc<[u8]> {
        &self.channel
    }

    /// The connection to `node` is there. `hears`: what it publishes on the channel arrives.
    pub fn connected(&self, node: usize, hears: bool) {
        // It may be another server now.
        self.direct.fetch_and(!bit(node), Ordering::Relaxed);
        self.never_direct.fetch_and(!bit(node), Ordering::Relaxed);
        let offer = if hears { Offer::Given } else { Offer::Lacking };
        self.change(node, offer, |news| news.returned.insert(node));
    }

    /// The connection to `node` broke: tickets that were put in line there over it are gone.
    pub fn broken(&self, node: usize) {
        self.change(node, Offer::Away, |news| {
            let node = NodeSet::of(node);
            news.broken = news.broken.or(node);
            news.returned = news.returned.without(node);
            news.woken = news.woken.without(node);
        });
    }

    /// `node` published this. `server` tells servers apart: two nodes that lead to the same one
    /// have one vote.
    pub fn hear(&self, node: usize, server: Option<NonZeroU64>, message: &[u8]) {
        self.hear_from(node, server, message, |_| Publisher::Itself);
    }

    /// The same, if `publisher` says of the slot of a lock who may have granted it.
    pub(super) fn hear_from(
        &self,
        node: usize,
        server: Option<NonZeroU64>,
        message: &[u8],
        publisher: impl FnOnce(u16) -> Publisher,
    ) {
        let Some(published) = Published::parse(message) else { return };
        let (Published::Turn(ticket) | Published::Granted { ticket, .. }) = &published;
        let Ok(id) = TicketId::try_from(ticket.id()) else { return };
        let bell = self.state().tasks.get(&id).map(Arc::clone);
        match (bell, published) {
            (None, _) => {}
            (Some(bell), Published::Turn(_)) => bell.wake(node),
            (Some(bell), Published::Granted { fence, number, .. }) => match publisher(bell.slot) {
                Publisher::Itself => bell.grant(PublishedGrant { node, server, fence, number }),
                Publisher::Unclear => bell.wake(node),
            },
        }
    }

    /// Notes whether `node` makes direct grants; this holds until the next connection.
    pub(super) fn note_direct_grants(&self, node: usize, makes_them: bool) {
        let notes = if makes_them { &self.direct } else { &self.never_direct };
        if notes.load(Ordering::Relaxed) & bit(node) == 0 {
            notes.fetch_or(bit(node), Ordering::Relaxed);
        }
    }

    /// Whether `node` makes direct grants; `None` if that is not known.
    pub(super) fn grants_directly(&self, node: usize) -> Option<bool> {
        if self.never_direct.load(Ordering::Relaxed) & bit(node) != 0 {
            return Some(false);
        }
        (self.direct.load(Ordering::Relaxed) & bit(node) != 0).then_some(true)
    }

    /// Notes that `node` cannot put a ticket in line; this holds until the next connection.
    pub(super) fn lacks(&self, node: usize) {
        if let Some(offer) = self.state().offers.get_mut(node) {
            *offer = Offer::Lacking;
        }
    }

    /// Whether tickets can be put in line: some nodes can do that, and none is known that cannot.
    pub(super) fn has_line(&self) -> bool {
        let offers = &self.state().offers;
        !offers.contains(&Offer::Lacking) && offers.contains(&Offer::Given)
    }

    /// The bell that the wakes of `id`, for a lock in this slot of a Cluster, ring from now on.
    pub(super) fn enter(&self, id: TicketId, quorum: Quorum, slot: u16) -> Arc<Bell> {
        let bell = Arc::new(Bell { quorum, slot, ringing: Mutex::default() });
        self.state().tasks.insert(id, Arc::clone(&bell));
        bell
    }

    pub(super) fn leave(&self, id: &TicketId) {
        self.state().tasks.remove(id);
    }

    fn change(&self, node: usize, offer: Offer, tell: impl Fn(&mut News)) {
        let mut state = self.state();
        if let Some(slot) = state.offers.get_mut(node) {
            *slot = offer;
        }
        let bells: Vec<Arc<Bell>> = state.tasks.values().map(Arc::clone).collect();
        drop(state);
        for bell in bells {
            bell.ring(|ringing| {
                tell(&mut ringing.news);
                true
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, Listening> {
        // Nothing panics while the lock is held, so the state is intact even if it is poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bell {
    /// Notes something, and wakes the task if that is news to it.
    fn ring(&self, note: impl FnOnce(&mut Ringing) -> bool) {
        let mut ringing = self.lock();
        let is_news = note(&mut ringing);
        let waker = if is_news { ringing.waker.take() } else { None };
        drop(ringing);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// `node` has reserved the lock. The first wake and the one that makes a quorum are news; what
    /// comes in between can wait.
    fn wake(&self, node: usize) {
        self.ring(|ringing| {
            ringing.news.woken.insert(node);
            let is_first = ringing.woken.is_empty();
            ringing.woken.insert(node);
            is_first || self.quorum.is_reached(ringing.woken.or(ringing.granted))
        });
    }

    /// `node` has granted the lock. The first grant and the one that makes a quorum are news.
    fn grant(&self, told: PublishedGrant) {
        let node = told.node;
        self.ring(|ringing| {
            ringing.news.granted.push(told);
            let is_first = ringing.granted.or(ringing.woken).is_empty();
            ringing.granted.insert(node);
            is_first || self.quorum.is_reached(ringing.granted.or(ringing.woken))
        });
    }

    /// Discards earlier wakes from `node`, which are out of date. (Not grants: each names the
    /// registration that it answers.)
    pub(super) fn silence(&self, node: usize) {
        let mut ringing = self.lock();
        let node = NodeSet::of(node);
        ringing.news.woken = ringing.news.woken.without(node);
        ringing.woken = ringing.woken.without(node);
    }

    /// What has happened, if anything has.
    pub(super) fn poll(&self, ctx: &mut Context<'_>) -> Poll<News> {
        let mut ringing = self.lock();
        if ringing.news != News::default() {
            return Poll::Ready(std::mem::take(&mut ringing.news));
        }
        let is_known = ringing.waker.as_ref().is_some_and(|waker| waker.will_wake(ctx.waker()));
        if !is_known {
            ringing.waker = Some(ctx.waker().clone());
        }
        Poll::Pending
    }

    /// What has happened so far; from here on, wakes count from zero.
    pub(super) fn take(&self) -> News {
        let mut ringing = self.lock();
        (ringing.woken, ringing.granted) = (NodeSet::EMPTY, NodeSet::EMPTY);
        std::mem::take(&mut ringing.news)
    }

    fn lock(&self) -> MutexGuard<'_, Ringing> {
        // Nothing panics while the lock is held, so the news is intact even if it is poisoned.
        self.ringing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bit(node: usize) -> u32 {
    if node < NODES_MAX { 1 << node } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Ticket;

    const ID: TicketId = *b"-123456789abcde-";

    fn ticket(start: u64, id: &TicketId) -> Vec<u8> {
        Ticket::new(start, id).unwrap().to_bytes()
    }

    #[test]
    fn a_wake_finds_its_task_by_the_random_part_of_the_ticket() {
        let wakes = Wakes::new(b"c", 3);
        let bell = wakes.enter(ID, Quorum::of(3).unwrap(), 7);
        wakes.hear(1, None, &ticket(1_763_700_000_000, &ID));
        wakes.hear(2, None, &ticket(1_763_700_000_000, b"another-id-of-16"));
        assert_eq!(bell.take(), News { woken: NodeSet::of(1), ..News::default() });
        wakes.leave(&ID);
        wakes.hear(1, None, &ticket(1, &ID));
        assert_eq!(bell.take(), News::default());
    }

    /// Regression: in a Cluster each connection on which it was heard counted.
    #[test]
    fn a_grant_counts_only_if_the_server_itself_has_published_it() {
        let ticket = [b"3 5 ".to_vec(), ticket(1_763_700_000_000, &ID)].concat();
        for (publisher, granted, woken) in
            [(Publisher::Itself, 1, NodeSet::EMPTY), (Publisher::Unclear, 0, NodeSet::of(1))]
        {
            let wakes = Wakes::new(b"c", 3);
            let bell = wakes.enter(ID, Quorum::of(3).unwrap(), 7);
            wakes.hear_from(1, None, &ticket, |slot| {
                assert_eq!(slot, 7);
                publisher
            });
            let news = bell.take();
            assert_eq!((news.granted.len(), news.woken), (granted, woken), "{publisher:?}");
        }
    }

    #[test]
    fn no_bytes_that_are_published_wake_anybody_but_the_task_that_they_name() {
        let wakes = Wakes::new(b"c", 3);
        let bell = wakes.enter(ID, Quorum::of(3).unwrap(), 7);
        let hostile: [&[u8]; 6] = [b"", b"-", b"1-", &ID, &[b'9'; 64], &[b'-'; 15]];
        for bytes in hostile {
            wakes.hear(0, None, bytes);
        }
        assert_eq!(bell.take(), News::default());
    }

    #[test]
    fn there_is_a_line_only_if_no_node_is_known_to_lack_it() {
        let wakes = Wakes::new(b"c", 3);
        assert!(!wakes.has_line(), "no node is connected");
        wakes.connected(0, true);
        wakes.connected(1, true);
        assert!(wakes.has_line(), "a node that is away may have one");
        wakes.connected(2, false);
        assert!(!wakes.has_line());
        wakes.broken(2);
        wakes.connected(2, true);
        assert!(wakes.has_line());
        wakes.lacks(1);
        assert!(!wakes.has_line());
        wakes.connected(1, true);
        assert!(wakes.has_line(), "it may be another server now");
    }

    #[test]
    fn a_task_is_told_of_connections_that_break_and_return() {
        let wakes = Wakes::new(b"c", 3);
        let bell = wakes.enter(ID, Quorum::of(3).unwrap(), 7);
        wakes.broken(1);
        wakes.connected(2, true);
        let news = bell.take();
        assert_eq!((news.broken, news.returned), (NodeSet::of(1), NodeSet::of(2)));
        wakes.connected(1, true);
        wakes.broken(1);
        let news = bell.take();
        assert_eq!((news.broken, news.returned), (NodeSet::of(1), NodeSet::EMPTY));
    }
}
