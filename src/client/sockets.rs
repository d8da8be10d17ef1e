//! The sockets of the connections of this process.
//!
//! A forked child has copies of them. While it lives, a node does not see that the parent has
//! ended: its place in line stays, and may be granted a lock that nobody takes. So the child lets
//! go of them, by what is noted here. That takes no lock: a thread that the child does not have
//! may hold it. And nothing is taken back: a socket that is closed is told by its inode from what
//! has its number by then.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Sockets with higher numbers are not noted.
const NUMBERS: usize = 1 << 16;
/// By number: the inode of the last socket that had it; 0 for none.
static INODES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];
/// Above all numbers that were noted.
static END: AtomicUsize = AtomicUsize::new(0);

/// Notes a socket, as soon as it exists.
pub(super) fn note(socket: &impl AsFd) {
    let descriptor = socket.as_fd();
    let Ok(number) = usize::try_from(descriptor.as_raw_fd()) else { return };
    if let (Some(inode), Ok(stat)) = (INODES.get(number), rustix::fs::fstat(descriptor)) {
        inode.store(stat.st_ino, Relaxed);
        END.fetch_max(number + 1, Relaxed);
    }
}

/// The sockets of this process's connections, each with its inode. A number may have gone to
/// another file since: that one has another inode.
pub fn sockets() -> Vec<(RawFd, u64)> {
    let noted = INODES.iter().take(END.load(Relaxed)).zip(0..);
    let noted = noted.map(|(inode, number)| (number, inode.load(Relaxed)));
    noted.filter(|(_, inode)| *inode != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_socket_is_noted_by_its_number_and_its_inode() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        let own = (number, rustix::fs::fstat(&socket).unwrap().st_ino);
        assert!(!sockets().contains(&own));
        note(&socket);
        assert!(sockets().contains(&own));
    }
}
