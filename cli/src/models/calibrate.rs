//! `vattention calibrate`: calibration files of selectors, from traces.

use std::path::{Path, PathBuf};

use vattention::trace::write_beside;
use vattention_train::{Bases, Channels, Corpus, Gates};

use crate::fail::{Failure, say};
use crate::outputs::check_outputs;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum CalibrateCommand {
    /// Find the channels that contribute most to q·k; JSON with the authors' keys.
    DoubleSparsity(CalibrateArgs),
    /// Measure each KV head's output error from reading only the first and recent tokens; text.
    DuoAttention(CalibrateArgs),
    /// Compute the principal directions of the keys; safetensors.
    Loki(CalibrateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Traces of one model.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    traces: Vec<PathBuf>,
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(command: &CalibrateCommand) -> Result<(), Failure> {
    match command {
        CalibrateCommand::DoubleSparsity(args) => double_sparsity(args),
        CalibrateCommand::DuoAttention(args) => duo_attention(args),
        CalibrateCommand::Loki(args) => loki(args),
    }
}

fn double_sparsity(args: &CalibrateArgs) -> Result<(), Failure> {
    let channels = Channels::calibrate(&args.open()?)?;
    write_beside(&args.output, channels.to_json().as_bytes())?;
    let report = match channels.pairs {
        0 => "\
some layer has no prompt queries in any trace, so `qk_proj`, which `by = \"qk\"` reads, is
approximated from `q_proj` and `k_proj` separately; to measure it, make the traces with a number
of prompt queries, such as `--prompt-queries 512`"
            .to_owned(),
        pairs => format!(
            "`qk_proj`, which `by = \"qk\"` reads, is measured on {pairs} pairs of a prompt query \
             and its own token's key in each head"
        ),
    };
    say(&format!("wrote {}\n{report}", args.output.display()))
}

fn duo_attention(args: &CalibrateArgs) -> Result<(), Failure> {
    let gates = Gates::calibrate(&args.open()?)?;
    write_beside(&args.output, gates.to_tsv().as_bytes())?;
    say(&format!("wrote {}", args.output.display()))
}

fn loki(args: &CalibrateArgs) -> Result<(), Failure> {
    let bases = Bases::calibrate(&args.open()?)?;
    write_beside(&args.output, &bases.to_bytes())?;
    say(&format!("wrote {}", args.output.display()))
}

impl CalibrateArgs {
    fn open(&self) -> Result<Corpus, Failure> {
        let corpus = Corpus::open(&self.traces)?;
        let inputs: Vec<&Path> = self.traces.iter().map(PathBuf::as_path).collect();
        check_outputs(&[("--output", Some(&self.output))], &inputs)?;
        Ok(corpus)
    }
}
