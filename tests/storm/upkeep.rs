//! Storms with a fixed sequence: what operators do to nodes, and what makes a forgotten vote count.
//!
//! Each is a pure function of the seed and the length, like [`crate::plan`].

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::plan::{Act, Data, Event, NODES, Side, Trouble};

/// Wall clocks are within this of the true time, so that no step is detected.
const SMALL_STEP_MS: i64 = 990;
/// The length of a squall, with the time that the crashed node needs to forget what it must wait
/// for.
const SQUALL_EVERY_MS: u64 = 15_500;
/// A group of clients with short leases that are held for a long time.
pub(crate) const QUICK: usize = 0;
/// A group of clients with a long timeout for answers.
pub(crate) const PATIENT: usize = 1;

/// What an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upkeep {
    /// Nodes that sync each write are restarted in quick succession.
    Durable,
    /// Nodes of all kinds are restarted one after another, as docs/operations.md describes.
    Careful,
}

/// Rolling restarts, promotions and small steps of wall clocks. The operator does one thing at a
/// time, so this takes longer than planned if a node needs more time.
pub(crate) fn upkeep(seed: u64, length: Duration, upkeep: Upkeep) -> Vec<Event> {
    let mut random = StdRng::seed_from_u64(seed);
    let length_ms = millis(length);
    let mut events = Vec::new();
    // Every holder has renewed once, and so holds its lock on all nodes.
    let (mut now_ms, mut promote_from_ms) = (3_000, 0);
    let mut order: Vec<usize> = (0..NODES).collect();
    while now_ms < length_ms {
        order.shuffle(&mut random);
        // Leases that were dated by clocks that were behind are read by clocks that are ahead.
        let is_ahead = random.random_bool(0.7);
        if is_ahead {
            push(&mut events, now_ms, step_together(&mut random, 800..=SMALL_STEP_MS));
        }
        for node in &order {
            if !is_ahead {
                push(&mut events, now_ms, step(&mut random));
            }
            push(&mut events, now_ms, restart(&mut random, *node, upkeep));
            now_ms += random.random_range(100..=400);
        }
        if upkeep == Upkeep::Durable {
            // The power fails: nodes that sync each write forget nothing.
            push(&mut events, now_ms, step_together(&mut random, 0..=130));
            now_ms += random.random_range(1_500..=2_500);
            push(&mut events, now_ms, step_together(&mut random, 800..=SMALL_STEP_MS));
            for node in 0..NODES {
                push(&mut events, now_ms, Act::Kill { node, data: Data::Kept });
            }
            for node in 0..NODES {
                push(&mut events, now_ms, Act::Start { node });
            }
            now_ms += random.random_range(800..=1_500);
        }
        push(&mut events, now_ms, step_together(&mut random, 0..=130));
        now_ms += random.random_range(500..=2_500);
        if now_ms >= promote_from_ms && now_ms < length_ms {
            let (node, old_lives) = (random.random_range(0..NODES), random.random_bool(0.5));
            push(&mut events, now_ms, Act::Promote { node, old_lives });
            now_ms += random.random_range(300..=1_500);
            push(&mut events, now_ms, Act::Retire { node });
            // A promoted node counts for no client until the longest lease is over.
            promote_from_ms = now_ms + if upkeep == Upkeep::Durable { 36_000 } else { 0 };
        }
    }
    events.retain(|event| event.at < length || is_end(&event.act));
    events
}

/// What a plan must contain.
pub(crate) fn is_end(act: &Act) -> bool {
    matches!(act, Act::Retire { .. } | Act::Start { .. })
}

fn restart(random: &mut StdRng, node: usize, upkeep: Upkeep) -> Act {
    let is_crash = random.random_bool(if upkeep == Upkeep::Durable { 0.6 } else { 0.1 });
    let data = match upkeep == Upkeep::Careful && random.random_bool(0.5) {
        true => Data::Wiped,
        false => Data::Kept,
    };
    let down_max_ms = if upkeep == Upkeep::Durable { 150 } else { 3_000 };
    let down = Duration::from_millis(random.random_range(0..=down_max_ms));
    Act::Restart { node, crash: is_crash.then_some(data), down }
}

/// Steps each wall clock separately, never further than what goes undetected.
fn step(random: &mut StdRng) -> Act {
    let offsets_ms =
        (0..NODES).map(|node| (node, random.random_range(0..=SMALL_STEP_MS))).collect();
    Act::Step { offsets_ms }
}

/// Steps all wall clocks to one distance from the true time.
fn step_together(random: &mut StdRng, range: RangeInclusive<i64>) -> Act {
    let offset_ms = random.random_range(range);
    Act::Step { offsets_ms: (0..NODES).map(|node| (node, offset_ms)).collect() }
}

/// Squalls in which the vote of a node that forgets may win after the node is repaired.
///
/// The quick clients reach three nodes, a, b and c. The patient ones reach all but c, where their
/// request waits in transit, so that d and e grant to them. Then e crashes, and the quick clients
/// reach it again, and c no longer: a repair at e that counts keeps their lock with a, b and e. The
/// lease at c ends, and the request that arrives there now is the third vote, together with d's and
/// the former vote of e.
pub(crate) fn squalls(seed: u64, length: Duration) -> Vec<Event> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut events = Vec::new();
    let mut order: Vec<usize> = (0..NODES).collect();
    let mut now_ms = 500;
    while now_ms < millis(length) {
        order.shuffle(&mut random);
        let [c, d, e] = [order[2], order[3], order[4]];
        let mut at_ms = now_ms;
        let mut link = |at_ms, group, node, trouble| {
            let act = match trouble {
                Some(trouble) => Act::Link { group, node, trouble },
                None => Act::Heal { group, node },
            };
            push(&mut events, at_ms, act);
        };
        let lasting_ms = random.random_range(400..=600);
        link(at_ms, QUICK, d, Some(Trouble::Discard(Side::Both)));
        link(at_ms, QUICK, e, Some(Trouble::Discard(Side::Both)));
        link(at_ms + lasting_ms, PATIENT, c, Some(Trouble::Hold(Side::Requests)));
        at_ms += lasting_ms + random.random_range(60..=250);
        let crashed_at_ms = at_ms;
        link(at_ms + 1, QUICK, e, None);
        at_ms += random.random_range(200..=350);
        link(at_ms, QUICK, c, Some(Trouble::Discard(Side::Requests)));
        at_ms += random.random_range(220..=380);
        link(at_ms, PATIENT, c, None);
        at_ms += 1_000;
        link(at_ms, QUICK, c, None);
        link(at_ms, QUICK, d, None);
        push(&mut events, crashed_at_ms, Act::Kill { node: e, data: Data::Wiped });
        push(&mut events, crashed_at_ms, Act::Start { node: e });
        push(&mut events, at_ms, step(&mut random));
        now_ms += SQUALL_EVERY_MS;
    }
    events.sort_by_key(|event| event.at);
    events
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).expect("no storm is that long")
}

fn push(events: &mut Vec<Event>, at_ms: u64, act: Act) {
    events.push(Event { at: Duration::from_millis(at_ms), act });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_every_kind_of_work_is_in_it() {
        let length = Duration::from_secs(120);
        for kind in [Upkeep::Durable, Upkeep::Careful] {
            let events = upkeep(7, length, kind);
            assert_eq!(events, upkeep(7, length, kind));
            assert_ne!(events, upkeep(8, length, kind));
            let count = |is: fn(&Act) -> bool| events.iter().filter(|event| is(&event.act)).count();
            assert!(count(|act| matches!(act, Act::Restart { crash: Some(_), .. })) > 5);
            assert!(count(|act| matches!(act, Act::Restart { crash: None, .. })) > 5);
            let promotions = count(|act| matches!(act, Act::Promote { .. }));
            assert!(promotions > 2, "{kind:?}: {promotions}");
            assert_eq!(promotions, count(|act| matches!(act, Act::Retire { .. })));
            let is_small = |event: &Event| match &event.act {
                Act::Step { offsets_ms } => {
                    offsets_ms.iter().all(|(_, offset_ms)| (0..1_000).contains(offset_ms))
                }
                _ => true,
            };
            assert!(events.iter().all(is_small), "{kind:?}: a step that is noticed");
        }
    }

    #[test]
    fn a_squall_ends_before_the_next_begins() {
        let events = squalls(7, Duration::from_secs(60));
        let mut open = 0_i32;
        for event in &events {
            match event.act {
                Act::Link { .. } => open += 1,
                Act::Heal { .. } => open -= 1,
                Act::Step { .. } => assert_eq!(open, 0, "{event}"),
                _ => {}
            }
        }
        assert_eq!(open, 0);
        let kills = events.iter().filter(|event| matches!(event.act, Act::Kill { .. })).count();
        assert_eq!(kills, 4);
    }
}
