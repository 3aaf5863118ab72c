//! Rows of one KV head that an engine stores.

use vattention_core::{Error, Result, Shape, Tokens};

use crate::cpu::CHUNK;
use crate::input::check_lengths;

/// Keys and values of one KV head, borrowed from the engine.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// Keys, `[tokens, head_dim]`.
    pub keys: Tokens<'a>,
    /// Values, `[tokens, value_dim]`.
    pub values: Tokens<'a>,
}

impl HeadRows<'_> {
    /// Number of which the dimensions of rows without padding are multiples.
    pub const DIM_MULTIPLE: usize = CHUNK;

    /// Rows of the first `tokens` tokens.
    pub(crate) fn first(&self, tokens: usize) -> Self {
        Self { keys: self.keys.range(0..tokens), values: self.values.range(0..tokens) }
    }

    /// Checks the dimensions of the rows, and that there is a value for each key.
    pub(crate) fn check(&self, shape: Shape) -> Result<()> {
        let Shape { head_dim, value_dim, .. } = shape;
        if self.keys.dim() != head_dim {
            return Err(Error::shape("head_dim of the keys", head_dim, self.keys.dim()));
        }
        if self.values.dim() != value_dim {
            return Err(Error::shape("value_dim of the values", value_dim, self.values.dim()));
        }
        check_lengths(self.keys.len(), self.values.len(), 0)?;
        self.keys.check_scales("keys")?;
        self.values.check_scales("values")
    }
}
