//! RESP: replies and commands as bytes, written and read in one place.
//!
//! A node may send garbage, and a reader that trusts a length may allocate any amount. Here every
//! length and the nesting have limits, and nothing is allocated before its bytes have arrived. The
//! reader takes both RESP2 and RESP3, and distinguishes a push, which answers no command, from a
//! reply.

use std::borrow::Cow;

/// The longest string that is kept, in bytes, and so the longest name of a lock: far above any
/// reply of these commands. A longer one is skipped while it is read, and the bytes behind it are
/// read as usual.
pub const STRING_MAX: usize = 1 << 16;
/// How much of one reply is kept, in bytes: a page of SCAN with the longest names.
const REPLY_MAX: usize = 1 << 27;
/// The most elements of an array: a page of SCAN has some hundreds.
const ELEMENTS_MAX: usize = 1 << 16;
/// The longest line of a simple string, an error or a number.
const LINE_MAX: usize = 1 << 13;
/// How deep arrays may nest.
const DEPTH_MAX: usize = 8;

/// What a node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A number.
    Integer(i64),
    /// Bytes, and simple strings.
    Text(Cow<'static, [u8]>),
    /// A string that is too long to be kept: its length in bytes.
    TooLong(u64),
    /// A list.
    List(Vec<Reply>),
    /// Names and values. In RESP2 they alternate in a list.
    Map(Vec<(Reply, Reply)>),
    /// An error, without the `-`.
    Error(String),
    /// A message that answers no command: its kind, and its contents.
    Push(Vec<Reply>),
}

/// Bytes that are not RESP, or exceed a limit: the connection can no longer be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage(pub &'static str);

/// Reads one reply from the start of `bytes`. Returns it with its length in bytes, or `None` while
/// it is incomplete.
///
/// # Errors
/// [`Garbage`] as soon as the bytes cannot become a reply.
pub fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbage> {
    let (mut partial, mut at) = (Partial::default(), 0);
    Ok(partial.go_on(bytes, &mut at)?.map(|reply| (reply, at)))
}

/// Reads replies from bytes that come in pieces, and keeps no more of them than it needs.
#[derive(Debug, Default)]
pub struct Reader {
    unread: Vec<u8>,
    at: usize,
    partial: Partial,
}

impl Reader {
    /// Takes the next bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// The bytes that have not been read.
    pub fn rest(&self) -> &[u8] {
        &self.unread[self.at..]
    }

    /// The next reply; `None` while it is incomplete.
    ///
    /// # Errors
    /// [`Garbage`] as soon as the bytes cannot become a reply.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, Garbage> {
        let reply = self.partial.go_on(&self.unread, &mut self.at)?;
        if reply.is_none() {
            self.unread.drain(..self.at);
            self.at = 0;
        }
        Ok(reply)
    }
}

/// What has been read of a reply so far.
#[derive(Debug)]
struct Partial {
    /// The arrays that are not complete, the outermost first.
    open: Vec<Aggregate>,
    passed_over: Option<PassedOver>,
    /// How much more of the reply may be kept.
    room: usize,
}

/// A string that is too long, while it is read.
#[derive(Debug)]
struct PassedOver {
    length: u64,
    /// How much of it is still to come.
    left: u64,
}

#[derive(Debug)]
struct Aggregate {
    kind: AggregateKind,
    /// How many elements are still to come.
    left: usize,
    parts: Vec<Reply>,
}

#[derive(Clone, Copy, Debug)]
enum AggregateKind {
    List,
    Map,
    Push,
}

impl Aggregate {
    fn whole(self) -> Reply {
        match self.kind {
            AggregateKind::List => Reply::List(self.parts),
            AggregateKind::Push => Reply::Push(self.parts),
            AggregateKind::Map => {
                let mut parts = self.parts.into_iter();
                let pairs = std::iter::from_fn(|| parts.next().zip(parts.next()));
                Reply::Map(pairs.collect())
            }
        }
    }
}

impl Default for Partial {
    fn default() -> Partial {
        Partial { open: Vec::new(), passed_over: None, room: REPLY_MAX }
    }
}

impl Partial {
    /// Continues from `at`, as far as the bytes go.
    fn go_on(&mut self, bytes: &[u8], at: &mut usize) -> Result<Option<Reply>, Garbage> {
        loop {
            let read = match self.passed_over {
                Some(_) => self.pass_over(bytes, at)?,
                None => self.begin(bytes, at)?,
            };
            let Some(reply) = read else { return Ok(None) };
            if let Some(whole) = reply.and_then(|reply| self.close(reply)) {
                self.room = REPLY_MAX;
                return Ok(Some(whole));
            }
        }
    }

    /// Reads a value, or the head of one that has elements or is too long: then the inner option is
    /// `None`. The outer one is `None` while the value is incomplete.
    fn begin(&mut self, bytes: &[u8], at: &mut usize) -> Result<Option<Option<Reply>>, Garbage> {
        if self.open.len() > DEPTH_MAX {
            return Err(Garbage("arrays nested too deeply"));
        }
        let Some(&kind) = bytes.get(*at) else { return Ok(None) };
        if !b"+-:$*%~_#,>(=!".contains(&kind) {
            return Err(Garbage("not a Redis reply"));
        }
        if kind == b'>' && !self.open.is_empty() {
            return Err(Garbage("a push inside a reply"));
        }
        let mut behind = *at + 1;
        let Some(line) = line(bytes, &mut behind)? else { return Ok(None) };
        let read = match kind {
            b'+' | b',' | b'(' => Some(Reply::Text(Cow::Owned(line.to_vec()))),
            b'-' => Some(Reply::Error(String::from_utf8_lossy(line).into_owned())),
            b':' => Some(Reply::Integer(integer(line)?)),
            b'_' => Some(Reply::Nil),
            b'#' => Some(Reply::Integer(i64::from(line == b"t"))),
            b'$' | b'=' | b'!' => {
                let length = integer(line)?;
                match self.string(kind, length, bytes, &mut behind)? {
                    Some(read) => read,
                    None => return Ok(None),
                }
            }
            b'>' => self.open(AggregateKind::Push, integer(line)?)?,
            b'%' => self.open(AggregateKind::Map, integer(line)?)?,
            _ => self.open(AggregateKind::List, integer(line)?)?,
        };
        self.charge(line.len())?;
        *at = behind;
        Ok(Some(read))
    }

    /// Reads a string whose head has been read. If it is too long, the inner option is `None`.
    fn string(
        &mut self,
        kind: u8,
        length: i64,
        bytes: &[u8],
        at: &mut usize,
    ) -> Result<Option<Option<Reply>>, Garbage> {
        if length == -1 {
            return Ok(Some(Some(Reply::Nil)));
        }
        let length = u64::try_from(length).map_err(|_| OUT_OF_BOUNDS)?;
        let kept = usize::try_from(length).ok();
        let Some(kept) = kept.filter(|&kept| kept <= STRING_MAX.min(self.room)) else {
            self.passed_over = Some(PassedOver { length, left: length });
            return Ok(Some(None));
        };
        let Some(text) = bytes.get(*at..*at + kept) else { return Ok(None) };
        *at += kept;
        if !ends(bytes, at)? {
            return Ok(None);
        }
        self.charge(kept)?;
        let text = match kind {
            b'!' => Reply::Error(String::from_utf8_lossy(text).into_owned()),
            // A verbatim string begins with three letters for its format.
            b'=' if text.get(3) == Some(&b':') => Reply::Text(Cow::Owned(text[4..].to_vec())),
            _ => Reply::Text(Cow::Owned(text.to_vec())),
        };
        Ok(Some(Some(text)))
    }

    /// Continues to skip a string that is too long.
    fn pass_over(
        &mut self,
        bytes: &[u8],
        at: &mut usize,
    ) -> Result<Option<Option<Reply>>, Garbage> {
        let Some(passed) = &mut self.passed_over else { return Ok(Some(None)) };
        let there = (bytes.len() - *at) as u64;
        let count = passed.left.min(there);
        passed.left -= count;
        // No more than there are bytes.
        *at += count as usize;
        if passed.left > 0 || !ends(bytes, at)? {
            return Ok(None);
        }
        let length = passed.length;
        self.passed_over = None;
        Ok(Some(Some(Reply::TooLong(length))))
    }

    /// Begins an array. An empty one is complete.
    fn open(&mut self, kind: AggregateKind, length: i64) -> Result<Option<Reply>, Garbage> {
        let max = match kind {
            AggregateKind::Push if length == -1 => return Err(Garbage("a push without contents")),
            AggregateKind::List if length == -1 => return Ok(Some(Reply::Nil)),
            AggregateKind::List | AggregateKind::Push => ELEMENTS_MAX,
            AggregateKind::Map => ELEMENTS_MAX / 2,
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= max);
        let length = length.ok_or(OUT_OF_BOUNDS)?;
        let left = match kind {
            AggregateKind::List | AggregateKind::Push => length,
            AggregateKind::Map => length * 2,
        };
        let aggregate = Aggregate { kind, left, parts: Vec::new() };
        if left == 0 {
            return Ok(Some(aggregate.whole()));
        }
        self.open.push(aggregate);
        Ok(None)
    }

    /// Puts a value where it belongs. Returns the reply if the value completes it.
    fn close(&mut self, mut reply: Reply) -> Option<Reply> {
        while let Some(mut innermost) = self.open.pop() {
            innermost.parts.push(reply);
            innermost.left -= 1;
            if innermost.left > 0 {
                self.open.push(innermost);
                return None;
            }
            reply = innermost.whole();
        }
        Some(reply)
    }

    /// Accounts for a value of which `length` bytes are kept.
    fn charge(&mut self, length: usize) -> Result<(), Garbage> {
        let room = self.room.checked_sub(size_of::<Reply>() + length);
        self.room = room.ok_or(Garbage("a reply is too long"))?;
        Ok(())
    }
}

const OUT_OF_BOUNDS: Garbage = Garbage("a length is out of bounds");

/// Reads a line from `at`; `None` while it is incomplete.
fn line<'b>(bytes: &'b [u8], at: &mut usize) -> Result<Option<&'b [u8]>, Garbage> {
    let rest = &bytes[*at..];
    let window = &rest[..rest.len().min(LINE_MAX)];
    match window.iter().position(|&byte| byte == b'\r') {
        Some(end) if end + 1 < rest.len() => {
            if rest[end + 1] != b'\n' {
                return Err(Garbage("a line does not end in CRLF"));
            }
            *at += end + 2;
            Ok(Some(&rest[..end]))
        }
        Some(_) => Ok(None),
        None if rest.len() >= LINE_MAX => Err(Garbage("a line is too long")),
        None => Ok(None),
    }
}

/// Reads the end of a string; false while it is incomplete.
fn ends(bytes: &[u8], at: &mut usize) -> Result<bool, Garbage> {
    match bytes.get(*at..*at + 2) {
        Some(b"\r\n") => {
            *at += 2;
            Ok(true)
        }
        Some(_) => Err(Garbage("a string does not end in CRLF")),
        None => Ok(false),
    }
}

impl Reply {
    /// The bytes of a text.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Text(text) => Some(text),
            Reply::Nil
            | Reply::Integer(_)
            | Reply::TooLong(_)
            | Reply::List(_)
            | Reply::Map(_)
            | Reply::Error(_)
            | Reply::Push(_) => None,
        }
    }

    /// A whole number, also one that is written as text.
    pub fn number(&self) -> Option<u64> {
        match self {
            Reply::Integer(number) => u64::try_from(*number).ok(),
            Reply::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            Reply::Nil
            | Reply::TooLong(_)
            | Reply::List(_)
            | Reply::Map(_)
            | Reply::Error(_)
            | Reply::Push(_) => None,
        }
    }

    /// The pairs of a map, in either protocol.
    pub fn pairs(&self) -> Option<Vec<(&Reply, &Reply)>> {
        match self {
            Reply::Map(pairs) => Some(pairs.iter().map(|(name, value)| (name, value)).collect()),
            Reply::List(list) => {
                Some(list.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect())
            }
            Reply::Nil
            | Reply::Integer(_)
            | Reply::Text(_)
            | Reply::TooLong(_)
            | Reply::Error(_)
            | Reply::Push(_) => None,
        }
    }

    /// The value with this name in a map, in either protocol.
    pub fn value_of(&self, name: &[u8]) -> Option<&Reply> {
        let is_it = |key: &Reply| matches!(key, Reply::Text(text) if **text == *name);
        self.pairs()?.into_iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
    }
}

/// Which version of RESP a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Before any `HELLO`.
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

impl Version {
    const fn nil(self) -> &'static str {
        match self {
            Version::Resp2 => "$-1",
            Version::Resp3 => "_",
        }
    }
}

/// Appends the bytes of a reply: what a server sends.
pub fn write(reply: &Reply, version: Version, bytes: &mut Vec<u8>) {
    let each = |parts: &[Reply], bytes: &mut Vec<u8>| {
        parts.iter().for_each(|part| write(part, version, bytes));
    };
    match reply {
        // What was not kept cannot be sent on.
        Reply::Nil | Reply::TooLong(_) => write_line(version.nil(), bytes),
        Reply::Integer(number) => {
            bytes.push(b':');
            write_line(itoa::Buffer::new().format(*number), bytes);
        }
        Reply::Text(text) => write_string(text, bytes),
        Reply::List(parts) => {
            write_head(b'*', parts.len(), bytes);
            each(parts, bytes);
        }
        Reply::Map(pairs) => {
            match version {
                Version::Resp2 => write_head(b'*', pairs.len() * 2, bytes),
                Version::Resp3 => write_head(b'%', pairs.len(), bytes),
            }
            for (name, value) in pairs {
                write(name, version, bytes);
                write(value, version, bytes);
            }
        }
        Reply::Error(text) => {
            let ends_line = |byte: u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
            bytes.push(b'-');
            bytes.extend(text.bytes().map(ends_line));
            bytes.extend_from_slice(b"\r\n");
        }
        Reply::Push(parts) => {
            let kind = if version == Version::Resp3 { b'>' } else { b'*' };
            write_head(kind, parts.len(), bytes);
            each(parts, bytes);
        }
    }
}

/// The bytes of a command: its name, and its arguments.
pub fn pack(args: &[&[u8]]) -> Vec<u8> {
    let length: usize = args.iter().map(|arg| arg.len() + 16).sum();
    let mut bytes = Vec::with_capacity(16 + length);
    write_head(b'*', args.len(), &mut bytes);
    for arg in args {
        write_string(arg, &mut bytes);
    }
    bytes
}

fn write_string(text: &[u8], bytes: &mut Vec<u8>) {
    write_head(b'$', text.len(), bytes);
    bytes.extend_from_slice(text);
    bytes.extend_from_slice(b"\r\n");
}

fn write_head(kind: u8, length: usize, bytes: &mut Vec<u8>) {
    bytes.push(kind);
    write_line(itoa::Buffer::new().format(length), bytes);
}

fn write_line(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(b"\r\n");
}

/// The arguments of a command, its name first.
pub type Words = Vec<Vec<u8>>;

/// Reads a command from the start of `bytes`. Returns its arguments and its length in bytes, or
/// `None` while it is incomplete.
///
/// # Errors
/// [`Garbage`] as soon as the bytes cannot become a command.
pub fn unpack(bytes: &[u8]) -> Result<Option<(Words, usize)>, Garbage> {
    let Some((reply, length)) = read(bytes)? else { return Ok(None) };
    let Reply::List(args) = reply else { return Err(Garbage("not a command")) };
    let arg = |reply| match reply {
        Reply::Text(arg) => Ok(arg.into_owned()),
        Reply::TooLong(_) => Err(Garbage("an argument is too long")),
        Reply::Nil
        | Reply::Integer(_)
        | Reply::List(_)
        | Reply::Map(_)
        | Reply::Error(_)
        | Reply::Push(_) => Err(Garbage("an argument is not a string")),
    };
    Ok(Some((args.into_iter().map(arg).collect::<Result<_, _>>()?, length)))
}

fn integer(line: &[u8]) -> Result<i64, Garbage> {
    let text = std::str::from_utf8(line).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Garbage("not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(text: &'static [u8]) -> Reply {
        Reply::Text(text.into())
    }

    fn one(bytes: &[u8]) -> Reply {
        let (reply, length) = read(bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        reply
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        assert_eq!(one(b":17\r\n"), Reply::Integer(17));
        assert_eq!(one(b"$-1\r\n"), Reply::Nil);
        assert_eq!(one(b"*-1\r\n"), Reply::Nil);
        assert_eq!(one(b"_\r\n"), Reply::Nil);
        assert_eq!(one(b"$4\r\na\r\nb\r\n"), text(b"a\r\nb"));
        assert_eq!(one(b"-BADTTL no\r\n"), Reply::Error("BADTTL no".into()));
        assert_eq!(one(b"=6\r\ntxt:ab\r\n"), text(b"ab"));
        assert_eq!(one(b"!5\r\nERR x\r\n"), Reply::Error("ERR x".into()));
        let list = vec![text(b"k"), Reply::Integer(1)];
        assert_eq!(one(b">2\r\n+k\r\n:1\r\n"), Reply::Push(list.clone()));
        let map = Reply::Map(vec![(list[0].clone(), list[1].clone())]);
        assert_eq!(one(b"%1\r\n+k\r\n:1\r\n"), map);
        assert_eq!(map.pairs(), Reply::List(list.clone()).pairs());
        assert_eq!(map.value_of(b"no such name"), None);
        assert_eq!(one(b"*2\r\n$1\r\nk\r\n:1\r\n"), Reply::List(list));
    }

    #[test]
    fn a_reply_in_pieces_is_incomplete_until_its_last_byte() {
        let bytes = b"*3\r\n$5\r\nstate\r\n:7\r\n-ERR x\r\n";
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Ok(None), "{end} bytes");
        }
        assert!(read(bytes).unwrap().is_some());
    }

    #[test]
    fn garbage_is_refused_at_once_and_lengths_are_not_believed() {
        for bad in [&b"HTTP/1.1 400\r\n"[..], b"\0", b":x\r\n", b"$-2\r\n", b"+a\rb", b"$1\r\nabc"]
        {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        assert!(read(b"*65537\r\n").is_err());
        assert!(read(b">-1\r\n").is_err());
        assert!(read(b"*1\r\n>1\r\n:1\r\n").is_err(), "a push is no part of a reply");
        assert!(read(&b"*1\r\n".repeat(10)).is_err());
        assert!(read(&[&b"+"[..], &[b'x'; LINE_MAX]].concat()).is_err());
    }

    fn string(length: usize) -> Vec<u8> {
        [format!("${length}\r\n").as_bytes(), &vec![b'x'; length], b"\r\n"].concat()
    }

    /// A string that is too long used to make garbage of all bytes behind it.
    #[test]
    fn a_string_that_is_too_long_is_passed_over_and_what_is_behind_it_is_read() {
        let kept = Reply::Text(vec![b'x'; STRING_MAX].into());
        assert_eq!(one(&string(STRING_MAX)), kept);
        let long = STRING_MAX + 1;
        assert_eq!(one(&string(long)), Reply::TooLong(long as u64));
        let page = [b"*3\r\n$1\r\na\r\n", &string(long)[..], b":7\r\n+OK\r\n"].concat();
        let names = vec![text(b"a"), Reply::TooLong(long as u64), Reply::Integer(7)];
        let mut reader = Reader::default();
        let mut read = Vec::new();
        for piece in page.chunks(1_000) {
            reader.take(piece);
            while let Some(reply) = reader.next_reply().unwrap() {
                read.push(reply);
            }
            assert!(reader.unread.len() <= 1_000, "it is not kept");
        }
        assert_eq!(read, [Reply::List(names), text(b"OK")]);
        // The largest length that a node may state.
        assert_eq!(super::read(b"$9223372036854775807\r\nabc"), Ok(None));
        assert!(super::read(&[&string(long)[..long + 8], b"xx"].concat()).is_err());
    }

    #[test]
    fn what_is_kept_of_one_reply_is_bounded() {
        let mut reader = Reader::default();
        let count = REPLY_MAX / STRING_MAX + 1;
        reader.take(format!("*{count}\r\n").as_bytes());
        let (name, mut read) = (string(STRING_MAX), None);
        for _ in 0..count {
            reader.take(&name);
            read = reader.next_reply().unwrap();
        }
        let Some(Reply::List(names)) = read else { panic!("no list") };
        let left_out = names.iter().filter(|name| matches!(name, Reply::TooLong(_))).count();
        assert!((1..9).contains(&left_out), "{left_out}");
        // Small values are charged for too.
        let mut reader = Reader::default();
        let numbers =
            [format!("*{ELEMENTS_MAX}\r\n").as_bytes(), &b":1\r\n".repeat(ELEMENTS_MAX)].concat();
        reader.take(format!("*{ELEMENTS_MAX}\r\n").as_bytes());
        let is_refused = (0..REPLY_MAX / ELEMENTS_MAX / size_of::<Reply>() + 1).any(|_| {
            reader.take(&numbers);
            reader.next_reply().is_err()
        });
        assert!(is_refused);
    }

    fn replies() -> impl Strategy<Value = Reply> {
        let text = || {
            proptest::collection::vec(any::<u8>(), 0..8).prop_map(|text| Reply::Text(text.into()))
        };
        let leaf = prop_oneof![
            Just(Reply::Nil),
            any::<i64>().prop_map(Reply::Integer),
            text(),
            "[A-Z]{1,9} [^\\r\\n]{0,9}".prop_map(Reply::Error),
        ];
        leaf.prop_recursive(3, 12, 4, move |inner| {
            let pair = (text(), inner.clone());
            prop_oneof![
                proptest::collection::vec(inner, 0..4).prop_map(Reply::List),
                proptest::collection::vec(pair, 0..4).prop_map(Reply::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(reply in replies(), pushes: bool) {
            let reply = if pushes { Reply::Push(vec![reply]) } else { reply };
            let mut bytes = Vec::new();
            write(&reply, Version::Resp3, &mut bytes);
            prop_assert_eq!(read(&bytes), Ok(Some((reply, bytes.len()))));
        }

        #[test]
        fn replies_in_pieces_are_those_of_the_whole(
            replies in proptest::collection::vec(replies(), 1..5),
            length in 1..9_usize,
        ) {
            let mut bytes = Vec::new();
            replies.iter().for_each(|reply| write(reply, Version::Resp3, &mut bytes));
            let (mut reader, mut read) = (Reader::default(), Vec::new());
            for piece in bytes.chunks(length) {
                reader.take(piece);
                while let Some(reply) = reader.next_reply().unwrap() {
                    read.push(reply);
                }
            }
            prop_assert_eq!(read, replies);
        }

        #[test]
        fn a_command_that_is_packed_is_unpacked(
            args in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..9),
        ) {
            let slices: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let bytes = pack(&slices);
            prop_assert_eq!(unpack(&bytes), Ok(Some((args, bytes.len()))));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in "[-+:$*%_#>=!~(,0-9a\r\n]{0,40}") {
            let _ = read(bytes.as_bytes());
        }

        #[test]
        fn no_string_of_any_format_makes_the_reader_panic(
            kind in "[$=!]",
            bytes in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let head = format!("{kind}{}\r\n", bytes.len());
            let packed = [head.as_bytes(), &bytes, b"\r\n"].concat();
            prop_assert_eq!(read(&packed).unwrap().unwrap().1, packed.len());
        }
    }
}
