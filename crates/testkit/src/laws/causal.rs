//! Whether rows are kept from what they may not see.

use vattention_core::{Picks, Row, Selector, SelectorConfig, Step, plugin::Attended};

use super::{Verdict, build, ensure, select};
use crate::Head;

/// Rows that see fewer tokens than were appended, at the most.
const ROWS: usize = 8;

/// Tokens that a row does not see change nothing of its picks: after a prompt, several tokens
/// appended at once, with a row for each that sees up to it, are the same as one after the other.
///
/// # Errors
/// The first row that differs.
pub fn causal(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let prompt = head.first(head.tokens.div_ceil(2));
    let begun = || {
        let mut selector = build(config, head)?;
        selector.append(&prompt.part(0..prompt.tokens));
        selector.observe(&prompt.prompt());
        Ok::<_, String>(selector)
    };
    let (mut at_once, mut one_by_one) = (begun()?, begun()?);
    at_once.append(&head.part(prompt.tokens..head.tokens));
    let mut shown = prompt.tokens;
    let stride = (head.tokens - prompt.tokens).div_ceil(ROWS).max(1);
    for visible in (prompt.tokens..=head.tokens).step_by(stride) {
        if visible > shown {
            one_by_one.append(&head.part(shown..visible));
        }
        shown = visible;
        let found = answered(&mut *at_once, &head.step(visible));
        let expected = answered(&mut *one_by_one, &head.first(visible).step(visible));
        let differs = (0..found.len()).find(|&member| found[member] != expected[member]);
        ensure(differs.is_none(), || {
            let member = differs.unwrap_or_default();
            format!(
                "member {member} sees {visible} of {} tokens, and is given {} instead of {}, as if \
                 there were no others",
                head.tokens, found[member], expected[member]
            )
        })?;
    }
    Ok(())
}

/// What is picked for each member of the group, in words. The selector is told that each read all
/// that it sees.
pub(super) fn answered(selector: &mut dyn Selector, step: &Step<'_>) -> Vec<String> {
    let rows = step.rows();
    let picks: Vec<Picks> = rows.iter().map(|row| select(selector, row)).collect();
    if selector.needs_feedback() {
        for row in &rows {
            learn(selector, row);
        }
    }
    let picked = |picks: Picks| {
        let tokens: Vec<_> = picks.iter().collect();
        picks.residual_bound().map_or(format!("{tokens:?}"), |x| format!("{tokens:?}, bound {x}"))
    };
    picks.into_iter().map(picked).collect()
}

fn learn(selector: &mut dyn Selector, row: &Row<'_>) {
    let mut logits = vec![0.0; row.visible()];
    row.logits(&mut logits);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f32 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|weight| weight / sum).collect();
    let tokens: Vec<u32> = (0..row.visible() as u32).collect();
    selector.feedback(row, &Attended { tokens: &tokens, weights: &weights });
}
