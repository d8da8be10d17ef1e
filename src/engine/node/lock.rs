//! The lock: a fence counter and the leases of its holders, in 48 bytes.
//!
//! A lock outlives its leases, because it holds the counter. A lease that has ended stays written
//! here until the next grant, release or removal: whether it is over is a comparison, not an event.
//! A node may hold many locks, so a value is packed into 48 bytes, with one lease inside. Only a
//! second reader makes a lock larger.
//!
//! I1: the counter never falls. I2: no lease's fence is above the counter. I3: only its token or
//! its time ends a lease in this file. I8: no other lease is written next to a writer's.

use super::packed_lease::PackedLease;
use super::readers::{ReaderLease, Readers};
use super::tally::HeldCount;
use crate::engine::{Fence, Instant, Millis, Mode, Token};

/// A lock: its fence counter, and the leases of its holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    counter: Fence,
    /// The only lease, or several readers' leases with the latest of their ends.
    slot: PackedLease,
}

const _: () = assert!(size_of::<Lock>() == 48);

/// A lease, as read from a lock or a data set, or to be written into a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// Proves the claim.
    pub token: Token<'a>,
    /// The fence of the grant, or the fence that it was raised to.
    pub fence: Fence,
    /// The last millisecond of the lease. Clock readings are rounded down, so the lease includes
    /// it, to be no shorter than its ttl.
    pub ends_at: Instant,
    /// Who holds it, for people; may be empty.
    pub label: &'a [u8],
    /// How the lock is held.
    pub mode: Mode,
    /// The lease was repaired in a quarantine, or came from another name. In a quarantine such a
    /// lease does not count towards a quorum: the node may have forgotten a grant to another.
    /// Outside of one the mark means nothing.
    pub is_provisional: bool,
}

/// Where a lease is written in a lock, until the lock changes: its place among several readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot(usize);

/// A lease without its token and label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// As in [`Lease`].
    pub fence: Fence,
    /// As in [`Lease`].
    pub ends_at: Instant,
    /// As in [`Lease`].
    pub mode: Mode,
    /// As in [`Lease`].
    pub is_provisional: bool,
}

/// Whether a token holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// It does; its lease is written here.
    Holds(Spot),
    /// Only others do, in this mode.
    HeldByAnother(Mode),
    NotHeld,
}

impl Lock {
    /// A free lock with this counter, free since `since`.
    pub fn free(counter: Fence, since: Instant) -> Lock {
        Lock { counter, slot: PackedLease::free(since) }
    }

    /// The highest fence issued for this lock.
    pub fn counter(&self) -> Fence {
        self.counter
    }

    // ---------------------------------------------------------------------------- its leases

    /// The leases as written, over or not, in no order.
    pub fn written_leases(&self) -> impl Iterator<Item = Lease<'_>> {
        let only = self.only_lease();
        let readers = self.slot.readers().into_iter().flat_map(Readers::iter);
        only.into_iter().chain(readers.filter_map(|one| self.lease_in(&one.slot, one.fence)))
    }

    /// The only lease as written, over or not; `None` without one, or with several.
    #[inline]
    pub fn only_lease(&self) -> Option<Lease<'_>> {
        self.lease_in(&self.slot, self.lease_fence())
    }

    /// The lease of this token as written, over or not.
    pub fn lease_of(&self, token: Token<'_>) -> Option<Lease<'_>> {
        match self.slot.readers() {
            Some(readers) => readers.get(token).and_then(|one| self.lease_in(&one.slot, one.fence)),
            None => self.only_lease().filter(|lease| lease.token == token),
        }
    }

    /// The lease of a token that is known to have one, as written.
    #[inline]
    pub fn tenure_of(&self, token: Token<'_>) -> Option<Tenure> {
        match self.slot.readers() {
            None => Some(self.tenure(Spot(0))),
            Some(readers) => readers.place_of(token).map(|place| self.tenure(Spot(place))),
        }
    }

    /// The lease at this spot, as written.
    #[inline(always)]
    pub(super) fn tenure(&self, Spot(place): Spot) -> Tenure {
        match self.slot.readers().and_then(|readers| readers.at(place)) {
            None => self.slot.tenure(self.lease_fence()),
            Some(reader) => reader.slot.tenure(reader.fence),
        }
    }

    fn lease_in<'a>(&self, slot: &'a PackedLease, fence: Fence) -> Option<Lease<'a>> {
        Some(Lease {
            token: slot.token()?,
            fence,
            ends_at: slot.ends_at(),
            label: slot.label(),
            mode: slot.mode(),
            is_provisional: slot.is_provisional(),
        })
    }

    /// The fence of the only lease.
    #[inline]
    fn lease_fence(&self) -> Fence {
        self.slot.own_fence().unwrap_or(self.counter)
    }

    /// How the lock is held, or was last held.
    #[inline]
    pub fn mode(&self) -> Mode {
        self.slot.mode()
    }

    /// Whether the lock is held at `now`.
    #[inline]
    pub fn is_held(&self, now: Instant) -> bool {
        self.has_leases() && now <= self.slot.ends_at()
    }

    /// How many hold the lock at `now`.
    pub fn holders(&self, now: Instant) -> usize {
        match self.slot.readers() {
            None => usize::from(self.is_held(now)),
            Some(readers) => readers.standing(now),
        }
    }

    /// A lower bound for the ends of the leases that stand at `now`.
    pub(super) fn next_end(&self, now: Instant) -> Instant {
        self.slot.readers().map_or(self.until(), |readers| readers.next_end(now))
    }

    /// Whether a lease is written here, over or not.
    #[inline]
    pub fn has_leases(&self) -> bool {
        self.slot.has_lease() || self.slot.readers().is_some()
    }

    /// How long the lease of this token has been held, modulo 49.7 days.
    pub fn held_for(&self, token: Token<'_>, now: Instant) -> Millis {
        let of_reader = |readers: &Readers| Some(readers.get(token)?.slot.held_for(now));
        match self.slot.readers() {
            Some(readers) => of_reader(readers).unwrap_or_default(),
            None => self.slot.held_for(now),
        }
    }

    /// The latest end of the leases, over or not; without one, the instant since which the lock has
    /// been free.
    #[inline]
    pub fn until(&self) -> Instant {
        self.slot.ends_at()
    }

    /// Bytes on the heap besides the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.slot.heap_bytes()
    }

    /// The fence of a grant on a node with this floor; `None` if the fences are used up. A writer
    /// gets a new one. A reader gets that of the last writer, or of the readers before it, unless
    /// no writer could follow.
    #[inline]
    pub fn next_fence(&self, mode: Mode, floor: Fence) -> Option<Fence> {
        let last = self.counter.max(floor);
        let has_next = || Fence::ZERO < last && last < Fence::MAX;
        if mode.is_shared() && has_next() { Some(last) } else { last.next() }
    }

    /// Whether `token` holds the lock at `now`.
    #[inline(always)]
    pub(super) fn holding(&self, token: Token<'_>, now: Instant) -> Holding {
        if !self.is_held(now) {
            return Holding::NotHeld;
        }
        let spot = if self.slot.has_lease() {
            (self.slot.token() == Some(token)).then_some(Spot(0))
        } else {
            self.reader_spot(token, now)
        };
        spot.map_or(Holding::HeldByAnother(self.mode()), Holding::Holds)
    }

    #[cold]
    fn reader_spot(&self, token: Token<'_>, now: Instant) -> Option<Spot> {
        let place = self.slot.readers()?.place_of(token)?;
        Some(Spot(place)).filter(|&spot| now <= self.tenure(spot).ends_at)
    }

    // ------------------------------------------------------------------------- ends of leases

    /// How many leases are written here, over or not, whose ends have not been noted.
    #[inline]
    pub fn unnoted_leases(&self) -> usize {
        match self.slot.readers() {
            None => usize::from(self.slot.has_lease() && !self.slot.is_noted()),
            Some(readers) => readers.len(),
        }
    }

    /// Whether a lease is written here, over or not, whose end has not been noted.
    #[inline]
    pub fn has_unnoted_lease(&self) -> bool {
        self.has_leases() && !self.slot.is_noted()
    }

    /// The count of the leases whose ends have not been noted.
    #[inline]
    pub fn unnoted(&self) -> HeldCount {
        match self.mode() {
            _ if !self.has_unnoted_lease() => HeldCount::NONE,
            Mode::Exclusive => HeldCount { locks: 1, readers: 0 },
            Mode::Shared => HeldCount { locks: 1, readers: self.unnoted_leases() as i64 },
        }
    }

    /// A lower bound for the ends that have not been noted; `None` without one.
    pub fn soonest_end(&self) -> Option<Instant> {
        match self.slot.readers() {
            None => self.has_unnoted_lease().then(|| self.until()),
            Some(readers) => Some(readers.soonest_end()),
        }
    }

    /// Notes which leases have ended unreleased. Returns how many had not been noted before.
    ///
    /// The only lease stays written, with a note that is neither saved nor replicated, and that the
    /// next lease clears. Of several readers, those whose leases have ended are forgotten.
    pub fn note_lapses(&mut self, now: Instant) -> usize {
        if let Some(readers) = self.slot.readers_mut() {
            let ended = readers.remove_ended(now);
            if ended > 0 {
                self.slot.readers_changed(now);
            }
            return ended;
        }
        let is_news = self.has_unnoted_lease() && !self.is_held(now);
        if is_news {
            self.slot.note();
        }
        usize::from(is_news)
    }

    /// Forgets readers whose leases have ended, if there may be many. Returns how many.
    pub(super) fn forget_some_ended(&mut self, now: Instant) -> usize {
        let Some(readers) = self.slot.readers_mut() else { return 0 };
        let ended = readers.remove_some_ended(now);
        if ended > 0 {
            self.slot.readers_changed(now);
        }
        ended
    }

    /// Prolongs the leases by `length` if that may leave one standing: the clocks that dated them
    /// may have been off by that much. Returns whether they were prolonged.
    pub(super) fn prolong(&mut self, length: Millis, now: Instant) -> bool {
        let may_stand = self.has_leases() && now <= self.until().after(length);
        if may_stand {
            let prolong = |slot: &mut PackedLease| slot.set_end(slot.ends_at().after(length));
            if let Some(readers) = self.slot.readers_mut() {
                readers.change_all(|one| prolong(&mut one.slot));
            }
            prolong(&mut self.slot);
        }
        may_stand
    }

    // -------------------------------------------------------------------------------- marks

    /// Marks the leases as provisional. Every new lease begins without the mark.
    pub fn mark_provisional(&mut self) {
        if self.slot.has_lease() {
            self.slot.set_provisional(true);
        }
        if let Some(readers) = self.slot.readers_mut() {
            readers.change_all(|one| one.slot.set_provisional(true));
        }
    }

    /// Notes that the lock, with its leases, is now under another name.
    ///
    /// It marks the leases even outside of a quarantine, where the mark means nothing: the
    /// append-only file contains the command, and a node that reads it after a crash cannot know
    /// whether there was a quarantine.
    pub fn changed_name(&mut self) {
        self.mark_provisional();
    }

    // ------------------------------------------------------------------------------ requests

    /// Writes `lease` into a lock in which neither a lease of its token nor a conflicting one
    /// stands. Returns how many leases had ended unreleased, without having been noted.
    #[inline(always)]
    #[must_use]
    pub(super) fn grant(&mut self, lease: Lease<'_>, now: Instant) -> usize {
        debug_assert!(!self.is_held(now) || !lease.mode.conflicts_with(self.mode()), "I3, I8");
        if self.is_held(now) {
            return self.grant_beside(lease, now);
        }
        let unnoted = self.unnoted_leases();
        self.counter = self.counter.max(lease.fence);
        self.slot.write(lease, now);
        self.set_lease_fence(lease.fence);
        unnoted
    }

    /// The same while other readers hold the lock.
    #[cold]
    fn grant_beside(&mut self, lease: Lease<'_>, now: Instant) -> usize {
        self.apply_counter(lease.fence);
        let own = self.slot.readers_mut().and_then(|readers| readers.remove(lease.token));
        self.join(lease, now);
        usize::from(own.is_some()) + self.forget_some_ended(now)
    }

    /// Changes the lease at this spot: its end, its mode and its mark, but not its fence.
    #[inline(always)]
    pub(super) fn change(&mut self, Spot(place): Spot, tenure: Tenure) {
        if self.slot.has_lease() {
            self.slot.change(tenure);
        } else {
            self.change_reader(place, tenure);
        }
    }

    #[cold]
    fn change_reader(&mut self, place: usize, tenure: Tenure) {
        if let Some(readers) = self.slot.readers_mut() {
            readers.change_at(place, |one| one.slot.change(tenure));
            let last = readers.last_end();
            self.slot.set_end(last);
        }
    }

    /// Raises the counter and the lease at this spot to at least `fence`.
    pub(super) fn raise(&mut self, spot: Spot, fence: Fence) {
        let lease_fence = self.tenure(spot).fence.max(fence);
        self.counter = self.counter.max(fence);
        match self.slot.readers_mut() {
            None => self.set_lease_fence(lease_fence),
            Some(readers) => readers.change_at(spot.0, |one| one.fence = lease_fence),
        }
    }

    /// Ends the lease at this spot, and erases its token: it must not be in a later snapshot or
    /// dump. (Freed memory may contain it for a while.)
    #[inline(always)]
    pub(super) fn erase(&mut self, Spot(place): Spot, now: Instant) {
        if self.slot.has_lease() {
            self.slot = PackedLease::free(now);
        } else {
            self.erase_reader(place, now);
        }
    }

    #[cold]
    fn erase_reader(&mut self, place: usize, now: Instant) {
        if let Some(readers) = self.slot.readers_mut() {
            readers.remove_at(place);
            self.slot.readers_changed(now);
        }
    }

    /// Where the lease of this token is written, over or not.
    fn spot_of(&self, token: Token<'_>) -> Option<Spot> {
        match self.slot.readers() {
            None => (self.slot.token() == Some(token)).then_some(Spot(0)),
            Some(readers) => readers.place_of(token).map(Spot),
        }
    }

    // --------------------------------------------------------------------------------- facts

    /// Writes a lease that was decided elsewhere or earlier, over those that exclude it.
    ///
    /// For a replica, and for loading: facts are applied, not judged again. The counter only rises.
    /// A lease of the same token keeps the instant of its grant.
    pub fn apply(&mut self, lease: Lease<'_>, now: Instant) {
        let own_before = self.slot.token() == Some(lease.token);
        self.apply_counter(lease.fence);
        // A lease whose end was noted has been counted as gone.
        let has_others = self.unnoted_leases() > 0 && !own_before;
        if has_others && lease.mode.is_shared() && self.mode().is_shared() {
            self.join(lease, now);
            return;
        }
        let before = own_before.then(|| self.slot.clone());
        self.slot.write(lease, now);
        if let Some(before) = before {
            self.slot.granted_with(&before);
        }
        self.set_lease_fence(lease.fence);
    }

    /// Raises the counter to at least `fence`, as was decided elsewhere or earlier.
    pub fn apply_counter(&mut self, fence: Fence) {
        // A lease without a fence of its own has the counter's, but must not rise with it.
        let lease_fence = self.slot.has_lease().then(|| self.lease_fence());
        self.counter = self.counter.max(fence);
        if let Some(lease_fence) = lease_fence {
            self.set_lease_fence(lease_fence);
        }
    }

    /// Erases the lease that is written for `token`, over or not: a release that was decided
    /// elsewhere. Returns whether there was one.
    pub fn apply_release(&mut self, token: Token<'_>, now: Instant) -> bool {
        let spot = self.spot_of(token);
        if let Some(spot) = spot {
            self.erase(spot, now);
        }
        spot.is_some()
    }

    /// Raises the counter and the lease that is written for `token`, over or not: a raise that was
    /// decided elsewhere. Returns whether there was one.
    pub fn apply_raise(&mut self, token: Token<'_>, fence: Fence) -> bool {
        let spot = self.spot_of(token);
        if let Some(spot) = spot {
            self.raise(spot, fence);
        }
        spot.is_some()
    }

    // ------------------------------------------------------------------------------- packing

    /// Writes a reader's lease next to those of others.
    fn join(&mut self, lease: Lease<'_>, now: Instant) {
        if self.slot.readers().is_none() {
            let fence = self.lease_fence();
            let mut slot = std::mem::take(&mut self.slot);
            slot.set_own_fence(None);
            let mut readers = Readers::default();
            readers.insert(ReaderLease { fence, slot });
            self.slot = PackedLease::of_readers(readers);
        }
        let Some(readers) = self.slot.readers_mut() else { return };
        let mut reader = ReaderLease { fence: lease.fence, slot: PackedLease::default() };
        reader.slot.write(lease, now);
        if let Some(before) = readers.remove(lease.token) {
            reader.slot.granted_with(&before.slot);
        }
        readers.insert(reader);
        self.slot.readers_changed(now);
    }

    fn set_lease_fence(&mut self, fence: Fence) {
        self.slot.set_own_fence((fence < self.counter).then_some(fence));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_lease(token: &[u8], fence: u64, ends_at: u64, mode: Mode) -> Lease<'_> {
        Lease {
            token: Token::new(token, 64).unwrap(),
            fence: Fence::new(fence).unwrap(),
            ends_at: Instant::from_millis(ends_at),
            label: b"",
            mode,
            is_provisional: false,
        }
    }

    fn lease(ends_at: u64) -> Lock {
        let mut lock = Lock::default();
        lock.apply(a_lease(b"token", 1, ends_at, Mode::Exclusive), Instant::from_millis(ends_at));
        lock
    }

    #[test]
    fn the_end_of_a_lease_is_noted_once_and_changes_nothing_else() {
        for ends_at in [5, (1 << 47) - 2] {
            let (mut lock, before) = (lease(ends_at), lease(ends_at));
            let (end, later) = (Instant::from_millis(ends_at), Instant::from_millis(ends_at + 1));
            assert_eq!(lock.note_lapses(end), 0, "it stands in its last millisecond");
            assert_eq!(lock.unnoted_leases(), 1);
            assert_eq!([lock.note_lapses(later), lock.note_lapses(later)], [1, 0]);
            assert_eq!(lock.unnoted_leases(), 0);
            assert!(lock.written_leases().eq(before.written_leases()));
            assert_eq!((lock.until(), lock.counter()), (before.until(), before.counter()));
            assert!(lock.is_held(end) && !lock.is_held(later));
        }
        let free = Lock::free(Fence::ZERO, Instant::from_millis(7));
        assert_eq!(free.until(), Instant::from_millis(7), "free since then, and no longer");
        assert_eq!({ free }.note_lapses(Instant::from_millis(9)), 0);
    }

    #[test]
    fn a_lease_is_prolonged_if_it_may_stand_and_a_free_lock_never() {
        let (now, length) = (Instant::from_millis(10), Millis::new(3));
        for (ends_at, then) in [(6, 6), (7, 10), (10, 13), (50, 53)] {
            let mut lock = lease(ends_at);
            lock.prolong(length, now);
            let end = lock.written_leases().next().unwrap().ends_at;
            assert_eq!(end, Instant::from_millis(then), "{ends_at}");
        }
        let mut free = Lock::free(Fence::ZERO, now);
        free.prolong(length, now);
        assert_eq!(free, Lock::free(Fence::ZERO, now));
    }

    fn reader(token: &[u8], fence: u64, ends_at: u64) -> Lease<'_> {
        a_lease(token, fence, ends_at, Mode::Shared)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn fence_of(lock: &Lock, token: &[u8]) -> Option<u64> {
        lock.lease_of(Token::new(token, 64).unwrap()).map(|lease| lease.fence.get())
    }

    /// The fence of the first reader is the lock's counter, which the second reader raises.
    #[test]
    fn a_reader_with_a_larger_fence_leaves_the_others_theirs() {
        for is_applied in [false, true] {
            let mut lock = Lock::default();
            for (token, fence) in [(b"a", 3), (b"b", 8), (b"c", 9)] {
                let lease = reader(token, fence, 50);
                if is_applied {
                    lock.apply(lease, at(1));
                } else {
                    assert_eq!(lock.grant(lease, at(1)), 0);
                }
            }
            let fences = [b"a", b"b", b"c"].map(|token| fence_of(&lock, token));
            assert_eq!((fences, lock.counter().get()), ([Some(3), Some(8), Some(9)], 9));
        }
    }

    #[test]
    fn a_lock_is_held_as_long_as_its_last_reader_holds_it() {
        let mut lock = Lock::default();
        for (token, ends_at) in [(b"a", 50), (b"b", 70), (b"c", 60)] {
            assert_eq!(lock.grant(reader(token, 1, ends_at), at(1)), 0);
        }
        assert_eq!((lock.holders(at(50)), lock.holders(at(51)), lock.until()), (3, 2, at(70)));
        let [a, b, c] = [b"a", b"b", b"c"].map(|token| Token::new(token, 64).unwrap());
        assert_eq!(lock.holding(a, at(51)), Holding::HeldByAnother(Mode::Shared));
        lock.erase(lock.spot_of(b).unwrap(), at(51));
        assert_eq!((lock.until(), lock.unnoted_leases()), (at(60), 2));
        lock.change(
            lock.spot_of(c).unwrap(),
            Tenure { ends_at: at(90), ..lock.tenure_of(c).unwrap() },
        );
        let spot = lock.spot_of(c).unwrap();
        assert_eq!((lock.until(), lock.holding(c, at(80))), (at(90), Holding::Holds(spot)));
        lock.erase(lock.spot_of(c).unwrap(), at(82));
        assert!(!lock.is_held(at(82)), "only the lease that has ended is left");
        assert_eq!((lock.note_lapses(at(82)), lock.has_leases()), (1, false));
        assert_eq!(lock, Lock::free(Fence::new(1).unwrap(), at(82)));
        assert_eq!(lock.heap_bytes(), 0);
    }

    #[test]
    fn a_reader_who_comes_back_is_counted_once() {
        let mut lock = Lock::default();
        for (token, ends_at) in [(b"a", 5), (b"b", 70)] {
            assert_eq!(lock.grant(reader(token, 1, ends_at), at(1)), 0);
        }
        assert_eq!(lock.grant(reader(b"a", 1, 80), at(6)), 1, "its lease had ended");
        assert_eq!(lock.unnoted_leases(), 2);
        assert_eq!(lock.grant(a_lease(b"w", 2, 99, Mode::Exclusive), at(81)), 2);
        assert_eq!((lock.mode(), lock.unnoted_leases()), (Mode::Exclusive, 1));
    }

    /// A replica used to count the end of such a lease twice.
    #[test]
    fn a_lease_whose_end_was_noted_does_not_come_back_beside_a_reader() {
        let mut lock = Lock::default();
        lock.apply(reader(b"a", 1, 5), at(1));
        assert_eq!(lock.note_lapses(at(6)), 1);
        lock.apply(reader(b"b", 1, 9), at(7));
        assert_eq!((lock.unnoted_leases(), lock.note_lapses(at(10))), (1, 1));
    }

    #[test]
    fn every_reader_is_prolonged_and_marked() {
        let mut lock = Lock::default();
        for (token, ends_at) in [(b"a", 50), (b"b", 70), (b"c", 60)] {
            assert_eq!(lock.grant(reader(token, 1, ends_at), at(1)), 0);
        }
        assert!(lock.prolong(Millis::new(5), at(1)));
        lock.mark_provisional();
        let mut leases: Vec<_> = lock.written_leases().collect();
        leases.sort_by_key(|lease| lease.ends_at);
        assert!(leases.iter().all(|lease| lease.is_provisional));
        assert_eq!([0, 1, 2].map(|n| leases[n].ends_at), [at(55), at(65), at(75)]);
        assert_eq!(lock.until(), at(75));
        let token = Token::new(b"a", 64).unwrap();
        let tenure = lock.tenure_of(token).unwrap();
        lock.change(lock.spot_of(token).unwrap(), Tenure { is_provisional: false, ..tenure });
        assert_eq!(lock.written_leases().filter(|lease| lease.is_provisional).count(), 2);
    }

    #[test]
    fn one_holder_takes_48_bytes_and_nothing_beside() {
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut lock = Lock::default();
            assert_eq!(lock.grant(a_lease(&[7; 20], 1, 9, mode), at(1)), 0);
            assert_eq!((size_of_val(&lock), lock.heap_bytes()), (48, 0));
            let tenure = lock.tenure(Spot(0));
            lock.change(Spot(0), Tenure { mode: Mode::Shared, ..tenure });
            assert_eq!((lock.heap_bytes(), lock.mode()), (0, Mode::Shared));
        }
    }

    #[test]
    fn a_note_is_gone_with_the_next_lease() {
        let mut lock = lease(5);
        assert_eq!(lock.note_lapses(Instant::from_millis(6)), 1);
        let next = a_lease(b"other", 2, 50, Mode::Exclusive);
        assert_eq!(lock.grant(next, Instant::from_millis(7)), 0, "its end was noted before");
        assert_eq!(lock.unnoted_leases(), 1);
        assert_eq!(lock.note_lapses(Instant::from_millis(51)), 1);
        lock.erase(lock.spot_of(next.token).unwrap(), Instant::from_millis(60));
        assert_eq!(lock.note_lapses(Instant::from_millis(99)), 0);
    }
}
