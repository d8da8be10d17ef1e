//! A TCP proxy that misbehaves on command, between a client and one server.
//!
//! Each direction of a connection has a reader, which records when bytes arrived, and a writer,
//! which asks the current [`Flow`] what to do with them. So a delay adds to latency and not to the
//! time per message, and a new flow applies at once to bytes in transit.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Server;

/// What happens to the bytes of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They are forwarded at once.
    Pass,
    /// They arrive this much later.
    Delay(Duration),
    /// They wait, and are forwarded when the flow changes: a partition that heals.
    Hold,
    /// They are dropped: a partition that does not heal before the connection ends.
    Discard,
    /// These bytes arrive instead.
    Garbage(Vec<u8>),
}

/// Listens on a loopback port and forwards to one server. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    target: u16,
    requests: Flow,
    replies: Flow,
    refuses: bool,
    is_closed: bool,
    accepted_count: usize,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    is_cut: Arc<AtomicBool>,
}

#[derive(Clone, Copy)]
enum Direction {
    Requests,
    Replies,
}

impl Proxy {
    /// Forwards to this server.
    pub fn to(server: &Server) -> Self {
        Self::to_port(server.port())
    }

    /// Forwards to this loopback port, whether or not it has a listener yet.
    pub fn to_port(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound socket").port();
        let state = State {
            target,
            requests: Flow::Pass,
            replies: Flow::Pass,
            refuses: false,
            is_closed: false,
            accepted_count: 0,
            connections: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_all(&listener)
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets what happens to the client's bytes, from now on and for those in transit.
    pub fn set_requests(&self, flow: Flow) {
        self.change(|state| state.requests = flow);
    }

    /// Sets what happens to the server's bytes, from now on and for those in transit.
    pub fn set_replies(&self, flow: Flow) {
        self.change(|state| state.replies = flow);
    }

    /// The same for both directions.
    pub fn set(&self, flow: Flow) {
        self.change(|state| {
            state.requests = flow.clone();
            state.replies = flow;
        });
    }

    /// Resets all existing connections. New ones are accepted.
    pub fn cut(&self) {
        self.change(reset_all);
    }

    /// Whether new connections are reset at once, as if the server was down.
    pub fn set_refuses(&self, refuses: bool) {
        self.change(|state| state.refuses = refuses);
    }

    /// Forwards to another loopback port from now on, and resets the existing connections.
    pub fn set_target(&self, target: u16) {
        self.change(|state| {
            state.target = target;
            reset_all(state);
        });
    }

    /// How many connections were accepted so far, including the refused ones.
    pub fn accepted_count(&self) -> usize {
        self.shared.lock().accepted_count
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| {
            state.is_closed = true;
            reset_all(state);
        });
        // Wakes the accepting thread, so that it ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn reset_all(state: &mut State) {
    for connection in state.connections.drain(..) {
        connection.is_cut.store(true, Ordering::SeqCst);
        reset(&connection.client);
        reset(&connection.server);
    }
}

/// The peer sees ECONNRESET, not an orderly end.
fn reset(stream: &TcpStream) {
    // A close without lingering resets. But other threads still have the stream, and hold it open
    // until their reads end; the shutdown ends them. The peer may be gone already.
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Read);
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state has no invariant that a panicking thread could have broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            let mut state = self.lock();
            if state.is_closed {
                return;
            }
            state.accepted_count += 1;
            if state.refuses {
                reset(&client);
                continue;
            }
            let target = state.target;
            drop(state);
            // A server that is down looks the same through the proxy.
            match TcpStream::connect((Ipv4Addr::LOCALHOST, target)) {
                Ok(server) => self.forward(client, server).expect("a socket can be shared"),
                Err(_) => reset(&client),
            }
        }
    }

    fn forward(self: &Arc<Self>, client: TcpStream, server: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let is_cut = Arc::new(AtomicBool::new(false));
        let requests = (client.try_clone()?, server.try_clone()?);
        let replies = (server.try_clone()?, client.try_clone()?);
        // Before its first byte: a cut must include a connection that has already lost bytes.
        let connection = Connection { client, server, is_cut: Arc::clone(&is_cut) };
        self.lock().connections.push(connection);
        self.pump(Direction::Requests, requests.0, requests.1, &is_cut);
        self.pump(Direction::Replies, replies.0, replies.1, &is_cut);
        Ok(())
    }

    fn pump(
        self: &Arc<Self>,
        direction: Direction,
        mut from: TcpStream,
        to: TcpStream,
        is_cut: &Arc<AtomicBool>,
    ) {
        let (queue, inbox) = channel();
        thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if queue.send((Instant::now(), buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
        let (shared, is_cut) = (Arc::clone(self), Arc::clone(is_cut));
        thread::spawn(move || shared.write_all(direction, &inbox, to, &is_cut));
    }

    fn write_all(
        &self,
        direction: Direction,
        inbox: &Receiver<(Instant, Vec<u8>)>,
        mut to: TcpStream,
        is_cut: &AtomicBool,
    ) {
        for (read_at, bytes) in inbox {
            match self.wait_for_flow(direction, read_at, is_cut) {
                Some(Flow::Pass | Flow::Delay(_)) => {
                    if to.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Some(Flow::Garbage(garbage)) => {
                    if to.write_all(&garbage).is_err() {
                        return;
                    }
                }
                Some(Flow::Discard) => {}
                Some(Flow::Hold) => unreachable!("a hold is waited out"),
                None => return,
            }
        }
        // The other side has ended: its peer learns it, unless that direction is held.
        let flow = self.wait_for_flow(direction, Instant::now(), is_cut);
        if flow.is_some_and(|flow| flow != Flow::Discard) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// What to do now with bytes read at this instant; `None` if the connection is cut.
    fn wait_for_flow(
        &self,
        direction: Direction,
        read_at: Instant,
        is_cut: &AtomicBool,
    ) -> Option<Flow> {
        let mut state = self.lock();
        loop {
            if state.is_closed || is_cut.load(Ordering::SeqCst) {
                return None;
            }
            let flow = match direction {
                Direction::Requests => &state.requests,
                Direction::Replies => &state.replies,
            };
            // Without a delay the deadline is far off: only a change ends the wait.
            let pause = match flow {
                Flow::Hold => Duration::from_secs(3600),
                Flow::Delay(delay) => delay.saturating_sub(read_at.elapsed()),
                Flow::Pass | Flow::Discard | Flow::Garbage(_) => Duration::ZERO,
            };
            if pause.is_zero() {
                return Some(flow.clone());
            }
            let woken = self.changed.wait_timeout(state, pause);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
