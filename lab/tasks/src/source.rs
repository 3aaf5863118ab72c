//! Where needles and variables get their words from.

use crate::draw::SeededDraw;
use crate::templates::Templates;

/// What a word is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A key of words.
    Key,
    /// A key that is a UUID, where the source has such.
    UuidKey,
    /// A value.
    Number,
    /// A value.
    Uuid,
    /// A variable.
    Variable,
    /// A variable of an example.
    ShortVariable,
    /// What is assigned to a variable.
    Assigned,
}

/// What is around the needles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hay {
    /// The same few sentences, over and over.
    Noise,
    /// Prose.
    Prose,
    /// More needles.
    Needles,
}

/// Words and sentences: of RULER's kind, or of a vocabulary.
pub(crate) trait WordSource {
    fn templates(&self) -> &Templates;

    /// As many different words of a class, or as there are.
    fn words(&self, class: Class, count: usize, draw: &mut SeededDraw) -> Vec<String>;

    /// The most words of a class that `words` should be asked for.
    fn most(&self, class: Class) -> usize;

    /// The first sentences of a haystack of noise or prose.
    fn hay(&self, hay: Hay, sentences: usize, draw: &mut SeededDraw) -> Vec<String>;

    /// What stands between the sentences of a haystack.
    fn between(&self, hay: Hay) -> &'static str;

    /// The needles of a haystack of needles, where they do not go on until the text is full but
    /// prose fills the rest.
    fn needles(&self, tokens: usize) -> Option<usize>;

    /// The most tokens of an answer of some words, where RULER gives it `usual`.
    fn answer_tokens(&self, words: usize, usual: usize) -> usize;

    /// The word for a number.
    fn number(&self, number: usize) -> String;

    /// Whether an example is worked before the text of variables.
    fn has_example(&self) -> bool;
}
