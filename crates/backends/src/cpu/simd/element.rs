//! Number types that rows are stored in.

use half::{bf16, f16};

use super::{CHUNK, LANES, Line, Simd};

/// A number type of the cache, as kernels read it.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// [`CHUNK`] elements of a row, in the order of [`place`](Self::place).
    ///
    /// # Safety
    /// As [`Simd`]; `from` must point to [`CHUNK`] elements.
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F);

    /// Where in a chunk of the row the number of lane `lane < CHUNK` stands.
    fn place(lane: usize) -> usize {
        lane
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_f32(from)
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_f16(from)
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn widen<S: Simd>(from: *const Self) -> (S::F, S::F) {
        S::widen_bf16(from)
    }

    /// Even numbers first: a shift and a mask widen both halves of each 32-bit word.
    fn place(lane: usize) -> usize {
        2 * (lane % LANES) + lane / LANES
    }
}

/// Copies a row into whole chunks in the lanes' order, padded with zeros, times `factor`.
pub(crate) fn to_lanes<E: Element>(row: &[f32], factor: f32, lanes: &mut [Line]) {
    for (i, line) in lanes.iter_mut().enumerate() {
        for (lane, x) in line.0.iter_mut().enumerate() {
            *x = row.get(place_in_row::<E>(i, lane)).map_or(0.0, |x| x * factor);
        }
    }
}

/// The number that stands in each lane, back in the row's order; `row` may be shorter.
pub(crate) fn from_lanes<E: Element>(lanes: &[f64], row: &mut [f64]) {
    for (i, &number) in lanes.iter().enumerate() {
        if let Some(x) = row.get_mut(place_in_row::<E>(i / LANES, i % LANES)) {
            *x = number;
        }
    }
}

fn place_in_row<E: Element>(line: usize, lane: usize) -> usize {
    let at = line * LANES + lane;
    at / CHUNK * CHUNK + E::place(at % CHUNK)
}
