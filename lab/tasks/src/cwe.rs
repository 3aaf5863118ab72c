//! Common words: the most frequent words of a numbered list.

use std::fmt::Display;
use std::iter::repeat_n;

use crate::draw::SeededDraw;
use crate::fit::TokenLimit;
use crate::words::{SENTENCES, different};
use crate::{Case, Result, Task};

const ANSWER_TOKENS: usize = 120;
const COMMON: usize = 10;
/// Number of tokens from which a text has the long lists.
const LONG: usize = 4096;

/// Number of repetitions of each word in a list.
#[derive(Clone, Copy, Debug)]
struct Repeats {
    common: usize,
    rare: usize,
}

/// Repetitions in the text and in the example, and the number of the example's rare words.
fn choose_repeats(tokens: usize) -> (Repeats, Repeats, usize) {
    if tokens < LONG {
        (Repeats { common: 6, rare: 1 }, Repeats { common: 3, rare: 1 }, 10)
    } else {
        (Repeats { common: 30, rare: 3 }, Repeats { common: 10, rare: 3 }, 30)
    }
}

fn format_numbered<T: Display>(words: &[T]) -> String {
    let numbered = words.iter().enumerate().map(|(i, word)| format!("{}. {word}", i + 1));
    numbered.collect::<Vec<_>>().join(" ")
}

/// Draws different words: ten common ones, and `rare` others. No common word is part of another, so
/// that an answer with one does not contain two.
fn draw_words(rare: usize, draw: &mut SeededDraw) -> (Vec<String>, Vec<String>) {
    let (mut common, mut others) = (Vec::<String>::new(), Vec::new());
    // Twice the needed number suffices, since few words are parts of others.
    for word in different(2 * COMMON + rare, draw) {
        let apart = common.iter().all(|other| !other.contains(&word) && !word.contains(other));
        if apart && common.len() < COMMON {
            common.push(word);
        } else {
            others.push(word);
        }
    }
    others.truncate(rare);
    (common, others)
}

fn list(repeats: Repeats, rare: usize, draw: &mut SeededDraw) -> Case {
    let (answers, others) = draw_words(rare, draw);
    let common = answers.iter().flat_map(|word| repeat_n(word, repeats.common));
    let rare = others.iter().flat_map(|word| repeat_n(word, repeats.rare));
    let mut words: Vec<_> = common.chain(rare).collect();
    draw.shuffle(&mut words);
    let (introduction, question, beginning) = SENTENCES.cwe.fill(&[]);
    let context = introduction + &format_numbered(&words);
    Case { context, question, beginning, answers, tokens: ANSWER_TOKENS, ..Case::default() }
}

/// Builds the case, filled with rare words, after an example with its answer.
pub(crate) fn case(length: TokenLimit, draw: &SeededDraw) -> Result<Case> {
    let mut draw = draw.clone();
    let (repeats, in_example, rare) = choose_repeats(length.tokens);
    let example = list(in_example, rare, &mut draw);
    let example =
        format!("{}{} {}\n", example.context, example.question, format_numbered(&example.answers));
    length.fill(Task::Cwe.name(), 1..=length.tokens, |rare| {
        let case = list(repeats, rare, &mut draw.clone());
        Case { context: format!("{example}{}", case.context), ..case }
    })
}
