//! Metrics of benchmarks' answers, each equal to its published script.

mod babilong;
mod bleu;
mod cloze;
mod edit;
mod infinitebench;
mod letters;
mod math;
mod numbers;
mod porter;
mod rouge;
mod rouge_score;
mod subsequence;
mod words;
mod zero_scrolls;

use crate::Case;

pub(crate) use letters::first as first_letter;
pub(crate) use zero_scrolls::{is_permutation, order, percentage};

/// Metric, which scores an answer from 0 to 1. With several right answers, most metrics return the
/// best score over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMetric {
    /// F1 over words that are normalised as in SQuAD's script.
    WordF1,
    /// ROUGE-L of the Python package `rouge` 1.0.1: over sets of words, sentence by sentence.
    Rouge,
    /// Recall of that ROUGE-L, for LooGLE.
    RougeRecall,
    /// Share of the right answer's different words that the answer contains, with the words of the
    /// package `rouge`, for LooGLE.
    Rouge1Recall,
    /// Share of the right answer's different pairs of words that the answer contains.
    Rouge2Recall,
    /// ROUGE-1 of the Python package `rouge-score` 0.1.2.
    RougeScore1,
    /// ROUGE-2 of the package `rouge-score`.
    RougeScore2,
    /// ROUGE-L of the package `rouge-score`.
    RougeScoreL,
    /// ROUGE-Lsum of the package `rouge-score`, over lines: InfiniteBench's metric of summaries.
    RougeScoreLsum,
    /// ROUGE-Lsum over stems of words, as in HELMET.
    RougeScoreLsumStemmed,
    /// BLEU of single words only, as in nltk, for LooGLE.
    Bleu1,
    /// BLEU of runs of four words only, which LooGLE calls BLEU-4.
    Bleu4,
    /// LooGLE's metric of clozes: share of the masks whose names are equal.
    ClozeExact,
    /// Share of the masks whose names have a word in common.
    ClozePartial,
    /// `fuzz.ratio` of fuzzywuzzy over Python's difflib, for the first line that is not a comment.
    EditSimilarity,
    /// Reciprocal of the number of classes in the answer, if the right class is among them.
    Classification,
    /// Share of the answer's numbers that are right.
    TrialCount,
    /// Share of the answer's numbers that equal the number after "Paragraph" in the right answer.
    Retrieval,
    /// RULER's metric: share of the right answers that the answer contains, ignoring case.
    MatchAll,
    /// RULER's metric of questions: 1 if the answer contains any of the right answers.
    MatchPart,
    /// BABILong's metric: 1 if the right label is the only one in the first sentence.
    OnlyLabel,
    /// 1 if the last `\boxed{}` is the right answer after the normalisation of MATH.
    Boxed,
    /// 1 if the last `\boxed{}` is the right whole number, with any number of leading zeros.
    BoxedInteger,
    /// InfiniteBench's metric: 1 if the first run of digits is the right one.
    FirstNumber,
    /// 1 if a word of the answer is the right one.
    HasWord,
    /// InfiniteBench's metric of dialogues: 1 if the answer contains one of the right names,
    /// ignoring case.
    HasName,
    /// 1 if the last word is the right whole number.
    LastNumber,
    /// 1 if the first number, which may have a fraction, is the right one.
    FirstValue,
    /// Share of the right numbers that the answer's numbers begin with.
    LeadingNumbers,
    /// 1 if the answer is, or first names, the right letter of A to D or the right option.
    Choice,
    /// 1 if an answer about code names the right letter or option: the letter first, or after a
    /// phrase.
    CodeChoice,
    /// F1 over characters without punctuation: InfiniteBench's metric of Chinese answers.
    CharacterF1,
    /// 1 if the sentence "The correct answer is" names the right letter of A to D, as in
    /// LongBench v2.
    StatedLetter,
    /// ZeroSCROLLS' metric of choices: 1 if the first word that is a letter of A to D is the one
    /// of the right answer.
    FirstLetter,
    /// ZeroSCROLLS' metric of answers: F1 over words like [`WordF1`](Self::WordF1), but over their
    /// transliteration to ASCII.
    AsciiWordF1,
    /// Geometric mean of the best ROUGE-1, ROUGE-2 and ROUGE-L of the package `rouge-score`, for
    /// ZeroSCROLLS.
    RougeGeometricMean,
    /// ZeroSCROLLS' metric of percentages: halved by each 10 points that the answer is off.
    PercentageSimilarity,
    /// ZeroSCROLLS' metric of orders: share of the pairs of numbers in the right order.
    Concordance,
}

impl AnswerMetric {
    /// Name of the metric in digests of answers and in the documentation.
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
            Self::TrialCount => "count",
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
            Self::StatedLetter => "stated-letter",
            Self::FirstLetter => "first-letter",
            Self::AsciiWordF1 => "ascii-word-f1",
            Self::RougeGeometricMean => "rouge-geometric-mean",
            Self::PercentageSimilarity => "percentage-similarity",
            Self::Concordance => "concordance",
        }
    }

    /// Scores an answer to a case.
    pub fn score(self, case: &Case, answer: &str) -> f64 {
        let best = |score: &dyn Fn(&str) -> f64| {
            case.answers.iter().map(|right| score(right)).fold(0.0, f64::max)
        };
        // InfiniteBench's script uses the first of the right answers.
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
            Self::Rouge1Recall => best(&|right| rouge::recall_of_ngrams(1, answer, right)),
            Self::Rouge2Recall => best(&|right| rouge::recall_of_ngrams(2, answer, right)),
            Self::RougeScore1 => best(&|right| rouge_score::score_ngrams(1, answer, right)),
            Self::RougeScore2 => best(&|right| rouge_score::score_ngrams(2, answer, right)),
            Self::RougeScoreL => best(&|right| rouge_score::score_subsequence(answer, right)),
            Self::RougeScoreLsum => best(&|right| rouge_score::score_lines(answer, right, false)),
            Self::RougeScoreLsumStemmed => {
                best(&|right| rouge_score::score_lines(answer, right, true))
            }
            Self::Bleu1 => best(&|right| bleu::score_ngrams(1, answer, right)),
            Self::Bleu4 => best(&|right| bleu::score_ngrams(4, answer, right)),
            Self::ClozeExact => cloze(|found, name| found == name),
            Self::ClozePartial => cloze(cloze::share_a_word),
            Self::EditSimilarity => best(&|right| edit::line_similarity(answer, right)),
            Self::Classification => {
                best(&|right| words::classification(answer, right, &case.labels))
            }
            Self::TrialCount => best(&|right| numbers::share(answer, right)),
            Self::Retrieval => best(&|right| numbers::share(answer, numbers::paragraph(right))),
            Self::MatchAll => case.matched_share(answer),
            Self::MatchPart => f64::from(u8::from(case.matched_share(answer) > 0.0)),
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
            Self::StatedLetter => first(letters::states),
            Self::FirstLetter => best(&|right| f64::from(letters::same_first(answer, right))),
            Self::AsciiWordF1 => best(&|right| words::ascii_f1(answer, right)),
            Self::RougeGeometricMean => {
                let rouge = [Self::RougeScore1, Self::RougeScore2, Self::RougeScoreL];
                rouge.map(|metric| metric.score(case, answer)).iter().product::<f64>().cbrt()
            }
            Self::PercentageSimilarity => {
                best(&|right| zero_scrolls::percentage_similarity(answer, right))
            }
            Self::Concordance => best(&|right| zero_scrolls::concordance(answer, right)),
        }
    }
}
