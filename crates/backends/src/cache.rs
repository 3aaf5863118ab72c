//! KV cache of one KV head, laid out for reading tokens by index.
//!
//! A token's key and value, and their scales if there are any, are adjacent in one row, so that
//! reading a token is one random access.
//! Rows are in chunks; the number of rows of a full chunk is a power of two. Full chunks are never
//! written again, so forks share them. The last chunk, which is not full, belongs to one cache.

mod block;
mod free;
mod layout;
mod maps;
mod number;
mod pieces;
#[cfg(test)]
mod tests;
mod truncate;
mod view;

use std::sync::Arc;

use half::{bf16, f16};
use ndarray::Ix2;
use vattention_core::{Result, RowsView, Storage, engine::PageSize};

use self::block::MemoryBlock;
use self::layout::CacheRow;
pub(crate) use self::layout::ChunkSizes;
use self::number::RowElement;
pub use self::number::store;
pub(crate) use self::view::CacheView;
use self::view::Slices;

/// Growing rows of one KV head.
#[derive(Debug)]
pub(crate) struct Cache {
    storage: Storage,
    row: CacheRow,
    sizes: ChunkSizes,
    pages: PageSize,
    len: usize,
    full: Vec<Chunk>,
    /// Rows after the full chunks; `None` if there are no such rows.
    tail: Option<MemoryBlock>,
    /// Number of rows that were freed. They read as zeros.
    freed: usize,
}

/// A full chunk: a whole block, or a part of one.
#[derive(Clone, Debug)]
struct Chunk {
    block: Arc<MemoryBlock>,
    /// Position of the chunk in the block, in bytes.
    offset: usize,
    freed: bool,
}

/// Memory for rows to be appended, allocated by [`Cache::room`].
#[derive(Debug)]
pub(crate) struct Room {
    /// A larger block with a copy of the tail's rows, if the tail is too small.
    tail: Option<MemoryBlock>,
    /// Blocks of full-size chunks.
    more: Vec<MemoryBlock>,
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

    /// Returns this cache, which must be empty, with another size of memory pages.
    pub(crate) fn in_pages(self, pages: PageSize) -> Self {
        Self { pages, ..self }
    }

    /// Number of tokens, evicted ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of tokens after the full chunks.
    fn in_tail(&self) -> usize {
        self.len % self.sizes.full()
    }

    /// Allocates the memory that `new` more tokens need, without changing the cache.
    pub(crate) fn room(&self, new: usize) -> Result<Room> {
        let (tokens, full) = (self.in_tail() + new, self.sizes.full());
        let holds = self.tail.as_ref().map_or(0, |tail| tail.bytes() / self.row.bytes);
        let tail = (tokens.min(full) > holds).then(|| self.larger_tail(tokens)).transpose()?;
        let more = (1..tokens.div_ceil(full))
            .map(|_| MemoryBlock::new(self.row.bytes_of(full), self.pages));
        Ok(Room { tail, more: more.collect::<Result<_>>()? })
    }

    /// Allocates a tail for `tokens` tokens, at most a full chunk, and copies the tail's rows to
    /// it.
    fn larger_tail(&self, tokens: usize) -> Result<MemoryBlock> {
        // Later chunks begin at full size: their unused part is small compared with the cache.
        let first = self.full.is_empty();
        let tokens = if first { self.sizes.first_for(tokens) } else { self.sizes.full() };
        let bytes = self.row.bytes_of(tokens);
        match &self.tail {
            Some(tail) => tail.copy(0, self.row.bytes_of(self.in_tail()), bytes),
            None => MemoryBlock::new(bytes, self.pages),
        }
    }

    /// Appends keys `[new, head_dim]` and values `[new, value_dim]`, rounded to the stored type.
    /// `room` must have been allocated for `new` tokens, at the current length.
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
            Storage::Q8 => self.write::<i8>(keys, values, room),
        }
    }

    fn write<T: RowElement>(
        &mut self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        room: Room,
    ) {
        let stride = self.row.stride;
        self.tail = room.tail.or(self.tail.take());
        let mut more = room.more.into_iter();
        for i in 0..keys.shape()[0] {
            let begin = self.in_tail() * stride;
            let tail = self.tail.get_or_insert_with(|| more.next().expect("room for every row"));
            let row = &mut tail.numbers_mut::<T>()[begin..][..stride];
            T::store_token(&self.row, keys.index(i), values.index(i), row);
            self.len += 1;
            if self.in_tail() == 0 {
                let whole = |block| Chunk { block: Arc::new(block), offset: 0, freed: false };
                self.full.extend(self.tail.take().map(whole));
            }
        }
    }

    /// Returns a cache with the same rows. It copies the last chunk and shares the others.
    pub(crate) fn fork(&self) -> Result<Self> {
        self.truncated(self.len)
    }

    /// Returns a cache of the first `tokens` rows. It shares the full chunks and copies the rows
    /// after them.
    pub(crate) fn truncated(&self, tokens: usize) -> Result<Self> {
        let (full, rest) = (tokens / self.sizes.full(), tokens % self.sizes.full());
        let last = self.full.get(full).map(|chunk| (&*chunk.block, chunk.offset));
        let last = last.or(self.tail.as_ref().map(|tail| (tail, 0)));
        let used = self.row.bytes_of(rest);
        let copy = |(block, offset): (&MemoryBlock, usize)| {
            block.copy(offset, used, block.bytes().min(self.row.bytes_of(self.sizes.full())))
        };
        let tail = last.filter(|_| rest > 0).map(copy).transpose()?;
        let full = self.full[..full].to_vec();
        let freed = full.iter().filter(|chunk| chunk.freed).count() * self.sizes.full();
        Ok(Self { len: tokens, full, tail, freed, ..*self })
    }

    /// Number of bytes of all rows that are not freed.
    pub(crate) fn held_bytes(&self) -> usize {
        self.row.bytes_of(self.len - self.freed)
    }

    /// Borrows all rows for reading.
    pub(crate) fn view(&self) -> CacheView<'_> {
        let slices = match self.storage {
            Storage::F32 => Slices::F32(self.slices()),
            Storage::F16 => Slices::F16(self.slices()),
            Storage::Bf16 => Slices::Bf16(self.slices()),
            Storage::Q8 => Slices::Q8(self.slices()),
        };
        let log2_per_chunk = self.sizes.log2_full();
        CacheView { slices, row: self.row, log2_per_chunk, len: self.len }
    }

    fn slices<T: RowElement>(&self) -> Vec<&[T]> {
        let used = self.in_tail() * self.row.stride;
        let chunk = self.sizes.full() * self.row.stride;
        let full = self
            .full
            .iter()
            .map(|full| &full.block.numbers::<T>()[full.offset / size_of::<T>()..][..chunk]);
        full.chain(self.tail.as_ref().map(|tail| &tail.numbers()[..used])).collect()
    }
}
