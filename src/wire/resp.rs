//! RESP: replies and commands as bytes, written and read in one place.
//!
//! A node may send garbage, and a reader that trusts a length may allocate any amount. Here every
//! length and the nesting have limits, and nothing is allocated before its bytes have arrived. The
//! reader takes both RESP2 and RESP3, and distinguishes a push, which answers no command, from a
//! reply.

use std::borrow::Cow;

/// The longest string that is accepted, in bytes: far above any reply of these commands.
const STRING_MAX: usize = 1 << 20;
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
    let mut reader = Reader { bytes, at: 0 };
    match reader.reply(0) {
        Ok(reply) => Ok(Some((reply, reader.at))),
        Err(Halt::Incomplete) => Ok(None),
        Err(Halt::Garbage(what)) => Err(Garbage(what)),
    }
}

enum Halt {
    Incomplete,
    Garbage(&'static str),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, Halt> {
        if depth > DEPTH_MAX {
            return Err(Halt::Garbage("arrays nested too deeply"));
        }
        let kind = *self.bytes.get(self.at).ok_or(Halt::Incomplete)?;
        if !b"+-:$*%~_#,>(=!".contains(&kind) {
            return Err(Halt::Garbage("not a Redis reply"));
        }
        if kind == b'>' && depth > 0 {
            return Err(Halt::Garbage("a push inside a reply"));
        }
        self.at += 1;
        let line = self.line()?;
        match kind {
            b'+' | b',' | b'(' => Ok(Reply::Text(Cow::Owned(line.to_vec()))),
            b'-' => Ok(Reply::Error(String::from_utf8_lossy(line).into_owned())),
            b':' => Ok(Reply::Integer(integer(line)?)),
            b'_' => Ok(Reply::Nil),
            b'#' => Ok(Reply::Integer(i64::from(line == b"t"))),
            b'$' => self.string(integer(line)?),
            b'=' => self.string(integer(line)?).map(without_format),
            b'!' => self.string(integer(line)?).map(into_error),
            b'>' => match self.list(integer(line)?, depth)? {
                Reply::List(parts) => Ok(Reply::Push(parts)),
                _ => Err(Halt::Garbage("a push without contents")),
            },
            b'%' => self.map(integer(line)?, depth),
            _ => self.list(integer(line)?, depth),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Halt> {
        let rest = &self.bytes[self.at..];
        let window = &rest[..rest.len().min(LINE_MAX)];
        match window.iter().position(|&byte| byte == b'\r') {
            Some(end) if end + 1 < rest.len() => {
                if rest[end + 1] != b'\n' {
                    return Err(Halt::Garbage("a line does not end in CRLF"));
                }
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Halt::Incomplete),
            None if rest.len() >= LINE_MAX => Err(Halt::Garbage("a line is too long")),
            None => Err(Halt::Incomplete),
        }
    }

    fn string(&mut self, length: i64) -> Result<Reply, Halt> {
        if length == -1 {
            return Ok(Reply::Nil);
        }
        let length = limited(length, STRING_MAX)?;
        let end = self.at + length;
        let bytes = self.bytes.get(self.at..end).ok_or(Halt::Incomplete)?;
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Reply::Text(Cow::Owned(bytes.to_vec())))
            }
            Some(_) => Err(Halt::Garbage("a string does not end in CRLF")),
            None => Err(Halt::Incomplete),
        }
    }

    fn list(&mut self, length: i64, depth: usize) -> Result<Reply, Halt> {
        if length == -1 {
            return Ok(Reply::Nil);
        }
        let length = limited(length, ELEMENTS_MAX)?;
        let mut elements = Vec::new();
        for _ in 0..length {
            elements.push(self.reply(depth + 1)?);
        }
        Ok(Reply::List(elements))
    }

    fn map(&mut self, length: i64, depth: usize) -> Result<Reply, Halt> {
        let length = limited(length, ELEMENTS_MAX / 2)?;
        let mut pairs = Vec::new();
        for _ in 0..length {
            pairs.push((self.reply(depth + 1)?, self.reply(depth + 1)?));
        }
        Ok(Reply::Map(pairs))
    }
}

impl Reply {
    /// The bytes of a text.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Text(text) => Some(text),
            Reply::Nil
            | Reply::Integer(_)
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
            Reply::Nil | Reply::List(_) | Reply::Map(_) | Reply::Error(_) | Reply::Push(_) => None,
        }
    }

    /// The pairs of a map, in either protocol.
    pub fn pairs(&self) -> Option<Vec<(&Reply, &Reply)>> {
        match self {
            Reply::Map(pairs) => Some(pairs.iter().map(|(name, value)| (name, value)).collect()),
            Reply::List(list) => {
                Some(list.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect())
            }
            Reply::Nil | Reply::Integer(_) | Reply::Text(_) | Reply::Error(_) | Reply::Push(_) => {
                None
            }
        }
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

/// Appends the bytes of a reply: what a server sends.
pub fn write(reply: &Reply, version: Version, bytes: &mut Vec<u8>) {
    let each = |parts: &[Reply], bytes: &mut Vec<u8>| {
        parts.iter().for_each(|part| write(part, version, bytes));
    };
    match reply {
        Reply::Nil if version == Version::Resp3 => bytes.extend_from_slice(b"_\r\n"),
        Reply::Nil => bytes.extend_from_slice(b"$-1\r\n"),
        Reply::Integer(number) => {
            bytes.push(b':');
            bytes.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
            bytes.extend_from_slice(b"\r\n");
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
    bytes.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
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
        Reply::Nil
        | Reply::Integer(_)
        | Reply::List(_)
        | Reply::Map(_)
        | Reply::Error(_)
        | Reply::Push(_) => Err(Garbage("an argument is not a string")),
    };
    Ok(Some((args.into_iter().map(arg).collect::<Result<_, _>>()?, length)))
}

/// The text of a verbatim string, which begins with three letters for its format and a colon.
fn without_format(reply: Reply) -> Reply {
    match reply {
        Reply::Text(text) if text.get(3) == Some(&b':') => {
            Reply::Text(Cow::Owned(text.into_owned().split_off(4)))
        }
        other => other,
    }
}

fn into_error(reply: Reply) -> Reply {
    match reply {
        Reply::Text(text) => Reply::Error(String::from_utf8_lossy(&text).into_owned()),
        other => other,
    }
}

fn integer(line: &[u8]) -> Result<i64, Halt> {
    let text = std::str::from_utf8(line).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Halt::Garbage("not a number"))
}

fn limited(length: i64, max: usize) -> Result<usize, Halt> {
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= max)
        .ok_or(Halt::Garbage("a length is out of bounds"))
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
        assert!(read(b"$1048577\r\n").is_err());
        assert_eq!(read(b"$1048576\r\n"), Ok(None));
        assert!(read(b"*65537\r\n").is_err());
        assert!(read(b">-1\r\n").is_err());
        assert!(read(b"*1\r\n>1\r\n:1\r\n").is_err(), "a push is no part of a reply");
        assert!(read(&b"*1\r\n".repeat(10)).is_err());
        assert!(read(&[&b"+"[..], &[b'x'; LINE_MAX]].concat()).is_err());
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
