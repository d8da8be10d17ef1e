//! The lock: a fence counter and at most one lease, in 48 bytes.
//!
//! A lock outlives its leases, because it holds the counter. A lease that has ended stays written
//! here until the next grant, release or removal: whether it is over is a comparison, not an event.
//! A node may hold many locks, so a value is packed into 48 bytes; the packing stays in this file.
//!
//! I1: the counter never falls. I2: the lease's fence is never above the counter. I3: only its
//! token or its time ends a lease in this file.

use crate::engine::{Fence, Instant, Millis, Token};

/// Tokens up to this length, in bytes, are kept inline.
const TOKEN_INLINE: usize = 20;

/// A lock: its fence counter, and its lease, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lock {
    counter: Fence,
    extra: Option<Box<Extra>>,
    /// The end of the lease; without one, the instant since which the lock has been free.
    until: Packed,
    /// The lower 32 bits of the grant's instant in milliseconds.
    granted_at: u32,
    /// Zero without a lease.
    token_length: u8,
    /// The lease was repaired in a quarantine, or came from another name or node, and has not been
    /// extended outside of a quarantine since.
    is_provisional: bool,
    token: [u8; TOKEN_INLINE],
}

const _: () = assert!(size_of::<Lock>() == 48);

/// What few leases have. It is on the heap, so that the others do not pay for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Extra {
    label: Box<[u8]>,
    /// A token that is too long to be kept inline.
    token: Box<[u8]>,
    /// The lease's fence, if it is below the counter: after a repair in quarantine.
    fence: Option<Fence>,
}

/// 47 bits of milliseconds, 4400 years, and one that says that the end of the lease has been noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Packed([u16; 3]);

impl Packed {
    const MAX: u64 = (1 << 47) - 1;
    /// In the highest of the three parts.
    const NOTED: u16 = 1 << 15;

    fn pack(instant: Instant) -> Packed {
        let millis = instant.as_millis().min(Packed::MAX);
        Packed([millis as u16, (millis >> 16) as u16, (millis >> 32) as u16])
    }

    fn unpack(self) -> Instant {
        let [low, middle, high] = self.0;
        let [low, middle, high] = [low, middle, high & !Packed::NOTED].map(u64::from);
        Instant::from_millis(low | middle << 16 | high << 32)
    }

    fn is_noted(self) -> bool {
        self.0[2] & Packed::NOTED != 0
    }
}

/// A lease, as read from a lock or a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease<'a> {
    /// Proves the claim.
    pub token: Token<'a>,
    /// The fence of the grant, or the one that it was raised to.
    pub fence: Fence,
    /// The last millisecond of the lease. Clock readings are rounded down, so the lease includes
    /// it, to be no shorter than its ttl.
    pub ends_at: Instant,
    /// Who holds it, for people; may be empty.
    pub label: &'a [u8],
}

/// Whether a token holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    Holds,
    HeldByAnother,
    NotHeld,
}

impl Lock {
    /// A free lock with this counter, free since `since`.
    pub fn free(counter: Fence, since: Instant) -> Lock {
        Lock { counter, until: Packed::pack(since), ..Lock::default() }
    }

    /// The highest fence issued for this lock.
    pub fn counter(&self) -> Fence {
        self.counter
    }

    /// The lease as written, over or not.
    pub fn written_lease(&self) -> Option<Lease<'_>> {
        let token = self.written_token()?;
        let (label, fence) = match &self.extra {
            Some(extra) => (&*extra.label, extra.fence.unwrap_or(self.counter)),
            None => (&[][..], self.counter),
        };
        Some(Lease { token, fence, ends_at: self.until.unpack(), label })
    }

    /// The lease that stands at `now`.
    pub fn lease(&self, now: Instant) -> Option<Lease<'_>> {
        if self.is_held(now) { self.written_lease() } else { None }
    }

    /// Whether somebody holds the lock at `now`.
    pub fn is_held(&self, now: Instant) -> bool {
        self.token_length > 0 && now <= self.until.unpack()
    }

    /// Whether a lease is written here, over or not, whose end has not been noted.
    pub fn has_unnoted_lease(&self) -> bool {
        self.token_length > 0 && !self.until.is_noted()
    }

    /// Notes that the lease has ended unreleased, if it has. Returns whether it had not been noted
    /// before. Nothing else changes: the note is neither saved nor replicated, and the next lease
    /// clears it.
    pub fn note_lapse(&mut self, now: Instant) -> bool {
        let is_news = self.has_unnoted_lease() && !self.is_held(now);
        if is_news {
            self.until.0[2] |= Packed::NOTED;
        }
        is_news
    }

    /// Whether the lease was repaired in a quarantine, or came from another name. In a quarantine
    /// such a lease does not count towards a quorum: the node may have forgotten a grant to
    /// another. Outside of one the mark means nothing.
    pub fn is_provisional(&self) -> bool {
        self.is_provisional
    }

    /// Marks the present lease as provisional, or removes the mark. Every new lease begins without
    /// it.
    pub fn set_provisional(&mut self, is_provisional: bool) {
        self.is_provisional = is_provisional;
    }

    /// Notes that the lock, with its lease, is now under another name.
    ///
    /// It marks the lease outside of a quarantine too, where the mark means nothing: the
    /// append-only file contains the command, and whoever reads it after a crash cannot know
    /// whether there was a quarantine.
    pub fn changed_name(&mut self) {
        self.is_provisional = self.token_length > 0;
    }

    /// How long the present lease has been held, modulo 49.7 days.
    pub fn held_for(&self, now: Instant) -> Millis {
        Millis::new(u64::from((now.as_millis() as u32).wrapping_sub(self.granted_at)))
    }

    /// The fence of a grant on a node with this floor; `None` if the fences are used up.
    pub fn next_fence(&self, floor: Fence) -> Option<Fence> {
        self.counter.max(floor).next()
    }

    /// Bytes on the heap besides the value itself.
    pub fn heap_bytes(&self) -> usize {
        match &self.extra {
            Some(extra) => size_of::<Extra>() + extra.label.len() + extra.token.len(),
            None => 0,
        }
    }

    /// Whether `token` holds the lock at `now`.
    pub(super) fn holding(&self, token: Token<'_>, now: Instant) -> Holding {
        match self.written_token() {
            Some(holder) if now <= self.until.unpack() => {
                if holder == token {
                    Holding::Holds
                } else {
                    Holding::HeldByAnother
                }
            }
            Some(_) | None => Holding::NotHeld,
        }
    }

    /// Writes `lease` into a free lock. Returns whether an earlier lease had ended unreleased,
    /// without having been noted.
    #[must_use]
    pub(super) fn grant(&mut self, lease: Lease<'_>, now: Instant) -> bool {
        debug_assert!(!self.is_held(now), "I3");
        let lapsed = self.has_unnoted_lease();
        self.counter = self.counter.max(lease.fence);
        self.write_lease(lease, now);
        lapsed
    }

    /// Sets the end of the present lease.
    pub(super) fn set_end(&mut self, ends_at: Instant) {
        debug_assert!(self.token_length > 0);
        self.until = Packed::pack(ends_at);
    }

    /// Raises the counter and the present lease to at least `fence`.
    pub(super) fn raise(&mut self, fence: Fence) {
        let lease_fence = self.lease_fence().max(fence);
        self.counter = self.counter.max(fence);
        self.set_lease_fence(lease_fence);
    }

    /// Ends the lease, and erases its token: a secret must not linger in memory or in a dump.
    pub(super) fn erase_lease(&mut self, now: Instant) {
        self.until = Packed::pack(now);
        self.token_length = 0;
        self.is_provisional = false;
        self.token = [0; TOKEN_INLINE];
        self.extra = None;
    }

    /// The fence of the present lease.
    pub fn lease_fence(&self) -> Fence {
        self.extra.as_ref().and_then(|extra| extra.fence).unwrap_or(self.counter)
    }

    /// When the lease, over or not, ends; without one, the instant since which the lock has been
    /// free.
    pub fn until(&self) -> Instant {
        self.until.unpack()
    }

    /// Prolongs the lease by `length` if it may still stand then: the clocks that dated it may have
    /// been off by as much. Returns whether it did.
    pub(super) fn prolong(&mut self, length: Millis, now: Instant) -> bool {
        let ends_at = self.until.unpack().after(length);
        let may_stand = self.token_length > 0 && now <= ends_at;
        if may_stand {
            self.set_end(ends_at);
        }
        may_stand
    }

    /// Writes a lease that was decided elsewhere or earlier, over whatever is written here.
    ///
    /// For a replica, and for loading: facts are applied, not judged again. The counter only rises.
    /// A lease of the same token keeps the instant of its grant.
    pub fn apply(&mut self, lease: Lease<'_>, now: Instant) {
        let granted_at = match self.written_lease() {
            Some(old) if old.token == lease.token => Some(self.granted_at),
            Some(_) | None => None,
        };
        self.counter = self.counter.max(lease.fence);
        self.write_lease(lease, now);
        self.granted_at = granted_at.unwrap_or(self.granted_at);
    }

    /// Raises the counter to at least `fence`, as was decided elsewhere or earlier.
    pub fn apply_counter(&mut self, fence: Fence) {
        // A lease without a fence of its own has the counter's; it must not rise with it.
        if let Some(lease) = self.written_lease() {
            let lease_fence = lease.fence;
            self.counter = self.counter.max(fence);
            self.set_lease_fence(lease_fence);
        } else {
            self.counter = self.counter.max(fence);
        }
    }

    /// Erases the lease if it is written for `token`, over or not: a release that was decided
    /// elsewhere. Returns whether it did.
    pub fn apply_release(&mut self, token: Token<'_>, now: Instant) -> bool {
        let matches = self.written_token() == Some(token);
        if matches {
            self.erase_lease(now);
        }
        matches
    }

    /// Raises counter and lease if the lease is written for `token`, over or not: a raise that was
    /// decided elsewhere. Returns whether it did.
    pub fn apply_raise(&mut self, token: Token<'_>, fence: Fence) -> bool {
        let matches = self.written_token() == Some(token);
        if matches {
            self.raise(fence);
        }
        matches
    }

    fn written_token(&self) -> Option<Token<'_>> {
        let length = usize::from(self.token_length);
        let bytes = match &self.extra {
            Some(extra) if length > TOKEN_INLINE => &*extra.token,
            Some(_) | None => self.token.get(..length)?,
        };
        Token::new(bytes, length).ok()
    }

    fn set_lease_fence(&mut self, fence: Fence) {
        if fence < self.counter {
            self.extra.get_or_insert_default().fence = Some(fence);
        } else if let Some(extra) = &mut self.extra {
            extra.fence = None;
        }
    }

    fn write_lease(&mut self, lease: Lease<'_>, now: Instant) {
        let token = lease.token.as_bytes();
        self.until = Packed::pack(lease.ends_at);
        self.granted_at = now.as_millis() as u32;
        self.token = [0; TOKEN_INLINE];
        self.token_length = token.len() as u8;
        self.is_provisional = false;
        self.extra = None;
        if token.len() <= TOKEN_INLINE {
            self.token[..token.len()].copy_from_slice(token);
        } else {
            self.extra.get_or_insert_default().token = token.into();
        }
        if !lease.label.is_empty() {
            self.extra.get_or_insert_default().label = lease.label.into();
        }
        self.set_lease_fence(lease.fence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ends_at: u64) -> Lock {
        let token = Token::new(b"token", 64).unwrap();
        let ends_at = Instant::from_millis(ends_at);
        let mut lock = Lock::default();
        lock.apply(Lease { token, fence: Fence::new(1).unwrap(), ends_at, label: b"" }, ends_at);
        lock
    }

    #[test]
    fn the_end_of_a_lease_is_noted_once_and_changes_nothing_else() {
        for ends_at in [5, Packed::MAX - 1] {
            let (mut lock, before) = (lease(ends_at), lease(ends_at));
            let (end, later) = (Instant::from_millis(ends_at), Instant::from_millis(ends_at + 1));
            assert!(!lock.note_lapse(end), "it stands in its last millisecond");
            assert!(lock.has_unnoted_lease());
            assert!(lock.note_lapse(later) && !lock.note_lapse(later));
            assert!(!lock.has_unnoted_lease());
            assert_eq!(lock.written_lease(), before.written_lease());
            assert_eq!((lock.until(), lock.counter()), (before.until(), before.counter()));
            assert!(lock.is_held(end) && !lock.is_held(later));
        }
        let free = Lock::free(Fence::ZERO, Instant::from_millis(7));
        assert_eq!(free.until(), Instant::from_millis(7), "free since then, and no longer");
        assert!(!{ free }.note_lapse(Instant::from_millis(9)));
    }

    #[test]
    fn a_lease_is_prolonged_if_it_may_stand_and_a_free_lock_never() {
        let (now, length) = (Instant::from_millis(10), Millis::new(3));
        for (ends_at, then) in [(6, 6), (7, 10), (10, 13), (50, 53)] {
            let mut lock = lease(ends_at);
            lock.prolong(length, now);
            let end = lock.written_lease().unwrap().ends_at;
            assert_eq!(end, Instant::from_millis(then), "{ends_at}");
        }
        let mut free = Lock::free(Fence::ZERO, now);
        free.prolong(length, now);
        assert_eq!(free, Lock::free(Fence::ZERO, now));
    }

    #[test]
    fn a_note_is_gone_with_the_next_lease() {
        let mut lock = lease(5);
        assert!(lock.note_lapse(Instant::from_millis(6)));
        let token = Token::new(b"other", 64).unwrap();
        let next = Lease {
            token,
            fence: Fence::new(2).unwrap(),
            ends_at: Instant::from_millis(50),
            label: b"",
        };
        assert!(!lock.grant(next, Instant::from_millis(7)), "its end was noted before");
        assert!(lock.has_unnoted_lease());
        assert!(lock.note_lapse(Instant::from_millis(51)));
        lock.erase_lease(Instant::from_millis(60));
        assert!(!lock.note_lapse(Instant::from_millis(99)));
    }
}
