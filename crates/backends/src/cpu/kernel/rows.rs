//! Rows of one KV head, and blocks of them to go over.

use std::sync::LazyLock;

use half::{bf16, f16};
use vattention_core::{
    Error, Result, Tokens,
    step::{BlockLayout, Blocks, StoredRows},
};

use super::LANES;
use crate::cpu::simd::{CHUNK, Element, Simd};

/// Distance from the row that is multiplied to the one that is requested for the second-level
/// cache, in rows.
const FAR: usize = 64;

/// Distance to the row that is requested for the first-level cache.
const NEAR: usize = 4;

/// Bytes of keys and values in a block that are read at the speed of memory on Intel's processors: a
/// small page. Of 8 KiB, dense attention on a Xeon takes half as long again.
const INTEL_BLOCK_BYTES: usize = 4096;

/// Bytes of keys and values in a block, otherwise: half of the first-level cache. Blocks of 4 KiB
/// take a fifth longer on Zen 4, which stores 512 bits in two cycles, and half as long again where
/// rows are gathered.
const BLOCK_BYTES: usize = 16384;

/// Most rows in a block.
pub(crate) const BLOCK_ROWS: usize = 32;

/// Fewest rows in a block: a shorter one would store sums too often.
const LEAST_BLOCK_ROWS: usize = 8;

/// Rows of a window: at least `FAR` and the largest block, which both divide it, so that those of a
/// block lie together.
const RING: usize = 128;

const LINE_BYTES: usize = 64;

/// Returns whether Intel made this machine's processor.
fn is_intel() -> bool {
    // Virtual machines take microseconds to answer.
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
pub(crate) enum Span<'a> {
    Range(usize, usize),
    List(&'a [u32]),
}

impl Span<'_> {
    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range(from, to) => to - from,
            Self::List(list) => list.len(),
        }
    }

    /// At most `len` of them, from the `first` on.
    pub(crate) fn part(&self, first: usize, len: usize) -> Self {
        let to = self.len().min(first + len);
        match *self {
            Self::Range(from, _) => Self::Range(from + first, from + to),
            Self::List(list) => Self::List(&list[first..to]),
        }
    }

    /// One more than the largest.
    pub(crate) fn end(&self) -> usize {
        match self {
            Self::Range(from, to) => {
                assert!(from <= to, "a range backwards");
                *to
            }
            Self::List(list) => list.iter().max().map_or(0, |&token| token as usize + 1),
        }
    }
}

/// Keys and values of one KV head, of one number type, where they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a, E> {
    keys: Vectors<'a, E>,
    values: Vectors<'a, E>,
}

/// A vector of each token, in whole chunks. What is in `blocks` was checked: every row is there.
#[derive(Clone, Copy, Debug)]
struct Vectors<'a, E> {
    blocks: Blocks<'a, E>,
    /// `per_block = 2^log2_per_block`, if it is a power of two.
    log2_per_block: Option<u32>,
    layout: BlockLayout,
    /// Chunks of [`CHUNK`] elements in a vector.
    chunks: usize,
}

/// Rows of any number type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyRows<'a> {
    F32(Rows<'a, f32>),
    F16(Rows<'a, f16>),
    Bf16(Rows<'a, bf16>),
}

impl<'a> AnyRows<'a> {
    /// Of as many keys as values.
    ///
    /// # Errors
    /// As [`Rows::new`], or if keys and values are of different types.
    ///
    /// # Panics
    /// If there are not as many.
    pub(crate) fn new(keys: Tokens<'a>, values: Tokens<'a>) -> Result<Self> {
        let ((keys, k), (values, v)) = (keys.stored(), values.stored());
        Ok(match (keys, values) {
            (StoredRows::F32(keys), StoredRows::F32(values)) => {
                Self::F32(Rows::new((keys, k), (values, v))?)
            }
            (StoredRows::F16(keys), StoredRows::F16(values)) => {
                Self::F16(Rows::new((keys, k), (values, v))?)
            }
            (StoredRows::Bf16(keys), StoredRows::Bf16(values)) => {
                Self::Bf16(Rows::new((keys, k), (values, v))?)
            }
            _ => return Err(Error::shape("values", "stored as the keys are", "another type")),
        })
    }
}

impl<'a, E: Copy> Rows<'a, E> {
    /// Of as many keys as values.
    ///
    /// # Errors
    /// If vectors are not whole chunks long, with the zeros behind them.
    ///
    /// # Panics
    /// If the blocks do not hold what the layouts say.
    fn new(
        keys: (Blocks<'a, E>, BlockLayout),
        values: (Blocks<'a, E>, BlockLayout),
    ) -> Result<Self> {
        let (keys, values) = (Vectors::new("keys", keys)?, Vectors::new("values", values)?);
        assert_eq!(keys.layout.len, values.layout.len, "a value for each key");
        Ok(Self { keys, values })
    }

    /// Tokens.
    pub(crate) fn len(&self) -> usize {
        self.keys.layout.len
    }

    /// Chunks of [`CHUNK`] elements in a key.
    pub(crate) fn key_chunks(&self) -> usize {
        self.keys.chunks
    }

    /// Chunks of [`CHUNK`] elements in a value.
    pub(crate) fn value_chunks(&self) -> usize {
        self.values.chunks
    }

    /// Bytes that are read of a token.
    pub(crate) fn bytes(&self) -> usize {
        (self.key_chunks() + self.value_chunks()) * CHUNK * size_of::<E>()
    }

    /// Rows in a block, for tiles of `H` query heads: a power of two, and whole lines of logits.
    pub(crate) fn block_rows<S: Simd, const H: usize>(&self) -> usize {
        // Without AVX-512, arithmetic takes longer than memory anywhere.
        let bytes = if S::WIDE && is_intel() { INTEL_BLOCK_BYTES } else { BLOCK_BYTES };
        let rows = 1 << (bytes / self.bytes()).max(1).ilog2();
        rows.clamp(LEAST_BLOCK_ROWS.max(LANES / H), BLOCK_ROWS)
    }

    /// The value of a token, with its zeros.
    ///
    /// # Panics
    /// If there is no such token.
    pub(crate) fn value(&self, token: usize) -> &'a [E] {
        assert!(token < self.len(), "token {token} of {}", self.len());
        let mut value = [std::ptr::null()];
        // SAFETY: it is one of the rows, each of which is in its block.
        unsafe {
            self.values.find(&[token], &mut value);
            std::slice::from_raw_parts(value[0], self.value_chunks() * CHUNK)
        }
    }
}

impl<'a, E: Copy> Vectors<'a, E> {
    fn new(what: &str, (blocks, layout): (Blocks<'a, E>, BlockLayout)) -> Result<Self> {
        let BlockLayout { len, dim, stride, first, column, zeros, .. } = layout;
        let per_block = layout.per_block.get();
        let padded = dim.next_multiple_of(CHUNK);
        if dim == 0 || padded > dim + zeros {
            let expected =
                format!("a multiple of {CHUNK} elements, or zeros up to one behind them");
            return Err(Error::shape(what, expected, dim));
        }
        let (chunks, end) = (padded / CHUNK, first + len);
        let holds = |block: &[E], rows: usize| {
            rows == 0
                || block.len() >= (rows - 1).saturating_mul(stride).saturating_add(column + padded)
        };
        let rows_of = |i: usize| end.saturating_sub(i.saturating_mul(per_block)).min(per_block);
        let there = match blocks {
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
        assert!(there, "{what} past the end of a block");
        let log2_per_block = per_block.is_power_of_two().then_some(per_block.ilog2());
        Ok(Self { blocks, log2_per_block, layout, chunks })
    }

    /// Finds the vectors of some rows, `out.len()` of them.
    ///
    /// # Safety
    /// The tokens must be rows, and there must be one for each pointer.
    #[inline(never)]
    unsafe fn find(&self, tokens: &[usize], out: &mut [*const E]) {
        let BlockLayout { first, per_block, .. } = self.layout;
        // One loop for each way of storing rows.
        let found = out.iter_mut().zip(tokens);
        match (self.blocks, self.log2_per_block) {
            (Blocks::One(block), _) => {
                for (out, token) in found {
                    *out = self.in_block(block, first + token);
                }
            }
            (Blocks::Many(blocks), Some(log2)) => {
                for (out, token) in found {
                    let row = first + token;
                    let block = blocks.get_unchecked(row >> log2);
                    *out = self.in_block(block, row & ((1 << log2) - 1));
                }
            }
            (Blocks::Many(blocks), None) => {
                for (out, token) in found {
                    let row = first + token;
                    *out = self.in_block(blocks.get_unchecked(row / per_block), row % per_block);
                }
            }
            (Blocks::Paged { pool, table, stride }, log2) => {
                for (out, token) in found {
                    let row = first + token;
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

    /// # Safety
    /// The block must have that row.
    #[inline(always)]
    unsafe fn in_block(&self, block: &[E], row: usize) -> *const E {
        block.as_ptr().add(row * self.layout.stride + self.layout.column)
    }
}

/// Pointers to keys and values of a pass, from the block that is multiplied to the rows that are
/// fetched meanwhile. Past the pass's last row, that row is repeated.
pub(crate) struct RowWindow<'a, E> {
    rows: &'a Rows<'a, E>,
    tokens: Span<'a>,
    keys: [*const E; RING],
    values: [*const E; RING],
}

impl<'a, E: Element> RowWindow<'a, E> {
    /// Window that begins with the pass's first row.
    ///
    /// # Safety
    /// There must be a token, and all tokens must be in `rows`.
    #[inline(always)]
    pub(crate) unsafe fn new(rows: &'a Rows<'a, E>, tokens: Span<'a>) -> Self {
        let mut window =
            Self { rows, tokens, keys: [std::ptr::null(); RING], values: [std::ptr::null(); RING] };
        window.find(0, FAR);
        window
    }

    /// Finds some rows of the pass: whole blocks.
    #[inline(always)]
    unsafe fn find(&mut self, first: usize, count: usize) {
        let mut tokens = [0; FAR];
        let last = self.tokens.len() - 1;
        match self.tokens {
            Span::Range(from, _) => {
                for (i, token) in tokens[..count].iter_mut().enumerate() {
                    *token = from + last.min(first + i);
                }
            }
            Span::List(list) => {
                for (i, token) in tokens[..count].iter_mut().enumerate() {
                    *token = *list.get_unchecked(last.min(first + i)) as usize;
                }
            }
        }
        let places = first % RING..first % RING + count;
        self.rows.keys.find(&tokens[..count], &mut self.keys[places.clone()]);
        self.rows.values.find(&tokens[..count], &mut self.values[places]);
    }

    /// Requests the first rows, which no loop does.
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
    }

    /// Block of `len` rows from `first` on, which must be the row after the last block.
    #[inline(always)]
    pub(crate) unsafe fn block(&mut self, first: usize, len: usize) -> Block<'_, 'a, E> {
        self.find(first + FAR, len);
        Block { window: self, first, len: len.min(self.tokens.len() - first) }
    }
}

/// Rows that are multiplied together.
#[derive(Clone, Copy)]
pub(crate) struct Block<'w, 'a, E> {
    window: &'w RowWindow<'a, E>,
    /// Place of the first row in the pass.
    pub(crate) first: usize,
    pub(crate) len: usize,
}

/// A vector, and those to request while it is multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Vector<E> {
    pub(crate) here: *const E,
    near: *const E,
    far: *const E,
}

impl<E: Element> Vector<E> {
    /// Requests cache lines of the rows ahead: those that hold a chunk.
    #[inline(always)]
    pub(crate) unsafe fn prefetch<S: Simd>(self, offset: usize) {
        prefetch_far::<S, E>(self.far.wrapping_add(offset));
        S::prefetch_near(self.near.wrapping_add(offset).cast());
        if size_of::<E>() * CHUNK > LINE_BYTES {
            S::prefetch_near(self.near.wrapping_add(offset).cast::<u8>().wrapping_add(LINE_BYTES));
        }
    }
}

impl<'a, E: Element> Block<'_, 'a, E> {
    pub(crate) fn rows(&self) -> &'a Rows<'a, E> {
        self.window.rows
    }

    /// Rows of the whole pass.
    pub(crate) fn pass_len(&self) -> usize {
        self.window.tokens.len()
    }

    /// Key of a row; that of the last row of the pass past it.
    #[inline(always)]
    pub(crate) fn key(&self, row: usize) -> Vector<E> {
        self.vector(&self.window.keys, row)
    }

    #[inline(always)]
    pub(crate) fn value(&self, row: usize) -> Vector<E> {
        self.vector(&self.window.values, row)
    }

    #[inline(always)]
    fn vector(&self, vectors: &[*const E; RING], row: usize) -> Vector<E> {
        let pointer = |row: usize| vectors[(self.first + row) % RING];
        Vector { here: pointer(row), near: pointer(row + NEAR), far: pointer(row + FAR) }
    }
}

/// Requests the cache lines of a chunk for the second-level cache.
#[inline(always)]
unsafe fn prefetch_far<S: Simd, E: Element>(at: *const E) {
    S::prefetch_far(at.cast());
    if size_of::<E>() * CHUNK > LINE_BYTES {
        S::prefetch_far(at.cast::<u8>().wrapping_add(LINE_BYTES));
    }
}
