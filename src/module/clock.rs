//! The clocks of the node: the boot-time clock for leases, the wall clock for data that travels.
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

/// Identifies the boot, and so the machine, of [`now`], and a namespace that sets its clock ahead
/// or back; zero if unknown.
pub(super) fn boot_id() -> BootId {
    *BOOT
}

fn read_boot_id() -> Option<BootId> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Kernels before 5.6 have no namespaces of time, and no such file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Some(first_bits(&boot)? ^ offset_bits(&offsets))
}

/// The first 64 bits of the random id that Linux gives each boot.
fn first_bits(boot: &str) -> Option<u64> {
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).ok()
}

/// How far a namespace sets the boot-time clock ahead, as bits; zero if it does not. In the same
/// boot, that is another clock.
fn offset_bits(offsets: &str) -> u64 {
    let line = offsets.lines().find_map(|line| line.trim_start().strip_prefix("boottime"));
    let numbers = line.unwrap_or_default().split_whitespace().map(str::parse);
    numbers.fold(0, |bits: u64, number: Result<i64, _>| {
        bits.rotate_left(32) ^ number.unwrap_or_default() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_time_clock_with_an_offset_is_another_clock() {
        let boot = "a9c37b8e-0c1f-4a57-9f4e-0123456789ab\n";
        assert_eq!(first_bits(boot), Some(0xa9c3_7b8e_0c1f_4a57));
        assert_eq!(first_bits(""), None);
        let offset = |text: &str| offset_bits(&format!("monotonic           9         9\n{text}"));
        assert_eq!(offset("boottime            0         0\n"), 0);
        assert_eq!(offset(""), 0);
        let all = [(3600, 0), (-3600, 0), (3600, 1), (3601, 0), (1, 3600)];
        let bits = all.map(|(s, ns)| offset(&format!("boottime      {s}         {ns}\n")));
        for (index, one) in bits.iter().enumerate() {
            assert!(*one != 0 && !bits[..index].contains(one), "{:?}", all[index]);
        }
    }
}
