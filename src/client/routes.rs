//! Which master of a Cluster has which slot, and what was sent there.
//!
//! There may be masters without slots: a slot may be moving to one, which gets the commands about
//! locks that are there already or are free.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::link::Link;
use super::node_url::Location;
use super::outbox::{Item, Outbox, Outstanding, Rank};
use super::packet::{Care, Packet};
use super::slots::{Redirection, SlotRange};
use crate::engine::SLOTS;
use crate::wire::slots::slot_of;

/// The most locks of which it is known that their last command was sent on: for the texts of
/// errors, which then name the master of the slot.
const SENT_ON_MAX: usize = 1 << 10;
/// For how long that counts: every command goes to the master of the slot first.
const SENT_ON_FRESH: Duration = Duration::from_secs(5);

/// The routes of commands.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// For each slot, the index of its master in `masters`. Empty while nothing is known.
    slots: Vec<Option<usize>>,
    pub(super) masters: Vec<Master>,
    /// Commands that wait for the slots to be known.
    pub(super) parked: Outbox,
    /// The claims that were sent and not released.
    pub(super) asked: Outstanding,
    /// How many commands were sent.
    count: u64,
    /// Where the last command about a lock was sent on because its slot is moving, and when.
    sent_on: HashMap<Box<[u8]>, (Arc<str>, Instant)>,
}

/// A master of a Cluster.
#[derive(Debug)]
pub(super) struct Master {
    pub(super) name: Arc<str>,
    pub(super) place: Location,
    /// Its id, if the Cluster has told it.
    id: Option<String>,
    pub(super) link: Option<Link>,
}

/// What may still be sent of a command.
pub(super) enum Remainder {
    /// The whole command.
    All,
    /// The release, without the place in line.
    Release,
    /// Nothing.
    Nothing,
}

impl Routes {
    /// Whether it is known which master has which slot.
    pub(super) const fn is_known(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The master of a slot, if one is known.
    pub(super) fn index_of(&self, slot: u16) -> Option<usize> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }

    /// The master of this name.
    pub(super) fn index_by(&self, name: &str) -> Option<usize> {
        self.masters.iter().position(|known| *known.name == *name)
    }

    /// The master that was sent the last command about the lock `name`, as far as is known.
    pub(super) fn last_asked(&self, name: &[u8]) -> Option<Arc<str>> {
        let of_slot = || Some(&self.masters[self.index_of(slot_of(name))?].name);
        let sent_on = self.sent_on.get(name).filter(|(_, at)| at.elapsed() < SENT_ON_FRESH);
        sent_on.map(|(place, _)| place).or_else(of_slot).cloned()
    }

    /// The names of the masters that have slots.
    pub(super) fn with_slots(&self) -> Vec<Arc<str>> {
        let has_slots = |(index, _): &(usize, &Master)| self.slots.contains(&Some(*index));
        let masters = self.masters.iter().enumerate().filter(has_slots);
        masters.map(|(_, master)| Arc::clone(&master.name)).collect()
    }

    /// How many slots this master has.
    pub(super) fn slots_of(&self, master: &str) -> u16 {
        let index = self.index_by(master);
        let has = self.slots.iter().filter(|slot| slot.is_some() && **slot == index).count();
        u16::try_from(has).unwrap_or(SLOTS)
    }

    /// The master at this place, which is added if it is new.
    pub(super) fn master_at(&mut self, place: Location) -> usize {
        let known = self.masters.iter().position(|master| master.place == place);
        known.unwrap_or_else(|| {
            let name = place.to_string().into();
            self.masters.push(Master { name, place, id: None, link: None });
            self.masters.len() - 1
        })
    }

    /// The master with this id, or else the one at this place, which is added if it is new.
    pub(super) fn master_with(&mut self, id: &str, place: Option<Location>) -> Option<usize> {
        let known = self.masters.iter().position(|master| master.id.as_deref() == Some(id));
        known.or_else(|| place.map(|place| self.master_at(place)))
    }

    /// The master to which an error without a host redirects: the only one with this port. (If
    /// several have it, the report of the slots tells which one has got a slot.)
    pub(super) fn only_one_for(&self, to: &Redirection) -> Option<usize> {
        let has_it = |place: &Location| match place {
            Location::Tcp { port, .. } => *port == to.port,
            _ => false,
        };
        let mut found = self.masters.iter().enumerate().filter(|(_, master)| has_it(&master.place));
        let first = found.next().map(|(index, _)| index);
        // A slot moves to another master than the one that has it, which may be unknown yet.
        let is_other = |index: &usize| !to.is_ask || self.index_of(to.slot) != Some(*index);
        first.filter(|_| found.next().is_none()).filter(is_other)
    }

    /// Notes that a slot has moved to this master.
    pub(super) fn moved(&mut self, slot: u16, index: Option<usize>) {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            *slot = index.or(*slot);
        }
    }

    /// Notes where a command about the lock `name` is sent on to, because its slot is moving; or
    /// that it has moved.
    pub(super) fn note_place(&mut self, name: &[u8], sent_on_to: Option<usize>) {
        match sent_on_to {
            None => drop(self.sent_on.remove(name)),
            Some(index) => {
                if self.sent_on.len() >= SENT_ON_MAX {
                    self.sent_on.clear();
                }
                let place = (Arc::clone(&self.masters[index].name), Instant::now());
                self.sent_on.insert(name.into(), place);
            }
        }
    }

    /// Takes over a report of the slots, where `place_of` says where a range's master is. Returns
    /// the links to masters that have none any more.
    pub(super) fn replace(
        &mut self,
        ranges: Vec<SlotRange>,
        place_of: impl Fn(String, u16) -> Location,
    ) -> Vec<Link> {
        let mut fresh = Routes { slots: vec![None; usize::from(SLOTS)], ..Routes::default() };
        for range in ranges {
            let index = fresh.master_at(place_of(range.host, range.port));
            fresh.masters[index].id = Some(range.id);
            let slots = usize::from(range.first)..=usize::from(range.last);
            fresh.slots.get_mut(slots).into_iter().flatten().for_each(|slot| *slot = Some(index));
        }
        self.slots = fresh.slots;
        let mut gone = Vec::new();
        for Master { place, link, .. } in std::mem::replace(&mut self.masters, fresh.masters) {
            match self.masters.iter_mut().find(|master| master.place == place) {
                Some(master) => master.link = link,
                None => gone.extend(link),
            }
        }
        gone
    }

    /// Notes a command's part in an acquisition, and returns how it stands to those before. (A link
    /// does not know that: it may be new, or its lock have come from another master.)
    pub(super) fn note(&mut self, packet: &Packet) -> Rank {
        self.count += 1;
        let number = self.count;
        let is_release = matches!(packet.care(), Care::UntilAnswered(_));
        let Some(part) = packet.part() else {
            return Rank { is_owed: is_release, is_first: false, number };
        };
        let is_owed = is_release && self.asked.has(part.claim);
        let is_first = self.asked.is_first(packet);
        self.asked.note(Some(part));
        if is_release {
            self.asked.released(part.claim, number);
        }
        Rank { is_owed, is_first, number }
    }

    /// What may still be sent of a command that comes back. A request that was released since must
    /// not be sent: it would travel behind the release.
    pub(super) fn left_of(&self, item: &Item) -> Remainder {
        let part = item.packet.part().filter(|part| part.asks_for.is_some());
        match part.is_some_and(|part| self.asked.is_released_since(part.claim, item.number)) {
            false => Remainder::All,
            true if item.is_owed => Remainder::Release,
            true => Remainder::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::slots::redirection;

    fn place(host: &str, port: u16) -> Location {
        Location::Tcp { host: host.to_owned(), port, is_tls: false }
    }

    fn range(slots: (u16, u16), id: &str, host: &str) -> SlotRange {
        let (first, last) = slots;
        SlotRange { first, last, id: id.to_owned(), host: host.to_owned(), port: 7_000 }
    }

    fn installed(ranges: &[SlotRange]) -> Routes {
        let mut routes = Routes::default();
        assert!(routes.replace(ranges.to_vec(), |host, port| place(&host, port)).is_empty());
        routes
    }

    /// A command was sent back to the master that had redirected it.
    #[test]
    fn an_error_without_a_host_names_the_only_other_master_with_its_port() {
        let mut routes = installed(&[range((7, 7), "a", "a")]);
        let source = routes.index_of(7);
        let target = routes.master_at(place("b", 7001));
        let named = |routes: &Routes, error| routes.only_one_for(&redirection(error).unwrap());
        for (error, expected) in [
            ("ASK 7 ?:7001", Some(target)),
            ("ASK 7 ?:7000", None),
            ("ASK 7 ?:7002", None),
            ("MOVED 7 ?:7001", Some(target)),
            ("MOVED 7 ?:7000", source),
        ] {
            assert_eq!(named(&routes, error), expected, "{error}");
        }
        routes.master_at(place("c", 7001));
        assert_eq!(named(&routes, "ASK 7 ?:7001"), None, "two have the port");
    }

    /// Errors blamed the master of the slot for what the one that it sends commands on to had
    /// answered.
    #[tokio::test(start_paused = true)]
    async fn the_master_that_was_asked_last_about_a_lock_is_the_one_that_it_was_sent_on_to() {
        let mut routes = installed(&[range((0, SLOTS - 1), "a", "a")]);
        let target = routes.master_at(place("b", 7_000));
        let asked = |routes: &Routes, name: &[u8]| routes.last_asked(name).unwrap().to_string();
        routes.note_place(b"n", Some(target));
        assert_eq!(
            (asked(&routes, b"n"), asked(&routes, b"m")),
            ("b:7000".into(), "a:7000".into())
        );
        drop(
            routes.replace(vec![range((0, SLOTS - 1), "a", "a")], |host, port| place(&host, port)),
        );
        assert_eq!(asked(&routes, b"n"), "b:7000", "the master without slots is known no more");
        tokio::time::advance(SENT_ON_FRESH).await;
        assert_eq!(asked(&routes, b"n"), "a:7000", "the move may have been called off");
        let target = routes.master_at(place("b", 7_000));
        routes.note_place(b"n", Some(target));
        routes.note_place(b"n", None);
        assert_eq!(asked(&routes, b"n"), "a:7000");
        let target = routes.master_at(place("b", 7_000));
        for number in 0..3 * SENT_ON_MAX {
            routes.note_place(&number.to_be_bytes(), Some(target));
        }
        assert!(routes.sent_on.len() <= SENT_ON_MAX);
    }

    #[test]
    fn masters_without_slots_are_routes_and_are_listed_nowhere() {
        let mut routes = installed(&[range((0, 9), "a", "a"), range((20, 20), "b", "b")]);
        let idle = routes.master_with("c", Some(place("c", 7_000)));
        assert_eq!(routes.master_with("a", Some(place("other", 7_000))), Some(0), "by its id");
        assert_eq!((routes.index_by("c:7000"), routes.master_with("d", None)), (idle, None));
        assert_eq!(routes.with_slots(), ["a:7000".into(), "b:7000".into()]);
        let counts = ["a:7000", "b:7000", "c:7000", "d:7000"].map(|name| routes.slots_of(name));
        assert_eq!(counts, [10, 1, 0, 0]);
        routes.moved(3, idle);
        routes.moved(4, None);
        assert_eq!((routes.slots_of("a:7000"), routes.slots_of("c:7000")), (9, 1));
    }
}
