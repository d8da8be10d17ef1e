//! A machine's monotonic clock: its rate is slightly off, and changes now and then.
//!
//! True time is tokio's, which stands still until every task waits. In the simulation, only the
//! judge reads it.

use std::time::Duration;

use tokio::time::Instant;

const MILLION: i64 = 1_000_000;

/// A clock that is never stepped, and counts from its own start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    since: Instant,
    then: Duration,
    /// How much faster than true time it runs, in millionths.
    fast_ppm: i64,
}

impl Clock {
    pub(crate) fn new(then: Duration, fast_ppm: i64) -> Clock {
        Clock { since: Instant::now(), then, fast_ppm }
    }

    pub(crate) fn now(&self) -> Duration {
        self.then + self.count(self.since.elapsed())
    }

    /// Starts anew, as on a machine that has just been switched on.
    pub(crate) fn restart(&mut self) {
        *self = Clock::new(Duration::from_millis(40), self.fast_ppm);
    }

    /// Continues from here at another rate.
    pub(crate) fn set_rate(&mut self, fast_ppm: i64) {
        *self = Clock::new(self.now(), fast_ppm);
    }

    /// The time that the clock counts in this true time.
    fn count(&self, length: Duration) -> Duration {
        scale(length, MILLION + self.fast_ppm, MILLION)
    }

    /// The true time in which the clock counts this much.
    pub(crate) fn true_length(&self, counted: Duration) -> Duration {
        scale(counted, MILLION, MILLION + self.fast_ppm)
    }
}

fn scale(length: Duration, by: i64, divisor: i64) -> Duration {
    let [by, divisor] = [by, divisor].map(|part| u128::try_from(part).expect("a clock runs"));
    let nanos = length.as_nanos() * by / divisor;
    Duration::from_nanos(u64::try_from(nanos).expect("no simulation is that long"))
}
