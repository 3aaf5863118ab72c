//! Definition of a dataset: its files, prompts and metrics.

use std::ops::Range;

use super::rows::DatasetRow;
use crate::metrics::AnswerMetric;
use crate::templates::fill;

/// Method of fitting a case into a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Cuts the middle out of a prompt that is too long, and keeps the same number of tokens at
    /// both ends.
    CutMiddle,
    /// Cuts the end of the context, and puts the case's `omission` there.
    CutEnd,
    /// Refuses a prompt that is too long.
    Whole,
    /// Limits the answer to the tokens that the prompt leaves.
    RestForAnswer,
}

/// Part of an answer that is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScoredPart {
    All,
    /// The first line, after leading line breaks.
    FirstLine,
    /// The whole answer; an empty answer is scored as the word None.
    AllOrNone,
}

/// Definition of a dataset.
#[derive(Debug)]
pub(super) struct BenchmarkDefinition {
    pub(super) benchmark: &'static str,
    /// Name of the dataset as its publishers call it, which users pass.
    pub(super) dataset: String,
    /// Name of the dataset and the group of lengths.
    pub(super) name: String,
    /// Possible paths of its file in the folder, without the extension.
    pub(super) files: Vec<String>,
    /// Largest number of tokens of an answer.
    pub(super) tokens: usize,
    pub(super) metric: AnswerMetric,
    /// Other metrics of the dataset's publishers.
    pub(super) others: &'static [AnswerMetric],
    pub(super) fit: Fit,
    /// True if a chat model should receive the prompt as a chat.
    pub(super) as_chat: bool,
    pub(super) counted: ScoredPart,
    /// Range of `length` in the rows of this group.
    pub(super) lengths: Option<Range<u64>>,
    pub(super) layout: PromptLayout,
}

/// Conversion of a row to a case.
#[derive(Debug)]
pub(super) enum PromptLayout {
    LongBench { prompt: String, classes: bool },
    Babilong { prompt: String, labels: Vec<String> },
    Loogle { prompt: String, task: LoogleTask },
    InfiniteBench { prompt: String },
    LongBenchV2 { prompt: String },
    Ruler,
    Math,
    ZeroScrolls,
}

/// Fills a template, and splits the prompt after `{context}`.
pub(super) fn prompt(template: &str, holes: &[(&str, &str)]) -> (String, String) {
    let (before, after) = template.split_once("{context}").unwrap_or((template, ""));
    (fill(&format!("{before}{{context}}"), holes), fill(after, holes))
}

/// Kind of question about a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoogleTask {
    QuestionSet,
    Clozes,
    Summary,
}

impl BenchmarkDefinition {
    /// Returns true if a row belongs to this group of lengths.
    pub(super) fn has(&self, row: &DatasetRow) -> Result<bool, String> {
        self.lengths
            .as_ref()
            .map_or(Ok(true), |lengths| Ok(lengths.contains(&row.number("length")?)))
    }
}
