//! Commands as packed bytes, and replies as votes.
//!
//! A command is packed once and sent to all nodes from the same bytes. A release is marked: it is
//! the one command that must reach a node even after the connection broke, and being harmless to
//! repeat (its token is used for one acquisition only) it is sent again on the next connection.
//! A release that also puts a ticket in line is repeated without that: a ticket belongs to the
//! connection over which it was put there.

use std::sync::Arc;
use std::time::Duration;

use super::reply::Reply;
use super::vote::Vote;
use crate::engine::{Fence, Millis};
use crate::wire::code::{self, Meaning};
use crate::wire::spec::NOT_IN_LINE;

/// The length of a token, in bytes.
pub const TOKEN_LENGTH: usize = 20;

/// One command, ready to be sent.
#[derive(Clone, Debug)]
pub struct Packet {
    bytes: Arc<[u8]>,
    /// What is sent in place of `bytes` after the node has refused them, or the connection broke.
    plain: Option<Arc<[u8]>>,
    care: Care,
    part: Option<Part>,
}

/// By which an acquisition is known to a node's line: of its token, which is random.
pub(super) type Claim = u64;

/// What a command is to an acquisition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) claim: Claim,
    /// For how long the node may hold something by it; `None`: it takes that back.
    pub(super) asks_for: Option<Duration>,
}

impl Part {
    fn of(token: &[u8], asks_for: Option<Millis>) -> Option<Part> {
        let claim = u64::from_be_bytes(*token.first_chunk()?);
        Some(Part { claim, asks_for: asks_for.map(Duration::from) })
    }
}

/// What is asked of a node's line: the ticket, where to call it, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// How long the ticket stays in line unless it is put there again.
    pub length: Millis,
    /// The ticket.
    pub ticket: &'a [u8],
    /// The channel to publish on when it comes first.
    pub channel: &'a [u8],
}

/// How much is done to have a command carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It is withdrawn if the caller has gone before it was written.
    Awaited,
    /// It is written, whether somebody waits or not.
    Once,
    /// It is written, and again on the next connection if the old one broke before the answer. A
    /// node that puts it off is sent it again for this long.
    UntilAnswered(Duration),
}

impl Packet {
    /// The packed bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much is done to have it carried out.
    pub const fn care(&self) -> Care {
        self.care
    }

    /// The same command without what a node may refuse or a broken connection may undo, if it has
    /// such a part.
    pub(super) fn plain(&self) -> Option<Packet> {
        let bytes = Arc::clone(self.plain.as_ref()?);
        let part = self.part.map(|part| Part { asks_for: None, ..part });
        Some(Packet { bytes, plain: None, care: self.care, part })
    }

    /// The packed bytes, by which equal packets are known.
    pub(super) fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.bytes)
    }

    /// What it is to an acquisition. A release without a part is owed in any case.
    pub(super) const fn part(&self) -> Option<Part> {
        self.part
    }

    fn asking(self, token: &[u8], length: Millis) -> Packet {
        Packet { part: Part::of(token, Some(length)), ..self }
    }

    /// The same command, owed whether the node was asked for anything with the token or not: for
    /// tokens that came from elsewhere.
    pub(super) fn of_a_stranger(self) -> Packet {
        Packet { part: None, ..self }
    }

    /// The same command, written even if nobody waits for the answer.
    #[must_use]
    pub fn unattended(self) -> Packet {
        Packet { care: Care::Once, ..self }
    }

    /// Any command.
    pub fn new(args: &[&[u8]]) -> Packet {
        let length: usize = args.iter().map(|arg| arg.len() + 16).sum();
        let mut bytes = Vec::with_capacity(16 + length);
        push_number(&mut bytes, b'*', args.len());
        for arg in args {
            push_number(&mut bytes, b'$', arg.len());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        Packet { bytes: Arc::from(bytes), plain: None, care: Care::Awaited, part: None }
    }

    /// `LOCK.ACQUIRE key token ttl [LABEL text]`
    pub fn acquire(key: &[u8], token: &[u8], ttl: Millis, label: &[u8]) -> Packet {
        let (length, ttl) = (ttl, Digits::new(ttl.get()));
        let args = [b"LOCK.ACQUIRE", key, token, ttl.as_bytes(), b"LABEL", label];
        Packet::new(&args[..if label.is_empty() { 4 } else { 6 }]).asking(token, length)
    }

    /// `LOCK.ACQUIRE key token ttl [LABEL text] QUEUE ms TICKET ticket NOTIFY channel`
    ///
    /// Written even if nobody waits for the answer: the token of a ticket in line must be one that
    /// was sent, or a release could miss it.
    pub fn acquire_in_line(
        key: &[u8],
        token: &[u8],
        ttl: Millis,
        label: &[u8],
        queue: Queue<'_>,
    ) -> Packet {
        let (digits, length) = (Digits::new(ttl.get()), Digits::new(queue.length.get()));
        let mut args = vec![b"LOCK.ACQUIRE", key, token, digits.as_bytes()];
        if !label.is_empty() {
            args.extend([b"LABEL", label]);
        }
        args.extend(queue.args(&length));
        Packet::new(&args).unattended().asking(token, ttl.max(queue.length))
    }

    /// `LOCK.RELEASE key token`, owed to the node if it was asked for something with the token.
    pub fn release(key: &[u8], token: &[u8], ttl: Millis) -> Packet {
        let packet = Packet::new(&[b"LOCK.RELEASE", key, token]);
        let part = Part::of(token, None);
        Packet { care: Care::UntilAnswered(ttl.into()), part, ..packet }
    }

    /// `LOCK.RELEASE key token QUEUE ms TICKET ticket NOTIFY channel`. Repeated, and sent again to
    /// a node that refuses it, without the part that begins with `QUEUE`.
    pub fn release_into_line(key: &[u8], token: &[u8], ttl: Millis, queue: Queue<'_>) -> Packet {
        let plain = Packet::release(key, token, ttl);
        let length = Digits::new(queue.length.get());
        let mut args = vec![b"LOCK.RELEASE", key, token];
        args.extend(queue.args(&length));
        let packet = Packet { plain: Some(plain.bytes), care: plain.care, ..Packet::new(&args) };
        packet.asking(token, queue.length)
    }

    /// `LOCK.EXTEND key token ttl [FENCE f]`
    pub fn extend(key: &[u8], token: &[u8], ttl: Millis, fence: Fence) -> Packet {
        let (ttl, number) = (Digits::new(ttl.get()), Digits::new(fence.get()));
        let args = [b"LOCK.EXTEND", key, token, ttl.as_bytes(), b"FENCE", number.as_bytes()];
        Packet::new(&args[..if fence == Fence::ZERO { 4 } else { 6 }])
    }

    /// `LOCK.EXTEND key token ttl FENCE f REPAIR [LABEL text]`
    pub fn repair(key: &[u8], token: &[u8], ttl: Millis, fence: Fence, label: &[u8]) -> Packet {
        let (digits, fence) = (Digits::new(ttl.get()), Digits::new(fence.get()));
        let (digits, fence) = (digits.as_bytes(), fence.as_bytes());
        let mut args = vec![b"LOCK.EXTEND", key, token, digits, b"FENCE", fence, b"REPAIR"];
        if !label.is_empty() {
            args.extend([b"LABEL", label]);
        }
        Packet::new(&args).asking(token, ttl)
    }

    /// `LOCK.FENCE key token f`
    pub fn raise(key: &[u8], token: &[u8], fence: Fence) -> Packet {
        Packet::new(&[b"LOCK.FENCE", key, token, Digits::new(fence.get()).as_bytes()])
    }

    /// `LOCK.FENCE key`
    pub fn fence(key: &[u8]) -> Packet {
        Packet::new(&[b"LOCK.FENCE", key])
    }

    /// `LOCK.INFO key`
    pub fn info(key: &[u8]) -> Packet {
        Packet::new(&[b"LOCK.INFO", key])
    }
}

impl<'a> Queue<'a> {
    fn args<'b>(&self, length: &'b Digits) -> [&'b [u8]; 6]
    where
        'a: 'b,
    {
        [b"QUEUE", length.as_bytes(), b"TICKET", self.ticket, b"NOTIFY", self.channel]
    }
}

/// A number in decimal, without an allocation.
struct Digits {
    digits: [u8; 20],
    start: usize,
}

impl Digits {
    fn new(mut number: u64) -> Digits {
        let mut digits = Digits { digits: [b'0'; 20], start: 20 };
        loop {
            digits.start -= 1;
            digits.digits[digits.start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

fn push_number(bytes: &mut Vec<u8>, kind: u8, number: usize) {
    bytes.push(kind);
    bytes.extend_from_slice(Digits::new(number as u64).as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// What a node means by its reply to an ACQUIRE, or to a raise.
pub fn fence_vote(reply: &Reply, nil: Vote) -> Vote {
    match reply {
        Reply::Integer(0) => Vote::HELD,
        Reply::Integer(number) => match u64::try_from(*number).ok().and_then(Fence::new) {
            Some(fence) => Vote::Granted(fence),
            None => Vote::Garbled("a fence out of bounds".into()),
        },
        Reply::Nil => nil,
        Reply::Error(text) => error_vote(text),
        Reply::Text(_) | Reply::List(_) | Reply::Push(_) => {
            Vote::Garbled("a reply of another kind".into())
        }
    }
}

/// What a node means by its reply to an ACQUIRE.
pub fn acquire_vote(reply: &Reply) -> Vote {
    match reply {
        Reply::Integer(0) => Vote::Garbled("a grant without a fence".into()),
        reply => fence_vote(reply, Vote::HELD),
    }
}

/// What a node means by its reply to an EXTEND.
pub fn extend_vote(reply: &Reply) -> Vote {
    match reply {
        Reply::Integer(2) => Vote::Provisional,
        reply => claim_vote(reply),
    }
}

/// What a node means by its reply to a RELEASE, and to an EXTEND that it did not carry out
/// provisionally.
pub fn claim_vote(reply: &Reply) -> Vote {
    match reply {
        Reply::Integer(1) => Vote::Confirmed,
        Reply::Integer(0) => Vote::HELD,
        Reply::Nil => Vote::NotHeld,
        Reply::Error(text) => error_vote(text),
        Reply::Integer(_) | Reply::Text(_) | Reply::List(_) | Reply::Push(_) => {
            Vote::Garbled("a reply of another kind".into())
        }
    }
}

/// Whether a node's reply to `LOCK.RELEASE ... QUEUE` says that the ticket does not stand in line.
pub(super) fn has_no_place(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(_) | Reply::Integer(NOT_IN_LINE))
}

/// What a node means by an error.
pub fn error_vote(text: &str) -> Vote {
    match code::meaning_of(text) {
        Meaning::Later => Vote::Unavailable(text.into()),
        Meaning::Quarantine => Vote::Quarantined { left: millis_in(text), text: text.into() },
        Meaning::Full => Vote::NoPlace(text.into()),
        Meaning::Forbidden => Vote::NoPermission(text.into()),
        Meaning::WrongType => Vote::WrongType,
        Meaning::Never if code::is_unknown_command(text) => Vote::ModuleMissing,
        Meaning::Never => Vote::Refused(moved(text).unwrap_or_else(|| text.into())),
    }
}

/// `MOVED slot host:port` in words: a node of a cluster answers with where the lock is.
fn moved(text: &str) -> Option<Arc<str>> {
    let mut words = text.strip_prefix(code::MOVED.word)?.strip_prefix(' ')?.split(' ');
    let (slot, place) = (words.next()?, words.next()?);
    Some(format!("its cluster has this lock, in slot {slot}, on {place}: give that node").into())
}

/// The number before the last ` ms` in a text.
fn millis_in(text: &str) -> Option<Duration> {
    let before = &text[..text.rfind(" ms")?];
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().map(Duration::from_millis)
}

/// What a node tells about a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// `free`, `held` or `reserved`.
    pub state: String,
    /// The highest fence issued.
    pub fence: Fence,
    /// How long the lease lasts unless it is extended.
    pub left: Option<Duration>,
    /// Who holds it. What is not UTF-8 in it shows as `U+FFFD`.
    pub label: Option<String>,
    /// The label as it is, where it is not UTF-8.
    pub raw_label: Option<Vec<u8>>,
    /// How long it has been held.
    pub held_for: Option<Duration>,
    /// How many wait for it in line.
    pub waiters: u64,
    /// How long the first of them has been waiting.
    pub first_waiting: Option<Duration>,
    /// For how much longer the node grants nothing.
    pub quarantine_left: Option<Duration>,
    /// Why the node grants nothing, the code word first; `None` if it does.
    pub node_state: Option<String>,
}

/// Reads the reply to `LOCK.INFO`.
///
/// # Errors
/// The vote that it amounts to, if it is not a description of a lock.
pub fn lock_info(reply: &Reply) -> Result<LockInfo, Vote> {
    let fields = match reply {
        Reply::List(fields) => fields,
        Reply::Error(text) => return Err(error_vote(text)),
        Reply::Nil | Reply::Integer(_) | Reply::Text(_) | Reply::Push(_) => {
            return Err(Vote::Garbled("a reply of another kind".into()));
        }
    };
    let mut info = LockInfo::default();
    for pair in fields.chunks_exact(2) {
        let Reply::Text(name) = &pair[0] else { continue };
        let length = number(&pair[1]).map(Duration::from_millis);
        match name.as_slice() {
            b"state" => info.state = text(&pair[1]).unwrap_or_default(),
            b"fence" => info.fence = number(&pair[1]).and_then(Fence::new).unwrap_or_default(),
            b"ttl_left_ms" => info.left = length,
            b"label" => {
                info.label = text(&pair[1]).filter(|label| !label.is_empty());
                info.raw_label = bytes_of_no_text(&pair[1]);
            }
            b"held_for_ms" => info.held_for = length,
            b"waiters" => info.waiters = number(&pair[1]).unwrap_or_default(),
            b"first_waiting_ms" => info.first_waiting = length,
            b"quarantine_left_ms" => info.quarantine_left = length,
            b"node_state" => info.node_state = text(&pair[1]),
            _ => {}
        }
    }
    if info.state.is_empty() {
        return Err(Vote::Garbled("a description without a state".into()));
    }
    Ok(info)
}

fn number(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Integer(number) => u64::try_from(*number).ok(),
        Reply::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        Reply::Nil | Reply::List(_) | Reply::Error(_) | Reply::Push(_) => None,
    }
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Reply::Nil | Reply::Integer(_) | Reply::List(_) | Reply::Error(_) | Reply::Push(_) => None,
    }
}

/// The bytes of what is not UTF-8.
fn bytes_of_no_text(reply: &Reply) -> Option<Vec<u8>> {
    match reply {
        Reply::Text(text) if std::str::from_utf8(text).is_err() => Some(text.clone()),
        Reply::Text(_) | Reply::Nil | Reply::Integer(_) => None,
        Reply::List(_) | Reply::Error(_) | Reply::Push(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Extension;
    use proptest::prelude::*;

    #[test]
    fn commands_are_packed_as_the_server_reads_them() {
        let packet = Packet::acquire(b"k", b"\0\r\n", Millis::new(30_000), b"");
        let expected = b"*4\r\n$12\r\nLOCK.ACQUIRE\r\n$1\r\nk\r\n$3\r\n\0\r\n\r\n$5\r\n30000\r\n";
        assert_eq!(packet.bytes(), expected);
        let fence = Fence::new(7).unwrap();
        let repair = Packet::repair(b"k", b"t", Millis::new(5), fence, b"");
        assert!(repair.bytes().ends_with(b"$5\r\nFENCE\r\n$1\r\n7\r\n$6\r\nREPAIR\r\n"));
        let labelled = Packet::repair(b"k", b"t", Millis::new(5), fence, b"me");
        assert!(labelled.bytes().ends_with(b"$6\r\nREPAIR\r\n$5\r\nLABEL\r\n$2\r\nme\r\n"));
    }

    #[test]
    fn every_command_is_one_that_the_server_reads() {
        use crate::wire::{request, spec};
        let (ttl, fence) = (Millis::new(5), Fence::new(7).unwrap());
        let packets = [
            Packet::acquire(b"k", b"t", ttl, b"me"),
            Packet::release(b"k", b"t", ttl),
            Packet::extend(b"k", b"t", ttl, fence),
            Packet::repair(b"k", b"t", ttl, fence, b""),
            Packet::raise(b"k", b"t", fence),
            Packet::fence(b"k"),
            Packet::info(b"k"),
        ];
        for packet in packets {
            let (reply, _) = super::super::reply::read(packet.bytes()).unwrap().unwrap();
            let Reply::List(args) = reply else { panic!("{reply:?}") };
            let args: Vec<String> = args.iter().map(|arg| text(arg).unwrap()).collect();
            let command = spec::COMMANDS.iter().find(|command| command.name == args[0]).unwrap();
            let least = command.arity.unsigned_abs() as usize;
            assert!(args.len() == least || (command.arity < 0 && args.len() > least), "{args:?}");
            let rest: Vec<&[u8]> = args.iter().skip(2).map(String::as_bytes).collect();
            let limits = request::Limits { ttl, token: 64 };
            match command.name {
                "LOCK.ACQUIRE" => assert_eq!(request::acquire(&rest, limits).unwrap().label, b"me"),
                "LOCK.EXTEND" => drop(request::extend(&rest, limits).unwrap()),
                _ => {}
            }
        }
    }

    #[test]
    fn replies_to_acquire_are_fences_or_nothing() {
        let fence = Fence::new(3).unwrap();
        assert_eq!(acquire_vote(&Reply::Integer(3)), Vote::Granted(fence));
        assert_eq!(acquire_vote(&Reply::Nil), Vote::HELD);
        for garbled in [0, -1, i64::MAX] {
            let vote = acquire_vote(&Reply::Integer(garbled));
            assert!(matches!(vote, Vote::Garbled(_)), "{garbled}");
        }
        assert_eq!(fence_vote(&Reply::Integer(0), Vote::NotHeld), Vote::HELD);
    }

    #[test]
    fn a_lease_that_is_kept_provisionally_is_no_confirmation() {
        assert_eq!(extend_vote(&Reply::Integer(1)), Vote::Confirmed);
        assert_eq!(extend_vote(&Reply::Integer(2)), Vote::Provisional);
        assert_eq!(Vote::Provisional.extension(), Extension::Provisional);
        for garbled in [-1, 3, 10] {
            assert!(matches!(extend_vote(&Reply::Integer(garbled)), Vote::Garbled(_)));
        }
        assert!(matches!(claim_vote(&Reply::Integer(2)), Vote::Garbled(_)), "a release does not");
    }

    #[test]
    fn errors_are_told_apart_by_their_code_word() {
        let quarantine =
            "QUARANTINE the node restarted uncleanly and grants nothing for 1234 ms more";
        let Vote::Quarantined { left, .. } = error_vote(quarantine) else { panic!() };
        assert_eq!(left, Some(Duration::from_millis(1_234)));
        assert_eq!(error_vote("ERR unknown command 'LOCK.ACQUIRE'"), Vote::ModuleMissing);
        assert_eq!(error_vote("WRONGTYPE x"), Vote::WrongType);
        assert!(matches!(error_vote("NOPERM x"), Vote::NoPermission(_)));
        assert!(matches!(error_vote("BADTTL x"), Vote::Refused(_)));
        assert!(matches!(error_vote(""), Vote::Refused(_)));
        for later in ["LOADING x", "READONLY x", "STATEFILE x", "NOREPLICAS x", "MISCONF x"] {
            assert!(matches!(error_vote(later), Vote::Unavailable(_)), "{later}");
        }
    }

    /// It was shown as the server says it, in the words of its protocol.
    #[test]
    fn a_node_of_a_cluster_is_told_of_in_words() {
        let Vote::Refused(text) = error_vote("MOVED 3999 10.0.0.7:6381") else { panic!() };
        assert_eq!(
            &*text,
            "its cluster has this lock, in slot 3999, on 10.0.0.7:6381: give that node"
        );
        assert_eq!(error_vote("MOVED"), Vote::Refused("MOVED".into()));
    }

    #[test]
    fn a_description_is_read_from_its_fields() {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec());
        let reply = Reply::List(vec![
            text("state"),
            text("held"),
            text("fence"),
            Reply::Integer(9),
            text("ttl_left_ms"),
            Reply::Integer(1_500),
            text("label"),
            text("job"),
            text("new field"),
            Reply::Nil,
        ]);
        let info = lock_info(&reply).unwrap();
        assert_eq!((info.state.as_str(), info.fence.get()), ("held", 9));
        assert_eq!(info.left, Some(Duration::from_millis(1_500)));
        assert_eq!(info.label.as_deref(), Some("job"));
        assert!(lock_info(&Reply::List(vec![])).is_err());
    }

    proptest! {
        #[test]
        fn no_error_text_makes_the_reading_panic(text in ".{0,60}", left in 0u64..10) {
            let _ = error_vote(&text);
            let _ = error_vote(&format!("QUARANTINE {text} {left} ms {text}"));
        }

        #[test]
        fn numbers_are_packed_as_the_standard_library_writes_them(number: u64) {
            let (packed, text) = (Digits::new(number), number.to_string());
            prop_assert_eq!(packed.as_bytes(), text.as_bytes());
        }
    }
}
