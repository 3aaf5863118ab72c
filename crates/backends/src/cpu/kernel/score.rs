//! Logits: rows times queries.

use super::rows::{BLOCK_ROWS, Block, Span, prefetch};
use super::{LANES, LEAST, Line, flat};
use crate::cache::Chunks;
use crate::cpu::simd::{CHUNK, Element, Kernel, Level, Simd};

/// The logits of a block, `[rows][H]`; those of rows that it has not are [`LEAST`].
#[inline(always)]
pub(crate) unsafe fn score_block<S: Simd, E: Element, const H: usize>(
    rows: &Chunks<'_, E>,
    block: &Block<E>,
    next: &Block<E>,
    ahead: usize,
    queries: *const f32,
    scores: &mut [Line],
) {
    let per_tile = LANES / H;
    for (i, line) in scores.iter_mut().enumerate() {
        let first = i * per_tile;
        let mut sums = [S::splat(0.0); LANES];
        let keys = block.keys.as_ptr().add(first);
        let next_keys = next.keys.as_ptr().add(first);
        let ahead = ahead.saturating_sub(first).min(per_tile);
        let chunks = rows.key_chunks();
        macro_rules! dots {
            ($heads:literal, $rows:literal) => {{
                const { assert!(LANES % ($heads * $rows) == 0) };
                for part in (0..per_tile).step_by($rows) {
                    let out = sums.as_mut_ptr().add(part * H);
                    let ahead = ahead.saturating_sub(part).min($rows);
                    dots::<S, E, $heads, $rows>(
                        keys.add(part),
                        next_keys.add(part),
                        ahead,
                        queries,
                        chunks,
                        out,
                    );
                }
            }};
        }
        match (H, S::WIDE) {
            (4, true) => dots!(4, 4),
            (2, true) => dots!(2, 8),
            (_, true) => dots!(1, 16),
            (4, false) => dots!(4, 1),
            (2, false) => dots!(2, 2),
            (_, false) => dots!(1, 4),
        }
        S::store(line.0.as_mut_ptr(), S::sums(&sums));
        for lane in (block.len * H).saturating_sub(i * LANES).min(LANES)..LANES {
            line.0[lane] = LEAST;
        }
    }
}

/// `R` rows times `H` queries: sixteen or four products at once, in registers.
#[inline(always)]
unsafe fn dots<S: Simd, E: Element, const H: usize, const R: usize>(
    keys: *const *const E,
    next: *const *const E,
    ahead: usize,
    queries: *const f32,
    chunks: usize,
    out: *mut S::F,
) {
    let mut sums = [[S::splat(0.0); H]; R];
    for chunk in 0..chunks {
        let at = chunk * CHUNK;
        for row in 0..R {
            if row < ahead {
                prefetch::<S, E>((*next.add(row)).add(at));
            }
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let (low, high) = E::widen::<S>((*keys.add(row)).add(at));
            for (head, sum) in sums.iter_mut().enumerate() {
                let query = queries.add(head * chunks * CHUNK + at);
                *sum = S::fma(low, S::load(query), *sum);
                *sum = S::fma(high, S::load(query.add(LANES)), *sum);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (head, sum) in sums.iter().enumerate() {
            *out.add(row * H + head) = *sum;
        }
    }
}

/// Logits alone, of all rows of `rows`, into `[tiles · 4][rows]`.
///
/// # Panics
/// If a size does not fit.
pub(crate) fn scores<E: Element>(
    level: Level,
    rows: &Chunks<'_, E>,
    queries: &[Line],
    out: &mut [f32],
) {
    let count = rows.len;
    let tiles = queries.len() / (4 * rows.key_chunks() * 2);
    assert_eq!(queries.len(), tiles * 4 * rows.key_chunks() * 2, "queries");
    assert_eq!(out.len(), count * tiles * 4, "scores");
    // SAFETY: the sizes are checked above, and every row up to `count` is in `rows`.
    unsafe { level.run(Scores { rows, queries, tiles, out }) }
}

struct Scores<'a, 'r, E> {
    rows: &'a Chunks<'r, E>,
    queries: &'a [Line],
    tiles: usize,
    out: &'a mut [f32],
}

impl<E: Element> Kernel for Scores<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, queries, tiles, out } = self;
        let tokens = Span::Range(0, rows.len);
        let mut first = 0;
        while first < tokens.len() {
            let block = Block::new::<4>(rows, &tokens, first);
            for tile in 0..tiles {
                let queries = queries.as_ptr().add(tile * 4 * rows.key_chunks() * 2).cast();
                let mut lines = [Line([0.0; LANES]); BLOCK_ROWS / 4];
                let used = &mut lines[..block.len.div_ceil(4)];
                score_block::<S, E, 4>(rows, &block, &block, 0, queries, used);
                for (head, out) in out.chunks_exact_mut(rows.len).skip(tile * 4).take(4).enumerate()
                {
                    let scores = flat(used).iter().skip(head).step_by(4);
                    out[first..][..block.len].iter_mut().zip(scores).for_each(|(out, x)| *out = *x);
                }
            }
            first += block.len;
        }
    }
}
