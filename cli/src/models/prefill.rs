//! Option of the prefill strategy.

use std::path::PathBuf;

use vattention_llm::Strategy;

use crate::fail::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct PrefillArgs {
    /// TOML file of the strategy that reads the prompt up to where the pipeline begins, instead of
    /// dense attention: `strategy` is dense or sample-attention; the latter has the keys sample,
    /// coverage and window.
    #[arg(long, value_name = "FILE")]
    pub(crate) prefill: Option<PathBuf>,
}

impl PrefillArgs {
    /// Returns the strategy of the file, or dense attention.
    pub(crate) fn strategy(&self) -> Result<Strategy, Failure> {
        Ok(self.prefill.as_deref().map(Strategy::open).transpose()?.unwrap_or_default())
    }
}
