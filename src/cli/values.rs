//! The values of arguments: lengths of time, names and tokens as people write them.

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use crate::client::Printable;

/// The longest ttl that a node can be set to allow (`lockmod.max-ttl`). What the nodes really
/// allow, they say themselves.
pub(super) const TTL_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The longest length of time: a hundred years, so that no sum with it overflows.
const LENGTH_MAX_DAYS: u64 = 36_525;
/// The most locks that are shown.
const LIMIT_MAX: u64 = 1_000_000;
/// The most local nodes.
const COUNT_MAX: u8 = 32;

/// A token given on the command line. Secret: it has no `Display`.
#[derive(Clone)]
pub(super) struct Token(pub(super) Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// Reads a token in hexadecimal digits.
pub(super) fn token(text: &str) -> Result<Token, String> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_even = digits.len().is_multiple_of(2) && !digits.is_empty();
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
    bytes
        .filter(|_| is_even && is_hex)
        .map(Token)
        .ok_or_else(|| "give the hexadecimal digits that `acquire` printed".to_owned())
}

/// The name of a lock: any bytes.
#[derive(Clone, Debug)]
pub(super) struct Name(pub(super) Vec<u8>);

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// For people: without what plays with a terminal.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

/// Reads the name of a lock.
pub(super) fn name(text: OsString) -> Result<Name, String> {
    if text.is_empty() {
        return Err("the name is empty: is a variable not set?".to_owned());
    }
    Ok(Name(text.into_vec()))
}

/// Reads a length of time as people write it.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let problem = || "write a length of time as 500ms, 5s, 2m, 1h or 2d".to_owned();
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(problem)?;
    if unit_at == 0 {
        return Err(problem());
    }
    let too_long = || format!("it is too long: give at most {LENGTH_MAX_DAYS}d");
    let number: u64 = text[..unit_at].parse().map_err(|_| too_long())?;
    let unit: u64 = match &text[unit_at..] {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(problem()),
    };
    let millis = number.checked_mul(unit).filter(|&ms| ms <= LENGTH_MAX_DAYS * 86_400_000);
    millis.map(Duration::from_millis).ok_or_else(too_long)
}

/// Reads how many locks to show.
pub(super) fn limit(text: &str) -> Result<usize, String> {
    whole(text, LIMIT_MAX).map(|number| number as usize)
}

/// Reads how many nodes to start.
pub(super) fn count(text: &str) -> Result<u8, String> {
    whole(text, u64::from(COUNT_MAX)).map(|number| number as u8)
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
pub(super) fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = length(text)?;
    if ttl > TTL_MAX {
        return Err("no node allows a lease longer than 366d".to_owned());
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        let millis = |text| length(text).map(|length| length.as_millis());
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("5s"), Ok(5_000));
        assert_eq!(millis("2m"), Ok(120_000));
        assert_eq!(millis("1h"), Ok(3_600_000));
        assert_eq!(millis("2d"), Ok(172_800_000));
        let huge = ["99999999999999999999s", "9999999999999999999h"];
        for bad in ["", "5", "s", "-5s", "5 s", "1.5s", "5w", huge[0], huge[1]] {
            assert!(length(bad).is_err(), "{bad}");
        }
        assert!(length("36525d").is_ok() && length("36526d").is_err());
        assert!(ttl("366d").is_ok() && ttl("8785h").is_err());
    }

    #[test]
    fn tokens_are_hexadecimal_and_not_shown() {
        let token = |text| super::token(text).map(|token| token.0);
        assert_eq!(token("00fF"), Ok(vec![0, 255]));
        for bad in ["", "0", "0g", "+1", "é"] {
            assert!(token(bad).is_err(), "{bad}");
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
