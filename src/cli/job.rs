//! The command of `lockmod run` as a job: a process group of its own that has the terminal, and can
//! be stopped and continued like a job of a shell.
//!
//! A stopped job does no work, so its lease need not be renewed: lockmod stops itself with its
//! command, which gives the prompt back. Once it is continued, the command is continued only if the
//! lock is still held.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::signals;
use super::terminal::{self, Terminal, is_orphaned};

/// How often a dying process group is checked.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The pause after a command was refused the terminal permanently: it may ask again at once.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// The signals for changes of children, and for Ctrl-Z.
pub(super) struct Watch {
    children: tokio::signal::unix::Signal,
    stops: tokio::signal::unix::Signal,
}

impl Watch {
    /// Takes the signals over. From here on, Ctrl-Z no longer stops this process directly.
    pub(super) fn new() -> std::io::Result<Watch> {
        Ok(Watch { children: signal(SignalKind::child())?, stops: signals::stops()? })
    }
}

/// A running command.
pub(super) struct Job {
    /// The command, which leads its process group.
    leader: Pid,
    terminal: Option<Terminal>,
    watch: Watch,
    /// Whether this process was asked to stop, and has asked the command.
    is_asked: bool,
}

/// What became of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobState {
    /// It ended, with this exit code.
    Ended(u8),
    /// It was stopped, by this signal.
    Stopped(Signal),
}

impl Job {
    /// Starts the first of two commands that can be started, in a process group of its own. At a
    /// terminal, that group gets the keys.
    ///
    /// # Errors
    /// If neither can be executed.
    pub(super) fn start(
        [mut command, mut other]: [Command; 2],
        watch: Watch,
    ) -> std::io::Result<Job> {
        let child = command.process_group(0).spawn();
        let child = child.or_else(|_| other.process_group(0).spawn())?;
        let leader = Pid::from_raw(child.id().cast_signed());
        let job = Job { leader, terminal: Terminal::open(), watch, is_asked: false };
        // In a pipeline another program, such as a pager, may want the keys; then the command gets
        // them when it asks for them, even if it has already asked. It is not continued here: that
        // would undo a Ctrl-Z.
        let is_alone = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        if let Some(terminal) = &job.terminal
            && is_alone
            && terminal.is_in_foreground(getpgrp())
        {
            terminal.give(job.leader);
        }
        Ok(job)
    }

    /// Waits until the command ends or is stopped. Passes Ctrl-Z on to it, and reaps orphans, whose
    /// parent this process is if it is process 1.
    ///
    /// # Cancellation
    /// No change is lost.
    pub(super) async fn change(&mut self) -> std::io::Result<JobState> {
        loop {
            if let Some(change) = self.reap(WaitPidFlag::WUNTRACED)? {
                return Ok(change);
            }
            tokio::select! {
                _ = self.watch.children.recv() => {}
                // The system also drops it if no process could continue the group.
                _ = self.watch.stops.recv() => if !is_orphaned() {
                    self.is_asked = true;
                    self.send(Signal::SIGTSTP);
                },
            }
        }
    }

    /// Checks all children that have changed.
    fn reap(&self, options: WaitPidFlag) -> std::io::Result<Option<JobState>> {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | options)) {
                Ok(WaitStatus::StillAlive) => return Ok(None),
                Ok(status) if status.pid() == Some(self.leader) => {
                    if let Some(change) = change_of(status) {
                        return Ok(Some(change));
                    }
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes on a signal that asks the command to end. A stopped command receives it too.
    pub(super) fn pass_on(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            self.send(signal);
            self.send(Signal::SIGCONT);
        }
    }

    /// The command was stopped: stops this process too, and the others of the shell's job. Returns
    /// when they are continued, or at once if no process could continue them; then call
    /// [`Job::resume`]. Without a terminal, it stops only this process, if it was asked to stop.
    /// Returns `false` if the command should stay stopped: another process has stopped it, and will
    /// continue it.
    pub(super) async fn suspend(&mut self, by: Signal) -> bool {
        let is_asked = std::mem::take(&mut self.is_asked);
        let Some(terminal) = &self.terminal else {
            if is_asked {
                terminal::stop_alone();
            }
            return is_asked;
        };
        if matches!(by, Signal::SIGTTIN | Signal::SIGTTOU) {
            if terminal.is_in_foreground(getpgrp()) || terminal.is_in_foreground(self.leader) {
                // It wants the keys, and may have them.
                terminal.give(self.leader);
                return true;
            }
            if is_orphaned() {
                // It will never have them, as when a shell with stopped jobs ends.
                self.send(Signal::SIGHUP);
                sleep(REFUSAL_PAUSE).await;
                return true;
            }
        }
        let had_keys = terminal.is_in_foreground(self.leader);
        terminal::stop();
        if had_keys && terminal.is_in_foreground(getpgrp()) {
            terminal.give(self.leader);
        }
        true
    }

    /// Continues the command after [`Job::suspend`].
    pub(super) fn resume(&self) {
        self.send(Signal::SIGCONT);
    }

    /// Ends the command and its process group: with TERM, and with KILL once `patience` is over.
    pub(super) async fn end(self, patience: Duration) -> std::io::Result<()> {
        let deadline = Instant::now() + patience;
        self.send(Signal::SIGTERM);
        // A stopped process would not receive it.
        self.send(Signal::SIGCONT);
        let (mut is_killed, mut has_ended) = (false, false);
        loop {
            if !has_ended {
                has_ended = self.reap(WaitPidFlag::empty())?.is_some();
            }
            let is_over = has_ended && (is_killed || killpg(self.leader, None).is_err());
            if is_over {
                return Ok(());
            }
            if !is_killed && Instant::now() >= deadline {
                self.send(Signal::SIGKILL);
                is_killed = true;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Lets Ctrl-Z stop this process once the command has ended, and reaps orphans as before.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn rest(&mut self) -> Infallible {
        loop {
            // There may be no child left.
            let _ = self.reap(WaitPidFlag::empty());
            tokio::select! {
                _ = self.watch.children.recv() => {}
                _ = self.watch.stops.recv() => terminal::stop_alone(),
            }
        }
    }

    /// Takes the keys back: a script may have other commands that read them.
    pub(super) fn take_keys_back(&self) {
        if let Some(terminal) = &self.terminal
            && terminal.is_in_foreground(self.leader)
        {
            terminal.give(getpgrp());
        }
    }

    fn send(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = killpg(self.leader, signal);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.take_keys_back();
    }
}

fn change_of(status: WaitStatus) -> Option<JobState> {
    match status {
        WaitStatus::Exited(_, code) => Some(JobState::Ended(u8::try_from(code).unwrap_or(u8::MAX))),
        WaitStatus::Signaled(_, by, _) => Some(JobState::Ended(signals::code(by as i32))),
        WaitStatus::Stopped(_, by) => Some(JobState::Stopped(by)),
        _ => None,
    }
}
