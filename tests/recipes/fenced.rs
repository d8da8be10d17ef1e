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
    assert!(said.contains("the report is by second"), "{said}");
    assert!(said.ends_with("second writes once more, without the lock: TooLate"), "{said}");
}

/// The rule by itself: of any order of writes and reads, those that are late are refused, and no
/// other.
fn judges(mut store: impl Store) {
    let mut write = |fence: u64, body: &str| store.write(fence, body).unwrap();
    assert_eq!(write(33, "a"), Written::Yes);
    assert_eq!(write(33, "b"), Written::Yes, "the same holder again");
    assert_eq!(write(34, "c"), Written::Yes);
    assert_eq!(write(33, "d"), Written::TooLate);
    assert_eq!(write(9_007_199_254_740_991, "e"), Written::Yes);
    assert_eq!(write(35, "f"), Written::TooLate);
    let last = 9_007_199_254_740_991;
    assert_eq!(store.read(last).unwrap().as_deref(), Some("e"));
    assert_eq!(store.read(35).unwrap(), None, "a late reader is told");
    assert_eq!(store.write(last, "g").unwrap(), Written::TooLate, "somebody has read since");
}

/// The same with readers between the writers.
fn judges_readers(mut store: impl Store) {
    assert_eq!(store.write(5, "a").unwrap(), Written::Yes);
    for (fence, seen) in [(5, Some("a")), (6, Some("a")), (4, None), (5, Some("a"))] {
        assert_eq!(store.read(fence).unwrap().as_deref(), seen, "a reader with {fence}");
    }
    for (fence, written) in [(5, Written::TooLate), (6, Written::TooLate), (7, Written::Yes)] {
        assert_eq!(store.write(fence, "b").unwrap(), written, "a writer with {fence}");
    }
    assert_eq!(store.read(6).unwrap(), None);
    assert_eq!(store.read(7).unwrap().as_deref(), Some("b"));
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
    let last = WRITERS * WRITES;
    assert_eq!(open().read(last).unwrap(), Some(last.to_string()));
}

#[test]
fn sqlite_refuses_the_late_holder() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(&folder.path().join(name)).unwrap();
    play(open("story"));
    judges(open("rule"));
    judges_readers(open("readers"));
    holds_under_contention(|| open("contention"));
}

#[test]
fn postgres_refuses_the_late_holder() {
    let server = PostgresServer::start();
    let open = |name: &str| PostgresStore::open(&server.database(name)).unwrap();
    play(open("story"));
    judges(open("rule"));
    judges_readers(open("readers"));
    let contention = server.database("contention");
    PostgresStore::open(&contention).unwrap();
    holds_under_contention(|| PostgresStore::open(&contention).unwrap());
}
