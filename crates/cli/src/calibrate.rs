//! `vattention calibrate`: what selectors rank by, found in traces.

use std::path::{Path, PathBuf};

use vattention::eval::write_beside;
use vattention_train::{Bases, Channels, Corpus};

use crate::outputs::check_outputs;
use crate::{Failure, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// The channels that carry most of q·k, as JSON with the authors' keys.
    DoubleSparsity(Args),
    /// The principal directions of the keys, as safetensors.
    Loki(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Traces of one model.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    traces: Vec<PathBuf>,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::DoubleSparsity(args) => double_sparsity(args),
        Command::Loki(args) => loki(args),
    }
}

fn double_sparsity(args: &Args) -> Result<(), Failure> {
    let channels = Channels::calibrate(&args.open()?)?;
    write_beside(&args.output, channels.to_json().as_bytes())?;
    let pairs = if channels.paired {
        "qk_proj is of queries and keys of the same tokens"
    } else {
        "no prompt in some layer: qk_proj is the product of q_proj and k_proj there"
    };
    say(&format!("wrote {}: {pairs}", args.output.display()))
}

fn loki(args: &Args) -> Result<(), Failure> {
    let bases = Bases::calibrate(&args.open()?)?;
    write_beside(&args.output, &bases.to_bytes())?;
    say(&format!("wrote {}", args.output.display()))
}

impl Args {
    fn open(&self) -> Result<Corpus, Failure> {
        let corpus = Corpus::open(&self.traces)?;
        let inputs: Vec<&Path> = self.traces.iter().map(PathBuf::as_path).collect();
        check_outputs(&[("--output", Some(&self.output))], &inputs)?;
        Ok(corpus)
    }
}
