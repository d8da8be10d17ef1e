//! Replies as values: an incremental reader of RESP, for what a node answers.
//!
//! A node may answer garbage, and a reader that trusts a length it was told allocates what it is
//! told. Here every length has a limit, nesting too, and nothing is allocated before its bytes are
//! there. RESP2 and RESP3 are read alike: a push, which answers no command, is told from a reply.

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
    Text(Vec<u8>),
    /// A list. Maps are lists of keys and values in turn.
    List(Vec<Reply>),
    /// An error, without the `-`.
    Error(String),
    /// What the node says without having been asked: the kind of message, and what belongs to it.
    Push(Vec<Reply>),
}

/// Bytes that are not RESP, or above the limits: the connection cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage(pub(super) &'static str);

/// Reads one reply from the start of `bytes`: the reply and its length in bytes, or `None` while
/// it is not complete.
///
/// # Errors
/// [`Garbage`] as soon as it is clear that no reply will come of it.
pub fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbage> {
    let mut cursor = Cursor { bytes, at: 0 };
    match cursor.reply(0) {
        Ok(reply) => Ok(Some((reply, cursor.at))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Garbage(what)) => Err(Garbage(what)),
    }
}

enum Stop {
    Incomplete,
    Garbage(&'static str),
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn reply(&mut self, depth: usize) -> Result<Reply, Stop> {
        if depth > DEPTH_MAX {
            return Err(Stop::Garbage("arrays nested too deeply"));
        }
        let kind = *self.bytes.get(self.at).ok_or(Stop::Incomplete)?;
        if !b"+-:$*%~_#,>(=!".contains(&kind) {
            return Err(Stop::Garbage("not a reply of Redis"));
        }
        if kind == b'>' && depth > 0 {
            return Err(Stop::Garbage("a push inside of a reply"));
        }
        self.at += 1;
        let line = self.line()?;
        match kind {
            b'+' | b',' | b'(' => Ok(Reply::Text(line.to_vec())),
            b'-' => Ok(Reply::Error(String::from_utf8_lossy(line).into_owned())),
            b':' => Ok(Reply::Integer(integer(line)?)),
            b'_' => Ok(Reply::Nil),
            b'#' => Ok(Reply::Integer(i64::from(line == b"t"))),
            b'$' => self.string(integer(line)?),
            b'=' => self.string(integer(line)?).map(without_format),
            b'!' => self.string(integer(line)?).map(into_error),
            b'>' => match self.list(integer(line)?, depth)? {
                Reply::List(parts) => Ok(Reply::Push(parts)),
                _ => Err(Stop::Garbage("a push of nothing")),
            },
            b'%' => self.list(integer(line)?.saturating_mul(2), depth),
            _ => self.list(integer(line)?, depth),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let window = &rest[..rest.len().min(LINE_MAX)];
        match window.iter().position(|&byte| byte == b'\r') {
            Some(end) if end + 1 < rest.len() => {
                if rest[end + 1] != b'\n' {
                    return Err(Stop::Garbage("a line does not end as it should"));
                }
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Stop::Incomplete),
            None if rest.len() >= LINE_MAX => Err(Stop::Garbage("a line is too long")),
            None => Err(Stop::Incomplete),
        }
    }

    fn string(&mut self, length: i64) -> Result<Reply, Stop> {
        if length == -1 {
            return Ok(Reply::Nil);
        }
        let length = limited(length, STRING_MAX)?;
        let end = self.at + length;
        let bytes = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Reply::Text(bytes.to_vec()))
            }
            Some(_) => Err(Stop::Garbage("a string does not end as it should")),
            None => Err(Stop::Incomplete),
        }
    }

    fn list(&mut self, length: i64, depth: usize) -> Result<Reply, Stop> {
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
}

/// The text of a verbatim string, which begins with three letters for its format and a colon.
fn without_format(reply: Reply) -> Reply {
    match reply {
        Reply::Text(mut text) if text.get(3) == Some(&b':') => Reply::Text(text.split_off(4)),
        other => other,
    }
}

fn into_error(reply: Reply) -> Reply {
    match reply {
        Reply::Text(text) => Reply::Error(String::from_utf8_lossy(&text).into_owned()),
        other => other,
    }
}

fn integer(line: &[u8]) -> Result<i64, Stop> {
    let text = std::str::from_utf8(line).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Stop::Garbage("a number is none"))
}

fn limited(length: i64, max: usize) -> Result<usize, Stop> {
    usize::try_from(length)
        .ok()
        .filter(|length| *length <= max)
        .ok_or(Stop::Garbage("a length is out of bounds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert_eq!(one(b"$4\r\na\r\nb\r\n"), Reply::Text(b"a\r\nb".to_vec()));
        assert_eq!(one(b"-BADTTL no\r\n"), Reply::Error("BADTTL no".into()));
        assert_eq!(one(b"=6\r\ntxt:ab\r\n"), Reply::Text(b"ab".to_vec()));
        assert_eq!(one(b"!5\r\nERR x\r\n"), Reply::Error("ERR x".into()));
        let list = vec![Reply::Text(b"k".to_vec()), Reply::Integer(1)];
        assert_eq!(one(b">2\r\n+k\r\n:1\r\n"), Reply::Push(list.clone()));
        assert_eq!(one(b"%1\r\n+k\r\n:1\r\n"), Reply::List(list.clone()));
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

    proptest! {
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
