//! A separate model of who may decide after a failover: a master and its replicas, each with the
//! engine's `Authority`.
//!
//! Time passes in ticks, for all nodes together; between two ticks anything may happen in any
//! order. Each master sends a heartbeat in each tick. Its replicas process it late or never, and
//! the master learns of that late or never, even from replicas that have left. As often as the
//! bounds allow, any node becomes a replica of any other or a master, or restarts as a master; the
//! old master continues on its own. A replica may lack what its master granted: the model contains
//! only the leases that a holder relies on, each with the node that granted it.
//!
//! The clock of the model stands still: a tick ages everything that the nodes remember
//! (`Authority::rebased`). Anything older than the model's horizon counts as exactly that old.

use lockmod::engine::{Attached, Authority, Heartbeat, Instant, Mandate, Millis, Pledge};
use stateright::{Model, Property};

use super::witness::Witnessed;

const TICK: u64 = 1_000;
/// The number of bytes that a master sends in a tick.
const BYTES: u64 = 2;
/// How many ticks the model looks back; the present is that many ticks after zero.
const LOOKS_BACK: u64 = 5;
const NOW: Instant = Instant::from_millis(LOOKS_BACK * TICK);
const OFFSET: u64 = LOOKS_BACK * BYTES;

/// A rule outside the engine that is dropped on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// Support counts from the receipt of an acknowledgement.
    SupportFromReceipt,
    /// A replica counts as soon as it is attached.
    NewcomersAtOnce,
    /// After a loss of authority, the wait resumes where it stopped.
    WaitPauses,
    /// After a loss of authority, there is no wait.
    NoWaitAfterLoss,
    /// A lease that came with the data is extended before the node has authority, and its holder
    /// relies on the extension.
    ExtendsCopies,
    /// One supporter less is enough.
    OneTooFew,
    /// A node that becomes a master decides as soon as it is supported.
    NoWait,
    /// An extension during a wait counts even without authority.
    CarriesWithoutAuthority,
    /// An extension during a wait counts for a holder whose validity is over.
    CarriesLate,
    /// A restart forgets the longest lease.
    ForgetsLongest,
    /// A replica takes the last received value for the longest lease, regardless of when it was
    /// sent.
    BelievesTheLastHeartbeat,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// A master and its replicas.
    pub(crate) nodes: usize,
    /// The actions before the search starts.
    pub(crate) before: &'static [Action],
    /// How often a node then gets another role or another master, or restarts.
    pub(crate) changes: u8,
    /// How long a replica supports its master, in ticks.
    pub(crate) support: u64,
    /// The length of a lease, in ticks.
    pub(crate) ttl: u64,
    /// Extensions during a wait count.
    pub(crate) carries: bool,
    /// The settings may be lowered to this, for all nodes at once, and replicas may restart. A
    /// restart forgets everything except the content of the state file.
    pub(crate) lower_ttl: Option<u64>,
    /// A replica that comes back continues where it was. It immediately repeats its earlier
    /// acknowledgement, and receives again what was sent before the settings were raised.
    pub(crate) goes_on: bool,
    pub(crate) defect: Defect,
}

/// What a sound run should reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// A promoted node has granted the lock.
    GrantedAfterPromotion,
    /// A node that lost its authority decided again without a wait.
    Resumed,
    /// A node that lost its authority had to wait again.
    WaitedAgain,
    /// A master that had been replaced still had authority.
    OldMasterDecided,
    /// A holder has continued with a lease that a node extended during its wait.
    Carried,
    /// A node that restarted after the settings were lowered has granted the lock.
    GrantedAfterLowering,
    /// A replica immediately acknowledged what it had processed over an earlier connection.
    AcknowledgedAgain,
}

impl Witness {
    const ALL: [Witness; 7] = [
        Witness::GrantedAfterPromotion,
        Witness::Resumed,
        Witness::WaitedAgain,
        Witness::OldMasterDecided,
        Witness::Carried,
        Witness::GrantedAfterLowering,
        Witness::AcknowledgedAgain,
    ];
}

/// The connection of a replica, as its master sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    /// The replica has not left.
    is_live: bool,
    /// What it has processed, and how much of that its master knows.
    processed: u64,
    acknowledged: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Station {
    /// Its master; `None` if it is a master.
    follows: Option<usize>,
    authority: Authority,
    /// The longest lease, according to its state file.
    file: Millis,
    /// It has restarted since the settings were lowered.
    has_restarted: bool,
    /// For how many more ticks a holder relies on the lease that it granted or extended.
    lease: Option<u64>,
    /// Whether it knows that lease.
    is_known: bool,
    /// The lease that came with the data.
    copy: Option<u64>,
    /// For the broken variants: whether it has decided since it became a master, and its ticks of
    /// wait.
    has_decided: bool,
    waited: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    stations: Vec<Station>,
    /// Indexed by master, then by replica.
    links: Vec<Vec<Option<Link>>>,
    changes: u8,
    is_lowered: bool,
    /// Two clients hold the lock.
    is_doubled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// A replica (second) processes what its master (first) has sent.
    Process(usize, usize),
    /// A replica (second) receives again what its master (first), or another, sent long ago.
    HearAgain(usize, usize),
    /// A replica's (second) acknowledgement arrives at its master (first).
    Acknowledge(usize, usize),
    Attach(usize, usize),
    /// The master loses the connection.
    Lose(usize, usize),
    /// A node (first) follows another from now on.
    Follow(usize, usize),
    Promote(usize),
    /// A node restarts as a master.
    Restart(usize),
    /// A replica restarts.
    RestartReplica(usize),
    Lower,
    Grant(usize),
    Extend(usize),
    /// A holder extends its lease at a node that waits. The node may lack every earlier grant.
    Carry(usize),
}

pub(crate) struct World {
    bounds: Bounds,
    witnessed: Witnessed,
}

impl World {
    pub(crate) fn new(bounds: Bounds) -> World {
        World { bounds, witnessed: Witnessed::default() }
    }

    pub(crate) fn witnesses(&self) -> Vec<Witness> {
        let has = |witness: &Witness| self.witnessed.has(*witness as u8);
        Witness::ALL.into_iter().filter(has).collect()
    }

    fn authority(&self, max_ttl: Millis) -> Authority {
        let Bounds { nodes, support, defect, .. } = self.bounds;
        let support = Millis::new(support * TICK);
        let attachment = if defect == Defect::NewcomersAtOnce { Millis::ZERO } else { support };
        let replicas = nodes as u32 - 1;
        let replicas = if defect == Defect::OneTooFew { replicas - 2 } else { replicas };
        let mut authority = Authority::new(replicas, Pledge { support, attachment });
        authority.allow(max_ttl, NOW);
        authority
    }

    fn look(&self, state: &mut State, at: usize) {
        let station = &mut state.stations[at];
        let seen = |(name, link): (usize, &Option<Link>)| {
            let acknowledged = link.as_ref()?.acknowledged;
            Some(Attached { name: vec![name as u8], acknowledged })
        };
        let attached: Vec<_> = state.links[at].iter().enumerate().filter_map(seen).collect();
        let (before, had_settled) =
            (station.authority.mandate(NOW), station.authority.is_settled());
        station.authority.look(NOW, &attached, self.bounds.defect != Defect::NoWait);
        if station.authority.is_to_settle(NOW) {
            station.authority.settled();
        }
        let mandate = station.authority.mandate(NOW);
        if station.follows.is_none() && before == Mandate::None && had_settled {
            match mandate {
                Mandate::Full => self.witnessed.saw(Witness::Resumed as u8),
                Mandate::Waits(_) => self.witnessed.saw(Witness::WaitedAgain as u8),
                Mandate::None => {}
            }
        }
        self.record(station);
        let is_noted = self.bounds.defect == Defect::NoWaitAfterLoss;
        station.has_decided |= is_noted && mandate == Mandate::Full;
    }

    /// The longest lease that is granted now.
    fn ttl(&self, state: &State) -> u64 {
        self.bounds.lower_ttl.filter(|_| state.is_lowered).unwrap_or(self.bounds.ttl)
    }

    fn restart(&self, state: &mut State, at: usize) {
        let max_ttl = Millis::new(self.ttl(state) * TICK);
        let mut authority = self.authority(max_ttl);
        let station = &mut state.stations[at];
        let is_kept = self.bounds.defect != Defect::ForgetsLongest;
        authority.restarts(if is_kept { station.file } else { Millis::ZERO }, max_ttl, NOW);
        station.file = authority.longest(NOW);
        station.authority = authority;
        station.has_restarted = state.is_lowered;
    }

    /// A replica receives this heartbeat.
    fn hear(&self, state: &mut State, replica: usize, heartbeat: Heartbeat) {
        let max_ttl = Millis::new(self.ttl(state) * TICK);
        let station = &mut state.stations[replica];
        if self.bounds.defect == Defect::BelievesTheLastHeartbeat {
            station.authority = self.authority(max_ttl);
        }
        station.authority.heard(heartbeat, NOW);
        self.record(station);
    }

    /// Updates the state file if the longest lease has changed.
    fn record(&self, station: &mut Station) {
        if self.bounds.lower_ttl.is_some()
            && let Some(longest) = station.authority.news_of_longest(NOW)
        {
            station.file = longest;
        }
    }

    /// Whether a node decides.
    fn decides(&self, station: &Station) -> bool {
        let has_waited = station.waited > self.bounds.ttl;
        match (station.authority.mandate(NOW), self.bounds.defect) {
            (Mandate::Full, _) => true,
            (Mandate::Waits(_), Defect::NoWaitAfterLoss) => station.has_decided,
            (Mandate::Waits(_), Defect::WaitPauses) => has_waited,
            (Mandate::Waits(_) | Mandate::None, _) => false,
        }
    }

    fn may_extend(&self, station: &Station) -> bool {
        let is_lenient = self.bounds.defect == Defect::ExtendsCopies && station.follows.is_none();
        self.decides(station) && station.is_known && station.lease.is_some()
            || is_lenient && station.copy.is_some()
    }

    /// Whether an extension by this node during its wait counts now.
    fn may_carry(&self, state: &State, at: usize) -> bool {
        let station = &state.stations[at];
        let is_relied_on = state.stations.iter().any(|other| other.lease.is_some());
        let has_authority = matches!(station.authority.mandate(NOW), Mandate::Waits(_));
        let may = match self.bounds.defect {
            Defect::CarriesWithoutAuthority => station.follows.is_none() && is_relied_on,
            Defect::CarriesLate => has_authority,
            _ => has_authority && is_relied_on,
        };
        may && self.bounds.carries && station.lease < Some(self.ttl(state))
    }

    /// One tick passes.
    fn tick(&self, state: &mut State) {
        for station in &mut state.stations {
            station.authority = station.authority.rebased(Millis::new(TICK), BYTES);
            station.lease = station.lease.and_then(|left| left.checked_sub(1));
            station.is_known &= station.lease.is_some();
            station.copy = station.copy.and_then(|left| left.checked_sub(1));
            if station.follows.is_none() {
                station.authority.beats(NOW, OFFSET);
            }
            if station.authority.mandate(NOW) != Mandate::None
                && self.bounds.defect == Defect::WaitPauses
            {
                station.waited = (station.waited + 1).min(self.bounds.ttl + 1);
            }
        }
        for link in state.links.iter_mut().flatten().flatten() {
            link.processed = link.processed.saturating_sub(BYTES);
            link.acknowledged = link.acknowledged.saturating_sub(BYTES);
        }
        for at in 0..state.stations.len() {
            self.look(state, at);
        }
    }

    /// Gives a node another role, and closes its connections.
    fn change(&self, state: &mut State, at: usize, follows: Option<usize>) {
        state.changes += 1;
        self.reconnect(state, at);
        let station = &mut state.stations[at];
        station.follows = follows;
        if follows.is_none() {
            station.authority.appointed();
            station.authority.beats(NOW, OFFSET);
        } else {
            station.authority.dismissed();
            station.copy = None;
        }
    }

    /// Closes a node's connections; it forgets what it granted.
    fn reconnect(&self, state: &mut State, at: usize) {
        for links in &mut state.links {
            if let Some(link) = &mut links[at] {
                link.is_live = false;
            }
        }
        state.links[at].fill(None);
        let station = &mut state.stations[at];
        (station.is_known, station.has_decided, station.waited) = (false, false, 0);
    }

    /// From now on, a holder relies on a lease of this node.
    fn lend(&self, state: &mut State, at: usize, is_same_holder: bool) {
        let is_relied_on = state.stations.iter().any(|station| station.lease.is_some());
        state.is_doubled |= !is_same_holder && is_relied_on;
        let ttl = self.ttl(state);
        let station = &mut state.stations[at];
        (station.lease, station.is_known) = (station.lease.max(Some(ttl)), true);
    }

    fn sees(state: &State, witnessed: &Witnessed) {
        let rules = |station: &&Station| station.authority.mandate(NOW) != Mandate::None;
        let is_replaced = state.stations[1..].iter().any(|station| station.follows.is_none());
        if is_replaced && state.stations[..1].iter().any(|station| rules(&station)) {
            witnessed.saw(Witness::OldMasterDecided as u8);
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Bounds { nodes, .. } = self.bounds;
        let station = Station {
            follows: Some(0),
            authority: self.authority(Millis::new(self.bounds.ttl * TICK)),
            file: Millis::ZERO,
            has_restarted: false,
            lease: None,
            is_known: false,
            copy: None,
            has_decided: false,
            waited: 0,
        };
        let mut state = State {
            stations: vec![station; nodes],
            links: vec![vec![None; nodes]; nodes],
            changes: 0,
            is_lowered: false,
            is_doubled: false,
        };
        // The first node is a master that has completed its wait, and that all others follow.
        let master = &mut state.stations[0];
        master.follows = None;
        master.authority.appointed();
        let link = Link { is_live: true, processed: OFFSET + 1, acknowledged: OFFSET + 1 };
        state.links[0][1..].fill(Some(link));
        self.look(&mut state, 0);
        for _ in 0..2 * (self.bounds.support + self.bounds.ttl) + 4 {
            self.tick(&mut state);
            state.links[0][1..].fill(Some(link));
            self.look(&mut state, 0);
        }
        assert!(self.decides(&state.stations[0]));
        for &action in self.bounds.before {
            state = self.next_state(&state, action).expect("something happens");
        }
        vec![State { changes: 0, ..state }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_doubled {
            return;
        }
        actions.push(Action::Tick);
        if self.bounds.lower_ttl.is_some() && !state.is_lowered {
            actions.push(Action::Lower);
        }
        let all = || 0..self.bounds.nodes;
        for at in all() {
            let station = &state.stations[at];
            for other in all().filter(|&other| other != at) {
                if let Some(link) = state.links[at][other] {
                    if link.is_live && link.processed <= OFFSET {
                        actions.push(Action::Process(at, other));
                    }
                    let is_told_again = self.bounds.goes_on && self.bounds.lower_ttl.is_some();
                    if is_told_again && link.is_live && link.processed <= OFFSET {
                        actions.push(Action::HearAgain(at, other));
                    }
                    if link.acknowledged < link.processed {
                        actions.push(Action::Acknowledge(at, other));
                    }
                    actions.push(Action::Lose(at, other));
                }
                let is_live = state.links[at][other].is_some_and(|link| link.is_live);
                let is_wanted = state.stations[other].follows == Some(at);
                if station.follows.is_none() && is_wanted && !is_live {
                    actions.push(Action::Attach(at, other));
                }
                if state.changes < self.bounds.changes && station.follows != Some(other) {
                    actions.push(Action::Follow(at, other));
                }
            }
            if state.changes < self.bounds.changes {
                actions.push(match station.follows {
                    Some(_) => Action::Promote(at),
                    None => Action::Restart(at),
                });
                if self.bounds.lower_ttl.is_some() && station.follows.is_some() {
                    actions.push(Action::RestartReplica(at));
                }
            }
            if self.decides(station) && !station.is_known {
                actions.push(Action::Grant(at));
            }
            if self.may_extend(station) && station.lease < Some(self.ttl(state)) {
                actions.push(Action::Extend(at));
            }
            if self.may_carry(state, at) {
                actions.push(Action::Carry(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Process(master, replica) => {
                let lender = &state.stations[master];
                let copy = lender.lease.filter(|_| lender.is_known);
                let heartbeat = lender.authority.heartbeat(NOW);
                if self.bounds.defect == Defect::ExtendsCopies {
                    state.stations[replica].copy = copy;
                }
                state.links[master][replica].as_mut()?.processed = OFFSET + 1;
                if self.bounds.lower_ttl.is_some() {
                    self.hear(&mut state, replica, heartbeat);
                }
            }
            Action::HearAgain(master, replica) => {
                let long_ago = Millis::new(self.bounds.lower_ttl? * TICK);
                let heartbeat = state.stations[master].authority.heartbeat(NOW);
                self.hear(&mut state, replica, Heartbeat { longest: long_ago, ..heartbeat });
            }
            Action::Acknowledge(master, replica) => {
                let link = state.links[master][replica].as_mut()?;
                link.acknowledged = link.processed;
                if self.bounds.defect == Defect::SupportFromReceipt {
                    // As if everything sent before had just been sent.
                    link.acknowledged = OFFSET + 1;
                }
                self.look(&mut state, master);
            }
            Action::Attach(master, replica) => {
                let former = state.links[master][replica].take().map(|link| link.processed);
                self.look(&mut state, master);
                let processed = former.filter(|_| self.bounds.goes_on).unwrap_or_default();
                if processed > 0 {
                    self.witnessed.saw(Witness::AcknowledgedAgain as u8);
                }
                let link = Link { is_live: true, processed, acknowledged: 0 };
                state.links[master][replica] = Some(link);
                self.look(&mut state, master);
            }
            Action::Lose(master, replica) => {
                state.links[master][replica] = None;
                self.look(&mut state, master);
            }
            Action::Follow(at, other) => self.change(&mut state, at, Some(other)),
            Action::Promote(at) => self.change(&mut state, at, None),
            Action::Restart(at) => {
                if self.bounds.lower_ttl.is_some() {
                    self.restart(&mut state, at);
                }
                self.change(&mut state, at, None);
            }
            Action::RestartReplica(at) => {
                state.changes += 1;
                self.reconnect(&mut state, at);
                self.restart(&mut state, at);
            }
            Action::Lower => {
                state.is_lowered = true;
                let max_ttl = Millis::new(self.ttl(&state) * TICK);
                for station in &mut state.stations {
                    station.authority.allow(max_ttl, NOW);
                    self.record(station);
                }
            }
            Action::Grant(at) => {
                if state.stations[at].has_restarted {
                    self.witnessed.saw(Witness::GrantedAfterLowering as u8);
                }
                if at > 0 {
                    self.witnessed.saw(Witness::GrantedAfterPromotion as u8);
                }
                self.lend(&mut state, at, false);
            }
            Action::Extend(at) => self.lend(&mut state, at, true),
            Action::Carry(at) => {
                self.witnessed.saw(Witness::Carried as u8);
                self.lend(&mut state, at, self.bounds.defect != Defect::CarriesLate);
            }
        }
        World::sees(&state, &self.witnessed);
        if state == *last { None } else { Some(state) }
    }

    fn properties(&self) -> Vec<Property<World>> {
        vec![Property::always("mutual exclusion", |_, state: &State| !state.is_doubled)]
    }
}
