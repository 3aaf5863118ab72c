//! Cases: a text with a question and its right answers.

/// Prompt and right answers of a case. The prompt is `context` followed directly by `question`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Case {
    /// Introduction and haystack: the part of the prompt that a model can read before the question.
    pub context: String,
    /// Question, and the beginning of the answer.
    pub question: String,
    /// Beginning of the answer, with which `question` ends; in a chat, the model's first words.
    pub beginning: String,
    /// Right answers, in the order of the question.
    pub answers: Vec<String>,
    /// Possible answers, for metrics that search for all of them, such as the classes of a
    /// classification. For clozes, the masks of the right answers.
    pub labels: Vec<String>,
    /// Largest number of tokens of an answer.
    pub tokens: usize,
    /// Text that replaces the end of a context that is cut, if the dataset has one.
    pub omission: String,
    /// Groups to which a dataset's publishers assign the case, such as `easy` and `short`.
    pub groups: Vec<String>,
}

impl Case {
    /// Share of the right answers that the answer contains, ignoring case.
    pub(crate) fn matched_share(&self, answer: &str) -> f64 {
        let answer = answer.to_lowercase();
        let matched =
            self.answers.iter().filter(|word| answer.contains(&word.to_lowercase())).count();
        matched as f64 / self.answers.len().max(1) as f64
    }
}
