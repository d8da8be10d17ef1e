//! A command that ends when lockmod is killed.
//!
//! If `lockmod run` ends without passing the signal on, above all by KILL, the command would go on
//! working under a lease that is no longer renewed; and the servers of `lockmod nodes` would run on
//! forever. So the kernel then sends them TERM. A process can request this only for itself: lockmod
//! starts itself, the new process makes the request, and then becomes the command.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sys::signal::Signal::SIGTERM;
use nix::unistd::{Pid, getppid};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::failure::Failure;
use super::signals;

/// This program's name while it is about to become a command.
const NAME: &str = "lockmod-run";
/// Where this program finds its own file.
const SELF: &str = "/proc/self/exe";
/// Where programs are searched for if `PATH` is not set.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// The command that is tied to this process.
pub(super) fn tied(program: impl AsRef<OsStr>, arguments: &[OsString]) -> Command {
    let mut command = Command::new(SELF);
    command.arg0(NAME).arg(std::process::id().to_string()).arg(program).args(arguments);
    command
}

/// Searches for a program as a shell does, before anything is started.
///
/// # Errors
/// Why it cannot be executed.
pub(super) fn find(program: &OsStr) -> io::Result<()> {
    if program.as_encoded_bytes().contains(&b'/') {
        return is_executable(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let mut found = Err(Errno::NOENT.into());
    for folder in std::env::split_paths(&path) {
        match is_executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found = Err(error),
            Err(_) => {}
        }
    }
    found
}

fn is_executable(file: &Path) -> io::Result<()> {
    access(file, Access::EXEC_OK)?;
    if file.is_dir() { Err(Errno::ACCESS.into()) } else { Ok(()) }
}

/// Becomes the command, if this process was started for that; the exit code if it cannot.
pub(super) fn become_command() -> Option<ExitCode> {
    let mut words = std::env::args_os();
    words.next().filter(|name| name == NAME)?;
    let parent = words.next()?.to_str()?.parse().ok()?;
    let program = words.next()?;
    #[cfg(target_os = "linux")]
    // If this fails, the command behaves as it would without lockmod.
    let _ = nix::sys::prctl::set_pdeathsig(SIGTERM);
    if getppid() != Pid::from_raw(parent) {
        // The parent was killed before this request.
        return Some(ExitCode::from(signals::code(SIGTERM as i32)));
    }
    let error = Command::new(&program).args(words).exec();
    let failure = not_started(&program, &error);
    failure.tell(false);
    Some(ExitCode::from(failure.code))
}

/// The error for a command that cannot be executed.
pub(super) fn not_started(program: &OsStr, error: &io::Error) -> Failure {
    let is_found = find(program).is_ok();
    let program = program.to_string_lossy();
    match error.kind() {
        // The file exists, but not the interpreter that its first line names.
        io::ErrorKind::NotFound if is_found => {
            let text = format!("{program}: the interpreter that it names behind #! was not found");
            Failure::new(Failure::NOT_EXECUTABLE, text)
        }
        io::ErrorKind::NotFound => {
            Failure::new(Failure::NOT_FOUND, format!("{program}: command not found"))
        }
        _ => Failure::new(Failure::NOT_EXECUTABLE, format!("{program}: {error}")),
    }
}
