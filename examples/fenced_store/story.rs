//! The story, for any database, and what the database has to do.

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

/// A database that checks fences.
pub(crate) trait Store {
    /// Replaces the report, unless a larger fence was used before.
    fn write(&mut self, fence: u64, body: &str) -> Result<Written, Error>;

    /// Returns the report.
    fn read(&mut self) -> Result<String, Error>;
}

/// Plays two holders, the first of which is suspended for longer than its lease. Returns what
/// happens, line by line.
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
    told.push(format!("the report is {}", store.read()?));
    Ok(told)
}
