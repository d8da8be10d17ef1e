//! The client in a world of our own: simulated nodes, a clock that jumps, a network that delays
//! and loses, and minorities of nodes that are away. The engine's nodes answer, with its lines of
//! waiters; wakes are lost, and in half of the stories one node knows nothing of lines. No server
//! and no real time is used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockmod::client::protocol::Packet;
use lockmod::client::reply::{self, Reply};
use lockmod::client::{Failure, Locker, ReplyTo, Wakes, World};
use lockmod::engine::{
    Acquired, Clocks, ConnectionId, Extended, Fence, Fencing, Instant, Line, Lock, Millis,
    Promises, QuarantineReason, Queued, Released, Room, Stop, Turn, UnixTime,
};
use lockmod::wire::request::{self, Limits, Queue, Waiting};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::millis;

const NODES: usize = 5;

/// Nodes and network, shared by all clients.
struct Universe {
    random: StdRng,
    nodes: Vec<(Promises, Lock, Line)>,
    /// The clients, by the channels that they listen to.
    clients: HashMap<Vec<u8>, Arc<Ear>>,
    /// A node that does not know QUEUE.
    old_node: Option<usize>,
    /// Nodes call those in line though they would refuse them, as older ones do.
    calls_in_quarantine: bool,
    /// A minority that cannot be reached, and until when.
    away: ([usize; 2], Duration),
    start: tokio::time::Instant,
}

/// One client's end of the network.
struct Ear {
    wakes: Arc<Wakes>,
    /// When each node's line is free: what is sent later never overtakes.
    lines: Mutex<[(tokio::time::Instant, tokio::time::Instant); NODES]>,
}

struct Simulated {
    universe: Arc<Mutex<Universe>>,
    names: Vec<Arc<str>>,
    ear: Arc<Ear>,
    number: u64,
}

impl Universe {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Another minority is away every half a second.
    fn is_away(&mut self, node: usize) -> bool {
        let now = self.now();
        if now >= self.away.1 {
            let mut any = || self.random.random_range(0..NODES);
            self.away = ([any(), any()], now + millis(500));
        }
        self.away.0.contains(&node)
    }

    fn carry_out(&mut self, node: usize, client: u64, args: &[&[u8]]) -> Reply {
        let reply = self.decide(node, client, args);
        self.serve(node);
        reply
    }

    fn decide(&mut self, node: usize, client: u64, args: &[&[u8]]) -> Reply {
        let now = self.instant();
        let clocks = Clocks { now, wall: UnixTime::from_millis(1 + now.as_millis()) };
        let limits = Limits::FACTS;
        let is_old = self.old_node == Some(node);
        let (promises, lock, line) = &mut self.nodes[node];
        let integer = |fence: Fence| Reply::Integer(fence.get().cast_signed());
        let extended = |outcome: Extended, yes: Reply| match outcome {
            Extended::Extended { counts, .. } => {
                assert!(counts, "no node is ever in quarantine here");
                yes
            }
            Extended::HeldByAnother => Reply::Integer(0),
            Extended::NotHeld => Reply::Nil,
        };
        match args[0] {
            b"LOCK.ACQUIRE" => {
                let acquire = request::acquire(&args[2..], limits).unwrap();
                let queued = match acquire.waiting {
                    Waiting::Not => None,
                    Waiting::Queue(_) if is_old => {
                        return Reply::Error("BADARG option 'QUEUE'; allowed: LABEL text".into());
                    }
                    Waiting::Queue(queue) => Some(queued(queue, client, now)),
                    Waiting::Block(_) => panic!("the client never blocks"),
                };
                let (claim, label) = (acquire.claim, acquire.label);
                let outcome =
                    promises.acquire_in_line(lock, line, claim, label, queued.as_ref(), now);
                let outcome = match outcome {
                    Ok((outcome, _)) => outcome,
                    Err(Stop::Refused(refusal)) => return Reply::Error(refusal.to_string()),
                    Err(stop) => panic!("{stop:?}"),
                };
                match outcome {
                    Acquired::Granted { fence, .. } | Acquired::Again { fence, .. } => {
                        integer(fence)
                    }
                    Acquired::Held => Reply::Nil,
                }
            }
            b"LOCK.RELEASE" => {
                let token = request::token(args[2], limits).unwrap();
                let queue = request::release_options(&args[3..]).unwrap();
                let queued = queue.map(|queue| queued(queue, client, now));
                if is_old && queued.is_some() {
                    return Reply::Error("ERR wrong number of arguments".into());
                }
                match promises.release_in_line(lock, line, token, queued.as_ref(), now).0 {
                    Released::Released { .. } => Reply::Integer(1),
                    Released::HeldByAnother => Reply::Integer(0),
                    Released::NotHeld => Reply::Nil,
                }
            }
            b"LOCK.EXTEND" => {
                let extend = request::extend(&args[2..], limits).unwrap();
                let fencing: Fencing = extend.fencing;
                let outcome = promises.extend(lock, extend.claim, fencing, clocks).unwrap();
                extended(outcome, Reply::Integer(1))
            }
            b"LOCK.FENCE" if args.len() == 4 => {
                let token = request::token(args[2], limits).unwrap();
                let fence = request::fence(args[3]).unwrap();
                let outcome = promises.raise(lock, token, fence, clocks).unwrap();
                let counter = match outcome {
                    Extended::Extended { counter, .. } => counter,
                    Extended::HeldByAnother | Extended::NotHeld => Fence::ZERO,
                };
                extended(outcome, integer(counter))
            }
            _ => Reply::Error("ERR not simulated".into()),
        }
    }

    fn instant(&self) -> Instant {
        Instant::from_millis(u64::try_from(self.now().as_millis()).unwrap())
    }

    /// Lets a node call whose turn it is. One call of ten is lost.
    fn serve(&mut self, node: usize) {
        let now = self.instant();
        let (promises, lock, line) = &mut self.nodes[node];
        drop(line.expire(now, usize::MAX));
        let is_quarantined = promises.grants_nothing_until(now).is_some();
        if lock.is_held(now) || (is_quarantined && !self.calls_in_quarantine) {
            return;
        }
        let Turn::Wake { ticket, channel } = line.serve(now, Millis::new(100)) else { return };
        let (ear, ticket) = (Arc::clone(&self.clients[channel]), ticket.to_bytes());
        if self.random.random_ratio(1, 10) {
            return;
        }
        let back = millis(self.random.random_range(0..=3));
        let arrives_at = {
            let line = &mut ear.lines.lock().unwrap()[node];
            line.1 = line.1.max(tokio::time::Instant::now() + back);
            line.1
        };
        tokio::spawn(async move {
            tokio::time::sleep_until(arrives_at).await;
            ear.wakes.wake(node, &ticket);
        });
    }
}

impl World for Simulated {
    fn now(&self) -> Duration {
        self.universe.lock().unwrap().now()
    }

    fn sleep(&self, length: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(length)
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.universe.lock().unwrap().random.fill(bytes);
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }

    fn nodes(&self) -> &[Arc<str>] {
        &self.names
    }

    fn wall(&self) -> UnixTime {
        UnixTime::from_millis(1 + self.universe.lock().unwrap().instant().as_millis())
    }

    fn wakes(&self) -> Option<&Arc<Wakes>> {
        Some(&self.ear.wakes)
    }

    fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
        let (there, back, is_lost) = {
            let mut universe = self.universe.lock().unwrap();
            if universe.is_away(node) {
                if let Some(reply_to) = reply_to {
                    reply_to.deliver(Err(Failure::Unreachable("away".into())));
                }
                return;
            }
            let random = &mut universe.random;
            // Now and then a node is slow, far beyond what is waited for.
            let slow = if random.random_ratio(1, 20) { 400 } else { 3 };
            let mut delay = || millis(random.random_range(0..=slow));
            (delay(), delay(), random.random_ratio(1, 50))
        };
        let (arrives_at, answered_at) = {
            let line = &mut self.ear.lines.lock().unwrap()[node];
            line.0 = line.0.max(tokio::time::Instant::now() + there);
            line.1 = line.1.max(line.0 + back);
            *line
        };
        let Ok(Some((Reply::List(args), _))) = reply::read(packet.bytes()) else {
            panic!("a packet is a list of strings")
        };
        let (universe, number) = (Arc::clone(&self.universe), self.number);
        tokio::spawn(async move {
            tokio::time::sleep_until(arrives_at).await;
            let args: Vec<&[u8]> = args
                .iter()
                .map(|arg| match arg {
                    Reply::Text(text) => text.as_slice(),
                    other => panic!("{other:?} is no argument"),
                })
                .collect();
            let reply = universe.lock().unwrap().carry_out(node, number, &args);
            tokio::time::sleep_until(answered_at).await;
            if let Some(reply_to) = reply_to {
                reply_to.deliver(if is_lost {
                    Err(Failure::Unreachable("the answer is lost".into()))
                } else {
                    Ok(reply)
                });
            }
        });
    }
}

fn queued(queue: Queue<'_>, client: u64, now: Instant) -> Queued<'_> {
    Queued {
        ticket: queue.ticket,
        channel: queue.channel,
        deadline: now.after(queue.wait),
        connection: ConnectionId(client),
        room: Room { waiters: 0, max: 1 },
    }
}

fn simulated(universe: &Arc<Mutex<Universe>>, number: u64) -> Locker<Simulated> {
    let now = tokio::time::Instant::now();
    let channel = format!("wake:{number}");
    let wakes = Arc::new(Wakes::new(channel.as_bytes(), NODES));
    for node in 0..NODES {
        wakes.connected(node, true);
    }
    let ear = Arc::new(Ear { wakes, lines: Mutex::new([(now, now); NODES]) });
    universe.lock().unwrap().clients.insert(channel.into_bytes(), Arc::clone(&ear));
    let names = (0..NODES).map(|node| format!("node-{node}").into()).collect();
    let world = Simulated { universe: Arc::clone(universe), names, ear, number };
    let builder = Locker::builder().ttl(millis(2_000)).timeout(millis(100));
    builder.wait(Duration::from_secs(3_600)).build_in(world).unwrap()
}

/// Leases and deadlines end while nobody asks, too.
async fn let_time_pass(universe: Arc<Mutex<Universe>>) {
    loop {
        tokio::time::sleep(millis(10)).await;
        let mut universe = universe.lock().unwrap();
        (0..NODES).for_each(|node| universe.serve(node));
    }
}

async fn story(seed: u64) -> usize {
    let node = |_| (Promises::new(Fence::ZERO, None), Lock::default(), Line::default());
    let nodes = (0..NODES).map(node).collect();
    let start = tokio::time::Instant::now();
    let random = StdRng::seed_from_u64(seed);
    let (away, clients) = (([0, 1], Duration::ZERO), HashMap::new());
    let old_node = (seed % 2 == 1).then_some(seed as usize % NODES);
    let calls_in_quarantine = false;
    let universe = Universe { random, nodes, clients, old_node, calls_in_quarantine, away, start };
    let universe = Arc::new(Mutex::new(universe));
    let clock = tokio::spawn(let_time_pass(Arc::clone(&universe)));
    let inside = Arc::new(AtomicBool::new(false));
    let fences = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let locker = simulated(&universe, task);
            let (inside, fences) = (Arc::clone(&inside), Arc::clone(&fences));
            tokio::spawn(async move {
                for turn in 0..6 {
                    let guard = locker.acquire("a").await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "seed {seed}: two at once");
                    fences.lock().unwrap().push(guard.fence());
                    let work = tokio::time::sleep(millis(task * 700 + turn * 100));
                    tokio::select! {
                        () = work => {}
                        _ = guard.lost() => {}
                    }
                    inside.store(false, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    clock.abort();
    let fences = fences.lock().unwrap();
    assert!(fences.is_sorted_by(|one, next| one < next), "seed {seed}: {fences:?}");
    fences.len()
}

#[test]
fn the_client_itself_runs_in_a_simulated_world() {
    for seed in 0..40 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        assert_eq!(runtime.block_on(story(seed)), 24);
    }
}

/// Waits for a lock of nodes that are in quarantine for the first four seconds: the most attempts
/// that any of the waiters has made.
async fn wait_out_a_quarantine(seed: u64, waiters: u64, calls_in_quarantine: bool) -> u64 {
    let quarantine = Instant::from_millis(4_000);
    let node = |_| {
        let mut promises = Promises::new(Fence::ZERO, None);
        promises.begin_quarantine(quarantine, QuarantineReason::UncleanRestart);
        (promises, Lock::default(), Line::default())
    };
    let universe = Arc::new(Mutex::new(Universe {
        random: StdRng::seed_from_u64(seed),
        nodes: (0..NODES).map(node).collect(),
        clients: HashMap::new(),
        old_node: None,
        calls_in_quarantine,
        away: ([NODES; 2], Duration::MAX),
        start: tokio::time::Instant::now(),
    }));
    let clock = tokio::spawn(let_time_pass(Arc::clone(&universe)));
    let waits: Vec<_> = (0..waiters)
        .map(|number| {
            let locker = simulated(&universe, number);
            let counted = locker.clone();
            let wait = tokio::spawn(async move {
                let acquire = locker.acquire("a").ttl(Duration::from_secs(30));
                let guard = acquire.wait(Duration::from_secs(120)).await.unwrap();
                // Answers are lost here; the node takes the lease back all the same.
                let _ = guard.release().await;
            });
            (counted, wait)
        })
        .collect();
    tokio::time::sleep(millis(quarantine.as_millis())).await;
    let most = waits.iter().map(|(locker, _)| locker.stats().attempts).max().unwrap_or_default();
    for (_, wait) in waits {
        wait.await.unwrap();
    }
    clock.abort();
    assert!(universe.lock().unwrap().instant() > quarantine);
    most
}

#[test]
fn who_waits_for_nodes_in_quarantine_asks_seldom_and_gets_the_lock_when_it_ends() {
    // Where nodes call in vain, the pauses between attempts are all that keeps the pace.
    for (calls_in_quarantine, attempts_max) in [(false, 10), (true, 30)] {
        for seed in 0..20 {
            for waiters in [1, 8] {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
                let wait = wait_out_a_quarantine(seed, waiters, calls_in_quarantine);
                let attempts = runtime.block_on(wait);
                assert!(
                    attempts <= attempts_max,
                    "seed {seed}, {waiters}: {attempts} attempts, {calls_in_quarantine}"
                );
            }
        }
    }
}
