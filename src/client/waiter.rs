//! One wait for a lock: its ticket, where it stands in line, and the pauses between attempts.
//!
//! The decisions are [`Waiting`]'s; here they are carried out. Whatever ends the wait, a cancelled
//! future included, the destructor gives up the ticket everywhere: nodes know it by the token of
//! the last attempt, and a release of that token is all that it takes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::core::Core;
use super::inbox::{Arrival, Inbox};
use super::packet::{Packet, TOKEN_LENGTH};
use super::reading::has_no_place;
use super::settings::LeasePlan;
use super::vote::Vote;
use super::wakes::{Bell, News, TicketId, Wakes};
use super::world::{AnyWorld, earliest, latest};
use crate::engine::{Instant, Millis, Mode, Next, NodeSet, Ticket, Waiting};
use crate::wire::code;
use crate::wire::request::Queue;
use crate::wire::resp::Reply;

pub(super) struct Waiter<'a> {
    core: &'a Core,
    name: &'a [u8],
    plan: LeasePlan,
    mode: Mode,
    /// When the wait is over.
    ends_at: Instant,
    waiting: Waiting,
    called: NodeSet,
    ticket: Ticket,
    id: TicketId,
    seat: Option<Seat>,
}

/// What there is while the ticket is in line somewhere.
struct Seat {
    bell: Arc<Bell>,
    /// Answers to what has put the ticket in line.
    inbox: Inbox,
    /// By which the nodes know the ticket, while no attempt is under way.
    token: Option<[u8; TOKEN_LENGTH]>,
}

/// What the wait has come to.
enum Event {
    News(News),
    Answer(Arrival),
    Time,
}

impl<'a> Waiter<'a> {
    /// A wait that began at `started_at`, and has come to its first lost attempt.
    pub(super) fn new(
        core: &'a Core,
        name: &'a [u8],
        (plan, mode): (LeasePlan, Mode),
        started_at: Duration,
        wait: Duration,
    ) -> Waiter<'a> {
        let world = &*core.world;
        let waited = Millis::round_down(world.now().saturating_sub(started_at));
        let start = world.wall().as_millis().saturating_sub(waited.get());
        let mut id = TicketId::default();
        world.fill(&mut id);
        Waiter {
            core,
            name,
            plan,
            mode,
            ends_at: Instant::from_millis(Millis::round_up(started_at.saturating_add(wait)).get()),
            waiting: Waiting::new(core.quorum, plan.terms.ttl),
            called: NodeSet::EMPTY,
            ticket: ticket(start, &id),
            id,
            seat: None,
        }
    }

    /// Prepares to stand in line from the first attempt on. False if there is no line.
    pub(super) fn take_seat(&mut self) -> bool {
        let Some(wakes) = self.core.world.wakes().filter(|wakes| wakes.has_line()) else {
            return false;
        };
        if self.seat.is_none() {
            let bell = wakes.enter(self.id, self.core.quorum);
            let inbox = Inbox::new(self.core.quorum.nodes());
            self.seat = Some(Seat { bell, inbox, token: None });
        }
        true
    }

    /// An attempt with this token begins; what it asks of the nodes.
    pub(super) fn begin(&mut self, token: &[u8; TOKEN_LENGTH], label: &[u8]) -> Packet {
        self.called = self.waiting.begin();
        let Some((seat, wakes)) = self.seat.as_mut().zip(self.core.world.wakes()) else {
            return Packet::acquire(self.name, token, self.asked(), label);
        };
        // Whatever has happened, the attempt puts the ticket in line again where it is not granted.
        let _ = seat.bell.take();
        seat.token = None;
        let queue = self.queue(wakes);
        Packet::acquire_in_line(self.name, token, self.asked(), label, queue)
    }

    /// What the lock is asked for.
    fn asked(&self) -> (Millis, Mode) {
        (self.plan.terms.ttl, self.mode)
    }

    /// Who had called when the present attempt began.
    pub(super) const fn called(&self) -> NodeSet {
        self.called
    }

    /// Who is to be told when a node answers the attempt.
    pub(super) fn bell(&self) -> Option<&Arc<Bell>> {
        self.seat.as_ref().map(|seat| &seat.bell)
    }

    /// A node has answered the attempt. What is to be made of the answer.
    pub(super) fn answered(&mut self, node: usize, vote: Vote) -> Vote {
        let is_queued = self.seat.is_some() && matches!(vote, Vote::Held { .. });
        self.waiting.answered(node, is_queued);
        match vote {
            Vote::Refused(text) if self.seat.is_some() && is_line_unknown(&text) => {
                if let Some(wakes) = self.core.world.wakes() {
                    wakes.lacks(node);
                }
                Vote::NoPlace(text)
            }
            vote => vote,
        }
    }

    /// An attempt is lost: its token is given back, and the ticket is put in line with it where
    /// that can be done. False if the token is still to be given back.
    pub(super) fn lost(&mut self, token: &[u8; TOKEN_LENGTH], silent: NodeSet) -> bool {
        let world = &*self.core.world;
        let (now, random) = (latest(world), random(world));
        if !self.take_seat() {
            self.leave();
            self.waiting.lost_without_line(now, random);
            return false;
        }
        let Some((seat, wakes)) = self.seat.as_mut().zip(world.wakes()) else { return false };
        seat.token = Some(*token);
        let packet = self.putting_packet(wakes, token);
        for node in self.waiting.lost(silent, now, random).iter() {
            self.put_in_line(node, &packet, silent.has(node));
        }
        true
    }

    /// Waits until it is time for the next attempt.
    pub(super) async fn rest(&mut self) {
        loop {
            // Rounded down: an attempt must not come a fraction of a millisecond before the end of
            // the wait, and then another one, for as long as they take no time.
            let now = earliest(&self.core.world);
            let Next::WaitUntil(attempt_at) = self.waiting.next(now) else { return };
            let rests_until = attempt_at.min(self.ends_at);
            if rests_until <= now {
                return;
            }
            match self.event(now.until(rests_until)).await {
                Event::Time => {}
                Event::News(news) => self.hear(news),
                Event::Answer(arrival) => self.take(arrival),
            }
        }
    }

    async fn event(&self, length: Millis) -> Event {
        let mut timer = pin!(self.core.world.sleep(length.into()));
        poll_fn(|ctx| {
            if let Some(seat) = &self.seat {
                if let Poll::Ready(news) = seat.bell.poll(ctx) {
                    return Poll::Ready(Event::News(news));
                }
                if let Poll::Ready(arrival) = seat.inbox.poll_next(ctx) {
                    return Poll::Ready(Event::Answer(arrival));
                }
            }
            timer.as_mut().poll(ctx).map(|()| Event::Time)
        })
        .await
    }

    fn hear(&mut self, news: News) {
        let world = &*self.core.world;
        let (now, random) = (latest(world), random(world));
        for node in news.broken.iter() {
            self.waiting.out_of_line(node, now, random);
        }
        for node in news.woken.iter() {
            self.waiting.woken(node, now);
        }
        let token = self.seat.as_ref().and_then(|seat| seat.token);
        if let Some((token, wakes)) = token.zip(world.wakes())
            && !news.returned.is_empty()
        {
            let packet = self.putting_packet(wakes, &token);
            for node in news.returned.iter() {
                self.put_in_line(node, &packet, true);
            }
        }
    }

    /// Takes an answer to what has put the ticket in line.
    fn take(&mut self, Arrival { node, outcome, .. }: Arrival) {
        let world = &*self.core.world;
        let (now, random) = (latest(world), random(world));
        match outcome {
            Ok(Reply::Error(text)) if is_line_unknown(&text) => {
                if let Some(wakes) = world.wakes() {
                    wakes.lacks(node);
                }
                self.leave();
                self.waiting.lost_without_line(now, random);
            }
            Ok(reply) if has_no_place(&reply) => self.waiting.out_of_line(node, now, random),
            Ok(_) => self.waiting.joined(node, now, random),
            Err(_) => self.waiting.out_of_line(node, now, random),
        }
    }

    fn putting_packet(&self, wakes: &Wakes, token: &[u8]) -> Packet {
        Packet::release_into_line(self.name, token, self.asked(), self.queue(wakes))
    }

    /// What puts the ticket in line, where it stays until an answer to the last attempt of this
    /// wait can have come, unless it is put there again.
    fn queue<'q>(&self, wakes: &'q Wakes) -> Queue<'q> {
        let left = latest(&self.core.world).until(self.ends_at);
        let answer = Millis::round_up(self.plan.timeout);
        let wait = Millis::new(left.get().saturating_add(answer.get())).min(self.waiting.stay());
        Queue { wait, ticket: self.ticket.clone(), channel: wakes.channel() }
    }

    /// Sends what puts the ticket in line. `is_open`: only a good answer shows that it is there.
    fn put_in_line(&self, node: usize, packet: &Packet, is_open: bool) {
        let Some(Seat { inbox, .. }) = &self.seat else { return };
        let reply_to = if is_open { inbox.reply_to(node, 0) } else { inbox.bad_news_to(node, 0) };
        self.core.world.send(node, packet, Some(reply_to));
    }

    /// Gives up the place in line everywhere.
    fn leave(&mut self) {
        let Some(seat) = self.seat.take() else { return };
        if let Some(wakes) = self.core.world.wakes() {
            wakes.leave(&self.id);
        }
        if let Some(token) = seat.token {
            self.core.tell_all(&Packet::release(self.name, &token, self.plan.terms.ttl));
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The ticket of a wait that began then, in milliseconds since 1970.
fn ticket(start: u64, id: &TicketId) -> Ticket {
    // PROOF: any start will do, and the id is not empty and not too long.
    Ticket::near(start, id).expect("an id of 16 bytes")
}

/// Whether an error means that the node does not know how to put a ticket in line, or that its
/// user may not be called there.
fn is_line_unknown(text: &str) -> bool {
    [code::BADARG, code::ERR, code::NOPERM].iter().any(|code| code.word == code::word_of(text))
}

fn random(world: &AnyWorld) -> u32 {
    let mut bytes = [0; 4];
    world.fill(&mut bytes);
    u32::from_le_bytes(bytes)
}
