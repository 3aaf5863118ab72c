//! Logits: rows times queries.

use super::rows::{BLOCK_ROWS, Block, Rows, Span, prefetch};
use super::{LANES, LEAST, Line, flat};
use crate::cpu::simd::{CHUNK, Element, Kernel, Level, Simd};

/// Keys to multiply with queries.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a, E> {
    pub(crate) rows: &'a Rows<'a, E>,
    pub(crate) block: &'a Block<E>,
    /// The rows to fetch meanwhile, the first `ahead` of them.
    pub(crate) next: &'a Block<E>,
    pub(crate) ahead: usize,
    /// `[H][key_chunks · CHUNK]`.
    pub(crate) queries: *const f32,
}

impl<E: Element> Keys<'_, E> {
    /// The logits of a block, `[rows][H]`; those of rows that it has not are [`LEAST`].
    #[inline(always)]
    pub(crate) unsafe fn score<S: Simd, const H: usize>(&self, scores: &mut [Line]) {
        for (i, line) in scores.iter_mut().enumerate() {
            let mut sums = [S::splat(0.0); LANES];
            let first = i * (LANES / H);
            match (H, S::WIDE) {
                (4, true) => self.dots_in::<S, 4, 4>(first, &mut sums),
                (2, true) => self.dots_in::<S, 2, 8>(first, &mut sums),
                (_, true) => self.dots_in::<S, 1, 16>(first, &mut sums),
                (4, false) => self.dots_in::<S, 4, 1>(first, &mut sums),
                (2, false) => self.dots_in::<S, 2, 2>(first, &mut sums),
                (_, false) => self.dots_in::<S, 1, 4>(first, &mut sums),
            }
            S::store(line.0.as_mut_ptr(), S::sums(&sums));
            let there = (self.block.len * H).saturating_sub(i * LANES).min(LANES);
            line.0[there..].fill(LEAST);
        }
    }

    /// Sixteen products, from row `first` on: of `R` rows with `H` queries at a time.
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

    /// Products that stay in registers: sixteen or four of them.
    #[inline(always)]
    unsafe fn dots<S: Simd, const H: usize, const R: usize>(&self, first: usize, out: *mut S::F) {
        let chunks = self.rows.key_chunks();
        let keys = self.block.keys.as_ptr().add(first);
        let next = self.next.keys.as_ptr().add(first);
        let ahead = self.ahead.saturating_sub(first).min(R);
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
                    let query = self.queries.add(head * chunks * CHUNK + at);
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
        let tokens = Span::Range(0, rows.len());
        let mut first = 0;
        while first < tokens.len() {
            let block = Block::new::<4>(rows, &tokens, first);
            for tile in 0..tiles {
                let queries = queries.as_ptr().add(tile * 4 * rows.key_chunks() * 2).cast();
                let mut lines = [Line([0.0; LANES]); BLOCK_ROWS / 4];
                let used = &mut lines[..block.len.div_ceil(4)];
                let keys = Keys { rows, block: &block, next: &block, ahead: 0, queries };
                keys.score::<S, 4>(used);
                let heads = out.chunks_exact_mut(tokens.len()).skip(tile * 4).take(4);
                for (head, out) in heads.enumerate() {
                    let scores = flat(used).iter().skip(head).step_by(4);
                    out[first..][..block.len].iter_mut().zip(scores).for_each(|(out, x)| *out = *x);
                }
            }
            first += block.len;
        }
    }
}
