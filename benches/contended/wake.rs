//! The lower bound for a hand-over through all nodes: the previous task publishes at each, and the
//! next has received the message from a quorum. No lock is kept, and none is requested.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::QUORUM;
use super::super::common::Server;
use super::{HOLD, micros};

/// One of the tasks that take turns, with a connection to each node.
struct Runner {
    nodes: Vec<MultiplexedConnection>,
    messages: UnboundedReceiver<PushInfo>,
}

impl Runner {
    async fn connect(nodes: &[Server], place: usize) -> Runner {
        let (sender, messages) = unbounded_channel();
        let mut connections = Vec::new();
        for node in nodes {
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_push_sender(sender.clone());
            let client = Client::open(format!("{}?protocol=resp3", node.url()));
            let client = client.expect("the URL is good");
            let connection = client.get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connection.expect("the node is up");
            connection.subscribe(channel(place)).await.expect("the node lets it listen");
            connections.push(connection);
        }
        Runner { nodes: connections, messages }
    }

    /// Waits until a quorum of nodes has published this turn.
    async fn called(&mut self, turn: usize) {
        let mut count = 0;
        while count < QUORUM {
            let message = self.messages.recv().await.expect("the connections stay");
            let told = message.data.get(1).cloned().unwrap_or(Value::Nil);
            let is_turn = redis::from_redis_value::<usize>(told).is_ok_and(|told| told == turn);
            count += usize::from(message.kind == PushKind::Message && is_turn);
        }
    }

    /// Publishes a turn at all nodes.
    async fn call(&self, place: usize, turn: usize) {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel(place)).arg(turn);
        let at_all = self.nodes.iter().map(|node| {
            let (mut node, publish) = (node.clone(), publish.clone());
            async move { node.send_packed_command(&publish).await }
        });
        for answer in join_all(at_all).await {
            answer.expect("the node answers");
        }
    }
}

fn channel(place: usize) -> String {
    format!("bare-wake:{place}")
}

/// This many tasks take turns, each for as long as a lock is held; the time from call to turn, in
/// microseconds.
pub(super) async fn run(nodes: &[Server], count: usize, length: Duration) -> Vec<f64> {
    // A sleep takes a millisecond longer than requested.
    let turns = (length.as_micros() / (2 * HOLD).as_micros()) as usize;
    let mut runners = Vec::new();
    for place in 0..count {
        runners.push(Runner::connect(nodes, place).await);
    }
    let times = Arc::new(Mutex::new((None::<Instant>, Vec::new())));
    let handles: Vec<_> = runners
        .into_iter()
        .enumerate()
        .map(|(place, mut runner)| {
            let times = Arc::clone(&times);
            tokio::spawn(async move {
                for turn in (place..turns).step_by(count) {
                    if turn > 0 {
                        runner.called(turn).await;
                        let mut times = times.lock().expect("no panic");
                        let called_at = times.0.take().expect("a task has called");
                        times.1.push(micros(called_at.elapsed()));
                    }
                    tokio::time::sleep(HOLD).await;
                    times.lock().expect("no panic").0 = Some(Instant::now());
                    runner.call((turn + 1) % count, turn + 1).await;
                }
            })
        })
        .collect();
    for handle in handles {
        handle.await.expect("no task panics");
    }
    let (_, times) = std::mem::take(&mut *times.lock().expect("no panic"));
    times
}
