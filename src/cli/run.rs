//! `lockmod run`: a command that runs only while a lock is held.
//!
//! The one promise to keep: when the lock is lost, the command and everything in its process group
//! are gone before the lease ends. So the command leads a group of its own; the loss is told some
//! time before the end, TERM is sent at once, and KILL while there is still time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::args::Run;
use super::failure::{Failure, warn};
use super::job::{Change, Job, Watch};
use super::signals::Signals;
use super::waiting::acquire;
use crate::client::{Guard, Lost};

/// TERM is sent this part of the ttl before the validity ends, at most [`GRACE_MAX`] before.
const GRACE_DIVISOR: u32 = 4;
const GRACE_MAX: Duration = Duration::from_secs(10);
/// KILL is sent this part of that grace before the validity ends.
const KILL_DIVISOR: u32 = 5;

pub(super) async fn run(args: Run) -> Result<u8, Failure> {
    if args.command[0].is_empty() {
        let text = "the command is empty: is a variable not set?";
        return Err(Failure::new(Failure::USAGE, text));
    }
    let grace = (args.claim.ttl / GRACE_DIVISOR).min(GRACE_MAX);
    let locker = args.claim.builder(args.wait)?.lost_margin(grace).build()?;
    let mut signals = Signals::new()?;
    let guard = acquire(&locker, &args.claim.name, &mut signals).await?;
    let until = Instant::now().checked_add(args.at_least);
    let watch = Watch::new()?;
    // Ctrl-Z may have stopped this process until now.
    if guard.is_lost() {
        let lost = guard.lost().await;
        drop(guard.release().await);
        return Err(Failure::new(Failure::LOST, format!("the lock was lost at once: {lost}")));
    }
    let mut job = match Job::start(command(&args, &guard), watch) {
        Ok(job) => job,
        Err(error) => {
            drop(guard.release().await);
            return Err(not_started(&args, &error));
        }
    };
    match attend(&mut job, &guard, &mut signals).await? {
        Ok(code) => {
            job.take_keys_back();
            hold(&mut job, &guard, until, &mut signals).await;
            if let Err(error) = guard.release().await {
                warn(error, false);
            }
            Ok(code)
        }
        Err(lost) => {
            // What is left by the clock, and not what should be left: this process may be late.
            let left = if lost == Lost::Removed { grace } else { guard.validity() };
            job.end(left.saturating_sub(grace / KILL_DIVISOR)).await?;
            drop(guard.release().await);
            let text = format!("the lock was lost and the command stopped: {lost}");
            Err(Failure::new(Failure::LOST, text))
        }
    }
}

fn command(args: &Run, guard: &Guard) -> Command {
    let mut command = Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("LOCKMOD_FENCE", guard.fence().to_string())
        .env("LOCKMOD_NAME", OsStr::from_bytes(&args.claim.name.0));
    command
}

fn not_started(args: &Run, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Failure::NOT_FOUND,
        _ => Failure::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("{}: {error}", args.command[0].to_string_lossy()))
}

/// Waits for the command's exit code, or for the loss of the lock. Passes signals on.
async fn attend(
    job: &mut Job,
    guard: &Guard,
    signals: &mut Signals,
) -> std::io::Result<Result<u8, Lost>> {
    loop {
        tokio::select! {
            biased;
            change = job.change() => match change? {
                Change::Ended(code) => return Ok(Ok(code)),
                Change::Stopped(by) => {
                    if !job.suspend(by).await {
                        continue;
                    }
                    // The lease was not renewed meanwhile: look before the command goes on.
                    if guard.is_lost() {
                        return Ok(Err(guard.lost().await));
                    }
                    job.resume();
                }
            },
            lost = guard.lost() => return Ok(Err(lost)),
            signal = signals.next() => job.pass_on(signal),
        }
    }
}

/// Keeps the lock after the command has ended: until then, or for ever, unless a signal comes.
async fn hold(job: &mut Job, guard: &Guard, until: Option<Instant>, signals: &mut Signals) {
    let is_over = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = is_over => {}
        _ = signals.next() => {}
        never = job.rest() => match never {},
        lost = guard.lost() => {
            warn(format_args!("the lock was lost after the command ended: {lost}"), false);
        }
    }
}
