//! A separate model of which masters of a Cluster have a vote, each with the engine's `Succession`.
//!
//! Time passes in ticks, for all masters together; between two ticks anything may happen in any
//! order. A master asks another one, and gets the answer late or never. As often as the bounds
//! allow, a server comes to believe that other masters have slots; a master starts again, with what
//! its state file has; or it dies for good, and the servers of others are told to forget it, when
//! no answer of it counts any more. A server may be told to forget a master that lives, by mistake,
//! and hears of it again. Or a master is removed: its server is reset, and all others forget
//! it; when it starts again, it knows no other, and takes a slot of the Cluster by the keys in its
//! data file. A master is *sure* while most of the electorate that counts for
//! it have answered not long ago, itself included if it has a vote. A replica asks nobody until its
//! server has slots, but hears and answers.
//!
//! Two masters that are sure at the same time share a voter whose answers to both count: so it
//! cannot have confirmed one slot to both. Masters of two Clusters that have met, so far as those
//! who know of that are concerned.
//!
//! Nor does a walk lead to where nobody decides for good: see [`World::recovers`].
//!
//! The clock of the model stands still: a tick ages everything that the masters remember
//! (`Succession::rebased`).

use std::collections::BTreeSet;

use lockmod::engine::{
    Elector, Electorate, Electorates, Instant, MasterName, Millis, Shares, SlotRuns, Succession,
};
use rand::RngExt;
use stateright::{Model, Property};

use super::walk::stray;
use super::witness::Witnessed;

/// The length of a tick, so that two are longer than an answer counts.
const TICK: Millis = Millis::new(1_264);
/// For how many ticks an answer counts.
const COUNTS: u8 = 1;
const NOW: Instant = Instant::from_millis(4 * TICK.get());

/// A rule that is dropped on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// Each master counts those that its server believes to have slots.
    CountsWhomItSees,
    /// Most of the first electorate are enough, even if others may take its place.
    CountsTheFirst,
    /// An electorate takes the place of another as soon as most know it.
    TakesOverAtOnce,
    /// Answers do not tell which electorates might take the place of the one that counts.
    HidesTheNext,
    /// A restart forgets the electorates, but for the first.
    Forgets,
    /// A master does not know that others may be added after the one that it proposes.
    TellsOnlyTheLatest,
    /// A master that has lost its state file has the vote that it had.
    KeepsItsLife,
    /// What was begun in another Cluster may take the place of what was begun here.
    OneOrigin,
    /// A master that was removed begins alone in slots that it has taken by their keys.
    ReturnsAlone,
    /// A replica that knows no electorate does not hear what others tell.
    ReplicasHearNothing,
}

/// What happens after a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// These servers are lost for good.
    pub(crate) lost: &'static [u8],
    /// These have the slots then.
    pub(crate) successors: &'static [u8],
    /// This one is down from the end of the walk until the successors decide.
    pub(crate) away: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// By master: who has slots, as its server may come to believe, in this order. The first is
    /// also what it knows at first.
    pub(crate) beliefs: &'static [&'static [&'static [u8]]],
    /// Nobody knows any at first.
    pub(crate) begins: bool,
    /// They are of two Clusters at first.
    pub(crate) meet: bool,
    /// How often a master starts again.
    pub(crate) starts: u8,
    /// A start may come without a state file.
    pub(crate) loses: bool,
    /// How many masters die.
    pub(crate) deaths: usize,
    /// How many are forgotten although they live.
    pub(crate) mistakes: u8,
    /// How many are removed.
    pub(crate) removals: usize,
    /// Answers may be late.
    pub(crate) are_late: bool,
    /// These are replicas while they have no slots.
    pub(crate) replicas: &'static [u8],
    pub(crate) ending: Option<Ending>,
    pub(crate) defect: Defect,
}

/// What a sound run should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// An electorate has taken the place of the first.
    TookOver,
    /// Two masters were sure with different electorates.
    SureWithDifferentOnes,
    /// A master with a vote in the first electorate is not sure, because another one has taken its
    /// place.
    LeftBehind,
    /// A master that was removed has slots again, and knows no other.
    Returned,
}

impl Witness {
    const ALL: [Witness; 4] =
        [Witness::TookOver, Witness::SureWithDifferentOnes, Witness::LeftBehind, Witness::Returned];
}

/// Whether a master is in the Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Inside,
    Removed,
    /// It was removed, and has taken a slot at a start.
    Returned,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Master {
    succession: Succession,
    /// Which of its beliefs its server has.
    belief: usize,
    /// How long ago it asked each other one what that has answered, in which life.
    answered: Vec<Option<(u8, u64)>>,
    /// Answers on their way to it, and how long ago it asked.
    on_the_way: Vec<Option<(Electorates, u8)>>,
    /// The origins that it has known in its life.
    origins: BTreeSet<u64>,
    /// How many ticks ago it died, until no answer of it counts.
    died: Option<u8>,
    /// Whom its server was told to forget.
    forgotten: BTreeSet<usize>,
    place: Place,
    is_replica: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    masters: Vec<Master>,
    starts: u8,
    mistakes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// A master (first) asks another (second), and gets the answer.
    Ask(usize, usize),
    /// The same, but the answer takes its time.
    AskSlowly(usize, usize),
    Receive(usize, usize),
    /// A server comes to believe what is next.
    Believe(usize),
    Start(usize),
    /// A master starts without its state file, or its server was reset.
    StartEmpty(usize),
    Die(usize),
    /// A server (first) is told to forget another master (second).
    Forget(usize, usize),
    /// It hears of it again.
    Meet(usize, usize),
    Remove(usize),
}

pub(crate) struct World {
    bounds: Bounds,
    witnessed: Witnessed,
}

/// By master: it alone.
const ALONE: [u8; 5] = [0, 1, 2, 3, 4];

fn name(master: usize) -> MasterName {
    vec![master as u8]
}

/// In its first life.
fn elector(master: u8) -> Elector {
    Elector { name: name(master.into()), life: 1 }
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> World {
        World { bounds, witnessed: Witnessed::default() }
    }

    /// What has not been reached.
    pub(crate) fn unwitnessed(&self) -> Vec<Witness> {
        let may_be = |witness: &Witness| *witness != Witness::Returned || self.bounds.removals > 0;
        let lacks = |witness: &Witness| !self.witnessed.has(*witness as u8);
        Witness::ALL.into_iter().filter(may_be).filter(lacks).collect()
    }

    fn count(&self) -> usize {
        self.bounds.beliefs.len()
    }

    /// `start`: the number of the start.
    fn succession(&self, start: u64, electorates: Electorates) -> Succession {
        let is_hasty = self.bounds.defect == Defect::TakesOverAtOnce;
        let delay = if is_hasty { Millis::ZERO } else { Millis::new(2 * TICK.get()) };
        Succession::new(start, electorates, delay)
    }

    fn first(&self, at: usize) -> Electorates {
        let first = self.bounds.beliefs[at][0];
        let members = first.iter().map(|master| elector(*master)).collect();
        // Those of the other Cluster have had more of them.
        let is_other = first != self.bounds.beliefs[0][0];
        let has_origin = is_other && self.bounds.defect != Defect::OneOrigin;
        let (number, origin) = (u64::from(is_other) * 7, 1 + u64::from(has_origin));
        let is_replica = self.may_be_replica(at) && !first.contains(&(at as u8));
        let is_known = |_: &Electorate| !self.bounds.begins && !is_replica;
        let known = [Electorate { number, origin, members }].into_iter().filter(is_known).collect();
        Electorates { itself: elector(at as u8), known, ..Electorates::default() }
    }

    fn believed(&self, master: &Master, at: usize) -> &'static [u8] {
        let ending = self.bounds.ending.map_or(&[][..], |ending| ending.successors);
        match master.place {
            Place::Inside => self.bounds.beliefs[at].get(master.belief).unwrap_or(&ending),
            Place::Removed => &[],
            Place::Returned => &ALONE[at..=at],
        }
    }

    fn look(&self, state: &mut State, at: usize) {
        self.see(state, at, false);
    }

    /// `finds`: its server has taken its slots by their keys.
    fn see(&self, state: &mut State, at: usize, finds: bool) {
        let believed = self.believed(&state.masters[at], at);
        let (mut others, mut idle, mut replicas) = (Vec::new(), Vec::new(), Vec::new());
        let forgotten = &state.masters[at].forgotten;
        let is_known = |other: &usize| *other != at && !forgotten.contains(other);
        for other in (0..self.count()).filter(is_known) {
            match believed.contains(&(other as u8)) {
                true => others.push((name(other), vec![(1, 1)])),
                false if self.may_be_replica(other) => replicas.push(name(other)),
                false => idle.push(name(other)),
            }
        }
        self.take_role(state, at, believed.contains(&(at as u8)));
        let own: SlotRuns = believed.contains(&(at as u8)).then_some((0, 0)).into_iter().collect();
        let found = if finds { own.clone() } else { SlotRuns::new() };
        let (name, had_none) = (name(at), finds);
        let is_replica = state.masters[at].is_replica;
        let shares = Shares { name, own, found, had_none, others, idle, ..Shares::default() };
        let shares = Shares { is_replica, replicas, ..shares };
        let master = &mut state.masters[at];
        master.succession.look(&shares, NOW);
        let known = &master.succession.electorates().known;
        master.origins.extend(known.iter().map(|one| one.origin));
    }

    fn may_be_replica(&self, at: usize) -> bool {
        self.bounds.replicas.contains(&(at as u8))
    }

    /// A replica that has slots is promoted.
    fn take_role(&self, state: &mut State, at: usize, has_slots: bool) {
        let master = &mut state.masters[at];
        if master.is_replica && has_slots {
            let before = master.succession.clone();
            master.succession = self.succession(state.starts.into(), before.electorates().clone());
            master.succession.remember(&before);
            master.answered.fill(None);
            master.on_the_way.fill(None);
        }
        master.is_replica = self.may_be_replica(at) && !has_slots;
    }

    fn start(&self, state: &mut State, at: usize, mut known: Electorates) {
        state.starts += 1;
        let start = u64::from(state.starts);
        let master = &mut state.masters[at];
        let returns = master.place == Place::Removed;
        let is_cautious = self.bounds.defect != Defect::ReturnsAlone;
        if !is_cautious {
            known.left.clear();
        }
        let is_new = known.itself.life == 0;
        master.succession = self.succession(start, known);
        master.answered.fill(None);
        master.on_the_way.fill(None);
        if is_new {
            master.origins.clear();
        }
        if returns {
            master.place = Place::Returned;
        }
        self.see(state, at, returns && is_cautious);
    }

    /// What a master answers to one whose latest electorate is this.
    fn told(&self, state: &State, at: usize, asked: Option<&Electorate>) -> Electorates {
        let mut told = state.masters[at].succession.electorates().clone();
        let first = told.known.first().cloned();
        match self.bounds.defect {
            Defect::HidesTheNext => {
                told.known.retain(|one| Some(one) == first.as_ref() || Some(one) == asked);
            }
            Defect::TellsOnlyTheLatest => {
                told.known = told.known.last().cloned().into_iter().collect();
            }
            _ => {}
        }
        told
    }

    /// Whether a server hears questions of others, and answers.
    fn hears(&self, master: &Master) -> bool {
        let knows_any = !master.succession.electorates().known.is_empty();
        !master.is_replica || knows_any || self.bounds.defect != Defect::ReplicasHearNothing
    }

    /// Asks, and returns the answer.
    fn ask(&self, state: &mut State, from: usize, to: usize) -> Electorates {
        let asked = state.masters[from].succession.electorates().clone();
        state.masters[to].succession.hear(&asked.itself, (Some(&asked), 0), NOW);
        self.look(state, to);
        self.told(state, to, asked.known.last())
    }

    fn receive(&self, state: &mut State, at: usize, from: usize, (told, age): (Electorates, u8)) {
        let master = &mut state.masters[at];
        let life = told.itself.life;
        if !master.succession.hear(&told.itself, (Some(&told), 0), NOW) {
            return;
        }
        let known = master.answered[from].filter(|known| known.1 == life);
        let age = known.map_or(age, |known| known.0.min(age));
        master.answered[from] = (age <= COUNTS).then_some((age, life));
        self.look(state, at);
    }

    /// Who has confirmed this master, if they are enough.
    fn majority(&self, state: &State, at: usize) -> Option<BTreeSet<Elector>> {
        let master = &state.masters[at];
        let known = master.succession.electorates();
        let has_answered = |one: &Elector| {
            let answered = master.answered[usize::from(one.name[0])];
            *one == known.itself || answered.is_some_and(|(_, life)| life == one.life)
        };
        let mut electorates: Vec<BTreeSet<Elector>> = match self.bounds.defect {
            Defect::CountsWhomItSees => {
                vec![self.believed(master, at).iter().map(|other| elector(*other)).collect()]
            }
            _ => known.known.iter().map(|one| known.voters(one).cloned().collect()).collect(),
        };
        if self.bounds.defect == Defect::CountsTheFirst {
            electorates.truncate(1);
        }
        let most = |all: &BTreeSet<Elector>| {
            2 * all.iter().filter(|voter| has_answered(voter)).count() > all.len()
        };
        let is_sure = !electorates.is_empty() && electorates.iter().all(most);
        let confirming = electorates.iter().flatten().filter(|voter| has_answered(voter));
        is_sure.then(|| confirming.cloned().collect())
    }

    /// Two masters are sure, and share no voter.
    fn is_split(&self, state: &State) -> bool {
        // Others have no slots.
        let decides = |master: &Master| {
            master.died.is_none() && master.place != Place::Removed && !master.is_replica
        };
        let living = (0..self.count()).filter(|at| decides(&state.masters[*at]));
        let sure = living.filter_map(|at| Some((at, self.majority(state, at)?)));
        let sure: Vec<_> = sure.collect();
        let mut pairs = sure.iter().flat_map(|one| sure.iter().map(move |other| (one, other)));
        pairs.any(|(one, other)| {
            let [ours, theirs] = [one, other].map(|(at, _)| &state.masters[*at].origins);
            let have_met = !self.bounds.meet || !ours.is_disjoint(theirs);
            have_met && one.1.is_disjoint(&other.1)
        })
    }

    fn witness(&self, state: &State) {
        let known = |at: usize| &state.masters[at].succession.electorates().known;
        let counting = |at: usize| known(at).first().cloned();
        let sure = (0..self.count()).filter(|at| self.majority(state, *at).is_some());
        let sure: BTreeSet<_> = sure.filter_map(counting).collect();
        if sure.len() > 1 {
            self.witnessed.saw(Witness::SureWithDifferentOnes as u8);
        }
        let took_over = |at: usize| counting(at).is_some_and(|one| one.number > 0);
        if state.masters.iter().any(|master| master.place == Place::Returned) {
            self.witnessed.saw(Witness::Returned as u8);
        }
        if (0..self.count()).any(took_over) {
            self.witnessed.saw(Witness::TookOver as u8);
            let has_vote = |at: &usize| self.bounds.beliefs[0][0].contains(&(*at as u8));
            let mut of_first = (0..self.count()).filter(has_vote);
            if of_first.any(|at| self.majority(state, at).is_none()) {
                self.witnessed.saw(Witness::LeftBehind as u8);
            }
        }
    }
}

/// How many steps a walk has.
const STEPS: usize = 100;
/// For how many ticks it is quiet: enough for a few electorates to follow each other.
const QUIET: usize = 16;

impl World {
    /// Whether masters come to decide again, however a walk has ended: it is quiet for a while;
    /// then some masters are lost for good, others take their places, and all are told to forget
    /// those; and at last a server returns that was down all the time. Only while its own vote is
    /// needed may they wait for it.
    fn recovers(&self, state: &State, ending: Ending) -> bool {
        let mut state = state.clone();
        let away = usize::from(ending.away);
        let (lost, left): (Vec<usize>, Vec<usize>) =
            (0..self.count()).partition(|at| ending.lost.contains(&(*at as u8)));
        let (_, left): (Vec<usize>, Vec<usize>) = left.into_iter().partition(|at| *at == away);
        state.masters.iter_mut().for_each(|master| master.forgotten.clear());
        let now = |at: usize| self.bounds.beliefs[at].len() - 1;
        let successors = |at: usize| self.bounds.beliefs[at].len();
        self.be_quiet(&mut state, &[&lost[..], &left].concat(), now);
        self.be_quiet(&mut state, &[], now);
        // They notice that they have taken over, before they are told.
        self.believe(&mut state, &left, successors);
        left.iter().for_each(|at| state.masters[*at].forgotten.extend(&lost));
        self.be_quiet(&mut state, &left, successors);
        let decide = |state: &State| {
            let mut all = ending.successors.iter();
            all.all(|at| self.majority(state, usize::from(*at)).is_some())
        };
        let had_decided = decide(&state);
        let is_needed = left.iter().any(|at| {
            let electorates = state.masters[*at].succession.electorates();
            let mut voters = electorates.known.iter().flat_map(|one| electorates.voters(one));
            voters.any(|one| one.name == name(away))
        });
        let kept = state.masters[away].succession.electorates().clone();
        self.start(&mut state, away, kept);
        self.be_quiet(&mut state, &[&left[..], &[away]].concat(), successors);
        (had_decided || is_needed) && decide(&state)
    }

    /// The servers of these come to believe that; `believes`: which of the beliefs of each.
    fn believe(&self, state: &mut State, these: &[usize], believes: impl Fn(usize) -> usize) {
        for at in these {
            state.masters[*at].belief = believes(*at);
            self.look(state, *at);
        }
    }

    /// Time passes in which these ask each other, if they may, and believe that.
    fn be_quiet(&self, state: &mut State, present: &[usize], believes: impl Fn(usize) -> usize) {
        self.believe(state, present, believes);
        for _ in 0..QUIET {
            *state = self.next_state(state, Action::Tick).unwrap_or_else(|| state.clone());
            for (from, to) in
                present.iter().flat_map(|one| present.iter().map(move |it| (*one, *it)))
            {
                let hears = from != to && self.hears(&state.masters[to]);
                if hears && !state.masters[from].is_replica {
                    let told = self.ask(state, from, to);
                    self.receive(state, from, to, (told, 0));
                }
            }
        }
    }
}

impl World {
    /// Walks at random, so many times. Returns the steps to two who share no voter, or to where
    /// nobody decides any more.
    pub(crate) fn wander(&self, walks: u64) -> Option<Vec<Action>> {
        let begins = || self.init_states().remove(0);
        let ends_well =
            |state: &State| self.bounds.ending.is_none_or(|it| self.recovers(state, it));
        stray(self, (walks, STEPS), (begins, ends_well), |random, actions| {
            // Otherwise hardly any electorate would last.
            match random.random_ratio(1, 6) {
                true => Action::Tick,
                false => actions[random.random_range(0..actions.len())],
            }
        })
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let has_slots = |at: usize| self.bounds.beliefs[at][0].contains(&(at as u8));
        let master = |at| Master {
            succession: self.succession(0, self.first(at)),
            belief: 0,
            answered: vec![None; self.count()],
            on_the_way: vec![None; self.count()],
            origins: BTreeSet::new(),
            died: None,
            forgotten: BTreeSet::new(),
            place: Place::Inside,
            is_replica: self.may_be_replica(at) && !has_slots(at),
        };
        let masters = (0..self.count()).map(master).collect();
        let mut state = State { masters, starts: 0, mistakes: 0 };
        (0..self.count()).for_each(|at| self.look(&mut state, at));
        let state = self.next_state(&state, Action::Tick).expect("time passes");
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.is_split(state) {
            return;
        }
        actions.push(Action::Tick);
        let is_alive = |at: &usize| state.masters[*at].died.is_none();
        let living = (0..self.count()).filter(is_alive).count();
        let is_inside = |master: &&Master| master.place == Place::Inside;
        let inside = state.masters.iter().filter(is_inside).count();
        for at in (0..self.count()).filter(is_alive) {
            if self.count() - living < self.bounds.deaths {
                actions.push(Action::Die(at));
            }
            let is_inside = state.masters[at].place == Place::Inside;
            if is_inside && state.masters[at].belief + 1 < self.bounds.beliefs[at].len() {
                actions.push(Action::Believe(at));
            }
            // Before that, nobody has granted anything.
            let knows_any = !state.masters[at].succession.electorates().known.is_empty();
            if is_inside && knows_any && inside + self.bounds.removals > self.count() {
                actions.push(Action::Remove(at));
            }
            if state.starts < self.bounds.starts {
                actions.push(Action::Start(at));
                if self.bounds.loses {
                    actions.push(Action::StartEmpty(at));
                }
            }
            let knows = |one: usize, other: usize| !state.masters[one].forgotten.contains(&other);
            for other in (0..self.count()).filter(|other| *other != at) {
                let died = state.masters[other].died;
                let is_heard = died.is_none() && knows(at, other) && knows(other, at);
                let is_heard = is_heard && !state.masters[at].is_replica;
                let is_heard = is_heard && self.hears(&state.masters[other]);
                if is_heard {
                    actions.push(Action::Ask(at, other));
                }
                if state.masters[at].on_the_way[other].is_some() {
                    actions.push(Action::Receive(at, other));
                } else if self.bounds.are_late && is_heard {
                    actions.push(Action::AskSlowly(at, other));
                }
                let is_over = died.is_some_and(|ago| COUNTS < ago);
                let may_err = state.mistakes < self.bounds.mistakes;
                let is_there = died.is_none() && state.masters[other].place == Place::Inside;
                if knows(at, other) && (is_over || is_there && is_inside && may_err) {
                    actions.push(Action::Forget(at, other));
                }
                if is_there && is_inside && !knows(at, other) {
                    actions.push(Action::Meet(at, other));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => {
                for master in &mut state.masters {
                    master.died = master.died.map(|ago| (ago + 1).min(COUNTS + 1));
                    master.succession = master.succession.rebased(TICK);
                    let aged = |age: u8| (age < COUNTS).then_some(age + 1);
                    for answer in &mut master.answered {
                        *answer = answer.and_then(|(age, life)| Some((aged(age)?, life)));
                    }
                    let late = |(told, age): (Electorates, u8)| aged(age).map(|age| (told, age));
                    for answer in &mut master.on_the_way {
                        *answer = answer.take().and_then(late);
                    }
                }
                (0..self.count()).for_each(|at| self.look(&mut state, at));
            }
            Action::Ask(from, to) => {
                let told = self.ask(&mut state, from, to);
                self.receive(&mut state, from, to, (told, 0));
            }
            Action::AskSlowly(from, to) => {
                let told = self.ask(&mut state, from, to);
                state.masters[from].on_the_way[to] = Some((told, 0));
            }
            Action::Receive(at, from) => {
                let answer = state.masters[at].on_the_way[from].take()?;
                self.receive(&mut state, at, from, answer);
            }
            Action::Believe(at) => {
                state.masters[at].belief += 1;
                self.look(&mut state, at);
            }
            Action::Start(at) => {
                let forgets = self.bounds.defect == Defect::Forgets;
                let kept = state.masters[at].succession.electorates().clone();
                self.start(&mut state, at, if forgets { self.first(at) } else { kept });
            }
            Action::Die(at) => state.masters[at].died = Some(0),
            Action::Forget(at, other) => {
                state.mistakes += u8::from(state.masters[other].died.is_none());
                state.masters[at].forgotten.insert(other);
                self.look(&mut state, at);
            }
            Action::Meet(at, other) => {
                state.masters[at].forgotten.remove(&other);
                self.look(&mut state, at);
            }
            Action::Remove(at) => {
                let others = (0..self.count()).filter(|other| *other != at);
                state.masters[at].forgotten = others.clone().collect();
                state.masters[at].place = Place::Removed;
                for other in others {
                    state.masters[other].forgotten.insert(at);
                    self.look(&mut state, other);
                }
            }
            Action::StartEmpty(at) => {
                let keeps = self.bounds.defect == Defect::KeepsItsLife;
                let itself = &state.masters[at].succession.electorates().itself;
                let itself = if keeps { itself.clone() } else { Elector::default() };
                self.start(&mut state, at, Electorates { itself, ..Electorates::default() });
            }
        }
        self.witness(&state);
        if state == *last { None } else { Some(state) }
    }

    fn properties(&self) -> Vec<Property<World>> {
        vec![Property::always("who is sure shares a voter", |world: &World, state: &State| {
            !world.is_split(state)
        })]
    }
}
