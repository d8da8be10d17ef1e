//! Groups: a master and its replicas, which clients reach at one address.
//!
//! Each server of a group is a [`Node`]. This code does what the module does for a server's
//! replicas (`src/module/replicas.rs`, `replication.rs`, `start.rs`): the engine decides when a
//! heartbeat is due, which master a replica supports, and what may be granted. Feeds connect the
//! servers: a master's facts reach a replica late and in order, and its acknowledgements come back
//! late. A replica that attaches continues where it was, or receives the whole data set
//! ([`crate::stream`]). When a replica leaves, everything on its way is lost. A replica may follow
//! another replica, and then receives what that one hears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lockmod::codec::decode_lock;
use lockmod::engine::{Attached, Caution, Fence, Lock, Mandate, Millis, Replicas, Tended};
use lockmod::wire::fact::{self, Restated};
use lockmod::wire::outcome::ExtendReply;
use lockmod::wire::spec::Command;
use rand::RngExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until};

use crate::net::{Net, Universe};
use crate::node::{Defect, Node};
use crate::stream::{Fact, Place, Stream, Welcome};

/// The longest lease in a world of groups: a new master waits this long.
pub(crate) const MAX_TTLS: [Millis; 2] = [Millis::new(3_000), Millis::new(12_000)];
/// How often, about, a server's cron checks on its replicas or its master.
const TICK: Duration = Duration::from_millis(200);
/// After this many ticks, a replica acknowledges what it has, and asks for a master if it has none.
const TICKS_PER_ROUND: u64 = 4;

/// A replica, as its master sees it.
#[derive(Debug)]
struct Follower {
    feed: u64,
    server: usize,
    is_online: bool,
    /// Up to this offset, it has been sent what this server writes or hears.
    sent: u64,
    acknowledged: u64,
}

/// What a server knows about its group.
#[derive(Debug)]
pub(crate) struct Member {
    /// `lockmod.replicas`; zero if it is alone.
    pub(crate) replicas: u32,
    /// The server that it follows; `None` if it is a master.
    pub(crate) follows: Option<usize>,
    /// Its feed from that server, if it is attached.
    feed: Option<u64>,
    pub(crate) stream: Stream,
    /// Up to this offset, it receives what its master had kept for it.
    kept_until: u64,
    followers: Vec<Follower>,
    /// A replica that may not know the floor has come online.
    owes_floor: bool,
    ticks: u64,
    /// The highest acknowledged offset at the last check.
    heard: u64,
    pub(crate) tally: GroupTally,
}

/// What happened in a server of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupTally {
    pub(crate) promotions: u64,
    pub(crate) attachments: u64,
    /// Replicas that attached to a replica.
    pub(crate) second_hand: u64,
    /// How many attaching replicas lacked more than was kept.
    pub(crate) fell_behind: u64,
    /// Heartbeats that were kept for a replica: of its present master, of a former one, and its
    /// own.
    pub(crate) heard_again: u64,
    pub(crate) heard_former: u64,
    pub(crate) heard_itself: u64,
    /// Requests that were refused for lack of authority.
    pub(crate) without_authority: u64,
    /// Extensions during a wait, which do not count, or count for one holder only.
    pub(crate) extended_in_wait: u64,
    /// Leases that were granted or extended by a master that had been replaced.
    pub(crate) served_replaced: u64,
}

impl Member {
    pub(crate) fn new(server: usize, replicas: u32, follows: Option<usize>) -> Member {
        Member {
            replicas,
            follows,
            feed: None,
            stream: Stream::new(server),
            kept_until: 0,
            followers: Vec::new(),
            owes_floor: false,
            ticks: 0,
            heard: 0,
            tally: GroupTally::default(),
        }
    }

    /// Starts the server. `saved`: its place, or its master's, when its snapshot was saved.
    pub(crate) fn restart(&mut self, saved: Option<Place>) {
        let Member { replicas, follows, tally, .. } = *self;
        let mut stream = self.stream.clone();
        stream.restart(saved, follows.is_none());
        *self = Member { stream, tally, ..Member::new(0, replicas, follows) };
    }

    /// Its place in the stream, if its data set matches that place.
    pub(crate) fn place(&self) -> Option<Place> {
        self.stream.is_whole().then(|| self.stream.place())
    }

    fn tell(&mut self, fact: Fact) {
        if self.replicas > 0 {
            self.stream.say(fact);
        }
    }

    /// Notes that it hears a heartbeat that its master had kept for it.
    fn note_repeated(&mut self, server: usize, by: usize) {
        let tally = &mut self.tally;
        *(match by {
            _ if by == server => &mut tally.heard_itself,
            _ if self.follows == Some(by) => &mut tally.heard_again,
            _ => &mut tally.heard_former,
        }) += 1;
    }

    pub(crate) fn tell_lock(&mut self, name: &[u8], facts: &[Restated]) {
        self.tell(Fact::Stated(name.to_vec(), facts.to_vec()));
    }

    pub(crate) fn tell_deleted(&mut self, name: &[u8]) {
        self.tell(Fact::Deleted(name.to_vec()));
    }

    /// Notes this reply to an extension by a node that waits for leases of other masters.
    pub(crate) fn note_extension(&mut self, reply: ExtendReply) {
        let is_extended = matches!(reply, ExtendReply::Provisional | ExtendReply::Carried);
        self.tally.extended_in_wait += u64::from(is_extended);
    }

    /// The replicas that are online, as `INFO replication` reports them.
    fn reported(&self) -> Vec<Attached> {
        let online = self.followers.iter().filter(|follower| follower.is_online);
        let attached = |follower: &Follower| Attached {
            name: format!("10.0.0.{}:7000", follower.server).into_bytes(),
            acknowledged: follower.acknowledged,
        };
        online.map(attached).collect()
    }
}

impl Node {
    pub(crate) fn is_in_group(&self) -> bool {
        self.member.replicas > 0
    }

    pub(crate) fn is_master(&self) -> bool {
        self.member.follows.is_none()
    }

    /// Whether a server in this role refuses the command.
    pub(crate) fn is_read_only_for(&self, name: &[u8]) -> bool {
        let command = std::str::from_utf8(name).ok().and_then(Command::named);
        !self.is_master() && command.is_some_and(|command| command.flags.starts_with("write"))
    }

    /// Whether its group allows it to decide.
    pub(crate) fn decides(&self) -> bool {
        let now = self.clocks().now;
        let has_mandate = match self.engine.promises().authority() {
            None => true,
            Some(authority) => authority.mandate(now) == Mandate::Full,
        };
        self.is_up && self.is_master() && has_mandate
    }

    /// Whether it waits for leases of other masters.
    pub(crate) fn waits_with_authority(&self) -> bool {
        let now = self.clocks().now;
        let waits = |mandate: Mandate| matches!(mandate, Mandate::Waits(_));
        self.engine.promises().authority().is_some_and(|it| waits(it.mandate(now)))
    }

    fn caution_on_promotion(&self) -> Caution {
        Caution { quarantine: true, on_promotion: self.defect != Defect::PromotedDoesNotWait }
    }

    /// Runs several times a second.
    fn tick(&mut self) {
        self.member.ticks += 1;
        self.retry_state();
        if !self.is_master() {
            if let Some(change) = self.engine.allow(self.max_ttl, self.clocks().now) {
                let _ = self.change_state(change);
            }
            return;
        }
        let tended = self.tend(true);
        let floor = self.engine.promises().floor();
        if let Some(heartbeat) = tended.heartbeat {
            let text = fact::heartbeat(floor, heartbeat);
            self.member.tell(Fact::Heartbeat(self.number, text));
        }
        if std::mem::take(&mut self.member.owes_floor) && floor > Fence::ZERO {
            self.member.tell(Fact::Floor(floor));
        }
        self.carry_out();
    }

    fn tend(&mut self, may_beat: bool) -> Tended {
        let now = self.clocks().now;
        let attached = self.member.reported();
        let heard = attached.iter().map(|each| each.acknowledged).max().unwrap_or_default();
        let is_news = std::mem::replace(&mut self.member.heard, heard) < heard;
        let offset = match self.defect {
            // As if the data just acknowledged had just been sent.
            Defect::SupportFromReceipt if is_news => heard - 1,
            _ => self.member.stream.offset,
        };
        let waits = self.caution_on_promotion().on_promotion;
        let replicas = Replicas { offset, attached };
        let mut tended = self.engine.tend(now, &replicas, (self.max_ttl, waits), may_beat);
        if let Some(change) = tended.change.take() {
            let _ = self.change_state(change);
        }
        tended
    }

    /// Redis fires only this event when a replica comes or goes.
    fn followers_changed(&mut self) {
        if self.is_master() {
            let _ = self.tend(false);
            self.carry_out();
        }
    }

    /// Makes the server a master, with the data that it has.
    pub(crate) fn promote(&mut self) {
        self.member.follows = None;
        self.member.stream.begin();
        self.member.tally.promotions += 1;
        let caution = self.caution_on_promotion();
        let (change, _) = self.engine.promoted(self.clocks().now, self.max_ttl, caution);
        let _ = self.change_state(change);
        self.carry_out();
    }

    /// Makes the server a replica, or the replica of another master: the event is the same.
    pub(crate) fn demote(&mut self, master: usize) {
        self.member.follows = Some(master);
        let change = self.engine.demoted();
        let _ = self.change_state(change);
        self.carry_out();
    }

    /// The data set for an attaching replica, encoded as for another machine, which has another
    /// boot.
    fn data_set(&self) -> Fact {
        let bytes = |(name, lock): (&Vec<u8>, &Lock)| (name.clone(), self.encode(lock, 0));
        let (stream, _) = self.member.stream.place();
        Fact::DataSet(stream, self.locks.iter().map(bytes).collect())
    }

    /// Applies a fact that a replica receives from its master.
    fn receive(&mut self, offset: u64, fact: Fact) {
        if let Fact::DataSet(stream, locks) = fact {
            self.member.stream.replaced_by((stream, offset));
            return self.load(locks);
        }
        self.member.stream.keep(offset, fact.clone());
        match fact {
            Fact::DataSet(..) => {}
            Fact::Stated(name, facts) => {
                self.apply_facts(&name, &facts, false);
                self.keep_facts(&name, facts);
            }
            Fact::Deleted(name) => self.delete(&name),
            Fact::Heartbeat(by, text) => {
                if offset <= self.member.kept_until {
                    self.member.note_repeated(self.number, by);
                }
                self.hear(&text);
            }
            Fact::Floor(floor) => {
                self.engine.apply_floor(floor);
            }
        }
    }

    fn hear(&mut self, text: &str) {
        let (floor, heartbeat) = fact::read_heartbeat(text.as_bytes()).expect("a master wrote it");
        self.engine.apply_floor(floor);
        let now = self.clocks().now;
        if self.defect == Defect::BelievesTheLastHeartbeat {
            // It assumes no lease longer than this heartbeat says, or its settings.
            self.engine.rest_on(self.member.replicas);
            let _ = self.engine.allow(self.max_ttl, now);
        }
        let (change, _) = self.engine.heard_of(heartbeat, now);
        if let Some(change) = change {
            let _ = self.change_state(change);
        }
    }

    /// An operator sets `lockmod.max-ttl`.
    pub(crate) fn set_max_ttl(&mut self, max_ttl: Millis) {
        self.max_ttl = max_ttl;
        // Nothing is promised if the disk is full then.
        self.set_disk_full(false);
        if let Some(change) = self.engine.allow(max_ttl, self.clocks().now) {
            let _ = self.change_state(change);
        }
    }

    /// Replaces its data with its master's.
    pub(crate) fn load(&mut self, locks: Vec<(Vec<u8>, Vec<u8>)>) {
        self.engine.all_unlinked();
        self.locks.clear();
        for (name, bytes) in &locks {
            let loaded = decode_lock(bytes, self.dated(), self.boot).expect("a node wrote it");
            self.engine.loaded(&loaded.lock, loaded.floor);
            self.locks.insert(name.clone(), loaded.lock);
        }
        // A full disk has room again before a role changes.
        let _ = self.write_ahead();
        self.carry_out();
        self.replace_data(locks);
    }

    /// Notes a replica's acknowledgement over this feed.
    fn acknowledged(&mut self, feed: u64, offset: u64) {
        let followers = &mut self.member.followers;
        let Some(follower) = followers.iter_mut().find(|each| each.feed == feed) else { return };
        follower.acknowledged = offset;
        if !std::mem::replace(&mut follower.is_online, true) {
            self.member.owes_floor = true;
            self.followers_changed();
        }
    }

    fn lost_follower(&mut self, feed: u64) {
        let before = self.member.followers.len();
        self.member.followers.retain(|follower| follower.feed != feed);
        if self.is_up && self.member.followers.len() < before {
            self.followers_changed();
        }
    }
}

/// The connections between the servers of groups.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    made: u64,
    by_number: BTreeMap<u64, Feed>,
    /// Pairs of servers between which all messages are held.
    held: BTreeSet<(usize, usize)>,
}

/// Both ends of a connection. When it is dropped, messages in flight arrive, and then both sides
/// learn of it.
#[derive(Debug)]
struct Feed {
    master: usize,
    facts: UnboundedSender<(Instant, u64, Fact)>,
    acknowledged: UnboundedSender<(Instant, u64)>,
}

impl Feeds {
    fn is_held(&self, one: usize, other: usize) -> bool {
        self.held.contains(&(one.min(other), one.max(other)))
    }

    /// Ends all feeds of a master.
    fn end_all_of(&mut self, master: usize) {
        self.by_number.retain(|_, feed| feed.master != master);
    }
}

impl Universe {
    /// The servers of a group.
    pub(crate) fn servers_of(&self, group: usize) -> impl Iterator<Item = usize> + use<> {
        (group..self.nodes.len()).step_by(self.groups)
    }

    pub(crate) fn group_of(&self, server: usize) -> usize {
        server % self.groups
    }

    /// Forwards what this server writes or hears to its replicas.
    pub(crate) fn feed(&mut self, server: usize) {
        let mut followers = std::mem::take(&mut self.nodes[server].member.followers);
        for follower in &mut followers {
            for (offset, fact) in self.nodes[server].member.stream.since(follower.sent) {
                let arrives_at = Instant::now() + self.lag();
                follower.sent = offset;
                if let Some(feed) = self.feeds.by_number.get(&follower.feed) {
                    let _ = feed.facts.send((arrives_at, offset, fact));
                }
            }
        }
        self.nodes[server].member.followers = followers;
    }

    /// Does a server's periodic work, several times a second.
    fn tick(&mut self, server: usize) {
        self.nodes[server].tick();
        let member = &self.nodes[server].member;
        let is_due = member.ticks.is_multiple_of(TICKS_PER_ROUND) && member.stream.is_whole();
        let Some(feed) = member.feed.filter(|_| is_due) else { return };
        let arrives_at = Instant::now() + self.lag();
        if let Some(feed) = self.feeds.by_number.get(&feed) {
            let _ = feed.acknowledged.send((arrives_at, self.nodes[server].member.stream.offset));
        }
    }

    /// The master that this server could attach to now, if it has none.
    fn master_for(&self, server: usize) -> Option<usize> {
        let member = &self.nodes[server].member;
        let master = member
            .follows
            .filter(|_| member.feed.is_none() && member.ticks.is_multiple_of(TICKS_PER_ROUND))?;
        let node = &self.nodes[master];
        // A replica without a master does not serve replicas.
        let serves = node.member.feed.is_some() && node.member.stream.is_whole();
        let runs = node.is_up && self.hung_until[master] <= Instant::now();
        let runs = runs && (node.is_master() || serves);
        (runs && !self.feeds.is_held(server, master)).then_some(master)
    }

    /// Attaches a replica. Returns the offset from which it can continue, if it can.
    fn welcome(&mut self, server: usize, master: usize) -> Option<u64> {
        let is_second_hand = !self.nodes[master].is_master();
        let stream = &self.nodes[master].member.stream;
        let welcome = stream.welcome(&self.nodes[server].member.stream);
        let (id, offset) = stream.place();
        let member = &mut self.nodes[server].member;
        member.tally.attachments += 1;
        member.tally.second_hand += u64::from(is_second_hand);
        member.tally.fell_behind += u64::from(welcome == Welcome::FellBehind);
        if welcome != Welcome::GoesOn {
            member.kept_until = 0;
            member.stream.starts_over();
            return None;
        }
        member.kept_until = offset;
        let from = member.stream.offset;
        if member.stream.goes_on_in(id) {
            self.dismiss_replicas(server);
        }
        Some(from)
    }

    /// Separates a server from its master: messages on their way to it are lost.
    pub(crate) fn detach(&mut self, server: usize) {
        if let Some(feed) = self.nodes[server].member.feed.take() {
            self.feeds.by_number.remove(&feed);
        }
    }

    /// Detaches all replicas of a server.
    pub(crate) fn dismiss_replicas(&mut self, server: usize) {
        self.nodes[server].member.followers.clear();
        self.feeds.end_all_of(server);
    }

    /// Makes a replica the master to which its group's address leads from now on. Existing
    /// connections to other servers remain.
    pub(crate) fn promote(&mut self, server: usize) {
        let group = self.group_of(server);
        if !self.nodes[server].is_up {
            return;
        }
        (self.home[group], self.leads_to[group]) = (server, server);
        if self.nodes[server].is_master() {
            return;
        }
        self.leave(server);
        self.nodes[server].promote();
        // Leases that were released or deleted at the former master may reappear.
        let back = self.nodes[server].held_tokens();
        back.iter().for_each(|(name, token)| self.shadow.outlived(name, token));
        self.stranded.extend(back.into_iter().map(|(_, token)| token));
    }

    /// Makes a server follow another from now on, if it is up.
    pub(crate) fn follow(&mut self, server: usize, master: usize) {
        if server == master || !self.nodes[server].is_up {
            return;
        }
        if self.nodes[server].member.follows == Some(master) {
            return;
        }
        self.leave(server);
        // Nothing is promised if the disk is full when a role changes.
        self.nodes[server].set_disk_full(false);
        self.nodes[server].demote(master);
    }

    /// Sets the longest lease of a group, as an operator does, if all its servers run.
    pub(crate) fn allow(&mut self, group: usize, max_ttl: Millis) {
        if self.servers_of(group).all(|server| self.nodes[server].is_up) {
            self.servers_of(group).for_each(|server| self.nodes[server].set_max_ttl(max_ttl));
        }
    }

    /// Notes whether a server that has vouched for a client is a replaced master.
    pub(crate) fn note_replaced(&mut self, server: usize) {
        let is_replaced = self.home[self.group_of(server)] != server;
        self.nodes[server].member.tally.served_replaced += u64::from(is_replaced);
    }

    /// Detaches a stopping server from its master and its replicas.
    pub(crate) fn leave(&mut self, server: usize) {
        self.detach(server);
        self.dismiss_replicas(server);
    }

    /// Chooses the role in which a server starts: the same as before, but a replaced master may
    /// start as a replica.
    pub(crate) fn choose_role(&mut self, server: usize) {
        let home = self.home[self.group_of(server)];
        if home != server && self.random.random_bool(0.7) {
            self.nodes[server].member.follows = Some(home);
        }
    }

    /// A short delay, or now and then a much longer one.
    fn lag(&mut self) -> Duration {
        let most = if self.random.random_ratio(1, 100) { 300 } else { self.delay_ms };
        Duration::from_micros(self.random.random_range(0..=most * 1_000))
    }
}

impl Net {
    /// Starts the cron of every server in a group.
    pub(crate) fn run_groups(self: &Arc<Self>) {
        let servers = self.universe().nodes.len();
        (0..servers).for_each(|server| drop(tokio::spawn(Arc::clone(self).cron(server))));
    }

    /// Runs until the simulation ends.
    async fn cron(self: Arc<Self>, server: usize) {
        loop {
            let early = self.universe().random.random_range(0.7..1.1);
            sleep(TICK.mul_f64(early)).await;
            self.wait_while_hung(server).await;
            let mut universe = self.universe();
            if !universe.nodes[server].is_up {
                continue;
            }
            universe.tick(server);
            self.attend(&mut universe, server);
            if let Some(master) = universe.master_for(server) {
                self.attach(&mut universe, server, master);
            }
        }
    }

    fn attach(self: &Arc<Self>, universe: &mut Universe, server: usize, master: usize) {
        universe.feeds.made += 1;
        let number = universe.feeds.made;
        let (facts, told) = unbounded_channel();
        let (acknowledged, heard) = unbounded_channel();
        let took = Duration::from_millis(universe.random.random_range(1..500));
        let goes_on = universe.welcome(server, master);
        let is_online = goes_on.is_some() || universe.random.random();
        let node = &mut universe.nodes[master];
        let sent = goes_on.unwrap_or_else(|| {
            let offset = node.member.stream.offset;
            let _ = facts.send((Instant::now() + took, offset, node.data_set()));
            offset
        });
        let follower = Follower { feed: number, server, is_online, sent, acknowledged: 0 };
        node.member.followers.push(follower);
        node.member.owes_floor |= is_online;
        node.followers_changed();
        universe.nodes[server].member.feed = Some(number);
        universe.feeds.by_number.insert(number, Feed { master, facts, acknowledged });
        universe.feed(master);
        tokio::spawn(Arc::clone(self).tell(number, (master, server), told));
        tokio::spawn(Arc::clone(self).hear(number, (master, server), heard));
    }

    async fn pass(&self, (one, other): (usize, usize), to: usize) {
        self.wait_until(|universe| (!universe.feeds.is_held(one, other)).then_some(())).await;
        self.wait_while_hung(to).await;
    }

    /// Delivers a master's facts to its replica.
    async fn tell(
        self: Arc<Self>,
        feed: u64,
        (master, server): (usize, usize),
        mut told: UnboundedReceiver<(Instant, u64, Fact)>,
    ) {
        while let Some((arrives_at, offset, fact)) = told.recv().await {
            sleep_until(arrives_at).await;
            self.pass((master, server), server).await;
            let mut universe = self.universe();
            if universe.nodes[server].member.feed != Some(feed) {
                return;
            }
            if matches!(fact, Fact::DataSet(..)) {
                universe.dismiss_replicas(server);
            }
            universe.nodes[server].receive(offset, fact);
            self.attend(&mut universe, server);
        }
        let member = &mut self.universe().nodes[server].member;
        member.feed = member.feed.filter(|present| *present != feed);
    }

    /// Delivers a replica's acknowledgements to its master, and finally its departure.
    async fn hear(
        self: Arc<Self>,
        feed: u64,
        (master, server): (usize, usize),
        mut heard: UnboundedReceiver<(Instant, u64)>,
    ) {
        while let Some((arrives_at, offset)) = heard.recv().await {
            sleep_until(arrives_at).await;
            self.pass((master, server), master).await;
            let mut universe = self.universe();
            universe.nodes[master].acknowledged(feed, offset);
            self.attend(&mut universe, master);
        }
        let late = self.universe().random.random_range(0..3_000_000);
        sleep(Duration::from_micros(late)).await;
        self.pass((master, server), master).await;
        let mut universe = self.universe();
        universe.nodes[master].lost_follower(feed);
        self.attend(&mut universe, master);
    }

    /// Holds or releases all messages between two servers.
    pub(crate) fn hold(self: &Arc<Self>, (one, other): (usize, usize), is_held: bool) {
        let pair = (one.min(other), one.max(other));
        self.change(|universe| match is_held {
            true => universe.feeds.held.insert(pair),
            false => universe.feeds.held.remove(&pair),
        });
    }

    /// Makes a server follow the master of its group, as soon as it no longer hangs.
    pub(crate) async fn follow_home(self: &Arc<Self>, server: usize) {
        self.wait_while_hung(server).await;
        self.change(|universe| universe.follow(server, universe.home[universe.group_of(server)]));
    }

    /// Leaves each group with one master, which all others follow.
    pub(crate) fn reform(self: &Arc<Self>) {
        self.change(|universe| {
            universe.feeds.held.clear();
            for group in 0..universe.groups {
                let home = universe.home[group];
                universe.promote(home);
                universe.servers_of(group).for_each(|server| universe.follow(server, home));
            }
        });
    }
}
