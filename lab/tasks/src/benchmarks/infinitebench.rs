//! InfiniteBench (Zhang et al., <https://arxiv.org/abs/2402.13718>): a line has `context`, `input`,
//! `answer` and `options`.

use std::collections::BTreeMap;

use super::definition::{BenchmarkDefinition, Fit, PromptLayout, ScoredPart, prompt};
use crate::Case;
use crate::benchmarks::rows::DatasetRow;
use crate::metrics::AnswerMetric;
use crate::templates::holes;

/// Templates of `src/prompt.py` for YaRN-Mistral, the only model that its scripts run on all tasks.
const PROMPTS: &str = include_str!("../../prompts/infinitebench.json");
const LETTERS: [&str; 4] = ["A", "B", "C", "D"];

/// Name, largest number of tokens of an answer (`src/eval_utils.py`), and metric
/// (`src/compute_scores.py`).
const DATASETS: [(&str, usize, AnswerMetric); 12] = [
    ("passkey", 6, AnswerMetric::FirstNumber),
    ("number_string", 12, AnswerMetric::FirstNumber),
    ("kv_retrieval", 50, AnswerMetric::HasWord),
    ("longdialogue_qa_eng", 40, AnswerMetric::HasName),
    ("longbook_sum_eng", 1200, AnswerMetric::RougeScoreLsum),
    ("longbook_choice_eng", 40, AnswerMetric::Choice),
    ("longbook_qa_eng", 40, AnswerMetric::WordF1),
    ("longbook_qa_chn", 40, AnswerMetric::CharacterF1),
    ("math_find", 3, AnswerMetric::FirstValue),
    ("math_calc", 30000, AnswerMetric::LeadingNumbers),
    ("code_run", 5, AnswerMetric::LastNumber),
    ("code_debug", 5, AnswerMetric::CodeChoice),
];

pub(super) fn datasets() -> Vec<BenchmarkDefinition> {
    let mut prompts: BTreeMap<String, String> =
        serde_json::from_str(PROMPTS).expect("the file is an object of texts");
    let define = |(name, tokens, metric): (&str, usize, AnswerMetric)| BenchmarkDefinition {
        benchmark: "infinitebench",
        dataset: name.into(),
        name: name.into(),
        files: vec![name.into(), format!("data/{name}")],
        tokens,
        metric,
        others: match metric {
            AnswerMetric::RougeScoreLsum => &[
                AnswerMetric::RougeScoreLsumStemmed,
                AnswerMetric::RougeScore1,
                AnswerMetric::RougeScore2,
                AnswerMetric::RougeScoreL,
            ],
            _ => &[],
        },
        fit: if name == "math_calc" { Fit::RestForAnswer } else { Fit::CutMiddle },
        as_chat: true,
        counted: ScoredPart::All,
        lengths: None,
        layout: PromptLayout::InfiniteBench {
            prompt: prompts.remove(name).expect("each dataset has a prompt"),
        },
    };
    DATASETS.map(define).into()
}

pub(super) fn case(template: &str, metric: AnswerMetric, row: &DatasetRow) -> Result<Case, String> {
    let texts: Vec<(&str, String)> =
        holes(template).map(|hole| Ok((hole, text(hole, row)?))).collect::<Result<_, String>>()?;
    let texts: Vec<(&str, &str)> =
        texts.iter().map(|(hole, text)| (*hole, text.as_str())).collect();
    let (context, question) = prompt(template, &texts);
    let answers = answers(metric, row)?;
    Ok(Case { context, question, answers, ..Case::default() })
}

/// Returns the text for a hole of a template.
fn text(hole: &str, row: &DatasetRow) -> Result<String, String> {
    let call = || {
        if row.has("func_call") {
            row.text(&["func_call"])
        } else {
            first_call(&row.text(&["input"])?)
        }
    };
    match hole {
        "context" => row.text(&["context", "content"]),
        "question" => row.text(&["question", "input"]),
        "func_call" => call(),
        "func" => Ok(call()?.split('(').next().unwrap_or_default().to_owned()),
        "prefix" => {
            Ok(format!("What is {} in the following list?", target(&row.text(&["input"])?)?))
        }
        _ => match LETTERS.iter().position(|letter| hole == format!("OPTION_{letter}")) {
            Some(place) => Ok(options(row)?[place].clone()),
            None => row.text(&[hole]),
        },
    }
}

fn options(row: &DatasetRow) -> Result<Vec<String>, String> {
    let options = row.texts("options")?;
    match options.len() {
        4 => Ok(options),
        count => Err(format!("options has {count} texts; expected 4")),
    }
}

/// Returns the first call of a text, such as `func_1(-2)`.
fn first_call(input: &str) -> Result<String, String> {
    let call = |rest: &str| {
        let number = rest.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0)?;
        let argument = rest[number..].strip_prefix('(')?.split_once(')')?.0;
        let digits = argument.strip_prefix('-').unwrap_or(argument);
        let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        whole.then(|| format!("func_{}({argument})", &rest[..number]))
    };
    let found = input.split("func_").skip(1).find_map(call);
    found.ok_or_else(|| "input has no call; expected func_1(2)".into())
}

/// Returns the description of the number to find in a list: the text between the first "The " of a
/// line and the last " of" after it.
fn target(input: &str) -> Result<String, String> {
    let find_in_line = |line: &str| {
        let (_, rest) = line.split_once("The ")?;
        Some(rest.rsplit_once(" of")?.0.to_lowercase()).filter(|target| !target.is_empty())
    };
    let found = input.split('\n').find_map(find_in_line).map(|target| format!("the {target}"));
    found.ok_or_else(|| "input does not say what to find; expected The ... of".into())
}

/// Returns the right answers: for a choice, the option and its letter.
fn answers(metric: AnswerMetric, row: &DatasetRow) -> Result<Vec<String>, String> {
    let answers = row.texts_or_numbers("answer")?;
    let number = |text: &String| text.parse::<f64>().is_ok();
    match metric {
        AnswerMetric::Choice | AnswerMetric::CodeChoice => match &answers[..] {
            [_, letter] if LETTERS.contains(&letter.as_str()) => Ok(answers),
            [option] => {
                let place = options(row)?.iter().position(|other| other == option);
                let place = place.ok_or("answer is none of the options; expected one")?;
                Ok(vec![option.clone(), LETTERS[place].into()])
            }
            _ => Err("answer is a list; expected an option, and its letter if it has one".into()),
        },
        AnswerMetric::FirstValue | AnswerMetric::LastNumber | AnswerMetric::LeadingNumbers
            if !answers.iter().all(number) =>
        {
            Err("answer is text; expected a number".into())
        }
        _ => Ok(answers),
    }
}
