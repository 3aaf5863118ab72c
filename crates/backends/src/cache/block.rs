//! Aligned memory, zero at first.

use memmap2::MmapMut;
use vattention_core::{Error, Result, engine::PageSize};
use zerocopy::FromBytes;

use super::number::Number;
use super::pieces::{POOL, Piece};

/// The most that one entry of the processor's page tables covers, where the system plays along.
/// Gathering rows from small pages costs a walk through those tables for most rows.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Memory aligned to 64 bytes, or to a huge page if it fills more than half of one. Smaller blocks
/// are pieces of huge pages that they share, unless small pages are requested.
///
/// The memory comes from the operating system and not from an allocator, because an allocator that
/// is asked for aligned zeros writes them itself, and so fetches small pages before huge ones can
/// be asked for.
#[derive(Debug)]
pub(super) struct Block {
    memory: Memory,
    bytes: usize,
    pages: PageSize,
}

#[derive(Debug)]
enum Memory {
    /// A map that belongs to the block alone.
    Map {
        map: MmapMut,
        /// Position of the block in the map, in bytes.
        offset: usize,
    },
    Piece(Piece),
}

impl Block {
    /// Allocates `bytes` zeros, at least 1. Parts of a map that are never written take no memory,
    /// except in reserved huge pages.
    pub(super) fn new(bytes: usize, pages: PageSize) -> Result<Self> {
        let large = bytes > HUGE_PAGE / 2;
        let map_large =
            || map_aligned(bytes, pages).map(|(map, offset)| Memory::Map { map, offset });
        let memory = match pages {
            PageSize::Huge if large => match reserved(bytes) {
                Some(map) => Some(Memory::Map { map, offset: 0 }),
                None => map_large(),
            },
            PageSize::Huge => POOL.take(bytes).map(Memory::Piece),
            PageSize::Small if large => map_large(),
            PageSize::Small => {
                MmapMut::map_anon(bytes).ok().map(|map| Memory::Map { map, offset: 0 })
            }
        };
        let memory = memory.ok_or(Error::Memory { bytes })?;
        Ok(Self { memory, bytes, pages })
    }

    /// As [`Self::new`], beginning with `used` bytes of this one, from `at` on.
    pub(super) fn copy(&self, at: usize, used: usize, bytes: usize) -> Result<Self> {
        let mut copy = Self::new(bytes, self.pages)?;
        copy.write(0, self.read(at, used));
        Ok(copy)
    }

    /// `bytes` of it, from `at` on.
    pub(super) fn read(&self, at: usize, bytes: usize) -> &[u8] {
        &self.as_bytes()[at..][..bytes]
    }

    /// Puts bytes there, from `at` on.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.as_bytes_mut()[at..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn numbers<T: Number>(&self) -> &[T] {
        <[T]>::ref_from_bytes(self.as_bytes()).expect("aligned, and whole rows")
    }

    pub(super) fn numbers_mut<T: Number>(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(self.as_bytes_mut()).expect("aligned, and whole rows")
    }

    fn as_bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Map { map, offset } => &map[*offset..][..self.bytes],
            Memory::Piece(piece) => &piece.memory[..self.bytes],
        }
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Map { map, offset } => &mut map[*offset..][..self.bytes],
            Memory::Piece(piece) => &mut piece.memory[..self.bytes],
        }
    }
}

/// Huge pages that the system keeps for those who ask by this name, if it has as many left.
#[cfg(target_os = "linux")]
fn reserved(bytes: usize) -> Option<MmapMut> {
    let whole = bytes.checked_next_multiple_of(HUGE_PAGE)?;
    let page_bits = u8::try_from(HUGE_PAGE.ilog2()).ok();
    let map = memmap2::MmapOptions::new().huge(page_bits).len(whole).map_anon().ok()?;
    // A container's limit counts at the first touch only, which would end the process: so that is here.
    map.advise(memmap2::Advice::PopulateWrite).ok()?;
    Some(map)
}

#[cfg(not(target_os = "linux"))]
fn reserved(_: usize) -> Option<MmapMut> {
    None
}

/// Bytes that hold `bytes` in whole huge pages, wherever they begin.
fn with_slack(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)
}

/// Maps memory that holds `bytes` in whole pages of a size, and returns it with the position of
/// its first huge page, or of the address where one would begin.
pub(super) fn map_aligned(bytes: usize, pages: PageSize) -> Option<(MmapMut, usize)> {
    let map = MmapMut::map_anon(with_slack(bytes)?).ok()?;
    // A system without huge pages refuses, and small ones do. All of the map is advised, its slack
    // too: neighbours of one kind are one entry in the kernel's list of maps, which is limited.
    #[cfg(target_os = "linux")]
    let _ = map.advise(match pages {
        PageSize::Huge => memmap2::Advice::HugePage,
        PageSize::Small => memmap2::Advice::NoHugePage,
    });
    let offset = to_huge_page(map.as_ptr().addr());
    Some((map, offset))
}

/// Bytes from an address to the next huge page.
fn to_huge_page(address: usize) -> usize {
    address.next_multiple_of(HUGE_PAGE) - address
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How large pages at an address are, in KiB.
    #[cfg(target_os = "linux")]
    fn page_size(address: usize) -> usize {
        let holds = |line: &&str| {
            let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
            let number = |hex| usize::from_str_radix(hex, 16).ok();
            ends.and_then(|(from, to)| Some((number(from)?..number(to)?).contains(&address)))
                .unwrap_or(false)
        };
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines().skip_while(|line| !holds(line));
        let size = lines.find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Where the system reserves none, as is usual, that is all there is to see.
    #[cfg(target_os = "linux")]
    #[test]
    fn reserved_huge_pages_are_taken_if_there_are_any() {
        assert!(reserved(usize::MAX).is_none());
        assert!(reserved(1 << 50).is_none());
        let Some(map) = reserved(HUGE_PAGE / 2 + 1) else { return };
        assert_eq!(map.len(), HUGE_PAGE);
        assert!(map.iter().all(|&byte| byte == 0));
        assert_eq!(page_size(map.as_ptr().addr()), HUGE_PAGE / 1024);
    }

    #[test]
    fn small_pages_are_small() {
        let block = Block::new(HUGE_PAGE, PageSize::Small).unwrap();
        let Memory::Map { map, .. } = block.memory else { panic!("a piece of a huge page") };
        assert!(map.len() > HUGE_PAGE, "with slack: not of reserved ones");
        let block = Block::new(HUGE_PAGE / 2, PageSize::Small).unwrap();
        assert!(matches!(block.memory, Memory::Map { .. }));
    }

    #[test]
    fn small_blocks_are_pieces_and_zero_although_their_memory_was_used() {
        for bytes in [1, 4096, 3 * 4096, 100_000, HUGE_PAGE / 2] {
            for _ in 0..3 {
                let mut block = Block::new(bytes, PageSize::Huge).unwrap();
                assert!(matches!(block.memory, Memory::Piece(_)));
                assert!(block.as_bytes().as_ptr().addr().is_multiple_of(64));
                assert_eq!(block.read(0, bytes), vec![0; bytes]);
                block.write(0, &vec![1; bytes]);
            }
        }
        let block = Block::new(HUGE_PAGE / 2 + 1, PageSize::Huge).unwrap();
        assert!(matches!(block.memory, Memory::Map { .. }));
    }

    /// Some kernels align large maps by themselves, so that aligned blocks alone prove nothing.
    #[test]
    fn a_huge_page_fits_wherever_the_map_begins() {
        for page in [0, 1, 255, 256, 511] {
            let address = 3 * HUGE_PAGE + page * 4096;
            let offset = to_huge_page(address);
            assert!((address + offset).is_multiple_of(HUGE_PAGE));
            for bytes in [HUGE_PAGE / 2 + 1, HUGE_PAGE, HUGE_PAGE + 1] {
                let end = offset + bytes.next_multiple_of(HUGE_PAGE);
                assert!(end <= with_slack(bytes).unwrap());
            }
        }
        assert_eq!(with_slack(usize::MAX), None);
    }
}
