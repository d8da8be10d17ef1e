//! The server's settings, its replicas, and what it reports about itself.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use super::functions::is_valkey;
use super::texts::text_of;
use super::{Context, InServer, OK, Strings, c_string, call, raw};
use crate::engine::{Fence, Heartbeat, Replicas};
use crate::wire::spec::c_names;
use crate::wire::{fact, node_info};

/// What becomes of the server's append-only file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::module) enum FileState {
    /// It gets every write.
    Written,
    /// A child process writes a new one.
    BeingRewritten,
    /// It is off, or will be rewritten later: if it is new, no write goes to it until then.
    Unwritten,
}

/// What the server reports about its replicas. The server only reads.
pub(in crate::module) fn replicas(_: InServer<'_>) -> Replicas {
    // SAFETY: without a context, the data is ours, and is freed once; the names are terminated.
    unsafe {
        let data = call!(RedisModule_GetServerInfo(null_mut(), c"replication".as_ptr()));
        let number = |name: &CStr| {
            let mut status = OK;
            let number =
                call!(RedisModule_ServerInfoGetFieldUnsigned(data, name.as_ptr(), &mut status));
            (status == OK).then_some(number)
        };
        // Without an offset, nothing that is acknowledged is beyond it.
        let offset = number(c"master_repl_offset").unwrap_or(u64::MAX);
        let attached = (0..number(c"connected_slaves").unwrap_or(0)).filter_map(|position| {
            let name = c_string(&format!("slave{position}"));
            let text = call!(RedisModule_ServerInfoGetFieldC(data, name.as_ptr()));
            // The server keeps the text until the data is freed.
            let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes())?;
            node_info::read_replica(text)
        });
        let attached = attached.collect();
        call!(RedisModule_FreeServerInfo(null_mut(), data));
        Replicas { offset, attached }
    }
}

impl Context<'_> {
    /// Sends a heartbeat to replicas, and not to the append-only file.
    pub(in crate::module) fn replicate_heartbeat(&mut self, floor: Fence, heartbeat: Heartbeat) {
        let (context, command) = (self.raw.as_ptr(), c_names::FLOOR.as_ptr());
        let text = fact::heartbeat(floor, heartbeat);
        // SAFETY: the context lasts as long as `self`; `b` takes start and length, which are those
        // of one text, and `A` nothing.
        unsafe {
            let (start, length) = (text.as_ptr().cast::<c_char>(), text.len());
            call!(RedisModule_Replicate(context, command, c"Ab".as_ptr(), start, length))
        };
    }

    /// The value of one of the server's settings, as text.
    pub(in crate::module) fn setting(&mut self, name: &str) -> Option<String> {
        let vector = Strings::new(&[b"GET", name.as_bytes()]);
        // SAFETY: as in `run_replicated`; the reply is freed below.
        let reply = unsafe {
            let (strings, count) = (vector.raw.as_ptr(), vector.raw.len());
            let context = self.raw.as_ptr();
            call!(RedisModule_Call(context, c"CONFIG".as_ptr(), c"v".as_ptr(), strings, count))
        };
        if reply.is_null() {
            return None;
        }
        // SAFETY: the second element of the pair is looked up, and read before the reply is freed;
        // the server returns null for a missing element.
        unsafe {
            let value = text_of(call!(RedisModule_CallReplyArrayElement(reply, 1)));
            call!(RedisModule_FreeCallReply(reply));
            value
        }
    }

    /// The port on which the server listens, for TLS if it has no other; 0 if none. From INFO,
    /// which also works if CONFIG was renamed.
    pub(in crate::module) fn port(&mut self) -> u16 {
        self.figure(c"server", c"tcp_port").and_then(|port| port.try_into().ok()).unwrap_or(0)
    }

    /// The error with which the server refuses writes now, if it does. It is found by a write
    /// without a key that changes nothing.
    pub(in crate::module) fn refusal_of_writes(&mut self) -> Option<String> {
        // In script mode the server checks its disk and its replicas: see `KeyName::writes`.
        let (name, format) = (c_names::FLOOR.as_ptr(), c"ES".as_ptr());
        // SAFETY: the context lasts as long as `self`, and no key is open. The reply is ours: its
        // text is read before it is freed.
        unsafe {
            let reply = call!(RedisModule_Call(self.raw.as_ptr(), name, format));
            if reply.is_null() {
                return None;
            }
            let is_error =
                call!(RedisModule_CallReplyType(reply)) == raw::REDISMODULE_REPLY_ERROR as c_int;
            let text = text_of(reply).filter(|_| is_error);
            call!(RedisModule_FreeCallReply(reply));
            text.map(|text| text.trim().to_owned())
        }
    }

    /// A number from a section of INFO.
    fn figure(&self, section: &CStr, field: &CStr) -> Option<u64> {
        let [figure] = self.figures(section, [field]);
        figure
    }

    /// Several of them: the server makes the section once.
    fn figures<const N: usize>(&self, section: &CStr, fields: [&CStr; N]) -> [Option<u64>; N] {
        // SAFETY: the context lasts as long as `self`; the data is ours, and is freed once.
        unsafe {
            let data = call!(RedisModule_GetServerInfo(self.raw.as_ptr(), section.as_ptr()));
            let figures = fields.map(|field| {
                let (field, mut status) = (field.as_ptr(), OK);
                let figure =
                    call!(RedisModule_ServerInfoGetFieldUnsigned(data, field, &mut status));
                (status == OK).then_some(figure)
            });
            call!(RedisModule_FreeServerInfo(self.raw.as_ptr(), data));
            figures
        }
    }

    /// Whether nothing may be sent to replicas at this moment, because writes are paused.
    pub(in crate::module) fn must_not_replicate(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { call!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// Whether a server of this kind, if it has threads for its connections, may send a reply
    /// before its append-only file has the write: seen with Redis 8.6.3 and Valkey 9.1.2, and not
    /// with Redis 7 and Valkey 8.
    pub(in crate::module) fn threads_may_reply_early(&self) -> bool {
        // Valkey also reports a version of Redis, which is 7.
        match is_valkey() {
            true => self.major(c"valkey_version") != Some(8),
            false => self.major(c"redis_version") != Some(7),
        }
    }

    /// The first number of a version in INFO.
    fn major(&self, field: &CStr) -> Option<u32> {
        // SAFETY: the context lasts as long as `self`; the data is ours, and is freed once, after
        // the text in it was read.
        unsafe {
            let data = call!(RedisModule_GetServerInfo(self.raw.as_ptr(), c"server".as_ptr()));
            let text = call!(RedisModule_ServerInfoGetFieldC(data, field.as_ptr()));
            let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy());
            let major = text.and_then(|text| text.split('.').next()?.parse().ok());
            call!(RedisModule_FreeServerInfo(self.raw.as_ptr(), data));
            major
        }
    }

    /// What the server does with its append-only file.
    pub(in crate::module) fn file_state(&self) -> FileState {
        let fields = [c"aof_rewrite_in_progress", c"aof_rewrite_scheduled", c"aof_enabled"];
        let [is_being_rewritten, is_scheduled, is_on] =
            self.figures(c"persistence", fields).map(|figure| figure != Some(0));
        // The server reports it as scheduled, too, until the event of the fork is over.
        if is_on && is_being_rewritten {
            FileState::BeingRewritten
        } else if is_scheduled || !is_on {
            FileState::Unwritten
        } else {
            FileState::Written
        }
    }

    /// Whether the whole data set is on disk, as far as the server knows.
    pub(in crate::module) fn is_data_set_saved(&mut self) -> bool {
        // The server syncs an append-only file before it sends the event that it stops.
        if self.setting("appendonly").is_some_and(|value| value == "yes") {
            return true;
        }
        self.figure(c"persistence", c"rdb_changes_since_last_save") == Some(0)
    }
}
