//! Waiting for a lock with somebody at the terminal: who holds it, and how many come before.

use std::time::Duration;

use tokio::time::{Instant, interval};

use super::failure::Failure;
use super::out::Progress;
use super::signals::Signals;
use super::values::Name;
use crate::client::protocol::LockInfo;
use crate::client::{Guard, Length, Locker, NodeInfo};

/// How often a waiting person is told.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Acquires the lock, telling a person at a terminal for whom it waits, and at which place in line.
///
/// # Errors
/// If it is not acquired, or a signal came: then nothing is left on the nodes that can be reached.
pub(super) async fn acquire(
    locker: &Locker,
    name: &Name,
    signals: &mut Signals,
) -> Result<Guard, Failure> {
    let acquired = watch(locker, name, signals).await;
    if acquired.is_err() {
        // The release of what a minority granted is in line: this process must not end before it
        // is written, or the lease stands for its ttl.
        locker.settle().await;
    }
    acquired
}

async fn watch(locker: &Locker, name: &Name, signals: &mut Signals) -> Result<Guard, Failure> {
    let mut place = Place { began_at: Instant::now(), at_most: u64::MAX };
    let mut acquiring = locker.acquire(name).into_future();
    let mut telling = interval(TELL_EVERY);
    telling.tick().await;
    let mut progress = Progress::new();
    let signal = loop {
        tokio::select! {
            guard = &mut acquiring => return Ok(guard?),
            signal = signals.next() => break signal,
            _ = telling.tick(), if progress.is_watched() => {
                // Looking does not stop the acquiring.
                tokio::select! {
                    guard = &mut acquiring => return Ok(guard?),
                    signal = signals.next() => break signal,
                    nodes = locker.info(name) => {
                        let (holder, place) = (holder(&nodes), place.tell(&nodes));
                        progress.show(&format!("lockmod: waiting for '{name}': {place}{holder}"));
                    }
                }
            }
        }
    };
    Err(Failure::interrupted(signal))
}

/// Who holds the lock, in words.
fn holder(nodes: &[NodeInfo]) -> String {
    if infos(nodes).next().is_none() {
        return "no answer yet".to_owned();
    }
    match infos(nodes).filter(|info| info.state == "held").max_by_key(|info| info.left) {
        Some(info) => {
            let label = info.label.as_deref().unwrap_or("another client");
            let left = info.left.unwrap_or_default();
            format!("held by {label} for up to {} more", Length(left))
        }
        None => {
            let answered = infos(nodes).count();
            format!("not held on the {answered} of {} nodes that answer", nodes.len())
        }
    }
}

fn infos(nodes: &[NodeInfo]) -> impl Iterator<Item = &LockInfo> {
    nodes.iter().filter_map(|node| node.info.as_ref().ok())
}

/// The place in line, as far as it can be told from outside.
///
/// Whoever came later stands behind, so the place is never larger than the number of those who
/// waited at any time since; and it is the first as soon as nobody has been waiting for longer.
struct Place {
    began_at: Instant,
    at_most: u64,
}

impl Place {
    fn tell(&mut self, nodes: &[NodeInfo]) -> String {
        let Some(longest) = infos(nodes).max_by_key(|info| info.waiters) else {
            return String::new();
        };
        if longest.waiters == 0 {
            return String::new();
        }
        self.at_most = self.at_most.min(longest.waiters);
        let waited = self.began_at.elapsed();
        if infos(nodes).filter_map(|info| info.first_waiting).all(|first| first <= waited) {
            self.at_most = 1;
        }
        match self.at_most {
            1 => format!("first of {} in line; ", longest.waiters),
            place => format!("place {place} of {} in line, or better; ", longest.waiters),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Vote;
    use crate::client::protocol::lock_info;
    use crate::client::reply::Reply;

    fn node(waiters: i64, first_waiting: i64) -> NodeInfo {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
        let fields = [
            (text("state"), text("held")),
            (text("waiters"), Reply::Integer(waiters)),
            (text("first_waiting_ms"), Reply::Integer(first_waiting)),
        ];
        let fields = fields.into_iter().flat_map(|(name, value)| [name, value]).collect();
        NodeInfo::new("n".into(), lock_info(&Reply::List(fields)))
    }

    #[test]
    fn nodes_that_say_nothing_are_not_taken_for_a_lock_that_is_free() {
        let silent = || NodeInfo::new("n".into(), Err(Vote::TimedOut));
        assert_eq!(holder(&[silent(), silent()]), "no answer yet");
        assert_eq!(holder(&[silent(), node(0, 0)]), "held by another client for up to 0 ms more");
    }

    #[test]
    fn the_place_is_told_as_far_as_it_is_known_and_never_gets_worse() {
        let began_at = Instant::now();
        let mut place = Place { began_at, at_most: u64::MAX };
        assert_eq!(place.tell(&[]), "");
        let hour = 3_600_000;
        assert_eq!(place.tell(&[node(3, hour)]), "place 3 of 3 in line, or better; ");
        assert_eq!(place.tell(&[node(7, hour)]), "place 3 of 7 in line, or better; ");
        assert_eq!(place.tell(&[node(2, hour)]), "place 2 of 2 in line, or better; ");
        assert_eq!(place.tell(&[node(5, 0), node(5, 0)]), "first of 5 in line; ");
    }
}
