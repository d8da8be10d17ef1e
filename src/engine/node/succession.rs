//! How a master comes to know who has a vote, and goes over from one electorate to the next.
//!
//! docs/design.md, "Who has a vote", has the rules and the reasons.

use std::collections::{BTreeMap, BTreeSet};

use super::electorate::{Elector, Electorate, Electorates, MasterName, hash_of};
use super::shares::{Shares, SlotRuns};
use super::slot_set::SlotSet;
use crate::engine::{Instant, Millis};

/// A master that knows so many electorates proposes no more.
const PROPOSES_BELOW: usize = 8;
/// How many a master may know.
const KNOWN_MAX: usize = 64;

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

/// What a server has learned of electorates, and from whom.
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
    /// The slots that it has had since its first look, if that matters.
    taken: Option<SlotSet>,
    /// It was a replica until its promotion, or when it last stopped, and has not looked since.
    was_replica: bool,
}

impl Succession {
    /// A server that knows these. `delay`: for longer than any answer counts.
    pub fn new(boot: u64, mut electorates: Electorates, delay: Millis) -> Succession {
        // The file of an earlier build may have what another master knew alone.
        let itself = BTreeSet::from([electorates.itself.clone()]);
        electorates.known.retain(|one| one.origin != 0 || one.members == itself);
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
            taken: None,
            was_replica: false,
        }
    }

    /// Notes that the server was a replica when it last stopped, or until a moment ago.
    pub(super) const fn note_replica(&mut self) {
        self.was_replica = true;
    }

    /// Remembers which nodes the server has known, and their lives: for a master that was a replica
    /// before.
    pub fn remember(&mut self, before: &Succession) {
        (self.others, self.heard) = (before.others.clone(), before.heard.clone());
        // What it has got by an election, it has not taken.
        (self.was_replica, self.taken) = (true, Some(SlotSet::default()));
    }

    /// What the server knows.
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
        if self.has_left() {
            return 0;
        }
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
        // Nobody has a vote about slots of a Cluster that it has left.
        let nobody = self.has_left().then(|| (Vec::new(), 1));
        self.electorates.known.iter().map(of).chain(nobody).collect()
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
        let returns = self.returns(shares);
        if returns || self.is_new(shares, &forgotten) {
            self.begin_life(shares, returns, now);
        } else {
            let lives: Vec<_> = forgotten.iter().flat_map(|name| self.lives_of(name)).collect();
            self.electorates.miss(&lives, &others);
            // One without slots may have been reset, and have met another since: that one will tell
            // it of the others.
            if !shares.own.is_empty() {
                self.electorates.forget_missing(&BTreeSet::new());
            }
            self.electorates.tidy();
        }
        let (with_slots, masters) = (self.with_lives(shares), shares.other_masters());
        if !masters.is_empty() {
            self.electorates.meet_others();
        }
        self.give_up_taken(shares);
        (self.others, self.own, self.was_replica) = (others, shares.own.clone(), false);
        if (&self.belief.with_slots, &self.belief.masters) != (&with_slots, &masters) {
            self.belief = Belief { with_slots, masters, since: now, is_proposed: false };
        }
        self.propose(now);
        self.compare(&before, now);
        self.advance(now);
    }

    /// This server in each life of which this one knows; in life 0 if there is none.
    fn lives_of(&self, name: &MasterName) -> BTreeSet<Elector> {
        let members = self.electorates.known.iter().flat_map(|one| &one.members);
        let members = members.filter(|one| one.name == *name).cloned();
        let mut lives: BTreeSet<_> = members.chain(self.elector(name)).collect();
        if lives.is_empty() {
            lives.insert(Elector { name: name.clone(), life: 0 });
        }
        lives
    }

    /// What masters have told of themselves is older than the latest electorate.
    fn forget_lives(&mut self) {
        let latest = self.electorates.latest();
        for member in latest.into_iter().flat_map(|latest| &latest.members) {
            if self.heard.get(&member.name).is_some_and(|(life, _)| *life != member.life) {
                self.heard.remove(&member.name);
            }
        }
    }

    /// Notes the life of a master that asks, and knows the same electorates.
    pub(super) fn note_life(&mut self, elector: &Elector) {
        if self.heard.get(&elector.name).is_none_or(|(life, _)| *life != elector.life) {
            self.heard.insert(elector.name.clone(), (elector.life, None));
        }
    }

    /// Whether the server has slots that it had. It has not been reset then, even if it knows no
    /// other any more.
    fn has_kept(&self, shares: &Shares) -> bool {
        !SlotSet::of(&shares.own).both(&SlotSet::of(&self.own)).is_empty()
    }

    /// Whether the master does not remember what it told, or told it in another Cluster: its state
    /// file is lost, or the server was reset. A former replica that is in no Cluster was reset too.
    fn is_new(&self, shares: &Shares, forgotten: &[MasterName]) -> bool {
        let itself = &self.electorates.itself;
        let has_lost_all = !forgotten.is_empty() && forgotten.len() == self.others.len();
        let is_bare = shares.all_others().is_empty() && shares.own.is_empty();
        let is_bare = is_bare && (self.was_replica || !self.electorates.known.is_empty());
        let was_reset = (has_lost_all && !self.has_kept(shares)) || is_bare;
        itself.life == 0 || itself.name != shares.name || was_reset
    }

    /// Whether the server has taken slots at its start, by the keys in its data file, and knows no
    /// other master, though it was in a Cluster: it was reset before the master saw that, or it has
    /// lost its `nodes.conf`.
    fn returns(&self, shares: &Shares) -> bool {
        let takes = shares.had_none && !shares.found.is_empty();
        let was_inside = self.was_replica || !self.electorates.behind().is_empty();
        takes && shares.other_masters().is_empty() && was_inside
    }

    /// Whether the server is in no Cluster any more: it has no slots, and was a replica, or has
    /// known others.
    fn leaves(&self, shares: &Shares) -> bool {
        shares.own.is_empty() && (self.was_replica || !self.others.is_empty())
    }

    /// A server that has left a Cluster decides again once it has none of the slots with which it
    /// started, which it may have taken by their keys, and either is given others or knows an
    /// electorate. Or once it is in that Cluster again: most masters there must confirm its slots.
    /// Or once it is a replica, whose data are its master's.
    fn give_up_taken(&mut self, shares: &Shares) {
        let own = || SlotSet::of(&shares.own);
        if self.taken.is_none() || self.has_left() {
            self.taken.get_or_insert_with(own).keep(&own());
        }
        let Electorates { known, left, .. } = &mut self.electorates;
        let has_none = self.taken.as_ref().is_some_and(|taken| taken.len() == 0);
        let goes_on = has_none && !(shares.own.is_empty() && known.is_empty());
        if goes_on
            || shares.is_replica
            || known.iter().any(|one| left.contains(&one.origin) && one.origin != 0)
        {
            left.clear();
        }
    }

    /// Whether the server has left a Cluster, and may have slots of that one: it decides nowhere.
    pub fn has_left(&self) -> bool {
        !self.electorates.left.is_empty()
    }

    /// `returns`: as in [`Succession::returns`].
    fn begin_life(&mut self, shares: &Shares, returns: bool, now: Instant) {
        let name = shares.name.clone();
        let itself = Elector { life: self.new_life(&name, now), name };
        let mut left = self.electorates.behind();
        if left.is_empty() && (returns || self.leaves(shares)) {
            left.insert(0);
        }
        self.electorates = Electorates { itself, left, ..Electorates::default() };
        if self.taken.is_some() {
            // A server that runs takes no slots by their keys: it is given them.
            self.taken = Some(SlotSet::default());
        }
        self.heard.clear();
        self.is_unsaved = true;
    }

    /// A life that it has never had.
    fn new_life(&self, name: &[u8], now: Instant) -> u64 {
        hash_of(&(self.boot, &self.electorates.itself, name, now)).max(1)
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

    /// Adds an electorate of the masters that have slots, if the latest is another one, and this
    /// server has slots or a vote: once, when it has believed that for as long as news takes to
    /// spread. Otherwise servers that do not agree would add one after the other.
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
        let has_say = !self.own.is_empty() || self.electorates.has_vote_in(known);
        if is_other && has_say && !with_slots.is_empty() {
            let (number, origin) = (latest.number.saturating_add(1), latest.origin);
            let members = with_slots.clone();
            self.electorates.known.insert(Electorate { number, origin, members });
        }
        self.belief.is_proposed = true;
    }

    /// The first electorate: nobody knows any. All masters are members, for others may believe that
    /// other ones have slots.
    fn begin(&mut self) {
        if self.own.is_empty() || self.has_left() || !self.silent().is_empty() {
            return;
        }
        let others = self.belief.masters.iter().filter_map(|name| self.elector(name));
        let members = others.chain([self.electorates.itself.clone()]).collect();
        // Who was forgotten, and has returned, has a vote in this one.
        let ended = self.electorates.ended.values().max();
        let number = ended.map_or(0, |up_to| up_to.saturating_add(1));
        self.electorates.known = [Electorate::beginning(number, members)].into();
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

    /// Takes what another server knows; `None`: the same as this one told with this digest.
    /// Returns whether it counts as an answer.
    pub fn hear(
        &mut self,
        elector: &Elector,
        (told, digest): (Option<&Electorates>, u64),
        now: Instant,
    ) -> bool {
        let (told, before) = (told.map(Electorates::of_several), self.electorates.clone());
        let told = told.as_ref();
        // Of a replica, this one may be the only master.
        let is_master = self.belief.masters.contains(&elector.name);
        if is_master || told.is_some_and(|told| !told.known.is_empty()) {
            self.electorates.meet_others();
        }
        let Some((knows_any, knows_latest)) = self.take(told, digest) else {
            self.electorates.clone_from(&before);
            self.electorates.meet_others();
            self.compare(&before, now);
            return false;
        };
        if self.electorates.latest() != before.latest() {
            self.forget_lives();
        }
        if self.electorates.is_forgotten() {
            self.electorates.itself.life = self.new_life(&elector.name, now);
        }
        let knows_none_at = (!knows_any).then_some(now);
        self.heard.insert(elector.name.clone(), (elector.life, knows_none_at));
        self.compare(&before, now);
        if knows_any && knows_latest {
            self.knowing.entry(elector.clone()).or_insert(now);
        }
        self.advance(now);
        knows_any
    }

    /// Takes these, or those of this digest, which this one has told. Returns whether there are
    /// any, and whether they have the latest that this one knows now; `None` if it knows too many.
    fn take(&mut self, told: Option<&Electorates>, digest: u64) -> Option<(bool, bool)> {
        let Some(told) = told else {
            let is_same = self.electorates.digest() == digest;
            // Or it knows only who is gone, as this one does.
            let knows_none = digest == Electorates::default().digest()
                || (is_same && self.electorates.known.is_empty());
            return Some((!knows_none, is_same));
        };
        if !self.own.is_empty() {
            self.electorates.forget_missing(&told.known);
        }
        self.electorates.merge(told);
        let has_room = self.electorates.known.len() <= KNOWN_MAX;
        has_room.then(|| (!told.known.is_empty(), told.latest() == self.electorates.latest()))
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
            let ends: Vec<_> = known.iter().map(|one| (one.origin, one.number)).collect();
            self.electorates.known.retain(|one| *one == latest);
            let others = ends.into_iter().filter(|one| ![0, latest.origin].contains(&one.0));
            for (origin, number) in others {
                self.electorates.end(origin, number);
            }
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
        self.electorates.known = [Electorate::beginning(0, members)].into();
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
    use super::super::electorate::Forgotten;
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
        begun(0, masters)
    }

    fn begun(number: u64, masters: &[&str]) -> Electorate {
        Electorate::beginning(number, masters.iter().map(|name| elector(name)).collect())
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
        assert_eq!(without.electorates().itself, before.itself);
        without.sees(&["c"], &[], 200);
        assert_eq!(without.electorates().digest(), before.digest(), "it may have been reset");
        // Regression: it forgot that if it started again before it took over.
        let mut started = Succession::new(2, without.electorates().clone(), DELAY);
        started.sees(&["c"], &[], 300);
        started.sees(&["a", "c"], &[], 400);
        assert_eq!(started.majorities(), [(electors(&["c"]), 1)]);
        let mut one = master(&[electorate(3, ABC)], ABC, &["d"]);
        one.sees(&["a"], &["d"], 100);
        assert_eq!(one.majorities(), [(Vec::new(), 0)]);
        let told = one.electorates().clone();
        let mut other = master(&[electorate(3, ABC)], ABC, &["d"]);
        other.hears_all(&Electorates { itself: elector("b"), ..told.clone() }, 200);
        assert_eq!(other.majorities(), [(Vec::new(), 0)], "others hear of that");
        // Regression: a server that had been away told a later one, in which they had votes again.
        other.hears("x", &[electorate(4, &["a", "b"]), electorate(5, &["b", "c"])], 300);
        assert_eq!(other.knows(), [electorate(4, &["a", "b"])]);
        assert_eq!(other.majorities(), [(Vec::new(), 0)]);
        // One of them is there after all, and has a vote in another life.
        let mut there = Succession::new(9, of("b", &[electorate(3, ABC)]), DELAY);
        there.look(&shares("b", ABC, &[]), at(0));
        there.hears_all(&told, 100);
        let again = there.electorates().itself.clone();
        assert!(again != elector("b") && there.news().is_some());
        there.hears_all(&told, 200);
        assert_eq!(there.electorates().itself, again, "only once");
        // Regression: it had a vote in what was begun since then, and none in another life.
        let begun = Electorate { origin: 6, ..electorate(4, &["b", "c"]) };
        let mut voter = Succession::new(9, of("b", from_ref(&begun)), DELAY);
        voter.look(&shares("b", ABC, &[]), at(0));
        voter.hears_all(&Electorates { known: [begun].into(), ..told.clone() }, 100);
        assert_eq!(voter.electorates().itself, elector("b"));
        let members = [elector("a"), again.clone()].into();
        let next = Electorate { number: 6, origin: 5, members };
        other.hears_all(&Electorates { itself: again.clone(), ..of("b", &[next]) }, 400);
        assert_eq!(other.majorities(), [(vec![again], 1)]);
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
            assert_eq!(one.has_left(), with_slots.is_empty(), "until it is given slots");
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
            Shares { found: vec![(0, 0)], had_none: true, ..shares("a", &all, &[]) }
        };
        let starts = |electorates: &Electorates, shares: &Shares| {
            let mut one = Succession::new(2, electorates.clone(), DELAY);
            one.look(shares, at(0));
            one.look(&Shares { found: Vec::new(), ..shares.clone() }, at(9_000));
            one
        };
        let is_alone = |one: &Succession| one.majorities() == [(Vec::new(), 0)];
        let reset_at = |mut one: Succession| {
            one.look(&shares("a", &[], &[]), at(100));
            one.electorates().clone()
        };
        let reset = reset_at(master(&[electorate(3, ABC)], &["b", "c"], &[]));
        // It had heard nothing of those that it knew.
        let early = reset_at(master(&[], &["b", "c"], &[]));
        let replica = {
            let mut one = Succession::new(1, of("a", &[]), DELAY);
            one.remember(&Succession::new(1, of("a", &[]), DELAY));
            reset_at(one)
        };
        let one_day = electorate(3, &["a"]);
        let new = reset_at(Succession::new(1, Electorates::default(), DELAY));
        let alone = reset_at(master(&[beginning(&["a"])], &["a"], &[]));
        let own = shares("a", &["a"], &[]);
        let besides = Shares { had_none: false, ..found(&[]) };
        // (what its file has, what it sees, whether it has left)
        for (before, seen, has_left) in [
            (&reset, &found(&[]), true),
            (&early, &found(&[]), true),
            (&replica, &found(&[]), true),
            // It was killed before the file had what it had found, or the module is loaded late.
            (&reset, &own, true),
            // It has not seen the reset, or the server has lost its `nodes.conf`.
            (&of("a", &[electorate(3, ABC)]), &found(&[]), true),
            (&of("z", &[electorate(3, ABC)]), &found(&[]), true),
            // The first start in a Cluster, or after one without slots.
            (&Electorates::default(), &found(&[]), false),
            (&new, &found(&[]), false),
            (&new, &own, false),
            (&alone, &found(&[]), false),
            (&of("a", &[beginning(&["a"])]), &found(&[]), false),
            // It is the only one that is left of its Cluster, and has found a slot besides its own.
            (&of("a", from_ref(&one_day)), &besides, false),
            (&reset, &found(&["b"]), true),
        ] {
            let one = starts(before, seen);
            assert_eq!(one.has_left(), has_left, "{before:?} {seen:?}");
            assert_eq!(is_alone(&one), !has_left && seen.others.is_empty(), "{before:?} {seen:?}");
        }
        let left = starts(&reset, &found(&[]));
        assert_eq!((left.majorities(), left.count()), (vec![(Vec::new(), 1)], 0), "of nobody");
        // Others do not help, unless they are of that Cluster: most there must confirm the slots.
        let theirs = electorate(3, &["b", "c"]);
        for (origin, goes_on) in [(6, false), (5, true)] {
            let mut joins = left.clone();
            joins.sees(&["a"], &["b"], 9_100);
            joins.hears("b", &[], 10_200);
            joins.sees(&["a"], &["b"], 11_300);
            assert!(joins.knows().is_empty() && joins.has_left());
            let theirs = Electorate { origin, ..theirs.clone() };
            joins.hears("b", from_ref(&theirs), 11_400);
            joins.sees(&["a"], &["b"], 11_500);
            let lacks_vote = joins.majorities().contains(&(Vec::new(), 1));
            assert_eq!((joins.has_left(), lacks_vote), (!goes_on, !goes_on), "{origin}");
        }
        // It is given slots while it runs, and has none that it may have taken.
        let mut given = starts(&reset, &shares("a", &[], &[]));
        let mut exchanged = left.clone();
        exchanged.look(&Shares { own: vec![(7, 7)], ..own.clone() }, at(9_100));
        exchanged.look(&Shares { own: vec![(0, 7)], ..own.clone() }, at(9_300));
        for one in [&mut given, &mut exchanged] {
            one.look(&own, at(9_400));
            one.look(&own, at(19_000));
            assert!(is_alone(one));
        }
        // Regression: it was reset and given slots with which it had once started, in one moment.
        for name in ["a", "z"] {
            let mut used =
                starts(&of("a", &[electorate(3, &["a", "b"])]), &shares("a", &["a", "b"], &[]));
            used.sees(&["b"], &[], 9_100);
            used.look(&shares(name, &[name], &[]), at(9_200));
            used.look(&shares(name, &[name], &[]), at(19_000));
            assert!(is_alone(&used), "{name}");
        }
        // It joins the Cluster again as a replica, and is elected.
        let mut elected = Succession::new(3, reset.clone(), DELAY);
        elected.remember(&Succession::new(3, reset.clone(), DELAY));
        elected.sees(ABC, &[], 100);
        assert!(!elected.has_left());
        // Regression: it was killed in the moment after its promotion.
        let mut joined = Succession::new(3, reset.clone(), DELAY);
        joined.look(&Shares { is_replica: true, ..shares("a", &["b"], &[]) }, at(100));
        assert!(!joined.has_left() && joined.news().is_some());
    }

    /// Regression: a replica that had taken the place of the only master asked that one for ever.
    #[test]
    fn what_a_master_knew_alone_concerns_no_other() {
        let mut one = master(&[], &["a"], &["m"]);
        one.hears("m", &[beginning(&["m"])], 100);
        assert_eq!(one.knows(), []);
        one.sees(&["a"], &[], 200);
        one.sees(&["a"], &[], 1_200);
        assert_eq!(one.knows(), [beginning(&["a"])]);
        // Its file has it.
        let mut had = master(&[beginning(&["m"])], &["a"], &[]);
        had.sees(&["a"], &[], 1_000);
        assert_eq!(had.knows(), [beginning(&["a"])]);
    }

    /// Regression: with each answer, it forgot that it was alone.
    #[test]
    fn who_is_alone_with_its_replicas_stays_so() {
        let mut one = master(&[beginning(&["a"])], &["a"], &[]);
        one.hears("r", &[], 100);
        assert_eq!(one.knows(), [beginning(&["a"])]);
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
        let ended = BTreeMap::from([(5, 3)]);
        let gone = Forgotten::from([(5, ["x", "y", "z"].map(|name| (elector(name), 3)).into())]);
        let told = Electorates { gone, ended: ended.clone(), ..of("a", &[]) };
        assert_eq!(*one.electorates(), told);
        // It had heard them as a replica, though they had no vote.
        let mut replica = master(&[electorate(3, &["d"])], &["d"], &["x"]);
        replica.hears("x", &[], 10);
        let mut promoted = Succession::new(1, replica.electorates().clone(), DELAY);
        promoted.remember(&replica);
        promoted.sees(&["a"], &["d"], 20);
        assert_eq!(promoted.electorates().gone[&5], [(elector("x"), 3)].into());
        // Regression: it had never heard that one, and was told of a later electorate of it.
        let mut unheard = master(&[electorate(3, &["d"])], &["a", "d"], &["x"]);
        unheard.sees(&["a"], &[], 20);
        assert!(!unheard.electorates().ended.is_empty());
        unheard.hears("y", &[electorate(4, &["x"])], 30);
        assert!(unheard.knows().is_empty() && unheard.electorates().ended == [(5, 4)].into());
        let mut knows_again = unheard.clone();
        knows_again.sees(&["a"], &["x"], 50);
        assert!(knows_again.electorates().missing.is_empty());
        // And one that was forgotten after the electorates had ended.
        let mut late = one.clone();
        late.hear(&elector("c"), (None, Electorates::default().digest()), at(150));
        late.sees(&["a", "b"], &[], 160);
        assert!(late.electorates().gone[&5].contains_key(&elector("c")));
        // Another one has forgotten nobody, as one without slots.
        let mut other = master(&known, &["b"], &["c"]);
        assert!(one.hears("b", &known, 200));
        assert_eq!(*one.electorates(), told);
        assert!(!other.hears_all(&told, 200));
        assert_eq!((other.knows(), &other.electorates().ended), (Vec::new(), &ended));
        let none = told.digest();
        assert!(!one.hear(&elector("c"), (None, none), at(200)));
        one.sees(ABC, &[], 300);
        assert!(!one.hear(&elector("b"), (None, none), at(1_300)));
        assert!(!one.hear(&elector("c"), (None, none), at(1_300)));
        one.sees(ABC, &[], 1_400);
        let first = begun(4, ABC);
        let begun = Electorates { known: [first.clone()].into(), ..told };
        assert_eq!(*one.electorates(), begun);
        // Regressions: a server that had been away told the former one again, or a later one of
        // which they had not known, and nobody could be asked.
        for number in [3, 4] {
            one.hears("d", &[electorate(number, &["x", "z"])], 1_500);
            assert_eq!(one.knows(), from_ref(&first));
        }
        let mut away = master(&known, &["x", "y", "z"], &[]);
        away.hears_all(&Electorates { itself: elector("b"), ..one.electorates().clone() }, 1_600);
        assert_eq!(away.knows(), [first]);
    }

    #[test]
    fn a_few_origins_are_known_of_which_nobody_is_left() {
        let mut one = master(&[electorate(50, ABC)], ABC, &[]);
        let ended = (10..30).map(|origin| (origin, 100 - origin)).collect();
        let told = Electorates { ended, ..of("b", &[electorate(50, ABC)]) };
        one.hears_all(&told, 100);
        let left: Vec<_> = one.electorates().ended.keys().copied().collect();
        assert_eq!(left, [10, 11, 12, 13], "the numbers rise with each beginning");
        // Regression: an earlier electorate of such an origin came back with all its dead.
        for (number, knows) in [(3, false), (90, false), (91, true)] {
            let theirs = Electorate { origin: 10, ..electorate(number, &["x", "y"]) };
            one.hears("y", from_ref(&theirs), 200);
            assert_eq!(one.knows().contains(&theirs), knows, "{number}");
        }
    }

    #[test]
    fn so_many_forgotten_masters_are_remembered() {
        let mut one = master(&[electorate(3, ABC)], ABC, &[]);
        let gone = (1..=300).map(|number| (elector(&format!("{number}")), number));
        let gone = gone.chain([(elector("c"), 0)]).collect();
        let told = Electorates { gone: [(5, gone)].into(), ..of("b", &[electorate(3, ABC)]) };
        one.hears_all(&told, 100);
        let mut left: Vec<_> = one.electorates().gone[&5].values().copied().collect();
        left.sort_unstable();
        // Regression: a dead master got its vote back.
        assert_eq!((left.len(), &left[..2]), (256, &[0, 46][..]), "the latest, and a member");
    }

    /// Regression: the first of what another one knew was dead, and the next of it took the place
    /// of one that counted.
    #[test]
    fn what_nobody_has_gone_over_to_takes_the_place_of_none() {
        let dead = electorate(3, &["b", "c"]);
        let (ours, theirs) = (electorate(4, &["a", "c"]), electorate(4, &["b", "d"]));
        let mut one = master(&[dead.clone(), theirs.clone()], &["b", "d"], &[]);
        let gone = Forgotten::from([(5, [(elector("b"), 4), (elector("c"), 4)].into())]);
        one.hears_all(&Electorates { gone, ..of("a", from_ref(&ours)) }, 100);
        assert_eq!(one.knows(), [ours, theirs]);
    }

    /// Regression: who had forgotten each other by mistake began again with what had ended, and
    /// again, for ever.
    #[test]
    fn who_begins_again_with_the_same_masters_has_another_origin() {
        let first = beginning(&["a", "b"]);
        let gone = ["a", "b"].map(|name| (elector(name), 0)).into();
        let gone = Forgotten::from([(first.origin, gone)]);
        let told = Electorates { gone, ..of("b", from_ref(&first)) };
        let mut one = master(from_ref(&first), &["a", "b"], &[]);
        one.hears_all(&told, 100);
        assert!(one.knows().is_empty());
        let digest = one.electorates().digest();
        one.hear(&elector("b"), (None, digest), at(1_000));
        one.sees(&["a", "b"], &[], 1_100);
        assert_eq!(one.knows(), [begun(1, &["a", "b"])]);
        assert_eq!(one.electorates().voter_count(), 2);
    }

    /// Regression: a server that knew nothing else took the electorate away that counted, and all
    /// had to begin.
    #[test]
    fn an_electorate_that_nobody_is_left_of_takes_the_place_of_none() {
        let counts = electorate(4, &["a", "d"]);
        let gone = Forgotten::from([(5, [(elector("b"), 3), (elector("c"), 3)].into())]);
        let told = Electorates { gone: gone.clone(), ..of("d", from_ref(&counts)) };
        for number in [4, 9] {
            let dead = electorate(number, &["b", "c"]);
            let mut one = master(&[], &["a", "d"], &[]);
            one.hears_all(&told, 10);
            one.hears("s", from_ref(&dead), 20);
            assert_eq!(*one.electorates(), Electorates { itself: elector("a"), ..told.clone() });
            let mut away = master(from_ref(&dead), &["b", "c"], &[]);
            away.hears_all(&told, 30);
            assert_eq!(away.electorates().digest(), told.digest());
        }
    }

    /// Regression: a server that was away told one of them years later, when all its members were
    /// gone, and nobody had been told to forget them in that origin.
    #[test]
    fn an_origin_that_another_has_taken_the_place_of_has_ended() {
        let foreign = Electorate { origin: 6, ..electorate(7, &["x", "y"]) };
        let both = [electorate(3, ABC), foreign.clone()];
        let mut one = master(&both, ABC, &[]);
        for (name, now) in [("b", 20), ("x", 30), ("y", 40), ("b", 2_540)] {
            one.hears(name, &both, now);
        }
        assert_eq!(one.knows(), from_ref(&foreign));
        assert_eq!(one.electorates().ended, [(5, 3)].into());
        one.hears("s", &[electorate(3, ABC)], 2_600);
        assert_eq!(one.knows(), [foreign]);
    }

    /// A replica may be a second behind.
    #[test]
    fn who_has_neither_slots_nor_a_vote_proposes_nobody() {
        for (known, proposes) in [(ABC, true), (&["b", "c", "d"], false)] {
            let mut one = master(&[electorate(3, known)], &["b", "c"], &[]);
            for name in ["b", "c"] {
                one.hears(name, &[electorate(3, known)], 10);
            }
            one.sees(&["b", "c"], &[], 20);
            one.sees(&["b", "c"], &[], 1_100);
            assert_eq!(one.knows().len() > 1, proposes, "{known:?}");
        }
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
        assert!(waits.knows().is_empty() && !waits.electorates().ended.is_empty());
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
