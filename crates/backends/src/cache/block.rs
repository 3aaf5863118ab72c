//! Aligned memory, initially zero.

use memmap2::MmapMut;
use vattention_core::{Error, Result, engine::PageSize};
use zerocopy::FromBytes;

use super::maps::{HUGE_PAGE, map_aligned, reserved};
use super::number::RowElement;
use super::pieces::{POOL, Piece};

/// Memory aligned to 64 bytes, or to a huge page if it fills more than half of one. Smaller blocks
/// are pieces of huge pages that they share, unless small pages are requested.
///
/// The memory comes from the operating system and not from an allocator: an allocator writes
/// aligned zeros itself, which populates small pages before huge ones can be requested.
#[derive(Debug)]
pub(super) struct MemoryBlock {
    memory: BlockMemory,
    bytes: usize,
    pages: PageSize,
}

#[derive(Debug)]
enum BlockMemory {
    /// A map that only this block uses.
    Map {
        map: MmapMut,
        /// Position of the block in the map, in bytes.
        offset: usize,
    },
    Piece(Piece),
}

impl MemoryBlock {
    /// Allocates `bytes` zeros; `bytes` is at least 1. Parts of a map that are never written take
    /// no memory, except in reserved huge pages.
    pub(super) fn new(bytes: usize, pages: PageSize) -> Result<Self> {
        let large = bytes > HUGE_PAGE / 2;
        let map_large =
            || map_aligned(bytes, pages).map(|(map, offset)| BlockMemory::Map { map, offset });
        let memory = match pages {
            PageSize::Huge if large => match reserved(bytes) {
                Some(map) => Some(BlockMemory::Map { map, offset: 0 }),
                None => map_large(),
            },
            PageSize::Huge => POOL.take(bytes).map(BlockMemory::Piece),
            PageSize::Small if large => map_large(),
            PageSize::Small => {
                MmapMut::map_anon(bytes).ok().map(|map| BlockMemory::Map { map, offset: 0 })
            }
        };
        let memory = memory.ok_or(Error::Memory { bytes })?;
        Ok(Self { memory, bytes, pages })
    }

    /// Allocates a block of `bytes` bytes that begins with the `used` bytes at `offset` of this
    /// one.
    pub(super) fn copy(&self, offset: usize, used: usize, bytes: usize) -> Result<Self> {
        let mut copy = Self::new(bytes, self.pages)?;
        copy.write(0, self.read(offset, used));
        Ok(copy)
    }

    /// Returns the `bytes` bytes at `offset`.
    pub(super) fn read(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.as_bytes()[offset..][..bytes]
    }

    /// Writes `bytes` at `offset`.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.as_bytes_mut()[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn numbers<T: RowElement>(&self) -> &[T] {
        <[T]>::ref_from_bytes(self.as_bytes()).expect("aligned, and whole rows")
    }

    pub(super) fn numbers_mut<T: RowElement>(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(self.as_bytes_mut()).expect("aligned, and whole rows")
    }

    fn as_bytes(&self) -> &[u8] {
        match &self.memory {
            BlockMemory::Map { map, offset } => &map[*offset..][..self.bytes],
            BlockMemory::Piece(piece) => &piece.memory[..self.bytes],
        }
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            BlockMemory::Map { map, offset } => &mut map[*offset..][..self.bytes],
            BlockMemory::Piece(piece) => &mut piece.memory[..self.bytes],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pages_are_small() {
        let block = MemoryBlock::new(HUGE_PAGE, PageSize::Small).unwrap();
        let BlockMemory::Map { map, .. } = block.memory else { panic!("a piece of a huge page") };
        assert!(map.len() > HUGE_PAGE, "a map of reserved huge pages has no slack");
        let block = MemoryBlock::new(HUGE_PAGE / 2, PageSize::Small).unwrap();
        assert!(matches!(block.memory, BlockMemory::Map { .. }));
    }

    #[test]
    fn small_blocks_are_pieces_and_zero_even_in_reused_memory() {
        for bytes in [1, 4096, 3 * 4096, 100_000, HUGE_PAGE / 2] {
            for _ in 0..3 {
                let mut block = MemoryBlock::new(bytes, PageSize::Huge).unwrap();
                assert!(matches!(block.memory, BlockMemory::Piece(_)));
                assert!(block.as_bytes().as_ptr().addr().is_multiple_of(64));
                assert_eq!(block.read(0, bytes), vec![0; bytes]);
                block.write(0, &vec![1; bytes]);
            }
        }
        let block = MemoryBlock::new(HUGE_PAGE / 2 + 1, PageSize::Huge).unwrap();
        assert!(matches!(block.memory, BlockMemory::Map { .. }));
    }
}
