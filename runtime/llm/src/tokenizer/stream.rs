//! Decoder of tokens that arrive one by one.

use super::Tokenizer;
use crate::Result;

/// Decoder of tokens that arrive one by one. The concatenation of the texts equals that of
/// [`Tokenizer::decode`], except that invalid UTF-8 never changes text that was already returned:
/// each invalid sequence of bytes is one U+FFFD, as in [`String::from_utf8_lossy`].
#[allow(missing_debug_implementations)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// True after the first token with a text.
    begun: bool,
    /// Bytes of an incomplete character.
    incomplete: Vec<u8>,
}

impl<'t> TextStream<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, begun: false, incomplete: Vec::new() }
    }

    /// Returns the text that a token completes; it is empty while a character lacks bytes.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String> {
        let mut bytes = self.tokenizer.token_bytes(token)?;
        if !self.begun && !bytes.is_empty() {
            self.begun = true;
            bytes = self.tokenizer.bytes_at_beginning(token)?;
        }
        self.incomplete.extend(bytes);
        Ok(take_complete(&mut self.incomplete))
    }

    /// Discards the bytes of an incomplete character.
    pub(crate) fn discard(&mut self) {
        self.incomplete.clear();
    }

    /// Returns the rest of the text after the last token: U+FFFD if the text ends inside a
    /// character.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.incomplete).into_owned();
        self.incomplete.clear();
        rest
    }
}

/// Takes the text up to an incomplete character at the end of the bytes.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut begin = 0;
    loop {
        let (valid, error) = match std::str::from_utf8(&bytes[begin..]) {
            Ok(rest) => (rest.len(), None),
            Err(error) => (error.valid_up_to(), Some(error.error_len())),
        };
        text += &String::from_utf8_lossy(&bytes[begin..begin + valid]);
        begin += valid;
        // `Some(None)` is an incomplete character.
        let Some(Some(invalid)) = error else { break };
        text.push(char::REPLACEMENT_CHARACTER);
        begin += invalid;
    }
    bytes.drain(..begin);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn splits_do_not_change_the_text(
            parts in prop::collection::vec(prop_oneof![
                any::<String>().prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..4),
                prop::sample::select(vec![vec![0xE2], vec![0xE2, 0x82], vec![0xAC], vec![0xF0]]),
            ], 0..12),
        ) {
            let (mut text, mut bytes) = (String::new(), Vec::new());
            for part in &parts {
                bytes.extend(part);
                text += &take_complete(&mut bytes);
                prop_assert!(bytes.len() <= 3);
            }
            text += &String::from_utf8_lossy(&bytes);
            let whole = parts.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }
}
