//! Measured shapes: numbers of sequences and of tokens.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::Serialize;

/// KV heads of a sequence.
pub(crate) const KV_HEADS: usize = 8;

/// Query heads of a KV head.
pub(crate) const GROUP: usize = 4;

/// Elements of a key, and of a value.
pub(crate) const DIM: usize = 128;

/// Limit on the tokens of all sequences, because lists of all KV heads are indexed with 32 bits.
const MOST_TOKENS: usize = 1 << 28;

/// Sequences of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct BatchShape {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
}

impl BatchShape {
    /// Number of KV heads of all sequences, each with separate rows and a separate list.
    pub(crate) fn lists(self) -> usize {
        self.batch * KV_HEADS
    }

    /// Number of query heads of all sequences.
    pub(crate) fn query_heads(self) -> usize {
        self.lists() * GROUP
    }
}

impl Display for BatchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.batch, self.tokens)
    }
}

impl FromStr for BatchShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected BATCHxTOKENS, such as 8x131072, got {text:?}");
        let (batch, tokens) = text.split_once('x').ok_or_else(expected)?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| expected());
        let shape = Self { batch: number(batch)?, tokens: number(tokens)? };
        let all = shape.batch.saturating_mul(shape.tokens);
        if shape.batch == 0 || shape.tokens < 20 || all > MOST_TOKENS {
            let limits = format!("at least 1 sequence of 20 tokens, {MOST_TOKENS} tokens in all");
            return Err(format!("expected {limits}, got {text:?}"));
        }
        Ok(shape)
    }
}
