//! Feeds a corpus to a body without a fuzzer, for ordinary tests.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How many mutations of each input are tried beside it.
const MUTATIONS: usize = 20;

/// Runs `body` on every input of the corpus, and on mutations of it that are the same each time.
///
/// # Panics
/// With the input, if the body does.
pub(crate) fn feed(name: &str, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{folder:?} has no input");
    let mut random = StdRng::seed_from_u64(0);
    for path in paths {
        let input = fs::read(&path).expect("a file of ours");
        try_one(&path, &input, &body);
        for _ in 0..MUTATIONS {
            try_one(&path, &mutate(&input, &mut random), &body);
        }
    }
}

fn try_one(path: &Path, input: &[u8], body: &impl Fn(&[u8])) {
    let outcome = catch_unwind(AssertUnwindSafe(|| body(input)));
    assert!(outcome.is_ok(), "{path:?} or a mutation of it: b\"{}\"", input.escape_ascii());
}

fn mutate(input: &[u8], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            _ if at == bytes.len() => {}
            2 => bytes[at] ^= 1 << random.random_range(0..8),
            _ => bytes[at] = random.random(),
        }
    }
    bytes
}
