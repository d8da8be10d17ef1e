//! A lock's bytes, from a disk or a RESTORE: refused, or a sound lock that survives its bytes.

use super::input::Input;
use lockmod::codec::{decode_lock, encode_lock};
use lockmod::engine::{Clocks, Instant, UnixTime};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let clocks = Clocks {
        now: Instant::from_millis(input.number()),
        wall: UnixTime::from_millis(input.number()),
    };
    let boot = input.number();
    let Ok(loaded) = decode_lock(input.rest(), clocks, boot) else { return };
    if let Some(lease) = loaded.lock.written_lease() {
        assert!(lease.fence <= loaded.lock.counter());
        assert!(!lease.token.as_bytes().is_empty());
    }
    // What a node with this lock writes, it reads as the same lock in the same boot.
    let boot = boot.max(1);
    let bytes = encode_lock(&loaded.lock, loaded.floor, clocks, boot);
    let again = decode_lock(&bytes, clocks, boot).expect("a node reads what it writes");
    assert_eq!(again.floor, loaded.floor);
    assert_eq!(again.lock.counter(), loaded.lock.counter());
    assert_eq!(again.lock.written_lease(), loaded.lock.written_lease());
    // In another boot it never lasts longer than it did here.
    let elsewhere = decode_lock(&bytes, clocks, boot ^ 1).expect("a node reads what it writes");
    let end = |lock: &lockmod::engine::Lock| lock.written_lease().map(|lease| lease.ends_at);
    let left = |lock| end(lock).map(|ends_at| clocks.now.until(ends_at));
    assert!(left(&elsewhere.lock) <= left(&again.lock));
}
