//! The INFO section `lockmod`: what a node reports about itself. Each field is defined here once,
//! for both sides.
//!
//! To add one: a line in the list here, which also says how the fields of several servers combine;
//! for a count, a field of `Counts` in the engine's `tally.rs`, and the code that counts it; else a
//! field of [`NodeAccount`], or of [`ServerAccount`] if the node does not know it.
//!
//! For people, also: docs/commands.md, twice (the section as it is printed, and the table below it,
//! in the same order); CHANGELOG.md; the exporter (`src/cli/metrics.rs`, docs/operations.md, and
//! perhaps the dashboard and the alerts in docs/operations/); and if operators should see it at
//! once, `lockmod status`: in words (`src/cli/rows.rs`, docs/operations.md) and as JSON
//! (`src/cli/status.rs`, docs/command-line.md).
//!
//! Tests: tests/node/observed.rs and tests/node/commands.rs for a count; tests/node/cluster.rs or
//! tests/durability for what only a Cluster or a group has. Whether it is exported, and documented,
//! is checked by the unit tests of `src/cli/metrics.rs`, by tests/docs and by
//! tests/client/metrics.rs; nothing checks in which unit the exporter shows it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::code::MODULE;
use super::request;
use crate::engine::{Attached, Histogram, Millis, NodeAccount};

/// The name of the section.
pub const SECTION: &str = "lockmod";
/// The prefix that the server adds to each name.
const PREFIX: &str = "lockmod_";
/// How many limits a distribution has, each a power of two: the last, 2^23 ms, is 2.3 hours.
const POWERS: u32 = 24;
/// The value of the `state` field when the node grants.
const GRANTS: &str = "grants";

/// All that `INFO` reports: about the node, and about the server around it.
#[derive(Clone, Debug)]
pub struct InfoAccount {
    /// The node.
    pub node: NodeAccount,
    /// The server around it.
    pub server: ServerAccount,
}

/// What a node does not know about its server.
#[derive(Clone, Debug, Default)]
pub struct ServerAccount {
    /// The version of the module.
    pub version: &'static str,
    /// The number of keys that are locks.
    pub locks: u64,
    /// The longest ttl that it accepts.
    pub max_ttl: Millis,
    /// Why the node grants nothing at all: a code word, and a text.
    pub obstacle: Option<String>,
    /// How often the state file was written.
    pub state_writes: u64,
    /// How often that failed.
    pub state_write_failures: u64,
    /// Why the last write failed; `None` if it did not.
    pub state_failure: Option<String>,
}

/// A field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figure {
    /// One number.
    Number(u64),
    /// Several named numbers, or words, in one line.
    Text(Cow<'static, str>),
}

macro_rules! fields {
    ($($field:ident = $name:literal, $combination:ident, $write:expr;)+) => {
        /// The fields, in the order in which they are written. docs/commands.md says what each
        /// means.
        #[allow(missing_docs, reason = "docs/commands.md says what each means")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum NodeField {
            $($field,)+
        }

        impl NodeField {
            /// All of them.
            pub const ALL: &'static [NodeField] = &[$(NodeField::$field,)+];

            /// Its name, without the prefix that the server adds.
            pub const fn name(self) -> &'static str {
                match self {
                    $(NodeField::$field => $name,)+
                }
            }

            const fn combination(self) -> Combination {
                match self {
                    $(NodeField::$field => Combination::$combination,)+
                }
            }

            /// The value that a node writes.
            pub fn write(self, told: &InfoAccount) -> Figure {
                let write: fn(&InfoAccount) -> Figure = match self {
                    $(NodeField::$field => $write,)+
                };
                write(told)
            }
        }
    };
}

fields! {
    Version = "version", Told, |told| word(told.server.version);
    Locks = "locks", Sum, |told| number(told.server.locks);
    Held = "held", Sum, |told| number(told.node.held);
    Readers = "readers", Sum, |told| number(told.node.readers);
    Idle = "idle", Sum, |told| number(told.server.locks.saturating_sub(told.node.held));
    Grants = "grants", Sum, |told| number(told.node.counts.grants);
    ReaderGrants = "reader_grants", Sum, |told| number(told.node.counts.reader_grants);
    HeldByAnother = "held_by_another", Sum, |told| number(told.node.counts.held);
    Refusals = "refusals", Sum, |told| number(told.node.counts.refusals.iter().sum());
    RefusalsByCode = "refusals_by_code", None, |told| by_code(&told.node.counts.refusals);
    Releases = "releases", Sum, |told| number(told.node.counts.releases);
    Extensions = "extensions", Sum, |told| number(told.node.counts.extensions);
    Raises = "raises", Sum, |told| number(told.node.counts.raises);
    Lapses = "lapses", Sum, |told| number(told.node.counts.lapses);
    IdleDeleted = "idle_deleted", Sum, |told| number(told.node.counts.idle_deleted);
    Waiters = "waiters", Sum, |told| number(told.node.waiters);
    WaitingReaders = "waiting_readers", Sum, |told| number(told.node.waiting_readers);
    OldestWaiter = "oldest_waiter_ms", Greatest, |told| number(told.node.oldest_waiter.get());
    HandedOver = "handed_over", Sum, |told| number(told.node.waits.count());
    Waits = "wait_ms", None, |told| summary(&told.node.waits);
    WaitsUpTo = "wait_ms_up_to", None, |told| up_to(&told.node.waits);
    Holds = "hold_ms", None, |told| summary(&told.node.holds);
    HoldsUpTo = "hold_ms_up_to", None, |told| up_to(&told.node.holds);
    Floor = "floor", Greatest, |told| number(told.node.floor.get());
    HighestFence = "highest_fence", Greatest, |told| number(told.node.highest_fence.get());
    FenceJumps = "fence_jumps", Greatest, |told| number(told.node.fence_jumps);
    Granting = "granting", Least, |told| number(u64::from(told.server.obstacle.is_none()));
    State = "state", Worse, |told| told.server.obstacle.clone().map_or(word(GRANTS), text);
    QuarantineLeft = "quarantine_left_ms", Greatest, |told| number(told.node.quarantine_left.get());
    MaxTtl = "max_ttl_ms", Least, |told| number(told.server.max_ttl.get());
    Replicas = "replicas", Greatest, |told| number(told.node.replicas.into());
    Supporters = "supporters", Least, |told| number(told.node.supporters.0 as u64);
    SupportersNeeded = "supporters_needed", Greatest, |told| number(told.node.supporters.1 as u64);
    UnsettledSlots = "unsettled_slots", Sum, |told| number(told.node.unsettled as u64);
    UnsettledLeft = "unsettled_left_ms", Greatest, |told| number(told.node.unsettled_left.get());
    Electorates = "electorates", Greatest, |told| number(told.node.electorates as u64);
    Voters = "voters", Greatest, |told| number(told.node.voters as u64);
    FailedMoves = "failed_moves", Sum, |told| number(told.node.counts.failed_moves);
    StateWrites = "state_writes", Sum, |told| number(told.server.state_writes);
    StateWriteFailures =
        "state_write_failures", Sum, |told| number(told.server.state_write_failures);
    StateFailure = "state_failure", Told, |told| text_or_none(told.server.state_failure.as_deref());
}

/// What the fields of two servers of one node make together.
enum Combination {
    /// Of counts.
    Sum,
    /// Of numbers, where less is worse.
    Least,
    /// Of numbers, where more is worse.
    Greatest,
    /// The state that is not `grants`.
    Worse,
    /// The first text that is not empty.
    Told,
    /// Distributions cannot be read back.
    None,
}

/// The section as a client has read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFields(BTreeMap<String, String>);

impl NodeFields {
    /// Reads the section from the text of `INFO`, which may have other sections.
    pub fn read(text: &str) -> NodeFields {
        let pairs = text.lines().filter_map(|line| line.strip_prefix(PREFIX)?.split_once(':'));
        NodeFields(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Combines the fields of two servers of one node, as `NodeField::combination` says.
    pub fn with(&self, other: &NodeFields) -> NodeFields {
        let combined = |field: &NodeField| {
            let combined = self.combined(*field, other)?;
            Some((field.name().to_owned(), combined))
        };
        NodeFields(NodeField::ALL.iter().filter_map(combined).collect())
    }

    fn combined(&self, field: NodeField, other: &NodeFields) -> Option<String> {
        let numbers = || self.number(field).zip(other.number(field));
        let number = match field.combination() {
            Combination::Sum => numbers().map(|(one, two)| one.saturating_add(two)),
            Combination::Least => numbers().map(|(one, two)| one.min(two)),
            Combination::Greatest => numbers().map(|(one, two)| one.max(two)),
            Combination::Worse => {
                let states = [self.text(field), other.text(field)].into_iter().flatten();
                return states.max_by_key(|state| *state != GRANTS).map(str::to_owned);
            }
            Combination::Told => {
                let own = self.text(field);
                let told = own.filter(|text| !text.is_empty()).or(other.text(field)).or(own);
                return told.map(str::to_owned);
            }
            Combination::None => return None,
        };
        number.map(|number| number.to_string())
    }

    /// Whether there are no fields: the module is not loaded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A field's text; an older node lacks some fields.
    pub fn text(&self, field: NodeField) -> Option<&str> {
        self.0.get(field.name()).map(String::as_str)
    }

    /// A field that is a number.
    pub fn number(&self, field: NodeField) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    /// The named numbers of a field: `a=1,b=2`.
    pub fn pairs(&self, field: NodeField) -> impl Iterator<Item = (&str, u64)> {
        let pair = |pair: &'_ str| -> Option<(usize, u64)> {
            let (name, number) = pair.split_once('=')?;
            Some((name.len(), number.parse().ok()?))
        };
        let parts = self.text(field).unwrap_or_default().split(',');
        parts.filter_map(move |part| pair(part).map(|(end, number)| (&part[..end], number)))
    }

    /// All fields with their names, including those that this build does not know.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// Fields that were not read from a node.
impl<const N: usize> From<[(NodeField, &str); N]> for NodeFields {
    fn from(fields: [(NodeField, &str); N]) -> NodeFields {
        let field = |(field, value): (NodeField, &str)| (field.name().to_owned(), value.to_owned());
        NodeFields(fields.into_iter().map(field).collect())
    }
}

/// Reads the value in `INFO replication` of an attached replica:
/// `ip=127.0.0.1,port=6380,state=online,offset=15,lag=0`. `None` unless it is online.
pub fn read_replica(text: &[u8]) -> Option<Attached> {
    let value = |name: &[u8]| {
        let mut pairs = text.split(|&byte| byte == b',');
        pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"="))
    };
    if value(b"state")? != b"online" {
        return None;
    }
    let acknowledged = request::number(value(b"offset")?)?;
    Some(Attached { name: [value(b"ip")?, b":", value(b"port")?].concat(), acknowledged })
}

/// The names of a distribution's numbers.
pub mod summary_of {
    /// How many there are.
    pub const COUNT: &str = "count";
    /// Their sum.
    pub const SUM: &str = "sum";
}

const fn number(number: u64) -> Figure {
    Figure::Number(number)
}

const fn word(word: &'static str) -> Figure {
    Figure::Text(Cow::Borrowed(word))
}

fn text(text: String) -> Figure {
    Figure::Text(Cow::Owned(text))
}

fn text_or_none(told: Option<&str>) -> Figure {
    told.map_or(word(""), |told| text(told.to_owned()))
}

fn list(pairs: impl Iterator<Item = (impl ToString, u64)>) -> Figure {
    let pairs = pairs.map(|(name, number)| format!("{}={number}", name.to_string()));
    text(pairs.collect::<Vec<_>>().join(","))
}

fn by_code(refusals: &[u64]) -> Figure {
    list(MODULE.iter().map(|code| code.word).zip(refusals.iter().copied()))
}

/// A distribution of lengths of time: their number, sum and quantiles.
fn summary(histogram: &Histogram) -> Figure {
    let quantile = |per_mille| histogram.quantile(per_mille).get();
    let pairs = [
        (summary_of::COUNT, histogram.count()),
        (summary_of::SUM, histogram.sum().get()),
        ("p50", quantile(500)),
        ("p90", quantile(900)),
        ("p99", quantile(990)),
        ("p999", quantile(999)),
        ("max", histogram.max().get()),
    ];
    list(pairs.into_iter())
}

/// A distribution by limits: how many lengths are at most each limit.
fn up_to(histogram: &Histogram) -> Figure {
    list(histogram.up_to_powers(POWERS).map(|(limit, count)| (limit.get(), count)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Caution, HeldCount, Instant, Node};
    use proptest::prelude::*;

    #[test]
    fn a_replica_counts_where_it_is_online() {
        let read = |text: &str| read_replica(text.as_bytes());
        let name = b"::1:6380".to_vec();
        let online = "ip=::1,port=6380,state=online,offset=15,lag=0";
        assert_eq!(read(online), Some(Attached { name, acknowledged: 15 }));
        assert_eq!(read(&online.replace("lag=0", "lag=0,type=replica")), read(online));
        assert_eq!(read(&online.replace("online", "wait_bgsave")), None);
        assert_eq!(read(&online.replace("15", "-1")), None);
        assert_eq!(read(""), None);
    }

    proptest! {
        #[test]
        fn what_is_told_is_read(locks: u64, state_writes: u64, is_granting: bool) {
            let held = HeldCount { locks: 3, readers: 2 };
            let settings = (Millis::ZERO, Caution { quarantine: true, on_promotion: true });
            let node = Node::new().account(held, Instant::default(), settings);
            let obstacle = (!is_granting).then(|| "READONLY x: y=z".to_owned());
            let server = ServerAccount {
                version: "1.2.3",
                locks,
                max_ttl: Millis::new(7),
                obstacle,
                state_writes,
                state_write_failures: 1,
                state_failure: None,
            };
            let told = InfoAccount { node, server };
            let shown = |field: &NodeField| match field.write(&told) {
                Figure::Number(number) => number.to_string(),
                Figure::Text(text) => text.into_owned(),
            };
            let line = |field: &NodeField| format!("{PREFIX}{}:{}\r\n", field.name(), shown(field));
            let section: String = NodeField::ALL.iter().map(line).collect();
            let read = NodeFields::read(&format!("# lockmod\r\n{section}# x\r\nrole:master\r\n"));
            prop_assert_eq!(read.iter().count(), NodeField::ALL.len());
            for field in NodeField::ALL {
                prop_assert_eq!(read.text(*field), Some(&shown(field)[..]));
            }
            prop_assert_eq!(read.number(NodeField::Locks), Some(locks));
            prop_assert_eq!(read.number(NodeField::Held), Some(3));
            prop_assert_eq!(read.number(NodeField::Granting), Some(u64::from(is_granting)));
            let codes: Vec<&str> =
                read.pairs(NodeField::RefusalsByCode).map(|(code, _)| code).collect();
            prop_assert_eq!(codes, MODULE.map(|code| code.word));
            let count = read.pairs(NodeField::Waits).find(|(name, _)| *name == summary_of::COUNT);
            prop_assert_eq!(count, Some((summary_of::COUNT, 0)));
        }

        #[test]
        fn no_text_makes_the_reading_panic(text in "(lockmod_)?[a-z_]{0,8}[:=,0-9]{0,20}") {
            let read = NodeFields::read(&text);
            for field in NodeField::ALL {
                let _ = (read.number(*field), read.pairs(*field).count());
            }
        }
    }
}
