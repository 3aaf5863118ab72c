//! The law that evicted tokens stay evicted.

use vattention_core::{Picks, Selector, SelectorConfig};

use super::causal::run_step;
use super::{build, select};
use crate::Head;
use crate::verdict::{Verdict, ensure};

/// Largest number of steps after the prompt, up to rounding.
const STEPS: usize = 8;

/// A selector picks only [live](Selector::live) tokens, and an evicted token never becomes live
/// again, after a prompt and after each step of decoding.
///
/// # Errors
/// The first token that is picked although it is evicted, or live again.
pub fn evicts(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let mut appended = head.tokens.div_ceil(2);
    let prompt = head.first(appended);
    let mut selector = build(config, head)?;
    selector.append(&prompt.part(0..appended));
    let mut before = live(&*selector, appended);
    selector.observe(&prompt.prompt());
    let stride = (head.tokens - appended).div_ceil(STEPS).max(1);
    for visible in (appended..=head.tokens).step_by(stride) {
        if visible > appended {
            selector.append(&head.part(appended..visible));
        }
        appended = visible;
        let mut now = live(&*selector, visible);
        for row in head.step(visible).rows() {
            let picks = select(&*selector, &row);
            let dead = picks.iter().find(|&token| !now.contains(token));
            if let Some(token) = dead {
                return Err(format!("picks token {token}, which is not live"));
            }
        }
        for when in ["when tokens were appended", "after a step"] {
            let back =
                now.iter().find(|&token| token < before.visible() && !before.contains(token));
            ensure(back.is_none(), || {
                format!("token {back:?} was evicted, and is live again {when}, {visible} visible")
            })?;
            before = now;
            run_step(&mut *selector, &head.step(visible));
            now = live(&*selector, visible);
        }
        before = now;
    }
    Ok(())
}

/// Live tokens of a selector among the first `visible` ones.
fn live(selector: &dyn Selector, visible: usize) -> Picks {
    let mut live = Picks::new(visible);
    selector.live(&mut live);
    live
}
