//! lockmod: distributed locks as a Redis module, with leases, fencing tokens and a quorum client.
//!
//! The package `lockmod-client` has what a program needs: the module `client`. The package
//! `lockmod`, from the same sources, builds `liblockmod.so`, which a server loads, and the
//! `lockmod` command. The server's commands are described in `docs/commands.md`, the design in
//! `docs/design.md`.
//!
//! | feature | what it adds |
//! |---|---|
//! | `client` | module `client`, the quorum client; builds without libclang |
//! | `cli` | the `lockmod` command |
//! | `codec` | the bytes of a lock in a data set |
//! | `module` | the Redis side: no Rust interface, but the shared object; needs libclang |
//!
//! The modules that are not shown here may change at any time.
#![cfg_attr(
    feature = "client",
    doc = r#"
# The client

```no_run
# async fn example() -> Result<(), Box<dyn std::error::Error>> {
use lockmod::client::Locker;

let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
let locker = Locker::builder().nodes(nodes).build()?;
let guard = locker.acquire("nightly").await?;
println!("working with fence {}", guard.fence());
guard.release().await?;
# Ok(()) }
```
"#
)]
#![deny(unsafe_code)]
// 40 lines; tests may be longer.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

#[cfg(feature = "client")]
pub mod client;

// Needed by the command, the tests, the simulation and the fuzzers. Not part of the public
// interface.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "codec")]
#[doc(hidden)]
pub mod codec;
#[doc(hidden)]
pub mod engine;
#[cfg(feature = "module")]
mod module;
#[cfg(feature = "module")]
#[doc(hidden)]
pub use module::soundness;
#[doc(hidden)]
pub mod wire;

/// The Rust code of the README compiles.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// So does the Rust code of the recipes.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../docs/recipes.md")]
struct Recipes;
