//! Whom a master has heard since its start or promotion, and whether it may decide at all.
//!
//! A promoted master must have heard most of the masters that have slots: they have elected it, or
//! know who was. A master that has started with slots must have heard all others. By its own data
//! it still has every slot that was taken from it by force while it was down, and masters that were
//! all down agree with it. So if one stays silent, it waits for the leases of that one, from when
//! most masters confirm its slots: until then, that one may grant others.

use super::SUPPORT;
use super::authority::with_drift;
use super::other_master::OtherMaster;
use super::shares::Shares;
use crate::engine::{Instant, Millis};

/// How long leases of a master that does not answer may stand. `longest`: the longest lease.
pub(super) const fn whole_wait(longest: Millis) -> Millis {
    with_drift(SUPPORT.saturating_add(longest))
}

/// Whether a master may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It has heard too few others, or most do not confirm its slots yet.
    Alone,
    /// It has heard most others, and waits up to this instant for the leases of the rest.
    Rests(Instant),
    /// It must jump before it decides. It has waited, and the silent ones may have issued fences.
    /// Or it has heard enough, but jumped in an earlier run, and others may have done so since.
    Jumps,
    /// It has heard enough.
    Decides,
}

/// What a master has heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Company {
    /// Whether the most are enough.
    needs_most: bool,
    /// The first look at the slots.
    first: Option<Instant>,
    /// The other masters that any look has shown, but for those that are replicas now.
    known: Vec<Vec<u8>>,
    /// When a look last showed a new one.
    grew_at: Option<Instant>,
    /// One of them has never been heard.
    has_stranger: bool,
    hears_most: bool,
    hears_enough: bool,
    decides: bool,
    has_named_silent: bool,
}

impl Company {
    pub(super) fn new(was_promoted: bool) -> Company {
        Company { needs_most: was_promoted, ..Company::default() }
    }

    /// Notes which masters there are, and which of them have been heard. `has_jumped`: whether this
    /// one ever has.
    pub(super) fn look(
        &mut self,
        shares: &Shares,
        (heard, has_jumped): (&[OtherMaster], bool),
        now: Instant,
    ) {
        let is_heard = |name: &Vec<u8>| is_heard(name, heard);
        let with_slots = || shares.others.iter().map(|(name, _)| name);
        let itself = usize::from(!shares.own.is_empty());
        let count = itself + with_slots().filter(|name| is_heard(name)).count();
        self.hears_most |= 2 * count > itself + shares.others.len();
        let all = || with_slots().chain(&shares.idle);
        for name in all() {
            if !self.known.contains(name) {
                self.known.push(name.clone());
                self.grew_at = Some(now);
            }
        }
        // A replica says so itself. Its master has its slots: it is heard, or most do not confirm
        // these.
        self.known.retain(|name| !shares.replicas.contains(name));
        // Nothing can have been taken from it.
        self.needs_most |= self.first.is_none() && shares.had_none;
        self.first.get_or_insert(now);
        self.has_stranger = !all().all(is_heard);
        let hears_all = self.needs_most || self.known.iter().all(is_heard);
        self.hears_enough |= self.hears_most && hears_all;
        self.decides |= self.hears_enough && !has_jumped;
    }

    /// Whether another master has never been heard. It may be dead, and have had any slot: others
    /// do not say which. What the server says of it proves nothing: it shows a link that is
    /// being made as one that is, and takes the time of the last answer from others.
    pub(super) const fn has_stranger(&self) -> bool {
        self.has_stranger
    }

    /// When it last came to know another master.
    pub(super) const fn grew_at(&self) -> Option<Instant> {
        self.grew_at
    }

    /// Whether it has heard enough or has waited, and has jumped if it must. Before the first
    /// request it has not jumped: see [`Company::readiness`].
    pub(super) const fn decides(&self) -> bool {
        self.decides
    }

    /// Whether it may decide. `longest`: the longest lease that it knows of. `confirmed_at`: when
    /// most masters first confirmed its slots, if they have. Before that, those that it has not
    /// heard may go on.
    pub(super) fn readiness(
        &self,
        (now, confirmed_at): (Instant, Option<Instant>),
        longest: Millis,
    ) -> Readiness {
        match self.first.zip(confirmed_at) {
            _ if self.decides => Readiness::Decides,
            _ if self.hears_enough => Readiness::Jumps,
            Some((first, confirmed)) if self.hears_most => {
                let until = first.max(confirmed).after(whole_wait(longest));
                if until < now { Readiness::Jumps } else { Readiness::Rests(until) }
            }
            Some(_) | None => Readiness::Alone,
        }
    }

    /// Notes that it has jumped.
    pub(super) const fn has_jumped(&mut self) {
        self.decides = true;
    }

    /// The masters that have not been heard: once, when each that runs could have been heard.
    pub(super) fn news_of_silent(&mut self, heard: &[OtherMaster], now: Instant) -> Vec<Vec<u8>> {
        let Some(at) = self.first else { return Vec::new() };
        if self.has_named_silent || !self.hears_most || now < at.after(SUPPORT) {
            return Vec::new();
        }
        self.has_named_silent = true;
        self.known.iter().filter(|name| !is_heard(name, heard)).cloned().collect()
    }
}

fn is_heard(name: &[u8], heard: &[OtherMaster]) -> bool {
    heard.iter().any(|other| other.name == name && other.is_heard())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Fence;
    use crate::engine::node::shares::{Footing, SlotRuns};

    const LONGEST: Millis = Millis::new(1_000);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn named(name: &[u8]) -> (Vec<u8>, SlotRuns) {
        (name.to_vec(), vec![(1, 1)])
    }

    fn heard(name: &[u8]) -> OtherMaster {
        let mut heard = OtherMaster::new(name);
        let footing = Footing { floor: Fence::ZERO, left: Millis::ZERO };
        heard.hear(footing, at(100));
        heard.hear(footing, at(700));
        heard
    }

    /// Regression: a master that started where it could reach no other waited by the clock.
    #[test]
    fn a_rest_counts_from_when_most_confirm_the_slots() {
        let others = vec![named(b"bb"), named(b"cc")];
        let shares = Shares { own: vec![(0, 0)], others, ..Shares::default() };
        let heard = heard(b"bb");
        let mut company = Company::new(false);
        company.look(&shares, (&[], false), at(100));
        assert_eq!(company.readiness((at(100), None), LONGEST), Readiness::Alone);
        company.look(&shares, (&[heard], false), at(60_000));
        let rests = |now, confirmed_at| company.readiness((at(now), confirmed_at), LONGEST);
        let whole = whole_wait(LONGEST).get();
        // Regression: it said that a rest had so much left, which stayed so.
        assert_eq!(rests(60_000, None), Readiness::Alone);
        assert_eq!(rests(70_000, Some(at(69_000))), Readiness::Rests(at(69_000 + whole)));
        assert_eq!(rests(69_001 + whole, Some(at(69_000))), Readiness::Jumps);
        assert_eq!(rests(101 + whole, Some(at(50))), Readiness::Jumps, "from the first look");
    }

    /// Regression: a master that had started waited for one that had become a replica meanwhile,
    /// and reports nothing.
    #[test]
    fn who_is_a_replica_now_need_not_be_heard() {
        let others = vec![named(b"bb"), named(b"cc")];
        let before = Shares { own: vec![(0, 0)], others, ..Shares::default() };
        let replicas = vec![b"bb".to_vec()];
        let now = Shares { others: vec![named(b"cc")], replicas, ..before.clone() };
        let heard = heard(b"cc");
        let mut company = Company::new(false);
        company.look(&before, (std::slice::from_ref(&heard), false), at(700));
        assert!(!company.decides());
        company.look(&now, (&[heard], false), at(900));
        assert!(company.decides());
    }
}
