//! `lockmod demo`: the story of one lock over five nodes, three of which die; or over a group under
//! Sentinel, whose master dies.

use std::time::Duration;

use tokio::time::{Instant, interval};

use super::args::Demo;
use super::cluster::{Layout, LocalNodes, answering};
use super::failure::Failure;
use super::{out, rows};
use crate::client::{AcquireError, Guard, Locker};
use crate::engine::Fence;

const NAME: &str = "printer";
const TTL: Duration = Duration::from_secs(5);
/// How long to wait for the lock while a master is replaced.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often to look at the state of the group.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Tells the story, with the time since the start.
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

    /// Each acquires the lock and releases it.
    async fn take_turns(&mut self, alice: &Locker, bob: &Locker) -> Result<(), Failure> {
        for (who, locker) in [("alice", alice), ("bob", bob)] {
            let guard = locker.acquire(NAME).await?;
            self.granted(who, &guard)?;
            guard.release().await?;
        }
        Ok(())
    }

    /// Waits for the lock, and meanwhile tells the state of the only node.
    async fn wait_for(&self, locker: &Locker) -> Result<Guard, Failure> {
        let mut acquiring = std::pin::pin!(locker.acquire(NAME).wait(PATIENCE).into_future());
        let (mut looks, mut told) = (interval(LOOK_EVERY), String::new());
        loop {
            tokio::select! {
                guard = &mut acquiring => return Ok(guard?),
                _ = looks.tick() => {}
            }
            let survey = locker.survey(0).await;
            let states = survey.nodes.iter().map(|node| rows::node(&survey, node).1);
            for [_, _, state, ..] in states {
                // A change of the remaining time is no news.
                let kind = state.split(" for ").next().unwrap_or_default();
                if kind != told {
                    self.say(&format!("the group: {state}"))?;
                    told = kind.to_owned();
                }
            }
        }
    }

    /// The last line of each story.
    fn conclude(&self) -> Result<(), Failure> {
        let fences: Vec<String> = self.fences.iter().map(ToString::to_string).collect();
        self.say(&format!("the fences rose throughout: {}", fences.join(" < ")))
    }

    fn refused(&self, who: &str, result: Result<Guard, AcquireError>) -> Result<(), Failure> {
        match result {
            Ok(_) => Err(Failure::new(Failure::FAILED, format!("{who} must not get the lock"))),
            Err(error) => self.say(&format!("{who} is refused: {error}")),
        }
    }
}

pub(super) async fn demo(args: Demo) -> Result<(), Failure> {
    let teller = Teller { start: Instant::now(), fences: Vec::new() };
    if args.failover { of_failover(&args, teller).await } else { of_quorum(&args, teller).await }
}

fn locker(cluster: &LocalNodes, label: &str) -> Result<Locker, Failure> {
    let builder = Locker::builder().nodes(cluster.urls()).label(label);
    Ok(builder.ttl(TTL).timeout(Duration::from_millis(250)).build()?)
}

async fn of_quorum(args: &Demo, mut teller: Teller) -> Result<(), Failure> {
    let mut cluster = LocalNodes::prepare(&args.cluster, Layout::Apart(5), None)?;
    cluster.start_all()?;
    let (alice, bob) = (locker(&cluster, "alice")?, locker(&cluster, "bob")?);
    answering(&alice, &mut cluster).await?;
    answering(&bob, &mut cluster).await?;
    teller.say("five nodes with the module are up; a quorum is three")?;

    let guard = alice.acquire(NAME).await?;
    teller.granted("alice", &guard)?;
    teller.refused("bob", bob.try_acquire(NAME).await)?;
    guard.release().await?;
    teller.say("alice releases it")?;
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
    teller.conclude()
}

async fn of_failover(args: &Demo, mut teller: Teller) -> Result<(), Failure> {
    let mut cluster = LocalNodes::prepare(&args.cluster, Layout::Sentinel(TTL), None)?;
    cluster.start_all()?;
    let servers = cluster.to_servers()?;
    answering(&servers, &mut cluster).await?;
    let (alice, bob) = (locker(&cluster, "alice")?, locker(&cluster, "bob")?);
    teller.say("a master, two replicas and three Sentinels are up: one node, which moves")?;
    let guard = teller.wait_for(&alice).await?;
    teller.granted("alice", &guard)?;
    cluster.kill(0).await?;
    teller.say("the master is killed")?;
    let lost = guard.lost().await;
    teller.say(&format!("alice is told that the lock is lost: {lost}"))?;
    teller.say("a lease of 20s would have outlasted this failover; hers was of 5s, to be quick")?;
    drop(guard);
    let guard = teller.wait_for(&bob).await?;
    teller.granted("bob", &guard)?;
    guard.release().await?;
    teller.conclude()
}
