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
use pyo3::types::{PyDict, PyList, PyTuple};

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
        let abandon = || drop(slf.call_method0(intern!(slf.py(), "_abandon")));
        end(slf, given, named, abandon)
    }
}

/// Ends a block. After an error nothing is held, in whatever place that was raised: `release` does
/// nothing after a normal end, and fails in a forked child, as the end did.
fn end<'py>(
    block: &Bound<'py, PyAny>,
    given: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
    release: impl FnOnce(),
) -> PyResult<Bound<'py, PyAny>> {
    check_end(block, given, named)?;
    let ended = block.call_method1(intern!(block.py(), "_end"), given);
    if ended.is_err() {
        release();
    }
    ended
}

/// The base of a lock that is itself a `with` block, as redis-py's is. Its methods `_begin` and
/// `_end` put the guard into `local.guard`, and take it out; if they raise, it is released. While
/// `_begin` runs, the context variable `_entry` tells one block from those of other threads, tasks
/// and greenlets; what the guard has of it is its own `_entry`.
#[pyclass(frozen, subclass, module = "lockmod._lockmod")]
pub(crate) struct Entry;

#[pymethods]
impl Entry {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Entry {
        Entry
    }

    /// Acquires the lock.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let variable = slf.getattr(intern!(py, "_entry"))?;
        let entry = PyList::empty(py);
        let outer = variable.call_method1(intern!(py, "set"), (&entry,))?;
        let begun = slf.call_method0(intern!(py, "_begin"));
        if begun.is_err()
            && let Some(guard) = held(slf)
            && guard.getattr(intern!(py, "_entry")).is_ok_and(|of| of.is(&entry))
        {
            give_up(slf, &guard);
        }
        drop(variable.call_method1(intern!(py, "reset"), (outer,)));
        begun
    }

    /// Releases; raises what the interface says of a lock that was lost before.
    #[pyo3(signature = (*given, **named))]
    fn __exit__<'py>(
        slf: &Bound<'py, Self>,
        given: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let guard = held(slf);
        let release = || guard.iter().for_each(|guard| give_up(slf, guard));
        end(slf, given, named, release)
    }
}

/// The guard that such a lock has in its `local`. No Python code runs, unless `__init__` has not.
fn held<'py>(lock: &Bound<'py, Entry>) -> Option<Bound<'py, PyAny>> {
    let py = lock.py();
    let local = lock.getattr(intern!(py, "local")).ok()?;
    local.getattr(intern!(py, "guard")).ok().filter(|guard| !guard.is_none())
}

/// Releases the guard without waiting for any node; the lock does not have it any more.
fn give_up(lock: &Bound<'_, Entry>, guard: &Bound<'_, PyAny>) {
    let py = lock.py();
    if held(lock).is_some_and(|held| held.is(guard))
        && let Ok(local) = lock.getattr(intern!(py, "local"))
    {
        for name in [intern!(py, "guard"), intern!(py, "token")] {
            drop(local.setattr(name, py.None()));
        }
    }
    drop(guard.call_method0(intern!(py, "_abandon")));
}

/// Refuses a call with other arguments, in the name of the class that a program knows.
fn check_end(
    block: &Bound<'_, PyAny>,
    given: &Bound<'_, PyTuple>,
    named: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    // A wrapper that passes on whatever it was given passes no names.
    if given.len() == 3 && named.is_none_or(|named| named.is_empty()) {
        return Ok(());
    }
    let kind = block.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "{kind}.__exit__() takes the class of an error, the error and its traceback, or None three \
         times: a `with` block calls it"
    )))
}

/// The function that runs a `with` statement: the addresses of its frame and of its code. The
/// statement ends in the frame that it began in, whichever thread or task resumes that, and frames
/// that run at the same time differ. Functions that begin a block for another, as `enter_context`
/// of an `ExitStack` does, are over at its end: their frame's address may be that of another then,
/// but the function that ends the block is another one, with other code.
type Frame = (usize, usize);

/// The flags of the code that may have an `async with` statement: `CO_COROUTINE` and
/// `CO_ASYNC_GENERATOR`.
const CO_ASYNC: u32 = 0x80 | 0x200;

/// The running function.
fn frame(py: Python<'_>) -> Option<Frame> {
    address(&known(py).ok()?.frame.bind(py).call0().ok()?, |_| true)
}

/// The function that awaits the running one.
fn awaiting(py: Python<'_>) -> Option<Frame> {
    let frame = known(py).ok()?.frame.bind(py).call0().ok()?.getattr("f_back").ok()?;
    // It may also be the event loop, whose steps are all alike.
    address(&frame, |flags| flags & CO_ASYNC != 0)
}

fn address(frame: &Bound<'_, PyAny>, is_meant: impl Fn(u32) -> bool) -> Option<Frame> {
    let code = frame.getattr("f_code").ok()?;
    let flags = code.getattr("co_flags").ok()?.extract().ok()?;
    is_meant(flags).then(|| (frame.as_ptr() as usize, code.as_ptr() as usize))
}

/// A block that has begun.
struct Begun {
    /// Where it began, if that is known.
    frame: Option<Frame>,
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
    /// Takes out the block that ends: that of this frame, or else the last of this thread or task,
    /// or else the only one. With it come those that are known to have ended by that.
    fn leave(&mut self, frame: Option<Frame>, who: usize) -> (Option<Begun>, Vec<Begun>) {
        let last = |is: &dyn Fn(&Begun) -> bool| self.blocks.iter().rposition(is);
        let own = last(&|block| frame.is_some() && block.frame == frame)
            .or_else(|| last(&|block| block.who == who));
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

/// The blocks of a lock, by where they began: the base of `Lock`.
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

/// The number of this thread, or of this greenlet, if gevent had patched the program before.
fn thread(py: Python<'_>) -> PyResult<usize> {
    known(py)?.ident.bind(py).call0()?.extract()
}

/// The guard of a block that ends.
fn leave<'py>(
    py: Python<'py>,
    blocks: &Mutex<Open>,
    frame: Option<Frame>,
    who: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let ((found, over), left) = {
        let mut blocks = open(blocks);
        (blocks.leave(frame, who), blocks.blocks.len())
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
        let (frame, who) = (frame(slf.py()), thread(slf.py())?);
        let guard = slf.call_method0(intern!(slf.py(), "_acquire"))?;
        // No Python code runs from here to the block.
        let block = Begun { frame, who, guard: guard.clone().unbind(), task: None };
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
        let guard = leave(py, &slf.get().threads, frame(py), thread(py)?)?;
        guard.call_method1(intern!(py, "__exit__"), given)
    }

    /// Notes that this task began a block, for the function that awaits the caller.
    fn _begin(&self, py: Python<'_>, task: Py<PyAny>, guard: Py<PyAny>) {
        let (frame, who) = (awaiting(py), task.as_ptr() as usize);
        let block = Begun { frame, who, guard, task: Some(task) };
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

    /// The guard of a block that this task ends, for the function that awaits the caller.
    fn _leave<'py>(&self, task: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        leave(task.py(), &self.tasks, awaiting(task.py()), task.as_ptr() as usize)
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
