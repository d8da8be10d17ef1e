//! A lease in 40 bytes.

use super::lock::{Lease, Tenure};
use super::readers::Readers;
use crate::engine::token::digest;
use crate::engine::{Fence, Instant, Millis, Mode, Token};

/// Tokens up to this length, in bytes, are kept inline.
const TOKEN_INLINE: usize = 20;

/// A lease, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct PackedLease {
    extra: Option<Box<Extra>>,
    until: Packed,
    /// The lower 32 bits of the grant's instant in milliseconds.
    granted_at: u32,
    /// Zero without a lease.
    token_length: u8,
    /// Written anew with each change of the lease; six bits are free. Whatever else a lease comes
    /// to have must also go through [`PackedLease::change`], [`PackedLease::granted_with`] (for
    /// what stays when the same lease is written again), `readers.rs` and the codec.
    flags: u8,
    token: [u8; TOKEN_INLINE],
}

const _: () = assert!(size_of::<PackedLease>() == 40);

/// The lease is a reader's.
const SHARED: u8 = 1;
/// The lease was repaired in a quarantine, or came from another name or node, and has not been
/// extended outside of a quarantine since.
const PROVISIONAL: u8 = 2;

const fn flags(mode: Mode, is_provisional: bool) -> u8 {
    (if mode.is_shared() { SHARED } else { 0 }) | (if is_provisional { PROVISIONAL } else { 0 })
}

/// Parts that few leases have. They are on the heap, so that the others do not pay for them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Extra {
    /// Of the lease in the slot.
    Lease(LeaseExtra),
    /// The leases of several readers, in place of one in the slot.
    Readers(Box<Readers>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LeaseExtra {
    label: Box<[u8]>,
    /// A token that is too long to be kept inline.
    token: Box<[u8]>,
    /// The lease's fence, if it is below the lock's counter: after a repair in quarantine, or with
    /// other readers.
    fence: Option<Fence>,
}

/// 47 bits of milliseconds, 4400 years, and one bit that is set when the end of the lease has been
/// noted.
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

impl PackedLease {
    /// No lease since this instant.
    pub(super) fn free(since: Instant) -> PackedLease {
        PackedLease { until: Packed::pack(since), ..PackedLease::default() }
    }

    /// These readers, instead of a lease.
    pub(super) fn of_readers(readers: Readers) -> PackedLease {
        let until = Packed::pack(readers.last_end());
        let extra = Some(Box::new(Extra::Readers(Box::new(readers))));
        PackedLease { extra, until, flags: SHARED, ..PackedLease::default() }
    }

    /// Whether it has a lease.
    #[inline]
    pub(super) fn has_lease(&self) -> bool {
        self.token_length > 0
    }

    /// The token of the lease.
    #[inline]
    pub(super) fn token(&self) -> Option<Token<'_>> {
        let length = usize::from(self.token_length);
        let bytes = match self.extra.as_deref() {
            Some(Extra::Lease(extra)) if length > TOKEN_INLINE => &*extra.token,
            Some(_) | None => self.token.get(..length)?,
        };
        Token::new(bytes, length).ok()
    }

    /// The hash of the token.
    pub(super) fn digest(&self) -> u64 {
        self.token().map_or(0, |token| digest(token.as_bytes()))
    }

    /// The label; may be empty.
    pub(super) fn label(&self) -> &[u8] {
        match self.extra.as_deref() {
            Some(Extra::Lease(extra)) => &extra.label,
            Some(Extra::Readers(_)) | None => &[],
        }
    }

    /// The fence of the lease, if it is not the lock's counter.
    #[inline]
    pub(super) fn own_fence(&self) -> Option<Fence> {
        match self.extra.as_deref() {
            Some(Extra::Lease(extra)) => extra.fence,
            Some(Extra::Readers(_)) | None => None,
        }
    }

    /// Sets the fence of the lease; `None`: it is the lock's counter.
    #[inline]
    pub(super) fn set_own_fence(&mut self, fence: Option<Fence>) {
        if self.extra.is_some() || fence.is_some() {
            self.extra_mut().fence = fence;
        }
    }

    fn extra_mut(&mut self) -> &mut LeaseExtra {
        let is_lease = matches!(self.extra.as_deref(), Some(Extra::Lease(_)));
        if !is_lease {
            self.extra = None;
        }
        let new = || Box::new(Extra::Lease(LeaseExtra::default()));
        match &mut **self.extra.get_or_insert_with(new) {
            Extra::Lease(extra) => extra,
            // PROOF: it was replaced above.
            Extra::Readers(_) => unreachable!(),
        }
    }

    /// How the lease is held.
    #[inline]
    pub(super) fn mode(&self) -> Mode {
        if self.flags & SHARED == 0 { Mode::Exclusive } else { Mode::Shared }
    }

    /// The lease, with this fence.
    #[inline]
    pub(super) fn tenure(&self, fence: Fence) -> Tenure {
        let (ends_at, mode) = (self.ends_at(), self.mode());
        Tenure { fence, ends_at, mode, is_provisional: self.is_provisional() }
    }

    /// Changes the lease: its end, its mode and its mark.
    #[inline]
    pub(super) fn change(&mut self, tenure: Tenure) {
        self.set_end(tenure.ends_at);
        self.flags = flags(tenure.mode, tenure.is_provisional);
    }

    /// Whether the lease is provisional.
    #[inline]
    pub(super) fn is_provisional(&self) -> bool {
        self.flags & PROVISIONAL != 0
    }

    /// Marks the lease as provisional, or removes the mark.
    pub(super) fn set_provisional(&mut self, is_provisional: bool) {
        self.flags = self.flags & !PROVISIONAL | if is_provisional { PROVISIONAL } else { 0 };
    }

    /// When the lease ends; without one, the instant since which there is none.
    #[inline]
    pub(super) fn ends_at(&self) -> Instant {
        self.until.unpack()
    }

    /// Sets the end of the lease.
    pub(super) fn set_end(&mut self, ends_at: Instant) {
        self.until = Packed::pack(ends_at);
    }

    /// Whether it was noted that the lease has ended.
    #[inline]
    pub(super) fn is_noted(&self) -> bool {
        self.until.is_noted()
    }

    /// Notes that the lease has ended. The next lease clears the note.
    pub(super) fn note(&mut self) {
        self.until.0[2] |= Packed::NOTED;
    }

    /// How long the lease has been held, modulo 49.7 days.
    pub(super) fn held_for(&self, now: Instant) -> Millis {
        Millis::new(u64::from((now.as_millis() as u32).wrapping_sub(self.granted_at)))
    }

    /// Takes over the time of the grant from `other`.
    pub(super) fn granted_with(&mut self, other: &PackedLease) {
        self.granted_at = other.granted_at;
    }

    /// Overwrites the slot with this lease, except for its fence.
    pub(super) fn write(&mut self, lease: Lease<'_>, now: Instant) {
        let token = lease.token.as_bytes();
        self.until = Packed::pack(lease.ends_at);
        self.granted_at = now.as_millis() as u32;
        self.token = [0; TOKEN_INLINE];
        self.token_length = token.len() as u8;
        self.flags = flags(lease.mode, lease.is_provisional);
        self.extra = None;
        if token.len() <= TOKEN_INLINE {
            self.token[..token.len()].copy_from_slice(token);
        } else {
            self.extra_mut().token = token.into();
        }
        if !lease.label.is_empty() {
            self.extra_mut().label = lease.label.into();
        }
    }

    /// The readers, instead of a lease.
    #[inline]
    pub(super) fn readers(&self) -> Option<&Readers> {
        match self.extra.as_deref() {
            Some(Extra::Readers(readers)) => Some(readers),
            Some(Extra::Lease(_)) | None => None,
        }
    }

    /// The readers, to be changed. Call [`PackedLease::readers_changed`] afterwards.
    pub(super) fn readers_mut(&mut self) -> Option<&mut Readers> {
        match self.extra.as_deref_mut() {
            Some(Extra::Readers(readers)) => Some(readers),
            Some(Extra::Lease(_)) | None => None,
        }
    }

    /// Updates the latest end of the readers' leases. Without any, the slot is free since `now`.
    pub(super) fn readers_changed(&mut self, now: Instant) {
        match self.readers().map(|readers| (readers.is_empty(), readers.last_end())) {
            Some((false, last)) => self.set_end(last),
            Some((true, _)) => *self = PackedLease::free(now),
            None => {}
        }
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let Some(extra) = &self.extra else { return 0 };
        size_of::<Extra>()
            + match &**extra {
                Extra::Lease(extra) => extra.label.len() + extra.token.len(),
                Extra::Readers(readers) => size_of::<Readers>() + readers.heap_bytes(),
            }
    }
}
