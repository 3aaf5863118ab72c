//! The law `shares`, in the parts that selectors and samplers have in common.

use vattention_core::{NewTokens, Tokens};

use crate::Head;
use crate::verdict::{Verdict, ensure};

/// A selector or sampler, whose clones may share its index.
pub(crate) trait IndexOwner: Clone {
    fn sharing_obstacle(&self) -> Option<&'static str>;
    fn can_truncate(&self) -> bool;
    fn append(&mut self, new: &NewTokens<'_>);
    fn share(&mut self);
    fn truncate(&mut self, keys: &Tokens<'_>);
}

/// If `start` has no sharing obstacle, checks that it can be truncated, and that a clone of it that
/// is cut to some tokens has the results of `elsewhere`, which belongs to another sequence, with
/// these tokens only, before and after it gets other tokens. The original has the same results as
/// before. `start` and `elsewhere` have no tokens.
///
/// # Errors
/// The first difference that `same` finds.
pub(crate) fn check_sharing<T: IndexOwner, R>(
    [start, elsewhere]: [&T; 2],
    head: &Head,
    results: impl Fn(&T, &Head) -> R,
    same: impl Fn(&R, &R, &str) -> Verdict,
) -> Verdict {
    if start.sharing_obstacle().is_some() {
        return Ok(());
    }
    let can_truncate = start.can_truncate();
    ensure(can_truncate, || "there is no sharing obstacle, but can_truncate() is false".into())?;
    let results_alone = |head: &Head| {
        let mut alone = elsewhere.clone();
        alone.append(&head.part(0..head.tokens));
        results(&alone, head)
    };
    let all = results_alone(head);
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
            same(&results_alone(&cut), &results(&clone, &cut), &when)?;
        }
        clone.append(&head.part(kept..head.tokens));
        same(&all, &results(&clone, head), &format!("{when}, and more"))?;
        if kept == head.tokens {
            clone.truncate(&head.part(0..ends[0]).keys);
            clone.append(&other.part(ends[0]..head.tokens));
            let when = "in the original, after a clone got other tokens";
            same(&all, &results(&original, head), when)?;
        }
    }
    Ok(())
}
