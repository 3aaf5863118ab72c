//! Rows that kernels process, and the pointers to their vectors.

use vattention_core::step::RowScales;

use super::rows::{KvRows, TokenSpan, Vectors, prefetch_far};
use super::{BLOCK_LINES, LANES, LINE_BYTES, SimdLine, flat};
use crate::cpu::simd::{CHUNK, Simd, SimdElement};

/// Distance from the multiplied row to the row that is prefetched into the second-level cache: a
/// multiple of the number of rows in a strip.
pub(super) const FAR: usize = 64;

/// Distance from the multiplied row to the row that is prefetched into the first-level cache.
pub(super) const NEAR: usize = 8;

/// Rows of a pass, which are found strip by strip.
pub(crate) trait RowSource<'a, E> {
    /// Pointers to the keys or values of a strip.
    type Pointers: Pointers<E>;

    /// Number of rows in a strip; the last one may have fewer.
    fn strip_rows(&self) -> usize;

    /// Prefetches the first rows; the loops prefetch later rows only.
    unsafe fn prefetch_first<S: Simd>(&self);

    /// Strip from the position `first` of the pass on.
    ///
    /// # Safety
    /// Strips must be requested in order, and are valid until the next one is requested or the
    /// source is moved.
    unsafe fn strip<S: Simd>(&mut self, first: usize) -> RowBlock<'a, E, Self::Pointers>;
}

/// Pointers to the vectors of a block.
pub(crate) trait Pointers<E>: Copy {
    /// True if the vectors may have any order in memory. In order, short vectors come from the
    /// second-level cache in time.
    const SCATTERED: bool;

    /// Vector of a row. Rows from the end of the pass to the end of the last whole block have
    /// vectors too.
    ///
    /// # Safety
    /// The row must be in the block, or in the last whole block.
    unsafe fn vector(self, row: usize) -> Vector<E>;

    /// Pointers to the vectors from row `first` on.
    ///
    /// # Safety
    /// See [`vector`](Self::vector).
    unsafe fn skip(self, first: usize) -> Self;

    /// Vectors of `R` rows from `first` on.
    ///
    /// # Safety
    /// See [`vector`](Self::vector).
    #[inline(always)]
    unsafe fn vectors<const R: usize>(self, first: usize) -> [Vector<E>; R] {
        let from = self.skip(first);
        std::array::from_fn(|row| from.vector(row))
    }
}

/// A vector, and the vectors to prefetch while it is multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Vector<E> {
    pub(crate) here: *const E,
    pub(super) near: *const E,
    pub(super) far: *const E,
}

impl<E: SimdElement> Vector<E> {
    /// Prefetches the cache lines of the chunk at `offset` in later rows; into the first-level
    /// cache only if `near` is true.
    #[inline(always)]
    pub(crate) unsafe fn prefetch<S: Simd>(self, offset: usize, near: bool) {
        // Several chunks of a small type are in one cache line.
        let bytes = size_of::<E>() * offset;
        if size_of::<E>() * CHUNK < LINE_BYTES && !bytes.is_multiple_of(LINE_BYTES) {
            return;
        }
        prefetch_far::<S, E>(self.far.wrapping_add(offset));
        if !near {
            return;
        }
        S::prefetch_near(self.near.wrapping_add(offset).cast());
        if size_of::<E>() * CHUNK > LINE_BYTES {
            S::prefetch_near(self.near.wrapping_add(offset).cast::<u8>().wrapping_add(LINE_BYTES));
        }
    }
}

/// Successive rows of a pass: a strip, whose rows are found together, or a block of it, whose rows
/// are multiplied together.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<'a, E, P> {
    pub(super) rows: &'a KvRows<'a, E>,
    pub(super) tokens: TokenSpan<'a>,
    pub(super) keys: P,
    pub(super) values: P,
    /// Position of the first row in the pass.
    pub(super) first: usize,
    pub(super) len: usize,
}

impl<E: SimdElement, P: Pointers<E>> RowBlock<'_, E, P> {
    /// Number of rows to multiply: if the number of rows in a block is known to the compiler, all
    /// of them. Rows past the end have weights of 0.
    #[inline(always)]
    pub(crate) fn multiplied_rows<const H: usize, const C: usize>(&self) -> usize {
        KvRows::<E>::known_block_rows::<H, C>().unwrap_or(self.len)
    }

    /// Returns true if vectors of `C` chunks (0: of any number) are also prefetched into the
    /// first-level cache.
    #[inline(always)]
    pub(crate) const fn prefetches_near<const C: usize>() -> bool {
        C == 0 || P::SCATTERED
    }

    /// Number of chunks of a value: `C`, or if it is 0, the rows' number.
    #[inline(always)]
    pub(crate) fn value_chunks<const C: usize>(&self) -> usize {
        if C > 0 { C } else { self.rows.value_chunks() }
    }

    /// Number of lines of the block's logits `[rows][H]`.
    #[inline(always)]
    pub(crate) fn logit_lines<const H: usize, const C: usize>(&self) -> usize {
        (self.multiplied_rows::<H, C>() * H).div_ceil(LANES)
    }

    /// At most `len` rows from row `first` on.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, first: usize, len: usize) -> Self {
        Self {
            rows: self.rows,
            tokens: self.tokens.part(first, len),
            keys: self.keys.skip(first),
            values: self.values.skip(first),
            first: self.first + first,
            len: len.min(self.len - first),
        }
    }

    /// Keys of `R` rows from `first` on.
    ///
    /// # Safety
    /// See [`Pointers::vector`].
    #[inline(always)]
    pub(crate) unsafe fn keys<const R: usize>(&self, first: usize) -> [Vector<E>; R] {
        self.keys.vectors(first)
    }

    /// Value of a row.
    ///
    /// # Safety
    /// See [`Pointers::vector`].
    #[inline(always)]
    pub(crate) unsafe fn value(&self, row: usize) -> Vector<E> {
        self.values.vector(row)
    }

    /// Scales of the keys of the block's rows, `[rows][H]`: each is repeated `H` times.
    #[inline(always)]
    pub(crate) unsafe fn key_scales<const H: usize>(&self) -> [SimdLine; BLOCK_LINES] {
        self.scales::<H>(self.rows.keys(), self.keys)
    }

    /// Scales of the values of the block's rows, `[rows][H]`: each is repeated `H` times.
    #[inline(always)]
    pub(crate) unsafe fn value_scales<const H: usize>(&self) -> [SimdLine; BLOCK_LINES] {
        self.scales::<H>(self.rows.values(), self.values)
    }

    #[inline(always)]
    unsafe fn scales<const H: usize>(
        &self,
        vectors: &Vectors<'_, E>,
        pointers: P,
    ) -> [SimdLine; BLOCK_LINES] {
        let mut lines = [SimdLine([0.0; LANES]); BLOCK_LINES];
        let rows = &mut flat(&mut lines).as_chunks_mut::<H>().0[..self.len];
        // Each kind of scale has its own loop.
        match vectors.scales() {
            RowScales::Unscaled => rows.as_flattened_mut().fill(1.0),
            RowScales::Slice(scales) => {
                for (row, repeated) in rows.iter_mut().enumerate() {
                    *repeated = [*scales.get_unchecked(self.tokens.token(row)); H];
                }
            }
            RowScales::InRow(place) => {
                for (row, repeated) in rows.iter_mut().enumerate() {
                    let vector = pointers.vector(row).here;
                    *repeated = [vectors.scale_in_row(place, vector).read_unaligned(); H];
                }
            }
        }
        lines
    }
}
