//! What is proved, as Rust, for the tests that hold the code against it: `docs/proof.md`.

pub(crate) mod system;
pub(crate) mod tie;
