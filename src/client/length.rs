//! Lengths of time as people write and read them.

use std::fmt;
use std::time::Duration;

use crate::engine::Millis;

/// A length of time as people write it, and as the arguments of the command are written.
#[derive(Clone, Copy, Debug)]
pub struct Length(pub Duration);

impl Length {
    /// The longest length that is shown exactly and is not above this one: for what a caller may
    /// rely on, or may ask for at most.
    pub(crate) fn rounded_down(length: Duration) -> Length {
        let unit = Length::unit(length);
        Length(Duration::from_millis(
            u64::try_from(length.as_millis()).unwrap_or(u64::MAX) / unit * unit,
        ))
    }

    /// The shortest length that is shown exactly and is not below this one: for what a caller must
    /// ask for at least.
    pub(crate) fn rounded_up(length: Duration) -> Duration {
        let unit = Length::unit(length);
        let millis = Millis::round_up(length).get().div_ceil(unit);
        Duration::from_millis(millis.saturating_mul(unit))
    }

    /// The unit in which a length of this size is shown, in milliseconds.
    const fn unit(length: Duration) -> u64 {
        match length.as_millis() {
            0..1_000 => 1,
            1_000..120_000 => 100,
            120_000..172_800_000 => 60_000,
            _ => 3_600_000,
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match millis {
            0..1_000 => write!(f, "{millis}ms"),
            1_000..120_000 if millis % 1_000 < 100 => write!(f, "{}s", millis / 1_000),
            1_000..120_000 => write!(f, "{}.{}s", millis / 1_000, millis % 1_000 / 100),
            120_000..600_000 => two(f, millis.div_ceil(1_000), 60, ["m", "s"]),
            600_000..7_200_000 => write!(f, "{}m", millis.div_ceil(60_000)),
            7_200_000..172_800_000 => two(f, millis.div_ceil(60_000), 60, ["h", "m"]),
            _ => two(f, millis.div_ceil(3_600_000), 24, ["d", "h"]),
        }
    }
}

/// Writes a number of small units as large ones and the remaining small ones.
fn two(f: &mut fmt::Formatter<'_>, small: u128, per: u128, units: [&str; 2]) -> fmt::Result {
    write!(f, "{}{}", small / per, units[0])?;
    if small.is_multiple_of(per) { Ok(()) } else { write!(f, "{}{}", small % per, units[1]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_is_told_in_hours_and_days() {
        let shown = |millis| Length(Duration::from_millis(millis)).to_string();
        assert_eq!([shown(119_999), shown(120_000)], ["119.9s", "2m"]);
        assert_eq!([shown(301_000), shown(599_001), shown(601_000)], ["5m1s", "10m", "11m"]);
        assert_eq!([shown(7_199_999), shown(7_200_000)], ["120m", "2h"]);
        assert_eq!([shown(72_000_000), shown(85_536_000)], ["20h", "23h46m"]);
        assert_eq!([shown(172_799_999), shown(172_800_000)], ["48h", "2d"]);
        assert_eq!(shown(180_000_000), "2d2h");
    }

    #[test]
    fn a_bound_is_rounded_so_that_it_is_one() {
        let down = |millis| Length::rounded_down(Duration::from_millis(millis)).to_string();
        assert_eq!([down(1_999), down(119_999), down(120_000)], ["1.9s", "119.9s", "2m"]);
        assert_eq!(down(3_563_998), "59m", "of an hour");
        assert_eq!([down(172_799_999), down(172_800_000)], ["47h59m", "2d"]);
        assert_eq!(down(179_999_999), "2d1h");
        let up = |millis| Length(Length::rounded_up(Duration::from_millis(millis))).to_string();
        assert_eq!([up(19), up(1_001), up(119_999)], ["19ms", "1.1s", "2m"]);
        assert_eq!(up(200_001), "4m");
        assert_eq!(Length::rounded_up(Duration::from_nanos(1)), Duration::from_millis(1));
    }
}
