//! `lockmod run`: a command that runs only while a lock is held.
//!
//! It promises that when the lock is lost, the command and everything in its process group are gone
//! before the lease ends. So the command leads a group of its own, and the loss is reported some
//! time before the end: TERM is sent at once, and KILL while there is still time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::args::Run;
use super::failure::{Failure, warn};
use super::job::{Job, JobState, Watch};
use super::out::Progress;
use super::renewals::RenewalWatch;
use super::signals::{self, Signals};
use super::waiting::acquire;
use super::{doubts, tie};
use crate::client::{Guard, Length, Lost};

/// TERM is sent this part of the ttl before the validity ends, at most [`GRACE_MAX`] before.
const GRACE_DIVISOR: u32 = 4;
const GRACE_MAX: Duration = Duration::from_secs(10);
/// KILL is sent this part of that grace before the validity ends.
const KILL_DIVISOR: u32 = 5;

pub(super) async fn run(args: Run) -> Result<u8, Failure> {
    if args.command[0].is_empty() {
        let text = "the command is empty: is a variable not set?";
        return Err(Failure::usage(text));
    }
    // Before the wait for the lock, and again after it, because it may take long.
    if let Err(error) = tie::find(&args.command[0]) {
        return Err(tie::not_started(&args.command[0], &error));
    }
    let grace = (args.claim.ttl.length / GRACE_DIVISOR).min(GRACE_MAX);
    let locker = args.claim.builder(args.wait)?.lost_margin(grace).build()?;
    let mut signals = Signals::new()?;
    let guard = acquire(&locker, (&args.claim, args.wait), &mut signals, false).await?;
    let mistakes = doubts::tell_mistakes(&locker, false);
    let until = Instant::now().checked_add(args.at_least);
    let watch = Watch::new()?;
    // Ctrl-Z may have stopped this process until now.
    if guard.is_lost() {
        return Err(lost((&args, " at once"), guard.lost().await, guard).await);
    }
    let mut job = match start(&args, &guard, watch) {
        Ok(job) => job,
        Err(error) => {
            drop(guard.release_within(doubts::RESTART).await);
            return Err(tie::not_started(&args.command[0], &error));
        }
    };
    match attend(&mut job, &guard, &args, &mut signals).await? {
        Ok(code) => {
            job.take_keys_back();
            let signal = hold((&args, &mut job), &guard, until, &mut signals).await;
            let released = guard.release_within(doubts::RESTART).await;
            let doubt = doubts::of_end(&locker, args.claim.lease(), released).await;
            drop(mistakes.await);
            doubt.iter().for_each(|text| warn(text, false));
            signal.map_or(Ok(code), |signal| Err(cut_short(signal, code)))
        }
        Err(lost) => Err(stop((&args, job), guard, lost, grace).await?),
    }
}

/// Ends the command, which has lost its lock, while the lease still stands.
async fn stop(
    (args, job): (&Run, Job),
    guard: Guard,
    lost: Lost,
    grace: Duration,
) -> Result<Failure, Failure> {
    // By the clock, not by the plan: this process may be late.
    let left = if lost == Lost::Removed { grace } else { guard.validity() };
    job.end(left.saturating_sub(grace / KILL_DIVISOR)).await?;
    Ok(self::lost((args, " and the command stopped"), lost, guard).await)
}

/// Releases what may be left of a lost lease. Returns the failure, with why the lock was lost.
async fn lost((args, when): (&Run, &str), lost: Lost, guard: Guard) -> Failure {
    let failure = Failure::lost_while_held((&args.claim.name, when), lost, &guard);
    drop(guard.release().await);
    failure
}

/// Starts the command, tied to this process if that is possible.
fn start(args: &Run, guard: &Guard, watch: Watch) -> std::io::Result<Job> {
    tie::find(&args.command[0])?;
    let mut plain = Command::new(&args.command[0]);
    plain.args(&args.command[1..]);
    let commands = [tie::tied(&args.command[0], &args.command[1..]), plain].map(|mut command| {
        command
            .env("LOCKMOD_FENCE", guard.fence().to_string())
            .env("LOCKMOD_NAME", OsStr::from_bytes(&args.claim.name.0));
        command
    });
    Job::start(commands, watch)
}

/// The failure if a signal came after the command had ended, but before --at-least was over.
fn cut_short(signal: i32, code: u8) -> Failure {
    let text = format!(
        "signal {signal} came before --at-least was over; the command had ended with exit code \
         {code}"
    );
    Failure::new(signals::code(signal), text)
}

/// Waits for the command's exit code, or for the loss of the lock. Passes signals on.
async fn attend(
    job: &mut Job,
    guard: &Guard,
    args: &Run,
    signals: &mut Signals,
) -> std::io::Result<Result<u8, Lost>> {
    let end = "the command is ended";
    let mut renewals = RenewalWatch::new(guard, args.claim.lease(), end, false);
    loop {
        tokio::select! {
            biased;
            change = job.change() => match change? {
                JobState::Ended(code) => return Ok(Ok(code)),
                JobState::Stopped(by) => {
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
            never = renewals.tell() => match never {},
        }
    }
}

/// Keeps the lock after the command has ended: until `until`, or forever. A signal ends this, and
/// is returned.
async fn hold(
    (args, job): (&Run, &mut Job),
    guard: &Guard,
    until: Option<Instant>,
    signals: &mut Signals,
) -> Option<i32> {
    let mut progress = Progress::new();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if let Some(left) = left.filter(|left| !left.is_zero()) {
        progress.show(&format!(
            "the command has ended; --at-least holds the lock for {}",
            Length(left)
        ));
    }
    let is_over = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = is_over => {}
        signal = signals.next() => return Some(signal),
        never = job.rest() => match never {},
        lost = guard.lost() => {
            let name = &args.claim.name;
            let text = format_args!("lock '{name}' was lost after the command ended: {lost}");
            warn(text, false);
        }
    }
    None
}
