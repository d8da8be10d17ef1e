//! Feeds what libFuzzer makes up to the function that `cargo test --test corpus` runs, too.

#![no_main]

#[allow(dead_code, reason = "its tests are not built here")]
#[path = "../../tests/engine.rs"]
mod engine;

libfuzzer_sys::fuzz_target!(|data: &[u8]| engine::operations::run(data));
