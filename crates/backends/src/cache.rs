//! The keys and values of one KV head, as stored: made to be read by index.
//!
//! A token's key and value lie side by side in one row, so that reading a token is one jump. Rows
//! lie in chunks of a power of two. Full chunks never move or change, and forks share them; the
//! last one, partly filled, belongs to one cache alone.

mod block;
mod free;
mod layout;
mod maps;
mod number;
mod pieces;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;

use half::{bf16, f16};
use ndarray::Ix2;
use vattention_core::{Result, RowsView, Storage, engine::PageSize};

use self::block::Block;
use self::layout::CacheRow;
pub(crate) use self::layout::ChunkSizes;
use self::number::Number;
pub use self::number::store;
use self::view::Slices;
pub(crate) use self::view::View;

/// Rows of one KV head, growing.
#[derive(Debug)]
pub(crate) struct Cache {
    storage: Storage,
    row: CacheRow,
    sizes: ChunkSizes,
    pages: PageSize,
    len: usize,
    full: Vec<Chunk>,
    /// The rows behind the full chunks; none if there are none.
    tail: Option<Block>,
    /// Rows that were freed. They read as zeros.
    freed: usize,
}

/// A full chunk: a block, or rows of it.
#[derive(Clone, Debug)]
struct Chunk {
    block: Arc<Block>,
    /// Where it begins in the block, in bytes.
    at: usize,
    freed: bool,
}

/// Memory for rows to come, as [`Cache::room`] found it.
#[derive(Debug)]
pub(crate) struct Room {
    /// The tail's rows in a larger place, if they must move.
    tail: Option<Block>,
    /// Full-size chunks.
    more: Vec<Block>,
}

impl Cache {
    pub(crate) fn new(storage: Storage, head_dim: usize, value_dim: usize) -> Self {
        let sizes = ChunkSizes::of_huge_pages(CacheRow::new(storage, head_dim, value_dim));
        Self::with_chunks(storage, head_dim, value_dim, sizes)
    }

    pub(crate) fn with_chunks(
        storage: Storage,
        head_dim: usize,
        value_dim: usize,
        sizes: ChunkSizes,
    ) -> Self {
        let row = CacheRow::new(storage, head_dim, value_dim);
        let (pages, full, tail) = (PageSize::Huge, Vec::new(), None);
        Self { storage, row, sizes, pages, len: 0, full, tail, freed: 0 }
    }

    /// The same, empty, in other pages of memory.
    pub(crate) fn in_pages(self, pages: PageSize) -> Self {
        Self { pages, ..self }
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Tokens behind the full chunks.
    fn in_tail(&self) -> usize {
        self.len % self.sizes.full()
    }

    /// Allocates what `new` more tokens need, and changes nothing.
    pub(crate) fn room(&self, new: usize) -> Result<Room> {
        let (tokens, full) = (self.in_tail() + new, self.sizes.full());
        let holds = self.tail.as_ref().map_or(0, |tail| tail.bytes() / self.row.bytes);
        let tail = (tokens.min(full) > holds).then(|| self.larger_tail(tokens)).transpose()?;
        let more =
            (1..tokens.div_ceil(full)).map(|_| Block::new(self.row.bytes_of(full), self.pages));
        Ok(Room { tail, more: more.collect::<Result<_>>()? })
    }

    /// A tail for `tokens`, or full-size, with the rows that are there.
    fn larger_tail(&self, tokens: usize) -> Result<Block> {
        // Later chunks do not start small: what they leave unused is little of the whole.
        let first = self.full.is_empty();
        let tokens = if first { self.sizes.first_for(tokens) } else { self.sizes.full() };
        let bytes = self.row.bytes_of(tokens);
        match &self.tail {
            Some(tail) => tail.copy(0, self.row.bytes_of(self.in_tail()), bytes),
            None => Block::new(bytes, self.pages),
        }
    }

    /// Adds keys `[new, head_dim]` and values `[new, value_dim]`, each in the nearest numbers that are stored. The room must have
    /// been made for so many, and at this length.
    pub(crate) fn append(
        &mut self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        room: Room,
    ) {
        match self.storage {
            Storage::F32 => self.write::<f32>(keys, values, room),
            Storage::F16 => self.write::<f16>(keys, values, room),
            Storage::Bf16 => self.write::<bf16>(keys, values, room),
        }
    }

    fn write<T: Number>(&mut self, keys: RowsView<'_, Ix2>, values: RowsView<'_, Ix2>, room: Room) {
        let CacheRow { head_dim, value_dim, value_offset, stride, .. } = self.row;
        self.tail = room.tail.or(self.tail.take());
        let mut more = room.more.into_iter();
        for i in 0..keys.shape()[0] {
            let at = self.in_tail() * stride;
            let tail = self.tail.get_or_insert_with(|| more.next().expect("room for every row"));
            let row = &mut tail.numbers_mut::<T>()[at..][..stride];
            T::store_row(keys.index(i), &mut row[..head_dim]);
            T::store_row(values.index(i), &mut row[value_offset..][..value_dim]);
            self.len += 1;
            if self.in_tail() == 0 {
                let whole = |block| Chunk { block: Arc::new(block), at: 0, freed: false };
                self.full.extend(self.tail.take().map(whole));
            }
        }
    }

    /// A cache that goes on from the same rows. It copies the last chunk and shares the others.
    pub(crate) fn fork(&self) -> Result<Self> {
        self.truncated(self.len)
    }

    /// A cache of the first `tokens` rows: it copies what is behind the full chunks, and shares those.
    pub(crate) fn truncated(&self, tokens: usize) -> Result<Self> {
        let (full, behind) = (tokens / self.sizes.full(), tokens % self.sizes.full());
        let last = self.full.get(full).map(|chunk| (&*chunk.block, chunk.at));
        let last = last.or(self.tail.as_ref().map(|tail| (tail, 0)));
        let used = self.row.bytes_of(behind);
        let copy = |(block, at): (&Block, usize)| {
            block.copy(at, used, block.bytes().min(self.row.bytes_of(self.sizes.full())))
        };
        let tail = last.filter(|_| behind > 0).map(copy).transpose()?;
        let full = self.full[..full].to_vec();
        let freed = full.iter().filter(|chunk| chunk.freed).count() * self.sizes.full();
        Ok(Self { len: tokens, full, tail, freed, ..*self })
    }

    /// Bytes of the rows that it holds.
    pub(crate) fn held_bytes(&self) -> usize {
        self.row.bytes_of(self.len - self.freed)
    }

    /// All rows, to be read.
    pub(crate) fn view(&self) -> View<'_> {
        let slices = match self.storage {
            Storage::F32 => Slices::F32(self.slices()),
            Storage::F16 => Slices::F16(self.slices()),
            Storage::Bf16 => Slices::Bf16(self.slices()),
        };
        let log2_per_chunk = self.sizes.log2_full();
        View { slices, row: self.row, log2_per_chunk, len: self.len }
    }

    fn slices<T: Number>(&self) -> Vec<&[T]> {
        let used = self.in_tail() * self.row.stride;
        let chunk = self.sizes.full() * self.row.stride;
        let full = self
            .full
            .iter()
            .map(|full| &full.block.numbers::<T>()[full.at / size_of::<T>()..][..chunk]);
        full.chain(self.tail.as_ref().map(|tail| &tail.numbers()[..used])).collect()
    }
}
