//! What servers tell of a move of slots at once.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{c_char, c_int, c_void};

use redis_module::raw;

use crate::engine::SlotRuns;

type NodeId = [c_char; raw::REDISMODULE_NODE_ID_LEN as usize + 1];

/// Version 1 of what Redis tells.
#[repr(C)]
struct RedisInfo {
    version: u64,
    source: NodeId,
    target: NodeId,
    task: *const c_char,
    slots: *const RedisRanges,
}

#[repr(C)]
struct RedisRanges {
    count: i32,
    ranges: [[u16; 2]; 0],
}

/// Version 1 of what Valkey tells.
#[repr(C)]
struct ValkeyInfo {
    version: u64,
    job: NodeId,
    ranges: *const [c_int; 2],
    count: u32,
}

/// The slots that Redis names, and the master that gets them.
///
/// # Safety
/// `data` must be null, or what Redis passes with an event about a move of slots.
pub(super) unsafe fn redis_slots(data: *const c_void) -> (SlotRuns, Vec<u8>) {
    // SAFETY: by contract; later versions only add fields at the end.
    unsafe {
        let Some(info) = data.cast::<RedisInfo>().as_ref() else { return Default::default() };
        let Some(slots) = info.slots.as_ref() else { return Default::default() };
        // The last byte is zero.
        let target = info.target.split_last().map(|(_, name)| name).unwrap_or_default();
        let target = target.iter().map(|byte| byte.cast_unsigned()).collect();
        let first = (&raw const slots.ranges).cast::<[u16; 2]>();
        let ranges = std::slice::from_raw_parts(first, usize::try_from(slots.count).unwrap_or(0));
        (ranges.iter().map(|&[first, last]| (first, last)).collect(), target)
    }
}

/// The slots that Valkey names.
///
/// # Safety
/// `data` must be null, or what Valkey passes with an event about a move of slots.
pub(super) unsafe fn valkey_slots(data: *const c_void) -> SlotRuns {
    // SAFETY: by contract; later versions only add fields at the end.
    let ranges = unsafe {
        let info = data.cast::<ValkeyInfo>().as_ref();
        let Some(info) = info.filter(|info| !info.ranges.is_null()) else { return Vec::new() };
        std::slice::from_raw_parts(info.ranges, info.count as usize)
    };
    let slot = |number: c_int| u16::try_from(number).ok();
    ranges.iter().filter_map(|&[first, last]| Some((slot(first)?, slot(last)?))).collect()
}
