//! The data type's callbacks, which Redis calls for locks that it stores.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{c_char, c_int, c_void};

use redis_module::raw;

use crate::engine::Lock;
use crate::module::ffi::values::{free, give_with_lease, set_lock_type};
use crate::module::ffi::waiting::detached;
use crate::module::ffi::{Context, InServer, call, guard, guard_in_server, slice};
use crate::module::{datatype, slots, waiters};
use crate::wire::slots::slot_of;
use crate::wire::spec::c_names;

/// What `TYPE` returns, and the nine characters that identify the type in a data set.
const TYPE_NAME: &std::ffi::CStr = c"fencelock";

/// The version of callbacks of Redis 7.0, which would refuse a newer one.
const METHODS_VERSION: u64 = 4;

/// Registers the type. Returns whether the server accepted it.
///
/// # Safety
/// `context` must be the one that the server loads the module with.
pub(super) unsafe fn register(context: *mut raw::RedisModuleCtx) -> bool {
    let mut methods = raw::RedisModuleTypeMethods {
        version: METHODS_VERSION,
        rdb_load: Some(load),
        rdb_save: Some(save),
        aof_rewrite: Some(rewrite),
        mem_usage: None,
        digest: Some(digest),
        free: Some(free),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: Some(defrag),
        mem_usage2: Some(memory_usage),
        free_effort2: None,
        unlink2: Some(unlink),
        copy2: Some(copy),
        aux_save2: None,
    };
    let version = c_int::from(crate::codec::TYPE_VERSION);
    // SAFETY: the server copies the methods; name and callbacks are static.
    let made = unsafe {
        call!(RedisModule_CreateDataType(context, TYPE_NAME.as_ptr(), version, &mut methods))
    };
    set_lock_type(made);
    !made.is_null()
}

/// # Safety
/// `value` must be a value of this type that the server holds.
unsafe fn lock<'a>(value: *const c_void) -> Option<&'a Lock> {
    // SAFETY: every value of this type is a boxed `Lock`; the server keeps it for the callback.
    unsafe { value.cast::<Lock>().as_ref() }
}

unsafe extern "C" fn load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    let work = |server: InServer<'_>| {
        let mut length = 0;
        // SAFETY: `io` lasts for the callback, and so does its key, if it has one. The buffer is
        // ours, and is freed once below.
        let loaded = unsafe {
            let name = text(call!(RedisModule_GetKeyNameFromIO(io)));
            let buffer = call!(RedisModule_LoadStringBuffer(io, &mut length));
            let loaded = slice(buffer, length)
                .and_then(|bytes| datatype::load(server, (name, bytes), version));
            if !buffer.is_null() {
                call!(RedisModule_Free(buffer.cast()));
            }
            loaded
        };
        loaded.map_or(std::ptr::null_mut(), |lock| give_with_lease(lock).cast())
    };
    // SAFETY: the server does this under its lock, on whichever thread.
    unsafe { guard_in_server("loading a lock", std::ptr::null_mut(), work) }
}

unsafe extern "C" fn save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    let work = |server: InServer<'_>| {
        // SAFETY: the server passes a value of this type.
        let Some(lock) = (unsafe { lock(value) }) else { return };
        let bytes = datatype::save(server, lock);
        // SAFETY: `io` lasts for the callback; start and length are those of one slice.
        unsafe {
            call!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast::<c_char>(), bytes.len()));
        }
    };
    // SAFETY: the server does this under its lock, on whichever thread.
    unsafe { guard_in_server("saving a lock", (), work) };
}

unsafe extern "C" fn rewrite(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    let work = |server: InServer<'_>| {
        // SAFETY: the server passes a value of this type.
        let Some(lock) = (unsafe { lock(value) }) else { return };
        for line in datatype::rewrite(server, lock) {
            let [token, fact, label] = [&line.token, &line.fact, &line.label]
                .map(|bytes| (bytes.as_ptr().cast::<c_char>(), bytes.len()));
            let name = c_names::ACQUIRE.as_ptr();
            // SAFETY: `io` and `key` last for the callback; each `b` takes the start and length of
            // one slice; `s` takes a string of the server, `c` a terminated one.
            unsafe {
                if line.label.is_empty() {
                    let format = c"sbb".as_ptr();
                    call!(RedisModule_EmitAOF(
                        io, name, format, key, token.0, token.1, fact.0, fact.1
                    ));
                } else {
                    let (format, keyword) = (c"sbbcb".as_ptr(), c_names::LABEL.as_ptr());
                    call!(RedisModule_EmitAOF(
                        io, name, format, key, token.0, token.1, fact.0, fact.1, keyword, label.0,
                        label.1
                    ));
                }
            }
        }
    };
    // SAFETY: the server does this under its lock, on whichever thread.
    unsafe { guard_in_server("rewriting a lock", (), work) };
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guard("digesting a lock", (), || {
        // SAFETY: the server passes a value of this type.
        let Some(lock) = (unsafe { lock(value) }) else { return };
        let bytes = crate::codec::digest_lock(lock);
        // SAFETY: `digest` lasts for the callback; start and length are those of one slice.
        unsafe {
            let start = bytes.as_ptr().cast::<c_char>();
            call!(RedisModule_DigestAddStringBuffer(digest, start, bytes.len()));
            call!(RedisModule_DigestEndSequence(digest));
        }
    });
}

unsafe extern "C" fn memory_usage(
    _key: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _sample_size: usize,
) -> usize {
    guard("measuring a lock", 0, || {
        // SAFETY: the server passes a value of this type, which its allocator made.
        unsafe {
            let heap = lock(value).map_or(0, Lock::heap_bytes);
            call!(RedisModule_MallocSize(value.cast_mut())) + heap
        }
    })
}

unsafe extern "C" fn unlink(key: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    let work = |server: InServer<'_>| {
        // SAFETY: the server passes a value of this type, which was boxed, so it may be written to.
        // No other reference to it exists: only this module makes them, and has no key open now.
        if let Some(lock) = unsafe { value.cast_mut().cast::<Lock>().as_mut() } {
            // SAFETY: as the server passed it.
            let name = || unsafe { key_of(key) }.map(|(_, name)| slot_of(name));
            let is_own = |slot| {
                let mut is_own = false;
                let look = |context: &mut Context<'_>| is_own = slots::is_own(context, slot);
                // SAFETY: the module's own context lasts, and has no key open. `CLUSTER NODES`
                // looks at no key.
                unsafe { Context::enter(detached(), "a look at a slot", look) };
                is_own
            };
            datatype::unlinked(server, lock, name, is_own);
        }
        if waiters::any(server) {
            // SAFETY: as the server passed it.
            if let Some((database, name)) = unsafe { key_of(key) } {
                waiters::changed(server, database, name);
            }
        }
    };
    // SAFETY: the server does this under its lock, on whichever thread.
    unsafe { guard_in_server("unlinking a lock", (), work) };
}

/// The database and the name of a key that is being unlinked.
///
/// # Safety
/// `key` must be what the server passes to the callback, for as long as it lasts.
unsafe fn key_of<'a>(key: *mut raw::RedisModuleKeyOptCtx) -> Option<(u32, &'a [u8])> {
    // SAFETY: the caller's contract; the name outlasts the callback.
    unsafe {
        let database = call!(RedisModule_GetDbIdFromOptCtx(key));
        text(call!(RedisModule_GetKeyNameFromOptCtx(key))).map(|name| (database as u32, name))
    }
}

/// The bytes of a string of the server's, if there is one.
///
/// # Safety
/// `string` must be null, or a string that the server keeps for `'a`.
unsafe fn text<'a>(string: *const raw::RedisModuleString) -> Option<&'a [u8]> {
    if string.is_null() {
        return None;
    }
    let mut length = 0;
    // SAFETY: the caller's contract.
    unsafe {
        let start = call!(RedisModule_StringPtrLen(string, &mut length));
        slice(start, length)
    }
}

unsafe extern "C" fn copy(
    _key: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
) -> *mut c_void {
    let work = |server: InServer<'_>| {
        // SAFETY: the server passes a value of this type.
        let lock = unsafe { lock(value) };
        let Some(lock) = lock else { return std::ptr::null_mut() };
        give_with_lease(datatype::copied(server, lock)).cast()
    };
    // SAFETY: the server does this under its lock, on whichever thread.
    unsafe { guard_in_server("copying a lock", std::ptr::null_mut(), work) }
}

unsafe extern "C" fn defrag(
    context: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: `value` is where the server keeps the pointer to a block of its allocator. It moves
    // the block's bytes, which is enough to move a `Lock`, and returns the new place, or null if
    // the old one is as good.
    unsafe {
        let moved = call!(RedisModule_DefragAlloc(context, *value));
        if !moved.is_null() {
            *value = moved;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc, dealloc};

    use super::*;
    use crate::engine::{Fence, Instant, Lease, Mode, Token};
    use crate::module::ffi::values::give;
    use crate::module::process;

    fn is_marked(lock: &Lock) -> bool {
        lock.written_leases().all(|lease| lease.is_provisional)
    }

    /// Moves a block as a defragmenting allocator does: the old block is gone. Tests use the
    /// system's allocator.
    unsafe extern "C" fn move_block(
        _context: *mut raw::RedisModuleDefragCtx,
        block: *mut c_void,
    ) -> *mut c_void {
        let layout = Layout::new::<Lock>();
        // SAFETY: the tests below defragment boxed locks only, which were allocated with this
        // layout. The old block is overwritten, so that nothing can work with its former contents.
        unsafe {
            let moved = alloc(layout);
            moved.copy_from_nonoverlapping(block.cast(), layout.size());
            block.cast::<u8>().write_bytes(0xdb, layout.size());
            dealloc(block.cast(), layout);
            moved.cast()
        }
    }

    /// The allocator leaves the block where it is.
    unsafe extern "C" fn leave_block(
        _context: *mut raw::RedisModuleDefragCtx,
        _block: *mut c_void,
    ) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// A lock whose token and label are in a block of their own.
    fn held() -> Lock {
        let mut lock = Lock::default();
        let (token, label) = (Token::new(&[b't'; 64], 64).unwrap(), [b'l'; 100]);
        let (fence, ends_at) = (Fence::new(7).unwrap(), Instant::from_millis(9_000));
        let (label, mode, is_provisional) = (&label[..], Mode::Exclusive, false);
        let lease = Lease { token, fence, ends_at, label, mode, is_provisional };
        lock.apply(lease, Instant::from_millis(1_000));
        lock
    }

    #[test]
    fn a_lock_survives_being_moved_and_being_left_alone() {
        for (allocator, moves) in [(move_block as _, true), (leave_block as _, false)] {
            // SAFETY: no other test uses this function of the server.
            unsafe { raw::RedisModule_DefragAlloc = Some(allocator) };
            for lock in [Lock::default(), held()] {
                let expected = lock.clone();
                let mut value = give(lock).cast::<c_void>();
                let before = value;
                let (context, key) = (std::ptr::null_mut(), std::ptr::null_mut());
                // SAFETY: the value is one of the type, which nothing else uses; the functions
                // above look at neither context nor key.
                let (left, moved) =
                    unsafe { (defrag(context, key, &mut value), super::lock(value).cloned()) };
                assert_eq!((left, value != before), (0, moves));
                assert_eq!(moved, Some(expected));
                // SAFETY: as the server does it, once.
                unsafe { free(value) };
            }
        }
    }

    /// A survey may have passed the new name, and the original may be released before the survey
    /// reaches it. Then only these callbacks have reported the lease to the node.
    #[test]
    fn a_lease_that_finds_another_name_is_not_overlooked_by_a_survey() {
        // SAFETY: no other test uses the state of the process.
        let server = unsafe { InServer::new() };
        let survey = |happens: &dyn Fn()| {
            process::with(server, |process| process.node.begin_survey());
            happens();
            process::with(server, |process| {
                process.node.end_survey(Instant::from_millis(1_000));
                process.node.promises().longest()
            })
        };
        let ends_at = held().until();
        let original = give(held()).cast::<c_void>();
        // SAFETY: values of the type, which nothing else uses; no key is looked at here.
        unsafe {
            let key = std::ptr::null_mut();
            let renamed = survey(&|| unlink(key, original));
            assert_eq!(renamed, ends_at, "renamed");
            assert!(lock(original).is_some_and(is_marked));
            let made = std::cell::Cell::new(std::ptr::null_mut());
            let copied = survey(&|| made.set(copy(key, original)));
            assert_eq!(copied, ends_at, "copied");
            assert!(lock(made.get()).is_some_and(is_marked));
            free(original);
            free(made.get());
        }
        assert_eq!(survey(&|| ()), Instant::default(), "the survey found nothing");
    }
}
