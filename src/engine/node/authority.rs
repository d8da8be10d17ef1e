//! Whether a master may decide: a majority lease, made of heartbeats and acknowledged offsets.
//!
//! A master that is cut off does not know that another has replaced it. So it decides only while
//! enough of its replicas support it, and each replica supports one master at a time. A replica
//! that has acknowledged data sent after an instant followed this master at that instant or later:
//! it supports the master until [`SUPPORT`] after that instant, counted from when the heartbeat was
//! *sent*. A new replica counts only when its support of any other master is over.
//!
//! This value reads no clock and knows no server. The caller reports when it sends a heartbeat, and
//! which replicas are attached. docs/design.md, "After a failover", has the numbered rules.

use std::collections::VecDeque;

use super::Notice;
use super::company::whole_wait;
use crate::engine::{Instant, Millis, Refusal, TTL_MAX, Terms};

/// How long a replica supports a master, from the sending of a heartbeat that it acknowledged.
pub const SUPPORT: Millis = Millis::new(5_000);
/// How often a master sends a heartbeat.
pub const BEAT: Millis = Millis::new(1_000);

/// The time limits of a replica's support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pledge {
    /// How long it lasts from the sending of a heartbeat.
    pub support: Millis,
    /// How long a replica must have been attached before it counts: longer than it can still
    /// support another master, by any clock.
    pub attachment: Millis,
}

impl Pledge {
    /// The limits that nodes use. Clocks may differ by 1 % in rate, and are read to the
    /// millisecond.
    pub const USUAL: Pledge = Pledge { support: SUPPORT, attachment: with_drift(SUPPORT) };
}

/// A length of time, with the drift allowance for another machine's clock.
pub(super) const fn with_drift(length: Millis) -> Millis {
    length.saturating_add(Terms::new(length).drift)
}

/// A connection of a replica, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attached {
    /// The replica. Connections with the same name count as one supporter.
    pub name: Vec<u8>,
    /// The offset that it has acknowledged.
    pub acknowledged: u64,
}

/// What a master reports of itself once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The longest lease that may stand in its group.
    pub longest: Millis,
    /// Its `lockmod.replicas`.
    pub replicas: u32,
}

/// What a node may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mandate {
    /// Nothing: too few replicas support it, or it is a replica itself.
    None,
    /// It has the support, but waits this much longer, because leases of another master may stand.
    Waits(Millis),
    /// It decides.
    Full,
}

/// Everything beyond this offset was sent to the replicas after this instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Beat {
    at: Instant,
    offset: u64,
}

/// An attached replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Follower {
    name: Vec<u8>,
    /// How many connections have its name.
    connections: usize,
    /// The highest offset that it has acknowledged over them.
    acknowledged: u64,
    /// Its connections have lasted since this instant.
    attached_at: Instant,
    /// The last heartbeat that it has acknowledged was sent after this instant.
    heard_at: Option<Instant>,
}

/// A master's time in office.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Office {
    /// The last instant at which it has authority; `None` if it never had any.
    until: Option<Instant>,
    /// The last instant of its wait for the leases of other masters.
    waits_until: Instant,
    /// It waits at least up to this instant for masters of other groups.
    others_until: Instant,
    /// When that wait began.
    others_since: Option<Instant>,
    /// Its wait is over, and its floor is above the fences of other masters.
    is_settled: bool,
}

/// The authority of one node.
///
/// A model searches all of its states: what only tells of the past, such as a count of losses, is
/// kept in the node instead, or there are more states than can be searched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    replicas: u32,
    pledge: Pledge,
    longest: Longest,
    beats: VecDeque<Beat>,
    /// Sorted by name.
    followers: Vec<Follower>,
    /// `None`: it is a replica.
    office: Option<Office>,
    /// Whether its settings make it wait for the leases of other masters.
    waits: bool,
}

impl Authority {
    /// The authority of a node, a replica so far, in a group whose masters have `replicas`
    /// replicas.
    pub fn new(replicas: u32, pledge: Pledge) -> Authority {
        Authority {
            replicas,
            pledge,
            longest: Longest::default(),
            beats: VecDeque::new(),
            followers: Vec::new(),
            office: None,
            waits: true,
        }
    }

    // ------------------------------------------------------------------------------------ events

    /// Notes that the node starts again. `longest` is the longest lease according to its state
    /// file; zero if the file does not contain it. `max_ttl` is its setting.
    ///
    /// A node that was started with a smaller setting may gain authority while leases under the
    /// former one stand. It knows nothing else about them, so it waits for their full length,
    /// however late it gains authority, unless it first follows a master, which knows about them
    /// too.
    pub fn restarts(&mut self, longest: Millis, max_ttl: Millis, now: Instant) {
        self.longest.heard = self.longest.heard.max(longest.min(TTL_MAX));
        self.longest.allow(max_ttl, now);
        self.longest.saved = self.longest.at(now);
    }

    /// Makes the node a master, which has no supporters yet.
    pub fn appointed(&mut self) {
        self.beats.clear();
        self.followers.clear();
        self.office = Some(Office::default());
    }

    /// Makes the node a replica.
    pub fn dismissed(&mut self) {
        self.beats.clear();
        self.followers.clear();
        self.office = None;
    }

    /// Takes the length of lease that the node's settings allow, whether or not it has changed.
    pub fn allow(&mut self, max_ttl: Millis, now: Instant) {
        self.longest.allow(max_ttl, now);
    }

    /// The length of lease that the node's settings allow.
    pub fn max_ttl(&self) -> Millis {
        self.longest.allowed
    }

    /// Takes a heartbeat of this node's master. It may be an old one: a node that was away receives
    /// again what it missed.
    pub fn heard(&mut self, heartbeat: Heartbeat, now: Instant) {
        let former = std::mem::replace(&mut self.longest.heard, heartbeat.longest);
        self.longest.lowered(former, heartbeat.longest, now);
    }

    /// Notes that a heartbeat will be sent. Everything beyond `offset` was, or will be, sent after
    /// `now`.
    ///
    /// `offset` must be read after `now` was. Whether the heartbeat is really sent does not matter:
    /// only what is beyond the offset counts.
    pub fn beats(&mut self, now: Instant, offset: u64) {
        if self.beats.back().is_some_and(|last| offset < last.offset) {
            // This is another history of writes: earlier acknowledgements mean nothing.
            self.beats.clear();
            self.followers.clear();
        }
        let support = self.pledge.support;
        self.beats.retain(|beat| beat.at.after(support) >= now);
        self.beats.push_back(Beat { at: now, offset });
    }

    /// Whether a heartbeat is due.
    pub fn is_to_beat(&self, now: Instant) -> bool {
        let is_recent = |beat: &Beat| beat.at.after(BEAT) > now;
        self.office.is_some() && !self.beats.back().is_some_and(is_recent)
    }

    /// Takes the attached replicas, read after `now`. `waits`: whether a wait is needed for the
    /// leases of other masters.
    pub fn look(&mut self, now: Instant, attached: &[Attached], waits: bool) {
        self.follow(now, attached);
        self.waits = waits;
        let supported_until = self.supported_until(now);
        let wait = if waits { with_drift(self.longest.at(now)) } else { Millis::ZERO };
        let Some(until) = supported_until else { return };
        let is_unbroken = self.is_unbroken(now);
        let Some(office) = &mut self.office else { return };
        if !is_unbroken {
            let others_until = if waits { office.others_until } else { Instant::default() };
            (office.waits_until, office.is_settled) = (others_until.max(now.after(wait)), false);
        }
        office.until = office.until.max(Some(until));
    }

    /// Whether no other node can have had authority since this node last had it. While a majority
    /// supports this node, no majority supports another. If the support has ended, but enough
    /// connections have lasted, their replicas have followed no other master.
    fn is_unbroken(&self, now: Instant) -> bool {
        let Some(last) = self.office.and_then(|office| office.until) else { return false };
        let has_lasted = |follower: &&Follower| self.counts(follower, last);
        last >= now || self.supporters_at(now).filter(has_lasted).count() >= self.needed()
    }

    /// Notes that the wait is over, and the node's floor above all fences of other masters.
    pub fn settled(&mut self) {
        if let Some(office) = &mut self.office {
            (office.is_settled, office.others_since) = (true, None);
            self.longest.heard = Millis::ZERO;
        }
    }

    /// Lets the node wait, from now on, for leases of masters of other groups, which may have
    /// decided in its slots until now. `longest`: the longest of them, if that is more than the
    /// node's own.
    pub(super) fn waits_for(&mut self, longest: Millis, now: Instant) {
        let until = now.after(whole_wait(longest.max(self.longest.at(now))));
        if let Some(office) = self.office.as_mut().filter(|_| self.waits) {
            (office.others_until, office.is_settled) = (until, false);
            office.others_since = Some(now);
            office.waits_until = office.waits_until.max(until);
        }
    }

    /// Lets that wait be longer, if it is not over: a longer lease has been heard of.
    pub(super) fn waits_longer(&mut self, longest: Millis) {
        let Some(office) = self.office.as_mut().filter(|office| !office.is_settled) else { return };
        if let Some(since) = office.others_since.filter(|_| self.waits) {
            office.others_until = office.others_until.max(since.after(whole_wait(longest)));
            office.waits_until = office.waits_until.max(office.others_until);
        }
    }

    /// Ends the wait at an operator's request.
    pub fn end_wait(&mut self) {
        if let Some(office) = &mut self.office {
            (office.waits_until, office.others_until) = Default::default();
            office.others_since = None;
        }
    }

    // ------------------------------------------------------------------------------------ queries

    /// What the node may do at `now`.
    pub fn mandate(&self, now: Instant) -> Mandate {
        match self.office {
            Some(Office { until: Some(until), waits_until, is_settled, .. }) if now <= until => {
                if is_settled {
                    return Mandate::Full;
                }
                // The wait is not over before the floor is raised.
                let left = now.until(waits_until.after(Millis::new(1)));
                Mandate::Waits(left.max(Millis::new(1)))
            }
            Some(_) | None => Mandate::None,
        }
    }

    /// Whether the wait is over, and [`Authority::settled`] is due.
    pub fn is_to_settle(&self, now: Instant) -> bool {
        let is_over =
            self.office.is_some_and(|office| !office.is_settled && office.waits_until < now);
        is_over && self.mandate(now) != Mandate::None
    }

    /// Whether this node's extensions may count: no wait is in force or still to come.
    pub fn is_settled(&self) -> bool {
        self.office.is_none_or(|office| office.is_settled)
    }

    /// How soon a master that has no replica yet can grant.
    pub(super) fn first_grant_in(&self, now: Instant) -> Millis {
        self.pledge.attachment.saturating_add(with_drift(self.longest.at(now)))
    }

    /// How long, at least, a master without authority grants nothing because leases of other
    /// masters may stand: the wait, which has not begun, and the time until enough replicas count.
    /// Zero if it will not wait.
    pub(super) fn least_left(&self, now: Instant) -> Millis {
        let Some(office) = self.office.filter(|_| self.waits) else { return Millis::ZERO };
        let has_lasted =
            |follower: &&Follower| office.until.is_some_and(|last| self.counts(follower, last));
        let lasted = self.followers.iter().filter(has_lasted).count();
        if office.is_settled && lasted >= self.needed() {
            return Millis::ZERO;
        }
        let counts_in = |follower: &Follower| {
            now.until(follower.attached_at.after(self.pledge.attachment).after(Millis::new(1)))
        };
        let mut lacking: Vec<Millis> = self.followers.iter().map(counts_in).collect();
        lacking.sort_unstable();
        let lacking = lacking.get(self.needed().saturating_sub(1)).copied();
        let lacking = lacking.unwrap_or(self.pledge.attachment);
        let left = match lasted >= self.needed() {
            true => now.until(office.waits_until.after(Millis::new(1))),
            false => with_drift(self.longest.at(now)),
        };
        left.saturating_add(lacking)
    }

    /// How many replicas support the node by the rules. A replica that has left supports it until
    /// its last heartbeat expires; these are counted only up to the number that is needed.
    pub(super) fn counted_supporters(&self, now: Instant) -> usize {
        let lasting = if self.mandate(now) == Mandate::None { 0 } else { self.needed() };
        self.supporters(now).max(lasting)
    }

    /// The refusal of a node without authority.
    #[cold]
    pub fn refusal(&self, now: Instant) -> Refusal {
        Refusal::NoAuthority { supporters: self.supporters(now), needed: self.needed() }
    }

    /// What an operator should know; `None` on a replica.
    pub(super) fn notice(&self, now: Instant) -> Option<Notice> {
        self.office?;
        Some(match self.mandate(now) {
            Mandate::Full => Notice::Decides,
            Mandate::Waits(left) => Notice::Waits(left),
            Mandate::None => {
                Notice::Lacking { supporters: self.supporters(now), needed: self.needed() }
            }
        })
    }

    /// The longest lease that may stand in the group, as the state file must record it.
    pub fn longest(&self, now: Instant) -> Millis {
        self.longest.at(now)
    }

    /// The longest lease that the state file must record, if that has changed. After a crash a wait
    /// in force must be as long again, so the length is not lowered before the wait is over.
    pub fn news_of_longest(&mut self, now: Instant) -> Option<Millis> {
        let (longest, saved) = (self.longest.at(now), self.longest.saved);
        let is_news = longest > saved || longest < saved && self.is_settled();
        is_news.then(|| {
            self.longest.saved = longest;
            longest
        })
    }

    /// What to send to replicas.
    pub fn heartbeat(&self, now: Instant) -> Heartbeat {
        Heartbeat { longest: self.longest.at(now), replicas: self.replicas }
    }

    /// The node's `lockmod.replicas`.
    pub fn replicas(&self) -> u32 {
        self.replicas
    }

    /// How many replicas are attached.
    pub fn attached(&self) -> usize {
        self.followers.len()
    }

    /// How many replicas support the node.
    pub fn supporters(&self, now: Instant) -> usize {
        self.supporters_at(now).count()
    }

    /// How many supporters it needs.
    ///
    /// With this master, these are a majority of a master and its replicas. Two majorities have a
    /// node in common, which supports one master, or is one, at a time.
    pub fn needed(&self) -> usize {
        self.replicas.div_ceil(2) as usize
    }

    /// The same value by a clock that reads `time` less and offsets that are `bytes` lower, for a
    /// model whose time stands still.
    #[must_use]
    pub fn rebased(&self, time: Millis, bytes: u64) -> Authority {
        let mut rebased = self.clone();
        // All fields are named, so that none is forgotten.
        let Authority { replicas: _, pledge: _, longest, beats, followers, office, waits: _ } =
            &mut rebased;
        for Beat { at, offset } in beats {
            (*at, *offset) = (at.before(time), offset.saturating_sub(bytes));
        }
        for Follower { name: _, connections: _, acknowledged, attached_at, heard_at } in followers {
            (*acknowledged, *attached_at) =
                (acknowledged.saturating_sub(bytes), attached_at.before(time));
            *heard_at = heard_at.map(|at| at.before(time));
        }
        if let Some(office) = office {
            let Office { until, waits_until, others_until, others_since, is_settled: _ } = office;
            *until = until.map(|at| at.before(time));
            (*waits_until, *others_until) = (waits_until.before(time), others_until.before(time));
            *others_since = others_since.map(|at| at.before(time));
        }
        longest.before = longest.before.map(|(ttl, until)| (ttl, until.before(time)));
        rebased
    }

    // --------------------------------------------------------------------------------- followers

    /// Notes which replicas are attached, and what they have acknowledged. A connection that is
    /// gone, or new, makes its replica a newcomer.
    fn follow(&mut self, now: Instant, attached: &[Attached]) {
        let mut attached = attached.to_vec();
        attached.sort_unstable();
        let followers = attached.chunk_by(|one, next| one.name == next.name);
        let followers: Vec<_> = followers.map(|of_one| self.follower(now, of_one)).collect();
        self.followers = followers;
    }

    /// The replica with these connections, which have one name.
    fn follower(&self, now: Instant, connections: &[Attached]) -> Follower {
        let (name, count) = (connections[0].name.clone(), connections.len());
        let acknowledged = connections.iter().map(|each| each.acknowledged).max().unwrap_or(0);
        let is_same = |known: &&Follower| {
            // Offsets only rise over one connection.
            known.name == name && known.connections == count && known.acknowledged <= acknowledged
        };
        let known = self.followers.iter().find(is_same);
        let heard = self.beats.iter().rev().find(|beat| beat.offset < acknowledged);
        Follower {
            name,
            connections: count,
            acknowledged,
            attached_at: known.map_or(now, |known| known.attached_at),
            heard_at: heard.map(|beat| beat.at).max(known.and_then(|known| known.heard_at)),
        }
    }

    /// Whether this replica may support the node at `now`: it followed no other master when the
    /// oldest heartbeat that counts then was sent.
    fn counts(&self, follower: &Follower, now: Instant) -> bool {
        follower.attached_at.after(self.pledge.attachment) < now
    }

    /// The last instant of a replica's support.
    fn ends_at(&self, follower: &Follower) -> Option<Instant> {
        follower.heard_at.map(|at| at.after(self.pledge.support))
    }

    fn supporters_at(&self, now: Instant) -> impl Iterator<Item = &Follower> {
        let is_heard = move |follower: &&Follower| self.ends_at(follower) >= Some(now);
        self.followers.iter().filter(move |each| self.counts(each, now)).filter(is_heard)
    }

    /// The last instant at which enough of the present supporters still support the node.
    fn supported_until(&self, now: Instant) -> Option<Instant> {
        let mut ends: Vec<_> =
            self.supporters_at(now).filter_map(|each| self.ends_at(each)).collect();
        ends.sort_unstable();
        let place = ends.len().checked_sub(self.needed())?;
        Some(ends.get(place).copied().unwrap_or(now.after(self.pledge.support)))
    }
}

/// The longest lease that may stand at this node or another of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Longest {
    /// The node's setting.
    allowed: Millis,
    /// A larger former length, and the last instant at which a lease of that length may stand.
    before: Option<(Millis, Instant)>,
    /// The length from its last master, or from the state file at the start.
    heard: Millis,
    /// The length that the state file must record.
    saved: Millis,
}

impl Longest {
    fn allow(&mut self, allowed: Millis, now: Instant) {
        let former = std::mem::replace(&mut self.allowed, allowed);
        self.lowered(former, allowed, now);
    }

    /// Leases of the former length may stand for that long after it was lowered.
    fn lowered(&mut self, former: Millis, to: Millis, now: Instant) {
        self.before = self.before.filter(|&(_, until)| now <= until);
        if to < former {
            let (longest, until) = self.before.unwrap_or_default();
            let until = until.max(now.after(with_drift(former)));
            self.before = Some((former.max(longest), until));
        }
    }

    fn at(&self, now: Instant) -> Millis {
        let before = self.before.filter(|&(_, until)| now <= until).map(|(longest, _)| longest);
        self.allowed.max(self.heard).max(before.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TTL: Millis = Millis::new(1_000);
    /// The wait for leases of that length.
    const WAIT: u64 = 1_012;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn says(longest: u64) -> Heartbeat {
        Heartbeat { longest: Millis::new(longest), replicas: 2 }
    }

    fn replica(name: u8, acknowledged: u64) -> Attached {
        Attached { name: vec![name], acknowledged }
    }

    /// A master since 0 with two replicas, both attached at 1000.
    fn master() -> Authority {
        let mut master = Authority::new(2, Pledge::USUAL);
        master.allow(TTL, at(0));
        master.appointed();
        master.look(at(1_000), &[replica(1, 0), replica(2, 0)], true);
        master
    }

    /// A master with authority since 6053, when its first replica had acknowledged data sent
    /// at 6000.
    fn supported() -> Authority {
        let mut master = master();
        master.beats(at(6_000), 100);
        master.look(at(6_053), &[replica(1, 101), replica(2, 0)], true);
        master
    }

    /// The same, after its wait.
    fn settled() -> Authority {
        let mut master = supported();
        assert!(!master.is_to_settle(at(6_053 + WAIT)) && master.is_to_settle(at(6_054 + WAIT)));
        master.settled();
        master
    }

    #[test]
    fn a_replica_counts_when_it_cannot_support_another_any_more() {
        let mut master = master();
        master.beats(at(6_000), 100);
        master.look(at(6_052), &[replica(1, 101), replica(2, 0)], true);
        assert_eq!(master.mandate(at(6_052)), Mandate::None, "5052 ms are not enough");
        assert_eq!(supported().mandate(at(6_053)), Mandate::Waits(Millis::new(WAIT + 1)));
        let refusal = Refusal::NoAuthority { supporters: 0, needed: 1 };
        assert_eq!(master.refusal(at(6_052)), refusal);
    }

    #[test]
    fn support_lasts_five_seconds_from_the_sending() {
        let master = settled();
        assert_eq!(master.mandate(at(11_000)), Mandate::Full);
        assert_eq!(master.mandate(at(11_001)), Mandate::None, "counted from the sending at 6000");
        // An acknowledgement of data from before the heartbeat proves nothing.
        let mut other = self::master();
        other.beats(at(6_000), 100);
        other.look(at(6_100), &[replica(1, 100), replica(2, 100)], true);
        assert_eq!(other.mandate(at(6_100)), Mandate::None);
    }

    #[test]
    fn a_wait_ends_only_when_the_floor_is_raised() {
        let master = supported();
        assert_eq!(master.mandate(at(9_000)), Mandate::Waits(Millis::new(1)));
        assert!(!master.is_settled());
    }

    /// What is heard after that wait makes no later one longer.
    #[test]
    fn a_wait_for_masters_of_other_groups_is_over_for_good() {
        let mut master = supported();
        master.waits_for(TTL, at(6_053));
        master.settled();
        master.look(at(90_000), &[], true);
        master.look(at(91_000), &[replica(1, 101), replica(2, 0)], true);
        master.beats(at(97_000), 200);
        master.look(at(97_053), &[replica(1, 201), replica(2, 0)], true);
        master.waits_longer(Millis::new(1_000_000));
        assert_eq!(master.mandate(at(97_053)), Mandate::Waits(Millis::new(WAIT + 1)));
    }

    /// Regression: a promoted master that was cut off from all others waited by the clock, and then
    /// granted beside the master of another group that had got one of its slots.
    #[test]
    fn a_wait_for_masters_of_other_groups_counts_from_when_most_confirm_the_slots() {
        let whole = whole_wait(TTL).get();
        let mut late = settled();
        late.waits_for(Millis::ZERO, at(8_000));
        assert_eq!(late.mandate(at(8_000)), Mandate::Waits(Millis::new(whole + 1)));
        late.waits_for(Millis::new(3_000), at(8_000));
        let longer = whole_wait(Millis::new(3_000)).get();
        assert_eq!(late.mandate(at(8_000)), Mandate::Waits(Millis::new(longer + 1)));
        // Regression: it heard of a longer lease in its wait.
        late.waits_longer(Millis::new(4_000));
        late.waits_longer(Millis::new(1_000));
        let longer = whole_wait(Millis::new(4_000)).get();
        assert_eq!(late.mandate(at(8_001)), Mandate::Waits(Millis::new(longer)));
        late.end_wait();
        assert!(late.is_to_settle(at(8_000)));
        late.waits_longer(Millis::new(4_000));
        assert!(late.is_to_settle(at(8_000)), "it was told not to wait");
        // Before it has authority.
        let mut early = master();
        early.waits_for(Millis::ZERO, at(5_000));
        early.beats(at(6_000), 100);
        let mut waits = early.clone();
        waits.look(at(6_053), &[replica(1, 101), replica(2, 0)], true);
        assert_eq!(
            waits.mandate(at(6_053)),
            Mandate::Waits(Millis::new(5_000 + whole + 1 - 6_053))
        );
        early.look(at(6_053), &[replica(1, 101), replica(2, 0)], false);
        assert!(early.is_to_settle(at(6_054)), "its settings ask for no wait");
        let mut replica = Authority::new(2, Pledge::USUAL);
        replica.waits_for(TTL, at(0));
        assert!(replica.is_settled());
    }

    #[test]
    fn after_a_loss_connections_that_lasted_spare_the_wait() {
        let regained = |name: u8, is_broken: bool| {
            let mut master = settled();
            if is_broken {
                master.look(at(12_000), &[replica(2, 0)], true);
            }
            master.beats(at(20_000), 200);
            let both = [replica(1, 101), replica(2, 0)];
            master.look(at(20_000), &both, true);
            assert_eq!(master.mandate(at(20_000)), Mandate::None);
            master.look(
                at(20_100),
                &both.map(|each| match each.name[0] == name {
                    true => replica(name, 201),
                    false => each,
                }),
                true,
            );
            master.mandate(at(20_100))
        };
        assert_eq!(regained(1, false), Mandate::Full, "it has followed no other master");
        assert_eq!(regained(2, false), Mandate::Full, "nor has this one, which never supported it");
        assert_eq!(regained(1, true), Mandate::None, "it is a newcomer");
    }

    /// A start without a quarantine used to report no wait until the replicas supported the master,
    /// and then a wait of a minute.
    #[test]
    fn without_authority_the_wait_to_come_is_told() {
        let left = |master: &Authority, now| master.least_left(at(now)).get();
        let mut alone = Authority::new(2, Pledge::USUAL);
        alone.allow(TTL, at(0));
        assert_eq!(left(&alone, 0), 0, "a replica has a master");
        alone.appointed();
        assert_eq!(left(&alone, 9_000), 5_052 + WAIT);
        let master = master();
        assert_eq!((left(&master, 1_000), left(&master, 5_000)), (5_053 + WAIT, 1_053 + WAIT));
        assert_eq!(left(&master, 20_000), WAIT, "they count, but are silent");
        let mut ended = settled();
        assert_eq!(left(&ended, 12_000), 0, "their connections have lasted");
        ended.look(at(12_000), &[], true);
        assert_eq!(left(&ended, 12_000), 5_052 + WAIT);
        ended.look(at(12_100), &[], false);
        assert_eq!(left(&ended, 12_100), 0, "it need not wait");
    }

    #[test]
    fn after_a_loss_a_newcomer_means_another_wait() {
        let mut master = settled();
        master.look(at(12_000), &[], true);
        master.look(at(12_100), &[replica(1, 101)], true);
        master.beats(at(18_000), 200);
        master.look(at(18_100), &[replica(1, 201)], true);
        assert_eq!(master.mandate(at(18_100)), Mandate::Waits(Millis::new(WAIT + 1)));
    }

    #[test]
    fn a_wait_that_is_interrupted_begins_anew() {
        let mut master = supported();
        master.look(at(6_500), &[], true);
        master.look(at(6_600), &[replica(3, 0)], true);
        master.beats(at(12_000), 200);
        master.look(at(12_000), &[replica(3, 201)], true);
        assert_eq!(master.mandate(at(12_000)), Mandate::Waits(Millis::new(WAIT + 1)));
    }

    #[test]
    fn connections_of_one_name_are_one_supporter_and_a_change_of_them_a_newcomer() {
        let mut master = Authority::new(4, Pledge::USUAL);
        master.appointed();
        let twins = [replica(1, 0), replica(1, 0)];
        master.look(at(0), &twins, true);
        master.beats(at(6_000), 100);
        master.look(at(6_100), &twins.clone().map(|_| replica(1, 101)), true);
        assert_eq!((master.supporters(at(6_100)), master.needed()), (1, 2));
        master.look(at(6_200), &[replica(1, 102)], true);
        assert_eq!(master.supporters(at(6_200)), 0, "one of them has gone");
        let mut fallen = settled();
        fallen.look(at(7_000), &[replica(1, 50), replica(2, 0)], true);
        assert_eq!(fallen.supporters(at(7_000)), 0, "an offset falls only on a new connection");
    }

    #[test]
    fn the_wait_is_for_the_longest_lease_that_may_stand() {
        let wait = |prepare: fn(&mut Authority), now: u64| {
            let mut master = master();
            prepare(&mut master);
            master.beats(at(now), 100);
            master.look(at(now), &[replica(1, 101), replica(2, 0)], true);
            master.mandate(at(now))
        };
        let lowered = |master: &mut Authority| master.allow(Millis::new(500), at(6_000));
        assert_eq!(wait(lowered, 7_000), Mandate::Waits(Millis::new(WAIT + 1)));
        assert_eq!(wait(lowered, 9_000), Mandate::Waits(Millis::new(508)));
        let heard = |master: &mut Authority| {
            master.heard(says(2_000), at(6_000));
        };
        assert_eq!(wait(heard, 7_000), Mandate::Waits(Millis::new(2_023)));
    }

    #[test]
    fn a_start_waits_for_the_longest_lease_that_its_file_tells_of_however_late() {
        let mut node = Authority::new(2, Pledge::USUAL);
        node.restarts(Millis::new(2_000), Millis::new(500), at(0));
        assert_eq!(node.news_of_longest(at(60_000)), None, "the file has it");
        node.appointed();
        let both = |acknowledged| [replica(1, acknowledged), replica(2, 0)];
        node.look(at(60_000), &both(0), true);
        node.beats(at(66_000), 100);
        node.look(at(66_000), &both(101), true);
        assert_eq!(node.mandate(at(66_000)), Mandate::Waits(Millis::new(2_023)));
        assert_eq!(node.news_of_longest(at(68_000)), None, "not during the wait");
        node.settled();
        assert_eq!(node.news_of_longest(at(68_100)), Some(Millis::new(500)));
        assert_eq!(node.news_of_longest(at(68_200)), None);
    }

    #[test]
    fn the_file_has_to_say_what_is_heard_and_what_was_lowered() {
        let mut node = Authority::new(2, Pledge::USUAL);
        node.restarts(Millis::ZERO, Millis::new(500), at(0));
        node.heard(says(2_000), at(10));
        assert_eq!(node.news_of_longest(at(10)), Some(Millis::new(2_000)));
        node.allow(Millis::new(3_000), at(20));
        assert_eq!(node.news_of_longest(at(20)), Some(Millis::new(3_000)));
        node.allow(Millis::new(500), at(30));
        node.heard(says(500), at(40));
        assert_eq!(node.news_of_longest(at(3_062)), None, "a lease may stand");
        assert_eq!(node.news_of_longest(at(3_063)), Some(Millis::new(500)));
        node.restarts(Millis::new(u64::MAX), Millis::new(500), at(4_000));
        assert_eq!(node.longest(at(4_000)), TTL_MAX, "the file promises too much");
    }

    /// A replica that comes back receives old heartbeats again, from before a longer lease was
    /// allowed, and perhaps no later ones.
    #[test]
    fn a_heartbeat_from_before_does_not_shorten_the_wait() {
        let mut node = Authority::new(2, Pledge::USUAL);
        node.restarts(Millis::new(12_000), Millis::new(500), at(0));
        node.heard(says(1_000), at(100));
        assert_eq!(node.longest(at(12_222)), Millis::new(12_000));
        assert_eq!(node.news_of_longest(at(12_222)), None, "the file must keep it");
        assert_eq!(node.longest(at(12_223)), Millis::new(1_000), "no such lease can stand now");
        node.heard(says(12_000), at(13_000));
        node.heard(says(1_000), at(14_000));
        node.appointed();
        assert_eq!(node.longest(at(15_000)), Millis::new(12_000));
    }

    #[test]
    fn how_many_have_to_support_a_master_is_a_majority_with_it() {
        let needed = |replicas| Authority::new(replicas, Pledge::USUAL).needed();
        assert_eq!([1, 2, 3, 4, 5].map(needed), [1, 1, 2, 2, 3]);
    }

    /// A group with clocks that differ in rate, whose nodes change roles at any time. A node that
    /// is no longer a replica may still be counted, at most until its support ends.
    #[derive(Clone, Debug)]
    enum Event {
        Pass(u64),
        Beat(usize),
        Hear(usize, usize),
        Follow(usize, usize),
        Promote(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let node = 0..3_usize;
        prop_oneof![
            4 => (1..3_000_u64).prop_map(Event::Pass),
            4 => node.clone().prop_map(Event::Beat),
            8 => (node.clone(), node.clone()).prop_map(|(x, y)| Event::Hear(x, y)),
            2 => (node.clone(), node.clone()).prop_map(|(x, y)| Event::Follow(x, y)),
            1 => node.prop_map(Event::Promote),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn no_two_have_authority_and_none_grants_while_a_lease_of_another_may_stand(
            events in proptest::collection::vec(event(), 1..150),
            rates in proptest::array::uniform3(0..10_u64),
        ) {
            let mut group = Group::new(rates);
            for event in events {
                group.step(event);
                prop_assert!(group.is_sound());
            }
        }
    }

    struct Group {
        now: u64,
        rates: [u64; 3],
        nodes: [Authority; 3],
        follows: [Option<usize>; 3],
        /// The offset up to which each has received data from its master, over its present
        /// connection.
        received: [u64; 3],
        offset: u64,
        /// The last instant of the last lease that each has granted, in true time.
        stands_until: [u64; 3],
        is_broken: bool,
    }

    impl Group {
        fn new(rates: [u64; 3]) -> Group {
            let mut node = Authority::new(2, Pledge::USUAL);
            node.allow(TTL, at(0));
            let mut nodes = [0; 3].map(|_| node.clone());
            nodes[0].appointed();
            let follows = [None, Some(0), Some(0)];
            let (received, stands_until) = ([0; 3], [0; 3]);
            let (now, offset, is_broken) = (1_000_000, 1, false);
            Group { now, rates, nodes, follows, received, offset, stands_until, is_broken }
        }

        /// The clock of a node, which is up to 0.9 % fast.
        fn clock(&self, node: usize) -> Instant {
            at(self.now + self.now * self.rates[node] / 1_000)
        }

        fn look(&mut self, node: usize) {
            let of_node = |(_, follows): &(usize, &Option<usize>)| **follows == Some(node);
            let attached = self.follows.iter().enumerate().filter(of_node);
            let attached: Vec<_> =
                attached.map(|(each, _)| replica(each as u8, self.received[each])).collect();
            let now = self.clock(node);
            self.nodes[node].look(now, &attached, true);
            if self.nodes[node].is_to_settle(now) {
                self.nodes[node].settled();
            }
            if self.nodes[node].mandate(now) == Mandate::Full {
                // It grants the longest lease that it may.
                let others = (0..3).filter(|&other| other != node);
                self.is_broken |=
                    others.into_iter().any(|other| self.stands_until[other] >= self.now);
                self.stands_until[node] = self.now + TTL.get();
            }
        }

        fn step(&mut self, event: Event) {
            match event {
                Event::Pass(millis) => self.now += millis,
                Event::Beat(node) if self.follows[node].is_none() => {
                    let now = self.clock(node);
                    self.nodes[node].beats(now, self.offset);
                    self.offset += 1;
                    self.look(node);
                }
                Event::Hear(node, replica) if self.follows[replica] == Some(node) => {
                    self.received[replica] = self.offset;
                    self.look(node);
                }
                Event::Follow(node, master) if node != master => self.change(node, Some(master)),
                Event::Promote(node) if self.follows[node].is_some() => self.change(node, None),
                Event::Beat(_) | Event::Hear(..) | Event::Follow(..) | Event::Promote(_) => {}
            }
        }

        fn change(&mut self, node: usize, follows: Option<usize>) {
            let former = std::mem::replace(&mut self.follows[node], follows);
            self.received[node] = 0;
            match follows {
                None => self.nodes[node].appointed(),
                Some(_) => self.nodes[node].dismissed(),
            }
            // A master whose connections change looks at once.
            for master in [former, follows].into_iter().flatten() {
                self.look(master);
            }
        }

        fn is_sound(&self) -> bool {
            let rules =
                |node: &usize| self.nodes[*node].mandate(self.clock(*node)) != Mandate::None;
            !self.is_broken && (0..3).filter(rules).count() <= 1
        }
    }
}
