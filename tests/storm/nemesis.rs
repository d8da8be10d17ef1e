//! Carries out a plan on real servers and links, and undoes everything at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Builder, Flow, Proxy, Server, start_nodes, wait_until};
use crate::plan::{
    Act, Data, Event, GROUPS, LONG_TTL_MAX_MS, MAX_TTL_MS, NODES, PERSISTENCE, Persistence, Side,
    Trouble,
};
use crate::upkeep::is_end;

/// The group of clients whose links have no faults.
pub(crate) const KEEPERS: usize = GROUPS;
/// The group that keeps using an old master that runs while its replica is promoted.
const LOYAL: usize = 0;

/// Five servers, and a link from each group of clients to each of them.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    kept: [Persistence; NODES],
    /// How each node is started.
    builders: Vec<Builder>,
    /// Masters that still run although their replica was promoted.
    old: [Option<Server>; NODES],
    offsets_ms: [i64; NODES],
    /// How long an operator waits after a restart, until all holders have renewed.
    renewal: Duration,
    links: Vec<Vec<Proxy>>,
    is_down: [bool; NODES],
    is_hung: [bool; NODES],
    is_discarding: [[bool; NODES]; GROUPS],
}

/// How many faults of each kind there were.
pub(crate) type Tally = BTreeMap<&'static str, usize>;

impl Cluster {
    /// Nodes with the module.
    pub(crate) fn with_module() -> Cluster {
        Cluster::start(|builder| builder.module_arg("max-ttl", MAX_TTL_MS))
    }

    /// Nodes with the module that save nothing.
    pub(crate) fn forgetful() -> Cluster {
        let builder = |builder: Builder| builder.module_arg("max-ttl", MAX_TTL_MS);
        Cluster::start_as([Persistence::Nothing; NODES], builder)
    }

    /// Nodes with the module that sync each write, and grant leases of 30 s.
    pub(crate) fn durable() -> Cluster {
        let builder = |builder: Builder| builder.module_arg("max-ttl", LONG_TTL_MAX_MS);
        Cluster::start_as([Persistence::Always; NODES], builder)
    }

    /// Nodes with the module whose operator waits after a restart.
    pub(crate) fn with_care() -> Cluster {
        // A client reconnects within half a second, and renews after that.
        let renewal = Duration::from_millis(MAX_TTL_MS / 2 + 1_000);
        Cluster { renewal, ..Cluster::with_module() }
    }

    /// Nodes that are configured to forget their promises.
    pub(crate) fn without_state_file() -> Cluster {
        Cluster::start(|builder| {
            builder.module_arg("max-ttl", MAX_TTL_MS).module_arg("state-file", "\"\"")
        })
    }

    /// Servers without the module.
    pub(crate) fn plain() -> Cluster {
        Cluster::start(Builder::without_module)
    }

    fn start(change: impl Fn(Builder) -> Builder) -> Cluster {
        Cluster::start_as(PERSISTENCE, change)
    }

    fn start_as(kept: [Persistence; NODES], change: impl Fn(Builder) -> Builder) -> Cluster {
        let builder = |persistence| {
            let builder = Server::builder().fake_wall_clock();
            change(match persistence {
                Persistence::Nothing => builder,
                Persistence::Snapshots => builder.config("save", "\"1 1\""),
                Persistence::EverySecond => {
                    builder.config("appendonly", "yes").config("appendfsync", "everysec")
                }
                Persistence::Always => {
                    builder.config("appendonly", "yes").config("appendfsync", "always")
                }
            })
        };
        let builders: Vec<Builder> = kept.into_iter().map(builder).collect();
        let nodes = start_nodes(NODES, |node| builders[node].clone());
        let links = (0..=KEEPERS).map(|_| nodes.iter().map(Proxy::to).collect()).collect();
        Cluster {
            nodes,
            kept,
            builders,
            old: Default::default(),
            offsets_ms: [0; NODES],
            renewal: Duration::ZERO,
            links,
            is_down: [false; NODES],
            is_hung: [false; NODES],
            is_discarding: [[false; NODES]; GROUPS],
        }
    }

    /// The addresses of the nodes, as this group of clients reaches them.
    pub(crate) fn urls(&self, group: usize) -> Vec<String> {
        self.links[group].iter().map(Proxy::url).collect()
    }

    /// Carries out the plan.
    pub(crate) fn strike(&mut self, plan: &[Event]) -> Tally {
        let start = Instant::now();
        let end = plan.last().map_or(Duration::ZERO, |event| event.at);
        // The operator's waits are not in the plan.
        let mut delay = Duration::ZERO;
        let mut tally = Tally::new();
        for event in plan {
            let is_end = is_end(&event.act);
            let is_late = !delay.is_zero() && start.elapsed() > end;
            if is_late && !is_end {
                continue;
            }
            // This is the pace of the plan, not synchronisation.
            thread::sleep((event.at + delay).saturating_sub(start.elapsed()));
            let began_at = Instant::now();
            self.act(&event.act);
            if matches!(event.act, Act::Restart { .. } | Act::Promote { .. } | Act::Retire { .. }) {
                delay += began_at.elapsed();
            }
            if let Some(name) = name(&event.act) {
                *tally.entry(name).or_default() += 1;
            }
        }
        tally
    }

    /// Ends all faults. Wall clocks stay as they are: nothing may depend on them.
    pub(crate) fn calm(&mut self) {
        for node in 0..NODES {
            if std::mem::take(&mut self.is_hung[node]) {
                self.nodes[node].resume();
            }
            if std::mem::take(&mut self.is_down[node]) {
                self.nodes[node].start_again();
            }
            for group in 0..GROUPS {
                self.heal(group, node);
            }
            self.retire(node);
        }
        for node in &mut self.nodes {
            assert!(node.is_running(), "a node ended on its own; its log:\n{}", node.log());
        }
    }

    /// Panics and crash reports in the nodes' logs.
    pub(crate) fn panics(&self) -> Vec<String> {
        const MARKS: [&str; 3] = ["panicked", "REDIS BUG REPORT", "crashed by signal"];
        let logs = self.nodes.iter().map(Server::log);
        logs.flat_map(|log| {
            let is_bad = |line: &&str| MARKS.iter().any(|mark| line.contains(mark));
            log.lines().filter(is_bad).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Kill { node, data } => {
                self.kill(*node, *data);
                self.is_down[*node] = true;
            }
            Act::Restart { node, crash, down } => self.restart(*node, *crash, *down),
            Act::Promote { node, old_lives } => self.promote(*node, *old_lives),
            Act::Retire { node } => {
                self.retire(*node);
                self.wait_as_told(*node);
            }
            Act::Stop { node } => {
                self.nodes[*node].terminate();
                self.is_down[*node] = true;
            }
            // The operator was late, and the kill did not happen.
            Act::Start { node } if !self.is_down[*node] => {}
            Act::Start { node } => {
                self.nodes[*node].start_again();
                self.is_down[*node] = false;
            }
            Act::Pause { node } => {
                self.nodes[*node].pause();
                self.is_hung[*node] = true;
            }
            Act::Resume { node } => {
                self.nodes[*node].resume();
                self.is_hung[*node] = false;
            }
            Act::Link { group, node, trouble } => self.trouble(*group, *node, *trouble),
            Act::Heal { group, node } => self.heal(*group, *node),
            Act::Step { offsets_ms } => {
                for (node, offset_ms) in offsets_ms {
                    self.offsets_ms[*node] = *offset_ms;
                    self.nodes[*node].set_wall_clock_offset_ms(*offset_ms);
                }
            }
        }
    }

    fn kill(&mut self, node: usize, data: Data) {
        self.nodes[node].kill();
        match data {
            Data::Kept => {}
            Data::Wiped => wipe(self.nodes[node].dir()),
        }
    }

    /// Restarts a node like an operator who waits until no lease is missing any more.
    fn restart(&mut self, node: usize, crash: Option<Data>, down: Duration) {
        match crash {
            // A node that always syncs relies on its file.
            Some(_) if self.kept[node] == Persistence::Always => self.kill(node, Data::Kept),
            Some(data) => self.kill(node, data),
            None => self.nodes[node].terminate(),
        }
        thread::sleep(down);
        self.nodes[node].start_again();
        self.wait_as_told(node);
    }

    /// Waits until the node grants again and every holder has renewed, if this operator waits.
    fn wait_as_told(&self, node: usize) {
        if self.renewal.is_zero() {
            return;
        }
        let server = &self.nodes[node];
        server.run("LOCK.FLOOR").expect("the first command finds out what to wait for");
        wait_until("the quarantine is over", || server.info_u64("lockmod_quarantine_left_ms") == 0);
        thread::sleep(self.renewal);
    }

    /// A new replica receives all of its master's data, and becomes a master.
    fn promote(&mut self, node: usize, old_lives: bool) {
        let mut replica = self.builders[node].clone().replica_of(&self.nodes[node]).prepare();
        replica.set_wall_clock_offset_ms(self.offsets_ms[node]);
        replica.start_again();
        self.nodes[node].wait_for_replica(&replica);
        let alone = self.builders[node].clone();
        replica.reconfigure(|_| alone);
        let mut old = std::mem::replace(&mut self.nodes[node], replica);
        if !old_lives {
            old.kill();
        }
        self.nodes[node].run("REPLICAOF NO ONE").expect("promoted");
        let is_moved = |group: &usize| !old_lives || *group != LOYAL;
        for group in (0..self.links.len()).filter(is_moved) {
            self.links[group][node].set_target(self.nodes[node].port());
        }
        self.old[node] = old_lives.then_some(old);
    }

    fn retire(&mut self, node: usize) {
        if self.old[node].take().is_some() {
            self.links[LOYAL][node].set_target(self.nodes[node].port());
        }
    }

    fn trouble(&mut self, group: usize, node: usize, trouble: Trouble) {
        let link = &self.links[group][node];
        let set = |side: Side, flow: Flow| match side {
            Side::Requests => link.set_requests(flow),
            Side::Replies => link.set_replies(flow),
            Side::Both => link.set(flow),
        };
        match trouble {
            Trouble::Hold(side) => set(side, Flow::Hold),
            Trouble::Discard(side) => set(side, Flow::Discard),
            Trouble::Delay(side, delay) => set(side, Flow::Delay(delay)),
            Trouble::Refuse => {
                link.set_refuses(true);
                link.cut();
            }
            Trouble::Reset => link.cut(),
        }
        self.is_discarding[group][node] = matches!(trouble, Trouble::Discard(_));
    }

    fn heal(&mut self, group: usize, node: usize) {
        let link = &self.links[group][node];
        // No network delivers bytes that follow lost bytes on the same connection.
        if std::mem::take(&mut self.is_discarding[group][node]) {
            link.cut();
        }
        link.set(Flow::Pass);
        link.set_refuses(false);
    }
}

/// Deletes the server's saved data; the module's state file stays.
fn wipe(dir: &Path) {
    // Either may be missing.
    let _ = fs::remove_file(dir.join("dump.rdb"));
    let _ = fs::remove_dir_all(dir.join("appendonlydir"));
}

/// The name under which a fault is counted; the end of a fault has none.
fn name(act: &Act) -> Option<&'static str> {
    match act {
        Act::Kill { data: Data::Kept, .. } => Some("kill -9"),
        Act::Kill { data: Data::Wiped, .. } => Some("kill -9 and wipe"),
        Act::Stop { .. } => Some("orderly stop"),
        Act::Pause { .. } => Some("hang"),
        Act::Step { .. } => Some("clock step"),
        Act::Restart { crash: Some(_), .. } => Some("restart after a crash"),
        Act::Restart { crash: None, .. } => Some("restart in order"),
        Act::Promote { old_lives: false, .. } => Some("promotion"),
        Act::Promote { old_lives: true, .. } => Some("promotion beside an old master"),
        Act::Link { trouble, .. } => Some(match trouble {
            Trouble::Hold(_) => "link held",
            Trouble::Discard(_) => "link cut silently",
            Trouble::Delay(..) => "link slow",
            Trouble::Refuse => "link refused",
            Trouble::Reset => "link reset",
        }),
        Act::Start { .. } | Act::Resume { .. } | Act::Heal { .. } | Act::Retire { .. } => None,
    }
}
