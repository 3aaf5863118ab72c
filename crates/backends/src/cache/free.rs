//! Freeing the rows of evicted tokens, by moving the live rows to a new block.

use std::ops::Range;
use std::sync::Arc;

use vattention_core::{Picks, Result};

use super::block::MemoryBlock;
use super::layout::ChunkSizes;
use super::{Cache, Chunk};

/// Binary logarithm of the number of tokens that are freed together. Evicted tokens are scattered,
/// so a chunk of the size of a huge page would hardly ever be evicted as a whole.
const LOG2_PAGE: u32 = 4;

impl Cache {
    /// Frees the pages of 16 tokens that contain no live token, and moves the other pages to a new
    /// block. Tokens beyond the visible range of `live` count as live. Nothing is freed until a
    /// quarter of the held pages can be, so that a row moves rarely. Freed rows read as zeros.
    ///
    /// # Errors
    /// If the remaining rows cannot be allocated; the cache is then unchanged.
    pub(crate) fn free(&mut self, live: &Picks) -> Result<()> {
        let sizes = ChunkSizes::new(1 << LOG2_PAGE, LOG2_PAGE.min(self.sizes.log2_full()));
        let (page, bytes) = (sizes.full(), self.row.bytes_of(sizes.full()));
        let pages = self.len / page;
        let stays = |i: &usize| {
            let mut tokens = i * page..(i + 1) * page;
            !self.is_freed(i * page)
                && tokens.any(|token| token >= live.visible() || live.contains(token))
        };
        let stay: Vec<usize> = (0..pages).filter(stays).collect();
        let held = pages - self.freed / page;
        if held == stay.len() || (held - stay.len()) * 4 < held {
            return Ok(());
        }
        let mut moved = MemoryBlock::new((stay.len() * bytes).max(1), self.pages)?;
        for (place, i) in stay.iter().enumerate() {
            moved.write(place * bytes, self.rows_at(i * page, bytes));
        }
        let rest = self.len % page;
        let tail = if rest == 0 {
            None
        } else {
            let mut tail = MemoryBlock::new(bytes, self.pages)?;
            tail.write(0, self.rows_at(pages * page, self.row.bytes_of(rest)));
            Some(tail)
        };
        let zeros = Arc::new(MemoryBlock::new(bytes, self.pages)?);
        let mut full = vec![Chunk { block: zeros, offset: 0, freed: true }; pages];
        let block = Arc::new(moved);
        for (place, &i) in stay.iter().enumerate() {
            full[i] = Chunk { block: block.clone(), offset: place * bytes, freed: false };
        }
        (self.full, self.tail, self.sizes) = (full, tail, sizes);
        self.freed = (pages - stay.len()) * page;
        Ok(())
    }

    /// Returns true if the row of one of these tokens has been freed.
    pub(crate) fn has_freed(&self, mut tokens: Range<usize>) -> bool {
        self.freed > 0 && tokens.any(|token| self.is_freed(token))
    }

    fn is_freed(&self, token: usize) -> bool {
        self.full.get(token / self.sizes.full()).is_some_and(|chunk| chunk.freed)
    }

    /// Returns `bytes` bytes from the beginning of a token's row; they must not exceed its chunk.
    fn rows_at(&self, token: usize, bytes: usize) -> &[u8] {
        let (chunk, row) = (token / self.sizes.full(), token % self.sizes.full());
        let offset = self.row.bytes_of(row);
        match (self.full.get(chunk), &self.tail) {
            (Some(chunk), _) => chunk.block.read(chunk.offset + offset, bytes),
            (None, Some(tail)) => tail.read(offset, bytes),
            (None, None) => unreachable!("a row after the full chunks is in the tail"),
        }
    }
}
