//! What a machine can check of the house style; each complaint says where, and why.
//!
//! | rule | what it wants | a way out |
//! |---|---|---|
//! | head | a Rust file opens with `//!` | |
//! | width | at most 100 columns of Rust, and of the packages' and examples' scripts | a link; a row of a table in a file's head |
//! | length | at most 600 lines of `src` before the unit tests | |
//! | proof | no `unwrap()`, `expect(`, `panic!`-likes in `src` outside unit tests | `// PROOF: why it cannot happen`, on the line or just above |
//! | unfinished | none of the usual marks for work left undone, no `dbg!` | |
//! | unsafe | only in `src/module/ffi*` and `src/module/alloc.rs`, each with `// SAFETY:` | |
//! | layers | cli -> client -> wire -> engine; module -> wire, codec -> engine | |
//! | circles | no file of client, command or module depends on itself through others | |
//! | pure | the engine uses no clock, I/O or randomness, and no crate but `hashbrown` | `// PROOF:` as above |
//! | words | one word per thing | the other word "in quotes", said once |
//! | codes | the code word of an error stands alone in one string of `src` only | a constant |
//! | paths | no path or address of somebody's machine | |
//! | makefile | help lists every phony target, and lists no other | |
//! | twins | a type's name stands for one thing in `src` | the lists in `rules.rs` |
//! | reachable | every file of `src` is a module of something | |
//!
//! `options.rs` compares the options of a locker in all languages.
//! `lexer.rs` tells code from comments and strings; `rules.rs` holds the rules, with a bad sample
//! of each: a rule that accepts its bad sample fails the tests.

mod circles;
mod lexer;
mod options;
mod rules;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use lexer::Source;
use rules::Finding;

/// Everything that is kept in the repository, as far as it is text.
fn sources() -> Vec<Source> {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo tells where the package is");
    let root = Path::new(&root);
    let mut files = Vec::new();
    collect(root, &mut files);
    files.sort();
    files
        .iter()
        .filter_map(|file| {
            let text = String::from_utf8(fs::read(file).ok()?).ok()?;
            let path = file.strip_prefix(root).expect("a file below the root");
            Some(Source::new(path.to_str()?, &text))
        })
        .collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_symlink() {
            continue; // What it leads to has its own path.
        } else if path.is_dir() {
            if !["target", ".git", "corpus", "artifacts"].contains(&name.as_ref()) {
                collect(&path, files);
            }
        } else if name != ".git" && !name.ends_with(".rdb") && !name.ends_with(".aof") {
            files.push(path);
        }
    }
}

#[test]
fn the_house_is_tidy() {
    let sources = sources();
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "looked in a wrong place");
    let findings: Vec<Finding> =
        rules::ALL.iter().flat_map(|rule| (rule.check)(&sources)).collect();
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} complaints:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn the_picture_of_the_layers_has_every_arrow_and_no_other() {
    let design = include_str!("../../docs/design.md");
    let picture = design.split("```").find(|block| block.starts_with("mermaid")).expect("one");
    let id = |end: &str| end.trim().split('[').next().unwrap_or_default().to_owned();
    let arrows = picture.lines().filter_map(|line| line.split_once("-->"));
    let drawn: BTreeSet<_> = arrows.map(|(from, to)| (id(from), id(to))).collect();
    assert_eq!(drawn, rules::uses(&sources()));
}

#[test]
fn the_design_names_files_that_exist_and_each_file_of_the_node() {
    let design = include_str!("../../docs/design.md");
    let (_, part) = design.split_once("\n## The code\n").expect("the part on the code");
    let named: BTreeSet<_> = part.split('`').filter(|word| word.ends_with(".rs")).collect();
    let files: BTreeSet<_> = sources().into_iter().map(|source| source.path).collect();
    let is_there = |name: &&&str| files.iter().any(|path| Path::new(path).ends_with(name));
    let gone: Vec<_> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(gone.is_empty(), "docs/design.md names files that are not there: {gone:?}");
    let of_the_node = files.iter().filter_map(|path| path.strip_prefix("src/engine/node/"));
    let unnamed: Vec<_> =
        of_the_node.filter(|name| *name != "mod.rs" && !named.contains(name)).collect();
    assert!(unnamed.is_empty(), "docs/design.md does not say what these are: {unnamed:?}");
}

#[test]
fn every_rule_finds_its_bad_sample_and_nothing_in_its_good_one() {
    for rule in rules::ALL {
        for (path, bad, line) in rule.bad {
            let found = (rule.check)(&[Source::new(path, bad)]);
            let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
            assert_eq!(lines, [*line], "{}: {path}:\n{bad}\n{found:?}", rule.name);
        }
        for (path, good) in rule.good {
            let found = (rule.check)(&[Source::new(path, good)]);
            assert!(found.is_empty(), "{}: {path}:\n{good}\n{found:?}", rule.name);
        }
        assert!(!rule.bad.is_empty(), "{} has no bad sample", rule.name);
    }
}
