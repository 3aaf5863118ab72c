//! BABILong (Kuratov et al., <https://arxiv.org/abs/2406.10149>): the tasks with published labels,
//! at each length. A line has `input`, `question` and `target`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart, prompt};
use crate::Case;
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::AnswerMetric;

/// Prompts of `babilong/prompts.py` with instruction, examples and post-prompt, and labels of
/// `metrics.py`.
const PROMPTS: &str = include_str!("../../prompts/babilong.json");
const LENGTHS: [&str; 12] =
    ["0k", "1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1M"];
const ANSWER_TOKENS: usize = 15;

#[derive(Clone, Deserialize)]
struct TaskTexts {
    prompt: String,
    labels: Vec<String>,
}

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    let tasks: BTreeMap<String, TaskTexts> =
        serde_json::from_str(PROMPTS).expect("the file has prompts and labels");
    let define = |(task, texts): (String, TaskTexts)| {
        LENGTHS.map(|length| BenchmarkDefinition {
            benchmark: "babilong",
            dataset: format!("{task}_{length}"),
            name: format!("{task}_{length}"),
            files: vec![
                format!("{task}_{length}"),
                format!("{task}/{length}"),
                format!("data/{task}/{length}"),
                format!("{length}/{task}"),
            ],
            tokens: ANSWER_TOKENS,
            metric: AnswerMetric::OnlyLabel,
            others: &[],
            fit: Fit::Whole,
            as_chat: true,
            counted: ScoredPart::All,
            lengths: None,
            layout: PromptLayout::Babilong {
                prompt: texts.prompt.clone(),
                labels: texts.labels.clone(),
            },
        })
    };
    let mut tasks: Vec<_> = tasks.into_iter().collect();
    tasks.sort_by_key(|(task, _)| task.len());
    tasks.into_iter().flat_map(define).collect()
}

/// Returns the case of a row. Labels that occur in the question are no possible answers.
pub(super) fn case(template: &str, labels: &[String], row: &DatasetRow) -> Result<Case, String> {
    let (context, question) = (row.text(&["input"])?, row.text(&["question"])?);
    let lower_question = question.to_lowercase();
    let labels: Vec<String> = labels
        .iter()
        .filter(|label| !lower_question.contains(&label.to_lowercase()))
        .cloned()
        .collect();
    let holes = [("context", context.trim()), ("question", &question)];
    let (context, question) = prompt(template, &holes);
    let question = question.trim_end().to_owned();
    let answers = vec![row.text(&["target"])?];
    Ok(Case { context, question, answers, labels, ..Case::default() })
}
