//! A locker as an object: the settings come as keywords, and lengths of time in seconds.

use std::path::PathBuf;

use lockmod_host::{Host, Request, Settings, Unit};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::outcome::{Port, Value, error, run};

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
        ttl: Option<f64>,
        max_ttl: Option<f64>,
        timeout: Option<f64>,
        wait: Option<f64>,
        drift: Option<f64>,
        lost_margin: Option<f64>,
        renew: bool,
        max_hold: Option<f64>,
        label: String,
        allow_even_nodes: bool,
        cacert: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> PyResult<Core> {
        let settings = Settings {
            unit: Unit::Seconds,
            nodes,
            ttl,
            max_ttl,
            timeout,
            wait,
            drift,
            lost_margin,
            renew: Some(renew),
            max_hold,
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

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a Locker cannot be pickled: make one in each process"))
    }

    #[allow(clippy::too_many_arguments)] // Keywords: Python's acquire() has the same.
    #[pyo3(signature = (name, wait, ttl, label, renew, max_hold, shared, port=None))]
    fn acquire<'py>(
        &self,
        py: Python<'py>,
        name: Vec<u8>,
        wait: Option<f64>,
        ttl: Option<f64>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<f64>,
        shared: bool,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = Request { wait, ttl, label, renew, max_hold, shared };
        let acquire = self.0.acquire(name, request);
        run(py, port, acquire.map(|acquire| async move { acquire.await.map(Value::Lease) }))
    }

    /// Refuses what `acquire` would refuse before it sends anything.
    #[allow(clippy::too_many_arguments)] // As above.
    fn check(
        &self,
        py: Python<'_>,
        name: Vec<u8>,
        wait: Option<f64>,
        ttl: Option<f64>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<f64>,
        shared: bool,
    ) -> PyResult<()> {
        let request = Request { wait, ttl, label, renew, max_hold, shared };
        self.0.check(name, request).map_err(|failure| error(py, &failure))
    }

    #[allow(clippy::too_many_arguments)] // As above.
    #[pyo3(signature = (names, shared, wait, ttl, label, renew, max_hold, port=None))]
    fn acquire_many<'py>(
        &self,
        py: Python<'py>,
        names: Vec<Vec<u8>>,
        shared: Vec<Vec<u8>>,
        wait: Option<f64>,
        ttl: Option<f64>,
        label: Option<String>,
        renew: Option<bool>,
        max_hold: Option<f64>,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = Request { wait, ttl, label, renew, max_hold, shared: false };
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
