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

/// The name of a master.
pub type MasterName = Vec<u8>;

/// Of how many origins it remembers that they have ended.
const ENDED_MAX: usize = 4;
/// How many forgotten masters it remembers of each origin; more only if they are members of what is
/// known.
const GONE_MAX: usize = 256;

/// Masters that were forgotten, by the origin of the electorates in which they have no vote any
/// more. The number is the last one that was known then: of too many, the earliest are dropped.
pub type Forgotten = BTreeMap<u64, BTreeMap<Elector, u64>>;

/// Who may have a vote: a master, as long as it remembers what it told.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elector {
    /// Its name.
    pub name: MasterName,
    /// A number that is another one after it has forgotten what it told, or was forgotten; 0 before
    /// it has one.
    pub life: u64,
}

/// Masters that have a vote. Of two electorates with the same number, the rest decides which is
/// later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Electorate {
    /// Larger than those of all that whoever proposed it knew then.
    pub number: u64,
    /// Tells the electorates that follow from one beginning from all others; 0 of a master that
    /// knows no other.
    pub origin: u64,
    /// Who has a vote.
    pub members: BTreeSet<Elector>,
}

impl Electorate {
    /// The first of all that follow from it. The same masters may begin again.
    pub(super) fn beginning(number: u64, members: BTreeSet<Elector>) -> Electorate {
        let hash = if number == 0 { hash_of(&members) } else { hash_of(&(number, &members)) };
        let origin = if members.len() > 1 { hash.max(1) } else { 0 };
        Electorate { number, origin, members }
    }
}

/// The electorates that a server knows: what it tells the others, and keeps on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Electorates {
    /// The server.
    pub itself: Elector,
    /// All of them count. The last one may take the place of the others.
    pub known: BTreeSet<Electorate>,
    /// Who has no vote any more, in these lives, of the origins that are known or have ended. It
    /// may be there in another life.
    pub gone: Forgotten,
    /// Origins that have ended, and up to which number: others may still tell such an electorate.
    pub ended: BTreeMap<u64, u64>,
    /// Whom its server has forgotten, if that does not count yet: it has no slots, or knows no life
    /// of that one, which is 0 here. Others are not told.
    pub missing: Forgotten,
    /// The origins of a Cluster that its server has left, where masters may decide in any slot that
    /// it may take by the keys in its data file; 0 if they are unknown. Others are not told.
    pub left: BTreeSet<u64>,
}

impl Electorates {
    pub(super) fn latest(&self) -> Option<&Electorate> {
        self.known.last()
    }

    /// Whether one counts that all others know too: none begins, and none takes its place.
    pub(super) fn are_settled(&self) -> bool {
        self.known.len() == 1 && self.known.iter().all(|one| one.origin != 0)
    }

    /// How many masters have a vote in the last one.
    pub fn voter_count(&self) -> usize {
        self.latest().map_or(0, |latest| self.voters(latest).count())
    }

    /// A number that tells these from others, by what others go by too.
    pub fn digest(&self) -> u64 {
        let several: BTreeSet<_> = self.known.iter().filter(|one| one.origin != 0).collect();
        hash_of(&(several, &self.gone, &self.ended))
    }

    /// Whether its server may have a vote in one of these: it is a member, forgotten or not.
    pub(super) fn has_vote_in<'a>(
        &self,
        electorates: impl IntoIterator<Item = &'a Electorate>,
    ) -> bool {
        electorates.into_iter().any(|one| one.members.contains(&self.itself))
    }

    /// The members that were not forgotten.
    pub fn voters<'a>(&'a self, electorate: &'a Electorate) -> impl Iterator<Item = &'a Elector> {
        electorate.members.iter().filter(|one| !self.is_gone(one, electorate.origin))
    }

    fn is_gone(&self, elector: &Elector, origin: u64) -> bool {
        self.gone.get(&origin).is_some_and(|gone| gone.contains_key(elector))
    }

    /// Whether another server has forgotten this one, which is there, and has no other vote.
    pub(super) fn is_forgotten(&self) -> bool {
        let is_gone = |one: &Electorate| self.is_gone(&self.itself, one.origin);
        let has_vote = |one: &Electorate| one.members.contains(&self.itself) && !is_gone(one);
        self.known.iter().any(is_gone) && !self.known.iter().any(has_vote)
    }

    /// The origins of a Cluster that its server has been in.
    pub(super) fn behind(&self) -> BTreeSet<u64> {
        let known = self.known.iter().map(|one| one.origin).filter(|origin| *origin != 0);
        known.chain(self.left.iter().copied()).chain(self.ended.keys().copied()).collect()
    }

    /// Without what concerns its master alone: others that hear of that have no use for it.
    pub(super) fn of_several(&self) -> Electorates {
        let mut several = self.clone();
        several.known.retain(|one| one.origin != 0);
        several
    }

    /// Forgets what the master knew while its server knew no other: nobody else goes by it.
    pub(super) fn meet_others(&mut self) {
        self.known.retain(|one| one.origin != 0);
    }

    /// By origin: the first one that is known.
    fn firsts(&self) -> BTreeMap<u64, &Electorate> {
        self.known.iter().rev().map(|one| (one.origin, one)).collect()
    }

    /// Takes those that another master knows. Of the two first ones of each origin, the later
    /// counts: whoever went over to it knew all that might have taken its place. One that nobody is
    /// left of takes the place of none, nor does the next one in its stead: nobody went over to it.
    pub(super) fn merge(&mut self, other: &Electorates) {
        self.note_gone(other.gone.clone());
        let firsts = [self.firsts(), other.firsts()];
        let is_superseded = |one: &Electorate| {
            let firsts = firsts.iter().filter_map(|firsts| firsts.get(&one.origin));
            let mut living = firsts.filter(|it| self.voters(it).next().is_some());
            living.any(|it| one < *it)
        };
        let all = self.known.union(&other.known);
        self.known = all.filter(|one| !is_superseded(one)).cloned().collect();
        for (origin, up_to) in self.ended.clone().into_iter().chain(other.ended.clone()) {
            self.end(origin, up_to);
        }
        self.tidy();
    }

    /// By origin: the number of the last one that is known, or was.
    fn numbers(&self) -> BTreeMap<u64, u64> {
        let told = self.known.iter().filter(|one| one.origin != 0);
        let told = told.map(|one| (one.origin, one.number));
        self.ended.clone().into_iter().chain(told).collect()
    }

    /// Notes whom its server has forgotten just now. `others`: all that it knows. To be
    /// [tidied](Electorates::tidy) afterwards.
    pub(super) fn miss(&mut self, forgotten: &[Elector], others: &BTreeSet<MasterName>) {
        for (origin, number) in self.numbers().into_iter().filter(|_| !forgotten.is_empty()) {
            let forgotten = forgotten.iter().map(|one| (one.clone(), number));
            self.missing.entry(origin).or_default().extend(forgotten);
        }
        for missing in self.missing.values_mut() {
            missing.retain(|one, _| !others.contains(&one.name));
        }
    }

    /// Takes away the votes of those whom its server has forgotten. `told`: what is known besides.
    /// To be [tidied](Electorates::tidy) afterwards.
    pub(super) fn forget_missing(&mut self, told: &BTreeSet<Electorate>) {
        let mut gone = self.missing.clone();
        for missing in self.missing.values_mut() {
            missing.retain(|one, _| one.life == 0);
        }
        for (origin, missing) in &mut gone {
            let known = self.known.iter().chain(told).filter(|one| one.origin == *origin);
            for one in known.flat_map(|known| &known.members) {
                let unknown = Elector { life: 0, ..one.clone() };
                missing.extend(missing.get(&unknown).copied().map(|number| (one.clone(), number)));
            }
            missing.retain(|one, _| one.life != 0);
        }
        self.note_gone(gone);
    }

    fn note_gone(&mut self, gone: Forgotten) {
        for (origin, forgotten) in gone {
            let known = self.gone.entry(origin).or_default();
            for (one, number) in forgotten {
                let before = known.entry(one).or_default();
                *before = number.max(*before);
            }
        }
    }

    /// Drops electorates that nobody is left of, and forgotten masters that no longer matter.
    pub(super) fn tidy(&mut self) {
        let is_empty = |one: &&Electorate| one.origin != 0 && self.voters(one).next().is_none();
        let empty: Vec<_> = self.known.iter().filter(is_empty).cloned().collect();
        self.known.retain(|one| !empty.contains(one));
        for one in empty {
            if !self.known.iter().any(|other| other.origin == one.origin) {
                self.end(one.origin, one.number);
            }
        }
        // A server that was away may yet tell of any other that has them.
        let (known, ended) = (&self.known, &self.ended);
        for forgotten in [&mut self.gone, &mut self.missing] {
            forgotten.retain(|origin, gone| {
                let of_origin = || known.iter().filter(|one| one.origin == *origin);
                cut(gone, |one| of_origin().any(|known| known.members.contains(one)));
                let is_known = of_origin().next().is_some();
                !gone.is_empty() && (is_known || ended.contains_key(origin))
            });
        }
    }

    /// Notes that no electorate of this origin counts up to this number: nobody is left of the last
    /// one that was known, or one of another origin has taken its place.
    pub(super) fn end(&mut self, origin: u64, up_to: u64) {
        self.known.retain(|one| one.origin != origin || up_to < one.number);
        let known = self.ended.entry(origin).or_default();
        *known = up_to.max(*known);
        // In one Cluster, the numbers rise with each beginning.
        while self.ended.len() > ENDED_MAX
            && let Some(origin) = self.ended.iter().min_by_key(|one| one.1).map(|one| *one.0)
        {
            self.ended.remove(&origin);
        }
    }
}

/// Leaves [`GONE_MAX`] of these, with the largest numbers, and those that are kept.
fn cut(forgotten: &mut BTreeMap<Elector, u64>, is_kept: impl Fn(&Elector) -> bool) {
    let excess = forgotten.len().saturating_sub(GONE_MAX);
    if excess > 0 {
        let mut others: Vec<_> =
            forgotten.iter().map(|(one, number)| (*number, one.clone())).collect();
        others.retain(|(_, one)| !is_kept(one));
        others.sort_unstable();
        for (_, one) in others.into_iter().take(excess) {
            forgotten.remove(&one);
        }
    }
}

/// Masters compare these, those of other builds too: it stays as it is.
pub(super) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
