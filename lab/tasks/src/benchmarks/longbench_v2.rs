//! LongBench v2 (Bai et al., <https://arxiv.org/abs/2412.15204>): choices about long texts. An item
//! has `context`, `question`, `choice_A` to `choice_D`, `answer`, `difficulty` and `length`.

use std::collections::BTreeMap;

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart, prompt};
use crate::Case;
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::AnswerMetric;

/// Prompt of `prompts/0shot.txt`, with `{...}` for its `$...$`.
const PROMPTS: &str = include_str!("../../prompts/longbench-v2.json");
const NAME: &str = "longbench-v2";
/// Number of `pred.py`, without chain of thought.
const ANSWER_TOKENS: usize = 128;
const COLUMNS: [&str; 6] = ["context", "question", "choice_A", "choice_B", "choice_C", "choice_D"];

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    let mut prompts: BTreeMap<String, String> =
        serde_json::from_str(PROMPTS).expect("the file is an object of texts");
    vec![BenchmarkDefinition {
        benchmark: NAME,
        dataset: NAME.into(),
        name: NAME.into(),
        files: vec!["data".into(), NAME.into(), "train".into(), "data/train".into()],
        tokens: ANSWER_TOKENS,
        metric: AnswerMetric::StatedLetter,
        others: &[],
        fit: Fit::CutMiddle,
        as_chat: true,
        counted: ScoredPart::All,
        lengths: None,
        layout: PromptLayout::LongBenchV2 {
            prompt: prompts.remove("0shot").expect("the file has the prompt"),
        },
    }]
}

pub(super) fn case(template: &str, row: &DatasetRow) -> Result<Case, String> {
    let texts = COLUMNS.map(|column| Ok((column, row.text(&[column])?.trim().to_owned())));
    let texts: Vec<(&str, String)> = texts.into_iter().collect::<Result<_, String>>()?;
    let texts: Vec<(&str, &str)> =
        texts.iter().map(|(column, text)| (*column, text.as_str())).collect();
    let (context, question) = prompt(template, &texts);
    let answers = vec![row.one_of("answer", &["A", "B", "C", "D"])?];
    let groups = vec![
        row.one_of("difficulty", &["easy", "hard"])?,
        row.one_of("length", &["short", "medium", "long"])?,
    ];
    Ok(Case { context, question, answers, groups, ..Case::default() })
}
