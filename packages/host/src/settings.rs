//! A locker for another language: its settings in plain fields, and the calls on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockmod::client::{Acquire, Locker, LockerBuilder, OptionRanges, joined};

use crate::failure::{Failure, NodeVote};
use crate::holding::Holding;
use crate::length::{Given, Span, Unit};
use crate::process::{Background, Ours, background};

/// How many nodes of a locker are shown.
const SHOWN_MAX: usize = 5;

/// The settings of a locker, with lengths of time in its unit; those that are not set have the
/// client's defaults.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The unit of lengths of time, here and in requests.
    pub unit: Unit,
    /// The URLs of the nodes.
    pub nodes: Vec<String>,
    /// The length of a lease.
    pub ttl: Option<Given>,
    /// The nodes' `lockmod.max-ttl`.
    pub max_ttl: Option<Given>,
    /// How long to wait for each node's answer.
    pub timeout: Option<Given>,
    /// How long to wait for a held lock.
    pub wait: Option<Given>,
    /// What is subtracted from the validity for clocks that run at different rates.
    pub drift: Option<Given>,
    /// How long before the end of its validity a lease counts as lost.
    pub lost_margin: Option<Given>,
    /// Whether leases are renewed in the background.
    pub renew: Option<bool>,
    /// The longest time to hold a lease, renewals included.
    pub max_hold: Option<Given>,
    /// A name for the caller, for people.
    pub label: Option<String>,
    /// Whether an even number of nodes is allowed.
    pub allow_even_nodes: bool,
    /// The file of the root certificates to trust for nodes.
    pub cacert: Option<PathBuf>,
    /// The file of the client's certificate.
    pub cert: Option<PathBuf>,
    /// The file of its key.
    pub key: Option<PathBuf>,
}

/// The options of an acquisition, with lengths of time in the locker's unit; those that are not set
/// are the locker's.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// How long to wait while another holds the lock; infinity waits forever.
    pub wait: Option<Given>,
    /// The length of the lease.
    pub ttl: Option<Given>,
    /// A name for the caller, for people.
    pub label: Option<String>,
    /// Whether the lease is renewed in the background.
    pub renew: Option<bool>,
    /// The longest time to hold the lease, renewals included.
    pub max_hold: Option<Given>,
    /// As a reader: with other readers, but no writer. For several locks, `acquire_many` has a list
    /// of those instead.
    pub shared: bool,
}

/// What one node reports about a lock.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Its vote, if it reports nothing.
    pub vote: Option<NodeVote>,
    /// The node's address, without password.
    pub node: String,
    /// `free`, `held` or `reserved`.
    pub state: String,
    /// The highest fence issued.
    pub fence: u64,
    /// The holder's label; of several readers, that of the one that has held it longest.
    pub label: Option<String>,
    /// How long the lease lasts unless it is extended; of several readers, the last one.
    pub left: Option<Duration>,
    /// How long it has been held.
    pub held_for: Option<Duration>,
    /// How many wait in line for it.
    pub waiters: u64,
    /// How many readers hold it; none if a writer does.
    pub readers: u64,
    /// The labels of the readers who have held it longest.
    pub reader_labels: Vec<String>,
    /// How many of those in line wait as readers.
    pub waiting_readers: u64,
    /// How long the first in line has been waiting.
    pub first_waiting: Option<Duration>,
}

/// The URLs of nodes in one text, separated by commas, as in `LOCKMOD_NODES`. A URL may contain
/// commas itself.
pub fn split_nodes(text: &str) -> Vec<String> {
    let urls = joined(text.split(',').map(str::to_owned));
    urls.iter().map(|url| url.trim().to_owned()).collect()
}

/// A locker of this process.
#[derive(Debug)]
pub struct Host {
    /// The nodes' addresses.
    nodes: Vec<String>,
    process: u32,
    is_closed: AtomicBool,
    /// What calls in progress and held locks have too; `None` when it is closed.
    inside: Mutex<Option<Arc<Inside>>>,
}

type SetLength = fn(LockerBuilder, Duration) -> LockerBuilder;
/// The lengths that an option can have, given the others.
type SpanOf = fn(OptionRanges) -> Span;

/// A locker, for as long as somebody needs its connections.
#[derive(Debug)]
pub(crate) struct Inside {
    locker: Ours<Locker>,
    unit: Unit,
    /// A node is reached over TLS.
    has_tls: bool,
    /// The ttls that a request may have.
    ttl: Span,
    /// The ttl of a request without one.
    usual_ttl: Duration,
}

/// Sets the options of a request for one lock, or for several: the client has a type for each, with
/// the same methods. With it comes the ttl.
macro_rules! set_options {
    ($inside:expr, $acquire:expr, $request:expr) => {{
        let (inside, mut acquire, request): (&Inside, _, Request) = ($inside, $acquire, $request);
        let (unit, mut length) = (inside.unit, inside.usual_ttl);
        if let Some(wait) = request.wait {
            acquire = acquire.wait(unit.length(Span::WAIT, &wait)?);
        }
        if let Some(ttl) = request.ttl {
            length = unit.length(inside.ttl, &ttl)?;
            acquire = acquire.ttl(length);
        }
        if let Some(max_hold) = request.max_hold {
            acquire = acquire.max_hold(unit.length(Span::MAX_HOLD, &max_hold)?);
        }
        if let Some(label) = request.label {
            acquire = acquire.label(label);
        }
        if request.shared {
            acquire = acquire.shared();
        }
        if let Some(renew) = request.renew {
            acquire = acquire.renew(renew);
        }
        Ok::<_, Failure>((acquire, length))
    }};
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A forked child must touch nothing of it.
        if let Some(locker) = self.locker.take() {
            let last = async move { drop(locker.settle().await) };
            self.locker.background.settle(last);
        }
    }
}

impl Inside {
    /// Writes what is still queued.
    pub(crate) fn settle(&self, background: &Background) {
        if let Ok(locker) = self.locker.get().cloned() {
            background.settle(async move { drop(locker.settle().await) });
        }
    }

    pub(crate) fn background(&self) -> &'static Background {
        self.locker.background
    }

    pub(crate) const fn unit(&self) -> Unit {
        self.unit
    }

    /// The ttls that a request may have.
    pub(crate) const fn ttl(&self) -> Span {
        self.ttl
    }

    /// The acquisition that this request describes, and its ttl.
    fn asked(&self, name: Vec<u8>, request: Request) -> Result<(Acquire, Duration), Failure> {
        check_name(&name)?;
        let acquire = self.locker.get()?.acquire(name);
        set_options!(self, acquire, request)
    }
}

impl Host {
    /// Checks the settings and starts to connect, without waiting for the connections.
    ///
    /// # Errors
    /// [`Failure`] of the kind [`Option`](crate::Kind::Option), whose text says what to do.
    pub fn new(settings: Settings) -> Result<Host, Failure> {
        let background = background()?;
        let unit = settings.unit;
        let is_tls = |url: &String| url.starts_with("rediss") || url.starts_with("valkeys");
        let has_tls = settings.nodes.iter().any(is_tls);
        let mut builder = Locker::builder().nodes(settings.nodes).lengths_in(unit.in_client());
        let lengths: [(SpanOf, Option<Given>, SetLength); 7] = [
            (Span::ttl, settings.ttl, LockerBuilder::ttl),
            (Span::max_ttl, settings.max_ttl, LockerBuilder::max_ttl),
            (Span::timeout, settings.timeout, LockerBuilder::timeout),
            (|_| Span::WAIT, settings.wait, LockerBuilder::wait),
            (Span::drift, settings.drift, LockerBuilder::drift),
            (Span::lost_margin, settings.lost_margin, LockerBuilder::lost_margin),
            (|_| Span::MAX_HOLD, settings.max_hold, LockerBuilder::max_hold),
        ];
        let mut refused = None;
        for (span, value, take) in lengths {
            let Some(value) = value else { continue };
            match unit.length(span(builder.ranges()), &value) {
                Ok(length) => builder = take(builder, length),
                Err(_) => refused = refused.or(Some((span, value))),
            }
        }
        // The range of an option depends on the others.
        let ranges = builder.ranges();
        if let Some((span, value)) = refused {
            unit.length(span(ranges), &value)?;
        }
        builder = builder.renew(settings.renew.unwrap_or(true));
        builder = builder.label(settings.label.unwrap_or_default());
        if settings.allow_even_nodes {
            builder = builder.allow_even_nodes();
        }
        if let Some(path) = settings.cacert {
            builder = builder.cacert(path);
        }
        if let Some(path) = settings.cert {
            builder = builder.cert(path);
        }
        if let Some(path) = settings.key {
            builder = builder.key(path);
        }
        let _inside = background.runtime.enter();
        let built = builder.build().map_err(|error| Failure::from(error).spelled(unit))?;
        let nodes = built.nodes().iter().map(|node| node.to_string()).collect();
        let locker = Ours::new(background, built);
        let (ttl, usual_ttl) = (Span::ttl(ranges), ranges.ttl);
        let inside = Arc::new(Inside { locker, unit, has_tls, ttl, usual_ttl });
        background.hosts.note(&inside);
        let (process, is_closed) = (background.process, AtomicBool::new(false));
        Ok(Host { nodes, process, is_closed, inside: Mutex::new(Some(inside)) })
    }

    /// What a call needs.
    ///
    /// # Errors
    /// [`Failure`] if the locker is closed, or this process is a forked child.
    fn inside(&self) -> Result<Arc<Inside>, Failure> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(Failure::closed());
        }
        if !self.is_here() {
            return Err(Failure::forked());
        }
        self.open().clone().ok_or_else(Failure::closed)
    }

    /// In a forked child nobody may lock the mutex: a thread that does not exist there may hold it.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    fn open(&self) -> MutexGuard<'_, Option<Arc<Inside>>> {
        // It is intact even if it is poisoned.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses every later call. Calls in progress go on, and held locks stay held; with the last
    /// of them the connections end, as soon as the nodes have carried out what was sent.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        if self.is_here() {
            let inside = self.open().take();
            drop(inside);
        }
    }

    /// Refuses what every call of a closed locker is refused with.
    ///
    /// # Errors
    /// [`Failure`] if the locker is closed, or this process is a forked child.
    pub fn check_open(&self) -> Result<(), Failure> {
        self.inside().map(drop)
    }

    /// The nodes' addresses, without passwords: a few of them. In a forked child, too.
    pub fn shown(&self) -> String {
        let nodes = &self.nodes;
        let few = nodes[..nodes.len().min(SHOWN_MAX)].join(", ");
        match nodes.len().saturating_sub(SHOWN_MAX) {
            0 => few,
            more => format!("{few} and {more} more"),
        }
    }

    /// Refuses what [`acquire`](Host::acquire) would refuse before it sends anything.
    ///
    /// # Errors
    /// [`Failure`] if the request is wrong, the locker is closed, or this process is a forked
    /// child.
    pub fn check(&self, name: Vec<u8>, request: Request) -> Result<(), Failure> {
        let inside = self.inside()?;
        let (mut acquire, _) = inside.asked(name, request)?;
        acquire.check().map_err(|error| Failure::from(error).spelled(inside.unit))
    }

    /// A future that acquires the lock; nothing is sent before it is polled. Dropping it leaves
    /// nothing behind.
    ///
    /// # Errors
    /// [`Failure`] if the request is wrong, the locker is closed, or this process is a forked
    /// child.
    pub fn acquire(
        &self,
        name: Vec<u8>,
        request: Request,
    ) -> Result<impl Future<Output = Result<Holding, Failure>> + Send + use<>, Failure> {
        let inside = self.inside()?;
        let (acquire, ttl) = inside.asked(name, request)?;
        Ok(async move {
            let (unit, has_tls) = (inside.unit, inside.has_tls);
            let failed = |error| Failure::from(error).spelled(unit).over_tls(has_tls);
            Ok(Holding::new(inside, acquire.await.map_err(failed)?, ttl))
        })
    }

    /// A future that acquires all of these locks or none, in the order of their names. Those that
    /// are only in `shared` are acquired as a reader.
    ///
    /// # Errors
    /// [`Failure`] if the request or a name is wrong, the locker is closed, or this process is a
    /// forked child.
    pub fn acquire_many(
        &self,
        names: Vec<Vec<u8>>,
        shared: Vec<Vec<u8>>,
        request: Request,
    ) -> Result<impl Future<Output = Result<Vec<Holding>, Failure>> + Send + use<>, Failure> {
        names.iter().chain(&shared).try_for_each(|name| check_name(name))?;
        let inside = self.inside()?;
        let acquire = inside.locker.get()?.acquire_many(names).and_shared(shared);
        let (acquire, ttl) = set_options!(&inside, acquire, request)?;
        Ok(async move {
            let (unit, has_tls) = (inside.unit, inside.has_tls);
            let failed = |error| Failure::from(error).spelled(unit).over_tls(has_tls);
            let guards = acquire.await.map_err(failed)?;
            Ok(guards
                .into_vec()
                .into_iter()
                .map(|guard| Holding::new(Arc::clone(&inside), guard, ttl))
                .collect())
        })
    }

    /// A future that asks each node about a lock.
    ///
    /// # Errors
    /// [`Failure`] if the name is empty or too long, the locker is closed, or this process is a
    /// forked child.
    pub fn info(
        &self,
        name: Vec<u8>,
    ) -> Result<impl Future<Output = Vec<NodeState>> + Send + use<>, Failure> {
        check_name(&name)?;
        let locker = self.inside()?.locker.get()?.clone();
        Ok(async move { locker.info(name).await.into_iter().map(state).collect() })
    }

    /// A future that waits until every reachable node has carried out everything that was sent to
    /// it, with each node's vote.
    ///
    /// # Errors
    /// [`Failure`] if the locker is closed, and in a forked child.
    pub fn settle(&self) -> Result<impl Future<Output = Vec<NodeVote>> + Send + use<>, Failure> {
        let locker = self.inside()?.locker.get()?.clone();
        Ok(async move { locker.settle().await.iter().map(NodeVote::from).collect() })
    }
}

/// An empty name is a lock like any other, but a program that asks for it means another. A longer
/// one cannot be acquired.
fn check_name(name: &[u8]) -> Result<(), Failure> {
    if name.is_empty() {
        return Err(Failure::option("the name is empty: is a variable not set?"));
    }
    lockmod::client::check_name(name).map_err(Failure::option)
}

fn state(told: lockmod::client::NodeInfo) -> NodeState {
    let node = told.node.to_string();
    let (state, info, vote) = match &told.info {
        Ok(info) => (info.state.to_string(), info.clone(), None),
        Err(vote) => {
            let vote = NodeVote::from(&told.report(vote.clone()));
            (String::new(), Default::default(), Some(vote))
        }
    };
    NodeState {
        vote,
        node,
        state,
        fence: info.fence.get(),
        label: info.label,
        left: info.left,
        held_for: info.held_for,
        waiters: info.waiters,
        readers: info.readers,
        reader_labels: info.reader_labels,
        waiting_readers: info.waiting_readers,
        first_waiting: info.first_waiting,
    }
}
