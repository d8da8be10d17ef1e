//! One node's connection: a line of commands, and the task that drives it.
//!
//! Commands enter the line in the order in which they are sent, without waiting; one task writes
//! whatever is in line with one system call and hands out the replies in order. When the connection
//! breaks, waiting callers learn that the outcome is unknown, and the task connects again. A
//! release is different: it stays in line until the node has answered it (see [`Outbox`]), and if
//! the node puts it off, it is sent again until the lease has ended. So nothing stays behind on a
//! live node because a connection broke, or because the node hung or was busy.
//!
//! The wakes that the node publishes arrive on the same connection.
//!
//! A node may be the master of a group under Sentinel. Then each connection begins by finding that
//! master, and also ends when another server becomes the master.
//!
//! The `redis` crate's multiplexed connection is not used for this, because it skips commands whose
//! caller has gone (such as the release of a dropped guard), packs each command once per node, and
//! makes callers wait for room in the line, which a destructor cannot do.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::answering::Answering;
use super::connect::{Login, Stream, next_reply};
use super::destination::{Arrived, Destination};
use super::inbox::{NoReply, ReplyTo, ServerId};
use super::outbox::{Item, Outbox, Rank};
use super::packet::Packet;
use super::printable::plain;
use super::put_off::PutOff;
use super::sentinel::SwitchWatch;
use super::wakes::{Publisher, Wakes};
use crate::wire::code::{self, Meaning};
use crate::wire::resp::{Reader, Reply};

/// While this many bytes are unwritten, commands stay in line, where they can still be withdrawn.
const UNWRITTEN_MAX: usize = 1 << 16;
/// Why nothing is sent any more.
pub(super) const RUNTIME_ENDED: &str = "the runtime in which this locker was built has ended: \
                                        build it in one that lives as long as it";
/// The first pause before connecting again, doubled each time.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause before connecting again.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A connection on which nothing was answered for this many times the caller's patience is given
/// up: the network may have dropped it silently.
const STALL_FACTOR: u32 = 4;
/// The shortest silence that counts as a stall.
const STALL_MIN: Duration = Duration::from_secs(2);

/// What the link to one master of a Cluster needs from the routing among all of them.
pub(super) trait Router: Send + Sync {
    /// Sends on a command that the master on this host has refused with this error. Returns the
    /// command if the error is its answer.
    fn redirect(&self, item: Item, error: &str, host: &str) -> Option<Item>;

    /// Takes over commands that can no longer be delivered.
    fn adopt(&self, items: VecDeque<Item>);

    /// Whether the link with this place leads to the master that has this slot, as far as is known.
    fn has_slot_at(&self, slot: u16, place: usize) -> bool;

    /// The master cannot be reached.
    fn lost(&self);

    /// There is a connection; `hears` is whether published messages arrive on it.
    fn connected(&self, hears: bool);

    /// The connection broke; `heard` is whether published messages arrived on it.
    fn broken(&self, heard: bool);
}

/// Where a link belongs.
pub(super) struct LinkSeat {
    /// Which node it leads to.
    pub(super) node: usize,
    /// Its place among all connections.
    pub(super) place: usize,
    pub(super) answering: Arc<Answering>,
    pub(super) wakes: Arc<Wakes>,
    /// For one master of a Cluster: the routing, and the host of this master.
    pub(super) router: Option<(Weak<dyn Router>, Arc<str>)>,
}

impl fmt::Debug for LinkSeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSeat").field("node", &self.node).finish_non_exhaustive()
    }
}

impl LinkSeat {
    fn router(&self) -> Option<Arc<dyn Router>> {
        self.router.as_ref().and_then(|(router, _)| router.upgrade())
    }

    fn connected(&self, hears: bool) {
        match self.router() {
            None => self.wakes.connected(self.node, hears),
            Some(router) => router.connected(hears),
        }
    }

    fn broken(&self, heard: bool) {
        match self.router() {
            None => self.wakes.broken(self.node),
            Some(router) => router.broken(heard),
        }
    }
}

impl Drop for LinkSeat {
    fn drop(&mut self) {
        self.answering.vacate(self.place);
    }
}

/// How long a connection may stay silent, if callers wait this long for an answer.
pub(super) fn stall_of(patience: Duration) -> Duration {
    STALL_MIN.max(patience.saturating_mul(STALL_FACTOR))
}

/// The handle of one node's connection. Dropping it lets the task finish what is in line.
#[derive(Debug)]
pub(super) struct Link(Arc<LinkState>);

#[derive(Debug)]
pub(super) struct LinkState {
    line: Mutex<Outbox>,
    seat: LinkSeat,
}

impl LinkState {
    /// Its place among all connections.
    pub(super) const fn place(&self) -> usize {
        self.seat.place
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Outbox> {
        // Nothing panics while the lock is held, so the line is intact even if it is poisoned.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a command into the line; the caller knows how it stands to those before. False if that
    /// is impossible: the sender is told why.
    pub(super) fn take_as(&self, packet: &Packet, reply_to: Option<ReplyTo>, rank: Rank) -> bool {
        let mut line = self.line();
        let taken = line.take_as(packet, reply_to, rank);
        let is_taken = taken.is_ok();
        LinkState::taken(line, taken);
        is_taken
    }

    /// Takes over a command that was sent elsewhere before.
    pub(super) fn accept(&self, item: Item) {
        let mut line = self.line();
        line.accept(item);
        LinkState::taken(line, Ok(()));
    }

    /// Notes that the node cannot be reached, or the master of its group that was asked. Returns
    /// whether the link is dropped.
    fn fail(&self, failure: &NoReply) -> bool {
        let mut line = self.line();
        line.fail(failure);
        let is_closed = line.is_closed;
        let Some(router) = self.seat.router() else { return is_closed };
        let left = if is_closed { std::mem::take(&mut line.items) } else { VecDeque::new() };
        drop(line);
        router.adopt(left);
        router.lost();
        is_closed
    }

    fn taken(mut line: MutexGuard<'_, Outbox>, taken: Result<(), Box<(NoReply, Option<ReplyTo>)>>) {
        if let Err(refused) = taken {
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

impl Link {
    /// A link to `destination`, and the task that drives it. `patience` is how long the caller
    /// waits for an answer.
    pub(super) fn new(
        destination: Destination,
        patience: Duration,
        seat: LinkSeat,
    ) -> (Link, impl Future<Output = ()> + Send + use<>) {
        let shared = Arc::new(LinkState { line: Mutex::default(), seat });
        let driving = drive(Driver(Arc::clone(&shared)), destination, patience);
        (Link(shared), driving)
    }

    pub(super) const fn state(&self) -> &Arc<LinkState> {
        &self.0
    }

    /// Puts a command into the line; never waits.
    pub(super) fn send(&self, packet: &Packet, reply_to: Option<ReplyTo>) {
        let mut line = self.0.line();
        let taken = line.take(packet, reply_to);
        LinkState::taken(line, taken);
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

/// Ends the line when the driving task ends: its runtime may end before the locker does.
struct Driver(Arc<LinkState>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.line().end(&NoReply::Refused(RUNTIME_ENDED.into()));
    }
}

/// Keeps the node connected until the link is dropped and its line is empty.
async fn drive(driver: Driver, destination: Destination, patience: Duration) {
    let shared = &*driver.0;
    let stall = stall_of(patience);
    let mut pause = PAUSE_MIN;
    loop {
        match connect(shared, &destination, stall).await {
            Ok(Arrived { login, master }) => {
                let (master, watch) = master.unzip();
                {
                    let mut line = shared.line();
                    (line.down, line.master) = (None, master);
                }
                shared.seat.connected(login.hears);
                let began_at = Instant::now();
                let connection = Connection::new(login, watch, stall);
                let Some(was_useful) = serve(shared, connection).await else { return };
                // A connection that breaks at once is no better than none.
                if was_useful || began_at.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                } else {
                    sleep(jittered(pause, destination.jitter())).await;
                    pause = PAUSE_MAX.min(pause * 2);
                }
            }
            Err(failure) => {
                let is_closed = shared.fail(&failure);
                if is_closed {
                    return;
                }
                sleep(jittered(pause, destination.jitter())).await;
                pause = PAUSE_MAX.min(pause * 2);
            }
        }
    }
}

/// Connects to a server that is not already another node.
async fn connect(
    shared: &LinkState,
    destination: &Destination,
    stall: Duration,
) -> Result<Arrived, NoReply> {
    let note_asked = |master: &Arc<str>| shared.line().master = Some(Arc::clone(master));
    // This takes several round trips: on a slow network far longer than one answer.
    let arrived = destination.connect(shared.seat.wakes.channel(), stall, &note_asked).await?;
    shared.seat.answering.note(shared.seat.place, arrived.login.server)?;
    Ok(arrived)
}

/// Writes and reads until the connection breaks, and returns whether anything was answered on it.
/// `None` if the link is dropped and its line is empty.
async fn serve(shared: &LinkState, mut connection: Connection) -> Option<bool> {
    // A message may have arrived right behind the replies to the login.
    let failure = match connection.hand_out(shared) {
        Ok(_) => poll_fn(|ctx| connection.poll(ctx, shared)).await,
        Err(failure) => Some(failure),
    };
    shared.seat.answering.leave(shared.seat.place);
    if let Some(failure) = &failure {
        connection.stream.abort();
        connection.put_off.items.append(&mut connection.sent);
        shared.line().break_off(connection.put_off.items, failure);
    }
    shared.seat.broken(connection.hears);
    failure.map(|_| connection.was_useful)
}

/// Between half of `pause` and all of it, so that clients do not return in step.
fn jittered(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.5 + random / 2.0)
}

struct Connection {
    stream: Box<dyn Stream>,
    /// Which server answers, if it is known.
    server: Option<ServerId>,
    hears: bool,
    /// Whether it is a server of a Cluster.
    is_in_cluster: bool,
    /// For the master of a group: tells when another server becomes the master.
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
    put_off: PutOff,
}

impl Connection {
    fn new(login: Login, watch: Option<SwitchWatch>, stall: Duration) -> Connection {
        Connection {
            stream: login.stream,
            server: login.server,
            hears: login.hears,
            is_in_cluster: login.is_in_cluster,
            watch,
            was_useful: false,
            unwritten: Vec::with_capacity(4096),
            written: 0,
            reader: login.reader,
            sent: VecDeque::new(),
            taken: VecDeque::new(),
            stall,
            stalled: Box::pin(sleep(stall)),
            is_waiting: false,
            put_off: PutOff::new(),
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
            let is_idle = self.sent.is_empty() && self.unwritten.is_empty();
            if has_more.is_none() && is_idle && self.put_off.items.is_empty() {
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

    /// Puts commands that the node has put off back into the line; false if there are none, or it
    /// is too early.
    fn send_again(&mut self, ctx: &mut Context<'_>, shared: &LinkState) -> bool {
        if !self.put_off.is_due(ctx) {
            return false;
        }
        let items = &mut self.put_off.items;
        let mut line = shared.line();
        line.owed_unanswered = line.owed_unanswered.saturating_sub(items.len());
        line.items.append(items);
        true
    }

    /// Moves commands out of the line, and returns whether some are left there. `None` if nothing
    /// is left and the line is closed.
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
        let is_over = line.is_closed && !has_more;
        drop(line);
        for item in self.taken.drain(..) {
            if !item.is_idle() {
                if item.is_asking {
                    let asking = Item::asking();
                    self.unwritten.extend_from_slice(asking.packet.bytes());
                    self.sent.push_back(asking);
                }
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

    /// Reads what has arrived, and returns whether that has put anything into the line.
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
                self.hear(&parts, shared);
                continue;
            }
            let Some(mut item) = self.sent.pop_front() else {
                return Err(NoReply::Garbled("a reply without a request".into()));
            };
            let mut is_put_off = false;
            if let Reply::Error(error) = &reply {
                let Some(back) = self.redirect(item, error, shared) else { continue };
                item = back;
                is_put_off = self.put_off.keep(&item, error);
                has_new |= self.repeat(&item, error, shared);
            } else {
                self.put_off.done(&item);
            }
            if item.is_owed {
                let mut line = shared.line();
                line.is_put_off = !self.put_off.items.is_empty();
                let answered = usize::from(!is_put_off);
                line.owed_unanswered = line.owed_unanswered.saturating_sub(answered);
            }
            let is_left = self.watch.is_some() && is_of_a_replica(&reply);
            item.answer_from(self.server, Ok(reply));
            if is_left {
                // Reconnecting at once could lead to the same server.
                self.was_useful = false;
                return Err(NoReply::Unavailable("it is no longer a master".into()));
            }
            self.was_useful = true;
            self.is_waiting = false;
        }
        Ok(has_new)
    }

    /// Passes on a wake or a grant; other messages are not for this client.
    fn hear(&self, parts: &[Reply], shared: &LinkState) {
        let LinkSeat { node, place, wakes, .. } = &shared.seat;
        if let [Reply::Text(kind), Reply::Text(channel), Reply::Text(message)] = parts
            && **kind == *b"message"
            && **channel == **wakes.channel()
        {
            // In a Cluster, each master passes on what the others publish. Only the master of the
            // lock grants it, and only if this client listens there. That may be another one than
            // this client knows: the slot may just be moving.
            let publisher = |slot| match shared.seat.router() {
                Some(router) if router.has_slot_at(slot, *place) => Publisher::Itself,
                None if !self.is_in_cluster => Publisher::Itself,
                Some(_) | None => Publisher::Unclear,
            };
            wakes.hear_from(*node, self.server.map(ServerId::number), message, publisher);
        }
    }

    /// Sends a command on to another master of a Cluster. Returns the command if it is not sent on.
    fn redirect(&mut self, item: Item, error: &str, shared: &LinkState) -> Option<Item> {
        let Some((router, host)) = &shared.seat.router else { return Some(item) };
        let Some(router) = router.upgrade() else { return Some(item) };
        let is_owed = item.is_owed;
        let back = router.redirect(item, error, host);
        if back.is_none() {
            let mut line = shared.line();
            line.owed_unanswered = line.owed_unanswered.saturating_sub(usize::from(is_owed));
            (self.was_useful, self.is_waiting) = (true, false);
        }
        back
    }

    /// Sends a command again without what the node does not know, if that may help. Returns whether
    /// it is in line.
    fn repeat(&self, item: &Item, error: &str, shared: &LinkState) -> bool {
        if code::meaning_of(error) == Meaning::Later {
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
            Poll::Ready(()) => Poll::Ready(Some(NoReply::TimedOut)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Whether this is the reply of a replica, or of a master that is about to become one.
fn is_of_a_replica(reply: &Reply) -> bool {
    let Reply::Error(text) = reply else { return false };
    code::word_of(text) == code::READONLY.word
}

fn broken(error: io::Error) -> NoReply {
    NoReply::Unreachable(plain(&error).into())
}
