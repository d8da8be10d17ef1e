//! Looking through the locks: forgetting idle ones, and finding the longest lease that stands.
//!
//! An incremental scan over all keys, a slice of a millisecond at a time. Where nobody waits for
//! what it finds, there is one short slice on every tick of the server's cron. A round that is
//! waited for (a survey, numbers, notifications, many locks to forget) takes slices one after the
//! other, with pauses that leave the server its time: `lockmod.scan-percent` is the scan's share.
//! It serves three ends.
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
//! shorten the wait, because the latest leases were given back: it ends with a lower lease ceiling.
//! (A lock that is renamed or copied meanwhile is noted on its way; where databases change places,
//! the survey starts again.)
//!
//! A lease that ends is no event either, so a round also **notes the ends of leases**: it announces
//! them where keyspace notifications are enabled, and corrects the numbers of INFO where somebody
//! has asked for them. It begins when the earliest known end has passed, and never otherwise: a
//! server that is idle, or whose numbers and notifications nobody wants, pays nothing for it.

use std::time::{Duration, Instant as StdInstant};

use super::ffi::waiting::{Task, do_after};
use super::ffi::{Context, Cursor, Guarded, InServer, values};
use super::process::{self, Process};
use super::{clock, config};
use crate::engine::{Instant, Millis};

/// How long a slice of a round takes that somebody waits for.
const SLICE: Duration = Duration::from_millis(1);
/// How long the slice of a tick takes otherwise: at ten ticks a second, 0.5 % of a core.
const QUIET_SLICE: Duration = Duration::from_micros(500);
/// After a round for a survey or for numbers there is none for this many times as long as it took:
/// on a server that never rests they take 5 % of a core, however many locks there are.
const REST: u32 = 20;
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
    /// Many of the locks that were looked at last were idle.
    finds_much: bool,
    /// Somebody waits for the end of this round.
    is_urgent: bool,
    /// Nothing of this round has been looked at yet.
    is_fresh: bool,
    /// How long this round has taken.
    cost: Duration,
    /// The option with which this round began.
    idle: Option<Millis>,
    /// When the earliest lock seen in this round becomes idle; what changes later does so later.
    earliest: Instant,
    /// Nothing can be idle before.
    rests_until: Instant,
    /// No survey begins before, and no round for numbers.
    spares_until: Instant,
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
    fn new(server: InServer<'_>, idle: Option<Millis>, now: Instant) -> Scan {
        process::with(server, |process| process.node.tally().break_round());
        Scan {
            database: 0,
            cursor: Cursor::default(),
            finds_much: false,
            is_urgent: false,
            is_fresh: true,
            cost: Duration::ZERO,
            idle,
            earliest: after_or_never(now, idle),
            rests_until: now,
            spares_until: Instant::default(),
            survey: Survey::Absent,
        }
    }

    /// Goes back to the start, after a whole round.
    fn turn(&mut self, server: InServer<'_>, now: Instant) {
        self.rests_until = self.earliest;
        self.earliest = after_or_never(now, self.idle);
        self.database = 0;
        self.is_fresh = true;
        if std::mem::take(&mut self.is_urgent) {
            self.spares_until = now.after(Millis::round_up(self.cost * REST));
        }
        self.cost = Duration::ZERO;
        process::with(server, |process| process.node.tally().end_round());
        if let Survey::Looking { since } = self.survey {
            self.survey = Survey::Looked { since };
        }
    }

    /// Begins a survey where one is worth it, and ends it when its time has come.
    fn survey(&mut self, server: InServer<'_>, now: Instant) {
        match self.survey {
            Survey::Absent
                if self.spares_until <= now
                    && process::with(server, |process| process.node.would_gain(now)) =>
            {
                // It begins with a round. One that is under way has to end first.
                self.is_urgent = true;
                if self.is_fresh {
                    process::with(server, |process| process.node.begin_survey());
                    self.survey = Survey::Looking { since: now };
                }
            }
            Survey::Looked { since } if since.after(SURVEY) <= now => {
                process::with(server, |process| process.end_survey(now));
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
pub(super) fn disturbed(server: InServer<'_>) {
    SCAN.with(server, |scan| *scan = None);
}

/// One tick: looks at some keys, and forgets the locks among them that are idle.
pub(super) fn tick(context: &mut Context<'_>) {
    look(context);
}

/// The time of a slice has come between two ticks.
struct Slice;

impl Task for Slice {
    const WHAT: &'static str = "going on with a scan";

    fn run(context: &mut Context<'_>) {
        process::with(context.in_server(), |process| process.is_scan_timed = false);
        look(context);
    }
}

fn look(context: &mut Context<'_>) {
    let server = context.in_server();
    let idle = config::idle();
    let flags = context.flags();
    if !flags.is_master() || flags.is_loading() || context.must_not_replicate() {
        return;
    }
    let now = clock::now();
    let mut scan = SCAN
        .with(server, Option::take)
        .filter(|scan| scan.idle == idle)
        .unwrap_or_else(|| Scan::new(server, idle, now));
    scan.survey(server, now);
    let announces = context.notifies();
    let may_be_due = announces || scan.spares_until <= now;
    scan.is_urgent |=
        may_be_due && process::with(server, |process| process.node.tally().is_due(now, announces));
    if values::lock_count() == 0 {
        process::with(server, |process| process.node.tally().begin_round());
        scan.cursor = Cursor::default();
        scan.turn(server, now);
    } else if scan.rests_until <= now || scan.is_urgent || !scan.is_fresh {
        let started = StdInstant::now();
        look_for(context, &mut scan, now, announces);
        scan.cost += started.elapsed();
        let has_more = !scan.is_fresh && (scan.is_urgent || scan.finds_much);
        let is_timed = |process: &mut Process| std::mem::replace(&mut process.is_scan_timed, true);
        if has_more && !process::with(server, is_timed) {
            do_after::<Slice>(server, pause(started.elapsed(), config::scan_percent()));
        }
    }
    SCAN.with(server, |slot| *slot = Some(scan));
}

/// How long the scan rests after a slice that took so long, to keep to its share of the time.
fn pause(slice: Duration, percent: u32) -> Millis {
    Millis::round_up(slice * (100 - percent) / percent)
}

/// One slice.
fn look_for(context: &mut Context<'_>, scan: &mut Scan, now: Instant, announces: bool) {
    let server = context.in_server();
    if std::mem::take(&mut scan.is_fresh) {
        process::with(server, |process| process.node.tally().begin_round());
    }
    let started = StdInstant::now();
    let slice = if scan.is_urgent || scan.finds_much { SLICE } else { QUIET_SLICE };
    let (mut seen, mut found) = (0, 0);
    while started.elapsed() < slice {
        if !context.select(scan.database) {
            // Past the last database: once round is enough for a slice.
            scan.turn(server, now);
            break;
        }
        let batch = look_at_some(context, scan, now, announces);
        (seen, found) = (seen + batch.0, found + batch.1);
    }
    scan.finds_much = found * MUCH >= seen && found > 0;
}

/// Looks at one batch: how many locks were seen, and how many forgotten.
fn look_at_some(
    context: &mut Context<'_>,
    scan: &mut Scan,
    now: Instant,
    announces: bool,
) -> (u64, u64) {
    let server = context.in_server();
    let (mut seen, mut found) = (0, 0);
    let mut idle_names: Vec<Vec<u8>> = Vec::new();
    let mut lapsed_names: Vec<Vec<u8>> = Vec::new();
    let mut earliest = scan.earliest;
    let more = context.scan(&mut scan.cursor, BATCH, &mut |name, lock| {
        seen += 1;
        let is_news = process::with(server, |process| {
            let is_news = process.node.note_lapse(lock, now);
            process.node.come_upon(lock);
            is_news
        });
        if is_news && announces {
            lapsed_names.push(name.to_vec());
        }
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
            process::with(server, |process| process.node.tally().counts.forgotten += 1);
            found += 1;
        }
    }
    if !more {
        scan.cursor = Cursor::default();
        scan.database += 1;
    }
    (seen, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_leave_the_server_the_rest_of_its_time() {
        let slice = |millis| Duration::from_millis(millis);
        assert_eq!(pause(slice(1), 25), Millis::new(3));
        assert_eq!(pause(slice(1), 1), Millis::new(99));
        assert_eq!(pause(slice(2), 75), Millis::new(1));
        // A slice that took long, because the machine is busy, is followed by a long pause.
        assert_eq!(pause(slice(40), 10), Millis::new(360));
    }
}
