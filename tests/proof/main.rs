//! The proof of the protocol, as `make proof` runs it with its first solver.
//!
//! `make deps` installs the solver into `target/languages`; without it these tests fail.
//! `docs/proof.md` explains the proof and its assumptions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn prover() -> Command {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("within target");
    let python: PathBuf = target.join("languages/proof/bin/python");
    assert!(python.exists(), "there is no {}: run `make deps`", python.display());
    let mut command = Command::new(python);
    command.args(["-B", "proof/check.py"]).current_dir(root());
    command
}

/// The prover's output, if it succeeds.
fn run(mut command: Command) -> String {
    let output = command.output().expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complaint}");
    said
}

#[test]
fn every_action_keeps_every_invariant_and_every_rule_is_needed() {
    let said = run(prover());
    println!("{said}");
    assert!(said.ends_with("proved: exclusion, unique, rising, store, superseded\n"), "{said}");
}

#[test]
fn what_the_models_are_held_against_is_what_is_proved() {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let file = folder.path().join("system.rs");
    let mut command = prover();
    command.arg("--rust").arg(&file);
    run(command);
    let written = fs::read_to_string(&file).expect("it was written");
    let kept = fs::read_to_string(root().join("tests/proof/system.rs")).expect("it is here");
    assert!(
        written == kept,
        "tests/proof/system.rs is old: run {:?} -B proof/check.py --rust tests/proof/system.rs",
        prover().get_program()
    );
}

/// The tables of docs/proof.md match the proved system; its rules are in the design, and its
/// functions in the code.
#[test]
fn the_page_says_what_is_proved() {
    let mut command = prover();
    command.arg("--tables");
    let tables = run(command);
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("it is here");
    let (page, design) = (read("docs/proof.md"), read("docs/design.md"));
    // Compares whole tables, so that no outdated row remains.
    for table in tables.trim_end().split("\n\n") {
        let is_there = page.contains(&format!("-|\n{table}\n\n"));
        assert!(is_there, "docs/proof.md must have this table (`check.py --tables`):\n{table}");
    }
    let mut code = read("examples/fenced_store/story.rs");
    for folder in ["src/engine", "src/engine/node"] {
        for file in fs::read_dir(root().join(folder)).expect("a folder").flatten() {
            code += &fs::read_to_string(file.path()).unwrap_or_default();
        }
    }
    let actions = tables.lines().filter(|row| row.starts_with("| **") && row.ends_with("` |"));
    for row in actions.clone() {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        for rule in cells[2].split("; ") {
            let name = rule.split(", ").next().expect("a name");
            let is_there = [format!("# {name}\n"), format!("**{name}")];
            assert!(is_there.iter().any(|text| design.contains(text)), "no rule {name:?}");
        }
        let function = cells[3].trim_matches('`').rsplit("::").next().expect("a function");
        assert!(code.contains(&format!("fn {function}(")), "no function {function:?}");
    }
    assert!(actions.count() > 20, "every action is a row");
}
