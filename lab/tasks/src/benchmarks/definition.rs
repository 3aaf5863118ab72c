//! Definition of a dataset: its files, prompts and metrics.

use std::ops::Range;

use super::rows::DatasetRow;
use crate::metrics::AnswerMetric;
use crate::templates::fill;

/// How a case comes to fit in a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The middle of a prompt that is too long is cut out, so that as many tokens of either end stay.
    CutMiddle,
    /// A prompt that is too long is refused.
    Whole,
    /// The answer takes what the prompt leaves, at most its tokens.
    RestForAnswer,
}

/// What of an answer is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScoredPart {
    All,
    /// The first line, without line breaks before it.
    FirstLine,
    /// All; an empty answer is scored as the word None.
    AllOrNone,
}

/// What is known of a dataset.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) benchmark: &'static str,
    /// Of the dataset, as its publishers call it: what users ask for.
    pub(super) dataset: String,
    /// Of the dataset and the group of lengths.
    pub(super) name: String,
    /// Where its file may lie in the folder, without the ending.
    pub(super) files: Vec<String>,
    /// The most tokens of an answer.
    pub(super) tokens: usize,
    pub(super) metric: AnswerMetric,
    /// What else its publishers score answers by.
    pub(super) others: &'static [AnswerMetric],
    pub(super) fit: Fit,
    /// Whether it is put to a chat model as a chat.
    pub(super) as_chat: bool,
    pub(super) counted: ScoredPart,
    /// The value of `length` in a row of this group.
    pub(super) lengths: Option<Range<u64>>,
    pub(super) layout: PromptLayout,
}

/// How a row becomes a case.
#[derive(Debug)]
pub(super) enum PromptLayout {
    LongBench { prompt: String, classes: bool },
    Babilong { prompt: String, labels: Vec<String> },
    Loogle { prompt: String, asked: LoogleTask },
    InfiniteBench { prompt: String },
    Ruler,
    Math,
}

/// A prompt whose context ends where its `{context}` does.
pub(super) fn prompt(template: &str, holes: &[(&str, &str)]) -> (String, String) {
    let (before, after) = template.split_once("{context}").unwrap_or((template, ""));
    (fill(&format!("{before}{{context}}"), holes), fill(after, holes))
}

/// What is asked about a text.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoogleTask {
    Questions,
    Clozes,
    Summary,
}

impl Definition {
    /// Returns whether a row is of this group of lengths.
    pub(super) fn has(&self, row: &DatasetRow) -> Result<bool, String> {
        self.lengths
            .as_ref()
            .map_or(Ok(true), |lengths| Ok(lengths.contains(&row.number("length")?)))
    }
}
