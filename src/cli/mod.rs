//! The `lockmod` command: arguments, what it prints, and its exit codes.
//!
//! It decides nothing about locks: everything goes through the [client](crate::client). Results go
//! to standard output, everything else to standard error, on one line each. All of it is printed
//! by `out.rs`, which is why the lints below forbid the usual macros.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod cluster;
mod connection;
mod demo;
mod exporter;
mod failure;
mod generate;
mod hold;
mod job;
mod json;
mod locks;
mod metrics;
mod out;
mod rows;
mod run;
mod signals;
mod status;
mod terminal;
mod top;
mod values;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Arguments, Command};
use self::failure::Failure;
use self::signals::Signals;

/// Runs the command with the arguments of this process.
///
/// `is_output_closed` says whether it was started with its standard output closed, which cannot be
/// seen any more once the standard library has begun.
pub fn main(is_output_closed: bool) -> ExitCode {
    if is_output_closed {
        out::close();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return ExitCode::from(not_parsed(&error)),
    };
    let is_json = arguments.command.is_json();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(dispatch(arguments.command)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.tell(is_json);
            ExitCode::from(failure.code)
        }
    }
}

/// Prints the help that was asked for, or what is wrong with the arguments; the exit code.
fn not_parsed(error: &clap::Error) -> u8 {
    let mut arguments = std::env::args_os().take_while(|argument| argument != "--");
    let text = error.render();
    if !error.use_stderr() {
        let printed = out::check().and_then(|()| error.print());
        return printed.map_err(|error| out::failed(&error)).map_or_else(
            |failure| {
                failure.tell(false);
                failure.code
            },
            |()| 0,
        );
    }
    if arguments.any(|argument| argument == "--json") {
        let text = text.to_string();
        let text = text.trim().trim_start_matches("error: ");
        Failure::new(Failure::USAGE, text).tell(true);
    } else {
        // Where standard error is closed, there is nobody left to tell.
        let _ = error.print();
    }
    Failure::USAGE
}

async fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(run) => return run::run(run).await,
        Command::Lock(lock) => hold::hold(lock).await?,
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
        Command::Completions(args) => generate::completions(&args)?,
        Command::Man(args) => generate::man(&args)?,
    }
    Ok(0)
}

/// The label of this process, for those who wait for it.
fn own_label() -> String {
    let host = rustix::system::uname();
    format!("{}:{}", host.nodename().to_string_lossy(), std::process::id())
}
