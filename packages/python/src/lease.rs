//! A lock that is held, as an object.

use lockmod_host::{Given, Holding};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::locker::Length;
use crate::outcome::{Port, Value, error, run, seconds};

/// A lock that is held.
#[pyclass(frozen, module = "lockmod._lockmod")]
pub(crate) struct Lease(Holding);

impl Lease {
    pub(crate) fn new(holding: Holding) -> Lease {
        Lease(holding)
    }
}

/// Releases all of these at once. For each there is the exception of its release, or None.
#[pyfunction]
#[pyo3(signature = (leases, port=None))]
pub(crate) fn release_all<'py>(
    py: Python<'py>,
    leases: Vec<PyRef<'py, Lease>>,
    port: Option<&Port>,
) -> PyResult<Bound<'py, PyAny>> {
    let holdings: Vec<&Holding> = leases.iter().map(|lease| &lease.0).collect();
    let released = Holding::release_all(&holdings);
    run(py, port, Ok(async move { Ok(Value::Released(released.await)) }))
}

#[pymethods]
impl Lease {
    #[getter]
    fn fence(&self) -> u64 {
        self.0.fence()
    }

    #[getter]
    fn name(&self) -> &[u8] {
        self.0.name()
    }

    fn validity(&self) -> f64 {
        seconds(self.0.validity())
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    /// The exception of a lease that has ended, if it has.
    fn loss<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let loss = self.0.loss().map_err(|failure| error(py, &failure))?;
        loss.map(|failure| error(py, &failure).into_bound_py_any(py)).transpose()
    }

    /// Raises that exception.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.0.loss() {
            Ok(None) => Ok(()),
            Ok(Some(failure)) | Err(failure) => Err(error(py, &failure)),
        }
    }

    /// Why the lease has ended, once it has, or None after `timeout` seconds.
    #[pyo3(signature = (timeout, port=None))]
    fn lost<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<Length>,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lost = self.0.lost_within(timeout.map(Given::from));
        let word = |lost: Option<&'static str>| lost.map_or(Value::Nothing, Value::Word);
        run(py, port, lost.map(|lost| async move { Ok(word(lost.await)) }))
    }

    #[pyo3(signature = (ttl, port=None))]
    fn extend<'py>(
        &self,
        py: Python<'py>,
        ttl: Option<Length>,
        port: Option<&Port>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let extend = self.0.extend(ttl.map(Given::from));
        run(py, port, extend.map(|extend| async move { extend.await.map(|()| Value::Nothing) }))
    }

    #[pyo3(signature = (port=None))]
    fn downgrade<'py>(&self, py: Python<'py>, port: Option<&Port>) -> PyResult<Bound<'py, PyAny>> {
        let downgrade = self.0.downgrade();
        let done = downgrade.map(|done| async move { done.await.map(|()| Value::Nothing) });
        run(py, port, done)
    }

    #[pyo3(signature = (port=None))]
    fn release<'py>(&self, py: Python<'py>, port: Option<&Port>) -> PyResult<Bound<'py, PyAny>> {
        let release = self.0.release();
        run(py, port, release.map(|release| async move { release.await.map(|()| Value::Nothing) }))
    }

    /// From now on the lease lasts until its end, unless it is released.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        self.0.keep().map_err(|failure| error(py, &failure))
    }

    /// Releases without waiting for any node.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        self.0.abandon().map_err(|failure| error(py, &failure))
    }
}
