//! A locker for another language: its settings in plain fields, and the calls on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockmod::client::{Locker, NodeReport};

use crate::failure::{Failure, NodeVote};
use crate::holding::Holding;
use crate::process::{Background, Ours, background};

/// The longest length of time, also for "without end": a hundred years.
const LENGTH_MAX: f64 = 100.0 * 365.0 * 86_400.0;

/// The unit in which a language counts lengths of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// As in Python.
    #[default]
    Seconds,
    /// As in JavaScript.
    Milliseconds,
}

impl Unit {
    const fn word(self) -> &'static str {
        match self {
            Unit::Seconds => "seconds",
            Unit::Milliseconds => "milliseconds",
        }
    }

    const fn in_a_second(self) -> f64 {
        match self {
            Unit::Seconds => 1.0,
            Unit::Milliseconds => 1000.0,
        }
    }

    /// Reads a length of time.
    ///
    /// # Errors
    /// [`Failure`] if it is negative or not a number.
    pub(crate) fn length(self, name: &str, value: f64) -> Result<Duration, Failure> {
        let seconds = value / self.in_a_second();
        // Not min(): for NaN it returns the limit.
        let bounded = if seconds > LENGTH_MAX { LENGTH_MAX } else { seconds };
        Duration::try_from_secs_f64(bounded).map_err(|_| {
            let unit = self.word();
            Failure::option(format!("{name} is {value}: give a number of {unit}, 0 or more"))
        })
    }

    /// Passes a length of time to `take`, if there is one.
    fn set<T>(
        self,
        target: T,
        name: &str,
        value: Option<f64>,
        take: fn(T, Duration) -> T,
    ) -> Result<T, Failure> {
        Ok(match value {
            Some(value) => take(target, self.length(name, value)?),
            None => target,
        })
    }

    /// A length of time, in this unit.
    pub fn count(self, length: Duration) -> f64 {
        length.as_secs_f64() * self.in_a_second()
    }
}

/// The settings of a locker, with lengths of time in its unit; those that are not set have the
/// client's defaults.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The unit of lengths of time, here and in requests.
    pub unit: Unit,
    /// The URLs of the nodes.
    pub nodes: Vec<String>,
    /// The length of a lease.
    pub ttl: Option<f64>,
    /// The nodes' `lockmod.max-ttl`.
    pub max_ttl: Option<f64>,
    /// How long to wait for each node's answer.
    pub timeout: Option<f64>,
    /// How long to wait for a held lock.
    pub wait: Option<f64>,
    /// What is subtracted from the validity for clocks that run at different rates.
    pub drift: Option<f64>,
    /// How long before the end of its validity a lease counts as lost.
    pub lost_margin: Option<f64>,
    /// Whether leases are renewed in the background.
    pub renew: Option<bool>,
    /// The longest time to hold a lease, renewals included.
    pub max_hold: Option<f64>,
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
    pub wait: Option<f64>,
    /// The length of the lease.
    pub ttl: Option<f64>,
    /// A name for the caller, for people.
    pub label: Option<String>,
    /// Whether the lease is renewed in the background.
    pub renew: Option<bool>,
    /// The longest time to hold the lease, renewals included.
    pub max_hold: Option<f64>,
    /// As a reader: with other readers, but no writer.
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
}

/// A locker of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    inside: Arc<Inside>,
}

#[derive(Debug)]
pub(crate) struct Inside {
    locker: Ours<Locker>,
    unit: Unit,
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
}

impl Host {
    /// Checks the settings and starts to connect, without waiting for the connections.
    ///
    /// # Errors
    /// [`Failure`] of the kind [`Option`](crate::Kind::Option), whose text says what to do.
    pub fn new(settings: Settings) -> Result<Host, Failure> {
        let background = background()?;
        let unit = settings.unit;
        let mut builder = Locker::builder().nodes(settings.nodes);
        builder = unit.set(builder, "ttl", settings.ttl, |builder, ttl| builder.ttl(ttl))?;
        builder =
            unit.set(builder, "max_ttl", settings.max_ttl, |builder, max| builder.max_ttl(max))?;
        builder =
            unit.set(builder, "timeout", settings.timeout, |builder, time| builder.timeout(time))?;
        builder = unit.set(builder, "wait", settings.wait, |builder, wait| builder.wait(wait))?;
        builder =
            unit.set(builder, "drift", settings.drift, |builder, drift| builder.drift(drift))?;
        let margin = settings.lost_margin;
        builder =
            unit.set(builder, "lost_margin", margin, |builder, by| builder.lost_margin(by))?;
        builder =
            unit.set(builder, "max_hold", settings.max_hold, |builder, max| builder.max_hold(max))?;
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
        let locker = Ours::new(background, builder.build()?);
        let inside = Arc::new(Inside { locker, unit });
        background.hosts.note(&inside);
        Ok(Host { inside })
    }

    pub(crate) fn background(&self) -> &'static Background {
        self.inside.locker.background
    }

    pub(crate) fn unit(&self) -> Unit {
        self.inside.unit
    }

    /// A future that acquires the lock; nothing is sent before it is polled. Dropping it leaves
    /// nothing behind.
    ///
    /// # Errors
    /// [`Failure`] if the request is wrong, or this process is a forked child.
    pub fn acquire(
        &self,
        name: Vec<u8>,
        request: Request,
    ) -> Result<impl Future<Output = Result<Holding, Failure>> + Send + use<>, Failure> {
        let unit = self.unit();
        let mut acquire = self.inside.locker.get()?.acquire(name);
        acquire = unit.set(acquire, "wait", request.wait, |acquire, wait| acquire.wait(wait))?;
        acquire = unit.set(acquire, "ttl", request.ttl, |acquire, ttl| acquire.ttl(ttl))?;
        acquire =
            unit.set(acquire, "max_hold", request.max_hold, |acquire, max| acquire.max_hold(max))?;
        if let Some(label) = request.label {
            acquire = acquire.label(label);
        }
        if request.shared {
            acquire = acquire.shared();
        }
        if let Some(renew) = request.renew {
            acquire = acquire.renew(renew);
        }
        let host = self.clone();
        Ok(async move { Ok(Holding::new(host, acquire.await?)) })
    }

    /// A future that acquires all of these locks or none, in the order of their names. Those that
    /// are only in `shared` are acquired as a reader.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn acquire_many(
        &self,
        names: Vec<Vec<u8>>,
        shared: Vec<Vec<u8>>,
    ) -> Result<impl Future<Output = Result<Vec<Holding>, Failure>> + Send + use<>, Failure> {
        let locker = self.inside.locker.get()?.clone();
        let host = self.clone();
        Ok(async move {
            let guards = locker.acquire_many(names).and_shared(shared).await?;
            Ok(guards
                .into_vec()
                .into_iter()
                .map(|guard| Holding::new(host.clone(), guard))
                .collect())
        })
    }

    /// A future that asks each node about a lock.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn info(
        &self,
        name: Vec<u8>,
    ) -> Result<impl Future<Output = Vec<NodeState>> + Send + use<>, Failure> {
        let locker = self.inside.locker.get()?.clone();
        Ok(async move { locker.info(name).await.into_iter().map(state).collect() })
    }

    /// A future that waits until every reachable node has carried out everything that was sent to
    /// it, with each node's vote.
    ///
    /// # Errors
    /// [`Failure`] in a forked child.
    pub fn settle(&self) -> Result<impl Future<Output = Vec<NodeVote>> + Send + use<>, Failure> {
        let locker = self.inside.locker.get()?.clone();
        Ok(async move { locker.settle().await.iter().map(NodeVote::from).collect() })
    }
}

fn state(told: lockmod::client::NodeInfo) -> NodeState {
    let node = told.node.to_string();
    let (state, info, vote) = match told.info {
        Ok(info) => (info.state.to_string(), info, None),
        Err(vote) => {
            let report = NodeReport { node: told.node, vote };
            (String::new(), Default::default(), Some(NodeVote::from(&report)))
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
    }
}
