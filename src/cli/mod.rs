//! The `lockmod` command: arguments, what it prints, and its exit codes.
//!
//! It decides nothing about locks: everything goes through the [client](crate::client). Results go
//! to standard output, everything else to standard error, on one line each.

mod args;
mod cluster;
mod demo;
mod exporter;
mod json;
mod locks;
mod metrics;
mod rows;
mod run;
mod signals;
mod status;
mod top;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Arguments, Command};
use self::signals::Signals;
use crate::client::{AcquireError, BuildError, ExtendError, ReleaseError};

/// Why the command failed: its exit code, and what it says.
#[derive(Debug)]
struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    const CONTENDED: u8 = 120;
    const NO_QUORUM: u8 = 121;
    const LOST: u8 = 122;
    const REFUSED: u8 = 123;
    const USAGE: u8 = 125;

    fn new(code: u8, text: impl ToString) -> Failure {
        Failure { code, text: text.to_string() }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        Failure::new(Failure::USAGE, error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Failure {
        let code = match &error {
            AcquireError::Held(_) => Failure::CONTENDED,
            AcquireError::NoQuorum(_) | AcquireError::TooLate(_) => Failure::NO_QUORUM,
            AcquireError::Refused(_) => Failure::REFUSED,
            AcquireError::BadOption(_) => Failure::USAGE,
        };
        Failure::new(code, error)
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Failure {
        let code = match &error {
            ReleaseError::NotHeld(_) => Failure::LOST,
            ReleaseError::NoQuorum(_) => Failure::NO_QUORUM,
        };
        Failure::new(code, error)
    }
}

impl From<ExtendError> for Failure {
    fn from(error: ExtendError) -> Failure {
        let code = match &error {
            ExtendError::NoQuorum(_) => Failure::NO_QUORUM,
            ExtendError::Lost(_) => Failure::LOST,
            ExtendError::BadOption(_) => Failure::USAGE,
        };
        Failure::new(code, error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Failure::USAGE, error)
    }
}

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing can be done about a standard output that is closed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Failure::USAGE } else { 0 });
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(arguments.command)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("lockmod: {}", failure.text);
            ExitCode::from(failure.code)
        }
    }
}

async fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(run) => return run::run(run).await,
        Command::Acquire(acquire) => locks::acquire(acquire).await?,
        Command::Release(release) => locks::release(release).await?,
        Command::Extend(extend) => locks::extend(extend).await?,
        Command::Fence(fence) => locks::fence(fence).await?,
        Command::Info(info) => locks::info(info).await?,
        Command::List(list) => locks::list(list).await?,
        Command::Status(args) => status::status(args).await?,
        Command::Top(args) => top::top(args).await?,
        Command::Exporter(args) => exporter::exporter(args).await?,
        Command::Nodes(nodes) => cluster::nodes(nodes).await?,
        Command::Demo(demo) => {
            let mut signals = Signals::new()?;
            // Interrupted, it takes its nodes with it.
            tokio::select! {
                told = demo::demo(demo) => told?,
                signal = signals.next() => return Ok(signals::code(signal)),
            }
        }
    }
    Ok(0)
}

/// The label of this process, for those who wait for it.
fn own_label() -> String {
    let host = rustix::system::uname();
    format!("{}:{}", host.nodename().to_string_lossy(), std::process::id())
}
