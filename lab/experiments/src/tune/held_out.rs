//! The best on texts that they were not chosen on.

use vattention_core::{Backend, Fraction};

use super::score::told;
use super::{Best, Tried, TuningScore, TuningTraces};
use crate::{Entry, Error, Result, Results};

/// The best, measured on the held-out texts.
pub(super) fn shown(
    mut best: Vec<Best>,
    tried: &[Tried],
    held_out: Option<TuningTraces<'_>>,
    backend: &dyn Backend,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Best>> {
    let Some(texts) = held_out else { return Ok(best) };
    let numbers: Vec<usize> = best.iter().filter_map(|one| one.tried).collect();
    let key = |(i, &number): (usize, &usize)| {
        let Tried { method, settings, set, density, .. } = &tried[number];
        let set = set.clone().unwrap_or_default();
        let goal = density.map_or(0.0, Fraction::get);
        format!("held out, {}: {method} {settings:?} {set} {goal}", i + 1)
    };
    let keys: Vec<String> = numbers.iter().enumerate().map(key).collect();
    let mut done = 0;
    let scores: Vec<Result<TuningScore, String>> = results.run(&keys, |i| {
        let Tried { pipeline, file, .. } = &tried[numbers[i]];
        let entry = Entry { pipeline: pipeline.clone(), file: file.clone(), set: None };
        let score = told(TuningScore::of(&entry, texts, backend))?;
        done += 1;
        progress(done, keys.len());
        Ok::<_, Error>(score)
    })?;
    let mut scores = scores.into_iter();
    for one in best.iter_mut().filter(|one| one.tried.is_some()) {
        // A pipeline whose parameters lack a held-out layer has no score there.
        one.held_out = scores.next().and_then(Result::ok);
    }
    Ok(best)
}
