//! A connection that shows the exact bytes: for replies, pushes and malformed requests.
//!
//! It knows just enough of RESP2 and RESP3 to find the end of a reply.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::PATIENCE;

/// A plain socket to a server.
#[derive(Debug)]
pub struct RawConnection {
    stream: BufReader<UnixStream>,
}

impl RawConnection {
    pub(super) fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends these bytes unchanged.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server reads");
    }

    /// Sends one command, and does not wait for its reply.
    #[track_caller]
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.try_send(args).expect("the server reads");
    }

    /// Like [`RawConnection::send`], for a server that may be gone.
    pub fn try_send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Sends one command, split at white space, and returns the exact bytes of its reply.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> Vec<u8> {
        let args: Vec<&str> = line.split_whitespace().collect();
        self.send(&args);
        self.read()
    }

    /// The exact bytes of the next reply or push.
    ///
    /// # Panics
    /// If none has come after [`PATIENCE`], or the server has closed the connection.
    #[track_caller]
    pub fn read(&mut self) -> Vec<u8> {
        self.try_read().expect("a reply of the server")
    }

    /// The next reply or push, as the redis crate reads it.
    #[track_caller]
    pub fn read_value(&mut self) -> redis::Value {
        let bytes = self.read();
        redis::parse_redis_value(&bytes).expect("well-formed RESP")
    }

    /// The exact bytes of the next reply or push.
    ///
    /// # Errors
    /// `UnexpectedEof` when the server has closed the connection.
    pub fn try_read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut values_left = 1_u64;
        while values_left > 0 {
            values_left = values_left - 1 + self.read_one(&mut bytes)?;
        }
        Ok(bytes)
    }

    /// Whether nothing arrives for this long: for "no reply yet", which only time can show.
    /// Anything that arrives stays to be read.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.get_ref().set_read_timeout(Some(time)).expect("the time is not zero");
        let silent =
            matches!(self.stream.fill_buf(), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
        self.stream.get_ref().set_read_timeout(Some(PATIENCE)).expect("the time is not zero");
        silent
    }

    /// Appends one value without its members; returns how many members follow.
    fn read_one(&mut self, bytes: &mut Vec<u8>) -> io::Result<u64> {
        let start = bytes.len();
        if self.stream.read_until(b'\n', bytes)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = &bytes[start..];
        let count = || -> i64 {
            let digits = String::from_utf8_lossy(&line[1..]).trim().to_owned();
            digits.parse().unwrap_or_else(|_| panic!("not RESP: {:?}", line.escape_ascii()))
        };
        match line[0] {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(0),
            b'$' | b'=' | b'!' => {
                if let Ok(len) = usize::try_from(count()) {
                    let end = bytes.len() + len + 2;
                    let start = bytes.len();
                    bytes.resize(end, 0);
                    self.stream.read_exact(&mut bytes[start..])?;
                }
                Ok(0)
            }
            b'*' | b'~' | b'>' => Ok(u64::try_from(count()).unwrap_or(0)),
            b'%' => Ok(2 * u64::try_from(count()).unwrap_or(0)),
            // Attributes come before the value that they are about.
            b'|' => Ok(2 * u64::try_from(count()).unwrap_or(0) + 1),
            _ => panic!("not RESP: {:?}", line.escape_ascii().to_string()),
        }
    }
}
