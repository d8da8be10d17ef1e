//! Carries a plan out on real servers and links, and takes everything back at the end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::common::{Builder, Flow, Proxy, Server, start_nodes};
use crate::plan::{
    Act, Data, Event, GROUPS, MAX_TTL_MS, NODES, PERSISTENCE, Persistence, Side, Trouble,
};

/// Five servers, and a link from each group of clients to each of them.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
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

    /// Nodes that are told to forget what they promised.
    pub(crate) fn without_state_file() -> Cluster {
        Cluster::start(|builder| {
            builder.module_arg("max-ttl", MAX_TTL_MS).module_arg("state-file", "\"\"")
        })
    }

    /// Servers without the module.
    pub(crate) fn plain() -> Cluster {
        Cluster::start(Builder::without_module)
    }

    fn start(change: impl Fn(Builder) -> Builder + Sync) -> Cluster {
        let nodes = start_nodes(NODES, |node| {
            let builder = Server::builder().fake_wall_clock();
            change(match PERSISTENCE[node] {
                Persistence::Nothing => builder,
                Persistence::Snapshots => builder.config("save", "\"1 1\""),
                Persistence::EverySecond => {
                    builder.config("appendonly", "yes").config("appendfsync", "everysec")
                }
                Persistence::Always => {
                    builder.config("appendonly", "yes").config("appendfsync", "always")
                }
            })
        });
        let links = (0..GROUPS).map(|_| nodes.iter().map(Proxy::to).collect()).collect();
        Cluster {
            nodes,
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

    /// Strikes as planned.
    pub(crate) fn strike(&mut self, plan: &[Event]) -> Tally {
        let start = Instant::now();
        let mut tally = Tally::new();
        for event in plan {
            // This is the pace of the plan, and waits for nothing.
            thread::sleep(event.at.saturating_sub(start.elapsed()));
            self.act(&event.act);
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
        }
        for node in &mut self.nodes {
            assert!(node.is_running(), "a node ended by itself; its log:\n{}", node.log());
        }
    }

    /// What the nodes' logs hold of panics and crash reports.
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
                self.nodes[*node].kill();
                self.is_down[*node] = true;
                match data {
                    Data::Kept => {}
                    Data::Wiped => wipe(self.nodes[*node].dir()),
                }
            }
            Act::Stop { node } => {
                self.nodes[*node].terminate();
                self.is_down[*node] = true;
            }
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
                    self.nodes[*node].set_wall_clock_offset_ms(*offset_ms);
                }
            }
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
        // No network delivers what comes behind lost bytes of the same connection.
        if std::mem::take(&mut self.is_discarding[group][node]) {
            link.cut();
        }
        link.set(Flow::Pass);
        link.set_refuses(false);
    }
}

/// Deletes what the server saved; the module's state file stays.
fn wipe(dir: &Path) {
    // Either may not be there.
    let _ = fs::remove_file(dir.join("dump.rdb"));
    let _ = fs::remove_dir_all(dir.join("appendonlydir"));
}

/// Under what name a fault is counted; its end is none.
fn name(act: &Act) -> Option<&'static str> {
    match act {
        Act::Kill { data: Data::Kept, .. } => Some("kill -9"),
        Act::Kill { data: Data::Wiped, .. } => Some("kill -9 and wipe"),
        Act::Stop { .. } => Some("orderly stop"),
        Act::Pause { .. } => Some("hang"),
        Act::Step { .. } => Some("clock step"),
        Act::Link { trouble, .. } => Some(match trouble {
            Trouble::Hold(_) => "link held",
            Trouble::Discard(_) => "link cut silently",
            Trouble::Delay(..) => "link slow",
            Trouble::Refuse => "link refused",
            Trouble::Reset => "link reset",
        }),
        Act::Start { .. } | Act::Resume { .. } | Act::Heal { .. } => None,
    }
}
