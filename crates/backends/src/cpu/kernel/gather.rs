//! Logits of a list's rows, and copies of their values.

use vattention_core::step::StepThreads;

use super::blocks::{Pointers, RowBlock, RowSource};
use super::score::BlockKeys;
use super::tiles::{TileKernel, record_logits, run_on_tiles};
use super::window::RowWindow;
use super::{BLOCK_LINES, LANES, LEAST, Pass, SimdLine, flat};
use crate::cpu::simd::{CHUNK, Level, Simd, SimdElement, SimdKernel};

/// Output of [`gather`].
#[derive(Debug)]
pub(crate) struct GatheredRows<'a, T> {
    /// `[parts][tiles · H][rows]`
    pub(crate) logits: &'a mut [f32],
    /// Values with their scales, `[rows][value_chunks · CHUNK]`, which are appended.
    pub(crate) values: &'a mut Vec<T>,
}

/// Computes logits for the rows of `pass`, and appends copies of their values. `heads` is the
/// number of query heads in a tile: 1, 2 or 4. The work is divided into parts of `len` rows.
///
/// # Panics
/// If sizes do not match, or a token is not in `pass.rows`.
pub(crate) fn gather<E: SimdElement>(
    level: Level,
    (threads, len): (StepThreads<'_>, usize),
    heads: usize,
    pass: &Pass<'_, E>,
    out: GatheredRows<'_, E::Sample>,
) {
    let (count, tiles) = (pass.tokens.len(), pass.check_tiles(heads));
    let GatheredRows { logits, values } = out;
    let (logits_of_row, stride) = (tiles * heads, pass.rows.value_chunks() * CHUNK);
    assert_eq!(logits.len(), count * logits_of_row, "logits");
    let elements = count * stride;
    values.reserve(elements);
    let new_values = &mut values.spare_capacity_mut()[..elements];
    let parts = logits.chunks_mut(len * logits_of_row).zip(new_values.chunks_mut(len * stride));
    let parts = parts.enumerate().map(|(part, (logits, values))| {
        let pass = Pass { tokens: pass.tokens.part(part * len, len), ..*pass };
        (pass, logits, values)
    });
    threads.map(parts.collect(), |(pass, logits, values)| {
        let (pass, values) = (&pass, values.as_mut_ptr().cast());
        // SAFETY: the sizes of everything that the kernel reads are checked above, and `values` has
        // memory for the values of all rows of the part.
        unsafe {
            match heads {
                1 => level.run(GatherKernel::<'_, '_, E, 1> { pass, logits, values }),
                2 => level.run(GatherKernel::<'_, '_, E, 2> { pass, logits, values }),
                _ => level.run(GatherKernel::<'_, '_, E, 4> { pass, logits, values }),
            }
        }
    });
    // SAFETY: the kernels have written the values of all parts.
    unsafe { values.set_len(values.len() + elements) }
}

struct GatherKernel<'a, 'p, E: SimdElement, const H: usize> {
    pass: &'a Pass<'p, E>,
    logits: &'a mut [f32],
    /// Memory for the values.
    values: *mut E::Sample,
}

impl<E: SimdElement, const H: usize> SimdKernel for GatherKernel<'_, '_, E, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Pass { rows, tokens, query_heads, .. } = self.pass;
        if tokens.len() == 0 {
            return;
        }
        let mut window = RowWindow::new(rows, *tokens, 0, rows.strip_rows(*query_heads > H));
        window.prefetch_first::<S>();
        for first in (0..tokens.len()).step_by(window.strip_rows()) {
            let strip = window.strip::<S>(first);
            run_on_tiles::<S, E, _, _, H>(&mut self, *query_heads, &strip);
        }
    }
}

impl<E: SimdElement, P: Pointers<E>, const H: usize> TileKernel<E, P>
    for GatherKernel<'_, '_, E, H>
{
    /// Computes the logits of a strip for a tile. For the first tile it also copies the values,
    /// block by block, so that keys and values are requested at equal intervals.
    #[inline(always)]
    unsafe fn run<S: Simd, const N: usize, const C: usize, const AHEAD: bool>(
        &mut self,
        strip: &RowBlock<'_, E, P>,
        tile: usize,
    ) {
        let len = self.pass.rows.block_rows::<S, H, C>();
        let mut logits = [SimdLine([LEAST; LANES]); BLOCK_LINES];
        for first in (0..strip.len).step_by(len) {
            let block = strip.part(first, len);
            let logits = &mut logits[..block.logit_lines::<H, C>()];
            BlockKeys::<E, P, N, C, AHEAD>::new(self.pass, &block, tile).score::<S, H>(logits);
            record_logits::<E, P, H>(&block, self.pass, tile, logits, self.logits);
            if tile == 0 {
                self.copy_values::<S, P, C>(&block);
            }
        }
    }
}

impl<E: SimdElement, const H: usize> GatherKernel<'_, '_, E, H> {
    #[inline(always)]
    unsafe fn copy_values<S: Simd, P: Pointers<E>, const C: usize>(
        &self,
        block: &RowBlock<'_, E, P>,
    ) {
        let stride = block.value_chunks::<C>() * CHUNK;
        let mut scales = if E::SCALED { Some(block.value_scales::<1>()) } else { None };
        for row in 0..block.len {
            let scale = match &mut scales {
                Some(scales) => flat(scales)[row],
                None => 1.0,
            };
            let value = block.value(row);
            let to = self.values.add((block.first + row) * stride);
            for offset in (0..stride).step_by(CHUNK) {
                value.prefetch::<S>(offset, RowBlock::<E, P>::prefetches_near::<C>());
                E::copy_chunk::<S>(value.here.add(offset), scale, to.add(offset));
            }
        }
    }
}
