//! Rows of one KV head, and blocks of them to go over.

use super::LANES;
use crate::cpu::simd::{CHUNK, Element, Simd};

/// Bytes of keys and values in a block.
const BLOCK_BYTES: usize = 8192;
/// The most rows in a block.
pub(crate) const BLOCK_ROWS: usize = 64;

/// Where rows of one KV head are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a, E> {
    /// Chunks of `1 << log2_per_chunk` rows.
    pub(crate) chunks: &'a [&'a [E]],
    pub(crate) log2_per_chunk: u32,
    /// Numbers from row to row.
    pub(crate) stride: usize,
    /// Numbers from a key to its value.
    pub(crate) value_offset: usize,
    /// Chunks of [`CHUNK`] numbers in a key, and in a value.
    pub(crate) key_chunks: usize,
    pub(crate) value_chunks: usize,
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

    /// One more than the largest.
    pub(crate) fn end(&self) -> usize {
        match self {
            Self::Range(_, to) => *to,
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

impl<E> Rows<'_, E> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        let rows = |chunk: &[E]| chunk.len() / self.stride;
        let full = self.chunks.len().saturating_sub(1) << self.log2_per_chunk;
        full + self.chunks.last().map_or(0, |last| rows(last))
    }

    /// # Safety
    /// The token must be in a chunk.
    #[inline(always)]
    unsafe fn key(&self, token: usize) -> *const E {
        let chunk = self.chunks.get_unchecked(token >> self.log2_per_chunk);
        chunk.as_ptr().add((token & ((1 << self.log2_per_chunk) - 1)) * self.stride)
    }

    /// Rows in a block, whole tiles of them.
    fn block<const H: usize>(&self) -> usize {
        let rows = BLOCK_BYTES / (self.stride * size_of::<E>());
        rows.next_multiple_of(LANES / H).clamp(LANES / H, BLOCK_ROWS)
    }
}

/// The rows of a block: pointers to their keys, the last repeated to fill a tile.
pub(crate) struct Block<E> {
    pub(crate) keys: [*const E; BLOCK_ROWS],
    pub(crate) len: usize,
}

impl<E> Block<E> {
    /// The block from the pass's `first` row on.
    #[inline(always)]
    pub(crate) unsafe fn new<const H: usize>(
        rows: &Rows<'_, E>,
        tokens: &Span<'_>,
        first: usize,
    ) -> Self {
        let len = rows.block::<H>().min(tokens.len().saturating_sub(first));
        let mut keys = [std::ptr::null(); BLOCK_ROWS];
        for i in 0..len {
            keys[i] = rows.key(tokens.token(first + i));
        }
        if len > 0 {
            let tiles = len.next_multiple_of(LANES / H);
            let last = keys[len - 1];
            keys[len..tiles].fill(last);
        }
        Self { keys, len }
    }
}

#[inline(always)]
pub(crate) unsafe fn prefetch_block<S: Simd, E: Element>(rows: &Rows<'_, E>, block: &Block<E>) {
    for &key in &block.keys[..block.len] {
        for chunk in 0..rows.key_chunks {
            prefetch::<S, E>(key.add(chunk * CHUNK));
        }
        for chunk in 0..rows.value_chunks {
            prefetch::<S, E>(key.add(rows.value_offset + chunk * CHUNK));
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
