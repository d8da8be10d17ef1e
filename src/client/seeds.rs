//! A node that is a Redis Cluster: where its masters are, according to its servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;
use tokio_rustls::rustls;

use super::connect::{Address, exchange_by};
use super::inbox::NoReply;
use super::node_url::{Location, NodeUrl};
use super::packet::Packet;
use super::silence::{NO_ANSWER, NOBODY, Telling, most_telling, of_servers};
use super::slots::{SlotRange, read_slots};
use crate::engine::SLOTS;
use crate::wire::resp::Reader;

/// How long a server has to answer before the next one is asked as well.
const NEXT_AFTER: Duration = Duration::from_millis(25);
/// How long the next answer may take once all are asked, and one has told of a Cluster that lacks
/// slots.
const BETTER_WITHIN: Duration = Duration::from_millis(250);
/// So many servers that tell the same of such a Cluster are enough.
const AGREEING: usize = 3;

/// A Cluster, given by some of its servers: any that answers knows all others.
#[derive(Debug, Clone)]
pub(super) struct Seeds {
    name: Arc<str>,
    places: Vec<Location>,
    is_tls: bool,
    /// The login, and everything else that does not depend on where a server is.
    login: Address,
    telling: Telling,
}

/// What servers have told of the slots, each with how many told that.
#[derive(Default)]
struct Views(Vec<(Vec<SlotRange>, usize)>);

impl Views {
    /// Takes what one server tells. Returns whether that is enough.
    fn decide(&mut self, told: Vec<SlotRange>) -> bool {
        let is_first = self.0.is_empty();
        let same = self.0.iter_mut().find(|(view, _)| is_same_view(view, &told));
        match same {
            Some((_, count)) => {
                *count += 1;
                *count == AGREEING
            }
            None => {
                let is_whole = slot_count(&told) == usize::from(SLOTS);
                self.0.push((told, 1));
                is_first && is_whole
            }
        }
    }

    fn best(self) -> Option<Vec<SlotRange>> {
        let best = self.0.into_iter().max_by_key(|(view, count)| (*count, slot_count(view)));
        best.map(|(view, _)| view)
    }
}

/// Whether two servers tell the same: each in an order of its own, and each names its own host in
/// its own way.
pub(super) fn is_same_view(one: &[SlotRange], two: &[SlotRange]) -> bool {
    fn key(view: &[SlotRange]) -> BTreeSet<(u16, u16, &str)> {
        view.iter().map(|range| (range.first, range.last, &*range.id)).collect()
    }
    key(one) == key(two)
}

fn slot_count(view: &[SlotRange]) -> usize {
    view.iter().map(|range| (range.first..=range.last).len()).sum()
}

impl Seeds {
    /// The Cluster that a URL names; `None` if it names something else.
    pub(super) fn of(url: &NodeUrl) -> Option<Seeds> {
        let Location::Cluster { seeds, is_tls } = &url.place else { return None };
        let (name, places) = (url.place.to_string().into(), seeds.clone());
        let (login, telling) = (Address::of(url.clone()), Telling::default());
        Some(Seeds { name, places, is_tls: *is_tls, login, telling })
    }

    /// For people and reports.
    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Sets how to encrypt connections.
    pub(super) fn set_tls(&mut self, tls: &Arc<rustls::ClientConfig>) {
        self.login.set_tls(Arc::clone(tls));
    }

    /// Skips the subscription.
    pub(super) fn set_deaf(&mut self) {
        self.login.set_deaf();
    }

    /// Whether both are the same Cluster, as far as can be seen.
    pub(super) fn is_same_node(&self, other: &Seeds) -> bool {
        let at = |seeds: &Seeds| -> Vec<Address> {
            seeds.places.iter().map(|place| seeds.master_at(place.clone())).collect()
        };
        at(self).iter().any(|one| at(other).iter().any(|two| one.is_same_node(two)))
    }

    /// What is said while no master is known.
    pub(super) fn silence(&self) -> Arc<str> {
        let names: Vec<String> = self.places.iter().map(Location::to_string).collect();
        self.telling.or(of_servers(&names.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// The master at this place.
    pub(super) fn master_at(&self, place: Location) -> Address {
        self.login.master_at(place)
    }

    /// A place that a server of the Cluster has named.
    pub(super) fn place(&self, host: String, port: u16) -> Location {
        Location::Tcp { host, port, is_tls: self.is_tls }
    }

    /// Asks which master has which slots: the `known` ones first, then the other seeds. Each has
    /// `limit` to answer, but one that hangs delays the next only for a moment. If the first
    /// that answers tells of all slots, that is the answer. Otherwise others are asked, and what
    /// most of them tell counts, or else what tells of most slots: a server that was removed from
    /// the Cluster may have some again, by the keys that it has kept.
    ///
    /// # Errors
    /// Why none has answered.
    pub(super) async fn ask(
        &self,
        known: Vec<Location>,
        limit: Duration,
    ) -> Result<Vec<SlotRange>, NoReply> {
        let new = self.places.iter().filter(|place| !known.contains(place)).cloned();
        let places: Vec<Location> = known.iter().cloned().chain(new).collect();
        let ask = |place: Location| async move { self.ask_within(limit, &place).await };
        let (mut places, mut asked) = (places.into_iter(), FuturesUnordered::new());
        let (mut failures, mut views) = (Vec::new(), Views::default());
        loop {
            asked.extend(places.next().map(ask));
            let soon = match places.len() {
                0 if views.0.is_empty() => Duration::MAX,
                0 => BETTER_WITHIN,
                _ => NEXT_AFTER,
            };
            let told = timeout(soon, asked.next()).await;
            told.iter().flatten().for_each(|told| self.telling.note(told));
            match told {
                Ok(Some(Ok(view))) => {
                    if views.decide(view) {
                        break;
                    }
                }
                Ok(Some(Err(failure))) => failures.push(failure),
                Err(_) if places.len() > 0 => {}
                Ok(None) | Err(_) => break,
            }
        }
        let none = || most_telling(failures, NOBODY);
        views.best().ok_or_else(none)
    }

    /// Why servers in the URL do not lead to this Cluster. Its masters have these ids by the time
    /// that all have answered; if that is still unknown, the first that answers decides.
    pub(super) async fn dead_ends(
        &self,
        patience: Duration,
        masters: impl FnOnce() -> Option<Vec<String>>,
    ) -> Vec<NoReply> {
        let asked = self.places.iter().map(|place| async move {
            let told = self.ask_within(patience, place).await;
            told.map(|view| view.into_iter().map(|range| range.id).collect::<Vec<String>>())
        });
        let told = join_all(asked).await;
        let first = || told.iter().find_map(|told| told.as_ref().ok()).cloned();
        let own = masters().or_else(first).unwrap_or_default();
        let judged = self.places.iter().zip(told).filter_map(|(place, told)| match told {
            Ok(ids) if ids.iter().any(|id| own.contains(id)) => None,
            Ok(_) => Some(NoReply::Refused("a server of another Cluster".into()).at(place)),
            Err(failure) => Some(failure),
        });
        judged.collect()
    }

    /// The answer of one server within `limit`.
    ///
    /// # Errors
    /// Why there is none, with the server.
    async fn ask_within(
        &self,
        limit: Duration,
        place: &Location,
    ) -> Result<Vec<SlotRange>, NoReply> {
        let told = timeout(limit, self.ask_one(place)).await;
        let told = told.unwrap_or_else(|_| Err(NoReply::Unreachable(NO_ANSWER.into())));
        told.map_err(|failure| failure.at(place))
    }

    async fn ask_one(&self, place: &Location) -> Result<Vec<SlotRange>, NoReply> {
        let mut stream = self.master_at(place.clone()).enter().await?;
        let command = Packet::new(&[b"CLUSTER", b"SLOTS"]);
        let replies = exchange_by(&mut Reader::default(), &mut stream, &[command]).await?;
        let mut ranges = read_slots(replies.first())?;
        if let Location::Tcp { host, .. } = place {
            let nameless = ranges.iter_mut().filter(|range| range.host.is_empty());
            nameless.for_each(|range| range.host.clone_from(host));
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer that another server gives in its own way is no news.
    #[test]
    fn views_differ_only_in_which_master_has_which_slots() {
        let range = |first, id: &str, host: &str| {
            let (id, host) = (id.to_owned(), host.to_owned());
            SlotRange { first, last: first + 9, id, host, port: 1 }
        };
        let one = [range(0, "a", ""), range(10, "b", "h")];
        assert!(is_same_view(&one, &[range(10, "b", ""), range(0, "a", "h")]));
        assert!(!is_same_view(&one, &[range(0, "b", ""), range(10, "a", "h")]));
        assert!(!is_same_view(&one, &one[..1]));
    }

    #[test]
    fn what_most_servers_tell_counts_unless_the_first_tells_of_all_slots() {
        let view = |last, id: &str| {
            let (id, host) = (id.to_owned(), "h".to_owned());
            vec![SlotRange { first: 0, last, id, host, port: 1 }]
        };
        let (part, hole) = (|| view(100, "removed"), || view(SLOTS - 2, "a"));
        let (whole, old) = (|| view(SLOTS - 1, "a"), || view(SLOTS - 1, "old"));
        for (told, asked, best) in [
            (vec![whole(), part()], 1, whole()),
            (vec![part(), whole()], 2, whole()),
            (vec![part(), old(), hole(), hole()], 4, hole()),
            (vec![hole(), old(), hole(), hole(), old()], 4, hole()),
            (vec![part()], 1, part()),
        ] {
            let mut views = Views::default();
            let enough = told.into_iter().map(|view| views.decide(view)).position(|enough| enough);
            assert_eq!(enough.map_or(asked, |last| last + 1), asked);
            assert_eq!(views.best(), Some(best));
        }
        assert_eq!(Views::default().best(), None);
    }
}
