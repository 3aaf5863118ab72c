//! The laws of selectors. A verdict describes the first violation.

mod adjusts;
mod causal;
mod evicts;
mod shares;
mod truncates;

pub use adjusts::adjusts;
pub use causal::causal;
pub use evicts::evicts;
pub use shares::shares;
pub use truncates::truncates;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use vattention_core::{Picks, Row, Selector, SelectorConfig, plugin::AttentionWeights};

use crate::Head;
use crate::verdict::{Verdict, ensure};

/// A law, which a selector obeys or violates on a head.
pub type Law = fn(&dyn SelectorConfig, &Head) -> Verdict;

/// All laws of selectors, with their names.
pub const LAWS: [(&str, Law); 12] = [
    ("round_trips", round_trips),
    ("repeats", repeats),
    ("grows", grows),
    ("forks", forks),
    ("adds", adds),
    ("bounds", bounds),
    ("agrees", agrees),
    ("causal", causal),
    ("evicts", evicts),
    ("truncates", truncates),
    ("shares", shares),
    ("adjusts", adjusts),
];

/// A config stays the same if it is written and read again.
///
/// # Errors
/// The config before and after.
pub fn round_trips(config: &dyn SelectorConfig, _: &Head) -> Verdict {
    check_round_trip::<Box<dyn SelectorConfig>>(config)
}

/// Writes a plug-in as JSON and reads it again. Returns the text and the new plug-in.
pub(crate) fn read_again<T: DeserializeOwned>(
    part: &(impl Serialize + ?Sized),
) -> Result<(String, T), String> {
    let text = serde_json::to_string(part).map_err(|e| format!("cannot be written: {e}"))?;
    let again =
        serde_json::from_str(&text).map_err(|e| format!("{text} cannot be read again: {e}"))?;
    Ok((text, again))
}

/// Checks that a plug-in stays the same if it is written and read again.
pub(crate) fn check_round_trip<T: DeserializeOwned + Debug>(
    part: &(impl Serialize + Debug + ?Sized),
) -> Verdict {
    let (text, again) = read_again::<T>(part)?;
    let (before, after) = (format!("{part:?}"), format!("{again:?}"));
    ensure(before == after, || format!("{before} was written as {text} and read as {after}"))
}

/// A selector picks the same tokens for the same query again, after other queries.
///
/// # Errors
/// The first row that differs.
pub fn repeats(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let selector = filled(config, head)?;
    let first = all_picks(&*selector, head);
    let again = all_picks(&*selector, head);
    same(&first, &again, "the second time")
}

/// Picks do not depend on the number of calls that append the tokens: one call, one per token, or
/// two.
///
/// # Errors
/// The first row that differs.
pub fn grows(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let expected = all_picks(&*filled(config, head)?, head);
    let mut one_by_one = build(config, head)?;
    (0..head.tokens).for_each(|token| one_by_one.append(&head.part(token..token + 1)));
    one_by_one.observe(&head.prompt());
    same(&expected, &all_picks(&*one_by_one, head), "with tokens appended one by one")?;
    let mut in_parts = build(config, head)?;
    let middle = head.tokens / 3;
    in_parts.append(&head.part(0..middle));
    in_parts.append(&head.part(middle..head.tokens));
    in_parts.observe(&head.prompt());
    same(&expected, &all_picks(&*in_parts, head), "with tokens appended in two parts")
}

/// A clone picks the same tokens as the original, and does not change it.
///
/// # Errors
/// The first row that differs.
pub fn forks(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let middle = head.tokens / 2;
    let (begin, rest) = (head.part(0..middle), head.part(middle..head.tokens));
    let mut unforked = build(config, head)?;
    unforked.append(&begin);
    unforked.append(&rest);
    let expected = all_picks(&*unforked, head);

    let mut original = build(config, head)?;
    original.append(&begin);
    let mut fork = original.clone();
    fork.append(&rest);
    same(&expected, &all_picks(&*fork, head), "in a fork")?;
    // A second fork gets other tokens, another prompt and other feedback.
    let other = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    let mut other_fork = original.clone();
    original.append(&rest);
    other_fork.append(&other.part(middle..head.tokens));
    other_fork.observe(&other.prompt());
    for row in other.step(head.tokens).rows() {
        other_fork.feedback(&row, &AttentionWeights { tokens: &[0], weights: &[1.0], sink: 0.0 });
    }
    let when = "in the original, after a fork got other tokens";
    same(&expected, &all_picks(&*original, head), when)
}

/// A selector adds to earlier picks of other selectors, and removes none.
///
/// # Errors
/// An earlier pick that was removed.
pub fn adds(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let selector = filled(config, head)?;
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        for row in head.step(visible).rows() {
            let mut picks = Picks::new(visible);
            picks.take_all((0..visible).filter(|token| token % 3 == 1));
            let before: Vec<_> = picks.iter().collect();
            selector.select(&row, &mut picks);
            let after: Vec<_> = picks.iter().collect();
            let lost = before.iter().find(|pick| !after.contains(pick));
            ensure(lost.is_none(), || {
                format!("the earlier pick {lost:?} of {visible} visible tokens is not in {after:?}")
            })?;
        }
    }
    Ok(())
}

/// The logits of all tokens that are not picked are at most the promised bound.
///
/// # Errors
/// A token whose logit exceeds the bound.
pub fn bounds(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let selector = filled(config, head)?;
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        for (row, taken) in
            head.step(visible).rows().into_iter().flat_map(|row| [(row, 0), (row, 3)])
        {
            let mut picks = Picks::new(visible);
            picks.take_all((0..visible).filter(|token| taken > 0 && token % taken == 1));
            selector.select(&row, &mut picks);
            let Some(bound) = picks.residual_bound() else { continue };
            let over = picks.residual().find(|&token| row.logit(token) > bound);
            ensure(over.is_none(), || {
                format!(
                    "the logit of token {over:?}, which is not picked, exceeds the bound {bound}"
                )
            })?;
        }
    }
    Ok(())
}

/// If `group_wide()` is true, a selector adds the same picks for every query head of the group, and
/// promises no bound, which would concern one query head only.
///
/// # Errors
/// The query head with other picks, or the bound.
pub fn agrees(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let selector = filled(config, head)?;
    if !selector.group_wide() {
        return Ok(());
    }
    for visible in [1, head.tokens.div_ceil(2), head.tokens] {
        let mut before = Picks::new(visible);
        before.take_all((0..visible).filter(|token| token % 3 == 1));
        for before in [Picks::new(visible), before] {
            let mut first = None;
            for row in head.step(visible).rows() {
                let mut picks = before.clone();
                selector.select(&row, &mut picks);
                let bound = picks.residual_bound();
                ensure(bound.is_none(), || {
                    format!("group_wide() is true, but a bound is promised: {bound:?}")
                })?;
                let (member, found) = (row.member(), picks.iter().collect::<Vec<_>>());
                let expected = first.get_or_insert_with(|| found.clone());
                ensure(*expected == found, || {
                    format!(
                        "group_wide() is true, but member {member} picks {found:?}, and member 0 \
                         {expected:?}"
                    )
                })?;
            }
        }
    }
    Ok(())
}

fn build(config: &dyn SelectorConfig, head: &Head) -> Result<Box<dyn Selector>, String> {
    config.build(head.site()).map_err(|error| format!("cannot be built: {error}"))
}

/// Builds a selector, and makes it index all tokens and observe a prompt.
fn filled(config: &dyn SelectorConfig, head: &Head) -> Result<Box<dyn Selector>, String> {
    let mut selector = build(config, head)?;
    selector.append(&head.part(0..head.tokens));
    selector.observe(&head.prompt());
    Ok(selector)
}

fn select(selector: &dyn Selector, row: &Row<'_>) -> Picks {
    let mut picks = Picks::new(row.visible());
    selector.select(row, &mut picks);
    picks
}

/// Picks of every query head, in ascending order, with all tokens visible, half of them, and one.
fn all_picks(selector: &dyn Selector, head: &Head) -> Vec<Vec<usize>> {
    [head.tokens, head.tokens.div_ceil(2), 1]
        .into_iter()
        .flat_map(|visible| head.step(visible).rows())
        .map(|row| select(selector, &row).iter().collect())
        .collect()
}

fn same(expected: &[Vec<usize>], found: &[Vec<usize>], when: &str) -> Verdict {
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    ensure(differs.is_none(), || {
        let row = differs.unwrap_or_default();
        format!("row {row} picks {:?} {when}, not {:?}", found[row], expected[row])
    })
}
