//! PostgreSQL: one table of fences guards whatever else a transaction writes.
//!
//! The check locks the row until the commit. So transactions under one lock run one after another,
//! even at the default isolation level, and one that waited sees what the other has committed.

use ::postgres::{Client, NoTls, Transaction};

use super::story::{Error, LOCK, Store, Written};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS fences (lock text PRIMARY KEY, fence bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS report (id bigint PRIMARY KEY, body text NOT NULL);";

/// Changes no row if a larger fence is there. An equal fence is the same holder's next write.
const CHECK: &str = "
    INSERT INTO fences (lock, fence) VALUES ($1, $2)
    ON CONFLICT (lock) DO UPDATE SET fence = excluded.fence WHERE fences.fence <= excluded.fence";

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

    /// Runs `work` in a transaction, unless `fence` is too late.
    fn guarded(
        &mut self,
        fence: u64,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<(), ::postgres::Error>,
    ) -> Result<Written, Error> {
        let mut tx = self.client.transaction()?;
        if tx.execute(CHECK, &[&LOCK, &i64::try_from(fence)?])? == 0 {
            return Ok(Written::TooLate);
        }
        work(&mut tx)?;
        tx.commit()?;
        Ok(Written::Yes)
    }
}

impl Store for PostgresStore {
    fn write(&mut self, fence: u64, body: &str) -> Result<Written, Error> {
        self.guarded(fence, |tx| tx.execute(WRITE, &[&body]).map(|_| ()))
    }

    fn read(&mut self) -> Result<String, Error> {
        Ok(self.client.query_one("SELECT body FROM report WHERE id = 7", &[])?.get(0))
    }
}
