//! The state file: what the node promises about itself, on disk before it is used.
//!
//! `lockmod-<port>.state` in the server's folder. It is replaced as a whole: written beside,
//! synced, renamed over the old one, and the folder synced. The file in place is locked for as
//! long as the server runs, so that a second server on the same file does not start.
//!
//! Two sides write: the server's thread, which waits for the disk only where a promise must be
//! larger before it may answer, and a thread of this file's own, which is asked ahead of need, and
//! to lower what is promised beyond need.
//!
//! I1: what the server's thread may use is never above what the file says. So a raise is written
//! first and allowed then; a lower ceiling binds the server's thread first and is written then.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, fcntl_lock};

use super::clock;
use crate::codec::CodecError;
use crate::codec::state::{decode_state, encode_state};
use crate::engine::{Ceilings, Found, Instant, Saved};

/// The open state file of a running node.
pub(super) struct StateFile {
    shared: Arc<Shared>,
    /// Wakes the thread that writes ahead of need.
    ahead: SyncSender<()>,
}

struct Shared {
    /// Held while the disk is written to: milliseconds.
    writer: Mutex<Writer>,
    /// Never held for longer than it takes to copy it.
    board: Mutex<Board>,
    tally: Tally,
}

/// How often the file was written since the server started, and how often that failed.
struct Tally {
    writes: AtomicU64,
    failures: AtomicU64,
}

struct Writer {
    path: PathBuf,
    /// The file in place, locked.
    file: File,
    /// What it says; after a change that failed, what it has to say.
    saved: Saved,
}

/// What the server's thread and the thread that writes ahead tell each other.
#[derive(Default)]
struct Board {
    /// What the server's thread may use: the file says as much, or more.
    allowed: Ceilings,
    /// A change failed: nothing may be used until the file says it.
    is_behind: bool,
    /// What it will need soon.
    wanted: Ceilings,
    failure: Option<String>,
}

/// Why a state file cannot be used at all.
#[derive(Debug)]
pub(super) enum OpenError {
    /// Another server has it.
    InUse,
    /// A newer build wrote it.
    Newer(CodecError),
    /// The operating system refuses.
    Io(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

impl StateFile {
    /// Reads and locks what is at `path`; with it comes what was wrong with it, for the log.
    ///
    /// Nothing is written: until the node begins to grant, what it finds is what stays true.
    ///
    /// # Errors
    /// [`OpenError`] if the server must not run with this file.
    pub(super) fn claim(path: PathBuf, port: u16) -> Result<Claimed, OpenError> {
        loop {
            let mut file = match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Claimed { path, _lock: None, found: Found::Missing, damage: None });
                }
                Err(error) => return Err(error.into()),
            };
            lock(&file)?;
            // Another server may have replaced the file between the open and the lock.
            if !is_in_place(&file, &path)? {
                continue;
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let (found, damage) = match decode_state(&bytes) {
                Ok(saved) if saved.port == port => (Found::Present(saved), None),
                Ok(saved) => {
                    let line = format!("it is the file of port {}, not {port}", saved.port);
                    (Found::Damaged, Some(line))
                }
                Err(error @ CodecError::Newer { .. }) => return Err(OpenError::Newer(error)),
                Err(error) => (Found::Damaged, Some(error.to_string())),
            };
            return Ok(Claimed { path, _lock: Some(file), found, damage });
        }
    }

    /// What has been made durable, and may be used.
    pub(super) fn ceilings(&self) -> Ceilings {
        let board = self.shared.board();
        if board.is_behind { Ceilings::default() } else { board.allowed }
    }

    /// Makes at least these ceilings durable before it returns.
    ///
    /// # Errors
    /// What the operating system said. What was durable still is.
    pub(super) fn raise(&self, ceilings: Ceilings) -> io::Result<()> {
        let mut writer = self.shared.writer();
        self.shared.promise(&mut writer, |allowed| allowed.max(ceilings))
    }

    /// Asks for ceilings ahead of need; returns at once.
    pub(super) fn raise_ahead(&self, ceilings: Ceilings) {
        {
            let mut board = self.shared.board();
            board.wanted = board.wanted.max(ceilings);
        }
        self.wake();
    }

    /// Uses no lease past `lease` from now on, and lets the file say so when there is time.
    pub(super) fn lower(&self, lease: Instant) {
        {
            let mut board = self.shared.board();
            board.allowed.lease = board.allowed.lease.min(lease);
            board.wanted.lease = board.wanted.lease.min(lease);
        }
        self.wake();
    }

    fn wake(&self) {
        match self.ahead.try_send(()) {
            // Full: it has been woken already, and will see what is wanted.
            Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
        }
    }

    /// What went wrong when ceilings were raised ahead of need, once.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.shared.board().failure.take()
    }

    /// How often the file was written since the server started.
    pub(super) fn write_count(&self) -> u64 {
        self.shared.tally.writes.load(Ordering::Relaxed)
    }

    /// How often writing it failed since the server started.
    pub(super) fn failure_count(&self) -> u64 {
        self.shared.tally.failures.load(Ordering::Relaxed)
    }

    /// Changes what the file says before it returns.
    ///
    /// # Errors
    /// What the operating system said. [`StateFile::ceilings`] are none until it is written after
    /// all, with the next [`StateFile::raise`].
    pub(super) fn change(&self, change: impl FnOnce(&mut Saved)) -> io::Result<()> {
        let mut writer = self.shared.writer();
        change(&mut writer.saved);
        self.shared.board().is_behind = true;
        let ceilings = writer.saved.ceilings;
        self.shared.promise(&mut writer, |_| ceilings)
    }
}

/// A state file that has been read and locked, and not yet written.
pub(super) struct Claimed {
    path: PathBuf,
    /// Held for its lock only.
    _lock: Option<File>,
    /// What it says.
    pub(super) found: Found,
    /// What is wrong with it.
    pub(super) damage: Option<String>,
}

impl Claimed {
    /// Writes the first promise of this run, and goes on from there.
    ///
    /// # Errors
    /// The claim again, and what the operating system said: the node must not grant.
    pub(super) fn begin(self, saved: Saved) -> Result<StateFile, Box<(Claimed, io::Error)>> {
        let file = match replace(&self.path, &saved) {
            Ok(file) => file,
            Err(error) => return Err(Box::new((self, error))),
        };
        let (ahead, woken) = sync_channel(1);
        let board = Board { allowed: saved.ceilings, ..Board::default() };
        // The old file's lock goes with `self`: the new file in place is locked already.
        let path = self.path.clone();
        let shared = Arc::new(Shared {
            writer: Mutex::new(Writer { path, file, saved }),
            board: Mutex::new(board),
            // The first promise of this run has just been written.
            tally: Tally { writes: AtomicU64::new(1), failures: AtomicU64::new(0) },
        });
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lockmod-state".to_owned());
        let spawned = thread.spawn(move || {
            while woken.recv().is_ok() {
                if let Err(error) = thread_shared.write_ahead() {
                    thread_shared.board().failure = Some(error.to_string());
                }
            }
        });
        if let Err(error) = spawned {
            // Without the thread every block is written when it is needed: slower, as safe.
            shared.board().failure = Some(format!("no thread to write ahead: {error}"));
        }
        Ok(StateFile { shared, ahead })
    }

    /// Tries whether the file can be replaced, without doing so.
    ///
    /// # Errors
    /// What the operating system said.
    pub(super) fn probe(&self) -> Result<(), OpenError> {
        let beside = beside(&self.path);
        open_beside(&beside)?.sync_all()?;
        Ok(std::fs::remove_file(&beside)?)
    }
}

impl Shared {
    /// Writes what is wanted, and lowers what is allowed no more.
    fn write_ahead(&self) -> io::Result<()> {
        let mut writer = self.writer();
        let wanted = std::mem::take(&mut self.board().wanted);
        self.promise(&mut writer, |allowed| allowed.max(wanted))
    }

    /// Lets the file promise the `ceilings` that follow from what is allowed; then they are.
    ///
    /// Whoever calls has the writer, so nobody else allows anything meanwhile. The server's thread
    /// may lower what is allowed: that is then undone, which does no harm, for the file says more.
    fn promise(
        &self,
        writer: &mut Writer,
        ceilings: impl FnOnce(Ceilings) -> Ceilings,
    ) -> io::Result<()> {
        let (ceilings, is_behind) = {
            let board = self.board();
            (ceilings(board.allowed), board.is_behind)
        };
        if is_behind || writer.saved.ceilings != ceilings {
            let mut saved = Saved { ceilings, at: clock::read(), ..writer.saved };
            // Also a step that no request has come upon yet: earlier leases are dated by another
            // clock.
            saved.was_stepped |= saved.at.are_stepped_since(writer.saved.at);
            writer.file = replace(&writer.path, &saved).inspect_err(|_| {
                self.tally.failures.fetch_add(1, Ordering::Relaxed);
            })?;
            self.tally.writes.fetch_add(1, Ordering::Relaxed);
            writer.saved = saved;
        }
        let mut board = self.board();
        board.allowed = ceilings;
        board.is_behind = false;
        Ok(())
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic while writing leaves `saved` as it was: the old file is in place.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a file that says `saved` at `path`, durably; answers it, open and locked.
fn replace(path: &Path, saved: &Saved) -> io::Result<File> {
    let beside = beside(path);
    let mut file = open_beside(&beside).map_err(|error| match error {
        OpenError::Io(error) => error,
        OpenError::InUse | OpenError::Newer(_) => io::Error::other("another server writes it"),
    })?;
    file.write_all(&encode_state(saved))?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(file)
}

/// An empty file, locked, that is to take the place of the old one.
fn open_beside(beside: &Path) -> Result<File, OpenError> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(beside)?;
    lock(&file)?;
    file.set_len(0)?;
    Ok(file)
}

fn beside(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Locks for this process: not for its children, which outlive a crash to finish a dump.
fn lock(file: &File) -> Result<(), OpenError> {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::AGAIN) => Err(OpenError::InUse),
        Err(error) => Err(OpenError::Io(error.into())),
    }
}

fn is_in_place(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(found) => Ok((own.dev(), own.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
