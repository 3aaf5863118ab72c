//! What is evicted stays evicted.

use vattention_core::{Picks, Selector, SelectorConfig};

use super::causal::answered;
use super::{Verdict, build, ensure, select};
use crate::Head;

/// Steps, at the most.
const STEPS: usize = 8;

/// After a prompt, and token by token after it, a selector picks nothing but [live](Selector::live) tokens, and a token that
/// was not live is not later.
///
/// # Errors
/// The first token that came back.
pub fn evicts(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let mut shown = head.tokens.div_ceil(2);
    let prompt = head.first(shown);
    let mut selector = build(config, head)?;
    selector.append(&prompt.part(0..shown));
    let mut before = live(&*selector, shown);
    selector.observe(&prompt.prompt());
    let stride = (head.tokens - shown).div_ceil(STEPS).max(1);
    for visible in (shown..=head.tokens).step_by(stride) {
        if visible > shown {
            selector.append(&head.part(shown..visible));
        }
        shown = visible;
        let mut now = live(&*selector, visible);
        for row in head.step(visible).rows() {
            let picks = select(&*selector, &row);
            let dead = picks.iter().find(|&token| !now.contains(token));
            ensure(dead.is_none(), || format!("picks token {dead:?}, which is not live"))?;
        }
        for what in ["as tokens came", "after a step"] {
            let back =
                now.iter().find(|&token| token < before.visible() && !before.contains(token));
            ensure(back.is_none(), || {
                format!("token {back:?} was evicted, and is live again {what}, {visible} visible")
            })?;
            before = now;
            answered(&mut *selector, &head.step(visible));
            now = live(&*selector, visible);
        }
        before = now;
    }
    Ok(())
}

/// What a selector holds of the first `visible` tokens.
fn live(selector: &dyn Selector, visible: usize) -> Picks {
    let mut live = Picks::new(visible);
    selector.live(&mut live);
    live
}
