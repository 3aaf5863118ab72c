//! What tokens are in a text, as their tokenizer knows.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use vattention_core::TokenClass;

/// The class of each token of a vocabulary. Clones share it.
#[derive(Clone, Debug)]
pub struct Classes(Arc<[TokenClass]>);

impl Classes {
    /// Classes of tokens with their texts; a special token has none.
    pub(crate) fn from_texts(texts: Vec<(u32, Option<String>)>) -> Self {
        let size = texts.iter().map(|(token, _)| *token as usize + 1).max().unwrap_or(0);
        let mut classes = vec![TokenClass::Other; size];
        for (token, text) in texts {
            classes[token as usize] = text.map_or(TokenClass::Special, |text| class(&text));
        }
        Self(classes.into())
    }

    /// Those of tokens, `[tokens]`. A token beyond the tokenizer's vocabulary, as models have some, is
    /// [`Other`](TokenClass::Other).
    pub fn of(&self, tokens: &[u32]) -> Vec<TokenClass> {
        let class = |&token: &u32| self.0.get(token as usize).copied().unwrap_or_default();
        tokens.iter().map(class).collect()
    }
}

/// The class of a token with a text.
fn class(text: &str) -> TokenClass {
    static PUNCTUATION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^\p{P}+$").expect("a class of Unicode, repeated"));
    if PUNCTUATION.is_match(text.trim()) { TokenClass::Punctuation } else { TokenClass::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_is_punctuation_alone() {
        for text in [".", " ,", "?!\n", "…", "”", "。", " ---", "(", "\"", "#", "%", "¿"] {
            assert_eq!(class(text), TokenClass::Punctuation, "{text:?}");
        }
        // The last ones are symbols to Unicode; the replacement character stands for a part of a character.
        for text in ["", " ", "\n", "a.", "n't", "'s", ". 1", "1", "$", "+", "<", "\u{fffd}"] {
            assert_eq!(class(text), TokenClass::Other, "{text:?}");
        }
    }
}
