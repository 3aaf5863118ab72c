//! The law that a shared index is that of any sequence with the same tokens.

use vattention_core::{SelectorConfig, Site};

use super::{Verdict, all_picks, ensure, same};
use crate::Head;

/// If a selector has no [sharing obstacle](vattention_core::Selector::sharing_obstacle), it can be
/// truncated, and a clone of it that is cut to some tokens picks like a selector of another
/// sequence that has these tokens only, before and after it gets other tokens. The original picks
/// as before.
///
/// # Errors
/// The first row that differs.
pub fn shares(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let elsewhere = Site { sequence: head.site().sequence + 1, ..*head.site() };
    let build =
        |site: &Site| config.build(site).map_err(|error| format!("cannot be built: {error}"));
    let start = build(head.site())?;
    if start.sharing_obstacle().is_some() {
        return Ok(());
    }
    let can_truncate = start.can_truncate();
    ensure(can_truncate, || "there is no sharing obstacle, but can_truncate() is false".into())?;
    let mut all = build(&elsewhere)?;
    all.append(&head.part(0..head.tokens));
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
            let mut expected = build(&elsewhere)?;
            expected.append(&head.part(0..kept));
            same(&all_picks(&*expected, &cut), &all_picks(&*clone, &cut), &when)?;
        }
        clone.append(&head.part(kept..head.tokens));
        same(&all_picks(&*all, head), &all_picks(&*clone, head), &format!("{when}, and more"))?;
        if kept == head.tokens {
            clone.truncate(&head.part(0..ends[0]).keys);
            clone.append(&other.part(ends[0]..head.tokens));
            let when = "in the original, after a clone got other tokens";
            same(&all_picks(&*all, head), &all_picks(&*original, head), when)?;
        }
    }
    Ok(())
}
