//! One wait for a lock: its ticket, where it stands in line, and the pauses between attempts.
//!
//! [`Waiting`] decides; this file carries out its decisions. Whatever ends the wait, a cancelled
//! future included, the destructor gives up the ticket everywhere: nodes know it by the token of
//! the last attempt, and a release of that token is enough.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::core::Core;
use super::inbox::{Arrival, Inbox, RequestKind};
use super::lease_rules::LeasePlan;
use super::outset::{Asking, Outset};
use super::packet::{Packet, TOKEN_LENGTH};
use super::reading::{acquire_vote, has_no_place};
use super::vote::Vote;
use super::wakes::{Bell, News, TicketId, Wakes};
use super::world::{earliest, latest};
use crate::engine::{Instant, Millis, Mode, Next, NodeSet, Pursuit, Ticket, Waiting};
use crate::wire::code;
use crate::wire::request::{Queue, WAIT_MAX};
use crate::wire::resp::Reply;
use crate::wire::slots::slot_of;

pub(super) struct Waiter<'a> {
    core: &'a Core,
    name: &'a [u8],
    plan: LeasePlan,
    mode: Mode,
    /// When the wait is over.
    ends_at: Instant,
    waiting: Waiting,
    /// The nodes that had woken the task when the current attempt began.
    woken: NodeSet,
    label: &'a [u8],
    ticket: Ticket,
    id: TicketId,
    pursuit: Pursuit,
    seat: Option<Seat>,
}

/// What exists only while the ticket is in line somewhere.
struct Seat {
    bell: Arc<Bell>,
    /// Answers to the commands that have put the ticket in line.
    inbox: Inbox,
    /// Answers to the last attempt that came too late for it.
    late: Option<Inbox>,
    /// The token by which the nodes know the ticket, while no attempt is in progress.
    token: Option<[u8; TOKEN_LENGTH]>,
}

/// What interrupts a rest.
enum Event {
    News(News),
    Answer(Arrival),
    Time,
}

impl<'a> Waiter<'a> {
    /// A wait that began at `started_at`.
    pub(super) fn new(
        core: &'a Core,
        name: &'a [u8],
        (plan, mode, label): (LeasePlan, Mode, &'a [u8]),
        started_at: Duration,
        wait: Duration,
    ) -> Waiter<'a> {
        let (ticket, id) = ticket(core, core.calendar.date(&core.world, started_at));
        Waiter {
            core,
            name,
            plan,
            mode,
            ends_at: Instant::from_millis(Millis::round_up(started_at.saturating_add(wait)).get()),
            waiting: Waiting::new(core.quorum, plan.terms.ttl),
            woken: NodeSet::EMPTY,
            label,
            ticket,
            id,
            pursuit: Pursuit::new(core.quorum, plan.terms),
            seat: None,
        }
    }

    /// Prepares to stand in line from the next attempt on. False if there is no line.
    pub(super) fn take_seat(&mut self) -> bool {
        let Some(wakes) = self.core.world.wakes().filter(|wakes| wakes.has_line()) else {
            return false;
        };
        if self.seat.is_none() {
            let bell = wakes.enter(self.id, self.core.quorum, slot_of(self.name));
            let inbox = Inbox::new(self.core.quorum.nodes());
            self.seat = Some(Seat { bell, inbox, late: None, token: None });
        }
        true
    }

    /// Begins an attempt at `now`, rounded down. Returns its token and how it starts.
    pub(super) fn begin(&mut self, now: Instant) -> ([u8; TOKEN_LENGTH], Outset) {
        self.woken = self.waiting.begin();
        let Some((seat, wakes)) = self.seat.as_mut().zip(self.core.world.wakes()) else {
            let token = self.fresh_token();
            let packet = Packet::acquire(self.name, &token, self.asked(), self.label);
            return (token, Outset::Ask(Asking::all(packet)));
        };
        // Of the news, only grants matter now. With a quorum of them the lock is won, or given back
        // with releases that put the ticket in line everywhere. Without one, the attempt puts the
        // ticket in line again wherever it is not granted.
        for told in seat.bell.take().granted {
            self.pursuit.granted(told);
        }
        seat.late = None;
        let kept = seat.token.take();
        if let (Some(token), Some(harvest)) = (kept, self.pursuit.harvest(latest(&self.core.world)))
        {
            return (token, Outset::Granted(harvest));
        }
        let token = match kept {
            Some(token) if !self.pursuit.is_released() => token,
            Some(_) | None => self.fresh_token(),
        };
        let number = self.pursuit.register(now);
        let ask = |number| {
            let queue = self.queue(wakes, number);
            Packet::acquire_in_line(self.name, &token, self.asked(), self.label, queue)
        };
        let never = |node: &usize| wakes.grants_directly(*node) == Some(false);
        let nodes = self.core.quorum.all().iter().filter(never);
        let plain = nodes.fold(NodeSet::EMPTY, |nodes, node| nodes.or(NodeSet::of(node)));
        let packet = ask(Some(number));
        let plain = (!plain.is_empty()).then(|| (plain, ask(None)));
        (token, Outset::Ask(Asking { packet, plain }))
    }

    fn fresh_token(&mut self) -> [u8; TOKEN_LENGTH] {
        self.pursuit.change_token();
        self.core.token()
    }

    /// The ttl and the mode of the requests.
    fn asked(&self) -> (Millis, Mode) {
        (self.plan.terms.ttl, self.mode)
    }

    /// The nodes that had woken the task when the current attempt began.
    pub(super) const fn woken(&self) -> NodeSet {
        self.woken
    }

    /// The bell on which an answer to the attempt silences the node's earlier wakes.
    pub(super) fn bell(&self) -> Option<&Arc<Bell>> {
        self.seat.as_ref().map(|seat| &seat.bell)
    }

    /// The request to repeat to a node that has refused the attempt because it does not support
    /// grants to tickets.
    pub(super) fn plainly(&self, arrival: &Arrival, token: &[u8]) -> Option<Packet> {
        let (_, wakes) = self.seat.as_ref().zip(self.core.world.wakes())?;
        let Ok(Reply::Error(text)) = &arrival.outcome else { return None };
        if arrival.request != RequestKind::Acquire || !is_grant_unknown(wakes, arrival.node, text) {
            return None;
        }
        wakes.note_direct_grants(arrival.node, false);
        let queue = self.queue(wakes, None);
        Some(Packet::acquire_in_line(self.name, token, self.asked(), self.label, queue))
    }

    /// Takes a node's answer to the attempt, and returns what to make of it. `was_to_grant`: it was
    /// also asked for grants to the ticket.
    pub(super) fn answered(&mut self, node: usize, vote: Vote, was_to_grant: bool) -> Vote {
        self.waiting.answered(node);
        let Some((_, wakes)) = self.seat.as_ref().zip(self.core.world.wakes()) else { return vote };
        match vote {
            Vote::Held { .. } | Vote::Granted(_) if was_to_grant => {
                wakes.note_direct_grants(node, true);
                vote
            }
            Vote::Refused(text) if is_line_unknown(&text) => {
                // It may still support lines.
                match was_to_grant && is_grant_unknown(wakes, node, &text) {
                    true => wakes.note_direct_grants(node, false),
                    false => wakes.lacks(node),
                }
                Vote::NoPlace(text)
            }
            vote => vote,
        }
    }

    /// Ends a lost attempt: releases its token, and puts the ticket in line with it where possible.
    /// False if the token must still be released. `has_more`: nodes may have granted, or refused in
    /// an odd way; `late` is where late answers arrive.
    pub(super) fn lost(
        &mut self,
        (token, silent): (&[u8; TOKEN_LENGTH], NodeSet),
        has_more: bool,
        late: &mut Option<Inbox>,
    ) -> bool {
        let was_in_line = self.seat.is_some();
        let (world, (now, random)) = (&*self.core.world, self.moment());
        if !self.take_seat() {
            self.leave();
            self.waiting.lost_without_line(now, random);
            return false;
        }
        let Some((seat, wakes)) = self.seat.as_mut().zip(world.wakes()) else { return false };
        seat.token = Some(*token);
        self.waiting.lost(silent, now, random);
        if has_more || self.pursuit.has_part() {
            self.give_back(wakes, token, silent);
        } else if was_in_line {
            // Nodes that have not answered yet will put the ticket in line, or grant.
            seat.late = late.take();
        } else {
            self.register(wakes, token, self.core.quorum.all());
        }
        true
    }

    /// Releases the token at all nodes, because other clients have part of them, and stays in line.
    fn give_back(&mut self, wakes: &Wakes, token: &[u8], silent: NodeSet) {
        self.pursuit.release();
        let packet = self.putting_packet(wakes, token);
        for node in self.core.quorum.all().iter() {
            self.put_in_line(node, &packet, silent.has(node));
        }
    }

    /// Puts the ticket in line at these nodes, with a token that was released at none of them.
    fn register(&mut self, wakes: &Wakes, token: &[u8], nodes: NodeSet) {
        if nodes.is_empty() {
            return;
        }
        let number = self.pursuit.register(earliest(&self.core.world));
        for node in nodes.iter() {
            let number = (wakes.grants_directly(node) != Some(false)).then_some(number);
            let request = match number {
                Some(_) => RequestKind::Register,
                None => RequestKind::RegisterPlain,
            };
            let queue = self.queue(wakes, number);
            let packet = Packet::acquire_in_line(self.name, token, self.asked(), self.label, queue);
            let Some(Seat { inbox, bell, .. }) = &self.seat else { return };
            let reply_to = inbox.place_at(node, request).before(Some(bell));
            self.core.world.send(node, &packet, Some(reply_to));
        }
    }

    /// Waits until it is time for the next attempt.
    pub(super) async fn rest(&mut self) {
        loop {
            // Rounded down: otherwise, attempts that take no time could repeat during the last
            // fraction of a millisecond of the wait.
            let now = earliest(&self.core.world);
            if self.pursuit.is_ripe(latest(&self.core.world)) {
                return;
            }
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
                // Answers come first: one makes earlier wakes of its node out of date, and those
                // that are on the bell still are later.
                if let Poll::Ready(arrival) = seat.inbox.poll_next(ctx) {
                    return Poll::Ready(Event::Answer(arrival));
                }
                let late = seat.late.as_ref().map(|late| late.poll_next(ctx));
                if let Some(Poll::Ready(arrival)) = late
                    && let Some(request) = arrival.request.late()
                {
                    return Poll::Ready(Event::Answer(Arrival { request, ..arrival }));
                }
                if let Poll::Ready(news) = seat.bell.poll(ctx) {
                    return Poll::Ready(Event::News(news));
                }
            }
            timer.as_mut().poll(ctx).map(|()| Event::Time)
        })
        .await
    }

    fn hear(&mut self, news: News) {
        let (world, (now, random)) = (&*self.core.world, self.moment());
        for node in news.broken.iter() {
            self.waiting.out_of_line(node, now, random);
        }
        for node in news.woken.iter() {
            self.waiting.woken(node, now);
        }
        for told in news.granted {
            if self.pursuit.granted(told) {
                self.waiting.woken(told.node, now);
            }
        }
        let token = self.seat.as_ref().and_then(|seat| seat.token);
        if let Some((token, wakes)) = token.zip(world.wakes())
            && !news.returned.is_empty()
        {
            self.put_back(wakes, &token, news.returned);
        }
    }

    /// Puts the ticket in line again at nodes whose connection is back.
    fn put_back(&mut self, wakes: &Wakes, token: &[u8], nodes: NodeSet) {
        if !self.pursuit.is_released() {
            // A release would give back what the node may have granted since.
            return self.register(wakes, token, nodes);
        }
        let packet = self.putting_packet(wakes, token);
        for node in nodes.iter() {
            self.put_in_line(node, &packet, true);
        }
    }

    /// Takes an answer to a command that has put the ticket in line.
    fn take(&mut self, Arrival { node, outcome, request, .. }: Arrival) {
        let (world, (now, random)) = (&*self.core.world, self.moment());
        match outcome {
            Ok(reply) if request != RequestKind::ReleaseIntoLine => {
                self.registered(node, &reply, request)
            }
            Ok(Reply::Error(text))
                if is_line_unknown(&text) || code::word_of(&text) == code::NOPERM.word =>
            {
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

    /// Takes an answer to a registration. A grant is as good as a wake: the next attempt asks with
    /// the same token. A late grant, to an attempt that was lost to others, is released.
    fn registered(&mut self, node: usize, reply: &Reply, request: RequestKind) {
        let (world, (now, random)) = (&*self.core.world, self.moment());
        let was_to_grant = matches!(request, RequestKind::Register | RequestKind::Late);
        let is_late = matches!(request, RequestKind::Late | RequestKind::LatePlain);
        let asks_again = was_to_grant && !self.pursuit.is_released();
        let token = self.seat.as_ref().and_then(|seat| seat.token);
        if let (Reply::Error(text), Some(wakes), Some(token)) = (reply, world.wakes(), token)
            && asks_again
            && is_grant_unknown(wakes, node, text)
        {
            wakes.note_direct_grants(node, false);
            return self.register(wakes, &token, NodeSet::of(node));
        }
        match (self.answered(node, acquire_vote(reply), was_to_grant), world.wakes()) {
            (Vote::Granted(_), Some(wakes)) if is_late && !self.pursuit.is_released() => {
                self.waiting.joined(node, now, random);
                if let Some(token) = token {
                    self.give_back(wakes, &token, NodeSet::EMPTY);
                }
            }
            (Vote::Granted(_), _) => {
                self.waiting.joined(node, now, random);
                self.waiting.woken(node, now);
            }
            (Vote::Held { .. }, _) => self.waiting.joined(node, now, random),
            // It refuses to grant, but puts tickets in line that come with a release.
            (Vote::Quarantined { .. }, Some(wakes)) if !self.pursuit.is_released() => {
                self.waiting.out_of_line(node, now, random);
                if let Some(token) = token {
                    self.give_back(wakes, &token, NodeSet::of(node));
                }
            }
            (_, _) => self.waiting.out_of_line(node, now, random),
        }
    }

    /// The time, rounded up, and a random number for a pause from then on.
    fn moment(&self) -> (Instant, u32) {
        let mut bytes = [0; 4];
        self.core.world.fill(&mut bytes);
        (latest(&self.core.world), u32::from_le_bytes(bytes))
    }

    fn putting_packet(&self, wakes: &Wakes, token: &[u8]) -> Packet {
        Packet::release_into_line(self.name, token, self.asked(), self.queue(wakes, None))
    }

    /// The place in line to ask for. The ticket stays there until an answer to the last attempt of
    /// this wait can have arrived, unless it is put there again.
    fn queue<'q>(&self, wakes: &'q Wakes, grant: Option<u64>) -> Queue<'q> {
        let left = latest(&self.core.world).until(self.ends_at);
        let answer = Millis::round_up(self.plan.timeout);
        let wait = Millis::new(left.get().saturating_add(answer.get()));
        let wait = wait.min(self.waiting.stay()).min(WAIT_MAX);
        Queue { wait, ticket: self.ticket.clone(), channel: wakes.channel(), grant }
    }

    /// Sends the command that puts the ticket in line. `is_unsure`: only a good answer shows that
    /// it is there.
    fn put_in_line(&self, node: usize, packet: &Packet, is_unsure: bool) {
        let Some(Seat { inbox, .. }) = &self.seat else { return };
        let reply_to = match is_unsure {
            true => inbox.place_at(node, RequestKind::ReleaseIntoLine),
            false => inbox.bad_news_to(node, RequestKind::ReleaseIntoLine),
        };
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

/// The ticket of a wait that began at `start`, since 1970.
///
/// Tickets of the same millisecond are ordered by their ids, so an id begins with the nanoseconds,
/// in three bytes. The rest is random.
fn ticket(core: &Core, start: Duration) -> (Ticket, TicketId) {
    let mut id = TicketId::default();
    core.world.fill(&mut id);
    let nanos = start.subsec_nanos() % 1_000_000;
    id[..3].copy_from_slice(&nanos.to_be_bytes()[1..]);
    // PROOF: any start will do, and the id is not empty and not too long.
    let ticket = Ticket::near(Millis::round_down(start).get(), &id).expect("an id of 16 bytes");
    (ticket, id)
}

/// Whether an error means that the node cannot put a ticket in line.
fn is_line_unknown(text: &str) -> bool {
    [code::BADARG, code::ERR].iter().any(|code| code.word == code::word_of(text))
}

/// Whether a node answers a request for grants to tickets like this if it does not support them.
/// (It may also report one argument too many, and name any of them.)
fn is_grant_unknown(wakes: &Wakes, node: usize, text: &str) -> bool {
    wakes.grants_directly(node) != Some(true) && code::word_of(text) == code::BADARG.word
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::client::{Locker, NoReply, ReplyTo, World};
    use crate::engine::Fence;
    use crate::wire::published::Published;
    use crate::wire::resp;

    /// A node that a command was sent to, its words, and where the reply goes.
    type Sent = (usize, Vec<String>, Option<ReplyTo>);

    /// Three nodes that put tickets in line, and answer when the test says so. Time stands still.
    #[derive(Clone)]
    struct Silent {
        names: Vec<Arc<str>>,
        wakes: Arc<Wakes>,
        random: Arc<AtomicU8>,
        sent: Arc<Mutex<Vec<Sent>>>,
    }

    impl World for Silent {
        fn now(&self) -> Duration {
            Duration::from_secs(5)
        }

        fn sleep(&self, _length: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(self.random.fetch_add(1, Ordering::Relaxed));
        }

        fn spawn(&self, _task: BoxFuture<'static, ()>) {}

        fn nodes(&self) -> &[Arc<str>] {
            &self.names
        }

        fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
            let (words, _) = resp::unpack(packet.bytes()).unwrap().expect("a command");
            let words = words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
            self.sent.lock().unwrap().push((node, words.collect(), reply_to));
        }

        fn wakes(&self) -> Option<&Arc<Wakes>> {
            Some(&self.wakes)
        }
    }

    impl Silent {
        fn new() -> (Silent, Locker) {
            let wakes = Arc::new(Wakes::new(b"c", 3));
            (0..3).for_each(|node| wakes.connected(node, true));
            let names = ["a", "b", "c"].map(Arc::from).to_vec();
            let world = Silent { names, wakes, random: Arc::default(), sent: Arc::default() };
            let locker = Locker::builder().build_in(world.clone()).unwrap();
            (world, locker)
        }

        fn sent(&self) -> Vec<Sent> {
            std::mem::take(&mut self.sent.lock().unwrap())
        }

        /// What was sent since the last look: the nodes, the command, whether it puts the ticket
        /// in line, and the number of the registration.
        fn told(&self) -> Vec<(usize, String, bool, Option<String>)> {
            let told = |(node, words, _): Sent| {
                let at = |word: &str| words.iter().position(|other| other == word);
                let number = at("GRANT").map(|at| words[at + 1].clone());
                (node, words[0].clone(), at("QUEUE").is_some(), number)
            };
            self.sent().into_iter().map(told).collect()
        }

        fn publishes(&self, node: usize, published: &Published) {
            self.wakes.hear(node, None, &published.to_bytes());
        }

        fn grants(&self, node: usize, ticket: &Ticket, number: u64) {
            let (ticket, fence) = (ticket.clone(), Fence::new(7).unwrap());
            self.publishes(node, &Published::Granted { ticket, fence, number });
        }
    }

    fn waiter(locker: &Locker) -> Waiter<'_> {
        let core = locker.core();
        let asked = (core.settings.plan, Mode::Exclusive, &b"me"[..]);
        Waiter::new(core, b"lock", asked, Duration::from_secs(5), Duration::from_secs(60))
    }

    fn lose(waiter: &mut Waiter<'_>, token: &[u8; TOKEN_LENGTH], has_more: bool) {
        assert!(waiter.lost((token, NodeSet::EMPTY), has_more, &mut None));
    }

    fn everywhere(
        command: &str,
        number: Option<&str>,
    ) -> Vec<(usize, String, bool, Option<String>)> {
        (0..3).map(|node| (node, command.to_owned(), true, number.map(str::to_owned))).collect()
    }

    fn is_ripe(waiter: &mut Waiter<'_>) -> bool {
        waiter.rest().now_or_never().is_some()
    }

    fn now() -> Instant {
        Instant::from_millis(5_000)
    }

    #[test]
    fn whoever_loses_registers_then_waits_and_gives_back_what_a_part_has_granted() {
        let (world, locker) = Silent::new();
        let mut waiter = waiter(&locker);
        let (token, _) = waiter.begin(now());
        lose(&mut waiter, &token, false);
        assert_eq!(world.told(), everywhere("LOCK.ACQUIRE", Some("1")), "it was not in line");
        assert!(!is_ripe(&mut waiter));
        let (kept, _) = waiter.begin(now());
        lose(&mut waiter, &kept, false);
        assert_eq!((kept, world.told()), (token, Vec::new()), "it is in line with this token");
        let (kept, _) = waiter.begin(now());
        lose(&mut waiter, &kept, true);
        assert_eq!((kept, world.told()), (token, everywhere("LOCK.RELEASE", None)));
        let (fresh, _) = waiter.begin(now());
        assert_ne!(fresh, token, "it was released");
    }

    #[test]
    fn whoever_stops_waiting_releases_the_last_token_everywhere() {
        let (world, locker) = Silent::new();
        let mut waiter = waiter(&locker);
        let (token, _) = waiter.begin(now());
        lose(&mut waiter, &token, false);
        world.sent();
        drop(waiter);
        let told: Vec<_> = world.told().into_iter().map(|(node, name, ..)| (node, name)).collect();
        assert_eq!(told, [0, 1, 2].map(|node| (node, "LOCK.RELEASE".to_owned())));
    }

    #[test]
    fn grants_of_a_quorum_are_an_attempt_unless_the_token_was_released() {
        for has_more in [false, true] {
            let (world, locker) = Silent::new();
            let mut waiter = waiter(&locker);
            assert!(waiter.take_seat());
            let (token, _) = waiter.begin(now());
            lose(&mut waiter, &token, has_more);
            let ticket = waiter.ticket.clone();
            world.grants(0, &ticket, 1);
            assert!(!is_ripe(&mut waiter), "one of three");
            world.grants(2, &ticket, 1);
            assert_eq!(is_ripe(&mut waiter), !has_more);
            let (next, outset) = waiter.begin(now());
            let granted = match outset {
                Outset::Granted(harvest) => harvest.grants.len(),
                Outset::Ask(_) => 0,
            };
            assert_eq!((next == token, granted), if has_more { (false, 0) } else { (true, 2) });
        }
    }

    /// The task may read both at once. It used to look at the wake first, and forgot it when it
    /// took the answer.
    #[test]
    fn a_wake_counts_if_it_comes_after_the_answer_to_a_registration() {
        for is_after in [true, false] {
            let (world, locker) = Silent::new();
            let mut waiter = waiter(&locker);
            let (token, _) = waiter.begin(now());
            lose(&mut waiter, &token, false);
            let mut ripe = Vec::new();
            for (node, _, reply_to) in world.sent().into_iter().take(2) {
                let turn = || world.publishes(node, &Published::Turn(waiter.ticket.clone()));
                let answer = || reply_to.unwrap().deliver(Ok(Reply::Nil));
                if is_after {
                    answer();
                    turn();
                } else {
                    turn();
                    answer();
                }
                ripe.push(is_ripe(&mut waiter));
            }
            assert_eq!(ripe, [false, is_after], "a quorum is two");
        }
    }

    #[test]
    fn a_ticket_is_put_in_line_again_where_the_connection_is_back() {
        for has_more in [false, true] {
            let (world, locker) = Silent::new();
            let mut waiter = waiter(&locker);
            assert!(waiter.take_seat());
            let (token, _) = waiter.begin(now());
            lose(&mut waiter, &token, has_more);
            for (_, _, reply_to) in world.sent() {
                let _ = reply_to
                    .map(|reply_to| reply_to.deliver(Err(NoReply::Unreachable("gone".into()))));
            }
            world.wakes.broken(1);
            world.wakes.connected(1, true);
            assert!(!is_ripe(&mut waiter));
            let expected =
                if has_more { ("LOCK.RELEASE", None) } else { ("LOCK.ACQUIRE", Some("2")) };
            assert_eq!(world.told(), everywhere(expected.0, expected.1)[1..2]);
        }
    }
}
