//! Rows of one KV head, and blocks of them to go over.

use std::num::NonZeroUsize;

use half::{bf16, f16};
use vattention_core::{
    Error, Result, Tokens,
    step::{BlockLayout, Blocks, StoredRows},
};

use super::LANES;
use crate::cpu::simd::{CHUNK, Element, Simd};

/// Bytes of keys and values in a block.
const BLOCK_BYTES: usize = 16384;
/// The most rows in a block.
pub(crate) const BLOCK_ROWS: usize = 64;

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

    /// # Safety
    /// There must be more than `i`.
    #[inline(always)]
    unsafe fn token(&self, i: usize) -> usize {
        match self {
            Self::Range(from, _) => from + i,
            Self::List(list) => *list.get_unchecked(i) as usize,
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

    /// Values alone, `[len · stride]`, one after the other, for [`scores`](super::scores).
    ///
    /// # Panics
    /// If rows are not whole chunks, or not whole.
    pub(crate) fn of_values(values: &'a [E], stride: usize) -> Self {
        assert!(values.len().is_multiple_of(stride), "whole rows");
        let layout = BlockLayout::new(values.len() / stride, stride, stride, NonZeroUsize::MAX);
        let values = Vectors::new("values", (Blocks::One(values), layout)).expect("whole chunks");
        Self { keys: values, values }
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

    /// The value of a token, with its zeros.
    ///
    /// # Panics
    /// If there is no such token.
    pub(crate) fn value(&self, token: usize) -> &'a [E] {
        assert!(token < self.len(), "token {token} of {}", self.len());
        // SAFETY: it is one of the rows, each of which is in its block.
        unsafe { std::slice::from_raw_parts(self.values.at(token), self.value_chunks() * CHUNK) }
    }

    /// Rows in a block, whole tiles of them.
    fn block<const H: usize>(&self) -> usize {
        let rows = BLOCK_BYTES / self.bytes();
        rows.next_multiple_of(LANES / H).clamp(LANES / H, BLOCK_ROWS)
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

    /// # Safety
    /// The token must be one of the rows.
    #[inline(always)]
    unsafe fn at(&self, token: usize) -> *const E {
        let BlockLayout { first, stride, column, per_block, .. } = self.layout;
        let row = first + token;
        let (block, row) = match (self.blocks, self.log2_per_block) {
            (Blocks::One(block), _) => (block, row),
            (Blocks::Many(blocks), Some(log2)) => {
                (*blocks.get_unchecked(row >> log2), row & ((1 << log2) - 1))
            }
            (Blocks::Many(blocks), None) => {
                (*blocks.get_unchecked(row / per_block), row % per_block)
            }
            (Blocks::Paged { pool, table, stride }, log2) => {
                let (block, row) = match log2 {
                    Some(log2) => (row >> log2, row & ((1 << log2) - 1)),
                    None => (row / per_block.get(), row % per_block.get()),
                };
                let page = *table.get_unchecked(block) as usize;
                (pool.get_unchecked(page * stride..), row)
            }
        };
        block.as_ptr().add(row * stride + column)
    }
}

/// The rows of a block: pointers to their keys, the last repeated to fill a tile, and to their values.
pub(crate) struct Block<E> {
    pub(crate) keys: [*const E; BLOCK_ROWS],
    pub(crate) values: [*const E; BLOCK_ROWS],
    pub(crate) len: usize,
}

impl<E: Copy> Block<E> {
    /// The block from the pass's `first` row on.
    #[inline(always)]
    pub(crate) unsafe fn new<const H: usize>(
        rows: &Rows<'_, E>,
        tokens: &Span<'_>,
        first: usize,
    ) -> Self {
        let len = rows.block::<H>().min(tokens.len().saturating_sub(first));
        let (mut keys, mut values) =
            ([std::ptr::null(); BLOCK_ROWS], [std::ptr::null(); BLOCK_ROWS]);
        for i in 0..len {
            let token = tokens.token(first + i);
            keys[i] = rows.keys.at(token);
            values[i] = rows.values.at(token);
        }
        if len > 0 {
            let tiles = len.next_multiple_of(LANES / H);
            let last = keys[len - 1];
            keys[len..tiles].fill(last);
        }
        Self { keys, values, len }
    }
}

#[inline(always)]
pub(crate) unsafe fn prefetch_block<S: Simd, E: Element>(rows: &Rows<'_, E>, block: &Block<E>) {
    for row in 0..block.len {
        for chunk in 0..rows.key_chunks() {
            prefetch::<S, E>(block.keys[row].add(chunk * CHUNK));
        }
        for chunk in 0..rows.value_chunks() {
            prefetch::<S, E>(block.values[row].add(chunk * CHUNK));
        }
    }
}

/// Fetches the cache lines of a chunk.
#[inline(always)]
pub(crate) unsafe fn prefetch<S: Simd, E: Element>(at: *const E) {
    S::prefetch(at.cast());
    if size_of::<E>() * CHUNK > 64 {
        S::prefetch(at.cast::<u8>().add(64));
    }
}
