//! Backends by name.

use std::sync::LazyLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vattention::{Backend, all_backends};

use crate::error::core;

/// All backends. They live as long as the process, because all sequences share their threads.
static BACKENDS: LazyLock<Vec<Box<dyn Backend>>> = LazyLock::new(all_backends);

/// Finds the backend with this name. The error has the known names, or the reason why the backend
/// cannot run.
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
