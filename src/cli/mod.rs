//! The `lockmod` command: arguments, what it prints, and its exit codes.
//!
//! It decides nothing about locks: everything goes through the [client](crate::client). Results go
//! to standard output, everything else to standard error, on one line each. `out.rs` prints all of
//! it, which is why the lints below forbid the usual macros.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod cluster;
mod columns;
mod connection;
mod definition;
mod demo;
mod doubts;
mod exporter;
mod failure;
mod generate;
mod hold;
mod job;
mod json;
mod locks;
mod metrics;
mod out;
mod renewals;
mod rows;
mod run;
mod signals;
mod slots;
mod status;
mod terminal;
mod tie;
mod top;
mod values;
mod waiting;

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::error::ErrorKind;
use tokio::runtime::{Builder, Runtime};

use self::args::Command;
use self::failure::Failure;
use self::signals::Signals;

/// More files than the runtime and its signals open.
const RUNTIME_FILES: usize = 10;

/// Runs the command with the arguments of this process.
///
/// `is_closed` says for standard input, output and error whether each was closed at the start,
/// which can no longer be seen once the standard library has begun.
pub fn main(is_closed: [bool; 3]) -> ExitCode {
    out::close(is_closed);
    if let Some(code) = tie::become_command() {
        return code;
    }
    let arguments = match definition::read() {
        Ok(arguments) => arguments,
        Err(error) => return ExitCode::from(not_parsed(&error)),
    };
    let (is_json, is_tls) = (arguments.command.is_json(), arguments.command.is_tls());
    let result = match runtime() {
        Ok(runtime) => runtime.block_on(dispatch(arguments.command)),
        Err(error) => Err(Failure::new(Failure::FAILED, format!("cannot start: {error}"))),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let failure = if is_tls { failure.over_tls() } else { failure };
            failure.tell(is_json);
            ExitCode::from(failure.code)
        }
    }
}

/// The runtime of all commands.
///
/// # Errors
/// If the system has no room for it. Some of its files are opened where a failure is a panic, so
/// this first tries whether as many can be opened.
fn runtime() -> std::io::Result<Runtime> {
    let stdin = std::io::stdin();
    let spare = (0..RUNTIME_FILES).map(|_| stdin.as_fd().try_clone_to_owned());
    drop(spare.collect::<std::io::Result<Vec<_>>>()?);
    Builder::new_current_thread().enable_all().build()
}

/// Prints the requested help, or what is wrong with the arguments. Returns the exit code.
fn not_parsed(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        let Err(unprinted) = out::print(|| error.print()) else { return 0 };
        let failure = Failure::from(unprinted);
        failure.tell(false);
        return failure.code;
    }
    let mut arguments = std::env::args_os().take_while(|argument| argument != "--");
    if arguments.any(|argument| argument == "--json") {
        let text = definition::misplaced_json(error).unwrap_or_else(|| in_short(error));
        Failure::usage(text).tell(true);
    } else {
        // In the form of every other error, and escaped like them.
        let text = error.render().to_string();
        let text =
            text.strip_prefix("error: ").map_or(text.clone(), |rest| format!("lockmod: {rest}"));
        text.trim_end().lines().for_each(out::complain);
        if error.kind() == ErrorKind::UnknownArgument && is_run_without_dashes() {
            out::complain("  tip: write the command behind --: lockmod run NAME -- CMD");
        }
    }
    Failure::FAILED
}

/// Whether a command to run was given without `--`.
fn is_run_without_dashes() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().is_some_and(|first| first == "run") && !arguments.any(|next| next == "--")
}

/// What is wrong with the arguments, without the help that people see with it.
fn in_short(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command is given: see --help".to_owned();
    }
    let text = error.render().to_string();
    let end = text.find("\n\n").unwrap_or(text.len());
    let lines = text[..end].trim_start_matches("error: ").lines().map(str::trim);
    lines.collect::<Vec<_>>().join(" ")
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
            // When interrupted, it ends its nodes too.
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
