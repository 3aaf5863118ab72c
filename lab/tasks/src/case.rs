//! A text with its question, and the score of an answer.

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
