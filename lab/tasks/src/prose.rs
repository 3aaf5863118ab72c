//! Haystacks of sentences.

use std::path::Path;

use crate::draw::SeededDraw;
use crate::error::read;
use crate::{Error, Result};

/// Sentences of a file, without line breaks.
#[derive(Clone, Debug)]
pub(crate) struct Prose(Vec<String>);

impl Prose {
    /// Splits a file after every `.`, `!` or `?` that white space follows.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let sentences = sentences(&read(path)?);
        if sentences.is_empty() {
            return Err(Error::malformed(path, "there is no word; expected prose"));
        }
        Ok(Self(sentences))
    }

    /// Returns the first sentences; they repeat from the beginning if there are fewer.
    pub(crate) fn first(&self, count: usize) -> Vec<String> {
        self.0.iter().cycle().take(count).cloned().collect()
    }
}

fn sentences(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        words.push(word);
        if word.ends_with(['.', '!', '?']) {
            sentences.push(words.join(" "));
            words.clear();
        }
    }
    if !words.is_empty() {
        sentences.push(words.join(" "));
    }
    sentences
}

/// Draws a filler sentence of 4 to 14 random words.
pub(crate) fn filler(words: &[String], draw: &mut SeededDraw) -> String {
    let count = 4 + draw.below(11);
    let words: Vec<&str> = (0..count).map(|_| draw.choose(words).as_str()).collect();
    words.join(" ") + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_split_at_sentences() {
        let text = " One  two.\nThree 3.5 v. x!  Why?\n\nNo end";
        assert_eq!(sentences(text), ["One two.", "Three 3.5 v.", "x!", "Why?", "No end"]);
        assert!(sentences(" \n").is_empty());
    }
}
