//! Conversion of errors and panics into exceptions.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyKeyboardInterrupt, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use vattention::config::ConfigError;
use vattention::{Error, experiments, panic_message, trace};

create_exception!(
    vattention,
    PipelineError,
    PyValueError,
    "Problems in a pipeline, each with its place; the text is the command's error message.\n\n\
     `problems` has a dict for each: message, help (or None), and file, line and column (or None)."
);

/// Exception for problems in a pipeline.
pub(crate) fn config(py: Python<'_>, error: &ConfigError) -> PyErr {
    let problems = error.problems.iter().map(|problem| {
        let place = problem.place();
        let entry = PyDict::new(py);
        entry.set_item("message", problem.message())?;
        entry.set_item("help", problem.help())?;
        entry.set_item("file", place.map(|(file, ..)| file))?;
        entry.set_item("line", place.map(|(_, line, _)| line))?;
        entry.set_item("column", place.map(|(.., column)| column))?;
        Ok(entry)
    });
    let exception = PipelineError::new_err(error.to_string());
    let problems: PyResult<Vec<_>> = problems.collect();
    match problems.and_then(|problems| exception.value(py).setattr("problems", problems)) {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// Exception for an error of the library.
pub(crate) fn core(error: Error) -> PyErr {
    let message = error.to_string();
    with_message(&error, message)
}

/// Exception for an error of the library at a place, such as a sequence of a batch.
pub(crate) fn core_at(place: impl Display, error: Error) -> PyErr {
    with_message(&error, format!("{place}: {error}"))
}

fn with_message(error: &Error, message: String) -> PyErr {
    match error {
        Error::Memory { .. } => PyMemoryError::new_err(message),
        Error::Lost
        | Error::Learns
        | Error::Rounded
        | Error::Unobserved { .. }
        | Error::Backend { .. } => PyRuntimeError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}

/// Exception for an error of a tool.
pub(crate) fn tool(error: impl Into<experiments::Error>) -> PyErr {
    let error = error.into();
    let message = error.to_string();
    match error {
        experiments::Error::Trace(trace::Error::File { .. }) => PyOSError::new_err(message),
        experiments::Error::Pipeline { source, .. } => {
            let cause = core(source);
            Python::attach(|py| {
                let exception = PyErr::from_type(cause.get_type(py), message);
                exception.set_cause(py, Some(cause));
                exception
            })
        }
        _ => PyValueError::new_err(message),
    }
}

/// Refuses to compute in a fork of a process that has computed: the fork lacks the worker threads,
/// and would wait for them forever.
pub(crate) fn check_process() -> PyResult<()> {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    let process = std::process::id();
    if *PROCESS.get_or_init(|| process) == process {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "vattention was used before this process was forked: \
         expected multiprocessing's start method `spawn`",
    ))
}

/// Payload of the panic that ends an interrupted call, on its way through code that does not handle
/// interrupts.
pub(crate) struct Interrupted;

/// Runs code that may panic, because of a bug, of an exception in a Python selector, or of an
/// interrupt, and converts the panic into an exception.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(panic_to_exception)
}

/// Converts the payload of a panic into an exception.
pub(crate) fn panic_to_exception(panic: Box<dyn Any + Send>) -> PyErr {
    let panic = match panic.downcast::<PyErr>() {
        Ok(raised) => return *raised,
        Err(panic) => panic,
    };
    if panic.is::<Interrupted>() {
        return PyKeyboardInterrupt::new_err(());
    }
    let message = panic_message(&*panic);
    PanicException::new_err(format!("a bug in vattention, please report it: {message}"))
}

/// Panics as a bug would, so that a test can check the exception.
#[pyfunction]
pub(crate) fn panic_for_test(message: &str) -> PyResult<()> {
    guarded(|| panic!("{message}"))
}
