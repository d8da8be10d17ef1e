//! Forgetting idle locks: an incremental scan that keeps memory bounded.
//!
//! A lock outlives its leases for the sake of its counter, so names that are used once would pile
//! up. What Redis does for expired keys is done here for locks that have been free for
//! `lockmod.idle-ms`: a little on every tick of the server's cron, more while much is found. A
//! forgotten lock raises the floor (its key is unlinked, and that is what raises it), so nothing is
//! lost but the memory. Only a master forgets; replicas are told.
//!
//! A round over all keys tells when the next lock can become idle at the earliest; until then the
//! scan rests. (A lock that is renamed during a round may be overlooked until the next one.)

use std::time::{Duration, Instant as StdInstant};

use super::ffi::{Context, Cursor, Guarded, types};
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

static SCAN: Guarded<Option<Scan>> = Guarded::new(None);

/// Where the scan stands.
struct Scan {
    database: u32,
    cursor: Cursor,
    busy: bool,
    /// The option with which this round began.
    idle: Millis,
    /// When the earliest lock seen in this round becomes idle; what changes later does so later.
    earliest: Instant,
    /// Nothing can be idle before.
    rests_until: Instant,
}

impl Scan {
    fn new(idle: Millis, now: Instant) -> Scan {
        Scan {
            database: 0,
            cursor: Cursor::default(),
            busy: false,
            idle,
            earliest: now.after(idle),
            rests_until: now,
        }
    }

    /// Goes back to the start, after a whole round.
    fn turn(&mut self, now: Instant) {
        self.rests_until = self.earliest;
        self.earliest = now.after(self.idle);
        self.database = 0;
    }
}

/// One tick: looks at some keys, and forgets the locks among them that are idle.
pub(super) fn tick(context: Context<'_>) {
    let Some(idle) = config::idle() else { return };
    if types::lock_count() == 0 {
        return;
    }
    let flags = context.flags();
    if !flags.is_master() || flags.is_loading() || context.must_not_replicate() {
        return;
    }
    let now = clock::now();
    let mut scan = SCAN
        .with(Option::take)
        .filter(|scan| scan.idle == idle)
        .unwrap_or_else(|| Scan::new(idle, now));
    if scan.rests_until <= now {
        scan_some(context, &mut scan, now);
    }
    SCAN.with(|slot| *slot = Some(scan));
}

fn scan_some(context: Context<'_>, scan: &mut Scan, now: Instant) {
    let started = StdInstant::now();
    let budget = if scan.busy { BUSY_TICK } else { QUIET_TICK };
    let (mut seen, mut found) = (0, 0);
    while started.elapsed() < budget {
        if !context.select(scan.database) {
            // Past the last database: once round is enough for a tick.
            scan.turn(now);
            break;
        }
        let mut idle_names: Vec<Vec<u8>> = Vec::new();
        let mut earliest = scan.earliest;
        let more = context.scan(&mut scan.cursor, BATCH, &mut |name, lock| {
            seen += 1;
            let idle_at = lock.until().after(scan.idle);
            if lock.is_held(now) || idle_at > now {
                earliest = earliest.min(idle_at);
            } else {
                idle_names.push(name.to_vec());
            }
        });
        scan.earliest = earliest;
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
