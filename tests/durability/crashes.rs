//! Kills at random points under load: whatever is lost, fences never fall and never repeat.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Builder, RawConnection, Server, wait_until};
use crate::first_grant;

const NAMES: usize = 8;
const CLIENTS: usize = 4;

/// Every fence that was ever returned, by name: each must be larger than all before it.
///
/// One client at a time uses a name, so that the order of the answers is the order of the grants.
#[derive(Default)]
struct Ledger(Mutex<HashMap<String, u64>>);

impl Ledger {
    fn note(&self, name: &str, fence: u64) {
        let mut highest = self.0.lock().expect("no test has panicked");
        let last = highest.entry(name.to_owned()).or_default();
        assert!(fence > *last, "{name} was granted {fence} after {last}");
        *last = fence;
    }
}

/// Acquires and releases until the server is gone.
fn load(mut connection: RawConnection, client: usize, ledger: &Ledger, acquired: &AtomicBool) {
    let salt: u64 = rand::random();
    for round in 0_usize.. {
        let name = format!("lock:{client}:{}", round % (NAMES / CLIENTS));
        let token = format!("{salt:x}:{round}");
        let Some(reply) = ask(&mut connection, &["LOCK.ACQUIRE", &name, &token, "50"]) else {
            return;
        };
        if let Some(fence) = reply.strip_prefix(':') {
            ledger.note(&name, fence.trim().parse().expect("a fence"));
            acquired.store(true, Ordering::Relaxed);
        } else {
            // A lease that came back with the data set is held until it ends.
            assert_eq!(reply, "$-1\r\n");
        }
        if ask(&mut connection, &["LOCK.RELEASE", &name, &token]).is_none() {
            return;
        }
    }
}

/// The reply, or `None` if the server is gone.
fn ask(connection: &mut RawConnection, words: &[&str]) -> Option<String> {
    connection.try_send(words).ok()?;
    let reply = connection.try_read().ok()?;
    Some(String::from_utf8_lossy(&reply).into_owned())
}

/// Kills the server again and again under load; `between` damages the folder.
fn crash_often(builder: Builder, crashes: usize, between: impl Fn(&Server, usize)) {
    let mut server = builder.module_arg("quarantine", "no").start();
    let ledger = Ledger::default();
    for crash in 0..crashes {
        let acquired = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let connection = server.connect_raw();
                let (ledger, acquired) = (&ledger, &acquired);
                scope.spawn(move || load(connection, client, ledger, acquired));
            }
            wait_until("a client has been granted a lock", || acquired.load(Ordering::Relaxed));
            server.kill();
        });
        between(&server, crash);
        server.start_again();
    }
    for (name, last) in ledger.0.lock().expect("no test has panicked").iter() {
        assert!(first_grant(&server, name, "last") > *last);
    }
}

#[test]
fn fences_rise_through_crashes_without_persistence() {
    crash_often(Server::builder().config("save", "\"\""), 25, |_, _| {});
}

#[test]
fn fences_rise_through_crashes_with_an_append_only_file() {
    let builder = Server::builder()
        .config("save", "\"\"")
        .config("appendonly", "yes")
        .config("appendfsync", "everysec");
    crash_often(builder, 25, |_, _| {});
}

#[test]
fn fences_rise_when_all_persisted_data_is_deleted() {
    let builder = Server::builder()
        .config("save", "\"1 1\"")
        .config("appendonly", "yes")
        .config("appendfsync", "everysec");
    crash_often(builder, 10, |server, crash| {
        if crash % 2 == 0 {
            let _ = std::fs::remove_file(server.dir().join("dump.rdb"));
            let _ = std::fs::remove_dir_all(server.dir().join("appendonlydir"));
        }
    });
}

/// Long: `cargo test --release --test durability -- --ignored`.
#[test]
#[ignore = "takes minutes; `make storm` runs it"]
fn fences_rise_through_a_thousand_crashes_of_one_node() {
    crash_often(Server::builder().config("save", "\"\""), 1_000, |_, _| {});
}
