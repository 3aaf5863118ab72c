//! Borrowed rows of a KV cache, in whatever precision and layout it keeps them.

mod products;

use std::num::NonZeroUsize;
use std::ops::Range;

use half::{bf16, f16, slice::HalfFloatSliceExt};
use ndarray::Array2;

use products::{dot, dots, dots_of};

/// The largest magnitude of a stored number or a scaled query: products of two sum over ten
/// thousand dimensions, and over a group, without leaving f32.
pub const MAX_MAGNITUDE: f32 = 1e16;

/// Keys or values, `[len, dim]`, borrowed as they are stored.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    rows: Rows<'a>,
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    len: usize,
    dim: usize,
    /// Numbers from row to row.
    stride: usize,
    /// Stored rows before token 0.
    first: usize,
    /// Numbers of a stored row before those seen.
    column: usize,
    /// Rows in a block.
    per_block: NonZeroUsize,
}

#[derive(Clone, Copy, Debug)]
enum Rows<'a> {
    F32(Blocks<'a, f32>),
    F16(Blocks<'a, f16>),
    Bf16(Blocks<'a, bf16>),
}

#[derive(Clone, Copy, Debug)]
enum Blocks<'a, T> {
    One(&'a [T]),
    Many(&'a [&'a [T]]),
}

/// A number type that a cache may store: `f32`, `f16` or `bf16`.
pub trait Element: Copy + sealed::Sealed {
    /// The same number, in operations that vectors have.
    #[doc(hidden)]
    fn wide(self) -> f32;
    /// Widens `from` into `into`, which is as long.
    #[doc(hidden)]
    fn widen(from: &[Self], into: &mut [f32]);
    #[doc(hidden)]
    fn rows<'a>(one: Option<&'a [Self]>, many: &'a [&'a [Self]]) -> sealed::AnyRows<'a>;
}

mod sealed {
    use half::{bf16, f16};

    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f16 {}
    impl Sealed for bf16 {}

    /// Keeps the enum of layouts out of the public trait.
    #[derive(Debug)]
    pub struct AnyRows<'a>(pub(super) super::Rows<'a>);
}

fn blocks<'a, T>(one: Option<&'a [T]>, many: &'a [&'a [T]]) -> Blocks<'a, T> {
    one.map_or(Blocks::Many(many), Blocks::One)
}

impl Element for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    fn widen(from: &[Self], into: &mut [f32]) {
        into.copy_from_slice(from);
    }
    fn rows<'a>(one: Option<&'a [Self]>, many: &'a [&'a [Self]]) -> sealed::AnyRows<'a> {
        sealed::AnyRows(Rows::F32(blocks(one, many)))
    }
}

impl Element for f16 {
    /// Shifted into place, the exponent is too small by the difference of the biases, subnormal
    /// or not: 112. Infinity and NaN are not stored.
    #[inline(always)]
    fn wide(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
    }
    fn widen(from: &[Self], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }
    fn rows<'a>(one: Option<&'a [Self]>, many: &'a [&'a [Self]]) -> sealed::AnyRows<'a> {
        sealed::AnyRows(Rows::F16(blocks(one, many)))
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    fn widen(from: &[Self], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }
    fn rows<'a>(one: Option<&'a [Self]>, many: &'a [&'a [Self]]) -> sealed::AnyRows<'a> {
        sealed::AnyRows(Rows::Bf16(blocks(one, many)))
    }
}

impl<'a> Tokens<'a> {
    /// `len` rows of `dim` numbers in one slice, `stride ≥ dim` numbers from row to row.
    ///
    /// # Panics
    /// If the slice is too short for that, or `stride < dim`.
    pub fn strided<T: Element>(data: &'a [T], len: usize, dim: usize, stride: usize) -> Self {
        assert!(stride >= dim, "stride {stride} is less than dim {dim}");
        let needed = if len == 0 { 0 } else { (len - 1) * stride + dim };
        assert!(data.len() >= needed, "{len} rows need {needed} numbers, got {}", data.len());
        Self {
            rows: T::rows(Some(data), &[]).0,
            layout: Layout::new(len, dim, stride, NonZeroUsize::MAX),
        }
    }

    /// `len` rows of `dim` numbers, one after the other.
    ///
    /// # Panics
    /// If the slice holds less than `len · dim` numbers.
    pub fn new<T: Element>(data: &'a [T], len: usize, dim: usize) -> Self {
        Self::strided(data, len, dim, dim)
    }

    /// `len` rows of `dim` numbers in blocks of `per_block` rows, such as an engine's pages; the last
    /// may be shorter. Rows with something between them are [columns](Self::columns) of wider ones.
    ///
    /// # Panics
    /// If the blocks hold less than that, or `per_block` is 0.
    pub fn blocks<T: Element>(
        blocks: &'a [&'a [T]],
        per_block: usize,
        len: usize,
        dim: usize,
    ) -> Self {
        let per_block = NonZeroUsize::new(per_block).expect("a block has rows");
        assert!(
            blocks.len() >= len.div_ceil(per_block.get()),
            "{len} rows need more than {} blocks",
            blocks.len()
        );
        for (i, block) in blocks.iter().take(len.div_ceil(per_block.get())).enumerate() {
            let rows = per_block.get().min(len - i * per_block.get());
            assert!(block.len() >= rows * dim, "block {i} holds less than {rows} rows");
        }
        let layout = Layout::new(len, dim, dim, per_block);
        Self { rows: T::rows(None, blocks).0, layout }
    }

    /// Some numbers of each row: `[len, range.len()]`.
    ///
    /// # Panics
    /// If the range goes beyond a row.
    #[must_use]
    pub fn columns(mut self, range: Range<usize>) -> Self {
        let dim = self.layout.dim;
        assert!(range.start <= range.end && range.end <= dim, "{range:?} of {dim} numbers");
        self.layout.column += range.start;
        self.layout.dim = range.len();
        self
    }

    /// Some of the rows: `[range.len(), dim]`.
    ///
    /// # Panics
    /// If the range goes beyond them.
    #[must_use]
    pub fn range(mut self, range: Range<usize>) -> Self {
        let len = self.layout.len;
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} rows");
        self.layout.first += range.start;
        self.layout.len = range.len();
        self
    }

    /// Rows held.
    pub fn len(&self) -> usize {
        self.layout.len
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.layout.len == 0
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.layout.dim
    }

    /// The dot product of row `token` with `query` `[dim]`, in f32.
    pub fn dot(&self, token: usize, query: &[f32]) -> f32 {
        match self.rows {
            Rows::F32(rows) => dot(self.layout.row(rows, token), query),
            Rows::F16(rows) => dot(self.layout.row(rows, token), query),
            Rows::Bf16(rows) => dot(self.layout.row(rows, token), query),
        }
    }

    /// The dot products of a range of rows with queries `[queries · dim]`, into `out` `[queries, range.len()]`. Each row is
    /// fetched once for every four queries.
    ///
    /// # Panics
    /// If rows have no element, queries are not as long as them, or `out` is not as large.
    pub fn dots(&self, range: Range<usize>, queries: &[f32], out: &mut [f32]) {
        match self.rows {
            Rows::F32(rows) => dots(&self.layout, rows, &range, queries, out),
            Rows::F16(rows) => dots(&self.layout, rows, &range, queries, out),
            Rows::Bf16(rows) => dots(&self.layout, rows, &range, queries, out),
        }
    }

    /// The dot products of some rows with `query` `[dim]`, into `out` `[tokens]`.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not as long.
    pub fn dots_of(&self, tokens: &[usize], query: &[f32], out: &mut [f32]) {
        match self.rows {
            Rows::F32(rows) => dots_of(&self.layout, rows, tokens, query, out),
            Rows::F16(rows) => dots_of(&self.layout, rows, tokens, query, out),
            Rows::Bf16(rows) => dots_of(&self.layout, rows, tokens, query, out),
        }
    }

    /// Copies row `token` into `out` `[dim]`.
    pub fn copy_row(&self, token: usize, out: &mut [f32]) {
        match self.rows {
            Rows::F32(rows) => f32::widen(self.layout.row(rows, token), out),
            Rows::F16(rows) => f16::widen(self.layout.row(rows, token), out),
            Rows::Bf16(rows) => bf16::widen(self.layout.row(rows, token), out),
        }
    }

    /// A range of rows as an array `[range.len(), dim]`.
    pub fn to_array(&self, range: Range<usize>) -> Array2<f32> {
        self.gather(range)
    }

    /// Some rows as an array `[tokens, dim]`, in the order given.
    pub fn gather(&self, tokens: impl ExactSizeIterator<Item = usize>) -> Array2<f32> {
        let dim = self.layout.dim;
        let mut data = vec![0.0; tokens.len() * dim];
        let rows = tokens.len();
        for (token, out) in tokens.zip(data.chunks_exact_mut(dim)) {
            self.copy_row(token, out);
        }
        Array2::from_shape_vec((rows, dim), data).expect("rows · dim numbers were made")
    }
}

impl Layout {
    fn new(len: usize, dim: usize, stride: usize, per_block: NonZeroUsize) -> Self {
        Self { len, dim, stride, first: 0, column: 0, per_block }
    }

    /// What its block holds from a row's first number on, and how many rows begin there.
    #[inline(always)]
    fn rest_of_block<'a, T>(&self, rows: Blocks<'a, T>, token: usize) -> (&'a [T], usize) {
        let token = self.first + token;
        let (block, row) = match rows {
            Blocks::One(data) => (data, token),
            Blocks::Many(blocks) => (blocks[token / self.per_block], token % self.per_block),
        };
        (&block[row * self.stride + self.column..], self.per_block.get() - row)
    }

    #[inline(always)]
    fn row<'a, T>(&self, rows: Blocks<'a, T>, token: usize) -> &'a [T] {
        &self.rest_of_block(rows, token).0[..self.dim]
    }
}

#[cfg(test)]
mod tests;
