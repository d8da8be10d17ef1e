//! What a program builds that depends on the client: it compiles beside the `redis` crate with
//! features of its own, and brings neither the module nor the command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A program that uses lockmod beside an asynchronous client of Redis.
const PROGRAM: &str = include_str!("program.rs");
/// What only the module and the command need.
const NOT_NEEDED: [&str; 5] = ["redis-module", "bindgen", "clap", "ratatui", "hyper"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Writes the program into `folder`. All crates are at hand: this package has them, too.
fn write_program(folder: &Path) {
    let manifest = format!(
        r#"[package]
name = "dependent"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
lockmod = {{ path = {:?}, default-features = false, features = ["client"] }}
redis = {{ version = "1.8", default-features = false, features = ["tokio-comp"] }}
tokio = {{ version = "1", features = ["macros", "rt-multi-thread"] }}
"#,
        root()
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(folder.join("src")).unwrap();
    fs::write(folder.join("src/main.rs"), PROGRAM).unwrap();
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
}

fn cargo(folder: &Path, args: &[&str]) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    // Kept, so that the crates are compiled once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dependent");
    cargo.args(args).arg("--offline").current_dir(folder).env("CARGO_TARGET_DIR", target);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn a_program_beside_the_redis_crate_compiles_and_builds_the_client_alone() {
    let folder = tempfile::tempdir().unwrap();
    write_program(folder.path());
    let tree = cargo(folder.path(), &["tree", "--edges", "normal,build", "--prefix", "none"]);
    let tree = String::from_utf8(tree.stdout).unwrap();
    let crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"tokio-rustls"), "{tree}");
    for name in NOT_NEEDED {
        assert!(!crates.contains(&name), "{name} is built:\n{tree}");
    }
    cargo(folder.path(), &["check"]);
}
