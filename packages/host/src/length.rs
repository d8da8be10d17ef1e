//! Lengths of time as callers of another language give them: what is a length, and what is refused.
//!
//! What is no length at all is refused here, with the range that the other options leave; whether
//! lengths fit together is up to the client.

use std::time::Duration;

use lockmod::client::{LengthUnit, OptionRanges, TTL_MIN};

use crate::failure::Failure;

/// The longest length of time, also for "without end": a hundred years.
const LENGTH_MAX: f64 = 100.0 * 365.0 * 86_400.0;

/// What a caller gave for a length of time.
#[derive(Clone, Debug)]
pub enum Given {
    /// A number, in the unit of the language.
    Number(f64),
    /// Something else: as the language shows it to people.
    Other(String),
}

/// The unit in which a language counts lengths of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// As in Python.
    #[default]
    Seconds,
    /// As in JavaScript.
    Milliseconds,
}

impl Unit {
    const fn word(self) -> &'static str {
        match self {
            Unit::Seconds => "seconds",
            Unit::Milliseconds => "milliseconds",
        }
    }

    const fn in_a_second(self) -> f64 {
        match self {
            Unit::Seconds => 1.0,
            Unit::Milliseconds => 1000.0,
        }
    }

    /// An option's name as the language spells it.
    pub(crate) fn spelled(self, name: &str) -> String {
        match self {
            Unit::Seconds => name.to_owned(),
            Unit::Milliseconds => {
                let mut words = name.split('_');
                let first = words.next().unwrap_or_default().to_owned();
                words.fold(first, |start, word| {
                    let (head, tail) = word.split_at(word.len().min(1));
                    start + &head.to_ascii_uppercase() + tail
                })
            }
        }
    }

    /// A number as the language writes it.
    fn written(self, value: f64) -> String {
        match self {
            Unit::Seconds if value.is_nan() => "nan".to_owned(),
            Unit::Milliseconds if value.is_infinite() => {
                if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
            }
            _ => format!("{value:?}").trim_end_matches(".0").to_owned(),
        }
    }

    /// Reads a length of time.
    ///
    /// # Errors
    /// [`Failure`] if it is no number, negative, infinite where it must end, or less than a
    /// millisecond where it must be some time: with the range that is allowed.
    pub(crate) fn length(self, span: Span, given: &Given) -> Result<Duration, Failure> {
        let refused = |value: &str, number: &str| {
            let (name, unit, range) = (self.spelled(span.name), self.word(), self.range(span));
            Failure::option(format!("{name} is {value}: give a {number} of {unit}, {range}"))
        };
        let value = match given {
            Given::Number(value) => *value,
            Given::Other(shown) => return Err(refused(shown, "number")),
        };
        let seconds = value / self.in_a_second();
        let is_too_long = seconds > LENGTH_MAX;
        if is_too_long && !span.can_be_endless && value.is_finite() {
            // Not cut: the client's text would show another value than the caller's.
            return Err(refused(&self.written(value), "number"));
        }
        // Not min(): for NaN it returns the limit.
        let bounded = if is_too_long { LENGTH_MAX } else { seconds };
        let has_end = span.can_be_endless || !value.is_infinite();
        let least = if span.can_be_zero { Duration::ZERO } else { Duration::from_millis(1) };
        match Duration::try_from_secs_f64(bounded) {
            Ok(length) if has_end && length >= least => Ok(length),
            _ => {
                let number = if has_end { "number" } else { "finite number" };
                Err(refused(&self.written(value), number))
            }
        }
    }

    /// The lengths that an option can have, for people.
    fn range(self, span: Span) -> String {
        let written = |length| self.written(self.count(length));
        let least = written(span.least);
        match span.end {
            End::At(most) if most >= span.least => format!("{least} to {}", written(most)),
            End::Before(end) if end > span.least => {
                format!("{least} or more, and less than {}", written(end))
            }
            // The other settings leave no room: the client says so once this is a length.
            End::At(_) | End::Before(_) | End::Never => format!("{least} or more"),
        }
    }

    /// A length of time with its unit, for people.
    pub(crate) fn with_unit(self, length: Duration) -> String {
        let unit = match self {
            Unit::Seconds => "s",
            Unit::Milliseconds => "ms",
        };
        format!("{} {unit}", self.written(self.count(length)))
    }

    /// As the client writes lengths in errors about options.
    pub(crate) const fn in_client(self) -> LengthUnit {
        match self {
            Unit::Seconds => LengthUnit::Seconds,
            Unit::Milliseconds => LengthUnit::Milliseconds,
        }
    }

    /// A length of time, in this unit.
    pub fn count(self, length: Duration) -> f64 {
        // A fraction of a millisecond that a float cannot express would show.
        length.as_micros() as f64 * self.in_a_second() / 1e6
    }
}

/// An option that is a length of time, and the lengths that it can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    name: &'static str,
    can_be_zero: bool,
    can_be_endless: bool,
    /// The range that is named if the value cannot be a length at all. The client refuses the rest
    /// of what is out of range.
    least: Duration,
    end: End,
}

/// Where the lengths that an option can have end.
#[derive(Clone, Copy, Debug)]
enum End {
    /// With this one.
    At(Duration),
    /// Before this one.
    Before(Duration),
    /// Nowhere.
    Never,
}

impl Span {
    const MS: Duration = Duration::from_millis(1);

    /// How long a caller waits for the loss of a lease.
    pub(crate) const UNTIL_LOST: Span = Span::new("timeout", true, true);
    pub(crate) const WAIT: Span = Span::new("wait", true, true);
    pub(crate) const MAX_HOLD: Span = Span::new("max_hold", false, true).from(TTL_MIN);

    const fn new(name: &'static str, can_be_zero: bool, can_be_endless: bool) -> Span {
        let least = if can_be_zero { Duration::ZERO } else { Span::MS };
        Span { name, can_be_zero, can_be_endless, least, end: End::Never }
    }

    pub(crate) const fn ttl(ranges: OptionRanges) -> Span {
        let (least, end) = (ranges.ttl_min, End::At(ranges.ttl_max));
        Span { end, ..Span::new("ttl", false, false).from(least) }
    }

    pub(crate) const fn max_ttl(ranges: OptionRanges) -> Span {
        Span::new("max_ttl", false, true).from(ranges.ttl_min)
    }

    pub(crate) const fn timeout(ranges: OptionRanges) -> Span {
        Span { end: End::At(ranges.timeout_max), ..Span::new("timeout", false, false) }
    }

    pub(crate) const fn drift(ranges: OptionRanges) -> Span {
        Span { end: End::Before(ranges.drift_end), ..Span::new("drift", true, false) }
    }

    pub(crate) const fn lost_margin(ranges: OptionRanges) -> Span {
        Span { end: End::Before(ranges.margin_end), ..Span::new("lost_margin", true, false) }
    }

    pub(crate) const fn from(self, least: Duration) -> Span {
        Span { least, ..self }
    }
}
