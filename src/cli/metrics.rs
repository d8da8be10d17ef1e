//! A survey as metrics: the text that Prometheus reads.
//!
//! A node's counts come as they are, from its INFO section; what a node does not tell is left out,
//! not shown as zero. Nothing is kept between two surveys.

use prometheus::TextEncoder;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use crate::client::{NodeStatus, Survey};

/// A field of `INFO lockmod` that is one number, and its metric.
struct Field {
    name: &'static str,
    metric: &'static str,
    kind: Kind,
    help: &'static str,
}

enum Kind {
    Count,
    Level,
    /// Milliseconds, told in seconds.
    Length,
}

const fn count(name: &'static str, metric: &'static str, help: &'static str) -> Field {
    Field { name, metric, kind: Kind::Count, help }
}

const fn level(name: &'static str, metric: &'static str, help: &'static str) -> Field {
    Field { name, metric, kind: Kind::Level, help }
}

const fn length(name: &'static str, metric: &'static str, help: &'static str) -> Field {
    Field { name, metric, kind: Kind::Length, help }
}

/// Counts are whole numbers and prometheus wants floating ones: exact up to 2^53, as fences are.
const FIELDS: &[Field] = &[
    level("locks", "lockmod_locks", "Keys that are locks, held or free."),
    level("held", "lockmod_held", "Locks that are held."),
    level("idle", "lockmod_idle", "Locks that are free, kept for their counters."),
    level("waiters", "lockmod_waiters", "Requests that stand in line."),
    length("oldest_waiter_ms", "lockmod_oldest_waiter_seconds", "Since when the oldest one waits."),
    count("grants", "lockmod_grants_total", "Leases granted."),
    count("held_by_another", "lockmod_held_by_another_total", "Acquires of a lock that was held."),
    count("refusals", "lockmod_refusals_total", "Commands answered with an error."),
    count("releases", "lockmod_releases_total", "Leases given back."),
    count("extensions", "lockmod_extensions_total", "Leases extended."),
    count("raises", "lockmod_raises_total", "Counters raised."),
    count("lapses", "lockmod_lapses_total", "Leases that ended while held, without a release."),
    count("handed_over", "lockmod_handed_over_total", "Grants to those who stood in line."),
    count("forgotten", "lockmod_forgotten_total", "Idle locks forgotten."),
    length(
        "quarantine_left_ms",
        "lockmod_quarantine_left_seconds",
        "For how long the node still grants nothing.",
    ),
    level("floor", "lockmod_floor", "Every next fence of the node is larger."),
    level("highest_fence", "lockmod_highest_fence", "The highest fence that the node knows."),
    count("state_writes", "lockmod_state_writes_total", "Writes of the state file."),
    count(
        "state_write_failures",
        "lockmod_state_write_failures_total",
        "Failed writes of the state file.",
    ),
];

/// The fields that are distributions of milliseconds.
const DISTRIBUTIONS: [(&str, &str, &str); 2] = [
    ("hold_ms", "lockmod_hold_seconds", "For how long leases were held that were given back."),
    ("wait_ms", "lockmod_wait_seconds", "For how long those waited who were granted a lock."),
];

/// The text; each metric has the label `cluster` if there is a name for it.
///
/// # Errors
/// If a name were not allowed.
pub(super) fn text(survey: &Survey, cluster: Option<&str>) -> Result<String, prometheus::Error> {
    let mut families = vec![
        whole("lockmod_nodes", "Configured nodes.", survey.nodes.len() as f64),
        whole("lockmod_quorum", "How many nodes are a quorum.", survey.quorum as f64),
        whole(
            "lockmod_quorum_margin",
            "How many nodes may fail until no lock can be acquired; negative: none can.",
            survey.margin() as f64,
        ),
        per_node(survey, "lockmod_up", "Whether the node answers, with the module.", |node| {
            Some(gauge(if node.is_some() { 1.0 } else { 0.0 }))
        }),
        per_node(survey, "lockmod_granting", "Whether the node grants locks.", |node| {
            Some(gauge(if node.is_some_and(NodeStatus::is_granting) { 1.0 } else { 0.0 }))
        }),
        per_node(survey, "lockmod_fence_lag", "How far behind the quorum's fence.", |node| {
            node.map(|status| gauge(survey.fence_lag(status) as f64))
        }),
    ];
    families.extend(FIELDS.iter().map(|field| field_family(survey, field)));
    families.extend(
        DISTRIBUTIONS.iter().map(|(name, metric, help)| {
            per_node(survey, metric, help, |node| histogram(node?, name))
        }),
    );
    families.push(refusals(survey));
    families.push(builds(survey));
    families.retain(|family| !family.get_metric().is_empty());
    for metric in families.iter_mut().flat_map(MetricFamily::mut_metric) {
        let name = cluster.map(|cluster| label("cluster", cluster));
        metric.set_label(name.into_iter().chain(metric.get_label().to_vec()).collect());
    }
    TextEncoder::new().encode_to_string(&families)
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// A level that is not a node's.
fn whole(name: &str, help: &str, value: f64) -> MetricFamily {
    family(name, help, MetricType::GAUGE, vec![gauge(value).1])
}

/// A metric of each node for which there is one.
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

fn field_family(survey: &Survey, field: &Field) -> MetricFamily {
    per_node(survey, field.metric, field.help, |node| {
        let number = node?.number(field.name)? as f64;
        Some(match field.kind {
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
        // Builds before this field do not tell.
        let Some(version) = status.fields.get("version") else { continue };
        let mut metric = gauge(1.0).1;
        metric.set_label(vec![label("node", &node.node), label("version", version)]);
        metrics.push(metric);
    }
    let help = "1, with the version of the node's module.";
    family("lockmod_build_info", help, MetricType::GAUGE, metrics)
}

/// Refusals by their code words, beside their sum.
fn refusals(survey: &Survey) -> MetricFamily {
    let mut metrics = Vec::new();
    for node in &survey.nodes {
        let Ok(status) = &node.status else { continue };
        for (code, number) in pairs(status, "refusals_by_code") {
            let mut metric = counter(number as f64).1;
            metric.set_label(vec![label("code", code), label("node", &node.node)]);
            metrics.push(metric);
        }
    }
    let help = "Commands answered with an error, by its code word.";
    family("lockmod_refusals_by_code_total", help, MetricType::COUNTER, metrics)
}

/// `a=1,b=2` in a field.
fn pairs<'s>(status: &'s NodeStatus, field: &str) -> impl Iterator<Item = (&'s str, u64)> {
    let text = status.fields.get(field).map_or("", String::as_str);
    let pair = |pair: &'s str| {
        let (name, number) = pair.split_once('=')?;
        Some((name, number.parse().ok()?))
    };
    text.split(',').filter_map(pair)
}

/// A distribution: `count=..,sum=..,...` in one field, and in another how many were at most so
/// many milliseconds.
fn histogram(status: &NodeStatus, name: &str) -> Option<(MetricType, Metric)> {
    let of = |wanted: &str| pairs(status, name).find(|(name, _)| *name == wanted);
    let mut histogram = Histogram::default();
    histogram.set_sample_count(of("count")?.1);
    histogram.set_sample_sum(of("sum")?.1 as f64 / 1000.0);
    let limits = format!("{name}_up_to");
    let buckets = pairs(status, &limits).filter_map(|(limit, count)| {
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
