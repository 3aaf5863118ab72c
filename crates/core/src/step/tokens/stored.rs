//! Memory and layout of borrowed rows.

use std::num::NonZeroUsize;

use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::q8::SCALE_BYTES;

/// Memory of rows, by number type.
#[derive(Clone, Copy, Debug)]
pub enum StoredRows<'a> {
    /// 4 bytes per number.
    F32(Blocks<'a, f32>),
    /// 2 bytes per number, 11 bits of precision.
    F16(Blocks<'a, f16>),
    /// 2 bytes per number, 8 bits of precision.
    Bf16(Blocks<'a, bf16>),
    /// 1 byte per number, and a scale per row.
    Q8(Blocks<'a, i8>, RowScales<'a>),
}

/// Scales of rows of 8-bit integers.
#[derive(Clone, Copy, Debug)]
pub enum RowScales<'a> {
    /// There are no scales: elements are the integers.
    Unscaled,
    /// A scale per row.
    Slice(&'a [f32]),
    /// The scale of a row is an f32 of the machine's byte order at this byte of the stored row.
    InRow(usize),
}

impl RowScales<'_> {
    /// Scale of a row.
    #[inline(always)]
    pub(super) fn scale(self, layout: &BlockLayout, rows: Blocks<'_, i8>, token: usize) -> f32 {
        match self {
            Self::Unscaled => 1.0,
            Self::Slice(scales) => scales[token],
            Self::InRow(place) => {
                let row = BlockLayout { column: 0, ..*layout }.rest_of_block(rows, token).0;
                let bytes: [i8; SCALE_BYTES] = std::array::from_fn(|i| row[place + i]);
                f32::from_ne_bytes(bytes.map(i8::cast_unsigned))
            }
        }
    }
}

/// Memory of rows, by its division into blocks.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'a, T> {
    /// All rows are in one block.
    One(&'a [T]),
    /// The blocks are separate slices with equal numbers of rows; the last may have fewer.
    Many(&'a [&'a [T]]),
    /// The blocks are pages of a pool, in the order of a block table. They have equal numbers of
    /// rows; the last may have fewer.
    Paged {
        /// Elements of all pages.
        pool: &'a [T],
        /// Index of each block's page in the pool.
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
    /// Number of elements from page to page of the pool, at least the number of elements of a page.
    pub stride: usize,
    /// Number of elements from row to row of a page, at least the number of elements of a row.
    pub row_stride: usize,
}

/// Layout of rows in their blocks: row `t` is row `(first + t) mod per_block` of block
/// `(first + t) / per_block`, and row `r` of a block begins at its element `r · stride + column`.
#[derive(Clone, Copy, Debug)]
pub struct BlockLayout {
    /// Number of rows.
    pub len: usize,
    /// Number of elements of a row.
    pub dim: usize,
    /// Number of elements from row to row.
    pub stride: usize,
    /// Number of stored rows before row 0.
    pub first: usize,
    /// Number of elements of a stored row before the elements of this view.
    pub column: usize,
    /// Number of zeros after a row that may be read along with it.
    pub zeros: usize,
    /// Number of rows in a block; `NonZeroUsize::MAX` if all rows are in one block.
    pub per_block: NonZeroUsize,
}

/// A number type that a cache may store: `f32`, `f16`, `bf16`, or `i8` with a scale per row.
pub trait Element: Copy + sealed::Sealed {
    /// Converts to f32, by operations that vector units have.
    #[doc(hidden)]
    fn wide(self) -> f32;
    /// Converts `from` to f32, into `into`, which has the same length.
    #[doc(hidden)]
    fn widen(from: &[Self], into: &mut [f32]);
    /// Wraps blocks of this number type.
    #[doc(hidden)]
    fn rows(blocks: Blocks<'_, Self>) -> StoredRows<'_>;
}

mod sealed {
    use half::{bf16, f16};

    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f16 {}
    impl Sealed for bf16 {}
    impl Sealed for i8 {}
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
    /// Shifts the bits into place. The exponent is then too small by 112, the difference of the
    /// biases, also for subnormal numbers. Infinity and NaN are never stored.
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

impl Element for i8 {
    /// Returns the integer, without the scale of its row.
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }
    fn widen(from: &[Self], into: &mut [f32]) {
        for (from, into) in from.iter().zip(into) {
            *into = from.wide();
        }
    }
    fn rows(blocks: Blocks<'_, Self>) -> StoredRows<'_> {
        StoredRows::Q8(blocks, RowScales::Unscaled)
    }
}

impl BlockLayout {
    /// Creates the layout of rows that begin with the first element of their blocks.
    pub fn new(len: usize, dim: usize, stride: usize, per_block: NonZeroUsize) -> Self {
        Self { len, dim, stride, first: 0, column: 0, zeros: 0, per_block }
    }

    /// Elements of a row's block from the row on, and the number of rows in that part.
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

    /// Elements of one row.
    #[inline(always)]
    pub(super) fn row<'a, T>(&self, rows: Blocks<'a, T>, token: usize) -> &'a [T] {
        &self.rest_of_block(rows, token).0[..self.dim]
    }
}
