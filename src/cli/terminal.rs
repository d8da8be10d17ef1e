//! The controlling terminal, and which process group of a session may read its keys.
//!
//! A terminal has one process group in the foreground: this group reads the keys, and gets Ctrl-C
//! and Ctrl-Z. `lockmod run` puts its command there, as a shell does, and later returns there
//! itself.
//!
//! A process group or a session has no number here, and reads as 0, if its leader is outside this
//! PID namespace, as after `unshare --pid` and in some containers.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp};

pub(super) struct Terminal {
    tty: File,
}

impl Terminal {
    /// The terminal of this process's session, if the session has one.
    pub(super) fn open() -> Option<Terminal> {
        Some(Terminal { tty: File::open("/dev/tty").ok()? })
    }

    /// Whether this process group is in the foreground.
    pub(super) fn is_in_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Puts this process group into the foreground.
    pub(super) fn give(&self, group: Pid) {
        // A process that does this from the background is stopped by TTOU, unless it blocks it.
        let mut ttou = SigSet::empty();
        ttou.add(Signal::SIGTTOU);
        let is_blocked = ttou.thread_block().is_ok();
        // If the terminal or the group is gone, there is nothing to do.
        let _ = tcsetpgrp(&self.tty, group);
        if is_blocked {
            let _ = ttou.thread_unblock();
        }
    }
}

/// Stops this process group, as Ctrl-Z stops groups that do not catch it. Returns when the shell
/// continues it, or at once if no process could continue it.
pub(super) fn stop() {
    stop_these(Pid::from_raw(0));
}

/// The same for this process alone: the terminal sends Ctrl-Z to every process that should stop.
pub(super) fn stop_alone() {
    stop_these(getpid());
}

fn stop_these(processes: Pid) {
    if !is_orphaned() {
        // STOP, not TSTP: this process handles TSTP as the user's request.
        let _ = kill(processes, Signal::SIGSTOP);
    }
}

/// Whether no process would continue this process group once it is stopped: no process of the same
/// session outside the group is the parent of one in it. A shell with job control is such a parent.
pub(super) fn is_orphaned() -> bool {
    let (group, session) = (getpgrp(), getsid(None));
    let mut process = Some(getppid());
    // No further than this namespace.
    while let Some(parent) = process.filter(|parent| parent.as_raw() != 0) {
        match getpgid(Some(parent)) {
            // A script, or `make`: its own parent decides.
            Ok(its_group) if its_group == group => process = parent_of(parent),
            Ok(_) => return session.is_err() || getsid(Some(parent)) != session,
            Err(_) => return true,
        }
    }
    true
}

fn parent_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses, and may have blanks and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    Some(Pid::from_raw(fields.split_whitespace().nth(1)?.parse().ok()?))
}
