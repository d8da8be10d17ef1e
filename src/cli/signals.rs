//! Signals that ask this process to end, so that it can tidy up or pass them on first.

use tokio::signal::unix::{SignalKind, signal};

/// The signals that end a command: TERM, INT, HUP and QUIT.
pub(super) struct Signals {
    kinds: [(i32, tokio::signal::unix::Signal); 4],
}

impl Signals {
    /// Takes the signals over: they do not end this process any more.
    pub(super) fn new() -> std::io::Result<Signals> {
        let kind = |kind: SignalKind| Ok::<_, std::io::Error>((kind.as_raw_value(), signal(kind)?));
        let kinds = [
            kind(SignalKind::terminate())?,
            kind(SignalKind::interrupt())?,
            kind(SignalKind::hangup())?,
            kind(SignalKind::quit())?,
        ];
        Ok(Signals { kinds })
    }

    /// The number of the next signal that comes.
    ///
    /// # Cancellation
    /// No signal is lost.
    pub(super) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|ctx| {
            for (number, signal) in &mut self.kinds {
                if signal.poll_recv(ctx).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// The exit code of a process that a signal ended, as shells have it.
pub(super) fn code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
