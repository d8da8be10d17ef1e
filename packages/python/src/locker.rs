//! A locker as an object: the settings come as keywords, and lengths of time in seconds.

use std::path::PathBuf;

use lockmod_host::{Given, Host, Request, Settings, Unit};
use pyo3::prelude::*;

use crate::outcome::{Port, Value, error, run};

/// A length of time: a number of seconds, or in a text what was given instead.
#[derive(FromPyObject)]
pub(crate) enum Length {
    Number(f64),
    Other(String),
}

impl From<Length> for Given {
    fn from(length: Length) -> Given {
        match length {
            Length::Number(seconds) => Given::Number(seconds),
            Length::Other(shown) => Given::Other(shown),
        }
    }
}

/// The options of an acquisition.
fn request(
    wait: Option<Length>,
    ttl: Option<Length>,
    label: Option<String>,
    renew: Option<bool>,
    max_hold: Option<Length>,
    shared: bool,
) -> Request {
    let (wait, ttl) = (wait.map(Given::from), ttl.map(Given::from));
    Request { wait, ttl, label, renew, max_hold: max_hold.map(Given::from), shared }
}

/// A locker.
#[pyclass(frozen, module = "lockmod._lockmod")]
pub(crate) struct Core(Host);

#[pymethods]
impl Core {
    #[new]
    #[allow(clippy::too_many_arguments)] // Keywords: Python's Locker has the same.
    #[pyo3(signature = (nodes, *, ttl, max_ttl, timeout, wait, drift, lost_margin, renew, max_hold,
        label, allow_even_nodes, cacert, cert, key))]
    fn new(
        py: Python<'_>,
        nodes: Vec<String>,
        ttl: Option<Length>,
        max_ttl: Option<Length>,
        timeout: Option<Length>,
        wait: Option<Length>,
        drift: Option<Length>,
        lost_margin: Option<Length>,
        renew: bool,
        max_hold: Option<Length>,
        label: String,
        allow_even_nodes: bool,
        cacert: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> PyResult<Core> {
        let settings = Settings {
            unit: Unit::Seconds,
            nodes,
            ttl: ttl.map(Given::from),
            max_ttl: max_ttl.map(Given::from),
            timeout: timeout.map(Given::from),
            wait: wait.map(Given::from),
            drift: drift.map(Given::from),
            lost_margin: lost_margin.map(Given::from),
            renew: Some(renew),
            max_hold: max_hold.map(Given::from),
            label: Some(label),
            allow_even_nodes,
            cacert,
            cert,
            key,
        };
        // Certificates are read from files here.
        py.detach(|| Host::new(settings)).map(Core).map_err(|failure| error(py, &failure))
    }

    /// The nodes' addresses, for people.
    fn shown(&self) -> String {
        self.0.shown()
    }

    /// Refuses every later call.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    /// Raises `RefusedError` if it is closed.
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        self.0.check_open().map_err(|failure| error(py, &failure))
    }

    #[allow(clippy::too_many_arguments)] // Keywords: Python's acquire() has the same.
    #[pyo3(signature = (name, wait, ttl, label, renew, max_hold, shared, port=None))]
    fn acquire<'py>(
        &self,
        py: Python<'py>,
        name: Vec<u8>,
        wait: Option<Length>,
        ttl: Option<Length>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<Length>,
        shared: bool,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = request(wait, ttl, label, renew, max_hold, shared);
        let acquire = self.0.acquire(name, request);
        run(py, port, acquire.map(|acquire| async move { acquire.await.map(Value::Lease) }))
    }

    /// Refuses what `acquire` would refuse before it sends anything.
    #[allow(clippy::too_many_arguments)] // As above.
    fn check(
        &self,
        py: Python<'_>,
        name: Vec<u8>,
        wait: Option<Length>,
        ttl: Option<Length>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<Length>,
        shared: bool,
    ) -> PyResult<()> {
        let request = request(wait, ttl, label, renew, max_hold, shared);
        self.0.check(name, request).map_err(|failure| error(py, &failure))
    }

    #[allow(clippy::too_many_arguments)] // As above.
    #[pyo3(signature = (names, shared, wait, ttl, label, renew, max_hold, port=None))]
    fn acquire_many<'py>(
        &self,
        py: Python<'py>,
        names: Vec<Vec<u8>>,
        shared: Vec<Vec<u8>>,
        wait: Option<Length>,
        ttl: Option<Length>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<Length>,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = request(wait, ttl, label, renew, max_hold, false);
        let acquire = self.0.acquire_many(names, shared, request);
        run(py, port, acquire.map(|acquire| async move { acquire.await.map(Value::Leases) }))
    }

    #[pyo3(signature = (name, port=None))]
    fn info<'py>(
        &self,
        py: Python<'py>,
        name: Vec<u8>,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let info = self.0.info(name);
        run(py, port, info.map(|info| async move { Ok(Value::States(info.await)) }))
    }

    #[pyo3(signature = (port=None))]
    fn settle<'py>(&self, py: Python<'py>, port: Option<&Port>) -> PyResult<Bound<'py, PyAny>> {
        let settle = self.0.settle();
        run(py, port, settle.map(|settle| async move { Ok(Value::Votes(settle.await)) }))
    }
}
