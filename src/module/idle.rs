//! Forgetting idle locks: an incremental scan that keeps memory bounded.
//!
//! A lock outlives its leases for the sake of its counter, so names that are used once would pile
//! up. What Redis does for expired keys is done here for locks that have been free for
//! `lockmod.idle-ms`: a little on every tick of the server's cron, more while much is found. A
//! forgotten lock raises the floor (its key is unlinked, and that is what raises it), so nothing is
//! lost but the memory. Only a master forgets; replicas are told.

use std::time::{Duration, Instant as StdInstant};

use super::ffi::{Context, Cursor, Guarded, types};
use super::{clock, config, node};

/// The longest that one tick may take, while much is found: at ten ticks a second, 5 % of a core.
const BUSY_TICK: Duration = Duration::from_millis(5);
/// The longest that one tick may take while little is found: 0.5 % of a core.
const QUIET_TICK: Duration = Duration::from_micros(500);
/// Much is found when at least one in this many locks looked at was idle.
const MUCH: u64 = 4;
/// Keys are looked at this many at a time between two looks at the clock.
const BATCH: usize = 64;

static SCAN: Guarded<Scan> = Guarded::new(Scan { database: 0, cursor: None, busy: false });

struct Scan {
    database: u32,
    cursor: Option<Cursor>,
    busy: bool,
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
    let started = StdInstant::now();
    let (mut database, cursor, busy) =
        SCAN.with(|scan| (scan.database, scan.cursor.take(), scan.busy));
    let mut cursor = cursor.unwrap_or_default();
    let budget = if busy { BUSY_TICK } else { QUIET_TICK };
    let now = clock::now();
    let (mut seen, mut found, mut wrapped) = (0, 0, false);
    while started.elapsed() < budget {
        if !context.select(database) {
            // Past the last database. Once round is enough for a tick.
            database = 0;
            if std::mem::replace(&mut wrapped, true) {
                break;
            }
            continue;
        }
        let mut idle_names: Vec<Vec<u8>> = Vec::new();
        let more = context.scan(&mut cursor, BATCH, &mut |name, lock| {
            seen += 1;
            if lock.free_since(now).is_some_and(|since| since.after(idle) <= now) {
                idle_names.push(name.to_vec());
            }
        });
        for name in &idle_names {
            if context.run_replicated(c"UNLINK", &[name]) {
                node::count(|counts| counts.forgotten += 1);
                found += 1;
            }
        }
        if !more {
            cursor = Cursor::default();
            database += 1;
        }
    }
    let busy = found * MUCH >= seen && found > 0;
    SCAN.with(|scan| *scan = Scan { database, cursor: Some(cursor), busy });
}
