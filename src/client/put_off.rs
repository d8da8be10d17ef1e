//! The releases that a node has put off (`BUSY`, `LOADING`), which are sent again.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::outbox::{COMMANDS_MAX, Item};
use super::packet::{AcquisitionId, Part};
use crate::wire::code::{self, Meaning};

/// They are sent again after this long, and then after twice as long each time, until the node
/// carries one out.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest such time.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The releases of one connection.
pub(super) struct PutOff {
    pub(super) items: VecDeque<Item>,
    /// When they are sent again, if there are any, and how long the next ones wait.
    again: Pin<Box<Sleep>>,
    pause: Duration,
    /// The claims of which the server has refused every request before the module saw it. Their
    /// releases have nothing to undo.
    refused: HashSet<AcquisitionId>,
}

impl PutOff {
    pub(super) fn new() -> PutOff {
        let (items, refused) = (VecDeque::new(), HashSet::new());
        PutOff { items, again: Box::pin(sleep(PAUSE_MIN)), pause: PAUSE_MIN, refused }
    }

    /// Takes note that the node has carried a command out.
    pub(super) fn done(&mut self, item: &Item) {
        self.note(item, false);
        if item.is_owed {
            self.pause = PAUSE_MIN;
        }
    }

    /// Takes note of an error, and keeps a release that is to be sent again. Returns whether it is
    /// one.
    pub(super) fn keep(&mut self, item: &Item, error: &str) -> bool {
        let is_moot = self.note(item, code::is_refused_unseen(error));
        if is_moot || code::meaning_of(error) != Meaning::Later {
            return false;
        }
        let now = Instant::now();
        let Some(again) = item.put_off(now) else { return false };
        if self.items.is_empty() {
            self.again.as_mut().reset(now + self.pause);
            self.pause = PAUSE_MAX.min(self.pause * 2);
        }
        self.items.push_back(again);
        true
    }

    /// Whether there are some, and it is time to send them again.
    pub(super) fn is_due(&mut self, ctx: &mut Context<'_>) -> bool {
        !self.items.is_empty() && self.again.as_mut().poll(ctx).is_ready()
    }

    /// Takes note of the answer to a command. Returns whether it is a release of nothing.
    fn note(&mut self, item: &Item, is_refused: bool) -> bool {
        if self.refused.is_empty() && !is_refused {
            return false;
        }
        let Some(Part { claim, asks_for }) = item.packet.part() else { return false };
        match asks_for {
            // A request on an earlier connection may have been granted.
            Some(_) if is_refused && (item.is_first() || self.refused.contains(&claim)) => {
                if self.refused.len() >= COMMANDS_MAX {
                    // Without the note, a release is only sent for longer than it need be.
                    self.refused.clear();
                }
                self.refused.insert(claim);
                false
            }
            Some(_) => {
                self.refused.remove(&claim);
                false
            }
            None => self.refused.remove(&claim),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outbox::Rank;
    use super::super::packet::Packet;
    use super::*;
    use crate::engine::{Millis, Mode};

    const TTL: Millis = Millis::new(60_000);

    fn acquire(number: u8) -> Packet {
        Packet::acquire(b"k", &[number; 20], (TTL, Mode::Exclusive), b"")
    }

    fn release(number: u8) -> Packet {
        Packet::release(b"k", &[number; 20], TTL)
    }

    fn item(packet: Packet, is_first: bool) -> Item {
        Item::ranked(packet, None, Rank { is_owed: true, is_first, number: 0 })
    }

    /// Regression: while a server refused all writes, each attempt of a waiter left a release
    /// behind that was sent again, ten times a second, for a ttl.
    #[tokio::test]
    async fn what_the_server_has_refused_needs_no_release() {
        let (first, again) = (item(acquire(1), true), item(acquire(1), false));
        let release = item(release(1), false);
        for (answers, is_moot) in [
            (vec![(&first, true)], true),
            (vec![(&first, true), (&again, true)], true),
            (vec![(&first, false)], false),
            (vec![(&first, true), (&again, false)], false),
            (vec![(&first, false), (&again, true)], false),
            // Another connection had the first one.
            (vec![(&again, true)], false),
            (vec![(&item(acquire(2), true), true)], false),
        ] {
            let mut put_off = PutOff::new();
            for (item, is_refused) in &answers {
                assert!(!put_off.note(item, *is_refused));
            }
            assert_eq!(put_off.note(&release, true), is_moot, "{answers:?}");
            assert!(!put_off.note(&release, true), "the same token may be used again");
        }
    }

    /// They were sent again ten times a second. A release of nothing is no sign that the node
    /// carries any out.
    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_until_a_release_is_carried_out() {
        let mut put_off = PutOff::new();
        let mut pauses = Vec::new();
        for round in 0..7 {
            let put_off_at = Instant::now();
            assert!(put_off.keep(&item(release(1), false), "BUSY x"));
            assert!(put_off.keep(&item(release(2), false), "BUSY x"), "with the first");
            assert!(!put_off.keep(&item(acquire(3), true), "BUSY x"));
            assert!(!put_off.keep(&item(release(3), false), "BUSY x"), "nothing was granted");
            std::future::poll_fn(|ctx| match put_off.is_due(ctx) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            })
            .await;
            pauses.push(put_off_at.elapsed().as_millis());
            assert_eq!(put_off.items.drain(..).count(), 2);
            if round == 4 {
                put_off.done(&item(release(1), false));
            }
        }
        assert_eq!(pauses, [100, 200, 250, 250, 250, 100, 200]);
        assert!(!put_off.keep(&item(release(1), false), "ERR x"), "for good");
    }
}
