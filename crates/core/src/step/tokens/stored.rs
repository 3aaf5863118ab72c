//! Rows as they lie in somebody's memory.

use std::num::NonZeroUsize;

use half::{bf16, f16, slice::HalfFloatSliceExt};

/// Blocks of rows, of one number type.
#[derive(Clone, Copy, Debug)]
pub enum StoredRows<'a> {
    /// 4 bytes a number.
    F32(Blocks<'a, f32>),
    /// 2 bytes, 11 bits of precision.
    F16(Blocks<'a, f16>),
    /// 2 bytes, 8 bits of precision.
    Bf16(Blocks<'a, bf16>),
}

/// The memory that rows lie in.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'a, T> {
    /// All in one block.
    One(&'a [T]),
    /// As many rows in each block, but for the last.
    Many(&'a [&'a [T]]),
    /// Pages of one pool in the order of a block table, of equal numbers of rows except the last.
    Paged {
        /// All pages.
        pool: &'a [T],
        /// Number of each block's page in the pool.
        table: &'a [u32],
        /// Number of elements from page to page.
        stride: usize,
    },
}

/// Dimensions of the pages of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Number of rows in a page, at least 1.
    pub rows: usize,
    /// Number of elements from page to page of the pool, at least those of a page's rows.
    pub stride: usize,
}

/// Where rows lie in their blocks: row `t` is row `(first + t) mod per_block` of block `(first + t) / per_block`, and row
/// `r` of a block begins at its number `r · stride + column`.
#[derive(Clone, Copy, Debug)]
pub struct BlockLayout {
    /// Rows.
    pub len: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Elements from row to row.
    pub stride: usize,
    /// Stored rows before row 0.
    pub first: usize,
    /// Elements of a stored row before those seen.
    pub column: usize,
    /// Zeros behind a row that may be read with it.
    pub zeros: usize,
    /// Rows in a block; more than there can be if all are in one.
    pub per_block: NonZeroUsize,
}

/// A number type that a cache may store: `f32`, `f16` or `bf16`.
pub trait Element: Copy + sealed::Sealed {
    /// The same number, in operations that vectors have.
    #[doc(hidden)]
    fn wide(self) -> f32;
    /// Widens `from` into `into`, which is as long.
    #[doc(hidden)]
    fn widen(from: &[Self], into: &mut [f32]);
    /// Blocks of this type.
    #[doc(hidden)]
    fn rows(blocks: Blocks<'_, Self>) -> StoredRows<'_>;
}

mod sealed {
    use half::{bf16, f16};

    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f16 {}
    impl Sealed for bf16 {}
}

impl Element for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    fn widen(from: &[Self], into: &mut [f32]) {
        into.copy_from_slice(from);
    }
    fn rows(blocks: Blocks<'_, Self>) -> StoredRows<'_> {
        StoredRows::F32(blocks)
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
    fn rows(blocks: Blocks<'_, Self>) -> StoredRows<'_> {
        StoredRows::F16(blocks)
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
    fn rows(blocks: Blocks<'_, Self>) -> StoredRows<'_> {
        StoredRows::Bf16(blocks)
    }
}

impl BlockLayout {
    /// Of rows that begin with the first number of their blocks.
    pub fn new(len: usize, dim: usize, stride: usize, per_block: NonZeroUsize) -> Self {
        Self { len, dim, stride, first: 0, column: 0, zeros: 0, per_block }
    }

    /// What its block holds from a row's first number on, and how many rows begin there.
    #[inline(always)]
    pub(super) fn rest_of_block<'a, T>(
        &self,
        rows: Blocks<'a, T>,
        token: usize,
    ) -> (&'a [T], usize) {
        let token = self.first + token;
        let (block, row) = match rows {
            Blocks::One(data) => (data, token),
            Blocks::Many(blocks) => (blocks[token / self.per_block], token % self.per_block),
            Blocks::Paged { pool, table, stride } => {
                (&pool[table[token / self.per_block] as usize * stride..], token % self.per_block)
            }
        };
        (&block[row * self.stride + self.column..], self.per_block.get() - row)
    }

    #[inline(always)]
    pub(super) fn row<'a, T>(&self, rows: Blocks<'a, T>, token: usize) -> &'a [T] {
        &self.rest_of_block(rows, token).0[..self.dim]
    }
}
