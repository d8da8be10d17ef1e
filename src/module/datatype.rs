//! The data type: how locks are saved, loaded, rewritten, copied and removed.
//!
//! The data type's callbacks in `ffi` call these safe functions. Only absolute facts leave the
//! process: ends of leases as wall-clock times, fences as numbers.

use std::borrow::Cow;

use super::ffi::InServer;
use super::{clock, config, ffi, process};
use crate::codec::{self, LoadedLock};
use crate::engine::{Clocks, Fence, Instant, Lock, Refusal};
use crate::wire::fact::{Restated, restate};
use crate::wire::slots::slot_of;

/// The bytes of a lock in a data set or a dump.
pub(super) fn save(server: InServer<'_>, lock: &Lock) -> Vec<u8> {
    let (lock, floor, clocks) = as_saved(server, lock);
    codec::encode_lock(&lock, floor, clocks, clock::boot_id())
}

/// A lock as it is saved, with the node's floor and the clocks that date it.
fn as_saved<'a>(server: InServer<'_>, lock: &'a Lock) -> (Cow<'a, Lock>, Fence, Clocks) {
    let now = clock::now();
    process::with(server, |process| {
        let node = &process.node;
        (node.as_saved(lock, now), node.promises().floor(), node.date(now))
    })
}

/// The lock in `bytes`, under its name, if the server says it. If they are not the bytes of a lock,
/// logs that and returns `None`.
pub(super) fn load(
    server: InServer<'_>,
    (name, bytes): (Option<&[u8]>, &[u8]),
    version: i32,
) -> Option<Lock> {
    let known = codec::TYPE_VERSION;
    if version > i32::from(known) {
        let line = format!("a lock was saved in version {version}; this build reads up to {known}");
        ffi::log(ffi::Level::Warning, &line);
        return None;
    }
    match codec::decode_lock(bytes, process::date(server, clock::now()), clock::boot_id()) {
        Ok(loaded) if is_restored(server, name) && !may_come(server, &loaded) => None,
        Ok(loaded) => {
            let LoadedLock { lock, floor } = loaded;
            if let Err(error) = process::with(server, |process| process.loaded(&lock, floor)) {
                let line =
                    format!("the state file cannot be written: {error}; a crash may forget a lock");
                ffi::log(ffi::Level::Warning, &line);
            }
            Some(lock)
        }
        Err(error) => {
            ffi::log(ffi::Level::Warning, &format!("a lock could not be read: {error}"));
            None
        }
    }
}

/// Whether a lock comes from a client's `RESTORE`, or from another node by `MIGRATE`. Locks from a
/// data set or a master are accepted whatever they contain; and so are those of a slot that comes
/// at once: Redis goes on with the move if one is refused, and the lock would be lost.
fn is_restored(server: InServer<'_>, name: Option<&[u8]>) -> bool {
    let flags = ffi::server_flags(server);
    let comes = |name| process::with(server, |process| process.node.comes_at_once(slot_of(name)));
    flags.is_master() && !flags.is_loading() && !name.is_some_and(comes)
}

/// Whether a lock may be restored here. If not, logs why, because the server has its own error text
/// for such a command.
fn may_come(server: InServer<'_>, loaded: &LoadedLock) -> bool {
    let (now, max, lock) = (clock::now(), config::max_ttl(), &loaded.lock);
    let refusal = if lock.is_held(now) && lock.until() > now.after(max) {
        let left = now.until(lock.until()).get().to_string().into_bytes();
        Refusal::BadTtl { given: left, max }
    } else if let Err(refusal) = process::with(server, |process| process.admit(loaded, now)) {
        refusal
    } else {
        return true;
    };
    ffi::log(ffi::Level::Warning, &format!("RESTORE of a lock was refused: {refusal}"));
    false
}

/// The commands that rebuild this lock from nothing.
pub(super) fn rewrite(server: InServer<'_>, lock: &Lock) -> Vec<Restated> {
    let (lock, floor, clocks) = as_saved(server, lock);
    restate(&lock, floor, clocks)
}

/// Notes that a lock is gone from its name: deleted, expired, evicted, overwritten, migrated, or
/// renamed. A renamed lock goes on under another name. The server does not call this for the locks
/// of a database that is flushed or swapped: `events.rs` does what is needed for all of them. Nor
/// does Redis from 8.4 on for what it deletes after a move at once.
///
/// `slot`: that of its name. `is_own`: whether the server has that slot, which takes time to ask.
/// `MIGRATE` deletes what has moved while the slot is still this server's; when a server hears that
/// it has lost a slot, it deletes what is left there afterwards.
pub(super) fn unlinked(
    server: InServer<'_>,
    lock: &mut Lock,
    slot: impl FnOnce() -> Option<u16>,
    is_own: impl FnOnce(u16) -> bool,
) {
    if process::with(server, |process| process.node.is_in_cluster())
        && lock.is_held(clock::now())
        && ffi::server_flags(server).is_master()
        && let Some(slot) = slot()
        && process::with(server, |process| process.node.deletion_may_be_news(slot))
        && !is_own(slot)
    {
        process::with(server, |process| process.node.deleted_in(slot));
    }
    process::with(server, |process| {
        if lock.has_unnoted_lease() {
            process.node.note_lapses(lock, clock::now());
        }
        process.node.unlinked(lock);
    });
    if lock.has_leases() {
        removed(server, lock.until());
    }
    lock.changed_name();
}

/// Notes that leases are gone that may stand up to `until`.
pub(super) fn removed(server: InServer<'_>, until: Instant) {
    let now = clock::now();
    if let Some(change) = process::with(server, |process| process.node.removed(until, now)) {
        process::change_state(server, change);
    }
}

/// The copy of the lock for another name.
pub(super) fn copied(server: InServer<'_>, lock: &Lock) -> Lock {
    process::with(server, |process| process.node.come_upon(lock));
    let mut copy = lock.clone();
    copy.changed_name();
    copy
}
