//! The options: `lockmod.*` in the configuration file, module arguments, `CONFIG SET`.
//!
//! [`OPTIONS`] is the one place that knows their names, defaults and ranges; the configuration
//! example is compared with it. Redis checks the ranges.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::engine::{Millis, TOKEN_MAX_DEFAULT};
use crate::wire::request::Limits;

/// One option, a whole number.
pub(super) struct OptionSpec {
    /// Its name, without the module's.
    pub(super) name: &'static str,
    pub(super) default: i64,
    pub(super) min: i64,
    pub(super) max: i64,
    /// Where its value is kept.
    pub(super) value: &'static AtomicI64,
}

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

static MAX_TTL: AtomicI64 = AtomicI64::new(DAY_MS);
static IDLE_MS: AtomicI64 = AtomicI64::new(DAY_MS);
static MAX_TOKEN_BYTES: AtomicI64 = AtomicI64::new(TOKEN_MAX_DEFAULT as i64);

/// All options.
pub(super) const OPTIONS: &[OptionSpec] = &[
    OptionSpec { name: "max-ttl", default: DAY_MS, min: 1, max: 366 * DAY_MS, value: &MAX_TTL },
    OptionSpec { name: "idle-ms", default: DAY_MS, min: 0, max: 366 * DAY_MS, value: &IDLE_MS },
    OptionSpec {
        name: "max-token-bytes",
        default: TOKEN_MAX_DEFAULT as i64,
        min: 16,
        max: 255,
        value: &MAX_TOKEN_BYTES,
    },
];

impl OptionSpec {
    /// The present value.
    pub(super) fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Sets the value, which Redis has checked against the range.
    pub(super) fn set(&self, value: i64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// The limits that requests must keep.
#[inline]
pub(super) fn limits() -> Limits {
    Limits { ttl: Millis::new(unsigned(&MAX_TTL)), token: unsigned(&MAX_TOKEN_BYTES) as usize }
}

/// For how long a lock must have been free to be forgotten; `None`: it never is.
pub(super) fn idle() -> Option<Millis> {
    Some(Millis::new(unsigned(&IDLE_MS))).filter(|idle| !idle.is_zero())
}

fn unsigned(value: &AtomicI64) -> u64 {
    value.load(Ordering::Relaxed).unsigned_abs()
}

/// Reads the module's arguments, `name value` in pairs: they replace the defaults.
///
/// # Errors
/// What is wrong with them, and what is allowed.
pub(super) fn defaults(args: &[String]) -> Result<Vec<i64>, String> {
    let mut defaults: Vec<i64> = OPTIONS.iter().map(|option| option.default).collect();
    for pair in args.chunks(2) {
        let name = pair[0].trim_start_matches("lockmod.");
        let position = OPTIONS.iter().position(|option| option.name == name).ok_or_else(|| {
            let names: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
            format!("unknown module argument '{}'; allowed: {}", pair[0], names.join(", "))
        })?;
        let OptionSpec { min, max, .. } = OPTIONS[position];
        let value = pair.get(1).map_or("", String::as_str);
        defaults[position] =
            value.parse().ok().filter(|value| (min..=max).contains(value)).ok_or_else(|| {
                format!("module argument {name} '{value}'; allowed: {min} to {max}")
            })?;
    }
    Ok(defaults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Vec<i64>, String> {
        defaults(&args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn module_arguments_replace_defaults() {
        assert_eq!(parse(&["max-ttl", "600000"]).unwrap()[0], 600_000);
        assert_eq!(parse(&["lockmod.idle-ms", "5"]).unwrap()[1], 5);
        assert_eq!(parse(&[]).unwrap()[2], 64);
    }

    #[test]
    fn module_arguments_are_refused_with_what_is_allowed() {
        let refusal = |args: &[&str]| parse(args).unwrap_err();
        assert!(refusal(&["max-tll", "5"]).contains("'max-tll'; allowed: max-ttl, idle-ms"));
        assert_eq!(
            refusal(&["max-token-bytes", "15"]),
            "module argument max-token-bytes '15'; allowed: 16 to 255"
        );
        assert!(refusal(&["max-ttl"]).contains("max-ttl ''"));
    }
}
