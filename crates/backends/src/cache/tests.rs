use half::{bf16, f16};
use ndarray::{Array2, ArrayView2, s};
use proptest::prelude::*;
use vattention_core::{Error, Picks, Storage, Tokens};
use zerocopy::{Immutable, IntoBytes};

use super::layout::CacheRow;
use super::maps::HUGE_PAGE;
use super::number::RowElement;
use super::view::{CacheView, Slices};
use super::*;

/// Numbers for `len` tokens, which the types of 16 and 8 bits have to round.
fn numbers(len: usize, dim: usize, seed: usize) -> Array2<f32> {
    Array2::from_shape_fn((len, dim), |(i, j)| {
        let x = ((i * dim + j + seed) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (x >> 40) as f32 / 8e5 - 10.3
    })
}

fn grow(cache: &mut Cache, keys: ArrayView2<'_, f32>, values: ArrayView2<'_, f32>) {
    let room = cache.room(keys.nrows()).unwrap();
    cache.append(keys.into(), values.into(), room);
}

/// Appends all keys and values, in calls of `counts` tokens, cyclically.
fn grow_in_parts(cache: &mut Cache, keys: &Array2<f32>, values: &Array2<f32>, counts: &[usize]) {
    let mut done = 0;
    for &count in counts.iter().cycle() {
        let end = (done + count).min(keys.nrows());
        grow(cache, keys.slice(s![done..end, ..]), values.slice(s![done..end, ..]));
        done = end;
        if done == keys.nrows() {
            return;
        }
    }
}

/// All bytes of all rows, padding included.
fn bytes(cache: &Cache) -> Vec<u8> {
    fn concat<T: IntoBytes + Immutable>(view: &CacheView<'_>, chunks: &[&[T]]) -> Vec<u8> {
        let per_chunk = view.row.stride << view.log2_per_chunk;
        let (last, full) = chunks.split_last().unwrap();
        assert!(full.iter().all(|chunk| chunk.len() == per_chunk));
        assert_eq!(full.len() * per_chunk + last.len(), view.len * view.row.stride);
        chunks.iter().flat_map(|chunk| chunk.as_bytes()).copied().collect()
    }
    let view = cache.view();
    match &view.slices {
        Slices::F32(chunks) => concat(&view, chunks),
        Slices::F16(chunks) => concat(&view, chunks),
        Slices::Bf16(chunks) => concat(&view, chunks),
        Slices::Q8(chunks) => concat(&view, chunks),
    }
}

/// Number of stored elements that are not zero; scales are not counted.
fn count_non_zero(view: &CacheView<'_>) -> usize {
    fn count<T: RowElement>(row: CacheRow, chunks: &[&[T]]) -> usize {
        let rows = chunks.iter().flat_map(|chunk| chunk.chunks(row.stride));
        let elements = rows.flat_map(|elements| &elements[..row.scale_offset]);
        elements.filter(|x| x.as_bytes().iter().any(|&byte| byte != 0)).count()
    }
    match &view.slices {
        Slices::F32(chunks) => count(view.row, chunks),
        Slices::F16(chunks) => count(view.row, chunks),
        Slices::Bf16(chunks) => count(view.row, chunks),
        Slices::Q8(chunks) => count(view.row, chunks),
    }
}

/// Nearest numbers of a storage type, by another way than that of the cache.
fn rounded(rows: &Array2<f32>, storage: Storage) -> Array2<f32> {
    match storage {
        Storage::F32 => rows.clone(),
        Storage::F16 => rows.mapv(|x| f16::from_f32(x).to_f32()),
        Storage::Bf16 => rows.mapv(|x| bf16::from_f32(x).to_f32()),
        Storage::Q8 => {
            let mut rounded = rows.clone();
            for mut row in rounded.rows_mut() {
                let largest = row.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
                // The scale is a multiple of 2^-16 of the power of two below it.
                let unit = ((largest / 127.0).log2().floor() - 16.0).exp2();
                let scale = (largest / 127.0 / unit).floor() * unit;
                row.mapv_inplace(|x| (x / scale).round_ties_even() * scale);
            }
            rounded
        }
    }
}

/// Number of bytes of all blocks of a cache.
fn allocated(cache: &Cache) -> usize {
    cache
        .full
        .iter()
        .map(|chunk| chunk.block.bytes())
        .chain(cache.tail.iter().map(MemoryBlock::bytes))
        .sum()
}

fn settings() -> ProptestConfig {
    ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(settings())]

    /// Evictions and appends alternate. Rows of live tokens stay the same, and pages without live
    /// tokens are freed, in the cache and in its fork.
    #[test]
    fn live_rows_stay_and_pages_without_live_rows_are_freed(
        dims in (1usize..70, 1usize..70),
        storage in prop::sample::select(&Storage::ALL[..]),
        log2_full in 0u32..8,
        rounds in prop::collection::vec((1usize..90, 0usize..100, 0usize..20), 1..6),
    ) {
        let all = 90 * rounds.len();
        let (keys, values) = (numbers(all, dims.0, 1), numbers(all, dims.1, 2));
        let mut cache = Cache::with_chunks(storage, dims.0, dims.1, ChunkSizes::new(4, log2_full));
        let mut never = Cache::with_chunks(storage, dims.0, dims.1, ChunkSizes::new(4, log2_full));
        let page = 16.min(1 << log2_full);
        let (mut live, mut len) = (vec![true; all], 0);
        for (new, keep, unseen) in rounds {
            let part = s![len..len + new, ..];
            grow(&mut cache, keys.slice(part), values.slice(part));
            grow(&mut never, keys.slice(part), values.slice(part));
            len += new;
            let mut remaining = Picks::new(len.saturating_sub(unseen));
            // Neighbours are mostly evicted together.
            let stays = |token: usize| (token / 24 * 37 + token / 100) % 100 < keep;
            let visible = remaining.visible();
            remaining.take_all((0..visible).filter(|&token| live[token] && stays(token)));
            (0..visible).for_each(|token| live[token] = remaining.contains(token));
            let before = cache.held_bytes();
            cache.free(&remaining).unwrap();
            let full = len / page * page;
            let alive = |first: &usize| (*first..first + page).any(|token| live[token]);
            let pages = (0..full).step_by(page).filter(alive).count();
            let least = (pages * page + len - full) * cache.row.bytes;
            let held = cache.held_bytes();
            prop_assert!(
                held == least || (before - least) * 4 < before,
                "{held} of {before}, {least} are live"
            );
            let held_chunks = cache.full.iter().filter(|chunk| !chunk.freed).count();
            let held_rows = cache.held_bytes() / cache.row.bytes;
            prop_assert!(cache.freed == 0 || held_chunks * page + len % page == held_rows);
            for cache in [&cache, &cache.fork().unwrap()] {
                let (view, whole) = (cache.view(), never.view());
                for (token, &is_live) in live.iter().enumerate().take(len) {
                    let row = |rows: Tokens<'_>| rows.to_array(token..token + 1);
                    if is_live {
                        prop_assert_eq!(row(view.keys()), row(whole.keys()), "key {}", token);
                        let expected = row(whole.values());
                        prop_assert_eq!(row(view.values()), expected, "value {}", token);
                    }
                    if cache.full.get(token / page).is_some_and(|chunk| chunk.freed) {
                        prop_assert!(row(view.keys()).iter().all(|&x| x == 0.0));
                    }
                }
            }
        }
    }

    /// The nearest numbers and zero padding are stored, in the same bytes for any division into
    /// calls and any memory layout of the input.
    #[test]
    fn stored_bytes_do_not_depend_on_calls_and_layouts(
        len in 1usize..50,
        dims in (1usize..70, 1usize..70),
        storage in prop::sample::select(&Storage::ALL[..]),
        sizes in (0u32..4, 0u32..5),
        counts in prop::collection::vec(0usize..20, 1..6),
        first in 0usize..50,
    ) {
        prop_assume!(counts.iter().any(|&count| count > 0));
        let (keys, values) = (numbers(len, dims.0, 1), numbers(len, dims.1, 2));
        let sizes = ChunkSizes::new(1 << sizes.0, sizes.1);
        let empty = || Cache::with_chunks(storage, dims.0, dims.1, sizes);
        let (mut once, mut single, mut blocks) = (empty(), empty(), empty());
        // Transposed, no row is a slice.
        let transposed = |rows: &Array2<f32>| rows.t().as_standard_layout().to_owned();
        grow(&mut once, transposed(&keys).t(), transposed(&values).t());
        grow_in_parts(&mut single, &keys, &values, &[1]);
        grow_in_parts(&mut blocks, &keys, &values, &counts);
        prop_assert_eq!(bytes(&once), bytes(&single));
        prop_assert_eq!(bytes(&once), bytes(&blocks));

        let view = once.view();
        let (keys, values) = (rounded(&keys, storage), rounded(&values, storage));
        prop_assert_eq!(view.keys().to_array(0..len), &keys);
        prop_assert_eq!(view.values().to_array(0..len), &values);
        let expected = keys.iter().chain(&values).filter(|&&x| x != 0.0).count();
        prop_assert_eq!(count_non_zero(&view), expected, "padding is not zero");

        let (first, rest) = (first.min(len), len.saturating_sub(first));
        let new = view.range(first..len);
        prop_assert_eq!((new.first, new.keys.len(), new.values.len()), (first, rest, rest));
        prop_assert_eq!(new.keys.to_array(0..rest), keys.slice(s![first.., ..]));
        prop_assert_eq!(new.values.to_array(0..rest), values.slice(s![first.., ..]));
    }

    /// A fork and its original store the same rows as two independent caches.
    #[test]
    fn forks_are_independent(
        len in 0usize..40,
        more in (1usize..40, 1usize..40),
        storage in prop::sample::select(&Storage::ALL[..]),
        log2_full in 0u32..5,
    ) {
        let sizes = ChunkSizes::new(2, log2_full);
        let (keys, values) = (numbers(len, 33, 3), numbers(len, 20, 4));
        let begin = || {
            let mut cache = Cache::with_chunks(storage, 33, 20, sizes);
            grow(&mut cache, keys.view(), values.view());
            cache
        };
        let extend = |cache: &mut Cache, count: usize, seed: usize| {
            let (keys, values) = (numbers(count, 33, seed), numbers(count, 20, seed + 1));
            grow_in_parts(cache, &keys, &values, &[3, 1, 7]);
        };
        let (mut original, mut left, mut right) = (begin(), begin(), begin());
        let mut fork = original.fork().unwrap();
        extend(&mut fork, more.0, 100);
        extend(&mut original, more.1, 200);
        extend(&mut left, more.0, 100);
        extend(&mut right, more.1, 200);
        prop_assert_eq!(bytes(&fork), bytes(&left));
        prop_assert_eq!(bytes(&original), bytes(&right));
        for (shared, (ours, theirs)) in fork.full.iter().zip(&original.full).enumerate() {
            prop_assert_eq!(Arc::ptr_eq(&ours.block, &theirs.block), shared < len >> log2_full);
        }
    }

    /// After rows were removed and others appended, a cache and its fork are as if the cache had
    /// never had the removed rows, in every type.
    #[test]
    fn removed_rows_leave_no_trace(
        kept in 0usize..120,
        removed in 0usize..80,
        more in 1usize..80,
        storage in prop::sample::select(&Storage::ALL[..]),
        log2_full in 0u32..7,
        forked in any::<bool>(),
        evicted in 0usize..120,
    ) {
        let sizes = ChunkSizes::new(2, log2_full);
        let count = kept + removed.max(more);
        let all = [numbers(count, 33, 3), numbers(count, 20, 4)];
        let others = [numbers(count, 33, 5), numbers(count, 20, 6)];
        let extend = |cache: &mut Cache, rows: &[Array2<f32>; 2], from: usize, to: usize| {
            let [keys, values] = rows;
            grow(cache, keys.slice(s![from..to, ..]), values.slice(s![from..to, ..]));
        };
        let begin = || {
            let mut cache = Cache::with_chunks(storage, 33, 20, sizes);
            extend(&mut cache, &all, 0, kept);
            cache
        };
        let (mut cut, mut expected) = (begin(), begin());
        extend(&mut cut, &others, kept, kept + removed);
        let mut live = Picks::new(kept);
        live.take_range(evicted.min(kept)..kept);
        cut.free(&live).unwrap();
        let fork = forked.then(|| cut.fork().unwrap());
        let before = fork.as_ref().map(|fork| fork.view().keys().to_array(0..kept + removed));
        cut.truncate(kept).unwrap();
        prop_assert_eq!(cut.len(), kept);
        extend(&mut cut, &all, kept, kept + more);
        extend(&mut expected, &all, kept, kept + more);
        let live = evicted.min(kept)..kept + more;
        prop_assert!(!cut.has_freed(live.clone()));
        for rows in [CacheView::keys, CacheView::values] {
            let (found, expected) = (cut.view(), expected.view());
            prop_assert_eq!(
                rows(&found).to_array(live.clone()),
                rows(&expected).to_array(live.clone())
            );
        }
        if evicted == 0 {
            prop_assert_eq!(bytes(&cut), bytes(&expected));
            prop_assert_eq!(cut.held_bytes(), expected.held_bytes());
        }
        let after = fork.as_ref().map(|fork| fork.view().keys().to_array(0..kept + removed));
        prop_assert_eq!(before, after, "the fork has changed");
    }

    /// Less than one chunk is unused, and less than half of the memory of a short sequence.
    #[test]
    fn little_memory_is_unused(
        counts in prop::collection::vec(1usize..40, 1..8),
        log2_full in 3u32..7,
    ) {
        let mut cache = Cache::with_chunks(Storage::F16, 32, 32, ChunkSizes::new(8, log2_full));
        for count in counts {
            grow(&mut cache, numbers(count, 32, 5).view(), numbers(count, 32, 6).view());
            let (needed, row) = (cache.len() * 128, 128);
            prop_assert!(allocated(&cache) < needed + (row << log2_full));
            if cache.full.is_empty() {
                prop_assert!(allocated(&cache) < (2 * needed).max(8 * row + 1));
            }
        }
    }
}

#[test]
fn rows_are_padded_and_chunks_fill_huge_pages() {
    for (storage, head_dim, value_dim, value_offset, stride, full) in [
        (Storage::F32, 128, 128, 128, 256, 2048),
        (Storage::Bf16, 128, 128, 128, 256, 4096),
        (Storage::F16, 128, 128, 128, 256, 4096),
        (Storage::F16, 1, 33, 32, 96, 8192),
        (Storage::F32, 80, 80, 96, 192, 2048),
        (Storage::Q8, 128, 128, 128, 264, 8192),
        (Storage::Q8, 33, 64, 64, 136, 16384),
        (Storage::F32, 1 << 20, 1, 1 << 20, (1 << 20) + 32, 1),
    ] {
        let cache = Cache::new(storage, head_dim, value_dim);
        assert_eq!((cache.row.value_offset, cache.row.stride), (value_offset, stride));
        assert_eq!(cache.sizes.full(), full);
        let bytes = cache.row.scale_offset * storage.number_bytes() * full;
        assert!(full == 1 || (bytes <= HUGE_PAGE && 2 * bytes > HUGE_PAGE));
    }
}

/// Addresses of the chunks of a view.
fn addresses(cache: &Cache) -> Vec<usize> {
    match cache.view().slices {
        Slices::F32(chunks) => chunks.iter().map(|chunk| chunk.as_ptr().addr()).collect(),
        _ => unreachable!("the tests of addresses store f32"),
    }
}

#[test]
fn chunks_are_aligned_and_full_ones_never_move() {
    let mut cache = Cache::new(Storage::F32, 100, 200);
    let (full, mut before) = (cache.sizes.full(), Vec::new());
    let (keys, values) = (numbers(full / 4, 100, 7), numbers(full / 4, 200, 8));
    for quarter in 1..=9 {
        grow(&mut cache, keys.view(), values.view());
        let chunks = addresses(&cache);
        assert!(chunks.iter().all(|address| address.is_multiple_of(64)));
        let whole = quarter / 4;
        assert!(chunks[..whole].iter().all(|address| address.is_multiple_of(HUGE_PAGE)));
        assert!(chunks.starts_with(&before[..before.len().min((quarter - 1) / 4)]));
        before = chunks;
    }
    assert_eq!(before.len(), 3);
}

#[test]
fn a_short_sequence_holds_64_rows() {
    let mut cache = Cache::new(Storage::F32, 32, 32);
    assert_eq!(allocated(&cache), 0);
    let mut grow = |count| {
        grow(&mut cache, numbers(count, 32, 9).view(), numbers(count, 32, 9).view());
        allocated(&cache) / cache.row.bytes
    };
    assert_eq!([grow(1), grow(63), grow(1), grow(200)], [64, 64, 128, 512]);
}

#[test]
fn a_failed_allocation_is_an_error_and_changes_nothing() {
    let large = |first: usize, log2_full| {
        Cache::with_chunks(Storage::F32, 4, 4, ChunkSizes::new(first, log2_full))
    };
    // More bytes than the address space has, and more than a usize can express.
    for (first, log2_full, bytes) in [(1 << 45, 50, 1 << 53), (1 << 60, 60, usize::MAX)] {
        let cache = large(first, log2_full);
        let error = cache.room(1).unwrap_err();
        assert!(matches!(error, Error::Memory { bytes: got } if got == bytes), "{error}");
        assert_eq!(
            error.to_string(),
            format!("out of memory: cannot allocate another {bytes} bytes")
        );
    }
    let mut cache = large(2, 50);
    grow(&mut cache, numbers(3, 4, 1).view(), numbers(3, 4, 2).view());
    let before = (bytes(&cache), allocated(&cache), addresses(&cache));
    cache.room(1 << 48).unwrap_err();
    assert_eq!((bytes(&cache), allocated(&cache), addresses(&cache)), before);
    grow(&mut cache, numbers(3, 4, 3).view(), numbers(3, 4, 4).view());
    assert_eq!(cache.len(), 6);
}

#[test]
fn sizes_that_overflow_fail_when_they_are_allocated() {
    let cache = Cache::new(Storage::F32, usize::MAX, 3);
    assert_eq!(cache.len(), 0);
    assert!(matches!(cache.room(1), Err(Error::Memory { bytes: usize::MAX })));
}
