//! The alarm: wakes the server at an instant of the node's own clock, also when it is idle.
//!
//! The server's timers run on the wall clock, and a stepped one fires them early or hours late. A
//! timer of the operating system's runs on the clock that leases are counted on. Where there is
//! none (not on Linux), the server's ticks, several a second, are what waiters are served by.

#[cfg(target_os = "linux")]
mod timer {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::engine::Instant;
    use crate::module::ffi::waiting::{Told, watch};

    /// A timer that is kept for good.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::module) struct Alarm(&'static OwnedFd);

    impl Alarm {
        /// Makes the alarm, and lets `T` hear when it goes off.
        ///
        /// # Errors
        /// Why that is not possible.
        pub(in crate::module) fn new<T: Told>() -> Result<Alarm, String> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Boottime, flags)
                .map_err(|error| format!("the system has no timer: {error}"))?;
            // The server watches it until the end.
            let timer: &'static OwnedFd = Box::leak(Box::new(timer));
            if watch::<T>(timer.as_fd()) {
                Ok(Alarm(timer))
            } else {
                Err("the server does not watch the timer".to_owned())
            }
        }

        /// Lets it go off at `at`, in place of what was set before.
        pub(in crate::module) fn set(self, at: Instant) {
            let millis = at.as_millis().max(1);
            let (seconds, nanos) = (millis / 1000, millis % 1000 * 1_000_000);
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let at = Timespec { tv_sec: seconds as i64, tv_nsec: nanos as _ };
            let once = Itimerspec { it_interval: zero, it_value: at };
            // It fails for arguments that these are not; the tick serves waiters all the same.
            let _ = timerfd_settime(self.0, TimerfdTimerFlags::ABSTIME, &once);
        }

        /// Notes that it has been heard.
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

    /// None: ticks have to do.
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
