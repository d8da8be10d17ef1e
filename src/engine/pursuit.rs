//! One claim over its whole wait: the registrations that were sent with its token, and the nodes
//! that have granted it.
//!
//! A waiter registers with each node by an ACQUIRE that puts its ticket in line, and repeats it
//! from time to time with the same token. A node may grant much later, without another request:
//! when the holder hands the lock over, the node grants it to the first in line and publishes the
//! grant. That is an ordinary grant to the last registration that the node has received, and it
//! names that registration. So the validity counts from the sending of *that* registration.
//!
//! P1: a release of the token goes to all nodes or to none, and once it has been sent, no grant to
//! the token counts any more. P2: a grant counts for the registration that it names, and the
//! validity counts from the oldest registration that a counted grant names. P3: a server has one
//! vote, however many addresses lead to it.

use std::num::NonZeroU64;

use super::quorum::{NodeSet, Quorum};
use super::validity::Terms;
use super::{Fence, Instant};

/// A grant that a node has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishedGrant {
    /// Which node.
    pub node: usize,
    /// Which server that is, if it is known.
    pub server: Option<NonZeroU64>,
    /// The fence of the grant.
    pub fence: Fence,
    /// The number of the registration.
    pub number: u64,
}

/// Grants of a quorum that leave enough time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Harvest {
    /// When the oldest registration that they name was sent: the validity counts from there.
    pub started_at: Instant,
    /// The grants.
    pub grants: Vec<PublishedGrant>,
}

/// A registration that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Sent {
    number: u64,
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct CountedGrant {
    told: PublishedGrant,
    sent_at: Instant,
}

/// The state of one claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pursuit {
    quorum: Quorum,
    terms: Terms,
    /// The number of the last registration, of any token.
    last: u64,
    /// The registrations with the present token, oldest first.
    sent: Vec<Sent>,
    /// Whether releases of the present token were sent.
    is_released: bool,
    /// At most one for each node.
    granted: Vec<CountedGrant>,
}

impl Pursuit {
    /// A claim for which nothing has been sent.
    pub fn new(quorum: Quorum, terms: Terms) -> Pursuit {
        let (sent, granted) = (Vec::new(), Vec::new());
        Pursuit { quorum, terms, last: 0, sent, is_released: false, granted }
    }

    /// Gives the claim a fresh token. The previous one has been released at all nodes.
    pub fn change_token(&mut self) {
        self.sent.clear();
        self.granted.clear();
        self.is_released = false;
    }

    /// Notes that a registration is about to be sent, and returns its number. `now` is rounded
    /// down.
    pub fn register(&mut self, now: Instant) -> u64 {
        self.sent.retain(|sent| !self.terms.validity(sent.at, now).is_zero());
        self.last += 1;
        self.sent.push(Sent { number: self.last, at: now });
        self.last
    }

    /// Notes that releases of the token are about to be sent to all nodes.
    pub fn release(&mut self) {
        self.is_released = true;
        self.granted.clear();
    }

    /// Whether releases of the present token were sent.
    pub const fn is_released(&self) -> bool {
        self.is_released
    }

    /// Takes a grant that a node has published. Returns whether it counts.
    pub fn granted(&mut self, told: PublishedGrant) -> bool {
        if self.is_released || !self.quorum.all().has(told.node) {
            return false;
        }
        let Some(sent) = self.sent.iter().find(|sent| sent.number == told.number) else {
            return false;
        };
        let is_second = |other: &CountedGrant| {
            other.told.node != told.node
                && told.server.is_some()
                && other.told.server == told.server
        };
        if self.granted.iter().any(is_second) {
            return false;
        }
        let granted = CountedGrant { told, sent_at: sent.at };
        match self.granted.iter_mut().find(|other| other.told.node == told.node) {
            Some(other) if other.told.number > told.number => return false,
            Some(other) => *other = granted,
            None => self.granted.push(granted),
        }
        true
    }

    /// Whether any grant counts.
    pub fn has_part(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Whether a grant of this node counts.
    pub fn has_granted(&self, node: usize) -> bool {
        self.granted.iter().any(|granted| granted.told.node == node)
    }

    /// Whether the grants with at least half of the ttl left are a quorum. (With less, the waiter
    /// first asks for the lock again, which extends the leases.) `now` is rounded up.
    pub fn is_ripe(&self, now: Instant) -> bool {
        let nodes = self.fresh(now).map(|granted| NodeSet::of(granted.told.node));
        self.quorum.is_reached(nodes.fold(NodeSet::EMPTY, NodeSet::or))
    }

    /// These grants, if they are a quorum.
    pub fn harvest(&self, now: Instant) -> Option<Harvest> {
        if !self.is_ripe(now) {
            return None;
        }
        let started_at = self.fresh(now).map(|granted| granted.sent_at).min()?;
        Some(Harvest { started_at, grants: self.fresh(now).map(|granted| granted.told).collect() })
    }

    fn fresh(&self, now: Instant) -> impl Iterator<Item = &CountedGrant> {
        let Pursuit { terms, granted, .. } = self;
        let is_fresh = move |granted: &&CountedGrant| {
            terms.validity(granted.sent_at, now).get().saturating_mul(2) >= terms.ttl.get()
        };
        granted.iter().filter(is_fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Millis;

    const TTL: Millis = Millis::new(10_000);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(50_000 + millis)
    }

    fn told(node: usize, number: u64) -> PublishedGrant {
        let (server, fence) = (NonZeroU64::new(node as u64 + 1), Fence::new(7).unwrap());
        PublishedGrant { node, server, fence, number }
    }

    fn pursuit() -> Pursuit {
        Pursuit::new(Quorum::of(3).unwrap(), Terms::new(TTL))
    }

    #[test]
    fn the_validity_counts_from_the_oldest_registration_that_a_counted_grant_names() {
        let mut pursuit = pursuit();
        let numbers = [0, 1_000, 2_000].map(|millis| pursuit.register(at(millis)));
        assert!(pursuit.granted(told(2, numbers[2])) && pursuit.has_part());
        assert_eq!(pursuit.harvest(at(2_500)), None, "one of three");
        assert!(pursuit.granted(told(0, numbers[1])));
        let harvest = pursuit.harvest(at(2_500)).unwrap();
        assert_eq!(harvest.started_at, at(1_000), "no grant names the first");
        assert_eq!(harvest.grants, [told(2, numbers[2]), told(0, numbers[1])]);
        assert!(pursuit.granted(told(0, numbers[2])), "it was asked again, and grants again");
        assert!(!pursuit.granted(told(0, numbers[1])), "that message was late");
        assert_eq!(pursuit.harvest(at(2_500)).unwrap().started_at, at(2_000));
    }

    #[test]
    fn a_token_counts_until_its_release_is_sent_and_another_token_counts_anew() {
        let mut pursuit = pursuit();
        let number = pursuit.register(at(0));
        assert!(pursuit.granted(told(0, number)));
        pursuit.release();
        assert!(pursuit.is_released() && !pursuit.has_part());
        assert!(!pursuit.granted(told(0, number)) && !pursuit.granted(told(1, number)));
        pursuit.change_token();
        let other = pursuit.register(at(1));
        assert!(!pursuit.granted(told(0, number)), "it is for the previous token");
        assert!(pursuit.granted(told(0, other)) && pursuit.granted(told(1, other)));
        assert_eq!(pursuit.harvest(at(2)).map(|harvest| harvest.started_at), Some(at(1)));
    }

    #[test]
    fn a_grant_counts_only_for_a_registration_that_was_sent_and_a_node_that_exists() {
        let mut pursuit = pursuit();
        let number = pursuit.register(at(0));
        for (node, number) in [(0, 0), (0, number + 1), (3, number), (31, number), (99, number)] {
            assert!(!pursuit.granted(told(node, number)), "{node} {number}");
        }
        assert!(!pursuit.has_part());
    }

    #[test]
    fn a_server_has_one_vote_whatever_leads_to_it() {
        let mut pursuit = pursuit();
        let number = pursuit.register(at(0));
        let through = |node, server| PublishedGrant { server, ..told(node, number) };
        assert!(pursuit.granted(through(0, NonZeroU64::new(5))));
        assert!(!pursuit.granted(through(1, NonZeroU64::new(5))));
        assert_eq!(pursuit.harvest(at(1)), None);
        assert!(pursuit.granted(through(1, None)), "its server is not known");
        assert!(pursuit.harvest(at(1)).is_some());
    }

    /// With less, the waiter asks again with the same token, which extends the leases.
    #[test]
    fn grants_that_leave_less_than_half_of_the_ttl_are_no_quorum() {
        let mut pursuit = pursuit();
        let old = pursuit.register(at(0));
        let new = pursuit.register(at(4_000));
        assert!(pursuit.granted(told(0, old)) && pursuit.granted(told(1, new)));
        assert!(pursuit.harvest(at(4_898)).is_some(), "half, and the drift");
        assert_eq!(pursuit.harvest(at(4_899)), None);
        assert!(pursuit.granted(told(2, new)));
        let harvest = pursuit.harvest(at(4_899)).unwrap();
        assert_eq!((harvest.started_at, harvest.grants.len()), (at(4_000), 2), "not the old one");
        let _ = pursuit.register(at(9_897));
        assert!(pursuit.granted(told(0, old)), "its validity is not over");
        let _ = pursuit.register(at(9_898));
        assert!(!pursuit.granted(told(0, old)), "now it is over, and forgotten");
    }
}
