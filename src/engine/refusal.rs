//! Why a request is refused: one enum, one stable code word each.

use std::fmt;

use super::{Fence, Millis};

/// How much of a bad argument is quoted back, in bytes.
const QUOTE_MAX: usize = 64;

/// Why a node holds back its grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuarantineReason {
    /// The node stopped without saving everything, and may have forgotten leases.
    UncleanRestart,
    /// What the node knew of itself is missing or damaged.
    StateLost,
    /// The node was a replica, and may lack its master's last grants.
    Promotion,
    /// The wall clock was stepped while the node was down, so that loaded leases cannot be dated.
    ClockStep,
    /// The data set that was loaded is not the one that the node left when it stopped.
    OtherData,
}

impl fmt::Display for QuarantineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuarantineReason::UncleanRestart => "the node restarted uncleanly",
            QuarantineReason::StateLost => "the node's state file was missing or damaged",
            QuarantineReason::Promotion => "the node was promoted from replica",
            QuarantineReason::ClockStep => "the clock was stepped while the node was down",
            QuarantineReason::OtherData => "the data set is not the one that the node saved",
        })
    }
}

/// A request that was refused. Nothing has changed by it.
///
/// `Display` is the text of the error reply: the code word first, then what was wrong, with which
/// value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// `BADTTL`: not a whole number of milliseconds from 1 to the node's limit.
    BadTtl {
        /// What was given.
        given: Vec<u8>,
        /// The node's `lockmod.max-ttl`.
        max: Millis,
    },
    /// `BADTOKEN`: empty, or too long.
    BadToken {
        /// The length that was given, in bytes.
        length: usize,
        /// The longest allowed, in bytes.
        max: usize,
    },
    /// `BADARG`: anything else that does not fit the command.
    BadArg {
        /// What was given.
        given: Vec<u8>,
        /// What it was taken for, as in "fence".
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// `WRONGTYPE`: the key holds something that is not a lock.
    WrongType,
    /// `QUARANTINE`: the node grants nothing for now.
    Quarantine {
        /// Why.
        reason: QuarantineReason,
        /// For how much longer.
        left: Millis,
    },
    /// `QUEUEFULL`: one more waiter would be more than the node allows.
    QueueFull {
        /// How many wait, over all locks.
        waiters: usize,
        /// How many may: the node's `lockmod.max-waiters`.
        max: usize,
    },
    /// `NOPERM`: the user may not publish to the channel on which its ticket is to be woken.
    NoPermission {
        /// The channel.
        channel: Vec<u8>,
    },
    /// `BADFENCE`: no node can have issued the fence to raise to.
    BadFence {
        /// What was given.
        fence: Fence,
        /// The largest that the node accepts at the moment.
        max: Fence,
    },
    /// `EXHAUSTED`: the lock's fences have reached their maximum.
    Exhausted,
    /// `STATEFILE`: a larger ceiling could not be made durable.
    StateFile {
        /// What the operating system said.
        cause: String,
    },
}

impl Refusal {
    /// The code word of [`Refusal::BadTtl`].
    pub const BADTTL: &'static str = "BADTTL";
    /// The code word of [`Refusal::BadToken`].
    pub const BADTOKEN: &'static str = "BADTOKEN";
    /// The code word of [`Refusal::BadArg`].
    pub const BADARG: &'static str = "BADARG";
    /// The code word of [`Refusal::WrongType`].
    pub const WRONGTYPE: &'static str = "WRONGTYPE";
    /// The code word of [`Refusal::Quarantine`].
    pub const QUARANTINE: &'static str = "QUARANTINE";
    /// The code word of [`Refusal::QueueFull`].
    pub const QUEUEFULL: &'static str = "QUEUEFULL";
    /// The code word of [`Refusal::NoPermission`].
    pub const NOPERM: &'static str = "NOPERM";
    /// The code word of [`Refusal::Exhausted`].
    pub const EXHAUSTED: &'static str = "EXHAUSTED";
    /// The code word of [`Refusal::StateFile`].
    pub const STATEFILE: &'static str = "STATEFILE";
    /// The code word of [`Refusal::BadFence`].
    pub const BADFENCE: &'static str = "BADFENCE";

    /// The stable code words, the first words of the error replies. What each means for the sender
    /// is in `wire::code`.
    pub const CODES: [&'static str; 10] = [
        Refusal::BADTTL,
        Refusal::BADTOKEN,
        Refusal::BADARG,
        Refusal::WRONGTYPE,
        Refusal::QUARANTINE,
        Refusal::QUEUEFULL,
        Refusal::NOPERM,
        Refusal::EXHAUSTED,
        Refusal::STATEFILE,
        Refusal::BADFENCE,
    ];

    /// Where its code word is in [`Refusal::CODES`].
    pub const fn place(&self) -> usize {
        match self {
            Refusal::BadTtl { .. } => 0,
            Refusal::BadToken { .. } => 1,
            Refusal::BadArg { .. } => 2,
            Refusal::WrongType => 3,
            Refusal::Quarantine { .. } => 4,
            Refusal::QueueFull { .. } => 5,
            Refusal::NoPermission { .. } => 6,
            Refusal::Exhausted => 7,
            Refusal::StateFile { .. } => 8,
            Refusal::BadFence { .. } => 9,
        }
    }

    /// The stable code word, the first word of the error reply.
    pub const fn code(&self) -> &'static str {
        Refusal::CODES[self.place()]
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())?;
        match self {
            Refusal::BadTtl { given, max } => write!(
                f,
                " ttl '{}' is not a whole number of milliseconds from 1 to {}",
                Quote(given),
                max.get()
            ),
            Refusal::BadToken { length, max } => {
                write!(f, " token has {length} bytes; allowed are 1 to {max}")
            }
            Refusal::BadArg { given, what, allowed } => {
                write!(f, " {what} '{}'; allowed: {allowed}", Quote(given))
            }
            Refusal::WrongType => {
                f.write_str(" the key holds another kind of value; allowed: a lock, or no key")
            }
            Refusal::Quarantine { reason, left } => {
                write!(f, " {reason} and grants nothing for {} ms more", left.get())
            }
            Refusal::QueueFull { waiters, max } => {
                write!(f, " {waiters} wait at this node; allowed are {max}, or do not wait")
            }
            Refusal::NoPermission { channel } => write!(
                f,
                " this user may not publish to the channel '{}'; allowed: a channel of its rules",
                Quote(channel)
            ),
            Refusal::BadFence { fence, max } => {
                write!(f, " fence {fence} is above {max}, which no honest fence is at this time")
            }
            Refusal::Exhausted => {
                write!(f, " the fence is {}, the largest there is; use another lock", Fence::MAX)
            }
            Refusal::StateFile { cause } => {
                write!(f, " cannot write the state file, so no larger fence or later end: {cause}")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Bytes from a client as printable text on one line, cut to a length that fits a log.
struct Quote<'a>(&'a [u8]);

impl fmt::Display for Quote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(QUOTE_MAX)];
        write!(f, "{}", shown.escape_ascii())?;
        if shown.len() < self.0.len() { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_code_the_value_and_what_is_allowed() {
        let refusal = Refusal::BadTtl { given: b"-5".to_vec(), max: Millis::new(1000) };
        assert_eq!(
            refusal.to_string(),
            "BADTTL ttl '-5' is not a whole number of milliseconds from 1 to 1000"
        );
    }

    #[test]
    fn hostile_bytes_are_quoted_on_one_line_and_cut() {
        let given = [b"\r\n+OK\xff".as_slice(), &[b'x'; 100]].concat();
        let text = Refusal::BadArg { given, what: "fence", allowed: "1" }.to_string();
        assert!(text.starts_with(r"BADARG fence '\r\n+OK\xff"), "{text}");
        assert!(text.contains("x...'") && text.len() < 120, "{text}");
    }
}
