//! What a node publishes on a client's channel: a ticket that it has reserved the lock for, or one
//! that it has granted the lock to.

use crate::engine::{Fence, Ticket};
use crate::wire::request;

/// A message of a node to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// `<ticket>`: the lock is reserved for the ticket.
    Turn(Ticket),
    /// `<fence> <number> <ticket>`: the lock is granted to the ticket, for its registration with
    /// this number. (A ticket has a dash behind its first digits, never a space.)
    Granted {
        /// The ticket.
        ticket: Ticket,
        /// The fence of the grant.
        fence: Fence,
        /// The number of the last registration that the node received.
        number: u64,
    },
}

impl Published {
    /// The bytes that are published.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Published::Turn(ticket) => ticket.to_bytes(),
            Published::Granted { ticket, fence, number } => {
                [format!("{fence} {number} ").as_bytes(), &ticket.to_bytes()].concat()
            }
        }
    }

    /// Reads what was published; `None` if a node does not publish such bytes.
    pub fn parse(bytes: &[u8]) -> Option<Published> {
        let mut parts = bytes.splitn(3, |&byte| byte == b' ');
        let (first, number, ticket) = (parts.next()?, parts.next(), parts.next());
        match (number, ticket) {
            (Some(number), Some(ticket)) if first.iter().all(u8::is_ascii_digit) => {
                let fence = Fence::new(request::number(first)?).filter(|f| *f > Fence::ZERO)?;
                let number = request::number(number)?;
                Some(Published::Granted { ticket: Ticket::parse(ticket)?, fence, number })
            }
            _ => Ticket::parse(bytes).map(Published::Turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_published_is_read(
            start in 1_u64..1 << 53,
            id in proptest::collection::vec(any::<u8>(), 1..=64),
            fence in 1_u64..1 << 53,
            number: u64,
        ) {
            let ticket = Ticket::new(start, &id).unwrap();
            let turn = Published::Turn(ticket.clone());
            prop_assert_eq!(Published::parse(&turn.to_bytes()), Some(turn));
            let fence = Fence::new(fence).unwrap();
            let granted = Published::Granted { ticket, fence, number };
            prop_assert_eq!(Published::parse(&granted.to_bytes()), Some(granted));
        }
    }

    #[test]
    fn nothing_else_is_read() {
        for bad in
            [&b""[..], b"7", b"7 ", b"7 1", b"7 1 ", b"7 1 5", b"0 1 5-x", b"7  5-x", b" 1 5-x"]
        {
            assert_eq!(Published::parse(bad), None, "{}", bad.escape_ascii());
        }
    }
}
