//! Counts of what has happened on this node: for INFO, and so that a scan knows when to look.
//!
//! The end of a lease is not an event, so it cannot decrement a count. The tally counts leases
//! whose end has not been noted; the next grant, a removal of the lock or a scan notes it. The
//! earliest of those ends tells when a scan can find anything.

use std::ops::{AddAssign, Sub};

use super::{Acquired, Lock, Released};
use crate::engine::{Histogram, Instant, Mode, Refusal, RefusalKind};

/// How much is held: of one lock, of all locks of a node, or as a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCount {
    /// Locks that are held.
    pub locks: i64,
    /// Readers that hold them.
    pub readers: i64,
}

impl HeldCount {
    /// Nothing is held.
    pub const NONE: HeldCount = HeldCount { locks: 0, readers: 0 };
}

impl AddAssign for HeldCount {
    #[inline]
    fn add_assign(&mut self, more: HeldCount) {
        self.locks += more.locks;
        self.readers += more.readers;
    }
}

impl Sub for HeldCount {
    type Output = HeldCount;

    #[inline]
    fn sub(self, less: HeldCount) -> HeldCount {
        HeldCount { locks: self.locks - less.locks, readers: self.readers - less.readers }
    }
}

/// How often things happened since the server started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Leases granted.
    pub grants: u64,
    /// Leases granted to readers.
    pub reader_grants: u64,
    /// Requests for a lock that another token held.
    pub held: u64,
    /// Leases released.
    pub releases: u64,
    /// Leases extended.
    pub extensions: u64,
    /// Counters raised.
    pub raises: u64,
    /// Leases that ended without a release.
    pub lapses: u64,
    /// Free locks deleted after `lockmod.idle-ms`.
    pub idle_deleted: u64,
    /// Moves of slots at once, from this node, that failed or were called off.
    pub failed_moves: u64,
    /// Requests refused with an error, by code word.
    pub refusals: [u64; RefusalKind::COUNT],
}

/// The node's account.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Whether the node decides. While it loads or is a replica, it applies decisions that were
    /// counted where they were made.
    pub(super) decides: bool,
    /// How often things happened.
    pub counts: Counts,
    /// How long the released leases had been held.
    pub holds: Histogram,
    /// The leases that were written, less those that were erased or noted as ended. Locks that come
    /// or go with leases in them are counted elsewhere: see [`Tally::held`].
    written: HeldCount,
    /// A lower bound for the ends that have not been noted.
    soonest: Instant,
    /// The latest end that a lease had which was released or removed since the last survey began.
    cut_short_until: Instant,
    /// Whether the numbers were asked for since the last scan of all locks.
    is_wanted: bool,
}

/// No lease ends.
const NEVER: Instant = Instant::from_millis(u64::MAX);

impl Tally {
    /// Nothing has happened, and no data set is loaded.
    pub const NONE: Tally = Tally {
        decides: false,
        counts: Counts {
            grants: 0,
            reader_grants: 0,
            held: 0,
            releases: 0,
            extensions: 0,
            raises: 0,
            lapses: 0,
            idle_deleted: 0,
            failed_moves: 0,
            refusals: [0; RefusalKind::COUNT],
        },
        holds: Histogram::EMPTY,
        written: HeldCount::NONE,
        soonest: NEVER,
        cut_short_until: Instant::from_millis(0),
        is_wanted: false,
    };

    /// Counts a decided acquire. `before` is [`Lock::unnoted`] before it.
    #[inline]
    pub(super) fn acquired(
        &mut self,
        outcome: Acquired,
        mode: Mode,
        (before, lock): (HeldCount, &Lock),
    ) {
        match outcome {
            Acquired::Granted { ends_at, lapsed, .. } => {
                self.counts.grants += 1;
                self.counts.reader_grants += u64::from(mode.is_shared());
                // Former leases had ended without being noted.
                self.counts.lapses += lapsed as u64;
                self.written += lock.unnoted() - before;
                self.soonest = self.soonest.min(ends_at);
            }
            Acquired::Again { later, .. } => self.counts.extensions += u64::from(later),
            Acquired::Held => {}
        }
    }

    /// Counts a decided release. `until` is [`Lock::until`] before it, `before` [`Lock::unnoted`].
    #[inline]
    pub(super) fn released(
        &mut self,
        outcome: Released,
        (until, before): (Instant, HeldCount),
        lock: &Lock,
    ) {
        if let Released::Released { held_for } = outcome {
            self.cut_short(until);
            self.written += lock.unnoted() - before;
            if self.decides {
                self.counts.releases += 1;
                self.holds.record(held_for);
            }
        }
    }

    /// Notes that a lease with this end was released or removed, or ends earlier now.
    #[inline]
    pub fn cut_short(&mut self, ends_at: Instant) {
        self.cut_short_until = self.cut_short_until.max(ends_at);
    }

    /// The latest end that a lease had which was cut short.
    pub fn cut_short_until(&self) -> Instant {
        self.cut_short_until
    }

    /// Begins a survey: leases that are cut short from now on are for the next one.
    pub fn begin_survey(&mut self) {
        self.cut_short_until = Instant::default();
    }

    /// Counts the change of a lock in place. `before` is [`Lock::unnoted`] before it.
    #[inline]
    pub fn changed(&mut self, before: HeldCount, lock: &Lock) {
        self.written += lock.unnoted() - before;
        self.may_lapse(lock);
    }

    /// Notes that this lock may have a lease that ends before all known ones.
    pub fn may_lapse(&mut self, lock: &Lock) {
        if let Some(soonest) = lock.soonest_end() {
            self.soonest = self.soonest.min(soonest);
        }
    }

    /// Counts leases whose ends were noted.
    pub fn lapsed(&mut self, count: usize) {
        self.counts.lapses += count as u64;
    }

    /// Uncounts a lapse that was noted here, because the master reports the release of that lease.
    pub fn take_back_lapse(&mut self) {
        self.counts.lapses = self.counts.lapses.saturating_sub(1);
    }

    /// Counts a refused request.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.counts.refusals[refusal.kind() as usize] += 1;
    }

    /// How many locks are held, and by how many readers: granted, and neither released nor noted
    /// as ended. Leases that lapsed just now are still counted; this asks for a scan, which will
    /// note them.
    ///
    /// `moved`: those of locks that were loaded or copied, less those of locks that are gone. The
    /// caller counts them, because a lock may be freed on any thread.
    pub fn held(&mut self, moved: HeldCount) -> (u64, u64) {
        self.is_wanted = true;
        let mut held = self.written;
        held += moved;
        (u64::try_from(held.locks).unwrap_or(0), u64::try_from(held.readers).unwrap_or(0))
    }

    /// Whether a scan would find the end of a lease that is to be reported.
    pub fn is_due(&self, now: Instant, is_announced: bool) -> bool {
        (is_announced || self.is_wanted) && self.soonest < now
    }

    /// Begins a scan of all locks, which will find the earliest end.
    pub fn begin_round(&mut self) {
        self.soonest = NEVER;
    }

    /// Aborts a scan: from now on a lease may end at any time.
    pub fn break_round(&mut self) {
        self.soonest = Instant::default();
    }

    /// Ends a scan that has looked at all locks.
    pub fn end_round(&mut self) {
        self.is_wanted = false;
    }
}
