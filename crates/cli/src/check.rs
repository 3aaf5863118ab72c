//! `vattention check`: every problem in pipeline files, or the pipelines they make.

use std::path::PathBuf;

use vattention::Shape;
use vattention::eval::Trace;
use vattention_llm::Config;

use crate::compare::find_backend;
use crate::pipelines::{Changes, fits};
use crate::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Pipeline files.
    #[arg(required = true)]
    configs: Vec<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// A trace on whose layers they must be able to run.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// A model's folder, in whose layers they must be able to run.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let entries = args.changes.load(&args.configs)?.entries;
    let (layers, backend) = (args.layers()?, find_backend("cpu")?);
    let misfit = |entry| {
        let reason = fits(entry, &layers, &*backend).err()?;
        Some(format!("{}: {reason}", entry.file))
    };
    let misfits: Vec<String> = entries.iter().filter_map(misfit).collect();
    if !misfits.is_empty() {
        return Err(Failure::all(&misfits));
    }
    for (i, entry) in entries.iter().enumerate() {
        let text = toml::to_string(&*entry.pipeline).map_err(Failure::input)?;
        let gap = if i > 0 { "\n" } else { "" };
        say(&format!("{gap}# {}\n{}", entry.file, text.trim_end()))?;
    }
    Ok(())
}

impl Args {
    /// What the pipelines must fit, beside themselves.
    fn layers(&self) -> Result<Vec<(usize, Shape)>, Failure> {
        let mut layers = Vec::new();
        if let Some(path) = &self.trace {
            let trace = Trace::open(path)?;
            layers.extend(trace.layers().map(|(number, layout)| (number, layout.shape)));
        }
        if let Some(dir) = &self.model {
            let config = Config::open(dir)?;
            layers.extend((0..config.layers).map(|layer| (layer, config.shape)));
        }
        Ok(layers)
    }
}
