//! The options as the server sees them: registered by name, read and set through callbacks.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use redis_module::raw;

use crate::module::config::{self, Given, OPTIONS, OptionKind, TextValue};
use crate::module::ffi::{Args, Context, OK, c_string, call, guard, slice};

const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Registers all options, with the module's arguments as defaults, and lets the server set them.
///
/// # Safety
/// `context` must be the one that the server loads the module with.
pub(super) unsafe fn register(
    context: *mut raw::RedisModuleCtx,
    wrapped: &mut Context<'_>,
    arguments: &Args<'_>,
) -> Result<(), String> {
    let words: Vec<String> = (0..arguments.len())
        .map(|position| String::from_utf8_lossy(arguments.get(position)).into_owned())
        .collect();
    for (option, default) in OPTIONS.iter().zip(config::defaults(&words, wrapped.port())?) {
        let name = c_string(option.name);
        // SAFETY: the loading context.
        let status = unsafe {
            match (&option.kind, default) {
                (OptionKind::Number { min, max, value, .. }, Given::Number(default)) => {
                    let flags = raw::REDISMODULE_CONFIG_DEFAULT;
                    register_number(context, &name, (default, *min, *max, flags), value)
                }
                (OptionKind::Fixed { min, max, value, .. }, Given::Number(default)) => {
                    let flags = raw::REDISMODULE_CONFIG_IMMUTABLE;
                    register_number(context, &name, (default, *min, *max, flags), value)
                }
                (OptionKind::Switch { value, .. }, Given::Switch(default)) => {
                    register_switch(context, &name, default, value)
                }
                (OptionKind::Text { value }, Given::Text(default)) => {
                    register_text(context, &name, &default, value)
                }
                (_, _) => ERR,
            }
        };
        if status != OK {
            return Err(format!("the server refused the option lockmod.{}", option.name));
        }
    }
    // SAFETY: the loading context. The server logs which value is out of range.
    match unsafe { call!(RedisModule_LoadConfigs(context)) } {
        OK => Ok(()),
        _ => Err("an option's value is not allowed".to_owned()),
    }
}

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn register_number(
    context: *mut raw::RedisModuleCtx,
    name: &CStr,
    (default, min, max, flags): (i64, i64, i64, u32),
    value: &'static AtomicI64,
) -> c_int {
    // SAFETY: the loading context; the server copies the name. The value is static, and the
    // callbacks cast it back to this type.
    unsafe {
        call!(RedisModule_RegisterNumericConfig(
            context,
            name.as_ptr(),
            default,
            flags,
            min,
            max,
            Some(get_number),
            Some(set_number),
            None,
            untyped(value)
        ))
    }
}

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn register_switch(
    context: *mut raw::RedisModuleCtx,
    name: &CStr,
    default: bool,
    value: &'static AtomicBool,
) -> c_int {
    // SAFETY: the loading context; the server copies the name. The value is static, and the
    // callbacks cast it back to this type.
    unsafe {
        call!(RedisModule_RegisterBoolConfig(
            context,
            name.as_ptr(),
            c_int::from(default),
            raw::REDISMODULE_CONFIG_DEFAULT,
            Some(get_switch),
            Some(set_switch),
            None,
            untyped(value)
        ))
    }
}

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn register_text(
    context: *mut raw::RedisModuleCtx,
    name: &CStr,
    default: &str,
    value: &'static TextValue,
) -> c_int {
    let default = c_string(default);
    // SAFETY: the loading context; the server copies name and default. The value is static, and
    // the callbacks cast it back to this type.
    unsafe {
        call!(RedisModule_RegisterStringConfig(
            context,
            name.as_ptr(),
            default.as_ptr(),
            raw::REDISMODULE_CONFIG_IMMUTABLE,
            Some(get_text),
            Some(set_text),
            None,
            untyped(value)
        ))
    }
}

/// A value as the server passes it to the callbacks.
fn untyped<T>(value: &'static T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

unsafe extern "C" fn get_number(_name: *const c_char, value: *mut c_void) -> c_longlong {
    // SAFETY: `register_number` passed a static `AtomicI64`.
    unsafe { &*value.cast::<AtomicI64>() }.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    number: c_longlong,
    value: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `register_number` passed a static `AtomicI64`. The server has checked the range.
    unsafe { &*value.cast::<AtomicI64>() }.store(number, Ordering::Relaxed);
    OK
}

unsafe extern "C" fn get_switch(_name: *const c_char, value: *mut c_void) -> c_int {
    // SAFETY: `register_switch` passed a static `AtomicBool`.
    c_int::from(unsafe { &*value.cast::<AtomicBool>() }.load(Ordering::Relaxed))
}

unsafe extern "C" fn set_switch(
    _name: *const c_char,
    is_on: c_int,
    value: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `register_switch` passed a static `AtomicBool`.
    unsafe { &*value.cast::<AtomicBool>() }.store(is_on != 0, Ordering::Relaxed);
    OK
}

/// The string that [`get_text`] returned last: the server copies it before it asks again.
struct Shown(*mut raw::RedisModuleString);

// SAFETY: a server string, used only under its lock.
unsafe impl Send for Shown {}

static SHOWN: Mutex<Shown> = Mutex::new(Shown(null_mut()));

unsafe extern "C" fn get_text(
    _name: *const c_char,
    value: *mut c_void,
) -> *mut raw::RedisModuleString {
    guard("reading an option", null_mut(), || {
        // SAFETY: `register` passed a static `TextValue`.
        let text = unsafe { &*value.cast::<TextValue>() };
        let (Ok(text), Ok(mut shown)) = (text.lock(), SHOWN.lock()) else { return null_mut() };
        // SAFETY: start and length are those of one slice, which the server copies; the string
        // that was shown before is ours, and is freed once.
        unsafe {
            if !shown.0.is_null() {
                call!(RedisModule_FreeString(null_mut(), shown.0));
            }
            let start = text.as_ptr().cast::<c_char>();
            shown.0 = call!(RedisModule_CreateString(null_mut(), start, text.len()));
        }
        shown.0
    })
}

unsafe extern "C" fn set_text(
    _name: *const c_char,
    text: *mut raw::RedisModuleString,
    value: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    guard("setting an option", ERR, || {
        let mut length = 0;
        // SAFETY: the server passes a string that lasts for this callback; `register` passed a
        // static `TextValue`.
        let (text, value) = unsafe {
            let start = call!(RedisModule_StringPtrLen(text, &mut length));
            (slice(start, length).unwrap_or_default(), &*value.cast::<TextValue>())
        };
        let Ok(mut value) = value.lock() else { return ERR };
        *value = String::from_utf8_lossy(text).into_owned();
        OK
    })
}
