//! The state file's bytes: a name, a version, what the node records about itself, a checksum.
//!
//! The checksum is verified first: a file that was cut off or damaged in any bit is
//! [`CodecError::Corrupt`], whatever its version. An intact file of a newer version is
//! [`CodecError::Newer`]: a build that cannot read it must not overwrite it.

use std::collections::BTreeSet;

use bincode::{Decode, Encode};

use super::{CodecError, decode, encode, fence, split};
use crate::engine::{
    Ceilings, Clocks, ClusterMemory, Elector, Electorate, Electorates, Instant, Inventory, Millis,
    Saved, Stopped, UnixTime,
};

/// The newest version of a state file that this build reads. It writes it for a server of a Cluster
/// in which masters were forgotten, or an origin has ended; otherwise, version 9 for one where a
/// move of a slot at once has failed, or is under way; otherwise, version 8 for one that knows how
/// long leases may be; before that, version 5 or 4, with doubts or without; version 3 for another
/// node that rests on replicas, and version 2 for all others. Older builds can read these.
pub const STATE_VERSION: u8 = 10;
const WITHOUT_ORIGINS: u8 = 9;
const WITHOUT_FAILED_DEPARTURES: u8 = 8;
const WITH_LENGTHS_OF_MASTERS: u8 = 7;
const WITH_ONE_LENGTH: u8 = 6;
const WITHOUT_LENGTHS: u8 = 5;
const WITHOUT_DOUBTS: u8 = 4;
const WITHOUT_ELECTORATES: u8 = 3;
const WITHOUT_LONGEST: u8 = 2;

/// The longest state file without electorates, in bytes. It limits what a decoder may allocate.
const BYTES_MAX: usize = 1024;
/// The longest with electorates: as many as a node knows, each of a thousand masters.
const BYTES_MAX_IN_CLUSTER: usize = 8 << 20;

/// What every state file starts with.
const NAME: &[u8] = b"lockmod state\n";
const CHECKSUM_BYTES: usize = 4;

/// The fields that all versions begin with.
#[derive(Encode, Decode)]
struct Head {
    port: u16,
    fence_ceiling: u64,
    lease_ceiling_boot_ms: u64,
    at_boot_ms: u64,
    at_unix_ms: u64,
    boot: u64,
    is_always_durable: bool,
    was_stepped: bool,
    was_replica: bool,
}

#[derive(Encode, Decode)]
struct StateV1 {
    head: Head,
    stop: Option<StopV1>,
}

#[derive(Encode, Decode)]
struct StopV1 {
    is_saved: bool,
    lock_count: u64,
    hash: u64,
    since_unix_ms: u64,
    lease_ms: u64,
}

#[derive(Encode, Decode)]
struct StateV2 {
    head: Head,
    dating_boot_ms: u64,
    dating_unix_ms: u64,
    foreign_until_boot_ms: u64,
    nothing_counts_until_boot_ms: u64,
    stop: Option<StopV2>,
}

#[derive(Encode, Decode)]
struct StopV2 {
    is_saved: bool,
    lock_count: u64,
    hash: u64,
    since_unix_ms: u64,
}

#[derive(Encode, Decode)]
struct StateV3 {
    state: StateV2,
    longest_ms: u64,
}

#[derive(Encode, Decode)]
struct StateV4 {
    state: StateV3,
    itself: ElectorV4,
    known: Vec<(u64, u64, Vec<ElectorV4>)>,
    gone: Vec<(Vec<u8>, u64)>,
}

#[derive(Encode, Decode)]
struct StateV5 {
    state: StateV4,
    doubts: bool,
}

#[derive(Encode, Decode)]
struct StateV6 {
    state: StateV5,
    /// The longest of all that the node had confirmed.
    confirmed_longest_ms: u64,
}

#[derive(Encode, Decode)]
struct StateV7 {
    state: StateV5,
    lengths: Vec<SaidV7>,
    reign: Option<(u64, u64)>,
}

#[derive(Encode, Decode)]
struct SaidV7 {
    master: Vec<u8>,
    reign: u64,
    number: u64,
    longest_ms: u64,
    until_boot_ms: Option<u64>,
}

#[derive(Encode, Decode)]
struct StateV8 {
    state: StateV5,
    lengths: Vec<LengthV8>,
    gone_until_boot_ms: Option<u64>,
}

#[derive(Encode, Decode)]
struct StateV9 {
    state: StateV8,
    failed_departures: Vec<(u16, u16)>,
}

#[derive(Encode, Decode)]
struct StateV10 {
    state: StateV9,
    gone: ForgottenV10,
    missing: ForgottenV10,
    /// Origin, number.
    ended: Vec<(u64, u64)>,
}

/// Origin, who was forgotten, number.
type ForgottenV10 = Vec<(u64, ElectorV4, u64)>;

#[derive(Encode, Decode)]
struct LengthV8 {
    longest_ms: u64,
    until_boot_ms: Option<u64>,
}

#[derive(Encode, Decode)]
struct ElectorV4 {
    name: Vec<u8>,
    life: u64,
}

impl StateV1 {
    /// Version 1 did not record how the node dated leases or until when nothing counts, and its
    /// checksum of the locks was not exact.
    fn upgrade(self) -> StateV2 {
        let StateV1 { head, stop } = self;
        StateV2 {
            dating_boot_ms: head.at_boot_ms,
            dating_unix_ms: head.at_unix_ms,
            foreign_until_boot_ms: u64::MAX,
            nothing_counts_until_boot_ms: 0,
            stop: stop.map(|StopV1 { lock_count, hash, since_unix_ms, .. }| StopV2 {
                is_saved: false,
                lock_count,
                hash,
                since_unix_ms,
            }),
            head,
        }
    }
}

impl From<Elector> for ElectorV4 {
    fn from(Elector { name, life }: Elector) -> ElectorV4 {
        ElectorV4 { name, life }
    }
}

impl From<ElectorV4> for Elector {
    fn from(ElectorV4 { name, life }: ElectorV4) -> Elector {
        Elector { name, life }
    }
}

impl StateV2 {
    /// Version 2 did not record the longest lease.
    fn upgrade(self) -> StateV3 {
        StateV3 { state: self, longest_ms: 0 }
    }
}

impl StateV3 {
    /// Version 3 did not record electorates.
    fn upgrade(self) -> StateV4 {
        StateV4::of(self, &Electorates::default())
    }
}

impl StateV4 {
    fn of(state: StateV3, electorates: &Electorates) -> StateV4 {
        let Electorates { itself, known, left, .. } = electorates.clone();
        let known = known.into_iter().map(|Electorate { number, origin, members }| {
            (number, origin, members.into_iter().map(ElectorV4::from).collect())
        });
        // What was left has no members.
        let known = known.chain(left.into_iter().map(|origin| (0, origin, Vec::new())));
        let (itself, known) = (itself.into(), known.collect());
        StateV4 { state, itself, known, gone: Vec::new() }
    }

    /// Version 4 did not record doubts.
    fn upgrade(self) -> StateV5 {
        StateV5 { state: self, doubts: false }
    }

    fn electorates(self) -> (StateV3, Electorates) {
        let StateV4 { state, itself, known, gone } = self;
        let (left, known): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|(.., members)| members.is_empty());
        let left = left.into_iter().map(|(_, origin, _)| origin).collect();
        let known = known.into_iter().map(|(number, origin, members)| {
            let members = members.into_iter().map(Elector::from).collect();
            Electorate { number, origin, members }
        });
        let known: BTreeSet<Electorate> = known.collect();
        let itself = itself.into();
        let mut electorates = Electorates { itself, known, left, ..Electorates::default() };
        // Until version 9, masters were forgotten by their names, up to these numbers.
        for (name, up_to) in gone {
            for one in electorates.known.iter().filter(|one| one.number <= up_to) {
                let members = one.members.iter().filter(|member| member.name == name);
                let gone = electorates.gone.entry(one.origin).or_default();
                gone.extend(members.map(|member| (member.clone(), up_to)));
            }
        }
        electorates.gone.retain(|_, gone| !gone.is_empty());
        (state, electorates)
    }
}

impl StateV5 {
    /// Version 5 did not record lengths.
    fn upgrade(self) -> StateV8 {
        StateV8 { state: self, lengths: Vec::new(), gone_until_boot_ms: None }
    }
}

impl StateV6 {
    /// Version 6 did not record until when such a lease may stand.
    fn upgrade(self) -> StateV8 {
        let StateV6 { state, confirmed_longest_ms: longest_ms } = self;
        let lengths = vec![LengthV8 { longest_ms, until_boot_ms: None }];
        StateV8 { lengths, ..state.upgrade() }
    }
}

impl StateV7 {
    /// Version 7 recorded which master had said what.
    fn upgrade(self) -> StateV8 {
        let StateV7 { state, lengths, reign } = self;
        let length =
            |SaidV7 { longest_ms, until_boot_ms, .. }| LengthV8 { longest_ms, until_boot_ms };
        let lengths = lengths.into_iter().map(length).collect();
        StateV8 { state, lengths, gone_until_boot_ms: reign.map(|(_, until)| until) }
    }
}

impl StateV8 {
    fn of(state: StateV5, memory: &ClusterMemory) -> StateV8 {
        let length = |(longest, until): &(Millis, Option<Instant>)| {
            let until_boot_ms = until.map(Instant::as_millis);
            LengthV8 { longest_ms: longest.get(), until_boot_ms }
        };
        let lengths = memory.lengths.iter().map(length).collect();
        StateV8 { state, lengths, gone_until_boot_ms: memory.gone_until.map(Instant::as_millis) }
    }

    /// Version 8 did not record which moves at once have failed.
    fn upgrade(self) -> StateV9 {
        StateV9 { state: self, failed_departures: Vec::new() }
    }
}

impl StateV9 {
    fn of(state: StateV8, memory: &ClusterMemory) -> StateV9 {
        StateV9 { state, failed_departures: memory.failed_departures.clone() }
    }

    /// Version 9 did not record in which electorates masters were forgotten.
    fn upgrade(self) -> StateV10 {
        StateV10 { state: self, gone: Vec::new(), missing: Vec::new(), ended: Vec::new() }
    }
}

impl StateV10 {
    fn of(state: StateV9, memory: &ClusterMemory) -> StateV10 {
        let Electorates { gone, missing, ended, .. } = &memory.electorates;
        let [gone, missing] = [gone, missing].map(|forgotten| {
            let rows = forgotten.iter().flat_map(|(origin, all)| {
                let row = |(one, number): (&Elector, &u64)| (*origin, one.clone().into(), *number);
                all.iter().map(row)
            });
            rows.collect()
        });
        StateV10 { state, gone, missing, ended: ended.clone().into_iter().collect() }
    }

    fn memory(self) -> (StateV3, bool, ClusterMemory) {
        let StateV10 { state, gone, missing, ended } = self;
        let StateV9 { state, failed_departures } = state;
        let StateV8 { state: StateV5 { state, doubts }, lengths, gone_until_boot_ms } = state;
        let length = |LengthV8 { longest_ms, until_boot_ms }| {
            (Millis::new(longest_ms), until_boot_ms.map(Instant::from_millis))
        };
        let (state, mut electorates) = state.electorates();
        electorates.ended = ended.into_iter().collect();
        for (rows, forgotten) in
            [(gone, &mut electorates.gone), (missing, &mut electorates.missing)]
        {
            for (origin, elector, number) in rows {
                forgotten.entry(origin).or_default().insert(elector.into(), number);
            }
        }
        let lengths = lengths.into_iter().map(length).collect();
        let gone_until = gone_until_boot_ms.map(Instant::from_millis);
        (state, doubts, ClusterMemory { electorates, lengths, gone_until, failed_departures })
    }
}

impl StopV2 {
    fn of(stop: Stopped) -> StopV2 {
        let Inventory { lock_count, hash, since } = stop.inventory;
        StopV2 { is_saved: stop.is_saved, lock_count, hash, since_unix_ms: since.as_millis() }
    }

    fn stopped(self) -> Stopped {
        let StopV2 { is_saved, lock_count, hash, since_unix_ms } = self;
        let since = UnixTime::from_millis(since_unix_ms);
        Stopped { is_saved, inventory: Inventory { lock_count, hash, since } }
    }
}

/// The bytes of a state file that contains these.
pub fn encode_state(saved: &Saved, memory: &ClusterMemory) -> Vec<u8> {
    let state = StateV2 {
        head: Head {
            port: saved.port,
            fence_ceiling: saved.ceilings.fence.get(),
            lease_ceiling_boot_ms: saved.ceilings.lease.as_millis(),
            at_boot_ms: saved.at.now.as_millis(),
            at_unix_ms: saved.at.wall.as_millis(),
            boot: saved.boot,
            is_always_durable: saved.is_always_durable,
            was_stepped: saved.was_stepped,
            was_replica: saved.was_replica,
        },
        dating_boot_ms: saved.dating.now.as_millis(),
        dating_unix_ms: saved.dating.wall.as_millis(),
        foreign_until_boot_ms: saved.foreign_until.as_millis(),
        nothing_counts_until_boot_ms: saved.nothing_counts_until.as_millis(),
        stop: saved.stop.map(StopV2::of),
    };
    seal(&encode_version(state, saved, memory))
}

/// A file with this content, of some version.
fn seal(versioned: &[u8]) -> Vec<u8> {
    let mut bytes = [NAME, versioned].concat();
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    bytes
}

/// In the earliest version that has all of this, so that older builds can read it.
fn encode_version(state: StateV2, saved: &Saved, memory: &ClusterMemory) -> Vec<u8> {
    let longest_ms = saved.longest.get();
    let in_cluster = |state| StateV4::of(StateV3 { state, longest_ms }, &memory.electorates);
    let with_doubts = |state| StateV5 { state: in_cluster(state), doubts: saved.doubts };
    let with_lengths = |state| StateV8::of(with_doubts(state), memory);
    let Electorates { gone, missing, ended, .. } = &memory.electorates;
    if !gone.is_empty() || !missing.is_empty() || !ended.is_empty() {
        let state = StateV9::of(with_lengths(state), memory);
        encode(STATE_VERSION, &StateV10::of(state, memory))
    } else if !memory.failed_departures.is_empty() {
        encode(WITHOUT_ORIGINS, &StateV9::of(with_lengths(state), memory))
    } else if !memory.lengths.is_empty() || memory.gone_until.is_some() {
        encode(WITHOUT_FAILED_DEPARTURES, &with_lengths(state))
    } else if saved.doubts {
        encode(WITHOUT_LENGTHS, &with_doubts(state))
    } else if memory.electorates != Electorates::default() {
        encode(WITHOUT_DOUBTS, &in_cluster(state))
    } else if longest_ms > 0 {
        encode(WITHOUT_ELECTORATES, &StateV3 { state, longest_ms })
    } else {
        encode(WITHOUT_LONGEST, &state)
    }
}

/// The payload of a file of this version, as the newest version has it.
fn decode_version(version: u8, payload: &[u8]) -> Result<StateV10, CodecError> {
    Ok(match version {
        STATE_VERSION => decode::<_, BYTES_MAX_IN_CLUSTER>(payload)?,
        _ => decode_earlier(version, payload)?.upgrade(),
    })
}

fn decode_earlier(version: u8, payload: &[u8]) -> Result<StateV9, CodecError> {
    let in_cluster = |state: StateV4| state.upgrade().upgrade().upgrade();
    let of_group = |state: StateV3| in_cluster(state.upgrade());
    let of_any = |state: StateV2| of_group(state.upgrade());
    Ok(match version {
        1 => of_any(decode::<StateV1, BYTES_MAX>(payload)?.upgrade()),
        WITHOUT_LONGEST => of_any(decode::<_, BYTES_MAX>(payload)?),
        WITHOUT_ELECTORATES => of_group(decode::<_, BYTES_MAX>(payload)?),
        WITHOUT_DOUBTS => in_cluster(decode::<_, BYTES_MAX_IN_CLUSTER>(payload)?),
        WITHOUT_LENGTHS => decode::<StateV5, BYTES_MAX_IN_CLUSTER>(payload)?.upgrade().upgrade(),
        WITH_ONE_LENGTH => decode::<StateV6, BYTES_MAX_IN_CLUSTER>(payload)?.upgrade().upgrade(),
        WITH_LENGTHS_OF_MASTERS => {
            decode::<StateV7, BYTES_MAX_IN_CLUSTER>(payload)?.upgrade().upgrade()
        }
        WITHOUT_FAILED_DEPARTURES => decode::<StateV8, BYTES_MAX_IN_CLUSTER>(payload)?.upgrade(),
        _ => decode::<_, BYTES_MAX_IN_CLUSTER>(payload)?,
    })
}

/// Reads the bytes of a state file.
///
/// # Errors
/// [`CodecError`] if the bytes are not exactly what [`encode_state`] of a known version writes.
pub fn decode_state(bytes: &[u8]) -> Result<(Saved, ClusterMemory), CodecError> {
    let body_length = bytes.len().checked_sub(CHECKSUM_BYTES);
    let (body, checksum) = bytes.split_at(body_length.ok_or(CodecError::Corrupt("cut off"))?);
    if checksum != crc32fast::hash(body).to_be_bytes() {
        return Err(CodecError::Corrupt("cut off, or the checksum is wrong"));
    }
    let versioned = body.strip_prefix(NAME).ok_or(CodecError::Corrupt("not a state file"))?;
    let (version, payload) = split(versioned, STATE_VERSION)?;
    let (state, doubts, memory) = decode_version(version, payload)?.memory();
    let StateV3 { state, longest_ms } = state;
    let head = state.head;
    let clocks = |boot_ms, unix_ms| Clocks {
        now: Instant::from_millis(boot_ms),
        wall: UnixTime::from_millis(unix_ms),
    };
    let saved = Saved {
        port: head.port,
        ceilings: Ceilings {
            fence: fence(head.fence_ceiling)?,
            lease: Instant::from_millis(head.lease_ceiling_boot_ms),
        },
        at: clocks(head.at_boot_ms, head.at_unix_ms),
        boot: head.boot,
        dating: clocks(state.dating_boot_ms, state.dating_unix_ms),
        foreign_until: Instant::from_millis(state.foreign_until_boot_ms),
        is_always_durable: head.is_always_durable,
        was_stepped: head.was_stepped,
        was_replica: head.was_replica,
        nothing_counts_until: Instant::from_millis(state.nothing_counts_until_boot_ms),
        longest: Millis::new(longest_ms),
        doubts,
        stop: state.stop.map(StopV2::stopped),
    };
    Ok((saved, memory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Fence, Forgotten};
    use proptest::prelude::*;

    fn saved(stop: Option<Stopped>) -> Saved {
        Saved {
            port: 6379,
            ceilings: Ceilings {
                fence: Fence::new(70_000).unwrap(),
                lease: Instant::from_millis(123_456),
            },
            at: Clocks {
                now: Instant::from_millis(100_000),
                wall: UnixTime::from_millis(1_763_690_000_000),
            },
            boot: u64::MAX,
            dating: Clocks {
                now: Instant::from_millis(50),
                wall: UnixTime::from_millis(1_763_689_900_049),
            },
            foreign_until: Instant::from_millis(7_777),
            is_always_durable: true,
            was_stepped: false,
            was_replica: false,
            nothing_counts_until: Instant::from_millis(99_000),
            longest: Millis::ZERO,
            doubts: false,
            stop,
        }
    }

    fn electorates() -> Electorates {
        let elector = |name: &u8| Elector { name: vec![*name; 40], life: u64::MAX };
        let members = |names: &[u8]| names.iter().map(elector).collect();
        let known = [(7, members(b"abc")), (u64::MAX, members(b"b"))];
        let electorate = |(number, members)| Electorate { number, origin: u64::MAX, members };
        let known = known.map(electorate).into();
        Electorates { itself: elector(&b'b'), known, ..Electorates::default() }
    }

    /// Of each of these origins.
    fn gone(origins: &[u64]) -> Forgotten {
        let gone = || [(Elector { name: vec![b'a'; 40], life: u64::MAX }, 7)].into();
        origins.iter().map(|origin| (*origin, gone())).collect()
    }

    fn memory() -> ClusterMemory {
        let lengths = vec![(Millis::new(7), Some(Instant::from_millis(6))), (Millis::new(5), None)];
        let gone_until = Some(Instant::from_millis(9));
        ClusterMemory {
            electorates: electorates(),
            lengths,
            gone_until,
            failed_departures: Vec::new(),
        }
    }

    #[test]
    fn every_state_survives_its_bytes() {
        let inventory = Inventory {
            lock_count: 9,
            hash: u64::MAX - 1,
            since: UnixTime::from_millis(1_763_690_000_123),
        };
        for stop in [None, Some(Stopped { is_saved: true, inventory })] {
            for (longest, electorates, doubts, version) in [
                (0, Electorates::default(), false, 2),
                (1, Electorates::default(), false, 3),
                (u64::MAX, Electorates::default(), false, 3),
                (0, electorates(), false, 4),
                (0, Electorates { left: [0, 9].into(), ..electorates() }, false, 4),
                (1, electorates(), false, 4),
                (1, electorates(), true, 5),
                (0, Electorates::default(), true, 5),
            ] {
                let longest = Millis::new(longest);
                let saved = Saved { longest, doubts, ..saved(stop) };
                let memory = ClusterMemory { electorates, ..ClusterMemory::default() };
                let bytes = encode_state(&saved, &memory);
                assert_eq!(bytes[NAME.len()], version, "older builds read what they can");
                assert_eq!(decode_state(&bytes), Ok((saved, memory.clone())));
                let ClusterMemory { lengths, gone_until, .. } = self::memory();
                let heard = ClusterMemory { lengths, ..memory.clone() };
                let failed_departures = vec![(3, 4), (9, 9)];
                let mut forgotten = memory.clone();
                forgotten.electorates.gone = gone(&[3, u64::MAX]);
                let mut missing = memory.clone();
                missing.electorates.missing = gone(&[5]);
                let mut ended = memory.clone();
                ended.electorates.ended = [(3, 7)].into();
                for (memory, version) in [
                    (ended, STATE_VERSION),
                    (missing, STATE_VERSION),
                    (heard, WITHOUT_FAILED_DEPARTURES),
                    (ClusterMemory { gone_until, ..memory.clone() }, WITHOUT_FAILED_DEPARTURES),
                    (ClusterMemory { failed_departures, ..memory }, WITHOUT_ORIGINS),
                    (forgotten, STATE_VERSION),
                ] {
                    let bytes = encode_state(&saved, &memory);
                    assert_eq!(bytes[NAME.len()], version);
                    assert_eq!(decode_state(&bytes), Ok((saved, memory)));
                }
            }
        }
    }

    /// The content of a file with this, which an earlier version has too.
    fn decode_earlier_of(memory: &ClusterMemory) -> StateV9 {
        let bytes = encode_state(&saved(None), memory);
        let body = &bytes[NAME.len()..bytes.len() - CHECKSUM_BYTES];
        let (version, payload) = split(body, STATE_VERSION).expect("a version");
        decode_earlier(version, payload).expect("a file")
    }

    /// They had the longest length of all masters, or those of each.
    #[test]
    fn a_file_with_lengths_of_an_earlier_version_is_read() {
        let memory = memory();
        let state = || decode_earlier_of(&memory).state.state;
        let read = |versioned: Vec<u8>| {
            let (saved_then, memory) = decode_state(&seal(&versioned)).expect("a file");
            assert_eq!(saved_then, saved(None));
            memory
        };
        let one = StateV6 { state: state(), confirmed_longest_ms: 9_000 };
        let expected = ClusterMemory {
            lengths: vec![(Millis::new(9_000), None)],
            gone_until: None,
            ..memory.clone()
        };
        assert_eq!(read(encode(WITH_ONE_LENGTH, &one)), expected);
        let said = |longest_ms, until_boot_ms| {
            let (master, reign, number) = (b"a".to_vec(), 3, 4);
            SaidV7 { master, reign, number, longest_ms, until_boot_ms }
        };
        let lengths = vec![said(7, Some(6)), said(5, None)];
        let of_masters = StateV7 { state: state(), lengths, reign: Some((3, 9)) };
        assert_eq!(read(encode(WITH_LENGTHS_OF_MASTERS, &of_masters)), memory);
    }

    /// They were forgotten by their names, in all that was known.
    #[test]
    fn a_file_of_an_earlier_version_forgets_masters_in_all_that_is_known() {
        let mut memory = memory();
        let saved = saved(None);
        let mut state = decode_earlier_of(&memory);
        state.state.state.state.gone = vec![(vec![b'a'; 40], 7), (vec![b'b'; 40], 6)];
        memory.electorates.gone = gone(&[u64::MAX]);
        let bytes = seal(&encode(WITHOUT_ORIGINS, &state));
        assert_eq!(decode_state(&bytes), Ok((saved, memory)));
    }

    #[test]
    fn a_file_of_the_first_version_is_read_with_caution() {
        let bytes = |stop: Option<StopV1>| {
            let head = Head {
                port: 6379,
                fence_ceiling: 70_000,
                lease_ceiling_boot_ms: 123_456,
                at_boot_ms: 100_000,
                at_unix_ms: 1_763_690_000_000,
                boot: u64::MAX,
                is_always_durable: true,
                was_stepped: false,
                was_replica: false,
            };
            seal(&encode(1, &StateV1 { head, stop }))
        };
        let at = saved(None).at;
        let foreign_until = Instant::from_millis(u64::MAX);
        let nothing_counts_until = Instant::default();
        let expected = Saved { dating: at, foreign_until, nothing_counts_until, ..saved(None) };
        assert_eq!(decode_state(&bytes(None)), Ok((expected, ClusterMemory::default())));
        let stop = StopV1 { is_saved: true, lock_count: 3, hash: 4, since_unix_ms: 5, lease_ms: 6 };
        let stopped = decode_state(&bytes(Some(stop))).unwrap().0.stop.unwrap();
        assert!(!stopped.is_saved, "its sum is not exact");
    }

    #[test]
    fn a_file_cut_off_at_any_length_is_corrupt() {
        let bytes = encode_state(&saved(None), &memory());
        for length in 0..bytes.len() {
            let error = decode_state(&bytes[..length]).unwrap_err();
            assert!(matches!(error, CodecError::Corrupt(_)), "{length}: {error}");
        }
    }

    #[test]
    fn a_file_with_any_bit_flipped_is_corrupt() {
        let bytes = encode_state(&saved(None), &memory());
        for position in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[position / 8] ^= 1 << (position % 8);
            let error = decode_state(&damaged).unwrap_err();
            assert!(matches!(error, CodecError::Corrupt(_)), "bit {position}: {error}");
        }
    }

    #[test]
    fn a_newer_file_is_told_from_a_damaged_one() {
        let bytes = seal(&[STATE_VERSION + 1, 1, 2, 3]);
        let newer = CodecError::Newer { found: STATE_VERSION + 1, known: STATE_VERSION };
        assert_eq!(decode_state(&bytes), Err(newer));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let sealed = [&bytes[..], &crc32fast::hash(&bytes).to_be_bytes()].concat();
            let _ = (decode_state(&bytes), decode_state(&sealed));
            let named = [NAME, &bytes[..]].concat();
            let _ = decode_state(&[&named[..], &crc32fast::hash(&named).to_be_bytes()].concat());
        }
    }
}
