//! The native part of the Node.js package: calls in, plain values out.
//!
//! Everything that a program sees is written in JavaScript, in `lib`; this crate passes calls to
//! `lockmod_host`, and turns the results into objects. A call returns its number at once, and its
//! result is taken from the port on the event loop's own thread.

mod lease;
mod locker;
mod outcome;

use lockmod_host::Unit;
use napi_derive::napi;

/// The text of the error of a lease that has ended.
#[napi]
pub fn lost_text(name: String, fence: f64, reason: String) -> String {
    // Fences end at 2^53 - 1.
    lockmod_host::lost_text(Unit::Milliseconds, name.as_bytes(), fence as u64, &reason)
}

/// The URLs of nodes in one text.
#[napi]
pub fn split_nodes(text: String) -> Vec<String> {
    lockmod_host::split_nodes(&text)
}

/// For the end of the program: releases what is held, and waits until that is written.
#[napi]
pub fn finish() {
    lockmod_host::finish();
}
