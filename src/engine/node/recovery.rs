//! What a node must assume and wait for after a restart or a promotion.
//!
//! The promises bound what may have been lost. Fences go on above the promised ceiling, and the
//! node waits out leases that it may have forgotten. If not even the promise is known, it waits for
//! the longest lease that its settings allow, and fences go on far above all known ones.

use super::{Ceilings, FENCE_BLOCK, Inventory, Lock, Promises};
use crate::engine::fence::LOSS_MARGIN;
use crate::engine::{
    Clocks, Fence, Instant, Millis, QuarantineReason, TTL_MAX, UNNOTICED, UnixTime,
};

/// What the node wrote to its state file while it ran, or when it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The port it listened on, which identifies this node's file.
    pub port: u16,
    /// The ceilings that it promised; after a clean stop, what it used.
    pub ceilings: Ceilings,
    /// When this was written.
    pub at: Clocks,
    /// The boot whose monotonic clock all instants belong to; zero if unknown.
    pub boot: u64,
    /// The clocks by which leases are dated outside of the process. They stay the same until a step
    /// of the wall clock is noticed, so that another start in this boot reads the dates exactly.
    pub dating: Clocks,
    /// The latest end of leases in the data set that were dated in an earlier boot, or before a
    /// step of the wall clock: their ends are not known exactly.
    pub foreign_until: Instant,
    /// Every write was on disk before its reply, ever since the node started.
    pub is_always_durable: bool,
    /// A step of the wall clock was noticed: the append-only file is dated by two clocks.
    pub was_stepped: bool,
    /// It was a replica.
    pub was_replica: bool,
    /// None of its extensions in a quarantine counts before this, even after another start: it was
    /// promoted, or leases moved to other names.
    pub nothing_counts_until: Instant,
    /// The longest lease that may stand in its group, as a length, whenever this is read. Zero: the
    /// node does not rest on replicas.
    pub longest: Millis,
    /// It is in a Cluster, and another master may decide in its slots, or have leases there, from
    /// before most masters confirm that they are its own.
    pub doubts: bool,
    /// How it stopped; `None` while it runs, and after a crash.
    pub stop: Option<Stopped>,
}

/// A clean stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// All locks are in the data set as it was last saved.
    pub is_saved: bool,
    /// The locks that there were.
    pub inventory: Inventory,
}

/// What was found at the state file's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Missing,
    /// A file of another node, or one that cannot be read.
    Damaged,
    /// What the node wrote.
    Present(Saved),
}

/// What is known after the data set, if any, has been loaded.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// The port on which the node listens.
    pub port: u16,
    /// The current reading of both clocks.
    pub clocks: Clocks,
    /// The boot of the monotonic clock; zero if unknown.
    pub boot: u64,
    /// How many locks were loaded.
    pub lock_count: u64,
    /// The locks that were loaded, with the `since` of the clean stop, if there was one.
    pub inventory: Inventory,
    /// The server has read a data set, which may be empty.
    pub was_read: bool,
    /// The highest fence that was loaded.
    pub highest: Fence,
    /// Every write is on disk before its reply, from now on.
    pub is_always_durable: bool,
    /// It is a replica: it grants nothing until it is promoted.
    pub is_replica: bool,
    /// The longest lease that the node's settings allow.
    pub max_ttl: Millis,
}

/// What the node must do before it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Its floor.
    pub floor: Fence,
    /// The last instant of its quarantine, and the reason.
    pub quarantine: Option<(Instant, QuarantineReason)>,
    /// No extension counts before the quarantine is over, whichever lease it is for.
    pub nothing_counts: bool,
    /// Nor is a lease carried over a wait for other masters: one that was removed may have come
    /// back with the data, or moved to another name.
    pub nothing_is_carried: bool,
    /// How much every loaded lease is prolonged, because its date may be wrong.
    pub prolong: Millis,
}

impl Recovery {
    /// Nothing can have been forgotten.
    pub(super) const fn at_once(floor: Fence) -> Recovery {
        Recovery {
            floor,
            quarantine: None,
            nothing_counts: false,
            nothing_is_carried: false,
            prolong: Millis::ZERO,
        }
    }

    /// Whether loaded locks must be dated again.
    pub fn redates(&self) -> bool {
        !self.prolong.is_zero()
    }

    /// Prolongs the lease of a loaded lock, if it may stand.
    ///
    /// A prolonged lease may have ended before the crash, and the node may have forgotten a later
    /// grant to another. So in a quarantine it is provisional.
    pub fn redate(&self, lock: &mut Lock, now: Instant) {
        if !self.prolong.is_zero() && lock.prolong(self.prolong, now) && self.quarantine.is_some() {
            lock.mark_provisional();
        }
    }
}

/// What a node must do after a start, before it grants.
pub fn recover(found: Found, loaded: Loaded) -> Recovery {
    let lost = Recovery {
        floor: jump(loaded.highest, loaded.clocks.wall),
        quarantine: Some((loaded.clocks.now.after(loaded.max_ttl), QuarantineReason::StateLost)),
        nothing_counts: false,
        nothing_is_carried: false,
        prolong: UNNOTICED,
    };
    match found {
        // No state file and no lock: the first start. Nothing can have been forgotten.
        Found::Missing if loaded.lock_count == 0 => Recovery::at_once(loaded.highest),
        Found::Missing | Found::Damaged => lost,
        Found::Present(saved) if saved.was_replica && !loaded.is_replica => Recovery {
            nothing_is_carried: saved.nothing_counts(loaded),
            prolong: UNNOTICED,
            ..promote(loaded.clocks, saved.ceilings.fence.max(loaded.highest), loaded.max_ttl)
        },
        Found::Present(saved) => Recovery {
            // Even after a clean stop: the data set may be older than the one that was saved.
            floor: saved.ceilings.fence.max(loaded.highest),
            quarantine: wait(&saved, loaded),
            nothing_counts: saved.nothing_counts(loaded),
            nothing_is_carried: saved.nothing_counts(loaded),
            prolong: if saved.dates_exactly(loaded) { Millis::ZERO } else { UNNOTICED },
        },
    }
}

/// What a replica must do when it becomes a master: it may lack its master's last grants.
pub fn promote(clocks: Clocks, highest: Fence, max_ttl: Millis) -> Recovery {
    Recovery {
        floor: jump(highest, clocks.wall),
        quarantine: Some((clocks.now.after(max_ttl), QuarantineReason::Promotion)),
        nothing_counts: true,
        nothing_is_carried: false,
        prolong: Millis::ZERO,
    }
}

/// A floor above what was issued after `highest`, by a node that cannot be asked.
///
/// It depends on the time alone, and not on `highest`: fences of one node are stored at others, so
/// a node that jumped far beyond its own would be ahead of the next node that loses what it knew.
/// Jumps to the time are in the order of the losses, and no lock is granted a million times a
/// second in between. If `highest` is already beyond the time, the cause is a clock that was ahead,
/// a raise, or a promotion a moment ago, and one more block is enough.
pub(super) fn jump(highest: Fence, wall: UnixTime) -> Fence {
    let by_time = Fence::of_time(wall).saturating_add(LOSS_MARGIN);
    if highest < by_time { by_time } else { highest.saturating_add(FENCE_BLOCK) }
}

/// Whether a node whose highest fence is this one has ever jumped, or got fences of one that has:
/// no node counts so far.
pub(super) fn has_jumped(highest: Fence) -> bool {
    Fence::ZERO.saturating_add(LOSS_MARGIN) < highest
}

/// What a node writes to its state file before it grants, after the data set has been loaded into
/// `node`. Earlier promises stand, and what `recovery` requires is promised too.
pub fn start(found: Found, loaded: Loaded, recovery: Recovery, node: &Promises) -> Saved {
    let same_boot = match found {
        Found::Present(saved) if saved.is_of_boot(loaded.boot) => Some(saved),
        Found::Present(_) | Found::Missing | Found::Damaged => None,
    };
    let longest = node.longest().after(recovery.prolong);
    let used = Ceilings { fence: recovery.floor.max(node.highest()), lease: longest };
    Saved {
        port: loaded.port,
        ceilings: promised(found, loaded).max(first_ceilings(used, recovery, loaded.clocks.now)),
        at: loaded.clocks,
        boot: loaded.boot,
        dating: match same_boot {
            Some(saved) if !loaded.clocks.are_stepped_since(saved.dating) => saved.dating,
            Some(_) | None => loaded.clocks,
        },
        foreign_until: match same_boot {
            // Leases that this start prolongs end later here than in the files, and an extension
            // that ends before that is not written. So the next start must prolong them too.
            Some(saved) if recovery.prolong.is_zero() => saved.foreign_until.min(longest),
            Some(_) | None => longest,
        },
        // This disk may lack the leases that a quarantine waits for, so after a crash the node
        // must wait again.
        is_always_durable: loaded.is_always_durable && recovery.quarantine.is_none(),
        was_stepped: false,
        was_replica: loaded.is_replica,
        nothing_counts_until: nothing_counts_until(found, loaded, recovery),
        longest: node
            .authority()
            .map_or(Millis::ZERO, |authority| authority.longest(loaded.clocks.now)),
        doubts: false,
        stop: None,
    }
}

/// As in [`Saved::nothing_counts_until`]. A start without a quarantine may be followed by one with
/// older data, and a quarantine.
fn nothing_counts_until(found: Found, loaded: Loaded, recovery: Recovery) -> Instant {
    let before = match found {
        Found::Present(saved) if saved.nothing_counts(loaded) => {
            todays(&saved, loaded, saved.nothing_counts_until)
        }
        Found::Present(_) | Found::Missing | Found::Damaged => Instant::default(),
    };
    match recovery.quarantine {
        Some((until, _)) if recovery.nothing_counts => until.max(before),
        Some(_) | None => before,
    }
}

/// The ceilings that earlier runs promised, as far as they still bind. After a reboot the old
/// boot's instants mean nothing: the wait that they require is in the recovery.
fn promised(found: Found, loaded: Loaded) -> Ceilings {
    match found {
        Found::Present(saved) if saved.is_of_boot(loaded.boot) => {
            Ceilings { lease: todays(&saved, loaded, saved.ceilings.lease), ..saved.ceilings }
        }
        Found::Present(saved) => Ceilings { lease: Ceilings::NONE.lease, ..saved.ceilings },
        Found::Missing | Found::Damaged => Ceilings::NONE,
    }
}

/// The ceilings for a start at `now`: for what is `used`, and for what the node may grant until it
/// writes the next ones.
fn first_ceilings(used: Ceilings, recovery: Recovery, now: Instant) -> Ceilings {
    match recovery.quarantine {
        // In a quarantine no lease is granted, so a block of time would only prolong the next
        // quarantine.
        Some((until, _)) => {
            let used = Ceilings { lease: used.lease.max(until).max(now), ..used };
            Ceilings { lease: used.lease, ..used.plus_block() }
        }
        None => Ceilings { lease: used.lease.max(now), ..used }.plus_block(),
    }
}

/// What a node writes to its state file when it stops cleanly at `now`: the ceilings that it used,
/// and how it stopped. `longest` is the latest end of the leases that stand in its data set.
///
/// A quarantine in force outlasts the stop: it waits for leases that are *not* in the data set,
/// however completely that was saved.
pub(super) fn stop(
    node: &Promises,
    now: Instant,
    longest: Instant,
    stopped: Stopped,
) -> (Ceilings, Stopped) {
    let waited_for = node.waited_for(now);
    let used =
        Ceilings { fence: node.highest(), lease: longest.max(waited_for.unwrap_or_default()) };
    let is_saved = stopped.is_saved && waited_for.is_none();
    (used, Stopped { is_saved, ..stopped })
}

fn wait(saved: &Saved, loaded: Loaded) -> Option<(Instant, QuarantineReason)> {
    let until = todays(saved, loaded, saved.ceilings.lease);
    let nothing_outstanding = saved.stop.is_some() && saved.ceilings.lease < saved.at.now;
    if nothing_outstanding || until < loaded.clocks.now {
        return None;
    }
    let is_durable = saved.is_always_durable && loaded.is_always_durable && loaded.was_read;
    // Even a data set that has every lease dates them by the wall clock.
    let reason = match saved.stop {
        Some(stopped) if !stopped.is_saved => QuarantineReason::UncleanRestart,
        None if !is_durable => QuarantineReason::UncleanRestart,
        Some(_) | None if is_stepped(saved, loaded) => QuarantineReason::ClockStep,
        Some(stopped) if stopped.inventory != loaded.inventory => QuarantineReason::OtherData,
        Some(_) | None => return None,
    };
    Some((until, reason))
}

/// Whether the append-only file has leases dated by two clocks: a step was noticed while the node
/// ran, or is noticed now.
fn is_stepped(saved: &Saved, loaded: Loaded) -> bool {
    saved.was_stepped
        || saved.is_of_boot(loaded.boot) && loaded.clocks.are_stepped_since(saved.dating)
}

/// A saved instant, such as the lease ceiling, on the present clock; no later than any lease can
/// end.
fn todays(saved: &Saved, loaded: Loaded, instant: Instant) -> Instant {
    let latest = loaded.clocks.now.after(TTL_MAX);
    // After a reboot only the wall clock is left. It cannot make the wait longer than when it was
    // written.
    let length = saved.at.now.until(instant);
    let dated = loaded.clocks.to_instant(saved.at.to_wall(instant).after(UNNOTICED), length);
    if saved.is_dated_here(loaded) {
        instant.min(latest)
    } else if saved.is_of_boot(loaded.boot) {
        // The wall clock was stepped, or the file comes from another machine that was resumed from
        // the same snapshot of memory, and so has the id of the same boot.
        instant.max(dated).min(loaded.clocks.now.after(length)).min(latest)
    } else {
        dated.min(latest)
    }
}

impl Found {
    /// Whether a master of a Cluster that starts with this may have been promoted, or have taken
    /// slots, without having waited since: see [`Saved::doubts`].
    pub(super) fn doubts(&self, lock_count: u64) -> bool {
        match self {
            // One that rested on replicas may not now.
            Found::Present(saved) => saved.doubts || saved.was_replica || self.was_in_group(),
            Found::Missing => lock_count > 0,
            Found::Damaged => true,
        }
    }

    /// Whether the node rested on replicas when it wrote this.
    pub fn was_in_group(&self) -> bool {
        !self.longest().is_zero()
    }

    /// The longest lease that may stand in the node's group; zero if it is not known.
    pub(super) fn longest(&self) -> Millis {
        match self {
            Found::Present(saved) => saved.longest,
            Found::Missing | Found::Damaged => Millis::ZERO,
        }
    }

    /// Whether the node has stopped cleanly in this boot, by the same clocks.
    pub(super) fn has_stopped_here(&self, loaded: Loaded) -> bool {
        matches!(self, Found::Present(saved) if saved.stop.is_some() && saved.is_dated_here(loaded))
    }

    /// Until when leases may stand that this master of a Cluster granted before its clean stop, and
    /// that are not in the data set. `instant`: what its file says of that, by the clock of then.
    /// Zero if the node cannot know: others remember how long such leases may be, and it speaks for
    /// no slot that it lost before.
    pub(super) fn gone_until(&self, (loaded, waits): (Loaded, bool), instant: Instant) -> Instant {
        let Found::Present(saved) = self else { return Instant::default() };
        let stopped_as_master = !saved.was_replica && !saved.doubts && saved.stop.is_some();
        let goes_on = stopped_as_master && !loaded.is_replica && !waits;
        let knows = goes_on && saved.is_of_boot(loaded.boot);
        if knows { todays(saved, loaded, instant) } else { Instant::default() }
    }

    /// The clocks by which to read this node's dates in boot `boot`; `None` if only the present
    /// reading is left.
    pub fn dating(&self, boot: u64) -> Option<Clocks> {
        match self {
            Found::Present(saved) if saved.is_of_boot(boot) => Some(saved.dating),
            Found::Present(_) | Found::Missing | Found::Damaged => None,
        }
    }
}

impl Saved {
    /// Whether its instants are on the monotonic clock of this boot.
    pub fn is_of_boot(&self, boot: u64) -> bool {
        self.boot != 0 && self.boot == boot
    }

    /// Whether nothing counts yet, however often this node has started since: after a promotion the
    /// old master may still be alive; after leases moved, forgotten votes may be alive under their
    /// new names.
    fn nothing_counts(&self, loaded: Loaded) -> bool {
        self.nothing_counts_until > self.at.now
            && todays(self, loaded, self.nothing_counts_until) >= loaded.clocks.now
    }

    /// Whether its instants are on the monotonic clock of this machine in this boot, as far as a
    /// wall clock that was not stepped since can tell.
    fn is_dated_here(&self, loaded: Loaded) -> bool {
        self.is_of_boot(loaded.boot) && !loaded.clocks.are_stepped_since(self.dating)
    }

    /// Whether the ends of all leases that may stand in the data set are known to the millisecond.
    fn dates_exactly(&self, loaded: Loaded) -> bool {
        self.is_dated_here(loaded) && !self.was_stepped && self.foreign_until < loaded.clocks.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Change, ClusterMemory, Lease, Mode, Token};

    const BOOT: u64 = 7;
    const HOUR: u64 = 3_600_000;

    fn clocks(now: u64, wall: u64) -> Clocks {
        Clocks { now: Instant::from_millis(now), wall: UnixTime::from_millis(wall) }
    }

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    fn apply((used, stopped): (Ceilings, Stopped), saved: &mut Saved) {
        let stopped = Change::Stopped { used, stopped, gone_until: None, lengths: Vec::new() };
        stopped.apply(saved, &mut ClusterMemory::default());
    }

    /// A file written 10 s after the boot, which promises that no lease ends after 40 s.
    fn saved() -> Saved {
        Saved {
            port: 6379,
            ceilings: Ceilings { fence: fence(1_000), lease: Instant::from_millis(40_000) },
            at: clocks(10_000, HOUR),
            boot: BOOT,
            dating: clocks(10_000, HOUR),
            foreign_until: Instant::default(),
            is_always_durable: false,
            was_stepped: false,
            was_replica: false,
            nothing_counts_until: Instant::default(),
            longest: Millis::ZERO,
            doubts: false,
            stop: None,
        }
    }

    /// Two seconds later, in the same boot.
    fn loaded() -> Loaded {
        Loaded {
            port: 6379,
            clocks: clocks(12_000, HOUR + 2_000),
            boot: BOOT,
            lock_count: 3,
            inventory: inventory(3),
            was_read: true,
            highest: fence(5),
            is_always_durable: false,
            is_replica: false,
            max_ttl: Millis::new(60_000),
        }
    }

    fn inventory(lock_count: u64) -> Inventory {
        Inventory { lock_count, hash: 77, since: UnixTime::from_millis(HOUR) }
    }

    fn stopped(is_saved: bool) -> Option<Stopped> {
        Some(Stopped { is_saved, inventory: inventory(3) })
    }

    #[test]
    fn a_first_start_grants_at_once() {
        let first = recover(Found::Missing, Loaded { lock_count: 0, ..loaded() });
        assert_eq!((first.floor, first.quarantine), (fence(5), None));
    }

    #[test]
    fn locks_without_a_state_file_are_distrusted_for_the_longest_lease() {
        for found in [Found::Missing, Found::Damaged] {
            let recovery = recover(found, loaded());
            let by_time = Fence::of_time(loaded().clocks.wall).saturating_add(LOSS_MARGIN);
            assert_eq!(recovery.floor, by_time);
            let until = Instant::from_millis(72_000);
            assert_eq!(recovery.quarantine, Some((until, QuarantineReason::StateLost)));
        }
        let empty = Loaded { lock_count: 0, ..loaded() };
        assert!(recover(Found::Damaged, empty).quarantine.is_some());
    }

    #[test]
    fn a_crash_is_waited_out_up_to_the_lease_ceiling_and_fences_go_on_above_theirs() {
        let recovery = recover(Found::Present(saved()), loaded());
        assert_eq!(recovery.floor, fence(1_000));
        let until = Instant::from_millis(40_000);
        assert_eq!(recovery.quarantine, Some((until, QuarantineReason::UncleanRestart)));
        let late = Loaded { clocks: clocks(40_001, HOUR + 30_001), ..loaded() };
        assert_eq!(recover(Found::Present(saved()), late).quarantine, None);
    }

    #[test]
    fn in_the_same_boot_a_stepped_wall_clock_does_not_shorten_the_wait() {
        let stepped = Loaded { clocks: clocks(12_000, 900 * HOUR), ..loaded() };
        let (until, _) = recover(Found::Present(saved()), stepped).quarantine.unwrap();
        assert_eq!(until, Instant::from_millis(40_000));
    }

    /// Regression: the leases in the node's own files were taken for exact. Those of before the
    /// other machine was resumed may be over, and forgotten grants may have followed them.
    #[test]
    fn on_the_clocks_of_another_machine_no_lease_counts_in_the_quarantine() {
        let moved = Loaded { clocks: clocks(2_000, HOUR + 2_000), ..loaded() };
        let recovery = recover(Found::Present(saved()), moved);
        assert_eq!(recovery.prolong, UNNOTICED);
        let mut lock = Lock::free(fence(4), Instant::default());
        lock.apply(a_lease(Instant::from_millis(9_000)), moved.clocks.now);
        recovery.redate(&mut lock, moved.clocks.now);
        assert!(is_marked(&lock));
    }

    #[test]
    fn a_machine_that_has_the_boot_of_another_but_not_its_clock_waits_as_after_a_reboot() {
        for now in [12_000 + HOUR, 12_000 + 30_000, 2_000, 1] {
            let moved = Loaded { clocks: clocks(now, HOUR + 2_000), ..loaded() };
            let (until, _) = recover(Found::Present(saved()), moved).quarantine.unwrap();
            let left = moved.clocks.now.until(until).get();
            assert!((28_000..=30_000).contains(&left), "{now}: {left}");
            // The file that it writes is about its own clock.
            let found = Found::Present(saved());
            let recovery = recover(found, moved);
            let next = start(found, moved, recovery, &node(5));
            assert!(next.ceilings.lease <= moved.clocks.now.after(Millis::new(30_000)), "{now}");
        }
    }

    #[test]
    fn after_a_reboot_the_wall_clock_counts_and_cannot_prolong_the_wait() {
        let rebooted = |wall| Loaded { clocks: clocks(500, wall), boot: BOOT + 1, ..loaded() };
        let wait = |wall| recover(Found::Present(saved()), rebooted(wall)).quarantine;
        // A step may have gone unnoticed.
        let unnoticed = UNNOTICED.get();
        assert_eq!(wait(HOUR + 20_000).unwrap().0, Instant::from_millis(10_500 + unnoticed));
        assert_eq!(wait(HOUR + 1_000).unwrap().0, Instant::from_millis(30_500));
        assert_eq!(wait(0).unwrap().0, Instant::from_millis(30_500));
        assert!(wait(HOUR + 30_000 + unnoticed).is_some());
        assert_eq!(wait(HOUR + 30_001 + unnoticed), None);
    }

    #[test]
    fn writes_that_were_always_on_disk_are_not_waited_for() {
        let durable = Saved { is_always_durable: true, ..saved() };
        let after = Loaded { is_always_durable: true, ..loaded() };
        assert_eq!(recover(Found::Present(durable), after).quarantine, None);
        assert!(recover(Found::Present(durable), loaded()).quarantine.is_some());
        assert!(recover(Found::Present(saved()), after).quarantine.is_some());
        let deleted = Loaded { was_read: false, ..after };
        assert!(recover(Found::Present(durable), deleted).quarantine.is_some());
    }

    #[test]
    fn a_clean_stop_is_not_waited_for_if_all_locks_came_back() {
        let clean = Saved { stop: stopped(true), ..saved() };
        assert_eq!(recover(Found::Present(clean), loaded()).quarantine, None);
        for other in [inventory(2), Inventory { hash: 78, ..inventory(3) }] {
            let other = Loaded { inventory: other, ..loaded() };
            let (_, reason) = recover(Found::Present(clean), other).quarantine.unwrap();
            assert_eq!(reason, QuarantineReason::OtherData);
        }
        let unsaved = Saved { stop: stopped(false), ..saved() };
        assert!(recover(Found::Present(unsaved), loaded()).quarantine.is_some());
    }

    #[test]
    fn a_clean_stop_with_no_lease_outstanding_is_not_waited_for() {
        let mut idle = Saved { stop: stopped(false), ..saved() };
        idle.ceilings.lease = Instant::from_millis(9_999);
        let empty = Loaded { lock_count: 0, ..loaded() };
        let recovery = recover(Found::Present(idle), empty);
        assert_eq!((recovery.floor, recovery.quarantine), (fence(1_000), None));

        // A lease that ended with the stop stood in its last millisecond: after a reboot, for all
        // that is known, it still stands.
        idle.ceilings.lease = idle.at.now;
        let rebooted = Loaded { clocks: clocks(500, HOUR), boot: BOOT + 1, ..empty };
        let (until, _) = recover(Found::Present(idle), rebooted).quarantine.unwrap();
        assert_eq!(until, Instant::from_millis(500));
        idle.ceilings.lease = idle.at.now.before(Millis::new(1));
        assert_eq!(recover(Found::Present(idle), rebooted).quarantine, None);
    }

    #[test]
    fn a_start_says_that_writes_are_always_on_disk_only_if_they_are_and_nothing_is_waited_for() {
        let stands = recover(Found::Present(saved()), loaded());
        let nothing = Recovery { quarantine: None, ..stands };
        for (is_always_durable, recovery, says) in [
            (true, nothing, true),
            (true, stands, false),
            (false, nothing, false),
            (false, stands, false),
        ] {
            let loaded = Loaded { is_always_durable, ..loaded() };
            let next = start(Found::Present(saved()), loaded, recovery, &node(20_000));
            assert_eq!(next.is_always_durable, says, "{recovery:?}");
        }
    }

    #[test]
    fn a_quarantine_outlasts_a_clean_stop() {
        // A crash forgot a lease until 40 s. The node came back, and was stopped in its quarantine
        // with nothing in its data set. The next start must still wait for that lease.
        let mut node = Promises::new(Fence::ZERO, None);
        node.recover(recover(Found::Present(saved()), loaded()));
        let (now, none) = (Instant::from_millis(12_500), Instant::default());
        let stopped = Stopped { is_saved: true, inventory: inventory(3) };
        let mut left = saved();
        apply(stop(&node, now, none, stopped), &mut left);
        left.at = clocks(12_500, HOUR + 2_500);
        let again = Loaded { clocks: clocks(13_000, HOUR + 3_000), ..loaded() };
        let until = Instant::from_millis(40_000);
        let recovery = recover(Found::Present(left), again);
        assert_eq!(recovery.quarantine, Some((until, QuarantineReason::UncleanRestart)));

        // A stop after the quarantine leaves nothing to wait for.
        let late = Instant::from_millis(40_001);
        let mut after = saved();
        apply(stop(&node, late, none, stopped), &mut after);
        assert_eq!((after.ceilings.lease, after.stop), (none, Some(stopped)));
    }

    #[test]
    fn leases_that_a_stepped_clock_dates_wrongly_are_waited_out() {
        let clean = Saved { stop: stopped(true), ..saved() };
        let stepped = Loaded { clocks: clocks(12_000, HOUR + 62_000), ..loaded() };
        let (until, reason) = recover(Found::Present(clean), stepped).quarantine.unwrap();
        assert_eq!(until, Instant::from_millis(40_000));
        assert_eq!(reason, QuarantineReason::ClockStep);
    }

    #[test]
    fn leases_are_dated_wrongly_also_by_a_clock_that_was_stepped_while_the_node_ran() {
        let clean = Saved { stop: stopped(true), was_stepped: true, ..saved() };
        let durable = Saved { is_always_durable: true, was_stepped: true, ..saved() };
        let loaded = Loaded { is_always_durable: true, ..loaded() };
        for saved in [clean, durable] {
            for boot in [BOOT, BOOT + 1] {
                let loaded = Loaded { boot, ..loaded };
                let (_, reason) = recover(Found::Present(saved), loaded).quarantine.unwrap();
                assert_eq!(reason, QuarantineReason::ClockStep);
            }
        }
    }

    /// A node with a lease until `ends_at`.
    fn node(ends_at: u64) -> Promises {
        let mut node = Promises::new(Fence::ZERO, None);
        node.seen(fence(7), Some(Instant::from_millis(ends_at)));
        node
    }

    #[test]
    fn leases_are_dated_by_the_same_clocks_from_start_to_start_until_a_step_is_noticed() {
        for step in [-1_000, -130, 0, 1, 1_000] {
            let wall = (HOUR + 2_000).saturating_add_signed(step);
            let loaded = Loaded { clocks: clocks(12_000, wall), ..loaded() };
            let recovery = recover(Found::Present(saved()), loaded);
            assert_eq!(recovery.prolong, Millis::ZERO, "they are exact");
            let next = start(Found::Present(saved()), loaded, recovery, &node(20_000));
            assert_eq!((next.dating, next.at), (saved().dating, loaded.clocks), "{step}");
        }
        for step in [-HOUR.cast_signed(), -1_001, 1_001] {
            let wall = (HOUR + 2_000).saturating_add_signed(step);
            let loaded = Loaded { clocks: clocks(12_000, wall), ..loaded() };
            let recovery = recover(Found::Present(saved()), loaded);
            let next = start(Found::Present(saved()), loaded, recovery, &node(20_000));
            assert_eq!(next.dating, loaded.clocks, "{step}");
        }
        assert_eq!(Found::Present(saved()).dating(BOOT), Some(saved().dating));
        for found in [Found::Present(saved()), Found::Missing, Found::Damaged] {
            assert_eq!(found.dating(BOOT + 1), None);
        }
        assert_eq!(Found::Present(Saved { boot: 0, ..saved() }).dating(0), None);
    }

    fn a_lease(ends_at: Instant) -> Lease<'static> {
        let (token, label) = (Token::new(b"t", 255).unwrap(), &b""[..]);
        let (fence, mode, is_provisional) = (fence(5), Mode::Exclusive, false);
        Lease { token, fence, ends_at, label, mode, is_provisional }
    }

    fn is_marked(lock: &Lock) -> bool {
        lock.written_leases().all(|lease| lease.is_provisional)
    }

    #[test]
    fn a_lease_that_is_prolonged_in_a_quarantine_does_not_count() {
        let now = Instant::from_millis(12_000);
        let held = || {
            let mut lock = Lock::free(fence(4), Instant::default());
            lock.apply(a_lease(now.before(Millis::new(1))), now);
            lock
        };
        let recovery = recover(Found::Missing, loaded());
        assert!(recovery.redates(), "the owner of the locks must go through them");
        assert!(!Recovery { prolong: Millis::ZERO, ..recovery }.redates());
        let mut lock = held();
        recovery.redate(&mut lock, now);
        assert!(lock.is_held(now) && is_marked(&lock), "it had ended, for all that is known");

        let mut lock = held();
        Recovery { quarantine: None, ..recovery }.redate(&mut lock, now);
        assert!(lock.is_held(now) && !is_marked(&lock), "nothing was forgotten");
        for recovery in [recovery, Recovery { prolong: Millis::ZERO, ..recovery }] {
            let mut lock = held();
            recovery.redate(&mut lock, now.after(Millis::new(60_000)));
            assert!(!is_marked(&lock), "over, or dated exactly");
        }
    }

    #[test]
    fn leases_of_an_earlier_boot_are_prolonged_at_each_start_while_they_may_stand() {
        let rebooted = Loaded { boot: BOOT + 1, ..loaded() };
        let recovery = recover(Found::Present(saved()), rebooted);
        assert_eq!(recovery.prolong, UNNOTICED);
        let next = start(Found::Present(saved()), rebooted, recovery, &node(20_000));
        assert_eq!(next.dating, rebooted.clocks);
        let last = 20_000 + UNNOTICED.get();
        assert_eq!(next.foreign_until, Instant::from_millis(last));
        assert!(next.ceilings.lease >= next.foreign_until, "they are promised");

        let clocks = |now| rebooted.clocks.at(Instant::from_millis(now));
        let at = |now| Loaded { clocks: clocks(now), ..rebooted };
        let again = recover(Found::Present(next), at(last));
        assert_eq!(again.prolong, UNNOTICED);
        let third = start(Found::Present(next), at(last), again, &node(90_000));
        // A lease that was granted since is prolonged as well, and its extensions are not written.
        let last = 90_000 + UNNOTICED.get();
        assert_eq!(third.foreign_until, Instant::from_millis(last));
        assert_eq!(recover(Found::Present(third), at(last)).prolong, UNNOTICED);
        assert_eq!(recover(Found::Present(third), at(last + 1)).prolong, Millis::ZERO);
        for found in [Found::Missing, Found::Damaged] {
            assert_eq!(recover(found, loaded()).prolong, UNNOTICED);
        }
    }

    #[test]
    fn leases_from_before_a_step_are_prolonged_at_each_start_while_they_may_stand() {
        // They were once read by the clock after the step, as if they were exact. After a step back
        // by an hour, a lease that was over stood again, and in a quarantine its extension counted.
        let while_it_ran = (Saved { was_stepped: true, ..saved() }, loaded());
        // On the clocks of another machine that has the id of this boot, it looks the same.
        let while_down = (saved(), Loaded { clocks: clocks(12_000, 1), ..loaded() });
        for (saved, loaded) in [while_it_ran, while_down] {
            let recovery = recover(Found::Present(saved), loaded);
            assert_eq!(recovery.prolong, UNNOTICED);
            let next = start(Found::Present(saved), loaded, recovery, &node(20_000));
            let last = 20_000 + UNNOTICED.get();
            assert_eq!(next.foreign_until, Instant::from_millis(last));
            let at = |now| Loaded { clocks: loaded.clocks.at(Instant::from_millis(now)), ..loaded };
            assert_eq!(recover(Found::Present(next), at(last)).prolong, UNNOTICED);
            assert_eq!(recover(Found::Present(next), at(last + 1)).prolong, Millis::ZERO);
        }
    }

    #[test]
    fn a_start_promises_all_that_it_found_whatever_became_of_the_file() {
        // A node whose file is lost goes on far above what it found. The next crash must neither
        // bring it below that nor forget a lease that came with the data.
        let of_replica = Saved { was_replica: true, ..saved() };
        let founds = [Found::Missing, Found::Damaged, Found::Present(saved())];
        for found in founds.into_iter().chain([Found::Present(of_replica)]) {
            for ends_at in [0, 12_001, 500_000] {
                for waits in [true, false] {
                    let node = node(ends_at);
                    let mut recovery = recover(found, loaded());
                    if !waits {
                        recovery.quarantine = None;
                    }
                    let promised = start(found, loaded(), recovery, &node).ceilings;
                    let until = recovery.quarantine.map_or(loaded().clocks.now, |(at, _)| at);
                    assert!(promised.fence > recovery.floor, "{found:?}");
                    assert!(promised.fence > node.highest(), "{found:?}");
                    assert!(promised.lease >= node.longest(), "{found:?}");
                    assert!(promised.lease >= until, "{found:?}");
                }
            }
        }
    }

    #[test]
    fn no_file_makes_a_node_wait_longer_than_the_longest_lease_there_is() {
        let mut far = saved();
        far.ceilings.lease = Instant::from_millis(1 << 47);
        let latest = loaded().clocks.now.after(TTL_MAX);
        for boot in [BOOT, BOOT + 1] {
            let loaded = Loaded { boot, ..loaded() };
            let recovery = recover(Found::Present(far), loaded);
            assert_eq!(recovery.quarantine.unwrap().0, latest);
            let next = start(Found::Present(far), loaded, recovery, &node(5));
            assert!(next.ceilings.lease <= latest);
        }
    }

    #[test]
    fn a_replica_that_starts_again_as_a_master_has_been_promoted() {
        let replica = Saved { was_replica: true, ..saved() };
        let (until, reason) = recover(Found::Present(replica), loaded()).quarantine.unwrap();
        assert_eq!((until, reason), (Instant::from_millis(72_000), QuarantineReason::Promotion));
        let nothing_counts_until = Instant::from_millis(30_000);
        for (saved, is_carried) in
            [(replica, true), (Saved { nothing_counts_until, ..replica }, false)]
        {
            let recovery = recover(Found::Present(saved), loaded());
            assert_eq!(recovery.nothing_is_carried, !is_carried);
        }
        // Its leases were dated by its master's clock.
        assert_eq!(recover(Found::Present(replica), loaded()).prolong, UNNOTICED);
        let still = Loaded { is_replica: true, lock_count: 3, ..loaded() };
        let recovery = recover(Found::Present(replica), still);
        assert_eq!(recovery.floor, fence(1_000));
    }

    #[test]
    fn that_nothing_counts_outlasts_crashes_and_stops_until_it_is_over() {
        let nothing_counts_until = Instant::from_millis(30_000);
        let distrusted = Saved { nothing_counts_until, ..saved() };
        let nothing_counts = |saved, now, boot| {
            let loaded = Loaded { clocks: clocks(now, HOUR + now - 10_000), boot, ..loaded() };
            let recovery = recover(Found::Present(saved), loaded);
            let mut node = Promises::new(Fence::ZERO, None);
            node.recover(recovery);
            let now = loaded.clocks.now;
            assert!(node.quarantine(now).is_some());
            assert_eq!(node.is_counted(&a_lease(now), now), !recovery.nothing_counts);
            assert_eq!(recovery.nothing_is_carried, recovery.nothing_counts);
            recovery.nothing_counts
        };
        let stopped = Saved { stop: stopped(false), ..distrusted };
        for saved in [distrusted, stopped] {
            for (boot, over) in [(BOOT, 30_001), (BOOT + 1, 30_001 + UNNOTICED.get())] {
                assert!(nothing_counts(saved, over - 1, boot));
                assert!(!nothing_counts(saved, over, boot));
            }
        }
        let over = Saved { nothing_counts_until: Instant::from_millis(10_000), ..saved() };
        let earlier = Loaded { clocks: clocks(10, 0), boot: BOOT + 1, ..loaded() };
        let recovery = recover(Found::Present(over), earlier);
        assert!(recovery.quarantine.is_some() && !recovery.nothing_counts, "over when written");
    }

    #[test]
    fn that_nothing_counts_is_written_again_by_the_next_start() {
        let promoted = Saved { nothing_counts_until: Instant::from_millis(30_000), ..saved() };
        let recovery = recover(Found::Present(promoted), loaded());
        let node = Promises::new(Fence::ZERO, None);
        let written = start(Found::Present(promoted), loaded(), recovery, &node);
        assert_eq!(written.nothing_counts_until, Instant::from_millis(40_000));
        let recovery = recover(Found::Present(saved()), loaded());
        let written = start(Found::Present(saved()), loaded(), recovery, &node);
        assert_eq!(written.nothing_counts_until, Instant::default());
    }

    /// Regression: then leases counted that an older data set had brought back.
    #[test]
    fn that_nothing_counts_is_kept_by_a_start_that_need_not_wait() {
        let before = Saved {
            nothing_counts_until: Instant::from_millis(30_000),
            stop: stopped(true),
            ..saved()
        };
        let recovery = recover(Found::Present(before), loaded());
        assert_eq!(recovery.quarantine, None);
        let written = start(Found::Present(before), loaded(), recovery, &node(20_000));
        assert_eq!(written.nothing_counts_until, Instant::from_millis(30_000));
        let older = Loaded { inventory: inventory(2), ..loaded() };
        let recovery = recover(Found::Present(Saved { stop: stopped(true), ..written }), older);
        assert!(recovery.quarantine.is_some() && recovery.nothing_counts, "{recovery:?}");
    }

    #[test]
    fn a_promoted_replica_waits_for_the_longest_lease_and_jumps() {
        let recovery = promote(clocks(5, 0), fence(9), Millis::new(100));
        assert_eq!(recovery.floor, fence(LOSS_MARGIN));
        let until = Instant::from_millis(105);
        assert_eq!(recovery.quarantine, Some((until, QuarantineReason::Promotion)));
    }

    #[test]
    fn two_promotions_from_the_same_replica_jump_to_different_floors() {
        let wall = 1_763_690_000_000;
        let floor = |wall, highest| promote(clocks(5, wall), highest, Millis::new(100)).floor;
        assert_eq!(floor(wall, fence(9)), fence(wall * 1_000 + LOSS_MARGIN));
        assert!(floor(wall + 1, fence(9)) > floor(wall, fence(9)));
        let nonsense = floor(u64::MAX / 2, fence(LOSS_MARGIN));
        assert_eq!(nonsense, fence(LOSS_MARGIN + FENCE_BLOCK), "the clock is not trusted");
        let far = fence(wall * 2_000);
        assert_eq!(floor(wall, far), far.saturating_add(FENCE_BLOCK));
    }

    /// A fence of one node is brought to another one, whose replica does not learn of it.
    #[test]
    fn a_fence_that_was_issued_after_a_promotion_is_below_the_next_jump() {
        let wall = 1_763_690_000_000;
        let floor = |wall, highest| promote(clocks(5, wall), highest, Millis::new(60_000)).floor;
        let some = |fence: Fence| fence.saturating_add(100);
        let twice = floor(wall + 1, some(floor(wall, fence(9))));
        assert!(floor(wall + 2, fence(9)) > some(twice));
        // The clock of the first was 30 s ahead; the last is promoted when it has waited.
        let ahead = floor(wall + 15_000, some(floor(wall + 30_000, fence(9))));
        assert!(floor(wall + 75_000, fence(9)) > some(ahead));
    }
}
