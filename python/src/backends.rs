//! Backends by name.

use std::sync::LazyLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vattention::{Backend, all_backends};

use crate::error::core;

/// Every backend, alive as long as the process: their threads are shared by all sequences.
static BACKENDS: LazyLock<Vec<Box<dyn Backend>>> = LazyLock::new(all_backends);

/// The backend of that name; or an error with the known names, or the reason why it cannot run.
pub(crate) fn find_backend(name: &str) -> PyResult<&'static dyn Backend> {
    let found = BACKENDS.iter().find(|backend| backend.name() == name);
    let backend = found.ok_or_else(|| {
        let known: Vec<_> = BACKENDS.iter().map(|backend| backend.name()).collect();
        let known = known.join(", ");
        PyValueError::new_err(format!("backend: no `{name}`; expected one of {known}"))
    })?;
    backend.available().map_err(core)?;
    Ok(&**backend)
}
