//! The laws of selectors. Each says what it demands, and its verdict says what was found instead.

mod causal;
mod evicts;

pub use causal::causal;
pub use evicts::evicts;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use vattention_core::{Picks, Row, Selector, SelectorConfig, plugin::Attended};

use crate::Head;

/// `Err` says how a law is broken.
pub type Verdict = Result<(), String>;

/// A law: a selector obeys it on a head, or not.
pub type Law = fn(&dyn SelectorConfig, &Head) -> Verdict;

/// Every law, with its name.
pub const LAWS: [(&str, Law); 9] = [
    ("round_trips", round_trips),
    ("repeats", repeats),
    ("grows", grows),
    ("forks", forks),
    ("adds", adds),
    ("bounds", bounds),
    ("agrees", agrees),
    ("causal", causal),
    ("evicts", evicts),
];

/// A config that is written and read again is the same.
///
/// # Errors
/// What became of it.
pub fn round_trips(config: &dyn SelectorConfig, _: &Head) -> Verdict {
    is_read_again::<Box<dyn SelectorConfig>>(config)
}

/// What is written of a part, and what is read from that.
pub(crate) fn read_again<T: DeserializeOwned>(
    part: &(impl Serialize + ?Sized),
) -> Result<(String, T), String> {
    let text = serde_json::to_string(part).map_err(|e| format!("cannot be written: {e}"))?;
    let again =
        serde_json::from_str(&text).map_err(|e| format!("{text} cannot be read again: {e}"))?;
    Ok((text, again))
}

/// Whether a part that is written and read again is the same.
pub(crate) fn is_read_again<T: DeserializeOwned + Debug>(
    part: &(impl Serialize + Debug + ?Sized),
) -> Verdict {
    let (text, again) = read_again::<T>(part)?;
    let (before, after) = (format!("{part:?}"), format!("{again:?}"));
    ensure(before == after, || format!("{before} became {after} on the way through {text}"))
}

/// Asked twice, with another row between, a selector picks the same.
///
/// # Errors
/// The first row that differs.
pub fn repeats(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let selector = filled(config, head)?;
    let first = all_picks(&*selector, head);
    let again = all_picks(&*selector, head);
    same(&first, &again, "asked again")
}

/// What is appended together does not matter: all at once, one by one, or in two parts.
///
/// # Errors
/// The first row that differs.
pub fn grows(config: &dyn SelectorConfig, head: &Head) -> Verdict {
    let at_once = all_picks(&*filled(config, head)?, head);
    let mut one_by_one = build(config, head)?;
    (0..head.tokens).for_each(|token| one_by_one.append(&head.part(token..token + 1)));
    one_by_one.observe(&head.prompt());
    same(&at_once, &all_picks(&*one_by_one, head), "with tokens appended one by one")?;
    let mut in_parts = build(config, head)?;
    let middle = head.tokens / 3;
    in_parts.append(&head.part(0..middle));
    in_parts.append(&head.part(middle..head.tokens));
    in_parts.observe(&head.prompt());
    same(&at_once, &all_picks(&*in_parts, head), "with tokens appended in two parts")
}

/// A clone goes on as the original would, and leaves it alone.
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
    // Another fork goes another way, with other tokens, a prompt and feedback.
    let other = Head::new(head.tokens, head.dim, head.seed + 1, head.texture);
    let mut stranger = original.clone();
    original.append(&rest);
    stranger.append(&other.part(middle..head.tokens));
    stranger.observe(&other.prompt());
    for row in other.step(head.tokens).rows() {
        stranger.feedback(&row, &Attended { tokens: &[0], weights: &[1.0] });
    }
    same(&expected, &all_picks(&*original, head), "in the original, after a fork went another way")
}

/// A selector adds to what was picked before it, and leaves that alone.
///
/// # Errors
/// What became of the earlier picks.
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

/// A promised bound on the untaken logits is true.
///
/// # Errors
/// The token that exceeds it.
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
                format!("no untaken logit was to exceed {bound}, but that of token {over:?} does")
            })?;
        }
    }
    Ok(())
}

/// Saying `group_wide()`, a selector picks the same for every member of the group from the same
/// picks, and promises no bound, which would be of one member.
///
/// # Errors
/// The member that is told something else.
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
                    format!("group_wide() is true, but the bound {bound:?} is of one row")
                })?;
                let (member, found) = (row.member(), picks.iter().collect::<Vec<_>>());
                let expected = first.get_or_insert_with(|| found.clone());
                ensure(*expected == found, || {
                    format!(
                        "group_wide() is true, but member {member} picks {found:?}, and member 0 {expected:?}"
                    )
                })?;
            }
        }
    }
    Ok(())
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn build(config: &dyn SelectorConfig, head: &Head) -> Result<Box<dyn Selector>, String> {
    config.build(head.site()).map_err(|error| format!("cannot be built: {error}"))
}

/// A selector that has seen all tokens and a prompt.
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

/// The picks of every row, by token: seeing all tokens, half of them, and one.
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
