//! The plan of a storm: which fault strikes which node at which moment.
//!
//! A pure function of the seed, the length and the intensity, so that `LOCKMOD_SEED` replays it;
//! the scheduling by the operating system is not replayed. One node is down or in quarantine at a
//! time, in some periods two, and one or two more are disturbed for a moment, so that a quorum
//! returns again and again; except in a massacre, which kills a majority at once. Wall clocks go
//! wrong together as well as alone, as they do with a wrong time server.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub(crate) const NODES: usize = 5;
/// Groups of clients, each with network links of its own.
pub(crate) const GROUPS: usize = 2;
/// The longest lease that the nodes grant.
pub(crate) const MAX_TTL_MS: u64 = 3_000;
/// The longest lease of nodes that forget nothing.
pub(crate) const LONG_TTL_MAX_MS: u64 = 30_000;
/// The longest quarantine of a node: the longest lease and one block of the lease ceiling.
pub(crate) const QUARANTINE_MS: u64 = MAX_TTL_MS + 10_000;

const HOUR_MS: i64 = 3_600_000;
/// All wall clocks are stepped ahead together this often: plain expiries end at once, so that even
/// a storm of a few seconds shows what happens to locks made of them.
const AHEAD_EVERY_MS: u64 = 1_500;

/// In every sixth period of this length two nodes may be crashed, otherwise one.
const SPELL_MS: u64 = 6_000;

/// What a node keeps through a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    Nothing,
    Snapshots,
    EverySecond,
    Always,
}

/// One of each, and two nodes that forget everything.
pub(crate) const PERSISTENCE: [Persistence; NODES] = [
    Persistence::Nothing,
    Persistence::Nothing,
    Persistence::EverySecond,
    Persistence::Snapshots,
    Persistence::Always,
];

/// What happens to a killed node's data before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    /// Snapshots and append-only files are deleted. The state file stays.
    Wiped,
}

/// Which bytes a link fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Replies,
    Both,
}

/// What happens to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Bytes wait until it is over, then continue.
    Hold(Side),
    /// Bytes vanish; the connection is reset when it is over.
    Discard(Side),
    Delay(Side, Duration),
    /// Connections are reset, and new ones refused until it is over.
    Refuse,
    /// Connections are reset, once.
    Reset,
}

/// A fault, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Kill {
        node: usize,
        data: Data,
    },
    /// A clean stop.
    Stop {
        node: usize,
    },
    Start {
        node: usize,
    },
    Pause {
        node: usize,
    },
    Resume {
        node: usize,
    },
    Link {
        group: usize,
        node: usize,
        trouble: Trouble,
    },
    Heal {
        group: usize,
        node: usize,
    },
    /// A clean stop or a crash, a pause, and a start; then the operator waits until the node grants
    /// again, and every holder has had time to renew.
    Restart {
        node: usize,
        /// `None`: a clean stop.
        crash: Option<Data>,
        down: Duration,
    },
    /// A replica of the node is promoted; the old master is dead, or still serves some of its
    /// clients until it is retired.
    Promote {
        node: usize,
        old_lives: bool,
    },
    /// The old master that kept running is killed, and all clients use the new one.
    Retire {
        node: usize,
    },
    /// Wall clocks are stepped to these distances from the true time.
    Step {
        offsets_ms: Vec<(usize, i64)>,
    },
}

/// An act at a moment since the storm began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) act: Act,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} ms  {:?}", self.at.as_millis(), self.act)
    }
}

/// The faults of a storm of this length, in order. All of them end in time, except that wall clocks
/// keep their offsets.
pub(crate) fn plan(seed: u64, length: Duration) -> Vec<Event> {
    let mut planner = Planner::new(seed);
    let length_ms = u64::try_from(length.as_millis()).expect("no storm is that long");
    let mut now_ms = 300;
    while now_ms < length_ms {
        planner.strike(now_ms);
        now_ms += planner.random.random_range(60..=340);
    }
    for at_ms in (1_000..length_ms).step_by(AHEAD_EVERY_MS as usize) {
        planner.step_ahead(at_ms);
    }
    let mut events = planner.events;
    // A stable sort: faults planned first come first.
    events.sort_by_key(|event| event.at);
    events
}

/// All nodes are killed, lose all data and are started again, at regular intervals.
pub(crate) fn massacres(length: Duration, every: Duration) -> Vec<Event> {
    let mut events = Vec::new();
    let mut at = every;
    while at < length {
        let kill = |node| Act::Kill { node, data: Data::Wiped };
        let acts = (0..NODES).map(kill).chain((0..NODES).map(|node| Act::Start { node }));
        events.extend(acts.map(|act| Event { at, act }));
        at += every;
    }
    events
}

struct Planner {
    random: StdRng,
    events: Vec<Event>,
    /// Until when a node is down, hung or in quarantine.
    away_until_ms: [u64; NODES],
    /// Until when a node is being killed, hung or started: one fault at a time.
    busy_until_ms: [u64; NODES],
    linked_until_ms: [[u64; NODES]; GROUPS],
    is_stepped: [bool; NODES],
    massacre_from_ms: u64,
}

impl Planner {
    fn new(seed: u64) -> Planner {
        Planner {
            random: StdRng::seed_from_u64(seed),
            events: Vec::new(),
            away_until_ms: [0; NODES],
            busy_until_ms: [0; NODES],
            linked_until_ms: [[0; NODES]; GROUPS],
            is_stepped: [false; NODES],
            massacre_from_ms: 20_000,
        }
    }

    fn push(&mut self, at_ms: u64, act: Act) {
        self.events.push(Event { at: Duration::from_millis(at_ms), act });
    }

    fn strike(&mut self, now_ms: u64) {
        match self.random.random_range(0..100) {
            0..25 => self.stop_some(now_ms),
            25..35 => self.pause(now_ms),
            35..75 => self.trouble(now_ms),
            75..98 => self.step(now_ms),
            _ => self.massacre(now_ms),
        }
    }

    fn length_ms(&mut self) -> u64 {
        self.random.random_range(50..=700)
    }

    /// Kills one node or two, if that leaves a quorum; most are started again at once.
    fn stop_some(&mut self, now_ms: u64) {
        let away_max = if (now_ms / SPELL_MS).is_multiple_of(6) { 2 } else { 1 };
        for _ in 0..self.random.random_range(1..=2) {
            let node = self.random.random_range(0..NODES);
            let away = self.away_until_ms.iter().filter(|until| **until > now_ms).count();
            let is_free = self.busy_until_ms[node] <= now_ms;
            if is_free && (away < away_max || self.away_until_ms[node] > now_ms) {
                self.stop(now_ms, node);
            }
        }
    }

    fn stop(&mut self, now_ms: u64, node: usize) {
        let down_ms = if self.random.random_bool(0.7) { 0 } else { self.length_ms() };
        let is_orderly = self.random.random_bool(0.15);
        let is_durable = PERSISTENCE[node] == Persistence::Always;
        // A node that relies on its file must not lose it: see docs/storm.md.
        let data = match !is_durable && self.random.random_bool(0.4) {
            true => Data::Wiped,
            false => Data::Kept,
        };
        let stop = if is_orderly { Act::Stop { node } } else { Act::Kill { node, data } };
        self.push(now_ms, stop);
        self.push(now_ms + down_ms, Act::Start { node });
        let quarantine_ms = if is_durable && !self.is_stepped[node] { 0 } else { QUARANTINE_MS };
        self.busy_until_ms[node] = now_ms + down_ms + 200;
        self.away_until_ms[node] = now_ms + down_ms + quarantine_ms;
    }

    fn massacre(&mut self, now_ms: u64) {
        if now_ms < self.massacre_from_ms {
            return self.step(now_ms);
        }
        let spared = self.random.random_range(0..=NODES);
        for node in (0..NODES).filter(|node| *node != spared) {
            if self.busy_until_ms[node] <= now_ms {
                self.stop(now_ms, node);
            }
        }
        self.massacre_from_ms = now_ms + 5 * QUARANTINE_MS;
    }

    fn pause(&mut self, now_ms: u64) {
        let node = self.random.random_range(0..NODES);
        let hung = self.busy_until_ms.iter().filter(|until| **until > now_ms).count();
        if hung < 2 && self.busy_until_ms[node] <= now_ms {
            let until_ms = now_ms + self.length_ms();
            self.push(now_ms, Act::Pause { node });
            self.push(until_ms, Act::Resume { node });
            self.busy_until_ms[node] = until_ms + 50;
        }
    }

    fn trouble(&mut self, now_ms: u64) {
        let (group, node) =
            (self.random.random_range(0..GROUPS), self.random.random_range(0..NODES));
        let troubled = self.linked_until_ms[group].iter().filter(|until| **until > now_ms).count();
        if troubled >= 2 || self.linked_until_ms[group][node] > now_ms {
            return;
        }
        let side = [Side::Requests, Side::Replies, Side::Both][self.random.random_range(0..3)];
        let delay = Duration::from_millis(self.random.random_range(5..=120));
        let (trouble, until_ms) = match self.random.random_range(0..5) {
            0 => (Trouble::Hold(side), now_ms + self.length_ms()),
            1 => (Trouble::Discard(side), now_ms + self.length_ms()),
            2 => (Trouble::Delay(side, delay), now_ms + self.length_ms()),
            3 => (Trouble::Refuse, now_ms + self.length_ms()),
            _ => (Trouble::Reset, now_ms + 1),
        };
        self.push(now_ms, Act::Link { group, node, trouble });
        self.push(until_ms, Act::Heal { group, node });
        self.linked_until_ms[group][node] = until_ms + 1;
    }

    /// Steps some wall clocks, each to its own time or all to the same wrong time.
    fn step(&mut self, now_ms: u64) {
        let is_common = self.random.random_bool(0.5);
        // Half of the steps are too small to be detected.
        let unit_ms = if self.random.random_bool(0.5) { HOUR_MS } else { 165 };
        let common_ms = self.random.random_range(-6..=6) * unit_ms;
        let mut offsets_ms = Vec::new();
        for node in 0..NODES {
            if self.random.random_bool(if is_common { 0.8 } else { 0.2 }) {
                let own_ms = self.random.random_range(-6..=6) * unit_ms;
                offsets_ms.push((node, if is_common { common_ms } else { own_ms }));
                self.is_stepped[node] = true;
            }
        }
        self.push(now_ms, Act::Step { offsets_ms });
    }

    /// Steps all wall clocks further ahead than any before.
    fn step_ahead(&mut self, at_ms: u64) {
        let count = i64::try_from(at_ms / AHEAD_EVERY_MS).expect("no storm is that long");
        let offset_ms = (7 + count) * HOUR_MS;
        let offsets_ms = (0..NODES).map(|node| (node, offset_ms)).collect();
        self.push(at_ms, Act::Step { offsets_ms });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_every_kind_of_fault_is_in_it() {
        let length = Duration::from_secs(180);
        let events = plan(7, length);
        assert_eq!(events, plan(7, length));
        assert_ne!(events, plan(8, length));
        let count = |is: fn(&Act) -> bool| events.iter().filter(|event| is(&event.act)).count();
        let wiped = |act: &Act| matches!(act, Act::Kill { data: Data::Wiped, .. });
        let kept = |act: &Act| matches!(act, Act::Kill { data: Data::Kept, .. });
        assert!(count(wiped) > 5 && count(kept) > 5, "{} {}", count(wiped), count(kept));
        assert!(count(|act| matches!(act, Act::Stop { .. })) > 3);
        assert!(count(|act| matches!(act, Act::Step { .. })) > 50);
        let pauses = count(|act| matches!(act, Act::Pause { .. }));
        assert!(pauses > 30 && pauses == count(|act| matches!(act, Act::Resume { .. })));
        let links = count(|act| matches!(act, Act::Link { .. }));
        assert!(links > 100 && links == count(|act| matches!(act, Act::Heal { .. })));
    }

    #[test]
    fn whoever_is_down_is_started_before_anything_else_happens_to_it() {
        for seed in 0..50 {
            let mut is_down = [false; NODES];
            let mut is_hung = [false; NODES];
            for event in plan(seed, Duration::from_secs(60)) {
                match event.act {
                    Act::Kill { node, .. } | Act::Stop { node } => {
                        assert!(!is_down[node] && !is_hung[node], "{seed}: {event}");
                        is_down[node] = true;
                    }
                    Act::Start { node } => assert!(std::mem::take(&mut is_down[node])),
                    Act::Pause { node } => {
                        assert!(!is_down[node] && !is_hung[node], "{seed}: {event}");
                        is_hung[node] = true;
                    }
                    Act::Resume { node } => assert!(std::mem::take(&mut is_hung[node])),
                    Act::Restart { .. } | Act::Promote { .. } | Act::Retire { .. } => {
                        unreachable!("the operator's work is planned elsewhere")
                    }
                    Act::Link { .. } | Act::Heal { .. } | Act::Step { .. } => {}
                }
            }
            assert!(is_down == [false; NODES] && is_hung == [false; NODES]);
        }
    }
}
