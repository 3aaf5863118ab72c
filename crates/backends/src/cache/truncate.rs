//! Removal of the newest rows, in place.

use std::sync::Arc;

use vattention_core::Result;

use super::block::MemoryBlock;
use super::{Cache, Chunk};

impl Cache {
    /// Removes all but the first `tokens` rows. Rows are copied only if they are in a full chunk
    /// that forks or other chunks share. The last remaining row must not have been freed.
    ///
    /// # Errors
    /// If rows must be copied and memory is lacking; the cache is then unchanged.
    pub(crate) fn truncate(&mut self, tokens: usize) -> Result<()> {
        let (full, rows) = (tokens / self.sizes.full(), tokens % self.sizes.full());
        if rows == 0 {
            self.tail = None;
        } else if full < self.full.len() {
            self.tail = Some(self.reopen(full, rows)?);
        }
        self.full.truncate(full);
        self.len = tokens;
        self.freed = self.full.iter().filter(|chunk| chunk.freed).count() * self.sizes.full();
        Ok(())
    }

    /// Returns a block that begins with the first `rows` rows of a full chunk: the chunk's own, if
    /// nothing else uses it. The chunk and those after it must then be removed.
    fn reopen(&mut self, chunk: usize, rows: usize) -> Result<MemoryBlock> {
        let bytes = self.row.bytes_of(self.sizes.full());
        let Chunk { block, offset, .. } = &mut self.full[chunk];
        if block.bytes() == bytes && Arc::get_mut(block).is_some() {
            let own = self.full.swap_remove(chunk).block;
            return Ok(Arc::into_inner(own).expect("a block with one owner"));
        }
        block.copy(*offset, self.row.bytes_of(rows), bytes)
    }
}
