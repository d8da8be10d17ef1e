//! The values of arguments: lengths of time, names and tokens as people write them.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use crate::client::packet::TOKEN_LENGTH;
use crate::client::{InShort, Length, TTL_MIN};

/// The longest ttl that a node can be configured to allow (`lockmod.max-ttl`). The nodes themselves
/// report what they do allow.
pub(super) const TTL_MAX: Duration = Duration::from_secs(366 * DAY);

/// The longest length of time: a hundred years, so that no sum with it overflows.
const LENGTH_MAX: Duration = Duration::from_secs(36_525 * DAY);
/// In seconds.
const DAY: u64 = 24 * 3_600;
/// The most digits after the point of a length of time.
const FRACTION_MAX: usize = 9;
/// The shortest pause between two surveys of the nodes, which have other work.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// The most locks that are shown.
const LIMIT_MAX: u64 = 1_000_000;
/// The most local nodes.
const COUNT_MAX: u8 = 32;

/// The most replicas of a local master.
const REPLICAS_MAX: u8 = 5;

/// A length of time, and how it was written: errors name what was typed.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    pub(super) length: Duration,
    text: String,
}

impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads a length of time, and keeps how it was written.
pub(super) fn typed(text: &str) -> Result<Typed, String> {
    typed_up_to(LENGTH_MAX, text)
}

fn typed_up_to(max: Duration, text: &str) -> Result<Typed, String> {
    Ok(Typed { length: length_up_to(max, text)?, text: text.to_owned() })
}

/// A token given on the command line. Secret: it has no `Display`.
#[derive(Clone)]
pub(super) struct Token(pub(super) Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// Reads a token in hexadecimal digits. It must be as long as every token that `acquire` prints, so
/// that a token cut off when it was copied is refused before any node is asked.
pub(super) fn token(text: &str) -> Result<Token, String> {
    let digits = text.as_bytes();
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err("give the hexadecimal digits that `acquire` printed".to_owned());
    }
    if digits.len() != 2 * TOKEN_LENGTH {
        return Err(match digits.len() {
            0 => "it is empty: is a variable not set?".to_owned(),
            given => format!(
                "it has {given} digit{}, and the tokens that `acquire` prints have {}",
                if given == 1 { "" } else { "s" },
                2 * TOKEN_LENGTH
            ),
        });
    }
    hex::decode(digits).map(Token).map_err(|error| error.to_string())
}

/// The name of a lock: any bytes.
#[derive(Clone, Debug)]
pub(super) struct Name(pub(super) Vec<u8>);

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// For people: without characters that control a terminal.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        InShort(&self.0).fmt(f)
    }
}

/// Reads the name of a lock.
pub(super) fn name(text: OsString) -> Result<Name, String> {
    if text.is_empty() {
        return Err("the name is empty: is a variable not set?".to_owned());
    }
    Ok(Name(text.into_vec()))
}

/// Reads a length of time as people write it, and as this command prints it: `90s`, `1.5h`,
/// `1h30m`, also with spaces.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    length_up_to(LENGTH_MAX, text)
}

fn length_up_to(max: Duration, text: &str) -> Result<Duration, String> {
    let too_long = || format!("it is too long: give at most {}", Length(max));
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty: is a variable not set?".to_owned());
    }
    let (mut millis, mut last_unit) = (0_u64, u64::MAX);
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(unit_at);
        check_number(number, rest)?;
        let behind = behind.trim_start();
        let end = behind.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(behind.len());
        let (word, behind) = behind.split_at(end);
        let unit = unit(number, word)?;
        if unit >= last_unit {
            return Err("write the larger unit first, as in 1h30m".to_owned());
        }
        let part = whole_millis(number, unit)?.ok_or_else(too_long)?;
        millis = millis.checked_add(part).ok_or_else(too_long)?;
        (last_unit, rest) = (unit, behind.trim_start());
    }
    let length = Duration::from_millis(millis);
    if length <= max { Ok(length) } else { Err(too_long()) }
}

/// Refuses a text that does not begin with a number; `rest` is all of it.
fn check_number(number: &str, rest: &str) -> Result<(), String> {
    if number.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(());
    }
    Err(match rest.starts_with('-') {
        true => "no length of time is negative".to_owned(),
        false => "it does not begin with a number: write 500ms, 5s, 2m, 1h or 2d".to_owned(),
    })
}

/// The length of a unit in milliseconds.
fn unit(number: &str, word: &str) -> Result<u64, String> {
    match word {
        "ms" => Ok(1),
        "s" => Ok(1_000),
        "m" | "min" => Ok(60_000),
        "h" => Ok(3_600_000),
        "d" => Ok(86_400_000),
        "" => Err(format!("it has no unit: write {number}s for seconds, or ms, m, h, d")),
        other if other.starts_with(',') => Err("write a fraction with a point: 1.5s".to_owned()),
        other => Err(format!("its unit '{other}' is none of ms, s, m, h, d")),
    }
}

/// This many units in milliseconds; `None` if that is more than a number holds.
fn whole_millis(number: &str, unit: u64) -> Result<Option<u64>, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let too_fine = || format!("'{number}' is not a number, or finer than a millisecond");
    if fraction.len() > FRACTION_MAX {
        return Err(too_fine());
    }
    let scale = 10_u64.pow(fraction.len() as u32);
    let product = fraction.parse::<u64>().map_err(|_| too_fine())? * unit;
    if !product.is_multiple_of(scale) {
        return Err(too_fine());
    }
    let whole = whole.parse().ok().and_then(|whole: u64| whole.checked_mul(unit));
    Ok(whole.and_then(|whole| whole.checked_add(product / scale)))
}

/// Reads how often to ask the nodes.
pub(super) fn every(text: &str) -> Result<Duration, String> {
    let length = length(text)?;
    if length < EVERY_MIN {
        return Err(format!("it is too short: give at least {}ms", EVERY_MIN.as_millis()));
    }
    Ok(length)
}

/// Reads how many locks to show.
pub(super) fn limit(text: &str) -> Result<usize, String> {
    whole(text, LIMIT_MAX).map(|number| number as usize)
}

/// Reads how many nodes to start.
pub(super) fn count(text: &str) -> Result<u8, String> {
    whole(text, u64::from(COUNT_MAX)).map(|number| number as u8)
}

/// Reads how many replicas to start for each master.
pub(super) fn replicas(text: &str) -> Result<u8, String> {
    let number = text.parse().ok().filter(|number| *number <= REPLICAS_MAX);
    number.ok_or_else(|| format!("give a whole number from 0 to {REPLICAS_MAX}"))
}

/// Reads a port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    whole(text, u64::from(u16::MAX)).map(|number| number as u16)
}

fn whole(text: &str, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("give a whole number from 1 to {max}"))
}

/// Reads an address to listen on.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "give an IP address and a port from 0 to 65535, as 127.0.0.1:9477 or [::1]:9477".to_owned()
    })
}

/// Reads the length of a lease.
pub(super) fn ttl(text: &str) -> Result<Typed, String> {
    let ttl = typed_up_to(TTL_MAX, text)?;
    if ttl.length < TTL_MIN {
        return Err(format!("it is too short: give at least {}", Length(TTL_MIN)));
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        let millis = |text| length(text).map(|length| length.as_millis());
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("5s"), Ok(5_000));
        assert_eq!(millis("2m"), Ok(120_000));
        assert_eq!(millis("1h"), Ok(3_600_000));
        assert_eq!(millis("2d"), Ok(172_800_000));
        for text in ["1h30m", "1h 30m", " 1 h 30 min ", "1.5h", "90m", "5400.000s"] {
            assert_eq!(millis(text), Ok(5_400_000), "{text}");
        }
        for (bad, said) in [
            ("", "is empty"),
            ("5", "no unit: write 5s"),
            ("s", "does not begin with a number"),
            ("-5s", "negative"),
            ("1,5s", "with a point: 1.5s"),
            ("1.5ms", "finer than a millisecond"),
            ("1.s", "not a number"),
            ("1.2.3s", "not a number"),
            ("0.0000000001d", "finer than"),
            ("1h30", "no unit: write 30s"),
            ("30m1h", "larger unit first"),
            ("1s1s", "larger unit first"),
            ("1m1min", "larger unit first"),
            ("1h-30m", "unit 'h-'"),
            ("1h x", "begin with a number"),
            ("5w", "unit 'w'"),
            ("5S", "unit 'S'"),
            ("99999999999999999999s", "at most 36525d"),
            ("9999999999999999999h", "at most 36525d"),
        ] {
            let problem = length(bad).expect_err(bad);
            assert!(problem.contains(said), "{bad}: {problem}");
        }
        assert!(length("36525d").is_ok() && length("36526d").is_err());
        assert!(ttl("366d").is_ok());
        for bad in ["8785h", "36526d", "99999999999999999999s"] {
            assert!(ttl(bad).is_err_and(|said| said.contains("give at most 366d")), "{bad}");
        }
        assert!(ttl("20ms").is_ok() && ttl("0.019s").is_err_and(|said| said.contains("20ms")));
        assert_eq!(typed("1h").map(|typed| typed.to_string()), Ok("1h".to_owned()));
        assert!(every("100ms").is_ok() && every("99ms").is_err() && every("0s").is_err());
    }

    proptest! {
        /// "60 min" and "1.6 s" were printed, but refused as input.
        #[test]
        fn what_is_printed_is_read(millis in 0..TTL_MAX.as_millis() as u64) {
            let printed = Length(Duration::from_millis(millis)).to_string();
            let read = length(&printed).unwrap().as_millis() as u64;
            // Seconds are shown to a tenth, and longer times in minutes or hours.
            let unit = match millis {
                0..1_000 => 1,
                1_000..120_000 => 100,
                120_000..172_800_000 => 60_000,
                _ => 3_600_000,
            };
            prop_assert!(read.abs_diff(millis) < unit, "{millis}: {printed}");
        }

        #[test]
        fn no_text_makes_the_reading_of_a_length_panic(
            text in "[0-9.,]{0,22}[a-z. -]{0,4}[0-9]{0,3}[a-zé]{0,2}",
        ) {
            let _ = length(&text);
        }
    }

    #[test]
    fn tokens_are_hexadecimal_as_long_as_those_of_acquire_and_not_shown() {
        let token = |text: &str| super::token(text).map(|token| token.0);
        assert_eq!(token(&"fF".repeat(20)), Ok(vec![255; 20]));
        let (short, odd, long) = ("0".repeat(38), "0".repeat(39), "0".repeat(42));
        let (letter, sign) = ("0".repeat(39) + "g", "+1".repeat(20));
        for (bad, said) in [
            ("", "empty"),
            (&*short, "38 digits"),
            (&odd, "39 digits"),
            (&long, "42 digits"),
            (&letter, "hexadecimal"),
            (&sign, "hexadecimal"),
            ("é", "hexadecimal"),
        ] {
            let problem = token(bad).expect_err(bad);
            assert!(problem.contains(said), "{bad}: {problem}");
        }
        assert_eq!(format!("{:?}", Token(vec![1, 2])), "Token(2 bytes)");
    }

    #[test]
    fn a_name_is_anything_that_is_not_empty() {
        let name = |bytes: &[u8]| super::name(OsString::from_vec(bytes.to_vec()));
        assert!(name(b"").is_err_and(|problem| problem.contains("variable")));
        assert!(name(b" ").is_ok_and(|name| name.0 == b" "));
        assert!(name(b"a\xff").is_ok_and(|name| name.to_string() == "a\\xff"));
    }
}
