//! A disk that a test can watch and fill, by a small preloaded library (`disk.c`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::preload;

const SOURCE: &str = include_str!("disk.c");

/// The environment that gives a process the disk of the folder `dir`.
pub fn disk_env(dir: &Path) -> [(&'static str, PathBuf); 3] {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| preload::compile("disk", SOURCE)).clone();
    [
        ("LD_PRELOAD", library),
        ("LOCKMOD_DISK_LOG", log_file(dir)),
        ("LOCKMOD_DISK_FULL", full_file(dir)),
    ]
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("disk-log")
}

fn full_file(dir: &Path) -> PathBuf {
    dir.join("disk-is-full")
}

/// What has happened on the disk since the last call, by kind and file name.
pub fn take_calls(dir: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(log_file(dir)).unwrap_or_default();
    let _ = fs::remove_file(log_file(dir));
    let call = |line: &str| {
        let (kind, path) = line.split_once(' ')?;
        let name = Path::new(path).file_name()?.to_string_lossy().into_owned();
        Some((kind.to_owned(), name))
    };
    text.lines().filter_map(call).collect()
}

/// Fills the disk, or makes room.
pub fn set_full(dir: &Path, is_full: bool) {
    if is_full {
        fs::write(full_file(dir), "").expect("the folder is ours");
    } else {
        fs::remove_file(full_file(dir)).expect("it was full");
    }
}
