//! The scan over all locks: it deletes idle ones, finds the longest lease, and notes the ends of
//! leases.
//!
//! It goes over all keys in slices. Usually it takes one short slice on each tick of the server's
//! cron. An urgent round (for a survey, numbers, notifications, or many idle locks) takes slices of
//! a millisecond one after the other, with pauses in which the server works: `lockmod.scan-percent`
//! is the scan's share of the time. It has three purposes.
//!
//! A lock outlives its leases because of its counter, so names that are used once would pile up.
//! The scan **deletes idle locks**, which have been free for `lockmod.idle-ms`, as Redis removes
//! expired keys. It unlinks the key, which raises the floor, so only the memory is given up. Only a
//! master does this; replicas receive the command. A round finds out when the next lock can become
//! idle at the earliest; until then the scan rests. (A lock that is renamed during a round may be
//! missed until the next one.)
//!
//! After a crash a node waits for the longest lease that it may have forgotten, even if that lease
//! was released early. If the leases that end last were released, a round is also a **survey**,
//! which ends with a lower lease ceiling. (A lock that is renamed or copied meanwhile is noted
//! then; if databases are swapped, the survey starts again.)
//!
//! The end of a lease is not an event, so a round also **notes the ends of leases**: it announces
//! them if keyspace notifications are enabled, and corrects the numbers of INFO if they were asked
//! for. Such a round begins only when the earliest known end has passed, so a server that is idle,
//! or whose numbers and notifications are not used, does no extra work.

use std::time::{Duration, Instant as StdInstant};

use super::ffi::waiting::{Task, do_after};
use super::ffi::{AtKey, Context, Cursor, Guarded, InServer, values};
use super::process::{self, Process};
use super::{clock, config};
use crate::engine::{Instant, Millis};

/// How long a slice of an urgent round takes.
const SLICE: Duration = Duration::from_millis(1);
/// How long a slice takes otherwise: at ten ticks a second, 0.5 % of a core.
const QUIET_SLICE: Duration = Duration::from_micros(500);
/// A round for a survey or for numbers is followed by a rest of this many times as long as it took.
/// So on a busy server such rounds take 5 % of a core, however many locks there are.
const REST: u32 = 20;
/// The scan finds much if at least one in this many locks was idle.
const MUCH: u64 = 4;
/// How many buckets of the table of keys are looked at between two looks at the clock.
const BATCH: usize = 64;
/// A survey takes at least this long, so that a node that often grants long leases does not lower
/// its ceiling in between, only to raise it on the next acquire.
const SURVEY: Millis = Millis::new(5_000);

static SCAN: Guarded<Option<Scan>> = Guarded::new(None);

/// The progress of the scan.
struct Scan {
    database: u32,
    cursor: Cursor,
    /// Many locks of the last slice were idle.
    finds_much: bool,
    /// This round is urgent.
    is_urgent: bool,
    /// This round has not looked at anything yet.
    is_fresh: bool,
    /// How long this round has taken.
    cost: Duration,
    /// The `lockmod.idle-ms` with which this scan began.
    idle: Option<Millis>,
    /// When the first of the locks seen in this round becomes idle. Locks that change after that
    /// become idle later.
    earliest: Instant,
    /// No lock can be idle before this.
    rests_until: Instant,
    /// No survey and no round for numbers begins before this.
    spares_until: Instant,
    survey: Survey,
}

/// The progress of a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survey {
    /// There is no survey.
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

    /// Begins a survey if it is worthwhile, or ends one that is done.
    fn survey(&mut self, server: InServer<'_>, now: Instant) {
        match self.survey {
            Survey::Absent
                if self.spares_until <= now
                    && process::with(server, |process| process.node.would_gain(now)) =>
            {
                // It begins with a round, so a round that is under way must end first.
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

/// Starts the scan again, because locks have moved without its noticing.
pub(super) fn disturbed(server: InServer<'_>) {
    SCAN.with(server, |scan| *scan = None);
}

/// One tick: looks at some keys, and deletes the locks among them that are idle.
pub(super) fn tick(context: &mut Context<'_>) {
    look(context);
}

/// A slice between two ticks.
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

/// How long to pause after a slice of this length, to keep to the scan's share of the time.
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
            // Past the last database: a slice does not begin another round.
            scan.turn(server, now);
            break;
        }
        let batch = look_at_some(context, scan, now, announces);
        (seen, found) = (seen + batch.0, found + batch.1);
    }
    scan.finds_much = found * MUCH >= seen && found > 0;
}

/// What a batch of keys has shown.
#[derive(Default)]
struct Batch {
    /// How many locks there were.
    seen: u64,
    /// Locks whose lease has ended, if that must be announced.
    lapsed_names: Vec<Vec<u8>>,
    /// Locks to forget.
    idle_names: Vec<Vec<u8>>,
}

/// Looks at one batch. Returns how many locks were seen, and how many were deleted.
fn look_at_some(
    context: &mut Context<'_>,
    scan: &mut Scan,
    now: Instant,
    announces: bool,
) -> (u64, u64) {
    let batch = read_batch(context, scan, now, announces);
    for name in &batch.lapsed_names {
        context.notify_of(c"lock.expire", name);
    }
    let server = context.in_server();
    let mut deleted = 0;
    for name in &batch.idle_names {
        // Another module may have acquired it, when it was told of another lock's end.
        if is_idle(context, scan.idle, name, now) && context.run_replicated(c"UNLINK", &[name]) {
            process::with(server, |process| process.node.tally().counts.idle_deleted += 1);
            deleted += 1;
        }
    }
    (batch.seen, deleted)
}

fn is_idle(context: &mut Context<'_>, idle: Option<Millis>, name: &[u8], now: Instant) -> bool {
    match context.name(name).open_to_read(context).find() {
        AtKey::Lock(lock) => !lock.is_held(now) && after_or_never(lock.until(), idle) <= now,
        AtKey::Nothing | AtKey::Other => false,
    }
}

/// Reads the next keys, and reports their locks to the node.
fn read_batch(context: &mut Context<'_>, scan: &mut Scan, now: Instant, announces: bool) -> Batch {
    let server = context.in_server();
    let mut batch = Batch::default();
    let mut earliest = scan.earliest;
    let more = context.scan(&mut scan.cursor, BATCH, &mut |name, lock| {
        batch.seen += 1;
        let is_news = process::with(server, |process| {
            let is_news = process.node.note_lapses(lock, now);
            process.node.come_upon(lock);
            is_news
        });
        if is_news && announces {
            batch.lapsed_names.push(name.to_vec());
        }
        let idle_at = after_or_never(lock.until(), scan.idle);
        if lock.is_held(now) || idle_at > now {
            earliest = earliest.min(idle_at);
        } else {
            batch.idle_names.push(name.to_vec());
        }
    });
    scan.earliest = earliest;
    if !more {
        scan.cursor = Cursor::default();
        scan.database += 1;
    }
    batch
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
