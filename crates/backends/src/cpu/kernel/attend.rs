//! Sums over the rows of a pass.

use std::ops::Range;

use super::blocks::{Pointers, RowBlock, RowSource};
use super::in_order::RowsInOrder;
use super::rows::BLOCK_ROWS;
use super::score::BlockKeys;
use super::tile_sums::TileSums;
use super::tiles::{TileKernel, record_logits, run_on_tiles};
use super::value::{BlockValues, norm_block};
use super::window::RowWindow;
use super::{BLOCK_LINES, FOLD, LEAST, Pass, SimdLine, flat};
use crate::cpu::simd::{LANES, Level, Simd, SimdElement, SimdKernel};

/// Output for single rows.
#[derive(Debug)]
pub(crate) struct PerRow<'a> {
    /// Logits without the weights, `[tiles · H][rows]`.
    pub(crate) logits: &'a mut [f32],
    /// Norms of the values, `[rows]`.
    pub(crate) norms: &'a mut [f32],
}

/// Adds the rows of `pass` to the sums of its query heads. `heads` is the number of query heads in
/// a tile: 1, 2 or 4.
///
/// # Panics
/// If sizes do not match, or a token is not in `pass.rows`.
pub(crate) fn attend<E: SimdElement>(
    level: Level,
    heads: usize,
    pass: &Pass<'_, E>,
    sums: &mut [TileSums],
    per_row: Option<PerRow<'_>>,
) {
    pass.check(heads, sums, per_row.as_ref());
    // SAFETY: `check` checks the sizes of everything that the kernel reads and writes.
    unsafe {
        match heads {
            1 => level.run(AttendKernel::<'_, '_, E, 1> { pass, sums, per_row }),
            2 => level.run(AttendKernel::<'_, '_, E, 2> { pass, sums, per_row }),
            _ => level.run(AttendKernel::<'_, '_, E, 4> { pass, sums, per_row }),
        }
    }
}

impl<E: SimdElement> Pass<'_, E> {
    fn check(&self, heads: usize, sums: &[TileSums], per_row: Option<&PerRow<'_>>) {
        let (rows, count) = (&self.rows, self.tokens.len());
        assert_eq!(self.check_tiles(heads), sums.len(), "query heads");
        for tile in sums {
            assert_eq!(tile.recent.len(), heads * rows.value_chunks() * 2, "numerators");
        }
        assert!(self.log_weights.is_none_or(|weights| weights.len() == count), "weights");
        if let Some(per_row) = per_row {
            assert_eq!(per_row.logits.len(), count * sums.len() * heads, "logits");
            assert_eq!(per_row.norms.len(), count, "norms");
        }
    }
}

struct AttendKernel<'a, 'p, E, const H: usize> {
    pass: &'a Pass<'p, E>,
    sums: &'a mut [TileSums],
    per_row: Option<PerRow<'a>>,
}

impl<E: SimdElement, const H: usize> SimdKernel for AttendKernel<'_, '_, E, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Pass { rows, tokens, query_heads, .. } = self.pass;
        let strip = rows.strip_rows(*query_heads > H);
        let mut in_order = 0;
        if let Some(source) = RowsInOrder::new(rows, *tokens, strip) {
            in_order = source.len();
            self.add_rows::<S, _>(0..in_order, source);
        }
        if in_order < tokens.len() {
            let source = RowWindow::new(rows, *tokens, in_order, strip);
            self.add_rows::<S, _>(in_order..tokens.len(), source);
        }
        self.fold::<S>();
    }
}

impl<E: SimdElement, const H: usize> AttendKernel<'_, '_, E, H> {
    /// Adds the rows at some positions of the pass.
    #[inline(always)]
    unsafe fn add_rows<'r, S: Simd, R: RowSource<'r, E>>(
        &mut self,
        positions: Range<usize>,
        mut source: R,
    ) {
        source.prefetch_first::<S>();
        for first in positions.step_by(source.strip_rows()) {
            let strip = source.strip::<S>(first);
            run_on_tiles::<S, E, _, _, H>(self, self.pass.query_heads, &strip);
            if let Some(per_row) = &mut self.per_row {
                record_norms::<S, E, _>(&strip, per_row.norms);
            }
            if first / FOLD < (first + strip.len) / FOLD {
                self.fold::<S>();
            }
        }
    }

    /// Adds the numerators of recent rows to the sums in f64.
    #[inline(always)]
    unsafe fn fold<S: Simd>(&mut self) {
        // A loop, because `for_each` is not inlined.
        for sums in &mut *self.sums {
            sums.fold::<S>();
        }
    }
}

/// Copies the norms of a strip's values to those of all rows.
#[inline(always)]
unsafe fn record_norms<S: Simd, E: SimdElement, P: Pointers<E>>(
    strip: &RowBlock<'_, E, P>,
    all: &mut [f32],
) {
    for first in (0..strip.len).step_by(BLOCK_ROWS) {
        let block = strip.part(first, BLOCK_ROWS);
        let mut norms = [0.0; BLOCK_ROWS];
        norm_block::<S, E, P>(&block, &mut norms);
        all[block.first..][..block.len].copy_from_slice(&norms[..block.len]);
    }
}

impl<E: SimdElement, P: Pointers<E>, const H: usize> TileKernel<E, P>
    for AttendKernel<'_, '_, E, H>
{
    /// Adds a strip to the sums of a tile. If vectors are short (`C > 0`), the values of a block
    /// are added after the products of the next block's keys, so that processors do not wait for
    /// exponentials.
    #[inline(always)]
    unsafe fn run<S: Simd, const N: usize, const C: usize, const AHEAD: bool>(
        &mut self,
        strip: &RowBlock<'_, E, P>,
        tile: usize,
    ) {
        let Self { pass, sums, per_row } = self;
        let (sums, len) = (&mut sums[tile], pass.rows.block_rows::<S, H, C>());
        let mut logits = [SimdLine([LEAST; LANES]); BLOCK_LINES];
        let mut weights = [SimdLine([0.0; LANES]); BLOCK_LINES];
        let mut before = strip.part(0, 0);
        let mut rest = *strip;
        loop {
            let block = rest.part(0, len);
            let logits = &mut logits[..block.logit_lines::<H, C>()];
            if block.len > 0 {
                BlockKeys::<E, P, N, C, AHEAD>::new(pass, &block, tile).score::<S, H>(logits);
            }
            if C > 0 && before.len > 0 {
                let weights = &mut weights;
                BlockValues::<E, P, N, C, AHEAD> { block: &before }.add::<S, H>(weights, sums);
            }
            if block.len == 0 {
                return;
            }
            if let Some(per_row) = per_row {
                record_logits::<E, P, H>(&block, pass, tile, logits, per_row.logits);
            }
            if let Some(log_weights) = pass.log_weights {
                add_weights::<H>(logits, &log_weights[block.first..]);
            }
            sums.weigh::<S, H>(logits, &mut weights);
            if C == 0 {
                BlockValues::<E, P, N, C, AHEAD> { block: &block }.add::<S, H>(&mut weights, sums);
            }
            rest = rest.part(block.len, rest.len);
            before = block;
        }
    }
}

/// Adds the base-2 logarithms of the rows' weights to their logits `[rows][H]`.
#[inline(always)]
fn add_weights<const H: usize>(logits: &mut [SimdLine], weights: &[f32]) {
    let rows = flat(logits).chunks_exact_mut(H);
    for (logits, weight) in rows.zip(weights) {
        for logit in logits {
            *logit += weight;
        }
    }
}
