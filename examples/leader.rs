//! Leader election: of all who run this, one leads, and another as soon as that one is gone.
//!
//! ```sh
//! export LOCKMOD_NODES=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003
//! cargo run --example leader -- scheduler host-1
//! ```
//!
//! To lead is to hold a lock. The fence is the number of the term: whoever is given orders
//! remembers the largest, and obeys no smaller one. TERM or Ctrl-C resigns: the next leader need
//! not wait until the lease has ended.

use std::time::Duration;

use lockmod::client::{AcquireError, Guard, Locker};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How soon another leads when the leader has crashed. A longer one survives longer disturbances.
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

/// The leader's work: it is dropped where it awaits as soon as the lease is lost.
async fn lead(guard: &Guard) {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    loop {
        pace.tick().await;
        // Orders go out with the term, so that those of a late leader are refused.
        let _term = guard.fence();
    }
}

/// Until TERM or Ctrl-C.
async fn end() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).expect("a handler can be set");
    let mut int = signal(SignalKind::interrupt()).expect("a handler can be set");
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
