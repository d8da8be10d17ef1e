//! Connections between programs and nodes: byte streams that are late, held, lost and cut.
//!
//! Within a connection bytes keep their order, as in TCP; between connections, and so between
//! nodes, anything may overtake. A request in flight when its connection breaks may still arrive:
//! such an acquire or repair is noted, because no client can undo it. A program knows a node by its
//! address, which may lead to another node for a while.

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

/// What happens to bytes between a program and a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    #[default]
    Pass,
    /// They wait until the fault is over, and are then delivered.
    Hold,
    /// They vanish silently.
    Discard,
}

/// The path from one program to one address.
#[derive(Debug, Default)]
struct Way {
    requests: Flow,
    replies: Flow,
    refuses: bool,
    /// Added to the delay of every message.
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
    /// The node's output, with its time of arrival.
    replies: UnboundedSender<(Instant, Vec<u8>)>,
    is_broken: Arc<AtomicBool>,
}

/// Nodes, paths, and the randomness that governs both.
#[derive(Debug)]
pub(crate) struct Universe {
    pub(crate) random: StdRng,
    /// All servers. Those of group g of n are numbers g, g + n, g + 2n and so on; without groups
    /// each is alone.
    pub(crate) nodes: Vec<Node>,
    pub(crate) groups: usize,
    /// The server of each group that its clients take for its master.
    pub(crate) home: Vec<usize>,
    pub(crate) feeds: Feeds,
    /// Until when each node is hung.
    pub(crate) hung_until: Vec<Instant>,
    ways: Vec<Vec<Way>>,
    /// The node that each address leads to.
    pub(crate) leads_to: Vec<usize>,
    /// The number of connections so far.
    connections: u64,
    pub(crate) delay_ms: u64,
    /// The program that does not support grants to tickets.
    old_program: Option<usize>,
    /// How many out of a hundred calls from nodes are lost.
    lost_calls: u32,
    /// Requests on one connection overtake each other: a defect.
    overtakes: bool,
    /// Tokens whose leases may be left behind through no fault of their client.
    pub(crate) stranded: BTreeSet<Vec<u8>>,
    pub(crate) shadow: Shadow,
    /// Acquires and repairs that arrived after their connection had broken.
    pub(crate) late: u64,
    /// Requests that arrived at a node other than the intended one.
    pub(crate) misled: u64,
    /// A hash of all events in order: two runs of one seed must agree.
    pub(crate) trace: u64,
    began_at: Instant,
    pub(crate) requests: u64,
}

/// Shared by all tasks; `changed` wakes those that wait for a fault to end.
#[derive(Debug)]
pub(crate) struct Net {
    universe: Mutex<Universe>,
    /// Not a tokio channel: those wake in an order of their own.
    changed: Notify,
}

impl Universe {
    /// Notes something for the comparison of two runs.
    fn note(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Passes a node's reply to the proof. `held_before`: the token held the lock there when the
    /// request arrived.
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
                // A token that already holds the lock only receives the fence of its lease. A
                // granted lease has stored that fence already. A repaired lease has not: another
                // token may have had the fence here.
                let stored = (!held_before).then(|| fence.get());
                self.shadow.asked((name, token), mode, label);
                if !held_before {
                    self.shadow.granted(group, (name, token));
                }
                self.shadow.vouched(group, (name, token), Some(ttl), stored);
                self.note_replaced(node);
            }
            // A repair stores nothing: another token may have had the fence here.
            Request::Extend { token, ttl, .. } => {
                match ExtendReply::read(reply) {
                    Ok(ExtendReply::Extended) => {}
                    Ok(ExtendReply::Carried) if self.groups == 1 => {}
                    _ => return,
                }
                self.shadow.vouched(group, (name, token), Some(ttl), None);
                self.note_replaced(node);
            }
            // A writer whose fence is below the counter has stored nothing: another token may have.
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

    /// Checks a lock against the proof.
    fn judge(&mut self, name: &[u8]) {
        let views = (0..self.groups).map(|group| {
            // While no server of a group decides, everything that the group has vouched for counts
            // as forgotten in the proof.
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

    /// An operator deletes a lock at all masters.
    pub(crate) fn delete(&mut self, name: &[u8]) {
        let records = |node: &Node| node.is_master() && node.can_record();
        let mut groups = 0..self.groups;
        let is_recorded =
            groups.all(|group| self.servers_of(group).any(|server| records(&self.nodes[server])));
        let masters = self.nodes.iter_mut().filter(|node| node.is_master());
        masters.for_each(|node| node.delete(name));
        self.shadow.deleted(name, is_recorded);
    }

    /// Notes a token whose lease its client may be unable to undo. `is_late`: the request has
    /// arrived after its connection broke.
    fn note_stranded(&mut self, side: &Side, request: &Request<'_>, reply: &Reply) {
        let is_late = side.is_broken.load(Ordering::Relaxed);
        let is_misled = self.group_of(side.node) != side.way.1;
        match request {
            // A request for one node was executed at another.
            Request::Acquire { token, .. }
            | Request::Extend { token, .. }
            | Request::Release { token, .. }
                if is_misled =>
            {
                self.stranded.insert(token.to_vec());
                self.misled += 1;
            }
            // Both may begin a lease after its release has arrived over another connection.
            Request::Acquire { token, .. }
            | Request::Extend { token, fencing: Fencing::Repair { .. }, .. }
                if is_late =>
            {
                self.stranded.insert(token.to_vec());
                self.late += 1;
            }
            // A client does not repeat a release that a node refused, but does repeat one that the
            // node put off.
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
        // Now and then a delay is far longer than the timeout.
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

    /// Applies a change, and wakes the waiting tasks.
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

    /// Sets what happens to the bytes on a path.
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

    /// Replaces the next reply on this path with nonsense.
    pub(crate) fn garble_next(self: &Arc<Self>, (program, node): (usize, usize)) {
        self.change(|universe| universe.ways[program][node].garbles_next = true);
    }

    /// Breaks the connections of a path. Requests in flight may still arrive.
    pub(crate) fn cut(self: &Arc<Self>, (program, node): (usize, usize)) {
        self.change(|universe| {
            let connections = std::mem::take(&mut universe.ways[program][node].connections);
            for connection in connections {
                connection.side.is_broken.store(true, Ordering::Relaxed);
                connection.reader.abort();
                connection.writer.abort();
                if universe.random.random_bool(0.5) {
                    connection.executor.abort();
                    // The node may not learn that the connection is gone.
                    if universe.random.random_bool(0.8) {
                        universe.nodes[connection.side.node].hang_up(connection.side.id);
                    }
                }
            }
        });
    }

    /// Drops a node's connections when its process is gone, with all requests in flight. If
    /// `silent`, the other side does not learn of it.
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

    /// Directs new connections to this address to this node from now on; existing ones break.
    pub(crate) fn lead(self: &Arc<Self>, address: usize, node: usize) {
        let programs = self.change(|universe| {
            universe.leads_to[address] = universe.home[node];
            universe.ways.len()
        });
        (0..programs).for_each(|program| self.cut((program, address)));
    }

    /// Ends all faults on all paths.
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
            // No reply ever comes: the connecting task must time out.
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

    /// Reads the program's output and schedules its arrival.
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

    /// Lets the node execute the requests that arrive, and notifies it when the connection ends.
    async fn execute(
        self: Arc<Self>,
        side: Side,
        mut due: UnboundedReceiver<(Instant, Vec<Vec<u8>>)>,
    ) {
        let (way, node) = (side.way, side.node);
        let run = self.universe().nodes[node].run;
        // If a part of a stream is lost, nothing after it arrives either.
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

    /// Does this work on a running node, unless it has restarted since.
    fn tend(self: &Arc<Self>, node: usize, run: u64, work: impl FnOnce(&mut Node)) {
        let mut universe = self.universe();
        let tended = &mut universe.nodes[node];
        if tended.is_up && tended.run == run {
            work(tended);
            self.attend(&mut universe, node);
        }
    }

    /// Sends a node's calls, and sets a timer for its next alarm.
    pub(crate) fn attend(self: &Arc<Self>, universe: &mut Universe, number: usize) {
        universe.feed(number);
        let group = universe.group_of(number);
        for (name, grantee, fence) in std::mem::take(&mut universe.nodes[number].callers.granted) {
            let asked = (name.as_slice(), &*grantee.token);
            universe.shadow.asked(asked, Mode::Exclusive, &grantee.label);
            universe.shadow.granted(group, asked);
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
        // A subscriber receives published messages before its own reply.
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

/// A program's connector to an address.
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
