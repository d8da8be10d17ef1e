//! What waiting needs of the server: names outside of a command, blocked clients, publishing, and
//! being called later.
//!
//! A blocked client has no timeout and no timeout callback of the server's: both race a grant in
//! the same turn of the event loop, and the client then gets no reply, or the server aborts. It is
//! answered by [`Blocked::answer`], once, whatever happens.
#![allow(unsafe_code, reason = "the border to a C API")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use rustix::io::Errno;

use super::{Args, Context, InServer, Key, OK, call, guard_in_server, is_done, slice, string};
use crate::engine::Millis;
use crate::wire::outcome::AcquireReply;
use crate::wire::resp::Reply;
use crate::wire::spec::{self, c_names};

/// Whether a server takes a client's write of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::module) enum Writes {
    Taken,
    /// Replicas are missing, or the cluster is down.
    Refused,
    /// The slot of the key is another node's of the cluster.
    Elsewhere,
}

/// A context of the module's own, which belongs to no callback: for what may be asked at any time
/// under the server's lock.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(null_mut());

/// Makes the context of the module's own.
///
/// # Safety
/// `context` must be the one that the server loads the module with.
pub(super) unsafe fn prepare(context: *mut raw::RedisModuleCtx) {
    // SAFETY: the loading context; the new one is kept for good.
    let detached = unsafe { call!(RedisModule_GetDetachedThreadSafeContext(context)) };
    DETACHED.store(detached, Ordering::Relaxed);
}

/// The context of the module's own. What is replicated through it goes out when the callback that
/// runs has returned, and only if that callback has a context.
pub(super) fn detached() -> *mut raw::RedisModuleCtx {
    DETACHED.load(Ordering::Relaxed)
}

/// What is to be done later, with a context in which everything is allowed.
pub(in crate::module) trait Task {
    /// What it is called where it panics.
    const WHAT: &'static str;

    /// Does it.
    fn run(context: &mut Context<'_>);
}

/// Lets a task be done after so long, by the wall clock: a step of it makes that sooner or later.
/// After no time it is done in this turn of the event loop or the next.
pub(in crate::module) fn do_after<T: Task>(_: InServer<'_>, length: Millis) {
    let length = length.get().cast_signed();
    // SAFETY: the context is the module's own; the callback is static and takes no data.
    unsafe { call!(RedisModule_CreateTimer(detached(), length, Some(on_time::<T>), null_mut())) };
}

unsafe extern "C" fn on_time<T: Task>(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::enter(context, T::WHAT, T::run) };
}

/// Lets `T` hear whenever `fd` can be read; answers whether the server does so.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has timers to watch"))]
pub(in crate::module) fn watch<T: Told>(fd: BorrowedFd<'static>) -> bool {
    let readable = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
    // SAFETY: the descriptor is open for good; the callback is static and takes no data.
    unsafe {
        let callback = Some(on_readable::<T> as _);
        call!(RedisModule_EventLoopAdd(fd.as_raw_fd(), readable, callback, null_mut())) == OK
    }
}

unsafe extern "C" fn on_readable<T: Told>(_fd: c_int, _data: *mut c_void, _mask: c_int) {
    // SAFETY: the server calls this from its event loop, under its lock.
    unsafe { guard_in_server("an alarm", (), T::rang) };
}

/// What blocked clients are told, and what becomes of it.
pub(in crate::module) trait Told: Sized {
    /// What was told to nobody.
    type Lost;

    /// The answer as a reply, to a client that is there.
    ///
    /// # Errors
    /// The text of an error reply.
    fn deliver(&self) -> Result<Reply, String>;

    /// The answer is over. What has turned out by now to have been told to nobody, if that matters.
    fn lost(self, server: InServer<'_>) -> Option<Self::Lost>;

    /// Makes good for it.
    fn make_good(context: &mut Context<'_>, lost: Self::Lost);

    /// A blocked client has gone, or was unblocked by force.
    fn hung_up(server: InServer<'_>, blocked: u64);

    /// The alarm has gone off that those who wait are served by.
    fn rang(server: InServer<'_>);
}

impl Context<'_> {
    /// The database in which keys are opened.
    pub(in crate::module) fn database(&self) -> u32 {
        // SAFETY: the context lasts as long as `self`.
        unsafe { call!(RedisModule_GetSelectedDb(self.raw.as_ptr())) as u32 }
    }

    /// The name of a key in the selected database.
    pub(in crate::module) fn name(&self, bytes: &[u8]) -> Name {
        Name { raw: string(bytes) }
    }

    /// The number of the connection that sent the command, and whether its user may publish to
    /// `channel`; `None` where there is no connection of a user's: in a script, for a module.
    pub(in crate::module) fn sender(&mut self, channel: &[u8]) -> Option<(u64, bool)> {
        let flags = self.flags().0;
        if flags & raw::REDISMODULE_CTX_FLAGS_LUA != 0 {
            return None;
        }
        let context = self.raw.as_ptr();
        // SAFETY: the context lasts as long as `self`; the server answers null for a client that
        // has no connection or no user. Name, channel and user are ours, and each is freed once.
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

    /// The name of the user who sent the command; empty where there is none.
    pub(in crate::module) fn user(&mut self) -> Box<[u8]> {
        let context = self.raw.as_ptr();
        // SAFETY: the context lasts as long as `self`. The server answers null where nobody is
        // known; the name is ours, its bytes last as long as it does, and it is freed once.
        unsafe {
            let id = call!(RedisModule_GetClientId(context));
            let name = call!(RedisModule_GetClientUserNameById(context, id));
            if name.is_null() {
                return Box::default();
            }
            let mut length = 0;
            let start = call!(RedisModule_StringPtrLen(name, &mut length));
            let bytes = slice(start, length).unwrap_or_default().into();
            call!(RedisModule_FreeString(context, name));
            bytes
        }
    }

    /// Publishes a message to the subscribers of a channel.
    pub(in crate::module) fn publish(&mut self, channel: &[u8], message: &[u8]) {
        let (context, channel, message) = (self.raw.as_ptr(), string(channel), string(message));
        // SAFETY: the context lasts as long as `self`; the strings are ours, and freed once.
        unsafe {
            call!(RedisModule_PublishMessage(context, channel, message));
            call!(RedisModule_FreeString(null_mut(), channel));
            call!(RedisModule_FreeString(null_mut(), message));
        }
    }

    /// Whether the sender of the command may be blocked: not in a transaction, not in a script.
    pub(in crate::module) fn may_block(&self) -> bool {
        let at_once = raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
            | raw::REDISMODULE_CTX_FLAGS_REPLICATED
            | raw::REDISMODULE_CTX_FLAGS_LOADING;
        self.flags().0 & at_once == 0
    }

    /// Blocks the sender of the command, which is not answered by the command itself.
    pub(in crate::module) fn block<T: Told>(&mut self) -> Blocked<T> {
        // SAFETY: the context is that of a command whose sender may be blocked. The callbacks are
        // static. The handle is the server's until it is answered.
        unsafe {
            let (reply, free) = (Some(on_reply::<T> as _), Some(on_free::<T> as _));
            let raw = call!(RedisModule_BlockClient(self.raw.as_ptr(), reply, None, free, 0));
            call!(RedisModule_SetDisconnectCallback(raw, Some(on_disconnect::<T>)));
            Blocked { raw, told: PhantomData }
        }
    }
}

/// A key's name outside of its command's arguments.
pub(in crate::module) struct Name {
    raw: *mut raw::RedisModuleString,
}

impl Name {
    /// Opens the key for reading and writing.
    pub(in crate::module) fn open<'k>(&self, context: &'k mut Context<'_>) -> Key<'k> {
        self.args(|args| context.open(args, 0))
    }

    /// Opens the key for reading; a missing one reads as missing.
    pub(in crate::module) fn open_to_read<'k>(&self, context: &'k mut Context<'_>) -> Key<'k> {
        self.args(|args| context.open_to_read(args, 0))
    }

    /// Tells watching clients, and publishes a keyspace notification.
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

    /// States to replicas and to the append-only file a grant that no command of its own carries.
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

    /// States a release that no command of its own carries.
    pub(in crate::module) fn replicate_release(&self, context: &mut Context<'_>, token: &[u8]) {
        let (start, length) = (token.as_ptr().cast::<c_char>(), token.len());
        let (context, command) = (context.raw.as_ptr(), c_names::RELEASE.as_ptr());
        // SAFETY: as above.
        unsafe {
            call!(RedisModule_Replicate(context, command, c"sb".as_ptr(), self.raw, start, length))
        };
    }

    /// Whether the access rules let this user acquire the lock.
    pub(in crate::module) fn may_be_acquired(&self, _: &mut Context<'_>, user: &[u8]) -> bool {
        let (command, user) = (string(spec::ACQUIRE.as_bytes()), string(user));
        let (token, ttl) = (string(b"-"), string(b"1"));
        // SAFETY: strings and user are ours, and each is freed once; the name is alive. The server
        // answers null for a user that is not there.
        unsafe {
            let known = call!(RedisModule_GetModuleUserFromUserName(user));
            let mut arguments = [command, self.raw, token, ttl];
            let count = arguments.len() as c_int;
            let may = !known.is_null() && {
                let check = call!(RedisModule_ACLCheckCommandPermissions(
                    known,
                    arguments.as_mut_ptr(),
                    count
                ));
                call!(RedisModule_FreeModuleUser(known));
                check == OK
            };
            for text in [command, user, token, ttl] {
                call!(RedisModule_FreeString(null_mut(), text));
            }
            may
        }
    }

    /// Whether the server would take a write of this key from a client now: asked by way of one
    /// that changes nothing and, while the lock is free and somebody may wait for it, refuses
    /// nothing by itself.
    pub(in crate::module) fn writes(&self, context: &mut Context<'_>) -> Writes {
        let (context, command) = (context.raw.as_ptr(), c_names::EXTEND.as_ptr());
        // In the mode of scripts the server looks at its replicas. It shall refuse by an error that
        // can be read: where it has no text for one, Valkey 9.1 reads it nevertheless, and crashes.
        let format = c"ESscc".as_ptr();
        // SAFETY: context and name are alive; `s` takes a string of the server, `c` a terminated
        // one. The reply is ours.
        unsafe {
            let (token, ttl) = (c"-".as_ptr(), c"1".as_ptr());
            let reply = call!(RedisModule_Call(context, command, format, self.raw, token, ttl));
            // Why, if the server has refused: read before the next call of anything.
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

    /// The name as the only argument: what is asked by position takes it.
    fn args<R>(&self, work: impl FnOnce(&Args<'_>) -> R) -> R {
        work(&Args { raw: &mut [self.raw] })
    }
}

impl Drop for Name {
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

// SAFETY: a handle of the server's, used under its lock only. What it is told is not in here.
unsafe impl<T> Send for Blocked<T> {}

impl<T: Told> Blocked<T> {
    /// A number that no other client that is blocked now has.
    pub(in crate::module) fn id(&self) -> u64 {
        self.raw as u64
    }

    /// Answers it, also if it has gone: see [`Told::lost`].
    pub(in crate::module) fn answer(self, told: T) {
        let told = Box::into_raw(Box::new(told));
        // SAFETY: `self` is spent, so it happens once. The server owns the answer from now on, and
        // gives it to `on_free`.
        unsafe { call!(RedisModule_UnblockClient(self.raw, told.cast())) };
    }
}

/// The client is there to be answered.
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

/// The answer is over: it was given, or the client has gone.
unsafe extern "C" fn on_free<T: Told>(_context: *mut raw::RedisModuleCtx, answer: *mut c_void) {
    let over = |server: InServer<'_>| {
        // SAFETY: what `Blocked::answer` gave to the server, which gives it back once.
        let answer = unsafe { Box::from_raw(answer.cast::<T>()) };
        let Some(lost) = answer.lost(server) else { return };
        // SAFETY: the context is the module's own, never freed. The server's event loop gives
        // answers back, not a call of this module's: no key is open. The context of this callback
        // has no client, so nothing can be opened in it. It does send out what is replicated.
        unsafe { Context::within(detached(), |context| T::make_good(context, lost)) };
    };
    // SAFETY: the server's event loop gives answers back, under its lock.
    unsafe { guard_in_server("the end of a wait", (), over) };
}

/// The client has gone, or was unblocked by force.
unsafe extern "C" fn on_disconnect<T: Told>(
    _context: *mut raw::RedisModuleCtx,
    blocked: *mut raw::RedisModuleBlockedClient,
) {
    let gone = |server: InServer<'_>| T::hung_up(server, blocked as u64);
    // SAFETY: the server says so under its lock.
    unsafe { guard_in_server("a lost client", (), gone) };
}
