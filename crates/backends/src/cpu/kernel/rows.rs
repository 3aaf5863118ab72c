//! Rows of one KV head, and blocks of them to go over.

use super::LANES;
use crate::cache::Chunks;
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

impl<E> Chunks<'_, E> {
    /// Chunks of [`CHUNK`] numbers in a key.
    pub(crate) fn key_chunks(&self) -> usize {
        self.value_offset / CHUNK
    }

    /// Chunks of [`CHUNK`] numbers in a value.
    pub(crate) fn value_chunks(&self) -> usize {
        (self.stride - self.value_offset) / CHUNK
    }

    /// Refuses rows that are not where they should be.
    pub(crate) fn check(&self) {
        let per_chunk = 1_usize << self.log2_per_chunk;
        let (whole, last) = (self.len / per_chunk, self.len % per_chunk);
        assert!(self.stride.is_multiple_of(CHUNK) && self.value_offset.is_multiple_of(CHUNK));
        assert!(self.value_offset <= self.stride && whole + last.min(1) <= self.chunks.len());
        let full = |chunk: &&[E]| chunk.len() >= per_chunk.saturating_mul(self.stride);
        assert!(self.chunks[..whole].iter().all(full), "a chunk that should be full");
        assert!(last == 0 || self.chunks[whole].len() >= last * self.stride, "the last chunk");
    }

    /// The chunk of a token, and where its row begins there.
    #[inline(always)]
    fn place(&self, token: usize) -> (usize, usize) {
        let in_chunk = token & ((1 << self.log2_per_chunk) - 1);
        (token >> self.log2_per_chunk, in_chunk * self.stride)
    }

    /// The value of a token, with its padding.
    pub(crate) fn value(&self, token: usize) -> &[E] {
        let (chunk, row) = self.place(token);
        &self.chunks[chunk][row + self.value_offset..row + self.stride]
    }

    /// # Safety
    /// The token must be one of the rows.
    #[inline(always)]
    unsafe fn key(&self, token: usize) -> *const E {
        let (chunk, row) = self.place(token);
        self.chunks.get_unchecked(chunk).as_ptr().add(row)
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
        rows: &Chunks<'_, E>,
        tokens: &Span<'_>,
        first: usize,
    ) -> Self {
        let len = rows.block::<H>().min(tokens.len().saturating_sub(first));
        let mut keys = [std::ptr::null(); BLOCK_ROWS];
        for (i, key) in keys.iter_mut().enumerate().take(len) {
            *key = rows.key(tokens.token(first + i));
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
pub(crate) unsafe fn prefetch_block<S: Simd, E: Element>(rows: &Chunks<'_, E>, block: &Block<E>) {
    for &key in &block.keys[..block.len] {
        for chunk in 0..rows.key_chunks() {
            prefetch::<S, E>(key.add(chunk * CHUNK));
        }
        for chunk in 0..rows.value_chunks() {
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
