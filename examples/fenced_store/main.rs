//! A database refuses a late holder: SQLite or PostgreSQL.
//!
//! A holder is suspended while it holds the lock: by the operating system, by the migration of a
//! virtual machine, by a long garbage collection. Its lease ends, another holder works, the first
//! one wakes up and writes. It does not know that it is late, and no lock can tell it in time. But
//! the database remembers the largest fence that it has seen, and refuses smaller ones.
//!
//! ```sh
//! export LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003
//! cargo run --example fenced_store -- sqlite report.db
//! cargo run --example fenced_store -- postgres 'host=/run/postgresql user=app dbname=app'
//! ```

mod postgres;
mod sqlite;
mod story;

use postgres::PostgresStore;
use sqlite::SqliteStore;
use story::Store;

fn main() -> Result<(), story::Error> {
    let usage = "usage: fenced_store sqlite <file> | postgres <connection>, with LOCKMOD_NODES";
    let nodes = std::env::var("LOCKMOD_NODES").map_err(|_| usage)?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, place] = args.as_slice() else { return Err(usage.into()) };
    let mut store: Box<dyn Store> = match kind.as_str() {
        "sqlite" => Box::new(SqliteStore::open(place.as_ref())?),
        "postgres" => Box::new(PostgresStore::open(place)?),
        _ => return Err(usage.into()),
    };
    let nodes: Vec<String> = nodes.split(',').map(str::to_owned).collect();
    for line in story::play(&nodes, store.as_mut())? {
        println!("{line}");
    }
    Ok(())
}
