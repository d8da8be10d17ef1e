//! Facts: what a master or an append-only file states instead of a ttl.
//!
//! A ttl argument has two forms: what a client asks for (`30000`), and what was decided
//! (`30000@1763690000000.17`: also the lease's absolute end and its fence). The caller must know
//! whether the sender may state facts.

use super::request::number;
use crate::engine::{Clocks, Decided, Fence, Heartbeat, Lock, Millis, Mode, TTL_MAX, UnixTime};

/// Reads a fact: `ttl@end.fence` or `ttl@end.fence.floor`, with an `s` at the end if the lease is a
/// reader's, and then a `?` if it is provisional. `None` if it is not a fact.
pub fn read(bytes: &[u8]) -> Option<Decided> {
    let (bytes, is_provisional) = match bytes {
        [bytes @ .., PROVISIONAL] => (bytes, true),
        bytes => (bytes, false),
    };
    let (bytes, mode) = match bytes {
        [bytes @ .., SHARED] => (bytes, Mode::Shared),
        bytes => (bytes, Mode::Exclusive),
    };
    let at = bytes.iter().position(|&byte| byte == b'@')?;
    // No node grants a longer lease, whatever a fact states.
    let ttl = Millis::new(number(&bytes[..at])?).min(TTL_MAX);
    let mut facts = bytes[at + 1..].split(|&byte| byte == b'.').map(number);
    let ends_at = UnixTime::from_millis(facts.next()??);
    let fence = Fence::new(facts.next()??)?;
    let floor = match facts.next() {
        Some(floor) => Fence::new(floor?)?,
        None => Fence::ZERO,
    };
    let decided = Decided { ttl, ends_at, fence, floor, mode, is_provisional };
    if facts.next().is_some() { None } else { Some(decided) }
}

/// Marks a fact about a reader's lease.
const SHARED: u8 = b's';
/// Marks a fact about a provisional lease, at its end.
const PROVISIONAL: u8 = b'?';

/// The marks at the end of a fact about a lease.
pub const fn marks(mode: Mode, is_provisional: bool) -> &'static [u8] {
    match (mode, is_provisional) {
        (Mode::Exclusive, false) => &[],
        (Mode::Exclusive, true) => &[PROVISIONAL],
        (Mode::Shared, false) => &[SHARED],
        (Mode::Shared, true) => &[SHARED, PROVISIONAL],
    }
}

/// The length of the longest marks, in bytes.
pub const MARKS_MAX: usize = 2;

/// `@end.fence`, which turns the ttl argument before it into a fact.
///
/// It is written into `room`.
pub fn suffix(room: &mut [u8], ends_at: UnixTime, fence: Fence) -> &[u8] {
    let (mut end, mut number) = (itoa::Buffer::new(), itoa::Buffer::new());
    let end = end.format(ends_at.as_millis()).as_bytes();
    let number = number.format(fence.get()).as_bytes();
    let (dot, length) = (1 + end.len(), 2 + end.len() + number.len());
    room[0] = b'@';
    room[1..dot].copy_from_slice(end);
    room[dot] = b'.';
    room[dot + 1..length].copy_from_slice(number);
    &room[..length]
}

/// Space for two numbers of 20 digits, an `@` and a dot.
pub const SUFFIX_MAX: usize = 42;

/// What a master sends to its replicas instead of the fence of a `LOCK.FLOOR`:
/// `floor@longest.replicas`.
pub fn heartbeat(floor: Fence, heartbeat: Heartbeat) -> String {
    format!("{floor}@{}.{}", heartbeat.longest.get(), heartbeat.replicas)
}

/// Reads a heartbeat, with the floor. `None` if the bytes are something else. A later build may add
/// to it.
pub fn read_heartbeat(bytes: &[u8]) -> Option<(Fence, Heartbeat)> {
    let at = bytes.iter().position(|&byte| byte == b'@')?;
    let floor = Fence::new(number(&bytes[..at])?)?;
    let mut facts = bytes[at + 1..].split(|&byte| byte == b'.').map(number);
    let longest = Millis::new(facts.next()??).min(TTL_MAX);
    let replicas = u32::try_from(facts.next()??).ok()?;
    Some((floor, Heartbeat { longest, replicas }))
}

/// One `LOCK.ACQUIRE key token fact [LABEL label]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restated {
    /// Empty if the command is about the counter only.
    pub token: Vec<u8>,
    /// The decided lease, instead of a ttl.
    pub fact: Vec<u8>,
    /// May be empty.
    pub label: Vec<u8>,
}

/// The commands that rebuild this lock, of a node with this floor, from nothing: one for each
/// lease, and one for the counter if it is no lease's fence.
pub fn restate(lock: &Lock, floor: Fence, clocks: Clocks) -> Vec<Restated> {
    let fact = |ttl: u64, ends_at, fence, mark: &[u8]| {
        let mut room = [0; SUFFIX_MAX];
        let suffix = suffix(&mut room, ends_at, fence);
        [ttl.to_string().as_bytes(), suffix, b".", floor.to_string().as_bytes(), mark].concat()
    };
    let mut commands = Vec::new();
    if lock.written_leases().all(|lease| lease.fence < lock.counter()) {
        let fact = fact(0, UnixTime::default(), lock.counter(), b"");
        commands.push(Restated { token: Vec::new(), fact, label: Vec::new() });
    }
    for lease in lock.written_leases() {
        let left = clocks.now.until(lease.ends_at).get();
        let mark = marks(lease.mode, lease.is_provisional);
        commands.push(Restated {
            token: lease.token.as_bytes().to_vec(),
            fact: fact(left, clocks.to_wall(lease.ends_at), lease.fence, mark),
            label: lease.label.to_vec(),
        });
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::super::request::{self, Limits};
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { ttl: Millis::new(1_000), token: 64 };

    proptest! {
        #[test]
        fn a_heartbeat_is_read_as_it_was_sent(
            floor in 0..=Fence::MAX.get(), longest in 0..=TTL_MAX.get(), replicas: u32,
        ) {
            let (floor, longest) = (Fence::new(floor).unwrap(), Millis::new(longest));
            let sent = Heartbeat { longest, replicas };
            let text = heartbeat(floor, sent);
            prop_assert_eq!(read_heartbeat(text.as_bytes()), Some((floor, sent)));
            let later = format!("{text}.7");
            // As a later build may send it.
            prop_assert_eq!(read_heartbeat(later.as_bytes()), Some((floor, sent)));
            prop_assert!(request::fence(text.as_bytes()).is_err(), "a client cannot send it");
        }

        #[test]
        fn no_bytes_make_the_reading_of_a_heartbeat_panic(
            bytes in "[0-9]{0,22}@?[0-9]{0,22}[.]?[0-9.x]{0,12}",
        ) {
            let _ = read_heartbeat(bytes.as_bytes());
        }
    }

    #[test]
    fn a_fact_is_no_ttl() {
        let fact: &[u8] = b"1000@1763690000000.17";
        assert!(request::acquire(&[b"t", fact], LIMITS).is_err());
        let decided = read(fact).unwrap();
        assert_eq!(decided.ttl, Millis::new(1000));
        assert_eq!(decided.ends_at.as_millis(), 1_763_690_000_000);
        assert_eq!(decided.fence.get(), 17);
    }

    #[test]
    fn no_fact_states_a_longer_lease_than_any_node_grants() {
        let ttl = |fact: String| read(fact.as_bytes()).unwrap().ttl;
        assert_eq!(ttl(format!("{}@6.7", TTL_MAX.get())), TTL_MAX);
        assert_eq!(ttl(format!("{}@6.7", TTL_MAX.get() + 1)), TTL_MAX);
        assert_eq!(ttl(format!("{}@6.7", u64::MAX)), TTL_MAX);
    }

    #[test]
    fn facts_are_read_whole_or_not_at_all() {
        assert_eq!(read(b"5@6.7.8").unwrap().floor.get(), 8);
        assert!(!read(b"5@6.7.8").unwrap().is_provisional);
        for provisional in [&b"5@6.7?"[..], b"5@6.7.8?"] {
            assert!(read(provisional).unwrap().is_provisional);
        }
        let whole = ["5", "5@", "5@6", "5@6.", "@6.7", "5@6.7.", "5@6.7.8.9", "5@-6.7"];
        for bad in whole
            .into_iter()
            .chain(["5@6.7??", "5@6?.7", "5@6.7.?", "?", "5@6.7?s", "5@6.7ss", "s"])
        {
            let bad = bad.as_bytes();
            assert_eq!(read(bad), None, "{}", bad.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn a_suffix_reads_back_as_the_fact_it_states(end: u64, fence in 0..=Fence::MAX.get()) {
            let (ends_at, fence) = (UnixTime::from_millis(end), Fence::new(fence).unwrap());
            let mut room = [0; SUFFIX_MAX];
            let mut bytes = [b"30000", suffix(&mut room, ends_at, fence)].concat();
            let (ttl, floor) = (Millis::new(30_000), Fence::ZERO);
            let length = bytes.len();
            let modes = [Mode::Exclusive, Mode::Shared].into_iter();
            for (mode, is_provisional) in modes.flat_map(|mode| [(mode, false), (mode, true)]) {
                bytes.truncate(length);
                bytes.extend(marks(mode, is_provisional));
                let fact = Decided { ttl, ends_at, fence, floor, mode, is_provisional };
                prop_assert_eq!(read(&bytes), Some(fact));
            }
        }

        #[test]
        fn no_bytes_make_the_reading_panic(bytes in "[0-9@.?s]{0,60}") {
            let _ = read(bytes.as_bytes());
        }
    }
}
