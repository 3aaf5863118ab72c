//! Measurement of the best candidates on held-out texts.

use vattention_core::{Backend, Fraction};

use super::score::separate_refusal;
use super::{BestCandidate, TriedCandidate, TuningScore, TuningTraces};
use crate::indexed::IndexedLayers;
use crate::{Entry, Error, Result, Results};

/// Measures the best candidates on the held-out texts, if there are any.
pub(super) fn measure_held_out(
    mut best: Vec<BestCandidate>,
    tried: &[TriedCandidate],
    held_out: Option<TuningTraces<'_>>,
    backend: &dyn Backend,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<BestCandidate>> {
    let Some(texts) = held_out else { return Ok(best) };
    let numbers: Vec<usize> = best.iter().filter_map(|best| best.tried).collect();
    let key = |(i, &number): (usize, &usize)| {
        let TriedCandidate { method, settings, set, density, .. } = &tried[number];
        let set = set.clone().unwrap_or_default();
        let goal = density.map_or(0.0, Fraction::get);
        format!("held out, {}: {method} {settings:?} {set} {goal}", i + 1)
    };
    let keys: Vec<String> = numbers.iter().enumerate().map(key).collect();
    let (mut done, indexed) = (0, IndexedLayers::for_search());
    let scores: Vec<Result<TuningScore, String>> = results.run(&keys, |i| {
        let TriedCandidate { pipeline, file, .. } = &tried[numbers[i]];
        let entry = Entry { pipeline: pipeline.clone(), file: file.clone(), set: None };
        let score = separate_refusal(TuningScore::measure(&entry, texts, backend, &indexed))?;
        done += 1;
        progress(done, keys.len());
        Ok::<_, Error>(score)
    })?;
    let mut scores = scores.into_iter();
    for best in best.iter_mut().filter(|best| best.tried.is_some()) {
        // A pipeline whose parameters lack a held-out layer has no score there.
        best.held_out = scores.next().and_then(Result::ok);
    }
    Ok(best)
}
