//! Classes of tokens, derived from their texts.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use vattention_core::TokenClass;

/// Class of each token of a vocabulary. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Classes(Arc<[TokenClass]>);

impl Classes {
    /// Classifies tokens by their texts; a special token has no text.
    pub(crate) fn from_texts(texts: Vec<(u32, Option<String>)>) -> Self {
        let size = texts.iter().map(|(token, _)| *token as usize + 1).max().unwrap_or(0);
        let mut classes = vec![TokenClass::Other; size];
        for (token, text) in texts {
            classes[token as usize] = text.map_or(TokenClass::Special, |text| class_of_text(&text));
        }
        Self(classes.into())
    }

    /// Returns the classes of tokens, `[tokens]`. Tokens beyond the tokenizer's vocabulary, which
    /// some models have, are [`Other`](TokenClass::Other).
    pub fn classify(&self, tokens: &[u32]) -> Vec<TokenClass> {
        let class = |&token: &u32| self.0.get(token as usize).copied().unwrap_or_default();
        tokens.iter().map(class).collect()
    }
}

/// Class of a token with this text.
fn class_of_text(text: &str) -> TokenClass {
    static PUNCTUATION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^\p{P}+$").expect("a class of Unicode, repeated"));
    if PUNCTUATION.is_match(text.trim()) { TokenClass::Punctuation } else { TokenClass::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_punctuation_is_punctuation() {
        for text in [".", " ,", "?!\n", "…", "”", "。", " ---", "(", "\"", "#", "%", "¿"] {
            assert_eq!(class_of_text(text), TokenClass::Punctuation, "{text:?}");
        }
        // Unicode classifies the last four as symbols.
        for text in ["", " ", "\n", "a.", "n't", "'s", ". 1", "1", "$", "+", "<", "\u{fffd}"] {
            assert_eq!(class_of_text(text), TokenClass::Other, "{text:?}");
        }
    }
}
