//! Connections between programs and nodes: streams of bytes that are late, held, lost and cut.
//!
//! Within a connection bytes keep their order, as TCP has it; between connections, and so between
//! nodes, anything may overtake. A request that is on its way when its connection breaks may arrive
//! all the same: such an acquire or repair is noted, for nobody can take it back. A program knows a
//! node by its address, which may lead to another node for a while.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockmod::client::{Dial, Opening, Stream};
use lockmod::engine::{Fencing, Mode};
use lockmod::wire::code::{self, Meaning};
use lockmod::wire::outcome::{AcquireReply, ExtendReply, RaiseReply, ReleaseReply};
use lockmod::wire::request::{Limits, Request};
use lockmod::wire::resp::{self, Reply};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::group::Feeds;
use crate::node::Node;
use crate::shadow::Shadow;

/// What becomes of bytes between a program and a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    #[default]
    Pass,
    /// They wait until it is over, then go on.
    Hold,
    /// They vanish, and nobody is told.
    Discard,
}

/// The way from one program to one address.
#[derive(Debug, Default)]
struct Way {
    requests: Flow,
    replies: Flow,
    refuses: bool,
    /// Added to what every message takes.
    slow: Duration,
    garbles_next: bool,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    side: Side,
    reader: AbortHandle,
    writer: AbortHandle,
    executor: AbortHandle,
}

/// The node's end of a connection.
#[derive(Clone, Debug)]
struct Side {
    way: (usize, usize),
    /// Where the address led when the connection was made.
    node: usize,
    id: u64,
    /// What the node writes, and when it arrives.
    replies: UnboundedSender<(Instant, Vec<u8>)>,
    is_broken: Arc<AtomicBool>,
}

/// Nodes, ways, and the chance that governs both.
#[derive(Debug)]
pub(crate) struct Universe {
    pub(crate) random: StdRng,
    /// All servers. Those of group g of n are numbers g, g + n, g + 2n and so on; without groups
    /// each is alone.
    pub(crate) nodes: Vec<Node>,
    pub(crate) groups: usize,
    /// The server of each group that is its master, for all that its clients are told.
    pub(crate) home: Vec<usize>,
    pub(crate) feeds: Feeds,
    /// Since when, and until when, nodes do not run.
    pub(crate) hung_until: Vec<Instant>,
    ways: Vec<Vec<Way>>,
    /// The node that each address leads to.
    pub(crate) leads_to: Vec<usize>,
    /// How many connections there have been.
    connections: u64,
    pub(crate) delay_ms: u64,
    /// The program that knows of no grants to tickets.
    old_program: Option<usize>,
    /// Of a hundred calls of nodes, how many are lost.
    lost_calls: u32,
    /// Requests on one connection overtake each other: a defect.
    overtakes: bool,
    /// Tokens whose leases nobody can be asked to have taken back.
    pub(crate) stranded: BTreeSet<Vec<u8>>,
    pub(crate) shadow: Shadow,
    /// Acquires and repairs that arrived after their connection had broken.
    pub(crate) late: u64,
    /// Requests that arrived at another node than they were for.
    pub(crate) misled: u64,
    /// What happened, in order: two runs of one seed must agree.
    pub(crate) trace: u64,
    began_at: Instant,
    pub(crate) requests: u64,
}

/// Shared by everybody; `changed` wakes whoever waits for a fault to be over.
#[derive(Debug)]
pub(crate) struct Net {
    universe: Mutex<Universe>,
    /// Not a channel of tokio's: those wake in an order of their own.
    changed: Notify,
}

impl Universe {
    /// Notes something for the comparison of two runs.
    fn note(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Tells the proof what a node has answered. `held_before`: the token held the lock there when
    /// the request came.
    fn show(
        &mut self,
        node: usize,
        (name, request): (&[u8], &Request<'_>),
        held_before: bool,
        reply: &Reply,
    ) {
        let group = self.group_of(node);
        match *request {
            Request::Acquire { token, ttl, mode, label, .. } => {
                let Ok(AcquireReply::Granted(fence)) = AcquireReply::read(reply) else { return };
                // A token that holds the lock is only told the fence of its lease. A lease that was
                // granted has stored that already. A repaired one has not: another may have had
                // the fence here.
                let stored = (!held_before).then(|| fence.get());
                self.shadow.asked((name, token), mode, label);
                self.shadow.vouched(group, (name, token), Some(ttl), stored);
                self.note_replaced(node);
            }
            // A repair stores nothing: another may have had the fence here.
            Request::Extend { token, ttl, .. } => {
                match ExtendReply::read(reply) {
                    Ok(ExtendReply::Extended) => {}
                    Ok(ExtendReply::Carried) if self.groups == 1 => {}
                    _ => return,
                }
                self.shadow.vouched(group, (name, token), Some(ttl), None);
                self.note_replaced(node);
            }
            // A writer whose fence is below the counter there has stored nothing: another may have.
            Request::Raise { token, fence } => {
                let Ok(RaiseReply::Raised(counter)) = RaiseReply::read(reply) else { return };
                if counter != fence && !self.shadow.is_reader(name, token) {
                    return;
                }
                self.shadow.vouched(group, (name, token), None, Some(fence.get()));
            }
            Request::Release { token, .. } => {
                if ReleaseReply::read(reply).is_err() {
                    return;
                }
                self.shadow.released(name, token);
            }
            Request::Fence | Request::Info => return,
        }
        self.judge(name);
    }

    /// Lets the proof look at a lock.
    fn judge(&mut self, name: &[u8]) {
        let views = (0..self.groups).map(|group| {
            // While nobody decides, all that a group has vouched for is forgotten, as far as the
            // proof is concerned.
            let mut deciding = self.servers_of(group).filter(|node| self.nodes[*node].decides());
            let view = deciding.next().and_then(|node| self.nodes[node].view(name));
            (view, deciding.next().is_some())
        });
        let (views, doubled): (Vec<_>, Vec<_>) = views.unzip();
        if doubled.contains(&true) {
            self.shadow.complain(name, "two servers of a group have authority");
        }
        self.shadow.judge(name, views);
    }

    /// Notes whose lease nobody may be able to take back any more. `is_late`: the request has
    /// arrived after its connection had broken.
    fn note_stranded(&mut self, side: &Side, request: &Request<'_>, reply: &Reply) {
        let is_late = side.is_broken.load(Ordering::Relaxed);
        let is_misled = self.group_of(side.node) != side.way.1;
        match request {
            // What was to be done at one node was done at another.
            Request::Acquire { token, .. }
            | Request::Extend { token, .. }
            | Request::Release { token, .. }
                if is_misled =>
            {
                self.stranded.insert(token.to_vec());
                self.misled += 1;
            }
            // Both may begin a lease, behind whose back the release went another way.
            Request::Acquire { token, .. }
            | Request::Extend { token, fencing: Fencing::Repair { .. }, .. }
                if is_late =>
            {
                self.stranded.insert(token.to_vec());
                self.late += 1;
            }
            // A node that does not let the token go has been asked, and has answered; one that puts
            // it off is asked again.
            Request::Release { token, .. } => {
                if let Reply::Error(error) = reply
                    && code::meaning_of(error) != Meaning::Later
                {
                    self.stranded.insert(token.to_vec());
                }
            }
            Request::Acquire { .. }
            | Request::Extend { .. }
            | Request::Raise { .. }
            | Request::Fence
            | Request::Info => {}
        }
    }

    fn delay(&mut self, way: (usize, usize)) -> Duration {
        let slow = self.ways[way.0][way.1].slow;
        // Now and then something takes far longer than is waited for.
        let most = if self.random.random_ratio(1, 100) { 300 } else { self.delay_ms };
        slow + Duration::from_micros(self.random.random_range(0..=most * 1_000))
    }
}

impl Net {
    pub(crate) fn new(
        seed: u64,
        (programs, old_program): (usize, Option<usize>),
        (nodes, groups): (Vec<Node>, usize),
        (delay_ms, lost_calls): (u64, u32),
        overtakes: bool,
    ) -> Arc<Net> {
        let ways = (0..programs).map(|_| (0..groups).map(|_| Way::default()).collect()).collect();
        let universe = Universe {
            random: StdRng::seed_from_u64(seed ^ 0x006e_6574),
            hung_until: vec![Instant::now(); nodes.len()],
            shadow: Shadow::new(groups),
            leads_to: (0..groups).collect(),
            nodes,
            groups,
            home: (0..groups).collect(),
            feeds: Feeds::default(),
            ways,
            connections: 0,
            delay_ms,
            old_program,
            lost_calls,
            overtakes,
            stranded: BTreeSet::new(),
            late: 0,
            misled: 0,
            began_at: Instant::now(),
            trace: 0xcbf2_9ce4_8422_2325,
            requests: 0,
        };
        Arc::new(Net { universe: Mutex::new(universe), changed: Notify::new() })
    }

    pub(crate) fn universe(&self) -> MutexGuard<'_, Universe> {
        self.universe.lock().expect("one thread, which does not go on after a panic")
    }

    /// Changes something, and wakes whoever waits.
    pub(crate) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Universe) -> T) -> T {
        let outcome = {
            let mut universe = self.universe();
            let outcome = change(&mut universe);
            (0..universe.nodes.len()).for_each(|node| self.attend(&mut universe, node));
            outcome
        };
        self.changed.notify_waiters();
        outcome
    }

    /// Sets what becomes of the bytes on a way.
    pub(crate) fn set_flow(
        self: &Arc<Self>,
        (program, node): (usize, usize),
        requests: Flow,
        replies: Flow,
    ) {
        self.change(|universe| {
            let way = &mut universe.ways[program][node];
            (way.requests, way.replies) = (requests, replies);
        });
    }

    pub(crate) fn set_refuses(self: &Arc<Self>, (program, node): (usize, usize), refuses: bool) {
        self.change(|universe| universe.ways[program][node].refuses = refuses);
        if refuses {
            self.cut((program, node));
        }
    }

    pub(crate) fn set_slow(self: &Arc<Self>, (program, node): (usize, usize), slow: Duration) {
        self.change(|universe| universe.ways[program][node].slow = slow);
    }

    /// The next reply on this way is nonsense.
    pub(crate) fn garble_next(self: &Arc<Self>, (program, node): (usize, usize)) {
        self.change(|universe| universe.ways[program][node].garbles_next = true);
    }

    /// Breaks the connections of a way. What is on its way to the node arrives, or does not.
    pub(crate) fn cut(self: &Arc<Self>, (program, node): (usize, usize)) {
        self.change(|universe| {
            let connections = std::mem::take(&mut universe.ways[program][node].connections);
            for connection in connections {
                connection.side.is_broken.store(true, Ordering::Relaxed);
                connection.reader.abort();
                connection.writer.abort();
                if universe.random.random_bool(0.5) {
                    connection.executor.abort();
                    // A node may not be told that somebody has gone.
                    if universe.random.random_bool(0.8) {
                        universe.nodes[connection.side.node].hang_up(connection.side.id);
                    }
                }
            }
        });
    }

    /// A node's process is gone, and with it what was on its way to it. Where `silent`, nobody
    /// tells the other side.
    pub(crate) fn drop_connections(self: &Arc<Self>, node: usize, silent: bool) {
        self.change(|universe| {
            for way in universe.ways.iter_mut().flatten() {
                let of_node = |connection: &mut Connection| connection.side.node == node;
                for connection in way.connections.extract_if(.., of_node) {
                    connection.side.is_broken.store(true, Ordering::Relaxed);
                    connection.executor.abort();
                    if !silent {
                        connection.reader.abort();
                        connection.writer.abort();
                    }
                }
            }
        });
    }

    /// New connections to this address lead to this node from now on; the others break.
    pub(crate) fn lead(self: &Arc<Self>, address: usize, node: usize) {
        let programs = self.change(|universe| {
            universe.leads_to[address] = universe.home[node];
            universe.ways.len()
        });
        (0..programs).for_each(|program| self.cut((program, address)));
    }

    /// Ends all trouble on all ways.
    pub(crate) fn heal(self: &Arc<Self>) {
        let mut cut = Vec::new();
        self.change(|universe| {
            for (program, ways) in universe.ways.iter_mut().enumerate() {
                for (address, way) in ways.iter_mut().enumerate() {
                    let home = universe.home[address];
                    let is_elsewhere = |one: &Connection| one.side.node != home;
                    let is_misled = way.connections.iter().any(is_elsewhere)
                        || universe.leads_to[address] != home;
                    let flows = [way.requests, way.replies];
                    if is_misled || flows.contains(&Flow::Discard) {
                        cut.push((program, address));
                    }
                    (way.requests, way.replies) = (Flow::Pass, Flow::Pass);
                    (way.refuses, way.slow) = (false, Duration::ZERO);
                }
            }
            universe.leads_to.clone_from(&universe.home);
        });
        for way in cut {
            self.cut(way);
        }
    }

    pub(crate) async fn wait_until<T>(
        &self,
        mut probe: impl FnMut(&mut Universe) -> Option<T>,
    ) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = probe(&mut self.universe()) {
                return found;
            }
            changed.await;
        }
    }

    async fn flow(&self, way: (usize, usize), of: fn(&Way) -> Flow) -> Flow {
        self.wait_until(|universe| {
            let flow = of(&universe.ways[way.0][way.1]);
            (flow != Flow::Hold).then_some(flow)
        })
        .await
    }

    pub(crate) async fn wait_while_hung(&self, node: usize) {
        loop {
            let until = self.universe().hung_until[node];
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    async fn connect(self: Arc<Self>, way: (usize, usize)) -> io::Result<Box<dyn Stream>> {
        let delay = self.universe().delay(way);
        tokio::time::sleep(delay).await;
        let flow = self.flow(way, |way| way.requests.max(way.replies)).await;
        if flow == Flow::Discard {
            // Nobody answers, ever: whoever connects has to lose patience.
            std::future::pending::<()>().await;
        }
        let (node, refuses) = {
            let universe = self.universe();
            let node = universe.leads_to[way.1];
            (node, universe.ways[way.0][way.1].refuses || !universe.nodes[node].is_up)
        };
        if refuses {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, server) = duplex(1 << 16);
        self.accept(way, node, server);
        Ok(Box::new(client))
    }

    fn accept(self: &Arc<Self>, way: (usize, usize), node: usize, server: DuplexStream) {
        let (reading, writing) = split(server);
        let (requests, due) = unbounded_channel();
        let (replies, answered) = unbounded_channel();
        let is_broken = Arc::new(AtomicBool::new(false));
        let id = {
            let mut universe = self.universe();
            universe.connections += 1;
            universe.connections
        };
        let side = Side { way, node, id, replies, is_broken };
        let reader = tokio::spawn(Arc::clone(self).read(side.clone(), reading, requests));
        let executor = tokio::spawn(Arc::clone(self).execute(side.clone(), due));
        let writer = tokio::spawn(Arc::clone(self).write(way, writing, answered));
        let connection = Connection {
            side,
            reader: reader.abort_handle(),
            writer: writer.abort_handle(),
            executor: executor.abort_handle(),
        };
        let connections = &mut self.universe().ways[way.0][way.1].connections;
        connections.retain(|connection| !connection.executor.is_finished());
        connections.push(connection);
    }

    /// Reads what the program writes, and says when it arrives.
    async fn read(
        self: Arc<Self>,
        side: Side,
        mut stream: ReadHalf<DuplexStream>,
        requests: UnboundedSender<(Instant, Vec<Vec<u8>>)>,
    ) {
        let way = side.way;
        let mut unread = Vec::new();
        let mut line_free_at = Instant::now();
        while let Ok(1..) = stream.read_buf(&mut unread).await {
            while let Some((args, length)) = resp::unpack(&unread).expect("a client writes RESP") {
                unread.drain(..length);
                let arrives_at = {
                    let mut universe = self.universe();
                    let arrives_at = Instant::now() + universe.delay(way);
                    if universe.overtakes { arrives_at } else { arrives_at.max(line_free_at) }
                };
                line_free_at = arrives_at;
                let _ = requests.send((arrives_at, args));
            }
        }
        side.is_broken.store(true, Ordering::Relaxed);
    }

    /// Lets the node carry out what arrives, and tells it when nothing more will.
    async fn execute(
        self: Arc<Self>,
        side: Side,
        mut due: UnboundedReceiver<(Instant, Vec<Vec<u8>>)>,
    ) {
        let (way, node) = (side.way, side.node);
        let run = self.universe().nodes[node].run;
        // Where a part of a stream is lost, nothing behind it arrives either.
        let mut is_lost = false;
        while let Some((arrives_at, args)) = due.recv().await {
            if self.universe().overtakes {
                let (net, side) = (Arc::clone(&self), side.clone());
                tokio::spawn(async move {
                    sleep_until(arrives_at).await;
                    net.carry_out(&side, run, &args);
                });
                continue;
            }
            sleep_until(arrives_at).await;
            is_lost |= self.flow(way, |way| way.requests).await == Flow::Discard;
            if is_lost {
                continue;
            }
            self.wait_while_hung(node).await;
            self.carry_out(&side, run, &args);
        }
        if is_lost {
            return;
        }
        self.wait_while_hung(node).await;
        self.tend(node, run, |node| node.hang_up(side.id));
    }

    /// Does something to a node that runs, unless it has been started anew.
    fn tend(self: &Arc<Self>, node: usize, run: u64, work: impl FnOnce(&mut Node)) {
        let mut universe = self.universe();
        let tended = &mut universe.nodes[node];
        if tended.is_up && tended.run == run {
            work(tended);
            self.attend(&mut universe, node);
        }
    }

    /// Sends out whom a node calls, and sees to it that it looks again when something is due.
    pub(crate) fn attend(self: &Arc<Self>, universe: &mut Universe, number: usize) {
        universe.feed(number);
        let group = universe.group_of(number);
        for (name, grantee, fence) in std::mem::take(&mut universe.nodes[number].callers.granted) {
            let asked = (name.as_slice(), &*grantee.token);
            universe.shadow.asked(asked, Mode::Exclusive, &grantee.label);
            universe.shadow.vouched(group, asked, Some(grantee.ttl), Some(fence.get()));
            universe.note_replaced(number);
            universe.judge(&name);
        }
        for (connection, bytes) in universe.nodes[number].callers.calls() {
            if universe.random.random_range(0..100) < universe.lost_calls {
                continue;
            }
            universe.note(&bytes);
            let connections = universe.ways.iter().flatten().flat_map(|way| &way.connections);
            let called = connections.map(|other| &other.side).find(|side| side.id == connection);
            if let Some(side) = called.cloned() {
                let arrives_at = Instant::now() + universe.delay(side.way);
                let _ = side.replies.send((arrives_at, bytes.clone()));
            }
        }
        let node = &mut universe.nodes[number];
        if !node.is_up {
            return;
        }
        if let (run, Some(length)) = (node.run, node.alarm()) {
            let net = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(length).await;
                net.wait_while_hung(number).await;
                net.tend(number, run, Node::ring);
            });
        }
    }

    fn carry_out(self: &Arc<Self>, side: &Side, run: u64, args: &[Vec<u8>]) {
        let (way, number) = (side.way, side.node);
        let mut universe = self.universe();
        let is_asked_anew = universe.old_program != Some(way.0);
        let node = &mut universe.nodes[number];
        if !node.is_up || node.run != run {
            return;
        }
        node.callers.is_asked_anew = is_asked_anew;
        let slices: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let request = Request::parse(&slices, Limits::FACTS).and_then(Result::ok);
        let held_before = matches!(request, Some((name, Request::Acquire { token, .. }))
            if node.is_held_by(name, token));
        let reply = node.serve(side.id, &slices);
        universe.requests += 1;
        let at = universe.began_at.elapsed().as_nanos();
        universe.note(&at.to_le_bytes());
        for arg in &slices {
            universe.note(arg);
        }
        universe.note(&reply);
        if let Some((name, request)) = request
            && let Ok(Some((reply, _))) = resp::read(&reply)
        {
            universe.show(number, (name, &request), held_before, &reply);
            universe.note_stranded(side, &request, &reply);
        }
        // To a subscriber itself, what is published goes before the reply.
        self.attend(&mut universe, number);
        let answered_at = Instant::now() + universe.delay(way);
        let garbles = &mut universe.ways[way.0][way.1].garbles_next;
        let reply = if std::mem::take(garbles) { b"what?\r\n".to_vec() } else { reply };
        let _ = side.replies.send((answered_at, reply));
    }

    async fn write(
        self: Arc<Self>,
        way: (usize, usize),
        mut stream: WriteHalf<DuplexStream>,
        mut answered: UnboundedReceiver<(Instant, Vec<u8>)>,
    ) {
        let mut is_lost = false;
        while let Some((arrives_at, reply)) = answered.recv().await {
            sleep_until(arrives_at).await;
            is_lost |= self.flow(way, |way| way.replies).await == Flow::Discard;
            if is_lost {
                continue;
            }
            if stream.write_all(&reply).await.is_err() {
                return;
            }
        }
    }
}

impl Flow {
    fn max(self, other: Flow) -> Flow {
        if self == Flow::Pass { other } else { self }
    }
}

/// How a program reaches an address.
#[derive(Debug)]
pub(crate) struct Dialler {
    pub(crate) net: Arc<Net>,
    pub(crate) way: (usize, usize),
}

impl Dial for Dialler {
    fn open(&self) -> Opening {
        Box::pin(Arc::clone(&self.net).connect(self.way))
    }

    fn jitter(&self) -> f64 {
        self.net.universe().random.random_range(0.0..=1.0)
    }
}
