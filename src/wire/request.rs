//! Reading requests: from arguments as bytes to values that the engine takes.
//!
//! Arguments are bytes, not text. Nothing here allocates unless it refuses. A ttl comes in two
//! forms: as a client asks for it (`30000`), and as a master or an append-only file states what was
//! decided (`30000@1763690000000.17`: the lease's absolute end and its fence). Only the caller
//! knows whether the sender may state facts; here both are read.

use crate::engine::{
    Claim, Fence, Fencing, LABEL_MAX, Millis, Refusal, TOKEN_MAX, TTL_MAX, Ticket, Token, UnixTime,
};

/// The limits of a node that a request must keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest ttl.
    pub ttl: Millis,
    /// The longest token, in bytes.
    pub token: usize,
}

impl Limits {
    /// The limits for facts, which were within the limits of whoever decided them.
    pub const FACTS: Limits = Limits { ttl: Millis::new(u64::MAX), token: TOKEN_MAX };
}

pub use crate::engine::Decided;

/// The longest that a request may wait, in milliseconds: one day. Who waits longer asks again.
pub const WAIT_MAX: Millis = Millis::new(86_400_000);
/// The longest name of a channel, in bytes.
pub const CHANNEL_MAX: usize = 256;

/// `LOCK.ACQUIRE key token ttl [LABEL label] [WAIT ms | QUEUE ms TICKET ticket NOTIFY channel]`,
/// after the key.
#[derive(Clone, Debug)]
pub struct Acquire<'a> {
    /// Token and ttl.
    pub claim: Claim<'a>,
    /// Who asks, for people; may be empty.
    pub label: &'a [u8],
    /// Whether it waits if the lock is not free.
    pub waiting: Waiting<'a>,
}

/// Whether a request waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting<'a> {
    /// It is answered at once.
    Not,
    /// Its connection blocks, for this long at most.
    Block(Millis),
    /// It is answered at once, and its ticket stands in line.
    Queue(Queue<'a>),
}

/// `QUEUE ms TICKET ticket NOTIFY channel`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue<'a> {
    /// For how long the ticket stands in line.
    pub wait: Millis,
    /// Its place.
    pub ticket: Ticket,
    /// Where it is woken.
    pub channel: &'a [u8],
}

/// `LOCK.EXTEND key token ttl [FENCE f [REPAIR [LABEL label]]]`, after the key.
#[derive(Clone, Copy, Debug)]
pub struct Extend<'a> {
    /// Token and ttl.
    pub claim: Claim<'a>,
    /// What to do about fences.
    pub fencing: Fencing<'a>,
}

/// Reads the arguments of `LOCK.ACQUIRE` after the key.
///
/// # Errors
/// `BADTOKEN`, `BADTTL`, `BADARG`.
pub fn acquire<'a>(args: &[&'a [u8]], limits: Limits) -> Result<Acquire<'a>, Refusal> {
    let claim = claim(args, limits)?;
    let (label, waiting) = match options(args) {
        // As most requests are.
        [] => (&[][..], Waiting::Not),
        options => acquire_options(options)?,
    };
    Ok(Acquire { claim, label, waiting })
}

/// Reads the arguments of `LOCK.EXTEND` after the key.
///
/// # Errors
/// `BADTOKEN`, `BADTTL`, `BADARG`.
pub fn extend<'a>(args: &[&'a [u8]], limits: Limits) -> Result<Extend<'a>, Refusal> {
    let claim = claim(args, limits)?;
    Ok(Extend { claim, fencing: fencing(options(args))? })
}

/// Reads a token.
///
/// # Errors
/// `BADTOKEN`.
pub fn token<'a>(bytes: &'a [u8], limits: Limits) -> Result<Token<'a>, Refusal> {
    Token::new(bytes, limits.token)
}

/// Reads the fence to raise a lock to.
///
/// # Errors
/// `BADARG`.
pub fn fence(bytes: &[u8]) -> Result<Fence, Refusal> {
    match number(bytes).and_then(Fence::new) {
        Some(fence) if fence > Fence::ZERO => Ok(fence),
        Some(_) | None => Err(Refusal::BadArg {
            given: bytes.to_vec(),
            what: "fence",
            allowed: "a whole number from 1 to 9007199254740991",
        }),
    }
}

/// Reads a stated fact in place of a ttl, `ttl@end.fence` or `ttl@end.fence.floor`, with a `?` at
/// the end where the lease is provisional; `None` if it is not one.
pub fn decided(bytes: &[u8]) -> Option<Decided> {
    let (bytes, is_provisional) = match bytes {
        [bytes @ .., PROVISIONAL] => (bytes, true),
        bytes => (bytes, false),
    };
    let at = bytes.iter().position(|&byte| byte == b'@')?;
    // Nobody grants a longer lease, whatever a fact says.
    let ttl = Millis::new(number(&bytes[..at])?).min(TTL_MAX);
    let mut facts = bytes[at + 1..].split(|&byte| byte == b'.').map(number);
    let ends_at = UnixTime::from_millis(facts.next()??);
    let fence = Fence::new(facts.next()??)?;
    let floor = match facts.next() {
        Some(floor) => Fence::new(floor?)?,
        None => Fence::ZERO,
    };
    let decided = Decided { ttl, ends_at, fence, floor, is_provisional };
    if facts.next().is_some() { None } else { Some(decided) }
}

/// Ends a fact about a lease that is provisional.
pub const PROVISIONAL: u8 = b'?';

/// What makes a ttl argument a fact when it is appended to it: `@end.fence`.
///
/// The bytes are written into `room`.
pub fn decided_suffix(room: &mut [u8; SUFFIX_MAX], ends_at: UnixTime, fence: Fence) -> &[u8] {
    let mut start = put_number(room, SUFFIX_MAX, fence.get());
    start -= 1;
    room[start] = b'.';
    start = put_number(room, start, ends_at.as_millis()) - 1;
    room[start] = b'@';
    &room[start..]
}

/// Room for two numbers of 20 digits and what separates them.
pub const SUFFIX_MAX: usize = 42;

/// Writes `number` in decimal digits before `end`; answers where it starts.
///
/// Two digits at a time: this is a tenth of what an acquire costs beside Redis's own share.
fn put_number(room: &mut [u8; SUFFIX_MAX], end: usize, mut number: u64) -> usize {
    let mut start = end;
    while number >= 10 {
        let pair = (number % 100) as usize * 2;
        number /= 100;
        start -= 2;
        room[start..start + 2].copy_from_slice(&DIGIT_PAIRS[pair..pair + 2]);
    }
    if number > 0 || start == end {
        start -= 1;
        room[start] = b'0' + number as u8;
    }
    start
}

/// `00`, `01`, up to `99`.
static DIGIT_PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[number * 2] = b'0' + (number / 10) as u8;
        pairs[number * 2 + 1] = b'0' + (number % 10) as u8;
        number += 1;
    }
    pairs
};

/// Reads what may follow the ttl of `LOCK.ACQUIRE`: each option once, in any order.
///
/// # Errors
/// `BADARG`.
pub fn acquire_options<'a>(options: &[&'a [u8]]) -> Result<(&'a [u8], Waiting<'a>), Refusal> {
    const ALLOWED: &str = "LABEL label, WAIT ms, QUEUE ms TICKET ticket NOTIFY channel";
    let bad =
        |given: &[u8], what| Refusal::BadArg { given: given.to_vec(), what, allowed: ALLOWED };
    let (mut label, mut waiting) = (&[][..], Waiting::Not);
    let mut rest = options;
    while let [name, after @ ..] = rest {
        rest = match after {
            [text, after @ ..] if is(name, "LABEL") && label.is_empty() => {
                label = label_text(text)?;
                after
            }
            [ms, after @ ..] if is(name, "WAIT") && waiting == Waiting::Not => {
                waiting = Waiting::Block(wait(ms)?);
                after
            }
            _ if is(name, "QUEUE") && waiting == Waiting::Not => {
                let (queue, after) = queue(rest)?;
                waiting = Waiting::Queue(queue);
                after
            }
            // A known option that is not well placed is less puzzling when it is named so.
            _ if ["LABEL", "WAIT", "QUEUE"].iter().any(|known| is(name, known)) => {
                return Err(bad(name, "argument at the end"));
            }
            _ => return Err(bad(name, "option")),
        };
    }
    Ok((label, waiting))
}

/// Reads what may follow the token of `LOCK.RELEASE`.
///
/// # Errors
/// `BADARG`.
pub fn release_options<'a>(options: &[&'a [u8]]) -> Result<Option<Queue<'a>>, Refusal> {
    let bad = |given: &[u8], what| Refusal::BadArg {
        given: given.to_vec(),
        what,
        allowed: "QUEUE ms TICKET ticket NOTIFY channel",
    };
    match options {
        [] => Ok(None),
        [name, ..] if !is(name, "QUEUE") => Err(bad(name, "option")),
        _ => match queue(options)? {
            (queue, []) => Ok(Some(queue)),
            (_, [extra, ..]) => Err(bad(extra, "argument at the end")),
        },
    }
}

/// Reads `QUEUE ms TICKET ticket NOTIFY channel`; answers it and what follows.
fn queue<'s, 'a>(options: &'s [&'a [u8]]) -> Result<(Queue<'a>, &'s [&'a [u8]]), Refusal> {
    let bad =
        |given: &[u8], what, allowed| Err(Refusal::BadArg { given: given.to_vec(), what, allowed });
    match options {
        [_, ms, ticket_word, text, notify, channel, after @ ..]
            if is(ticket_word, "TICKET") && is(notify, "NOTIFY") =>
        {
            let wait = wait(ms)?;
            let Some(ticket) = Ticket::parse(text) else {
                let allowed = "start-id, with a start from 1 to 9007199254740991 and an id of 1 \
                               to 64 bytes";
                return bad(text, "ticket", allowed);
            };
            if !(1..=CHANNEL_MAX).contains(&channel.len()) {
                return bad(channel, "channel", "1 to 256 bytes");
            }
            Ok((Queue { wait, ticket, channel }, after))
        }
        _ => {
            let given = options.first().copied().unwrap_or_default();
            bad(given, "option", "QUEUE ms TICKET ticket NOTIFY channel, whole")
        }
    }
}

fn wait(bytes: &[u8]) -> Result<Millis, Refusal> {
    match number(bytes).map(Millis::new) {
        Some(wait) if wait <= WAIT_MAX => Ok(wait),
        Some(_) | None => Err(Refusal::BadArg {
            given: bytes.to_vec(),
            what: "wait",
            allowed: "a whole number of milliseconds from 0 to 86400000",
        }),
    }
}

fn label_text(text: &[u8]) -> Result<&[u8], Refusal> {
    if (1..=LABEL_MAX).contains(&text.len()) {
        return Ok(text);
    }
    Err(Refusal::BadArg { given: text.to_vec(), what: "label", allowed: "1 to 128 bytes" })
}

fn is(given: &[u8], name: &str) -> bool {
    given.eq_ignore_ascii_case(name.as_bytes())
}

/// Reads `[FENCE f [REPAIR [LABEL label]]]`.
///
/// # Errors
/// `BADARG`.
pub fn fencing<'a>(options: &[&'a [u8]]) -> Result<Fencing<'a>, Refusal> {
    let bad = |given: &[u8]| Refusal::BadArg {
        given: given.to_vec(),
        what: "option",
        allowed: "FENCE f, FENCE f REPAIR, or FENCE f REPAIR LABEL label",
    };
    match options {
        [] => Ok(Fencing::Keep),
        [name, number] if is(name, "FENCE") => Ok(Fencing::Raise(fence(number)?)),
        [name, number, repair] if is(name, "FENCE") && is(repair, "REPAIR") => {
            Ok(Fencing::Repair { fence: fence(number)?, label: b"" })
        }
        [name, number, repair, word, text]
            if is(name, "FENCE") && is(repair, "REPAIR") && is(word, "LABEL") =>
        {
            Ok(Fencing::Repair { fence: fence(number)?, label: label_text(text)? })
        }
        [name, _, repair, .., last] if is(name, "FENCE") && is(repair, "REPAIR") => Err(bad(last)),
        [name, _, last, ..] if is(name, "FENCE") => Err(bad(last)),
        [name, ..] => Err(bad(name)),
    }
}

/// A whole number in decimal digits, as Redis's clients write it: no sign, no space.
pub fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 20 {
        return None;
    }
    bytes.iter().try_fold(0_u64, |sum, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}

fn claim<'a>(args: &[&'a [u8]], limits: Limits) -> Result<Claim<'a>, Refusal> {
    let token = token(args.first().copied().unwrap_or_default(), limits)?;
    let ttl = ttl(args.get(1).copied().unwrap_or_default(), limits)?;
    Ok(Claim { token, ttl })
}

fn options<'s, 'a>(args: &'s [&'a [u8]]) -> &'s [&'a [u8]] {
    args.get(2..).unwrap_or_default()
}

fn ttl(bytes: &[u8], limits: Limits) -> Result<Millis, Refusal> {
    match number(bytes).map(Millis::new) {
        Some(ttl) if !ttl.is_zero() && ttl <= limits.ttl => Ok(ttl),
        Some(_) | None => Err(Refusal::BadTtl { given: bytes.to_vec(), max: limits.ttl }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { ttl: Millis::new(1_000), token: 64 };

    fn refusal<T>(result: Result<T, Refusal>) -> String {
        result.err().map(|refusal| refusal.to_string()).unwrap_or_default()
    }

    #[test]
    fn ttls_are_refused_on_both_sides_of_the_edge() {
        let parse = |ttl: &'static [u8]| acquire(&[b"t", ttl], LIMITS);
        assert!(parse(b"1").is_ok() && parse(b"1000").is_ok());
        for bad in [&b"0"[..], b"1001", b"-1", b"+1", b" 1", b"1 ", b"", b"1e3", b"0x1", b"1.5"] {
            assert!(refusal(parse(bad.to_vec().leak())).starts_with("BADTTL "), "{bad:?}");
        }
        let huge = b"99999999999999999999999999";
        assert!(refusal(parse(huge)).contains("from 1 to 1000"));
    }

    #[test]
    fn a_fact_is_no_ttl() {
        let fact: &[u8] = b"1000@1763690000000.17";
        assert!(refusal(acquire(&[b"t", fact], LIMITS)).starts_with("BADTTL"));
        let decided = decided(fact).unwrap();
        assert_eq!(decided.ttl, Millis::new(1000));
        assert_eq!(decided.ends_at.as_millis(), 1_763_690_000_000);
        assert_eq!(decided.fence.get(), 17);
    }

    #[test]
    fn no_fact_states_a_longer_lease_than_any_node_grants() {
        let ttl = |fact: String| decided(fact.as_bytes()).unwrap().ttl;
        assert_eq!(ttl(format!("{}@6.7", TTL_MAX.get())), TTL_MAX);
        assert_eq!(ttl(format!("{}@6.7", TTL_MAX.get() + 1)), TTL_MAX);
        assert_eq!(ttl(format!("{}@6.7", u64::MAX)), TTL_MAX);
    }

    #[test]
    fn facts_are_read_whole_or_not_at_all() {
        assert_eq!(decided(b"5@6.7.8").unwrap().floor.get(), 8);
        assert!(!decided(b"5@6.7.8").unwrap().is_provisional);
        for provisional in [&b"5@6.7?"[..], b"5@6.7.8?"] {
            assert!(decided(provisional).unwrap().is_provisional);
        }
        let whole = ["5", "5@", "5@6", "5@6.", "@6.7", "5@6.7.", "5@6.7.8.9", "5@-6.7"];
        for bad in whole.into_iter().chain(["5@6.7??", "5@6?.7", "5@6.7.?", "?"]) {
            let bad = bad.as_bytes();
            assert_eq!(decided(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn options_are_refused_by_name() {
        let parse = |options: &[&'static [u8]]| {
            refusal(acquire(&[&[&b"t"[..], b"5"], options].concat(), LIMITS))
        };
        assert_eq!(parse(&[b"label", b"me"]), "");
        let allowed = "allowed: LABEL label, WAIT ms, QUEUE ms TICKET ticket NOTIFY channel";
        assert_eq!(parse(&[b"NOW"]), format!("BADARG option 'NOW'; {allowed}"));
        assert_eq!(parse(&[b"LABEL"]), format!("BADARG argument at the end 'LABEL'; {allowed}"));
        assert!(parse(&[b"LABEL", &[b'x'; 129]]).starts_with("BADARG label 'xxx"));
        assert!(parse(&[b"LABEL", b""]).starts_with("BADARG label ''"));
    }

    #[test]
    fn waits_are_read_in_any_order_and_once() {
        let parse = |line: &str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            acquire_options(&args).map_err(|refusal| refusal.to_string()).map(|(label, waiting)| {
                let label = label.escape_ascii().to_string();
                match waiting {
                    Waiting::Not => format!("{label} not"),
                    Waiting::Block(wait) => format!("{label} {wait}"),
                    Waiting::Queue(Queue { wait, ticket, channel }) => {
                        format!("{label} {wait} {ticket} {}", channel.escape_ascii())
                    }
                }
            })
        };
        assert_eq!(parse("LABEL me").unwrap(), "me not");
        assert_eq!(parse("wait 0").unwrap(), " 0 ms");
        assert_eq!(parse("LABEL me WAIT 86400000").unwrap(), "me 86400000 ms");
        let queued = "QUEUE 5 TICKET 7-x NOTIFY here";
        assert_eq!(parse(queued).unwrap(), " 5 ms 7-x here");
        assert_eq!(parse(&format!("{queued} LABEL me")).unwrap(), "me 5 ms 7-x here");
        assert_eq!(parse(&format!("LABEL me {queued}")).unwrap(), "me 5 ms 7-x here");
        for (bad, what) in [
            ("WAIT", "BADARG argument at the end 'WAIT'; "),
            ("WAIT 86400001", "BADARG wait '86400001'; "),
            ("WAIT -1", "BADARG wait '-1'; "),
            ("WAIT 1 WAIT 1", "BADARG argument at the end 'WAIT'; "),
            ("LABEL a LABEL b", "BADARG argument at the end 'LABEL'; "),
            ("WAIT 1 QUEUE 5 TICKET 7-x NOTIFY here", "BADARG argument at the end 'QUEUE'; "),
            ("QUEUE 5 TICKET 7-x NOTIFY here WAIT 1", "BADARG argument at the end 'WAIT'; "),
            ("QUEUE 5", "BADARG option 'QUEUE'; "),
            ("QUEUE 5 NOTIFY here TICKET 7-x", "BADARG option 'QUEUE'; "),
            ("QUEUE 5 TICKET 7 NOTIFY here", "BADARG ticket '7'; allowed: start-id, with "),
            ("QUEUE 5 TICKET 7-x NOTIFY ", "BADARG channel ''; allowed: 1 to 256 bytes"),
            ("QUEUE x TICKET 7-x NOTIFY here", "BADARG wait 'x'; "),
        ] {
            let refusal = parse(bad).unwrap_err();
            assert!(refusal.starts_with(what), "{bad}: {refusal}");
        }
        let words: Vec<&[u8]> = queued.split(' ').map(str::as_bytes).collect();
        assert_eq!(release_options(&[]), Ok(None));
        assert_eq!(release_options(&words).unwrap().unwrap().channel, b"here");
        let more = [&words[..], &[b"LABEL"]].concat();
        assert!(refusal(release_options(&more)).starts_with("BADARG argument at the end 'LABEL'"));
        assert!(refusal(release_options(&[b"WAIT", b"1"])).starts_with("BADARG option 'WAIT'"));
    }

    #[test]
    fn extends_raise_or_repair() {
        let parse = |options: &[&'static [u8]]| {
            extend(&[&[&b"t"[..], b"5"], options].concat(), LIMITS).map(|extend| extend.fencing)
        };
        assert_eq!(parse(&[]).unwrap(), Fencing::Keep);
        assert_eq!(parse(&[b"fence", b"7"]).unwrap(), Fencing::Raise(Fence::new(7).unwrap()));
        let repair = parse(&[b"FENCE", b"7", b"repair"]).unwrap();
        let fence = Fence::new(7).unwrap();
        assert_eq!(repair, Fencing::Repair { fence, label: b"" });
        let repair = parse(&[b"FENCE", b"7", b"REPAIR", b"label", b"me"]).unwrap();
        assert_eq!(repair, Fencing::Repair { fence, label: b"me" });
        assert!(refusal(parse(&[b"FENCE", b"0"])).starts_with("BADARG fence '0'"));
        assert!(refusal(parse(&[b"FENCE", b"9007199254740992"])).starts_with("BADARG fence"));
        assert!(refusal(parse(&[b"FENCE", b"7", b"NOW"])).contains("'NOW'"));
        assert!(refusal(parse(&[b"REPAIR"])).contains("'REPAIR'"));
    }

    proptest! {
        #[test]
        fn a_suffix_reads_back_as_the_fact_it_states(end: u64, fence in 0..=Fence::MAX.get()) {
            let (ends_at, fence) = (UnixTime::from_millis(end), Fence::new(fence).unwrap());
            let mut room = [0; SUFFIX_MAX];
            let mut bytes = [b"30000", decided_suffix(&mut room, ends_at, fence)].concat();
            let (ttl, floor) = (Millis::new(30_000), Fence::ZERO);
            let mut fact = Decided { ttl, ends_at, fence, floor, is_provisional: false };
            prop_assert_eq!(decided(&bytes), Some(fact));
            bytes.push(PROVISIONAL);
            fact.is_provisional = true;
            prop_assert_eq!(decided(&bytes), Some(fact));
        }

        #[test]
        fn numbers_agree_with_the_standard_library(text in "[0-9]{1,21}") {
            prop_assert_eq!(number(text.as_bytes()), text.parse().ok().filter(|_| text.len() < 21));
        }

        #[test]
        fn no_arguments_make_the_parser_panic(
            args in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..8),
        ) {
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let _ = (acquire_options(&args), release_options(&args));
            let _ = (acquire(&args, LIMITS), extend(&args, LIMITS));
            let _ = args.first().map(|bytes| (decided(bytes), fence(bytes)));
        }
    }
}
