//! examples/fenced_store: the late holder is refused, by real databases.

use self::postgres::PostgresStore;
use self::sqlite::SqliteStore;
use self::story::{Store, Written};
use crate::common::Server;
use crate::nodes;
use crate::postgres_server::PostgresServer;

#[path = "../../examples/fenced_store/postgres.rs"]
mod postgres;
#[path = "../../examples/fenced_store/sqlite.rs"]
mod sqlite;
#[path = "../../examples/fenced_store/story.rs"]
mod story;

/// The story of the example, on real nodes.
fn play(mut store: impl Store) {
    let nodes = nodes(3);
    let urls: Vec<String> = nodes.iter().map(Server::url).collect();
    let told = story::play(&urls, &mut store).unwrap();
    let said = told.join("\n");
    assert!(said.contains("second writes: Yes"), "{said}");
    assert!(said.contains("first wakes up and writes: TooLate"), "{said}");
    assert!(said.ends_with("the report is by second"), "{said}");
}

/// The rule by itself: of any order of writes, those that are late are refused, and no other.
fn judges(mut store: impl Store) {
    let mut write = |fence: u64, body: &str| store.write(fence, body).unwrap();
    assert_eq!(write(33, "a"), Written::Yes);
    assert_eq!(write(33, "b"), Written::Yes, "the same holder again");
    assert_eq!(write(34, "c"), Written::Yes);
    assert_eq!(write(33, "d"), Written::TooLate);
    assert_eq!(write(9_007_199_254_740_991, "e"), Written::Yes);
    assert_eq!(write(35, "f"), Written::TooLate);
    assert_eq!(store.read().unwrap(), "e");
}

/// Many at once, each with its own fence, in no order: the largest fence has the last word, and
/// what was accepted rose.
fn holds_under_contention<S: Store>(open: impl Fn() -> S + Sync) {
    const WRITERS: u64 = 4;
    const WRITES: u64 = 25;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let open = &open;
            scope.spawn(move || {
                let mut store = open();
                let mut last_refused = 0;
                for write in 0..WRITES {
                    // Each counts in its own stride, and repeats what is late.
                    let fence = 1 + write * WRITERS + writer;
                    if store.write(fence, &fence.to_string()).unwrap() == Written::TooLate {
                        last_refused = fence;
                    }
                    if last_refused > 0 {
                        let again = store.write(last_refused, "late").unwrap();
                        assert_eq!(again, Written::TooLate, "what is late stays late");
                    }
                }
            });
        }
    });
    assert_eq!(open().read().unwrap(), (WRITERS * WRITES).to_string());
}

#[test]
fn sqlite_refuses_the_late_holder() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(&folder.path().join(name)).unwrap();
    play(open("story"));
    judges(open("rule"));
    holds_under_contention(|| open("contention"));
}

#[test]
fn postgres_refuses_the_late_holder() {
    let server = PostgresServer::start();
    let open = |name: &str| PostgresStore::open(&server.database(name)).unwrap();
    play(open("story"));
    judges(open("rule"));
    let contention = server.database("contention");
    PostgresStore::open(&contention).unwrap();
    holds_under_contention(|| PostgresStore::open(&contention).unwrap());
}
