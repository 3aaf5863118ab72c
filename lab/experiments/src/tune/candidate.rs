//! Candidates, and their measurement on texts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::{Backend, Fraction, PipelineConfig};

use super::score::measure_density;
use super::{LeftOutCandidate, TriedCandidate, TuningGoal, TuningScore, TuningTraces};
use crate::indexed::IndexedLayers;
use crate::{Entry, Error, Result, tune_to_density};

/// A pipeline to try, and the settings that distinguish it from the other candidates of its method.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Method: the search finds the best candidates of each.
    pub method: String,
    /// Varied settings, as keys with their values.
    pub settings: Vec<(String, String)>,
    /// The pipeline.
    pub pipeline: Arc<PipelineConfig>,
    /// File that the pipeline is from, as given.
    pub file: String,
    /// True if the pipeline is [tuned](tune_to_density) to each density among the goals, false if
    /// it keeps its own settings.
    pub search: bool,
}

/// Arm of the search: a candidate with its own settings, or tuned to a density.
#[derive(Clone, Copy)]
pub(super) struct Arm<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) density: Option<Fraction>,
}

/// Stored result of an arm on a rung.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SearchOutcome {
    /// The pipeline as JSON.
    pipeline: String,
    set: Option<String>,
    pub(super) score: TuningScore,
}

/// Returns the arms to measure, in an order that does not depend on the order of the candidates.
pub(super) fn list_arms<'a>(candidates: &'a [Candidate], goals: &[TuningGoal]) -> Vec<Arm<'a>> {
    let densities = || goals.iter().filter_map(TuningGoal::density);
    let searches = densities().next().is_some();
    let other_goals = goals.len() > densities().count() || goals.is_empty();
    let mut arms = Vec::new();
    for candidate in candidates {
        if candidate.search {
            arms.extend(densities().map(|density| Arm { candidate, density: Some(density) }));
        }
        if !(candidate.search && searches) || other_goals {
            arms.push(Arm { candidate, density: None });
        }
    }
    arms.sort_by(|a, b| a.sort_key().partial_cmp(&b.sort_key()).expect("no share is NaN"));
    arms
}

impl<'a> Arm<'a> {
    fn sort_key(&self) -> (&'a str, &'a [(String, String)], &'a str, Option<Fraction>) {
        let Candidate { method, settings, file, .. } = self.candidate;
        (method, settings, file, self.density)
    }

    /// Key of the unit of `results`.
    pub(super) fn key(&self, what: &str, number: usize) -> String {
        let settings =
            self.candidate.settings.iter().map(|(key, value)| format!("{key} = {value}"));
        let settings: Vec<String> = settings.collect();
        let share = self.density.map(|share| format!(", made to read {}", share.get()));
        let (method, share) = (&self.candidate.method, share.unwrap_or_default());
        format!("{what}, {}: {method} ({}){share}", number + 1, settings.join(", "))
    }

    pub(super) fn left_out(&self, reason: String) -> LeftOutCandidate {
        let Candidate { method, settings, .. } = self.candidate;
        LeftOutCandidate { method: method.clone(), settings: settings.clone(), reason }
    }

    pub(super) fn tried(&self, outcome: SearchOutcome, rung: usize) -> Result<TriedCandidate> {
        let Candidate { method, settings, file, .. } = self.candidate;
        let SearchOutcome { pipeline, set, score } = outcome;
        Ok(TriedCandidate {
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

    /// Measures the arm on texts.
    pub(super) fn measure(
        &self,
        texts: TuningTraces<'_>,
        backend: &dyn Backend,
        indexed: &IndexedLayers,
    ) -> Result<SearchOutcome> {
        let candidate = self.candidate;
        let mut entry =
            Entry { pipeline: candidate.pipeline.clone(), file: candidate.file.clone(), set: None };
        if let Some(density) = self.density {
            let measure = |pipeline: &Arc<PipelineConfig>| {
                let entry = Entry { pipeline: pipeline.clone(), ..entry.clone() };
                measure_density(&entry, texts, backend, indexed)
            };
            let found = tune_to_density(&candidate.pipeline, density, &measure)?;
            expect_unset(candidate, &found.pipeline)?;
            entry = Entry { pipeline: found.pipeline, set: Some(found.set), ..entry };
        }
        let score = TuningScore::measure(&entry, texts, backend, indexed)?;
        let pipeline = serde_json::to_string(&*entry.pipeline).map_err(not_json)?;
        Ok(SearchOutcome { pipeline, set: entry.set, score })
    }
}

/// Refuses a density search that overwrites settings which the grid varies: the measured pipeline
/// would not have the candidate's settings.
fn expect_unset(candidate: &Candidate, found: &PipelineConfig) -> Result<()> {
    let [before, after] = [&*candidate.pipeline, found].map(serde_json::to_value);
    let (before, after) = (before.map_err(not_json)?, after.map_err(not_json)?);
    let pointer = |key: &str| format!("/{}", key.replace('.', "/"));
    let set = candidate.settings.iter().find(|(key, _)| {
        let path = pointer(key);
        before.pointer(&path) != after.pointer(&path)
    });
    let refuse = |key: &String| Error::Setting {
        field: "at",
        reason: format!(
            "{}: both the search for a density and the grid set {key}; expected only one of them",
            candidate.file
        ),
    };
    set.map_or(Ok(()), |(key, _)| Err(refuse(key)))
}

fn not_json(error: serde_json::Error) -> Error {
    Error::Setting { field: "results", reason: error.to_string() }
}

fn read_back(pipeline: &str) -> Result<Arc<PipelineConfig>> {
    Ok(Arc::new(serde_json::from_str(pipeline).map_err(not_json)?))
}
