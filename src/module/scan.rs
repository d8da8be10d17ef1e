//! Looking through the locks: forgetting idle ones, and finding the longest lease that stands.
//!
//! An incremental scan over all keys: a little on every tick of the server's cron, more while much
//! is found. It serves three ends.
//!
//! A lock outlives its leases for the sake of its counter, so names that are used once would pile
//! up. What Redis does for expired keys is done here for locks that have been free for
//! `lockmod.idle-ms`. A forgotten lock raises the floor (its key is unlinked, and that is what
//! raises it), so nothing is lost but the memory. Only a master forgets; replicas are told. A round
//! over all keys tells when the next lock can become idle at the earliest; until then the scan
//! rests. (A lock that is renamed during a round may be overlooked until the next one.)
//!
//! After a crash a node waits for the longest lease that it may have forgotten. A long lease that
//! was given back early would count until its end, so a round is also a **survey**, where that can
//! shorten the wait: it ends with a lower lease ceiling. (A lock that is renamed or copied
//! meanwhile is noted on its way; where databases change places, the survey starts again.)
//!
//! A lease that ends is no event either, so a round also **notes the ends of leases**: it announces
//! them where keyspace notifications are enabled, and corrects the numbers of INFO where somebody
//! has asked for them. It begins when the earliest known end has passed, and never otherwise: a
//! server that is idle, or whose numbers and notifications nobody wants, pays nothing for it.

use std::time::{Duration, Instant as StdInstant};

use super::ffi::{Context, Cursor, Guarded, types};
use super::tally::Tally;
use super::{clock, config, node};
use crate::engine::{Instant, Millis};

/// The longest that one tick may take, while much is found: at ten ticks a second, 5 % of a core.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// The longest that one tick may take while little is found: 0.5 % of a core.
const QUIET_TICK: Duration = Duration::from_micros(500);
/// Much is found when at least one in this many locks looked at was idle.
const MUCH: u64 = 4;
/// Keys are looked at this many at a time between two looks at the clock.
const BATCH: usize = 64;
/// A survey takes at least this long. A node that grants a long lease more often than that does not
/// lower its ceiling in between, only to write a higher one on the next acquire.
const SURVEY: Millis = Millis::new(5_000);

static SCAN: Guarded<Option<Scan>> = Guarded::new(None);

/// Where the scan stands.
struct Scan {
    database: u32,
    cursor: Cursor,
    busy: bool,
    /// Nothing of this round has been looked at yet.
    is_fresh: bool,
    /// The option with which this round began.
    idle: Option<Millis>,
    /// When the earliest lock seen in this round becomes idle; what changes later does so later.
    earliest: Instant,
    /// Nothing can be idle before.
    rests_until: Instant,
    survey: Survey,
}

/// How far the search for the longest lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survey {
    /// There is none.
    Absent,
    /// It began at this instant, together with the round.
    Looking { since: Instant },
    /// Every lock has been looked at since this instant.
    Looked { since: Instant },
}

impl Scan {
    fn new(idle: Option<Millis>, now: Instant) -> Scan {
        node::tally(Tally::break_round);
        Scan {
            database: 0,
            cursor: Cursor::default(),
            busy: false,
            is_fresh: true,
            idle,
            earliest: after_or_never(now, idle),
            rests_until: now,
            survey: Survey::Absent,
        }
    }

    /// Goes back to the start, after a whole round.
    fn turn(&mut self, now: Instant) {
        self.rests_until = self.earliest;
        self.earliest = after_or_never(now, self.idle);
        self.database = 0;
        self.is_fresh = true;
        node::tally(Tally::end_round);
        if let Survey::Looking { since } = self.survey {
            self.survey = Survey::Looked { since };
        }
    }

    /// Begins a survey where one is worth it, and ends it when its time has come.
    fn survey(&mut self, now: Instant) {
        match self.survey {
            Survey::Absent if self.is_fresh && node::would_gain(now) => {
                node::begin_survey();
                self.survey = Survey::Looking { since: now };
            }
            Survey::Looked { since } if since.after(SURVEY) <= now => {
                node::end_survey(now);
                self.survey = Survey::Absent;
            }
            Survey::Absent | Survey::Looking { .. } | Survey::Looked { .. } => {}
        }
    }
}

/// `length` after `now`; without a length, never.
fn after_or_never(now: Instant, length: Option<Millis>) -> Instant {
    length.map_or(Instant::from_millis(u64::MAX), |length| now.after(length))
}

/// Locks have changed places behind the back of a scan.
pub(super) fn disturbed() {
    SCAN.with(|scan| *scan = None);
}

/// One tick: looks at some keys, and forgets the locks among them that are idle.
pub(super) fn tick(context: Context<'_>) {
    let idle = config::idle();
    let flags = context.flags();
    if !flags.is_master() || flags.is_loading() || context.must_not_replicate() {
        return;
    }
    let now = clock::now();
    let mut scan = SCAN
        .with(Option::take)
        .filter(|scan| scan.idle == idle)
        .unwrap_or_else(|| Scan::new(idle, now));
    scan.survey(now);
    let announces = context.notifies();
    let is_due = node::tally(|tally| tally.is_due(now, announces));
    if types::lock_count() == 0 {
        node::tally(Tally::begin_round);
        scan.cursor = Cursor::default();
        scan.turn(now);
    } else if scan.rests_until <= now
        || matches!(scan.survey, Survey::Looking { .. })
        || is_due
        || !scan.is_fresh
    {
        scan_some(context, &mut scan, now, announces);
    }
    SCAN.with(|slot| *slot = Some(scan));
}

fn scan_some(context: Context<'_>, scan: &mut Scan, now: Instant, announces: bool) {
    if std::mem::take(&mut scan.is_fresh) {
        node::tally(Tally::begin_round);
    }
    let started = StdInstant::now();
    // Somebody listens for leases that end, and wants to know soon.
    let budget = if scan.busy || announces { BUSY_TICK } else { QUIET_TICK };
    let (mut seen, mut found) = (0, 0);
    while started.elapsed() < budget {
        if !context.select(scan.database) {
            // Past the last database: once round is enough for a tick.
            scan.turn(now);
            break;
        }
        let mut idle_names: Vec<Vec<u8>> = Vec::new();
        let mut lapsed_names: Vec<Vec<u8>> = Vec::new();
        let mut earliest = scan.earliest;
        let more = context.scan(&mut scan.cursor, BATCH, &mut |name, lock| {
            seen += 1;
            if lock.note_lapse(now) {
                node::tally(Tally::lapsed);
                if announces {
                    lapsed_names.push(name.to_vec());
                }
            }
            node::come_upon(lock);
            let idle_at = after_or_never(lock.until(), scan.idle);
            if lock.is_held(now) || idle_at > now {
                earliest = earliest.min(idle_at);
            } else {
                idle_names.push(name.to_vec());
            }
        });
        scan.earliest = earliest;
        for name in &lapsed_names {
            context.notify_of(c"lock.expire", name);
        }
        for name in &idle_names {
            if context.run_replicated(c"UNLINK", &[name]) {
                node::count(|counts| counts.forgotten += 1);
                found += 1;
            }
        }
        if !more {
            scan.cursor = Cursor::default();
            scan.database += 1;
        }
    }
    scan.busy = found * MUCH >= seen && found > 0;
}
