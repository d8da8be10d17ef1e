//! Signals that ask this process to end or to stop, so that it can tidy up or pass them on first.

use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that end a process unless it handles them, without those for its own faults. Batch
/// systems and supervisors send some of them before a job's time is over.
const ENDING: [Signal; 15] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGSYS,
    Signal::SIGABRT,
    Signal::SIGTRAP,
];
/// Those that exist only on Linux.
#[cfg(target_os = "linux")]
const ENDING_HERE: [Signal; 2] = [Signal::SIGPWR, Signal::SIGSTKFLT];
#[cfg(not(target_os = "linux"))]
const ENDING_HERE: [Signal; 0] = [];

/// The signals that end a process, taken over.
pub(super) struct Signals {
    kinds: Vec<(i32, Stream)>,
}

impl Signals {
    /// Takes the signals over: they no longer end this process. Those that are ignored stay
    /// ignored, as `nohup` wants HUP to be.
    pub(super) fn new() -> std::io::Result<Signals> {
        let ignored = ignored();
        let numbers = ENDING.into_iter().chain(ENDING_HERE).map(|signal| signal as i32);
        let wanted = numbers.filter(|number| ignored >> (number - 1) & 1 == 0);
        let kinds = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Signals { kinds: kinds.collect::<std::io::Result<_>>()? })
    }

    /// The number of the next signal that comes.
    ///
    /// # Cancellation
    /// No signal is lost.
    pub(super) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|ctx| {
            for (number, signal) in &mut self.kinds {
                if signal.poll_recv(ctx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The signals of Ctrl-Z. From here on, they no longer stop this process directly.
pub(super) fn stops() -> std::io::Result<Stream> {
    signal(SignalKind::from_raw(Signal::SIGTSTP as i32))
}

/// The signals that this process ignores, as bits; none if the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The exit code of a process that a signal ended, as in shells.
pub(super) fn code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
