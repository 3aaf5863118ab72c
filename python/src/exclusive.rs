//! Objects that one call at a time may use.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::{check_process, guarded};

/// A value that one call at a time may use, from any thread.
pub(crate) struct Exclusive<T> {
    value: Mutex<T>,
    /// Message of the exception that a second call raises.
    in_use: &'static str,
}

impl<T: Send> Exclusive<T> {
    pub(crate) fn new(value: T, in_use: &'static str) -> Self {
        Self { value: Mutex::new(value), in_use }
    }

    /// Locks the value, and fails if another call is using it.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Ok(value),
            // After a panic the value is intact, or the library reports that it is lost.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(self.in_use)),
        }
    }

    /// Calls `work` with the value while other Python threads may run.
    pub(crate) fn run<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut T) -> PyResult<R> + Send,
    ) -> PyResult<R> {
        check_process()?;
        py.detach(|| {
            let mut value = self.lock()?;
            guarded(|| work(&mut value))?
        })
    }
}
