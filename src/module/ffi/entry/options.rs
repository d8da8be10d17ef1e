//! The options as the server sees them: registered by name, read and set through callbacks.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{c_char, c_int, c_longlong, c_void};
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
        let changeable = raw::REDISMODULE_CONFIG_DEFAULT;
        // SAFETY: the loading context; the server copies name and default; each value is static,
        // and its callbacks cast it to its own type.
        let status = unsafe {
            match (&option.kind, default) {
                (OptionKind::Number { min, max, value, .. }, Given::Number(default)) => {
                    let value = std::ptr::from_ref(*value).cast_mut().cast();
                    let (get, set) = (Some(get_number as _), Some(set_number as _));
                    call!(RedisModule_RegisterNumericConfig(
                        context,
                        name.as_ptr(),
                        default,
                        changeable,
                        *min,
                        *max,
                        get,
                        set,
                        None,
                        value
                    ))
                }
                (OptionKind::Switch { value, .. }, Given::Switch(default)) => {
                    let value = std::ptr::from_ref(*value).cast_mut().cast();
                    let (get, set) = (Some(get_switch as _), Some(set_switch as _));
                    let default = c_int::from(default);
                    call!(RedisModule_RegisterBoolConfig(
                        context,
                        name.as_ptr(),
                        default,
                        changeable,
                        get,
                        set,
                        None,
                        value
                    ))
                }
                (OptionKind::Text { value }, Given::Text(default)) => {
                    let value = std::ptr::from_ref(*value).cast_mut().cast();
                    let (get, set) = (Some(get_text as _), Some(set_text as _));
                    let (fixed, default) = (raw::REDISMODULE_CONFIG_IMMUTABLE, c_string(&default));
                    call!(RedisModule_RegisterStringConfig(
                        context,
                        name.as_ptr(),
                        default.as_ptr(),
                        fixed,
                        get,
                        set,
                        None,
                        value
                    ))
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

unsafe extern "C" fn get_number(_name: *const c_char, value: *mut c_void) -> c_longlong {
    // SAFETY: `register` passed a static `AtomicI64`.
    unsafe { &*value.cast::<AtomicI64>() }.load(Ordering::Relaxed)
}

unsafe extern "C" fn set_number(
    _name: *const c_char,
    number: c_longlong,
    value: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `register` passed a static `AtomicI64`. The server has checked the range.
    unsafe { &*value.cast::<AtomicI64>() }.store(number, Ordering::Relaxed);
    OK
}

unsafe extern "C" fn get_switch(_name: *const c_char, value: *mut c_void) -> c_int {
    // SAFETY: `register` passed a static `AtomicBool`.
    c_int::from(unsafe { &*value.cast::<AtomicBool>() }.load(Ordering::Relaxed))
}

unsafe extern "C" fn set_switch(
    _name: *const c_char,
    is_on: c_int,
    value: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: `register` passed a static `AtomicBool`.
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
