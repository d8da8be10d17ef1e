//! The two lock services that meet the storm: the quorum client, and plain Redlock.
//!
//! Plain Redlock is the recipe of the Redis documentation: `SET NX PX` on all nodes, a majority
//! within the validity, compare-and-delete in Lua. Same fan-out, same time limits, same drift.

use std::time::{Duration, Instant};

use lockmod::client::{Guard, Locker};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use std::sync::Arc;

use crate::driver::{Held, Service, Wish};

/// How long both wait for a node's answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(100);

impl Service for Locker {
    type Held = Guard;

    async fn acquire(&self, lock: &str, wish: Wish) -> Option<Guard> {
        let acquire = Locker::acquire(self, lock).ttl(wish.ttl).wait(wish.wait);
        let acquire = if wish.reads { acquire.shared() } else { acquire };
        acquire.await.ok()
    }
}

impl Held for Guard {
    fn fence(&self) -> Option<u64> {
        Some(Guard::fence(self).get())
    }

    fn validity(&self) -> Duration {
        Guard::validity(self)
    }

    async fn tend(&mut self) {}

    async fn downgrade(&mut self) {
        let _ = Guard::downgrade(self).await;
    }

    async fn release(self) {
        // In a storm, too few confirmations are normal; the checker sees the consequences.
        let _ = Guard::release(self).await;
    }

    fn leak(self) {
        drop(Guard::leak(self));
    }
}

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
     return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";

/// A node for a plain Redlock client.
#[derive(Debug)]
struct PlainNode {
    client: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl PlainNode {
    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Option<T> {
        let connect = async {
            let mut connection = self.connection.lock().await;
            if connection.is_none() {
                *connection = self.client.get_multiplexed_async_connection().await.ok();
            }
            connection.clone()
        };
        let work = async {
            let mut connection = connect.await?;
            let answer = command.query_async(&mut connection).await;
            if answer.is_err() {
                *self.connection.lock().await = None;
            }
            answer.ok()
        };
        timeout(TIMEOUT, work).await.ok().flatten()
    }
}

/// Plain Redlock over independent servers without the module.
#[derive(Clone, Debug)]
pub(crate) struct Redlock {
    nodes: Vec<Arc<PlainNode>>,
}

impl Redlock {
    pub(crate) fn new(urls: impl IntoIterator<Item = String>) -> Redlock {
        let node = |url: String| {
            let client = redis::Client::open(url).expect("a good address");
            Arc::new(PlainNode { client, connection: Mutex::default() })
        };
        Redlock { nodes: urls.into_iter().map(node).collect() }
    }

    /// How many nodes answer as expected; it waits for all of them.
    async fn count<T>(&self, command: redis::Cmd, is_vote: fn(T) -> bool) -> usize
    where
        T: FromRedisValue + Send + 'static,
    {
        let command = Arc::new(command);
        let mut answers = JoinSet::new();
        for node in &self.nodes {
            let (node, command) = (Arc::clone(node), Arc::clone(&command));
            answers.spawn(async move { node.ask(&command).await });
        }
        let mut votes = 0;
        while let Some(answer) = answers.join_next().await {
            votes += usize::from(answer.ok().flatten().is_some_and(is_vote));
        }
        votes
    }

    fn is_quorum(&self, votes: usize) -> bool {
        votes > self.nodes.len() / 2
    }

    async fn delete(&self, lock: &str, token: &str) {
        let mut command = redis::cmd("EVAL");
        command.arg(RELEASE).arg(1).arg(lock).arg(token);
        self.count(command, |deleted: i64| deleted == 1).await;
    }

    async fn attempt(&self, lock: &str, ttl: Duration) -> Option<RedlockHeld> {
        let token = format!("{:032x}", rand::random::<u128>());
        let start = Instant::now();
        let mut command = redis::cmd("SET");
        command.arg(lock).arg(&token).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        let votes = self.count(command, |answer: Value| answer == Value::Okay).await;
        let valid_until = valid_until(start, ttl);
        if self.is_quorum(votes) && Instant::now() < valid_until {
            let (redlock, lock) = (self.clone(), lock.to_owned());
            return Some(RedlockHeld { redlock, lock, token, ttl, start, valid_until });
        }
        self.delete(lock, &token).await;
        None
    }
}

/// Subtracts the drift that Redlock allows for.
fn valid_until(start: Instant, ttl: Duration) -> Instant {
    start + ttl - ttl / 100 - Duration::from_millis(2)
}

impl Service for Redlock {
    type Held = RedlockHeld;

    /// Redlock has no readers: they exclude each other as well.
    async fn acquire(&self, lock: &str, wish: Wish) -> Option<RedlockHeld> {
        let Wish { ttl, wait, reads: _ } = wish;
        let start = Instant::now();
        loop {
            if let Some(held) = self.attempt(lock, ttl).await {
                return Some(held);
            }
            if start.elapsed() >= wait {
                return None;
            }
            sleep(Duration::from_millis(rand::random_range(5..60))).await;
        }
    }
}

/// A lock held with Redlock.
#[derive(Debug)]
pub(crate) struct RedlockHeld {
    redlock: Redlock,
    lock: String,
    token: String,
    ttl: Duration,
    /// When it was last acquired or extended.
    start: Instant,
    valid_until: Instant,
}

impl Held for RedlockHeld {
    fn fence(&self) -> Option<u64> {
        None
    }

    fn validity(&self) -> Duration {
        self.valid_until.saturating_duration_since(Instant::now())
    }

    async fn tend(&mut self) {
        let start = Instant::now();
        if start < self.start + self.ttl / 3 || start >= self.valid_until {
            return;
        }
        let mut command = redis::cmd("EVAL");
        command.arg(EXTEND).arg(1).arg(&self.lock).arg(&self.token);
        command.arg(self.ttl.as_millis() as u64);
        let votes = self.redlock.count(command, |extended: i64| extended == 1).await;
        if self.redlock.is_quorum(votes) && Instant::now() < self.valid_until {
            (self.start, self.valid_until) = (start, valid_until(start, self.ttl));
        }
    }

    async fn downgrade(&mut self) {}

    async fn release(self) {
        self.redlock.delete(&self.lock, &self.token).await;
    }

    fn leak(self) {}
}
