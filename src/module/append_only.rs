//! Whether the node may rely on the server's append-only file after a crash.
//!
//! It may if every write is on disk before its reply, in the file that the next start reads. What a
//! server does there differs between versions, and changes while it runs: each way that is known
//! has a line in the table of the tests below, and a crash in `tests/durability/restarts.rs`.

use std::path::Path;
use std::time::SystemTime;

use super::ffi::settings::FileState;
use super::ffi::{Context, InServer, Level};
use super::process::{self, Process, change_state, is_due};
use super::state_file::StateFile;
use crate::engine::{Change, Instant, Millis};

/// How often a node that relies on the file looks whether the server writes it.
const LOOK_AT_FILE: Millis = Millis::new(100);

/// What the server's settings say of the file; `None` for a setting that cannot be read.
struct FileSettings {
    appendonly: Option<String>,
    appendfsync: Option<String>,
    no_appendfsync_on_rewrite: Option<String>,
    io_threads: Option<String>,
}

impl FileSettings {
    fn read(context: &mut Context<'_>) -> FileSettings {
        FileSettings {
            appendonly: context.setting("appendonly"),
            appendfsync: context.setting("appendfsync"),
            no_appendfsync_on_rewrite: context.setting("no-appendfsync-on-rewrite"),
            io_threads: context.setting("io-threads"),
        }
    }

    /// Whether the server's own thread has each write on disk before it goes on.
    fn sync_always(&self) -> bool {
        self.appendonly.as_deref() == Some("yes")
            && self.appendfsync.as_deref() == Some("always")
            && self.no_appendfsync_on_rewrite.as_deref() == Some("no")
    }

    /// Whether another thread may send a reply before the file has the write. `threads_may`:
    /// whether those of a server of this kind do, if it has any.
    fn reply_early(&self, threads_may: impl FnOnce() -> bool) -> bool {
        self.io_threads.as_deref() != Some("1") && threads_may()
    }
}

/// The temporary file of a server that begins its append-only file, by when it was last changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Temporary {
    /// What is there now.
    found: Option<SystemTime>,
    /// What a crash had left when the module was loaded.
    stale: Option<SystemTime>,
}

/// Whether writes go to a file that the next start does not read. A server that begins its
/// append-only file anew, as after a full synchronisation or if a `CONFIG SET` is taken back,
/// writes to a temporary one until the first rewrite is complete, and to none before it begins.
fn is_begun_anew(state: FileState, temporary: impl FnOnce() -> Temporary) -> bool {
    match state {
        FileState::Written => false,
        FileState::Unwritten => true,
        FileState::BeingRewritten => {
            let temporary = temporary();
            temporary.found.is_some() && temporary.found != temporary.stale
        }
    }
}

/// Whether every write is on disk before its reply, in the place where the next start reads it.
pub(super) fn is_always_durable(context: &mut Context<'_>) -> bool {
    let settings = FileSettings::read(context);
    is_trusted(context, &settings)
}

fn is_trusted(context: &mut Context<'_>, settings: &FileSettings) -> bool {
    let is_in_folder = process::with(context.in_server(), |process| process.folder.is_some());
    is_in_folder
        && settings.sync_always()
        && !settings.reply_early(|| context.threads_may_reply_early())
        && !begins_file(context)
}

fn begins_file(context: &mut Context<'_>) -> bool {
    let state = context.file_state();
    is_begun_anew(state, || Temporary {
        found: temporary_file(context),
        stale: process::with(context.in_server(), |process| process.stale_file),
    })
}

/// When the temporary file was last changed, if there is one.
fn temporary_file(context: &mut Context<'_>) -> Option<SystemTime> {
    let folder = context.setting("appenddirname")?;
    let name = context.setting("appendfilename")?;
    let file = Path::new(&folder).join(format!("temp-{name}.incr"));
    file.metadata().ok()?.modified().ok()
}

/// Notes what there is when the module is loaded, and warns of settings.
pub(super) fn load(context: &mut Context<'_>) {
    let settings = FileSettings::read(context);
    warn_of_threads(context, &settings);
    // One that is in use was not left by a crash: the module is loaded while the server runs.
    let is_in_use = context.file_state() == FileState::BeingRewritten;
    let stale = if is_in_use { None } else { temporary_file(context) };
    process::with(context.in_server(), |process| process.stale_file = stale);
}

/// Handles a change of the server's settings: writes may no longer be on disk before their reply.
pub(super) fn configured(context: &mut Context<'_>) {
    let settings = FileSettings::read(context);
    warn_of_threads(context, &settings);
    if relies_on_file(context.in_server()) && !is_trusted(context, &settings) {
        rely_less(context);
    }
}

/// Looks from time to time: a rewrite may have to wait for another child process.
pub(super) fn tick(context: &mut Context<'_>, now: Instant) {
    let is_due = |process: &mut Process| is_due(&mut process.file_seen_at, LOOK_AT_FILE, now);
    if process::with(context.in_server(), is_due) {
        look_at_file(context);
    }
}

/// Notes that the server has begun its file anew. Called also at the birth of a child process,
/// which may be the first rewrite.
pub(super) fn look_at_file(context: &mut Context<'_>) {
    if relies_on_file(context.in_server()) && begins_file(context) {
        rely_less(context);
    }
}

/// Whether the next write of the state file says that every write is on disk before its reply. (If
/// it cannot be written now, nothing more is granted until it is.)
fn relies_on_file(server: InServer<'_>) -> bool {
    process::with(server, |process| {
        process.state.as_ref().is_some_and(StateFile::says_always_durable)
    })
}

fn rely_less(context: &mut Context<'_>) {
    // If the state file cannot be written now, its next write has this.
    change_state(context.in_server(), Change::NotAlwaysDurable);
    if process::with(context.in_server(), |process| process.rests_on_replicas()) {
        // Each start waits.
        return;
    }
    let line = "the append-only file may lack a write from now on: after a crash the node waits, \
                as without appendfsync always, until a start that need not wait";
    context.log(Level::Notice, line);
}

/// Warns, once, that `appendfsync always` does not help after a crash.
fn warn_of_threads(context: &mut Context<'_>, settings: &FileSettings) {
    let warns =
        settings.sync_always() && settings.reply_early(|| context.threads_may_reply_early());
    let was_warned = process::with(context.in_server(), |process| {
        std::mem::replace(&mut process.warned_of_threads, warns)
    });
    if warns && !was_warned {
        let line = "WARNING: with io-threads above 1, this server may send a reply before its \
                    append-only file has the write: after a crash the node waits, as without \
                    appendfsync always. Use io-threads 1.";
        context.log(Level::Warning, line);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Each setting apart from the one combination that is relied on.
    #[test]
    fn one_combination_of_settings_is_relied_on() {
        let relied_on = ["yes", "always", "no", "1"];
        let of = |values: [&str; 4], threads_may_reply_early| {
            let [appendonly, appendfsync, no_appendfsync_on_rewrite, io_threads] =
                values.map(|value| (!value.is_empty()).then(|| value.to_owned()));
            let settings =
                FileSettings { appendonly, appendfsync, no_appendfsync_on_rewrite, io_threads };
            settings.sync_always() && !settings.reply_early(|| threads_may_reply_early)
        };
        assert!(of(relied_on, true) && of(relied_on, false));
        // The server's threads matter only if they may reply early; empty is an unread setting.
        for (position, value, with_late_replies) in [
            (0, "no", false),
            (0, "", false),
            (1, "everysec", false),
            (1, "no", false),
            (1, "", false),
            (2, "yes", false),
            (2, "", false),
            (3, "2", true),
            (3, "", true),
        ] {
            let mut values = relied_on;
            values[position] = value;
            assert!(!of(values, true), "{values:?}");
            assert_eq!(of(values, false), with_late_replies, "{values:?}");
        }
    }

    #[test]
    fn a_file_that_is_begun_anew_is_told_from_one_that_is_rewritten() {
        let [old, new] = [1, 2].map(|day| SystemTime::UNIX_EPOCH + Duration::from_hours(24 * day));
        for (state, found, stale, is_anew) in [
            // A temporary file means nothing while no rewrite is under way: a crash left it.
            (FileState::Written, None, None, false),
            (FileState::Written, Some(old), Some(old), false),
            (FileState::Written, Some(new), None, false),
            // Off, or the first rewrite waits for another child process.
            (FileState::Unwritten, None, None, true),
            (FileState::Unwritten, Some(old), Some(old), true),
            // An ordinary rewrite writes to the file that a start reads.
            (FileState::BeingRewritten, None, None, false),
            (FileState::BeingRewritten, Some(old), Some(old), false),
            (FileState::BeingRewritten, None, Some(old), false),
            // The first rewrite, which may have overwritten what a crash had left.
            (FileState::BeingRewritten, Some(new), None, true),
            (FileState::BeingRewritten, Some(new), Some(old), true),
        ] {
            let temporary = Temporary { found, stale };
            assert_eq!(
                is_begun_anew(state, || temporary),
                is_anew,
                "{state:?} {found:?} {stale:?}"
            );
        }
    }
}
