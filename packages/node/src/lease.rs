//! A lock that is held, as an object.

use lockmod_host::Holding;
use napi_derive::napi;

use crate::locker::{Length, given};
use crate::outcome::{Failed, Port, Value, milliseconds};

/// A lock that is held. Garbage collection releases it.
#[napi]
pub struct Lease(Holding);

impl Lease {
    pub(crate) const fn new(holding: Holding) -> Lease {
        Lease(holding)
    }
}

#[napi]
impl Lease {
    /// The fencing token: exact, because fences end at 2^53 - 1.
    #[napi(getter)]
    pub fn fence(&self) -> f64 {
        self.0.fence() as f64
    }

    /// The lock's name.
    #[napi(getter)]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.0.name()).into_owned()
    }

    /// How many milliseconds the lease may still be relied on.
    #[napi]
    pub fn validity(&self) -> f64 {
        milliseconds(self.0.validity())
    }

    /// Whether it is a writer's.
    #[napi]
    pub fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    /// Why the lease has ended, if it has.
    #[napi]
    pub fn reason(&self) -> Option<&'static str> {
        self.0.reason()
    }

    /// The error of a lease that has ended, if it has.
    #[napi]
    pub fn loss(&self) -> Option<Failed> {
        // Node.js processes are not forked, so it cannot belong to another process.
        self.0.loss().unwrap_or_else(Some).map(Failed::from)
    }

    /// Fails once the lease has ended, with the error of that.
    #[napi]
    pub fn lost(&self, port: &Port) -> f64 {
        port.run(self.0.lost().map(|lost| async move { Err(lost.await) }))
    }

    /// Extends it, with another ttl if one is given.
    #[napi]
    pub fn extend(&self, port: &Port, ttl: Option<Length>) -> f64 {
        let extend = self.0.extend(ttl.map(given));
        port.run(extend.map(|extend| async move { extend.await.map(|()| Value::Nothing) }))
    }

    /// Makes a writer a reader.
    #[napi]
    pub fn downgrade(&self, port: &Port) -> f64 {
        let downgrade = self.0.downgrade();
        port.run(downgrade.map(|done| async move { done.await.map(|()| Value::Nothing) }))
    }

    /// Releases it, and waits for a quorum.
    #[napi]
    pub fn release(&self, port: &Port) -> f64 {
        let release = self.0.release();
        port.run(release.map(|release| async move { release.await.map(|()| Value::Nothing) }))
    }

    /// From now on the lease lasts until its end, unless it is released.
    #[napi]
    pub fn keep(&self) {
        // As in `abandon`.
        drop(self.0.keep());
    }

    /// Releases without waiting for any node.
    #[napi]
    pub fn abandon(&self) {
        // Node.js processes are not forked, so it cannot belong to another process.
        drop(self.0.abandon());
    }
}
