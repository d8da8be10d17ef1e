//! Locks as values that the server owns: creating, counting, storing and freeing them.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicUsize, Ordering};

use redis_module::raw;

use super::{Key, OK, call};
use crate::engine::{HeldCount, Lock};

static LOCK_TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(std::ptr::null_mut());

/// The server's handle of the data type.
#[inline]
pub(super) fn lock_type() -> *mut raw::RedisModuleType {
    LOCK_TYPE.load(Ordering::Relaxed)
}

/// Notes the type that the server has registered.
pub(super) fn set_lock_type(made: *mut raw::RedisModuleType) {
    LOCK_TYPE.store(made, Ordering::Relaxed);
}

/// How many locks the server holds.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many locks the server holds, held or not.
pub(in crate::module) fn lock_count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// The locks and the readers of [`moved`].
static HELD: AtomicI64 = AtomicI64::new(0);
static READERS: AtomicI64 = AtomicI64::new(0);

/// Leases, with an end not yet noted, that came with locks that were loaded or copied, less those
/// that went with their locks. The node counts the rest; this count is here because a lock may be
/// freed on any thread.
pub(in crate::module) fn moved() -> HeldCount {
    let [locks, readers] = [&HELD, &READERS].map(|count| count.load(Ordering::Relaxed));
    HeldCount { locks, readers }
}

fn add(moved: HeldCount) {
    HELD.fetch_add(moved.locks, Ordering::Relaxed);
    if moved.readers != 0 {
        READERS.fetch_add(moved.readers, Ordering::Relaxed);
    }
}

/// A value for the server to own, counting its lease.
pub(super) fn give_with_lease(lock: Lock) -> *mut Lock {
    add(lock.unnoted());
    give(lock)
}

/// A value for the server to own, until it calls [`free`].
pub(super) fn give(lock: Lock) -> *mut Lock {
    COUNT.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(lock))
}

/// May run on a background thread: it must not touch the state of the node.
pub(super) unsafe extern "C" fn free(value: *mut c_void) {
    if !value.is_null() {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: every value of this type was boxed, and the server frees it once.
        let lock = unsafe { Box::from_raw(value.cast::<Lock>()) };
        add(HeldCount::NONE - lock.unnoted());
    }
}

impl Key<'_> {
    /// Removes the key's expiry. Returns whether it had one.
    #[inline]
    pub(in crate::module) fn persist(&mut self) -> bool {
        let none = raw::mstime_t::from(raw::REDISMODULE_NO_EXPIRE);
        // SAFETY: the key is open for writing, or null, which the server treats as a missing one.
        unsafe {
            let expires = call!(RedisModule_GetExpire(self.raw)) != none;
            if expires {
                call!(RedisModule_SetExpire(self.raw, none));
            }
            expires
        }
    }

    /// Stores `lock` at the key, over whatever is there.
    pub(in crate::module) fn put(&mut self, lock: Lock) {
        let value = give(lock);
        // SAFETY: the key is open for writing; the server owns the value from now on and frees it
        // with `free`, which turns it back into a box.
        let status =
            unsafe { call!(RedisModule_ModuleTypeSetValue(self.raw, lock_type(), value.cast())) };
        if status != OK {
            // SAFETY: the server did not take the value, so it is still ours.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}
