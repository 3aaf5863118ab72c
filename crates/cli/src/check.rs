//! `vattention check`: every problem in pipeline files, or the pipelines they make.

use std::path::PathBuf;
use std::sync::Arc;

use vattention::PipelineConfig;
use vattention::config::Loader;

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
        let text = toml::to_string(&*pipeline).map_err(Failure::input)?;
        let gap = if i > 0 { "\n" } else { "" };
        say(&format!("{gap}# {}\n{}", path.display(), text.trim_end()))?;
    }
    Ok(())
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
