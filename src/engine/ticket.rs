//! Tickets: a waiter's place in line, the same at every node.

use std::fmt;
use std::sync::Arc;

/// The largest start of a ticket: 2^53 - 1, exact in every language.
const START_MAX: u64 = (1 << 53) - 1;
/// The longest id of a ticket, in bytes.
pub const TICKET_ID_MAX: usize = 64;

/// When a waiter began to wait, and an id that distinguishes it from all others. Public, unlike a
/// token.
///
/// Tickets are ordered by start, then by id. A waiter keeps its ticket over all of its attempts, so
/// that independent nodes agree on who is next. As text, `<start>-<id>`:
///
/// ```
/// use lockmod::engine::Ticket;
///
/// let ticket = Ticket::parse(b"1763690000000-a1b2").unwrap();
/// assert_eq!(ticket, Ticket::new(1_763_690_000_000, b"a1b2").unwrap());
/// assert_eq!(ticket.to_bytes(), b"1763690000000-a1b2");
/// assert!(ticket < Ticket::parse(b"1763690000001-0").unwrap());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    start: u64,
    id: Arc<[u8]>,
}

impl Ticket {
    /// The ticket of a wait that began at `start`, in milliseconds since 1970 on the waiter's
    /// clock: 1 to 2^53 - 1. `id` has 1 to [`TICKET_ID_MAX`] bytes. `None` for anything else.
    pub fn new(start: u64, id: &[u8]) -> Option<Ticket> {
        let is_allowed =
            (1..=START_MAX).contains(&start) && (1..=TICKET_ID_MAX).contains(&id.len());
        is_allowed.then(|| Ticket { start, id: id.into() })
    }

    /// Reads `<start>-<id>`. There is only one way to write a ticket: no sign, no leading zero.
    pub fn parse(bytes: &[u8]) -> Option<Ticket> {
        let dash = bytes.iter().position(|&byte| byte == b'-')?;
        let (digits, id) = (&bytes[..dash], &bytes[dash + 1..]);
        let is_plain = digits.first() != Some(&b'0') && digits.iter().all(u8::is_ascii_digit);
        let start = std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()?;
        Ticket::new(start, id)
    }

    /// The ticket as text, in the form that is sent.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.start.to_string().as_bytes(), b"-", &self.id].concat()
    }

    /// A ticket that starts at `start`, or at the nearest time that is allowed.
    pub fn near(start: u64, id: &[u8]) -> Option<Ticket> {
        Ticket::new(start.clamp(1, START_MAX), id)
    }

    /// The id, which distinguishes the ticket from all others.
    pub fn id(&self) -> &[u8] {
        &self.id
    }

    /// When the wait began, in milliseconds since 1970 on the waiter's clock.
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.id.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tickets_are_ordered_by_start_as_a_number_and_then_by_id() {
        let parse = |text: &str| Ticket::parse(text.as_bytes()).unwrap();
        assert!(parse("9-z") < parse("10-a"));
        assert!(parse("10-a") < parse("10-aa") && parse("10-aa") < parse("10-b"));
        assert_eq!(parse("7--").to_bytes(), b"7--");
        assert_eq!(parse("7--").start(), 7);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            start: u64,
            id in proptest::collection::vec(any::<u8>(), 1..=TICKET_ID_MAX),
        ) {
            let ticket = Ticket::near(start, &id).unwrap();
            prop_assert_eq!(Ticket::parse(&ticket.to_bytes()), Some(ticket));
        }
    }

    #[test]
    fn what_is_no_ticket_is_refused_on_both_sides_of_the_edge() {
        let long = |length: usize| [b"5-".as_slice(), &vec![b'x'; length]].concat();
        assert!(Ticket::parse(b"9007199254740991-x").is_some());
        assert!(Ticket::parse(&long(64)).is_some());
        for bad in [
            &b"0-x"[..],
            b"9007199254740992-x",
            b"-x",
            b"5-",
            b"5",
            b"",
            b"+5-x",
            b"05-x",
            b" 5-x",
            b"99999999999999999999999-x",
            b"5x-x",
            &long(65),
        ] {
            assert_eq!(Ticket::parse(bad), None, "{}", bad.escape_ascii());
        }
        assert!(Ticket::parse(b"5-\0\xff").is_some());
        assert_eq!(Ticket::near(0, b"x"), Ticket::new(1, b"x"));
        assert_eq!(Ticket::near(u64::MAX, b"x"), Ticket::new(START_MAX, b"x"));
        assert_eq!(Ticket::near(5, b""), None);
    }
}
