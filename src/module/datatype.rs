//! The data type: what a lock is to persistence, replication and the life of its key.
//!
//! Callbacks of [`super::ffi::types`] end here, as safe functions. What leaves the process is
//! absolute: ends of leases as wall-clock times, fences as numbers.

use super::ffi::InServer;
use super::{clock, config, ffi, node, start};
use crate::codec;
use crate::engine::{Lock, Refusal};
use crate::wire::request::{PROVISIONAL, SUFFIX_MAX, decided_suffix};

/// The bytes of a lock in a data set or a dump.
pub(super) fn save(server: InServer<'_>, lock: &Lock) -> Vec<u8> {
    codec::encode_lock(lock, node::floor(server), clock::clocks(server), clock::boot_id())
}

/// The lock in `bytes`; `None`, and a line in the log, if they are not a lock's.
pub(super) fn load(server: InServer<'_>, bytes: &[u8], version: i32) -> Option<Lock> {
    let known = codec::LOCK_VERSION;
    if version > i32::from(known) {
        let line = format!("a lock was saved in version {version}; this build reads up to {known}");
        ffi::log(ffi::Level::Warning, &line);
        return None;
    }
    match codec::decode_lock(bytes, clock::clocks(server), clock::boot_id()) {
        Ok(loaded) if is_restored(server, &loaded.lock) && !may_come(server, &loaded.lock) => None,
        Ok(loaded) => {
            node::loaded(server, &loaded.lock);
            node::raise_floor(server, loaded.floor);
            Some(loaded.lock)
        }
        Err(error) => {
            ffi::log(ffi::Level::Warning, &format!("a lock could not be read: {error}"));
            None
        }
    }
}

/// Whether a client's `RESTORE` brings this lock, with a lease that stands. A data set is taken as
/// it is, also where `lockmod.max-ttl` was lowered since; so is what a master says.
fn is_restored(server: InServer<'_>, lock: &Lock) -> bool {
    let flags = ffi::server_flags(server);
    flags.is_master() && !flags.is_loading() && lock.is_held(clock::now())
}

/// Whether a lease may be restored here. If not, the log says so, because the server answers such
/// a command by words of its own.
///
/// The append-only file has the command with the bytes that it came with, so it is the state file
/// that says what became of a quarantine by it, before anybody can extend the lease.
fn may_come(server: InServer<'_>, lock: &Lock) -> bool {
    let (now, max) = (clock::now(), config::max_ttl());
    let refusal = if lock.until() > now.after(max) {
        let left = now.until(lock.until()).get().to_string().into_bytes();
        Refusal::BadTtl { given: left, max }
    } else if let Err(refusal) = start::names_changed(server) {
        refusal
    } else {
        return true;
    };
    ffi::log(ffi::Level::Warning, &format!("RESTORE of a lock was refused: {refusal}"));
    false
}

/// One `LOCK.ACQUIRE key token fact [LABEL label]` of a rewritten append-only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Empty where the line is about the counter only.
    pub(super) token: Vec<u8>,
    /// In place of a ttl: the decided lease.
    pub(super) fact: Vec<u8>,
    pub(super) label: Vec<u8>,
}

/// The commands that make this lock again from nothing.
pub(super) fn rewrite(server: InServer<'_>, lock: &Lock) -> Vec<Line> {
    let clocks = clock::clocks(server);
    let floor = node::floor(server);
    let fact = |ttl: u64, ends_at, fence, mark: &[u8]| {
        let mut room = [0; SUFFIX_MAX];
        let suffix = decided_suffix(&mut room, ends_at, fence);
        [ttl.to_string().as_bytes(), suffix, b".", floor.to_string().as_bytes(), mark].concat()
    };
    let lease = lock.written_lease();
    let mut lines = Vec::new();
    if lease.is_none_or(|lease| lease.fence < lock.counter()) {
        let fact = fact(0, crate::engine::UnixTime::default(), lock.counter(), b"");
        lines.push(Line { token: Vec::new(), fact, label: Vec::new() });
    }
    if let Some(lease) = lease {
        let left = clocks.now.until(lease.ends_at).get();
        let mark: &[u8] = if lock.is_provisional() { &[PROVISIONAL] } else { b"" };
        lines.push(Line {
            token: lease.token.as_bytes().to_vec(),
            fact: fact(left, clocks.to_wall(lease.ends_at), lease.fence, mark),
            label: lease.label.to_vec(),
        });
    }
    lines
}

/// What a master and its replicas must agree on, as bytes for `DEBUG DIGEST`.
///
/// Ends of leases are left out: each node counts them on a clock of its own.
pub(super) fn digest(lock: &Lock) -> Vec<u8> {
    let mut bytes = lock.counter().get().to_be_bytes().to_vec();
    if let Some(lease) = lock.written_lease() {
        bytes.extend(lease.fence.get().to_be_bytes());
        bytes.push(lease.token.as_bytes().len() as u8);
        bytes.extend(lease.token.as_bytes());
        bytes.extend(lease.label);
    }
    bytes
}

/// A number for a lock under its name: for the sum over a whole data set.
pub(super) fn hash(database: u32, name: &[u8], lock: &Lock) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&database.to_be_bytes());
    hasher.update(&(name.len() as u64).to_be_bytes());
    hasher.update(name);
    hasher.update(&digest(lock));
    u64::from(hasher.finalize())
}

/// A lock's name has lost it: deleted, evicted, overwritten, or renamed, and then it goes on under
/// another.
pub(super) fn forgotten(server: InServer<'_>, lock: &mut Lock) {
    node::forget(server, lock);
    lock.changed_name();
}

/// The lock as it is copied to another name.
pub(super) fn copied(server: InServer<'_>, lock: &Lock) -> Lock {
    node::come_upon(server, lock);
    let mut copy = lock.clone();
    copy.changed_name();
    copy
}
