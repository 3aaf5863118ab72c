//! MATH-500 (Lightman et al., <https://arxiv.org/abs/2305.20050>) and AIME 2024 to 2026: a line has
//! a problem and its answer.

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart};
use crate::Case;
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::AnswerMetric;

/// Instruction that reports on reasoning models mostly use; the benchmarks publish no prompt.
const INSTRUCTION: &str =
    "\nPlease reason step by step, and put your final answer within \\boxed{}.";
const ANSWER_TOKENS: usize = 32768;

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    let define = |name: &'static str, files: &[&str], metric| BenchmarkDefinition {
        benchmark: name,
        dataset: name.into(),
        name: name.into(),
        files: files.iter().flat_map(|file| [(*file).into(), format!("data/{file}")]).collect(),
        tokens: ANSWER_TOKENS,
        metric,
        others: &[],
        fit: Fit::RestForAnswer,
        as_chat: true,
        counted: ScoredPart::All,
        lengths: None,
        layout: PromptLayout::Math,
    };
    vec![
        define("math500", &["math500", "test"], AnswerMetric::Boxed),
        define("aime2024", &["aime2024", "train", "test"], AnswerMetric::BoxedInteger),
        define("aime2025", &["aime2025", "train", "test"], AnswerMetric::BoxedInteger),
        define("aime2026", &["aime2026", "train", "test"], AnswerMetric::BoxedInteger),
    ]
}

pub(super) fn case(row: &DatasetRow) -> Result<Case, String> {
    let context = row.text(&["problem", "Problem", "question"])?;
    let answers = vec![row.text(&["answer", "Answer"])?];
    Ok(Case { context, question: INSTRUCTION.to_owned(), answers, ..Case::default() })
}
