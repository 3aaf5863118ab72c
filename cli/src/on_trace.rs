//! Options of commands that measure on a trace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vattention::experiments::{Entry, Results, TraceSettings, digest_of_file};
use vattention::trace::Trace;
use vattention::{PipelineConfig, Storage};

use crate::fail::Failure;
use crate::layers::{LayerRange, layer_numbers};
use crate::numbers::storage;
use crate::outputs::{OutputArgs, check_outputs};
use crate::provenance::Provenance;
use crate::sharing::{Call, Sharing, digest_pipelines};

/// Trace, its layers and queries to measure, and files for the results.
#[derive(Debug, clap::Args)]
pub(crate) struct OnTrace {
    /// Trace to measure on.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Layers of the trace, separated by commas, or ranges such as 9-23; by default, all.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    layers: Option<Vec<LayerRange>>,
    /// Number of queries of each layer, counted from the last; by default, all.
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    pub(crate) outputs: OutputArgs,
}

/// Number format in which a cache stores the rows of a trace.
#[derive(Debug, clap::Args)]
pub(crate) struct CachedRows {
    /// Number format of cached keys and values; by default, that of the trace.
    #[arg(long, value_parser = storage())]
    dtype: Option<Storage>,
}

impl CachedRows {
    /// Returns the trace with cached rows of the chosen format.
    pub(crate) fn store(&self, trace: Trace) -> Trace {
        match self.dtype {
            Some(storage) => trace.stored_in(storage),
            None => trace,
        }
    }
}

impl OnTrace {
    /// Opens the trace. Checks that no output, `dump` included, overwrites the trace or one of
    /// `files`.
    pub(crate) fn open(
        &self,
        files: &[PathBuf],
        dump: Option<&PathBuf>,
    ) -> Result<(Trace, TraceSettings), Failure> {
        let trace = Trace::open(&self.trace)?;
        let read = files.iter().chain([&self.trace]).chain(&self.sharing.results);
        let read: Vec<&Path> = read.map(PathBuf::as_path).collect();
        let [json, plot] = self.outputs.files();
        check_outputs(&[json, ("--dump", dump), plot], &read)?;
        let (layers, queries) = (layer_numbers(self.layers.as_ref()), self.queries);
        let dump = dump.is_some();
        Ok((trace, TraceSettings { layers, queries, dump, ..TraceSettings::default() }))
    }

    /// Opens the results of these pipelines on the trace.
    pub(crate) fn results(&self, call: &Call, entries: &[Entry]) -> Result<Results, Failure> {
        self.sharing.open(call, || inputs(&self.trace, entries))
    }

    /// Returns the provenance of results of `pipelines`, for which `files` were read.
    pub(crate) fn provenance<'a>(
        &self,
        call: &Call,
        files: &[PathBuf],
        pipelines: impl IntoIterator<Item = &'a PipelineConfig>,
        backend: Option<&str>,
    ) -> Result<Provenance, Failure> {
        let inputs: Vec<&Path> = files.iter().chain([&self.trace]).map(PathBuf::as_path).collect();
        Provenance::new(call, &inputs, pipelines, backend)
    }
}

/// Returns digests of a trace, and of pipelines with the files that they name.
pub(crate) fn inputs(trace: &Path, entries: &[Entry]) -> Result<BTreeMap<String, String>, Failure> {
    let mut inputs = digest_pipelines(entries)?;
    inputs.insert("the trace".into(), digest_of_file(trace)?);
    Ok(inputs)
}
