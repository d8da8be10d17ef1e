//! lockmod: distributed locks as a Redis module, with leases, fencing tokens and a quorum client.
#![deny(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "codec")]
pub mod codec;
pub mod engine;
#[cfg(feature = "module")]
mod module;
pub mod wire;
