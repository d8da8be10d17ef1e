//! A separate model of how long leases may stand, as those who confirm slots remember it, each with
//! the engine's `Lengths`.
//!
//! Three masters have a vote. Two of them may have the one slot of the model: each server believes
//! of one of them that it has it, and that changes as often as the bounds allow. A master asks
//! those with a vote whether they confirm the slot; an answer counts for a tick or two, or is lost.
//! It decides while most confirm, and if it does not know the slot as its own, not before it has
//! waited for the longest lease that it knows of. Settings are raised and lowered, and masters
//! start again, at any time.
//!
//! Nobody gets a lease while one of the other master stands.
//!
//! The clock of the model stands still: a tick ages everything that is remembered.

use lockmod::engine::{Change, Instant, Lengths, Millis, SUPPORT};
use rand::RngExt;
use stateright::{Model, Property};

use super::walk::stray;
use super::witness::Witnessed;

/// The length of a tick, so that two are longer than an answer counts.
const TICK: Millis = Millis::new(1_264);
/// For how many ticks an answer counts.
const COUNTS: u8 = 1;
const NOW: Instant = Instant::from_millis(100 * TICK.get());
/// The longest lease of either setting, in ticks. The longer one is longer than a wait for the
/// shorter one.
const SHORT: u8 = 1;
const LONG: u8 = 12;
/// No wait is longer, in ticks.
const STEADY_MAX: u8 = 18;
const VOTERS: usize = 3;
/// The first of them have the slot, one after the other.
const MASTERS: usize = 2;

/// A rule that is dropped on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// A master waits as long as its own setting says.
    GoesByItsSetting,
    /// A start forgets what was remembered.
    Forgets,
    /// What is said last counts.
    CountsTheLast,
    /// Who confirms a slot tells nothing of what it remembers.
    TellsNothing,
    /// A setting that is raised counts before most know it.
    RaisesAtOnce,
    /// A master does not remember what it says itself.
    ForgetsItself,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How often a server comes to believe something else.
    pub(crate) turns: u8,
    /// How often a setting changes.
    pub(crate) settings: u8,
    /// How often a master starts again, after a crash or a clean stop.
    pub(crate) starts: u8,
    /// Which masters (first) cannot ask which voters (second).
    pub(crate) cut: &'static [(usize, usize)],
    /// What happens first, but for a grant that is not possible.
    pub(crate) before: &'static [Action],
    pub(crate) defect: Defect,
}

/// What a sound run should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// The second master decides after a wait for the shorter lease.
    WaitedShort,
    /// The same for the longer one, which its own setting does not allow.
    WaitedLong,
    /// The first one decides again after that.
    CameBack,
}

impl Witness {
    pub(crate) const ALL: [Witness; 3] =
        [Witness::WaitedShort, Witness::WaitedLong, Witness::CameBack];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Answer {
    age: u8,
    confirms: bool,
    /// For how long it has confirmed without a break.
    steady: u8,
    longest: Millis,
}

/// A server with a vote.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Voter {
    owner: usize,
    /// Which masters have lost the slot since they were last told.
    lost: [bool; MASTERS],
    lengths: Lengths,
    saved: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Master {
    setting: u8,
    /// What its questions say, and who has answered one since that grew.
    allows: u8,
    know: [bool; VOTERS],
    answers: [Option<Answer>; VOTERS],
    /// It decides without a wait.
    is_settled: bool,
    /// How long ago it last had a majority.
    covered: u8,
    /// How long its lease stands, and how long one stands that it has forgotten.
    lease: u8,
    forgotten: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    voters: [Voter; VOTERS],
    masters: [Master; MASTERS],
    turns: u8,
    settings: u8,
    starts: u8,
    /// The second master has had leases.
    has_gone: bool,
    are_two: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// A master (first) asks a voter (second), and gets the answer.
    Ask(usize, usize),
    /// The same, but the answer is lost.
    AskInVain(usize, usize),
    Grant(usize),
    /// A server comes to believe that the other master has the slot.
    Turn(usize),
    /// A master's setting becomes the other one.
    Set(usize),
    /// A server starts after a crash.
    Start(usize),
    /// The same after a clean stop: it finds all its locks.
    Return(usize),
}

pub(crate) struct World {
    bounds: Bounds,
    witnessed: Witnessed,
}

fn length(ticks: u8) -> Millis {
    Millis::new(u64::from(ticks) * TICK.get())
}

/// Whether a wait of so many ticks is long enough: see `whole_wait` in the engine.
fn is_over(ticks: u8, longest: Millis) -> bool {
    let wait = SUPPORT.saturating_add(longest).get();
    length(ticks).get() > wait + wait.div_ceil(100) + 2
}

impl Voter {
    fn record(&mut self) {
        if let Some(Change::Lengths(longest)) = self.lengths.news(NOW) {
            self.saved = longest;
        }
    }
}

impl Master {
    fn confirming(&self) -> impl Iterator<Item = &Answer> {
        self.counting().filter(|answer| answer.confirms)
    }

    fn counting(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().flatten().filter(|answer| answer.age <= COUNTS)
    }

    /// Since how many ticks most have confirmed the slot, if they do.
    fn steady(&self) -> Option<u8> {
        let mut steady: Vec<u8> = self.confirming().map(|answer| answer.steady).collect();
        steady.sort_unstable();
        steady.into_iter().rev().nth(VOTERS / 2)
    }

    fn is_known(&self) -> bool {
        self.know.iter().filter(|knows| **knows).count() > VOTERS / 2
    }

    /// Compares with the last majority.
    fn advance(&mut self) {
        if let Some(steady) = self.steady() {
            self.is_settled &= self.covered <= steady + COUNTS;
            self.covered = 0;
        }
    }
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> World {
        World { bounds, witnessed: Witnessed::default() }
    }

    pub(crate) fn witnesses(&self) -> Vec<Witness> {
        let has = |witness: &Witness| self.witnessed.has(*witness as u8);
        Witness::ALL.into_iter().filter(has).collect()
    }

    fn has(&self, defect: Defect) -> bool {
        self.bounds.defect == defect
    }

    /// What the questions of a master say.
    fn allow(&self, state: &mut State, at: usize) {
        let (master, voter) = (&mut state.masters[at], &mut state.voters[at]);
        if master.allows < master.setting && !self.has(Defect::RaisesAtOnce) {
            master.know = [false; VOTERS];
        }
        master.allows = master.setting;
        if !self.has(Defect::ForgetsItself) {
            self.hear(voter, length(master.setting));
        }
    }

    fn hear(&self, voter: &mut Voter, longest: Millis) {
        if self.has(Defect::CountsTheLast) {
            voter.lengths = Lengths::default();
        }
        voter.lengths.hear(longest, NOW);
        voter.record();
    }

    fn ask(&self, state: &mut State, at: usize, to: usize, arrives: bool) {
        self.allow(state, at);
        let said = length(state.masters[at].setting);
        let voter = &mut state.voters[to];
        if at != to {
            self.hear(voter, said);
        }
        let tells = !self.has(Defect::TellsNothing);
        let longest = if tells { voter.lengths.longest(NOW) } else { Millis::ZERO };
        let (confirms, lost) = (voter.owner == at, voter.lost[at]);
        if !arrives {
            return;
        }
        voter.lost[at] = false;
        let master = &mut state.masters[at];
        let before = master.answers[to].as_ref().filter(|answer| answer.confirms && !lost);
        let steady = before.map_or(0, |answer| answer.steady);
        master.answers[to] = Some(Answer { age: 0, confirms, steady, longest });
        master.know[to] = true;
        master.advance();
    }

    fn longest(&self, state: &State, at: usize) -> Millis {
        let master = &state.masters[at];
        let own = length(master.setting);
        if self.has(Defect::GoesByItsSetting) {
            return own;
        }
        let told = master.counting().map(|answer| answer.longest).max().unwrap_or_default();
        own.max(told).max(state.voters[at].lengths.longest(NOW))
    }

    /// Whether a master may grant; after a wait it knows the slot as its own.
    fn may_grant(&self, state: &State, at: usize) -> bool {
        let master = &state.masters[at];
        let told = master.setting <= master.allows;
        let is_known = self.has(Defect::RaisesAtOnce) || told && master.is_known();
        // After a start it waits for its own leases.
        let is_able = state.voters[at].owner == at && is_known && master.forgotten == 0;
        is_able
            && master
                .steady()
                .is_some_and(|steady| master.is_settled || is_over(steady, self.longest(state, at)))
    }

    fn grant(&self, state: &mut State, at: usize) {
        let (longest, other) = (self.longest(state, at), &state.masters[1 - at]);
        state.are_two |= other.lease > 0 || other.forgotten > 0;
        let has_waited = !state.masters[at].is_settled;
        if has_waited && at == 1 {
            let long = longest > length(SHORT) && state.masters[at].setting == SHORT;
            self.witnessed.saw(if long { Witness::WaitedLong } else { Witness::WaitedShort } as u8);
        } else if has_waited && state.has_gone {
            self.witnessed.saw(Witness::CameBack as u8);
        }
        state.has_gone |= at == 1;
        let master = &mut state.masters[at];
        master.is_settled = true;
        master.lease = master.lease.max(master.setting);
    }

    fn turn(&self, state: &mut State, at: usize) {
        state.turns += 1;
        let voter = &mut state.voters[at];
        voter.lost[voter.owner] = true;
        voter.owner = 1 - voter.owner;
        if at < MASTERS {
            let master = &mut state.masters[at];
            master.is_settled = false;
            master.answers.iter_mut().flatten().for_each(|answer| answer.confirms = false);
        }
    }

    fn start(&self, state: &mut State, at: usize, is_clean: bool) {
        state.starts += 1;
        let voter = &mut state.voters[at];
        if self.has(Defect::Forgets) {
            voter.saved = Millis::ZERO;
        }
        // After a clean stop the file has up to when leases may stand.
        if !is_clean {
            voter.lengths = Lengths::restored(vec![(voter.saved, None)], NOW);
        }
        voter.lost = [true; MASTERS];
        if let Some(master) = state.masters.get_mut(at) {
            if !is_clean {
                master.forgotten = master.forgotten.max(master.lease);
                (master.lease, master.is_settled) = (0, false);
            }
            (master.answers, master.know) = (Default::default(), [false; VOTERS]);
            master.allows = 0;
        }
    }

    fn tick(&self, state: &mut State) {
        for voter in &mut state.voters {
            voter.lengths = voter.lengths.rebased(TICK, NOW);
            voter.record();
        }
        for master in &mut state.masters {
            for answer in master.answers.iter_mut().flatten() {
                answer.age = (answer.age + 1).min(COUNTS + 1);
                answer.steady = (answer.steady + 1).min(STEADY_MAX);
            }
            master.covered = (master.covered + 1).min(STEADY_MAX + COUNTS + 1);
            master.lease = master.lease.saturating_sub(1);
            master.forgotten = master.forgotten.saturating_sub(1);
        }
    }
}

/// How many steps a walk has.
const STEPS: usize = 200;

impl World {
    /// Walks at random, so many times. Returns the steps to two leases.
    pub(crate) fn wander(&self, walks: u64) -> Option<Vec<Action>> {
        stray(self, (walks, STEPS), (|| self.begins(), |_: &State| true), |random, actions| {
            let is_rare = |action: &Action| {
                matches!(
                    action,
                    Action::Turn(_) | Action::Set(_) | Action::Start(_) | Action::Return(_)
                )
            };
            let (rare, often): (Vec<Action>, Vec<Action>) =
                actions.iter().partition(|action| is_rare(action));
            // Otherwise hardly any wait would end.
            match random.random_range(0..40) {
                0..=7 => Action::Tick,
                8..=9 if !rare.is_empty() => rare[random.random_range(0..rare.len())],
                _ => often[random.random_range(0..often.len())],
            }
        })
    }

    /// The state after what happens first.
    fn begins(&self) -> State {
        let mut state = self.init_states().remove(0);
        for action in self.bounds.before {
            let is_possible = |at| self.may_grant(&state, at);
            if !matches!(action, Action::Grant(at) if !is_possible(*at)) {
                state = self.next_state(&state, *action).expect("it changes something");
            }
        }
        state
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let voter = Voter {
            owner: 0,
            lost: [false; MASTERS],
            lengths: Lengths::default(),
            saved: Millis::ZERO,
        };
        let master = |setting, is_settled| Master {
            setting,
            allows: 0,
            know: [false; VOTERS],
            answers: Default::default(),
            is_settled,
            covered: 0,
            lease: 0,
            forgotten: 0,
        };
        let masters = [master(LONG, true), master(SHORT, false)];
        let voters = [voter.clone(), voter.clone(), voter];
        let (has_gone, are_two) = (false, false);
        vec![State { voters, masters, turns: 0, settings: 0, starts: 0, has_gone, are_two }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.are_two {
            return;
        }
        actions.push(Action::Tick);
        for at in (0..MASTERS).filter(|at| state.voters[*at].owner == *at) {
            for to in (0..VOTERS).filter(|to| !self.bounds.cut.contains(&(at, *to))) {
                actions.push(Action::Ask(at, to));
                if to != at {
                    actions.push(Action::AskInVain(at, to));
                }
            }
            if self.may_grant(state, at) {
                actions.push(Action::Grant(at));
            }
        }
        if state.turns < self.bounds.turns {
            actions.extend((0..VOTERS).map(Action::Turn));
        }
        if state.settings < self.bounds.settings {
            actions.extend((0..MASTERS).map(Action::Set));
        }
        if state.starts < self.bounds.starts {
            actions.extend((0..VOTERS).map(Action::Start));
            actions.extend((0..VOTERS).map(Action::Return));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Ask(at, to) => self.ask(&mut state, at, to, true),
            Action::AskInVain(at, to) => self.ask(&mut state, at, to, false),
            Action::Grant(at) => self.grant(&mut state, at),
            Action::Turn(at) => self.turn(&mut state, at),
            Action::Set(at) => {
                state.settings += 1;
                let setting = &mut state.masters[at].setting;
                *setting = if *setting == LONG { SHORT } else { LONG };
            }
            Action::Start(at) => self.start(&mut state, at, false),
            Action::Return(at) => self.start(&mut state, at, true),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        vec![Property::always("one master has leases", |_: &World, state: &State| !state.are_two)]
    }
}
