//! Texts in replies.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::c_char;

use redis_module::raw;

use super::{call, slice};

/// The text of a reply to a call of the server, or of a part of one; `None` if there is none.
///
/// # Safety
/// The reply must not have been freed.
pub(super) unsafe fn text_of(reply: *mut raw::RedisModuleCallReply) -> Option<String> {
    if reply.is_null() {
        return None;
    }
    let mut length = 0;
    // SAFETY: the reply is there. The server returns null for one without text.
    let text = unsafe { slice(call!(RedisModule_CallReplyStringPtr(reply, &mut length)), length) };
    text.map(|text| String::from_utf8_lossy(text).into_owned())
}

/// Replies with these bytes.
pub(super) fn send_bytes(context: *mut raw::RedisModuleCtx, bytes: &[u8]) {
    let (start, length) = (bytes.as_ptr().cast::<c_char>(), bytes.len());
    // SAFETY: start and length are those of one slice; the server copies it.
    unsafe { call!(RedisModule_ReplyWithStringBuffer(context, start, length)) };
}

/// Replies with an array of texts.
pub(super) fn send_texts(context: *mut raw::RedisModuleCtx, texts: &[Vec<u8>]) {
    // SAFETY: the context is that of the command being answered; as many texts follow.
    unsafe { call!(RedisModule_ReplyWithArray(context, texts.len() as _)) };
    texts.iter().for_each(|text| send_bytes(context, text));
}
