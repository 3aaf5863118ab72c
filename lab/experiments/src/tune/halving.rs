//! Successive halving: rung by rung the better part of the candidates goes on, and is measured on twice as many queries.

use std::collections::BTreeMap;

use vattention_core::Backend;

use super::candidate::{Arm, SearchOutcome, arms};
use super::rank::{RankPlace, survivors};
use super::score::{queries_of, told};
use super::{Candidate, LeftOutCandidate, Tried, TuningGoal, TuningTraces};
use crate::{Result, Results, TraceSettings};

/// How the best is looked for.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// What it must be best at; none: on the front, where nothing reads as little and errs as little.
    pub goals: Vec<TuningGoal>,
    /// How often candidates are measured, each time on twice as many queries as before; the last time on all. One: an
    /// exhaustive search.
    pub rungs: usize,
    /// The share of each method's candidates that goes on from one rung to the next, at least one.
    pub keep: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { goals: Vec::new(), rungs: 3, keep: 0.5 }
    }
}

/// What was measured, each candidate on the last rung that it reached, and what could not be.
pub(super) struct Halved {
    /// Queries of each layer, rung by rung.
    pub(super) queries: Vec<usize>,
    pub(super) tried: Vec<Tried>,
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
) -> Result<Halved> {
    let queries = rungs(chosen, options)?;
    let mut arms = arms(candidates, &options.goals);
    let (mut tried, mut left_out) = (Vec::new(), Vec::new());
    for (rung, &count) in queries.iter().enumerate() {
        let settings = TraceSettings { queries: Some(count), ..chosen.settings.clone() };
        let texts = TuningTraces { settings: &settings, ..chosen };
        let outcomes = measured(&arms, rung, texts, backend, results, progress)?;
        let mut going_on = Vec::new();
        for (arm, outcome) in arms.into_iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => going_on.push((arm, outcome)),
                Err(reason) => left_out.push(arm.left_out(reason)),
            }
        }
        let last = rung + 1 == queries.len();
        let survive = survive(&going_on, options, last);
        arms = Vec::new();
        for ((arm, outcome), goes_on) in going_on.into_iter().zip(survive) {
            if goes_on && !last {
                arms.push(arm);
            } else {
                tried.push(arm.tried(outcome, rung)?);
            }
        }
    }
    left_out.sort();
    left_out.dedup();
    Ok(Halved { queries, tried, left_out })
}

/// Queries of each layer, rung by rung: all at last, and half as many before.
fn rungs(chosen: TuningTraces<'_>, options: &TuneOptions) -> Result<Vec<usize>> {
    let all = queries_of(chosen)?;
    let mut queries: Vec<usize> =
        (0..options.rungs.max(1)).rev().map(|back| (all >> back.min(63)).max(1)).collect();
    queries.dedup();
    Ok(queries)
}

/// What each arm comes to, or why it cannot be measured.
fn measured(
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
    let mut done = 0;
    results.run(&keys, |i| {
        let outcome = told(arms[i].measure(texts, backend))?;
        done += 1;
        progress(done, keys.len());
        Ok(outcome)
    })
}

/// Which arms go on: those of each method and density by themselves.
fn survive(arms: &[(Arm<'_>, SearchOutcome)], options: &TuneOptions, last: bool) -> Vec<bool> {
    let mut survive = vec![last; arms.len()];
    let mut groups: BTreeMap<(&str, Option<u64>), Vec<usize>> = BTreeMap::new();
    for (i, (arm, _)) in arms.iter().enumerate() {
        let density = arm.density.map(|density| density.get().to_bits());
        groups.entry((&arm.candidate.method, density)).or_default().push(i);
    }
    for ((_, density), group) in groups {
        let places: Vec<RankPlace> = group.iter().map(|&i| arms[i].1.score.place()).collect();
        let count = ((group.len() as f64 * options.keep).ceil() as usize).max(1);
        let own = |goal: &&TuningGoal| {
            density.is_none() || goal.density().map(|it| it.get().to_bits()) == density
        };
        let goals: Vec<TuningGoal> = options.goals.iter().filter(own).copied().collect();
        for i in survivors(&places, &goals, count) {
            survive[group[i]] = true;
        }
    }
    survive
}
