//! The I/O of starting and stopping: claims the state file, looks at the locks, writes the log.
//!
//! The engine decides what follows. When the module is loaded, before the data set, the state file
//! is claimed and read; the server does not start with a file that it must not use. The second part
//! comes with the first request or tick after the data set has been loaded. Until then the file
//! stays as it was, whatever happens to the server. A node whose file cannot be written still knows
//! its quarantine; it only grants nothing.

use std::env;
use std::path::PathBuf;

use super::ffi::{Context, InServer, Level, values};
use super::process::{self, Process, Ready, change_state};
use super::state_file::{Claimed, OpenError, StateFile};
use super::{append_only, clock, config, state_file};
use crate::codec;
use crate::engine::{Census, Change, Fence, Instant, Inventory, Lease, Loaded, Lock, UnixTime};
use crate::wire::slots::read_shares;
use crate::wire::spec::Command;

/// Notes that the server has read a data set.
pub(super) fn data_set_read(server: InServer<'_>) {
    process::with(server, |process| process.was_read = true);
}

/// Runs once, before the data set is loaded.
///
/// # Errors
/// Why the module cannot be loaded.
pub(super) fn load(context: &mut Context<'_>) -> Result<(), String> {
    let server = context.in_server();
    let (name, port) = (config::state_file(), context.port());
    // The working folder is the server's `dir`; `CONFIG SET dir` may change it later.
    let folder = env::current_dir().map_err(|error| format!("no working folder: {error}"))?;
    let claimed = if name.is_empty() {
        let line = "WARNING: lockmod.state-file is empty: after a crash this node may grant a lock \
                    that is held, and fences may fall";
        context.log(Level::Warning, line);
        None
    } else {
        Some(claim(context, folder.join(name), port)?)
    };
    let is_in_cluster = context.flags().is_in_cluster();
    if config::shorten_max_ttl(is_in_cluster) {
        let line = "lockmod.max-ttl is one minute in a Cluster and with lockmod.replicas, and not \
                    its default of a day, for which a new master would wait; set it to another \
                    value to change it";
        context.log(Level::Notice, line);
    }
    let shares = is_in_cluster.then(|| context.cluster_nodes()).flatten();
    process::with(server, |process| {
        process.shares_at_load = shares.map(|text| read_shares(&text));
        process.node.rest_on(config::replicas());
        let found = claimed.as_ref().map(|claimed| claimed.found);
        process.node.found(found, clock::read(), clock::boot_id());
        process.claimed = claimed;
        process.folder = Some(folder);
        (process.loaded_at_port, process.port) = (port, port);
    });
    context.log(Level::Notice, concat!("lockmod ", env!("CARGO_PKG_VERSION"), " is ready"));
    Ok(())
}

fn claim(context: &mut Context<'_>, path: PathBuf, port: u16) -> Result<Claimed, String> {
    let explain = |error| match error {
        OpenError::InUse => format!("{} is in use by another server", path.display()),
        OpenError::Newer(error) => format!(
            "{} was {error}; go back to that build, or empty the file: the node then waits \
             lockmod.max-ttl",
            path.display()
        ),
        OpenError::Io(error) => format!("cannot use the state file {}: {error}", path.display()),
    };
    let claimed = Claimed::claim(path.clone(), port).map_err(explain)?;
    claimed.probe().map_err(explain)?;
    if claimed.found.was_in_group() && config::replicas() == 0 {
        let line = "WARNING: lockmod.replicas is 0, but it was more when this node ran last: if \
                    another server has replaced it, both may grant locks";
        context.log(Level::Warning, line);
    }
    if let Some(damage) = &claimed.damage {
        let line = format!("the state file {} cannot be used: {damage}", path.display());
        context.log(Level::Warning, &line);
    }
    Ok(claimed)
}

/// Makes sure that the node has begun, and may decide. Cheap once it has.
#[inline]
pub(super) fn ready<'a>(context: &mut Context<'a>) -> Ready<'a> {
    ready_with_lines(context).0
}

/// The same, and whether anybody waits at this node.
#[inline]
pub(super) fn ready_with_lines<'a>(context: &mut Context<'a>) -> (Ready<'a>, bool) {
    let server = context.in_server();
    let look = |process: &mut Process| (process.node.has_begun(), process.node.has_lines());
    let (has_begun, mut has_lines) = process::with(server, look);
    if !has_begun {
        begin(context);
        has_lines = process::with(server, look).1;
    }
    (Ready::new(server), has_lines)
}

#[cold]
fn begin(context: &mut Context<'_>) {
    let server = context.in_server();
    let flags = context.flags();
    if flags.is_loading() {
        return;
    }
    let since = process::with(server, |process| process.node.asks_for_inventory());
    let loaded = Loaded {
        port: context.port(),
        clocks: clock::read(),
        boot: clock::boot_id(),
        lock_count: values::lock_count() as u64,
        inventory: since.map_or(Inventory::default(), |since| count(context, since).inventory),
        was_read: process::with(server, |process| process.was_read),
        highest: Fence::ZERO,
        is_always_durable: append_only::is_always_durable(context),
        is_replica: !flags.is_master(),
        max_ttl: config::max_ttl(),
    };
    let begun = process::with(server, |process| {
        process.may_be_replica = loaded.is_replica;
        if flags.is_in_cluster() {
            let memory = process.claimed.as_ref().map(|claimed| claimed.memory.clone());
            let memory = memory.unwrap_or_default();
            process.node.join_cluster(loaded.boot, memory, loaded.clocks.now);
        }
        let begun = process.node.begin(loaded, config::caution())?;
        process.state = process.claimed.take().map(|claimed| claimed.begin(begun.saved));
        Some(begun)
    });
    let Some(begun) = begun else { return };
    if begun.recovery.redates() {
        let now = clock::now();
        for_each_lock(context, &mut |_, _, lock| begun.recovery.redate(lock, now));
    }
    if let Some(warning) = begun.warning {
        context.log(Level::Warning, &warning.to_string());
    }
    change_state(context.in_server(), Change::Begun);
}

/// Whether this server may carry out this command for its sender. A replica that clients may write
/// to (`replica-read-only no`) could grant locks that its master grants to others.
#[inline]
pub(super) fn may_write(context: &Context<'_>, command: &str) -> bool {
    !process::with(context.in_server(), |process| process.may_be_replica)
        || is_told_or_reads(context, command)
}

#[cold]
fn is_told_or_reads(context: &Context<'_>, command: &str) -> bool {
    let writes = |command: &Command| command.flags.starts_with("write");
    let flags = context.flags();
    flags.is_master() || flags.states_facts() || !Command::named(command).is_some_and(writes)
}

/// Handles the promotion of the node to master.
pub(super) fn promoted(context: &mut Context<'_>) {
    let server = context.in_server();
    let (now, max_ttl, caution) = (clock::now(), config::max_ttl(), config::caution());
    let is_in_cluster = context.flags().is_in_cluster();
    let (change, warning) = process::with(server, |process| {
        process.may_be_replica = false;
        if is_in_cluster {
            // It waits for all leases in its slots, and looks at the slots when they are its own.
            process.shares_at_load = None;
            process.node.rejoin_cluster(clock::boot_id());
        }
        process.node.promoted(now, max_ttl, caution)
    });
    if let Some(warning) = warning {
        context.log(Level::Warning, &warning.to_string());
    }
    change_state(server, change);
}

/// Handles the demotion of the node to replica: the server refuses writes from now on.
pub(super) fn demoted(context: &mut Context<'_>) {
    let change = process::with(context.in_server(), |process| {
        process.may_be_replica = true;
        process.node.demoted()
    });
    change_state(context.in_server(), change);
}

/// Handles a change of the server's settings: writes may no longer be on disk before their reply.
pub(super) fn configured(context: &mut Context<'_>) {
    let server = context.in_server();
    let (now, caution) = (clock::now(), config::caution());
    if process::with(server, |process| process.node.heed(caution, now)) {
        context.log(Level::Warning, "the quarantine was ended by lockmod.quarantine no");
    }
    look_at_folder(context);
    look_at_port(context);
    append_only::configured(context);
}

/// Notes a changed working folder: the next append-only file is written there, but the next start
/// looks for it in the configured folder.
fn look_at_folder(context: &mut Context<'_>) {
    let now_in = env::current_dir().ok();
    let leaves = |process: &mut Process| {
        process.folder.take_if(|folder| now_in.as_ref() != Some(folder)).is_some()
    };
    if process::with(context.in_server(), leaves) {
        let line = "WARNING: dir was changed while the server runs: the state file stays where it \
                    is, and after a crash the node will wait, whatever the append-only file has";
        context.log(Level::Warning, line);
    }
}

/// Notes a changed port. A start at the new port looks for a file named after it; without locks it
/// would be a first start, which does not wait. An empty file there makes it wait.
fn look_at_port(context: &mut Context<'_>) {
    let port = context.port();
    let (before, loaded_at) = process::with(context.in_server(), |process| {
        (std::mem::replace(&mut process.port, port), process.loaded_at_port)
    });
    let (own, next) = (config::state_file(), config::state_file_of(port));
    if before == port || own == next || own != config::state_file_of(loaded_at) {
        return;
    }
    let left = env::current_dir().and_then(|folder| state_file::leave_empty(&folder.join(&next)));
    let left = left.map_or_else(|error| format!(" (this failed: {error})"), |()| String::new());
    let line = format!(
        "WARNING: port was changed while the server runs: the state file is still {own}; an empty \
         {next} makes a start at port {port} wait lockmod.max-ttl{left}"
    );
    context.log(Level::Warning, &line);
}

/// Notes a step of the wall clock, before a lease is dated by it.
#[inline]
pub(super) fn notice_step(context: &mut Context<'_>, now: Instant) {
    let server = context.in_server();
    if process::with(server, |process| process.node.is_to_look_at_clocks(now)) {
        look_at_clocks(context);
    }
}

fn look_at_clocks(context: &mut Context<'_>) {
    let server = context.in_server();
    let read = clock::read();
    let change = process::with(server, |process| {
        let is_behind = process.state.as_ref().is_some_and(StateFile::is_behind);
        process.node.look_at_clocks(read, is_behind)
    });
    if let Some(change) = change
        && change_state(server, change)
    {
        let line = "the wall clock was stepped; leases are not affected, but if the node restarts \
                    while one from before the step stands, it will wait for that to end";
        context.log(Level::Notice, line);
    }
}

/// Several times a second: checks what the thread that writes ahead has done, and looks at the
/// clocks.
pub(super) fn tick(context: &mut Context<'_>) {
    let (server, now) = (context.in_server(), clock::now());
    let (has_recovered, failure) = process::with(server, |process| process.tick(now));
    if has_recovered {
        let line = "the state file can be written again";
        context.log(Level::Notice, line);
    }
    if let Some(failure) = failure {
        let line = format!("the state file cannot be written: {failure}; grants will be refused");
        context.log(Level::Warning, &line);
    }
    notice_step(context, now);
    append_only::tick(context, now);
}

/// Handles the stop of the server. Its data set has been saved, if it is saved at all.
pub(super) fn stopped(context: &mut Context<'_>) {
    let server = context.in_server();
    notice_step(context, clock::now());
    let clocks = process::date(server, clock::now());
    let census = count(context, clocks.wall);
    let is_saved = context.is_data_set_saved();
    let change = process::with(server, |process| process.node.stop(clocks.now, census, is_saved));
    change_state(server, change);
}

/// A census of the data set, with leases counted from `since`.
fn count(context: &mut Context<'_>, since: UnixTime) -> Census {
    let clocks = process::date(context.in_server(), clock::now());
    let mut census = Census::new(since);
    for_each_lock(context, &mut |database, name, lock| {
        let inventory = census.inventory;
        let counts = |lease: &Lease<'_>| inventory.counts(lease, clocks);
        census.count(codec::hash_lock((database, name), lock, counts), lock, clocks);
    });
    census
}

/// Looks at every lock of every database, with its name.
fn for_each_lock(context: &mut Context<'_>, look: &mut dyn FnMut(u32, &[u8], &mut Lock)) {
    context.in_each_database(|context, database| {
        let mut cursor = super::ffi::Cursor::default();
        while context.scan(&mut cursor, 1024, &mut |name, lock| look(database, name, lock)) {}
    });
}
