//! Leader election: of all running copies, one leads; when it is gone, another one does.
//!
//! ```sh
//! export LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003
//! cargo run --example leader -- scheduler host-1
//! ```
//!
//! The leader is the process that holds a lock. The fence is the number of its term: receivers of
//! orders remember the largest term, and refuse smaller ones. On TERM or Ctrl-C the leader resigns,
//! so that the next one need not wait for the end of the lease.

use std::time::Duration;

use lockmod::client::{AcquireError, Guard, Locker};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long there is no leader after a crash. A longer ttl survives longer disturbances.
const TTL: Duration = Duration::from_secs(5);

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, name] = args.as_slice() else { return Err("usage: leader <role> <name>".into()) };
    campaign(role, name)
}

/// Leads whenever it can, until it is asked to end.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn campaign(role: &str, name: &str) -> Result<(), Error> {
    let nodes = std::env::var("LOCKMOD_NODES").map_err(|_| "LOCKMOD_NODES names no nodes")?;
    let locker = Locker::builder().nodes(nodes.split(',')).ttl(TTL).label(name).build()?;
    let mut end = std::pin::pin!(end());
    loop {
        let guard = tokio::select! {
            guard = locker.acquire(role).wait(Duration::from_secs(60)) => guard,
            // Cancelling an acquisition leaves nothing behind, once the releases are written.
            () = &mut end => {
                locker.settle().await;
                return Ok(());
            }
        };
        let guard = match guard {
            Ok(guard) => guard,
            Err(AcquireError::Held(_)) => continue,
            Err(error) => {
                eprintln!("{name}: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        println!("{name} leads, term {}", guard.fence());
        tokio::select! {
            lost = guard.lost() => println!("{name} leads no more: {lost}"),
            () = lead(&guard) => {}
            () = &mut end => {
                println!("{name} resigns");
                guard.release().await?;
                return Ok(());
            }
        }
    }
}

/// The leader's work. It is dropped at its current await point when the lease is lost.
async fn lead(guard: &Guard) {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    loop {
        pace.tick().await;
        // Orders go out with the term, so that those of a late leader are refused.
        let _term = guard.fence();
    }
}

/// Waits for TERM or Ctrl-C.
async fn end() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).expect("a handler can be set");
    let mut int = signal(SignalKind::interrupt()).expect("a handler can be set");
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
