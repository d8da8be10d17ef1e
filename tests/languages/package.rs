//! The packages: installed from the sources as users install them, and their own tests.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::common::{module_path, server_binary};
use crate::{installed, root};

/// The packages are built beside what cargo builds, once for all targets that need them.
fn build_folder() -> PathBuf {
    installed("").with_file_name("packages-build")
}

fn done(what: &str, output: &Output) {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
}

/// An interpreter that has the package, as it is in the sources now.
pub(crate) fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let python = installed("python/bin/python");
        let mut install = Command::new(&python);
        install
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-build-isolation", "--force-reinstall"])
            .arg(root().join("packages/python"))
            .env("CARGO_TARGET_DIR", build_folder())
            // What builds it is installed there.
            .env("PATH", path_with(&python));
        done("pip install", &install.output().expect("python is installed"));
        python
    };
    PYTHON.get_or_init(install).clone()
}

/// The search path with the folder of this interpreter in front.
fn path_with(python: &std::path::Path) -> std::ffi::OsString {
    let folder = python.parent().expect("a file in a folder").to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).expect("paths came from there")
}

/// Has the package of Node.js, as it is in the sources now, among the modules of the tests; returns
/// their folder.
pub(crate) fn node() -> PathBuf {
    static NODE: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let project = installed("node");
        let mut install = Command::new("npm");
        install
            .args(["install", "--no-save", "--no-audit", "--no-fund", "--prefer-offline"])
            .arg(root().join("packages/node"))
            .env("CARGO_TARGET_DIR", build_folder())
            .current_dir(&project);
        done("npm install", &install.output().expect("npm is installed"));
        project.join("node_modules")
    };
    NODE.get_or_init(install).clone()
}

/// A command that ends after ten minutes: if a test hangs, what was printed by then is shown.
fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "600"]).arg(program);
    command
}

/// What to run of a package's tests: all in this folder, or only the file that `LOCKMOD_TEST_FILE`
/// names.
fn chosen(folder: &str) -> PathBuf {
    let folder = root().join(folder);
    match std::env::var_os("LOCKMOD_TEST_FILE") {
        Some(file) => folder.join(file),
        None => folder,
    }
}

#[test]
fn the_python_package_passes_its_own_tests() {
    let mut test = limited(python());
    test.args(["-m", "pytest", "-p", "no:cacheprovider", "--durations=5"])
        .arg(chosen("packages/python/tests"))
        .env("LOCKMOD_MODULE", module_path())
        .env("LOCKMOD_REDIS_SERVER", server_binary())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root().join("packages/python"));
    done("pytest", &test.output().expect("python is installed"));
}

#[test]
fn the_node_package_passes_its_own_tests() {
    let mut test = limited("node");
    test.args(["--expose-gc", "--test"])
        .arg(chosen("packages/node/test"))
        .env("NODE_PATH", node())
        .env("LOCKMOD_MODULE", module_path())
        .env("LOCKMOD_REDIS_SERVER", server_binary())
        .current_dir(root().join("packages/node"));
    done("node --test", &test.output().expect("node is installed"));
}
