//! PostgreSQL: one table of fences guards whatever else a transaction writes.
//!
//! The check locks the row until the commit. So transactions under one lock run one after another,
//! even at the default isolation level, and one that waited sees what the other has committed.

use ::postgres::{Client, NoTls, Transaction};

use super::story::{Error, LOCK, Store, Written};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS fences
        (lock text PRIMARY KEY, fence bigint NOT NULL, read bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS report (id bigint PRIMARY KEY, body text NOT NULL);";

/// Changes no row if a writer with a larger fence was here, or a reader with this one or a larger
/// one. An equal fence of a writer is the same holder's next write.
const MAY_WRITE: &str = "
    INSERT INTO fences (lock, fence, read) VALUES ($1, $2, 0)
    ON CONFLICT (lock) DO UPDATE SET fence = excluded.fence
    WHERE fences.fence <= excluded.fence AND fences.read < excluded.fence";

/// Changes no row if a writer with a larger fence was here.
const MAY_READ: &str = "
    INSERT INTO fences (lock, fence, read) VALUES ($1, 0, $2)
    ON CONFLICT (lock) DO UPDATE SET read = CASE WHEN fences.read < excluded.read
        THEN excluded.read ELSE fences.read END
    WHERE fences.fence <= excluded.read";

const WRITE: &str = "
    INSERT INTO report (id, body) VALUES (7, $1)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body";

pub(crate) struct PostgresStore {
    client: Client,
}

impl PostgresStore {
    /// Connects with a libpq connection string: `host=/run/postgresql user=app dbname=app`.
    pub(crate) fn open(connection: &str) -> Result<PostgresStore, Error> {
        let mut client = Client::connect(connection, NoTls)?;
        client.batch_execute(TABLES)?;
        Ok(PostgresStore { client })
    }

    /// Runs `work` in a transaction, unless `check` says that `fence` is too late.
    fn guarded<T>(
        &mut self,
        (check, fence): (&str, u64),
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, ::postgres::Error>,
    ) -> Result<Option<T>, Error> {
        let mut tx = self.client.transaction()?;
        if tx.execute(check, &[&LOCK, &i64::try_from(fence)?])? == 0 {
            return Ok(None);
        }
        let result = work(&mut tx)?;
        tx.commit()?;
        Ok(Some(result))
    }
}

impl Store for PostgresStore {
    fn write(&mut self, fence: u64, body: &str) -> Result<Written, Error> {
        let written = self.guarded((MAY_WRITE, fence), |tx| tx.execute(WRITE, &[&body]))?;
        Ok(written.map_or(Written::TooLate, |_| Written::Yes))
    }

    fn read(&mut self, fence: u64) -> Result<Option<String>, Error> {
        let sql = "SELECT body FROM report WHERE id = 7";
        let row = self.guarded((MAY_READ, fence), |tx| tx.query_one(sql, &[]))?;
        Ok(row.map(|row| row.get(0)))
    }
}
