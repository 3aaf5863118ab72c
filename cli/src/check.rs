//! `vattention check`: all problems of pipeline files, or the pipelines in full.

use std::path::PathBuf;

use vattention::config::shares;
use vattention::experiments::{Entry, expect_classes};
use vattention::plugin::{Estimator, Schedule, Uniform};
use vattention::trace::Trace;
use vattention::{Fraction, PipelineConfig, Shape, Size};

use crate::backends::find_backend;
use crate::fail::{Failure, say};
#[cfg(feature = "models")]
use crate::pipelines::fits_model;
use crate::pipelines::{Changes, fits};

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Pipeline files, or names of built-in pipelines.
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// Trace on whose layers the pipelines must be able to run.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Model folder or GGUF file in whose layers the pipelines must be able to run.
    #[cfg(feature = "models")]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let entries = args.changes.load_all(&args.configs)?;
    let trace = args.trace.as_deref().map(Trace::open).transpose()?;
    let layers: Vec<(usize, Shape)> = trace.as_ref().map_or_else(Vec::new, shapes);
    #[cfg(feature = "models")]
    let model = args.model.as_deref().map(crate::models::layers).transpose()?;
    let backend = find_backend("cpu")?;
    let misfit = |entry: &Entry| {
        let reason = fits(entry, &layers, &*backend).err();
        #[cfg(feature = "models")]
        let reason = reason.or_else(|| fits_model(entry, model.as_ref()?, &*backend).err());
        let reason = reason.or_else(|| {
            let trace = trace.as_ref()?;
            let layers: Vec<_> = trace.layers().collect();
            expect_classes(&entry.pipeline, trace, &layers).err().map(|error| error.to_string())
        })?;
        Some(format!("{}: {reason}", entry.file))
    };
    let misfits: Vec<String> = entries.iter().filter_map(misfit).collect();
    if !misfits.is_empty() {
        return Err(Failure::all(&misfits));
    }
    for (i, Entry { pipeline, file, .. }) in entries.iter().enumerate() {
        let text = toml::to_string(&in_full(pipeline)).map_err(Failure::input)?;
        let gap = if i > 0 { "\n" } else { "" };
        say(&format!("{gap}# {file}\n{}{}", text.trim_end(), in_tokens(pipeline)))?;
    }
    Ok(())
}

fn shapes(trace: &Trace) -> Vec<(usize, Shape)> {
    trace.layers().map(|(number, layout)| (number, layout.shape)).collect()
}

/// Returns the pipeline with its default sampler, if the file names none and the estimator checks
/// samples.
fn in_full(pipeline: &PipelineConfig) -> PipelineConfig {
    let mut pipeline = pipeline.clone();
    let checks_samples = |estimator: &dyn Estimator| {
        estimator.goal().is_ok_and(|goal| goal.size().is_none())
            && estimator.schedule() != Schedule::Before
    };
    if pipeline.estimator.as_deref().is_some_and(checks_samples) && pipeline.sampler.is_none() {
        pipeline.sampler = Some(Box::new(Uniform::DEFAULT));
    }
    pipeline
}

/// Context lengths at which shares are shown in tokens.
const CONTEXTS: [usize; 3] = [4096, 32_768, 131_072];

/// Returns TOML comments that convert shares of the context into tokens.
fn in_tokens(pipeline: &PipelineConfig) -> String {
    let shares = shares(pipeline);
    let title = |(key, size): &(String, Size)| {
        format!("{key} = {}", size.share().map_or(0.0, Fraction::get))
    };
    let width = shares.iter().map(|share| title(share).len()).max().unwrap_or(0);
    let row = |title: &str, tokens: [String; 3]| {
        let [short, middle, long] = tokens;
        format!("\n#   {title:<width$}  {short:>6}  {middle:>6}  {long:>6}")
    };
    let rows = shares.iter().map(|share| {
        let tokens = CONTEXTS.map(|context| share.1.to_tokens(context).to_string());
        row(&title(share), tokens)
    });
    let rows: String = rows.collect();
    if rows.is_empty() {
        return rows;
    }
    let head = row("", CONTEXTS.map(|context| context.to_string()));
    format!("\n\n# shares in tokens, at context lengths of{head}{rows}")
}
