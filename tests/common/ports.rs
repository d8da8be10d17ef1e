//! Free loopback ports, without races between tests, test binaries and test suites.
//!
//! Asking the kernel for a free port, closing it and telling a server to use it is a race: the
//! kernel may give the port to another process, and again while a server is down between kill and
//! restart. So ports come from below the range that the kernel assigns, and each is reserved by a
//! name in the abstract socket namespace for as long as its server exists, running or not. The name
//! disappears with the process that holds it. If another program uses a port, the server cannot
//! bind: then the next port is tried.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 17_000;
const COUNT: u16 = 5_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port that no other harness on this machine uses while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _reservation: UnixListener,
}

impl Port {
    /// The next port that is neither reserved nor in use.
    pub fn reserve() -> Self {
        // Processes start at different places, so that they seldom try the same port.
        let start = (std::process::id() % u32::from(COUNT)) as u16;
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = FIRST + start.wrapping_add(step) % COUNT;
            if let Some(reservation) = hold(number)
                && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
            {
                return Self { number, _reservation: reservation };
            }
        }
        panic!("no free port among {COUNT} from {FIRST}");
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

fn hold(number: u16) -> Option<UnixListener> {
    let name = format!("lockmod-test-port-{number}");
    let address = SocketAddr::from_abstract_name(name).expect("the name is short");
    UnixListener::bind_addr(&address).ok()
}
