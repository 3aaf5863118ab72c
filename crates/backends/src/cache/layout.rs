//! Memory layout: a token's elements in its row, and rows in chunks.

use vattention_core::Storage;

use super::maps::HUGE_PAGE;
use crate::cpu::CHUNK;

/// Initial capacity of a sequence, in tokens.
const FIRST: usize = 64;

/// Layout of a row: `[K, zeros | V, zeros | scales]`, where K and V with their zeros are multiples
/// of 32 elements. The scales, those of K and V, follow only if the storage has scales; so a token
/// remains one random access.
///
/// Sizes saturate on overflow; the allocation then fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheRow {
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    /// Position of V, in elements.
    pub(super) value_offset: usize,
    /// Position of the scales, in elements; without scales, the end of the row.
    pub(super) scale_offset: usize,
    /// Elements per row, padding and scales included.
    pub(super) stride: usize,
    /// Bytes per row, padding and scales included.
    pub(super) bytes: usize,
}

impl CacheRow {
    /// Computes the layout. Keys and values are padded to whole [`CHUNK`]s, so that no kernel needs
    /// code for a remainder.
    pub(super) fn new(storage: Storage, head_dim: usize, value_dim: usize) -> Self {
        let padded = |dim: usize| dim.checked_next_multiple_of(CHUNK).unwrap_or(usize::MAX);
        let value_offset = padded(head_dim);
        let scale_offset = value_offset.saturating_add(padded(value_dim));
        let scales = 2 * storage.scale_bytes() / storage.number_bytes();
        let stride = scale_offset.saturating_add(scales);
        let bytes = stride.saturating_mul(storage.number_bytes());
        Self { head_dim, value_dim, value_offset, scale_offset, stride, bytes }
    }

    /// Number of bytes of `rows` rows.
    pub(super) fn bytes_of(self, rows: usize) -> usize {
        rows.saturating_mul(self.bytes)
    }
}

/// Capacities of chunks, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSizes {
    /// Initial capacity of the first chunk.
    first: usize,
    log2_full: u32,
}

impl ChunkSizes {
    /// Chunks of the largest power of two of rows that fits into a huge page without its scales, at
    /// least one row.
    pub(super) fn of_huge_pages(row: CacheRow) -> Self {
        // Scales would halve this number for most dimensions; a chunk is slightly longer instead.
        let vectors = row.bytes / row.stride.max(1) * row.scale_offset;
        Self::new(FIRST, (HUGE_PAGE / vectors).max(1).ilog2())
    }

    /// Chunks of `2^log2_full` tokens, the first of which starts with room for `first`, a power of
    /// two.
    pub(crate) fn new(first: usize, log2_full: u32) -> Self {
        Self { first: first.min(1 << log2_full), log2_full }
    }

    pub(super) fn log2_full(self) -> u32 {
        self.log2_full
    }

    pub(super) fn full(self) -> usize {
        1 << self.log2_full
    }

    /// Capacity to which the first chunk grows for `tokens` tokens.
    pub(super) fn first_for(self, tokens: usize) -> usize {
        tokens.min(self.full()).next_power_of_two().max(self.first)
    }
}
