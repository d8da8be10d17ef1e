//! Loading: the function that the server calls first, and everything that is registered with it.
#![allow(unsafe_code, reason = "the border to a C API")]

mod at_once;
mod events;
mod locks;
mod options;

use std::ffi::{CString, c_char, c_int, c_ulonglong};
use std::ptr::{null, null_mut};

use redis_module::raw;

use crate::module::events as module_events;
use crate::module::ffi::functions::is_valkey;
use crate::module::ffi::waiting::detached;
use crate::module::ffi::{
    Args, Context, InServer, Level, OK, c_string, call, catch, guard, guard_in_server, waiting,
};
use crate::module::handlers::{self, Handler};
use crate::module::{alloc, append_only, info, process, start, waiters};
use crate::wire::code;
use crate::wire::node_info::{Figure, NodeField};
use crate::wire::spec::{self, Arg, ArgKind, Command, KeyUse};

const ERR: c_int = raw::REDISMODULE_ERR as c_int;
/// What a replica answers to every sender but its master, even with `replica-read-only no`.
const TOLD_BY_MASTER: &str = "this server is a replica, and takes locks only from its master";
/// The error after a panic.
const BUG: &str = "a bug in lockmod; see the server's log";
const MODULE_NAME: &std::ffi::CStr = c"lockmod";
/// As an integer, because that is what `MODULE LIST` shows: 10000 * major + 100 * minor + patch.
const MODULE_VERSION: c_int = 100;

/// The function by which the server loads the module.
///
/// # Safety
/// Only the server may call it, once.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the server looks for this name")]
pub(crate) unsafe extern "C" fn RedisModule_OnLoad(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server's context, in the one place where it must be passed. Binds the server's
    // functions; nothing may allocate before.
    let bound = unsafe {
        let (name, api) = (MODULE_NAME.as_ptr(), raw::REDISMODULE_APIVER_1 as c_int);
        raw::Export_RedisModule_Init(context, name, MODULE_VERSION, api)
    };
    if bound == ERR {
        return ERR;
    }
    let load = |wrapped: &mut Context<'_>| {
        // SAFETY: as the server passed them.
        let arguments = unsafe { args(argv, argc) };
        // SAFETY: this is the loading context.
        match unsafe { init(context, wrapped, &arguments) } {
            Ok(()) => OK,
            Err(why) => {
                wrapped.log(Level::Warning, &format!("not loaded: {why}"));
                ERR
            }
        }
    };
    // SAFETY: the server passes a context that lasts for this callback.
    unsafe { Context::within(context, |wrapped| guard("loading", ERR, || load(wrapped))) }
        .unwrap_or(ERR)
}

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn init(
    context: *mut raw::RedisModuleCtx,
    wrapped: &mut Context<'_>,
    arguments: &Args<'_>,
) -> Result<(), String> {
    if alloc::system_count() != 0 {
        return Err("something was allocated before the server had bound its allocator".to_owned());
    }
    // SAFETY: a plain read of a pointer that loading has just set, or left null.
    if unsafe { raw::RedisModule_RegisterNumericConfig }.is_none() {
        return Err("this server is older than Redis 7.0".to_owned());
    }
    // SAFETY: the loading context.
    unsafe {
        set_module_options(context);
        options::register(context, wrapped, arguments)?;
        register_commands(context)?;
        if !locks::register(context) {
            return Err("the server refused the data type 'fencelock'".to_owned());
        }
        if call!(RedisModule_RegisterInfoFunc(context, Some(describe))) != OK {
            return Err("the server refused the INFO section".to_owned());
        }
        waiting::prepare(context);
    }
    waiters::start(wrapped)?;
    module_events::warn_of_eviction(wrapped);
    append_only::load(wrapped);
    start::load(wrapped)?;
    // Last: a module that fails after it has subscribed crashes Redis 7.0 at the next event.
    // SAFETY: the loading context.
    unsafe { events::subscribe(context) }
}

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn set_module_options(context: *mut raw::RedisModuleCtx) {
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS | NO_IMPLICIT_SIGNAL_MODIFIED;
    if is_valkey() {
        options |= HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the loading context.
    unsafe { call!(RedisModule_SetModuleOptions(context, options as c_int)) };
}

/// It has no name in the bindings.
const NO_IMPLICIT_SIGNAL_MODIFIED: u32 = 1 << 1;
/// From Valkey 9.0, which moves no slots without it. The module can apply facts about locks before
/// the node has their slots.
const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn register_commands(context: *mut raw::RedisModuleCtx) -> Result<(), String> {
    // SAFETY: the loading context.
    unsafe {
        register_command::<handlers::Acquire>(context)?;
        register_command::<handlers::Release>(context)?;
        register_command::<handlers::Extend>(context)?;
        register_command::<handlers::ReadOrRaise>(context)?;
        register_command::<handlers::Floor>(context)?;
        register_command::<handlers::Info>(context)?;
        register_command::<handlers::Help>(context)
    }
}

/// # Safety
/// `context` must be the one that the server loads the module with.
unsafe fn register_command<H: Handler>(context: *mut raw::RedisModuleCtx) -> Result<(), String> {
    let Some(command) = Command::named(H::NAME) else {
        return Err(format!("{} is not in the table of commands", H::NAME));
    };
    let (name, flags) = (c_string(command.name), c_string(command.flags));
    let key = c_int::from(command.key.is_some());
    // SAFETY: the loading context; the server copies the texts.
    let status = unsafe {
        let run = Some(run::<H> as unsafe extern "C" fn(_, _, _) -> _);
        let (name, flags) = (name.as_ptr(), flags.as_ptr());
        call!(RedisModule_CreateCommand(context, name, run, flags, key, key, key))
    };
    if status != OK {
        return Err(format!(
            "{} exists already: another module on this server uses the same command names",
            command.name
        ));
    }
    // SAFETY: the loading context, and a command of this module.
    unsafe {
        let registered = call!(RedisModule_GetCommand(context, name.as_ptr()));
        let categories = c_string(command.acl_categories);
        if let Some(set) = raw::RedisModule_SetCommandACLCategories
            && set(registered, categories.as_ptr()) != OK
        {
            return Err(format!("the server refused the ACL categories of {}", command.name));
        }
        set_command_info(registered, command)
    }
}

unsafe extern "C" fn run<H: Handler>(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let decide = |context: &mut Context<'_>| {
        if !start::may_write(context, H::NAME) {
            return Err(code::READONLY.says(TOLD_BY_MASTER));
        }
        // SAFETY: as the server passed them to this command; they last until it returns.
        let mut args = unsafe { args(argv, argc) };
        H::run(context, &mut args).map_err(|refusal| {
            process::with(context.in_server(), |process| process.node.refused(&refusal));
            refusal.to_string()
        })
    };
    let answer = |context: &mut Context<'_>| {
        match catch(H::NAME, || decide(context)) {
            Some(Ok(answered)) => context.answer(answered),
            Some(Err(refusal)) => context.reply_error(&refusal),
            None => context.reply_error(&code::ERR.says(BUG)),
        }
        OK
    };
    // SAFETY: the server passes a context that lasts for this callback. A command of this module
    // runs within another only by a call that borrows the outer context exclusively, directly or
    // through another module that such a call has notified of a changed key.
    unsafe { Context::within(context, answer) }.unwrap_or(ERR)
}

/// # Safety
/// As the server passed them to the callback that lasts for `'a`.
unsafe fn args<'a>(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Args<'a> {
    let count = usize::try_from(argc).unwrap_or(0);
    if argv.is_null() || count == 0 {
        return Args { raw: &mut [] };
    }
    // SAFETY: the server passes `argc` strings, which only this callback uses while it lasts.
    Args { raw: unsafe { std::slice::from_raw_parts_mut(argv, count) } }
}

/// Registers what `COMMAND DOCS` and `COMMAND INFO` return. The server copies all of it.
///
/// # Safety
/// `registered` must be this command of this module.
unsafe fn set_command_info(
    registered: *mut raw::RedisModuleCommand,
    command: &Command,
) -> Result<(), String> {
    let mut texts = Texts::default();
    let summary = texts.keep(command.summary);
    let complexity = texts.keep(command.complexity);
    let since = texts.keep(spec::SINCE);
    let mut args = texts.args(command.args);
    let mut key_specs = key_specs(command.key);
    // SAFETY: a plain C structure, for which zeros mean "nothing given".
    let mut info = unsafe { std::mem::zeroed::<raw::RedisModuleCommandInfo>() };
    info.version = &INFO_VERSION;
    (info.summary, info.complexity, info.since) = (summary, complexity, since);
    info.arity = command.arity;
    if command.key.is_some() {
        info.key_specs = key_specs.as_mut_ptr();
    }
    if !command.args.is_empty() {
        info.args = args.as_mut_ptr();
    }
    // SAFETY: every pointer in `info` outlives the call, and the server copies what they point to.
    match unsafe { call!(RedisModule_SetCommandInfo(registered, &info)) } {
        OK => Ok(()),
        _ => Err(format!("the server refused the description of {}", command.name)),
    }
}

/// The sizes of C structures, by which the server recognises their versions.
const INFO_VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

/// Where a command has its key, for C: a list that ends with an empty element.
fn key_specs(key: Option<KeyUse>) -> [raw::RedisModuleCommandKeySpec; 2] {
    // SAFETY: plain C structures, for which zeros mean "nothing given".
    let mut specs: [raw::RedisModuleCommandKeySpec; 2] = unsafe { std::mem::zeroed() };
    let Some(key) = key else { return specs };
    let spec = &mut specs[0];
    spec.flags = u64::from(key_flags(key));
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    // SAFETY: the type above says that it is a range.
    let range = unsafe { &mut spec.fk.range };
    (range.lastkey, range.keystep, range.limit) = (0, 1, 0);
    specs
}

fn key_flags(key: KeyUse) -> u32 {
    match key {
        KeyUse::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        KeyUse::Update => {
            raw::REDISMODULE_CMD_KEY_RW
                | raw::REDISMODULE_CMD_KEY_ACCESS
                | raw::REDISMODULE_CMD_KEY_UPDATE
        }
    }
}

/// Texts and argument lists for C, kept until the server has copied them.
#[derive(Default)]
struct Texts {
    texts: Vec<CString>,
    lists: Vec<Vec<raw::RedisModuleCommandArg>>,
}

impl Texts {
    fn keep(&mut self, text: &str) -> *const c_char {
        let text = c_string(text);
        // A `CString`'s bytes do not move with it.
        let start = text.as_ptr();
        self.texts.push(text);
        start
    }

    /// The arguments for C, and an empty one that ends the list.
    fn args(&mut self, args: &[Arg]) -> Vec<raw::RedisModuleCommandArg> {
        let mut list: Vec<_> = args.iter().map(|arg| self.arg(arg)).collect();
        // SAFETY: a plain C structure, for which zeros end the list.
        list.push(unsafe { std::mem::zeroed() });
        list
    }

    /// Arguments within another.
    fn list(&mut self, args: &[Arg]) -> *mut raw::RedisModuleCommandArg {
        let mut list = self.args(args);
        let start = list.as_mut_ptr();
        self.lists.push(list);
        start
    }

    fn arg(&mut self, arg: &Arg) -> raw::RedisModuleCommandArg {
        let mut subargs = null_mut();
        let kind = match arg.kind {
            ArgKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            ArgKind::Bytes => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
            ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
            ArgKind::Keyword => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
            ArgKind::Block(args) => {
                subargs = self.list(args);
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK
            }
            ArgKind::OneOf(args) => {
                subargs = self.list(args);
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF
            }
        };
        let optional = if arg.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        raw::RedisModuleCommandArg {
            name: self.keep(arg.name),
            type_: kind,
            key_spec_index: if arg.kind == ArgKind::Key { 0 } else { -1 },
            token: arg.keyword.map_or(null(), |keyword| self.keep(keyword)),
            summary: if arg.meaning.is_empty() { null() } else { self.keep(arg.meaning) },
            since: null(),
            flags: optional as c_int,
            deprecated_since: null(),
            subargs,
            display_text: null(),
        }
    }
}

unsafe extern "C" fn describe(info: *mut raw::RedisModuleInfoCtx, is_crash_report: c_int) {
    let work = |server: InServer<'_>| {
        let obstacle = if is_crash_report != 0 {
            // Nothing is asked of a server that has crashed.
            info::own(server)
        } else {
            // SAFETY: the context is the module's own, never freed, and no other is made here. INFO
            // is a command of the server, which no call of this module's runs: no key is open.
            unsafe { Context::within(detached(), info::obstacle) }.flatten()
        };
        let told = info::told(server, obstacle);
        // SAFETY: `info` lasts for the callback; a null name means the module's own section.
        unsafe { call!(RedisModule_InfoAddSection(info, null())) };
        for field in NodeField::ALL {
            let name = c_string(field.name());
            // SAFETY: as above; the server copies name and value.
            unsafe {
                match field.write(&told) {
                    Figure::Number(number) => {
                        let number = number as c_ulonglong;
                        call!(RedisModule_InfoAddFieldULongLong(info, name.as_ptr(), number));
                    }
                    Figure::Text(text) => {
                        let text = c_string(&text);
                        call!(RedisModule_InfoAddFieldCString(info, name.as_ptr(), text.as_ptr()));
                    }
                }
            }
        }
    };
    // SAFETY: the server calls this under its lock.
    unsafe { guard_in_server("INFO", (), work) };
}
