//! The `lockmod` command.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::io::{Errno, fcntl_getfd};
use rustix::stdio::{stderr, stdin, stdout};

/// Which of standard input, output and error were closed when the command started.
///
/// This must be checked before the standard library starts: it opens `/dev/null` in place of a
/// closed descriptor, and the token of an acquired lock would be written there without an error.
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[ctor::ctor]
fn look_at_streams() {
    for (is_closed, stream) in IS_CLOSED.iter().zip([stdin(), stdout(), stderr()]) {
        is_closed.store(fcntl_getfd(stream) == Err(Errno::BADF), Relaxed);
    }
}

fn main() -> std::process::ExitCode {
    lockmod::cli::main([0, 1, 2].map(|stream| IS_CLOSED[stream].load(Relaxed)))
}
