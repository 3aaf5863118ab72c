//! Records of answers.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use vattention_experiments::{Bars, Digest, Variant, Violations, digest_of_file};
use vattention_llm::weight_files;
use vattention_tasks::{AnswerMetric, Case, Task};

use crate::{Error, Result};

/// One answer, with the digest of its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Digest of everything that the answer depends on.
    pub digest: String,
    /// Name of the variant.
    pub pipeline: String,
    /// Name of the task.
    pub task: String,
    /// Number of tokens of the case.
    pub context: usize,
    /// Number of the case.
    pub case: usize,
    /// Answer, score and attention.
    #[serde(flatten)]
    pub attended: CaseAnswer,
    /// Scores of the answer by the other metrics of a dataset's publishers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherScore>,
    /// Groups to which a dataset's publishers assign the case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// Score by a metric that does not determine accuracy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherScore {
    /// Name of the metric.
    pub metric: String,
    /// Score, from 0 to 1.
    pub score: f64,
}

/// Answer of a model with a pipeline, and the summary of its attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaseAnswer {
    /// Score of the task, from 0 to 1.
    pub score: f64,
    /// Text of the answer.
    pub answer: String,
    /// Attention over all steps with the pipeline and all layers.
    pub attention: AttentionSummary,
    /// Share of the causal token-key pairs that the prefill read; `None` after a dense prefill,
    /// which reads all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_density: Option<f64>,
}

/// Density of the attention of one answer, and its errors against dense attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttentionSummary {
    /// Number of rows: query heads of all layers at all steps.
    pub rows: usize,
    /// Mean share of the visible tokens that a KV head's query heads read together; `None` if the
    /// answer ended before the pipeline took a step.
    pub density: Option<f64>,
    /// Number of rows whose certificate holds.
    pub held: usize,
    /// `|out - dense| / |dense|`, if errors were measured.
    pub error: Option<RowErrorSummary>,
    /// Error bars, if errors were measured.
    pub bars: Bars,
}

/// Errors of rows against dense attention. An infinite error is `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RowErrorSummary {
    /// Relative error of the output, mean over rows.
    #[serde(deserialize_with = "number_or_infinity")]
    pub mean: f64,
    /// Largest relative error of a row.
    #[serde(deserialize_with = "number_or_infinity")]
    pub max: f64,
    /// Violations of the pipeline's promise, if it has one.
    pub violations: Option<Violations>,
}

/// Deserializes a number, or infinity for `null`.
fn number_or_infinity<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

impl Record {
    pub(crate) fn new(
        digest: String,
        variant: &Variant,
        (task, context, case): (Task, usize, usize),
        prompt_case: &Case,
        attended: CaseAnswer,
    ) -> Self {
        let other = |(metric, score): (AnswerMetric, f64)| OtherScore {
            metric: metric.name().to_owned(),
            score,
        };
        let others =
            task.other_scores(prompt_case, &attended.answer).into_iter().map(other).collect();
        let (pipeline, task) = (variant.name(), task.to_string());
        let groups = prompt_case.groups.clone();
        Self { digest, pipeline, task, context, case, attended, others, groups }
    }
}

/// Digest of a model: of all bytes of a GGUF file, or of the names and bytes of the files that a
/// directory or a split GGUF file consists of.
///
/// # Errors
/// If a file cannot be read.
pub fn fingerprint(model: &Path) -> Result<String> {
    let paths = if model.is_file() { weight_files(model)? } else { find_files(model)? };
    if paths == [model] {
        return Ok(digest_of_file(model)?);
    }
    let mut files = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, digest_of_file(&path)?));
    }
    files.sort();
    Ok(Digest::default().with(&files).finish())
}

/// Returns the files of a directory from which a model is read.
fn find_files(dir: &Path) -> Result<Vec<PathBuf>> {
    const NAMES: [&str; 3] = ["config.json", "tokenizer.json", "generation_config.json"];
    let failed = |source| Error::File { path: dir.into(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let weights = path.extension().is_some_and(|extension| extension == "safetensors");
        if weights || NAMES.iter().any(|name| path.ends_with(name)) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Mean score of cases.
pub(crate) fn mean_score(records: &[&Record]) -> f64 {
    let sum: f64 = records.iter().map(|record| record.attended.score).sum();
    sum / records.len().max(1) as f64
}
