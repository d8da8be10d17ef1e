//! The rules for leases of any length: which options fit together, and what follows from them.
//!
//! An error says what was given, and what would work: never a bound that the next check refuses.

use std::time::Duration;

use super::length::Length;
use crate::engine::{Millis, Schedule, Terms};

/// The shortest ttl: below it, drift allowance and timers leave nothing to work with.
pub const TTL_MIN: Duration = Duration::from_millis(20);
/// The default timeout is the ttl divided by this, within the two limits below.
const TIMEOUT_DIVISOR: u32 = 20;
const TIMEOUT_DEFAULT_MIN: Duration = Duration::from_millis(50);
const TIMEOUT_DEFAULT_MAX: Duration = Duration::from_millis(500);
/// For a very short ttl, the timeout is the ttl divided by this.
const TIMEOUT_DEFAULT_DIVISOR_MIN: u32 = 4;
/// For a lease that is short, or may be held only briefly, the default margin for stopping is at
/// most its length divided by this.
const MARGIN_DIVISOR: u64 = 2;
/// How often a timeout must fit into the ttl.
pub(crate) const TIMEOUTS_PER_TTL: u32 = 3;
/// The room that a ttl with this margin needs for its default drift: the margin divided by this,
/// plus this rounding.
const DRIFT_PART: u32 = 50;
const DRIFT_ROUNDED: Duration = Duration::from_millis(5);

/// How errors about options write lengths of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthUnit {
    /// In the largest units that fit, rounded, as the command reads them.
    #[default]
    Mixed,
    /// In seconds, exactly.
    Seconds,
    /// In milliseconds, exactly.
    Milliseconds,
}

impl LengthUnit {
    fn shown(self, length: Duration) -> String {
        let nanos = length.as_nanos() as f64;
        match self {
            LengthUnit::Mixed => Length(length).to_string(),
            LengthUnit::Seconds => format!("{} s", nanos / 1e9),
            LengthUnit::Milliseconds => format!("{} ms", nanos / 1e6),
        }
    }

    /// A bound, which may be given: never above it.
    fn at_most(self, length: Duration) -> String {
        match self {
            LengthUnit::Mixed => Length::rounded_down(length).to_string(),
            _ => self.shown(Millis::round_down(length).into()),
        }
    }
}

/// The options of a lease that a call may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseOptions {
    pub(super) ttl: Duration,
    pub(super) renews: bool,
    pub(super) max_hold: Option<Duration>,
}

/// What follows from the options.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeasePlan {
    pub(super) terms: Terms,
    pub(super) schedule: Schedule,
    /// How long a node may take to answer.
    pub(super) timeout: Duration,
}

/// The rules for leases of any length.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRules {
    pub(super) drift: Option<Duration>,
    pub(super) margin: Option<Duration>,
    pub(super) max_ttl: Duration,
    pub(super) timeout: Option<Duration>,
    pub(super) unit: LengthUnit,
}

impl LeaseRules {
    /// Checks the options, and derives what follows from them.
    pub(super) fn plan(&self, asked: LeaseOptions) -> Result<LeasePlan, String> {
        self.check_ttl(asked.ttl, self.ttl_min())?;
        self.check_timeout(asked.ttl)?;
        self.replan(asked)
    }

    /// Plans how a lease goes on that is extended by another ttl.
    ///
    /// # Errors
    /// Which option cannot work, and what to give instead. The timeout was chosen for the first
    /// ttl, so it need not fit into a shorter one unless the lease is renewed by that.
    pub(super) fn replan(&self, asked: LeaseOptions) -> Result<LeasePlan, String> {
        self.check_ttl(asked.ttl, self.ttl_min_of(asked.renews))?;
        if asked.renews {
            self.check_timeout(asked.ttl)?;
        }
        let terms = self.terms(asked.ttl)?;
        let schedule = self.schedule(terms, asked)?;
        Ok(LeasePlan { terms, schedule, timeout: self.timeout(asked.ttl) })
    }

    /// How long a node may take to answer if the lease is this long.
    pub(super) fn timeout(&self, ttl: Duration) -> Duration {
        let by_ttl = (ttl / TIMEOUT_DIVISOR).clamp(TIMEOUT_DEFAULT_MIN, TIMEOUT_DEFAULT_MAX);
        self.timeout.unwrap_or(by_ttl.min(ttl / TIMEOUT_DEFAULT_DIVISOR_MIN))
    }

    fn check_ttl(&self, ttl: Duration, least: Duration) -> Result<(), String> {
        let (given, min) = (self.unit.shown(ttl), self.unit.shown(least));
        let max = self.unit.at_most(self.max_ttl);
        let is_within = (TTL_MIN..=self.max_ttl).contains(&ttl);
        if !is_within && self.max_ttl < least {
            return Err(format!(
                "max_ttl {} is below the shortest ttl that the settings allow: give {min} or more",
                self.unit.shown(self.max_ttl)
            ));
        }
        if ttl < TTL_MIN {
            return Err(format!("ttl {given} is too short: give {min} to {max}"));
        }
        if ttl > self.max_ttl {
            return Err(format!(
                "ttl {given} is above the nodes' limit: give {min} to {max} and let it be renewed, \
                 or raise lockmod.max-ttl on all nodes and say so with max_ttl()"
            ));
        }
        Ok(())
    }

    /// A ttl that is long enough for the other settings.
    pub(super) fn ttl_min(&self) -> Duration {
        self.ttl_min_of(true)
    }

    /// The same for an extension: if the lease is not renewed, the timeout need not fit into it.
    pub(super) fn ttl_min_of(&self, renews: bool) -> Duration {
        let timeout = self.timeout.filter(|_| renews).unwrap_or_default();
        let drift = self.drift.unwrap_or_default();
        let by_margin = self.margin.map(|margin| {
            let margins = margin.saturating_mul(2);
            let drift = self.drift.unwrap_or(margins / DRIFT_PART + DRIFT_ROUNDED);
            let after_renewal = margins.saturating_add(drift).saturating_add(DRIFT_ROUNDED);
            after_renewal.saturating_add(after_renewal / 2)
        });
        let min = TTL_MIN
            .max(timeout.saturating_mul(TIMEOUTS_PER_TTL))
            .max(drift.saturating_mul(2).saturating_add(DRIFT_ROUNDED))
            .max(by_margin.unwrap_or_default());
        Length::rounded_up(min)
    }

    pub(super) fn terms(&self, ttl: Duration) -> Result<Terms, String> {
        let mut terms = Terms::new(Millis::round_down(ttl));
        if let Some(drift) = self.drift {
            terms.drift = Millis::round_up(drift);
        }
        if terms.drift.get() >= terms.ttl.get() / 2 {
            return Err(format!(
                "drift {} leaves less than half of the ttl {}: give less than {}, or ask for a \
                 longer ttl",
                self.unit.shown(self.drift.unwrap_or_else(|| terms.drift.into())),
                self.unit.shown(ttl),
                self.unit.at_most(ttl / 2)
            ));
        }
        Ok(terms)
    }

    fn check_timeout(&self, ttl: Duration) -> Result<(), String> {
        let (timeout, most) = (self.timeout(ttl), ttl / TIMEOUTS_PER_TTL);
        let least = self.unit.shown(Duration::from_millis(1));
        let (given, up_to) = (self.unit.shown(timeout), self.unit.at_most(most));
        if timeout.is_zero() {
            return Err(format!(
                "timeout {given} leaves no time for an answer: give {least} to {up_to}"
            ));
        }
        if timeout > most {
            let longer = self.ttl_min();
            let or_longer = (longer <= self.max_ttl)
                .then(|| format!(", or ask for a ttl of at least {}", self.unit.shown(longer)));
            return Err(format!(
                "timeout {given} does not fit into the ttl {}: give {least} to {up_to}, a third of \
                 it, so that a renewal can be tried again{}",
                self.unit.shown(ttl),
                or_longer.unwrap_or_default()
            ));
        }
        Ok(())
    }

    fn schedule(&self, terms: Terms, asked: LeaseOptions) -> Result<Schedule, String> {
        let max_hold = asked.max_hold.map(Millis::round_down);
        if let Some(max_hold) = asked.max_hold.filter(|max_hold| *max_hold < TTL_MIN) {
            return Err(format!(
                "max_hold {} is too short: give at least {}",
                self.unit.shown(max_hold),
                self.unit.shown(TTL_MIN)
            ));
        }
        let length = max_hold.map_or(terms.ttl, |max_hold| max_hold.min(terms.ttl));
        let by_ttl = Schedule::of(terms.ttl).margin;
        let by_length = Millis::new(length.get() / MARGIN_DIVISOR);
        let end = margin_end(terms, asked);
        let most = end.saturating_sub(Millis::new(1));
        let margin = self.margin.map_or(by_ttl.min(by_length).min(most), Millis::round_up);
        if end <= margin {
            let leaves = match (is_renewed(terms, asked), length < terms.ttl) {
                (true, _) => "too little time after a renewal, at a third of the ttl",
                (false, true) => "nothing of max_hold",
                (false, false) => "nothing of the ttl",
            };
            let or = if length < terms.ttl { "" } else { ", or ask for a longer ttl" };
            return Err(format!(
                "lost_margin {} leaves {leaves} {}: give less than {}{or}",
                self.unit.shown(self.margin.unwrap_or_else(|| margin.into())),
                self.unit.shown(length.into()),
                self.unit.at_most(end.into())
            ));
        }
        let every = Schedule::of(terms.ttl).every.filter(|_| asked.renews);
        Ok(Schedule { every, margin, max_hold })
    }
}

/// What the margin must be below. Half of the time between the first renewal and the end of the
/// validity must be left for the renewal; a lease that is not renewed must last longer than the
/// margin.
pub(super) fn margin_end(terms: Terms, asked: LeaseOptions) -> Millis {
    let validity = terms.ttl.saturating_sub(terms.drift);
    match Schedule::of(terms.ttl).every {
        Some(every) if is_renewed(terms, asked) => {
            let after_renewal = validity.saturating_sub(every).get();
            Millis::new(after_renewal / MARGIN_DIVISOR + 1)
        }
        _ => asked.max_hold.map_or(validity, |max_hold| validity.min(Millis::round_down(max_hold))),
    }
}

/// Whether the lease may be held for longer than one ttl.
fn is_renewed(terms: Terms, asked: LeaseOptions) -> bool {
    let is_short = |max_hold| Millis::round_down(max_hold) <= terms.ttl;
    asked.renews && !asked.max_hold.is_some_and(is_short)
}
