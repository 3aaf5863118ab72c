//! Borrowed view of a cache.

use std::ops::Range;

use half::{bf16, f16};
use vattention_core::{NewTokens, Tokens, step::SCALE_BYTES};

use super::layout::CacheRow;

/// All rows of a cache. The view owns the list of chunks that [`Tokens`] borrow.
#[derive(Debug)]
pub(crate) struct CacheView<'a> {
    pub(super) slices: Slices<'a>,
    pub(super) row: CacheRow,
    pub(super) log2_per_chunk: u32,
    pub(super) len: usize,
}

/// Used part of each chunk.
#[derive(Debug)]
pub(super) enum Slices<'a> {
    F32(Vec<&'a [f32]>),
    F16(Vec<&'a [f16]>),
    Bf16(Vec<&'a [bf16]>),
    Q8(Vec<&'a [i8]>),
}

impl CacheView<'_> {
    /// Whole rows, `[len, stride]`.
    fn rows(&self) -> Tokens<'_> {
        let per_chunk = 1 << self.log2_per_chunk;
        match &self.slices {
            Slices::F32(chunks) => Tokens::blocks(chunks, per_chunk, self.len, self.row.stride),
            Slices::F16(chunks) => Tokens::blocks(chunks, per_chunk, self.len, self.row.stride),
            Slices::Bf16(chunks) => Tokens::blocks(chunks, per_chunk, self.len, self.row.stride),
            Slices::Q8(chunks) => Tokens::blocks(chunks, per_chunk, self.len, self.row.stride),
        }
    }

    /// Returns the vectors of the rows with their scales, which are scale `i` of each row.
    fn scaled<'t>(&self, vectors: Tokens<'t>, i: usize) -> Tokens<'t> {
        match self.slices {
            Slices::Q8(_) => vectors.with_scales_in_rows(self.row.scale_offset + i * SCALE_BYTES),
            _ => vectors,
        }
    }

    /// All keys, `[len, head_dim]`, with their zero padding.
    pub(crate) fn keys(&self) -> Tokens<'_> {
        let CacheRow { head_dim, value_offset, .. } = self.row;
        let keys = self.rows().columns(0..head_dim).padded(value_offset - head_dim);
        self.scaled(keys, 0)
    }

    /// All values, `[len, value_dim]`, with their zero padding.
    pub(crate) fn values(&self) -> Tokens<'_> {
        let CacheRow { value_dim, value_offset, scale_offset, .. } = self.row;
        let end = value_offset + value_dim;
        self.scaled(self.rows().columns(value_offset..end).padded(scale_offset - end), 1)
    }

    /// Keys and values of a range of tokens, without token classes, which a cache does not store.
    pub(crate) fn range(&self, tokens: Range<usize>) -> NewTokens<'_> {
        let (keys, values) = (self.keys(), self.values());
        let first = tokens.start;
        NewTokens {
            first,
            keys: keys.range(tokens.clone()),
            values: values.range(tokens),
            classes: None,
        }
    }
}
