//! The law that a shared index is that of any sequence with the same tokens.

use vattention_core::{NewTokens, Sampler, SamplerConfig, Site, Tokens};

use super::{all_draws, build, same};
use crate::Head;
use crate::sharing::{IndexOwner, check_sharing};
use crate::verdict::Verdict;

/// If a sampler has no [sharing obstacle](vattention_core::Sampler::sharing_obstacle), it can be
/// truncated, and a clone of it that is cut to some tokens draws like a sampler of another sequence
/// that has these tokens only, before and after it gets other tokens. The original draws as before.
///
/// # Errors
/// The first list that differs.
pub fn shares(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let elsewhere = Site { sequence: head.site().sequence + 1, ..*head.site() };
    let both = [&build(config, head.site())?, &build(config, &elsewhere)?];
    check_sharing(
        both,
        head,
        |sampler, head| all_draws(config, &**sampler, head),
        |expected, found, when| same(expected, found, when),
    )
}

impl IndexOwner for Box<dyn Sampler> {
    fn sharing_obstacle(&self) -> Option<&'static str> {
        (**self).sharing_obstacle()
    }

    fn can_truncate(&self) -> bool {
        (**self).can_truncate()
    }

    fn append(&mut self, new: &NewTokens<'_>) {
        (**self).append(new);
    }

    fn share(&mut self) {
        (**self).share();
    }

    fn truncate(&mut self, keys: &Tokens<'_>) {
        (**self).truncate(keys);
    }
}
