//! The clocks of the node: the boot-time clock for leases, the wall clock for what travels.
//!
//! Leases are timed with a clock that nobody can set, and that keeps running while the machine is
//! suspended: a lease that has ended for everybody else has ended for this node too.

use lazy_static::lazy_static;
use rustix::time::{ClockId, clock_gettime};

use super::ffi;
use crate::codec::BootId;
use crate::engine::{Clocks, Instant, UnixTime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

lazy_static! {
    static ref BOOT: BootId = read_boot_id().unwrap_or(0);
}

/// The present instant, rounded down to a millisecond.
#[inline]
pub(super) fn now() -> Instant {
    let time = clock_gettime(CLOCK);
    Instant::from_millis(time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000)
}

/// The current reading of both clocks. Any thread may call it.
pub(super) fn read() -> Clocks {
    Clocks { now: now(), wall: UnixTime::from_millis(ffi::wall_ms()) }
}

/// Identifies the boot, and so the machine, of [`now`]; zero if the system does not tell.
pub(super) fn boot_id() -> BootId {
    *BOOT
}

/// The first 64 bits of the random id that Linux gives each boot.
fn read_boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    BootId::from_str_radix(&digits, 16).ok()
}
