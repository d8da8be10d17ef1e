//! The `lockmod` command.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the command was started with its standard output closed.
///
/// It must be seen before the standard library begins: that opens `/dev/null` in place of a closed
/// descriptor, and the token of an acquired lock would be written there without an error.
static IS_OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

#[ctor::ctor]
fn look_at_output() {
    let flags = rustix::io::fcntl_getfd(rustix::stdio::stdout());
    IS_OUTPUT_CLOSED.store(flags == Err(rustix::io::Errno::BADF), Ordering::Relaxed);
}

fn main() -> std::process::ExitCode {
    lockmod::cli::main(IS_OUTPUT_CLOSED.load(Ordering::Relaxed))
}
