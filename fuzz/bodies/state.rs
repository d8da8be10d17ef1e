//! A state file's bytes, and what a node concludes from them at a start: never less caution than
//! the file asks for.

use super::input::Input;
use lockmod::codec::state::{decode_state, encode_state};
use lockmod::engine::{
    Clocks, ClusterMemory, Fence, Found, Instant, Inventory, Loaded, Millis, Saved, TTL_MAX,
    UnixTime, recover,
};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut loaded = Loaded {
        port: 7_000,
        clocks: Clocks {
            now: Instant::from_millis(input.number()),
            wall: UnixTime::from_millis(input.number()),
        },
        boot: input.number(),
        lock_count: input.number(),
        inventory: Inventory::default(),
        was_read: true,
        highest: Fence::new(input.number()).unwrap_or_default(),
        is_always_durable: input.byte() % 2 == 1,
        is_replica: false,
        max_ttl: Millis::ZERO,
    };
    let flags = input.byte();
    loaded.is_replica = flags & 1 != 0;
    loaded.was_read = flags & 2 == 0;
    let has_same_data = flags & 4 == 0;
    loaded.max_ttl = Millis::new(input.number());
    let bytes = input.rest();
    if let Ok(read) = decode_state(bytes) {
        judge(read, loaded, has_same_data);
    }
    // Few inputs have the right name and checksum: here every one has.
    let named = [b"lockmod state\n", bytes].concat();
    let sum = crc32(&named).to_be_bytes();
    if let Ok(read) = decode_state(&[named, sum.to_vec()].concat()) {
        judge(read, loaded, has_same_data);
    }
}

fn judge((saved, memory): (Saved, ClusterMemory), mut loaded: Loaded, has_same_data: bool) {
    if let (Some(stopped), true) = (saved.stop, has_same_data) {
        loaded.inventory = stopped.inventory;
    }
    let bytes = encode_state(&saved, &memory);
    let again = decode_state(&bytes).expect("a node reads what it writes");
    assert_eq!(again, (saved, memory));
    let recovery = recover(Found::Present(saved), loaded);
    assert!(recovery.floor >= saved.ceilings.fence && recovery.floor >= loaded.highest);
    let is_durable = saved.is_always_durable && loaded.is_always_durable && loaded.was_read;
    let is_whole = saved.stop.is_some_and(|stopped| stopped.inventory == loaded.inventory);
    let has_no_lease = saved.stop.is_some() && saved.ceilings.lease < saved.at.now;
    let trusts = is_durable || is_whole || has_no_lease;
    let is_same_boot = saved.boot != 0 && saved.boot == loaded.boot;
    let stands = is_same_boot && saved.ceilings.lease >= loaded.clocks.now;
    let is_promoted = saved.was_replica && !loaded.is_replica;
    // No lease is longer, whatever the file says.
    let latest = loaded.clocks.now.after(TTL_MAX.max(loaded.max_ttl));
    if stands && !trusts && !is_promoted {
        // What a crash may have forgotten is waited out to the last millisecond. Only on another
        // machine, with the same boot's id, can the clock be behind that of the file.
        let longest = loaded.clocks.now.after(saved.at.now.until(saved.ceilings.lease));
        let least = saved.ceilings.lease.min(latest).min(longest);
        let until = recovery.quarantine.map(|(until, _)| until);
        assert!(until >= Some(least), "{saved:?} {loaded:?}");
    }
    assert!(recovery.quarantine.is_none_or(|(until, _)| until <= latest));
    for found in [Found::Missing, Found::Damaged] {
        let blind = recover(found, loaded);
        let is_first = found == Found::Missing && loaded.lock_count == 0;
        assert!(blind.quarantine.is_some() || is_first);
    }
}

/// The checksum, bit by bit: written again here, so that it is not judged by itself.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}
