//! Huge pages that many small blocks share.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vattention_core::engine::PageSize;

use super::maps::{HUGE_PAGE, discard, map_aligned};

/// Size of the smallest pieces. Three quarters of it are a multiple of 64 bytes too.
const SMALLEST: usize = 256;

/// Huge pages in pieces.
///
/// A piece has `2^k` or `3 · 2^k` bytes, so that a block leaves at most a third of it unused. A
/// missing piece is split off the next larger power of two, up to a whole huge page. So small
/// blocks of all sizes share huge pages, each of which is resident as a whole once it is touched,
/// and the pool maps another page only if no free piece is large enough.
///
/// If no block uses a page, its memory returns to the system, except that of one such page. The
/// page remains divided: pieces are never joined. Caches that grow together from the smallest block
/// to a huge page leave less than a huge page of pieces per cache, which later caches use.
#[derive(Debug)]
pub(super) struct PiecePool {
    pages: Mutex<SharedPages>,
}

/// Pool that all caches of the process share.
pub(super) static POOL: PiecePool = PiecePool::new();

#[derive(Debug)]
struct SharedPages {
    /// Free pieces by size and address.
    free: BTreeMap<usize, BTreeMap<usize, FreePiece>>,
    /// Number of pieces that blocks use of a page, by the page's address; none is 0.
    used: BTreeMap<usize, usize>,
    /// Page that no block uses, and whose memory has not returned to the system.
    spare: Option<usize>,
}

#[derive(Debug)]
struct FreePiece {
    memory: &'static mut [u8],
    /// A piece that no block has used is zero already.
    used: bool,
}

/// Memory within a huge page, aligned to 64 bytes. It returns to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) memory: &'static mut [u8],
    pool: &'static PiecePool,
}

impl PiecePool {
    const fn new() -> Self {
        Self { pages: Mutex::new(SharedPages::new()) }
    }

    /// Takes a piece of at least `bytes` zeros, at most a huge page; `None` if the system has no
    /// memory left.
    pub(super) fn take(&'static self, bytes: usize) -> Option<Piece> {
        let FreePiece { memory, used } = self.lock().take(piece_size(bytes))?;
        if used {
            memory.fill(0);
        }
        Some(Piece { memory, pool: self })
    }

    fn lock(&self) -> MutexGuard<'_, SharedPages> {
        // The maps contain only whole pieces, even if a thread panicked while it held the lock.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let memory = mem::take(&mut self.memory);
        self.pool.lock().put(memory);
    }
}

impl SharedPages {
    const fn new() -> Self {
        Self { free: BTreeMap::new(), used: BTreeMap::new(), spare: None }
    }

    fn take(&mut self, size: usize) -> Option<FreePiece> {
        let piece = self.take_free(size)?;
        let page = page_of(piece.memory);
        *self.used.entry(page).or_default() += 1;
        self.spare = self.spare.filter(|&spare| spare != page);
        Some(piece)
    }

    fn put(&mut self, memory: &'static mut [u8]) {
        let page = page_of(memory);
        self.put_free(FreePiece { memory, used: true });
        let left = self.used.get(&page).map_or(0, |used| used - 1);
        if left > 0 {
            self.used.insert(page, left);
            return;
        }
        self.used.remove(&page);
        match self.spare {
            None => self.spare = Some(page),
            #[allow(unsafe_code)]
            // SAFETY: all pieces of the page are free, and only the pool, which is borrowed
            // mutably, refers to free pieces.
            Some(_) => unsafe { discard(page) },
        }
    }

    fn put_free(&mut self, piece: FreePiece) {
        let (size, address) = (piece.memory.len(), piece.memory.as_ptr().addr());
        self.free.entry(size).or_default().insert(address, piece);
    }

    /// Takes the free piece with the lowest address, or splits a larger one.
    fn take_free(&mut self, size: usize) -> Option<FreePiece> {
        if let Some((_, piece)) = self.free.get_mut(&size).and_then(BTreeMap::pop_first) {
            return Some(piece);
        }
        if size == HUGE_PAGE {
            return self.map_page();
        }
        let FreePiece { memory, used } = self.take_free((size + 1).next_power_of_two())?;
        let (memory, rest) = memory.split_at_mut(size);
        self.put_free(FreePiece { memory: rest, used });
        Some(FreePiece { memory, used })
    }

    /// Maps a huge page, and adds a second one to the free pieces if the map happens to contain it.
    fn map_page(&mut self) -> Option<FreePiece> {
        let (map, offset) = map_aligned(HUGE_PAGE, PageSize::Huge)?;
        let map = Box::leak(Box::new(map));
        for memory in map[offset..].chunks_exact_mut(HUGE_PAGE) {
            self.put_free(FreePiece { memory, used: false });
        }
        self.free.get_mut(&HUGE_PAGE)?.pop_first().map(|(_, piece)| piece)
    }
}

/// Number of bytes of the smallest piece that holds `bytes`.
fn piece_size(bytes: usize) -> usize {
    let power = bytes.next_power_of_two().max(SMALLEST);
    let three_quarters = power / 4 * 3;
    if bytes <= three_quarters { three_quarters } else { power }
}

/// Address of the huge page that contains a piece.
fn page_of(memory: &[u8]) -> usize {
    memory.as_ptr().addr() / HUGE_PAGE * HUGE_PAGE
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// Numbers of bytes just above and at every size of a piece, up to half a huge page.
    fn block_sizes() -> Vec<usize> {
        let powers = (SMALLEST.ilog2()..=(HUGE_PAGE / 2).ilog2()).map(|log2| 1 << log2);
        let sizes = powers.flat_map(|power: usize| [power / 2 + 1, power / 4 * 3, power]);
        [1].into_iter().chain(sizes).collect()
    }

    /// A pool that no other test uses.
    fn new_pool() -> &'static PiecePool {
        Box::leak(Box::new(PiecePool::new()))
    }

    fn addresses(piece: &Piece) -> Range<usize> {
        let begin = piece.memory.as_ptr().addr();
        begin..begin + piece.memory.len()
    }

    /// Number of bytes of all free pieces.
    fn free_bytes(pool: &PiecePool) -> usize {
        pool.lock().free.values().flatten().map(|(_, piece)| piece.memory.len()).sum()
    }

    #[test]
    fn pieces_are_at_most_half_larger_than_requested() {
        for bytes in (1..10_000).chain(block_sizes()) {
            let size = piece_size(bytes);
            assert!(size >= bytes && size.is_multiple_of(64), "{size} for {bytes}");
            assert!(bytes <= SMALLEST / 2 || 2 * size <= 3 * bytes, "{size} for {bytes}");
        }
        assert_eq!(piece_size(HUGE_PAGE / 2), HUGE_PAGE / 2);
    }

    #[test]
    fn live_pieces_are_aligned_and_zero_and_never_overlap() {
        let pool = new_pool();
        // In the second round, all memory has been used.
        for _ in 0..2 {
            let mut pieces = Vec::new();
            for bytes in block_sizes().repeat(3) {
                let piece = pool.take(bytes).unwrap();
                assert!(piece.memory.len() >= bytes);
                assert!(addresses(&piece).start.is_multiple_of(64));
                assert!(piece.memory.iter().all(|&byte| byte == 0));
                piece.memory.fill(1);
                pieces.push(piece);
            }
            let mut ranges: Vec<_> = pieces.iter().map(addresses).collect();
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start));
            for range in ranges {
                assert_eq!(range.start / HUGE_PAGE, (range.end - 1) / HUGE_PAGE);
            }
        }
    }

    #[test]
    fn parts_of_a_used_piece_are_zero() {
        let pool = new_pool();
        let whole = pool.take(HUGE_PAGE).unwrap();
        let range = addresses(&whole);
        whole.memory.fill(1);
        drop(whole);
        // The map may hold a second page, which is used first or last.
        let parts: Vec<_> = (0..8).map(|_| pool.take(HUGE_PAGE / 4).unwrap()).collect();
        assert!(parts.iter().any(|part| range.contains(&addresses(part).start)));
        assert!(parts.iter().all(|part| part.memory.iter().all(|&byte| byte == 0)));
    }

    #[test]
    fn the_memory_of_a_dropped_piece_is_used_again() {
        let pool = new_pool();
        for bytes in block_sizes() {
            let first = pool.take(bytes).unwrap();
            let range = addresses(&first);
            drop(first);
            assert_eq!(addresses(&pool.take(bytes).unwrap()), range);
        }
        let mapped = free_bytes(pool);
        for bytes in block_sizes().repeat(100) {
            pool.take(bytes).unwrap();
        }
        assert_eq!(free_bytes(pool), mapped);
    }

    /// True if the first 4 KiB of a huge page are in memory.
    #[cfg(target_os = "linux")]
    fn is_resident(page: usize) -> bool {
        use std::os::unix::fs::FileExt;
        let mut entry = [0; 8];
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        map.read_exact_at(&mut entry, page as u64 / 4096 * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_of_unused_pages_returns_to_the_system_except_one() {
        let pool = new_pool();
        let resident = |pages: &[usize]| pages.iter().filter(|&&page| is_resident(page)).count();
        for parts in [1, 2, 8] {
            let mut pieces: Vec<_> =
                (0..4 * parts).map(|_| pool.take(HUGE_PAGE / parts).unwrap()).collect();
            let mut pages: Vec<_> = pieces.iter().map(|piece| page_of(piece.memory)).collect();
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pages.len(), 4);
            for piece in &mut pieces {
                assert!(piece.memory.iter().all(|&byte| byte == 0));
                piece.memory.fill(1);
            }
            assert_eq!(resident(&pages), 4);
            let mut pieces = pieces.into_iter();
            let kept = pieces.next().unwrap();
            drop(pieces);
            assert_eq!(resident(&pages), 2, "the page of the piece in use, and one other");
            assert!(kept.memory.iter().all(|&byte| byte == 1));
            drop(kept);
            assert_eq!(resident(&pages), 1);
        }
    }

    /// Sizes that are needed once or twice share one huge page.
    #[test]
    fn small_pieces_of_all_sizes_share_huge_pages() {
        let pool = new_pool();
        let sizes = block_sizes().into_iter().filter(|&bytes| bytes <= HUGE_PAGE / 32);
        let pieces: Vec<_> = sizes.map(|bytes| pool.take(bytes).unwrap()).collect();
        let mut pages: Vec<_> =
            pieces.iter().map(|piece| addresses(piece).start / HUGE_PAGE).collect();
        pages.dedup();
        assert_eq!(pages.len(), 1);
    }

    #[test]
    fn threads_never_share_a_piece() {
        let pool = new_pool();
        let sizes = block_sizes();
        std::thread::scope(|scope| {
            for thread in 1..=8_u8 {
                let sizes = &sizes;
                scope.spawn(move || {
                    let mut held: Vec<Piece> = Vec::new();
                    for round in 0..300 {
                        let bytes =
                            sizes[(round * usize::from(thread) * 7) % sizes.len()].min(1 << 16);
                        let piece = pool.take(bytes).unwrap();
                        assert!(piece.memory.iter().all(|&byte| byte == 0));
                        piece.memory.fill(thread);
                        held.push(piece);
                        if held.len() > 4 {
                            std::thread::yield_now();
                            let oldest = held.remove(0);
                            assert!(oldest.memory.iter().all(|&byte| byte == thread));
                        }
                    }
                });
            }
        });
        assert!(free_bytes(pool).is_multiple_of(HUGE_PAGE), "a piece was lost");
    }
}
