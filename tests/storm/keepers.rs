//! Clients that hold a lock all the time, over connections without faults: while a majority of the
//! nodes is up they must not lose it, whatever an operator does to one node after another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockmod::client::{Guard, Locker};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::driver::{KEPT, LOCKS, LOOK, Shared, lock_name, look};
use crate::history::Acquisition;

/// The locks that keepers lost, in words.
pub(crate) type Losses = Arc<Mutex<Vec<String>>>;

/// If a keeper's last renewals were further apart than this part of its ttl, it was not given time
/// to renew, and the nodes are not to blame.
const STALL_DIVISOR: u32 = 6;

/// Starts a keeper for each kept lock. They end after [`Shared::stop`].
pub(crate) fn start(
    locker: &Locker,
    ttls: [Duration; KEPT],
    shared: &Arc<Shared>,
    losses: &Losses,
) -> Vec<JoinHandle<()>> {
    let keepers = ttls.into_iter().enumerate().map(|(number, ttl)| {
        let (locker, shared, losses) = (locker.clone(), Arc::clone(shared), Arc::clone(losses));
        tokio::spawn(async move {
            while !shared.is_over() {
                keep(&locker, LOCKS + number, ttl, &shared, &losses).await;
            }
        })
    });
    keepers.collect()
}

/// Acquires the lock and holds it to the end of the storm, or until it is lost.
async fn keep(locker: &Locker, lock: usize, ttl: Duration, shared: &Shared, losses: &Losses) {
    let called_at = shared.now();
    let name = lock_name(lock);
    let Ok(guard) = locker.acquire(&name).ttl(ttl).wait(Duration::from_secs(2)).await else {
        return;
    };
    let mut noted = Acquisition {
        lock,
        client: usize::MAX - lock,
        called_at,
        returned_at: shared.now(),
        fence: Some(guard.fence().get()),
        valid_until: 0,
        released_at: None,
        is_reader: false,
        downgraded_at: None,
    };
    let mut looked_at = Instant::now();
    let mut stalled = Duration::ZERO;
    while look(shared, &guard, &mut noted) && !shared.is_over() {
        sleep(LOOK).await;
        stalled = stalled.max(looked_at.elapsed());
        looked_at = Instant::now();
    }
    if !shared.is_over() {
        let text = format!("{noted}; ttl {ttl:?}, the longest stall {stalled:?}");
        println!("a keeper lost its lock: {text}");
        if stalled < ttl / STALL_DIVISOR {
            losses.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }
    end(guard, noted, shared).await;
}

async fn end(guard: Guard, mut noted: Acquisition, shared: &Shared) {
    noted.released_at = Some(shared.now());
    shared.note(noted);
    // While nodes are down, too few confirmations are normal.
    let _ = guard.release().await;
}
