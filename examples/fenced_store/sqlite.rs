//! SQLite: one table of fences guards whatever else a transaction writes.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::story::{Error, LOCK, Store, Written};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS fences (lock TEXT PRIMARY KEY, fence INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS report (id INTEGER PRIMARY KEY, body TEXT NOT NULL);";

/// Changes no row if a larger fence is there. An equal fence is the same holder's next write.
const CHECK: &str = "
    INSERT INTO fences (lock, fence) VALUES (?1, ?2)
    ON CONFLICT (lock) DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence";

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

    /// Runs `work` in a transaction, unless `fence` is too late.
    fn guarded(
        &mut self,
        fence: u64,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<Written, Error> {
        // Immediate: the check and the writes are one step for everybody else.
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if tx.execute(CHECK, (LOCK, i64::try_from(fence)?))? == 0 {
            return Ok(Written::TooLate);
        }
        work(&tx)?;
        tx.commit()?;
        Ok(Written::Yes)
    }
}

impl Store for SqliteStore {
    fn write(&mut self, fence: u64, body: &str) -> Result<Written, Error> {
        self.guarded(fence, |tx| {
            tx.execute("INSERT OR REPLACE INTO report (id, body) VALUES (7, ?1)", [body])?;
            Ok(())
        })
    }

    fn read(&mut self) -> Result<String, Error> {
        let sql = "SELECT body FROM report WHERE id = 7";
        Ok(self.connection.query_row(sql, [], |row| row.get(0))?)
    }
}
