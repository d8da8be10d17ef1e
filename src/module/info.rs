//! The INFO section `lockmod`.

use super::ffi::{InServer, values};
use super::{clock, ffi, process};
use crate::engine::{Histogram, Instant, Refusal};

/// A field's value.
pub(super) enum Figure {
    Number(u64),
    /// Several numbers with names, in one line.
    Text(String),
}

/// How many powers of two of milliseconds a distribution is told up to: 2^23 ms are 2.3 hours.
const POWERS: u32 = 24;

/// The fields, in the order in which they are shown.
pub(super) fn fields(server: InServer<'_>) -> Vec<(&'static str, Figure)> {
    let now = clock::now();
    let moved = values::held_count();
    let (promises, counts, held, holds) = process::with(server, |process| {
        let promises = process.node.promises().clone();
        let tally = process.node.tally();
        (promises, tally.counts, tally.held(moved), tally.holds.clone())
    });
    let (writes, failures) = process::with(server, |process| {
        process.state.as_ref().map_or((0, 0), |state| (state.write_count(), state.failure_count()))
    });
    let (waiting, oldest, waits) = process::with(server, |process| {
        let node = &process.node;
        (node.room(0).waiters, node.longest_wait(now), node.waits().clone())
    });
    let obstacle = obstacle(server, now);
    let quarantine = promises.quarantine(now).map_or(0, |(left, _)| left.get());
    let locks = values::lock_count() as u64;
    let number = Figure::Number;
    vec![
        ("version", Figure::Text(env!("CARGO_PKG_VERSION").to_owned())),
        ("locks", number(locks)),
        ("held", number(held)),
        ("idle", number(locks.saturating_sub(held))),
        ("grants", number(counts.grants)),
        ("held_by_another", number(counts.held)),
        ("refusals", number(counts.refusals.iter().sum())),
        ("refusals_by_code", Figure::Text(by_code(&counts.refusals))),
        ("releases", number(counts.releases)),
        ("extensions", number(counts.extensions)),
        ("raises", number(counts.raises)),
        ("lapses", number(counts.lapses)),
        ("forgotten", number(counts.forgotten)),
        ("waiters", number(waiting as u64)),
        ("oldest_waiter_ms", number(oldest.get())),
        ("handed_over", number(waits.count())),
        ("wait_ms", Figure::Text(summary(&waits))),
        ("wait_ms_up_to", Figure::Text(powers(&waits))),
        ("hold_ms", Figure::Text(summary(&holds))),
        ("hold_ms_up_to", Figure::Text(powers(&holds))),
        ("floor", number(promises.floor().get())),
        ("highest_fence", number(promises.highest().get())),
        ("granting", number(u64::from(obstacle.is_none()))),
        ("state", Figure::Text(obstacle.unwrap_or_else(|| "grants".to_owned()))),
        ("quarantine_left_ms", number(quarantine)),
        ("state_writes", number(writes)),
        ("state_write_failures", number(failures)),
    ]
}

/// Why the node grants nothing, whoever asks for whichever lock: a code word, and a text.
pub(super) fn obstacle(server: InServer<'_>, now: Instant) -> Option<String> {
    if !ffi::server_flags(server).is_master() {
        Some("READONLY the server is a replica".to_owned())
    } else {
        process::with(server, |process| match process.node.has_begun() {
            true => process.refusal(now).map(|refusal| refusal.to_string()),
            false => Some("LOADING the server is starting".to_owned()),
        })
    }
}

fn list(pairs: impl Iterator<Item = (impl ToString, u64)>) -> String {
    let pairs: Vec<String> =
        pairs.map(|(name, number)| format!("{}={number}", name.to_string())).collect();
    pairs.join(",")
}

fn by_code(refusals: &[u64]) -> String {
    list(Refusal::CODES.iter().zip(refusals.iter().copied()))
}

/// A distribution of lengths of time: how many, all together, and quantiles.
fn summary(histogram: &Histogram) -> String {
    let quantile = |per_mille| histogram.quantile(per_mille).get();
    let pairs = [
        ("count", histogram.count()),
        ("sum", histogram.sum().get()),
        ("p50", quantile(500)),
        ("p90", quantile(900)),
        ("p99", quantile(990)),
        ("p999", quantile(999)),
        ("max", histogram.max().get()),
    ];
    list(pairs.into_iter())
}

/// A distribution by limits: how many were at most so long.
fn powers(histogram: &Histogram) -> String {
    list(histogram.up_to_powers(POWERS).map(|(limit, count)| (limit.get(), count)))
}
