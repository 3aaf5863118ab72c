//! Status of a call, and the errors of the library as statuses.

use vattention::Error;
use vattention::config::ConfigError;

/// Status that each call returns. The message of an error is `va_last_error()`.
///
/// A call that returns an error has not changed its handles, except as stated there.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum va_status {
    /// The call succeeded.
    VA_OK = 0,
    /// A required pointer is NULL, or is not aligned to its type.
    VA_ERROR_POINTER = 1,
    /// A handle was freed, or was never created.
    VA_ERROR_HANDLE = 2,
    /// Another call is using the handle, on another thread or in the same batch.
    VA_ERROR_BUSY = 3,
    /// The `size` of a struct is not that of a known version.
    VA_ERROR_SIZE = 4,
    /// An argument is out of range, or a text is not UTF-8.
    VA_ERROR_ARGUMENT = 5,
    /// An array has a wrong shape, or a buffer a wrong length.
    VA_ERROR_SHAPE = 6,
    /// A number is not finite, or too large.
    VA_ERROR_NUMBER = 7,
    /// The pipeline's text has faults, or does not fit the layer.
    VA_ERROR_PIPELINE = 8,
    /// A selector lacks the classes of tokens, a prompt or feedback.
    VA_ERROR_INPUT = 9,
    /// The pipeline cannot do this, such as removing tokens from its index.
    VA_ERROR_UNSUPPORTED = 10,
    /// An allocation failed.
    VA_ERROR_MEMORY = 11,
    /// Threads could not be started.
    VA_ERROR_THREADS = 12,
    /// An earlier call failed while it changed the handle's indexes. The handle can only be freed.
    VA_ERROR_LOST = 13,
    /// A bug of the library. The handle can only be freed.
    VA_ERROR_BUG = 14,
}

/// Status and message of a call that fails.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) status: va_status,
    pub(crate) message: String,
}

impl CallError {
    pub(crate) fn new(status: va_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// CallError of an argument that is out of range.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(va_status::VA_ERROR_ARGUMENT, message)
    }

    /// CallError of an array or a buffer.
    pub(crate) fn shape(message: impl Into<String>) -> Self {
        Self::new(va_status::VA_ERROR_SHAPE, message)
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Shape { .. } => va_status::VA_ERROR_SHAPE,
            Error::Number { .. } => va_status::VA_ERROR_NUMBER,
            Error::Build { .. } | Error::Conflict(_) => va_status::VA_ERROR_PIPELINE,
            Error::Backend { .. } => va_status::VA_ERROR_THREADS,
            Error::Classes { .. } | Error::Unobserved { .. } | Error::NoFeedback { .. } => {
                va_status::VA_ERROR_INPUT
            }
            Error::Memory { .. } => va_status::VA_ERROR_MEMORY,
            Error::Lost => va_status::VA_ERROR_LOST,
            _ => va_status::VA_ERROR_UNSUPPORTED,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ConfigError> for CallError {
    fn from(error: ConfigError) -> Self {
        Self::new(va_status::VA_ERROR_PIPELINE, error.to_string())
    }
}
