//! The law that removed tokens leave no trace.

use vattention_core::SelectorConfig;

use super::{all_picks, filled, same};
use crate::Head;
use crate::verdict::Verdict;

/// After tokens were removed, and after others were appended in their place, a selector that can
/// remove tokens picks as if it had never received them.
///
/// # Errors
/// The first row that differs.
pub fn truncates(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let prompt = head.first(head.tokens.div_ceil(2));
    let start = || filled(config, &prompt);
    if !start()?.can_truncate() {
        return Ok(());
    }
    let removed = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    for kept in [prompt.tokens, prompt.tokens.midpoint(head.tokens), head.tokens] {
        let first = head.first(kept);
        let (mut cut, mut expected) = (start()?, start()?);
        expected.append(&head.part(prompt.tokens..kept));
        cut.append(&head.part(prompt.tokens..kept));
        cut.append(&removed.part(kept..head.tokens));
        cut.truncate(&first.part(0..kept).keys);
        let when = format!("after {} tokens were removed", head.tokens - kept);
        same(&all_picks(&*expected, &first), &all_picks(&*cut, &first), &when)?;
        expected.append(&head.part(kept..head.tokens));
        cut.append(&head.part(kept..head.tokens));
        let when = format!("{when} and others appended");
        same(&all_picks(&*expected, head), &all_picks(&*cut, head), &when)?;
    }
    Ok(())
}
