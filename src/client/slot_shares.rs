//! What the masters of a Cluster say of their own slots, and of those that are moving.
//!
//! Which master has a slot is each master's own belief. A server that has missed a change, or was
//! changed by hand, may send clients to a master that does not have the slot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::SLOTS;
use crate::wire::resp::Reply;
use crate::wire::slots::read_shares;

/// A slot of a master, by the master's name.
type SlotOf = (Arc<str>, u16);

/// What masters say of their own slots, by their names. One that does not let the user ask
/// (`CLUSTER NODES`), or does not answer, is left out.
pub(super) type OwnShares = BTreeMap<Arc<str>, OwnShare>;

/// What one master says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OwnShare {
    own: BTreeSet<u16>,
    importing: BTreeSet<u16>,
    pub(super) targets: Vec<MoveTarget>,
}

/// Another master to which slots are moving by steps (`CLUSTER SETSLOT`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoveTarget {
    pub(super) slots: BTreeSet<u16>,
    pub(super) id: String,
    /// `None` if it is not known under which host a client reaches it.
    pub(super) host: Option<String>,
    pub(super) port: u16,
}

/// Slots in which no lock that is free can be acquired, although their masters are well.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gaps {
    /// Slots of which the others say that this master has them, and it does not, nor does another.
    pub(super) unclaimed: BTreeSet<SlotOf>,
    /// Slots that this master sends commands on for, to one that does not take them.
    pub(super) untaken: BTreeSet<SlotOf>,
}

impl OwnShare {
    /// Reads the reply to CLUSTER NODES of the master at `place`.
    pub(super) fn read(reply: Option<&Reply>, place: &str) -> Option<OwnShare> {
        let Some(Reply::Text(text)) = reply else { return None };
        let text = String::from_utf8_lossy(text);
        let shares = read_shares(&text);
        let own = shares.own.iter().flat_map(|(first, last)| *first..=*last).collect();
        let importing = shares.importing.iter().map(|(slot, _)| *slot).collect();
        let mut by_id: BTreeMap<Vec<u8>, BTreeSet<u16>> = BTreeMap::new();
        for (slot, id) in shares.migrating {
            by_id.entry(id).or_default().insert(slot);
        }
        let targets = by_id.into_iter().filter_map(|(id, slots)| {
            let id = String::from_utf8_lossy(&id).into_owned();
            let (host, port) = reached_as(&text, place, &id)?;
            Some(MoveTarget { slots, id, host, port })
        });
        Some(OwnShare { own, importing, targets: targets.collect() })
    }

    /// Whether it decides in a slot about locks for which commands are sent on to it.
    fn takes(&self, slot: u16) -> bool {
        self.own.contains(&slot) || self.importing.contains(&slot)
    }
}

/// Where a client that reaches the server that has told this at `place` reaches another one: in the
/// same way, by an address or by a host name.
fn reached_as(text: &str, place: &str, id: &str) -> Option<(Option<String>, u16)> {
    let hosts_of = |line: &str| {
        let (address, names) = line.split(' ').nth(1)?.split_once('@')?;
        let (ip, port) = address.rsplit_once(':')?;
        let name = names.split(',').nth(1).unwrap_or_default();
        Some(([ip.to_owned(), name.to_owned()], port.parse::<u16>().ok()?))
    };
    let is_own = |line: &&str| line.split(' ').nth(2).is_some_and(|flags| flags.contains("myself"));
    let used = place.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']));
    let is_used = |host: &String| !host.is_empty() && used == Some(host);
    let own = text.lines().find(is_own).and_then(hosts_of);
    let kind = own.and_then(|(hosts, _)| hosts.iter().position(is_used));
    let (hosts, port) = hosts_of(text.lines().find(|line| line.starts_with(id))?)?;
    let host = kind.map(|kind| hosts[kind].clone()).filter(|host| !host.is_empty());
    Some((host, port))
}

/// The masters that may have got locks from others between these two accounts: slots have moved to
/// them, or have begun to. `with_old`: also where that began before.
pub(super) fn receivers(before: &OwnShares, after: &OwnShares, with_old: bool) -> Vec<Arc<str>> {
    let has_got = |(name, share): &(&Arc<str>, &OwnShare)| {
        before.get(*name).is_some_and(|told| {
            // The last keys of a slot come just before it is the master's own.
            !share.own.is_subset(&told.own)
                || !share.importing.is_subset(&told.importing)
                || with_old && !share.importing.is_empty()
        })
    };
    after.iter().filter(has_got).map(|(name, _)| Arc::clone(name)).collect()
}

impl Gaps {
    /// By what the masters say of themselves, and what the client has been told of them: `owner`
    /// of a slot. `target`: the name of one to which slots move, if it is known.
    pub(super) fn of(
        shares: &OwnShares,
        owner: impl Fn(u16) -> Option<Arc<str>>,
        target: impl Fn(&MoveTarget) -> Option<Arc<str>>,
    ) -> Gaps {
        let claimed: BTreeSet<u16> =
            shares.values().flat_map(|share| &share.own).copied().collect();
        let unclaimed = (0..SLOTS).filter(|slot| !claimed.contains(slot));
        let of_owner = unclaimed.filter_map(|slot| Some((owner(slot)?, slot)));
        let unclaimed = of_owner.filter(|(owner, _)| shares.contains_key(owner)).collect();
        let mut untaken = BTreeSet::new();
        for (from, share) in shares {
            for to in &share.targets {
                let Some(told) = target(to).and_then(|name| shares.get(&name)) else { continue };
                let slots = to.slots.iter().filter(|slot| !told.takes(**slot));
                untaken.extend(slots.map(|slot| (Arc::clone(from), *slot)));
            }
        }
        Gaps { unclaimed, untaken }
    }

    /// Those that are gaps still.
    pub(super) fn and(&self, later: &Gaps) -> Gaps {
        Gaps {
            unclaimed: &self.unclaimed & &later.unclaimed,
            untaken: &self.untaken & &later.untaken,
        }
    }

    /// How many slots of this master are in a set of gaps.
    pub(super) fn count(gaps: &BTreeSet<SlotOf>, master: &str) -> u16 {
        let of_master = gaps.iter().filter(|(owner, _)| &**owner == master).count();
        u16::try_from(of_master).unwrap_or(SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str, place: &str) -> OwnShare {
        OwnShare::read(Some(&Reply::Text(text.as_bytes().to_vec().into())), place).unwrap()
    }

    #[test]
    fn slots_move_to_masters_that_are_reached_as_the_one_that_tells_of_it() {
        let targets = |own: &str, targets: &str, place: &str| {
            let line = format!("aa {own} myself,master - 0 0 1 connected 0-9 [4->-bb] [5->-bb]");
            let text = format!("{line} [6->-cc] [7-<-bb]\nbb {targets} master - 0 0 2 connected\n");
            let share = told(&text, place);
            assert!(share.takes(9) && share.takes(7) && !share.takes(10), "{share:?}");
            let told = share.targets.into_iter().map(|to| (to.slots, to.id, to.host, to.port));
            told.collect::<Vec<_>>()
        };
        let (own, other) = ("10.0.0.1:7000@17000,own.name", "10.0.0.2:7001@17001,other.name");
        let to = |host: Option<&str>| {
            vec![([4, 5].into(), "bb".to_owned(), host.map(str::to_owned), 7_001)]
        };
        assert_eq!(targets(own, other, "10.0.0.1:7000"), to(Some("10.0.0.2")));
        assert_eq!(targets(own, other, "own.name:7000"), to(Some("other.name")));
        let six = ("::1:7000@17000", "::2:7001@17001");
        assert_eq!(targets(six.0, six.1, "[::1]:7000"), to(Some("::2")));
        assert_eq!(targets(own, other, "forwarded:7000"), to(None));
        assert_eq!(targets(own, "10.0.0.2:7001@17001", "own.name:7000"), to(None));
        assert_eq!(targets(":7000@17000", other, "10.0.0.1:7000"), to(None));
        assert_eq!(OwnShare::read(Some(&Reply::Error("NOPERM".into())), "h:1"), None);
    }

    fn share(own: &[u16], importing: &[u16], migrating: &[u16]) -> OwnShare {
        let set = |slots: &[u16]| slots.iter().copied().collect::<BTreeSet<_>>();
        let target = MoveTarget { slots: set(migrating), id: "b".to_owned(), host: None, port: 1 };
        let targets = if migrating.is_empty() { Vec::new() } else { vec![target] };
        OwnShare { own: set(own), importing: set(importing), targets }
    }

    fn shares(told: [(&str, OwnShare); 2]) -> OwnShares {
        told.into_iter().map(|(name, share)| (name.into(), share)).collect()
    }

    /// All was said to be well while masters disagreed, and while a move was open at one side.
    #[test]
    fn a_slot_that_its_master_does_not_have_or_that_nobody_takes_is_a_gap() {
        let owner = |slot: u16| (slot < 4).then(|| if slot < 3 { "a".into() } else { "b".into() });
        let of = |one: OwnShare, two: OwnShare| {
            let name = |target: &MoveTarget| Some(target.id.as_str().into());
            let gaps = Gaps::of(&shares([("a", one), ("b", two)]), owner, name);
            let slots = |set: &BTreeSet<SlotOf>| set.iter().map(|it| it.1).collect::<Vec<_>>();
            (slots(&gaps.unclaimed), slots(&gaps.untaken))
        };
        let none = || (Vec::new(), Vec::new());
        assert_eq!(of(share(&[0, 1, 2], &[], &[]), share(&[3], &[], &[])), none());
        assert_eq!(of(share(&[0, 1], &[], &[]), share(&[3], &[], &[])), (vec![2], vec![]));
        assert_eq!(of(share(&[0, 1], &[], &[]), share(&[2, 3], &[], &[])), none(), "it has moved");
        let moving = || share(&[0, 1, 2], &[], &[1]);
        assert_eq!(of(moving(), share(&[3], &[], &[])), (vec![], vec![1]));
        assert_eq!(of(moving(), share(&[3], &[1], &[])), none());
        assert_eq!(of(moving(), share(&[1, 3], &[], &[])), none());
        let alone: OwnShares = [("b".into(), share(&[], &[], &[]))].into();
        let gaps = Gaps::of(&alone, owner, |_| None);
        assert_eq!(gaps.unclaimed, [("b".into(), 3)].into(), "who says nothing is believed in");
        assert_eq!((Gaps::count(&gaps.unclaimed, "b"), Gaps::count(&gaps.unclaimed, "a")), (1, 0));
        assert_eq!(gaps.and(&Gaps::default()), Gaps::default(), "it has passed");
    }

    #[test]
    fn who_may_have_got_locks_meanwhile_is_known_by_its_slots() {
        let before = shares([("a", share(&[1, 2], &[], &[2])), ("b", share(&[3], &[], &[]))]);
        let got = |one: OwnShare, two: OwnShare, with_old| {
            receivers(&before, &shares([("a", one), ("b", two)]), with_old).concat()
        };
        let same = || share(&[1, 2], &[], &[2]);
        assert_eq!(got(same(), share(&[3], &[], &[]), true), "");
        assert_eq!(got(same(), share(&[3], &[2], &[]), false), "b");
        assert_eq!(got(share(&[1], &[], &[]), share(&[2, 3], &[], &[]), false), "b");
        assert_eq!(got(share(&[1], &[], &[]), share(&[3], &[], &[]), true), "");
        let before = shares([("a", same()), ("b", share(&[3], &[2], &[]))]);
        let same = || shares([("a", same()), ("b", share(&[3], &[2], &[]))]);
        assert_eq!(receivers(&before, &same(), true), ["b".into()], "keys go on moving");
        assert!(receivers(&before, &same(), false).is_empty(), "it was searched later");
        let ended = shares([("a", share(&[1], &[], &[])), ("b", share(&[2, 3], &[], &[]))]);
        assert_eq!(receivers(&before, &ended, false), ["b".into()], "keys came until the end");
    }
}
