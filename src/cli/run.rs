//! `lockmod run`: a command that runs only while a lock is held.
//!
//! The one promise to keep: when the lock is lost, the command and everything in its process group
//! are gone before the lease ends. So the command leads a group of its own; the loss is told some
//! time before the end, TERM is sent at once, and KILL while there is still time.

use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, sleep_until};

use super::args::Run;
use super::signals::{self, Signals};
use super::waiting::acquire;
use super::{Failure, own_label};
use crate::client::{Guard, Lost};

/// TERM is sent this part of the ttl before the validity ends, at most [`GRACE_MAX`] before.
const GRACE_DIVISOR: u32 = 4;
const GRACE_MAX: Duration = Duration::from_secs(10);
/// KILL is sent this part of that grace before the validity ends.
const KILL_DIVISOR: u32 = 5;
/// How often a dying process group is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub(super) async fn run(args: Run) -> Result<u8, Failure> {
    let grace = (args.ttl / GRACE_DIVISOR).min(GRACE_MAX);
    let label = args.label.clone().unwrap_or_else(own_label);
    let locker = args
        .connection
        .builder()
        .ttl(args.ttl)
        .wait(args.wait)
        .label(label)
        .lost_margin(grace)
        .build()?;
    let mut signals = Signals::new()?;
    let guard = match acquire(&locker, &args.name, &mut signals).await {
        Ok(guard) => guard?,
        Err(signal) => {
            locker.settle().await;
            return Ok(signals::code(signal));
        }
    };
    let mut child = match spawn(&args, &guard) {
        Ok(child) => child,
        Err(error) => {
            drop(guard.release().await);
            let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            let command = args.command[0].to_string_lossy();
            return Err(Failure::new(code, format!("{command}: {error}")));
        }
    };
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let ended = tokio::select! {
        biased;
        ended = attend(&mut child, group, &mut signals) => Ok(ended?),
        lost = guard.lost() => Err(lost),
    };
    match ended {
        Ok(status) => {
            if let Err(error) = guard.release().await {
                eprintln!("lockmod: {error}");
            }
            Ok(code_of(status))
        }
        Err(lost) => {
            // What is left by the clock, and not what should be left: this process may be late.
            let left = if lost == Lost::Removed { grace } else { guard.validity() };
            stop(&mut child, group, left.saturating_sub(grace / KILL_DIVISOR)).await?;
            drop(guard.release().await);
            Err(told(lost))
        }
    }
}

fn told(lost: Lost) -> Failure {
    Failure::new(Failure::LOST, format!("the lock was lost and the command stopped: {lost}"))
}

fn spawn(args: &Run, guard: &Guard) -> std::io::Result<Child> {
    let mut command = std::process::Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("LOCKMOD_FENCE", guard.fence().to_string())
        .env("LOCKMOD_NAME", &args.name)
        .process_group(0);
    let child = Command::from(command).spawn()?;
    if let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // The terminal's keys belong to the command now, and it may read from it.
        let stdin = std::io::stdin();
        if stdin.is_terminal() && rustix::termios::tcsetpgrp(&stdin, group).is_ok() {
            send(Some(group), Signal::CONT);
        }
    }
    Ok(child)
}

/// Waits for the command, passing signals on to it.
async fn attend(
    child: &mut Child,
    group: Option<Pid>,
    signals: &mut Signals,
) -> std::io::Result<ExitStatus> {
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = signals.next() => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    send(group, signal);
                }
            }
        }
    }
}

/// Ends the command and its process group: politely until the deadline, then not.
async fn stop(child: &mut Child, group: Option<Pid>, patience: Duration) -> std::io::Result<()> {
    let deadline = Instant::now() + patience;
    send(group, Signal::TERM);
    // A stopped process would not see it.
    send(group, Signal::CONT);
    tokio::select! {
        status = child.wait() => drop(status?),
        () = sleep_until(deadline) => {}
    }
    // Others in the group may take longer than its leader.
    while group.is_some_and(|group| test_kill_process_group(group).is_ok()) {
        if Instant::now() >= deadline {
            send(group, Signal::KILL);
            child.wait().await?;
            break;
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn send(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // A group that has gone needs no signal.
        let _ = kill_process_group(group, signal);
    }
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signals::code(signal),
        (None, None) => u8::MAX,
    }
}
