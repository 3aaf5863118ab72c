//! The extension module of the Python package `vattention`. It converts Python arguments for the
//! `vattention` crate, and results into Python objects. Logic that other crates also need does not
//! belong here.
//!
//! | module | Python |
//! |---|---|
//! | `array` | input arrays, by DLPack |
//! | `attention` | `Attention`, `append_batch`, `attend_batch` |
//! | `backends` | backends by name |
//! | `command` | the `vattention` command |
//! | `error` | exceptions |
//! | `exclusive` | objects that one call at a time may use |
//! | `interrupt` | long calls, which Ctrl-C ends |
//! | `output` | `Output` |
//! | `paged` | `PagedAttention` |
//! | `pipeline` | `Pipeline` |
//! | `selector` | selectors that are Python classes, and checks of their laws |
//! | `tools` | `compare`, `verify`, `study` |
//! | `trace` | `Trace`, `write_trace` |

mod array;
mod attention;
mod backends;
mod command;
mod error;
mod exclusive;
mod interrupt;
mod output;
mod paged;
mod pipeline;
mod selector;
mod tools;
mod trace;

/// The allocator of the command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The extension module.
#[pyo3::pymodule]
mod _vattention {
    #[pymodule_export]
    use super::attention::{PyAttention, append_batch, attend_batch};
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::error::{PipelineError, panic_for_test};
    #[pymodule_export]
    use super::output::PyOutput;
    #[pymodule_export]
    use super::paged::PyPagedAttention;
    #[pymodule_export]
    use super::pipeline::{PyPipeline, files_of};
    #[pymodule_export]
    use super::selector::{broken_law, register_selector};
    #[pymodule_export]
    use super::tools::{compare, study, verify};
    /// Version that `vattention --version` prints.
    #[pymodule_export]
    const VERSION: &str = vattention_cli::VERSION;
    #[pymodule_export]
    use super::trace::{PyTrace, write_trace};
}
