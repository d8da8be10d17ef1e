//! What a node of a Cluster sends and learns.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{CStr, CString, c_char, c_int, c_longlong};
use std::ptr::null;

use redis_module::raw;

use super::texts::text_of;
use super::{Context, call};

/// The type of this module's messages. Other modules may use the same.
pub(super) const MESSAGE: u8 = 1;

impl Context<'_> {
    /// The reply to `CLUSTER NODES`; `None` if the server does not give one.
    pub(in crate::module) fn cluster_nodes(&mut self) -> Option<String> {
        self.cluster(c"NODES")
    }

    /// The reply to this `CLUSTER` command; `None` if it is no text.
    fn cluster(&mut self, word: &CStr) -> Option<String> {
        let (command, format): (&CStr, &CStr) = (c"CLUSTER", c"c");
        // SAFETY: the context lasts as long as `self`, and no key is open; `c` takes a terminated
        // text. The reply is ours: its text is read before it is freed.
        unsafe {
            let (command, format) = (command.as_ptr(), format.as_ptr());
            let reply = call!(RedisModule_Call(self.raw.as_ptr(), command, format, word.as_ptr()));
            if reply.is_null() {
                return None;
            }
            let is_text =
                call!(RedisModule_CallReplyType(reply)) == raw::REDISMODULE_REPLY_STRING as c_int;
            let text = text_of(reply).filter(|_| is_text);
            call!(RedisModule_FreeCallReply(reply));
            text
        }
    }

    /// Whether this server has any key, in any database.
    pub(in crate::module) fn has_keys(&mut self) -> bool {
        let mut has_keys = false;
        self.in_each_database(|context, _| has_keys |= context.has_selected_keys());
        has_keys
    }

    /// The same for the selected database.
    fn has_selected_keys(&mut self) -> bool {
        // SAFETY: the context lasts as long as `self`.
        unsafe { call!(RedisModule_DbSize(self.raw.as_ptr())) > 0 }
    }

    /// Whether this server has keys in a slot, in any database: Valkey 9 may have several in a
    /// Cluster. (`CLUSTER COUNTKEYSINSLOT`, which Redis 8.4 and later answer with 0 for a slot that
    /// is not the server's own.)
    pub(in crate::module) fn has_keys_in(&mut self, slot: u16) -> bool {
        let mut has_keys = false;
        self.in_each_database(|context, _| {
            // Most databases are empty.
            has_keys =
                has_keys || context.has_selected_keys() && context.has_selected_keys_in(slot);
        });
        has_keys
    }

    /// The same for the selected database.
    fn has_selected_keys_in(&mut self, slot: u16) -> bool {
        let (command, word, format): (&CStr, &CStr, &CStr) =
            (c"CLUSTER", c"COUNTKEYSINSLOT", c"cl");
        // SAFETY: the context lasts as long as `self`, and no key is open; `c` takes a terminated
        // text, and `l` a number. The reply is ours, and read before it is freed. No reply reads as
        // an error, which is not 0.
        unsafe {
            let (command, format) = (command.as_ptr(), format.as_ptr());
            let slot = c_longlong::from(slot);
            let raw = self.raw.as_ptr();
            let reply = call!(RedisModule_Call(raw, command, format, word.as_ptr(), slot));
            if reply.is_null() {
                return true;
            }
            let count = call!(RedisModule_CallReplyInteger(reply));
            call!(RedisModule_FreeCallReply(reply));
            count != 0
        }
    }

    /// Makes this server's configuration epoch the highest that it knows, so that no other master
    /// wins a slot of it back when it returns.
    pub(in crate::module) fn raise_epoch(&mut self) {
        // Whether it was raised or is the highest already does not matter.
        let _ = self.cluster(c"BUMPEPOCH");
    }

    /// Sends a message to the node of the Cluster with this name, or to all. A node that cannot be
    /// reached does not get it.
    pub(in crate::module) fn tell_cluster(&mut self, name: Option<&[u8]>, text: &str) {
        let Ok(length) = u32::try_from(text.len()) else { return };
        let start = text.as_ptr().cast::<c_char>();
        // The server reads the name up to a zero byte.
        let name = match name.map(CString::new) {
            None => None,
            Some(Ok(name)) => Some(name),
            Some(Err(_)) => return,
        };
        let name = name.as_ref().map_or(null(), |name| name.as_ptr());
        // SAFETY: the context lasts as long as `self`; the server copies the bytes.
        unsafe {
            call!(RedisModule_SendClusterMessage(self.raw.as_ptr(), name, MESSAGE, start, length))
        };
    }
}
