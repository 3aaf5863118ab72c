//! LongBench and LongBench-E (Bai et al., <https://arxiv.org/abs/2308.14508>), the English and code
//! datasets: a line has `input`, `context`, `answers`, `length` and `all_classes`.

use std::collections::BTreeMap;
use std::path::Path;

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart, prompt};
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::AnswerMetric;
use crate::{Case, Error, Result};

/// Prompts of `config/dataset2prompt.json`.
const PROMPTS: &str = include_str!("../../prompts/longbench.json");
/// Chinese datasets, whose words only a Chinese segmenter can find.
const CHINESE: [&str; 5] = ["multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"];

/// Name, largest number of tokens of an answer, and metric; and three flags: LongBench-E has the
/// dataset, the prompt is a chat, only the first line of an answer counts.
const DATASETS: [(&str, usize, AnswerMetric, [bool; 3]); 16] = [
    ("narrativeqa", 128, AnswerMetric::WordF1, [false, true, false]),
    ("qasper", 128, AnswerMetric::WordF1, [true, true, false]),
    ("multifieldqa_en", 64, AnswerMetric::WordF1, [true, true, false]),
    ("hotpotqa", 32, AnswerMetric::WordF1, [true, true, false]),
    ("2wikimqa", 32, AnswerMetric::WordF1, [true, true, false]),
    ("musique", 32, AnswerMetric::WordF1, [false, true, false]),
    ("gov_report", 512, AnswerMetric::Rouge, [true, true, false]),
    ("qmsum", 512, AnswerMetric::Rouge, [false, true, false]),
    ("multi_news", 512, AnswerMetric::Rouge, [true, true, false]),
    ("trec", 64, AnswerMetric::Classification, [true, false, true]),
    ("triviaqa", 32, AnswerMetric::WordF1, [true, false, true]),
    ("samsum", 128, AnswerMetric::Rouge, [true, false, true]),
    ("passage_count", 32, AnswerMetric::TrialCount, [true, true, false]),
    ("passage_retrieval_en", 32, AnswerMetric::Retrieval, [true, true, false]),
    ("lcc", 64, AnswerMetric::EditSimilarity, [true, false, false]),
    ("repobench-p", 64, AnswerMetric::EditSimilarity, [true, false, false]),
];

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    let mut prompts: BTreeMap<String, String> =
        serde_json::from_str(PROMPTS).expect("the file is an object of texts");
    let all = [("0-4k", 0..4000), ("4-8k", 4000..8000), ("8k+", 8000..u64::MAX)];
    let mut datasets = Vec::new();
    for (name, tokens, metric, [in_e, as_chat, first_line]) in DATASETS {
        let prompt = prompts.remove(name).expect("each dataset has a prompt");
        let define = |dataset: String, name: String, lengths| BenchmarkDefinition {
            benchmark: "longbench",
            files: vec![dataset.clone(), format!("data/{dataset}")],
            dataset,
            name,
            tokens,
            metric,
            others: &[],
            fit: Fit::CutMiddle,
            as_chat,
            counted: if first_line { ScoredPart::FirstLine } else { ScoredPart::All },
            lengths,
            layout: PromptLayout::LongBench {
                prompt: prompt.clone(),
                classes: metric == AnswerMetric::Classification,
            },
        };
        datasets.push(define(name.into(), name.into(), None));
        for (group, lengths) in all.iter().filter(|_| in_e) {
            let dataset = format!("{name}_e");
            datasets.push(define(
                dataset.clone(),
                format!("{dataset}:{group}"),
                Some(lengths.clone()),
            ));
        }
    }
    datasets
}

pub(super) fn case(template: &str, classes: bool, row: &DatasetRow) -> Result<Case, String> {
    let (context, input) = (row.text(&["context"])?, row.text(&["input"])?);
    let (context, question) = prompt(template, &[("context", &context), ("input", &input)]);
    let labels = if classes { row.texts("all_classes")? } else { Vec::new() };
    let answers = row.texts("answers")?;
    Ok(Case { context, question, answers, labels, ..Case::default() })
}

/// Refuses Chinese datasets, with the reason.
pub(super) fn refuse_chinese(benchmark: &str, dataset: &str, dir: &Path) -> Result<()> {
    if benchmark != "longbench" || !CHINESE.contains(&dataset) {
        return Ok(());
    }
    let reason =
        format!("{dataset} is Chinese, whose metric needs jieba's words; expected another dataset");
    Err(Error::malformed(dir, reason))
}
