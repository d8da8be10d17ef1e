//! What a node promises across crashes: floor, ceilings, quarantine.
//!
//! A promise is durable *before* it is used: the node never issues a fence above the fence ceiling
//! or a lease beyond the lease ceiling. Both are written to disk in blocks, ahead of need. After a
//! restart that may have lost data, the floor starts at the fence ceiling, and the node grants
//! nothing until the lease ceiling has passed.

use std::hash::{Hash, Hasher};

use super::recovery::jump;
use super::{Authority, BEAT, Change, Lease, Lock, Mandate, Recovery, Stop, Uncounted};
use crate::engine::{Clocks, Fence, Instant, Millis, Mode, QuarantineReason};

/// How many fences one write of the fence ceiling covers. 2^53 has room for 8 * 10^9 crashes.
pub const FENCE_BLOCK: u64 = 1 << 20;
/// How much time one write of the lease ceiling covers. After an unclean restart the node may have
/// to wait this much longer than the longest lease.
pub const LEASE_BLOCK: Millis = Millis::new(10_000);

/// The limits that the state file promises were never passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ceilings {
    /// No fence above it was ever issued.
    pub fence: Fence,
    /// No lease ever granted ends after it.
    pub lease: Instant,
}

impl Ceilings {
    /// Nothing may be used.
    pub const NONE: Ceilings = Ceilings { fence: Fence::ZERO, lease: Instant::from_millis(0) };

    /// Whether both ceilings of `other` are within these.
    pub fn covers(self, other: Ceilings) -> bool {
        other.fence <= self.fence && other.lease <= self.lease
    }

    /// These, plus a block of each.
    #[must_use]
    pub fn plus_block(self) -> Ceilings {
        Ceilings {
            fence: self.fence.saturating_add(FENCE_BLOCK),
            lease: self.lease.after(LEASE_BLOCK),
        }
    }

    fn plus_half_block(self) -> Ceilings {
        Ceilings {
            fence: self.fence.saturating_add(FENCE_BLOCK / 2),
            lease: self.lease.after(Millis::new(LEASE_BLOCK.get() / 2)),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Ceilings) -> Ceilings {
        Ceilings { fence: self.fence.max(other.fence), lease: self.lease.max(other.lease) }
    }
}

/// The node-wide part of a node's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promises {
    floor: Fence,
    highest: Fence,
    /// How far `highest` has risen without a grant or a raise.
    jumped: Jumped,
    /// The latest end of the leases that were granted or found since the last survey began.
    recent: Instant,
    /// No lease from before that survey ends later than this.
    earlier: Instant,
    /// `None`: the node keeps no state file, and promises nothing across crashes.
    ceilings: Option<Ceilings>,
    /// The ceilings that the node has requested.
    requested: Ceilings,
    /// Whether that request has not been taken yet.
    is_requesting: bool,
    quarantine: Option<Quarantine>,
    /// Up to this instant no lease is carried over a wait.
    uncarried_until: Instant,
    /// The last instant of the waits for leases in slots of a Cluster that have come.
    slots_wait_until: Option<Instant>,
    /// `None`: the node decides regardless of its replicas.
    authority: Option<Box<Authority>>,
    /// How many readers a lock may have.
    max_readers: usize,
}

/// A number for people, which decides nothing: two nodes that differ only in it are equal.
#[derive(Clone, Copy, Debug, Default)]
struct Jumped(u64);

impl PartialEq for Jumped {
    fn eq(&self, _other: &Jumped) -> bool {
        true
    }
}

impl Eq for Jumped {}

impl Hash for Jumped {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

/// How many readers a lock may have by default.
const MAX_READERS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Quarantine {
    until: Instant,
    reason: QuarantineReason,
    /// No extension counts, whichever lease it is for.
    nothing_counts: bool,
}

impl Promises {
    /// A node with this floor, whose state file promises `ceilings`; `None` without a state file.
    pub const fn new(floor: Fence, ceilings: Option<Ceilings>) -> Promises {
        Promises {
            floor,
            highest: floor,
            jumped: Jumped(0),
            recent: Ceilings::NONE.lease,
            earlier: Ceilings::NONE.lease,
            ceilings,
            requested: match ceilings {
                Some(ceilings) => ceilings,
                None => Ceilings::NONE,
            },
            is_requesting: false,
            quarantine: None,
            uncarried_until: Instant::from_millis(0),
            slots_wait_until: None,
            authority: None,
            max_readers: MAX_READERS,
        }
    }

    /// How many readers a lock may have.
    #[inline]
    pub fn max_readers(&self) -> usize {
        self.max_readers
    }

    /// Sets how many readers a lock may have. Present readers stay.
    #[inline]
    pub fn set_max_readers(&mut self, max: usize) {
        self.max_readers = max;
    }

    /// The fence below which no lock of this node starts.
    pub fn floor(&self) -> Fence {
        self.floor
    }

    /// The highest fence that this node knows of any lock.
    pub fn highest(&self) -> Fence {
        self.highest
    }

    /// How far that has risen without a grant or a raise, for people: at a start after a crash, at
    /// a promotion, and with the floors of other nodes.
    pub fn jumped(&self) -> u64 {
        self.jumped.0
    }

    /// No lease that this node granted or loaded, and that may still stand, ends later than this.
    pub fn longest(&self) -> Instant {
        self.recent.max(self.earlier)
    }

    /// The ceilings that are durable.
    pub fn ceilings(&self) -> Option<Ceilings> {
        self.ceilings
    }

    /// Asks to issue `fence` in a lease until `ends_at`, and notes it if the ceilings allow it.
    ///
    /// # Errors
    /// The ceilings that must be durable first; then ask again.
    #[inline]
    pub fn admit(&mut self, fence: Fence, ends_at: Instant) -> Result<(), Ceilings> {
        let used = Ceilings { fence, lease: ends_at };
        if let Some(ceilings) = self.ceilings
            && !ceilings.covers(used)
        {
            return Err(ceilings.max(used.plus_block()));
        }
        self.note(used);
        Ok(())
    }

    /// Notes what is in use. When less than half of a block is left, requests the next.
    #[inline]
    fn note(&mut self, used: Ceilings) {
        if self.ceilings.is_some() && !self.requested.covers(used.plus_half_block()) {
            self.requested = self.requested.max(used.plus_block());
            self.is_requesting = true;
        }
        self.highest = self.highest.max(used.fence);
        self.recent = self.recent.max(used.lease);
    }

    /// Ceilings to make durable in the background, before they are needed. Returns each of them
    /// once.
    #[inline]
    pub fn take_request(&mut self) -> Option<Ceilings> {
        if std::mem::take(&mut self.is_requesting) { Some(self.requested) } else { None }
    }

    /// Notes that a requested ceiling could not be made durable, so that it is requested again.
    pub fn request_failed(&mut self) {
        self.requested = self.ceilings.unwrap_or_default();
    }

    /// Replaces the ceilings by these, which are on disk. With [`Ceilings::NONE`] nothing is
    /// granted.
    pub fn keep(&mut self, ceilings: Ceilings) {
        self.ceilings = Some(ceilings);
        self.requested = ceilings;
    }

    /// Notes that `ceilings` are durable.
    pub fn persisted(&mut self, ceilings: Ceilings) {
        if let Some(known) = &mut self.ceilings {
            *known = known.max(ceilings);
        }
    }

    /// Begins a survey, which looks for the lease that ends last. Until every lock has been looked
    /// at, leases that were released early still count, so there is no need to track them.
    pub fn begin_survey(&mut self) {
        self.earlier = self.longest();
        self.recent = Instant::default();
    }

    /// Notes a lock that a survey has found, or that moves to another name, where a survey might
    /// miss it.
    pub fn come_upon(&mut self, lock: &Lock) {
        if lock.has_leases() {
            self.recent = self.recent.max(lock.until());
        }
    }

    /// Ends a survey that has looked at every lock. Returns the lower lease ceiling that the state
    /// file should promise, if that shortens the wait after a crash. It binds this node at once, so
    /// the file may follow at any time.
    pub fn end_survey(&mut self, now: Instant) -> Option<Instant> {
        self.earlier = Instant::default();
        let waited_for = self.quarantine.map_or(now, |quarantine| quarantine.until);
        let waited_for = waited_for.max(self.slots_wait_until.unwrap_or_default());
        let enough = self.recent.max(waited_for).max(now).after(LEASE_BLOCK);
        let ceilings = self.ceilings.as_mut()?;
        if ceilings.lease <= enough.after(Millis::new(LEASE_BLOCK.get() / 2)) {
            return None;
        }
        ceilings.lease = enough;
        self.requested.lease = self.requested.lease.min(enough);
        Some(enough)
    }

    /// Whether a survey could shorten the wait after a crash, as far as is known without one.
    pub fn would_gain(&self, now: Instant) -> bool {
        let least = now.after(Millis::new(LEASE_BLOCK.get() / 2 * 3));
        self.ceilings.is_some_and(|ceilings| ceilings.lease > least)
    }

    /// Applies what a start or a promotion requires.
    pub fn recover(&mut self, recovery: Recovery) {
        self.raise_floor(recovery.floor);
        if !recovery.prolong.is_zero() {
            self.recent = self.longest().after(recovery.prolong);
        }
        if let Some((until, reason)) = recovery.quarantine {
            self.begin_quarantine(until, reason);
            if recovery.nothing_is_carried {
                self.uncarried_until = self.uncarried_until.max(until);
            }
        }
        if let Some(quarantine) = &mut self.quarantine {
            quarantine.nothing_counts |= recovery.nothing_counts;
        }
    }

    /// Notes that this lock is gone from its name: no name may start below its counter again. It
    /// may have moved to a name that a survey has already passed.
    pub fn unlinked(&mut self, lock: &Lock) {
        self.raise_floor(lock.counter());
        self.come_upon(lock);
    }

    /// Notes that any number of locks are gone, with names and counters unknown.
    pub fn all_unlinked(&mut self) {
        self.floor = self.highest;
    }

    /// Raises the floor to at least `floor`.
    pub fn raise_floor(&mut self, floor: Fence) {
        self.floor = self.floor.max(floor);
        self.jumped.0 += floor.get().saturating_sub(self.highest.get());
        self.highest = self.highest.max(floor);
    }

    /// Raises the floor to at least `floor`, for an operator, and returns it. Allowed in
    /// quarantine, and not bounded by the time: access rules say who may do it.
    ///
    /// # Errors
    /// [`Stop::Persist`].
    pub fn lift_floor(&mut self, floor: Fence) -> Result<Fence, Stop> {
        self.admit(floor, Instant::default()).map_err(Stop::Persist)?;
        self.raise_floor(floor);
        Ok(self.floor)
    }

    /// Notes a lock that came from a data set, a dump or a master.
    ///
    /// Its fence and its lease may be beyond the ceilings: until the request in
    /// [`Promises::take_request`] is met, a crash could forget them.
    pub fn seen(&mut self, counter: Fence, ends_at: Option<Instant>) {
        self.note(Ceilings { fence: counter, lease: ends_at.unwrap_or_default() });
    }

    /// Notes a raise from `before` to `counter`, for a writer or a reader. If the lock started at
    /// the floor, other nodes' floors are higher than this one's. The floor catches up, so that new
    /// names start alike on all nodes: a writer begins above the floor, a reader at it.
    pub fn raised(&mut self, before: Fence, counter: Fence, mode: Mode) {
        self.highest = self.highest.max(counter);
        if before < counter && before.previous() <= self.floor {
            self.raise_floor(if mode.is_shared() { counter } else { counter.previous() });
        }
    }

    /// Grants nothing up to and including `until`. A longer quarantine already in force stays.
    /// After a promotion, nothing counts in either.
    pub fn begin_quarantine(&mut self, until: Instant, reason: QuarantineReason) {
        let is_promotion = reason == QuarantineReason::Promotion;
        let before = self.quarantine.is_some_and(|present| present.nothing_counts);
        let (until, reason) = match self.quarantine {
            Some(present) if until <= present.until && is_promotion => (present.until, reason),
            Some(present) if until <= present.until => (present.until, present.reason),
            Some(_) | None => (until, reason),
        };
        self.quarantine =
            Some(Quarantine { until, reason, nothing_counts: before || is_promotion });
    }

    /// Notes that in a slot of a Cluster nothing is decided up to `until`, and that its former
    /// master has reported the floor `known`. Returns what the state file must say.
    ///
    /// # Errors
    /// [`Stop::Persist`].
    pub(super) fn wait_in_slot(
        &mut self,
        (until, known): (Instant, Fence),
        clocks: Clocks,
    ) -> Result<Option<Change>, Stop> {
        let is_news = self.slots_wait_until.is_none_or(|former| former < until);
        // The floor rises at once too: a node that starts again before the wait is over does not
        // jump, and does not know what the other master has reported.
        let jump = if is_news { jump(self.highest, clocks.wall) } else { Fence::ZERO };
        self.lift_floor(jump.max(known))?;
        if !is_news {
            return Ok(None);
        }
        // Waits in thousands of slots that end within a second are one change.
        let until = Instant::from_millis(until.as_millis().next_multiple_of(BEAT.get()));
        self.slots_wait_until = Some(until);
        Ok(Some(Change::Waits { until }))
    }

    /// The last instant of the node's waits, in all slots or in some; `None` if it does not wait.
    pub(super) fn waited_for(&self, now: Instant) -> Option<Instant> {
        let in_slots = self.slots_wait_until.filter(|&until| now <= until);
        let quarantine = self.quarantine(now);
        quarantine.map(|(left, _)| now.after(left).before(Millis::new(1))).max(in_slots)
    }

    /// Notes that leases may have moved to other names: in a quarantine, nothing counts until it is
    /// over, and nothing is carried over a wait. Returns its last instant for the state file,
    /// unless that is known already.
    pub fn names_changed(&mut self, now: Instant) -> Option<Instant> {
        let until = self.grants_nothing_until(now)?;
        let was_carried = self.uncarried_until < until;
        self.uncarried_until = self.uncarried_until.max(until);
        let is_news = match &mut self.quarantine {
            Some(quarantine) => !std::mem::replace(&mut quarantine.nothing_counts, true),
            None => was_carried,
        };
        is_news.then_some(until)
    }

    // ------------------------------------------------------------------------------- authority

    /// Makes the node decide only with the authority that its replicas give it.
    pub fn rest_on(&mut self, authority: Authority) {
        self.authority = Some(Box::new(authority));
    }

    /// The node's authority; `None` if it decides regardless of its replicas.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_deref()
    }

    pub(super) fn authority_mut(&mut self) -> Option<&mut Authority> {
        self.authority.as_deref_mut()
    }

    /// When the wait for leases of other masters is over, raises the floor above the fences that
    /// they can have issued. Only then does the node decide.
    pub(super) fn settle(&mut self, clocks: Clocks) {
        let Some(authority) = self.authority.as_deref_mut() else { return };
        if authority.is_to_settle(clocks.now) {
            authority.settled();
            self.raise_floor(jump(self.highest, clocks.wall));
        }
    }

    /// Refuses every request if the node lacks the support of its replicas.
    ///
    /// # Errors
    /// [`Refusal::NoAuthority`](crate::engine::Refusal::NoAuthority).
    #[inline]
    pub fn check_authority(&self, now: Instant) -> Result<(), Stop> {
        match &self.authority {
            None => Ok(()),
            Some(authority) => match authority.mandate(now) {
                Mandate::Full | Mandate::Waits(_) => Ok(()),
                Mandate::None => Err(authority.refusal(now).into()),
            },
        }
    }

    // ------------------------------------------------------------------------------- quarantine

    /// Whether an extension of this lease counts towards a quorum.
    pub fn is_counted(&self, lease: &Lease<'_>, now: Instant) -> bool {
        self.counts(lease.is_provisional, now)
    }

    /// The same for a lease with or without the provisional mark.
    pub(super) fn counts(&self, is_provisional: bool, now: Instant) -> bool {
        self.quarantine(now).is_none() || !self.nothing_counts(now) && !is_provisional
    }

    /// Whether an extension in a wait counts for a holder whose only node is this group. It must
    /// still rely on its lease when the answer comes, and the lease must have come with the data.
    /// While this node has authority, no other node grants; before, the node that had authority
    /// kept the lock for this holder. That is not so if the lease was removed, and comes back with
    /// older data: the lock may have been granted to another since.
    #[cold]
    pub(super) fn carries(&self, is_provisional: bool, now: Instant) -> bool {
        let waits = |authority: &Authority| matches!(authority.mandate(now), Mandate::Waits(_));
        let may_be_carried = !is_provisional && now > self.uncarried_until;
        may_be_carried && self.authority.as_deref().is_some_and(waits)
    }

    /// How far an extension of this lease counts, if not towards a quorum.
    pub(super) fn uncounted(&self, lease: &Lease<'_>, now: Instant) -> Option<Uncounted> {
        match (self.is_counted(lease, now), self.carries(lease.is_provisional, now)) {
            (true, _) => None,
            (false, true) => Some(Uncounted::Carried),
            (false, false) => Some(Uncounted::Provisional),
        }
    }

    /// Whether no extension counts, whichever lease it is for.
    pub fn nothing_counts(&self, now: Instant) -> bool {
        let nothing_counts = self.quarantine.is_some_and(|present| present.nothing_counts);
        let waits = self.authority.as_ref().is_some_and(|authority| !authority.is_settled());
        waits || nothing_counts && self.own_quarantine(now).is_some()
    }

    /// Ends the quarantine, if any.
    pub fn end_quarantine(&mut self) {
        self.quarantine = None;
        if let Some(authority) = &mut self.authority {
            authority.end_wait();
        }
    }

    /// How much longer the quarantine lasts, and why; `None` outside of one.
    ///
    /// A new master's wait for leases of other masters is one too.
    #[inline]
    pub fn quarantine(&self, now: Instant) -> Option<(Millis, QuarantineReason)> {
        match &self.authority {
            None => self.own_quarantine(now),
            Some(authority) => match (authority.mandate(now), self.own_quarantine(now)) {
                (Mandate::Waits(left), own) => own
                    .filter(|&(of_own, _)| of_own > left)
                    .or(Some((left, QuarantineReason::OtherMaster))),
                (Mandate::Full | Mandate::None, own) => own,
            },
        }
    }

    /// For how long, at least, the node grants nothing because leases that it does not know may
    /// stand. While it lacks authority, that includes the wait that has not begun.
    pub(super) fn least_left(&self, now: Instant) -> Millis {
        let in_force = self.quarantine(now).map_or(Millis::ZERO, |(left, _)| left);
        let lacks = |authority: &&Authority| authority.mandate(now) == Mandate::None;
        let authority = self.authority.as_deref().filter(lacks);
        in_force.max(authority.map_or(Millis::ZERO, |authority| authority.least_left(now)))
    }

    fn own_quarantine(&self, now: Instant) -> Option<(Millis, QuarantineReason)> {
        let quarantine = self.quarantine?;
        // A lease includes its last millisecond, and so does the wait for it.
        let left = now.until(quarantine.until.after(Millis::new(1)));
        if left.is_zero() { None } else { Some((left, quarantine.reason)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Token;

    fn ceilings(fence: u64, lease: u64) -> Ceilings {
        Ceilings { fence: Fence::new(fence).unwrap(), lease: Instant::from_millis(lease) }
    }

    /// A node whose file covers one block of fences, and leases until 100 s.
    fn node() -> Promises {
        Promises::new(Fence::ZERO, Some(ceilings(FENCE_BLOCK, 100_000)))
    }

    fn uses(node: &mut Promises, used: Ceilings) -> Option<Ceilings> {
        node.admit(used.fence, used.lease).unwrap();
        let request = node.take_request();
        assert_eq!(node.take_request(), None, "each is returned once");
        request
    }

    #[test]
    fn more_is_asked_for_when_less_than_half_of_a_block_is_left() {
        let half = ceilings(FENCE_BLOCK / 2, 95_000);
        assert_eq!(uses(&mut node(), half), None);
        for used in [ceilings(FENCE_BLOCK / 2 + 1, 1_000), ceilings(1, 95_001)] {
            let mut node = node();
            let asked = ceilings(FENCE_BLOCK, 100_000).max(used.plus_block());
            assert_eq!(uses(&mut node, used), Some(asked));
            assert_eq!(asked.max(used), asked);
            assert_eq!(uses(&mut node, used), None, "it has been requested");
            node.request_failed();
            assert_eq!(uses(&mut node, used), Some(asked));
            assert_eq!(node.ceilings(), Some(ceilings(FENCE_BLOCK, 100_000)), "not yet");
            node.persisted(asked);
            assert_eq!((node.ceilings(), node.highest()), (Some(asked), used.fence));
        }
        let mut without = Promises::new(Fence::ZERO, None);
        assert_eq!(uses(&mut without, ceilings(7, 7)), None, "it promises nothing");
        assert_eq!((without.ceilings(), without.highest()), (None, Fence::new(7).unwrap()));
    }

    #[test]
    fn leases_that_are_prolonged_at_a_start_are_promised_as_they_end_then() {
        for (prolong, longest) in [(0, 50_000), (3_000, 53_000)] {
            let (floor, prolong) = (Fence::ZERO, Millis::new(prolong));
            let mut node = node();
            node.seen(Fence::ZERO, Some(Instant::from_millis(50_000)));
            node.recover(Recovery { floor, prolong, ..Recovery::at_once(floor) });
            assert_eq!(node.longest(), Instant::from_millis(longest));
        }
    }

    #[test]
    fn a_second_quarantine_shortens_none_and_one_of_a_promotion_lets_nothing_count() {
        use QuarantineReason::{ClockStep, Promotion, UncleanRestart};
        let mut node = node();
        let (now, mut stood) = (Instant::from_millis(1_000), Vec::new());
        let quarantines =
            [(5_000, UncleanRestart), (4_000, ClockStep), (4_000, Promotion), (9_000, ClockStep)];
        for (until, reason) in quarantines {
            node.begin_quarantine(Instant::from_millis(until), reason);
            let (left, reason) = node.quarantine(now).unwrap();
            stood.push((left.get(), reason, node.nothing_counts(now)));
        }
        let (first, second) = ((4_001, UncleanRestart, false), (4_001, UncleanRestart, false));
        let (third, fourth) = ((4_001, Promotion, true), (8_001, ClockStep, true));
        assert_eq!(stood, [first, second, third, fourth]);
        node.end_quarantine();
        assert_eq!((node.quarantine(now), node.nothing_counts(now)), (None, false));
    }

    #[test]
    fn nothing_is_used_beyond_either_ceiling() {
        for used in [ceilings(FENCE_BLOCK + 1, 5), ceilings(5, 100_001)] {
            let asked = ceilings(FENCE_BLOCK, 100_000).max(used.plus_block());
            assert_eq!(node().admit(used.fence, used.lease), Err(asked));
        }
        assert_eq!(node().admit(Fence::new(FENCE_BLOCK).unwrap(), node().longest()), Ok(()));
    }

    #[test]
    fn a_survey_lowers_what_is_promised_to_what_it_came_upon_and_a_block() {
        let now = Instant::from_millis(1_000);
        let survey = |ends_at: Option<u64>| {
            let mut node = node();
            node.admit(Fence::new(1).unwrap(), Instant::from_millis(90_000)).unwrap();
            assert!(node.would_gain(now));
            node.begin_survey();
            assert_eq!(node.longest(), Instant::from_millis(90_000), "until the survey has ended");
            if let Some(ends_at) = ends_at {
                let (mut lock, ends_at) = (Lock::default(), Instant::from_millis(ends_at));
                let (token, fence) = (Token::new(b"t", 64).unwrap(), Fence::new(1).unwrap());
                let (label, mode) = (&b""[..], Mode::Exclusive);
                let lease = Lease { token, fence, ends_at, label, mode, is_provisional: false };
                lock.apply(lease, now);
                node.come_upon(&lock);
            }
            let lower = node.end_survey(now);
            let lease = node.ceilings().unwrap().lease;
            assert_eq!(lease, lower.unwrap_or(Instant::from_millis(100_000)));
            lower.map(Instant::as_millis)
        };
        assert_eq!(survey(None), Some(11_000));
        assert_eq!(survey(Some(60_000)), Some(70_000));
        assert_eq!(survey(Some(84_999)), Some(94_999));
        assert_eq!(survey(Some(85_000)), None, "half of a block is not worth it");
        let worth = |lease| Promises::new(Fence::ZERO, Some(ceilings(1, lease))).would_gain(now);
        assert_eq!([16_000, 16_001].map(worth), [false, true]);
    }
}
