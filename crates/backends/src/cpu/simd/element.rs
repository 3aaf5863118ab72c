//! Number types of stored rows.

use half::{bf16, f16};

use super::{CHUNK, LANES, Simd, SimdLine};

/// A number type of the cache that kernels can read.
pub(crate) trait SimdElement: Copy + Default + Send + Sync + 'static {
    /// Loads [`CHUNK`] elements of a row in the order of [`place`](Self::place).
    ///
    /// # Safety
    /// See [`Simd`]; `from` must point to [`CHUNK`] elements.
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F);

    /// Position in a chunk of the row of the element in lane `lane < CHUNK`.
    fn place(lane: usize) -> usize {
        lane
    }
}

impl SimdElement for f32 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_f32(from)
    }
}

impl SimdElement for f16 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_f16(from)
    }
}

impl SimdElement for bf16 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_bf16(from)
    }

    /// Even positions come first: a shift and a mask widen the two numbers of each 32-bit word.
    fn place(lane: usize) -> usize {
        2 * (lane % LANES) + lane / LANES
    }
}

/// Multiplies a row by `factor` and writes it to `lanes` in the lanes' order, padded with zeros.
pub(crate) fn to_lanes<E: SimdElement>(row: &[f32], factor: f32, lanes: &mut [SimdLine]) {
    for (i, line) in lanes.iter_mut().enumerate() {
        for (lane, x) in line.0.iter_mut().enumerate() {
            *x = row.get(place_in_row::<E>(i, lane)).map_or(0.0, |x| x * factor);
        }
    }
}

/// Writes the elements of `lanes` to `row` in the row's order; `row` may be shorter.
pub(crate) fn from_lanes<E: SimdElement>(lanes: &[f64], row: &mut [f64]) {
    for (i, &number) in lanes.iter().enumerate() {
        if let Some(x) = row.get_mut(place_in_row::<E>(i / LANES, i % LANES)) {
            *x = number;
        }
    }
}

fn place_in_row<E: SimdElement>(line: usize, lane: usize) -> usize {
    let i = line * LANES + lane;
    i / CHUNK * CHUNK + E::place(i % CHUNK)
}
