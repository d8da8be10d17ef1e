//! What a program builds that depends on the client, as the front page says: it compiles beside the
//! `redis` crate with features of its own, and brings neither the module nor the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program that uses lockmod beside an asynchronous client of Redis.
const PROGRAM: &str = include_str!("program.rs");
const README: &str = include_str!("../../README.md");
const ROOT: &str = include_str!("../../Cargo.toml");
const CLIENT: &str = include_str!("../../client/Cargo.toml");
/// What only the module and the command need.
const NOT_NEEDED: [&str; 5] = ["redis-module", "bindgen", "clap", "ratatui", "hyper"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where all that is built goes. Kept, so that the crates are compiled once.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("dependent")
}

/// The dependencies as the front page gives them, for a program that is elsewhere.
fn dependencies() -> String {
    let (_, rest) = README.split_once("```toml\n[dependencies]\n").expect("dependencies");
    let (lines, _) = rest.split_once("```").expect("the end of the block");
    assert!(lines.contains("\"../lockmod/"), "{lines}");
    lines.replace("../lockmod", root().to_str().expect("a path in UTF-8"))
}

/// Writes the program into `folder`. All crates are at hand: this package has them, too.
fn write_program(folder: &Path) {
    let manifest = format!(
        r#"[package]
name = "dependent"
version = "0.0.0"
edition = "2024"
[workspace]
[profile.dev]
debug = false
[dependencies]
redis = {{ version = "1.8", default-features = false, features = ["tokio-comp"] }}
{}"#,
        dependencies()
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::create_dir(folder.join("src")).unwrap();
    fs::write(folder.join("src/main.rs"), PROGRAM).unwrap();
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
}

fn cargo(folder: &Path, args: &[&str]) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(args).arg("--offline").current_dir(folder).env("CARGO_TARGET_DIR", target());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The shared objects of ours among what was built.
fn shared_objects() -> Vec<String> {
    let built = fs::read_dir(target().join("debug/deps")).expect("something was built");
    let names = built.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("liblockmod") && name.ends_with(".so")).collect()
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
    cargo(folder.path(), &["build"]);
    assert_eq!(shared_objects(), Vec::<String>::new(), "no module is linked");
}

/// The lines of a section of a manifest, without what is the root's alone.
fn lines(manifest: &str, head: &str) -> Vec<String> {
    let section = manifest.lines().skip_while(|line| *line != head).skip(1);
    let lines = section.take_while(|line| !line.starts_with('['));
    lines.map(|line| line.replace(", optional = true", "")).collect()
}

#[test]
fn the_client_is_built_with_what_the_root_package_builds_it_with() {
    let all = lines(ROOT, "[dependencies]");
    for line in lines(CLIENT, "[dependencies]").iter().filter(|line| !line.is_empty()) {
        assert!(all.contains(line), "{line} is not in\n{all:#?}");
    }
    for key in ["version", "edition", "rust-version", "license"] {
        let of = |manifest| lines(manifest, "[package]").into_iter().find(|l| l.starts_with(key));
        assert_eq!(of(CLIENT), of(ROOT), "{key}");
    }
}
