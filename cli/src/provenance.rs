//! Provenance of results, at the head of every JSON file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use vattention::PipelineConfig;
use vattention::experiments::{FileDigests, Machine, named_files};

use crate::fail::Failure;
use crate::sharing::{Call, VERSION};

/// Everything that results depend on: program, command line, inputs, pipelines, machine.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Provenance {
    /// Version and commit.
    vattention: &'static str,
    /// Command line, without the program's name and without outputs.
    command: Vec<String>,
    /// Files that were read, with their digests: the first 128 bits of SHA-256.
    inputs: BTreeMap<String, String>,
    /// Pipelines with all their settings, in the order of the results.
    pipelines: Vec<PipelineText>,
    /// Name of the backend, if one ran.
    backend: Option<String>,
    /// Processor and number of threads.
    machine: Machine,
}

/// Pipeline with all its settings.
#[derive(Debug, Serialize, JsonSchema)]
struct PipelineText {
    /// Name of the pipeline.
    pipeline: String,
    /// Pipeline file with all settings.
    toml: String,
}

impl Provenance {
    /// Returns the provenance of results of `pipelines` on a backend.
    ///
    /// Cost: reads each input, and each file that a pipeline names, once.
    ///
    /// # Errors
    /// If an input cannot be read.
    pub(crate) fn new<'a>(
        call: &Call,
        inputs: &[&Path],
        pipelines: impl IntoIterator<Item = &'a PipelineConfig>,
        backend: Option<&str>,
    ) -> Result<Self, Failure> {
        let pipelines: Vec<&PipelineConfig> = pipelines.into_iter().collect();
        let named = pipelines.iter().flat_map(|pipeline| named_files(pipeline));
        let files = inputs.iter().map(|path| path.to_path_buf()).chain(named);
        let digests = FileDigests::default();
        let digest = |path: PathBuf| Ok((path.display().to_string(), digests.digest(path)?));
        Ok(Self {
            vattention: VERSION,
            command: call.command_of_results(),
            inputs: files
                .filter(|path| path.is_file())
                .map(digest)
                .collect::<Result<_, Failure>>()?,
            pipelines: pipelines.into_iter().map(text).collect::<Result<_, Failure>>()?,
            backend: backend.map(str::to_owned),
            machine: Machine::this(),
        })
    }
}

fn text(pipeline: &PipelineConfig) -> Result<PipelineText, Failure> {
    let toml = toml::to_string(pipeline).map_err(Failure::input)?;
    Ok(PipelineText { pipeline: pipeline.name.clone(), toml })
}
