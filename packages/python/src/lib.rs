//! The native part of the Python package: calls in, plain values out.
//!
//! Everything that a Python program sees is written in Python, in `python/lockmod`; this crate
//! passes calls to `lockmod_host`, and turns the results into objects. A call without a port
//! blocks, with the interpreter released; one with a port returns at once, and its result is taken
//! from the port on the event loop's own thread.

mod blocks;
mod lease;
mod locker;
mod outcome;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use blocks::{Blocks, Entry, Exit};
use lease::Lease;
use locker::Core;
use outcome::{Call, Port};

/// Releases what is held, and waits until the last commands are written.
#[pyfunction]
fn finish(py: Python<'_>) {
    py.detach(lockmod_host::finish);
}

/// Imports what calls need, while that is possible.
#[pyfunction]
fn prepare(py: Python<'_>) -> PyResult<()> {
    outcome::known(py).map(drop)
}

/// The sockets of the connections of this process, each with its inode.
#[pyfunction]
fn sockets() -> Vec<(i32, u64)> {
    lockmod_host::sockets()
}

/// The URLs of nodes in one text.
#[pyfunction]
fn split_nodes(text: &str) -> Vec<String> {
    lockmod_host::split_nodes(text)
}

/// The modules of the package by their names, for a second import.
#[pyfunction]
fn modules(py: Python<'_>) -> Py<PyDict> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    MODULES.get_or_init(py, || PyDict::new(py).unbind()).clone_ref(py)
}

#[pymodule]
fn _lockmod(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Blocks>()?;
    module.add_class::<Exit>()?;
    module.add_class::<Entry>()?;
    module.add_class::<Core>()?;
    module.add_class::<Lease>()?;
    module.add_class::<Port>()?;
    module.add_class::<Call>()?;
    module.add_function(wrap_pyfunction!(lease::release_all, module)?)?;
    module.add_function(wrap_pyfunction!(split_nodes, module)?)?;
    module.add_function(wrap_pyfunction!(sockets, module)?)?;
    module.add_function(wrap_pyfunction!(modules, module)?)?;
    module.add_function(wrap_pyfunction!(prepare, module)?)?;
    module.add_function(wrap_pyfunction!(finish, module)?)
}
