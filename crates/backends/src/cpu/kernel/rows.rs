//! Rows of one KV head.

use std::sync::LazyLock;

use half::{bf16, f16};
use vattention_core::{
    Error, Result, Tokens,
    step::{BlockLayout, Blocks, RowScales, SCALE_BYTES, StoredRows},
};

use super::{LANES, LINE_BYTES};
use crate::cpu::simd::{CHUNK, Scalar, Simd, SimdElement};

/// Bytes of keys and values in a block on Intel's processors: the size of a small memory page, at
/// which blocks are read at the speed of memory. With 8 KiB, dense attention on a Xeon takes 1.5
/// times as long.
const INTEL_BLOCK_BYTES: usize = 4096;

/// Bytes of keys and values in a block on other processors, and in a strip that is multiplied for
/// several tiles: half of a first-level cache. On Zen 4, which stores 512 bits in two cycles,
/// blocks of 4 KiB take 1.2 times as long, and 1.5 times as long for gathered rows.
const BLOCK_BYTES: usize = 16384;

/// Largest number of rows in a block.
pub(crate) const BLOCK_ROWS: usize = 32;

/// Smallest number of rows in a block: shorter blocks would store sums too often.
const LEAST_BLOCK_ROWS: usize = 8;

/// Number of rows in a strip.
const STRIP_ROWS: usize = 64;

/// Returns true if this machine has an Intel processor.
pub(super) fn is_intel() -> bool {
    // The result is stored, because the instruction takes microseconds in virtual machines.
    static IS_INTEL: LazyLock<bool> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        return std::arch::x86_64::__cpuid(0).ebx.to_le_bytes() == *b"Genu";
        #[cfg(not(target_arch = "x86_64"))]
        false
    });
    *IS_INTEL
}

/// Tokens to read: a range, or a list in any order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenSpan<'a> {
    Range(usize, usize),
    List(&'a [u32]),
}

impl TokenSpan<'_> {
    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range(from, to) => to - from,
            Self::List(list) => list.len(),
        }
    }

    /// At most `len` of the tokens, from the position `first` on.
    pub(crate) fn part(&self, first: usize, len: usize) -> Self {
        let to = self.len().min(first + len);
        match *self {
            Self::Range(from, _) => Self::Range(from + first, from + to),
            Self::List(list) => Self::List(&list[first..to]),
        }
    }

    /// Token at a position.
    #[inline(always)]
    pub(super) fn token(&self, place: usize) -> usize {
        match self {
            Self::Range(from, _) => from + place,
            Self::List(list) => list[place] as usize,
        }
    }

    /// Largest token plus one.
    pub(crate) fn end(&self) -> usize {
        match self {
            Self::Range(from, to) => {
                assert!(from <= to, "a range ends before it begins");
                *to
            }
            Self::List(list) => list.iter().max().map_or(0, |&token| token as usize + 1),
        }
    }
}

/// Smallest number of rows in a block, whose logits for `heads` query heads fill whole lines.
const fn least_block_rows(heads: usize) -> usize {
    let rows = LANES / heads;
    if rows < LEAST_BLOCK_ROWS { LEAST_BLOCK_ROWS } else { rows }
}

/// Borrowed keys and values of one KV head, of one number type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvRows<'a, E> {
    keys: Vectors<'a, E>,
    values: Vectors<'a, E>,
}

/// One vector per token, in whole chunks. [`Vectors::new`] checks that `blocks` contain all rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors<'a, E> {
    blocks: Blocks<'a, E>,
    scales: RowScales<'a>,
    /// `per_block = 2^log2_per_block`, if it is a power of two.
    log2_per_block: Option<u32>,
    layout: BlockLayout,
    /// Number of chunks of [`CHUNK`] elements in a vector.
    chunks: usize,
}

/// Rows of any number type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyRows<'a> {
    F32(KvRows<'a, f32>),
    F16(KvRows<'a, f16>),
    Bf16(KvRows<'a, bf16>),
    Q8(KvRows<'a, i8>),
}

impl<'a> AnyRows<'a> {
    /// Creates rows of keys and values.
    ///
    /// # Errors
    /// The errors of [`KvRows::new`], and keys and values of different number types.
    ///
    /// # Panics
    /// If the numbers of keys and values differ.
    pub(crate) fn new(keys: Tokens<'a>, values: Tokens<'a>) -> Result<Self> {
        let ((keys, k), (values, v)) = (keys.stored(), values.stored());
        let unscaled = RowScales::Unscaled;
        Ok(match (keys, values) {
            (StoredRows::F32(keys), StoredRows::F32(values)) => {
                Self::F32(KvRows::new((keys, unscaled, k), (values, unscaled, v))?)
            }
            (StoredRows::F16(keys), StoredRows::F16(values)) => {
                Self::F16(KvRows::new((keys, unscaled, k), (values, unscaled, v))?)
            }
            (StoredRows::Bf16(keys), StoredRows::Bf16(values)) => {
                Self::Bf16(KvRows::new((keys, unscaled, k), (values, unscaled, v))?)
            }
            (StoredRows::Q8(keys, key_scales), StoredRows::Q8(values, value_scales)) => {
                Self::Q8(KvRows::new((keys, key_scales, k), (values, value_scales, v))?)
            }
            _ => return Err(Error::shape("values", "the number type of the keys", "another type")),
        })
    }
}

impl<'a, E: Copy> KvRows<'a, E> {
    /// Creates rows of keys and values.
    ///
    /// # Errors
    /// If vectors with their zero padding are not whole chunks.
    ///
    /// # Panics
    /// If the numbers of keys and values differ, or the blocks are shorter than the layouts
    /// require.
    fn new(
        keys: (Blocks<'a, E>, RowScales<'a>, BlockLayout),
        values: (Blocks<'a, E>, RowScales<'a>, BlockLayout),
    ) -> Result<Self> {
        let (keys, values) = (Vectors::new("keys", keys)?, Vectors::new("values", values)?);
        assert_eq!(keys.layout.len, values.layout.len, "a value for each key");
        Ok(Self { keys, values })
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.keys.layout.len
    }

    /// Keys of the tokens.
    pub(super) fn keys(&self) -> &Vectors<'a, E> {
        &self.keys
    }

    /// Values of the tokens.
    pub(super) fn values(&self) -> &Vectors<'a, E> {
        &self.values
    }

    /// Number of chunks of [`CHUNK`] elements in a key.
    pub(crate) fn key_chunks(&self) -> usize {
        self.keys.chunks
    }

    /// Number of chunks of [`CHUNK`] elements in a value.
    pub(crate) fn value_chunks(&self) -> usize {
        self.values.chunks
    }

    /// Bytes of a token's key and value, padding included, scales excluded.
    pub(crate) fn bytes(&self) -> usize {
        (self.key_chunks() + self.value_chunks()) * CHUNK * size_of::<E>()
    }

    /// Number of rows in a block that is known to the compiler, for vectors of `C` chunks (0: of
    /// any number) and tiles of `H` query heads. Blocks of short vectors have few rows, so that
    /// requests for memory come at equal intervals.
    #[inline(always)]
    pub(super) const fn known_block_rows<const H: usize, const C: usize>() -> Option<usize> {
        if C == 2 { Some(least_block_rows(H)) } else { None }
    }

    /// Number of rows in a block, for vectors of `C` chunks (0: of any number) and tiles of `H`
    /// query heads: a power of two, so large that the logits of a block fill whole lines.
    #[inline(always)]
    pub(crate) fn block_rows<S: Simd, const H: usize, const C: usize>(&self) -> usize {
        // Without AVX-512, arithmetic is slower than memory on all processors.
        let bytes = if S::WIDE && is_intel() { INTEL_BLOCK_BYTES } else { BLOCK_BYTES };
        match Self::known_block_rows::<H, C>() {
            Some(rows) => rows,
            None => self.rows_of(bytes).clamp(least_block_rows(H), BLOCK_ROWS),
        }
    }

    /// Number of rows in a strip: a power of two, and whole blocks. With several tiles, the rows
    /// stay in the first-level cache for the next tile.
    #[inline(always)]
    pub(crate) fn strip_rows(&self, several_tiles: bool) -> usize {
        if several_tiles { self.rows_of(BLOCK_BYTES).clamp(LANES, STRIP_ROWS) } else { STRIP_ROWS }
    }

    /// Largest power of two of rows that have at most `bytes` bytes.
    fn rows_of(&self, bytes: usize) -> usize {
        1 << (bytes / self.bytes()).max(1).ilog2()
    }

    /// Prefetches the key, the value and the scales of a token into the second-level cache.
    ///
    /// # Safety
    /// The token must be in range.
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(&self, token: usize, (key, value): (*const E, *const E))
    where
        E: SimdElement,
    {
        for (vector, chunks) in [(key, self.key_chunks()), (value, self.value_chunks())] {
            for chunk in 0..chunks {
                prefetch_far::<S, E>(vector.wrapping_add(chunk * CHUNK));
            }
        }
        if E::SCALED {
            self.prefetch_scales::<S>(token, (key, value));
        }
    }

    /// Prefetches the scales of a token with the given key and value.
    ///
    /// # Safety
    /// The token must be in range.
    #[inline(always)]
    pub(super) unsafe fn prefetch_scales<S: Simd>(
        &self,
        token: usize,
        (key, value): (*const E, *const E),
    ) {
        let key_scale: *const u8 = self.keys.scale(token, key).cast();
        let value_scale: *const u8 = self.values.scale(token, value).cast();
        S::prefetch_far(key_scale);
        if key_scale.addr() / LINE_BYTES != value_scale.addr() / LINE_BYTES {
            S::prefetch_far(value_scale);
        }
    }

    /// Copies the value of a token, with its padding, to a sample.
    ///
    /// # Panics
    /// If the token is out of range, or `sample` does not have the length of a value.
    pub(crate) fn copy_value(&self, token: usize, sample: &mut [E::Sample])
    where
        E: SimdElement,
    {
        assert!(token < self.len(), "token {token} of {}", self.len());
        assert_eq!(sample.len(), self.value_chunks() * CHUNK, "elements of a value");
        // SAFETY: the token is in range, `new` has checked that each row is in its block, and the
        // sample has the length of a value.
        unsafe {
            let value = self.values.find_run(token).0;
            let scale = self.values.scale(token, value).read_unaligned();
            for chunk in 0..self.value_chunks() {
                let to = sample.as_mut_ptr().add(chunk * CHUNK);
                E::copy_chunk::<Scalar>(value.add(chunk * CHUNK), scale, to);
            }
        }
    }
}

impl<'a, E: Copy> Vectors<'a, E> {
    fn new(
        name: &str,
        (blocks, scales, layout): (Blocks<'a, E>, RowScales<'a>, BlockLayout),
    ) -> Result<Self> {
        let BlockLayout { len, dim, stride, first, column, zeros, .. } = layout;
        let per_block = layout.per_block.get();
        let padded = dim.next_multiple_of(CHUNK);
        if dim == 0 || padded > dim + zeros {
            let expected =
                format!("a multiple of {CHUNK} elements, or padding with zeros to a multiple");
            return Err(Error::shape(name, expected, dim));
        }
        let (chunks, end) = (padded / CHUNK, first + len);
        let row_end = match scales {
            RowScales::InRow(place) => (column + padded).max(place + SCALE_BYTES),
            RowScales::Unscaled | RowScales::Slice(_) => column + padded,
        };
        let holds = |block: &[E], rows: usize| {
            rows == 0 || block.len() >= (rows - 1).saturating_mul(stride).saturating_add(row_end)
        };
        let rows_of = |i: usize| end.saturating_sub(i.saturating_mul(per_block)).min(per_block);
        let complete = match blocks {
            Blocks::One(block) => holds(block, end),
            Blocks::Many(blocks) => {
                let mut all = blocks.iter().enumerate();
                blocks.len() >= end.div_ceil(per_block)
                    && all.all(|(i, block)| holds(block, rows_of(i)))
            }
            Blocks::Paged { pool, table, stride } => {
                let mut all = table.iter().enumerate();
                table.len() >= end.div_ceil(per_block)
                    && all.all(|(i, &page)| {
                        let first = (page as usize).saturating_mul(stride);
                        rows_of(i) == 0
                            || pool.get(first..).is_some_and(|page| holds(page, rows_of(i)))
                    })
            }
        };
        assert!(complete, "{name} past the end of a block");
        if let RowScales::Slice(scales) = scales {
            assert!(scales.len() >= len, "a scale for each of the {name}");
        }
        let log2_per_block = per_block.is_power_of_two().then_some(per_block.ilog2());
        Ok(Self { blocks, scales, log2_per_block, layout, chunks })
    }

    /// Distance of successive vectors of a run, in elements.
    pub(super) fn stride(&self) -> usize {
        self.layout.stride
    }

    pub(super) fn scales(&self) -> RowScales<'a> {
        self.scales
    }

    /// Writes pointers to the vectors of the first `tokens` to `out`.
    ///
    /// # Safety
    /// The tokens must be in range, and `out` must not be longer.
    #[inline(never)]
    pub(super) unsafe fn find(&self, tokens: &[u32], out: &mut [*const E]) {
        let BlockLayout { first, per_block, .. } = self.layout;
        // Each kind of storage has its own loop, so that no loop tests the kind of storage.
        let pairs = out.iter_mut().zip(tokens);
        match (self.blocks, self.log2_per_block) {
            (Blocks::One(block), _) => {
                for (out, token) in pairs {
                    *out = self.in_block(block, first + *token as usize);
                }
            }
            (Blocks::Many(blocks), Some(log2)) => {
                for (out, token) in pairs {
                    let row = first + *token as usize;
                    let block = blocks.get_unchecked(row >> log2);
                    *out = self.in_block(block, row & ((1 << log2) - 1));
                }
            }
            (Blocks::Many(blocks), None) => {
                for (out, token) in pairs {
                    let row = first + *token as usize;
                    *out = self.in_block(blocks.get_unchecked(row / per_block), row % per_block);
                }
            }
            (Blocks::Paged { pool, table, stride }, log2) => {
                for (out, token) in pairs {
                    let row = first + *token as usize;
                    let (page, row) = match log2 {
                        Some(log2) => (row >> log2, row & ((1 << log2) - 1)),
                        None => (row / per_block, row % per_block),
                    };
                    let begin = *table.get_unchecked(page) as usize * stride;
                    *out = self.in_block(pool.get_unchecked(begin..), row);
                }
            }
        }
    }

    /// Writes pointers to the vectors of successive tokens from `token` on to `out`.
    ///
    /// # Safety
    /// The tokens must be in range.
    #[inline(always)]
    pub(super) unsafe fn find_range(&self, mut token: usize, mut out: &mut [*const E]) {
        while !out.is_empty() {
            let (begin, left) = self.find_run(token);
            let (here, rest) = out.split_at_mut(left.min(out.len()));
            for (i, pointer) in here.iter_mut().enumerate() {
                *pointer = begin.wrapping_add(i * self.layout.stride);
            }
            token += here.len();
            out = rest;
        }
    }

    /// Pointer to the vector of a token, and the number of successive tokens, this one included,
    /// whose vectors follow at a distance of `stride`.
    ///
    /// # Safety
    /// The token must be in range.
    #[inline(always)]
    pub(super) unsafe fn find_run(&self, token: usize) -> (*const E, usize) {
        let BlockLayout { first, per_block, .. } = self.layout;
        let row = first + token;
        let (block, place) = match self.log2_per_block {
            Some(log2) => (row >> log2, row & ((1 << log2) - 1)),
            None => (row / per_block, row % per_block),
        };
        let left = per_block.get() - place;
        match self.blocks {
            Blocks::One(block) => (self.in_block(block, row), usize::MAX),
            Blocks::Many(blocks) => (self.in_block(blocks.get_unchecked(block), place), left),
            Blocks::Paged { pool, table, stride } => {
                let begin = *table.get_unchecked(block) as usize * stride;
                (self.in_block(pool.get_unchecked(begin..), place), left)
            }
        }
    }

    /// Number of rows, a power of two and at most `most`, such that blocks of this length,
    /// counted from `token` on, are each in one run.
    pub(super) fn run_rows(&self, token: usize, most: usize) -> usize {
        let BlockLayout { first, per_block, .. } = self.layout;
        match self.blocks {
            Blocks::One(_) => most,
            Blocks::Many(_) | Blocks::Paged { .. } => {
                let bits = most | per_block.get() | (first + token);
                1 << bits.trailing_zeros()
            }
        }
    }

    /// Pointer to the scale of a token, whose vector is given; it need not be aligned.
    ///
    /// # Safety
    /// The token must be in range.
    #[inline(always)]
    unsafe fn scale(&self, token: usize, vector: *const E) -> *const f32 {
        match self.scales {
            RowScales::Unscaled => &1.0,
            RowScales::Slice(scales) => scales.get_unchecked(token),
            RowScales::InRow(place) => self.scale_in_row(place, vector),
        }
    }

    /// Pointer to the scale at a byte of the stored row of a vector.
    ///
    /// # Safety
    /// The vector must be one of these vectors, and the row must contain the scale.
    #[inline(always)]
    pub(super) unsafe fn scale_in_row(&self, place: usize, vector: *const E) -> *const f32 {
        let row = vector.cast::<u8>().sub(self.layout.column * size_of::<E>());
        row.add(place).cast()
    }

    /// Pointer to the vector of a row in a block.
    ///
    /// # Safety
    /// The block must contain the row.
    #[inline(always)]
    unsafe fn in_block(&self, block: &[E], row: usize) -> *const E {
        block.as_ptr().add(row * self.layout.stride + self.layout.column)
    }
}

/// Prefetches the cache lines of a chunk into the second-level cache.
#[inline(always)]
pub(super) unsafe fn prefetch_far<S: Simd, E: SimdElement>(chunk: *const E) {
    S::prefetch_far(chunk.cast());
    if size_of::<E>() * CHUNK > LINE_BYTES {
        S::prefetch_far(chunk.cast::<u8>().wrapping_add(LINE_BYTES));
    }
}
