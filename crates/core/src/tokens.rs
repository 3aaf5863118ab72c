//! Borrowed rows of a KV cache, in whatever precision and layout it keeps them.

use std::num::NonZeroUsize;
use std::ops::Range;

use half::{bf16, f16, slice::HalfFloatSliceExt};
use multiversion::multiversion;
use ndarray::Array2;

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

    /// The dot products of a range of rows with `query`, into `out` `[range.len()]`.
    pub fn dots(&self, range: Range<usize>, query: &[f32], out: &mut [f32]) {
        match self.rows {
            Rows::F32(rows) => dots(&self.layout, rows, range, query, out),
            Rows::F16(rows) => dots(&self.layout, rows, range, query, out),
            Rows::Bf16(rows) => dots(&self.layout, rows, range, query, out),
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

/// Numbers multiplied at a time.
const LANES: usize = 16;

/// The dot products of a range of rows, each the same as [`dot`]'s.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn dots<T: Element>(
    layout: &Layout,
    rows: Blocks<'_, T>,
    range: Range<usize>,
    query: &[f32],
    out: &mut [f32],
) {
    let mut done = 0;
    while done < range.len() {
        let (block, rows) = layout.rest_of_block(rows, range.start + done);
        let until = range.len().min(done.saturating_add(rows));
        for (row, out) in out[done..until].iter_mut().enumerate() {
            *out = dot(&block[row * layout.stride..][..layout.dim], query);
        }
        done = until;
    }
}

/// A dot product in [`LANES`] partial sums, added up in a fixed order.
#[inline(always)]
fn dot<T: Element>(row: &[T], query: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    let (query_chunks, query_rest) = query.as_chunks::<LANES>();
    for (chunk, q) in chunks.iter().zip(query_chunks) {
        for ((sum, x), q) in sums.iter_mut().zip(chunk).zip(q) {
            *sum += x.wide() * q;
        }
    }
    // Apart, so that the sums of whole chunks stay in registers.
    if !rest.is_empty() {
        for ((sum, x), q) in sums.iter_mut().zip(rest).zip(query_rest) {
            *sum += x.wide() * q;
        }
    }
    let eight: [f32; LANES / 2] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
    let four: [f32; LANES / 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `rows`, with `before` rows above, `left` numbers before each and as many after: all NaN.
    fn framed(rows: &[f32], dim: usize, before: usize, left: usize) -> Vec<f32> {
        let stride = dim + 2 * left;
        let mut all = vec![f32::NAN; (before + rows.len() / dim) * stride];
        for (i, x) in rows.iter().enumerate() {
            all[(before + i / dim) * stride + left + i % dim] = *x;
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Every precision and layout gives the same rows and dot products, exact on small integers.
        #[test]
        fn layouts_agree(
            len in 0usize..40,
            dim in 1usize..70,
            before in 0usize..9,
            left in 0usize..3,
            per_block in 1_usize..9,
            seed: u8,
        ) {
            let small = |i: usize| ((i * 7 + usize::from(seed)) % 5) as f32 - 2.0;
            let query: Vec<f32> = (0..dim).map(small).collect();
            let rows: Vec<f32> = (0..len * dim).map(|i| small(i + 3)).collect();
            let stride = dim + 2 * left;
            let wide = framed(&rows, dim, before, left);
            let half: Vec<f16> = rows.iter().map(|&x| f16::from_f32(x)).collect();
            let brain: Vec<bf16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
            let half_blocks: Vec<&[f16]> = half.chunks(per_block * dim).collect();
            let brain_blocks: Vec<&[bf16]> = brain.chunks(per_block * stride).collect();
            let (all, columns) = (before + len, left..left + dim);
            let views = [
                Tokens::new(&rows, len, dim),
                Tokens::strided(&wide[left.min(wide.len())..], all, dim, stride).range(before..all),
                Tokens::new(&brain, all, stride).range(before..all).columns(columns.clone()),
                Tokens::blocks(&half_blocks, per_block, len, dim),
                Tokens::blocks(&brain_blocks, per_block, all, stride).columns(columns).range(before..all),
            ];
            for tokens in views {
                prop_assert_eq!((tokens.len(), tokens.dim()), (len, dim));
                let array = tokens.to_array(0..len);
                prop_assert!(array.iter().eq(&rows));
                let mut dots = vec![0.0; len];
                tokens.dots(0..len, &query, &mut dots);
                for (i, &got) in dots.iter().enumerate() {
                    let want: f32 = array.row(i).iter().zip(&query).map(|(x, q)| x * q).sum();
                    prop_assert_eq!(got, want);
                }
            }
        }
    }

    #[test]
    fn parts_of_parts_add_up() {
        let numbers: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let tokens = Tokens::new(&numbers, 4, 5)
            .range(1..4)
            .columns(1..5)
            .range(1..3)
            .range(1..2)
            .columns(2..3);
        assert_eq!((tokens.len(), tokens.to_array(0..1).as_slice()), (1, Some(&[18.0][..])));
        assert!(tokens.range(1..1).is_empty());
    }

    #[test]
    fn every_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            if half.is_finite() {
                assert_eq!(half.wide().to_bits(), half.to_f32().to_bits());
            }
            if brain.is_finite() {
                assert_eq!(brain.wide().to_bits(), brain.to_f32().to_bits());
            }
        }
    }

    /// One by one or together, in any precision, the sums are the same to the last bit.
    #[test]
    fn dots_are_what_dot_gives() {
        let real = |i: usize| ((i * 7919 % 1000) as f32 / 300.0 - 1.6).powi(3);
        for dim in [1, 7, 16, 40, 128] {
            let query: Vec<f32> = (0..dim).map(real).collect();
            let rows: Vec<f32> = (dim..dim * 51).map(real).collect();
            let half: Vec<f16> = rows.iter().map(|&x| f16::from_f32(x)).collect();
            let brain: Vec<bf16> = rows.iter().map(|&x| bf16::from_f32(x)).collect();
            let all = [
                Tokens::new(&rows, 50, dim),
                Tokens::new(&half, 50, dim),
                Tokens::new(&brain, 50, dim),
            ];
            for tokens in all {
                let mut together = vec![0.0; 40];
                tokens.dots(10..50, &query, &mut together);
                assert!(together.iter().enumerate().all(|(i, &x)| x == tokens.dot(10 + i, &query)));
            }
        }
    }

    #[test]
    #[should_panic(expected = "3 rows need")]
    fn a_slice_too_short_is_refused() {
        Tokens::new(&[0.0_f32; 8], 3, 3);
    }

    #[test]
    #[should_panic(expected = "block 1 holds less than 1 rows")]
    fn a_block_too_short_is_refused() {
        Tokens::blocks(&[&[0.0_f32; 6], &[0.0; 2]], 2, 3, 3);
    }

    #[test]
    #[should_panic(expected = "5 rows need more than 2 blocks")]
    fn too_few_blocks_are_refused() {
        Tokens::blocks(&[&[0.0_f32; 6], &[0.0; 6]], 2, 5, 3);
    }

    #[test]
    #[should_panic(expected = "a block has rows")]
    fn blocks_without_rows_are_refused() {
        Tokens::blocks(&[&[0.0_f32; 9]], 0, 3, 3);
    }

    /// Around every border of a page, rows are those of the tokens read one by one.
    #[test]
    fn pages_may_have_any_number_of_rows() {
        const DIM: usize = 5;
        for per_page in [1, 3, 16, 48, 100] {
            for len in [1, per_page - 1, per_page, per_page + 1, 2 * per_page, 3 * per_page + 2] {
                let numbers: Vec<f32> = (0..len * DIM).map(|i| (i % 1009) as f32).collect();
                let pages: Vec<&[f32]> = numbers.chunks(per_page * DIM).collect();
                let tokens = Tokens::blocks(&pages, per_page, len, DIM);
                let query = [1.0, -2.0, 3.0, -4.0, 5.0];
                let row = |token: usize| &numbers[token * DIM..][..DIM];
                for first in [0, per_page - 1, per_page, per_page + 1].map(|first| first.min(len)) {
                    let mut dots = vec![0.0; len - first];
                    tokens.dots(first..len, &query, &mut dots);
                    let part = tokens.range(first..len);
                    for (i, &got) in dots.iter().enumerate() {
                        let mut copied = [0.0; DIM];
                        part.copy_row(i, &mut copied);
                        assert_eq!(copied, row(first + i), "{first} + {i} of {len} by {per_page}");
                        assert_eq!(part.dot(i, &query), got);
                        assert_eq!(got, dot(row(first + i), &query));
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "3..6 of 5 numbers")]
    fn columns_beyond_a_row_are_refused() {
        let _ = Tokens::new(&[0.0_f32; 10], 2, 5).columns(3..6);
    }

    #[test]
    #[should_panic(expected = "1..3 of 2 rows")]
    fn rows_beyond_the_last_are_refused() {
        let _ = Tokens::new(&[0.0_f32; 10], 2, 5).range(1..3);
    }
}
