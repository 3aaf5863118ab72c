//! Rows of a list, kept one after the other: logits, values and their lengths.

use super::rows::{BLOCK_ROWS, Block, RowWindow};
use super::value::norm_block;
use super::{BLOCK_LINES, LANES, LEAST, Line, Pass, note_logits, score_tile};
use crate::cpu::simd::{CHUNK, Element, Kernel, Level, Simd};

/// Parts of rows that are kept.
#[derive(Debug)]
pub(crate) struct GatheredRows<'a, E> {
    /// `[tiles · H][rows]`
    pub(crate) logits: &'a mut [f32],
    /// Lengths of the values, `[rows]`.
    pub(crate) norms: &'a mut [f32],
    /// `[rows][value_chunks · CHUNK]`
    pub(crate) values: &'a mut [E],
}

/// Keeps the rows of `pass`, for tiles of `heads` query heads: 1, 2 or 4.
///
/// # Panics
/// If a size does not fit, or a token is not in `pass.rows`.
pub(crate) fn gather<E: Element>(
    level: Level,
    heads: usize,
    pass: &Pass<'_, E>,
    out: GatheredRows<'_, E>,
) {
    let (count, tiles) = (pass.tokens.len(), pass.check_tiles(heads));
    assert_eq!(out.logits.len(), count * tiles * heads, "logits");
    assert_eq!(out.norms.len(), count, "norms");
    assert_eq!(out.values.len(), count * pass.rows.value_chunks() * CHUNK, "values");
    // SAFETY: all that the kernel reads and writes is checked above.
    unsafe {
        match heads {
            1 => level.run(Gather::<'_, '_, E, 1> { pass, out }),
            2 => level.run(Gather::<'_, '_, E, 2> { pass, out }),
            _ => level.run(Gather::<'_, '_, E, 4> { pass, out }),
        }
    }
}

struct Gather<'a, 'p, E, const H: usize> {
    pass: &'a Pass<'p, E>,
    out: GatheredRows<'a, E>,
}

impl<E: Element, const H: usize> Kernel for Gather<'_, '_, E, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Pass { rows, tokens, query_heads, .. } = self.pass;
        if tokens.len() == 0 {
            return;
        }
        let mut window = RowWindow::new(rows, *tokens);
        window.prefetch_first::<S>();
        for first in (0..tokens.len()).step_by(rows.block_rows::<S, H>()) {
            let block = window.block(first, rows.block_rows::<S, H>());
            for tile in 0..query_heads.div_ceil(H) {
                // The first tile requests keys for all.
                match (H, *query_heads == tile * H + 3, tile) {
                    (4, true, 0) => self.score::<S, 3, true>(&block, tile),
                    (4, true, _) => self.score::<S, 3, false>(&block, tile),
                    (_, _, 0) => self.score::<S, H, true>(&block, tile),
                    _ => self.score::<S, H, false>(&block, tile),
                }
            }
            self.keep_values::<S>(&block);
        }
    }
}

impl<E: Element, const H: usize> Gather<'_, '_, E, H> {
    /// Keeps the logits of a block for a tile, of which `N` query heads are not zero.
    #[inline(always)]
    unsafe fn score<S: Simd, const N: usize, const AHEAD: bool>(
        &mut self,
        block: &Block<'_, '_, E>,
        tile: usize,
    ) {
        let mut scores = [Line([LEAST; LANES]); BLOCK_LINES];
        let used = score_tile::<E, S, H, N, AHEAD>(self.pass, block, tile, &mut scores);
        note_logits::<E, H>(block, tile, used, self.out.logits);
    }

    #[inline(always)]
    unsafe fn keep_values<S: Simd>(&mut self, block: &Block<'_, '_, E>) {
        let stride = block.rows().value_chunks() * CHUNK;
        for row in 0..block.len {
            let value = block.value(row);
            let to = self.out.values.as_mut_ptr().add((block.first + row) * stride);
            for at in (0..stride).step_by(CHUNK) {
                value.prefetch::<S>(at);
                std::ptr::copy_nonoverlapping(value.here.add(at), to.add(at), CHUNK);
            }
        }
        let mut norms = [0.0; BLOCK_ROWS];
        norm_block::<S, E>(block, &mut norms);
        self.out.norms[block.first..][..block.len].copy_from_slice(&norms[..block.len]);
    }
}
