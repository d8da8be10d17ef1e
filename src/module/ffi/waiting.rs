//! What waiting needs from the server: names outside of a command, blocked clients, publishing, and
//! timers.
//!
//! Blocked clients do not use the server's timeout or its callback: both race a grant in the same
//! turn of the event loop, and then the client gets no reply, or the server aborts. Whatever
//! happens, [`Blocked::answer`] answers a client exactly once.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use rustix::io::Errno;

use super::functions::check_permissions;
use super::{Args, Context, InServer, Key, OK, call, guard_in_server, is_done, slice, string};
use crate::engine::Millis;
use crate::wire::outcome::AcquireReply;
use crate::wire::resp::Reply;
use crate::wire::spec::{self, c_names};

/// Whether a server accepts a client's write to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::module) enum Writes {
    Taken,
    /// Replicas are missing, or the cluster is down.
    Refused,
    /// The key's slot belongs to another node of the cluster.
    Elsewhere,
}

/// The module's own context, which belongs to no callback. It may be used at any time under the
/// server's lock.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// Creates the module's own context.
///
/// # Safety
/// `context` must be the one that the server loads the module with.
pub(super) unsafe fn prepare(context: *mut raw::RedisModuleCtx) {
    // SAFETY: the loading context; the new one is never freed.
    let detached = unsafe { call!(RedisModule_GetDetachedThreadSafeContext(context)) };
    DETACHED.store(detached, Ordering::Relaxed);
}

/// The module's own context. What is replicated through it is sent when the running callback has
/// returned, and only if that callback has a context.
pub(super) fn detached() -> *mut raw::RedisModuleCtx {
    DETACHED.load(Ordering::Relaxed)
}

/// Something to do later, with a context in which everything is allowed.
pub(in crate::module) trait Task {
    /// Its name in the log if it panics.
    const WHAT: &'static str;

    /// Runs it.
    fn run(context: &mut Context<'_>);
}

/// Runs a task after `length` by the wall clock, so a step of that clock makes it earlier or later.
/// With a length of zero it runs in this turn of the event loop or the next.
pub(in crate::module) fn do_after<T: Task>(_: InServer<'_>, length: Millis) {
    let length = length.get().cast_signed();
    // SAFETY: the context is the module's own; the callback is static and takes no data.
    unsafe { call!(RedisModule_CreateTimer(detached(), length, Some(on_time::<T>), null_mut())) };
}

unsafe extern "C" fn on_time<T: Task>(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::enter(context, T::WHAT, T::run) };
}

/// Calls [`Told::rang`] of `T` whenever `fd` can be read. Returns whether the server agreed to.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has timers to watch"))]
pub(in crate::module) fn watch<T: Told>(fd: BorrowedFd<'static>) -> bool {
    let readable = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
    // SAFETY: the descriptor is never closed; the callback is static and takes no data.
    unsafe {
        let callback = Some(on_readable::<T> as _);
        call!(RedisModule_EventLoopAdd(fd.as_raw_fd(), readable, callback, null_mut())) == OK
    }
}

unsafe extern "C" fn on_readable<T: Told>(_fd: c_int, _data: *mut c_void, _mask: c_int) {
    // SAFETY: the server calls this from its event loop, under its lock.
    unsafe { guard_in_server("an alarm", (), T::rang) };
}

/// An answer to a blocked client, and what happens if it is lost.
pub(in crate::module) trait Told: Sized {
    /// An answer that no client received.
    type Lost;

    /// The reply to a client that is still there.
    ///
    /// # Errors
    /// The text of an error reply.
    fn deliver(&self) -> Result<Reply, String>;

    /// Called when the answer was delivered, or its client is gone. Returns what no client
    /// received, if that matters.
    fn lost(self, server: InServer<'_>) -> Option<Self::Lost>;

    /// Undoes what was lost.
    fn make_good(context: &mut Context<'_>, lost: Self::Lost);

    /// Called when a blocked client is gone, or was unblocked by force.
    fn hung_up(server: InServer<'_>, blocked: u64);

    /// Called when the alarm by which waiters are served has gone off.
    fn rang(server: InServer<'_>);
}

impl Context<'_> {
    /// The database in which keys are opened.
    pub(in crate::module) fn database(&self) -> u32 {
        // SAFETY: the context lasts as long as `self`.
        unsafe { call!(RedisModule_GetSelectedDb(self.raw.as_ptr())) as u32 }
    }

    /// The name of a key in the selected database.
    pub(in crate::module) fn name(&self, bytes: &[u8]) -> KeyName {
        KeyName { raw: string(bytes) }
    }

    /// The number of the connection that sent the command, and whether its user may publish to
    /// `channel`; `None` without a user's connection: in a script, or for a module.
    pub(in crate::module) fn sender(&mut self, channel: &[u8]) -> Option<(u64, bool)> {
        let flags = self.flags().0;
        if flags & raw::REDISMODULE_CTX_FLAGS_LUA != 0 {
            return None;
        }
        let context = self.raw.as_ptr();
        // SAFETY: the context lasts as long as `self`; the server returns null for a client without
        // a connection or a user. Name, channel and user are ours, and each is freed once.
        unsafe {
            let id = call!(RedisModule_GetClientId(context));
            let name = call!(RedisModule_GetClientUserNameById(context, id));
            if name.is_null() {
                return None;
            }
            let user = call!(RedisModule_GetModuleUserFromUserName(name));
            call!(RedisModule_FreeString(context, name));
            if user.is_null() {
                return None;
            }
            let channel = string(channel);
            let access = raw::REDISMODULE_CMD_CHANNEL_PUBLISH as c_int;
            let may = call!(RedisModule_ACLCheckChannelPermissions(user, channel, access)) == OK;
            call!(RedisModule_FreeString(null_mut(), channel));
            call!(RedisModule_FreeModuleUser(user));
            Some((id, may))
        }
    }

    /// The name of the user who sent the command; empty if there is none.
    pub(in crate::module) fn user(&mut self) -> Box<[u8]> {
        // SAFETY: the context lasts as long as `self`.
        let id = unsafe { call!(RedisModule_GetClientId(self.raw.as_ptr())) };
        self.user_of(id).unwrap_or_default()
    }

    /// The name of the user of a connection, if the connection is open.
    pub(in crate::module) fn user_of(&mut self, id: u64) -> Option<Box<[u8]>> {
        let context = self.raw.as_ptr();
        // SAFETY: the context lasts as long as `self`. The server returns null for an unknown
        // client; the name is ours, its bytes last as long as it does, and it is freed once.
        unsafe {
            let name = call!(RedisModule_GetClientUserNameById(context, id));
            if name.is_null() {
                return None;
            }
            let mut length = 0;
            let start = call!(RedisModule_StringPtrLen(name, &mut length));
            let bytes = slice(start, length).unwrap_or_default().into();
            call!(RedisModule_FreeString(context, name));
            Some(bytes)
        }
    }

    /// Publishes a message to the subscribers of a channel. Returns how many there are here.
    pub(in crate::module) fn publish(&mut self, channel: &[u8], message: &[u8]) -> c_int {
        let (context, channel, message) = (self.raw.as_ptr(), string(channel), string(message));
        // SAFETY: the context lasts as long as `self`; the strings are ours, and freed once.
        unsafe {
            let count = call!(RedisModule_PublishMessage(context, channel, message));
            call!(RedisModule_FreeString(null_mut(), channel));
            call!(RedisModule_FreeString(null_mut(), message));
            count
        }
    }

    /// Whether a client has subscribed to this channel on this server, itself and not a pattern.
    pub(in crate::module) fn has_subscriber(&mut self, channel: &[u8]) -> bool {
        let (command, word, format): (&CStr, &CStr, &CStr) = (c"PUBSUB", c"NUMSUB", c"cb");
        let (start, length) = (channel.as_ptr().cast::<c_char>(), channel.len());
        // SAFETY: the context lasts as long as `self`, and no key is open; `c` takes a terminated
        // text, and `b` bytes and their number. The reply is ours: a channel and a number, which is
        // read before it is freed. No reply, and no part of one, reads as no number.
        unsafe {
            let (command, word, format) = (command.as_ptr(), word.as_ptr(), format.as_ptr());
            let raw = self.raw.as_ptr();
            let reply = call!(RedisModule_Call(raw, command, format, word, start, length));
            if reply.is_null() {
                return false;
            }
            let count = call!(RedisModule_CallReplyArrayElement(reply, 1));
            let count =
                if count.is_null() { 0 } else { call!(RedisModule_CallReplyInteger(count)) };
            call!(RedisModule_FreeCallReply(reply));
            count > 0
        }
    }

    /// Whether the sender of the command may be blocked: not in a transaction or a script, for
    /// example.
    pub(in crate::module) fn may_block(&self) -> bool {
        let at_once = raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
            | raw::REDISMODULE_CTX_FLAGS_REPLICATED
            | raw::REDISMODULE_CTX_FLAGS_LOADING;
        self.flags().0 & at_once == 0
    }

    /// Blocks the sender of the command, which is answered later. Newer Valkeys block none that has
    /// subscribed to a channel: `None`, and nothing has happened.
    pub(in crate::module) fn block<T: Told>(&mut self) -> Option<Blocked<T>> {
        // SAFETY: the context is that of a command whose sender may be blocked. The callbacks are
        // static. The server keeps the handle until the client is answered.
        unsafe {
            let (reply, free) = (Some(on_reply::<T> as _), Some(on_free::<T> as _));
            let raw = call!(RedisModule_BlockClient(self.raw.as_ptr(), reply, None, free, 0));
            if raw.is_null() {
                return None;
            }
            call!(RedisModule_SetDisconnectCallback(raw, Some(on_disconnect::<T>)));
            Some(Blocked { raw, told: PhantomData })
        }
    }
}

/// The name of a key that is not an argument of the command.
pub(in crate::module) struct KeyName {
    raw: *mut raw::RedisModuleString,
}

impl KeyName {
    /// Opens the key for reading and writing.
    pub(in crate::module) fn open<'k>(&self, context: &'k mut Context<'_>) -> Key<'k> {
        self.args(|args| context.open(args, 0))
    }

    /// Opens the key for reading; a missing key reads as empty.
    pub(in crate::module) fn open_to_read<'k>(&self, context: &'k mut Context<'_>) -> Key<'k> {
        self.args(|args| context.open_to_read(args, 0))
    }

    /// Notifies watching clients, and publishes a keyspace notification.
    pub(in crate::module) fn changed(&self, context: &mut Context<'_>, event: &'static CStr) {
        self.args(|args| {
            context.signal_modified(args, 0);
            context.notify(event, args, 0);
        });
    }

    /// Publishes a keyspace notification.
    pub(in crate::module) fn notify(&self, context: &mut Context<'_>, event: &'static CStr) {
        self.args(|args| context.notify(event, args, 0));
    }

    /// States a grant to replicas and to the append-only file, as a command of its own.
    pub(in crate::module) fn replicate_acquire(
        &self,
        context: &mut Context<'_>,
        token: &[u8],
        fact: &[u8],
        label: &[u8],
    ) {
        let [token, fact, label_bytes] =
            [token, fact, label].map(|bytes| (bytes.as_ptr().cast::<c_char>(), bytes.len()));
        let (context, command) = (context.raw.as_ptr(), c_names::ACQUIRE.as_ptr());
        // SAFETY: context and name are alive; each `b` takes the start and length of one slice;
        // `s` takes a string of the server, `c` a terminated one.
        unsafe {
            if label.is_empty() {
                let format = c"sbb".as_ptr();
                call!(RedisModule_Replicate(
                    context, command, format, self.raw, token.0, token.1, fact.0, fact.1
                ));
            } else {
                let (format, keyword) = (c"sbbcb".as_ptr(), c_names::LABEL.as_ptr());
                call!(RedisModule_Replicate(
                    context,
                    command,
                    format,
                    self.raw,
                    token.0,
                    token.1,
                    fact.0,
                    fact.1,
                    keyword,
                    label_bytes.0,
                    label_bytes.1
                ));
            }
        }
    }

    /// States a release to replicas and to the append-only file, as a command of its own.
    pub(in crate::module) fn replicate_release(&self, context: &mut Context<'_>, token: &[u8]) {
        let (start, length) = (token.as_ptr().cast::<c_char>(), token.len());
        let (context, command) = (context.raw.as_ptr(), c_names::RELEASE.as_ptr());
        // SAFETY: as above.
        unsafe {
            call!(RedisModule_Replicate(context, command, c"sb".as_ptr(), self.raw, start, length))
        };
    }

    /// Whether the access rules allow this user to acquire the lock. The context's database must be
    /// that of the lock.
    pub(in crate::module) fn may_be_acquired(
        &self,
        context: &mut Context<'_>,
        user: &[u8],
    ) -> bool {
        let database = context.database() as c_int;
        let (command, user) = (string(spec::ACQUIRE.as_bytes()), string(user));
        let (token, ttl) = (string(b"-"), string(b"1"));
        // SAFETY: strings and user are ours, and each is freed once; the name is alive. The server
        // returns null for a user that does not exist.
        unsafe {
            let known = call!(RedisModule_GetModuleUserFromUserName(user));
            let mut arguments = [command, self.raw, token, ttl];
            let count = arguments.len() as c_int;
            let may = !known.is_null() && {
                let start = arguments.as_mut_ptr();
                // Without the database, a server that has rules for databases refuses.
                let check = match check_permissions() {
                    Some(check) => check(known, start, count, database, null_mut()),
                    None => call!(RedisModule_ACLCheckCommandPermissions(known, start, count)),
                };
                call!(RedisModule_FreeModuleUser(known));
                check == OK
            };
            for text in [command, user, token, ttl] {
                call!(RedisModule_FreeString(null_mut(), text));
            }
            may
        }
    }

    /// Whether the server would accept a client's write to this key now. It tries a command that
    /// changes nothing and that the module itself does not refuse, as long as the lock is free and
    /// the node could grant it.
    pub(in crate::module) fn writes(&self, context: &mut Context<'_>) -> Writes {
        let (context, command) = (context.raw.as_ptr(), c_names::EXTEND.as_ptr());
        // `S`: in script mode the server checks its replicas. `E`: it returns a refusal as a
        // readable error; without a text for one, Valkey 9.1 reads it nevertheless, and crashes.
        let format = c"ESscc".as_ptr();
        // SAFETY: context and name are alive; `s` takes a string of the server, `c` a terminated
        // one. The reply is ours.
        unsafe {
            let (token, ttl) = (c"-".as_ptr(), c"1".as_ptr());
            let reply = call!(RedisModule_Call(context, command, format, self.raw, token, ttl));
            // The reason, if the server has refused. Must be read before any other call.
            let error = std::io::Error::last_os_error().raw_os_error();
            if is_done(reply) {
                Writes::Taken
            } else if error == Some(Errno::PERM.raw_os_error()) {
                Writes::Elsewhere
            } else {
                Writes::Refused
            }
        }
    }

    /// The name as the only argument, for functions that take a position.
    fn args<R>(&self, work: impl FnOnce(&Args<'_>) -> R) -> R {
        work(&Args { raw: &mut [self.raw] })
    }
}

impl Drop for KeyName {
    fn drop(&mut self) {
        // SAFETY: made by `Context::name`, and freed once; an open key has its own reference.
        unsafe { call!(RedisModule_FreeString(null_mut(), self.raw)) };
    }
}

/// A blocked client, until it is answered.
#[derive(Debug)]
pub(in crate::module) struct Blocked<T> {
    raw: *mut raw::RedisModuleBlockedClient,
    told: PhantomData<T>,
}

// SAFETY: a server handle, used only under its lock. It contains no `T`.
unsafe impl<T> Send for Blocked<T> {}

impl<T: Told> Blocked<T> {
    /// A number that is unique among the clients that are blocked now.
    pub(in crate::module) fn id(&self) -> u64 {
        self.raw as u64
    }

    /// Answers it, even if it is gone: see [`Told::lost`].
    pub(in crate::module) fn answer(self, told: T) {
        let told = Box::into_raw(Box::new(told));
        // SAFETY: `self` is consumed, so this happens once. The server owns the answer from now on,
        // and gives it to `on_free`.
        unsafe { call!(RedisModule_UnblockClient(self.raw, told.cast())) };
    }
}

/// Answers a client that is still connected.
unsafe extern "C" fn on_reply<T: Told>(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    let deliver = |context: &mut Context<'_>| {
        // SAFETY: what `Blocked::answer` gave to the server, which keeps it until `on_free`.
        let answer = unsafe {
            call!(RedisModule_GetBlockedClientPrivateData(context.raw.as_ptr()))
                .cast::<T>()
                .as_ref()
        };
        let Some(answer) = answer else { return context.answer(AcquireReply::Held.into()) };
        match answer.deliver() {
            Ok(reply) => context.answer(reply.into()),
            Err(refusal) => context.reply_error(&refusal),
        }
    };
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::enter(context, "an answer", deliver) };
    OK
}

/// Called when the answer was given, or the client is gone.
unsafe extern "C" fn on_free<T: Told>(_context: *mut raw::RedisModuleCtx, answer: *mut c_void) {
    let over = |server: InServer<'_>| {
        // SAFETY: what `Blocked::answer` gave to the server, which gives it back once.
        let answer = unsafe { Box::from_raw(answer.cast::<T>()) };
        let Some(lost) = answer.lost(server) else { return };
        // SAFETY: the context is the module's own, never freed. The server's event loop gives
        // answers back, not within a call of this module: no key is open. The context of this
        // callback has no client, so it cannot open keys. It does send what is replicated.
        unsafe { Context::within(detached(), |context| T::make_good(context, lost)) };
    };
    // SAFETY: the server's event loop gives answers back, under its lock.
    unsafe { guard_in_server("the end of a wait", (), over) };
}

/// The client is gone, or was unblocked by force.
unsafe extern "C" fn on_disconnect<T: Told>(
    _context: *mut raw::RedisModuleCtx,
    blocked: *mut raw::RedisModuleBlockedClient,
) {
    let gone = |server: InServer<'_>| T::hung_up(server, blocked as u64);
    // SAFETY: the server calls this under its lock.
    unsafe { guard_in_server("a lost client", (), gone) };
}
