//! The `lockmod` command.

fn main() {}
