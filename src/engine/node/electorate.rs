//! Which masters of a Cluster have a vote, and how that changes.
//!
//! Most masters must confirm that a slot is a master's own. The two majorities of two masters share
//! one only if both count the same masters, and while the Cluster is cut in two, each side may come
//! to know other ones. So the masters do not count whom their servers show, but an *electorate*
//! that most of the one before it know. A master that comes to know a later one tells it from then
//! on in all its answers, so nobody who asks most of an earlier electorate misses it.
//!
//! docs/design.md, "Who has a vote", has the rules and the reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::engine::{Instant, Millis};

/// The name of a master.
pub type MasterName = Vec<u8>;

/// How many electorates a master knows before it adds no more.
const KNOWN_MAX: usize = 8;
/// How many a master may know.
const HEARD_MAX: usize = 64;

/// Masters that have a vote. Of two electorates with the same number, the names decide which is
/// later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Electorate {
    /// Larger than those of all that its first proposer knew.
    pub number: u64,
    /// Who has a vote.
    pub members: BTreeSet<MasterName>,
}

/// The electorates that a master knows: what it tells the others, and keeps on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Electorates {
    /// The first one counts. The others may take its place.
    pub known: BTreeSet<Electorate>,
    /// Masters that were forgotten, and up to which number they have no vote in an electorate.
    pub gone: BTreeMap<MasterName, u64>,
}

impl Electorates {
    /// The one that counts.
    pub fn counting(&self) -> Option<&Electorate> {
        self.known.first()
    }

    fn latest(&self) -> Option<&Electorate> {
        self.known.last()
    }

    /// A number that tells these from others.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// The members that were not forgotten.
    pub fn voters<'a>(
        &'a self,
        electorate: &'a Electorate,
    ) -> impl Iterator<Item = &'a MasterName> {
        let is_gone = |name: &MasterName| {
            self.gone.get(name).is_some_and(|up_to| electorate.number <= *up_to)
        };
        electorate.members.iter().filter(move |name| !is_gone(name))
    }

    /// Takes those that another master knows. The later of the two that count counts: whoever went
    /// over to it knew all that might have taken its place.
    fn merge(&mut self, other: &Electorates) {
        let counts = self.counting().max(other.counting()).cloned();
        self.known.extend(other.known.iter().cloned());
        self.known.retain(|one| counts.as_ref() <= Some(one));
        for (name, up_to) in &other.gone {
            let known = self.gone.entry(name.clone()).or_default();
            *known = (*up_to).max(*known);
        }
        self.tidy();
    }

    /// Drops electorates that nobody is left of, and forgotten names that no longer matter.
    fn tidy(&mut self) {
        let empty: Vec<_> =
            self.known.iter().filter(|one| self.voters(one).next().is_none()).cloned().collect();
        empty.iter().for_each(|one| {
            self.known.remove(one);
        });
        let known = &self.known;
        let matters = |name: &MasterName, up_to: u64| {
            known.iter().any(|one| one.number <= up_to && one.members.contains(name))
        };
        self.gone.retain(|name, up_to| matters(name, *up_to));
    }
}

/// What a master has learned of electorates, and from whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Succession {
    name: MasterName,
    electorates: Electorates,
    /// They are to be written to the state file before others are told.
    is_unsaved: bool,
    /// How long most must have known an electorate before it takes the place of another.
    delay: Millis,
    /// Who knows the latest electorate, and since when that is known here.
    knowing: BTreeMap<MasterName, Instant>,
    /// Who knows none.
    ignorant: BTreeSet<MasterName>,
    /// The masters that have slots, as the server believes, and since when it does.
    belief: (BTreeSet<MasterName>, Instant),
    /// Whether these are still to be proposed.
    is_new_belief: bool,
    /// All other nodes that the server knows.
    others: BTreeSet<MasterName>,
}

impl Succession {
    /// A master that knows these. `delay`: for longer than any answer counts.
    pub fn new(electorates: Electorates, delay: Millis) -> Succession {
        Succession {
            name: MasterName::new(),
            electorates,
            is_unsaved: false,
            delay,
            knowing: BTreeMap::new(),
            ignorant: BTreeSet::new(),
            belief: Default::default(),
            is_new_belief: false,
            others: BTreeSet::new(),
        }
    }

    /// What the others are told.
    pub fn electorates(&self) -> &Electorates {
        &self.electorates
    }

    /// What the state file must have before others are told, if it lacks that.
    pub fn news(&mut self) -> Option<Electorates> {
        std::mem::take(&mut self.is_unsaved).then(|| self.electorates.clone())
    }

    /// By electorate: the others that have a vote, and how many of them make a majority, together
    /// with this node if it has a vote too.
    pub fn majorities(&self) -> Vec<(Vec<MasterName>, usize)> {
        let of = |one| {
            let (own, others): (Vec<MasterName>, Vec<MasterName>) =
                self.electorates.voters(one).cloned().partition(|name| *name == self.name);
            let needed = (own.len() + others.len()) / 2 + 1 - own.len();
            (others, needed)
        };
        self.electorates.known.iter().map(of).collect()
    }

    /// All others that have a vote in an electorate that may count.
    pub fn voters(&self) -> BTreeSet<MasterName> {
        let all = self.electorates.known.iter().flat_map(|one| self.electorates.voters(one));
        all.filter(|name| **name != self.name).cloned().collect()
    }

    /// Notes what the server believes: which masters have slots, and which other nodes there are.
    pub fn look(
        &mut self,
        name: &MasterName,
        (believed, others): (BTreeSet<MasterName>, BTreeSet<MasterName>),
        now: Instant,
    ) {
        self.name.clone_from(name);
        let before = self.electorates.clone();
        let forgotten: Vec<_> = self.others.difference(&others).cloned().collect();
        let has_lost = others.is_empty() || !forgotten.is_empty();
        if has_lost && !believed.contains(name) {
            // The server was reset, or has begun anew: it may belong to another Cluster by now.
            self.electorates = Electorates::default();
        } else if let Some(number) = self.electorates.latest().map(|latest| latest.number) {
            self.electorates.gone.extend(forgotten.into_iter().map(|name| (name, number)));
            self.electorates.tidy();
        }
        self.others = others;
        if self.belief.0 != believed {
            self.belief = (believed, now);
            self.is_new_belief = true;
        }
        self.propose(now);
        self.compare(&before, now);
        self.advance(now);
    }

    /// Adds an electorate of the masters that have slots, if the latest is another one: once, when
    /// the server has believed it for as long as news takes to spread. Otherwise masters that do
    /// not agree would add one after the other.
    fn propose(&mut self, now: Instant) {
        let (believed, since) = &self.belief;
        let Some(latest) = self.electorates.latest() else { return self.begin() };
        let has_room = self.electorates.known.len() < KNOWN_MAX;
        let is_lasting = since.after(super::BEAT) <= now;
        if !self.is_new_belief || !is_lasting || !has_room {
            return;
        }
        self.is_new_belief = false;
        if !believed.is_empty() && !self.electorates.voters(latest).eq(believed) {
            let number = latest.number.saturating_add(1);
            self.electorates.known.insert(Electorate { number, members: believed.clone() });
        }
    }

    /// The first electorate: nobody knows any.
    fn begin(&mut self) {
        let believed = &self.belief.0;
        let knows_none = |name: &MasterName| *name == self.name || self.ignorant.contains(name);
        if believed.contains(&self.name) && believed.iter().all(knows_none) {
            self.electorates.known.insert(Electorate { number: 0, members: believed.clone() });
        }
    }

    /// Takes the vote of a master that knew no electorate: it was reset, or has lost its state
    /// file, and does not know what it told before. Unless it has just said that it knows none, to
    /// who began with the first one.
    fn join(&mut self) {
        let is_first = |latest: &Electorate| latest.number == 0 && !self.ignorant.is_empty();
        let latest = self.electorates.latest().filter(|latest| !is_first(latest));
        if let Some(number) = latest.map(|latest| latest.number) {
            self.electorates.gone.insert(self.name.clone(), number);
            self.electorates.tidy();
        }
    }

    /// Takes what another master knows; `None`: the same as this one when it asked with this
    /// digest. Returns whether it counts as an answer.
    pub fn hear(
        &mut self,
        name: &[u8],
        (told, digest): (Option<&Electorates>, u64),
        now: Instant,
    ) -> bool {
        let before = self.electorates.clone();
        let (knows_any, knows_latest) = match told {
            None => (before.counting().is_some(), before.digest() == digest),
            Some(told) if told.known.len() + before.known.len() > HEARD_MAX => return false,
            Some(told) => {
                self.electorates.merge(told);
                if before.known.is_empty() {
                    self.join();
                }
                (told.counting().is_some(), told.latest() == self.electorates.latest())
            }
        };
        if knows_any {
            self.ignorant.remove(name);
        } else {
            self.ignorant.insert(name.to_vec());
        }
        self.compare(&before, now);
        if knows_any && knows_latest {
            self.knowing.entry(name.to_vec()).or_insert(now);
        }
        self.advance(now);
        knows_any
    }

    /// Notes whether the electorates have changed.
    fn compare(&mut self, before: &Electorates, now: Instant) {
        if self.electorates != *before {
            self.is_unsaved = true;
        }
        if self.electorates.latest() != before.latest() {
            self.knowing.clear();
        }
        self.knowing.entry(self.name.clone()).or_insert(now);
    }

    /// Goes over to the latest electorate, if most of each one have known it for long enough.
    fn advance(&mut self, now: Instant) {
        let knows = |name: &&MasterName| {
            self.knowing.get(*name).is_some_and(|since| since.after(self.delay) <= now)
        };
        let is_known = |one: &Electorate| {
            let voters = || self.electorates.voters(one);
            2 * voters().filter(knows).count() > voters().count()
        };
        let latest = self.electorates.latest().cloned();
        let known = &self.electorates.known;
        if let Some(latest) = latest.filter(|_| known.len() > 1 && known.iter().all(is_known)) {
            self.electorates.known.retain(|one| *one == latest);
            self.electorates.tidy();
            self.is_unsaved = true;
        }
    }

    /// As if all had known for long that those have a vote whom the server believes to.
    #[cfg(test)]
    pub(super) fn agree(&mut self) {
        let members = self.belief.0.clone();
        self.electorates.known = [Electorate { number: 0, members }].into();
    }

    /// The same at a time that is this much earlier. For a model whose clock stands still.
    pub fn rebased(&self, by: Millis) -> Succession {
        let mut rebased = self.clone();
        rebased.knowing.values_mut().for_each(|at| *at = at.before(by));
        rebased.belief.1 = rebased.belief.1.before(by);
        rebased
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Millis = Millis::new(2_500);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn names(masters: &[&str]) -> BTreeSet<MasterName> {
        masters.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    fn electorate(number: u64, masters: &[&str]) -> Electorate {
        Electorate { number, members: names(masters) }
    }

    fn knows<const COUNT: usize>(known: [Electorate; COUNT]) -> Electorates {
        Electorates { known: known.into(), ..Electorates::default() }
    }

    /// A master `a` whose server believes these to have slots, and knows these others.
    fn master(known: Electorates, believed: &[&str], others: &[&str]) -> Succession {
        let mut master = Succession::new(known, DELAY);
        master.sees(believed, others, 0);
        master
    }

    impl Succession {
        fn sees(&mut self, believed: &[&str], others: &[&str], now: u64) {
            self.look(&b"a".to_vec(), (names(believed), names(others)), at(now));
        }

        fn hears(&mut self, name: &str, told: &Electorates, now: u64) -> bool {
            self.hear(name.as_bytes(), (Some(told), told.digest()), at(now))
        }
    }

    const ABC: &[&str] = &["a", "b", "c"];

    #[test]
    fn the_first_electorate_needs_all_to_know_none() {
        let mut alone = master(Electorates::default(), &["a"], &[]);
        assert_eq!(*alone.electorates(), knows([electorate(0, &["a"])]));
        assert_eq!(alone.majorities(), [(Vec::new(), 0)]);
        assert!(alone.news().is_some() && alone.news().is_none(), "the file must have it, once");
        let mut one = master(Electorates::default(), ABC, &["b", "c"]);
        assert!(!one.hears("b", &Electorates::default(), 10), "no answer of one with a vote");
        one.sees(ABC, &["b", "c"], 20);
        assert!(one.electorates().counting().is_none() && one.majorities().is_empty());
        one.hears("c", &Electorates::default(), 30);
        one.sees(ABC, &["b", "c"], 40);
        assert_eq!(*one.electorates(), knows([electorate(0, ABC)]));
        assert_eq!(one.majorities(), [(vec![b"b".to_vec(), b"c".to_vec()], 1)]);
        // One that others know is as good.
        let mut late = master(Electorates::default(), ABC, &["b", "c"]);
        assert!(late.hears("b", &knows([electorate(7, &["b", "c"])]), 10));
        assert_eq!(late.majorities(), [(vec![b"b".to_vec(), b"c".to_vec()], 2)]);
    }

    #[test]
    fn an_electorate_takes_the_place_of_another_when_most_of_each_have_known_it_for_long_enough() {
        let first = electorate(3, ABC);
        let mut one = master(knows([first.clone()]), ABC, &["b", "c", "d"]);
        one.sees(&["a", "b", "d"], &["b", "c", "d"], 1_000);
        one.sees(&["a", "b", "d"], &["b", "c", "d"], 1_999);
        assert_eq!(*one.electorates(), knows([first.clone()]), "the server may soon believe more");
        one.sees(&["a", "b", "d"], &["b", "c", "d"], 2_000);
        let next = electorate(4, &["a", "b", "d"]);
        let both = knows([first.clone(), next.clone()]);
        assert_eq!(*one.electorates(), both);
        assert_eq!(one.majorities().len(), 2, "most of both must confirm");
        one.hears("c", &both, 3_000);
        one.hears("d", &both, 4_000);
        one.hears("c", &both, 6_499);
        assert_eq!(*one.electorates(), both);
        one.hears("c", &both, 6_500);
        assert_eq!(*one.electorates(), knows([next]));
        // Its server still believes that, and others do not: it says so only once.
        let other = electorate(5, ABC);
        one.hears("b", &knows([electorate(4, &["a", "b", "d"]), other.clone()]), 7_000);
        one.sees(&["a", "b", "d"], &["b", "c", "d"], 60_000);
        assert_eq!(one.electorates().known.last(), Some(&other));
    }

    #[test]
    fn who_went_over_takes_others_along_and_leaves_what_is_earlier_behind() {
        let mut one = master(knows([electorate(3, ABC)]), ABC, &["b", "c"]);
        let later = electorate(5, &["b", "c"]);
        let earlier = electorate(4, &["a"]);
        one.hears("c", &knows([electorate(3, ABC), earlier]), 10);
        assert_eq!(one.electorates().known.len(), 2);
        one.hears("b", &knows([later.clone()]), 20);
        assert_eq!(*one.electorates(), knows([later.clone()]));
        one.hears("c", &knows([electorate(3, ABC)]), 30);
        assert_eq!(*one.electorates(), knows([later]), "it is the other one that is behind");
    }

    #[test]
    fn who_was_forgotten_has_no_vote_in_what_there_was() {
        let mut one = master(knows([electorate(3, ABC)]), ABC, &["b", "c", "d"]);
        one.sees(&["a", "d"], &["d"], 100);
        assert_eq!(one.majorities(), [(Vec::new(), 0)]);
        let told = one.electorates().clone();
        let mut other = master(knows([electorate(3, ABC)]), ABC, &["b", "c", "d"]);
        other.hears("b", &told, 200);
        assert_eq!(other.majorities(), [(Vec::new(), 0)], "others hear of that");
        // One with the same name that joins later is a new one.
        let mut next = told;
        next.known.insert(electorate(4, &["a", "b"]));
        other.hears("b", &next, 300);
        assert_eq!(other.majorities()[1], (vec![b"b".to_vec()], 1));
        // All of the first are gone.
        let mut last =
            master(knows([electorate(3, &["b", "c"]), electorate(4, &["a"])]), &["a"], &["b", "c"]);
        last.sees(&["a"], &[], 100);
        assert_eq!(*last.electorates(), knows([electorate(4, &["a"])]));
    }

    /// Regression: it confirmed another master by an electorate that it had left.
    #[test]
    fn who_has_forgotten_all_has_no_vote_in_what_there_was() {
        let mut one = master(Electorates::default(), ABC, &["b", "c"]);
        one.hears("b", &knows([electorate(3, ABC), electorate(4, &["a", "b"])]), 100);
        let voters: Vec<_> = one.majorities();
        assert_eq!(voters, [(vec![b"b".to_vec(), b"c".to_vec()], 2), (vec![b"b".to_vec()], 1)]);
        let mut other = master(knows([electorate(3, ABC)]), ABC, &["b", "c"]);
        other.name = b"b".to_vec();
        other.hears("a", one.electorates(), 200);
        assert_eq!(other.majorities()[0], (vec![b"c".to_vec()], 1), "who hears of it agrees");
        // It has just said that it knows none, and the other began.
        let mut new = master(Electorates::default(), ABC, &["b", "c"]);
        new.hears("b", &Electorates::default(), 100);
        new.hears("b", &knows([electorate(0, ABC)]), 200);
        assert!(new.electorates().gone.is_empty());
    }

    #[test]
    fn a_server_that_was_reset_knows_none() {
        let mut one = master(knows([electorate(3, ABC)]), ABC, &["b", "c"]);
        one.sees(&[], &[], 100);
        assert_eq!(*one.electorates(), Electorates::default());
        assert_eq!(one.news(), Some(Electorates::default()));
        // It has met another one before it looked. It has not forgotten the rest.
        let mut one = master(knows([electorate(3, ABC)]), ABC, &["b", "c"]);
        one.sees(&["c"], &["c"], 100);
        assert_eq!(*one.electorates(), Electorates::default());
    }

    #[test]
    fn too_many_electorates_are_no_answer() {
        let mut one = master(knows([electorate(3, ABC)]), ABC, &["b", "c"]);
        let many = (4..4 + HEARD_MAX as u64).map(|number| electorate(number, ABC));
        let many = Electorates { known: many.collect(), ..Electorates::default() };
        assert!(!one.hears("b", &many, 100));
        assert_eq!(*one.electorates(), knows([electorate(3, ABC)]));
    }
}
