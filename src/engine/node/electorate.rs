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

use super::shares::{Shares, SlotRuns};
use super::slot_set::SlotSet;
use crate::engine::{Instant, Millis};

/// The name of a master.
pub type MasterName = Vec<u8>;

/// A master that knows so many electorates proposes no more.
const PROPOSES_BELOW: usize = 8;
/// How many a master may know.
const KNOWN_MAX: usize = 64;
/// Of so many beginnings that it no longer knows, it remembers who was forgotten.
const ENDED_MAX: usize = 4;

/// Masters that were forgotten, by the origin of the electorates in which they have no vote any
/// more, and up to which number. The numbers of two origins have nothing to do with each other.
pub type Forgotten = BTreeMap<u64, BTreeMap<MasterName, u64>>;

/// Who may have a vote: a master, as long as it remembers what it told.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elector {
    /// Its name.
    pub name: MasterName,
    /// A number that is another one after it has forgotten what it told; 0 before it has one.
    pub life: u64,
}

/// Masters that have a vote. Of two electorates with the same number, the rest decides which is
/// later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Electorate {
    /// Larger than those of all that its first proposer knew.
    pub number: u64,
    /// Tells the electorates that follow from one beginning from all others; 0 of a master that
    /// knows no other.
    pub origin: u64,
    /// Who has a vote.
    pub members: BTreeSet<Elector>,
}

impl Electorate {
    /// The first of all that follow from it.
    fn beginning(members: BTreeSet<Elector>) -> Electorate {
        let origin = if members.len() > 1 { hash_of(&members).max(1) } else { 0 };
        Electorate { number: 0, origin, members }
    }

    /// Without members: nobody has a majority of it. For a server that has left a Cluster, and has
    /// slots of that one.
    fn of_nobody() -> Electorate {
        Electorate { number: 0, origin: 0, members: BTreeSet::new() }
    }
}

/// The electorates that a master knows: what it tells the others, and keeps on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Electorates {
    /// The master.
    pub itself: Elector,
    /// All of them count. The last one may take the place of the others.
    pub known: BTreeSet<Electorate>,
    /// Who was forgotten. Of an origin that is not known, nobody is left, or another took its
    /// place: others may still tell it.
    pub gone: Forgotten,
}

impl Electorates {
    fn latest(&self) -> Option<&Electorate> {
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

    /// A number that tells these from others.
    pub fn digest(&self) -> u64 {
        hash_of(&(&self.known, &self.gone))
    }

    /// The members that were not forgotten.
    pub fn voters<'a>(&'a self, electorate: &'a Electorate) -> impl Iterator<Item = &'a Elector> {
        let is_gone = |one: &Elector| {
            let gone = self.gone.get(&electorate.origin);
            let up_to = gone.and_then(|names| names.get(&one.name));
            up_to.is_some_and(|up_to| electorate.number <= *up_to)
        };
        electorate.members.iter().filter(move |one| !is_gone(one))
    }

    /// Whether its server has left a Cluster, and has taken slots by their keys since: the masters
    /// there may decide in these.
    fn has_left(&self) -> bool {
        self.known.contains(&Electorate::of_nobody())
    }

    /// Whether it has been in a Cluster, and not alone.
    fn has_had_company(&self) -> bool {
        let is_alone = |one: &Electorate| one.origin == 0 && !one.members.is_empty();
        self.itself.life != 0 && !self.known.iter().any(is_alone)
    }

    /// Forgets what the master knew while its server knew no other: nobody was told.
    fn meet_others(&mut self) {
        self.known.retain(|one| one.origin != 0);
    }

    /// By origin: the first one that is known.
    fn firsts(&self) -> BTreeMap<u64, &Electorate> {
        self.known.iter().rev().map(|one| (one.origin, one)).collect()
    }

    /// Takes those that another master knows. Of the two first ones of each origin, the later
    /// counts: whoever went over to it knew all that might have taken its place.
    fn merge(&mut self, other: &Electorates) {
        let (own, others) = (self.firsts(), other.firsts());
        let all = self.known.union(&other.known);
        let is_superseded = |one: &Electorate| {
            [&own, &others].iter().any(|firsts| firsts.get(&one.origin).is_some_and(|it| one < *it))
        };
        self.known = all.filter(|one| !is_superseded(one)).cloned().collect();
        self.forget(other.gone.clone());
    }

    /// By origin: the number of the last one that is known.
    fn numbers(&self) -> BTreeMap<u64, u64> {
        let told = self.known.iter().filter(|one| one.origin != 0);
        told.map(|one| (one.origin, one.number)).collect()
    }

    /// Takes away the votes of these masters, up to these numbers.
    fn forget(&mut self, gone: Forgotten) {
        for (origin, names) in gone {
            let known = self.gone.entry(origin).or_default();
            for (name, up_to) in names {
                let before = known.entry(name).or_default();
                *before = up_to.max(*before);
            }
        }
        self.tidy();
    }

    /// Drops electorates that nobody is left of, and forgotten names that no longer matter.
    fn tidy(&mut self) {
        let is_empty = |one: &&Electorate| one.origin != 0 && self.voters(one).next().is_none();
        let empty: Vec<_> = self.known.iter().filter(is_empty).cloned().collect();
        empty.iter().for_each(|one| {
            self.known.remove(one);
        });
        let known = &self.known;
        for (origin, names) in &mut self.gone {
            let of_origin: Vec<_> = known.iter().filter(|one| one.origin == *origin).collect();
            let has = |one: &Electorate, name: &MasterName| {
                one.members.iter().any(|member| member.name == *name)
            };
            names.retain(|name, up_to| {
                of_origin.is_empty()
                    || of_origin.iter().any(|one| one.number <= *up_to && has(one, name))
            });
        }
        self.gone.retain(|_, names| !names.is_empty());
        self.tidy_ended();
    }

    /// Drops the names of the earliest origins that are no longer known, if there are many.
    fn tidy_ended(&mut self) {
        let is_known = |origin: u64| self.known.iter().any(|one| one.origin == origin);
        let ended = self.gone.iter().filter(|(origin, _)| !is_known(**origin));
        let mut ended: Vec<_> =
            ended.map(|(origin, names)| (names.values().max().copied(), *origin)).collect();
        ended.sort_unstable();
        for (_, origin) in ended.iter().rev().skip(ENDED_MAX) {
            self.gone.remove(origin);
        }
    }
}

/// Whether a server has come back from a Cluster, in which its master knew these electorates, with
/// slots of that one: it was reset, or its `nodes.conf` is lost, and at its start it has taken the
/// slots of the keys in its data file.
fn has_returned(before: &Electorates, shares: &Shares) -> bool {
    let takes = !shares.found.is_empty() && shares.other_masters().is_empty();
    takes && before.has_had_company()
}

pub(super) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What a server believes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Belief {
    /// The masters that have slots; `None` while one of them has not told its life.
    with_slots: Option<BTreeSet<Elector>>,
    /// The other masters, with slots or without.
    masters: BTreeSet<MasterName>,
    since: Instant,
    is_proposed: bool,
}

/// What a master has learned of electorates, and from whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Succession {
    /// What tells this start of it from others, of the same clock.
    boot: u64,
    electorates: Electorates,
    /// They are to be written to the state file before others are told.
    is_unsaved: bool,
    /// How long most must have known an electorate before it takes the place of another.
    delay: Millis,
    /// Who knows the latest electorate, and since when that is known here.
    knowing: BTreeMap<Elector, Instant>,
    /// The lives that others have told, and when they told that they know no electorate, if that
    /// was the last that they told.
    heard: BTreeMap<MasterName, (u64, Option<Instant>)>,
    belief: Belief,
    /// All other nodes that the server knows, and the slots that are its own.
    others: BTreeSet<MasterName>,
    own: SlotRuns,
    /// The nodes that it knew while it had no slots, and no longer knows, with the numbers of the
    /// latest electorates then.
    missing: Forgotten,
    /// If the server has left a Cluster: the slots that it has had since its first look.
    taken: Option<SlotSet>,
}

impl Succession {
    /// A master that knows these. `delay`: for longer than any answer counts.
    pub fn new(boot: u64, electorates: Electorates, delay: Millis) -> Succession {
        Succession {
            boot,
            electorates,
            is_unsaved: false,
            delay,
            knowing: BTreeMap::new(),
            heard: BTreeMap::new(),
            belief: Belief::default(),
            others: BTreeSet::new(),
            own: SlotRuns::new(),
            missing: Forgotten::new(),
            taken: None,
        }
    }

    /// Remembers which nodes the server has known: for a master that was a replica before.
    pub fn remember(&mut self, before: &Succession) {
        (self.others, self.missing) = (before.others.clone(), before.missing.clone());
    }

    /// What the master knows.
    pub fn electorates(&self) -> &Electorates {
        &self.electorates
    }

    /// How many electorates it knows, and one more while the last one is not of the masters that
    /// have slots; 0 if it knows none.
    pub fn count(&self) -> usize {
        let with_slots = self.belief.with_slots.as_ref();
        let is_settled = |one: &Electorate| {
            with_slots.is_some_and(|with_slots| self.electorates.voters(one).eq(with_slots))
        };
        let pending = self.electorates.latest().is_some_and(|latest| !is_settled(latest));
        self.electorates.known.len() + usize::from(pending)
    }

    /// What the state file must have before others are told, if it lacks that.
    pub fn news(&mut self) -> Option<Electorates> {
        std::mem::take(&mut self.is_unsaved).then(|| self.electorates.clone())
    }

    /// By electorate: the others that have a vote, and how many of them make a majority, together
    /// with this node if it has a vote too.
    pub fn majorities(&self) -> Vec<(Vec<Elector>, usize)> {
        let itself = &self.electorates.itself;
        let of = |one| {
            let (own, others): (Vec<Elector>, Vec<Elector>) =
                self.electorates.voters(one).cloned().partition(|voter| voter == itself);
            let needed = (own.len() + others.len()) / 2 + 1 - own.len();
            (others, needed)
        };
        self.electorates.known.iter().map(of).collect()
    }

    /// All others that have a vote in an electorate, and these masters as they have told of
    /// themselves.
    pub fn electors(&self, masters: &BTreeSet<MasterName>) -> BTreeSet<Elector> {
        let all = self.electorates.known.iter().flat_map(|one| self.electorates.voters(one));
        let all = all.filter(|one| **one != self.electorates.itself).cloned();
        all.chain(masters.iter().filter_map(|name| self.elector(name))).collect()
    }

    /// Whether an electorate of several masters that another one tells is without this one, as it
    /// is in its present life.
    pub(super) fn is_left_out(&self, told: &Electorates) -> bool {
        let itself = &self.electorates.itself;
        told.known.iter().any(|one| one.origin != 0 && !one.members.contains(itself))
    }

    /// The master of this name, as it has last told of itself.
    pub fn elector(&self, name: &[u8]) -> Option<Elector> {
        let life = self.heard.get(name).map(|(life, _)| *life);
        life.map(|life| Elector { name: name.to_vec(), life })
    }

    /// Notes which masters have slots, as the server believes, and which other nodes there are.
    pub fn look(&mut self, shares: &Shares, now: Instant) {
        let before = self.electorates.clone();
        let others = shares.all_others();
        let forgotten: Vec<_> = self.others.difference(&others).cloned().collect();
        if has_returned(&before, shares) {
            self.begin_life(&shares.name, now);
            self.electorates.known = [Electorate::of_nobody()].into();
        } else if self.is_new(shares, &forgotten) {
            self.begin_life(&shares.name, now);
        } else {
            for (origin, number) in self.electorates.numbers() {
                let names = forgotten.iter().map(|name| (name.clone(), number));
                self.missing.entry(origin).or_default().extend(names);
            }
            let is_missing = |name: &MasterName| !others.contains(name);
            self.missing.values_mut().for_each(|names| names.retain(|name, _| is_missing(name)));
            // One without slots may have been reset, and have met another since: that one will tell
            // it of the others.
            if !shares.own.is_empty() {
                self.electorates.forget(std::mem::take(&mut self.missing));
            }
        }
        let (with_slots, masters) = (self.with_lives(shares), shares.other_masters());
        if !masters.is_empty() {
            self.electorates.meet_others();
        }
        self.give_up_taken(&SlotSet::of(&shares.own));
        (self.others, self.own) = (others, shares.own.clone());
        if (&self.belief.with_slots, &self.belief.masters) != (&with_slots, &masters) {
            self.belief = Belief { with_slots, masters, since: now, is_proposed: false };
        }
        self.propose(now);
        self.compare(&before, now);
        self.advance(now);
    }

    /// Whether the server has slots that it had. It has not been reset then, even if it knows no
    /// other any more.
    fn has_kept(&self, shares: &Shares) -> bool {
        !SlotSet::of(&shares.own).both(&SlotSet::of(&self.own)).is_empty()
    }

    /// Whether the master does not remember what it told, or told it in another Cluster: its state
    /// file is lost, or the server was reset.
    fn is_new(&self, shares: &Shares, forgotten: &[MasterName]) -> bool {
        let itself = &self.electorates.itself;
        let has_lost_all = !forgotten.is_empty() && forgotten.len() == self.others.len();
        let is_bare = shares.all_others().is_empty() && shares.own.is_empty();
        let is_bare = is_bare && !self.electorates.known.is_empty();
        let was_reset = (has_lost_all && !self.has_kept(shares)) || is_bare;
        itself.life == 0 || itself.name != shares.name || was_reset
    }

    /// A server that has left a Cluster goes on alone only without the slots that it has taken.
    fn give_up_taken(&mut self, own: &SlotSet) {
        if self.electorates.has_left() {
            let taken = self.taken.get_or_insert_with(|| own.clone());
            taken.keep(own);
            if taken.len() == 0 {
                self.electorates.meet_others();
            }
        }
    }

    /// Whether the server has left a Cluster, and has slots of that one all the same: it decides in
    /// none, because nobody knows what the masters there do.
    pub fn has_left(&self) -> bool {
        self.electorates.has_left()
    }

    fn begin_life(&mut self, name: &MasterName, now: Instant) {
        let life = hash_of(&(self.boot, &self.electorates.itself, name, now)).max(1);
        let itself = Elector { name: name.clone(), life };
        self.electorates = Electorates { itself, ..Electorates::default() };
        self.heard.clear();
        self.missing.clear();
        self.is_unsaved = true;
    }

    /// The masters that have slots. One that has told nothing since this one started is the one
    /// that had a vote.
    fn with_lives(&self, shares: &Shares) -> Option<BTreeSet<Elector>> {
        let members = self.electorates.latest().map(|latest| &latest.members);
        let is_known = |name: &MasterName| {
            let mut members = members.into_iter().flatten();
            members.find(|member| member.name == *name).cloned()
        };
        let others = shares.others.iter().map(|(name, _)| name);
        let others = others.map(|name| self.elector(name).or_else(|| is_known(name)));
        let itself = (!shares.own.is_empty()).then(|| Some(self.electorates.itself.clone()));
        itself.into_iter().chain(others).collect()
    }

    /// Adds an electorate of the masters that have slots, if the latest is another one: once, when
    /// the server has believed it for as long as news takes to spread. Otherwise masters that do
    /// not agree would add one after the other.
    fn propose(&mut self, now: Instant) {
        let Belief { with_slots: Some(with_slots), since, is_proposed, .. } = &self.belief else {
            return;
        };
        if now < since.after(super::BEAT) {
            return;
        }
        let known = &self.electorates.known;
        let Some(latest) = known.last() else { return self.begin() };
        if *is_proposed || known.len() >= PROPOSES_BELOW {
            return;
        }
        // One that knows no other has nobody to tell.
        let is_other = latest.origin != 0 && !self.electorates.voters(latest).eq(with_slots);
        if is_other && !with_slots.is_empty() {
            let (number, origin) = (latest.number.saturating_add(1), latest.origin);
            let members = with_slots.clone();
            self.electorates.known.insert(Electorate { number, origin, members });
        }
        self.belief.is_proposed = true;
    }

    /// The first electorate: nobody knows any. All masters are members, for others may believe that
    /// other ones have slots.
    fn begin(&mut self) {
        if self.own.is_empty() || !self.silent().is_empty() {
            return;
        }
        let others = self.belief.masters.iter().filter_map(|name| self.elector(name));
        let members = others.chain([self.electorates.itself.clone()]).collect();
        let mut first = Electorate::beginning(members);
        // Who was forgotten, and has returned, has a vote in this one.
        let gone = self.electorates.gone.values().flat_map(BTreeMap::values).max();
        first.number = gone.map_or(0, |up_to| up_to.saturating_add(1));
        self.electorates.known = [first].into();
        self.electorates.tidy();
    }

    /// The other masters that know an electorate, or have told nothing since the server came to
    /// believe what it does: this one cannot begin without them.
    pub fn silent(&self) -> Vec<MasterName> {
        let since = self.belief.since;
        let told_none = |name: &MasterName| self.heard.get(name).and_then(|(_, at)| *at);
        let knows_none = |name: &MasterName| told_none(name).is_some_and(|at| since <= at);
        self.belief.masters.iter().filter(|name| !knows_none(name)).cloned().collect()
    }

    /// Takes what another master knows; `None`: the same as this one told with this digest.
    /// Returns whether it counts as an answer.
    pub fn hear(
        &mut self,
        elector: &Elector,
        (told, digest): (Option<&Electorates>, u64),
        now: Instant,
    ) -> bool {
        self.electorates.meet_others();
        let before = self.electorates.clone();
        let (knows_any, knows_latest) = match told {
            None => {
                let is_same = before.digest() == digest;
                // Or it knows only who is gone, as this one does.
                let knows_none = digest == Electorates::default().digest()
                    || (is_same && before.known.is_empty());
                (!knows_none, is_same)
            }
            Some(told) => {
                self.electorates.merge(told);
                if self.electorates.known.len() > KNOWN_MAX {
                    self.electorates = before;
                    return false;
                }
                (!told.known.is_empty(), told.latest() == self.electorates.latest())
            }
        };
        let knows_none_at = (!knows_any).then_some(now);
        self.heard.insert(elector.name.clone(), (elector.life, knows_none_at));
        self.compare(&before, now);
        if knows_any && knows_latest {
            self.knowing.entry(elector.clone()).or_insert(now);
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
        self.knowing.entry(self.electorates.itself.clone()).or_insert(now);
    }

    /// Goes over to the latest electorate, if most of each one have known it for long enough.
    fn advance(&mut self, now: Instant) {
        let knows = |one: &&Elector| {
            self.knowing.get(*one).is_some_and(|since| since.after(self.delay) <= now)
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

    /// As if all had known for long that all masters have a vote.
    #[cfg(test)]
    pub(super) fn agree(&mut self) {
        let others = self.belief.masters.iter().cloned();
        self.heard.extend(others.map(|name| (name, (1, None))));
        let members = self.electors(&self.belief.masters).into_iter();
        let members = members.chain([self.electorates.itself.clone()]).collect();
        self.electorates.known = [Electorate::beginning(members)].into();
    }

    /// The same at a time that is this much earlier. For a model whose clock stands still.
    pub fn rebased(&self, by: Millis) -> Succession {
        let mut rebased = self.clone();
        rebased.knowing.values_mut().for_each(|at| *at = at.before(by));
        rebased.belief.since = rebased.belief.since.before(by);
        for (_, knows_none_at) in rebased.heard.values_mut() {
            *knows_none_at = knows_none_at.map(|at| at.before(by));
        }
        rebased
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const DELAY: Millis = Millis::new(2_500);
    const LIFE: u64 = 7;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn elector(name: &str) -> Elector {
        Elector { name: name.as_bytes().to_vec(), life: LIFE }
    }

    fn electorate(number: u64, masters: &[&str]) -> Electorate {
        Electorate {
            number,
            origin: 5,
            members: masters.iter().map(|name| elector(name)).collect(),
        }
    }

    fn of(name: &str, known: &[Electorate]) -> Electorates {
        let known = known.iter().cloned().collect();
        Electorates { itself: elector(name), known, ..Electorates::default() }
    }

    /// What a server sees: masters with slots, and without.
    fn shares(name: &str, with_slots: &[&str], idle: &[&str]) -> Shares {
        let names = |names: &[&str]| -> Vec<MasterName> {
            names.iter().map(|name| name.as_bytes().to_vec()).collect()
        };
        let others = with_slots.iter().copied().filter(|other| *other != name);
        let others = names(&others.collect::<Vec<_>>()).into_iter();
        Shares {
            name: name.as_bytes().to_vec(),
            own: with_slots.contains(&name).then_some((0, 0)).into_iter().collect(),
            others: others.map(|other| (other, vec![(1, 1)])).collect(),
            idle: names(idle),
            ..Shares::default()
        }
    }

    /// A master `a` that knows these, whose server believes these to have slots.
    fn master(known: &[Electorate], with_slots: &[&str], idle: &[&str]) -> Succession {
        let mut master = Succession::new(1, of("a", known), DELAY);
        master.sees(with_slots, idle, 0);
        master
    }

    impl Succession {
        fn sees(&mut self, with_slots: &[&str], idle: &[&str], now: u64) {
            self.look(&shares("a", with_slots, idle), at(now));
        }

        fn hears(&mut self, name: &str, known: &[Electorate], now: u64) -> bool {
            self.hears_all(&of(name, known), now)
        }

        fn hears_all(&mut self, told: &Electorates, now: u64) -> bool {
            self.hear(&told.itself, (Some(told), told.digest()), at(now))
        }

        fn knows(&self) -> Vec<Electorate> {
            self.electorates.known.iter().cloned().collect()
        }
    }

    fn electors(names: &[&str]) -> Vec<Elector> {
        names.iter().map(|name| elector(name)).collect()
    }

    fn beginning(masters: &[&str]) -> Electorate {
        Electorate::beginning(masters.iter().map(|name| elector(name)).collect())
    }

    const ABC: &[&str] = &["a", "b", "c"];

    #[test]
    fn the_first_electorate_needs_all_masters_to_know_none() {
        let mut one = master(&[], ABC, &["d"]);
        assert!(!one.hears("b", &[], 10), "no answer of one with a vote");
        one.hears("c", &[], 20);
        one.sees(ABC, &["d"], 30);
        let all = ["b", "c", "d"].map(|name| name.as_bytes().to_vec());
        assert_eq!(one.silent(), all, "they may know one by now");
        for name in ["b", "c"] {
            one.hears(name, &[], 40);
        }
        one.sees(ABC, &["d"], 9_000);
        assert!(one.knows().is_empty() && one.majorities().is_empty());
        assert_eq!(one.silent(), [b"d".to_vec()], "it has no slots, but may have had some");
        one.hears("d", &[], 9_010);
        one.sees(ABC, &["d"], 9_030);
        assert_eq!(one.knows(), [beginning(&["a", "b", "c", "d"])]);
        assert_eq!(one.majorities(), [(electors(&["b", "c", "d"]), 2)]);
        one.sees(ABC, &["d"], 9_040);
        let of_slots =
            Electorate { number: 1, members: beginning(ABC).members, ..one.knows()[0].clone() };
        assert_eq!(one.knows(), [beginning(&["a", "b", "c", "d"]), of_slots]);
        // One that others know is as good.
        let mut late = master(&[], ABC, &[]);
        assert!(late.hears("b", &[electorate(7, &["b", "c"])], 10));
        assert_eq!(late.majorities(), [(electors(&["b", "c"]), 2)]);
        // All that is known of what another one knows is that it is something else.
        let mut unsure = master(&[], &["a", "b"], &[]);
        unsure.hear(&elector("b"), (None, 1), at(10));
        unsure.sees(&["a", "b"], &[], 20);
        unsure.sees(&["a", "b"], &[], 2_000);
        assert!(unsure.knows().is_empty());
    }

    #[test]
    fn who_began_alone_begins_again_with_others() {
        let mut one = master(&[], &["a"], &[]);
        one.sees(&["a"], &[], 999);
        assert!(one.knows().is_empty(), "others may soon be known");
        one.sees(&["a"], &[], 1_000);
        assert_eq!(one.knows(), [beginning(&["a"])]);
        assert_eq!(one.majorities(), [(Vec::new(), 0)]);
        assert!(one.news().is_some() && one.news().is_none(), "the file must have it, once");
        one.sees(&["a"], &[], 5_000);
        assert_eq!(one.knows(), [beginning(&["a"])]);
        // It has told nobody, so it leaves it for what others know.
        let mut joins = one.clone();
        joins.hears("b", &[electorate(0, &["b", "c"])], 5_500);
        assert_eq!(joins.knows(), [electorate(0, &["b", "c"])]);
        // Regression: while a server knew of another master, without its module having heard of
        // it, it went on alone.
        one.sees(&["a"], &["b"], 6_000);
        assert!(one.knows().is_empty());
        one.hears("b", &[], 6_010);
        one.sees(&["a"], &["b"], 7_000);
        assert_eq!(one.knows(), [beginning(&["a", "b"])]);
    }

    #[test]
    fn an_electorate_takes_the_place_of_another_when_most_of_each_have_known_it_for_long_enough() {
        let first = electorate(3, ABC);
        let mut one = master(from_ref(&first), ABC, &["d"]);
        one.sees(&["a", "b", "d"], &["c"], 1_000);
        one.sees(&["a", "b", "d"], &["c"], 2_100);
        assert_eq!(one.knows(), from_ref(&first), "the new one has not told its life");
        one.hears("d", &[], 2_200);
        one.sees(&["a", "b", "d"], &["c"], 2_300);
        one.sees(&["a", "b", "d"], &["c"], 3_299);
        assert_eq!(one.knows(), from_ref(&first), "the server may soon believe more");
        assert_eq!(one.count(), 2);
        one.sees(&["a", "b", "d"], &["c"], 3_300);
        let next = electorate(4, &["a", "b", "d"]);
        let both = [first.clone(), next.clone()];
        assert_eq!(one.knows(), both);
        assert_eq!(one.majorities().len(), 2, "most of both must confirm");
        one.hears("c", &both, 4_000);
        one.hears("d", &both, 5_000);
        one.hears("c", &both, 7_499);
        assert_eq!(one.knows(), both);
        one.hears("c", &both, 7_500);
        assert_eq!(one.knows(), [next]);
        assert_eq!(one.count(), 1);
        // Its server still believes that, and others do not: it says so only once.
        let other = electorate(5, ABC);
        one.hears("b", &[electorate(4, &["a", "b", "d"]), other.clone()], 8_000);
        one.sees(&["a", "b", "d"], &["c"], 60_000);
        assert_eq!(one.knows().last(), Some(&other));
    }

    #[test]
    fn who_went_over_takes_others_along_and_leaves_what_is_earlier_behind() {
        let mut one = master(&[electorate(3, ABC)], ABC, &[]);
        let later = electorate(5, &["b", "c"]);
        one.hears("c", &[electorate(3, ABC), electorate(4, &["a"])], 10);
        assert_eq!(one.knows().len(), 2);
        one.hears("b", from_ref(&later), 20);
        assert_eq!(one.knows(), from_ref(&later));
        one.hears("c", &[electorate(3, ABC)], 30);
        assert_eq!(one.knows(), [later], "it is the other one that is behind");
    }

    /// Regression: masters of another Cluster took the place of those that had a vote in this one.
    #[test]
    fn an_electorate_of_another_beginning_takes_the_place_of_none() {
        let own = electorate(3, ABC);
        let foreign = Electorate { origin: 9, ..electorate(8, &["x", "y"]) };
        let mut one = master(from_ref(&own), ABC, &[]);
        one.hears("x", from_ref(&foreign), 10);
        let both = [own, foreign.clone()];
        assert_eq!(one.knows(), both);
        // Most of both know both.
        for (name, now) in [("b", 20), ("x", 30), ("y", 40), ("b", 2_539), ("y", 2_540)] {
            assert_eq!(one.knows(), both);
            one.hears(name, &both, now);
        }
        assert_eq!(one.knows(), [foreign]);
    }

    #[test]
    fn who_was_forgotten_has_no_vote_in_what_there_was() {
        // Regression: a master without slots was another one after it had forgotten one of many.
        let mut without = master(&[electorate(3, ABC)], &["b", "c"], &["d"]);
        let before = without.electorates().clone();
        without.sees(&["b", "c"], &[], 100);
        assert_eq!(*without.electorates(), before, "and its server may have been reset");
        let mut one = master(&[electorate(3, ABC)], ABC, &["d"]);
        one.sees(&["a"], &["d"], 100);
        assert_eq!(one.majorities(), [(Vec::new(), 0)]);
        let told = one.electorates().clone();
        let mut other = master(&[electorate(3, ABC)], ABC, &["d"]);
        other.hears_all(&Electorates { itself: elector("b"), ..told.clone() }, 200);
        assert_eq!(other.majorities(), [(Vec::new(), 0)], "others hear of that");
        // One with the same name that joins later is a new one.
        let mut next = told;
        next.known.insert(electorate(4, &["a", "b"]));
        other.hears_all(&Electorates { itself: elector("b"), ..next }, 300);
        assert_eq!(other.majorities()[1], (electors(&["b"]), 1));
        // Regression: one that had forgotten the only other was another one.
        let mut two = master(&[electorate(3, &["a", "b"])], &["a"], &["b"]);
        two.sees(&["a"], &[], 100);
        assert_eq!(two.electorates().itself, elector("a"));
        assert_eq!(two.majorities(), [(Vec::new(), 0)]);
        // All of the first are gone.
        let known = [electorate(3, &["b", "c"]), electorate(4, &["a"])];
        let mut last = master(&known, ABC, &["d"]);
        last.sees(&["a"], &["d"], 100);
        assert_eq!(last.knows(), [electorate(4, &["a"])]);
    }

    /// Regression: it confirmed another master by an electorate that it had left; and two of these
    /// made a majority without anybody who knew the next one.
    #[test]
    fn who_has_forgotten_what_it_told_is_another_one() {
        let first = electorate(3, ABC);
        let mut one = Succession::new(1, Electorates::default(), DELAY);
        one.sees(ABC, &[], 0);
        let life = one.electorates().itself.life;
        assert!(life != LIFE && life != 0 && one.news().is_some());
        one.hears("b", from_ref(&first), 100);
        assert_eq!(one.majorities(), [(electors(ABC), 2)], "it has no vote");
        // The others give it one in the next.
        let mut other = master(from_ref(&first), ABC, &[]);
        let new = Elector { life, ..elector("c") };
        other.hear(&new, (Some(&Electorates::default()), 0), at(200));
        other.sees(ABC, &[], 300);
        other.sees(ABC, &[], 1_300);
        let members = [elector("a"), elector("b"), new].into();
        assert_eq!(other.knows(), [first, Electorate { number: 4, origin: 5, members }]);
    }

    #[test]
    fn a_server_that_was_reset_is_another_one() {
        let known = [electorate(3, ABC)];
        type Seen<'a> = (&'a str, &'a [&'a str]);
        let resets: [Seen<'_>; 3] =
            // Without others; after it has met one, with slots by then; with another name.
            [("a", &[]), ("a", &["a", "x"]), ("z", &["z", "b", "c"])];
        for (name, with_slots) in resets {
            // It was drained.
            let mut one = master(&known, &["b", "c"], &[]);
            one.news();
            one.look(&shares(name, with_slots, &[]), at(100));
            let electorates = one.electorates().clone();
            assert!(electorates.known.is_empty() && electorates.gone.is_empty(), "{name}");
            assert_eq!(electorates.itself.name, name.as_bytes());
            assert!(electorates.itself.life != LIFE, "{name} {with_slots:?}");
            assert_eq!(one.news(), Some(electorates.clone()));
            one.look(&shares(name, with_slots, &[]), at(300));
            assert_eq!(*one.electorates(), electorates, "only once");
        }
    }

    /// Regression: it began alone, with slots that the Cluster had given to others.
    #[test]
    fn a_server_that_finds_slots_of_a_cluster_that_it_has_left_decides_in_none() {
        let found = |others: &[&str]| {
            let all: Vec<_> = others.iter().copied().chain(["a"]).collect();
            Shares { found: vec![(0, 0)], ..shares("a", &all, &[]) }
        };
        let starts = |electorates: &Electorates, shares: &Shares| {
            let mut one = Succession::new(2, electorates.clone(), DELAY);
            one.look(shares, at(0));
            one.look(&Shares { found: Vec::new(), ..shares.clone() }, at(9_000));
            one
        };
        let is_alone = |one: &Succession| one.majorities() == [(Vec::new(), 0)];
        let reset = {
            let mut one = master(&[electorate(3, ABC)], &["b", "c"], &[]);
            one.look(&shares("a", &[], &[]), at(100));
            one.electorates().clone()
        };
        let alone = of("a", &[beginning(&["a"])]);
        // (what its file has, what it sees, whether it has left)
        for (before, seen, has_left) in [
            (&reset, found(&[]), true),
            // The file has not seen the reset, or the server has lost its `nodes.conf`.
            (&of("a", &[electorate(3, ABC)]), found(&[]), true),
            (&of("z", &[electorate(3, ABC)]), found(&[]), true),
            (&reset, shares("a", &["a"], &[]), false),
            (&Electorates::default(), found(&[]), false),
            (&alone, found(&[]), false),
            (&reset, found(&["b"]), false),
        ] {
            let one = starts(before, &seen);
            assert_eq!(one.has_left(), has_left, "{before:?} {seen:?}");
            assert_eq!(is_alone(&one), !has_left && seen.others.is_empty());
        }
        let mut left = starts(&reset, &found(&[]));
        assert!(left.news().is_some_and(|news| news.itself.life != 0), "the file must have that");
        assert_eq!(left.majorities(), [(Vec::new(), 1)], "of nobody");
        // The server has saved that it has the slot.
        let mut again = starts(left.electorates(), &shares("a", &["a"], &[]));
        assert!(again.has_left());
        let mut joins = again.clone();
        joins.sees(&["a"], &["b"], 9_100);
        assert_eq!(joins.knows(), [], "it tells nobody");
        let mut told = again.clone();
        told.hears("b", &[electorate(3, &["b", "c"])], 9_100);
        assert_eq!(told.knows(), [electorate(3, &["b", "c"])]);
        // It was given another slot, and not this one.
        again.look(&Shares { own: vec![(7, 7)], ..shares("a", &["a"], &[]) }, at(9_100));
        again.look(&Shares { own: vec![(0, 7)], ..shares("a", &["a"], &[]) }, at(9_300));
        again.look(&Shares { own: vec![(0, 7)], ..shares("a", &["a"], &[]) }, at(19_000));
        assert!(is_alone(&again));
    }

    /// It has met one again before it looked.
    #[test]
    fn a_server_that_was_reset_has_forgotten_nobody() {
        let mut one = master(&[electorate(3, ABC)], &["b", "c"], &["d"]);
        one.look(&shares("a", &["c"], &[]), at(100));
        one.look(&shares("a", &["b", "c"], &["d"]), at(200));
        one.look(&shares("a", ABC, &["d"]), at(300));
        assert_eq!(*one.electorates(), of("a", &[electorate(3, ABC)]));
    }

    /// Regression: who took the slots of others over, and was told at once to forget these, still
    /// asked them; and who had forgotten all that had a vote was told of them again.
    #[test]
    fn those_who_took_over_from_all_begin_again() {
        let known = [electorate(3, &["x", "y", "z"])];
        let mut one = master(&known, &["x", "y", "z"], &["b", "c"]);
        // Forgotten before it took over, and in that moment.
        one.sees(&["y", "z"], &["b", "c"], 50);
        one.sees(ABC, &[], 100);
        let gone: BTreeMap<_, _> = ["x", "y", "z"].map(|name| (name.into(), 3)).into();
        let gone = Forgotten::from([(5, gone)]);
        let told = Electorates { gone: gone.clone(), ..of("a", &[]) };
        assert_eq!(*one.electorates(), told);
        // Another one has forgotten nobody, as one without slots.
        let mut other = master(&known, &["b"], &["c"]);
        assert!(one.hears("b", &known, 200));
        assert_eq!(*one.electorates(), told);
        assert!(!other.hears_all(&told, 200));
        assert_eq!((other.knows(), &other.electorates().gone), (Vec::new(), &gone));
        let none = told.digest();
        assert!(!one.hear(&elector("c"), (None, none), at(200)));
        one.sees(ABC, &[], 300);
        assert!(!one.hear(&elector("b"), (None, none), at(1_300)));
        assert!(!one.hear(&elector("c"), (None, none), at(1_300)));
        one.sees(ABC, &[], 1_400);
        let first = Electorate { number: 4, ..beginning(ABC) };
        assert_eq!(*one.electorates(), Electorates { gone, ..of("a", from_ref(&first)) });
        // Regression: a server that had been away told the former one again, and nobody could be
        // asked.
        one.hears("d", &known, 1_500);
        assert_eq!(one.knows(), from_ref(&first));
        let mut away = master(&known, &["x", "y", "z"], &[]);
        away.hears_all(&Electorates { itself: elector("b"), ..one.electorates().clone() }, 1_600);
        assert_eq!(away.knows(), [first]);
    }

    #[test]
    fn those_who_were_forgotten_are_known_for_a_few_origins() {
        let mut one = master(&[electorate(50, ABC)], ABC, &[]);
        let names = |up_to| BTreeMap::from([(MasterName::from("x"), up_to)]);
        let gone: Forgotten = (10..30).map(|origin| (origin, names(100 - origin))).collect();
        let told = Electorates { gone, ..of("b", &[electorate(50, ABC)]) };
        one.hears_all(&told, 100);
        let left: Vec<_> = one.electorates().gone.keys().copied().collect();
        assert_eq!(left, [10, 11, 12, 13], "the numbers rise with each beginning");
    }

    #[test]
    fn too_many_electorates_are_no_answer() {
        let mut one = master(&[electorate(3, ABC)], ABC, &[]);
        let many: Vec<_> =
            (4..=4 + KNOWN_MAX as u64).map(|number| electorate(number, ABC)).collect();
        assert!(!one.hears("b", &many, 100));
        assert_eq!(one.knows(), [electorate(3, ABC)]);
        // Regression: those that both know counted twice.
        assert!(one.hears("b", &many[1..], 200));
        assert!(one.hears("c", &many[1..], 300));
        assert_eq!(one.knows(), many[1..]);
    }

    /// Regression: numbers were compared across Clusters. A server that was forgotten here may
    /// found another Cluster, under the name that it has.
    #[test]
    fn who_was_forgotten_in_one_cluster_has_a_vote_in_another() {
        let theirs = Electorate { origin: 6, ..electorate(0, &["c", "d", "e"]) };
        let mut one = master(&[electorate(9, ABC)], ABC, &[]);
        one.sees(&["a", "b"], &[], 100);
        // All masters of before are gone, and this one waits for another to begin with.
        let mut waits = master(&[electorate(9, &["b", "c"])], &["a"], &["b", "c", "f"]);
        waits.sees(&["a"], &["f"], 100);
        assert!(waits.knows().is_empty() && !waits.electorates().gone.is_empty());
        for mut one in [one, waits] {
            one.hears("d", from_ref(&theirs), 300);
            let majorities = one.majorities();
            assert_eq!(majorities[0], (electors(&["c", "d", "e"]), 2));
            let mut other = master(from_ref(&theirs), &["c", "d", "e"], &[]);
            other
                .hears_all(&Electorates { itself: elector("f"), ..one.electorates().clone() }, 400);
            assert_eq!(other.majorities()[0], (electors(&["c", "d", "e"]), 2));
        }
    }
}
