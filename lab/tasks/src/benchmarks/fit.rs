//! Fitting of prompts into a number of tokens.

use super::definition::Fit;
use crate::fit::{TokenLimit, largest};
use crate::{Case, Error, Result};

/// Fits a case with its answer into the limit.
pub(super) fn fit(
    case: Case,
    method: Fit,
    task: &'static str,
    length: TokenLimit<'_>,
) -> Result<Case> {
    let prompt = length.count_prompt(&case);
    let too_short = |least| Error::TooShort { task, tokens: length.tokens, least };
    match method {
        Fit::RestForAnswer => {
            let rest = length.tokens.saturating_sub(prompt);
            if rest == 0 {
                return Err(too_short(prompt.saturating_add(1)));
            }
            Ok(Case { tokens: case.tokens.min(rest), ..case })
        }
        _ if prompt.saturating_add(case.tokens) <= length.tokens => Ok(case),
        Fit::Whole => Err(too_short(prompt.saturating_add(case.tokens))),
        Fit::CutMiddle => {
            let least = case.tokens.saturating_add(2);
            cut_middle(&case, length).ok_or_else(|| too_short(least))
        }
        Fit::CutEnd => cut_end(case, length).map_err(too_short),
    }
}

/// Keeps the same number of tokens at the beginning and at the end of the prompt.
fn cut_middle(case: &Case, length: TokenLimit<'_>) -> Option<Case> {
    let all = format!("{}{}", case.context, case.question);
    let mut half = length.tokens.checked_sub(case.tokens)? / 2;
    while half > 0 {
        let head = largest(0..=all.len(), half, |n| (length.count)(head(&all, n))).ok()?;
        let tail = largest(0..=all.len(), half, |n| (length.count)(tail(&all, n))).ok()?;
        let cut = join(case, &all, head, tail);
        let size = length.count_prompt(&cut).saturating_add(cut.tokens);
        let over = size.saturating_sub(length.tokens);
        if over == 0 {
            return Some(cut);
        }
        // Both ends together may have other tokens where they meet.
        half = half.saturating_sub(over.div_ceil(2));
    }
    None
}

/// Keeps as much of the context's beginning as fits before the omission and the question. The error
/// is the number of tokens without any of the context.
fn cut_end(case: Case, length: TokenLimit<'_>) -> Result<Case, usize> {
    let rest = (length.count)(&case.question).saturating_add(case.tokens);
    let cut = |bytes| format!("{}{}", head(&case.context, bytes), case.omission);
    let size = |bytes| (length.count)(&cut(bytes)).saturating_add(rest);
    let bytes = largest(0..=case.context.len(), length.tokens, size)?;
    Ok(Case { context: cut(bytes), ..case })
}

fn head(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len() - bytes)..]
}

/// Joins both ends of the prompt. The beginning of the question is cut only if the end is shorter
/// than the question.
fn join(case: &Case, all: &str, head_bytes: usize, tail_bytes: usize) -> Case {
    let (head, tail) = (head(all, head_bytes), tail(all, tail_bytes));
    let (before, question) = tail.split_at(tail.len().saturating_sub(case.question.len()));
    Case { context: format!("{head}{before}"), question: question.into(), ..case.clone() }
}
