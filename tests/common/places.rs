//! Where the server and the module under test are.
//!
//! `cargo test` puts the cdylib next to the test executables (`target/<profile>/deps`) and links it
//! one folder up; which of the two exists depends on the cargo command. So both are checked and the
//! newer one is used: a stale leftover never shadows the current build.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const MODULE_FILE: &str = "liblockmod.so";

/// The module's shared object, as an absolute path.
///
/// # Panics
/// If there is none: with the places where it was looked for.
pub fn module_path() -> PathBuf {
    if let Some(path) = env::var_os("LOCKMOD_MODULE") {
        let path = PathBuf::from(path);
        return path.canonicalize().unwrap_or_else(|e| panic!("LOCKMOD_MODULE {path:?}: {e}"));
    }
    let exe = env::current_exe().expect("a running program has a path");
    let deps = exe.parent().expect("an executable lies in a folder");
    let folders = [Some(deps), deps.parent()];
    newest_module(folders.into_iter().flatten())
        .unwrap_or_else(|| panic!("no {MODULE_FILE} in {deps:?} or above it: run `cargo build`"))
}

fn newest_module<'a>(folders: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    folders
        .map(|folder| folder.join(MODULE_FILE))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max_by_key(|(modified, _)| *modified)
        .map(|(_, path)| path)
}

/// The server binary under test.
pub fn server_binary() -> PathBuf {
    env::var_os("LOCKMOD_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from)
}

/// The server under test. Ordered by number within one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// `redis` or `valkey`.
    pub name: String,
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl ServerVersion {
    /// Whether this is Redis of at least this version.
    pub fn is_redis_from(&self, major: u32, minor: u32) -> bool {
        self.name == "redis" && (self.major, self.minor) >= (major, minor)
    }

    /// Whether this is Valkey of at least this version.
    pub fn is_valkey_from(&self, major: u32, minor: u32) -> bool {
        self.is_valkey() && (self.major, self.minor) >= (major, minor)
    }

    /// Whether this is Valkey.
    pub fn is_valkey(&self) -> bool {
        self.name == "valkey"
    }

    /// Reads the line that `--version` prints: `Redis server v=7.0.15 sha=...`.
    pub fn parse(line: &str) -> Option<Self> {
        let name = line.split_whitespace().next()?.to_lowercase();
        let number = line.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
        let mut parts = number.split('.').map(|part| part.parse().ok());
        let mut part = || parts.next().flatten();
        Some(Self { name, major: part()?, minor: part()?, patch: part()? })
    }
}

/// The version line of the server binary.
///
/// # Panics
/// If it cannot be run: with what to install.
pub fn server_version() -> ServerVersion {
    let binary = server_binary();
    let output = Command::new(&binary).arg("--version").output().unwrap_or_else(|e| {
        panic!("{binary:?} cannot be run ({e}): run `.ci/install`, or set LOCKMOD_REDIS_SERVER")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ServerVersion::parse(&text).unwrap_or_else(|| panic!("{binary:?} has no version: {text:?}"))
}
