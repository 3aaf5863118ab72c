//! Search for the best settings of methods on some texts, with a measurement of the best on
//! held-out texts.
//!
//! The search is successive halving (Jamieson and Talwalkar 2016, "Non-stochastic best arm
//! identification and hyperparameter optimization", [arXiv
//! 1502.07943](https://arxiv.org/abs/1502.07943)): the first rung measures every candidate on a few
//! queries of each layer; each further rung measures the better part of each method's candidates on
//! twice as many queries.

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
pub use found::{BestCandidate, LeftOutCandidate, TriedCandidate, Tuning};
pub use goal::TuningGoal;
pub use halving::TuneOptions;
pub use score::{TuningScore, TuningTraces};

use best::{find_best, mark_front, rank_methods};
use halving::{HalvingResult, halve};
use held_out::measure_held_out;
use score::count_queries;

/// Finds the best settings of each method on the traces `chosen`, and measures them on `held_out`.
/// Each candidate on each rung, and each of the best on the held-out texts, is a unit of `results`.
/// `progress` is called with the number of finished units and the number of all units of the
/// current rung.
///
/// Candidates that are tuned to a density are tuned anew on the queries of each rung; candidates
/// that cannot be measured are left out. Neither the order of the candidates nor the number of
/// threads changes the result.
///
/// Cost: a pass over `chosen` for each candidate, goal and rung; about ten passes if a density is
/// searched.
///
/// # Errors
/// If settings do not fit the traces or a trace is damaged, and as [`Results::run`].
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
        count_queries(held_out)?;
    }
    let HalvingResult { queries, mut tried, left_out } =
        halve(candidates, chosen, backend, options, results, progress)?;
    let (last, order) = (queries.len() - 1, rank_methods(candidates));
    tried.sort_by_key(|tried| order[&tried.method[..]]);
    mark_front(&mut tried, last);
    let best = find_best(&tried, &options.goals, last, &order);
    let best = measure_held_out(best, &tried, held_out, backend, results, progress)?;
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
