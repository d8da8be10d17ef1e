//! The setting of a run: nodes, the network, and programs with their clocks and clients.

use std::sync::Arc;
use std::time::Duration;

use lockmod::client::Locker;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Setup;
use crate::clients::{Client, Log, Surroundings, WAIT};
use crate::clock::Clock;
use crate::group::Member;
use crate::line::Offer;
use crate::net::Net;
use crate::node::{Node, Persistence};
use crate::world::{Process, Simulated};

pub(crate) struct Stage {
    pub(crate) setup: Setup,
    pub(crate) net: Arc<Net>,
    pub(crate) log: Arc<Log>,
    pub(crate) processes: Vec<Arc<Process>>,
    pub(crate) lockers: Vec<Locker>,
}

impl Stage {
    pub(crate) fn new(setup: Setup) -> Stage {
        let mut random = StdRng::seed_from_u64(setup.seed);
        let mut clock = || {
            let then = Duration::from_micros(random.random_range(0..1 << 33));
            Clock::new(then, random.random_range(-setup.ppm_max..=setup.ppm_max))
        };
        let kinds = [Persistence::Nothing, Persistence::Snapshots, Persistence::Always];
        let node = |number: usize| {
            let (index, place) = (number % setup.nodes, number / setup.nodes);
            let kind = kinds[(number + setup.seed as usize) % kinds.len()];
            let is_old = setup.old_node == Some(index);
            let member = Member::new(number, setup.replicas, (place > 0).then_some(index));
            let has_lines = !is_old || setup.has_old_lines;
            let offer = Offer { has_lines, grants: !is_old, max_waiters: setup.max_waiters };
            let terms = (offer, member, setup.max_ttl);
            let mut node = Node::start(number, clock(), kind, terms, setup.defect);
            if place == 0 {
                node.raise_floor(1 + setup.uneven * index as u64);
            }
            node
        };
        let servers = setup.nodes * (setup.replicas as usize + 1);
        let nodes = (0..servers).map(node).collect();
        let chances = (setup.delay_ms, setup.lost_calls);
        let programs = (setup.programs, setup.old_program);
        let nodes = (nodes, setup.nodes);
        let net = Net::new(setup.seed, programs, nodes, chances, setup.overtakes);
        if setup.replicas > 0 {
            net.run_groups();
        }
        let log = Log::new(setup.locks);
        let mut stage = Stage { setup, net, log, processes: Vec::new(), lockers: Vec::new() };
        for program in 0..setup.programs {
            let timeout = stage.timeout(program);
            let process = Process::new(clock(), setup.seed ^ ((program as u64 + 1) << 48));
            let world = Simulated::new(&stage.net, program, &process, timeout);
            let ttl = Duration::from_secs(1).max(timeout * 4);
            let builder = Locker::builder().ttl(ttl).wait(WAIT);
            let builder = builder.timeout(timeout).max_ttl(setup.max_ttl.into());
            stage.lockers.push(builder.build_in(world).expect("good settings"));
            stage.processes.push(process);
        }
        stage
    }

    /// How long a program waits for answers.
    fn timeout(&self, program: usize) -> Duration {
        Duration::from_millis(self.setup.timeouts_ms[program])
    }

    /// One task of a program.
    pub(crate) fn client(&self, program: usize, task: usize) -> Client {
        let setup = self.setup;
        let around = Surroundings {
            nodes: setup.nodes,
            locks: setup.locks,
            max_ttl: setup.max_ttl.into(),
            short_share: if setup.replicas > 0 { 0.5 } else { 0.75 },
            // Some holders then keep working while a master is replaced.
            length_max: match setup.replicas {
                0 => Duration::from_secs(8),
                _ => Duration::from(setup.max_ttl).mul_f64(1.7),
            },
            is_steady: setup.is_steady,
            is_gentle: setup.is_gentle && !setup.is_forced,
            is_forced: setup.is_forced,
            timeout: self.timeout(program),
        };
        let numbers = (program * setup.tasks + task, setup.seed);
        let (locker, process) = (self.lockers[program].clone(), &self.processes[program]);
        Client::new(locker, process, (&self.log, &self.net), numbers, around)
    }
}
