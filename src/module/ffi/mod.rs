//! The interface to Redis: every raw pointer, every call, every `unsafe` but the allocator's.
//!
//! What this folder exports is safe to use: a [`Context`] for as long as a callback lasts, [`Args`]
//! as slices, a [`Key`] that closes itself, [`Guarded`] state. No raw pointer leaves. No panic
//! reaches the server: each callback catches it, logs it and answers with an error.
//!
//! It has two layers. The lower one wraps the server's API, and its callbacks call what they were
//! given. The upper one, `entry`, has the other functions that the server calls (commands, events,
//! the data type), and nothing depends on it. The rest of the module is between the two.
//!
//! The server's functions are pointers that it sets when the module is loaded. Those of Redis 7.0
//! are always set, because `init` in [`entry`] refuses an older server; newer ones are checked when
//! they are used.
#![allow(unsafe_code, reason = "the border to a C API")]

mod cluster;
mod entry;
mod functions;
mod guarded;
mod scan;
pub(super) mod settings;
mod texts;
pub(super) mod values;
pub(super) mod waiting;

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};

use redis_module::raw;

use crate::engine::{Lock, LockAccount, Refusal};
use crate::wire::lock_info::{self, FieldValue};
use crate::wire::resp::Reply;
use crate::wire::spec::c_names;

/// Calls a function of the server that Redis 7.0 has.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match raw::$name {
            Some(function) => function($($argument),*),
            // PROOF: `init` in `entry` refuses a server that is older than Redis 7.0.
            None => unreachable!(concat!(stringify!($name), " is in Redis 7.0")),
        }
    };
}
use call;
use guarded::guard_in_server;
pub use guarded::{Guarded, InServer};
pub use scan::Cursor;
pub(super) use settings::replicas;
use texts::{send_bytes, send_texts};

const OK: c_int = raw::REDISMODULE_OK as c_int;

/// Access to the server during a callback.
///
/// A callback has exactly one. An open [`Key`] borrows it exclusively, and so does each call in
/// which the server may call back. So while one `&mut Lock` is in use, no other can exist.
pub struct Context<'a> {
    raw: NonNull<raw::RedisModuleCtx>,
    callback: PhantomData<&'a ()>,
}

/// The level of a line in the server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Notice,
    Warning,
}

/// The role and state of the server and of the sender of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags(u32);

impl Flags {
    /// Whether the command states facts: it is the master's, or the append-only file's.
    pub(super) fn states_facts(self) -> bool {
        self.0 & (raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0
    }

    /// Whether a data set is being loaded.
    pub(super) fn is_loading(self) -> bool {
        self.0 & raw::REDISMODULE_CTX_FLAGS_LOADING != 0
    }

    /// Whether the server is a node of a cluster, and has only some of the keys.
    pub(super) fn is_in_cluster(self) -> bool {
        self.0 & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Whether the server is above its `maxmemory`.
    pub(super) fn is_out_of_memory(self) -> bool {
        self.0 & raw::REDISMODULE_CTX_FLAGS_OOM != 0
    }

    /// Whether the server is a replica whose link to its master is up.
    pub(super) fn has_master(self) -> bool {
        self.0 & raw::REDISMODULE_CTX_FLAGS_REPLICA_IS_ONLINE != 0
    }

    /// Whether the server is a master: only a master decides.
    pub(super) fn is_master(self) -> bool {
        self.0 & raw::REDISMODULE_CTX_FLAGS_MASTER != 0
    }
}

impl<'a> Context<'a> {
    /// Passes the context of a callback to `work`, with an unknown lifetime, so that nothing of it
    /// can be kept. If it is null, does nothing and returns `None`.
    ///
    /// # Safety
    /// `raw` must be null, or a context that lasts for this call, from which the callback makes no
    /// other `Context`. If the callback runs within a call of this module to the server, that call
    /// must borrow the outer context exclusively, so that no key is open there.
    #[inline]
    unsafe fn within<R>(
        raw: *mut raw::RedisModuleCtx,
        work: impl FnOnce(&mut Context<'_>) -> R,
    ) -> Option<R> {
        let raw = NonNull::new(raw)?;
        Some(work(&mut Context { raw, callback: PhantomData }))
    }

    /// The proof that this callback is running. It can be used while a key is open.
    #[inline]
    pub fn in_server(&self) -> InServer<'a> {
        // SAFETY: a context lasts for `'a`, a callback that the server runs under its lock.
        unsafe { InServer::new() }
    }

    /// The same with [`guard`], for a callback that returns nothing.
    ///
    /// # Safety
    /// As for [`Context::within`].
    unsafe fn enter(
        raw: *mut raw::RedisModuleCtx,
        what: &str,
        work: impl FnOnce(&mut Context<'_>),
    ) {
        // SAFETY: the caller's contract.
        unsafe { Context::within(raw, |context| guard(what, (), || work(context))) };
    }

    /// Writes a line to the server's log.
    pub(super) fn log(&self, level: Level, line: &str) {
        log_with(self.raw.as_ptr(), level, line);
    }

    /// The role and state of the server and of the sender.
    pub(super) fn flags(&self) -> Flags {
        self.flags_later()()
    }

    /// Returns a closure that reads the flags, even while a key is open: the server only reads.
    pub(super) fn flags_later(&self) -> impl Fn() -> Flags + use<'a> {
        let (raw, _callback) = (self.raw, self.callback);
        // SAFETY: the context lasts for `'a`, beyond which this closure cannot be used.
        move || Flags(unsafe { call!(RedisModule_GetContextFlags(raw.as_ptr())) } as u32)
    }

    /// Opens the key of this name in the client's database for reading and writing.
    pub fn open(&mut self, args: &Args<'_>, position: usize) -> Key<'_> {
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        // SAFETY: context and name last as long as this callback; the key takes its own reference
        // to the name. For writing, the server always returns a handle.
        let raw =
            unsafe { call!(RedisModule_OpenKey(self.raw.as_ptr(), args.raw[position], mode)) };
        Key { raw, context: PhantomData }
    }

    /// Opens the key of this name for reading; a missing key reads as empty.
    pub(super) fn open_to_read(&mut self, args: &Args<'_>, position: usize) -> Key<'_> {
        let mode = raw::REDISMODULE_READ as c_int;
        // SAFETY: as in `open`; for reading, null stands for a missing key, which `Key` allows.
        let raw =
            unsafe { call!(RedisModule_OpenKey(self.raw.as_ptr(), args.raw[position], mode)) };
        Key { raw, context: PhantomData }
    }

    /// Tells watching clients and client-side caches that the key has changed.
    pub(super) fn signal_modified(&mut self, args: &Args<'_>, position: usize) {
        // SAFETY: context and name last as long as this callback.
        unsafe { call!(RedisModule_SignalModifiedKey(self.raw.as_ptr(), args.raw[position])) };
    }

    /// Publishes a keyspace notification of class `d` (modules).
    #[inline]
    pub fn notify(&mut self, event: &'static CStr, args: &Args<'_>, position: usize) {
        let class = raw::REDISMODULE_NOTIFY_MODULE;
        // SAFETY: context and name last as long as this callback; the event is static.
        unsafe {
            let name = args.raw[position];
            call!(RedisModule_NotifyKeyspaceEvent(self.raw.as_ptr(), class, event.as_ptr(), name))
        };
    }

    /// Publishes a keyspace notification of class `d` about a key of the selected database.
    pub(super) fn notify_of(&mut self, event: &'static CStr, name: &[u8]) {
        let class = raw::REDISMODULE_NOTIFY_MODULE;
        for &name in &Strings::new(&[name]).raw {
            // SAFETY: the context lasts as long as `self`, the name until the end of this loop.
            unsafe {
                let context = self.raw.as_ptr();
                call!(RedisModule_NotifyKeyspaceEvent(context, class, event.as_ptr(), name))
            };
        }
    }

    /// Whether the server publishes notifications of class `d`.
    pub(super) fn notifies(&self) -> bool {
        // SAFETY: takes nothing.
        let classes = unsafe { call!(RedisModule_GetNotifyKeyspaceEvents()) };
        classes & raw::REDISMODULE_NOTIFY_MODULE as c_int != 0
    }

    /// Sends the command as it is to replicas and to the append-only file.
    pub(super) fn replicate_verbatim(&mut self) {
        // SAFETY: the context is that of a command, and lasts as long as this callback.
        unsafe { call!(RedisModule_ReplicateVerbatim(self.raw.as_ptr())) };
    }

    /// Runs a command of the server, and sends it to replicas and to the append-only file. Returns
    /// whether it succeeded.
    pub(super) fn run_replicated(&mut self, name: &CStr, arguments: &[&[u8]]) -> bool {
        let vector = Strings::new(arguments);
        // SAFETY: the vector and its length are what the format `v` requires; the server takes its
        // own references.
        let reply = unsafe {
            let (strings, count) = (vector.raw.as_ptr(), vector.raw.len());
            let context = self.raw.as_ptr();
            call!(RedisModule_Call(context, name.as_ptr(), c"!v".as_ptr(), strings, count))
        };
        // SAFETY: the reply is ours.
        unsafe { is_done(reply) }
    }

    /// States the node's floor to replicas and to the append-only file.
    pub(super) fn replicate_floor(&mut self, floor: u64) {
        let (context, command) = (self.raw.as_ptr(), c_names::FLOOR.as_ptr());
        // SAFETY: the context lasts as long as `self`; `l` takes a number.
        unsafe {
            call!(RedisModule_Replicate(context, command, c"l".as_ptr(), floor.cast_signed()))
        };
    }

    /// Sends the reply to `LOCK.INFO`.
    pub(super) fn describe(&mut self, account: &LockAccount) -> Answered {
        let (context, fields) = (self.raw.as_ptr(), lock_info::fields(account));
        let count = fields.iter().flatten().count();
        // SAFETY: the context is that of the command being answered; as many pairs follow.
        unsafe { call!(RedisModule_ReplyWithMap(context, count as _)) };
        for (name, value) in fields.iter().flatten() {
            send_bytes(context, name.as_bytes());
            match value {
                // SAFETY: as above.
                FieldValue::Nil => unsafe {
                    call!(RedisModule_ReplyWithNull(context));
                },
                // SAFETY: as above.
                FieldValue::Number(number) => unsafe {
                    call!(RedisModule_ReplyWithLongLong(context, *number));
                },
                FieldValue::Text(text) => send_bytes(context, text),
                FieldValue::Texts(texts) => send_texts(context, texts),
            }
        }
        Answered::Sent
    }

    #[inline]
    fn answer(&mut self, answered: Answered) {
        answered.send(self.raw.as_ptr());
    }

    fn reply_error(&mut self, text: &str) {
        let text = c_string(text);
        // SAFETY: the context is that of the command being answered; the server copies the text.
        unsafe { call!(RedisModule_ReplyWithError(self.raw.as_ptr(), text.as_ptr())) };
    }
}

/// Whether a command that was called succeeded.
///
/// # Safety
/// `reply` must be null or a reply of the caller's own: it is freed.
unsafe fn is_done(reply: *mut raw::RedisModuleCallReply) -> bool {
    if reply.is_null() {
        return false;
    }
    // SAFETY: the reply is not null, and is freed once.
    unsafe {
        let kind = call!(RedisModule_CallReplyType(reply));
        call!(RedisModule_FreeCallReply(reply));
        kind != raw::REDISMODULE_REPLY_ERROR as c_int
    }
}

/// Server strings that this module made and frees.
struct Strings {
    raw: Vec<*mut raw::RedisModuleString>,
}

impl Strings {
    fn new(texts: &[&[u8]]) -> Strings {
        Strings { raw: texts.iter().map(|text| string(text)).collect() }
    }
}

impl Drop for Strings {
    fn drop(&mut self) {
        for &string in &self.raw {
            // SAFETY: each was made by `string`, without a context, and is freed once.
            unsafe { call!(RedisModule_FreeString(null_mut(), string)) };
        }
    }
}

/// A server string without a context, which the caller must free.
fn string(bytes: &[u8]) -> *mut raw::RedisModuleString {
    let (start, length) = (bytes.as_ptr().cast::<c_char>(), bytes.len());
    // SAFETY: start and length are those of one slice, which the server copies.
    unsafe { call!(RedisModule_CreateString(null_mut(), start, length)) }
}

/// How a command answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// A reply.
    Reply(Reply),
    /// Lines of text.
    Lines(Vec<String>),
    /// Redis's error for a wrong number of arguments.
    WrongArity,
    /// The reply has been sent.
    Sent,
    /// The reply comes later: the sender is blocked.
    Later,
}

impl<R: Into<Reply>> From<R> for Answered {
    #[inline]
    fn from(reply: R) -> Answered {
        Answered::Reply(reply.into())
    }
}

impl Answered {
    #[inline(always)] // As below.
    fn send(self, context: *mut raw::RedisModuleCtx) {
        match self {
            Answered::Sent | Answered::Later => {}
            Answered::Reply(reply) => send(context, reply),
            // SAFETY: the context is that of the command being answered.
            Answered::WrongArity => unsafe {
                call!(RedisModule_WrongArity(context));
            },
            Answered::Lines(lines) => {
                // SAFETY: as above; as many elements follow.
                unsafe { call!(RedisModule_ReplyWithArray(context, lines.len() as _)) };
                for line in lines {
                    // SAFETY: as above; the server copies the text.
                    unsafe {
                        call!(RedisModule_ReplyWithSimpleString(context, c_string(&line).as_ptr()))
                    };
                }
            }
        }
    }
}

/// Sends a reply: `context` must be that of the command being answered.
#[inline(always)] // Most replies are a number: a call would cost more than what it does.
fn send(context: *mut raw::RedisModuleCtx, reply: Reply) {
    match reply {
        // SAFETY: the caller's contract.
        Reply::Integer(number) => unsafe {
            call!(RedisModule_ReplyWithLongLong(context, number));
        },
        // SAFETY: as above. What is too long is only ever read.
        Reply::Nil | Reply::TooLong(_) => unsafe {
            call!(RedisModule_ReplyWithNull(context));
        },
        Reply::Text(bytes) => send_bytes(context, &bytes),
        Reply::Error(text) => {
            // SAFETY: as above; the server copies the text.
            unsafe { call!(RedisModule_ReplyWithError(context, c_string(&text).as_ptr())) };
        }
        Reply::List(parts) | Reply::Push(parts) => send_list(context, parts),
        Reply::Map(pairs) => send_map(context, pairs),
    }
}

fn send_list(context: *mut raw::RedisModuleCtx, parts: Vec<Reply>) {
    // SAFETY: as in `send`; as many elements follow.
    unsafe { call!(RedisModule_ReplyWithArray(context, parts.len() as _)) };
    parts.into_iter().for_each(|part| send(context, part));
}

fn send_map(context: *mut raw::RedisModuleCtx, pairs: Vec<(Reply, Reply)>) {
    // SAFETY: as in `send`; as many pairs follow.
    unsafe { call!(RedisModule_ReplyWithMap(context, pairs.len() as _)) };
    for (name, value) in pairs {
        send(context, name);
        send(context, value);
    }
}

/// The arguments of a command, its name included.
pub struct Args<'a> {
    raw: &'a mut [*mut raw::RedisModuleString],
}

impl Args<'_> {
    /// How many there are, the name included.
    pub(super) fn len(&self) -> usize {
        self.raw.len()
    }

    /// The bytes of the argument at `position`; empty if there is no such argument.
    pub(super) fn get(&self, position: usize) -> &[u8] {
        let Some(&string) = self.raw.get(position) else { return &[] };
        let mut length = 0;
        // SAFETY: the server keeps the arguments until the callback returns, and their bytes stay
        // in place until `replace`, which takes `self` exclusively.
        unsafe {
            let start = call!(RedisModule_StringPtrLen(string, &mut length));
            slice(start, length).unwrap_or_default()
        }
    }

    /// Fills `slots` with the arguments from `first` on; `None` if there are more.
    pub(super) fn slices<'s, 'b>(
        &'s self,
        first: usize,
        slots: &'b mut [&'s [u8]],
    ) -> Option<&'b [&'s [u8]]> {
        let count = self.len().saturating_sub(first);
        let slots = slots.get_mut(..count)?;
        for (offset, slot) in slots.iter_mut().enumerate() {
            *slot = self.get(first + offset);
        }
        Some(slots)
    }

    /// Replaces an argument by `bytes` in the command that the server passes on.
    pub(super) fn replace(&mut self, position: usize, bytes: &[u8]) {
        let old = std::mem::replace(&mut self.raw[position], string(bytes));
        // SAFETY: `raw` is the server's own vector of arguments, each of which owns one reference
        // to its string: the new string's first reference replaces the old one's, which is given
        // up. No context: the strings must outlive this callback.
        unsafe { call!(RedisModule_FreeString(null_mut(), old)) };
    }
}

/// An open key. It closes itself, and no other key can be opened until then.
pub struct Key<'a> {
    raw: *mut raw::RedisModuleKey,
    context: PhantomData<&'a mut ()>,
}

/// What is at a key.
pub enum AtKey<'a> {
    /// No value.
    Nothing,
    /// A lock.
    Lock(&'a mut Lock),
    /// A value of another type.
    Other,
}

impl Key<'_> {
    /// What is at the key.
    #[inline]
    pub fn find(&mut self) -> AtKey<'_> {
        // SAFETY: the key is open, or null, which the server treats as a missing one.
        if unsafe { call!(RedisModule_ModuleTypeGetType(self.raw)) } != values::lock_type() {
            // SAFETY: as above.
            let kind = unsafe { call!(RedisModule_KeyType(self.raw)) };
            let is_empty = kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
            return if is_empty { AtKey::Nothing } else { AtKey::Other };
        }
        // SAFETY: the value is of our type, so it is the `Lock` that `put`, a load or a copy gave
        // to the server; the server moves or frees it only when the key is changed, which takes
        // `self` exclusively. No other reference to it exists: this key borrows the callback's only
        // context, which opening another key or a scan would need.
        match unsafe { call!(RedisModule_ModuleTypeGetValue(self.raw)).cast::<Lock>().as_mut() } {
            Some(lock) => AtKey::Lock(lock),
            None => AtKey::Nothing,
        }
    }

    /// Passes the lock to `work`, or a new one if there is none. If `keeps` is true of the outcome,
    /// a new lock is stored, and an expiry of the key is removed, as `SET` does, because otherwise
    /// the lock would expire while it is held. Returns the outcome, and whether an expiry was
    /// removed.
    ///
    /// # Errors
    /// Those of `work`, and [`Refusal::WrongType`].
    #[inline]
    pub(super) fn with_lock<T>(
        &mut self,
        work: impl FnOnce(&mut Lock) -> Result<T, Refusal>,
        keeps: impl FnOnce(&T) -> bool,
    ) -> Result<(T, bool), Refusal> {
        match self.find() {
            AtKey::Lock(lock) => {
                let outcome = work(lock)?;
                let had_expiry = keeps(&outcome) && self.persist();
                Ok((outcome, had_expiry))
            }
            AtKey::Nothing => {
                let mut lock = Lock::default();
                let outcome = work(&mut lock)?;
                if keeps(&outcome) {
                    self.put(lock);
                }
                Ok((outcome, false))
            }
            AtKey::Other => Err(Refusal::WrongType),
        }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: opened by `Context::open*`, closed once.
            unsafe { call!(RedisModule_CloseKey(self.raw)) };
        }
    }
}

/// The role and state of the server, without those of a sender.
pub(super) fn server_flags(_: InServer<'_>) -> Flags {
    // SAFETY: without a context the server reports only on itself.
    Flags(unsafe { call!(RedisModule_GetContextFlags(null_mut())) } as u32)
}

/// The wall clock in milliseconds since 1970, as the server reads it.
pub(super) fn wall_ms() -> u64 {
    // SAFETY: takes nothing.
    u64::try_from(unsafe { call!(RedisModule_Milliseconds()) }).unwrap_or(0)
}

/// Writes a line to the server's log, from anywhere under the server's lock.
pub(super) fn log(level: Level, line: &str) {
    log_with(waiting::detached(), level, line);
}

fn log_with(context: *mut raw::RedisModuleCtx, level: Level, line: &str) {
    let level = match level {
        Level::Notice => c"notice",
        Level::Warning => c"warning",
    };
    let line = c_string(line);
    // SAFETY: the line is an argument, not the format, so that no byte of it is interpreted; a
    // null context is allowed.
    unsafe {
        call!(RedisModule_Log(context, level.as_ptr(), c"%s".as_ptr(), line.as_ptr()));
    }
}

/// Runs `work`. If it panics, logs that and returns `otherwise`.
fn guard<R>(what: &str, otherwise: R, work: impl FnOnce() -> R) -> R {
    catch(what, work).unwrap_or(otherwise)
}

/// Runs `work`. If it panics, logs that and returns `None`.
fn catch<R>(what: &str, work: impl FnOnce() -> R) -> Option<R> {
    let result = catch_unwind(AssertUnwindSafe(work)).ok();
    if result.is_none() {
        log(Level::Warning, &format!("a bug in lockmod: {what} panicked"));
    }
    result
}

/// `text` for C; zeros and line ends become spaces.
fn c_string(text: &str) -> CString {
    let clean = |byte| if matches!(byte, 0 | b'\r' | b'\n') { b' ' } else { byte };
    let clean: Vec<u8> = text.bytes().map(clean).collect();
    CString::new(clean).unwrap_or_default()
}

/// # Safety
/// `start` must be null or the start of `length` readable bytes that stay unchanged for `'a`.
unsafe fn slice<'a>(start: *const c_char, length: usize) -> Option<&'a [u8]> {
    if start.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    Some(unsafe { std::slice::from_raw_parts(start.cast(), length) })
}
