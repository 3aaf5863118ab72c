//! Queries in the number type that keys are multiplied with.
//!
//! Keys of 8 bits are multiplied as integers: a query is rounded to integers of 16 bits, whose
//! scale is a power of two, so that queries of few bits stay exact. The error of an element is at
//! most 1 / 32767 of the largest, which changes a logit much less than the rounding of the key.

use vattention_core::step::{Scratch, largest_query_integer};

use super::{LANES, LEAST_PEAK, SimdLine, TO_LOW_BITS};
use crate::cpu::simd::{CHUNK, SimdElement, to_lanes};

/// Queries of all heads in tiles of `H`; the last tile is padded with zeros.
#[derive(Clone, Debug)]
pub(crate) enum TileQueries {
    /// `[tiles][H][key_chunks · CHUNK]`, in the lanes' order.
    Floats(Scratch<SimdLine>),
    /// Integers, each of which is to be multiplied by the scale of its query.
    Integers {
        /// `[tiles][key_chunks][H]`
        queries: Vec<IntegerChunk>,
        /// Scale of head `lane % H`, `[tiles]`.
        scales: Vec<SimdLine>,
    },
}

/// 16-bit integers that fill a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct IntegerChunk([i16; CHUNK]);

impl TileQueries {
    /// Arranges queries `[count · dim]`, times `factor`, for keys of `chunks` chunks.
    pub(crate) fn new<E: SimdElement>(
        queries: &[f32],
        dim: usize,
        factor: f32,
        per_tile: usize,
        chunks: usize,
    ) -> Self {
        if E::SCALED {
            Self::round(queries, dim, factor, per_tile, chunks)
        } else {
            Self::Floats(vectors::<E>(queries, dim, factor, per_tile, chunks))
        }
    }

    fn round(queries: &[f32], dim: usize, factor: f32, per_tile: usize, chunks: usize) -> Self {
        let largest = f32::from(largest_query_integer(dim));
        let tiles = (queries.len() / dim).div_ceil(per_tile);
        let mut rounded = vec![IntegerChunk([0; CHUNK]); tiles * per_tile * chunks];
        let mut scales = vec![SimdLine([0.0; LANES]); tiles];
        for (head, query) in queries.chunks_exact(dim).enumerate() {
            let peak = query.iter().fold(LEAST_PEAK, |a, b| a.max(b.abs()));
            let scale = ceil_to_power_of_two(peak / largest);
            let inverse = 1.0 / scale;
            let first = head / per_tile * per_tile * chunks + head % per_tile;
            for (query, rounded) in
                query.chunks(CHUNK).zip(rounded[first..].iter_mut().step_by(per_tile))
            {
                for (x, rounded) in query.iter().zip(&mut rounded.0) {
                    *rounded = (x * inverse + TO_LOW_BITS).to_bits() as i16;
                }
            }
            let line = &mut scales[head / per_tile].0;
            for lane in (head % per_tile..LANES).step_by(per_tile) {
                line[lane] = scale * factor;
            }
        }
        Self::Integers { queries: rounded, scales }
    }

    /// Returns true if there is a vector of `chunks` chunks for each of `heads` heads.
    pub(super) fn are_complete(&self, heads: usize, chunks: usize) -> bool {
        match self {
            Self::Floats(queries) => queries.len() == heads * chunks * CHUNK / LANES,
            Self::Integers { queries, .. } => queries.len() == heads * chunks,
        }
    }
}

/// Least power of two that is at least `x`, a positive normal number.
fn ceil_to_power_of_two(x: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    f32::from_bits((x.to_bits() + MANTISSA) & !MANTISSA)
}

/// Multiplies vectors `[count · dim]` by `factor` and arranges them in the lanes' order, in whole
/// tiles `[tiles][per_tile][chunks · CHUNK]`.
pub(crate) fn vectors<E: SimdElement>(
    vectors: &[f32],
    dim: usize,
    factor: f32,
    per_tile: usize,
    chunks: usize,
) -> Scratch<SimdLine> {
    let (count, lines) = (vectors.len() / dim, chunks * CHUNK / LANES);
    let mut out = Scratch::new(count.next_multiple_of(per_tile) * lines);
    out.fill(SimdLine::default());
    for (vector, lanes) in vectors.chunks_exact(dim).zip(out.chunks_exact_mut(lines)) {
        to_lanes::<E>(vector, factor, lanes);
    }
    out
}
