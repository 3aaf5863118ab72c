//! A text with its question, and the score of an answer.

use crate::Task;
use crate::metrics::AnswerMetric;

/// What is asked of a model, and what is right. The prompt is `context` and then `question`, with
/// nothing between.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The introduction and the haystack: what a model may read before it knows the question.
    pub context: String,
    /// The question, and the beginning of the answer.
    pub question: String,
    /// The beginning of the answer, which the question ends with: in a chat, the model's first words.
    pub beginning: String,
    /// What the answer should have, in the order of the question.
    pub answers: Vec<String>,
    /// What an answer may be, for metrics that look for all of it: the classes of a classification. Of a cloze,
    /// the masks of the answers.
    pub labels: Vec<String>,
    /// The most tokens of an answer.
    pub tokens: usize,
}

impl Case {
    /// The share of the right answers that are told, ignoring case.
    pub(crate) fn share_told(&self, answer: &str) -> f64 {
        let answer = answer.to_lowercase();
        let told = self.answers.iter().filter(|word| answer.contains(&word.to_lowercase())).count();
        told as f64 / self.answers.len().max(1) as f64
    }
}

impl Task {
    /// The score of an answer in [0, 1]. RULER's ignores case: the share of the right words that it
    /// has; for `qa_1` and `qa_2` 1 if it has any of the right answers. A dataset has its own metric.
    pub fn score(&self, case: &Case, answer: &str) -> f64 {
        match self {
            Self::Qa1 | Self::Qa2 => AnswerMetric::MatchPart.score(case, answer),
            Self::Dataset(dataset) => dataset.score(case, answer),
            _ => AnswerMetric::MatchAll.score(case, answer),
        }
    }

    /// Scores of an answer by what else its publishers score it by.
    pub fn other_scores(&self, case: &Case, answer: &str) -> Vec<(AnswerMetric, f64)> {
        match self {
            Self::Dataset(dataset) => dataset.other_scores(case, answer),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(answers: &[&str]) -> Case {
        let answers = answers.iter().map(ToString::to_string).collect();
        let [context, question, beginning] = Default::default();
        Case { context, question, beginning, answers, labels: Vec::new(), tokens: 1 }
    }

    #[test]
    fn words_are_scored_by_the_share_that_is_told() {
        let case = case(&["1234567", "Amber-Fox", "7654321", "Bold-Owl"]);
        let score = |answer| Task::NiahMultiquery.score(&case, answer);
        assert_eq!(score(""), 0.0);
        assert_eq!(score("It is 1234567."), 0.25);
        assert_eq!(score("amber-fox,\n1234567"), 0.5);
        assert_eq!(score("7654321 AMBER-FOX 1234567 BOLD-OWL"), 1.0);
    }

    #[test]
    fn one_right_answer_is_enough_for_a_question() {
        let case = case(&["Émile", "the writer Émile"]);
        for task in [Task::Qa1, Task::Qa2] {
            assert_eq!(task.score(&case, "éMILE, of course"), 1.0);
            assert_eq!(task.score(&case, "Emil"), 0.0);
        }
        assert_eq!(Task::Vt.score(&case, "Émile"), 0.5);
    }
}
