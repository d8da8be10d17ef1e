//! lockmod: distributed locks as a Redis module, with leases, fencing tokens and a quorum client.
#![deny(unsafe_code)]

pub mod engine;
