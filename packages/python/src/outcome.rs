//! The results of calls, and the two ways to wait for them.

use std::thread;
use std::time::Duration;

use lockmod_host::{Failure, Holding, NodeState, NodeVote, Unit};
use pyo3::IntoPyObjectExt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::lease::Lease;

/// The result of a call, before it is an object.
pub(crate) enum Value {
    Nothing,
    Lease(Holding),
    Leases(Vec<Holding>),
    Released(Vec<Result<(), Failure>>),
    Word(&'static str),
    Votes(Vec<NodeVote>),
    States(Vec<NodeState>),
}

pub(crate) type Outcome = Result<Value, Failure>;

/// What is called in Python. It is imported with the package, because nothing can be imported while
/// a program ends, and calls go on then: in `__del__`, say.
pub(crate) struct Known {
    build: Py<PyAny>,
    vote: Py<PyAny>,
    info: Py<PyAny>,
    is_daemon: Py<PyAny>,
    /// The number of a thread.
    pub(crate) ident: Py<PyAny>,
    /// The frame of the running function.
    pub(crate) frame: Py<PyAny>,
}

pub(crate) fn known(py: Python<'_>) -> PyResult<&'static Known> {
    static KNOWN: PyOnceLock<Known> = PyOnceLock::new();
    KNOWN.get_or_try_init(py, || {
        let find = |module, name| Ok::<_, PyErr>(py.import(module)?.getattr(name)?.unbind());
        Ok(Known {
            build: find("lockmod._errors", "build")?,
            vote: find("lockmod._errors", "NodeVote")?,
            info: find("lockmod._locker", "NodeInfo")?,
            is_daemon: find("lockmod._ending", "is_daemon")?,
            ident: find("threading", "get_ident")?,
            frame: find("sys", "_getframe")?,
        })
    })
}

/// Where results of calls arrive for an event loop.
#[pyclass(frozen, module = "lockmod._lockmod")]
pub(crate) struct Port {
    port: lockmod_host::Port<Outcome>,
    bell: lockmod_host::Bell,
}

/// A call in progress.
#[pyclass(frozen, module = "lockmod._lockmod")]
pub(crate) struct Call(lockmod_host::Call);

#[pymethods]
impl Port {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Port> {
        let (bell, ring) = lockmod_host::Bell::new().map_err(|failure| error(py, &failure))?;
        Ok(Port { port: lockmod_host::Port::new(ring), bell })
    }

    fn fileno(&self) -> i32 {
        self.bell.descriptor()
    }

    /// Whether the call that was started last needs a `flush` of its own.
    fn needs_flush(&self) -> bool {
        self.port.needs_flush()
    }

    /// Hands the started calls to the background thread.
    fn flush(&self) {
        self.port.flush();
    }

    /// As `flush`, but a lone call may run on this thread, for a moment. The interpreter is kept:
    /// nothing that runs there needs it.
    fn drive(&self) {
        self.port.drive();
    }

    /// As `flush`, for calls that wait for something.
    fn leave(&self) {
        self.port.leave();
    }

    /// Gives each result that has arrived to the future that waits for it, or watches, under the
    /// number of its call, and removes those that waited. What arrived for nobody is released.
    ///
    /// This is native, because a signal handler that runs between two bytecodes may raise: then a
    /// result that was taken would have no future, and its task would hang.
    fn deliver(
        &self,
        py: Python<'_>,
        waiting: &Bound<'_, PyDict>,
        watching: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        self.bell.hush();
        let mut given = Ok(());
        for (number, outcome) in self.port.take() {
            let mut future = waiting.get_item(number)?;
            match future {
                Some(_) => waiting.del_item(number)?,
                None => future = watching.get_item(number)?,
            }
            // Whatever happens to one, the others are delivered.
            given = given.and(give(py, future, outcome));
        }
        given
    }

    /// What has arrived: the numbers of calls, each with its value or its exception.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        let object = |(number, outcome)| match outcome {
            Ok(value) => Ok((number, object(py, value)?)),
            Err(failure) => Ok((number, error(py, &failure).into_bound_py_any(py)?)),
        };
        self.bell.hush();
        self.port.take().into_iter().map(object).collect()
    }
}

#[pymethods]
impl Call {
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

/// Ends the future, unless there is none, or it is done, as when it was cancelled.
fn give(py: Python<'_>, future: Option<Bound<'_, PyAny>>, outcome: Outcome) -> PyResult<()> {
    let is_done = |future: &Bound<'_, PyAny>| future.call_method0(intern!(py, "done"))?.extract();
    let future = match future {
        Some(future) if !is_done(&future)? => future,
        _ => {
            abandon(outcome);
            return Ok(());
        }
    };
    let value = match outcome {
        Ok(value) => object(py, value),
        Err(failure) => Err(error(py, &failure)),
    };
    match value {
        Ok(value) => future.call_method1(intern!(py, "set_result"), (value,)),
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error,)),
    }
    .map(drop)
}

/// Releases what arrived for a caller that no longer waits.
fn abandon(outcome: Outcome) {
    let holdings = match outcome {
        Ok(Value::Lease(holding)) => vec![holding],
        Ok(Value::Leases(holdings)) => holdings,
        _ => return,
    };
    for holding in holdings {
        // It was acquired in this process, so it is no fork's.
        drop(holding.abandon());
    }
}

/// A Python exception, or a failure that will become one.
enum Stopped {
    Signal(PyErr),
    Failure(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Failure(failure)
    }
}

/// Waits for the call, or hands it to the port.
pub(crate) fn run<'py>(
    py: Python<'py>,
    port: Option<&Port>,
    call: Result<impl Future<Output = Outcome> + Send + 'static, Failure>,
) -> PyResult<Bound<'py, PyAny>> {
    let call = call.map_err(|failure| error(py, &failure))?;
    if let Some(port) = port {
        let call = port.port.start(call).map_err(|failure| error(py, &failure))?;
        return Call(call).into_bound_py_any(py);
    }
    // A thread may have a small stack, and the call would be moved over it several times.
    match wait(py, Box::pin(call)) {
        Ok(Ok(value)) => object(py, value),
        Ok(Err(failure)) | Err(Stopped::Failure(failure)) => Err(error(py, &failure)),
        Err(Stopped::Signal(signal)) => Err(signal),
    }
}

/// Waits for the call, with the interpreter released.
///
/// In a daemon thread it does not return once the program ends, as nothing does in Python that
/// blocks there: an error would be a traceback at each normal exit. It is known before the wait
/// whether this is such a thread, because the interpreter may be gone afterwards.
///
/// What ends the wait: a signal handler that raises, in the main thread, and an exception that
/// another thread has thrown into this one, as some task queues do to stop their workers.
fn wait(
    py: Python<'_>,
    call: impl Future<Output = Outcome> + Send + 'static,
) -> Result<Outcome, Stopped> {
    let is_daemon = is_daemon(py).map_err(Stopped::Signal)?;
    // What was thrown into this thread is raised by the first function in Python that runs here.
    let look = |py: Python<'_>| py.check_signals().and_then(|()| self::is_daemon(py)).map(drop);
    let check = || {
        if lockmod_host::is_ending() {
            return Ok(());
        }
        Python::try_attach(look).unwrap_or(Ok(())).map_err(Stopped::Signal)
    };
    py.detach(|| {
        let outcome = lockmod_host::block_on(call, check);
        if is_daemon && lockmod_host::is_ending() {
            drop(outcome);
            loop {
                thread::park();
            }
        }
        outcome
    })
}

/// Whether the program ends without waiting for this thread.
fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    let ask = || known(py)?.is_daemon.bind(py).call0()?.extract();
    match ask() {
        // What a signal handler has raised meanwhile.
        Err(error) if !is_finalizing(py) => Err(error),
        // Nothing can be asked while the interpreter is being torn down.
        asked => Ok(asked.unwrap_or(false)),
    }
}

fn is_finalizing(py: Python<'_>) -> bool {
    let ask = || py.import("sys")?.call_method0("is_finalizing")?.extract();
    ask().unwrap_or(true)
}

fn object(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyAny>> {
    match value {
        Value::Nothing => Ok(py.None().into_bound(py)),
        Value::Lease(holding) => Lease::new(holding).into_bound_py_any(py),
        Value::Leases(holdings) => {
            let leases: Vec<Lease> = holdings.into_iter().map(Lease::new).collect();
            leases.into_bound_py_any(py)
        }
        Value::Released(results) => {
            let error = |failure| error(py, &failure).into_value(py);
            let errors: Vec<_> = results.into_iter().map(|one| one.err().map(error)).collect();
            errors.into_bound_py_any(py)
        }
        Value::Word(word) => word.into_bound_py_any(py),
        Value::Votes(votes) => votes.to_python(py),
        Value::States(states) => states.to_python(py),
    }
}

/// A length of time as Python counts it: every one that a program sees goes through here.
pub(crate) fn seconds(length: Duration) -> f64 {
    Unit::Seconds.count(length)
}

/// What is told about a lock, as an object of Python.
trait Told {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
}

impl Told for Duration {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        seconds(*self).into_bound_py_any(py)
    }
}

impl Told for u64 {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl Told for &str {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl Told for String {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl<T: Told> Told for Option<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.as_ref().map_or_else(|| Ok(py.None().into_bound(py)), |told| told.to_python(py))
    }
}

/// Lists are tuples in Python, whose objects do not change.
impl<T: Told> Told for Vec<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let objects: PyResult<Vec<_>> = self.iter().map(|told| told.to_python(py)).collect();
        Ok(PyTuple::new(py, objects?)?.into_any())
    }
}

/// Makes a struct an object of this class, with the fields by their names. The compiler asks for
/// each field.
macro_rules! told_as {
    ($type:ident is $class:ident { $($field:ident),+ $(,)? }) => {
        impl Told for $type {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let $type { $($field),+ } = self;
                let fields = PyDict::new(py);
                $(fields.set_item(stringify!($field), $field.to_python(py)?)?;)+
                known(py)?.$class.bind(py).call((), Some(&fields))
            }
        }
    };
}

told_as!(NodeVote is vote {
    node, vote, text, fence, label, left, held_for, master,
});

told_as!(NodeState is info {
    node, state, fence, label, left, held_for, waiters, readers, reader_labels, waiting_readers,
    first_waiting, vote,
});

/// The exception for a failure; `_errors.py` has the classes, and decides which one it is.
pub(crate) fn error(py: Python<'_>, failure: &Failure) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let votes = failure.nodes.to_python(py)?;
        let tried = failure.tried.map(|(waited, attempts)| (seconds(waited), attempts));
        let (kind, text) = (failure.kind.word(), failure.text.as_str());
        let fields = (kind, text, votes, tried, failure.reason, failure.is_retryable);
        Ok(PyErr::from_value(known(py)?.build.bind(py).call1(fields)?))
    };
    build().unwrap_or_else(|other| other)
}
