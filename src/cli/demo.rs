//! `lockmod demo`: the story of one lock over five nodes, three of which die.

use std::time::Duration;

use tokio::time::Instant;

use super::args::Demo;
use super::cluster::{Layout, LocalNodes, answering};
use super::failure::Failure;
use super::out;
use crate::client::{AcquireError, Guard, Locker};
use crate::engine::Fence;

const NAME: &str = "printer";

/// Tells the story: what happens, with the time since the start.
struct Teller {
    start: Instant,
    fences: Vec<Fence>,
}

impl Teller {
    fn say(&self, text: &str) -> Result<(), Failure> {
        let since = self.start.elapsed().as_secs_f64();
        Ok(out::line(format_args!("{since:5.2} s  {text}"))?)
    }

    fn granted(&mut self, who: &str, guard: &Guard) -> Result<(), Failure> {
        let fence = guard.fence();
        self.say(&format!("{who} holds '{NAME}' with fence {fence}"))?;
        if self.fences.last().is_some_and(|last| *last >= fence) {
            return Err(Failure::new(Failure::FAILED, format!("fence {fence} did not rise")));
        }
        self.fences.push(fence);
        Ok(())
    }

    /// Each acquires the lock and gives it back.
    async fn take_turns(&mut self, alice: &Locker, bob: &Locker) -> Result<(), Failure> {
        for (who, locker) in [("alice", alice), ("bob", bob)] {
            let guard = locker.acquire(NAME).await?;
            self.granted(who, &guard)?;
            guard.release().await?;
        }
        Ok(())
    }

    fn refused(&self, who: &str, result: Result<Guard, AcquireError>) -> Result<(), Failure> {
        match result {
            Ok(_) => Err(Failure::new(Failure::FAILED, format!("{who} must not get the lock"))),
            Err(error) => self.say(&format!("{who} is refused: {error}")),
        }
    }
}

pub(super) async fn demo(args: Demo) -> Result<(), Failure> {
    let mut teller = Teller { start: Instant::now(), fences: Vec::new() };
    let mut cluster = LocalNodes::prepare(&args.cluster, Layout::Apart(5), None)?;
    cluster.start_all()?;
    let locker = |label: &str| -> Result<Locker, Failure> {
        let builder = Locker::builder().nodes(cluster.urls()).label(label);
        Ok(builder.ttl(Duration::from_secs(5)).timeout(Duration::from_millis(250)).build()?)
    };
    let (alice, bob) = (locker("alice")?, locker("bob")?);
    answering(&alice, &mut cluster).await?;
    answering(&bob, &mut cluster).await?;
    teller.say("five nodes with the module are up; a quorum is three")?;

    let guard = alice.acquire(NAME).await?;
    teller.granted("alice", &guard)?;
    teller.refused("bob", bob.try_acquire(NAME).await)?;
    guard.release().await?;
    teller.say("alice gives it back")?;
    let guard = bob.acquire(NAME).await?;
    teller.granted("bob", &guard)?;
    guard.release().await?;

    cluster.kill(0).await?;
    cluster.kill(1).await?;
    teller.say("nodes 1 and 2 are killed")?;
    teller.take_turns(&alice, &bob).await?;
    cluster.kill(2).await?;
    teller.say("node 3 is killed, too")?;
    teller.refused("alice", alice.try_acquire(NAME).await)?;

    for node in [0, 1, 2] {
        cluster.start(node)?;
    }
    answering(&alice, &mut cluster).await?;
    answering(&bob, &mut cluster).await?;
    teller.say("nodes 1, 2 and 3 are back, and so is the quorum")?;
    teller.take_turns(&alice, &bob).await?;
    let fences: Vec<String> = teller.fences.iter().map(ToString::to_string).collect();
    teller.say(&format!("the fences rose throughout: {}", fences.join(" < ")))
}
