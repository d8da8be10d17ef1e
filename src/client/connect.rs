//! Opens a connection from a URL and logs in, over TCP, TLS or a Unix socket.
//!
//! A connection counts as made only after the server has answered a PING: a stopped process accepts
//! connections too.
//!
//! It asks for RESP3, because only then can a subscribed connection also carry commands. If the
//! server refuses RESP3 or the subscription, the connection works without wakes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixSocket, UnixStream, lookup_host};
use tokio_rustls::rustls;

use super::inbox::{NoReply, ServerId};
#[cfg(test)]
use super::node_url;
use super::node_url::{Location, NodeUrl};
use super::packet::Packet;
use super::printable::plain;
use super::sockets;
use super::tls;
use crate::wire::code::{self, Meaning};
use crate::wire::resp::{Reader, Reply};

/// What a server in protected mode needs, in fewer words than its own error.
const PROTECTED: &str = "DENIED: protected mode without a password lets in no other machine; \
                         set requirepass there, or protected-mode no";

/// A part of the server's error to a password when it has none.
const NEEDS_NO_PASSWORD: &str = "without any password configured";
/// The same in other words: the server's own suggest that the URL may be right.
pub(super) const NO_PASSWORD_SET: &str = "ERR the URL has a password, but the server has none: \
                                          remove it from the URL, or set requirepass there; if \
                                          it is a Sentinel, write redis+sentinel://";
/// A connection that is idle for this long is probed by the system, and breaks after three probes
/// without an answer, about a minute in all. Firewalls forget idle connections without a word, and
/// those that listen to Sentinels are idle for ever.
const IDLE: Duration = Duration::from_secs(30);
/// How long after one probe the next is sent.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// How many bytes of a garbled answer are quoted.
const QUOTED_MAX: usize = 40;

/// How one server is reached, and the user to log in as.
#[derive(Debug, Clone)]
pub(super) struct Address {
    name: Arc<str>,
    way: Way,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Whether to skip the subscription.
    is_deaf: bool,
    /// Whether a replica is refused.
    must_be_master: bool,
    /// Whether it has ever let the client in.
    has_served: Arc<AtomicBool>,
}

/// How a node is reached.
#[derive(Debug, Clone)]
enum Way {
    Url(NodeUrl),
    Dialled(Arc<dyn Dial>),
}

/// A connection that is logged in.
pub(super) struct Login {
    pub(super) stream: Box<dyn Stream>,
    /// What has arrived behind the replies.
    pub(super) reader: Reader,
    /// Which server answers there, if it tells.
    pub(super) server: Option<ServerId>,
    /// Whether messages on the client's channel arrive here.
    pub(super) hears: bool,
    /// Whether it is a server of a Cluster, which passes on what others publish, as far as it
    /// tells.
    pub(super) is_in_cluster: bool,
}

/// A connection's bytes, whatever carries them.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Called before a stream is dropped that broke, or whose server is silent: what was written,
    /// but has not arrived, is discarded. Otherwise the system would go on to send it, and it could
    /// arrive after what the next connection sends: an acquire after its own release.
    fn abort(&self) {}
}

impl Stream for TcpStream {
    fn abort(&self) {
        // If that fails, the connection is gone already.
        let _ = self.set_zero_linger();
    }
}

impl Stream for tokio_rustls::client::TlsStream<TcpStream> {
    fn abort(&self) {
        self.get_ref().0.abort();
    }
}

// What is written to these has arrived.
impl Stream for UnixStream {}
impl Stream for tokio::io::DuplexStream {}

/// A connection about to be opened.
pub type Opening = BoxFuture<'static, io::Result<Box<dyn Stream>>>;

/// Opens the connections to one node of a custom world: see [`Links`](super::Links).
pub trait Dial: fmt::Debug + Send + Sync {
    /// Opens another connection.
    fn open(&self) -> Opening;

    /// A random number from 0 to 1, for the pause before connecting again.
    fn jitter(&self) -> f64;
}

impl Address {
    /// The server that a URL names.
    pub(super) fn of(url: NodeUrl) -> Address {
        Address::new(url.place.to_string().into(), Way::Url(url))
    }

    /// A node that `dial` connects to.
    pub(super) fn dialled(name: Arc<str>, dial: Arc<dyn Dial>) -> Address {
        Address::new(name, Way::Dialled(dial))
    }

    fn new(name: Arc<str>, way: Way) -> Address {
        let has_served = Arc::default();
        Address { name, way, tls: None, is_deaf: false, must_be_master: false, has_served }
    }

    /// The server at this place, which must be a master, with the login and everything else of this
    /// address.
    pub(super) fn master_at(&self, place: Location) -> Address {
        let name = Arc::from(place.to_string());
        let way = match &self.way {
            Way::Url(url) => Way::Url(NodeUrl { place, ..url.clone() }),
            Way::Dialled(dial) => Way::Dialled(Arc::clone(dial)),
        };
        Address { name, way, must_be_master: true, ..self.clone() }
    }

    /// A random number from 0 to 1.
    pub(super) fn jitter(&self) -> f64 {
        match &self.way {
            Way::Dialled(dial) => dial.jitter(),
            Way::Url(_) => rand::random(),
        }
    }

    /// The address for people and reports, never with a password.
    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether it has a user or a password.
    pub(super) const fn has_login(&self) -> bool {
        matches!(&self.way, Way::Url(NodeUrl { password: Some(_), .. }))
    }

    /// Whether the connection is encrypted.
    pub(super) const fn is_tls(&self) -> bool {
        matches!(&self.way, Way::Url(NodeUrl { place: Location::Tcp { is_tls: true, .. }, .. }))
    }

    const fn is_plain_tcp(&self) -> bool {
        matches!(&self.way, Way::Url(NodeUrl { place: Location::Tcp { is_tls: false, .. }, .. }))
    }

    /// Sets how to encrypt the connection.
    pub(super) fn set_tls(&mut self, tls: Arc<rustls::ClientConfig>) {
        self.tls = Some(tls);
    }

    /// Skips the subscription.
    pub(super) fn set_deaf(&mut self) {
        self.is_deaf = true;
    }

    /// Whether both addresses lead to the same server, as far as can be seen. Another database of a
    /// server is the same node, because it stops when the server stops.
    pub(super) fn is_same_node(&self, other: &Address) -> bool {
        let (Way::Url(one), Way::Url(other)) = (&self.way, &other.way) else { return false };
        match (&one.place, &other.place) {
            (Location::Tcp { host, port, .. }, Location::Tcp { host: host2, port: port2, .. }) => {
                port == port2 && (host == host2 || (is_loopback(host) && is_loopback(host2)))
            }
            (Location::Unix(path), Location::Unix(path2)) => path == path2,
            (
                Location::Tcp { .. }
                | Location::Unix(_)
                | Location::Sentinels { .. }
                | Location::Cluster { .. },
                _,
            ) => false,
        }
    }

    /// Connects and logs in, for purposes other than locks.
    ///
    /// # Errors
    /// Why that was not possible. The caller sets the time limit.
    pub(super) async fn enter(&self) -> Result<Box<dyn Stream>, NoReply> {
        let mut stream = self.open().await.map_err(broken)?;
        if let Way::Url(url) = &self.way {
            log_in_by(&mut stream, url).await?;
        }
        Ok(stream)
    }

    /// Connects, logs in, selects the database, and listens to `channel`.
    ///
    /// # Errors
    /// Why that was not possible. The caller sets the time limit.
    pub(super) async fn connect(&self, channel: &[u8]) -> Result<Login, NoReply> {
        let stream = self.open().await.map_err(broken)?;
        let login = self.log_in(stream, channel).await;
        self.has_served.fetch_or(login.is_ok(), Relaxed);
        login.map_err(|failure| match failure {
            // A TLS port fails like this, because it expects a handshake. (A master that a Sentinel
            // or a Cluster has named is not reached over TLS by mistake.)
            NoReply::Unreachable(text)
                if self.is_plain_tcp()
                    && !self.must_be_master
                    && !self.has_served.load(Relaxed) =>
            {
                NoReply::Unreachable(format!("{text}; for TLS write rediss://").into())
            }
            failure => failure,
        })
    }

    async fn log_in(&self, mut stream: Box<dyn Stream>, channel: &[u8]) -> Result<Login, NoReply> {
        if let Way::Url(url) = &self.way {
            log_in_by(&mut stream, url).await?;
        }
        let hello = Packet::new(&[b"HELLO", b"3"]);
        let said = exchange(&mut stream, &[hello]).await?;
        let is_resp3 = matches!(said[..], [Reply::Map(_) | Reply::List(_)]);
        let mut asked = vec![Packet::new(&[b"PING"]), Packet::new(&[b"INFO", b"server"])];
        if self.must_be_master {
            asked.push(Packet::new(&[b"ROLE"]));
        }
        // Without RESP3 a subscribed connection would carry no commands.
        if is_resp3 && !self.is_deaf {
            asked.push(Packet::new(&[b"SUBSCRIBE", channel]));
        }
        // In the order of the requests.
        let mut reader = Reader::default();
        let mut replies = exchange_by(&mut reader, &mut stream, &asked).await?.into_iter();
        let (pong, info) = (replies.next(), replies.next());
        let role = if self.must_be_master { replies.next() } else { None };
        let subscribed = replies.next();
        if let Some(Reply::Error(text)) = pong {
            is_alive(&text)?;
        }
        let told = |field| info.as_ref().and_then(|info| info_field(info, field));
        // Valkey calls it `server_mode`.
        let mode = told("redis_mode:").or_else(|| told("server_mode:"));
        if mode == Some("sentinel") {
            let text = "it is a Sentinel: write redis+sentinel://host:port,host:port/group";
            return Err(NoReply::Refused(text.into()));
        }
        let is_in_cluster = mode == Some("cluster");
        let server = told("run_id:").and_then(ServerId::of);
        if let Some(role) = role {
            is_master(&role)?;
        }
        let hears = matches!(subscribed, Some(Reply::Push(_)));
        Ok(Login { stream, reader, server, hears, is_in_cluster })
    }

    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        let url = match &self.way {
            Way::Dialled(dial) => return dial.open().await,
            Way::Url(url) => url,
        };
        match &url.place {
            Location::Unix(path) => {
                let socket = UnixSocket::new_stream()?;
                sockets::note(&socket);
                Ok(Box::new(socket.connect(path).await?))
            }
            // The group or the Cluster has already been resolved to a master's address.
            Location::Sentinels { .. } | Location::Cluster { .. } => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Location::Tcp { host, port, .. } => {
                let stream = connect(host, *port).await?;
                stream.set_nodelay(true)?;
                // Without it, a connection that is lost is noticed later.
                let _ = keep_alive(&stream);
                let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
                let name = rustls::pki_types::ServerName::try_from(host.clone())
                    .map_err(io::Error::other)?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls));
                Ok(Box::new(connector.connect(name, stream).await?))
            }
        }
    }
}

/// Connects to the first address of this host that is reached.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in lookup_host((host, port)).await? {
        match connect_to(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    sockets::note(&socket);
    socket.connect(address).await
}

/// Has the system notice if the other end is gone.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_socket_keepalive(stream, true)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Logs in as the URL says, and selects its database.
async fn log_in_by(stream: &mut Box<dyn Stream>, url: &NodeUrl) -> Result<(), NoReply> {
    if let Some(password) = &url.password {
        let password = password.as_bytes();
        let login = match &url.user {
            Some(user) => Packet::new(&[b"AUTH", user.as_bytes(), password]),
            None => Packet::new(&[b"AUTH", password]),
        };
        login_as(stream, &login).await.map_err(|failure| match failure {
            NoReply::NoPermission(text) if text.contains(NEEDS_NO_PASSWORD) => {
                NoReply::NoPermission(NO_PASSWORD_SET.into())
            }
            failure => failure,
        })?;
    }
    if url.database != 0 {
        select(stream, url.database).await?;
    }
    Ok(())
}

/// Selects a database. A server has 16 by default.
async fn select(stream: &mut Box<dyn Stream>, database: i64) -> Result<(), NoReply> {
    let digits = database.to_string();
    let select = Packet::new(&[b"SELECT", digits.as_bytes()]);
    login_as(stream, &select).await.map_err(|failure| match failure {
        NoReply::NoPermission(text) if code::meaning_of(&text) != Meaning::Forbidden => {
            NoReply::Refused(format!("database {database} cannot be selected: {text}").into())
        }
        failure => failure,
    })
}

/// Sends a command of the login, which must succeed.
async fn login_as(stream: &mut Box<dyn Stream>, command: &Packet) -> Result<(), NoReply> {
    match exchange(stream, std::slice::from_ref(command)).await?.first() {
        Some(Reply::Error(text)) if code::meaning_of(text) == Meaning::Later => {
            Err(NoReply::Unavailable(text.as_str().into()))
        }
        Some(Reply::Error(text)) => Err(NoReply::NoPermission(text.as_str().into())),
        Some(_) | None => Ok(()),
    }
}

/// Sends commands and reads as many replies; an error counts as a reply.
async fn exchange(
    stream: &mut Box<dyn Stream>,
    commands: &[Packet],
) -> Result<Vec<Reply>, NoReply> {
    exchange_by(&mut Reader::default(), stream, commands).await
}

/// The same for a connection that is read further afterwards.
pub(super) async fn exchange_by(
    reader: &mut Reader,
    stream: &mut Box<dyn Stream>,
    commands: &[Packet],
) -> Result<Vec<Reply>, NoReply> {
    let bytes: Vec<u8> = commands.iter().flat_map(|command| command.bytes()).copied().collect();
    let written = async {
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    let written = written.await;
    let mut replies = Vec::with_capacity(commands.len());
    loop {
        while let Some(reply) = next_reply(reader)? {
            // These errors answer no command, and the connection breaks after them.
            if let Reply::Error(text) = &reply {
                if code::word_of(text) == code::DENIED.word {
                    return Err(NoReply::NoPermission(PROTECTED.into()));
                }
                if text.contains("max number of clients") {
                    return Err(NoReply::Unavailable(text.as_str().into()));
                }
            }
            replies.push(reply);
            if replies.len() == commands.len() {
                return Ok(replies);
            }
        }
        // A node that refuses a certificate says why and closes: its alert may be readable although
        // writing already fails.
        let mut chunk = [0; 4096];
        let length = stream.read(&mut chunk).await.map_err(broken)?;
        if length == 0 {
            written.map_err(broken)?;
            return Err(NoReply::Unreachable("the node closed the connection".into()));
        }
        reader.take(&chunk[..length]);
    }
}

/// The next reply of a node; for garbage, the error quotes its beginning.
pub(super) fn next_reply(reader: &mut Reader) -> Result<Option<Reply>, NoReply> {
    reader.next_reply().map_err(|garbage| {
        let quoted = &reader.rest()[..reader.rest().len().min(QUOTED_MAX)];
        let text = format!("{}: '{}'", garbage.0, quoted.escape_ascii());
        NoReply::Garbled(text.into())
    })
}

/// What an I/O error while connecting means.
fn broken(error: io::Error) -> NoReply {
    match tls::refusal(&error) {
        Some(text) => NoReply::Refused(text.into()),
        None => NoReply::Unreachable(plain(&error).into()),
    }
}

/// The value of this field in a server's INFO.
pub(super) fn info_field<'r>(info: &'r Reply, field: &str) -> Option<&'r str> {
    let Reply::Text(text) = info else { return None };
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix(field))
}

fn is_slave(word: &Reply) -> bool {
    matches!(word, Reply::Text(word) if **word == *b"slave")
}

/// What a reply to ROLE means, if it is not a master's.
fn is_master(role: &Reply) -> Result<(), NoReply> {
    match role {
        // Without this right, a master that was replaced would look like one.
        Reply::Error(text) if code::meaning_of(text) == Meaning::Forbidden => {
            Err(NoReply::NoPermission(text.as_str().into()))
        }
        Reply::List(parts) if parts.first().is_some_and(is_slave) => {
            let master = match &parts[1..] {
                [Reply::Text(host), Reply::Integer(port), ..] => {
                    let host = String::from_utf8_lossy(host).into_owned();
                    let port = u16::try_from(*port).unwrap_or_default();
                    format!(" of {}", Location::Tcp { host, port, is_tls: false })
                }
                _ => String::new(),
            };
            Err(NoReply::Unavailable(format!("it is a replica{master}").into()))
        }
        _ => Ok(()),
    }
}

/// What an error reply to PING means.
fn is_alive(text: &str) -> Result<(), NoReply> {
    match code::meaning_of(text) {
        // The server is alive, and a user who may not PING may be allowed other commands.
        _ if code::word_of(text) == code::NOPERM.word => Ok(()),
        Meaning::Forbidden => Err(NoReply::NoPermission(text.into())),
        _ => Err(NoReply::Unavailable(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::*;
    use tokio::io::ReadBuf;

    fn parse(url: &str) -> Result<Address, String> {
        node_url::read(url).map(Address::of)
    }

    #[test]
    fn urls_name_the_node_without_the_password() {
        let address = parse("redis://me:secret@Example.com:7000/3").unwrap();
        assert_eq!(&**address.name(), "example.com:7000");
        assert_eq!(&**parse("unix:///run/redis.sock").unwrap().name(), "/run/redis.sock");
        assert!(parse("rediss://h:1").unwrap().is_tls());
        assert!(parse("rediss://h:1/#insecure").is_err());
        assert!(parse("http://h").is_err());
    }

    #[test]
    fn another_database_or_name_of_a_server_is_the_same_node() {
        let address = |url| parse(url).unwrap();
        let one = address("redis://127.0.0.1:7000/1");
        assert!(one.is_same_node(&address("redis://LOCALHOST:7000/2")));
        assert!(one.is_same_node(&address("rediss://[::1]:7000")));
        assert!(!one.is_same_node(&address("redis://127.0.0.1:7001")));
        assert!(!one.is_same_node(&address("unix:///run/redis.sock")));
    }

    /// A node that refuses a certificate: its alert can be read, but nothing can be written.
    struct Refusing;

    impl Stream for Refusing {}

    impl AsyncWrite for Refusing {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncRead for Refusing {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let alert = rustls::AlertDescription::CertificateRequired;
            Poll::Ready(Err(io::Error::other(rustls::Error::AlertReceived(alert))))
        }
    }

    #[tokio::test]
    async fn the_words_of_a_node_that_refuses_are_read_although_nothing_can_be_written() {
        let mut stream: Box<dyn Stream> = Box::new(Refusing);
        let failure = exchange(&mut stream, &[Packet::new(&[b"PING"])]).await.unwrap_err();
        let text = "TLS: the node asks for a client certificate";
        assert_eq!(failure, NoReply::Refused(text.into()));
    }

    #[tokio::test]
    async fn a_stream_that_is_aborted_sends_nothing_more() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for is_aborted in [false, true] {
            let client = TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
            let (mut stream, _) = server.accept().unwrap();
            if is_aborted {
                client.abort();
            }
            drop(client);
            let read = io::Read::read(&mut stream, &mut [0; 8]).map_err(|error| error.kind());
            let reset = Err(io::ErrorKind::ConnectionReset);
            assert_eq!(read, if is_aborted { reset } else { Ok(0) });
        }
    }
}
