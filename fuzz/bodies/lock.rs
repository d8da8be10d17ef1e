//! A lock's bytes, from a disk or a RESTORE: refused, or a sound lock that survives its bytes.

use super::input::Input;
use lockmod::codec::{decode_lock, encode_lock};
use lockmod::engine::{Clocks, Instant, Lease, Lock, UnixTime};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let clocks = Clocks {
        now: Instant::from_millis(input.number()),
        wall: UnixTime::from_millis(input.number()),
    };
    let boot = input.number();
    let Ok(loaded) = decode_lock(input.rest(), clocks, boot) else { return };
    let leases = leases(&loaded.lock);
    for lease in &leases {
        assert!(lease.fence <= loaded.lock.counter());
        assert!(!lease.token.as_bytes().is_empty());
        assert!(leases.len() == 1 || lease.mode.is_shared());
        assert!(lease.ends_at <= loaded.lock.until());
    }
    // What a node with this lock writes, it reads as the same lock in the same boot.
    let boot = boot.max(1);
    let bytes = encode_lock(&loaded.lock, loaded.floor, clocks, boot);
    let again = decode_lock(&bytes, clocks, boot).expect("a node reads what it writes");
    assert_eq!(again.floor, loaded.floor);
    assert_eq!(again.lock.counter(), loaded.lock.counter());
    assert_eq!(self::leases(&again.lock), leases);
    assert_eq!(encode_lock(&again.lock, loaded.floor, clocks, boot), bytes);
    // In another boot it never lasts longer than it did here.
    let elsewhere = decode_lock(&bytes, clocks, boot ^ 1).expect("a node reads what it writes");
    for (there, here) in self::leases(&elsewhere.lock).iter().zip(&leases) {
        assert_eq!(there.token, here.token);
        assert!(clocks.now.until(there.ends_at) <= clocks.now.until(here.ends_at));
    }
}

/// In the order of their tokens.
fn leases(lock: &Lock) -> Vec<Lease<'_>> {
    let mut leases: Vec<_> = lock.written_leases().collect();
    leases.sort_by_key(|lease| lease.token.as_bytes());
    leases
}
