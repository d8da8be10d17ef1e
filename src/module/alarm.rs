//! The alarm: wakes the server at an instant of the node's own clock, also when it is idle.
//!
//! The server's timers run on the wall clock, and a stepped one fires them early or hours late. A
//! timer of the operating system's runs on the clock that leases are counted on. Where there is
//! none (not on Linux), the server's ticks, several a second, are what waiters are served by.

use crate::engine::Instant;

#[cfg(target_os = "linux")]
mod timer {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::OnceLock;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::engine::Instant;
    use crate::module::ffi;

    static TIMER: OnceLock<OwnedFd> = OnceLock::new();

    pub(in crate::module) fn start() -> Result<(), String> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)
            .map_err(|error| format!("the system has no timer: {error}"))?;
        let timer = TIMER.get_or_init(|| timer);
        if ffi::waiting::watch(timer.as_fd()) {
            Ok(())
        } else {
            Err("the server does not watch the timer".to_owned())
        }
    }

    pub(in crate::module) fn set(at: Instant) {
        let millis = at.as_millis().max(1);
        let at =
            Timespec { tv_sec: (millis / 1000) as i64, tv_nsec: (millis % 1000 * 1_000_000) as _ };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Some(timer) = TIMER.get() {
            let once = Itimerspec { it_interval: zero, it_value: at };
            // It fails for arguments that these are not; the tick serves waiters all the same.
            let _ = timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once);
        }
    }

    pub(in crate::module) fn clear() {
        if let Some(timer) = TIMER.get() {
            let mut rung = [0; 8];
            // Nothing to read: it was cleared already.
            let _ = rustix::io::read(timer, &mut rung);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use crate::engine::Instant;

    pub(in crate::module) fn start() -> Result<(), String> {
        Ok(())
    }

    pub(in crate::module) fn set(_at: Instant) {}

    pub(in crate::module) fn clear() {}
}

/// Makes the alarm, and lets the server call [`super::waiters::rang`] when it goes off.
///
/// # Errors
/// Why that is not possible.
pub(super) fn start() -> Result<(), String> {
    timer::start()
}

/// Lets it go off at `at`, in place of what was set before.
pub(super) fn set(at: Instant) {
    timer::set(at);
}

/// Notes that it has been heard.
pub(super) fn clear() {
    timer::clear();
}
