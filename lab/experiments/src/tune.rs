//! The best settings of methods, searched on some texts and shown on others.
//!
//! By successive halving (Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and
//! hyperparameter optimization", [arXiv 1502.07943](https://arxiv.org/abs/1502.07943)): every candidate is measured
//! on a few queries of each layer, the better part of each method on twice as many, and so on.

mod best;
mod candidate;
mod found;
mod goal;
mod halving;
mod held_out;
mod rank;
mod score;

use vattention_core::Backend;

use crate::{Result, Results};

pub use candidate::Candidate;
pub use found::{Best, LeftOutCandidate, Tried, Tuning};
pub use goal::TuningGoal;
pub use halving::TuneOptions;
pub use score::{TuningScore, TuningTraces};

use best::{bests, mark_front, order};
use halving::{Halved, halve};
use held_out::shown;
use score::queries_of;

/// Finds the best settings of each method on `chosen`, and measures them on `held_out`. Each candidate on each rung, and each
/// of the best on the held-out texts, is a unit of `results`. `progress` is called with the units done and all
/// of that rung.
///
/// A candidate that is made to read a density is so on the queries of each rung; one that cannot be
/// measured is left out. Neither the order of the candidates nor the number of threads changes what is found.
///
/// Cost: a pass over `chosen` for each candidate, goal and rung, some ten with a search.
///
/// # Errors
/// Settings that do not fit the traces, a damaged trace, or as [`Results::run`].
pub fn tune(
    candidates: &[Candidate],
    chosen: TuningTraces<'_>,
    held_out: Option<TuningTraces<'_>>,
    backend: &dyn Backend,
    options: &TuneOptions,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Tuning> {
    if let Some(held_out) = held_out {
        queries_of(held_out)?;
    }
    let Halved { queries, mut tried, left_out } =
        halve(candidates, chosen, backend, options, results, progress)?;
    let (last, order) = (queries.len() - 1, order(candidates));
    tried.sort_by_key(|one| order[&one.method[..]]);
    mark_front(&mut tried, last);
    let best = bests(&tried, &options.goals, last, &order);
    let best = shown(best, &tried, held_out, backend, results, progress)?;
    let files = |texts: Option<TuningTraces<'_>>| {
        let traces = texts.iter().flat_map(|texts| texts.traces);
        traces.map(|trace| trace.path().display().to_string()).collect()
    };
    Ok(Tuning {
        traces: files(Some(chosen)),
        held_out: files(held_out),
        backend: backend.name().into(),
        queries,
        tried,
        best,
        left_out,
    })
}

#[cfg(test)]
mod tests;
