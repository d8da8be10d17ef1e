//! SQLite: one table of fences guards whatever else a transaction writes.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::story::{Error, LOCK, Store, Written};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS fences
        (lock TEXT PRIMARY KEY, fence INTEGER NOT NULL, read INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS report (id INTEGER PRIMARY KEY, body TEXT NOT NULL);";

/// Changes no row if a writer with a larger fence was here, or a reader with this one or a larger
/// one. An equal fence of a writer is the same holder's next write.
const MAY_WRITE: &str = "
    INSERT INTO fences (lock, fence, read) VALUES (?1, ?2, 0)
    ON CONFLICT (lock) DO UPDATE SET fence = excluded.fence
    WHERE fences.fence <= excluded.fence AND fences.read < excluded.fence";

/// Changes no row if a writer with a larger fence was here.
const MAY_READ: &str = "
    INSERT INTO fences (lock, fence, read) VALUES (?1, 0, ?2)
    ON CONFLICT (lock) DO UPDATE SET read = CASE WHEN fences.read < excluded.read
        THEN excluded.read ELSE fences.read END
    WHERE fences.fence <= excluded.read";

pub(crate) struct SqliteStore {
    connection: Connection,
}

impl SqliteStore {
    pub(crate) fn open(file: &Path) -> Result<SqliteStore, Error> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.execute_batch(TABLES)?;
        Ok(SqliteStore { connection })
    }

    /// Runs `work` in a transaction, unless `check` says that `fence` is too late.
    fn guarded<T>(
        &mut self,
        (check, fence): (&str, u64),
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        // Immediate: for other connections, the check and the writes are one step.
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if tx.execute(check, (LOCK, i64::try_from(fence)?))? == 0 {
            return Ok(None);
        }
        let result = work(&tx)?;
        tx.commit()?;
        Ok(Some(result))
    }
}

impl Store for SqliteStore {
    fn write(&mut self, fence: u64, body: &str) -> Result<Written, Error> {
        let sql = "INSERT OR REPLACE INTO report (id, body) VALUES (7, ?1)";
        let written = self.guarded((MAY_WRITE, fence), |tx| tx.execute(sql, [body]))?;
        Ok(written.map_or(Written::TooLate, |_| Written::Yes))
    }

    fn read(&mut self, fence: u64) -> Result<Option<String>, Error> {
        let sql = "SELECT body FROM report WHERE id = 7";
        self.guarded((MAY_READ, fence), |tx| tx.query_row(sql, [], |row| row.get(0)))
    }
}
