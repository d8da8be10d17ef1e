//! The commands to send to one node, and the releases that are owed to it.
//!
//! A release is owed until the node has answered it, however long the node hangs: its acquire may
//! lie in the node's socket and be carried out when the node goes on. But a release is owed only if
//! its acquire was taken into the line; otherwise, releases for a node that is down would pile up.
//! So owed releases are bounded by acquires: those have a limit, and each release undoes one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::inbox::{NoReply, ReplyTo, ServerId};
use super::packet::{AcquisitionId, Care, Packet, Part};
use crate::wire::resp::Reply;

/// The most commands in line or unanswered per node; above it a command fails at once, unless it is
/// a release that is owed. A hung node must not fill the memory.
pub(super) const COMMANDS_MAX: usize = 1 << 16;
/// A claim is forgotten this long after its lease could have ended: only a leaked lease is neither
/// renewed nor released for so long.
const LEAKED: Duration = Duration::from_secs(60);
/// The claims are searched for leaked ones when there are twice as many as after the last search,
/// and at least this many.
const CLAIMS_MIN: usize = 1 << 10;

/// One command on its way.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) packet: Packet,
    reply_to: Option<ReplyTo>,
    /// Whether it is sent again until the node has answered it.
    pub(super) is_owed: bool,
    /// Until when it is sent again to a node that puts it off.
    put_off_until: Option<Instant>,
    /// Whether this is the first request to the node for its acquisition.
    is_first: bool,
    /// Whether its slot is moving to this node, which must be told so.
    pub(super) is_asking: bool,
    /// How often it was redirected.
    pub(super) hops: u8,
    /// How often a master of a Cluster wanted it later, or the masters disagreed.
    pub(super) delays: u8,
    /// When its sender began to wait.
    pub(super) since: Instant,
    /// Orders the commands to a Cluster.
    pub(super) number: u64,
}

impl Item {
    /// Whether it is no longer wanted.
    pub(super) fn is_idle(&self) -> bool {
        match self.packet.care() {
            Care::Awaited => self.reply_to.as_ref().is_none_or(ReplyTo::is_withdrawn),
            Care::Once | Care::UntilAnswered(_) => false,
        }
    }

    /// A copy to send again, without the parts meant for this connection. Only the sender of a
    /// release has its answer.
    pub(super) fn again(&self) -> Item {
        let packet = self.packet.plain().unwrap_or_else(|| self.packet.clone());
        let Item { is_owed, put_off_until, .. } = *self;
        let rank = Rank { is_owed, is_first: false, number: self.number };
        let next = self.reply_to.as_ref().and_then(ReplyTo::next);
        Item { put_off_until, ..Item::ranked(packet, next, rank) }
    }

    /// The command that goes before one whose slot is moving to the node.
    pub(super) fn asking() -> Item {
        Item::new(Packet::new(&[b"ASKING"]).unattended(), None, false)
    }

    /// Counts a redirection.
    pub(super) const fn redirected(&mut self) {
        self.hops = self.hops.saturating_add(1);
        self.came_back();
    }

    /// Counts a pause before it is sent again.
    pub(super) const fn delayed(&mut self) {
        self.delays = self.delays.saturating_add(1);
        self.came_back();
    }

    /// Another request with its token may be ahead of it at the next master.
    const fn came_back(&mut self) {
        (self.is_first, self.is_asking) = (false, false);
    }

    fn new(packet: Packet, reply_to: Option<ReplyTo>, is_owed: bool) -> Item {
        let rank = Rank { is_owed, is_first: false, number: 0 };
        Item::ranked(packet, reply_to, rank)
    }

    /// A command, as it stands to those that were sent before.
    pub(super) fn ranked(packet: Packet, reply_to: Option<ReplyTo>, rank: Rank) -> Item {
        let Rank { is_owed, is_first, number } = rank;
        Item {
            is_asking: packet.is_asking(),
            packet,
            reply_to,
            is_owed,
            put_off_until: None,
            is_first,
            hops: 0,
            delays: 0,
            since: Instant::now(),
            number,
        }
    }

    /// Whether it is the first request to the node for its acquisition.
    pub(super) const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether somebody waits for the answer.
    pub(super) const fn is_awaited(&self) -> bool {
        self.reply_to.is_some()
    }

    /// Whether somebody still waits for the answer.
    fn is_heard(&self) -> bool {
        self.reply_to.as_ref().is_some_and(|reply_to| !reply_to.is_withdrawn())
    }

    /// Whether it is meant for this particular server.
    pub(super) fn is_direct(&self) -> bool {
        self.reply_to.as_ref().is_some_and(ReplyTo::is_direct)
    }

    /// Whether no other server can answer it.
    pub(super) fn is_for_one_server(&self) -> bool {
        self.reply_to.as_ref().is_some_and(ReplyTo::is_for_one_server)
    }

    pub(super) const fn take_reply_to(&mut self) -> Option<ReplyTo> {
        self.reply_to.take()
    }

    /// A copy to send again, to a node that does not carry it out at present; `None` if it has been
    /// put off for so long that the lease has ended.
    pub(super) fn put_off(&self, now: Instant) -> Option<Item> {
        let Care::UntilAnswered(length) = self.packet.care() else { return None };
        let until = self.put_off_until.unwrap_or(now + length);
        let again = Item { put_off_until: Some(until), ..self.again() };
        (self.is_owed && until > now).then_some(again)
    }

    pub(super) fn answer(&mut self, outcome: Result<Reply, NoReply>) {
        self.answer_from(None, outcome);
    }

    /// Tells the sender of a command that may be sent again why it is not answered yet.
    fn fail(&mut self, failure: &NoReply) {
        let next = self.reply_to.as_ref().filter(|_| self.is_owed).and_then(ReplyTo::next);
        self.answer(Err(failure.clone()));
        self.reply_to = next;
    }

    /// Passes on the answer of this server.
    pub(super) fn answer_from(
        &mut self,
        server: Option<ServerId>,
        outcome: Result<Reply, NoReply>,
    ) {
        if let Some(reply_to) = self.reply_to.take() {
            reply_to.deliver_from(server, outcome);
        }
    }

    /// Removes the parts meant for a connection that no longer exists.
    fn strip(&mut self) {
        self.is_asking = false;
        if let Some(plain) = self.packet.plain() {
            self.packet = plain;
        }
    }
}

/// The line of commands for one node.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) items: VecDeque<Item>,
    /// Commands written and not answered.
    pub(super) unanswered: usize,
    /// Releases written and not carried out: not answered, or put off.
    pub(super) owed_unanswered: usize,
    /// Why the node cannot be reached at present.
    pub(super) down: Option<NoReply>,
    /// Whether the node has put off a release that is still to be carried out.
    pub(super) is_put_off: bool,
    /// Where the master of the node's group is, or was when one was asked last.
    pub(super) master: Option<Arc<str>>,
    pub(super) is_closed: bool,
    /// Whether no task drives the connection any more.
    is_over: bool,
    pub(super) driver: Option<Waker>,
    asked: Outstanding,
}

impl Outbox {
    /// Puts a command into the line. If that is impossible, a release that is owed stays, and the
    /// failure is returned with the recipient of the reply.
    pub(super) fn take(
        &mut self,
        packet: &Packet,
        reply_to: Option<ReplyTo>,
    ) -> Result<(), Box<(NoReply, Option<ReplyTo>)>> {
        let is_owed = matches!(packet.care(), Care::UntilAnswered(_))
            && packet.part().is_none_or(|part| self.asked.has(part.claim));
        let is_first = self.asked.is_first(packet);
        self.take_as(packet, reply_to, Rank { is_owed, is_first, number: 0 })
    }

    /// The same, if the caller knows how it stands to what was sent before.
    pub(super) fn take_as(
        &mut self,
        packet: &Packet,
        reply_to: Option<ReplyTo>,
        rank: Rank,
    ) -> Result<(), Box<(NoReply, Option<ReplyTo>)>> {
        let part = packet.part();
        let item = Item::ranked(packet.clone(), reply_to, rank);
        if let Some(failure) = self.refusal(rank.is_owed) {
            if rank.is_owed && !self.is_over {
                self.items.push_back(item.again());
                self.asked.forget(part);
            }
            return Err(Box::new((failure, item.reply_to)));
        }
        self.asked.note(part);
        self.items.push_back(item);
        Ok(())
    }

    /// Takes over a command that was sent elsewhere before.
    pub(super) fn accept(&mut self, mut item: Item) {
        let refusal = self.refusal(item.is_owed);
        let is_kept = refusal.is_none() || item.is_owed && !self.is_over;
        if let Some(failure) = refusal {
            item.fail(&failure);
        }
        if is_kept {
            self.items.push_back(item);
        }
    }

    /// Why nothing can be sent at present, if so.
    fn refusal(&self, is_owed: bool) -> Option<NoReply> {
        if !is_owed && self.items.len() + self.unanswered >= COMMANDS_MAX {
            return Some(NoReply::Unreachable("too many unanswered requests".into()));
        }
        self.down.clone()
    }

    /// Whether a release has yet to be sent, or to be answered.
    pub(super) fn owes(&self) -> bool {
        self.owed_unanswered > 0 || self.items.iter().any(|item| item.is_owed)
    }

    /// Whether a release has yet to be carried out, and the node cannot be reached, or puts it off.
    pub(super) fn is_hindered(&self) -> bool {
        self.owes() && (self.down.is_some() || self.is_put_off)
    }

    /// The connection broke: the outcome of the `sent` commands is unknown. Owed ones go first on
    /// the next connection, in their order.
    pub(super) fn break_off(&mut self, sent: VecDeque<Item>, failure: &NoReply) {
        (self.unanswered, self.owed_unanswered, self.is_put_off) = (0, 0, false);
        let mut owed = VecDeque::new();
        for mut item in sent {
            item.fail(failure);
            if let Some(reply_to) = &mut item.reply_to {
                reply_to.lose();
            }
            if item.is_owed {
                item.strip();
                owed.push_back(item);
            }
        }
        self.items.iter_mut().for_each(Item::strip);
        owed.append(&mut self.items);
        self.items = owed;
        self.count_once();
    }

    /// The node cannot be reached: only owed releases may wait for it. The commands in line were
    /// never sent, so a release of an acquire among them is not owed.
    pub(super) fn fail(&mut self, failure: &NoReply) {
        self.down = Some(failure.clone());
        let mut unsent = HashSet::new();
        self.items.retain_mut(|item| {
            item.fail(failure);
            item.strip();
            let part = item.packet.part();
            if item.is_first {
                self.asked.forget(part);
                unsent.extend(part.map(|part| part.claim));
            }
            item.is_owed && !part.is_some_and(|part| unsent.contains(&part.claim))
        });
        self.count_once();
    }

    /// No task drives the connection any more, so nothing will ever be sent.
    pub(super) fn end(&mut self, failure: &NoReply) {
        self.down = Some(failure.clone());
        self.is_over = true;
        self.items.drain(..).for_each(|mut item| item.answer(Err(failure.clone())));
    }

    /// Removes duplicates: a connection that keeps breaking leaves the same release behind each
    /// time. Of these, the one counts whose answer somebody waits for.
    fn count_once(&mut self) {
        let heard = self.items.iter().filter(|item| item.is_owed && item.is_heard());
        let mut seen: HashSet<Arc<[u8]>> = heard.map(|item| item.packet.shared()).collect();
        let is_left =
            |item: &Item| !item.is_owed || item.is_heard() || seen.insert(item.packet.shared());
        self.items.retain(is_left);
    }
}

/// How a command stands to those that were sent to its node before.
#[derive(Clone, Copy)]
pub(super) struct Rank {
    /// Whether it is a release of something that was asked for.
    pub(super) is_owed: bool,
    /// Whether it is the first request with its token.
    pub(super) is_first: bool,
    /// Its number, if commands have one.
    pub(super) number: u64,
}

/// The claims that were sent to the node and not released.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    claims: HashMap<AcquisitionId, AskedFor>,
    /// How many there were after the last search for leaked ones.
    kept: usize,
}

/// What was requested with one token.
#[derive(Debug)]
struct AskedFor {
    /// Until when it may matter.
    until: Instant,
    /// The number of the last release that put its ticket in line, if commands have numbers.
    released: u64,
}

impl Outstanding {
    pub(super) fn has(&self, claim: AcquisitionId) -> bool {
        self.claims.contains_key(&claim)
    }

    /// Whether this is the first request with its token.
    pub(super) fn is_first(&self, packet: &Packet) -> bool {
        let asks = packet.part().filter(|part| part.asks_for.is_some());
        asks.is_some_and(|part| !self.has(part.claim))
    }

    /// Notes that a release with this number has put its ticket in line.
    pub(super) fn released(&mut self, claim: AcquisitionId, number: u64) {
        if let Some(asked) = self.claims.get_mut(&claim) {
            asked.released = number;
        }
    }

    /// Whether a command that was sent with this number comes before the last release.
    pub(super) fn is_released_since(&self, claim: AcquisitionId, number: u64) -> bool {
        self.claims.get(&claim).is_none_or(|asked| asked.released > number)
    }

    /// Notes that a command with this part was taken into the line.
    pub(super) fn note(&mut self, part: Option<Part>) {
        let Some(Part { claim, asks_for }) = part else { return };
        let Some(length) = asks_for else { return self.forget(part) };
        let now = Instant::now();
        let until = now + length + length + LEAKED;
        self.claims.entry(claim).or_insert(AskedFor { until, released: 0 }).until = until;
        if self.claims.len() >= CLAIMS_MIN.max(self.kept * 2) {
            self.claims.retain(|_, asked| asked.until > now);
            self.kept = self.claims.len();
        }
    }

    pub(super) fn forget(&mut self, part: Option<Part>) {
        if let Some(part) = part {
            self.claims.remove(&part.claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Millis, Mode};

    const TTL: Millis = Millis::new(1_000);

    fn token(number: u32) -> [u8; 20] {
        let mut token = [0; 20];
        token[..4].copy_from_slice(&number.to_be_bytes());
        token
    }

    fn acquire(number: u32) -> Packet {
        Packet::acquire(b"k", &token(number), (TTL, Mode::Exclusive), b"")
    }

    fn release(number: u32) -> Packet {
        Packet::release(b"k", &token(number), TTL)
    }

    fn down() -> NoReply {
        NoReply::Unreachable("down".into())
    }

    /// Writes everything in line.
    fn write(outbox: &mut Outbox) -> VecDeque<Item> {
        outbox.unanswered += outbox.items.len();
        std::mem::take(&mut outbox.items)
    }

    #[test]
    fn no_release_is_dropped_for_a_node_that_hangs() {
        let mut outbox = Outbox::default();
        for number in 0..COMMANDS_MAX as u32 {
            drop(outbox.take(&acquire(number), None));
            drop(outbox.take(&release(number), None));
        }
        let asked = outbox.items.iter().filter(|item| !item.is_owed).count();
        assert!(asked >= COMMANDS_MAX / 2 && outbox.items.len() == 2 * asked, "{asked}");
        let sent = write(&mut outbox);
        outbox.break_off(sent, &down());
        assert_eq!(outbox.items.len(), asked, "each release replaces its acquire");
        outbox.fail(&down());
        assert_eq!(outbox.items.len(), asked);
    }

    #[test]
    fn nothing_is_owed_to_a_node_that_was_not_asked() {
        let mut outbox = Outbox::default();
        assert!(outbox.take(&acquire(1), None).is_ok());
        outbox.fail(&down());
        for number in 1..1_000 {
            assert!(outbox.take(&acquire(number + 1), None).is_err());
            assert!(outbox.take(&release(number), None).is_err());
        }
        assert!(outbox.items.is_empty() && !outbox.owes(), "the first was never sent");
        assert_eq!(outbox.asked.claims.len(), 0);
        // Nor if its release was in line behind it.
        let mut outbox = Outbox::default();
        assert!(outbox.take(&acquire(1), None).is_ok() && outbox.take(&release(1), None).is_ok());
        assert!(outbox.owes());
        outbox.fail(&down());
        assert!(!outbox.owes());
    }

    #[test]
    fn what_was_asked_for_long_ago_is_owed_as_long_as_it_is_renewed() {
        let mut outbox = Outbox::default();
        let fence = crate::engine::Fence::new(1).unwrap();
        let terms = (TTL, Mode::Exclusive);
        for packet in [
            acquire(1),
            Packet::repair(b"k", &token(2), terms, fence, b""),
            Packet::extend(b"k", &token(4), terms, fence),
        ] {
            assert!(outbox.take(&packet, None).is_ok());
        }
        let sent = write(&mut outbox);
        outbox.break_off(sent, &down());
        outbox.fail(&down());
        assert!(outbox.items.is_empty());
        for number in [1, 2, 3, 4] {
            assert!(outbox.take(&release(number), None).is_err(), "it is down");
        }
        assert_eq!(outbox.items.len(), 3, "acquired, repaired, extended, and never asked for");
    }

    /// The release of what a later request with the token had got was forgotten with the first.
    #[test]
    fn a_request_that_arrives_redirected_is_not_the_first_one() {
        let mut outbox = Outbox::default();
        assert!(outbox.take(&acquire(1), None).is_ok());
        write(&mut outbox).clear();
        let mut late = Item { is_first: true, ..Item::new(acquire(1), None, false) };
        late.redirected();
        outbox.accept(late);
        assert!(outbox.take(&release(1), None).is_ok());
        outbox.fail(&down());
        assert_eq!(outbox.items.len(), 1, "the release is owed");
    }

    #[test]
    fn a_connection_that_breaks_again_and_again_leaves_one_release_behind() {
        let mut outbox = Outbox::default();
        let ticket = crate::engine::Ticket::parse(b"1-a").unwrap();
        let queue = crate::wire::request::Queue { wait: TTL, ticket, channel: b"c", grant: None };
        assert!(outbox.take(&acquire(1), None).is_ok());
        for _ in 0..100 {
            let packet =
                Packet::release_into_line(b"k", &token(1), (TTL, Mode::Exclusive), queue.clone());
            assert!(outbox.take(&packet, None).is_ok());
            let sent = write(&mut outbox);
            outbox.break_off(sent, &down());
        }
        assert_eq!(outbox.items.len(), 1);
        assert_eq!(outbox.items[0].packet.bytes(), release(1).bytes());
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_are_leaked_are_forgotten_some_time_after_their_end() {
        let mut outbox = Outbox::default();
        for number in 0..200_000 {
            assert!(outbox.take(&acquire(number), None).is_ok());
            write(&mut outbox).clear();
            outbox.unanswered = 0;
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        let most = outbox.asked.claims.len();
        assert!((6_000..20_000).contains(&most), "{most} of the last 62 seconds");
    }

    /// Regression: only the first answer to a release was told, which may not be the last.
    #[test]
    fn whoever_waits_for_a_release_learns_of_each_answer() {
        use super::super::inbox::{Inbox, RequestKind};
        let inbox = Inbox::new(1);
        let told = || inbox.take().map(|arrival| arrival.outcome);
        let mut outbox = Outbox::default();
        assert!(outbox.take(&acquire(1), None).is_ok());
        write(&mut outbox).clear();
        assert!(outbox.take(&release(1), Some(inbox.release_to(0))).is_ok());
        let sent = write(&mut outbox);
        outbox.break_off(sent, &down());
        assert_eq!(told(), Some(Err(down())));
        outbox.fail(&down());
        assert_eq!(told(), Some(Err(down())));
        let mut item = outbox.items.pop_front().unwrap();
        let mut again = item.put_off(Instant::now()).unwrap();
        item.answer(Ok(Reply::Error("BUSY".into())));
        assert_eq!(told(), Some(Ok(Reply::Error("BUSY".into()))));
        again.answer(Ok(Reply::Integer(0)));
        let last = inbox.take().unwrap();
        assert_eq!((last.outcome, last.is_in_doubt), (Ok(Reply::Integer(0)), true));
        assert_eq!((told(), again.is_awaited()), (None, false));
        let once = Item::new(release(1), Some(inbox.reply_to(0, RequestKind::Only)), true);
        assert!(!once.again().is_awaited());
        let repeated = Item::new(release(1), Some(inbox.release_to(0)), true);
        drop(inbox);
        assert!(!repeated.again().is_awaited(), "nobody waits any more");
    }

    /// Regression: the second of two equal releases was dropped without an answer, though nobody
    /// waited for the first any more.
    #[test]
    fn of_equal_releases_the_one_counts_that_is_waited_for() {
        use super::super::inbox::Inbox;
        let mut outbox = Outbox::default();
        let stranger = || release(1).of_a_stranger();
        let [first, second] = [Inbox::new(1), Inbox::new(1)];
        outbox.fail(&down());
        assert!(outbox.take(&stranger(), Some(first.release_to(0))).is_err());
        drop(first);
        assert!(outbox.take(&stranger(), Some(second.release_to(0))).is_err());
        assert!(outbox.take(&stranger(), None).is_err());
        outbox.fail(&down());
        assert_eq!(outbox.items.len(), 1);
        while second.take().is_some() {}
        outbox.items.pop_front().unwrap().answer(Ok(Reply::Integer(1)));
        assert_eq!(second.take().unwrap().outcome, Ok(Reply::Integer(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_that_is_put_off_is_sent_again_until_the_lease_has_ended() {
        let mut outbox = Outbox::default();
        assert!(outbox.take(&acquire(1), None).is_ok() && outbox.take(&release(1), None).is_ok());
        let mut item = outbox.items.pop_back().unwrap();
        let mut times = 0;
        while let Some(again) = item.put_off(Instant::now()) {
            item = again;
            times += 1;
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(times, 10);
        assert!(outbox.items.pop_back().unwrap().put_off(Instant::now()).is_none(), "an acquire");
    }
}
