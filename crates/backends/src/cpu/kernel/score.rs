//! Logits: rows times queries.

use super::rows::{Block, RowWindow, Rows, Span};
use super::{BLOCK_LINES, LANES, LEAST, Line, flat};
use crate::cpu::simd::{CHUNK, Element, Kernel, Level, Simd};

/// Keys to multiply with the queries of a tile, `[H][key_chunks · CHUNK]`, of which the first `N`
/// are not zero. With `AHEAD`, the rows ahead are requested meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'b, 'w, 'a, E, const N: usize, const AHEAD: bool> {
    pub(crate) block: &'b Block<'w, 'a, E>,
    pub(crate) queries: *const f32,
}

impl<E: Element, const N: usize, const AHEAD: bool> Keys<'_, '_, '_, E, N, AHEAD> {
    /// Logits of a block, `[rows][H]`; those past its end are [`LEAST`].
    #[inline(always)]
    pub(crate) unsafe fn score<S: Simd, const H: usize>(&self, scores: &mut [Line]) {
        for (i, line) in scores.iter_mut().enumerate() {
            let mut sums = [S::splat(0.0); LANES];
            let first = i * (LANES / H);
            match (H, S::WIDE) {
                (4, true) => self.dots_in::<S, H, 4>(first, &mut sums),
                (2, true) => self.dots_in::<S, H, 8>(first, &mut sums),
                (_, true) => self.dots_in::<S, H, 16>(first, &mut sums),
                (4, false) => self.dots_in::<S, H, 1>(first, &mut sums),
                (2, false) => self.dots_in::<S, H, 2>(first, &mut sums),
                (_, false) => self.dots_in::<S, H, 4>(first, &mut sums),
            }
            S::store(line.0.as_mut_ptr(), S::sums(&sums));
            let there = (self.block.len * H).saturating_sub(i * LANES).min(LANES);
            line.0[there..].fill(LEAST);
        }
    }

    /// Sixteen products, from row `first` on: of `R` rows with the queries at a time.
    #[inline(always)]
    unsafe fn dots_in<S: Simd, const H: usize, const R: usize>(
        &self,
        first: usize,
        sums: &mut [S::F; LANES],
    ) {
        for part in (0..LANES / H).step_by(R) {
            // Loops of different rows must not be made one: there are no registers for that.
            let row = if S::WIDE { first + part } else { std::hint::black_box(first + part) };
            self.dots::<S, H, R>(row, sums.as_mut_ptr().add(part * H));
        }
    }

    /// Products that stay in registers: at most sixteen or four of them, `[R][H]`.
    #[inline(always)]
    unsafe fn dots<S: Simd, const H: usize, const R: usize>(&self, first: usize, out: *mut S::F) {
        let chunks = self.block.rows().key_chunks();
        let keys: [_; R] = std::array::from_fn(|row| self.block.key(first + row));
        let mut sums = [[S::splat(0.0); N]; R];
        for offset in (0..chunks * CHUNK).step_by(CHUNK) {
            for (key, sums) in keys.iter().zip(&mut sums) {
                if AHEAD {
                    key.prefetch::<S>(offset);
                }
                let (low, high) = E::widen::<S>(key.here.add(offset));
                for (head, sum) in sums.iter_mut().enumerate() {
                    let query = self.queries.add(head * chunks * CHUNK + offset);
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
}

/// Logits alone, of all rows of `rows`, into `[tiles · 4][rows]`.
///
/// # Panics
/// If a size does not fit.
pub(crate) fn scores<E: Element>(
    level: Level,
    rows: &Rows<'_, E>,
    queries: &[Line],
    out: &mut [f32],
) {
    let count = rows.len();
    let tiles = queries.len() / (4 * rows.key_chunks() * 2);
    assert_eq!(queries.len(), tiles * 4 * rows.key_chunks() * 2, "queries");
    assert_eq!(out.len(), count * tiles * 4, "scores");
    // SAFETY: the sizes are checked above, and every row up to `count` is in `rows`.
    unsafe { level.run(Scores { rows, queries, tiles, out }) }
}

struct Scores<'a, 'r, E> {
    rows: &'a Rows<'r, E>,
    queries: &'a [Line],
    tiles: usize,
    out: &'a mut [f32],
}

impl<E: Element> Kernel for Scores<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { rows, queries, tiles, out } = self;
        let count = rows.len();
        if count == 0 {
            return;
        }
        let mut window = RowWindow::new(rows, Span::Range(0, count));
        for first in (0..count).step_by(rows.block_rows::<S, 4>()) {
            let block = window.block(first, rows.block_rows::<S, 4>());
            for tile in 0..tiles {
                let queries = queries.as_ptr().add(tile * 4 * rows.key_chunks() * 2).cast();
                let mut lines = [Line([0.0; LANES]); BLOCK_LINES];
                let used = &mut lines[..block.len.div_ceil(4)];
                Keys::<E, 4, false> { block: &block, queries }.score::<S, 4>(used);
                let heads = out.chunks_exact_mut(count).skip(tile * 4).take(4);
                for (head, out) in heads.enumerate() {
                    let scores = flat(used).iter().skip(head).step_by(4);
                    out[first..][..block.len].iter_mut().zip(scores).for_each(|(out, x)| *out = *x);
                }
            }
        }
    }
}
