//! `vattention check`: every problem in pipeline files, or the pipelines they make.

use std::path::PathBuf;
use std::sync::Arc;

use vattention::config::{Loader, shares};
use vattention::{Fraction, PipelineConfig, SamplerConfig, Size};

use crate::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pipeline files.
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    /// A change to each of them, such as estimator.epsilon=0.1 or selectors.0.size=64.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let pipelines = load_all(&args.configs, &args.set)?.pipelines;
    for (i, (path, pipeline)) in args.configs.iter().zip(pipelines).enumerate() {
        let text = toml::to_string(&in_full(&pipeline)?).map_err(Failure::input)?;
        let gap = if i > 0 { "\n" } else { "" };
        say(&format!("{gap}# {}\n{}{}", path.display(), text.trim_end(), in_tokens(&pipeline)))?;
    }
    Ok(())
}

/// The pipeline with the sampler that it draws by, where the file names none.
fn in_full(pipeline: &PipelineConfig) -> Result<PipelineConfig, Failure> {
    let mut tree = serde_json::to_value(pipeline).map_err(Failure::input)?;
    let looks = pipeline.estimator.as_ref().is_some_and(|estimator| estimator.rounds() > 0);
    if looks && pipeline.sampler.is_none() {
        tree["sampler"] = serde_json::to_value(SamplerConfig::default()).map_err(Failure::input)?;
    }
    serde_json::from_value(tree).map_err(Failure::input)
}

/// Contexts at which shares are shown in tokens.
const CONTEXTS: [usize; 3] = [4096, 32_768, 131_072];

/// What the shares of the context come to, as comments.
fn in_tokens(pipeline: &PipelineConfig) -> String {
    let shares = shares(pipeline);
    let title = |share: &(String, Fraction)| format!("{} = {}", share.0, share.1.get());
    let width = shares.iter().map(|share| title(share).len()).max().unwrap_or(0);
    let row = |title: &str, tokens: [String; 3]| {
        let [short, middle, long] = tokens;
        format!("\n#   {title:<width$}  {short:>6}  {middle:>6}  {long:>6}")
    };
    let rows = shares.iter().map(|share| {
        let tokens = CONTEXTS.map(|context| Size::Share(share.1).of(context).to_string());
        row(&title(share), tokens)
    });
    let rows: String = rows.collect();
    if rows.is_empty() {
        return rows;
    }
    let head = row("", CONTEXTS.map(|context| context.to_string()));
    format!("\n\n# what shares come to, in tokens of a context of{head}{rows}")
}

/// Pipelines, and the files that they were made of.
pub(crate) struct Loaded {
    pub(crate) pipelines: Vec<Arc<PipelineConfig>>,
    pub(crate) files: Vec<PathBuf>,
}

/// Loads pipelines, or every problem in any of them.
pub(crate) fn load_all(paths: &[PathBuf], set: &[String]) -> Result<Loaded, Failure> {
    let loader = Loader { set: set.to_vec() };
    let mut loaded = Loaded { pipelines: Vec::new(), files: Vec::new() };
    let mut errors = Vec::new();
    for path in paths {
        match loader.load_with_files(path) {
            Ok((pipeline, files)) => {
                loaded.pipelines.push(pipeline);
                loaded.files.extend(files);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(loaded) } else { Err(Failure::Config(errors)) }
}
