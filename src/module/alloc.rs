//! The allocator: Redis's inside a server, the system's everywhere else.
//!
//! The module's memory must count in Redis's `used_memory`, so Redis allocates it. Tests, the
//! command and programs that use the client link the same crate without a server, and use the
//! system's allocator. The two must never mix in one process: nothing may be allocated before the
//! server has bound its functions, because Redis would be asked to free it. A counter proves that
//! nothing was.
#![allow(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use redis_module::raw;

/// Both of the server's allocators align to this, on every 64-bit platform.
const SERVER_ALIGN: usize = 16;

/// How many allocations the system's allocator has served.
static SYSTEM_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Redis's allocator if there is a server, otherwise the system's.
pub(crate) struct ServerAlloc;

#[global_allocator]
static ALLOCATOR: ServerAlloc = ServerAlloc;

/// How many allocations the system's allocator has served in this process.
///
/// Must be zero when the server has just bound its functions.
pub(super) fn system_count() -> usize {
    SYSTEM_COUNT.load(Ordering::Relaxed)
}

/// Redis aligns a block by its size, so the size must be a multiple of the alignment.
fn server_size(layout: Layout, size: usize) -> usize {
    size.next_multiple_of(layout.align())
}

// SAFETY: each method passes the request on unchanged to one allocator that keeps the contract.
// Which one depends on the layout and on a pointer that is set once, before the first allocation
// (`system_count` proves it), so a block is always freed by the allocator that made it.
unsafe impl GlobalAlloc for ServerAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a plain read; the server writes the pointer before any thread of ours exists.
        match unsafe { raw::RedisModule_Alloc } {
            Some(alloc) if layout.align() <= SERVER_ALIGN => {
                // SAFETY: Redis's allocator takes any size, and never returns null: it aborts.
                unsafe { alloc(server_size(layout, layout.size())).cast() }
            }
            Some(_) | None => {
                SYSTEM_COUNT.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the caller's contract is the system allocator's.
                unsafe { System.alloc(layout) }
            }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: a plain read; the server writes the pointer before any thread of ours exists.
        match unsafe { raw::RedisModule_Free } {
            Some(free) if layout.align() <= SERVER_ALIGN => {
                // SAFETY: `alloc` above took the same branch, so Redis made this block.
                unsafe { free(pointer.cast()) }
            }
            // SAFETY: `alloc` above took the same branch, so the system made this block.
            Some(_) | None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: a plain read; the server writes the pointer before any thread of ours exists.
        match unsafe { raw::RedisModule_Realloc } {
            Some(realloc) if layout.align() <= SERVER_ALIGN => {
                // SAFETY: `alloc` above took the same branch, so Redis made this block.
                unsafe { realloc(pointer.cast(), server_size(layout, size)).cast() }
            }
            // SAFETY: `alloc` above took the same branch, so the system made this block.
            Some(_) | None => unsafe { System.realloc(pointer, layout, size) },
        }
    }
}
