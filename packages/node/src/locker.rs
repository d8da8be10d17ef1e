//! A locker as an object: the settings come as one object, lengths of time in milliseconds.

use lockmod_host::{Given, Host, Request, Settings, Unit};
use napi::bindgen_prelude::{Either, Uint8Array};
use napi_derive::napi;

use crate::outcome::{Failed, Port, Value};

/// A lock's name, as text or as bytes.
type Name = Either<String, Uint8Array>;

fn bytes(name: Name) -> Vec<u8> {
    match name {
        Either::A(text) => text.into_bytes(),
        Either::B(bytes) => bytes.to_vec(),
    }
}

/// A length of time: a number of milliseconds, or in a text what was given instead.
pub(crate) type Length = Either<f64, String>;

pub(crate) fn given(length: Length) -> Given {
    match length {
        Either::A(milliseconds) => Given::Number(milliseconds),
        Either::B(shown) => Given::Other(shown),
    }
}

/// The options of an acquisition.
fn request(
    wait: Option<Length>,
    ttl: Option<Length>,
    label: Option<String>,
    renew: Option<bool>,
    max_hold: Option<Length>,
    shared: Option<bool>,
) -> Request {
    let (wait, ttl, max_hold) = (wait.map(given), ttl.map(given), max_hold.map(given));
    Request { wait, ttl, label, renew, max_hold, shared: shared.unwrap_or(false) }
}

/// The settings of a locker, the same as in JavaScript.
#[napi(object, object_to_js = false)]
pub struct Made {
    /// The URLs of the nodes.
    pub nodes: Vec<String>,
    // The others are described in `Settings`.
    pub ttl: Option<Length>,
    pub max_ttl: Option<Length>,
    pub timeout: Option<Length>,
    pub wait: Option<Length>,
    pub drift: Option<Length>,
    pub lost_margin: Option<Length>,
    pub renew: Option<bool>,
    pub max_hold: Option<Length>,
    pub label: Option<String>,
    pub allow_even_nodes: Option<bool>,
    pub cacert: Option<String>,
    pub cert: Option<String>,
    pub key: Option<String>,
}

impl From<Made> for Settings {
    fn from(made: Made) -> Settings {
        Settings {
            unit: Unit::Milliseconds,
            nodes: made.nodes,
            ttl: made.ttl.map(given),
            max_ttl: made.max_ttl.map(given),
            timeout: made.timeout.map(given),
            wait: made.wait.map(given),
            drift: made.drift.map(given),
            lost_margin: made.lost_margin.map(given),
            renew: made.renew,
            max_hold: made.max_hold.map(given),
            label: made.label,
            allow_even_nodes: made.allow_even_nodes.unwrap_or(false),
            cacert: made.cacert.map(Into::into),
            cert: made.cert.map(Into::into),
            key: made.key.map(Into::into),
        }
    }
}

/// A locker, or why there is none.
#[napi]
pub fn open(made: Made) -> Either<Core, Failed> {
    match Host::new(made.into()) {
        Ok(host) => Either::A(Core(host)),
        Err(failure) => Either::B(failure.into()),
    }
}

/// A locker.
#[napi]
pub struct Core(Host);

#[napi]
impl Core {
    /// The nodes' addresses, for people.
    #[napi]
    pub fn shown(&self) -> String {
        self.0.shown()
    }

    /// Refuses every later call.
    #[napi]
    pub fn close(&self) {
        self.0.close();
    }

    /// Acquires one lock.
    #[napi]
    #[allow(clippy::too_many_arguments)] // They are optional, and an object costs more.
    pub fn acquire(
        &self,
        port: &Port,
        name: Name,
        wait: Option<Length>,
        ttl: Option<Length>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<Length>,
        shared: Option<bool>,
    ) -> f64 {
        let request = request(wait, ttl, label, renew, max_hold, shared);
        let acquire = self.0.acquire(bytes(name), request);
        port.run(acquire.map(|acquire| async move {
            acquire.await.map(|holding| Value::Leases(vec![holding]))
        }))
    }

    /// Acquires several or none; `shared` as a reader.
    #[napi]
    #[allow(clippy::too_many_arguments)] // As above.
    pub fn acquire_many(
        &self,
        port: &Port,
        names: Vec<Name>,
        shared: Vec<Name>,
        wait: Option<Length>,
        ttl: Option<Length>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<Length>,
    ) -> f64 {
        let all = |names: Vec<Name>| names.into_iter().map(bytes).collect();
        let request = request(wait, ttl, label, renew, max_hold, None);
        let acquire = self.0.acquire_many(all(names), all(shared), request);
        port.run(acquire.map(|acquire| async move { acquire.await.map(Value::Leases) }))
    }

    /// Asks each node about a lock.
    #[napi]
    pub fn info(&self, port: &Port, name: Name) -> f64 {
        let info = self.0.info(bytes(name));
        port.run(info.map(|info| async move { Ok(Value::States(info.await)) }))
    }

    /// Waits until everything that was sent is carried out.
    #[napi]
    pub fn settle(&self, port: &Port) -> f64 {
        let settle = self.0.settle();
        port.run(settle.map(|settle| async move { Ok(Value::Votes(settle.await)) }))
    }
}
