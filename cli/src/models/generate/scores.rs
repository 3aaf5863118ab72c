//! Log-probabilities of an answer's tokens, with their texts.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_llm::{TokenLogprob, Tokenizer};

use crate::fail::Failure;

/// Log-probability of a token of the answer, and the most likely tokens at its position.
#[derive(Serialize, JsonSchema)]
pub(in crate::models) struct TokenScore {
    /// Number of the token in the vocabulary.
    pub(super) token: u32,
    /// Text of the token; bytes that are only a part of a character become U+FFFD.
    pub(super) text: String,
    /// Natural logarithm of the model's probability of the token, before all steps of sampling.
    pub(super) logprob: f32,
    /// Most likely tokens, in descending order.
    pub(super) top: Vec<AlternativeScore>,
}

/// Log-probability of one of the most likely tokens.
#[derive(Serialize, JsonSchema)]
pub(super) struct AlternativeScore {
    /// Number of the token in the vocabulary.
    pub(super) token: u32,
    /// Text of the token.
    pub(super) text: String,
    /// Natural logarithm of the model's probability of the token.
    pub(super) logprob: f32,
}

impl TokenScore {
    pub(super) fn new(score: &TokenLogprob, tokenizer: &Tokenizer) -> Result<Self, Failure> {
        let alternative = |&(token, logprob): &(u32, f32)| {
            Ok(AlternativeScore { token, text: tokenizer.token_text(token)?, logprob })
        };
        Ok(Self {
            token: score.token,
            text: tokenizer.token_text(score.token)?,
            logprob: score.logprob,
            top: score.top.iter().map(alternative).collect::<Result<_, Failure>>()?,
        })
    }
}
