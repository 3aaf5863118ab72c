//! Sources of the words of needles and variables.

use crate::draw::SeededDraw;
use crate::templates::Templates;

/// Purpose of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordClass {
    /// Key made of words.
    Key,
    /// Key that is a UUID, if the source has UUIDs.
    UuidKey,
    /// Value that is a number.
    Number,
    /// Value that is a UUID.
    Uuid,
    /// Name of a variable.
    Variable,
    /// Name of a variable in an example.
    ShortVariable,
    /// Value that is assigned to a variable.
    Assigned,
}

/// Text around the needles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hay {
    /// A few sentences, repeated.
    Noise,
    /// Prose.
    Prose,
    /// Other needles.
    Needles,
}

/// Words and sentences in the style of RULER, or from a vocabulary.
pub(crate) trait WordSource {
    fn templates(&self) -> &Templates;

    /// Draws `count` different words of a class, or all if there are fewer.
    fn words(&self, class: WordClass, count: usize, draw: &mut SeededDraw) -> Vec<String>;

    /// Largest number of words of a class that may be requested from `words`.
    fn max_words(&self, class: WordClass) -> usize;

    /// Returns the first sentences of a haystack of noise or prose.
    fn hay(&self, hay: Hay, sentences: usize, draw: &mut SeededDraw) -> Vec<String>;

    /// Separator of the sentences of a haystack.
    fn separator(&self, hay: Hay) -> &'static str;

    /// Number of needles in a haystack of needles, if it is limited and prose fills the rest;
    /// `None` if needles fill the text.
    fn needle_count(&self, tokens: usize) -> Option<usize>;

    /// Largest number of tokens of an answer of `words` words; `usual` is RULER's number.
    fn answer_tokens(&self, words: usize, usual: usize) -> usize;

    /// Returns the word for a number.
    fn number(&self, number: usize) -> String;

    /// Returns true if the text of variables begins with an example.
    fn has_example(&self) -> bool;
}
