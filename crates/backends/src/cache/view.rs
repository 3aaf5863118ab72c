//! A cache, borrowed to be read.

use std::ops::Range;

use half::{bf16, f16};
use vattention_core::{Element, NewTokens, Tokens};

use super::layout::RowLayout;

/// All rows of a cache. It owns the list of their chunks, for others to borrow.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(super) slices: Slices<'a>,
    pub(super) row: RowLayout,
    pub(super) log2_per_chunk: u32,
    pub(super) len: usize,
}

/// The used part of each chunk.
#[derive(Debug)]
pub(super) enum Slices<'a> {
    F32(Vec<&'a [f32]>),
    F16(Vec<&'a [f16]>),
    Bf16(Vec<&'a [bf16]>),
}

/// The rows themselves, for kernels that know how they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowsView<'a> {
    F32(Chunks<'a, f32>),
    F16(Chunks<'a, f16>),
    Bf16(Chunks<'a, bf16>),
}

/// Rows in chunks: row `t` begins at number `(t mod per_chunk) · stride` of chunk `t / per_chunk`.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "a chunk is a chunk")]
pub(crate) struct Chunks<'a, T> {
    /// Whole rows, 64-byte aligned; all chunks but the last have `per_chunk` of them.
    pub(crate) chunks: &'a [&'a [T]],
    /// `per_chunk = 2^log2_per_chunk`.
    pub(crate) log2_per_chunk: u32,
    /// Numbers from row to row, a multiple of 32.
    pub(crate) stride: usize,
    /// Where a row's value begins, a multiple of 32. Behind key and value are zeros, up to there
    /// and up to the next row.
    pub(crate) value_offset: usize,
    /// Rows in all.
    pub(crate) len: usize,
}

impl View<'_> {
    /// The rows, as they lie.
    pub(crate) fn rows(&self) -> RowsView<'_> {
        match &self.slices {
            Slices::F32(chunks) => RowsView::F32(self.chunks(chunks)),
            Slices::F16(chunks) => RowsView::F16(self.chunks(chunks)),
            Slices::Bf16(chunks) => RowsView::Bf16(self.chunks(chunks)),
        }
    }

    fn chunks<'a, T>(&self, chunks: &'a [&'a [T]]) -> Chunks<'a, T> {
        let RowLayout { stride, value_offset, .. } = self.row;
        Chunks { chunks, log2_per_chunk: self.log2_per_chunk, stride, value_offset, len: self.len }
    }

    /// All keys, `[len, head_dim]`.
    pub(crate) fn keys(&self) -> Tokens<'_> {
        self.rows().tokens().0.columns(0..self.row.head_dim)
    }

    /// All values, `[len, value_dim]`.
    pub(crate) fn values(&self) -> Tokens<'_> {
        let (rows, offset) = self.rows().tokens();
        rows.columns(offset..offset + self.row.value_dim)
    }

    /// Some of the tokens.
    pub(crate) fn range(&self, tokens: Range<usize>) -> NewTokens<'_> {
        let (keys, values) = (self.keys(), self.values());
        let first = tokens.start;
        NewTokens { first, keys: keys.range(tokens.clone()), values: values.range(tokens) }
    }
}

impl<'a> RowsView<'a> {
    /// Whole rows, `[len, stride]`, and where a value begins in one.
    fn tokens(self) -> (Tokens<'a>, usize) {
        match self {
            Self::F32(rows) => (rows.tokens(), rows.value_offset),
            Self::F16(rows) => (rows.tokens(), rows.value_offset),
            Self::Bf16(rows) => (rows.tokens(), rows.value_offset),
        }
    }
}

impl<'a, T: Element> Chunks<'a, T> {
    fn tokens(self) -> Tokens<'a> {
        Tokens::blocks(self.chunks, 1 << self.log2_per_chunk, self.len, self.stride)
    }
}
