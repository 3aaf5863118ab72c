//! Names of tokens, and texts that show special tokens.

use super::Tokenizer;
use crate::Result;

impl Tokenizer {
    /// Returns the name of a token, such as `<bos>`; `None` if the tokenizer does not know it.
    pub fn token_name(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// Returns the tokens that the tokenizer puts before every text, such as `<bos>`.
    pub fn tokens_before_texts(&self) -> &[u32] {
        &self.before
    }

    /// Decodes tokens to text, with the names of special tokens.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint) if the tokenizer cannot decode them.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String> {
        self.inner.decode(tokens, false).map_err(|error| self.refuse(&error))
    }
}
