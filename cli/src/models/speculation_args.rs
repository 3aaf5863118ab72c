//! Option of drafts, which are checked together with each token of an answer.

use clap::builder::{RangedU64ValueParser, TypedValueParser};
use vattention_llm::{MOST_DRAFTS, Session};

use crate::fail::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct SpeculationArgs {
    /// Maximum number of drafts of the next tokens that a pass of the model checks; 0 for none.
    /// Drafts are looked up in the prompt and the answer, so they help if the answer repeats parts
    /// of these. The answer, its log-probabilities and the report of what was read stay the same.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = drafts())]
    pub(crate) speculate: usize,
}

/// Checks that a session can give back drafts, if there are any.
///
/// # Errors
/// Names the selector or sampler that cannot remove tokens.
pub(crate) fn check_drafts(session: &Session<'_>, drafts: usize) -> Result<(), Failure> {
    if drafts == 0 {
        return Ok(());
    }
    session.check_rewindable().map_err(|error| Failure::input(format!("--speculate: {error}")))
}

fn drafts() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(0..=MOST_DRAFTS as u64)
}
