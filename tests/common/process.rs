//! Child processes that cannot outlive the test process.
//!
//! `Drop` covers a test that ends or panics. For a test process that is killed, the kernel is asked
//! to kill the child when its parent ends (`PR_SET_PDEATHSIG`). "Parent" means the *thread* that
//! forked, and a test's thread ends before its process does, as do the threads that start several
//! nodes at once: so one thread, which lives as long as the process, forks for all of them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process,
    set_parent_process_death_signal, waitid,
};

use super::wait_for;

type Order = (Command, Sender<io::Result<Child>>);

/// Starts a process that is killed when this one ends, in any way.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    static FORKER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();

    let parent = getpid();
    // SAFETY: between fork and exec only async-signal-safe calls are allowed, and these are two
    // bare system calls and a comparison, without allocation; the error is built from a number.
    unsafe { command.pre_exec(move || die_with(parent)) };
    let forker = FORKER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = channel();
    let orders = forker.lock().expect("no thread panics while holding it").clone();
    orders.send((command, answer)).expect("the forking thread never ends");
    child.recv().expect("the forking thread never ends")
}

fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the line above: then the signal would never come.
    if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(3)) }
}

/// SIGSTOP. The process, a child of this one, has stopped when this returns: the signal alone comes
/// some time after it is sent.
#[track_caller]
pub fn pause(child: Pid) {
    kill_process(child, Signal::STOP).expect("our own child can be signalled");
    let seen = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    wait_for("the process has stopped", || waitid(WaitId::Pid(child), seen).expect("our child"));
}
