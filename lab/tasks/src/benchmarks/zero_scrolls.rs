//! ZeroSCROLLS (Shaham et al., <https://arxiv.org/abs/2305.14196>): a folder for each task, whose
//! lines have the whole prompt as `input`, its `output`, and `query_start_index`, the place of the
//! question. Lines with the same prompt are right answers to one case.

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart};
use crate::Case;
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::{self, AnswerMetric};

/// Name, largest number of tokens of an answer (`experiments/api/api.py`), and metric.
const DATASETS: [(&str, usize, AnswerMetric); 10] = [
    ("gov_report", 1024, AnswerMetric::RougeGeometricMean),
    ("summ_screen_fd", 512, AnswerMetric::RougeGeometricMean),
    ("qmsum", 512, AnswerMetric::RougeGeometricMean),
    ("squality", 512, AnswerMetric::RougeGeometricMean),
    ("qasper", 128, AnswerMetric::AsciiWordF1),
    ("narrative_qa", 64, AnswerMetric::AsciiWordF1),
    ("quality", 10, AnswerMetric::FirstLetter),
    ("musique", 32, AnswerMetric::AsciiWordF1),
    ("space_digest", 36, AnswerMetric::PercentageSimilarity),
    ("book_sum_sort", 256, AnswerMetric::Concordance),
];

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    DATASETS.iter().map(|&(name, tokens, metric)| dataset(name, tokens, metric)).collect()
}

fn dataset(name: &str, tokens: usize, metric: AnswerMetric) -> BenchmarkDefinition {
    BenchmarkDefinition {
        benchmark: "zero-scrolls",
        dataset: name.into(),
        name: name.into(),
        files: vec![format!("{name}/validation"), name.into()],
        tokens,
        metric,
        others: match metric {
            AnswerMetric::RougeGeometricMean => {
                &[AnswerMetric::RougeScore1, AnswerMetric::RougeScore2, AnswerMetric::RougeScoreL]
            }
            _ => &[],
        },
        fit: Fit::CutEnd,
        as_chat: true,
        counted: ScoredPart::All,
        lengths: None,
        layout: PromptLayout::ZeroScrolls,
    }
}

pub(super) fn case(metric: AnswerMetric, row: &DatasetRow) -> Result<Case, String> {
    let input = row.text(&["input"])?;
    let (context, question) = input.split_at(query_start(row, &input)?);
    let answer = row.text(&["output"])?;
    if let Some(expected) = find_unscorable(metric, &answer) {
        return Err(format!("output is {answer:?}; expected {expected}"));
    }
    Ok(Case {
        context: context.into(),
        question: question.into(),
        answers: vec![answer],
        omission: row.text(&["truncation_seperator"])?,
        ..Case::default()
    })
}

/// Returns the place of the question in bytes; the column counts characters.
fn query_start(row: &DatasetRow, input: &str) -> Result<usize, String> {
    let start = row.number("query_start_index")?;
    let characters = input.chars().count();
    let place = usize::try_from(start).ok().filter(|place| *place <= characters);
    let place = place.ok_or_else(|| {
        format!("query_start_index is {start}; expected at most {characters}, the length of input")
    })?;
    Ok(input.char_indices().nth(place).map_or(input.len(), |(bytes, _)| bytes))
}

/// Returns the expected form of a right answer that the metric cannot compare with.
fn find_unscorable(metric: AnswerMetric, right: &str) -> Option<&'static str> {
    match metric {
        AnswerMetric::FirstLetter if metrics::first_letter(right).is_none() => {
            Some("a letter of A to D")
        }
        AnswerMetric::PercentageSimilarity if metrics::percentage(right).is_none() => {
            Some("a percentage such as 40%")
        }
        AnswerMetric::Concordance
            if !metrics::order(right).is_some_and(|order| metrics::is_permutation(&order)) =>
        {
            Some("the numbers from 1 to n in some order, n being at least 2")
        }
        _ => None,
    }
}
