//! The law that a shared index is that of any sequence with the same tokens.

use vattention_core::{SamplerConfig, Site};

use super::{all_draws, build, filled, same};
use crate::Head;
use crate::laws::{Verdict, ensure};

/// If a sampler has no [sharing obstacle](vattention_core::Sampler::sharing_obstacle), it can be
/// truncated, and a clone of it that is cut to some tokens draws like a sampler of another sequence
/// that has these tokens only, before and after it gets other tokens. The original draws as before.
///
/// # Errors
/// The first list that differs.
pub fn shares(config: &dyn SamplerConfig, head: &Head) -> Verdict {
    let elsewhere = Site { sequence: head.site().sequence + 1, ..*head.site() };
    let start = build(config, head.site())?;
    if start.sharing_obstacle().is_some() {
        return Ok(());
    }
    let can_truncate = start.can_truncate();
    ensure(can_truncate, || "there is no sharing obstacle, but can_truncate() is false".into())?;
    let all = all_draws(config, &*filled(config, &elsewhere, head)?, head);
    let other = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    // The original has two shared parts and one of its own, and other tokens after the first ones.
    let ends = [head.tokens / 4, head.tokens / 2, head.tokens];
    for kept in [ends[0] / 2, ends[0], ends[1] - ends[0] / 2, ends[1], ends[2] - ends[0], ends[2]] {
        let mut original = start.clone();
        let mut first = 0;
        for end in ends {
            original.append(&head.part(first.min(kept)..end.min(kept)));
            original.append(&other.part(first.max(kept)..end.max(kept)));
            if end < head.tokens {
                original.share();
            }
            first = end;
        }
        let cut = head.first(kept);
        let mut clone = original.clone();
        clone.truncate(&cut.part(0..kept).keys);
        let when = format!("with {kept} tokens of another sequence");
        if kept > 0 {
            let expected = all_draws(config, &*filled(config, &elsewhere, &cut)?, &cut);
            same(&expected, &all_draws(config, &*clone, &cut), &when)?;
        }
        clone.append(&head.part(kept..head.tokens));
        same(&all, &all_draws(config, &*clone, head), &format!("{when}, and more"))?;
        if kept == head.tokens {
            clone.truncate(&head.part(0..ends[0]).keys);
            clone.append(&other.part(ends[0]..head.tokens));
            let when = "in the original, after a clone got other tokens";
            same(&all, &all_draws(config, &*original, head), when)?;
        }
    }
    Ok(())
}
