//! How answers of benchmarks are scored, each as its published script does.

mod babilong;
mod edit;
mod math;
mod numbers;
mod rouge;
mod words;

use crate::Case;

/// A score of an answer, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMetric {
    /// F1 over the words of both, normalised as SQuAD's script does; the best of the right answers.
    WordF1,
    /// ROUGE-L as the Python package `rouge` 1.0.1 has it: over sets of words, sentence by sentence.
    Rouge,
    /// `fuzz.ratio` of fuzzywuzzy over Python's difflib, of the first line that is no comment.
    EditSimilarity,
    /// The right class among those that the answer has, over how many it has.
    Classification,
    /// The share of the answer's numbers that are right.
    Count,
    /// The same of the number after "Paragraph" in the right answer.
    Retrieval,
    /// RULER's: the share of the right answers that the answer has, ignoring case.
    MatchAll,
    /// RULER's for questions: whether it has any of them.
    MatchPart,
    /// BABILong's: whether the right label is the only one in the first sentence.
    OnlyLabel,
    /// The last `\boxed{}` is the right answer after the normalisation of MATH.
    Boxed,
    /// The last `\boxed{}` is the right whole number, however many zeros it begins with.
    BoxedInteger,
}

impl AnswerMetric {
    /// Its name in answers' digests and in docs.
    pub fn name(self) -> &'static str {
        match self {
            Self::WordF1 => "word-f1",
            Self::Rouge => "rouge",
            Self::EditSimilarity => "edit-similarity",
            Self::Classification => "classification",
            Self::Count => "count",
            Self::Retrieval => "retrieval",
            Self::MatchAll => "match-all",
            Self::MatchPart => "match-part",
            Self::OnlyLabel => "only-label",
            Self::Boxed => "boxed",
            Self::BoxedInteger => "boxed-integer",
        }
    }

    /// The score of an answer to a case.
    pub fn score(self, case: &Case, answer: &str) -> f64 {
        let best = |score: &dyn Fn(&str) -> f64| {
            case.answers.iter().map(|right| score(right)).fold(0.0, f64::max)
        };
        match self {
            Self::WordF1 => best(&|right| words::f1(answer, right)),
            Self::Rouge => best(&|right| rouge::f(answer, right)),
            Self::EditSimilarity => best(&|right| edit::line_similarity(answer, right)),
            Self::Classification => {
                best(&|right| words::classification(answer, right, &case.labels))
            }
            Self::Count => best(&|right| numbers::share(answer, right)),
            Self::Retrieval => best(&|right| numbers::share(answer, numbers::paragraph(right))),
            Self::MatchAll => case.share_told(answer),
            Self::MatchPart => f64::from(u8::from(case.share_told(answer) > 0.0)),
            Self::OnlyLabel => best(&|right| babilong::only_label(answer, right, &case.labels)),
            Self::Boxed => best(&|right| math::boxed(answer, right)),
            Self::BoxedInteger => best(&|right| math::boxed_integer(answer, right)),
        }
    }
}
