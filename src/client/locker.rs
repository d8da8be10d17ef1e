//! The locker, which acquires locks for a program.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::Acquire;
use super::core::{Core, Stats};
use super::error::{BuildError, WithError};
use super::holder::Holder;
use super::many::AcquireMany;
use super::packet::Packet;
use super::settings::LockerBuilder;
use super::vote::{NodeReport, Vote};
use super::world::{AnyWorld, Network, World};
use crate::engine::Fence;

/// How often it is looked at whether releases have been carried out.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Acquires locks over a quorum of nodes. Cheap to clone; clones share the connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lockmod::client::Locker;
///
/// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
/// let locker = Locker::builder().nodes(nodes).build()?;
/// let guard = locker.acquire("nightly-report").await?;
/// println!("working with fence {}", guard.fence());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locker {
    core: Arc<Core>,
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl Locker {
    /// The nodes' addresses, without passwords, in their order.
    pub fn nodes(&self) -> &[Arc<str>] {
        self.core.world.nodes()
    }

    /// Starts to collect settings.
    pub fn builder() -> LockerBuilder {
        LockerBuilder::default()
    }
}

impl LockerBuilder {
    /// Checks the settings and starts to connect, without waiting for the connections.
    ///
    /// The connections live on the tokio runtime that this is called in, and the locker with them.
    ///
    /// # Errors
    /// [`BuildError`], whose text says what to do.
    pub fn build(self) -> Result<Locker, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let addresses = self.addresses()?;
        let (quorum, settings) = self.check(addresses.len())?;
        let network = Network::start(addresses, settings.plan.timeout, runtime);
        Ok(Locker::from_core(Core::new(AnyWorld::Network(network), quorum, settings)))
    }

    #[doc(hidden)]
    /// A locker in a custom world, for simulations. Nodes given by URL are ignored.
    ///
    /// # Errors
    /// [`BuildError`], as [`LockerBuilder::build`].
    pub fn build_in(self, world: impl World) -> Result<Locker, BuildError> {
        let (quorum, settings) = self.check(world.nodes().len())?;
        let world = AnyWorld::Own(Box::new(world));
        Ok(Locker::from_core(Core::new(world, quorum, settings)))
    }
}

impl Locker {
    pub(super) fn from_core(core: Core) -> Locker {
        Locker { core: Arc::new(core) }
    }

    pub(super) const fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Acquires the lock `name`, waiting while another holds it, for as long as the settings or
    /// [`Acquire::wait`] allow. A name is any bytes, at most [`NAME_MAX`](super::NAME_MAX).
    ///
    /// # Errors
    /// [`AcquireError`](super::AcquireError), with each node's vote.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind: see [`Acquire`].
    ///
    /// ```no_run
    /// # use lockmod::client::Locker;
    /// # async fn example(locker: Locker) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let guard = locker
    ///     .acquire("account-17")
    ///     .wait(Duration::from_secs(2))
    ///     .label("worker-7")
    ///     .await?;
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Acquire {
        Acquire::new(Arc::clone(&self.core), name.as_ref())
    }

    /// Acquires the lock `name` if nobody holds it, trying once.
    ///
    /// # Errors
    /// [`AcquireError::Held`](super::AcquireError::Held) if another holds it, or another variant.
    ///
    /// # Cancellation
    /// As [`Locker::acquire`].
    pub fn try_acquire(&self, name: impl AsRef<[u8]>) -> Acquire {
        self.acquire(name).wait(std::time::Duration::ZERO)
    }

    /// Acquires all of these locks or none. They are acquired in the order of their names, whatever
    /// order they are given in, so that two callers cannot wait for each other; a name that is
    /// given twice counts once. The wait is for all of them together.
    ///
    /// # Errors
    /// [`AcquireError`](super::AcquireError) of the first lock that was not acquired; those before
    /// it are released.
    ///
    /// # Cancellation
    /// As [`Locker::acquire`].
    ///
    /// ```no_run
    /// # use lockmod::client::Locker;
    /// # async fn example(locker: Locker) -> Result<(), Box<dyn std::error::Error>> {
    /// let accounts = locker.acquire_many(["account-17", "account-4"]).label("transfer").await?;
    /// # accounts.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire_many<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> AcquireMany {
        let names = names.into_iter().map(|name| name.as_ref().to_vec());
        AcquireMany::new(&self.core, names)
    }

    /// Runs `work` under the lock `name`, then releases the lock: [`Acquire::with`] with the
    /// settings of the locker.
    ///
    /// # Errors
    /// [`WithError`].
    ///
    /// # Cancellation
    /// The work is dropped, and the lock is released in the background.
    ///
    /// ```no_run
    /// # use lockmod::client::Locker;
    /// # async fn example(locker: Locker) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let sum = locker.with("account-17", async |fence| fence.get() + 1).await?;
    /// let brief = locker.acquire("account-17").ttl(Duration::from_secs(5)).wait(Duration::ZERO);
    /// let sum = brief.with(async |fence| fence.get() + 1).await?;
    /// # Ok(()) }
    /// ```
    pub async fn with<T>(
        &self,
        name: impl AsRef<[u8]>,
        work: impl AsyncFnOnce(Fence) -> T,
    ) -> Result<T, WithError> {
        self.acquire(name).with(work).await
    }

    /// What this locker has done so far.
    pub fn stats(&self) -> Stats {
        self.core.counters.read()
    }

    /// A holder, which may acquire a lock that it already has.
    pub fn holder(&self) -> Holder {
        Holder::new(Arc::clone(&self.core))
    }

    /// Waits until every reachable node has carried out everything that was sent to it, including
    /// the releases of dropped guards and cancelled acquisitions, for at most the locker's timeout.
    /// If a node's connection broke before it answered a release, reconnects within that time.
    /// Returns each node's vote.
    ///
    /// A runtime that shuts down closes its connections: a release that was not written by then is
    /// not sent, and the lease ends with its ttl. Call this at the end of a program that drops
    /// guards instead of releasing them. The blocking facade does so automatically.
    pub async fn settle(&self) -> Vec<NodeReport> {
        let all = self.core.quorum.all();
        let owes = |node| self.core.world.owes(node);
        let ping = Packet::new(&[b"PING"]);
        let pinged = self.core.insist(&ping, all, owes);
        // A release that a node puts off is behind the answer to that.
        let (votes, ()) = tokio::join!(pinged, self.discharge(&[], [Duration::ZERO; 2]));
        let nodes = self.core.world.nodes().iter().zip(votes);
        nodes.map(|(node, vote)| NodeReport::new(Arc::clone(node), vote)).collect()
    }

    /// Waits until every release that was sent has been carried out, for at most the locker's
    /// timeout, or longer: for `hindered` if a node that owes one cannot be reached, or puts it
    /// off, for it may be restarting; for `silent` if one just does not answer, for it may drop
    /// what it has when the connection ends, as while its writes are paused. Not for one that did
    /// not answer in time by these votes.
    #[doc(hidden)]
    pub async fn discharge(&self, votes: &[NodeReport], [hindered, silent]: [Duration; 2]) {
        let (world, timeout) = (&self.core.world, self.core.settings.plan.timeout);
        let is_late = |node: usize| {
            let name = &world.nodes()[node];
            votes.iter().any(|vote| vote.vote == Vote::TimedOut && vote.node == *name)
        };
        let (started_at, mut longest) = (world.now(), Duration::ZERO);
        loop {
            let owing = (0..world.nodes().len()).filter(|node| world.owes(*node));
            let waits = owing.map(|node| match world.is_hindered(node) {
                true => hindered.max(timeout),
                false if is_late(node) => Duration::ZERO,
                false => silent.max(timeout),
            });
            let Some(wait) = waits.max() else { return };
            // One that is back has yet to answer.
            longest = longest.max(wait);
            if world.now().saturating_sub(started_at) >= longest {
                return;
            }
            world.sleep(LOOK_EVERY).await;
        }
    }

    /// The nodes that have not carried out every release that was sent to them, as far as the
    /// locker knows. Each keeps the lease until it ends, unless the node can be reached again while
    /// this program runs.
    pub fn owing(&self) -> Vec<Arc<str>> {
        let nodes = self.core.world.nodes().iter().enumerate();
        let owing = nodes.filter(|(node, _)| self.core.world.owes(*node));
        owing.map(|(_, name)| Arc::clone(name)).collect()
    }
}
