//! Feeds what libFuzzer makes up to the function that `cargo test --test corpus` runs, too.

#![no_main]

#[path = "../bodies/input.rs"]
mod input;

#[path = "../bodies/state.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
