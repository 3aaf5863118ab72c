//! Rows of one KV head, and blocks of rows that kernels process.

use std::sync::LazyLock;

use half::{bf16, f16};
use vattention_core::{
    Error, Result, Tokens,
    step::{BlockLayout, Blocks, RowScales, SCALE_BYTES, StoredRows},
};

use super::{BLOCK_LINES, LANES, SimdLine, flat};
use crate::cpu::simd::{CHUNK, Scalar, Simd, SimdElement};

/// Distance from the multiplied row to the row that is prefetched into the second-level cache.
const FAR: usize = 64;

/// Distance from the multiplied row to the row that is prefetched into the first-level cache.
const NEAR: usize = 4;

/// Bytes of keys and values in a block on Intel's processors: the size of a small memory page, at
/// which blocks are read at the speed of memory. With 8 KiB, dense attention on a Xeon takes 1.5
/// times as long.
const INTEL_BLOCK_BYTES: usize = 4096;

/// Bytes of keys and values in a block on other processors: half of the first-level cache. On Zen
/// 4, which stores 512 bits in two cycles, blocks of 4 KiB take 1.2 times as long, and 1.5 times as
/// long for gathered rows.
const BLOCK_BYTES: usize = 16384;

/// Largest number of rows in a block.
pub(crate) const BLOCK_ROWS: usize = 32;

/// Smallest number of rows in a block: shorter blocks would store sums too often.
const LEAST_BLOCK_ROWS: usize = 8;

/// Number of rows in a window. `FAR` and the largest block divide it, so that the pointers of a
/// block are contiguous.
const RING: usize = 128;

const LINE_BYTES: usize = 64;

/// Returns true if this machine has an Intel processor.
fn is_intel() -> bool {
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
    fn token(&self, place: usize) -> usize {
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

/// Borrowed keys and values of one KV head, of one number type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvRows<'a, E> {
    keys: Vectors<'a, E>,
    values: Vectors<'a, E>,
}

/// One vector per token, in whole chunks. [`Vectors::new`] checks that `blocks` contain all rows.
#[derive(Clone, Copy, Debug)]
struct Vectors<'a, E> {
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

    /// Number of rows in a block, for tiles of `H` query heads: a power of two, so large that the
    /// logits of a block fill whole lines.
    pub(crate) fn block_rows<S: Simd, const H: usize>(&self) -> usize {
        // Without AVX-512, arithmetic is slower than memory on all processors.
        let bytes = if S::WIDE && is_intel() { INTEL_BLOCK_BYTES } else { BLOCK_BYTES };
        let rows = 1 << (bytes / self.bytes()).max(1).ilog2();
        rows.clamp(LEAST_BLOCK_ROWS.max(LANES / H), BLOCK_ROWS)
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
        let mut value = [std::ptr::null()];
        // SAFETY: the token is in range, `new` has checked that each row is in its block, and the
        // sample has the length of a value.
        unsafe {
            self.values.find_range(token, &mut value);
            let scale = self.values.scale(token, value[0]).read_unaligned();
            for chunk in 0..self.value_chunks() {
                let to = sample.as_mut_ptr().add(chunk * CHUNK);
                E::copy_chunk::<Scalar>(value[0].add(chunk * CHUNK), scale, to);
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

    /// Writes pointers to the vectors of the first `tokens` to `out`.
    ///
    /// # Safety
    /// The tokens must be in range, and `out` must not be longer.
    #[inline(never)]
    unsafe fn find(&self, tokens: &[u32], out: &mut [*const E]) {
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
    unsafe fn find_range(&self, token: usize, mut out: &mut [*const E]) {
        let BlockLayout { first, per_block, stride, .. } = self.layout;
        let mut row = first + token;
        while !out.is_empty() {
            let (block, place) = match self.log2_per_block {
                Some(log2) => (row >> log2, row & ((1 << log2) - 1)),
                None => (row / per_block, row % per_block),
            };
            let (begin, left) = match self.blocks {
                Blocks::One(block) => (self.in_block(block, row), out.len()),
                Blocks::Many(blocks) => {
                    let left = per_block.get() - place;
                    (self.in_block(blocks.get_unchecked(block), place), left)
                }
                Blocks::Paged { pool, table, stride } => {
                    let begin = *table.get_unchecked(block) as usize * stride;
                    let left = per_block.get() - place;
                    (self.in_block(pool.get_unchecked(begin..), place), left)
                }
            };
            let (here, rest) = out.split_at_mut(left.min(out.len()));
            for (i, pointer) in here.iter_mut().enumerate() {
                *pointer = begin.wrapping_add(i * stride);
            }
            row += here.len();
            out = rest;
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
    unsafe fn scale_in_row(&self, place: usize, vector: *const E) -> *const f32 {
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

/// Pointers to the vectors of a window, a ring. The first pointers are repeated at the end, so that
/// a block and the [`NEAR`] rows after it are contiguous.
type RowPointers<E> = [*const E; RING + NEAR];

/// Pointers to keys and values of a pass, from the block that is multiplied to the rows that are
/// prefetched meanwhile. The last row of the pass is repeated past its end.
pub(crate) struct RowWindow<'a, E> {
    rows: &'a KvRows<'a, E>,
    tokens: TokenSpan<'a>,
    keys: RowPointers<E>,
    values: RowPointers<E>,
}

impl<'a, E: SimdElement> RowWindow<'a, E> {
    /// Creates a window that begins with the first row of the pass.
    ///
    /// # Safety
    /// There must be at least one token, and all tokens must be in `rows`.
    #[inline(always)]
    pub(crate) unsafe fn new(rows: &'a KvRows<'a, E>, tokens: TokenSpan<'a>) -> Self {
        let nothing = [std::ptr::null(); RING + NEAR];
        let mut window = Self { rows, tokens, keys: nothing, values: nothing };
        window.find(0, FAR);
        window
    }

    /// Finds `count` rows of the pass from `first` on: one or more whole blocks.
    #[inline(always)]
    unsafe fn find(&mut self, first: usize, count: usize) {
        let KvRows { keys, values } = self.rows;
        let places = first % RING..first % RING + count;
        let left = self.tokens.len().saturating_sub(first).min(count);
        let last = self.tokens.token(self.tokens.len() - 1);
        let columns = [(keys, &mut self.keys), (values, &mut self.values)];
        for (vectors, out) in columns {
            let (rows, past_the_end) = out[places.clone()].split_at_mut(left);
            match self.tokens {
                TokenSpan::Range(from, _) => vectors.find_range(from + first, rows),
                TokenSpan::List(list) => vectors.find(&list[list.len().min(first)..], rows),
            }
            if let Some((row, others)) = past_the_end.split_first_mut() {
                vectors.find_range(last, std::slice::from_mut(row));
                others.fill(*row);
            }
        }
        if first.is_multiple_of(RING) {
            self.keys.copy_within(..NEAR, RING);
            self.values.copy_within(..NEAR, RING);
        }
    }

    /// Prefetches the first rows; the loops prefetch later rows only.
    #[inline(always)]
    pub(crate) unsafe fn prefetch_first<S: Simd>(&self) {
        for row in 0..FAR.min(self.tokens.len()) {
            for chunk in 0..self.rows.key_chunks() {
                prefetch_far::<S, E>(self.keys[row].wrapping_add(chunk * CHUNK));
            }
            for chunk in 0..self.rows.value_chunks() {
                prefetch_far::<S, E>(self.values[row].wrapping_add(chunk * CHUNK));
            }
        }
        self.prefetch_scales::<S>(0, FAR);
    }

    /// Prefetches the scales of rows of the pass; the loops over vectors do not.
    #[inline(always)]
    unsafe fn prefetch_scales<S: Simd>(&self, first: usize, count: usize) {
        if !E::SCALED {
            return;
        }
        for place in first..(first + count).min(self.tokens.len()) {
            let token = self.tokens.token(place);
            let KvRows { keys, values } = self.rows;
            let key_scale: *const u8 = keys.scale(token, self.keys[place % RING]).cast();
            let value_scale: *const u8 = values.scale(token, self.values[place % RING]).cast();
            S::prefetch_far(key_scale);
            if key_scale.addr() / LINE_BYTES != value_scale.addr() / LINE_BYTES {
                S::prefetch_far(value_scale);
            }
        }
    }

    /// Block of at most `len` rows from `first` on. Blocks must be requested in order.
    #[inline(always)]
    pub(crate) unsafe fn block<S: Simd>(
        &mut self,
        first: usize,
        len: usize,
    ) -> RowBlock<'_, 'a, E> {
        self.find(first + FAR, len);
        self.prefetch_scales::<S>(first + FAR, len);
        RowBlock { window: self, first, len: len.min(self.tokens.len() - first) }
    }
}

/// Rows that are multiplied together.
#[derive(Clone, Copy)]
pub(crate) struct RowBlock<'w, 'a, E> {
    window: &'w RowWindow<'a, E>,
    /// Position of the first row in the pass.
    pub(crate) first: usize,
    pub(crate) len: usize,
}

/// A vector, and the vectors to prefetch while it is multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Vector<E> {
    pub(crate) here: *const E,
    near: *const E,
    far: *const E,
}

impl<E: SimdElement> Vector<E> {
    /// Prefetches the cache lines of the chunk at `offset` in later rows.
    #[inline(always)]
    pub(crate) unsafe fn prefetch<S: Simd>(self, offset: usize) {
        // Several chunks of a small type are in one cache line.
        let bytes = size_of::<E>() * offset;
        if size_of::<E>() * CHUNK < LINE_BYTES && !bytes.is_multiple_of(LINE_BYTES) {
            return;
        }
        prefetch_far::<S, E>(self.far.wrapping_add(offset));
        S::prefetch_near(self.near.wrapping_add(offset).cast());
        if size_of::<E>() * CHUNK > LINE_BYTES {
            S::prefetch_near(self.near.wrapping_add(offset).cast::<u8>().wrapping_add(LINE_BYTES));
        }
    }
}

impl<'a, E: SimdElement> RowBlock<'_, 'a, E> {
    pub(crate) fn rows(&self) -> &'a KvRows<'a, E> {
        self.window.rows
    }

    /// Number of rows in the whole pass.
    pub(crate) fn pass_len(&self) -> usize {
        self.window.tokens.len()
    }

    /// Key of a row; past the end of the pass, the key of its last row.
    ///
    /// # Safety
    /// The row must be below [`KvRows::block_rows`].
    #[inline(always)]
    pub(crate) unsafe fn key(&self, row: usize) -> Vector<E> {
        self.vector(&self.window.keys, row)
    }

    /// Value of a row, like [`key`](Self::key).
    ///
    /// # Safety
    /// See [`key`](Self::key).
    #[inline(always)]
    pub(crate) unsafe fn value(&self, row: usize) -> Vector<E> {
        self.vector(&self.window.values, row)
    }

    /// Scales of the keys of the block's rows, `[rows][H]`: each is repeated `H` times.
    #[inline(always)]
    pub(crate) unsafe fn key_scales<const H: usize>(&self) -> [SimdLine; BLOCK_LINES] {
        self.scales::<H>(&self.window.rows.keys, &self.window.keys)
    }

    /// Scales of the values of the block's rows, `[rows][H]`: each is repeated `H` times.
    #[inline(always)]
    pub(crate) unsafe fn value_scales<const H: usize>(&self) -> [SimdLine; BLOCK_LINES] {
        self.scales::<H>(&self.window.rows.values, &self.window.values)
    }

    #[inline(always)]
    unsafe fn scales<const H: usize>(
        &self,
        vectors: &Vectors<'_, E>,
        pointers: &RowPointers<E>,
    ) -> [SimdLine; BLOCK_LINES] {
        let mut lines = [SimdLine([0.0; LANES]); BLOCK_LINES];
        let rows = flat(&mut lines).as_chunks_mut::<H>().0;
        // Pointers of a block are contiguous. Each kind of scale has its own loop.
        let pointers = &pointers[self.first % RING..][..self.len];
        match vectors.scales {
            RowScales::Unscaled => rows.as_flattened_mut().fill(1.0),
            RowScales::Slice(scales) => {
                for (row, repeated) in rows[..self.len].iter_mut().enumerate() {
                    let token = self.window.tokens.token(self.first + row);
                    *repeated = [*scales.get_unchecked(token); H];
                }
            }
            RowScales::InRow(place) => {
                for (vector, repeated) in pointers.iter().zip(rows) {
                    *repeated = [vectors.scale_in_row(place, *vector).read_unaligned(); H];
                }
            }
        }
        lines
    }

    #[inline(always)]
    unsafe fn vector(&self, vectors: &RowPointers<E>, row: usize) -> Vector<E> {
        // Rows of a block are contiguous in the ring, and so are those that are `FAR` ahead.
        let (here, far) = (self.first % RING + row, (self.first + FAR) % RING + row);
        Vector {
            here: *vectors.get_unchecked(here),
            near: *vectors.get_unchecked(here + NEAR),
            far: *vectors.get_unchecked(far),
        }
    }
}

/// Prefetches the cache lines of a chunk into the second-level cache.
#[inline(always)]
unsafe fn prefetch_far<S: Simd, E: SimdElement>(chunk: *const E) {
    S::prefetch_far(chunk.cast());
    if size_of::<E>() * CHUNK > LINE_BYTES {
        S::prefetch_far(chunk.cast::<u8>().wrapping_add(LINE_BYTES));
    }
}
