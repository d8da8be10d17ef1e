//! One program: a process with a clock, a client, and pauses.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockmod::client::packet::Packet;
use lockmod::client::{Dial, Links, ReplyTo, Wakes, World};
use lockmod::engine::{Millis, UnixTime};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::Clock;
use crate::net::{Dialler, Net};
use crate::node::WALL_MS;

/// A process. While it is paused, all its tasks stand still, but its clock keeps running.
#[derive(Debug)]
pub(crate) struct Process(Mutex<State>);

#[derive(Debug)]
struct State {
    clock: Clock,
    paused_until: Instant,
    paused_for: Duration,
    random: StdRng,
}

impl Process {
    pub(crate) fn new(clock: Clock, seed: u64) -> Arc<Process> {
        let random = StdRng::seed_from_u64(seed);
        let (paused_until, paused_for) = (Instant::now(), Duration::ZERO);
        Arc::new(Process(Mutex::new(State { clock, paused_until, paused_for, random })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("one thread, which does not go on after a panic")
    }

    /// The current clock.
    pub(crate) fn clock(&self) -> Clock {
        self.state().clock
    }

    pub(crate) fn set_rate(&self, fast_ppm: i64) {
        self.state().clock.set_rate(fast_ppm);
    }

    pub(crate) fn pause(&self, length: Duration) {
        let mut state = self.state();
        state.paused_until = state.paused_until.max(Instant::now()) + length;
        state.paused_for += length;
    }

    /// The total time for which it has been paused.
    pub(crate) fn paused_for(&self) -> Duration {
        self.state().paused_for
    }

    /// Waits until the process's clock has advanced by `length`.
    pub(crate) fn sleep(self: Arc<Self>, length: Duration) -> impl Future<Output = ()> + Send {
        let until = self.clock().now() + length;
        async move {
            loop {
                let clock = self.clock();
                let left = until.saturating_sub(clock.now());
                if left.is_zero() {
                    return;
                }
                // The rate may change meanwhile, so a little time may be left.
                let left = clock.true_length(left) + Duration::from_nanos(1);
                tokio::time::sleep(left).await;
            }
        }
    }

    /// Runs a task of this process.
    pub(crate) fn spawn<F>(self: &Arc<Self>, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        tokio::spawn(Pausable { process: Arc::clone(self), task: Box::pin(task), timer: None })
    }
}

/// A task that stands still while its process is paused.
struct Pausable<F> {
    process: Arc<Process>,
    task: Pin<Box<F>>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Future for Pausable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            let until = self.process.state().paused_until;
            if until <= Instant::now() {
                self.timer = None;
                return self.task.as_mut().poll(ctx);
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if timer.deadline() < until {
                timer.as_mut().reset(until);
            }
            if timer.as_mut().poll(ctx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// The environment of the client.
#[derive(Debug)]
pub(crate) struct Simulated {
    process: Arc<Process>,
    links: Links,
    /// How far the wall clock is ahead of the monotonic clock.
    wall_minus_boot: Millis,
}

impl Simulated {
    pub(crate) fn new(
        net: &Arc<Net>,
        program: usize,
        process: &Arc<Process>,
        timeout: Duration,
    ) -> Simulated {
        let (groups, is_grouped) = {
            let universe = net.universe();
            (universe.groups, universe.nodes[0].is_in_group())
        };
        let wall_ms = WALL_MS - Millis::round_down(process.clock().now()).get();
        let wall_minus_boot = Millis::new(if is_grouped { wall_ms } else { 1 });
        let nodes = (0..groups).map(|node| {
            let dial: Arc<dyn Dial> =
                Arc::new(Dialler { net: Arc::clone(net), way: (program, node) });
            (format!("node-{node}").into(), dial)
        });
        let channel = format!("lockmod:wake:{program}");
        let spawn = |driving| drop(process.spawn(driving));
        let links = Links::dialled(nodes, channel.as_bytes(), timeout, spawn);
        Simulated { process: Arc::clone(process), links, wall_minus_boot }
    }
}

impl World for Simulated {
    fn now(&self) -> Duration {
        self.process.clock().now()
    }

    /// Wall clocks differ by hours: a program with a slow clock counts as having come first. With
    /// groups, fences jump to the time, so all clocks agree.
    fn wall(&self) -> UnixTime {
        UnixTime::from_millis(self.wall_minus_boot.get() + Millis::round_down(self.now()).get())
    }

    fn wakes(&self) -> Option<&Arc<Wakes>> {
        Some(self.links.wakes())
    }

    fn sleep(&self, length: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Arc::clone(&self.process).sleep(length))
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.process.state().random.fill_bytes(bytes);
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(self.process.spawn(task));
    }

    fn nodes(&self) -> &[Arc<str>] {
        self.links.names()
    }

    fn owes(&self, node: usize) -> bool {
        self.links.owes(node)
    }

    fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
        self.links.send(node, packet, reply_to);
    }
}
