//! A wall clock that a test can step, with a small preloaded library; the monotonic clock stays
//! true.
//!
//! `wall_clock.c` explains why it is not libfaketime.
//!
//! Only calls that go through libc are faked (`gettimeofday`, `clock_gettime`, `SystemTime`). A raw
//! system call or a direct call of the vDSO, such as rustix makes, sees the true clock.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::preload;

const SOURCE: &str = include_str!("wall_clock.c");

/// The file, in a server's folder, that contains the offset of its wall clock.
pub fn offset_file(dir: &Path) -> PathBuf {
    dir.join("wall-clock-offset")
}

/// Steps the wall clock of the processes that map `file`, to `offset_ms` from the true one.
pub fn set_offset(file: &Path, offset_ms: i64) {
    // Never truncated: it is mapped by a running server. Eight aligned bytes are written at once.
    let file = File::options().create(true).truncate(false).write(true).open(file);
    file.and_then(|file| file.write_all_at(&offset_ms.to_ne_bytes(), 0)).expect("folder is ours");
}

/// The environment that gives a process the wall clock of `file`.
pub fn wall_clock_env(file: &Path) -> [(&'static str, PathBuf); 2] {
    [("LD_PRELOAD", library()), ("LOCKMOD_WALL_CLOCK", file.to_owned())]
}

fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| preload::compile("wall_clock", SOURCE)).clone()
}
