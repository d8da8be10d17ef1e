//! Versioned bytes: a lock in a data set, and the node's [`state`] file.
//!
//! Bytes from a disk or from `RESTORE` are not trusted. They are decoded strictly: every field is
//! checked, nothing may follow, a newer version is refused with both numbers, and no input causes a
//! panic. Times are absolute. A lease also has the time that it had left, so that a wall clock that
//! was stepped back cannot prolong it. For a load in the same boot of the same machine, it has its
//! end on the boot-time clock, which no step affects.
//!
//! ```
//! use lockmod::codec::{decode_lock, encode_lock};
//! use lockmod::engine::{Clocks, Fence, Instant, Lock, UnixTime};
//!
//! let clocks = Clocks { now: Instant::from_millis(1_000), wall: UnixTime::from_millis(50_000) };
//! let lock = Lock::free(Fence::new(7).unwrap(), clocks.now);
//! let bytes = encode_lock(&lock, Fence::ZERO, clocks, 1);
//! assert_eq!(decode_lock(&bytes, clocks, 1).unwrap().lock, lock);
//! assert!(decode_lock(&bytes[1..], clocks, 1).is_err());
//! ```

pub mod state;

use bincode::{Decode, Encode, config};

use crate::engine::{
    Clocks, Fence, Instant, LABEL_MAX, Lease, Lock, Millis, Mode, TOKEN_MAX, TTL_MAX, Token,
    UnixTime,
};

/// The version of the data type, which the server keeps with every value. The bytes have versions
/// of their own, so this one stays, and a build that does not know readers can read all other
/// locks.
pub const TYPE_VERSION: u8 = 1;

/// The newest version of a lock's bytes that this build writes and reads. A lock without readers is
/// written in version 1, so that a build that does not know readers can read it.
pub const LOCK_VERSION: u8 = 2;

/// The longest encoded lock without readers, in bytes. It limits what a decoder may allocate.
const LOCK_BYTES_MAX: usize = 1024;
/// The longest encoded lock with readers: 100 000 of them, each with the longest token and label.
const READERS_BYTES_MAX: usize = 100_000 * READER_BYTES_MAX;
const READER_BYTES_MAX: usize = 512;

/// Why bytes were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodecError {
    /// They were written by a newer version.
    Newer {
        /// The version of the bytes.
        found: u8,
        /// The newest version that this build reads.
        known: u8,
    },
    /// No version writes such bytes.
    Corrupt(&'static str),
}

impl std::fmt::Display for CodecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CodecError::Newer { found, known } => {
                write!(f, "written in version {found}, and this build reads up to {known}")
            }
            CodecError::Corrupt(why) => write!(f, "corrupt: {why}"),
        }
    }
}

impl std::error::Error for CodecError {}

/// Identifies the boot, and so the machine, of a monotonic clock; zero if unknown.
pub type BootId = u64;

#[derive(Encode, Decode)]
struct LockV1 {
    counter: u64,
    /// The node's floor. Every lock carries it, because a data set has no other safe place for it.
    floor: u64,
    lease: Option<LeaseV1>,
}

/// A lock that readers hold.
#[derive(Encode, Decode)]
struct LockV2 {
    counter: u64,
    floor: u64,
    readers: Vec<LeaseV1>,
}

#[derive(Encode, Decode)]
struct LeaseV1 {
    token: Vec<u8>,
    label: Vec<u8>,
    fence: u64,
    ends_at_unix_ms: u64,
    left_ms: u64,
    held_for_ms: u64,
    boot: BootId,
    ends_at_boot_ms: u64,
    is_provisional: bool,
}

/// A lock that was read, and the floor of the node that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLock {
    /// The lock, on this process's clock.
    pub lock: Lock,
    /// The writer's floor.
    pub floor: Fence,
}

/// The bytes of `lock` on a node with this `floor`, in boot `boot`.
pub fn encode_lock(lock: &Lock, floor: Fence, clocks: Clocks, boot: BootId) -> Vec<u8> {
    let mut leases = lock.written_leases().map(|lease| LeaseV1 {
        token: lease.token.as_bytes().to_vec(),
        label: lease.label.to_vec(),
        fence: lease.fence.get(),
        ends_at_unix_ms: clocks.to_wall(lease.ends_at).as_millis(),
        left_ms: clocks.now.until(lease.ends_at).get(),
        held_for_ms: lock.held_for(lease.token, clocks.now).get(),
        boot,
        ends_at_boot_ms: lease.ends_at.as_millis(),
        is_provisional: lease.is_provisional,
    });
    let (counter, floor) = (lock.counter().get(), floor.get());
    match lock.mode() {
        Mode::Exclusive => encode(1, &LockV1 { counter, floor, lease: leases.next() }),
        Mode::Shared => {
            let mut readers: Vec<_> = leases.collect();
            // The same lock gives the same bytes.
            readers.sort_by(|one, other| one.token.cmp(&other.token));
            encode(LOCK_VERSION, &LockV2 { counter, floor, readers })
        }
    }
}

/// The lock in `bytes`; its leases end by this process's `clocks`.
///
/// # Errors
/// [`CodecError`] if the bytes are not exactly what [`encode_lock`] of a known version writes.
pub fn decode_lock(bytes: &[u8], clocks: Clocks, boot: BootId) -> Result<LoadedLock, CodecError> {
    let (version, payload) = split(bytes, LOCK_VERSION)?;
    let (counter, floor, leases, mode) = match version {
        1 => {
            let stored: LockV1 = decode::<_, LOCK_BYTES_MAX>(payload)?;
            (stored.counter, stored.floor, stored.lease.into_iter().collect(), Mode::Exclusive)
        }
        _ => {
            let stored: LockV2 = decode::<_, READERS_BYTES_MAX>(payload)?;
            (stored.counter, stored.floor, stored.readers, Mode::Shared)
        }
    };
    let (counter, floor) = (fence(counter)?, fence(floor)?);
    let mut lock = Lock::free(counter, clocks.now);
    if mode.is_shared() && leases.is_empty() {
        return Err(CodecError::Corrupt("no reader"));
    }
    for stored in &leases {
        let lease = stored.decoded(counter, mode, clocks, boot)?;
        if lock.lease_of(lease.token).is_some() {
            return Err(CodecError::Corrupt("two leases with one token"));
        }
        lock.apply(lease, clocks.now.before(Millis::new(stored.held_for_ms)));
    }
    Ok(LoadedLock { lock, floor })
}

impl LeaseV1 {
    fn decoded(
        &self,
        counter: Fence,
        mode: Mode,
        clocks: Clocks,
        boot: BootId,
    ) -> Result<Lease<'_>, CodecError> {
        if self.label.len() > LABEL_MAX {
            return Err(CodecError::Corrupt("label too long"));
        }
        let token = Token::new(&self.token, TOKEN_MAX)
            .map_err(|_| CodecError::Corrupt("token length out of range"))?;
        let fence = fence(self.fence)?;
        if fence > counter || fence == Fence::ZERO {
            return Err(CodecError::Corrupt("fence of the lease out of range"));
        }
        let exact = Instant::from_millis(self.ends_at_boot_ms);
        let (wall, left) = (UnixTime::from_millis(self.ends_at_unix_ms), Millis::new(self.left_ms));
        let is_of_boot = boot != 0 && self.boot == boot;
        // Machines that were resumed from one snapshot of memory have the id of one boot. Now is
        // never earlier than when the lease was written, unless on another of them.
        let is_stepped = clocks.are_stepped_since(Clocks { now: exact, wall });
        let is_ahead = is_of_boot && exact > clocks.now.after(left);
        let (ends_at, is_misdated) = if is_of_boot && !is_stepped {
            (exact, is_ahead)
        } else {
            let dated = clocks.to_instant(wall, left);
            let ends_at = if is_of_boot { dated.max(exact) } else { dated };
            (ends_at, is_ahead || clocks.shortens(wall, left))
        };
        // No node grants a longer lease, whatever the bytes contain.
        let ends_at = ends_at.min(clocks.now.after(left.min(TTL_MAX)));
        let is_provisional = self.is_provisional || is_misdated;
        Ok(Lease { token, fence, ends_at, label: &self.label, mode, is_provisional })
    }
}

fn fence(number: u64) -> Result<Fence, CodecError> {
    Fence::new(number).ok_or(CodecError::Corrupt("fence out of range"))
}

fn encode<T: Encode>(version: u8, value: &T) -> Vec<u8> {
    let mut bytes = vec![version];
    // PROOF: writing integers and byte vectors into a `Vec` has no way to fail.
    bincode::encode_into_std_write(value, &mut bytes, config::standard()).expect("infallible");
    bytes
}

/// The version of these bytes, if it is known, and the rest of them.
fn split(bytes: &[u8], known: u8) -> Result<(u8, &[u8]), CodecError> {
    let (&found, payload) = bytes.split_first().ok_or(CodecError::Corrupt("empty"))?;
    match found {
        0 => Err(CodecError::Corrupt("version 0")),
        _ if found > known => Err(CodecError::Newer { found, known }),
        _ => Ok((found, payload)),
    }
}

fn decode<T: Decode<()>, const MAX: usize>(payload: &[u8]) -> Result<T, CodecError> {
    let limits = config::standard().with_limit::<MAX>();
    let (value, used) = bincode::decode_from_slice(payload, limits)
        .map_err(|_| CodecError::Corrupt("cut off, or a field out of range"))?;
    if used == payload.len() { Ok(value) } else { Err(CodecError::Corrupt("bytes left over")) }
}

/// The state that a master and its replicas must agree on, as bytes for `DEBUG DIGEST`.
///
/// The ends of leases are left out, because each node has them on its own clock. Readers are left
/// out too, because each node forgets ended ones by its own clock.
pub fn digest_lock(lock: &Lock) -> Vec<u8> {
    let mut bytes = lock.counter().get().to_be_bytes().to_vec();
    for lease in lock.written_leases().filter(|lease| !lease.mode.is_shared()) {
        bytes.extend(told_of(&lease));
    }
    bytes
}

fn told_of(lease: &Lease<'_>) -> Vec<u8> {
    let token = lease.token.as_bytes();
    let mut bytes = lease.fence.get().to_be_bytes().to_vec();
    bytes.push(token.len() as u8);
    bytes.extend(token);
    bytes.extend(lease.label);
    bytes
}

/// The hash of a lock and its name, for the sum over a whole data set. Of the readers, it covers
/// only those that count.
pub fn hash_lock(
    (database, name): (u32, &[u8]),
    lock: &Lock,
    counts: impl Fn(&Lease<'_>) -> bool,
) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&database.to_be_bytes());
    hasher.update(&(name.len() as u64).to_be_bytes());
    hasher.update(name);
    hasher.update(&digest_lock(lock));
    // The sum does not depend on the order of the readers.
    let readers = lock.written_leases().filter(|lease| lease.mode.is_shared() && counts(lease));
    let readers = readers.map(|lease| u64::from(crc32fast::hash(&told_of(&lease)))).sum::<u64>();
    u64::from(hasher.finalize()).wrapping_add(readers << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOT: BootId = 77;

    fn clocks(now: u64, wall: u64) -> Clocks {
        Clocks { now: Instant::from_millis(now), wall: UnixTime::from_millis(wall) }
    }

    fn held(token: &[u8], label: &[u8], fence: u64, ends_at: u64) -> Lock {
        let mut lock = Lock::free(Fence::ZERO, Instant::default());
        let token = Token::new(token, TOKEN_MAX).unwrap();
        let ends_at = Instant::from_millis(ends_at);
        let fence = Fence::new(fence).unwrap();
        let (mode, is_provisional) = (Mode::Exclusive, false);
        let lease = Lease { token, fence, ends_at, label, mode, is_provisional };
        lock.apply(lease, Instant::from_millis(900));
        lock
    }

    #[test]
    fn a_lease_read_in_the_same_boot_ends_when_it_did_whatever_the_wall_clock_says() {
        let bytes =
            encode_lock(&held(b"tok", b"me", 5, 31_000), Fence::ZERO, clocks(1_000, 0), BOOT);
        for wall in [0, 1, 60_000, 1_700_000_000_000] {
            let loaded = decode_lock(&bytes, clocks(2_000, wall), BOOT).unwrap();
            let lease = loaded.lock.written_leases().next().unwrap();
            assert_eq!(lease.ends_at, Instant::from_millis(31_000), "wall {wall}");
        }
    }

    /// Two machines that were resumed from one snapshot of memory have the id of one boot.
    #[test]
    fn a_lease_of_the_same_boot_and_another_clock_ends_no_earlier_and_hardly_later() {
        let wall = 1_700_000_000_000;
        let bytes =
            encode_lock(&held(b"tok", b"", 5, 31_000), Fence::ZERO, clocks(1_000, wall), BOOT);
        for (now, read_at) in
            [(3_601_000, 1_000), (40_000, 1_000), (3_002, 1_000), (998, 1_000), (1, 1_000), (1, 1)]
        {
            let read = clocks(now, wall + read_at);
            let loaded = decode_lock(&bytes, read, BOOT).unwrap();
            let lease = loaded.lock.written_leases().next().unwrap();
            let left = read.now.until(lease.ends_at);
            assert!((29_000..=30_000).contains(&left.get()), "{now}: {left:?}");
            // On a clock that is behind, it may have ended before.
            assert_eq!(lease.is_provisional, now < 1_000, "{now}");
        }
    }

    #[test]
    fn a_lease_that_a_clock_stepped_back_makes_stand_does_not_count_yet() {
        let bytes = encode_lock(&held(b"tok", b"", 5, 31_000), Fence::ZERO, clocks(1_000, 70), 0);
        for (wall, is_provisional) in [(30_000, false), (70, false), (69, true), (0, true)] {
            let loaded = decode_lock(&bytes, clocks(2_000, wall), BOOT).unwrap();
            let lease = loaded.lock.written_leases().next().unwrap();
            assert_eq!(lease.is_provisional, is_provisional, "{wall}");
        }
    }

    #[test]
    fn a_lease_that_does_not_count_yet_comes_back_as_one() {
        for is_provisional in [false, true] {
            let mut lock = held(b"tok", b"me", 5, 31_000);
            if is_provisional {
                lock.mark_provisional();
            }
            let bytes = encode_lock(&lock, Fence::ZERO, clocks(1_000, 0), BOOT);
            let loaded = decode_lock(&bytes, clocks(2_000, 0), BOOT).unwrap();
            let lease = loaded.lock.written_leases().next().unwrap();
            assert_eq!(lease.is_provisional, is_provisional);
        }
    }

    #[test]
    fn a_lease_read_elsewhere_never_lasts_longer_than_what_was_left_of_it() {
        let stepped_back = clocks(5_000, 10);
        let lock = held(b"tok", b"", 5, 31_000);
        let bytes = encode_lock(&lock, Fence::ZERO, clocks(1_000, 90_000), BOOT);
        let loaded = decode_lock(&bytes, stepped_back, BOOT + 1).unwrap();
        assert_eq!(
            loaded.lock.written_leases().next().unwrap().ends_at,
            Instant::from_millis(35_000)
        );
    }

    #[test]
    fn no_lease_lasts_longer_than_any_node_grants() {
        // Bytes with a far end once made a lock held for 4461 years.
        let now = clocks(1_000, 90_000);
        let longest = now.now.after(TTL_MAX);
        for (ends_at, held_until) in [(longest.as_millis(), longest), (1 << 47, longest)] {
            let bytes = encode_lock(&held(b"tok", b"", 5, ends_at - 1), Fence::ZERO, now, BOOT);
            for boot in [BOOT, BOOT + 1] {
                let loaded = decode_lock(&bytes, now, boot).unwrap();
                let end = loaded.lock.written_leases().next().unwrap().ends_at;
                assert_eq!(end, Instant::from_millis(ends_at - 1).min(held_until));
            }
        }
    }

    #[test]
    fn what_no_node_writes_is_refused_with_the_reason() {
        type Slip = fn(&mut LockV1, &mut LeaseV1);
        let slips: [(Slip, &str); 9] = [
            (|_, lease| lease.label = vec![1; LABEL_MAX + 1], "label too long"),
            (|_, lease| lease.token = vec![], "token length out of range"),
            (|_, lease| lease.token = vec![1; TOKEN_MAX + 1], "token length out of range"),
            (|_, lease| lease.fence = 0, "fence of the lease out of range"),
            (|_, lease| lease.fence = 8, "fence of the lease out of range"),
            (|_, lease| lease.fence = Fence::MAX.get() + 1, "fence out of range"),
            (|lock, _| lock.counter = Fence::MAX.get() + 1, "fence out of range"),
            (|lock, _| lock.floor = Fence::MAX.get() + 1, "fence out of range"),
            (|lock, _| lock.counter = 4, "fence of the lease out of range"),
        ];
        let now = clocks(1_000, 5_000);
        let bytes = |slip: Slip| {
            let (token, label) = (vec![1; TOKEN_MAX], vec![1; LABEL_MAX]);
            let mut lease = LeaseV1 {
                token,
                label,
                fence: 5,
                ends_at_unix_ms: 9_000,
                left_ms: 9,
                held_for_ms: 1,
                boot: BOOT,
                ends_at_boot_ms: 2_000,
                is_provisional: false,
            };
            let mut lock = LockV1 { counter: 7, floor: 0, lease: None };
            slip(&mut lock, &mut lease);
            encode(LOCK_VERSION, &LockV1 { lease: Some(lease), ..lock })
        };
        assert!(decode_lock(&bytes(|_, _| ()), now, BOOT).is_ok());
        for (slip, reason) in slips {
            let refused = decode_lock(&bytes(slip), now, BOOT);
            assert_eq!(refused, Err(CodecError::Corrupt(reason)));
        }
    }

    #[test]
    fn no_two_locks_have_one_digest_but_for_the_ends_of_their_leases() {
        let mut raised = held(b"tok", b"me", 5, 31_000);
        raised.apply_counter(Fence::new(6).unwrap());
        let locks = [
            Lock::default(),
            held(b"tok", b"me", 5, 31_000),
            held(b"tok", b"me", 6, 31_000),
            held(b"tokm", b"e", 5, 31_000),
            held(b"tok", b"", 5, 31_000),
            raised,
        ];
        let mut digests: Vec<_> = locks.iter().map(digest_lock).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), locks.len());
        assert_eq!(digest_lock(&locks[1]), digest_lock(&held(b"tok", b"me", 5, 32_000)));
        let places = [(0, &b"a"[..]), (1, b"a"), (0, b"b"), (0, b"a\0"), (0, b"")];
        let mut hashes: Vec<_> = (locks.iter())
            .flat_map(|lock| places.map(|place| hash_lock(place, lock, |_| true)))
            .collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), locks.len() * places.len());
    }

    /// `count` readers, one every 10 ms, each with a ttl of 500 ms.
    fn readers(count: u64) -> Lock {
        let mut lock = Lock::default();
        for number in 0..count {
            let (token, label) = (number.to_be_bytes(), [b'l'; 3]);
            let lease = Lease {
                token: Token::new(&token, TOKEN_MAX).unwrap(),
                fence: Fence::new(1 + number / 10).unwrap(),
                ends_at: Instant::from_millis(1_000 + number * 10 + 500),
                label: &label[..number as usize % 4],
                mode: Mode::Shared,
                is_provisional: number % 5 == 0,
            };
            lock.apply(lease, Instant::from_millis(1_000 + number * 10));
        }
        lock
    }

    fn leases(lock: &Lock) -> Vec<Lease<'_>> {
        let mut leases: Vec<_> = lock.written_leases().collect();
        leases.sort_by_key(|lease| lease.token.as_bytes());
        leases
    }

    #[test]
    fn readers_survive_their_bytes() {
        for count in [1, 2, 63, 64, 65, 300] {
            let lock = readers(count);
            let now = clocks(1_000 + count * 10, 5_000);
            let bytes = encode_lock(&lock, Fence::ZERO, now, BOOT);
            let loaded = decode_lock(&bytes, now, BOOT).unwrap().lock;
            assert_eq!(leases(&loaded), leases(&lock), "{count}");
            assert_eq!((loaded.counter(), loaded.until()), (lock.counter(), lock.until()));
            for lease in leases(&lock) {
                let held_for = |lock: &Lock| lock.held_for(lease.token, now.now);
                assert_eq!(held_for(&loaded), held_for(&lock));
            }
        }
    }

    /// A node that had forgotten ended readers, which is not written anywhere, used to take its own
    /// data set for another one.
    #[test]
    fn readers_whose_leases_have_ended_are_in_no_hash() {
        let now = clocks(1_000 + 300 * 10, 5_000);
        let counts = |lease: &Lease<'_>| now.now <= lease.ends_at;
        let (lock, mut later) = (readers(300), readers(300));
        assert!(later.note_lapses(now.now) > 200);
        let hash = |lock: &Lock| hash_lock((0, b"a"), lock, counts);
        assert_eq!((hash(&lock), digest_lock(&lock)), (hash(&later), digest_lock(&later)));
        later.apply_release(leases(&lock)[299].token, now.now);
        assert_ne!(hash(&lock), hash(&later));
    }

    #[test]
    fn the_longest_reader_is_within_the_limit() {
        let lease = |byte| LeaseV1 {
            token: vec![byte; TOKEN_MAX],
            label: vec![byte; LABEL_MAX],
            fence: u64::MAX,
            ends_at_unix_ms: u64::MAX,
            left_ms: u64::MAX,
            held_for_ms: u64::MAX,
            boot: u64::MAX,
            ends_at_boot_ms: u64::MAX,
            is_provisional: true,
        };
        let bytes = |readers| encode(2, &LockV2 { counter: 0, floor: 0, readers }).len();
        let each = bytes(vec![lease(1), lease(2)]) - bytes(vec![lease(1)]);
        assert!(each <= READER_BYTES_MAX, "{each}");
    }

    #[test]
    fn a_newer_version_is_refused_with_both_numbers() {
        let mut bytes = encode_lock(&Lock::default(), Fence::ZERO, clocks(0, 0), BOOT);
        bytes[0] = 9;
        let error = decode_lock(&bytes, clocks(0, 0), BOOT).unwrap_err();
        assert_eq!(error.to_string(), "written in version 9, and this build reads up to 2");
    }

    proptest! {
        #[test]
        fn every_lock_survives_its_bytes(
            token in proptest::collection::vec(any::<u8>(), 1..=TOKEN_MAX),
            label in proptest::collection::vec(any::<u8>(), 0..=LABEL_MAX),
            fence in 1..=Fence::MAX.get(),
            above in 0_u64..3,
            floor in 0..=Fence::MAX.get(),
            ends_at in 0_u64..TTL_MAX.get(),
        ) {
            let mut lock = held(&token, &label, fence, ends_at);
            lock.apply_counter(Fence::new(fence).unwrap().saturating_add(above));
            let floor = Fence::new(floor).unwrap();
            let now = clocks(1_000, 5_000);
            let bytes = encode_lock(&lock, floor, now, BOOT);
            prop_assert!(bytes.len() <= LOCK_BYTES_MAX);
            prop_assert_eq!(decode_lock(&bytes, now, BOOT).unwrap(), LoadedLock { lock, floor });
        }

        #[test]
        fn damaged_bytes_are_refused_or_mean_a_sound_lock(
            cut in 0_usize..80, flip in 0_usize..80, bit in 0_u8..8,
        ) {
            let now = clocks(1_000, 5_000);
            let lock = held(&[7; 20], b"label", 9, 4_000);
            let mut bytes = encode_lock(&lock, Fence::ZERO, now, BOOT);
            prop_assert!(decode_lock(&bytes[..cut.min(bytes.len() - 1)], now, BOOT).is_err());
            if let Some(byte) = bytes.get_mut(flip) {
                *byte ^= 1 << bit;
            }
            if let Ok(loaded) = decode_lock(&bytes, now, BOOT) {
                let lease = loaded.lock.written_leases().next();
                prop_assert!(lease.is_none_or(|lease| lease.fence <= loaded.lock.counter()));
            }
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = decode_lock(&bytes, clocks(1, 1), BOOT);
        }
    }
}
