//! The connections to a Redis Cluster, which is one node: a link to each master, made when it is
//! needed, and which master has which slot.
//!
//! A command that a master redirects (`MOVED`, `ASK`) goes on to the master that it names. All
//! routing is done under one lock, so that an acquire never travels behind its own release: once a
//! release was sent to another master, an acquire that comes back is not sent on.
//!
//! While it is not known which master has a slot, commands wait as for a connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::answering::Answering;
use super::destination::Destination;
use super::inbox::{NoReply, ReplyTo};
use super::link::{Link, LinkSeat, Router, stall_of};
use super::node_url::Location;
use super::outbox::{Item, Outbox};
use super::packet::Packet;
use super::routes::{Master, Remainder, Routes};
use super::seeds::{Seeds, is_same_view};
use super::slot_shares::MoveTarget;
use super::slots::{SlotRange, UNKNOWN, name_in, redirection};
use super::wakes::Wakes;
use crate::wire::code;
use crate::wire::slots::slot_of;

/// How often a command is redirected at once. After that, its slot is just moving, and the masters
/// disagree.
const HOPS_AT_ONCE: u8 = 2;
/// How often it is redirected before it is put off, if nobody waits for the answer.
const HOPS_MAX: u8 = 8;
/// The base of the pauses in between, which double.
const AGREE_MIN: Duration = Duration::from_millis(2);
/// The sender's error.
const MOVING: &str = "its slot is moving, and its masters send the command to and fro: see lockmod \
                      status, and whether the user may run ASKING";
/// The shortest pause between two requests for the slots.
const REFRESH_MIN: Duration = Duration::from_millis(50);
/// The longest pause before the next request, if no server has answered, or the answers stay the
/// same.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Runs a task.
pub(super) type Spawn = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// The links to a Cluster. Dropping it lets them finish what is in line.
#[derive(Debug)]
pub(super) struct SlotLinks(Arc<Routing>);

struct Routing {
    me: Weak<Routing>,
    seeds: Seeds,
    node: usize,
    answering: Arc<Answering>,
    wakes: Arc<Wakes>,
    patience: Duration,
    spawn: Spawn,
    routes: Mutex<Routes>,
    /// Notified when the slots are out of date.
    is_old: Arc<Notify>,
    hearing: Mutex<Hearing>,
    /// Each release that is sent later has a copy.
    owed_later: Arc<()>,
}

/// How many links there are.
#[derive(Debug, Default)]
struct Hearing {
    connected: usize,
    /// Of these, those that hear the wakes.
    heard: usize,
}

impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routing").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl SlotLinks {
    /// Starts to ask for the slots.
    pub(super) fn start(
        seeds: Seeds,
        (node, answering): (usize, Arc<Answering>),
        wakes: Arc<Wakes>,
        patience: Duration,
        spawn: Spawn,
    ) -> SlotLinks {
        let is_old = Arc::new(Notify::new());
        let routing = Arc::new_cyclic(|me| Routing {
            me: Weak::clone(me),
            seeds,
            node,
            answering,
            wakes,
            patience,
            spawn: Arc::clone(&spawn),
            routes: Mutex::default(),
            is_old: Arc::clone(&is_old),
            hearing: Mutex::default(),
            owed_later: Arc::default(),
        });
        spawn(Box::pin(keep_fresh(Arc::downgrade(&routing), is_old)));
        SlotLinks(routing)
    }

    /// Sends a command to the master of its lock, or to all masters if it is about no lock.
    pub(super) fn send(&self, packet: &Packet, reply_to: Option<ReplyTo>) {
        let mut routes = self.0.routes();
        match name_in(packet.bytes()) {
            Some(name) => self.0.send_to_slot(&mut routes, name, packet, reply_to),
            None => self.0.send_everywhere(&mut routes, packet, reply_to),
        }
    }

    /// Sends a command to this master.
    pub(super) fn send_to(&self, master: &str, packet: &Packet, reply_to: ReplyTo) {
        let mut routes = self.0.routes();
        match routes.index_by(master) {
            Some(index) => self.0.link(&mut routes, index).send(packet, Some(reply_to)),
            None => reply_to.deliver(Err(no_master())),
        }
    }

    /// The masters that have slots, as far as is known. (A slot may be moving to one that has none
    /// yet.)
    pub(super) fn masters(&self) -> Vec<Arc<str>> {
        self.0.routes().with_slots()
    }

    /// The name of this master, to which commands can be sent from now on, though it may have no
    /// slots; `None` if it is not known how to reach it.
    pub(super) fn meet(&self, MoveTarget { id, host, port, .. }: &MoveTarget) -> Option<Arc<str>> {
        let place = host.as_ref().map(|host| self.0.seeds.place(host.clone(), *port));
        let mut routes = self.0.routes();
        let index = routes.master_with(id, place)?;
        Some(Arc::clone(&routes.masters[index].name))
    }

    /// The master that was sent the last command about this lock, as far as is known.
    pub(super) fn last_asked(&self, name: &[u8]) -> Option<Arc<str>> {
        self.0.routes().last_asked(name)
    }

    /// The master of this slot, if it is known.
    pub(super) fn owner_of(&self, slot: u16) -> Option<Arc<str>> {
        let routes = self.0.routes();
        let index = routes.index_of(slot)?;
        Some(Arc::clone(&routes.masters[index].name))
    }

    /// How many slots this master has, as far as is known.
    pub(super) fn slots_of(&self, master: &str) -> u16 {
        self.0.routes().slots_of(master)
    }

    /// Whether a master has yet to carry out a release, and cannot be reached at present, or puts
    /// it off; or the masters disagree whose it is.
    pub(super) fn is_hindered(&self) -> bool {
        let routes = self.0.routes();
        let mut links = routes.masters.iter().filter_map(|master| master.link.as_ref());
        let is_in_line =
            routes.parked.is_hindered() || links.any(|link| link.state().line().is_hindered());
        is_in_line || self.owes_later()
    }

    /// Whether, as far as is known, a master has yet to carry out a release.
    pub(super) fn owes(&self) -> bool {
        let routes = self.0.routes();
        let mut links = routes.masters.iter().filter_map(|master| master.link.as_ref());
        let is_in_line = routes.parked.owes() || links.any(|link| link.state().line().owes());
        is_in_line || self.owes_later()
    }

    /// Whether a release is sent later.
    fn owes_later(&self) -> bool {
        Arc::strong_count(&self.0.owed_later) > 1
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        self.is_old.notify_one();
    }
}

impl Routing {
    fn hearing(&self) -> MutexGuard<'_, Hearing> {
        // Nothing panics while the lock is held, so the numbers are intact even if it is poisoned.
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that the Cluster is connected. One master that is not heard is enough for it not to be
    /// heard: the next lock may be there.
    fn tell(&self, hearing: &Hearing) {
        self.wakes.connected(self.node, hearing.connected == hearing.heard);
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        // Nothing panics while the lock is held, so the routes are intact even if it is poisoned.
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to a master, which is made now if there is none.
    fn link<'r>(&self, routes: &'r mut Routes, index: usize) -> &'r Link {
        let Master { place, link, .. } = &mut routes.masters[index];
        link.get_or_insert_with(|| {
            let host = if let Location::Tcp { host, .. } = place { host } else { "" };
            let router = (Weak::clone(&self.me) as Weak<dyn Router>, host.into());
            let destination = Destination::Server(self.seeds.master_at(place.clone()));
            let seat = LinkSeat {
                node: self.node,
                place: self.answering.next_place(self.node),
                answering: Arc::clone(&self.answering),
                wakes: Arc::clone(&self.wakes),
                router: Some(router),
            };
            let (link, driving) = Link::new(destination, self.patience, seat);
            (self.spawn)(Box::pin(driving));
            link
        })
    }

    fn send_to_slot(
        &self,
        routes: &mut Routes,
        name: &[u8],
        packet: &Packet,
        reply_to: Option<ReplyTo>,
    ) {
        if !routes.is_known() {
            return park(&mut routes.parked, packet, reply_to);
        }
        let slot = slot_of(name);
        let rank = routes.note(packet);
        let is_taken = if let Some(index) = routes.index_of(slot) {
            self.link(routes, index).state().take_as(packet, reply_to, rank)
        } else {
            self.is_old.notify_one();
            self.give_up(Item::ranked(packet.clone(), reply_to, rank), nowhere(slot));
            false
        };
        if !is_taken && rank.is_first {
            // Nothing was asked with this token, so its release is not owed.
            routes.asked.forget(packet.part());
        }
    }

    fn send_everywhere(&self, routes: &mut Routes, packet: &Packet, reply_to: Option<ReplyTo>) {
        if routes.masters.is_empty() {
            return park(&mut routes.parked, packet, reply_to);
        }
        let mut replies = reply_to.map(|reply_to| reply_to.split(routes.masters.len()));
        for index in 0..routes.masters.len() {
            let reply_to = replies.as_mut().and_then(Vec::pop);
            self.link(routes, index).send(packet, reply_to);
        }
    }

    /// Takes over the Cluster's report of its slots.
    ///
    /// # Errors
    /// If another node is the same Cluster.
    fn install(&self, ranges: Vec<SlotRange>) -> Result<(), NoReply> {
        let masters = ranges.iter().map(|range| range.id.clone()).collect();
        self.answering.note_cluster(self.node, masters)?;
        let mut routes = self.routes();
        let gone = routes.replace(ranges, |host, port| self.seeds.place(host, port));
        routes.parked.down = None;
        for mut item in std::mem::take(&mut routes.parked.items) {
            let rank = routes.note(&item.packet);
            // Unless the request that it undoes has been given up.
            item.is_owed &= rank.is_owed;
            item.number = rank.number;
            self.route(&mut routes, item);
        }
        // The dropped links finish what is in line, and hand back what they cannot deliver. That
        // must not happen while the routes are locked.
        drop(routes);
        drop(gone);
        Ok(())
    }

    /// The slots cannot be known at present.
    fn fail(&self, failure: &NoReply) {
        let mut routes = self.routes();
        if !routes.is_known() {
            routes.parked.fail(failure);
        }
    }

    /// Sends a command again, to the master that has its lock now.
    fn route(&self, routes: &mut Routes, item: Item) {
        if item.is_for_one_server() {
            return answer(item, no_master());
        }
        let Some(slot) = name_in(item.packet.bytes()).map(slot_of) else {
            let (packet, mut item) = (item.packet.clone(), item);
            return self.send_everywhere(routes, &packet, item.take_reply_to());
        };
        match routes.index_of(slot) {
            Some(index) => self.send_rest(routes, index, item),
            None => {
                if item.is_first() {
                    routes.asked.forget(item.packet.part());
                }
                self.is_old.notify_one();
                self.give_up(item, nowhere(slot));
            }
        }
    }

    /// Sends to a master what may still be sent of a command.
    fn send_rest(&self, routes: &mut Routes, index: usize, item: Item) {
        let item = match routes.left_of(&item) {
            Remainder::All => item,
            Remainder::Release => item.again(),
            Remainder::Nothing => return answer(item, NoReply::Unavailable(MOVING.into())),
        };
        self.link(routes, index).state().accept(item);
    }

    /// Sends a command on to the master that the error of one on this host names. Returns the
    /// command if it is not sent on.
    fn send_on(&self, mut item: Item, error: &str, host: &str) -> Option<Item> {
        let is_sent_on = !item.is_direct();
        let is_later = code::word_of(error) == code::TRYAGAIN.word;
        if is_sent_on && is_later {
            item = self.send_delayed(item)?;
        }
        let Some(place) = redirection(error).filter(|_| is_sent_on) else { return Some(item) };
        let mut routes = self.routes();
        let place_at = |host: &str| self.seeds.place(host.to_owned(), place.port);
        let index = match &*place.host {
            UNKNOWN => routes.only_one_for(&place),
            "" => Some(routes.master_at(place_at(host))),
            other => Some(routes.master_at(place_at(other))),
        };
        if !place.is_ask {
            routes.moved(place.slot, index);
            self.is_old.notify_one();
        }
        item.redirected();
        let is_at_once = item.hops <= HOPS_AT_ONCE || place.is_ask && item.hops <= HOPS_MAX;
        match index.filter(|_| is_at_once) {
            Some(index) => {
                item.is_asking = place.is_ask;
                if let Some(name) = name_in(item.packet.bytes()) {
                    routes.note_place(name, place.is_ask.then_some(index));
                }
                self.send_rest(&mut routes, index, item);
            }
            None if item.is_awaited() => {
                let item = self.send_delayed(item)?;
                self.give_up(item, NoReply::Unavailable(MOVING.into()));
            }
            None if item.hops <= HOPS_MAX => self.send_later(item),
            None => self.give_up(item, NoReply::Unavailable(MOVING.into())),
        }
        None
    }

    /// Sends a command again after a pause. Returns it if its sender might then have no answer in
    /// time.
    fn send_delayed(&self, mut item: Item) -> Option<Item> {
        let Some(pause) = next_delay(item.delays, item.since.elapsed(), self.patience) else {
            return Some(item);
        };
        item.delayed();
        self.send_after(pause, item);
        None
    }

    /// Tells the sender of a command that it was not carried out. A release that is owed is sent
    /// again, until its lease has ended.
    fn give_up(&self, item: Item, failure: NoReply) {
        let again = item.put_off(Instant::now());
        answer(item, failure);
        if let Some(mut again) = again {
            // The next redirection is followed.
            again.hops = HOPS_MAX - 1;
            self.send_later(again);
        }
    }

    /// Sends a command on after a pause, when the masters may agree which of them has its slot.
    fn send_later(&self, item: Item) {
        self.send_after(pause_of(item.hops), item);
    }

    fn send_after(&self, pause: Duration, item: Item) {
        let me = Weak::clone(&self.me);
        let owed = item.is_owed.then(|| Arc::clone(&self.owed_later));
        (self.spawn)(Box::pin(async move {
            sleep(pause).await;
            if let Some(routing) = me.upgrade() {
                routing.adopt([item].into());
            }
            drop(owed);
        }));
    }
}

impl Router for Routing {
    fn redirect(&self, item: Item, error: &str, host: &str) -> Option<Item> {
        if code::word_of(error) == code::CLUSTERDOWN.word {
            self.is_old.notify_one();
        }
        self.send_on(item, error, host)
    }

    fn adopt(&self, items: VecDeque<Item>) {
        let mut routes = self.routes();
        items.into_iter().for_each(|item| self.route(&mut routes, item));
    }

    fn has_slot_at(&self, slot: u16, place: usize) -> bool {
        let routes = self.routes();
        let master = routes.index_of(slot).map(|index| &routes.masters[index]);
        let link = master.and_then(|master| master.link.as_ref());
        link.is_some_and(|link| link.state().place() == place)
    }

    fn lost(&self) {
        self.is_old.notify_one();
    }

    fn connected(&self, hears: bool) {
        let mut hearing = self.hearing();
        hearing.connected += 1;
        hearing.heard += usize::from(hears);
        self.tell(&hearing);
    }

    fn broken(&self, heard: bool) {
        let mut hearing = self.hearing();
        hearing.connected -= 1;
        hearing.heard -= usize::from(heard);
        self.wakes.broken(self.node);
        // Tickets in line at other masters are put in line there again, which changes nothing.
        if hearing.connected > 0 {
            self.tell(&hearing);
        }
    }
}

/// The pause before a command is sent on for the time with this number.
fn pause_of(number: u8) -> Duration {
    AGREE_MIN * 2_u32.pow(u32::from(number.min(HOPS_MAX)))
}

/// The pause before a command is sent again that a master wants later, or about which the masters
/// disagree. `None` if the sender, who has waited for `spent`, might have no answer before its
/// `patience` ends: it should learn what they say. `delays`: how often the command was delayed
/// before.
fn next_delay(delays: u8, spent: Duration, patience: Duration) -> Option<Duration> {
    let delay_of = |number| pause_of(number).min(patience / 8);
    let delayed: Duration = (1..=delays).map(delay_of).sum();
    // Each request is taken to need as long as those before did.
    let trip = spent.saturating_sub(delayed) / (u32::from(delays) + 1);
    let delay = delay_of(delays.saturating_add(1));
    (spent + delay + trip < patience - patience / 8).then_some(delay)
}

/// Tells the sender of a command why it was not carried out.
fn answer(mut item: Item, failure: NoReply) {
    item.answer(Err(failure));
}

fn no_master() -> NoReply {
    NoReply::Unreachable("it is no longer a master".into())
}

fn nowhere(slot: u16) -> NoReply {
    NoReply::Unavailable(format!("no master of the Cluster has slot {slot}").into())
}

/// Puts a command aside until the slots are known.
fn park(parked: &mut Outbox, packet: &Packet, reply_to: Option<ReplyTo>) {
    if let Err(refused) = parked.take(packet, reply_to) {
        let (failure, reply_to) = *refused;
        if let Some(reply_to) = reply_to {
            reply_to.deliver(Err(failure));
        }
    }
}

/// Asks for the slots at the start, and whenever they may have changed.
async fn keep_fresh(routing: Weak<Routing>, is_old: Arc<Notify>) {
    let (mut pause, mut before) = (REFRESH_MIN, Vec::new());
    loop {
        let Some(now) = routing.upgrade() else { return };
        let (seeds, limit) = (now.seeds.clone(), stall_of(now.patience));
        let mut known: Vec<Location> =
            now.routes().masters.iter().map(|master| master.place.clone()).collect();
        drop(now);
        // Starts with a random one: any may be cut off and know nothing new.
        if !known.is_empty() {
            let first = rand::random_range(0..known.len());
            known.rotate_left(first);
        }
        let told = seeds.ask(known, limit).await;
        let Some(now) = routing.upgrade() else { return };
        let told = told.and_then(|ranges| now.install(ranges.clone()).map(|()| ranges));
        match told {
            Ok(ranges) => {
                drop(now);
                let told_at = Instant::now();
                is_old.notified().await;
                // What the servers tell has not changed since, and does not at once.
                let is_same = is_same_view(&ranges, &before) && told_at.elapsed() < PAUSE_MAX;
                pause = if is_same { PAUSE_MAX.min(pause * 2) } else { REFRESH_MIN };
                before = ranges;
                sleep(pause).await;
            }
            Err(failure) => {
                now.fail(&failure);
                drop(now);
                sleep(pause).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the pauses were counted. With slow answers the sender's time was over before the last.
    #[test]
    fn a_command_is_sent_again_only_if_its_sender_still_waits_for_the_answer() {
        let patience = Duration::from_millis(500);
        for (trip, least) in [(0, 8), (10, 6), (40, 4), (120, 1), (300, 0), (500, 0)] {
            let trip = Duration::from_millis(trip);
            let (mut spent, mut delays) = (trip, 0);
            while let Some(pause) = next_delay(delays, spent, patience) {
                spent += pause + trip;
                delays += 1;
            }
            assert!(delays >= least, "{trip:?}: {delays}");
            assert!(delays == 0 || spent < patience, "{trip:?}: {delays} delays, {spent:?}");
        }
    }
}
