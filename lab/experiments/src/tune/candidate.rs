//! Candidates, and what each comes to on some texts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vattention_core::{Backend, Fraction, PipelineConfig};

use super::score::read;
use super::{LeftOutCandidate, Tried, TuningGoal, TuningScore, TuningTraces};
use crate::{Entry, Error, Result, made_to_read};

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

/// Something to measure: a candidate as it stands, or made to read a density.
#[derive(Clone, Copy)]
pub(super) struct Arm<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) density: Option<Fraction>,
}

/// What an arm came to on a rung, as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SearchOutcome {
    /// As JSON.
    pipeline: String,
    set: Option<String>,
    pub(super) score: TuningScore,
}

/// What there is to measure, in an order that does not depend on that of the candidates.
pub(super) fn arms<'a>(candidates: &'a [Candidate], goals: &[TuningGoal]) -> Vec<Arm<'a>> {
    let densities = || goals.iter().filter_map(TuningGoal::density);
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

    pub(super) fn tried(&self, outcome: SearchOutcome, rung: usize) -> Result<Tried> {
        let Candidate { method, settings, file, .. } = self.candidate;
        let SearchOutcome { pipeline, set, score } = outcome;
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
    pub(super) fn measure(
        &self,
        texts: TuningTraces<'_>,
        backend: &dyn Backend,
    ) -> Result<SearchOutcome> {
        let candidate = self.candidate;
        let mut entry =
            Entry { pipeline: candidate.pipeline.clone(), file: candidate.file.clone(), set: None };
        if let Some(density) = self.density {
            let measure = |pipeline: &Arc<PipelineConfig>| {
                let one = Entry { pipeline: pipeline.clone(), ..entry.clone() };
                read(&one, texts, backend)
            };
            let found = made_to_read(&candidate.pipeline, density, &measure)?;
            expect_unset(candidate, &found.pipeline)?;
            entry = Entry { pipeline: found.pipeline, set: Some(found.set), ..entry };
        }
        let score = TuningScore::of(&entry, texts, backend)?;
        let pipeline = serde_json::to_string(&*entry.pipeline).map_err(not_json)?;
        Ok(SearchOutcome { pipeline, set: entry.set, score })
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
        field: "at",
        reason: format!(
            "{}: the search for a density sets {key}, which the grid varies; expected one of them",
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
