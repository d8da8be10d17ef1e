//! The clocks of the node: the boot-time clock for leases, the wall clock for what travels.
//!
//! Leases are counted on a clock that no one can set, and that goes on while the machine is
//! suspended: a lease that ended for everybody else ends for this node too.

use lazy_static::lazy_static;
use rustix::time::{ClockId, clock_gettime};

use super::ffi::{self, Guarded};
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

/// Both clocks at the present instant, from any thread.
pub(super) fn read() -> Clocks {
    Clocks { now: now(), wall: UnixTime::from_millis(ffi::wall_ms()) }
}

/// Both clocks at the present instant.
pub(super) fn clocks() -> Clocks {
    at(now())
}

/// Both clocks at `now`, the present instant.
///
/// The wall clock is read once a millisecond at most.
pub(super) fn at(now: Instant) -> Clocks {
    READ.with(|read| {
        if read.last.now != now {
            read.last = Clocks { now, wall: UnixTime::from_millis(ffi::wall_ms()) };
            let steady = *read.steady.get_or_insert(read.last);
            if read.last.are_stepped_since(steady) {
                read.steady = Some(read.last);
                read.is_stepped = true;
            }
        }
        read.last
    })
}

/// Whether a reading has shown that the wall clock was stepped, since this was asked last.
pub(super) fn take_step() -> bool {
    READ.with(|read| std::mem::take(&mut read.is_stepped))
}

static READ: Guarded<Readings> = Guarded::new(Readings {
    last: Clocks { now: Instant::from_millis(0), wall: UnixTime::from_millis(0) },
    steady: None,
    is_stepped: false,
});

/// What has been read of the clocks.
struct Readings {
    last: Clocks,
    /// The first reading since the wall clock was stepped last.
    steady: Option<Clocks>,
    is_stepped: bool,
}

/// Which boot of which machine [`now`] belongs to; zero where the system does not tell.
pub(super) fn boot_id() -> BootId {
    *BOOT
}

/// The first 64 bits of the random id that Linux gives each boot.
fn read_boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    BootId::from_str_radix(&digits, 16).ok()
}
