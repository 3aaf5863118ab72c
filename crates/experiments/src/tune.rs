//! The best settings of methods, searched on some texts and shown on others.
//!
//! By successive halving (Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and
//! hyperparameter optimization", [arXiv 1502.07943](https://arxiv.org/abs/1502.07943)): every candidate is measured
//! on a few queries of each layer, the better part of each method on twice as many, and so on.

mod goal;
mod halving;
mod score;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::{Backend, Fraction, PipelineConfig};
use vattention_trace::Trace;

use crate::measured::front;
use crate::{Entry, Error, Result, Results, TraceSettings, chosen_layers, made_to_read};

pub use goal::Goal;
pub use score::TuningScore;

use halving::{Place, best, survivors};

/// A pipeline to try, and what tells it from the others of its method.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What the best is looked for of.
    pub method: String,
    /// Keys with their values.
    pub settings: Vec<(String, String)>,
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// The file that it is from, as given.
    pub file: String,
    /// Whether it is [made to read](made_to_read) each density that is asked for, instead of standing as it is.
    pub search: bool,
}

/// Traces, and the layers and queries of them.
#[derive(Clone, Copy, Debug)]
pub struct TuningTraces<'a> {
    /// At least one.
    pub traces: &'a [Trace],
    /// Layers and queries of each; no dump is made.
    pub settings: &'a TraceSettings,
}

/// How the best is looked for.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// What it must be best at; none: on the front, where nothing reads as little and errs as little.
    pub goals: Vec<Goal>,
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

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Tuning {
    /// Files of the traces that settings were chosen on.
    pub traces: Vec<String>,
    /// Files of the traces that the chosen settings were measured on besides.
    pub held_out: Vec<String>,
    /// The backend's name.
    pub backend: String,
    /// Queries of each layer, rung by rung.
    pub queries: Vec<usize>,
    /// Everything that was measured, methods in their order.
    pub tried: Vec<Tried>,
    /// For each method and goal, what is best; without goals, the front of all methods.
    pub best: Vec<Best>,
    /// What could not be measured.
    pub left_out: Vec<LeftOut>,
}

/// A candidate, as it was measured last.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Its method.
    pub method: String,
    /// Its file.
    pub file: String,
    /// Its settings.
    pub settings: Vec<(String, String)>,
    /// The density that it was made to read, if it was.
    pub density: Option<Fraction>,
    /// What was set so that it does.
    pub set: Option<String>,
    /// The last rung that it reached, from 0.
    pub rung: usize,
    /// What it came to there.
    pub score: TuningScore,
    /// Whether nothing that reached the last rung, of any method, beats it.
    pub front: bool,
    /// The pipeline, with what was set.
    #[serde(skip)]
    pub pipeline: Arc<PipelineConfig>,
}

/// The best of a method for a goal.
#[derive(Clone, Debug, Serialize)]
pub struct Best {
    /// The method.
    pub method: String,
    /// What for; `None`: it is on the front.
    pub goal: Option<Goal>,
    /// Its number in [`Tuning::tried`]; `None` if no candidate meets the goal.
    pub tried: Option<usize>,
    /// The number of the candidate that comes nearest to the goal, if none meets it.
    pub nearest: Option<usize>,
    /// What it came to on the held-out texts, if there are any.
    pub held_out: Option<TuningScore>,
}

/// A candidate that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOut {
    /// Its method.
    pub method: String,
    /// Its settings.
    pub settings: Vec<(String, String)>,
    /// Why not.
    pub reason: String,
}

/// Something to measure: a candidate as it stands, or made to read a density.
#[derive(Clone, Copy)]
struct Arm<'a> {
    candidate: &'a Candidate,
    density: Option<Fraction>,
}

/// What an arm came to on a rung, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Outcome {
    /// As JSON.
    pipeline: String,
    set: Option<String>,
    score: TuningScore,
}

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
    let queries = rungs(chosen, options)?;
    if let Some(held_out) = held_out {
        queries_of(held_out)?;
    }
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
    let order = order(candidates);
    tried.sort_by_key(|one| order[&one.method[..]]);
    mark_front(&mut tried, queries.len() - 1);
    let best = bests(&tried, &options.goals, queries.len() - 1, &order);
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

/// Queries of each layer, rung by rung: all at last, and half as many before.
fn rungs(chosen: TuningTraces<'_>, options: &TuneOptions) -> Result<Vec<usize>> {
    let all = queries_of(chosen)?;
    let mut queries: Vec<usize> =
        (0..options.rungs.max(1)).rev().map(|back| (all >> back.min(63)).max(1)).collect();
    queries.dedup();
    Ok(queries)
}

/// How many queries of each layer there are.
fn queries_of(texts: TuningTraces<'_>) -> Result<usize> {
    let mut least = usize::MAX;
    for trace in texts.traces {
        for (_, layout) in chosen_layers(trace, texts.settings)? {
            least = least.min(texts.settings.count(&layout));
        }
    }
    Ok(least)
}

/// What there is to measure, in an order that does not depend on that of the candidates.
fn arms<'a>(candidates: &'a [Candidate], goals: &[Goal]) -> Vec<Arm<'a>> {
    let densities = || goals.iter().filter_map(Goal::density);
    let searches = densities().next().is_some();
    let stands = goals.len() > densities().count() || goals.is_empty();
    let mut arms = Vec::new();
    for candidate in candidates {
        if candidate.search {
            arms.extend(densities().map(|density| Arm { candidate, density: Some(density) }));
        }
        if !(candidate.search && searches) || stands {
            arms.push(Arm { candidate, density: None });
        }
    }
    arms.sort_by(|a, b| a.sorted_by().partial_cmp(&b.sorted_by()).expect("no share is NaN"));
    arms
}

impl<'a> Arm<'a> {
    fn sorted_by(&self) -> (&'a str, &'a [(String, String)], &'a str, Option<Fraction>) {
        let Candidate { method, settings, file, .. } = self.candidate;
        (method, settings, file, self.density)
    }

    /// A unit's key.
    fn key(&self, what: &str, number: usize) -> String {
        let settings =
            self.candidate.settings.iter().map(|(key, value)| format!("{key} = {value}"));
        let settings: Vec<String> = settings.collect();
        let share = self.density.map(|share| format!(", made to read {}", share.get()));
        let (method, share) = (&self.candidate.method, share.unwrap_or_default());
        format!("{what}, {}: {method} ({}){share}", number + 1, settings.join(", "))
    }

    fn left_out(&self, reason: String) -> LeftOut {
        let Candidate { method, settings, .. } = self.candidate;
        LeftOut { method: method.clone(), settings: settings.clone(), reason }
    }

    fn tried(&self, outcome: Outcome, rung: usize) -> Result<Tried> {
        let Candidate { method, settings, file, .. } = self.candidate;
        let Outcome { pipeline, set, score } = outcome;
        Ok(Tried {
            method: method.clone(),
            file: file.clone(),
            settings: settings.clone(),
            density: self.density,
            set,
            rung,
            score,
            front: false,
            pipeline: read_back(&pipeline)?,
        })
    }

    /// The arm on some texts.
    fn measure(&self, texts: TuningTraces<'_>, backend: &dyn Backend) -> Result<Outcome> {
        let candidate = self.candidate;
        let mut entry =
            Entry { pipeline: candidate.pipeline.clone(), file: candidate.file.clone(), set: None };
        if let Some(density) = self.density {
            let measure = |pipeline: &Arc<PipelineConfig>| {
                let one = Entry { pipeline: pipeline.clone(), ..entry.clone() };
                score::read(&one, texts, backend)
            };
            let found = made_to_read(&candidate.pipeline, density, &measure)?;
            expect_unset(candidate, &found.pipeline)?;
            entry = Entry { pipeline: found.pipeline, set: Some(found.set), ..entry };
        }
        let score = TuningScore::of(&entry, texts, backend)?;
        let pipeline = serde_json::to_string(&*entry.pipeline).map_err(not_json)?;
        Ok(Outcome { pipeline, set: entry.set, score })
    }
}

/// Refuses a search that sets what a candidate's settings are about: they would not be what was tried.
fn expect_unset(candidate: &Candidate, found: &PipelineConfig) -> Result<()> {
    let [before, after] = [&*candidate.pipeline, found].map(serde_json::to_value);
    let (before, after) = (before.map_err(not_json)?, after.map_err(not_json)?);
    let pointer = |key: &str| format!("/{}", key.replace('.', "/"));
    let set = candidate.settings.iter().find(|(key, _)| {
        let path = pointer(key);
        before.pointer(&path) != after.pointer(&path)
    });
    let refuse = |key: &String| Error::Setting {
        option: "--at",
        reason: format!(
            "{}: the search for a density sets {key}, which the grid varies; expected one of them",
            candidate.file
        ),
    };
    set.map_or(Ok(()), |(key, _)| Err(refuse(key)))
}

fn not_json(error: serde_json::Error) -> Error {
    Error::Setting { option: "--results", reason: error.to_string() }
}

fn read_back(pipeline: &str) -> Result<Arc<PipelineConfig>> {
    Ok(Arc::new(serde_json::from_str(pipeline).map_err(not_json)?))
}

/// What each arm comes to, or why it cannot be measured.
fn measured(
    arms: &[Arm<'_>],
    rung: usize,
    texts: TuningTraces<'_>,
    backend: &dyn Backend,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Vec<Result<Outcome, String>>> {
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

/// A pipeline that cannot run, or be made to read a share, is an outcome; a trace that cannot be read is none.
fn told<T>(outcome: Result<T>) -> Result<Result<T, String>> {
    match outcome {
        Ok(outcome) => Ok(Ok(outcome)),
        Err(error @ (Error::Pipeline { .. } | Error::Setting { .. })) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Which arms go on: those of each method and density by themselves.
fn survive(arms: &[(Arm<'_>, Outcome)], options: &TuneOptions, last: bool) -> Vec<bool> {
    let mut survive = vec![last; arms.len()];
    let mut groups: BTreeMap<(&str, Option<u64>), Vec<usize>> = BTreeMap::new();
    for (i, (arm, _)) in arms.iter().enumerate() {
        let density = arm.density.map(|density| density.get().to_bits());
        groups.entry((&arm.candidate.method, density)).or_default().push(i);
    }
    for ((_, density), group) in groups {
        let places: Vec<Place> = group.iter().map(|&i| arms[i].1.score.place()).collect();
        let count = ((group.len() as f64 * options.keep).ceil() as usize).max(1);
        let own = |goal: &&Goal| {
            density.is_none() || goal.density().map(|it| it.get().to_bits()) == density
        };
        let goals: Vec<Goal> = options.goals.iter().filter(own).copied().collect();
        for i in survivors(&places, &goals, count) {
            survive[group[i]] = true;
        }
    }
    survive
}

/// The place of each method among those given.
fn order(candidates: &[Candidate]) -> BTreeMap<&str, usize> {
    let mut order = BTreeMap::new();
    for candidate in candidates {
        let next = order.len();
        order.entry(&candidate.method[..]).or_insert(next);
    }
    order
}

/// Marks what nothing beats among what reached the last rung.
fn mark_front(tried: &mut [Tried], last: usize) {
    let mut there: Vec<&mut Tried> = tried.iter_mut().filter(|one| one.rung == last).collect();
    let places: Vec<Place> = there.iter().map(|one| one.score.place()).collect();
    for (one, is_front) in there.iter_mut().zip(front(&places)) {
        one.front = is_front;
    }
}

/// The best of each method for each goal; without goals, the front.
fn bests(tried: &[Tried], goals: &[Goal], last: usize, order: &BTreeMap<&str, usize>) -> Vec<Best> {
    if goals.is_empty() {
        let front = tried.iter().enumerate().filter(|(_, one)| one.front);
        let best = |(i, one): (usize, &Tried)| Best {
            method: one.method.clone(),
            goal: None,
            tried: Some(i),
            nearest: None,
            held_out: None,
        };
        return front.map(best).collect();
    }
    let mut methods: Vec<&str> = order.keys().copied().collect();
    methods.sort_by_key(|method| order[method]);
    let mut bests = Vec::new();
    for method in methods {
        for &goal in goals {
            let own = |one: &&(usize, &Tried)| {
                let meant = one.1.density.is_none() || one.1.density == goal.density();
                one.1.method == *method && one.1.rung == last && meant
            };
            let all: Vec<(usize, &Tried)> = tried.iter().enumerate().collect();
            let own: Vec<_> = all.iter().filter(own).collect();
            let places: Vec<Place> = own.iter().map(|(_, one)| one.score.place()).collect();
            let Some((i, meets)) = best(&places, goal) else { continue };
            let number = Some(own[i].0);
            bests.push(Best {
                method: method.into(),
                goal: Some(goal),
                tried: number.filter(|_| meets),
                nearest: number.filter(|_| !meets),
                held_out: None,
            });
        }
    }
    bests
}

/// The best, measured on the held-out texts.
fn shown(
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

#[cfg(test)]
mod tests;
