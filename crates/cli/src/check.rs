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
    let pipelines = load_all(&args.configs, &args.set)?;
    for (i, (path, pipeline)) in args.configs.iter().zip(pipelines).enumerate() {
        let text = toml::to_string(&*pipeline).map_err(Failure::input)?;
        let gap = if i > 0 { "\n" } else { "" };
        say(&format!("{gap}# {}\n{}", path.display(), text.trim_end()))?;
    }
    Ok(())
}

/// Loads pipelines, or every problem in any of them.
pub(crate) fn load_all(
    paths: &[PathBuf],
    set: &[String],
) -> Result<Vec<Arc<PipelineConfig>>, Failure> {
    let loader = Loader { set: set.to_vec() };
    let (mut pipelines, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match loader.load(path) {
            Ok(pipeline) => pipelines.push(pipeline),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(pipelines) } else { Err(Failure::Config(errors)) }
}
