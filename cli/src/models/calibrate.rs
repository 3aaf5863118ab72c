//! `vattention calibrate`: what selectors rank by, found in traces.

use std::path::{Path, PathBuf};

use vattention::trace::write_beside;
use vattention_train::{Bases, Channels, Corpus, Gates};

use crate::fail::{Failure, say};
use crate::outputs::check_outputs;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum CalibrateCommand {
    /// The channels that carry most of q·k, as JSON with the authors' keys.
    DoubleSparsity(CalibrateArgs),
    /// How far the output moves at each KV head if it reads the first and the recent tokens alone, as text.
    DuoAttention(CalibrateArgs),
    /// The principal directions of the keys, as safetensors.
    Loki(CalibrateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CalibrateArgs {
    /// Traces of one model.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    traces: Vec<PathBuf>,
    /// The file to write.
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
    let found = match channels.pairs {
        0 => "\
a layer has no prompt queries in any trace, so no query meets the key of its own token there, and
`qk_proj`, which `by = \"qk\"` reads, is a guess from `q_proj` and `k_proj` apart; to measure it, make the
traces with `--prompt-queries 512`, say"
            .to_owned(),
        pairs => format!(
            "`qk_proj`, which `by = \"qk\"` reads, is of {pairs} pairs of a query and the key of its own \
             token in each head: the prompt's last queries"
        ),
    };
    say(&format!("wrote {}\n{found}", args.output.display()))
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
