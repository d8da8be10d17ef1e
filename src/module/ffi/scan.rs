//! Scanning databases, key by key.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{c_int, c_void};

use redis_module::raw;

use super::{Context, OK, call, guard, slice, values};
use crate::engine::Lock;

impl Context<'_> {
    /// Selects the database in which keys are opened. Returns whether it exists.
    pub(in crate::module) fn select(&mut self, database: u32) -> bool {
        // SAFETY: the context lasts as long as `self`.
        unsafe { call!(RedisModule_SelectDb(self.raw.as_ptr(), database as c_int)) == OK }
    }

    /// The database in which keys are opened.
    pub(in crate::module) fn selected(&self) -> u32 {
        // SAFETY: the context lasts as long as `self`.
        let database = unsafe { call!(RedisModule_GetSelectedDb(self.raw.as_ptr())) };
        u32::try_from(database).unwrap_or(0)
    }

    /// Calls `look` in each database, by its number, and returns to the present one.
    pub(in crate::module) fn in_each_database(&mut self, mut look: impl FnMut(&mut Self, u32)) {
        let selected = self.selected();
        let mut database = 0;
        while self.select(database) {
            look(self, database);
            database += 1;
        }
        self.select(selected);
    }

    /// Whether the server has more than one database.
    pub(in crate::module) fn has_several_databases(&mut self) -> bool {
        let selected = self.selected();
        let has_several = self.select(1);
        self.select(selected);
        has_several
    }

    /// Passes the locks among some keys of the selected database to `look`: those in at most
    /// `buckets` buckets of its table, from `cursor` on. Returns whether there are more.
    pub fn scan(
        &mut self,
        cursor: &mut Cursor,
        buckets: usize,
        look: &mut dyn FnMut(&[u8], &mut Lock),
    ) -> bool {
        let mut look = look;
        for _ in 0..buckets {
            let look: *mut &mut dyn FnMut(&[u8], &mut Lock) = &mut look;
            // SAFETY: cursor and context are alive, and `scanned` casts `look` to its own type; the
            // server calls it only before it returns.
            let more = unsafe {
                call!(RedisModule_Scan(self.raw.as_ptr(), cursor.raw, Some(scanned), look.cast()))
            };
            if more == 0 {
                return false;
            }
        }
        true
    }
}

/// Passes one key, if it is a lock, to the closure behind `look`.
unsafe extern "C" fn scanned(
    _context: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    key: *mut raw::RedisModuleKey,
    look: *mut c_void,
) {
    guard("looking at a key", (), || {
        let mut length = 0;
        // SAFETY: `Context::scan` passes the closure, which outlives the scan; name and key last
        // for this callback, and nothing else uses the value meanwhile: the scan borrows the only
        // context that could open a key. The server treats a null key as a missing one.
        unsafe {
            let is_lock = call!(RedisModule_ModuleTypeGetType(key)) == values::lock_type();
            let value = call!(RedisModule_ModuleTypeGetValue(key)).cast::<Lock>();
            let start = call!(RedisModule_StringPtrLen(name, &mut length));
            if let (true, Some(lock), Some(name)) = (is_lock, value.as_mut(), slice(start, length))
            {
                (*look.cast::<&mut dyn FnMut(&[u8], &mut Lock)>())(name, lock);
            }
        }
    });
}

/// A position in a database's table of keys.
pub struct Cursor {
    raw: *mut raw::RedisModuleScanCursor,
}

// SAFETY: a cursor is memory of the server that only `Context::scan` uses, under its lock.
unsafe impl Send for Cursor {}

impl Default for Cursor {
    fn default() -> Cursor {
        // SAFETY: takes nothing; never returns null.
        Cursor { raw: unsafe { call!(RedisModule_ScanCursorCreate()) } }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: made in `default`, destroyed once.
        unsafe { call!(RedisModule_ScanCursorDestroy(self.raw)) };
    }
}
