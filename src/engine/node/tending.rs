//! How a node tends its authority: it looks at its replicas, and decides when a heartbeat is due.

use std::fmt;

use super::{Attached, Authority, Change, Heartbeat, Node, Pledge, SUPPORT};
use crate::engine::{Instant, Millis};

/// A node that does not look for so long has hung. At the lowest frequency, a server's cron takes a
/// second.
const HANG: Millis = Millis::new(2_000);

/// What the server reports about its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// How many bytes it has sent to replicas so far.
    pub offset: u64,
    /// The attached replicas.
    pub attached: Vec<Attached>,
}

/// What the caller must do after a look at the replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Tended {
    /// A change to record in the state file first.
    pub change: Option<Change>,
    /// A heartbeat to send.
    pub heartbeat: Option<Heartbeat>,
    /// News for the operator.
    pub notice: Option<Notice>,
    /// Also for the operator: how many replicas are attached, and the smaller `lockmod.replicas`.
    pub excess: Option<(usize, u32)>,
}

/// What the operator was told of the node as a master, and as a replica of one, and what the news
/// for the operator rest on.
#[derive(Clone, Debug)]
pub(super) struct Reported {
    /// The last notice of a master's authority.
    notice: Option<Notice>,
    /// Whether a master has more replicas than allowed.
    has_excess: bool,
    /// The `lockmod.replicas` of a replica's master.
    replicas: u32,
    /// How the longest leases of the two differ, if they do.
    unlike: Option<Unlike>,
    /// Since when that master has sent no heartbeat, while the link to it is up.
    silent_since: Option<Instant>,
    /// Whether that was reported.
    is_silence_known: bool,
    /// When the node last looked at that link.
    looked_at: Option<Instant>,
}

impl Reported {
    pub(super) const NOTHING: Reported = Reported {
        notice: None,
        has_excess: false,
        replicas: 0,
        unlike: None,
        silent_since: None,
        is_silence_known: false,
        looked_at: None,
    };
}

/// A setting of a node's master that is not the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlike {
    /// `lockmod.replicas`: the master's, and the node's.
    Replicas(u32, u32),
    /// The length up to which the master's leases last, and the node's `lockmod.max-ttl`.
    Longest(Millis, Millis),
}

/// A change of a node's mandate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Too few replicas support it: it has lost its authority, or never had any.
    Lacking {
        /// How many do.
        supporters: usize,
        /// How many it needs.
        needed: usize,
    },
    /// It waits for this long.
    Waits(Millis),
    /// It decides.
    Decides,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Lacking { supporters, needed } => write!(
                f,
                "NOAUTHORITY: {supporters} of the {needed} replicas needed support this master; \
                 no lock is granted or extended until enough of them do"
            ),
            Notice::Waits(left) => write!(
                f,
                "enough replicas support this master; no lock is granted for {left}, because \
                 leases of another master may stand"
            ),
            Notice::Decides => f.write_str("this master grants locks: enough replicas support it"),
        }
    }
}

impl Node {
    /// Makes the node decide only with the support of enough of `replicas` replicas. With zero, it
    /// decides regardless of its replicas. Called before the node begins.
    pub fn rest_on(&mut self, replicas: u32) {
        if replicas > 0 {
            self.promises.rest_on(Authority::new(replicas, Pledge::USUAL));
        }
    }

    /// Whether the node needs to look at its replicas at all.
    pub fn rests_on_replicas(&self) -> bool {
        self.promises.authority().is_some()
    }

    /// Looks at the replicas of a master; `now` was read before. `max_ttl` is the node's setting;
    /// `waits`: whether it waits for leases of other masters. `may_beat`: whether a heartbeat may
    /// be sent.
    ///
    /// The caller does so a few times a second, and whenever a replica comes or goes: otherwise a
    /// connection that is broken and restored in between would look like one that lasts.
    pub fn tend(
        &mut self,
        now: Instant,
        replicas: &Replicas,
        (max_ttl, waits): (Millis, bool),
        may_beat: bool,
    ) -> Tended {
        let clocks = self.date(now);
        let Some(authority) = self.promises.authority_mut() else { return Tended::default() };
        authority.allow(max_ttl, now);
        authority.look(now, &replicas.attached, waits);
        self.promises.settle(clocks);
        let change = self.news_of_longest(now);
        let Some(authority) = self.promises.authority_mut() else { return Tended::default() };
        let is_to_beat = may_beat && authority.is_to_beat(now);
        let heartbeat = is_to_beat.then(|| authority.heartbeat(now));
        if heartbeat.is_some() {
            authority.beats(now, replicas.offset);
        }
        let (notice, attached, allowed) =
            (authority.notice(now), authority.attached(), authority.replicas());
        let has_excess = attached > allowed as usize;
        let had_excess = std::mem::replace(&mut self.reported.has_excess, has_excess);
        let is_excess_news = has_excess && !had_excess;
        let kind = |notice: Option<Notice>| notice.as_ref().map(std::mem::discriminant);
        let is_news = kind(notice) != kind(std::mem::replace(&mut self.reported.notice, notice));
        if is_news && notice == Some(Notice::Decides) {
            // Free locks have not been offered to their waiters.
            self.all_lines_changed();
        }
        let excess = is_excess_news.then_some((attached, allowed));
        Tended { change, heartbeat, notice: notice.filter(|_| is_news), excess }
    }

    /// Takes the length of lease that the node's settings allow, whether or not it has changed.
    /// Returns what the state file must record first.
    pub fn allow(&mut self, max_ttl: Millis, now: Instant) -> Option<Change> {
        self.promises.authority_mut()?.allow(max_ttl, now);
        self.news_of_longest(now)
    }

    /// Notes, on a replica, whether the link to its master is up. Returns whether the operator must
    /// learn that the master sends no heartbeats, as one without `lockmod.replicas`.
    pub fn follows(&mut self, has_master: bool, now: Instant) -> bool {
        // A node that has hung has not read what the master sent.
        let hung = |at: Instant| at.after(HANG) < now;
        let has_hung = self.reported.looked_at.replace(now).is_some_and(hung);
        if !has_master || has_hung {
            self.reported.silent_since = has_master.then_some(now);
            return false;
        }
        let since = *self.reported.silent_since.get_or_insert(now);
        let is_silent = since.after(SUPPORT) < now;
        is_silent && !std::mem::replace(&mut self.reported.is_silence_known, true)
    }

    fn news_of_longest(&mut self, now: Instant) -> Option<Change> {
        let longest = self.promises.authority_mut()?.news_of_longest(now)?;
        Some(Change::Longest(longest))
    }

    /// Takes a heartbeat of this node's master. Returns what the state file must record before
    /// anything else happens; and a setting that differs, if that is news for the operator.
    pub fn heard_of(
        &mut self,
        heartbeat: Heartbeat,
        now: Instant,
    ) -> (Option<Change>, Option<Unlike>) {
        let own = self.promises.authority().map_or(0, Authority::replicas);
        let Heartbeat { replicas, longest } = heartbeat;
        let is_news = std::mem::replace(&mut self.reported.replicas, replicas) != replicas;
        (self.reported.silent_since, self.reported.is_silence_known) = (Some(now), false);
        if let Some(authority) = self.promises.authority_mut() {
            authority.heard(heartbeat, now);
        }
        let unlike = match is_news && replicas != own {
            true => Some(Unlike::Replicas(replicas, own)),
            false => self.unlike_longest(longest),
        };
        (self.news_of_longest(now), unlike)
    }

    /// How the master's longest lease differs from this node's, if that is news.
    fn unlike_longest(&mut self, longest: Millis) -> Option<Unlike> {
        let max_ttl = self.promises.authority()?.max_ttl();
        let unlike = (longest != max_ttl).then_some(Unlike::Longest(longest, max_ttl));
        let is_news = std::mem::replace(&mut self.reported.unlike, unlike) != unlike;
        unlike.filter(|_| is_news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        Acquired, Caution, Claim, Clocks, Extended, FENCE_BLOCK, Fence, Fencing, Loaded, Lock,
        Mode, QuarantineReason, Refusal, Stop, Token, UnixTime,
    };

    const TTL: Millis = Millis::new(1_000);
    const WALL: u64 = 1_700_000_000_000;
    const CAUTION: Caution = Caution { quarantine: true, on_promotion: true };

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn clocks(now: u64) -> Clocks {
        Clocks { now: at(now), wall: UnixTime::from_millis(WALL + now) }
    }

    fn replicas(offset: u64, acknowledged: u64) -> Replicas {
        let attached = vec![Attached { name: b"replica".to_vec(), acknowledged }];
        Replicas { offset, attached }
    }

    fn tend(node: &mut Node, now: u64, replicas: &Replicas) -> Tended {
        node.tend(at(now), replicas, (TTL, true), true)
    }

    /// A master that its replica begins to support at 7000.
    fn supported() -> Node {
        let mut node = Node::new();
        node.rest_on(2);
        node.found(None, clocks(0), 7);
        let loaded = Loaded {
            port: 7,
            clocks: clocks(0),
            boot: 7,
            lock_count: 0,
            inventory: crate::engine::Inventory::default(),
            was_read: false,
            highest: Fence::ZERO,
            is_always_durable: false,
            is_replica: false,
            max_ttl: TTL,
        };
        assert!(node.begin(loaded, CAUTION).is_none(), "it keeps no file");
        assert_eq!(ask(&mut node, &mut Lock::default(), 0), Err(nobody()));
        let tended = tend(&mut node, 0, &replicas(10, 0));
        let heartbeat = Heartbeat { longest: TTL, replicas: 2 };
        let lost = Notice::Lacking { supporters: 0, needed: 1 };
        assert_eq!((tended.heartbeat, tended.notice), (Some(heartbeat), Some(lost)));
        assert_eq!(tend(&mut node, 999, &replicas(60, 0)), Tended::default(), "not yet due");
        assert!(tend(&mut node, 6_500, &replicas(70, 60)).heartbeat.is_some());
        let tended = tend(&mut node, 7_000, &replicas(120, 120));
        assert_eq!(tended.notice, Some(Notice::Waits(Millis::new(1_013))));
        node
    }

    fn settled() -> Node {
        let mut node = supported();
        let tended = tend(&mut node, 8_013, &replicas(200, 200));
        assert_eq!(tended.notice, Some(Notice::Decides));
        node
    }

    fn claim() -> Claim<'static> {
        let token = Token::new(b"token", 64).expect("short");
        Claim { token, ttl: TTL, mode: Mode::Exclusive }
    }

    fn nobody() -> Stop {
        Refusal::NoAuthority { supporters: 0, needed: 1 }.into()
    }

    fn ask(node: &mut Node, lock: &mut Lock, now: u64) -> Result<Acquired, Stop> {
        node.acquire(lock, claim(), b"", at(now))
    }

    #[test]
    fn a_node_waits_and_then_grants_above_the_time() {
        let mut node = supported();
        let mut lock = Lock::default();
        let waits = |left| {
            let (reason, left) = (QuarantineReason::OtherMaster, Millis::new(left));
            Stop::from(Refusal::Quarantine { reason, left })
        };
        assert_eq!(ask(&mut node, &mut lock, 7_000), Err(waits(1_013)));
        assert_eq!(ask(&mut node, &mut lock, 8_100), Err(waits(1)), "until it has looked again");
        let mut node = settled();
        let Ok(Acquired::Granted { fence, .. }) = ask(&mut node, &mut lock, 8_013) else {
            panic!("it decides");
        };
        assert!(fence > Fence::of_time(clocks(8_013).wall), "{fence}");
    }

    #[test]
    fn while_a_node_waits_nothing_counts_and_without_authority_nothing_is_done() {
        let mut node = supported();
        let mut lock = Lock::default();
        let repair = Fencing::Repair { fence: Fence::new(5).expect("small"), label: b"" };
        let counted = |extended: Result<Extended, Stop>| match extended {
            Ok(Extended::Extended { is_counted, .. }) => Ok(is_counted),
            Ok(Extended::HeldByAnother | Extended::NotHeld) => panic!("it stands"),
            Err(stop) => Err(stop),
        };
        let repaired = node.extend(&mut lock, claim(), repair, clocks(7_100));
        assert_eq!(counted(repaired), Ok(false));
        let extended = node.extend(&mut lock, claim(), Fencing::Keep, clocks(7_200));
        assert_eq!(counted(extended), Ok(false), "the old master may be alive");
        // After 11 500 the heartbeat of 6500 supports no master.
        let extended = node.extend(&mut lock, claim(), Fencing::Keep, clocks(12_001));
        assert_eq!(counted(extended), Err(nobody()));
        let repaired = node.extend(&mut lock, claim(), repair, clocks(12_001));
        assert_eq!(counted(repaired), Err(nobody()));
        let fence = lock.counter();
        let raised = node.raise(&mut lock, claim().token, fence, clocks(12_001));
        assert_eq!(counted(raised), Err(nobody()));
        let mut node = settled();
        let mut lock = Lock::default();
        assert!(ask(&mut node, &mut lock, 8_013).is_ok());
        let extended = node.extend(&mut lock, claim(), Fencing::Keep, clocks(8_100));
        assert_eq!(counted(extended), Ok(true));
        assert!(
            node.release(&mut lock, claim().token, at(20_000))
                != crate::engine::Released::HeldByAnother
        );
    }

    #[test]
    fn a_promoted_node_begins_above_what_it_has_heard() {
        let mut node = settled();
        let _ = node.demoted();
        assert_eq!(tend(&mut node, 9_000, &replicas(0, 0)).notice, None, "its master decides");
        let ahead = Fence::of_time(clocks(0).wall).saturating_add(1 << 43);
        node.apply_floor(ahead);
        let heartbeat = Heartbeat { longest: TTL, replicas: 3 };
        assert_eq!(node.heard_of(heartbeat, at(9_100)), (None, Some(Unlike::Replicas(3, 2))));
        assert_eq!(node.heard_of(heartbeat, at(9_200)), (None, None), "it has been reported");
        let shorter = Heartbeat { longest: Millis::new(500), replicas: 3 };
        let unlike = Unlike::Longest(Millis::new(500), TTL);
        assert_eq!(node.heard_of(shorter, at(9_200)).1, Some(unlike));
        assert_eq!(node.heard_of(shorter, at(9_200)).1, None, "it has been reported");
        assert_eq!(node.heard_of(heartbeat, at(9_200)).1, None, "they are alike again");
        let _ = node.promoted(at(10_000), TTL, CAUTION);
        assert_eq!(node.promises().floor(), ahead.saturating_add(FENCE_BLOCK));
        assert_eq!(ask(&mut node, &mut Lock::default(), 10_000), Err(nobody()));
    }

    /// Regression: a replica that had been stopped itself said that its master was silent.
    #[test]
    fn a_replica_that_looks_all_the_time_reports_a_silent_master_once() {
        let mut node = settled();
        let _ = node.demoted();
        let heartbeat = Heartbeat { longest: TTL, replicas: 2 };
        // It looks every second, up to this time.
        let reports = |node: &mut Node, from: u64, to: u64| {
            let looks = (from..=to).step_by(1_000).chain([to]);
            looks.filter(|now| node.follows(true, at(*now))).count()
        };
        let _ = node.heard_of(heartbeat, at(9_200));
        assert_eq!(reports(&mut node, 9_200, 14_200), 0, "within 5 s");
        assert_eq!(reports(&mut node, 14_201, 16_000), 1, "once");
        let _ = node.heard_of(heartbeat, at(16_000));
        assert_eq!(reports(&mut node, 16_000, 20_500), 0);
        assert!(!node.follows(false, at(20_501)));
        assert_eq!(reports(&mut node, 20_502, 25_502), 0, "a new link");
        assert_eq!(reports(&mut node, 25_503, 26_000), 1);
        let _ = node.heard_of(heartbeat, at(26_000));
        assert_eq!(reports(&mut node, 26_100, 26_100), 0);
        assert_eq!(reports(&mut node, 33_000, 38_000), 0, "it has hung itself");
        assert_eq!(reports(&mut node, 38_001, 38_001), 1);
    }

    /// Regression: the second difference counted as reported, and was not.
    #[test]
    fn each_setting_that_differs_is_reported() {
        let mut node = settled();
        let _ = node.demoted();
        let heartbeat = Heartbeat { longest: Millis::new(500), replicas: 3 };
        let unlike = [0, 1, 2].map(|_| node.heard_of(heartbeat, at(9_100)).1);
        let longest = Unlike::Longest(Millis::new(500), TTL);
        assert_eq!(unlike, [Some(Unlike::Replicas(3, 2)), Some(longest), None]);
    }

    #[test]
    fn an_operator_who_asks_for_no_quarantine_ends_the_wait() {
        let mut node = supported();
        assert!(node.heed(Caution { quarantine: false, on_promotion: true }, at(7_100)));
        let tended = tend(&mut node, 7_100, &replicas(130, 130));
        assert_eq!(tended.notice, Some(Notice::Decides));
        assert!(ask(&mut node, &mut Lock::default(), 7_100).is_ok());
    }

    #[test]
    fn more_replicas_than_there_may_be_are_told_of_once() {
        let mut node = settled();
        let three =
            [b"a", b"b", b"c"].map(|name| Attached { name: name.to_vec(), acknowledged: 0 });
        let three = Replicas { offset: 300, attached: three.to_vec() };
        assert_eq!(tend(&mut node, 8_200, &three).excess, Some((3, 2)));
        assert_eq!(tend(&mut node, 8_300, &three).excess, None);
    }

    #[test]
    fn a_node_without_replicas_is_asked_nothing() {
        let mut node = Node::new();
        node.rest_on(0);
        assert!(!node.rests_on_replicas());
        assert_eq!(tend(&mut node, 0, &replicas(0, 0)), Tended::default());
        assert!(ask(&mut node, &mut Lock::default(), 0).is_ok());
    }
}
