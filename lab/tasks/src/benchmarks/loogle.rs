//! LooGLE (Li et al., <https://arxiv.org/abs/2311.04939>): a line has a text, `input`, and either
//! questions about it, `qa_pairs`, each of which is a case, or its summary, `output`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::definition::{BenchmarkDefinition, Fit, LoogleTask, PromptLayout, ScoredPart, prompt};
use crate::Case;
use crate::benchmarks::rows::{DatasetRow, kind};
use crate::metrics::AnswerMetric;
use crate::python;

/// Prompts of `config/task2prompt.json`, with `{context}` for its `{input}` and `{question}` for
/// its `{Q}`.
const PROMPTS: &str = include_str!("../../prompts/loogle.json");

/// Name, largest number of tokens of an answer (`config/task2maxlen.json`), and kind of question.
const DATASETS: [(&str, usize, LoogleTask); 4] = [
    ("shortdep_qa", 300, LoogleTask::QuestionSet),
    ("longdep_qa", 500, LoogleTask::QuestionSet),
    ("longdep_summarization", 500, LoogleTask::Summary),
    ("shortdep_cloze", 50, LoogleTask::Clozes),
];

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    let mut prompts: BTreeMap<String, String> =
        serde_json::from_str(PROMPTS).expect("the file is an object of texts");
    let define = |(name, tokens, task): (&str, usize, LoogleTask)| {
        let (metric, others): (_, &[_]) = match task {
            LoogleTask::Clozes => (AnswerMetric::ClozeExact, &[AnswerMetric::ClozePartial]),
            LoogleTask::QuestionSet | LoogleTask::Summary => (
                AnswerMetric::RougeRecall,
                &[
                    AnswerMetric::Rouge1Recall,
                    AnswerMetric::Rouge2Recall,
                    AnswerMetric::Bleu1,
                    AnswerMetric::Bleu4,
                ],
            ),
        };
        BenchmarkDefinition {
            benchmark: "loogle",
            dataset: name.into(),
            name: name.into(),
            files: [name.into(), format!("LooGLE-testdata/{name}"), format!("data/{name}")].into(),
            tokens,
            metric,
            others,
            fit: Fit::CutMiddle,
            as_chat: true,
            counted: ScoredPart::AllOrNone,
            lengths: None,
            layout: PromptLayout::Loogle {
                prompt: prompts.remove(name).expect("each dataset has a prompt"),
                task,
            },
        }
    };
    DATASETS.map(define).into()
}

pub(super) fn cases(
    template: &str,
    task: LoogleTask,
    row: &DatasetRow,
) -> Result<Vec<Case>, String> {
    let text = row.text(&["input"])?;
    let make = |question: &str, (answers, labels)| {
        let holes = [("context", text.as_str()), ("question", question)];
        let (context, question) = prompt(template, &holes);
        Case { context, question, answers, labels, ..Case::default() }
    };
    if matches!(task, LoogleTask::Summary) {
        return Ok(vec![make("", (vec![row.text(&["output"])?], Vec::new()))]);
    }
    let pairs = pairs(row)?;
    let case = |(number, pair): (usize, Value)| {
        let case = match pair {
            Value::Object(pair) => match task {
                LoogleTask::Clozes => names_and_masks(&pair),
                _ => answers_of_question(&pair),
            }
            .and_then(|right| Ok(make(&text_of(&pair, "Q")?, right))),
            other => Err(format!("it is {}; expected Q and A", kind(&other))),
        };
        case.map_err(|reason| format!("question {}: {reason}", number + 1))
    };
    pairs.into_iter().enumerate().map(case).collect()
}

/// Returns the questions with answers, from a list or from the text of a Python list.
fn pairs(row: &DatasetRow) -> Result<Vec<Value>, String> {
    let found = row.column(&["qa_pairs"])?;
    let read = match found {
        Value::String(text) => python::literal(text),
        other => Some(other.clone()),
    };
    match read {
        Some(Value::Array(pairs)) if !pairs.is_empty() => Ok(pairs),
        _ => Err(format!(
            "qa_pairs is {}, and no list of questions; expected one, as JSON or as Python \
             writes it",
            kind(found)
        )),
    }
}

fn text_of(pair: &Map<String, Value>, name: &str) -> Result<String, String> {
    let keys = || pair.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match pair.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(other) => Err(format!("{name} is {}; expected text", kind(other))),
        None => Err(format!("no {name}; it has {}", keys())),
    }
}

fn answers_of_question(pair: &Map<String, Value>) -> Result<(Vec<String>, Vec<String>), String> {
    Ok((vec![text_of(pair, "A")?], Vec::new()))
}

/// Returns the names, and the masks that hide them.
fn names_and_masks(pair: &Map<String, Value>) -> Result<(Vec<String>, Vec<String>), String> {
    let Some(Value::Object(names)) =
        pair.get("A").filter(|names| **names != Value::Object(Map::new()))
    else {
        let found = pair.get("A").map_or("not there", kind);
        return Err(format!("A is {found}; expected names by masks"));
    };
    let name = |mask: &String| Ok((text_of(names, mask)?, mask.clone()));
    Ok(names.keys().map(name).collect::<Result<Vec<_>, String>>()?.into_iter().unzip())
}
