//! Several locks at once, all or nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::{Acquire, options};
use super::core::Core;
use super::error::{AcquireError, Lost, ReleaseError};
use super::guard::Guard;
use super::printable::InShort;
use crate::engine::Mode;

/// The guards of several locks, in the order of their names.
#[must_use = "guards that are dropped release their locks"]
pub struct Guards {
    guards: Vec<Guard>,
}

/// An acquisition of several locks about to be made: `locker.acquire_many(names)`, options,
/// `.await`. The options are those of [`Acquire`]; the wait is for all of the locks together. If a
/// lease ends while others are waited for, all are acquired anew, once more after the wait too.
///
/// # Cancellation
/// As [`Acquire`].
#[must_use = "an acquisition does nothing unless it is awaited"]
pub struct AcquireMany {
    acquire: Acquire,
    names: BTreeMap<Vec<u8>, Mode>,
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}

impl fmt::Debug for AcquireMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<InShort<'_>> = self.names.keys().map(|name| InShort(name)).collect();
        f.debug_struct("AcquireMany").field("names", &names).finish_non_exhaustive()
    }
}

impl AcquireMany {
    pub(super) fn new(core: &Arc<Core>, names: impl Iterator<Item = Vec<u8>>) -> AcquireMany {
        let names = names.map(|name| (name, Mode::Exclusive)).collect();
        AcquireMany { acquire: Acquire::new(Arc::clone(core), b""), names }
    }

    /// Adds these locks, as a reader. A lock that is also requested as a writer stays a writer's.
    pub fn and_shared<N: AsRef<[u8]>>(mut self, names: impl IntoIterator<Item = N>) -> AcquireMany {
        for name in names {
            self.names.entry(name.as_ref().to_vec()).or_insert(Mode::Shared);
        }
        self
    }

    options!();

    /// Refuses options that cannot work, even if there are no locks to acquire.
    ///
    /// # Errors
    /// [`AcquireError::BadOption`].
    pub(super) fn check(&mut self) -> Result<(), AcquireError> {
        self.acquire.check()
    }

    async fn run(mut self) -> Result<Guards, AcquireError> {
        self.check()?;
        let started_at = self.acquire.now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let is_last = self.acquire.has_waited_since(started_at);
            let guards = self.all(started_at).await?;
            // A lease may have ended while the other locks were waited for.
            let Some(lost) = guards.iter().find(|guard| guard.is_lost()) else { return Ok(guards) };
            let error = self.acquire.too_late(lost, started_at, attempts);
            drop(guards.release().await);
            if is_last {
                return Err(error);
            }
        }
    }

    /// All of them, one after the other.
    async fn all(&self, started_at: Duration) -> Result<Guards, AcquireError> {
        let mut guards = Vec::with_capacity(self.names.len());
        for (name, mode) in &self.names {
            let waited = self.acquire.now().saturating_sub(started_at);
            match self.acquire.after((name, *mode), waited).await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    // Best effort: the caller needs the error of the lock.
                    drop(Guards { guards }.release().await);
                    return Err(error);
                }
            }
        }
        Ok(Guards { guards })
    }
}

impl IntoFuture for AcquireMany {
    type Output = Result<Guards, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The guards one by one, in the order of their names, each to be released separately.
impl IntoIterator for Guards {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.guards.into_iter()
    }
}

impl<'g> IntoIterator for &'g Guards {
    type Item = &'g Guard;
    type IntoIter = std::slice::Iter<'g, Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Guards {
    /// The guards one by one, in the order of their names, each to be released separately.
    #[must_use = "guards that are dropped release their locks"]
    pub fn into_vec(self) -> Vec<Guard> {
        self.guards
    }

    /// The guard of the lock `name`.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Guard> {
        self.guards.iter().find(|guard| guard.name() == name.as_ref())
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.guards.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// All guards, in the order of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, Guard> {
        self.guards.iter()
    }

    /// Waits until the first of the leases is lost, and returns why. Never resolves if there are no
    /// guards.
    ///
    /// # Cancellation
    /// The future may be dropped, and a new one created, at any time.
    pub async fn lost(&self) -> Lost {
        let mut all: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        std::future::poll_fn(|ctx| {
            for lost in &mut all {
                let lost = lost.as_mut().poll(ctx);
                if lost.is_ready() {
                    return lost;
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Releases all of them at once.
    ///
    /// # Errors
    /// The first [`ReleaseError`]; the others are released anyway.
    ///
    /// # Cancellation
    /// The rest is released in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let results = join_all(self.guards.into_iter().map(Guard::release)).await;
        results.into_iter().collect()
    }
}
