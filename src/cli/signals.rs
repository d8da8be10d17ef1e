//! Signals that ask this process to end or to stop, so that it can tidy up or pass them on first.

use std::future::{Future, poll_fn};
use std::io::IsTerminal;
use std::pin::Pin;
use std::task::Poll;

use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::stdout;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::oneshot::{self, Receiver};

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
    /// Reports once that the reader of standard output has gone, if that counts as PIPE.
    closed: Option<Receiver<()>>,
}

impl Signals {
    /// Takes the signals over: they no longer end this process. Those that are ignored stay
    /// ignored, as `nohup` wants HUP to be.
    pub(super) fn new() -> std::io::Result<Signals> {
        let ignored = ignored();
        let numbers = ENDING.into_iter().chain(ENDING_HERE).map(|signal| signal as i32);
        let wanted = numbers.filter(|number| ignored >> (number - 1) & 1 == 0);
        let kinds = wanted.map(|number| Ok((number, signal(SignalKind::from_raw(number))?)));
        Ok(Signals { kinds: kinds.collect::<std::io::Result<_>>()?, closed: None })
    }

    /// The same, and PIPE as soon as the reader of standard output has gone: a command that prints
    /// only when it is done would learn of it too late.
    pub(super) fn or_closed_pipe(self) -> std::io::Result<Signals> {
        if std::io::stdout().is_terminal() {
            // It sends HUP.
            return Ok(self);
        }
        let (close, closed) = oneshot::channel();
        let watch = move || {
            // Nobody can leave a file: then this waits until the process ends.
            let watched = &mut [PollFd::from_borrowed_fd(stdout(), PollFlags::ERR)];
            while poll(watched, None) == Err(Errno::INTR) {}
            // The command may have ended.
            let _ = close.send(());
        };
        std::thread::Builder::new().name("output".to_owned()).spawn(watch)?;
        Ok(Signals { closed: Some(closed), ..self })
    }

    /// The number of the next signal that comes.
    ///
    /// # Cancellation
    /// No signal is lost.
    pub(super) async fn next(&mut self) -> i32 {
        poll_fn(|ctx| {
            for (number, signal) in &mut self.kinds {
                if signal.poll_recv(ctx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            let is_closed = |closed: &mut Receiver<()>| Pin::new(closed).poll(ctx).is_ready();
            if self.closed.as_mut().is_some_and(is_closed) {
                self.closed = None;
                return Poll::Ready(Signal::SIGPIPE as i32);
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
