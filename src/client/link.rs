//! One node's connection: a line of commands, and the task that drives it.
//!
//! Commands enter the line in the order in which they are sent, without waiting; one task writes
//! whatever is in line with one system call and hands out the replies in order. When the
//! connection breaks, whoever waits is told that the outcome is unknown, and the task connects
//! again. A release is different: it stays in line until the node has answered it (see [`Outbox`]),
//! and where the node puts it off it is sent again until the lease has ended. So neither a broken
//! connection nor a node that hangs or is busy leaves anything behind on a node that lives.
//!
//! What the node says without being asked, its wakes, arrives on the same connection.
//!
//! A node may be the master of a group under Sentinel. Then each connection begins with the
//! question who that is, and ends as well when it is another.
//!
//! The `redis` crate's multiplexed connection is not used for this, because it skips commands whose
//! caller has gone (a release that nobody waits for), packs each command once per node, and makes
//! callers wait for room in the line, so that a destructor could not use it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::connect::{Address, Dial, Login, Stream, next_reply};
use super::destination::{Arrived, Destination};
use super::inbox::{NoReply, ReplyTo, SAME_SERVER, ServerId};
use super::outbox::{Item, Outbox};
use super::packet::Packet;
use super::printable::plain;
use super::sentinel::SwitchWatch;
use super::wakes::Wakes;
use crate::wire::code::{self, Meaning};
use crate::wire::resp::{Reader, Reply};

/// While this many bytes are unwritten, commands stay in line, where they can still be withdrawn.
const UNWRITTEN_MAX: usize = 1 << 16;
/// A release that a node has put off (`BUSY`, `LOADING`) is sent again after this long.
const PUT_OFF: Duration = Duration::from_millis(100);
/// The first pause before connecting again, doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause before connecting again.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A connection on which nothing was answered for this many times the caller's patience is given
/// up: the network may have lost it without a word.
const STALL_FACTOR: u32 = 4;
/// A stall is never called earlier than this.
const STALL_MIN: Duration = Duration::from_secs(2);

/// Who answers on each connection: two URLs may lead to one server by other names, and a server
/// must not have two votes.
#[derive(Debug)]
struct Answering(Mutex<Vec<Option<ServerId>>>);

impl Answering {
    fn new(nodes: usize) -> Answering {
        Answering(Mutex::new(vec![None; nodes]))
    }

    /// Notes who answers for `node`; false if it is who answers for another.
    fn note(&self, node: usize, server: Option<ServerId>) -> bool {
        // Nothing panics while the lock is held, so the list is whole even if it is poisoned.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[node] = None;
        if server.is_some() && all.contains(&server) {
            return false;
        }
        all[node] = server;
        true
    }
}

/// The connections to all nodes, in their order. For a world of one's own: [`World::nodes`] and
/// [`World::send`] may be these, and [`World::wakes`] too. Times in here are tokio's.
///
/// [`World::nodes`]: super::World::nodes
/// [`World::send`]: super::World::send
/// [`World::wakes`]: super::World::wakes
#[derive(Debug)]
pub struct Links {
    names: Vec<Arc<str>>,
    links: Vec<Link>,
    wakes: Arc<Wakes>,
}

impl Links {
    /// Connections to nodes that are reached in a way of their own. Nodes publish for this client
    /// on `channel`; `patience` is how long an answer is waited for; `spawn` is given a task per
    /// node, which ends when this is dropped and everything in line is done.
    pub fn dialled(
        nodes: impl IntoIterator<Item = (Arc<str>, Arc<dyn Dial>)>,
        channel: &[u8],
        patience: Duration,
        spawn: impl FnMut(BoxFuture<'static, ()>),
    ) -> Links {
        let destination = |(name, dial)| Destination::Server(Address::dialled(name, dial));
        Links::start(nodes.into_iter().map(destination).collect(), channel, patience, spawn)
    }

    /// Begins to connect to `destinations`.
    pub(super) fn start(
        destinations: Vec<Destination>,
        channel: &[u8],
        patience: Duration,
        mut spawn: impl FnMut(BoxFuture<'static, ()>),
    ) -> Links {
        let count = destinations.len();
        let names = destinations.iter().map(|place| Arc::clone(place.name())).collect();
        let answering = Arc::new(Answering::new(count));
        let wakes = Arc::new(Wakes::new(channel, count));
        let start = |(node, destination)| {
            let me = (node, Arc::clone(&answering));
            let (link, driving) = Link::new(destination, patience, me, Arc::clone(&wakes));
            spawn(Box::pin(driving));
            link
        };
        let links = destinations.into_iter().enumerate().map(start).collect();
        Links { names, links, wakes }
    }

    /// Where what the nodes publish on the channel arrives.
    pub const fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }

    /// The names of the nodes, for people.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Where the master of the node's group is, if it has one and there is a connection.
    pub(super) fn master(&self, node: usize) -> Option<Arc<str>> {
        self.links[node].0.line().master.clone()
    }

    /// Whether a release is still to be carried out by the node, for all that is known.
    pub fn owes(&self, node: usize) -> bool {
        self.links[node].0.line().owes()
    }

    /// Puts a command into the node's line; never waits.
    pub fn send(&self, node: usize, packet: &Packet, reply_to: Option<ReplyTo>) {
        self.links[node].send(packet, reply_to);
    }
}

/// The handle of one node's connection. Dropping it lets the task finish what is in line.
#[derive(Debug)]
struct Link(Arc<LinkState>);

#[derive(Debug)]
struct LinkState {
    line: Mutex<Outbox>,
    node: usize,
    answering: Arc<Answering>,
    wakes: Arc<Wakes>,
}

impl LinkState {
    fn line(&self) -> MutexGuard<'_, Outbox> {
        // Nothing panics while the lock is held, so the line is whole even if it is poisoned.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// A link to `destination`, and the task that drives it. `patience` is how long the caller
    /// waits for an answer.
    fn new(
        destination: Destination,
        patience: Duration,
        (node, answering): (usize, Arc<Answering>),
        wakes: Arc<Wakes>,
    ) -> (Link, impl Future<Output = ()> + Send + use<>) {
        let shared = Arc::new(LinkState { line: Mutex::default(), node, answering, wakes });
        let driving = drive(Driver(Arc::clone(&shared)), destination, patience);
        (Link(shared), driving)
    }

    /// Puts a command into the line; never waits.
    fn send(&self, packet: &Packet, reply_to: Option<ReplyTo>) {
        let mut line = self.0.line();
        if let Err(refused) = line.take(packet, reply_to) {
            drop(line);
            let (failure, reply_to) = *refused;
            return reply_to.map_or((), |reply_to| reply_to.deliver(Err(failure)));
        }
        let driver = line.driver.take();
        drop(line);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut line = self.0.line();
        line.is_closed = true;
        if let Some(driver) = line.driver.take() {
            driver.wake();
        }
    }
}

/// Drives a connection, as long as it is there: the runtime that it lives on may end before the
/// locker does.
struct Driver(Arc<LinkState>);

impl Drop for Driver {
    fn drop(&mut self) {
        let text = "the runtime in which this locker was built has ended: build it in one that \
                    lives as long as it";
        self.0.line().end(&NoReply::Refused(text.into()));
    }
}

/// Keeps the node connected until the link is dropped and its line is empty.
async fn drive(driver: Driver, destination: Destination, patience: Duration) {
    let shared = &*driver.0;
    let stall = STALL_MIN.max(patience.saturating_mul(STALL_FACTOR));
    let mut pause = PAUSE_MIN;
    loop {
        match connect(shared, &destination, stall).await {
            Ok(Arrived { login, master }) => {
                let (master, watch) = master.unzip();
                {
                    let mut line = shared.line();
                    (line.down, line.master) = (None, master);
                }
                shared.wakes.connected(shared.node, login.hears);
                let began_at = Instant::now();
                let connection = Connection::new(login, watch, stall);
                let Some(was_useful) = serve(shared, connection).await else { return };
                // One that breaks as soon as it is there is no better than none.
                if was_useful || began_at.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                } else {
                    sleep(jittered(pause, destination.jitter())).await;
                    pause = PAUSE_MAX.min(pause * 2);
                }
            }
            Err(failure) => {
                let is_closed = {
                    let mut line = shared.line();
                    line.fail(&failure);
                    line.is_closed
                };
                if is_closed {
                    return;
                }
                sleep(jittered(pause, destination.jitter())).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
        }
    }
}

/// A connection to a server that no other node is.
async fn connect(
    shared: &LinkState,
    destination: &Destination,
    stall: Duration,
) -> Result<Arrived, NoReply> {
    // Several round trips: over a slow network far more than one answer takes.
    let arrived = destination.connect(shared.wakes.channel(), stall).await?;
    if !shared.answering.note(shared.node, arrived.login.server) {
        return Err(NoReply::Unreachable(SAME_SERVER.into()));
    }
    Ok(arrived)
}

/// Writes and reads until the connection breaks: whether anything was answered on it. `None` if the
/// link is dropped and its line is empty.
async fn serve(shared: &LinkState, mut connection: Connection) -> Option<bool> {
    let failure = poll_fn(|ctx| connection.poll(ctx, shared)).await;
    shared.answering.note(shared.node, None);
    let failure = failure?;
    connection.put_off.append(&mut connection.sent);
    shared.line().break_off(connection.put_off, &failure);
    shared.wakes.broken(shared.node);
    Some(connection.was_useful)
}

/// Between half of `pause` and all of it, so that clients do not return in step.
fn jittered(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.5 + random / 2.0)
}

struct Connection {
    stream: Box<dyn Stream>,
    /// Who answers, as far as it is known.
    server: Option<ServerId>,
    /// Of the master of a group: what tells when it is another.
    watch: Option<SwitchWatch>,
    /// Whether a command was answered.
    was_useful: bool,
    unwritten: Vec<u8>,
    written: usize,
    reader: Reader,
    sent: VecDeque<Item>,
    taken: VecDeque<Item>,
    stall: Duration,
    /// When a stall is due, while something is unanswered.
    stalled: Pin<Box<Sleep>>,
    is_waiting: bool,
    /// Releases that the node will carry out later.
    put_off: VecDeque<Item>,
    /// When they are sent again, while there are some.
    again: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(login: Login, watch: Option<SwitchWatch>, stall: Duration) -> Connection {
        Connection {
            stream: login.stream,
            server: login.server,
            watch,
            was_useful: false,
            unwritten: Vec::with_capacity(4096),
            written: 0,
            reader: Reader::default(),
            sent: VecDeque::new(),
            taken: VecDeque::new(),
            stall,
            stalled: Box::pin(sleep(stall)),
            is_waiting: false,
            put_off: VecDeque::new(),
            again: Box::pin(sleep(PUT_OFF)),
        }
    }

    /// Writes and reads as far as possible. Ready with the failure when the connection broke, with
    /// nothing when the link was dropped and everything is answered.
    fn poll(&mut self, ctx: &mut Context<'_>, shared: &LinkState) -> Poll<Option<NoReply>> {
        if self.watch.as_mut().is_some_and(|watch| watch.poll(ctx).is_ready()) {
            return Poll::Ready(Some(NoReply::Unreachable("its group has another master".into())));
        }
        loop {
            // Reading and writing always advance together: a server that cannot write its replies
            // reads no requests.
            let has_more = self.take(ctx, shared);
            let io = match self.write(ctx) {
                Ok(()) => self.read(ctx, shared),
                Err(error) => Err(error),
            };
            match io {
                Ok(false) => {}
                Ok(true) => continue,
                Err(failure) => return Poll::Ready(Some(failure)),
            }
            if has_more.is_none() && self.sent.is_empty() && self.unwritten.is_empty() {
                return Poll::Ready(None);
            }
            // A backlog is taken up again when the socket is writable.
            let is_stuck = has_more != Some(true) || !self.unwritten.is_empty();
            if is_stuck && !self.send_again(ctx, shared) {
                break;
            }
        }
        self.watch_for_stall(ctx)
    }

    /// Puts into the line what the node has put off; false if it is not time, or there is nothing.
    fn send_again(&mut self, ctx: &mut Context<'_>, shared: &LinkState) -> bool {
        if self.put_off.is_empty() || self.again.as_mut().poll(ctx).is_pending() {
            return false;
        }
        let mut line = shared.line();
        line.owed_unanswered = line.owed_unanswered.saturating_sub(self.put_off.len());
        line.items.append(&mut self.put_off);
        true
    }

    /// Moves commands out of the line; whether some are left there. `None`: the line is closed and
    /// empty.
    fn take(&mut self, ctx: &mut Context<'_>, shared: &LinkState) -> Option<bool> {
        let mut line = shared.line();
        if !line.driver.as_ref().is_some_and(|driver| driver.will_wake(ctx.waker())) {
            line.driver = Some(ctx.waker().clone());
        }
        if self.unwritten.len() < UNWRITTEN_MAX {
            std::mem::swap(&mut line.items, &mut self.taken);
        }
        line.unanswered = self.sent.len() + self.taken.len();
        line.owed_unanswered += self.taken.iter().filter(|item| item.is_owed).count();
        let has_more = !line.items.is_empty();
        let is_over = line.is_closed && !has_more && self.taken.is_empty();
        drop(line);
        for item in self.taken.drain(..) {
            if !item.is_idle() {
                self.unwritten.extend_from_slice(item.packet.bytes());
                self.sent.push_back(item);
            }
        }
        if is_over { None } else { Some(has_more) }
    }

    fn write(&mut self, ctx: &mut Context<'_>) -> Result<(), NoReply> {
        while self.written < self.unwritten.len() {
            let bytes = &self.unwritten[self.written..];
            match Pin::new(&mut self.stream).poll_write(ctx, bytes) {
                Poll::Ready(Ok(0)) => return Err(broken(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Err(broken(error)),
                Poll::Pending => return Ok(()),
            }
        }
        if !self.unwritten.is_empty() {
            self.unwritten.clear();
            self.written = 0;
        }
        match Pin::new(&mut self.stream).poll_flush(ctx) {
            Poll::Ready(Err(error)) => Err(broken(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Reads what is there; whether that has put anything into the line.
    fn read(&mut self, ctx: &mut Context<'_>, shared: &LinkState) -> Result<bool, NoReply> {
        let mut has_new = false;
        loop {
            let mut chunk = [std::mem::MaybeUninit::uninit(); 4096];
            let mut chunk = ReadBuf::uninit(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(ctx, &mut chunk) {
                Poll::Pending => return Ok(has_new),
                Poll::Ready(Err(error)) => return Err(broken(error)),
                Poll::Ready(Ok(())) if chunk.filled().is_empty() => {
                    return Err(NoReply::Unreachable("the node closed the connection".into()));
                }
                Poll::Ready(Ok(())) => {
                    self.reader.take(chunk.filled());
                    has_new |= self.hand_out(shared)?;
                }
            }
        }
    }

    fn hand_out(&mut self, shared: &LinkState) -> Result<bool, NoReply> {
        let mut has_new = false;
        while let Some(reply) = next_reply(&mut self.reader)? {
            if let Reply::Push(parts) = reply {
                hear(&parts, shared);
                continue;
            }
            let Some(mut item) = self.sent.pop_front() else {
                return Err(NoReply::Garbled("a reply that nobody asked for".into()));
            };
            let put_off = self.put_off.len();
            if let Reply::Error(error) = &reply {
                has_new |= self.repeat(&item, error, shared);
            }
            if item.is_owed && put_off == self.put_off.len() {
                let mut line = shared.line();
                line.owed_unanswered = line.owed_unanswered.saturating_sub(1);
            }
            let is_left = self.watch.is_some() && is_of_a_replica(&reply);
            item.answer_from(self.server, Ok(reply));
            if is_left {
                // At once again, it could be the same that answers.
                self.was_useful = false;
                return Err(NoReply::Unavailable("it is no master any more".into()));
            }
            self.was_useful = true;
            self.is_waiting = false;
        }
        Ok(has_new)
    }

    /// Sees to it that a command is sent again that the node has not carried out, if it is worth
    /// that; whether it is in line already.
    fn repeat(&mut self, item: &Item, error: &str, shared: &LinkState) -> bool {
        if code::meaning_of(error) == Meaning::Later {
            let now = Instant::now();
            if self.put_off.is_empty() {
                self.again.as_mut().reset(now + PUT_OFF);
            }
            self.put_off.extend(item.put_off(now));
            return false;
        }
        let has_plain = item.packet.plain().is_some();
        if has_plain {
            shared.line().items.push_back(item.again());
        }
        has_plain
    }

    fn watch_for_stall(&mut self, ctx: &mut Context<'_>) -> Poll<Option<NoReply>> {
        if self.sent.is_empty() {
            self.is_waiting = false;
            return Poll::Pending;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            // Moving the deadline costs a lock in the runtime, so it is moved when it is due.
            if self.stalled.deadline() < Instant::now() + self.stall / 2 {
                self.stalled.as_mut().reset(Instant::now() + self.stall);
            }
        }
        match self.stalled.as_mut().poll(ctx) {
            Poll::Ready(()) => {
                let text = format!("no answer for {} ms", self.stall.as_millis() / 2);
                Poll::Ready(Some(NoReply::Unreachable(text.into())))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Passes on a wake; whatever else a node may say is not meant for us.
fn hear(parts: &[Reply], shared: &LinkState) {
    if let [Reply::Text(kind), Reply::Text(channel), Reply::Text(ticket)] = parts
        && **kind == *b"message"
        && **channel == **shared.wakes.channel()
    {
        shared.wakes.wake(shared.node, ticket);
    }
}

/// Whether only a replica answers in this way, or a master that is about to become one.
fn is_of_a_replica(reply: &Reply) -> bool {
    let Reply::Error(text) = reply else { return false };
    code::word_of(text) == code::READONLY.word
}

fn broken(error: io::Error) -> NoReply {
    NoReply::Unreachable(plain(&error).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connect::Opening;
    use crate::client::inbox::Inbox;
    use crate::engine::{Millis, Mode};
    use crate::wire::resp;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::{mpsc, watch};

    const TTL: Millis = Millis::new(10_000);

    /// Opens a connection when it is told to; its other end comes out of the channel.
    #[derive(Debug)]
    struct Door {
        is_open: watch::Receiver<bool>,
        servers: mpsc::UnboundedSender<DuplexStream>,
    }

    impl Dial for Door {
        fn open(&self) -> Opening {
            let (mut is_open, servers) = (self.is_open.clone(), self.servers.clone());
            Box::pin(async move {
                is_open.wait_for(|is_open| *is_open).await.map_err(io::Error::other)?;
                let (client, server) = duplex(1 << 16);
                servers.send(server).map_err(io::Error::other)?;
                Ok(Box::new(client) as Box<dyn Stream>)
            })
        }

        fn jitter(&self) -> f64 {
            0.5
        }
    }

    /// A node that lets everybody in, and notes what comes then, until the client has gone.
    async fn heard(mut server: DuplexStream) -> Vec<String> {
        let (mut unread, mut heard) = (Vec::new(), Vec::new());
        while server.read_buf(&mut unread).await.is_ok_and(|length| length > 0) {
            while let Ok(Some((Reply::List(args), length))) = resp::read(&unread) {
                unread.drain(..length);
                let words = args.iter().filter_map(|arg| match arg {
                    Reply::Text(text) => Some(String::from_utf8_lossy(text)),
                    _ => None,
                });
                let command = words.collect::<Vec<_>>().join(" ");
                let answer: &[u8] = match command.split(' ').next() {
                    Some("HELLO") => b"*0\r\n",
                    Some("SUBSCRIBE") => b">3\r\n+subscribe\r\n+c\r\n:1\r\n",
                    Some("PING") => b"+PONG\r\n",
                    Some("INFO") => b"$-1\r\n",
                    _ => {
                        heard.push(command);
                        b":1\r\n"
                    }
                };
                server.write_all(answer).await.expect("the client reads");
            }
        }
        heard
    }

    /// What is written, when the connection comes about, of what was sent before.
    async fn written(send: impl FnOnce(&Links)) -> Vec<String> {
        let (open, is_open) = watch::channel(false);
        let (servers, mut accepted) = mpsc::unbounded_channel();
        let dial: Arc<dyn Dial> = Arc::new(Door { is_open, servers });
        let spawn = |driving| drop(tokio::spawn(driving));
        let nodes = [(Arc::from("node"), dial)];
        let links = Links::dialled(nodes, b"c", Duration::from_secs(1), spawn);
        send(&links);
        drop(links);
        open.send(true).expect("somebody connects");
        heard(accepted.recv().await.expect("a connection")).await
    }

    /// It was connected to again as fast as the machine could.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_lets_in_and_closes_is_not_stormed() {
        let (_open, is_open) = watch::channel(true);
        let (servers, mut accepted) = mpsc::unbounded_channel();
        let dial: Arc<dyn Dial> = Arc::new(Door { is_open, servers });
        let nodes = [(Arc::from("node"), dial)];
        let spawn = |driving| drop(tokio::spawn(driving));
        let _links = Links::dialled(nodes, b"c", Duration::from_secs(1), spawn);
        let (end, mut count) = (Instant::now() + Duration::from_secs(10), 0);
        while let Ok(Some(server)) = tokio::time::timeout_at(end, accepted.recv()).await {
            let greeting = tokio::spawn(heard(server));
            sleep(Duration::from_millis(1)).await;
            greeting.abort();
            count += 1;
        }
        assert!((15..45).contains(&count), "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_withdrawn_is_not_sent_and_its_release_is() {
        let acquire = Packet::acquire(b"a", &[b't'; 20], (TTL, Mode::Exclusive), b"");
        let release = Packet::release(b"a", &[b't'; 20], TTL);
        let heard = written(|links| {
            let inbox = Inbox::new(1);
            links.send(0, &acquire, Some(inbox.reply_to(0, 0)));
            drop(inbox);
            links.send(0, &release, None);
        });
        assert_eq!(heard.await, ["LOCK.RELEASE a tttttttttttttttttttt"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_wanted_is_sent_though_nobody_reads_its_reply() {
        let acquire = Packet::acquire(b"a", &[b't'; 20], (TTL, Mode::Exclusive), b"");
        let heard = written(|links| {
            let inbox = Inbox::new(1);
            links.send(0, &acquire, Some(inbox.reply_to(0, 0)));
            inbox.keep_sending();
        });
        assert_eq!(heard.await, ["LOCK.ACQUIRE a tttttttttttttttttttt 10000"]);
    }
}
