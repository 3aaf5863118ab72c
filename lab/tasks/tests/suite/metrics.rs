//! Tests of scores against the reference implementations (`tools/make_metric_golden.py`).

use std::collections::BTreeMap;

use serde::Deserialize;
use vattention_tasks::{AnswerMetric, Case};

#[derive(Deserialize)]
struct Golden {
    metric: String,
    answer: String,
    answers: Vec<String>,
    #[serde(default)]
    labels: Vec<String>,
    score: f64,
}

const CHECKED: [AnswerMetric; 37] = [
    AnswerMetric::WordF1,
    AnswerMetric::Rouge,
    AnswerMetric::EditSimilarity,
    AnswerMetric::Classification,
    AnswerMetric::TrialCount,
    AnswerMetric::Retrieval,
    AnswerMetric::MatchAll,
    AnswerMetric::MatchPart,
    AnswerMetric::OnlyLabel,
    AnswerMetric::Boxed,
    AnswerMetric::RougeRecall,
    AnswerMetric::Rouge1Recall,
    AnswerMetric::Rouge2Recall,
    AnswerMetric::RougeScore1,
    AnswerMetric::RougeScore2,
    AnswerMetric::RougeScoreL,
    AnswerMetric::RougeScoreLsum,
    AnswerMetric::RougeScoreLsumStemmed,
    AnswerMetric::Bleu1,
    AnswerMetric::Bleu4,
    AnswerMetric::ClozeExact,
    AnswerMetric::ClozePartial,
    AnswerMetric::FirstNumber,
    AnswerMetric::HasWord,
    AnswerMetric::HasName,
    AnswerMetric::LastNumber,
    AnswerMetric::FirstValue,
    AnswerMetric::LeadingNumbers,
    AnswerMetric::Choice,
    AnswerMetric::CodeChoice,
    AnswerMetric::CharacterF1,
    AnswerMetric::StatedLetter,
    AnswerMetric::FirstLetter,
    AnswerMetric::AsciiWordF1,
    AnswerMetric::RougeGeometricMean,
    AnswerMetric::PercentageSimilarity,
    AnswerMetric::Concordance,
];

fn case(answers: Vec<String>, labels: Vec<String>) -> Case {
    Case { answers, labels, tokens: 1, ..Case::default() }
}

#[test]
fn scores_match_the_reference_implementations() {
    let golden: Vec<Golden> = serde_json::from_str(include_str!("../golden/metrics.json")).unwrap();
    let mut wrong = Vec::new();
    // For each metric: the number of cases with a score above 0, and of all cases.
    let mut counts = BTreeMap::<String, (usize, usize)>::new();
    for Golden { metric: name, answer, answers, labels, score } in golden {
        let metric = CHECKED.into_iter().find(|metric| metric.name() == name).unwrap();
        let case = case(answers, labels);
        let found = metric.score(&case, &answer);
        if (found - score).abs() > 1e-12 {
            wrong
                .push(format!("{name}: {answer:?}, {:?}: {found}; expected {score}", case.answers));
        }
        let (some, all) = counts.entry(name).or_default();
        *some += usize::from(score > 0.0);
        *all += 1;
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(counts.len(), CHECKED.len());
    assert!(counts.values().all(|(some, all)| *some > 0 && some < all), "{counts:?}");
}

#[test]
fn the_best_of_the_right_answers_counts() {
    let answers = vec!["a pear".into(), "two apples".into()];
    assert_eq!(AnswerMetric::WordF1.score(&case(answers, vec![]), "Two apples!"), 1.0);
}

#[test]
fn only_the_last_closed_box_is_the_answer() {
    let score = |answer: &str| {
        AnswerMetric::Boxed.score(&case(vec!["\\frac{1}{2}".into()], vec![]), answer)
    };
    assert_eq!(score("\\boxed{3}, no: \\boxed{\\frac12}"), 1.0);
    assert_eq!(score("\\boxed{\\frac{1}{2}} or \\boxed{3}"), 0.0);
    assert_eq!(score("\\boxed{\\frac{1}{2}"), 0.0);
    assert_eq!(score("\\frac{1}{2}"), 0.0);
}

#[test]
fn leading_zeros_of_whole_numbers_are_ignored() {
    let score =
        |answer: &str| AnswerMetric::BoxedInteger.score(&case(vec!["025".into()], vec![]), answer);
    assert_eq!(score("\\boxed{25}"), 1.0);
    assert_eq!(score("\\boxed{ 025 }"), 1.0);
    for wrong in ["25", "\\boxed{250}", "\\boxed{25.0}", "\\boxed{-25}", "\\boxed{}"] {
        assert_eq!(score(wrong), 0.0, "{wrong}");
    }
}
