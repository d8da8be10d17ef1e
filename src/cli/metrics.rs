//! A survey as metrics: the text that Prometheus reads.
//!
//! A node's counts are those of its INFO section, unchanged; a field that a node does not report is
//! left out, not shown as zero. Nothing is kept between two surveys.

use prometheus::TextEncoder;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use crate::client::{NodeField, NodeStatus, Survey};
use crate::engine::SLOTS;
use crate::wire::node_info::summary_of;

/// A field of `INFO lockmod` that is one number, and its metric.
struct Metered {
    field: NodeField,
    metric: &'static str,
    kind: Kind,
    help: &'static str,
}

enum Kind {
    Count,
    Level,
    /// Milliseconds, exported in seconds.
    Length,
}

const fn count(field: NodeField, metric: &'static str, help: &'static str) -> Metered {
    Metered { field, metric, kind: Kind::Count, help }
}

const fn level(field: NodeField, metric: &'static str, help: &'static str) -> Metered {
    Metered { field, metric, kind: Kind::Level, help }
}

const fn length(field: NodeField, metric: &'static str, help: &'static str) -> Metered {
    Metered { field, metric, kind: Kind::Length, help }
}

/// Counts are whole numbers, and prometheus wants floating-point ones: exact up to 2^53, and no
/// fence is larger.
const FIELDS: &[Metered] = &[
    level(NodeField::Locks, "lockmod_locks", "Keys that are locks, held or free."),
    level(NodeField::Held, "lockmod_held", "Locks that are held."),
    level(NodeField::Readers, "lockmod_readers", "Readers that hold locks."),
    level(NodeField::Idle, "lockmod_idle", "Locks that are free, kept for their counters."),
    level(NodeField::Waiters, "lockmod_waiters", "Requests that wait in line."),
    level(
        NodeField::WaitingReaders,
        "lockmod_waiting_readers",
        "Those of them that wait as readers.",
    ),
    length(
        NodeField::OldestWaiter,
        "lockmod_oldest_waiter_seconds",
        "The longest wait of those that are first in their line.",
    ),
    level(
        NodeField::SupportersNeeded,
        "lockmod_supporters_needed",
        "Replicas that have to support the node, or it grants nothing.",
    ),
    level(NodeField::Supporters, "lockmod_supporters", "Replicas that support the node."),
    count(NodeField::Grants, "lockmod_grants_total", "Leases granted."),
    count(NodeField::ReaderGrants, "lockmod_reader_grants_total", "Leases granted to readers."),
    count(
        NodeField::HeldByAnother,
        "lockmod_held_by_another_total",
        "Acquires that found the lock held by another.",
    ),
    count(NodeField::Refusals, "lockmod_refusals_total", "Commands answered with an error."),
    count(NodeField::Releases, "lockmod_releases_total", "Leases released."),
    count(NodeField::Extensions, "lockmod_extensions_total", "Leases extended."),
    count(NodeField::Raises, "lockmod_raises_total", "Counters raised."),
    count(
        NodeField::Lapses,
        "lockmod_lapses_total",
        "Leases that ended while held, without a release.",
    ),
    count(
        NodeField::HandedOver,
        "lockmod_handed_over_total",
        "Grants to requests that had waited in line.",
    ),
    count(
        NodeField::IdleDeleted,
        "lockmod_idle_deleted_total",
        "Free locks deleted after lockmod.idle-ms.",
    ),
    length(
        NodeField::QuarantineLeft,
        "lockmod_quarantine_left_seconds",
        "For how long the node still grants nothing.",
    ),
    level(
        NodeField::UnsettledSlots,
        "lockmod_unsettled_slots",
        "Slots of its own in which the node grants nothing yet.",
    ),
    length(
        NodeField::MaxTtl,
        "lockmod_max_ttl_seconds",
        "The longest ttl that it accepts: lockmod.max-ttl.",
    ),
    length(
        NodeField::UnsettledLeft,
        "lockmod_unsettled_left_seconds",
        "For how long at least it waits in these.",
    ),
    level(
        NodeField::Electorates,
        "lockmod_electorates",
        "Lists of the masters that have a vote: more than one while these change.",
    ),
    level(NodeField::Voters, "lockmod_voters", "Masters of a Cluster that have a vote."),
    count(
        NodeField::FailedMoves,
        "lockmod_failed_moves_total",
        "Moves of slots at once from this node that failed or were called off.",
    ),
    level(NodeField::Floor, "lockmod_floor", "Every next fence of the node is larger."),
    level(
        NodeField::HighestFence,
        "lockmod_highest_fence",
        "The highest fence that the node knows.",
    ),
    level(
        NodeField::FenceJumps,
        "lockmod_fence_jumps",
        "How far that has risen without a grant or a raise.",
    ),
    count(NodeField::StateWrites, "lockmod_state_writes_total", "Writes of the state file."),
    count(
        NodeField::StateWriteFailures,
        "lockmod_state_write_failures_total",
        "Failed writes of the state file.",
    ),
];

const SLOTS_GRANTING_HELP: &str =
    "In how many of 16384 slots it grants locks; what is no Cluster, in all or none.";
const SLOTS_MOVING_HELP: &str =
    "How many slots of a Cluster are moving to another master by steps.";
const REPLICA_LAG_HELP: &str = "How many bytes its slowest replica has not acknowledged.";
const EXCESS_HELP: &str = "Replicas of its master beyond lockmod.replicas, where that matters.";
const TOO_HIGH_HELP: &str = "Whether its fences are so high that clients leave out its grants.";

/// The fields that are distributions of milliseconds.
const DISTRIBUTIONS: [([NodeField; 2], &str, &str); 2] = [
    (
        [NodeField::Holds, NodeField::HoldsUpTo],
        "lockmod_hold_seconds",
        "For how long released leases had been held.",
    ),
    (
        [NodeField::Waits, NodeField::WaitsUpTo],
        "lockmod_wait_seconds",
        "For how long those waited who were granted a lock.",
    ),
];

/// The text. Each metric has the label `cluster` if a name is given.
///
/// # Errors
/// If a name is not allowed.
pub(super) fn text(survey: &Survey, cluster: Option<&str>) -> Result<String, prometheus::Error> {
    let mut families = surveyed(survey);
    families.extend(FIELDS.iter().map(|field| field_family(survey, field)));
    families.extend(DISTRIBUTIONS.iter().map(|(fields, metric, help)| {
        per_node(survey, metric, help, |node| histogram(node?, *fields))
    }));
    families.push(refusals(survey));
    families.push(builds(survey));
    families.retain(|family| !family.get_metric().is_empty());
    for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
        let name = cluster.map(|cluster| label("cluster", cluster));
        metric.set_label(name.into_iter().chain(metric.get_label().to_vec()).collect());
    }
    TextEncoder::new().encode_to_string(&families)
}

/// What follows from the whole survey, and from a node's answer beside its fields.
fn surveyed(survey: &Survey) -> Vec<MetricFamily> {
    vec![
        whole("lockmod_nodes", "Configured nodes.", survey.nodes.len() as f64),
        whole("lockmod_quorum", "How many nodes are a quorum.", survey.quorum as f64),
        whole(
            "lockmod_quorum_margin",
            "How many nodes may fail until no lock can be acquired; negative: none can.",
            survey.margin() as f64,
        ),
        per_node(survey, "lockmod_up", "Whether the node answers, with the module.", |node| {
            Some(flag(node.is_some()))
        }),
        per_node(survey, "lockmod_granting", "Whether the node grants locks.", |node| {
            Some(flag(node.is_some_and(|status| survey.has_vote(status))))
        }),
        per_node(survey, "lockmod_slots_granting", SLOTS_GRANTING_HELP, |node| {
            let all = if survey.has_vote(node?) { SLOTS } else { 0 };
            Some(gauge(node?.slots.as_ref().map_or(all, |share| share.granting).into()))
        }),
        per_node(survey, "lockmod_slots_moving", SLOTS_MOVING_HELP, |node| {
            let moves = node?.slots.iter().flat_map(|share| &share.moving);
            Some(gauge(moves.map(|it| u32::from(it.slots)).sum::<u32>().into()))
        }),
        per_node(survey, "lockmod_fence_lag", "How far behind the quorum's fence.", |node| {
            node.map(|status| gauge(survey.fence_lag(status) as f64))
        }),
        per_node(survey, "lockmod_fence_too_high", TOO_HIGH_HELP, |node| {
            node.map(|status| flag(survey.is_too_high(status)))
        }),
        per_node(survey, "lockmod_replica_lag_bytes", REPLICA_LAG_HELP, |node| {
            let lags = node?.replicas.iter().map(|replica| replica.lag_bytes);
            Some(gauge(lags.max().unwrap_or(0) as f64))
        }),
        per_node(survey, "lockmod_excess_replicas", EXCESS_HELP, |node| {
            let counts =
                node?.excess.iter().map(|excess| excess.attached.saturating_sub(excess.replicas));
            Some(gauge(counts.sum::<u64>() as f64))
        }),
    ]
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// A gauge for all nodes together.
fn whole(name: &str, help: &str, value: f64) -> MetricFamily {
    family(name, help, MetricType::GAUGE, vec![gauge(value).1])
}

/// A metric for each node that has a value.
fn per_node(
    survey: &Survey,
    name: &str,
    help: &str,
    value: impl Fn(Option<&NodeStatus>) -> Option<(MetricType, Metric)>,
) -> MetricFamily {
    let mut kind = MetricType::GAUGE;
    let mut metrics = Vec::new();
    for node in &survey.nodes {
        if let Some((its_kind, mut metric)) = value(node.status.as_ref().ok()) {
            kind = its_kind;
            metric.set_label(vec![label("node", &node.node)]);
            metrics.push(metric);
        }
    }
    family(name, help, kind, metrics)
}

fn field_family(survey: &Survey, metered: &Metered) -> MetricFamily {
    per_node(survey, metered.metric, metered.help, |node| {
        let number = node?.fields.number(metered.field)? as f64;
        Some(match metered.kind {
            Kind::Count => counter(number),
            Kind::Level => gauge(number),
            Kind::Length => gauge(number / 1000.0),
        })
    })
}

/// The version of each node's module.
fn builds(survey: &Survey) -> MetricFamily {
    let mut metrics = Vec::new();
    for node in &survey.nodes {
        let Ok(status) = &node.status else { continue };
        // Older builds lack this field.
        let Some(version) = status.fields.text(NodeField::Version) else { continue };
        let mut metric = gauge(1.0).1;
        metric.set_label(vec![label("node", &node.node), label("version", version)]);
        metrics.push(metric);
    }
    let help = "1, with the version of the node's module.";
    family("lockmod_build_info", help, MetricType::GAUGE, metrics)
}

/// Refusals by their code words, in addition to their sum.
fn refusals(survey: &Survey) -> MetricFamily {
    let mut metrics = Vec::new();
    for node in &survey.nodes {
        let Ok(status) = &node.status else { continue };
        for (code, number) in status.fields.pairs(NodeField::RefusalsByCode) {
            let mut metric = counter(number as f64).1;
            metric.set_label(vec![label("code", code), label("node", &node.node)]);
            metrics.push(metric);
        }
    }
    let help = "Commands answered with an error, by its code word.";
    family("lockmod_refusals_by_code_total", help, MetricType::COUNTER, metrics)
}

/// A distribution: `count=..,sum=..,...` in one field, and in another the cumulative counts up to
/// each limit in milliseconds.
fn histogram(
    status: &NodeStatus,
    [summary, up_to]: [NodeField; 2],
) -> Option<(MetricType, Metric)> {
    let of = |wanted: &str| status.fields.pairs(summary).find(|(name, _)| *name == wanted);
    let mut histogram = Histogram::default();
    histogram.set_sample_count(of(summary_of::COUNT)?.1);
    histogram.set_sample_sum(of(summary_of::SUM)?.1 as f64 / 1000.0);
    let buckets = status.fields.pairs(up_to).filter_map(|(limit, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(limit.parse::<u64>().ok()? as f64 / 1000.0);
        bucket.set_cumulative_count(count);
        Some(bucket)
    });
    histogram.set_bucket(buckets.collect());
    let mut metric = Metric::default();
    metric.set_histogram(histogram);
    Some((MetricType::HISTOGRAM, metric))
}

fn flag(is_so: bool) -> (MetricType, Metric) {
    gauge(if is_so { 1.0 } else { 0.0 })
}

fn gauge(value: f64) -> (MetricType, Metric) {
    let (mut gauge, mut metric) = (Gauge::default(), Metric::default());
    gauge.set_value(value);
    metric.set_gauge(gauge);
    (MetricType::GAUGE, metric)
}

fn counter(value: f64) -> (MetricType, Metric) {
    let (mut counter, mut metric) = (Counter::default(), Metric::default());
    counter.set_value(value);
    metric.set_counter(counter);
    (MetricType::COUNTER, metric)
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that INFO reports is exported, or named here.
    #[test]
    fn every_number_of_a_node_is_exported() {
        let elsewhere = [
            (NodeField::Granting, "lockmod_granting"),
            (NodeField::Replicas, "the setting of an operator"),
            (NodeField::RefusalsByCode, "lockmod_refusals_by_code_total"),
            (NodeField::Version, "lockmod_build_info"),
            (NodeField::State, "lockmod_granting, without the reason"),
            (NodeField::StateFailure, "lockmod_state_write_failures_total, without the reason"),
        ];
        let distributions = DISTRIBUTIONS.iter().flat_map(|(fields, ..)| *fields);
        let exported: Vec<NodeField> = FIELDS
            .iter()
            .map(|metered| metered.field)
            .chain(distributions)
            .chain(elsewhere.map(|(field, _)| field))
            .collect();
        for field in NodeField::ALL {
            assert!(exported.contains(field), "{} is not exported", field.name());
        }
    }
}
