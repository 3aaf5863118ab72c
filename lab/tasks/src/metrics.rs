//! How answers of benchmarks are scored, each as its published script does.

mod babilong;
mod bleu;
mod cloze;
mod edit;
mod infinitebench;
mod math;
mod numbers;
mod porter;
mod rouge;
mod rouge_score;
mod subsequence;
mod words;

use crate::Case;

/// A score of an answer, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMetric {
    /// F1 over the words of both, normalised as SQuAD's script does; the best of the right answers.
    WordF1,
    /// ROUGE-L as the Python package `rouge` 1.0.1 has it: over sets of words, sentence by sentence.
    Rouge,
    /// The same without precision: LooGLE's.
    RougeRecall,
    /// The share of the right answer's different words that the answer has, as the package `rouge` splits
    /// them: LooGLE's.
    Rouge1Recall,
    /// The same of pairs of words.
    Rouge2Recall,
    /// ROUGE-1 of the Python package `rouge-score` 0.1.2.
    RougeScore1,
    /// Its ROUGE-2.
    RougeScore2,
    /// Its ROUGE-L.
    RougeScoreL,
    /// Its ROUGE-Lsum, over lines: InfiniteBench's, for summaries.
    RougeScoreLsum,
    /// The same over stems of words, as HELMET has it.
    RougeScoreLsumStemmed,
    /// BLEU of single words alone, as nltk has it: LooGLE's.
    Bleu1,
    /// BLEU of four words alone, which LooGLE calls BLEU-4.
    Bleu4,
    /// LooGLE's for clozes: the share of the masks whose names are the same.
    ClozeExact,
    /// The share of the masks whose names have a word in common.
    ClozePartial,
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
    /// InfiniteBench's: whether the first run of digits is the right one.
    FirstNumber,
    /// Whether a word of the answer is the right one.
    HasWord,
    /// InfiniteBench's metric for dialogues: the answer contains one of the right names, ignoring
    /// case.
    HasName,
    /// Whether the last word is the right whole number.
    LastNumber,
    /// Whether the first number, which may have a fraction, is the right one.
    FirstValue,
    /// The share of the right numbers that the answer's begin with.
    LeadingNumbers,
    /// Whether the answer is, or says first, the right letter of A to D or the right option.
    Choice,
    /// The same as it is found in answers about code: the letter first, or a phrase before it.
    CodeChoice,
    /// F1 over characters without punctuation: InfiniteBench's, for Chinese.
    CharacterF1,
}

impl AnswerMetric {
    /// Its name in answers' digests and in docs.
    pub fn name(self) -> &'static str {
        match self {
            Self::WordF1 => "word-f1",
            Self::Rouge => "rouge",
            Self::RougeRecall => "rouge-recall",
            Self::Rouge1Recall => "rouge-1-recall",
            Self::Rouge2Recall => "rouge-2-recall",
            Self::RougeScore1 => "rouge-score-1",
            Self::RougeScore2 => "rouge-score-2",
            Self::RougeScoreL => "rouge-score-l",
            Self::RougeScoreLsum => "rouge-score-lsum",
            Self::RougeScoreLsumStemmed => "rouge-score-lsum-stemmed",
            Self::Bleu1 => "bleu-1",
            Self::Bleu4 => "bleu-4",
            Self::ClozeExact => "cloze-exact",
            Self::ClozePartial => "cloze-partial",
            Self::EditSimilarity => "edit-similarity",
            Self::Classification => "classification",
            Self::Count => "count",
            Self::Retrieval => "retrieval",
            Self::MatchAll => "match-all",
            Self::MatchPart => "match-part",
            Self::OnlyLabel => "only-label",
            Self::Boxed => "boxed",
            Self::BoxedInteger => "boxed-integer",
            Self::FirstNumber => "first-number",
            Self::HasWord => "has-word",
            Self::HasName => "has-name",
            Self::LastNumber => "last-number",
            Self::FirstValue => "first-value",
            Self::LeadingNumbers => "leading-numbers",
            Self::Choice => "choice",
            Self::CodeChoice => "code-choice",
            Self::CharacterF1 => "character-f1",
        }
    }

    /// The score of an answer to a case.
    pub fn score(self, case: &Case, answer: &str) -> f64 {
        let best = |score: &dyn Fn(&str) -> f64| {
            case.answers.iter().map(|right| score(right)).fold(0.0, f64::max)
        };
        // InfiniteBench takes the first of the right answers there.
        let first = |is_right: fn(&str, &str) -> bool| {
            f64::from(case.answers.first().is_some_and(|right| is_right(answer, right)))
        };
        let cloze = |is_right: fn(&str, &str) -> bool| {
            cloze::share(answer, &case.answers, &case.labels, is_right)
        };
        match self {
            Self::WordF1 => best(&|right| words::f1(answer, right)),
            Self::Rouge => best(&|right| rouge::f(answer, right)),
            Self::RougeRecall => best(&|right| rouge::recall(answer, right)),
            Self::Rouge1Recall => best(&|right| rouge::recall_of_runs(1, answer, right)),
            Self::Rouge2Recall => best(&|right| rouge::recall_of_runs(2, answer, right)),
            Self::RougeScore1 => best(&|right| rouge_score::of_runs(1, answer, right)),
            Self::RougeScore2 => best(&|right| rouge_score::of_runs(2, answer, right)),
            Self::RougeScoreL => best(&|right| rouge_score::longest(answer, right)),
            Self::RougeScoreLsum => {
                best(&|right| rouge_score::longest_of_lines(answer, right, false))
            }
            Self::RougeScoreLsumStemmed => {
                best(&|right| rouge_score::longest_of_lines(answer, right, true))
            }
            Self::Bleu1 => best(&|right| bleu::of_runs(1, answer, right)),
            Self::Bleu4 => best(&|right| bleu::of_runs(4, answer, right)),
            Self::ClozeExact => cloze(|told, name| told == name),
            Self::ClozePartial => cloze(cloze::share_a_word),
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
            Self::FirstNumber => first(infinitebench::first_number),
            Self::HasWord => first(infinitebench::has_word),
            Self::HasName => f64::from(infinitebench::has_name(answer, &case.answers)),
            Self::LastNumber => first(infinitebench::last_number),
            Self::FirstValue => first(infinitebench::first_value),
            Self::LeadingNumbers => infinitebench::leading_numbers(answer, &case.answers),
            Self::Choice => f64::from(infinitebench::choice(answer, &case.answers)),
            Self::CodeChoice => f64::from(infinitebench::code_choice(answer, &case.answers)),
            Self::CharacterF1 => best(&|right| infinitebench::character_f1(answer, right)),
        }
    }
}
