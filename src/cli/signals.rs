//! Signals that ask this process to end or to stop, so that it can tidy up or pass them on first.

use std::task::Poll;

use nix::sys::signal::Signal::{SIGTSTP, SIGXCPU};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a process and that others send: TERM, INT, HUP, QUIT, USR1, USR2, ALRM
/// and XCPU. Batch systems send the latter ones before a job's time is over.
pub(super) struct Signals {
    kinds: Vec<(i32, Signal)>,
}

impl Signals {
    /// Takes the signals over: they do not end this process any more. Those that are ignored stay
    /// ignored, as `nohup` wants HUP to be.
    pub(super) fn new() -> std::io::Result<Signals> {
        let kinds = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::alarm(),
            SignalKind::from_raw(SIGXCPU as i32),
        ];
        let ignored = ignored();
        let wanted = kinds.into_iter().map(|kind| (kind.as_raw_value(), kind));
        let wanted = wanted.filter(|(number, _)| ignored >> (number - 1) & 1 == 0);
        let kinds = wanted.map(|(number, kind)| Ok((number, signal(kind)?)));
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

/// The signals of Ctrl-Z. From here on they do not stop this process by themselves.
pub(super) fn stops() -> std::io::Result<Signal> {
    signal(SignalKind::from_raw(SIGTSTP as i32))
}

/// The signals that this process ignores, as bits; none where the system does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The exit code of a process that a signal ended, as shells have it.
pub(super) fn code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
