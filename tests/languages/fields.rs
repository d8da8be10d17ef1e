//! What users of the packages see has the same names in both.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::{package, root};

/// The names that only one of the packages has, and why.
const ONLY: [(&str, &str, &str); 8] = [
    // A process of Node.js is not forked.
    ("errors", "ForkedError", "Python"),
    // Python has one event for this and for `lost`.
    ("Guard", "isLost", "Node.js"),
    ("Locker", "aio", "Python"),
    // Blocks.
    ("Locker", "lock", "Python"),
    ("Locker", "using", "Node.js"),
    ("Locker", "usingMany", "Node.js"),
    // In Python, the task is cancelled.
    ("AcquireOptions", "signal", "Node.js"),
    ("ManyOptions", "signal", "Node.js"),
];

/// Prints what is compared: a line each, with its names behind it.
const PYTHON: &str = "
import inspect, lockmod
public = lambda item: [name for name in dir(item) if not name.startswith('_')]
asked = lambda method: [*inspect.signature(method).parameters][2:]
for item in (lockmod.NodeInfo, lockmod.NodeVote):
    print(item.__name__, *item._fields)
for item in (lockmod.LockError, lockmod.HeldError, lockmod.LostError):
    print(item.__name__, *{*public(item)} - {*public(Exception)})
for item in (lockmod.Guard, lockmod.Locker):
    print(item.__name__, *public(item))
print('LockerOptions', *asked(lockmod.Locker.__init__))
print('AcquireOptions', *asked(lockmod.Locker.acquire))
print('ManyOptions', *asked(lockmod.Locker.acquire_many))
print('errors', *(name for name in lockmod.__all__ if name.endswith('Error')))
";

/// A name of Python as JavaScript spells it.
fn spelled(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().expect("a word").to_owned();
    words.fold(first, |start, word| start + &word[..1].to_uppercase() + &word[1..])
}

/// The members that the types of Node.js declare of a class or an interface, inherited ones too.
fn declared(types: &str, name: &str) -> BTreeSet<String> {
    let is_head = |line: &&str| {
        let rest = line.strip_prefix("export class ").or(line.strip_prefix("export interface "));
        rest.is_some_and(|rest| rest.starts_with(&format!("{name} ")))
    };
    let mut lines = types.lines().skip_while(|line| !is_head(line));
    let head = lines.next().unwrap_or_else(|| panic!("{name} is not declared"));
    let body = lines.take_while(|line| !line.starts_with('}') && !head.ends_with("{}"));
    let members = body.filter_map(|line| {
        let line = line.strip_prefix("  ")?;
        let line = line.strip_prefix("readonly ").unwrap_or(line);
        let end = line.find(|c: char| !c.is_alphanumeric())?;
        let is_member =
            line[end..].starts_with(['(', '<', '?', ':']) && &line[..end] != "constructor";
        (end > 0 && is_member).then(|| line[..end].to_owned())
    });
    let mut members: BTreeSet<String> = members.collect();
    if head.contains(" extends LockError") {
        members.extend(declared(types, "LockError"));
    }
    if head.contains(" extends Omit<AcquireOptions") {
        members.extend(declared(types, "AcquireOptions"));
    }
    members
}

fn errors(types: &str) -> BTreeSet<String> {
    let heads = types.lines().filter_map(|line| line.strip_prefix("export class "));
    let names = heads.filter_map(|head| head.split(' ').next());
    names.filter(|name| name.ends_with("Error")).map(str::to_owned).collect()
}

#[test]
fn the_packages_have_the_same_fields_methods_and_options() {
    let said = Command::new(package::python()).args(["-c", PYTHON]).output().expect("installed");
    let text = String::from_utf8(said.stdout).expect("names");
    let types = fs::read_to_string(root().join("packages/node/index.d.ts")).expect("is there");
    assert_eq!(text.lines().count(), 11, "{}", String::from_utf8_lossy(&said.stderr));
    let mut only = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let name = words.next().expect("a line has a name");
        let python: BTreeSet<String> = words.map(spelled).collect();
        let node = match name {
            "errors" => errors(&types),
            _ => declared(&types, name),
        };
        for (some, others, whose) in [(&python, &node, "Python"), (&node, &python, "Node.js")] {
            only.extend(some.difference(others).map(|one| (name.to_owned(), one.clone(), whose)));
        }
    }
    let listed = ONLY.map(|(name, one, whose)| (name.to_owned(), one.to_owned(), whose));
    assert_eq!(only, BTreeSet::from(listed));
}

/// Without one, `build` has no class for the error when it is raised.
#[test]
fn each_kind_of_failure_has_a_class_in_both_packages() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("is there");
    let failure = read("packages/host/src/failure.rs");
    let kinds = failure.lines().filter_map(|line| {
        let (_, word) = line.trim().strip_prefix("Kind::")?.split_once(" => \"")?;
        word.strip_suffix("\",")
    });
    let kinds: Vec<_> = kinds.collect();
    assert!(kinds.contains(&"held"), "{kinds:?}");
    let python = read("packages/python/python/lockmod/_errors.py");
    let node = read("packages/node/lib/errors.js");
    for kind in kinds {
        assert!(python.contains(&format!("\n    \"{kind}\": ")), "_errors.py has no {kind}");
        // A process of Node.js is not forked.
        assert!(
            node.contains(&format!("\n  {kind}: ")) || kind == "forked",
            "errors.js has no {kind}"
        );
    }
}
