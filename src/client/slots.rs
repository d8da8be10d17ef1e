//! Reads which lock a command is about, and what a Cluster reports about its slots.
//!
//! [`crate::wire::slots`] computes the slot of a name.

use super::inbox::NoReply;
use crate::engine::SLOTS;
use crate::wire::code;
use crate::wire::refusal::{Redirected, read_redirected};
use crate::wire::resp::Reply;

/// A range of slots, with the id, the host and the port of its master. An empty host is that of the
/// server that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Where a node of a Cluster sends a command that it does not carry out. An empty host is its own;
/// [`UNKNOWN`] is one whose host name it does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    /// For this command only: the slot is moving there.
    pub(super) is_ask: bool,
    pub(super) slot: u16,
    pub(super) host: String,
    pub(super) port: u16,
}

/// What stands for the host of a server that should have a host name, and has none.
pub(super) const UNKNOWN: &str = "?";

/// The name of the lock that a packed command is about; `None` if it is about none.
pub(super) fn name_in(command: &[u8]) -> Option<&[u8]> {
    let mut rest = command;
    let count = number_after(b'*', &mut rest)?;
    let word = string(&mut rest)?;
    let is_about_a_lock = word.starts_with(b"LOCK.") || word == b"DEL";
    if count > 1 && is_about_a_lock { string(&mut rest) } else { None }
}

fn number_after(kind: u8, rest: &mut &[u8]) -> Option<usize> {
    let line = rest.strip_prefix(&[kind])?;
    let end = line.iter().position(|byte| *byte == b'\r')?;
    *rest = line.get(end + 2..)?;
    std::str::from_utf8(&line[..end]).ok()?.parse().ok()
}

fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = number_after(b'$', rest)?;
    let text = rest.get(..length)?;
    *rest = rest.get(length + 2..)?;
    Some(text)
}

/// Where an error sends a command; `None` if it does not.
pub(super) fn redirection(error: &str) -> Option<Redirection> {
    let Redirected { is_ask, slot, place } = read_redirected(error)?;
    let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
    let (host, port) = place.rsplit_once(':')?;
    Some(Redirection { is_ask, slot, host: host.to_owned(), port: port.parse().ok()? })
}

/// Reads the reply to CLUSTER SLOTS.
///
/// # Errors
/// What the reply means, if it has no slots.
pub(super) fn read_slots(reply: Option<&Reply>) -> Result<Vec<SlotRange>, NoReply> {
    let ranges = match reply {
        Some(Reply::List(ranges)) => ranges,
        Some(Reply::Error(text)) if text.contains("cluster support disabled") => {
            let text = "it is not a node of a Cluster: write redis:// for a server by itself";
            return Err(NoReply::Refused(text.into()));
        }
        Some(Reply::Error(text)) if text.starts_with("ERR unknown command") => {
            let text = "it does not know CLUSTER: for a Sentinel write \
                        redis+sentinel://host:port,host:port/group, for a server by itself redis://";
            return Err(NoReply::Refused(text.into()));
        }
        Some(Reply::Error(text)) if code::meaning_of(text) == code::Meaning::Forbidden => {
            return Err(NoReply::NoPermission(text.as_str().into()));
        }
        Some(Reply::Error(text)) => return Err(NoReply::Unavailable(text.as_str().into())),
        _ => return Err(NoReply::Garbled("not what CLUSTER SLOTS answers".into())),
    };
    let read: Option<Vec<SlotRange>> = ranges.iter().map(read_range).collect();
    let read = read.ok_or_else(|| NoReply::Garbled("not a range of slots".into()))?;
    if read.is_empty() {
        return Err(NoReply::Unavailable("its Cluster has no slots: is it complete?".into()));
    }
    Ok(read)
}

/// Reads how many slots a server has from its replies to CLUSTER SLOTS and CLUSTER MYID.
pub(super) fn own_slots(replies: &[Reply]) -> Option<u16> {
    let [slots, Reply::Text(me)] = replies else { return None };
    let ranges = read_slots(Some(slots)).ok()?;
    let own = ranges.iter().filter(|range| range.id.as_bytes() == &**me);
    let count: usize =
        own.map(|range| usize::from(range.last.saturating_sub(range.first)) + 1).sum();
    // A server may say anything.
    Some(u16::try_from(count.min(usize::from(SLOTS))).unwrap_or(SLOTS))
}

fn read_range(range: &Reply) -> Option<SlotRange> {
    let Reply::List(parts) = range else { return None };
    let [Reply::Integer(first), Reply::Integer(last), Reply::List(master), ..] = &parts[..] else {
        return None;
    };
    let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
    let text = |reply: Option<&Reply>| match reply {
        Some(Reply::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    let host = match text(master.first()) {
        host if host == UNKNOWN => text(master.get(3).and_then(|more| more.value_of(b"ip"))),
        host => host,
    };
    let Some(Reply::Integer(port)) = master.get(1) else { return None };
    let port = u16::try_from(*port).ok()?;
    let Some(Reply::Text(id)) = master.get(2) else { return None };
    let id = String::from_utf8_lossy(id).into_owned();
    Some(SlotRange { first: slot(*first)?, last: slot(*last)?, id, host, port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::packet::Packet;
    use proptest::prelude::*;

    #[test]
    fn a_command_is_about_the_lock_that_it_names() {
        let name_of = |args: &[&[u8]]| name_in(Packet::new(args).bytes()).map(<[u8]>::to_vec);
        assert_eq!(name_of(&[b"LOCK.INFO", b"a\r\n"]), Some(b"a\r\n".to_vec()));
        assert_eq!(name_of(&[b"DEL", b""]), Some(Vec::new()));
        for other in [&[b"PING".as_slice()][..], &[b"LOCK.INFO"], &[b"INFO", b"lockmod"]] {
            assert_eq!(name_of(other), None);
        }
    }

    #[test]
    fn redirections_are_read() {
        let place = |is_ask| Redirection { is_ask, slot: 7, host: "::1".to_owned(), port: 7_000 };
        assert_eq!(redirection("MOVED 7 ::1:7000"), Some(place(false)));
        assert_eq!(redirection("ASK 7 ::1:7000"), Some(place(true)));
        for host in ["", UNKNOWN] {
            assert_eq!(redirection(&format!("MOVED 7 {host}:7000")).unwrap().host, host);
        }
        for other in ["MOVED", "MOVED 7", "MOVED 99999 h:1", "MOVED 7 h", "TRYAGAIN x", ""] {
            assert_eq!(redirection(other), None, "{other}");
        }
    }

    /// Regression: a server that names its slots five times made the count overflow.
    #[test]
    fn a_server_has_no_more_slots_than_there_are() {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec().into());
        let range = |last| {
            let master = Reply::List(vec![text("h"), Reply::Integer(7_000), text("id")]);
            Reply::List(vec![Reply::Integer(0), Reply::Integer(last), master])
        };
        let own = |ranges| own_slots(&[Reply::List(ranges), text("id")]);
        assert_eq!(own((0..5).map(|_| range(16_383)).collect()), Some(SLOTS));
        assert_eq!(own(vec![range(99)]), Some(100));
    }

    #[test]
    fn a_master_without_a_host_name_is_at_its_address() {
        let text = |text: &str| Reply::Text(text.as_bytes().to_vec().into());
        let host_of = |host: Reply, more: Vec<Reply>| {
            let master = vec![host, Reply::Integer(7_000), text("id"), Reply::List(more)];
            let range = vec![Reply::Integer(0), Reply::Integer(9), Reply::List(master)];
            read_range(&Reply::List(range)).unwrap().host
        };
        let address = || vec![text("hostname"), text(""), text("ip"), text("10.0.0.1")];
        assert_eq!(host_of(text(UNKNOWN), address()), "10.0.0.1");
        assert_eq!(host_of(text(UNKNOWN), Vec::new()), "");
        assert_eq!(host_of(text("h"), address()), "h");
        assert_eq!(host_of(Reply::Nil, address()), "", "that of the server that was asked");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reading_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            text in ".{0,40}",
        ) {
            let _ = (name_in(&bytes), redirection(&format!("MOVED {text}")));
        }
    }
}
