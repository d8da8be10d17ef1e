//! The options: `lockmod.*` in the configuration file, module arguments, `CONFIG SET`.
//!
//! [`OPTIONS`] is the only place with their names, defaults and ranges; a test compares the
//! configuration example with it. Redis checks the ranges.
//!
//! To add one: a static for its value, a row of [`OPTIONS`], a function that reads it, and its
//! paragraph in redis.conf.example. The engine does not look at options: the code that asks it for
//! a decision passes in what it needs (`waiters.rs`), or `events::configured` passes each change to
//! the node.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::engine::{Caution, Millis, TOKEN_MAX_DEFAULT, TTL_MAX};
use crate::wire::request::Limits;

/// One option.
pub(super) struct OptionSpec {
    /// Its name, without `lockmod.`.
    pub(super) name: &'static str,
    /// What a number counts.
    unit: &'static str,
    pub(super) kind: OptionKind,
}

/// The kind of an option's value, and where it is stored.
pub(super) enum OptionKind {
    /// A whole number; `CONFIG SET` changes it.
    Number { default: i64, min: i64, max: i64, value: &'static AtomicI64 },
    /// A whole number, fixed when the module is loaded.
    Fixed { default: i64, min: i64, max: i64, value: &'static AtomicI64 },
    /// Yes or no; `CONFIG SET` changes it.
    Switch { default: bool, value: &'static AtomicBool },
    /// Text, fixed when the module is loaded. The default depends on the server.
    Text { value: &'static TextValue },
}

/// Where a text is stored.
pub(super) type TextValue = Mutex<String>;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

static MAX_TTL: AtomicI64 = AtomicI64::new(DAY_MS);
static IDLE_MS: AtomicI64 = AtomicI64::new(DAY_MS);
static MAX_TOKEN_BYTES: AtomicI64 = AtomicI64::new(TOKEN_MAX_DEFAULT as i64);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(10_000);
static MAX_READERS: AtomicI64 = AtomicI64::new(10_000);
static RESERVE_MS: AtomicI64 = AtomicI64::new(100);
static SCAN_PERCENT: AtomicI64 = AtomicI64::new(25);
static QUARANTINE: AtomicBool = AtomicBool::new(true);
static QUARANTINE_ON_PROMOTION: AtomicBool = AtomicBool::new(true);
static REPLICAS: AtomicI64 = AtomicI64::new(0);
static STATE_FILE: TextValue = Mutex::new(String::new());

/// All options.
pub(super) static OPTIONS: [OptionSpec; 11] = [
    number("max-ttl", "milliseconds", DAY_MS, (1, TTL_MAX.get() as i64), &MAX_TTL),
    number("idle-ms", "milliseconds", DAY_MS, (0, 366 * DAY_MS), &IDLE_MS),
    number("max-token-bytes", "bytes", TOKEN_MAX_DEFAULT as i64, (16, 255), &MAX_TOKEN_BYTES),
    number("max-waiters", "waiters", 10_000, (0, 1_000_000), &MAX_WAITERS),
    number("max-readers", "readers", 10_000, (1, 100_000), &MAX_READERS),
    number("reserve-ms", "milliseconds", 100, (1, 60_000), &RESERVE_MS),
    number("scan-percent", "percent", 25, (1, 75), &SCAN_PERCENT),
    switch("quarantine", &QUARANTINE),
    switch("quarantine-on-promotion", &QUARANTINE_ON_PROMOTION),
    OptionSpec { name: "state-file", unit: "", kind: OptionKind::Text { value: &STATE_FILE } },
    OptionSpec {
        name: "replicas",
        unit: "replicas",
        kind: OptionKind::Fixed { default: 0, min: 0, max: 15, value: &REPLICAS },
    },
];

const fn number(
    name: &'static str,
    unit: &'static str,
    default: i64,
    (min, max): (i64, i64),
    value: &'static AtomicI64,
) -> OptionSpec {
    OptionSpec { name, unit, kind: OptionKind::Number { default, min, max, value } }
}

const fn switch(name: &'static str, value: &'static AtomicBool) -> OptionSpec {
    OptionSpec { name, unit: "", kind: OptionKind::Switch { default: true, value } }
}

/// The path of the state file, in the server's folder; empty: there is none.
pub(super) fn state_file() -> String {
    STATE_FILE.lock().map(|text| text.clone()).unwrap_or_default()
}

/// The name of the state file of a server with this port, unless an option sets it.
pub(super) fn state_file_of(port: u16) -> String {
    format!("lockmod-{port}.state")
}

/// Whether the node goes into quarantine after a crash, and after a promotion.
pub(super) fn caution() -> Caution {
    Caution {
        quarantine: QUARANTINE.load(Ordering::Relaxed),
        on_promotion: QUARANTINE_ON_PROMOTION.load(Ordering::Relaxed),
    }
}

/// How many replicas each master has; zero: the node decides regardless of its replicas.
pub(super) fn replicas() -> u32 {
    u32::try_from(unsigned(&REPLICAS)).unwrap_or(0)
}

/// Makes the longest lease a minute in a Cluster, and on another node with replicas, unless it was
/// set: a new master waits for that long after a failover. Returns whether it did.
pub(super) fn shorten_max_ttl(is_in_cluster: bool) -> bool {
    let is_default = || {
        let order = Ordering::Relaxed;
        MAX_TTL.compare_exchange(DAY_MS, MINUTE_MS, order, order).is_ok()
    };
    (is_in_cluster || replicas() > 0) && is_default()
}

/// The longest lease.
pub(super) fn max_ttl() -> Millis {
    Millis::new(unsigned(&MAX_TTL))
}

/// The limits on requests.
#[inline]
pub(super) fn limits() -> Limits {
    Limits { ttl: Millis::new(unsigned(&MAX_TTL)), token: unsigned(&MAX_TOKEN_BYTES) as usize }
}

/// How long a lock must have been free to be deleted; `None`: free locks are never deleted.
pub(super) fn idle() -> Option<Millis> {
    Some(Millis::new(unsigned(&IDLE_MS))).filter(|idle| !idle.is_zero())
}

/// How many may wait at this node, over all locks.
pub(super) fn max_waiters() -> usize {
    unsigned(&MAX_WAITERS) as usize
}

/// How many readers a lock may have.
pub(super) fn max_readers() -> usize {
    unsigned(&MAX_READERS) as usize
}

/// How long a free lock is reserved for a ticket that was woken.
pub(super) fn reserve() -> Millis {
    Millis::new(unsigned(&RESERVE_MS))
}

/// The share of the server's time that a scan may take, in percent.
pub(super) fn scan_percent() -> u32 {
    u32::try_from(unsigned(&SCAN_PERCENT)).unwrap_or(1).clamp(1, 75)
}

fn unsigned(value: &AtomicI64) -> u64 {
    value.load(Ordering::Relaxed).unsigned_abs()
}

/// A value from the module's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Number(i64),
    Switch(bool),
    Text(String),
}

/// The options' defaults, replaced by the module's arguments: `name value` in pairs.
///
/// `port` is the server's, for the name of the state file.
///
/// # Errors
/// What is wrong, and what is allowed.
pub(super) fn defaults(args: &[String], port: u16) -> Result<Vec<Given>, String> {
    let mut defaults: Vec<Given> = OPTIONS
        .iter()
        .map(|option| match option.kind {
            OptionKind::Number { default, .. } | OptionKind::Fixed { default, .. } => {
                Given::Number(default)
            }
            OptionKind::Switch { default, .. } => Given::Switch(default),
            OptionKind::Text { .. } => Given::Text(state_file_of(port)),
        })
        .collect();
    for pair in args.chunks(2) {
        let name = pair[0].trim_start_matches("lockmod.");
        let position = OPTIONS.iter().position(|option| option.name == name).ok_or_else(|| {
            let names: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
            format!("unknown module argument '{}'; allowed: {}", pair[0], names.join(", "))
        })?;
        let value = pair.get(1).ok_or_else(|| format!("module argument {name} has no value"))?;
        defaults[position] = OPTIONS[position].read(value)?;
    }
    Ok(defaults)
}

impl OptionSpec {
    fn read(&self, text: &str) -> Result<Given, String> {
        let name = self.name;
        match self.kind {
            OptionKind::Number { min, max, .. } | OptionKind::Fixed { min, max, .. } => text
                .parse()
                .ok()
                .filter(|number| (min..=max).contains(number))
                .map(Given::Number)
                .ok_or_else(|| {
                    let unit = self.unit;
                    format!(
                        "module argument {name} '{text}'; allowed: a whole number of {unit} from \
                         {min} to {max}"
                    )
                }),
            OptionKind::Switch { .. } => match text {
                "yes" => Ok(Given::Switch(true)),
                "no" => Ok(Given::Switch(false)),
                _ => Err(format!("module argument {name} '{text}'; allowed: yes or no")),
            },
            OptionKind::Text { .. } => Ok(Given::Text(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Vec<Given>, String> {
        defaults(&args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>(), 6379)
    }

    #[test]
    fn module_arguments_replace_defaults() {
        let given = |name: &str, args: &[&str]| {
            let index = OPTIONS.iter().position(|option| option.name == name).unwrap();
            parse(args).unwrap().swap_remove(index)
        };
        assert_eq!(given("max-ttl", &["max-ttl", "600000"]), Given::Number(600_000));
        assert_eq!(given("idle-ms", &["lockmod.idle-ms", "5"]), Given::Number(5));
        assert_eq!(given("quarantine", &["quarantine", "no"]), Given::Switch(false));
        assert_eq!(given("state-file", &["state-file", ""]), Given::Text(String::new()));
        let state_file = Given::Text("lockmod-6379.state".to_owned());
        assert_eq!(given("state-file", &[]), state_file);
    }

    /// The limits hold before the server has read its configuration.
    #[test]
    fn each_option_has_its_default_at_first() {
        for option in &OPTIONS {
            let (is, default) = match &option.kind {
                OptionKind::Number { default, value, .. }
                | OptionKind::Fixed { default, value, .. } => {
                    (value.load(Ordering::Relaxed), *default)
                }
                OptionKind::Switch { default, value } => {
                    (value.load(Ordering::Relaxed).into(), (*default).into())
                }
                OptionKind::Text { .. } => continue,
            };
            assert_eq!(is, default, "{}", option.name);
        }
    }

    #[test]
    fn module_arguments_are_refused_with_what_is_allowed() {
        let refusal = |args: &[&str]| parse(args).unwrap_err();
        assert!(refusal(&["max-tll", "5"]).contains("'max-tll'; allowed: max-ttl, idle-ms"));
        assert_eq!(
            refusal(&["max-token-bytes", "15"]),
            "module argument max-token-bytes '15'; allowed: a whole number of bytes from 16 to 255"
        );
        assert_eq!(refusal(&["max-ttl"]), "module argument max-ttl has no value");
        assert!(refusal(&["quarantine", "maybe"]).contains("'maybe'; allowed: yes or no"));
    }
}
