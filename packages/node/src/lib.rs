//! The native part of the Node.js package: calls in, plain values out.
//!
//! Everything that a program sees is written in JavaScript, in `lib`; here a call is handed to
//! `lockmod_host`, and what comes of it is turned into objects. A call returns its number at once,
//! and its result is taken from the port on the event loop's own thread.

mod lease;
mod locker;
mod outcome;

use napi_derive::napi;

/// For the end of the program: gives back what is held, and waits until that is written.
#[napi]
pub fn finish() {
    lockmod_host::finish();
}
