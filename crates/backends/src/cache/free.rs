//! Rows of evicted tokens are freed, by moving those that stay.

use std::sync::Arc;

use vattention_core::{Picks, Result};

use super::block::Block;
use super::layout::ChunkSizes;
use super::{Cache, Chunk};

/// Tokens that are freed together, 2 to the power of this: evicted tokens lie scattered, so a chunk of a huge page would hardly
/// ever be evicted as a whole.
const LOG2_PAGE: u32 = 4;

impl Cache {
    /// Frees the pages of 16 tokens none of which is live: the others move to a new block. Tokens that `live` does not see are
    /// live. It waits until a quarter of what is held can be freed, so that a row moves rarely. What is freed reads as zeros.
    ///
    /// # Errors
    /// If there is no memory for the rows that stay; then nothing has changed.
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
        let mut moved = Block::new((stay.len() * bytes).max(1), self.pages)?;
        for (place, i) in stay.iter().enumerate() {
            moved.write(place * bytes, self.rows_at(i * page, bytes));
        }
        let behind = self.len % page;
        let tail = if behind == 0 {
            None
        } else {
            let mut tail = Block::new(bytes, self.pages)?;
            tail.write(0, self.rows_at(pages * page, self.row.bytes_of(behind)));
            Some(tail)
        };
        let zeros = Chunk { block: Arc::new(Block::new(bytes, self.pages)?), at: 0, freed: true };
        let mut full = vec![zeros; pages];
        let block = Arc::new(moved);
        for (place, &i) in stay.iter().enumerate() {
            full[i] = Chunk { block: block.clone(), at: place * bytes, freed: false };
        }
        (self.full, self.tail, self.sizes) = (full, tail, sizes);
        self.freed = (pages - stay.len()) * page;
        Ok(())
    }

    fn is_freed(&self, token: usize) -> bool {
        self.full.get(token / self.sizes.full()).is_some_and(|chunk| chunk.freed)
    }

    /// Bytes of the rows from a token on, in its chunk.
    fn rows_at(&self, token: usize, bytes: usize) -> &[u8] {
        let (chunk, row) = (token / self.sizes.full(), token % self.sizes.full());
        let at = self.row.bytes_of(row);
        match (self.full.get(chunk), &self.tail) {
            (Some(chunk), _) => chunk.block.read(chunk.at + at, bytes),
            (None, Some(tail)) => tail.read(at, bytes),
            (None, None) => unreachable!("a row behind the full chunks is in the tail"),
        }
    }
}
