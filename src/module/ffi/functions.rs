//! Functions that only some servers offer to modules.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{NonNull, null_mut};

use redis_module::raw;

use super::OK;

/// Whether the server is a Valkey, which also offers its functions under its own names.
pub(super) fn is_valkey() -> bool {
    function(c"ValkeyModule_SetModuleOptions").is_some()
}

/// Whether the access rules allow a user a command: as `RedisModule_ACLCheckCommandPermissions`,
/// but also with a database, and with a place for the reason of a refusal.
pub(super) type CheckPermissions = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// From Valkey 9.1, whose users may have rules for databases.
pub(super) fn check_permissions() -> Option<CheckPermissions> {
    let found = function(c"ValkeyModule_ACLCheckPermissions")?;
    // SAFETY: the server's function of this name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, CheckPermissions>(found.as_ptr()) })
}

fn function(name: &CStr) -> Option<NonNull<c_void>> {
    let mut found: *mut c_void = null_mut();
    // SAFETY: a plain read of a pointer that loading has set; the name is terminated, and the
    // server writes one pointer to the given place.
    let status = unsafe { raw::RedisModule_GetApi?(name.as_ptr(), (&raw mut found).cast()) };
    if status == OK { NonNull::new(found) } else { None }
}
