//! The proved system as Rust, for the tests that compare the code with it: see `docs/proof.md`.

pub(crate) mod system;
pub(crate) mod tie;
