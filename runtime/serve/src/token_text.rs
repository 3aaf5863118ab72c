//! Texts of single tokens, for log-probabilities.

use serde::Serialize;
use vattention_llm::{TokenLogprob, Tokenizer};

/// Smallest log-probability in an answer, because JSON has no infinity. OpenAI's API uses the same
/// number.
const LEAST: f32 = -9999.0;

/// Text of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TokenText {
    /// Text; U+FFFD stands for bytes that are only a part of a character.
    #[serde(rename = "token")]
    pub(crate) text: String,
    bytes: Vec<u8>,
}

/// Token of an answer or a prompt with its log-probabilities.
#[derive(Clone, Debug)]
pub(crate) struct ScoredToken {
    pub(crate) token: TokenText,
    /// Log-probability; `None` for the first token of a prompt, which the model does not predict.
    pub(crate) logprob: Option<f32>,
    /// Most likely tokens, in descending order.
    pub(crate) top: Vec<(TokenText, f32)>,
}

impl TokenText {
    /// Returns the text of a token. Tokens without a text, such as `<eos>`, are shown by their
    /// names.
    fn new(tokenizer: &Tokenizer, token: u32) -> Self {
        let mut bytes = tokenizer.token_bytes(token).unwrap_or_default();
        if bytes.is_empty() {
            bytes = tokenizer.token_name(token).unwrap_or_default().into_bytes();
        }
        Self { text: String::from_utf8_lossy(&bytes).into_owned(), bytes }
    }

    /// Returns the number of characters that begin in the token.
    pub(crate) fn characters(&self) -> usize {
        self.bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count()
    }
}

impl ScoredToken {
    pub(crate) fn new(tokenizer: &Tokenizer, scored: &TokenLogprob) -> Self {
        let top = scored.top.iter();
        let text = |token| TokenText::new(tokenizer, token);
        Self {
            token: text(scored.token),
            logprob: Some(scored.logprob.max(LEAST)),
            top: top.map(|&(token, logprob)| (text(token), logprob.max(LEAST))).collect(),
        }
    }

    /// Returns the first token of a prompt, which has no log-probability.
    pub(crate) fn first(tokenizer: &Tokenizer, token: u32) -> Self {
        Self { token: TokenText::new(tokenizer, token), logprob: None, top: Vec::new() }
    }
}
