//! Starting and stopping: what the node finds out about itself before it grants, and leaves behind.
//!
//! A start has two parts. When the module is loaded the data set is not there yet: the state file
//! is claimed and read, and the server refuses to start where it must not go on. The second part
//! comes with the first request after loading has finished: only then is it known what came back,
//! so only then is it decided what the node must wait for, and only then is the file written. Until
//! then what it says stays true, whatever happens to the server in between. A node whose file
//! cannot be written knows all the same what it has to wait for: it only grants nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use super::ffi::{Context, Guarded, InServer, Level, types};
use super::state_file::{Claimed, OpenError, StateFile};
use super::{clock, config, datatype, events, node, waiters};
use crate::engine::{
    Ceilings, Clocks, Fence, Found, Instant, Inventory, Loaded, Lock, QuarantineReason, Recovery,
    Refusal, Saved, Stopped, UnixTime, promote, recover, start, stop,
};

/// What was claimed when the module was loaded, until the node begins to grant.
static CLAIMED: Guarded<Option<Claimed>> = Guarded::new(None);
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether the server has read a data set: it says nothing of one that is missing.
static WAS_READ: AtomicBool = AtomicBool::new(false);
/// Whether leases may have found other names before the node has begun.
static NAMES_CHANGED: AtomicBool = AtomicBool::new(false);

/// The server has read a data set.
pub(super) fn data_set_read() {
    WAS_READ.store(true, Ordering::Relaxed);
}

/// Runs once, before the data set is loaded.
///
/// # Errors
/// Why the module must not be loaded.
pub(super) fn load(context: &mut Context<'_>) -> Result<(), String> {
    let server = context.in_server();
    events::warn_of_eviction(context);
    waiters::configured(context);
    let name = config::state_file();
    if name.is_empty() {
        let line = "WARNING: lockmod.state-file is empty: after a crash this node may grant a lock \
                    that is held, and fences may fall";
        context.log(Level::Warning, line);
    } else {
        let claimed = claim(context, &name)?;
        // What this node has dated in this boot is read by the same clocks.
        clock::date_by(server, claimed.found.dating(clock::boot_id()).unwrap_or_else(clock::read));
        CLAIMED.with(server, |slot| *slot = Some(claimed));
    }
    context.log(Level::Notice, concat!("lockmod ", env!("CARGO_PKG_VERSION"), " is ready"));
    Ok(())
}

fn claim(context: &mut Context<'_>, name: &str) -> Result<Claimed, String> {
    // The server has made its `dir` the working folder; `CONFIG SET dir` may move it later.
    let folder = std::env::current_dir().map_err(|error| format!("no working folder: {error}"))?;
    let path = folder.join(name);
    let port = context.port();
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
    if let Some(damage) = &claimed.damage {
        let line = format!("the state file {} cannot be used: {damage}", path.display());
        context.log(Level::Warning, &line);
    }
    Ok(claimed)
}

/// Sees to it that the node has found out about itself; cheap once it has.
#[inline]
pub(super) fn ensure(context: &mut Context<'_>) {
    if !has_begun() {
        begin(context);
    }
}

/// Whether the node has found out about itself.
#[inline]
pub(super) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::Relaxed)
}

#[cold]
fn begin(context: &mut Context<'_>) {
    let server = context.in_server();
    let flags = context.flags();
    if flags.is_loading() {
        return;
    }
    HAS_BEGUN.store(true, Ordering::Relaxed);
    let Some(claimed) = CLAIMED.with(server, Option::take) else { return };
    let promises = node::promises(server);
    let loaded = Loaded {
        port: context.port(),
        clocks: clock::read(),
        boot: clock::boot_id(),
        lock_count: types::lock_count() as u64,
        inventory: match claimed.found {
            Found::Present(Saved { stop: Some(stopped), .. }) if stopped.is_saved => {
                take_inventory(context, clock::clocks(server), stopped.inventory.since).0
            }
            Found::Present(_) | Found::Missing | Found::Damaged => Inventory::default(),
        },
        was_read: WAS_READ.load(Ordering::Relaxed),
        highest: promises.highest(),
        is_always_durable: is_always_durable(context),
        is_replica: !flags.is_master(),
        max_ttl: config::max_ttl(),
    };
    let mut recovery = recover(claimed.found, loaded);
    recovery.nothing_counts |= NAMES_CHANGED.load(Ordering::Relaxed);
    let distrusted = recovery.quarantine;
    if !config::quarantine() {
        recovery.quarantine = None;
    }
    let saved = start(claimed.found, loaded, recovery, &promises);
    redate(context, recovery);
    clock::date_by(server, saved.dating);
    node::begin(server, recovery, claimed.begin(saved));
    tell(context, recovery.floor, distrusted, config::quarantine());
    // The first promise of this run.
    change_state(context, |_| {});
}

/// Dates the leases that were loaded, where their dates are not exact.
fn redate(context: &mut Context<'_>, recovery: Recovery) {
    if !recovery.prolong.is_zero() {
        let now = clock::now();
        for_each_lock(context, &mut |_, _, lock| recovery.redate(lock, now));
    }
}

/// Tells an operator what the node waits for, or would wait for if it were let.
fn tell(
    context: &mut Context<'_>,
    floor: Fence,
    distrusted: Option<(Instant, QuarantineReason)>,
    waits: bool,
) {
    let Some((until, reason)) = distrusted else { return };
    let left = clock::now().until(until).get();
    let line = if waits {
        format!(
            "QUARANTINE: {reason}; no lock is granted for {left} ms. Fences go on above {floor}. \
             CONFIG SET lockmod.quarantine no ends it, if you know that no lease is outstanding"
        )
    } else {
        format!("WARNING: {reason}, but quarantine is switched off: locks are granted at once")
    };
    context.log(Level::Warning, &line);
}

/// The node has become a master.
pub(super) fn promoted(context: &mut Context<'_>) {
    let server = context.in_server();
    let highest = node::promises(server).highest();
    let mut recovery = promote(clock::clocks(server), highest, config::max_ttl());
    let distrusted = recovery.quarantine;
    let waits = config::quarantine() && config::quarantine_on_promotion();
    if !waits {
        recovery.quarantine = None;
    }
    node::recover(server, recovery);
    tell(context, recovery.floor, distrusted, waits);
    let waited_for = recovery.quarantine.map_or(Instant::default(), |(until, _)| until);
    let used = Ceilings { fence: recovery.floor, lease: waited_for };
    change_state(context, |saved| {
        saved.ceilings = saved.ceilings.max(used.plus_block());
        saved.is_always_durable &= recovery.quarantine.is_none();
        saved.was_replica = false;
        saved.nothing_counts_until = saved.nothing_counts_until.max(waited_for);
    });
}

/// Leases may have found other names: databases were swapped, or a lock is being restored. In a
/// quarantine nothing counts from then on, and the state file says so.
///
/// # Errors
/// `STATEFILE`. Nothing is granted or extended then, before the file can say it.
pub(super) fn names_changed(server: InServer<'_>) -> Result<(), Refusal> {
    if !has_begun() {
        NAMES_CHANGED.store(true, Ordering::Relaxed);
    }
    let until = node::names_changed(server, clock::now());
    let Some(state) = node::state() else { return Ok(()) };
    if let Some(until) = until {
        let later = |saved: &mut Saved| saved.nothing_counts_until.max(until);
        // What failed is asked for below.
        let _ = state.change(|saved| saved.nothing_counts_until = later(saved));
        node::keep(server, state);
    }
    match state.failure() {
        Some(cause) if state.is_behind() => Err(Refusal::StateFile { cause }),
        Some(_) | None => Ok(()),
    }
}

/// The node has become a replica: the server refuses writes from now on.
pub(super) fn demoted(context: &mut Context<'_>) {
    change_state(context, |saved| saved.was_replica = true);
}

/// Settings of the server have changed: is every write still on disk before its reply?
pub(super) fn configured(context: &mut Context<'_>) {
    let server = context.in_server();
    if !config::quarantine() && node::end_quarantine(server, clock::now()) {
        context.log(Level::Warning, "the quarantine was ended by lockmod.quarantine no");
    }
    if node::state().is_some() && !is_always_durable(context) {
        change_state(context, |saved| saved.is_always_durable = false);
    }
}

/// Notes a wall clock that was stepped: what the append-only file says is dated by two clocks now.
///
/// The file says so before a lease is stated by the new clock.
#[inline]
pub(super) fn notice_step(context: &mut Context<'_>, now: Instant) {
    let server = context.in_server();
    if let Some(clocks) = clock::step(server, now) {
        date_anew(context, clocks);
    }
}

#[cold]
fn date_anew(context: &mut Context<'_>, clocks: Clocks) {
    let server = context.in_server();
    if !has_begun() || node::state().is_some_and(StateFile::is_behind) {
        return;
    }
    let is_said = change_state(context, |saved| {
        saved.was_stepped = true;
        saved.dating = clocks;
    });
    if is_said {
        clock::date_by(server, clocks);
        let line = "the wall clock was stepped; leases go on unharmed, and will be waited out if \
                    the node restarts while one stands that was granted before";
        context.log(Level::Notice, line);
    }
}

/// The server stops, and its data set has been saved as far as it will be.
pub(super) fn stopped(context: &mut Context<'_>) {
    let server = context.in_server();
    notice_step(context, clock::now());
    let clocks = clock::clocks(server);
    let (inventory, longest) = take_inventory(context, clocks, clocks.wall);
    let promises = node::promises(server);
    let stopped = Stopped { is_saved: context.is_data_set_saved(), inventory };
    change_state(context, |saved| *saved = stop(*saved, &promises, clocks.now, longest, stopped));
}

/// What the data set holds, with leases counted from `since`, and the latest end of the leases that
/// stand.
fn take_inventory(
    context: &mut Context<'_>,
    clocks: Clocks,
    since: UnixTime,
) -> (Inventory, Instant) {
    let (mut inventory, mut longest) = (Inventory::new(since), Instant::default());
    for_each_lock(context, &mut |database, name, lock| {
        inventory.add(datatype::hash(database, name, lock), lock, clocks);
        let lease = lock.lease(clocks.now);
        longest = longest.max(lease.map_or(Instant::default(), |lease| lease.ends_at));
    });
    (inventory, longest)
}

/// Looks at every lock of every database, with its name.
fn for_each_lock(context: &mut Context<'_>, look: &mut dyn FnMut(u32, &[u8], &mut Lock)) {
    let selected = context.selected();
    let mut database = 0;
    while context.select(database) {
        let mut cursor = super::ffi::Cursor::default();
        while context.scan(&mut cursor, 1024, &mut |name, lock| look(database, name, lock)) {}
        database += 1;
    }
    context.select(selected);
}

/// Changes what the state file says; answers whether it does.
fn change_state(context: &mut Context<'_>, change: impl FnOnce(&mut Saved)) -> bool {
    let server = context.in_server();
    let Some(state) = node::state() else { return true };
    let changed = state.change(change);
    node::keep(server, state);
    let Err(error) = changed else { return true };
    // This line says it, too.
    let _ = state.news_of_failure();
    let line =
        format!("the state file cannot be written: {error}; nothing is granted until it can be");
    context.log(Level::Warning, &line);
    false
}

/// Whether every write is on disk before it is answered.
fn is_always_durable(context: &mut Context<'_>) -> bool {
    let mut is =
        |name: &str, value: &str| context.setting(name).is_some_and(|found| found == value);
    is("appendonly", "yes") && is("appendfsync", "always") && is("no-appendfsync-on-rewrite", "no")
}
