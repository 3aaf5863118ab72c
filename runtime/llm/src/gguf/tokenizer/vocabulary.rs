//! Vocabulary of a GGUF file: texts and kinds of tokens.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;

use super::keys::TokenizerKeys;
use super::{TOKEN_TYPE, TOKENS, ends_a_text};
use crate::gguf::value::quoted;

/// Kind of a token, as numbered by `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A piece of text.
    Normal,
    /// Token for text that the vocabulary lacks.
    Unknown,
    /// Special token, which is not text.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Unused token, which fills the vocabulary.
    Unused,
    /// One byte, written as `<0x0A>`.
    Byte,
}

pub(super) struct GgufVocabulary<'m> {
    /// Texts of the tokens.
    pub(super) texts: Vec<&'m str>,
    /// Kinds of the tokens.
    pub(super) kinds: Vec<TokenKind>,
    ids: HashMap<&'m str, u32>,
}

impl<'m> GgufVocabulary<'m> {
    pub(super) fn read(keys: TokenizerKeys<'m>) -> Result<Self, String> {
        let texts = keys.texts(TOKENS)?;
        if texts.is_empty() {
            return Err(format!("`{TOKENS}` is empty; expected the model's tokens"));
        }
        if u32::try_from(texts.len()).is_err() {
            let count = texts.len();
            return Err(format!("`{TOKENS}` has {count} items; expected at most 2^32 - 1"));
        }
        let kinds = read_kinds(keys, &texts)?;
        let ids = map_ids(&texts, &kinds)?;
        Ok(Self { texts, kinds, ids })
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Returns the vocabulary as a map from texts to tokens.
    pub(super) fn vocab(&self) -> Vocab {
        self.ids.iter().map(|(&text, &id)| (text.to_owned(), id)).collect()
    }

    /// Returns the tokens that are found in a text before it is split into pieces.
    pub(super) fn added(&self) -> impl Iterator<Item = AddedToken> {
        self.texts.iter().zip(&self.kinds).filter_map(|(&text, kind)| {
            let special = match kind {
                TokenKind::Unknown | TokenKind::Control => true,
                TokenKind::UserDefined => false,
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => return None,
            };
            Some(AddedToken::from(text, special).normalized(false))
        })
    }
}

fn read_kinds(keys: TokenizerKeys, texts: &[&str]) -> Result<Vec<TokenKind>, String> {
    let Some(numbers) = keys.integers(TOKEN_TYPE)? else {
        return Ok(texts.iter().map(|text| correct_kind(text, TokenKind::Normal)).collect());
    };
    if numbers.len() != texts.len() {
        return Err(format!(
            "`{TOKEN_TYPE}` has {} items; expected {}, as many as `{TOKENS}`",
            numbers.len(),
            texts.len()
        ));
    }
    let kind = |(place, (&number, &text)): (usize, (&i64, &&str))| {
        let kind = match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => {
                return Err(format!("`{TOKEN_TYPE}`: item {place} is {number}; expected 1 to 6"));
            }
        };
        Ok(correct_kind(text, kind))
    };
    numbers.iter().zip(texts).enumerate().map(kind).collect()
}

/// Corrects the kind of tokens that end a text: many files give tokens such as `<|im_end|>` a wrong
/// type.
fn correct_kind(text: &str, kind: TokenKind) -> TokenKind {
    if ends_a_text(text) { TokenKind::Control } else { kind }
}

/// Maps texts to tokens. If two tokens have the same text, one of them must be unused, and the
/// first one is mapped. Tokens without text are skipped; they fill the vocabulary.
fn map_ids<'m>(texts: &[&'m str], kinds: &[TokenKind]) -> Result<HashMap<&'m str, u32>, String> {
    let mut ids = HashMap::with_capacity(texts.len());
    for (id, (&text, kind)) in texts.iter().zip(kinds).enumerate() {
        if text.is_empty() {
            continue;
        }
        match ids.entry(text) {
            Entry::Vacant(vacant) => {
                vacant.insert(id as u32);
            }
            Entry::Occupied(first) => {
                let first = *first.get();
                if *kind != TokenKind::Unused && kinds[first as usize] != TokenKind::Unused {
                    return Err(format!(
                        "`{TOKENS}`: items {first} and {id} are both {}; expected different \
                         texts, except of unused tokens",
                        quoted(text)
                    ));
                }
            }
        }
    }
    Ok(ids)
}
