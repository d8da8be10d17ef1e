//! The story, for any database, and what the database must do.

use std::time::Duration;

use lockmod::client::{Locker, blocking};

pub(crate) type Error = Box<dyn std::error::Error>;

/// The lock, and the name under which the database remembers its fences.
pub(crate) const LOCK: &str = "report";

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is in the database.
    Yes,
    /// A later holder has been here, so the write was refused.
    TooLate,
}

/// A database that checks fences. It remembers the largest that has written, and the largest that
/// has read.
pub(crate) trait Store {
    /// Replaces the report, unless a writer with a larger fence was here before, or a reader with
    /// this fence or a larger one.
    fn write(&mut self, fence: u64, body: &str) -> Result<Written, Error>;

    /// Returns the report, unless a writer with a larger fence was here before: `None`.
    fn read(&mut self, fence: u64) -> Result<Option<String>, Error>;
}

/// Plays two writers, the first of which is suspended for longer than its lease, and a reader after
/// them. Returns what happens, line by line.
pub(crate) fn play(nodes: &[String], store: &mut dyn Store) -> Result<Vec<String>, Error> {
    let locker = |label: &str| {
        let settings = Locker::builder().nodes(nodes).ttl(Duration::from_secs(1)).label(label);
        // A suspended holder does not renew.
        blocking::Locker::new(settings.renew(false))
    };
    let mut told = Vec::new();
    let first = locker("first")?.acquire(LOCK)?;
    told.push(format!("first holds '{LOCK}' with fence {}, and is suspended", first.fence()));

    let second = locker("second")?.acquire_within(LOCK, Duration::from_secs(20))?;
    told.push(format!("second holds '{LOCK}' with fence {}", second.fence()));
    let written = store.write(second.fence().get(), "by second")?;
    told.push(format!("second writes: {written:?}"));

    let written = store.write(first.fence().get(), "by first")?;
    told.push(format!("first wakes up and writes: {written:?}"));
    second.release()?;

    let third = locker("third")?.request(LOCK).shared().acquire()?;
    let report = store.read(third.fence().get())?.unwrap_or_default();
    told.push(format!("third reads with fence {}: the report is {report}", third.fence()));
    let written = store.write(third.fence().get(), "by second, late")?;
    told.push(format!("second writes once more, without the lock: {written:?}"));
    Ok(told)
}
