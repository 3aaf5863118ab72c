//! Option that chooses the backend.

use vattention::Backend;

use crate::fail::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct BackendArg {
    /// Backend that runs the pipelines: cpu, cuda or reference.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: String,
}

impl BackendArg {
    pub(crate) fn cpu() -> Self {
        Self { backend: "cpu".into() }
    }

    /// Returns the backend of this name.
    pub(crate) fn find(&self) -> Result<Box<dyn Backend>, Failure> {
        find_backend(&self.backend)
    }
}

/// Returns the backend of this name.
///
/// # Errors
/// If there is no such backend, or if it cannot run on this machine.
pub(crate) fn find_backend(name: &str) -> Result<Box<dyn Backend>, Failure> {
    let backend = vattention::backend(name).ok_or_else(|| {
        let all = vattention::all_backends();
        let names: Vec<_> = all.iter().map(|backend| backend.name()).collect();
        Failure::input(format!("--backend: no `{name}`; expected one of {}", names.join(", ")))
    })?;
    backend.available().map_err(|error| Failure::input(format!("--backend: {error}")))?;
    Ok(backend)
}
