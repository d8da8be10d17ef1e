//! The way of a result into the task of asyncio that awaits it.
//!
//! A future of asyncio lets its task go on in the next turn of the loop. Here the task may go on as
//! the result arrives. This is native, because a signal handler that runs between two bytecodes may
//! raise, or cancel the task: then the future would have no task to wake, and the task would hang.

use pyo3::exceptions::PyBaseException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Gives the future its result or its exception, and runs the task that awaits it up to its next
/// pause: `at_once`, or in the next turn of the loop. False if the future is done already, as when
/// it was cancelled.
#[pyfunction]
pub(crate) fn arrive(
    future: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
    at_once: bool,
) -> PyResult<bool> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.extract()? {
        return Ok(false);
    }
    let waiter = if at_once { take_waiter(future)? } else { None };
    let set = match value.is_instance_of::<PyBaseException>() {
        true => intern!(py, "set_exception"),
        false => intern!(py, "set_result"),
    };
    let set = future.call_method1(set, (value,));
    let Some((wake, context)) = waiter else { return set.map(|_| true) };
    if set.is_err() {
        // The loop wakes the task.
        let options = PyDict::new(py);
        options.set_item(intern!(py, "context"), context)?;
        future.call_method(intern!(py, "add_done_callback"), (wake,), Some(&options))?;
        return set.map(|_| true);
    }
    context.call_method1(intern!(py, "run"), (wake, future))?;
    Ok(true)
}

/// What wakes the task that awaits the future, and its context: the future forgets it. None if
/// nothing awaits it, or more than a task does; the loop calls those.
fn take_waiter<'py>(
    future: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = future.py();
    // Not documented, but asyncio and uvloop have it. Without it, the loop wakes the task.
    let Some(callbacks) = future.getattr_opt(intern!(py, "_callbacks"))? else { return Ok(None) };
    let waiting = callbacks.cast_into::<PyList>().ok().filter(|list| list.len() == 1);
    let Some(waiting) = waiting else { return Ok(None) };
    let Ok((wake, context)) =
        waiting.get_item(0)?.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()
    else {
        return Ok(None);
    };
    let removed = future.call_method1(intern!(py, "remove_done_callback"), (&wake,))?;
    Ok((removed.extract::<usize>()? == 1).then_some((wake, context)))
}
