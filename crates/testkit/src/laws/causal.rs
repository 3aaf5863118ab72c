//! The law that picks do not depend on tokens that are not visible.

use vattention_core::{Picks, Row, Selector, SelectorConfig, Step, plugin::AttentionWeights};

use super::{filled, select};
use crate::Head;
use crate::verdict::{Verdict, ensure};

/// Largest number of steps after the prompt, up to rounding.
const STEPS: usize = 8;

/// Picks do not depend on tokens that are not visible. After a prompt, the picks of steps with more
/// and more visible tokens are the same if the tokens were appended together or just before each
/// step.
///
/// # Errors
/// The first query head that differs.
pub fn causal(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let prompt = head.first(head.tokens.div_ceil(2));
    let (mut together, mut one_by_one) = (filled(config, &prompt)?, filled(config, &prompt)?);
    together.append(&head.part(prompt.tokens..head.tokens));
    let mut appended = prompt.tokens;
    let stride = (head.tokens - prompt.tokens).div_ceil(STEPS).max(1);
    for visible in (prompt.tokens..=head.tokens).step_by(stride) {
        if visible > appended {
            one_by_one.append(&head.part(appended..visible));
        }
        appended = visible;
        let found = run_step(&mut *together, &head.step(visible));
        let expected = run_step(&mut *one_by_one, &head.first(visible).step(visible));
        let differs = (0..found.len()).find(|&member| found[member] != expected[member]);
        ensure(differs.is_none(), || {
            let member = differs.unwrap_or_default();
            format!(
                "with {visible} of {} tokens visible, member {member} picks {}; without the other \
                 tokens, it picks {}",
                head.tokens, found[member], expected[member]
            )
        })?;
    }
    Ok(())
}

/// Runs a step, with feedback as if each query head had read all visible tokens. Returns a
/// description of the picks of each query head.
pub(super) fn run_step(selector: &mut dyn Selector, step: &Step<'_>) -> Vec<String> {
    let rows = step.rows();
    let picks: Vec<Picks> = rows.iter().map(|row| select(selector, row)).collect();
    if selector.needs_feedback() {
        for row in &rows {
            learn(selector, row);
        }
    }
    let describe = |picks: Picks| {
        let tokens: Vec<_> = picks.iter().collect();
        picks.residual_bound().map_or(format!("{tokens:?}"), |x| format!("{tokens:?}, bound {x}"))
    };
    picks.into_iter().map(describe).collect()
}

fn learn(selector: &mut dyn Selector, row: &Row<'_>) {
    let mut logits = vec![0.0; row.visible()];
    row.logits(&mut logits);
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let sum: f32 = weights.iter().sum();
    let weights: Vec<f32> = weights.iter().map(|weight| weight / sum).collect();
    let tokens: Vec<u32> = (0..row.visible() as u32).collect();
    selector.feedback(row, &AttentionWeights { tokens: &tokens, weights: &weights, sink: 0.0 });
}
