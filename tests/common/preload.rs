//! Small libraries that a process preloads, compiled when a test first needs one, with the C
//! compiler that Rust itself uses for linking.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source`, and moves the library into place in one step, because test processes run in
/// parallel.
pub fn compile(name: &str, source: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let build = tempfile::tempdir_in(folder).expect("cargo has made the folder");
    let (file, built) = (build.path().join("source.c"), build.path().join("built.so"));
    fs::write(&file, source).expect("the folder is ours");
    let status = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([&built, &file])
        .status()
        .expect("`cc` runs: Rust links with it");
    assert!(status.success(), "{name}.c does not compile");
    let library = folder.join(format!("{name}.so"));
    fs::rename(&built, &library).expect("the folder is ours");
    library
}
