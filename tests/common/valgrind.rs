//! Servers under valgrind: `LOCKMOD_VALGRIND=1`, or `make valgrind`.
//!
//! memcheck watches every memory access of the server and the module in it, and finds memory that
//! is unreachable at the end. Debian's server takes its memory from jemalloc as a library, whose
//! `malloc` is replaced by memcheck's. Complaints about Redis itself or the standard library are
//! suppressed in `valgrind.supp` next to this file, each with its reason.
//!
//! With `--quiet` only complaints are written: a report that is not empty fails the test.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::server_binary;

const SUPPRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/valgrind.supp");

/// Whether servers are run under valgrind.
pub(super) fn is_on() -> bool {
    env::var_os("LOCKMOD_VALGRIND").is_some_and(|value| value != "0")
}

/// The command that starts the server binary, with its reports in `dir`.
pub(super) fn server_command(dir: &Path) -> Command {
    if !is_on() {
        return Command::new(server_binary());
    }
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=memcheck",
        "--quiet",
        "--error-exitcode=99",
        "--num-callers=40",
        "--keep-debuginfo=yes",
    ]);
    command.args(["--leak-check=full", "--show-leak-kinds=definite"]);
    command.args(["--errors-for-leak-kinds=definite", "--soname-synonyms=somalloc=libjemalloc*"]);
    command.arg(format!("--suppressions={SUPPRESSIONS}"));
    if env::var_os("LOCKMOD_VALGRIND_SUPPRESSIONS").is_some() {
        command.arg("--gen-suppressions=all");
    }
    command.arg(format!("--log-file={}", dir.join("valgrind.%p.txt").display()));
    command.arg(server_binary());
    command
}

/// All complaints of memcheck about a server with this folder.
pub(super) fn complaints(dir: &Path) -> String {
    let Ok(entries) = fs::read_dir(dir) else { return String::new() };
    let mut all = String::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("valgrind.") && name.ends_with(".txt") {
            all += &String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default());
        }
    }
    all
}
