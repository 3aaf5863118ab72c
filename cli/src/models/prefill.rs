//! How the part of a prompt is read that no pipeline reads.

use std::path::PathBuf;

use vattention_llm::Strategy;

use crate::fail::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct PrefillArgs {
    /// Read the prompt, up to where the pipeline begins, as this TOML file says, in place of dense attention: `strategy`,
    /// dense or sample-attention, and the latter's sample, coverage and window.
    #[arg(long, value_name = "FILE")]
    pub(crate) prefill: Option<PathBuf>,
}

impl PrefillArgs {
    /// What the file says, or dense attention.
    pub(crate) fn strategy(&self) -> Result<Strategy, Failure> {
        Ok(self.prefill.as_deref().map(Strategy::open).transpose()?.unwrap_or_default())
    }
}
