//! The faults of one run, from its seed.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockmod::engine::Millis;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::Setup;
use crate::clients::name;
use crate::net::{Flow, Net};
use crate::node::{End, Misfit};
use crate::world::Process;

/// The end of a fault.
type Recovery = Pin<Box<dyn Future<Output = ()> + Send>>;

const HOUR_MS: i64 = 3_600_000;
/// How far a wall clock may be stepped without being noticed, and a little more.
const SMALL_MS: i64 = 1_050;

pub(crate) struct Nemesis {
    setup: Setup,
    net: Arc<Net>,
    processes: Vec<Arc<Process>>,
    random: StdRng,
}

impl Nemesis {
    pub(crate) fn new(setup: Setup, net: &Arc<Net>, processes: &[Arc<Process>]) -> Nemesis {
        let random = StdRng::seed_from_u64(setup.seed ^ 0x6e65_6d65);
        Nemesis { setup, net: Arc::clone(net), processes: processes.to_vec(), random }
    }

    /// Injects faults for the duration in the setup, then undoes them all.
    pub(crate) async fn storm(mut self) {
        if self.setup.replicas > 0 {
            // No client is granted anything before this.
            sleep(self.millis(0, 12_000)).await;
        }
        let end = Instant::now() + Duration::from_millis(self.setup.storm_ms);
        let mut tasks = Vec::new();
        while Instant::now() < end {
            sleep(self.millis(30, 400)).await;
            if let Some(recovery) = self.strike() {
                tasks.push(tokio::spawn(recovery));
            }
        }
        for task in tasks {
            task.await.expect("a fault ends");
        }
        self.net.reform();
        self.net.heal();
        self.net.change(|universe| {
            for node in &mut universe.nodes {
                node.misfit = None;
                node.set_max_ttl(self.setup.max_ttl);
            }
        });
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.random_range(from..=to))
    }

    /// Injects a fault. Returns its end, if it must be ended.
    fn strike(&mut self) -> Option<Recovery> {
        let node = self.random.random_range(0..self.setup.nodes);
        let program = self.random.random_range(0..self.setup.programs);
        let way = (program, node);
        let server = self.server_of(node);
        let net = Arc::clone(&self.net);
        let length = self.millis(20, 3_000);
        match self.random.random_range(0..100) {
            0..18 => {
                // Either a moment, or long enough for leases to end meanwhile.
                let length = if self.random.random_bool(0.7) { length / 10 } else { length };
                self.processes[program].pause(length);
                None
            }
            18..26 if !self.setup.is_steady => {
                let fast_ppm = self.random.random_range(-self.setup.ppm_max..=self.setup.ppm_max);
                if self.random.random_bool(0.5) {
                    self.processes[program].set_rate(fast_ppm);
                } else {
                    net.change(|universe| universe.nodes[server].clock.set_rate(fast_ppm));
                }
                None
            }
            26..34 => {
                let slow = self.millis(1, 60);
                net.set_slow(way, slow);
                Some(Box::pin(async move {
                    sleep(length).await;
                    net.set_slow(way, Duration::ZERO);
                }))
            }
            34..42 if self.setup.replicas > 0 => self.strike_group(node, server, length),
            34..42 => {
                let by_ms = match self.setup.small_steps {
                    true => self.random.random_range(-SMALL_MS..=SMALL_MS),
                    false => self.random.random_range(-6..=6) * HOUR_MS,
                };
                let all = self.random.random_bool(0.5);
                net.change(|universe| {
                    let (first, last) =
                        if all { (0, universe.nodes.len()) } else { (node, node + 1) };
                    for node in &mut universe.nodes[first..last] {
                        node.step_wall_clock(by_ms);
                    }
                });
                None
            }
            42..46 if self.setup.is_forced => {
                let lock = name(self.random.random_range(0..self.setup.locks));
                net.change(|universe| universe.delete(lock.as_bytes()));
                None
            }
            _ if self.setup.is_gentle => None,
            42..58 => self.trouble(way, length),
            58..66 => {
                self.net.cut(way);
                None
            }
            66..68 if self.setup.nodes > 1 => Some(self.mislead(node)),
            66..70 => {
                self.net.garble_next(way);
                None
            }
            70..76 => {
                net.change(|universe| universe.hung_until[server] = Instant::now() + length);
                None
            }
            76..78 => {
                let (from, lock) = (self.random.random_range(0..self.setup.nodes), program);
                bring(&net, &name(lock % self.setup.locks), (from, node));
                None
            }
            78..80 => {
                net.change(|universe| universe.nodes[server].save());
                None
            }
            80..82 => {
                net.change(|universe| universe.nodes[server].set_disk_full(true));
                if self.setup.replicas == 0 {
                    // Lasts until it restarts.
                    return None;
                }
                Some(Box::pin(async move {
                    sleep(length).await;
                    net.change(|universe| universe.nodes[server].set_disk_full(false));
                }))
            }
            82..84 => {
                let misfit = Misfit::ALL[self.random.random_range(0..Misfit::ALL.len())];
                net.change(|universe| {
                    let misfits = universe.nodes.iter().filter(|node| node.misfit.is_some());
                    if misfits.count() < 2 {
                        universe.nodes[server].misfit = Some(misfit);
                    }
                });
                Some(Box::pin(async move {
                    sleep(length).await;
                    net.change(|universe| universe.nodes[server].misfit = None);
                }))
            }
            _ if !self.random.random_ratio(self.setup.crashes, 16) => None,
            84..86 => self.massacre(),
            86..88 => self.roll(),
            _ => self.crash(server),
        }
    }

    /// Picks a server of a group: its master more often than the others.
    fn server_of(&mut self, group: usize) -> usize {
        if self.setup.replicas == 0 {
            return group;
        }
        let place = self.random.random_range(0..=self.setup.replicas as usize);
        let universe = self.net.universe();
        let any = universe.servers_of(group).nth(place);
        any.filter(|_| self.random.random_bool(0.6)).unwrap_or(universe.home[group])
    }

    /// Injects a fault between the servers of a group.
    fn strike_group(&mut self, group: usize, server: usize, length: Duration) -> Option<Recovery> {
        let net = Arc::clone(&self.net);
        if self.setup.is_gentle {
            return None;
        }
        match self.random.random_range(0..10) {
            0..3 => Some(self.fail_over(group)),
            3..5 => {
                // Longer leases only if all servers know of them beforehand.
                let max_ttl = self.setup.max_ttl.get() / [1, 4][self.random.random_range(0..2)];
                net.change(|universe| universe.allow(group, Millis::new(max_ttl)));
                None
            }
            5 => Some(self.chain(group, server, length)),
            6..8 => {
                net.change(|universe| universe.detach(server));
                None
            }
            _ => {
                let others = self.others(group, server);
                let other = others[self.random.random_range(0..others.len())];
                net.hold((server, other), true);
                Some(Box::pin(async move {
                    sleep(length * 3).await;
                    net.hold((server, other), false);
                }))
            }
        }
    }

    /// Makes a replica follow another for a while.
    fn chain(&mut self, group: usize, server: usize, length: Duration) -> Recovery {
        let net = Arc::clone(&self.net);
        let others = self.others(group, server);
        let other = others[self.random.random_range(0..others.len())];
        net.change(|universe| {
            let home = universe.home[group];
            if server != home && other != home {
                universe.follow(server, other);
            }
        });
        Box::pin(async move {
            sleep(length * 4).await;
            net.follow_home(server).await;
        })
    }

    fn others(&self, group: usize, server: usize) -> Vec<usize> {
        self.net.universe().servers_of(group).filter(|other| *other != server).collect()
    }

    /// Promotes a replica in place of its master. The master continues (cut off from the others or
    /// not), hangs or is killed, and follows its successor some time later.
    fn fail_over(&mut self, group: usize) -> Recovery {
        let old = self.net.universe().home[group];
        let others = self.others(group, old);
        let new = others[self.random.random_range(0..others.len())];
        let is_quick = self.random.random_bool(0.5);
        let before = self.millis(0, if is_quick { 300 } else { 5_000 });
        let after = self.millis(0, 15_000);
        let hangs = before + self.millis(0, if is_quick { 3_000 } else { 9_000 });
        let fall = Fall { down: hangs, ..self.fall() };
        let fate = self.random.random_range(0..4);
        let lags: Vec<_> = others.iter().map(|_| self.millis(0, 1_500)).collect();
        let told: Vec<_> =
            (0..self.setup.programs).filter(|_| self.random.random_bool(0.5)).collect();
        let (is_left, net) = (self.random.random_bool(0.7), Arc::clone(&self.net));
        let saved_before = self.millis(0, 4_000);
        Box::pin(async move {
            let mut fallen = None;
            // A server that restarts lacks everything sent from now on.
            net.change(|universe| {
                universe.servers_of(group).for_each(|server| universe.nodes[server].save());
            });
            sleep(saved_before).await;
            match fate {
                0 => others.iter().for_each(|other| net.hold((old, *other), true)),
                1 => net.change(|universe| universe.hung_until[old] = Instant::now() + hangs),
                2 => fallen = Some(tokio::spawn(restart(Arc::clone(&net), old, fall))),
                _ => {}
            }
            sleep(before).await;
            net.wait_while_hung(new).await;
            net.change(|universe| universe.promote(new));
            told.into_iter().for_each(|program| net.cut((program, group)));
            for (other, lag) in others.iter().zip(lags) {
                sleep(lag).await;
                net.follow_home(*other).await;
            }
            sleep(after).await;
            others.iter().for_each(|other| net.hold((old, *other), false));
            net.follow_home(old).await;
            if is_left {
                net.drop_connections(old, false);
            }
            if let Some(fallen) = fallen {
                fallen.await.expect("a server comes back");
            }
        })
    }

    fn trouble(&mut self, way: (usize, usize), length: Duration) -> Option<Recovery> {
        let net = Arc::clone(&self.net);
        let choice = self.random.random_range(0..7);
        let (requests, replies) = match choice {
            0 => (Flow::Hold, Flow::Pass),
            1 => (Flow::Pass, Flow::Hold),
            2 => (Flow::Hold, Flow::Hold),
            3 => (Flow::Discard, Flow::Pass),
            4 => (Flow::Pass, Flow::Discard),
            5 => (Flow::Discard, Flow::Discard),
            _ => {
                net.set_refuses(way, true);
                return Some(Box::pin(async move {
                    sleep(length).await;
                    net.set_refuses(way, false);
                }));
            }
        };
        net.set_flow(way, requests, replies);
        Some(Box::pin(async move {
            sleep(length).await;
            net.set_flow(way, Flow::Pass, Flow::Pass);
            if choice > 2 {
                net.cut(way);
            }
        }))
    }

    /// Directs this address to another node for a while. Soon after, that node's own address leads
    /// nowhere: clients may ask the node again for what it has already granted.
    fn mislead(&mut self, address: usize) -> Recovery {
        let node = self.random.random_range(0..self.setup.nodes);
        let (pause, length) = (self.millis(0, 20), self.millis(20, 500));
        let (net, programs) = (Arc::clone(&self.net), self.setup.programs);
        Box::pin(async move {
            net.lead(address, node);
            sleep(pause).await;
            let ways = (0..programs).map(|program| (program, node));
            ways.clone().for_each(|way| net.set_refuses(way, node != address));
            sleep(length).await;
            net.lead(address, address);
            ways.for_each(|way| net.set_refuses(way, false));
        })
    }

    fn fall(&mut self) -> Fall {
        let end = match self.random.random_range(0..10) {
            0..6 => End::Killed,
            6..8 => End::PowerLoss,
            8 => End::Shutdown { saves: true },
            _ => End::Shutdown { saves: false },
        };
        // A node that has every write on its disk may rely on its disk.
        let loses_data = self.random.random_bool(0.4);
        let is_short = self.random.random_bool(0.6);
        let down = if is_short { Duration::ZERO } else { self.millis(0, 2_000) };
        Fall { end, loses_data, down }
    }

    fn crash(&mut self, node: usize) -> Option<Recovery> {
        Some(Box::pin(restart(Arc::clone(&self.net), node, self.fall())))
    }

    /// Takes down all nodes, or all but one, simultaneously.
    fn massacre(&mut self) -> Option<Recovery> {
        let spared = self.random.random_range(0..=self.setup.nodes);
        let nodes: Vec<_> = (0..self.setup.nodes).filter(|node| *node != spared).collect();
        let recoveries: Vec<_> = nodes.into_iter().filter_map(|node| self.crash(node)).collect();
        Some(Box::pin(async move {
            let recoveries: Vec<_> = recoveries.into_iter().map(tokio::spawn).collect();
            for recovery in recoveries {
                recovery.await.expect("a node comes back");
            }
        }))
    }

    /// Takes down one node after another, each when the previous one is up.
    fn roll(&mut self) -> Option<Recovery> {
        let falls: Vec<_> =
            (0..self.setup.nodes).map(|_| (self.fall(), self.millis(0, 1_000))).collect();
        let net = Arc::clone(&self.net);
        Some(Box::pin(async move {
            for (node, (fall, pause)) in falls.into_iter().enumerate() {
                restart(Arc::clone(&net), node, fall).await;
                sleep(pause).await;
            }
        }))
    }
}

/// Copies a lease from one node to another that is in quarantine, as an operator does with DUMP and
/// RESTORE.
pub(crate) fn bring(net: &Arc<Net>, lock: &str, (from, to): (usize, usize)) {
    net.change(|universe| {
        let (group, from, to) = (to, universe.home[from], universe.home[to]);
        let dump = universe.nodes[from].dump(lock.as_bytes());
        if universe.nodes[to].is_in_quarantine()
            && let Some(dump) = dump
        {
            let tokens = universe.nodes[to].restore(lock.as_bytes(), &dump);
            universe.stranded.extend(tokens.into_iter().flatten());
            universe.shadow.brought(group, lock.as_bytes());
        }
    });
}

/// Chooses how a node goes down, and for how long.
pub(crate) struct Fall {
    pub(crate) end: End,
    pub(crate) loses_data: bool,
    pub(crate) down: Duration,
}

/// Takes a node down, if it is up, and restarts it.
pub(crate) async fn restart(net: Arc<Net>, node: usize, fall: Fall) {
    let Fall { end, loses_data, down } = fall;
    if !net.universe().nodes[node].is_up {
        return;
    }
    net.change(|universe| {
        universe.leave(node);
        universe.nodes[node].end(end, loses_data);
    });
    net.drop_connections(node, end == End::PowerLoss);
    sleep(down).await;
    net.change(|universe| {
        universe.choose_role(node);
        universe.nodes[node].start_again();
        // Leases released since the data set was saved are there again.
        let back = universe.nodes[node].held_tokens();
        universe.stranded.extend(back.into_iter().map(|(_, token)| token));
    });
}
