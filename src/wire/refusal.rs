//! Refusals as error texts, written and read in one place.
//!
//! The first word is the code. The rest is for people, except that the second word of `QUARANTINE`
//! is the milliseconds left.

use std::fmt;
use std::time::Duration;

use super::code::{self, Code, Meaning};
use crate::engine::{Fence, Refusal};

/// How much of a bad argument an error quotes, in bytes.
const QUOTE_MAX: usize = 64;

/// How a node of a cluster answers a command about a lock on another node, as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected<'t> {
    /// For this command only: the slot is on its way there.
    pub is_ask: bool,
    /// The slot of the lock.
    pub slot: &'t str,
    /// Host and port of the other node.
    pub place: &'t str,
}

/// Reads `MOVED slot host:port` and `ASK slot host:port`; `None` if an error is neither.
pub fn read_redirected(text: &str) -> Option<Redirected<'_>> {
    let is_ask = match code::word_of(text) {
        word if word == code::MOVED.word => false,
        "ASK" => true,
        _ => return None,
    };
    let mut words = text.split(' ').skip(1);
    Some(Redirected { is_ask, slot: words.next()?, place: words.next()? })
}

/// Reads the largest ttl that a node allows out of its refusal of another one, and that one, unless
/// it is no length of time.
pub fn read_bad_ttl(text: &str) -> Option<(Duration, Option<Duration>)> {
    let is_bad_ttl = code::word_of(text) == code::BADTTL.word;
    let max = text.rsplit(' ').next().filter(|_| is_bad_ttl)?.parse().ok()?;
    let given = text.split('\'').nth(1).and_then(|given| given.parse().ok());
    Some((Duration::from_millis(max), given.map(Duration::from_millis)))
}

/// The code of a refusal.
pub const fn code_of(refusal: &Refusal) -> &'static Code {
    const CODES: &[Code] = &code::MODULE;
    &CODES[refusal.kind() as usize]
}

/// What an error tells the sender of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What to do about it.
    pub meaning: Meaning,
    /// How much longer the quarantine lasts.
    pub left: Option<Duration>,
}

/// Reads the text of an error.
pub fn read(text: &str) -> Advice {
    let meaning = code::meaning_of(text);
    let left = match meaning {
        Meaning::Quarantine => text.split(' ').nth(1).and_then(|left| left.parse().ok()),
        Meaning::Later
        | Meaning::Full
        | Meaning::Forbidden
        | Meaning::WrongType
        | Meaning::Never => None,
    };
    Advice { meaning, left: left.map(Duration::from_millis) }
}

impl fmt::Display for Refusal {
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(code_of(self).word)?;
        match self {
            Refusal::BadTtl { given, max } => write!(
                f,
                " ttl '{}' is not a whole number of milliseconds from 1 to {}",
                Quote(given),
                max.get()
            ),
            Refusal::BadToken { length, max } => {
                write!(f, " token has {length} bytes; allowed: 1 to {max}")
            }
            Refusal::BadArg { given, what, allowed } => {
                write!(f, " {what} '{}'; allowed: {allowed}", Quote(given))
            }
            Refusal::WrongType => {
                f.write_str(" the key holds another kind of value; allowed: a lock, or no key")
            }
            Refusal::Quarantine { reason, left } => {
                write!(f, " {} ms left: {reason}; the node grants nothing until then", left.get())
            }
            Refusal::QueueFull { waiters, max } => {
                write!(
                    f,
                    " {waiters} requests already wait at this node; allowed: {max} \
                     (lockmod.max-waiters)"
                )
            }
            Refusal::NoPermission { channel } => write!(
                f,
                " this user may not publish to the channel '{}'; allowed: one its rules permit",
                Quote(channel)
            ),
            Refusal::BadFence { fence, max } => {
                write!(f, " fence {fence} is above {max}; no node can have issued it yet")
            }
            Refusal::NoUpgrade => f.write_str(
                " this token holds the lock as a reader, and a reader cannot become a writer; \
                 release it first",
            ),
            Refusal::ReadersFull { readers, max } => {
                write!(
                    f,
                    " {readers} readers already hold this lock; allowed: {max} \
                     (lockmod.max-readers)"
                )
            }
            Refusal::Exhausted => {
                write!(f, " the fence is {}, the largest there is; no other follows", Fence::MAX)
            }
            Refusal::StateFile { cause } => {
                f.write_str(" cannot write the state file, so the node issues no larger fence ")?;
                write!(f, "and no longer lease: {cause}")
            }
            Refusal::NoAuthority { supporters, needed } if supporters < needed => write!(
                f,
                " {supporters} of the {needed} replicas needed support this master; another may \
                 have replaced it"
            ),
            Refusal::NoAuthority { .. } => {
                f.write_str(" enough replicas support this master, but not for long enough yet")
            }
            Refusal::SlotMoving { slot } => write!(
                f,
                " either slot {slot} is moving, and its other master has not answered yet; or too \
                 few masters confirm the slots of this node: it has started, hung or is cut off, \
                 or the others are down"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Bytes from a client as printable text on one line, cut to at most [`QUOTE_MAX`] bytes.
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
    use crate::engine::{Millis, QuarantineReason, RefusalKind};
    use proptest::prelude::*;

    fn reason() -> impl Strategy<Value = QuarantineReason> {
        prop_oneof![
            Just(QuarantineReason::UncleanRestart),
            Just(QuarantineReason::StateLost),
            Just(QuarantineReason::Promotion),
            Just(QuarantineReason::ClockStep),
            Just(QuarantineReason::OtherData),
            Just(QuarantineReason::OtherMaster),
        ]
    }

    fn refusals() -> impl Strategy<Value = Refusal> {
        proptest::sample::select(&RefusalKind::ALL[..]).prop_flat_map(refusals_of)
    }

    fn refusals_of(kind: RefusalKind) -> BoxedStrategy<Refusal> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..80);
        let counts = any::<(usize, usize)>;
        let fences = (0..=Fence::MAX.get()).prop_map(|number| Fence::new(number).unwrap());
        match kind {
            RefusalKind::BadTtl => (bytes(), any::<u64>())
                .prop_map(|(given, max)| Refusal::BadTtl { given, max: Millis::new(max) })
                .boxed(),
            RefusalKind::BadToken => {
                counts().prop_map(|(length, max)| Refusal::BadToken { length, max }).boxed()
            }
            RefusalKind::BadArg => bytes()
                .prop_map(|given| Refusal::BadArg { given, what: "fence", allowed: "1" })
                .boxed(),
            RefusalKind::WrongType => Just(Refusal::WrongType).boxed(),
            RefusalKind::Quarantine => (reason(), any::<u64>())
                .prop_map(|(reason, left)| Refusal::Quarantine { reason, left: Millis::new(left) })
                .boxed(),
            RefusalKind::QueueFull => {
                counts().prop_map(|(waiters, max)| Refusal::QueueFull { waiters, max }).boxed()
            }
            RefusalKind::NoPermission => {
                bytes().prop_map(|channel| Refusal::NoPermission { channel }).boxed()
            }
            RefusalKind::Exhausted => Just(Refusal::Exhausted).boxed(),
            RefusalKind::StateFile => {
                ".{0,20}".prop_map(|cause| Refusal::StateFile { cause }).boxed()
            }
            RefusalKind::BadFence => (fences.clone(), fences)
                .prop_map(|(fence, max)| Refusal::BadFence { fence, max })
                .boxed(),
            RefusalKind::NoUpgrade => Just(Refusal::NoUpgrade).boxed(),
            RefusalKind::ReadersFull => {
                counts().prop_map(|(readers, max)| Refusal::ReadersFull { readers, max }).boxed()
            }
            RefusalKind::NoAuthority => counts()
                .prop_map(|(supporters, needed)| Refusal::NoAuthority { supporters, needed })
                .boxed(),
            RefusalKind::SlotMoving => {
                any::<u16>().prop_map(|slot| Refusal::SlotMoving { slot }).boxed()
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_of_a_refusal_is_read(refusal in refusals()) {
            let text = refusal.to_string();
            let code = code_of(&refusal);
            let left = match refusal {
                Refusal::Quarantine { left, .. } => Some(Duration::from(left)),
                _ => None,
            };
            prop_assert_eq!(code::word_of(&text), code.word);
            prop_assert_eq!(read(&text), Advice { meaning: code.meaning, left });
        }

        #[test]
        fn no_text_makes_the_reading_panic(text in ".{0,60}") {
            let _ = read(&text);
            let _ = read(&format!("QUARANTINE {text}"));
        }
    }

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
