//! State that the server's lock guards, and the proof that a callback holds that lock.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;

use super::guard;

/// Proof that a callback is running, under the server's global lock.
///
/// It has no size. Only a callback can have one; it ends with the callback, and stays on its
/// thread.
#[derive(Clone, Copy, Debug)]
pub struct InServer<'a>(PhantomData<(&'a (), *const ())>);

impl InServer<'_> {
    /// # Safety
    /// The caller runs under the server's lock for as long as the result can be used.
    #[inline]
    pub(super) unsafe fn new() -> Self {
        InServer(PhantomData)
    }
}

/// State that only the server's callbacks use, one at a time: [`InServer`] proves it.
///
/// The server runs commands, events, timers and type callbacks under its global lock. The exception
/// is `free`, which may run on a background thread and therefore has no proof.
pub struct Guarded<T> {
    value: UnsafeCell<T>,
    busy: Cell<bool>,
}

// SAFETY: `with` requires the proof of a callback. The server runs callbacks one at a time under
// its global lock, on whichever thread; hence `T: Send`.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// State with the initial `value`.
    pub const fn new(value: T) -> Guarded<T> {
        Guarded { value: UnsafeCell::new(value), busy: Cell::new(false) }
    }

    /// Uses the state. `work` must not call the server, which could call back.
    #[inline]
    pub fn with<R>(&self, _: InServer<'_>, work: impl FnOnce(&mut T) -> R) -> R {
        struct Busy<'a>(&'a Cell<bool>);
        impl Drop for Busy<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        assert!(!self.busy.replace(true), "guarded state used from within its own use");
        let _busy = Busy(&self.busy);
        // SAFETY: one callback at a time (see `Sync`), and no use within another: `busy` proves it.
        work(unsafe { &mut *self.value.get() })
    }
}

/// [`guard`] for a callback without a context that uses the node's state.
///
/// # Safety
/// The caller is a callback that the server runs under its lock.
pub(super) unsafe fn guard_in_server<R>(
    what: &str,
    otherwise: R,
    work: impl FnOnce(InServer<'_>) -> R,
) -> R {
    // SAFETY: the caller's contract; `work` cannot keep what it gets for an unknown lifetime.
    guard(what, otherwise, || work(unsafe { InServer::new() }))
}
