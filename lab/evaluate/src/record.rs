//! One answer, and what it depends on.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use vattention_experiments::{Bars, Digest, Variant, Violations, digest_of_file};
use vattention_tasks::{AnswerMetric, Case, Task};

use crate::{Error, Result};

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Changes with everything that the answer depends on.
    pub digest: String,
    /// The variant's name.
    pub pipeline: String,
    /// The task's name.
    pub task: String,
    /// Tokens of the case.
    pub context: usize,
    /// The case's number.
    pub case: usize,
    /// What was answered, and how.
    #[serde(flatten)]
    pub attended: CaseAnswer,
    /// Scores of the answer by what else the publishers of a dataset score it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherScore>,
}

/// A score by another metric than the one that counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherScore {
    /// The metric's name.
    pub metric: String,
    /// From 0 to 1.
    pub score: f64,
}

/// What a pipeline answers, and what its attention did meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseAnswer {
    /// The task's, from 0 to 1.
    pub score: f64,
    /// The text.
    pub answer: String,
    /// Over all steps by the pipeline and all layers.
    pub attention: AttentionSummary,
    /// The share of the causal pairs of tokens and keys that the prefill read; `None`: all, by dense attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_density: Option<f64>,
}

/// What the attention of one answer read, and how far it was from dense attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttentionSummary {
    /// Rows: query heads of all layers at all steps.
    pub rows: usize,
    /// Mean share of the visible tokens that a KV head's query heads read together; `None` if the
    /// answer ended before the pipeline took a step.
    pub density: Option<f64>,
    /// Of rows with a promise, those whose certificate holds.
    pub held: usize,
    /// `|out - dense| / |dense|`, if it was measured.
    pub error: Option<ErrorOf>,
    /// Error bars, where errors were measured.
    pub bars: Bars,
}

/// How far rows were from dense attention. An infinite error is `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorOf {
    /// The mean over rows of the output's relative error.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// The largest.
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// How often the pipeline's promise was violated, if it has one.
    pub violations: Option<Violations>,
}

/// A number, or infinity for `null`.
fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

impl Record {
    pub(crate) fn new(
        digest: String,
        variant: &Variant,
        (task, context, case): (Task, usize, usize),
        asked: &Case,
        attended: CaseAnswer,
    ) -> Self {
        let other = |(metric, score): (AnswerMetric, f64)| OtherScore {
            metric: metric.name().to_owned(),
            score,
        };
        let others = task.other_scores(asked, &attended.answer).into_iter().map(other).collect();
        let (pipeline, task) = (variant.name(), task.to_string());
        Self { digest, pipeline, task, context, case, attended, others }
    }
}

/// What changes when a model does: all bytes of a GGUF file, or of a directory's files that are read, by their names.
///
/// # Errors
/// If one of them cannot be read.
pub fn fingerprint(model: &Path) -> Result<String> {
    if model.is_file() {
        return Ok(digest_of_file(model)?);
    }
    let failed = |source| Error::File { path: model.into(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(model).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let read = ["config.json", "tokenizer.json", "generation_config.json"];
        if name.ends_with(".safetensors") || read.contains(&name.as_str()) {
            files.push((name, digest_of_file(&entry.path())?));
        }
    }
    files.sort();
    Ok(Digest::default().with(&files).finish())
}
