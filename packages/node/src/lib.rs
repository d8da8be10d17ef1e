//! The native part of the Node.js package: calls in, plain values out.
//!
//! Everything that a program sees is written in JavaScript, in `lib`; this crate passes calls to
//! `lockmod_host`, and turns the results into objects. A call returns its number at once, and its
//! result is taken from the port on the event loop's own thread.

mod lease;
mod locker;
mod outcome;

use napi_derive::napi;

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
