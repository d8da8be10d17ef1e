//! The beginning and the end of `with` blocks.
//!
//! Python runs signal handlers between the bytecodes of functions, and a handler may raise, as that
//! of Ctrl-C does. So a function in Python can be left after it has taken a lock and before its
//! caller knows, or before its first line. The native functions here run no handler between the
//! return of an acquisition and its note, and see every exception that a release raises.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::outcome::known;

/// The base of what a `with` block ends: its end releases, whatever is raised on the way.
#[pyclass(frozen, subclass, module = "lockmod._lockmod")]
pub(crate) struct Exit;

#[pymethods]
impl Exit {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Exit {
        Exit
    }

    /// Releases; raises `LostError` if the lease ended while the block ran.
    #[pyo3(signature = (*given, **named))]
    fn __exit__<'py>(
        slf: &Bound<'py, Self>,
        given: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        check_end(slf, given, named)?;
        let py = slf.py();
        let ended = slf.call_method1(intern!(py, "_end"), given);
        if ended.is_err() {
            // After a normal end this does nothing; in a forked child it fails, as the end did.
            drop(slf.call_method0(intern!(py, "_abandon")));
        }
        ended
    }
}

/// Refuses a call with other arguments, in the name of the class that a program knows.
fn check_end(
    block: &Bound<'_, PyAny>,
    given: &Bound<'_, PyTuple>,
    named: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    if given.len() == 3 && named.is_none() {
        return Ok(());
    }
    let kind = block.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "{kind}.__exit__() takes the class of an error, the error and its traceback, or None three \
         times: a `with` block calls it"
    )))
}

/// A block that has begun.
struct Begun {
    /// The thread or the task that began it.
    who: usize,
    guard: Py<PyAny>,
    /// The task: kept, so that its address stays its own.
    task: Option<Py<PyAny>>,
}

/// The blocks of one lock that have begun.
#[derive(Default)]
struct Open {
    blocks: Vec<Begun>,
    /// How many of these have ended, if it is unknown which.
    ended: usize,
}

impl Open {
    /// Takes out a block that ends: one of this thread or task, or else the only one. With it come
    /// those that are known to have ended by that.
    fn leave(&mut self, who: usize) -> (Option<Begun>, Vec<Begun>) {
        let own = self.blocks.iter().rposition(|block| block.who == who);
        let mut found = own.map(|place| self.blocks.remove(place));
        if found.is_none() {
            self.ended += 1;
        }
        let mut over = Vec::new();
        // As many have ended as are left, so these are they.
        if self.blocks.len() <= self.ended {
            over = std::mem::take(self).blocks;
        }
        if found.is_none() {
            found = over.pop();
        }
        (found, over)
    }
}

/// The blocks of a lock, by the thread or task that began them: the base of `Lock`.
///
/// The mutexes are never held while Python code runs.
#[pyclass(frozen, subclass, module = "lockmod._lockmod")]
pub(crate) struct Blocks {
    threads: Mutex<Open>,
    tasks: Mutex<Open>,
}

fn open(blocks: &Mutex<Open>) -> MutexGuard<'_, Open> {
    // It is intact even if it is poisoned.
    blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of this thread.
fn thread(py: Python<'_>) -> PyResult<usize> {
    known(py)?.ident.bind(py).call0()?.extract()
}

/// The guard of a block that ends.
fn leave<'py>(py: Python<'py>, blocks: &Mutex<Open>, who: usize) -> PyResult<Bound<'py, PyAny>> {
    let ((found, over), left) = {
        let mut blocks = open(blocks);
        (blocks.leave(who), blocks.blocks.len())
    };
    for block in over {
        drop(block.guard.bind(py).call_method0(intern!(py, "_abandon")));
    }
    match found {
        Some(block) => Ok(block.guard.into_bound(py)),
        None if left == 0 => {
            let text = "the block of this lock has not begun, or has ended before";
            Err(PyRuntimeError::new_err(text))
        }
        None => Err(PyRuntimeError::new_err(format!(
            "{left} blocks of this lock began in other threads or tasks, so it is unknown which of \
             them ends here: write `with locker.acquire(...)` instead, whose guard knows. The lock \
             is released when the others have ended"
        ))),
    }
}

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Blocks {
        Blocks { threads: Mutex::default(), tasks: Mutex::default() }
    }

    /// Acquires the lock.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let who = thread(slf.py())?;
        let guard = slf.call_method0(intern!(slf.py(), "_acquire"))?;
        // No Python code runs from here to the block.
        let block = Begun { who, guard: guard.clone().unbind(), task: None };
        open(&slf.get().threads).blocks.push(block);
        Ok(guard)
    }

    /// Releases; raises `LostError` if the lease ended while the block ran.
    #[pyo3(signature = (*given, **named))]
    fn __exit__<'py>(
        slf: &Bound<'py, Self>,
        given: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        check_end(slf, given, named)?;
        let py = slf.py();
        let guard = leave(py, &slf.get().threads, thread(py)?)?;
        guard.call_method1(intern!(py, "__exit__"), given)
    }

    /// Notes that this task began a block.
    fn _begin(&self, task: Py<PyAny>, guard: Py<PyAny>) {
        let block = Begun { who: task.as_ptr() as usize, guard, task: Some(task) };
        open(&self.tasks).blocks.push(block);
    }

    /// Forgets the block of this guard.
    fn _forget(&self, guard: &Bound<'_, PyAny>) {
        let mut tasks = open(&self.tasks);
        let place = tasks.blocks.iter().position(|block| block.guard.is(guard));
        let found = place.map(|place| tasks.blocks.remove(place));
        drop(tasks);
        drop(found);
    }

    /// The guard of a block that this task ends.
    fn _leave<'py>(&self, task: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        leave(task.py(), &self.tasks, task.as_ptr() as usize)
    }

    /// The guard of a block of a task that has not ended.
    fn _first(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        open(&self.tasks).blocks.first().map(|block| block.guard.clone_ref(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for blocks in [&self.threads, &self.tasks] {
            // The garbage collector may come at any time, but not while it is held.
            let Ok(blocks) = blocks.try_lock() else { continue };
            for block in &blocks.blocks {
                visit.call(&block.guard)?;
                visit.call(&block.task)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        for blocks in [&self.threads, &self.tasks] {
            let cleared = std::mem::take(&mut *open(blocks));
            drop(cleared);
        }
    }
}
