//! The alarm: wakes the server at an instant of the node's own clock, even if it is idle.
//!
//! The server's timers run on the wall clock, so a step fires them early or hours late. The
//! operating system's timer runs on the clock of the leases. Where there is none (not on Linux),
//! waiters are served on the server's ticks, several times a second.

#[cfg(target_os = "linux")]
mod timer {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::engine::Instant;
    use crate::module::ffi::waiting::{Told, watch};

    /// A timer that is never closed.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::module) struct Alarm(&'static OwnedFd);

    impl Alarm {
        /// Creates the alarm. [`Told::rang`] of `T` is called when it goes off.
        ///
        /// # Errors
        /// Why that failed.
        pub(in crate::module) fn new<T: Told>() -> Result<Alarm, String> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)
                .map_err(|error| format!("the system has no timer: {error}"))?;
            // The server watches it until the process ends.
            let timer: &'static OwnedFd = Box::leak(Box::new(timer));
            if watch::<T>(timer.as_fd()) {
                Ok(Alarm(timer))
            } else {
                Err("the server refused to watch the timer".to_owned())
            }
        }

        /// Sets it to go off at `at`, instead of when it was set to before.
        pub(in crate::module) fn set(self, at: Instant) {
            let millis = at.as_millis().max(1);
            let (seconds, nanos) = (millis / 1000, millis % 1000 * 1_000_000);
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let at = Timespec { tv_sec: seconds as i64, tv_nsec: nanos as _ };
            let once = Itimerspec { it_interval: zero, it_value: at };
            // It fails only for invalid arguments; and the tick would still serve waiters.
            let _ = timerfd_settime(self.0, TimerfdTimerFlags::ABSTIME, &once);
        }

        /// Acknowledges that it went off.
        pub(in crate::module) fn clear(self) {
            let mut rung = [0; 8];
            // Nothing to read: it was cleared already.
            let _ = rustix::io::read(self.0, &mut rung);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    use crate::engine::Instant;
    use crate::module::ffi::waiting::Told;

    /// No alarm: waiters are served on ticks.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::module) struct Alarm;

    impl Alarm {
        pub(in crate::module) fn new<T: Told>() -> Result<Alarm, String> {
            Ok(Alarm)
        }

        pub(in crate::module) fn set(self, _at: Instant) {}

        pub(in crate::module) fn clear(self) {}
    }
}

pub(super) use timer::Alarm;
