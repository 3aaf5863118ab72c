//! Variables to follow along a chain of assignments.

use crate::draw::SeededDraw;
use crate::fit::{TokenLimit, largest};
use crate::source::{Hay, WordClass, WordSource};
use crate::templates::fill;
use crate::{Case, Result, Task};

const ANSWER_TOKENS: usize = 30;
const VARIABLES: usize = 5;
/// Largest number of tokens of the example.
const EXAMPLE_TOKENS: usize = 500;

/// Builds a chain in `noise` sentences of noise, and the question for all of its variables.
fn text(source: &dyn WordSource, class: WordClass, noise: usize, mut draw: SeededDraw) -> Case {
    let vt = &source.templates().vt;
    let variables = source.words(class, VARIABLES, &mut draw);
    let value = source.words(WordClass::Assigned, 1, &mut draw).concat();
    let mut chain = vec![fill(&vt.first, &[("variable", &variables[0]), ("value", &value)])];
    chain.extend(
        variables
            .windows(2)
            .map(|pair| fill(&vt.next, &[("variable", &pair[1]), ("previous", &pair[0])])),
    );
    let noise = source.hay(Hay::Noise, noise, &mut draw);
    let sentences = draw.merge(chain, noise);
    let count = source.number(VARIABLES);
    let (introduction, question, beginning) =
        vt.frame.fill(&[("value", &value), ("count", &count)]);
    Case {
        context: introduction + &sentences.join(source.separator(Hay::Noise)),
        question,
        beginning,
        tokens: source.answer_tokens(VARIABLES, ANSWER_TOKENS),
        answers: variables,
        ..Case::default()
    }
}

/// Builds the longest short text with its answer that fits; without noise if none fits.
fn example(source: &dyn WordSource, length: TokenLimit, draw: &SeededDraw) -> String {
    let most = EXAMPLE_TOKENS.min(length.tokens / 4);
    let make = |noise| text(source, WordClass::ShortVariable, noise, draw.clone());
    let size = |noise| length.count_prompt(&make(noise));
    let Case { context, question, answers, .. } = make(largest(0..=most, most, size).unwrap_or(0));
    format!("{context}{question} {}\n\n", answers.join(" "))
}

/// Builds the case, filled with noise.
pub(crate) fn case(source: &dyn WordSource, length: TokenLimit, draw: &SeededDraw) -> Result<Case> {
    let mut draw = draw.clone();
    let example = if source.has_example() { example(source, length, &draw) } else { String::new() };
    draw.bits(); // The text must differ from the example.
    length.fill(Task::Vt.name(), 0..=length.tokens, |noise| {
        let case = text(source, WordClass::Variable, noise, draw.clone());
        Case { context: format!("{example}{}", case.context), ..case }
    })
}
