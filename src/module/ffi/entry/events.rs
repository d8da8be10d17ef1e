//! The server's events, as calls of safe functions.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{c_char, c_uchar, c_void};
use std::ptr::read;

use redis_module::raw;

use super::at_once;
use crate::engine::{MoveAtOnce, SlotRuns};
use crate::module::ffi::cluster::MESSAGE;
use crate::module::ffi::functions::is_valkey;
use crate::module::ffi::{Context, OK, call, guard_in_server, slice};
use crate::module::{append_only, events, slots};

type Callback =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// The events that are subscribed to. A second subscription to an event would replace the first.
const SUBSCRIPTIONS: &[(u64, Callback)] = &[
    (raw::REDISMODULE_EVENT_FLUSHDB, on_flush),
    (raw::REDISMODULE_EVENT_SWAPDB, on_swap),
    (raw::REDISMODULE_EVENT_CRON_LOOP, on_cron),
    (raw::REDISMODULE_EVENT_LOADING, on_loading),
    (raw::REDISMODULE_EVENT_CONFIG, on_config),
    (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, on_role),
    (raw::REDISMODULE_EVENT_SHUTDOWN, on_shutdown),
    (raw::REDISMODULE_EVENT_CLIENT_CHANGE, on_client),
    (raw::REDISMODULE_EVENT_REPLICA_CHANGE, on_replica),
    (raw::REDISMODULE_EVENT_FORK_CHILD, on_fork),
];

/// With these events Redis from 8.4 on reports the progress of a move of slots at once, and that it
/// empties slots that have moved to another node. Older servers do not offer them.
const REDIS_MIGRATION: u64 = 18;
const REDIS_TRIM: u64 = 19;
/// With this event Valkey from 9.0 on reports the progress of a move of slots at once.
const VALKEY_MIGRATION: u64 = 19;

/// What each subevent means: an import begins, fails, ends; an export begins, fails, ends.
const REDIS_STEPS: [Option<MoveAtOnce>; 6] = [
    Some(MoveAtOnce::Comes),
    Some(MoveAtOnce::ComesNot),
    Some(MoveAtOnce::HasCome),
    Some(MoveAtOnce::Leaves),
    Some(MoveAtOnce::LeavesNot),
    Some(MoveAtOnce::HasLeft),
];
/// The same: an import and an export begin, fail, end.
const VALKEY_STEPS: [Option<MoveAtOnce>; 6] = [
    Some(MoveAtOnce::Comes),
    Some(MoveAtOnce::Leaves),
    Some(MoveAtOnce::ComesNot),
    Some(MoveAtOnce::LeavesNot),
    Some(MoveAtOnce::HasCome),
    Some(MoveAtOnce::HasLeft),
];

/// Subscribes to all of them.
///
/// # Safety
/// `context` must be the one that the server loads the module with.
pub(super) unsafe fn subscribe(context: *mut raw::RedisModuleCtx) -> Result<(), String> {
    let listen = |id, callback| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the loading context; the callback is static.
        unsafe { call!(RedisModule_SubscribeToServerEvent(context, event, Some(callback))) == OK }
    };
    for &(id, callback) in SUBSCRIPTIONS {
        if !listen(id, callback) {
            return Err(format!("the server does not offer event {id}"));
        }
    }
    if is_valkey() {
        listen(VALKEY_MIGRATION, on_valkey_migration);
    } else {
        listen(REDIS_MIGRATION, on_redis_migration);
        listen(REDIS_TRIM, on_trim);
    }
    // SAFETY: the loading context; the callback is static.
    unsafe {
        call!(RedisModule_RegisterClusterMessageReceiver(context, MESSAGE, Some(on_message)))
    };
    Ok(())
}

unsafe extern "C" fn on_trim(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server calls this under its lock.
    unsafe { guard_in_server("a move of slots", (), events::slots_moved) };
}

unsafe extern "C" fn on_redis_migration(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    let Some(step) = step_of(&REDIS_STEPS, subevent) else { return };
    // SAFETY: the server passes the data of this event, and a context that lasts for this callback.
    unsafe {
        let (slots, target) = at_once::redis_slots(data);
        on_step(context, step, &slots, Some(&target));
    }
}

unsafe extern "C" fn on_valkey_migration(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: the server calls this under its lock.
    unsafe { guard_in_server("a move of slots", (), events::slots_moved) };
    let Some(step) = step_of(&VALKEY_STEPS, subevent) else { return };
    // SAFETY: the server passes the data of this event, and a context that lasts for this callback.
    unsafe {
        let slots = at_once::valkey_slots(data);
        // The move is only complete if the slots have come to where they were sent.
        on_step(context, step, &slots, None);
    }
}

fn step_of(steps: &[Option<MoveAtOnce>], subevent: u64) -> Option<MoveAtOnce> {
    steps.get(usize::try_from(subevent).ok()?).copied().flatten()
}

/// # Safety
/// `context` must be the one that the server passes with an event.
unsafe fn on_step(
    context: *mut raw::RedisModuleCtx,
    step: MoveAtOnce,
    slots: &SlotRuns,
    to: Option<&[u8]>,
) {
    // SAFETY: by contract.
    unsafe { Context::enter(context, "a move of slots", |it| slots::moves(it, step, slots, to)) };
}

unsafe extern "C" fn on_message(
    context: *mut raw::RedisModuleCtx,
    sender: *const c_char,
    _kind: u8,
    message: *const c_uchar,
    length: u32,
) {
    // SAFETY: the server passes a name of this length, and a message with its own.
    let (sender, message) = unsafe {
        let sender = slice(sender, raw::REDISMODULE_NODE_ID_LEN as usize);
        (sender, slice(message.cast(), length as usize))
    };
    if let (Some(sender), Some(message)) = (sender, message) {
        // SAFETY: the server calls this under its lock.
        unsafe {
            Context::enter(context, "a message of the Cluster", |context| {
                slots::heard(context, sender, message);
            });
        }
    }
}

unsafe extern "C" fn on_flush(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_FLUSHDB_START {
        // SAFETY: the server calls this under its lock.
        unsafe { guard_in_server("a flush", (), events::flushed) };
    }
}

unsafe extern "C" fn on_swap(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server calls this under its lock.
    unsafe { guard_in_server("a swap of databases", (), events::swapped) };
}

unsafe extern "C" fn on_loading(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
        // SAFETY: the server calls this under its lock.
        unsafe { guard_in_server("the end of loading", (), events::loaded) };
    }
}

unsafe extern "C" fn on_cron(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::enter(context, "a tick", events::ticked) };
}

unsafe extern "C" fn on_config(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::enter(context, "a change of settings", events::configured) };
}

unsafe extern "C" fn on_fork(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
        // SAFETY: the server passes a context that lasts for this callback.
        unsafe { Context::enter(context, "a child process", append_only::look_at_file) };
    }
}

unsafe extern "C" fn on_role(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    let is_master = subevent == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER;
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe {
        Context::enter(context, "a change of role", |context| {
            events::role_changed(context, is_master)
        })
    };
}

unsafe extern "C" fn on_replica(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    _data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE {
        // SAFETY: the server calls this under its lock.
        unsafe { guard_in_server("a new replica", (), events::replica_came) };
    } else {
        // SAFETY: as above.
        unsafe { guard_in_server("a lost replica", (), events::replica_left) };
    }
}

unsafe extern "C" fn on_shutdown(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::enter(context, "a stop", events::stopping) };
}

unsafe extern "C" fn on_client(
    _context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if subevent == raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED {
        // SAFETY: the server passes the data of this event.
        if let Some(client) = unsafe { client_of_event(data) } {
            // SAFETY: as above, under its lock.
            unsafe {
                guard_in_server("a lost client", (), |server| {
                    events::disconnected(server, client);
                });
            }
        }
    }
}

/// The number of the client that a client event is about.
///
/// # Safety
/// `data` must be what the server passes with a client event.
unsafe fn client_of_event(data: *mut c_void) -> Option<u64> {
    let info = data.cast::<raw::RedisModuleClientInfo>();
    // SAFETY: the server passes this structure, which lasts for the callback.
    if info.is_null() { None } else { Some(unsafe { read(info) }.id) }
}
