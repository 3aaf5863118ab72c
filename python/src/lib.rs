//! The extension module of the Python package `vattention`: what Python gives goes to the facade, and what comes back becomes
//! Python objects. There is no logic here that the command or another crate would need.
//!
//! | file | Python |
//! |---|---|
//! | `array` | arrays that come in, by DLPack |
//! | `attention` | `Attention`, `append_batch`, `attend_batch` |
//! | `backends` | backends by name |
//! | `command` | the `vattention` command |
//! | `error` | exceptions |
//! | `interrupt` | long calls, which Ctrl-C ends |
//! | `output` | `Output` |
//! | `pipeline` | `Pipeline` |
//! | `selector` | selectors that are Python classes, and the laws that they obey |
//! | `tools` | `compare`, `verify`, `study` |
//! | `trace` | `Trace`, `write_trace` |

mod array;
mod attention;
mod backends;
mod command;
mod error;
mod interrupt;
mod output;
mod pipeline;
mod selector;
mod tools;
mod trace;

/// As the command has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The extension module.
#[pyo3::pymodule]
mod _vattention {
    #[pymodule_export]
    use super::attention::{Attention, append_batch, attend_batch};
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::error::{PipelineError, panic_for_test};
    #[pymodule_export]
    use super::output::Output;
    #[pymodule_export]
    use super::pipeline::{Pipeline, files_of};
    #[pymodule_export]
    use super::selector::{broken_law, register_selector};
    #[pymodule_export]
    use super::tools::{compare, study, verify};
    /// What `vattention --version` says.
    #[pymodule_export]
    const VERSION: &str = vattention_cli::VERSION;
    #[pymodule_export]
    use super::trace::{Trace, write_trace};
}
