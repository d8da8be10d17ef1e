//! Requests: from arguments as bytes to values for the engine, and back.
//!
//! Arguments are bytes, not text. Reading allocates only for a refusal. A server reads each command
//! with the function of its name, and a client packs a [`Request`]. [`super::fact`] reads what a
//! master or an append-only file states instead of a ttl.

pub use super::packer::ARGS_MAX;
use super::packer::Packer;
use super::spec::{self, keyword};
use crate::engine::{
    Claim, Fence, Fencing, LABEL_MAX, Millis, Mode, Refusal, TOKEN_MAX, Ticket, Token,
};

/// A node's limits on requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest ttl.
    pub ttl: Millis,
    /// The longest token, in bytes.
    pub token: usize,
}

impl Limits {
    /// The limits for facts, which kept the limits of the node that decided them.
    pub const FACTS: Limits = Limits { ttl: Millis::new(u64::MAX), token: TOKEN_MAX };
}

/// The longest wait of a request: one day. A client that waits longer asks again.
pub const WAIT_MAX: Millis = Millis::new(86_400_000);
/// The largest number of a registration: 2^53 - 1, exact in every language.
pub const REGISTRATION_MAX: u64 = (1 << 53) - 1;
/// The longest name of a channel, in bytes.
pub const CHANNEL_MAX: usize = 256;

/// `LOCK.ACQUIRE key token ttl [SHARED] [LABEL label] [WAIT ms | QUEUE ...]`, after the key.
#[derive(Clone, Debug)]
pub struct Acquire<'a> {
    /// Token, ttl and mode.
    pub claim: Claim<'a>,
    /// The holder's label, for people; may be empty.
    pub label: &'a [u8],
    /// Whether it waits if the lock is not free.
    pub waiting: WaitMode<'a>,
}

/// Whether a request waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitMode<'a> {
    /// No: it is answered at once.
    Not,
    /// Its connection blocks, for at most this long.
    Block(Millis),
    /// It is answered at once, and its ticket waits in line.
    Queue(Queue<'a>),
}

impl WaitMode<'_> {
    /// How long its connection blocks, at most.
    #[inline]
    pub fn blocks_for(&self) -> Millis {
        match self {
            WaitMode::Block(wait) => *wait,
            WaitMode::Not | WaitMode::Queue(_) => Millis::ZERO,
        }
    }
}

/// `QUEUE ms TICKET ticket NOTIFY channel [GRANT number]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue<'a> {
    /// How long the ticket stays in line.
    pub wait: Millis,
    /// The ticket.
    pub ticket: Ticket,
    /// The channel on which it is woken.
    pub channel: &'a [u8],
    /// The number of the registration, if the node may grant the lock to the ticket without another
    /// request.
    pub grant: Option<u64>,
}

/// What becomes of the lock, or of the waiter, after a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Onward<'a> {
    /// The request does not specify it.
    Unsaid,
    /// The sender had won the lock, so it may be granted to the first in line.
    HandedOver,
    /// The sender puts a ticket in line, which waits for the lock in this mode.
    Queue(Mode, Queue<'a>),
}

/// `LOCK.EXTEND key token ttl [SHARED] [FENCE f [REPAIR [LABEL label]]]`, after the key.
#[derive(Clone, Copy, Debug)]
pub struct Extend<'a> {
    /// Token, ttl and mode.
    pub claim: Claim<'a>,
    /// What to do about fences.
    pub fencing: Fencing<'a>,
}

/// A command about one lock, as a client sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `LOCK.ACQUIRE key token ttl [SHARED] [LABEL label] [WAIT ms | QUEUE ...]`
    Acquire {
        /// Proves the claim.
        token: &'a [u8],
        /// The requested length of the lease.
        ttl: Millis,
        /// The requested mode.
        mode: Mode,
        /// The holder's label, for people; may be empty.
        label: &'a [u8],
        /// Whether it waits if the lock is not free.
        waiting: WaitMode<'a>,
    },
    /// `LOCK.RELEASE key token [HANDOVER | [SHARED] QUEUE ...]`
    Release {
        /// Proves the claim.
        token: &'a [u8],
        /// What follows.
        onward: Onward<'a>,
    },
    /// `LOCK.EXTEND key token ttl [SHARED] [FENCE fence [REPAIR [LABEL label]]]`
    Extend {
        /// Proves the claim.
        token: &'a [u8],
        /// The requested length of the lease.
        ttl: Millis,
        /// [`Mode::Shared`] makes the lease a reader's.
        mode: Mode,
        /// What to do about fences.
        fencing: Fencing<'a>,
    },
    /// `LOCK.FENCE key token fence`
    Raise {
        /// Proves the claim.
        token: &'a [u8],
        /// The fence to raise to.
        fence: Fence,
    },
    /// `LOCK.FENCE key`
    Fence,
    /// `LOCK.INFO key`
    Info,
}

impl<'a> Request<'a> {
    /// The bytes of the command, for the lock `key`.
    pub fn pack(&self, key: &[u8]) -> Vec<u8> {
        let (mut first, mut second, mut third) =
            (itoa::Buffer::new(), itoa::Buffer::new(), itoa::Buffer::new());
        let mut args = Packer::new();
        args.push(self.command().as_bytes());
        args.push(key);
        let ticket = self.queue().map(|queue| queue.ticket.to_bytes()).unwrap_or_default();
        match self {
            Request::Acquire { token, ttl, mode, label, waiting } => {
                args.extend([token, first.format(ttl.get()).as_bytes()]);
                args.mode(*mode);
                args.label(label);
                args.waiting(waiting, &ticket, (&mut second, &mut third));
            }
            Request::Release { token, onward } => {
                args.push(token);
                args.onward(onward, &ticket, (&mut second, &mut third));
            }
            Request::Extend { token, ttl, mode, fencing } => {
                args.extend([token, first.format(ttl.get()).as_bytes()]);
                args.mode(*mode);
                args.fencing(fencing, &mut second);
            }
            Request::Raise { token, fence } => {
                args.extend([token, first.format(fence.get()).as_bytes()]);
            }
            Request::Fence | Request::Info => {}
        }
        args.bytes()
    }

    /// Reads a command, its name first. Returns the lock and the request; `None` if the command is
    /// not about a lock.
    ///
    /// # Errors
    /// The refusal with which a server would answer.
    pub fn parse(
        args: &[&'a [u8]],
        limits: Limits,
    ) -> Option<Result<(&'a [u8], Request<'a>), Refusal>> {
        let [name, key, rest @ ..] = args else { return None };
        let command = spec::COMMANDS.iter().find(|command| is(name, command.name))?;
        let request = match (command.name, rest) {
            (spec::ACQUIRE, _) => acquire(rest, limits).map(|asked| Request::Acquire {
                token: asked.claim.token.as_bytes(),
                ttl: asked.claim.ttl,
                mode: asked.claim.mode,
                label: asked.label,
                waiting: asked.waiting,
            }),
            (spec::RELEASE, [bytes, options @ ..]) => token(bytes, limits).and_then(|_| {
                Ok(Request::Release { token: bytes, onward: release_options(options)? })
            }),
            (spec::EXTEND, _) => extend(rest, limits).map(|asked| Request::Extend {
                token: asked.claim.token.as_bytes(),
                ttl: asked.claim.ttl,
                mode: asked.claim.mode,
                fencing: asked.fencing,
            }),
            (spec::FENCE, [bytes, number]) => token(bytes, limits)
                .and_then(|_| Ok(Request::Raise { token: bytes, fence: fence(number)? })),
            (spec::FENCE, []) => Ok(Request::Fence),
            (spec::INFO, []) => Ok(Request::Info),
            (_, _) => return None,
        };
        Some(request.map(|request| (*key, request)))
    }

    /// The name of the command.
    pub const fn command(&self) -> &'static str {
        match self {
            Request::Acquire { .. } => spec::ACQUIRE,
            Request::Release { .. } => spec::RELEASE,
            Request::Extend { .. } => spec::EXTEND,
            Request::Raise { .. } | Request::Fence => spec::FENCE,
            Request::Info => spec::INFO,
        }
    }

    /// The ticket that it puts in line, if any.
    const fn queue(&self) -> Option<&Queue<'a>> {
        match self {
            Request::Acquire { waiting: WaitMode::Queue(queue), .. }
            | Request::Release { onward: Onward::Queue(_, queue), .. } => Some(queue),
            Request::Acquire { .. }
            | Request::Release { .. }
            | Request::Extend { .. }
            | Request::Raise { .. }
            | Request::Fence
            | Request::Info => None,
        }
    }
}

/// Reads the arguments of `LOCK.ACQUIRE` after the key.
///
/// # Errors
/// `BADTOKEN`, `BADTTL`, `BADARG`.
pub fn acquire<'a>(args: &[&'a [u8]], limits: Limits) -> Result<Acquire<'a>, Refusal> {
    let claim = claim(args, limits)?;
    let options = options(args);
    // Most requests have none.
    if options.is_empty() {
        return Ok(Acquire { claim, label: &[], waiting: WaitMode::Not });
    }
    let AcquireOptions { mode, label, waiting } = acquire_options(options)?;
    Ok(Acquire { claim: Claim { mode, ..claim }, label, waiting })
}

/// Reads the arguments of `LOCK.EXTEND` after the key.
///
/// # Errors
/// `BADTOKEN`, `BADTTL`, `BADARG`.
pub fn extend<'a>(args: &[&'a [u8]], limits: Limits) -> Result<Extend<'a>, Refusal> {
    let claim = claim(args, limits)?;
    let options = options(args);
    if options.is_empty() {
        return Ok(Extend { claim, fencing: Fencing::Keep });
    }
    let (mode, fencing) = extend_options(options)?;
    Ok(Extend { claim: Claim { mode, ..claim }, fencing })
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

/// The options of `LOCK.ACQUIRE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireOptions<'a> {
    /// The requested mode.
    pub mode: Mode,
    /// The holder's label, for people; may be empty.
    pub label: &'a [u8],
    /// Whether it waits if the lock is not free.
    pub waiting: WaitMode<'a>,
}

impl AcquireOptions<'_> {
    /// The options of a request without any.
    pub const NONE: AcquireOptions<'static> =
        AcquireOptions { mode: Mode::Exclusive, label: &[], waiting: WaitMode::Not };
}

/// Reads the options after the ttl of `LOCK.ACQUIRE`: each at most once, in any order.
///
/// # Errors
/// `BADARG`.
pub fn acquire_options<'a>(options: &[&'a [u8]]) -> Result<AcquireOptions<'a>, Refusal> {
    const ALLOWED: &str = "SHARED, LABEL label, and WAIT ms or QUEUE ms TICKET ticket NOTIFY \
                           channel [GRANT number], each once";
    let bad =
        |given: &[u8], what| Refusal::BadArg { given: given.to_vec(), what, allowed: ALLOWED };
    let AcquireOptions { mut mode, mut label, mut waiting } = AcquireOptions::NONE;
    let mut rest = options;
    while let [name, after @ ..] = rest {
        rest = match after {
            [text, after @ ..] if is(name, keyword::LABEL) && label.is_empty() => {
                label = label_text(text)?;
                after
            }
            [ms, after @ ..] if is(name, keyword::WAIT) && waiting == WaitMode::Not => {
                waiting = WaitMode::Block(wait(ms)?);
                after
            }
            after if is(name, keyword::SHARED) && mode == Mode::Exclusive => {
                mode = Mode::Shared;
                after
            }
            _ if is(name, keyword::QUEUE) && waiting == WaitMode::Not => {
                let (queue, after) = queue(rest)?;
                waiting = WaitMode::Queue(queue);
                after
            }
            _ => {
                let read = AcquireOptions { mode, label, waiting };
                return Err(bad(name, fault(name, &read)));
            }
        };
    }
    Ok(AcquireOptions { mode, label, waiting })
}

/// What is wrong with an option that cannot be read after these.
fn fault(name: &[u8], read: &AcquireOptions<'_>) -> &'static str {
    let (is_label, is_wait) =
        (is(name, keyword::LABEL), is(name, keyword::WAIT) || is(name, keyword::QUEUE));
    if is_wait && read.waiting != WaitMode::Not {
        "second way to wait"
    } else if is(name, keyword::SHARED) || is_label && !read.label.is_empty() {
        "repeated option"
    } else if is_label || is_wait {
        "option without a value"
    } else {
        "option"
    }
}

/// Reads the options after the token of `LOCK.RELEASE`.
///
/// # Errors
/// `BADARG`.
pub fn release_options<'a>(options: &[&'a [u8]]) -> Result<Onward<'a>, Refusal> {
    let bad = |given: &[u8], what| Refusal::BadArg {
        given: given.to_vec(),
        what,
        allowed: "nothing, HANDOVER, or [SHARED] QUEUE ms TICKET ticket NOTIFY channel",
    };
    if let [name] = options
        && is(name, keyword::HANDOVER)
    {
        return Ok(Onward::HandedOver);
    }
    let (mode, rest) = mode(options);
    match (options, rest) {
        ([], _) => Ok(Onward::Unsaid),
        ([name], []) => Err(bad(name, "lone option")),
        (_, [name, ..]) if is_repeated(mode, name) => Err(bad(name, "repeated option")),
        (_, [name, ..]) if !is(name, keyword::QUEUE) => Err(bad(name, "option")),
        (..) => match queue(rest)? {
            (Queue { grant: Some(_), .. }, _) => {
                Err(bad(keyword::GRANT.as_bytes(), "option of LOCK.ACQUIRE only"))
            }
            (queue, []) => Ok(Onward::Queue(mode, queue)),
            (_, [extra, ..]) => Err(bad(extra, "argument at the end")),
        },
    }
}

/// Reads `SHARED` if it comes first. Returns the mode, and the arguments after it.
fn mode<'s, 'a>(options: &'s [&'a [u8]]) -> (Mode, &'s [&'a [u8]]) {
    match options {
        [name, after @ ..] if is(name, keyword::SHARED) => (Mode::Shared, after),
        _ => (Mode::Exclusive, options),
    }
}

/// Reads `QUEUE ms TICKET ticket NOTIFY channel [GRANT number]`. Returns it and the arguments after
/// it.
fn queue<'s, 'a>(options: &'s [&'a [u8]]) -> Result<(Queue<'a>, &'s [&'a [u8]]), Refusal> {
    let bad =
        |given: &[u8], what, allowed| Err(Refusal::BadArg { given: given.to_vec(), what, allowed });
    match options {
        [_, ms, ticket_word, text, notify, channel, after @ ..]
            if is(ticket_word, keyword::TICKET) && is(notify, keyword::NOTIFY) =>
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
            let (grant, after) = match after {
                [word, number, after @ ..] if is(word, keyword::GRANT) => {
                    (Some(registration(number)?), after)
                }
                _ => (None, after),
            };
            Ok((Queue { wait, ticket, channel, grant }, after))
        }
        _ => {
            let words = [(2, keyword::TICKET), (4, keyword::NOTIFY)];
            let strange = words.iter().find_map(|&(place, word)| {
                options.get(place).copied().filter(|given| !is(given, word))
            });
            let (given, what) = match strange {
                Some(given) => (given, "option"),
                None => (options.first().copied().unwrap_or_default(), "incomplete option"),
            };
            bad(given, what, "QUEUE ms TICKET ticket NOTIFY channel, in this order")
        }
    }
}

/// The number of a registration.
fn registration(bytes: &[u8]) -> Result<u64, Refusal> {
    match number(bytes) {
        Some(number) if (1..=REGISTRATION_MAX).contains(&number) => Ok(number),
        Some(_) | None => Err(Refusal::BadArg {
            given: bytes.to_vec(),
            what: "number",
            allowed: "a whole number from 1 to 9007199254740991",
        }),
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

/// Whether this is `SHARED`, and was read already.
fn is_repeated(mode: Mode, name: &[u8]) -> bool {
    mode.is_shared() && is(name, keyword::SHARED)
}

/// Reads the options after the ttl of `LOCK.EXTEND`.
///
/// # Errors
/// `BADARG`.
pub fn extend_options<'a>(options: &[&'a [u8]]) -> Result<(Mode, Fencing<'a>), Refusal> {
    let (mode, rest) = mode(options);
    match rest {
        [name, ..] if is_repeated(mode, name) => Err(bad_extension(name, "repeated option")),
        options => Ok((mode, fencing(options)?)),
    }
}

fn bad_extension(given: &[u8], what: &'static str) -> Refusal {
    let allowed = "[SHARED] [FENCE f [REPAIR [LABEL label]]], in this order";
    Refusal::BadArg { given: given.to_vec(), what, allowed }
}

/// Reads `[FENCE f [REPAIR [LABEL label]]]`.
fn fencing<'a>(options: &[&'a [u8]]) -> Result<Fencing<'a>, Refusal> {
    let bad = |given: &[u8]| bad_extension(given, "option");
    match options {
        [] => Ok(Fencing::Keep),
        [name, number] if is(name, keyword::FENCE) => Ok(Fencing::Raise(fence(number)?)),
        [name, number, repair] if is(name, keyword::FENCE) && is(repair, keyword::REPAIR) => {
            Ok(Fencing::Repair { fence: fence(number)?, label: b"" })
        }
        [name, number, repair, word, text]
            if is(name, keyword::FENCE)
                && is(repair, keyword::REPAIR)
                && is(word, keyword::LABEL) =>
        {
            Ok(Fencing::Repair { fence: fence(number)?, label: label_text(text)? })
        }
        [name, _, repair, .., last] if is(name, keyword::FENCE) && is(repair, keyword::REPAIR) => {
            Err(bad(last))
        }
        [name, _, last, ..] if is(name, keyword::FENCE) => Err(bad(last)),
        [name, ..] => Err(bad(name)),
    }
}

/// Reads a whole number in decimal digits, without sign or space.
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
    Ok(Claim { token, ttl, mode: Mode::Exclusive })
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
    use crate::engine::TICKET_ID_MAX;
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
    fn options_are_refused_by_name() {
        let parse = |options: &[&'static [u8]]| {
            refusal(acquire(&[&[&b"t"[..], b"5"], options].concat(), LIMITS))
        };
        assert_eq!(parse(&[b"label", b"me"]), "");
        let allowed = "allowed: SHARED, LABEL label, and WAIT ms or QUEUE ms TICKET ticket NOTIFY \
             channel [GRANT number], each once";
        assert_eq!(parse(&[b"NOW"]), format!("BADARG option 'NOW'; {allowed}"));
        assert_eq!(parse(&[b"LABEL"]), format!("BADARG option without a value 'LABEL'; {allowed}"));
        assert!(parse(&[b"LABEL", &[b'x'; 129]]).starts_with("BADARG label 'xxx"));
        assert!(parse(&[b"LABEL", b""]).starts_with("BADARG label ''"));
    }

    #[test]
    fn waits_are_read_in_any_order_and_once() {
        let parse = |line: &str| {
            let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            acquire_options(&args).map_err(|refusal| refusal.to_string()).map(|options| {
                let mode = if options.mode.is_shared() { "reader " } else { "" };
                let label = format!("{mode}{}", options.label.escape_ascii());
                match options.waiting {
                    WaitMode::Not => format!("{label} not"),
                    WaitMode::Block(wait) => format!("{label} {wait}"),
                    WaitMode::Queue(Queue { wait, ticket, channel, grant }) => {
                        let grant = grant.map(|number| format!(" {number}")).unwrap_or_default();
                        format!("{label} {wait} {ticket} {}{grant}", channel.escape_ascii())
                    }
                }
            })
        };
        assert_eq!(parse("LABEL me").unwrap(), "me not");
        assert_eq!(parse("wait 0").unwrap(), " 0 ms");
        assert_eq!(parse("shared").unwrap(), "reader  not");
        for line in ["SHARED LABEL me WAIT 7", "LABEL me SHARED WAIT 7", "WAIT 7 LABEL me SHARED"] {
            assert_eq!(parse(line).unwrap(), "reader me 7 ms", "{line}");
        }
        assert_eq!(parse("LABEL me WAIT 86400000").unwrap(), "me 86400000 ms");
        let queued = "QUEUE 5 TICKET 7-x NOTIFY here";
        assert_eq!(parse(queued).unwrap(), " 5 ms 7-x here");
        assert_eq!(parse(&format!("{queued} LABEL me")).unwrap(), "me 5 ms 7-x here");
        assert_eq!(parse(&format!("{queued} GRANT 3 LABEL me")).unwrap(), "me 5 ms 7-x here 3");
        assert_eq!(parse(&format!("LABEL me {queued}")).unwrap(), "me 5 ms 7-x here");
        for (bad, what) in [
            ("WAIT", "BADARG option without a value 'WAIT'; "),
            ("WAIT 86400001", "BADARG wait '86400001'; "),
            ("WAIT -1", "BADARG wait '-1'; "),
            ("WAIT 1 WAIT 1", "BADARG second way to wait 'WAIT'; "),
            ("LABEL a LABEL b", "BADARG repeated option 'LABEL'; "),
            ("SHARED SHARED", "BADARG repeated option 'SHARED'; "),
            ("WAIT 1 QUEUE 5 TICKET 7-x NOTIFY here", "BADARG second way to wait 'QUEUE'; "),
            ("QUEUE 5 TICKET 7-x NOTIFY here WAIT 1", "BADARG second way to wait 'WAIT'; "),
            ("QUEUE 5", "BADARG incomplete option 'QUEUE'; "),
            ("QUEUE 5 NOTIFY here TICKET 7-x", "BADARG option 'NOTIFY'; "),
            ("QUEUE 5 TICKET 7 NOTIFY here", "BADARG ticket '7'; allowed: start-id, with "),
            ("QUEUE 5 TICKET 7-x NOTIFY ", "BADARG channel ''; allowed: 1 to 256 bytes"),
            ("QUEUE 5 TICKET 7-x NOTIFY here GRANT 0", "BADARG number '0'; "),
            ("QUEUE 5 TICKET 7-x NOTIFY here LABEL me GRANT 1", "BADARG option 'GRANT'; "),
            ("QUEUE x TICKET 7-x NOTIFY here", "BADARG wait 'x'; "),
        ] {
            let refusal = parse(bad).unwrap_err();
            assert!(refusal.starts_with(what), "{bad}: {refusal}");
        }
        let words: Vec<&[u8]> = queued.split(' ').map(str::as_bytes).collect();
        assert_eq!(release_options(&[]), Ok(Onward::Unsaid));
        assert_eq!(release_options(&[b"handover"]), Ok(Onward::HandedOver));
        let Ok(Onward::Queue(mode, queue)) = release_options(&words) else { panic!("a ticket") };
        assert_eq!((mode, queue.channel), (Mode::Exclusive, &b"here"[..]));
        let reads = [&[&b"shared"[..]], &words[..]].concat();
        assert_eq!(release_options(&reads), Ok(Onward::Queue(Mode::Shared, queue)));
        let granted = [&words[..], &[b"GRANT", b"1"]].concat();
        assert!(refusal(release_options(&granted)).starts_with("BADARG option of LOCK.ACQUIRE"));
        let alone = refusal(release_options(&[b"SHARED"]));
        assert!(alone.starts_with("BADARG lone option 'SHARED'"), "{alone}");
        let twice = refusal(release_options(&[b"SHARED", b"SHARED"]));
        assert!(twice.starts_with("BADARG repeated option 'SHARED'"), "{twice}");
        let late = [&words[..2], &[b"SHARED"], &words[2..]].concat();
        assert!(refusal(release_options(&late)).starts_with("BADARG option 'SHARED'"));
        let cut = refusal(release_options(&words[..4]));
        assert!(cut.starts_with("BADARG incomplete option 'QUEUE'"), "{cut}");
        let more = [&words[..], &[b"LABEL"]].concat();
        assert!(refusal(release_options(&more)).starts_with("BADARG argument at the end 'LABEL'"));
        assert!(refusal(release_options(&[b"WAIT", b"1"])).starts_with("BADARG option 'WAIT'"));
    }

    #[test]
    fn extends_raise_or_repair() {
        let parse = |options: &[&'static [u8]]| {
            extend(&[&[&b"t"[..], b"5"], options].concat(), LIMITS).map(|extend| extend.fencing)
        };
        let mode = |options: &[&'static [u8]]| {
            extend(&[&[&b"t"[..], b"5"], options].concat(), LIMITS).map(|extend| extend.claim.mode)
        };
        assert_eq!(mode(&[b"shared"]), Ok(Mode::Shared));
        assert_eq!(mode(&[b"SHARED", b"FENCE", b"7", b"REPAIR"]), Ok(Mode::Shared));
        assert_eq!(mode(&[b"FENCE", b"7"]), Ok(Mode::Exclusive));
        assert!(refusal(mode(&[b"FENCE", b"7", b"SHARED"])).contains("'SHARED'"));
        let twice = refusal(mode(&[b"SHARED", b"shared"]));
        assert!(twice.starts_with("BADARG repeated option 'shared'"), "{twice}");
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

    /// The owned parts of a request.
    #[derive(Clone, Debug)]
    struct Brought {
        key: Vec<u8>,
        token: Vec<u8>,
        label: Vec<u8>,
        channel: Vec<u8>,
        ticket: Ticket,
        ttl: Millis,
        wait: Millis,
        fence: Fence,
    }

    fn bytes(length: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), length)
    }

    fn brought() -> impl Strategy<Value = Brought> {
        let texts = (bytes(0..=40), bytes(1..=64), bytes(1..=LABEL_MAX), bytes(1..=CHANNEL_MAX));
        let ticket = (1..=Fence::MAX.get(), bytes(1..=TICKET_ID_MAX));
        let numbers = (1..=LIMITS.ttl.get(), 0..=WAIT_MAX.get(), 1..=Fence::MAX.get());
        (texts, ticket, numbers).prop_map(|(texts, (start, id), (ttl, wait, fence))| Brought {
            key: texts.0,
            token: texts.1,
            label: texts.2,
            channel: texts.3,
            ticket: Ticket::new(start, &id).unwrap(),
            ttl: Millis::new(ttl),
            wait: Millis::new(wait),
            fence: Fence::new(fence).unwrap(),
        })
    }

    /// A request of each kind, made of these parts.
    fn requests(brought: &Brought) -> Vec<Request<'_>> {
        let Brought { ttl, wait, fence, .. } = *brought;
        let (token, channel) = (&brought.token[..], &brought.channel[..]);
        let queue = Queue { wait, ticket: brought.ticket.clone(), channel, grant: None };
        let granted = Queue { grant: Some(fence.get()), ..queue.clone() };
        let queues = [queue.clone(), granted].map(WaitMode::Queue);
        let waits = [WaitMode::Not, WaitMode::Block(wait)].into_iter().chain(queues);
        let label = &brought.label[..];
        let repairs = [label, b""].map(|label| Fencing::Repair { fence, label });
        let fences = [Fencing::Keep, Fencing::Raise(fence), repairs[0], repairs[1]];
        let kinds = [(Mode::Exclusive, label), (Mode::Shared, label), (Mode::Shared, b"")];
        let acquires = waits.flat_map(|waiting| {
            kinds.map(|(mode, label)| Request::Acquire {
                token,
                ttl,
                mode,
                label,
                waiting: waiting.clone(),
            })
        });
        let modes = [Mode::Exclusive, Mode::Shared];
        let extends = fences
            .into_iter()
            .flat_map(|fencing| modes.map(|mode| Request::Extend { token, ttl, mode, fencing }));
        let queues = modes.map(|mode| Onward::Queue(mode, queue.clone()));
        let onwards = [Onward::Unsaid, Onward::HandedOver].into_iter().chain(queues);
        let releases = onwards.map(|onward| Request::Release { token, onward });
        let rest = [Request::Raise { token, fence }, Request::Fence, Request::Info];
        acquires.chain(extends).chain(releases).chain(rest).collect()
    }

    proptest! {
        #[test]
        fn what_is_packed_is_parsed(brought in brought()) {
            for request in requests(&brought) {
                let packed = request.pack(&brought.key);
                let (args, length) = crate::wire::resp::unpack(&packed).unwrap().unwrap();
                prop_assert_eq!(length, packed.len());
                let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
                let parsed = Request::parse(&args, LIMITS).unwrap().unwrap();
                prop_assert_eq!(parsed, (&brought.key[..], request));
            }
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
            let _ = args.first().map(|bytes| fence(bytes));
        }
    }
}
