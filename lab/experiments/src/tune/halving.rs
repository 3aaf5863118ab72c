//! Successive halving: from rung to rung, the better part of the candidates survives and is
//! measured on twice as many queries.

use std::collections::BTreeMap;

use vattention_core::Backend;

use super::candidate::{Arm, SearchOutcome, list_arms};
use super::rank::{TuningPoint, select_survivors};
use super::score::{count_queries, separate_refusal};
use super::{Candidate, LeftOutCandidate, TriedCandidate, TuningGoal, TuningTraces};
use crate::indexed::IndexedLayers;
use crate::{Result, Results, TraceSettings};

/// Options of the search for the best settings.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Goals; without any, the search returns the Pareto front of density and error.
    pub goals: Vec<TuningGoal>,
    /// Number of rungs. Each rung measures on twice as many queries as the one before, the last on
    /// all. One rung is an exhaustive search.
    pub rungs: usize,
    /// Share of each method's candidates that survives a rung; at least one survives.
    pub keep: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { goals: Vec::new(), rungs: 3, keep: 0.5 }
    }
}

/// Measured candidates, each on the last rung that it reached, and the candidates that could not be
/// measured.
pub(super) struct HalvingResult {
    /// Number of queries of each layer, rung by rung.
    pub(super) queries: Vec<usize>,
    pub(super) tried: Vec<TriedCandidate>,
    pub(super) left_out: Vec<LeftOutCandidate>,
}

/// Measures the candidates on `chosen`, rung by rung.
pub(super) fn halve(
    candidates: &[Candidate],
    chosen: TuningTraces<'_>,
    backend: &dyn Backend,
    options: &TuneOptions,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<HalvingResult> {
    let queries = count_queries_by_rung(chosen, options)?;
    let mut arms = list_arms(candidates, &options.goals);
    let (mut tried, mut left_out) = (Vec::new(), Vec::new());
    for (rung, &count) in queries.iter().enumerate() {
        let settings = TraceSettings { queries: Some(count), ..chosen.settings.clone() };
        let texts = TuningTraces { settings: &settings, ..chosen };
        let results_of_arms = measure_arms(&arms, rung, texts, backend, results, progress)?;
        let mut outcomes = Vec::new();
        for (arm, outcome) in arms.into_iter().zip(results_of_arms) {
            match outcome {
                Ok(outcome) => outcomes.push((arm, outcome)),
                Err(reason) => left_out.push(arm.left_out(reason)),
            }
        }
        let last = rung + 1 == queries.len();
        let survive = find_survivors(&outcomes, options, last);
        arms = Vec::new();
        for ((arm, outcome), survives) in outcomes.into_iter().zip(survive) {
            if survives && !last {
                arms.push(arm);
            } else {
                tried.push(arm.tried(outcome, rung)?);
            }
        }
    }
    left_out.sort();
    left_out.dedup();
    Ok(HalvingResult { queries, tried, left_out })
}

/// Returns the number of queries of each layer, rung by rung: all on the last rung, and half as
/// many on each rung before.
fn count_queries_by_rung(chosen: TuningTraces<'_>, options: &TuneOptions) -> Result<Vec<usize>> {
    let all = count_queries(chosen)?;
    let mut queries: Vec<usize> =
        (0..options.rungs.max(1)).rev().map(|back| (all >> back.min(63)).max(1)).collect();
    queries.dedup();
    Ok(queries)
}

/// Measures each arm; the inner error is the reason why an arm cannot be measured.
fn measure_arms(
    arms: &[Arm<'_>],
    rung: usize,
    texts: TuningTraces<'_>,
    backend: &dyn Backend,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Result<SearchOutcome, String>>> {
    let queries = texts.settings.queries.unwrap_or_default();
    let what = format!("rung {} of {queries} queries", rung + 1);
    let keys: Vec<String> = arms.iter().enumerate().map(|(i, arm)| arm.key(&what, i)).collect();
    let (mut done, indexed) = (0, IndexedLayers::for_search());
    results.run(&keys, |i| {
        let outcome = separate_refusal(arms[i].measure(texts, backend, &indexed))?;
        done += 1;
        progress(done, keys.len());
        Ok(outcome)
    })
}

/// Selects the arms that survive a rung; arms of each method and density compete among themselves.
fn find_survivors(
    arms: &[(Arm<'_>, SearchOutcome)],
    options: &TuneOptions,
    last: bool,
) -> Vec<bool> {
    let mut survive = vec![last; arms.len()];
    let mut groups: BTreeMap<(&str, Option<u64>), Vec<usize>> = BTreeMap::new();
    for (i, (arm, _)) in arms.iter().enumerate() {
        let density = arm.density.map(|density| density.get().to_bits());
        groups.entry((&arm.candidate.method, density)).or_default().push(i);
    }
    for ((_, density), group) in groups {
        let points: Vec<TuningPoint> = group.iter().map(|&i| arms[i].1.score.point()).collect();
        let count = ((group.len() as f64 * options.keep).ceil() as usize).max(1);
        let applies = |goal: &&TuningGoal| {
            density.is_none() || goal.density().map(|limit| limit.get().to_bits()) == density
        };
        let goals: Vec<TuningGoal> = options.goals.iter().filter(applies).copied().collect();
        for i in select_survivors(&points, &goals, count) {
            survive[group[i]] = true;
        }
    }
    survive
}
