//! RULER's own files (Hsieh et al., <https://arxiv.org/abs/2404.06654>): a folder for each task
//! with `validation.jsonl`, whose lines have `index`, `input`, `outputs` and `length`. In newer
//! files `answer_prefix` is the beginning of the answer. NeMo-Skills, which RULER's authors now
//! use, stores the same as `test.jsonl` with `question`, `expected_answer` and `generation`.

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart};
use crate::Case;
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::AnswerMetric;

/// Name of the task, largest number of tokens of an answer, and metric.
const DATASETS: [(&str, usize, AnswerMetric); 13] = [
    ("niah_single_1", 128, AnswerMetric::MatchAll),
    ("niah_single_2", 128, AnswerMetric::MatchAll),
    ("niah_single_3", 128, AnswerMetric::MatchAll),
    ("niah_multikey_1", 128, AnswerMetric::MatchAll),
    ("niah_multikey_2", 128, AnswerMetric::MatchAll),
    ("niah_multikey_3", 128, AnswerMetric::MatchAll),
    ("niah_multivalue", 128, AnswerMetric::MatchAll),
    ("niah_multiquery", 128, AnswerMetric::MatchAll),
    ("vt", 30, AnswerMetric::MatchAll),
    ("cwe", 120, AnswerMetric::MatchAll),
    ("fwe", 50, AnswerMetric::MatchAll),
    ("qa_1", 32, AnswerMetric::MatchPart),
    ("qa_2", 32, AnswerMetric::MatchPart),
];

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    DATASETS.iter().map(|&(name, tokens, metric)| dataset(name, tokens, metric)).collect()
}

fn dataset(name: &str, tokens: usize, metric: AnswerMetric) -> BenchmarkDefinition {
    BenchmarkDefinition {
        benchmark: "ruler",
        dataset: name.into(),
        name: name.into(),
        files: vec![format!("{name}/validation"), format!("{name}/test"), name.into()],
        tokens,
        metric,
        others: &[],
        fit: Fit::Whole,
        as_chat: true,
        counted: ScoredPart::All,
        lengths: None,
        layout: PromptLayout::Ruler,
    }
}

/// Returns the case of a row. The question begins at the last line that starts with "Question:", or
/// otherwise at the last line.
pub(super) fn case(row: &DatasetRow) -> Result<Case, String> {
    let input = row.text(&["input", "question"])?;
    let beginning = beginning(row)?;
    let place = input.rfind("\nQuestion:").or_else(|| input.trim_end().rfind('\n')).unwrap_or(0);
    let (context, question) =
        (input[..place].to_owned(), format!("{}{beginning}", &input[place..]));
    let answers = row.texts(if row.has("question") { "expected_answer" } else { "outputs" })?;
    Ok(Case { context, question, beginning, answers, ..Case::default() })
}

/// Returns the beginning of the answer. NeMo-Skills removes the blank that precedes it.
fn beginning(row: &DatasetRow) -> Result<String, String> {
    if row.has("answer_prefix") {
        row.text(&["answer_prefix"])
    } else if row.has("generation") {
        Ok(format!(" {}", row.text(&["generation"])?))
    } else {
        Ok(String::new())
    }
}
