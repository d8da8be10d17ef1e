//! What the client needs from the world: a clock, randomness, tasks, and nodes that answer.
//!
//! The whole client uses [`AnyWorld`]. A program runs in the [`Network`]; a simulation brings its
//! own [`World`] and runs the same code. No public type has the world as a parameter, so a program
//! never sees it.
//!
//! [`World::send`] does not wait. It puts the command into the node's line, and the order of calls
//! is the order on the wire. So a release can be sent from a destructor, and it travels behind the
//! acquire that it undoes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either};
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

use super::destination::Destination;
use super::inbox::ReplyTo;
use super::links::Links;
use super::packet::Packet;
use super::slot_links::Spawn;
use super::slot_shares::MoveTarget;
use super::vote::Vote;
use super::wakes::Wakes;
use crate::engine::{Instant, Millis, UnixTime};

/// A custom clock, randomness, tasks and nodes, for simulations.
pub trait World: Send + Sync + 'static {
    /// The time since some start, on a clock that keeps running while the machine sleeps, and is
    /// never stepped.
    fn now(&self) -> Duration;

    /// The wall clock. It orders waiters, and limits which fences count; nothing else rests on it.
    fn wall(&self) -> UnixTime {
        wall_time()
    }

    /// Waits for `length`, or longer, but never less. Time for which the machine was suspended may
    /// count or not.
    fn sleep(&self, length: Duration) -> BoxFuture<'static, ()>;

    /// Fills `bytes` with unguessable random bytes.
    fn fill(&self, bytes: &mut [u8]);

    /// Runs a task in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// The names of the nodes, for people. Their number never changes.
    fn nodes(&self) -> &[Arc<str>];

    /// Sends `packet` to `node`, behind everything that was sent to it before, and delivers the
    /// reply or the failure. Its [`Packet::care`] decides what becomes of a packet that no caller
    /// waits for, or whose connection breaks.
    fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>);

    /// Whether, as far as is known here, `node` has yet to carry out a release.
    fn owes(&self, _node: usize) -> bool {
        false
    }

    /// Where wakes arrive, if the nodes of this world can wake their clients. Without it, waiters
    /// poll.
    fn wakes(&self) -> Option<&Arc<Wakes>> {
        None
    }
}

/// The current time, rounded down: for the start of something.
pub(super) fn earliest(world: &AnyWorld) -> Instant {
    Instant::from_millis(Millis::round_down(world.now()).get())
}

/// The current time, rounded up: for judging what is left.
pub(super) fn latest(world: &AnyWorld) -> Instant {
    Instant::from_millis(Millis::round_up(world.now()).get())
}

/// The prefix of clients' channels: a node's user needs access to them to wait in line.
const CHANNEL_PREFIX: &str = "lockmod:wake:";

/// The real world: the operating system's clock and randomness, tokio's tasks, Redis nodes.
#[derive(Debug)]
pub(super) struct Network {
    links: Links,
    runtime: tokio::runtime::Handle,
}

impl Network {
    /// Starts the connections to the nodes, on `runtime`.
    pub(super) fn start(
        nodes: Vec<Destination>,
        patience: Duration,
        runtime: tokio::runtime::Handle,
    ) -> Network {
        let mut number = [0; 16];
        fill(&mut number);
        let channel = format!("{CHANNEL_PREFIX}{:032x}", u128::from_ne_bytes(number));
        let spawn = |driving| drop(runtime.spawn(driving));
        let later = runtime.clone();
        let later: Spawn = Arc::new(move |driving| drop(later.spawn(driving)));
        let links = Links::start(nodes, channel.as_bytes(), patience, spawn, Some(later));
        Network { links, runtime }
    }
}

/// Fills `bytes` from the system. Not from a generator of this process: a fork would copy its
/// state, and two children would acquire locks with one token.
///
/// # Panics
/// If the system has no random numbers, which no supported one lacks.
fn fill(bytes: &mut [u8]) {
    rand::Rng::fill_bytes(&mut UnwrapErr(SysRng), bytes);
}

/// The world of a locker. An enum and not a `dyn World`: in the real one nothing is boxed, and
/// calls can be inlined.
pub(super) enum AnyWorld {
    /// The real world.
    Network(Network),
    /// A custom world.
    Own(Box<dyn World>),
}

impl fmt::Debug for AnyWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes()).finish()
    }
}

impl AnyWorld {
    pub(super) fn now(&self) -> Duration {
        match self {
            AnyWorld::Network(_) => boot_time(),
            AnyWorld::Own(world) => world.now(),
        }
    }

    pub(super) fn wall(&self) -> UnixTime {
        match self {
            AnyWorld::Network(_) => wall_time(),
            AnyWorld::Own(world) => world.wall(),
        }
    }

    pub(super) fn sleep(
        &self,
        length: Duration,
    ) -> Either<tokio::time::Sleep, BoxFuture<'static, ()>> {
        match self {
            AnyWorld::Network(_) => Either::Left(tokio::time::sleep(length)),
            AnyWorld::Own(world) => Either::Right(world.sleep(length)),
        }
    }

    pub(super) fn fill(&self, bytes: &mut [u8]) {
        match self {
            AnyWorld::Network(_) => fill(bytes),
            AnyWorld::Own(world) => world.fill(bytes),
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            AnyWorld::Network(network) => drop(network.runtime.spawn(task)),
            AnyWorld::Own(world) => world.spawn(Box::pin(task)),
        }
    }

    pub(super) fn nodes(&self) -> &[Arc<str>] {
        match self {
            AnyWorld::Network(network) => network.links.names(),
            AnyWorld::Own(world) => world.nodes(),
        }
    }

    pub(super) fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
        match self {
            AnyWorld::Network(network) => network.links.send(node, packet, reply_to),
            AnyWorld::Own(world) => world.send(node, packet, reply_to),
        }
    }

    /// The connections to the nodes, in the real world.
    pub(super) const fn links(&self) -> Option<&Links> {
        match self {
            AnyWorld::Network(network) => Some(&network.links),
            AnyWorld::Own(_) => None,
        }
    }

    /// What is said of a node that has not answered in time.
    pub(super) fn silence(&self, node: usize) -> Vote {
        self.links().map_or(Vote::TimedOut, |links| links.silence(node))
    }

    /// The current master of the node's group, if the node is the master of a group; all masters of
    /// a Cluster.
    pub(super) fn masters(&self, node: usize) -> Vec<Arc<str>> {
        match self {
            AnyWorld::Network(network) => network.links.masters(node),
            AnyWorld::Own(_) => Vec::new(),
        }
    }

    /// Whether the node is a Cluster.
    pub(super) fn is_cluster(&self, node: usize) -> bool {
        match self {
            AnyWorld::Network(network) => network.links.is_cluster(node),
            AnyWorld::Own(_) => false,
        }
    }

    /// The master that has this lock, if it is known: of a Cluster, or of the node's group, where
    /// it is the one that was asked last. `None` for a server by itself.
    pub(super) fn master_of(&self, node: usize, name: &[u8]) -> Option<Arc<str>> {
        match self {
            AnyWorld::Network(network) => network.links.master_of(node, name),
            AnyWorld::Own(_) => None,
        }
    }

    /// The master of this slot of a Cluster, if it is known.
    pub(super) fn owner_of(&self, node: usize, slot: u16) -> Option<Arc<str>> {
        self.links().and_then(|links| links.owner_of(node, slot))
    }

    /// The master that was sent the last command about this lock, as far as is known: of a Cluster
    /// the one that has the lock's slot, or to which the slot is moving.
    pub(super) fn last_asked(&self, node: usize, name: &[u8]) -> Option<Arc<str>> {
        self.links().and_then(|links| links.last_asked(node, name))
    }

    /// The name of this master of a Cluster, to which commands can be sent from now on, though it
    /// may have no slots; `None` if it is not known how to reach it.
    pub(super) fn meet(&self, node: usize, master: &MoveTarget) -> Option<Arc<str>> {
        self.links().and_then(|links| links.meet(node, master))
    }

    /// How many slots a master of a Cluster has, as far as is known.
    pub(super) fn slots_of(&self, node: usize, master: &str) -> u16 {
        match self {
            AnyWorld::Network(network) => network.links.slots_of(node, master),
            AnyWorld::Own(_) => 0,
        }
    }

    /// Sends `packet` to one master of a Cluster.
    pub(super) fn send_to(&self, to: (usize, &str), packet: &Packet, reply_to: ReplyTo) {
        match self {
            AnyWorld::Network(network) => network.links.send_to(to, packet, reply_to),
            AnyWorld::Own(world) => world.send(to.0, packet, Some(reply_to)),
        }
    }

    pub(super) fn owes(&self, node: usize) -> bool {
        match self {
            AnyWorld::Network(network) => network.links.owes(node),
            AnyWorld::Own(world) => world.owes(node),
        }
    }

    /// Whether the node has yet to carry out a release, and cannot be reached at present, or puts
    /// it off.
    pub(super) fn is_hindered(&self, node: usize) -> bool {
        self.links().is_some_and(|links| links.is_hindered(node))
    }

    pub(super) fn wakes(&self) -> Option<&Arc<Wakes>> {
        match self {
            AnyWorld::Network(network) => Some(network.links.wakes()),
            AnyWorld::Own(world) => world.wakes(),
        }
    }
}

/// The wall clock.
fn wall_time() -> UnixTime {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    UnixTime::from_millis(Millis::round_down(since_1970.unwrap_or_default()).get())
}

/// A clock that counts the time for which the machine slept, if there is one.
fn boot_time() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    // Apple's CLOCK_MONOTONIC keeps running while the machine sleeps.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    // Both clocks start at zero at boot, so neither part is negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
