//! The state file: what the node promises, on disk before it is used.
//!
//! It is `lockmod-<port>.state` in the server's folder. It is replaced as a whole: written under
//! another name, synced, renamed over the old one, and the folder synced. The server locks the file
//! in place while it runs, so that a second server on the same file does not start.
//!
//! Two threads write. The server's thread waits for the disk only if a promise must be larger
//! before it may answer. A thread of this file writes larger promises ahead of need, and lowers
//! those that are larger than needed.
//!
//! I1: the ceilings that the server's thread may use never exceed those in the file. So a raise is
//! first written and then allowed; a lower ceiling first binds the server's thread and is then
//! written.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};

use super::clock;
use super::ffi::{self, Level};
use crate::codec::CodecError;
use crate::codec::state::{decode_state, encode_state};
use crate::engine::{
    Ceilings, Change, ClusterMemory, Draft, Found, Instant, Millis, Saved, Statement,
};

/// A write that failed is tried again after this long, even without a request that needs it: the
/// file must not stay out of date.
const RETRY: Millis = Millis::new(1_000);

/// The open state file of a running node.
pub(super) struct StateFile {
    shared: Arc<Shared>,
    /// Wakes the thread that writes ahead of need.
    ahead: SyncSender<()>,
}

struct Shared {
    /// Held while the disk is written to, for milliseconds.
    writer: Mutex<Writer>,
    /// Never held for longer than it takes to copy it.
    board: Mutex<Board>,
    counts: WriteCounts,
}

/// How often the file was written since the server started, and how often that failed.
#[derive(Default)]
struct WriteCounts {
    writes: AtomicU64,
    failures: AtomicU64,
}

/// The file's path, and the lock on it.
struct Writer {
    path: PathBuf,
    /// The locked file: the one in place or, until the first write of a node that found none, the
    /// one next to it. Closing any other handle of the same file would release the lock.
    file: File,
    is_beside: bool,
}

/// What the server's thread and the thread that writes ahead share.
struct Board {
    statement: Statement,
    /// Why the last write failed.
    failure: Option<FailedWrite>,
    /// Whether the file has been written since a failure that the log has.
    has_recovered: bool,
}

struct FailedWrite {
    cause: String,
    at: Instant,
    /// Whether the log has it.
    is_told: bool,
}

impl Board {
    const fn new(statement: Statement) -> Board {
        Board { statement, failure: None, has_recovered: false }
    }

    /// Notes that the file contains what it must.
    fn succeeded(&mut self) {
        let failure = self.failure.take();
        self.has_recovered |= failure.is_some_and(|failure| failure.is_told);
    }
}

/// Why a state file cannot be used at all.
#[derive(Debug)]
pub(super) enum OpenError {
    /// Another server has it.
    InUse,
    /// A newer build wrote it.
    Newer(CodecError),
    /// The operating system's error.
    Io(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        match error {
            OpenError::Io(error) => error,
            OpenError::InUse | OpenError::Newer(_) => io::Error::other("another server writes it"),
        }
    }
}

impl StateFile {
    /// The ceilings that are durable and may be used.
    pub(super) fn ceilings(&self) -> Ceilings {
        self.shared.board().statement.allowed()
    }

    /// Whether the file lacks a change, so that no ceilings may be used.
    pub(super) fn is_behind(&self) -> bool {
        self.shared.board().statement.is_behind()
    }

    /// Whether the next write says that after a crash the append-only file has every write.
    pub(super) fn says_always_durable(&self) -> bool {
        self.shared.board().statement.says_always_durable()
    }

    /// Makes at least these ceilings durable before it returns.
    ///
    /// # Errors
    /// The operating system's error. What was durable still is, and a later write includes the
    /// rest.
    pub(super) fn raise(&self, ceilings: Ceilings) -> io::Result<()> {
        let mut writer = self.shared.writer();
        self.shared.board().statement.raise(ceilings);
        self.shared.write(&mut writer)
    }

    /// The same for a request that is refused if the write fails, and then must leave nothing
    /// behind.
    ///
    /// # Errors
    /// The operating system's error. What was durable still is.
    pub(super) fn raise_or_withdraw(&self, ceilings: Ceilings) -> io::Result<()> {
        // Held until the end, so that the other thread does not write what is withdrawn.
        let mut writer = self.shared.writer();
        let before = self.shared.board().statement.raise(ceilings);
        let written = self.shared.write(&mut writer);
        if written.is_err() {
            self.shared.board().statement.withdraw(before);
        }
        written
    }

    /// Requests ceilings ahead of need. Returns at once.
    pub(super) fn raise_ahead(&self, ceilings: Ceilings) {
        self.shared.board().statement.raise(ceilings);
        self.wake();
    }

    /// Allows no lease to end after `lease` from now on. The file records this later.
    pub(super) fn lower(&self, lease: Instant) {
        self.shared.board().statement.lower(lease);
        self.wake();
    }

    /// Changes the contents of the file before it returns.
    ///
    /// # Errors
    /// The operating system's error. [`StateFile::ceilings`] are none until a later write succeeds,
    /// which includes the change.
    pub(super) fn change(&self, change: Change) -> io::Result<()> {
        let mut writer = self.shared.writer();
        self.shared.board().statement.change(change);
        self.shared.write(&mut writer)
    }

    /// Tries a failed write again in the background, if [`RETRY`] has passed at `now`.
    pub(super) fn retry(&self, now: Instant) {
        let is_due = |failure: &FailedWrite| failure.at.after(RETRY) <= now;
        if self.shared.board().failure.as_ref().is_some_and(is_due) {
            self.wake();
        }
    }

    fn wake(&self) {
        match self.ahead.try_send(()) {
            // If it is full, the thread has been woken already, and will see what is wanted.
            Ok(()) | Err(TrySendError::Full(())) => {}
            // There is none. A failure is on the board.
            Err(TrySendError::Disconnected(())) => {
                let _ = self.shared.write(&mut self.shared.writer());
            }
        }
    }

    /// Why the last write failed; `None` if it did not.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.board().failure.as_ref().map(|failure| failure.cause.clone())
    }

    /// The same, once for each cause.
    pub(super) fn news_of_failure(&self) -> Option<String> {
        let mut board = self.shared.board();
        let failure = board.failure.as_mut().filter(|failure| !failure.is_told)?;
        failure.is_told = true;
        Some(failure.cause.clone())
    }

    /// Whether the file has been written again since a failure that the log has, once for each.
    pub(super) fn news_of_recovery(&self) -> bool {
        std::mem::take(&mut self.shared.board().has_recovered)
    }

    /// How often the file was written since the server started.
    pub(super) fn write_count(&self) -> u64 {
        self.shared.counts.writes.load(Ordering::Relaxed)
    }

    /// How often writing it failed since the server started.
    pub(super) fn failure_count(&self) -> u64 {
        self.shared.counts.failures.load(Ordering::Relaxed)
    }
}

/// A state file that has been read and locked, but not yet written.
pub(super) struct Claimed {
    writer: Writer,
    /// What the file contains.
    pub(super) found: Found,
    /// The same of a server of a Cluster.
    pub(super) memory: ClusterMemory,
    /// What is wrong with it.
    pub(super) damage: Option<String>,
}

impl Claimed {
    /// Reads and locks the file at `path` or, if there is none, locks the one that will be put
    /// there.
    ///
    /// Nothing is written: until the node begins, the file stays as it was.
    ///
    /// # Errors
    /// [`OpenError`] if the server must not run with this file.
    pub(super) fn claim(path: PathBuf, port: u16) -> Result<Claimed, OpenError> {
        loop {
            let mut file = match open(&path, OpenOptions::new().read(true).write(true)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match Claimed::claim_nothing(&path)? {
                        Some(claimed) => return Ok(claimed),
                        None => continue,
                    }
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
            let mut memory = ClusterMemory::default();
            let (found, damage) = match decode_state(&bytes) {
                Ok((saved, known)) if saved.port == port => {
                    memory = known;
                    (Found::Present(saved), None)
                }
                Ok((saved, _)) => {
                    let line = format!("it is the file of port {}, not {port}", saved.port);
                    (Found::Damaged, Some(line))
                }
                Err(error @ CodecError::Newer { .. }) => return Err(OpenError::Newer(error)),
                Err(error) => (Found::Damaged, Some(error.to_string())),
            };
            let writer = Writer { path, file, is_beside: false };
            return Ok(Claimed { writer, found, memory, damage });
        }
    }

    /// Locks the file that will be put at `path`, so that one of two first starts is refused.
    /// `None` if another server was faster, and its file is there now.
    fn claim_nothing(path: &Path) -> Result<Option<Claimed>, OpenError> {
        let beside = beside(path);
        let file = open_or_create(&beside)?;
        if !is_in_place(&file, &beside)? || path.try_exists()? {
            return Ok(None);
        }
        let writer = Writer { path: path.to_owned(), file, is_beside: true };
        let memory = ClusterMemory::default();
        Ok(Some(Claimed { writer, found: Found::Missing, memory, damage: None }))
    }

    /// Checks that the file can be replaced, without replacing it.
    ///
    /// # Errors
    /// The operating system's error.
    pub(super) fn probe(&self) -> Result<(), OpenError> {
        if self.writer.is_beside {
            return Ok(self.writer.file.sync_all()?);
        }
        let beside = beside(&self.writer.path);
        open_or_create(&beside)?.sync_all()?;
        Ok(std::fs::remove_file(&beside)?)
    }

    /// Begins with a file that must contain `saved`. No ceilings may be used until it does: see
    /// [`StateFile::change`].
    pub(super) fn begin(self, saved: Saved) -> StateFile {
        let (ahead, woken) = sync_channel(1);
        let shared = Arc::new(Shared {
            writer: Mutex::new(self.writer),
            board: Mutex::new(Board::new(Statement::new(saved, self.memory))),
            counts: WriteCounts::default(),
        });
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lockmod-state".to_owned());
        if let Err(error) = thread.spawn(move || thread_shared.write_ahead(&woken)) {
            let line = format!(
                "WARNING: the thread that writes the state file ahead cannot be started: {error}; \
                 the file is written when that is needed, which is slower, but as safe"
            );
            ffi::log(Level::Warning, &line);
        }
        StateFile { shared, ahead }
    }
}

/// Leaves an empty file at `path`, durably: a node that finds it trusts nothing, and waits.
///
/// # Errors
/// The operating system's error, or another one if another server has the file.
pub(super) fn leave_empty(path: &Path) -> io::Result<()> {
    let file = open_or_create(path)?;
    file.set_len(0)?;
    file.sync_all()?;
    sync_folder(path)
}

impl Shared {
    fn write_ahead(&self, woken: &Receiver<()>) {
        while woken.recv().is_ok() {
            // A failure is on the board.
            let _ = self.write(&mut self.writer());
        }
    }

    /// Writes what is wanted, unless the file already contains it.
    fn write(&self, writer: &mut Writer) -> io::Result<()> {
        let Some(draft) = self.board().statement.draft(clock::read()) else {
            self.board().succeeded();
            return Ok(());
        };
        if let Err(error) = writer.replace(&draft) {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
            self.failed(error.to_string());
            return Err(error);
        }
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        let mut board = self.board();
        board.statement.written(draft);
        board.succeeded();
        Ok(())
    }

    fn failed(&self, cause: String) {
        let mut board = self.board();
        let was_told = |known: &FailedWrite| known.is_told && known.cause == cause;
        let is_told = board.failure.as_ref().is_some_and(was_told);
        board.failure = Some(FailedWrite { cause, at: clock::now(), is_told });
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic while writing leaves the statement as it was: the old file is in place.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Puts a file that contains `draft` in place, durably. It is locked before it is in place.
    fn replace(&mut self, draft: &Draft) -> io::Result<()> {
        let beside = beside(&self.path);
        if !self.is_beside || !is_in_place(&self.file, &beside)? {
            let file = open_or_create(&beside)?;
            write_all(&file, draft)?;
            std::fs::rename(&beside, &self.path)?;
            // This releases the lock on the old file, which no server can find any more.
            self.file = file;
        } else {
            write_all(&self.file, draft)?;
            std::fs::rename(&beside, &self.path)?;
        }
        self.is_beside = false;
        sync_folder(&self.path)
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn write_all(mut file: &File, draft: &Draft) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&encode_state(&draft.saved, &draft.memory))?;
    file.sync_all()
}

/// Opens and locks a file, such as the one that will replace the old one.
fn open_or_create(path: &Path) -> Result<File, OpenError> {
    let file = open(path, OpenOptions::new().read(true).write(true).create(true))?;
    lock(&file)?;
    Ok(file)
}

/// Opens a regular file; refuses anything else, such as a pipe, which could block.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let at_once = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = options.truncate(false).custom_flags(at_once as i32).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other(format!("{} is not a regular file", path.display())))
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Locks for this process, but not for its children: a child that writes a dump may outlive a
/// crash.
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
