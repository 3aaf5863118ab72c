//! Frequent words: the most frequent coded words of a text.

use std::iter::repeat_n;

use crate::draw::SeededDraw;
use crate::fit::TokenLimit;
use crate::words::{SENTENCES, letters};
use crate::{Case, Result, Task};

const ANSWER_TOKENS: usize = 50;
/// The most frequent word, which is not an answer.
const PLACEHOLDER: &str = "...";
const ANSWERS: usize = 3;
const LETTERS: usize = 6;
/// Tokens of the text per word of its vocabulary.
const TOKENS_PER_WORD: usize = 50;
/// Zeta function at 2, the law's exponent: pi^2 / 6.
const ZETA: f64 = 1.644_934_066_848_226_4;
/// Least number of words at which the third answer is more frequent than the next word.
const LEAST: usize = 74;

/// Number of occurrences of the word with a rank, from 1, in a text of `words`, by the zeta law
/// with exponent 2.
fn frequency(words: usize, rank: usize) -> usize {
    (words as f64 / (rank * rank) as f64 / ZETA) as usize
}

fn text(vocabulary: &[String], words: usize, mut draw: SeededDraw) -> Case {
    let ranked = vocabulary.iter().enumerate();
    let mut coded: Vec<&str> =
        ranked.flat_map(|(i, word)| repeat_n(word.as_str(), frequency(words, i + 1))).collect();
    draw.shuffle(&mut coded);
    let (introduction, question, beginning) = SENTENCES.fwe.fill(&[]);
    Case {
        context: introduction + &coded.join(" "),
        question,
        beginning,
        answers: vocabulary[1..=ANSWERS].to_vec(),
        tokens: ANSWER_TOKENS,
        ..Case::default()
    }
}

/// Builds the case, filled with coded words.
pub(crate) fn case(length: TokenLimit, draw: &SeededDraw) -> Result<Case> {
    let mut draw = draw.clone();
    let words = length.tokens.saturating_sub(ANSWER_TOKENS) / TOKENS_PER_WORD;
    let mut vocabulary = vec![PLACEHOLDER.to_owned()];
    // One word more than the answers need, so that there is a wrong one.
    let coded = words.saturating_sub(1).clamp(ANSWERS + 1, 26_usize.pow(LETTERS as u32) / 2);
    vocabulary.extend(draw.different(coded, |draw| letters(LETTERS, b'a', draw)));
    // A text has fewer words than this number, since ranks beyond the vocabulary have part of the
    // law's mass.
    let most = LEAST.max(2 * length.tokens);
    length.fill(Task::Fwe.name(), LEAST..=most, |words| text(&vocabulary, words, draw.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law_and_answers_stand_out() {
        for words in [LEAST, 75, 100, 1000, 123_457] {
            let mass = |rank: usize| (rank as f64).powi(-2) / (std::f64::consts::PI.powi(2) / 6.0);
            for rank in 1..200 {
                let expected = words as f64 * mass(rank);
                let found = frequency(words, rank) as f64;
                assert!(
                    found <= expected + 1e-6 && expected < found + 1.0 + 1e-6,
                    "{words} {rank}"
                );
            }
            assert!(frequency(words, ANSWERS + 1) > frequency(words, ANSWERS + 2));
        }
    }
}
