//! lockmod: distributed locks as a Redis module, with leases, fencing tokens and a quorum client.
//!
//! The package `lockmod` builds `liblockmod.so`, which a server loads, and the `lockmod` command.
//! The package `lockmod-client`, out of the same sources, has what a program needs: [`engine`],
//! [`wire`] and the client. The server's commands are in `docs/commands.md`, the reasons in
//! `docs/design.md`.
//!
//! | feature | what it adds |
//! |---|---|
//! | (none) | [`engine`], the rules, and [`wire`], the table of commands: the standard library only |
//! | `client` | module `client`, the quorum client; builds without libclang |
//! | `cli` | the `lockmod` command |
//! | `codec` | module `codec`, the bytes of a lock in a data set |
//! | `module` | the Redis side: no Rust interface, but the shared object; needs libclang |
//!
//! # The rules
//!
//! Everything about leases and fences is decided without clock and I/O. This is what the module
//! does for two calls of `LOCK.ACQUIRE`, before and after a lease has ended:
//!
//! ```
//! use lockmod::engine::{Acquired, Claim, Promises, Fence, Instant, Lock, Millis, Mode, Token};
//!
//! let mut node = Promises::new(Fence::ZERO, None);
//! let mut lock = Lock::default();
//! let claim = |token| Claim { token, ttl: Millis::new(30_000), mode: Mode::Exclusive };
//! let alice = claim(Token::new(b"alice-7f3a", 64)?);
//! let bob = claim(Token::new(b"bob-91c2", 64)?);
//!
//! let now = Instant::from_millis(1_000);
//! let Ok(Acquired::Granted { fence, ends_at, .. }) = node.acquire(&mut lock, alice, b"", now)
//! else { panic!("the lock was free") };
//! assert_eq!((fence.get(), ends_at), (1, Instant::from_millis(31_000)));
//!
//! // The last millisecond belongs to the holder.
//! assert_eq!(node.acquire(&mut lock, bob, b"", ends_at), Ok(Acquired::Held));
//! let later = ends_at.after(Millis::new(1));
//! let granted = node.acquire(&mut lock, bob, b"", later);
//! assert!(matches!(granted, Ok(Acquired::Granted { fence, .. }) if fence.get() == 2));
//! # Ok::<(), lockmod::engine::Refusal>(())
//! ```
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
#![cfg_attr(
    feature = "codec",
    doc = r#"
# The bytes

```
use lockmod::codec::{decode_lock, encode_lock};
use lockmod::engine::{Clocks, Fence, Instant, Lock, UnixTime};

let clocks = Clocks { now: Instant::from_millis(1_000), wall: UnixTime::from_millis(50_000) };
let lock = Lock::free(Fence::new(7).unwrap(), clocks.now);
let bytes = encode_lock(&lock, Fence::ZERO, clocks, 1);
assert_eq!(decode_lock(&bytes, clocks, 1).unwrap().lock, lock);
assert!(decode_lock(&bytes[1..], clocks, 1).is_err());
```
"#
)]
#![deny(unsafe_code)]
// 40 lines; tests may be longer.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "codec")]
pub mod codec;
pub mod engine;
#[cfg(feature = "module")]
mod module;
#[cfg(feature = "module")]
#[doc(hidden)]
pub use module::soundness;
pub mod wire;

/// The Rust of the front page compiles.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// So does that of the recipes.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../docs/recipes.md")]
struct Recipes;
